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
3. *products* of Σ with vectors, from the rows or a tested matrix, for many features.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from typing import Any

import numpy as np
import scipy.sparse

from lucidae.arrays import as_double, like, to_numpy
from lucidae.arrays.threads import blas_threads, in_threads
from lucidae.certificates.bounds import TINY, Ball, gamma, triangle
from lucidae.certificates.sketch import Sketch, canonical, joined, row_squares

__all__ = [
    "OVERFLOW",
    "SMALL_ROWS",
    "Data",
    "GivenRows",
    "RereadRows",
    "norm",
]

Vector = np.ndarray[Any, Any]

# Largest number of entries of rows (one mebibyte) that are factorised in any case.
SMALL_ROWS = 2**17

# Largest number of rows or features, whichever is smaller, of rows that are factorised because
# nothing else decides.
LARGEST_FACTOR = 2048

# Largest number of entries of rows that are copied for it: 256 mebibytes.
LARGEST_COPY = 2**25

# Number of entries of rows that are centred and multiplied at a time: 4 mebibytes.
BLOCK_ENTRIES = 2**19

# Smallest number of stored entries of sparse rows that several threads multiply.
SHARED_ENTRIES = 2**22

# Number of rows that are so at least: the sums over few rows with many features take longer.
BLOCK_ROWS = 64

# Ratio of a squared mean to the variance up to which the mean is subtracted from products of the
# rows instead of from the rows. This costs two of sixteen digits.
LARGE_MEAN = 100.0

OVERFLOW = (
    "the squares of X overflow double precision. Give X divided by a constant, to both fit and "
    "certify."
)


def norm(values: Vector) -> float:
    """Return the Frobenius norm; entries are scaled, so that no square overflows."""
    peak = float(np.max(np.abs(values), initial=0.0))
    return peak * float(np.linalg.norm(values / peak)) if 0.0 < peak < math.inf else peak


# Sums over blocks of rows ------------------------------------------------------------------------


def _shares(weights: Any, n: int) -> Vector:
    """Return the weights of n rows, 1 each by default."""
    return np.ones(n) if weights is None else to_numpy(weights).astype(float)


def _centred(rows: Any, center: Vector, plain: bool = False) -> tuple[Any, Vector]:
    """Return rows r in double precision, and a vector l with x − center = r − l.

    Unless the centre is small (`plain`), rows are centred: of sparse rows only columns without
    zeros, which adds no entries. Others have a variance of at least the share of their zeros times
    the squared mean.
    """
    if not scipy.sparse.issparse(rows):
        rows = as_double(rows)
        return (rows, center) if plain else (rows - like(center, rows), 0.0 * center)
    rows = rows.tocsr().astype(np.float64, copy=not plain)
    if plain:
        return rows, center
    rows.sum_duplicates()
    full = np.bincount(rows.indices, minlength=rows.shape[1]) == rows.shape[0]
    rows.data -= np.where(full, center, 0.0)[rows.indices]
    return rows, np.where(full, 0.0, center)


@dataclass(frozen=True)
class Deviations:
    """Sums over deviations d = x − c of rows x with weights w: Σ w, Σ w d, Σ w d² and Σ w⟨v, d⟩d.

    The centre c need not be the mean, but is subtracted without loss of digits only if it is close
    to it.
    """

    center: Vector  # (m,)
    vectors: Vector  # (q, m): one vector v in each row; Σ w d² is computed without any, or is 0
    plain: bool = False  # whether the centre is so small that it is subtracted from the sums

    def __call__(self, X: Any, Y: Any, weights: Any) -> tuple[Any, ...]:
        """Return the sums over a block of rows."""
        rows, left = _centred(joined(X, Y), self.center, self.plain)
        w, sparse = _shares(weights, rows.shape[0]), scipy.sparse.issparse(rows)

        def total(factors: Vector, table: Any) -> Vector:
            return np.asarray(factors @ table) if sparse else to_numpy(like(factors, table) @ table)

        # The sums over r, from which those over d = r − l follow.
        V = self.vectors if sparse else like(self.vectors, rows)
        codes = np.asarray(to_numpy(rows @ V.T)) - self.vectors @ left
        # Of sparse rows, SciPy would copy the transpose of an array by rows.
        both = np.column_stack([codes * w[:, None], w]).T
        squares, weight = 0.0 * left, float(w.sum())
        found = total(both, rows)
        if not len(self.vectors):
            if sparse:
                rows.data **= 2  # of the copy that was centred
            squares = total(w, rows if sparse else rows * rows)
            squares = squares - 2 * left * found[-1] + weight * left**2
        if sparse or self.plain:
            found -= np.outer(both.sum(axis=1), left)
        return weight, found[-1], squares, found[:-1]

    @staticmethod
    def merge(one: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the sums over two sets of rows together."""
        return tuple(a + b for a, b in zip(one, other, strict=True))


@dataclass(frozen=True)
class CenteredTriangle:
    """Triangular factor of √w[1, (x − c)/unit] for the rows x of a block, and its error.

    The first column belongs to a feature that is 1 in every row: the other rows of the factor are
    orthogonal to it, and so belong to rows that are centred, whatever c is.
    """

    center: Vector
    unit: Any  # a number, or one for each column

    def __call__(self, X: Any, Y: Any, weights: Any) -> tuple[Vector, float]:
        X = joined(X, Y)
        X = X.toarray() if scipy.sparse.issparse(X) else X
        rows = (to_numpy(as_double(X)) - self.center) / self.unit
        rows = np.column_stack([np.ones(len(rows)), rows])
        return triangle(np.sqrt(_shares(weights, len(rows)))[:, None] * rows)

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
        weights = _shares(self.weights, self.shape[0])
        return np.asarray(weights / weights.sum())

    def total(self, leaf: Any, least: int = 1) -> Any:
        """Return the results of `leaf` for blocks of at least so many rows, joined by its merge."""
        (n, m), sparse = self.shape, scipy.sparse.issparse(self.X)
        if sparse and isinstance(leaf, Deviations):
            threads = blas_threads() if self.X.nnz >= SHARED_ENTRIES else 1
            return reduce(leaf.merge, in_threads(partial(self._part, leaf), n, threads))
        step = n if getattr(leaf, "plain", False) else max(least, BLOCK_ROWS, BLOCK_ENTRIES // m)
        starts = range(0, n, step)
        return reduce(leaf.merge, (self._part(leaf, at, min(at + step, n)) for at in starts))

    def _part(self, leaf: Any, first: int, last: int) -> Any:
        """Return the results of `leaf` for some of the rows."""
        part, whole = slice(first, last), last - first == self.shape[0]
        return leaf(*(t if whole or t is None else t[part] for t in (self.X, self.Y, self.weights)))

    def squared_distances(self, center: Vector) -> Vector:
        """Return ‖x − c‖² of each row, shape (n,)."""
        (n, m), X = self.shape, self.X
        if scipy.sparse.issparse(X):
            squares = row_squares(canonical(X).astype(np.float64, copy=False)) - 2.0 * (X @ center)
            return np.asarray(np.maximum(squares + center @ center, 0.0))
        step = max(1, BLOCK_ENTRIES // m)
        parts = (slice(start, min(start + step, n)) for start in range(0, n, step))
        blocks = (X[part, :] - like(center, X) for part in parts)
        return np.concatenate([row_squares(block) for block in blocks])


@dataclass(frozen=True)
class RereadRows:
    """Rows that are read in blocks, several times: `passes.total` makes one pass over them."""

    passes: Any
    n_features: int

    def total(self, leaf: Any, least: int = 1) -> Any:  # noqa: ARG002
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
    peaks: Vector | None = (
        None  # (2, p): rows farthest from the mean, and their shares of the trace
    )
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
        center = np.zeros(m) if center is None else center
        for _ in range(3):
            with np.errstate(over="ignore", invalid="ignore"):
                weight, rest, squares, _ = rows.total(Deviations(center, np.zeros((0, m))))
                rest = rest / weight
                variances = np.maximum(squares / weight - rest**2, 0.0)
                small = np.abs(rest) <= gamma(0) * np.abs(center)
                near = (rest**2 <= LARGE_MEAN * variances) | small
            if bool(np.all(near)) or not np.all(np.isfinite(rest)):
                break
            center = center + rest
        trace, mean = float(np.sum(variances)), center + rest
        if not math.isfinite(trace * weight):
            raise ValueError(OVERFLOW)
        plain = norm(mean) <= math.sqrt(LARGE_MEAN * trace)
        plain = plain and isinstance(rows, GivenRows) and str(rows.X.dtype).endswith("float64")

        def product(vectors: Vector) -> Vector:
            found = rows.total(Deviations(mean, vectors / unit, plain))
            offset = found[1] / found[0]
            images = found[3] / found[0] - np.outer(vectors / unit @ offset, offset)
            return np.asarray(images / unit)

        spread = gamma(max(BLOCK_ENTRIES // m, 1)) * np.sqrt(variances + rest**2)
        offset, variances = Ball(rest / unit, spread / unit), variances / unit / unit
        error = gamma(m) * float(np.sum(variances))
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
        m, own = len(matrix), np.diag(matrix)
        trace = float(np.sum(own))
        error, offset, moment, peaks = 0.0, Ball(0.0 * shift, 0.0 * shift), None, None
        if sketch is not None:
            apart, origin, weight = sketch.compare(matrix), "rows", sketch.weight
            error = apart.high if math.isfinite(apart.high) else math.inf
            moment = apart / max(trace, TINY)
            # The error of each mean is relative to the deviation of its own feature.
            shift, away, largest = sketch.shift, sketch.sums / sketch.weight, np.finfo(float).max
            spread = np.sqrt(np.maximum(own, 0.0) + min(error, largest) + away**2)
            offset = Ball(away, gamma(sketch.depth) * spread)
            peaks = sketch.shares
        return cls(
            shift,
            offset,
            own,
            lambda vectors: vectors @ matrix,
            error + gamma(m) * max(trace, 0.0),
            weight,
            matrix,
            rows=rows,
            moment=moment,
            peaks=peaks,
            origin=origin,
            unit=unit,
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
        found, error = self.rows.total(CenteredTriangle(shift * self.unit, size * self.unit), 4 * m)
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
