"""What theory says about a spectrum: identifiability, zero latents, rates and residual bounds.

Where the spectrum was not computed, distances to the principal axes are bounded by residuals
(Davis & Kahan 1970 for the angles, Li & Li 2005 for the eigenvalues).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from lucidae.arrays import Array, eigh_descending, namespace, scalar, svd_thin, to_numpy
from lucidae.linear.data import Covariance, ritz_spectrum

Vector = np.ndarray[Any, Any]

NEGLIGIBLE = 1e-6
"""Relative length below which a direction of the decoder counts as missing."""


@dataclass(frozen=True, slots=True)
class ResidualBounds:
    """Upper bounds on the distances to the principal axes.

    Parameters
    ----------
    subspace, alignment : float
        Upper bounds on the two distances, 1 where the gap is not resolved.
    values : ndarray of shape (k,)
        Ritz values of the decoder's subspace, 0 for its missing directions.
    outside : float
        Estimate of the largest eigenvalue outside the subspace, from power iterations.
    """

    subspace: float
    alignment: float
    values: Vector
    outside: float


@dataclass(frozen=True, slots=True)
class Complement:
    """Σ restricted to the orthogonal complement of the columns of `basis`."""

    covariance: Covariance
    basis: Array

    @property
    def trace(self) -> Any:
        """Total variance, inside and outside of the complement."""
        return self.covariance.trace

    @property
    def n_features(self) -> int:
        """Dimension m."""
        return self.covariance.n_features

    def apply(self, rows: Array) -> Array:
        """Return rows (I − QQᵀ)Σ(I − QQᵀ)."""
        image = self.covariance.apply(self._projected(rows))
        return self._projected(image)

    def _projected(self, rows: Array) -> Array:
        return rows - (rows @ self.basis) @ self.basis.mT


def residual_bounds(covariance: Covariance, atoms: Array, n_iter: int = 15) -> ResidualBounds:
    """Bound subspace and alignment distance by ‖ΣQ − QΛ‖ over the gap to the other eigenvalues.

    The largest eigenvalue of the complement is estimated by block power iterations and raised by a
    tenth, so that the bounds hold except for a rare random start of the iterations.
    """
    k, xp = atoms.shape[-2], namespace(atoms)
    directions, strengths, _ = svd_thin(atoms.mT)
    rank = int(np.sum(to_numpy(strengths) > NEGLIGIBLE * to_numpy(strengths)[0]))
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
    # Davis–Kahan: ‖sin Θ‖_F ≤ ‖ΣQ − QΛ‖_F / gap, and the subspace distance is ‖sin Θ‖_F²/k; each
    # missing direction adds 1/k. An eigenvalue lies at most `drift` above its Ritz value.
    subspace = min(1.0, (k - rank + (size / gap) ** 2) / k) if gap > 0 else 1.0
    drift = min(size, size**2 / gap) if gap > 0 else size
    alignment = _alignment_bound(covariance, atoms, unit, _Intervals(values, drift, outside))
    padded = np.concatenate([values, np.zeros(k - rank)])
    return ResidualBounds(subspace, alignment, unit * padded, unit * outside)


@dataclass(frozen=True, slots=True)
class _Intervals:
    """Intervals of eigenvalues: leading ones in [ritz, ritz + drift], others below `outside`."""

    ritz: Vector
    drift: float
    outside: float

    def gap(self, quotient: float, own: int) -> float:
        """Return the least distance of `quotient` to any eigenvalue except number `own`."""
        others = np.delete(self.ritz, own)
        away = np.maximum(others - quotient, quotient - others - self.drift)
        return float(min(np.min(away, initial=np.inf), quotient - self.outside))


def _alignment_bound(
    covariance: Covariance, atoms: Array, unit: float, intervals: _Intervals
) -> float:
    """Return the mean over axes of (‖Σw − ρw‖ / gap)², w the best latent assigned to the axis.

    A latent of unit length with Rayleigh quotient ρ is assigned to the axis of the nearest Ritz
    value; the sine of its angle to that axis is at most ‖Σw − ρw‖ / gap (Davis & Kahan 1970). An
    axis without a latent contributes 1.
    """
    xp, k = namespace(atoms), atoms.shape[-2]
    norms = xp.sqrt(xp.sum(atoms * atoms, axis=-1))
    nonzero = to_numpy(norms) > NEGLIGIBLE * scalar(xp.max(norms))
    rows = atoms / xp.where(norms > 0, norms, xp.ones_like(norms))[:, None]
    image = covariance.apply(rows) / unit
    quotients = xp.sum(image * rows, axis=-1)
    residual = image - quotients[:, None] * rows
    sizes, quotients = to_numpy(xp.sqrt(xp.sum(residual * residual, axis=-1))), to_numpy(quotients)
    costs = np.ones(k)
    for latent in np.flatnonzero(nonzero):
        own = int(np.argmin(np.abs(intervals.ritz - quotients[latent])))
        gap = intervals.gap(float(quotients[latent]), own)
        if gap > 0:
            costs[own] = min(costs[own], (sizes[latent] / gap) ** 2)
    return float(np.mean(costs))


IDENTIFIABLE = 1e-8
"""Relative eigengap below which two components are not identifiable."""


def nonuniform_condition_bound(values: Vector) -> float:
    """Return the paper's lower bound on the condition number of the non-uniform objective.

    2(k−1)(σ₁²−σ_k²) Σ_{1<i<k}(σᵢ²−σ_k²) / (σ₁²σ_k²). Bao et al. 2020, Section 4.3.
    """
    values = np.asarray(values, dtype=float)
    first, last, k = values[0], values[-1], len(values)
    inner = float(np.sum(values[1:-1] - last))
    return float(2 * (k - 1) * (first - last) * inner / (first * last))


def nested_condition_bound(values: Vector) -> float:
    """Return the paper's lower bound 8σ₁²(k−1)²/(σ₁²−σ_k²). Bao et al. 2020, Section 5."""
    values = np.asarray(values, dtype=float)
    spread = values[0] - values[-1]
    return float(8 * values[0] * (len(values) - 1) ** 2 / spread) if spread > 0 else math.inf


def zero_latents(values: Vector, penalties: Vector) -> Vector:
    """Return the latents, counted from 1, whose penalty is at least their eigenvalue.

    They are zero at the global minimum, and each adds 1/k to the subspace and alignment distances.
    """
    values, penalties = np.asarray(values, dtype=float), np.asarray(penalties, dtype=float)
    rank = np.argsort(np.argsort(penalties, kind="stable"))
    return 1 + np.flatnonzero(penalties >= values[rank])


def unidentifiable(values: Vector, k: int) -> Vector:
    """Return the components, counted from 1, that share their eigenvalue with a neighbour.

    A neighbour outside the first k counts as well: then the subspace itself is not determined.
    """
    values = np.asarray(values, dtype=float)[: k + 1]
    close = np.diff(values) > -IDENTIFIABLE * max(values[0], np.finfo(float).tiny)
    both = np.append(close, False) | np.insert(close, 0, False)
    return 1 + np.flatnonzero(both[:k])


def subspace_determined(values: Vector, k: int) -> bool:
    """Return whether the k-th eigenvalue differs from the next one, if there is one."""
    values = np.asarray(values, dtype=float)
    if len(values) <= k:
        return True
    return bool(values[k - 1] - values[k] > IDENTIFIABLE * values[0])


def smallest_gap(values: Vector, k: int) -> float:
    """Return the smallest difference of neighbouring eigenvalues among the first k + 1."""
    values = np.asarray(values, dtype=float)[: k + 1]
    return float(np.min(-np.diff(values))) if len(values) > 1 else float(values[0])


def inner_gap(values: Vector, k: int) -> float:
    """Return the smallest gap between neighbours among the first k eigenvalues, inf for k = 1."""
    return smallest_gap(values[:k], k) if k > 1 else math.inf


def outer_gap(values: Vector, k: int) -> float:
    """Return σ_k² − σ_{k+1}², inf where the (k+1)-th eigenvalue is not given."""
    return float(values[k - 1] - values[k]) if len(values) > k else math.inf


def predicted_epochs(
    rate: float, learning_rate: float, momentum: float, target: float, start: float = 0.5
) -> float:
    """Return the epochs until an alignment distance falls from `start` to `target`.

    The error of the weights decays by exp(−rate·α/(1−μ)) per epoch, and the distance is its square.
    """
    if rate <= 0.0:
        return math.inf
    speed = 2 * rate * learning_rate / (1 - momentum)
    return max(0.0, math.log(start / target) / speed)
