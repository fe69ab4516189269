"""Experiments by name, their runs, and `reproduce`, which runs and judges them.

Every finished run (a `Cell`) is stored immediately, so that a command that is killed at any moment
can be continued. On the processor each cell is measured by itself with one BLAS thread, in as many
processes as there are cores, and its numbers do not depend on which other cells were missing. On an
accelerator the cells that belong together are measured at once. Inside of
``joblib.parallel_config("dask")`` the cells are measured by the workers of a Dask cluster, which
must see the folder of the results under the same path.
"""

from __future__ import annotations

import csv
import functools
import io
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module
from importlib.util import find_spec
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import joblib
from threadpoolctl import threadpool_limits

from lucidae._version import __version__
from lucidae.arrays import to_numpy
from lucidae.arrays.graphs import own_stream
from lucidae.io import atomic_path
from lucidae.iteration.progress import CountedBar, elapsed, is_shown
from lucidae.validation import check_argument, check_choice, check_integer, check_number
from lucidae_papers.cells import Cell, canonical
from lucidae_papers.declaration import SCALES, Experiment, with_settings
from lucidae_papers.device import cores, is_accelerator, machine, reference, versions
from lucidae_papers.store import Store
from lucidae_papers.verdicts import Outcome, judge

MODULES = {
    "lae-landscape": "linear.landscape",
    "lae-dynamics": "linear.dynamics",
    "lae-weights": "linear.dynamics:WEIGHTS",
    "lae-scaling": "linear.scaling",
    "lae-scaling-rates": "linear.scaling:RATES_OF_SCALING",
    "lae-penalties": "linear.penalties",
    "lae-minibatch": "linear.dynamics:MINIBATCH",
    "lae-learning-rates": "linear.dynamics:LEARNING_RATES",
    "lae-conditioning": "linear.penalties:CONDITIONING",
    "component-counts": "linear.counts",
    "dropout-landscape": "dropout:LANDSCAPE",
    "dropout-paths": "dropout:PATHS",
    "dropout-convergence": "dropout:CONVERGENCE",
    "sparse-unit": "sparsity.recovery:UNIT_ROWS",
    "sparse-scaled": "sparsity.recovery:SCALED_ROWS",
    "sparse-leadfield": "sparsity.recovery:LEADFIELD",
    "sparse-noise": "sparsity.recovery:NOISY",
    "sparse-slices": "sparsity.slices",
    "sparse-arrays": "sparsity.arrays",
    "vae-mnist": "vae.mnist",
    "vae-mnist-decoder": "vae.mnist:WITHOUT_HEAD",
    "embeddings-truncation": "embeddings",
    "layers-compression": "compression",
    "vae-manifold": "vae.manifold",
}
"""Module of each experiment, in the order of the papers; its declaration is called ``EXPERIMENT``
unless another name follows the colon."""

NAMES = tuple(MODULES)

NEEDS_TORCH = tuple(name for name in NAMES if name.startswith(("vae", "embeddings", "layers")))


def available() -> tuple[str, ...]:
    """Return the names of all experiments; without those that need torch if it is not installed."""
    torch = find_spec("torch") is not None
    return tuple(name for name in NAMES if torch or name not in NEEDS_TORCH)


@functools.cache
def experiment(name: str) -> Experiment:
    """Return the `Experiment` called `name`; raise ValueError if no experiment has this name.

    Examples
    --------
    >>> experiment("lae-dynamics").reference
    'Bao et al. 2020, Figure 2'
    """
    if name not in NAMES:
        raise ValueError(f"no experiment is called {name!r}; expected one of {', '.join(NAMES)}.")
    module, _, declared = MODULES[name].partition(":")
    found: Experiment = getattr(import_module(f"lucidae_papers.{module}"), declared or "EXPERIMENT")
    return found


def experiments(names: Iterable[str] = ()) -> list[Experiment]:
    """Return the experiments with these names; if none is given, all that `available` names."""
    return [experiment(name) for name in (tuple(names) or available())]


# Guess of an accelerator's time for a run relative to the declared cost (seconds of one core).
ACCELERATED = 0.01
WATCH_SECONDS = 0.5  # between two checks of a worker process that its parent process still exists
UNFINISHED = 3  # exit code of a command that reached its time limit before all runs were done

Group = tuple[Cell, ...]
Report = Callable[["Tick"], None]


@dataclass(frozen=True, slots=True)
class Tick:
    """Progress of `run`: how many runs are done, and the time left."""

    done: int  # cells that this call has measured
    total: int  # cells that had no stored result when it started
    seconds_left: float | None  # estimated; None before the first cell is done


@dataclass(frozen=True, slots=True)
class Tally:
    """Numbers of runs that one call of `run` measured, reused and did not start."""

    measured: int
    reused: int  # whose result was already stored
    left: int  # not measured because the time limit was reached
    seconds: float  # duration of the call
    outdated: int = 0  # measured again: the stored result is that of an earlier version

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
    measure = _here if client is None else functools.partial(_on_cluster, client)
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

    The costs that cells declare are about proportional to their run times, by a factor that depends
    on the machine. The clock estimates this pace (seconds per unit of cost) from finished cells.
    """

    def __init__(
        self, missing: Sequence[Cell], budget: float | None, report: Report | None, pace: float
    ) -> None:
        self.start = time.perf_counter()
        self.total, self.budget, self.report, self.pace = len(missing), budget, report, pace
        self.left = sum(cell.cost for cell in missing)
        self.workers = 1
        self.done, self.paid, self.spent = 0, 0.0, 0.0

    @property
    def elapsed(self) -> float:
        return time.perf_counter() - self.start

    def allows(self, group: Group) -> bool:
        """Return whether a group of runs is expected to end before the time limit, if any."""
        expected = self.pace * sum(cell.cost for cell in group)
        return self.budget is None or self.elapsed + expected <= self.budget

    def finished(self, group: Group, seconds: float) -> None:
        """Add a group of runs that took `seconds` to the counts, and report the progress."""
        cost = sum(cell.cost for cell in group)
        self.done += len(group)
        self.left, self.paid, self.spent = self.left - cost, self.paid + cost, self.spent + seconds
        self.pace = self.spent / self.paid
        if self.report is not None:
            left = max(0.0, self.left * self.pace) / self.workers
            self.report(Tick(self.done, self.total, left))


def _here(
    groups: Sequence[Group], folder: Path, device: str, clock: _Clock
) -> Iterator[tuple[Group, float]]:
    """Do groups of runs in several processes, or in this one if one worker is enough.

    Yield each group with its time in seconds.
    """
    tasks = (
        joblib.delayed(_numbered)(number, group, folder, device, parent=os.getpid())
        for number, group in enumerate(groups)
        if clock.allows(group)
    )
    with _processes(clock.workers):
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
        client.submit(_numbered, number, group, folder.resolve(), device, pure=False)
        for number, group in enumerate(groups)
        if clock.allows(group)
    )
    running = as_completed(list(islice(tasks, clock.workers)))
    for future in running:
        number, seconds = future.result()
        yield groups[number], seconds
        running.update(islice(tasks, 1))  # so that the budget is tested when a worker is free


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
    number: int, group: Group, folder: Path, device: str, parent: int | None = None
) -> tuple[int, float]:
    if parent is not None:
        end_with(parent)
    return number, measure_and_store(group, folder, device)


def measure_and_store(group: Group, folder: Path, device: str) -> float:
    """Do a group of runs, store each result in `folder`, and return how many seconds this took."""
    start, busy = time.perf_counter(), time.process_time()
    # With one BLAS thread the numbers do not depend on the number of processes.
    limit = nullcontext() if is_accelerator(device) else threadpool_limits(1, user_api="blas")
    with limit, own_stream(reference(device)):
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


@dataclass(frozen=True, slots=True)
class Reproduction:
    """Result of `reproduce`: outcomes, names of unfinished experiments, and the HTML page."""

    outcomes: tuple[Outcome, ...]  # of the experiments whose runs are all done
    waiting: tuple[str, ...]  # names of the others: the time limit was reached
    tally: Tally
    page: Path | None  # None if it was not requested, or no experiment is complete

    @property
    def holds(self) -> bool:
        """True if every experiment is complete and confirms every statement that it judges."""
        return not self.waiting and all(outcome.holds for outcome in self.outcomes)

    @property
    def exit_code(self) -> int:
        """Exit code: 3 if a run is missing, 1 if a statement is refuted, otherwise 0."""
        if self.waiting:
            return UNFINISHED
        return 0 if self.holds else 1


def reproduce(
    names: Iterable[str] = (),
    *,
    scale: str = "smoke",
    device: str = "cpu",
    out: str | os.PathLike[str] = "results",
    jobs: int | None = None,
    seconds: float | None = None,
    report: Callable[[Tick], None] | None = None,
    page: bool = True,
    notes: str | os.PathLike[str] | None = None,
    settings: Mapping[str, Any] | None = None,
    verbose: bool | str = "auto",
) -> Reproduction:
    """Run experiments, judge their statements, and write an HTML page, CSV files and verdicts.

    Runs whose results are stored in the folder are not repeated, so that an interrupted call can be
    continued. It does what the command ``lucidae reproduce`` does; without a page (``page=False``)
    it needs no optional package.

    Parameters
    ----------
    names : iterable of str, default=()
        Names of experiments; by default all, without those that need torch if it is missing.
    scale : {"smoke", "paper"}, default="smoke"
        Small data, or the sizes of the papers.
    device, jobs, seconds, report
        As in `run`.
    out : path-like, default="results"
        Folder of the results.
    page : bool, default=True
        Whether the HTML page is written (extra `cli`).
    notes : path-like, optional
        Folder for a summary of each experiment in Markdown, with its figures.
    settings : mapping, optional
        Settings that are changed, such as ``{"k": 10, "data": "rows.npy"}``; `data` of the linear
        experiments may be a file. Then nothing is judged, because the statements belong to the
        declared settings, and pages and numbers are written to the folder "changed" instead of that
        of the scale. A name that an experiment does not have is refused.
    verbose : bool or "auto", default="auto"
        Whether the progress is shown, if `report` is not given.

    Returns
    -------
    Reproduction
        With `outcomes`, `holds`, the names `waiting` of experiments that are not complete, the
        `tally` of runs, the path of the `page`, and the `exit_code` of the command.

    Examples
    --------
    >>> import tempfile
    >>> done = reproduce(["dropout-landscape"], out=tempfile.mkdtemp(), page=False, jobs=1)
    >>> done.holds
    True
    """
    start = time.perf_counter()
    check_choice(scale, "scale", SCALES)
    chosen, folder = experiments(names), Path(out)
    if settings:
        chosen = [with_settings(one, scale, settings) for one in chosen]
    store = Store(folder / "cells")
    cells = [cell for one in chosen for cell in one.at(scale).setting.cells()]
    with _counted(check_argument(verbose, "verbose") if report is None else False) as show:
        tally = run(
            cells,
            store,
            device=device,
            jobs=jobs,
            seconds=seconds,
            report=report or show,
        )
    judged = {experiment.name: judge(experiment, scale, store) for experiment in chosen}
    outcomes = tuple(outcome for outcome in judged.values() if outcome is not None)
    waiting = tuple(name for name, outcome in judged.items() if outcome is None)
    written_to = folder / ("changed" if settings else scale)
    for outcome in outcomes:
        write(written_to / f"{outcome.experiment.name}.csv", _numbers(outcome))
    verdicts = {
        "lucidae": __version__,
        "holds": all(outcome.holds for outcome in outcomes),
        "experiments": [outcome.to_dict() for outcome in outcomes],
    }
    text = json.dumps(verdicts, indent=1, ensure_ascii=False) + "\n"
    write(written_to / "verdicts.json", text)
    written = None
    if page and outcomes:
        from lucidae_papers.pages import write_page

        target = written_to / "index.html"
        written = write_page(outcomes, target, time.perf_counter() - start, tally.note)
    if notes is not None:
        from lucidae_papers.pages import write_notes

        write_notes(outcomes, Path(notes))
    return Reproduction(outcomes, waiting, tally, written)


def _numbers(outcome: Outcome) -> str:
    """Return the curves of an outcome as the text of a CSV file with columns series, x and y."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(("series", "x", "y"))
    for name, curve in outcome.curves.items():
        writer.writerows(
            (name, f"{x:.10g}", f"{y:.10g}") for x, y in zip(curve.x, curve.y, strict=True)
        )
    return stream.getvalue()


def write(target: Path, text: str) -> None:
    """Write a text file atomically: an interrupted call leaves the earlier one."""
    with atomic_path(target) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextmanager
def _counted(verbose: bool | str) -> Iterator[Callable[[Tick], None] | None]:
    """Yield a function that shows the number of finished runs, or None if nothing is shown."""
    if not is_shown(verbose):
        yield None
        return
    bar = CountedBar("measuring", "runs")
    try:
        with elapsed("measuring", verbose):
            yield lambda tick: bar.show(tick.done, tick.total)
    finally:
        bar.close()
