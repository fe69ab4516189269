"""Errors of the forward solution, and samples that depend on each other.

The model of `sparse_vae` says that everything beyond the noise is a source. A forward solution with
errors then needs spurious sources, the more the stronger the signal. Two terms are therefore added
to the covariance of the whitened noise, which is γI without them:

    N = γI + η P I + δ² Σ_b Σ_i (∂ᵢΦ_b) Γ_b (∂ᵢΦ_b)ᵀ

η (`model_error`) is a share of P, the mean square of the whitened data. δ (`position_error`) is the
standard deviation of the errors of position along each axis: if sensors or sources are shifted by a
small vector, the field Φ_b of a source changes by the products of this vector with its derivatives
∂ᵢΦ_b. Γ_b is the prior covariance of the currents of the source. Because N depends on the sources,
fits with a given N alternate with its computation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
import scipy.spatial

from lucidae.mne.estimate import GroupEstimate
from lucidae.mne.problem import EvokedProblem, Floats

__all__ = ["FittedNoise", "effective_samples", "fit_with_errors", "grid_spacing"]

FIRST_SHARE = 0.1
"""Share of the power in the noise of the first fit, which has no sources to derive errors from."""

ROUNDS = 8
"""Largest number of fits."""

SETTLED = 0.05
"""Relative change of N (in the Frobenius norm) at which the fits end."""

NEIGHBOURS = 18
"""Number of nearest sources whose fields give the derivatives of the field of a source."""

SIGNIFICANT = 3.0
"""Autocorrelations count if they exceed this number of standard errors of those of white noise."""

FLAT = 0.1
"""Spread of these neighbours along an axis, relative to the largest, below which it is left out.

The derivative along the normal of a flat piece of a surface is not determined by its vertices."""


@dataclass(frozen=True, eq=False)
class FittedNoise:
    """The covariance N of a fit with errors of the forward solution, and how it was found."""

    covariance: Floats  # (d, d): N/γ, the identity without errors
    position_error: float  # δ in metres
    model_error: float  # η
    change: float  # relative difference of N from that of the sources which were found with it
    samples: float  # the number of independent samples that counted

    @classmethod
    def exact(cls, rank: int, samples: float) -> FittedNoise:
        """Return the noise without errors of the forward solution."""
        return cls(np.eye(rank), 0.0, 0.0, 0.0, samples)


def fit_with_errors(
    fit: Callable[..., GroupEstimate], problem: EvokedProblem, gain: Floats,
    expansion: Any, *, noise_variance: Any, position_error: float, model_error: float,
    independent: bool,
) -> tuple[GroupEstimate, FittedNoise]:  # fmt: skip
    """Return the estimate whose noise contains the errors of its own sources.

    `fit` returns the estimate for data and gain whose noise has the covariance γI, and a number of
    independent samples. The estimate is therefore one of data and gain that are multiplied by
    (N/γ)^{-½}; its noise variance is γ.
    """
    responses, (rank, count) = problem.responses, problem.responses.shape
    noise, power = np.eye(rank), 0.0
    if position_error or model_error:
        power = float(np.mean(responses**2)) / noise_variance
        noise *= 1.0 + max(model_error, FIRST_SHARE) * power
    samples, least, best = float(count), np.inf, None

    def noise_of(estimate: GroupEstimate) -> tuple[Floats, float]:
        """Return N/γ with the errors of the sources of an estimate, and its relative change."""
        found = (1.0 + model_error * power) * np.eye(rank)
        if position_error:
            found += position_error**2 / noise_variance * displaced(problem, estimate, expansion)
        return found, float(np.linalg.norm(found - noise) / np.linalg.norm(noise))

    for _ in range(ROUNDS):
        # 1) fit with the errors and the number of samples of the round before
        dictionary, data = _whitened(noise, gain, responses)
        estimate = fit(dictionary, data, samples=samples)
        # 2) count the independent samples of what the sources leave, and compute their errors
        residual = data - dictionary[:, estimate.columns] @ estimate.mean
        parts = [residual[:, problem.samples(part)] for part in range(len(problem.evokeds))]
        counted = float(count) if independent else effective_samples(parts)
        found, change = noise_of(estimate)
        if change <= SETTLED and abs(counted - samples) <= SETTLED * samples:
            return estimate, FittedNoise(noise, position_error, model_error, change, samples)
        # 3) keep the round with the least energy of sources and errors together. Two sets of
        # sources can follow each other for ever, each of which the errors of the other favour.
        loss = _penalised_energy(found, gain, responses, estimate)
        if best is None or loss < least:
            least, best = loss, (estimate, found, counted)
        noise, samples = found, counted
    assert best is not None
    estimate, noise, samples = best
    estimate = estimate.moved(*_whitened(noise, gain, responses), samples)
    change = noise_of(estimate)[1]
    return estimate, FittedNoise(noise, position_error, model_error, change, samples)


def _whitened(noise: Floats, gain: Floats, responses: Floats) -> tuple[Floats, Floats]:
    """Return gain and data, multiplied by a matrix that makes the noise covariance the identity."""
    lower = np.linalg.cholesky(noise)
    white = scipy.linalg.solve_triangular(lower, np.hstack([gain, responses]), lower=True)
    return white[:, : gain.shape[1]], white[:, gain.shape[1] :]


def _penalised_energy(
    noise: Floats, gain: Floats, responses: Floats, estimate: GroupEstimate
) -> float:
    """Return minus twice the log-likelihood of an estimate with its own errors in the noise.

    The evidence that each source must exceed to be significant is added.
    """
    columns = gain[:, estimate.columns]
    covariance = estimate.noise_variance * noise + columns @ estimate.prior @ columns.T
    lower = np.linalg.cholesky(covariance)
    fit = np.sum(scipy.linalg.solve_triangular(lower, responses, lower=True) ** 2)
    logarithm = 2.0 * responses.shape[1] * np.sum(np.log(np.diagonal(lower)))
    return float(fit + logarithm + estimate.price)


def displaced(problem: EvokedProblem, estimate: GroupEstimate, expansion: Any) -> Floats:
    """Return Σ_b Σ_i (∂ᵢΦ_b) Γ_b (∂ᵢΦ_b)ᵀ over the sources and patches of an estimate."""
    found = np.zeros((len(problem.whitener),) * 2)
    owners = estimate.labels[estimate.columns]
    tree = scipy.spatial.cKDTree(problem.forward["source_rr"])
    for group in estimate.groups:
        here = np.flatnonzero(owners == group)
        # Column j of the group contributes the current `turn[:, j]` to the components of a source.
        currents = expansion[:, estimate.columns[here]].tocsr()
        moved = np.zeros((3, len(found), here.size))
        for source in np.unique(currents.nonzero()[0] // problem.n_orient):
            turn = currents[source * problem.n_orient : (source + 1) * problem.n_orient].toarray()
            moved += derivatives(problem, source, tree) @ turn
        prior = estimate.prior[np.ix_(here, here)]
        found += np.einsum("idm,mk,iek->de", moved, prior, moved, optimize=True)
    return found


def derivatives(problem: EvokedProblem, source: int, tree: Any) -> Floats:
    """Return the derivatives of the whitened field of a source, of shape (3, d, n_orient).

    They are those along x, y and z at a fixed direction of the current, for each component of the
    source. The fields of its nearest neighbours, found in the `tree` of all positions, give them by
    least squares, as the slopes of a function that is linear nearby.
    """
    forward, places = problem.forward, problem.forward["source_rr"]
    near = tree.query(places[source], k=min(NEIGHBOURS + 1, len(places)))[1]
    near = near[near != source]
    left, sizes, right = np.linalg.svd(places[near] - places[source], full_matrices=False)
    kept = sizes > FLAT * sizes.max(initial=0.0)
    slopes = (right[kept].T / sizes[kept]) @ left[:, kept].T  # (3, neighbours)
    gain = forward["_orig_sol"]  # that of free orientations along x, y and z, if there was one
    width = gain.shape[1] // len(places)
    fields = gain.reshape(len(gain), len(places), width)
    changes = np.tensordot(problem.whitener, fields[:, near] - fields[:, [source]], 1)
    axes = np.reshape(forward["source_nn"], (-1, problem.n_orient, 3))[source]
    axes = axes if width == 3 else np.ones((1, 1))
    return np.asarray(np.einsum("in,dnw,ow->ido", slopes, changes, axes))


def effective_samples(parts: list[Floats]) -> float:
    """Return how many independent samples have as much evidence as those of some residuals.

    n samples of each part (channels × samples) count as n/(1 + 2 Σ_k (1 − k/n) ρ_k²), where ρ_k is
    the autocorrelation at lag k of all channels together; the sum ends at the first lag at which it
    is not significant.
    """
    total = 0.0
    for part in parts:
        rank, count = part.shape
        power, loss = float(np.sum(part**2)), 1.0
        for lag in range(1, count):
            share = 1.0 - lag / count
            correlation = float(np.sum(part[:, lag:] * part[:, :-lag])) / (power * share or 1.0)
            if correlation < SIGNIFICANT / np.sqrt(rank * (count - lag)):
                break
            loss += 2.0 * share * correlation**2
        total += count / loss
    return total


def grid_spacing(places: Floats) -> float:
    """Return the median distance of sources from their nearest neighbours, in metres."""
    if len(places) < 2:
        return 0.0
    return float(np.median(scipy.spatial.cKDTree(places).query(places, k=2)[0][:, 1]))
