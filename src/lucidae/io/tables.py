"""Tables of numbers in files: CSV, TSV, NPY, NPZ and Parquet (extra `cli`).

Text and Parquet are read and written by pandas, NPY and NPZ by NumPy without pickle. Every problem
with a file is a `ValueError` of one sentence that names the file.
"""

from __future__ import annotations

import csv
import os
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lucidae.io.atomic import atomic_path, save_arrays

__all__ = ["READERS", "Sheet", "Table", "read_table", "read_target", "write_sheet"]

Matrix = np.ndarray[Any, np.dtype[Any]]

MISSING = ("", "na", "n/a", "nan", "null", "none", "?")
"""Cells of a text file that stand for a missing value, in lower case."""
PIXEL_NAME = re.compile(r"(pixel|pix|px)[ _]?\d+([x_]\d+)?", re.IGNORECASE)
DATA_NAMES = ("X", "x", "data", "features")
TARGET_NAMES = ("y", "Y", "target", "targets")
"""Names of the array to read from an archive with several tables, in order of preference."""
# From version 3.1 on, pandas rounds numbers correctly by default.
OLD_PANDAS = tuple(map(int, pd.__version__.split(".")[:2])) < (3, 1)
EXACT: dict[str, Any] = {"float_precision": "round_trip"} if OLD_PANDAS else {}
UNREADABLE = (
    ValueError,
    EOFError,
    OSError,
    KeyError,
    TypeError,
    AttributeError,
    zipfile.BadZipFile,
)
"""What NumPy raises for a file that is not in its format."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of numbers with the names of their columns and, optionally, responses.

    Parameters
    ----------
    name : str
        Name of the data in messages and in the report.
    values : ndarray of shape (n_samples, n_features)
        The numbers, float32 or float64.
    columns : tuple of str
        One name per column.
    image_shape : tuple of int or None
        Height and width if every row is an image.
    left_out : tuple of str
        Names of the columns that were left out because not all their entries are numbers.
    target : ndarray of shape (n_samples, n_targets) or None
        Responses to be explained by the columns.
    target_names : tuple of str
        One name per response.

    Examples
    --------
    >>> table = Table("pairs", np.eye(2), ("a", "b"))
    >>> table.values.shape, table.image_shape
    ((2, 2), None)
    >>> table.with_target(["b"]).columns
    ('a',)
    """

    name: str
    values: Matrix
    columns: tuple[str, ...]
    image_shape: tuple[int, int] | None = None
    left_out: tuple[str, ...] = ()
    target: Matrix | None = None
    target_names: tuple[str, ...] = ()

    def with_target(self, names: Sequence[str]) -> Table:
        """Return the table with the named columns as responses instead of features."""
        unknown = [name for name in names if name not in self.columns]
        if unknown:
            known = ", ".join(self.columns[:12]) + (", …" if len(self.columns) > 12 else "")
            raise ValueError(
                f"{self.name!r} has no numeric column {unknown[0]!r}; its numeric columns are: "
                f"{known}."
            )
        if set(names) >= set(self.columns):
            raise ValueError(
                f"Every column of {self.name!r} is a target, and none is left as a feature; "
                "name fewer targets."
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


def read_table(path: str | os.PathLike[str]) -> Table:
    r"""Read a file of numbers; every problem with it is a `ValueError` of one sentence.

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
    >>> _ = path.write_text("name,cm,kg\nAda,170,60\nEmmy,165,55\n")
    >>> table = read_table(path)
    >>> table.columns, table.left_out
    (('cm', 'kg'), ('name',))
    """
    return _read(Path(path), READERS)


def read_target(path: str | os.PathLike[str]) -> Table:
    """Read responses as `read_table` reads rows; a vector is one column.

    Of an NPZ archive with several tables, the one named ``y`` is read.
    """
    return _read(Path(path), TARGET_READERS)


def _read(file: Path, readers: Mapping[str, Callable[[Path], Table]]) -> Table:
    if not file.is_file():
        raise ValueError(f"There is no file {str(file)!r}.")
    reader = readers.get(file.suffix.lower())
    if reader is None:
        raise ValueError(
            f"{file.name!r} has the suffix {file.suffix!r}, expected one of "
            f"{', '.join(sorted(readers))}."
        )
    table = reader(file)
    _require_finite_rows(table)
    return table


def _require_finite_rows(table: Table) -> None:
    rows, columns = table.values.shape
    if rows < 2 or columns < 1:
        raise ValueError(
            f"{table.name!r} contains {rows} rows of {columns} numbers; at least two rows and one "
            "column are needed."
        )
    bad = ~np.isfinite(table.values)
    if bad.any():
        row, column = np.argwhere(bad)[0]
        raise ValueError(
            f"{table.name!r} has {bad.sum()} missing or infinite values, the first in row "
            f"{row + 1}, column {table.columns[column]!r}; fill them or drop those rows first."
        )


def _read_text(file: Path) -> Table:
    """Read a CSV or TSV file; columns of text are left out, missing values are NaN."""
    try:
        return _parse_text(file)
    except UnicodeDecodeError:
        raise ValueError(f"{file.name!r} is not text in UTF-8; save it as CSV in UTF-8.") from None
    except csv.Error as error:
        raise ValueError(f"{file.name!r} cannot be read as CSV: {_reason(error)}.") from None


def _parse_text(file: Path) -> Table:
    delimiter, first, skipped = _first_record(file)
    has_header = not any(map(_is_number, first))
    names = tuple(map(str.strip, first)) if has_header else default_names(len(first))
    read = partial(
        pd.read_csv,
        file,
        sep=delimiter,
        header=None,
        skiprows=skipped + has_header,
        encoding="utf-8-sig",
        skipinitialspace=True,
        keep_default_na=False,
        low_memory=False,
    )
    try:
        frame = _parse_frame(read)
    except pd.errors.EmptyDataError:
        raise ValueError(f"{file.name!r} contains a header and no rows.") from None
    except pd.errors.ParserError as error:
        _refuse_ragged(file, delimiter, has_header)
        raise ValueError(f"{file.name!r} cannot be read as CSV: {_reason(error)}.") from None
    last = frame.iloc[:, -1]
    if (last.isna() | (last == "")).any():  # pandas fills up rows that are too short
        _refuse_ragged(file, delimiter, has_header)
    if frame.shape[1] != len(names):
        raise ValueError(
            f"{file.name!r} has {len(names)} names in its header but {frame.shape[1]} columns."
        )
    return _from_frame(file.name, frame.set_axis(_unique(names), axis=1))


def _first_record(file: Path) -> tuple[str, list[str], int]:
    """Return the delimiter, the first line's cells, and the number of blank lines before it."""
    with file.open(encoding="utf-8-sig", newline="") as stream:
        line = next((line for line in stream if line.strip()), "")
        if not line:
            raise ValueError(f"{file.name!r} is empty.")
        delimiter = max(",;\t", key=line.count)
        stream.seek(0)
        for number, cells in enumerate(csv.reader(stream, delimiter=delimiter)):
            if "".join(cells).strip() or len(cells) > 1:
                return delimiter, cells, number
    raise ValueError(f"{file.name!r} is empty.")


def _parse_frame(read: Callable[..., Any]) -> Any:
    """Return the records as a frame whose columns of numbers are of type float64."""
    spellings = {form(word) for word in MISSING for form in (str.lower, str.upper, str.title)}
    frame = read(na_values=[*spellings, "NaN"], **EXACT)
    # The cells themselves are needed where a column is not of numbers alone ("true" is text, not
    # 1), and to tell a row of blank cells, which is dropped, from a row of missing values.
    if all(dtype.kind in "iuf" for dtype in frame.dtypes) and not frame.isna().all(axis=1).any():
        return frame.astype(np.float64)
    return _parse_cells(read)


def _parse_cells(read: Callable[..., Any]) -> Any:
    cells = read(dtype=object, na_filter=False).map(str.strip)
    return cells[(cells != "").any(axis=1)].reset_index(drop=True).apply(_to_numbers)


def _to_numbers(column: Any) -> Any:
    """Convert a column of text to numbers if every cell that is not missing is a number."""
    missing = column.map(str.lower).isin(MISSING)
    try:
        return column.where(~missing, "nan").astype(np.float64)
    except ValueError:
        return column


def _refuse_ragged(file: Path, delimiter: str, has_header: bool) -> None:
    """Raise an error for the first record with another number of cells than the first line."""
    with file.open(encoding="utf-8-sig", newline="") as stream:
        records = csv.reader(stream, delimiter=delimiter)
        lengths = [len(row) for row in records if any(map(str.strip, row))]
    if has_header and len(set(lengths[1:])) == 1:
        return  # a header of another length has an error of its own
    for number, length in enumerate(lengths, start=1):
        if length != lengths[0]:
            raise ValueError(
                f"{file.name!r}, line {number}: {length} cells, but the first line has "
                f"{lengths[0]}."
            )


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _unique(names: tuple[str, ...]) -> tuple[str, ...]:
    """Append its position to every name if two columns have the same one."""
    if len(set(names)) == len(names):
        return names
    return tuple(f"{name} ({index + 1})" for index, name in enumerate(names))


def _read_parquet(file: Path) -> Table:
    """Read the columns of numbers; missing values are NaN."""
    try:
        from pyarrow import ArrowException
    except ImportError:
        raise ValueError("Reading Parquet needs pyarrow: pip install pyarrow") from None
    try:
        frame = pd.read_parquet(file, engine="pyarrow")
    except (ArrowException, OSError) as error:
        raise ValueError(f"{file.name!r} is not a Parquet file: {_reason(error)}.") from None
    if any(name is not None for name in frame.index.names):
        frame = frame.reset_index()
    return _from_frame(file.name, frame.set_axis(_unique(tuple(map(str, frame.columns))), axis=1))


def _from_frame(file: str, frame: Any) -> Table:
    """Return the columns of numbers with at least one value; the others are left out by name."""
    numeric = {
        name: column
        for name, column in frame.items()
        if pd.api.types.is_numeric_dtype(column.dtype) and column.notna().any()
    }
    if not numeric:
        if len(frame.columns) and not len(frame):
            raise ValueError(f"{file!r} contains 0 rows; at least two rows are needed.")
        raise ValueError(
            f"{file!r} has no numeric column; at least one column must contain only numbers, with "
            "a point as decimal separator."
        )
    values = np.column_stack([_as_floats(column) for column in numeric.values()])
    names = tuple(numeric)
    left_out = tuple(name for name in frame.columns if name not in numeric)
    return Table(file, values, names, image_shape_from_names(names), left_out)


def _as_floats(column: Any) -> Matrix:
    dtype = np.float32 if column.dtype == np.float32 else np.float64
    floats: Matrix = column.to_numpy(dtype=dtype, na_value=np.nan)
    return floats


def _read_npy(file: Path, *, target: bool = False) -> Table:
    """Read one array: rows and columns, or a stack of images; as a target, also a vector."""
    try:
        with file.open("rb") as stream:
            array = np.load(stream, allow_pickle=False)
    except UNREADABLE as error:
        raise ValueError(
            f"{file.name!r} is not an NPY file of numbers: {_reason(error)}."
        ) from None
    if isinstance(array, np.ndarray):
        return _from_array(file.name, _as_columns(array) if target else array)
    raise ValueError(f"{file.name!r} is an NPZ archive; rename it to end in '.npz'.")


def _read_npz(file: Path, *, target: bool = False) -> Table:
    """Read the only table of an archive, or the one named X; as a target, the one named y."""
    try:
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except UNREADABLE as error:
        raise ValueError(
            f"{file.name!r} is not an NPZ file of numbers: {_reason(error)}."
        ) from None
    if target:
        arrays = {name: _as_columns(array) for name, array in arrays.items()}
    preferred = TARGET_NAMES if target else DATA_NAMES
    return _from_array(file.name, arrays[_name_to_read(file.name, arrays, preferred)])


def _name_to_read(file: str, arrays: Mapping[str, Matrix], preferred: Sequence[str]) -> str:
    tables = [name for name, array in arrays.items() if array.ndim >= 2]
    for name in preferred:
        if name in tables:
            return name
    if len(tables) == 1:
        return tables[0]
    raise ValueError(
        f"{file!r} contains {len(tables)} tables among its arrays "
        f"({', '.join(arrays) or 'none'}); expected exactly one, or one named {preferred[0]!r}."
    )


def _as_columns(array: Matrix) -> Matrix:
    return array[:, None] if array.ndim == 1 else array


def _from_array(name: str, array: Matrix) -> Table:
    if array.ndim < 2:
        raise ValueError(
            f"{name!r} contains an array of shape {array.shape}; expected rows and columns, "
            "(n_samples, n_features), or a stack of images."
        )
    if array.dtype.kind not in "buif":
        raise ValueError(f"{name!r} contains values of type {array.dtype}; expected real numbers.")
    shape = (int(array.shape[1]), int(array.shape[2])) if array.ndim == 3 else None
    values = array.reshape(len(array), int(np.prod(array.shape[1:])))
    if values.dtype not in (np.float32, np.float64):
        values = values.astype(np.float64)
    return Table(name, values, default_names(values.shape[1]), shape)


def default_names(number: int) -> tuple[str, ...]:
    """Return names for columns that have none."""
    return tuple(f"column {index + 1}" for index in range(number))


def image_shape_from_names(names: tuple[str, ...]) -> tuple[int, int] | None:
    """Return the shape of square images if every column is named as a pixel, else None."""
    side = round(len(names) ** 0.5)
    if side * side != len(names) or side < 2:
        return None
    return (side, side) if all(map(PIXEL_NAME.fullmatch, names)) else None


def _reason(error: Exception) -> str:
    """Return the first line of an error's message, without its full stop."""
    if "pickle" in str(error):  # NumPy advises to allow it, which lucidae never does
        return "it has another format, or contains Python objects"
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


READERS: dict[str, Callable[[Path], Table]] = {
    ".csv": _read_text,
    ".tsv": _read_text,
    ".txt": _read_text,
    ".npy": _read_npy,
    ".npz": _read_npz,
    ".parquet": _read_parquet,
}
"""Functions that read a file, by its suffix."""
TARGET_READERS = READERS | {
    ".npy": partial(_read_npy, target=True),
    ".npz": partial(_read_npz, target=True),
}


@dataclass(frozen=True, slots=True)
class Sheet:
    """Numbers with named columns, and with named rows if the rows are not samples.

    Parameters
    ----------
    values : ndarray of shape (n_rows, n_columns)
        The numbers.
    columns : tuple of str
        One name per column.
    rows : tuple of str, optional
        One name per row.
    title : str, default=""
        Heading of the column that contains the names of the rows.

    Examples
    --------
    >>> Sheet(np.eye(2), ("a", "b"), ("first", "second"), "row").values.shape
    (2, 2)
    """

    values: Matrix
    columns: tuple[str, ...]
    rows: tuple[str, ...] = ()
    title: str = ""

    def to_frame(self) -> Any:
        """Return a pandas data frame whose first column contains the names of the rows, if any."""
        frame = pd.DataFrame(self.values, columns=list(self.columns))
        if self.rows:
            frame.insert(0, self.title, list(self.rows), allow_duplicates=True)
        return frame


def write_sheet(prefix: Path, sheet: Sheet, kind: str) -> Path:
    r"""Write a sheet that `read_table` can read, in the format of files that end in `kind`.

    Text gives CSV, Parquet gives Parquet, and arrays give NPZ with the numbers under ``X`` and the
    names under ``columns`` and ``rows``. The file is written completely or not at all.

    Parameters
    ----------
    prefix : Path
        The path of the file without its suffix.
    sheet : Sheet
        What to write.
    kind : str
        A suffix, such as ``".csv"``.

    Returns
    -------
    Path
        The file.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> path = write_sheet(folder / "codes", Sheet(np.eye(2), ("a", "b")), ".txt")
    >>> path.name, path.read_text().splitlines()
    ('codes.csv', ['a,b', '1.0,0.0', '0.0,1.0'])
    """
    suffix, write = WRITERS.get(kind.lower(), (".csv", _write_text))
    path = prefix.with_name(prefix.name + suffix)
    write(path, sheet)
    return path


def _write_text(path: Path, sheet: Sheet) -> None:
    with atomic_path(path) as temporary:
        # pandas writes the shortest text that is read back as the same number.
        sheet.to_frame().to_csv(temporary, index=False, lineterminator="\n")


def _write_parquet(path: Path, sheet: Sheet) -> None:
    with atomic_path(path) as temporary:
        sheet.to_frame().to_parquet(temporary, engine="pyarrow", index=False)


def _write_arrays(path: Path, sheet: Sheet) -> None:
    names = {"rows": np.array(sheet.rows)} if sheet.rows else {}
    save_arrays(path, {"X": sheet.values, "columns": np.array(sheet.columns), **names})


WRITERS: dict[str, tuple[str, Callable[[Path, Sheet], None]]] = {
    ".npy": (".npz", _write_arrays),
    ".npz": (".npz", _write_arrays),
    ".parquet": (".parquet", _write_parquet),
}
"""Suffix and writer of the output files, by the suffix of the input file."""
