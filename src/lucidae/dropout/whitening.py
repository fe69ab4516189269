"""From any inputs to white ones: the exact reduction of regression to factorisation.

With C = E[xxᵀ] = LLᵀ and V' = LᵀV the expected dropout loss is ‖M − UV'ᵀ‖² + λΣ‖uᵢ‖²‖v'ᵢ‖² plus a
constant, M = E[yxᵀ]L⁻ᵀ. Where C is singular the reduction works on its range.
"""

from __future__ import annotations

from dataclasses import dataclass

from lucidae._arrays import (
    Array,
    eigh_descending,
    eye_like,
    largest,
    machine_epsilon,
    namespace,
    scalar,
    squared_norm,
    where_set,
)
from lucidae.dropout.objectives import LinearProblem, Weights

RANGE_FACTOR = 10.0
"""Eigenvalues of C below RANGE_FACTOR · d₂ · ε times the largest count as zero: rounding in the
second moment puts that much into directions that the inputs do not have."""


@dataclass(frozen=True, slots=True, eq=False)
class Whitened:
    """A problem with white inputs and the way back to the original ones.

    Parameters
    ----------
    matrix : array of shape (d1, q)
        M, where q is the rank of C.
    lift : array of shape (d2, q) or None
        B with x' = Bᵀx white and V = BV'; None when the inputs are white already.
    lower : array of shape (d2, q) or None
        L with C = LLᵀ, so that V' = LᵀV.
    floor : float
        E‖y‖² − ‖M‖²: the loss of least squares, which no weights can undercut.
    """

    matrix: Array
    lift: Array | None
    lower: Array | None
    floor: float

    def raise_weights(self, weights: Weights) -> Weights:
        """Bring weights for white inputs back to the original ones."""
        if self.lift is None:
            return weights
        return Weights(weights.left, self.lift @ weights.right)

    def lower_weights(self, weights: Weights) -> Weights:
        """Bring weights for the original inputs to white ones."""
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
    scales, directions = input_range(problem.inputs)
    lift = directions / _nonzero(scales)
    matrix = problem.cross @ lift
    return Whitened(matrix, lift, directions * scales, _floor(problem, matrix))


def input_range(inputs: Array) -> tuple[Array, Array]:
    """Return the standard deviations of x along the range of C, descending, and its axes.

    Constant inputs have no range; one axis of deviation zero stands for it.
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

    M = C^½ has the eigenvectors of C on its left, so one eigendecomposition is all it takes.
    """
    scales, directions = input_range(inputs)
    matrix = directions * scales
    white = Whitened(matrix, directions / _nonzero(scales), matrix, 0.0)
    return white, (directions, scales, eye_like(scales.shape[0], inputs))


def _nonzero(scales: Array) -> Array:
    return where_set(scales, scales == 0, 1.0)


def _floor(problem: LinearProblem, matrix: Array) -> float:
    return max(problem.energy - scalar(squared_norm(matrix)), 0.0)
