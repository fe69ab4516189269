"""The second moment of data in the form from which certificates are computed.

No code is shared with the solvers, so that a mistake in a solver is not repeated in its
certificate: mean, variances and products with the second moment are computed from the rows again,
in one pass for the mean and one for each block of vectors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse

from lucidae.arrays import as_double, diagonal, is_numpy, like, to_numpy
from lucidae.certificates.complement import digest_of, orthonormal
from lucidae.linear.probe import EPS, FEWEST_ROUNDINGS, Estimate, Probe
from lucidae.linear.verified_gram import FEW_ROWS, FewRows, gram_of
from lucidae.linear.verified_rows import RowsForValues
from lucidae.moments import SecondMoment
from lucidae.validation import check_rows

__all__ = ["Data", "KnownProducts", "data_of", "norm"]

Vector = np.ndarray[Any, Any]

DENSE_FEATURES = 1024
"""Largest number of features for which all eigenvalues are computed; otherwise they are bounded."""

BLOCK_ROWS = 2048
"""Largest number of rows that are centred and multiplied at a time."""

BLOCK_ENTRIES = 2**24
"""Largest number of entries of these rows: 128 mebibytes."""

SHIFT_ROWS = 64
"""Number of rows that are shifted and squared at a time, so that they stay in the cache."""

SHORTEST = 1e-290
"""A decoder column whose largest absolute entry is at most this counts as zero.

Its entries are so close to the smallest float64 numbers that its direction has lost digits."""

INDEPENDENT = 1e-3
"""Smallest singular value of unit rows, relative to the largest, of which products are remembered;
directions of smaller ones would enlarge the rounding errors of the products."""

LARGE_MEAN = 100.0
"""Ratio of the mean's squared length to the total variance above which rows are centred first.

Below it, products use the rows as they are, and the mean is subtracted from the result. The
rounding errors of this, about 100·ε times the total variance, are less than the m·ε times it that
are allowed."""


@dataclass(frozen=True, slots=True)
class Data:
    """The second moment Σ (m × m) of data, as a matrix if m is small, otherwise by its products."""

    mean: Vector  # (m,): mean of the rows
    trace: float  # total variance, the sum of all eigenvalues of Σ
    # function that returns the product of an array of shape (q, m) with Σ
    product: Callable[[Vector], Vector]
    variances: Vector  # (m,): variance of each feature, the diagonal of Σ
    matrix: Vector | None = None  # (m, m): σ itself, for at most `DENSE_FEATURES` features
    # difference of the stored moment to that of the rows, see `Probe.difference`
    difference: Estimate | None = None
    # number of rows, or the sum of their weights; None if Σ is not a covariance
    weight: float | None = None
    # A hash of all entries of the data, with which random starts are seeded
    fingerprint: bytes | None = None
    # function that returns the same as `product` and remembers its results, see `remembering`
    remembered: Callable[[Vector], Vector] | None = None
    # the rows themselves with their Gram matrix, if there are at most `FEW_ROWS`
    few_rows: FewRows | None = None
    # bound on the Frobenius norm of the error of Σ that products of rows in single precision cause,
    # see `SecondMoment.rounding`
    uncertainty: float = 0.0
    # the rows themselves, if they are known and not too large, for components that Σ does not
    # determine
    rows: RowsForValues | None = None

    @property
    def n_features(self) -> int:
        """Number m of features of the data."""
        return len(self.mean)

    @property
    def rounding(self) -> float:
        """Total variance that constant rows seem to have because of rounding errors of the mean."""
        size = FEWEST_ROUNDINGS * EPS * norm(self.mean)
        return size * size  # infinite for a huge mean, where ** would raise an error

    @property
    def varies(self) -> bool:
        """Whether the total variance exceeds `rounding`, so that the rows are not constant."""
        return self.trace > self.rounding

    def apply(self, rows: Vector) -> Vector:
        """Return the product of `rows`, of shape (q, m), with the second moment."""
        return (self.remembered or self.product)(rows)

    def remembering(self) -> Data:
        """Return the same data as an object that stores its products with the second moment Σ.

        A certificate needs the products of decoder, encoder and components with Σ in several
        places. These have the same few directions, so one pass over the data serves for all. If Σ
        is stored as a matrix, nothing changes.
        """
        if self.matrix is not None or self.remembered is not None:
            return self
        return replace(self, remembered=KnownProducts(self.product, self.n_features))

    def with_rows(self, X: Any, weights: Any) -> Data:
        """Return the same data, with the rows X (n, m) and their weights beside Σ."""
        return replace(self, rows=RowsForValues.of(X, weights))

    def in_units(self, unit: float) -> Data:
        """Return the second moment after a division of all rows by the number `unit`."""
        matrix = None if self.matrix is None else self.matrix / unit**2
        known = self.remembered
        return replace(
            self,
            mean=self.mean / unit,
            trace=self.trace / unit**2,
            product=lambda rows: self.product(rows) / unit**2,
            variances=self.variances / unit**2,
            matrix=matrix,
            remembered=None if known is None else lambda rows: known(rows) / unit**2,
            few_rows=None if self.few_rows is None else self.few_rows.in_units(unit),
            uncertainty=self.uncertainty / unit**2,
            rows=None if self.rows is None else self.rows.in_units(unit),
        )


class KnownProducts:
    """Products of rows with a matrix Σ, which reuse the products of earlier rows."""

    def __init__(self, product: Callable[[Vector], Vector], n_features: int) -> None:
        self.product = product
        self.basis, self.images = np.empty((0, n_features)), np.empty((0, n_features))

    def __call__(self, rows: Vector) -> Vector:
        """Return the product of `rows` with Σ; `product` is called for new directions only.

        A row has no new direction if it lies in the span of earlier rows, up to rounding errors of
        m·ε/2 times its length, with the machine epsilon ε.
        """
        lengths = _lengths(rows)
        if not np.all((lengths > SHORTEST) & (lengths < 1.0 / SHORTEST)):
            return self.product(rows)
        units = rows / lengths[:, None]
        inside, new = self._inside(units)
        if np.any(new):
            fresh = orthonormal(units[new], (self.basis,))
            self.basis = np.concatenate([self.basis, fresh])
            self.images = np.concatenate([self.images, self.product(fresh)])
            inside, new = self._inside(units)
        images = lengths[:, None] * (inside @ self.images)
        if np.any(new):  # nearly equal rows, of which one direction was lost
            images[new] = self.product(rows[new])
        return np.asarray(images)

    def learn(self, rows: Vector, images: Vector) -> None:
        """Store `images`, products of `rows` with the matrix Σ that were computed elsewhere.

        This replaces all products that were stored before.
        """
        lengths = _lengths(rows)
        used = (lengths > SHORTEST) & (lengths < 1.0 / SHORTEST)
        if not used.any():
            return
        left, sizes, right = np.linalg.svd(rows[used] / lengths[used, None], full_matrices=False)
        kept = sizes > INDEPENDENT * sizes[0]
        self.basis = right[kept]
        self.images = (left[:, kept] / sizes[kept]).T @ (images[used] / lengths[used, None])

    def _inside(self, units: Vector) -> tuple[Vector, Vector]:
        """Return coefficients of rows in the stored basis, and a mask of the rows outside its span.

        If a row lies in the span of earlier rows, up to rounding errors, its product follows from
        the stored products by these coefficients.
        """
        inside = units @ self.basis.T
        rest = units - inside @ self.basis
        size = np.sqrt(np.einsum("ij,ij->i", rest, rest))
        return inside, np.asarray(size > units.shape[1] * EPS / 2)


def data_of(
    X: Any, weights: Any = None, difference: Estimate | None = None, gram: Any = None
) -> Data:
    """Return the second moment of rows, or of a `SecondMoment`, in the form the verifier uses."""
    if isinstance(X, SecondMoment):
        return _data_of_moment(X, difference)
    if X.shape[1] > DENSE_FEATURES:
        return _data_of_rows(X, weights, gram)
    moment = SecondMoment.of(X, weights)
    probe = Probe.of(X, weights, moment)
    found = _data_of_moment(moment, None if probe is None else probe.difference(moment))
    return found.with_rows(X, weights)


def _data_of_moment(moment: SecondMoment, difference: Estimate | None) -> Data:
    covariance, mean = moment.covariance, to_numpy(moment.mean)
    unsure = moment.rounding * moment.trace
    if moment.n_features > DENSE_FEATURES:

        def product(rows: Vector) -> Vector:
            return to_numpy(like(rows, covariance) @ covariance)

        own = to_numpy(diagonal(covariance))
        seen = digest_of(covariance) if is_numpy(covariance) else None
        data = Data(mean, moment.trace, product, own, None, difference, moment.weight, seen)
        return replace(data, uncertainty=unsure)
    matrix = to_numpy(covariance)
    own = np.diag(matrix)
    trace = float(np.sum(own))
    data = Data(mean, trace, lambda rows: rows @ matrix, own, matrix, difference, moment.weight)
    return replace(data, uncertainty=unsure)


def _data_of_rows(X: Any, weights: Any, gram: Any = None) -> Data:
    shares = np.ones(X.shape[0]) if weights is None else to_numpy(weights)
    weight = float(shares.sum())
    shares = shares / weight
    with np.errstate(over="ignore", invalid="ignore"):
        mean, own = _mean_and_variances(X, shares)
    total = float(np.sum(own))
    if not math.isfinite(total * weight):
        check_rows(X)
        raise ValueError(
            "the squares of X overflow double precision: divide X by a constant, and give the "
            "result to both fit and certify."
        )
    double = scipy.sparse.issparse(X) or (is_numpy(X) and X.dtype == np.float64)
    with np.errstate(over="ignore"):  # of a mean above 1e154
        plain = double and float(mean @ mean) <= LARGE_MEAN * total
    product = _uncentred(X, shares, mean) if plain else _centred(X, shares, mean)
    if is_numpy(X) and X.shape[0] <= FEW_ROWS:
        own_gram = gram_of(X, shares, mean) if gram is None else to_numpy(gram)
        few = FewRows(X, shares, mean, total, own_gram, plain)
        data = Data(mean, total, product, own, weight=weight, few_rows=few)
        return data.with_rows(X, weights)
    seen = digest_of(X, shares) if scipy.sparse.issparse(X) or is_numpy(X) else None
    data = Data(mean, total, product, own, weight=weight, fingerprint=seen)
    return data.with_rows(X, weights)


def _mean_and_variances(X: Any, shares: Vector) -> tuple[Vector, Vector]:
    """Return mean and variance of each column of X; `shares` are the weights, of sum 1.

    The columns are shifted by the first row of positive weight before they are squared, so that a
    constant column has no variance at all. If the shift differs from the mean by more than
    ten standard deviations, the sums are computed again, with this mean as the shift.
    """
    shift = np.zeros(X.shape[1])
    if not scipy.sparse.issparse(X):
        first = int(np.argmax(shares > 0.0))
        shift = to_numpy(as_double(X[first : first + 1, :]))[0]
    for _ in range(3):
        rest, squares = _shifted_sums(X, shares, shift)
        # Rounding can make the variance of a constant column negative.
        mean, own = shift + rest, np.maximum(squares - rest**2, 0.0)
        if np.all(rest**2 <= LARGE_MEAN * own):
            break
        shift = mean
    return mean, own


def _shifted_sums(X: Any, shares: Vector, shift: Vector) -> tuple[Vector, Vector]:
    """Return the weighted sums Σ p (x − s) and Σ p (x − s)² for each column of X.

    The sums are over the entries x of the column, with the weights p of the rows (`shares`); s is
    the entry of `shift` for this column.
    """
    if scipy.sparse.issparse(X):
        moved = X.tocsr().astype(np.float64, copy=True)
        moved.sum_duplicates()
        # Entries that are not stored are zero: they contribute −s and s².
        counts = np.bincount(moved.indices, minlength=X.shape[1])
        present = np.bincount(
            moved.indices, np.repeat(shares, np.diff(moved.indptr)), minlength=X.shape[1]
        )
        absent = np.where(counts == X.shape[0], 0.0, 1.0 - present)
        moved.data = moved.data - shift[moved.indices]
        first = np.asarray(shares @ moved).ravel() - absent * shift
        moved.data = moved.data**2
        return first, np.asarray(shares @ moved).ravel() + absent * shift**2
    first, second = np.zeros(X.shape[1]), np.zeros(X.shape[1])
    for start in range(0, X.shape[0], SHIFT_ROWS):
        chosen = slice(start, min(start + SHIFT_ROWS, X.shape[0]))
        block = as_double(X[chosen, :])
        block = block - like(shift, block)
        share = like(shares[chosen], block)
        first += to_numpy(share @ block)
        block *= block
        second += to_numpy(share @ block)
    return first, second


def _uncentred(X: Any, shares: Vector, mean: Vector) -> Callable[[Vector], Vector]:
    """Return a function that multiplies rows with the covariance Σ of X without centring X.

    For the mean μ and the weights p (`shares`, of sum 1), Σv = Xᵀc − (1ᵀc)μ with the weighted
    projections c = p(Xv − 1μᵀv).
    """
    sparse = scipy.sparse.issparse(X)

    def product(rows: Vector) -> Vector:
        codes = np.asarray(X @ np.ascontiguousarray(rows.T)) if sparse else (rows @ X.T).T
        codes = shares[:, None] * (codes - mean @ rows.T)
        sums = (X.T @ codes).T if sparse else codes.T @ X
        return np.asarray(sums - np.outer(codes.sum(axis=0), mean))

    return product


def _centred(X: Any, shares: Vector, mean: Vector) -> Callable[[Vector], Vector]:
    """Return a function that multiplies rows with the covariance of X, some rows of X at a time.

    The product of a vector v is the sum of p ⟨v, x − μ⟩(x − μ) over the rows x of X, with their
    weights p (`shares`, of sum 1) and their mean μ (`mean`).
    """
    size = max(1, min(BLOCK_ROWS, BLOCK_ENTRIES // X.shape[1]))

    def product(rows: Vector) -> Vector:
        total = 0.0 * rows
        for start in range(0, X.shape[0], size):
            chosen = slice(start, min(start + size, X.shape[0]))
            part = X[chosen, :]
            block = as_double(part.toarray() if scipy.sparse.issparse(part) else part)
            block = block - like(mean, block)
            codes = block @ like(rows, block).mT
            total += to_numpy((codes * like(shares[chosen], block)[:, None]).mT @ block)
        return total

    return product


def norm(values: Vector) -> float:
    """Return the Frobenius norm of an array; entries are scaled, so that no square overflows."""
    peak = float(np.max(np.abs(values), initial=0.0))
    return peak * float(np.linalg.norm(values / peak)) if 0.0 < peak < math.inf else peak


def _lengths(rows: Vector) -> Vector:
    """Return the Euclidean norm of each row; entries are scaled, so that no square overflows."""
    peaks = np.max(np.abs(rows), axis=1, initial=0.0)
    units = rows / np.where((peaks > 0.0) & np.isfinite(peaks), peaks, 1.0)[:, None]
    return np.asarray(peaks * np.sqrt(np.einsum("ij,ij->i", units, units)))
