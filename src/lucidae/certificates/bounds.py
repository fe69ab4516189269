"""Numbers with a bound on their error, and the enclosures that verdicts follow from.

Of the verification, this is the only module where the machine epsilon occurs. A `Ball` is a
measured value (a number or an array) together with a bound on its absolute error: the exact value
lies within `error` of `value`. Its operations propagate both the errors of the operands and their
own rounding. Matrix products use |fl(AB) − AB| ≤ γₙ|A||B| with γₙ = nu/(1 − nu) for the unit
roundoff u = ε/2 (Higham 2002, section 3.5). Since the absolute values would cost a second product,
the entries of |A||B| are bounded by the norms of rows and columns (Cauchy–Schwarz).

Enclosures: an error E of a symmetric matrix moves each eigenvalue by at most ‖E‖ (Weyl 1912), the
same holds for singular values, and turns the invariant subspace that is separated from the rest of
the spectrum by a gap by an angle whose sine is at most ‖E‖/gap (Davis & Kahan 1970; Wedin 1972 for
singular subspaces).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg

__all__ = [
    "EPS",
    "TINY",
    "Ball",
    "Enclosure",
    "enclose_eigenvalues",
    "enclose_singular_values",
    "epsilon",
    "gamma",
    "triangle",
    "turn",
]

Vector = np.ndarray[Any, Any]

EPS = float(np.finfo(float).eps)
TINY = float(np.finfo(float).tiny)

# Rounding errors that every computed number is granted beside those of its longest sum.
CONSTANT = 8


def epsilon(kind: Any) -> float:
    """Return the machine epsilon of a type of floating-point numbers, such as ``np.float32``."""
    return float(np.finfo(kind).eps)


def gamma(n: float) -> float:
    """Return γₙ, the relative error of n operations in sequence (Higham 2002, Lemma 3.1).

    γₙ grows without limit when nu approaches 1; then nothing is known and the result is infinite.
    """
    size = (n + CONSTANT) * EPS / 2
    return size / (1.0 - size) if size < 1.0 else math.inf


@dataclass(frozen=True, slots=True)
class Ball:
    """A value (number or array) and a bound on the absolute error of each of its entries."""

    value: Any
    error: Any = 0.0

    @classmethod
    def between(cls, low: Any, high: Any) -> Ball:
        """Return the ball whose ends are `low` and `high`."""
        return cls((low + high) / 2, (high - low) / 2)

    @property
    def low(self) -> Any:
        """Lower end of the ball."""
        return self.value - self.error

    @property
    def high(self) -> Any:
        """Upper end of the ball."""
        return self.value + self.error

    def __getitem__(self, part: Any) -> Ball:
        return Ball(self.value[part], np.broadcast_to(self.error, np.shape(self.value))[part])

    @property
    def T(self) -> Ball:  # noqa: N802
        """The transpose."""
        return Ball(np.transpose(self.value), np.transpose(self.error))

    def verdict(self, limit: float) -> bool | None:
        """Tell whether the exact value is at most `limit`; None if the ball contains both cases.

        NaN and infinite values are above every limit.
        """
        if not math.isfinite(self.value):
            return False
        if self.high <= limit:
            return True
        return False if self.low > limit else None

    def _rounded(self, value: Any, error: Any) -> Ball:
        """Return a result whose operands contribute `error`, plus the rounding of one operation."""
        return Ball(value, (error + EPS * np.abs(value)) * (1.0 + CONSTANT * EPS))

    def __neg__(self) -> Ball:
        return Ball(-self.value, self.error)

    def __add__(self, other: Any) -> Ball:
        other = _ball(other)
        return self._rounded(self.value + other.value, self.error + other.error)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Ball:
        return self + -_ball(other)

    def __rsub__(self, other: Any) -> Ball:
        return _ball(other) + -self

    def __mul__(self, other: Any) -> Ball:
        other = _ball(other)
        error = (
            np.abs(self.value) * other.error
            + np.abs(other.value) * self.error
            + self.error * other.error
        )
        return self._rounded(self.value * other.value, error)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Ball:
        """Return the quotient; its error is infinite if the divisor may be zero."""
        other = _ball(other)
        least = np.abs(other.value) - other.error
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            value = self.value / np.asarray(other.value)
            error = (self.error + np.abs(value) * other.error) / least
        error = np.where((least > 0.0) & np.isfinite(error), error, math.inf)
        value = np.where(np.isfinite(value), value, 0.0)
        return self._rounded(value[()], error[()])

    def __matmul__(self, other: Ball) -> Ball:
        """Return the matrix product; |A||B| is bounded by the norms of rows and columns."""
        rows, columns = row_norms(self.value), row_norms(np.swapaxes(other.value, -1, -2))
        row_errors = row_norms(np.broadcast_to(self.error, np.shape(self.value)))
        column_errors = row_norms(
            np.swapaxes(np.broadcast_to(other.error, np.shape(other.value)), -1, -2)
        )
        size = gamma(np.shape(self.value)[-1])
        error = np.multiply.outer(
            size * rows + row_errors, columns + column_errors
        ) + np.multiply.outer(rows, column_errors)
        return Ball(self.value @ other.value, error * (1.0 + size))

    def abs(self) -> Ball:
        """Return the absolute value."""
        return Ball(np.abs(self.value), self.error)

    def sqrt(self) -> Ball:
        """Return the square root of a number that is not negative.

        |√a − √b| = |a − b|/(√a + √b), and at most √|a − b| if a itself may be zero.
        """
        value = np.sqrt(np.maximum(self.value, 0.0))
        low = np.sqrt(np.maximum(self.low, 0.0))
        error = np.asarray(self.error / np.maximum(value + low, TINY))
        return self._rounded(value, np.minimum(error, np.sqrt(np.maximum(self.error, 0.0)))[()])

    def sum(self) -> Ball:
        """Return the sum of all entries."""
        size = gamma(np.size(self.value)) * float(np.sum(np.abs(self.value)))
        error = float(np.sum(np.broadcast_to(self.error, np.shape(self.value))))
        return Ball(float(np.sum(self.value)), error + size)


def _ball(number: Any) -> Ball:
    return number if isinstance(number, Ball) else Ball(number)


def row_norms(matrix: Vector) -> Vector:
    """Return the Euclidean norms of the rows of a matrix."""
    return np.asarray(np.sqrt(np.sum(np.abs(matrix) ** 2, axis=-1)))


class Enclosure(NamedTuple):
    """Eigenvalues or singular values, descending, with their axes and a bound on their error."""

    values: Vector
    axes: Vector  # the leading eigenvectors, or right singular vectors, as columns
    error: float  # bound on the error of each value


def turn(error: float, gap: Any) -> Any:
    """Return a bound on the sine of the angle that an error turns a subspace by (Davis–Kahan).

    `gap` is the computed distance to the rest of the spectrum, both of whose ends are uncertain.
    """
    exact = np.asarray(gap) - 2.0 * error
    return np.where(exact > error, error / np.where(exact > error, exact, 1.0), 1.0)[()]


def enclose_eigenvalues(matrix: Vector, error: float = 0.0, count: int = 1) -> Enclosure:
    """Return all eigenvalues and `count` axes of a symmetric matrix known up to `error` in norm.

    LAPACK's backward error is a modest multiple of m·ε·‖A‖ (Anderson et al. 1999, section 4.7). All
    axes would take longer than a second reduction to tridiagonal form.
    """
    m, values = len(matrix), np.linalg.eigvalsh(matrix)[::-1]
    _, axes = scipy.linalg.eigh(matrix, subset_by_index=(m - count, m - 1), check_finite=False)
    size = float(np.max(np.abs(values), initial=0.0))
    return Enclosure(values, axes[:, ::-1], error + gamma(m) * size)


def enclose_singular_values(matrix: Vector, error: float = 0.0) -> Enclosure:
    """Return all singular values and right axes of a matrix known up to `error` in norm."""
    _, values, right = scipy.linalg.svd(matrix, full_matrices=False, check_finite=False)
    size = float(np.max(values, initial=0.0))
    return Enclosure(values, right.T, error + gamma(max(matrix.shape)) * size)


def triangle(rows: Vector) -> tuple[Vector, float]:
    """Return the triangular factor R of the QR factorisation of the rows A, and its error.

    RᵀR = AᵀA. The computed R is exact for a matrix A + E with ‖E‖ ≤ γ‖A‖_F, where γ counts the rows
    and columns (Higham 2002, Theorem 19.4), so that E bounds the error of each singular value.
    """
    n, m = rows.shape
    (found,) = scipy.linalg.qr(rows, mode="r", check_finite=False)
    return found[:m], gamma(n + m) * float(np.linalg.norm(found[:m]))
