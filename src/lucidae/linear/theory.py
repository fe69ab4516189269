"""What is known about linear autoencoders: bounds, rates and distances, as code.

References: Bao, Lucas, Sachdeva & Grosse 2020; Davis & Kahan 1970.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from lucidae._arrays import Array, eigh_descending, namespace, normal, scalar, to_numpy
from lucidae.linear.covariance import Covariance
from lucidae.linear.hessian import AlignedPoint, hessian_eigenvalues
from lucidae.linear.methods import Method, brockett_ranks
from lucidae.linear.objectives import ExpectedNestedDropout, NonUniformL2

Vector = np.ndarray[Any, Any]

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


@dataclass(frozen=True, slots=True)
class ResidualBounds:
    """Distances bounded by residuals, where the spectrum itself is out of reach.

    Parameters
    ----------
    subspace, alignment : float
        Upper bounds on the two distances (Davis & Kahan 1970), 1 where the gap is not resolved.
    values : ndarray of shape (k,)
        Ritz values of the decoder's subspace.
    outside : float
        Estimate of the largest eigenvalue outside, from power iterations.
    """

    subspace: float
    alignment: float
    values: Vector
    outside: float


def residual_bounds(covariance: Covariance, atoms: Array, n_iter: int = 30) -> ResidualBounds:
    """Bound subspace and alignment distance by ‖ΣU − UΛ‖ over the gap to the rest.

    The rest's largest eigenvalue is estimated by power iterations on the complement and raised by
    a tenth of the distance to the total that is left, so the bounds hold but for a rare start.
    """
    xp = namespace(atoms)
    basis, _ = xp.linalg.qr(atoms.mT)
    image = covariance.apply(basis.mT)
    ritz, turn = eigh_descending((image @ basis + (image @ basis).mT) / 2)
    axes, images = (basis @ turn).mT, turn.mT @ image
    residuals = images - ritz[:, None] * axes
    outside = _largest_outside(covariance, basis, n_iter)
    total = scalar(xp.sum(residuals * residuals))
    gap = scalar(ritz[-1]) - outside
    k = atoms.shape[-2]
    subspace = min(1.0, total / (k * gap * gap)) if gap > 0 else 1.0
    alignment = _alignment_bound(covariance, atoms, to_numpy(ritz), outside)
    return ResidualBounds(subspace, alignment, to_numpy(ritz), outside)


def _largest_outside(covariance: Covariance, basis: Array, n_iter: int) -> float:
    xp = namespace(basis)
    row = normal(np.random.default_rng(0), (1, basis.shape[0]), basis)
    quotient = 0.0
    for _ in range(n_iter):
        row = row - (row @ basis) @ basis.mT
        size = xp.sqrt(xp.sum(row * row))
        if scalar(size) == 0.0:
            return 0.0
        row = row / size
        image = covariance.apply(row)
        quotient = scalar(xp.sum(image * row))
        row = image
    return 1.1 * quotient


def _alignment_bound(covariance: Covariance, atoms: Array, ritz: Vector, outside: float) -> float:
    """Average over latents of (‖Σw − ρw‖ / gap)², w a unit decoder column, at most 1 each."""
    xp = namespace(atoms)
    norms = xp.sqrt(xp.sum(atoms * atoms, axis=-1))
    alive = to_numpy(norms) > 1e-6 * max(scalar(xp.max(norms)), np.finfo(float).tiny)
    unit = atoms / xp.where(norms > 0, norms, xp.ones_like(norms))[:, None]
    image = covariance.apply(unit)
    quotients = xp.sum(image * unit, axis=-1)
    residual = image - quotients[:, None] * unit
    squares, quotients = to_numpy(xp.sum(residual * residual, axis=-1)), to_numpy(quotients)
    terms = []
    for index, quotient in enumerate(quotients):
        nearest = int(np.argmin(np.abs(ritz - quotient)))
        others = np.append(np.delete(ritz, nearest), outside)
        gap = float(np.min(np.abs(others - quotient)))
        terms.append(min(1.0, squares[index] / gap**2) if gap > 0 and alive[index] else 1.0)
    return float(np.mean(terms))
