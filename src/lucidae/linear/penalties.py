"""Choosing ℓ₂ penalties: the paper's problem, and the truly best conditioned ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.optimize

from lucidae.linear.hessian import (
    AlignedPoint,
    condition_number,
    hessian_eigenvalues,
    rotation_blocks,
)

Vector = np.ndarray[Any, Any]

COARSE, FINE = 1e-6, 1e-11
"""Relative accuracy of the penalties while searching and at the end."""


def rotation_bound(values: Vector, penalties: Vector) -> float:
    """Return the largest ratio of Bao et al. 2020, eq. 16, over adjacent latents."""
    kept = 1 - penalties / values
    gaps = (penalties[1:] - penalties[:-1]) * (kept[:-1] - kept[1:])
    return float(np.max(2 * (values[0] - values[-1]) * (kept[1:] + kept[:-1]) / gaps))


def paper_penalties(values: Vector) -> Vector:
    """Return the penalties that minimise the largest ratio of Bao et al. 2020, eq. 16 (Figure 5).

    For a trial ratio, walk up from λ₁ = 0 taking each time the smallest feasible next λ, and
    bisect the ratio until λ_k = σ_k². These do not minimise the condition number of the true
    Hessian, which they make singular: see `best_penalties`.

    Parameters
    ----------
    values : ndarray of shape (k,)
        Leading eigenvalues, descending and positive.
    """
    values = _positive_descending(values)
    if len(values) == 1:
        return np.array([0.0])

    def excess(log_ratio: float) -> float:
        return float(_walk_paper(values, np.exp(log_ratio))[-1] - values[-1])

    low, high = _bracket(excess)
    log_ratio = scipy.optimize.brentq(excess, low, high, xtol=1e-13)
    walked: Vector = np.minimum(_walk_paper(values, np.exp(log_ratio)), values[-1])
    return walked


def _walk_paper(values: Vector, ratio: float) -> Vector:
    """Return λ₁ = 0, λ₂, … with each adjacent ratio of eq. 16 equal to `ratio`."""
    spread = max(2 * (values[0] - values[-1]), np.finfo(float).tiny)
    walked = np.zeros(len(values))
    for j in range(len(values) - 1):
        walked[j + 1] = _next_paper(values[j], values[j + 1], walked[j], ratio / spread)
    return walked


def _next_paper(own: float, following: float, penalty: float, ratio: float) -> float:
    """Solve ratio·(x − λ)(ν − 1 + x/σ²) = ν + 1 − x/σ² for x > λ: a quadratic in x."""
    kept = 1 - penalty / own
    # With y = x − λ and ν' = 1 − (λ + y)/σ'²: ratio·y·(c + y/σ'²) + y/σ'² − b = 0.
    shift = kept - (1 - penalty / following)
    total = kept + 1 - penalty / following
    square, linear = ratio / following, ratio * shift + 1 / following
    root = np.sqrt(linear * linear + 4 * square * max(total, 0.0))
    return float(penalty + 2 * max(total, 0.0) / (linear + root))


def best_penalties(values: Vector, k: int) -> Vector:
    """Return the penalties in (0, σ_k²) with the smallest true condition number of the Hessian.

    The smallest eigenvalue of the block spectrum is raised as far as it goes: for a first penalty
    and a trial value, walk up taking each time the smallest λ whose rotation block with its
    predecessor reaches the value. A one-dimensional search over the first penalty remains.

    Parameters
    ----------
    values : ndarray of shape (q,)
        Leading eigenvalues, descending, q ≥ k; the (k+1)-th onward are outside the subspace.
    k : int
        Number of latents. Latents beyond the rank get penalties that let them die.
    """
    values = np.asarray(values, dtype=float)
    alive = int(np.sum(values[:k] > 1e-12 * values[0])) if values[0] > 0 else 0
    if alive == 0:
        return np.linspace(0.5, 1.0, k) if k > 1 else np.array([0.5])
    inside = np.concatenate([values[:alive], values[k:]])
    chosen = _best_alive(inside, alive)
    beyond = values[alive - 1] * (1 + np.arange(1, k - alive + 1) / k)
    return np.concatenate([chosen, beyond])


def _best_alive(values: Vector, k: int) -> Vector:
    smallest = values[k - 1]
    if k == 1:
        return np.array([_best_single(values)])

    def condition(first: float) -> float:
        trial = _raise_floor(values, k, first, accuracy=COARSE)
        return condition_number(AlignedPoint.nonuniform(values, trial))

    search = scipy.optimize.minimize_scalar(
        condition,
        bounds=(1e-3 * smallest / k**2, smallest),
        method="bounded",
        options={"xatol": 1e-2 * smallest / k},
    )
    return _raise_floor(values, k, float(search.x), accuracy=FINE)


def _best_single(values: Vector) -> float:
    search = scipy.optimize.minimize_scalar(
        lambda penalty: condition_number(AlignedPoint.nonuniform(values, np.array([penalty]))),
        bounds=(1e-6 * values[0], values[0] * (1 - 1e-6)),
        method="bounded",
        options={"xatol": 1e-6 * values[0]},
    )
    return float(search.x)


def _raise_floor(values: Vector, k: int, first: float, accuracy: float) -> Vector:
    """Return the penalties from `first` on whose smallest Hessian eigenvalue is largest."""

    def slack(floor: float) -> float:
        walked = _walk_blocks(values, k, first, floor, accuracy)
        return float(4 * (values[k - 1] - walked[-1]) - floor)

    high = 4 * values[k - 1]
    floor = scipy.optimize.brentq(slack, 0.0, high, xtol=1e-3 * accuracy * high, rtol=accuracy)
    return _walk_blocks(values, k, first, floor * (1 - 2 * accuracy), accuracy)


def _walk_blocks(values: Vector, k: int, first: float, floor: float, accuracy: float) -> Vector:
    """Walk up from `first`, each rotation block with the last at least `floor`."""
    walked = np.full(k, first)
    for j in range(1, k):
        pair, limit = values[j - 1 : j + 1], float(values[j])
        walked[j] = _next_penalty(pair, float(walked[j - 1]), limit, floor, accuracy)
        if walked[j] > limit:
            walked[j:] = walked[j] + np.arange(k - j) * floor
            break
    return walked


def _next_penalty(pair: Vector, last: float, limit: float, floor: float, accuracy: float) -> float:
    """Return the smallest λ whose block reaches `floor`, or one above `limit` if none does.

    The smallest eigenvalue of the block increases with λ on [last, limit].
    """

    def excess(penalty: float) -> float:
        return _pair_floor(pair, last, penalty) - floor

    if last >= limit or excess(limit) < 0.0:
        return max(last, limit) + floor
    if excess(last) >= 0.0:
        return last
    root: float = scipy.optimize.brentq(
        excess, last, limit, xtol=1e-3 * accuracy * limit, rtol=accuracy
    )
    return root


def _pair_floor(pair: Vector, own: float, following: float) -> float:
    """Return the smallest eigenvalue of the rotation block of two latents."""
    kept = np.sqrt(np.maximum(0.0, 1 - np.array([own, following]) / pair))
    point = AlignedPoint(pair, kept, kept, np.array([own, following]), np.ones(2))
    return float(np.linalg.eigvalsh(rotation_blocks(point)[0])[0])


def _bracket(excess: Any) -> tuple[float, float]:
    low, high = -2.0, 2.0
    while excess(low) < 0:
        low -= 4.0
    while excess(high) > 0:
        high += 4.0
    return low, high


def _positive_descending(values: Vector) -> Vector:
    values = np.asarray(values, dtype=float)
    if values.ndim != 1 or len(values) < 1 or values[-1] <= 0 or np.any(np.diff(values) > 0):
        raise ValueError(
            "values must be a vector of positive eigenvalues in descending order, got "
            f"{np.array2string(values, threshold=6, precision=3)}."
        )
    return values


def smallest_curvature(values: Vector, penalties: Vector) -> float:
    """Return the smallest eigenvalue of the Hessian at the global minimum."""
    return float(hessian_eigenvalues(AlignedPoint.nonuniform(values, penalties))[0])
