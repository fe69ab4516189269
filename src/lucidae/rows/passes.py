"""Passes over blocks of rows: their second moment, and methods applied block by block."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any, NamedTuple, TypeVar

import numpy as np
from scipy.sparse import issparse
from sklearn import get_config

from lucidae.arrays import Array, as_double, is_numpy, like, namespace, to_numpy
from lucidae.base import restored_on_failure
from lucidae.iteration.progress import CountedBar, is_shown
from lucidae.moments import SecondMoment, reads_moments
from lucidae.rows.blocks import RowBlock, RowBlocks, coalesced, concatenated, located
from lucidae.rows.kinds import (
    AlignedBlocks,
    BatchBlocks,
    LoadedRows,
    aligned_blocks,
    in_memory,
    is_dask,
    named_for,
    refuse_iterator,
    row_blocks,
)

__all__ = [
    "LazyOutputMixin",
    "Passes",
    "ReadInterrupted",
    "applied_blocks",
    "by_blocks",
    "check_start",
    "fold",
    "given_moment",
    "load_rows",
    "no_moment",
    "nothing_read",
    "read_moment",
    "rows_differed",
    "store_features",
    "store_targets",
]

Summary = TypeVar("Summary")
Method = TypeVar("Method", bound=Callable[..., Any])
SAME_SUM = 1e-9
"""Largest difference between the sums Σ w⟨c, x⟩ of two passes over the same rows, relative to the
sum of the absolute values. It is far above rounding errors."""

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


def read_moment(
    data: AlignedBlocks,
    leaf: Leaf | None = None,
    *,
    start: SecondMoment | None = None,
    verbose: bool | str = "auto",
) -> SecondMoment:
    """Return the second moment of data, from one pass over its blocks.

    Parameters
    ----------
    data : AlignedBlocks
        The rows, with their targets and weights.
    leaf : callable, optional
        Function that returns the moment of one block from its rows, targets and weights; by
        default the moment of the rows.
    start : SecondMoment, optional
        Moment of rows that were read before, which is merged with that of these rows.
    verbose : bool or "auto", default="auto"
        Whether the progress of a pass of more than two seconds is shown: always, never, or if
        standard error is a terminal or belongs to a notebook.

    Returns
    -------
    SecondMoment
        Mean and covariance of all rows.

    Raises
    ------
    ReadInterrupted
        After Ctrl-C, with the moment of the rows read until then.
    """
    found: SecondMoment | None
    found = fold(data, leaf or _moment_of_rows, SecondMoment.merge, start=start, verbose=verbose)
    if found is None:
        raise nothing_read(data)
    return found


@reads_moments
def moment_of_blocks(X: Any, sample_weight: Any, verbose: bool | str) -> SecondMoment | None:
    """Return the second moment of data that are read in blocks; None for arrays in memory."""
    if in_memory(X) and in_memory(sample_weight):
        return None
    return read_moment(aligned_blocks(X, None, sample_weight), verbose=verbose)


def nothing_read(data: AlignedBlocks) -> ValueError:
    """Return the error for data without a row of positive weight."""
    if isinstance(data.rows, BatchBlocks) or data.weights is not None:
        return ValueError(
            "sample_weight sums to 0, expected a positive sum: give a positive weight to at least "
            "one row."
        )
    return ValueError(f"{data.rows.name} contains no rows: at least one row is needed.")


def rows_differed(data: AlignedBlocks) -> ValueError:
    """Return the error for data whose rows were not the same in two passes."""
    return ValueError(
        f"the rows of {data.rows.name} differed between two passes over it: give a function that "
        "returns the same batches each time, without augmentation or random choice, or give the "
        "rows as an array or a file that nobody writes to."
    )


def load_rows(
    data: AlignedBlocks,
    leaf: Leaf | None = None,
    *,
    most_bytes: int | None = None,
    missing: bool = False,
    verbose: bool | str = "auto",
) -> LoadedRows | None:
    """Return all rows of data that are small enough to be loaded into memory, else None."""
    shown = Shown("reading {}", verbose)
    try:
        with shown.rows(data.rows.n_rows_to_read) as show, data.reporting(show):
            return data.load(most_bytes, missing=missing)
    except KeyboardInterrupt:
        if data.interrupted:
            read_moment(data, no_moment if missing else leaf)
        raise ReadInterrupted(None, 0) from None


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
    if hasattr(data, "fold") and not data.interrupted:
        try:
            total = data.fold(leaf, combine, shown)
        except KeyboardInterrupt as stop:
            kept, count = getattr(stop, "moment", None), getattr(stop, "n_rows", 0)
            if start is not None:
                first = getattr(start, "moment", start)
                kept = first if kept is None else first.merge(kept)
            raise ReadInterrupted(kept, count) from None
        return total if start is None or total is None else combine(start, total)
    done = (start, 0)
    try:
        total = data.rows.n_rows_to_read
        with shown.rows(total, began=data.began) as show, data.reporting(show):
            least = min(data.rows.rows_per_block, 2 * data.rows.n_features)
            for block in coalesced(data, least):
                done = _after(done, block, data.rows, leaf, combine)
    except KeyboardInterrupt:
        raise ReadInterrupted(moment_in(done[0]), data.rows.first_row + done[1]) from None
    return done[0]


def moment_in(summary: Any) -> SecondMoment | None:
    """Return a summary that is a second moment, or the moment that it contains; otherwise None."""
    found = summary if isinstance(summary, SecondMoment) else getattr(summary, "moment", None)
    return found if isinstance(found, SecondMoment) else None


def _after(
    done: tuple[Any, int],
    block: RowBlock,
    data: RowBlocks,
    leaf: Leaf,
    combine: Callable[[Any, Any], Any],
) -> tuple[Any, int]:
    """Return the summary of all rows read so far, and the number of these rows."""
    total, count = done
    part = leaf_of(block, data.name, leaf, data.feature_names)
    if part is not None:
        total = part if total is None else combine(total, part)
    return total, count + int(block.rows.shape[0])


def leaf_of(block: RowBlock, name: str, leaf: Leaf, columns: tuple[str, ...] | None = None) -> Any:
    """Return the summary of a block, computed by `leaf`; an error message names the block."""
    rows, targets, weights = block[:3]
    if weights is not None and not bool(namespace(weights).any(weights > 0)):
        return None
    try:
        return leaf(rows, targets, weights)
    except ValueError as error:
        raise located(error, block, name, columns) from None


class Shown:
    """Shows how many rows were read, from the third second after it was made."""

    def __init__(self, description: str, verbose: bool | str) -> None:
        self.description = description
        self.verbose = is_shown(verbose)
        self._began = time.monotonic()

    @contextmanager
    def rows(
        self, total: int | None, unit: str = "rows", *, began: float | None = None
    ) -> Iterator[Callable[[int], None]]:
        """Yield a function that shows how many rows, of `total`, one pass over the data has read.

        `unit` is the name of what is counted, and `began` the time at which the pass began, if that
        was before.
        """
        since = self._began if began is None else min(began, self._began)
        bar = CountedBar(self.description.format(unit), unit, began=since)
        try:
            yield (lambda count: bar.show(count, total)) if self.verbose else (lambda _: None)
        finally:
            bar.close()


class Projected(NamedTuple):
    """Weighted sum of the products of all rows with a random vector, which every pass must repeat.

    `total` is the sum Σ w⟨c, x⟩ over rows x with weights w for a random vector c, and `size` is the
    sum of the absolute values. Neither depends on the order of the rows, up to rounding errors.
    """

    total: float
    size: float

    def agrees(self, other: Projected) -> bool:
        """Tell whether the sums are equal up to rounding errors."""
        allowed = SAME_SUM * max(self.size, other.size)
        return not abs(self.total - other.total) > allowed


def _watched(leaf: Leaf, rows: Any, targets: Any, weights: Any) -> tuple[Any, Projected]:
    """Return the summary of a block of rows by `leaf`, and its `Projected` sums."""
    found = leaf(rows, targets, weights)
    vector = np.random.default_rng(0).standard_normal(rows.shape[1])  # the same in every pass
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
    return found, Projected(total, size)


def _merged(merge: Callable[[Any, Any], Any], one: Any, other: Any) -> Any:
    """Return the results of `_watched` for two sets of rows, joined to one."""
    total, size = one[1].total + other[1].total, one[1].size + other[1].size
    return merge(one[0], other[0]), Projected(total, size)


class Passes(Shown):
    """Repeated passes over the same data, with one display of their progress."""

    def __init__(self, data: AlignedBlocks, verbose: bool | str = "auto") -> None:
        super().__init__("reading {}", verbose)
        self.data = data
        self.count = 0
        self._weight: float | None = None
        self._projected: Projected | None = None

    def total(self, leaf: Leaf, merge: Callable[[Any, Any], Any]) -> Any:
        """Return the summary of all blocks, which `leaf` computes, from a new pass over the data.

        Its first entry is the sum of the weights, which must be the same in every pass, like the
        products of the rows with a random vector.
        """
        self.count += 1
        self.description = f"pass {self.count}, reading {{}}"
        both = fold(self.data, partial(_watched, leaf), partial(_merged, merge), shown=self)
        if both is None:
            raise nothing_read(self.data)
        found, projected = both
        if self._weight is not None and abs(found[0] - self._weight) > 1e-9 * self._weight:
            raise ValueError(
                f"{self.data.rows.name} had rows with a total weight of {self._weight:g} in the "
                f"first pass over it, but of {found[0]:g} in pass {self.count}: it has changed "
                "while it was read. Fit again when nobody writes to it."
            )
        if self._projected is not None and not projected.agrees(self._projected):
            raise rows_differed(self.data)
        self._weight, self._projected = float(found[0]), self._projected or projected
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


def store_targets(estimator: Any, y: Any) -> None:
    """Store the names of the targets y, if it has names, for predictions in a Dask data frame."""
    columns = getattr(y, "columns", None)
    given = [getattr(y, "name", None)] if columns is None else list(columns)
    if given and all(isinstance(name, str) for name in given):
        estimator._target_names = given
    else:
        vars(estimator).pop("_target_names", None)


class LazyOutputMixin:
    """Keep Dask collections lazy in `transform` and `fit_transform` after ``set_output``.

    scikit-learn would collect the codes to make a pandas frame of them, which has no index of the
    rows. With ``set_output(transform="pandas")`` the codes of a Dask collection are a Dask data
    frame instead, whose partitions are pandas frames. The mixin must precede `TransformerMixin`.
    """

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        method = getattr(cls, "transform", None)
        if method is not None and not hasattr(method, "keeps_lazy"):
            cls.transform = _lazy_kept(method)  # type: ignore[attr-defined]

    @restored_on_failure
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
        if is_dask(X):
            return self.fit(X, y, **fit_params).transform(X)  # type: ignore[attr-defined]
        return super().fit_transform(X, y, **fit_params)  # type: ignore[misc]


def _lazy_kept(method: Any) -> Any:
    """Return a method that scikit-learn has wrapped, without the wrapper for Dask collections."""
    inner = getattr(method, "__wrapped__", method)

    @wraps(method)
    def lazily(self: Any, X: Any, *options: Any, **named: Any) -> Any:
        if not is_dask(X):
            return method(self, X, *options, **named)
        configured = getattr(self, "_sklearn_output_config", {})
        container = configured.get("transform", get_config()["transform_output"])
        if container not in ("default", "pandas"):
            raise ValueError(
                f"set_output(transform={container!r}) was called, but the codes of a Dask "
                "collection are a Dask array or a Dask data frame of pandas partitions: set the "
                "output to 'default' or 'pandas'."
            )
        found = inner(self, X, *options, **named)
        if container == "default" or hasattr(found, "divisions"):
            return found
        import dask.dataframe as dd

        return dd.from_dask_array(found, columns=[str(at) for at in self.get_feature_names_out()])

    lazily.keeps_lazy = True  # type: ignore[attr-defined]
    return lazily


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
    """Return the results of a method (`apply`) of an estimator, block by block of the rows X."""
    data = row_blocks(X)
    results = _Results(data.n_rows_to_read)
    for result in applied_blocks(apply, data, getattr(estimator, "verbose", "auto"), estimator):
        results.append(result)
    return results.joined()


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
                raise located(error, block, data.name, data.feature_names) from None
            yield result
            count += int(result.shape[0])
            show(count)


class _Results:
    """Collector of what a method returns for each block of rows, as one array of all rows.

    If the number of rows is known, the results are written into this array as they arrive.
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
