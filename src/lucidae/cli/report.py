"""The command `lucidae report` (extra `cli`)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from sklearn.preprocessing import StandardScaler

from lucidae.cli.console import print_written, progress_bar
from lucidae.cli.files import (
    Columns,
    Decimal,
    Force,
    Header,
    check_page,
    read_noted,
    reading_options,
)
from lucidae.datasets import load_digits
from lucidae.io.tables import Table

__all__ = ["report"]


def report(
    file: Annotated[
        Path | None,
        typer.Argument(
            help="CSV, NPY, NPZ or Parquet, one sample per row; default: scikit-learn's digits."
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option(help="Path of the page; an earlier page of lucidae is replaced.")
    ] = Path("lucidae-report.html"),
    target: Annotated[
        list[str] | None,
        typer.Option(
            help="A column to be explained by the others, by name or 0-based index; repeat the "
            "option for several."
        ),
    ] = None,
    standardize: Annotated[
        bool, typer.Option("--standardize", help="Scale every column to variance one first.")
    ] = False,
    header: Header = None,
    columns: Columns = None,
    decimal: Decimal = None,
    force: Force = False,
) -> None:
    """Write one self-contained HTML page on your data, or on the digits of scikit-learn."""
    from lucidae.report import write_report  # matplotlib takes a second to import

    check_page(out, [] if file is None else [file], force)
    if file is None:
        if columns or decimal or header is not None:
            raise ValueError("--columns, --decimal and --header are options of a FILE: give one.")
        table = _digits().with_target(target) if target else _digits()
    else:
        table = read_noted(file, reading_options(header, columns, decimal, target))
    if standardize:
        table = replace(table, values=StandardScaler().fit_transform(table.values))
    with progress_bar("Starting") as show:
        page = write_report(table, out, progress=show)
    print_written(page)


def _digits() -> Table:
    digits = load_digits()
    return Table("the digits", digits.data, tuple(digits.feature_names), digits.image_shape)
