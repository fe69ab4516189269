"""Data as one operator: mean, variances, and products with the second moment Σ of centred rows.

`RowOperator.of` returns rows in memory, `BlockRows` are rows that are read in blocks, and
`MomentRows` are data of which only the second moment is known. The matrix Σ (m × m) is formed by
`scatter` alone. Σ as a matrix has rounding errors of ε λ₁, with the machine epsilon ε and the
largest eigenvalue λ₁, which hide eigenvectors of much smaller eigenvalues. `triangle` returns a
factor R of Σ = RᵀR, from which they are known as accurately as from a singular value decomposition
of the rows.

`TrainingRows` are rows that a fitted state holds until its certificate or second moment is
computed. Both take more time than some fits, so that they are computed when they are first read.
Rows that take less memory than their second moment are copied. Of larger rows only a reference is
stored; their products with a random vector show whether they were changed in the meantime. Memory
maps are neither copied nor referenced: reading one whose file was shortened would end the process.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from lucidae.arrays import (
    Array,
    as_double,
    like,
    mirrored,
    namespace,
    on_host,
    to_numpy,
    where_set,
    zeros_like_shape,
)
from lucidae.arrays.threads import blas_threads, in_threads, one_thread
from lucidae.moments import SecondMoment, check_squares, slices, sparse_centre, sparse_square
from lucidae.rows.covariances import RowsCovariance
from lucidae.rows.passes import Passes
from lucidae.validation import mapping_of

__all__ = [
    "CHANGED_ROWS",
    "BlockRows",
    "CsrRows",
    "DenseRows",
    "MomentRows",
    "RowOperator",
    "TrainingRows",
]

Vector = np.ndarray[Any, Any]

EXACT_FEATURES = 8192
"""Largest number of rows of a square matrix (second moment or Gram matrix) that is formed; at this
size it takes half a gibibyte."""

COPIED_ENTRIES = 2**27
"""Largest number of entries of rows that are copied to centre them once, not for every product: one
gibibyte. Larger rows are centred some at a time."""

FACTORED_ENTRIES = {False: 2**26, True: 2**24}
"""Largest number of entries of dense (False) and sparse (True) rows that are factorised."""

BLOCK_ENTRIES = 2**24
"""Number of entries of rows that are copied and centred at a time for one product."""

PLAIN_ROWS = 2**18
"""Number of rows multiplied at a time if the rows need no copy; it limits the memory for codes."""

SUMMED_ENTRIES = 2**17
"""Number of entries of rows on the CPU that are squared and added at a time: they stay in cache."""

SMALL_MEAN = 1.0
"""Largest ratio of the squared length of the mean to the total variance for which the mean is
subtracted from the products instead of from the rows: at most one bit of accuracy is lost."""

SINGLE_ENTRIES = 2**19
"""Smallest number of entries of float32 rows that are multiplied in single precision."""

SINGLE_RANGE = 1e20
"""Mean squares of the entries between the inverse of this number and this number neither overflow
nor underflow in products in single precision."""

COLUMNS = 4096
"""Number of columns that are copied and centred at a time for the Gram matrix."""

STORED_FEATURES = 1024
"""Largest number of features for which `fit` stores the second moment, so that `partial_fit` can
continue; the matrix then takes at most eight mebibytes."""

CHANGED_ROWS = (
    "X was changed in place after fit, before certificate_ was read: call "
    "lucidae.certify(estimator, X) with the rows that were given to fit."
)
"""Advice of a certificate whose training rows were changed before it was computed."""

THREADED_ENTRIES = 2**21
"""Smallest number of entries of dense rows that are multiplied by several threads."""

REFERENCED_BYTES = 2**28
"""Largest size of rows to which a fitted state refers: 256 mebibytes. An estimator must not keep
more memory in use; of larger rows the certificate is computed by `fit`."""


class RowOperator:
    """Weighted rows with m features, as products of vectors with their second moment Σ.

    The second moment and the triangle, once they are computed, take the place of the rows.
    """

    n_features: int  # number m of features
    weight: float  # sum of the weights of the rows
    rows: Any = None  # (n, m): the rows, if they are in memory
    weights: Array | None = None  # (n,): weights of the rows; None for 1 each
    moment: SecondMoment | None = None  # the second moment, if it is known
    reference: Array  # an empty array of the library, dtype and device of the rows
    factor: Array | None = None  # the triangle, if it was computed

    @staticmethod
    def of(X: Any, weights: Array | None = None) -> DenseRows | CsrRows:
        """Return checked rows X (n, m) in memory; without `weights` each has weight 1."""
        return (CsrRows if scipy.sparse.issparse(X) else DenseRows)(X, weights)

    @property
    def _statistics(self) -> tuple[Array, Array]:
        """Mean (m,) of the rows and variance (m,) of each feature."""
        raise NotImplementedError

    @cached_property
    def mean(self) -> Array:
        """Weighted mean of the rows, shape (m,)."""
        return self._statistics[0]

    @cached_property
    def trace(self) -> float:
        """Total variance of the rows: the trace of Σ."""
        variances = self._statistics[1]
        return float(namespace(variances).sum(variances))

    def apply(self, rows: Array) -> Array:
        """Return ``rows @ Σ`` for `rows` of shape (…, k, m)."""
        if self.factor is not None:
            return (rows @ self.factor.mT) @ self.factor
        return self._product(rows) if self.moment is None else rows @ self.covariance

    @cached_property
    def covariance(self) -> Array:
        """The matrix Σ of shape (m, m)."""
        return (self.moment or self.scatter()).covariance

    def scatter(self) -> SecondMoment:
        """Return the second moment as a matrix, computed once."""
        if self.moment is None:
            self.know(SecondMoment._of_rows(self.rows, self.weights))
        assert self.moment is not None
        return self.moment

    def know(self, moment: SecondMoment) -> None:
        """Use the second moment of the rows instead of the rows from now on."""
        self.moment, self.weight = moment, moment.weight
        self.mean, self.trace = moment.mean, moment.trace

    def triangle(self) -> Array | None:
        """Return R of shape (min(n, m), m) with RᵀR = Σ, computed once; None if it is too large."""
        if self.factor is None and self.can_factor:
            self.factor = self._triangle()
        return self.factor

    @property
    def can_factor(self) -> bool:
        """Whether `triangle` can be computed."""
        return False

    def _product(self, rows: Array) -> Array:
        raise NotImplementedError

    def _triangle(self) -> Array:
        raise NotImplementedError


class MomentRows(RowOperator):
    """Data of which only the second moment is known."""

    def __init__(self, moment: SecondMoment, reference: Array | None = None) -> None:
        self.n_features = int(moment.center.shape[0])
        self.reference = moment.center[:0] if reference is None else reference
        self.know(moment)


FEWEST_PRODUCTS, FEW_PRODUCTS = 10**5, 10**8
"""Number of multiplications in a product of rows with themselves above which BLAS may use several
threads, and the largest for which one thread is used; they take about 2 ms."""


class _RowsInMemory(RowOperator):
    """Rows (n, m) in memory."""

    def __init__(self, X: Any, weights: Array | None) -> None:
        self.rows, self.weights = X, weights
        self.n_features, sparse = int(X.shape[1]), scipy.sparse.issparse(X)
        self.entries = int(X.nnz) if sparse else math.prod(X.shape)  # number of stored entries
        plain = sparse or isinstance(X, np.ndarray)
        self.reference = np.empty(0, X.dtype) if plain else zeros_like_shape((0,), X)
        self.weight = float(X.shape[0])
        if weights is not None:
            self.weight = float(namespace(weights).sum(weights))

    def suitable_threads(self) -> AbstractContextManager[None]:
        """Return a context manager in which BLAS uses one thread if the rows are few.

        BLAS would start several threads for products of rows that take less time than waking up a
        thread. For tiny rows nothing is changed: BLAS uses one thread for them anyway.
        """
        n, m = self.rows.shape
        few = FEWEST_PRODUCTS < n * m * min(n, m) <= FEW_PRODUCTS
        return one_thread() if few else nullcontext()

    @cached_property
    def shares(self) -> Array:
        """Weights (n,) of sum 1, as float64 beside the mean."""
        if self.weights is not None:
            return self.weights / self.weight
        reference = np.empty(0) if scipy.sparse.issparse(self.rows) else self.rows
        xp, n = namespace(reference), self.rows.shape[0]
        return xp.full((n,), 1.0 / n, dtype=xp.float64, device=reference.device)

    @property
    def can_factor(self) -> bool:
        """Whether `triangle` can be computed."""
        sparse = scipy.sparse.issparse(self.rows)
        small = math.prod(self.rows.shape) <= FACTORED_ENTRIES[sparse]
        return small and bool(min(self.rows.shape) <= EXACT_FEATURES)

    @property
    def products(self) -> tuple[Any, Array]:
        """Rows by which vectors are multiplied, and their mean (m,)."""
        raise NotImplementedError

    def _triangle(self) -> Array:
        n, m = self.rows.shape
        mean, found = as_double(self.mean), None
        # The mean of the deviations from a first mean corrects its rounding error.
        size = n if n <= m else max(4096, 4 * m)
        for first in (True, False):
            rest, found = 0.0 * mean, None
            for part in slices(n, size):
                rows = centred_block(self.rows[part] if n > size else self.rows, mean)
                own = like(self.shares[part], mean)
                rest = rest + own @ rows
                if not first:
                    rows = rows * namespace(mean).sqrt(own)[:, None]
                    found = rows if n <= m else stacked(found, rows)
            mean = mean + rest
        assert found is not None, "there is at least one row"
        return found

    def gram(self) -> Array:
        """Return the Gram matrix AAᵀ (n, n) of A = diag(√shares)(X − mean)."""
        root = namespace(self.shares).sqrt(self.shares)
        return self._plain_gram() * (root[:, None] * root[None, :])

    def _plain_gram(self) -> Array:
        raise NotImplementedError


class DenseRows(_RowsInMemory):
    """Dense rows of any array library."""

    @cached_property
    def _statistics(self) -> tuple[Array, Array]:
        xp = namespace(self.shares)
        with np.errstate(over="ignore", invalid="ignore"):
            mean, squares = self._sums_about(None)
            variances = squares - mean * mean
            if not float(xp.sum(mean * mean)) <= SMALL_MEAN * float(xp.sum(variances)):
                # About a first mean, no digits of the variance are lost, and its error is found.
                rest, squares = self._sums_about(mean)
                mean, variances = mean + rest, squares - rest * rest
            total = float(xp.sum(variances)) * self.weight
            check_squares(self.rows, mean, total, self.weight)
        return mean, where_set(variances, variances < 0, 0.0)

    def _sums_about(self, center: Array | None) -> tuple[Array, Array]:
        """Return the weighted means (m,) of the rows minus `center` and of their squares."""
        (n, m), host, xp = self.rows.shape, on_host(self.rows), namespace(self.rows)
        weights = self.weights
        if weights is None:  # sums of ones are exact, so that equal rows have the variance zero
            weights = xp.ones(n, dtype=xp.float64, device=self.rows.device)
        size = max(4, (SUMMED_ENTRIES if host else BLOCK_ENTRIES) // m)

        def part(first: int, last: int) -> tuple[Array, Array]:
            mean: Any = 0.0
            squares: Any = 0.0
            for start in range(first, last, size):
                block = slice(start, min(start + size, last))
                rows, own = as_double(self.rows[block, :]), weights[block]
                rows = rows if center is None else rows - center
                mean, squares = mean + own @ rows, squares + own @ (rows * rows)
            return mean, squares

        threads = (
            blas_threads() if isinstance(self.rows, np.ndarray) and n * m >= SINGLE_ENTRIES else 1
        )
        means, squares = zip(*in_threads(part, n, threads), strict=True)
        mean, square = sum(means[1:], means[0]), sum(squares[1:], squares[0])
        return mean / self.weight, square / self.weight

    @cached_property
    def small_mean(self) -> bool:
        """Whether the squared mean is at most `SMALL_MEAN` times the total variance."""
        with np.errstate(over="ignore"):  # of a mean above 1e154
            length = float(namespace(self.mean).sum(self.mean**2))
        return length <= SMALL_MEAN * self.trace

    @cached_property
    def products(self) -> tuple[Array, Array]:
        """The rows and their mean, or a centred float64 copy and its mean, a rounding error."""
        double = self.rows.dtype == namespace(self.mean).float64
        if (double and self.small_mean) or self.entries > COPIED_ENTRIES:
            return self.rows, self.mean
        centred = as_double(self.rows) - self.mean
        return centred, self.shares @ centred

    @cached_property
    def single_products(self) -> tuple[Vector, Vector] | None:
        """Float32 rows whose mean is small, and this mean; None if they must be converted."""
        X, mean = self.rows, self.mean
        if not isinstance(X, np.ndarray) or X.dtype != np.float32 or X.size < SINGLE_ENTRIES:
            return None
        size = (self.trace + float(mean @ mean)) / X.shape[1]
        if not (1 / SINGLE_RANGE < size < SINGLE_RANGE):
            return None
        if self.small_mean:
            return X, mean
        center = mean.astype(np.float32)
        return (X - center, mean - center) if X.shape[1] / SINGLE_RANGE < self.trace else None

    def _product(self, rows: Array) -> Array:
        total: Any = 0.0
        for batch, share in self._batches(*self.products):
            total = total + share * batch.apply(rows)
        return total

    def _batches(self, X: Array, mean: Array) -> Iterator[tuple[RowsCovariance, float]]:
        """Yield the second moments of some rows at a time, with their shares of the weight."""
        n, m = X.shape
        plain = X.dtype == mean.dtype and (X is not self.rows or self.small_mean)
        size = PLAIN_ROWS if plain else max(1, BLOCK_ENTRIES // m)
        for part in slices(n, size):
            block, own = X[part, :], self.shares[part]
            share = float(namespace(own).sum(own))
            if share > 0.0:
                center = mean if plain else 0.0 * mean
                block = block if plain else as_double(block) - mean
                yield RowsCovariance(block, center, own, share), share

    def single_gram(self) -> Vector:
        """Return the Gram matrix of the centred rows, from products in single precision."""
        assert self.single_products is not None, "asked for before"
        (X, mean), root = self.single_products, np.sqrt(self.shares)
        gram = np.zeros((len(X), len(X)))
        for part in slices(X.shape[1], 4 * COLUMNS):
            gram += X[:, part] @ X[:, part].T
        # The mean is small, so that subtracting its products loses no digit.
        along = X @ mean.astype(np.float32)
        gram += mean @ mean - along[:, None] - along[None, :]
        return np.asarray(gram * (root[:, None] * root[None, :]))

    def _plain_gram(self) -> Array:
        X, mean = self.products
        xp, n = namespace(mean), X.shape[0]
        gram = xp.zeros((n, n), dtype=mean.dtype, device=mean.device)
        for part in slices(X.shape[1], COLUMNS):
            block = as_double(X[:, part]) - mean[part]
            gram += block @ block.mT  # NumPy computes one triangle of it
        return gram

    def batch(self, index: Any) -> RowsCovariance:
        """Return the second moment of the rows `index` about the mean of all rows."""
        xp = namespace(self.shares)
        chosen = xp.asarray(index, device=self.shares.device)
        X, mean = self.products
        own = xp.take(self.shares, chosen, axis=0)
        rows = as_double(xp.take(X, chosen, axis=0)) - mean
        return RowsCovariance(rows, 0.0 * mean, own, float(xp.sum(own)))


class CsrRows(_RowsInMemory):
    """Rows as a sparse matrix of SciPy, which is never made dense as a whole."""

    @cached_property
    def _centre(self) -> tuple[Any, Vector, Vector]:
        with np.errstate(over="ignore", invalid="ignore"):
            return sparse_centre(self.rows, self.weights)

    @property
    def products(self) -> tuple[Any, Vector]:
        """The rows with their columns without zeros centred, and the mean of these rows."""
        return self._centre[0], self._centre[2]

    @cached_property
    def _statistics(self) -> tuple[Vector, Vector]:
        rows, center, offset = self._centre
        with np.errstate(over="ignore", invalid="ignore"):
            entries = rows.data * rows.data
            squares = self.shares @ type(rows)((entries, rows.indices, rows.indptr), rows.shape)
            variances = np.maximum(squares - offset * offset, 0.0)
            total = float(np.sum(variances if np.isfinite(squares).all() else squares))
            check_squares(self.rows, center, total * self.weight, self.weight)
        return center + offset, variances

    def _product(self, rows: Array) -> Array:
        return RowsCovariance(*self.products, self.shares, 1.0).apply(rows)

    def _plain_gram(self) -> Vector:
        X, mean = self.products
        along = X @ mean
        gram: Vector = mirrored(sparse_square(X.T.tocsr()))
        gram += mean @ mean - along[:, None] - along[None, :]
        return gram

    def batch(self, index: Any) -> RowsCovariance:
        """Return the second moment of the rows `index` about the mean of all rows."""
        X, mean = self.products
        own = self.shares[index]
        return RowsCovariance(X[index], mean, own, float(own.sum()))


def centred_block(X: Any, mean: Array) -> Array:
    """Return some rows minus a mean, dense and as float64 beside the mean."""
    rows = X.toarray() if scipy.sparse.issparse(X) else X
    return like(as_double(rows), mean) - mean


def stacked(upper: Array | None, lower: Array) -> Array:
    """Return the triangle R of a QR factorisation of `upper` above `lower`."""
    xp = namespace(lower)
    rows = lower if upper is None else xp.concat([upper, lower], axis=0)
    return np.linalg.qr(rows, mode="r") if isinstance(rows, np.ndarray) else xp.linalg.qr(rows)[1]


class _Sums(NamedTuple):
    """Weight, mean, and squares about the mean of blocks of rows."""

    weight: float
    mean: Vector
    squares: Vector

    def merge(self, other: _Sums) -> _Sums:
        """Return the sums of the rows of both (Chan et al. 1983)."""
        weight, shift = self.weight + other.weight, other.mean - self.mean
        between = shift * shift * (self.weight * (other.weight / weight))
        mean = self.mean + shift * (other.weight / weight)
        return _Sums(weight, mean, self.squares + other.squares + between)


def _block_sums(X: Any, _targets: Any, weights: Any) -> _Sums:
    rows = RowOperator.of(X, weights)
    mean, variances = map(to_numpy, rows._statistics)
    return _Sums(rows.weight, mean, variances * rows.weight)


class _Products(NamedTuple):
    """Sums over rows x with weights w about a vector c: Σ w, Σ w ⟨v, x − c⟩(x − c), Σ w (x − c)."""

    weight: float
    products: Vector
    rest: Vector

    def merge(self, other: _Products) -> _Products:
        """Return the sums of the rows of both."""
        weight, products = self.weight + other.weight, self.products + other.products
        return _Products(weight, products, self.rest + other.rest)


def _block_products(
    vectors: Vector, center: Vector, X: Any, _targets: Any, weights: Any
) -> _Products:
    n = X.shape[0]
    shares = np.ones(n) if weights is None else weights
    if scipy.sparse.issparse(X):
        # Columns without zeros are centred, so that a large mean costs no digits.
        X, _, _ = sparse_centre(X, None, center)
        full = np.bincount(X.indices, minlength=X.shape[1]) == n
        rest = np.where(full, 0.0, center)
        block = RowsCovariance(X, rest, shares, 1.0)
        sums = np.asarray(shares @ X).ravel() - float(np.sum(shares)) * rest
    else:
        rows = centred_block(X, like(center, as_double(X[:1, :])))
        shares = like(shares, rows)
        block = RowsCovariance(rows, 0.0 * rows[0, :], shares, 1.0)
        vectors, sums = like(vectors, rows), shares @ rows
    weight = float(namespace(shares).sum(shares))
    return _Products(weight, to_numpy(block.apply(vectors)), to_numpy(sums))


class _Factor(NamedTuple):
    """Σ w, and the triangle R with RᵀR = Σ w (x − c)(x − c)ᵀ, of rows x."""

    weight: float
    triangle: Vector

    def merge(self, other: _Factor) -> _Factor:
        """Return the sums of the rows of both."""
        return _Factor(self.weight + other.weight, stacked(self.triangle, other.triangle))


def _block_factor(center: Vector, offset: Vector, X: Any, _targets: Any, weights: Any) -> _Factor:
    rows = to_numpy(centred_block(X, like(center, np.empty(0)))) - offset
    shares = np.ones(len(rows)) if weights is None else to_numpy(weights)
    triangle = stacked(None, rows * np.sqrt(shares)[:, None])
    return _Factor(float(shares.sum()), triangle)


class BlockRows(RowOperator):
    """Rows that are read in blocks, several times: each product with Σ is a pass over the data."""

    def __init__(self, passes: Passes, moment: SecondMoment | None = None) -> None:
        rows = passes.data.rows
        self.passes, self.n_features, self.reference = passes, rows.n_features, rows.reference
        if moment is not None:
            passes.expect(moment)
            self.know(moment)

    @cached_property
    def _sums(self) -> _Sums:
        return self.passes.total(_block_sums, _Sums.merge)  # type: ignore[no-any-return]

    @cached_property
    def weight(self) -> float:  # type: ignore[override]
        """Sum of the weights of the rows."""
        return self._sums.weight

    @cached_property
    def _statistics(self) -> tuple[Vector, Vector]:
        return self._sums.mean, self._sums.squares / self._sums.weight

    def _product(self, rows: Array) -> Array:
        vectors = np.reshape(rows, (-1, self.n_features))
        leaf = partial(_block_products, vectors, self.mean)
        found: _Products = self.passes.total(leaf, _Products.merge)
        # The second moment about c is Σ + rrᵀ for the offset r of the mean from c.
        offset = found.rest / found.weight
        product = found.products / found.weight - (vectors @ offset)[:, None] * offset
        return np.reshape(product, rows.shape)

    @property
    def can_factor(self) -> bool:
        """Whether `triangle` can be computed."""
        return self.n_features <= EXACT_FEATURES

    def _triangle(self) -> Array:
        moment = self.scatter()
        leaf = partial(_block_factor, to_numpy(moment.center), to_numpy(moment.offset))
        found: _Factor = self.passes.total(leaf, _Factor.merge)
        return like(found.triangle / math.sqrt(found.weight), moment.center)


@dataclass(frozen=True)
class TrainingRows:
    """Training rows with their weights, and a test whether they were changed after the fit."""

    rows: Any  # (n, m): the rows
    weights: Array | None  # (n,): weights of the rows; None for 1 each
    title: str  # title of the certificate
    # (m,): A random vector; None if the rows are a copy, which nobody else can change
    direction: Vector | None = None
    # (n,): the products of the rows with this vector at the time of the fit
    projected: Vector | None = None
    moment: SecondMoment | None = None  # the second moment of the fit, if the rows are larger

    @classmethod
    def referenced(
        cls, X: Any, weights: Array | None, title: str, moment: SecondMoment | None = None
    ) -> TrainingRows | None:
        """Return an object that refers to the rows X (n, m) without a copy.

        The result is None if the rows are too large, a memory map, or not on the CPU. The random
        vector that shows changes is drawn anew for every fit, so that nobody can choose a change
        that it does not show. No fitted number depends on it. The `moment` is kept if it takes no
        more memory than the rows.
        """
        if not (isinstance(X, np.ndarray) or scipy.sparse.issparse(X)):
            return None
        parts = (X.data, X.indices, X.indptr) if scipy.sparse.issparse(X) else (X,)
        size = sum(part.nbytes for part in parts)
        if size > REFERENCED_BYTES or any(mapping_of(part) is not None for part in parts):
            return None
        # In units of the columns, so that a column of large numbers does not hide the others.
        some = abs(X[:: max(1, X.shape[0] // 32)]).max(axis=0)
        sizes = np.asarray(some.toarray() if scipy.sparse.issparse(some) else some).ravel()
        sizes = np.where((sizes > 1e-100) & np.isfinite(sizes), sizes, 1.0).astype(np.float64)
        direction = np.random.default_rng().standard_normal(X.shape[1]) / sizes
        weights = None if weights is None else weights.copy()
        moment = moment if 8 * X.shape[1] ** 2 <= size else None
        return cls(X, weights, title, direction, _projected(X, direction), moment)

    @classmethod
    def copied(cls, X: Any, weights: Array | None, title: str) -> TrainingRows:
        """Return an object that contains a copy of the rows X (n, m), on the CPU."""
        rows = X.copy() if scipy.sparse.issparse(X) else np.array(to_numpy(X))
        return cls(rows, None if weights is None else np.array(to_numpy(weights)), title)

    @property
    def stored(self) -> bool:
        """Whether the rows are a copy, from which the second moment can be computed at any time."""
        return self.direction is None

    @property
    def given(self) -> tuple[Any, Array | None]:
        """The rows and their weights, as they were given to `fit`."""
        return self.rows, self.weights

    @property
    def unchanged(self) -> bool:
        """Whether the rows have the same products with the random vector as at the time of the fit.

        The products are computed in the same order, so that they agree to the last bit if the rows
        were not changed. A change that they do not show is smaller than their rounding errors.
        """
        if self.direction is None:
            return True
        expected = np.asarray(self.projected)
        if self.rows.shape != (len(expected), len(self.direction)) or not _consistent(self.rows):
            return False
        return np.array_equal(_projected(self.rows, self.direction), expected)


def _projected(X: Any, direction: Vector) -> Vector:
    """Return the products of the rows with a vector, in an order that does not depend on threads.

    BLAS may divide the sums differently if its number of threads has changed. The products are
    computed in double precision: in single precision, a large constant feature would hide changes
    of the others.
    """
    if scipy.sparse.issparse(X):
        return np.asarray(X @ direction)

    def part(first: int, last: int) -> Vector:
        return np.asarray(np.einsum("ij,j->i", X[first:last], direction))

    if X.size < THREADED_ENTRIES:
        return part(0, X.shape[0])
    return np.concatenate(in_threads(part, X.shape[0], blas_threads()))


def _consistent(X: Any) -> bool:
    """Tell whether the indices of a sparse matrix in CSR format are valid; True for dense rows.

    SciPy does not test them, and a product with wrong ones may read outside of the arrays.
    """
    if not scipy.sparse.issparse(X):
        return True
    (n, m), (data, indices, indptr) = X.shape, (X.data, X.indices, X.indptr)
    ends = len(indptr) == n + 1 and indptr[0] == 0 and indptr[-1] <= min(len(data), len(indices))
    if not ends or np.any(np.diff(indptr) < 0):
        return False
    return len(indices) == 0 or bool(np.min(indices) >= 0 and np.max(indices) < m)
