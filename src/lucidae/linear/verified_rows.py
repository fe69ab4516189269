"""Singular values of rows for certificates of components whose variance is small beside others.

A second moment Σ with the largest eigenvalue σ₁² is known up to m·ε·σ₁², with the machine epsilon ε
and m features, so that components of much smaller variance are not determined by it. The singular
values σ of the centred and weighted rows A, whose squares are the eigenvalues of Σ = AᵀA, are known
up to e = m·ε·σ₁ (Weyl), and the axis of σᵢ up to the angle e/|σᵢ − σⱼ| for the nearest other σⱼ
(Wedin 1972).

If there are at most 1024 rows or features, all of them are computed by a QR factorisation of A and
LAPACK's routine ``gesvd`` (QR iteration). No solver uses these.

Otherwise the singular values are bounded. Let the columns of Q be an orthonormal basis of a
decoder's span, AQ = USWᵀ a singular value decomposition, and B = A − AQQᵀ. With V = QW, A equals
U(SVᵀ + R) + (I − UUᵀ)B, where R = UᵀB. So A differs by ‖R‖ from a matrix with the singular values S
and those of (I − UUᵀ)B, which are at most c, the largest one of B. If the last singular value in S
exceeds c + ‖R‖, then the first ones of A lie in [S, S + ‖R‖], all others are at most c + ‖R‖, and
the span differs from the principal subspace by a sine of at most ‖R‖/(S_last − c − ‖R‖)
(Wedin 1972). That c is below a level ℓ is proved by a Cholesky factorisation of ℓ²I − BᵀB, or
ℓ²I − BBᵀ, which exists only if this matrix is positive definite. In contrast to bounds from Krylov
spaces this needs no gap between the eigenvalues, so that it decides flat spectra as well.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
import scipy.sparse

from lucidae.arrays import as_double, is_numpy, to_numpy
from lucidae.linear.probe import EPS, FEWEST_ROUNDINGS

__all__ = ["RowsForValues", "SingularValues", "SpanValues"]

Vector = np.ndarray[Any, Any]

LARGEST_ROWS = 2**25
"""Largest number of entries of rows that are copied and factorised: 256 mebibytes."""

LARGEST_FACTOR = 1024
"""Largest number of rows or columns, whichever is smaller, whose singular values are computed."""


LARGEST_BOUNDED = 8192
"""Largest number of rows or columns, whichever is smaller, of which a Cholesky factorisation is
computed: the matrix takes half a gibibyte."""

RESOLVED = 300.0
"""Factor by which the proved gap between the singular values inside and outside of a decoder's span
exceeds the residuals: the sine of the angle to the principal subspace is then below 1/300."""

LEAST_GAP = 1e-6
"""Smallest gap that is proved, relative to the last singular value inside."""


class SingularValues(NamedTuple):
    """Singular values of centred and weighted rows, whose squares are variances."""

    # (m,): the singular values, descending; zeros are added if there are fewer rows than features
    values: Vector
    axes: Vector  # (m, q): right singular vectors of the q leading ones, as columns
    error: float  # bound on the error of each singular value


class SpanValues(NamedTuple):
    """Singular values of centred and weighted rows A inside and outside of a decoder's span."""

    # (r,): singular values S of AQ, descending, for an orthonormal basis Q of the decoder's span
    values: Vector
    # (m, r): the basis V of the span in which AᵀA restricted to the span is diagonal, as columns
    axes: Vector
    # (r,): norms of the rows of R, the part of Aᵀu outside of the span for each left singular
    # vector u
    residuals: Vector
    # upper bound c on the singular values of A restricted to the complement of the span
    outside: float
    error: float  # bound on the rounding error of each singular value and residual


@dataclass(frozen=True)
class RowsForValues:
    """Rows of data with their weights, of which singular values are computed if they are needed."""

    rows: Any  # (n, m): the rows, not centred
    weights: Any = None  # (n,): weights of the rows; None for 1 each
    unit: float = 1.0  # number by which the rows are divided

    @classmethod
    def of(cls, X: Any, weights: Any) -> RowsForValues | None:
        """Return the rows X (n, m) with their weights; None if they are too large."""
        # Certificates of rows on a GPU are computed by `fit`, which must not take so long.
        known = scipy.sparse.issparse(X) or is_numpy(X)
        largest = LARGEST_BOUNDED if known else LARGEST_FACTOR
        if min(X.shape) > largest or math.prod(X.shape) > LARGEST_ROWS:
            return None
        return cls(X, weights)

    @property
    def small(self) -> bool:
        """Whether all singular values can be computed."""
        return bool(min(self.rows.shape) <= LARGEST_FACTOR)

    def in_units(self, unit: float) -> RowsForValues:
        """Return the rows after a division by the number `unit`."""
        return replace(self, unit=self.unit * unit)

    def decomposed(self, k: int) -> SingularValues:
        """Return all singular values of the centred and weighted rows, and the first `k` axes."""
        rows = self.centred()
        n, m = rows.shape
        if n >= m:
            (triangle,) = scipy.linalg.qr(rows, mode="r", overwrite_a=True, check_finite=False)
            _, found, right = _gesvd(triangle[:m])
            axes = right[:k].T
        else:
            basis, triangle = scipy.linalg.qr(rows.T, mode="economic", check_finite=False)
            left, found, _ = _gesvd(triangle)
            axes = basis @ left[:, :k]
        values = np.append(found, np.zeros(m - len(found)))
        return SingularValues(values, axes, max(m, FEWEST_ROUNDINGS) * EPS * float(values[0]))

    def bounded(self, span: Vector) -> SpanValues | None:
        """Return singular values inside and a bound on those outside of a decoder's span."""
        rows = self.centred()
        n, m = rows.shape
        codes = rows @ span
        rows -= codes @ span.T
        basis, triangle = np.linalg.qr(codes)
        left, values, turn = _gesvd(triangle)
        error = max(m, FEWEST_ROUNDINGS) * EPS * max(float(values[0]), float(np.linalg.norm(rows)))
        residuals = np.linalg.norm((basis @ left).T @ rows, axis=1)
        gram = rows.T @ rows if m <= n else rows @ rows.T
        # The factorisation of a matrix with p rows exists if its eigenvalues exceed the rounding
        # errors, which are at most (p + 1)ε times its trace (Higham 2002, Theorem 10.3).
        p, last = len(gram), float(values[-1])
        rounding = (p + 1) * EPS * (p * last**2 + float(np.trace(gram)))
        size = float(np.linalg.norm(residuals)) + error
        gap = max(RESOLVED * size, LEAST_GAP * last, 10.0 * rounding / last) if last > 0.0 else 0.0
        level = last - gap
        if not 0.0 < level < last or not _is_below(gram, level**2):
            return None
        outside = math.sqrt(level**2 + rounding) + error
        return SpanValues(values, span @ turn.T, residuals, outside, error)

    def centred(self) -> Vector:
        """Return the rows minus their mean as float64, each times the root of its weight."""
        X = self.rows.toarray() if scipy.sparse.issparse(self.rows) else self.rows
        rows = to_numpy(as_double(X)) / self.unit
        shares = np.ones(len(rows)) if self.weights is None else to_numpy(self.weights)
        shares = shares / np.sum(shares)
        rows = rows - shares @ rows
        rows -= shares @ rows  # corrects the rounding error of the first mean
        return np.asarray(np.sqrt(shares)[:, None] * rows)


def _is_below(matrix: Vector, level: float) -> bool:
    """Tell whether all eigenvalues of a symmetric matrix are below `level`; it is overwritten."""
    np.negative(matrix, out=matrix)
    matrix[np.diag_indices_from(matrix)] += level
    try:
        scipy.linalg.cholesky(matrix, overwrite_a=True, check_finite=False)
    except np.linalg.LinAlgError:
        return False
    return True


def _gesvd(matrix: Vector) -> tuple[Vector, Vector, Vector]:
    found: tuple[Vector, Vector, Vector] = scipy.linalg.svd(
        matrix, full_matrices=False, lapack_driver="gesvd", check_finite=False
    )
    return found
