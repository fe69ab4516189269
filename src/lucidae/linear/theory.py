"""What theory says from eigenvalues alone: Hessians, condition numbers, zero latents, epochs.

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

`values` are always eigenvalues σ₁² ≥ σ₂² ≥ … of Σ, descending.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

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
        leading = values[: len(penalties)]
        nonzero = leading > penalties
        power = np.where(nonzero, 1 - penalties / np.where(nonzero, leading, 1.0), 0.0)
        length = np.sqrt(power)
        return cls(values, length, length, penalties, np.ones(len(penalties)))

    @classmethod
    def nested(cls, values: Vector, prior: Vector) -> AlignedPoint:
        """Return the minimum of expected nested dropout at which all lengths are one."""
        ones = np.ones(len(prior))
        keep = np.cumsum(prior[::-1])[::-1]  # P(prefix length ≥ i)
        return cls(np.asarray(values, dtype=float), ones, ones, 0 * ones, keep)


def hessian_eigenvalues(point: AlignedPoint) -> Vector:
    """Return all 2mk eigenvalues of the loss's Hessian at `point`, ascending."""
    blocks = (
        np.linalg.eigvalsh(scaling_blocks(point)),
        np.linalg.eigvalsh(escape_blocks(point)),
        np.linalg.eigvalsh(rotation_blocks(point)),
    )
    return np.sort(np.concatenate([eigenvalues.ravel() for eigenvalues in blocks]))


def scaling_blocks(point: AlignedPoint) -> Vector:
    """Return the Hessian blocks (k, 2, 2) for the lengths e and a of a latent along its own axis.

    There the loss is −2pσ²ae + pσ²a²e² + λ(e² + a²).
    """
    k = len(point.keep)
    p, e, a, s = point.keep, point.encoder, point.decoder, point.values[:k]
    return _pairs(
        2 * p * a**2 * s + 2 * point.penalties,
        p * s * (4 * a * e - 2),
        2 * p * e**2 * s + 2 * point.penalties,
    )


def escape_blocks(point: AlignedPoint) -> Vector:
    """Return the Hessian blocks (k, m − k, 2, 2) for a latent i that leaves the subspace.

    In the entries x = W₁ᵢⱼ and y = W₂ⱼᵢ along an axis j > k, the terms of second order are
    −2pσⱼ²xy + pa²σⱼ²x² + pe²σᵢ²y² + λ(x² + y²).
    """
    k = len(point.keep)
    p, e, a, decay = (
        vector[:, None] for vector in (point.keep, point.encoder, point.decoder, point.penalties)
    )
    own, other = point.values[:k, None], point.values[None, k:]
    return _pairs(
        2 * p * a**2 * other + 2 * decay, -2 * p * other, 2 * p * e**2 * own + 2 * decay + 0 * other
    )


def rotation_blocks(point: AlignedPoint) -> Vector:
    """Return the Hessian blocks (k(k − 1)/2, 4, 4) for two latents i < j ≤ k that mix.

    The variables are W₁ᵢⱼ, W₂ⱼᵢ, W₁ⱼᵢ and W₂ᵢⱼ. The diagonal and the entries (0, 1) and (2, 3) are
    as in `escape_blocks`. In addition, entry (i, j) of W₂ᵀW₂ is aᵢW₂ᵢⱼ + aⱼW₂ⱼᵢ to first order, and
    that of W₁ΣW₁ᵀ is eᵢσᵢ²W₁ⱼᵢ + eⱼσⱼ²W₁ᵢⱼ. Twice their product, times the probability of keeping
    both latents, couples encoder with decoder entries.
    """
    i, j = np.triu_indices(len(point.keep), 1)
    p, e, a, decay = point.keep, point.encoder, point.decoder, point.penalties
    s, both = point.values, point.keep[j]  # p_max(i,j): the keep probability of the later latent
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
    return block + np.swapaxes(upper, -1, -2)


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


def _pairs(first: Vector, off: Vector, second: Vector) -> Vector:
    """Return the matrices [[first, off], [off, second]] along the last two axes."""
    first, off, second = np.broadcast_arrays(first, off, second)
    return np.stack([np.stack([first, off], -1), np.stack([off, second], -1)], -2)


def nonuniform_condition_bound(values: Vector) -> float:
    """Return 2(k−1)(σ₁²−σ_k²) Σ_{1<i<k}(σᵢ²−σ_k²) / (σ₁²σ_k²) for the k eigenvalues given.

    It bounds the condition number of the non-uniform ℓ₂ objective (Bao et al. 2020, Section 4.3).
    """
    values = np.asarray(values, dtype=float)
    first, last, k = values[0], values[-1], len(values)
    inner = float(np.sum(values[1:-1] - last))
    return float(2 * (k - 1) * (first - last) * inner / (first * last))


def nested_condition_bound(values: Vector) -> float:
    """Return 8σ₁²(k−1)²/(σ₁²−σ_k²) for the k eigenvalues given; infinity if all are equal.

    It bounds the condition number of expected nested dropout (Bao et al. 2020, Section 5).
    """
    values = np.asarray(values, dtype=float)
    spread = values[0] - values[-1]
    return float(8 * values[0] * (len(values) - 1) ** 2 / spread) if spread > 0 else math.inf


def zero_latents(values: Vector, penalties: Vector) -> Vector:
    """Return the numbers, from 1, of the latents that are zero at the minimum of a penalised loss.

    Their penalty is not below their eigenvalue; the smallest penalty has the largest eigenvalue.
    Each of k latents that is zero adds 1/k to the distances from the principal subspace and axes.
    """
    values, penalties = np.asarray(values, dtype=float), np.asarray(penalties, dtype=float)
    rank = np.argsort(np.argsort(penalties, kind="stable"))
    return 1 + np.flatnonzero(penalties >= values[rank])


def smallest_gap(values: Vector, k: int) -> float:
    """Return the smallest difference of two neighbours among the first k + 1 eigenvalues.

    If only one is given, it is returned.
    """
    values = np.asarray(values, dtype=float)[: k + 1]
    return float(np.min(-np.diff(values))) if len(values) > 1 else float(values[0])


def inner_gap(values: Vector, k: int) -> float:
    """Return the smallest difference among the first k eigenvalues; infinity if k = 1."""
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
