"""The Gaussian posterior of coefficients that are correlated over the responses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lucidae.sparsity.dictionary import dense_columns


@dataclass(frozen=True, slots=True, eq=False)
class CorrelatedPosterior:
    """Posterior of the coefficients if those of different responses are correlated.

    Let S = ΦW^½ = QD^½Pᵀ on the active columns and B = VΛVᵀ the covariance over the n responses. In
    the basis V the coefficients of response t have the covariance W^½(λₜI − P diag(λₜ²D/(λₜD +
    γ))Pᵀ)W^½.
    """

    active: Any  # (a,): indices of the active columns, those with positive relevance
    roots: Any  # (a,): square roots of their relevances
    # (r, a): the matrix Pᵀ and the diagonal of D, where r is the smaller of a and the number of
    # rows
    directions: Any
    powers: Any
    values: Any  # (n,): eigenvalues λ and eigenvectors V of B
    vectors: Any
    noise: float  # the noise variance γ
    n_columns: int  # number of all columns of the dictionary

    @classmethod
    def fitted(
        cls,
        dictionary: Any,
        responses: Any,
        relevance: Any,
        noise: float,
        values: Any,
        vectors: Any,
    ) -> tuple[CorrelatedPosterior, Any]:
        """Return the posterior, and its mean of shape (n_columns, n_responses)."""
        active = np.flatnonzero(relevance)
        roots = np.sqrt(relevance[active])
        scaled = dense_columns(dictionary, active) * roots
        basis, singular, directions = np.linalg.svd(scaled, full_matrices=False)
        shrunk = np.outer(singular, values) / (np.outer(singular**2, values) + noise)
        latent = (shrunk * (basis.T @ responses @ vectors)) @ vectors.T
        mean = np.zeros((relevance.size, responses.shape[1]))
        mean[active] = roots[:, None] * (directions.T @ latent)
        powers = singular**2
        return cls(active, roots, directions, powers, values, vectors, noise, relevance.size), mean

    @property
    def _explained(self) -> Any:
        """Return λₜ²D/(λₜD + γ) along directions, rotated back to the responses, (r, n)."""
        ratios = self.values**2 * self.powers[:, None]
        return (ratios / (np.outer(self.powers, self.values) + self.noise)) @ (self.vectors**2).T

    def variance(self, rows: Any) -> Any:
        """Return the posterior variance of each predicted mean, of shape (n_rows, n_responses)."""
        return self.active_variance(rows[:, self.active])

    def active_variance(self, columns: Any) -> Any:
        """Return `variance` for rows of the active columns alone."""
        scaled = columns * self.roots
        prior = (scaled**2).sum(axis=1)[:, None] * (self.vectors**2 @ self.values)
        spread = prior - (scaled @ self.directions.T) ** 2 @ self._explained
        return np.maximum(spread, 0.0)

    def covariance(self, indices: Any) -> Any:
        """Return the posterior covariance matrices of the coefficients of the columns `indices`."""
        place = np.full(self.n_columns, -1)
        place[self.active] = np.arange(self.active.size)
        found = place[np.asarray(indices)]
        roots = np.where(found >= 0, np.append(self.roots, 0.0)[found], 0.0)
        chosen = self.directions[:, found]
        explained = np.einsum("ri,rs,rj->sij", chosen, self._explained, chosen)
        same = np.asarray(indices)[:, None] == np.asarray(indices)
        prior = (self.vectors**2 @ self.values)[:, None, None] * same
        return (prior - explained) * roots[:, None] * roots
