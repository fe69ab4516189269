"""Measured values for certificates of dropout weights, from the weights and the data alone.

Nothing here calls the solver, its closed forms or its whitening: every formula that both need is
implemented a second time, in another way. The solver whitens the inputs (transforms them so that
their second moment is the identity) by an eigendecomposition and decomposes the least-squares map M
by singular values; here the inputs are reduced by a pivoted Cholesky or QR factorisation, the
singular values come from the eigenvectors of a Gram matrix, the threshold from bisection, and
derivatives from finite differences that are exact for polynomials of degree four.

Notation: U and V are the outgoing and incoming weights of the r hidden units, λ is the strength of
dropout, x are the inputs, y the outputs, and C = E[xxᵀ] = RᵀR with a triangular factor R. With V' =
RV and the least-squares map M = E[yxᵀ]R⁻¹ the expected dropout loss is f = ‖M − UV'ᵀ‖² +
λΣ‖uᵢ‖²‖v'ᵢ‖² + floor, where floor = E‖y‖² − ‖M‖² is the loss of least squares. s₁ ≥ s₂ ≥ … are the
singular values of M. All of it is computed in units in which inputs and outputs are of the order of
one (`lucidae.dropout.reduction.DataUnits`).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy.linalg

from lucidae.dropout.attributes import worst_attribute
from lucidae.dropout.differences import Slope, decrease, smallest_curvature
from lucidae.dropout.figures import EPSILON, DropoutFigures, ReportedAttributes
from lucidae.dropout.noise import Separation, separated_from_noise
from lucidae.dropout.objectives import LinearProblem, Weights
from lucidae.dropout.projection import is_large, projected_matrix
from lucidae.dropout.reduction import (
    Case,
    DataUnits,
    Moments,
    Optimum,
    Product,
    Reduced,
    host,
    reduce_inputs,
    relative_distance,
)
from lucidae.dropout.spectrum_bounds import possible_saving, smallest_loss, threshold
from lucidae.dropout.verified_rows import white_rows

Matrix = np.ndarray[Any, Any]

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
    """Return the values that compare the weights with the optimum, by field of `DropoutFigures`.

    `rank` is the rank of the product of the weights, and a singular value below `negligible` does
    not count for the rank of the optimal product. The optimum is not known for tied weights of
    correlated inputs.
    """
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
    """Return a `Case`: weights and second moments as NumPy arrays, and the minimal loss.

    The inputs are whitened: transformed so that their second moment is the identity.
    """
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
    """Return the second moment of the residuals of least squares; None for an autoencoder.

    It is also None if a matrix was given instead of data.
    """
    matrix, outputs = case.reduced.matrix, case.data.outputs
    return None if outputs is None else outputs - matrix @ matrix.T


def _excess(case: Case) -> tuple[float, float]:
    """Return the loss minus its lower bound, and a bound on the rounding error of the loss.

    Both losses are computed without the loss of least squares, which may be much larger than both
    and would hide their difference: ‖M − UV'ᵀ‖² + λΣ‖uᵢ‖²‖v'ᵢ‖², with the least-squares map M for
    white inputs, the outgoing weights U with columns uᵢ, the incoming weights V' for white inputs
    with columns v'ᵢ, and the strength λ of dropout. If the white inputs come from a QR
    factorisation of the rows, the errors are as small as those of the rows. If they come from the
    second moment of the rows, every product in a squared norm has the error of that moment, however
    small the norm is.
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
    """Return the dropout loss, a bound on its rounding error, and the score of every hidden unit.

    The score is the importance ‖uᵢ‖ √(vᵢᵀC vᵢ), with the outgoing and incoming weights uᵢ and vᵢ of
    the unit, columns of `left` and `right`, and the second moment C of the inputs. The error bound
    is the sum of the absolute values of all terms, times the rounding unit and the number of terms.
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
    """Return the singular value decomposition of UV'ᵀ from QR factorisations of U and V'.

    U (`left`) are the outgoing weights, V' (`inner`) the incoming weights for white inputs.
    """
    first, upper = scipy.linalg.qr(left, mode="economic")
    second, lower = scipy.linalg.qr(inner, mode="economic")
    P, values, Qt = scipy.linalg.svd(upper @ lower.T, full_matrices=False, lapack_driver="gesvd")
    return Product(first @ P, values, second @ Qt.T)


def _descending(symmetric: Matrix) -> tuple[Matrix, Matrix]:
    """Return the eigenvalues of a symmetric matrix, largest first, and their eigenvectors.

    LAPACK's driver "evd" is used; the solver uses "evr" or a Krylov iteration.
    """
    values, vectors = scipy.linalg.eigh(symmetric, driver="evd")
    return values[::-1], vectors[:, ::-1]


def _minimum(target: Matrix, reduced: Reduced, strength: float, width: int, tied: bool) -> Optimum:
    """Return the minimum of the dropout loss and the optimal product X of rank at most r.

    Let the inputs be whitened, so that their second moment is the identity, and let M (`target`) be
    the least-squares map, λ the strength of dropout, and r the number of hidden units. The product
    is X = UV'ᵀ, for the outgoing weights U with columns uᵢ and the incoming weights V' of whitened
    inputs with columns v'ᵢ. Up to a constant, the loss of least squares (`reduced.floor`), the
    dropout loss is ‖M − X‖² + λΣ‖uᵢ‖²‖v'ᵢ‖².

    For a given X the smallest Σ‖uᵢ‖²‖v'ᵢ‖² is ‖X‖_*²/r, with the nuclear norm ‖·‖_*; it is attained
    by weights whose hidden units have equal norms. So the optimal X minimises
    ‖M − X‖² + (λ/r)‖X‖_*². Let s be the singular values of M in descending order, and let α be the
    solution of α = (λ/r)Σ_{i≤r} (sᵢ − α)₊. The optimal X has the singular values (sᵢ − α)₊ for
    i ≤ r, and the minimum is Σ_{i≤r} min(sᵢ, α)² + Σ_{i>r} sᵢ² + rα²/λ, without the constant.

    For tied weights M is symmetric and s are its positive eigenvalues, because UUᵀ is positive
    semidefinite.
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
    """Return by how much singular values that were not computed may reduce the minimum.

    It is relative to the part of E‖y‖² that least squares explains, for outputs y.
    """
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

    If it is zero (tied weights, and a target without positive eigenvalues), small weights are
    compared with the target instead of with their own size.
    """
    noise = (sum(case.target.shape) + 10) * EPSILON * float(np.linalg.norm(case.target))
    top = float((case.bound.singular_values - case.bound.threshold).max(initial=0.0))
    return top > noise or noise == 0.0


def _optimum_error(case: Case) -> float:
    """Return a bound on the rounding error of the optimal product of the weights.

    The bound is relative to the norm of this product.
    """
    top = float(_shrunk(case.bound).max(initial=0.0))
    return math.sqrt(case.bound.rank) * case.uncertainty / top if top > 0 else 0.0


def _rank_band(case: Case, level: float) -> tuple[int, int] | tuple[None, None]:
    """Return the smallest and the largest rank that the optimal product of the weights may have.

    A singular value of the optimal product counts as nonzero if it exceeds `level` times the
    largest one. This is doubtful if it lies within the factor `BAND` of this limit, or closer to it
    than its rounding error. The result is (None, None) if the optimum is not known.
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

    If X* is zero, the distance is divided by ‖M‖, with the least-squares map M for white inputs.
    The result is None if the optimum is not known, or if it is not unique: if the r-th and the next
    singular value of M, with r hidden units, are so close that another product has the minimal loss
    up to `allowed`.
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
    """Return by how much the product of the weights violates its optimality conditions.

    The product is X = PΣQᵀ (singular value decomposition, σᵢ on the diagonal of Σ, rank `rank`).
    With the least-squares map M for white inputs, the strength λ of dropout, r hidden units, the
    nuclear norm ‖·‖_*, α = λ‖X‖_*/r and N = M − X − αPQᵀ, X is optimal if and only if PᵀN = 0, NQ =
    0 and no singular value of N exceeds a limit: α or, if X has the full rank r, α + σᵣ, the
    smallest singular value of M that X contains. For tied weights only the largest eigenvalue of N
    counts. The violation is divided by ‖M‖.
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

    For separate layers the inputs are whitened, and each hidden unit is scaled so that its outgoing
    and incoming weights have equal norms, if both are nonzero. Neither changes the loss; they make
    the result independent of the units of the inputs. The matrix that the product of the weights
    approximates is divided by its norm, and the weights by the square root of that norm.
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
    """Return the variance of the hidden units' importance scores divided by their squared mean.

    The score of a unit is the product of the norms of its outgoing and incoming weights. The result
    is 0 if no score exceeds `negligible`.
    """
    mean = float(scores.mean())
    return float(((scores / mean - 1.0) ** 2).mean()) if (scores > negligible).any() else 0.0


def _path_excess(scores: Matrix, values: Matrix, negligible: float) -> float:
    """Return the squared path norm divided by its minimum for the same product, minus 1.

    The squared path norm is ψ² = Σ scoresᵢ², with the importance scores ‖uᵢ‖‖v'ᵢ‖ of the r hidden
    units, whose outgoing and incoming weights are the columns uᵢ of U and v'ᵢ of V'. By
    Cauchy–Schwarz ψ² ≥ (Σ scoresᵢ)²/r, and Σ ‖uᵢ‖‖v'ᵢ‖ is at least the nuclear norm of the product
    UV'ᵀ, the sum of its singular values (`values`). The minimum is therefore its square divided by
    r. The result is 0 if no score exceeds `negligible`.
    """
    nuclear = float(values.sum())
    if not (scores > negligible).any():
        return 0.0
    if nuclear == 0.0:
        return math.inf
    return len(scores) * float(((scores / nuclear) ** 2).sum()) - 1.0


def _inner_error(case: Case) -> float:
    """Return a bound on the relative rounding errors of weights and map for whitened inputs.

    Whitened inputs have the identity as second moment. The bound holds for the incoming weights and
    for the least-squares map, and for all values that are computed from them.
    """
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
    """Return the strength of dropout at which the optimal tied weights have rank below r.

    Tied weights are shared by both layers, and r is the number of hidden units. The strength is r
    s_r / Σ_{i≤r} (sᵢ − s_r), with the positive eigenvalues sᵢ of the target that the product of the
    weights approximates (Mianjy et al. 2018, Theorem 4.3).
    """
    values = np.clip(scipy.linalg.eigvalsh(target)[::-1], 0.0, None)
    if len(values) < width or values[width - 1] <= 10 * len(values) * EPSILON * values[0]:
        return 0.0
    excess = float((values[:width] - values[width - 1]).sum())
    return width * float(values[width - 1]) / excess if excess > 0 else math.inf


def _evidence(value: float, scores: Matrix, case: Case) -> dict[str, Any]:
    """Return numbers by name from which the measured values can be computed again by hand.

    `value` is the loss of the weights and `scores` are the importance scores of the hidden units.
    """
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
