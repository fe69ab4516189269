"""Leading eigenpairs of a symmetric matrix by the Lanczos method with partial reorthogonalisation.

From a random unit vector q₁, the recurrence

    β_j q_{j+1} = A q_j − α_j q_j − β_{j−1} q_{j−1}

builds orthonormal vectors q, and a tridiagonal matrix T of the numbers α and β. An eigenpair (θ, s)
of T gives the Ritz pair (θ, Σ s_j q_j) of A, whose residual has the norm β_j |s_j| for the last j.

In floating-point arithmetic the new vector loses its orthogonality to the earlier ones as Ritz
pairs converge. Subtracting all earlier vectors in every step would read all of them each time. A
recurrence of the inner products ω between the vectors (Simon 1984) estimates the loss instead, and
the vectors are subtracted only when it exceeds a tolerance. The iteration never restarts: it needs
the fewest products that a Krylov space of one vector allows, about half as many as ARPACK with its
usual number of vectors, but has to store all vectors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.linalg import eigh_tridiagonal

from lucidae.arrays.krylov import LAST_RESIDUAL, steps_left

__all__ = ["lanczos_eigenpairs"]

Vector = np.ndarray[Any, Any]

CONVERGED = 1e-14
"""A Ritz pair has converged when its residual is at most this number times the largest value."""

ORTHOGONAL = 1e-12
"""Largest estimate of an inner product of two vectors. The subtraction of earlier vectors is not
part of the recurrence and changes the residuals by about a hundredth of this number; for accurate
eigenvalues alone, the square root of the machine epsilon would be enough."""

LOST = 1e-9
"""An inner product above this number means that estimate was wrong; the iteration is given up."""

LARGEST_BASIS = 2**25
"""Largest number of entries of all vectors together; they take 256 mebibytes."""

FIRST_ROWS = 64
"""Number of vectors for which there is space at first; the space is doubled when it is used up."""

EPSILON = float(np.finfo(np.float64).eps)


def lanczos_eigenpairs(
    apply: Callable[[Vector], Vector], size: int, k: int, steps: int, *, rough: bool = False
) -> tuple[Vector, Vector] | None:
    """Return the `k` leading eigenpairs of a symmetric, positive semidefinite matrix.

    Of a repeated eigenvalue only one eigenvector may be found.
    """
    steps = min(steps, size - 1, LARGEST_BASIS // size)
    if steps < 2 * k:
        return None
    space = _Recurrence(np.random.default_rng(0).standard_normal(size), steps)
    strict = k - 1 if rough and k > 1 else k
    check, seen = 2 * k, []
    while space.count < steps:
        if not space.extend(apply):
            return None
        if space.count < check and space.count < steps:
            continue
        values, turn, residuals = space.ritz(k)
        excess = float(np.max(residuals[:strict])) / CONVERGED
        if excess <= 1.0 and residuals[-1] <= max(LAST_RESIDUAL, CONVERGED):
            return values, _orthonormalised(space.basis.T @ turn)
        seen.append((space.count, excess))
        # Residuals stay large for a while, before they fall faster and faster.
        if 2 * space.count >= steps and steps_left(seen) > steps:
            return None
        check = space.count + max(3, int(min(space.count // 10, 2 * steps_left(seen[-4:]))))
    return None


class _Recurrence:
    """The Lanczos recurrence: its vectors, its numbers α and β, and estimates of inner products."""

    def __init__(self, start: Vector, steps: int) -> None:
        self.count = 0
        self._rows = np.empty((min(steps, FIRST_ROWS) + 1, len(start)))
        self._rows[0] = start / np.linalg.norm(start)
        self._alpha, self._beta = np.zeros(steps), np.zeros(steps)
        # ω of the newest vector and of the one before, with all earlier vectors.
        self._now, self._before = np.zeros(steps + 1), np.zeros(steps + 1)
        self._again = False

    @property
    def basis(self) -> Vector:
        """The vectors that were multiplied with the matrix, one per row."""
        return self._rows[: self.count]

    def extend(self, apply: Callable[[Vector], Vector]) -> bool:
        """Make one step; return False if the vectors span an invariant subspace."""
        j, rows = self.count, self._rows
        image = apply(rows[j])
        self._alpha[j] = alpha = float(rows[j] @ image)
        image = image - alpha * rows[j]
        if j:
            image -= self._beta[j - 1] * rows[j - 1]
        length = float(np.linalg.norm(image))
        size = float(np.max(self._alpha[: j + 1]))
        if not length > EPSILON * len(image) * size:
            return False
        self._estimate(length, size)
        if self._again or float(np.max(np.abs(self._now[: j + 1]))) > ORTHOGONAL:
            inner = rows[: j + 1] @ image
            if float(np.max(np.abs(inner))) > LOST * length:
                return False
            image -= inner @ rows[: j + 1]
            length = float(np.linalg.norm(image))
            self._now[: j + 1] = EPSILON
            # The recurrence of ω combines two vectors, so that the next one is treated as well.
            self._again = not self._again
        self._beta[j] = length
        self.count += 1
        if self.count == len(rows):
            self._rows = np.empty((min(2 * len(rows), len(self._alpha) + 1), rows.shape[1]))
            self._rows[: self.count] = rows
        np.divide(image, length, out=self._rows[self.count])
        return True

    def _estimate(self, length: float, size: float) -> None:
        """Estimate the inner products of the next vector with all vectors so far.

        The product of the recurrence of q_{j+1} with q_i, minus that of q_{i+1} with q_j, is

            β_j ω_{j+1,i} = β_i ω_{j,i+1} + (α_i − α_j) ω_{j,i} + β_{i−1} ω_{j,i−1}
                            − β_{j−1} ω_{j−1,i} + rounding errors.

        `length` is β_j, and `size` a number as large as the entries of T.
        """
        j, alpha, beta = self.count, self._alpha, self._beta
        now, new = self._now, self._before  # entry i of the older ones is replaced by the new one
        if j:
            new[:j] *= -beta[j - 1]
            new[:j] += beta[:j] * now[1 : j + 1]
            new[:j] += (alpha[:j] - alpha[j]) * now[:j]
            new[1:j] += beta[: j - 1] * now[: j - 1]
            new[:j] += np.copysign(2 * EPSILON * size, new[:j])
            new[:j] /= length
        new[j] = EPSILON * math.sqrt(self._rows.shape[1])
        new[j + 1] = 1.0
        self._now, self._before = new, now

    def ritz(self, k: int) -> tuple[Vector, Vector, Vector]:
        """Return the `k` leading Ritz values, their coefficients as columns, and residuals.

        The residuals are divided by the largest Ritz value.
        """
        j = self.count
        values, turn = eigh_tridiagonal(self._alpha[:j], self._beta[: j - 1])
        values, turn = values[::-1][:k].copy(), turn[:, ::-1][:, :k]
        return values, turn, self._beta[j - 1] * np.abs(turn[-1]) / values[0]


def _orthonormalised(vectors: Vector) -> Vector:
    """Return almost orthonormal columns V with an error squared: V(I − (VᵀV − I)/2)."""
    excess = vectors.T @ vectors
    excess[np.diag_indices_from(excess)] -= 1.0
    return vectors - vectors @ (excess / 2)
