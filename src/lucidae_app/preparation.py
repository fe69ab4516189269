"""What `lucidae report` and `lucidae fit` do with a table before a model is fitted to it.

Columns that only number the rows are left out, missing values are handled as ``--missing`` says.
"""

from __future__ import annotations

import csv
import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import numpy as np
import typer
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import StandardScaler

from lucidae import LinearAutoencoder
from lucidae.impute import LowRankImputer
from lucidae.rows.files import blocks_of_file, read_table
from lucidae.rows.tables import INDEX, Matrix, ReadOptions, Table, some
from lucidae_app.advice import joined
from lucidae_app.console import note, printed_warnings

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
        "numeric columns except those that only number the rows.",
    ),
]
Keep = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME,…", help="Columns to use although they seem to only number the rows."
    ),
]
Decimal = Annotated[
    str | None,
    typer.Option(
        metavar="[.|,]",
        help="The decimal separator of a text file; by default it is decided from the first lines.",
    ),
]
MissingCells = Annotated[
    list[str] | None,
    typer.Option(
        "--missing-values",
        metavar="CELL,…",
        help="Cells that mean a missing value, such as n/k,-999, besides empty cells and NA.",
    ),
]
Missing = Annotated[
    str,
    typer.Option(
        metavar="[error|em|drop|mean]",
        help="What to do with missing values: an error, em (use all observed values, by maximum "
        "likelihood), drop (leave out rows with gaps) or mean (fill in the mean of the column).",
    ),
]
Standardize = Annotated[
    bool, typer.Option("--standardize", help="First scale every column to variance one.")
]

HANDLINGS = ("error", "em", "drop", "mean")
"""What can be done with missing values; values of ``--missing``."""

IDENTIFIER = re.compile(r"(.*[\W_])?(id|key|index|uuid|guid)|.*[a-z](Id|ID)", re.DOTALL)
"""Names of columns whose different integers are taken as identifiers whatever their range."""

UNEVEN = 100.0
"""Ratio of standard deviations of columns above which scaling them is advised."""

EXPECTED_TIES = 5.0
"""Expected number of equal pairs above which different integers only number the rows: by chance,
without any pair, this has the probability exp(−5) = 0.007."""


@dataclass(frozen=True, slots=True)
class Preparation:
    """The user's choices for reading a table and for what is done before a fit."""

    options: ReadOptions
    keep: tuple[str, ...] = ()  # columns that are not left out as identifiers
    missing: str = "error"  # one of `HANDLINGS`
    standardize: bool = False

    @property
    def needs_rows(self) -> bool:
        """Whether all rows must be in memory."""
        return self.standardize or self.missing != "error"

    @property
    def arguments(self) -> str:
        """The options of a command that repeat these choices, with a space before each."""
        options = self.options
        header = "" if options.header is None else f" --{'' if options.header else 'no-'}header"
        listed = {
            "columns": joined(options.columns),
            "keep": joined(self.keep),
            "decimal": options.decimal or "",
            "missing-values": joined(options.missing_values),
            "missing": "" if self.missing == "error" else self.missing,
        }
        text = "".join(f" --{name} {quote(value)}" for name, value in listed.items() if value)
        return f"{header}{text}{' --standardize' if self.standardize else ''}"

    def with_options(self, **changes: Any) -> Preparation:
        """Return a copy with other options for reading."""
        return replace(self, options=replace(self.options, **changes))

    def read(self, file: Path, responses: Table | None = None) -> Prepared:
        """Return the table in a file without identifiers, and with missing values handled.

        `responses` is a second table, whose columns are the targets.
        """
        with printed_warnings():
            table = read_table(file, self.options, missing=True)
        options = self.with_kept(file, (*table.columns, *table.target_names), table.left_out)
        if options != self.options:
            table = read_table(file, options, missing=True)
        found = self.identifiers(table.columns, table.values)
        if found:
            at = [name not in found for name in table.columns]
            table = replace(
                table,
                values=table.values[:, at],
                columns=tuple(name for name in table.columns if name not in found),
                left_out={**table.left_out, **found},
            )
        if responses is not None:
            if len(responses.values) != len(table.values):
                raise ValueError(
                    f"{responses.name!r} has {len(responses.values)} rows, but {table.name!r} has "
                    f"{len(table.values)}; give one row of targets for each row of {table.name!r}."
                )
            table = replace(table, target=responses.values, target_names=responses.columns)
        prepared = self.without_gaps(table)
        for sentence in filter(None, (table.reading, *prepared.notes)):
            note(sentence)
        return prepared

    def with_kept(self, file: Path, names: Sequence[str], left_out: Any) -> ReadOptions:
        """Return the options for reading a file with the columns of ``--keep``, checked.

        `names` are read; of those that are `left_out`, the index of the rows can be kept.
        """
        hidden = tuple(name for name in self.keep if left_out.get(name) == INDEX)
        if unknown := {*self.keep} - {*names, *hidden}:
            raise ValueError(
                f"--keep {some(sorted(unknown))} was given, expected names of columns of numbers "
                f"of {file.name!r}: {some(names)}."
            )
        return replace(self.options, columns=(*names, *hidden)) if hidden else self.options

    def without_identifiers(self, file: Path) -> ReadOptions:
        """Return the options for reading a large file in blocks, judged by its first block."""
        data = blocks_of_file(file, options=self.options)
        chosen, first = data.chosen, next(iter(data), None)
        assert chosen is not None, "a file has columns"
        options = self.with_kept(file, chosen.names, chosen.left_out)
        if not isinstance(first, np.ndarray):  # sparse blocks are counts, without identifiers
            return options
        names = [chosen.names[at] for at in chosen.features]
        found = self.identifiers(names, first[:, chosen.features])
        if not found:
            return options
        note(
            f"{file.name}: columns left out: {some([f'{n} ({why})' for n, why in found.items()])}."
        )
        read = (*names, *options.columns)
        return replace(options, columns=tuple(name for name in read if name not in found))

    def identifiers(self, names: Sequence[str], values: Matrix) -> dict[str, str]:
        """Return the columns that only number the rows, with the reason why they are left out.

        Such a column has different integers, and either its name says so or they are so dense that
        the integers of a quantity would have had equal pairs: n values in a range of R have about
        n²/(2R) of them. Columns that the user named are not looked at.
        """
        found: dict[str, str] = {}
        named = {*self.keep, *self.options.columns}
        for name, column in zip(names, np.asarray(values).T, strict=True):
            if name in named or self.options.columns or not _different_integers(column):
                continue
            ties = len(column) ** 2 / (2.0 * (float(np.ptp(column)) + 1.0))
            if ties >= EXPECTED_TIES or (len(column) > 2 and IDENTIFIER.fullmatch(name)):
                found[name] = f"it only numbers the rows; --keep {quote(name)} uses it"
        return {} if len(found) == len(names) else found

    def without_gaps(self, table: Table) -> Prepared:
        """Return the table with its missing values handled as `missing` says.

        With em and mean only the rows without a target are left out: the model fills in the rest.
        """
        targets = np.empty((len(table.values), 0)) if table.target is None else table.target
        names, cells = (*table.columns, *table.target_names), np.hstack([table.values, targets])
        if np.isinf(cells).any():
            infinite = [names[at] for at in np.flatnonzero(np.isinf(cells).any(axis=0))]
            raise ValueError(
                f"{table.name!r} contains infinite values in {some(infinite)}: correct them, or "
                "read them as missing by --missing-values inf,-inf."
            )
        gaps = np.isnan(cells)
        if not gaps.any():
            return Prepared(table, self)
        if self.missing == "error":
            counts = gaps.sum(axis=0)
            worst = [at for at in np.argsort(-counts, kind="stable") if counts[at]]
            listed = some([f"{names[at]} ({counts[at]:,})" for at in worst])
            raise ValueError(
                f"{table.name!r} has missing values in {_rows(gaps.any(axis=1))}, by column: "
                f"{listed}. Give --missing em to use all observed values, --missing drop to leave "
                "these rows out, or --missing mean to fill in means; or leave columns out with "
                "--columns."
            )
        lost = np.any(gaps if self.missing == "drop" else np.isnan(targets), axis=1)
        notes = []
        if lost.any():
            if len(lost) - lost.sum() < 2:
                raise ValueError(
                    f"{table.name!r} has missing values in {_rows(lost)}, so that --missing "
                    f"{self.missing} leaves fewer than two: give --missing em, or leave columns "
                    "out with --columns."
                )
            why = "a missing value" if self.missing == "drop" else "a missing target"
            notes.append(f"{table.name}: {_rows(lost)} with {why} are left out.")
            target = None if table.target is None else table.target[~lost]
            table = replace(table, values=table.values[~lost], target=target)
        gaps = np.isnan(table.values)
        if gaps.any():
            notes.append(f"{table.name}: {gaps.mean():.1%} of the values {FILLED[self.missing]}.")
        return Prepared(table, self, ~lost if lost.any() else None, tuple(notes))


def uneven_scales(deviations: Matrix) -> str:
    """Return a clause on the standard deviations of columns if they differ widely, else nothing."""
    varying = deviations[deviations > 0]
    if not varying.size or varying.max() <= UNEVEN * varying.min():
        return ""
    return (
        f"The standard deviations of the columns range from {varying.min():.3g} to "
        f"{varying.max():.3g}, so that the largest columns dominate"
    )


FILLED = {
    "em": "are missing; a model of low rank is fitted to the observed ones (maximum likelihood)",
    "mean": "are missing and replaced by the mean of their column, which makes variances too small",
}
"""What is said about missing values, by the value of ``--missing``."""


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """A table after its preparation; it has missing values only if the model is to handle them."""

    table: Table
    preparation: Preparation
    kept: Matrix | None = None  # whether each row of the file is in the table; None if all are
    notes: tuple[str, ...] = ()  # what was done with missing values

    @property
    def has_gaps(self) -> bool:
        """Whether values of the table are missing, which are filled in."""
        values: Any = self.table.values  # blocks of a large file have no known gaps
        return isinstance(values, np.ndarray) and bool(np.isnan(values).any())

    @property
    def constant_columns(self) -> list[str]:
        """Columns of a table in memory whose observed values are all equal."""
        values: Any = self.table.values
        equal = np.fmin.reduce(values, axis=0) == np.fmax.reduce(values, axis=0)
        return [self.table.columns[at] for at in np.flatnonzero(equal)]

    def steps(self, model: Any) -> list[Any]:
        """Return what a pipeline does before the model: fills in missing values, and scales."""
        chosen, found = self.preparation, []
        if self.has_gaps:
            if chosen.missing == "mean":
                found.append(SimpleImputer())
            elif not isinstance(model, LinearAutoencoder):
                found.append(LowRankImputer())  # the same model fills in what others cannot use
        if chosen.standardize:
            found.append(StandardScaler())
        return found

    def row_number(self, row: int) -> int:
        """Return the number in the file, from 0, of a row of the table."""
        return row if self.kept is None else int(np.flatnonzero(self.kept)[row])

    def spread(self, values: Matrix) -> Matrix:
        """Return results for the rows of the table as rows of the file; those left out are NaN."""
        if self.kept is None:
            return values
        found = np.full((len(self.kept), *values.shape[1:]), np.nan)
        found[self.kept] = values
        return found


def _rows(marked: Matrix) -> str:
    return f"{int(marked.sum()):,} of {len(marked):,} rows"


def _different_integers(column: Matrix) -> bool:
    """Tell whether a column contains only integers, all different."""
    finite = bool(np.all(np.isfinite(column))) and bool(np.all(column == np.floor(column)))
    return finite and len(np.unique(column)) == len(column)


def preparation(
    header: Header = None,
    columns: Columns = None,
    keep: Keep = None,
    decimal: Decimal = None,
    missing_values: MissingCells = None,
    missing: Missing = "error",
    standardize: Standardize = False,
    *,
    targets: Sequence[str] | None = None,
) -> Preparation:
    """Return the values of the options of a command, checked.

    Texts of `columns`, `missing_values` and `keep` are split at commas; a part that contains a
    comma must be written between double quotes, as in CSV.
    """
    if missing not in HANDLINGS:
        raise ValueError(f"--missing {missing} was given, expected one of {', '.join(HANDLINGS)}.")
    if decimal not in (None, ".", ","):
        raise ValueError(f"--decimal {decimal} was given, expected . or ,")
    options = ReadOptions(
        header, _split(columns), decimal, tuple(targets or ()), _split(missing_values)
    )
    return Preparation(options, _split(keep), missing, standardize)


def on_table(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `preparation`, whose result is its argument `chosen`."""
    own = inspect.signature(command, eval_str=True).parameters
    shared = inspect.signature(preparation, eval_str=True).parameters
    added = {name: one for name, one in shared.items() if name != "targets"}
    listed = [*(one for name, one in own.items() if name != "chosen"), *added.values()]

    def with_options(**given: Any) -> None:
        options = {name: given.pop(name) for name in added}
        command(chosen=preparation(**options, targets=given.get("target")), **given)

    # typer reads name, text, signature and types of the function.
    with_options.__name__, with_options.__doc__ = command.__name__, command.__doc__
    with_options.__annotations__ = {one.name: one.annotation for one in listed}
    vars(with_options)["__signature__"] = inspect.Signature(listed)
    return with_options


def _split(given: Sequence[str] | None) -> tuple[str, ...]:
    """Return the parts of texts that are separated by commas, as in CSV."""
    return tuple(cell.strip() for row in csv.reader(given or ()) for cell in row if cell.strip())
