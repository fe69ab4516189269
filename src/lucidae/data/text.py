"""Text files of numbers, read in blocks of rows by pandas, which only this module needs.

Delimiter, decimal separator and header are decided from the first records (lines) of a file, before
pandas reads it, as users of pandas and `csv.Sniffer` expect. The caller can give the decimal
separator and the header instead.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice, pairwise, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lucidae.data.blocks import PARTS, RowBlocks, float_reference
from lucidae.data.tables import ChosenColumns, ReadOptions, choose_columns, some, unique_names
from lucidae.io.atomic import reason_of

__all__ = ["AS_TEXT", "TextBlocks", "has_header", "parse_text", "parsing"]

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


CELL_BYTES = 16
"""Number of bytes of memory per number while a text file is parsed, its text included."""

FIRST_ROWS = 1000
"""Number of rows from which the columns of numbers are recognised."""

NUMBERS = "iuf"
"""Letters by which NumPy denotes the kinds of dtypes of numbers (``dtype.kind``)."""


@dataclass(frozen=True, slots=True)
class TextLayout:
    """Layout of a text table: delimiter, decimal separator and header."""

    delimiter: str  # the character between two cells of a record
    decimal: str  # the character before the decimals of a number
    header: bool  # whether the first record contains the names of the columns
    first: tuple[str, ...]  # the cells of the first record, stripped of blanks
    skipped: int  # number of blank lines before the first record


class TextBlocks(RowBlocks):
    """The columns of numbers of a text file, read by pandas in chunks.

    The first rows decide which columns contain numbers; text in a later row of these columns is an
    error.
    """

    chosen: ChosenColumns
    layout: TextLayout

    def __init__(self, file: Path, *, flat: bool, first_row: int, options: ReadOptions) -> None:
        self.file = file
        with self._one_sentence():
            self.layout = layout = text_layout(file, options.header, options.decimal)
            first = next(self._frames(FIRST_ROWS), None)
        if first is None:
            raise ValueError(f"{file.name!r} contains no rows: at least one row is needed.")
        self._check_width(first, layout)
        given = layout.first if layout.header else ("",) * len(layout.first)
        self.all_names = names = unique_names(given)
        reasons = [_why_not(first[at], layout.decimal) for at in range(len(names))]
        index = 0 if layout.header and _is_index(given[0], first[0]) else None
        self.chosen = choose_columns(file.name, names, reasons, options, index)
        self.header = "the file has no header, and its columns are numbered from 0"
        if layout.header:
            self.header = f"the first line is the header ({some(names, 6)})"
        super().__init__(
            repr(file.name),
            len(self.chosen.names),
            float_reference(np.float64),
            feature_names=self.chosen.names,
            flat=flat and len(self.chosen.names) == 1,
            first_row=first_row,
        )

    def read(self) -> Iterator[Any]:
        """Yield chunks of rows; missing values are NaN."""
        size = self.file.stat().st_size
        try:
            yield from self._numbers()
        except ValueError:
            self._refuse_shrunk(size)
            raise
        self._refuse_shrunk(size)

    def _refuse_shrunk(self, size: int) -> None:
        """Raise an error if the file is now shorter than `size`, its number of bytes before."""
        now = self.file.stat().st_size
        if now < size:
            raise ValueError(
                f"{self.name} had {size} bytes, but has {now} after it was read: it has changed "
                "while it was read. Read it again when nobody writes to it."
            ) from None

    def _numbers(self) -> Iterator[Any]:
        """Yield the columns of numbers of the file as arrays, from row `first_row` on."""
        rows = max(1, self.rows_per_block * 8 // CELL_BYTES)
        skip, row, even = self.first_row, 0, False
        with self._one_sentence():
            for frame in self._frames(rows, self.chosen.positions, PARTS):
                if not even and _has_short_rows(frame):
                    refuse_ragged(self.file, self.layout)
                    even = True
                numbers = self.numbers(frame, row)
                if skip < len(numbers):
                    yield numbers[skip:]
                row, skip = row + len(numbers), max(0, skip - len(numbers))

    def numbers(self, frame: Any, row: int = 0) -> np.ndarray[Any, Any]:
        """Return the columns of numbers of `frame`, a parsed part of the file, as an array."""
        positions = self.chosen.positions
        for at in positions:
            if frame[at].dtype.kind not in NUMBERS:
                raise ValueError(
                    f"column {self.all_names[at]!r} of {self.name} contains text after row {row}, "
                    "but only numbers in its first rows: correct the file or leave out the column."
                )
        return frame[positions].to_numpy(dtype=np.float64)  # type: ignore[no-any-return]

    def _frames(
        self, rows: int, positions: Iterable[int] | None = None, parts: int = 1
    ) -> Iterator[Any]:
        """Yield parts of the file of `rows` rows each, with the columns at `positions` as numbers.

        By default these are all columns. The first `rows` rows are read in `parts` parts, so that
        the progress of a small file can be shown. A column with other text stays text.

        pandas reads numbers with a decimal point. Where it finds a row of missing values, the file
        is read as text from this part on: only in the text does a blank row, which is left out,
        differ from a row of cells such as NA.
        """
        done = 0
        if self.layout.decimal == ".":
            for chunk in self._chunks(rows, parts, AS_NUMBERS):
                if chunk.isna().all(axis=1).any():
                    break
                yield _as_numbers(chunk, chunk.columns if positions is None else positions)
                done += len(chunk)
            else:
                return
        for cells in self._chunks(rows, parts, AS_TEXT):
            rest = cells.iloc[done:]
            done = max(0, done - len(cells))
            if len(rest):
                yield parse_text(rest, self.layout.decimal)

    def _chunks(self, rows: int, parts: int, how: dict[str, Any]) -> Iterator[Any]:
        """Yield what pandas reads with the arguments `how`: the first `rows` rows in `parts`."""
        sizes = chain(repeat(-(-rows // parts), parts), repeat(rows))
        with (
            pd.read_csv(self.file, chunksize=rows, **parsing(self.layout), **how) as reader,
            suppress(StopIteration),  # the end of the file
        ):
            for size in sizes:
                yield reader.get_chunk(size)

    @contextmanager
    def _one_sentence(self) -> Iterator[None]:
        """Turn errors about the content of the file into one sentence that names the file.

        Ctrl-C while pandas calls the method `read` of the file is an error of pandas too; it
        becomes a `KeyboardInterrupt` again.
        """
        name = repr(self.file.name)
        try:
            yield
        except UnicodeDecodeError:
            raise ValueError(f"{name} is not text in UTF-8; save it as CSV in UTF-8.") from None
        except pd.errors.EmptyDataError:
            raise ValueError(
                f"{name} contains a header but no rows of data; at least one row is needed."
            ) from None
        except pd.errors.ParserError as error:
            if FAILED_READ in str(error):
                raise KeyboardInterrupt from None
            refuse_ragged(self.file, self.layout)
            raise ValueError(f"{name} cannot be read as CSV: {reason_of(error)}.") from None
        except (ValueError, MemoryError):
            raise
        except Exception as error:  # csv.Error, and what pandas raises for binary data
            raise ValueError(f"{name} cannot be read as CSV: {reason_of(error)}.") from error

    def _check_width(self, frame: Any, layout: TextLayout) -> None:
        """Raise an error if the first lines (`frame`) have different numbers of cells."""
        if _has_short_rows(frame):
            refuse_ragged(self.file, layout)
        if frame.shape[1] != len(layout.first):
            hint = "; if the comma is the decimal separator, give --decimal ,"
            raise ValueError(
                f"{self.file.name!r} has {len(layout.first)} names in its header but "
                f"{frame.shape[1]} columns: give one name for each column"
                f"{hint if layout.delimiter == ',' else ''}."
            )


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


def _as_numbers(chunk: Any, positions: Iterable[int]) -> Any:
    """Return a chunk in which columns that pandas did not recognise as numbers are parsed again.

    pandas reads "true" as a truth value, and numbers with blanks around them as text.
    """
    chunk = chunk.copy(deep=False)
    for at in positions:
        if chunk[at].dtype.kind not in NUMBERS:
            cells = chunk[at].map(lambda cell: "" if pd.isna(cell) else str(cell).strip())
            chunk[at] = to_numbers(cells, ".")
    return chunk


def _has_short_rows(frame: Any) -> bool:
    """Tell whether rows may have too few cells; pandas has filled such rows with missing values."""
    last = frame.iloc[:, -1]
    return bool((last.isna() | (last == "")).any())


def refuse_ragged(file: Path, layout: TextLayout) -> None:
    """Raise an error that names the first line whose number of cells differs from the first line's.

    No error is raised if only the header has another number of cells.
    """
    expected, below, wrong = 0, set[int](), None
    with file.open(encoding="utf-8-sig", newline="") as stream, suppress(csv.Error):
        records = csv.reader(stream, delimiter=layout.delimiter)
        lengths = (len(row) for row in records if any(map(str.strip, row)))
        expected = next(lengths, 0)
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


def parse_text(cells: Any, decimal: str) -> Any:
    """Return the cells without blank rows, with columns of numbers as float64."""
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


def _why_not(column: Any, decimal: str) -> str:
    """Return the reason why a column is not numeric, or an empty text if it is."""
    if column.dtype.kind in NUMBERS:
        return "" if column.notna().any() else "it has no entries"
    row, cell = next(
        (row, cell)
        for row, cell in enumerate(column)
        if cell.lower() not in MISSING and not is_number(cell, decimal)
    )
    other = "," if decimal == "." else "."
    hint = f"; --decimal {other} reads it" if is_number(cell, other) else ""
    short = repr(cell if len(cell) <= 30 else f"{cell[:29]}…")
    return f"{short} in row {row} is not a number{hint}"


def _is_index(name: str, column: Any) -> bool:
    """Return whether the first column of a file is an index of the rows that pandas or R wrote.

    It is if it contains distinct integers and either has no name, or has a name that pandas gives
    to an index and counts the rows from 0 or 1.
    """
    if column.dtype.kind not in NUMBERS or not len(column):
        return False
    values = column.to_numpy(np.float64)
    if not np.all(values == np.floor(values)) or len(np.unique(values)) < len(values):
        return False
    counting = bool(values[0] in (0, 1) and np.all(np.diff(values) == 1))
    return not name or name.startswith("Unnamed: ") or (name in INDEX_NAMES and counting)


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

    They are one plus the share of cells that are numbers, and the number of cells of a record.
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

    The first cell is a name if these are all of one kind other than text, and the first cell is of
    another kind that is not a number.
    """
    uniform = len(below) == 1 and below != {"text"}
    return uniform and kind not in below and kind in ("text", "date", "truth")


def _are_labels(first: Sequence[str], body: Records, decimal: str) -> bool:
    """Return whether the numbers in the first record are names of their columns, not data."""
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
