"""The command `lucidae reproduce` (extra `cli`): a bar while it runs, a table at the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

from lucidae.experiments.engine import Tick, duration
from lucidae.experiments.reproduce import Reproduction, reproduce
from lucidae.experiments.verdicts import Outcome

__all__ = ["reproduce_command"]

output = Console(soft_wrap=True, highlight=False)
errors = Console(stderr=True, soft_wrap=True, highlight=False)

UNFINISHED = 3
"""Exit code of a run whose time was over before it was complete."""


class ScaleName(StrEnum):
    """The scales that can be asked for."""

    SMOKE = "smoke"
    PAPER = "paper"


def reproduce_command(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Experiments (see 'lucidae list'); default all."),
    ] = None,
    scale: Annotated[
        ScaleName, typer.Option(help="smoke: embedded data, minutes; paper: the papers' sizes.")
    ] = ScaleName.SMOKE,
    device: Annotated[str, typer.Option(help="cpu, or what PyTorch calls a device.")] = "cpu",
    out: Annotated[Path, typer.Option(help="Where results go, and are found again.")] = Path(
        "results"
    ),
    jobs: Annotated[
        int | None, typer.Option(help="Processes; by default one a core, one on a device.")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(help="Stop cleanly before this; run again to go on.")
    ] = None,
    notes: Annotated[
        Path | None, typer.Option(help="A folder for short notes with their figures.")
    ] = None,
) -> None:
    """Run the papers' experiments again and say whether what they claim is seen."""
    with _bar() as report:
        done = reproduce(
            names or (),
            scale=scale.value,
            device=device,
            out=out,
            jobs=jobs,
            seconds=seconds,
            report=report,
            notes=notes,
        )
    raise typer.Exit(told(done))


@contextmanager
def _bar() -> Iterator[Reporter]:
    """Show a bar with the time left on a terminal, and nothing elsewhere."""
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        console=errors,
        transient=True,
        disable=not errors.is_terminal,
    ) as progress:
        yield Reporter(progress)


class Reporter:
    """Turns ticks of the engine into a bar."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.task = progress.add_task("Measuring", total=None)

    def __call__(self, tick: Tick) -> None:
        """Show how far the work has come and how long it will take."""
        left = "" if tick.seconds_left is None else f", {duration(max(0, tick.seconds_left))} left"
        self.progress.update(
            self.task, completed=tick.done, total=tick.total, description=f"Measuring{left}"
        )


def told(done: Reproduction) -> int:
    """Print every experiment with its verdict and return the exit code.

    0: every claim was seen; 1: some claim was not; 3: not complete, run again to go on.
    """
    for outcome in done.outcomes:
        _tell(outcome)
    for name in done.waiting:
        output.print(f"[yellow]…[/yellow] {name:<20} not complete: run again to go on")
    if done.page is not None:
        output.print(f"[green]Written:[/green] {escape(str(done.page.resolve()))}")
    if done.waiting:
        return UNFINISHED
    return 0 if done.holds else 1


def _tell(outcome: Outcome) -> None:
    mark = "[green]✓[/green]" if outcome.holds else "[red]✗[/red]"
    experiment = outcome.experiment
    judged = [claim for claim in outcome.verdicts.claims if claim.holds is not None]
    seen = sum(claim.holds is True for claim in judged)
    output.print(
        f"{mark} {experiment.name:<20} {seen} of {len(judged)} claims seen  "
        f"[dim]{escape(experiment.reference)}[/dim]"
    )
    for claim in judged:
        if claim.holds is False:
            output.print(f"    [red]{escape(claim.statement)}; measured {claim.value:.4g}[/red]")
