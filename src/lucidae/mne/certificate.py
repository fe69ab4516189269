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

from lucidae.certificates.bounds import EPS, Ball, row_norms
from lucidae.certificates.claims import Certificate, Claim, at_most, does_not_apply
from lucidae.sparsity.verify import (
    At,
    Prior,
    Sample,
    blocks_by_size,
    compressed,
    evaluated,
    group_numbers,
    group_ratios,
    group_slack,
    largest,
    prepared,
    totals_in,
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
        "prior covariances and errors of position, fitted in turn", change, CONSISTENT,
        "Sources and errors of position still changed each other: see doubtful_sources.",
    )  # fmt: skip
    return replace(fits, headline="forward model fits"), settled


NO_THRESHOLD = "The threshold is zero at this significance, so any evidence is significant."

RATIO_TEST = "likelihood ratio at a boundary, Self & Liang 1987"


def selection_claims(selected: SelectedSources) -> tuple[Claim, ...]:
    """Return the claims about the selected sources."""
    empty, untested = "" if selected.columns.size else "No source was selected.", ""
    if not selected.thresholds:
        untested = "significance=None was given."
    elif 0.0 in selected.thresholds.values():
        untested = NO_THRESHOLD
    statements = {
        "selected_stationarity": "the energy is stationary in the prior covariances of the "
        "returned sources",
        "selected_mean": "the amplitudes are the posterior mean of the returned sources",
        "selected_evidence": "every returned source is significant after the other sources are "
        "fitted again, relative to its threshold",
        "left_out_evidence": "no other source would be significant if it were added, relative to "
        "its threshold",
    }
    references = (REFERENCE, "Wipf 2023, eq. 18", RATIO_TEST, RATIO_TEST)
    stationarity, mean, evidence, left_out = (
        Claim(*words, reference)
        for words, reference in zip(statements.items(), references, strict=True)
    )
    with np.errstate(all="ignore"):  # what is not finite is undecided
        return (
            _judged(
                stationarity, lambda: _distance(selected), ACCURATE * selected.tolerance,
                "Fit again with a smaller tol or a larger max_iter.", empty,
            ),
            _judged(
                mean, lambda: _differing(selected), SAME,
                "The amplitudes are not those of this fit: fit again.",
            ),
            _judged(
                evidence, lambda: _least_ratio(selected), 1.0,
                "A returned source is not significant: the other sources explain the data almost "
                "as well when they are fitted again without it (group {group} of columns).",
                empty or untested, least=True,
            ),
            _judged(
                left_out, lambda: _most_left_out(selected), 1.0,
                "Group {group} of columns (a source or a patch) would be significant beside the "
                "returned ones. The noise covariance or the forward solution may be inaccurate, or "
                "nearby sources may replace each other: give a larger noise_variance, or see "
                "noise_path.", untested,
            ),
        )  # fmt: skip


Measured = tuple[float, float, int]
"""A measured value, the bound on its error, and the group that it is about."""


def _judged(
    claim: Claim, measure: Callable[[], Measured], threshold: float, advice: str,
    untested: str = "", *, least: bool = False,
) -> Claim:  # fmt: skip
    """Return a claim about what `measure` returns, undecided if that is not finite."""
    if untested:
        return replace(claim, advice=untested)
    try:
        value, error, group = measure()
    except np.linalg.LinAlgError:
        value, error, group = math.nan, math.nan, -1
    if not (math.isfinite(value) and math.isfinite(error)):
        why = "The value or its rounding error is not finite: give a larger noise_variance."
        return replace(claim, threshold=threshold, advice=why, undecided=True)
    return claim.judged(Ball(value, error), threshold, advice.format(group=group), least=least)


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


def _distance(selected: SelectedSources) -> Measured:
    """Return the largest violation of stationarity of a selected group."""
    at, prior = selected.at, selected.blocks
    if selected.full:
        # Q − S is zero on the range of Γ, and negative semi-definite.
        balls = [group_slack(at, selected.labels[selected.columns])[1]]
        places = [selected.columns[here][None] for here in selected.members.values()]
        balls += [group_ratios(at, members)[:, -1] - 1.0 for members in places]
    else:
        labels = group_numbers(selected.labels, len(selected.labels))
        slope = (at.q - at.z) * prior.relevance
        balls = [totals_in(slope, labels)[selected.columns].abs()]
    found = largest(*balls)
    return found.value, found.error, -1


def _differing(selected: SelectedSources) -> Measured:
    """Return the largest difference of the coefficients from their mean, relative to the mean."""
    if not selected.columns.size:
        return 0.0, 0.0, -1
    at, expected = selected.at, selected.at.mean[selected.columns]
    size = float(np.abs(expected).max()) or 1.0
    difference = float(np.abs(expected - selected.mean).max())
    # The latents Z = AᵀΣ⁻¹M, with ‖AᵀΣ^{-½}‖ ≤ 1, change by four times the error of Σ^½ relative to
    # ‖Σ^{-½}M‖ (twice for each of two factors), and the coefficients TZ by ‖T‖ times that.
    spread = max(float(np.linalg.norm(root, 2)) for root in selected.roots.values())
    error = 4.0 * at.rounding * spread * float(row_norms((at.targets / at.level**0.5).T).max())
    return difference / size, error / size, -1


def _least_ratio(selected: SelectedSources) -> Measured:
    """Return the smallest evidence of a selected group relative to its threshold."""
    thresholds = {g: selected.thresholds[here.size] for g, here in selected.members.items()}
    span = Span.of(selected)
    whole, error = span.energy(selected.roots)
    # Σ has also the error of its roots, which `Span` does not know.
    size = selected.responses.shape[1] * (2.0 * selected.columns.size + selected.at.fit)
    error += 2.0 * selected.at.rounding * size
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


def _most_left_out(selected: SelectedSources) -> Measured:
    """Return the largest evidence that one of the other groups adds, relative to its threshold."""
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
    # the evidence that a group must exceed to be significant, by number of its columns; empty if
    # groups were not tested
    thresholds: dict[int, float]
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
    def blocks(self) -> Prior:
        """The prior covariances of the selected groups, for the verifier of the sparse family."""
        relevance = np.zeros(self.gain.shape[1])
        relevance[self.columns] = np.diagonal(self.prior)
        root = np.zeros(self.prior.shape)
        for label, here in self.members.items():
            root[np.ix_(here, here)] = self.roots[label]
        return Prior(relevance, self.columns, root)

    @cached_property
    def at(self) -> At:
        """The problem at these covariances, evaluated by the verifier of the sparse family."""
        rows = prepared(Sample(self.gain, self.responses))
        at = evaluated(rows, self.blocks, self.noise)
        # An error ΔΓ_g of the roots (TTᵀ differs from Γ_g, mostly because rounding made Γ_g
        # indefinite) changes Σ by ‖ΔΓ_g‖‖S_g‖ relative to itself, where S_g = Φ_gᵀΣ⁻¹Φ_g.
        lost = at.rounding
        for label, here in self.members.items():
            root = self.roots[label]
            missing = np.linalg.norm(self.prior_of(here) - root @ root.T, 2)
            metric = np.linalg.norm(at.whitened(self.fields[:, here]), 2) ** 2
            lost += float(metric * (missing + ROUNDING * np.linalg.norm(root, 2) ** 2))
        return at._replace(rounding=lost if lost <= 0.05 else math.inf)

    @property
    def fields(self) -> Floats:
        """The selected columns of the dictionary."""
        return np.asarray(self.gain[:, self.columns])

    def others(self) -> list[tuple[Floats, Floats]]:
        """Return the labels of all groups that are not selected, and their columns, by size."""
        labels, free = np.unique(self.labels), []
        for numbers, columns in blocks_by_size(group_numbers(self.labels, len(self.labels))):
            here = ~np.isin(labels[numbers], self.labels[self.columns])
            free.append((labels[numbers[here]], columns[here]))
        return [part for part in free if part[0].size]


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
        data = compressed(basis.T @ (selected.responses / scale))
        return cls(fields, data, selected.responses.shape[1], selected.members)

    def energy(self, roots: dict[int, Floats]) -> tuple[float, float]:
        """Return the energy of groups with the roots T_g, and the bound on its rounding error."""
        scaled = _joined(self.fields, roots, self.members)
        value, _, squares = _energy(scaled, self.data, self.count)
        size = scaled.shape[1]
        unit = ROUNDING * math.sqrt(len(self.fields) + size)
        # Householder's method is backward stable: the factors are those of [A + E; I + F] with E
        # and F of norm uα, α² = 1 + Σ‖Φ_g‖²‖T_g‖². Since ‖Aᵀ(I + AAᵀ)^{-½}‖ ≤ 1, Σ has the relative
        # error η = 4uα. n log|Σ| changes by 2rnη, because ΔΣ has rank 2r, and the squares ‖Y‖² by
        # η‖Y‖² and by 2‖Y‖ times the error of the data.
        parts = [
            float(np.linalg.norm(self.fields[:, self.members[g]]) * np.linalg.norm(root))
            for g, root in roots.items()
        ]
        shaken = 4.0 * unit * float(np.linalg.norm([1.0, *parts]))
        noisy = unit * float(np.linalg.norm(self.data))
        error = shaken * (2.0 * size * self.count + squares) + 2.0 * math.sqrt(squares) * noisy
        return value, error + unit * abs(value) if shaken <= 0.1 else math.inf

    def refitted(self, roots: dict[int, Floats], full: bool) -> tuple[float, float, bool]:
        """Return the least energy over the priors of groups, its rounding error, and convergence.

        The minimum is found by L-BFGS over the roots, or one root of a variance per group if `full`
        is False, from the given `roots`. It is a local minimum, so never below the global one.
        """
        scales = {g: float(np.linalg.norm(root, 2)) for g, root in roots.items()}
        # a root is a sum of matrices of this basis, times its scale
        bases = {
            g: np.eye(root.size).reshape(-1, *root.shape) if full else np.eye(len(root))[None]
            for g, root in roots.items()
        }
        ends = np.cumsum([len(basis) for basis in bases.values()])[:-1]

        def unpacked(flat: Floats) -> dict[int, Floats]:
            parts = zip(bases.items(), np.split(flat, ends), strict=True)
            return {g: scales[g] * np.tensordot(part, basis, 1) for (g, basis), part in parts}

        def change(flat: Floats) -> tuple[float, Floats]:
            scaled = _joined(self.fields, unpacked(flat), self.members)
            value, slope, _ = _energy(scaled, self.data, self.count)
            parts, start = [], 0
            for g, basis in bases.items():
                here = slope[:, start : start + basis.shape[1]]
                parts.append(
                    scales[g] * np.tensordot(basis, self.fields[:, self.members[g]].T @ here)
                )
                start += basis.shape[1]
            return value, np.concatenate(parts)

        first = [_start(root).ravel() if full else np.ones(1) for root in roots.values()]
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


def added_evidence(selected: SelectedSources, members: Floats) -> tuple[Floats, Floats]:
    """Return the evidence that each of some groups would add, and bounds on the errors.

    It is twice the log-likelihood, with all other prior covariances fixed. The rows of `members`
    contain the columns of the groups.
    """
    ratios, n = group_ratios(selected.at, members), selected.responses.shape[1]
    excess = np.maximum(ratios.value - 1.0, 0.0)
    gains = (excess - np.log1p(excess)).sum(axis=1)  # never less than those of one variance
    if not selected.full and members.shape[1] > 1:
        for place in np.flatnonzero(gains > 0.0):
            gains[place] = _shared_gain(selected.at, selected.gain[:, members[place]])
    # Neither gain changes faster than the sum of the eigenvalues.
    return n * gains, n * ratios.error.sum(axis=1)


def _shared_gain(at: At, gain: Floats) -> float:
    """Return the decrease of the energy per sample by the best single variance of such a group."""
    basis, sizes, _ = np.linalg.svd(at.whitened(gain), full_matrices=False)
    lost = ROUNDING * math.sqrt(len(gain)) * float(np.linalg.norm(gain)) / math.sqrt(at.noise)
    seen = sizes > 10.0 * lost
    curvatures = sizes[seen] ** 2
    ratios = ((basis[:, seen].T @ at.whitened(at.rows.responses)) ** 2).sum(axis=1) / at.n
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
