"""The Gaussian posterior of the coefficients, never formed as κ × κ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lucidae.arrays import (
    Array,
    add_diagonal,
    cholesky,
    device,
    eye_like,
    namespace,
    solve_lower,
    to_numpy,
)
from lucidae.io.models import saved_as


@saved_as("lucidae.sparsity.posterior/1", formerly="lucidae.sparsity.posterior:Posterior")
@dataclass(frozen=True, slots=True, eq=False)
class Posterior:
    """Covariance that all responses share, on the active columns.

    It is W^½ Kᵀ K W^½ when there are no more active columns than rows (`explicit`), and
    W^½ (I − KᵀK) W^½ otherwise; elsewhere it is zero.

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

    @classmethod
    def of(cls, dictionary: Array, relevance: Array, noise: float) -> Posterior:
        """Factorise the posterior of whitened rows in its smaller dimension."""
        xp = namespace(dictionary)
        active = np.flatnonzero(to_numpy(relevance))
        index = xp.asarray(active, device=device(relevance))
        roots = xp.sqrt(xp.take(relevance, index, axis=0))
        scaled = xp.take(dictionary, index, axis=1) * roots[None, :]
        rows, columns = scaled.shape
        explicit = columns <= rows
        if explicit:
            factor, _ = cholesky(add_diagonal(scaled.mT @ scaled / noise, 1.0))
            half = solve_lower(factor, eye_like(columns, factor))
        else:
            factor, _ = cholesky(add_diagonal(scaled @ scaled.mT, noise))
            half = solve_lower(factor, scaled)
        return cls(active, roots, half, explicit, relevance.shape[0])

    def variance(self, rows: Array) -> Array:
        """Return xᵀCx for each row x of `rows` (d, κ)."""
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
        spread = eye_like(wanted.size, self.roots)
        selection = xp.take(spread, known, axis=1)
        return selection @ block @ selection.mT
