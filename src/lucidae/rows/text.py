"""Text files of numbers, read in blocks of rows by pandas, which only this module needs.

Delimiter, decimal separator and header are decided from the first records (lines) of a file, before
pandas reads it, as users of pandas and `csv.Sniffer` expect. The caller can give the decimal
separator and the header instead.
"""

from __future__ import annotations

import csv
import io
import mmap
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lucidae.columns import (
    EMPTY,
    FIRST_ROWS,
    GROUPED,
    MISSING,
    NUMBER,
    NUMERIC,
    TRUTH,
    Column,
    MissingValues,
    column_numbers,
    is_number,
    judge,
    refuse_bad_cells,
    some,
)
from lucidae.io import reason_of
from lucidae.rows.blocks import RowBlocks, float_reference
from lucidae.rows.tables import ChosenColumns, ReadOptions, choose_columns, unique_names
from lucidae.validation import warn_user

__all__ = ["AS_TEXT", "TextBlocks", "parsing"]

SAMPLE_CHARACTERS = 1 << 20
SAMPLE_RECORDS = 500
"""Number of records from which the layout is decided.

At most about `SAMPLE_CHARACTERS` characters are read for this."""
LONGEST_LINE = 1 << 26

MOST_COLUMNS = 100_000
"""Largest number of columns of a text file; pandas needs 2 kB of memory for each column."""

DECIMAL_COMMA = re.compile(r"[+-]?(\d*,\d+|\d{1,3}(\.\d{3})+,\d+)(e[+-]?\d+)?", re.IGNORECASE)
DECIMAL_POINT = re.compile(r"[+-]?\d*\.\d+(e[+-]?\d+)?", re.IGNORECASE)
AMBIGUOUS = re.compile(r"[+-]?[1-9]\d{0,2}[.,]\d{3}")
"""Pattern of numbers whose point or comma may separate decimals or thousands, as in 1,234."""
DATE = re.compile(
    r"\d{4}[-/.]\d{1,2}([-/.]\d{1,2})?([ T].*)?|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}( .*)?"
    r"|\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?"
)
INDEX_NAMES = ("index", "level_0", "__index_level_0__")
"""Names that pandas gives to the index of a data frame if it is written as a column."""
ANSWERS = ("yes", "no")
YEARS = range(1500, 2101)
WHOLE = re.compile(r"0|[1-9]\d{0,8}")

Records = Sequence[Sequence[str]]

# From version 3.1 on, pandas rounds numbers correctly by default.
OLD_PANDAS = tuple(map(int, pd.__version__.split(".")[:2])) < (3, 1)
EXACT: dict[str, Any] = {"float_precision": "round_trip"} if OLD_PANDAS else {}

SPELLINGS = {form(word) for word in MISSING for form in (str.lower, str.upper, str.title)}
SPELLINGS |= {"NaN", "-NaN"}
AS_TEXT: dict[str, Any] = {"dtype": object, "na_filter": False}
"""Arguments with which pandas reads the cells as text."""

FAILED_READ = "Calling read(nbytes) on source failed"
"""What pandas says if the file's `read` was interrupted: it discards the `KeyboardInterrupt`, but
raises every other error of `read` unchanged."""


CELL_BYTES = 16
"""Number of bytes of memory per number while a text file is parsed, its text included."""

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
    doubt: str = ""  # sentence on the decimal separator, if numbers can be read with another one
    # whether a number such as 1.234 in a later record leaves it in doubt which separator is meant
    is_doubtful: bool = False


class TextBlocks(RowBlocks):
    """The columns of numbers of a text file, read by pandas in chunks.

    The first rows decide which columns contain numbers; a cell of another kind in a later row of
    these columns is an error.
    """

    chosen: ChosenColumns
    layout: TextLayout

    def __init__(self, file: Path, *, flat: bool, first_row: int, options: ReadOptions) -> None:
        self.file = file
        self.missing = MissingValues(options.missing_values)
        _refuse_nul(file)
        with self._one_sentence():
            self.layout = layout = text_layout(file, options.header, options.decimal)
            first = next(self._frames(FIRST_ROWS), None)
        if first is None:
            raise ValueError(f"{file.name!r} contains no rows: at least one row is needed.")
        self._check_width(first, layout)
        given = layout.first if layout.header else ("",) * len(layout.first)
        self.all_names = names = unique_names(given)
        self.judged = [self._judge(first[at]) for at in range(len(names))]
        self._judge_later(len(first))
        index = [0] if layout.header and self._is_index(given[0], first[0]) else []
        self.chosen = choose_columns(file.name, names, self.judged, options, index)
        clauses = ["the file has no header, and its columns are numbered from 0", layout.doubt]
        if layout.header:
            clauses[0] = f"the first line is the header ({some(names, 6)})"
        self.header, self.doubt = "; ".join(filter(None, clauses)), layout.doubt
        self._is_doubtful = layout.is_doubtful
        super().__init__(
            repr(file.name),
            len(self.chosen.names),
            float_reference(np.float64),
            feature_names=self.chosen.names,
            flat=flat and len(self.chosen.names) == 1,
            first_row=first_row,
        )

    def _judge(self, column: Any) -> Column:
        """Return what a column of the file contains, from its first cells."""
        if column.dtype.kind in NUMBERS:
            return NUMERIC if column.notna().any() else EMPTY
        return judge(column.tolist(), self.layout.decimal, self.missing)

    def _is_index(self, name: str, cells: Any) -> bool:
        """Return whether the first column of the file is an index that pandas or R wrote.

        It is if it contains distinct integers and either has no name, or has a name that pandas
        gives to an index and counts the rows from 0 or 1.
        """
        values, bad = column_numbers(cells.tolist(), False, self.layout.decimal, self.missing)
        if bad or np.any(values != np.floor(values)) or len(np.unique(values)) < len(values):
            return False
        counting = bool(values[0] in (0, 1) and np.all(np.diff(values) == 1))
        return not name or name.startswith("Unnamed: ") or (name in INDEX_NAMES and counting)

    def _judge_later(self, n_rows: int) -> None:
        """Judge columns without entries in the first rows by the first rows that have some."""
        empty = [at for at, column in enumerate(self.judged) if column is EMPTY]
        if not empty or n_rows < FIRST_ROWS:
            return
        how = AS_TEXT | {"usecols": empty}
        with self._one_sentence():
            for cells in self._chunks(FIRST_ROWS, how):
                for at in empty:
                    # Cells of another kind are named when they are read, with their rows.
                    self.judged[at] = self._judge(cells[at])._replace(bad=())
                empty = [at for at in empty if self.judged[at] == EMPTY]
                if not empty:
                    return

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
            for frame in self._frames(rows):
                if not even and _has_short_rows(frame):
                    refuse_ragged(self.file, self.layout)
                    even = True
                numbers = self.numbers(frame, row)
                if skip < len(numbers):
                    yield numbers[skip:]
                row, skip = row + len(numbers), max(0, skip - len(numbers))

    def numbers(self, frame: Any, row: int | None = 0) -> np.ndarray[Any, Any]:
        """Return the columns of numbers of `frame`, a parsed part of the file, as an array.

        `row` is the number of its first row in the file; None if it is not known.
        """
        found = np.empty((len(frame), len(self.chosen.positions)))
        for place, at in enumerate(self.chosen.positions):
            column, kind = self.judged[at], frame[at].dtype.kind
            if kind == "b" if column.is_truth else kind in NUMBERS:
                found[:, place] = frame[at]
                continue
            cells = frame[at].tolist()
            found[:, place], bad = column_numbers(
                cells, column.is_truth, self.layout.decimal, self.missing
            )
            if self._is_doubtful:
                self._warn_of_points(cells)
            if bad:
                refuse_bad_cells(repr(self.file.name), self.all_names[at], bad, column, row)
        return found

    def _warn_of_points(self, cells: Sequence[str]) -> None:
        """Warn once of the first cell such as 1.234, in which the point may mean decimals."""
        for cell in cells:
            if "." in cell and AMBIGUOUS.fullmatch(cell.strip()):
                self._is_doubtful = False
                warn_user(f"{self.name}: {_pointed(cell.strip())}.")
                return

    def _frames(self, rows: int) -> Iterator[Any]:
        """Yield parts of the file of `rows` rows each, as text if numbers have a decimal comma."""
        if self.layout.decimal == ",":
            return self._chunks(rows, AS_TEXT)
        missing = [*SPELLINGS, *self.missing.texts, *self.missing.numbers]
        return self._chunks(rows, {"na_values": missing} | EXACT)

    def _chunks(self, rows: int, how: dict[str, Any]) -> Iterator[Any]:
        """Yield what pandas reads with the arguments `how`, `rows` rows at a time."""
        with pd.read_csv(self.file, chunksize=rows, **parsing(self.layout), **how) as reader:
            yield from reader

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
            if "field limit" in str(error):
                raise ValueError(
                    f"{name} has a cell of more than {csv.field_size_limit():,} characters: close "
                    "its quotation mark, or leave its column out of the file."
                ) from None
            raise ValueError(f"{name} cannot be read as CSV: {reason_of(error)}.") from error

    def _check_width(self, frame: Any, layout: TextLayout) -> None:
        """Raise an error if the first lines (`frame`) have different numbers of cells."""
        if _has_short_rows(frame):
            refuse_ragged(self.file, layout)
        if frame.shape[1] != len(layout.first):
            hint = "; if the comma is the decimal sign, give decimal=',' (--decimal ,)"
            raise ValueError(
                f"{self.file.name!r} has {len(layout.first)} names in its header but "
                f"{frame.shape[1]} columns: give one name for each column, "
                "and remove lines above the names"
                f"{hint if layout.delimiter == ',' else ''}."
            )


def parsing(layout: TextLayout) -> dict[str, Any]:
    """Return the arguments of `pandas.read_csv` for a file of this layout, without its header."""
    return {
        "sep": r"\s+" if layout.delimiter == " " else layout.delimiter,
        "header": None,
        "skiprows": layout.skipped + layout.header,
        "encoding": "utf-8-sig",
        "skipinitialspace": True,
        "keep_default_na": False,
        "low_memory": False,
    }


def _refuse_nul(file: Path) -> None:
    """Raise an error if a file contains a NUL byte, at which pandas would cut a cell."""
    if not file.stat().st_size:
        return
    with (
        file.open("rb") as stream,
        mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        at = content.find(b"\0")
    if at >= 0:
        raise ValueError(
            f"{file.name!r} contains a NUL byte (at byte {at}): it is damaged, or not text in "
            "UTF-8; save it as CSV in UTF-8."
        )


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
        records = enumerate(_rows_of(stream, layout.delimiter), start=1)
        lengths = ((number, len(row)) for number, row in records if _is_filled(row))
        _, expected = next(lengths, (1, 0))
        for number, length in lengths:
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


def text_layout(file: Path, header: bool | None, decimal: str | None) -> TextLayout:
    r"""Return the layout of a text table, from its first records."""
    with file.open(encoding="utf-8-sig", newline="") as stream:
        sample = stream.read(SAMPLE_CHARACTERS) + stream.readline(LONGEST_LINE)
        if sample.count("\n") < 3:  # very long lines: the header and at least one record
            sample += "".join(stream.readline(LONGEST_LINE) for _ in range(2))
    # `numpy.savetxt` writes the names of columns behind "# ".
    is_marked = sample.startswith("# ")
    sample = sample[2:] if is_marked else sample
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
    doubt, is_doubtful = "", False
    if decimal is None:
        decimal, doubt = _decimal(records, delimiter)
        grouped = any(GROUPED.fullmatch(cell) for record in records for cell in record)
        is_doubtful = decimal == "," and not grouped
    if header is None:
        header = True if is_marked else has_header(records, decimal)
    if header is None:
        raise ValueError(
            f"the first line of {file.name!r} ({some(records[0], 6)}) may contain names of columns "
            "or data: say which by lucidae.datasets.read_table(path, header=True) or header=False, "
            "or by --header or --no-header on the command line."
        )
    first = tuple(records[0])
    return TextLayout(delimiter, decimal, header, first, skipped, doubt, is_doubtful)


def _records(sample: str, delimiter: str) -> tuple[int, list[list[str]]]:
    """Return the number of blank lines at the start of a text (`sample`), and its other records.

    A record is a list of cells, stripped of blanks; `delimiter` separates the cells in the text.
    """
    reader = _rows_of(io.StringIO(sample, newline=""), delimiter)
    rows = [[cell.strip() for cell in row] for row in islice(reader, SAMPLE_RECORDS)]
    filled = [number for number, row in enumerate(rows) if _is_filled(row)]
    return (filled[0] if filled else 0), [rows[number] for number in filled]


def _is_filled(row: Sequence[str]) -> bool:
    """Tell whether a row is not that of a blank line, which pandas skips."""
    return len(row) > 1 or any(map(str.strip, row))


def _rows_of(stream: Any, delimiter: str) -> Iterator[list[str]]:
    """Yield the records of a text; a blank as delimiter means blanks of any number."""
    if delimiter == " ":
        return (line.split() for line in stream)
    return csv.reader(stream, delimiter=delimiter, skipinitialspace=True)


def _delimiter(sample: str, decimal: str | None) -> str:
    """Return the delimiter of the cells in a text (`sample`): comma, semicolon, tab or blank.

    The comma is excluded if it is the decimal separator (`decimal`) and the text has no quotes. A
    blank, which also separates words, is the delimiter only if all cells are numbers, and tabs do
    not give as many.
    """
    candidates = ",;\t "
    if decimal == "," and '"' not in sample:
        candidates = ";\t "  # a comma within quotes may be both
    scores = {delimiter: _score(sample, delimiter) for delimiter in candidates}
    if scores[" "][0] < 2.0 or scores[" "][1] == scores["\t"][1]:
        del scores[" "]
    best = max(scores, key=lambda delimiter: scores[delimiter])
    if scores[best][0] > 0:
        return best
    first = next((line for line in sample.splitlines() if line.strip()), "")
    return max(candidates.strip(" "), key=first.count)  # for the error message on an uneven file


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
        or (cell != "" and cell.lower() in MISSING)
        for cell in cells
    )
    return 1.0 + numbers / len(cells), lengths.pop()


def _decimal(records: Records, delimiter: str) -> tuple[str, str]:
    """Return the decimal separator, and a sentence if the numbers can be read with another one.

    It is the comma if numbers have commas and none has a point; otherwise, or if the delimiter is
    a comma, it is the point.
    """
    if delimiter == ",":
        return ".", ""
    cells = [cell for record in records for cell in record]
    commas = [cell for cell in cells if DECIMAL_COMMA.fullmatch(cell)]
    points = [cell for cell in cells if DECIMAL_POINT.fullmatch(cell)]
    taken = "," if commas and all(map(GROUPED.fullmatch, points)) else "."
    grouped = any(GROUPED.fullmatch(cell) for cell in cells if cell not in points)
    if taken == "," and grouped:  # 1.234,5 or 1.234.567, which leave no doubt
        return taken, ""
    if taken == "," and points:
        return taken, _pointed(points[0])
    signed = commas if taken == "," else points
    if not signed or not all(map(AMBIGUOUS.fullmatch, signed)):
        return taken, ""
    number = float(signed[0].replace(",", "."))
    other = "remove it from the file" if taken == "," else "give decimal=',' (--decimal ,)"
    return taken, (
        f"{taken!r} was taken for the decimal sign, so that {signed[0]!r} is {number:g}; if it "
        f"separates thousands, {other}"
    )


def _pointed(cell: str) -> str:
    """Return the sentence on a number such as 1.234 in a file with decimal commas."""
    number = float(cell.replace(".", ""))
    return (
        f"',' was taken for the decimal sign, so that {cell!r} is {number:g}; if it is "
        f"{float(cell):g}, write all numbers with one decimal sign"
    )


def _kind(cell: str, decimal: str) -> str:
    """Return the kind of a cell: "missing", "number", "date", "truth" (true, no, …) or "text"."""
    lower = cell.lower()
    if lower in MISSING:
        return "missing"
    if is_number(cell, decimal):
        return "number"
    if DATE.fullmatch(cell):
        return "date"
    return "truth" if lower in TRUTH or lower in ANSWERS else "text"


def has_header(records: Records, decimal: str = ".") -> bool | None:
    """Return whether the first record contains names rather than data; None if it is not clear.

    A cell of text above a column of numbers, dates or truth values is a name. A cell above others
    of its kind is data, unless it is one of several labels: integers of equal distance, such as
    the count 0, 1, 2, … that pandas writes, or years. A record of numbers is data, but not clear if
    they are labels and later records are not like them.
    """
    first, body = records[0], [record for record in records[1:] if len(record) == len(records[0])]
    kinds = [_kind(cell, decimal) for cell in first]
    numbered = [column for column, kind in enumerate(kinds) if kind == "number"]
    if not body:
        return not numbered
    below = [
        {_kind(cell, decimal) for cell in column} - {"missing"}
        for column in zip(*body, strict=True)
    ]
    labels = _are_labels(first, body, numbered)
    is_headed = first[0] == "" and numbered == [*range(1, len(first))] and labels is not False
    if is_headed and _counts_rows([record[0] for record in body]):
        return True  # the index of a pandas data frame
    if set(kinds) <= {"number", "missing"}:
        return None if labels and len(numbered) > 1 else False
    # Cells of one kind other than text are below the name of their column, which is no number.
    words = ("text", "date", "truth")
    uniform = [len(found) == 1 and found != {"text"} for found in below]
    naming = [
        at
        for at, kind in enumerate(kinds)
        if uniform[at] and kind in words and kind not in below[at]
    ]
    as_data = [at for at, kind in enumerate(kinds) if kind != "text" and kind in below[at]]
    if naming:
        labelled = labels is not False and int(first[numbered[0]]) in (0, 1, *YEARS)
        as_data = [at for at in as_data if not (labelled and at in numbered)]
        return True if len(naming) > len(as_data) else None
    if labels:
        return not any(
            kind == "text" and any(record[at] == first[at] for record in body)
            for at, kind in enumerate(kinds)
        )
    if as_data or "missing" in kinds:
        return False if as_data else None
    return True


def _are_labels(first: Sequence[str], body: Records, numbered: Sequence[int]) -> bool | None:
    """Return whether the numbers in the first record look like names of their columns.

    They do if they are years, consecutive integers, or at least four integers of equal distance,
    such as wavelengths. None means that later records are like them: all years, of the same
    distance too, or integers of the same range, such as answers on a scale.
    """
    cells = [first[column] for column in numbered]
    if not cells or not all(map(WHOLE.fullmatch, cells)):
        return False
    labels = list(map(int, cells))
    steps = {after - before for before, after in pairwise(labels)}
    below = ([record[column] for column in numbered] for record in body)
    later = [
        [
            int(cell) if WHOLE.fullmatch(cell) else None
            for cell in row
            if cell.lower() not in MISSING
        ]
        for row in below
    ]
    entries = [entry for row in later for entry in row]
    if len(steps) < 2 and steps != {0} and all(label in YEARS for label in labels):
        return None if all(entry in YEARS for entry in entries) else True
    if len(steps) != 1 or steps == {0} or (steps != {1} and len(labels) < 4):
        return False
    low, high = min(labels), max(labels)
    if all(entry is not None and low <= entry <= high for entry in entries):
        return None
    counted = (None not in row and {b - a for a, b in pairwise(row)} == steps for row in later)  # type: ignore[operator]
    return None if all(counted) else True


def _counts_rows(cells: Sequence[str]) -> bool:
    """Return whether the cells of a column can be an index of the rows.

    They can if they are all different, and are whole numbers or text.
    """
    return (
        len(set(cells)) == len(cells)
        and "" not in cells
        and (all(map(WHOLE.fullmatch, cells)) or not any(map(NUMBER.fullmatch, cells)))
    )
