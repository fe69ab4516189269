"""How the data enter: products with the second moment Σ, whatever form Σ has.

Every objective and rule sees the data through `apply` alone, so that a full-batch epoch through
a dense Σ, a simulation in its eigenbasis and a mini-batch step on raw rows are the same code.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import scipy.sparse

from lucidae._arrays import Array, as_double, device, namespace, scalar, trace
from lucidae._sums import BLOCK_ROWS
from lucidae.linear.weights import AnyWeights, TiedWeights


class Covariance(Protocol):
    """Products with a second moment Σ of shape (m, m)."""

    @property
    def trace(self) -> Any:
        """Total variance."""

    @property
    def n_features(self) -> int:
        """Dimension m."""

    def apply(self, rows: Array) -> Array:
        """Return rows Σ for `rows` of shape (…, k, m)."""


@dataclass(frozen=True, slots=True)
class DenseCovariance:
    """Σ as a matrix: an epoch costs O(m²k), however many samples there were."""

    matrix: Array

    @property
    def trace(self) -> Array:
        """Total variance."""
        return trace(self.matrix)

    @property
    def n_features(self) -> int:
        """Dimension m."""
        return int(self.matrix.shape[0])

    def apply(self, rows: Array) -> Array:
        """Return rows Σ."""
        return rows @ self.matrix


@dataclass(frozen=True, slots=True)
class DiagonalCovariance:
    """Σ in its own eigenbasis: an epoch costs O(mk²)."""

    values: Array

    @property
    def trace(self) -> Array:
        """Total variance."""
        return namespace(self.values).sum(self.values)

    @property
    def n_features(self) -> int:
        """Dimension m."""
        return int(self.values.shape[-1])

    def apply(self, rows: Array) -> Array:
        """Return rows Σ."""
        return rows * self.values


@dataclass(frozen=True, slots=True)
class RowsCovariance:
    """Σ of weighted rows that is never formed: a product costs O(nmk) and O(nk) memory.

    The rows are not centred in place; the mean's part is taken out of the products, so sparse
    rows stay sparse.
    """

    rows: Any
    mean: Array
    weights: Array
    total: float

    @property
    def trace(self) -> float:
        """Total variance."""
        xp = namespace(self.mean)
        squares = self.rows.multiply(self.rows) if self._sparse else self.rows * self.rows
        raw = scalar(xp.sum(self.weights @ squares)) / self.total
        average = (self.weights @ self.rows) / self.total
        found = raw - scalar(xp.sum((2 * average - self.mean) * self.mean))
        return max(found, 0.0)  # in this order a NaN comes through

    @property
    def _sparse(self) -> bool:
        return bool(scipy.sparse.issparse(self.rows))

    @property
    def n_features(self) -> int:
        """Dimension m."""
        return int(self.rows.shape[1])

    def codes(self, encoder: Array) -> Array:
        """Return the centred codes of the rows, shape (…, n, k)."""
        return self.rows @ encoder.mT - (encoder @ self.mean)[..., None, :]

    def centred_products(self, codes: Array) -> Array:
        """Return codesᵀ (X − 1μᵀ) for `codes` of shape (…, n, k)."""
        spread = namespace(self.mean).sum(codes, axis=-2)
        raw = (self.rows.T @ codes).mT if self._sparse else codes.mT @ self.rows
        return raw - spread[..., :, None] * self.mean

    def apply(self, rows: Array) -> Array:
        """Return rows Σ."""
        return self.centred_products(self.codes(rows) * (self.weights / self.total)[:, None])


def rows_covariance(X: Any, mean: Array, weights: Array) -> RowsCovariance:
    """Return Σ of some rows; dense rows are centred in a copy, sparse ones stay as they are."""
    total = scalar(namespace(weights).sum(weights))
    if scipy.sparse.issparse(X):
        return RowsCovariance(X, mean, weights, total)
    return RowsCovariance(as_double(X) - mean, 0.0 * mean, weights, total)


@dataclass(frozen=True, slots=True)
class StreamCovariance:
    """Σ of all rows, a block at a time: for looking at data that are not held as a matrix."""

    rows: Any
    mean: Array
    weights: Array

    @property
    def n_features(self) -> int:
        """Dimension m."""
        return int(self.rows.shape[1])

    @property
    def trace(self) -> float:
        """Total variance."""
        return sum(block.trace * share for block, share in self._blocks())

    def apply(self, rows: Array) -> Array:
        """Return rows Σ."""
        return sum(block.apply(rows) * share for block, share in self._blocks())

    def batch(self, index: Any) -> RowsCovariance:
        """Return Σ of the rows of a NumPy index."""
        xp = namespace(self.weights)
        chosen = xp.asarray(index, device=device(self.weights))
        sparse = scipy.sparse.issparse(self.rows)
        rows = self.rows[index] if sparse else xp.take(self.rows, chosen, axis=0)
        return rows_covariance(rows, self.mean, xp.take(self.weights, chosen, axis=0))

    def _blocks(self) -> Iterator[tuple[RowsCovariance, float]]:
        total = scalar(namespace(self.weights).sum(self.weights))
        n_rows = self.rows.shape[0]
        for start in range(0, n_rows, BLOCK_ROWS):
            part = slice(start, min(start + BLOCK_ROWS, n_rows))
            block = rows_covariance(self.rows[part, :], self.mean, self.weights[part])
            if block.total > 0.0:
                yield block, block.total / total


class Products(NamedTuple):
    """Everything that a full-batch objective or rule needs of the data.

    encoded = W₁Σ and decoded = W₂ᵀΣ, both (…, k, m); code_moment = W₁ΣW₁ᵀ and gram = W₂ᵀW₂,
    both (…, k, k).
    """

    encoded: Array
    decoded: Array
    code_moment: Array
    gram: Array


def products(weights: AnyWeights, covariance: Covariance) -> Products:
    """Multiply both layers with Σ, stacked into one product."""
    encoder, atoms = weights.encoder, weights.atoms
    if isinstance(weights, TiedWeights):
        encoded = decoded = covariance.apply(encoder)
    else:
        k = encoder.shape[-2]
        stacked = covariance.apply(namespace(encoder).concat([encoder, atoms], axis=-2))
        encoded, decoded = stacked[..., :k, :], stacked[..., k:, :]
    return Products(encoded, decoded, encoded @ encoder.mT, atoms @ atoms.mT)
