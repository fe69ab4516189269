"""Leading eigenvalues and eigenvectors of a second moment, and their computation from few rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

from lucidae.arrays import (
    Array,
    as_double,
    eigh_descending,
    fields_beside,
    machine_epsilon,
    namespace,
    svd_thin,
    to_numpy,
)
from lucidae.arrays.eigen import fix_signs, orthonormal_rows

TINY = float(np.finfo(float).tiny)
"""The smallest normal float64 number, used in place of zero if one would divide by zero."""


@dataclass(frozen=True, slots=True)
class Spectrum:
    """Leading eigenvalues and eigenvectors of the second moment of data.

    Parameters
    ----------
    values : array of shape (q,)
        The q leading eigenvalues, descending; q is at most the number of features m.
    vectors : array of shape (m, q)
        Their eigenvectors, one per column.
    trace : float
        Sum of all m eigenvalues.
    beyond : float or None
        Sum of the m − q other eigenvalues if it was computed from the rows
        (`lucidae.rows.deflation`), so that it is accurate even if it is tiny compared with
        `trace`, and so are all eigenvalues. None if it is known as a difference alone.
    """

    values: Array
    vectors: Array
    trace: float
    beyond: float | None = None

    @property
    def n_features(self) -> int:
        """Number of features m."""
        return int(self.vectors.shape[0])

    def leading(self, k: int) -> Spectrum:
        """Return the spectrum with its first `k` eigenvalues and eigenvectors alone."""
        beyond = self.beyond
        if beyond is not None:
            beyond += float(namespace(self.values).sum(self.values[k:]))
        return Spectrum(self.values[:k], self.vectors[:, :k], self.trace, beyond)

    def beside(self, ref: Array) -> Spectrum:
        """Return the spectrum in the library and on the device of the array `ref`."""
        moved: Spectrum = fields_beside(self, ref)
        return moved

    def noise(self, k: int) -> float:
        """Return the mean of all eigenvalues after the first `k`; 0 if there are none.

        This is the noise variance of probabilistic PCA with `k` components.
        """
        m = self.n_features
        if k >= m:
            return 0.0
        if self.beyond is not None and k <= self.values.shape[0]:
            rest = float(namespace(self.values).sum(self.values[k:]))
            return max(0.0, rest + self.beyond) / (m - k)
        leading = float(namespace(self.values).sum(self.values[:k]))
        return max(0.0, self.trace - leading) / (m - k)

    def rank(self) -> int:
        """Return the numerical rank: the number of eigenvalues above their rounding error.

        The error is m·ε times the largest eigenvalue, for m features and the machine epsilon ε.
        """
        return int(np.sum(self.resolved(int(self.values.shape[0])) > 0.0))

    def resolved(self, q: int) -> np.ndarray[Any, Any]:
        """Return the first `q` eigenvalues; those below their rounding error are set to zero.

        The error is m·ε times the largest eigenvalue, for m features and the machine epsilon ε.
        Eigenvalues that were not computed, because there are fewer rows than features, are zero as
        well. The result is therefore the same for eigenvalues from rows and from a second moment.
        """
        values = to_numpy(self.values)
        floor = machine_epsilon(self.values) * self.n_features * float(values.max(initial=0.0))
        padded = np.append(values, np.zeros(max(0, min(q, self.n_features) - len(values))))
        return np.where(padded > floor, padded, 0.0)[:q]


def spectrum_of_rows(X: Any, mean: Array, weights: Array | None, total: float) -> Spectrum:
    """Return the eigenvalues and eigenvectors of the covariance of fewer rows than features.

    No matrix of shape (m, m) is formed. Dense rows are decomposed by a singular value
    decomposition. For sparse rows the eigenvalues of the n × n Gram matrix are computed; those
    below the square root of the machine epsilon times the largest are left out.
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
    if not resolved.any():  # equal rows: any unit vector belongs to the eigenvalue zero
        return Spectrum(0.0 * values[:1], np.eye(X.shape[1], 1), 0.0)
    scaled = left[:, resolved] * root[:, None] / np.sqrt(values[resolved] * total)
    # A column inherits the error ε λ₁/λ of its u. The columns before it are more accurate, and
    # orthogonalising against them removes most of the error.
    vectors = orthonormal_rows((X.T @ scaled - mean[:, None] * scaled.sum(axis=0)).T).T
    return Spectrum(values[resolved], fix_signs(vectors), float(np.clip(values, 0, None).sum()))
