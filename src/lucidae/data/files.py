"""Files that are read in blocks of rows: NPY and memory maps, Parquet, CSV, HDF5 and Zarr.

Every problem with a file is a `ValueError` of one sentence that names the file.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lucidae.arrays.maps import forget_pages, missing_bytes
from lucidae.data.blocks import (
    PARTS,
    ArrayBlocks,
    RowBlocks,
    concatenated,
    float_reference,
    shrunk,
)

__all__ = ["FILES", "blocks_of_file", "blocks_of_map", "rows_of_file"]

UNNAMED_INDEX = re.compile(r"__index_level_\d+__")
"""Names under which pandas stores an index without a name."""

NO_NUMBERS = "{} contains values of type {}, expected real numbers. Convert them first."
"""Error message for the name of data, and their type, that are not real numbers."""

COPIED_BYTES = 2**20
"""Number of bytes of an NPY file that are read, or of a memory map that are copied, at a time. The
size of a map's file is compared before, and the progress is shown after it."""

STREAMED: dict[str, Any] = {"pre_buffer": False, "buffer_size": 2**16}
"""Arguments with which pyarrow reads a Parquet file page by page. By default it keeps all that it
has read, and reads whole row groups."""


def blocks_of_file(
    path: Any, *, flat: bool = False, first_row: int = 0, options: Any = None
) -> RowBlocks:
    """Return the blocks of a file, recognised by its suffix."""
    file = Path(path)
    if not file.exists():
        raise ValueError(f"There is no file {str(file)!r}: check the path.")
    reader = FILES.get(file.suffix.lower())
    if reader is None:
        raise ValueError(
            f"{file.name!r} has the suffix {file.suffix!r}, expected one of "
            f"{', '.join(sorted(FILES))}."
        )
    return reader(file, flat=flat, first_row=first_row, options=options)


def rows_of_file(path: str, start: int, count: int, options: Any) -> Any:
    """Return `count` rows of a file from row `start` on, as `blocks_of_file` reads them.

    Workers of Dask call this function. So this module does not import ``dask.array``, which would
    take a worker longer than several blocks of rows.
    """
    held: list[Any] = []
    for rows in blocks_of_file(path, first_row=start, options=options):
        held.append(rows)
        if sum(len(part) for part in held) >= count:
            break
    return concatenated(held)[:count]


def _with_options(opened: Callable[..., RowBlocks]) -> Callable[..., RowBlocks]:
    """Return a function that opens an array file and reads only the columns that the user chose.

    `opened` opens the file with all columns. Columns are given in the options by their 0-based
    indices.
    """

    def reader(file: Path, *, flat: bool, first_row: int, options: Any) -> RowBlocks:
        data = opened(file, flat=flat, first_row=first_row)
        return data if options is None or not options.columns else ChosenBlocks(data, options)

    return reader


class ChosenBlocks(RowBlocks):
    """Blocks of rows with some columns only, given by their 0-based indices."""

    def __init__(self, data: RowBlocks, options: Any) -> None:
        from lucidae.io.tables import default_names, positions

        names = default_names(data.n_features)
        wanted = (*options.columns, *options.targets)
        found = positions(wanted, names, data.name.strip("'"))
        self.data, self.positions = data, list(dict.fromkeys(found))
        self.all_names = names
        super().__init__(
            data.name,
            len(self.positions),
            data.reference,
            n_rows=data.n_rows,
            feature_names=tuple(names[at] for at in self.positions),
            first_row=data.first_row,
        )

    def read(self) -> Iterator[Any]:
        """Yield blocks of the chosen columns."""
        return (rows[:, self.positions] for rows in self.data)


class FileStamp(NamedTuple):
    """What tells whether a file has been replaced or written to: its identity, size and time."""

    device: int
    inode: int
    size: int
    modified: int

    @classmethod
    def of(cls, file: Any) -> FileStamp | None:
        """Return the stamp of a file; None if there is no such file."""
        try:
            found = Path(file).stat()
        except OSError:
            return None
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


def _check_stamp(name: str, now: FileStamp | None, before: FileStamp | None) -> None:
    """Raise an error that calls the file `name` if its stamps before and after reading differ."""
    if now != before:
        raise ValueError(
            f"{name} has changed while it was read: its file was replaced, removed or written to. "
            "Read it again when nobody writes to it."
        )


class RawBlocks(RowBlocks):
    """Rows that lie one after the other in a file of numbers: an NPY file.

    The blocks are read from the file and not through a mapping of it into memory. So the pages of
    the file do not count as memory of the process, and a file that becomes shorter raises an error,
    where reading its mapping would end the process.
    """

    is_dense = True

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
            raise ValueError(NO_NUMBERS.format(name, dtype))
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
        self._stamp = FileStamp.of(file)

    def read(self) -> Iterator[Any]:
        """Yield the rows of the file in blocks."""
        assert self.n_rows is not None, "the header contains the number of rows"
        row_bytes = self.n_features * self.stored.itemsize
        step = max(1, self.rows_per_block)
        with self.file.open("rb", buffering=0) as stream:
            stream.seek(self.offset + self.first_row * row_bytes)
            for start in range(self.first_row, self.n_rows, step):
                count = min(step, self.n_rows - start)
                block = np.empty((count, self.n_features), dtype=self.stored)
                found = 0
                for part in _parts_of_rows(block, row_bytes):
                    found += _fill(stream, part.reshape(-1).view(np.uint8).data) // row_bytes
                    self.report(start - self.first_row + found)
                if found < count:
                    raise ValueError(shrunk(self.name, self.n_rows, start + found))
                yield block

    def check_unchanged(self) -> None:
        """Raise an error if the file has been replaced or written to since it was opened."""
        _check_stamp(self.name, FileStamp.of(self.file), self._stamp)


def _parts_of_rows(block: Any, row_bytes: int) -> Iterator[Any]:
    """Yield views of consecutive rows of a block, of about a mebibyte each."""
    step = max(1, COPIED_BYTES // max(1, row_bytes))
    return (block[start : start + step] for start in range(0, len(block), step))


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
    """Return the rows of an NPY file, read in blocks."""
    name = repr(file.name)
    try:
        array = np.lib.format.open_memmap(file, mode="r")
    except (ValueError, OSError, EOFError) as error:
        why = str(error).splitlines()[0].rstrip(".")
        raise ValueError(f"{name} is not a complete NPY file of numbers: {why}.") from None
    if not array.flags.c_contiguous:
        return MapBlocks(array, name, flat=flat, first_row=first_row)
    return RawBlocks(
        file, array.dtype, array.shape, array.offset, name=name, flat=flat, first_row=first_row
    )


def blocks_of_map(
    array: np.memmap[Any, Any], name: str, *, flat: bool = False, first_row: int = 0
) -> RowBlocks:
    """Return the blocks of a memory map, which messages call `name`, from row `first_row` on.

    If `flat`, the map may be a vector.
    """
    return MapBlocks(array, name, flat=flat, first_row=first_row)


class MapBlocks(ArrayBlocks):
    """Blocks of rows of a memory map, copied from it in small parts.

    The rows come from the file that was mapped, also if another file has its name now. Before each
    part is copied, the size of the file is compared, because reading a page behind its end would
    end the process. At the end of a pass, the file must be the one of the beginning; if the map is
    writable, the time of its last change does not count.
    """

    array: np.memmap[Any, Any]

    def __init__(
        self, array: np.memmap[Any, Any], name: str, *, flat: bool = False, first_row: int = 0
    ) -> None:
        if array.dtype.kind not in "buif":
            raise ValueError(NO_NUMBERS.format(name, array.dtype))
        _refuse_short_map(array[:1], name, array)
        super().__init__(array, name, flat=flat, first_row=first_row)

    def read(self) -> Iterator[Any]:
        """Yield copies of consecutive rows of the map."""
        before, done = self._stamp(), 0
        for block in super().read():
            yield self._copied(block, done)
            done += len(block)
            forget_pages(self.array)
        _check_stamp(self.name, self._stamp(), before)

    def _copied(self, block: Any, done: int) -> Any:
        """Return a copy of some rows of the map, made in parts of about a mebibyte.

        `done` is the number of rows that were copied before.
        """
        rows = np.empty(block.shape, dtype=block.dtype)
        start = 0
        for part in _parts_of_rows(block, block[:1].nbytes):
            _refuse_short_map(part, self.name, self.array)
            rows[start : start + len(part)] = part
            start += len(part)
            self.report(done + start)
        return rows

    def _stamp(self) -> FileStamp | None:
        """Return the stamp of the file that has the name of the mapped one; None without a name."""
        file = self.array.filename
        found = None if file is None else FileStamp.of(file)
        is_writable = self.array.mode != "r"
        return found._replace(modified=0) if found is not None and is_writable else found


def _refuse_short_map(part: Any, name: str, whole: np.memmap[Any, Any]) -> None:
    """Raise an error if the rows `part` of a memory map are behind the present end of its file.

    `name` is the name of the map in the message, and `whole` are all its rows.
    """
    if missing_bytes(part) == 0:
        return
    missing = missing_bytes(whole)
    found = len(whole) - math.ceil(missing * len(whole) / whole.nbytes)
    raise ValueError(shrunk(name, len(whole), max(0, found)))


class ParquetBlocks(RowBlocks):
    """The columns of numbers of a Parquet file, read by pyarrow batch by batch.

    The columns are chosen as by `lucidae.io.tables.read_table`: an index that pandas wrote is left
    out unless it has a name and the user chose it.
    """

    def __init__(self, file: Path, *, flat: bool, first_row: int, options: Any = None) -> None:
        parquet, self._errors = _pyarrow()
        name = repr(file.name)
        self._stamp = FileStamp.of(file)
        try:
            with parquet.ParquetFile(file) as opened:
                schema, n_rows = opened.schema_arrow, opened.metadata.num_rows
        except self._errors as error:
            raise ValueError(f"{name} is not a Parquet file: {_first_line(error)}.") from None
        self.all_names, names, self.left_out = _chosen_fields(file.name, schema, options)
        single = all(schema.field(name).type == "float" for name in names)
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
        assert self.n_rows is not None, "the file contains the number of rows"
        if self.n_rows <= self.rows_per_block:
            yield self.rows_of_groups(None, self.n_rows)[self.first_row :]
            return
        skip = self.first_row
        for batch in self._batches():
            if skip < batch.num_rows:
                yield self._numbers(batch.slice(skip))
            skip = max(0, skip - batch.num_rows)

    def check_unchanged(self) -> None:
        """Raise an error if the file has been replaced or written to since it was opened."""
        _check_stamp(self.name, FileStamp.of(self.file), self._stamp)

    def group_lengths(self) -> list[int]:
        """Return the number of rows of each row group of the file."""
        parquet, _ = _pyarrow()
        with parquet.ParquetFile(self.file) as opened:
            about = opened.metadata
            return [about.row_group(at).num_rows for at in range(about.num_row_groups)]

    def rows_of_groups(self, groups: Sequence[int] | None, n_rows: int) -> Any:
        """Return the rows of some row groups, given by their numbers; missing values are NaN.

        `n_rows` is the number of rows that they have together. None means all row groups.
        """
        rows = np.empty((n_rows, self.n_features), dtype=self.dtype)
        done = 0
        for batch in self._batches(None if groups is None else list(groups)):
            rows[done : done + batch.num_rows] = self._numbers(batch)
            done += batch.num_rows
            self.report(max(0, done - self.first_row))
        if done != n_rows:
            raise ValueError(shrunk(self.name, n_rows, done))
        return rows

    def _batches(self, groups: list[int] | None = None) -> Iterator[Any]:
        """Yield batches of pyarrow, of all row groups or of those with the given numbers.

        A file of at most one block is read in several batches, so that its progress can be shown.
        """
        parquet, _ = _pyarrow()
        columns = list(self.feature_names or ())
        assert self.n_rows is not None, "the file contains the number of rows"
        size = self.rows_per_block
        size = size if self.n_rows > size else -(-self.n_rows // PARTS)
        try:
            with parquet.ParquetFile(self.file, **STREAMED) as opened:
                yield from opened.iter_batches(size, groups, columns)
        except self._errors as error:
            raise ValueError(
                f"{self.name} cannot be read to its end: {_first_line(error)}. It has changed "
                "while it was read, or it is damaged: read it again, or replace it."
            ) from None

    def _numbers(self, batch: Any) -> Any:
        """Return a batch of pyarrow as an array of floating numbers; missing values are NaN."""
        block = np.empty((batch.num_rows, self.n_features), dtype=self.dtype)
        for index, column in enumerate(batch.columns):
            # Integers with missing values are converted to doubles, in which these are NaN.
            block[:, index] = column.cast(
                "double" if self.dtype == np.float64 else "float"
            ).fill_null(np.nan)
        return block


def _pyarrow() -> tuple[Any, tuple[type[Exception], ...]]:
    """Return the module `pyarrow.parquet`, and the types of errors that it raises for bad files."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as parquet
    except ImportError:
        raise ValueError("Reading Parquet needs pyarrow: pip install pyarrow") from None
    return parquet, (pa.ArrowException, OSError)


def _chosen_fields(
    file: str, schema: Any, options: Any
) -> tuple[tuple[str, ...], tuple[str, ...], dict[str, str]]:
    """Return the names of all columns, the names of those to read, and why others are left out.

    `schema` is the schema of the Parquet file, and `options` name the columns to read, if any.
    """
    stored = (schema.pandas_metadata or {}).get("index_columns", ())
    index = [name for name in stored if isinstance(name, str)]
    named = [name for name in index if not UNNAMED_INDEX.fullmatch(name)]
    every = [*named, *(name for name in schema.names if name not in index)]
    reasons = {
        name: f"its entries are of type {schema.field(name).type}"
        for name in every
        if not _is_number(schema.field(name).type)
    }
    if options is not None and options.columns:
        from lucidae.io.tables import positions

        wanted = (*options.columns, *options.targets)
        asked = [every[at] for at in dict.fromkeys(positions(wanted, every, file))]
        for name in asked:
            if name in reasons:
                raise ValueError(f"{file!r} has no numeric column {name!r}: {reasons[name]}.")
        return tuple(every), tuple(asked), {}
    numeric = [name for name in every if name not in reasons]
    if named and named[0] in numeric and len(numeric) > 1:
        numeric.remove(named[0])
        reasons[named[0]] = "it is the index of the rows"
    return tuple(every), tuple(numeric), reasons


def _is_number(kind: Any) -> bool:
    import pyarrow.types as types

    return any(is_kind(kind) for is_kind in (types.is_integer, types.is_floating, types.is_boolean))


def _blocks_of_text(file: Path, *, flat: bool, first_row: int, options: Any) -> RowBlocks:
    """Return the rows of a text file, read in blocks; this needs pandas."""
    try:
        from lucidae.data.text import TextBlocks
    except ImportError:
        raise ValueError("Reading CSV needs pandas: pip install pandas") from None
    return TextBlocks(file, flat=flat, first_row=first_row, options=options)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


class _StoredArray:
    """A data set of an HDF5 file, opened for each slice, so that no file stays open."""

    def __init__(self, file: Path, key: str, shape: Any, dtype: Any, chunks: Any) -> None:
        self.file, self.key, self.shape, self.dtype = file, key, shape, dtype
        self.chunks = chunks
        self._stamp = FileStamp.of(file)

    def __getitem__(self, rows: slice) -> Any:
        import h5py

        try:
            with h5py.File(self.file, "r") as opened:
                found = opened[self.key][rows]
        except (OSError, KeyError) as error:
            raise ValueError(
                f"{self.file.name!r} cannot be read to its end: {_first_line(error)}. It has "
                "changed while it was read, or it is damaged: read it again, or replace it."
            ) from None
        _check_stamp(repr(self.file.name), FileStamp.of(self.file), self._stamp)
        return found


def _blocks_of_hdf5(file: Path, *, flat: bool, first_row: int) -> RowBlocks:
    """Return the rows of the only two-dimensional data set of an HDF5 file, read in blocks."""
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
    """Return the rows of a Zarr array in a folder, read in blocks."""
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
    return _ZarrBlocks(opened, repr(file.name), flat=flat, first_row=first_row)


class _ZarrBlocks(ArrayBlocks):
    """A Zarr array in a folder. Zarr reads a missing chunk as zeros, without an error."""

    def read(self) -> Iterator[Any]:
        """Yield slices of rows; raise an error at the end if chunks were removed while reading."""
        before = self.array.nchunks_initialized
        yield from super().read()
        after = self.array.nchunks_initialized
        if after < before:
            raise ValueError(
                f"{self.name} had {before} stored chunks, but has {after} after it was read: it "
                "has changed while it was read. Read it again when nobody writes to it."
            )


def _only(arrays: list[Any], file: Path, advice: str) -> Any:
    """Return the only array of a file; another number of arrays is an error.

    `arrays` are all arrays of the file, and `advice` says in the error how to give one of them.
    """
    if len(arrays) != 1:
        raise ValueError(
            f"{file.name!r} contains {len(arrays)} tables, expected exactly one: give the array to "
            f"be read instead of the file, {advice}."
        )
    return arrays[0]


FILES: dict[str, Callable[..., RowBlocks]] = {
    ".npy": _with_options(_blocks_of_npy),
    ".parquet": ParquetBlocks,
    ".csv": _blocks_of_text,
    ".tsv": _blocks_of_text,
    ".txt": _blocks_of_text,
    ".h5": _with_options(_blocks_of_hdf5),
    ".hdf5": _with_options(_blocks_of_hdf5),
    ".zarr": _with_options(_blocks_of_zarr),
}
"""Functions that return the blocks of a file, by the suffix of the file."""
