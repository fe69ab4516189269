"""Sums over rows from which mean, variances and products with the second moment follow.

`BlocksSource` are data with many features that are read in blocks, with one pass for each product.

Every sum is accurate also if the mean is much larger than the deviations from it: dense rows are
centred before they are squared or multiplied. In sparse rows only the columns without zeros are
centred, which adds no stored entries. Only such a column can have a mean far above its standard
deviation: if a share z of its entries is zero, its variance is at least z times the mean square.

The sums of several blocks of rows are merged, and those of several blocks of columns are joined, so
that a pass over blocks, or a tree reduction of Dask, computes them (`lucidae.data.passes`).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from lucidae.arrays import Array, as_double, largest, like, namespace, to_numpy
from lucidae.arrays.eigen import fix_signs
from lucidae.arrays.krylov import krylov_eigenpairs
from lucidae.data.passes import ColumnLeaf, Passes
from lucidae.moments import SMALLEST_SCATTER
from lucidae.rows.spectrum import Spectrum
from lucidae.validation import check_rows

__all__ = ["BlocksCovariance", "BlocksSource", "DeflatedPass", "shifted", "sparse_sums"]

Vector = np.ndarray[Any, Any]

DEFLATED_ENTRIES = 2**20
"""Number of entries of the rows that are made dense and deflated at a time."""


class RowSums(NamedTuple):
    """Mean and sums of squares about the mean of weighted rows with m features."""

    weight: float  # sum of the weights of the rows
    # (m,): two vectors whose sum is the mean of the rows, more accurately than one vector
    center: Vector
    offset: Vector
    # (m,): for each feature, the weighted sum of its squared deviations from its mean
    squares: Vector
    # (m,): which features have a stored entry in every row; all of them if the rows are dense
    full: Vector
    peak: float  # largest absolute entry


class RowsPass(ColumnLeaf):
    """Computes the `RowSums` (mean and sums of squares) of blocks of rows."""

    @staticmethod
    def merge(one: RowSums, other: RowSums) -> RowSums:
        """Return the `RowSums` of two sets of rows together (Chan et al. 1983)."""
        weight = one.weight + other.weight
        shift = (other.center - one.center) + (other.offset - one.offset)
        between = shift * shift * (one.weight * (other.weight / weight))
        return RowSums(
            weight,
            one.center,
            one.offset + shift * (other.weight / weight),
            one.squares + other.squares + between,
            one.full & other.full,
            max(one.peak, other.peak),
        )

    @staticmethod
    def joined(parts: list[RowSums]) -> RowSums:
        """Return the `RowSums` of all columns; `parts` are those of groups of columns."""
        return RowSums(
            parts[0].weight,
            np.concatenate([part.center for part in parts]),
            np.concatenate([part.offset for part in parts]),
            np.concatenate([part.squares for part in parts]),
            np.concatenate([part.full for part in parts]),
            max(part.peak for part in parts),
        )

    def columns(self, part: slice) -> RowsPass:  # noqa: ARG002
        """Return an object that computes the `RowSums` of the columns `part`: this one itself."""
        return self

    def sums(self, rows: Any, _codes: Any, weights: Any) -> RowSums:
        """Return the mean of a block of rows, and the sums of squares of its columns about it.

        Raise a ValueError if the squares overflow double precision.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            found = (_sparse if scipy.sparse.issparse(rows) else _dense)(rows, weights)
        if not np.isfinite(np.sum(found.squares)):
            check_rows(rows)
            raise ValueError(
                f"the largest entry of X by magnitude is {found.peak:.3g}, so that the squares of "
                "X overflow double precision. Divide X by a constant first."
            )
        return found


def _dense(rows: Any, weights: Any) -> RowSums:
    rows = as_double(rows)
    xp, n = namespace(rows), rows.shape[0]
    shares = xp.ones(n, dtype=rows.dtype, device=rows.device) if weights is None else weights
    total = float(xp.sum(shares))
    first = (shares @ rows) / total
    deviations = rows - first
    # The mean of the deviations from a first mean corrects its rounding error.
    rest = (shares @ deviations) / total
    squares = shares @ (deviations * deviations) - total * rest * rest
    full = np.ones(int(rows.shape[1]), bool)
    first, rest, squares = (to_numpy(part) for part in (first, rest, squares))
    return RowSums(total, first, rest, squares, full, largest(rows))


def _sparse(rows: Any, weights: Any) -> RowSums:
    total = float(rows.shape[0]) if weights is None else float(np.sum(weights))
    return RowSums(total, *sparse_sums(rows, weights, total), largest(rows.data))


def sparse_sums(X: Any, weights: Any, total: float) -> tuple[Vector, Vector, Vector, Vector]:
    """Return the mean of sparse rows, the sums of squares about it, and the columns without zeros.

    These are four vectors (m,). The mean is the sum of the first two: its value in float64, and a
    correction of the rounding error of this value. The last one is a mask.

    Deviations are computed for the stored entries. If the zeros of a column have weights of sum z,
    they add −zμ to the sum of the deviations from the mean μ, and zμ² to the sum of their squares.
    """
    entries = X.tocsr().astype(np.float64, copy=True)
    entries.sum_duplicates()
    n, m = entries.shape
    shares = np.ones(n) if weights is None else to_numpy(weights)
    data, column = entries.data, entries.indices

    def summed(values: Vector) -> Vector:
        same = type(entries)((values, column, entries.indptr), shape=(n, m), copy=False)
        return np.asarray(same.T @ shares)

    full = np.bincount(column, minlength=m) == n
    zeros = np.where(full, 0.0, np.maximum(total - summed(np.ones(len(data))), 0.0))
    first = summed(data) / total
    deviations = data - first[column]
    # The mean of the deviations from a first mean corrects its rounding error.
    rest = (summed(deviations) - zeros * first) / total
    squares = summed(deviations * deviations) + zeros * first * first - total * rest * rest
    return first, rest, np.maximum(squares, 0.0), full


class ProductSums(NamedTuple):
    """Sums over centred rows, from which products of vectors v with the covariance follow.

    The rows x of m features have weights w, and are centred by subtracting a vector c close to
    their mean. There are b vectors v.
    """

    weight: float  # σ w
    products: Vector  # (b, m): σ w ⟨v, x − c⟩ (x − c)
    rest: Vector  # (m,): σ w (x − c)

    def with_covariance(self, vectors: Vector) -> Vector:
        """Return ``vectors @ Σ`` for the covariance Σ of the rows.

        The sums are about a centre c. With the offset r of the mean from c, the second moment about
        c is Σ + rrᵀ, from which the second term is subtracted.
        """
        offset = self.rest / self.weight
        found = self.products / self.weight
        found -= (vectors @ offset)[:, None] * offset
        return found


@dataclass(frozen=True, slots=True)
class ProductPass(ColumnLeaf):
    """Computes `ProductSums` of blocks of rows, for products of b vectors with the covariance."""

    vectors: Vector  # (b, m): the vectors v to be multiplied with the covariance
    # (m,): the vector c, close to the mean of the rows, that is subtracted from every row
    center: Vector
    full: Vector  # (m,): columns without zeros, which are centred also if the rows are sparse

    @staticmethod
    def merge(one: ProductSums, other: ProductSums) -> ProductSums:
        """Return the `ProductSums` of two sets of rows together, from those of each set."""
        weight = one.weight + other.weight
        return ProductSums(weight, one.products + other.products, one.rest + other.rest)

    @classmethod
    def merge_into(cls, one: ProductSums, other: ProductSums) -> ProductSums:
        """Return the `ProductSums` of two sets of rows together; the arrays of `one` are reused."""
        np.add(one.products, other.products, out=one.products)
        np.add(one.rest, other.rest, out=one.rest)
        return one._replace(weight=one.weight + other.weight)

    @staticmethod
    def joined(parts: list[ProductSums]) -> ProductSums:
        """Return the `ProductSums` of all columns; `parts` are those of groups of columns."""
        products = np.concatenate([part.products for part in parts], axis=-1)
        rest = np.concatenate([part.rest for part in parts])
        return ProductSums(parts[0].weight, products, rest)

    def __call__(self, rows: Any, _targets: Any, weights: Any) -> ProductSums:
        """Return the `ProductSums` of a block of rows with all columns."""
        centred, left = self._centred(rows)
        return self._sums(centred, left, self._codes(centred, left), weights)

    def columns(self, part: slice) -> ProductPass:
        """Return an object that computes the `ProductSums` of the columns `part` only."""
        return replace(
            self,
            vectors=self.vectors[:, part],
            center=self.center[part],
            full=self.full[part],
        )

    def codes(self, rows: Any) -> Array:
        """Return the inner product ⟨v, x − c⟩ of each row x and each vector v, with the centre c.

        `rows` may have some of the columns only; the inner products are then sums over these.
        """
        return to_numpy(self._codes(*self._centred(rows)))

    def sums(self, rows: Any, codes: Any, weights: Any) -> ProductSums:
        """Return the sums over a block of rows that give the products of Σ with vectors v.

        Σ is the second moment of all rows.
        """
        centred, left = self._centred(rows)
        codes = codes if scipy.sparse.issparse(centred) else like(codes, centred)
        return self._sums(centred, left, codes, weights)

    def _centred(self, rows: Any) -> tuple[Any, Any]:
        """Return the rows minus the centre, and the part of the centre that is not subtracted.

        Dense rows are centred completely, and the second value is None. Sparse rows are centred in
        the columns without zeros, so that they remain sparse.
        """
        if not scipy.sparse.issparse(rows):
            rows = as_double(rows)
            return rows - like(self.center, rows), None
        return shifted(rows, self.center, self.full)

    def _codes(self, centred: Any, left: Any) -> Any:
        if left is None:
            return centred @ like(self.vectors, centred).mT
        return np.asarray(centred @ self.vectors.T) - self.vectors @ left

    def _sums(self, centred: Any, left: Any, codes: Any, weights: Any) -> ProductSums:
        n = int(centred.shape[0])
        if weights is not None:
            codes = codes * weights[:, None]
        total = float(n) if weights is None else float(namespace(weights).sum(weights))
        if left is None:
            xp = namespace(centred)
            rest = xp.sum(centred, axis=0) if weights is None else weights @ centred
            return ProductSums(total, to_numpy(codes.mT @ centred), to_numpy(rest))
        shares = np.ones(n) if weights is None else weights
        products = np.asarray((centred.T @ codes).T - codes.sum(axis=0)[:, None] * left)
        return ProductSums(total, products, np.asarray(shares @ centred).ravel() - total * left)


class DeflatedSums(NamedTuple):
    """Sums over centred rows without their parts along orthonormal vectors."""

    weight: float  # as in `ProductSums`, of the rows without these parts
    products: Vector
    rest: Vector
    squares: float  # σ w ‖b‖² over these rows b with weights w


@dataclass(frozen=True, slots=True)
class DeflatedPass(ColumnLeaf):
    """Computes the `DeflatedSums` of blocks of rows, whose parts along some vectors are removed.

    Each row is centred and deflated by itself, before it is multiplied: its rounding errors are ε
    times its entries, as in a singular value decomposition, and not ε times their squares.
    """

    # (b, m): the vectors v to be multiplied with the covariance of the deflated rows
    vectors: Vector
    removed: Vector  # (q, m): orthonormal vectors along which the rows have no part afterwards
    overlap: Vector  # (b, q): inner products of `vectors` and `removed`, over all columns
    center: Vector  # (m,): the mean of the rows

    @staticmethod
    def merge(one: DeflatedSums, other: DeflatedSums) -> DeflatedSums:
        """Return the `DeflatedSums` of two sets of rows together, from those of each set."""
        return DeflatedSums(
            one.weight + other.weight,
            one.products + other.products,
            one.rest + other.rest,
            one.squares + other.squares,
        )

    @staticmethod
    def joined(parts: list[DeflatedSums]) -> DeflatedSums:
        """Return the `DeflatedSums` of all columns; `parts` are those of groups of columns."""
        products = np.concatenate([part.products for part in parts], axis=-1)
        rest = np.concatenate([part.rest for part in parts])
        return DeflatedSums(parts[0].weight, products, rest, sum(part.squares for part in parts))

    def columns(self, part: slice) -> DeflatedPass:
        """Return an object that computes the `DeflatedSums` of the columns `part` only."""
        return replace(
            self,
            vectors=self.vectors[:, part],
            removed=self.removed[:, part],
            center=self.center[part],
        )

    def codes(self, rows: Any) -> Vector:
        """Return the inner products of the centred rows with all vectors, (n, b + q).

        `rows` may have some of the columns only; the inner products are then sums over these.
        """
        both = np.concatenate([self.vectors, self.removed])
        return np.concatenate([centred @ both.T for _, centred in self._parts(rows)])

    def sums(self, rows: Any, codes: Any, weights: Any) -> DeflatedSums:
        """Return the sums over a block of rows, from the inner products `codes` of all columns."""
        count = len(self.vectors)
        along = codes[:, count:]
        inner = codes[:, :count] - along @ self.overlap.T
        shares = np.ones(len(codes)) if weights is None else to_numpy(weights)
        products, rest = np.zeros_like(self.vectors), np.zeros_like(self.center)
        squares = 0.0
        for part, centred in self._parts(rows):
            deflated = centred - along[part] @ self.removed
            products += (inner[part] * shares[part, None]).T @ deflated
            rest += shares[part] @ deflated
            squares += float(shares[part] @ np.sum(deflated * deflated, axis=1))
        return DeflatedSums(float(np.sum(shares)), products, rest, squares)

    def _parts(self, rows: Any) -> Iterator[tuple[slice, Vector]]:
        """Yield some rows at a time, dense and centred, with their positions in the block."""
        step = max(1, DEFLATED_ENTRIES // max(1, int(rows.shape[1])))
        for start in range(0, int(rows.shape[0]), step):
            part = slice(start, min(start + step, int(rows.shape[0])))
            dense = rows[part].toarray() if scipy.sparse.issparse(rows) else rows[part, :]
            yield part, to_numpy(as_double(dense)) - self.center


def shifted(X: Any, center: Vector, full: Vector) -> tuple[Any, Vector]:
    """Subtract a centre from those columns of sparse rows that have no zeros."""
    chosen = full & (center != 0.0)
    if not chosen.any():
        return X.astype(np.float64), center
    X = X.tocsr().astype(np.float64, copy=True)
    X.sum_duplicates()
    X.data -= np.where(chosen, center, 0.0)[X.indices]
    return X, np.where(chosen, 0.0, center)


class BlocksCovariance:
    """The second moment Σ of rows that are read in blocks; the m × m matrix is not formed.

    Each product with Σ is one pass over the data.
    """

    def __init__(self, passes: Passes, sums: RowSums) -> None:
        self.passes = passes
        self.mean = sums.center + sums.offset
        self.trace = float(np.sum(sums.squares)) / sums.weight
        self._full = sums.full
        self._unit = 1.0
        self._corrected = False

    @property
    def n_features(self) -> int:
        """Number of features of the data."""
        return len(self.mean)

    def apply(self, rows: Array) -> Array:
        """Return the product of `rows`, of shape (…, k, m), with the second moment, in one pass."""
        vectors = np.reshape(rows, (-1, self.n_features))
        found: ProductSums = self.passes.total(ProductPass(vectors, self.mean, self._full))
        if not self._corrected:  # rounding errors of merging the means of the blocks
            self.mean, self._corrected = self.mean + found.rest / found.weight, True
        return np.reshape(found.with_covariance(vectors), rows.shape) / self._unit**2

    def in_units(self, unit: float) -> BlocksCovariance:
        """Return the second moment after a division of all data by the number `unit`."""
        scaled = copy.copy(self)
        scaled._unit, scaled.trace = self._unit * unit, self.trace / unit**2
        return scaled


class BlocksSource:
    """Data with many features that are read in blocks, several times.

    `affordable` tells whether all eigenpairs of the second moment can be computed, and `moment` is
    None, because the second moment is not formed.
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
        """Return the `k` leading eigenpairs of the second moment.

        `k` = None asks for all eigenpairs. They are not computed from blocks, so that the result is
        None.
        """
        if k is None:
            return None
        pairs = krylov_eigenpairs(self.covariance.apply, k, self.mean)
        assert pairs is not None, "the number of passes is not limited"
        return Spectrum(pairs[0], fix_signs(pairs[1]), self.covariance.trace)
