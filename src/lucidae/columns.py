"""Columns of tables: which contain numbers, and the numbers in cells of text.

Files and data frames follow the same rule. A column is what most of its first filled cells are:
numbers, truth values (true and false, read as 1 and 0), or text. Cells of another kind in a column
of numbers or truth values are an error that names them. Columns of text, of dates, of categories
and without entries are left out, which the caller says in a warning.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from decimal import Decimal
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

MISSING = frozenset(
    (
        *("", "na", "n/a", "nan", "-nan", "null", "none", "?", "<na>", "#na", "#n/a", "#n/a n/a"),
        *("1.#ind", "-1.#ind", "1.#qnan", "-1.#qnan"),
    )
)
"""Cells of text that mean a missing value, in lower case: those of `pandas.read_csv`, and "?"."""

FIRST_ROWS = 1000
"""Number of rows from which the kind of a column is judged, so that a file is not read twice."""

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|[+-]?inf(inity)?", re.IGNORECASE)
GROUPED = re.compile(r"[+-]?\d{1,3}(\.\d{3})+(,\d*)?")
"""Pattern of numbers with points between groups of three digits, as in 1.234.567,89."""

TRUTH = {"true": True, "false": False}
NO_VALUES = ("NAType", "NaTType")
"""Names of the types of missing values of pandas, which is not imported for this."""

SHOWN = 5
"""Largest number of bad cells that an error names."""


class MissingValues:
    """Cells that the user declares missing, given as text or as numbers."""

    def __init__(self, given: Iterable[Any] = ()) -> None:
        self.texts = frozenset(cell.strip() for cell in given if isinstance(cell, str))
        numbers = (str(cell).strip() for cell in given)
        self.numbers = frozenset(float(text) for text in numbers if NUMBER.fullmatch(text))

    def removed_from(self, rows: Any) -> Any:
        """Return the array `rows`, in which numbers that mean a missing value are now NaN."""
        if self.numbers:
            rows = rows.toarray() if hasattr(rows, "toarray") else rows
            rows[np.isin(rows, [*self.numbers])] = np.nan
        return rows


NONE_MISSING = MissingValues()


def read_cell(
    cell: Any, decimal: str = ".", missing: MissingValues = NONE_MISSING
) -> float | bool | str | None:
    """Return a cell as a number or a truth value; None if it is missing, a text if it is neither.

    If the decimal separator is the comma, points between groups of three digits are removed.
    """
    if isinstance(cell, str):
        text = cell.strip()
        if text in missing.texts or text.lower() in MISSING:
            return None
        try:
            number = parse_number(text, decimal)
        except ValueError:
            return TRUTH.get(text.lower(), text)
    elif isinstance(cell, bool | np.bool_):
        return bool(cell)
    elif cell is None or type(cell).__name__ in NO_VALUES:
        return None
    elif isinstance(cell, np.timedelta64) or not isinstance(cell, Real | Decimal):
        return str(cell)
    else:
        try:
            number = float(cell)
        except OverflowError:
            return str(cell)
    return None if number != number or number in missing.numbers else number


def parse_number(cell: str, decimal: str) -> float:
    """Return the number in a cell as a float; raise ValueError if the cell is not a number."""
    if decimal == ",":
        if "." in cell and not GROUPED.fullmatch(cell):
            raise ValueError(f"{cell!r} is not a number with a decimal comma.")
        cell = cell.replace(".", "").replace(",", ".")
    if not NUMBER.fullmatch(cell):
        raise ValueError(f"{cell!r} is not a number.")
    return float(cell)


def is_number(cell: str, decimal: str) -> bool:
    """Return whether a cell is a number with the given decimal separator."""
    try:
        parse_number(cell, decimal)
    except ValueError:
        return False
    return True


class Column(NamedTuple):
    """What a column of a table contains, judged by its first cells."""

    is_truth: bool = False  # whether it contains true and false instead of numbers
    reason: str = ""  # why it is left out; empty for numbers and truth values
    bad: tuple[tuple[int, str], ...] = ()  # rows and texts of cells of another kind


NUMERIC = Column()
EMPTY = Column(reason="it has no entries")


def judge(
    cells: Iterable[Any], decimal: str = ".", missing: MissingValues = NONE_MISSING
) -> Column:
    """Return what a column contains of which these are the first cells."""
    values = [(str(cell).strip(), read_cell(cell, decimal, missing)) for cell in cells]
    filled = [(row, text, value) for row, (text, value) in enumerate(values) if value is not None]
    if not filled:
        return EMPTY
    for kind in (float, bool):
        bad = tuple((row, text) for row, text, value in filled if not isinstance(value, kind))
        if 2 * len(bad) < len(filled):
            return Column(kind is bool, bad=bad)
    row, text = next((row, text) for row, text, value in filled if not isinstance(value, float))
    return Column(reason=f"{_short(text)} in row {row} is not a number{_sign_advice([text])}")


def _sign_advice(cells: Sequence[str]) -> str:
    """Return what to do with cells that are numbers with another decimal sign, or grouped."""
    for sign in ".,":
        if all(is_number(cell, sign) for cell in cells):
            return (
                f"; if {sign!r} is the decimal sign, give decimal={sign!r} (--decimal {sign}); "
                "if it separates thousands, remove it"
            )
    grouped = all(is_number(cell.replace(",", ""), ".") for cell in cells)
    return "; if ',' separates thousands, remove it" if grouped else ""


def column_numbers(
    cells: Iterable[Any],
    is_truth: bool,
    decimal: str = ".",
    missing: MissingValues = NONE_MISSING,
) -> tuple[np.ndarray[Any, Any], list[tuple[int, str]]]:
    """Return the numbers in the cells of a column, with NaN for missing and for bad cells.

    The second result are the rows and texts of the bad cells.
    """
    kind = bool if is_truth else float
    cells = [*cells]
    values = [read_cell(cell, decimal, missing) for cell in cells]
    bad = [
        (row, str(cells[row]).strip())  # the text of the cell, to be declared missing
        for row, value in enumerate(values)
        if value is not None and not isinstance(value, kind)
    ]
    numbers = [value if isinstance(value, kind) else np.nan for value in values]
    return np.array(numbers, dtype=np.float64), bad


def refuse_bad_cells(
    table: str,
    name: str,
    bad: Sequence[tuple[int, str]],
    column: Column,
    first_row: int | None = 0,
    advice: str = (
        "read them as missing by lucidae.datasets.read_table(path, missing_values={}), or "
        "--missing-values on the command line"
    ),
) -> None:
    """Raise the error for cells of another kind in a column of numbers or truth values.

    Their rows are counted from `first_row`, or in a part of the file if it is None.
    """
    cells = [*dict.fromkeys(cell for _, cell in bad)]
    listed = f"[{', '.join(map(_short, cells[:SHOWN]))}{', …' if len(cells) > SHOWN else ''}]"
    places = some([f"{_short(cell)} in row {row + (first_row or 0)}" for row, cell in bad], SHOWN)
    counted = "in a part of the file, from 0" if first_row is None else "from 0"
    if bad is column.bad and len(bad) > SHOWN:  # further rows were not looked at
        counted += f", in the first {FIRST_ROWS} rows"
    usual = "true and false" if column.is_truth else "numbers"
    sign = "" if column.is_truth else _sign_advice(cells)
    raise ValueError(
        f"column {name!r} of {table} contains {usual}, but {places} (counted {counted}){sign}. "
        f"Correct such cells, {advice.format(listed)}, or leave the column out."
    )


def numeric_frame(X: Any, name: str, fitted: Sequence[str] | None = None) -> tuple[Any, list[str]]:
    """Return a data frame of pandas, polars or Arrow with its columns of numbers, and warnings.

    Truth values, decimals and numbers in text become floating numbers. The warnings name columns
    that are left out, and columns of text that are read as numbers. If `fitted` are the names of
    the features of a fit, these columns must be numbers, and others are left out without a warning.
    What is not a data frame is returned as it is.
    """
    frame = Frame.of(X)
    if frame is None:
        return X, []
    X = frame.X
    numbers: dict[int, np.ndarray[Any, Any]] = {}  # columns that are converted, by position
    left_out: dict[int, str] = {}
    texts: list[str] = []
    for at, (heading, kind) in enumerate(zip(frame.names, frame.kinds, strict=True)):
        is_fitted = fitted is not None and heading in fitted
        reason = ""
        if kind == "cells":
            cells = frame.cells(at)
            starts = range(0, len(cells), FIRST_ROWS)  # judged by the first that have entries
            judged = (judge(cells[start : start + FIRST_ROWS]) for start in starts)
            column = next((column for column in judged if column is not EMPTY), EMPTY)
            reason = "" if column is EMPTY and is_fitted else column.reason
            if not reason:
                numbers[at], bad = column_numbers(cells, column.is_truth)
                if bad:
                    advice = f"give {name}.replace({{}}, float('nan')) to make them missing"
                    refuse_bad_cells(name, heading, bad, column, advice=advice)
                texts += [repr(heading)] * any(isinstance(cell, str) for cell in cells)
        elif kind != "number":
            reason = f"its entries are {kind}"
        elif not is_fitted and frame.is_empty(at):
            reason = EMPTY.reason
        if reason and is_fitted:
            raise ValueError(f"column {heading!r} of {name} is not numeric: {reason}.")
        if reason:
            left_out[at] = f"{heading!r} ({reason})"
    reasons = some([*left_out.values()])
    if len(left_out) == len(frame.names):
        raise ValueError(
            f"{name} has no numeric column: {reasons or 'it has no columns'}; at least one column "
            "must contain numbers."
        )
    warnings = []
    if left_out and fitted is None:
        warnings.append(f"Columns of {name} were left out: {reasons}.")
    if texts:
        warnings.append(f"Columns of text of {name} were read as numbers: {some(texts)}.")
    if left_out or numbers:
        X = frame.changed([at for at in range(len(frame.names)) if at not in left_out], numbers)
    return X, warnings


def frame_names(X: Any) -> list[Any]:
    """Return the names of the columns of a data frame of pandas, polars or Arrow; else no names."""
    is_arrow = hasattr(X, "column_names") and not hasattr(X, "iloc")
    return list(X.column_names if is_arrow else getattr(X, "columns", ()))


class Frame:
    """Data frame of pandas, polars or Arrow, of which columns are read and replaced.

    `kinds` says for each column whether it contains a "number" in each row, "cells" of another kind
    in which numbers may be written, or neither: "categories", or entries of another type.
    """

    def __init__(self, X: Any, library: str) -> None:
        is_arrow = library == "arrow"
        # scikit-learn does not find the names of a record batch of Arrow.
        self.X, self.library = (sys.modules["pyarrow"].table(X) if is_arrow else X), library
        self.names = [str(name) for name in frame_names(X)]
        self.kinds = [_kind_of(dtype) for dtype in (X.schema.types if is_arrow else X.dtypes)]
        if library == "pandas":
            self._gaps = np.asarray(X.iloc[:1].isna())[0]

    @classmethod
    def of(cls, X: Any) -> Frame | None:
        """Return `X` if it is a data frame with rows, otherwise None."""
        libraries = {"iloc": "pandas", "to_series": "polars", "column_names": "arrow"}
        library = next((libraries[name] for name in libraries if hasattr(X, name)), None)
        if library is None or not hasattr(X, "columns") or len(getattr(X, "shape", ())) != 2:
            return None
        return cls(X, library) if X.shape[0] else None

    def column(self, at: int) -> Any:
        """Return a column as a series of pandas or polars, or as an array of Arrow."""
        if self.library == "pandas":
            return self.X.iloc[:, at]
        return self.X.to_series(at) if self.library == "polars" else self.X.column(at)

    def cells(self, at: int) -> list[Any]:
        """Return the entries of a column as Python objects."""
        lists = {"pandas": "tolist", "polars": "to_list", "arrow": "to_pylist"}
        found: list[Any] = getattr(self.column(at), lists[self.library])()
        return found

    def is_empty(self, at: int) -> bool:
        """Tell whether all entries of a column of numbers are missing; most have a first entry."""
        if self.library == "pandas":
            return bool(self._gaps[at] and self.column(at).isna().all())
        cells: Iterable[Any] = self.column(at)
        values = (cell.as_py() if self.library == "arrow" else cell for cell in cells)
        return all(value is None or value != value for value in values)

    def changed(self, kept: list[int], numbers: dict[int, np.ndarray[Any, Any]]) -> Any:
        """Return the frame with the columns `kept`, some of them replaced by `numbers`."""
        new = {place: numbers[at] for place, at in enumerate(kept) if at in numbers}
        if self.library == "pandas":
            frame = self.X.iloc[:, kept].copy(deep=False)
            for place, values in new.items():
                frame.isetitem(place, values)
            return frame
        names = [self.names[at] for at in kept]
        frame = self.X.select(names if self.library == "polars" else kept)
        module = sys.modules["polars" if self.library == "polars" else "pyarrow"]
        for place, values in new.items():
            if self.library == "polars":
                frame = frame.with_columns(module.Series(names[place], values))
            else:
                frame = frame.set_column(place, names[place], module.array(values))
        return frame


def _kind_of(dtype: Any) -> str:
    """Return the kind of a column (see `Frame`) from its dtype in any library."""
    letter, named = getattr(dtype, "kind", ""), str(dtype).lower()
    if letter in tuple("iufc") or (letter == "b" and isinstance(dtype, np.dtype)):
        return "number"
    if not letter and re.fullmatch(r"u?int\d+|float\d*|half_?float|double", named):
        return "number"
    if named.startswith(("cat", "enum", "dictionary")):
        return "categories"
    cells = ("bool", "string", "str", "utf8", "large_string", "object", "decimal", "null", "<u",
             "sparse[bool")  # fmt: skip
    return "cells" if named.startswith(cells) and "struct" not in named else f"of type {dtype}"


def some(names: Sequence[str], most: int = 12) -> str:
    """Return the first `most` names as text, followed by the number of further names, if any."""
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


def _short(cell: str) -> str:
    """Return the representation of a cell, cut after 30 characters."""
    return repr(cell if len(cell) <= 30 else f"{cell[:29]}…")
