"""Columns of the dictionary as the verifier reads them: centred, weighted, and in dense blocks.

A few columns of a sparse dictionary are dense at a time, so that memory does not grow with κ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

CONSTANT = 8.0
"""A column is constant if it varies, relative to its largest entry, by at most this many ε."""

BLOCK_ENTRIES = 2_000_000
"""Largest number of entries of a block of columns that is made dense."""


def centred(values: Any, weights: Any) -> tuple[Any, Any]:
    """Return the values minus their weighted column means, and how far the means are from row 0."""
    # The difference of two doubles is rounded relative to itself, so no digits are lost however
    # far the rows are from zero; the means of these differences are small numbers.
    moved = values - values[0]
    mean = (weights @ moved) / weights.sum()
    moved = moved - mean
    rest = (weights @ moved) / weights.sum()
    return moved - rest, mean + rest


def without_constants(values: Any, weights: Any) -> Any:
    """Return centred values; columns that vary by rounding errors only become exactly zero."""
    moved, _ = centred(values, weights)
    spread, peaks = np.abs(moved).max(axis=0), np.abs(values).max(axis=0)
    constant = spread <= CONSTANT * np.finfo(float).eps * peaks
    return np.where(constant, 0.0, moved)


class SparseColumns(NamedTuple):
    """A sparse dictionary whose columns are made dense, centred and weighted when they are read."""

    matrix: Any  # (d, κ): the dictionary as it was given
    roots: Any  # (d,): square roots of the weights of the rows, all positive
    # (κ,): what is subtracted from each column: its first entry, and then the mean of the
    # differences
    first: Any
    mean: Any
    varying: Any
    shifts: Any  # (κ,): exponents of the powers of two by which the columns are divided
    lengths: Any  # (κ,): norms of the columns after these operations

    @classmethod
    def of(
        cls, matrix: Any, weights: Any, intercept: bool, exponents: Callable[[Any], Any]
    ) -> SparseColumns:
        """Return the columns of a sparse matrix, centred, weighted and divided by powers of two."""
        matrix = scipy.sparse.csc_array(matrix)
        count, roots = matrix.shape[1], np.sqrt(weights)
        first, mean, peaks, squares = (np.zeros(count) for _ in range(4))
        varying = np.ones(count)
        for part in _parts(matrix.shape):
            block = matrix[:, part].toarray()
            if intercept:
                moved = without_constants(block, weights)
                first[part], mean[part] = block[0], centred(block, weights)[1]
                varying[part], block = moved.any(axis=0), moved
            block = block * roots[:, None]
            peaks[part], squares[part] = np.abs(block).max(axis=0), (block**2).sum(axis=0)
        shifts = exponents(peaks)
        lengths = np.sqrt(np.ldexp(squares, -2 * shifts))
        return cls(matrix, roots, first, mean, varying, shifts, lengths)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and of columns of the dictionary."""
        return int(self.matrix.shape[0]), int(self.matrix.shape[1])

    @property
    def dtype(self) -> Any:
        """Type of the entries of the dictionary."""
        return self.matrix.dtype

    def __getitem__(self, key: Any) -> Any:
        _, index = key
        moved = (self.matrix[:, index].toarray() - self.first[index]) - self.mean[index]
        return np.ldexp(moved * self.varying[index] * self.roots[:, None], -self.shifts[index])

    def blocks(self) -> Iterator[tuple[slice, Any]]:
        """Return slices of the columns, each with its columns as a dense array."""
        return ((part, self[:, part]) for part in _parts(self.shape))

    def triangle_with(self, responses: Any) -> Any:
        """Return the triangle of the QR decomposition of [Φ | X], updated by blocks of rows."""
        rows, width = scipy.sparse.csr_array(self.matrix), self.shape[1] + responses.shape[1]
        triangle: Any = np.zeros((0, width))
        step = max(BLOCK_ENTRIES // width, width)
        for start in range(0, self.shape[0], step):
            part = slice(start, start + step)
            moved = ((rows[part].toarray() - self.first) - self.mean) * self.varying
            block = np.ldexp(moved * self.roots[part, None], -self.shifts)
            stacked = np.vstack([triangle, np.hstack([block, responses[part]])])
            triangle = np.linalg.qr(stacked, mode="r")
        return triangle


def _parts(shape: tuple[int, int]) -> Iterator[slice]:
    """Return slices of the columns of a matrix of that shape that fit in memory."""
    width = max(BLOCK_ENTRIES // shape[0], 1)
    return (slice(a, min(a + width, shape[1])) for a in range(0, shape[1], width))


class Transformed(NamedTuple):
    """A function of the columns of a sparse dictionary, computed only for columns that are read."""

    columns: SparseColumns
    function: Callable[[Any], Any]

    def __getitem__(self, key: Any) -> Any:
        index = key[1] if isinstance(key, tuple) else key
        return self.function(self.columns[:, index])


LEADING = 4
"""Number of columns of the dictionary that are compared first when rows are compared."""


def column_blocks(dictionary: Any) -> Iterator[tuple[slice, Any]]:
    """Return pairs of a slice of the columns and these columns as a dense array."""
    if isinstance(dictionary, SparseColumns):
        return dictionary.blocks()
    return iter([(slice(0, dictionary.shape[1]), dictionary)])


def column_lengths(dictionary: Any) -> Any:
    """Return the norms of the columns of a dense or sparse dictionary."""
    if isinstance(dictionary, SparseColumns):
        return dictionary.lengths
    if np.iscomplexobj(dictionary):
        return np.linalg.norm(dictionary, axis=0)
    return np.sqrt(np.einsum("ij,ij->j", dictionary, dictionary))  # allocates no such array


def row_keys(dictionary: Any, responses: Any) -> list[bytes]:
    """Return byte strings that are equal exactly for equal rows of dictionary and responses."""
    if not scipy.sparse.issparse(dictionary):
        first = [row.tobytes() for row in np.ascontiguousarray(dictionary[:, :LEADING]) + 0.0]
        if len(set(first)) == len(first):  # rows whose first entries differ are different
            return first
        return [row.tobytes() for row in np.hstack([dictionary, responses]) + 0.0]
    matrix = scipy.sparse.csr_array(dictionary, copy=True)
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    bounds = zip(matrix.indptr[:-1], matrix.indptr[1:], responses + 0.0, strict=True)
    return [
        matrix.indices[a:b].tobytes() + matrix.data[a:b].tobytes() + row.tobytes()
        for a, b, row in bounds
    ]
