"""The verifier's transformation of few rows with very many features to white inputs.

Let A be the n centred and weighted rows of m > n features, Y their outputs, and V the incoming
weights. The dropout loss depends on V through AV alone, and the least-squares map depends on the
range of A, a subspace of the n-dimensional space. So the problem is transformed to white inputs
(second moment I) with n × n matrices and products with A. The solver decomposes the Gram matrix AAᵀ
by its eigenvalues (`lucidae.dropout.moments`); here AAᵀ is computed by products of A with blocks of
columns of Aᵀ, and factorised by Cholesky's method with pivoting.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
import scipy.sparse

from lucidae.dropout.figures import EPSILON, ReportedAttributes
from lucidae.dropout.objectives import LinearProblem, RowReduction, Weights
from lucidae.dropout.reduction import RANGE_FACTOR, host, relative_distance
from lucidae.dropout.row_space import WideRows

__all__ = ["LARGEST_ROWS", "white_rows"]

Matrix = np.ndarray[Any, Any]

LARGEST_ROWS = 16_384
"""Largest number of rows whose Gram matrix the verifier factorises: two gibibytes. Weights for more
rows are not judged."""

COLUMNS = 64
"""Number of columns of Aᵀ that are multiplied with A at a time, for rows A."""

FEATURES = 4096
"""Number of features whose coefficients are compared at a time."""


class WhiteRows(NamedTuple):
    """A problem for white inputs, with the weights and reported attributes that belong to it."""

    problem: LinearProblem
    weights: Weights
    reported: ReportedAttributes | None


class _Products(NamedTuple):
    """The centred and weighted rows A as NumPy arrays, by products with them.

    `stored` are the rows S before centring, dense or sparse, and `shares` the square roots s of the
    shares of the rows in the total weight, a unit vector; None if S is A itself. The weighted mean
    is Sᵀs, so that A = (I − ssᵀ)S: the mean that the solver computed is not used.
    """

    stored: Any
    shares: Matrix | None

    @classmethod
    def of(cls, rows: WideRows) -> _Products:
        """Return the products with the given rows."""
        if rows.entries is None:
            return cls(host(rows.dense), None)
        entries = tuple(np.asarray(part) for part in rows.entries)
        stored = scipy.sparse.csr_array(entries, shape=rows.shape)
        return cls(stored, host(rows.shares) if rows.centered else None)

    def _centred(self, codes: Matrix) -> Matrix:
        if self.shares is None:
            return codes
        return np.asarray(codes - np.multiply.outer(self.shares, self.shares @ codes))

    def times(self, right: Matrix) -> Matrix:
        """Return AV for a matrix V (`right`)."""
        return self._centred(np.asarray(self.stored @ right))

    def back(self, codes: Matrix) -> Matrix:
        """Return AᵀZ for a matrix Z (`codes`)."""
        return np.asarray(self.stored.T @ self._centred(codes))


class _Factor(NamedTuple):
    """Pivoted Cholesky factorisation AAᵀ = unit² · TTᵀ of the Gram matrix of rows A.

    `lower` contains the rows of T in the order of the pivots (`order`); its first k rows are a
    triangular matrix, with the rank k of A. `condition` is the condition number of this matrix.
    `blur` is the size of the rounding errors of the Gram matrix relative to `unit`², in units of
    ε: 1, or more if centring has cancelled digits.
    """

    lower: Matrix
    order: Matrix
    unit: float
    condition: float
    blur: float

    @property
    def rank(self) -> int:
        """The rank k of the rows."""
        return int(self.lower.shape[1])

    @property
    def placed(self) -> Matrix:
        """T, with its rows in the order of the rows of A."""
        found = np.empty_like(self.lower)
        found[self.order] = self.lower
        return found

    def solved(self, hidden: Matrix, trans: int = 0) -> Matrix:
        """Return the solution of a triangular system with the first k rows of `lower`."""
        triangle = self.lower[: self.rank]
        return np.asarray(scipy.linalg.solve_triangular(triangle, hidden, lower=True, trans=trans))


def white_rows(
    problem: LinearProblem,
    weights: Weights,
    strength: float,
    reported: ReportedAttributes | None,
) -> WhiteRows:
    """Return the problem of few rows with very many features for white inputs."""
    rows = problem.rows
    assert rows is not None
    left, right = host(weights.left), host(weights.right)
    products = _Products.of(rows)
    hidden = products.times(right)
    factor = _factorised(rows, products)
    outputs = host(rows.outputs)
    matrix, inner, floor, lost = _whitened(factor, outputs, hidden, rows)
    n, m = rows.shape
    deviations = np.sqrt(host(rows.squares))
    noise = (n + len(left) + 10) * EPSILON
    # ‖δ(Avᵢ)‖ ≤ (m + 10) ε Σⱼ ‖aⱼ‖ |vⱼᵢ|, with the columns aⱼ of A, before centring if sparse.
    sizes = deviations if rows.mean is None else np.hypot(deviations, np.abs(host(rows.mean)))
    wrong = (m + 10) * EPSILON * (sizes @ np.abs(right))
    lengths, outgoing = np.sqrt((inner**2).sum(axis=0)), (left**2).sum(axis=0)
    wrong = wrong + noise * (factor.blur * factor.condition**2 if rows.ridge > 0 else 1.0) * lengths
    through = float(np.sqrt(outgoing) @ wrong)
    rest = float(np.linalg.norm(matrix - left @ inner.T))
    doubt = 2 * rest * through + through**2
    doubt += 2 * strength * float(outgoing @ (lengths * wrong)) + strength * float(
        outgoing @ wrong**2
    )
    ratios = np.divide(wrong, lengths, out=np.zeros_like(wrong), where=lengths > 0)
    constant = int((deviations == 0).sum())
    reduction = RowReduction(
        floor,
        doubt,
        noise * lost * math.sqrt(problem.energy),
        float(ratios.max(initial=0.0)),
        factor.condition**2,
        m - factor.rank - constant,
    )
    found = replace(
        problem, cross=matrix, inputs=None, rows=None, resolution=0.0, reduction=reduction
    )
    if reported is not None:
        outside = _outside_span(products, factor, hidden, right)
        reported = _compared(reported, left, right, deviations, problem.energy, outside)
    return WhiteRows(found, Weights(left, inner), reported)


def _factorised(rows: WideRows, products: _Products) -> _Factor:
    """Return the pivoted Cholesky factorisation of the Gram matrix AAᵀ of the rows A."""
    n = rows.shape[0]
    gram = np.empty((n, n))
    for start in range(0, n, COLUMNS):
        columns = np.zeros((n, min(COLUMNS, n - start)))
        np.fill_diagonal(columns[start:], 1.0)
        gram[:, start : start + COLUMNS] = products.times(products.back(columns))
    top = float(np.diag(gram).max(initial=0.0))
    unit = math.sqrt(top) if top > 0 else 1.0
    gram /= unit
    gram /= unit
    blur = 1.0 + rows.cancelled / unit / unit
    factor, order, rank, _ = scipy.linalg.lapack.dpstrf(
        gram, tol=RANGE_FACTOR * n * EPSILON * blur, lower=1, overwrite_a=1
    )
    # A zero matrix has rank 0; LAPACK then leaves the order unset.
    rank = int(rank) if top > 0 else 0
    order = np.arange(n) if rank == 0 else order - 1
    lower = np.tril(factor[:, :rank])
    condition = 1.0
    if rank > 0:
        inverse, _ = scipy.linalg.lapack.dtrcon(lower[:rank], norm="1", uplo="L")
        condition = 1.0 / inverse if inverse > 0 else math.inf
    return _Factor(lower, order, unit, condition, blur)


def _whitened(
    factor: _Factor, outputs: Matrix, hidden: Matrix, rows: WideRows
) -> tuple[Matrix, Matrix, float, float]:
    """Return the map M and the incoming weights V' for white inputs, and the least-squares loss.

    The last number of the result is the factor by which rounding errors of the rows are magnified
    in M. `outputs` are the outputs Y and `hidden` is AV.

    Without a ridge penalty, T = QR gives M = YᵀQ and V' = QᵀAV. If A has full row rank, Q spans all
    of the n-dimensional space (less the direction removed by centring), whatever the condition
    number is. With a ridge penalty ρ, unit² TᵀT + ρI = unit² RᵀR gives M = YᵀTR⁻¹, and V' = unit RZ
    with unit TZ = AV.
    """
    triangle = factor.placed
    if factor.rank == 0:
        width = hidden.shape[1]
        empty = np.zeros((outputs.shape[1], 1)), np.zeros((1, width))
        return *empty, float((outputs**2).sum()), 1.0
    if rows.ridge == 0.0:
        basis, _ = scipy.linalg.qr(triangle, mode="economic", overwrite_a=True, check_finite=False)
        matrix = outputs.T @ basis
        rest = outputs - basis @ matrix.T
        full = factor.rank == rows.shape[0] - rows.centered
        lost = 1.0 if full else factor.blur * factor.condition**2
        return matrix, basis.T @ hidden, float((rest**2).sum()), lost
    loaded = triangle.T @ triangle
    loaded[np.diag_indices_from(loaded)] += rows.ridge / factor.unit / factor.unit
    upper = scipy.linalg.cholesky(loaded)
    matrix = scipy.linalg.solve_triangular(upper, triangle.T @ outputs, trans="T").T
    inner = upper @ factor.solved(hidden[factor.order[: factor.rank]])
    inverse, _ = scipy.linalg.lapack.dtrcon(upper, norm="1", uplo="U")
    floor = float((outputs**2).sum() - (matrix**2).sum())
    return matrix, inner, floor, factor.blur / inverse**2 if inverse > 0 else math.inf


def _outside_span(products: _Products, factor: _Factor, hidden: Matrix, right: Matrix) -> float:
    """Return the relative norm of the part of V (`right`) outside of the span of the rows A.

    `hidden` is AV. The loss does not depend on that part, and the estimators return the weights of
    smallest norm, for which it is zero. The result is reduced by its rounding error.
    """
    if factor.rank == 0:
        return 1.0 if np.any(right) else 0.0
    pivots = factor.order[: factor.rank]
    first = factor.solved(hidden[pivots] / factor.unit)
    codes = np.zeros_like(hidden)
    codes[pivots] = factor.solved(first, trans=1) / factor.unit
    inside = products.back(codes)
    error = (len(hidden) + 10) * EPSILON * factor.blur * factor.condition**2
    return max(relative_distance(inside, right) - error, 0.0)


def _compared(
    reported: ReportedAttributes,
    left: Matrix,
    right: Matrix,
    deviations: Matrix,
    energy: float,
    outside: float,
) -> ReportedAttributes:
    """Return the attributes without coefficients, whose errors become entries of ``settings``.

    The coefficients should be UVᵀ for the weights U (`left`) and V (`right`). Their error is
    measured relative to the norm of UVᵀ and, weighted by the standard deviations of the features
    (`deviations`), relative to √E‖y‖², the square root of `energy`. `outside` is the relative norm
    of the part of V outside of the span of the rows.
    """
    found = [max(outside - reported.precision, 0.0)]
    if reported.coef is not None:
        coef = host(reported.coef).reshape(len(left), len(right))
        sums = np.zeros(3)
        for start in range(0, len(right), FEATURES):
            part = slice(start, start + FEATURES)
            product = left @ right[part].T
            allowed = reported.precision * np.abs(product)
            allowed += left.shape[1] * EPSILON * (np.abs(left) @ np.abs(right[part]).T)
            wrong = np.clip(np.abs(coef[:, part] - product) - allowed, 0.0, None)
            effect = (wrong * deviations[part]) ** 2
            sums += [(wrong**2).sum(), (product**2).sum(), effect.sum()]
        plain, size = math.sqrt(sums[1]) or 1.0, math.sqrt(energy) or 1.0
        found += [math.sqrt(sums[0]) / plain, math.sqrt(sums[2]) / size]
    pairs = tuple((1.0 + error, 1.0) for error in found)
    return reported._replace(coef=None, settings=(*reported.settings, *pairs))
