"""Given or learned covariances: of the noise of the rows, and of the coefficients of the responses.

**Rows.** For noise with a covariance γR the rows are whitened before anything is fitted. With
T (r, d) and TRTᴴ = I the model Φu + b1 + e becomes TΦu + bT1 + Te, whose noise is white; the
intercept is the coefficient of T1 (generalised least squares). What lies outside the range of R is
not used: there R says that there is no noise, as after an average reference.

**Responses** may have correlated coefficients, such as samples of a time series. The coefficients
of column j over the responses have the prior N(0, wⱼB), with mean diagonal 1 of B and white noise
(Zhang & Rao 2011, whose T-MSBL approximates this likelihood). With B = VΛVᵀ the responses XV are
independent, and x̃ₜ has the covariance Σₜ = λₜΦWΦᵀ + γI. With ΦWΦᵀ = QDQᵀ all Σₜ are diagonal in
one basis. The energy is the sum of log|Σₜ| + x̃ₜᵀΣₜ⁻¹x̃ₜ. Relevances are updated by MacKay's rule
and by damped Newton steps; for AR(1), with entries ρ^|s−t| of B, ρ is found by a search. No step
raises the energy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
import scipy.optimize
import scipy.sparse

from lucidae.arrays import Array, apparent_epsilon, as_double, to_numpy
from lucidae.iteration import Solution
from lucidae.sparsity.objectives import (
    SMALLEST_LEARNED,
    Energy,
    FullCovariance,
    evaluate,
    flat_start,
    positive,
)
from lucidae.sparsity.posterior import CorrelatedPosterior, narrowed, shared_support
from lucidae.sparsity.prior import Groups
from lucidae.sparsity.problem import (
    Problem,
    Rows,
    Units,
    adjoint_times,
    covariance,
    norms_after,
    refuse_extremes,
    rounding_distances,
)
from lucidae.sparsity.solve import BASIN
from lucidae.sparsity.working_set import POLISHED, SolverSettings, iterated, polish_relevances
from lucidae.validation import has_complex, real_array

ASYMMETRIC = 1e-8
"""Largest relative difference or negative eigenvalue that counts as rounding; float32 has more."""

RANK_MARGIN = 10.0
"""Factor between the expected rounding errors of eigenvalues and those that count as positive."""

TIE = 1e-4
"""Largest relative difference of rows that counts as a tie when axes are aligned with rows."""

UNIDENTIFIED = 1e-7
"""Relative norm of the whitened ones below which the intercept is outside the range of R."""


def checked_noise_cov(noise_cov: Any, X: Any, y: Any, weights: Any) -> Any:
    """Return the covariance R of the noise of the rows, or its diagonal."""
    if scipy.sparse.issparse(noise_cov):
        noise_cov = noise_cov.toarray()
    given = to_numpy(real_array(noise_cov, "noise_cov", accept_complex=True))
    count = X.shape[0]
    if given.shape not in ((count,), (count, count)):
        split = given.ndim == 2 and given.shape[0] == count < given.shape[1]
        raise ValueError(
            f"noise_cov has shape {given.shape}, expected ({count}, {count}), the covariance of "
            f"the noise of the {count} rows of X, or ({count},), their variances."
            + split
            * " A covariance matrix cannot be split with the rows by GridSearchCV, "
            "cross_val_score or another function: whiten X and y before and give no noise_cov, "
            "give one variance for each row, or choose the noise variance with "
            "noise_variance='cv', which divides the whitened rows."
        )
    given = given.astype(np.complex128 if given.dtype.kind == "c" else np.float64)
    is_real = not np.iscomplexobj(given) or not given.imag.any()
    given = given.real.copy() if is_real else given
    if not np.isfinite(given).all():
        raise ValueError(
            "noise_cov contains NaN or infinity. Give finite variances and covariances."
        )
    if not given.any():
        raise ValueError(
            "noise_cov is zero, which leaves no row to fit. Give at least one positive variance."
        )
    if given.ndim == 1:
        if not is_real or given.min() < 0:
            raise ValueError(
                f"noise_cov contains the {'complex' if not is_real else 'negative'} variance "
                f"{given[np.argmin(given.real)]:.3g}. Give variances that are zero or positive."
            )
        return given
    check_covariance(given, "noise_cov")
    if weights is not None:
        raise ValueError(
            "sample_weight and a noise_cov matrix were given; weights are frequencies of rows, "
            "and the covariance of repeated rows is not known. Give noise_cov as one variance "
            "for each row, or repeat the rows in X, y and noise_cov."
        )
    if not (is_real or has_complex(X) or has_complex(y)):
        raise ValueError(
            "noise_cov is complex, but X and y are real, and the noise of real data has a real "
            "covariance. Give noise_cov.real, or the complex data that it belongs to."
        )
    return given


def check_covariance(matrix: Any, name: str) -> None:
    """Raise an error unless a matrix is Hermitian and positive semi-definite."""
    tolerance = ASYMMETRIC * (1e4 if apparent_epsilon(matrix) > np.finfo(float).eps else 1.0)
    smallest, fault = float(np.diagonal(matrix).real.min()), ""
    if smallest < 0:
        fault = f"is not positive semi-definite: its diagonal contains {smallest:.3g}"
    else:
        correlation, _ = _correlation(matrix)
        difference = float(np.abs(correlation - correlation.conj().T).max())
        values = np.linalg.eigvalsh((correlation + correlation.conj().T) / 2.0)
        if difference > tolerance:
            fault = (
                "is not symmetric (Hermitian if it is complex): two entries that should be equal "
                f"differ by {difference:.3g} times the standard deviations of their rows"
            )
        elif values[0] < -tolerance * values[-1]:
            fault = (
                "is not positive semi-definite: the smallest eigenvalue of its correlation matrix "
                f"is {values[0]:.3g}"
            )
    if fault:
        raise ValueError(
            f"{name} {fault}. Give a covariance matrix; (A + A.conj().T) / 2 is symmetric."
        )


def _correlation(matrix: Any) -> tuple[Any, Any]:
    """Return D^(−½) A D^(−½) for a matrix A with the diagonal D, and the roots of D."""
    diagonal = np.diagonal(matrix).real
    peak = float(diagonal.max()) or 1.0
    scales = np.sqrt(np.where(diagonal > 0, diagonal, peak))
    return matrix / scales / scales[:, None], scales


def whitener(matrix: Any) -> tuple[Any, float]:
    """Return T of shape (r, d) with TRTᴴ = I for a covariance R of rank r, and a relative error.

    The error is that of eigenvalues of the correlation matrix; smaller ones count as zero. It
    follows from the precision of the given numbers, which may be float32 stored as float64. At full
    rank T is K^(−½)D^(−½) for the correlation matrix K, so that each whitened row belongs to one
    row of the data.
    """
    rounding = RANK_MARGIN * len(matrix) * apparent_epsilon(matrix)
    correlation, scales = _correlation(matrix)
    values, vectors = np.linalg.eigh((correlation + correlation.conj().T) / 2.0)
    # Rounding makes zero eigenvalues positive or negative, by about the same amounts.
    rank = int((values > max(rounding * values[-1], -RANK_MARGIN * values[0])).sum())
    if rank == values.size:  # scaled rows: the units of the rows do not cost digits
        return (vectors / np.sqrt(values)) @ vectors.conj().T / scales, rounding
    # Otherwise T is VᴴR^(−½) up to a rotation, with the eigenvectors V of the r positive
    # eigenvalues; only what is orthogonal to the range in the units of the data is dropped.
    values, vectors = np.linalg.eigh(matrix)
    values, vectors = values[-rank:], vectors[:, -rank:]
    return rotation_to_rows(vectors) @ (vectors / np.sqrt(values)).conj().T, rounding


def rotation_to_rows(vectors: Any, importance: Any = None) -> Any:
    """Return the rotation U that aligns r orthonormal axes with r of the d rows, of shape (r, r).

    Pivoting selects r rows J of the axes V (d, r). With V_J = PSQᴴ and U = PQᴴ, VUᴴ is positive
    semi-definite on J, so that each rotated axis belongs to one row. Of equally good rows those
    with the larger `importance` are selected; otherwise rounding errors would decide.
    """
    rank = vectors.shape[1]
    scales = np.ones(len(vectors))
    if importance is not None:
        scales[np.argsort(importance)] += TIE * np.linspace(0.0, 1.0, scales.size)
    pivots = scipy.linalg.qr((scales[:, None] * vectors).conj().T, mode="r", pivoting=True)[1]
    chosen = np.sort(pivots[:rank])
    left, _, right = np.linalg.svd(vectors[chosen])
    return left @ right


def whitened_rows(rows: Rows, noise_cov: Any) -> Rows:
    """Return the rows of data after whitening by the covariance of their noise, or its diagonal.

    They are centred before, so that no digits are lost if means are far from zero.
    """
    pairs = zip((rows.dictionary, rows.responses), rows.offsets, strict=True)
    values = [mean.removed_from(part, rows.ones) for part, mean in pairs]
    values, unidentified = [*values, np.ones((len(rows.weights), 1))], UNIDENTIFIED
    if noise_cov.ndim == 1:
        kept = noise_cov > 0
        variances = noise_cov[kept]
        values = [value[kept] / np.sqrt(variances)[:, None] for value in values]
        weights = rows.weights[kept]
        log_volume, peak = float(weights @ np.log(variances)), float(variances.min()) ** -0.5
    else:
        matrix, rounding = whitener(noise_cov)
        values, weights = [matrix @ value for value in values], np.ones(len(matrix))
        sizes = np.linalg.svd(matrix, compute_uv=False)
        log_volume, peak = float(-2.0 * np.log(sizes).sum()), float(sizes[0])
        unidentified = max(unidentified, rounding)
    dictionary, responses, ones = values
    # Ones outside the range of R do not determine the intercept.
    identified = np.linalg.norm(ones) > unidentified * peak * len(ones) ** 0.5
    intercept = rows.intercept and bool(identified)
    if intercept:
        # The likelihood of what is orthogonal to the intercept: log|R| + log 1ᵀR⁻¹1 − log 1ᵀ1.
        power = float(weights @ np.abs(ones[:, 0]) ** 2)
        log_volume += float(np.log(power) - np.log(rows.weights.sum()))
    for value, name in ((dictionary, "X"), (responses, "y")):
        refuse_extremes(value, f"{name} divided by the square root of noise_cov")
    ones = ones * intercept
    return Rows(dictionary, responses, weights, intercept, ones, rows.offsets, log_volume)


LARGEST_CORRELATION = 0.999
"""Largest absolute value of the correlation ρ of successive responses that is learned."""

BASIN_STEPS = 100
"""Largest number of MacKay's updates before Newton steps take over."""

VANISHING = 1e-12
"""Eigenvalue of the covariance of the responses that counts as zero; their mean is one."""

NEWTON_WORK = 2e10
"""Largest number of multiplications in a Newton step; above it MacKay's updates continue."""


class ResponseSpectrum(NamedTuple):
    """The covariance B of n responses, with its eigenvalues and eigenvectors."""

    covariance: Any  # (n, n): B, with the mean diagonal entry 1
    values: Any  # (n,): the eigenvalues λ
    vectors: Any  # (n, n): the orthogonal matrix V of the eigenvectors, as columns
    # the correlation ρ of successive responses if B is that of an AR(1) model, else NaN
    correlation: float = np.nan

    @classmethod
    def of(cls, covariance: Any, correlation: float = np.nan) -> ResponseSpectrum:
        """Return a covariance, divided by its mean diagonal entry, with its spectrum."""
        covariance = covariance / (np.trace(covariance) / len(covariance))
        values, vectors = np.linalg.eigh(covariance)
        return cls(covariance, np.maximum(values, 0.0), vectors, correlation)

    @classmethod
    def autoregressive(cls, correlation: float, count: int) -> ResponseSpectrum:
        """Return the covariance ρ^|s−t| of `count` responses s and t."""
        return cls.of(scipy.linalg.toeplitz(correlation ** np.arange(count)), correlation)


def checked_spectrum(
    wanted: Any, rows: Rows, objective: Energy, posterior: str, solver: str
) -> ResponseSpectrum:
    """Return the covariance of the responses to start from."""
    count, name = int(rows.responses.shape[1]), "response_covariance"
    others = f"None, 'learn' or a covariance matrix of shape ({count}, {count})"
    if isinstance(wanted, str) and wanted != "learn":
        raise ValueError(f"{name}={wanted!r} was given, expected {others}.")
    if rows.is_complex:
        raise ValueError(
            f"{name} was given with complex data, expected real X and y: leave it out."
        )
    if not isinstance(objective, FullCovariance) or solver != "auto" or count < 2:
        given = f"posterior={posterior!r}, solver={solver!r} and {count} outputs"
        raise ValueError(
            f"{name} was given together with {given}, expected posterior='full', solver='auto', "
            "and two outputs or more."
        )
    if isinstance(wanted, str):
        return ResponseSpectrum.autoregressive(0.0, count)
    try:
        matrix = np.asarray(to_numpy(real_array(wanted, name)), dtype=float)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}={wanted!r} was given, expected {others}.") from error
    if matrix.shape != (count, count):
        raise ValueError(f"{name} has shape {matrix.shape}, expected {others}.")
    if not np.isfinite(matrix).all() or not matrix.any():
        fault = "is zero" if not matrix.any() else "contains NaN or infinity"
        raise ValueError(f"{name} {fault}, expected {others}.")
    check_covariance(matrix, name)
    return ResponseSpectrum.of((matrix + matrix.T) / 2.0)


@dataclass(frozen=True, eq=False)
class CorrelatedState:
    """Relevances and a covariance of the responses, with the quantities computed from them."""

    problem: Problem  # the normalised problem with all n responses
    groups: Groups | None
    learns_noise: bool  # whether γ is learned
    relevance: Any  # (κ,): the relevances
    spectrum: ResponseSpectrum  # of the covariance of the responses
    # change of artanh ρ in the last update of the correlation ρ of successive responses; 0 if it is
    # not learned
    moved: float = 0.0

    @property
    def noise(self) -> float:
        """The noise variance γ."""
        return float(self.problem.noise)

    @cached_property
    def axes(self) -> tuple[Any, Any]:
        """Eigenvalues D (d,) and eigenvectors Q of ΦWΦᵀ, for the dictionary Φ and relevances W."""
        prior = covariance(self.problem.dictionary, self.relevance, np.zeros(()))
        powers, basis = np.linalg.eigh(prior)
        return np.maximum(powers, 0.0), basis

    @cached_property
    def rotated(self) -> Any:
        """QᵀYV for the responses Y of the problem, (d, n)."""
        return self.axes[1].T @ self.problem.responses @ self.spectrum.vectors

    @cached_property
    def inverses(self) -> Any:
        """1/(λₜDᵢ + γ): eigenvalues of the inverse covariances of all responses, (d, n)."""
        return 1.0 / (np.outer(self.axes[0], self.spectrum.values) + self.noise)

    @cached_property
    def energy(self) -> float:
        """The energy per response, which is minimised."""
        return energy_at(self.problem, self.axes[0], self.spectrum.values, self.rotated)

    @cached_property
    def curvature(self) -> Any:
        """The mean over t of λₜφᵀΣₜ⁻¹φ for each column φ, where Σₜ = λₜΦWΦᵀ + γI."""
        # Σₜ λₜφᵀΣₜ⁻¹φ = Σᵢ (Qᵀφ)ᵢ² Σₜ λₜ/(λₜDᵢ + γ) is a weighted norm of Qᵀφ.
        weights = np.sqrt((self.inverses * self.spectrum.values).mean(axis=1))
        return norms_after(self.problem.dictionary, weights[:, None] * self.axes[1].T)

    @cached_property
    def alignment(self) -> Any:
        """The mean over t of λₜ(φᵀΣₜ⁻¹x̃ₜ)² for each column φ and the columns x̃ₜ of XV."""
        latent = np.sqrt(self.spectrum.values) * self.inverses * self.rotated
        loading = adjoint_times(self.problem.dictionary, self.axes[1] @ latent)
        return (loading**2).sum(axis=1)

    @property
    def totals(self) -> tuple[Any, Any]:
        """Alignment and curvature of each column, or of its group."""
        Q, z = self.alignment, self.curvature
        return (Q, z) if self.groups is None else (self.groups.share(Q), self.groups.share(z))

    @cached_property
    def learned_noise(self) -> float:
        """The noise variance after one step of expectation–maximisation (EM)."""
        residual = ((self.noise * self.inverses * self.rotated) ** 2).sum()
        residual += float(self.problem.outside)
        # The posterior variance of the mean response is γ times this number.
        used = (self.inverses * np.outer(self.axes[0], self.spectrum.values)).sum()
        dimension = float(self.problem.spare) + len(self.problem.responses)
        noise = residual + self.noise * used / self.spectrum.values.size
        return max(float(noise) / max(dimension, 1e-300), SMALLEST_LEARNED)

    @cached_property
    def distance(self) -> float:
        """Distance to the KKT conditions of the relevances."""
        state: Any = self
        return float(FullCovariance(self.groups).violation(state))

    @property
    def violation(self) -> float:
        """Distance to the KKT conditions, and to a fixed point of ρ and γ if they are learned."""
        change = abs(self.learned_noise / self.noise - 1.0) if self.learns_noise else 0.0
        return max(self.distance, self.moved, change)


def energy_at(problem: Problem, powers: Any, values: Any, rotated: Any) -> float:
    """Return the energy per response at given eigenvalues."""
    variances, noise = np.outer(powers, values) + float(problem.noise), float(problem.noise)
    inside = np.log(variances).sum() / values.size + (rotated**2 / variances).sum()
    return float(inside + float(problem.outside) / noise + float(problem.spare) * np.log(noise))


def mackay_step(state: CorrelatedState) -> CorrelatedState:
    """Return the state after MacKay's update of the relevances, which does not raise the energy.

    w²Q/v + zv bounds the energy in the new relevance v, and has the same value at w and at wQ/z.
    """
    Q, z = state.totals
    relevance = state.relevance * (Q / positive(z))
    vanishing = (relevance < 1e-8 * state.noise) & (z >= Q)  # they would only tend to zero
    after = replace(state, relevance=np.where(vanishing, 0.0, relevance))
    return after if after.energy <= state.energy else replace(state, relevance=relevance)


def of_each_response(state: CorrelatedState, part: Problem) -> list[Problem]:
    """Return a problem as one problem for each response in the basis V.

    Σₜ = λₜ(ΦWΦᵀ + (γ/λₜ)I), so that x̃ₜ/√λₜ has the noise variance γ/λₜ and the relevances w: these
    are problems that share their relevances. Responses with λₜ = 0 do not depend on them.
    """
    values, zero = state.spectrum.values, np.asarray(0.0)
    scaled = (
        part.responses
        @ state.spectrum.vectors
        * np.sqrt(values.size / np.maximum(values, VANISHING))
    )
    return [
        Problem(part.dictionary, scaled[:, [t]], np.asarray(state.noise / values[t]), zero, zero)
        for t in np.flatnonzero(values > VANISHING)
    ]


def newton_sweep(state: CorrelatedState, tolerance: float) -> CorrelatedState:
    """Return the state after damped Newton steps, or MacKay's update if these take too long."""
    w, groups, (Q, z) = state.relevance, state.groups, state.totals
    index = np.flatnonzero((w > 0) | (z < Q))
    count, rows = state.spectrum.values.size, len(state.problem.responses)
    if not index.size or count * w.size + count * rows * index.size**2 > NEWTON_WORK:
        return mackay_step(state)
    marginal = FullCovariance(None if groups is None else groups.restricted(index))
    problems = of_each_response(state, state.problem.restricted(index))
    parts = [evaluate(problem, w[index], columns=True) for problem in problems]
    enough = max(tolerance / 4.0, POLISHED * state.distance)
    ended = polish_relevances(parts, marginal, (1.0 / count,) * len(parts), tolerance=enough)
    reached = w.copy()
    reached[index] = ended[0].relevance
    after = replace(state, relevance=reached)
    return after if after.energy <= state.energy else mackay_step(state)


def correlation_step(state: CorrelatedState) -> CorrelatedState:
    """Return the state at the correlation ρ of successive responses with the lowest energy.

    The search fixes w(1 − ρ²), the variances of the innovations, which data determine better than w
    if ρ is near 1. Only eigenvalues and rotated responses change.
    """
    count, rho = state.spectrum.values.size, state.spectrum.correlation
    (powers, basis), old = state.axes, float(np.arctanh(rho))
    responses = basis.T @ state.problem.responses

    def scale(angle: float) -> float:
        return float((1.0 - rho**2) * np.cosh(angle) ** 2)

    def at(angle: float) -> ResponseSpectrum:
        return ResponseSpectrum.autoregressive(float(np.tanh(angle)), count)

    def energy(angle: float) -> float:
        spectrum, scaled = at(angle), scale(angle) * powers
        return energy_at(state.problem, scaled, spectrum.values, responses @ spectrum.vectors)

    bound = float(np.arctanh(LARGEST_CORRELATION))
    near = max(10.0 * state.moved, 1e-3) if state.moved > 0.0 else bound
    ends = max(old - near, -bound), min(old + near, bound)
    found = scipy.optimize.minimize_scalar(
        energy, bounds=ends, method="bounded", options={"xatol": 1e-9}
    )
    if not found.fun < state.energy:
        return replace(state, moved=0.0)
    angle = float(found.x)
    relevance, moved = scale(angle) * state.relevance, abs(angle - old)
    return replace(state, relevance=relevance, spectrum=at(angle), moved=moved)


def solve_correlated(
    problem: Problem, objective: Energy, spectrum: ResponseSpectrum, learn_noise: bool,
    settings: SolverSettings, start: Any = None,
) -> Solution[CorrelatedState]:  # fmt: skip
    """Minimise the energy over the relevances, and over ρ and γ if they are learned."""
    reachable, count = max(settings.tolerance, float(rounding_distances(problem.noise))), 0

    def step(state: CorrelatedState) -> CorrelatedState:
        nonlocal count
        count += 1
        rough = count <= BASIN_STEPS and state.violation > BASIN
        state = mackay_step(state) if rough else newton_sweep(state, reachable)
        if not np.isnan(spectrum.correlation):
            state = correlation_step(state)
        if learn_noise:
            state = replace(state, problem=state.problem.with_noise(state.learned_noise))
        return state

    relevance = to_numpy(flat_start(problem, objective.groups))
    relevance = relevance if start is None else np.maximum(start, 1e-2 * relevance)
    first = CorrelatedState(problem, objective.groups, learn_noise, relevance, spectrum)
    return iterated(step, first, replace(settings, tolerance=reachable), len(problem.responses))


def correlated_attributes(
    found: CorrelatedState,
    objective: Energy,
    units: Units,
    rows: Rows,
    X: Array,
    significance: float,
) -> tuple[dict[str, Any], CorrelatedPosterior, Any]:
    """Return fitted attributes, posterior and mean, at relevances rounded as X is."""
    relevance = narrowed(units.relevance * found.relevance, X, "relevance_")
    kept = as_double(relevance)
    state = replace(found, relevance=kept / units.relevance)
    noise, spectrum = float(units.noise * state.problem.noise), state.spectrum
    posterior, mean = CorrelatedPosterior.fitted(
        *rows.weighted, kept, noise, spectrum.values, spectrum.vectors
    )
    problems = of_each_response(state, state.problem)
    parts = [evaluate(problem, state.relevance) for problem in problems]
    significant = shared_support(parts, [1] * len(parts), significance, state.groups)
    results = {
        "relevance_": relevance,
        "noise_variance_": noise,
        "support_": np.flatnonzero(significant),
        "energy_": float(objective.in_units(np.asarray(state.energy), units)),
        "response_covariance_": spectrum.covariance,
    }
    return results, posterior, mean
