"""Measured values for certificates of dropout weights, from the weights and the data alone.

Nothing here calls the solver, its closed forms or its whitening: every formula that both need is
implemented a second time, in another way. The inputs are whitened by a pivoted Cholesky or QR
factorisation, the singular values come from the eigenvectors of a Gram matrix, the threshold from
bisection, and derivatives from finite differences that are exact for polynomials of degree four.

Notation: U and V are the outgoing and incoming weights of the r hidden units, λ is the strength of
dropout, x are the inputs, y the outputs, and C = E[xxᵀ] = RᵀR with a triangular factor R. With V' =
RV and the least-squares map M = E[yxᵀ]R⁻¹ the expected dropout loss is f = ‖M − UV'ᵀ‖² +
λΣ‖uᵢ‖²‖v'ᵢ‖² + floor, where floor = E‖y‖² − ‖M‖² is the loss of least squares. s₁ ≥ s₂ ≥ … are the
singular values of M. All of it is computed in units in which inputs and outputs are of the order of
one (`lucidae.dropout.reduction.DataUnits`).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
from scipy.stats import chi2

from lucidae.dropout.differences import Slope, decrease, smallest_curvature
from lucidae.dropout.figures import (
    ATTRIBUTES,
    EPSILON,
    MEAN_ERROR,
    DropoutFigures,
    ReportedAttributes,
)
from lucidae.dropout.problem import LinearProblem, Weights
from lucidae.dropout.projection import (
    is_large,
    possible_saving,
    projected_matrix,
    smallest_loss,
    threshold,
)
from lucidae.dropout.reduction import (
    RANGE_FACTOR,
    Case,
    DataUnits,
    Moments,
    Optimum,
    Product,
    Reduced,
    host,
    reduce_inputs,
    relative_distance,
    white_rows,
)
from lucidae.sampling import separated_components

Matrix = np.ndarray[Any, Any]

EXCEEDED = 1e-3
"""Largest probability with which a singular value of pure noise exceeds `noise_level`."""

UNDERESTIMATED = 1e-2
"""Largest probability with which the noise variance exceeds the one that `noise_level` uses."""

NOT_A_SAMPLE = (
    "The matrix itself is given, not rows that were drawn from a population, so there is no "
    "sampling noise to compare with."
)


class Separation(NamedTuple):
    """How many leading components of a network exceed sampling noise, and a sentence on it."""

    # number of leading singular values that exceed sampling noise; None if this is not known
    number: int | None
    sentence: str  # the number in words, or why it is not known


def separated_from_noise(
    spectrum: Matrix, residual: Matrix | None, n_inputs: int, n_rows: float | None, width: int
) -> Separation:
    """Return how many leading singular values of the data exceed sampling noise."""
    judged = min(width, len(spectrum))
    if n_rows is None:
        return Separation(None, NOT_A_SAMPLE)
    if residual is None:
        count = int(separated_components(spectrum**2, n_rows, judged).sum())
    elif n_rows > n_inputs:
        count = int((spectrum[:judged] > noise_level(residual, n_inputs, n_rows)).sum())
    else:
        why = (
            f"The number of rows (less one, if the mean was estimated) is {n_rows:g}, too few to "
            f"estimate the effects of {n_inputs} inputs and the variance of the noise."
        )
        return Separation(None, why)
    return Separation(
        count,
        f"{count} of the {judged} leading components exceed the sampling noise of {n_rows:g} rows.",
    )


def noise_level(residual: Matrix, n_inputs: int, n_rows: float) -> float:
    """Return the size that singular values of the least-squares map M reach by noise alone.

    If the m targets of the n rows do not depend on the q whitened inputs, M consists of q
    independent columns of noise with covariance S/n, where S is the covariance of the residuals and
    s its largest eigenvalue. The probability that the largest singular value of M exceeds (√s (√q +
    t) + √tr S)/√n is at most exp(−t²/2) (Davidson & Szarek 2001, Theorem II.13; for S = σ²I and t =
    0 this is the noise level σ(√q + √m)/√n of reduced-rank regression, Bunea, She & Wegkamp 2011).
    S is estimated with n − q degrees of freedom for each independent target, and enlarged to an
    upper confidence limit (χ² distribution).
    """
    variances = np.clip(scipy.linalg.eigvalsh(residual), 0.0, None)
    top, total = float(variances[-1]), float(variances.sum())
    if top == 0:
        return 0.0
    freedom = (n_rows - n_inputs) * total / top
    enlarged = n_rows / (n_rows - n_inputs) * freedom / float(chi2.ppf(UNDERESTIMATED, freedom))
    margin = math.sqrt(-2.0 * math.log(EXCEEDED))
    level = math.sqrt(top) * (math.sqrt(n_inputs) + margin) + math.sqrt(total)
    return level * math.sqrt(enlarged / n_rows)


CLEAR = 1e3
"""The range of the inputs (the directions in which they vary) counts as known if the smallest pivot
of their triangular factorisation exceeds the rounding errors by this factor."""


def worst_attribute(
    reported: ReportedAttributes | None, value: float, value_error: float, case: Case
) -> tuple[float, float] | None:
    """Return the relative error of the least accurate fitted attribute, and its rounding error.

    A difference that certainly exceeds its rounding error takes precedence over one that may not.
    """
    if reported is None:
        return None
    given = case.units.reported(reported)
    pairs = [
        *_solution_differences(given, case),
        *_function_differences(given, case),
        *((abs(a - b) / max(abs(b), EPSILON), 0.0) for a, b in given.settings),
        (abs(given.objective - value) / case.scale, value_error / case.scale),
        _outside_range(case, given.precision),
    ]
    if given.rows is not None:
        error = (given.rows[1] + value_error) / case.scale
        pairs.append((abs(given.rows[0] - value) / case.scale, error))
    pairs = [(math.inf if math.isnan(difference) else difference, e) for difference, e in pairs]
    certain = max(pairs, key=lambda pair: pair[0] - pair[1])
    return certain if certain[0] - certain[1] > ATTRIBUTES else max(pairs, key=sum)


def _solution_differences(given: ReportedAttributes, case: Case) -> list[tuple[float, float]]:
    """Return relative errors of ``singular_values_``, ``threshold_`` and ``rank_``, with bounds.

    Threshold α and rank ρ must also fit: α < s_ρ and, unless ρ = r, s_{ρ+1} ≤ α.
    """
    optimum, width = case.bound, case.width
    values, reported = optimum.singular_values, host(given.singular_values)
    top = float(values.max(initial=0.0)) or 1.0
    count = min(len(reported), len(values))
    # Singular values outside the range of the inputs may be given as zeros or left out.
    others = [float(part.max(initial=0.0)) for part in (reported[count:], values[count:width])]
    rank, threshold = given.rank, float(given.threshold)
    following = float(values[rank]) if rank < min(len(values), width) else 0.0
    last = float(values[rank - 1]) if 0 < rank <= len(values) else math.inf
    last = -math.inf if rank > min(len(values), width) else last
    rounding = given.precision * np.abs(values[:count])
    distances = np.abs(reported[:count] - values[:count]) - rounding
    differences = [
        abs(threshold - optimum.threshold) / top,
        float(distances.max(initial=0.0)) / top,
        float(np.max(others)) / top,
        (following - threshold) / top if rank < width else 0.0,
        (threshold - last) / top,
        math.inf if len(reported) > width else 0.0,
    ]
    error = case.uncertainty / top
    return [(difference, error) for difference in differences]


def _function_differences(given: ReportedAttributes, case: Case) -> list[tuple[float, float]]:
    """Return relative errors of ``coef_``, mean prediction and ``mean_``, with bounds."""
    deviations, size = case.data.deviations, math.sqrt(case.scale)
    pairs = [] if given.coef is None else _coefficient_differences(given, case, deviations)
    if given.output_bias is not None:
        biases = zip(given.output_bias, given.output_bias_error, strict=True)
        pairs += [(float(bias) / size, float(error) / size) for bias, error in biases]
    if given.mean_shift is not None:
        pairs.append((deviations_away(np.abs(host(given.mean_shift)), deviations), MEAN_ERROR))
    return pairs


def deviations_away(shift: Matrix, deviations: Matrix) -> float:
    """Return the largest shift of a mean in standard deviations; ∞ for a constant feature."""
    unit = np.where(deviations > 0, deviations, 1.0)
    away = np.where(deviations > 0, shift / unit, np.where(shift > 0, math.inf, 0.0))
    return float(away.max())


def _coefficient_differences(
    given: ReportedAttributes, case: Case, deviations: Matrix
) -> list[tuple[float, float]]:
    """Return relative errors of ``coef_``, each with a bound on its rounding error.

    The first is relative to ‖UVᵀ‖. The second weights coefficients by the standard deviations of
    their features, and so measures the effect on the predictions.
    """
    product = case.left @ case.right.T
    wrong = np.abs(host(given.coef).reshape(product.shape) - product)
    wrong = np.clip(wrong - given.precision * np.abs(product), 0.0, None)
    noise = case.width * EPSILON * (np.abs(case.left) @ np.abs(case.right).T)
    plain, effect = float(np.linalg.norm(product)) or 1.0, math.sqrt(case.scale)
    norm = np.linalg.norm
    return [
        (float(norm(wrong)) / plain, float(norm(noise)) / plain),
        (float(norm(wrong * deviations)) / effect, float(norm(noise * deviations)) / effect),
    ]


def _outside_range(case: Case, precision: float) -> tuple[float, float]:
    """Return the relative norm of the part of V outside the inputs' range, and an error bound.

    The loss does not depend on it; the weights of smallest norm, which estimators return, have
    none. The error is infinite if directions of small variance cannot be distinguished from
    rounding errors.
    """
    lower, right = case.reduced.lower, case.right
    if lower is None or lower.shape[0] in (0, lower.shape[1]):
        return 0.0, 0.0
    condition, variances = case.reduced.condition, case.data.deviations**2
    variances = variances[variances > 0]
    # In features of very different scales the range is known to the precision of the largest.
    grading = math.sqrt(float(variances.max() / variances.min()))
    spread = (condition if case.data.root is None else math.sqrt(condition)) * grading
    if spread * CLEAR * RANGE_FACTOR * lower.shape[1] * EPSILON > 1.0:
        return 0.0, math.inf
    basis, _ = scipy.linalg.qr(lower.T, mode="economic")
    return max(relative_distance(basis @ (basis.T @ right), right) - precision, 0.0), 0.0


CERTIFIED = 1e-6
"""Weights count as optimal if their loss minus the global minimum is at most this times ‖M‖², the
part of E‖y‖² that least squares explains. Relative distances are compared with its square root,
since the loss is quadratic in them."""

BAND = 3.0
"""The rank is not judged if a singular value of the optimal product lies within this factor of the
limit below which singular values count as zero."""


def measure(
    problem: LinearProblem,
    weights: Weights,
    strength: float,
    *,
    tied: bool = False,
    tolerance: float = CERTIFIED,
    reported: ReportedAttributes | None = None,
) -> DropoutFigures:
    """Return the measured values from which the certificate of dropout weights is made."""
    if problem.rows is not None:
        problem, weights, reported = white_rows(problem, weights, strength, reported)
    matrix = problem.inputs is None and problem.root is None and not tied
    if (
        matrix
        and problem.reduction is None
        and is_large(problem.cross.shape, weights.left.shape[1])
    ):
        found = projected_matrix(problem.cross, weights, strength)
        problem, weights = found.problem, found.weights
    case = _case(problem, weights, strength, tied)
    level = math.sqrt(tolerance)
    value, value_error, scores = _value(case.data, case.left, case.right, strength)
    excess, excess_error = _excess(case)
    missed = _missed(case)
    undecided = case.reduced.undecided / case.explainable + missed
    gap_error = excess_error / case.explainable + undecided
    stationarity, slope = _stationarity(case)
    # False also if the rounding errors are too large to decide it.
    optimal = abs(excess) / case.explainable + gap_error <= tolerance
    curvature, reason = smallest_curvature(slope, stationarity, level, optimal)
    attributes = worst_attribute(reported, value, value_error, case)
    negligible = 0.0 if _is_learned(case) else level * math.sqrt(case.explainable)
    rank = _count(case.product.values, level, negligible)
    known, squared = case.optimum is not None, case.units.outputs**2
    return DropoutFigures(
        strength=strength,
        width=case.width,
        tied=tied,
        value=value * squared,
        excess=excess * squared,
        stationarity=stationarity,
        relative_variance=_relative_variance(scores, negligible),
        path_excess=_path_excess(scores, case.product.values, negligible),
        rank=rank,
        curvature=curvature,
        reason=reason,
        attributes=None if attributes is None else attributes[0],
        attributes_error=0.0 if attributes is None else attributes[1],
        gap_error=gap_error,
        error=_inner_error(case),
        undecided=undecided,
        decrease=None if known or optimal else _decrease(slope, case) * squared,
        precision=EPSILON if reported is None else reported.precision,
        evidence=_evidence(value, scores, case),
        missed=missed,
        **_of_data(case),
        **_against_optimum(case, tolerance, negligible, rank),
    )


def _of_data(case: Case) -> dict[str, Any]:
    """Return the values that depend on the data alone, by field of `DropoutFigures`."""
    squared, separation = case.units.outputs**2, _separation(case)
    return {
        "energy": case.data.energy * squared,
        "explainable": case.explainable * squared,
        "white": case.white,
        "condition": case.reduced.condition,
        "dropped": case.reduced.dropped,
        "from_rows": case.data.root is not None or case.data.reduction is not None,
        "inconsistency": case.reduced.inconsistency,
        "separated": separation.number,
        "sampling": separation.sentence,
    }


def _against_optimum(case: Case, tolerance: float, negligible: float, rank: int) -> dict[str, Any]:
    """Return the values that compare the weights with the optimum, by field."""
    optimum, level, squared = case.optimum, math.sqrt(tolerance), case.units.outputs**2
    known = optimum is not None
    return {
        "rank_band": _rank_band(case, level),
        "product_distance": _distance(case, tolerance * case.explainable),
        "optimum_error": _optimum_error(case),
        "lower_bound": None if known else case.bound.value * squared,
        "optimum": None if optimum is None else optimum.value * squared,
        "optimal_rank": None if optimum is None else _count(_shrunk(optimum), level, negligible),
        "subgradient": _subgradient(case, rank) if known else None,
        "paper_bound": _paper_bound(case.target, case.width) if case.tied and known else None,
    }


def _case(problem: LinearProblem, weights: Weights, strength: float, tied: bool) -> Case:
    """Return weights and second moments in units of order one, white inputs, and the minimum."""
    given = Moments.of(problem)
    units = DataUnits.of(given)
    data, white = given.in_units(units), given.white
    left, right = units.weights(host(weights.left), host(weights.right), tied=tied)
    # Tied layers share their coordinates, so white inputs must not be reduced a second time.
    plain = tied and white
    reduced = reduce_inputs(data._replace(inputs=None, root=None) if plain else data)
    inner = right if reduced.lower is None else reduced.lower @ right
    target = (reduced.matrix + reduced.matrix.T) / 2 if plain else reduced.matrix
    bound = _minimum(target, reduced, strength, left.shape[1], plain)
    optimum = None if tied and not white else bound
    product = _decomposed(left, inner)
    return Case(
        units,
        data,
        reduced,
        left,
        right,
        inner,
        product,
        target,
        optimum,
        bound,
        strength,
        tied,
        white,
    )


def _decrease(slope: Slope, case: Case) -> float:
    """Return by how much a descent (L-BFGS) from the given weights decreases the dropout loss."""
    # The gradient belongs to E[yxᵀ] of norm one, and f is quadratic in E[yxᵀ].
    return decrease(slope) * (float(np.linalg.norm(case.data.cross)) or 1.0) ** 2


def _separation(case: Case) -> Separation:
    """Return how many leading singular values of the data exceed sampling noise."""
    if case.reduced.rest > 0 and case.data.n_rows is not None:
        return Separation(None, "Only the leading singular values of the data were computed.")
    return separated_from_noise(
        case.bound.spectrum, _residual(case), case.inner.shape[0], case.data.n_rows, case.width
    )


def _residual(case: Case) -> Matrix | None:
    """Return the second moment of the residuals; None for an autoencoder or a given matrix."""
    matrix, outputs = case.reduced.matrix, case.data.outputs
    return None if outputs is None else outputs - matrix @ matrix.T


def _excess(case: Case) -> tuple[float, float]:
    """Return the loss minus its lower bound, and a bound on the rounding error of the loss.

    Both are taken without the loss of least squares, which may be much larger and would hide the
    difference. From a QR factorisation of the rows the errors are as small as those of the rows;
    from their second moment every product has the error of that moment, however small the squared
    norm is.
    """
    left, inner, matrix = case.left, case.inner, case.reduced.matrix
    lower, sizes = case.reduced.lower, np.abs(case.right)
    sizes = sizes if lower is None else np.abs(lower) @ sizes
    noise = (sum(case.data.cross.shape) + case.width + 10) * EPSILON
    rest, outgoing = matrix - left @ inner.T, (left**2).sum(axis=0)
    value = float((rest**2).sum() + case.strength * outgoing @ (inner**2).sum(axis=0))
    value += case.reduced.rest
    doubt = np.abs(left) @ sizes.T + np.abs(matrix)
    exact = case.data.root is not None or lower is None
    error = 2 * float(((np.abs(rest) if exact else doubt) * doubt).sum())
    error += (
        2
        * case.strength
        * float(outgoing @ (sizes * (np.abs(inner) if exact else sizes)).sum(axis=0))
    )
    error += value + noise * float((doubt**2).sum())
    return value - case.bound.reducible, noise * error


def _value(
    data: Moments, left: Matrix, right: Matrix, strength: float
) -> tuple[float, float, Matrix]:
    """Return the dropout loss, its rounding error, and the scores ‖uᵢ‖ √(vᵢᵀC vᵢ) of the units.

    The error is the sum of the absolute values of all terms, times ε and the number of terms.
    """
    noise = (sum(data.cross.shape) + left.shape[1] + 10) * EPSILON
    outgoing = (left**2).sum(axis=0)
    if data.root is not None:
        inward, outward = np.split(data.root, [data.cross.shape[1]], axis=1)
        hidden, spread = inward @ right, np.abs(inward) @ np.abs(right)
        residual, doubt = outward - hidden @ left.T, spread @ np.abs(left).T + np.abs(outward)
        incoming, wrong = (hidden**2).sum(axis=0), (np.abs(hidden) * spread).sum(axis=0)
        value = float((residual**2).sum() + strength * outgoing @ incoming) + data.rest
        error = 2 * float((np.abs(residual) * doubt).sum() + strength * outgoing @ wrong)
        return (
            value,
            noise * (error + noise * float((doubt**2).sum()) + value),
            np.sqrt(outgoing * incoming),
        )
    seen = right if data.inputs is None else data.inputs @ right
    sizes = np.abs(right) if data.inputs is None else np.abs(data.inputs) @ np.abs(right)
    incoming, wrong = (right * seen).sum(axis=0), (np.abs(right) * sizes).sum(axis=0)
    agreement = float((left * (data.cross @ right)).sum())
    fitted = float(((left.T @ left) * (right.T @ seen)).sum())
    value = data.energy - 2 * agreement + fitted + float(strength * outgoing @ incoming)
    sum_of_sizes = float(
        data.energy
        + 2 * (np.abs(left) * (np.abs(data.cross) @ np.abs(right))).sum()
        + ((np.abs(left).T @ np.abs(left)) * (np.abs(right).T @ sizes)).sum()
        + strength * outgoing @ wrong
    )
    return value, noise * sum_of_sizes, np.sqrt(outgoing * np.clip(incoming, 0.0, None))


def _decomposed(left: Matrix, inner: Matrix) -> Product:
    """Return the singular value decomposition of UV'ᵀ from QR factorisations of U and V'."""
    first, upper = scipy.linalg.qr(left, mode="economic")
    second, lower = scipy.linalg.qr(inner, mode="economic")
    P, values, Qt = scipy.linalg.svd(upper @ lower.T, full_matrices=False, lapack_driver="gesvd")
    return Product(first @ P, values, second @ Qt.T)


def _descending(symmetric: Matrix) -> tuple[Matrix, Matrix]:
    """Return eigenvalues of a symmetric matrix, largest first, and eigenvectors.

    LAPACK's driver "evd" is used; the solver uses "evr" or a Krylov iteration.
    """
    values, vectors = scipy.linalg.eigh(symmetric, driver="evd")
    return values[::-1], vectors[:, ::-1]


def _minimum(target: Matrix, reduced: Reduced, strength: float, width: int, tied: bool) -> Optimum:
    """Return the minimum of the dropout loss and the optimal product X of rank at most r.

    For a given X = UV'ᵀ the smallest Σ‖uᵢ‖²‖v'ᵢ‖² is ‖X‖_*²/r, attained by hidden units of equal
    norms. So the optimal X minimises ‖M − X‖² + (λ/r)‖X‖_*²: with the solution α of α =
    (λ/r)Σ_{i≤r} (sᵢ − α)₊ it has the singular values (sᵢ − α)₊, i ≤ r, and the minimum is Σ_{i≤r}
    min(sᵢ, α)² + Σ_{i>r} sᵢ² + rα²/λ, without `floor`. For tied weights M is symmetric and s are
    its positive eigenvalues.
    """
    if tied:
        values, vectors = _descending(target)
        values, towards = np.clip(values, 0.0, None), vectors
    else:
        wide = target.shape[0] < target.shape[1]
        _, vectors = _descending(target @ target.T if wide else target.T @ target)
        towards = target.T @ vectors if wide else target @ vectors
        # ‖Mw‖ is accurate where the eigenvalue of the Gram matrix, its square, is not.
        values = np.sqrt((towards**2).sum(axis=0))
        order = np.argsort(-values, kind="stable")
        values, vectors, towards = values[order], vectors[:, order], towards[:, order]
    leading, rest = values[:width], values[width:]
    level = threshold(leading, strength, width)
    rank = int((leading > level).sum())
    share = 1.0 - level / leading[:rank]
    if tied:
        product = (vectors[:, :rank] * (leading[:rank] - level)) @ vectors[:, :rank].T
    elif wide:
        product = (vectors[:, :rank] * share) @ towards[:, :rank].T
    else:
        product = (towards[:, :rank] * share) @ vectors[:, :rank].T
    tail = float((rest**2).sum()) + reduced.rest
    missed = float((reduced.matrix**2).sum() - (values**2).sum()) if tied else 0.0
    reducible = smallest_loss(leading, tail + missed, strength, width)
    value = reducible + reduced.floor
    return Optimum(value, reducible, level, rank, values[: width + 1], tail, product, values)


def _missed(case: Case) -> float:
    """Return by how much singular values that were not computed may reduce the minimum."""
    upper, found = case.data.largest_values, case.bound
    if upper is None:
        return 0.0
    leading = found.singular_values[: case.width]
    saving = possible_saving(leading, found.tail, upper, case.strength, case.width)
    return saving / case.explainable


def _shrunk(optimum: Optimum) -> Matrix:
    """Return the nonzero singular values of the optimal product of the weights."""
    return optimum.singular_values[: optimum.rank] - optimum.threshold


def _count(values: Matrix, level: float, negligible: float) -> int:
    """Return how many singular values exceed `level` times the largest one, and `negligible`."""
    largest = float(values.max(initial=0.0))
    return int((values > max(level * largest, negligible)).sum()) if largest > 0 else 0


def _is_learned(case: Case) -> bool:
    """Tell whether the optimal product of the weights is not zero, up to rounding errors.

    Otherwise small weights are compared with the target instead of with their own size.
    """
    noise = (sum(case.target.shape) + 10) * EPSILON * float(np.linalg.norm(case.target))
    top = float((case.bound.singular_values - case.bound.threshold).max(initial=0.0))
    return top > noise or noise == 0.0


def _optimum_error(case: Case) -> float:
    """Return a bound on the relative rounding error of the optimal product."""
    top = float(_shrunk(case.bound).max(initial=0.0))
    return math.sqrt(case.bound.rank) * case.uncertainty / top if top > 0 else 0.0


def _rank_band(case: Case, level: float) -> tuple[int, int] | tuple[None, None]:
    """Return the smallest and the largest rank that the optimal product may have.

    A singular value is doubtful within the factor `BAND` of the limit, or within its rounding
    error.
    """
    optimum = case.optimum
    if optimum is None:
        return None, None
    # Differences sᵢ − α of the removed singular values are negative, but perhaps by rounding only.
    shrunk = optimum.singular_values[: case.width] - optimum.threshold
    doubt, top = case.uncertainty, max(float(shrunk.max(initial=0.0)), 0.0)
    if top == 0.0:
        return 0, 0
    lowest = int((shrunk - doubt > BAND * level * (top + doubt)).sum())
    return lowest, int((shrunk + doubt > level / BAND * (top - doubt)).sum())


def _distance(case: Case, allowed: float) -> float | None:
    """Return ‖X − X*‖ / ‖X*‖ for the product X of the weights and the optimal product X*.

    It is divided by ‖M‖ if X* is zero, and None if X* is unknown or not unique: if s_r and s_{r+1}
    are so close that another product has the minimal loss up to `allowed`.
    """
    optimum, width = case.optimum, case.width
    if optimum is None:
        return None
    if optimum.rank == width and len(optimum.singular_values) > width:
        last, following = optimum.singular_values[width - 1 : width + 1]
        if last**2 - following**2 <= allowed:
            return None
    product = case.left @ case.inner.T
    if not _is_learned(case):
        return float(np.linalg.norm(product - optimum.product)) / math.sqrt(case.explainable)
    return relative_distance(product, optimum.product)


def _subgradient(case: Case, rank: int) -> float:
    """Return by how much the product X = PΣQᵀ of the weights violates its optimality conditions.

    With α = λ‖X‖_*/r and N = M − X − αPQᵀ, X is optimal if and only if PᵀN = 0, NQ = 0 and no
    singular value of N exceeds α or, if X has the full rank r, α + σᵣ. For tied weights only the
    largest eigenvalue of N counts. The violation is divided by ‖M‖.
    """
    target, product, width = case.target, case.product, case.width
    P, Q = product.left[:, :rank], product.right[:, :rank]
    threshold = case.strength * float(product.values.sum()) / width
    normal = target - (product.left * product.values) @ product.right.T - threshold * P @ Q.T
    inside = max(float(np.linalg.norm(P.T @ normal)), float(np.linalg.norm(normal @ Q)))
    outside = normal - P @ (P.T @ normal)
    outside = outside - (outside @ Q) @ Q.T
    if case.tied:
        largest = _largest_eigenvalue((outside + outside.T) / 2)
    else:
        tall = outside.shape[0] >= outside.shape[1]
        gram = outside.T @ outside if tall else outside @ outside.T
        largest = math.sqrt(max(_largest_eigenvalue(gram), 0.0))
    allowed = threshold + (float(product.values[rank - 1]) if 0 < rank == width else 0.0)
    return max(inside, largest - allowed, 0.0) / math.sqrt(case.explainable)


def _largest_eigenvalue(symmetric: Matrix) -> float:
    """Return the largest eigenvalue of a symmetric matrix; 0 if it is empty."""
    if len(symmetric) == 0:
        return 0.0
    last = len(symmetric) - 1
    return float(scipy.linalg.eigh(symmetric, eigvals_only=True, subset_by_index=[last, last])[0])


def _stationarity(case: Case) -> tuple[float, Slope]:
    """Return the relative norm of the gradient of the dropout loss, and the loss as a `Slope`.

    For separate layers the inputs are whitened and both weight vectors of a hidden unit get equal
    norms. Neither changes the loss; they make the result independent of the units of the inputs.
    """
    data, left, right, inner, width = case.data, case.left, case.right, case.inner, case.width
    strength, tied = case.strength, case.tied
    if tied:
        shapes = (left.shape[0], right.shape[0], width)
        cross, inputs, point = data.cross, data.inputs, left.ravel()
    else:
        ratio = np.sqrt((inner**2).sum(axis=0)), np.sqrt((left**2).sum(axis=0))
        usable = (ratio[0] > 0) & (ratio[1] > 0)
        turn = np.sqrt(np.divide(ratio[0], ratio[1], out=np.ones(width), where=usable))
        point = np.concatenate([(left * turn).ravel(), (inner / turn).ravel()])
        shapes = (left.shape[0], inner.shape[0], width)
        cross, inputs = case.reduced.matrix, None
    unit = float(np.linalg.norm(cross)) or 1.0
    slope = Slope(cross / unit, inputs, strength, tied, point / math.sqrt(unit), shapes)
    # Where the optimal weights are zero, weights are small compared with √‖M‖, one in this scale.
    length = max(float(np.linalg.norm(slope.point)), 0.0 if _is_learned(case) else 1.0)
    size = (4 if tied else 2) * slope.size * length
    # The norm of the whole least-squares map is larger than that of its part in these coordinates.
    inside = math.sqrt(max(1.0 - case.reduced.rest / case.explainable, 0.0))
    return inside * float(np.linalg.norm(slope(slope.point))) / (size if size > 0 else 1.0), slope


def _relative_variance(scores: Matrix, negligible: float) -> float:
    """Return the variance of the scores divided by their squared mean; 0 if all are negligible."""
    mean = float(scores.mean())
    return float(((scores / mean - 1.0) ** 2).mean()) if (scores > negligible).any() else 0.0


def _path_excess(scores: Matrix, values: Matrix, negligible: float) -> float:
    """Return the squared path norm divided by its minimum for the same product, minus 1.

    ψ² = Σ scoresᵢ² ≥ (Σ scoresᵢ)²/r by Cauchy–Schwarz, and Σ ‖uᵢ‖‖v'ᵢ‖ is at least the nuclear norm
    of UV'ᵀ, whose square divided by r is therefore the minimum.
    """
    nuclear = float(values.sum())
    if not (scores > negligible).any():
        return 0.0
    if nuclear == 0.0:
        return math.inf
    return len(scores) * float(((scores / nuclear) ** 2).sum()) - 1.0


def _inner_error(case: Case) -> float:
    """Return a bound on the relative rounding errors of V' and M, and of what follows from them."""
    reduced, right, inner = case.reduced, case.right, case.inner
    noise = (sum(reduced.matrix.shape) + right.shape[1] + 10) * EPSILON
    if reduced.lower is None:
        size = float(np.linalg.norm(reduced.matrix)) or 1.0
        return float(8 * (noise + reduced.doubts.max(initial=0.0) + reduced.blur / size))
    wrong = noise * (np.abs(reduced.lower) @ np.abs(right))
    wrong += reduced.doubts[:, None] * np.abs(inner)
    sizes = np.sqrt((wrong**2).sum(axis=0))
    lengths = np.sqrt((inner**2).sum(axis=0))
    ratios = np.divide(sizes, lengths, out=np.zeros(len(sizes)), where=lengths > 0)
    target = float(np.linalg.norm(reduced.matrix)) or 1.0
    return float(8 * (noise + ratios.max() + reduced.blur / target))


def _paper_bound(target: Matrix, width: int) -> float:
    """Return r s_r / Σ_{i≤r} (sᵢ − s_r), where optimal tied weights lose full rank.

    s are the positive eigenvalues of the target (Mianjy et al. 2018, Theorem 4.3).
    """
    values = np.clip(scipy.linalg.eigvalsh(target)[::-1], 0.0, None)
    if len(values) < width or values[width - 1] <= 10 * len(values) * EPSILON * values[0]:
        return 0.0
    excess = float((values[:width] - values[width - 1]).sum())
    return width * float(values[width - 1]) / excess if excess > 0 else math.inf


def _evidence(value: float, scores: Matrix, case: Case) -> dict[str, Any]:
    """Return numbers by name from which the measured values can be computed again by hand."""
    reduced, optimum, unit = case.reduced, case.optimum, case.units.outputs
    found = {
        "strength": case.strength,
        "width": case.width,
        "energy": case.data.energy * unit**2,
        "value": value * unit**2,
        "importance": scores * unit,
        "product_singular_values": case.product.values * unit,
        "floor": reduced.floor * unit**2,
        "target_squared_norm": (float((reduced.matrix**2).sum()) + reduced.rest) * unit**2,
        "condition": reduced.condition,
        "dropped_directions": reduced.dropped,
        "n_rows": case.data.n_rows,
    }
    if optimum is None:
        return found | {"lower_bound": case.bound.value * unit**2}
    return found | {
        "bound": optimum.value * unit**2,
        "singular_values": optimum.singular_values * unit,
        "threshold": optimum.threshold * unit,
        "rank": optimum.rank,
        "tail": optimum.tail * unit**2,
    }
