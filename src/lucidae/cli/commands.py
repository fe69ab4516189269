"""The commands behind `lucidae` (extra `cli`): thin, every error one sentence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text
from sklearn.preprocessing import StandardScaler

from lucidae._version import __version__
from lucidae.cli import MISSING, is_extra
from lucidae.cli.fit import fit
from lucidae.cli.listing import catalogue
from lucidae.cli.reproduce import reproduce_command
from lucidae.io.tables import Table, read_table

__all__ = ["run"]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")
data = typer.Typer(help="Fetch public data sets, or say where they are kept.")
app.add_typer(data, name="data")

output = Console(soft_wrap=True, highlight=False)
errors = Console(stderr=True, soft_wrap=True, highlight=False)


@dataclass(slots=True)
class CommandState:
    """What the options before the command have set."""

    debug: bool = False


class Dataset(StrEnum):
    """The sets that can be fetched."""

    MNIST = "mnist"


def run(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit code.

    Parameters
    ----------
    arguments : sequence of str
        The words after ``lucidae``.

    Returns
    -------
    int
        0 when all went well, 2 on an error, 130 when interrupted.
    """
    settings = CommandState(debug="--debug" in arguments)
    command = typer.main.get_command(app)
    try:
        code = command.main(
            list(arguments), prog_name="lucidae", standalone_mode=False, obj=settings
        )
    except (KeyboardInterrupt, typer.Abort):
        errors.print("Interrupted.", style="red")
        return 130
    except Exception as error:
        if settings.debug:
            errors.print_exception()
        errors.print(Text(_sentence(error), style="red"))
        return 2
    return code if isinstance(code, int) else 0


def _sentence(error: Exception) -> str:
    """Say what went wrong on one line; an error that nobody foresaw is named by its type."""
    if is_extra(error):
        return MISSING
    # Errors of usage know their own wording, and no public class holds them all.
    wording = getattr(error, "format_message", error.__str__)()
    text = " ".join(str(wording).split()) or type(error).__name__
    foreseen = isinstance(error, (ValueError, OSError)) or hasattr(error, "format_message")
    return text if foreseen else f"{type(error).__name__}: {text} (--debug shows where)"


@app.callback(invoke_without_command=True)
def lucidae(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error arose.")] = False,
) -> None:
    """Autoencoders whose optimum is known, with a certificate for every fit."""
    context.obj.debug = debug
    if version:
        output.print(f"lucidae {__version__}")
    elif context.invoked_subcommand is None:
        output.print(Text.from_ansi(context.get_help()))


@app.command()
def report(
    file: Annotated[
        Path | None,
        typer.Argument(help="CSV, NPY, NPZ or Parquet; the embedded digits without one."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Where the page goes.")] = Path("lucidae-report.html"),
    target: Annotated[
        list[str] | None,
        typer.Option(help="A column to be explained by the others; may be given again."),
    ] = None,
    standardize: Annotated[
        bool, typer.Option("--standardize", help="Give every column variance one first.")
    ] = False,
) -> None:
    """Write one self-contained HTML page on your data, or on the embedded digits."""
    from lucidae.report import write_report

    table = _digits() if file is None else read_table(file)
    if target:
        table = table.with_target(target)
    if standardize:
        table = replace(table, values=StandardScaler().fit_transform(table.values))
    with _progress() as progress:
        task = progress.add_task("Starting", total=None)

        def show(title: str, number: int, total: int) -> None:
            progress.update(task, description=title, completed=number, total=total)

        page = write_report(table, out, progress=show)
    output.print(f"[green]Written:[/green] {escape(str(page.resolve()))}")


app.add_typer(fit, name="fit")
app.command("reproduce")(reproduce_command)


@app.command("list")
def list_everything() -> None:
    """List what there is, one a line: data sets, estimators, methods, experiments."""
    for entry in catalogue():
        output.print(f"{entry.kind:<11}{entry.name:<26}{entry.summary}", markup=False)


@data.command("fetch")
def fetch(
    name: Annotated[Dataset, typer.Argument(help="Which set.")] = Dataset.MNIST,
    path: Annotated[
        Path | None, typer.Option(help="A folder or archive to take the files from.")
    ] = None,
) -> None:
    """Fetch a data set into the cache and verify it."""
    from lucidae import datasets

    with _progress() as progress:
        progress.add_task(f"Fetching {name}", total=None)
        bunch = datasets.fetch_mnist("all", path=path, dtype="uint8")
    rows, columns = bunch.data.shape
    output.print(f"{name}: {rows} × {columns}, verified, in {datasets.data_home()}", markup=False)


@data.command("where")
def where() -> None:
    """Print the folder in which fetched data are kept."""
    from lucidae import datasets

    output.print(str(datasets.data_home()), markup=False)


def _digits() -> Table:
    from lucidae import datasets

    digits = datasets.load_digits()
    return Table("the digits", digits.data, tuple(digits.feature_names), digits.image_shape)


@contextmanager
def _progress() -> Iterator[Progress]:
    """Show a bar on a terminal and nothing elsewhere; it leaves no trace."""
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        console=errors,
        transient=True,
        disable=not errors.is_terminal,
    ) as progress:
        yield progress
