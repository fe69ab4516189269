"""The verifier: measured values of a certificate, from fitted numbers and rows of data alone.

It imports nothing of the solvers. It centres and weights the rows itself, and evaluates posterior
mean, KKT conditions and energy by their definitions. Σ is never formed, so that results are
accurate to ε√cond(Σ), while those of the solvers are accurate to ε cond(Σ).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
import scipy.stats

from lucidae.arrays import machine_epsilon, to_numpy
from lucidae.sparsity.columns import column_lengths
from lucidae.sparsity.evaluation import (
    Evaluation,
    Sample,
    Weighted,
    correlation_gain,
    evaluate_correlated,
    evaluate_relevances,
    largest_in,
    leverages,
    squares,
    times_power,
    totals_in,
    weighted_rows,
)
from lucidae.sparsity.figures import FINEST, Figure, SparseFigures
from lucidae.sparsity.generalised import (
    generalised_means,
    prediction_variances,
    row_noise_distance,
    whitened_sample,
)
from lucidae.sparsity.theory import implied_relevance
from lucidae.sparsity.uniqueness import with_uniqueness
from lucidae.sparsity.verified_groups import (
    FINE_UNIT,
    UNIT,
    covariance_support_differences,
    excess_of_groups,
    group_violation,
    in_principal_axes,
)

ACTIVE = 1e-6
"""A latent is active if its posterior variance is below 1 by more than this; rows likewise."""

SMALLEST_NOISE = 1e-14
"""Smallest noise variance that the estimator allows, relative to the mean square response."""

SMALLEST_LEARNED = 1e-10
"""Smallest noise variance that the estimator learns, relative to the mean square response."""

FALLBACK = 0.1
"""Noise variance that the estimator takes for a single row, relative to its mean square."""

COLLAPSE = 1e-3
"""Relative excess (Q − z)/z from which a collapsed latent should be active: it gains 5e-7."""

LOOSEST = 1e-2
"""Largest distance that counts as stationary, even if `tol` is larger."""

STORED = 8.0
"""Error allowed because relevances are rounded when they are stored, divided by ε(1 + √a).

A relative change δ ≤ ε/2 of a relevances changes the measured values by at most (3 + 2√a)δ."""


class Fit(NamedTuple):
    """Fitted numbers of an estimator, which the verifier checks."""

    coef: Any  # (n_columns, n_responses): the coefficients
    # (n_columns,): the relevances; by default those that the coefficients imply
    relevance: Any = None
    noise: Figure = None  # the noise variance
    energy: Figure = None  # the reported energy
    # how the noise variance was found: "given", "learn", "learn_diagonal", "cv", "cv_1se",
    # "fallback", or "" if unknown
    noise_rule: str = ""
    # the noise variance that the user gave, or that was estimated on held-out rows
    given_noise: Figure = None
    # (n_rows, n_responses): predicted means of the rows, and the posterior variances of these means
    predicted: Any = None
    variances: Any = None
    support: Any = None  # the columns that are reported as significant
    # (n_groups, m, m): covariances of the coefficients of groups of columns, padded with zeros
    covariances: Any = None
    # (n_responses, n_responses): the covariance of the responses if they are correlated, and the
    # one that the user gave if it was not learned
    response_covariance: Any = None
    given_covariance: Any = None
    # (n_rows,): the reported noise variance of each row, if the noise has a covariance
    row_variances: Any = None
    # (n_groups, m, m): square roots A of the covariances AAᵀ of groups, which lose fewer digits if
    # columns of a group are nearly dependent
    covariance_roots: Any = None


class EnergyKind(NamedTuple):
    """The energy that a fit should minimise, with tolerance and significance level."""

    # name of the posterior: "full", "diagonal", "point" or a registered name
    posterior: str = "full"
    penalty: Any = None  # penalty of the point estimate
    labels: Any = None  # (n_columns,): the group of each column
    # distance to stationarity that the user requested, the parameter `tol`
    tolerance: float = FINEST
    # distance to stationarity reported by an energy that `register_posterior` added, else None
    violation: Figure = None
    # family-wise significance level of the test that decides which columns are in the support
    significance: float = 0.05
    full_groups: bool = False  # whether every group of columns has a covariance matrix of its own


FULL = EnergyKind()


def measure(
    sample: Sample, fit: Fit, model: EnergyKind = FULL, *, title: str = ""
) -> SparseFigures:
    """Return the measured values of a fit on rows of data, from which a certificate is made."""
    with np.errstate(all="ignore"):  # figures of absurd numbers may overflow, and then fail
        return _measured(sample, fit, model, title)


def _measured(sample: Sample, fit: Fit, model: EnergyKind, title: str) -> SparseFigures:
    """Return the measured values of a fit on rows of data; see `measure` for the arguments."""
    stored = max(machine_epsilon(part) for part in (fit.coef, fit.relevance) if part is not None)
    plain = Sample(
        _wide(sample.dictionary),
        _wide(sample.responses),
        None if sample.weights is None else to_numpy(sample.weights).astype(np.float64),
        sample.intercept,
        None if sample.noise_cov is None else _wide(sample.noise_cov),
    )
    fit = fit._replace(coef=_wide(fit.coef))
    rows_of = weighted_rows if plain.noise_cov is None else whitened_sample
    rows = rows_of(plain, model.labels)
    U = times_power(fit.coef, rows.shifts[:, None] - rows.shift)
    figures = _figures_of_fit(rows, U, title)
    if plain.noise_cov is not None:
        figures = replace(
            figures, noise_rank=len(rows.dictionary), noise_rows=len(plain.dictionary),
            noise_outside=rows.outside,
        )  # fmt: skip
    if fit.noise is None:
        return figures
    implied = 0.0
    if fit.relevance is None:
        w = _implied_relevance(rows, U, _shifted(fit.noise, rows))
        implied = _implied_error(rows, U, w, _shifted(fit.noise, rows), stored)
    else:
        w = np.ldexp(to_numpy(fit.relevance).astype(np.float64), 2 * (rows.shifts - rows.shift))
    lost, blurred, clipped, vague = 0.0, 0.0, 0.0, 0.0
    rounded = 0.5 * stored * np.linalg.norm(U, axis=1)
    if model.full_groups:
        given, lengths = to_numpy(fit.relevance).astype(np.float64), column_lengths(rows.dictionary)
        roots = None if fit.covariance_roots is None else _wide(fit.covariance_roots)
        turned = in_principal_axes(rows, U, _wide(fit.covariances), roots, given, model.labels)
        if turned is None:
            return _failed(replace(figures, covariance_distance=np.inf), fit, FINEST)
        rows, U, w, distance, lost, blurred, clipped, weakest = turned
        figures = replace(figures, covariance_distance=_worse(0.0, distance - 4.0 * stored))
        # Nearly dependent columns determine the direction that they hardly reach only up to this.
        vague = UNIT / weakest
        # Coefficients of nearly dependent columns cancel, but their rounding errors do not.
        rounded = totals_in(rounded * lengths, model.labels)
    tolerance = max(min(model.tolerance, LOOSEST), FINEST)
    sound = np.isfinite(w).all() and (w >= 0).all() and fit.noise > 0 and np.isfinite(U).all()
    if not sound or not np.isfinite(fit.noise):
        return _failed(figures, fit, tolerance)
    try:
        at = _evaluated(rows, w, _shifted(fit.noise, rows), fit.response_covariance, model)
    except np.linalg.LinAlgError:  # γ is so small that its root is lost beside the columns
        return _failed(figures, fit, tolerance)
    # Covariances are stored with an error of norm `lost`, at most this part of Σ in any direction.
    # Their roots have an error of norm `blurred`, which is compared with the root of Σ.
    inexact = lost / at.noise + blurred / at.noise**0.5
    at = at._replace(reach=at.reach + inexact)
    share = inexact * FINE_UNIT / UNIT + clipped / at.noise
    at = at._replace(rounding=at.rounding + share)
    figures = _judged(figures, rows, at, U, model, tolerance, max(stored, vague), implied, rounded)
    if fit.relevance is None:  # stationary relevances say nothing if they do not give these U
        distance = _worse(figures.violation, figures.mean_distance)
        figures = replace(figures, violation=distance)
    figures = _with_attributes(figures, plain, rows, at, fit, model)
    return replace(
        figures,
        noise_rule=_floored_rule(fit, rows, at),
        noise_distance=_with_rows(_noise_distance(fit, plain, rows, at, model), fit, plain),
        energy_distance=_energy_distance(fit, rows, at, model, vague),
        energy_error=share * (1.0 + at.fit / max(rows.dimension, 1.0)),
        evidence=figures.evidence | _energies(rows, at, model) | _of_covariance(rows, at, fit),
    )


def _evaluated(
    rows: Weighted, w: Any, noise: float, covariance: Any, model: EnergyKind
) -> Evaluation:
    """Return the quantities that follow from the relevances `w`."""
    if covariance is None:
        return evaluate_relevances(rows, w, noise)
    if not _is_covariance(covariance, rows.responses.shape[1]):
        raise np.linalg.LinAlgError(
            "the fitted attribute response_covariance_ was overwritten "
            "with an array that is not a covariance matrix: fit again."
        )
    return evaluate_correlated(rows, w, noise, covariance, model.labels)


def _is_covariance(matrix: Any, n: int) -> bool:
    """Tell whether `matrix` is a finite symmetric n × n matrix with mean diagonal entry 1."""
    if np.shape(matrix) != (n, n) or not np.isfinite(matrix).all():
        return False
    symmetric = bool(np.abs(matrix - matrix.T).max() <= 1e-10)
    return symmetric and abs(float(np.trace(matrix)) / n - 1.0) <= 1e-10


def _of_covariance(rows: Weighted, at: Evaluation, fit: Fit) -> dict[str, Any]:
    """Return, by name, the error of the covariance of the responses, if there is one."""
    if fit.response_covariance is None:
        return {}
    if fit.given_covariance is None:
        gain = correlation_gain(rows, at.relevance, at.noise, fit.response_covariance)
        return {"response_covariance": gain, "response_covariance_rule": "learn"}
    distance = float(np.abs(fit.response_covariance - fit.given_covariance).max())
    return {"response_covariance": distance, "response_covariance_rule": "given"}


def _wide(values: Any) -> Any:
    """Return numbers in double precision; complex numbers stay complex, sparse ones sparse."""
    plain = values if scipy.sparse.issparse(values) else to_numpy(values)
    return plain.astype(np.complex128 if np.iscomplexobj(plain) else np.float64)


def _implied_relevance(rows: Weighted, U: Any, noise: float) -> Any:
    """Return the relevances for which the coefficients U are the posterior mean."""
    used, w = np.flatnonzero(U.any(axis=1)), np.zeros(U.shape[0])
    w[used] = implied_relevance(rows.dictionary[:, used], rows.responses, U[used], noise)
    return w


def _failed(figures: SparseFigures, fit: Fit, tolerance: float) -> SparseFigures:
    """Return measured values with infinite distances to optimality, for an invalid fit."""
    return replace(
        figures,
        violation=np.inf,
        tolerance=tolerance,
        mean_distance=np.inf,
        noise_rule=fit.noise_rule,
        noise_distance=np.inf,
        energy_distance=None if fit.energy is None else np.inf,
        support_wrong=None if fit.support is None else int(np.size(to_numpy(fit.support))),
        variance_distance=None if fit.variances is None else np.inf,
    )


def _with_attributes(
    figures: SparseFigures, plain: Sample, rows: Weighted, at: Evaluation, fit: Fit,
    model: EnergyKind,
) -> SparseFigures:  # fmt: skip
    """Return `figures` with the measured values of predictions, their variances and the support."""
    if fit.predicted is not None:
        predicted = _wide(fit.predicted)
        distance, error = prediction_distance(plain, fit.coef, predicted)
        figures = replace(
            figures,
            mean_distance=_worse(figures.mean_distance, distance),
            mean_error=max(figures.mean_error, error),
        )
    if fit.variances is not None and fit.noise is not None:
        given = to_numpy(fit.variances).astype(np.float64)
        given = given if plain.weights is None else given[plain.weights > 0]
        distance, error = variance_distance(rows, at, given / fit.noise)
        figures = replace(figures, variance_distance=distance, variance_error=error)
    if fit.support is None:
        return figures
    support = to_numpy(fit.support)
    differences = covariance_support_differences if model.full_groups else support_differences
    wrong, left = differences(at, model.labels, model.significance, support, rows.parts)
    return replace(figures, support_wrong=wrong, support_undecided=left)


def _worse(first: Figure, second: Figure) -> float:
    """Return the larger of two distances; NaN if one is NaN."""
    return float(np.max([0.0 if value is None else value for value in (first, second)]))


def _shifted(noise: float, rows: Weighted) -> float:
    """Return a noise variance, given in the units of the data, in the verifier's units."""
    return float(np.ldexp(noise, -2 * rows.shift))


def _figures_of_fit(rows: Weighted, U: Any, title: str) -> SparseFigures:
    """Return the measured values that do not need a noise variance; U are the coefficients."""
    Phi, X = rows.dictionary, rows.responses
    total = float(np.linalg.norm(X))
    column_norms = column_lengths(Phi)
    norms = np.linalg.norm(U, axis=1) * column_norms
    nonzero = np.flatnonzero(norms)
    used = np.flatnonzero(norms > ACTIVE * norms.max(initial=0.0))
    residual = float(np.linalg.norm(X - Phi[:, nonzero] @ U[nonzero]))
    error = residual / total if total > 0 else (np.inf if residual > 0 else 0.0)
    figures = SparseFigures(
        title, None, None, error, error, int(used.size), Phi.shape[1], 0, norms[used],
        n_used=int(used.size), rows=Phi.shape[0],
        evidence={
            "relative_error": error, "used": used, "row_norms": norms[used] / max(total, 1e-300),
        },
    )  # fmt: skip
    if total == 0 or not 0 < used.size < Phi.shape[0] or not error < 0.1:
        return figures
    return with_uniqueness(figures, Phi, X, used)


def _judged(
    figures: SparseFigures, rows: Weighted, at: Evaluation, U: Any, model: EnergyKind,
    tolerance: float, stored: float, implied: float, rounded: Any,
) -> SparseFigures:  # fmt: skip
    """Return `figures` with values about optimality, posterior mean and collapsed latents.

    `implied` is the relative error of relevances computed from coefficients, and `rounded` bounds
    what rounding of the stored coefficients changed.
    """
    w, z, Q = at.relevance, at.curvature, at.alignment
    n_used = int((w > 0).sum())
    slope_error, shift = slope_errors(at)
    excess = excess_of_groups(at, model.labels) if model.full_groups else None
    violation, violation_error = _violation(rows, at, model, slope_error, excess)
    # An evaluation that is worse than this has lost its meaning, and so have the relevances.
    violation_error = min(violation_error, LOOSEST) + _implied_share(at, implied)
    stored_error = STORED * stored * (1.0 + n_used**0.5)
    norms, n = column_lengths(rows.dictionary), U.shape[1]
    prior = largest_in(w, model.labels) if model.full_groups else w
    mean_distance = _mean_distance(rows, at, U, norms, prior, rounded)
    mean_error = min(float((np.sqrt(w) * shift).max(initial=0.0)), LOOSEST)
    mean_error += implied * (at.fit + 1.0) ** 0.5
    alignment, curvature = totals_in(Q, model.labels), totals_in(z, model.labels)
    active = totals_in(w * z, model.labels) > ACTIVE
    error = totals_in(slope_error, model.labels)
    ratio = _ratio(alignment - curvature, curvature)
    bar = max(COLLAPSE, 10.0 * tolerance)
    margin = _ratio(error, curvature)
    if excess is not None:
        ratio, margin = excess
    outside = np.where(active | (z == 0), -np.inf, ratio)
    worst = int(np.argmax(outside)) if outside.size else 0
    reach = min(at.reach * (1.0 + at.fit) ** 0.5, LOOSEST)
    unjustified = outside - margin > bar + reach
    return replace(
        figures,
        violation=violation,
        violation_error=violation_error,
        tolerance=max(tolerance, stored_error),
        mean_distance=mean_distance,
        mean_error=mean_error,
        mean_tolerance=max(FINEST, stored_error),
        reach=reach,
        n_active=int((w * z > ACTIVE).sum()),
        # Coefficients that do not determine their relevances leave collapse open too.
        unjustified=int(unjustified.sum()) if implied < 1.0 else None,
        undecided=int(((outside + margin > bar) & ~unjustified).sum()),
        evidence=figures.evidence | _evidence(rows, at, worst, outside, active) | {
            "violation": violation, "mean_distance": mean_distance, "n_responses": n,
        },
    )  # fmt: skip


def slope_errors(at: Evaluation) -> tuple[Any, Any]:
    """Return bounds on the rounding errors of Q − z and of √Q, one for each column."""
    # A perturbation E of A changes φᵀΣ⁻¹φ by at most 2z‖E‖/√γ and ‖φᵀΣ⁻¹X‖/√n by at most
    # 2√(z fit)‖E‖/√γ, where fit = tr(XXᵀΣ⁻¹)/n.
    z, Q = at.curvature, at.alignment
    shift = 2.0 * at.rounding * np.sqrt(z * at.fit)
    return 2.0 * at.rounding * z + 2.0 * np.sqrt(Q) * shift + shift**2, shift


def _ratio(values: Any, sizes: Any) -> Any:
    """Return `values` divided by `sizes`, and zero for every entry whose divisor is zero."""
    return np.where(sizes > 0, values / np.where(sizes > 0, sizes, 1.0), 0.0)


def _violation(
    rows: Weighted, at: Evaluation, model: EnergyKind, slope_error: Any,
    growth: tuple[Any, Any] | None,
) -> tuple[float, float]:  # fmt: skip
    """Return the distance of relevances to optimality, and a bound on its rounding error."""
    if model.violation is not None:
        return model.violation, 0.0
    if model.posterior == "point":
        return _point_violation(rows, at, model, slope_error)
    if growth is not None:
        return group_violation(at, model.labels, slope_error, growth)
    w, pressure = at.relevance, _pressure(rows, at, model)
    # Columns of a group share one relevance, also those that are zero on these rows.
    if (np.abs(w - largest_in(w, model.labels)) > FINEST * w).any():
        return float("inf"), 0.0
    Q, pressure = totals_in(at.alignment, model.labels), totals_in(pressure, model.labels)
    error = totals_in(slope_error, model.labels)
    slack, excess = w * np.abs(Q - pressure), _ratio(Q - pressure, pressure)
    wide = _ratio(error, pressure)
    value = _worse(slack.max(), excess.max())
    high = _worse((slack + w * error).max(), (excess + wide).max())
    low = _worse((slack - w * error).max(), (excess - wide).max())
    return value, max(high - value, value - low)


def _pressure(rows: Weighted, at: Evaluation, model: EnergyKind) -> Any:
    """Return the derivative of the log-volume: φᵀΣ⁻¹φ, or ‖φ‖²/(γ + w‖φ‖²) if diagonal."""
    if model.posterior != "diagonal":
        return at.curvature
    norms = column_lengths(rows.dictionary) ** 2
    return norms / (at.noise + at.relevance * norms)


def _power(rows: Weighted, at: Evaluation, model: EnergyKind, alignment: Any) -> tuple[Any, Any]:
    """Return the mean squares of the coefficients, and the relevances, in the penalty's units."""
    norms = totals_in(column_lengths(rows.dictionary) ** 2, model.labels)
    norms = np.where(norms > 0, norms, 1.0)
    norms = norms / rows.mean_square if rows.mean_square > 0 else norms
    power = at.relevance**2 * alignment * norms
    count = totals_in(np.ones_like(power), model.labels)
    return totals_in(power, model.labels) / count, at.relevance * norms


def _point_violation(
    rows: Weighted, at: Evaluation, model: EnergyKind, slope_error: Any
) -> tuple[float, float]:
    """Return the largest |1/h′(a) − w| over the larger of both plus γ, and its rounding error."""
    noise = at.noise / rows.mean_square if rows.mean_square > 0 else at.noise

    def distances(alignment: Any) -> Any:
        power, relevance = _power(rows, at, model, np.maximum(alignment, 0.0))
        target = 1.0 / model.penalty.supergradient(np.maximum(power, 1e-300))
        target = np.where(target > 2e-300, target, 0.0)
        return np.abs(target - relevance) / (np.maximum(target, relevance) + noise)

    value = float(distances(at.alignment).max())
    others = [distances(at.alignment + sign * slope_error).max() for sign in (-1.0, 1.0)]
    return value, float(max(abs(other - value) for other in others))


def _mean_distance(
    rows: Weighted, at: Evaluation, U: Any, norms: Any, w: Any, rounded: Any
) -> float:
    """Return the largest distance of a column's coefficients from their posterior mean.

    It is divided by √(n w), along axes of a group by that of the largest variance. If w is
    negligible, the distance times the norm of the column is divided by that of the responses. What
    rounding of the stored coefficients explains (`rounded`) is subtracted.
    """
    n = U.shape[1]
    lengths = np.maximum(np.linalg.norm(U - at.mean, axis=1) - rounded, 0.0)
    total = float(np.linalg.norm(rows.responses))
    # Relevances that vanish beside γ have a posterior mean that vanishes too: an absolute
    # comparison with the responses is enough for them.
    floor = w * norms**2 > np.finfo(float).eps * at.noise
    prior = np.sqrt(n * np.where(floor, w, 1.0))
    share = lengths * norms / total if total > 0 else lengths * norms
    return float(np.where(floor, lengths / prior, share).max(initial=0.0))


def _implied_share(at: Evaluation, implied: float) -> float:
    """Return the error of the KKT distance caused by the relative error `implied` of relevances."""
    w, z, Q = at.relevance, at.curvature, at.alignment
    return implied * float(max((w * (z + Q)).max(initial=0.0), (1.0 + _ratio(Q, z)).max()))


def _implied_error(rows: Weighted, U: Any, w: Any, noise: float, stored: float) -> float:
    """Return a bound on the relative error of relevances computed from rounded coefficients."""
    used = np.flatnonzero(U.any(axis=1))
    if not used.size or not np.isfinite(w).all():
        return 0.0
    Phi = rows.dictionary[:, used]
    rounded = stored * (np.abs(Phi) @ np.abs(U[used]) + np.abs(rows.responses))
    slopes = noise * np.linalg.norm(U[used], axis=1) / w[used]
    errors = np.linalg.norm(Phi, axis=0) * np.linalg.norm(rounded) / slopes
    return float(errors.max() * (3.0 + 2.0 * used.size**0.5))


def _floored_rule(fit: Fit, rows: Weighted, at: Evaluation) -> str:
    """Return how γ was found: "floor" if learning ended at the smallest allowed value."""
    mean_square = rows.mean_square if rows.mean_square > 0 else 1.0
    at_floor = at.noise <= 1.01 * SMALLEST_LEARNED * mean_square
    return "floor" if fit.noise_rule == "learn" and at_floor else fit.noise_rule


def _noise_distance(
    fit: Fit, sample: Sample, rows: Weighted, at: Evaluation, model: EnergyKind
) -> Figure:
    """Return the relative distance of γ from what its rule gives; None if that is unknown."""
    mean_square = rows.mean_square if rows.mean_square > 0 else 1.0
    lowest = SMALLEST_NOISE * mean_square
    if fit.noise_rule == "given" and fit.given_noise is not None:
        expected = max(_shifted(fit.given_noise, rows), lowest)
        return float(abs(at.noise / expected - 1.0))
    if fit.noise_rule in ("cv", "cv_1se") and fit.given_noise is not None:
        return float(abs(at.noise / _shifted(fit.given_noise, rows) - 1.0))
    if fit.noise_rule == "fallback":
        share = float(squares(rows.responses).sum()) / (rows.total * rows.responses.shape[1])
        return float(abs(at.noise / max(FALLBACK * share, lowest) - 1.0))
    if fit.noise_rule == "learn_diagonal" and fit.noise is not None:
        return row_noise_distance(sample, rows, at, fit.noise)
    if fit.noise_rule == "learn" and rows.dimension > 0:
        # The derivative of the energy in γ vanishes where γ = (‖X − ΦU‖²/n + γ dof)/d.
        freedom = float((at.relevance * _pressure(rows, at, model)).sum())
        change = float((at.residual / at.noise + freedom) / rows.dimension - 1.0)
        return max(change, 0.0) if _floored_rule(fit, rows, at) == "floor" else abs(change)
    return None


def _with_rows(distance: Figure, fit: Fit, sample: Sample) -> Figure:
    """Return the larger of `distance` and the relative error of the noise variances of the rows."""
    if fit.row_variances is None or sample.noise_cov is None or fit.noise is None:
        return distance
    diagonal = sample.noise_cov if sample.noise_cov.ndim == 1 else np.diagonal(sample.noise_cov)
    expected = fit.noise * diagonal.real
    given = to_numpy(fit.row_variances).astype(np.float64)
    if given.shape != expected.shape:
        return np.inf
    sizes = np.where(expected > 0, expected, expected.max(initial=0.0))
    return _worse(distance, float((np.abs(given - expected) / sizes).max()))


def _log_volume(rows: Weighted, at: Evaluation, model: EnergyKind) -> float:
    """Return the log-volume of the energy per response, for all rows, in the units of the data."""
    logarithm = float(np.log(at.noise))
    if model.posterior == "diagonal":
        norms = column_lengths(rows.dictionary) ** 2
        volume = float(np.log1p(at.relevance * norms / at.noise).sum())
        volume += rows.dimension * logarithm
    else:
        spare = rows.dimension - min(rows.dictionary.shape)
        volume = at.log_determinant + spare * logarithm
    return float(volume + 2.0 * rows.dimension * rows.shift * np.log(2.0) + rows.volume)


def _energy(rows: Weighted, at: Evaluation, model: EnergyKind) -> Figure:
    """Return the energy of all responses in the units of the data."""
    n = rows.responses.shape[1]
    if model.posterior == "point":
        power, _ = _power(rows, at, model, at.alignment)
        penalties = model.penalty.value(np.maximum(power, 1e-300))
        return float(n * (at.residual / at.noise + np.sum(penalties)))
    if model.posterior not in ("full", "diagonal"):
        return None
    return float(n * (at.fit + _log_volume(rows, at, model)))


def _energy_distance(
    fit: Fit, rows: Weighted, at: Evaluation, model: EnergyKind, vague: float
) -> Figure:
    """Return the relative difference of the reported energy from the verifier's."""
    energy = _energy(rows, at, model)
    if fit.energy is None or energy is None:
        return None
    size = max(abs(energy), rows.responses.shape[1] * max(rows.dimension, 1.0))
    distance = float(abs(fit.energy - energy) / size)
    return max(0.0, distance - vague) if np.isfinite(distance) else distance


def _energies(rows: Weighted, at: Evaluation, model: EnergyKind) -> dict[str, Any]:
    """Return the energy and its parts by name, for the evidence of the certificate."""
    return {
        "energy": _energy(rows, at, model),
        "data_term": at.fit,
        "residual": float(np.ldexp(at.residual, 2 * rows.shift)),
        "dimension": rows.dimension,
    }


def _evidence(
    rows: Weighted, at: Evaluation, worst: int, outside: Any, active: Any
) -> dict[str, Any]:
    """Return the noise variance and the values of the active columns, by name, in data units."""
    chosen = np.flatnonzero(active)
    exponent = 2 * (rows.shifts[chosen] - rows.shift)
    return {
        "noise_variance": float(np.ldexp(at.noise, 2 * rows.shift)),
        "active": chosen,
        "relevance": np.ldexp(at.relevance[chosen], -exponent),
        "curvature": np.ldexp(at.curvature[chosen], exponent),
        "alignment": np.ldexp(at.alignment[chosen], exponent),
        "worst_inactive": worst,
        "largest_ratio_outside": float(outside[worst]) + 1.0 if outside.size else 0.0,
        "rounding": at.rounding,
        "reach": at.reach,
    }


def prediction_distance(sample: Sample, coef: Any, predicted: Any) -> tuple[float, float]:
    """Return the largest difference between predictions and the linear model ȳ + (x − x̄)U."""
    Phi, X = sample.dictionary, sample.responses
    weights = np.ones(Phi.shape[0]) if sample.weights is None else sample.weights
    if scipy.sparse.issparse(Phi):  # columns without coefficients do not predict
        used = np.flatnonzero(coef.any(axis=1))
        Phi, coef = Phi[:, used].toarray(), coef[used]
    first, mean = np.zeros(X.shape[1]), np.zeros(X.shape[1])
    if sample.intercept:
        first = X[0]
        (Phi, X), mean = generalised_means(sample._replace(dictionary=Phi))
    size = np.sqrt(weights @ squares(X) / weights.sum())
    size = np.where(size > 0, size, np.abs(first + mean))
    size = np.where(size > 0, size, 1.0)
    # A prediction is a sum with the mean response, so that it is rounded relative to this mean.
    terms = (np.abs(Phi) @ np.abs(coef)).max(axis=0)
    distance = np.abs(predicted - first - mean - Phi @ coef).max(axis=0) / size
    count = int(coef.any(axis=1).sum())  # products with zero are exact
    error = UNIT * (np.abs(predicted).max(axis=0) + (4.0 + count**0.5) * terms) / size
    return float(distance.max()), float(error.max())


def variance_distance(rows: Weighted, at: Evaluation, variances: Any) -> tuple[float, float]:
    """Return the largest error of an estimator's posterior variances of the predicted means."""
    if rows.points is not None:  # whitened rows are no rows that the estimator predicts
        expected = prediction_variances(rows, at.relevance, at.noise)
        size = max(float(expected.max(initial=0.0)), 1.0)
        distance = float(np.abs(variances - expected).max(initial=0.0)) / size
        return distance, 4.0 * at.rounding
    # For a row that counts m times, ΦWΦᵀΣ⁻¹ of the weighted rows has m times its variance.
    if at.leverage is not None:
        distance = np.abs(variances * rows.weights[:, None] - at.leverage).max(initial=0.0)
        return float(distance), 4.0 * at.rounding
    expected = leverages(rows, at.relevance, at.noise)
    distance = float(np.abs(variances * rows.weights - expected).max(initial=0.0))
    return distance, 4.0 * at.rounding


def support_differences(
    at: Evaluation, labels: Any, significance: float, support: Any, parts: int = 1
) -> tuple[int, int]:
    """Return how many columns `support` contains or lacks wrongly, and how many are undecided.

    A column (or group) is significant if its evidence exceeds the quantile of χ²₁ at 1 − α/κ, and
    undecided if rounding decides. The evidence of complex data counts twice (`parts`).
    """
    count = at.relevance.size if labels is None else int(labels.max()) + 1
    threshold = float(scipy.stats.chi2.isf(significance / count, 1))
    found = at.evidence
    if found is None:
        found = _column_evidence(at) if labels is None else _group_evidence(at, labels)
    evidence, error = (parts * values for values in found)
    claimed = np.zeros(at.relevance.size, dtype=bool)
    claimed[support] = True
    different = claimed != (evidence > threshold)
    close = ~(np.abs(evidence - threshold) > error + 1e-9 * threshold)
    return int((different & ~close).sum()), int((different & close).sum())


def _column_evidence(at: Evaluation) -> tuple[Any, Any]:
    """Return twice the log-likelihood that each column adds, and bounds on the rounding errors.

    It is n(t − 1 − log t) with t = Q/(z(1 − wz)), and zero if t ≤ 1 or w = 0.
    """
    w, z, Q, n = at.relevance, at.curvature, at.alignment, at.mean.shape[1]
    variance = np.maximum(1.0 - w * z, UNIT)
    ratio = Q / np.where(z > 0, z * variance, 1.0)
    growth = np.maximum(ratio, 1.0)
    evidence = np.where(w > 0, n * (growth - 1.0 - np.log(growth)), 0.0)
    # Relative errors of Q, z and 1 − wz: see the bounds in `_judged`.
    relative = 2.0 * at.rounding * (1.0 + 2.0 * np.sqrt(_ratio(z * at.fit, Q)) + w * z / variance)
    return evidence, np.where(w > 0, n * growth * relative, 0.0)


def _group_evidence(at: Evaluation, labels: Any) -> tuple[Any, Any]:
    """Return, for each column, twice the log-likelihood lost without its group, and its error."""
    w, n = at.relevance, at.mean.shape[1]
    evidence, error = np.zeros(w.size), np.zeros(w.size)
    for label in np.unique(labels[w > 0]):
        index = np.flatnonzero(labels == label)
        weight = float(w[index].max())
        columns = at.whitened[:, index]
        # Without the group, Σ becomes Σ − wΦ_gΦ_gᵀ: its determinant is |Σ||M| with M = I − wG and
        # G = Φ_gᵀΣ⁻¹Φ_g, and its inverse is Σ⁻¹ + wΣ⁻¹Φ_g M⁻¹ Φ_gᵀΣ⁻¹ (Woodbury).
        inner = columns.conj().T @ columns
        values, vectors = np.linalg.eigh(np.eye(index.size) - weight * inner)
        values = np.maximum(values, UNIT)
        powers = squares(vectors.conj().T @ at.loading[index]).sum(axis=1)
        lost = np.log(values).sum() * n + weight * (powers / values).sum()
        evidence[index] = lost
        error[index] = 8.0 * at.rounding / values.min() * (abs(lost) + n * index.size)
    return evidence, error
