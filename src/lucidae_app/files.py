"""Options for reading a table, and checks that output files may be replaced."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from lucidae.data.files import read_table
from lucidae.data.tables import ReadOptions, Table
from lucidae.io.models import Source, source_of
from lucidae_app.console import note

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
        help="Whether the first line of a text file contains the names of the columns; by default "
        "this is decided from the first lines.",
        show_default=False,
    ),
]
Columns = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME,…",
        help="The columns to use, as names or 0-based indices separated by commas; by default all "
        "numeric columns except one that only numbers the rows.",
    ),
]
Decimal = Annotated[
    str | None,
    typer.Option(
        metavar="[.|,]",
        help="The decimal separator of a text file; by default it is decided from the first lines.",
    ),
]
Force = Annotated[
    bool, typer.Option("--force", help="Replace existing output files, whatever they contain.")
]


def reading_options(
    header: bool | None,
    columns: Sequence[str] | None,
    decimal: str | None,
    targets: Sequence[str] | None = None,
) -> ReadOptions:
    """Return the values of --header, --columns, --decimal and --target as `ReadOptions`.

    Each text in `columns` has names or 0-based indices separated by commas. A name that contains a
    comma must be written between double quotes, as in CSV.
    """
    names = [name.strip() for row in csv.reader(columns or ()) for name in row]
    return ReadOptions(header, tuple(filter(None, names)), decimal, tuple(targets or ()))


def read_noted(file: Path, options: ReadOptions) -> Table:
    """Return the table in a file; print whether it has a header and which columns are left out."""
    table = read_table(file, options)
    if table.reading:
        note(table.reading)
    return table


def check_page(page: Path, inputs: Iterable[Path], force: bool, *, kind: str = "report") -> None:
    """Raise an error if the path `page` of an HTML page is a folder or a file not to be replaced.

    Not to be replaced are the input files (`inputs`) and, without `force`, all files that are not
    pages of lucidae. `kind` is the name of the page in messages, such as "report".
    """
    if page.is_dir():
        raise ValueError(
            f"{str(page)!r} is a folder, expected the path of a file: give --out "
            f"{str(page / f'{kind}.html')!r}, for example."
        )
    _refuse_inputs([page], inputs)
    if force or not page.exists():
        return
    with page.open("rb") as stream:
        start = stream.read(4096)
    if b'name="generator" content="lucidae' not in start:
        raise ValueError(
            f"{str(page)!r} exists and is not a {kind} of lucidae: give another path with --out, "
            "or add --force to replace it."
        )


def check_results(
    model: Path, others: Sequence[Path], file: Path, inputs: Iterable[Path], force: bool
) -> None:
    """Raise an error if writing the results of a fit would replace files that must not be lost.

    These files are the inputs and, without `force`, existing results of a fit to another file.
    """
    _refuse_inputs([model, *others], inputs)
    existing = [path for path in (model, *others) if path.exists()]
    if force or not existing:
        return
    known = source_of(model) if model.exists() else None
    if known is None or not known.is_of(file):
        raise ValueError(
            f"{str(existing[0])!r} exists and {_origin(known, file)}: give another prefix with "
            "--out, or add --force to replace it."
        )


def _origin(known: Source | None, file: Path) -> str:
    """Return the clause of a message that says to which data file existing results belong."""
    if known is None:
        return f"is not a result for {file.name!r}"
    if known.name == file.name:
        return f"is the result for another file named {file.name!r}"
    return f"is the result for the file {known.name!r}"


def _refuse_inputs(outputs: Sequence[Path], inputs: Iterable[Path]) -> None:
    """Raise an error if one of the output files is also an input file."""
    for file in inputs:
        for output in outputs:
            if output.exists() and file.exists() and output.samefile(file):
                raise ValueError(
                    f"{str(output)!r} is an input file of this command, and the output would "
                    "replace it: give another --out."
                )
