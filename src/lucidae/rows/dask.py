"""Dask arrays and data frames as blocks of rows, and their summaries as tree reductions.

A block is one chunk of rows (of an array) or one partition (of a data frame). Chunks of columns are
merged first. Everything works with the scheduler that Dask is set to: threads, processes, or the
cluster of a `distributed.Client`, which repeats the work of a lost worker.

Chunks are computed in waves of some chunks for each thread: between two waves progress is shown,
and after Ctrl-C the summary of all finished waves is kept.
"""

from __future__ import annotations

import math
import os
import pickle
import sys
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from itertools import islice, pairwise, repeat
from pathlib import Path
from typing import Any, NamedTuple

import dask
import numpy as np
import scipy.sparse
from sklearn import get_config

from lucidae.arrays import Array, fields_beside, is_array, namespace, to_numpy
from lucidae.moments import SecondMoment
from lucidae.rows import blocks as sizes
from lucidae.rows.blocks import (
    LARGEST_BLOCK,
    BlockForm,
    RowBlock,
    RowBlocks,
    column_names,
    concatenated,
    float_reference,
    floating_rows,
    located,
    stored_bytes,
)
from lucidae.rows.files import ParquetBlocks, blocks_of_file, rows_of_file
from lucidae.rows.kinds import AlignedBlocks, aligned
from lucidae.rows.passes import ReadInterrupted, Shown, moment_in, summary_of

__all__ = ["DaskAligned", "DaskBlocks"]

FAN_IN = 8
"""Number of summaries of chunks, such as second moments, that one Dask task joins."""

WAVE = 16
"""Number of chunks for each thread that are computed at a time. At the end of a wave threads wait
for the last chunk, on average for half a chunk."""

ROW_INDEX = "row of the file"
"""Name of the index of partitions of a file that counts the rows of the whole file."""


class DaskBlocks(RowBlocks):
    """The chunks of rows of a Dask array, or the partitions of a Dask data frame."""

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
            collection = one_column_chunk(collection)
            width, names = 1 if is_vector else collection.shape[1], None
            reference = array_reference(collection)
        if isinstance(width, float):  # NaN: the number of columns is not known
            raise ValueError(f"{name} has an unknown number of columns: call compute_chunk_sizes.")
        known = names is not None and all(isinstance(column, str) for column in names)
        super().__init__(
            name,
            width,
            reference,
            feature_names=names if known else None,
            flat=is_vector,
            first_row=first_row,
        )
        self.collection = collection
        lengths = row_lengths(collection)
        self.n_rows = None if lengths is None else first_row + sum(lengths)

    @property
    def is_dense(self) -> bool:
        """Whether the chunks are known not to be sparse."""
        return not is_frame(self.collection) and isinstance(self.collection._meta, np.ndarray)

    def read(self) -> Iterator[Any]:
        """Yield the computed chunks, a wave at a time if together they fit into a block."""
        parts, count = iter(self.parts()), self.n_rows_to_read
        small = count is not None and count <= max(self.rows_per_block, self.n_features)
        while wave := list(islice(parts, _wave() if small else 1)):
            yield from _computed(wave)

    def parts(self) -> list[Any]:
        """Return the chunks of rows as delayed values, which Dask computes later."""
        return list(np.ravel(self.collection.to_delayed()))


def is_frame(collection: Any) -> bool:
    """Tell whether a Dask collection is a data frame or a series."""
    return hasattr(collection, "map_partitions") and hasattr(collection, "divisions")


def row_lengths(collection: Any) -> tuple[int, ...] | None:
    """Return the number of rows of each chunk of a collection; None if Dask does not know it."""
    if is_frame(collection) or any(math.isnan(count) for count in collection.chunks[0]):
        return None
    return tuple(collection.chunks[0])


def first_rows(lengths: tuple[int, ...] | None, count: int, first_row: int = 0) -> list[int | None]:
    """Return the number of the first row of each chunk; None if Dask does not know it."""
    if lengths is None:
        return [first_row, *[None] * (count - 1)]
    return [first_row, *(first_row + np.cumsum(lengths)[:-1]).tolist()]


def first_row_of(chunk: Any, first_row: int | None) -> int | None:
    """Return the number of the first row of a chunk; a Parquet partition's index contains it."""
    index: Any = getattr(chunk, "index", None)
    if first_row is None and getattr(index, "name", None) == ROW_INDEX and len(index):
        return int(index[0])
    return first_row


def one_column_chunk(array: Any) -> Any:
    """Return a Dask array in chunks of whole rows; the numbers of rows per chunk do not change."""
    return array if array.ndim == 1 or array.numblocks[1] == 1 else array.rechunk({1: -1})


def _without_first_rows(collection: Any, name: str, first_row: int) -> Any:
    """Return a Dask collection without its first rows; `name` is its name in error messages."""
    if is_frame(collection) or row_lengths(collection) is None:
        raise ValueError(
            f"first_row={first_row} was given, but the number of rows in the chunks of {name} is "
            "not known: call compute_chunk_sizes."
        )
    return collection[first_row:]


def _frame_reference(frame: Any) -> Array:
    """Return an empty array of the floating type to which the columns of a Dask frame are read."""
    meta = frame._meta
    if hasattr(meta, "columns"):
        kinds = set(meta.dtypes)
        return float_reference(np.float32 if kinds == {np.dtype(np.float32)} else np.float64)
    return float_reference(np.float64)


def array_reference(array: Any) -> Array:
    """Return an empty array of the library and the floating type of the chunks."""
    meta = array._meta
    if scipy.sparse.issparse(meta) or not is_array(meta) or isinstance(meta, np.ndarray):
        return float_reference(array.dtype)
    floating = array.dtype in (np.float32, np.float64)
    return namespace(meta).empty(0, dtype=array.dtype if floating else np.float64)


class DaskAligned(AlignedBlocks):
    """Chunks of rows of a Dask collection with their targets and weights, from data of any kind."""

    rows: DaskBlocks

    def may_fit(self, most_bytes: int | None) -> bool:
        """Tell whether the rows are few enough to be loaded into memory.

        If Dask does not know their number, chunks are computed to count them, twice as many in each
        round, until they are too many.
        """
        if self.rows.n_rows is not None and (most_bytes is None or self.rows.is_dense):
            return True
        parts, rows, size, done = self.rows.parts(), 0, 0, 0
        while done < len(parts):
            for n_rows, n_bytes in _measured(parts[done : 2 * done + 1]):
                rows, size = rows + n_rows, size + n_bytes
            done = 2 * done + 1
            if (rows > self.most_loaded) if most_bytes is None else (size > most_bytes):
                return False
        self.rows.n_rows = self.rows.first_row + rows
        return True

    def fold(self, leaf: Any, combine: Any, start: Any, shown: Shown) -> Any:
        """Return the summary of all rows, such as their second moment, from all chunks.

        `leaf` summarises a chunk on the worker that has it, and `combine` joins two summaries; they
        are joined in a tree. `start` is the summary of earlier rows; `shown` displays the progress.
        """
        lengths = row_lengths(self.rows.collection)
        count = len(self.rows.parts()) if lengths is None else sum(lengths)
        # As an argument, and not as the function of the tasks, the leaf travels to a worker once.
        held, summary = dask.delayed(leaf, pure=False), dask.delayed(_summary, pure=False)
        join = dask.delayed(partial(_joined, combine), pure=False)
        chunks, total, done, size = self._chunks(), _Part(start, 0), 0, _wave()
        try:
            with shown.rows(count, "chunks" if lengths is None else "rows") as show:
                while wave := list(islice(chunks, size)):
                    parts = [summary(held, self.rows.form, *at) for at in wave]
                    while len(parts) > 1:
                        parts = [join(parts[i : i + FAN_IN]) for i in range(0, len(parts), FAN_IN)]
                    total = _joined(combine, [total, _computed(parts)[0]])
                    done += len(wave)
                    show(done if lengths is None else total.n_rows)
        except KeyboardInterrupt:
            kept = self.rows.first_row + total.n_rows
            raise ReadInterrupted(moment_in(total.summary), kept) from None
        return total.summary

    def _chunks(self) -> Iterator[tuple[Any, ...]]:
        """Yield, for each chunk of rows, the arguments of the task that summarises it."""
        rows = self.rows.parts()
        lengths = row_lengths(self.rows.collection)
        starts = first_rows(lengths, len(rows), self.rows.first_row)
        targets, weights = self._beside(self.targets), self._beside(self.weights)
        for index, (x, y, w) in enumerate(zip(rows, targets, weights, strict=True)):
            yield x, y, w, index, starts[index]

    def _beside(self, other: RowBlocks | float | None) -> Iterator[Any]:
        """Yield, for each chunk of X, its rows of the targets or weights `other`."""
        parts = self.rows.parts()
        if not isinstance(other, RowBlocks):
            return repeat(other, len(parts))
        lengths = row_lengths(self.rows.collection)
        if isinstance(other, DaskBlocks):
            return iter(self._dask_beside(other, lengths))
        if lengths is None:
            lengths = tuple(n_rows for n_rows, _ in _measured(parts))
        whole = to_numpy(concatenated(list(other)))
        if len(whole) != sum(lengths):
            raise ValueError(
                f"{other.name} has {len(whole)} rows, but X has {sum(lengths)} rows: give one row "
                "of it for each row of X."
            )
        whole, ends = whole[:, 0] if other.flat else whole, np.cumsum([0, *lengths])
        return (whole[start:end] for start, end in pairwise(ends))

    def _dask_beside(self, other: DaskBlocks, lengths: tuple[int, ...] | None) -> list[Any]:
        """Return the chunks of targets or weights in a Dask collection, divided as those of X."""
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


def _measured(parts: list[Any]) -> list[tuple[int, int]]:
    """Compute each delayed part; return its number of rows and its number of bytes."""
    size = dask.delayed(_rows_and_bytes, pure=False)
    return _computed([size(part) for part in parts])


def _rows_and_bytes(part: Any) -> tuple[int, int]:
    return int(part.shape[0]), stored_bytes(part)


class _Part(NamedTuple):
    """Summary of some rows, such as their second moment, and the number of these rows.

    The summary is None if there are no rows, or if all their weights are zero.
    """

    summary: Any
    n_rows: int


def _wave() -> int:
    """Return the number of chunks that are computed at a time."""
    client = current_client()
    if client is not None:
        return WAVE * max(1, int(sum(client.ncores().values())))
    return WAVE * int(dask.config.get("num_workers", None) or os.cpu_count() or 1)


def _computed(parts: list[Any]) -> list[Any]:
    """Return the computed values of delayed values, without Dask's warning about large graphs.

    The graph contains large vectors on purpose: scattered to the workers instead, a vector would be
    lost together with its worker.
    """
    client = current_client()
    # Only the main thread receives Ctrl-C; others leave everything to Dask.
    if client is None or threading.current_thread() is not threading.main_thread():
        with _large_graphs():
            return list(dask.compute(*parts))
    with _large_graphs():
        futures = client.compute(parts)
    # `dask.compute` would print a traceback for each pending value if it were interrupted; so the
    # values are gathered only when all of them are finished.
    sys.modules["distributed"].wait(futures)
    return list(client.gather(futures))


def _large_graphs() -> Any:
    """Return a context in which Dask does not warn of large graphs.

    `distributed`, which would warn, adds its settings when it is imported. If it were imported in
    this context, all of them would be lost at its end.
    """
    if "distributed" not in sys.modules:
        return nullcontext()
    return dask.config.set({"distributed.admin.large-graph-warning-threshold": "1TB"})


def _summary(
    leaf: Any,
    form: BlockForm,
    raw: Any,
    targets: Any,
    weights: Any,
    index: int,
    first_row: int | None,
) -> Any:
    """Return the summary of one chunk of rows (`raw`), computed by `leaf` on the chunk's worker."""
    first_row = first_row_of(raw, first_row)
    rows = form.checked(raw, index, first_row)
    if rows is None:
        return _Part(None, 0)
    y = None if targets is None else floating_rows(targets, "y", index, first_row, flat=True)
    block = aligned(RowBlock(rows, None, None, index, first_row), y, weights)
    found = summary_of([block], form.name, leaf, column_names(raw))
    # Every worker can receive NumPy arrays.
    if isinstance(found, SecondMoment):
        found = fields_beside(found, np.empty(0))
    elif moment_in(found) is not None:
        found = found._replace(moment=fields_beside(found.moment, np.empty(0)))
    return _Part(found, block.n_rows)


def _joined(combine: Any, parts: list[_Part]) -> _Part:
    """Return several summaries of chunks, such as second moments, joined into one by `combine`."""
    total = None
    for part, _ in parts:
        if part is not None:
            total = part if total is None else combine(total, part)
    return _Part(total, sum(part.n_rows for part in parts))


def current_client() -> Any:
    """Return the client of the cluster on which Dask computes; None if it computes on its own."""
    distributed = sys.modules.get("distributed")
    chosen = dask.config.get("scheduler", None)
    if distributed is None or chosen not in (None, "distributed", "dask.distributed"):
        return None
    try:
        return distributed.default_client()
    except ValueError:
        return None


def mapped(estimator: Any, X: Any, method: str) -> Any:
    """Return what a method of an estimator returns for the rows of a Dask collection X.

    The estimator is copied, so that fitting it again does not change the result.
    """
    import dask.array as da  # not above: workers, which need it not, would take long to import it

    configured = getattr(estimator, "_sklearn_output_config", {})
    container = configured.get("transform", get_config()["transform_output"])
    if method == "transform" and container != "default":
        raise ValueError(
            f"the output of transform is set to {container!r}, but the codes of a Dask collection "
            "are a Dask array or data frame, like the collection: call "
            "set_output(transform='default')."
        )
    if X.ndim != 2:
        raise ValueError(f"X has {X.ndim} dimensions, expected rows and columns: two.")
    if (len(X.columns) if is_frame(X) else X.shape[1]) == 0:
        raise ValueError("X has no columns: at least one column of numbers is needed.")
    copy = pickle.loads(pickle.dumps(estimator))
    if is_frame(X):
        return _mapped_frame(copy, X, method)
    X = one_column_chunk(X)
    example = getattr(copy, method)(_example_rows(X))
    example = example if is_array(example) else np.asarray(example)
    vars(copy).pop("feature_names_in_", None)  # scikit-learn warned of them for the example
    is_matrix = example.ndim == 2
    if method == "inverse_transform":
        X = _in_blocks(X, int(example.shape[1]) * example.dtype.itemsize)
    starts = first_rows(row_lengths(X), X.numblocks[0])
    return da.map_blocks(
        partial(_applied_chunk, method, example[:0], starts),
        X,
        dask.delayed(copy, pure=False),
        dtype=example.dtype,
        chunks=(X.chunks[0], (example.shape[1],)) if is_matrix else (X.chunks[0],),
        drop_axis=None if is_matrix else 1,
        meta=example[:0],
    )


def _in_blocks(X: Any, row_bytes: int) -> Any:
    """Return codes X in chunks of so few rows that the decoded rows of a chunk need little memory.

    Decoded rows need at most `LARGEST_BLOCK` times the memory of a block, if the lengths of the
    chunks are known.
    """
    lengths = row_lengths(X)
    most = max(1, LARGEST_BLOCK * sizes.BLOCK_BYTES // row_bytes)
    if lengths is None or max(lengths) <= most:
        return X
    parts = [min(most, n - at) for n in lengths for at in range(0, n, most)]
    return X.rechunk({0: tuple(parts)})


def _example_rows(X: Any) -> Any:
    """Return one row of zeros in the array library and dtype of the chunks of X.

    The result of a method for this row has the number of columns and the dtype of all results.
    """
    if math.isnan(X.shape[1]):
        raise ValueError("X has an unknown number of columns: call compute_chunk_sizes.")
    meta, shape = X._meta, (1, int(X.shape[1]))
    if scipy.sparse.issparse(meta):
        return scipy.sparse.csr_array(shape, dtype=X.dtype)
    return namespace(meta).zeros(shape, dtype=X.dtype)


def _applied_chunk(
    method: str,
    empty: Any,
    starts: list[int | None],
    rows: Any,
    estimator: Any,
    block_id: Any = None,
) -> Any:
    """Return the result of `method` for one chunk of rows; it is `empty` if there are no rows."""
    if not rows.shape[0]:
        return empty
    index = 0 if block_id is None else block_id[0]
    return _applied_rows(method, rows, estimator, index, starts[index])


def _applied_rows(method: str, rows: Any, estimator: Any, index: int, first_row: int | None) -> Any:
    """Return the result of `method` for one chunk of rows; an error names the chunk and the row."""
    try:
        found = getattr(estimator, method)(rows)
    except ValueError as error:
        checked = floating_rows(rows, "X", index, first_row)
        block = RowBlock(checked, None, None, index, first_row)
        raise located(error, [block], "X", column_names(rows)) from None
    return found if is_array(found) else np.asarray(found)


def _mapped_frame(estimator: Any, X: Any, method: str) -> Any:
    """Return what a method of an estimator returns for a Dask data frame X, with the index of X."""
    import pandas as pd

    zeros = pd.DataFrame(np.zeros((1, len(X.columns))), columns=list(X._meta.columns))
    zeros = zeros.astype(X._meta.dtypes.to_dict())
    example = np.asarray(getattr(estimator, method)(zeros))
    columns = None if example.ndim == 1 else _output_names(estimator, method, example.shape[1])
    meta = _labelled(example[:0], pd.RangeIndex(0), columns)
    if columns is None and method == "predict":
        meta = meta.rename(next(iter(getattr(estimator, "_target_names", [])), None))
    # scikit-learn has warned of missing names for the example, and would in each partition.
    names = list(X._meta.columns)
    if all(isinstance(name, str) for name in names):
        estimator.feature_names_in_ = np.asarray(names, dtype=object)
    else:
        vars(estimator).pop("feature_names_in_", None)
    held = dask.delayed(estimator, pure=False)
    return X.map_partitions(partial(_applied_partition, method, meta), held, meta=meta)


def _output_names(estimator: Any, method: str, count: int) -> list[Any]:
    """Return the names of the columns of the results of `method`.

    They are the names of the codes, features or targets; those without names get numbers.
    """
    if method == "transform":
        return [str(name) for name in estimator.get_feature_names_out()]
    names = getattr(estimator, "feature_names_in_", None)
    if method == "inverse_transform" and names is not None:
        return [str(name) for name in names]
    targets = getattr(estimator, "_target_names", None) if method == "predict" else None
    return list(range(count)) if targets is None else list(targets)


def _labelled(values: Any, index: Any, columns: list[Any] | None) -> Any:
    """Return values as a data frame with the given columns, or as a series if `columns` is None."""
    import pandas as pd

    if columns is None:
        return pd.Series(np.asarray(values), index=index)
    return pd.DataFrame(np.asarray(values), index=index, columns=columns)


def _applied_partition(
    method: str, meta: Any, frame: Any, estimator: Any, partition_info: Any = None
) -> Any:
    """Return the result of a method for one partition (`frame`) of a data frame, on a worker."""
    if not len(frame):
        return meta.set_axis(frame.index, axis=0)
    index = 0 if partition_info is None else partition_info["number"]
    first_row = first_row_of(frame, None if index else 0)
    found = _applied_rows(method, frame, estimator, index, first_row)
    if meta.ndim == 2:
        return _labelled(found, frame.index, list(meta.columns))
    return _labelled(found, frame.index, None).rename(meta.name)


def dask_of_file(path: Any, options: Any = None) -> Any:
    """Return the rows of a file as a lazy Dask collection; every worker must be able to read it."""
    import dask.array as da

    file = Path(path).resolve()
    data = blocks_of_file(file, options=options)
    if isinstance(data, ParquetBlocks):
        return _frame_of_parquet(data)
    if hasattr(data, "layout"):
        return _frame_of_text(data)
    assert data.n_rows is not None, "arrays in files have a shape"
    starts = range(0, data.n_rows, data.rows_per_block)
    read = dask.delayed(rows_of_file, pure=True)
    chunks = []
    for start in starts:
        count = min(data.rows_per_block, data.n_rows - start)
        block = read(str(file), start, count, options)
        chunks.append(da.from_delayed(block, (count, data.n_features), data.dtype))
    return da.concatenate(chunks, axis=0)


def _frame_of_parquet(data: ParquetBlocks) -> Any:
    """Return the columns of numbers of a Parquet file as a lazy data frame.

    A partition consists of consecutive row groups that fit into one block together. A row group is
    not divided, since a reader has to decode it from its start.
    """
    import dask.dataframe as dd

    groups: list[list[int]] = []
    counts: list[int] = []
    for number, count in enumerate(data.group_lengths()):
        if groups and counts[-1] + count <= data.rows_per_block:
            groups[-1].append(number)
            counts[-1] += count
        else:
            groups.append([number])
            counts.append(count)
    starts = first_rows(tuple(counts), len(counts))
    meta = _frame_of_groups(data, [], 0, 0)
    return dd.from_map(partial(_frame_of_groups, data), groups, counts, starts, meta=meta)


def _frame_of_groups(data: ParquetBlocks, groups: list[int], n_rows: int, first_row: int) -> Any:
    """Return the rows of some row groups of a Parquet file as a data frame, on a Dask worker."""
    import pandas as pd

    index = pd.RangeIndex(first_row, first_row + n_rows, name=ROW_INDEX)
    rows = data.rows_of_groups(groups, n_rows)
    return pd.DataFrame(rows, index, columns=list(data.chosen.names), copy=False)


def _frame_of_text(data: Any) -> Any:
    """Return the columns of numbers of a text file as a lazy data frame.

    The workers read parts of the file as text and convert them to numbers: Dask would take the type
    of a column from its first rows, and then refuse a part with whole numbers in a column of other
    numbers.
    """
    import dask.dataframe as dd
    import pandas as pd

    from lucidae.rows.text import AS_TEXT, parsing

    names, columns = list(data.all_names), list(data.feature_names)
    cells = dd.read_csv(
        data.file, blocksize=sizes.BLOCK_BYTES, names=names, **parsing(data.layout), **AS_TEXT
    )
    meta = pd.DataFrame(np.empty((0, len(columns))), columns=columns)
    return cells.map_partitions(partial(_numbers_of_text, data), meta=meta)


def _numbers_of_text(data: Any, cells: Any) -> Any:
    """Return the columns of numbers of one part of a text file, on a Dask worker."""
    import pandas as pd

    rows = data.numbers(cells.set_axis(range(cells.shape[1]), axis=1), row=None)
    return pd.DataFrame(rows, columns=list(data.feature_names), index=cells.index)
