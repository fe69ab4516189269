"""Recognition of the kind of data, and blocks of X with their targets and weights."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import scipy.sparse

from lucidae.arrays import is_array
from lucidae.rows import blocks as sizes
from lucidae.rows.blocks import (
    ArrayBlocks,
    RowBlock,
    RowBlocks,
    RowQueue,
    column_names,
    concatenated,
    floating_rows,
    reference_of_rows,
)
from lucidae.rows.files import MapBlocks, blocks_of_file, warn_of_reading
from lucidae.validation import (
    ACCEPTED,
    DataKind,
    anndata_rows,
    check_integer,
    check_number,
    check_weights,
    is_anndata_in_memory,
    is_dask,
    kind_of,
    named_sparse,
    numeric_columns,
    real_array,
)

__all__ = [
    "AlignedBlocks",
    "LoadedRows",
    "aligned_blocks",
    "check_batch",
    "in_memory",
    "is_dask",
    "loaded",
    "named_for",
    "refuse_iterator",
    "row_blocks",
]

Method = TypeVar("Method", bound=Callable[..., Any])


def in_memory(X: Any, name: str = "X", *, rows_drawn: bool = False) -> bool:
    """Tell whether `X` is an array, a sparse matrix, a data frame, an AnnData or a list of numbers.

    An error calls it `name`.

    Everything else is read in blocks: files, memory maps larger than one block, arrays of HDF5 and
    Zarr, AnnData on disk, iterables of batches and Dask collections. If rows are drawn in random
    order (`rows_drawn`), memory maps of any size count as in memory.
    """
    if type(X) is np.ndarray or X is None:
        return True
    kind = kind_of(X, name)
    if kind is DataKind.MAP:
        return rows_drawn or X.nbytes <= sizes.BLOCK_BYTES
    return kind is DataKind.ROWS or (kind is DataKind.ANNDATA and is_anndata_in_memory(X))


class _Batches:
    """Iterable of the batches that a function returns; each iteration calls the function again."""

    def __init__(self, function: Callable[[], Iterable[Any]]) -> None:
        self.function = function

    def __iter__(self) -> Iterator[Any]:
        batches = self.function()
        if not isinstance(batches, Iterable):
            raise ValueError(
                f"a function was given that returns {type(batches).__name__}, expected an iterable "
                "of batches of rows."
            )
        return iter(batches)


def refuse_iterator(X: Any) -> None:
    """Raise an error if `X` can be read only once, for a method that reads it twice."""
    once = not X.repeatable if isinstance(X, RowBlocks) else isinstance(X, Iterator)
    if once and not in_memory(X):
        raise ValueError(
            "fit_transform reads X twice, to fit and to transform, but X is an iterator, which can "
            "be read only once: give a function that returns a new iterator, a list of batches to "
            "fit_batches, or a file."
        )


def check_batch(X: Any) -> None:
    """Raise an error if `X` is not one batch of rows in memory, for `partial_fit`."""
    rows = (DataKind.ROWS, DataKind.MAP, DataKind.STORED, DataKind.ANNDATA)
    if not isinstance(X, np.ndarray) and kind_of(X) not in rows:
        raise ValueError(
            f"X is of type {type(X).__name__}, but partial_fit expects one batch of rows in "
            "memory: call it with each batch, or give files, iterables of batches and Dask "
            "collections to fit_batches."
        )


def row_blocks(X: Any, name: str = "X", *, first_row: int = 0) -> RowBlocks:
    """Return data of any kind as blocks of rows.

    Parameters
    ----------
    X : array-like, data frame, sparse matrix, path, iterable of batches or Dask collection
        Arrays of NumPy, torch and CuPy, memory maps, arrays of `h5py` and `zarr`, paths of
        ``.npy``, ``.csv``, ``.tsv``, ``.parquet``, ``.h5`` and ``.zarr``, generators of batches,
        functions without arguments that return one, Dask arrays and data frames.
    name : str, default="X"
        What messages call the data; a file is called by its own name.
    first_row : int, default=0
        Rows before this one are left out, for example because they were read before an
        interruption.

    Returns
    -------
    RowBlocks
        It has `n_features`, `n_rows` (None if it is not known), `dtype`, `feature_names`,
        `repeatable`, and yields blocks of rows.

    Examples
    --------
    >>> import numpy as np
    >>> from lucidae.rows import row_blocks
    >>> batches = (np.full((2, 3), float(i)) for i in range(4))
    >>> data = row_blocks(batches)
    >>> data.n_features, data.n_rows, data.repeatable
    (3, None, False)
    >>> sum(len(rows) for rows in data)
    8
    """
    return _opened(X, name, first_row=check_integer(first_row, "first_row", low=0))


def _opened(
    X: Any,
    name: str,
    *,
    flat: bool = False,
    first_row: int = 0,
    with_targets: bool = False,
    batches: bool = False,
) -> RowBlocks:
    """Return data of any kind as blocks of rows, as `row_blocks` does, with further options.

    If `flat`, a vector is accepted. If `with_targets`, the targets in the batches of an iterable
    are used. If `batches`, a list is an iterable of batches and not of rows.
    """
    kind = kind_of(X, name)
    if kind is DataKind.BLOCKS:
        return X  # type: ignore[no-any-return]
    given: dict[str, Any] = {"flat": flat, "first_row": first_row}
    if kind is DataKind.FILE:
        if name != "X" and not Path(X).exists():
            raise ValueError(
                f"There is no file {os.fspath(X)!r}, which was given as {name}: check the path."
            )
        data = blocks_of_file(X, **given)
        warn_of_reading(data)
        return data
    if kind is DataKind.MAP:
        return MapBlocks(X, name, **given)
    if kind is DataKind.ANNDATA:
        rows = anndata_rows(X, name) if is_anndata_in_memory(X) else X.X
        return _opened(rows, name, **given).named(tuple(map(str, X.var_names)))
    if kind is DataKind.DASK:
        from lucidae.rows.dask import DaskBlocks

        return DaskBlocks(X, name, **given)
    if isinstance(X, list | tuple) and not batches:
        X = np.asarray(X)
    if kind is DataKind.STORED or (kind is DataKind.ROWS and hasattr(X, "shape")):
        return ArrayBlocks(X if flat else numeric_columns(X, name), name, **given)
    if not isinstance(X, Iterable) and kind is not DataKind.FUNCTION:
        raise ValueError(f"{name} is of type {type(X).__name__}, expected {ACCEPTED}.")
    rows = _Batches(X) if kind is DataKind.FUNCTION else X
    return BatchBlocks(rows, name, with_targets=with_targets, **given)


def loaded(values: Any, name: str = "y") -> Any:
    """Return targets or weights of any kind as an array in memory; messages call them `name`."""
    if in_memory(values, name):
        return values
    if is_dask(values):
        whole = values.compute()
        return whole if is_array(whole) else np.asarray(whole)
    data = _opened(values, name, flat=True)
    whole = concatenated(list(data))
    return whole[:, 0] if data.flat else whole


class LoadedRows(NamedTuple):
    """Rows, targets and weights of data that fit into one block, or of one batch, in memory.

    A vector of targets stays one-dimensional.
    """

    rows: Any
    targets: Any
    weights: Any


class AlignedBlocks:
    """Blocks of X with the targets and the weights of the same rows."""

    def __init__(
        self, rows: RowBlocks, targets: RowBlocks | None, weights: RowBlocks | float | None
    ) -> None:
        self.rows = rows
        self.targets = targets
        self.weights = weights
        sources = [part for part in (rows, targets, weights) if isinstance(part, RowBlocks)]
        self.repeatable = all(source.repeatable for source in sources)
        self.flat_targets = (
            getattr(rows, "flat_targets", False) if targets is None else targets.flat
        )
        self._begun: Iterator[RowBlock] | None = None

    def __iter__(self) -> Iterator[RowBlock]:
        """Yield blocks with targets as columns and checked weights."""
        begun, self._begun = self._begun, None
        return self._pass() if begun is None else begun

    def begin_with(self, read: list[RowBlock], rest: Iterator[RowBlock]) -> None:
        """Let the next pass begin with blocks that were read already, and go on with the `rest`."""
        self._begun = chain(read, rest)

    def _pass(self) -> Iterator[RowBlock]:
        """Yield the blocks of X with the targets and weights of the same rows, in one pass."""
        targets = None if self.targets is None else RowQueue(self.targets)
        weights = RowQueue(self.weights) if isinstance(self.weights, RowBlocks) else None
        constant = None if isinstance(self.weights, RowBlocks) else self.weights
        for block in self.rows.blocks():
            count = block.n_rows
            y = block.targets if targets is None else targets.take(count)
            w = block.weights if weights is None else weights.take(count)[:, 0]
            yield aligned(block, y, w if constant is None else constant)
        for queue in (targets, weights):
            if queue is not None:
                queue.finish()

    @property
    def most_loaded(self) -> int:
        """Number of rows up to which the data are loaded into memory instead of read in blocks.

        Fewer rows than columns take less memory than the second moment would.
        """
        return max(self.rows.rows_per_block, self.rows.n_features)

    def may_fit(self, most_bytes: int | None) -> bool:  # noqa: ARG002
        """Tell whether the data may be small enough to be loaded, as far as it is cheap to know."""
        return True


def aligned(block: RowBlock, targets: Any, weights: Any) -> RowBlock:
    """Return a block of X with checked targets and weights; the weights may all be zero.

    One number as weight means equal weights.
    """
    count = block.n_rows
    if targets is not None and targets.shape[0] != count:
        raise ValueError(
            f"block {block.number} has {count} rows of X and {targets.shape[0]} of y: give one row "
            "of y for each row of X."
        )
    if weights is None:
        return block._replace(targets=targets)
    try:
        weights = check_weights(weights, block.rows, allow_zero=True)
    except ValueError as error:
        raise ValueError(f"block {block.number}: {error}") from None
    return block._replace(targets=targets, weights=weights)


def named_rows(rows: Any, names: tuple[str, ...] | None) -> Any:
    """Return rows with the names of their columns, if there are any, in a form that has them."""
    if names is None:
        return rows
    if scipy.sparse.issparse(rows):
        return named_sparse(rows, names)
    if not isinstance(rows, np.ndarray):
        return rows
    try:
        import pandas as pd
    except ImportError:
        return rows
    return pd.DataFrame(rows, columns=list(names))


def named_for(estimator: Any, rows: Any, names: tuple[str, ...] | None, *, first: bool) -> Any:
    """Return the rows of a block for a method of a fitted estimator, with the names of columns.

    scikit-learn warns in every call if either the data or the rows of the fit have no names. So
    only the `first` block has the names of the data, and later ones have those of the fit.
    """
    if not first:
        fitted = getattr(estimator, "feature_names_in_", None)
        names = None if fitted is None or len(fitted) != rows.shape[1] else tuple(fitted)
    return named_rows(rows, names)


def aligned_blocks(
    X: Any, y: Any = None, sample_weight: Any = None, *, with_targets: bool = False
) -> AlignedBlocks:
    """Return blocks of X with the targets and weights of the same rows, of any kinds of data.

    Parameters
    ----------
    X : data of any kind, or an iterable of batches
        The rows. A list is an iterable of batches here.
    y : data of any kind, optional
        Targets. They may also be the second part of the batches.
    sample_weight : data of any kind or float, optional
        Weights of the rows. They may also be the last part of the batches.
    with_targets : bool, default=False
        Whether the estimator requires targets.

    Returns
    -------
    AlignedBlocks
        The blocks, each with its rows, targets and weights.
    """
    in_batches = with_targets and y is None
    rows = _opened(X, "X", with_targets=in_batches, batches=True)
    if in_batches and not isinstance(rows, BatchBlocks):
        raise ValueError(
            "y is None, but this estimator requires y: pass the targets as y, or in batches (X, y)."
        )
    targets = None if y is None else _opened(y, "y", flat=True)
    weights = sample_weight
    if isinstance(weights, Real):
        weights = check_number(weights, "sample_weight", low=0.0)
    elif weights is not None:
        if in_memory(weights, "sample_weight"):
            weights = real_array(weights, "sample_weight")
        weights = _opened(weights, "sample_weight", flat=True)
        if not weights.flat:
            n_rows = "n" if weights.n_rows is None else weights.n_rows
            raise ValueError(
                f"sample_weight has shape ({n_rows}, {weights.n_features}), expected ({n_rows},): "
                "one weight per row."
            )
    if is_dask(getattr(rows, "collection", None)):
        from lucidae.rows.dask import DaskAligned

        return DaskAligned(rows, targets, weights)
    return AlignedBlocks(rows, targets, weights)


class BatchBlocks(RowBlocks):
    """An iterable of batches of rows; a generator can be read once only.

    The first batch is read at once, to know the columns and the dtype. The first pass continues
    from it, so that no batch is lost or read twice, also if the iterable returns the same iterator
    each time.
    """

    def __init__(
        self,
        batches: Iterable[Any],
        name: str,
        *,
        with_targets: bool = False,
        flat: bool = False,
        first_row: int = 0,
    ) -> None:
        given = iter(batches)
        self._batches = batches
        self._with_targets = with_targets
        self._columns: tuple[str, ...] | None = None
        iterator = self._opened_files(given, name)
        first = next((batch for batch in iterator if _n_rows(batch, name)), None)
        if first is None:
            raise ValueError(
                f"{name} yields no rows: at least one batch with a row is needed, and an iterator "
                "that was read before yields none."
            )
        rows, targets, weights = _parts(first, name)
        self._weighted = weights is not None
        self._n_targets: int | None = None
        self.flat_targets = with_targets and len(np.shape(targets)) == 1
        is_vector = flat and len(getattr(rows, "shape", (0,))) == 1
        checked = floating_rows(rows, name, 0, 0, flat=is_vector)
        self._given = given
        self._first_pass: Iterator[Any] | None = chain([first], iterator)
        super().__init__(
            name,
            int(checked.shape[1]),
            reference_of_rows(checked),
            feature_names=self._columns or column_names(rows),  # type: ignore[redundant-expr]  # `_opened_files` sets it
            repeatable=given is not batches,
            flat=is_vector,
            first_row=first_row,
        )

    def read(self) -> Iterator[Any]:
        """Yield the batches as they were given; `blocks` separates rows, targets and weights."""
        return (block.rows for block in self.blocks())

    def blocks(self) -> Iterator[RowBlock]:
        """Yield the batches with their targets and weights."""
        row, index, skipped = 0, -1, self.first_row
        for batch in self._next_pass():
            if not _n_rows(batch, self.name):
                continue
            index += 1
            raw, targets, weights = _parts(batch, self.name)
            targets = targets if self._with_targets else None
            names = column_names(raw)
            if names is not None and names != (self.feature_names or names):
                raise ValueError(
                    f"block {index} of {self.name} has other columns than the first block: all "
                    "blocks need the same columns in the same order."
                )
            rows = self.form.checked(raw, index, row)
            if targets is not None:
                targets = floating_rows(targets, "y", index, row, flat=True)
            self._check_parts(targets, weights, index)
            cut = max(0, skipped - row)
            if cut < rows.shape[0]:
                targets, weights = (
                    None if part is None else part[cut:] for part in (targets, weights)
                )
                yield RowBlock(rows[cut:], targets, weights, index, row + cut)
            row += rows.shape[0]
        if self.n_rows not in (None, row):
            raise ValueError(
                f"{self.name} yielded {self.n_rows} rows when it was read first, but {row} when it "
                "was read again: give batches that are the same each time."
            )
        self.n_rows = row
        if row <= skipped:
            raise ValueError(
                f"{self.name} has {row} rows, but the first {skipped} rows are to be left out: "
                "give a smaller first_row."
            )

    def _check_parts(self, targets: Any, weights: Any, index: int) -> None:
        """Raise an error unless batch `index` has targets and weights as the first one has."""
        if (weights is not None) != self._weighted:
            has, first = ("no weights", "has") if self._weighted else ("weights", "has none")
            raise ValueError(
                f"block {index} of {self.name} has {has}, but the first block {first}: give "
                "weights in all batches or in none."
            )
        if not self._with_targets:
            return
        if targets is None:
            raise ValueError(
                f"block {index} of {self.name} has no targets: give each batch as a tuple of rows "
                "and targets, or all targets as y."
            )
        self._n_targets = self._n_targets or int(targets.shape[1])
        if targets.shape[1] != self._n_targets:
            raise ValueError(
                f"block {index} of {self.name} has {targets.shape[1]} targets per row, but "
                f"{self._n_targets} are expected, as in the first block: all batches need the "
                "same targets."
            )

    def _next_pass(self) -> Iterator[Any]:
        """Return an iterator over all batches; an iterator that was read already is an error."""
        first, self._first_pass = self._first_pass, None
        if first is not None:
            return first
        again = iter(self._batches)
        if again is self._given:
            raise ValueError(
                f"{self.name} is an iterator that has been read already: give a new one, or "
                "something that can be read more than once."
            )
        return self._opened_files(again, self.name)

    def _opened_files(self, batches: Iterator[Any], name: str) -> Iterator[Any]:
        """Yield the batches; the path of a file is replaced by the blocks of this file."""
        for batch in batches:
            if not isinstance(batch, str | os.PathLike):
                yield batch
                continue
            data = blocks_of_file(batch)
            warn_of_reading(data)
            self._columns = self._columns or data.feature_names
            if data.feature_names != self._columns:
                raise ValueError(
                    f"{data.name} has other columns than the files of {name} before it: all files "
                    "need the same columns in the same order."
                )
            yield from data


def _parts(batch: Any, name: str) -> LoadedRows:
    """Return rows, targets and weights of a batch; None for targets and weights that it lacks."""
    is_tuple = isinstance(batch, list | tuple) and len(batch) > 0
    if not is_tuple or len(getattr(batch[0], "shape", ())) != 2:
        return LoadedRows(batch, None, None)  # an array, or a list of rows
    if len(batch) > 3:
        raise ValueError(
            f"a batch of {name} has {len(batch)} parts, expected at most 3: rows, targets and "
            "weights."
        )
    return LoadedRows(*batch, *[None] * (3 - len(batch)))


def _n_rows(batch: Any, name: str) -> int:
    """Return the number of rows of a batch, which may be a tuple of rows, targets and weights."""
    rows = _parts(batch, name).rows
    shape = getattr(rows, "shape", None)
    if shape is not None and len(shape):
        return int(shape[0])
    if isinstance(rows, list | tuple):
        return len(rows)
    raise ValueError(
        f"{name} yields {type(rows).__name__}, expected batches of rows: arrays, data frames, "
        "sparse matrices or paths of files."
    )
