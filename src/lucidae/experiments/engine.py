"""The engine: measure the cells that are not done yet, on all cores or on an accelerator.

Every finished cell is stored at once, so that a run that is killed at any moment goes on where
it was. On the processor each cell is measured by itself with one BLAS thread, in as many
processes as there are cores, and its numbers do not depend on which other cells were left to
do. On an accelerator the cells that belong together are measured at once.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

import joblib
from threadpoolctl import threadpool_limits

from lucidae.arrays import own_stream, to_numpy
from lucidae.experiments.declaration import Cell
from lucidae.experiments.device import cores, is_accelerator, machine, reference, versions
from lucidae.experiments.store import Store
from lucidae.validation import check_integer, check_number

__all__ = ["Tally", "Tick", "duration", "run"]

ACCELERATED = 0.01
"""Share of a cell's cost that an accelerator is guessed to need, until it has shown its pace."""

Group = tuple[Cell, ...]
Report = Callable[["Tick"], None]


@dataclass(frozen=True, slots=True)
class Tick:
    """How far the work has come.

    Parameters
    ----------
    done, total : int
        Cells measured by this run, and cells that it found missing.
    seconds_left : float or None
        What the rest will take, by the pace so far; None before anything is done.
    """

    done: int
    total: int
    seconds_left: float | None


@dataclass(frozen=True, slots=True)
class Tally:
    """What a run did.

    Parameters
    ----------
    measured, reused, left : int
        Cells measured now, found finished, and not done because the time was over.
    seconds : float
        How long the run took.
    """

    measured: int
    reused: int
    left: int
    seconds: float


def run(
    cells: Sequence[Cell],
    store: Store,
    *,
    device: str = "cpu",
    jobs: int | None = None,
    threads: bool = False,
    seconds: float | None = None,
    report: Report | None = None,
) -> Tally:
    """Measure the cells that the store does not hold.

    Parameters
    ----------
    cells : sequence of Cell
        The work; a cell that is named twice is measured once.
    store : Store
        Where finished cells are.
    device : str, default="cpu"
        ``"cpu"``, or what torch calls a device, such as ``"cuda"``.
    jobs : int, optional
        Number of processes: by default one for each core, and one on an accelerator, where
        more help as long as it waits for the processor most of the time.
    threads : bool, default=False
        On an accelerator, whether the jobs are threads of one process, each with a stream of its
        own: small recorded steps then run side by side, which those of processes do not.
    seconds : float, optional
        Start nothing that would end later than this; the rest is left to the next run.
    report : callable, optional
        Called with a `Tick` after each group of cells.

    Returns
    -------
    Tally
    """
    reference(device)  # a device that is not there is refused before any work
    usual = 1 if is_accelerator(device) else cores()
    workers = usual if jobs is None else check_integer(jobs, "jobs", low=1)
    budget = None if seconds is None else check_number(seconds, "seconds", low=0.0)
    missing = store.missing(cells)
    wanted = len({cell.key for cell in cells})
    guess = ACCELERATED if is_accelerator(device) else 1.0
    clock = _Clock(missing, budget, report, guess)
    groups = _groups(missing, is_accelerator(device))
    clock.workers = max(1, min(workers, len(groups)))
    measure = _in_turn if clock.workers == 1 else _at_once
    clock.threads = threads and is_accelerator(device)
    for group, taken in measure(groups, store.folder, device, clock):
        clock.finished(group, taken)
    return Tally(clock.done, wanted - len(missing), len(missing) - clock.done, clock.elapsed)


def _groups(cells: Sequence[Cell], batched: bool) -> list[Group]:
    """Return what is measured at once: single cells, or those that belong together."""
    if not batched:
        return [(cell,) for cell in sorted(cells, key=lambda cell: -cell.cost)]

    def companions(cell: Cell) -> tuple[str, str]:
        return cell.work, cell.together or cell.key

    groups = [tuple(group) for _, group in groupby(sorted(cells, key=companions), key=companions)]
    return sorted(groups, key=lambda group: -sum(cell.cost for cell in group))


class _Clock:
    """Counts what is done, guesses what is left, and says when to stop."""

    def __init__(
        self, missing: Sequence[Cell], budget: float | None, report: Report | None, guess: float
    ) -> None:
        self.start = time.perf_counter()
        self.total, self.budget, self.report, self.guess = len(missing), budget, report, guess
        self.left: defaultdict[str, float] = defaultdict(float)
        for cell in missing:
            self.left[cell.work] += cell.cost
        self.workers, self.threads = 1, False
        self.done = 0
        self.paid: defaultdict[str, float] = defaultdict(float)
        self.spent: defaultdict[str, float] = defaultdict(float)

    @property
    def elapsed(self) -> float:
        return time.perf_counter() - self.start

    def pace(self, work: str) -> float:
        """Return the seconds for a unit of expected cost of a work."""
        return self.spent[work] / self.paid[work] if self.paid[work] else self.guess

    def allows(self, group: Group) -> bool:
        """Tell whether a group would end within the budget."""
        expected = self.pace(group[0].work) * sum(cell.cost for cell in group)
        return self.budget is None or self.elapsed + expected <= self.budget

    def finished(self, group: Group, seconds: float) -> None:
        work, cost = group[0].work, sum(cell.cost for cell in group)
        self.done += len(group)
        self.left[work] -= cost
        self.paid[work] += cost
        self.spent[work] += seconds
        if self.report is not None:
            left = sum(cost * self.pace(work) for work, cost in self.left.items())
            self.report(Tick(self.done, self.total, max(0.0, left) / self.workers))


def _in_turn(
    groups: Sequence[Group], folder: Path, device: str, clock: _Clock
) -> Iterator[tuple[Group, float]]:
    for group in groups:
        if clock.allows(group):
            yield group, measure_and_store(group, folder, device)


def _at_once(
    groups: Sequence[Group], folder: Path, device: str, clock: _Clock
) -> Iterator[tuple[Group, float]]:
    tasks = (
        joblib.delayed(_numbered)(number, group, folder, device)
        for number, group in enumerate(groups)
        if clock.allows(group)
    )
    inner = {} if clock.threads else {"inner_max_num_threads": 1}
    backend = "threading" if clock.threads else "loky"
    with joblib.parallel_config(backend=backend, n_jobs=clock.workers, verbose=0, **inner):
        # Tasks are drawn as workers become free, so that the clock is asked as late as can be.
        pool = joblib.Parallel(return_as="generator_unordered", pre_dispatch="n_jobs", batch_size=1)
        for number, seconds in pool(tasks):
            yield groups[number], seconds


def _numbered(number: int, group: Group, folder: Path, device: str) -> tuple[int, float]:
    return number, measure_and_store(group, folder, device)


def measure_and_store(group: Group, folder: Path, device: str) -> float:
    """Measure cells that share their work, store each, and return the seconds that it took."""
    start, busy = time.perf_counter(), time.process_time()
    with _one_thread(device), own_stream(reference(device)):
        try:
            measured = group[0].resolve()([cell.settings for cell in group], device)
        except Exception as error:
            raise RuntimeError(f"{group[0].canonical} failed: {error}") from error
        found = [{name: to_numpy(array) for name, array in arrays.items()} for arrays in measured]
    seconds = time.perf_counter() - start
    about = {
        "seconds": seconds / len(group),
        "processor_seconds": (time.process_time() - busy) / len(group),
        "device": device,
        "machine": machine(device),
        "versions": versions(),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    store = Store(folder)
    for cell, arrays in zip(group, found, strict=True):
        store.save(cell, arrays, about)
    return seconds


def _one_thread(device: str) -> AbstractContextManager[Any]:
    """Give NumPy one BLAS thread: the same numbers with any number of processes."""
    if is_accelerator(device):
        return nullcontext()
    limited: AbstractContextManager[Any] = threadpool_limits(1, user_api="blas")
    return limited


def duration(seconds: float) -> str:
    """Say how long something took.

    Examples
    --------
    >>> duration(0.5), duration(75), duration(7300)
    ('0.5 s', '1 min 15 s', '2 h 1 min')
    """
    if seconds < 60:
        return f"{seconds:.2g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"
