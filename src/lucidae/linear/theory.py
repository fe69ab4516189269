"""Condition numbers, zero latents, eigengaps and rates that theory derives from a spectrum."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Vector = np.ndarray[Any, Any]


def nonuniform_condition_bound(values: Vector) -> float:
    """Return the paper's lower bound on the condition number of the non-uniform objective.

    For the leading eigenvalues σ₁² > … > σ_k² it is
    2(k−1)(σ₁²−σ_k²) Σ_{1<i<k}(σᵢ²−σ_k²) / (σ₁²σ_k²). Bao et al. 2020, Section 4.3.
    """
    values = np.asarray(values, dtype=float)
    first, last, k = values[0], values[-1], len(values)
    inner = float(np.sum(values[1:-1] - last))
    return float(2 * (k - 1) * (first - last) * inner / (first * last))


def nested_condition_bound(values: Vector) -> float:
    """Return the paper's lower bound on the condition number of nested dropout.

    For the leading eigenvalues σ₁² > … > σ_k² it is 8σ₁²(k−1)²/(σ₁²−σ_k²). Bao et al. 2020,
    Section 5.
    """
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

    With the learning rate α and the momentum μ, the error of the weights decays by the factor
    exp(−rate·α/(1−μ)) per epoch, and the distance is the square of the error.
    """
    if rate <= 0.0:
        return math.inf
    speed = 2 * rate * learning_rate / (1 - momentum)
    return max(0.0, math.log(start / target) / speed)
