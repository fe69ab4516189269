"""Distances to the principal axes bounded by residuals, where the spectrum is out of reach.

References: Davis & Kahan 1970 for the angles; Li & Li 2005 for the eigenvalues.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from lucidae.arrays import Array, eigh_descending, namespace, scalar, svd_thin, to_numpy
from lucidae.linear.data import Covariance, ritz_spectrum
from lucidae.linear.hessian import AlignedPoint, hessian_eigenvalues
from lucidae.linear.methods import Method, brockett_ranks
from lucidae.linear.objectives import ExpectedNestedDropout, NonUniformL2

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


IDENTIFIABLE = 1e-8
"""Relative eigengap below which two components cannot be told apart."""


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


def dying_latents(values: Vector, penalties: Vector) -> Vector:
    """Return the latents, counted from 1, whose penalty is at least their eigenvalue.

    At the global minimum they are dead; each costs 1/k of subspace and alignment distance.
    """
    values, penalties = np.asarray(values, dtype=float), np.asarray(penalties, dtype=float)
    rank = np.argsort(np.argsort(penalties, kind="stable"))
    return 1 + np.flatnonzero(penalties >= values[rank])


def unidentifiable(values: Vector, k: int) -> Vector:
    """Return the components, counted from 1, that share their eigenvalue with a neighbour.

    A neighbour outside the first k counts too: then the subspace itself is not determined.
    """
    values = np.asarray(values, dtype=float)[: k + 1]
    close = np.diff(values) > -IDENTIFIABLE * max(values[0], np.finfo(float).tiny)
    both = np.append(close, False) | np.insert(close, 0, False)
    return 1 + np.flatnonzero(both[:k])


def subspace_determined(values: Vector, k: int) -> bool:
    """Tell whether the k-th eigenvalue differs from the next one, if there is one."""
    values = np.asarray(values, dtype=float)
    if len(values) <= k:
        return True
    return bool(values[k - 1] - values[k] > IDENTIFIABLE * values[0])


def smallest_gap(values: Vector, k: int) -> float:
    """Return the smallest difference of neighbouring eigenvalues among the first k + 1."""
    values = np.asarray(values, dtype=float)[: k + 1]
    return float(np.min(-np.diff(values))) if len(values) > 1 else float(values[0])


def alignment_rate(method: Method, values: Vector, k: int) -> float | None:
    """Return how fast the slowest misalignment decays per unit of training time.

    RAG rotates at half of the smallest eigengap g (Theorem 5 with Algorithm 1's ½) and leaves the
    complement at σ_k² − σ_{k+1}²; Sanger's rule has the gap itself; Brockett's weights it; the
    objectives have the smallest non-zero eigenvalue of their Hessian. None: nothing is known, or
    the method does not align.
    """
    values = np.asarray(values, dtype=float)
    if method.name == "rag":
        return _smallest_positive([_inner_gap(values, k) / 2, _outer_gap(values, k)])
    if method.name == "gha":
        return _smallest_positive([_inner_gap(values, k), _outer_gap(values, k)])
    if method.name == "brockett":
        ranks = brockett_ranks(k)
        return _smallest_positive(
            [_inner_gap(values, k) / k, 2 * ranks[-1] * _outer_gap(values, k)]
        )
    curvatures = objective_curvatures(method, values)
    if curvatures is None or not method.aligns:
        return None
    return _smallest_positive(curvatures[curvatures > 1e-12 * curvatures[-1]])


def objective_curvatures(method: Method, values: Vector) -> Vector | None:
    """Return the Hessian's eigenvalues at the method's optimum where they are known."""
    if isinstance(method.objective, NonUniformL2):
        penalties = to_numpy(method.objective.penalties)
        return hessian_eigenvalues(AlignedPoint.nonuniform(values, penalties))
    if isinstance(method.objective, ExpectedNestedDropout):
        return hessian_eigenvalues(AlignedPoint.nested(values, to_numpy(method.objective.prior)))
    return None


def predicted_epochs(
    rate: float, learning_rate: float, momentum: float, target: float, start: float = 0.5
) -> float:
    """Return the epochs until an alignment distance falls from `start` to `target`.

    The weights' error decays by exp(−rate·α/(1−μ)) an epoch and the distance is its square.
    """
    if rate <= 0.0:
        return math.inf
    speed = 2 * rate * learning_rate / (1 - momentum)
    return max(0.0, math.log(start / target) / speed)


def _inner_gap(values: Vector, k: int) -> float:
    return smallest_gap(values[:k], k) if k > 1 else math.inf


def _outer_gap(values: Vector, k: int) -> float:
    return float(values[k - 1] - values[k]) if len(values) > k else math.inf


def _smallest_positive(rates: Any) -> float:
    rates = np.asarray(rates, dtype=float)
    return float(np.min(rates)) if rates.size else 0.0
