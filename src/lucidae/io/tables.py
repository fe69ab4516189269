"""Tables of numbers in files: CSV, TSV, NPY, NPZ and Parquet (extra `cli`).

Text and Parquet are read by pandas, NPY and NPZ by NumPy without pickle. Every problem with a file
raises a `ValueError` of one sentence that names the file. A file that states a content much larger
than its own size allows is refused before it is read.
"""

from __future__ import annotations

import difflib
import os
import re
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from lucidae.io.atomic import (
    EXPANSION,
    SMALL,
    array_header,
    claimed_bytes,
    open_member,
    read_member,
    reason_of,
    require_size,
)
from lucidae.io.text import (
    MISSING,
    header_sentence,
    is_index,
    is_number,
    read_frame,
    readable_text,
    some,
    unique_names,
)

__all__ = [
    "SUFFIXES",
    "ReadOptions",
    "Table",
    "choose_columns",
    "default_names",
    "positions",
    "read_table",
    "read_target",
]

Matrix = np.ndarray[Any, np.dtype[Any]]

PIXEL_NAME = re.compile(r"(pixel|pix|px)[ _]?\d+([x_]\d+)?", re.IGNORECASE)
DATA_NAMES = ("X", "x", "data", "features")
TARGET_NAMES = ("y", "Y", "target", "targets")
"""Names under which the array of targets is looked for in an NPZ archive, the preferred one first.

`DATA_NAMES` are those of the array of features."""
ROW_INDEX = "it is the index of the rows"


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Choices of the user for reading a table; what is not given is decided from the file."""

    # whether the first line of a text file contains the names of the columns; by default this is
    # decided from the first lines (see `lucidae.io.text.has_header`)
    header: bool | None = None
    # the columns to read, by name or by 0-based index; by default all columns of numbers except an
    # index of the rows
    columns: tuple[str, ...] = ()
    # the decimal separator of a text file; by default it is decided from the first lines
    decimal: str | None = None
    # the columns to be explained by the others, by name or by 0-based index
    targets: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.decimal not in (None, ".", ","):
            raise ValueError(f"decimal={self.decimal!r} was given, expected '.' or ','.")


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of numbers with the names of their columns and, optionally, responses."""

    name: str  # name of the data in messages and in the report
    values: Matrix  # (n_samples, n_features): the numbers, float32 or float64
    columns: tuple[str, ...]  # one name per column
    image_shape: tuple[int, int] | None = None  # height and width if every row is an image
    # names of the columns of the file that were left out, with the reason for each
    left_out: Mapping[str, str] = field(default_factory=dict)
    # (n_samples, n_targets): responses to be explained by the columns; None if there are none
    target: Matrix | None = None
    target_names: tuple[str, ...] = ()  # one name per response
    header: str = ""  # clause that says whether a text file has a header; empty for other files
    # for a large file, the moment of all rows; `values` and `target` are then a sample of them
    moment: Any = None

    @property
    def n_rows(self) -> int:
        """Number of rows of the data, of which `values` may be a sample."""
        return len(self.values) if self.moment is None else round(self.moment.weight)

    @property
    def reading(self) -> str:
        """One sentence on the header of the file and the columns that were left out.

        It is empty for a file without either, such as an NPY file.
        """
        reasons = [f"{name} ({why})" for name, why in self.left_out.items()]
        left_out = f"columns left out: {some(reasons)}" if reasons else ""
        parts = [part for part in (self.header, left_out) if part]
        return f"{self.name}: {'; '.join(parts)}." if parts else ""

    def with_target(self, names: Sequence[str]) -> Table:
        """Return a copy of the table in which some columns are responses instead of features.

        `names` are the names or the 0-based indices of these columns.
        """
        names = [self.columns[index] for index in self._positions(names)]
        if set(names) >= set(self.columns):
            raise ValueError(
                f"Every column of {self.name!r} was given as a target, so that no feature is left; "
                "give fewer targets."
            )
        chosen = np.array([name in names for name in self.columns])
        return replace(
            self,
            values=self.values[:, ~chosen],
            columns=tuple(name for name in self.columns if name not in names),
            image_shape=None,
            target=self.values[:, chosen],
            target_names=tuple(name for name in self.columns if name in names),
        )

    def _positions(self, names: Iterable[str]) -> list[int]:
        """Return the positions of numeric columns that are given by name or by 0-based index.

        Raise an error with the reason if a column was left out of the table.
        """
        unknown = [name for name in names if name in self.left_out]
        if unknown:
            raise ValueError(
                f"{self.name!r} has no numeric column {unknown[0]!r}: "
                f"{self.left_out[unknown[0]]}; its numeric columns are: {some(self.columns)}."
            )
        return positions(names, self.columns, self.name)


def positions(
    names: Iterable[str],
    columns: Sequence[str],
    file: str,
    is_numeric: Callable[[int], bool] = lambda _at: True,
) -> list[int]:
    """Return the positions of columns that are given by their name or by their 0-based index.

    A column whose name is a number, such as 2020, is found by its name. `columns` are the names of
    all columns, and `file` is the name of the file for the error message, which lists the columns
    whose position `is_numeric` accepts.
    """
    found = {name: index for index, name in enumerate(columns)}
    for name in names:
        if name not in found:
            if not (name.isdecimal() and len(name) < 10 and int(name) < len(columns)):
                usable = [column for at, column in enumerate(columns) if is_numeric(at)]
                raise ValueError(
                    f"{file!r} has no numeric column {name!r}{_meant(name, columns)}; its numeric "
                    f"columns are: {some(usable)} (or the indices 0 to {len(columns) - 1})."
                )
            found[name] = int(name)
    return [found[name] for name in names]


def _meant(name: str, columns: Sequence[str]) -> str:
    """Return a hint for a message about an unknown column: the most similar name of a column.

    For several names that are separated by commas, the hint says how to give several columns. It is
    empty if no name is similar.
    """
    parts = [part.strip() for part in name.split(",")]
    if len(parts) > 1 and all(part in columns for part in parts):
        return f" (give several as {' '.join(f'--target {part}' for part in parts)})"
    lowered = {column.lower(): column for column in reversed(columns)}
    near = difflib.get_close_matches(name.lower(), lowered, 1)
    return f" (did you mean {lowered[near[0]]!r}?)" if near else ""


def read_table(path: str | os.PathLike[str], options: ReadOptions | None = None) -> Table:
    r"""Return the table of numbers in a file, or raise a `ValueError` of one sentence."""
    return _read(Path(path), READERS, options or ReadOptions())


def read_target(path: str | os.PathLike[str], options: ReadOptions | None = None) -> Table:
    """Return the responses in a file as a table; the files are those that `read_table` reads.

    A vector in an NPY or NPZ file becomes one column. If an NPZ archive contains several arrays,
    the one named ``y`` is read.
    """
    return _read(Path(path), TARGET_READERS, options or ReadOptions())


def _read(file: Path, readers: Mapping[str, Reader], options: ReadOptions) -> Table:
    """Return the table in a file, read by the function that `readers` has for its suffix."""
    if not file.is_file():
        raise ValueError(f"There is no file {str(file)!r}: check the path.")
    reader = readers.get(file.suffix.lower())
    if reader is None:
        raise ValueError(
            f"{file.name!r} has the suffix {file.suffix!r}, expected one of {', '.join(SUFFIXES)}."
        )
    try:
        table = reader(file, options)
    except MemoryError:
        raise ValueError(
            f"{file.name!r} is too large for the memory of this computer; give fewer rows or "
            "columns."
        ) from None
    _require_finite_rows(table)
    return table


def _require_finite_rows(table: Table) -> None:
    """Raise an error unless a table has at least two rows, one column and only finite numbers."""
    rows, columns = table.values.shape
    if rows < 2 or columns < 1:
        raise ValueError(
            f"{table.name!r} contains {rows} row{'s' if rows != 1 else ''} of {columns} "
            f"number{'s' if columns != 1 else ''}; at least two rows and one column are needed."
        )
    bad = ~np.isfinite(table.values)
    if bad.any():
        row, column = np.argwhere(bad)[0]
        number = f"{bad.sum()} missing or infinite value{'s' if bad.sum() > 1 else ''}"
        raise ValueError(
            f"{table.name!r} has {number}, the first in row "
            f"{row} (counted from 0), column {table.columns[column]!r}; fill in these values or "
            "remove their rows first."
        )


def _read_text(file: Path, options: ReadOptions) -> Table:
    """Return the table in a CSV or TSV file; columns of text are left out, missing values are NaN.

    All problems with the file are raised as `ValueError`.
    """
    with readable_text(file):
        return _parse_text(file, options)


def _parse_text(file: Path, options: ReadOptions) -> Table:
    """Return the table in a CSV or TSV file; its field `header` says if a header was found."""
    frame, layout = read_frame(file, options.header, options.decimal)
    given = layout.first if layout.header else ("",) * len(layout.first)
    index = 0 if layout.header and is_index(given[0], frame[0]) else None
    names = unique_names(given)
    table = _from_frame(file.name, frame.set_axis(names, axis=1), options, index, layout.decimal)
    return replace(table, header=header_sentence(names if layout.header else ()))


def _read_parquet(file: Path, options: ReadOptions) -> Table:
    """Return the numeric columns of a Parquet file as a table; missing values are NaN."""
    try:
        from pyarrow import parquet
    except ImportError:
        raise ValueError("Reading Parquet needs pyarrow: pip install pyarrow") from None
    try:
        # Runs of equal values take few bytes in the file, but eight bytes per value in memory.
        footer = parquet.read_metadata(file)
        require_size(8 * footer.num_rows * footer.num_columns, _limit(file))
        frame = pd.read_parquet(file, engine="pyarrow")
    except Exception as error:  # pyarrow raises many kinds of errors for damaged files
        raise ValueError(f"{file.name!r} is not a Parquet file: {reason_of(error)}.") from error
    index = None
    if any(name is not None for name in frame.index.names):
        index = 0
        frame = frame.reset_index()
    named = frame.set_axis(unique_names([str(name) for name in frame.columns]), axis=1)
    return _from_frame(file.name, named, options, index)


def _limit(file: Path) -> int:
    """Return the largest uncompressed size, in bytes, that is accepted for a compressed file."""
    return max(SMALL, EXPANSION * file.stat().st_size)


def _from_frame(
    file: str, frame: Any, options: ReadOptions, index: int | None, decimal: str = "."
) -> Table:
    """Return a table of those numeric columns of a data frame that the user chose in `options`.

    The table has a reason for each column that is left out. `file` is the name of the file, `index`
    the position of a column that may be an index of the rows (or None), and `decimal` the decimal
    separator of the file.
    """
    names = tuple(frame.columns)
    chosen = choose_columns(file, frame, options, index, decimal)
    values = np.column_stack([_as_floats(frame.iloc[:, at]) for at in chosen.numeric])
    columns = tuple(names[at] for at in chosen.numeric)
    table = Table(file, values, columns, image_shape_from_names(columns), chosen.left_out)
    return table.with_target([names[at] for at in chosen.targets]) if chosen.targets else table


class ChosenColumns(NamedTuple):
    """Positions of the columns of numbers and of the targets, and why others are not read."""

    numeric: list[int]
    targets: list[int]
    left_out: dict[str, str]


def choose_columns(
    file: str, frame: Any, options: ReadOptions, index: int | None, decimal: str = "."
) -> ChosenColumns:
    """Return which columns of a data frame are features, targets, or not read."""
    names = tuple(frame.columns)
    if not len(frame):
        raise ValueError(f"{file!r} contains 0 rows; at least two rows are needed.")
    wanted, targets = _wanted(
        options, names, file, lambda at: at != index and not _why_not(frame.iloc[:, at], decimal)
    )
    reasons = {at: _why_not(frame.iloc[:, at], decimal) for at in wanted}
    numeric = [at for at in wanted if not reasons[at]]
    refused = [at for at in (wanted if options.columns else targets) if reasons[at]]
    if refused:
        raise ValueError(
            f"{file!r} has no numeric column {names[refused[0]]!r}: {reasons[refused[0]]}."
        )
    droppable = not options.columns and index not in targets and len(numeric) > 1
    if index is not None and index in numeric and droppable:
        numeric.remove(index)
        reasons[index] = ROW_INDEX
    if not numeric:
        raise ValueError(
            f"{file!r} has no numeric column: {names[0]!r} is left out because {reasons[0]}; at "
            "least one column must contain only numbers."
        )
    return ChosenColumns(numeric, targets, {names[at]: why for at, why in reasons.items() if why})


def _wanted(
    options: ReadOptions,
    names: Sequence[str],
    file: str,
    is_numeric: Callable[[int], bool] = lambda _at: True,
) -> tuple[Sequence[int], list[int]]:
    """Return the positions of all columns to read, targets included, and those of the targets.

    `names` are the names of all columns of the file called `file`. `is_numeric` tells whether the
    column at a position contains numbers; an error about an unknown name lists these columns.
    """
    targets = positions(options.targets, names, file, is_numeric)
    if not options.columns:
        return range(len(names)), targets
    return [
        *dict.fromkeys([*positions(options.columns, names, file, is_numeric), *targets])
    ], targets


def _why_not(column: Any, decimal: str) -> str:
    """Return the reason why a column is not numeric, or an empty text if it is."""
    if pd.api.types.is_numeric_dtype(column.dtype):
        return "" if column.notna().any() else "it has no entries"
    for row, cell in enumerate(column):
        if not isinstance(cell, str):
            return f"its entries are of type {column.dtype}"
        if not _is_number_or_missing(cell, decimal):
            other = "," if decimal == "." else "."
            hint = f"; --decimal {other} reads it" if is_number(cell, other) else ""
            return f"{_short(cell)} in row {row} is not a number{hint}"
    return f"its entries are of type {column.dtype}"


def _is_number_or_missing(cell: str, decimal: str) -> bool:
    """Return whether a cell is a number, or text such as NA that means a missing value."""
    return cell.lower() in MISSING or is_number(cell, decimal)


def _short(cell: str) -> str:
    """Return a cell between quotes, shortened to 30 characters."""
    return repr(cell if len(cell) <= 30 else f"{cell[:29]}…")


def _as_floats(column: Any) -> Matrix:
    """Return a numeric column of a data frame as float64, or as float32 if it is float32."""
    dtype = np.float32 if column.dtype == np.float32 else np.float64
    floats: Matrix = column.to_numpy(dtype=dtype, na_value=np.nan)
    return floats


def _read_npy(file: Path, options: ReadOptions, *, target: bool = False) -> Table:
    """Return the table in an NPY file: rows and columns, or images along the first axis.

    If `target`, the array may also be a vector, which becomes one column.
    """
    if zipfile.is_zipfile(file):
        raise ValueError(f"{file.name!r} is an NPZ archive; rename it to end in '.npz'.")
    try:
        with file.open("rb") as stream:
            require_size(claimed_bytes(stream), file.stat().st_size)
            stream.seek(0)
            array = np.lib.format.read_array(stream, allow_pickle=False)
    except Exception as error:  # see `lucidae.io.atomic.read_arrays`
        raise ValueError(
            f"{file.name!r} is not an NPY file of numbers: {reason_of(error)}."
        ) from error
    return _from_array(file.name, _as_columns(array) if target else array, options)


def _read_npz(file: Path, options: ReadOptions, *, target: bool = False) -> Table:
    """Return one array of an NPZ archive as a table: the only one, or the one named X.

    If `target`, the name is y, and a vector becomes one column.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            axes = {name: _number_of_axes(archive, info) for name, info in members.items()}
            name = _name_to_read(file.name, axes, target)
            array = read_member(archive, members[name], _limit(file))
    except ChoiceError:
        raise
    except Exception as error:  # see `lucidae.io.atomic.read_arrays`
        raise ValueError(
            f"{file.name!r} is not an NPZ file of numbers: {reason_of(error)}."
        ) from error
    return _from_array(file.name, _as_columns(array) if target else array, options)


class ChoiceError(ValueError):
    """Error raised if it is not clear which array of an NPZ archive is to be read."""


def _number_of_axes(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> int:
    """Return the number of axes of one array of an NPZ archive, from its header alone."""
    with open_member(archive, info) as entry:
        return len(array_header(entry)[0])


def _name_to_read(file: str, axes: Mapping[str, int], target: bool) -> str:
    """Return the name of the array to read from an NPZ archive, or raise a `ChoiceError`.

    `axes` has the number of axes of each array. Arrays with fewer than two axes (one if `target`)
    are not considered. Arrays named as in `DATA_NAMES` (`TARGET_NAMES` if `target`) are preferred.
    """
    preferred = TARGET_NAMES if target else DATA_NAMES
    tables = [name for name, number in axes.items() if number >= (1 if target else 2)]
    for name in preferred:
        if name in tables:
            return name
    if len(tables) == 1:
        return tables[0]
    raise ChoiceError(
        f"{file!r} contains the arrays {some([*axes]) or '(none)'}, of which {len(tables)} can be "
        f"read as a table; expected exactly one such array, or one named {preferred[0]!r}."
    )


def _as_columns(array: Matrix) -> Matrix:
    """Return a vector as a matrix of one column, and other arrays unchanged."""
    return array[:, None] if array.ndim == 1 else array


def _from_array(name: str, array: Matrix, options: ReadOptions) -> Table:
    """Return an array of a file as a table; each image of a three-dimensional array is one row."""
    if array.ndim < 2:
        raise ValueError(
            f"{name!r} contains an array of shape {array.shape}; expected (n_samples, n_features), "
            "or (n_samples, height, width) for images."
        )
    if array.dtype.kind not in "buif":
        raise ValueError(f"{name!r} contains values of type {array.dtype}; expected real numbers.")
    shape = (int(array.shape[1]), int(array.shape[2])) if array.ndim == 3 else None
    values = array.reshape(len(array), int(np.prod(array.shape[1:])))
    columns = default_names(values.shape[1])
    wanted, targets = _wanted(options, columns, name)
    if len(wanted) < len(columns):
        values, shape = values[:, wanted], None
    if values.dtype not in (np.float32, np.float64):
        values = values.astype(np.float64)
    table = Table(name, values, tuple(columns[at] for at in wanted), shape)
    return table.with_target([columns[at] for at in targets]) if targets else table


def default_names(number: int) -> tuple[str, ...]:
    """Return the names "column 0", "column 1", … for columns that have none.

    The indices are those of ``SparseVAE.support_``.
    """
    return tuple(f"column {index}" for index in range(number))


def image_shape_from_names(names: tuple[str, ...]) -> tuple[int, int] | None:
    """Return height and width of square images if all columns are named as pixels, else None."""
    side = round(len(names) ** 0.5)
    if side * side != len(names) or side < 2:
        return None
    return (side, side) if all(map(PIXEL_NAME.fullmatch, names)) else None


Reader = Callable[[Path, ReadOptions], Table]
READERS: dict[str, Reader] = {
    ".csv": _read_text,
    ".tsv": _read_text,
    ".txt": _read_text,
    ".npy": _read_npy,
    ".npz": _read_npz,
    ".parquet": _read_parquet,
}
"""Functions that read a file, by the suffix of the file."""
TARGET_READERS = READERS | {
    ".npy": partial(_read_npy, target=True),
    ".npz": partial(_read_npz, target=True),
}
SUFFIXES = tuple(sorted(READERS))
"""Suffixes of the files that can be read."""
