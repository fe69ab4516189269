"""The cheapest way to the leading eigenpairs of the second moment, by the shape of the data.

Three routes lead to the k leading eigenpairs of the second moment of n rows with m features, with
costs in floating-point operations:

* the moment of the features, m × m: n m² and an eigendecomposition of size m;
* the Gram matrix of the centred rows, n × n, which has the same eigenvalues: n² m, an
  eigendecomposition of size n, and 2 n m k for the eigenvectors of the moment;
* block Krylov iteration, which forms neither: 4 n m b for each product with a block of b vectors.

The number of products that the iteration needs depends on the spectrum. It is therefore tried first
wherever a dozen products cost less than the better one of the other routes, and ends as soon as the
convergence seen so far predicts that it will cost more than that one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

from lucidae.arrays import Array, add_gram_, as_double, is_numpy, namespace
from lucidae.arrays.eigen import fix_signs, leading_eigenpairs
from lucidae.arrays.krylov import EXTRA, WIDEST
from lucidae.linear.spectrum import Spectrum

EXACT_FEATURES = 8192
"""Largest number of rows or columns of a matrix that is formed: half a gibibyte."""

FEWEST_PASSES = 12
"""Products with a block after which the iteration has usually converged."""

SPARSE_COST = 30.0
"""Cost of an operation on a sparse matrix, in operations of a dense product."""

VECTOR_COST = 8.0
"""Cost of an operation of a product with one vector, which is limited by the memory."""

RESOLVED = 1e-8
"""Smallest eigenvalue, in units of the largest, whose eigenvector is taken from the Gram matrix."""

COLUMNS = 4096
"""Columns that are centred at a time."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs of the three routes, in operations of a dense product; infinite if not possible."""

    moment: float
    gram: float
    krylov: float

    @property
    def passes(self) -> float:
        """Products that the iteration may take before another route would have been cheaper."""
        other = min(self.moment, self.gram)
        return other / self.krylov if math.isfinite(other) else math.inf


def costs(n: int, m: int, k: int, *, entries: int | None = None) -> Costs:
    """Return the costs for n × m rows and k eigenpairs; `entries` are the stored ones if sparse.

    Examples
    --------
    >>> tall, square = costs(60_000, 500, 10), costs(5000, 5000, 10)
    >>> tall.passes < 12 < square.passes
    True
    """
    stored, unit = (n * m, 1.0) if entries is None else (entries, SPARSE_COST)
    width = min(k + EXTRA, WIDEST, m)
    # A row of s stored entries adds s² products to the moment; a column likewise to the Gram.
    to_moment, to_gram = unit * stored * stored / n, unit * stored * stored / m
    moment = to_moment + eigen_cost(m, k) if m <= EXACT_FEATURES else math.inf
    gram = to_gram + eigen_cost(n, k) + 2 * unit * stored * k if n <= EXACT_FEATURES else math.inf
    return Costs(moment, gram, 4 * unit * stored * width)


def eigen_cost(size: int, k: int) -> float:
    """Return the cost of the k leading eigenpairs of a dense symmetric matrix."""
    # Half of the 4/3 size³ operations of a reduction to tridiagonal form are products with vectors.
    dense = (2 / 3) * size**3 * (1 + VECTOR_COST)
    lanczos = 2 * size**2 * VECTOR_COST * 12 * (k + 10)
    return min(dense, lanczos) + 4 * size**2 * k


def gram_matrix(X: Any, mean: Array, weights: Array | None, total: float) -> Array:
    """Return R(X − 1μᵀ)(X − 1μᵀ)ᵀR / total with R = diag(√weights), shape (n, n)."""
    if scipy.sparse.issparse(X):
        X = X.astype(np.float64)
        projected = X @ mean
        gram = (X @ X.T).toarray() - projected[:, None] - projected[None, :] + mean @ mean
    else:
        gram = _dense_gram(X, mean)
    gram /= total
    if weights is not None:
        root = namespace(gram).sqrt(weights)
        gram *= root[:, None] * root[None, :]
    return gram


def _dense_gram(X: Array, mean: Array) -> Array:
    xp = namespace(mean)
    gram: Any = None
    for start in range(0, X.shape[1], COLUMNS):
        part = slice(start, min(start + COLUMNS, X.shape[1]))
        block = as_double(X[:, part]) - mean[part]
        gram = add_gram_(gram, block.T if is_numpy(block) else block.mT)
    return xp.tril(gram) + xp.tril(gram, k=-1).mT


def gram_eigenpairs(
    gram: Array, X: Any, mean: Array, weights: Array | None, total: float, k: int
) -> Spectrum | None:
    """Return the `k` leading eigenpairs of the second moment from the Gram matrix of the rows.

    With A = R(X − 1μᵀ)/√total, an eigenpair (λ, u) of AAᵀ gives the eigenvector Aᵀu/√λ of AᵀA. An
    eigenvalue below `RESOLVED` times the largest has too few digits in AAᵀ: the result is None.
    """
    xp = namespace(gram)
    values, left = leading_eigenpairs(gram, k)
    if not bool(values[-1] > RESOLVED * values[0]):
        return None
    scaled = left / xp.sqrt(values * total)
    if weights is not None:
        scaled = scaled * xp.sqrt(weights)[:, None]
    spread = xp.sum(scaled, axis=0)
    if scipy.sparse.issparse(X):
        vectors = X.T.astype(np.float64) @ scaled - mean[:, None] * spread
    else:
        vectors = as_double(X).mT @ scaled - mean[:, None] * spread
    return Spectrum(values, fix_signs(vectors), float(xp.linalg.trace(gram)))
