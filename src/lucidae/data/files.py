"""Files that are read in blocks of rows: NPY and memory maps, Parquet, CSV, HDF5 and Zarr.

Every problem with a file is a `ValueError` of one sentence that names the file.
"""

from __future__ import annotations

import csv
import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from lucidae.data.blocks import ArrayBlocks, RowBlocks, float_reference, shrunk

__all__ = ["FILES", "blocks_of_file", "blocks_of_map"]

STREAMED: dict[str, Any] = {"pre_buffer": False, "buffer_size": 2**16}
"""Arguments with which pyarrow reads a Parquet file page by page. By default it keeps all that it
has read, and reads whole row groups."""

CSV_CELL_BYTES = 16
"""Bytes that a number takes while a CSV file is parsed, its text included."""


def blocks_of_file(path: Any, *, flat: bool = False, first_row: int = 0) -> RowBlocks:
    """Return the blocks of a file, recognised by its suffix."""
    file = Path(path)
    if not file.exists():
        raise ValueError(f"There is no file {str(file)!r}.")
    reader = FILES.get(file.suffix.lower())
    if reader is None:
        raise ValueError(
            f"{file.name!r} has the suffix {file.suffix!r}, expected one of "
            f"{', '.join(sorted(FILES))}."
        )
    return reader(file, flat=flat, first_row=first_row)


class RawBlocks(RowBlocks):
    """Rows that lie one after the other in a file of numbers: an NPY file or a memory map.

    The blocks are read from the file and not through a mapping of it into memory. So the pages of
    the file do not count as memory of the process, and a file that becomes shorter raises an error,
    where reading its mapping would end the process.
    """

    def __init__(
        self,
        file: Path,
        dtype: Any,
        shape: tuple[int, ...],
        offset: int,
        *,
        name: str,
        flat: bool,
        first_row: int,
    ) -> None:
        is_vector = len(shape) == 1
        if len(shape) != 2 and not (flat and is_vector):
            raise ValueError(
                f"{name} has shape {shape}, expected rows and columns: two dimensions."
            )
        if dtype.kind not in "buif":
            raise ValueError(f"{name} contains values of type {dtype}, expected real numbers.")
        super().__init__(
            name,
            1 if is_vector else shape[1],
            float_reference(dtype),
            n_rows=shape[0],
            flat=is_vector,
            first_row=first_row,
        )
        self.file = file
        self.stored = dtype
        self.offset = offset

    def read(self) -> Iterator[Any]:
        """Yield blocks of the rows."""
        assert self.n_rows is not None, "the header contains the number of rows"
        row_bytes = self.n_features * self.stored.itemsize
        step = max(1, self.rows_per_block)
        with self.file.open("rb", buffering=0) as stream:
            stream.seek(self.offset + self.first_row * row_bytes)
            for start in range(self.first_row, self.n_rows, step):
                count = min(step, self.n_rows - start)
                block = np.empty((count, self.n_features), dtype=self.stored)
                found = _fill(stream, block.reshape(-1).view(np.uint8).data) // row_bytes
                if found < count:
                    raise ValueError(shrunk(self.name, self.n_rows, start + found))
                yield block


def _fill(stream: Any, buffer: Any) -> int:
    """Read until a buffer is full or the file ends, and return the number of bytes."""
    done = 0
    while done < len(buffer):
        count = stream.readinto(buffer[done:])
        if not count:
            break
        done += count
    return done


def _blocks_of_npy(file: Path, *, flat: bool, first_row: int) -> RowBlocks:
    name = repr(file.name)
    try:
        array = np.lib.format.open_memmap(file, mode="r")
    except (ValueError, OSError, EOFError) as error:
        why = str(error).splitlines()[0].rstrip(".")
        raise ValueError(f"{name} is not a complete NPY file of numbers: {why}.") from None
    return blocks_of_map(array, name, flat=flat, first_row=first_row)


def blocks_of_map(
    array: np.memmap[Any, Any], name: str, *, flat: bool = False, first_row: int = 0
) -> RowBlocks:
    """Return the blocks of a memory map.

    They are read from the file if the rows are stored one after the other. The private changes of
    a copy-on-write map (mode ``"c"``) are in memory only, so it is sliced.
    """
    file, mapping = array.filename, array._mmap  # type: ignore[attr-defined]
    if file is None or mapping is None or array.mode == "c" or not array.flags.c_contiguous:
        return ArrayBlocks(array, name, flat=flat, first_row=first_row)
    # A mapping begins at the last page boundary before the offset that was asked for.
    begin = array.offset - array.offset % mmap.ALLOCATIONGRANULARITY
    inside = array.ctypes.data - np.frombuffer(mapping, dtype=np.uint8).ctypes.data
    return RawBlocks(
        Path(file),
        array.dtype,
        array.shape,
        begin + inside,
        name=name,
        flat=flat,
        first_row=first_row,
    )


class ParquetBlocks(RowBlocks):
    """The columns of numbers of a Parquet file, read by pyarrow batch by batch."""

    def __init__(self, file: Path, *, flat: bool, first_row: int) -> None:
        parquet, self._errors = _pyarrow()
        name = repr(file.name)
        try:
            with parquet.ParquetFile(file) as opened:
                schema, n_rows = opened.schema_arrow, opened.metadata.num_rows
        except self._errors as error:
            raise ValueError(f"{name} is not a Parquet file: {_first_line(error)}.") from None
        types = [field.type for field in schema if _is_number(field.type)]
        names = tuple(field.name for field in schema if _is_number(field.type))
        single = bool(types) and all(kind == "float" for kind in types)
        super().__init__(
            name,
            len(names),
            float_reference(np.float32 if single else np.float64),
            n_rows=n_rows,
            feature_names=names,
            flat=flat and len(names) == 1,
            first_row=first_row,
        )
        self.file = file

    def read(self) -> Iterator[Any]:
        """Yield batches of rows; missing values are NaN."""
        parquet, _ = _pyarrow()
        skip = self.first_row
        try:
            with parquet.ParquetFile(self.file, **STREAMED) as opened:
                batches = opened.iter_batches(
                    self.rows_per_block, columns=list(self.feature_names or ())
                )
                for batch in batches:
                    if skip < batch.num_rows:
                        yield self._numbers(batch.slice(skip))
                    skip = max(0, skip - batch.num_rows)
        except self._errors as error:
            raise ValueError(
                f"{self.name} cannot be read to its end: {_first_line(error)}. It has changed "
                "while it was read, or it is damaged."
            ) from None

    def _numbers(self, batch: Any) -> Any:
        block = np.empty((batch.num_rows, self.n_features), dtype=self.dtype)
        for index, column in enumerate(batch.columns):
            # Integers with missing values are converted to doubles, in which these are NaN.
            block[:, index] = column.cast(
                "double" if self.dtype == np.float64 else "float"
            ).fill_null(np.nan)
        return block


def _pyarrow() -> tuple[Any, tuple[type[Exception], ...]]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as parquet
    except ImportError:
        raise ValueError("Reading Parquet needs pyarrow: pip install pyarrow") from None
    return parquet, (pa.ArrowException, OSError)


def _is_number(kind: Any) -> bool:
    import pyarrow.types as types

    return any(is_kind(kind) for is_kind in (types.is_integer, types.is_floating, types.is_boolean))


class CsvBlocks(RowBlocks):
    """The columns of numbers of a text file, read by pandas in chunks.

    The first chunk decides which columns contain numbers.
    """

    def __init__(self, file: Path, *, flat: bool, first_row: int) -> None:
        name = repr(file.name)
        self.file, self.settings = file, _csv_settings(file, name)
        first = next(iter(self._chunks(name, 1000)), None)
        columns = [] if first is None else [c for c in first if _holds_numbers(first[c])]
        if not columns:
            raise ValueError(f"{name} has no column of numbers in its first rows.")
        self._columns = columns
        super().__init__(
            name,
            len(columns),
            float_reference(np.float64),
            feature_names=tuple(map(str, columns)),
            flat=flat and len(columns) == 1,
            first_row=first_row,
        )

    def read(self) -> Iterator[Any]:
        """Yield chunks of rows; missing values are NaN."""
        rows = max(1, self.rows_per_block * 8 // CSV_CELL_BYTES)
        skip, row = self.first_row, 0
        for chunk in self._chunks(self.name, rows):
            numbers = chunk[self._columns]
            for column in self._columns:
                if not _holds_numbers(numbers[column]):
                    raise ValueError(
                        f"column {column!r} of {self.name} contains text after row {row}, but only "
                        "numbers in its first rows: correct the file or leave out the column."
                    )
            row += len(numbers)
            if skip < len(numbers):
                yield numbers.iloc[skip:].to_numpy(dtype=np.float64)
            skip = max(0, skip - len(numbers))

    def _chunks(self, name: str, rows: int) -> Iterator[Any]:
        import pandas as pd

        try:
            with pd.read_csv(self.file, chunksize=rows, **self.settings) as chunks:
                yield from chunks
        except pd.errors.EmptyDataError:
            raise ValueError(f"{name} contains no rows: at least one row is needed.") from None
        except (pd.errors.ParserError, UnicodeDecodeError, OSError) as error:
            raise ValueError(f"{name} cannot be read as CSV: {_first_line(error)}.") from None


def _csv_settings(file: Path, name: str) -> dict[str, Any]:
    """Return the arguments of pandas, from the delimiter and the names in the first line."""
    try:
        import pandas as pd
    except ImportError:
        raise ValueError("Reading CSV needs pandas: pip install pandas") from None
    with file.open(encoding="utf-8-sig", newline="", errors="replace") as stream:
        line = next((line for line in stream if line.strip()), "")
    if not line:
        raise ValueError(f"{name} is empty.")
    delimiter = max(",;\t", key=line.count)
    cells = [cell.strip() for cell in next(csv.reader([line], delimiter=delimiter))]
    has_names = not any(map(_is_text_number, cells))
    given: dict[str, Any] = {} if has_names else {"header": None, "names": _default_names(cells)}
    # From version 3.1 on, pandas rounds numbers correctly by default.
    if tuple(map(int, pd.__version__.split(".")[:2])) < (3, 1):
        given["float_precision"] = "round_trip"
    fixed = {"skipinitialspace": True, "index_col": False, "low_memory": False}
    return {"sep": delimiter, "encoding": "utf-8-sig"} | fixed | given


def _default_names(cells: list[str]) -> list[str]:
    return [f"column {index + 1}" for index in range(len(cells))]


def _is_text_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _holds_numbers(column: Any) -> bool:
    return column.dtype.kind in "iuf"


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


class _StoredArray:
    """A data set of an HDF5 file, opened for each slice, so that no file stays open."""

    def __init__(self, file: Path, key: str, shape: Any, dtype: Any, chunks: Any) -> None:
        self.file, self.key, self.shape, self.dtype = file, key, shape, dtype
        self.chunks = chunks

    def __getitem__(self, rows: slice) -> Any:
        import h5py

        try:
            with h5py.File(self.file, "r") as opened:
                return opened[self.key][rows]
        except (OSError, KeyError) as error:
            raise ValueError(
                f"{self.file.name!r} cannot be read to its end: {_first_line(error)}. It has "
                "changed while it was read, or it is damaged."
            ) from None


def _blocks_of_hdf5(file: Path, *, flat: bool, first_row: int) -> RowBlocks:
    try:
        import h5py
    except ImportError:
        raise ValueError("Reading HDF5 needs h5py: pip install h5py") from None
    found: list[Any] = []

    def visit(_: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and (item.ndim == 2 or (flat and item.ndim == 1)):
            found.append(item)

    try:
        with h5py.File(file, "r") as opened:
            opened.visititems(visit)
            stored = [_StoredArray(file, d.name, d.shape, d.dtype, d.chunks) for d in found]
    except OSError as error:
        raise ValueError(f"{file.name!r} is not an HDF5 file: {_first_line(error)}.") from None
    array = _only(stored, file, "h5py.File(path)[name]")
    return ArrayBlocks(array, repr(file.name), flat=flat, first_row=first_row)


def _blocks_of_zarr(file: Path, *, flat: bool, first_row: int) -> RowBlocks:
    try:
        import zarr
    except ImportError:
        raise ValueError("Reading Zarr needs zarr: pip install zarr") from None
    try:
        opened = zarr.open(os.fspath(file), mode="r")
    except Exception as error:
        raise ValueError(f"{file.name!r} is not a Zarr array: {_first_line(error)}.") from None
    if not hasattr(opened, "shape"):
        arrays = [a for _, a in opened.arrays() if a.ndim == 2 or (flat and a.ndim == 1)]
        opened = _only(arrays, file, "zarr.open(path)[name]")
    return ArrayBlocks(opened, repr(file.name), flat=flat, first_row=first_row)


def _only(arrays: list[Any], file: Path, advice: str) -> Any:
    """Return the only array of a file; several are an error, because none is preferred."""
    if len(arrays) != 1:
        raise ValueError(
            f"{file.name!r} contains {len(arrays)} tables, expected one: give the array itself, "
            f"{advice}."
        )
    return arrays[0]


FILES: dict[str, Callable[..., RowBlocks]] = {
    ".npy": _blocks_of_npy,
    ".parquet": ParquetBlocks,
    ".csv": CsvBlocks,
    ".tsv": CsvBlocks,
    ".h5": _blocks_of_hdf5,
    ".hdf5": _blocks_of_hdf5,
    ".zarr": _blocks_of_zarr,
}
"""Readers by the suffix of the file."""
