"""Choose one of several sizes for each layer so that the sum of errors is smallest within a budget.

This is the multiple-choice knapsack problem: layer l has choices j with values v_lj (errors) and
costs c_lj (parameters or operations), and Σ_l v_lj is minimised subject to Σ_l c_lj ≤ budget. For
every price μ ≥ 0 of a unit of cost, L(μ) = Σ_l min_j (v_lj + μ c_lj) − μ·budget is a lower bound
of the minimum; the best price is the slope of the joint lower convex envelope at the budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Allocation", "allocate"]

Vector = np.ndarray[Any, Any]

ROUNDING = 1e-12  # relative error of sums of a few thousand float64 numbers
MOST_PARTIAL = (
    2**22
)  # partial allocations of one layer; beyond, the lower bound stays below the value


class Allocation(NamedTuple):
    """The choice of each layer, its sum of values, and a lower bound on every such sum."""

    chosen: list[int]
    value: float
    bound: float


def allocate(values: Sequence[Vector], costs: Sequence[Vector], budget: float) -> Allocation:
    """Return the best choice of each layer within the budget, which the cheapest ones must meet."""
    fronts = [_undominated(value, cost) for value, cost in zip(values, costs, strict=True)]
    values = [value[front] for value, front in zip(values, fronts, strict=True)]
    costs = [cost[front] for cost, front in zip(costs, fronts, strict=True)]
    limit = budget * (1 + ROUNDING)
    # 1) Walk down the convex envelopes, steepest step first. This is optimal where it ends exactly
    #    at the budget, and the first step that does not fit has the price of the Lagrangian.
    at, spent = [0] * len(values), sum(float(cost[0]) for cost in costs)
    price = 0.0
    for ratio, layer, choice in _envelope_steps(values, costs):
        step = costs[layer][choice] - costs[layer][at[layer]]
        if spent + step > limit:
            price = ratio
            break
        at[layer], spent = choice, spent + step
    # 2) Any allocation has the value L(μ) + Σ ρ_lj + μ·(unspent budget) with the reduced costs
    #    ρ_lj = v_lj + μ c_lj − min_j (v_lj + μ c_lj) ≥ 0 of its choices. One that is at most ε
    #    above L(μ) therefore has Σ ρ_lj ≤ ε, and few have: their best is optimal if it is that
    #    near, else ε is four times as large. The walk itself is within the last ε, the whole gap.
    priced = [value + price * cost for value, cost in zip(values, costs, strict=True)]
    lagrangian = sum(float(p.min()) for p in priced) - price * budget
    reduced = [p - p.min() for p in priced]
    total, bound = _total(values, at), lagrangian
    for within in (total - lagrangian) * 4.0 ** np.arange(-8, 1):
        if total - bound <= ROUNDING * abs(total):
            break
        found = _best_within(values, costs, reduced, limit, within * (1 + ROUNDING))
        if found is None:
            break
        if found and _total(values, found) < total:
            at, total = found, _total(values, found)
        bound = min(total, lagrangian + within)
    chosen = [int(front[i]) for front, i in zip(fronts, at, strict=True)]
    return Allocation(chosen, total, bound - ROUNDING * (abs(total) + price * budget))


def _total(values: Sequence[Vector], chosen: Sequence[int]) -> float:
    return float(sum(value[i] for value, i in zip(values, chosen, strict=True)))


def _undominated(value: Vector, cost: Vector) -> Vector:
    """Return the choices, by ascending cost, that no cheaper or equally dear one matches."""
    order = np.lexsort((value, cost))
    best = np.minimum.accumulate(value[order])
    return np.asarray(order[np.concatenate([[True], best[1:] < best[:-1]])])


def _envelope_steps(
    values: Sequence[Vector], costs: Sequence[Vector]
) -> list[tuple[float, int, int]]:
    """Return the steps (gain per cost, layer, choice reached) of all convex envelopes, best first.

    Gains per cost fall along an envelope, so that its steps stay in order (the sort is stable).
    """
    steps = []
    for layer in range(len(values)):
        value, cost = values[layer].tolist(), costs[layer].tolist()
        hull: list[int] = []
        for i in range(len(value)):
            while len(hull) > 1 and _slope(value, cost, hull[-2], hull[-1]) <= _slope(
                value, cost, hull[-2], i
            ):
                hull.pop()
            hull.append(i)
        steps += [(_slope(value, cost, a, b), layer, b) for a, b in pairwise(hull)]
    return sorted(steps, key=lambda step: -step[0])


def _slope(value: list[float], cost: list[float], a: int, b: int) -> float:
    """Return the decrease of the value per unit of cost from choice a to the dearer choice b."""
    return (value[a] - value[b]) / (cost[b] - cost[a])


def _best_within(
    values: Sequence[Vector],
    costs: Sequence[Vector],
    reduced: Sequence[Vector],
    limit: float,
    most: float,
) -> list[int] | None:
    """Return the best allocation of cost at most `limit` and reduced cost at most `most`.

    Dynamic programming with lists: after each layer, those partial allocations are kept that have
    a small enough reduced cost and that no cheaper one matches in value. The result is empty if
    there is no such allocation, and None if there are too many.
    """
    cost = value = spare = np.zeros(1)
    steps: list[tuple[Vector, Vector]] = []  # partial allocation before, choice of the layer
    for v, c, r in zip(values, costs, reduced, strict=True):
        choices = np.flatnonzero(r <= most)
        if len(cost) * len(choices) > MOST_PARTIAL:
            return None
        cost, value, spare = (
            (before[:, None] + added[choices]).ravel()
            for before, added in ((cost, c), (value, v), (spare, r))
        )
        kept = np.flatnonzero((spare <= most) & (cost <= limit))
        if not len(kept):
            return []
        kept = kept[_undominated(value[kept], cost[kept])]
        cost, value, spare = cost[kept], value[kept], spare[kept]
        steps.append((kept // len(choices), choices[kept % len(choices)]))
    at, found = len(value) - 1, []  # the dearest is the best
    for before, choice in reversed(steps):
        found.append(int(choice[at]))
        at = int(before[at])
    return found[::-1]
