"""Products of row vectors with the second moment Σ of the data.

The classes ending in ``Covariance`` compute these products from a matrix, from its eigenvalues or
from rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import scipy.sparse

from lucidae.arrays import (
    Array,
    as_double,
    device,
    eigh_descending,
    namespace,
    normal,
    scalar,
    trace,
)
from lucidae.arrays.row_products import has_fast_products, moment_product
from lucidae.row_sums import BLOCK_ROWS
from lucidae.rows.spectrum import Spectrum

PLAIN_ROWS = 2**18
"""Number of rows multiplied at a time if the rows need no copy; it limits the memory for codes."""

BLOCK_ENTRIES = 2**24
"""Largest number of entries of rows that are copied and centred at a time for one product."""


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
        return trace(self.matrix)

    @property
    def n_features(self) -> int:
        """Number of features of the data."""
        return int(self.matrix.shape[0])

    def apply(self, rows: Array) -> Array:
        """Return ``rows @ Σ``, where `rows` have shape (…, k, m) and Σ is the second moment."""
        return rows @ self.matrix

    def in_units(self, unit: float) -> DenseCovariance:
        """Return the second moment after a division of all data by the number `unit`."""
        return self if unit == 1.0 else DenseCovariance(self.matrix / unit**2)


@dataclass(frozen=True, slots=True)
class DeflatedCovariance:
    """The second moment Σ as leading eigenpairs and the rest: Σ = V diag(λ) Vᵀ + R.

    The digits of R, which may be far smaller than the eigenvalues, are not lost as in the sum.
    """

    values: Array  # (k,): the eigenvalues λ
    vectors: Array  # (m, k): the eigenvectors V, as columns
    rest: Array  # (m, m): the second moment R of the rows without their parts along V

    @property
    def trace(self) -> Array:
        """Total variance of the data: the trace of the second moment."""
        return namespace(self.values).sum(self.values) + trace(self.rest)

    @property
    def n_features(self) -> int:
        """Number of features of the data."""
        return int(self.rest.shape[0])

    def apply(self, rows: Array) -> Array:
        """Return ``rows @ Σ``, where `rows` have shape (…, k, m) and Σ is the second moment."""
        codes = rows @ self.vectors
        outside = rows - codes @ self.vectors.mT
        return (codes * self.values) @ self.vectors.mT + outside @ self.rest


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
        raw = scalar(xp.sum(self.weights @ squares)) / self.total
        average = (self.weights @ self.rows) / self.total
        found = raw - scalar(xp.sum((2 * average - self.mean) * self.mean))
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
    total = scalar(namespace(weights).sum(weights))
    if scipy.sparse.issparse(X):
        return RowsCovariance(X, mean, weights, total)
    return RowsCovariance(as_double(X) - mean, 0.0 * mean, weights, total)


@dataclass(frozen=True, slots=True)
class StreamCovariance:
    """The second moment Σ of many weighted rows with m features; the m × m matrix is not formed.

    Each product with Σ reads the rows block by block and adds up the products of the blocks.
    """

    rows: Any  # (n, m): the rows, not centred
    mean: Array  # (m,): mean of the rows
    weights: Array  # (n,): weights of the rows
    # whether the squared mean is at most `SMALL_MEAN` times the total variance
    small_mean: bool = False
    variance: float | None = None  # the total variance, if it is known

    @property
    def n_features(self) -> int:
        """Number of features of the data."""
        return int(self.rows.shape[1])

    @property
    def trace(self) -> float:
        """Total variance of the data: the trace of the second moment."""
        if self.variance is not None:
            return self.variance
        return sum(block.trace * share for block, share in self._blocks())

    def apply(self, rows: Array) -> Array:
        """Return ``rows @ Σ`` for `rows` of shape (…, k, m), reading the data once.

        Σ is the second moment of the data.
        """
        total: Any = None
        for block, share in self._blocks():
            part = block.apply(rows)
            part *= share
            if total is None:
                total = part
            else:
                total += part
        return total

    def in_units(self, unit: float) -> StreamCovariance:
        """Return the second moment after a division of all data by the number `unit`."""
        if unit == 1.0:
            return self
        variance = None if self.variance is None else self.variance / unit**2
        return replace(self, rows=self.rows / unit, mean=self.mean / unit, variance=variance)

    @property
    def _as_they_are(self) -> bool:
        """Whether products use the given rows; otherwise they use centred float64 copies."""
        double = namespace(self.mean).float64
        return scipy.sparse.issparse(self.rows) or (self.small_mean and self.rows.dtype == double)

    def batch(self, index: Any) -> RowsCovariance:
        """Return the second moment of a batch: the rows at the positions `index` (NumPy array).

        It is taken about the mean of all rows, not about that of the batch.
        """
        xp = namespace(self.weights)
        chosen = xp.asarray(index, device=device(self.weights))
        sparse = scipy.sparse.issparse(self.rows)
        rows = self.rows[index] if sparse else xp.take(self.rows, chosen, axis=0)
        return rows_covariance(rows, self.mean, xp.take(self.weights, chosen, axis=0))

    def _blocks(self) -> Iterator[tuple[RowsCovariance, float]]:
        total = scalar(namespace(self.weights).sum(self.weights))
        n_rows, plain = self.rows.shape[0], self._as_they_are
        size = PLAIN_ROWS if plain else copied_rows(self.rows.shape[1])
        for start in range(0, n_rows, size):
            part = slice(start, min(start + size, n_rows))
            # Indexing would copy a sparse matrix.
            rows = self.rows if n_rows <= size else self.rows[part, :]
            weights = self.weights[part]
            weight = scalar(namespace(weights).sum(weights))
            if weight <= 0.0:
                continue
            if plain:
                yield RowsCovariance(rows, self.mean, weights, weight), weight / total
            else:
                yield rows_covariance(rows, self.mean, weights), weight / total


def copied_rows(n_features: int) -> int:
    """Return the number of rows with m features that are copied at a time.

    The copy takes at most 128 mebibytes.
    """
    return max(1, min(BLOCK_ROWS, BLOCK_ENTRIES // n_features))


def ritz_spectrum(covariance: Covariance, k: int, like: Array, *, n_iter: int = 8) -> Spectrum:
    """Estimate the `k` largest eigenvalues of the second moment and their eigenvectors.

    `n_iter` block power iterations are made, so that only products with the second moment are
    needed. The estimated eigenvalues (Ritz values) never exceed the true ones.
    """
    xp = namespace(like)
    width = min(k + 8, covariance.n_features)  # more columns than k make the first k accurate
    rows = normal(np.random.default_rng(0), (width, covariance.n_features), like)
    for _ in range(n_iter):
        basis, _ = xp.linalg.qr(rows.mT)
        rows = covariance.apply(basis.mT)
    # Rayleigh–Ritz: the eigenpairs of Σ restricted to the span of the basis.
    values, rotation = eigh_descending((rows @ basis + (rows @ basis).mT) / 2)
    return Spectrum(values[:k], (basis @ rotation)[:, :k], float(covariance.trace))
