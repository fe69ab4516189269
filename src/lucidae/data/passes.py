"""Passes over blocks of rows: their second moment, and methods applied block by block."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any, TypeVar

import numpy as np

from lucidae.arrays import Array, is_numpy, namespace
from lucidae.data.blocks import RowBlock, coalesced, concatenated, located
from lucidae.data.kinds import (
    AlignedBlocks,
    aligned_blocks,
    in_memory,
    is_dask,
    named_rows,
    row_blocks,
)
from lucidae.iteration.callbacks import ProgressDisplay, display, time_left
from lucidae.moments import SecondMoment

__all__ = [
    "ReadInterrupted",
    "by_blocks",
    "fold",
    "read_moment",
    "rows_or_moment",
    "store_features",
]

DELAY = 2.0
"""Seconds before the progress of a pass is shown."""

Summary = TypeVar("Summary")
Method = TypeVar("Method", bound=Callable[..., Any])
Leaf = Callable[[Any, Any, Any], Any]
"""A summary of one block, as a function of its rows, targets and weights."""


class ReadInterrupted(KeyboardInterrupt):
    """Ctrl-C during a pass over the data; what was read so far is not lost.

    Attributes
    ----------
    moment : SecondMoment or None
        The moment of the rows that were read, with the targets after the features if there are
        targets; None if there is none, for example because a Dask cluster was reading.
    n_rows : int
        Number of rows that were read. `lucidae.data.row_blocks` with this number as `first_row`
        gives the other rows.
    """

    def __init__(self, moment: SecondMoment | None, n_rows: int) -> None:
        super().__init__(f"interrupted after {n_rows} rows were read")
        self.moment = moment
        self.n_rows = n_rows


def read_moment(
    data: AlignedBlocks,
    leaf: Leaf | None = None,
    *,
    start: SecondMoment | None = None,
    verbose: bool = False,
) -> SecondMoment:
    """Return the second moment of data, from one pass over its blocks.

    Parameters
    ----------
    data : AlignedBlocks
        The rows, with their targets and weights.
    leaf : callable, optional
        The moment of one block, as a function of its rows, targets and weights; by default that
        of its rows.
    start : SecondMoment, optional
        Moment of rows that were read before, which is merged with that of these rows.
    verbose : bool, default=False
        Whether the progress is shown.

    Returns
    -------
    SecondMoment

    Raises
    ------
    ReadInterrupted
        After Ctrl-C, with the moment of the rows read until then.
    """
    found: SecondMoment | None
    found = fold(data, leaf or _moment_of_rows, SecondMoment.merge, start=start, verbose=verbose)
    if found is None:
        raise ValueError("sample_weight sums to 0, expected a positive number.")
    return found


def _moment_of_rows(rows: Any, _targets: Any, weights: Any) -> SecondMoment:
    return SecondMoment.of(rows, weights)


def fold(
    data: AlignedBlocks,
    leaf: Leaf,
    combine: Callable[[Any, Any], Any],
    *,
    start: Any = None,
    verbose: bool = False,
) -> Any:
    """Return a summary of all blocks, such as their second moment, from one pass over the data.

    `leaf` computes the summary of one block, and `combine` joins two summaries. Blocks without a
    positive weight are left out; the result is None if there are no others. Dask computes the
    summaries where the blocks are, and joins them in a tree.
    """
    if hasattr(data, "fold"):
        try:
            total = data.fold(leaf, combine, verbose)
        except KeyboardInterrupt:
            raise ReadInterrupted(start, 0) from None
        return total if start is None or total is None else combine(start, total)
    done = (start, 0)
    try:
        with shown_rows(data.rows.n_rows_to_read, "reading rows", verbose) as show:
            least = min(data.rows.rows_per_block, 2 * data.rows.n_features)
            for block in coalesced(data, least):
                done = _after(done, block, data.rows.name, leaf, combine)
                show(done[1])
    except KeyboardInterrupt:
        moment = done[0] if isinstance(done[0], SecondMoment) else None
        raise ReadInterrupted(moment, data.rows.first_row + done[1]) from None
    return done[0]


def _after(
    done: tuple[Any, int],
    block: RowBlock,
    name: str,
    leaf: Leaf,
    combine: Callable[[Any, Any], Any],
) -> tuple[Any, int]:
    """Return the summary of all rows read so far, and their number, after one more block."""
    total, count = done
    part = leaf_of(block, name, leaf)
    if part is not None:
        total = part if total is None else combine(total, part)
    return total, count + int(block.rows.shape[0])


def leaf_of(block: RowBlock, name: str, leaf: Leaf) -> Any:
    """Return the summary of a block, computed by `leaf`; an error in it names the block.

    The result is None if all weights of the block are zero.
    """
    rows, targets, weights = block[:3]
    if weights is not None and not bool(namespace(weights).any(weights > 0)):
        return None
    try:
        return leaf(rows, targets, weights)
    except ValueError as error:
        raise located(error, block, name) from None


@contextmanager
def shown_rows(
    total: int | None, description: str, verbose: bool, unit: str = "rows"
) -> Iterator[Callable[[int], None]]:
    """Yield a function that shows how many rows were read, once two seconds have passed."""
    if not verbose:
        yield lambda _: None
        return
    began, shown = time.monotonic(), list[ProgressDisplay]()

    def show(count: int) -> None:
        elapsed = time.monotonic() - began
        if elapsed < DELAY:
            return
        if not shown:
            shown.append(display(description, DELAY))
        line = _progress_line(description, count, total, elapsed, unit)
        shown[0].show(line, count, total)

    try:
        yield show
    finally:
        for bar in shown:
            bar.close()


def _progress_line(
    description: str, count: int, total: int | None, elapsed: float, unit: str
) -> str:
    rate = count / elapsed
    if total is None:
        return f"{description}: {count} {unit}, {rate:.3g} {unit} per second"
    left = time_left((total - count) / rate if rate else 0.0)
    return f"{description}: {count} of {total} {unit}, {rate:.3g} {unit} per second, {left} left"


def rows_or_moment(X: Any, sample_weight: Any) -> tuple[Any, Any]:
    """Return rows and weights if they fit into one block, else their second moment and None."""
    data = aligned_blocks(X, None, sample_weight)
    small = data.load()
    return (read_moment(data), None) if small is None else (small.rows, small.weights)


def store_features(estimator: Any, data: AlignedBlocks) -> None:
    """Store the number and the names of the features in a fitted estimator."""
    estimator.n_features_in_ = data.rows.n_features
    if data.rows.feature_names is not None:
        estimator.feature_names_in_ = np.asarray(data.rows.feature_names, dtype=object)
    else:
        vars(estimator).pop("feature_names_in_", None)


def by_blocks(method: Method) -> Method:
    """Let a method that maps rows to rows, such as `transform`, take data of any kind.

    Arrays in memory go to the method as they are. Other data are read block by block, and only the
    result is in memory; for a Dask collection the result is a lazy Dask collection with the same
    chunks of rows.

    Examples
    --------
    >>> class Doubler:
    ...     @by_blocks
    ...     def transform(self, X):
    ...         return 2 * X
    >>> Doubler().transform(np.full((1, 2), float(i)) for i in range(3))
    array([[0., 0.],
           [2., 2.],
           [4., 4.]])
    """

    @wraps(method)
    def blockwise(self: Any, X: Any) -> Any:
        if in_memory(X):
            return method(self, X)
        if is_dask(X):
            from lucidae.data.dask_blocks import mapped

            return mapped(self, X, method.__name__)
        return _applied(partial(method, self), X, bool(getattr(self, "verbose", False)))

    return blockwise  # type: ignore[return-value]


def _applied(apply: Callable[[Any], Array], X: Any, verbose: bool) -> Array:
    """Return the results of a method for all blocks, one after the other."""
    data = row_blocks(X)
    results = _Results(data.n_rows_to_read)
    with shown_rows(data.n_rows_to_read, "computing rows", verbose) as show:
        for block in data.blocks():
            try:
                results.append(apply(named_rows(block.rows, data.feature_names)))
            except ValueError as error:
                raise located(error, block, data.name) from None
            show(results.count)
    return results.joined()


class _Results:
    """Results of a method for blocks of rows.

    If their number of rows is known, they are written into one array.
    """

    def __init__(self, n_rows: int | None) -> None:
        self.n_rows = n_rows
        self.count = 0
        self._parts: list[Any] = []
        self._whole: Any = None

    def append(self, part: Any) -> None:
        end = self.count + int(part.shape[0])
        if self._whole is None and self.n_rows is not None and is_numpy(part):
            self._whole = np.empty((self.n_rows, *part.shape[1:]), dtype=part.dtype)
        if self._whole is None:
            self._parts.append(part)
        else:
            self._whole[self.count : end] = part
        self.count = end

    def joined(self) -> Any:
        return concatenated(self._parts) if self._whole is None else self._whole
