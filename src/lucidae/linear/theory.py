"""Bounds on condition numbers, zero latents, eigengaps and predicted epochs, from eigenvalues."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Vector = np.ndarray[Any, Any]


def nonuniform_condition_bound(values: Vector) -> float:
    """Return the lower bound of Bao et al. 2020, Section 4.3, on a Hessian's condition number.

    The Hessian is that of the non-uniform ℓ₂ objective at its minimum. For the k leading
    eigenvalues σ₁² > … > σ_k² of the second moment (`values`), the bound is
    2(k−1)(σ₁²−σ_k²) Σ_{1<i<k}(σᵢ²−σ_k²) / (σ₁²σ_k²).
    """
    values = np.asarray(values, dtype=float)
    first, last, k = values[0], values[-1], len(values)
    inner = float(np.sum(values[1:-1] - last))
    return float(2 * (k - 1) * (first - last) * inner / (first * last))


def nested_condition_bound(values: Vector) -> float:
    """Return the lower bound of Bao et al. 2020, Section 5, on a Hessian's condition number.

    The Hessian is that of the expected nested-dropout loss at its minimum. For the k leading
    eigenvalues σ₁² > … > σ_k² of the second moment (`values`), the bound is
    8σ₁²(k−1)²/(σ₁²−σ_k²); it is infinite if all are equal.
    """
    values = np.asarray(values, dtype=float)
    spread = values[0] - values[-1]
    return float(8 * values[0] * (len(values) - 1) ** 2 / spread) if spread > 0 else math.inf


def zero_latents(values: Vector, penalties: Vector) -> Vector:
    """Return the numbers, from 1, of the latents that are zero at the minimum of a penalised loss.

    These are the latents whose penalty is not below their eigenvalue, where the smallest of the k
    penalties belongs to the largest of the eigenvalues `values`. Each of them adds 1/k to the
    decoder's distances from the principal subspace and from the principal axes.
    """
    values, penalties = np.asarray(values, dtype=float), np.asarray(penalties, dtype=float)
    rank = np.argsort(np.argsort(penalties, kind="stable"))
    return 1 + np.flatnonzero(penalties >= values[rank])


def smallest_gap(values: Vector, k: int) -> float:
    """Return the smallest difference of two neighbours among the first k + 1 eigenvalues.

    `values` are the eigenvalues, descending. If only one is given, it is returned.
    """
    values = np.asarray(values, dtype=float)[: k + 1]
    return float(np.min(-np.diff(values))) if len(values) > 1 else float(values[0])


def inner_gap(values: Vector, k: int) -> float:
    """Return the smallest difference of two neighbours among the first k eigenvalues.

    `values` are the eigenvalues, descending. The result is infinite if k = 1.
    """
    return smallest_gap(values[:k], k) if k > 1 else math.inf


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
