"""Losses and global minima of linear autoencoders for certificates, without code of the solvers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lucidae.arrays import to_numpy
from lucidae.linear.objectives import ExpectedNestedDropout, LinearVAE, NonUniformL2
from lucidae.linear.probe import EPS, Estimate
from lucidae.linear.verified_data import Data, norm
from lucidae.linear.verified_spectrum import Leading

__all__ = ["LossTerms", "gap_error", "own_minimum", "own_value", "residual_variance"]

Vector = np.ndarray[Any, Any]

_TINY = float(np.finfo(float).tiny)


class LossTerms:
    """Products of weights with the second moment Σ, and the terms of the reconstruction loss."""

    def __init__(self, encoded: Vector, decoded: Vector, encoder: Vector, atoms: Vector) -> None:
        self.encoded, self.decoded = encoded, decoded
        self.code_moment, self.gram = encoded @ encoder.T, atoms @ atoms.T
        self.cross = np.sum(encoded * atoms, axis=1)

    @classmethod
    def of(cls, encoder: Vector, atoms: Vector, data: Data) -> LossTerms:
        """Return the terms of the loss for the encoder and the decoder columns (`atoms`).

        Both have shape (k, m) for k latents and m features; `data` is the second moment.
        """
        both = data.apply(np.concatenate([encoder, atoms]))
        return cls(both[: len(encoder)], both[len(encoder) :], encoder, atoms)


def own_value(objective: Any, weights: Any, data: Data, products: LossTerms) -> Estimate | None:
    """Return the loss of the weights by the definition of the objective, with its rounding error.

    `products` are those of the weights with the second moment, `data`. The result is None for a
    linear VAE whose noise variance is zero.
    """
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


def gap_error(objective: Any, weights: Any, leading: Leading, data: Data) -> float:
    """Return how much an error E of the second moment Σ may change the loss minus its minimum.

    E comes from products in single precision; its Frobenius norm is at most u = `data.uncertainty`.
    With the encoder W₁ and the decoder W₂, the loss is tr(Σ) + tr(NΣ), plus penalties, where
    N = PᵀP − P − Pᵀ and P = W₂W₁. The minimum for Σ + E is at most the loss, for Σ + E, of the
    optimum for Σ, and vice versa. Loss minus minimum therefore changes by at most u·‖N − N*‖, where
    N* is the matrix N of the true optimum. N* = Σᵢ cᵢuᵢuᵢᵀ has the principal axes uᵢ and
    coefficients cᵢ that follow from the eigenvalues λᵢ. The computed N* differs from the true one:
    the projection on the first i axes by at most 2√2·u/(λᵢ − λᵢ₊₁) (Yu, Wang & Samworth 2015), and
    the coefficients by at most their derivative times u.
    """
    unsure = data.uncertainty
    if unsure == 0.0:
        return 0.0
    encoder, atoms = weights.encoder, weights.atoms
    k, values = len(encoder), leading.values
    if isinstance(objective, LinearVAE) or leading.axes is None:
        # Without the axes, or with a noise variance, each of both terms is bounded on its own.
        noise = 1.0
        if isinstance(objective, LinearVAE):
            noise = objective.noise or math.exp(float(weights.log_noise[0, 0]))
        size = norm(_form(encoder, atoms)) + norm(encoder @ encoder.T) + math.sqrt(k)
        return unsure * size / min(noise, 1.0)
    sizes, moved = np.ones(k), 0.0
    form = _form(encoder, atoms)
    if isinstance(objective, NonUniformL2):
        penalties = np.sort(to_numpy(objective.penalties))
        least = np.maximum(np.maximum(values[:k] - leading.error, penalties), _TINY)
        sizes = np.maximum(1.0 - penalties / np.maximum(values[:k], _TINY), 0.0)
        moved = unsure * float(np.max(2 * (penalties / least) ** 2 / least))
    coefficients = sizes**2 - 2 * sizes
    if isinstance(objective, ExpectedNestedDropout):
        prior = to_numpy(objective.prior)
        coefficients = -np.cumsum(prior[::-1])[::-1]
        form = np.zeros_like(form)
        for b, p in enumerate(prior, start=1):
            form += p * _form(encoder[:b], atoms[:b])
    optimum = (leading.axes * coefficients) @ leading.axes.T
    steps = np.abs(np.diff(np.append(coefficients, 0.0)))
    gaps = values[:k] - np.append(values[1:k], leading.outside)
    turned = 2 * math.sqrt(2) * unsure / np.maximum(gaps, _TINY)
    turned = np.minimum(turned, np.sqrt(2.0 * np.arange(1, k + 1)))
    return unsure * (norm(form - optimum) + float(steps @ turned) + moved)


def _form(encoder: Vector, atoms: Vector) -> Vector:
    """Return PᵀP − P − Pᵀ for P = W₂W₁, with the encoder W₁ and the decoder W₂ᵀ = `atoms`."""
    product = atoms.T @ encoder
    return np.asarray(product.T @ product - product - product.T)


def _prefixes(prior: Vector) -> range:
    return range(1, len(prior) + 1)


def _prefix_loss(products: LossTerms, b: int, trace: float, m: int) -> Estimate:
    """Return the reconstruction loss if only the first b latents are used, with its rounding error.

    `products` are those of the weights with the second moment, `trace` is the total variance, and m
    the number of features.
    """
    square = products.gram[:b, :b] * products.code_moment[:b, :b]
    cross = products.cross[:b]
    size = trace + 2 * float(np.sum(np.abs(cross))) + float(np.sum(np.abs(square)))
    return Estimate(trace - 2 * float(np.sum(cross)) + float(np.sum(square)), 4 * m * EPS * size)


def residual_variance(encoder: Vector, atoms: Vector, data: Data, products: LossTerms) -> Estimate:
    """Return the reconstruction loss tr((I − W₂W₁)Σ(I − W₂W₁)ᵀ), with its rounding error.

    W₁ is the encoder, W₂ᵀ = `atoms` the transposed decoder, and Σ the second moment of the data.
    The matrix Σ is used if `data` has it; otherwise the sums in `products`.
    """
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
    """Return the loss of a linear VAE, with its rounding error; None if the noise variance is 0.

    The loss is the negative evidence lower bound (ELBO): the expected negative Gaussian
    log-likelihood plus the Kullback-Leibler divergence of the posterior from N(0, I). `whole` is
    the reconstruction loss.
    """
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
    """Return the global minimum of an objective of the package.

    It follows by minimising the loss of each latent separately (Bao et al. 2020, Theorem 3 and
    Appendix F).
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
    """Return the negative log-likelihood per row of probabilistic PCA at its optimum.

    The covariance of the model has the eigenvalues max(σ², s²) for the k leading eigenvalues σ²
    (`values`), and the noise variance s² for the other m − k directions, whose variances sum to
    `rest`. s² is `given`, or the mean of the other variances if `given` is None. If that mean is
    zero up to rounding, the likelihood is not bounded and the result is −inf.
    """
    k = len(values)
    noise = rest / max(m - k, 1) if given is None else given
    if noise <= (0.0 if given is not None else m * EPS * (float(np.sum(values)) + rest)):
        return -math.inf
    model = np.append(np.maximum(values, noise), np.full(m - k, noise))
    data = np.append(values, np.full(m - k, rest / max(m - k, 1)))
    return float(m * math.log(2 * math.pi) + np.sum(np.log(model) + data / model)) / 2
