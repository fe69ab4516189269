"""Measure the runs of experiments that are not done yet, on all cores or on an accelerator.

A run is a `Cell` of `lucidae.experiments.declaration`. Every finished cell is stored immediately,
so that a command that is killed at any moment can be continued. On the processor each cell is
measured by itself with one BLAS thread, in as many processes as there are cores, and its numbers do
not depend on which other cells were missing. On an accelerator the cells that belong together are
measured at once.
"""

from __future__ import annotations

import functools
import os
import threading
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
from lucidae.experiments.declaration import Cell, canonical
from lucidae.experiments.device import cores, is_accelerator, machine, reference, versions
from lucidae.experiments.store import Store
from lucidae.validation import check_integer, check_number

__all__ = ["Tally", "Tick", "count", "duration", "run"]

ACCELERATED = 0.01
"""Share of a cell's cost that an accelerator is assumed to need until its pace is measured."""

WATCH_SECONDS = 0.5
"""Time between two tests of a worker whether its parent process is still there."""

Group = tuple[Cell, ...]
Report = Callable[["Tick"], None]


@dataclass(frozen=True, slots=True)
class Tick:
    """Progress of `run`: how many cells are done, and the time left.

    Parameters
    ----------
    done, total : int
        Cells measured by this run, and cells that were missing when it started.
    seconds_left : float or None
        Time for the rest at the pace so far; None before the first cell is done.
    """

    done: int
    total: int
    seconds_left: float | None


@dataclass(frozen=True, slots=True)
class Tally:
    """Numbers of cells that one call of `run` measured, reused and left.

    Parameters
    ----------
    measured, reused, left : int
        Numbers of cells that were measured now, found finished, and not measured because the time
        limit was reached.
    seconds : float
        Duration of the run.
    outdated : int, default=0
        Cells that were found finished by an earlier version of their work only; they count as not
        done and are measured again.
    """

    measured: int
    reused: int
    left: int
    seconds: float
    outdated: int = 0

    def __str__(self) -> str:
        """Return the numbers as a sentence, with one more line where cells were outdated."""
        line = (
            f"{count(self.measured)} measured, {self.reused} reused, {self.left} left, "
            f"in {self.seconds:.1f} s"
        )
        return line if not self.outdated else f"{line}\n{self.note}"

    @property
    def note(self) -> str:
        """One line on the cells that an earlier version of their work had measured."""
        if not self.outdated:
            return ""
        return (
            f"{count(self.outdated)} had been measured by an earlier version of the computation; "
            "these results were not used."
        )


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
    """Measure the cells that are not in the store yet.

    Parameters
    ----------
    cells : sequence of Cell
        The work; a cell that is listed twice is measured once.
    store : Store
        Folder of the finished cells.
    device : str, default="cpu"
        ``"cpu"`` for NumPy, or the name of a torch device such as ``"cuda"``.
    jobs : int, optional
        Number of processes: by default one per core, and one on an accelerator. More than one on an
        accelerator helps where it waits for the processor most of the time.
    threads : bool, default=False
        On an accelerator, whether the jobs are threads of one process, each with its own stream:
        short kernels of several threads run concurrently, those of several processes do not.
    seconds : float, optional
        Start no cell that would end later than this; the rest is left to the next run.
    report : callable, optional
        Called with a `Tick` after each group of cells.

    Returns
    -------
    Tally
    """
    reference(device)  # an unavailable device is refused before any work
    usual = 1 if is_accelerator(device) else cores()
    workers = usual if jobs is None else check_integer(jobs, "jobs", low=1)
    budget = None if seconds is None else check_number(seconds, "seconds", low=0.0)
    missing = store.missing(cells)
    outdated = len(store.outdated(missing))
    wanted = len({cell.key for cell in cells})
    guess = ACCELERATED if is_accelerator(device) else 1.0
    clock = _Clock(missing, budget, report, guess)
    groups = _groups(missing, is_accelerator(device))
    clock.workers = max(1, min(workers, len(groups)))
    measure = _in_turn if clock.workers == 1 else _at_once
    clock.threads = threads and is_accelerator(device)
    for group, taken in measure(groups, store.folder, device, clock):
        clock.finished(group, taken)
    reused, left = wanted - len(missing), len(missing) - clock.done
    return Tally(clock.done, reused, left, clock.elapsed, outdated)


def _groups(cells: Sequence[Cell], batched: bool) -> list[Group]:
    """Return what is measured at once: single cells, or those that belong together.

    The most expensive groups come first, so that the last worker to finish has a short one.
    """
    if not batched:
        return [(cell,) for cell in sorted(cells, key=lambda cell: -cell.cost)]

    def companions(cell: Cell) -> tuple[str, str]:
        return str(cell.work), cell.together or cell.key

    groups = [tuple(group) for _, group in groupby(sorted(cells, key=companions), key=companions)]
    return sorted(groups, key=lambda group: -sum(cell.cost for cell in group))


class _Clock:
    """Count the finished cells, estimate the time left, and enforce the time limit.

    The declared costs of one work are proportional to its run times, but the factor depends on the
    machine and differs between works. The clock therefore estimates one pace (seconds per unit of
    cost) for each work from its finished cells, and predicts Σ pace × cost over what is left.
    """

    def __init__(
        self, missing: Sequence[Cell], budget: float | None, report: Report | None, guess: float
    ) -> None:
        self.start = time.perf_counter()
        self.total, self.budget, self.report, self.guess = len(missing), budget, report, guess
        self.left: defaultdict[str, float] = defaultdict(float)
        for cell in missing:
            self.left[str(cell.work)] += cell.cost
        self.workers, self.threads = 1, False
        self.done = 0
        self.paid: defaultdict[str, float] = defaultdict(float)
        self.spent: defaultdict[str, float] = defaultdict(float)

    @property
    def elapsed(self) -> float:
        return time.perf_counter() - self.start

    def pace(self, work: str) -> float:
        """Return the seconds per unit of cost of a work."""
        return self.spent[work] / self.paid[work] if self.paid[work] else self.guess

    def allows(self, group: Group) -> bool:
        """Return whether a group is expected to end within the time limit."""
        expected = self.pace(str(group[0].work)) * sum(cell.cost for cell in group)
        return self.budget is None or self.elapsed + expected <= self.budget

    def finished(self, group: Group, seconds: float) -> None:
        """Count a group that took `seconds`, and report the progress."""
        work, cost = str(group[0].work), sum(cell.cost for cell in group)
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
        joblib.delayed(_numbered)(number, group, folder, device, os.getpid())
        for number, group in enumerate(groups)
        if clock.allows(group)
    )
    with _threads(clock.workers) if clock.threads else _processes(clock.workers):
        # A task is taken only when a worker is free, so that the budget is tested at that moment.
        pool = joblib.Parallel(return_as="generator_unordered", pre_dispatch="n_jobs", batch_size=1)
        for number, seconds in pool(tasks):
            yield groups[number], seconds


def _threads(workers: int) -> AbstractContextManager[Any]:
    context: AbstractContextManager[Any] = joblib.parallel_config("threading", n_jobs=workers)
    return context


def _processes(workers: int) -> AbstractContextManager[Any]:
    """Use processes that end with this one, even before their first task."""
    settings = {"n_jobs": workers, "verbose": 0, "inner_max_num_threads": 1}
    watch = {"initializer": end_with, "initargs": (os.getpid(),)}
    try:
        context: AbstractContextManager[Any] = joblib.parallel_config("loky", **settings, **watch)
    except TypeError:  # joblib < 1.5 has no initializer: workers watch from their first task on
        context = joblib.parallel_config("loky", **settings)
    return context


@functools.cache
def end_with(parent: int) -> None:
    """End this process soon after its parent process, which may be killed, has ended.

    A worker would otherwise finish its task, which may take minutes, and then wait for the next
    one. When the parent of a process ends, the process is given another parent (not on Windows,
    where workers end some minutes after they became idle).

    Parameters
    ----------
    parent : int
        Identifier of the parent process.
    """
    if os.getpid() != parent:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(WATCH_SECONDS)
    os._exit(1)  # nothing is lost: finished cells are stored, and files are written atomically


def _numbered(
    number: int, group: Group, folder: Path, device: str, parent: int
) -> tuple[int, float]:
    end_with(parent)
    return number, measure_and_store(group, folder, device)


def measure_and_store(group: Group, folder: Path, device: str) -> float:
    """Measure cells of one work, store each of them, and return the seconds that they took."""
    start, busy = time.perf_counter(), time.process_time()
    with _one_thread(device), own_stream(reference(device)):
        try:
            measured = group[0].work([cell.settings for cell in group], device)
        except Exception as error:
            raise RuntimeError(f"{canonical(group[0].description)} failed: {error}") from error
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
    """Limit NumPy to one BLAS thread: the numbers then do not depend on the number of processes."""
    if is_accelerator(device):
        return nullcontext()
    limited: AbstractContextManager[Any] = threadpool_limits(1, user_api="blas")
    return limited


def duration(seconds: float) -> str:
    """Return a duration in words.

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


def count(cells: int) -> str:
    """Return a number of cells in words for readers, who know them as runs.

    Examples
    --------
    >>> count(1), count(2)
    ('1 run', '2 runs')
    """
    return f"{cells} run{'' if cells == 1 else 's'}"
