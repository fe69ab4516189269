"""Reference formulas of objectives and update rules, by which certificates judge weights.

Each objective and each rule of the package has one record in the table `REFERENCES`: its loss,
global minimum, update direction, curvature and citation, after the publication and without code of
the solvers, so that a mistake in a solver is not repeated in its certificate. An object that is not
in the table is judged by its own methods (`SelfJudged`), and its certificate says so.

Σ is the second moment of the data (m × m), σ₁² its largest eigenvalue, W₁ the encoder (k × m) and
W₂ the decoder (m × k), of which `atoms` is the transpose.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import numpy as np

from lucidae.arrays import to_numpy
from lucidae.linear.objectives import (
    ExpectedNestedDropout,
    LinearVAE,
    NonUniformL2,
    Reconstruction,
)
from lucidae.linear.probe import EPS, Estimate
from lucidae.linear.rules import BrockettRule, GeneralizedHebbianRule, RotationAugmentedRule
from lucidae.linear.verified_data import Data, norm
from lucidae.linear.verified_spectrum import Leading
from lucidae.rows.spectrum import Spectrum

Vector = np.ndarray[Any, Any]

_TINY = float(np.finfo(float).tiny)


class LossTerms:
    """Products of weights with the second moment Σ, and the terms of the reconstruction loss."""

    def __init__(self, encoder: Vector, atoms: Vector, data: Data) -> None:
        images = data.apply(np.concatenate([encoder, atoms]))
        self.encoded, self.decoded = images[: len(encoder)], images[len(encoder) :]
        self.code_moment, self.gram = self.encoded @ encoder.T, atoms @ atoms.T
        self.cross = np.sum(self.encoded * atoms, axis=1)


class Losses(NamedTuple):
    """The loss of weights, its global minimum, and the number that divides their difference."""

    value: Estimate | None  # None if it is not known, as the minimum
    minimum: Estimate | None
    size: float

    @property
    def gap(self) -> Estimate | None:
        """Loss minus minimum, divided by `size`."""
        if self.value is None or self.minimum is None:
            return None
        difference = self.value.value - self.minimum.value
        return Estimate(difference / self.size, (self.value.error + self.minimum.error) / self.size)


class Reference(ABC):
    """Reference formulas of an update rule that is not the gradient of any loss."""

    citation: ClassVar[str]  # where it is shown what the rule converges to
    independent = True  # false if the formulas are those of the solvers

    def __init__(self, rule: Any) -> None:
        self.rule = rule

    @abstractmethod
    def direction(self, weights: Any, terms: LossTerms, data: Data) -> tuple[Vector, ...]:
        """Return the update direction, up to its sign, one array per field of the weights."""

    def scale(self, leading: Leading, data: Data) -> float:  # noqa: ARG002
        """Return the bound 4σ₁² on the curvature, by which the direction's norm is divided."""
        return 4 * float(leading.values[0])

    def direction_error(self, weights: Any, leading: Leading, data: Data) -> float | None:  # noqa: ARG002
        """Return the relative rounding error of the direction; None if it has no correct digits."""
        unsure = 2 * data.uncertainty / max(float(leading.values[0]), _TINY)
        return 8 * data.n_features * EPS + unsure


class ObjectiveReference(Reference):
    """Reference formulas of an objective, whose update direction is its gradient.

    The defaults are those of a loss tr Σ + tr NΣ plus terms without Σ, where N depends on the
    weights; for the reconstruction loss, N = PᵀP − P − Pᵀ with P = W₂W₁.
    """

    @abstractmethod
    def loss(self, weights: Any, terms: LossTerms, data: Data) -> Estimate | None:
        """Return the loss with its rounding error; None if it is not finite."""

    @abstractmethod
    def minimum(self, values: Vector, rest: float, data: Data) -> float:
        """Return the global minimum for the k leading eigenvalues, and the sum of the others."""

    def size(self, data: Data) -> float:
        """Return the total variance, by which loss minus minimum is divided."""
        return max(data.trace, _TINY)

    def form(self, encoder: Vector, atoms: Vector) -> Vector:
        """Return the matrix N of the loss."""
        product = atoms.T @ encoder
        return np.asarray(product.T @ product - product - product.T)

    def optimal_form(self, leading: Leading, k: int, unsure: float) -> tuple[Vector, float]:  # noqa: ARG002
        """Return the coefficients of N at the optimum, one for each of the k leading axes.

        The second result bounds how much they change if the eigenvalues change by `unsure`.
        """
        return -np.ones(k), 0.0

    def latent_order(self, k: int) -> Vector:
        """Return the latents, sorted by descending variance at the optimum."""
        return np.arange(k)

    def zero_latents(self, leading: Leading, k: int) -> tuple[Vector, Vector]:  # noqa: ARG002
        """Return the latents that are zero at the optimum, and those for which it is not known."""
        none = np.empty(0, dtype=int)
        return none, none

    def unit(self, data: Data) -> float:  # noqa: ARG002
        """Return the power of two by which data and weights are divided to avoid overflow."""
        return 1.0

    def in_units(self, unit: float) -> Any:  # noqa: ARG002
        """Return the objective for data divided by `unit`."""
        return self.rule

    def evidence(self) -> dict[str, Any]:
        """Return the constants of the objective that the certificate's evidence contains."""
        return {}

    def losses(self, weights: Any, terms: LossTerms, data: Data, leading: Leading) -> Losses:
        """Return the loss of the weights and its global minimum with their errors."""
        k, m = weights.encoder.shape
        size, value = self.size(data), self.loss(weights, terms, data)

        def minimum(values: Vector) -> float:
            return self.minimum(values, max(data.trace - float(np.sum(values)), 0.0), data)

        # The minimum decreases with every leading eigenvalue while the trace is fixed.
        # Errors of single precision change the loss and its minimum nearly alike, see `gap_error`.
        if leading.dense:
            known = self.minimum(leading.values[:k], float(np.sum(leading.values[k:])), data)
            low = minimum(leading.upper - data.uncertainty)
            high = minimum(leading.ritz + data.uncertainty)
            middle, error = known, max(abs(high - known), abs(known - low))
        else:
            # The sum of the eigenvalues is at most the trace.
            left = data.trace - (np.cumsum(leading.upper) - leading.upper)
            low = minimum(np.minimum(leading.upper, np.maximum(left, 0.0)))
            high = minimum(leading.ritz)
            known = minimum(leading.values[:k])
            middle, error = Estimate.between(low, high)
        if value is None or not all(map(math.isfinite, (low, known, high))):
            return Losses(None, None, size)
        rounding = 8 * m * EPS * (abs(known) + size) + self.gap_error(weights, leading, data)
        return Losses(value, Estimate(middle, error + rounding), size)

    def gap_error(self, weights: Any, leading: Leading, data: Data) -> float:
        """Return how much an error E of the second moment Σ may change the loss minus its minimum.

        E comes from products in single precision; its Frobenius norm is at most
        u = `data.uncertainty`. The minimum for Σ + E is at most the loss, for Σ + E, of the optimum
        for Σ, and vice versa. Loss minus minimum therefore changes by at most u·‖N − N*‖, where N*
        is the matrix N of the true optimum. N* = Σᵢ cᵢuᵢuᵢᵀ has the principal axes uᵢ and the
        coefficients cᵢ of `optimal_form`. The computed N* differs from the true one: the projection
        on the first i axes by at most 2√2·u/(λᵢ − λᵢ₊₁) (Yu, Wang & Samworth 2015), and the
        coefficients by at most their derivative times u.
        """
        unsure = data.uncertainty
        if unsure == 0.0:
            return 0.0
        if leading.axes is None:
            return self.separate_errors(weights, unsure)
        k = len(weights.encoder)
        coefficients, moved = self.optimal_form(leading, k, unsure)
        optimum = (leading.axes * coefficients) @ leading.axes.T
        steps = np.abs(np.diff(np.append(coefficients, 0.0)))
        gaps = leading.values[:k] - np.append(leading.values[1:k], leading.outside)
        turned = 2 * math.sqrt(2) * unsure / np.maximum(gaps, _TINY)
        turned = np.minimum(turned, np.sqrt(2.0 * np.arange(1, k + 1)))
        apart = norm(self.form(weights.encoder, weights.atoms) - optimum)
        return unsure * (apart + float(steps @ turned) + moved)

    def separate_errors(self, weights: Any, unsure: float) -> float:
        """Return a coarser bound than `gap_error`, of the errors of loss and minimum on their own.

        It also covers a term tr(W₁ΣW₁ᵀ), as in the loss of a linear VAE.
        """
        encoder = weights.encoder
        size = norm(self.form(encoder, weights.atoms)) + norm(encoder @ encoder.T)
        return unsure * (size + math.sqrt(len(encoder)))


class SelfJudged(ObjectiveReference):
    """The formulas of an objective or a rule that has no record, from its own methods."""

    citation = "the methods of the registered objective or rule itself, not verified independently"
    independent = False

    def direction(self, weights: Any, terms: LossTerms, data: Data) -> tuple[Vector, ...]:  # noqa: ARG002
        """Return what the method `direction` returns."""
        return tuple(to_numpy(part) for part in self.rule.direction(weights, data))

    def scale(self, leading: Leading, data: Data) -> float:
        """Return what the method `scale` returns."""
        return float(self.rule.scale(_spectrum(leading.values, data)))

    def loss(self, weights: Any, terms: LossTerms, data: Data) -> Estimate:  # noqa: ARG002
        """Return what the method `value` returns."""
        m, found = data.n_features, float(to_numpy(self.rule.value(weights, data)))
        rounding = 8 * m * EPS * (abs(found) + data.trace) + math.sqrt(m) * data.uncertainty
        return Estimate(found, rounding)

    def minimum(self, values: Vector, rest: float, data: Data) -> float:  # noqa: ARG002
        """Return what the method `minimum` returns; infinity if it is not known."""
        best = self.rule.minimum(_spectrum(values, data), len(values))
        return math.inf if best is None else float(best)

    def losses(self, weights: Any, terms: LossTerms, data: Data, leading: Leading) -> Losses:
        """Return what the methods `value` and `minimum` return."""
        k, m = weights.encoder.shape
        size = float(self.rule.size(_spectrum(leading.values, data)))
        best = self.minimum(leading.values[:k], 0.0, data)
        if not math.isfinite(best) or not leading.dense:
            return Losses(None, None, size)
        error = k * leading.error + 8 * m * EPS * abs(best)
        return Losses(self.loss(weights, terms, data), Estimate(best, error), size)

    def latent_order(self, k: int) -> Vector:
        """Return what the method `latent_order` returns."""
        return np.asarray(self.rule.latent_order(k))

    def zero_latents(self, leading: Leading, k: int) -> tuple[Vector, Vector]:
        """Return what the method `zero_latents` returns, if the objective has penalties."""
        none = super().zero_latents(leading, k)[1]
        return (self.rule.zero_latents(leading.values) if self.rule.has_penalties else none), none


def _spectrum(values: Vector, data: Data) -> Spectrum:
    """Return known eigenvalues, with zeros as eigenvectors, in the form that objectives take."""
    m = data.n_features
    return Spectrum(values[:m], np.zeros((m, min(len(values), m))), data.trace)


def _reconstruction(terms: LossTerms, b: int, data: Data) -> Estimate:
    """Return the reconstruction loss of the first b latents, from the sums in `terms`."""
    square = terms.gram[:b, :b] * terms.code_moment[:b, :b]
    cross = terms.cross[:b]
    size = data.trace + 2 * float(np.sum(np.abs(cross))) + float(np.sum(np.abs(square)))
    value = data.trace - 2 * float(np.sum(cross)) + float(np.sum(square))
    return Estimate(value, 4 * data.n_features * EPS * size)


def _residual_variance(weights: Any, terms: LossTerms, data: Data) -> Estimate:
    """Return tr((I − W₂W₁)Σ(I − W₂W₁)ᵀ), from Σ itself if `data` has it."""
    m = data.n_features
    if data.matrix is None:
        return _reconstruction(terms, len(weights.encoder), data)
    residual = np.eye(m) - weights.atoms.T @ weights.encoder
    image = residual @ data.matrix
    value = float(np.sum(image * residual))
    # Σ itself is known to m·ε·σ₁², and each of the two products adds m rounding errors.
    size = float(np.sum(np.abs(image) * np.abs(residual)))
    known = m * EPS * norm(residual) * norm(image)
    return Estimate(value, 4 * m * EPS * size + known)


def _gradient(weights: Any, terms: LossTerms, b: int) -> tuple[Vector, Vector]:
    """Return the gradients of the reconstruction loss of the first b latents for both layers."""
    encoder = 2 * (terms.gram[:b, :b] @ terms.encoded[:b] - terms.decoded[:b])
    atoms = 2 * (terms.code_moment[:b, :b] @ weights.atoms[:b] - terms.encoded[:b])
    return encoder, atoms


def _gathered(weights: Any, encoder: Vector, atoms: Vector) -> tuple[Vector, ...]:
    """Return the gradients of both layers for untied weights, their mean for tied ones."""
    return (encoder, atoms) if len(weights) == 2 else ((encoder + atoms) / 2,)


class ReconstructionReference(ObjectiveReference):
    """tr((I − W₂W₁)Σ(I − W₂W₁)ᵀ)."""

    citation = "Baldi & Hornik 1989"

    def loss(self, weights: Any, terms: LossTerms, data: Data) -> Estimate:
        """Return the residual variance."""
        return _residual_variance(weights, terms, data)

    def minimum(self, values: Vector, rest: float, data: Data) -> float:  # noqa: ARG002
        """Return the sum of the eigenvalues after the first k."""
        return rest

    def direction(self, weights: Any, terms: LossTerms, data: Data) -> tuple[Vector, ...]:  # noqa: ARG002
        """Return the gradient."""
        return _gathered(weights, *_gradient(weights, terms, len(weights.encoder)))


class NonUniformL2Reference(ObjectiveReference):
    """Residual variance plus Σᵢ λᵢ(‖encoder row i‖² + ‖decoder column i‖²)."""

    citation = "Bao et al. 2020, Theorem 3"

    @property
    def penalties(self) -> Vector:
        """The penalties λ, one per latent, in the order of the latents."""
        return to_numpy(self.rule.penalties)

    def loss(self, weights: Any, terms: LossTerms, data: Data) -> Estimate:
        """Return the residual variance plus penalties."""
        value, error = _residual_variance(weights, terms, data)
        squares = np.sum(weights.encoder**2, axis=1) + np.sum(weights.atoms**2, axis=1)
        decay = float(self.penalties @ squares)
        return Estimate(value + decay, error + 4 * data.n_features * EPS * decay)

    def minimum(self, values: Vector, rest: float, data: Data) -> float:  # noqa: ARG002
        """Return the sum of the minima of single latents, the smallest penalty first."""
        # A latent of squared length a on its axis has the loss σ²(1 − a)² + 2λa.
        penalties = np.sort(self.penalties)
        safe = np.where(values > 0.0, values, 1.0)
        length = np.where(values > 0.0, np.maximum(1 - penalties / safe, 0.0), 0.0)
        return float(np.sum(values * (1 - length) ** 2 + 2 * penalties * length)) + rest

    def direction(self, weights: Any, terms: LossTerms, data: Data) -> tuple[Vector, ...]:  # noqa: ARG002
        """Return the gradient."""
        encoder, atoms = _gradient(weights, terms, len(weights.encoder))
        decay = 2 * self.penalties[:, None]
        return _gathered(weights, encoder + decay * weights.encoder, atoms + decay * weights.atoms)

    def scale(self, leading: Leading, data: Data) -> float:
        """Return 4(σ₁² + λ) for the largest penalty λ."""
        return super().scale(leading, data) + 4 * float(np.max(self.penalties))

    def optimal_form(self, leading: Leading, k: int, unsure: float) -> tuple[Vector, float]:
        """Return a² − 2a for the squared lengths a = 1 − λ/σ² of the latents."""
        values, penalties = leading.values[:k], np.sort(self.penalties)
        least = np.maximum(np.maximum(values - leading.error, penalties), _TINY)
        sizes = np.maximum(1.0 - penalties / np.maximum(values, _TINY), 0.0)
        moved = unsure * float(np.max(2 * (penalties / least) ** 2 / least))
        return sizes**2 - 2 * sizes, moved

    def latent_order(self, k: int) -> Vector:  # noqa: ARG002
        """Return the latents by ascending penalty."""
        return np.argsort(self.penalties, kind="stable")

    def zero_latents(self, leading: Leading, k: int) -> tuple[Vector, Vector]:
        """Return the latents whose penalty is not below their eigenvalue (Bao et al., Theorem 2).

        It is not known if the difference is smaller than the error of the eigenvalue.
        """
        penalties, order = self.penalties, self.latent_order(k)
        low, high, known = np.empty(k), np.empty(k), np.empty(k)
        low[order], high[order], known[order] = leading.ritz, leading.upper, leading.values[:k]
        free = penalties == 0.0  # without a penalty a latent is zero only if there is no variance
        zero = np.where(free, known <= 0.0, penalties >= high)
        nonzero = np.where(free, known > 0.0, penalties < low)
        return 1 + np.flatnonzero(zero), 1 + np.flatnonzero(~zero & ~nonzero)

    def evidence(self) -> dict[str, Any]:
        """Return the penalties."""
        return {"penalties": self.penalties}


class ExpectedNestedDropoutReference(ObjectiveReference):
    """Mean residual variance of the first b latents, with the probability of each b."""

    citation = "Rippel et al. 2014; Bao et al. 2020, Section 5"

    @property
    def prior(self) -> Vector:
        """The probability of each number b of latents that are kept, from 1 to k."""
        return to_numpy(self.rule.prior)

    def loss(self, weights: Any, terms: LossTerms, data: Data) -> Estimate:  # noqa: ARG002
        """Return the mean over b."""
        parts = [_reconstruction(terms, b, data) for b in range(1, len(self.prior) + 1)]
        value = sum(p * part.value for p, part in zip(self.prior, parts, strict=True))
        return Estimate(float(value), max(part.error for part in parts))

    def minimum(self, values: Vector, rest: float, data: Data) -> float:  # noqa: ARG002
        """Return the mean, over b, of the total variance minus the first b eigenvalues."""
        left = (data.trace - np.sum(values[:b]) for b in range(1, len(values) + 1))
        return float(sum(p * variance for p, variance in zip(self.prior, left, strict=True)))

    def direction(self, weights: Any, terms: LossTerms, data: Data) -> tuple[Vector, ...]:  # noqa: ARG002
        """Return the mean of the gradients for the first b latents."""
        encoder, atoms = np.zeros_like(weights.encoder), np.zeros_like(weights.atoms)
        for b, p in enumerate(self.prior, start=1):
            first, second = _gradient(weights, terms, b)
            encoder[:b] += p * first
            atoms[:b] += p * second
        return _gathered(weights, encoder, atoms)

    def form(self, encoder: Vector, atoms: Vector) -> Vector:
        """Return the mean of N for the first b latents."""
        forms = (
            super(ExpectedNestedDropoutReference, self).form(encoder[:b], atoms[:b])
            for b in range(1, len(self.prior) + 1)
        )
        return np.asarray(sum(p * form for p, form in zip(self.prior, forms, strict=True)))

    def optimal_form(self, leading: Leading, k: int, unsure: float) -> tuple[Vector, float]:  # noqa: ARG002
        """Return minus the probabilities with which the latents are kept."""
        return -np.cumsum(self.prior[::-1])[::-1], 0.0

    def evidence(self) -> dict[str, Any]:
        """Return the probabilities."""
        return {"prior": self.prior}


class LinearVAEReference(ObjectiveReference):
    """Negative evidence lower bound per row: negative log-likelihood plus KL divergence.

    The noise variance s² is fixed (`rule.noise`) or, if that is None, a parameter of the weights.
    The loss is computed for data in units of about one standard deviation per feature: the decoder
    has the unit of the data, so that products with Σ would overflow.
    """

    citation = "Tipping & Bishop 1999; Bao et al. 2020, Appendix F"

    def noise(self, weights: Any) -> float:
        """Return the noise variance s²."""
        given = self.rule.noise
        return math.exp(float(weights.log_noise[0, 0])) if given is None else float(given)

    def loss(self, weights: Any, terms: LossTerms, data: Data) -> Estimate | None:
        """Return −ELBO; None if the noise variance is 0."""
        k, m = weights.encoder.shape
        noise, logs = self.noise(weights), weights.log_variances[:, 0]
        if not noise > 0.0:
            return None
        given = self.rule.noise
        log_noise = float(weights.log_noise[0, 0]) if given is None else math.log(given)
        variances = np.exp(logs)
        residual, error = _residual_variance(weights, terms, data)
        spread = float(variances @ np.diag(terms.gram))
        divergence = float(np.sum(np.diag(terms.code_moment) + variances - logs)) - k
        fit = m * math.log(2 * math.pi) + m * log_noise + (residual + spread) / noise
        rounding = 8 * m * EPS * (abs(fit) + abs(divergence) + m * abs(log_noise))
        return Estimate((fit + divergence) / 2, error / (2 * noise) + rounding)

    def minimum(self, values: Vector, rest: float, data: Data) -> float:
        """Return the smallest negative log-likelihood per row of probabilistic PCA.

        The covariance of the model has the eigenvalues max(σ², s²) for the k leading eigenvalues
        σ², and s² for the other m − k directions, whose variances sum to `rest`. If s² is learned,
        it is the mean of these; if that is zero up to rounding, the result is −inf.
        """
        k, m = len(values), data.n_features
        given, others = self.rule.noise, rest / max(m - k, 1)
        noise = others if given is None else given
        if noise <= (0.0 if given is not None else m * EPS * (float(np.sum(values)) + rest)):
            return -math.inf
        model = np.append(np.maximum(values, noise), np.full(m - k, noise))
        spread = np.append(values, np.full(m - k, others))
        return float(m * math.log(2 * math.pi) + np.sum(np.log(model) + spread / model)) / 2

    def direction(self, weights: Any, terms: LossTerms, data: Data) -> tuple[Vector, ...]:
        """Return the gradient for encoder, decoder, log posterior variances and log s²."""
        noise, variances = self.noise(weights), np.exp(weights.log_variances)
        lengths = np.diag(terms.gram)[:, None]
        encoder, atoms = _gradient(weights, terms, len(weights.encoder))
        slope = 0.0
        if self.rule.noise is None:
            misfit = _residual_variance(weights, terms, data).value
            slope = data.n_features - (misfit + float(np.sum(variances * lengths))) / noise
        return (
            encoder / 2 / noise + terms.encoded,
            (atoms / 2 + variances * weights.atoms) / noise,
            (variances * (1 + lengths / noise) - 1) / 2,
            np.full((1, 1), slope / 2),
        )

    def scale(self, leading: Leading, data: Data) -> float:  # noqa: ARG002
        """Return the number of features."""
        return float(data.n_features)

    def direction_error(self, weights: Any, leading: Leading, data: Data) -> float | None:  # noqa: ARG002
        """Return the relative rounding error, or None if the gradient is rounding errors alone.

        The gradient contains 1/s². Without variance a learned s² tends to zero, and no weights are
        stationary.
        """
        m, noise = data.n_features, self.noise(weights)
        if not noise > m * EPS * data.trace or (self.rule.noise is None and not data.varies):
            return None
        return 8 * m * EPS * (1 + data.trace / noise) + 2 * data.uncertainty / noise

    def size(self, data: Data) -> float:
        """Return the number of features."""
        return float(data.n_features)

    def gap_error(self, weights: Any, leading: Leading, data: Data) -> float:  # noqa: ARG002
        """Return the coarse bound, divided by the noise variance."""
        return self.separate_errors(weights, data.uncertainty) / min(self.noise(weights), 1.0)

    def unit(self, data: Data) -> float:
        """Return the power of two that is closest to the standard deviation per feature."""
        if not 0.0 < data.trace < math.inf:
            return 1.0
        return float(2.0 ** round(math.log2(data.trace / data.n_features) / 2))

    def in_units(self, unit: float) -> LinearVAE:
        """Return the objective with the noise variance in the new unit."""
        return LinearVAE(None if self.rule.noise is None else self.rule.noise / unit**2)


class RotationAugmentedReference(Reference):
    """The reconstruction gradient plus a rotation that vanishes for uncorrelated codes."""

    citation = "Bao et al. 2020, Theorem 5"

    def direction(self, weights: Any, terms: LossTerms, data: Data) -> tuple[Vector, ...]:  # noqa: ARG002
        """Return the direction of Bao et al. 2020, Algorithm 1."""
        encoder, atoms = _gradient(weights, terms, len(weights.encoder))
        turn = (np.triu(terms.code_moment, 1) - np.tril(terms.code_moment, -1)) / 2
        return _gathered(weights, encoder - turn @ weights.encoder, atoms - turn @ weights.atoms)


class GeneralizedHebbianReference(Reference):
    """Sanger's rule."""

    citation = "Sanger 1989"

    def direction(self, weights: Any, terms: LossTerms, data: Data) -> tuple[Vector, ...]:  # noqa: ARG002
        """Return tril(WΣWᵀ)W − WΣ."""
        return (np.tril(terms.code_moment) @ weights.encoder - terms.encoded,)

    def scale(self, leading: Leading, data: Data) -> float:  # noqa: ARG002
        """Return 2σ₁²."""
        return 2 * float(leading.values[0])


class BrockettReference(Reference):
    """Riemannian ascent of Brockett's cost tr(WΣWᵀD)."""

    citation = "Brockett 1991; Bao et al. 2020, eq. 51"

    def direction(self, weights: Any, terms: LossTerms, data: Data) -> tuple[Vector, ...]:  # noqa: ARG002
        """Return 2DWΣ − (DM + MD)W with M = WΣWᵀ."""
        ranks, moment = np.diag(to_numpy(self.rule.ranks)), terms.code_moment
        pull = (ranks @ moment + moment @ ranks) @ weights.encoder
        return (2 * ranks @ terms.encoded - pull,)

    def scale(self, leading: Leading, data: Data) -> float:
        """Return 4σ₁² times the largest entry of D."""
        return super().scale(leading, data) * float(np.max(to_numpy(self.rule.ranks)))


REFERENCES: dict[type, type[Reference]] = {
    Reconstruction: ReconstructionReference,
    NonUniformL2: NonUniformL2Reference,
    ExpectedNestedDropout: ExpectedNestedDropoutReference,
    LinearVAE: LinearVAEReference,
    RotationAugmentedRule: RotationAugmentedReference,
    GeneralizedHebbianRule: GeneralizedHebbianReference,
    BrockettRule: BrockettReference,
}
"""The reference formulas of each objective and rule of the package."""


def reference_of(rule: Any) -> Any:
    """Return the reference formulas of an objective or a rule; its own ones if it has no record."""
    return REFERENCES.get(type(rule), SelfJudged)(rule)
