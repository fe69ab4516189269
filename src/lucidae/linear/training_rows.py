"""Training rows that a fitted state holds until its certificate or second moment is computed.

Both cost more than some fits, so that they are computed when they are first read. Rows that take
less memory than their second moment are copied. Larger ones are referred to and not copied; whether
they were changed in the meantime is seen from their products with a random vector.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

from lucidae.arrays import Array, is_numpy, to_numpy
from lucidae.linear.verified_gram import FEW_ROWS

__all__ = ["TrainingRows"]

Vector = np.ndarray[Any, Any]

REFERENCED_BYTES = 2**28
"""Largest size of rows to which a fitted state refers: 256 mebibytes. An estimator must not keep
more memory in use; of larger rows the certificate is computed by `fit`."""


@dataclass(frozen=True)
class TrainingRows:
    """Rows of a fit with their weights, and a test whether the rows are still those of the fit.

    Parameters
    ----------
    rows : ndarray or sparse matrix of shape (n, m)
        The rows.
    weights : array of shape (n,) or None
        Their weights; None for 1 each.
    title : str
        Title of the certificate.
    gram : ndarray of shape (n, n) or None
        The Gram matrix of the centred rows, if a solver computed it and there are few rows.
    direction : ndarray of shape (m,) or None
        A random vector; None if the rows are a copy, which nobody else can change.
    projected : ndarray of shape (n,) or None
        The products of the rows with this vector at the time of the fit.
    """

    rows: Any
    weights: Array | None
    title: str
    gram: Vector | None = None
    direction: Vector | None = None
    projected: Vector | None = None

    @classmethod
    def referenced(
        cls, X: Any, weights: Array | None, title: str, gram: Array | None
    ) -> TrainingRows | None:
        """Refer to the rows X (n, m); return None if they are too large or not on the CPU.

        The random vector is new for every fit, so that no change can be chosen beforehand that it
        does not notice. No result depends on it.
        """
        if not (is_numpy(X) or scipy.sparse.issparse(X)) or _nbytes(X) > REFERENCED_BYTES:
            return None
        direction = np.random.default_rng().standard_normal(X.shape[1]).astype(X.dtype)
        weights = None if weights is None else weights.copy()
        known = gram is not None and X.shape[0] <= FEW_ROWS
        kept = to_numpy(gram) if known else None
        return cls(X, weights, title, kept, direction, _projected(X, direction))

    @classmethod
    def copied(cls, X: Any, weights: Array | None, title: str) -> TrainingRows:
        """Return a copy of the rows X (n, m)."""
        return cls(X.copy(), None if weights is None else weights.copy(), title)

    @property
    def stored(self) -> bool:
        """Whether the rows are a copy, from which the second moment can be computed at any time."""
        return self.direction is None

    @property
    def unchanged(self) -> bool:
        """Whether the rows have the same products with the random vector as at the time of the fit.

        The products are computed in the same order, so that they are equal to the last bit. A
        change that they do not show is smaller than their rounding errors.
        """
        return self.direction is None or np.array_equal(
            _projected(self.rows, self.direction), np.asarray(self.projected)
        )


def _projected(X: Any, direction: Vector) -> Vector:
    """Return the products of the rows with a vector, in an order that does not depend on threads.

    BLAS may divide the sums differently if its number of threads has changed.
    """
    if scipy.sparse.issparse(X):
        return np.asarray(X @ direction)
    return np.asarray(np.einsum("ij,j->i", X, direction))


def _nbytes(X: Any) -> int:
    if scipy.sparse.issparse(X):
        return int(X.data.nbytes + X.indices.nbytes + X.indptr.nbytes)
    return int(X.nbytes)
