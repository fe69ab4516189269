"""Distances to the principal axes bounded by residuals, where the spectrum is out of reach.

References: Davis & Kahan 1970 for the angles; Li & Li 2005 for the eigenvalues.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lucidae._arrays import Array, eigh_descending, namespace, scalar, svd_thin, to_numpy
from lucidae.linear.covariance import Covariance
from lucidae.linear.spectrum import ritz_spectrum

Vector = np.ndarray[Any, Any]

DEAD = 1e-6
"""Relative singular value below which a direction of the decoder counts as missing."""


@dataclass(frozen=True, slots=True)
class ResidualBounds:
    """Distances bounded by residuals.

    Parameters
    ----------
    subspace, alignment : float
        Upper bounds on the two distances, 1 where the gap is not resolved.
    values : ndarray of shape (k,)
        Ritz values of the decoder's subspace, 0 where it has none.
    outside : float
        Estimate of the largest eigenvalue outside, from power iterations.
    """

    subspace: float
    alignment: float
    values: Vector
    outside: float


@dataclass(frozen=True, slots=True)
class Complement:
    """Σ between projections on what is orthogonal to the columns of `basis`."""

    covariance: Covariance
    basis: Array

    @property
    def trace(self) -> Any:
        """Total variance, inside and outside."""
        return self.covariance.trace

    @property
    def n_features(self) -> int:
        """Dimension m."""
        return self.covariance.n_features

    def apply(self, rows: Array) -> Array:
        """Return rows (I − QQᵀ)Σ(I − QQᵀ)."""
        image = self.covariance.apply(self._off(rows))
        return self._off(image)

    def _off(self, rows: Array) -> Array:
        return rows - (rows @ self.basis) @ self.basis.mT


def residual_bounds(covariance: Covariance, atoms: Array, n_iter: int = 15) -> ResidualBounds:
    """Bound subspace and alignment distance by ‖ΣQ − QΛ‖ over the gap to the rest.

    The rest's largest eigenvalue is estimated by block power iterations on the complement and
    raised by a tenth, so the bounds hold but for a rare start.
    """
    k, xp = atoms.shape[-2], namespace(atoms)
    directions, strengths, _ = svd_thin(atoms.mT)
    rank = int(np.sum(to_numpy(strengths) > DEAD * to_numpy(strengths)[0]))
    basis = directions[:, :rank]
    image = covariance.apply(basis.mT)
    inside = image @ basis
    ritz, turn = eigh_descending((inside + inside.mT) / 2)
    unit = scalar(ritz[0]) if rank else 0.0
    if unit <= 0.0:
        return ResidualBounds(1.0, 1.0, np.zeros(k), 0.0)
    residuals = (turn.mT @ image - ritz[:, None] * (basis @ turn).mT) / unit
    size = scalar(xp.linalg.matrix_norm(residuals, ord="fro"))
    rest = ritz_spectrum(Complement(covariance, basis), 1, basis, n_iter=n_iter)
    outside = 1.1 * max(0.0, scalar(rest.values[0])) / unit
    values = to_numpy(ritz) / unit
    gap = float(values[-1]) - outside
    subspace = min(1.0, (k - rank + (size / gap) ** 2) / k) if gap > 0 else 1.0
    drift = min(size, size**2 / gap) if gap > 0 else size
    alignment = _alignment_bound(covariance, atoms, unit, _Rest(values, drift, outside))
    padded = np.concatenate([values, np.zeros(k - rank)])
    return ResidualBounds(subspace, alignment, unit * padded, unit * outside)


@dataclass(frozen=True, slots=True)
class _Rest:
    """Where the eigenvalues are: each leading one in [ritz, ritz + drift], the rest below."""

    ritz: Vector
    drift: float
    outside: float

    def gap(self, quotient: float, own: int) -> float:
        """Return the least distance of `quotient` to any eigenvalue but number `own`."""
        others = np.delete(self.ritz, own)
        away = np.maximum(others - quotient, quotient - others - self.drift)
        return float(min(np.min(away, initial=np.inf), quotient - self.outside))


def _alignment_bound(covariance: Covariance, atoms: Array, unit: float, rest: _Rest) -> float:
    """Return the mean over axes of (‖Σw − ρw‖ / gap)², w the latent that serves the axis best.

    A latent serves the axis whose Ritz value is nearest to its own quotient ρ; an axis that none
    serves costs 1.
    """
    xp, k = namespace(atoms), atoms.shape[-2]
    norms = xp.sqrt(xp.sum(atoms * atoms, axis=-1))
    alive = to_numpy(norms) > DEAD * scalar(xp.max(norms))
    rows = atoms / xp.where(norms > 0, norms, xp.ones_like(norms))[:, None]
    image = covariance.apply(rows) / unit
    quotients = xp.sum(image * rows, axis=-1)
    residual = image - quotients[:, None] * rows
    sizes, quotients = to_numpy(xp.sqrt(xp.sum(residual * residual, axis=-1))), to_numpy(quotients)
    costs = np.ones(k)
    for latent in np.flatnonzero(alive):
        own = int(np.argmin(np.abs(rest.ritz - quotients[latent])))
        gap = rest.gap(float(quotients[latent]), own)
        if gap > 0:
            costs[own] = min(costs[own], (sizes[latent] / gap) ** 2)
    return float(np.mean(costs))
