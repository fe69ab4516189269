"""Measured values of a linear autoencoder, from its rows and its weights alone.

Nothing is taken from solvers, moments or the reading of data: a test reads the imports. The rows
(`Data`) are known in one of four ways, each with a bound `error` on what is not known of their
second moment Σ (m × m):

1. *triangle*: Σ = RᵀR, where R comes from a QR factorisation of the centred rows. Its singular
   values are the roots of the eigenvalues and have all digits. For small rows, and for rows in
   memory, or blocks that can be read again, if what follows does not decide.
2. *matrix*: a matrix that is claimed to be Σ, such as that of the solver, with the bound on its
   error that a `Sketch` of the rows gives. For up to 1024 features.
3. *Gram matrix*: of at most 1024 rows with more features, computed or tested by random products.
4. *products* of Σ with vectors, from the rows or a tested matrix, for more features.

From 1 and 2 all eigenpairs follow (`_of_all_axes`). From 3 and 4 the eigenpairs are enclosed by
residuals of the decoder's span and a bound on the eigenvalues outside of it (`_of_residuals`). Both
give the same record (`Leading`). Errors are those of `lucidae.certificates.bounds`.

`measure` divides all data by a power of two near their standard deviation first, so that nothing
over- or underflows, and judges the equivalent problem.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
import scipy.sparse

from lucidae.arrays import as_double, like, to_numpy
from lucidae.certificates.bounds import (
    TINY,
    Ball,
    enclose_eigenvalues,
    enclose_singular_values,
    gamma,
    is_positive_definite,
    triangle,
    turn,
)
from lucidae.certificates.complement import (
    STARTS,
    STEPS,
    Complement,
    drawn_after,
    orthonormal,
    start_share,
)
from lucidae.certificates.sketch import Sketch

__all__ = [
    "Data",
    "GivenRows",
    "Leading",
    "Leverage",
    "RereadRows",
    "WeightFigures",
    "measure",
    "norm",
]

Vector = np.ndarray[Any, Any]

DENSE_FEATURES = 1024
"""Largest number of features for which all eigenvalues are computed; otherwise they are bounded."""

FEW_ROWS = 1024
"""Largest number of rows, of more features, whose Gram matrix is decomposed."""

SMALL_ROWS = 2**17
"""Largest number of entries of rows (one mebibyte) that are factorised in any case."""

LARGEST_FACTOR = 2048
"""Largest number of rows or features, whichever is smaller, of rows that are factorised because
nothing else decides."""

LARGEST_CHOLESKY = 8192
"""The same for a Cholesky factorisation of their Gram matrix, which takes half a gibibyte."""

LARGEST_COPY = 2**25
"""Largest number of entries of rows that are copied for it: 256 mebibytes."""

BLOCK_ENTRIES = 2**19
"""Number of entries of rows that are centred and multiplied at a time: 4 mebibytes."""

SHORTEST = 1e-290
"""A decoder column of smaller entries counts as zero: its direction has lost digits."""

LARGE_MEAN = 100.0
"""Ratio of a squared mean to the variance up to which the mean is subtracted from products of the
rows instead of from the rows. This costs two of sixteen digits."""

IDENTIFIABLE = 100.0
"""A component is identifiable if its eigengap exceeds this multiple of the eigenvalues' error: its
principal axis is then known up to an angle of 1/100 (Davis & Kahan 1970)."""

SMALL_VARIANCE = 1e-4
"""Ratio of an eigenvalue to the largest one below which the rows themselves have more digits of its
axis than their second moment has."""

FAR, NEAR = 1e-3, 1e-4
"""Mean squared sines, the second times the number of latents, between which neither a right nor a
wrong subspace is known to be one."""

NEARLY = 1e-6
"""Difference of squared cosines below which either of two columns may be nearer to an axis."""

TIED = 1e-9
"""Relative difference of eigenvalues which no further Krylov steps are made to decide."""

PROVED_GAP = 300.0
"""Ratio of the gap, which a Cholesky factorisation proves, to the residuals of the span."""

LEVERAGE = 0.4
"""Share of a component, or of the total variance, from which on a row is named. In the tables of
scikit-learn the largest share is 0.35; a row that was multiplied by 500 has 0.7 of 100 000 rows."""

ZERO_GAIN = 1e-7
"""A latent without a component must have at most this effect on the reconstruction."""


# The rows ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Deviations:
    """Sums over deviations d = x − c of rows x with weights w: Σ w, Σ w d, Σ w d² and Σ w⟨v, d⟩d.

    The centre c need not be the mean, but is subtracted without loss of digits only if it is close
    to it. It is applied to a block of rows, or to the chunks of its columns: `codes` ⟨v, d⟩ are
    added over the chunks before `sums` is called for each of them, and the results are `joined`.
    """

    center: Vector  # (m,)
    vectors: Vector  # (q, m): one vector v in each row
    plain: bool = False  # whether the centre is small enough to be subtracted from the sums
    squared: bool = False  # whether Σ w d² is computed; otherwise it is 0

    def __call__(self, X: Any, _targets: Any, weights: Any) -> tuple[Any, ...]:
        """Return the sums over a block of rows with all columns."""
        rows, left = self._parts(X)
        return self._sums(rows, left, self._codes(rows, left), weights)

    def columns(self, part: slice) -> Deviations:
        """Return the same function of the columns `part`."""
        return replace(self, center=self.center[part], vectors=self.vectors[:, part])

    def codes(self, X: Any) -> Vector:
        """Return ⟨v, d⟩ for each row and each vector v, (n, q)."""
        return self._codes(*self._parts(X))

    def _codes(self, rows: Any, left: Vector) -> Vector:
        V = self.vectors if scipy.sparse.issparse(rows) else like(self.vectors, rows)
        return np.asarray(to_numpy(rows @ V.T) - self.vectors @ left)

    def sums(self, X: Any, codes: Vector, weights: Any) -> tuple[Any, ...]:
        """Return the four sums, of the columns in X."""
        return self._sums(*self._parts(X), codes, weights)

    def _sums(self, rows: Any, left: Vector, codes: Vector, weights: Any) -> tuple[Any, ...]:
        w = np.ones(rows.shape[0]) if weights is None else to_numpy(weights).astype(float)
        both = np.vstack([codes.T * w, w])
        squares = 0.0 * left
        if scipy.sparse.issparse(rows):
            found = np.asarray((rows.T @ both.T).T)
            if self.squared:
                squares = np.asarray(rows.multiply(rows).T @ w).ravel()
        else:
            found = to_numpy(like(both, rows) @ rows)
            if self.squared:
                squares = to_numpy(like(w, rows) @ (rows * rows))
        # d = r − l for the part l of the centre that was not subtracted from the rows r.
        squares = squares - 2 * left * found[-1] + float(w.sum()) * left**2
        found = found - np.outer(both.sum(axis=1), left)
        return float(w.sum()), found[-1], squares, found[:-1]

    def _parts(self, X: Any) -> tuple[Any, Vector]:
        """Return rows r and a vector l with d = r − l.

        Of sparse rows, only columns without zeros are centred, which adds no entries. Others have
        a variance of at least the share of their zeros times the squared mean.
        """
        if not scipy.sparse.issparse(X):
            rows = as_double(X)
            if self.plain:
                return rows, self.center
            return rows - like(self.center, rows), 0.0 * self.center
        rows = _canonical(X)
        full = np.bincount(rows.indices, minlength=rows.shape[1]) == rows.shape[0]
        if full.any():
            rows = rows.copy()
            rows.data -= np.where(full, self.center, 0.0)[rows.indices]
        return rows, np.where(full, 0.0, self.center)

    @staticmethod
    def merge(one: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the sums over two sets of rows together."""
        return tuple(a + b for a, b in zip(one, other, strict=True))

    merge_into = merge

    @staticmethod
    def joined(parts: list[tuple[Any, ...]]) -> tuple[Any, ...]:
        """Return the sums of all columns, from those of chunks of columns."""
        return parts[0][0], *(np.concatenate([p[i] for p in parts], axis=-1) for i in (1, 2, 3))


def _canonical(X: Any) -> Any:
    """Return sparse rows in float64 without duplicate entries; X itself if it is so."""
    rows = X.tocsr().astype(np.float64, copy=False)
    if not rows.has_canonical_format:
        rows = rows.copy()
        rows.sum_duplicates()
    return rows


def block_triangle(mean: Vector, X: Any, _targets: Any, weights: Any) -> Vector:
    """Return the triangular factor of √w[1, x − c] for the rows x of a block; c is near the mean.

    The first column belongs to a feature that is 1 in every row: the other rows of the factor are
    orthogonal to it, and so belong to the centred rows.
    """
    X = X.toarray() if scipy.sparse.issparse(X) else X
    rows = to_numpy(as_double(X)) - mean
    roots = np.ones(len(rows)) if weights is None else np.sqrt(to_numpy(weights).astype(float))
    return triangle([roots[:, None] * np.column_stack([np.ones(len(rows)), rows])])[0]


def _triangle_of(rows: Vector) -> tuple[Vector, float]:
    """Return R with RᵀR = AᵀA for centred rows A, and a bound on its error; few rows are R."""
    n, m = rows.shape
    if n < m:
        return rows, gamma(2) * norm(rows)
    step = max(4 * m, BLOCK_ENTRIES // m)
    found, error = triangle(rows[start : start + step] for start in range(0, n, step))
    return found, error + gamma(2) * norm(found)


def stacked_triangle(one: Vector, other: Vector) -> Vector:
    """Return the triangular factor of two sets of rows together, from those of each."""
    return triangle([one, other])[0]


@dataclass(frozen=True)
class GivenRows:
    """Rows in memory (dense of any library, or sparse) with their weights."""

    X: Any
    weights: Any = None
    # (n, n): a matrix that is claimed to be the Gram matrix of the centred and weighted rows
    gram: Any = None

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and of features."""
        return int(self.X.shape[0]), int(self.X.shape[1])

    @cached_property
    def shares(self) -> Vector:
        """The weights of the rows divided by their sum."""
        n = self.shape[0]
        w = np.ones(n) if self.weights is None else to_numpy(self.weights).astype(float)
        return np.asarray(w / w.sum())

    @cached_property
    def _sparse(self) -> Any:
        """The rows as they are multiplied, if they are sparse: converted once; otherwise None."""
        return _canonical(self.X) if scipy.sparse.issparse(self.X) else None

    def total(self, leaf: Deviations) -> tuple[Any, ...]:
        """Return the sums over all rows."""
        if self._sparse is not None:
            return leaf(self._sparse, None, self.weights)
        n, m = self.shape
        step = n if leaf.plain and not leaf.squared else max(1, BLOCK_ENTRIES // m)
        found: tuple[Any, ...] | None = None
        for start in range(0, n, step):
            part = slice(start, min(start + step, n))
            w = None if self.weights is None else self.weights[part]
            sums = leaf(self.X[part, :], None, w)
            found = sums if found is None else leaf.merge(found, sums)
        assert found is not None, "data have at least one row"
        return found

    def first(self) -> Vector:
        """Return the first row of positive weight."""
        at = int(np.argmax(self.shares > 0.0))
        row = self.X[at : at + 1] if scipy.sparse.issparse(self.X) else self.X[at : at + 1, :]
        return np.asarray(self._dense(row)[0])

    def centred(self, unit: float) -> tuple[Vector, Ball]:
        """Return the rows minus their mean, each times the root of its share and over `unit`.

        The second result is the mean. The rows are shifted by the first of them, so that equal rows
        become zeros, and a second mean corrects the rounding error of the first.
        """
        shares, mean = self.shares, self.first()
        rows = self._dense(self.X) - mean
        for _ in range(2):
            rest = shares @ rows
            rows -= rest
            mean = mean + rest
        rows *= np.sqrt(shares)[:, None] / unit
        spread = unit * np.sqrt(np.einsum("ij,ij->j", rows, rows))
        return rows, Ball(mean, gamma(len(rows)) * spread + gamma(0) * np.abs(mean))

    def factor(self, _mean: Vector, unit: float) -> tuple[Vector, float]:
        """Return R with RᵀR = Σ/unit², and a bound on the error of its singular values."""
        return _triangle_of(self.centred(unit)[0])

    @property
    def decomposable(self) -> bool:
        """Whether a QR and a singular value decomposition take an acceptable time."""
        return min(self.shape) <= LARGEST_FACTOR and math.prod(self.shape) <= LARGEST_COPY

    @staticmethod
    def _dense(X: Any) -> Vector:
        return np.asarray(to_numpy(as_double(X.toarray() if scipy.sparse.issparse(X) else X)))


@dataclass(frozen=True)
class RereadRows:
    """Rows that are read in blocks, several times.

    `sums` makes one pass over the rows for a `Deviations`, and `folded` joins a function of each
    block by another one.
    """

    sums: Callable[[Any], tuple[Any, ...]]
    folded: Callable[[Any, Any], Any]
    n_features: int

    def total(self, leaf: Deviations) -> tuple[Any, ...]:
        """Return the sums over all rows, in one pass."""
        return self.sums(leaf)

    def first(self) -> Vector:
        """Return the first centre."""
        return np.zeros(self.n_features)

    def factor(self, mean: Vector, unit: float) -> tuple[Vector, float]:
        """Return R with RᵀR = Σ/unit², and a bound on the error of its singular values."""
        found = self.folded(_CenteredTriangle(mean), stacked_triangle)
        factor = found[1:, 1:] / abs(found[0, 0]) / unit
        return factor, gamma(4096 + 64 * len(factor)) * float(np.linalg.norm(factor))

    @property
    def decomposable(self) -> bool:
        """Whether a QR and a singular value decomposition take an acceptable time."""
        return self.n_features <= LARGEST_FACTOR


@dataclass(frozen=True)
class _CenteredTriangle:
    mean: Vector

    def __call__(self, X: Any, targets: Any, weights: Any) -> Vector:
        return block_triangle(self.mean, X, targets, weights)


class Leverage(NamedTuple):
    """Rows that carry more than their share of a component or of the total variance."""

    largest: float  # largest share of one row
    rows: Vector  # numbers, from 0, of the rows whose share exceeds the limit, largest first
    shares: Vector  # these shares
    components: Vector  # the component of each, from 0; −1 for the total variance


@dataclass(frozen=True)
class Data:
    """The second moment Σ of rows, as far as it is known, and a bound on what is not."""

    mean: Ball  # (m,)
    trace: float  # total variance, the sum of all eigenvalues of Σ
    variances: Vector  # (m,): the diagonal of Σ
    product: Callable[[Vector], Vector]  # products of row vectors with Σ
    # bound on the Frobenius norm of the difference of Σ to the matrix that products, matrix and
    # factor belong to; for rows it is the rounding error
    error: float
    weight: float | None = None  # sum of the weights of the rows; None if Σ is not a covariance
    matrix: Vector | None = None  # (m, m): Σ itself
    # R with RᵀR = Σ, and a bound on the error of its singular values
    factor: tuple[Vector, float] | None = None
    rows: GivenRows | RereadRows | None = None  # for what the second moment does not decide
    # bound on ‖C′ − Σ‖ for the moment C′ of the solver, divided by the trace, from a sketch
    moment: Ball | None = None
    peaks: Vector | None = (
        None  # (2, p): rows farthest from the mean, and their shares of the trace
    )
    # where they come from: "rows"; "given", a moment that is taken as the data; or "lost", a moment
    # whose rows are not known, so that nothing tests it
    origin: str = "rows"

    @property
    def n_features(self) -> int:
        """Number m of features."""
        return len(self.variances)

    @property
    def rounding(self) -> float:
        """Total variance that equal rows seem to have because of rounding errors of the mean."""
        size = gamma(0) * norm(self.mean.value)
        return size * size

    @property
    def varies(self) -> bool:
        """Whether the rows are not all equal."""
        return self.trace > self.rounding

    @classmethod
    def of_rows(cls, rows: GivenRows | RereadRows, center: Vector | None = None) -> Data:
        """Return data of which products with Σ are computed from the rows.

        The centre, such as the mean of the model, need not be right.
        """
        nothing = np.zeros((0, len(rows.first())))
        center = rows.first() if center is None else center
        for _ in range(3):
            with np.errstate(over="ignore", invalid="ignore"):
                weight, rest, squares, _ = rows.total(Deviations(center, nothing, squared=True))
                rest = rest / weight
                variances = np.maximum(squares / weight - rest**2, 0.0)
            near = (rest**2 <= LARGE_MEAN * variances) | (np.abs(rest) <= gamma(0) * np.abs(center))
            if bool(np.all(near)) or not np.all(np.isfinite(rest)):
                break
            center = center + rest
        trace, mean = float(np.sum(variances)), center + rest
        if not math.isfinite(trace * weight):
            raise OverflowError
        plain = float(np.sum((mean / math.sqrt(max(trace, TINY))) ** 2)) <= LARGE_MEAN
        plain = plain and isinstance(rows, GivenRows) and str(rows.X.dtype).endswith("float64")

        def product(vectors: Vector) -> Vector:
            found = rows.total(Deviations(mean, vectors, plain))
            offset = found[1] / found[0]
            return np.asarray(found[3] / found[0] - np.outer(vectors @ offset, offset))

        m = len(mean)
        spread = np.sqrt(variances + (mean - center) ** 2)
        error = gamma(BLOCK_ENTRIES // m if m < BLOCK_ENTRIES else 1) * spread
        return cls(
            Ball(mean, error + gamma(0) * np.abs(mean)),
            trace,
            variances,
            product,
            gamma(m) * trace,
            weight,
            rows=rows,
        )

    @classmethod
    def of_factor(cls, rows: GivenRows) -> Data:
        """Return data of rows in memory with their triangular factor, which has all digits."""
        with np.errstate(over="ignore", invalid="ignore"):
            centred, mean = rows.centred(1.0)
            factor, error = _triangle_of(centred)
        n, given = rows.shape[0], rows.weights
        weight = float(n) if given is None else float(np.sum(to_numpy(given)))
        return cls._with_factor(mean, weight, factor, error, rows)

    @classmethod
    def _with_factor(
        cls, mean: Ball, weight: float | None, factor: Vector, error: float, rows: Any
    ) -> Data:
        m = factor.shape[1]
        with np.errstate(over="ignore", invalid="ignore"):
            variances = np.einsum("ij,ij->j", factor, factor)
            trace = float(np.sum(variances))
        if not math.isfinite(trace * (weight or 1.0)):
            raise OverflowError
        matrix = factor.T @ factor if m <= DENSE_FEATURES else None
        known = error * (2 * math.sqrt(trace) + error) + gamma(len(factor)) * trace
        product = (
            (lambda vectors: (vectors @ factor.T) @ factor)
            if matrix is None
            else (lambda vectors: vectors @ matrix)
        )
        return cls(
            mean, trace, variances, product, known, weight, matrix, (factor, error), rows=rows
        )

    @classmethod
    def of_moment(
        cls,
        mean: Any,
        covariance: Any,
        weight: float | None,
        sketch: Sketch | None = None,
        rows: GivenRows | RereadRows | None = None,
        origin: str = "rows",
    ) -> Data:
        """Return data of a mean and a covariance, whose errors the sketch of the rows bounds."""
        matrix, mean = to_numpy(covariance), to_numpy(mean)
        m, own = len(matrix), np.diag(matrix)
        trace = float(np.sum(own))
        rounding = gamma(m) * max(trace, 0.0)
        dense = m <= DENSE_FEATURES
        found = cls(
            Ball(mean, gamma(0) * np.abs(mean)),
            trace,
            own,
            lambda vectors: vectors @ matrix,
            rounding,
            weight,
            matrix if dense else None,
            rows=rows,
            origin=origin if sketch is None else "rows",
        )
        if sketch is None:
            return found
        apart, error = sketch.compare(matrix), sketch.moment_error(matrix)
        # The error of each mean is relative to the deviation of its own feature.
        offset = sketch.sums / sketch.weight
        spread = np.sqrt(np.maximum(own, 0.0) + min(error, np.finfo(float).max) + offset**2)
        known = gamma(sketch.depth) * spread + gamma(0) * np.abs(sketch.mean)
        energy = max(sketch.size - sketch.weight * float(offset @ offset), TINY)
        return replace(
            found,
            mean=Ball(sketch.mean, known),
            error=rounding + error,
            weight=sketch.weight,
            moment=Ball(apart.value / max(trace, TINY), apart.error / max(trace, TINY)),
            peaks=np.stack([sketch.peaks[0], sketch.peaks[1] / energy]),
        )

    def beside_moment(self, covariance: Any) -> Data:
        """Return the same data, by which the covariance of a solver is tested as well."""
        if self.matrix is None:
            return self
        apart, trace = norm(to_numpy(covariance) - self.matrix), max(self.trace, TINY)
        return replace(self, moment=Ball(apart / trace, self.error / trace))

    @classmethod
    def of_model(cls, mean: Vector, loadings: Vector, noise: float, weight: float) -> Data:
        """Return the covariance WWᵀ + γI of a Gaussian model as if it were that of data."""
        m = len(mean)
        variances = np.sum(loadings**2, axis=1) + noise
        trace = float(np.sum(variances))

        def product(vectors: Vector) -> Vector:
            return np.asarray((vectors @ loadings) @ loadings.T + noise * vectors)

        matrix = loadings @ loadings.T + noise * np.eye(m) if m <= DENSE_FEATURES else None
        center = Ball(mean, gamma(0) * np.abs(mean))
        known = gamma(m) * trace
        return cls(center, trace, variances, product, known, weight, matrix, origin="given")

    def about_zero(self) -> Data:
        """Return the second moment about zero, Σ + μμᵀ, of rows that are not centred."""
        mean = self.mean.value
        with np.errstate(over="ignore"):
            trace = self.trace + float(mean @ mean)
        if not math.isfinite(trace):
            raise OverflowError
        matrix = None if self.matrix is None else self.matrix + np.outer(mean, mean)
        error = self.error + 2 * norm(mean) * norm(self.mean.error) + gamma(0) * trace

        def product(vectors: Vector) -> Vector:
            return np.asarray(self.product(vectors) + np.outer(vectors @ mean, mean))

        return replace(
            self,
            mean=Ball(0.0 * mean, 0.0 * mean),
            trace=trace,
            variances=self.variances + mean**2,
            product=product,
            error=error,
            weight=None,
            matrix=matrix,
            factor=None,
            rows=None,
        )

    def in_units(self, unit: float) -> Data:
        """Return the data divided by `unit`."""
        square = unit * unit
        factor = self.factor
        return replace(
            self,
            mean=Ball(self.mean.value / unit, self.mean.error / unit),
            trace=self.trace / square,
            variances=self.variances / square,
            product=lambda vectors: self.product(vectors) / square,
            error=self.error / square,
            matrix=None if self.matrix is None else self.matrix / square,
            factor=None if factor is None else (factor[0] / unit, factor[1] / unit),
        )

    def remembering(self) -> Data:
        """Return the same data, whose products reuse those of earlier vectors.

        A certificate needs the products of Σ with decoder, encoder and components, which have the
        same few directions: one pass over the rows serves for all of them.
        """
        if self.matrix is not None:
            return self
        return replace(self, product=_KnownProducts(self.product, self.n_features))

    def refactored(self, unit: float) -> Data | None:
        """Return the data with the triangular factor of their rows; None if it is not affordable.

        The data were divided by `unit`.
        """
        if self.factor is not None or self.rows is None or not self.rows.decomposable:
            return None
        factor, error = self.rows.factor(self.mean.value * unit, unit)
        found = self._with_factor(self.mean, self.weight, factor, error, self.rows)
        return replace(found, moment=self.moment, peaks=self.peaks)


class _KnownProducts:
    """Products of vectors with Σ, which are computed for new directions only."""

    def __init__(self, product: Callable[[Vector], Vector], m: int) -> None:
        self.product = product
        self.basis = self.images = np.empty((0, m))

    def __call__(self, vectors: Vector) -> Vector:
        lengths = _lengths(vectors)
        units = vectors / np.where(lengths > 0.0, lengths, 1.0)[:, None]
        new = self._outside(units)
        if np.any(new):
            fresh = orthonormal(units[new], (self.basis,))
            self.basis = np.concatenate([self.basis, fresh])
            self.images = np.concatenate([self.images, self.product(fresh)])
            new = self._outside(units)
        images = (units @ self.basis.T) @ self.images
        if np.any(new):  # nearly equal vectors, of which one direction was lost
            images[new] = self.product(units[new])
        return np.asarray(lengths[:, None] * images)

    def _outside(self, units: Vector) -> Vector:
        """Return which unit vectors are not in the span of the basis, up to rounding errors."""
        return _lengths(units - (units @ self.basis.T) @ self.basis) > gamma(units.shape[1]) / 2


# Eigenvalues and distances to the principal axes -------------------------------------------------


@dataclass(frozen=True)
class Leading:
    """Leading eigenvalues of Σ, and the distances of the decoder's columns to the principal axes.

    The decoder has k columns. Axes and components are counted from 0.
    """

    # (q,): leading eigenvalues, descending: all m of them if `complete`, otherwise k + 1
    values: Ball
    outside: float  # upper bound on the eigenvalues outside of the principal subspace
    subspace: Ball  # mean squared sine of the angles between decoder and principal subspace
    misalignments: Ball  # (k,): smallest squared sine of the angle of each axis to a column
    complete: bool  # whether all eigenpairs were computed; otherwise they are enclosed
    source: str = "eigenvalues"  # how they were found: eigenvalues, rows, Krylov, Gram or Cholesky
    axes: Vector | None = None  # (m, k): the principal axes as columns, if `complete`
    # whether the rows may determine a component of small variance that Σ does not, but are unknown
    hidden: bool = False
    unaligned: float = 0.0  # if not `complete`, a lower bound on the mean of all misalignments

    def steps(self, k: int) -> tuple[Vector, Vector]:
        """Return the differences of the first k eigenvalues to the next, and what resolves them."""
        values = self.values.value[:k]
        apart = values - np.append(values[1:], self.outside)
        return apart, np.maximum(IDENTIFIABLE * self.values.error[:k], TINY)

    def unidentifiable(self, k: int) -> Vector:
        """Return the components whose eigenvalue is too close to the one before or after it."""
        apart, needed = self.steps(k)
        resolved = apart > needed
        return np.flatnonzero(~(resolved & np.append(True, resolved[:-1])))

    def determined(self, k: int) -> bool:
        """Tell whether rounding errors leave the principal subspace determined."""
        apart, needed = self.steps(k)
        return bool(apart[-1] > needed[-1])

    def alignment(self, chosen: Vector) -> Ball:
        """Return the mean misalignment of the chosen axes."""
        found = Ball(self.misalignments.value[chosen], self.misalignments.error[chosen])
        mean, error = float(np.mean(found.value)), float(np.mean(found.error))
        high = mean + error
        return Ball(mean, error) if self.complete else Ball.between(min(self.unaligned, high), high)

    def times(self, factor: float) -> Leading:
        """Return the same for Σ multiplied by `factor`."""
        values = Ball(factor * self.values.value, factor * self.values.error)
        return replace(self, values=values, outside=factor * self.outside)


def find_leading(data: Data, atoms: Vector, unit: float) -> tuple[Data, Leading]:
    """Return eigenvalues and distances for a decoder, and the data with all digits that it took.

    `data` were divided by `unit`, and the rows of `atoms` are the columns of the decoder.
    """
    k = len(atoms)
    if data.factor is not None:
        return data, _of_factor(data, atoms)
    if data.matrix is not None:
        found = _of_all_axes(atoms, *_eigenvalues(data), roots=False)
    else:
        finite, zero = bool(np.all(np.isfinite(atoms))), not np.any(np.abs(atoms) > SHORTEST)
        if not finite or zero or not data.varies:
            return data, _unknown(k, data, 1.0 if finite else math.nan)
        few = isinstance(data.rows, GivenRows) and _is_few(data.rows)
        found = (_few_rows if few else _krylov)(data, atoms, unit)
    # 1. Components of small variance: the rows have more digits than their second moment.
    lost = found.unidentifiable(k)
    if data.rows is None and data.weight is not None:
        lost = lost[lost + 2 <= data.weight]  # centred rows have a rank below their number
    small = bool(np.any(found.values.value[lost] < SMALL_VARIANCE * found.values.value[0]))
    # 2. Bounds that decide neither that the subspace is right nor that it is wrong.
    open_ended = not found.complete and found.subspace.low < FAR and found.subspace.high > NEAR / k
    if not small and not open_ended:
        return data, found
    if data.rows is None:
        return data, replace(found, hidden=small and found.complete)
    if open_ended and not small and min(getattr(data.rows, "shape", (0,))) > DENSE_FEATURES:
        proved = _cholesky(data, atoms, unit)
        return data, (proved or found)
    factored = data.refactored(unit)
    if factored is None:
        return data, found
    other = _of_factor(factored, atoms)
    better = other.subspace.error <= found.subspace.error
    return (factored, other) if better else (data, found)


def _eigenvalues(data: Data) -> tuple[Vector, Vector, Vector]:
    found = enclose_eigenvalues(np.asarray(data.matrix), data.error)
    assert found.axes is not None
    values = np.maximum(found.values, 0.0)
    return values, found.axes, np.full(len(values), found.error)


def _of_factor(data: Data, atoms: Vector) -> Leading:
    assert data.factor is not None, "the caller has tested it"
    factor, error = data.factor
    k, m = atoms.shape
    short = min(m, k + 1) - len(factor)
    if short > 0:  # zeros, of which axes are needed as well
        factor = np.vstack([factor, np.zeros((short, m))])
    found = enclose_singular_values(factor, error)
    assert found.axes is not None
    values = np.append(found.values, np.zeros(m - len(found.values)))
    leading = _of_all_axes(atoms, values, found.axes, np.full(m, found.error), roots=True)
    return replace(leading, source="rows")


def _of_all_axes(
    atoms: Vector, values: Vector, axes: Vector, errors: Vector, *, roots: bool
) -> Leading:
    """Return the distances of a decoder to axes that belong to eigenvalues, or to their roots.

    An error turns an axis by at most the error divided by the distance of its value to the others,
    and the span of all by the error divided by the last distance (Davis & Kahan 1970 for
    eigenvalues, Wedin 1972 for singular values).
    """
    k, m = atoms.shape
    axes, error = axes[:, :k], float(errors[0])
    outside = float(values[k]) if m > k else 0.0
    gaps = values[:k] - np.append(values[1:k], outside)
    neighbours = np.minimum(gaps, np.append(math.inf, gaps[:-1]))
    span, basis_error = _column_space(atoms)
    # 1 − tr(UUᵀQQᵀ)/k as the mean of squared sines, which has no cancellation near 0.
    missing = axes - span @ (span.T @ axes)
    distance = float(np.sum(missing * missing)) / k
    turns = np.array([turn(error, float(gap)) for gap in neighbours]) + gamma(m)
    known = values
    if roots:
        known, errors = values**2, errors * (2 * values + errors)
        outside = outside**2
    return Leading(
        Ball(known, errors),
        outside,
        _squared_sine(distance, turn(error, float(gaps[-1])) + basis_error),
        _squared_sine(_misalignments(atoms, axes), turns),
        complete=True,
        axes=axes,
    )


def _squared_sine(square: Any, turned: Any) -> Ball:
    """Return the square of a sine with the error that the error of its angle causes."""
    return Ball(square, 2 * np.sqrt(square) * turned + turned**2)


class _Span(NamedTuple):
    """Orthonormal basis of a decoder's span in which Σ is diagonal, and the residual outside."""

    basis: Vector  # (m, r)
    error: float  # bound on the angle by which rounding errors turned the span
    values: Vector  # (r,): the Ritz values θ, descending
    images: Vector  # (r, m): products of the basis with Σ
    residual: Vector  # (r, m): images − θ times basis
    size: float  # bound on the norm of the residual

    @classmethod
    def of(cls, data: Data, basis: Vector, error: float, images: Vector) -> _Span:
        inner = images @ basis
        values, turned = np.linalg.eigh((inner + inner.T) / 2)
        values, turned = values[::-1], turned[:, ::-1]
        basis, images = basis @ turned, turned.T @ images
        residual = images - values[:, None] * basis.T
        size = float(np.linalg.norm(residual)) + data.error
        return cls(basis, error, values, images, residual, size)


def _krylov(data: Data, atoms: Vector, _unit: float) -> Leading:
    """Enclose the eigenvalues by a bound on those outside of the span from a block Krylov space."""
    k, m = atoms.shape
    basis, basis_error = _column_space(atoms)
    # Starts that depend on the data: nobody can choose data that are orthogonal to them.
    seen = data.variances, data.mean.value, basis
    starts = drawn_after((min(STARTS, m - basis.shape[1]), m), *seen)
    rest = Complement(data.product, basis, data.error, starts)
    # One pass over the rows serves for the decoder's span and for the first Krylov step.
    images = data.product(np.concatenate([basis.T, rest.block]))
    span = _Span.of(data, basis, basis_error, images[: basis.shape[1]])
    if len(rest.block):
        rest.add(images[basis.shape[1] :])
    # No eigenvalue outside of the span exceeds the trace outside of the span.
    rest.bound = max(data.trace - float(np.sum(span.values)), 0.0) + 4 * data.error
    last, before = float(span.values[-1]), 0.0
    for steps in STEPS:
        # More steps help as long as the bound on the complement decides, and not its Ritz value,
        # and if the decoder misses a larger eigenvalue, which they determine more accurately.
        gap, best = last - rest.bound, last - rest.found
        tied = abs(best) <= TIED * last
        decided = span.size < FAR * gap or (gap > best / 2 > 0.0 and rest.found > 0.0)
        # The Ritz value may still grow above the decoder's.
        hopeless = best > rest.found - before and rest.final_slack() > best
        before = rest.found
        if tied or decided or hopeless or not rest.extend(steps):
            break
    # Residuals that are nearly zero do not raise the Ritz values of the span.
    tiny = span.size**2 <= data.error * float(span.values[0])
    ritz = rest.ritz(span.basis.T, span.images, span.residual[:0] if tiny else span.residual)
    lower = np.append(ritz, np.zeros(k))[:k] - data.error
    return _of_residuals(data, atoms, span, rest.bound, rest.found, lower, "Krylov")


def _is_few(rows: GivenRows) -> bool:
    dense = not scipy.sparse.issparse(rows.X) and isinstance(rows.X, np.ndarray)
    return dense and rows.shape[0] <= FEW_ROWS


def _few_rows(data: Data, atoms: Vector, unit: float) -> Leading:
    """Enclose the eigenvalues by those of the Gram matrix of few rows.

    Let A be the centred and weighted rows. A matrix G that a solver claims to be AAᵀ is tested by
    its products with random vectors Ω: ‖GΩ − AAᵀΩ‖ bounds its error as in `Sketch`. If its
    eigenvalues λ satisfy θ_r > λ_{r+1} + ‖R‖, with the Ritz values θ and the residual R of the
    span, none outside of the span exceeds λ_{r+1} + ‖R‖: otherwise r + 1 eigenvalues of the block
    diagonal part of Σ would, against Weyl's inequality.
    """
    k, rows = len(atoms), data.rows
    assert isinstance(rows, GivenRows), "the caller has tested it"
    basis, basis_error = _column_space(atoms)
    roots, mean = np.sqrt(rows.shares)[:, None] / unit, data.mean.value * unit
    plain = float(data.mean.value @ data.mean.value) <= LARGE_MEAN * data.trace
    A = rows.X if plain else rows.centred(unit)[0]
    checks = drawn_after((4, rows.shape[0]), data.variances, data.mean.value, basis).T
    gram = None if rows.gram is None else to_numpy(rows.gram) / unit**2
    error = math.inf
    if gram is not None:
        if plain:  # the mean is subtracted from the products
            codes = checks * roots
            back = codes.T @ A - np.outer(codes.sum(axis=0), mean)
            again = (A @ back.T - back @ mean) * roots
        else:
            again = A @ (checks.T @ A).T
        error = float(np.linalg.norm(gram @ checks - again)) / start_share(checks.shape[1])
    if gram is None or not error <= TIED * data.trace:  # it is wrong, or none was given
        A, _ = rows.centred(unit)
        gram, error = A @ A.T, 0.0
    rounding = gamma(rows.shape[1]) * (1.0 + plain * LARGE_MEAN) * data.trace
    error += rounding
    known = enclose_eigenvalues(gram, error, vectors=False)
    values = np.append(np.maximum(known.values, 0.0), np.zeros(k + 1))[: k + 1]
    span = _Span.of(data, basis, basis_error, data.product(basis.T))
    found = float(np.append(known.values, 0.0)[min(len(span.values), len(known.values))])
    bound = max(found, 0.0) + known.error + span.size
    bound = bound if span.values[-1] > bound else math.inf
    bound = min(bound, max(data.trace - float(np.sum(span.values)), 0.0) + 4 * data.error)
    lower = values[:k] - known.error
    leading = _of_residuals(data, atoms, span, bound, found, lower, "Gram")
    return replace(leading, values=Ball(values, np.full(k + 1, known.error)))


def _cholesky(data: Data, atoms: Vector, unit: float) -> Leading | None:
    """Prove by a factorisation that no eigenvalue outside of the decoder's span is larger.

    For the rows B without their parts in the span, ℓI − BᵀB (or ℓI − BBᵀ) has a Cholesky
    factorisation only if no eigenvalue outside of the span reaches ℓ, which is chosen just below
    the last one inside. In contrast to a Krylov space this decides flat spectra as well.
    """
    rows, k = data.rows, len(atoms)
    if not isinstance(rows, GivenRows) or not isinstance(rows.X, np.ndarray | scipy.sparse.sparray):
        return None
    if min(rows.shape) > LARGEST_CHOLESKY or math.prod(rows.shape) > LARGEST_COPY:
        return None
    basis, basis_error = _column_space(atoms)
    span = _Span.of(data, basis, basis_error, data.product(basis.T))
    last = float(span.values[-1])
    level = last - max(PROVED_GAP * span.size, 1e-6 * last)
    if not 0.0 < level < last:
        return None
    A, _ = rows.centred(unit)
    A -= (A @ span.basis) @ span.basis.T
    gram = A.T @ A if rows.shape[1] <= rows.shape[0] else A @ A.T
    error = gamma(max(rows.shape)) * data.trace
    np.negative(gram, out=gram)
    gram[np.diag_indices_from(gram)] += level
    if not is_positive_definite(gram.T, error):  # LAPACK overwrites columns without a copy
        return None
    lower = np.append(span.values, np.zeros(k))[:k] - data.error
    return _of_residuals(data, atoms, span, level, level, lower, "Cholesky")


def _of_residuals(
    data: Data, atoms: Vector, span: _Span, bound: float, found: float, lower: Vector, source: str
) -> Leading:
    """Return enclosures from the residual of the decoder's span and a bound outside of it.

    `bound` and `found` are an upper bound on the largest eigenvalue outside of the span and an
    estimate of it, and `lower` are lower bounds on the k leading eigenvalues.
    """
    k, rank, rounding = len(atoms), len(span.values), data.error
    inside, size = span.values, span.size
    gap = float(inside[-1]) - bound
    # Davis–Kahan: ‖sin Θ‖_F ≤ ‖R‖_F/gap, and the subspace distance is ‖sin Θ‖_F²/k; each missing
    # direction adds 1/k, unless the data do not vary there. An eigenvalue lies at most `drift`
    # above its Ritz value (Li & Li 2005).
    missing = (k - rank) / k if bound > 8 * rounding else 0.0
    turned = size / gap + span.error if gap > 0 else math.inf
    high = min(1.0, missing + turned**2 / k)
    drift = (min(size, size**2 / gap) if gap > 0 else size) + rounding
    # Weyl: the i-th eigenvalue is at most the i-th of the block diagonal part plus ‖R‖.
    upper = np.sort(np.append(inside, np.full(k, min(bound, data.trace))))[::-1][:k] + drift
    top = max(float(upper[0]), TINY)
    # Against a decoder of full rank: tr(UᵀΣU) − tr(QᵀΣQ) ≤ σ₁²‖sin Θ‖_F².
    excess = float(np.sum(lower) - np.sum(inside)) - 4 * k * rounding if rank == k else 0.0
    low = missing + max(0.0, math.sqrt(max(0.0, excess) / top) - span.error) ** 2 / k
    outside = bound if data.n_features > rank else 0.0
    # Columns w of unit length with Rayleigh quotients ρ = wᵀΣw and residuals ‖Σw − ρw‖.
    units = _unit_rows(atoms)
    images = data.product(units)
    quotients = np.sum(images * units, axis=1)
    residuals = _lengths(images - quotients[:, None] * units) + rounding
    sines = _misalignment_bounds(quotients, residuals, np.append(inside, np.zeros(k - rank)), rank,
                                 drift, outside)  # fmt: skip
    away = np.clip(residuals / top, 0.0, 1.0) - 4 * rounding / top
    values = Ball.between(np.minimum(np.maximum(lower, 0.0), upper), upper)
    next_one = Ball.between(max(0.0, found - rounding), max(found, min(bound, data.trace)))
    return Leading(
        Ball(np.append(values.value, next_one.value), np.append(values.error, next_one.error)),
        outside,
        Ball.between(min(low, high), high),
        Ball.between(np.zeros(k), sines),
        complete=False,
        source=source,
        unaligned=float(np.sum(np.maximum(away, 0.0) ** 2)) / (2 * k),
    )


def _misalignment_bounds(
    quotients: Vector, residuals: Vector, values: Vector, rank: int, drift: float, outside: float
) -> Vector:
    """Return, for each principal axis, an upper bound on its squared sine to a decoder column.

    A column is assigned to the axis of the nearest Ritz value. The sine of their angle is at most
    its residual divided by the distance of its quotient to the intervals that contain the other
    eigenvalues (Davis & Kahan 1970). For an axis without a column the bound is 1.
    """
    found = np.ones(len(values))
    for quotient, size in zip(quotients, residuals, strict=True):
        own = int(np.argmin(np.abs(values[:rank] - quotient)))
        others = np.delete(values[:rank], own)
        away = np.maximum(others - quotient, quotient - others - drift)
        gap = float(min(np.min(away, initial=np.inf), quotient - outside))
        if gap > 0.0:
            found[own] = min(found[own], (float(size) / gap) ** 2)
    return found


def _unknown(k: int, data: Data, distance: float) -> Leading:
    """Return what is known of a decoder that is zero or not finite, or of rows without variance."""
    # Equal rows have no principal subspace to miss.
    subspace = Ball(distance) if data.varies else Ball.between(0.0, distance)
    values = Ball.between(np.zeros(k + 1), np.full(k + 1, max(data.trace, 0.0)))
    far = Ball(np.full(k, distance), np.zeros(k))
    return Leading(values, math.inf, subspace, far, complete=False)


def _column_space(atoms: Vector) -> tuple[Vector, float]:
    """Return an orthonormal basis (m × rank) of the decoder's span, and a bound on its angle error.

    The columns are scaled to unit length first. Directions whose singular value is then below m·ε
    are left out; the others are turned by at most m·ε divided by the smallest singular value.
    """
    m = atoms.shape[1]
    if not np.all(np.isfinite(atoms)):
        return np.full((m, 1), np.nan), math.nan
    units = _unit_rows(atoms)
    if not len(units):
        return np.zeros((m, 0)), gamma(m)
    # The eigenvectors of the Gram matrix would lose small directions.
    basis, factor = np.linalg.qr(units.T)
    left, sizes, _ = np.linalg.svd(factor)
    present = sizes > gamma(m)
    return np.asarray((basis @ left)[:, present]), gamma(m) / float(np.min(sizes[present]))


def _unit_rows(rows: Vector) -> Vector:
    """Return the rows scaled to unit length, without those that are zero."""
    peaks = np.max(np.abs(rows), axis=1, initial=0.0)
    rows = rows[~(peaks <= SHORTEST)] / peaks[~(peaks <= SHORTEST), None]
    return np.asarray(rows / np.sqrt(np.sum(rows * rows, axis=1))[:, None])


def _misalignments(atoms: Vector, axes: Vector) -> Vector:
    """Return, for each principal axis, its smallest squared sine to a decoder column."""
    if not np.all(np.isfinite(atoms)):
        return np.full(axes.shape[1], np.nan)
    units, found = _unit_rows(atoms), np.ones(axes.shape[1])
    if not len(units):
        return found
    # One minus a squared cosine has a rounding error of about ε, so it shows which columns may be
    # nearest; their sines are computed without cancellation.
    cosines = (units @ axes) ** 2
    near = cosines >= np.max(cosines, axis=0) - NEARLY
    for i, axis in enumerate(axes.T):
        rows = units[near[:, i]]
        away = rows - (rows @ axis)[:, None] * axis
        found[i] = np.min(np.sum(away * away, axis=1))
    return found


def norm(values: Vector) -> float:
    """Return the Frobenius norm; entries are scaled, so that no square overflows."""
    peak = float(np.max(np.abs(values), initial=0.0))
    return peak * float(np.linalg.norm(values / peak)) if 0.0 < peak < math.inf else peak


def _lengths(rows: Vector) -> Vector:
    """Return the Euclidean norm of each row; entries are scaled, so that no square overflows."""
    peaks = np.max(np.abs(rows), axis=1, initial=0.0)
    units = rows / np.where((peaks > 0.0) & np.isfinite(peaks), peaks, 1.0)[:, None]
    return np.asarray(peaks * np.sqrt(np.einsum("ij,ij->i", units, units)))


# The figures -------------------------------------------------------------------------------------


class Terms:
    """Products of weights with Σ, and the terms of the reconstruction loss, as balls."""

    def __init__(self, encoder: Vector, atoms: Vector, data: Data) -> None:
        k, both = len(encoder), np.concatenate([encoder, atoms])
        images = data.product(both)
        error = gamma(data.n_features) * data.trace * _lengths(both)[:, None]
        self.encoded = Ball(images[:k], np.broadcast_to(error[:k], images[:k].shape))
        self.decoded = Ball(images[k:], np.broadcast_to(error[k:], images[k:].shape))
        self.code_moment = self.encoded @ Ball(encoder.T)
        self.gram = Ball(atoms) @ Ball(atoms.T)
        self.cross = self.encoded * Ball(atoms)  # (k, m), whose entries are summed


class Losses(NamedTuple):
    """The loss of weights, its global minimum, and the number that divides their difference."""

    value: Ball | None  # None if it is not known, as the minimum
    minimum: Ball | None
    size: float

    @property
    def gap(self) -> Ball | None:
        """Loss minus minimum, divided by `size`."""
        if self.value is None or self.minimum is None:
            return None
        found = (self.value - self.minimum) / self.size
        return found if math.isfinite(self.value.value) else Ball(math.inf)


@dataclass(frozen=True)
class WeightFigures:
    """Measured values of given weights, from which the claims of a certificate follow.

    A value is None if it is not known, or if theory says nothing about it.
    """

    leading: Leading
    rise: Ball  # largest increase of the variance from one latent to the next, over the largest
    # norm of the update direction, divided by the norm of the weights and by the curvature
    stationarity: Ball | None
    losses: Losses
    balance: Ball  # ‖W₁W₁ᵀ − W₂ᵀW₂‖/‖W₂ᵀW₂‖ for the encoder W₁ and the decoder W₂
    # latents, from 0, that are zero at the optimum, and those of which it is not known
    zero_latents: Vector
    uncertain_latents: Vector
    # largest relative difference of fitted attributes to what weights and data imply, with the
    # name of the attribute
    attributes: tuple[str, float] | None
    leverage: Leverage | None
    data: Data  # in the units of the user
    # loss, minimum and the number that divides their difference, in the units of the user
    loss_terms: tuple[float | None, float | None, float]


def measure(
    objective: Any,
    rule: Any,
    weights: Any,
    data: Data,
    model: Any = None,
    running: bool = False,
) -> WeightFigures:
    """Measure how close weights are to the optimum for given data.

    `objective` and `rule` are the reference formulas (`lucidae.linear.references`) of the loss and
    of the update direction, and `model` has the fitted attributes, as arrays of NumPy.
    """
    k, m = weights.encoder.shape
    unit = 1.0
    if 0.0 < data.trace < math.inf and objective.independent and rule.independent:
        unit = float(2.0 ** round(math.log2(data.trace / m) / 2))
    scaled = data.remembering().in_units(unit)
    weights = weights.in_units(1.0 / unit)
    objective, rule = objective.in_units(unit), rule.in_units(unit)
    # A figure of weights that overflow is infinite, and its claim fails.
    with np.errstate(over="ignore", invalid="ignore"):
        scaled, leading = find_leading(scaled, weights.atoms, unit)
        terms = Terms(weights.encoder, weights.atoms, scaled)
        losses = objective.losses(weights, terms, scaled, leading)
        zero, uncertain = objective.zero_latents(leading.values)
        order = objective.latent_order(k)
        known = scaled.in_units(1.0 / unit)
        return WeightFigures(
            leading.times(unit * unit),
            _rise(order, weights, terms, scaled),
            _stationarity(rule, weights, terms, scaled, leading),
            losses,
            _imbalance(weights),
            zero,
            uncertain,
            None if model is None else check_attributes(model, weights, known, unit, running),
            find_leverage(known, weights.atoms),
            known,
            _in_unit(objective, losses, unit, m),
        )


def _in_unit(
    objective: Any, losses: Losses, unit: float, m: int
) -> tuple[float | None, float | None, float]:
    """Return loss, minimum and the number that divides their difference in the user's unit."""
    size = objective.loss_in_unit(losses.size, unit, 0)
    if losses.value is None or losses.minimum is None:
        return None, None, size
    known = (float(ball.value) for ball in (losses.value, losses.minimum))
    value, minimum = (objective.loss_in_unit(loss, unit, m) for loss in known)
    return value, minimum, size


def _rise(order: Vector, weights: Any, terms: Terms, data: Data) -> Ball:
    lengths = np.maximum(_lengths(weights.atoms), TINY)[:, None]
    variances = np.sum((terms.decoded.value / lengths) * (weights.atoms / lengths), axis=1)[order]
    top = max(float(np.max(variances)), TINY)
    rise = float(np.max(np.diff(variances), initial=-top))
    # Variances that differ by more than the error of Σ keep their order.
    unsure = max(rise + 2 * data.error, 0.0) - max(rise, 0.0)
    return _finite(Ball(max(rise, 0.0) / top, gamma(4 * data.n_features) + unsure / top))


def _imbalance(weights: Any) -> Ball:
    atoms, encoder = Ball(weights.atoms), Ball(weights.encoder)
    gram = atoms @ Ball(weights.atoms.T)
    apart, size = (encoder @ Ball(weights.encoder.T) - gram), norm(gram.value)
    error = norm(np.broadcast_to(apart.error, apart.value.shape))
    return _finite(Ball(norm(apart.value), error) / max(size, TINY))


def _stationarity(
    rule: Any, weights: Any, terms: Terms, data: Data, leading: Leading
) -> Ball | None:
    """Return the norm of the update direction, divided by the curvature and the weights' norm.

    A norm of the weights below 1e-8 is replaced by 1e-8. The result is None if the direction would
    consist of rounding errors.
    """
    sensitivity = rule.sensitivity(weights, data)
    if sensitivity is None:
        return None
    size = max(norm(np.array([norm(part) for part in weights])), 1e-8)
    parts = rule.direction(weights, terms, data)
    length = norm(np.array([norm(np.asarray(part.value)) for part in parts]))
    errors = (np.broadcast_to(part.error, np.shape(part.value)) for part in parts)
    error = norm(np.array([norm(part) for part in errors])) + sensitivity * data.error * size
    return _finite(Ball(length, error) / (max(rule.scale(leading, data), TINY) * size))


def _finite(figure: Ball) -> Ball:
    """Return the figure, with infinity in place of NaN."""
    return Ball(math.inf) if math.isnan(float(figure.value)) else figure


# Fitted attributes -------------------------------------------------------------------------------


def check_attributes(
    model: Any, weights: Any, data: Data, unit: float, running: bool
) -> tuple[str, float]:
    """Return the fitted attribute that differs most from what weights and data imply.

    Differences are relative, and those that the error of the data explains do not count. If the
    variances are running averages (`running`), no data reproduce them.
    """
    k = len(weights.encoder)
    shapes = {len(model.components), k, len(model.encoder), len(model.atoms)}
    if len(shapes) > 1:
        return "n_components_", math.inf
    weights = weights.in_units(unit)
    parts = (model.encoder, model.atoms, model.components, model.variances)
    if not all(np.all(np.isfinite(part)) for part in parts):
        return "components_", math.inf
    found = _compare_with_weights(model, weights)
    if not running:
        found |= _compare_with_data(model, data)
    worst = max(found, key=lambda name: found[name])
    return worst, found[worst]


def _compare_with_weights(model: Any, weights: Any) -> dict[str, float]:
    """Compare layers and components of a model with trained weights W₁ and W₂.

    The model has the latents sorted by variance, with fixed signs. This changes none of W₂W₁,
    W₁ᵀW₁ and W₂W₂ᵀ, so these products are compared, applied to random vectors.
    """
    encoder, atoms, components = model.encoder, model.atoms, model.components
    probe = np.random.default_rng(0).standard_normal((3, encoder.shape[1]))
    lengths = _lengths(atoms)
    nonzero = np.any(components != 0.0, axis=1)
    # A latent without a component must have no effect on the reconstruction.
    idle = bool(np.any(~nonzero & (lengths * _lengths(encoder) > ZERO_GAIN)))
    units = atoms[nonzero] / np.maximum(lengths, TINY)[nonzero, None]
    return {
        "encoder_": max(
            _apart(probe @ encoder.T @ atoms, probe @ weights.encoder.T @ weights.atoms),
            _apart(probe @ encoder.T @ encoder, probe @ weights.encoder.T @ weights.encoder),
        ),
        "decoder_": _apart(probe @ atoms.T @ atoms, probe @ weights.atoms.T @ weights.atoms),
        "components_": max(_apart(components[nonzero], units), float(idle)),
    }


def _compare_with_data(model: Any, data: Data) -> dict[str, float]:
    """Compare mean, weight and variances of a model with those of the data.

    The variances are unbiased: sums of squares divided by the total weight minus one.
    """
    encoder, components, basis = model.encoder, model.components, model.basis
    k, ratio = len(components), model.weight / max(model.weight - 1.0, gamma(0))
    images = data.product(np.concatenate([components, encoder, basis.T]))
    # What rounding errors of the mean give must stay below the accuracy that is demanded.
    total = max(data.trace + 1e9 * data.rounding, TINY)
    along = np.sum(images[:k] * components, axis=1)
    codes = np.sqrt(np.maximum(np.sum(images[k : 2 * k] * encoder, axis=1), 0.0) * ratio)
    inside = images[2 * k :] @ basis
    outside = data.n_features - basis.shape[1]
    level = ratio * max(0.0, data.trace - float(np.trace(inside))) / outside if outside else 0.0
    # The deviation of a code is compared where Σ has digits in the direction of its encoder row.
    rounding = (data.error + data.rounding) * ratio * np.sum(encoder**2, axis=1)
    whole = codes**2 > 1e10 * rounding
    weight = model.weight if data.weight is None else data.weight
    return {
        "explained_variance_": max(
            _apart(model.variances, along * ratio, total),
            float(np.max(np.diff(model.variances), initial=0.0)) / total,
        ),
        "whitened codes": _apart(model.code_deviations[whole], codes[whole]),
        "noise_variance_": max(
            _apart(model.inside, inside * ratio, total),
            abs(model.total_variance - data.trace * ratio) / total,
            abs(model.noise_variance - level) / total,
            _apart(basis.T @ basis, np.eye(basis.shape[1])),
        ),
        "n_samples_seen_": abs(model.weight - weight) / max(weight, TINY),
        "mean_": mean_difference(model.mean, data),
    }


def mean_difference(mean: Vector, data: Data, roundings: float = 0.0) -> float:
    """Return the largest difference of a mean to that of the data, in standard deviations.

    Each feature has its own deviation. Differences within the error of the mean of the data, and
    `roundings` times the mean, do not count.
    """
    # A solver adds the rows in another order: what is certain of one sum is granted to both.
    granted = 4 * data.mean.error + (roundings + gamma(0)) * np.abs(data.mean.value)
    excess = np.maximum(np.abs(mean - data.mean.value) - granted, 0.0)
    with np.errstate(over="ignore"):  # of a feature without variance
        return float(np.max(excess / np.sqrt(np.maximum(data.variances, TINY))))


def _apart(found: Vector, expected: Vector, size: float | None = None) -> float:
    """Return the largest difference of two arrays, divided by `size` or the largest entry."""
    size = max(float(np.max(np.abs(expected), initial=0.0)), TINY) if size is None else size
    return float(np.max(np.abs(found - expected), initial=0.0)) / size


# Influence of single rows ------------------------------------------------------------------------


def find_leverage(data: Data, atoms: Vector) -> Leverage | None:
    """Return the rows that carry a large share of a component or of the total variance.

    The share of a row x with the share p of all weights in a component of direction w is
    p⟨w, x − μ⟩² divided by the sum over all rows. If the rows are not known any more, the sketch
    has those farthest from the mean μ, whose share of the total variance is p‖x − μ‖²/tr Σ.
    """
    if not data.varies or (data.weight or 0.0) < 10.0:
        return None
    rows = data.rows
    if not isinstance(rows, GivenRows):
        if data.peaks is None or not data.peaks.shape[1]:
            return None
        numbers, shares = data.peaks
        table = np.minimum(shares, 1.0)[:, None]
    else:
        units = _unit_rows(atoms[np.all(np.isfinite(atoms), axis=1)])
        if not len(units):
            return None
        # Single precision suffices for float32 rows, because the shares are not judged.
        V = units if scipy.sparse.issparse(rows.X) else like(units, rows.X)
        table = (to_numpy(rows.X @ V.T) - units @ data.mean.value) ** 2 * rows.shares[:, None]
        sums = np.sum(table, axis=0)
        # One row may well make a component of less than the average variance.
        table = table / np.where(sums > data.trace / data.n_features, sums, math.inf)
        numbers = np.arange(len(table))
    best = np.argmax(table, axis=1)
    shares = table[np.arange(len(table)), best]
    order = np.argsort(-shares, kind="stable")
    order = order[shares[order] > LEVERAGE][:100]
    return Leverage(float(np.max(shares)), numbers[order].astype(int), shares[order],
                    best[order] if isinstance(rows, GivenRows) else best[order] - 1)  # fmt: skip
