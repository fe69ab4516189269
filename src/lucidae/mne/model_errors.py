"""Errors of the forward solution, and samples that depend on each other.

The model of `sparse_vae` says that everything beyond the noise is a source. A forward solution with
errors then needs spurious sources, the more the stronger the signal. Two terms are therefore added
to the covariance of the whitened noise, which is γI without them:

    N = γI + η P I + δ² Σ_b Σ_i (∂ᵢΦ_b) Γ_b (∂ᵢΦ_b)ᵀ

η (`model_error`) is a share of P, the power of the data relative to the noise at a sensor. δ
(`position_error`) is the standard deviation of the errors of position along each axis: if sensors
or sources are shifted by a small vector, the field Φ_b of a source changes by the products of this
vector with its derivatives ∂ᵢΦ_b. Γ_b is the prior covariance of the currents of the source.

N depends on the sources. A fit without errors finds them and, if there are such errors, others that
explain the errors, with fields much weaker than those of the true ones. With the first two terms
only, some of its sources are then not significant, or not at three times this noise (*doubtful*).
If all are, the fit without errors is taken by default. Otherwise the significant ones move to
neighbouring places, or are left out, as long as the energy of sources and errors together falls,
where source b has the prior I ⊗ Γ_b on the columns [Φ_b, δ∂₁Φ_b, δ∂₂Φ_b, δ∂₃Φ_b] (`rearranged`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy.linalg
import scipy.spatial

from lucidae.mne.estimate import BETTER, DOUBT, GroupEstimate, observable_basis
from lucidae.mne.problem import EvokedProblem, Floats
from lucidae.sparsity.prior import full_moves, majorized_covariances

__all__ = ["FittedNoise", "effective_samples", "fit_with_errors", "grid_spacing"]

HIDDEN = 0.1
"""Field of a direction of the current, relative to the strongest, that errors of the model hide.

Nearly radial currents in a realistic head have such magnetic fields, and moments that explain
errors by them are ten times too large."""

SWEEPS = 8
"""Largest number of times that each source is moved."""

REACH = 2.0
"""Largest distance by which a source moves at a time, in units of the grid spacing."""

STEPS = 8
"""Steps of majorise–minimise for the prior covariance of a source at a place."""

ROUNDS = 8
"""Largest number of times that prior covariances and errors of the same places are fitted."""

SETTLED = 0.05
"""Relative change of N (in the Frobenius norm) and of the number of samples that ends them."""

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


def fit_with_errors(
    fit: Callable[..., GroupEstimate], problem: EvokedProblem, gain: Floats, labels: Floats,
    expansion: Any, *, noise_variance: Any, position_error: float, model_error: float,
    chosen: bool, independent: bool,
) -> tuple[GroupEstimate, Any, FittedNoise]:  # fmt: skip
    """Return the estimate whose noise contains the errors of its own sources.

    `fit` returns the estimate for data and gain whose noise has the covariance γI, and their
    labels. With errors, the estimate is therefore one of data and gain that are multiplied by
    (N/γ)^{-½}; its noise variance is γ. The second result is the expansion of its columns. If the
    errors are `chosen` by default, they are 0 unless the data show such errors.
    """
    responses, (rank, count) = problem.responses, problem.responses.shape

    def independent_samples(estimate: GroupEstimate) -> float:
        if independent:
            return float(count)
        residual = estimate.responses - estimate.gain[:, estimate.columns] @ estimate.mean
        return effective_samples(
            [residual[:, problem.samples(part)] for part in range(len(problem.evokeds))]
        )

    def without_errors() -> tuple[GroupEstimate, Any, FittedNoise]:
        estimate, before, samples = candidates, np.inf, float(count)
        for _ in range(ROUNDS):
            # Fewer samples have larger thresholds, so that what was left out stays out.
            estimate = (estimate if samples < before else candidates).significant(samples)
            before, samples = samples, independent_samples(estimate)
            if abs(samples - before) <= SETTLED * before:
                break
        return estimate, expansion, FittedNoise(np.eye(rank), 0.0, 0.0, 0.0, samples)

    # 1) Fit without errors.
    candidates = fit(gain, responses, labels)
    if chosen or not (position_error or model_error):
        plain = without_errors()
    if not (position_error or model_error):
        return plain
    # 2) Raise the noise by a share of the power. If the same sources are significant at `DOUBT`
    # times this noise, none of them explains errors of the forward solution.
    level = 1.0 + model_error * sensor_power(problem) / noise_variance
    if chosen:
        louder = replace(plain[0].louder(DOUBT * level), samples=None)
        if louder.kept().size == plain[0].columns.size:
            return plain
    raised = candidates.louder(level).significant(count)
    samples, change = independent_samples(raised), 0.0
    labels, basis = observable_basis(gain, labels, HIDDEN)
    gain, expansion = gain @ basis, expansion @ basis
    estimate = replace(raised.reduced(labels, basis), samples=samples)
    # 3) Move the sources to better places, by the energy of sources and errors together.
    shifts = Shifts(problem, gain, labels, expansion, position_error)
    if position_error and estimate.level is not None:
        estimate = estimate.at(rearranged(shifts, responses, estimate))
    estimate = replace(estimate, noise_variance=noise_variance)
    # 4) Fit their prior covariances and compute their errors in turn. Those that are then not
    # significant are left out, which changes both.
    for _ in range(ROUNDS):
        noise = level * np.eye(rank) + shifts.errors(estimate) / noise_variance
        estimate = estimate.moved(*_whitened(noise, gain, responses))
        found = level * np.eye(rank) + shifts.errors(estimate) / noise_variance
        change = float(np.linalg.norm(found - noise) / np.linalg.norm(noise))
        if change <= SETTLED:
            kept = estimate.significant(samples)
            if kept.columns.size == estimate.columns.size:
                break
            estimate = kept
    errors = FittedNoise(noise, position_error, model_error, change, samples)
    return estimate, expansion, errors


def sensor_power(problem: EvokedProblem) -> float:
    """Return the mean power of the data at the sensors, each in units of its noise variance.

    The mean square of whitened data is larger if the noise is small along some directions, which
    errors of the forward solution are not.
    """
    whitener = problem.whitener  # its rows are linearly independent
    back = np.linalg.solve(whitener @ whitener.T, whitener).T
    deviations = np.linalg.norm(back, axis=1)  # of the noise of each sensor
    used = deviations > 0.0
    return float(np.mean((back[used] @ problem.responses / deviations[used, None]) ** 2))


def _whitened(noise: Floats, gain: Floats, responses: Floats) -> tuple[Floats, Floats]:
    """Return gain and data, multiplied by a matrix that makes the noise covariance the identity."""
    lower = np.linalg.cholesky(noise)
    white = scipy.linalg.solve_triangular(lower, np.hstack([gain, responses]), lower=True)
    return white[:, : gain.shape[1]], white[:, gain.shape[1] :]


def rearranged(shifts: Shifts, responses: Floats, estimate: GroupEstimate) -> dict[int, Floats]:
    """Return places at which sources and their errors have a lower energy, with the priors there.

    Each source in turn, the weakest first, goes to the best place nearby, with all others fixed, or
    is left out if its evidence there is below the threshold for the number of its columns.
    """
    owners, count = estimate.labels[estimate.columns], responses.shape[1]
    noise, thresholds = estimate.noise_variance, estimate.thresholds
    # a root of the moment of the data
    root = np.asarray(np.linalg.qr(responses.T, mode="r")).T / np.sqrt(count)
    priors: dict[int, Floats] = {}
    scaled: dict[int, Floats] = {}  # [Φ_b, δ∂₁Φ_b, …] times a root of I ⊗ Γ_b

    def place(group: int, prior: Floats, fields: Floats) -> None:
        values, axes = np.linalg.eigh(prior)
        half = axes * np.sqrt(np.maximum(values, 0.0))
        priors[group], scaled[group] = prior, np.hstack(list(fields @ half))

    for group in map(int, estimate.groups):
        index = np.flatnonzero(owners == group)
        place(group, estimate.prior[np.ix_(index, index)], shifts.fields([group])[0])
    for _ in range(SWEEPS):
        stays = True
        for group in sorted(scaled, key=lambda one: float(np.linalg.norm(scaled[one]))):
            # 1) The covariance of the data without this source.
            rest = [part for one, part in scaled.items() if one != group]
            others = np.hstack([np.zeros((len(responses), 0)), *rest])
            lower = np.linalg.cholesky(noise * np.eye(len(responses)) + others @ others.T)
            # 2) The evidence of a source at every place nearby that is free.
            places = [one for one in shifts.near(group) if one == group or one not in priors]
            fields = shifts.fields(places)
            found, gains = best_priors(lower, fields, root)
            excess = count * gains - [thresholds[shifts.size(one)] for one in places]
            # 3) The best of them, or none.
            here, best = places.index(group), int(excess.argmax())
            best = best if excess[best] > excess[here] + BETTER else here
            del priors[group], scaled[group]
            if excess[best] > 0.0:
                place(places[best], found[best], fields[best])
            stays &= group in priors
        if stays:
            break
    return {one: prior[: shifts.size(one), : shifts.size(one)] for one, prior in priors.items()}


def best_priors(lower: Floats, fields: Floats, root: Floats) -> tuple[Floats, Floats]:
    """Return the best prior Γ of a source at each of k places, and its gain.

    `fields` (k, 4, d, m) are the parts of X = [Φ, δ∂₁Φ, δ∂₂Φ, δ∂₃Φ], whose coefficients have the
    prior I ⊗ Γ. The data have the moment C = RRᵀ with R = `root`, and the covariance LLᵀ with
    L = `lower` without the source. The gain is the decrease of the energy per sample.
    """
    flat = np.moveaxis(fields, 2, 0).reshape(len(lower), -1)
    white = scipy.linalg.solve_triangular(lower, np.hstack([flat, root]), lower=True)
    columns = white[:, : flat.shape[1]].reshape(len(lower), len(fields), -1).transpose(1, 2, 0)
    loading = columns @ white[:, flat.shape[1] :]
    metric, explained = columns @ np.swapaxes(columns, 1, 2), loading @ np.swapaxes(loading, 1, 2)
    count, width = metric.shape[:2]
    size, unit = width // 4, np.eye(width)
    prior = full_moves(
        np.zeros((count, size, size)), metric[:, :size, :size], explained[:, :size, :size]
    )[0]

    def repeated(prior: Floats) -> Floats:
        return np.asarray(np.einsum("ij,kab->kiajb", np.eye(4), prior)).reshape(metric.shape)

    def summed(matrix: Floats) -> Floats:
        return np.asarray(np.einsum("kiaib->kab", matrix.reshape(count, 4, size, 4, size)))

    # With the source, S becomes TS and Q becomes TQTᵀ, T = (I + S(I ⊗ Γ))⁻¹ (Woodbury). The
    # majoriser of the energy depends on the sums of the diagonal blocks of both.
    for _ in range(STEPS):
        turn = np.linalg.inv(unit + metric @ repeated(prior))
        quality = turn @ explained @ np.swapaxes(turn, 1, 2)
        prior = majorized_covariances(prior, summed(turn @ metric), summed(quality))
    whole = repeated(prior)
    inner = unit + metric @ whole
    fit = np.einsum("kab,kba->k", whole, np.linalg.solve(inner, explained))
    return prior, fit - np.linalg.slogdet(inner)[1]


@dataclass(frozen=True, eq=False)
class Shifts:
    """Fields of groups of columns (sources and patches), and how errors of position change them."""

    problem: EvokedProblem
    gain: Floats  # (d, κ): the dictionary
    labels: Floats  # (κ,): group of each column, ascending
    expansion: Any  # (n_columns, κ): currents of the sources by coefficients of the columns
    position_error: float  # δ in metres
    known: dict[int, Floats] = field(default_factory=dict)  # the fields of groups, as by `fields`

    @cached_property
    def tree(self) -> Any:
        """The places of all sources, for searches of neighbours."""
        return scipy.spatial.cKDTree(self.problem.forward["source_rr"])

    def size(self, group: int) -> int:
        """Return the number of columns of a group, zero if there is no such group."""
        return int(np.diff(np.searchsorted(self.labels, [group, group + 1]))[0])

    def near(self, group: int) -> list[int]:
        """Return the sources near a source, with itself; of a patch, itself alone."""
        places = self.tree.data
        if group >= len(places):
            return [group]
        near = self.tree.query_ball_point(places[group], REACH * self.spacing)
        return [one for one in sorted(near) if self.size(one)]

    @cached_property
    def spacing(self) -> float:
        """The distance of neighbouring sources."""
        return grid_spacing(self.tree.data)

    def fields(self, groups: Any) -> Floats:
        """Return Φ_b and the three δ∂ᵢΦ_b of k groups, (k, 4, d, m), padded to equal sizes."""
        unknown = [group for group in groups if group not in self.known]
        if unknown:
            self.known.update(zip(unknown, self._computed(unknown), strict=True))
        return np.stack([self.known[group] for group in groups])[..., : max(map(self.size, groups))]

    def _computed(self, groups: list[int]) -> Floats:
        """Return the fields of k groups, which are padded to the size of the largest of all."""
        first = np.searchsorted(self.labels, groups)
        last = np.searchsorted(self.labels, groups, side="right")
        columns = first[:, None] + np.arange(np.unique(self.labels, return_counts=True)[1].max())
        present = columns < last[:, None]
        used = columns[present]
        found = np.zeros((*columns.shape, 4, len(self.gain)))
        found[present, 0] = self.gain[:, used].T
        found[present, 1:] = self.position_error * self.slopes(used)
        return np.moveaxis(found, 1, 3)

    def slopes(self, columns: Floats) -> Floats:
        """Return the derivatives of columns of the dictionary along x, y and z, (a, 3, d)."""
        currents, axes = self.expansion[:, columns].tocoo(), self.problem.n_orient
        sources, place = np.unique(currents.row // axes, return_inverse=True)
        parts = derivatives(self.problem, sources, self.tree)[place, :, :, currents.row % axes]
        found = np.zeros((columns.size, 3, len(self.gain)))
        np.add.at(found, currents.col, currents.data[:, None, None] * parts)
        return found

    def errors(self, estimate: GroupEstimate) -> Floats:
        """Return δ² Σ_b Σ_i (∂ᵢΦ_b) Γ_b (∂ᵢΦ_b)ᵀ over the sources and patches of an estimate."""
        total = np.zeros((len(self.gain),) * 2)
        if not self.position_error or not estimate.columns.size:
            return total
        owners = self.labels[estimate.columns]
        for group, fields in zip(estimate.groups, self.fields(estimate.groups), strict=True):
            here = np.flatnonzero(owners == group)
            slopes, prior = fields[1:, :, : here.size], estimate.prior[np.ix_(here, here)]
            total += np.einsum("idm,mo,ieo->de", slopes, prior, slopes, optimize=True)
        return total


def derivatives(problem: EvokedProblem, sources: Floats, tree: Any) -> Floats:
    """Return the derivatives of the whitened fields of k sources, of shape (k, 3, d, n_orient).

    They are those along x, y and z at a fixed direction of the current, for each component of a
    source. The fields of its nearest neighbours, found in the `tree` of all positions, give them by
    least squares, as the slopes of a function that is linear nearby.
    """
    forward, places = problem.forward, problem.forward["source_rr"]
    near = tree.query(places[sources], k=min(NEIGHBOURS + 1, len(places)))[1]
    near = near.reshape(len(sources), -1)  # the source itself, among them, changes nothing
    left, sizes, right = np.linalg.svd(places[near] - places[sources][:, None], full_matrices=False)
    kept = sizes > FLAT * sizes.max(axis=1, keepdims=True)
    inverse = np.where(kept, 1.0 / np.where(kept, sizes, 1.0), 0.0)
    weights = np.einsum("kji,kj,knj->kin", right, inverse, left)
    gain = forward["_orig_sol"]  # that of free orientations along x, y and z, if there was one
    fields = gain.reshape(len(gain), len(places), -1)
    changes = np.einsum("kin,cknw->ckiw", weights, fields[:, near], optimize=True)
    changes -= weights.sum(axis=2)[None, :, :, None] * fields[:, sources][:, :, None]
    axes = np.reshape(forward["source_nn"], (-1, problem.n_orient, 3))[sources]
    axes = axes if fields.shape[2] == 3 else np.ones((len(sources), 1, 1))
    turned = np.einsum("ckiw,kow->ckio", changes, axes, optimize=True)
    return np.moveaxis(np.tensordot(problem.whitener, turned, 1), 0, 2)


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
