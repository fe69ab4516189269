"""The landscape of dropout with tied weights: critical points, saddles, and the way down.

The problem is f(U) = ‖M − UUᵀ‖² + λΣᵢ‖uᵢ‖⁴ (Mianjy et al. 2018, Problem 4) with M symmetric. The
proof that every local minimum is global heads `lucidae.dropout.theory`; its three directions of
descent are the three functions below.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from lucidae._arrays import (
    Array,
    as_double,
    eigh_descending,
    eye_like,
    largest,
    machine_epsilon,
    namespace,
    scalar,
    squared_norm,
    svd_thin,
    trace,
    zeros_like_shape,
)
from lucidae._validation import check_number, check_rows
from lucidae.dropout.objectives import DropoutObjective, LinearProblem
from lucidae.dropout.solvers import solve_tied

__all__ = ["Kind", "Verdict", "classify", "escape_directions", "tied_objective"]


class Kind(StrEnum):
    """What a point of the tied landscape is."""

    GLOBAL_MINIMUM = "global minimum"
    UNEQUALIZED_SADDLE = "strict saddle: not equalized"
    EQUALIZED_SADDLE = "strict saddle: equalized"
    NOT_CRITICAL = "not critical"


@dataclass(frozen=True, slots=True, eq=False)
class Verdict:
    """What `classify` found at a point.

    Parameters
    ----------
    kind : Kind
        Global minimum, strict saddle (equalized or not) or not critical.
    gap : float
        f(U) minus the global minimum.
    stationarity : float
        Norm of the gradient, relative to its scale.
    curvature : float
        ⟨Z, HZ⟩ / ‖Z‖² along `direction`; negative at a strict saddle, 0 at a minimum.
    direction : array of shape (d, r)
        Z of unit norm along which f falls: the negative gradient where it is not zero, a direction
        of negative curvature at a saddle, zeros at a minimum.
    reason : str
        One sentence that says which step of the proof applies.
    """

    kind: Kind
    gap: float
    stationarity: float
    curvature: float
    direction: Array
    reason: str


def tied_objective(M: Any, strength: float) -> DropoutObjective:
    """Return the objective with white inputs and target M, checked to be square."""
    matrix = as_double(check_rows(M, accept_sparse=False, name="M"))
    if matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"M has shape {tuple(matrix.shape)}: tied weights need a square M.")
    strength = check_number(strength, "strength", low=0.0)
    return DropoutObjective(LinearProblem.from_matrix((matrix + matrix.mT) / 2), strength)


def classify(
    U: Any, M: Any, strength: float, *, tolerance: float = 1e-6, critical: float | None = None
) -> Verdict:
    """Say what the point `U` is in the tied landscape, and which way is down.

    Parameters
    ----------
    U : array of shape (d, r)
        Tied weights.
    M : array of shape (d, d)
        The target; only its symmetric part matters.
    strength : float
        λ.
    tolerance : float, default=1e-6
        Relative gap to the global minimum that counts as none.
    critical : float, optional
        Relative norm of the gradient below which the point counts as critical; `tolerance` by
        default.

    Returns
    -------
    Verdict

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
            f"U has {factor.shape[0]} rows and M has {objective.problem.cross.shape[0]}."
        )
    optimum = solve_tied(objective.problem.cross, objective.strength, factor.shape[1])
    gap = scalar(objective.tied_value(factor)) - optimum.value
    stationarity = scalar(objective.tied_stationarity(factor))
    if gap <= tolerance * objective.problem.energy:
        nowhere = zeros_like_shape(factor.shape, factor)
        reason = "The value equals the global minimum of Theorem 2.4."
        return Verdict(Kind.GLOBAL_MINIMUM, gap, stationarity, 0.0, nowhere, reason)
    if stationarity > (tolerance if critical is None else critical):
        downhill = _unit(-objective.tied_gradient(factor))
        bend = _bend(objective, factor, downhill)
        reason = "The gradient does not vanish: its negative leads down."
        return Verdict(Kind.NOT_CRITICAL, gap, stationarity, bend, downhill, reason)
    return _saddle(objective, factor, gap, stationarity)


def _saddle(objective: DropoutObjective, factor: Array, gap: float, stationarity: float) -> Verdict:
    """Pick the direction of the proof along which the curvature is most negative."""
    found = {
        name: (_bend(objective, factor, direction), direction)
        for name, direction in escape_directions(objective, factor).items()
    }
    name = min(found, key=lambda key: found[key][0])
    curvature, direction = found[name]
    level = objective.strength == 0 or is_equalized(factor)
    kind = Kind.EQUALIZED_SADDLE if level else Kind.UNEQUALIZED_SADDLE
    return Verdict(kind, gap, stationarity, curvature, direction, _REASONS[name])


def escape_directions(objective: DropoutObjective, factor: Array) -> dict[str, Array]:
    """Return the unit directions of the proof that exist at `factor`, by name."""
    found = {name: make(objective, factor) for name, make in ESCAPES.items()}
    return {name: _unit(way) for name, way in found.items() if scalar(squared_norm(way)) > 0}


def rotation_escape(objective: DropoutObjective, factor: Array) -> Array:
    """Return the rotation of the longest column into the shortest (step 1)."""
    xp = namespace(factor)
    lengths = xp.sum(factor * factor, axis=0)
    longest, shortest = int(xp.argmax(lengths)), int(xp.argmin(lengths))
    units = eye_like(factor.shape[1], factor)
    turn = units[:, shortest][:, None] * units[:, longest][None, :]
    return factor @ (turn - turn.mT) * (1.0 if objective.strength > 0 else 0.0)


def growth_escape(objective: DropoutObjective, factor: Array) -> Array:
    """Return w aᵀ: a missing eigenvector w in a code direction a that is not used (step 2a)."""
    basis, singular_values, Qt = namespace(factor).linalg.svd(factor, full_matrices=True)
    rank = _rank(singular_values, factor)
    if rank >= min(Qt.shape[0], basis.shape[0]):
        return 0.0 * factor
    return _missing_eigenvector(objective, basis[:, :rank])[:, None] * Qt[-1, :][None, :]


def exchange_escape(objective: DropoutObjective, factor: Array) -> Array:
    """Return w wⱼᵀU: the smallest eigenvector in use turned to a missing larger one (step 2b)."""
    basis, singular_values, Qt = svd_thin(factor)
    rank = _rank(singular_values, factor)
    if rank == 0 or rank == factor.shape[0]:
        return 0.0 * factor
    missing = _missing_eigenvector(objective, basis[:, :rank])
    return missing[:, None] * Qt[rank - 1, :][None, :]


ESCAPES: dict[str, Callable[[DropoutObjective, Array], Array]] = {
    "rotation": rotation_escape,
    "growth": growth_escape,
    "exchange": exchange_escape,
}

_REASONS = {
    "rotation": "Two columns have different norms: rotate the longer one into the shorter.",
    "growth": "A leading eigenvector of M is missing: add it in an unused direction of the code.",
    "exchange": "A larger eigenvector of M is missing: turn the smallest one in use towards it.",
}


def _missing_eigenvector(objective: DropoutObjective, basis: Array) -> Array:
    """Return the leading eigenvector of M on the complement of the range of U."""
    matrix = objective.problem.cross
    outside = matrix - basis @ (basis.mT @ matrix)
    outside = outside - (outside @ basis) @ basis.mT
    # What lies inside the range must lose against a complement of negative eigenvalues.
    penalty = 1.0 + scalar(namespace(matrix).sqrt(squared_norm(matrix)))
    _, vectors = eigh_descending(outside - penalty * basis @ basis.mT)
    return vectors[:, 0]


def _rank(singular_values: Array, factor: Array) -> int:
    """Count singular values above √ε: those of a factor are roots of those of its product."""
    xp = namespace(singular_values)
    level = (max(factor.shape) * machine_epsilon(factor)) ** 0.5 * largest(singular_values[:1])
    return int(xp.sum(xp.astype(singular_values > level, xp.int64)))


def is_equalized(factor: Array, tolerance: float = 1e-6) -> bool:
    """Tell whether all columns have the same norm, up to a relative tolerance."""
    xp = namespace(factor)
    lengths = xp.sum(factor * factor, axis=0)
    return scalar(xp.max(lengths) - xp.min(lengths)) <= tolerance * scalar(xp.max(lengths))


def _bend(objective: DropoutObjective, factor: Array, direction: Array) -> float:
    """Return the second derivative of f along a unit direction."""
    return scalar(trace(direction.mT @ objective.tied_hessian_product(factor, direction)))


def _unit(direction: Array) -> Array:
    xp = namespace(direction)
    length = scalar(xp.sqrt(squared_norm(direction)))
    return direction / length if length > 0 else direction
