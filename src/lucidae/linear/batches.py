"""Fit a linear autoencoder to data that are read in blocks.

Up to 8192 features one pass computes the second moment. With more features no matrix of this size
is formed: block Krylov iteration reads the data once for each product of some vectors with the
second moment.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Self

from lucidae.base import restored_on_failure
from lucidae.certificates.sketch import Sketch
from lucidae.data import ReadInterrupted, aligned_blocks, in_memory, store_features
from lucidae.data.kinds import AlignedBlocks, LoadedRows
from lucidae.data.passes import (
    Passes,
    check_start,
    fold,
    given_moment,
    load_rows,
    no_moment,
    nothing_read,
)
from lucidae.iteration.progress import timed_fit
from lucidae.kinds import kind_of
from lucidae.linear.methods import Options
from lucidae.linear.missing import suggesting_em
from lucidae.moments import SecondMoment
from lucidae.rows.operator import EXACT_FEATURES, BlockRows, MomentRows

__all__ = [
    "FitBatchesMixin",
    "check_repeatable",
    "check_streamed",
    "draws_rows",
    "loaded_if_small",
    "loaded_rows",
    "read_sketched",
]

LOADED_BYTES = 2**28
"""Size up to which data with more than 8192 features are loaded, because they would be read many
times: 256 mebibytes."""


class SketchedMoment(NamedTuple):
    """The second moment of rows, and a sketch of the same rows, which tests it."""

    moment: SecondMoment
    sketch: Sketch

    def merge(self, other: SketchedMoment) -> SketchedMoment:
        """Return both for the rows of this and of `other` together."""
        return SketchedMoment(self.moment.merge(other.moment), self.sketch.merge(other.sketch))


def _sketched_rows(rows: Any, _targets: Any, weights: Any) -> SketchedMoment:
    return SketchedMoment(SecondMoment.of(rows, weights), Sketch.of(rows, weights))


def read_sketched(
    data: AlignedBlocks, *, start: SecondMoment | None = None, verbose: bool | str = "auto"
) -> SketchedMoment:
    """Return the second moment of data and their sketch, from one pass over the blocks.

    `start` is the moment of rows that were read before, which is taken as data.
    """
    try:
        found: SketchedMoment | None
        found = fold(data, _sketched_rows, SketchedMoment.merge, verbose=verbose)
    except ReadInterrupted as stop:
        kept = stop.moment
        if start is not None:
            kept = start if kept is None else start.merge(kept)
        raise ReadInterrupted(kept, stop.n_rows) from None
    if found is None:
        raise nothing_read(data)
    if start is None:
        return found
    given = Sketch.given(start.mean, start.covariance, start.weight)
    return SketchedMoment(start, given).merge(found)


def draws_rows(options: Options, X: Any) -> bool:
    """Tell whether a fit to `X` needs the rows themselves, not only their second moment."""
    kind_of(X)  # which refuses a closed file
    shape = getattr(X, "shape", None)
    wide = isinstance(shape, tuple) and len(shape) == 2 and shape[1] > EXACT_FEATURES
    return options.draws_rows or (wide and not isinstance(options.n_components, int))


def check_repeatable(data: AlignedBlocks) -> None:
    """Raise a ValueError if data with many features can be read only once."""
    if not data.repeatable:
        raise ValueError(
            f"X has {data.rows.n_features} features. With so many, the data must be read several "
            "times, but an iterator can be read only once: give a file, a list of batches (to "
            "fit_batches), a memory map, or a function that returns a new iterator, or call "
            "partial_fit with each batch."
        )


def loaded_rows(
    data: AlignedBlocks, *, missing: bool = False, verbose: bool | str = "auto"
) -> LoadedRows | None:
    """Load data that are read in blocks into memory; return None if they are too large.

    NaN raises an error unless `missing` is true; `verbose` decides whether progress is shown.
    """
    given: Any = {"missing": missing, "verbose": verbose}
    if data.rows.n_features > EXACT_FEATURES:
        return load_rows(data, no_moment, most_bytes=LOADED_BYTES, **given)
    return load_rows(data, **given)


def loaded_if_small(X: Any, sample_weight: Any) -> tuple[Any, Any]:
    """Return data of any kind as rows in memory, which may contain NaN, with their weights.

    Data that are too large are returned as `AlignedBlocks`, which contain their weights.
    """
    if in_memory(X) and in_memory(sample_weight):
        return X, sample_weight
    data = aligned_blocks(X, None, sample_weight)
    small = loaded_rows(data, missing=True)
    return (data, None) if small is None else (small.rows, small.weights)


def check_streamed(options: Options, n_features: int, start: SecondMoment | None) -> None:
    """Raise an error for settings that do not work with data that are read in blocks."""
    if options.draws_rows:
        raise ValueError(
            f"solver={options.solver!r} with method={options.method!r} draws rows in random order, "
            "but X is read in blocks: use solver='exact', give X as an array or a memory map, or "
            "call partial_fit with each batch."
        )
    if isinstance(options.n_components, int) and options.n_components > n_features:
        raise ValueError(
            f"n_components={options.n_components} was given, but X has {n_features} features: "
            f"expected at most {n_features}."
        )
    if n_features > EXACT_FEATURES:
        _check_wide(options, n_features, start)
    elif start is not None and start.n_features != n_features:
        raise ValueError(
            f"start has {start.n_features} features, but X has {n_features}: start must be the "
            "second moment of earlier rows of the same data."
        )


def _check_wide(options: Options, n_features: int, start: SecondMoment | None) -> None:
    if start is not None:
        raise ValueError(
            f"start was given, but X has {n_features} features: of data that are read in blocks, "
            f"the second moment is computed only up to {EXACT_FEATURES} features. Give all rows, "
            "without start."
        )
    if not isinstance(options.n_components, int):
        raise ValueError(
            f"n_components={options.n_components!r} was given, which needs all eigenvalues of the "
            f"covariance, but X has {n_features} features and is read in blocks, for which at most "
            f"{EXACT_FEATURES} eigenvalues are computed. Give n_components as an integer."
        )


class FitBatchesMixin:
    """Mixin for `LinearAutoencoder`: the method `fit_batches`, for data that are read in blocks."""

    verbose: bool | str
    handle_missing: str
    fit: Any
    _options: Any
    _fit_moment: Any
    _fit_data: Any

    @restored_on_failure
    @timed_fit
    def fit_batches(
        self, batches: Any, sample_weight: Any = None, *, start: SecondMoment | None = None
    ) -> Self:
        """Fit to data that are read in blocks of rows; the result equals `fit` on all rows.

        Besides the second moment, only a few blocks are in memory at a time. Data that fit into
        one block (32 MiB) are loaded. With more than 8192 features the second moment is
        not formed, and the data are read once for each step of block Krylov iteration. Missing
        entries (``handle_missing="em"``) are allowed only in data that are loaded.

        Parameters
        ----------
        batches : iterable of batches, path, memory map, or data of any other kind
            Each batch is an array, a data frame or a sparse matrix of rows, the path of a file, or
            a tuple of rows, targets (which are ignored) and weights. See
            `lucidae.data.row_blocks` for the other kinds. None if `start` is the moment of all
            rows.
        sample_weight : data of any kind, optional
            Frequencies of the rows, unless the batches contain them.
        start : SecondMoment, optional
            Moment of rows that were read before, such as that of a
            `lucidae.data.ReadInterrupted`.

        Returns
        -------
        LinearAutoencoder
            Itself.
        """
        options = self._options()
        check_start(start)
        if batches is None:
            moment = given_moment(self, start)
            check_streamed(options, moment.n_features, moment)
            self._fit_moment(options, moment, moment.center[:0])
            return self
        with suggesting_em(self, batches):
            data = aligned_blocks(batches, None, sample_weight)
            missing = self.handle_missing == "em"
            small = None
            if start is None:
                small = loaded_rows(data, missing=missing, verbose=self.verbose)
            if small is not None:
                self.fit(small.rows, sample_weight=small.weights)
                return self
            check_streamed(options, data.rows.n_features, start)
            if data.rows.n_features > EXACT_FEATURES:
                check_repeatable(data)
                self._fit_data(options, BlockRows(Passes(data, self.verbose)), data.rows.reference)
                store_features(self, data)
                return self
            moment, sketch = read_sketched(data, start=start, verbose=self.verbose)
            store_features(self, data)
            again = data.repeatable and start is None
            rows = BlockRows(Passes(data, self.verbose), moment) if again else MomentRows(moment)
            self._fit_data(options, rows, data.rows.reference, sketch)
        return self
