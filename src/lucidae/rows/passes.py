"""Passes over blocks of rows: their second moment, and methods applied block by block."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any, NamedTuple, TypeVar

import numpy as np
from scipy.sparse import issparse

from lucidae.arrays import Array, as_double, like, namespace, to_numpy
from lucidae.base import fitting_method
from lucidae.iteration.progress import CountedBar, is_shown
from lucidae.moments import SecondMoment, reads_moments
from lucidae.rows.blocks import (
    RowBlock,
    RowBlocks,
    coalesced,
    concatenated,
    joined,
    located,
    refuse_bad_entries,
    stored_bytes,
)
from lucidae.rows.kinds import (
    AlignedBlocks,
    BatchBlocks,
    LoadedRows,
    aligned_blocks,
    in_memory,
    is_dask,
    named_for,
    named_rows,
    refuse_iterator,
    row_blocks,
)

__all__ = [
    "Passes",
    "ReadInterrupted",
    "ReadTwiceMixin",
    "applied_blocks",
    "by_blocks",
    "check_start",
    "fold",
    "given_moment",
    "load_rows",
    "no_moment",
    "nothing_read",
    "store_features",
]

Summary = TypeVar("Summary")
Method = TypeVar("Method", bound=Callable[..., Any])
SAME_SUM, SAME_SINGLE_SUM = 1e-9, 1e-6
"""Largest difference between the sums Σ w⟨c, x⟩ of two passes over the same rows, relative to the
sum of the absolute values. It is far above rounding errors, of sums in double and in single
precision."""

PROJECTED_ENTRIES = 2**18
"""Number of entries of the rows that are converted to float64 and multiplied at a time."""

Leaf = Callable[[Any, Any, Any], Any]
"""Type of functions that return a summary of one block from its rows, targets and weights."""


class ReadInterrupted(KeyboardInterrupt):
    """Ctrl-C during a pass over the data; what was read so far is not lost.

    Attributes
    ----------
    moment : SecondMoment or None
        The moment of the rows that were read, with the targets after the features if there are
        targets; None if no moment was computed. Of a Dask collection these are the first rows, up
        to the first chunk that was not finished. While chunks of unknown length are counted, no
        moment is computed.
    n_rows : int
        Number of rows that were read. `lucidae.rows.row_blocks` with this number as `first_row`
        gives the other rows.
    """

    def __init__(self, moment: SecondMoment | None, n_rows: int) -> None:
        nothing = "; no moment of them could be kept, so that the fit has to begin anew"
        kept = nothing if moment is None else ""
        super().__init__(f"interrupted after {n_rows} rows were read{kept}")
        self.moment = moment
        self.n_rows = n_rows


@reads_moments
def moment_of_blocks(X: Any, sample_weight: Any, verbose: bool | str) -> SecondMoment | None:
    """Return the second moment of data that are read in blocks; None for arrays in memory."""
    data = X if isinstance(X, AlignedBlocks) else None
    if data is None:
        if in_memory(X) and in_memory(sample_weight, "sample_weight"):
            return None
        data = aligned_blocks(X, None, sample_weight)
    found: SecondMoment | None = fold(data, _moment_of_rows, SecondMoment.merge, verbose=verbose)
    if found is None:
        raise nothing_read(data)
    return found


def nothing_read(data: AlignedBlocks) -> ValueError:
    """Return the error for data without a row of positive weight."""
    if isinstance(data.rows, BatchBlocks) or data.weights is not None:
        return ValueError(
            "sample_weight sums to 0, expected a positive sum: give a positive weight to at least "
            "one row."
        )
    return ValueError(f"{data.rows.name} contains no rows: at least one row is needed.")


def load_rows(
    data: AlignedBlocks,
    leaf: Leaf | None = None,
    *,
    most_bytes: int | None = None,
    missing: bool = False,
    verbose: bool | str = "auto",
) -> LoadedRows | None:
    """Return all rows if they fit into one block or are fewer than the columns, else None.

    If `most_bytes` is given, it alone decides, and sparse rows count by the bytes that they store.
    Blocks that were read to find the size of the data are not read again: the next pass begins with
    them. NaN and infinity raise an error, unless the caller handles `missing` entries itself.
    """
    source, read, rows, size = data.rows, [], 0, 0
    try:
        fits = data.may_fit(most_bytes)
        known, limit = source.n_rows_to_read, data.most_loaded
        if most_bytes is not None:
            width = source.n_features * source.item_bytes
            limit = most_bytes // width if source.is_dense else sys.maxsize
        if not fits or (known is not None and known > limit):
            return None
        blocks = iter(data)
        with Shown("reading {}", verbose).rows(known) as show:
            for block in blocks:
                if not missing:
                    refuse_bad_entries(block, source.name, source.feature_names)
                read.append(block)
                rows += block.n_rows
                show(rows)
                size += 0 if most_bytes is None else stored_bytes(block.rows)
                if rows > limit or (most_bytes is not None and size > most_bytes):
                    data.begin_with(read, blocks)
                    return None
    except KeyboardInterrupt:
        if missing or not read:
            raise ReadInterrupted(None, 0) from None
        found = summary_of(read, source.name, leaf or _moment_of_rows, source.feature_names)
        raise ReadInterrupted(moment_in(found), source.first_row + rows) from None
    X, targets, weights = joined(read)
    flat = targets is not None and data.flat_targets
    return LoadedRows(
        named_rows(X, source.feature_names), targets[:, 0] if flat else targets, weights
    )


def no_moment(_rows: Any, _targets: Any, _weights: Any) -> None:
    """Return None, for blocks whose second moment must not be computed."""


def _moment_of_rows(rows: Any, _targets: Any, weights: Any) -> SecondMoment:
    return SecondMoment.of(rows, weights)


def fold(
    data: AlignedBlocks,
    leaf: Leaf,
    combine: Callable[[Any, Any], Any],
    *,
    start: Any = None,
    verbose: bool | str = "auto",
    shown: Shown | None = None,
) -> Any:
    """Return a summary of all blocks, such as their second moment, from one pass over the data.

    `leaf` returns the summary of one block from its rows, targets and weights, `combine` joins two
    summaries, and `start` is the summary of rows that were read before. Blocks whose weights are
    all zero are left out; the result is None if no block remains. Dask computes the summaries where
    the blocks are, and joins them in a tree. `shown` displays the progress; by default a new
    display is made, as `verbose` says.
    """
    shown = shown or Shown("reading {}", verbose)
    if hasattr(data, "fold"):
        return data.fold(leaf, combine, start, shown)
    source, total, count = data.rows, start, 0
    try:
        with shown.rows(source.n_rows_to_read) as show:
            for blocks in coalesced(data, min(source.rows_per_block, 2 * source.n_features)):
                part = summary_of(blocks, source.name, leaf, source.feature_names)
                if part is not None:
                    total = part if total is None else combine(total, part)
                count += sum(block.n_rows for block in blocks)
                show(count)
    except KeyboardInterrupt:
        raise ReadInterrupted(moment_in(total), source.first_row + count) from None
    return total


def moment_in(summary: Any) -> SecondMoment | None:
    """Return a summary that is a second moment, or the moment that it contains; otherwise None."""
    found = summary if isinstance(summary, SecondMoment) else getattr(summary, "moment", None)
    return found if isinstance(found, SecondMoment) else None


def summary_of(
    blocks: list[RowBlock], name: str, leaf: Leaf, columns: tuple[str, ...] | None = None
) -> Any:
    """Return the summary of consecutive blocks by `leaf`; None if all weights are zero."""
    rows, targets, weights = joined(blocks)
    if weights is not None and not bool(namespace(weights).any(weights > 0)):
        return None
    try:
        return leaf(rows, targets, weights)
    except ValueError as error:
        raise located(error, blocks, name, columns) from None


class Shown:
    """Shows how many rows were read, from the third second after it was made."""

    def __init__(self, description: str, verbose: bool | str) -> None:
        self.description = description
        self.verbose = is_shown(verbose)
        self._began = time.monotonic()

    @contextmanager
    def rows(self, total: int | None, unit: str = "rows") -> Iterator[Callable[[int], None]]:
        """Yield a function that shows how many rows, of `total`, one pass over the data has read.

        `unit` is the name of what is counted.
        """
        bar = CountedBar(self.description.format(unit), unit, began=self._began)
        try:
            yield (lambda count: bar.show(count, total)) if self.verbose else (lambda _: None)
        finally:
            bar.close()


class Checked(NamedTuple):
    """Sums over rows x with weights w, which every pass over the same data must repeat.

    They are Σ w, Σ w⟨c, x⟩ for a random vector c, and Σ w|⟨c, x⟩|. They do not depend on the order
    of the rows, up to rounding errors.
    """

    weight: float
    total: float
    size: float

    def agrees(self, other: Checked, allowed: float) -> bool:
        """Tell whether the sums of two passes are equal up to rounding errors."""
        same = abs(self.weight - other.weight) <= allowed * self.weight
        size = max(self.size, other.size)
        return same and not abs(self.total - other.total) > allowed * size


def _direction(m: int) -> np.ndarray[Any, Any]:
    """Return the random vector c of `Checked`, the same in every pass."""
    return np.random.default_rng(0).standard_normal(m)


def _checked(leaf: Leaf, rows: Any, targets: Any, weights: Any) -> tuple[Any, Checked]:
    """Return the summary of a block of rows by `leaf`, and its `Checked` sums."""
    found, vector = leaf(rows, targets, weights), _direction(rows.shape[1])
    weight = float(rows.shape[0]) if weights is None else float(np.sum(to_numpy(weights)))
    total = size = 0.0
    step = max(1, PROJECTED_ENTRIES // max(1, rows.shape[1]))
    for start in range(0, rows.shape[0], step):
        part = slice(start, min(start + step, rows.shape[0]))
        block = rows[part] if issparse(rows) else as_double(rows[part, :])
        products = to_numpy(block @ (vector if issparse(rows) else like(vector, block)))
        if weights is not None:
            products = products * to_numpy(weights[part])
        total += float(np.sum(products))
        size += float(np.sum(np.abs(products)))
    return found, Checked(weight, total, size)


def _merged(merge: Callable[[Any, Any], Any], one: Any, other: Any) -> Any:
    """Return the results of `_checked` for two sets of rows, joined to one."""
    return merge(one[0], other[0]), Checked(*map(sum, zip(one[1], other[1], strict=True)))


class Passes(Shown):
    """Repeated passes over the same data, with one display of their progress."""

    def __init__(self, data: AlignedBlocks, verbose: bool | str = "auto") -> None:
        super().__init__("reading {}", verbose)
        self.data, self.count = data, 0
        self._expected: Checked | None = None
        self._allowed = SAME_SUM

    def expect(self, moment: SecondMoment) -> None:
        """Demand that the next passes have the mean and the weight of an earlier one."""
        along = float(to_numpy(moment.mean) @ _direction(moment.n_features))
        self._expected = Checked(moment.weight, moment.weight * along, 0.0)
        self._allowed = SAME_SUM if moment.rounding == 0.0 else SAME_SINGLE_SUM

    def total(self, leaf: Leaf, merge: Callable[[Any, Any], Any]) -> Any:
        """Return the summary of all blocks, which `leaf` computes, from a new pass over the data.

        An error is raised if the rows are not those of the passes before.
        """
        self.count += 1
        self.description = f"pass {self.count}, reading {{}}"
        both = fold(self.data, partial(_checked, leaf), partial(_merged, merge), shown=self)
        if both is None:
            raise nothing_read(self.data)
        found, sums = both
        if self._expected is not None and not self._expected.agrees(sums, self._allowed):
            raise ValueError(
                f"the rows of {self.data.rows.name} differed between two passes over it: give a "
                "function that returns the same batches each time, without augmentation or random "
                "choice, or give the rows as an array or a file that nobody writes to."
            )
        self._expected = self._expected or sums
        return found


def check_start(start: Any) -> None:
    """Raise an error unless `start` is the second moment of rows that were read before, or None."""
    if start is not None and not isinstance(start, SecondMoment):
        raise ValueError(
            f"start={start!r} was given, expected a SecondMoment of rows that were read before, "
            "such as the moment of a ReadInterrupted, or None."
        )


def given_moment(estimator: Any, start: SecondMoment | None) -> SecondMoment:
    """Return the moment `start`, to which an estimator is fitted without rows.

    The number of its features is stored in the estimator.
    """
    if start is None:
        raise ValueError(
            "batches and start are both None: give batches of rows, or the moment of all rows as "
            "start."
        )
    estimator.n_features_in_ = start.n_features
    vars(estimator).pop("feature_names_in_", None)
    return start


def store_features(estimator: Any, data: AlignedBlocks) -> None:
    """Store the number and the names of the features in a fitted estimator."""
    estimator.n_features_in_ = data.rows.n_features
    if data.rows.feature_names is not None:
        estimator.feature_names_in_ = np.asarray(data.rows.feature_names, dtype=object)
    else:
        vars(estimator).pop("feature_names_in_", None)


class ReadTwiceMixin:
    """Let `fit_transform` refuse data that can be read only once, before they are fitted."""

    @fitting_method
    def fit_transform(self, X: Any, y: Any = None, **fit_params: Any) -> Any:
        """Fit to `X` and return its codes; an iterator is refused, because X is read twice.

        Parameters
        ----------
        X : data of any kind that can be read twice
            The rows, as in `fit`.
        y : ignored
            Accepted for scikit-learn's pipelines.
        **fit_params : dict
            Further arguments of `fit`, such as `sample_weight`.

        Returns
        -------
        array of shape (n, k)
            The codes of the rows, as `transform` returns them.
        """
        refuse_iterator(X)
        return super().fit_transform(X, y, **fit_params)  # type: ignore[misc]


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
    def blockwise(self: Any, X: Any, *options: Any, **named: Any) -> Any:
        if in_memory(X):
            return method(self, X, *options, **named)
        if any(options) or any(named.values()):
            raise ValueError(
                f"{method.__name__} was called with options, but accepts none for an X that is "
                "read in blocks: omit the options, or give X as an array."
            )
        if is_dask(X):
            from lucidae.rows.dask import mapped

            return mapped(self, X, method.__name__)
        return _applied(partial(method, self), X, self)

    return blockwise  # type: ignore[return-value]


def _applied(apply: Callable[[Any], Array], X: Any, estimator: Any) -> Array:
    """Return the results of a method (`apply`) of an estimator, block by block of the rows X.

    If the number of rows is known, they are written into one array as they arrive.
    """
    data = row_blocks(X)
    parts: list[Any] = []
    whole, n_rows, count = None, data.n_rows_to_read, 0
    for part in applied_blocks(apply, data, getattr(estimator, "verbose", "auto"), estimator):
        if whole is None and n_rows is not None and isinstance(part, np.ndarray):
            whole = np.empty((n_rows, *part.shape[1:]), dtype=part.dtype)
        if whole is None:
            parts.append(part)
        else:
            whole[count : count + len(part)] = part
            count += len(part)
    return concatenated(parts) if whole is None else whole


def applied_blocks(
    apply: Callable[[Any], Array],
    data: RowBlocks,
    verbose: bool | str = "auto",
    estimator: Any = None,
) -> Iterator[Array]:
    """Yield the result of a method (`apply`) for each block of `data`, in one pass.

    If the method is one of the given `estimator`, scikit-learn's warnings about names of columns
    are issued once.
    """
    count = 0
    with Shown("computing {}", verbose).rows(data.n_rows_to_read) as show:
        for block in data.blocks():
            try:
                first = count == 0 or estimator is None
                result = apply(named_for(estimator, block.rows, data.feature_names, first=first))
            except ValueError as error:
                raise located(error, [block], data.name, data.feature_names) from None
            yield result
            count += int(result.shape[0])
            show(count)
