"""The cheapest way to the leading eigenpairs of the second moment, by the shape of the data.

Three algorithms (routes) compute the k leading eigenpairs of the second moment of n rows with m
features. Their costs in floating-point operations are:

* second moment as an m × m matrix: n m² operations, and an eigendecomposition of size m;
* Gram matrix of the centred rows, n × n, which has the same nonzero eigenvalues: n² m operations,
  an eigendecomposition of size n, and 2 n m k operations for the eigenvectors of the moment;
* block Krylov iteration, which forms neither matrix: 4 n m b operations for each product with a
  block of b vectors.

If the rows are sparse with few entries, ARPACK takes the place of block Krylov iteration. The
number of products that the iteration needs depends on the eigenvalues. The iteration is tried first
if twelve products cost less than the cheaper of the other two algorithms. It is given up as soon as
its convergence rate predicts that it will cost more than the cheaper algorithm.

The costs were fitted to OpenBLAS on two cores; see docs/scaling.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

from lucidae.arrays import Array, as_double, device, eye_like, namespace
from lucidae.arrays.eigen import arpack_eigenpairs, fix_signs, leading_eigenpairs
from lucidae.arrays.krylov import EXTRA, WIDEST
from lucidae.linear.spectrum import Spectrum

EXACT_FEATURES = 8192
"""Largest number of rows of a square matrix (second moment or Gram matrix) that is formed; at this
size it takes half a gibibyte."""

FEWEST_PASSES = 12
"""Number of products with a block after which block Krylov iteration has usually converged."""

SPARSE_COST = 16.0
"""Time of one floating-point operation in a product of a sparse matrix with a few vectors, relative
to one in a product of dense matrices."""

SPARSE_SQUARE_COST = 1000.0
"""Time of one floating-point operation in the product of a sparse matrix with its own transpose,
relative to one in a product of dense matrices: each adds to an entry that must be found."""

WIDEST_SPARSE = 4
"""Largest number of vectors in a block for sparse rows. Products with wider blocks are hardly
faster per vector, and fewer products with narrow blocks are needed in all."""

SKINNY_COST = 2.0
"""Time of one floating-point operation in a product of a large matrix with a block of a few dozen
vectors, relative to one in a product of two large matrices."""

VECTOR_COST = 8.0
"""Time of one floating-point operation in a product of a matrix and a vector, which is limited by
the memory bandwidth, relative to one in a product of two matrices."""

RESOLVED = 1e-8
"""Smallest ratio of an eigenvalue to the largest one for which the eigenvector of the second moment
is computed from that of the Gram matrix."""

ARPACK_ENTRIES = 30
"""Largest number of stored entries of a sparse matrix, divided by the sum of its numbers of rows
and columns, for which ARPACK is used. With more entries the products take most of the time, and
those with a block of vectors are faster."""

ARPACK_PRODUCTS = 4000
"""Number of products with vectors after which ARPACK is given up."""

COLUMNS = 4096
"""Number of columns of X that are copied and centred at a time."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs of the three algorithms for the leading eigenpairs of a second moment.

    Parameters
    ----------
    moment : float
        Operations by the second moment as a matrix; infinite if the matrix would be too large.
    gram : float
        Operations by the Gram matrix of the rows; infinite if the matrix would be too large.
    krylov : float
        Operations of one product with a block of vectors in block Krylov iteration.
    widest : int
        Largest number of vectors in such a block.
    """

    moment: float
    gram: float
    krylov: float
    widest: int = WIDEST

    @property
    def passes(self) -> float:
        """Number of block products with which Krylov iteration costs as much as another algorithm.

        The other algorithm is the cheaper of two: an eigendecomposition of the second moment as a
        matrix, or of the Gram matrix of the rows. The number is infinite if neither is possible.
        """
        other = min(self.moment, self.gram)
        return other / self.krylov if math.isfinite(other) else math.inf


def costs(n: int, m: int, k: int, *, entries: int | None = None) -> Costs:
    """Return the costs of three algorithms for the k leading eigenpairs of n rows' second moment.

    They are an eigendecomposition of the second moment as a matrix, one of the Gram matrix of the
    rows, and block Krylov iteration.

    Parameters
    ----------
    n, m : int
        Number of rows and of features.
    k : int
        Number of eigenpairs.
    entries : int, optional
        Number of stored entries if the rows are sparse; None for dense rows.

    Returns
    -------
    Costs

    Examples
    --------
    >>> tall, square = costs(60_000, 500, 10), costs(5000, 5000, 10)
    >>> tall.passes < 12 < square.passes
    True
    """
    stored, unit, square = n * m, 1.0, 1.0
    if entries is not None:
        stored, unit, square = entries, SPARSE_COST, SPARSE_SQUARE_COST
    widest = WIDEST if entries is None else WIDEST_SPARSE
    width = min(k + EXTRA, widest, m)
    # A row of s stored entries adds s² products to the moment; a column likewise to the Gram.
    to_moment, to_gram = square * stored * stored / n, square * stored * stored / m
    moment = to_moment + eigen_cost(m, k) if m <= EXACT_FEATURES else math.inf
    gram = to_gram + eigen_cost(n, k) + 2 * unit * stored * k if n <= EXACT_FEATURES else math.inf
    skinny = SKINNY_COST if entries is None else 1.0
    # Rows without a stored entry cost nothing, but divisors must be positive.
    return Costs(moment, gram, max(4 * unit * skinny * stored * width, 1.0), widest)


def eigen_cost(size: int, k: int) -> float:
    """Return the number of operations for the k leading eigenpairs of a dense symmetric matrix.

    The matrix has `size` rows. The cheaper one of a dense solver and block Krylov iteration is
    counted.
    """
    # Half of the 4/3 size³ operations of a reduction to tridiagonal form are products with vectors.
    dense = (2 / 3) * size**3 * (1 + VECTOR_COST)
    iterative = FEWEST_PASSES * 2 * SKINNY_COST * size**2 * (k + EXTRA)
    return min(dense, iterative) + 4 * size**2 * k


def gram_matrix(X: Any, mean: Array, weights: Array | None, total: float) -> Array:
    """Return the Gram matrix AAᵀ of shape (n, n) of the centred and weighted rows X (n, m).

    A = diag(√weights)(X − mean)/√total, where `total` is the sum of the weights. Without `weights`,
    the rows have weight 1.
    """
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
    """Return the Gram matrix of dense rows X (n, m) minus `mean`, some columns at a time."""
    xp = namespace(mean)
    gram = xp.zeros((X.shape[0],) * 2, dtype=mean.dtype, device=device(mean))
    for start in range(0, X.shape[1], COLUMNS):
        part = slice(start, min(start + COLUMNS, X.shape[1]))
        block = as_double(X[:, part]) - mean[part]
        gram += block @ block.mT  # NumPy computes one triangle of it
    return gram


def gram_eigenpairs(
    gram: Array, X: Any, mean: Array, weights: Array | None, total: float, k: int
) -> Spectrum | None:
    """Return the `k` leading eigenpairs of the second moment from the Gram matrix of the rows.

    Let A = diag(√weights)(X − mean)/√total be the centred rows, so that `gram` is AAᵀ and the
    second moment is AᵀA. An eigenpair (λ, u) of AAᵀ gives the eigenvector Aᵀu/√λ of AᵀA. The result
    is None if one of the k eigenvalues is below `RESOLVED` times the largest, because such an
    eigenvector would be inaccurate.
    """
    values, left = leading_eigenpairs(gram, k)
    trace = float(namespace(gram).linalg.trace(gram))
    return _from_left(values, left, X, mean, weights, total, trace)


def _from_left(
    values: Array,
    left: Array,
    X: Any,
    mean: Array,
    weights: Array | None,
    total: float,
    trace: float,
) -> Spectrum | None:
    """Return the eigenpairs of the second moment AᵀA from eigenpairs (`values`, `left`) of AAᵀ.

    The arguments are those of `gram_eigenpairs`; `trace` is the total variance. The result is None
    if an eigenvalue is below `RESOLVED` times the largest.
    """
    xp = namespace(values)
    if not bool(values[-1] > RESOLVED * values[0]):
        return None
    scaled = left / xp.sqrt(values * total)
    if weights is not None:
        scaled = scaled * xp.sqrt(weights)[:, None]
    spread = xp.sum(scaled, axis=0)
    if scipy.sparse.issparse(X):
        rows = (X.T.astype(np.float64) @ scaled).T
    else:
        rows = scaled.mT @ as_double(X)
    rows = rows - spread[:, None] * mean
    # Rounding errors of up to ε λ₁/λ have turned the vectors; this first-order step to orthonormal
    # ones leaves only their square.
    excess = rows @ rows.mT - eye_like(rows.shape[0], rows)
    vectors = (rows - (excess / 2) @ rows).mT
    return Spectrum(values, fix_signs(vectors), trace)


def sparse_eigenpairs(
    X: Any, mean: Array, weights: Array, total: float, trace: float, k: int
) -> Spectrum | None:
    """Return the `k` leading eigenpairs of the second moment of sparse rows X (n, m) by ARPACK.

    ARPACK multiplies one vector at a time, which is as fast as a block of vectors if the matrix is
    sparse, and orthogonalises less than block Krylov iteration. It iterates with AᵀA or AAᵀ for the
    centred and weighted rows A, whichever is smaller.

    Parameters
    ----------
    X : sparse matrix of shape (n, m)
        The rows, not centred.
    mean : array of shape (m,)
        Their mean.
    weights : array of shape (n,)
        Their weights.
    total : float
        Sum of the weights.
    trace : float
        Total variance of the rows.
    k : int
        Number of eigenpairs, less than n and m.

    Returns
    -------
    Spectrum or None
        None if ARPACK did not converge, if it has missed a copy of a repeated eigenvalue, or if an
        eigenvalue is too small for an accurate eigenvector.
    """
    (n, m), transposed, shares = X.shape, X.T, weights / total
    # ARPACK's tolerance is absolute for tiny eigenvalues, so that the trace is made 1.
    roots, unit = np.sqrt(shares), math.sqrt(trace) if trace > 0.0 else 1.0

    def forth(v: Array) -> Array:
        return roots * ((X @ v - mean @ v) / unit)

    def back(u: Array) -> Array:
        codes = roots * (u / unit)
        return transposed @ codes - mean * codes.sum()

    def features(v: Array) -> Array:
        return back(forth(v))

    def rows(u: Array) -> Array:
        return forth(back(u))

    size, apply = (m, features) if m <= n else (n, rows)
    found = arpack_eigenpairs(apply, size, k, ARPACK_PRODUCTS)
    if found is None:
        return None
    values, vectors = found
    values = values * unit * unit
    if size == m:
        return Spectrum(values, fix_signs(vectors), trace)
    return _from_left(values, vectors, X, mean, weights, total, trace)
