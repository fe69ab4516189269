"""Claims about the sources that `sparse_vae` returns, computed from their definitions.

The fit to all sources has a certificate of its own. Sources that are not significant are then
removed, and the prior covariances of the others are fitted again. The claims of this module are
about what is returned after that. They share no code with the fit: the covariance Σ of a whitened
sample is formed and decomposed here, and every energy is computed from its own decomposition.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.optimize

from lucidae.certificate import Certificate, Claim, at_least, at_most, does_not_apply

__all__ = ["SelectedSources", "selection_claims", "with_noise_covariance", "with_selection"]

Floats = np.ndarray[Any, Any]

ACCURATE = 10.0
"""Largest distance to optimality of the returned sources, in units of the solver's tolerance."""

SAME = 1e-8
"""Largest relative difference of coefficients that counts as rounding."""

REFERENCE = "Wipf 2023, Theorem 4.4, for groups of columns"


@dataclass(frozen=True, slots=True, eq=False)
class SelectedSources:
    """A whitened problem and the sources that were selected, as they are returned.

    Parameters
    ----------
    gain : ndarray of shape (d, κ)
        The dictionary Φ.
    responses : ndarray of shape (d, n)
        The whitened data M.
    labels : ndarray of int of shape (κ,)
        Group (source or patch) of each column.
    columns : ndarray of int of shape (a,)
        The columns of the selected groups.
    prior : ndarray of shape (a, a)
        The prior covariance of their coefficients.
    mean : ndarray of shape (a, n)
        The posterior mean of their coefficients that is returned.
    noise : float
        The noise variance γ.
    full : bool
        Whether every group has a covariance of its own; otherwise it has one variance.
    thresholds : dict of int to float, optional
        The evidence that a group must exceed to be significant, by number of its columns. None if
        all groups with a positive variance are selected.
    tolerance : float
        Distance to optimality at which the solver stops.
    """

    gain: Floats
    responses: Floats
    labels: Floats
    columns: Floats
    prior: Floats
    mean: Floats
    noise: float
    full: bool
    thresholds: dict[int, float] | None
    tolerance: float

    def covariance(self, kept: Floats | None = None) -> Floats:
        """Return Σ = Φ_a Γ Φ_aᵀ + γI of the selected columns, or of those in the mask `kept`."""
        used = np.ones(self.columns.size, dtype=bool) if kept is None else kept
        fields = self.gain[:, self.columns[used]]
        spread = fields @ self.prior[np.ix_(used, used)] @ fields.T
        return np.asarray(spread + self.noise * np.eye(len(self.gain)))

    def energy(self, kept: Floats | None = None) -> float:
        """Return n log|Σ| + tr(MᵀΣ⁻¹M), minus twice the log-likelihood up to a constant."""
        values, vectors = np.linalg.eigh(self.covariance(kept))
        powers = ((vectors.T @ self.responses) ** 2).sum(axis=1)
        return float((self.responses.shape[1] * np.log(values) + powers / values).sum())

    def matrices(self, columns: Floats, inverse: Floats) -> tuple[Floats, Floats]:
        """Return S = Φ_gᵀΣ⁻¹Φ_g and Q = Φ_gᵀΣ⁻¹MMᵀΣ⁻¹Φ_g/n of one group of columns Φ_g."""
        fields = inverse @ self.gain[:, columns]
        loading = fields.T @ self.responses
        return self.gain[:, columns].T @ fields, loading @ loading.T / self.responses.shape[1]


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
    """Return a certificate with a further claim: the noise covariance has enough samples.

    Parameters
    ----------
    fit : Certificate
        The claims about the returned sources and the fit.
    samples : int or None
        Number of samples of the noise covariance; None if it is not known or was regularised.
    rank : int
        Its number of dimensions.
    largest : float
        Largest variance of the whitened noise that such an estimate leaves.
    noise : float
        The noise variance γ of the fit.
    """
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
    return (
        _stationarity(selected),
        _mean(selected),
        _least_evidence(selected),
        _evidence_left_out(selected),
    )


def _stationarity(selected: SelectedSources) -> Claim:
    """Return the claim that the prior covariances of the selected groups are optimal for them."""
    name = "selected_stationarity"
    statement = "the energy is stationary in the prior covariances of the returned sources"
    if not selected.columns.size:
        return does_not_apply(name, statement, REFERENCE, "No source was selected.")
    sigma = selected.covariance()
    inverse = np.linalg.inv(sigma)
    error = 64.0 * np.finfo(float).eps * float(np.linalg.norm(sigma, 2)) / selected.noise
    owners, worst = selected.labels[selected.columns], 0.0
    for label in np.unique(owners):
        here = np.flatnonzero(owners == label)
        metric, explained = selected.matrices(selected.columns[here], inverse)
        prior = selected.prior[np.ix_(here, here)]
        if selected.full:
            # Q − S is zero on the range of Γ, and negative semi-definite.
            values, axes = np.linalg.eigh(prior)
            root = axes * np.sqrt(np.maximum(values, 0.0))
            inner = np.abs(np.linalg.eigvalsh(root.T @ (explained - metric) @ root)).max()
            outer = _ratios(metric, explained).max() - 1.0
            worst = max(worst, float(inner), float(outer))
        else:
            worst = max(worst, float(prior[0, 0] * abs(np.trace(explained - metric))))
    return at_most(
        name, statement, REFERENCE, worst, ACCURATE * selected.tolerance,
        "Fit again with a smaller tol or a larger max_iter.", error=error,
    )  # fmt: skip


def _ratios(metric: Floats, explained: Floats) -> Floats:
    """Return the eigenvalues of S^{-½}QS^{-½} where S is not singular up to rounding."""
    values, axes = np.linalg.eigh(metric)
    kept = values > 1e-10 * values[-1]
    root = axes[:, kept] / np.sqrt(values[kept])
    return np.asarray(np.linalg.eigvalsh(root.T @ explained @ root))


def _mean(selected: SelectedSources) -> Claim:
    """Return the claim that the coefficients are the posterior mean ΓΦᵀΣ⁻¹M."""
    fields = selected.gain[:, selected.columns]
    expected = (
        selected.prior @ fields.T @ np.linalg.solve(selected.covariance(), selected.responses)
    )
    size = float(np.abs(expected).max(initial=0.0))
    difference = float(np.abs(expected - selected.mean).max(initial=0.0))
    sigma = np.linalg.norm(selected.covariance(), 2)
    error = 64.0 * np.finfo(float).eps * float(sigma) / selected.noise
    return at_most(
        "selected_mean", "the amplitudes are the posterior mean of the returned sources",
        "Wipf 2023, eq. 18", difference / size if size else difference, SAME,
        "The amplitudes are not those of this fit: fit again.", error=error,
    )  # fmt: skip


def _least_evidence(selected: SelectedSources) -> Claim:
    """Return the claim that every selected group is significant beside the others."""
    name, reference = "selected_evidence", "likelihood ratio at a boundary, Self & Liang 1987"
    statement = "every returned source is significant, relative to its threshold"
    if selected.thresholds is None or not selected.columns.size:
        why = "significance=None was given." if selected.columns.size else "No source was selected."
        return does_not_apply(name, statement, reference, why)
    owners, whole = selected.labels[selected.columns], selected.energy()
    ratios = [
        (selected.energy(owners != label) - whole) / selected.thresholds[int(count)]
        for label, count in zip(*np.unique(owners, return_counts=True), strict=True)
    ]
    error = 64.0 * np.finfo(float).eps * abs(whole) / min(selected.thresholds.values())
    return at_least(
        name, statement, reference, float(min(ratios)), 1.0,
        "A returned source is not significant: fit again.", error=error,
    )  # fmt: skip


def _evidence_left_out(selected: SelectedSources) -> Claim:
    """Return the claim that no other group would be significant beside the selected ones."""
    name, reference = "left_out_evidence", "likelihood ratio at a boundary, Self & Liang 1987"
    statement = "no other source would be significant if it were added, relative to its threshold"
    if selected.thresholds is None:
        return does_not_apply(name, statement, reference, "significance=None was given.")
    inverse, n = np.linalg.inv(selected.covariance()), selected.responses.shape[1]
    chosen = set(np.unique(selected.labels[selected.columns]).tolist())
    fields = inverse @ selected.gain
    loading = fields.T @ selected.responses
    order = np.argsort(selected.labels, kind="stable")
    labels, starts = np.unique(selected.labels[order], return_index=True)
    worst, source = 0.0, -1
    for label, columns in zip(labels, np.split(order, starts[1:]), strict=True):
        if label in chosen:
            continue
        metric = selected.gain[:, columns].T @ fields[:, columns]
        explained = loading[columns] @ loading[columns].T / n
        scale = n / selected.thresholds[columns.size]
        ratio = scale * _full_gain(metric, explained)  # never less than that of one variance
        if ratio > worst and not selected.full and columns.size > 1:
            ratio = scale * _shared_gain(metric, explained)
        if ratio > worst:
            worst, source = ratio, int(label)
    return at_most(
        name, statement, reference, worst, 1.0,
        f"Group {source} of columns (a source or a patch) would be significant beside the returned "
        "ones. The noise covariance or the forward solution may be inaccurate, or nearby sources "
        "may replace each other: give a larger noise_variance, or see noise_path.",
    )  # fmt: skip


def _full_gain(metric: Floats, explained: Floats) -> float:
    """Return the decrease of the energy per sample by the best covariance of a group at zero."""
    excess = np.maximum(_ratios(metric, explained) - 1.0, 0.0)
    return float((excess - np.log1p(excess)).sum())


def _shared_gain(metric: Floats, explained: Floats) -> float:
    """Return the decrease of the energy per sample by the best single variance of such a group."""
    curvatures, axes = np.linalg.eigh(metric)
    powers = np.einsum("ij,ik,kj->j", axes, explained, axes)
    curvatures = np.maximum(curvatures, 0.0)
    largest = float((powers[curvatures > 0] / curvatures[curvatures > 0] ** 2).max(initial=0.0))
    if not largest:
        return 0.0

    def change(logarithm: float) -> float:
        added = 1.0 + np.exp(logarithm) * curvatures
        return float((np.log(added) - np.exp(logarithm) * powers / added).sum())

    grid = np.log(largest) - np.linspace(0.0, 20.0, 81)
    best = grid[int(np.argmin([change(point) for point in grid]))]
    near = scipy.optimize.minimize_scalar(change, bounds=(best - 0.3, best + 0.3), method="bounded")
    return max(0.0, -float(near.fun))
