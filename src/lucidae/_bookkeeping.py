"""What the iteration loop keeps account of: verdicts, milestones, records, finished problems."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lucidae._arrays import Array, device, namespace, to_numpy
from lucidae._validation import check_integer
from lucidae.solution import BatchSolution, History, Status

EXPLOSION = 1e10
"""Growth of the distance over its start (or over 1) that counts as divergence."""


@dataclass(frozen=True, slots=True)
class Below:
    """Stop when a distance to optimality is at most `tolerance`.

    Parameters
    ----------
    distance : callable
        From a state to its dimensionless distance to optimality: a number for one problem,
        an array with one entry per problem for a stack.
    tolerance : float
        The distance at which the problem counts as solved.
    patience : int, optional
        Number of checks without a new best distance after which the iteration is stalled.

    Examples
    --------
    >>> Below(abs, 1e-3).tolerance
    0.001
    """

    distance: Callable[[Any], Any]
    tolerance: float
    patience: int | None = None

    def __post_init__(self) -> None:
        if math.isnan(self.tolerance):
            raise ValueError("tolerance=nan was given, expected a number.")
        if self.patience is not None:
            check_integer(self.patience, "patience", low=1)


class Judge:
    """Gives each running problem its verdict: a Status, or None to go on."""

    def __init__(self, stop: Below, count: int) -> None:
        self.stop = stop
        self.best = np.full(count, np.inf)
        self.waited = np.zeros(count, dtype=int)
        self.latest = np.full(count, np.nan)
        self.ceiling: Array | None = None

    def __call__(self, distances: Array, exhausted: bool) -> Array:
        if distances.shape != self.latest.shape:
            raise ValueError(
                f"the distance has shape {distances.shape}, expected {self.latest.shape}: "
                "one entry per problem."
            )
        if self.ceiling is None:
            self.ceiling = EXPLOSION * np.maximum(distances, 1.0)
        self.latest = distances
        improved = distances < self.best
        self.best = np.where(improved, distances, self.best)
        self.waited = np.where(improved, 0, self.waited + 1)
        return self._verdicts(exhausted)

    def _verdicts(self, exhausted: bool) -> Array:
        """Return one verdict per problem; a later line overrules those above it."""
        verdicts = np.full(self.latest.shape, None, dtype=object)
        if self.stop.patience is not None:
            verdicts[self.waited >= self.stop.patience] = Status.STALLED
        if exhausted:
            verdicts[:] = Status.ITERATION_LIMIT
        verdicts[self.latest <= self.stop.tolerance] = Status.CONVERGED
        verdicts[~(self.latest <= self.ceiling) | np.isinf(self.latest)] = Status.DIVERGED
        return verdicts

    def drop(self, finished: Array) -> None:
        """Forget the problems that have left."""
        for name in ("best", "waited", "latest", "ceiling"):
            setattr(self, name, getattr(self, name)[~finished])


class Schedule:
    """Knows at which iterations something is checked or recorded."""

    def __init__(
        self,
        limit: int,
        check_every: int,
        record_at: int | Iterable[int] | None = None,
        first: int = 0,
    ) -> None:
        self.limit = check_integer(limit, "limit", low=0)
        self.check_every = check_integer(check_every, "check_every", low=1)
        check_integer(first, "first", low=0, high=limit)
        self.record_every: int | None = None
        self.fixed: list[int] | None = None
        if isinstance(record_at, int | np.integer):
            self.record_every = check_integer(record_at, "record_at", low=1)
        elif record_at is not None:
            self.fixed = sorted({check_integer(i, "record_at", low=0) for i in record_at})

    def after(self, n_iter: int) -> int:
        """Return the next iteration at which to look."""
        following = [self.limit, _next_multiple(n_iter, self.check_every)]
        if self.record_every is not None:
            following.append(_next_multiple(n_iter, self.record_every))
        if self.fixed is not None:
            position = bisect_right(self.fixed, n_iter)
            following.extend(self.fixed[position : position + 1])
        return min(following)

    def records(self, n_iter: int) -> bool:
        """Tell whether iteration `n_iter` belongs in the history."""
        if self.record_every is not None:
            return n_iter % self.record_every == 0 or n_iter == self.limit
        if self.fixed is not None:
            position = bisect_right(self.fixed, n_iter)
            return position > 0 and self.fixed[position - 1] == n_iter
        return True


def _next_multiple(n_iter: int, stride: int) -> int:
    return (n_iter // stride + 1) * stride


class Recorder:
    """Keeps the quantities that the caller named, at the iterations that are due."""

    def __init__(self, quantities: Mapping[str, Callable[[Any], Any]]) -> None:
        self.quantities = quantities
        self.iterations: list[int] = []
        self.values: dict[str, list[Any]] = {name: [] for name in ("distance", *quantities)}

    def take(self, n_iter: int, state: Any, distance: float) -> None:
        self.iterations.append(n_iter)
        self.values["distance"].append(distance)
        for name, quantity in self.quantities.items():
            self.values[name].append(to_numpy(quantity(state)))

    def history(self) -> History:
        return History(
            np.array(self.iterations, dtype=int),
            {name: np.array(series) for name, series in self.values.items()},
        )


class Ledger:
    """Collects the problems of a stack as they finish and puts them back in order."""

    def __init__(self, count: int) -> None:
        self.running = np.arange(count)
        self.pieces: list[tuple[Array, Any]] = []
        self.status = np.full(count, None, dtype=object)
        self.n_iter = np.zeros(count, dtype=int)
        self.distance = np.full(count, np.nan)

    def close(
        self, mask: Array, n_iter: int, state: Any, distances: Array, verdicts: Array
    ) -> None:
        """Enter the running problems of `mask` as finished."""
        if not mask.any():
            return
        problems = self.running[mask]
        self.pieces.append((problems, take_problems(state, mask)))
        self.n_iter[problems] = n_iter
        self.distance[problems] = distances[mask]
        self.status[problems] = verdicts[mask]

    def close_all(self, n_iter: int, state: Any, distances: Array, verdict: Status) -> None:
        """Enter all that are left with the same verdict."""
        everything = np.ones(self.running.size, dtype=bool)
        self.close(
            everything, n_iter, state, distances, np.full(everything.shape, verdict, dtype=object)
        )
        self.drop(everything)

    def drop(self, finished: Array) -> None:
        """Take the finished problems off the running ones."""
        self.running = self.running[~finished]

    def solution(self, start: Any, tolerance: float) -> BatchSolution[Any]:
        """Return all problems in their first order; `start` stands for an empty stack."""
        if not self.pieces:
            return BatchSolution(start, (), self.n_iter, self.distance, tolerance)
        order = np.argsort(np.concatenate([problems for problems, _ in self.pieces]))
        index, xp = _index(order, start[0]), namespace(start[0])
        columns = zip(*(state for _, state in self.pieces), strict=True)
        stacked = [xp.take(xp.concat(column, axis=0), index, axis=0) for column in columns]
        return BatchSolution(
            type(start)(*stacked), tuple(self.status), self.n_iter, self.distance, tolerance
        )


def take_problems(state: Any, mask: Array) -> Any:
    """Return the NamedTuple `state` restricted to the problems of `mask` on its leading axis."""
    if mask.all():
        return state
    index = _index(np.flatnonzero(mask), state[0])
    return type(state)(*(namespace(values).take(values, index, axis=0) for values in state))


def _index(positions: Array, reference: Array) -> Array:
    """Bring positions to the device once, for all fields."""
    return namespace(reference).asarray(positions, device=device(reference))
