"""Observed entries of a matrix with missing entries, and the loss of factors on them.

The loss and its derivatives are those that `lucidae.dropout.completion` minimises; its docstring
derives them. `observed_codes` returns the codes of incomplete rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from lucidae.arrays import to_numpy
from lucidae.dropout.theory import code_map

__all__ = ["ABSENT", "ObservedEntries", "check_missing_values", "marked", "observed_codes"]

Matrix = np.ndarray[Any, Any]

ABSENT = "absent"
"""Value of `missing_values` for which entries that a sparse matrix does not store are missing."""

LARGEST_DENSE = 2**27
"""Largest size n · m of a sparse matrix that is converted to a dense one, with zeros for the
entries that it does not store."""

DENSE_SHARE = 1 / 16
"""Share of observed entries above which products UVᵀ are formed as dense blocks of rows."""

BLOCK = 2**22
"""Largest number of entries of temporary arrays in the computation of entries of products."""


VANISHED = 1e-11
"""Singular values of the completed matrix below this multiple of the largest are set to zero."""


def check_missing_values(value: Any) -> bool:
    """Return True if the setting `missing_values` is "absent", and False if it is NaN.

    With "absent", the entries that a sparse matrix does not store are missing; with NaN they are
    zeros. Any other value is an error.
    """
    if isinstance(value, str) and value == ABSENT:
        return True
    if isinstance(value, float | np.floating) and np.isnan(value):
        return False
    raise ValueError(
        f"missing_values={value!r} was given, expected numpy.nan (entries that are NaN are "
        "missing, and entries that a sparse matrix does not store are zeros) or 'absent' (entries "
        "that a sparse matrix does not store are missing)."
    )


def marked(X: Any, *, absent: bool) -> Any:
    """Return a matrix in which missing entries are NaN, or not stored in a sparse matrix."""
    if not scipy.sparse.issparse(X):
        X = to_numpy(X)
        if np.isinf(X).any():
            raise ValueError(_INFINITE)
        if absent and np.isnan(X).any():
            raise ValueError(
                "X is dense and contains NaN, but missing_values='absent' was given: give "
                "missing_values=numpy.nan, or a sparse matrix of the observed entries."
            )
        return X
    if np.isinf(X.data).any():
        raise ValueError(_INFINITE)
    if absent:
        return X.tocsr()
    if X.shape[0] * X.shape[1] > LARGEST_DENSE:
        raise ValueError(
            f"X is a sparse matrix of shape {X.shape}, whose absent entries are zeros for "
            "missing_values=nan; that many zeros cannot be stored. If absent entries are missing, "
            "give missing_values='absent'."
        )
    return X.toarray()


_INFINITE = "Input X contains infinity. Mark missing entries by NaN, and remove infinite ones."


@dataclass(frozen=True)
class ObservedEntries:
    """The observed entries of a matrix M, row by row."""

    shape: tuple[int, int]  # numbers n and m of rows and columns of M
    # (n + 1,): the entries of row i are those with the numbers ``starts[i]`` to ``starts[i + 1] -
    # 1``
    starts: Matrix
    columns: Matrix  # column of each observed entry
    values: Matrix  # value of each observed entry

    @classmethod
    def of(cls, X: Any) -> ObservedEntries:
        """Return the entries of a dense matrix that are not NaN, or those that a sparse one stores.

        Stored entries of a sparse matrix that are NaN are left out, too; stored zeros are observed.
        """
        if scipy.sparse.issparse(X):
            rows = X.tocsr()
            seen = ~np.isnan(rows.data)
            counts = np.concatenate([[0], np.cumsum(seen)])
            return cls(
                (int(X.shape[0]), int(X.shape[1])),
                counts[rows.indptr],
                rows.indices[seen],
                np.asarray(rows.data[seen], dtype=np.float64),
            )
        seen = ~np.isnan(X)
        starts = np.concatenate([[0], np.cumsum(np.count_nonzero(seen, axis=1))])
        values = np.asarray(X[seen], dtype=np.float64)
        return cls((int(X.shape[0]), int(X.shape[1])), starts, np.nonzero(seen)[1], values)

    @cached_property
    def rows(self) -> Matrix:
        """Row of each observed entry."""
        return np.repeat(np.arange(self.shape[0]), np.diff(self.starts))

    @property
    def count(self) -> int:
        """Number of observed entries."""
        return len(self.values)

    @property
    def energy(self) -> float:
        """Sum of squares of the observed entries."""
        return float(self.values @ self.values)

    @property
    def complete(self) -> bool:
        """Whether no entry is missing."""
        return self.count == self.shape[0] * self.shape[1]

    def with_values(self, values: Matrix) -> ObservedEntries:
        """Return the same observed positions of the matrix with other values."""
        return replace(self, values=values)

    def taken(self, chosen: Matrix) -> ObservedEntries:
        """Return some of the observed entries, such as those of a fold, given by their indices."""
        kept = np.zeros(self.count, dtype=bool)
        kept[chosen] = True
        counts = np.concatenate([[0], np.cumsum(kept)])
        return ObservedEntries(
            self.shape, counts[self.starts], self.columns[kept], self.values[kept]
        )

    def weighted(self, roots: Matrix) -> ObservedEntries:
        """Return the observed entries after multiplying row i of the matrix by ``roots[i]``."""
        return self.with_values(self.values * roots[self.rows])

    def sparse(self, values: Matrix | None = None) -> Any:
        """Return a sparse matrix with the observed entries, or with given values in their place."""
        data = self.values if values is None else values
        return scipy.sparse.csr_array((data, self.columns, self.starts), shape=self.shape)

    def product(self, left: Matrix, right: Matrix) -> Matrix:
        """Return the entries of left · rightᵀ at the positions of the observed entries."""
        n, m = self.shape
        if self.count > DENSE_SHARE * n * m:
            step = max(1, BLOCK // m)
            parts = []
            for start in range(0, n, step):
                block = left[start : start + step] @ right.T
                part = slice(self.starts[start], self.starts[min(start + step, n)])
                parts.append(block[self.rows[part] - start, self.columns[part]])
            return np.concatenate(parts) if parts else np.empty(0)
        found = np.empty(self.count)
        step = max(1, BLOCK // max(left.shape[1], 1))
        for start in range(0, self.count, step):
            part = slice(start, start + step)
            found[part] = np.einsum("ij,ij->i", left[self.rows[part]], right[self.columns[part]])
        return found


def observed_codes(entries: ObservedEntries, right: Matrix, strength: float) -> Matrix:
    """Return the codes of incomplete rows that minimise their loss for a fixed factor V.

    The code u of a row m, of which the entries in o are observed, minimises Σ_{j∈o} (mⱼ − vⱼᵀu)² +
    λ Σₖ uₖ²‖vₖ‖², with the rows vⱼ and the columns vₖ of V: it is u = (V_oᵀV_o + λ
    diag‖vₖ‖²)⁻¹V_oᵀm_o. For factors that minimise the loss of `lucidae.dropout.completion` this is
    the equation for the rows of the other factor U, so that training rows get the codes that they
    have in U. A row without observed entries gets the code 0.
    """
    n, m = entries.shape
    codes = np.zeros((n, right.shape[1]))
    counts = np.diff(entries.starts)
    whole = counts == m
    if whole.any():
        rows = entries.values[np.repeat(whole, counts)].reshape(-1, m)
        codes[whole] = rows @ code_map(right, strength)
    # V has the rank ρ ≤ r of X: with V diag‖vₖ‖⁻¹ = W diag(w) Tᵀ (singular value decomposition) and
    # B = W diag(w) the code is diag‖vₖ‖⁻¹ T z for z = (B_oᵀB_o + λI)⁻¹B_oᵀm_o, a system of size ρ.
    lengths = np.sqrt(np.sum(right * right, axis=0))
    reciprocal = np.divide(1.0, lengths, out=np.zeros_like(lengths), where=lengths > 0)
    W, w, Tt = np.linalg.svd(right * reciprocal, full_matrices=False)
    kept = w > max(right.shape) * np.finfo(float).eps * w.max(initial=0.0)
    basis, back = W[:, kept] * w[kept], Tt[kept] * reciprocal
    chosen = np.flatnonzero(~whole & (counts > 0))
    step = max(1, BLOCK // max(basis.shape[1] ** 2, 1))
    for start in range(0, len(chosen), step):
        part = chosen[start : start + step]
        grams = np.empty((len(part), basis.shape[1], basis.shape[1]))
        images = np.empty((len(part), basis.shape[1], 1))
        for place, row in enumerate(part):
            seen = slice(entries.starts[row], entries.starts[row + 1])
            block = basis[entries.columns[seen]]
            grams[place] = block.T @ block
            images[place, :, 0] = entries.values[seen] @ block
        grams += strength * np.eye(basis.shape[1])
        codes[part] = np.linalg.solve(grams, images)[:, :, 0] @ back
    return codes


class Factors(NamedTuple):
    """Factors A (n × ρ) and B (m × ρ) of a matrix X = ABᵀ."""

    left: Matrix
    right: Matrix

    def dot(self, other: Factors) -> float:
        """Return the sum of the products of corresponding entries of these and other factors."""
        return float(np.vdot(self.left, other.left) + np.vdot(self.right, other.right))

    def plus(self, other: Factors, scale: float) -> Factors:
        """Return these factors plus `scale` times other factors, entry by entry."""
        return Factors(self.left + scale * other.left, self.right + scale * other.right)

    def times(self, scale: float) -> Factors:
        """Return the factors, each multiplied by `scale`."""
        return Factors(scale * self.left, scale * self.right)

    def balanced(self) -> tuple[Factors, Matrix]:
        """Return balanced factors of the same product ABᵀ, and its singular values, descending.

        Balanced factors are the singular vectors of the product times the square roots of its
        singular values. Singular values that count as zero are removed.
        """
        Q1, R1 = np.linalg.qr(self.left)
        Q2, R2 = np.linalg.qr(self.right)
        P, values, Qt = np.linalg.svd(R1 @ R2.T)
        kept = values > VANISHED * values.max(initial=0.0)
        roots = np.sqrt(values[kept])
        found = Factors(Q1 @ (P[:, kept] * roots), Q2 @ (Qt[kept].T * roots))
        return found, values[kept]


@dataclass(frozen=True)
class CompletionObjective:
    """The loss F(ABᵀ) = ‖P_Ω(M − ABᵀ)‖² + μ((‖A‖² + ‖B‖²)/2)² of factors A and B.

    M is the matrix that is to be completed, and P_Ω sets the missing entries to zero. F(ABᵀ) is at
    least the loss ‖P_Ω(M − X)‖² + μ‖X‖*² of the product X = ABᵀ with the nuclear norm ‖X‖*, and
    equals it if the factors are balanced (AᵀA = BᵀB is diagonal).
    """

    entries: ObservedEntries  # the observed entries of M
    # the factor μ = λ/r, for the strength λ of dropout and r columns of the factors U and V
    penalty: float

    def residual(self, factors: Factors) -> Matrix:
        """Return the observed entries of M − ABᵀ, for the given matrix M and `factors` A and B."""
        return self.entries.values - self.entries.product(*factors)

    def value(self, residual: Matrix, norm: float) -> float:
        """Return the loss ‖residual‖² + μ · norm², from observed residuals and a nuclear norm.

        μ is the factor of the penalty, the field `penalty`.
        """
        return float(residual @ residual) + self.penalty * norm * norm

    def gradient(self, factors: Factors, residual: Any, norm: float) -> Factors:
        """Return half of the gradient of the completion loss with respect to its factors A and B.

        `residual` is the sparse matrix of the observed entries of M − ABᵀ, for the given matrix M,
        and `norm` is (‖A‖² + ‖B‖²)/2.
        """
        level = self.penalty * norm
        return Factors(
            level * factors.left - residual @ factors.right,
            level * factors.right - residual.T @ factors.left,
        )

    def hessian(self, factors: Factors, residual: Any, norm: float) -> Callable[[Factors], Factors]:
        """Return a function that multiplies a direction by half of the Hessian of the loss.

        A direction consists of changes A' and B' of the factors A and B, and the product is the
        derivative of half of the gradient along it. The residual changes by −P_Ω(A'Bᵀ + AB'ᵀ),
        where P_Ω selects the observed entries, and the nuclear norm by ⟨A, A'⟩ + ⟨B, B'⟩.
        """
        level, entries = self.penalty * norm, self.entries

        def apply(direction: Factors) -> Factors:
            change = entries.product(
                np.hstack([direction.left, factors.left]),
                np.hstack([factors.right, direction.right]),
            )
            moved = entries.sparse(change)
            turned = self.penalty * factors.dot(direction)
            return Factors(
                level * direction.left
                + turned * factors.left
                + moved @ factors.right
                - residual @ direction.right,
                level * direction.right
                + turned * factors.right
                + moved.T @ factors.left
                - residual.T @ direction.left,
            )

        return apply

    def curvatures(self, factors: Factors, norm: float) -> Factors:
        """Return a positive approximation to the diagonal of half of the loss's Hessian.

        It has the shape of the factors A and B; `norm` is (‖A‖² + ‖B‖²)/2.
        """
        mask = self.entries.sparse(np.ones(self.entries.count))
        level = self.penalty * norm
        return Factors(
            mask @ (factors.right * factors.right) + level,
            mask.T @ (factors.left * factors.left) + level,
        )

    def lower_bound(self, residual: Matrix, spectral: float) -> float:
        """Return a lower bound of the smallest loss over all matrices, from the dual problem.

        It is the dual value D(tG) for the best factor t (see the docstring of this module). G is
        the residual of the current matrix on the observed entries (`residual`), and `spectral` is
        its largest singular value ‖G‖₂.
        """
        along = float(residual @ self.entries.values)
        if along <= 0.0:
            return 0.0
        curvature = float(residual @ residual) + spectral * spectral / self.penalty
        return along * along / curvature
