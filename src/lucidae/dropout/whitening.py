"""The exact reduction of correlated inputs to white inputs, and of ridge penalties to inputs.

Let C = E[xxᵀ] = LLᵀ, V' = LᵀV and M = E[yxᵀ]L⁻ᵀ. Then vᵢᵀC vᵢ = ‖v'ᵢ‖², and completing the square
in E‖y − UVᵀx‖² gives the expected dropout loss ‖M − UV'ᵀ‖² + λΣ‖uᵢ‖²‖v'ᵢ‖² plus the constant E‖y‖²
− ‖M‖². If C is singular, the reduction works on its range.

If M is computed from C, its errors are of the order ε·cond(C). If that is too much and the rows are
available, they are factorised instead of their moment: `row_root` returns F with FᵀF = E[(x, y)(x,
y)ᵀ], whose columns are F_x and F_y. From the singular value decomposition F_x = PSWᵀ follow M =
F_yᵀP and the whitening matrix B = WS⁻¹ (x' = Bᵀx), with errors of the order ε·√cond(C).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lucidae.arrays import (
    Array,
    add_diagonal,
    diagonal,
    eigh_descending,
    eye_like,
    is_numpy,
    largest,
    machine_epsilon,
    namespace,
    scalar,
    squared_norm,
    squared_norms,
    svd_thin,
    where_set,
)
from lucidae.dropout.problem import (
    LinearProblem,
    RowLift,
    Weights,
    WideRows,
    data_resolution,
)

RANGE_FACTOR = 10.0
"""Eigenvalues of the second moment C of the d₂ inputs count as zero below RANGE_FACTOR · d₂ · ε
times the largest: in directions in which the inputs are constant, rounding errors are as large."""


CONDITION = 1e6
"""Condition number of the second moment C of the inputs above which its eigendecomposition is not
accurate enough. At this number the relative error of the least-squares map is about
CONDITION · ε = 2e-10, far below the relative error of 1e-6 in the loss that certificates allow."""


GRAM_CONDITION = 1e4
"""Largest condition number of the second moment of the inputs, on their range, for which the Gram
matrix of the rows is decomposed instead of the rows; the relative error is then about 1e-12."""


def resolved(
    problem: LinearProblem, moment: Any, precision: float, *, centered: bool
) -> LinearProblem:
    """Return a problem with the size of the rounding errors of its inputs (`resolution`).

    `precision` is the rounding unit of their dtype, `moment` a `SecondMoment` or a `RowMean`.
    """
    xp, size = namespace(moment.mean), problem.cross.shape[1]
    mean = moment.mean if centered else 0.0 * moment.mean
    variances = squares_of_columns(problem)
    found = data_resolution(precision, xp.sqrt(xp.clip(variances, 0.0, None)), mean[:size])
    return replace(problem, resolution=found)


def ridged(problem: LinearProblem, penalty: float) -> LinearProblem:
    """Return second moments whose loss contains the ridge penalty ρ‖UVᵀ‖².

    ρ‖B‖² is the squared error of coefficients B on the additional inputs √ρ e₁, √ρ e₂, … with the
    outputs zero. C becomes C + ρI, and E[yxᵀ] does not change, so that everything known about least
    squares and dropout holds for the new problem: with dropout the units are dropped for these
    inputs too. Constant inputs have zero coefficients in any case and get no additional row. If C
    is not formed, orthonormal directions that span the rows take the place of the unit vectors,
    because optimal coefficients are zero outside of their span.
    """
    if penalty == 0.0:
        return problem
    if problem.rows is not None:
        return replace(problem, rows=replace(problem.rows, ridge=penalty))
    root, inputs = problem.root, problem.inputs
    size = problem.cross.shape[1]
    xp = namespace(problem.cross)
    varies = xp.astype(squares_of_columns(problem) > 0, problem.cross.dtype)
    if root is not None:
        wide = inputs is None and root.shape[0] < size
        added = xp.linalg.qr(root[:, :size].mT)[0].mT if wide else eye_like(size, root)
        added = added * varies  # not even rounding errors, which standardised inputs would magnify
        outputs = xp.zeros_like(root[:1, size:]) + 0.0 * added[:, :1]
        root = xp.concat([root, xp.concat([penalty**0.5 * added, outputs], axis=1)], axis=0)
        root = root if wide else triangle(root)
    if inputs is not None:
        inputs = add_diagonal(inputs, penalty * varies)
    return replace(problem, inputs=inputs, root=root)


def triangle(rows: Array) -> Array:
    """Return the triangular factor R of the QR factorisation of `rows`."""
    if is_numpy(rows):
        return np.linalg.qr(rows, mode="r")
    return namespace(rows).linalg.qr(rows)[1]


def squares_of_columns(problem: LinearProblem) -> Array:
    """Return the mean square of each input."""
    if problem.rows is not None:
        return problem.rows.squares
    if problem.inputs is not None:
        return diagonal(problem.inputs)
    assert problem.root is not None
    return squared_norms(problem.root[:, : problem.cross.shape[1]], axis=-2)


@dataclass(frozen=True, slots=True, eq=False)
class Whitened:
    """A problem for white inputs x', and the maps between weights for x and for x'."""

    matrix: Array  # (d1, q): the least-squares map M from x' to y; q is the rank of C
    lift: Array | None  # (d2, q): the whitening matrix B, V = BV'; None if x is white already
    lower: Array | None  # (d2, q): L with C = LLᵀ, V' = LᵀV
    floor: float  # E‖y‖² − ‖M‖², the loss of least squares

    def raise_weights(self, weights: Weights) -> Weights:
        """Return weights for white inputs as weights for the original inputs."""
        if self.lift is None:
            return weights
        return Weights(weights.left, self.lift @ weights.right)

    def lower_weights(self, weights: Weights) -> Weights:
        """Return weights for the original inputs as weights for white inputs."""
        if self.lower is None:
            return weights
        return Weights(weights.left, self.lower.mT @ weights.right)


def whiten(problem: LinearProblem) -> Whitened:
    """Return a problem with its inputs transformed so that their second moment is the identity.

    Directions in which the inputs do not vary are removed; a constant input has the weight zero.
    """
    if problem.rows is not None:
        return _whiten_wide(problem.rows)
    if problem.root is not None:
        return _whiten_rows(problem)
    if problem.inputs is None:
        return Whitened(problem.cross, None, None, 0.0)
    # L = QΛ^½ on the range of C = QΛQᵀ, so B = QΛ^-½ satisfies BᵀCB = I, LᵀB = I and
    # M = E[yxᵀ]B. Outside the range E[yxᵀ] is zero, so nothing is lost.
    if _is_graded(problem.inputs) or problem.resolution > 0:
        return _whiten_standardised(problem)
    scales, directions = input_range(problem.inputs)
    directions = _without_constants(directions, diagonal(problem.inputs))
    lift = directions / _nonzero(scales)
    matrix = problem.cross @ lift
    return Whitened(matrix, lift, directions * scales, _floor(problem, matrix))


def _without_constants(directions: Array, variances: Array) -> Array:
    """Return directions (columns) whose entries for constant inputs are set to exactly zero.

    Otherwise rounding errors would give constant inputs weights that depend on their units.
    """
    return directions * namespace(variances).astype(variances > 0, variances.dtype)[:, None]


def _is_graded(inputs: Array) -> bool:
    """Tell whether the variances of nonconstant features differ by a factor above `CONDITION`."""
    variances = diagonal(inputs)
    top = largest(variances)
    smallest = scalar(namespace(variances).min(where_set(variances, variances <= 0, top)))
    return smallest * CONDITION < top


def _whiten_standardised(problem: LinearProblem) -> Whitened:
    """Return the problem for white inputs, from features divided by their standard deviations.

    An entry cᵢⱼ of C has an error of the order ε√(cᵢᵢcⱼⱼ). For standardised features all errors
    have the same size, so that a feature of small scale is as accurate as one of large scale.
    """
    xp, inputs = namespace(problem.inputs), problem.inputs
    deviations = xp.sqrt(xp.clip(diagonal(inputs), 0.0, None))
    deviations = where_set(deviations, deviations == 0, 1.0)
    standard = inputs / (deviations[:, None] * deviations[None, :])
    scales, directions = input_range(standard, problem.resolution)
    directions = _without_constants(directions, diagonal(inputs))
    lower = deviations[:, None] * directions * scales
    lift = _in_range(directions / _nonzero(scales) / deviations[:, None], lower)
    matrix = problem.cross @ lift
    return Whitened(matrix, lift, lower, _floor(problem, matrix))


def _in_range(lift: Array, lower: Array) -> Array:
    """Return the whitening matrix B, projected on the range of C = LLᵀ; L is `lower`.

    Incoming weights are products with B and must be zero outside the range of C. If C is singular,
    this holds only after the projection, because the inputs were standardised. CB does not change.
    """
    if lower.shape[0] == lower.shape[1]:
        return lift
    xp = namespace(lower)
    basis = _without_constants(xp.linalg.qr(lower)[0], xp.max(xp.abs(lower), axis=1))
    return basis @ (basis.mT @ lift)


def _whiten_rows(problem: LinearProblem) -> Whitened:
    """Return the problem for white inputs, from the triangular factor F of the rows [x | y].

    With the standard deviations D of the inputs and F_x = PSWᵀD, C = DWS²WᵀD = LLᵀ with L = DWS,
    and the whitening matrix is B = D⁻¹WS⁻¹.
    """
    root, size = problem.root, problem.cross.shape[1]
    assert root is not None
    xp = namespace(root)
    inward, outward = root[:, :size], root[:, size:]
    squares = squares_of_columns(problem)
    deviations = xp.sqrt(squares)
    deviations = where_set(deviations, deviations == 0, 1.0)
    P, scales, Wt = svd_thin(inward / deviations)
    level = RANGE_FACTOR * size * machine_epsilon(scales) * largest(scales[:1])
    level = max(level, problem.resolution)
    count = max(int(xp.sum(xp.astype(scales > level, xp.int64))), 1)
    scales = where_set(scales, scales <= level, 0.0)[:count]
    P, directions = P[:, :count], _without_constants(Wt[:count, :].mT, squares)
    P = P * xp.astype(scales > 0, scales.dtype)
    matrix = outward.mT @ P
    lower = deviations[:, None] * directions * scales
    lift = _in_range(directions / _nonzero(scales) / deviations[:, None], lower)
    rest = outward - P @ matrix.mT
    return Whitened(matrix, lift, lower, scalar(squared_norm(rest)))


def _whiten_wide(rows: WideRows) -> Whitened:
    """Return the problem for white inputs of few rows A with very many features.

    With AAᵀ = PS²Pᵀ and W = AᵀPS⁻¹, whose columns are orthonormal, C = W(S² + ρ)Wᵀ on the span of
    the rows, with the ridge penalty ρ. So B = W(S² + ρ)^-½ and L = W(S² + ρ)^½; the outputs Y give
    M = YᵀPS(S² + ρ)^-½.
    """
    P, squares = rows.decomposed()
    xp = namespace(squares)
    loaded = squares + rows.ridge
    codes = rows.outputs.mT @ P
    outside = rows.outputs - P @ codes.mT
    matrix = codes * xp.sqrt(squares / loaded)
    floor = scalar(squared_norm(outside)) + scalar(xp.sum(codes * codes * (rows.ridge / loaded)))
    lift = RowLift(rows, P / xp.sqrt(squares) / xp.sqrt(loaded))
    return Whitened(matrix, lift, RowLift(rows, P * xp.sqrt(loaded / squares)), floor)


def input_range(inputs: Array, resolution: float = 0.0) -> tuple[Array, Array]:
    """Return standard deviations of the inputs along principal axes of their range, and the axes.

    The range of constant inputs is empty; it is represented by one axis of deviation zero, so that
    all shapes stay positive. Deviations of at most `resolution` count as zero.
    """
    xp = namespace(inputs)
    variances, directions = eigh_descending(inputs)
    level = RANGE_FACTOR * inputs.shape[0] * machine_epsilon(inputs) * largest(variances[:1])
    positive = variances > max(level, resolution**2)
    count = max(int(xp.sum(xp.astype(positive, xp.int64))), 1)
    kept = where_set(variances, ~positive, 0.0)[:count]
    return xp.sqrt(kept), directions[:, :count]


def _nonzero(scales: Array) -> Array:
    """Return standard deviations with zeros replaced by 1, so that one can divide by them."""
    return where_set(scales, scales == 0, 1.0)


def _floor(problem: LinearProblem, matrix: Array) -> float:
    """Return the loss of least squares, E‖y‖² − ‖M‖²."""
    return max(problem.energy - scalar(squared_norm(matrix)), 0.0)
