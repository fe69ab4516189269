"""White coordinates for the verifier, by pivoted triangular factorisations.

The solver whitens by an eigendecomposition or a singular value decomposition
(`lucidae.dropout.moments`); nothing of that is used here.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
import scipy.sparse

from lucidae.arrays import Array, like, namespace, scalar, squared_norm, to_numpy
from lucidae.dropout.figures import EPSILON
from lucidae.dropout.objectives import Weights

Matrix = np.ndarray[Any, Any]

WHITE = 1e-8
"""Inputs are white where no entry of their second moment differs more from the identity."""

RANGE_FACTOR = 10.0
"""Standardised inputs have m features of variance one. A pivot of their Cholesky factorisation
below RANGE_FACTOR · m · ε is a rounding error of the moment."""


ROWS = 4096
"""Rows that `row_objective` converts to double precision at a time."""

SPARSE_ROWS = 128
"""Sparse rows that `row_objective` makes dense at a time."""


class Moments(NamedTuple):
    """The problem on the host: E[yxᵀ], E[xxᵀ], E‖y‖², and F with FᵀF = E[(x, y)(x, y)ᵀ]."""

    cross: Matrix
    inputs: Matrix | None
    energy: float
    root: Matrix | None

    @property
    def white(self) -> bool:
        """Whether E[xxᵀ] is the identity."""
        if self.inputs is None:
            return True
        return bool(np.abs(self.inputs - np.eye(len(self.inputs))).max() <= WHITE)


class Reduced(NamedTuple):
    """The problem in white coordinates, V' = `lower` V, and what was lost on the way.

    Attributes
    ----------
    matrix, lower, floor
        M, R and E‖y‖² − ‖M‖².
    undecided : float
        Bound on the error of the minimum.
    blur : float
        Bound on the error of M, in Frobenius norm.
    doubts : array of shape (q,)
        Relative errors of the rows of R.
    condition, dropped, inconsistency
        As in `DropoutFigures`.
    """

    matrix: Matrix
    lower: Matrix | None
    floor: float
    undecided: float
    blur: float
    doubts: Matrix
    condition: float
    dropped: int
    inconsistency: float


def host(values: Any) -> Matrix:
    """Return an array of any library as a NumPy array in double precision."""
    return np.asarray(to_numpy(values), dtype=np.float64)


def reduce_inputs(data: Moments) -> Reduced:
    """Reduce the problem to white inputs."""
    if data.root is not None:
        return _reduce_rows(data, data.root)
    if data.inputs is None:
        floor = data.energy - float((data.cross**2).sum())
        return Reduced(data.cross, None, floor, 0.0, 0.0, np.zeros(0), 1.0, 0, 0.0)
    return _reduce_moment(data, data.inputs)


def _reduce_moment(data: Moments, inputs: Matrix) -> Reduced:
    """Reduce by the Cholesky factorisation of the standardised moment with diagonal pivoting.

    The moment has errors of relative size η = O(ε), which the pivot pⱼ of a column magnifies by
    1/pⱼ: relative to its length, a column of M is wrong by η/(2pⱼ), and by the error of E[yxᵀ] by
    a further η√E‖y‖²/√pⱼ. Directions that were dropped can explain at most the floor.
    """
    size = len(inputs)
    deviations = np.sqrt(np.clip(np.diag(inputs), 0.0, None))
    constant = int((deviations == 0).sum())
    deviations[deviations == 0] = 1.0
    standard = inputs / np.outer(deviations, deviations)
    factor, order, rank, _ = scipy.linalg.lapack.dpstrf(
        standard, tol=RANGE_FACTOR * size * EPSILON, lower=0
    )
    # A zero matrix has rank 0; LAPACK then leaves the order unset.
    order = np.arange(size) if rank == 0 else order - 1
    triangle = np.triu(factor)[:rank]
    cross = (data.cross / deviations)[:, order[:rank]]
    matrix = scipy.linalg.solve_triangular(triangle[:, :rank], cross.T, trans="T").T
    lower = np.zeros((rank, size))
    lower[:, order] = triangle
    floor = data.energy - float((matrix**2).sum())
    pivots = np.diag(triangle[:, :rank]) ** 2
    dropped = size - rank - constant
    lengths = np.sqrt((matrix**2).sum(axis=0))
    noise = (size + len(matrix) + 10) * EPSILON
    wrong = noise * (lengths / (2 * pivots) + math.sqrt(data.energy) / np.sqrt(pivots))
    undecided = float((2 * lengths * wrong + wrong**2).sum()) + noise * data.energy
    lost = max(floor, 0.0) if dropped else 0.0
    return Reduced(
        matrix,
        lower * deviations,
        floor,
        undecided + lost,
        math.sqrt(float((wrong**2).sum()) + lost),
        noise * (1 / (2 * pivots) + 1 / np.sqrt(pivots)),
        _condition(triangle) ** 2,
        dropped,
        0.0,
    )


def _reduce_rows(data: Moments, root: Matrix) -> Reduced:
    """Reduce by the QR factorisation of the standardised columns of F with pivoting.

    F has errors of relative size η = O(ε), which turn a column of the basis by η/Rⱼⱼ: the
    condition number enters once, where in the moment it is squared. The rows themselves do not
    resolve the directions that are dropped here, so that nothing was lost with them.
    """
    size = data.cross.shape[1]
    inward, outward = root[:, :size], root[:, size:]
    deviations = np.sqrt((inward**2).sum(axis=0))
    constant = int((deviations == 0).sum())
    deviations[deviations == 0] = 1.0
    basis, triangle, order = scipy.linalg.qr(inward / deviations, mode="economic", pivoting=True)
    pivots = np.abs(np.diag(triangle))
    rank = int(
        (pivots > RANGE_FACTOR * size * EPSILON * max(pivots.max(initial=0.0), 1e-300)).sum()
    )
    basis, triangle, pivots = basis[:, :rank], triangle[:rank], pivots[:rank]
    matrix = outward.T @ basis
    rest = outward - basis @ matrix.T
    lower = np.zeros((rank, size))
    lower[:, order] = triangle
    lengths = np.sqrt((matrix**2).sum(axis=0))
    noise = (size + len(matrix) + 10) * EPSILON
    wrong = noise * math.sqrt(data.energy) / pivots
    return Reduced(
        matrix,
        lower * deviations,
        float((rest**2).sum()),
        float((2 * lengths * wrong + wrong**2).sum()) + noise * data.energy,
        float(np.linalg.norm(wrong)),
        noise / pivots,
        _condition(triangle) ** 2,
        size - rank - constant,
        _inconsistency(data, inward, outward, deviations),
    )


def _condition(triangle: Matrix) -> float:
    """Return the condition number of a triangular factor of full row rank."""
    if triangle.shape[0] == 0:
        return 1.0
    values = scipy.linalg.svdvals(triangle)
    return float(values[0] / values[-1]) if values[-1] > 0 else math.inf


def _inconsistency(data: Moments, inward: Matrix, outward: Matrix, deviations: Matrix) -> float:
    """Return the largest difference of FᵀF from the moment, in units of standard deviations."""
    assert data.inputs is not None
    size = math.sqrt(data.energy) if data.energy > 0 else 1.0
    on_inputs = (inward.T @ inward - data.inputs) / np.outer(deviations, deviations)
    on_cross = (outward.T @ inward - data.cross) / deviations / size
    on_outputs = (float((outward**2).sum()) - data.energy) / size**2
    return max(*(float(np.abs(part).max()) for part in (on_inputs, on_cross)), abs(on_outputs))


def row_objective(
    X: Any, Y: Any, sample_weight: Array | None, weights: Weights, strength: float, centered: bool
) -> tuple[float, float]:
    """Return f of the weights measured on the rows, and a bound on its rounding error.

    One pass finds the means, another the residuals and the hidden units of every row. No moment
    is involved, so that a wrong moment is noticed.

    Parameters
    ----------
    X, Y : arrays or sparse matrices of shapes (n, d2) and (n, d1)
        Inputs and outputs.
    sample_weight : array of shape (n,), optional
        Frequencies of the rows.
    weights : Weights
        U and V.
    strength : float
        λ.
    centered : bool
        Whether inputs and outputs are centred at their means.

    Returns
    -------
    value, error : float
    """
    left, right = weights
    xp = namespace(left)
    total = (
        float(X.shape[0]) if sample_weight is None else scalar(xp.sum(like(sample_weight, left)))
    )
    centers = [0.0 * left[:, 0], 0.0 * right[:, 0]]
    if centered:
        for x, y, w in _row_blocks(X, Y, sample_weight, left):
            centers = [
                centers[0] + xp.sum(w * y, axis=0) / total,
                centers[1] + xp.sum(w * x, axis=0) / total,
            ]
    loss, spread, inputs, incoming = 0.0, 0.0, 0.0, 0.0 * left[0, :]
    for x, y, w in _row_blocks(X, Y, sample_weight, left):
        x, y, w = x - centers[1], y - centers[0], w / total
        hidden = x @ right
        loss += scalar(squared_norm(xp.sqrt(w) * (y - hidden @ left.mT)))
        incoming = incoming + xp.sum(w * hidden * hidden, axis=0)
        spread, inputs = spread + scalar(xp.sum(w * y * y)), inputs + scalar(xp.sum(w * x * x))
    return _with_error(loss, spread, inputs, host(incoming), host(left), host(right), strength)


def _row_blocks(X: Any, Y: Any, sample_weight: Array | None, ref: Array) -> Any:
    """Yield inputs, outputs and weights (as a column), dense and in double precision."""
    step = SPARSE_ROWS if scipy.sparse.issparse(X) else ROWS
    for start in range(0, X.shape[0], step):
        rows = slice(start, start + step)
        x, y = (
            like(part[rows].toarray() if scipy.sparse.issparse(part) else part[rows, :], ref)
            for part in (X, Y)
        )
        column = 0.0 * x[:, :1] + 1.0
        if sample_weight is not None:
            column = column * like(sample_weight[rows], ref)[:, None]
        yield x, y, column


def _with_error(
    loss: float,
    outputs: float,
    inputs: float,
    incoming: Matrix,
    left: Matrix,
    right: Matrix,
    strength: float,
) -> tuple[float, float]:
    """Return f and its error; a hidden unit is wrong by at most d₂ · ε · ‖x‖‖vᵢ‖."""
    noise = (len(left) + len(right) + left.shape[1] + 10) * EPSILON
    outgoing = (left**2).sum(axis=0)
    value = loss + strength * float(outgoing @ incoming)
    hidden = math.sqrt(inputs) * np.sqrt((right**2).sum(axis=0))
    residual = math.sqrt(outputs) + float(np.sqrt(outgoing) @ hidden)
    error = 2 * math.sqrt(loss) * residual + noise * residual**2
    error += 2 * strength * float(outgoing @ (np.sqrt(incoming) * hidden))
    error += noise * strength * float(outgoing @ hidden**2) + value
    return value, noise * error
