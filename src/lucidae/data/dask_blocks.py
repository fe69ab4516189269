"""Dask arrays and data frames: summaries as tree reductions, and lazy results with the same chunks.

A block is one chunk of rows (of an array) or one partition (of a data frame). Chunks of columns are
merged first. Everything works with the scheduler that Dask is set to: threads, processes, or the
cluster of a `distributed.Client`, which repeats the work of a lost worker.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterator
from functools import partial
from numbers import Real
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import scipy.sparse

from lucidae.arrays import Array, is_array, namespace, to_numpy
from lucidae.data.blocks import (
    BLOCK_BYTES,
    RowBlock,
    RowBlocks,
    concatenated,
    float_reference,
    floating_rows,
    located,
)
from lucidae.data.files import ParquetBlocks, blocks_of_file
from lucidae.data.kinds import AlignedBlocks, LoadedRows, checked_weights
from lucidae.data.passes import leaf_of, shown_rows
from lucidae.moments import SecondMoment

__all__ = ["DaskAligned", "DaskBlocks", "dask_of_file", "mapped"]

FAN_IN = 8
"""Number of summaries that one task joins."""

IN_CHUNK = "a chunk of {} (its rows are counted in the chunk)"
"""What messages call rows whose number in the whole data is not known."""


class DaskBlocks(RowBlocks):
    """The chunks of rows of a Dask array, or the partitions of a Dask data frame.

    Parameters
    ----------
    collection : dask.array.Array, dask.dataframe.DataFrame or Series
        The rows.
    name : str
        What messages call them.
    flat : bool, default=False
        Whether a vector is accepted.
    first_row : int, default=0
        Rows before this one are left out.
    """

    def __init__(
        self, collection: Any, name: str, *, flat: bool = False, first_row: int = 0
    ) -> None:
        is_vector = collection.ndim == 1
        if collection.ndim != 2 and not (flat and is_vector):
            raise ValueError(
                f"{name} has {collection.ndim} dimensions, expected rows and columns: two."
            )
        if first_row:
            collection = _without_first_rows(collection, name, first_row)
        if is_frame(collection):
            width = 1 if is_vector else len(collection.columns)
            names = None if is_vector else tuple(collection.columns)
            reference = _frame_reference(collection)
        else:
            collection = _one_column_chunk(collection)
            width, names = 1 if is_vector else collection.shape[1], None
            reference = _array_reference(collection)
        if isinstance(width, float):  # NaN: the number of columns is not known
            raise ValueError(f"{name} has an unknown number of columns: call compute_chunk_sizes.")
        known = names is not None and all(isinstance(column, str) for column in names)
        super().__init__(
            name, width, reference, feature_names=names if known else None, flat=is_vector
        )
        self.collection = collection
        lengths = row_lengths(collection)
        self.n_rows = None if lengths is None else sum(lengths)

    def read(self) -> Iterator[Any]:
        """Compute one chunk after the other; all at once if they are smaller than a block."""
        parts = self.parts()
        if self.n_rows is not None and self.n_rows <= max(self.rows_per_block, self.n_features):
            return iter(dask.compute(*parts))
        return (part.compute() for part in parts)

    def parts(self) -> list[Any]:
        """Return the chunks of rows as delayed values, which Dask computes later."""
        return list(np.ravel(self.collection.to_delayed()))


def is_frame(collection: Any) -> bool:
    """Tell whether a Dask collection is a data frame or a series."""
    return hasattr(collection, "map_partitions") and hasattr(collection, "divisions")


def row_lengths(collection: Any) -> tuple[int, ...] | None:
    """Return the number of rows of each chunk; None if Dask does not know it."""
    if is_frame(collection) or any(math.isnan(count) for count in collection.chunks[0]):
        return None
    return tuple(collection.chunks[0])


def _one_column_chunk(array: Any) -> Any:
    """Return an array in chunks of whole rows, with as many rows as before."""
    return array if array.ndim == 1 or array.numblocks[1] == 1 else array.rechunk({1: -1})


def _without_first_rows(collection: Any, name: str, first_row: int) -> Any:
    if is_frame(collection) or row_lengths(collection) is None:
        raise ValueError(
            f"first_row={first_row} was given, but the number of rows in the chunks of {name} is "
            "not known: call compute_chunk_sizes first."
        )
    return collection[first_row:]


def _frame_reference(frame: Any) -> Array:
    meta = frame._meta
    if hasattr(meta, "columns"):
        kinds = set(meta.dtypes)
        return float_reference(np.float32 if kinds == {np.dtype(np.float32)} else np.float64)
    return float_reference(np.float64)


def _array_reference(array: Any) -> Array:
    """Return an empty array of the library and the floating type of the chunks."""
    meta = array._meta
    if scipy.sparse.issparse(meta) or not is_array(meta) or isinstance(meta, np.ndarray):
        return float_reference(array.dtype)
    floating = array.dtype in (np.float32, np.float64)
    return namespace(meta).empty(0, dtype=array.dtype if floating else np.float64)


class DaskAligned(AlignedBlocks):
    """Chunks of rows of a Dask collection, with their targets and weights of any kind."""

    rows: DaskBlocks

    def load(self) -> LoadedRows | None:
        """Return all rows if they are few, else None; an unknown number of rows is counted.

        Twice as many chunks are counted each time, until there are too many rows to be loaded.
        """
        if self.rows.n_rows is None:
            parts, count, done = self.rows.parts(), 0, 0
            while done < len(parts):
                count += sum(_counted(parts[done : 2 * done + 1]))
                done = 2 * done + 1
                if count > self.most_loaded:
                    return None
            self.rows.n_rows = count
        return super().load()

    def fold(self, leaf: Any, combine: Any, verbose: bool) -> Any:
        """Return a summary of all chunks, such as their second moment, computed by Dask.

        `leaf` computes the summary of one chunk, on the worker that has it; `combine` joins two
        summaries. They are joined in a tree. `verbose` tells whether the progress is shown.
        """
        # As an argument, and not as the function of the tasks, the leaf travels to a worker once.
        held, summary = dask.delayed(leaf, pure=False), dask.delayed(_summary, pure=False)
        name, dtype = self.rows.name, self.rows.dtype
        parts = [summary(held, name, dtype, *chunk) for chunk in self._chunks()]
        leaves = {part.key for part in parts}
        join = dask.delayed(partial(_joined, combine), pure=False)
        while len(parts) > 1:
            parts = [join(parts[i : i + FAN_IN]) for i in range(0, len(parts), FAN_IN)]
        with _task_progress(leaves, self.rows, verbose):
            (found,) = dask.compute(parts[0])
        return found

    def _chunks(self) -> Iterator[tuple[Any, ...]]:
        """Yield, for each chunk of rows, the arguments of the task that summarises it."""
        rows = self.rows.parts()
        lengths = row_lengths(self.rows.collection)
        starts = [None] * len(rows) if lengths is None else [0, *np.cumsum(lengths)[:-1].tolist()]
        targets, weights = self._beside(self.targets), self._beside(self.weights)
        for index, (x, y, w) in enumerate(zip(rows, targets, weights, strict=True)):
            yield x, y, w, index, starts[index], self.rows.n_features

    def _beside(self, other: RowBlocks | float | None) -> list[Any]:
        """Return the parts of targets or weights that belong to each chunk of X."""
        parts = self.rows.parts()
        if not isinstance(other, RowBlocks):
            return [other] * len(parts)
        lengths = row_lengths(self.rows.collection)
        if isinstance(other, DaskBlocks):
            return self._dask_beside(other, lengths)
        lengths = tuple(_counted(parts)) if lengths is None else lengths
        values = to_numpy(concatenated(list(other)))
        if len(values) != sum(lengths):
            raise ValueError(
                f"{other.name} has {len(values)} rows, but X has {sum(lengths)} rows: give one row "
                "of it for each row of X."
            )
        return np.split(values[:, 0] if other.flat else values, np.cumsum(lengths)[:-1])

    def _dask_beside(self, other: DaskBlocks, lengths: tuple[int, ...] | None) -> list[Any]:
        theirs = row_lengths(other.collection)
        if lengths is not None and theirs is not None:
            if sum(lengths) != sum(theirs):
                raise ValueError(
                    f"X has {sum(lengths)} rows and {other.name} has {sum(theirs)}: give one row "
                    "of it for each row of X."
                )
            return list(np.ravel(other.collection.rechunk({0: lengths}).to_delayed()))
        parts = other.parts()
        if len(parts) != len(self.rows.parts()):
            raise ValueError(
                f"X has {len(self.rows.parts())} chunks of rows and {other.name} has {len(parts)}, "
                "and not all their lengths are known: call compute_chunk_sizes on both first."
            )
        return parts


def _counted(parts: list[Any]) -> list[int]:
    """Return the number of rows of each delayed part, which computes the parts."""
    count = dask.delayed(_n_rows, pure=False)
    return list(dask.compute(*[count(part) for part in parts]))


def _n_rows(part: Any) -> int:
    return int(part.shape[0])


def _summary(
    leaf: Any,
    name: str,
    dtype: Any,
    raw: Any,
    targets: Any,
    weights: Any,
    index: int,
    first_row: int | None,
    n_features: int,
) -> Any:
    """Return the summary of one chunk, computed by `leaf` on the worker that has the chunk.

    The result is None if all weights of the chunk are zero.
    """
    rows = floating_rows(raw, name, index, first_row or 0)
    if rows is None:
        return None
    if rows.shape[1] != n_features:
        raise ValueError(
            f"chunk {index} of {name} has {rows.shape[1]} columns, expected {n_features}."
        )
    if str(rows.dtype).rpartition(".")[2] != str(dtype).rpartition(".")[2]:
        raise ValueError(f"chunk {index} of {name} has dtype {rows.dtype}, expected {dtype}.")
    y = None if targets is None else floating_rows(targets, "y", index, first_row or 0, flat=True)
    if y is not None and y.shape[0] != rows.shape[0]:
        raise ValueError(f"chunk {index} has {rows.shape[0]} rows of X and {y.shape[0]} of y.")
    block = RowBlock(rows, y, None, index, first_row or 0)
    given = np.full(rows.shape[0], float(weights)) if isinstance(weights, Real) else weights
    block = block._replace(weights=checked_weights(given, block))
    found = leaf_of(block, name if first_row is not None else IN_CHUNK.format(name), leaf)
    return _on_host(found) if isinstance(found, SecondMoment) else found


def _on_host(moment: SecondMoment) -> SecondMoment:
    """Return a second moment with NumPy arrays, which every worker can receive."""
    arrays = (moment.squares, moment.center, moment.offset)
    return SecondMoment(moment.weight, *map(to_numpy, arrays))


def _joined(combine: Any, parts: list[Any]) -> Any:
    """Return several summaries of chunks, such as second moments, joined into one by `combine`."""
    total = None
    for part in parts:
        if part is not None:
            total = part if total is None else combine(total, part)
    return total


def _task_progress(leaves: set[Any], rows: DaskBlocks, verbose: bool) -> Any:
    """Return a context that shows how many chunks are finished, if `verbose`.

    It is for local schedulers; a cluster has its own dashboard.
    """
    from dask.callbacks import Callback

    if not verbose:
        return Callback()
    return _RowsDone(leaves, rows)


class _RowsDone:
    """Callback of Dask that shows the rows of finished chunks, for local schedulers.

    A cluster shows its work on its own dashboard.
    """

    def __init__(self, leaves: set[Any], rows: DaskBlocks) -> None:
        from dask.callbacks import Callback

        lengths = row_lengths(rows.collection)
        total, unit = (len(leaves), "chunks") if lengths is None else (sum(lengths), "rows")
        share = total / max(1, len(leaves))
        self._shown = shown_rows(total, f"reading {unit}", True, unit)
        self._leaves, self._share, self._done = leaves, share, 0
        self._callback = Callback(posttask=self._after_task)

    def _after_task(self, key: Any, *_: Any) -> None:
        if key in self._leaves:
            self._done += 1
            self._show(round(self._done * self._share))

    def __enter__(self) -> None:
        self._show = self._shown.__enter__()
        self._callback.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._callback.__exit__(*error)
        self._shown.__exit__(*error)


def dask_of_file(path: Any, options: Any = None) -> Any:
    """Return the rows of a file as a lazy Dask collection; every worker must be able to read it.

    Parameters
    ----------
    path : path-like
        A file that `lucidae.data.row_blocks` reads.
    options : lucidae.io.tables.ReadOptions, optional
        The columns to read and, for a text file, its header and decimal separator.

    Returns
    -------
    dask.array.Array or dask.dataframe.DataFrame
        A data frame for Parquet and text, whose row groups or parts of the text are its
        partitions; else an array, whose chunks are the blocks of the file.
    """
    file = Path(path).resolve()
    data = blocks_of_file(file, options=options)
    if isinstance(data, ParquetBlocks):
        import dask.dataframe as dd

        columns = list(data.feature_names or ())
        return dd.read_parquet(file, columns=columns, index=False).astype(data.dtype)
    if hasattr(data, "layout"):
        return _frame_of_text(data)
    assert data.n_rows is not None, "arrays in files have a shape"
    starts = range(0, data.n_rows, data.rows_per_block)
    read = dask.delayed(_rows_of_file, pure=True)
    chunks = []
    for start in starts:
        count = min(data.rows_per_block, data.n_rows - start)
        block = read(str(file), start, count, options)
        chunks.append(da.from_delayed(block, (count, data.n_features), data.dtype))
    return da.concatenate(chunks, axis=0)


def _frame_of_text(data: Any) -> Any:
    """Return the parts of a text file as a lazy data frame, whose workers read them as text.

    Dask would take the type of each column from the first rows, and refuse a part with whole
    numbers in a column of other numbers.
    """
    import dask.dataframe as dd
    import pandas as pd

    from lucidae.io.text import AS_TEXT, parsing

    names, columns = list(data.all_names), list(data.feature_names)
    cells = dd.read_csv(
        data.file, blocksize=BLOCK_BYTES, names=names, **parsing(data.layout), **AS_TEXT
    )
    meta = pd.DataFrame(np.empty((0, len(columns))), columns=columns)
    return cells.map_partitions(partial(_numbers_of_text, data), meta=meta)


def _numbers_of_text(data: Any, cells: Any) -> Any:
    """Return the columns of numbers of one part of a text file, on a worker."""
    import pandas as pd

    from lucidae.io.text import parse_text

    parsed = parse_text(cells.set_axis(range(cells.shape[1]), axis=1), data.layout.decimal)
    return pd.DataFrame(data.numbers(parsed), columns=list(data.feature_names), index=parsed.index)


def _rows_of_file(path: str, start: int, count: int, options: Any) -> Any:
    """Return some rows of a file, on a worker."""
    held: list[Any] = []
    for rows in blocks_of_file(path, first_row=start, options=options):
        held.append(rows)
        if sum(len(part) for part in held) >= count:
            break
    return concatenated(held)[:count]


def mapped(estimator: Any, X: Any, method: str) -> Any:
    """Return the results of a method as a lazy Dask collection with the same chunks of rows.

    The method is one of a fitted estimator, such as `transform`. The estimator is copied, so that
    fitting it again does not change results computed later.
    """
    copy = pickle.loads(pickle.dumps(estimator))
    if is_frame(X):
        return _mapped_frame(copy, X, method)
    X = _one_column_chunk(X)
    example = getattr(copy, method)(_example_rows(X))
    example = example if is_array(example) else np.asarray(example)
    is_matrix = example.ndim == 2
    return da.map_blocks(
        partial(_applied_chunk, method),
        X,
        dask.delayed(copy, pure=False),
        dtype=example.dtype,
        chunks=(X.chunks[0], (example.shape[1],)) if is_matrix else (X.chunks[0],),
        drop_axis=None if is_matrix else 1,
        meta=example[:0],
    )


def _example_rows(X: Any) -> Any:
    """Return one row of zeros of the type of X, from which shape and dtype of results are found."""
    if math.isnan(X.shape[1]):
        raise ValueError("X has an unknown number of columns: call compute_chunk_sizes.")
    meta, shape = X._meta, (1, int(X.shape[1]))
    if scipy.sparse.issparse(meta):
        return scipy.sparse.csr_array(shape, dtype=X.dtype)
    return namespace(meta).zeros(shape, dtype=X.dtype)


def _applied_chunk(method: str, rows: Any, estimator: Any, block_id: Any = None) -> Any:
    return _applied_rows(method, rows, estimator, 0 if block_id is None else block_id[0])


def _applied_rows(method: str, rows: Any, estimator: Any, index: int) -> Any:
    """Return the result of one chunk; an error names the chunk and the row in it."""
    try:
        found = getattr(estimator, method)(rows)
    except ValueError as error:
        block = RowBlock(floating_rows(rows, "X", index, 0), None, None, index, 0)
        raise located(error, block, IN_CHUNK.format("X")) from None
    return found if is_array(found) else np.asarray(found)


def _mapped_frame(estimator: Any, X: Any, method: str) -> Any:
    """Return the results of a method as a Dask data frame or series with the index of X."""
    import pandas as pd

    zeros = pd.DataFrame(np.zeros((1, len(X.columns))), columns=list(X._meta.columns))
    zeros = zeros.astype(X._meta.dtypes.to_dict())
    example = np.asarray(getattr(estimator, method)(zeros))
    columns = None if example.ndim == 1 else _output_names(estimator, method, example.shape[1])
    meta = _labelled(example[:0], pd.RangeIndex(0), columns)
    held = dask.delayed(estimator, pure=False)
    return X.map_partitions(partial(_applied_partition, method, columns), held, meta=meta)


def _output_names(estimator: Any, method: str, count: int) -> list[Any]:
    """Return the names of the results' columns: of the codes, of the features, or numbers."""
    if method == "transform":
        return [str(name) for name in estimator.get_feature_names_out()]
    names = getattr(estimator, "feature_names_in_", None)
    if method == "inverse_transform" and names is not None:
        return [str(name) for name in names]
    return list(range(count))


def _labelled(values: Any, index: Any, columns: list[Any] | None) -> Any:
    import pandas as pd

    if columns is None:
        return pd.Series(np.asarray(values), index=index)
    return pd.DataFrame(np.asarray(values), index=index, columns=columns)


def _applied_partition(
    method: str, columns: Any, frame: Any, estimator: Any, partition_info: Any = None
) -> Any:
    if not len(frame):
        width = () if columns is None else (len(columns),)
        return _labelled(np.empty((0, *width)), frame.index, columns)
    index = 0 if partition_info is None else partition_info["number"]
    return _labelled(_applied_rows(method, frame, estimator, index), frame.index, columns)
