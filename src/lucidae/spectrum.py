"""Leading eigenpairs of the second moment Σ of rows, by the cheapest algorithm for their shape.

Three algorithms compute the k leading eigenpairs for n rows with m features:

* second moment as an m × m matrix: n m² operations, and an eigendecomposition of size m;
* Gram matrix of the centred rows, n × n, which has the same nonzero eigenvalues: n² m operations,
  an eigendecomposition of size n, and 2 n m k operations for the eigenvectors of the moment;
* an iteration that forms neither matrix: 4 n m b operations for each product with b vectors. ARPACK
  multiplies one vector at a time, and needs fewer products in all: it serves sparse and small rows.
  Block Krylov iteration reads large rows less often.

The number of products depends on the eigenvalues. The iteration is tried first if the usual number
of products costs less than the other two (`costs`, with six constants; ``benchmarks/scaling.py``
measures the three algorithms). It is given up as soon as its convergence rate predicts that it will
cost more than a dense solver.

The eigenvector of an eigenvalue that differs from the others by `gap` is known up to an angle of
about ε λ₁/gap, with the machine epsilon ε and the largest eigenvalue λ₁. Where that is too much,
`refined` computes the eigenpairs from the factor R of Σ = RᵀR (`RowOperator.triangle`), whose
singular value decomposition knows them up to ε √λ₁/(difference of the singular values).
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

from lucidae.arrays import (
    Array,
    as_double,
    eigh_descending,
    eye_like,
    machine_epsilon,
    namespace,
    normal,
    svd_thin,
    to_numpy,
    zeros_like_shape,
)
from lucidae.arrays.eigen import (
    ARPACK_FEATURES,
    EXTRA,
    WIDEST,
    arpack_eigenpairs,
    fix_signs,
    krylov_eigenpairs,
    leading_eigenpairs,
    orthonormal_rows,
)
from lucidae.arrays.threads import in_each_thread, one_thread, row_parts
from lucidae.moments import SPARSE_SQUARE_COST, covariance_spectrum
from lucidae.rows.covariances import Covariance, has_fast_products, moment_product
from lucidae.rows.operator import EXACT_FEATURES, BlockRows, CsrRows, DenseRows, RowOperator

Vector = np.ndarray[Any, Any]

PASSES = 12
"""Number of products with a wide block after which block Krylov iteration has usually converged."""

NARROW = 4
"""Number of vectors in a block if the rows are sparse, or dense and read in pieces that stay in the
cache. A pass over the rows with eight vectors takes half as long again, and hardly fewer passes are
needed: for 40 eigenpairs of 6000 × 2000 rows on one core, 0.30 s against 0.26 s."""

SKINNY_COST, VECTOR_COST = 2.0, 8.0
"""Time of one floating-point operation in a product of a matrix with a few vectors, and with one
vector, relative to one in a product of two matrices."""

SPARSE_COST = 16.0
"""Time of one floating-point operation in a product of a sparse matrix with a few vectors, relative
to one in a product of dense matrices."""

SMALL_ROWS = 2**20
"""Largest number of entries of dense rows for which ARPACK is used; larger rows are read from
memory for every product. On one core, 5 eigenpairs of 600 × 600 rows take 24 ms against 70 ms by
block Krylov iteration, and 10 of 2000 × 2000 take 128 ms against 71 ms."""

MOST_PRODUCTS = 4000
"""Largest number of products with vectors after which ARPACK is given up."""

RESOLVED = 1e-8
"""Smallest ratio of an eigenvalue to the largest one for which the eigenvector of the second moment
is computed from that of the Gram matrix; in single precision its square root."""

SINGLE_RESIDUAL = 1e-7
"""Tolerance of the residuals of block Krylov iteration with products in single precision, divided
by the largest eigenvalue."""

SINGLE_ERROR = 1e-4
"""Largest bound on the error of an eigenvector from products in single precision, before it is
refined. The bound would be attained if all rounding errors lay along one neighbouring eigenvector.
They lie in all directions, and the error of the refined vectors is below 1e-6."""

ALLOWED = 1e-10
"""Largest estimated error ε λ₁/gap of an eigenvector of float64 rows, as an angle, without a
factorisation of the rows. The true error is usually a third of the estimate or less."""

ALLOWED_SINGLE = 1e-7
"""The same for float32 rows: their components are rounded to single precision."""

ALLOWED_PRODUCTS = 1e-3
"""The same if products of the rows were computed in single precision. The bound on their error is a
Frobenius norm, of which a single eigenvector gets a small part."""

CLOSE = 1e-2
"""Eigenvalues whose relative difference is smaller than this count as different by this much. The
axes of so close eigenvalues depend on the last digits of the data; the subspace of all of them does
not, and is what must be accurate."""


@dataclass(frozen=True, slots=True)
class Spectrum:
    """Leading eigenvalues and eigenvectors of the second moment of data.

    Parameters
    ----------
    values : array of shape (q,)
        The q leading eigenvalues, descending; q is at most the number of features m.
    vectors : array of shape (m, q)
        Their eigenvectors, one per column.
    trace : float
        Sum of all m eigenvalues.
    beyond : float or None
        Sum of the m − q other eigenvalues if it was computed from the rows
        (`lucidae.spectrum`), so that it is accurate even if it is tiny compared with
        `trace`, and so are all eigenvalues. None if it is known as a difference alone.
    """

    values: Array
    vectors: Array
    trace: float
    beyond: float | None = None

    @property
    def n_features(self) -> int:
        """Number of features m."""
        return int(self.vectors.shape[0])

    def leading(self, k: int) -> Spectrum:
        """Return the spectrum with its first `k` eigenvalues and eigenvectors alone."""
        beyond = self.beyond
        if beyond is not None:
            beyond += float(namespace(self.values).sum(self.values[k:]))
        return Spectrum(self.values[:k], self.vectors[:, :k], self.trace, beyond)

    def noise(self, k: int) -> float:
        """Return the mean of all eigenvalues after the first `k`; 0 if there are none.

        This is the noise variance of probabilistic PCA with `k` components.
        """
        m = self.n_features
        if k >= m:
            return 0.0
        if self.beyond is not None and k <= self.values.shape[0]:
            rest = float(namespace(self.values).sum(self.values[k:]))
            return max(0.0, rest + self.beyond) / (m - k)
        leading = float(namespace(self.values).sum(self.values[:k]))
        return max(0.0, self.trace - leading) / (m - k)

    def rank(self) -> int:
        """Return the numerical rank: the number of eigenvalues above m·ε·λ₁."""
        return int(np.sum(self.resolved(int(self.values.shape[0])) > 0.0))

    @property
    def factored(self) -> bool:
        """Whether the eigenpairs are from a factorisation of the rows (`refined`); see `error`."""
        return self.beyond is not None

    @property
    def error(self) -> Vector:
        """Rounding error of each eigenvalue λ, for m features and the machine epsilon ε.

        It is 2m·ε·√(λ₁λ), that of LAPACK's singular value decomposition, if the rows were
        factorised (`factored`), and otherwise m·ε·λ₁ with the largest eigenvalue λ₁, or more if
        products were computed in single precision. It turns an eigenvector by about the error
        divided by the gap to the next eigenvalue.
        """
        values = to_numpy(self.values)
        top, unit = values.max(initial=0.0), machine_epsilon(self.values) * self.n_features
        sizes = 2 * np.sqrt(top * values) if self.factored else np.full(len(values), top)
        return np.asarray(unit * sizes)

    def resolved(self, q: int) -> Vector:
        """Return the first `q` eigenvalues; those of at most m·ε·λ₁ are set to zero.

        Eigenvalues that were not computed, because there are fewer rows than features, are zero as
        well. The result is therefore the same for eigenvalues from rows and from a second moment.
        """
        values = to_numpy(self.values)
        smallest = machine_epsilon(values) * self.n_features * values.max(initial=0.0)
        padded = np.append(values, np.zeros(max(0, min(q, self.n_features) - len(values))))
        return np.where(padded > smallest, padded, 0.0)[:q]


def leading(rows: RowOperator, k: int | None) -> Spectrum | None:
    """Return at least `k` leading eigenpairs of Σ; all of them if `k` is None.

    A further pair, which may be inaccurate, shows the eigengap after the last. The result is None
    if all pairs are asked for, and neither Σ nor the Gram matrix can be formed.
    """
    if isinstance(rows, BlockRows) and rows.moment is None:
        return None if k is None else _iterated(rows, k, math.inf)
    if rows.moment is None:
        assert isinstance(rows, DenseRows | CsrRows), "rows in memory"
        # 1) All eigenpairs: of fewer rows than features from the rows, else from the matrix.
        n, m = rows.rows.shape
        if k is None or k >= min(n, m):
            if n <= min(m, EXACT_FEATURES):
                return padded(_of_few_rows(rows), k)
            if m > EXACT_FEATURES:
                return None
        # 2) Some of them, by the cheapest algorithm.
        else:
            cost, found = costs_of(rows, k + 1), None
            if isinstance(rows, DenseRows) and not cost.scatters and rows.single_products:
                found = _in_single_precision(rows, k, cost)
            if found is None and cost.iterates:
                found = _iterated(rows, k, cost.most)
            if found is None and cost.gram <= cost.scatter:
                found = _from_left(rows, *leading_eigenpairs(rows.gram(), k))
                found = found or padded(_of_few_rows(rows), k)
            if found is not None:
                return found
    return Spectrum(*covariance_spectrum(rows.covariance, k), rows.trace)


def refined(rows: RowOperator, spectrum: Spectrum, k: int) -> Spectrum:
    """Return the eigenpairs from a factorisation of the rows if the first `k` are inaccurate."""
    # 1) The error ε λ₁/gap of each eigenvector.
    single = rows.rows is not None and str(rows.rows.dtype).endswith("float32")
    error, allowed = machine_epsilon(spectrum.values), ALLOWED_SINGLE if single else ALLOWED
    if rows.moment is not None and rows.moment.rounding > 0.0:
        error, allowed = max(error, rows.moment.rounding), ALLOWED_PRODUCTS
    found = to_numpy(spectrum.values)
    k = min(k, len(found))
    if k < 2 or not found[0] > 0.0 or error * found[0] <= allowed * CLOSE * found[k - 1]:
        return spectrum  # as for most data, whatever the gaps are
    steps = found[:-1] - found[1:]
    before = np.append(math.inf, steps)[:k]
    after = np.append(steps, found[-1])[:k]  # the next eigenvalue may be zero
    gaps = np.maximum(np.minimum(before, after), CLOSE * found[:k])
    triangle = None if np.all(error * found[0] <= allowed * gaps) else rows.triangle()
    if triangle is None:  # they are accurate, or cannot be computed more accurately
        return spectrum
    # 2) Singular values of the rows.
    _, singular, right = svd_thin(triangle)
    values = singular * singular
    trace = float(namespace(values).sum(values))
    return padded(Spectrum(values, fix_signs(right.mT), trace, 0.0), len(found))


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs of the algorithms for the leading eigenpairs, in operations of a dense product."""

    scatter: float  # by the second moment as a matrix; infinite if it would be too large
    gram: float  # by the Gram matrix of the rows; infinite if it would be too large
    width: int  # number of vectors in a block of the iteration
    passes: float  # number of block products that cost as much as the cheaper of the two above
    most: float  # number of block products that cost as much as a dense solver
    iterates: bool  # whether an iteration is expected to be the cheapest of the three algorithms

    @property
    def scatters(self) -> bool:
        """Whether the second moment as a matrix is expected to be the cheapest."""
        return not self.iterates and self.scatter < self.gram


def costs(n: int, m: int, k: int, *, entries: int | None = None, narrow: bool = False) -> Costs:
    """Return the costs of the k leading eigenpairs of n rows, of which `entries` are stored."""
    stored, unit = n * m, SKINNY_COST
    width, usual = min(k + EXTRA, WIDEST, m), float(PASSES)
    to_moment, to_gram = float(n * m * m), float(n * n * m)
    if narrow:
        width = min(NARROW, m)
        # Flat spectra need about nine products for a block of pairs. For 50 pairs of 2000 × 2000
        # and 100 of 2000 × 6000 rows, a matrix takes half of the time, for 10 of these 1.3 times.
        usual = 20 + 12 * k / width
    if entries is not None:
        # ARPACK makes about 80 + 4k products with single vectors, which cost as much as these.
        stored, unit, width = entries, SPARSE_COST, min(NARROW, m)
        usual = 20 + 4 * k / width
        # A row of s stored entries adds s² products to the moment; a column likewise to the Gram.
        to_moment = min(to_moment, SPARSE_SQUARE_COST * stored * stored / n)
        to_gram = min(to_gram, SPARSE_SQUARE_COST * stored * stored / m)
    # A dense solver takes no time for few rows or features, and less for a tenth of all eigenpairs:
    # 200 of 1000 × 1000 rows take 0.15 s, and 0.3 s by ARPACK.
    if min(n, m) < ARPACK_FEATURES or 10 * k > min(n, m):
        usual = math.inf
    back = 2 * unit * stored * k / (SKINNY_COST if entries is None else 1.0)
    # Rows without a stored entry cost nothing, but divisors must be positive.
    product = max(4 * unit * stored * width, 1.0)
    scatter = dense_scatter = gram = dense_gram = math.inf
    if m <= EXACT_FEATURES:
        scatter, dense_scatter = to_moment + _eigen_cost(m, k), to_moment + _dense_cost(m)
    if n <= EXACT_FEATURES:
        gram, dense_gram = to_gram + _eigen_cost(n, k) + back, to_gram + _dense_cost(n) + back
    # Where this iteration is slow, one with a stored matrix is slow as well: only a dense solver
    # does not depend on the eigenvalues.
    passes, most = min(scatter, gram) / product, min(dense_scatter, dense_gram) / product
    return Costs(scatter, gram, width, passes, most, passes >= usual)


def _dense_cost(size: int) -> float:
    """Return the operations by which a dense solver computes all eigenvalues of a matrix."""
    # Half of the 4/3 size³ operations of a reduction to tridiagonal form are products with vectors.
    return (2 / 3) * size**3 * (1 + VECTOR_COST)


def _eigen_cost(size: int, k: int) -> float:
    """Return the operations for k eigenpairs of a matrix, by the cheaper of two algorithms."""
    iterative = PASSES * 2 * SKINNY_COST * size**2 * (k + EXTRA)
    return min(_dense_cost(size), iterative) + 4 * size**2 * k


def costs_of(rows: DenseRows | CsrRows, k: int) -> Costs:
    """Return the costs of the algorithms for the `k` leading eigenpairs of rows in memory."""
    n, m = rows.rows.shape
    if isinstance(rows, CsrRows):
        return costs(n, m, k, entries=rows.entries)
    return costs(n, m, k, narrow=has_fast_products(rows.rows, NARROW))


def scatter_is_cheapest(rows: DenseRows | CsrRows, k: Any) -> bool:
    """Tell whether `k` eigenpairs (all, unless it is a number) come from Σ as a matrix."""
    n, m = rows.rows.shape
    if not isinstance(k, int) or k >= min(n, m):
        return bool(n > m <= EXACT_FEATURES)
    return costs_of(rows, k + 1).scatters


def _of_few_rows(rows: DenseRows | CsrRows) -> Spectrum:
    """Return all eigenpairs of fewer rows than features, without a matrix of shape (m, m).

    Eigenvalues of sparse rows below √ε times the largest are left out.
    """
    if isinstance(rows, DenseRows):
        X, mean = rows.products
        root = namespace(rows.shares).sqrt(rows.shares)[:, None]
        _, singular, right = svd_thin((as_double(X) - mean) * root)
        values = singular * singular
        return Spectrum(values, fix_signs(right.mT), float(namespace(values).sum(values)))
    values, left = eigh_descending(rows.gram())
    kept = values > math.sqrt(machine_epsilon(values)) * values[0]
    if not kept.any():  # equal rows: any unit vector belongs to the eigenvalue zero
        return Spectrum(0.0 * values[:1], np.eye(rows.n_features, 1), 0.0)
    # A vector inherits the error ε λ₁/λ of its u. Those before it are more accurate, and
    # orthogonalising against them removes most of the error.
    vectors = orthonormal_rows(_right_vectors(rows, values[kept], left[:, kept])).T
    return Spectrum(values[kept], fix_signs(vectors), float(np.clip(values, 0, None).sum()))


def padded(spectrum: Spectrum, k: int | None) -> Spectrum:
    """Return `k` eigenpairs; those that `spectrum` lacks have the eigenvalue zero."""
    found = int(spectrum.values.shape[0])
    if k is None or k <= found:
        return spectrum if k is None else spectrum.leading(k)
    xp, extra = namespace(spectrum.values), k - found
    random = normal(np.random.default_rng(0), (spectrum.n_features, extra), spectrum.values)
    completed, _ = xp.linalg.qr(xp.concat([spectrum.vectors, random], axis=1))
    values = xp.concat([spectrum.values, zeros_like_shape((extra,), spectrum.values)])
    vectors = xp.concat([spectrum.vectors, completed[:, found:]], axis=1)
    return Spectrum(values, vectors, spectrum.trace, spectrum.beyond)


def _right_vectors(rows: DenseRows | CsrRows, values: Array, left: Array) -> Array:
    """Return eigenvectors Aᵀu/√λ of AᵀA, as rows (k, m), from eigenpairs (λ, u) of AAᵀ.

    A = diag(√shares)(X − mean) are the centred and weighted rows.
    """
    xp, (X, mean) = namespace(values), rows.products
    scaled = left / xp.sqrt(values) * xp.sqrt(rows.shares)[:, None]
    raw = (X.T @ scaled).T if scipy.sparse.issparse(X) else scaled.mT @ as_double(X)
    return raw - xp.sum(scaled, axis=0)[:, None] * mean


def _from_left(rows: DenseRows | CsrRows, values: Array, left: Array) -> Spectrum | None:
    """Return the eigenpairs of Σ from those of the Gram matrix; None if one is inaccurate."""
    if not bool(values[-1] > RESOLVED * values[0]):
        return None
    right = _right_vectors(rows, values, left)
    # Rounding errors of up to ε λ₁/λ have turned the vectors; this first-order step to orthonormal
    # ones leaves only their square.
    excess = right @ right.mT - eye_like(right.shape[0], right)
    return Spectrum(values, fix_signs((right - (excess / 2) @ right).mT), rows.trace)


def _iterated(rows: RowOperator, k: int, most: float) -> Spectrum | None:
    """Return k leading eigenpairs and a rough further one; None if it would take too long."""
    count, widest, fast = min(k + 1, rows.n_features), WIDEST, False
    if isinstance(rows, DenseRows | CsrRows):
        sparse, widest = isinstance(rows, CsrRows), costs_of(rows, count).width
        small = isinstance(rows.products[0], np.ndarray) and rows.entries <= SMALL_ROWS
        products = min(MOST_PRODUCTS, NARROW * most) if sparse else MOST_PRODUCTS
        found = _by_vectors(rows, count, int(products)) if sparse or small else None
        if found is not None or (sparse and most < math.inf):
            return found
        fast = has_fast_products(rows.products[0], widest)  # of dense rows
    # Products of narrow blocks use Python threads, which those of BLAS would disturb.
    with one_thread() if fast else nullcontext():
        pairs = krylov_eigenpairs(rows.apply, count, rows.mean, passes=most, widest=widest)
    return None if pairs is None else Spectrum(pairs[0], fix_signs(pairs[1]), rows.trace)


def _by_vectors(rows: DenseRows | CsrRows, k: int, most: int) -> Spectrum | None:
    """Return k eigenpairs, the last one rough, by ARPACK on the smaller of AᵀA and AAᵀ.

    It is given up after `most` products.
    """
    (X, mean), (n, m), trace = rows.products, rows.rows.shape, rows.trace
    sparse = scipy.sparse.issparse(X)
    # Python threads share sparse rows, because SciPy multiplies them by one thread.
    parts = row_parts(X) if sparse else [X]
    ends = np.cumsum([part.shape[0] for part in parts])[:-1]
    # Tolerances of tiny eigenvalues are absolute, so that the trace is made 1.
    unit = math.sqrt(trace) if trace > 0.0 else 1.0
    scale = np.sqrt(rows.shares) / unit

    def forth(v: Array) -> Array:
        # BLAS would start threads for so short a product of vectors.
        products = in_each_thread(lambda part: part @ v, parts)
        return scale * (np.concatenate(products) - np.sum(mean * v))

    def back(u: Array) -> Array:
        codes = scale * u
        pairs = zip(parts, np.split(codes, ends), strict=True)
        products = in_each_thread(lambda pair: pair[0].T @ pair[1], list(pairs))
        return sum(products[1:], products[0]) - mean * codes.sum()

    def features(v: Array) -> Array:
        return back(forth(v))

    def samples(u: Array) -> Array:
        return forth(back(u))

    size, apply = (m, features) if m <= n else (n, samples)
    # Products of sparse rows use no BLAS, whose threads would only be woken up by short vectors.
    with one_thread() if sparse else nullcontext():
        found = arpack_eigenpairs(apply, size, k, most, rough=True)
    if found is None:
        return None
    values, vectors = found[0] * unit * unit, found[1]
    if size == m:
        return Spectrum(values, fix_signs(vectors), trace)
    return _from_left(rows, values, vectors)


def _in_single_precision(rows: DenseRows, k: int, cost: Costs) -> Spectrum | None:
    """Return eigenpairs of float32 rows by products in single precision, refined by one in double.

    Rayleigh–Ritz gives eigenvalues θ and vectors w in the span of the approximate ones. Then each w
    is replaced by wΣ/θ (one power step): a part of w along another eigenvector, of eigenvalue λ, is
    multiplied by λ/θ. The rounding errors of single precision lie in all directions, and most of
    these have small eigenvalues.
    """
    vectors, count = None, k + 1
    assert rows.single_products is not None, "the caller has tested it"
    (X, mean), shares = rows.single_products, rows.shares
    # 1) Approximate eigenvectors, from block Krylov iteration or from the Gram matrix.
    if cost.iterates:
        with one_thread():  # the products use Python threads, which those of BLAS would disturb
            pairs = krylov_eigenpairs(
                lambda block: moment_product(block, X, mean, shares, single=True),
                count,
                rows.mean,
                passes=cost.most,
                widest=cost.width,
                residual=SINGLE_RESIDUAL,
            )
        vectors = None if pairs is None else pairs[1]
    if vectors is None and cost.gram <= cost.scatter:
        values, left = leading_eigenpairs(rows.single_gram(), count)
        if values[-1] > math.sqrt(RESOLVED) * values[0]:
            scaled = (left / np.sqrt(values) * np.sqrt(shares)[:, None]).astype(np.float32).T
            right = (scaled @ X) - scaled.sum(axis=1, dtype=np.float64)[:, None] * mean
            vectors = np.linalg.qr(right.T)[0]
    if vectors is None:
        return None
    # 2) Rayleigh–Ritz in double precision, without a float64 copy of the rows.
    images = moment_product(vectors.T, rows.rows, rows.mean, shares)
    inner = images @ vectors
    values, turn = eigh_descending((inner + inner.T) / 2)
    if not values[-1] > 0.0:
        return None
    vectors, images = vectors @ turn, turn.T @ images
    residuals = np.linalg.norm(images - values[:, None] * vectors.T, axis=1)
    if np.any(residuals[:-1] > SINGLE_ERROR * (values[:-1] - values[-1])):
        return None
    # 3) The power step.
    columns, triangle = np.linalg.qr((images / values[:, None]).T)
    return Spectrum(values, fix_signs(columns * np.sign(np.diagonal(triangle))), rows.trace)


def ritz_spectrum(covariance: Covariance, k: int, like: Array, *, n_iter: int = 8) -> Spectrum:
    """Estimate the `k` largest eigenvalues of the second moment and their eigenvectors.

    `n_iter` block power iterations are made, so that only products with the second moment are
    needed. The estimated eigenvalues (Ritz values) never exceed the true ones.
    """
    xp = namespace(like)
    width = min(k + 8, covariance.n_features)  # more columns than k make the first k accurate
    rows = normal(np.random.default_rng(0), (width, covariance.n_features), like)
    for _ in range(n_iter):
        basis, _ = xp.linalg.qr(rows.mT)
        rows = covariance.apply(basis.mT)
    # Rayleigh–Ritz: the eigenpairs of Σ restricted to the span of the basis.
    values, rotation = eigh_descending((rows @ basis + (rows @ basis).mT) / 2)
    return Spectrum(values[:k], (basis @ rotation)[:, :k], float(covariance.trace))
