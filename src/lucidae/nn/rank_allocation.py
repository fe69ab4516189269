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
import scipy.optimize
import scipy.sparse

__all__ = ["Allocation", "allocate", "lagrangian_bound"]

Vector = np.ndarray[Any, Any]

ROUNDING = 1e-12  # relative error of sums of a few thousand float64 numbers
SECONDS = 60.0  # limit of branch and bound; after it the lower bound is below the value


class Allocation(NamedTuple):
    """The choice of each layer, its sum of values, and a lower bound on every such sum."""

    chosen: list[int]
    value: float
    bound: float
    price: float  # μ, decrease of the value per unit of cost at the budget


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
    bound = lagrangian_bound(values, costs, budget, price)
    # 2) Spend what is left: each time on the layer that gains most by it.
    while True:
        reach = [
            int(np.searchsorted(cost, cost[i] + limit - spent, side="right")) - 1
            for cost, i in zip(costs, at, strict=True)
        ]
        gains = [value[i] - value[j] for value, i, j in zip(values, at, reach, strict=True)]
        layer = int(np.argmax(gains))
        if gains[layer] <= 0:
            break
        spent += costs[layer][reach[layer]] - costs[layer][at[layer]]
        at[layer] = reach[layer]
    found = _value(values, at)
    # 3) A choice whose reduced cost exceeds the gap is in no better allocation. Few remain, and
    #    branch and bound finds the best of them.
    if found - bound > ROUNDING * abs(found):
        at, bound = _branch_and_bound(values, costs, budget, price, at, bound)
    total = _value(values, at)
    chosen = [int(front[i]) for front, i in zip(fronts, at, strict=True)]
    return Allocation(chosen, total, min(bound, total), price)


def lagrangian_bound(
    values: Sequence[Vector], costs: Sequence[Vector], budget: float, price: float
) -> float:
    """Return L(μ) for the price μ, less its rounding error: a lower bound for every μ ≥ 0."""
    parts = [float(np.min(v + price * c)) for v, c in zip(values, costs, strict=True)]
    return sum(parts) - price * budget - ROUNDING * (sum(parts) + price * budget)


def _value(values: Sequence[Vector], chosen: Sequence[int]) -> float:
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


def _branch_and_bound(
    values: Sequence[Vector],
    costs: Sequence[Vector],
    budget: float,
    price: float,
    at: list[int],
    bound: float,
) -> tuple[list[int], float]:
    """Return an optimal allocation and a lower bound, from an allocation `at` and L(μ).

    Any allocation has the value L(μ) + Σ ρ_lj + μ·(unspent budget) with the reduced costs
    ρ_lj = v_lj + μ c_lj − min_j (v_lj + μ c_lj) ≥ 0 of its choices. Objective and constraint are
    written relative to `at`, in units of the gap and of the largest step, so that the absolute
    tolerances of the solver are small compared with what is still undecided.
    """
    gap = _value(values, at) - bound
    kept = []
    for value, cost in zip(values, costs, strict=True):
        priced = value + price * cost
        kept.append(np.flatnonzero(priced - priced.min() <= gap * (1 + ROUNDING)))
    owner = np.repeat(np.arange(len(kept)), [len(choices) for choices in kept])
    gains = np.concatenate([v[k] - v[i] for v, k, i in zip(values, kept, at, strict=True)]) / gap
    steps = np.concatenate([c[k] - c[i] for c, k, i in zip(costs, kept, at, strict=True)])
    left = budget - sum(float(c[i]) for c, i in zip(costs, at, strict=True))
    unit = float(np.abs(steps).max(initial=0.0)) or 1.0
    one_each = scipy.sparse.csr_array((np.ones(owner.size), (owner, np.arange(owner.size))))
    found = scipy.optimize.milp(
        gains,
        integrality=1,
        bounds=scipy.optimize.Bounds(0, 1),
        constraints=[
            scipy.optimize.LinearConstraint(one_each, 1, 1),
            scipy.optimize.LinearConstraint(steps[None] / unit, -np.inf, left / unit),
        ],
        options={"mip_rel_gap": 0.0, "time_limit": SECONDS},
    )
    # The solver's tolerance is 1e-6 in these units.
    dual = found.mip_dual_bound
    if dual is not None and np.isfinite(dual):
        bound = max(bound, bound + (1.0 + dual - 1e-5) * gap)
    if found.x is None:
        return at, bound
    chosen = [int(k[np.argmax(found.x[owner == layer])]) for layer, k in enumerate(kept)]
    spent = sum(float(cost[i]) for cost, i in zip(costs, chosen, strict=True))
    better = _value(values, chosen) < _value(values, at) and spent <= budget * (1 + ROUNDING)
    return (chosen if better else at), bound
