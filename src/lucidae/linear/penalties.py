"""Choosing ℓ₂ penalties: the paper's problem, and the truly best conditioned ones."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.optimize

from lucidae.linear.hessian import (
    AlignedPoint,
    condition_number,
    hessian_eigenvalues,
)

Vector = np.ndarray[Any, Any]

COARSE, FINE = 1e-5, 1e-11
"""Relative accuracy of the penalties while searching and at the end."""

FIRST_TRIALS = 16
"""Trial values of the first penalty: the condition number may have several minima in it."""

DIGITS = 3
"""Decimals kept of the logarithm of the first penalty's share of σ_k²."""

TIE = 1e-8
"""Relative difference below which two eigenvalues count as equal."""


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
    levelled: Vector = values[0] * _level_paper(values / values[0])
    return levelled


def _level_paper(values: Vector) -> Vector:
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
    predecessor reaches the value. A search over the first penalty remains; what other walks could
    gain is at most a few per cent, where the eigenvalue behind the subspace is close.

    Parameters
    ----------
    values : ndarray of shape (q,)
        Leading eigenvalues, descending, q ≥ k; the (k+1)-th onward are outside the subspace.
    k : int
        Number of latents. Latents beyond the rank get penalties that let them die.
    """
    values = np.asarray(values, dtype=float)
    unit = float(values[0])
    alive = int(np.sum(values[:k] > 1e-12 * unit)) if unit > 0 else 0
    if alive == 0:
        return np.linspace(0.5, 1.0, k) if k > 1 else np.array([0.5])
    inside, outside = values[:alive], values[k:]
    # Equal eigenvalues leave flat directions, whatever the penalties: they count once.
    outside = outside[outside < inside[-1] * (1 - TIE)]
    fresh = np.append(True, inside[1:] < inside[:-1] * (1 - TIE))
    distinct = np.concatenate([inside[fresh], outside]) / unit
    chosen = unit * _best_alive(distinct, int(fresh.sum()))[np.cumsum(fresh) - 1]
    beyond = values[alive - 1] * (1 + np.arange(1, k - alive + 1) / k)
    return np.concatenate([chosen, beyond])


def _best_alive(values: Vector, k: int) -> Vector:
    def condition(log_first: float) -> float:
        trial = _raise_floor(values, k, np.exp(log_first), COARSE)
        # A trial may leave the Hessian singular; a search bears no infinities.
        return math.log(min(condition_number(AlignedPoint.nonuniform(values, trial)), 1e300))

    trials = np.log(values[k - 1] * np.geomspace(1e-3 / k**2, 1 - 1e-6, FIRST_TRIALS))
    best = int(np.argmin([condition(trial) for trial in trials]))
    search = scipy.optimize.minimize_scalar(
        condition,
        bounds=(trials[max(best - 1, 0)], trials[min(best + 1, FIRST_TRIALS - 1)]),
        method="bounded",
        options={"xatol": 1e-2 * 10.0**-DIGITS},
    )
    # The search wanders by rounding where the condition number is flat. A coarse first penalty
    # costs nothing and gives the same penalties for the same data in another order.
    share = round(search.x - math.log(values[k - 1]), DIGITS)
    return _raise_floor(values, k, float(values[k - 1] * math.exp(share)), FINE)


def _raise_floor(values: Vector, k: int, first: float, accuracy: float) -> Vector:
    """Return the penalties from `first` on whose smallest Hessian eigenvalue is largest."""
    if k == 1:
        return np.array([first])
    inside: list[float] = values[:k].tolist()

    def slack(floor: float) -> float:
        walked = _walk_blocks(inside, first, floor, accuracy)
        return 4 * (inside[-1] - walked[-1]) - floor

    high = 4 * inside[-1]
    floor = scipy.optimize.brentq(slack, 0.0, high, xtol=1e-3 * accuracy * high, rtol=accuracy)
    return np.array(_walk_blocks(inside, first, floor * (1 - 2 * accuracy), accuracy))


def _walk_blocks(values: list[float], first: float, floor: float, accuracy: float) -> list[float]:
    """Walk up from `first`, each rotation block with the last at least `floor`."""
    walked = [first]
    for own, following in pairwise(values):
        walked.append(_next_penalty(own, following, walked[-1], floor, accuracy))
    return walked


def _next_penalty(
    own: float, following: float, last: float, floor: float, accuracy: float
) -> float:
    """Return the smallest λ whose block reaches `floor`, or one above its limit if none does.

    The smallest eigenvalue of the block increases with λ between the last penalty and σ².
    """

    def excess(penalty: float) -> float:
        return _pair_excess(own, following, last, penalty, floor)

    if last >= following or excess(following) < 0.0:
        return max(last, following) + floor
    if excess(last) >= 0.0:
        return last
    root: float = scipy.optimize.brentq(
        excess, last, following, xtol=1e-3 * accuracy * following, rtol=accuracy
    )
    return root


def _pair_excess(own: float, following: float, last: float, penalty: float, floor: float) -> float:
    """Return a number of the sign of (smallest eigenvalue of a rotation block) − `floor`.

    The block's second and fourth variables do not meet, so their elimination leaves a 2 × 2 Schur
    complement with as many negative eigenvalues as the block has below `floor`: the smaller one
    is returned. A search asks for it thousands of times, hence plain numbers.
    """
    second, fourth = 2 * own - floor, 2 * following - floor
    if fourth <= 0.0:
        return fourth - floor
    kept, next_kept = 1 - last / own, max(0.0, 1 - penalty / following)
    both = 4 * kept * next_kept
    first = 2 * kept * following + 2 * last - floor
    third = 2 * next_kept * own + 2 * penalty - floor
    first -= 4 * penalty * penalty / second + both * following * following / fourth
    third -= both * own * own / second + 4 * last * last / fourth
    off = 2 * math.sqrt(both) * (penalty * own / second + last * following / fourth)
    return (first + third) / 2 - math.hypot((first - third) / 2, off)


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
