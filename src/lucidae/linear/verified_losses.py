"""Losses and their minima for certificates, by naive formulas that no solver uses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lucidae.arrays import to_numpy
from lucidae.linear.objectives import ExpectedNestedDropout, LinearVAE, NonUniformL2
from lucidae.linear.probe import EPS, Estimate
from lucidae.linear.verified_spectrum import Data, norm

__all__ = ["LossTerms", "own_minimum", "own_value", "residual_variance"]

Vector = np.ndarray[Any, Any]


class LossTerms:
    """Products of weights with Σ, and the terms of the reconstruction loss per pair of latents."""

    def __init__(self, encoded: Vector, decoded: Vector, encoder: Vector, atoms: Vector) -> None:
        self.encoded, self.decoded = encoded, decoded
        self.code_moment, self.gram = encoded @ encoder.T, atoms @ atoms.T
        self.cross = np.sum(encoded * atoms, axis=1)

    @classmethod
    def of(cls, encoder: Vector, atoms: Vector, data: Data) -> LossTerms:
        """Multiply both layers with Σ."""
        both = data.apply(np.concatenate([encoder, atoms]))
        return cls(both[: len(encoder)], both[len(encoder) :], encoder, atoms)


def own_value(objective: Any, weights: Any, data: Data, products: LossTerms) -> Estimate | None:
    """Return the loss of the weights by its definition."""
    encoder, atoms = weights.encoder, weights.atoms
    if isinstance(objective, ExpectedNestedDropout):
        prior = to_numpy(objective.prior)
        parts = [_prefix_loss(products, b, data.trace, data.n_features) for b in _prefixes(prior)]
        value = sum(p * part.value for p, part in zip(prior, parts, strict=True))
        return Estimate(float(value), max(part.error for part in parts))
    whole = residual_variance(encoder, atoms, data, products)
    if isinstance(objective, NonUniformL2):
        penalties = to_numpy(objective.penalties)
        decay = float(penalties @ (np.sum(encoder**2, axis=1) + np.sum(atoms**2, axis=1)))
        return Estimate(whole.value + decay, whole.error + 4 * data.n_features * EPS * decay)
    if isinstance(objective, LinearVAE):
        return _negative_elbo(objective, weights, whole, products)
    return whole


def _prefixes(prior: Vector) -> range:
    return range(1, len(prior) + 1)


def _prefix_loss(products: LossTerms, b: int, trace: float, m: int) -> Estimate:
    """Return tr((I − W₂ᵇW₁ᵇ)Σ(I − W₂ᵇW₁ᵇ)ᵀ) for the first b latents."""
    square = products.gram[:b, :b] * products.code_moment[:b, :b]
    cross = products.cross[:b]
    size = trace + 2 * float(np.sum(np.abs(cross))) + float(np.sum(np.abs(square)))
    return Estimate(trace - 2 * float(np.sum(cross)) + float(np.sum(square)), 4 * m * EPS * size)


def residual_variance(encoder: Vector, atoms: Vector, data: Data, products: LossTerms) -> Estimate:
    """Return tr((I − W₂W₁)Σ(I − W₂W₁)ᵀ), from the m × m matrix where it is there."""
    if data.matrix is None:
        return _prefix_loss(products, len(encoder), data.trace, data.n_features)
    m = data.n_features
    residual = np.eye(m) - atoms.T @ encoder
    image = residual @ data.matrix
    value = float(np.sum(image * residual))
    # Σ itself is known to m·ε·σ₁², and each of the two products adds m rounding errors.
    size = float(np.sum(np.abs(image) * np.abs(residual)))
    known = m * EPS * norm(residual) * norm(image)
    return Estimate(value, 4 * m * EPS * size + known)


def _negative_elbo(
    objective: LinearVAE, weights: Any, whole: Estimate, products: LossTerms
) -> Estimate | None:
    """Return −ELBO: Gaussian misfit with noise s², plus the divergence of q(z|x) from N(0, I)."""
    k, m = weights.encoder.shape
    given = objective.noise
    log_noise = float(weights.log_noise[0, 0]) if given is None else math.log(given)
    noise, logs = math.exp(log_noise), weights.log_variances[:, 0]
    if not noise > 0.0:
        return None
    variances = np.exp(logs)
    spread = float(variances @ np.diag(products.gram))
    divergence = float(np.sum(np.diag(products.code_moment) + variances - logs)) - k
    fit = m * math.log(2 * math.pi) + m * log_noise + (whole.value + spread) / noise
    rounding = 8 * m * EPS * (abs(fit) + abs(divergence) + m * abs(log_noise))
    return Estimate((fit + divergence) / 2, whole.error / (2 * noise) + rounding)


def own_minimum(
    objective: Any, values: Vector, trace: float, m: int, rest: float | None = None
) -> float:
    """Return the global minimum for given leading eigenvalues and the sum of the others.

    Bao et al. 2020: Theorem 3 and Appendix F; each by minimising the loss of one latent.
    """
    rest = max(trace - float(np.sum(values)), 0.0) if rest is None else rest
    if isinstance(objective, NonUniformL2):
        # A latent of squared length a on its axis has the loss σ²(1 − a)² + 2λa.
        penalties = np.sort(to_numpy(objective.penalties))
        safe = np.where(values > 0.0, values, 1.0)
        length = np.where(values > 0.0, np.maximum(1 - penalties / safe, 0.0), 0.0)
        return float(np.sum(values * (1 - length) ** 2 + 2 * penalties * length)) + rest
    if isinstance(objective, ExpectedNestedDropout):
        prior = to_numpy(objective.prior)
        return float(sum(p * (trace - np.sum(values[:b])) for b, p in enumerate(prior, start=1)))
    if isinstance(objective, LinearVAE):
        return _vae_minimum(objective.noise, values, rest, m)
    return rest


def _vae_minimum(given: float | None, values: Vector, rest: float, m: int) -> float:
    """Return −log-likelihood of N(0, C) with C = max(σ², s²) in the subspace and s² outside.

    Where no noise variance is given and the variance `rest` outside of the subspace is zero up to
    rounding, the likelihood is not bounded.
    """
    k = len(values)
    noise = rest / max(m - k, 1) if given is None else given
    if noise <= (0.0 if given is not None else m * EPS * (float(np.sum(values)) + rest)):
        return -math.inf
    model = np.append(np.maximum(values, noise), np.full(m - k, noise))
    data = np.append(values, np.full(m - k, rest / max(m - k, 1)))
    return float(m * math.log(2 * math.pi) + np.sum(np.log(model) + data / model)) / 2
