"""Tables from text: comma, semicolon or tab between the cells, with or without a header."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from lucidae._tables.table import Table, default_names, picture_shape

_MISSING = ("", "na", "n/a", "nan", "null", "none", "?")


def read_text(file: Path) -> Table:
    """Read a CSV or TSV file; columns of words are left out, holes are kept as NaN."""
    head = _head(file)
    delimiter = max(",;\t", key=head[0].count)
    first = next(csv.reader(head, delimiter=delimiter))
    has_header = not any(map(_is_number, first))
    names = tuple(cell.strip() for cell in first) if has_header else default_names(len(first))
    if has_header and len(head) == 1:
        raise ValueError(f"{file.name!r} holds a header and no rows.")
    try:  # the quick parser knows nothing of words and holes
        values = np.loadtxt(
            file,
            delimiter=delimiter,
            skiprows=int(has_header),
            ndmin=2,
            comments=None,
            quotechar='"',
            encoding="utf-8-sig",
        )
    except ValueError:
        return _read_cells(file, delimiter, names, has_header)
    if values.shape[1] != len(names):
        raise ValueError(
            f"{file.name!r} has {len(names)} names in its header but {values.shape[1]} columns."
        )
    return Table(file.name, values, names, picture_shape(names))


def _head(file: Path) -> list[str]:
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            lines = [line for line in (stream.readline() for _ in range(5)) if line.strip()]
    except UnicodeDecodeError:
        raise ValueError(f"{file.name!r} is no text in UTF-8; save it as CSV in UTF-8.") from None
    if not lines:
        raise ValueError(f"{file.name!r} is empty.")
    return lines


def _read_cells(file: Path, delimiter: str, names: tuple[str, ...], has_header: bool) -> Table:
    """Read cell by cell: slower, but it can tell a column of words from a hole."""
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            lines = csv.reader(stream, delimiter=delimiter)
            rows = [row for row in lines if any(map(str.strip, row))][has_header:]
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(f"{file.name!r} cannot be read as CSV: {error}.") from None
    for number, row in enumerate(rows, start=1 + has_header):
        if len(row) != len(names):
            raise ValueError(
                f"{file.name!r}, line {number}: {len(row)} cells, but the first line has "
                f"{len(names)}."
            )
    cells = zip(*rows, strict=True)
    return _from_columns(file.name, dict(zip(_unique(names), cells, strict=True)))


def _from_columns(file: str, columns: Mapping[str, Sequence[str]]) -> Table:
    numeric = {name: cells for name, cells in columns.items() if _holds_numbers(cells)}
    if not numeric:
        raise ValueError(f"{file!r} has no column of numbers.")
    values = np.array([list(map(_number, cells)) for cells in numeric.values()]).T
    left_out = tuple(name for name in columns if name not in numeric)
    return Table(file, values, tuple(numeric), picture_shape(tuple(numeric)), left_out)


def _unique(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(names)) == len(names):
        return names
    return tuple(f"{name} ({index + 1})" for index, name in enumerate(names))


def _holds_numbers(cells: Sequence[str]) -> bool:
    filled = [cell for cell in cells if not _is_missing(cell)]
    return bool(filled) and all(map(_is_number, filled))


def _is_missing(cell: str) -> bool:
    return cell.strip().lower() in _MISSING


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _number(cell: str) -> float:
    return float("nan") if _is_missing(cell) else float(cell)
