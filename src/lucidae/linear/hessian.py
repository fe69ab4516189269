"""Exact eigenvalues of the Hessian at an aligned point, block by block.

An aligned point has encoder row i equal to eᵢ times principal axis i and decoder column i equal to
aᵢ times the same axis. With the penalty λᵢ of latent i and the probability pᵢ with which nested
dropout keeps it, the Hessian in the eigenbasis of the second moment Σ of

    tr Σ − 2 Σᵢ pᵢ aᵢᵀΣeᵢ + Σᵢⱼ p_max(i,j) (W₂ᵀW₂)ᵢⱼ (W₁ΣW₁ᵀ)ᵢⱼ + Σᵢ λᵢ(‖eᵢ‖² + ‖aᵢ‖²)

couples only {W₁ᵢᵢ, W₂ᵢᵢ}, {W₁ᵢⱼ, W₂ⱼᵢ} for j > k and {W₁ᵢⱼ, W₂ⱼᵢ, W₁ⱼᵢ, W₂ᵢⱼ} for i < j ≤ k, so all
2mk eigenvalues are those of 2 × 2 and 4 × 4 blocks. The non-uniform ℓ₂ objective has p = 1,
expected nested dropout (twice Bao et al. 2020, eq. 6) has λ = 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Vector = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class AlignedPoint:
    """An aligned point in the eigenbasis.

    Parameters
    ----------
    values : ndarray of shape (m,)
        All eigenvalues of the second moment Σ, descending.
    encoder, decoder : ndarrays of shape (k,)
        Lengths eᵢ of the encoder's rows and aᵢ of the decoder's columns.
    penalties : ndarray of shape (k,)
        Penalties λᵢ; 0 for nested dropout.
    keep : ndarray of shape (k,)
        Probabilities pᵢ of keeping a latent; 1 for the non-uniform ℓ₂ objective.
    """

    values: Vector
    encoder: Vector
    decoder: Vector
    penalties: Vector
    keep: Vector

    @classmethod
    def nonuniform(cls, values: Vector, penalties: Vector) -> AlignedPoint:
        """Return the global minimum of the non-uniform objective. Bao et al. 2020, Theorem 3.

        Latent i has squared length 1 − λᵢ/σᵢ², and length 0 where λᵢ ≥ σᵢ².
        """
        values, penalties = np.asarray(values, dtype=float), np.sort(penalties)
        leading = values[: len(penalties)]
        nonzero = leading > penalties
        power = np.where(nonzero, 1 - penalties / np.where(nonzero, leading, 1.0), 0.0)
        length = np.sqrt(power)
        return cls(values, length, length, penalties, np.ones(len(penalties)))

    @classmethod
    def nested(cls, values: Vector, prior: Vector) -> AlignedPoint:
        """Return the minimum of unit scale (Q = I) of expected nested dropout."""
        ones = np.ones(len(prior))
        keep = np.cumsum(prior[::-1])[::-1]  # P(prefix length ≥ i)
        return cls(np.asarray(values, dtype=float), ones, ones, 0 * ones, keep)


def hessian_eigenvalues(point: AlignedPoint) -> Vector:
    """Return all 2mk eigenvalues of the Hessian, ascending."""
    blocks = (
        np.linalg.eigvalsh(scaling_blocks(point)),
        np.linalg.eigvalsh(escape_blocks(point)),
        np.linalg.eigvalsh(rotation_blocks(point)),
    )
    return np.sort(np.concatenate([eigenvalues.ravel() for eigenvalues in blocks]))


def scaling_blocks(point: AlignedPoint) -> Vector:
    """Return the k blocks {W₁ᵢᵢ, W₂ᵢᵢ}: the length of a latent along its own axis.

    Along its own axis a latent has the loss −2pσ²ae + pσ²a²e² + λ(e² + a²), whose second
    derivatives are the entries below.
    """
    k = len(point.keep)
    p, e, a, s = point.keep, point.encoder, point.decoder, point.values[:k]
    return _pairs(
        2 * p * a**2 * s + 2 * point.penalties,
        p * s * (4 * a * e - 2),
        2 * p * e**2 * s + 2 * point.penalties,
    )


def escape_blocks(point: AlignedPoint) -> Vector:
    """Return the k(m − k) blocks {W₁ᵢⱼ, W₂ⱼᵢ}, j > k: a latent that leaves the subspace.

    With x = W₁ᵢⱼ and y = W₂ⱼᵢ the terms of second order are −2pσⱼ²xy from the cross term, and
    pa²σⱼ²x² + pe²σᵢ²y² from the product of W₂ᵀW₂ and W₁ΣW₁ᵀ; the penalty adds λ(x² + y²).
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
    """Return the k(k − 1)/2 blocks {W₁ᵢⱼ, W₂ⱼᵢ, W₁ⱼᵢ, W₂ᵢⱼ}, i < j ≤ k: two latents that mix.

    The diagonal and the pairs (0, 1), (2, 3) are as in the other blocks. In addition the entries
    (i, j) of W₂ᵀW₂ and W₁ΣW₁ᵀ are of first order, aᵢW₂ᵢⱼ + aⱼW₂ⱼᵢ and eᵢσᵢ²W₁ⱼᵢ + eⱼσⱼ²W₁ᵢⱼ, and
    twice their product, weighted by p_max(i,j), couples each encoder entry with each decoder entry.
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
    """Return the ratio of the largest to the smallest eigenvalue of the Hessian.

    With `effective`, eigenvalues below 1e-12 of the largest are left out: they are zero by symmetry
    (nested dropout leaves the scale of each of its k latents free).
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
    """Stack symmetric 2 × 2 matrices along the last two axes."""
    first, off, second = np.broadcast_arrays(first, off, second)
    return np.stack([np.stack([first, off], -1), np.stack([off, second], -1)], -2)
