"""The data passed to `fit`, as rows or as their second moment Σ, and the choice between them.

The classes ending in ``Source`` store the data and return their mean, products with Σ (see
`lucidae.rows.covariances`) and the eigenpairs of Σ.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse

from lucidae.arrays import (
    Array,
    as_double,
    device,
    is_numpy,
    largest,
    namespace,
    normal,
    scalar,
    squared_norms,
    zeros_like_shape,
)
from lucidae.arrays.eigen import ARPACK_FEATURES, ITERATIVE_SHARE, fix_signs
from lucidae.arrays.krylov import EXTRA, krylov_eigenpairs
from lucidae.arrays.row_products import has_fast_products
from lucidae.arrays.threads import one_thread
from lucidae.data.passes import Passes
from lucidae.moments import SMALLEST_SCATTER, SecondMoment, covariance_spectrum
from lucidae.rows.covariances import DenseCovariance, StreamCovariance, copied_rows
from lucidae.rows.routes import (
    EXACT_FEATURES,
    MANY,
    NARROW,
    SMALL_MEAN,
    SMALL_ROWS,
    Costs,
    costs,
    gram_eigenpairs,
    gram_matrix,
    single_eigenpairs,
    single_statistics,
    vector_eigenpairs,
)
from lucidae.rows.spectrum import Spectrum, spectrum_of_rows
from lucidae.rows.sums import BlocksSource, shifted, sparse_sums
from lucidae.validation import check_rows

COPIED_ENTRIES = 2**27
"""Largest number of entries of rows that are copied in order to centre them once and not for every
product; the copy takes at most one gibibyte."""

STORED_FEATURES = 1024
"""Largest number of features for which `fit` stores the second moment, so that `partial_fit` can
continue; the matrix then takes at most eight mebibytes."""


@dataclass(frozen=True)
class MomentSource:
    """The data passed to `fit`, stored as their mean and second moment.

    `affordable` tells whether all eigenpairs of the second moment can be computed.
    """

    moment: SecondMoment  # mean and second moment of the rows
    # (n, m): the rows themselves, if they are in memory, for eigenpairs that the second moment does
    # not determine accurately (`lucidae.rows.deflation`)
    rows: Any = None
    weights: Array | None = None  # (n,): weights of the rows; None for 1 each
    # the rows if they are not in memory but can be read again, for the same purpose
    passes: Passes | None = None

    affordable = True

    @property
    def mean(self) -> Array:
        """Weighted mean of the rows, shape (m,)."""
        return self.moment.mean

    @property
    def weight(self) -> float:
        """Sum of the weights of the rows."""
        return self.moment.weight

    @property
    def trace(self) -> float:
        """Total variance of the rows: the trace of their second moment."""
        return self.moment.trace

    @cached_property
    def covariance(self) -> DenseCovariance:
        """The second moment of the centred rows as a matrix, by which rows are multiplied."""
        return DenseCovariance(self.moment.covariance)

    def spectrum(self, k: int | None) -> Spectrum:
        """Return the `k` leading eigenpairs of the second moment; all of them if `k` is None."""
        return Spectrum(*covariance_spectrum(self.covariance.matrix, k), self.moment.trace)


@dataclass(frozen=True)
class RowsSource:
    """The data passed to `fit`, stored as rows.

    It is used if there are few rows, or too many features m for an m × m matrix.
    """

    rows: Any  # (n, m): the rows
    weights: Array  # (n,): weights of the rows
    mean: Array  # (m,): weighted mean of the rows
    weight: float  # sum of `weights`
    trace: float  # total variance of the rows: the trace of their second moment
    # the second moment of the rows if it was computed as well, otherwise None
    moment: SecondMoment | None = None
    # A centred float64 copy of the rows, and the mean of this copy, which is zero up to rounding
    # errors; None if products use the rows themselves
    copied: tuple[Array, Array] | None = None
    # if the rows are float32, the rows or a centred float32 copy, and their mean, for products in
    # single precision
    single: tuple[Array, Array] | None = None

    @classmethod
    def of(
        cls,
        X: Any,
        weights: Array | None,
        moment: SecondMoment | None = None,
        *,
        closed_form: bool = False,
    ) -> RowsSource:
        """Return the rows X (n, m) as a `RowsSource`, with their mean and total variance.

        Without `weights`, each row has weight 1.
        """
        reference = np.empty(0) if scipy.sparse.issparse(X) else X
        xp = namespace(reference)
        if weights is None:
            weights = xp.ones(X.shape[0], dtype=xp.float64, device=device(reference))
        total = scalar(xp.sum(weights))
        with np.errstate(over="ignore", invalid="ignore"):
            known = single_statistics(X, weights / total) if closed_form else None
            if known is not None:
                mean, trace, single = known
                source = cls(X, weights, mean, total, trace, moment, None, single)
            else:
                mean, trace, copied = _centred_statistics(X, weights, total)
                source = cls(X, weights, mean, total, trace, moment, copied)
            _check_squares(source)
        return source

    @cached_property
    def centred(self) -> tuple[Array, Array] | None:
        """A centred float64 copy of the rows, with its mean; None if products use the rows."""
        if self.single is None:
            return self.copied
        return _centred_statistics(self.rows, self.weights, self.weight)[2]

    @cached_property
    def covariance(self) -> StreamCovariance:
        """The second moment of the centred rows, by which row vectors are multiplied."""
        if self.single is not None:  # few products are needed, for which no copy is made
            return StreamCovariance(self.rows, self.mean, self.weights, False, self.trace)
        return self._double_covariance

    @property
    def _double_covariance(self) -> StreamCovariance:
        if self.centred is not None:
            return StreamCovariance(*self.centred, self.weights, True, self.trace)
        with np.errstate(over="ignore"):  # of a mean above 1e154
            small = scalar(namespace(self.mean).sum(self.mean**2)) <= SMALL_MEAN * self.trace
        return StreamCovariance(self.rows, self.mean, self.weights, small, self.trace)

    @property
    def _products(self) -> tuple[Any, Array]:
        """The rows that products use, and their mean: the centred copy, or the given rows."""
        return self.centred or (self.rows, self.mean)

    @property
    def affordable(self) -> bool:
        """Whether all eigenpairs can be computed: there are at most 8192 rows or features."""
        return bool(min(self.rows.shape) <= EXACT_FEATURES)

    def spectrum(self, k: int | None) -> Spectrum | None:
        """Return the `k` leading eigenpairs of the second moment; all of them if `k` is None.

        The algorithm that is cheapest for the shape of the rows is used (`lucidae.rows.routes`).
        """
        n, m = self.rows.shape
        if k is not None and k < min(n, m):
            return self._leading(k)
        if n <= min(m, EXACT_FEATURES):
            return _padded(spectrum_of_rows(*self._products, self.weights, self.weight), k)
        return self._whole.spectrum(k) if m <= EXACT_FEATURES else None

    @property
    def _whole(self) -> MomentSource:
        return MomentSource(self.moment or SecondMoment.of(self.rows, self.weights))

    def _leading(self, k: int) -> Spectrum | None:
        cost = _costs_of(self.rows, k)
        if self.single is not None:
            shares = self.weights / self.weight
            found = single_eigenpairs(
                self.rows, self.mean, self.single, shares, self.trace, k, cost
            )
            if found is not None:
                return found
        found = self._iterated(k, cost) if cost.iterates else None
        if found is not None:
            return found
        if cost.moment < cost.gram:
            return self._whole.spectrum(k)
        rows = (*self._products, self.weights, self.weight)
        found = gram_eigenpairs(self.gram, *rows, k)
        return found or _padded(spectrum_of_rows(*rows), k)

    def _iterated(self, k: int, cost: Costs) -> Spectrum | None:
        """Return the `k` leading eigenpairs by iteration; None if it would take too long."""
        rows, mean = self._products
        if _for_vectors(rows, k):
            found = vector_eigenpairs(
                rows, mean, self.weights, self.weight, self.trace, k, rough=True
            )
            if found is not None:
                return found
        covariance = self._double_covariance
        # Products of narrow blocks use Python threads, which those of BLAS would disturb.
        narrow = has_fast_products(covariance.rows, min(k + EXTRA, cost.widest))
        with one_thread() if narrow else nullcontext():
            pairs = krylov_eigenpairs(
                covariance.apply, k, self.mean, passes=cost.most, widest=cost.widest
            )
        return None if pairs is None else Spectrum(pairs[0], fix_signs(pairs[1]), self.trace)

    @cached_property
    def gram(self) -> Array:
        """The Gram matrix (n, n) of the n centred rows, each times the root of its weight."""
        return gram_matrix(*self._products, self.weights, self.weight)

    @property
    def known_gram(self) -> Array | None:
        """The Gram matrix of the rows if the solver has computed it, otherwise None."""
        return self.__dict__.get("gram")


def _check_squares(source: RowsSource) -> None:
    """Raise a ValueError if rows contain NaN or infinity, or if squares overflow or underflow."""
    total = source.trace * source.weight
    if math.isfinite(total) and total >= SMALLEST_SCATTER:
        return
    peak = largest(source.rows.data if scipy.sparse.issparse(source.rows) else source.rows)
    if not math.isfinite(total):
        check_rows(source.rows)
        raise ValueError(
            f"the largest entry of X by magnitude is {peak:.3g}, so that the squares of X overflow "
            "double precision. Divide X by a constant first."
        )
    # The scatter of equal rows is 0; the squares of the entries themselves must not underflow.
    if 0.0 < peak < math.sqrt(SMALLEST_SCATTER):
        raise ValueError(
            f"the largest entry of X by magnitude is {peak:.3g}, so that the squares of X "
            "underflow double precision. Multiply X, or sample_weight, by a constant first."
        )


def _centred_statistics(
    X: Any, weights: Array, total: float
) -> tuple[Array, float, tuple[Array, Array] | None]:
    """Return mean (m,) and total variance of weighted rows X (n, m), and a centred copy or None.

    Dense rows with at most `COPIED_ENTRIES` entries are copied if they are not float64 numbers or
    if their mean is large. The third result is then the copy with its mean, as in the field
    `copied` of `RowsSource`.
    """
    if scipy.sparse.issparse(X):
        first, rest, spread, full = sparse_sums(X, weights, total)
        mean, trace = first + rest, float(np.sum(spread)) / total
        if np.sum(mean[full] ** 2) <= SMALL_MEAN * trace:
            # SciPy would convert single precision anew for each product.
            return mean, trace, None if X.dtype == np.float64 else (X.astype(np.float64), mean)
        rows, _ = shifted(X, mean, full)
        return mean, trace, (rows, sum(sparse_sums(rows, weights, total)[:2]))
    n, xp, size = X.shape[0], namespace(weights), copied_rows(X.shape[1])
    blocks = [slice(i, min(i + size, n)) for i in range(0, n, size)]
    first = sum(weights[part] @ as_double(X[part, :]) for part in blocks) / total
    length = scalar(xp.sum(first * first))
    if X.dtype == xp.float64:
        squares = scalar(weights @ squared_norms(X, axis=-1)) / total
        if length <= SMALL_MEAN * (squares - length):
            return first, squares - length, None
    copied = math.prod(X.shape) <= COPIED_ENTRIES
    if copied:
        blocks = [slice(0, n)]
    # The mean of the deviations from a first mean corrects its rounding error.
    variance, rest, deviations = 0.0, 0.0 * first, first
    for part in blocks:
        deviations = as_double(X[part, :]) - first
        rest = rest + weights[part] @ deviations
        variance += scalar(weights[part] @ squared_norms(deviations, axis=-1))
    rest = rest / total
    variance = variance / total - scalar(xp.sum(rest * rest))
    return first + rest, variance, (deviations, rest) if copied else None


def _padded(spectrum: Spectrum, k: int | None) -> Spectrum:
    """Return the `k` leading eigenpairs of `spectrum`; all that it has if `k` is None.

    If `spectrum` has fewer than `k`, the missing eigenvalues are 0, and their eigenvectors are
    arbitrary orthonormal vectors orthogonal to the others.
    """
    found = int(spectrum.values.shape[0])
    if k is None or k <= found:
        return spectrum if k is None else spectrum.leading(k)
    xp = namespace(spectrum.values)
    extra = k - found
    rows = normal(np.random.default_rng(0), (spectrum.n_features, extra), spectrum.values)
    completed, _ = xp.linalg.qr(xp.concat([spectrum.vectors, rows], axis=1))
    zeros = zeros_like_shape((extra,), spectrum.values)
    vectors = xp.concat([spectrum.vectors, completed[:, found:]], axis=1)
    return Spectrum(xp.concat([spectrum.values, zeros]), vectors, spectrum.trace)


Source = MomentSource | RowsSource | BlocksSource
"""The data passed to `fit`: their mean, total weight, second moment and its eigenpairs."""


@dataclass(frozen=True, slots=True)
class LinearSolver:
    """Properties of one of the solvers of `LinearAutoencoder`."""

    # whether the solver computes the optimum from the leading eigenpairs of the second moment
    closed_form: bool
    batches: bool = False  # whether the solver draws batches of rows
    # name of the solver that is used instead if no closed form of the minimum is known
    if_unknown: str | None = None


SOLVERS = {
    "auto": LinearSolver(closed_form=True, if_unknown="gradient"),
    "exact": LinearSolver(closed_form=True),
    "gradient": LinearSolver(closed_form=False),
    "stochastic": LinearSolver(closed_form=False, batches=True),
}
"""Properties of the solvers of `LinearAutoencoder`, by the name of the solver."""


def source_of(
    X: Any, weights: Array | None, solver: LinearSolver = SOLVERS["auto"], wanted: Any = None
) -> Source:
    """Return the data as a `MomentSource` or as a `RowsSource`, whichever the solver needs.

    A solver that draws batches needs rows. For the others, the cheaper form for the shape of X is
    chosen.
    """
    n, m = X.shape
    if solver.batches:
        return RowsSource.of(X, weights)
    if not solver.closed_form and m <= EXACT_FEATURES:
        return MomentSource(SecondMoment.of(X, weights), X, weights)
    stored = m <= STORED_FEATURES and not _smaller_than_moment(X)
    if n <= m // 2:
        moment = SecondMoment.of(X, weights) if stored else None
        return RowsSource.of(X, weights, moment, closed_form=solver.closed_form)
    many = m <= STORED_FEATURES and _many(wanted, m)
    if stored or many or _moment_is_cheapest(X, wanted):
        return MomentSource(SecondMoment.of(X, weights), X, weights)
    return RowsSource.of(X, weights, closed_form=solver.closed_form)


def _many(wanted: Any, m: int) -> bool:
    """Tell whether a dense solver is faster than an iteration for `wanted` of m components."""
    return m < ARPACK_FEATURES or not isinstance(wanted, int) or wanted > m // ITERATIVE_SHARE


def _moment_is_cheapest(X: Any, wanted: Any) -> bool:
    m = X.shape[1]
    if m > EXACT_FEATURES:
        return False
    if not isinstance(wanted, int):
        return True
    cost = _costs_of(X, min(wanted + 1, m))
    return not cost.iterates and cost.moment < cost.gram


def _costs_of(X: Any, k: int) -> Costs:
    """Return the costs of the algorithms for the `k` leading eigenpairs of rows X (n, m)."""
    n, m = X.shape
    if scipy.sparse.issparse(X):
        return costs(n, m, k, entries=X.nnz)
    return costs(n, m, k, narrow=has_fast_products(X, NARROW))


def _for_vectors(X: Any, k: int) -> bool:
    """Tell whether `k` eigenpairs of rows X (n, m) are computed by products with single vectors.

    This is faster than a block iteration if the rows are sparse or small.
    """
    if scipy.sparse.issparse(X):
        return True
    return is_numpy(X) and X.dtype == np.float64 and X.size <= SMALL_ROWS and k <= MANY


def _smaller_than_moment(X: Any) -> bool:
    """Tell whether rows X (n, m) on the CPU take less memory than their second moment (m, m)."""
    sparse = scipy.sparse.issparse(X)
    return (sparse or is_numpy(X)) and bool((X.nnz if sparse else X.size) <= X.shape[1] ** 2)
