"""What theory says from eigenvalues alone: Hessians, condition numbers, epochs, and penalties.

At the minimum, row i of the encoder W₁ (k × m) is the principal axis i times a length eᵢ. Column i
of the decoder W₂ (m × k) is the same axis times a length aᵢ: the weights are *aligned*. For the
second moment Σ of the data, penalties λᵢ, and probabilities pᵢ with which nested dropout keeps
latent i, the loss is

    tr Σ − 2 tr(P W₁ΣW₂) + Σᵢⱼ p_max(i,j) (W₂ᵀW₂)ᵢⱼ (W₁ΣW₁ᵀ)ᵢⱼ
        + Σᵢ λᵢ(‖encoder row i‖² + ‖decoder column i‖²),    P = diag(p₁, …, p_k).

The non-uniform ℓ₂ objective has all pᵢ = 1, and expected nested dropout (twice Bao et al. 2020,
eq. 6) has all λᵢ = 0. In the eigenbasis of Σ the Hessian couples only the entries {W₁ᵢᵢ, W₂ᵢᵢ}, the
entries {W₁ᵢⱼ, W₂ⱼᵢ} for j > k, and the entries {W₁ᵢⱼ, W₂ⱼᵢ, W₁ⱼᵢ, W₂ᵢⱼ} for i < j ≤ k. All 2mk
eigenvalues are therefore those of 2 × 2 and 4 × 4 matrices.

`values` are always eigenvalues σ₁² ≥ σ₂² ≥ … of Σ, descending. The penalties are those of Bao et
al. 2020, and those with the best-conditioned Hessian.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.optimize

from lucidae.arrays import Array, to_numpy, where_set
from lucidae.validation import check_integer, check_vector, real_array

Vector = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class AlignedPoint:
    """Weights whose encoder rows and decoder columns are multiples of the principal axes."""

    values: Vector  # (m,): all eigenvalues of the second moment Σ, descending
    encoder: Vector  # (k,): lengths of the encoder's rows and of the decoder's columns
    decoder: Vector
    penalties: Vector  # (k,): ℓ₂ penalty of each latent; 0 for nested dropout
    # (k,): probability with which nested dropout keeps each latent; 1 for the non-uniform ℓ₂
    # objective
    keep: Vector

    @classmethod
    def nonuniform(cls, values: Vector, penalties: Vector) -> AlignedPoint:
        """Return the global minimum of the non-uniform ℓ₂ objective (Bao et al. 2020, Theorem 3).

        The layers of a latent have the squared length max(0, 1 − penalty/eigenvalue).
        """
        values, penalties = np.asarray(values, dtype=float), np.sort(penalties)
        length = np.sqrt(squared_lengths(values[: len(penalties)], penalties))
        return cls(values, length, length, penalties, np.ones(len(penalties)))

    @classmethod
    def nested(cls, values: Vector, prior: Vector) -> AlignedPoint:
        """Return the minimum of expected nested dropout at which all lengths are one."""
        ones = np.ones(len(prior))
        keep = np.cumsum(prior[::-1])[::-1]  # P(prefix length ≥ i)
        return cls(np.asarray(values, dtype=float), ones, ones, 0 * ones, keep)


def squared_lengths(values: Array, penalties: Array) -> Array:
    """Return max(0, 1 − λ/σ²) for leading eigenvalues σ² and ascending penalties λ.

    They are the squared lengths of the latents at the minimum (Bao et al. 2020, Theorem 3).
    """
    nonzero = values > penalties
    return where_set(1 - penalties / where_set(values, ~nonzero, 1.0), ~nonzero, 0.0)


def hessian_eigenvalues(point: AlignedPoint) -> Vector:
    """Return all 2mk eigenvalues of the loss's Hessian at `point`, ascending."""
    blocks, inside = pair_blocks(point)
    parts = (scaling_blocks(point), blocks[inside], blocks[~inside, :2, :2])
    return np.sort(np.concatenate([np.linalg.eigvalsh(part).ravel() for part in parts]))


def scaling_blocks(point: AlignedPoint) -> Vector:
    """Return the Hessian blocks (k, 2, 2) for the lengths e and a of a latent along its own axis.

    There the loss is −2pσ²ae + pσ²a²e² + λ(e² + a²).
    """
    k = len(point.keep)
    p, e, a, s = point.keep, point.encoder, point.decoder, point.values[:k]
    block = np.empty((k, 2, 2))
    block[:, 0, 0] = 2 * p * a**2 * s + 2 * point.penalties
    block[:, 1, 1] = 2 * p * e**2 * s + 2 * point.penalties
    block[:, 0, 1] = block[:, 1, 0] = p * s * (4 * a * e - 2)
    return block


def pair_blocks(point: AlignedPoint) -> tuple[Vector, Vector]:
    """Return the Hessian blocks (…, 4, 4) for latents i ≤ k and axes j > i, and which have j ≤ k.

    The variables are W₁ᵢⱼ, W₂ⱼᵢ, W₁ⱼᵢ and W₂ᵢⱼ. In x = W₁ᵢⱼ and y = W₂ⱼᵢ, by which latent i turns
    to the axis j, the terms of second order are −2pσⱼ²xy + pa²σⱼ²x² + pe²σᵢ²y² + λ(x² + y²). If j
    is the axis of another latent, those of W₁ⱼᵢ and W₂ᵢⱼ are the same with i and j exchanged. In
    addition, entry (i, j) of W₂ᵀW₂ is aᵢW₂ᵢⱼ + aⱼW₂ⱼᵢ to first order, and that of W₁ΣW₁ᵀ is
    eᵢσᵢ²W₁ⱼᵢ + eⱼσⱼ²W₁ᵢⱼ. Twice their product, times the probability of keeping both latents,
    couples encoder with decoder entries. For j > k the last two variables do not exist.
    """
    k, s = len(point.keep), point.values
    i, j = np.triu_indices(k, 1, len(s))
    p, e, a, decay = (
        np.append(vector, np.zeros(len(s) - k))
        for vector in (point.keep, point.encoder, point.decoder, point.penalties)
    )
    both = p[j]  # p_max(i,j): the keep probability of the later latent
    block = np.zeros((len(i), 4, 4))
    block[:, 0, 0] = 2 * p[i] * a[i] ** 2 * s[j] + 2 * decay[i]
    block[:, 1, 1] = 2 * p[i] * e[i] ** 2 * s[i] + 2 * decay[i]
    block[:, 2, 2] = 2 * p[j] * a[j] ** 2 * s[i] + 2 * decay[j]
    block[:, 3, 3] = 2 * p[j] * e[j] ** 2 * s[j] + 2 * decay[j]
    block[:, 0, 1] = -2 * p[i] * s[j] + 2 * both * a[j] * e[j] * s[j]
    block[:, 2, 3] = -2 * p[j] * s[i] + 2 * both * a[i] * e[i] * s[i]
    block[:, 0, 3] = 2 * both * a[i] * e[j] * s[j]
    block[:, 1, 2] = 2 * both * a[j] * e[i] * s[i]
    upper = np.triu(block, 1)
    return block + np.swapaxes(upper, -1, -2), j < k


def condition_number(point: AlignedPoint, *, effective: bool = False) -> float:
    """Return the ratio of the largest to the smallest eigenvalue of the Hessian at `point`.

    It is infinite if the smallest eigenvalue is not positive. With ``effective=True``, eigenvalues
    below 1e-12 times the largest are left out. For nested dropout, these belong to the k scales of
    the latents, which the loss does not determine.
    """
    eigenvalues = hessian_eigenvalues(point)
    largest = float(eigenvalues[-1])
    if largest <= 0.0:
        return float("inf")
    if effective:
        eigenvalues = eigenvalues[eigenvalues > 1e-12 * largest]
    smallest = float(eigenvalues[0])
    return largest / smallest if smallest > 0.0 else float("inf")


def zero_latents(values: Vector, penalties: Vector) -> Vector:
    """Return the numbers, from 1, of the latents that are zero at the minimum of a penalised loss.

    Their penalty is not below their eigenvalue; the smallest penalty has the largest eigenvalue.
    Each of k latents that is zero adds 1/k to the distances from the principal subspace and axes.
    """
    values, penalties = np.asarray(values, dtype=float), np.asarray(penalties, dtype=float)
    rank = np.argsort(np.argsort(penalties, kind="stable"))
    return 1 + np.flatnonzero(penalties >= values[rank])


def inner_gap(values: Vector, k: int) -> float:
    """Return the smallest difference among the first k eigenvalues; infinity if k = 1."""
    return float(np.min(-np.diff(values[:k]), initial=math.inf))


def outer_gap(values: Vector, k: int) -> float:
    """Return eigenvalue k minus eigenvalue k + 1; infinity if `values` has only k eigenvalues."""
    return float(values[k - 1] - values[k]) if len(values) > k else math.inf


def predicted_epochs(
    rate: float, learning_rate: float, momentum: float, target: float, start: float = 0.5
) -> float:
    """Return the predicted number of epochs until the alignment distance falls to `target`.

    The distance is the mean squared sine between principal axes and decoder columns. It decays as
    the square of the error of the weights, which shrinks by the factor
    exp(−rate · learning_rate / (1 − momentum)) per epoch.
    """
    speed = 2 * rate * learning_rate / (1 - momentum)
    if speed <= 0.0:  # no convergence, or a product that underflows
        return math.inf
    return max(0.0, math.log(start / target) / speed)


COARSE, FINE = 1e-5, 1e-11
"""Relative accuracy of the penalties during the search (`COARSE`) and of the result (`FINE`)."""

FIRST_TRIALS = 16
"""Number of trial values of the first penalty before the search is refined around the best one.

As a function of the first penalty, the condition number may have several local minima."""

DIGITS = 3
"""Decimals to which the logarithm of the ratio of first penalty to k-th eigenvalue is rounded."""

TIE = 1e-8
"""Relative difference below which two eigenvalues count as equal."""


def paper_penalties(values: Vector) -> Vector:
    """Return the k penalties of Bao et al. 2020, Figure 5, ascending.

    They minimise the largest ratio in eq. 16 of that paper. All ratios are equal then, the first
    penalty is 0, and the last one is the k-th eigenvalue. The condition number of the Hessian
    itself is infinite for these penalties: use `best_penalties` to minimise that number.

    Parameters
    ----------
    values : ndarray of shape (k,)
        Leading eigenvalues of the second moment, descending and positive.
    """
    values = _descending(values)
    if values[-1] <= 0:
        raise ValueError(
            f"values={_shortened(values)} was given, expected finite, positive eigenvalues in "
            "descending order. Leave out those that are 0."
        )
    if len(values) == 1:
        return np.array([0.0])
    unit, values = values[0], values / values[0]

    def excess(log_ratio: float) -> float:
        return float(_equal_ratio_penalties(values, np.exp(log_ratio))[-1] - values[-1])

    # The largest of the adjacent ratios is smallest when all are equal. For a given ratio each
    # penalty follows from the one before it; the last penalty decreases with the ratio, so that one
    # root search finds the ratio at which it equals its upper limit σ_k².
    low, high = -2.0, 2.0
    while excess(low) < 0:
        low -= 4.0
    while excess(high) > 0:
        high += 4.0
    log_ratio = scipy.optimize.brentq(excess, low, high, xtol=1e-13)
    chosen: Vector = np.minimum(_equal_ratio_penalties(values, np.exp(log_ratio)), values[-1])
    return np.asarray(unit * chosen)


def _equal_ratio_penalties(values: Vector, ratio: float) -> Vector:
    """Return the penalties that start at 0 and give the same ratio for all neighbouring latents.

    `ratio` is this common value of the ratios in Bao et al. 2020, eq. 16, and `values` are the k
    leading eigenvalues, descending.
    """
    spread = max(2 * (values[0] - values[-1]), np.finfo(float).tiny)
    chosen = np.zeros(len(values))
    for j in range(len(values) - 1):
        chosen[j + 1] = _next_paper_penalty(values[j], values[j + 1], chosen[j], ratio / spread)
    return chosen


def _next_paper_penalty(own: float, following: float, penalty: float, ratio: float) -> float:
    """Return the next latent's penalty for which the ratio in Bao et al. 2020, eq. 16, is `ratio`.

    It is the root x > λ of ratio·(x − λ)(ν − 1 + x/σ²) = ν + 1 − x/σ², where λ is `penalty`, σ² is
    the eigenvalue `following` of the next latent, and ν = 1 − λ/`own`.
    """
    power = 1 - penalty / own
    # With y = x − λ and ν' = 1 − (λ + y)/σ'²: ratio·y·(c + y/σ'²) + y/σ'² − b = 0.
    shift = power - (1 - penalty / following)
    total = power + 1 - penalty / following
    square, linear = ratio / following, ratio * shift + 1 / following
    # The positive root as 2c/(b + √(b² + 4ac)), which does not cancel.
    root = np.sqrt(linear * linear + 4 * square * max(total, 0.0))
    return float(penalty + 2 * max(total, 0.0) / (linear + root))


def best_penalties(values: Vector, k: int) -> Vector:
    """Return ascending penalties that minimise the condition number of the Hessian at the minimum.

    All penalties lie between 0 and the k-th eigenvalue. For a given first penalty, the smallest
    eigenvalue of the Hessian is made as large as possible. For a trial value f of it, each next
    penalty is the smallest one for which the rotation block (4 × 4) of its latent and the previous
    one, a part of the Hessian, has no eigenvalue below f. A root search finds the largest f for
    which the last penalty is small enough. A one-dimensional search then finds the best first
    penalty. Other sequences of penalties can be better by a few per cent if eigenvalue k + 1 is
    close to eigenvalue k.

    Parameters
    ----------
    values : ndarray of shape (q,)
        The q ≥ k leading eigenvalues of the second moment, descending. Those after the k-th also
        affect the condition number.
    k : int
        Number of latents. If it exceeds the rank of the second moment, the latents above the rank
        have the eigenvalue 0; they get penalties above the smallest positive eigenvalue.

    Returns
    -------
    ndarray of shape (k,)
        The penalties.
    """
    values, k = _descending(values), check_integer(k, "k", low=1)
    if len(values) < k:
        raise ValueError(
            f"values has {len(values)} eigenvalues, expected at least k={k}: one per latent."
        )
    unit = float(values[0])
    rounding = len(values) * float(np.finfo(float).eps)
    rank = int(np.sum(values[:k] > rounding * unit)) if unit > 0 else 0
    if rank == 0:
        return np.linspace(0.5, 1.0, k) if k > 1 else np.array([0.5])
    inside, outside = values[:rank], values[k:]
    # Equal eigenvalues give flat directions for any penalties, so each distinct value is used once.
    outside = outside[outside < inside[-1] * (1 - TIE)]
    fresh = np.append(True, inside[1:] < inside[:-1] * (1 - TIE))
    distinct = np.concatenate([inside[fresh], outside]) / unit
    chosen = _best_distinct(distinct, int(fresh.sum()))[np.cumsum(fresh) - 1]
    chosen = _strictly_inside(unit * chosen, float(inside[-1]))
    above_rank = values[rank - 1] * (1 + np.arange(1, k - rank + 1) / k)
    return np.concatenate([chosen, above_rank])


def _best_distinct(values: Vector, k: int) -> Vector:
    def condition(log_first: float) -> float:
        trial = _highest_floor(values, k, np.exp(log_first), COARSE)
        # A trial may make the Hessian singular, and the search needs finite values.
        return math.log(min(condition_number(AlignedPoint.nonuniform(values, trial)), 1e300))

    trials = np.log(values[k - 1] * np.geomspace(1e-3 / k**2, 1 - 1e-6, FIRST_TRIALS))
    best = int(np.argmin([condition(trial) for trial in trials]))
    search = scipy.optimize.minimize_scalar(
        condition,
        bounds=(trials[max(best - 1, 0)], trials[min(best + 1, FIRST_TRIALS - 1)]),
        method="bounded",
        options={"xatol": 1e-2 * 10.0**-DIGITS},
    )
    # Where the condition number is flat, the result of the search depends on rounding. A rounded
    # first penalty costs nothing and gives the same penalties for the same data in another order.
    share = round(search.x - math.log(values[k - 1]), DIGITS)
    return _highest_floor(values, k, float(values[k - 1] * math.exp(share)), FINE)


def _highest_floor(values: Vector, k: int, first: float, accuracy: float) -> Vector:
    """Return the k penalties, the first of which is given, that maximise an eigenvalue.

    This is the smallest eigenvalue of the Hessian at the minimum.
    """
    if k == 1:
        return np.array([first])
    inside: list[float] = values[:k].tolist()

    def slack(floor: float) -> float:
        chosen = _penalties_above(inside, first, floor, accuracy)
        return 4 * (inside[-1] - chosen[-1]) - floor

    high = 4 * inside[-1]
    floor = scipy.optimize.brentq(slack, 0.0, high, xtol=1e-3 * accuracy * high, rtol=accuracy)
    # Where the last penalty depends steeply on the floor, the root may leave it at or above σ_k²:
    # the floor is lowered, by steps that double, until 4(σ_k² − λ_k) exceeds half of the floor.
    margin = 2 * accuracy
    chosen = _penalties_above(inside, first, floor * (1 - margin), accuracy)
    while margin < 1.0 and 8 * (inside[-1] - chosen[-1]) <= floor * (1 - margin):
        margin *= 2
        chosen = _penalties_above(inside, first, floor * max(1 - margin, 0.0), accuracy)
    return np.array(chosen)


def _strictly_inside(penalties: Vector, limit: float) -> Vector:
    """Return the penalties, changed minimally so that they increase strictly and are below `limit`.

    `limit` is the smallest eigenvalue. Rounding can make neighbouring penalties equal, or equal to
    `limit`. Latents with equal penalties could rotate, and a latent whose penalty is `limit` is
    zero.
    """
    chosen: list[float] = penalties.tolist()
    for i in range(1, len(chosen)):
        chosen[i] = max(chosen[i], math.nextafter(chosen[i - 1], math.inf))
    for i in range(len(chosen) - 1, -1, -1):
        chosen[i] = min(chosen[i], math.nextafter(limit, 0.0))
        limit = chosen[i]
    return np.array(chosen)


def _penalties_above(
    values: list[float], first: float, floor: float, accuracy: float
) -> list[float]:
    """Return penalties, starting with `first`, for which rotation blocks have no small eigenvalue.

    Each penalty is the smallest one for which the rotation block of its latent and the previous one
    (4 × 4, a part of the Hessian) has no eigenvalue below `floor`.
    """
    chosen = [first]
    for own, following in pairwise(values):
        chosen.append(_next_penalty(own, following, chosen[-1], floor, accuracy))
    return chosen


def _next_penalty(
    own: float, following: float, last: float, floor: float, accuracy: float
) -> float:
    """Return the smallest penalty of a latent for which a rotation block has no small eigenvalue.

    The rotation block is the 4 × 4 part of the Hessian that belongs to this latent (eigenvalue
    `following`) and its predecessor (eigenvalue `own`, penalty `last`); none of its eigenvalues may
    be below `floor`. The smallest one increases with the penalty between `last` and `following`. If
    no such penalty is large enough, a number above `following` is returned.
    """

    def excess(penalty: float) -> float:
        return _pair_excess(own, following, last, penalty, floor)

    if floor == 0.0:
        return last  # equal penalties reach 0 exactly, which rounding would hide
    if last >= following or excess(following) < 0.0:
        return max(last, following) + floor
    if excess(last) >= 0.0:
        return last
    root: float = scipy.optimize.brentq(
        excess, last, following, xtol=1e-3 * accuracy * following, rtol=accuracy
    )
    return root


def _pair_excess(own: float, following: float, last: float, penalty: float, floor: float) -> float:
    """Return a number with the sign of the smallest eigenvalue of a rotation block minus `floor`.

    The block is the part of the Hessian that belongs to two latents with the eigenvalues `own` and
    `following` and the penalties `last` and `penalty`. After `floor` is subtracted from the
    diagonal of the 4 × 4 block, its second and fourth variables, which are not coupled, are
    eliminated. The 2 × 2 Schur complement has as many negative eigenvalues as the block has
    eigenvalues below `floor` (Sylvester's law of inertia); its smaller eigenvalue is returned.
    Python floats are used because the search calls this function thousands of times.
    """
    second, fourth = 2 * own - floor, 2 * following - floor
    if fourth <= 0.0:
        return fourth - floor
    power, next_power = 1 - last / own, max(0.0, 1 - penalty / following)
    # With ν = 1 − λ/σ² the two largest terms of each diagonal entry nearly cancel. Their difference
    # is 2ν'σ² − 4νν'σ⁴/(2σ² − f) = 2ν'σ²(2λ − f)/(2σ² − f), which does not.
    first = 2 * power * following * (2 * penalty - floor) / fourth
    first += 2 * last - floor - 4 * penalty * penalty / second
    third = 2 * next_power * own * (2 * last - floor) / second
    third += 2 * penalty - floor - 4 * last * last / fourth
    off = 4 * math.sqrt(power * next_power) * (penalty * own / second + last * following / fourth)
    return (first + third) / 2 - math.hypot((first - third) / 2, off)


def _descending(values: Any) -> Vector:
    """Return eigenvalues of at least 0 as a vector; raise an error unless they descend.

    Differences within rounding are corrected: negative eigenvalues become 0, and an eigenvalue
    larger than its predecessor becomes equal to it.
    """
    vector = to_numpy(real_array(values, "values")).astype(float)
    if vector.ndim == 1 and vector.size and np.all(np.isfinite(vector)):
        rounding = 10 * len(vector) * float(np.finfo(float).eps) * max(float(vector[0]), 0.0)
        if np.all(vector >= -rounding) and np.all(np.diff(vector) <= rounding):
            return np.asarray(np.maximum(np.minimum.accumulate(vector), 0.0))
    raise ValueError(
        f"values={_shortened(vector)} was given, expected a vector of finite, positive "
        "eigenvalues in descending order."
    )


def _shortened(values: Vector) -> str:
    return np.array2string(values, threshold=6, precision=3)


def nonuniform_penalties(l2: Any, values: Vector | None, k: int) -> Vector:
    """Return the penalties of ``method="nonuniform_l2"``, one per latent, from the argument `l2`.

    Parameters
    ----------
    l2 : "auto" or array-like of shape (k,)
        The argument of `LinearAutoencoder`: the penalties, or ``"auto"`` for `best_penalties`.
    values : ndarray of shape (q,) or None
        Eigenvalues of the second moment, descending; used only for ``"auto"``.
    k : int
        Number of latents.

    Returns
    -------
    ndarray of shape (k,)
        The penalties, in the given order.
    """
    if isinstance(l2, str):
        return best_penalties(_descending(values), k)
    penalties = np.atleast_1d(check_vector(l2, "l2"))
    if penalties.shape != (k,):
        raise ValueError(
            f"l2 has {penalties.size} penalties, expected {k}: one per latent. "
            "Use l2='auto' to have them chosen."
        )
    return penalties


def uniform_penalties(l2: Any, values: Vector | None, k: int) -> Vector:
    """Return k equal penalties for ``method="uniform_l2"``, from the argument `l2`.

    Parameters
    ----------
    l2 : "auto", float or array-like
        The penalty, or ``"auto"`` for half of the k-th eigenvalue. An array must have one entry, or
        k equal entries.
    values : ndarray of shape (q,) or None
        Eigenvalues of the second moment, descending; used only for ``"auto"``.
    k : int
        Number of latents.
    """
    if isinstance(l2, str):
        values = _descending(values)
        # Both eigenvalues of a scaling block, 4λ and 4(σ² − λ), are equal for the weakest latent.
        weakest = max(float(values[min(k, len(values)) - 1]), 1e-12 * float(values[0]))
        return np.full(k, weakest / 2)
    penalties = np.atleast_1d(check_vector(l2, "l2"))
    if penalties.size == 1:
        return np.full(k, penalties[0])
    penalties = nonuniform_penalties(l2, values, k)
    if np.ptp(penalties) > 0:
        raise ValueError(
            f"l2={l2!r} was given, expected one number: this method has the same penalty for all "
            "latents. Use method='nonuniform_l2' for one penalty per latent."
        )
    return penalties
