"""The smallest curvature of the expected dropout loss, by products with its Hessian."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh

from lucidae._arrays import like, to_numpy
from lucidae.dropout.objectives import DropoutObjective, Weights

__all__ = ["smallest_curvature"]

Vector = np.ndarray[Any, Any]

DENSE = 300
"""Up to this many weights the Hessian is formed."""


def smallest_curvature(
    objective: DropoutObjective, weights: Weights, *, tied: bool = False
) -> tuple[float, Weights]:
    """Return the smallest eigenvalue of the Hessian at `weights` and its unit eigenvector.

    Parameters
    ----------
    objective : DropoutObjective
        The loss.
    weights : Weights
        Where to look.
    tied : bool, default=False
        Whether both layers share ``weights.left``.

    Returns
    -------
    curvature : float
    direction : Weights

    Examples
    --------
    >>> import numpy as np
    >>> from lucidae.dropout.objectives import LinearProblem
    >>> objective = DropoutObjective(LinearProblem.from_matrix(np.eye(2)), 0.5)
    >>> curvature, _ = smallest_curvature(objective, Weights(np.zeros((2, 1)), np.zeros((2, 1))))
    >>> round(curvature, 6)
    -2.0
    """
    operator = _hessian(objective, weights, tied)
    value, vector = _lowest_eigenpair(operator)
    return value, _unpack(vector, weights, tied)


def _hessian(objective: DropoutObjective, weights: Weights, tied: bool) -> LinearOperator:
    size = sum(int(np.prod(part.shape)) for part in (weights[:1] if tied else weights))

    def product(vector: Vector) -> Vector:
        direction = _unpack(vector, weights, tied)
        if tied:
            return to_numpy(objective.tied_hessian_product(weights.left, direction.left)).reshape(
                -1
            )
        return np.concatenate(
            [to_numpy(part).reshape(-1) for part in objective.hessian_product(weights, direction)]
        )

    return LinearOperator((size, size), matvec=product, dtype=np.float64)


def _unpack(vector: Vector, weights: Weights, tied: bool) -> Weights:
    flat = np.asarray(vector).reshape(-1)
    split = int(np.prod(weights.left.shape))
    left = like(flat[:split].reshape(weights.left.shape), weights.left)
    if tied:
        return Weights(left, left)
    return Weights(left, like(flat[split:].reshape(weights.right.shape), weights.right))


def _lowest_eigenpair(operator: LinearOperator) -> tuple[float, Vector]:
    """Dense below a size, Lanczos from a fixed start above it."""
    size = operator.shape[0]
    if size <= DENSE:
        values, vectors = np.linalg.eigh(operator @ np.eye(size))
        return float(values[0]), vectors[:, 0]
    start = np.random.default_rng(0).standard_normal(size)
    try:
        values, vectors = eigsh(operator, k=1, which="SA", v0=start, tol=1e-4, maxiter=20 * size)
    except ArpackError:
        return float("nan"), np.zeros(size)
    return float(values[0]), vectors[:, 0]
