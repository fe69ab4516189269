"""Lazy Dask collections: rows of a file, and results of an estimator's methods for a collection."""

from __future__ import annotations

import math
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import scipy.sparse

from lucidae.arrays import is_array, namespace
from lucidae.data import blocks as sizes
from lucidae.data.blocks import LARGEST_BLOCK, RowBlock, column_names, floating_rows, located
from lucidae.data.dask_blocks import (
    ROW_INDEX,
    first_row_of,
    first_rows,
    is_frame,
    one_column_chunk,
    row_lengths,
)
from lucidae.data.files import ParquetBlocks, blocks_of_file, rows_of_file

__all__ = ["dask_of_file", "mapped"]


def mapped(estimator: Any, X: Any, method: str) -> Any:
    """Return what a method of an estimator returns for the rows of a Dask collection X.

    The estimator is copied, so that fitting it again does not change the result.
    """
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
        raise located(error, block, "X", column_names(rows)) from None
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
    groups, counts = groups or [[]], counts or [0]
    read = partial(_frame_of_groups, data)
    meta = _rows_of_parquet(data, np.empty((0, data.n_features), dtype=data.dtype), 0)
    return dd.from_map(read, groups, counts, first_rows(tuple(counts), len(counts)), meta=meta)


def _frame_of_groups(data: ParquetBlocks, groups: list[int], n_rows: int, first_row: int) -> Any:
    """Return the rows of some row groups of a Parquet file as a data frame, on a Dask worker."""
    return _rows_of_parquet(data, data.rows_of_groups(groups, n_rows), first_row)


def _rows_of_parquet(data: ParquetBlocks, rows: Any, first_row: int) -> Any:
    """Return rows of a Parquet file as a data frame, whose index counts the rows of the file."""
    import pandas as pd

    index = pd.RangeIndex(first_row, first_row + len(rows), name=ROW_INDEX)
    return pd.DataFrame(rows, index, columns=list(data.feature_names or ()), copy=False)


def _frame_of_text(data: Any) -> Any:
    """Return the columns of numbers of a text file as a lazy data frame.

    The workers read parts of the file as text and convert them to numbers: Dask would take the type
    of a column from its first rows, and then refuse a part with whole numbers in a column of other
    numbers.
    """
    import dask.dataframe as dd
    import pandas as pd

    from lucidae.data.text import AS_TEXT, parsing

    names, columns = list(data.all_names), list(data.feature_names)
    cells = dd.read_csv(
        data.file, blocksize=sizes.BLOCK_BYTES, names=names, **parsing(data.layout), **AS_TEXT
    )
    meta = pd.DataFrame(np.empty((0, len(columns))), columns=columns)
    return cells.map_partitions(partial(_numbers_of_text, data), meta=meta)


def _numbers_of_text(data: Any, cells: Any) -> Any:
    """Return the columns of numbers of one part of a text file, on a Dask worker."""
    import pandas as pd

    from lucidae.data.text import without_blank_rows

    filled = without_blank_rows(cells.set_axis(range(cells.shape[1]), axis=1))
    rows = data.numbers(filled, row=None)
    return pd.DataFrame(rows, columns=list(data.feature_names), index=filled.index)
