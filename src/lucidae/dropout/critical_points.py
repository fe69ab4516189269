"""All equalized critical points of a small tied problem, and its surface when M is a number."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import Any, NamedTuple

import numpy as np

from lucidae._arrays import to_numpy
from lucidae._validation import check_integer, check_number
from lucidae.dropout.equalize import equalized_factors
from lucidae.dropout.landscape import tied_objective
from lucidae.dropout.theory import rank_tolerance

__all__ = ["CriticalPoint", "Surface", "equalized_critical_points", "scalar_surface"]

Matrix = np.ndarray[Any, Any]

MOST_POINTS = 100_000
"""More index sets than this are not enumerated."""


@dataclass(frozen=True, slots=True, eq=False)
class CriticalPoint:
    """An equalized critical point of f(U) = ‖M − UUᵀ‖² + λΣ‖uᵢ‖⁴, up to rotations of the code.

    Parameters
    ----------
    eigenvectors : tuple of int
        E, the eigenvectors of M in the range of U; 0 is the leading one.
    value : float
        f.
    index : int
        Number of negative eigenvalues of the Hessian; 0 for a minimum.
    factor : array of shape (d, r)
        A representative U.
    """

    eigenvectors: tuple[int, ...]
    value: float
    index: int
    factor: Matrix


def equalized_critical_points(M: Any, strength: float, width: int) -> tuple[CriticalPoint, ...]:
    """Return every equalized critical point of a small tied problem, lowest first.

    On an index set E of eigenvalues m they have the squared singular values m_E − α with
    α = λ Σ_E m / (r + λ|E|), wherever all of these are positive (Mianjy et al. 2018, eq. 17). Off
    the range of U the Hessian has the eigenvalues 4(mⱼ − mₖ), j in E, and r − |E| times
    4(α − mₖ) for every k outside E; on the range it has no negative one, since U is a global
    minimum there.

    Parameters
    ----------
    M : array of shape (d, d)
        The target; only its symmetric part matters.
    strength : float
        λ.
    width : int
        r.

    Returns
    -------
    tuple of CriticalPoint

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
            f"M has {positive} positive eigenvalues and so {count} index sets, more than "
            f"{MOST_POINTS}: enumerate a smaller matrix."
        )
    sets = (E for size in range(largest + 1) for E in combinations(range(positive), size))
    points = (_point(E, eigenvalues, vectors, objective.strength, width) for E in sets)
    return tuple(sorted(filter(None, points), key=lambda point: point.value))


def _point(
    chosen: tuple[int, ...], eigenvalues: Matrix, vectors: Matrix, strength: float, width: int
) -> CriticalPoint | None:
    """Return the critical point on an index set, or None where it does not exist."""
    members = list(chosen)
    used, left = eigenvalues[members], np.delete(eigenvalues, members)
    threshold = strength * used.sum() / (width + strength * len(used))
    squares = used - threshold
    if np.any(squares <= 0):
        return None
    value = float(np.sum(left**2) + strength * used.sum() ** 2 / (width + strength * len(used)))
    exchanges = int(np.sum(left[:, None] > used[None, :]))
    growths = (width - len(used)) * int(np.sum(left > threshold))
    factor, _ = equalized_factors(vectors[:, members], squares, vectors[:, members], width)
    return CriticalPoint(chosen, value, exchanges + growths, factor)


class Surface(NamedTuple):
    """The loss over two tied weights (u₁, u₂) of a scalar network.

    Attributes
    ----------
    axis : array of shape (n,)
        Values of either weight.
    values : array of shape (n, n)
        The loss; the first axis is u₂, the second u₁, as plotting libraries want it.
    minima : array of shape (n_minima, 2)
        The global minima; empty when λ = 0, where they fill a circle.
    levels : array
        Levels for contours, equally spaced in the square root of the loss.
    """

    axis: Matrix
    values: Matrix
    minima: Matrix
    levels: Matrix


def scalar_surface(
    target: float = 2.0, strength: float = 0.5, *, extent: float | None = None, points: int = 101
) -> Surface:
    """Return the surface of (m − u₁² − u₂²)² + λ(u₁⁴ + u₂⁴) (Mianjy et al. 2018, Figure 1).

    Parameters
    ----------
    target : float, default=2.0
        The scalar m.
    strength : float, default=0.5
        λ.
    extent : float, optional
        The weights run from −extent to extent; 1.5 √|m| by default.
    points : int, default=101
        Points along either axis.

    Returns
    -------
    Surface

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
    return Surface(axis, values, _scalar_minima(target, strength), levels)


def _scalar_minima(target: float, strength: float) -> Matrix:
    """Return (±u, ±u) with u² = m/(2 + λ): both weights take half of the shrunken target."""
    if target <= 0:
        return np.zeros((1, 2))
    if strength == 0:
        return np.empty((0, 2))
    weight = (target / (2.0 + strength)) ** 0.5
    signs = np.array([[1, 1], [-1, 1], [-1, -1], [1, -1]])
    return np.asarray(weight * signs)
