"""The Gaussian posterior of the coefficients and its mean, without a matrix of all columns.

Φ is the dictionary with d rows, X are the responses, W the relevances and γ the noise variance.
With S = ΦW^½ on the a active columns, U = W^½Z has the posterior covariance W^½ C W^½ and the mean
W^½ C SᵀX/γ, where C = (I + SᵀS/γ)⁻¹ is a × a. Woodbury's identity gives the same in d × d: C = I −
Sᵀ(SSᵀ + γI)⁻¹S and C Sᵀ/γ = Sᵀ(SSᵀ + γI)⁻¹. The smaller of the two is factorised.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lucidae.arrays import (
    Array,
    add_diagonal,
    cholesky,
    device,
    diagonal,
    eye_like,
    namespace,
    put,
    scalar,
    solve_lower,
    to_numpy,
    zeros_like_shape,
)
from lucidae.io.models import saved_as
from lucidae.sparsity.problem import root_by_qr

ILL_CONDITIONED = 1e-8
"""Noise variance, relative to the squares of the scaled columns, below which QR is used.

A Cholesky factor of SᵀS + γI would lose more than half of the digits."""


@dataclass(frozen=True, slots=True)
class ActiveFactor:
    """The active columns with their Cholesky factor L in the smaller dimension.

    `explicit` tells which matrix is LLᵀ: SᵀS + γI (a × a), or else SSᵀ + γI (d × d). If it is
    ill-conditioned, `basis` is B with S = BLᵀ (or Sᵀ = BLᵀ) from a QR decomposition, else None.
    """

    active: np.ndarray[Any, Any]
    roots: Array
    scaled: Array
    lower: Array
    basis: Array | None
    explicit: bool
    n_columns: int

    @classmethod
    def of(cls, dictionary: Array, relevance: Array, noise: float) -> ActiveFactor:
        """Return the factor for a dictionary of weighted and centred rows."""
        xp = namespace(dictionary)
        active = np.flatnonzero(to_numpy(relevance))
        index = xp.asarray(active, device=device(relevance))
        roots = xp.sqrt(xp.take(relevance, index, axis=0))
        scaled = xp.take(dictionary, index, axis=1) * roots[None, :]
        explicit = scaled.shape[1] <= scaled.shape[0]
        gram = scaled.mT @ scaled if explicit else scaled @ scaled.mT
        lower, definite = cholesky(add_diagonal(gram, noise))
        basis = None
        if not bool(definite) or noise < ILL_CONDITIONED * _largest(diagonal(gram)):
            lower, basis = root_by_qr(scaled if explicit else scaled.mT, noise)
        return cls(active, roots, scaled, lower, basis, explicit, relevance.shape[0])

    def mean(self, responses: Array) -> Array:
        """Return the posterior mean U = WΦᵀΣ⁻¹X, of shape (κ, n)."""
        nothing = zeros_like_shape((self.n_columns, responses.shape[1]), responses)
        if not self.active.size:
            return nothing
        return put(nothing, self.active, self.roots[:, None] * self._latent(responses))

    def _latent(self, responses: Array) -> Array:
        """Return the posterior mean in units of the prior's standard deviations, (a, n)."""
        lower, scaled = self.lower, self.scaled
        if self.basis is not None:
            # With S = BLᵀ, L⁻ᵀL⁻¹SᵀX is L⁻ᵀBᵀX, the least-squares solution for [S; √γ I]; with
            # Sᵀ = BLᵀ, SᵀL⁻ᵀL⁻¹X is BL⁻¹X. Products with S would lose the digits that QR keeps.
            if self.explicit:
                return solve_lower(lower, self.basis.mT @ responses, transpose=True)
            return self.basis @ solve_lower(lower, responses)
        if self.explicit:
            half = solve_lower(lower, scaled.mT @ responses)
            return solve_lower(lower, half, transpose=True)
        half = solve_lower(lower, responses)
        return scaled.mT @ solve_lower(lower, half, transpose=True)

    def posterior(self, noise: float) -> Posterior:
        """Return the posterior covariance."""
        if not self.active.size:
            return Posterior(self.active, self.roots, self.lower, self.explicit, self.n_columns)
        if self.explicit:
            root = noise**0.5  # C = γ(SᵀS + γI)⁻¹ = KᵀK with K = √γ L⁻¹
            half = root * solve_lower(self.lower, eye_like(self.lower.shape[0], self.lower))
        else:
            half = solve_lower(self.lower, self.scaled)
        return Posterior(self.active, self.roots, half, self.explicit, self.n_columns)


def _largest(values: Array) -> float:
    """Return the largest entry; 0 if there is none."""
    return scalar(namespace(values).max(values)) if values.shape[0] else 0.0


def posterior_mean(dictionary: Array, responses: Array, relevance: Array, noise: float) -> Array:
    """Return the posterior mean (κ, n): ridge regression with the prior variances `relevance`."""
    return ActiveFactor.of(dictionary, relevance, noise).mean(responses)


@saved_as("lucidae.sparsity.posterior/1", formerly="lucidae.sparsity.posterior:Posterior")
@dataclass(frozen=True, slots=True, eq=False)
class Posterior:
    """Posterior covariance of the coefficients, which all responses share.

    On the active columns it is W^½ Kᵀ K W^½ when there are no more active columns than rows
    (`explicit`), and W^½ (I − KᵀK) W^½ otherwise; elsewhere it is zero.

    Parameters
    ----------
    active : ndarray of int of shape (a,)
        The columns with a positive relevance.
    roots : array of shape (a,)
        Square roots of their relevances.
    factor : array of shape (min(a, d), a)
        The matrix K.
    explicit : bool
        Which of the two forms holds.
    n_columns : int
        κ.
    """

    active: Any
    roots: Array
    factor: Array
    explicit: bool
    n_columns: int

    def variance(self, rows: Array) -> Array:
        """Return xᵀCx with the posterior covariance C for each row x of `rows` (d, κ)."""
        xp = namespace(rows)
        index = xp.asarray(self.active, device=device(rows))
        scaled = xp.take(rows, index, axis=1) * self.roots
        inner = xp.sum((scaled @ self.factor.mT) ** 2, axis=1)
        if self.explicit:
            return inner
        spread = xp.sum(scaled**2, axis=1) - inner
        return xp.maximum(spread, 0.0 * spread)

    def covariance(self, indices: Any) -> Array:
        """Return the covariance of some coefficients, shape (m, m)."""
        xp = namespace(self.roots)
        wanted = np.asarray(indices)
        place = np.full(self.n_columns, -1)
        place[self.active] = np.arange(self.active.size)
        found = place[wanted]
        known = xp.asarray(np.flatnonzero(found >= 0), device=device(self.roots))
        chosen = xp.asarray(found[found >= 0], device=device(self.roots))
        columns = xp.take(self.factor, chosen, axis=1)
        core = columns.mT @ columns
        if not self.explicit:
            core = eye_like(core.shape[0], core) - core
        roots = xp.take(self.roots, chosen, axis=0)
        block = core * roots[:, None] * roots[None, :]
        selection = xp.take(eye_like(wanted.size, self.roots), known, axis=1)
        return selection @ block @ selection.mT
