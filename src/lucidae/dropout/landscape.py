"""The loss landscape of dropout: critical points, strict saddles and negative curvature.

The tied problem (both layers share their weights U) is to minimise f(U) = ‖M − UUᵀ‖² + λΣᵢ‖uᵢ‖⁴ for
a symmetric target M and the strength λ of dropout (Mianjy et al. 2018, Problem 4). The docstring of
`lucidae.dropout.theory` proves that all its local minima are global.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations
from math import comb
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh

from lucidae.arrays import (
    Array,
    as_double,
    like,
    namespace,
    squared_norm,
    to_numpy,
    zeros_like_shape,
)
from lucidae.dropout.problem import DropoutObjective, LinearProblem, Weights
from lucidae.dropout.solvers import equalized_factors, solve_tied
from lucidae.dropout.theory import rank_tolerance
from lucidae.validation import check_integer, check_number, check_rows

Matrix = np.ndarray[Any, Any]

MOST_POINTS = 100_000
"""Largest number of sets of eigenvectors that `equalized_critical_points` enumerates."""

DENSE = 300
"""Up to this number of weights the Hessian is formed as a dense matrix."""


class Kind(StrEnum):
    """Kinds of points of the tied dropout loss: global minimum, strict saddle, not critical."""

    GLOBAL_MINIMUM = "global minimum"
    UNEQUALIZED_SADDLE = "strict saddle: not equalized"
    EQUALIZED_SADDLE = "strict saddle: equalized"
    NOT_CRITICAL = "not critical"


@dataclass(frozen=True, slots=True, eq=False)
class Classification:
    """The kind of a point U of the tied dropout loss f, and a direction in which f decreases."""

    kind: Kind  # global minimum, strict saddle (with columns of equal norm or not) or not critical
    gap: float  # loss f(U) minus the global minimum of f
    stationarity: float  # norm of the gradient divided by 4‖M‖ ‖U‖
    curvature: float  # second derivative of f along `direction`; 0 at a minimum
    direction: Array  # (d, r): unit norm; the negative gradient, or of negative curvature
    reason: str  # why f decreases along `direction`, or why it cannot decrease


def tied_objective(M: Any, strength: float) -> DropoutObjective:
    """Return the expected dropout loss for white inputs and the symmetric part of a square M."""
    matrix = as_double(check_rows(M, accept_sparse=False, name="M"))
    if matrix.shape[0] != matrix.shape[1]:
        raise ValueError(
            f"M has shape {tuple(matrix.shape)}, expected a square matrix for tied weights."
        )
    strength = check_number(strength, "strength", low=0.0)
    return DropoutObjective(LinearProblem.from_matrix((matrix + matrix.mT) / 2), strength)


def classify(
    U: Any, M: Any, strength: float, *, tolerance: float = 1e-6, critical: float | None = None
) -> Classification:
    """Return the kind of the point `U` of the tied dropout loss and a direction of descent.

    The loss is f(U) = ‖M − UUᵀ‖² + λΣ‖uᵢ‖⁴, with the columns uᵢ of U, one for each hidden unit.
    Every point is a global minimum, a strict saddle or not critical.

    Parameters
    ----------
    U : array of shape (d, r)
        Weights that both layers share, one column for each of the r hidden units.
    M : array of shape (d, d)
        The target; only its symmetric part matters.
    strength : float
        Strength λ = dropout / (1 − dropout) of dropout.
    tolerance : float, default=1e-6
        The point counts as a global minimum if its loss minus the minimum is at most this multiple
        of ‖M‖².
    critical : float, optional
        The point counts as critical if the norm of its gradient, divided by 4‖M‖ ‖U‖, is at most
        this; `tolerance` by default.

    Returns
    -------
    Classification
        The kind of the point, with the direction and the numbers that prove it.

    Examples
    --------
    >>> import numpy as np
    >>> verdict = classify(np.zeros((2, 2)), np.diag([2.0, 1.0]), 0.5)
    >>> str(verdict.kind), verdict.curvature
    ('strict saddle: equalized', -8.0)
    """
    objective = tied_objective(M, strength)
    factor = as_double(check_rows(U, accept_sparse=False, name="U"))
    if factor.shape[0] != objective.problem.cross.shape[0]:
        raise ValueError(
            f"U has {factor.shape[0]} rows and M has {objective.problem.cross.shape[0]}, expected "
            "equal numbers, one row per feature."
        )
    optimum = solve_tied(objective.problem.cross, objective.strength, factor.shape[1])
    gap = float(objective.tied_value(factor)) - optimum.value
    stationarity = float(objective.tied_stationarity(factor))
    if gap <= tolerance * objective.problem.energy:
        no_direction = zeros_like_shape(factor.shape, factor)
        reason = "The loss equals the global minimum (Mianjy et al. 2018, Theorem 2.4)."
        return Classification(Kind.GLOBAL_MINIMUM, gap, stationarity, 0.0, no_direction, reason)
    if stationarity > (tolerance if critical is None else critical):
        slope = objective.tied_gradient(factor)
        downhill = -slope / float(squared_norm(slope)) ** 0.5
        curved = objective.tied_hessian_product(factor, downhill)
        curvature = float(namespace(curved).linalg.trace(downhill.mT @ curved))
        reason = "The gradient is not zero: its negative is a direction of descent."
        return Classification(Kind.NOT_CRITICAL, gap, stationarity, curvature, downhill, reason)
    curvature, weights = smallest_curvature(objective, Weights(factor, factor), tied=True)
    lengths = to_numpy(factor * factor).sum(axis=0)  # equal up to 1e-6 of the largest
    equalized = objective.strength == 0 or np.ptp(lengths) <= 1e-6 * lengths.max()
    kind = Kind.EQUALIZED_SADDLE if equalized else Kind.UNEQUALIZED_SADDLE
    reason = "The Hessian has a negative eigenvalue: the loss decreases along its eigenvector."
    return Classification(kind, gap, stationarity, curvature, weights.left, reason)


@dataclass(frozen=True, slots=True, eq=False)
class CriticalPoint:
    """A critical point of the tied dropout loss whose hidden units have equal norms.

    Points that differ by a rotation of the hidden units are counted once.
    """

    eigenvectors: tuple[int, ...]  # indices of those of M that span the range of U
    value: float  # the loss f(U)
    index: int  # number of negative eigenvalues of the Hessian; 0 for a minimum
    factor: Matrix  # (d, r): one such U


def equalized_critical_points(M: Any, strength: float, width: int) -> tuple[CriticalPoint, ...]:
    """Return all critical points of a small tied dropout loss whose columns have equal norms.

    The loss is f(U) = ‖M − UUᵀ‖² + λΣ‖uᵢ‖⁴; points that differ by a rotation of the r hidden units
    are counted once. A set E of e eigenvalues mⱼ of M gives a critical point with squared singular
    values mⱼ − α, α = λ Σ mⱼ / (r + λe), if all of them are positive (Mianjy et al. 2018, eq. 17).
    For every k outside E the Hessian has the eigenvalues 4(mⱼ − mₖ) for all j in E (directions
    wₖwⱼᵀU with the eigenvectors w of M) and 4(α − mₖ) with multiplicity r − e (directions wₖaᵀ
    with Ua = 0). On the remaining directions, those inside the range of U, it has no negative
    eigenvalue, since U is the global minimum of the problem restricted to its range.

    Parameters
    ----------
    M : array of shape (d, d)
        The target; only its symmetric part matters.
    strength : float
        Strength λ = dropout / (1 − dropout) of dropout.
    width : int
        Number r of hidden units.

    Returns
    -------
    tuple of CriticalPoint
        Sorted by their loss, the global minimum first.

    Examples
    --------
    >>> import numpy as np
    >>> points = equalized_critical_points(np.diag([3.0, 2.0]), 0.5, 2)
    >>> [(point.eigenvectors, round(point.value, 3), point.index) for point in points]
    [((0, 1), 4.167, 0), ((0,), 5.8, 1), ((1,), 9.8, 2), ((), 13.0, 4)]
    """
    objective = tied_objective(M, strength)
    width = check_integer(width, "width", low=1)
    eigenvalues, vectors = np.linalg.eigh(to_numpy(objective.problem.cross))
    eigenvalues, vectors = eigenvalues[::-1], vectors[:, ::-1]
    positive = int(np.sum(eigenvalues > rank_tolerance(np.abs(eigenvalues[:1]), len(eigenvalues))))
    largest = min(positive, width)
    count = sum(comb(positive, size) for size in range(largest + 1))
    if count > MOST_POINTS:
        raise ValueError(
            f"M has {positive} positive eigenvalues and therefore {count} sets of eigenvectors to "
            f"examine, expected at most {MOST_POINTS}. Give a smaller M or a smaller width."
        )
    sets = (E for size in range(largest + 1) for E in combinations(range(positive), size))
    points = (_point(E, eigenvalues, vectors, objective.strength, width) for E in sets)
    return tuple(sorted(filter(None, points), key=lambda point: point.value))


def _point(
    chosen: tuple[int, ...], eigenvalues: Matrix, vectors: Matrix, strength: float, width: int
) -> CriticalPoint | None:
    """Return the critical point that the chosen eigenvectors span; None if there is none."""
    members = list(chosen)
    used, left = eigenvalues[members], np.delete(eigenvalues, members)
    threshold = strength * used.sum() / (width + strength * len(used))
    squares = used - threshold
    if np.any(squares <= 0):
        return None
    # The index counts the negative eigenvalues of the docstring above: pairs with mₖ > mⱼ, and
    # r − e unused directions of the hidden layer for every mₖ > α.
    value = float(np.sum(left**2) + strength * used.sum() ** 2 / (width + strength * len(used)))
    exchanges = int(np.sum(left[:, None] > used[None, :]))
    growths = (width - len(used)) * int(np.sum(left > threshold))
    factor, _ = equalized_factors(vectors[:, members], squares, vectors[:, members], width)
    return CriticalPoint(chosen, value, exchanges + growths, factor)


def smallest_curvature(
    objective: DropoutObjective, weights: Weights, *, tied: bool = False
) -> tuple[float, Weights]:
    """Return the smallest eigenvalue of the Hessian of the loss, and its unit eigenvector.

    Parameters
    ----------
    objective : DropoutObjective
        The expected dropout loss.
    weights : Weights
        The weights U and V at which the Hessian is taken.
    tied : bool, default=False
        Whether both layers share ``weights.left``.

    Returns
    -------
    curvature : float
        The smallest eigenvalue; NaN if the iteration for it did not converge.
    direction : Weights
        Its eigenvector, in the shape of `weights`.

    Examples
    --------
    >>> import numpy as np
    >>> from lucidae.dropout import LinearProblem
    >>> objective = DropoutObjective(LinearProblem.from_matrix(np.eye(2)), 0.5)
    >>> curvature, _ = smallest_curvature(objective, Weights(np.zeros((2, 1)), np.zeros((2, 1))))
    >>> round(curvature, 6)
    -2.0
    """
    size = sum(int(np.prod(part.shape)) for part in (weights[:1] if tied else weights))

    def product(vector: Matrix) -> Matrix:
        direction = _unpack(vector, weights, tied)
        parts = (
            (objective.tied_hessian_product(weights.left, direction.left),)
            if tied
            else objective.hessian_product(weights, direction)
        )
        return np.concatenate([to_numpy(part).reshape(-1) for part in parts])

    hessian = LinearOperator((size, size), matvec=product, dtype=np.float64)
    value, vector = _lowest_eigenpair(hessian)
    return value, _unpack(vector, weights, tied)


def _unpack(vector: Matrix, weights: Weights, tied: bool) -> Weights:
    """Return the weights of both layers from one vector of all weights."""
    flat = np.asarray(vector).reshape(-1)
    split = int(np.prod(weights.left.shape))
    left = like(flat[:split].reshape(weights.left.shape), weights.left)
    if tied:
        return Weights(left, left)
    return Weights(left, like(flat[split:].reshape(weights.right.shape), weights.right))


def _lowest_eigenpair(operator: LinearOperator) -> tuple[float, Matrix]:
    """Return the smallest eigenvalue of a symmetric operator and its unit eigenvector.

    NaN and a zero vector if the Lanczos iteration does not converge.
    """
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


class Surface(NamedTuple):
    """Dropout loss of a network with one input and one output, over two tied weights (u₁, u₂)."""

    axis: Matrix  # (n,): values of u₁, which are also those of u₂
    # (n, n): the loss at each pair; rows belong to values of u₂, columns to values of u₁, as
    # plotting libraries expect
    values: Matrix
    # (n_minima, 2): the global minima (u₁, u₂); empty without dropout, where they form a circle
    minima: Matrix
    # values of the loss at which to draw contours, equally spaced in its square root
    levels: Matrix


def scalar_surface(
    target: float = 2.0, strength: float = 0.5, *, extent: float | None = None, points: int = 101
) -> Surface:
    """Return the dropout loss of a network with one input and one output, on a grid of weights.

    It has two hidden units with tied weights u₁ and u₂. The loss is (m − u₁² − u₂²)² + λ(u₁⁴ +
    u₂⁴), as in Mianjy et al. 2018, Figure 1.

    Parameters
    ----------
    target : float, default=2.0
        The scalar target m.
    strength : float, default=0.5
        Strength λ = dropout / (1 − dropout) of dropout.
    extent : float, optional
        The weights run from −extent to extent; 1.5 √|m| by default.
    points : int, default=101
        Number of grid points along either axis.

    Returns
    -------
    Surface
        The values of the weights, the loss at each pair of them, and its global minima.

    Examples
    --------
    >>> surface = scalar_surface(2.0, 1.0)
    >>> surface.minima[0].round(6)
    array([0.816497, 0.816497])
    """
    target = check_number(target, "target")
    strength = check_number(strength, "strength", low=0.0)
    reach = 1.5 * max(abs(target), 1e-300) ** 0.5 if extent is None else extent
    reach = check_number(reach, "extent", low=0.0, open_low=True)
    axis = np.linspace(-reach, reach, check_integer(points, "points", low=2))
    first, second = axis[None, :] ** 2, axis[:, None] ** 2
    values = (target - first - second) ** 2 + strength * (first**2 + second**2)
    levels = np.linspace(np.sqrt(values.min()), np.sqrt(values.max()), 22)[1:-1] ** 2
    # The minima are (±u, ±u) with u² = m/(2 + λ), or the origin; for λ = 0 they form a circle.
    minima = np.zeros((1, 2))
    if target > 0:
        signs = np.array([[1, 1], [-1, 1], [-1, -1], [1, -1]]) if strength > 0 else np.empty((0, 2))
        minima = (target / (2.0 + strength)) ** 0.5 * signs
    return Surface(axis, values, minima, levels)
