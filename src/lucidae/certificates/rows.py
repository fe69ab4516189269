"""The rows of data as verifiers read them, and what they know of their second moment.

Nothing is taken from solvers, moments or the reading of data. Rows [x | y] with weights, in memory
(`GivenRows`) or in blocks (`RereadRows`), are summed by functions of one block, which may run where
the block is. `Data` is the second moment Σ of the rows (m × m), known in one of three ways, each
with a bound `error` on what is not known of it:

1. *factor*: Σ = RᵀR, where R comes from a QR factorisation of the centred rows. Its singular values
   are the roots of the eigenvalues and have all digits. For small rows, and for rows in memory, or
   blocks that can be read again, if what follows does not decide (`Data.refactored`).
2. *matrix*: a matrix that is claimed to be Σ, such as that of the solver, with the bound on its
   error that a `Sketch` of the rows gives.
3. *products* of Σ with vectors, from the rows or a tested matrix, for many features. The matrix A
   of the centred rows themselves, with Σ = AᵀA, is an `RowMatrix`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from lucidae.arrays import as_double, like, rank_one_, to_numpy
from lucidae.certificates.bounds import (
    TINY,
    Ball,
    enclose_eigenvalues,
    gamma,
    is_positive_definite,
    triangle,
)
from lucidae.certificates.sketch import (
    BLOCK_ENTRIES,
    SPARSE_ROWS,
    STARTS,
    Complement,
    Deviations,
    Sketch,
    canonical,
    centred,
    drawn_after,
    row_weights,
    rows_at,
    slices,
)

__all__ = [
    "OVERFLOW",
    "SMALL_ROWS",
    "Data",
    "GivenRows",
    "RereadRows",
    "RowMatrix",
    "complement_bound",
    "is_below",
    "norm",
]

Vector = np.ndarray[Any, Any]

# Largest number of entries of rows (one mebibyte) that are factorised in any case.
SMALL_ROWS = 2**17

# Largest number of rows or features, whichever is smaller, of rows that are factorised because
# nothing else decides.
LARGEST_FACTOR = 2048

# Largest number of rows with more features of which all eigenvalues are computed. Up to 700 this
# took less time than a Krylov space (with 5000 to 50 000 features), for 1000 more.
FEW_ROWS = 512

# Largest number of entries of rows that are copied for a factor: 256 mebibytes.
LARGEST_COPY = 2**25

# Ratio of a squared mean to the variance up to which the mean is subtracted from products of the
# rows instead of from the rows. This costs two of sixteen digits.
LARGE_MEAN = 100.0

# A Gram matrix is formed and factorised if that takes at most this many multiplications.
LARGEST_CHOLESKY = 2**36

OVERFLOW = (
    "the squares of X overflow double precision. Give X divided by a constant, to both fit and "
    "certify."
)


def norm(values: Vector) -> float:
    """Return the Frobenius norm; entries are scaled, so that no square overflows."""
    peak = float(np.max(np.abs(values), initial=0.0))
    return peak * float(np.linalg.norm(values / peak)) if 0.0 < peak < math.inf else peak


# Sums over blocks of rows ------------------------------------------------------------------------


@dataclass(frozen=True)
class CenteredTriangle:
    """Triangular factor of √w[1, (x − c)/unit] for the rows x of a block, and its error.

    The first column belongs to a feature that is 1 in every row: the other rows of the factor are
    orthogonal to it, and so belong to rows that are centred, whatever c is.
    """

    center: Vector
    unit: Any  # a number, or one for each column

    def __call__(self, X: Any, Y: Any, weights: Any) -> tuple[Vector, float]:
        n, m = int(X.shape[0]), len(self.center)
        X = X.tocsr() if scipy.sparse.issparse(X) else X
        roots, step = np.sqrt(row_weights(weights, n))[:, None], max(4 * m, BLOCK_ENTRIES // m)
        found = []
        for part in slices(0, n, step):
            rows = rows_at(X, Y, part)
            rows = rows.toarray() if scipy.sparse.issparse(rows) else to_numpy(as_double(rows))
            rows = np.column_stack([np.ones(len(rows)), (rows - self.center) / self.unit])
            found.append(triangle(roots[part] * rows))
        return reduce(self.merge, found)

    @staticmethod
    def merge(one: tuple[Vector, float], other: tuple[Vector, float]) -> tuple[Vector, float]:
        """Return the factor of two sets of rows together, that of their stacked factors."""
        found, error = triangle(np.vstack([one[0], other[0]]))
        return found, error + math.hypot(one[1], other[1])


@dataclass(frozen=True)
class GivenRows:
    """Rows [x | y] in memory (x dense of any library, or sparse) with their weights."""

    X: Any
    weights: Any = None
    Y: Any = None  # (n, d)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and of features."""
        return int(self.X.shape[0]), sum(int(p.shape[1]) for p in (self.X, self.Y) if p is not None)

    @cached_property
    def shares(self) -> Vector:
        """The weights of the rows divided by their sum."""
        weights = row_weights(self.weights, self.shape[0])
        return np.asarray(weights / weights.sum())

    def total(self, leaf: Any) -> Any:
        """Return the result of `leaf`, a function of X, Y and weights, for all rows."""
        return leaf(self.X, self.Y, self.weights)

    def squared_distances(self, center: Vector) -> Vector:
        """Return ‖x − c‖² of each row, shape (n,)."""
        found = np.empty(self.shape[0])
        none = np.zeros((0, len(center)))
        Deviations(center, none)(self.X, self.Y, self.weights, found)
        return found

    def matrix(self, center: Vector, factors: Any = 1.0, *, centered: bool = True) -> RowMatrix:
        """Return the rows x of positive weight as √p(x − c) times factors of the columns.

        The centre c is close to the mean. What is left of the mean is subtracted, if `centered`.
        """
        used = np.flatnonzero(self.shares)
        table, roots = self.X, np.sqrt(self.shares[used])
        table = table if len(used) == table.shape[0] else table[used, :]
        table = canonical(table) if scipy.sparse.issparse(table) else table
        table, left = centred(table, center)
        if scipy.sparse.issparse(table):
            table = scipy.sparse.csr_array(table.multiply(roots[:, None]).multiply(factors))
            return RowMatrix(table, roots, table.T @ roots if centered else left * factors)
        table = np.array(to_numpy(table))
        table *= roots[:, None]
        table *= factors
        if centered:
            table = rank_one_(table, roots, roots @ table, -1.0)
        return RowMatrix(table)


@dataclass(frozen=True)
class RereadRows:
    """Rows that are read in blocks, several times: `passes.total` makes one pass over them."""

    passes: Any
    n_features: int

    def total(self, leaf: Any) -> Any:
        """Return the results of `leaf` for all blocks, joined by its merge, in one pass."""
        return self.passes.total(leaf, leaf.merge)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of features, as that of rows and of features."""
        return self.n_features, self.n_features


# What is known of the second moment --------------------------------------------------------------


@dataclass(frozen=True)
class Data:
    """The second moment Σ of rows, as far as it is known, and a bound on what is not."""

    # The mean is the sum of two vectors (m,): it has more digits than one if it is large.
    shift: Vector
    offset: Ball
    variances: Vector  # (m,): the diagonal of Σ
    apply: Callable[[Vector], Vector]  # products of row vectors with Σ
    # bound on the Frobenius norm of the difference of Σ to the matrix that products, matrix and
    # factor belong to; for rows it is the rounding error
    error: float
    weight: float | None = None  # sum of the weights of the rows; None if Σ is not a covariance
    matrix: Vector | None = None  # (m, m): Σ itself
    # R with RᵀR = Σ, and a bound on the error of its singular values
    factor: tuple[Vector, float] | None = None
    rows: GivenRows | RereadRows | None = None  # for what the second moment does not decide
    filled: GivenRows | None = None  # rows with expectations in place of missing entries
    # bound on ‖C′ − Σ‖ for the moment C′ of the solver, divided by the trace, from a sketch
    moment: Ball | None = None
    # (2, p): rows farthest from the mean, and their shares of the trace
    peaks: Vector | None = None
    # where they come from: "rows"; "given", a moment that is taken as the data; or "lost", a moment
    # whose rows are not known, so that nothing tests it
    origin: str = "rows"
    unit: Any = 1.0  # the number by which the rows were divided, or one for each feature

    @cached_property
    def trace(self) -> float:
        """Total variance, the sum of all eigenvalues of Σ."""
        return float(np.sum(self.variances))

    @cached_property
    def mean(self) -> Ball:
        """The mean (m,)."""
        mean = self.shift + self.offset.value
        return Ball(mean, self.offset.error + gamma(0) * np.abs(mean))

    @property
    def deviations(self) -> Vector:
        """Standard deviations (m,); 0 for constant columns, whose mean has rounding errors."""
        found = np.sqrt(np.maximum(self.variances, 0.0))
        return np.where(found > gamma(0) * np.abs(self.mean.value), found, 0.0)

    @property
    def n_features(self) -> int:
        """Number m of features."""
        return len(self.variances)

    @property
    def rounding(self) -> float:
        """Total variance that equal rows seem to have because of rounding errors of the mean."""
        size = gamma(0) * norm(self.mean.value)
        return size * size

    @classmethod
    def of_rows(
        cls, rows: GivenRows | RereadRows, center: Vector | None = None, unit: Any = 1.0
    ) -> Data:
        """Return data of which products with Σ are computed from the rows, divided by `unit`.

        The centre, such as the mean of the model, need not be right.
        """
        m = rows.shape[1]
        center, none = np.zeros(m) if center is None else center, np.zeros((0, m))
        for _ in range(3):
            with np.errstate(over="ignore", invalid="ignore"):
                weight, rest, _, squares = rows.total(Deviations(center, none, unit))
                rest = rest / weight
                variances = np.maximum(squares / weight - rest**2, 0.0)
                small = np.abs(rest * unit) <= gamma(0) * np.abs(center)
                near = (rest**2 <= LARGE_MEAN * variances) | small
            if bool(np.all(near)) or not np.all(np.isfinite(rest)):
                break
            center = center + rest * unit
        trace, mean = float(np.sum(variances)), center / unit + rest
        if not math.isfinite(trace * weight):
            raise ValueError(OVERFLOW)
        start = 0.0 * center if norm(mean) <= math.sqrt(LARGE_MEAN * trace) else mean * unit

        def product(vectors: Vector) -> Vector:
            total, sums, images, _ = rows.total(Deviations(start, vectors, unit))
            offset = sums / total
            return np.asarray(images / total - np.outer(vectors @ offset, offset))

        offset = Ball(rest, gamma(SPARSE_ROWS) * np.sqrt(variances + rest**2))
        error = gamma(m) * trace
        return cls(center / unit, offset, variances, product, error, weight, rows=rows, unit=unit)

    @classmethod
    def of_moment(
        cls,
        mean: Any,
        covariance: Any,
        weight: float | None,
        sketch: Sketch | None = None,
        rows: GivenRows | RereadRows | None = None,
        origin: str = "rows",
        unit: Any = 1.0,
    ) -> Data:
        """Return data of a mean and a covariance, whose errors the sketch of the rows bounds.

        They and the sketch belong to the rows divided by `unit`.
        """
        matrix, shift = to_numpy(covariance), to_numpy(mean)
        own, trace, none = np.diag(matrix), float(np.trace(matrix)), 0.0 * shift

        def product(vectors: Vector) -> Vector:
            return np.asarray(vectors @ matrix)

        error = gamma(len(matrix)) * max(trace, 0.0)
        data = cls(shift, Ball(none, none), own, product, error, weight, matrix)
        data = replace(data, rows=rows, origin=origin, unit=unit)
        if sketch is None:
            return data
        apart, away = sketch.compare(matrix), sketch.sums / sketch.weight
        tested = apart.high if math.isfinite(apart.high) else math.inf
        # The error of each mean is relative to the deviation of its own feature.
        largest = min(tested, np.finfo(float).max)
        spread = np.sqrt(np.maximum(own, 0.0) + largest + away**2)
        return replace(
            data,
            shift=sketch.shift,
            offset=Ball(away, gamma(sketch.depth) * spread),
            error=error + tested,
            weight=sketch.weight,
            moment=apart / max(trace, TINY),
            peaks=sketch.shares,
            origin="rows",
        )

    def beside_moment(self, covariance: Any) -> Data:
        """Return the same data, by whose factor the covariance of a solver is tested as well."""
        if self.factor is None:
            return self
        own = self.factor[0].T @ self.factor[0]
        apart, trace = norm(to_numpy(covariance) - own), max(self.trace, TINY)
        return replace(self, moment=Ball(apart / trace, self.error / trace))

    def about_zero(self) -> Data:
        """Return the second moment about zero, Σ + μμᵀ, of rows that are not centred."""
        mean, factor, apart = self.mean.value, self.factor, norm(self.mean.error)
        with np.errstate(over="ignore"):
            variances = self.variances + mean**2
            trace = float(np.sum(variances))
        if not math.isfinite(trace):
            raise ValueError(OVERFLOW)

        def product(vectors: Vector) -> Vector:
            return np.asarray(self.apply(vectors) + np.outer(vectors @ mean, mean))

        return replace(
            self,
            shift=0.0 * mean,
            offset=Ball(0.0 * mean, 0.0 * mean),
            variances=variances,
            apply=product,
            error=self.error + 2 * norm(mean) * apart + gamma(0) * trace,
            weight=None,
            matrix=None if self.matrix is None else self.matrix + np.outer(mean, mean),
            factor=None if factor is None else (np.vstack([factor[0], mean]), factor[1] + apart),
            rows=None,
        )

    def in_units(self, unit: Any) -> Data:
        """Return the data divided by a number, or by one for each feature."""
        least, factor = float(np.min(unit)), self.factor
        return replace(
            self,
            shift=self.shift / unit,
            offset=Ball(self.offset.value / unit, self.offset.error / unit),
            variances=self.variances / unit / unit,
            apply=lambda vectors: self.apply(vectors / unit) / unit,
            error=self.error / least / least,
            matrix=None if self.matrix is None else self.matrix / unit / np.reshape(unit, (-1, 1)),
            factor=None if factor is None else (factor[0] / unit, factor[1] / least),
            unit=self.unit * unit,
        )

    def eigenvalue_bounds(self) -> Vector | None:
        """Return upper bounds on the eigenvalues of Σ, descending, if there are few dense rows.

        Those of Σ = AᵀA that are not zero are the eigenvalues of AAᵀ (n × n) for the centred rows A
        in memory. It is formed from some columns at a time.
        """
        rows, center = self.rows, self.mean.value * self.unit
        if not isinstance(rows, GivenRows) or scipy.sparse.issparse(rows.X):
            return None
        (n, m), gram = rows.shape, 0.0
        if n > FEW_ROWS:
            return None
        for part in slices(0, m, max(1, BLOCK_ENTRIES // n)):
            block = as_double(rows.X[:, part])
            block = (block - like(center[part], block)) / self.unit
            gram = gram + block @ block.T
        roots = np.sqrt(rows.shares)
        found = enclose_eigenvalues(to_numpy(gram) * np.outer(roots, roots), self.error)
        return found.values + found.error

    def refactored(self) -> Data | None:
        """Return the data with the triangular factor R of their rows; None if it takes too long.

        R has all digits of the rows. Its first row contains the mean.
        """
        if self.factor is not None or self.rows is None:
            return None
        shape = self.rows.shape
        if min(shape) > LARGEST_FACTOR or math.prod(shape) > LARGEST_COPY:
            return None
        m, shift = self.n_features, self.mean.value
        # The error of each column is relative to its own norm (Higham 2002, Theorem 19.4).
        size = math.sqrt(max(self.trace / m, self.rounding, TINY))
        found, error = self.rows.total(CenteredTriangle(shift * self.unit, size * self.unit))
        root = float(found[0, 0])
        factor, away = found[1:, 1:] * (size / abs(root)), found[0, 1:] * (size / root)
        error *= norm(found[:, 1:]) / norm(found) * (size / abs(root))
        variances = np.einsum("ij,ij->j", factor, factor)
        trace = float(np.sum(variances))
        return replace(
            self,
            shift=shift,
            offset=Ball(away, gamma(len(found)) * np.sqrt(variances + away**2)),
            variances=variances,
            apply=lambda vectors: (vectors @ factor.T) @ factor,
            error=error * (2 * math.sqrt(trace) + error) + gamma(len(factor)) * trace,
            matrix=None,
            factor=(factor, error),
        )


# The centred rows themselves ---------------------------------------------------------------------


class RowMatrix(NamedTuple):
    """A matrix A by its products: S, or S − slᵀ with a unit vector s, so that zeros are kept."""

    stored: Any  # (n, m): S, dense or sparse
    shares: Any = 0.0  # (n,): s
    left: Any = 0.0  # (m,): l; 0 if A is S

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers n of rows and m of columns."""
        return int(self.stored.shape[0]), int(self.stored.shape[1])

    @property
    def cancelled(self) -> float:
        """Sum of squares that is subtracted: ‖l‖²."""
        return float(np.sum(np.square(self.left)))

    @property
    def total(self) -> float:
        """Sum of the squares of the entries."""
        entries = self.stored.data if scipy.sparse.issparse(self.stored) else self.stored
        total = float(np.vdot(entries, entries))
        if np.ndim(self.left):
            total += self.cancelled - 2.0 * float(self.shares @ (self.stored @ self.left))
        return total

    @property
    def rounding(self) -> float:
        """Bound on the rounding error of a product of AᵀA with a unit vector."""
        return gamma(sum(self.shape)) * (self.total + 2 * self.cancelled)

    def times(self, right: Vector) -> Vector:
        """Return AV."""
        found = np.asarray(self.stored @ right)
        return found - np.outer(self.shares, self.left @ right) if np.ndim(self.left) else found

    def back(self, codes: Vector) -> Vector:
        """Return AᵀZ."""
        found = np.asarray(self.stored.T @ codes)
        return found - np.outer(self.left, self.shares @ codes) if np.ndim(self.left) else found

    def apply(self, block: Vector) -> Vector:
        """Return the product of the smaller one of AᵀA and AAᵀ with a block of columns."""
        tall = self.shape[0] > self.shape[1]
        return self.back(self.times(block)) if tall else self.times(self.back(block))

    def gram(self) -> Vector:
        """Return the smaller one of AAᵀ and AᵀA."""
        S, one, other = self.stored, self.shares, self.left
        if self.shape[0] > self.shape[1]:
            S, one, other = S.T, other, one
        if scipy.sparse.issparse(S):
            first, second = S.tocsr(), S.T.tocsc()
            parts = [first[i : i + 256] @ second for i in range(0, first.shape[0], 256)]
            found = np.concatenate([part.toarray() for part in parts])
        else:
            found = S @ S.T
        if np.ndim(self.left):
            across = np.outer(S @ other, one)
            found = found - across - across.T + float(other @ other) * np.outer(one, one)
        return np.asarray((found + found.T) / 2)


def complement_bound(A: RowMatrix, vectors: Vector, level: float) -> tuple[float, Complement]:
    """Return a bound on the eigenvalues of the smaller Gram matrix outside of a span of vectors.

    It comes from a block Krylov space with random starts (`lucidae.certificates.sketch`), which
    is extended until the bound is at most `level`, or until further steps cannot decide; or from a
    Cholesky factorisation (`is_below`).
    """
    size = min(A.shape)
    starts = drawn_after((min(STARTS, size - vectors.shape[1]), size), vectors)
    space = Complement(lambda rows: A.apply(rows.T).T, vectors, A.rounding, starts)
    space.bound = max(A.total, 0.0)
    space.extend_until(level)
    bound = space.bound
    if bound > level >= space.found and size**2 * max(A.shape) <= LARGEST_CHOLESKY:
        slack = 4 * gamma(size) * size * level + 8 * A.rounding
        if is_below(A.gram(), vectors, level + slack, 4 * A.rounding):
            bound = min(bound, level + slack)
    return bound, space


def is_below(matrix: Vector, vectors: Vector, level: float, error: float) -> bool:
    """Tell whether eigenvalues of G outside of the span of orthonormal columns are below a level.

    They are if level · I − PGP has a Cholesky factorisation, with the projection P onto the
    complement of the span (Rump 2006). G is known up to `error`.
    """
    images = matrix @ vectors
    inside = vectors.T @ images
    rest = images @ vectors.T + vectors @ images.T - vectors @ inside @ vectors.T - matrix
    rest.flat[:: len(matrix) + 1] += level
    return is_positive_definite(rest, error)
