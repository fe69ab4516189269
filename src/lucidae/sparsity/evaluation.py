"""Evaluation of relevances for the verifier, by QR of a square root of Σ.

Σ is never formed, so that results are accurate to ε√cond(Σ). If the coefficients of column j have
the prior N(0, wⱼB) over the responses and B = VΛVᵀ, the responses XV are independent, and response
t has the relevances λₜw: each is evaluated by a QR decomposition of its own.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from scipy.linalg import solve_triangular

from lucidae.sparsity.columns import (
    SparseColumns,
    Transformed,
    column_blocks,
    row_keys,
    without_constants,
)

CORRELATION_STEP = 0.01
"""Change of artanh ρ to the correlations at which the energy is compared."""

LARGEST_CORRELATION = 0.999
"""Largest absolute correlation of successive responses that the estimator learns."""

UNIT = float(np.finfo(float).eps)

REACHED = 32.0
"""Error of solvers that form Σ in float64, in units of ε cond(Σ)."""


class Sample(NamedTuple):
    """Rows of data as they were given: d rows, κ columns and n responses."""

    dictionary: Any  # (d, κ): the dictionary Φ
    responses: Any  # (d, n): the responses X
    weights: Any = None  # (d,): weights of the rows; by default every row has weight 1
    intercept: bool = False  # whether the model has an intercept, so that rows are centred
    # (d, d): covariance of the noise of the rows without the factor γ, or its diagonal
    noise_cov: Any = None


class Weighted(NamedTuple):
    """Rows after centring, multiplication by the roots of their weights and rescaling."""

    dictionary: Any  # (d, κ): the d rows of positive weight
    responses: Any
    weights: Any  # (d,): weights of these rows
    # (κ,): exponents of the powers of two by which each column and all responses were divided
    shifts: Any
    shift: int
    # sum of the weights, and the number of independent rows: the same sum, minus one if there is an
    # intercept
    total: float
    dimension: float
    distinct: int  # number of different rows
    parts: int = 1  # 2 if a number of the data has an imaginary part other than zero, otherwise 1
    # log-determinant of the covariance of the noise on its range, without the factor γ, and
    # orthogonal to the intercept; zero for white noise
    volume: float = 0.0
    # share of the sum of squares of the centred responses outside the range of this covariance
    outside: float = 0.0
    # (d,): with a noise covariance and an intercept, the unit vector along its whitened column of
    # ones
    axis: Any = None
    # (p, κ): with a noise covariance, the p rows as given that have a positive weight, centred and
    # divided by the powers of two of the columns: the rows for which the estimator predicts
    points: Any = None

    @property
    def mean_square(self) -> float:
        """Sum of squares of responses over distinct rows and responses, the unit of γ."""
        power = float((np.abs(self.responses) ** 2).sum())
        return power / (self.distinct * int(self.responses.shape[1]))


def weighted_rows(sample: Sample, labels: Any) -> Weighted:
    """Return the rows of positive weight, centred, weighted and divided by powers of two."""
    Phi, X = sample.dictionary, sample.responses
    weights = np.ones(Phi.shape[0]) if sample.weights is None else sample.weights
    if (weights <= 0).any():
        Phi, X, weights = Phi[weights > 0], X[weights > 0], weights[weights > 0]
    total = float(weights.sum())
    count = distinct(Phi, X)
    parts = parts_of(Phi, X)
    X = without_constants(X, weights) if sample.intercept else X
    X = X if sample.weights is None else X * np.sqrt(weights)[:, None]
    Phi, shifts = _scaled_columns(Phi, weights, sample, labels)
    shift = int(_exponents(np.abs(X).max()))
    return Weighted(
        Phi, times_power(X, -shift), weights, shifts, shift, total,
        total - float(sample.intercept), count, parts,
    )  # fmt: skip


def rescaled(
    Phi: Any, X: Any, weights: Any, labels: Any, sizes: tuple[float, float, int, int],
    *noise: float,
) -> Weighted:  # fmt: skip
    """Return rows divided by powers of two, with other fields of `Weighted` as given."""
    peaks = largest_in(np.abs(Phi).max(axis=0), labels)  # columns of a group share their unit
    shifts, shift = _exponents(peaks), int(_exponents(np.abs(X).max()))
    return Weighted(
        times_power(Phi, -shifts), times_power(X, -shift), weights, shifts, shift, *sizes, *noise
    )


def parts_of(Phi: Any, X: Any) -> int:
    """Return 2 if a number of the data has an imaginary part other than zero, otherwise 1."""
    return 1 + any(np.iscomplexobj(part) and bool(part.imag.any()) for part in (Phi, X))


def distinct(Phi: Any, X: Any) -> int:
    """Return the number of different rows of the dictionary and the responses taken together."""
    return len(set(row_keys(Phi, X)))


def _scaled_columns(Phi: Any, weights: Any, sample: Sample, labels: Any) -> tuple[Any, Any]:
    """Return the columns divided by powers of two, one for each group, and the exponents."""

    def exponents(peaks: Any) -> Any:
        return _exponents(largest_in(peaks, labels))

    if scipy.sparse.issparse(Phi):
        columns = SparseColumns.of(Phi, weights, sample.intercept, exponents)
        return columns, columns.shifts
    Phi = without_constants(Phi, weights) if sample.intercept else Phi
    Phi = Phi if sample.weights is None else Phi * np.sqrt(weights)[:, None]
    shifts = exponents(np.abs(Phi).max(axis=0))
    return times_power(Phi, -shifts), shifts


def _exponents(peaks: Any) -> Any:
    """Return the exponents e for which the numbers `peaks` divided by 2^e lie in [0.5, 1)."""
    return np.where(peaks > 0, np.frexp(peaks)[1], 0)


def times_power(values: Any, exponents: Any) -> Any:
    """Return real or complex numbers times two to the power of the exponents, without rounding."""
    if not np.iscomplexobj(values):
        return np.ldexp(values, exponents)
    return np.ldexp(values.real, exponents) + 1j * np.ldexp(values.imag, exponents)


def squares(values: Any) -> Any:
    """Return the squares of the absolute values of real or complex numbers."""
    return values.real**2 + values.imag**2 if np.iscomplexobj(values) else values**2


def column_powers(values: Any) -> Any:
    """Return the squared norms of the columns of a real or complex matrix."""
    if np.iscomplexobj(values):
        return squares(values).sum(axis=0)
    return np.einsum("ij,ij->j", values, values)  # allocates no array of this size


class Evaluation(NamedTuple):
    """Quantities that follow from the relevances w and the noise variance γ."""

    relevance: Any  # (κ,): the relevances w and the noise variance γ
    noise: float
    # (m, κ): the matrices R⁻ᵀΦ and ΦᵀΣ⁻¹Y, where Σ = RᵀR with a triangular matrix R of m rows, and
    # Y is a matrix of p columns with YYᵀ = XXᵀ
    whitened: Any
    loading: Any
    curvature: Any  # (κ,): for each column φ of Φ, z = φᵀΣ⁻¹φ and Q = ‖φᵀΣ⁻¹X‖²/n
    alignment: Any
    mean: Any  # (κ, n): the posterior mean U = WΦᵀΣ⁻¹X of the coefficients
    fit: float  # the data term tr(XXᵀΣ⁻¹)/n, log|Σ| on the span of Φ, and ‖X − ΦU‖²/n
    log_determinant: float
    residual: float
    rounding: float  # bound on the relative rounding error of R
    reach: float  # expected error of solvers that form Σ in float64
    # (κ,): twice the log-likelihood that is lost without each column, and bounds on the rounding
    # errors, if the responses are correlated
    evidence: Any = None
    # (d, n): posterior variance of each predicted mean, divided by γ, if the responses are
    # correlated
    leverage: Any = None


def evaluate_relevances(rows: Weighted, w: Any, noise: float) -> Evaluation:
    """Return the quantities that follow from relevances `w` and a noise variance on given rows."""
    Phi, X, outside = _in_span(rows.dictionary, rows.responses)
    size, n = X.shape
    used = np.flatnonzero(w)
    scaled = Phi[:, used] * np.sqrt(w[used])
    # With A = [W^½Φᵀ; √γ I] = QR, AᵀA = Σ = RᵀR, and cond(R) = √cond(Σ).
    R = triangle_of(np.vstack([scaled.conj().T, np.sqrt(noise) * np.eye(size)]))
    targets = solve_triangular(R, X, trans="C", check_finite=False)
    # Q needs the responses through their Gram matrix alone.
    root = triangle_of(targets.conj().T).conj().T if n > size else targets
    columns, loading, curvature, alignment = _of_columns(Phi, R, root)
    mean = np.zeros((Phi.shape[1], n), np.result_type(Phi.dtype, X))
    mean[used] = w[used, None] * (columns[:, used].conj().T @ targets)
    precise = solve_triangular(R, targets, check_finite=False)
    largest = min(float(np.linalg.norm(R, 1) * np.linalg.norm(R, np.inf)), float(squares(R).sum()))
    condition = max(largest / noise, 1.0)
    unit = float(np.finfo(float).eps)
    return Evaluation(
        w, noise, columns, loading, curvature, alignment / n,
        mean, (float(squares(targets).sum()) + outside / noise) / n,
        2.0 * float(np.log(np.abs(np.diagonal(R))).sum()),
        (float(squares(noise * precise).sum()) + outside) / n,
        unit * condition**0.5 * 4.0 * (size + used.size + 8) ** 0.5,
        REACHED * unit * condition,
    )  # fmt: skip


def _of_columns(Phi: Any, R: Any, root: Any) -> tuple[Any, Any, Any, Any]:
    """Return R⁻ᵀΦ and ΦᵀR⁻¹A, and the squared norms of their columns and rows."""

    def whiten(block: Any) -> Any:
        return solve_triangular(R, block, trans="C", check_finite=False)

    if not isinstance(Phi, SparseColumns):
        columns = whiten(Phi)
        loading = columns.conj().T @ root
        return columns, loading, column_powers(columns), squares(loading).sum(axis=1)
    curvature, alignment = np.zeros(Phi.shape[1]), np.zeros(Phi.shape[1])
    for part, block in column_blocks(Phi):
        columns = whiten(block)
        curvature[part] = column_powers(columns)
        alignment[part] = squares(columns.conj().T @ root).sum(axis=1)
    load = Transformed(Phi, lambda block: whiten(block).conj().T @ root)
    return Transformed(Phi, whiten), load, curvature, alignment


def leverages(rows: Weighted, w: Any, noise: float) -> Any:
    """Return the diagonal of ΦWΦᵀΣ⁻¹: posterior variances at the weighted rows, divided by γ."""
    used = np.flatnonzero(w)
    scaled = rows.dictionary[:, used] * np.sqrt(w[used])
    if used.size <= scaled.shape[0]:
        # With [S; √γ I] = QR and S = ΦW^½, S(SᵀS + γI)⁻¹Sᵀ is the Gram matrix of Q's first rows.
        basis = np.linalg.qr(np.vstack([scaled, np.sqrt(noise) * np.eye(used.size)]))[0]
        return squares(basis[: scaled.shape[0]]).sum(axis=1)
    R = triangle_of(np.vstack([scaled.conj().T, np.sqrt(noise) * np.eye(scaled.shape[0])]))
    # ΦWΦᵀΣ⁻¹ = I − γΣ⁻¹, and with Σ = RᵀR the diagonal of Σ⁻¹ has the squared columns of R⁻ᵀ.
    inverse = solve_triangular(R, np.eye(R.shape[0]), trans="C", check_finite=False)
    return 1.0 - noise * squares(inverse).sum(axis=0)


def evaluate_correlated(
    rows: Weighted, w: Any, noise: float, covariance: Any, labels: Any = None
) -> Evaluation:
    """Return the `Evaluation` if coefficients have the prior covariance wB over the responses.

    Curvature, alignment, data term, log-determinant and residual are means over the responses.
    """
    values, vectors = np.linalg.eigh(covariance)
    values = np.maximum(values, 0.0)
    rotated, n = rows.responses @ vectors, values.size
    curvature, alignment, evidence, error = (np.zeros(w.size) for _ in range(4))
    means, sums, spread = np.zeros((w.size, n)), np.zeros(3), np.zeros((rotated.shape[0], n))
    rounding, reach = 0.0, 0.0
    for t, value in enumerate(values):
        one = rows._replace(responses=rotated[:, t : t + 1])
        at = evaluate_relevances(one, value * w, noise)
        curvature += value * at.curvature / n
        alignment += value * at.alignment / n
        means[:, t] = at.mean[:, 0]
        sums += np.array([at.fit, at.log_determinant, at.residual]) / n
        spread[:, t] = leverages(rows, value * w, noise)
        rounding, reach = max(rounding, at.rounding), max(reach, at.reach)
        lost, inaccuracy = _lost_evidence(at, labels)
        evidence += lost
        error += inaccuracy
    fit, log_determinant, residual = (float(each) for each in sums)
    return Evaluation(
        w, noise, None, None, curvature, alignment, means @ vectors.T, fit, log_determinant,
        residual, rounding, reach, (evidence, error), spread @ (vectors**2).T,
    )  # fmt: skip


def _lost_evidence(at: Evaluation, labels: Any) -> tuple[Any, Any]:
    """Return twice the log-likelihood of one response that is lost without each column or group.

    Without a group Σ becomes Σ − wΦ_gΦ_gᵀ, with the determinant |Σ||M|, M = I − wΦ_gᵀΣ⁻¹Φ_g, and
    the inverse Σ⁻¹ + wΣ⁻¹Φ_gM⁻¹Φ_gᵀΣ⁻¹ (Woodbury). The second array bounds rounding errors.
    """
    w, evidence, error = at.relevance, np.zeros(at.relevance.size), np.zeros(at.relevance.size)
    labels = np.arange(w.size) if labels is None else labels
    for label in np.unique(labels[w > 0]):
        index = np.flatnonzero(labels == label)
        weight, columns = float(w[index].max()), at.whitened[:, index]
        values, vectors = np.linalg.eigh(np.eye(index.size) - weight * columns.T @ columns)
        values = np.maximum(values, UNIT)
        powers = ((vectors.T @ at.loading[index]) ** 2).sum(axis=1)
        lost = np.log(values).sum() + weight * (powers / values).sum()
        evidence[index] = lost
        error[index] = 8.0 * at.rounding / values.min() * (abs(lost) + index.size)
    return evidence, error


def correlation_gain(rows: Weighted, w: Any, noise: float, covariance: Any) -> float:
    """Return by how much the energy per response falls at nearby correlations of the responses.

    These are the ρ at which artanh ρ differs by `CORRELATION_STEP`. Infinite if `covariance` is not
    that of an AR(1) model.
    """
    n = len(covariance)
    correlation = float(covariance[0, 1] / covariance[0, 0])
    if not abs(correlation) < 1.0:
        return np.inf
    places = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    if not np.abs(correlation**places - covariance).max() <= 1e-8:
        return np.inf
    angle, bound = np.arctanh(correlation), np.arctanh(LARGEST_CORRELATION) + 1e-6
    angles = [
        angle,
        *(
            each
            for each in (angle - CORRELATION_STEP, angle + CORRELATION_STEP)
            if abs(each) <= bound
        ),
    ]
    here, *beside = (_correlated_energy(rows, w, noise, np.tanh(each) ** places) for each in angles)
    return float(max(0.0, here - min(beside)))


def _correlated_energy(rows: Weighted, w: Any, noise: float, covariance: Any) -> float:
    """Return the energy per response, up to a constant, for correlated responses."""
    used = np.flatnonzero(w)
    values, vectors = np.linalg.eigh(covariance)
    rotated, total = rows.responses @ vectors, 0.0
    columns = rows.dictionary[:, used]
    for t, value in enumerate(np.maximum(values, 0.0)):
        one = rows._replace(dictionary=columns, responses=rotated[:, t : t + 1])
        at = evaluate_relevances(one, value * w[used], noise)
        total += (at.fit + at.log_determinant) / values.size
    return total


def triangle_of(A: Any) -> Any:
    """Return the triangular factor R of the QR decomposition of the matrix A."""
    return np.linalg.qr(A, mode="r")


def _in_span(Phi: Any, X: Any) -> tuple[Any, Any, float]:
    """Return dictionary and responses in an orthonormal basis of the span of the columns."""
    if Phi.shape[0] <= Phi.shape[1]:
        return Phi, X, 0.0
    if isinstance(Phi, SparseColumns):
        count, triangle = Phi.shape[1], Phi.triangle_with(X)
        outside = float(squares(triangle[count:, count:]).sum())
        return triangle[:count, :count], triangle[:count, count:], outside
    Q, R = np.linalg.qr(Phi)
    inside = Q.conj().T @ X
    return R, inside, float(squares(X - Q @ inside).sum())


def largest_in(values: Any, labels: Any) -> Any:
    """Return, for each column, the largest of the values of its group."""
    if labels is None:
        return values
    largest = np.full(labels.max() + 1, -np.inf)
    np.maximum.at(largest, labels, values)
    return largest[labels]


def totals_in(values: Any, labels: Any) -> Any:
    """Return, for each column, the sum of the values of its group."""
    return values if labels is None else np.bincount(labels, values)[labels]
