"""Reading of text tables (extra `cli`), with detection of delimiter, decimal separator and header.

The layout is decided as users of pandas and `csv.Sniffer` expect, from the first records (lines) of
a file, before pandas reads it. The caller can give the decimal separator and the header instead.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lucidae.io.atomic import reason_of

__all__ = [
    "AS_NUMBERS",
    "AS_TEXT",
    "MISSING",
    "TextLayout",
    "as_one_sentence",
    "check_width",
    "has_header",
    "has_short_rows",
    "header_sentence",
    "is_index",
    "is_number",
    "parse_number",
    "parse_text",
    "parsing",
    "read_frame",
    "readable_text",
    "refuse_ragged",
    "some",
    "text_layout",
    "to_numbers",
    "unique_names",
]

MISSING = ("", "na", "n/a", "nan", "null", "none", "?")
"""Cells of a text file that mean a missing value, in lower case."""

SAMPLE_CHARACTERS = 1 << 20
SAMPLE_RECORDS = 500
"""Number of records from which the layout is decided.

At most about `SAMPLE_CHARACTERS` characters are read for this."""
LONGEST_LINE = 1 << 26

MOST_COLUMNS = 100_000
"""Largest number of columns of a text file; pandas needs 2 kB of memory for each column."""

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|[+-]?inf(inity)?|[+-]?nan", re.IGNORECASE)
DECIMAL_COMMA = re.compile(r"[+-]?(\d*,\d+|\d{1,3}(\.\d{3})+,\d+)(e[+-]?\d+)?", re.IGNORECASE)
GROUPED = re.compile(r"[+-]?\d{1,3}(\.\d{3})+(,\d*)?")
"""Pattern of numbers with points between groups of three digits, as in 1.234.567,89."""
DECIMAL_POINT = re.compile(r"[+-]?\d*\.\d+(e[+-]?\d+)?", re.IGNORECASE)
DATE = re.compile(
    r"\d{4}[-/.]\d{1,2}([-/.]\d{1,2})?([ T].*)?|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}( .*)?"
    r"|\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?"
)
INDEX_NAMES = ("index", "level_0", "__index_level_0__")
"""Names that pandas gives to the index of a data frame if it is written as a column."""
TRUTH = ("true", "false", "yes", "no")
YEARS = range(1500, 2101)
WHOLE = re.compile(r"0|[1-9]\d{0,8}")

Records = Sequence[Sequence[str]]

# From version 3.1 on, pandas rounds numbers correctly by default.
OLD_PANDAS = tuple(map(int, pd.__version__.split(".")[:2])) < (3, 1)
EXACT: dict[str, Any] = {"float_precision": "round_trip"} if OLD_PANDAS else {}

SPELLINGS = {form(word) for word in MISSING for form in (str.lower, str.upper, str.title)}
AS_NUMBERS: dict[str, Any] = {"na_values": [*SPELLINGS, "NaN"]} | EXACT
"""Arguments with which pandas reads columns of numbers with a decimal point as numbers."""
AS_TEXT: dict[str, Any] = {"dtype": object, "na_filter": False}
"""Arguments with which pandas reads the cells as text."""

FAILED_READ = "Calling read(nbytes) on source failed"
"""What pandas says if the file's `read` was interrupted: it discards the `KeyboardInterrupt`, but
raises every other error of `read` unchanged."""


@dataclass(frozen=True, slots=True)
class TextLayout:
    """Layout of a text table: delimiter, decimal separator and header."""

    delimiter: str  # the character between two cells of a record
    decimal: str  # the character before the decimals of a number
    header: bool  # whether the first record contains the names of the columns
    first: tuple[str, ...]  # the cells of the first record, stripped of blanks
    skipped: int  # number of blank lines before the first record


def text_layout(file: Path, header: bool | None, decimal: str | None) -> TextLayout:
    r"""Return the layout of a text table, from its first records."""
    with file.open(encoding="utf-8-sig", newline="") as stream:
        sample = stream.read(SAMPLE_CHARACTERS) + stream.readline(LONGEST_LINE)
        if sample.count("\n") < 3:  # very long lines: the header and at least one record
            sample += "".join(stream.readline(LONGEST_LINE) for _ in range(2))
    delimiter = _delimiter(sample, decimal)
    skipped, records = _records(sample, delimiter)
    if not records:
        raise ValueError(f"{file.name!r} is empty; at least two rows of numbers are needed.")
    if len(records[0]) > MOST_COLUMNS:
        raise ValueError(
            f"{file.name!r} has {len(records[0])} columns, expected at most {MOST_COLUMNS} in a "
            "text file; save the numbers as NPY."
        )
    if decimal == "," and _is_split_by_commas(sample, records):
        raise ValueError(
            f"--decimal , was given, but commas separate the columns of {file.name!r}, and a comma "
            "cannot be both: leave out --decimal, or save the file with semicolons between columns."
        )
    if decimal is None:
        decimal = _decimal(records, delimiter)
    if header is None:
        header = has_header(records, decimal)
    return TextLayout(delimiter, decimal, header, tuple(records[0]), skipped)


def _records(sample: str, delimiter: str) -> tuple[int, list[list[str]]]:
    """Return the number of blank lines at the start of a text (`sample`), and its other records.

    A record is a list of cells, stripped of blanks; `delimiter` separates the cells in the text.
    """
    reader = csv.reader(io.StringIO(sample, newline=""), delimiter=delimiter, skipinitialspace=True)
    rows = [[cell.strip() for cell in row] for row in islice(reader, SAMPLE_RECORDS)]
    filled = [number for number, row in enumerate(rows) if len(row) > 1 or "".join(row)]
    return (filled[0] if filled else 0), [rows[number] for number in filled]


def _delimiter(sample: str, decimal: str | None) -> str:
    """Return the delimiter of the cells in a text (`sample`): comma, semicolon or tab.

    It is the one that gives all records the same number of cells and most cells that are numbers.
    The comma is excluded if it is the decimal separator (`decimal`) and the text has no quotes.
    """
    candidates = ",;\t"
    if decimal == "," and '"' not in sample:
        candidates = ";\t"  # a comma within quotes may be both
    scores = {delimiter: _score(sample, delimiter) for delimiter in candidates}
    best = max(candidates, key=lambda delimiter: scores[delimiter])
    if scores[best][0] > 0:
        return best
    first = next((line for line in sample.splitlines() if line.strip()), "")
    return max(candidates, key=first.count)  # for the error message on an uneven file


def _is_split_by_commas(sample: str, records: Records) -> bool:
    """Tell whether commas divide records into cells that were read as one cell each.

    They do if the records are not numbers with a decimal comma, and the comma as delimiter gives
    all records of `sample`, the text of the file, the same number of cells.
    """
    cells = [record[0] for record in records[1:] if len(record) == 1]
    if not cells or len(cells) < len(records) - 1 or all(is_number(cell, ",") for cell in cells):
        return False
    return _score(sample, ",")[0] > 1.0


def _score(sample: str, delimiter: str) -> tuple[float, int]:
    """Return two numbers that tell how well a delimiter fits a text; the largest pair fits best.

    They are one plus the share of cells that are numbers, and the number of cells of a record. Both
    are 0 if the records have different numbers of cells or only one cell.
    """
    try:
        _, records = _records(sample, delimiter)
    except csv.Error:
        return 0.0, 0
    lengths = {len(record) for record in records}
    if len(lengths) != 1 or lengths == {1}:
        return 0.0, 0
    cells = [cell for record in (records[1:] or records) for cell in record]
    numbers = sum(
        bool(NUMBER.fullmatch(cell) or (delimiter != "," and DECIMAL_COMMA.fullmatch(cell)))
        for cell in cells
    )
    return 1.0 + numbers / len(cells), lengths.pop()


def _decimal(records: Records, delimiter: str) -> str:
    """Return the decimal separator: the comma if numbers have commas and none has a point.

    Otherwise, or if the delimiter is a comma, return the point.
    """
    if delimiter == ",":
        return "."
    cells = [cell for record in records for cell in record]
    commas = any(DECIMAL_COMMA.fullmatch(cell) for cell in cells)
    points = any(DECIMAL_POINT.fullmatch(cell) and not GROUPED.fullmatch(cell) for cell in cells)
    return "," if commas and not points else "."


def parse_number(cell: str, decimal: str) -> float:
    """Return the number in a cell as a float; raise ValueError if the cell is not a number.

    If the decimal separator is the comma, points between groups of three digits are removed.
    """
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


def _kind(cell: str, decimal: str) -> str:
    """Return the kind of a cell: "missing", "number", "date", "truth" (true, no, …) or "text"."""
    lower = cell.lower()
    if lower in MISSING:
        return "missing"
    if is_number(cell, decimal):
        return "number"
    if DATE.fullmatch(cell):
        return "date"
    return "truth" if lower in TRUTH else "text"


def has_header(records: Records, decimal: str = ".") -> bool:
    """Return whether the first record contains names rather than data.

    It does in three cases: the cells of a column are all numbers, dates or truth values, except the
    first; or the first record contains no number at all; or its numbers look like labels, such as
    years or the count 0, 1, 2, … that pandas writes, and the numbers below them do not.
    """
    first, body = records[0], [record for record in records[1:] if len(record) == len(records[0])]
    kinds = [_kind(cell, decimal) for cell in first]
    if not body:
        return "number" not in kinds
    below = [
        _kinds_of([record[column] for record in body], decimal) for column in range(len(first))
    ]
    if any(_names_a_column(kind, under) for kind, under in zip(kinds, below, strict=True)):
        return True
    if "number" not in kinds:
        return set(kinds) != {"missing"}
    repeated = any(
        kind == "text" and any(record[column] == first[column] for record in body)
        for column, kind in enumerate(kinds)
    )
    return not repeated and _are_labels(first, body, decimal)


def _kinds_of(cells: Sequence[str], decimal: str) -> set[str]:
    """Return the kinds of the cells that are not missing, as `_kind` names them."""
    return {_kind(cell, decimal) for cell in cells} - {"missing"}


def _names_a_column(kind: str, below: set[str]) -> bool:
    """Return whether a first cell of kind `kind` must be the name of its column.

    `below` are the kinds of the other cells of the column. The first cell is a name if these are
    all of one kind other than text, and the first cell is of another kind that is not a number.
    """
    uniform = len(below) == 1 and below != {"text"}
    return uniform and kind not in below and kind in ("text", "date", "truth")


def _are_labels(first: Sequence[str], body: Records, decimal: str) -> bool:
    """Return whether the numbers in the first record are names of their columns, not data.

    `body` are the other records, and `decimal` is the decimal separator.
    """
    numbered = [column for column, cell in enumerate(first) if is_number(cell, decimal)]
    cells = [first[column] for column in numbered]
    if not all(map(WHOLE.fullmatch, cells)) or len(set(cells)) < len(cells):
        return False
    labels = list(map(int, cells))
    columns = [[record[column] for record in body] for column in numbered]
    if first[0] == "" and numbered == [*range(1, len(first))]:
        return _counts_rows([record[0] for record in body])  # the index of a pandas data frame
    steps = {after - before for before, after in pairwise(labels)}
    if len(steps) > 1 or any(step < 1 for step in steps):
        return False
    if all(label in YEARS for label in labels):
        return not all(_is_year(cell) for column in columns for cell in column if cell)
    return labels[0] in (0, 1) and steps == {1} and _differs_from_count(labels, columns)


def _differs_from_count(labels: list[int], columns: Records) -> bool:
    """Return whether a first record 0, 1, 2, … contains names of columns, not data.

    It does if each column contains a number that is not whole, or if there are at least four
    columns and the second record does not continue the count.
    """
    if all(any(not WHOLE.fullmatch(cell.lstrip("+-")) for cell in column) for column in columns):
        return True
    continued = columns[0][0] == str(labels[-1] + 1)  # as 0,1,2,3 above 4,5,6,7
    return len(labels) >= 4 and not continued


def _is_year(cell: str) -> bool:
    """Return whether a cell is a whole number from 1500 to 2100."""
    return bool(WHOLE.fullmatch(cell)) and int(cell) in YEARS


def _counts_rows(cells: Sequence[str]) -> bool:
    """Return whether the cells of a column can be an index of the rows.

    They can if they are all different, and are whole numbers or text.
    """
    return (
        len(set(cells)) == len(cells)
        and "" not in cells
        and (all(map(WHOLE.fullmatch, cells)) or not any(map(NUMBER.fullmatch, cells)))
    )


def read_frame(file: Path, header: bool | None, decimal: str | None) -> tuple[Any, TextLayout]:
    """Return the cells of a text table as a pandas data frame, and the layout of the file."""
    layout = text_layout(file, header, decimal)
    with as_one_sentence(file, layout):
        frame = _parse_frame(partial(pd.read_csv, file, **parsing(layout)), layout.decimal)
    check_width(file, frame, layout)
    return frame, layout


def parsing(layout: TextLayout) -> dict[str, Any]:
    """Return the arguments of `pandas.read_csv` for a file of this layout, without its header."""
    return {
        "sep": layout.delimiter,
        "header": None,
        "skiprows": layout.skipped + layout.header,
        "encoding": "utf-8-sig",
        "skipinitialspace": True,
        "keep_default_na": False,
        "low_memory": False,
    }


@contextmanager
def as_one_sentence(file: Path, layout: TextLayout) -> Iterator[None]:
    """Turn the errors of pandas into a `ValueError` of one sentence that names the file.

    Ctrl-C while pandas calls the method `read` of the file is an error of pandas too; it becomes a
    `KeyboardInterrupt` again.
    """
    try:
        yield
    except pd.errors.EmptyDataError:
        raise ValueError(
            f"{file.name!r} contains a header but no rows of data; at least one row is needed."
        ) from None
    except pd.errors.ParserError as error:
        if FAILED_READ in str(error):
            raise KeyboardInterrupt from None
        refuse_ragged(file, layout)
        raise ValueError(f"{file.name!r} cannot be read as CSV: {reason_of(error)}.") from None


def has_short_rows(frame: Any) -> bool:
    """Tell whether rows may have too few cells; pandas has filled such rows with missing values."""
    last = frame.iloc[:, -1]
    return bool((last.isna() | (last == "")).any())


def check_width(file: Path, frame: Any, layout: TextLayout) -> None:
    """Raise an error if the records (lines) of a text table have different numbers of cells.

    `frame` are the records as a data frame, and `layout` is the layout of the file.
    """
    if has_short_rows(frame):
        refuse_ragged(file, layout)
    if frame.shape[1] != len(layout.first):
        hint = "; if the comma is the decimal separator, give --decimal ,"
        raise ValueError(
            f"{file.name!r} has {len(layout.first)} names in its header but {frame.shape[1]} "
            f"columns: give one name for each column{hint if layout.delimiter == ',' else ''}."
        )


def _parse_frame(read: Callable[..., Any], decimal: str) -> Any:
    """Return the records of a text file as a data frame, with columns of numbers as float64.

    `read` is `pandas.read_csv` with the file and its layout already given.
    """
    if decimal == ".":
        frame = read(**AS_NUMBERS)
        # The cells themselves are needed where a column is not of numbers alone ("true" is text,
        # not 1), and to tell a row of blank cells, which is dropped, from one of missing values.
        numeric = all(dtype.kind in "iuf" for dtype in frame.dtypes)
        if numeric and not frame.isna().all(axis=1).any():
            return frame.astype(np.float64)
    return parse_text(read(**AS_TEXT), decimal).reset_index(drop=True)


def parse_text(cells: Any, decimal: str) -> Any:
    """Return a data frame of text (`cells`) without blank rows, with columns of numbers as float64.

    `decimal` is the decimal separator, "." or ",".
    """
    cells = cells.map(str.strip)
    filled = cells[(cells != "").any(axis=1)]
    return filled.apply(partial(to_numbers, decimal=decimal))


def to_numbers(column: Any, decimal: str) -> Any:
    """Return a column of text as numbers if all cells are numbers or missing; else unchanged."""
    cells = column.where(~column.map(str.lower).isin(MISSING), "nan")
    try:
        if decimal == ",":
            return cells.map(partial(parse_number, decimal=decimal))
        # Python reads 1_000 as a number; pandas and people do not.
        return column if cells.str.contains("_", regex=False).any() else cells.astype(np.float64)
    except ValueError:
        return column


def refuse_ragged(file: Path, layout: TextLayout) -> None:
    """Raise an error that names the first line whose number of cells differs from the first line's.

    No error is raised if only the header has another number of cells.
    """
    with file.open(encoding="utf-8-sig", newline="") as stream:
        records = csv.reader(stream, delimiter=layout.delimiter)
        lengths = (len(row) for row in records if any(map(str.strip, row)))
        expected, below, wrong = next(lengths, 0), set[int](), None
        for number, length in enumerate(lengths, start=2):
            below.add(length)
            if wrong is None and length != expected:
                wrong = number, length
    if wrong is None or (layout.header and len(below) == 1):
        return  # a header of another length has an error of its own
    number, length = wrong
    raise ValueError(
        f"{file.name!r}, line {number} has {length} cell{'s' if length != 1 else ''}, but the "
        f"first line has {expected}; give all lines the same number of cells."
    )


def some(names: Sequence[str], most: int = 12) -> str:
    """Return the first `most` names as text, followed by the number of further names, if any."""
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


@contextmanager
def readable_text(file: Path) -> Iterator[None]:
    """Turn errors about the content of a text file into one sentence that names the file."""
    try:
        yield
    except UnicodeDecodeError:
        raise ValueError(f"{file.name!r} is not text in UTF-8; save it as CSV in UTF-8.") from None
    except (ValueError, MemoryError):
        raise
    except Exception as error:  # csv.Error, and what pandas raises for binary data
        raise ValueError(f"{file.name!r} cannot be read as CSV: {reason_of(error)}.") from error


def header_sentence(names: Sequence[str]) -> str:
    """Return a sentence that says whether a text file has a header, and with which column names."""
    if names:
        return f"the first line is the header ({some(names, 6)})"
    return "the file has no header, and its columns are numbered from 0"


def is_index(name: str, column: Any) -> bool:
    """Return whether the first column of a file is an index of the rows that pandas or R wrote.

    It is if it contains distinct integers and either has no name, or has a name that pandas gives
    to an index and counts the rows from 0 or 1.
    """
    if not pd.api.types.is_numeric_dtype(column.dtype) or not len(column):
        return False
    values = column.to_numpy(np.float64)
    if not np.all(values == np.floor(values)) or len(np.unique(values)) < len(values):
        return False
    counting = bool(values[0] in (0, 1) and np.all(np.diff(values) == 1))
    return not name or name.startswith("Unnamed: ") or (name in INDEX_NAMES and counting)


def unique_names(given: Sequence[str]) -> tuple[str, ...]:
    """Return one unique name per column.

    A column without a name is called "column" and its 0-based index. Equal names are numbered as
    pandas does: a, a.1, a.2.
    """
    used: dict[str, int] = {}
    for index, name in enumerate(given):
        plain = name or f"column {index}"
        unique, repeats = plain, used.get(plain, 0)
        while unique in used:
            repeats += 1
            unique = f"{plain}.{repeats}"
        used[unique] = 0
        used[plain] = repeats
    return tuple(used)
