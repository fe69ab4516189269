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
    """Names of the two sizes at which experiments can be run."""

    SMOKE = "smoke"
    PAPER = "paper"


def reproduce_command(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME",
            help="Names of experiments, which 'lucidae list' shows; by default all are run.",
        ),
    ] = None,
    scale: Annotated[
        ScaleName,
        typer.Option(
            help="Size of the experiments: smoke (small data, minutes) or paper (the sizes of the "
            "papers)."
        ),
    ] = ScaleName.SMOKE,
    device: Annotated[
        str, typer.Option(help="Device that computes: cpu, or a device of PyTorch such as cuda.")
    ] = "cpu",
    out: Annotated[
        Path, typer.Option(help="Folder of the results; results that it contains are reused.")
    ] = Path("results"),
    jobs: Annotated[
        int | None,
        typer.Option(
            help="Number of processes; by default one per CPU core, or one if --device is not cpu."
        ),
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(help="Time limit in seconds; run the command again to continue.")
    ] = None,
    notes: Annotated[
        Path | None,
        typer.Option(help="Folder for short summaries of the experiments in Markdown, with plots."),
    ] = None,
) -> None:
    """Run the experiments of the papers, and check the papers' claims against the results."""
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
    """Print each experiment with the verdict on its claims, and return the exit code."""
    for outcome in done.outcomes:
        _print_outcome(outcome)
    if len(done.outcomes) > 1:
        output.print(f"All experiments together: {Counts.of(done.outcomes)}.")
    for name in done.waiting:
        output.print(
            f"[yellow]…[/yellow] {name:<20} not complete: run the same command again to continue"
        )
    if done.tally.note:
        output.print(f"[yellow]{escape(done.tally.note)}[/yellow]")
    if done.page is not None:
        print_written(done.page)
    return done.exit_code


def _print_outcome(outcome: Outcome) -> None:
    """Print one experiment with the numbers of its claims by verdict, and each claim that fails."""
    mark = "[green]✓[/green]" if outcome.holds else "[red]✗[/red]"
    experiment = outcome.experiment
    output.print(
        f"{mark} {experiment.name:<20} {outcome.counts}  [dim]{escape(experiment.reference)}[/dim]"
    )
    for judgement in outcome.judgements:
        if judgement.holds is False:
            output.print(f"    [red]{escape(judgement.prose)}[/red]")
