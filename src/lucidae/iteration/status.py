"""The result of an iteration: the value, the status and the history."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Generic, TypeVar

import numpy as np

from lucidae.io.models import saved_as
from lucidae.iteration.history import History

State = TypeVar("State")


@saved_as("lucidae.status/1", formerly="lucidae.solution:Status")
class Status(StrEnum):
    """How an iteration ended; each member has advice on what to do.

    Examples
    --------
    >>> Status.CONVERGED
    <Status.CONVERGED: 'converged'>
    >>> Status.CONVERGED.ok, Status.DIVERGED.ok
    (True, False)
    """

    CONVERGED = "converged"
    ITERATION_LIMIT = "iteration limit"
    DIVERGED = "diverged"
    STALLED = "stalled"
    STOPPED = "stopped"

    @property
    def ok(self) -> bool:
        """Whether the distance to optimality fell below the tolerance."""
        return self is Status.CONVERGED

    def advice(self, solution: Solution[Any]) -> str:
        """Describe in one or two sentences what happened in `solution` and what to do next."""
        return _ADVICE[self].format(
            n_iter=solution.n_iter, distance=solution.distance, tolerance=solution.tolerance
        )


_ADVICE = {
    Status.CONVERGED: (
        "Converged after {n_iter} iterations: distance to optimality {distance:.3g}, "
        "tolerance {tolerance:.3g}."
    ),
    Status.ITERATION_LIMIT: (
        "Stopped at the limit of {n_iter} iterations with distance to optimality {distance:.3g}, "
        "above the tolerance {tolerance:.3g}. Raise max_iter, or tol if this accuracy is enough."
    ),
    Status.DIVERGED: (
        "Diverged after {n_iter} iterations. The result is the last state that had not diverged, "
        "at distance to optimality {distance:.3g}. Lower the learning rate, if the solver has one, "
        "or rescale the data."
    ),
    Status.STALLED: (
        "Stalled after {n_iter} iterations at distance to optimality {distance:.3g}, above the "
        "tolerance {tolerance:.3g}: further steps no longer reduce it. Raise tol if this accuracy "
        "is enough, or use float64."
    ),
    Status.STOPPED: (
        "Stopped by a callback after {n_iter} iterations at distance to optimality {distance:.3g}."
    ),
}


@dataclass(frozen=True, slots=True)
class Solution(Generic[State]):
    """The result of an iteration on one problem.

    Parameters
    ----------
    value : object
        The last state, or the last finite one after a divergence.
    status : Status
        How the iteration ended.
    n_iter : int
        Number of steps taken.
    distance : float
        Distance to optimality of `value`.
    tolerance : float
        The distance at which the problem counts as solved.
    history : History
        The recorded quantities.

    Examples
    --------
    >>> solution = Solution(1.0, Status.CONVERGED, 5, 1e-4, 1e-3)
    >>> print(solution.advice)
    Converged after 5 iterations: distance to optimality 0.0001, tolerance 0.001.
    """

    value: State
    status: Status
    n_iter: int
    distance: float
    tolerance: float
    history: History = field(default_factory=lambda: History(np.empty(0, dtype=int)))

    @property
    def advice(self) -> str:
        """What happened, and what to do next."""
        return self.status.advice(self)


@dataclass(frozen=True, slots=True)
class BatchSolution(Generic[State]):
    """The result of an iteration over a stack of problems, each of which ends on its own.

    Indexing by the number of a problem returns the `Solution` of that problem.

    Parameters
    ----------
    value : tuple of arrays
        The final states, stacked along the leading axis in the order of the problems.
    status : tuple of Status
        How each problem ended.
    n_iter : ndarray of int
        Number of steps that each problem took.
    distance : ndarray of float
        Distance to optimality of each problem.
    tolerance : float
        The distance at which the problem counts as solved.

    Examples
    --------
    >>> from typing import NamedTuple
    >>> class Numbers(NamedTuple):
    ...     x: np.ndarray
    >>> value = Numbers(np.array([0.5]))
    >>> ended = BatchSolution(value, (Status.CONVERGED,), np.array([3]), np.array([1e-9]), 1e-6)
    >>> ended.converged
    array([ True])
    >>> print(ended[0].advice)
    Converged after 3 iterations: distance to optimality 1e-09, tolerance 1e-06.
    """

    value: State
    status: tuple[Status, ...]
    n_iter: np.ndarray[Any, Any]
    distance: np.ndarray[Any, Any]
    tolerance: float

    def __len__(self) -> int:
        return len(self.status)

    def __getitem__(self, problem: int) -> Solution[Any]:
        """Return the result of one problem."""
        stacks: Any = self.value
        value = type(stacks)(*(stack[problem, ...] for stack in stacks))
        return Solution(
            value,
            self.status[problem],
            int(self.n_iter[problem]),
            float(self.distance[problem]),
            self.tolerance,
        )

    @property
    def converged(self) -> np.ndarray[Any, Any]:
        """Mask of the problems that converged."""
        return np.array([status.ok for status in self.status], dtype=bool)
