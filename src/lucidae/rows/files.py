"""Files of numbers, read in blocks: text, Parquet, NPY, NPZ, HDF5, AnnData, Zarr, memory maps.

`fit`, the command and the report read files by these functions only. Every problem with a file is a
`ValueError` of one sentence that names the file.
"""

from __future__ import annotations

import math
import os
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from lucidae.columns import (
    EMPTY,
    FIRST_ROWS,
    NUMERIC,
    Column,
    MissingValues,
    column_numbers,
    judge,
    refuse_bad_cells,
)
from lucidae.io import (
    EXPANSION,
    SMALL,
    array_header,
    open_member,
    read_member,
    reason_of,
    require_size,
)
from lucidae.rows.blocks import (
    ArrayBlocks,
    RowBlocks,
    concatenated,
    float_reference,
    refuse_bad_entries,
    shrunk,
)
from lucidae.rows.tables import (
    ChosenColumns,
    ReadOptions,
    Table,
    choose_columns,
    default_names,
    image_shape_from_names,
    some,
)
from lucidae.validation import forget_pages, install_command, missing_bytes, warn_user

__all__ = [
    "FILES",
    "STREAMED",
    "MapBlocks",
    "blocks_of_file",
    "load_file",
    "read_table",
    "rows_of_file",
    "target_options",
    "warn_of_reading",
]

UNNAMED_INDEX = re.compile(r"__index_level_\d+__")
"""Names under which pandas stores an index without a name."""

NO_NUMBERS = "{} contains values of type {}, expected real numbers. Convert them first."
"""Error message for the name of data, and their type, that are not real numbers."""

PAGES: dict[str, Any] = {"pre_buffer": False, "buffer_size": 2**16}
"""Arguments with which pyarrow reads a Parquet file page by page. By default it keeps all that it
has read, and reads whole row groups."""

SPREADSHEETS = (".xls", ".xlsx", ".xlsm", ".ods", ".numbers")
DATA_NAMES = ("X", "x", "data", "features")
TARGET_NAMES = ("y", "Y", "target", "targets")
"""Names under which the array of targets is looked for in an NPZ archive, the preferred one first.

`DATA_NAMES` are those of the array of features."""


def blocks_of_file(
    path: Any, *, flat: bool = False, first_row: int = 0, options: ReadOptions | None = None
) -> RowBlocks:
    """Return the blocks of a file, recognised by its suffix, from row `first_row` on.

    If `flat`, the file contains targets or weights, and may be a vector. The attribute `chosen` of
    the result says which columns of the file are read.
    """
    file = Path(path)
    suffix = file.suffix.lower()
    if not file.exists():
        raise ValueError(f"There is no file {str(file)!r}: check the path.")
    if file.is_dir() and suffix != ".zarr":
        raise ValueError(f"{str(file)!r} is a folder: give the path of a file in it.")
    if not (file.is_file() or file.is_dir()):
        raise ValueError(
            f"{str(file)!r} is a pipe or a device, which cannot be read twice: write its content "
            "to a file first, and give the path of this file."
        )
    reader = FILES.get(suffix)
    if reader is None:
        sheet = "Save the sheet as CSV, or give pandas.read_excel(path)."
        advice = f" {sheet}" if suffix in SPREADSHEETS else ""
        raise ValueError(
            f"{file.name!r} has the suffix {file.suffix!r}, expected one of "
            f"{', '.join(sorted(FILES))}.{advice}"
        )
    options = options or ReadOptions()
    if reader is not _blocks_of_text and options != options.without_layout():
        raise ValueError(
            f"{file.name!r} is not a text file, so that it has neither a header line nor a decimal "
            "sign: leave out header and decimal."
        )
    return reader(file, flat=flat, first_row=first_row, options=options)


def target_options(options: ReadOptions, file: Path) -> ReadOptions:
    """Return the options for a second file, with the targets: all columns of it are read."""
    plain = replace(options, columns=(), targets=())
    return plain if FILES.get(file.suffix.lower()) is _blocks_of_text else plain.without_layout()


def warn_of_reading(data: RowBlocks) -> None:
    """Warn of columns of a file that are left out, and of what may be read in another way."""
    left_out = {} if data.chosen is None else data.chosen.left_out
    reasons = [f"{name!r} ({why})" for name, why in left_out.items()]
    if reasons:
        warn_user(
            f"Columns of {data.name} were left out: {some(reasons)}; lucidae.datasets.read_table("
            "path, columns=…) reads the columns that you choose."
        )
    if data.doubt:
        warn_user(f"{data.name}: {data.doubt}.")


def read_table(
    path: Any, options: ReadOptions | None = None, *, target: bool = False, missing: bool = False
) -> Table:
    """Return a file as a table in memory; all entries must be finite, unless `missing` is true.

    If `target`, the file contains targets: a vector becomes one column, and an NPZ archive is
    searched for an array named y.
    """
    data, values = load_file(path, options, flat=target, missing=missing)
    assert data.chosen is not None, "a file has columns"
    if len(values) < 2:
        raise ValueError(f"{data.name} contains 1 row; at least two rows are needed.")
    names = data.chosen.names
    image_shape = data.image_shape or image_shape_from_names(names)
    table = Table(
        Path(path).name,
        values,
        names,
        image_shape,
        data.chosen.left_out,
        header=data.header,
        is_named=data.feature_names is not None,
    )
    targets = [names[at] for at in data.chosen.targets]
    return table.with_target(targets) if targets else table


def load_file(
    path: Any, options: ReadOptions | None = None, *, flat: bool = False, missing: bool = False
) -> tuple[RowBlocks, Any]:
    """Return the blocks of a file and all its rows; NaN is an error unless `missing` is true.

    A file that states a content much larger than its own size allows is refused before it is read.
    """
    file = Path(path)
    try:
        data = blocks_of_file(file, flat=flat, options=options)
        rows = concatenated(list(_loadable_rows(data, file, missing)))
        return data, rows.toarray() if scipy.sparse.issparse(rows) else rows
    except MemoryError:
        raise ValueError(
            f"{file.name!r} is too large for the memory of this computer; give fewer rows or "
            "columns."
        ) from None


def _loadable_rows(data: RowBlocks, file: Path, missing: bool) -> Iterator[Any]:
    """Yield the rows of a file if they fit its size."""
    if data.n_rows is not None and file.is_file():
        try:
            limit = max(SMALL, EXPANSION * file.stat().st_size)
            require_size(data.n_rows * data.n_features * data.item_bytes, limit)
        except ValueError as error:
            raise ValueError(f"{data.name} cannot be loaded: {error}.") from None
    for block in data.blocks():
        if not missing:
            refuse_bad_entries(block, data.name, data.feature_names)
        yield block.rows


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


def _with_columns(
    data: RowBlocks, options: ReadOptions, names: tuple[str, ...] | None = None
) -> RowBlocks:
    """Return the blocks of an array in a file, with the columns that the user chose.

    Columns without names are given by their 0-based indices.
    """
    if names is None:
        names = default_names(data.n_features)
    else:
        data.named(names)
    numeric = [NUMERIC] * data.n_features
    chosen = choose_columns(data.name.strip("'"), names, numeric, options)
    if options.columns or options.missing_values:
        return ChosenBlocks(data, chosen, MissingValues(options.missing_values))
    data.chosen = chosen
    return data


class ChosenBlocks(RowBlocks):
    """Blocks of rows of an array with some columns only, and NaN for values that mean none."""

    chosen: ChosenColumns

    def __init__(self, data: RowBlocks, chosen: ChosenColumns, missing: MissingValues) -> None:
        self.data, self.chosen, self.missing = data, chosen, missing
        self.image_shape = data.image_shape
        super().__init__(
            data.name,
            len(chosen.names),
            data.reference,
            n_rows=data.n_rows,
            feature_names=chosen.names,
            first_row=data.first_row,
        )

    def read(self) -> Iterator[Any]:
        """Yield blocks of the chosen columns."""
        for rows in self.data:
            yield self.missing.removed_from(rows[:, self.chosen.positions].copy())


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
        is_vector = _check_array(name, shape, dtype, flat=flat)
        super().__init__(
            name,
            math.prod(shape[1:]),
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
        with self.file.open("rb") as stream:
            stream.seek(self.offset + self.first_row * self.n_features * self.stored.itemsize)
            for start in range(self.first_row, self.n_rows, self.rows_per_block):
                count = min(self.rows_per_block, self.n_rows - start)
                entries = np.fromfile(stream, self.stored, count * self.n_features)
                if len(entries) < count * self.n_features:
                    found = start + len(entries) // self.n_features
                    raise ValueError(shrunk(self.name, self.n_rows, found))
                yield entries.reshape(count, self.n_features)

    def check_unchanged(self) -> None:
        """Raise an error if the file has been replaced or written to since it was opened."""
        _check_stamp(self.name, FileStamp.of(self.file), self._stamp)


def _blocks_of_npy(file: Path, *, flat: bool, first_row: int, options: ReadOptions) -> RowBlocks:
    """Return the rows of an NPY file, read in blocks; each image of a stack is one row."""
    name = repr(file.name)
    if zipfile.is_zipfile(file):
        raise ValueError(f"{name} is an NPZ archive; rename it to end in '.npz'.")
    try:
        with file.open("rb") as stream:
            shape, in_columns, dtype = array_header(stream)
            offset = stream.tell()
        require_size(math.prod(shape) * dtype.itemsize, file.stat().st_size - offset)
    except Exception as error:  # NumPy raises many kinds of errors for damaged files
        raise ValueError(
            f"{name} is not a complete NPY file of numbers: {reason_of(error)}."
        ) from None
    data: RowBlocks
    if in_columns and len(shape) < 3:
        array = np.lib.format.open_memmap(file, mode="r")
        data = MapBlocks(array, name, flat=flat, first_row=first_row)
    elif in_columns:
        return _blocks_of_array(np.load(file), name, flat, first_row, options)
    else:
        data = RawBlocks(file, dtype, shape, offset, name=name, flat=flat, first_row=first_row)
    data.image_shape = _image_shape(shape, options)
    return _with_columns(data, options)


def _blocks_of_npz(file: Path, *, flat: bool, first_row: int, options: ReadOptions) -> RowBlocks:
    """Return the rows of one array of an NPZ archive: the only one, or the one named X.

    If `flat`, the name is y. The array is loaded, because it may be compressed.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            name = _name_to_read(file.name, archive, members, TARGET_NAMES if flat else DATA_NAMES)
            limit = max(SMALL, EXPANSION * file.stat().st_size)
            array = read_member(archive, members[name], limit)
    except ChoiceError:
        raise
    except Exception as error:  # see `lucidae.io.read_arrays`
        raise ValueError(
            f"{file.name!r} is not an NPZ file of numbers: {reason_of(error)}."
        ) from error
    return _blocks_of_array(array, repr(file.name), flat, first_row, options)


class ChoiceError(ValueError):
    """Error raised if it is not clear which array of an NPZ archive is to be read."""


def _name_to_read(
    file: str, archive: zipfile.ZipFile, members: Mapping[str, Any], preferred: Sequence[str]
) -> str:
    """Return the name of the array to read from an NPZ archive, or raise a `ChoiceError`.

    Arrays with fewer than two axes (one for targets) are not considered.
    """
    tables = []
    for name, info in members.items():
        with open_member(archive, info) as entry:
            if len(array_header(entry)[0]) >= (1 if preferred is TARGET_NAMES else 2):
                tables.append(name)
    found = [name for name in preferred if name in tables] or tables
    if {"indptr", "indices", "data"} <= members.keys():
        raise ChoiceError(
            f"{file!r} contains a sparse matrix of SciPy: give scipy.sparse.load_npz(path) instead "
            "of the file."
        )
    if not found or (len(found) > 1 and found[0] not in preferred):
        raise ChoiceError(
            f"{file!r} contains the arrays {some([*members]) or '(none)'}, of which {len(tables)} "
            f"can be read as a table; expected exactly one such array, or one named "
            f"{preferred[0]!r}."
        )
    return found[0]


def _blocks_of_array(
    array: Any, name: str, flat: bool, first_row: int, options: ReadOptions
) -> RowBlocks:
    """Return the rows of an array of a file that was loaded; each image of a stack is one row."""
    _check_array(name, array.shape, array.dtype, flat=flat)
    rows = array if array.ndim < 3 else array.reshape(len(array), math.prod(array.shape[1:]))
    data = ArrayBlocks(rows, name, flat=flat, first_row=first_row)
    data.image_shape = _image_shape(array.shape, options)
    return _with_columns(data, options)


def _check_array(name: str, shape: tuple[int, ...], dtype: Any, *, flat: bool) -> bool:
    """Return whether an array of a file is a vector, which is an error unless `flat`."""
    is_vector = len(shape) == 1
    if not shape or (is_vector and not flat):
        raise ValueError(
            f"{name} has shape {shape}, expected rows and columns, (n_samples, n_features), or "
            "(n_samples, height, width) for images."
        )
    if dtype.kind not in "buif":
        raise ValueError(NO_NUMBERS.format(name, dtype))
    for axis, what in ((0, "row"), (1, "column")):
        if 0 in shape[axis : axis + 1]:
            raise ValueError(f"{name} contains no {what}s: at least one {what} is needed.")
    return is_vector


def _image_shape(shape: tuple[int, ...], options: ReadOptions) -> tuple[int, int] | None:
    """Return height and width of the images in an array, if all columns are read."""
    return (shape[1], shape[2]) if len(shape) == 3 and not options.columns else None


class MapBlocks(ArrayBlocks):
    """Blocks of rows of a memory map, which messages call `name`, copied from it.

    The rows come from the file that was mapped, also if another file has its name now. Before each
    block is copied, the size of the file is compared, because reading a page behind its end would
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
        before = self._stamp()
        for block in super().read():
            _refuse_short_map(block, self.name, self.array)
            yield np.array(block, subok=False)
            forget_pages(self.array)
        _check_stamp(self.name, self._stamp(), before)

    def _stamp(self) -> FileStamp | None:
        """Return the stamp of the file that has the name of the mapped one; None without a name."""
        file = self.array.filename
        found = None if file is None else FileStamp.of(file)
        is_writable = self.array.mode != "r"
        return found._replace(modified=0) if found is not None and is_writable else found


def _refuse_short_map(part: Any, name: str, whole: np.memmap[Any, Any]) -> None:
    """Raise an error if the rows `part` of a memory map are behind the present end of its file."""
    if missing_bytes(part) == 0:
        return
    missing = missing_bytes(whole)
    found = len(whole) - math.ceil(missing * len(whole) / whole.nbytes)
    raise ValueError(shrunk(name, len(whole), max(0, found)))


class ParquetBlocks(RowBlocks):
    """The columns of numbers of a Parquet file, read by pyarrow batch by batch.

    An index that pandas wrote is left out unless it has a name and the user chose it.
    """

    chosen: ChosenColumns

    def __init__(self, file: Path, *, flat: bool, first_row: int, options: ReadOptions) -> None:
        name = repr(file.name)
        self._stamp = FileStamp.of(file)
        self.missing = MissingValues(options.missing_values)
        parquet = _pyarrow()
        try:
            with parquet.ParquetFile(file) as opened:
                schema, about = opened.schema_arrow, opened.metadata
                if len(set(schema.names)) < len(schema.names):
                    raise ValueError("several columns have the same name")
                names, judged, index = _judged_fields(opened, self.missing)
        except Exception as error:  # pyarrow raises many kinds of errors for damaged files
            raise ValueError(f"{name} cannot be read as Parquet: {reason_of(error)}.") from None
        self.chosen = choose_columns(file.name, names, judged, options, index)
        self.judged = [judged[at] for at in self.chosen.positions]
        texts = [repr(name) for name in self.chosen.names if _has_cells(schema.field(name).type)]
        self.doubt = f"columns of text were read as numbers: {some(texts)}" if texts else ""
        single = all(schema.field(name).type == "float" for name in self.chosen.names)
        super().__init__(
            name,
            len(self.chosen.names),
            float_reference(np.float32 if single else np.float64),
            n_rows=about.num_rows,
            feature_names=self.chosen.names,
            flat=flat and len(self.chosen.names) == 1,
            first_row=first_row,
        )
        self.file = file

    def read(self) -> Iterator[Any]:
        """Yield batches of rows; missing values are NaN."""
        skip, row = self.first_row, 0
        for batch in self._batches():
            if skip < batch.num_rows:
                yield self._numbers(batch.slice(skip), row + skip)
            skip, row = max(0, skip - batch.num_rows), row + batch.num_rows

    def check_unchanged(self) -> None:
        """Raise an error if the file has been replaced or written to since it was opened."""
        _check_stamp(self.name, FileStamp.of(self.file), self._stamp)

    def group_lengths(self) -> list[int]:
        """Return the number of rows of each row group of the file."""
        with _pyarrow().ParquetFile(self.file) as opened:
            about = opened.metadata
            return [about.row_group(at).num_rows for at in range(about.num_row_groups)]

    def rows_of_groups(self, groups: list[int], n_rows: int) -> Any:
        """Return the rows of some row groups, given by their numbers; missing values are NaN."""
        parts = [self._numbers(batch, None) for batch in self._batches(groups)]
        rows = np.concatenate([np.empty((0, self.n_features), dtype=self.dtype), *parts])
        if len(rows) != n_rows:
            raise ValueError(shrunk(self.name, n_rows, len(rows)))
        return rows

    def _batches(self, groups: list[int] | None = None) -> Iterator[Any]:
        """Yield batches of pyarrow, of all row groups or of those with the given numbers."""
        columns = list(self.feature_names or ())
        try:
            with _pyarrow().ParquetFile(self.file, **PAGES) as opened:
                yield from opened.iter_batches(self.rows_per_block, groups, columns)
        except MemoryError:
            raise
        except Exception as error:
            raise ValueError(
                f"{self.name} cannot be read to its end: {reason_of(error)}. It has changed "
                "while it was read, or it is damaged: read it again, or replace it."
            ) from None

    def _numbers(self, batch: Any, row: int | None) -> Any:
        """Return a batch of pyarrow as an array of floating numbers; missing values are NaN.

        `row` is the number of its first row in the file; None if it is not known.
        """
        block = np.empty((batch.num_rows, self.n_features), dtype=self.dtype)
        for index, (column, judged) in enumerate(zip(batch.columns, self.judged, strict=True)):
            if _has_cells(column.type):
                cells = column.to_pylist()
                block[:, index], bad = column_numbers(cells, judged.is_truth, missing=self.missing)
                if bad:
                    refuse_bad_cells(self.name, self.chosen.names[index], bad, judged, row)
                continue
            # Integers with missing values are converted to doubles, in which these are NaN.
            # Integers above 2**53 are rounded, as everywhere in NumPy and pandas.
            values = column.cast("double" if self.dtype == np.float64 else "float", safe=False)
            block[:, index] = values.fill_null(np.nan)
        return self.missing.removed_from(block)


def _pyarrow() -> Any:
    """Return the module `pyarrow.parquet`."""
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise ValueError("Reading Parquet needs pyarrow: pip install pyarrow") from None
    return parquet


def _judged_fields(
    opened: Any, missing: MissingValues
) -> tuple[list[str], list[Column], Sequence[int]]:
    """Return the names of the columns of a Parquet file, and what each of them contains.

    The last result are the positions of index columns that have a name.
    """
    import pyarrow.types as types

    schema, about = opened.schema_arrow, opened.metadata
    stored = (schema.pandas_metadata or {}).get("index_columns", ())
    index = [name for name in stored if isinstance(name, str)]
    named = [name for name in index if not UNNAMED_INDEX.fullmatch(name)]
    names = [*named, *(name for name in schema.names if name not in index)]
    leaves = {about.schema.column(at).path: at for at in range(about.num_columns)}
    groups = [about.row_group(at) for at in range(about.num_row_groups)]

    def judged(name: str) -> Column:
        kind = schema.field(name).type
        if _has_cells(kind):
            batches = opened.iter_batches(FIRST_ROWS, columns=[name])
            columns = (judge(batch.column(0).to_pylist(), missing=missing) for batch in batches)
            return next((column for column in columns if column is not EMPTY), EMPTY)
        numbers = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal)
        if not any(is_kind(kind) for is_kind in numbers):
            what = "categories" if types.is_dictionary(kind) else f"of type {kind}"
            return Column(reason=f"its entries are {what}")
        parts = [group.column(leaves[name]) for group in groups]
        counts = [part.statistics.null_count if part.statistics else None for part in parts]
        is_empty = counts == [group.num_rows for group in groups]
        return EMPTY if groups and is_empty else NUMERIC

    return names, [judged(name) for name in names], range(len(named))


def _has_cells(kind: Any) -> bool:
    """Tell whether a type of Arrow is one of text, or of missing values only."""
    return str(kind).startswith(("string", "large_string", "null"))


def _blocks_of_text(file: Path, *, flat: bool, first_row: int, options: ReadOptions) -> RowBlocks:
    """Return the rows of a text file, read in blocks; this needs pandas."""
    try:
        from lucidae.rows.text import TextBlocks
    except ImportError:
        raise ValueError("Reading CSV needs pandas: pip install pandas") from None
    return TextBlocks(file, flat=flat, first_row=first_row, options=options)


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
                found = self.rows_of(opened[self.key], rows)
        except (OSError, KeyError) as error:
            raise ValueError(
                f"{self.file.name!r} cannot be read to its end: {reason_of(error)}. It has "
                "changed while it was read, or it is damaged: read it again, or replace it."
            ) from None
        _check_stamp(repr(self.file.name), FileStamp.of(self.file), self._stamp)
        return found

    def rows_of(self, stored: Any, rows: slice) -> Any:
        """Return some rows of the data set."""
        return stored[rows]


class _StoredSparse(_StoredArray):
    """A sparse matrix of an AnnData file, opened for each slice."""

    format = "csr"

    def rows_of(self, stored: Any, rows: slice) -> Any:
        """Return some rows of the matrix."""
        from anndata.io import sparse_dataset

        return sparse_dataset(stored)[rows]


def _blocks_of_h5ad(file: Path, *, flat: bool, first_row: int, options: ReadOptions) -> RowBlocks:
    """Return the rows of the matrix X of an AnnData file, read in blocks."""
    try:
        import h5py
        from anndata.io import read_elem, sparse_dataset
    except ImportError:
        raise ValueError(f"Reading .h5ad needs anndata: {install_command('anndata')}") from None
    try:
        with h5py.File(file, "r") as opened:
            names = tuple(map(str, read_elem(opened["var"]).index))
            stored = opened["X"]
            is_sparse = isinstance(stored, h5py.Group)
            matrix = sparse_dataset(stored) if is_sparse else stored
            kind = _StoredSparse if is_sparse else _StoredArray
            array = kind(file, "X", matrix.shape, matrix.dtype, getattr(matrix, "chunks", None))
            if is_sparse and matrix.format == "csc":
                array = matrix.to_memory().tocsr()
    except (OSError, KeyError) as error:
        raise ValueError(
            f"{file.name!r} is not an AnnData file with a matrix X: {reason_of(error)}."
        ) from None
    data = ArrayBlocks(array, repr(file.name), flat=flat, first_row=first_row)
    return _with_columns(data, options, names)


def _blocks_of_hdf5(file: Path, *, flat: bool, first_row: int, options: ReadOptions) -> RowBlocks:
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
        raise ValueError(f"{file.name!r} is not an HDF5 file: {reason_of(error)}.") from None
    array = _only(stored, file, "h5py.File(path)[name]")
    data = ArrayBlocks(array, repr(file.name), flat=flat, first_row=first_row)
    return _with_columns(data, options)


def _blocks_of_zarr(file: Path, *, flat: bool, first_row: int, options: ReadOptions) -> RowBlocks:
    """Return the rows of a Zarr array in a folder, read in blocks."""
    try:
        import zarr
    except ImportError:
        raise ValueError("Reading Zarr needs zarr: pip install zarr") from None
    try:
        opened = zarr.open(os.fspath(file), mode="r")
    except Exception as error:
        raise ValueError(f"{file.name!r} is not a Zarr array: {reason_of(error)}.") from None
    if not hasattr(opened, "shape"):
        arrays = [a for _, a in opened.arrays() if a.ndim == 2 or (flat and a.ndim == 1)]
        opened = _only(arrays, file, "zarr.open(path)[name]")
    data = _ZarrBlocks(opened, repr(file.name), flat=flat, first_row=first_row)
    return _with_columns(data, options)


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
    """Return the only array of a file; another number of arrays is an error."""
    if len(arrays) != 1:
        raise ValueError(
            f"{file.name!r} contains {len(arrays)} tables, expected exactly one: give the array to "
            f"be read instead of the file, {advice}."
        )
    return arrays[0]


FILES: dict[str, Callable[..., RowBlocks]] = {
    ".npy": _blocks_of_npy,
    ".npz": _blocks_of_npz,
    ".parquet": ParquetBlocks,
    ".csv": _blocks_of_text,
    ".tsv": _blocks_of_text,
    ".txt": _blocks_of_text,
    ".h5": _blocks_of_hdf5,
    ".h5ad": _blocks_of_h5ad,
    ".hdf5": _blocks_of_hdf5,
    ".zarr": _blocks_of_zarr,
}
"""Functions that return the blocks of a file, by the suffix of the file."""

STREAMED = frozenset(FILES) - {".npz"}
"""Suffixes of files that are not loaded as a whole."""
