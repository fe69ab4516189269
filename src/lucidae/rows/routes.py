"""The cheapest way to the leading eigenpairs of the second moment, by the shape of the data.

Three algorithms (routes) compute the k leading eigenpairs of the second moment of n rows with m
features. Their costs in floating-point operations are:

* second moment as an m × m matrix: n m² operations, and an eigendecomposition of size m;
* Gram matrix of the centred rows, n × n, which has the same nonzero eigenvalues: n² m operations,
  an eigendecomposition of size n, and 2 n m k operations for the eigenvectors of the moment;
* block Krylov iteration, which forms neither matrix: 4 n m b operations for each product with a
  block of b vectors.

If the rows are sparse, or dense and small, ARPACK takes the place of block Krylov iteration: it
multiplies one vector at a time, and needs fewer products in all. Large dense rows are
multiplied with narrow blocks of four or eight vectors, in pieces that stay in the cache; float32
rows in single precision, and one product in double precision refines the result.

The number of products that the iteration needs depends on the eigenvalues. The iteration is tried
first if the usual number of products costs less than the cheaper of the other two algorithms. It is
given up as soon as its convergence rate predicts that it will cost more than a dense solver.

The costs were fitted to OpenBLAS on two cores; see docs/scaling.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

from lucidae.arrays import Array, as_double, device, eigh_descending, eye_like, is_numpy, namespace
from lucidae.arrays.eigen import arpack_eigenpairs, fix_signs, leading_eigenpairs
from lucidae.arrays.krylov import EXTRA, WIDEST, krylov_eigenpairs
from lucidae.arrays.row_products import moment_product
from lucidae.arrays.threads import blas_threads, in_threads, one_thread
from lucidae.rows.spectrum import Spectrum

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

NARROW = 4
"""Number of vectors in a block if the rows are dense and are read in pieces that stay in the cache
(`lucidae.arrays.row_products`). A pass over the rows with eight vectors takes half as long again,
and hardly fewer passes are needed."""

NARROW_FOR_MANY = 8
"""Number of vectors in a block of the same iteration if more than `MANY` eigenpairs are wanted."""

MANY = 32

MANY_COST = 2.5
"""Factor by which a pass over the rows takes longer for more than `MANY` eigenpairs: the basis is
large, and orthogonalising the block takes as long as multiplying it."""

SMALL_ROWS = 2**23
"""Largest number of entries of dense rows for which ARPACK is used, for at most `MANY`
eigenpairs. It needs fewer products than a block iteration and orthogonalises less, which counts
more than that a block reads the rows less often."""

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

NUMPY_ROWS = 128
"""Largest number of rows whose Gram matrix is decomposed by NumPy, which has computed it. SciPy has
threads of its own, which wait for those of NumPy longer than so small a problem takes."""

SMALL_MEAN = 1.0
"""Largest ratio of the squared length of the mean to the total variance for which the mean is
subtracted from the products instead of from the rows: at most one bit of accuracy is lost."""

SINGLE_ENTRIES = 2**19
"""Smallest number of entries of float32 rows that are multiplied in single precision."""

SINGLE_RANGE = 1e20
"""Mean squares of the entries between the inverse of this number and this number neither overflow
nor underflow in products in single precision."""

SUMMED_ENTRIES = 2**17
"""Number of entries of float32 rows that are converted and added in double precision at a time, so
that they stay in the cache."""

SINGLE_RESIDUAL = 1e-7
"""Tolerance of the residuals of block Krylov iteration with products in single precision, divided
by the largest eigenvalue."""

SINGLE_RESOLVED = 1e-4
"""Smallest ratio of an eigenvalue to the largest one for which an eigenvector is computed from a
Gram matrix in single precision."""

SINGLE_ERROR = 1e-4
"""Largest bound on the error of an eigenvector from products in single precision, before it is
refined; otherwise double precision is used. The bound would be attained if all rounding errors lay
along one neighbouring eigenvector. They lie in all directions, and the error of the refined vectors
is below 1e-6."""

LIGHT_ENTRIES = 30
"""Largest number of stored entries of a sparse matrix, divided by the sum of its numbers of rows
and columns, for which ARPACK may use `MOST_PRODUCTS`. With more entries the products take most of
the time, and those with a block of vectors are faster."""

MOST_HEAVY_PRODUCTS = 600

MOST_PRODUCTS = 4000
"""Number of products with vectors after which an iteration with vectors is given up."""

SINGLE_COLUMNS = 2**14
"""Number of columns of float32 rows whose products are added in single precision."""

COLUMNS = 4096
"""Number of columns of X that are copied and centred at a time."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs of the three algorithms for the leading eigenpairs of a second moment."""

    # operations by the second moment as a matrix; infinite if the matrix would be too large
    moment: float
    # operations by the Gram matrix of the rows; infinite if the matrix would be too large
    gram: float
    krylov: float  # operations of one product with a block of vectors in block Krylov iteration
    widest: int = WIDEST  # largest number of vectors in such a block
    # number of such products after which the iteration has usually converged
    fewest: float = FEWEST_PASSES
    # number of such products after which it is given up: they cost as much as an eigendecomposition
    # by a dense solver
    most: float = math.inf

    @property
    def iterates(self) -> bool:
        """Whether block Krylov iteration is expected to be the cheapest of the three algorithms."""
        return self.passes >= self.fewest

    @property
    def passes(self) -> float:
        """Number of block products with which Krylov iteration costs as much as another algorithm.

        The other algorithm is the cheaper of two: an eigendecomposition of the second moment as a
        matrix, or of the Gram matrix of the rows. The number is infinite if neither is possible.
        """
        other = min(self.moment, self.gram)
        return other / self.krylov if math.isfinite(other) else math.inf


def costs(n: int, m: int, k: int, *, entries: int | None = None, narrow: bool = False) -> Costs:
    """Return the costs of three algorithms for the k leading eigenpairs of n rows' second moment.

    They are an eigendecomposition of the second moment as a matrix, one of the Gram matrix of the
    rows, and block Krylov iteration.
    """
    stored, unit, square = n * m, 1.0, 1.0
    if entries is not None:
        stored, unit, square = entries, SPARSE_COST, SPARSE_SQUARE_COST
    widest, fewest = WIDEST if entries is None else WIDEST_SPARSE, float(FEWEST_PASSES)
    if narrow:
        widest = NARROW if k <= MANY else NARROW_FOR_MANY
        fewest = 20 + 2 * k / widest
    width = min(k + EXTRA, widest, m)
    # A row of s stored entries adds s² products to the moment; a column likewise to the Gram.
    to_moment, to_gram = square * stored * stored / n, square * stored * stored / m
    back = 2 * unit * stored * k
    moment = to_moment + eigen_cost(m, k) if m <= EXACT_FEATURES else math.inf
    gram = to_gram + eigen_cost(n, k) + back if n <= EXACT_FEATURES else math.inf
    skinny = SKINNY_COST if entries is None else 1.0
    if narrow and k > MANY:
        skinny *= MANY_COST
    # Rows without a stored entry cost nothing, but divisors must be positive.
    krylov = max(4 * unit * skinny * stored * width, 1.0)
    # Where this iteration is slow, one with a stored matrix is slow as well: only a dense solver
    # does not depend on the eigenvalues.
    dense_moment = to_moment + dense_cost(m) if m <= EXACT_FEATURES else math.inf
    dense_gram = to_gram + dense_cost(n) + back if n <= EXACT_FEATURES else math.inf
    return Costs(moment, gram, krylov, widest, fewest, min(dense_moment, dense_gram) / krylov)


def dense_cost(size: int) -> float:
    """Return the number of operations by which a dense solver computes all eigenvalues.

    The matrix is symmetric and has `size` rows; eigenvectors are not included. An operation in a
    product of a matrix and a vector counts `VECTOR_COST` times.
    """
    # Half of the 4/3 size³ operations of a reduction to tridiagonal form are products with vectors.
    return (2 / 3) * size**3 * (1 + VECTOR_COST)


def eigen_cost(size: int, k: int) -> float:
    """Return the number of operations for the k leading eigenpairs of a dense symmetric matrix.

    The matrix has `size` rows. The cheaper one of a dense solver and block Krylov iteration is
    counted.
    """
    iterative = FEWEST_PASSES * 2 * SKINNY_COST * size**2 * (k + EXTRA)
    return min(dense_cost(size), iterative) + 4 * size**2 * k


def single_statistics(X: Any, shares: Array) -> tuple[Array, float, tuple[Array, Array]] | None:
    """Return mean and total variance of float32 rows, and rows for products in single precision."""
    if not is_numpy(X) or X.dtype != np.float32 or X.size < SINGLE_ENTRIES:
        return None
    mean, squares = _sums_about(np.zeros(X.shape[1]), X, shares)
    size = float(squares.sum()) / X.shape[1]
    if not 1.0 / SINGLE_RANGE < size < SINGLE_RANGE:
        return None
    length = float(mean @ mean)
    trace = float(squares.sum()) - length
    if length <= SMALL_MEAN * trace:
        return mean, trace, (X, mean)
    center = mean.astype(np.float32)
    rest, squares = _sums_about(center, X, shares)
    trace = float(squares.sum() - rest @ rest)
    if not X.shape[1] / SINGLE_RANGE < trace:
        return None
    return center + rest, trace, (X - center, rest)


def _sums_about(center: Array, X: Array, shares: Array) -> tuple[Array, Array]:
    """Return the weighted means (m,) of X − center and of its squared entries, as float64.

    X are n rows of m features, and `shares` are their weights, of sum 1.
    """
    (n, m), shifted = X.shape, bool(center.any())
    size = max(4, SUMMED_ENTRIES // m)

    def part(first: int, last: int) -> tuple[Array, Array]:
        mean, squares = np.zeros(m), np.zeros(m)
        buffer = np.empty((min(size, n), m))
        for start in range(first, last, size):
            stop = min(start + size, last)
            rows, own = buffer[: stop - start], shares[start:stop]
            rows[...] = X[start:stop]
            if shifted:
                rows -= center
            mean += own @ rows
            rows *= rows
            squares += own @ rows
        return mean, squares

    means, squares = zip(*in_threads(part, n, blas_threads()), strict=True)
    return sum(means[1:], means[0]), sum(squares[1:], squares[0])


def single_eigenpairs(
    X: Array,
    mean: Array,
    single: tuple[Array, Array],
    shares: Array,
    trace: float,
    k: int,
    cost: Costs,
) -> Spectrum | None:
    """Return the `k` leading eigenpairs of float32 rows X (n, m) by products in single precision.

    They come from block Krylov iteration or from the Gram matrix of the rows, whichever is cheaper,
    and are refined by one product in double precision (`refined`).
    """
    vectors = None
    if cost.iterates:

        def apply(rows: Array) -> Array:
            return moment_product(rows, *single, shares, single=True)

        with one_thread():  # the products use Python threads, which those of BLAS would disturb
            pairs = krylov_eigenpairs(
                apply,
                k,
                mean,
                passes=cost.most,
                widest=cost.widest,
                residual=SINGLE_RESIDUAL,
            )
        vectors = None if pairs is None else pairs[1]
    if vectors is None and cost.gram <= cost.moment:
        vectors = _single_gram_vectors(*single, shares, k)
    if vectors is None:
        return None
    return refined(vectors, lambda rows: moment_product(rows, X, mean, shares), trace)


def _single_gram_vectors(X: Array, mean: Array, shares: Array, k: int) -> Array | None:
    """Return k orthonormal approximate eigenvectors, (m, k), of the second moment of float32 rows.

    They come from the Gram matrix of the rows X (n, m) with weights `shares` of sum 1.
    """
    (n, m), roots = X.shape, np.sqrt(shares)[:, None]
    gram = np.zeros((n, n))
    for start in range(0, m, SINGLE_COLUMNS):
        block = X[:, start : start + SINGLE_COLUMNS]
        gram += block @ block.T
    # The mean is small, or X was centred, so that subtracting its products loses no digit.
    projected = X @ mean.astype(np.float32)
    gram += mean @ mean - projected[:, None] - projected[None, :]
    gram *= roots * roots.T
    values, left = leading_eigenpairs(gram, k)
    if not values[-1] > SINGLE_RESOLVED * values[0]:
        return None
    scaled = (left / np.sqrt(values) * roots).astype(np.float32).T
    rows = (scaled @ X).astype(np.float64) - scaled.sum(axis=1, dtype=np.float64)[:, None] * mean
    return np.linalg.qr(rows.T)[0]


def refined(vectors: Array, apply: Callable[[Array], Array], trace: float) -> Spectrum | None:
    """Return eigenpairs of a symmetric matrix Σ from approximate ones, by one product with Σ.

    Rayleigh–Ritz gives eigenvalues θ and vectors w in the span of `vectors`. Then each w is
    replaced by wΣ/θ (one power step): a part of w along another eigenvector, of eigenvalue λ, is
    multiplied by λ/θ. The rounding errors of single precision lie in all directions, and most of
    these have small eigenvalues.
    """
    images = apply(vectors.T)
    inner = images @ vectors
    values, turn = eigh_descending((inner + inner.T) / 2)
    if not values[-1] > 0.0:
        return None
    rows, images = turn.T @ vectors.T, turn.T @ images
    residuals = np.linalg.norm(images - values[:, None] * rows, axis=1)
    if np.any(residuals[:-1] > SINGLE_ERROR * (values[:-1] - values[-1])):
        return None
    columns, triangle = np.linalg.qr((images / values[:, None]).T)
    columns = columns * np.sign(np.diagonal(triangle))
    return Spectrum(values, fix_signs(columns), trace)


def gram_matrix(X: Any, mean: Array, weights: Array | None, total: float) -> Array:
    """Return the Gram matrix AAᵀ of shape (n, n) of the centred and weighted rows X (n, m).

    A = diag(√weights)(X − mean)/√total, where `total` is the sum of the weights. Without `weights`,
    the rows have weight 1.
    """
    if scipy.sparse.issparse(X):
        X = X.astype(np.float64, copy=False)
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
    if is_numpy(gram) and gram.shape[0] <= NUMPY_ROWS:
        values, left = (part[..., :k] for part in eigh_descending(gram))
    else:
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

    The result is None if an eigenvalue is below `RESOLVED` times the largest, because its
    eigenvector would be inaccurate.
    """
    xp = namespace(values)
    if not bool(values[-1] > RESOLVED * values[0]):
        return None
    scaled = left / xp.sqrt(values * total)
    if weights is not None:
        scaled = scaled * xp.sqrt(weights)[:, None]
    spread = xp.sum(scaled, axis=0)
    if scipy.sparse.issparse(X):
        rows = (X.T.astype(np.float64, copy=False) @ scaled).T
    else:
        rows = scaled.mT @ as_double(X)
    rows = rows - spread[:, None] * mean
    # Rounding errors of up to ε λ₁/λ have turned the vectors; this first-order step to orthonormal
    # ones leaves only their square.
    excess = rows @ rows.mT - eye_like(rows.shape[0], rows)
    vectors = (rows - (excess / 2) @ rows).mT
    return Spectrum(values, fix_signs(vectors), trace)


def vector_eigenpairs(
    X: Any,
    mean: Array,
    weights: Array,
    total: float,
    trace: float,
    k: int,
    *,
    rough: bool = False,
) -> Spectrum | None:
    """Return the `k` leading eigenpairs of the second moment of rows X (n, m) by vector iteration.

    One vector at a time is multiplied (`lucidae.arrays.eigen.arpack_eigenpairs`), which is as
    fast as a block of vectors if the matrix is sparse or small, and needs fewer products than block
    Krylov iteration. The matrix is AᵀA or AAᵀ for the centred and weighted rows A, whichever is
    smaller.
    """
    (n, m), transposed, shares = X.shape, X.T, weights / total
    # Tolerances of tiny eigenvalues are absolute, so that the trace is made 1.
    roots, unit = np.sqrt(shares), math.sqrt(trace) if trace > 0.0 else 1.0
    scale = roots / unit

    def forth(v: Array) -> Array:
        # BLAS would start threads for so short a product of vectors.
        return scale * (X @ v - np.sum(mean * v))

    def back(u: Array) -> Array:
        codes = scale * u
        return transposed @ codes - mean * codes.sum()

    def features(v: Array) -> Array:
        return back(forth(v))

    def rows(u: Array) -> Array:
        return forth(back(u))

    size, apply = (m, features) if m <= n else (n, rows)
    sparse = scipy.sparse.issparse(X)
    light = not sparse or X.nnz <= LIGHT_ENTRIES * (n + m)
    products = MOST_PRODUCTS if light else MOST_HEAVY_PRODUCTS
    # Products of sparse rows use no BLAS, whose threads would only be woken up by short vectors.
    with one_thread() if sparse else nullcontext():
        found = arpack_eigenpairs(apply, size, k, products, rough=rough)
    if found is None:
        return None
    values, vectors = found
    values = values * unit * unit
    if size == m:
        return Spectrum(values, fix_signs(vectors), trace)
    return _from_left(values, vectors, X, mean, weights, total, trace)
