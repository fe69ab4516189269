"""The command `lucidae reproduce` (extra `cli`)."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from lucidae.cli.console import output, print_written, progress_bar
from lucidae.experiments.engine import Tick, duration
from lucidae.experiments.outcomes import Counts, Outcome
from lucidae.experiments.reproduce import Reproduction, reproduce

__all__ = ["reproduce_command"]


class ScaleName(StrEnum):
    """Sizes of the experiments."""

    SMOKE = "smoke"
    PAPER = "paper"


def reproduce_command(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Experiments (see 'lucidae list'); default: all."),
    ] = None,
    scale: Annotated[
        ScaleName,
        typer.Option(help="smoke: small data, takes minutes; paper: sizes of the papers."),
    ] = ScaleName.SMOKE,
    device: Annotated[str, typer.Option(help="cpu, or a device of PyTorch such as cuda.")] = "cpu",
    out: Annotated[
        Path, typer.Option(help="Folder of the results; a new run reuses what it contains.")
    ] = Path("results"),
    jobs: Annotated[
        int | None,
        typer.Option(help="Number of processes; default: one per core, or one on a device."),
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(help="Time limit in seconds; run the command again to continue.")
    ] = None,
    notes: Annotated[
        Path | None, typer.Option(help="Folder for short summaries in Markdown, with figures.")
    ] = None,
) -> None:
    """Run the experiments of the papers and judge what they claim."""
    with progress_bar("Measuring") as show:

        def report(tick: Tick) -> None:
            left = tick.seconds_left
            remaining = "" if left is None else f", {duration(max(0, left))} left"
            show(f"Measuring{remaining}", tick.done, tick.total)

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
    raise typer.Exit(print_verdicts(done))


def print_verdicts(done: Reproduction) -> int:
    """Print every experiment with its verdict and return the exit code."""
    for outcome in done.outcomes:
        _print_outcome(outcome)
    if len(done.outcomes) > 1:
        output.print(f"In all: {Counts.of(done.outcomes)}.")
    for name in done.waiting:
        output.print(f"[yellow]…[/yellow] {name:<20} not complete: run again to continue")
    if done.tally.note:
        output.print(f"[yellow]{escape(done.tally.note)}[/yellow]")
    if done.page is not None:
        print_written(done.page)
    return done.exit_code


def _print_outcome(outcome: Outcome) -> None:
    mark = "[green]✓[/green]" if outcome.holds else "[red]✗[/red]"
    experiment = outcome.experiment
    output.print(
        f"{mark} {experiment.name:<20} {outcome.counts}  [dim]{escape(experiment.reference)}[/dim]"
    )
    for judgement in outcome.judgements:
        if judgement.holds is False:
            output.print(f"    [red]{escape(judgement.prose)}[/red]")
