"""Do the runs of experiments that have no stored result, on all cores or on an accelerator.

A run is a `Cell` of `lucidae_papers.declaration`. Every finished cell is stored immediately,
so that a command that is killed at any moment can be continued. On the processor each cell is
measured by itself with one BLAS thread, in as many processes as there are cores, and its numbers do
not depend on which other cells were missing. On an accelerator the cells that belong together are
measured at once. Inside of ``joblib.parallel_config("dask")`` the cells are measured by the workers
of a Dask cluster, which must see the folder of the results under the same path.
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
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import joblib
from threadpoolctl import threadpool_limits

from lucidae.arrays import to_numpy
from lucidae.arrays.graphs import own_stream
from lucidae.validation import check_integer, check_number
from lucidae_papers.declaration import Cell, canonical
from lucidae_papers.device import cores, is_accelerator, machine, reference, versions
from lucidae_papers.store import Store

__all__ = ["Tally", "Tick", "count", "duration", "run"]

ACCELERATED = 0.01
"""Ratio of an accelerator's time for a run to the declared cost (seconds of one core).

This guess is used until the first runs have been timed.
"""

WATCH_SECONDS = 0.5
"""Seconds between two checks of a worker process that its parent process still exists."""

Group = tuple[Cell, ...]
Report = Callable[["Tick"], None]


@dataclass(frozen=True, slots=True)
class Tick:
    """Progress of `run`: how many runs are done, and the time left."""

    # number of cells that this call has measured, and number of cells that had no stored result
    # when it started
    done: int
    total: int
    # estimated time for the remaining cells; None before the first cell is done
    seconds_left: float | None


@dataclass(frozen=True, slots=True)
class Tally:
    """Numbers of runs that one call of `run` measured, reused and did not start."""

    # numbers of cells that were measured by this call, whose result was already stored, and that
    # were not measured because the time limit was reached
    measured: int
    reused: int
    left: int
    seconds: float  # duration of the call
    # number of cells whose only stored result is that of an earlier version of the computation; it
    # is not used, and they are measured again
    outdated: int = 0

    def __str__(self) -> str:
        """Return the numbers as one line, followed by `note` if there are outdated results."""
        line = (
            f"{count(self.measured)} measured, {self.reused} reused, {self.left} left, "
            f"in {self.seconds:.1f} s"
        )
        return line if not self.outdated else f"{line}\n{self.note}"

    @property
    def note(self) -> str:
        """A sentence on results of earlier versions that were not used; empty if there are none."""
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
    """Do the runs that have no result in the store yet, and store their results.

    Parameters
    ----------
    cells : sequence of Cell
        The runs; a cell that is listed twice is measured once.
    store : Store
        Folder of the stored results.
    device : str, default="cpu"
        ``"cpu"`` for NumPy, or the name of a torch device such as ``"cuda"``.
    jobs : int, optional
        Number of processes: by default one per core, and one on an accelerator. On an accelerator,
        more than one is faster if it waits for the processor most of the time. Inside of
        ``joblib.parallel_config("dask")`` it is the number of cells that the workers of the cluster
        measure at a time, by default one per thread of a worker.
    threads : bool, default=False
        On an accelerator, whether the jobs are threads of one process, each with its own stream:
        short kernels of several threads run concurrently, those of several processes do not.
    seconds : float, optional
        Time limit: no cell is started that is expected to end later than this many seconds after
        the start of the call. The remaining cells are left to the next call.
    report : callable, optional
        Called with a `Tick` after each group of cells.

    Returns
    -------
    Tally
        Numbers of runs that this call measured, found stored, and left for later.
    """
    reference(device)  # an unavailable device is refused before any work
    client = _dask_client()
    usual = 1 if is_accelerator(device) else cores()
    if client is not None:
        usual = max(1, sum(client.nthreads().values()))
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
    if client is not None:
        measure = functools.partial(_on_cluster, client)
    clock.threads = threads and is_accelerator(device)
    for group, taken in measure(groups, store.folder, device, clock):
        clock.finished(group, taken)
    reused, left = wanted - len(missing), len(missing) - clock.done
    return Tally(clock.done, reused, left, clock.elapsed, outdated)


def _groups(cells: Sequence[Cell], batched: bool) -> list[Group]:
    """Return groups of runs that are measured by one call of their function.

    If `batched`, runs of one function with the same label `together` form a group; otherwise each
    run is its own group. The most expensive groups come first, so that the last ones to finish are
    short.
    """
    if not batched:
        return [(cell,) for cell in sorted(cells, key=lambda cell: -cell.cost)]

    def companions(cell: Cell) -> tuple[str, str]:
        return str(cell.work), cell.together or cell.key

    groups = [tuple(group) for _, group in groupby(sorted(cells, key=companions), key=companions)]
    return sorted(groups, key=lambda group: -sum(cell.cost for cell in group))


class _Clock:
    """Counter of finished runs, with an estimate of the time left and a time limit.

    A `Work` is the function that does the runs. The costs that its cells declare are proportional
    to their run times, but the factor depends on the machine and differs between functions. The
    clock therefore estimates one pace (seconds per unit of cost) for each function from its
    finished cells, and predicts the sum of pace × cost over the unfinished cells.
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
        """Return the seconds per unit of cost of a function that does runs.

        The value is measured; before the first run of the function it is a guess.
        """
        return self.spent[work] / self.paid[work] if self.paid[work] else self.guess

    def allows(self, group: Group) -> bool:
        """Return whether a group of runs is expected to end before the time limit, if any."""
        expected = self.pace(str(group[0].work)) * sum(cell.cost for cell in group)
        return self.budget is None or self.elapsed + expected <= self.budget

    def finished(self, group: Group, seconds: float) -> None:
        """Add a group of runs that took `seconds` to the counts, and report the progress."""
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
    """Do groups of runs one after the other; yield each group with its time in seconds."""
    for group in groups:
        if clock.allows(group):
            yield group, measure_and_store(group, folder, device)


def _at_once(
    groups: Sequence[Group], folder: Path, device: str, clock: _Clock
) -> Iterator[tuple[Group, float]]:
    """Do groups of runs in several workers; yield each group with its time in seconds."""
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


def _dask_client() -> Any:
    """Return the client of the cluster on which joblib is set to compute; None if it is not."""
    backend, _ = joblib.parallel.get_active_backend()
    return backend.client if type(backend).__name__ == "DaskDistributedBackend" else None


def _on_cluster(
    client: Any, groups: Sequence[Group], folder: Path, device: str, clock: _Clock
) -> Iterator[tuple[Group, float]]:
    """Do groups of runs on the workers of a Dask cluster; yield each group with its seconds."""
    from distributed import as_completed

    tasks = (
        client.submit(_on_worker, number, group, folder.resolve(), device, pure=False)
        for number, group in enumerate(groups)
        if clock.allows(group)
    )
    running = as_completed(list(islice(tasks, clock.workers)))
    for future in running:
        number, seconds = future.result()
        yield groups[number], seconds
        running.update(islice(tasks, 1))  # so that the budget is tested when a worker is free


def _on_worker(number: int, group: Group, folder: Path, device: str) -> tuple[int, float]:
    return number, measure_and_store(group, folder, device)


def _threads(workers: int) -> AbstractContextManager[Any]:
    context: AbstractContextManager[Any] = joblib.parallel_config("threading", n_jobs=workers)
    return context


def _processes(workers: int) -> AbstractContextManager[Any]:
    """Return a joblib configuration whose worker processes end soon after this process."""
    settings = {"n_jobs": workers, "verbose": 0, "inner_max_num_threads": 1}
    watch = {"initializer": end_with, "initargs": (os.getpid(),)}
    try:
        context: AbstractContextManager[Any] = joblib.parallel_config("loky", **settings, **watch)
    except TypeError:  # joblib < 1.5 has no initializer: workers watch from their first task on
        context = joblib.parallel_config("loky", **settings)
    return context


@functools.cache
def end_with(parent: int) -> None:
    """Start a thread that ends this process soon after its parent process has ended.

    A worker would otherwise finish its task, which may take minutes, and then wait for the next
    one. When the parent of a process ends, the process is given another parent (not on Windows,
    where workers end some minutes after they became idle).
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
    """Do a group of runs, store each result in `folder`, and return how many seconds this took."""
    start, busy = time.perf_counter(), time.process_time()
    with _one_thread(device), own_stream(reference(device)):
        try:
            measured = group[0].work([cell.settings for cell in group], device)
        except Exception as error:
            raise RuntimeError(
                f"the run {canonical(group[0].description)} failed: {error}"
            ) from error
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
    """Return a context that limits NumPy to one BLAS thread; on an accelerator it does nothing.

    With one thread the numbers do not depend on the number of processes.
    """
    if is_accelerator(device):
        return nullcontext()
    limited: AbstractContextManager[Any] = threadpool_limits(1, user_api="blas")
    return limited


def duration(seconds: float) -> str:
    """Return a duration in seconds as text with two units at most."""
    if seconds < 60:
        return f"{seconds:.2g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def count(cells: int) -> str:
    """Return a number of runs as text."""
    return f"{cells} run{'' if cells == 1 else 's'}"
