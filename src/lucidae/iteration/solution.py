"""The result of an iteration: the last state, how the iteration ended, and the history."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Generic, TypeVar

import numpy as np

from lucidae.cards import Html, card, facts, sparkline, table
from lucidae.io import json_safe

State = TypeVar("State")


@dataclass(frozen=True, slots=True)
class History:
    """Quantities recorded during an iteration, such as the loss.

    Parameters
    ----------
    iterations : ndarray of shape (n_records,)
        Number of steps before each record; 0 is the start.
    values : mapping of str to ndarray
        One array per recorded quantity, by name. The first axis has one entry per record.

    Notes
    -----
    Notebooks show the first and the last value and a small curve of each quantity; `plot` draws
    one of them.

    Examples
    --------
    >>> history = History(np.array([0, 10]), {"energy": np.array([3.0, 1.0])})
    >>> history["energy"][-1], history.names
    (np.float64(1.0), ('energy',))
    """

    iterations: np.ndarray[Any, Any]
    values: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict)

    def __getitem__(self, name: str) -> np.ndarray[Any, Any]:
        return self.values[name]

    def __contains__(self, name: object) -> bool:
        return name in self.values

    def __iter__(self) -> Iterator[str]:
        return iter(self.values)

    def __len__(self) -> int:
        return len(self.iterations)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the recorded quantities."""
        return tuple(self.values)

    def to_dict(self) -> dict[str, list[Any]]:
        """Return the history as a dict of lists that JSON can store.

        Returns
        -------
        dict of str to list
            The iterations under ``"iteration"``, and each quantity under its name. Infinities and
            NaN become strings.
        """
        recorded = {name: json_safe(series.tolist()) for name, series in self.values.items()}
        return {"iteration": self.iterations.tolist()} | recorded

    def plot(self, *, quantity: str | None = None, ax: Any = None, **line: Any) -> Any:
        """Draw a recorded quantity against the iterations; see `lucidae.displays.HistoryDisplay`.

        Parameters
        ----------
        quantity : str, optional
            Name of the quantity. By default it is the loss, the energy or the objective if one of
            them was recorded, otherwise the distance to optimality.
        ax : matplotlib axes, optional
            Axes to draw on; by default a new figure is made.
        **line
            Keyword arguments of ``ax.plot``.

        Returns
        -------
        HistoryDisplay
            The display, already drawn; its axes are ``ax_``.
        """
        from lucidae.displays import HistoryDisplay

        return HistoryDisplay(self, quantity=quantity).plot(ax=ax, **line)

    def _repr_html_(self) -> str:
        return card(self._headline, self._html_table())

    @property
    def _headline(self) -> str:
        if not len(self):
            return "History without records"
        count, last = len(self), self.iterations[-1]
        return f"History: {count} record{'s' * (count != 1)} up to iteration {last}"

    def _html_table(self) -> Html:
        """Return a table of the recorded quantities; empty if there are no records."""
        if not len(self) or not self.values:
            return Html("")
        series = [np.asarray(values) for values in self.values.values()]
        return table(
            {
                "quantity": self.names,
                "first": [values[0] for values in series],
                "last": [values[-1] for values in series],
                "smallest": [_smallest(values) for values in series],
                "course": [
                    sparkline(values, f"{name}, first {values[0]}, last {values[-1]}")
                    for name, values in zip(self.names, series, strict=True)
                ],
            }
        )


def _smallest(values: np.ndarray[Any, Any]) -> float | None:
    """Return the smallest finite value of a vector; None for other arrays, or if none is finite."""
    finite = values[np.isfinite(values)] if values.ndim == 1 else values[:0]
    return float(finite.min()) if finite.size else None


class Status(StrEnum):
    """How an iteration ended, with advice to the user for each case.

    CONVERGED: the distance to optimality is within the tolerance. ITERATION_LIMIT: the largest
    number of steps was made first. DIVERGED: the distance became huge or NaN. STALLED: the distance
    no longer decreased. STOPPED: a callback stopped the iteration.

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
        """Whether the iteration converged: the distance to optimality is within the tolerance."""
        return self is Status.CONVERGED

    def advice(self, solution: Solution[Any]) -> str:
        """Return one or two sentences on how the iteration ended and what the user can do.

        Parameters
        ----------
        solution : Solution
            The result of the iteration, whose numbers are quoted.
        """
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
        "Diverged after {n_iter} iterations. The result is the last state before the divergence, "
        "at distance to optimality {distance:.3g}. Lower the learning rate, if the solver has one, "
        "or rescale the data."
    ),
    Status.STALLED: (
        "Stalled after {n_iter} iterations at distance to optimality {distance:.3g}, above the "
        "tolerance {tolerance:.3g}: further steps no longer reduce it. Raise tol if this accuracy "
        "is enough; if the data are float32, give them as float64."
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
        The last state; after a divergence, the last state before it.
    status : Status
        How the iteration ended.
    n_iter : int
        Number of steps taken.
    distance : float
        Distance to optimality of `value`.
    tolerance : float
        The distance to optimality at which the problem counts as solved.
    history : History
        The quantities recorded during the iteration.

    Notes
    -----
    Notebooks show how the iteration ended and its history; `plot` draws the history.

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
        """One or two sentences on how the iteration ended and what the user can do."""
        return self.status.advice(self)

    def plot(self, *, quantity: str | None = None, ax: Any = None, **line: Any) -> Any:
        """Draw the history of the iteration, as `History.plot`.

        Parameters
        ----------
        quantity : str, optional
            Name of the recorded quantity.
        ax : matplotlib axes, optional
            Axes to draw on; by default a new figure is made.
        **line
            Keyword arguments of ``ax.plot``.

        Returns
        -------
        HistoryDisplay
            The display, already drawn; its axes are ``ax_``.
        """
        return self.history.plot(quantity=quantity, ax=ax, **line)

    def _repr_html_(self) -> str:
        values = {
            "iterations": self.n_iter,
            "distance to optimality": self.distance,
            "tolerance": self.tolerance,
        }
        title = f"Solution: {self.status.value}"
        return card(title, facts(values), self.advice, self.history._html_table())


@dataclass(frozen=True, slots=True)
class BatchSolution(Generic[State]):
    """The results of an iteration over many problems at once, each of which ends on its own.

    Indexing by the number of a problem returns the `Solution` of that problem.

    Parameters
    ----------
    value : tuple of arrays
        The last states. The leading axis of each array has one entry per problem.
    status : tuple of Status
        How the iteration ended for each problem.
    n_iter : ndarray of int
        Number of steps that each problem took.
    distance : ndarray of float
        Distance to optimality of each problem.
    tolerance : float
        The distance to optimality at which a problem counts as solved.

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
        """Return the result of the problem with the given number, counted from 0."""
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
        """Boolean array with one entry per problem: whether it converged."""
        return np.array([status.ok for status in self.status], dtype=bool)

    def _repr_html_(self) -> str:
        count, solved = len(self), self.converged.sum()
        title = f"Solutions of {count} problem{'s' * (count != 1)}, {solved} converged"
        ends = list(dict.fromkeys(self.status))
        of_end = [np.array([status is end for status in self.status]) for end in ends]
        return card(
            title,
            table(
                {
                    "ended": ends,
                    "problems": [int(chosen.sum()) for chosen in of_end],
                    "most iterations": [int(self.n_iter[chosen].max()) for chosen in of_end],
                    "largest distance": [float(self.distance[chosen].max()) for chosen in of_end],
                }
            ),
            f"The tolerance of the distance to optimality is {self.tolerance:.3g}.",
        )


def joined(first: Solution[Any], second: Solution[Any]) -> Solution[Any]:
    """Return two solutions as one; the second must have started where the first ended."""
    iterations = np.concatenate(
        [first.history.iterations, second.history.iterations[1:] + first.n_iter]
    )
    values = {
        name: np.concatenate([series, second.history.values[name][1:]])
        for name, series in first.history.values.items()
    }
    history = History(iterations, values)
    return replace(second, n_iter=first.n_iter + second.n_iter, history=history)
