"""Claims about the sources that `sparse_vae` returns, computed from their definitions.

The fit to all sources has a certificate of its own. Sources that are not significant are then
removed, and the prior covariances of the others are fitted again. The claims of this module are
about what is returned after that. *Evidence* of a group of columns is twice the log-likelihood that
it adds to the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy.linalg
import scipy.optimize

from lucidae.certificates.bounds import EPS
from lucidae.certificates.claims import (
    Certificate,
    Claim,
    at_least,
    at_most,
    does_not_apply,
    undecided,
)

__all__ = [
    "MISFIT",
    "SelectedSources",
    "forward_claims",
    "misfit",
    "noise_covariance_claim",
    "selection_claims",
    "with_selection",
]

Floats = np.ndarray[Any, Any]

ACCURATE = 10.0
"""Largest distance to optimality of the returned sources, in units of the solver's tolerance."""

SAME = 1e-8
"""Largest relative difference of coefficients that counts as rounding."""

REFERENCE = "Wipf 2023, Theorem 4.4, for groups of columns"

MANY = 40
"""Number of selected groups above which not every one of them is left out in turn with a refit."""

CLEAR = 10.0
"""Evidence relative to the threshold above which one of `MANY` groups is not judged by a refit."""


LARGEST_NOISE = 2.2
"""Largest variance of the whitened noise along any direction, relative to the noise variance γ.

It is that of a covariance which was estimated from ten samples for each dimension."""

ROUNDING = 2.0 * EPS
"""Relative rounding error of one row of a factorisation or product; it grows as √(rows)."""

LEAST_ROOT = 0.1
"""Smallest root of a variance from which a refit starts, relative to the largest of the group.

The gradient is zero at a root that is zero, so a refit from there could not increase it."""

GRID_STEP = 0.25
"""Distance of the logarithms of variances among which the best one is searched for."""

TOGETHER = 1000
"""Number of groups whose singular values are computed at a time."""


def with_selection(fit: Certificate, selected: SelectedSources) -> Certificate:
    """Return the claims about the selected sources, followed by those of the fit to all sources."""
    evidence = fit.evidence | {"selected_columns": selected.columns}
    return Certificate(
        f"sources of sparse_vae ({fit.title})", (*selection_claims(selected), *fit.claims), evidence
    )


def noise_covariance_claim(samples: int | None, rank: int, largest: float, noise: float) -> Claim:
    """Return the claim that the noise covariance has enough samples."""
    name = "noise_covariance"
    statement = "the whitened noise is not much larger than its model in any direction"
    reference = "Marchenko & Pastur 1967"
    if samples is None:
        reason = "The noise covariance is diagonal, regularised, or its number of samples unknown."
        return does_not_apply(name, statement, reference, reason)
    return at_most(
        name, statement, reference, largest / noise, LARGEST_NOISE,
        f"The noise covariance was estimated from {samples} samples in {rank} dimensions: "
        "give one of more samples, a regularised one, or a larger noise_variance.",
    )  # fmt: skip


FLUCTUATION = 4.0
"""Number of standard deviations by which the power of a residual may exceed that of the noise."""

MARGIN = 1.1
"""Largest ratio of the largest eigenvalue of a residual to that of much noise of its dimensions."""

CONSISTENT = 0.2
"""Largest relative change of the noise covariance if it were computed from the returned sources."""


def misfit(
    data: Floats, fields: Floats, noise: float, independent: float, inflation: tuple[float, float]
) -> float:
    """Return what the fields of sources leave of the data, relative to the most that noise leaves.

    `data` (d × n) are whitened by the noise covariance alone, and amplitudes for the `fields`
    (d × a) are fitted here by least squares: neither the prior nor the errors that the fit allows
    for can hide a misfit. The larger of two ratios is returned, that of the total power and that of
    the power along the largest direction (Marchenko & Pastur 1967). `inflation` are the mean and
    the largest variance of whitened noise whose covariance was estimated from few samples. NaN if
    the fields explain any data.
    """
    rank, n = data.shape
    basis, sizes, _ = np.linalg.svd(fields, full_matrices=False)
    basis = basis[:, sizes > 1e-10 * sizes.max(initial=0.0)]
    free = rank - basis.shape[1]
    if not free:
        return math.nan
    residual = (data - basis @ (basis.T @ data)) / math.sqrt(n * noise)
    spread = 1.0 + FLUCTUATION * math.sqrt(2.0 / (independent * free))
    total = np.sum(residual**2) / (free * spread * inflation[0])
    edge = MARGIN * (1.0 + math.sqrt(free / independent)) ** 2
    return float(max(total, np.linalg.norm(residual, 2) ** 2 / (edge * inflation[1])))


MISFIT = (
    "The forward solution has errors (position of the head, conductivities, a coarse grid), "
    "noise_cov, nave or units do not describe the noise, or weak sources are missing: believe the "
    "strongest sources only."
)


def forward_claims(ratio: float, counts: dict[float, int], change: float) -> tuple[Claim, ...]:
    """Return the claims that the forward solution fits, and that its errors were counted.

    `ratio` is the `misfit`, and `counts` are the numbers of significant sources at multiples of the
    noise.
    """
    name, reference = "forward_model", "Marchenko & Pastur 1967, for the whitened residual"
    statement = (
        "the data minus the fields of the returned sources are not larger than noise, in total "
        "and along any direction"
    )
    along = ", ".join(f"{count} at {factor:g}" for factor, count in counts.items())
    if math.isnan(ratio):
        fits = does_not_apply(name, statement, reference, "The sources explain any data.")
    else:
        advice = f"{MISFIT} Significant sources at multiples of the noise: {along}."
        fits = at_most(name, statement, reference, ratio, 1.0, advice)
    settled = at_most(
        "error_covariance", "the errors of position in the noise are those of the returned sources",
        "alternating fits of sources and errors of position", change, CONSISTENT,
        "Sources and errors of position still changed each other: see doubtful_sources.",
    )  # fmt: skip
    return replace(fits, headline="forward model fits"), settled


def selection_claims(selected: SelectedSources) -> tuple[Claim, ...]:
    """Return the claims about the selected sources."""
    with np.errstate(all="ignore"):  # what is not finite is undecided
        return (
            _stationarity(selected),
            _mean(selected),
            _least_evidence(selected),
            _evidence_left_out(selected),
        )


Measured = tuple[float, float, int]
"""A measured value, the bound on its error, and the group that it is about."""


def _judged(
    compare: Callable[..., Claim], words: tuple[str, str, str], measure: Callable[[], Measured],
    threshold: float, advice: str,
) -> Claim:  # fmt: skip
    """Return a claim about what `measure` returns, undecided if that is not finite."""
    try:
        value, error, group = measure()
    except np.linalg.LinAlgError:
        value, error, group = math.nan, math.nan, -1
    if not (math.isfinite(value) and math.isfinite(error)):
        why = "The value or its rounding error is not finite: give a larger noise_variance."
        return undecided(*words, why, None, threshold)
    return compare(*words, value, threshold, advice.format(group=group), error=error)


def _largest(values: list[float], errors: list[float], labels: list[int]) -> Measured:
    """Return the largest value, the bound on the error of the maximum, and its label.

    The true maximum is between the largest of the lower and the largest of the upper bounds. If a
    value is NaN, so is the result.
    """
    if not values:
        return 0.0, 0.0, -1
    found, spread = np.asarray(values), np.asarray(errors)
    top = float(found.max())
    error = max(float((found + spread).max()) - top, top - float((found - spread).max()))
    return top, error if np.isfinite(spread).all() else math.inf, labels[int(found.argmax())]


def _stationarity(selected: SelectedSources) -> Claim:
    """Return the claim that the prior covariances of the selected groups are optimal for them."""
    name = "selected_stationarity"
    statement = "the energy is stationary in the prior covariances of the returned sources"
    if not selected.columns.size:
        return does_not_apply(name, statement, REFERENCE, "No source was selected.")
    return _judged(
        at_most, (name, statement, REFERENCE), lambda: _distance(selected),
        ACCURATE * selected.tolerance, "Fit again with a smaller tol or a larger max_iter.",
    )  # fmt: skip


def _distance(selected: SelectedSources) -> Measured:
    """Return the largest violation of stationarity of a selected group."""
    factor, values, errors = selected.factor, [], []
    power, start = factor.power, 0
    # With W = NᵀA_g (‖W‖ ≤ 1) and Y = NᵀM/√(γn) (‖Y‖² = `power`), Tᵀ(Q − S)T = Wᵀ(YYᵀ − I)W. Its
    # error is that of Σ and of T, 4η(1 + ‖Y‖²), and that of the data, 2‖Y‖ times that of Y.
    inner_error = 4.0 * factor.shaken * (1.0 + power) + 2.0 * math.sqrt(power) * factor.noisy
    for here in selected.members.values():
        part = factor.null.T @ factor.scaled[:, start : start + here.size]
        start += here.size
        loading = part.T @ factor.moment_root
        difference = loading @ loading.T - part.T @ part
        if not selected.full:
            values.append(abs(float(np.trace(difference))))
            errors.append(here.size * inner_error)
            continue
        # Q − S is zero on the range of Γ, and negative semi-definite.
        values.append(float(np.abs(np.linalg.eigvalsh(difference)).max()))
        errors.append(inner_error)
        found = AddedGroups.of(selected, selected.columns[here][None])
        values.append(float(found.ratios.max(initial=0.0)) - 1.0)
        errors.append(float(found.errors[0]))
    return _largest([0.0, *values], [0.0, *errors], [-1] * (len(values) + 1))


def _mean(selected: SelectedSources) -> Claim:
    """Return the claim that the coefficients are the posterior mean ΓΦᵀΣ⁻¹M."""
    statement = "the amplitudes are the posterior mean of the returned sources"
    return _judged(
        at_most, ("selected_mean", statement, "Wipf 2023, eq. 18"), lambda: _differing(selected),
        SAME, "The amplitudes are not those of this fit: fit again.",
    )  # fmt: skip


def _differing(selected: SelectedSources) -> Measured:
    """Return the largest difference of the coefficients from their mean, relative to the mean."""
    if not selected.columns.size:
        return 0.0, 0.0, -1
    factor, start = selected.factor, 0
    expected, largest = np.empty_like(selected.mean), 0.0
    for label, here in selected.members.items():
        root = selected.roots[label]
        expected[here] = root @ factor.latent[start : start + here.size]
        largest, start = max(largest, float(np.linalg.norm(root, 2))), start + here.size
    size = float(np.abs(expected).max())
    difference = float(np.abs(expected - selected.mean).max())
    # The latents Z = Aᵀ(I + AAᵀ)⁻¹M/√γ change by 2η‖Y‖ + η‖Z‖ and half of the error of M, because
    # ‖Aᵀ(I + AAᵀ)^{-½}‖ ≤ 1; the coefficients TZ change by ‖T‖ times that.
    columns = [np.linalg.norm(part, axis=0).max() for part in (factor.whitened, factor.latent)]
    error = largest * (factor.shaken * float(2.0 * columns[0] + columns[1]) + factor.noisy)
    return (difference / size, error / size, -1) if size else (difference, error, -1)


NO_THRESHOLD = "The threshold is zero at this significance, so any evidence is significant."


def _least_evidence(selected: SelectedSources) -> Claim:
    """Return the claim that every selected group is significant beside the others."""
    name, reference = "selected_evidence", "likelihood ratio at a boundary, Self & Liang 1987"
    statement = (
        "every returned source is significant after the other sources are fitted again, "
        "relative to its threshold"
    )
    if selected.thresholds is None or not selected.columns.size:
        why = "significance=None was given." if selected.columns.size else "No source was selected."
        return does_not_apply(name, statement, reference, why)
    needed = {label: selected.thresholds[here.size] for label, here in selected.members.items()}
    if any(threshold == 0.0 for threshold in needed.values()):
        return does_not_apply(name, statement, reference, NO_THRESHOLD)
    return _judged(
        at_least, (name, statement, reference), lambda: _least_ratio(selected, needed), 1.0,
        "A returned source is not significant: the other sources explain the data almost as well "
        "when they are fitted again without it (group {group} of columns).",
    )  # fmt: skip


def _least_ratio(selected: SelectedSources, thresholds: dict[int, float]) -> Measured:
    """Return the smallest evidence of a selected group relative to its threshold."""
    span, (whole, error) = selected.span, selected.whole_energy
    ratios, errors, labels = [], [], []
    for label, threshold in thresholds.items():
        others = {g: root for g, root in selected.roots.items() if g != label}
        without, rounding = span.energy(others)
        clear = without - whole > CLEAR * threshold and len(thresholds) > MANY
        if others and not clear:
            refitted, its_rounding, converged = span.refitted(others, selected.full)
            if not refitted >= without:  # NaN is kept
                without, rounding = refitted, its_rounding
            # Without convergence the evidence is only known to be at most this.
            if not converged and without - whole >= threshold:
                rounding = math.inf
        ratios.append((whole - without) / threshold)
        errors.append((error + rounding) / threshold)
        labels.append(label)
    value, bound, label = _largest(ratios, errors, labels)
    return -value, bound, label


def _evidence_left_out(selected: SelectedSources) -> Claim:
    """Return the claim that no other group would be significant beside the selected ones."""
    name, reference = "left_out_evidence", "likelihood ratio at a boundary, Self & Liang 1987"
    statement = "no other source would be significant if it were added, relative to its threshold"
    if selected.thresholds is None:
        return does_not_apply(name, statement, reference, "significance=None was given.")
    if any(selected.thresholds[columns.shape[1]] == 0.0 for _, columns in selected.others()):
        return does_not_apply(name, statement, reference, NO_THRESHOLD)
    return _judged(
        at_most, (name, statement, reference), lambda: _most_left_out(selected), 1.0,
        "Group {group} of columns (a source or a patch) would be significant beside the returned "
        "ones. The noise covariance or the forward solution may be inaccurate, or nearby sources "
        "may replace each other: give a larger noise_variance, or see noise_path.",
    )  # fmt: skip


def _most_left_out(selected: SelectedSources) -> Measured:
    """Return the largest evidence that one of the other groups adds, relative to its threshold."""
    assert selected.thresholds is not None
    values, errors, labels = [], [], []
    for numbers, members in selected.others():
        evidence, error = added_evidence(selected, members)
        values += (evidence / selected.thresholds[members.shape[1]]).tolist()
        errors += (error / selected.thresholds[members.shape[1]]).tolist()
        labels += numbers.tolist()
    return _largest(values, errors, labels)


@dataclass(frozen=True, eq=False)
class SelectedSources:
    """A whitened problem and the sources that were selected, as they are returned."""

    gain: Floats  # (d, κ): the dictionary Φ
    responses: Floats  # (d, n): the whitened data M
    labels: Floats  # (κ,): group (source or patch) of each column
    columns: Floats  # (a,): the columns of the selected groups
    prior: Floats  # (a, a): the prior covariance of their coefficients
    mean: Floats  # (a, n): the posterior mean of their coefficients that is returned
    noise: float  # the noise variance γ
    full: bool  # whether every group has a covariance of its own; otherwise it has one variance
    # the evidence that a group must exceed to be significant, by number of its columns
    thresholds: dict[int, float] | None
    tolerance: float  # distance to optimality at which the solver stops

    @cached_property
    def members(self) -> dict[int, Floats]:
        """Places of each selected group among the selected columns, by label."""
        owners = self.labels[self.columns]
        return {int(label): np.flatnonzero(owners == label) for label in np.unique(owners)}

    @cached_property
    def roots(self) -> dict[int, Floats]:
        """Square matrix T_g with T_gT_gᵀ = Γ_g of each selected group, by label."""
        found = {}
        for label, here in self.members.items():
            values, axes = np.linalg.eigh(self.prior_of(here))
            found[label] = axes * np.sqrt(np.maximum(values, 0.0))
        return found

    def prior_of(self, here: Floats) -> Floats:
        """Return the symmetric part of the prior covariance of the group at the places `here`."""
        block = self.prior[np.ix_(here, here)]
        return np.asarray(0.5 * (block + block.T))

    @cached_property
    def factor(self) -> OrthogonalFactor:
        """The factorised covariance Σ of the selected sources."""
        return OrthogonalFactor.of(self)

    def energy(self, kept: Floats | None = None) -> float:
        """Return n log|Σ| + tr(MᵀΣ⁻¹M), minus twice the log-likelihood up to a constant."""
        used = np.ones(self.columns.size, dtype=bool) if kept is None else kept
        parts = {g: root for g, root in self.roots.items() if used[self.members[g]].all()}
        d, n = self.responses.shape
        scale = math.sqrt(self.noise)
        with np.errstate(all="ignore"):
            scaled = _joined(self.fields, parts, self.members) / scale
            found = _energy(scaled, self.responses / scale, n)[0]
        return float(n * d * math.log(self.noise) + found)

    @property
    def fields(self) -> Floats:
        """The selected columns of the dictionary."""
        return np.asarray(self.gain[:, self.columns])

    @cached_property
    def span(self) -> Span:
        """The problem of the selected columns in their span."""
        return Span.of(self)

    @cached_property
    def whole_energy(self) -> tuple[float, float]:
        """Energy of all selected groups in `span`, and the bound on its rounding error."""
        value, error = self.span.energy(self.roots)
        # Σ of the whole has the error η instead of that of `Span`, which does not form T from Γ.
        size = self.responses.shape[1] * self.columns.size
        return value, error + self.factor.shaken * (2.0 * size + size * self.factor.power)

    def others(self) -> list[tuple[Floats, Floats]]:
        """Return the labels of all groups that are not selected, and their columns, by size."""
        order = np.argsort(self.labels, kind="stable")
        labels, starts = np.unique(self.labels[order], return_index=True)
        columns = np.split(order, starts[1:])
        sizes = np.array([part.size for part in columns])
        free = ~np.isin(labels, self.labels[self.columns])
        return [
            (labels[here], np.array([columns[place] for place in here]))
            for size in np.unique(sizes[free])
            for here in (np.flatnonzero(free & (sizes == size)),)
        ]


@dataclass(frozen=True, eq=False)
class OrthogonalFactor:
    """Σ = γ(I + AAᵀ) of the selected sources, with A = ΦT/√γ, in factored form.

    The orthogonal complement of the columns of [A; I] has the first d rows N, and Σ⁻¹ = NNᵀ/γ.
    """

    null: Floats  # (d, d): the matrix N
    scaled: Floats  # (d, r): the matrix A
    latent: Floats  # (r, n): the posterior mean of the latents Z, where the coefficients are TZ
    whitened: Floats  # (d, n): NᵀM/√γ, whose inner products are those of Σ^{-½}M
    # bound η on the relative rounding error of Σ, ‖Σ^{-½}ΔΣΣ^{-½}‖; infinite if it exceeds 0.1
    shaken: float
    noisy: float  # bound on the rounding errors of a column of `whitened` that are those of M/√γ

    @classmethod
    def of(cls, selected: SelectedSources) -> OrthogonalFactor:
        """Return the factorisation for the selected sources."""
        scale, (d, _) = math.sqrt(selected.noise), selected.responses.shape
        scaled = _joined(selected.fields, selected.roots, selected.members) / scale
        size = scaled.shape[1]
        basis, upper = np.linalg.qr(np.vstack([scaled, np.eye(size)]), mode="complete")
        data, null = selected.responses / scale, basis[:d, size:]
        latent = np.linalg.solve(upper[:size], basis[:d, :size].T @ data)
        # Householder's method is backward stable: the factors are those of [A + E; I + F] with E
        # and F of norm uα at most. Because ‖Aᵀ(I + AAᵀ)^{-½}‖ ≤ 1, Σ changes by 2uα + 2uα relative
        # to itself. An error ΔΓ_g of the roots (TTᵀ differs from Γ_g, mostly because rounding made
        # Γ_g indefinite) changes Σ by ‖ΔΓ_g‖‖S_g‖ relative to itself, where S_g = Φ_gᵀΣ⁻¹Φ_g.
        unit = ROUNDING * math.sqrt(d + size)
        shaken = 4.0 * unit * _amplification(selected.fields / scale, selected.roots, selected)
        for label, here in selected.members.items():
            metric = np.linalg.norm(null.T @ selected.fields[:, here] / scale, 2) ** 2
            root = selected.roots[label]
            missing = np.linalg.norm(selected.prior_of(here) - root @ root.T, 2)
            shaken += float(metric * (missing + ROUNDING * np.linalg.norm(root, 2) ** 2))
        noisy = unit * float(np.linalg.norm(data, axis=0).max(initial=0.0))
        bound = shaken if shaken <= 0.1 else math.inf
        return cls(null, scaled, latent, null.T @ data, bound, noisy)

    @cached_property
    def moment_root(self) -> Floats:
        """Matrix of at most d columns with the same moment as NᵀM/√(γn)."""
        n = self.whitened.shape[1]
        return np.asarray(np.linalg.qr(self.whitened.T, mode="r")).T / math.sqrt(n)

    @cached_property
    def power(self) -> float:
        """Largest eigenvalue of MᵀΣ⁻¹M/n."""
        return float(np.linalg.norm(self.moment_root, 2) ** 2)


@dataclass(frozen=True, eq=False)
class Span:
    """The problem of the selected columns in an orthonormal basis of their span, with γ = 1.

    The data outside of the span add the same to the energy of any of these sources.
    """

    fields: Floats  # (k, a): the selected columns, divided by √γ
    data: Floats  # (k, n): the data, divided by √γ, or a matrix with the same moment
    count: int  # the number n of samples
    members: dict[int, Floats]  # places of each group among the columns

    @classmethod
    def of(cls, selected: SelectedSources) -> Span:
        """Return the reduced problem of the selected sources."""
        scale = math.sqrt(selected.noise)
        basis, fields = np.linalg.qr(selected.fields / scale)
        data = basis.T @ (selected.responses / scale)
        if data.shape[1] > len(data):
            data = np.asarray(np.linalg.qr(data.T, mode="r")).T
        return cls(fields, data, selected.responses.shape[1], selected.members)

    def energy(self, roots: dict[int, Floats]) -> tuple[float, float]:
        """Return the energy of groups with the roots T_g, and the bound on its rounding error."""
        scaled = _joined(self.fields, roots, self.members)
        value, _, squares = _energy(scaled, self.data, self.count)
        size = scaled.shape[1]
        unit = ROUNDING * math.sqrt(len(self.fields) + size)
        # Σ has the relative error η (see `OrthogonalFactor.of`). n log|Σ| changes by 2rnη, because
        # ΔΣ has rank 2r, and the squares ‖Y‖² by η‖Y‖² and by 2‖Y‖ times the error of the data.
        shaken = 4.0 * unit * _amplification(self.fields, roots, self)
        noisy = unit * float(np.linalg.norm(self.data))
        error = shaken * (2.0 * size * self.count + squares) + 2.0 * math.sqrt(squares) * noisy
        return value, error + unit * abs(value) if shaken <= 0.1 else math.inf

    def refitted(self, roots: dict[int, Floats], full: bool) -> tuple[float, float, bool]:
        """Return the least energy over the priors of groups, its rounding error, and convergence.

        The minimum is found by L-BFGS over the roots, or one root of a variance per group if `full`
        is False, from the given `roots`. It is a local minimum, so never below the global one.
        """
        starts = {g: _start(root) if full else np.eye(len(root)) for g, root in roots.items()}
        scales = {g: float(np.linalg.norm(root, 2)) for g, root in roots.items()}
        ends = np.cumsum([root.size if full else 1 for root in roots.values()])[:-1]

        def unpacked(flat: Floats) -> dict[int, Floats]:
            parts = zip(roots.items(), np.split(flat, ends), strict=True)
            return {
                g: scales[g] * (part.reshape(root.shape) if full else part[0] * starts[g])
                for (g, root), part in parts
            }

        def change(flat: Floats) -> tuple[float, Floats]:
            scaled = _joined(self.fields, unpacked(flat), self.members)
            value, slope, _ = _energy(scaled, self.data, self.count)
            parts, start = [], 0
            for g, root in roots.items():
                here = self.members[g]
                part = scales[g] * self.fields[:, here].T @ slope[:, start : start + len(root)]
                parts.append(part.ravel() if full else np.array([np.trace(part)]))
                start += len(root)
            return value, np.concatenate(parts)

        first = [starts[g].ravel() if full else np.ones(1) for g in roots]
        found = scipy.optimize.minimize(
            change, np.concatenate(first), jac=True, method="L-BFGS-B",
            options={"maxiter": 1000, "maxfun": 2000, "ftol": 1e-10, "gtol": 1e-7 * self.count},
        )  # fmt: skip
        value, error = self.energy(unpacked(found.x))
        return value, error, found.status != 1  # 1: the limit was reached


def _start(root: Floats) -> Floats:
    """Return a root, divided by its largest singular value, whose columns are not negligible."""
    left, sizes, right = np.linalg.svd(root)
    largest = sizes[0] if sizes[0] > 0.0 else 1.0
    return np.asarray(left * np.maximum(sizes / largest, LEAST_ROOT) @ right)


def _joined(fields: Floats, roots: dict[int, Floats], members: dict[int, Floats]) -> Floats:
    """Return ΦT of the groups in `roots`, side by side."""
    parts = [fields[:, members[label]] @ root for label, root in roots.items()]
    return np.hstack([np.zeros((len(fields), 0)), *parts])


def _amplification(
    fields: Floats, roots: dict[int, Floats], owner: SelectedSources | Span
) -> float:
    """Return α, the root of the sum of ‖Φ_g‖²‖T_g‖² over groups, at least 1."""
    sizes = [
        float(np.linalg.norm(fields[:, owner.members[label]]) * np.linalg.norm(root))
        for label, root in roots.items()
    ]
    return float(np.linalg.norm([1.0, *sizes]))


def _energy(scaled: Floats, data: Floats, count: int) -> tuple[float, Floats, float]:
    """Return n log|I + AAᵀ| + tr(Mᵀ(I + AAᵀ)⁻¹M), its gradient in A, and its second term."""
    size = scaled.shape[1]
    if not size:
        squares = float((data**2).sum())
        return squares, np.zeros(scaled.shape), squares
    # The trace is the minimum over Z of ‖M − AZ‖² + ‖Z‖², a least-squares problem with [A; I]. Its
    # gradient in A is therefore that of the first term at fixed Z, and |I + AᵀA| = |R|².
    basis, upper = np.linalg.qr(np.vstack([scaled, np.eye(size)]))
    top = basis[: len(scaled)]
    inverse = scipy.linalg.solve_triangular(upper, np.eye(size), check_finite=False)
    latent = inverse @ (top.T @ data)
    residual = data - scaled @ latent
    squares = float((residual**2).sum() + (latent**2).sum())
    logarithm = 2.0 * count * float(np.log(np.abs(np.diagonal(upper))).sum())
    slope = 2.0 * count * (top @ inverse.T) - 2.0 * residual @ latent.T
    return logarithm + squares, slope, squares


@dataclass(frozen=True, eq=False)
class AddedGroups:
    """What groups of the same size would add to the selected sources."""

    ratios: Floats  # (k, r): the eigenvalues of S^{-½}QS^{-½} of k groups (see `Blocks`)
    errors: Floats  # (k,): bounds on the errors of these

    @classmethod
    def of(cls, selected: SelectedSources, members: Floats) -> AddedGroups:
        """Return the eigenvalues for groups whose columns are the rows of `members`.

        They are the squared singular values of BᵀNᵀM/√(γn), where B is an orthonormal basis of
        NᵀΦ_g.
        """
        factor, gain = selected.factor, selected.gain
        parts = []
        for first in range(0, len(members), TOGETHER):
            here = members[first : first + TOGETHER]
            columns = gain[:, here]
            fields = np.moveaxis(np.tensordot(factor.null, columns, (0, 0)), 0, 1)
            lengths = np.linalg.norm(fields, axis=1)
            lost = ROUNDING * math.sqrt(len(gain)) * np.linalg.norm(columns, axis=0)
            parts.append(_group_ratios(factor, fields, lengths, lost))
        ratios, errors = (np.concatenate(each) for each in zip(*parts, strict=True))
        return cls(ratios, errors)

    def gains(self) -> Floats:
        """Return the decrease of the energy per sample by the best covariance of each group."""
        excess = np.maximum(self.ratios - 1.0, 0.0)
        return np.asarray((excess - np.log1p(excess)).sum(axis=1))


def _group_ratios(
    factor: OrthogonalFactor, fields: Floats, lengths: Floats, lost: Floats
) -> tuple[Floats, Floats]:
    """Return the eigenvalues of `AddedGroups`, and the bounds on their errors.

    `fields` (k, d, m) are NᵀΦ_g, and `lost` the rounding errors of the `lengths` of their columns.
    """
    count, _, size = fields.shape
    rank = min(size, factor.moment_root.shape[1])
    if not np.isfinite(lengths).all():
        return np.full((count, rank), math.nan), np.full(count, math.nan)
    seen = lengths > 10.0 * lost
    scales = np.where(seen, 1.0 / np.where(seen, lengths, 1.0), 0.0)
    basis, sizes, _ = np.linalg.svd(fields * scales[:, None, :], full_matrices=False)
    rounding = np.linalg.norm(lost * scales, axis=1)
    kept = sizes > 10.0 * rounding[:, None]
    inner = np.swapaxes(basis * kept[:, None, :], 1, 2) @ factor.moment_root
    values = np.linalg.svd(inner, compute_uv=False) ** 2
    # A singular value √λ = ‖bᵀY‖ with ‖b‖ = 1 changes by (η + turn)‖Y‖ + η√λ/2 + noise, where
    # `turn` is the angle by which the product NᵀΦ_g, scaled, turns b.
    turn = rounding / np.where(kept, sizes, 1.0).min(axis=1, initial=1.0)
    largest = np.sqrt(values.max(axis=1, initial=0.0))
    change = (1.5 * factor.shaken + turn) * math.sqrt(factor.power) + factor.noisy
    return values, np.where(kept.any(axis=1), 2.0 * largest * change + change**2, 0.0)


def added_evidence(selected: SelectedSources, members: Floats) -> tuple[Floats, Floats]:
    """Return the evidence that each of some groups would add, and bounds on the errors.

    It is twice the log-likelihood, with all other prior covariances fixed. The rows of `members`
    contain the columns of the groups.
    """
    found, n = AddedGroups.of(selected, members), selected.responses.shape[1]
    gains = found.gains()  # never less than those of one variance
    if not selected.full and members.shape[1] > 1:
        for place in np.flatnonzero(gains > 0.0):
            columns = selected.gain[:, members[place]]
            gains[place] = _shared_gain(selected.factor, columns, selected.noise)
    # Neither gain changes faster than the sum of the eigenvalues.
    return n * gains, n * members.shape[1] * found.errors


def _shared_gain(factor: OrthogonalFactor, gain: Floats, noise: float) -> float:
    """Return the decrease of the energy per sample by the best single variance of such a group."""
    fields = factor.null.T @ gain / math.sqrt(noise)
    basis, sizes, _ = np.linalg.svd(fields, full_matrices=False)
    lost = ROUNDING * math.sqrt(len(gain)) * float(np.linalg.norm(gain)) / math.sqrt(noise)
    seen = sizes > 10.0 * lost
    curvatures = sizes[seen] ** 2
    ratios = ((basis[:, seen].T @ factor.moment_root) ** 2).sum(axis=1)
    if not (ratios > 1.0).any():  # the energy rises with every term
        return 0.0 if np.isfinite(ratios).all() else math.nan

    def change(logarithm: Any) -> Any:
        added = np.exp(logarithm)[..., None] * curvatures
        return (np.log1p(added) - ratios * added / (1.0 + added)).sum(axis=-1)

    # A term falls until w = (λ − 1)/s and rises after it. Far below 1/max s the change is nearly 0.
    high = math.log(float(((ratios - 1.0) / curvatures).max()))
    low = min(high, math.log(1e-9 / float(curvatures.max())))
    grid = np.linspace(low, high, 2 + int((high - low) / GRID_STEP))
    best = float(grid[int(np.argmin(change(grid)))])
    near = scipy.optimize.minimize_scalar(
        change, bounds=(best - 1.2 * GRID_STEP, best + 1.2 * GRID_STEP), method="bounded"
    )
    return max(0.0, -float(near.fun)) if math.isfinite(near.fun) else math.nan
