"""Run experiments, judge their statements, and write an HTML page, CSV files and verdicts."""

from __future__ import annotations

import csv
import io
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lucidae._version import __version__
from lucidae.io.atomic import atomic_path
from lucidae.iteration.progress import CountedBar, elapsed, is_shown
from lucidae.validation import check_choice, check_verbose
from lucidae_papers.catalogue import experiments
from lucidae_papers.declaration import SCALES, Cell, Experiment
from lucidae_papers.engine import Tally, Tick, run
from lucidae_papers.outcomes import Outcome, judge
from lucidae_papers.store import Store

__all__ = ["Reproduction", "cells_of", "reproduce"]


UNFINISHED = 3
"""Exit code of a command that reached its time limit before all runs were done."""


@dataclass(frozen=True, slots=True)
class Reproduction:
    """Result of `reproduce`: outcomes, names of unfinished experiments, and the HTML page."""

    outcomes: tuple[Outcome, ...]  # outcomes of the experiments whose runs are all done
    # names of the experiments that are not complete, because the time limit was reached
    waiting: tuple[str, ...]
    tally: Tally  # numbers of runs that were done, reused and left
    page: Path | None  # the HTML page; None if it was not requested, or no experiment is complete

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


def cells_of(chosen: Iterable[Experiment], scale: str) -> list[Cell]:
    """Return all runs of some experiments at `scale`, "smoke" or "paper"."""
    return [cell for experiment in chosen for cell in experiment.at(scale).setting.cells()]


def reproduce(
    names: Iterable[str] = (),
    *,
    scale: str = "smoke",
    device: str = "cpu",
    out: str | os.PathLike[str] = "results",
    jobs: int | None = None,
    threads: bool = False,
    seconds: float | None = None,
    report: Callable[[Tick], None] | None = None,
    page: bool = True,
    notes: str | os.PathLike[str] | None = None,
    verbose: bool | str = "auto",
) -> Reproduction:
    """Run experiments, judge their statements, and write an HTML page, CSV files and verdicts."""
    start = time.perf_counter()
    check_choice(scale, "scale", SCALES)
    chosen, folder = experiments(names), Path(out)
    store = Store(folder / "cells")
    with _counted(check_verbose(verbose) if report is None else False) as show:
        tally = run(
            cells_of(chosen, scale),
            store,
            device=device,
            jobs=jobs,
            threads=threads,
            seconds=seconds,
            report=report or show,
        )
    judged = {experiment.name: judge(experiment, scale, store) for experiment in chosen}
    outcomes = tuple(outcome for outcome in judged.values() if outcome is not None)
    waiting = tuple(name for name, outcome in judged.items() if outcome is None)
    for outcome in outcomes:
        write_numbers(outcome, folder / scale)
    write_verdicts(outcomes, folder / scale / "verdicts.json")
    written = None
    if page and outcomes:
        from lucidae_papers.pages import write_page

        target = folder / scale / "index.html"
        written = write_page(outcomes, target, time.perf_counter() - start, tally.note)
    if notes is not None:
        from lucidae_papers.pages import write_notes

        write_notes(outcomes, Path(notes))
    return Reproduction(outcomes, waiting, tally, written)


def write_numbers(outcome: Outcome, folder: Path) -> Path:
    """Write the curves of an outcome to a CSV file (columns series, x, y) and return its path."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(("series", "x", "y"))
    for name, curve in outcome.curves.items():
        writer.writerows(
            (name, f"{x:.10g}", f"{y:.10g}") for x, y in zip(curve.x, curve.y, strict=True)
        )
    target = folder / f"{outcome.experiment.name}.csv"
    with atomic_path(target) as temporary:
        temporary.write_text(stream.getvalue(), encoding="utf-8")
    return target


def write_verdicts(outcomes: Sequence[Outcome], target: Path) -> Path:
    """Write the settings and verdicts of all outcomes to one JSON file; return its path."""
    subject = {
        "lucidae": __version__,
        "holds": all(outcome.holds for outcome in outcomes),
        "experiments": [outcome.to_dict() for outcome in outcomes],
    }
    with atomic_path(target) as temporary:
        temporary.write_text(json.dumps(subject, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return target


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
