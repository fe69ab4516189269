"""Moments of rows [x | y], and the exact reduction of correlated inputs to white inputs.

Let C = E[xxᵀ] = LLᵀ, V' = LᵀV and M = E[yxᵀ]L⁻ᵀ. Then vᵢᵀC vᵢ = ‖v'ᵢ‖², and completing the square
in E‖y − UVᵀx‖² gives the expected dropout loss ‖M − UV'ᵀ‖² + λΣ‖uᵢ‖²‖v'ᵢ‖² plus the constant
E‖y‖² − ‖M‖². Where C is singular the reduction works on its range.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import scipy.sparse

from lucidae.arrays import (
    Array,
    as_float,
    device,
    eigh_descending,
    eye_like,
    is_array,
    largest,
    like,
    machine_epsilon,
    namespace,
    scalar,
    squared_norm,
    where_set,
)
from lucidae.dropout.objectives import LinearProblem, Weights
from lucidae.moments import SecondMoment

BLOCK_ROWS = 16_384
"""Rows that are joined to [x | y] at a time, so that a large X is never copied as a whole."""

RANGE_FACTOR = 10.0
"""Eigenvalues of C below RANGE_FACTOR · d₂ · ε times the largest count as zero: rounding errors of
the second moment have this size in directions outside the range of the inputs."""


def joint_moment(X: Any, Y: Any, weights: Array | None = None) -> SecondMoment:
    """Return the moment of [X | Y]; sparse X stays sparse.

    Examples
    --------
    >>> import numpy as np
    >>> joint_moment(np.eye(3), np.arange(3.0)).n_features
    4
    """
    Y = as_columns(Y)
    if Y.shape[0] != X.shape[0]:
        raise ValueError(f"X has {X.shape[0]} rows and y has {Y.shape[0]}: give one y per row.")
    starts = [start for start in range(0, X.shape[0], BLOCK_ROWS) if _has_weight(weights, start)]
    blocks = (_block(X, Y, weights, start) for start in starts)
    return reduce(SecondMoment.merge, blocks)


def as_columns(Y: Any) -> Array:
    """Return targets as a floating matrix with one column per target."""
    Y = as_float(Y if is_array(Y) else np.asarray(Y))
    return Y[:, None] if Y.ndim == 1 else Y


def _block(X: Any, Y: Array, weights: Array | None, start: int) -> SecondMoment:
    rows = slice(start, start + BLOCK_ROWS)
    part = None if weights is None else weights[rows]
    if scipy.sparse.issparse(X):
        columns = scipy.sparse.csr_array(Y[rows])
        joined = scipy.sparse.hstack([X[rows].astype(np.float64), columns], format="csr")
        return SecondMoment.of(joined, part)
    xp = namespace(X)
    return SecondMoment.of(xp.concat([X[rows, :], like(Y[rows, :], X)], axis=1), part)


def _has_weight(weights: Array | None, start: int) -> bool:
    """Tell whether the block of rows has positive total weight; otherwise its mean is undefined."""
    if weights is None:
        return True
    return bool(namespace(weights).any(weights[start : start + BLOCK_ROWS] > 0))


def take_rows(values: Any, rows: np.ndarray[Any, Any]) -> Any:
    """Return some rows of an array of any library, or of a sparse matrix."""
    if scipy.sparse.issparse(values):
        return values[rows]
    xp = namespace(values)
    return xp.take(values, xp.asarray(rows, device=device(values)), axis=0)


@dataclass(frozen=True, slots=True, eq=False)
class Whitened:
    """A problem reduced to white inputs, and the maps between both sets of weights.

    Parameters
    ----------
    matrix : array of shape (d1, q)
        M, where q is the rank of C.
    lift : array of shape (d2, q) or None
        B with x' = Bᵀx white and V = BV'; None where the inputs are white already.
    lower : array of shape (d2, q) or None
        L with C = LLᵀ, so that V' = LᵀV.
    floor : float
        E‖y‖² − ‖M‖²: the loss of least squares, a lower bound for all weights.
    """

    matrix: Array
    lift: Array | None
    lower: Array | None
    floor: float

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
    """Reduce a problem to white inputs.

    Examples
    --------
    >>> import numpy as np
    >>> C = np.diag([4.0, 0.0])
    >>> white = whiten(LinearProblem(np.array([[2.0, 0.0]]), C, 3.0))
    >>> abs(white.matrix), white.floor
    (array([[1.]]), 2.0)
    """
    if problem.inputs is None:
        return Whitened(problem.cross, None, None, 0.0)
    # L = QΛ^½ on the range of C = QΛQᵀ, so B = QΛ^-½ satisfies BᵀCB = I, LᵀB = I and
    # M = E[yxᵀ]B. Outside the range E[yxᵀ] is zero, so nothing is lost.
    scales, directions = input_range(problem.inputs)
    lift = directions / _nonzero(scales)
    matrix = problem.cross @ lift
    return Whitened(matrix, lift, directions * scales, _floor(problem, matrix))


def input_range(inputs: Array) -> tuple[Array, Array]:
    """Return the standard deviations of x along the principal axes of its range, and these axes.

    The deviations are descending. The range of constant inputs is empty; it is represented by one
    axis of standard deviation zero, so that all shapes stay positive.
    """
    xp = namespace(inputs)
    variances, directions = eigh_descending(inputs)
    level = RANGE_FACTOR * inputs.shape[0] * machine_epsilon(inputs) * largest(variances[:1])
    positive = variances > level
    count = max(int(xp.sum(xp.astype(positive, xp.int64))), 1)
    kept = where_set(variances, ~positive, 0.0)[:count]
    return xp.sqrt(kept), directions[:, :count]


def principal_problem(inputs: Array) -> tuple[Whitened, tuple[Array, Array, Array]]:
    """Return the autoencoder's problem, y = x, with the singular value decomposition of its M.

    M = E[xxᵀ]B = QΛ^½: its left singular vectors are the eigenvectors of C, its singular values
    the standard deviations, so that one eigendecomposition is enough.
    """
    scales, directions = input_range(inputs)
    matrix = directions * scales
    white = Whitened(matrix, directions / _nonzero(scales), matrix, 0.0)
    return white, (directions, scales, eye_like(scales.shape[0], inputs))


def _nonzero(scales: Array) -> Array:
    return where_set(scales, scales == 0, 1.0)


def _floor(problem: LinearProblem, matrix: Array) -> float:
    return max(problem.energy - scalar(squared_norm(matrix)), 0.0)
