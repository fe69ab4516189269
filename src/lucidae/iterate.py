"""The only iteration loop: a pure step, a stopping rule, a record; one problem or a stack.

A solver gives one `step` from state to state. The loop decides when to stop (on distance to
optimality, never on how little the state moved), records, reports progress, and ends with a
`Solution` whose status can explain itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import numpy as np
from threadpoolctl import ThreadpoolController

from lucidae._arrays import Array, scalar, to_numpy
from lucidae._bookkeeping import Below, Judge, Ledger, Recorder, Schedule, take_problems
from lucidae.solution import BatchSolution, Solution, Status

__all__ = ["Below", "Progress", "iterate", "iterate_batch", "limited_blas", "log_grid"]

State = TypeVar("State")
Callback = Callable[["Progress"], Any]

SMALL_PROBLEM = 500
"""Below this dimension two BLAS threads cost more than they bring."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What a callback sees: the iteration, its limit, the distance so far and the state."""

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
) -> Solution[State]:
    """Repeat `step` from `start` until `stop` is met, a callback asks, or `limit` is reached.

    Parameters
    ----------
    step : callable
        One step from state to state. It may reuse its own buffers if `copy` is given.
    start : object
        The first state.
    stop : Below
        The stopping rule.
    limit : int
        The largest number of steps.
    check_every : int, default=1
        Number of steps between two evaluations of the distance (each may wait for a device).
    record : mapping of str to callable, optional
        Quantities to keep in the history, each a function of the state.
    record_at : int or iterable of int, optional
        Record every so many steps, or at these iterations; by default at every check.
    callbacks : sequence of callable, optional
        Called with a `Progress` at every check; a true return value stops the iteration.
    copy : callable, optional
        How to keep a state that `step` would otherwise overwrite.
    size : int, optional
        Dimension of the largest matrix in a step; small problems run on one BLAS thread.

    Returns
    -------
    Solution

    Examples
    --------
    >>> halve = lambda x: x / 2
    >>> solution = iterate(halve, 1.0, stop=Below(abs, 1e-3), limit=100)
    >>> solution.status, solution.n_iter
    (<Status.CONVERGED: 'converged'>, 10)
    """
    keep = copy or (lambda state: state)
    judge = Judge(stop, count=1)
    schedule = Schedule(limit, check_every, record_at)
    recorder = Recorder(record or {})
    outcome: list[Solution[State]] = []
    last = [(keep(start), float("nan"))]

    def settle(n_iter: int, state: State, distances: Array) -> tuple[State, bool]:
        (verdict,) = judge(distances, n_iter >= limit)
        distance = float(distances[0])
        if verdict is not Status.DIVERGED or n_iter == 0:
            last[0] = (keep(state), distance)
        if schedule.records(n_iter):
            recorder.take(n_iter, last[0][0], last[0][1])
        if _ask(callbacks, Progress(n_iter, limit, distance, stop.tolerance, state)):
            verdict = verdict or Status.STOPPED
        if verdict is not None:
            value, reached = last[0]
            outcome.append(
                Solution(value, verdict, n_iter, reached, stop.tolerance, recorder.history())
            )
        return state, verdict is None

    try:
        _loop(
            step,
            start,
            lambda state: np.array([scalar(stop.distance(state))]),
            schedule,
            settle,
            size,
        )
    finally:
        _close(callbacks)
    return outcome[0]


def iterate_batch(
    step: Callable[[Any], Any],
    start: Any,
    *,
    stop: Below,
    limit: int,
    check_every: int = 1,
    callbacks: Sequence[Callback] = (),
    size: int | None = None,
) -> BatchSolution[Any]:
    """Iterate a stack of problems at once; each stops on its own and leaves the stack.

    Parameters
    ----------
    step : callable
        One pure step for all problems that are left.
    start : NamedTuple of arrays
        The first states, with the problems along the leading axis of every field. What a step
        needs of a problem's data belongs in here too, so that it leaves with the problem.
    stop : Below
        Its distance returns one entry per problem.
    limit, check_every, callbacks, size
        As in `iterate`; a callback's `Progress` carries the largest distance that is left.

    Returns
    -------
    BatchSolution

    Examples
    --------
    >>> from typing import NamedTuple
    >>> class Numbers(NamedTuple):
    ...     x: Array
    >>> ended = iterate_batch(
    ...     lambda s: Numbers(s.x / 2), Numbers(np.array([1.0, 8.0])),
    ...     stop=Below(lambda s: abs(s.x), 1e-3), limit=100)
    >>> ended.n_iter
    array([10, 13])
    """
    count = start[0].shape[0]
    judge = Judge(stop, count)
    ledger = Ledger(count)
    last = [start]

    def settle(n_iter: int, state: Any, distances: Array) -> tuple[Any, bool]:
        verdicts = judge(distances, n_iter >= limit)
        asked = _ask(callbacks, Progress(n_iter, limit, _worst(distances), stop.tolerance, state))
        if asked:
            verdicts = [verdict or Status.STOPPED for verdict in verdicts]
        diverged = np.array([verdict is Status.DIVERGED for verdict in verdicts], dtype=bool)
        finished = np.array([verdict is not None for verdict in verdicts], dtype=bool)
        ledger.close(n_iter, finished & ~diverged, state, distances, verdicts)
        ledger.close(n_iter, finished & diverged, last[0], judge.previous, verdicts)
        if finished.any():
            left = np.flatnonzero(~finished)
            ledger.drop(finished)
            judge.drop(finished)
            state = take_problems(state, left) if left.size else state
        last[0] = state
        return state, not finished.all()

    def measure(state: Any) -> Array:
        return to_numpy(stop.distance(state))

    try:
        _loop(step, start, measure, Schedule(limit, check_every, None), settle, size)
    finally:
        _close(callbacks)
    return ledger.solution(stop.tolerance)


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


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()


def limited_blas(size: int | None) -> AbstractContextManager[Any]:
    """Limit BLAS to one thread while a problem of dimension `size` is small."""
    if size is None or size >= SMALL_PROBLEM:
        return nullcontext()
    limited: AbstractContextManager[Any] = _controller().limit(limits=1, user_api="blas")
    return limited


def _loop(
    step: Callable[[State], State],
    state: State,
    measure: Callable[[State], Array],
    schedule: Schedule,
    settle: Callable[[int, State, Array], tuple[State, bool]],
    size: int | None,
) -> None:
    """Step to the next milestone, measure, settle; until everything is settled."""
    n_iter = 0
    with limited_blas(size), np.errstate(over="ignore", invalid="ignore"):
        state, running = settle(n_iter, state, measure(state))
        while running:
            milestone = schedule.after(n_iter)
            while n_iter < milestone:
                state = step(state)
                n_iter += 1
            state, running = settle(n_iter, state, measure(state))


def _ask(callbacks: Sequence[Callback], progress: Progress) -> bool:
    answers = [bool(callback(progress)) for callback in callbacks]  # every callback is called
    return any(answers)


def _worst(distances: Array) -> float:
    return float(np.max(distances)) if len(distances) else 0.0


def _close(callbacks: Sequence[Callback]) -> None:
    for callback in callbacks:
        getattr(callback, "close", lambda: None)()
