"""Bounds from random directions: a sketch of rows, and the eigenvalues outside of a decoder's span.

**Sketch.** A sketch of rows is what remains of them when they have passed, to test a second moment
with. For rows x with weights w, a shift c and a matrix Ω of independent standard normal entries
(m × q),

    Y = Σ w (x − c)(x − c)ᵀΩ,   s = Σ w (x − c),   W = Σ w

give the product CΩ of the covariance C of the rows about their mean with Ω. A solver that used
another matrix C′ has the error E = C′ − C, and EΩ = C′Ω − CΩ is known. For the leading right
singular vector v of E, ‖EΩ‖ ≥ ‖E‖ ‖vᵀΩ‖, and ‖vᵀΩ‖² has a chi-squared distribution with q degrees
of freedom, because Ω is independent of E. So ‖EΩ‖_F divided by a small quantile is a bound on ‖E‖
that is wrong with the probability `FAILURE` (Freivalds' test of a product, with a bound on the
error). With this bound C′ is as good as C: Weyl's inequality does the rest.

The sums are made block by block by the code of this module alone, in float64 on the device of the
rows; no solver uses them. Reading of the data is outside of what a sketch can test.

**Complement.** Only verifiers use it. Let Σ be the second moment of the data (m × m), P the
projection onto the orthogonal complement of the decoder's span, and A = PΣP. The largest eigenvalue
λ of A is bounded from products with Σ alone. Let the rows of Q be an orthonormal basis of a block
Krylov space of A that starts with s random rows Ω of standard normal entries, T = QAQᵀ, and
N = QA − TQ the part of QA outside of the space. Of a unit eigenvector v with eigenvalue λ, y = Qv
is the part inside of the space and r, ‖r‖ ≤ 1, the part outside. The projection of Av = λv onto the
space is

    Ty + Nr = λy,   so that   y = (λ − T)⁻¹Nr   if λ exceeds all eigenvalues of T.

The random start is not orthogonal to v: Ωv has s standard normal entries, so its squared length
exceeds the quantile c of the chi-squared distribution except with the probability `FAILURE`. Let
y₁ be the entries of y that belong to the first block of Q, and L the coefficients of PΩ in this
block. Then ‖y₁‖ ≥ ‖Ωv‖/‖L‖ ≥ τ with τ = √c/‖L‖. Hence every eigenvalue λ of A above those of T has

    ‖E₁ᵀ(λ − T)⁻¹N‖ ≥ τ,

where E₁ᵀ selects the first block. The norm tends to 0 for large λ, and equals τ exactly if λ is an
eigenvalue of the matrix

    [ T          NNᵀ/τ ]
    [ E₁E₁ᵀ/τ    T     ]

(Boyd & Balakrishnan 1990, who bound a transfer function along the imaginary axis this way). So the
largest real part of the eigenvalues of this matrix is an upper bound on λ. In contrast to bounds
that hold for every spectrum (Kuczyński & Woźniakowski 1992) it uses the computed T and N; three
steps usually suffice if the eigenvalues decay.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any

import numpy as np
import scipy.sparse
import scipy.special

from lucidae.arrays import as_double, like, namespace, on_host, to_numpy
from lucidae.arrays.threads import blas_threads, in_threads, one_thread
from lucidae.certificates.bounds import TINY, Ball, gamma

Vector = np.ndarray[Any, Any]

# Number s of random rows from which the block Krylov space starts.
STARTS = 16

# Probability that one bound on the largest eigenvalue is wrong.
FAILURE = 1e-9

# Numbers of Krylov steps after which a bound is computed. All of these bounds are wrong only in the
# same event, that of a short ‖Ωv‖.
STEPS = (2, 3, 4, 5, 6, 8, 10, 12, 16)

# Number of Krylov steps that are made in any case, however many features there are.
FEWEST_STEPS = 4

# Largest number of stored entries of the Krylov basis: 128 mebibytes.
LARGEST_BASIS = 2**24


def drawn_after(shape: tuple[int, int], *seen: Vector) -> Vector:
    """Return random standard normal entries, seeded by a hash of arrays that the data determine.

    They are the starts of a Krylov iteration, whose bound on the probability of missing an
    eigenvalue holds for starts that are independent of the data. If the seed were known beforehand,
    data could be chosen that are orthogonal to all starts. A hash of means, variances or computed
    eigenvectors gives the same starts for the same data, but other data change the starts too.
    """
    digest = hashlib.sha256(b"".join(np.ascontiguousarray(part).tobytes() for part in seen))
    rng = np.random.default_rng(int.from_bytes(digest.digest(), "little"))
    return rng.standard_normal(shape)


def start_share(starts: int) -> float:
    """Return the length ‖Ωv‖ that random starts Ω exceed, except with probability `FAILURE`.

    Ω has `starts` rows of independent standard normal entries, and v is a unit vector that does not
    depend on Ω. The squared length has a chi-squared distribution; the root of its quantile is
    returned.
    """
    return math.sqrt(2.0 * float(scipy.special.gammaincinv(starts / 2.0, FAILURE)))


def eigenvalue_bound(inner: Vector, outer: Vector, first: int, share: float) -> float:
    """Return an upper bound on the largest eigenvalue λ of a symmetric matrix A.

    The bound holds if the eigenvector v of λ has at least the length `share` in the first block of
    the basis Q; see the module's docstring.
    """
    q = len(inner)
    selected = np.zeros((q, q))
    selected[range(first), range(first)] = 1.0 / share
    matrix = np.block([[inner, outer / share], [selected, inner]])
    with one_thread():  # several threads slow LAPACK's nonsymmetric eigensolver down
        found = np.linalg.eigvals(matrix)
    return max(float(np.max(found.real)), float(np.linalg.eigvalsh(inner)[-1]))


class Complement:
    """Block Krylov space of the second moment in the orthogonal complement of a decoder's span.

    The second moment is a matrix (m, m) for m features, and the span has the dimension r.
    """

    def __init__(
        self,
        product: Callable[[Vector], Vector],
        span: Vector,
        rounding: float,
        starts: Vector,
    ) -> None:
        self.product, self.span, self.rounding = product, span, rounding
        self.left = span.shape[0] - span.shape[1]
        self.bound, self.found, self.steps = math.inf, 0.0, 0
        self.basis = np.empty((0, span.shape[0]))
        self.images = np.empty((0, span.shape[0]))
        self.block = orthonormal(starts, (span.T,))
        self.first, self.share = len(self.block), 0.0
        if self.first:
            length = float(np.linalg.norm(starts @ self.block.T, 2))
            self.share = start_share(len(starts)) / length

    def extend(self, steps: int) -> bool:
        """Extend the Krylov space until it has `steps` block steps; update `bound` and `found`.

        Return whether it has that many steps. It has fewer if it is invariant, so that products
        with the second moment add nothing, or would become larger than allowed.
        """
        # 1) Products with the block, of which the part in the decoder's span is left out.
        while len(self.block) and len(self.basis) < self.left and self.steps < steps:
            grown = len(self.basis) + len(self.block)
            if self.steps >= FEWEST_STEPS and grown * self.span.shape[0] > LARGEST_BASIS:
                break
            image = self.product(self.block)
            image = image - (image @ self.span) @ self.span.T
            self.basis = np.concatenate([self.basis, self.block])
            self.images = np.concatenate([self.images, image])
            self.block = orthonormal(image, (self.span.T, self.basis))
            self.steps += 1
        # 2) The largest Ritz value, and the bound.
        if self.steps:
            inner = self.basis @ self.images.T
            inner = (inner + inner.T) / 2
            bound = self.found = float(np.linalg.eigvalsh(inner)[-1])
            if len(self.basis) < self.left:  # otherwise the space is the whole complement
                rest = self.images - inner @ self.basis
                bound = eigenvalue_bound(inner, rest @ rest.T, self.first, self.share)
            self.bound = min(self.bound, bound + 4 * self.rounding)
        return self.steps >= steps

    def extend_until(self, level: float) -> None:
        """Extend the Krylov space until the bound is at most a level, or will not be."""
        for steps in STEPS:
            if self.bound <= level or self.found > level or not self.extend(steps):
                break

    def above(self, level: float) -> Vector:
        """Return the Ritz vectors of this space, as rows, whose Ritz values exceed `level`."""
        inner = self.basis @ self.images.T
        values, vectors = np.linalg.eigh((inner + inner.T) / 2)
        return np.asarray(vectors[:, values > level].T @ self.basis)


def orthonormal(rows: Vector, others: tuple[Vector, ...]) -> Vector:
    """Return an orthonormal basis, as rows, of the part of `rows` orthogonal to all of `others`.

    Directions with less than 1e-6 of the length of the rows are left out.
    """
    rows = rows[np.any(rows != 0.0, axis=1)]
    for _ in range(2):  # twice is enough (Kahan, Parlett)
        rows = rows / np.sqrt(np.sum(rows * rows, axis=1))[:, None]
        for basis in others:
            rows = rows - (rows @ basis.T) @ basis
        sizes, turned = np.linalg.eigh(rows @ rows.T)
        present = sizes > 1e-12
        rows = (turned[:, present].T @ rows) / np.sqrt(sizes[present])[:, None]
    return np.asarray(rows)


# Sums over rows ----------------------------------------------------------------------------------

# Entries of rows that are multiplied at a time: a mebibyte, which stays in the cache between
# the two products (on the CPU), and for which BLAS copies nothing.
BLOCK_ENTRIES, DEVICE_ENTRIES = 2**17, 2**24

# Number of rows that are multiplied at a time at least: of fewer rows with many features the sums
# take longer than the products.
BLOCK_ROWS = 64

# Number of sparse rows that are multiplied at a time; rounding errors grow with it.
SPARSE_ROWS = 4096


def canonical(X: Any) -> Any:
    """Return sparse rows in CSR format without repeated entries; X itself is not changed."""
    X = X.tocsr()
    if not X.has_canonical_format:
        X = X.copy()
        X.sum_duplicates()
    return X


def full_columns(X: Any) -> Vector:
    """Tell which columns of sparse rows without repeated entries have no zeros."""
    return np.asarray(np.bincount(X.indices, minlength=X.shape[1]) == X.shape[0])


def row_weights(weights: Any, n: int) -> Vector:
    """Return the weights of n rows, 1 each by default."""
    return np.ones(n) if weights is None else to_numpy(weights).astype(float)


def rows_at(X: Any, Y: Any, part: slice) -> Any:
    """Return [x | y] for consecutive rows, sparse if X is; of CSR rows that are views."""
    if scipy.sparse.issparse(X):
        ends = X.indptr[part.start : part.stop + 1]
        stored = slice(ends[0], ends[-1])
        rows = type(X)((len(ends) - 1, X.shape[1]))  # whose constructor would copy the arrays
        rows.data, rows.indices, rows.indptr = X.data[stored], X.indices[stored], ends - ends[0]
    else:
        rows = X[part, ...]
    return joined(rows, None if Y is None else Y[part, ...])


def joined(X: Any, Y: Any) -> Any:
    """Return the rows [x | y], sparse if X is."""
    if Y is None:
        return X
    Y = Y[:, None] if Y.ndim == 1 else Y
    if scipy.sparse.issparse(X):
        return scipy.sparse.hstack([X, to_numpy(as_double(Y))], format="csr")
    X = as_double(X)
    return namespace(X).concat([X, like(as_double(Y), X)], axis=1)


def centred(rows: Any, center: Vector, unit: Any = 1.0) -> tuple[Any, Any]:
    """Return rows r in double precision, and l, with (x − center)/unit = r − l for each row x.

    Of sparse rows, without repeated entries, only columns without zeros are centred, which adds no
    entries. Others have a variance of at least the share of their zeros times the squared mean.
    `unit` is 1 or has a number for each column. The arrays of `rows` are not changed.
    """
    if not scipy.sparse.issparse(rows):
        rows = as_double(rows)
        rows = rows - like(center, rows) if center.any() else rows
        return (rows / like(unit, rows) if np.ndim(unit) else rows), 0.0
    rows, left = copy.copy(rows), center / unit
    rows.data = rows.data.astype(np.float64, copy=False)
    if center.any():
        full = full_columns(rows)
        rows.data = rows.data - np.where(full, center, 0.0)[rows.indices]
        left = np.where(full, 0.0, left)
    if np.ndim(unit):
        rows.data = rows.data / unit[rows.indices]
    return rows, left


def block_size(X: Any, m: int) -> int:
    """Return how many of the rows X, or of rows [x | y] with m features, are multiplied at once."""
    if scipy.sparse.issparse(X):
        return SPARSE_ROWS
    return max(BLOCK_ROWS, (BLOCK_ENTRIES if on_host(X) else DEVICE_ENTRIES) // m)


def slices(first: int, last: int, step: int) -> Iterator[slice]:
    """Yield consecutive slices of at most `step` from `first` to `last`."""
    return (slice(start, min(start + step, last)) for start in range(first, last, step))


# The four sums that `Deviations` names.
Sums = tuple[float, Vector, Vector, Vector]


@dataclass(frozen=True)
class Deviations:
    """Sums over d = (x − c)/unit of rows x with weights w: Σ w, Σ w d, Σ w ⟨v, d⟩ d and Σ w d².

    The centre c need not be the mean, but is subtracted without loss of digits only if it is close
    to it.
    """

    center: Vector  # (m,)
    vectors: Vector  # (q, m): one vector v in each row; Σ w d² is computed if there is none, or 0
    unit: Any = 1.0

    def __call__(self, X: Any, Y: Any, weights: Any, squares: Vector | None = None) -> Sums:
        """Return the sums over rows [x | y], and write ‖d‖² of each row to `squares`, if given."""
        (n, m), sparse = (int(X.shape[0]), len(self.center)), scipy.sparse.issparse(X)
        X, reference = (canonical(X), np.empty(0)) if sparse else (X, as_double(X[:1, :]))
        w, step, xp = row_weights(weights, n), block_size(X, m), namespace(reference)
        V, own = like(self.vectors.T, reference), like(w, reference)
        by_column = squares is None and not len(self.vectors)

        def part_of(first: int, last: int) -> Sums:
            images: Any = 0.0
            powers: Any = 0.0
            for part in slices(first, last, step):
                rows, left = centred(rows_at(X, Y, part), self.center, self.unit)
                codes = rows @ V - (self.vectors @ left if sparse else 0.0)
                codes = xp.concat([codes * own[part, None], own[part, None]], axis=1)
                found = rows.T @ codes
                images = images + found - (np.outer(left, codes.sum(axis=0)) if sparse else 0.0)
                if squares is not None and sparse:
                    lengths = np.asarray(rows.power(2).sum(axis=1)).ravel()
                    squares[part] = lengths - 2.0 * (rows @ left) + left @ left
                elif squares is not None:
                    squares[part] = to_numpy(xp.vecdot(rows, rows))
                if by_column:
                    powers = powers + (rows.power(2) if sparse else rows * rows).T @ own[part]
                    powers = powers + left * (left * float(w[part].sum()) - 2.0 * found[:, -1])
            found = to_numpy(images).T
            return float(w[first:last].sum()), found[-1], found[:-1], to_numpy(powers)

        # Threads of BLAS would only wait for each other in products that are so small.
        large = n * m > 8 * BLOCK_ENTRIES and (sparse or isinstance(X, np.ndarray))
        with one_thread() if large else nullcontext():
            return reduce(self.merge, in_threads(part_of, n, blas_threads() if large else 1))

    @staticmethod
    def merge(one: Sums, other: Sums) -> Sums:
        """Return the sums over two sets of rows together."""
        (a, b, c, d), (e, f, g, h) = one, other
        return a + e, b + f, c + g, d + h


# Sketches ----------------------------------------------------------------------------------------

# Number q of random directions: the quantile of 1e-9 is then 0.16, so that ‖E‖ ≤ 6.4 ‖EΩ‖_F.
DIRECTIONS = 8

# Largest ratio of the mean to the standard deviation of a feature for which the shift is zero. The
# rounding errors grow by its square. A subtraction from all rows takes as long as a product.
SMALL_MEAN = 2.0

# Number of rows whose mean is the shift.
FIRST_ROWS = 64

# Number of rows from which the units of columns are taken.
SAMPLED = 1024

# Number of rows with the largest squared distance from the shift that are remembered.
PEAKS = 8


@lru_cache(maxsize=4)
def _directions(m: int) -> Vector:
    return np.random.default_rng([m, 20181]).standard_normal((DIRECTIONS, m))


@dataclass(frozen=True)
class Sketch:
    """Sums over rows with which a covariance and a mean are tested; see the module's docstring."""

    shift: Vector  # (m,): the shift c
    weight: float  # W
    sums: Vector  # (m,): s
    images: Vector  # (q, m): Yᵀ
    # sum of w‖x − c‖² over all rows and shifts, which bounds every sum of absolute terms
    size: float
    depth: int  # rounding errors in sequence of an entry of the sums
    rows: int  # number of rows
    peaks: Vector  # (2, ≤ PEAKS): numbers of the rows farthest from the shift, and their w‖x − c‖²

    @classmethod
    def empty(cls, m: int) -> Sketch:
        """Return the sketch of no rows with m features."""
        zeros = np.zeros(m)
        return cls(zeros, 0.0, zeros, np.zeros((DIRECTIONS, m)), 0.0, 0, 0, np.empty((2, 0)))

    @classmethod
    def of(
        cls, X: Any, weights: Any = None, shift: Any = None, Y: Any = None, unit: Any = 1.0
    ) -> Sketch:
        """Return the sketch of the rows [x | y]/unit with their weights.

        X is dense of any library, or sparse. The `shift` may be that of earlier rows.
        """
        sparse = scipy.sparse.issparse(X)
        if sparse:
            X, Y = canonical(joined(X, Y)), None
        first = rows_at(X, Y, slice(0, min(FIRST_ROWS, int(X.shape[0]))))
        first = (first.toarray() if sparse else to_numpy(as_double(first))) / unit
        n, m = int(X.shape[0]), first.shape[1]
        if not n:
            return cls.empty(m)
        w, squares, step = row_weights(weights, n), np.empty(n), block_size(X, m)
        if shift is None:
            # Rows of weight zero do not count, however large they are.
            own = w[: len(first)] if w[: len(first)].any() else np.ones(len(first))
            shift = np.average(first, axis=0, weights=own)
            deviation = np.sqrt(np.average((first - shift) ** 2, axis=0, weights=own))
            if np.all(np.abs(shift) <= SMALL_MEAN * deviation):
                shift = 0.0 * shift
        if sparse:
            shift = np.where(full_columns(X), shift, 0.0)
        sums = Deviations(shift * unit, _directions(m), unit)(X, Y, w, squares)
        squares *= w
        top = np.argpartition(-squares, min(PEAKS, n) - 1)[:PEAKS]
        top = top[np.argsort(-squares[top], kind="stable")]
        depth, peaks = min(step - -n // step, n + 1) + m, np.stack([top, squares[top]])
        return cls(shift, *sums[:3], float(squares.sum()), depth, n, peaks)

    @classmethod
    def given(cls, mean: Any, covariance: Any, weight: float) -> Sketch:
        """Return the sketch of rows of which only mean and covariance are given, as data."""
        mean, covariance = to_numpy(mean), to_numpy(covariance)
        images = weight * (_directions(len(mean)) @ covariance)
        size = weight * float(np.trace(covariance))
        peaks = np.empty((2, 0))
        rows = max(1, int(weight))
        return cls(mean, weight, np.zeros(len(mean)), images, size, len(mean), rows, peaks)

    def update(self, X: Any, weights: Any = None, Y: Any = None, unit: Any = 1.0) -> Sketch:
        """Return the sketch of the rows so far and the rows [x | y]/unit together."""
        return self.merge(Sketch.of(X, weights, self.shift if self.rows else None, Y, unit))

    def merge(self, other: Sketch) -> Sketch:
        """Return the sketch of the rows of both, those of `other` after those of this one.

        Sums about another shift follow by (x − c) = (x − c′) + (c′ − c).
        """
        if not self.rows or not other.rows:
            return self if self.rows else other
        later = other.peaks + np.array([[self.rows], [0.0]])
        peaks = np.concatenate([self.peaks, later], axis=1)
        images, sums, size = other.images, other.sums, other.size
        if not np.array_equal(self.shift, other.shift):
            omega, step = _directions(len(self.shift)), other.shift - self.shift
            along = omega @ step
            images = images + np.outer(along, sums + other.weight * step)
            images = images + np.outer(omega @ other.sums, step)
            sums = sums + other.weight * step
            size = 2.0 * (size + other.weight * float(step @ step))
        return Sketch(
            self.shift,
            self.weight + other.weight,
            self.sums + sums,
            self.images + images,
            self.size + size,
            max(self.depth, other.depth) + 1,
            self.rows + other.rows,
            peaks[:, np.argsort(-peaks[1], kind="stable")[:PEAKS]],
        )

    @property
    def mean(self) -> Vector:
        """Mean of the rows."""
        return np.asarray(self.shift + self.sums / self.weight)

    @property
    def shares(self) -> Vector:
        """Numbers of the rows farthest from the shift, and their shares of the total variance."""
        offset = self.sums / self.weight
        energy = self.size - self.weight * float(offset @ offset)
        return np.stack([self.peaks[0], self.peaks[1] / max(energy, TINY)])

    def compare(self, covariance: Vector) -> Ball:
        """Return a bound on ‖C′ − C‖ for a matrix C′ that is claimed to be the covariance C.

        The error of the ball is the part of the bound that rounding errors of the sketch and of C′
        explain. The divisor of C is the total weight W.
        """
        omega, m = _directions(len(self.shift)), len(self.shift)
        # In units of the largest entry no square overflows or vanishes.
        unit = max(self.size / self.weight, float(np.max(np.abs(covariance))), TINY)
        covariance, root = covariance / unit, np.sqrt(unit)
        offset = self.sums / self.weight / root
        true = self.images / self.weight / unit - np.outer(omega @ offset, offset)
        apart = float(np.linalg.norm(omega @ covariance - true))
        # The sums over rows of codes c = (x − c)ᵀω times x − c are wrong by at most γ times
        # (Σ w c² · Σ w‖x − c‖²)^½, each code by γ‖x − c‖‖ω‖, and the mean by γ(Σ w‖x − c‖²/W)^½.
        spread, length = self.size / self.weight / unit, float(np.linalg.norm(omega))
        codes = max(float(np.sum(self.images * omega)), 0.0) / self.weight / unit
        shifted = length * float(np.linalg.norm(offset)) + float(np.linalg.norm(omega @ offset))
        rounding = gamma(self.depth) * (codes**0.5 + shifted) * spread**0.5
        rounding += gamma(m) * length * (spread + float(np.linalg.norm(covariance)))
        share = start_share(DIRECTIONS)
        apart = apart * unit if np.isfinite(apart) else math.inf
        return Ball(apart / share, 2.0 * rounding * unit / share)


def column_scales(X: Any, Y: Any, *, centered: bool = True) -> Vector:
    """Return powers of two near the standard deviations of the columns of [X | Y], or of X alone.

    They are those of at most `SAMPLED` rows: a sketch of rows in these units tests a column of
    small scale as well as one of large scale, and any units give a bound.
    """
    found = []
    for part in (X,) if Y is None else (X, Y):
        sample, none = part, np.zeros((0, part.shape[1]))
        if scipy.sparse.issparse(part):
            sample = part.tocsr()
        sample = sample[:: max(1, -(-part.shape[0] // SAMPLED)), :]
        weight, sums, *_ = Deviations(np.zeros(part.shape[1]), none)(sample, None, None)
        mean = sums / weight
        sizes = np.sqrt(Deviations(mean, none)(sample, None, None)[3] / weight)
        constant = sizes <= gamma(weight) * np.abs(mean)
        sizes[constant] = 0.0 if centered else np.abs(mean)[constant]
        known = (sizes > 0) & np.isfinite(sizes)
        # Columns that are constant so far have the size of the others.
        found.append(np.where(known, sizes, np.median(sizes[known]) if known.any() else 1.0))
    return np.asarray(np.exp2(np.round(np.log2(np.concatenate(found)))))


def sketch_pairs(
    X: Any, Y: Any, weights: Any, scales: Vector, before: Sketch | None = None
) -> Sketch:
    """Return the sketch of the rows of [X | Y] divided by `scales`, after those of `before`."""
    before = Sketch.empty(len(scales)) if before is None else before
    return before.update(X, weights, Y, scales)
