"""Files of the commands: options for reading a table, and which files may be replaced."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from lucidae.cli.console import note
from lucidae.io.models import Source, source_of
from lucidae.io.tables import ReadOptions, Table, read_table

__all__ = [
    "Columns",
    "Decimal",
    "Force",
    "Header",
    "check_page",
    "check_results",
    "read_noted",
    "reading_options",
]

Header = Annotated[
    bool | None,
    typer.Option(
        "--header/--no-header",
        help="Whether the first line of a text file contains the names of the columns; default: "
        "decided from the first lines.",
        show_default=False,
    ),
]
Columns = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME,…",
        help="The columns to use, as names or 0-based indices separated by commas; default: all "
        "columns of numbers except an index of the rows.",
    ),
]
Decimal = Annotated[
    str | None,
    typer.Option(
        metavar="[.|,]",
        help="The decimal separator of a text file; default: decided from the first lines.",
    ),
]
Force = Annotated[
    bool, typer.Option("--force", help="Replace existing files, whatever they contain.")
]


def reading_options(
    header: bool | None,
    columns: Sequence[str] | None,
    decimal: str | None,
    targets: Sequence[str] | None = None,
) -> ReadOptions:
    """Return the options of a command that reads a table.

    Names in `columns` that contain a comma are written between double quotes, as in CSV.

    Examples
    --------
    >>> reading_options(None, ['height,"a,b"', "3"], None).columns
    ('height', 'a,b', '3')
    """
    names = [name.strip() for row in csv.reader(columns or ()) for name in row]
    return ReadOptions(header, tuple(filter(None, names)), decimal, tuple(targets or ()))


def read_noted(file: Path, options: ReadOptions) -> Table:
    """Read a table and print how its header and its columns were read."""
    table = read_table(file, options)
    if table.reading:
        note(table.reading)
    return table


def check_page(page: Path, inputs: Iterable[Path], force: bool) -> None:
    """Refuse to replace an input, or without `force` any file that is not a page of lucidae."""
    _refuse_inputs([page], inputs)
    if force or not page.exists() or page.is_dir():
        return
    with page.open("rb") as stream:
        start = stream.read(4096)
    if b'name="generator" content="lucidae' not in start:
        raise ValueError(
            f"{str(page)!r} exists and is not a page of lucidae: give another --out, or --force "
            "to replace it."
        )


def check_results(
    model: Path, others: Sequence[Path], file: Path, inputs: Iterable[Path], force: bool
) -> None:
    """Refuse to replace an input, or without `force` results that do not belong to `file`.

    Parameters
    ----------
    model : Path
        The file of the model.
    others : sequence of Path
        Further output files with the same prefix.
    file : Path
        The table that is fitted.
    inputs : iterable of Path
        All files that are read.
    force : bool
        Whether other results may be replaced.
    """
    _refuse_inputs([model, *others], inputs)
    existing = [path for path in (model, *others) if path.exists()]
    if force or not existing:
        return
    known = source_of(model) if model.exists() else None
    if known is None or not known.is_of(file):
        raise ValueError(
            f"{str(existing[0])!r} exists and {_origin(known, file)}: give another --out, or "
            "--force to replace it."
        )


def _origin(known: Source | None, file: Path) -> str:
    if known is None:
        return "was not written for this file"
    if known.name == file.name:
        return "belongs to another file of the same name"
    return f"belongs to {known.name!r}"


def _refuse_inputs(outputs: Sequence[Path], inputs: Iterable[Path]) -> None:
    for file in inputs:
        for output in outputs:
            if output.exists() and file.exists() and output.samefile(file):
                raise ValueError(
                    f"{str(output)!r} is an input of this command and would be replaced by its "
                    "output: give another --out."
                )
