"""Products of row vectors with the second moment Σ of the data.

The classes ending in ``Covariance`` compute these products from a matrix, from its eigenvalues or
from rows.
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
    eigh_descending,
    namespace,
    normal,
    scalar,
    trace,
)
from lucidae.arrays.row_products import has_fast_products, moment_product
from lucidae.rows.spectrum import Spectrum


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
