"""The commands `lucidae reproduce`, `lucidae list` and `lucidae data` (extra `cli`)."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.markup import escape

import lucidae
from lucidae import datasets
from lucidae.linear.methods import METHODS, MethodSettings, make_method
from lucidae_app.console import output, print_line, print_written, timed
from lucidae_app.streams import mapped_over
from lucidae_papers.engine import NAMES, Reproduction, experiments, reproduce
from lucidae_papers.verdicts import Counts, Outcome


class ScaleName(StrEnum):
    """Names of the two sizes at which experiments can be run."""

    SMOKE = "smoke"
    PAPER = "paper"


def reproduce_experiments(
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
        str,
        typer.Option(help="Device for the computations: cpu, or a device of PyTorch such as cuda."),
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
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Rows on which the linear experiments are run instead of their own data: .npy or "
            "a table. Then nothing is judged.",
        ),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Change a setting of the experiments, such as k=10 or learning_rate=0.01; may be "
            "given several times. Then nothing is judged.",
        ),
    ] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Address of a Dask scheduler, such as tcp://host:8786, whose workers do the runs; "
            "they must see the folder of the results under the same path.",
        ),
    ] = None,
) -> None:
    """Run the experiments of the papers, and check the papers' claims against the results."""
    with mapped_over(scheduler):
        done = reproduce(
            names or (),
            scale=scale.value,
            device=device,
            out=out,
            jobs=jobs,
            seconds=seconds,
            notes=notes,
            settings=_settings(changes or [], data),
        )
    raise typer.Exit(print_verdicts(done))


def _settings(changes: list[str], data: Path | None) -> dict[str, Any]:
    """Return the settings of ``--set NAME=VALUE`` and ``--data FILE`` by name."""
    found: dict[str, Any] = {} if data is None else {"data": str(data.resolve())}
    for change in changes:
        name, equals, value = change.partition("=")
        if not equals or not name:
            raise ValueError(f"--set {change} was given, expected NAME=VALUE, such as k=10.")
        try:
            found[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            found[name] = value
    return found


def print_verdicts(done: Reproduction) -> int:
    """Print each experiment with the verdict on its claims; return the exit code of the command."""
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
    """Print how many claims of an experiment are confirmed, and each claim that is not."""
    mark = "[green]✓[/green]" if outcome.holds else "[red]✗[/red]"
    if not outcome.claims:
        mark = "–"
    experiment = outcome.experiment
    output.print(
        f"{mark} {experiment.name:<20} {outcome.counts}  [dim]{escape(experiment.reference)}[/dim]"
    )
    for judgement in outcome.judgements:
        if judgement.holds is False:
            output.print(f"    [red]{escape(judgement.prose)}[/red]")


data = typer.Typer(help="Download public data sets, or print the folder that contains them.")


class Dataset(StrEnum):
    """Names of the data sets that can be downloaded."""

    MNIST = "mnist"


@data.command("fetch")
def fetch(
    name: Annotated[Dataset, typer.Argument(help="The data set.")] = Dataset.MNIST,
    path: Annotated[
        Path | None,
        typer.Option(
            help="A folder or tar archive from which the files are read, instead of "
            "downloading them."
        ),
    ] = None,
) -> None:
    """Download a data set into the cache folder and verify its checksums."""
    with timed(f"Fetching {name}"):
        bunch = datasets.fetch_mnist("all", path=path, dtype="uint8")
    rows, columns = bunch.data.shape
    print_line(f"{name}: {rows} rows × {columns} columns, verified, in {datasets.data_home()}")


@data.command("where")
def where() -> None:
    """Print the folder that contains the downloaded data."""
    print_line(str(datasets.data_home()))


def list_everything() -> None:
    """List data sets, estimators, methods and experiments, one per line."""
    for entry in catalogue():
        print_line(f"{entry.kind:<11}{entry.name:<26}{entry.summary}")


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of ``lucidae list``: a data set, an estimator, a method or an experiment.

    The fields are the kind of thing, its name, and one sentence about it.
    """

    kind: str
    name: str
    summary: str


METHOD_SUMMARIES = {
    "rag": "Rotation-augmented gradient: the reconstruction gradient plus a rotation that orders "
    "the latents. Bao et al. 2020, Algorithm 1.",
    "gha": "Generalized Hebbian algorithm; Oja's rule for one latent. Sanger 1989.",
    "brockett": "Gradient ascent of Brockett's weighted trace over orthonormal decoders. Bao et "
    "al. 2020, eq. 51.",
    "plain": "Gradient descent on the reconstruction error alone. Bao et al. 2020, eq. 1.",
    "uniform_l2": "Reconstruction error plus the same squared-norm penalty for all latents. Bao "
    "et al. 2020, eq. 2.",
    "nonuniform_l2": "Reconstruction error plus a different squared-norm penalty for each latent, "
    "which orders the latents. Bao et al. 2020, eq. 3.",
    "nested_dropout": "Nested dropout: for each row only the first latents are kept, a random "
    "number of them. Rippel et al. 2014.",
    "expected_nested_dropout": "The expectation of nested dropout over the number of latents. Bao "
    "et al. 2020, eq. 6.",
    "linear_vae": "Linear variational autoencoder with a diagonal posterior covariance. Bao et "
    "al. 2020, Appendix F.",
}
"""One sentence about each method of `LinearAutoencoder`, without formulas.

Methods that are not listed here are described by their own summary."""


def catalogue() -> Iterator[Entry]:
    """Yield all lines of ``lucidae list``: data sets, estimators, methods, experiments."""
    for name in datasets.__all__:
        if name.startswith(("load_", "fetch_", "make_")):
            yield Entry("dataset", name, _first_sentence(getattr(datasets, name)))
    for name in lucidae.__all__:
        subject = getattr(lucidae, name)
        if inspect.isclass(subject) and hasattr(subject, "fit"):
            yield Entry("estimator", name, _first_sentence(subject))
    settings = MethodSettings(np.ones(1), np.ones(1), np.random.default_rng(0))
    for name in METHODS:
        summary = METHOD_SUMMARIES.get(name) or make_method(name, settings).rule.summary
        yield Entry("method", name, summary)
    for experiment in experiments(NAMES):
        summary = f"{experiment.title} ({experiment.reference})"
        yield Entry("experiment", experiment.name, summary)


def _first_sentence(subject: object) -> str:
    """Return the first line of an object's docstring."""
    return (inspect.getdoc(subject) or "").partition("\n")[0]
