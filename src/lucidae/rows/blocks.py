"""Blocks of rows, the form in which data of every kind are read, with the checks of each block.

A block has about 32 MiB. Data that fit into one block are loaded and treated as an array; of larger
data only a few blocks are in memory at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple, Self

import numpy as np
import scipy.sparse

from lucidae.arrays import Array, is_array, namespace, to_numpy, zeros_like_shape
from lucidae.columns import frame_names
from lucidae.rows.tables import ChosenColumns
from lucidae.validation import check_rows, refuse_text

__all__ = ["ArrayBlocks", "RowBlock", "RowBlocks"]

BLOCK_BYTES = 2**25
"""Size of a block of rows in bytes. Data up to this size are loaded as one array."""

LARGEST_BLOCK = 4
"""A chunk of an HDF5 or Zarr array is read as a whole if it has at most this many times
`BLOCK_BYTES`; parts of larger chunks are decompressed repeatedly."""


class RowBlock(NamedTuple):
    """Checked rows of the data, with their targets and weights if there are any.

    Attributes
    ----------
    rows : array or sparse matrix of shape (n, m)
        Floating numbers, in the library of the data.
    targets : array of shape (n, d) or None
        The targets of these rows.
    weights : array of shape (n,) or None
        The weights of these rows.
    number : int
        Number of the block, from 0.
    first_row : int or None
        Number of the block's first row in the whole data, from 0; None if it is not known, because
        Dask does not know how many rows the chunks before it have.
    """

    rows: Any
    targets: Any
    weights: Any
    number: int
    first_row: int | None

    @property
    def n_rows(self) -> int:
        """Number of rows of the block."""
        return int(self.rows.shape[0])


class RowBlocks(ABC):
    """Data that are read in blocks of rows; `row_blocks` returns one for every kind of data.

    Iteration yields the rows of one block after the other, checked to have the same number of
    columns and the same dtype.

    Parameters
    ----------
    name : str
        What messages call the data, such as ``"X"`` or ``"'rows.parquet'"``.
    n_features : int
        Number of columns.
    reference : array
        An empty array of the library, dtype and device of the blocks.
    n_rows : int, optional
        Number of rows, where it is known before they are read.
    feature_names : tuple of str, optional
        Names of the columns.
    repeatable : bool, default=True
        Whether the data can be read more than once.
    flat : bool, default=False
        Whether the data are a vector, one number per row; its blocks have one column.
    first_row : int, default=0
        Rows before this one are left out.
    """

    chosen: ChosenColumns | None = None  # of a file: which of its columns are read
    header = ""  # of a text file: clause that says whether it has a header
    doubt = ""  # of a text file: clause on the decimal sign, if another one is possible
    image_shape: tuple[int, int] | None = None  # height and width if every row is an image

    def __init__(
        self,
        name: str,
        n_features: int,
        reference: Array,
        *,
        n_rows: int | None = None,
        feature_names: tuple[str, ...] | None = None,
        repeatable: bool = True,
        flat: bool = False,
        first_row: int = 0,
    ) -> None:
        if n_features < 1:
            raise ValueError(f"{name} has no columns: at least one column of numbers is needed.")
        if n_rows == 0:
            raise ValueError(f"{name} contains no rows: at least one row is needed.")
        if n_rows is not None and n_rows - first_row < 1:
            raise ValueError(
                f"{name} has {n_rows} rows, but the first {first_row} rows are to be left out: "
                "give a smaller first_row."
            )
        self.name = name
        self.n_features = n_features
        self.reference = reference
        self.n_rows = n_rows
        self.feature_names = feature_names
        self.repeatable = repeatable
        self.flat = flat
        self.first_row = first_row

    def named(self, names: tuple[str, ...]) -> Self:
        """Return the blocks themselves after their columns were given names."""
        self.feature_names = names
        return self

    @property
    def dtype(self) -> Any:
        """Floating type of the blocks."""
        return self.reference.dtype

    @property
    def n_rows_to_read(self) -> int | None:
        """Number of rows that an iteration yields, or None if it is not known."""
        return None if self.n_rows is None else self.n_rows - self.first_row

    @property
    def is_dense(self) -> bool:
        """Whether the blocks are known not to be sparse, before they are read."""
        return False

    @property
    def rows_per_block(self) -> int:
        """Number of rows that fit into `BLOCK_BYTES` bytes, at least 1."""
        return max(1, BLOCK_BYTES // (self.n_features * self.item_bytes))

    @property
    def item_bytes(self) -> int:
        """Number of bytes of one entry of the rows."""
        return np.dtype(str(self.dtype).rpartition(".")[2]).itemsize

    @abstractmethod
    def read(self) -> Iterator[Any]:
        """Yield the blocks of rows as they are stored, without checks, from row `first_row` on."""

    def blocks(self) -> Iterator[RowBlock]:
        """Yield checked blocks with their position in the data."""
        row = self.first_row
        for index, raw in enumerate(self.read()):
            rows = self.form.checked(raw, index, row)
            if rows is None:
                continue
            yield RowBlock(rows, None, None, index, row)
            row += rows.shape[0]
        if self.n_rows is not None and row != self.n_rows:
            raise ValueError(shrunk(self.name, self.n_rows, row))
        if row == self.first_row:
            raise ValueError(f"{self.name} contains no rows: at least one row is needed.")
        self.check_unchanged()

    def check_unchanged(self) -> None:  # noqa: B027
        """Raise an error if the data are not those that were opened, after they were read."""

    def __iter__(self) -> Iterator[Any]:
        return (block.rows for block in self.blocks())

    @property
    def form(self) -> BlockForm:
        """What all blocks have in common."""
        return BlockForm(self.name, self.n_features, self.reference, self.flat)

    def __repr__(self) -> str:
        rows = "?" if self.n_rows is None else self.n_rows
        return f"{type(self).__name__}({self.name}: {rows} rows of {self.n_features} columns)"


class BlockForm(NamedTuple):
    """What all blocks of some data have in common; a Dask worker gets it to check its chunks."""

    name: str  # what messages call the data
    n_features: int
    reference: Array  # an empty array of the library and dtype of the blocks
    flat: bool = False  # whether the data are a vector

    def checked(self, raw: Any, index: int, row: int | None) -> Any:
        """Return a block as floating rows with `n_features` columns; None if it has no rows."""
        rows = floating_rows(raw, self.name, index, row, flat=self.flat)
        if rows is None:
            return None
        if rows.shape[1] != self.n_features:
            raise ValueError(
                f"block {index} of {self.name} has {rows.shape[1]} columns, but {self.n_features} "
                "are expected, as in the first block: all blocks need the same columns."
            )
        dtype = self.reference.dtype
        if rows.dtype != dtype and _has_whole_numbers(raw):  # which have no precision
            if scipy.sparse.issparse(rows):
                rows = rows.astype(dtype)
            elif namespace(rows) is namespace(self.reference):
                rows = namespace(rows).astype(rows, dtype)
        # Chunks of Dask may be of another array library than Dask knows.
        if not self.flat and str(rows.dtype).rpartition(".")[2] != str(dtype).rpartition(".")[2]:
            raise ValueError(
                f"block {index} of {self.name} has dtype {rows.dtype}, but {dtype} is expected, as "
                "in the first block: convert all blocks to the same dtype."
            )
        return rows


def _has_whole_numbers(raw: Any) -> bool:
    """Tell whether a block consists of integers or truth values."""
    raw = np.asarray(raw) if isinstance(raw, list | tuple) else raw
    if is_array(raw):
        return bool(namespace(raw).isdtype(raw.dtype, ("bool", "integral")))
    columns = getattr(raw, "dtypes", None)
    kinds = [getattr(raw, "dtype", None)] if columns is None else list(columns)
    return all(getattr(kind, "kind", "f") in "bui" for kind in kinds)


def shrunk(name: str, expected: int, found: int) -> str:
    """Return the error message for data, such as a file, that end after `found` rows."""
    return (
        f"{name} declares {expected} rows, but ends after {found}: it has changed while it was "
        "read. Read it again when nobody writes to it."
    )


def floating_rows(raw: Any, name: str, index: int, row: int | None, *, flat: bool = False) -> Any:
    """Return a block of data as a two-dimensional floating array; None if it has no rows.

    If `flat`, a vector is accepted and becomes one column.

    NaN and infinity are not searched for here: they are found in the sums of squares.
    """
    if isinstance(raw, list | tuple):
        raw = np.asarray(raw)
    shape = getattr(raw, "shape", None)
    if shape is not None and len(shape) and shape[0] == 0:
        return None
    if flat and shape is not None and len(shape) == 1:
        raw = (raw if is_array(raw) else np.asarray(raw))[:, None]
    try:
        if type(raw) is not np.ndarray or raw.dtype.kind not in "iuf":
            refuse_text(raw, name)  # which may be read as numbers; all columns are needed
        rows = check_rows(raw, name=name, finite=False, every_column=True)
    except ValueError as error:
        first = str(error).splitlines()[0].rstrip(":")
        place = f"block {index} of {name}" + ("" if row is None else f", from row {row} on")
        raise ValueError(f"{place}: {first}") from None
    return rows


def located(
    error: ValueError, blocks: Sequence[RowBlock], name: str, columns: tuple[str, ...] | None = None
) -> ValueError:
    """Return a `ValueError` with the message of `error` and the position of the blocks in the data.

    If an entry of the blocks is NaN or infinite, the message names this entry instead.
    """
    for block in blocks:
        for part, what in ((block.rows, name), (block.targets, "y")):
            found = None if part is None else _first_bad_entry(part)
            if found is not None:
                row, column, value = found
                heading = f", {columns[column]!r}" if columns and part is block.rows else ""
                place, counted = f"row {row} of this block", "all counted from 0"
                if block.first_row is None:
                    counted += "; how many rows are before this block is not known"
                else:
                    place = f"row {block.first_row + row}"
                return ValueError(
                    f"{what} contains {value} in block {block.number}, {place}, column "
                    f"{column}{heading} ({counted}). Remove or impute such rows first."
                )
    first, last = blocks[0], blocks[-1]
    named = f"block {first.number}" + (f" to {last.number}" if len(blocks) > 1 else "")
    if first.first_row is None or last.first_row is None:
        return ValueError(f"{named} of {name}, counted from 0: {error}")
    rows = f"rows {first.first_row} to {last.first_row + last.n_rows - 1}, counted from 0"
    return ValueError(f"{named} of {name} ({rows}): {error}")


def refuse_bad_entries(block: RowBlock, name: str, columns: tuple[str, ...] | None = None) -> None:
    """Raise an error that names the first entry of a block that is NaN or infinite, if any."""
    for part in (block.rows, block.targets):
        entries = part.data if scipy.sparse.issparse(part) else part
        if entries is not None and not bool(
            namespace(entries).all(namespace(entries).isfinite(entries))
        ):
            raise located(ValueError(), [block], name, columns)


def _first_bad_entry(rows: Any) -> tuple[int, int, str] | None:
    """Return row, column and kind ("NaN" or "infinity") of the first entry that is not finite."""
    if scipy.sparse.issparse(rows):
        entries = rows.tocoo()
        bad = np.flatnonzero(~np.isfinite(entries.data))
        places = [(int(entries.row[i]), int(entries.col[i]), entries.data[i]) for i in bad]
        found = min(places, key=lambda place: place[:2], default=None)
    else:
        values = to_numpy(rows)
        place = np.argwhere(~np.isfinite(values))[:1]
        found = (
            (int(place[0, 0]), int(place[0, 1]), values[tuple(place[0])]) if len(place) else None
        )
    if found is None:
        return None
    return found[0], found[1], "NaN" if np.isnan(found[2]) else "infinity"


def float_reference(dtype: Any) -> Array:
    """Return an empty NumPy array of the floating type to which numbers of `dtype` are read."""
    dtype = np.dtype(dtype)
    return np.empty(0, dtype=dtype if dtype in (np.float32, np.float64) else np.float64)


class ArrayBlocks(RowBlocks):
    """Blocks of rows of an array, a sparse matrix, a data frame, or any object with row slices."""

    def __init__(
        self, array: Any, name: str, *, flat: bool = False, first_row: int = 0, **settings: Any
    ) -> None:
        shape = tuple(array.shape)
        is_vector = len(shape) == 1
        if len(shape) != 2 and not (flat and is_vector):
            raise ValueError(
                f"{name} has shape {shape}, expected rows and columns: two dimensions."
            )
        super().__init__(
            name,
            1 if is_vector else int(shape[1]),
            reference_of_rows(array),
            n_rows=int(shape[0]),
            feature_names=column_names(array),
            flat=is_vector,
            first_row=first_row,
            **settings,
        )
        if getattr(array, "format", "") == "csc" and hasattr(array, "to_memory"):
            array = array.to_memory()  # columns on disk, from which rows cannot be sliced
        self.array = array.tocsr() if scipy.sparse.issparse(array) else array

    @property
    def is_dense(self) -> bool:
        """Whether the array is not sparse, in memory or on disk."""
        return getattr(self.array, "format", "") != "csr"

    def read(self) -> Iterator[Any]:
        """Yield slices of rows that end where stored chunks of the array end, if possible."""
        assert self.n_rows is not None, "an array has a shape"
        step = self._step()
        for start in _starts(self.first_row, self.n_rows, step):
            stop = min(start - start % step + step, self.n_rows)
            try:
                block = _row_slice(self.array, start, stop)
            except (OSError, RuntimeError) as error:  # of HDF5, if the file was closed meanwhile
                why = (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
                raise ValueError(
                    f"{self.name} cannot be read from row {start} on: {why}. Check that its file "
                    "is still open and complete."
                ) from error
            yield block

    def _step(self) -> int:
        """Return the number of rows per block, if possible a multiple of a stored chunk's rows."""
        rows, chunks = self.rows_per_block, getattr(self.array, "chunks", None)
        if not isinstance(chunks, tuple) or not chunks or not isinstance(chunks[0], int):
            return rows
        if rows >= chunks[0]:
            return rows - rows % chunks[0]
        return chunks[0] if chunks[0] <= LARGEST_BLOCK * rows else rows


def _row_slice(array: Any, start: int, stop: int) -> Any:
    """Return the rows from `start` to `stop` of an array, a sparse matrix or a data frame."""
    if hasattr(array, "iloc"):
        return array.iloc[start:stop]
    block = array[start:stop]
    kept = is_array(block) or scipy.sparse.issparse(block) or hasattr(block, "columns")
    return block if kept else np.asarray(block)


def _starts(first: int, end: int, step: int) -> Iterator[int]:
    """Yield the number of the first row of each block of the rows from `first` to `end`.

    All blocks except the first begin at multiples of `step`.
    """
    return chain([first], range(first - first % step + step, end, step))


def reference_of_rows(array: Any) -> Array:
    """Return an empty array that shows the library and floating type of the rows of `array`."""
    if scipy.sparse.issparse(array) or not is_array(array):
        dtype = getattr(array, "dtype", None)
        if dtype is None:  # a data frame
            dtype = check_rows(_row_slice(array, 0, 1), finite=False, every_column=True).dtype
        return float_reference(dtype)
    rows = check_rows(array[:1] if array.ndim == 2 else array[:1][:, None], finite=False)
    return zeros_like_shape((0,), rows)


def column_names(array: Any) -> tuple[str, ...] | None:
    """Return the names of a data frame or an AnnData; None if they are not all strings."""
    names = tuple(frame_names(array) or getattr(array, "var_names", []))
    return names if names and all(isinstance(name, str) for name in names) else None


def stored_bytes(rows: Any) -> int:
    """Return the number of bytes in which rows are stored, dense or sparse."""
    if scipy.sparse.issparse(rows):
        rows = rows.tocsr()
        return int(rows.data.nbytes + rows.indices.nbytes + rows.indptr.nbytes)
    size = getattr(rows, "nbytes", None)
    return int(np.prod(rows.shape)) * 8 if size is None else int(size)


def concatenated(parts: list[Any]) -> Any:
    """Return the rows of several blocks (`parts`) as one array."""
    if len(parts) == 1:
        return parts[0]
    if any(scipy.sparse.issparse(part) for part in parts):
        return scipy.sparse.vstack(parts, format="csr")
    return namespace(*parts).concat(parts, axis=0)


def coalesced(blocks: Iterable[RowBlock], least: int) -> Iterator[list[RowBlock]]:
    """Yield lists of consecutive blocks that have at least `least` rows together.

    The second moment of a block with m columns has m² entries, which are merged with those of the
    blocks before it; for blocks of few rows this would take most of the time.
    """
    held: list[RowBlock] = []
    for block in blocks:
        held.append(block)
        if sum(part.n_rows for part in held) >= least:
            yield held
            held = []
    if held:
        yield held


def joined(held: list[RowBlock]) -> tuple[Any, Any, Any]:
    """Return rows, targets and weights of consecutive blocks."""
    rows, targets, weights = (
        None if parts[0] is None else concatenated(list(parts))
        for parts in zip(*(block[:3] for block in held), strict=True)
    )
    return rows, targets, weights


class RowQueue:
    """Reader of targets or weights that returns as many rows at a time as a block of X has."""

    def __init__(self, data: RowBlocks) -> None:
        self.data = data
        self._blocks = iter(data)
        self._held: list[Any] = []

    def take(self, count: int) -> Any:
        """Return the next `count` rows of the targets or weights; an error if there are fewer."""
        held = sum(part.shape[0] for part in self._held)
        while held < count:
            part = next(self._blocks, None)
            if part is None:
                raise ValueError(
                    f"{self.data.name} has fewer rows than X: give one row of it for each row of X."
                )
            self._held.append(part)
            held += part.shape[0]
        rows = concatenated(self._held)
        self._held = [rows[count:]] if held > count else []
        return rows[:count]

    def finish(self) -> None:
        """Raise an error if rows of the targets or weights are left after the last row of X."""
        if self._held or next(islice(self._blocks, 1), None) is not None:
            raise ValueError(
                f"{self.data.name} has more rows than X: give one row of it for each row of X."
            )
