"""Leading eigenpairs of a second moment, and their computation from few rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

from lucidae.arrays import (
    Array,
    as_double,
    eigh_descending,
    machine_epsilon,
    namespace,
    svd_thin,
    to_numpy,
)
from lucidae.arrays.eigen import fix_signs
from lucidae.io.models import saved_as
from lucidae.linear.weights import orthonormal_rows

TINY = float(np.finfo(float).tiny)
"""The smallest normal number, a lower limit of sizes by which figures are divided."""


@saved_as("lucidae.linear.spectrum/1", formerly="lucidae.linear.spectrum:Spectrum")
@dataclass(frozen=True, slots=True)
class Spectrum:
    """Leading eigenvalues (descending) and eigenvectors (columns) of a second moment Σ of data.

    Parameters
    ----------
    values : array of shape (q,)
        Leading eigenvalues, q ≤ m.
    vectors : array of shape (m, q)
        Their eigenvectors.
    trace : float
        Sum of all m eigenvalues.
    """

    values: Array
    vectors: Array
    trace: float

    @property
    def n_features(self) -> int:
        """Dimension m."""
        return int(self.vectors.shape[0])

    def leading(self, k: int) -> Spectrum:
        """Return the first `k` eigenpairs."""
        return Spectrum(self.values[:k], self.vectors[:, :k], self.trace)

    def noise(self, k: int) -> float:
        """Return the mean of the eigenvalues after the first `k`, 0 when there are none."""
        m = self.n_features
        if k >= m:
            return 0.0
        leading = float(namespace(self.values).sum(self.values[:k]))
        return max(0.0, self.trace - leading) / (m - k)

    def rank(self) -> int:
        """Return the numerical rank: the number of eigenvalues above m·ε times the largest."""
        return int(np.sum(self.resolved(int(self.values.shape[0])) > 0.0))

    def resolved(self, q: int) -> np.ndarray[Any, Any]:
        """Return the first `q` eigenvalues; those below their rounding error become zero.

        The error is m·ε times the largest eigenvalue. Eigenvalues that were not computed because
        there are fewer rows than features are zero as well. The result does therefore not depend
        on whether the eigenvalues were computed from rows or from a moment.
        """
        values = to_numpy(self.values)
        floor = machine_epsilon(self.values) * self.n_features * values[0]
        padded = np.append(values, np.zeros(max(0, min(q, self.n_features) - len(values))))
        return np.where(padded > floor, padded, 0.0)[:q]


def spectrum_of_rows(X: Any, mean: Array, weights: Array | None, total: float) -> Spectrum:
    """Return all non-trivial eigenpairs of few rows (n < m) without an m × m matrix.

    Dense rows are decomposed by a singular value decomposition. For sparse rows the n × n Gram
    matrix is used; its eigenvalues below the square root of the rounding unit are lost.
    """
    if scipy.sparse.issparse(X):
        return _spectrum_of_sparse_rows(X, mean, weights, total)
    xp = namespace(X)
    centred = as_double(X) - mean
    if weights is not None:
        centred = centred * xp.sqrt(weights)[:, None]
    _, singular, right = svd_thin(centred)
    values = singular * singular / total
    return Spectrum(values, fix_signs(right.mT), float(xp.sum(values)))


def _spectrum_of_sparse_rows(X: Any, mean: Array, weights: Array | None, total: float) -> Spectrum:
    # With centred, weighted rows A = R(X − 1μᵀ) the Gram matrix AAᵀ follows from XXᵀ and Xμ without
    # a dense A, and an eigenpair (λ, u) of AAᵀ gives the eigenvector Aᵀu/√λ of AᵀA.
    X = X.astype(np.float64)
    root = np.ones(X.shape[0]) if weights is None else np.sqrt(weights)
    projected = X @ mean
    gram = (X @ X.T).toarray() - projected[:, None] - projected[None, :] + mean @ mean
    values, left = eigh_descending(gram * root[:, None] * root[None, :] / total)
    resolved = values > np.sqrt(machine_epsilon(values)) * values[0]
    scaled = left[:, resolved] * root[:, None] / np.sqrt(values[resolved] * total)
    # A column inherits the error ε λ₁/λ of its u. The columns before it are more accurate, and
    # orthogonalising against them removes most of the error.
    vectors = orthonormal_rows((X.T @ scaled - mean[:, None] * scaled.sum(axis=0)).T).T
    return Spectrum(values[resolved], fix_signs(vectors), float(np.clip(values, 0, None).sum()))
