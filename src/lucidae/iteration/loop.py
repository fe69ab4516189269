"""The iteration loop of all solvers, for one problem (`iterate`) or many (`iterate_batch`).

A solver provides a function `step` that computes the next state. The loop repeats it until the
distance to optimality (not the change of the state) is below a tolerance. It also records
quantities, calls the callbacks and returns a `Solution`. `of_each` evaluates a function for many
items, such as folds, in this process, in other processes or on a cluster.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from sklearn.utils.parallel import Parallel, delayed

from lucidae.arrays import Array, device, namespace, to_numpy
from lucidae.arrays.threads import one_thread
from lucidae.iteration.solution import BatchSolution, History, Solution, Status
from lucidae.validation import check_integer

State = TypeVar("State")
Callback = Callable[["Progress"], Any]

SMALL_PROBLEM = 500
"""Number of rows of the largest matrix below which one BLAS thread is faster than several."""

DIVERGENCE_FACTOR = 1e10
"""An iteration has diverged when its distance to optimality exceeds this number times the larger
one of 1 and the first distance."""


@dataclass(frozen=True, slots=True)
class Below:
    """Stopping rule: the distance to optimality is at most `tolerance`.

    Parameters
    ----------
    distance : callable
        Takes a state and returns its distance to optimality, which has no unit: a number for one
        problem, an array with one entry per problem for many.
    tolerance : float
        The distance to optimality at which the problem counts as solved.
    patience : int, optional
        Number of evaluations without a new smallest distance after which the iteration ends as
        stalled. By default it never does.

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
            raise ValueError("tolerance=nan was given, expected a number that is not NaN.")
        if self.patience is not None:
            check_integer(self.patience, "patience", low=1)


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of an iteration, with which callbacks are called.

    Parameters
    ----------
    n_iter : int
        Number of steps so far.
    limit : int
        Largest number of steps.
    distance : float
        Distance to optimality of the state; of many problems, the largest distance.
    tolerance : float
        Distance at which the iteration stops.
    state : object
        The current state. A step may overwrite it; a callback that stores it must copy it.
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
    """Repeat `step` until the stopping rule is met; return the last state and the reason to stop.

    The iteration also ends if it diverges, if a callback stops it, or after `limit` steps.

    Parameters
    ----------
    step : callable
        Takes a state and returns the next one. It may overwrite its argument if `copy` is given.
    start : object
        The first state.
    stop : Below
        The stopping rule: a distance to optimality and its tolerance.
    limit : int
        The largest number of steps.
    check_every : int, default=1
        Number of steps between two evaluations of the stopping rule, below called checks. On a GPU
        each check waits for the device.
    record : mapping of str to callable, optional
        Quantities to record in the history: functions of the state, by name.
    record_at : int or iterable of int, optional
        Number of steps between two records, or the steps to record; by default every check is
        recorded. The stopping rule is also evaluated at every record.
    callbacks : sequence of callable, optional
        Called with a `Progress` at every check at which the iteration has not diverged. If one
        returns a true value, the iteration stops. If a callback has a method ``close``, it is
        called at the end, also after an exception.
    copy : callable, optional
        Returns a copy of a state; needed if `step` overwrites states.
    size : int, optional
        Number of rows of the largest matrix in a step. If it is below 500, BLAS uses one thread.
    first : int, default=0
        Number of steps that were made before `start`, if an interrupted iteration is continued.
        They count for `limit`.

    Returns
    -------
    Solution
        The last state, how the iteration ended, and the history. After a divergence, the state is
        that of the last check before it.

    Examples
    --------
    >>> halve = lambda x: x / 2
    >>> solution = iterate(halve, 1.0, stop=Below(abs, 1e-3), limit=100)
    >>> solution.status, solution.n_iter
    (<Status.CONVERGED: 'converged'>, 10)
    """
    judge, quantities = Judge(stop, count=1), dict(record or {})
    iterations: list[int] = []
    records: dict[str, list[Any]] = {name: [] for name in ("distance", *quantities)}
    state = value = start
    reached, done = float("nan"), first
    with _running(callbacks, size):
        for n_iter, recorded in checkpoints(limit, check_every, record_at, first):
            for _ in range(n_iter - done):
                state = step(state)
            done = n_iter
            distance = float(stop.distance(state))
            (verdict,) = judge(np.array([distance]), n_iter >= limit)
            if verdict is not Status.DIVERGED:
                value, reached = state if copy is None else copy(state), distance
                if recorded:
                    iterations.append(n_iter)
                    records["distance"].append(distance)
                    for name, quantity in quantities.items():
                        records[name].append(to_numpy(quantity(value)))
                progress = Progress(n_iter, limit, distance, stop.tolerance, state)
                if sum(bool(callback(progress)) for callback in callbacks):  # all are called
                    verdict = verdict or Status.STOPPED
            if verdict is not None:
                break
    series = {name: np.array(values) for name, values in records.items()}
    history = History(np.array(iterations, dtype=int), series)
    return Solution(value, verdict, done, reached, stop.tolerance, history)


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
    """Iterate many problems at once; return the last state and the reason to stop of each problem.

    The states of all problems are stacked along the leading axis of arrays. A problem that has
    converged or diverged is removed from these arrays, and the others go on.

    Parameters
    ----------
    step : callable
        Takes the states of some of the problems and returns their next states. It must not
        change its argument unless `copy` is given.
    start : NamedTuple of arrays
        The first states. The leading axis of every field has one entry per problem. Data that
        differ between the problems must be fields too, so that they are removed with their problem.
    stop : Below
        The stopping rule; its distance returns an array with one entry per problem.
    limit, check_every, callbacks, copy, size
        As in `iterate`. The `Progress` given to a callback has the states of the remaining problems
        and their largest distance, and a true return value stops all of them.

    Returns
    -------
    BatchSolution
        The result of every problem, in the order of `start`.

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
    count = int(start[0].shape[0])
    judge, ledger = Judge(stop, count), Ledger(count)
    state = previous = start
    done = 0
    with _running(callbacks, size):
        for n_iter, _ in checkpoints(limit, check_every) if count else ():
            for _ in range(n_iter - done):
                state = step(state)
            done = n_iter
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
            if not ledger.running.size:
                break
            largest = float(distances.max())
            progress = Progress(n_iter, limit, largest, stop.tolerance, state)
            if sum(bool(callback(progress)) for callback in callbacks):  # all are called
                left = np.ones(ledger.running.size, dtype=bool)
                stopped = np.full(left.shape, Status.STOPPED, dtype=object)
                ledger.close(left, n_iter, state, distances, stopped)
                break
            previous = state if copy is None else copy(state)
    return ledger.solution(start, stop.tolerance)


@contextmanager
def _running(callbacks: Sequence[Callback], size: int | None) -> Iterator[None]:
    """Run a ``with`` block that contains an iteration, and close the callbacks after it."""
    with ExitStack() as stack:
        for callback in callbacks:
            stack.callback(getattr(callback, "close", lambda: None))
        stack.enter_context(limited_blas(size))
        stack.enter_context(np.errstate(over="ignore", invalid="ignore"))
        yield


class Judge:
    """Judge of running problems: after each check it tells which of them have ended, and how."""

    def __init__(self, stop: Below, count: int) -> None:
        self.stop = stop
        self.best = np.full(count, np.inf)
        self.waited = np.zeros(count, dtype=int)
        self.latest = np.full(count, np.nan)
        self.ceiling: Array | None = None

    def __call__(self, distances: Array, exhausted: bool) -> Array:
        """Return for each running problem the `Status` with which it ended; None if it continues.

        If several statuses apply, divergence has precedence over convergence, convergence over the
        limit of steps, and this limit over stalling.
        """
        if distances.shape != self.latest.shape:
            raise ValueError(
                f"the distance function of the stopping rule returned shape {distances.shape}, "
                f"expected {self.latest.shape}: one entry per problem."
            )
        if self.ceiling is None:
            self.ceiling = DIVERGENCE_FACTOR * np.maximum(distances, 1.0)
        self.latest = distances
        improved = distances < self.best
        self.best = np.where(improved, distances, self.best)
        self.waited = np.where(improved, 0, self.waited + 1)
        verdicts = np.full(self.latest.shape, None, dtype=object)
        if self.stop.patience is not None:
            verdicts[self.waited >= self.stop.patience] = Status.STALLED
        if exhausted:
            verdicts[:] = Status.ITERATION_LIMIT
        verdicts[self.latest <= self.stop.tolerance] = Status.CONVERGED
        # The negated comparison is true for NaN as well.
        verdicts[~(self.latest <= self.ceiling) | np.isinf(self.latest)] = Status.DIVERGED
        return verdicts

    def drop(self, finished: Array) -> None:
        """Remove the problems where the mask `finished` is true from the running problems."""
        for name in ("best", "waited", "latest", "ceiling"):
            setattr(self, name, getattr(self, name)[~finished])


def checkpoints(
    limit: int,
    check_every: int,
    record_at: int | Iterable[int] | None = None,
    first: int = 0,
) -> Iterator[tuple[int, bool]]:
    """Yield the numbers of steps after which the stopping rule is evaluated, up to `limit`.

    The second value tells whether the state after these steps is recorded.
    """
    check_integer(limit, "limit", low=0)
    check_integer(check_every, "check_every", low=1)
    n_iter = check_integer(first, "first", low=0, high=limit)
    regular = isinstance(record_at, int | np.integer)
    fixed: Sequence[int] = ()
    if isinstance(record_at, int | np.integer):
        fixed = range(0, limit + 1, check_integer(record_at, "record_at", low=1))
    elif record_at is not None:
        fixed = sorted({check_integer(i, "record_at", low=0) for i in record_at})
    while True:
        position = bisect_right(fixed, n_iter)
        recorded = position > 0 and fixed[position - 1] == n_iter
        yield n_iter, record_at is None or recorded or (regular and n_iter == limit)
        following = (n_iter // check_every + 1) * check_every
        n_iter = min(limit, following, *fixed[position : position + 1])


class Ledger:
    """Collector of the results of many problems, which finish after different numbers of steps."""

    def __init__(self, count: int) -> None:
        self.running = np.arange(count)
        self.pieces: list[tuple[Array, Any]] = []
        self.status = np.full(count, None, dtype=object)
        self.n_iter = np.zeros(count, dtype=int)
        self.distance = np.full(count, np.nan)

    def close(
        self, mask: Array, n_iter: int, state: Any, distances: Array, verdicts: Array
    ) -> None:
        """Store the results of those running problems where `mask` is true."""
        if not mask.any():
            return
        problems = self.running[mask]
        self.pieces.append((problems, take_problems(state, mask)))
        self.n_iter[problems] = n_iter
        self.distance[problems] = distances[mask]
        self.status[problems] = verdicts[mask]

    def drop(self, finished: Array) -> None:
        """Remove the problems where the mask `finished` is true from the running problems."""
        self.running = self.running[~finished]

    def solution(self, start: Any, tolerance: float) -> BatchSolution[Any]:
        """Return the results of all problems in their original order."""
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
    """Return the states of the problems where `mask` is true; `state` is a NamedTuple of arrays."""
    if mask.all():
        return state
    index = _index(np.flatnonzero(mask), state[0])
    return type(state)(*(namespace(values).take(values, index, axis=0) for values in state))


def _index(positions: Array, reference: Array) -> Array:
    """Return the NumPy array `positions` in the library and on the device of `reference`."""
    return namespace(reference).asarray(positions, device=device(reference))


def limited_blas(size: int | None) -> AbstractContextManager[None]:
    """Return a context manager in which BLAS uses one thread for small problems.

    A problem is small if its largest matrix has fewer than 500 rows (`size`). Otherwise, and if
    `size` is None, nothing is changed.
    """
    return nullcontext() if size is None or size >= SMALL_PROBLEM else one_thread()


def log_grid(limit: int, per_decade: int = 20, *, stride: int = 1) -> tuple[int, ...]:
    """Return the numbers of steps 0, 1, …, `limit` to record, evenly spaced in their logarithm.

    There are about `per_decade` numbers between a number and its tenfold. Those above ten times
    `stride` are rounded to multiples of `stride`, except `limit`.

    Examples
    --------
    >>> log_grid(100, per_decade=2)
    (0, 1, 3, 10, 32, 100)
    >>> log_grid(100, per_decade=2, stride=3)
    (0, 1, 3, 10, 33, 100)
    """
    if limit < 1:
        return (0,)
    count = max(2, round(per_decade * np.log10(limit)) + 1)
    grid = np.rint(np.geomspace(1, limit, count)).astype(int)
    whole = stride * ((grid + stride // 2) // stride)
    grid = np.unique(np.where((grid > 10 * stride) & (grid < limit), whole, grid))
    return (0, *(int(point) for point in grid if point <= limit))


def of_each(
    function: Callable[..., Any],
    items: Sequence[tuple[Any, ...]],
    *,
    n_jobs: int | None = None,
    callbacks: Sequence[Callback] = (),
) -> list[Any]:
    """Return the values of a function for many items, evaluated one by one or in parallel.

    joblib evaluates them in this process, in other processes or, inside of
    ``with joblib.parallel_config("dask")``, on a Dask cluster.

    Parameters
    ----------
    function : callable
        A function of a module, because other processes import it by its name.
    items : sequence of tuples
        The positional arguments of each call.
    n_jobs : int, optional
        Number of calls at a time, as in scikit-learn; not more than there are items.
    callbacks : sequence of callable
        Called with a `Progress` after each value; its number of steps is the number of values so
        far, and its distance is the number of items without a value.

    Returns
    -------
    list
        The values, in the order of the items.

    Examples
    --------
    >>> of_each(pow, [(2, 3), (3, 2)])
    [8, 9]
    """
    if n_jobs is not None:  # joblib starts as many workers as it is told, whatever their use
        n_jobs = min(n_jobs, max(len(items), 1))
    workers, calls = Parallel(n_jobs=n_jobs), (delayed(function)(*item) for item in items)
    if not callbacks:
        return list(workers(calls))
    with suppress(ValueError):  # single values as they are ready; "multiprocessing" refuses this
        workers = Parallel(n_jobs=n_jobs, return_as="generator")
    values = iter(workers(calls))
    none: tuple[Any, ...] = ()
    found = iterate(
        lambda done: (*done, next(values)),
        none,
        stop=Below(lambda done: float(len(items) - len(done)), 0.0),
        limit=len(items),
        callbacks=callbacks,
    ).value
    return [*found, *values]  # none are left; joblib wants its generator to be read to the end
