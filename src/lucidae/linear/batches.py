"""Fit a linear autoencoder to data that are read in blocks.

Up to 8192 features one pass computes the second moment. With more features no matrix of this size
is formed: block Krylov iteration reads the data once for each product of some vectors with the
second moment.
"""

from __future__ import annotations

import copy
import math
from typing import Any, Self

import numpy as np

from lucidae.arrays import Array
from lucidae.arrays.eigen import fix_signs
from lucidae.arrays.krylov import krylov_eigenpairs
from lucidae.base import restored_on_failure
from lucidae.data import aligned_blocks, read_moment, store_features
from lucidae.data.kinds import AlignedBlocks, LoadedRows
from lucidae.data.passes import Passes
from lucidae.linear.methods import Options
from lucidae.linear.routes import EXACT_FEATURES
from lucidae.linear.spectrum import Spectrum
from lucidae.linear.sums import ProductPass, ProductSums, RowsPass, RowSums
from lucidae.moments import SMALLEST_SCATTER, SecondMoment

__all__ = [
    "BlocksCovariance",
    "BlocksSource",
    "FitBatchesMixin",
    "check_repeatable",
    "check_streamed",
    "draws_rows",
    "loaded_rows",
]

Vector = np.ndarray[Any, Any]

LOADED_BYTES = 2**28
"""Size up to which data with more than 8192 features are loaded, because they would be read many
times: 256 mebibytes."""


class BlocksCovariance:
    """The second moment Σ of rows that are read in blocks; the m × m matrix is not formed.

    Each product with Σ is one pass over the data.

    Parameters
    ----------
    passes : Passes
        The data.
    sums : RowSums
        Mean and squares of the rows.
    """

    def __init__(self, passes: Passes, sums: RowSums) -> None:
        self.passes = passes
        self.mean = sums.mean
        self.trace = float(np.sum(sums.squares)) / sums.weight
        self._full = sums.full
        self._unit = 1.0
        self._corrected = False

    @property
    def n_features(self) -> int:
        """Number of features of the data."""
        return len(self.mean)

    def apply(self, rows: Array) -> Array:
        """Return ``rows @ Σ`` for `rows` of shape (…, k, m), reading the data once."""
        vectors = np.reshape(rows, (-1, self.n_features))
        found: ProductSums = self.passes.total(ProductPass(vectors, self.mean, self._full))
        if not self._corrected:  # rounding errors of merging the means of the blocks
            self.mean, self._corrected = self.mean + found.rest / found.weight, True
        return np.reshape(found.with_covariance(vectors), rows.shape) / self._unit**2

    def in_units(self, unit: float) -> BlocksCovariance:
        """Return the second moment of the data after these are divided by the number `unit`."""
        scaled = copy.copy(self)
        scaled._unit, scaled.trace = self._unit * unit, self.trace / unit**2
        return scaled


class BlocksSource:
    """Data with many features that are read in blocks, several times.

    `affordable` tells whether all eigenpairs of the second moment can be computed, and `moment` is
    None, because the second moment is not formed.

    Parameters
    ----------
    passes : Passes
        The rows with their weights.
    """

    affordable = False
    moment = None

    def __init__(self, passes: Passes) -> None:
        self.passes = passes
        sums: RowSums = passes.total(RowsPass())
        self.weight = sums.weight
        self.covariance = BlocksCovariance(self.passes, sums)
        scatter = self.covariance.trace * self.weight
        if scatter < SMALLEST_SCATTER and 0.0 < sums.peak < math.sqrt(SMALLEST_SCATTER):
            raise ValueError(
                f"the largest entry of X by magnitude is {sums.peak:.3g}, so that the squares of X "
                "underflow double precision. Multiply X, or sample_weight, by a constant first."
            )

    @property
    def mean(self) -> Vector:
        """Weighted mean of the rows, shape (m,)."""
        return self.covariance.mean

    def spectrum(self, k: int | None) -> Spectrum | None:
        """Return the `k` leading eigenpairs of the second moment; None if all are asked for."""
        if k is None:
            return None
        pairs = krylov_eigenpairs(self.covariance.apply, k, self.mean)
        assert pairs is not None, "the number of passes is not limited"
        return Spectrum(pairs[0], fix_signs(pairs[1]), self.covariance.trace)


def draws_rows(options: Options, X: Any) -> bool:
    """Tell whether a fit to `X` needs the rows themselves, of a memory map for example.

    This is so if rows are drawn in random order, or if all eigenvalues of the covariance of many
    features are needed.
    """
    shape: tuple[int, ...] = getattr(X, "shape", None) or ()
    wide = len(shape) == 2 and shape[1] > EXACT_FEATURES
    return options.reads.batches or (wide and not isinstance(options.n_components, int))


def check_repeatable(data: AlignedBlocks) -> None:
    """Raise a ValueError if data with many features can be read only once."""
    if not data.repeatable:
        raise ValueError(
            f"X has {data.rows.n_features} features, for which the data are read several times, "
            "but an iterator can be read only once: give a file, a list of batches (to "
            "fit_batches), a memory map, or a function that returns a new iterator, or call "
            "partial_fit with each batch."
        )


def loaded_rows(data: AlignedBlocks) -> LoadedRows | None:
    """Return data in memory if they are small enough, else None."""
    return data.load(LOADED_BYTES if data.rows.n_features > EXACT_FEATURES else None)


def check_streamed(options: Options, n_features: int, start: SecondMoment | None) -> None:
    """Refuse what cannot be fitted to data that are read in blocks."""
    if options.reads.batches:
        raise ValueError(
            f"solver={options.solver!r} with method={options.method!r} draws rows in random order, "
            "but X is read in blocks: use solver='exact', give an array or a memory map, or call "
            "partial_fit with each batch."
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
            f"start has {start.n_features} features, but X has {n_features}: it must be the moment "
            "of earlier rows of the same data."
        )


def _check_wide(options: Options, n_features: int, start: SecondMoment | None) -> None:
    if start is not None:
        raise ValueError(
            f"start was given, but X has {n_features} features and is read in blocks, for which "
            f"the second moment is formed up to {EXACT_FEATURES} features: give all rows without "
            "start."
        )
    if not isinstance(options.n_components, int):
        raise ValueError(
            f"n_components={options.n_components!r} was given, which needs all eigenvalues of the "
            f"covariance, but X has {n_features} features and is read in blocks, for which at most "
            f"{EXACT_FEATURES} eigenvalues are computed. Give n_components as an integer."
        )


class FitBatchesMixin:
    """Give `LinearAutoencoder` its method `fit_batches`."""

    verbose: bool
    fit: Any
    _options: Any
    _fit_moment: Any
    _fit_source: Any

    @restored_on_failure
    def fit_batches(
        self, batches: Any, sample_weight: Any = None, *, start: SecondMoment | None = None
    ) -> Self:
        """Fit to data that are read in blocks of rows; the result equals `fit` on all rows.

        Not more than a few blocks are in memory at a time, besides the second moment. Data that
        fit into one block (32 MiB) are loaded. With more than 8192 features the second moment is
        not formed, and the data are read once for each step of block Krylov iteration.

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
        small = loaded_rows(data) if start is None else None
        if small is not None:
            self.fit(small.rows, sample_weight=small.weights)
            return self
        check_streamed(options, data.rows.n_features, start)
        if data.rows.n_features > EXACT_FEATURES:
            check_repeatable(data)
            with Passes(data, bool(self.verbose)) as passes:
                self._fit_source(options, BlocksSource(passes), data.rows.reference)
            store_features(self, data)
            return self
        moment = read_moment(data, start=start, verbose=bool(self.verbose))
        store_features(self, data)
        self._fit_moment(options, moment, data.rows.reference)
        return self
