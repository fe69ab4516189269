"""Few rows with very many features, by products with the rows and their Gram matrix.

Let A be the n centred rows of m > n features, each multiplied by the square root of its share of
the total weight, so that C = AᵀA is the second moment of the inputs. Optimal incoming weights lie
in the span of the rows: V = Aᵀ(…). So the m × m matrix C is never needed. With the
eigendecomposition AAᵀ = PS²Pᵀ of the n × n Gram matrix, the whitening matrix is B = AᵀPS⁻¹, which
is not formed either: products with it are products with P and A. A ridge penalty ρ‖UVᵀ‖² of the
weights U and V replaces S² by S² + ρ in C on the span of the rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

from lucidae.arrays import Array, eigh_descending, machine_epsilon, namespace, scalar, squared_norms

__all__ = ["RowLift", "WideRows"]

BLOCK = 256
"""Number of rows whose products with all rows are computed at a time."""

RANGE_FACTOR = 10.0
"""Eigenvalues of the Gram matrix of n rows count as zero below RANGE_FACTOR · n · ε times the
largest, with the rounding unit ε."""


@dataclass(frozen=True, eq=False)
class WideRows:
    """Centred and weighted rows A (n × m) of inputs, with their outputs.

    Dense rows are stored as they are. Sparse rows are stored before centring; the mean is
    subtracted from products with them.
    """

    # (n, d1): the outputs, centred and multiplied by the same square roots as the rows
    outputs: Array
    squares: Array  # (m,): mean squares of the centred inputs: the diagonal of AᵀA
    dense: Array | None = None  # (n, m): the rows A; None if they are sparse
    # the entries, column numbers and row limits (CSR format) of the sparse rows S; None if the rows
    # are dense
    entries: tuple[Array, Array, Array] | None = None
    # (n,): square roots s of the shares of the rows in the total weight, of sparse rows
    shares: Array | None = None
    # (m,): mean μ of sparse rows, so that A = S − sμᵀ; zeros if the rows are not centred
    mean: Array | None = None
    centered: bool = True  # whether the mean was subtracted
    ridge: float = 0.0  # ridge penalty ρ on the mean squared error

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers n of rows and m of features."""
        return int(self.outputs.shape[0]), int(self.squares.shape[0])

    @property
    def _sparse(self) -> Any:
        """The sparse rows before centring, which share memory with `entries`."""
        assert self.entries is not None
        return scipy.sparse.csr_array(self.entries, shape=self.shape)

    @property
    def cancelled(self) -> float:
        """Largest squared norm s² ‖μ‖² that centring subtracts from a sparse row.

        Entries of the Gram matrix have rounding errors relative to it.
        """
        if self.dense is not None:
            return 0.0
        shares, mean = np.asarray(self.shares), np.asarray(self.mean)
        return float(shares.max(initial=0.0)) ** 2 * float(mean @ mean)

    def times(self, right: Array) -> Array:
        """Return AV."""
        if self.dense is not None:
            return self.dense @ right
        return self._sparse @ right - np.multiply.outer(np.asarray(self.shares), self.mean @ right)

    def back(self, codes: Array) -> Array:
        """Return AᵀZ."""
        if self.dense is not None:
            return self.dense.mT @ codes
        return self._sparse.T @ codes - np.multiply.outer(
            np.asarray(self.mean), self.shares @ codes
        )

    def gram(self) -> Array:
        """Return the Gram matrix AAᵀ, shape (n, n)."""
        if self.dense is not None:
            return self.dense @ self.dense.mT
        rows, n = self._sparse, self.shape[0]
        turned = scipy.sparse.csc_array(rows.T)
        found = np.empty((n, n))
        for start in range(0, n, BLOCK):
            found[start : start + BLOCK] = (rows[start : start + BLOCK] @ turned).toarray()
        # (S − sμᵀ)(S − sμᵀ)ᵀ = SSᵀ − (Sμ)sᵀ − s(Sμ)ᵀ + ‖μ‖² ssᵀ
        shares, mean = np.asarray(self.shares), np.asarray(self.mean)
        half = rows @ mean - (mean @ mean) / 2 * shares
        found -= np.multiply.outer(half, shares)
        found -= np.multiply.outer(shares, half)
        return found

    def loss(self, left: Array, right: Array) -> Array:
        """Return E‖y − UVᵀx‖² + ρ‖UVᵀ‖² for weights U (`left`) and V (`right`)."""
        xp = namespace(left)
        rest = self.outputs - self.times(right) @ left.mT
        penalty = xp.sum((left.mT @ left) * (right.mT @ right))
        return xp.sum(rest * rest) + self.ridge * penalty

    def incoming(self, right: Array) -> Array:
        """Return vᵢᵀ(C + ρI)vᵢ for the columns vᵢ of V (`right`)."""
        return squared_norms(self.times(right), axis=-2) + self.ridge * squared_norms(
            right, axis=-2
        )

    def decomposed(self) -> tuple[Array, Array]:
        """Return P and S² of AAᵀ = PS²Pᵀ on the range of A; a zero column and 1 if A is zero."""
        squares, P = eigh_descending(self.gram())
        xp = namespace(squares)
        top = max(scalar(squares[0]), 0.0) + self.cancelled
        level = RANGE_FACTOR * self.shape[0] * machine_epsilon(squares) * top
        count = int(xp.sum(xp.astype(squares > level, xp.int64)))
        if count == 0:
            return 0.0 * P[:, :1], xp.ones_like(squares[:1])
        return P[:, :count], squares[:count]


@dataclass(frozen=True, eq=False)
class RowLift:
    """The matrix Aᵀ W (m × q), of which only the rows A and the matrix W (n × q) are stored."""

    rows: WideRows
    codes: Array

    @property
    def mT(self) -> TurnedLift:  # noqa: N802
        """The transposed matrix Wᵀ A."""
        return TurnedLift(self)

    def __matmul__(self, right: Array) -> Array:
        """Return AᵀWZ for a matrix Z (`right`)."""
        return self.rows.back(self.codes @ right)


@dataclass(frozen=True, eq=False)
class TurnedLift:
    """The transpose of a `RowLift`."""

    lift: RowLift

    def __matmul__(self, right: Array) -> Array:
        """Return WᵀAV for a matrix V (`right`)."""
        return self.lift.codes.mT @ self.lift.rows.times(right)
