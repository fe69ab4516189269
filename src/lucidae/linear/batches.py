"""Fit a linear autoencoder to data that are read in blocks."""

from __future__ import annotations

from typing import Any, Self

from lucidae.base import restored_on_failure
from lucidae.data import aligned_blocks, read_moment, store_features
from lucidae.linear.methods import Options
from lucidae.linear.routes import EXACT_FEATURES
from lucidae.moments import SecondMoment

__all__ = ["FitBatchesMixin", "check_streamed", "draws_rows"]


def draws_rows(options: Options, X: Any) -> bool:
    """Tell whether a fit to `X` needs the rows themselves and not only their second moment."""
    shape: tuple[int, ...] = getattr(X, "shape", None) or ()
    return options.reads.batches or (len(shape) == 2 and shape[1] > EXACT_FEATURES)


def check_streamed(options: Options, n_features: int, start: SecondMoment | None) -> None:
    """Raise an error for arguments that cannot be fitted to data that are read once, in blocks.

    `start` is the second moment of rows that were read before, or None.
    """
    if options.reads.batches:
        raise ValueError(
            f"solver={options.solver!r} with method={options.method!r} draws rows in random order, "
            "but X is read in blocks: use solver='exact', give an array or a memory map, or call "
            "partial_fit with each batch."
        )
    if n_features > EXACT_FEATURES:
        raise ValueError(
            f"X has {n_features} features and is read in blocks, for which the second moment is "
            f"formed up to {EXACT_FEATURES} features: give an array or a memory map, or call "
            "partial_fit with each batch."
        )
    if isinstance(options.n_components, int) and options.n_components > n_features:
        raise ValueError(
            f"n_components={options.n_components} was given, but X has {n_features} features: "
            f"expected at most {n_features}."
        )
    if start is not None and start.n_features != n_features:
        raise ValueError(
            f"start has {start.n_features} features, but X has {n_features}: it must be the moment "
            "of earlier rows of the same data."
        )


class FitBatchesMixin:
    """Give `LinearAutoencoder` its method `fit_batches`."""

    verbose: bool
    fit: Any
    _options: Any
    _fit_moment: Any

    @restored_on_failure
    def fit_batches(
        self, batches: Any, sample_weight: Any = None, *, start: SecondMoment | None = None
    ) -> Self:
        """Fit to data that are read in blocks of rows; the result equals `fit` on all rows.

        Not more than a few blocks are in memory at a time, besides the second moment. Data that
        fit into one block (32 MiB) are loaded.

        Parameters
        ----------
        batches : iterable of batches, path, memory map, or data of any other kind
            Each batch is an array, a data frame or a sparse matrix of rows, the path of a file, or
            a tuple of rows, targets (which are ignored) and weights. See
            `lucidae.data.row_blocks` for the other kinds.
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
        data = aligned_blocks(batches, None, sample_weight)
        small = data.load() if start is None else None
        if small is not None:
            self.fit(small.rows, sample_weight=small.weights)
            return self
        check_streamed(options, data.rows.n_features, start)
        moment = read_moment(data, start=start, verbose=bool(self.verbose))
        store_features(self, data)
        self._fit_moment(options, moment, data.rows.reference)
        return self
