"""What the iteration loop keeps account of: verdicts, milestones, records, finished problems."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lucidae._arrays import Array, device, namespace, to_numpy
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


class Judge:
    """Gives each running problem its verdict: a Status, or None to go on."""

    def __init__(self, stop: Below, count: int) -> None:
        self.stop = stop
        self.best = np.full(count, np.inf)
        self.waited = np.zeros(count, dtype=int)
        self.ceiling = np.full(count, np.inf)
        self.previous = np.full(count, np.nan)
        self._latest = np.full(count, np.nan)

    def __call__(self, distances: Array, exhausted: bool) -> list[Status | None]:
        self.previous, self._latest = self._latest, np.asarray(distances, dtype=float)
        if np.isinf(self.ceiling).all():
            self.ceiling = EXPLOSION * np.maximum(np.abs(distances), 1.0)
        improved = distances < self.best
        self.best = np.where(improved, distances, self.best)
        self.waited = np.where(improved, 0, self.waited + 1)
        return [self._verdict(index, exhausted) for index in range(len(distances))]

    def _verdict(self, index: int, exhausted: bool) -> Status | None:
        distance = self._latest[index]
        if not np.isfinite(distance) or distance > self.ceiling[index]:
            return Status.DIVERGED
        if distance <= self.stop.tolerance:
            return Status.CONVERGED
        if exhausted:
            return Status.ITERATION_LIMIT
        if self.stop.patience is not None and self.waited[index] >= self.stop.patience:
            return Status.STALLED
        return None

    def drop(self, finished: Array) -> None:
        """Forget the problems that have left."""
        for name in ("best", "waited", "ceiling", "previous", "_latest"):
            setattr(self, name, getattr(self, name)[~finished])


class Schedule:
    """Knows at which iterations something is checked or recorded."""

    def __init__(self, limit: int, check_every: int, record_at: int | Iterable[int] | None) -> None:
        if limit < 0 or check_every < 1:
            raise ValueError(
                f"limit={limit} and check_every={check_every} were given, "
                "expected at least 0 and at least 1."
            )
        self.limit = limit
        self.check_every = check_every
        self.record_every = record_at if isinstance(record_at, int) else None
        fixed = None if record_at is None or isinstance(record_at, int) else sorted(set(record_at))
        self.fixed: list[int] | None = fixed

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


@dataclass(slots=True)
class Ledger:
    """Collects the problems of a stack as they finish and puts them back in order."""

    count: int
    running: Array = field(init=False)
    pieces: list[tuple[Array, Any]] = field(default_factory=list)
    status: dict[int, Status] = field(default_factory=dict)
    n_iter: Array = field(init=False)
    distance: Array = field(init=False)

    def __post_init__(self) -> None:
        self.running = np.arange(self.count)
        self.n_iter = np.zeros(self.count, dtype=int)
        self.distance = np.full(self.count, np.nan)

    def close(
        self, n_iter: int, mask: Array, state: Any, distances: Array, verdicts: list[Status | None]
    ) -> None:
        positions = np.flatnonzero(mask)
        if not positions.size:
            return
        problems = self.running[positions]
        self.pieces.append((problems, take_problems(state, positions)))
        self.n_iter[problems] = n_iter
        self.distance[problems] = distances[positions]
        verdict_of = (verdicts[position] for position in positions)
        self.status.update(
            (int(problem), verdict)
            for problem, verdict in zip(problems, verdict_of, strict=True)
            if verdict is not None
        )

    def drop(self, finished: Array) -> None:
        self.running = self.running[~finished]

    def solution(self, tolerance: float) -> BatchSolution[Any]:
        order = np.argsort(np.concatenate([problems for problems, _ in self.pieces]))
        states = [state for _, state in self.pieces]
        xp = namespace(*states[0])
        stacked = type(states[0])(
            *(xp.concat([state[i] for state in states], axis=0) for i in range(len(states[0])))
        )
        return BatchSolution(
            take_problems(stacked, order),
            tuple(self.status[problem] for problem in range(self.count)),
            self.n_iter,
            self.distance,
            tolerance,
        )


def take_problems(state: Any, indices: Array) -> Any:
    """Return the NamedTuple `state` restricted to some problems of its leading axis."""
    return type(state)(*(_take(field_, indices) for field_ in state))


def _take(values: Array, indices: Array) -> Array:
    xp = namespace(values)
    return xp.take(values, xp.asarray(indices, device=device(values)), axis=0)
