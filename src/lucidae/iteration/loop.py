"""The iteration loop of all solvers, for one problem (`iterate`) or a stack (`iterate_batch`).

A solver provides one `step` from state to state. The loop stops on the distance to optimality, not
on the change of the state; it records quantities, calls the callbacks and returns a `Solution`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from threading import Lock
from typing import Any, TypeVar

import numpy as np
from threadpoolctl import ThreadpoolController

from lucidae.arrays import Array, device, namespace, scalar, to_numpy
from lucidae.iteration.history import Recorder, Schedule
from lucidae.iteration.status import BatchSolution, Solution, Status
from lucidae.iteration.stopping import Below, Judge

__all__ = ["Below", "Progress", "iterate", "iterate_batch", "limited_blas", "log_grid"]

State = TypeVar("State")
Callback = Callable[["Progress"], Any]

SMALL_PROBLEM = 500
"""Dimension of the matrices below which one BLAS thread is faster than several."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Argument of a callback: the iteration, its limit, the distance and the state.

    A step may overwrite the state; a callback that stores it must copy it.
    """

    n_iter: int
    limit: int
    distance: float
    tolerance: float
    state: Any


def iterate(
    step: Callable[[State], State],
    start: State,
    *,
    stop: Below,
    limit: int,
    check_every: int = 1,
    record: Mapping[str, Callable[[State], Any]] | None = None,
    record_at: int | Iterable[int] | None = None,
    callbacks: Sequence[Callback] = (),
    copy: Callable[[State], State] | None = None,
    size: int | None = None,
    first: int = 0,
) -> Solution[State]:
    """Repeat `step` until `stop` is met, a callback asks to stop, or `limit` is reached.

    Parameters
    ----------
    step : callable
        One step from state to state. It may overwrite its argument if `copy` is given.
    start : object
        The first state.
    stop : Below
        The stopping rule.
    limit : int
        The largest number of steps.
    check_every : int, default=1
        Number of steps between two evaluations of the distance (each may wait for a device).
    record : mapping of str to callable, optional
        Quantities to record in the history, each a function of the state.
    record_at : int or iterable of int, optional
        Number of steps between two records, or the iterations to record; by default every check
        is recorded. The distance is also checked at every record.
    callbacks : sequence of callable, optional
        Called with a `Progress` at every check that has not diverged; a true return value stops
        the iteration. If a callback has a method ``close``, it is called at the end, also after
        an exception.
    copy : callable, optional
        Returns a copy of a state that `step` would otherwise overwrite.
    size : int, optional
        Dimension of the largest matrix in a step; small problems run on one BLAS thread.
    first : int, default=0
        Number of steps before `start`, if an interrupted run is continued; `limit` includes them.

    Returns
    -------
    Solution
        After a divergence, its value is the state of the last check that had not diverged.

    Examples
    --------
    >>> halve = lambda x: x / 2
    >>> solution = iterate(halve, 1.0, stop=Below(abs, 1e-3), limit=100)
    >>> solution.status, solution.n_iter
    (<Status.CONVERGED: 'converged'>, 10)
    """
    schedule = Schedule(limit, check_every, record_at, first)
    judge, recorder = Judge(stop, count=1), Recorder(record or {})
    state = value = start
    reached, steps, n_iter = float("nan"), 0, first
    verdict: Status | None = None
    with _running(callbacks, size):
        while verdict is None:
            state = _advance(step, state, steps)
            n_iter += steps
            distance = scalar(stop.distance(state))
            (verdict,) = judge(np.array([distance]), n_iter >= limit)
            if verdict is not Status.DIVERGED:
                value, reached = state if copy is None else copy(state), distance
                if schedule.records(n_iter):
                    recorder.take(n_iter, value, distance)
                if _stop_requested(
                    callbacks, Progress(n_iter, limit, distance, stop.tolerance, state)
                ):
                    verdict = verdict or Status.STOPPED
            steps = schedule.after(n_iter) - n_iter
    return Solution(value, verdict, n_iter, reached, stop.tolerance, recorder.history())


def iterate_batch(
    step: Callable[[Any], Any],
    start: Any,
    *,
    stop: Below,
    limit: int,
    check_every: int = 1,
    callbacks: Sequence[Callback] = (),
    copy: Callable[[Any], Any] | None = None,
    size: int | None = None,
) -> BatchSolution[Any]:
    """Iterate a stack of problems at once; a problem leaves the stack when it has finished.

    Parameters
    ----------
    step : callable
        One pure step for all problems in the stack.
    start : NamedTuple of arrays
        The first states, with the problems along the leading axis of every field. Data of the
        problems that a step needs must be fields too, so that they leave with their problem.
    stop : Below
        Its distance returns one entry per problem.
    limit, check_every, callbacks, copy, size
        As in `iterate`; the `Progress` of a callback has the states of the remaining problems and
        their largest distance, and a true return value stops all of them.

    Returns
    -------
    BatchSolution

    Examples
    --------
    >>> from typing import NamedTuple
    >>> class Numbers(NamedTuple):
    ...     x: np.ndarray
    >>> ended = iterate_batch(
    ...     lambda s: Numbers(s.x / 2), Numbers(np.array([1.0, 8.0])),
    ...     stop=Below(lambda s: abs(s.x), 1e-3), limit=100)
    >>> ended.n_iter
    array([10, 13])
    """
    schedule = Schedule(limit, check_every)
    count = int(start[0].shape[0])
    judge, ledger = Judge(stop, count), Ledger(count)
    state = previous = start
    steps = n_iter = 0
    with _running(callbacks, size):
        while ledger.running.size:
            state = _advance(step, state, steps)
            n_iter += steps
            before, distances = judge.latest, to_numpy(stop.distance(state)).astype(float)
            verdicts = judge(distances, n_iter >= limit)
            finished, diverged = verdicts != None, verdicts == Status.DIVERGED  # noqa: E711
            ledger.close(finished & ~diverged, n_iter, state, distances, verdicts)
            # A diverged problem returns the state of the check before, which has the same problems.
            ledger.close(diverged, n_iter, previous, before, verdicts)
            if finished.any():
                ledger.drop(finished)
                judge.drop(finished)
                state, distances = take_problems(state, ~finished), distances[~finished]
            if ledger.running.size and _stop_requested(
                callbacks, Progress(n_iter, limit, float(distances.max()), stop.tolerance, state)
            ):
                ledger.close_all(n_iter, state, distances, Status.STOPPED)
            previous = state if copy is None else copy(state)
            steps = schedule.after(n_iter) - n_iter
    return ledger.solution(start, stop.tolerance)


def _advance(step: Callable[[State], State], state: State, steps: int) -> State:
    for _ in range(steps):
        state = step(state)
    return state


@contextmanager
def _running(callbacks: Sequence[Callback], size: int | None) -> Iterator[None]:
    """Limit BLAS, silence the warnings of a divergence, and close the callbacks at the end."""
    with ExitStack() as stack:
        for callback in callbacks:
            stack.callback(getattr(callback, "close", lambda: None))
        stack.enter_context(limited_blas(size))
        stack.enter_context(np.errstate(over="ignore", invalid="ignore"))
        yield


def _stop_requested(callbacks: Sequence[Callback], progress: Progress) -> bool:
    answers = [bool(callback(progress)) for callback in callbacks]  # `any` alone would skip some
    return any(answers)


class Ledger:
    """Collect the results of a stack of problems as they finish, and restore their order."""

    def __init__(self, count: int) -> None:
        self.running = np.arange(count)
        self.pieces: list[tuple[Array, Any]] = []
        self.status = np.full(count, None, dtype=object)
        self.n_iter = np.zeros(count, dtype=int)
        self.distance = np.full(count, np.nan)

    def close(
        self, mask: Array, n_iter: int, state: Any, distances: Array, verdicts: Array
    ) -> None:
        """Store the results of the running problems in `mask`."""
        if not mask.any():
            return
        problems = self.running[mask]
        self.pieces.append((problems, take_problems(state, mask)))
        self.n_iter[problems] = n_iter
        self.distance[problems] = distances[mask]
        self.status[problems] = verdicts[mask]

    def close_all(self, n_iter: int, state: Any, distances: Array, verdict: Status) -> None:
        """Store the results of all running problems with the same verdict."""
        everything = np.ones(self.running.size, dtype=bool)
        self.close(
            everything, n_iter, state, distances, np.full(everything.shape, verdict, dtype=object)
        )
        self.drop(everything)

    def drop(self, finished: Array) -> None:
        """Remove the finished problems from the running ones."""
        self.running = self.running[~finished]

    def solution(self, start: Any, tolerance: float) -> BatchSolution[Any]:
        """Return all problems in their original order; `start` is the value of an empty stack."""
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
    """Move positions to the device of the states, once for all fields."""
    return namespace(reference).asarray(positions, device=device(reference))


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()


_LIMITED = Lock()
"""Held while BLAS is limited to one thread."""


@contextmanager
def _one_thread() -> Iterator[None]:
    """Limit BLAS to one thread, unless it is limited already by this or another Python thread.

    Most BLAS libraries have one number of threads for the whole process. If each Python thread
    stored and restored it by itself, one that enters while another is inside would store the limit
    as the original number, and leave the process at one thread. So whoever comes first sets the
    limit and restores the number, and the others change nothing.
    """
    if not _LIMITED.acquire(blocking=False):
        yield
        return
    try:
        with _controller().limit(limits=1, user_api="blas"):
            yield
    finally:
        _LIMITED.release()


def limited_blas(size: int | None) -> AbstractContextManager[None]:
    """Return a context in which BLAS has one thread if a problem of dimension `size` is small."""
    return nullcontext() if size is None or size >= SMALL_PROBLEM else _one_thread()


def log_grid(limit: int, per_decade: int = 20) -> tuple[int, ...]:
    """Return iterations from 0 to `limit`, spaced evenly in their logarithm.

    Examples
    --------
    >>> log_grid(100, per_decade=2)
    (0, 1, 3, 10, 32, 100)
    """
    if limit < 1:
        return (0,)
    count = max(2, round(per_decade * np.log10(limit)) + 1)
    grid = np.unique(np.rint(np.geomspace(1, limit, count)).astype(int))
    return (0, *(int(point) for point in grid))
