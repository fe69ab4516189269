"""Products of row vectors with the second moment Σ of the data, and its leading eigenpairs.

The classes ending in ``Covariance`` compute these products from a matrix, from its eigenvalues or
from rows; `Spectrum` contains eigenvalues and eigenvectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import scipy.sparse

from lucidae.arrays import (
    Array,
    as_double,
    namespace,
)
from lucidae.arrays.threads import blas_threads, in_threads

TINY = float(np.finfo(float).tiny)
"""The smallest normal float64 number, used in place of zero if one would divide by zero."""

Vector = np.ndarray[Any, Any]

SMALL_PRODUCT = 10**6
"""Largest number of multiplications of a product that OpenBLAS computes without copying."""

CACHED_BYTES = 2**20
"""Largest size of the rows that are multiplied at a time, so that they stay in the cache."""

FEWEST_ROWS = 4
"""Smallest number of rows at a time; with fewer, calling BLAS takes too much of the time."""

LARGE_PIECE = 2**22
"""Number of entries of the rows that are multiplied at a time if pieces for the cache would have
too few rows."""

SMALLEST_PASS = 2**19
"""Smallest number of entries of the rows for which they are read in pieces."""

THREADED_PASS = 2**25
"""Smallest number of multiplications for which several threads are started."""


class Covariance(Protocol):
    """Interface of classes that multiply by the second moment Σ of centred rows.

    Σ is a matrix of shape (m, m), m being the number of features; a class need not store it.
    """

    @property
    def trace(self) -> Any:
        """Total variance of the data: the trace of the second moment."""

    @property
    def n_features(self) -> int:
        """Number of features of the data."""

    def apply(self, rows: Array) -> Array:
        """Return ``rows @ Σ``, where `rows` have shape (…, k, m) and Σ is the second moment."""


@dataclass(frozen=True)
class DenseCovariance:
    """The second moment Σ stored as a matrix of shape (m, m) for m features.

    A product with k rows costs O(m²k) operations.
    """

    matrix: Array

    @cached_property
    def trace(self) -> Array:
        """Total variance of the data: the trace of the second moment."""
        return namespace(self.matrix).linalg.trace(self.matrix)

    @property
    def n_features(self) -> int:
        """Number of features of the data."""
        return int(self.matrix.shape[0])

    def apply(self, rows: Array) -> Array:
        """Return ``rows @ Σ``, where `rows` have shape (…, k, m) and Σ is the second moment."""
        return rows @ self.matrix


@dataclass(frozen=True, slots=True)
class EigenbasisCovariance:
    """The second moment Σ in the basis of its eigenvectors, where it is diagonal.

    `values` are the m eigenvalues. A product with k rows costs O(mk) operations.
    """

    values: Array

    @property
    def trace(self) -> Array:
        """Total variance of the data: the trace of the second moment."""
        return namespace(self.values).sum(self.values)

    @property
    def n_features(self) -> int:
        """Number of features of the data."""
        return int(self.values.shape[-1])

    def apply(self, rows: Array) -> Array:
        """Return ``rows @ Σ``, where `rows` have shape (…, k, m) and Σ is the second moment."""
        return rows * self.values


@dataclass(frozen=True, slots=True)
class RowsCovariance:
    """The second moment Σ of n weighted rows with m features; the m × m matrix is not formed.

    A product of k row vectors with Σ costs O(nmk) operations and O(nk) memory. The contribution of
    the mean is subtracted from the products and not from the rows, so that sparse rows stay sparse.
    """

    rows: Any  # (n, m): the rows, not centred
    mean: Array  # (m,): the vector that is subtracted from every row
    weights: Array  # (n,): weights of the rows
    total: float  # sum of `weights`

    @property
    def trace(self) -> float:
        """Total variance of the data: the trace of the second moment of the centred rows."""
        xp = namespace(self.mean)
        squares = self.rows.multiply(self.rows) if self._sparse else self.rows * self.rows
        # With the weighted average a of the rows, Σw‖x − μ‖²/Σw = Σw‖x‖²/Σw − (2a − μ)ᵀμ; the mean
        # μ may be that of more rows than these.
        raw = float(xp.sum(self.weights @ squares)) / self.total
        average = (self.weights @ self.rows) / self.total
        found = raw - float(xp.sum((2 * average - self.mean) * self.mean))
        return max(found, 0.0)  # in this order a NaN is returned as NaN

    @property
    def _sparse(self) -> bool:
        return bool(scipy.sparse.issparse(self.rows))

    @property
    def n_features(self) -> int:
        """Number of features of the data."""
        return int(self.rows.shape[1])

    def codes(self, encoder: Array) -> Array:
        """Return the codes (X − mean) Wᵀ of the n rows X, of shape (…, n, k).

        `encoder` W (…, k, m) has k latents and m features.
        """
        shift = (encoder @ self.mean)[..., None, :]
        if self._sparse:
            # SciPy multiplies a sparse matrix faster with columns that are stored row by row.
            return self.rows @ np.ascontiguousarray(encoder.mT) - shift
        # BLAS is a third faster in this order than in XWᵀ, if W has a few dozen rows.
        return (encoder @ self.rows.mT).mT - shift

    def centred_products(self, codes: Array) -> Array:
        """Return codesᵀ(X − mean) for the n rows X (n, m), of shape (…, k, m)."""
        # codesᵀ(X − 1μᵀ) = codesᵀX − (codesᵀ1)μᵀ
        spread = namespace(self.mean).sum(codes, axis=-2)
        raw = (self.rows.T @ codes).mT if self._sparse else codes.mT @ self.rows
        return raw - spread[..., :, None] * self.mean

    def apply(self, rows: Array) -> Array:
        """Return ``rows @ Σ``, where `rows` have shape (…, k, m) and Σ is the second moment."""
        shares = self.weights / self.total
        if rows.ndim == 2 and has_fast_products(self.rows, rows.shape[0]):
            return moment_product(rows, self.rows, self.mean, shares)
        return self.centred_products(self.codes(rows) * shares[:, None])


def rows_covariance(X: Any, mean: Array, weights: Array) -> RowsCovariance:
    """Return the second moment of weighted rows X (n, m) about a given mean.

    The m × m matrix is not formed. Dense rows are copied and centred as float64; sparse rows are
    not changed.
    """
    total = float(namespace(weights).sum(weights))
    if scipy.sparse.issparse(X):
        return RowsCovariance(X, mean, weights, total)
    return RowsCovariance(as_double(X) - mean, 0.0 * mean, weights, total)


def has_fast_products(X: Any, width: int) -> bool:
    """Tell whether `moment_product` is the fastest way to multiply `width` vectors by rows X.

    X must be a NumPy array of float32 or float64 numbers that is neither small nor too wide.
    """
    if not isinstance(X, np.ndarray) or X.dtype.char not in "fd" or X.size < SMALLEST_PASS:
        return False
    return _piece(X.shape[1], width, 8) >= FEWEST_ROWS


def moment_product(
    vectors: Vector, X: Vector, mean: Vector, shares: Vector | None, *, single: bool = False
) -> Vector:
    """Return the product of vectors with the second moment of weighted rows, in float64.

    For rows X (n × m) with weights p of sum 1 and mean μ, the product of vectors V (b × m) with the
    second moment is C(X − 1μᵀ) with the codes C = (V(X − 1μᵀ)ᵀ)diag(p), so that X is needed twice.
    Here it is read once: some rows at a time are multiplied twice while they are in the cache.
    Products with few vectors are limited by the memory bandwidth, and so take half of the time.
    There is a second reason for small pieces: OpenBLAS multiplies small matrices without first
    copying them, which for four vectors takes more time than the product.
    """
    (n, m), dtype = X.shape, np.float32 if single and X.dtype == np.float32 else np.float64
    vectors, converted = np.ascontiguousarray(vectors, dtype=dtype), X.dtype != dtype
    if shares is not None and np.all(shares == 1.0 / n):
        shares = None
    shift = (vectors @ mean)[:, None].astype(dtype)
    size = _piece(m, len(vectors), np.dtype(dtype).itemsize)
    threads = blas_threads() if n * m * len(vectors) >= THREADED_PASS else 1
    if size < FEWEST_ROWS:
        size = max(1, LARGE_PIECE // m)

    def summed(first: int, last: int) -> tuple[Vector, Vector]:
        total, spread = np.zeros((len(vectors), m)), np.zeros(len(vectors))
        buffer = np.empty((min(size, last - first), m), dtype=dtype)
        for start in range(first, last, size):
            rows = X[start : min(start + size, last)]
            # A copy reads memory faster than BLAS does; BLAS then reads from the cache.
            if converted:
                rows = np.subtract(rows, mean, out=buffer[: len(rows)])
            elif threads > 1:
                buffer[: len(rows)] = rows
                rows = buffer[: len(rows)]
            codes = vectors @ rows.T
            if not converted:
                codes -= shift
            if shares is not None:
                codes *= shares[start : start + len(rows)].astype(dtype, copy=False)
            spread += codes.sum(axis=1)
            total += codes @ rows
        return total, spread

    parts = in_threads(summed, n, threads)
    total, spread = (sum(terms[1:], terms[0]) for terms in zip(*parts, strict=True))
    if not converted:
        total -= spread[:, None] * mean
    if shares is None:
        total /= n
    return np.asarray(total)


def _piece(m: int, width: int, itemsize: int) -> int:
    """Return the number of rows of m features that are multiplied with `width` vectors at once."""
    cached = max(CACHED_BYTES // (m * itemsize), FEWEST_ROWS)
    return min(SMALL_PRODUCT // (m * width), cached)
