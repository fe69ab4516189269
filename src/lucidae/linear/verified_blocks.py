"""The second moment of data that are read in blocks, in the form that certificates use.

No code is shared with the solvers (`lucidae.rows.sums`), so that a mistake there is not repeated
in a certificate. Each product with the second moment is one pass over the data; products that
follow from earlier ones by linearity are not computed again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
import scipy.sparse

from lucidae.arrays import as_double, like, to_numpy
from lucidae.certificates.complement import digest_of
from lucidae.data.kinds import AlignedBlocks
from lucidae.data.passes import ColumnLeaf, Passes, ReadInterrupted, fold, rows_differed
from lucidae.linear.verified_data import Data, KnownProducts, data_of
from lucidae.linear.verified_rows import (
    LARGEST_BOUNDED,
    LARGEST_FACTOR,
    LARGEST_ROWS,
    RowsForValues,
)
from lucidae.moments import SecondMoment

__all__ = ["BlocksForValues", "ReadBlocks", "data_of_any", "data_of_passes"]

Vector = np.ndarray[Any, Any]

FACTORISED_ROWS = 4096
"""Smallest number of rows that are factorised at a time."""

SAME_ROWS = 1e-6
"""Largest relative difference of the total variances of the same rows in two passes."""


class ReadBlocks(NamedTuple):
    """Data that were read in blocks: their second moment, and the blocks to be read again."""

    moment: SecondMoment
    passes: Passes

    @property
    def n_features(self) -> int:
        """Number of features of the data."""
        return self.moment.n_features


def data_of_any(X: Any, weights: Any = None, *, verbose: bool | str = "auto") -> Data:
    """Return second moment of rows, of a `SecondMoment` or of blocks, as the verifier uses it."""
    if isinstance(X, AlignedBlocks):
        return data_of_passes(Passes(X, verbose))
    if isinstance(X, ReadBlocks):
        return BlocksForValues.beside(data_of(X.moment), X.passes)
    return data_of(X, weights)


def data_of_passes(passes: Passes, vectors: Vector | None = None) -> Data:
    """Return the second moment of data that are read in blocks, in two passes."""
    totals = passes.total(_Totals())
    mean, weight = totals[1] / totals[0], float(totals[0])
    full = totals[3] == totals[2]
    vectors = np.zeros((0, len(mean))) if vectors is None else vectors
    _, rest, squares, images = passes.total(_Deviations(mean, full, vectors))
    # The mean of the deviations from a first mean corrects its rounding error.
    rest = rest / weight
    variances = np.maximum(squares / weight - rest**2, 0.0)
    center = mean + rest

    def product(rows: Vector) -> Vector:
        _, left, _, found = passes.total(_Deviations(center, full, rows))
        left = left / weight
        return np.asarray(found / weight - np.outer(rows @ left, left))

    known = KnownProducts(product, len(center))
    known.learn(vectors, images / weight - np.outer(vectors @ rest, rest))
    total = float(np.sum(variances))
    return Data(
        center,
        total,
        product,
        variances,
        weight=weight,
        fingerprint=(totals[4] % 2**256).to_bytes(32, "little"),
        remembered=known,
    )


@dataclass(frozen=True)
class BlocksForValues(RowsForValues):
    """Rows that are read in blocks, of which singular values are computed if they are needed.

    One pass computes the triangular factor of a QR factorisation of the centred and weighted rows,
    which has the same singular values and right singular vectors as the rows. The factor of each
    block is stacked on that of the blocks before, and both are factorised again. No second moment
    is formed, so that the digits of small components are not lost.
    """

    mean: Any = None  # (m,): an approximate mean of the rows, which is subtracted first
    # total variance of the rows in an earlier pass, before the division by `unit`
    trace: float = math.nan

    @classmethod
    def beside(cls, data: Data, passes: Passes) -> Data:
        """Return data of a second moment together with their rows, which can be read again."""
        m = data.n_features
        if m > LARGEST_BOUNDED or m * m > LARGEST_ROWS:
            return data
        return replace(data, rows=cls(passes, mean=data.mean, trace=data.trace))

    @property
    def small(self) -> bool:
        """Whether all singular values can be computed."""
        return len(self.mean) <= LARGEST_FACTOR

    def centred(self) -> Vector:
        """Return a triangular matrix with the singular values of the centred, weighted rows."""
        return self._triangle / self.unit

    @cached_property
    def _triangle(self) -> Vector:
        data = self.rows.data
        leaf = partial(_block_triangle, self.mean)
        try:
            found = fold(data, leaf, _stacked_triangle, verbose=self.rows.verbose)
        except ReadInterrupted:
            raise ReadInterrupted(None, 0) from None
        # The first column belongs to a feature that is 1 in every row: the other rows of the factor
        # are orthogonal to it, and so belong to the centred rows.
        triangle = found[1:, 1:] / abs(found[0, 0])
        if not abs(np.sum(triangle**2) - self.trace) <= SAME_ROWS * self.trace:
            raise rows_differed(data)
        return np.asarray(triangle)


def _block_triangle(mean: Vector, X: Any, _targets: Any, weights: Any) -> Vector:
    """Return the triangular factor of √w[1, x − μ] for rows x of a block X with weights w."""
    shares = np.ones(X.shape[0]) if weights is None else to_numpy(weights)
    step = max(FACTORISED_ROWS, 2 * len(mean))
    found = np.empty((0, 1 + len(mean)))
    for start in range(0, X.shape[0], step):
        part = slice(start, min(start + step, X.shape[0]))
        rows = X[part].toarray() if scipy.sparse.issparse(X) else X[part, :]
        rows = to_numpy(as_double(rows)) - mean
        rows = np.sqrt(shares[part])[:, None] * np.column_stack([np.ones(len(rows)), rows])
        found = _stacked_triangle(found, rows)
    return found


def _stacked_triangle(one: Vector, other: Vector) -> Vector:
    """Return the triangular factor of a QR factorisation of `one` stacked on `other`."""
    stacked = np.vstack([one, other])
    (found,) = scipy.linalg.qr(stacked, mode="r", overwrite_a=True, check_finite=False)
    return np.asarray(found[: stacked.shape[1]])


class _Totals(ColumnLeaf):
    """Sums over rows x with weights w: Σ w, Σ w x, numbers of rows and of stored entries, hashes.

    The hashes of all blocks are added, so that they do not depend on the order in which blocks are
    read and merged.
    """

    def columns(self, part: slice) -> _Totals:  # noqa: ARG002
        """Return an object that computes the sums of the columns `part`: this one itself."""
        return self

    def sums(self, rows: Any, _codes: Any, weights: Any) -> tuple[Any, ...]:
        """Return five sums over rows x with weights w.

        They are Σ w, Σ w x, the number of rows, the number of stored entries of each column (all
        entries if the rows are dense), and a hash of the rows and weights as a number.
        """
        n, m = rows.shape
        shares = np.ones(n) if weights is None else to_numpy(weights)
        host = rows if scipy.sparse.issparse(rows) else to_numpy(rows)
        seen = int.from_bytes(digest_of(host, shares), "little")
        if scipy.sparse.issparse(rows):
            entries = rows.tocsc().astype(np.float64)
            entries.sum_duplicates()
            stored = np.diff(entries.indptr)
            return float(shares.sum()), np.asarray(entries.T @ shares).ravel(), n, stored, seen
        rows = as_double(rows)
        total = to_numpy(like(shares, rows) @ rows)
        return float(shares.sum()), total, n, np.full(m, n), seen

    @staticmethod
    def merge(one: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the sums (see `sums`) of two sets of rows together, from those of each set."""
        return tuple(a + b for a, b in zip(one, other, strict=True))

    @staticmethod
    def joined(parts: list[tuple[Any, ...]]) -> tuple[Any, ...]:
        """Return the sums (see `sums`) of all columns; `parts` are those of groups of columns."""
        weight, _, n, _, _ = parts[0]
        return (
            weight,
            np.concatenate([p[1] for p in parts]),
            n,
            np.concatenate([p[3] for p in parts]),
            sum(p[4] for p in parts),
        )


@dataclass(frozen=True)
class _Deviations(ColumnLeaf):
    """Sums over the deviations d = x − μ of rows x: Σ w, Σ w d, Σ w d² and Σ w ⟨v, d⟩ d.

    The rows have weights w, the centre μ (`center`) is close to their mean, and each row v of
    `vectors` gives one sum of the last kind. d² contains the squares of the entries of d.

    A sparse block is S + M, where S has the deviations of the stored entries, and M has −μ at all
    other places: M = −1μᵀ + P diag(μ) with the pattern P of ones at the stored entries. In a column
    without zeros M vanishes, and the entry of μ is replaced by 0.
    """

    center: Vector
    full: Vector
    vectors: Vector

    def columns(self, part: slice) -> _Deviations:
        """Return an object whose method `sums` is for rows that have the columns `part` only."""
        return replace(
            self, center=self.center[part], full=self.full[part], vectors=self.vectors[:, part]
        )

    def codes(self, rows: Any) -> Vector:
        """Return ⟨v, d⟩ for the deviation d of each row from the centre, and for each vector v."""
        if not scipy.sparse.issparse(rows):
            block = as_double(rows)
            deviations = block - like(self.center, block)
            return to_numpy(deviations @ like(self.vectors, block).mT)
        stored, pattern, mu = self._parts(rows)
        elsewhere = pattern @ (self.vectors * mu).T - self.vectors @ mu
        return np.asarray(stored @ self.vectors.T + elsewhere)

    def sums(self, rows: Any, codes: Vector, weights: Any) -> tuple[Any, ...]:
        """Return Σ w, Σ w d, Σ w d² and Σ w ⟨v, d⟩ d.

        The sums are over rows with weights w and deviations d from the centre; the last one is
        computed for each vector v.
        """
        shares = np.ones(rows.shape[0]) if weights is None else to_numpy(weights)
        weight, codes = float(shares.sum()), shares[:, None] * codes
        if not scipy.sparse.issparse(rows):
            block = as_double(rows)
            block = block - like(self.center, block)
            parts = like(np.vstack([codes.T, shares]), block) @ block
            squares = like(shares, block) @ (block * block)
            found = to_numpy(parts)
            return weight, found[-1], to_numpy(squares), found[:-1]
        stored, pattern, mu = self._parts(rows)
        present = np.asarray(pattern.T @ shares).ravel()
        missing = np.where(self.full, 0.0, weight - present)
        rest = np.asarray(stored.T @ shares).ravel() - missing * mu
        squares = np.asarray(stored.power(2).T @ shares).ravel() + missing * mu**2
        absent = codes.sum(axis=0) - np.asarray(pattern.T @ codes)
        return weight, rest, squares, np.asarray(stored.T @ codes - mu[:, None] * absent).T

    def _parts(self, rows: Any) -> tuple[Any, Any, Vector]:
        """Return the deviations S of the stored entries, the pattern P, and the centre μ.

        P has ones at the stored entries of a sparse block. μ is replaced by 0 in the columns
        without zeros.
        """
        stored = rows.tocsr().astype(np.float64, copy=True)
        stored.sum_duplicates()
        stored.data = stored.data - self.center[stored.indices]
        pattern = stored.copy()
        pattern.data = np.ones(len(pattern.data))
        return stored, pattern, np.where(self.full, 0.0, self.center)

    @staticmethod
    def merge(one: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the sums (see `sums`) of two sets of rows together, from those of each set."""
        return tuple(a + b for a, b in zip(one, other, strict=True))

    @staticmethod
    def joined(parts: list[tuple[Any, ...]]) -> tuple[Any, ...]:
        """Return the sums (see `sums`) of all columns; `parts` are those of groups of columns."""
        return parts[0][0], *(np.concatenate([p[i] for p in parts], axis=-1) for i in (1, 2, 3))
