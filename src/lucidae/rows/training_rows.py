"""Training rows that a fitted state holds until its certificate or second moment is computed.

Both take more time than some fits, so that they are computed when they are first read. Rows that
take less memory than their second moment are copied. Of larger rows only a reference is stored;
their products with a random vector show whether they were changed in the meantime. Memory maps are
neither copied nor referenced: reading one whose file was shortened would end the process.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

from lucidae.arrays import Array, is_numpy, to_numpy
from lucidae.arrays.threads import blas_threads, in_threads

__all__ = ["CHANGED_ROWS", "TrainingRows"]

CHANGED_ROWS = (
    "X was changed in place after fit, before certificate_ was read: call "
    "lucidae.certify(estimator, X) with the rows that were given to fit."
)
"""Advice of a certificate whose training rows were changed before it was computed."""

Vector = np.ndarray[Any, Any]

THREADED_ENTRIES = 2**21
"""Smallest number of entries of dense rows that are multiplied by several threads."""

REFERENCED_BYTES = 2**28
"""Largest size of rows to which a fitted state refers: 256 mebibytes. An estimator must not keep
more memory in use; of larger rows the certificate is computed by `fit`."""


@dataclass(frozen=True)
class TrainingRows:
    """Training rows with their weights, and a test whether they were changed after the fit."""

    rows: Any  # (n, m): the rows
    weights: Array | None  # (n,): weights of the rows; None for 1 each
    title: str  # title of the certificate
    # (n, n): the Gram matrix of the centred rows, if a solver computed it
    gram: Vector | None = None
    # (m,): A random vector; None if the rows are a copy, which nobody else can change
    direction: Vector | None = None
    # (n,): the products of the rows with this vector at the time of the fit
    projected: Vector | None = None

    @classmethod
    def referenced(
        cls, X: Any, weights: Array | None, title: str, gram: Array | None
    ) -> TrainingRows | None:
        """Return an object that refers to the rows X (n, m) without a copy.

        The result is None if the rows are too large, a memory map, or not on the CPU. The random
        vector that shows changes is drawn anew for every fit, so that nobody can choose a change
        that it does not show. No fitted number depends on it.
        """
        if not (is_numpy(X) or scipy.sparse.issparse(X)) or _nbytes(X) > REFERENCED_BYTES:
            return None
        if any(_is_mapped(part) for part in _arrays(X)):
            return None
        direction = np.random.default_rng().standard_normal(X.shape[1])
        weights = None if weights is None else weights.copy()
        kept = None if gram is None else to_numpy(gram)
        return cls(X, weights, title, kept, direction, _projected(X, direction))

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

    threads = blas_threads() if X.size >= THREADED_ENTRIES else 1
    return np.concatenate(in_threads(part, X.shape[0], threads))


def _arrays(X: Any) -> tuple[Vector, ...]:
    """Return the arrays that contain the rows X: X itself, or the parts of a sparse matrix."""
    return (X.data, X.indices, X.indptr) if scipy.sparse.issparse(X) else (X,)


def _nbytes(X: Any) -> int:
    return int(sum(part.nbytes for part in _arrays(X)))


def _is_mapped(array: Any) -> bool:
    """Tell whether an array is a memory map of a file or a view of one."""
    while isinstance(array, np.ndarray):
        if isinstance(array, np.memmap):
            return True
        array = array.base
    if isinstance(array, memoryview):
        array = array.obj
    return isinstance(array, mmap.mmap)


def _consistent(X: Any) -> bool:
    """Tell whether the indices of a sparse matrix in CSR format are valid; True for dense rows.

    SciPy does not test them, and a product with wrong ones may read outside of the arrays.
    """
    if not scipy.sparse.issparse(X):
        return True
    (n, m), (data, indices, indptr) = X.shape, _arrays(X)
    ends = len(indptr) == n + 1 and indptr[0] == 0 and indptr[-1] <= min(len(data), len(indices))
    if not ends or np.any(np.diff(indptr) < 0):
        return False
    return len(indices) == 0 or bool(np.min(indices) >= 0 and np.max(indices) < m)
