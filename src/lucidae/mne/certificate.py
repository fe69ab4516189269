"""Claims about the sources that `sparse_vae` returns, computed from their definitions.

The fit to all sources has a certificate of its own. Sources that are not significant are then
removed, and the prior covariances of the others are fitted again. The claims of this module are
about what is returned after that; `selected_sources` computes what they compare.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from lucidae.certificate import Certificate, Claim, at_least, at_most, does_not_apply, undecided
from lucidae.mne.selected_sources import AddedGroups, SelectedSources, added_evidence

__all__ = ["selection_claims", "with_noise_covariance", "with_selection"]

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


def with_selection(fit: Certificate, selected: SelectedSources) -> Certificate:
    """Return the claims about the selected sources, followed by those of the fit to all sources."""
    evidence = fit.evidence | {"selected_columns": selected.columns}
    return Certificate(
        f"sources of sparse_vae ({fit.title})", (*selection_claims(selected), *fit.claims), evidence
    )


LARGEST_NOISE = 2.2
"""Largest variance of the whitened noise along any direction, relative to the noise variance γ.

It is that of a covariance which was estimated from ten samples for each dimension."""


def with_noise_covariance(
    fit: Certificate, samples: int | None, rank: int, largest: float, noise: float
) -> Certificate:
    """Return a certificate with a further claim: the noise covariance has enough samples."""
    name = "noise_covariance"
    statement = "the whitened noise is not much larger than its model in any direction"
    reference = "Marchenko & Pastur 1967"
    if samples is None:
        reason = "The noise covariance is diagonal, regularised, or its number of samples unknown."
        claim = does_not_apply(name, statement, reference, reason)
    else:
        claim = at_most(
            name, statement, reference, largest / noise, LARGEST_NOISE,
            f"The noise covariance was estimated from {samples} samples in {rank} dimensions: "
            "give one of more samples, a regularised one, or a larger noise_variance.",
        )  # fmt: skip
    return Certificate(fit.title, (*fit.claims, claim), fit.evidence)


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
    """Return a claim about what `measure` returns, undecided if that is not finite.

    `words` are the name, the statement and the reference; ``{group}`` in `advice` is replaced.
    """
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
    value is NaN, so is the result. If there are no values, it is 0.
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
