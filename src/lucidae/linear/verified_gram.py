"""Bounds for certificates of few rows with many features, from the Gram matrix of the rows.

Let A = diag(√p)(X − 1μᵀ) be n rows with weights p of sum 1, centred at their mean μ, so that
Σ = AᵀA (m × m) is their second moment. The n × n Gram matrix AAᵀ has the same nonzero eigenvalues.
A matrix G that is claimed to be AAᵀ, for instance by a solver, is tested by its products with a few
random vectors Ω of standard normal entries: for the unit vector v of the largest singular value of
E = G − AAᵀ, ‖EΩ‖ ≥ ‖E‖ ‖vᵀΩ‖, and ‖vᵀΩ‖ has a chi distribution. So ‖EΩ‖ divided by a small
quantile of it is a bound on ‖E‖ (Freivalds' test of a matrix product, with a bound on the error).
By Weyl's inequality all eigenvalues of Σ are known up to ‖E‖.

Let the rows of Q be an orthonormal basis of a decoder's span, θ₁ ≥ … ≥ θ_r the eigenvalues of QΣQᵀ
and R = QΣ − QΣQᵀQ the residual. In the basis of the span and its complement, Σ differs by ‖R‖ from
its block diagonal part, whose eigenvalues are θ and those of the complement, c₁ ≥ c₂ ≥ …. If
θ_r > λ_{r+1} + ‖R‖, with the eigenvalues λ of Σ, then c₁ ≤ λ_{r+1} + ‖R‖: otherwise r + 1
eigenvalues of the block diagonal part would exceed λ_{r+1} + ‖R‖, against Weyl's inequality. In all
other cases c₁ is the largest eigenvalue of G − BBᵀ with B = AQᵀ, up to ‖E‖.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lucidae.arrays import as_double
from lucidae.certificates.complement import drawn_after, start_share
from lucidae.linear.probe import EPS, Estimate

__all__ = ["FEW_ROWS", "FewRows", "GramFigures", "gram_of"]

Vector = np.ndarray[Any, Any]

FEW_ROWS = 1024
"""Largest number of rows whose Gram matrix is decomposed for a certificate."""

CHECKS = 4
"""Number of random vectors with which a Gram matrix is tested."""

ACCURATE = 1e-9
"""Largest error of a given Gram matrix, relative to its trace; otherwise it is computed again."""

BLOCK_ENTRIES = 2**22
"""Largest number of entries of rows that are centred at a time: 32 mebibytes."""


@dataclass(frozen=True)
class GramFigures:
    """Products of a decoder's span with the second moment Σ of few rows, and eigenvalues of Σ."""

    # (r, m): products of orthonormal rows Q, which span the decoder's columns, with Σ
    images: Vector
    codes: Vector  # (n, r): AQᵀ for the centred and weighted rows A
    gram: Vector  # (n, n): the Gram matrix G of the rows, which was tested
    values: Vector  # (n,): all eigenvalues of G, descending
    error: float  # bound on the difference of these to the eigenvalues of Σ

    def value(self, index: int) -> float:
        """Return the eigenvalue with the given index, from 0, of the second moment.

        It is zero if there are not more than `index` rows.
        """
        return float(self.values[index]) if index < len(self.values) else 0.0

    def complement(self, last: float, residual: float) -> float:
        """Return a bound on the eigenvalues of Σ in the orthogonal complement of a decoder's span.

        Σ is the second moment of the rows, and Q has orthonormal rows that span the decoder's
        columns. `last` is the smallest eigenvalue of QΣQᵀ, and `residual` the norm of QΣ − QΣQᵀQ.
        """
        bound = self.value(self.images.shape[0]) + self.error + residual
        if last > bound:
            return bound
        rest = self.gram - self.codes @ self.codes.T
        return max(float(np.linalg.eigvalsh(rest)[-1]), 0.0) + self.error

    def distance(self, k: int) -> Estimate:
        """Return the mean squared sine of the angles of a decoder's span to the principal subspace.

        Let A be the centred and weighted rows, and Q orthonormal rows that span the decoder's
        columns. The principal axes are Aᵀu/√λ for the `k` leading eigenpairs (λ, u) of the Gram
        matrix AAᵀ, so that their products with Q are BᵀU/√λ for B = AQᵀ and the matrix U of all u.
        This takes more time than a bound by the residuals, and is less accurate for distances close
        to zero.
        """
        values, vectors = np.linalg.eigh(self.gram)
        values, vectors = values[::-1][:k], vectors[:, ::-1][:, :k]
        gap = self.value(k - 1) - self.value(k)
        if not gap > self.error:
            return Estimate.between(0.0, 1.0)
        cosines = self.codes.T @ (vectors / np.sqrt(values))
        distance = max(0.0, 1.0 - float(np.sum(cosines**2)) / k)
        # An error E of the Gram matrix turns u by ‖E‖/gap, and Aᵀu by up to √(λ₁/λ) times that.
        angle = self.error / gap * (1.0 + float(np.sqrt(self.values[0] / values[-1])))
        return Estimate(
            distance, 2.0 * np.sqrt(distance) * angle + angle**2 + 4 * EPS * len(values)
        )


@dataclass(frozen=True)
class FewRows:
    """Few rows, their weights and mean, and a matrix that is claimed to be their Gram matrix."""

    rows: Any  # (n, m): the rows X, not centred
    shares: Vector  # (n,): weights of the rows, of sum 1
    mean: Vector  # (m,): mean of the rows
    trace: float  # total variance of the rows
    gram: Vector  # (n, n): the matrix that is tested
    # whether products may use the rows as they are, so that the mean is subtracted from the
    # products
    plain: bool
    factor: float = 1.0  # number by which all results are multiplied

    def in_units(self, unit: float) -> FewRows:
        """Return the rows after a division by the number `unit`, with their Gram matrix."""
        return replace(self, factor=self.factor / unit**2)

    def measured(self, span: Vector) -> GramFigures:
        """Return the products of a decoder's span with the second moment, and tested eigenvalues.

        The eigenvalues are those of the Gram matrix, with a bound on their error.
        """
        roots = np.sqrt(self.shares)
        checks = drawn_after((CHECKS, len(self.shares)), self.gram, self.mean, span)
        projected = self._back(checks.T * roots[:, None])
        codes, images = self._forth_and_back(np.concatenate([projected, span]), CHECKS)
        codes = codes * roots[:, None]
        gram, error = self._tested(self.gram, checks, codes[:, :CHECKS])
        if error > ACCURATE * self.trace * self.factor:  # the given matrix is wrong
            gram, error = self._tested(
                gram_of(self.rows, self.shares, self.mean), checks, codes[:, :CHECKS]
            )
        values = np.maximum(np.linalg.eigvalsh(gram)[::-1], 0.0)
        n, m = self.rows.shape
        error += EPS * (m * self.trace * self.factor + n * float(values[0]))
        return GramFigures(
            images * self.factor, codes[:, CHECKS:] * self.factor**0.5, gram, values, error
        )

    def _tested(self, gram: Vector, checks: Vector, products: Vector) -> tuple[Vector, float]:
        """Return a Gram matrix in the units of the results, and a bound on its error.

        The matrix `gram`, which may be wrong, is compared with `products`, those of the true Gram
        matrix with the random vectors `checks`.
        """
        gram = gram * self.factor
        difference = gram @ checks.T - products * self.factor
        return gram, float(np.linalg.norm(difference)) / start_share(CHECKS)

    def _back(self, codes: Vector) -> Vector:
        """Return codesᵀ(X − 1μᵀ) for the rows X with mean μ, and codes of shape (n, q)."""
        if self.plain:
            return np.asarray(codes.T @ self.rows - np.outer(codes.sum(axis=0), self.mean))
        total = np.zeros((codes.shape[1], len(self.mean)))
        for part in self._parts():
            total += codes[part].T @ (as_double(self.rows[part]) - self.mean)
        return total

    def _forth_and_back(self, rows: Vector, skipped: int) -> tuple[Vector, Vector]:
        """Return the codes of the centred data rows for vectors v, and products of v with Σ.

        The vectors v are the argument `rows`. The codes are c = (X − 1μᵀ)vᵀ for the data X with
        mean μ. The products vΣ, with the second moment Σ, are the sums of p c(x − μ) over the data
        rows x with weights p; they are computed for all but the first `skipped` vectors.
        """
        if self.plain:
            codes = np.asarray(self.rows @ rows.T - rows @ self.mean)
            return codes, self._back(codes[:, skipped:] * self.shares[:, None])
        codes = np.empty((len(self.shares), len(rows)))
        images = np.zeros((len(rows) - skipped, len(self.mean)))
        for part in self._parts():
            block = as_double(self.rows[part]) - self.mean
            codes[part] = block @ rows.T
            images += (codes[part, skipped:] * self.shares[part, None]).T @ block
        return codes, images

    def _parts(self) -> list[slice]:
        n, m = self.rows.shape
        size = max(1, BLOCK_ENTRIES // m)
        return [slice(start, min(start + size, n)) for start in range(0, n, size)]


def gram_of(X: Any, shares: Vector, mean: Vector) -> Vector:
    """Return the Gram matrix (n, n) of rows X (n, m) centred at `mean`, with weights `shares`."""
    n, m = X.shape
    roots = np.sqrt(shares)[:, None]
    gram = np.zeros((n, n))
    size = max(1, BLOCK_ENTRIES // n)
    for start in range(0, m, size):
        part = slice(start, min(start + size, m))
        block = roots * (as_double(X[:, part]) - mean[part])
        gram += block @ block.T
    return gram
