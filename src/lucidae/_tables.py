"""Tables of numbers from files: CSV, TSV, NPY, NPZ and Parquet, with one sentence for a bad one."""

from __future__ import annotations

import csv
import os
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["Table", "read_table"]

Matrix = np.ndarray[Any, np.dtype[Any]]

_PREFERRED_NAMES = ("X", "x", "data", "features")
_PIXEL_NAME = re.compile(r"(pixel|pix|px)[ _]?\d+([x_]\d+)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of finite numbers with what is known about their columns.

    Parameters
    ----------
    name : str
        What the reader calls the data.
    values : ndarray of shape (n_samples, n_features)
        The numbers, float32 or float64.
    columns : tuple of str
        One name a column.
    image_shape : tuple of int or None
        Height and width when a row is a picture.
    left_out : tuple of str
        Names of the columns that hold no numbers and were dropped.

    Examples
    --------
    >>> table = Table("pairs", np.eye(2), ("a", "b"))
    >>> table.values.shape, table.image_shape
    ((2, 2), None)
    """

    name: str
    values: Matrix
    columns: tuple[str, ...]
    image_shape: tuple[int, int] | None = None
    left_out: tuple[str, ...] = ()


def read_table(path: str | os.PathLike[str]) -> Table:
    """Read a file of numbers; every problem with it is a `ValueError` of one sentence.

    Parameters
    ----------
    path : path-like
        A file whose suffix is .csv, .tsv, .txt, .npy, .npz or .parquet.

    Returns
    -------
    Table
        At least two rows and one column of finite numbers.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "heights.csv"
    >>> _ = path.write_text("name,cm,kg\\nAda,170,60\\nEmmy,165,55\\n")
    >>> table = read_table(path)
    >>> table.columns, table.left_out
    (('cm', 'kg'), ('name',))
    """
    file = Path(path)
    if not file.is_file():
        raise ValueError(f"There is no file {str(file)!r}.")
    reader = _READERS.get(file.suffix.lower())
    if reader is None:
        raise ValueError(
            f"{file.name!r} ends in {file.suffix or 'nothing'!r}; expected one of "
            f"{', '.join(sorted(_READERS))}."
        )
    return _checked(reader(file))


def _checked(table: Table) -> Table:
    rows, columns = table.values.shape
    if rows < 2 or columns < 1:
        raise ValueError(
            f"{table.name!r} holds {rows} rows of {columns} numbers; at least two rows and one "
            "column are needed."
        )
    bad = ~np.isfinite(table.values)
    if bad.any():
        row, column = np.argwhere(bad)[0]
        raise ValueError(
            f"{table.name!r} has {bad.sum()} missing or infinite values, the first in row "
            f"{row + 1}, column {table.columns[column]!r}; fill them or drop those rows first."
        )
    return table


def _read_npy(file: Path) -> Table:
    try:
        array = np.load(file, allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise ValueError(
            f"{file.name!r} is no NPY file of numbers: {_first_line(error)}."
        ) from None
    if isinstance(array, np.ndarray):
        return _from_array(file.name, array)
    array.close()
    raise ValueError(f"{file.name!r} is an NPZ archive; rename it to end in '.npz'.")


def _read_npz(file: Path) -> Table:
    try:
        with np.load(file, allow_pickle=False) as archive:
            name = _array_to_read(file.name, {key: archive[key] for key in archive.files})
            return _from_array(file.name, archive[name])
    except (EOFError, OSError, zipfile.BadZipFile, AttributeError, TypeError):
        raise ValueError(f"{file.name!r} is no NPZ file, or a damaged one.") from None


def _array_to_read(file: str, arrays: Mapping[str, Matrix]) -> str:
    tables = [name for name, array in arrays.items() if array.ndim >= 2]
    for name in _PREFERRED_NAMES:
        if name in tables:
            return name
    if len(tables) == 1:
        return tables[0]
    raise ValueError(
        f"{file!r} holds {len(tables)} tables among its arrays ({', '.join(arrays) or 'none'}); "
        "expected exactly one, or one named 'X'."
    )


def _from_array(name: str, array: Matrix) -> Table:
    if array.ndim < 2:
        raise ValueError(
            f"{name!r} holds an array of shape {array.shape}; expected rows and columns, "
            "(n_samples, n_features), or a stack of images."
        )
    if array.dtype.kind not in "buif":
        raise ValueError(f"{name!r} holds values of type {array.dtype}; expected real numbers.")
    shape = (int(array.shape[1]), int(array.shape[2])) if array.ndim == 3 else None
    values = _as_real(array.reshape(len(array), -1))
    return Table(name, values, _default_names(values.shape[1]), shape)


def _as_real(array: Matrix) -> Matrix:
    return array if array.dtype in (np.float32, np.float64) else array.astype(np.float64)


def _default_names(number: int) -> tuple[str, ...]:
    return tuple(f"column {index + 1}" for index in range(number))


def _read_csv(file: Path) -> Table:
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            head = [line for line in (stream.readline() for _ in range(5)) if line.strip()]
    except UnicodeDecodeError:
        raise ValueError(f"{file.name!r} is no text in UTF-8; save it as CSV in UTF-8.") from None
    if not head:
        raise ValueError(f"{file.name!r} is empty.")
    delimiter = _delimiter(head[0])
    first = next(csv.reader(head, delimiter=delimiter))
    has_header = not any(_is_number(cell) for cell in first)
    names = tuple(cell.strip() for cell in first) if has_header else _default_names(len(first))
    try:  # the quick parser knows nothing of text columns or holes
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
    return Table(file.name, values, names, _picture_shape(names))


def _delimiter(line: str) -> str:
    return max(",;\t", key=line.count)


def _read_cells(file: Path, delimiter: str, names: tuple[str, ...], has_header: bool) -> Table:
    """Read cell by cell: slower, but it can tell a text column from a hole."""
    with file.open(encoding="utf-8-sig", newline="") as stream:
        rows = [row for row in csv.reader(stream, delimiter=delimiter) if any(row)][has_header:]
    for number, row in enumerate(rows, start=1 + has_header):
        if len(row) != len(names):
            raise ValueError(
                f"{file.name!r}, row {number}: {len(row)} cells where the first row has {len(names)}."
            )
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(names)
    return _from_columns(file.name, dict(zip(_unique(names), columns, strict=True)))


def _from_columns(file: str, columns: Mapping[str, Sequence[str]]) -> Table:
    numeric = {name: cells for name, cells in columns.items() if _holds_numbers(cells)}
    if not numeric:
        raise ValueError(f"{file!r} has no column of numbers.")
    values = np.array([[_number(cell) for cell in cells] for cells in numeric.values()]).T
    left_out = tuple(name for name in columns if name not in numeric)
    return Table(file, values, tuple(numeric), _picture_shape(tuple(numeric)), left_out)


def _unique(names: tuple[str, ...]) -> tuple[str, ...]:
    seen: dict[str, int] = {}
    for name in names:
        seen[name] = seen.get(name, 0) + 1
    if len(seen) == len(names):
        return names
    return tuple(f"{name} ({index + 1})" for index, name in enumerate(names))


def _holds_numbers(cells: Sequence[str]) -> bool:
    """Tell whether most cells are numbers and the others are empty."""
    filled = [cell for cell in cells if not _is_missing(cell)]
    return bool(filled) and all(map(_is_number, filled))


def _is_missing(cell: str) -> bool:
    return cell.strip().lower() in ("", "na", "n/a", "nan", "null", "none", "?")


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _number(cell: str) -> float:
    return float("nan") if _is_missing(cell) else float(cell)


def _picture_shape(names: tuple[str, ...]) -> tuple[int, int] | None:
    """Take rows for square pictures only where every column is named as a pixel."""
    side = round(len(names) ** 0.5)
    if side * side != len(names) or side < 2:
        return None
    return (side, side) if all(map(_PIXEL_NAME.fullmatch, names)) else None


def _read_parquet(file: Path) -> Table:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ValueError("Reading Parquet needs pyarrow: pip install pyarrow") from None
    try:
        data = pyarrow.parquet.read_table(file)
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{file.name!r} is no Parquet file: {_first_line(error)}") from None
    kept = {name: data[name] for name in data.column_names if _is_numeric(data[name].type)}
    if not kept:
        raise ValueError(f"{file.name!r} has no column of numbers.")
    values = np.column_stack([_as_real(column.to_numpy()) for column in kept.values()])
    left_out = tuple(name for name in data.column_names if name not in kept)
    return Table(file.name, values, tuple(kept), _picture_shape(tuple(kept)), left_out)


def _is_numeric(kind: Any) -> bool:
    import pyarrow.types as types

    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0].rstrip(".")


_READERS: dict[str, Callable[[Path], Table]] = {
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".txt": _read_csv,
    ".npy": _read_npy,
    ".npz": _read_npz,
    ".parquet": _read_parquet,
}
