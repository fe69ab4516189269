"""The commands `lucidae report` and `lucidae laboratory` (extra `cli`)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lucidae.data.tables import Table
from lucidae.datasets import load_digits
from lucidae_app.console import note, print_written, progress_bar
from lucidae_app.files import (
    Columns,
    Decimal,
    Force,
    Header,
    check_page,
    read_noted,
    reading_options,
)
from lucidae_app.streams import standardized, summarised_table

__all__ = ["laboratory", "report"]


def report(
    file: Annotated[
        Path | None,
        typer.Argument(
            help="Data file (CSV, NPY, NPZ or Parquet), one sample per row; by default the digits "
            "of scikit-learn."
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option(help="Path of the HTML page; an earlier report there is replaced.")
    ] = Path("lucidae-report.html"),
    target: Annotated[
        list[str] | None,
        typer.Option(
            help="A column to be explained by the others, by name or 0-based index; repeat the "
            "option for several."
        ),
    ] = None,
    standardize: Annotated[
        bool, typer.Option("--standardize", help="First scale every column to variance one.")
    ] = False,
    header: Header = None,
    columns: Columns = None,
    decimal: Decimal = None,
    force: Force = False,
) -> None:
    """Write a report on your data, or on scikit-learn's digits, as one self-contained HTML page."""
    from lucidae_app.report import write_report  # matplotlib takes a second to import

    check_page(out, [] if file is None else [file], force)
    if file is None:
        if columns or decimal or header is not None:
            raise ValueError(
                "--columns, --decimal and --header apply to a data file, but no FILE was given: "
                "name the file, or omit these options."
            )
        table = _digits().with_target(target) if target else _digits()
    else:
        options = reading_options(header, columns, decimal, target)
        summary = summarised_table(file, options)
        table = read_noted(file, options) if summary is None else summary
        if summary is not None and summary.reading:
            note(summary.reading)
    if standardize:
        table = standardized(table)
    with progress_bar("Starting") as show:
        page = write_report(table, out, progress=show)
    print_written(page)


def laboratory(
    out: Annotated[
        Path, typer.Option(help="Path of the HTML page; an earlier page of lucidae is replaced.")
    ] = Path("lucidae-laboratory.html"),
    force: Force = False,
) -> None:
    """Write the laboratory, loss landscapes to turn and change in a browser, as one HTML page."""
    from lucidae_app.report.laboratory import (
        write_laboratory,  # matplotlib takes a second to import
    )

    check_page(out, [], force, kind="page")
    print_written(write_laboratory(out))


def _digits() -> Table:
    """Return the handwritten digits of scikit-learn as a table of pixels."""
    digits = load_digits()
    return Table("the digits", digits.data, tuple(digits.feature_names), digits.image_shape)
