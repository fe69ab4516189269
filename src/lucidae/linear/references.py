"""Reference formulas of objectives and update rules, by which certificates judge weights.

Each objective and each rule of the package has one record in the table `REFERENCES`: its loss,
global minimum, update direction, curvature and citation, after the publication and without code of
the solvers, so that a mistake in a solver is not repeated in its certificate. An object that is not
in the table is judged by its own methods (`SelfJudged`), and its certificate says so.

Σ is the second moment of the data (m × m), σ₁² its largest eigenvalue, W₁ the encoder (k × m) and
W₂ the decoder (m × k), of which `atoms` is the transpose. Balls contain the rounding errors of a
formula for the known Σ̃; `gap_error` and `measure` add what Σ̃ − Σ changes.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lucidae.arrays import to_numpy
from lucidae.certificates.bounds import TINY, Ball, gamma
from lucidae.certificates.rows import Data, norm
from lucidae.linear.objectives import (
    BrockettRule,
    ExpectedNestedDropout,
    GeneralizedHebbianRule,
    LinearVAE,
    NonUniformL2,
    Reconstruction,
    RotationAugmentedRule,
)
from lucidae.linear.verify import Leading, Losses, Terms
from lucidae.spectrum import Spectrum

Vector = np.ndarray[Any, Any]


class Reference(ABC):
    """Reference formulas of an update rule that is not the gradient of any loss."""

    citation: str  # where it is shown what the rule converges to
    independent = True  # false if the formulas are those of the solvers

    @abstractmethod
    def direction(self, terms: Terms) -> tuple[Ball, ...]:
        """Return the update direction, up to its sign, one array per field of the weights."""

    def scale(self, terms: Terms, top: float) -> float:  # noqa: ARG002
        """Return the bound 4σ₁² on the curvature for σ₁² = `top`, which divides the direction."""
        return 4 * top

    def sensitivity(self, terms: Terms) -> float | None:
        """Return by how much the direction changes with Σ, per norm of the weights.

        A change E of Σ changes 2(W₂ᵀW₂W₁ − W₂ᵀ)Σ by at most 2(1 + ‖W₂‖²)‖W‖‖E‖. None if the
        direction has no correct digits.
        """
        return 4 * (1.0 + norm(terms.gram.value))


@dataclass(frozen=True)
class ObjectiveReference(Reference):
    """Reference formulas of an objective, whose update direction is its gradient.

    The loss is tr Σ + tr NΣ + Σᵢ λᵢ(‖encoder row i‖² + ‖decoder column i‖²), where
    N = W₁ᵀ(K∘W₂ᵀW₂)W₁ − W₂DW₁ − (W₂DW₁)ᵀ with D = diag(d) and Kᵢⱼ = d_max(i,j) for the
    probabilities d with which latents are kept. It is the reconstruction loss if d = 1 and λ = 0,
    and no objective has both other probabilities and penalties.
    """

    citation: str = "Baldi & Hornik 1989"
    penalties: Any = 0.0  # (k,): the penalties λ in the order of the latents; 0 without any
    prior: Vector | None = None  # (k,): the probability that the first b latents alone are kept

    def keep(self, k: int) -> Vector:
        """Return the probabilities d that b is at least 1, …, k."""
        return np.ones(k) if self.prior is None else np.cumsum(self.prior[::-1])[::-1]

    def squared_lengths(self, values: Vector) -> Vector:
        """Return the squared lengths of the latents at the optimum, 1 − λ/σ² or zero.

        The smallest penalty belongs to the largest eigenvalue.
        """
        penalties = np.sort(self.penalties + 0.0 * values)
        shrunk = np.maximum(1 - penalties / np.maximum(values, TINY), 0.0)
        return np.asarray(shrunk * (values > 0.0))

    def minimum(self, values: Vector, rest: float, m: int) -> float:  # noqa: ARG002
        """Return the global minimum for the k leading eigenvalues, and the sum of the others.

        A latent of squared length a on its axis has the loss (1 − d)σ² + dσ²(1 − a)² + 2λa.
        """
        keep, length = self.keep(len(values)), self.squared_lengths(values)
        decay = 2 * np.sort(self.penalties + 0.0 * values) * length
        return float(np.sum(values * (1 - keep + keep * (1 - length) ** 2) + decay)) + rest

    def in_units(self, unit: float) -> ObjectiveReference:
        """Return the reference for data divided by `unit`."""
        return replace(self, penalties=self.penalties / unit**2)

    def loss(self, terms: Terms) -> Ball | None:
        """Return the loss; None if it is not finite."""
        total = self.misfit(terms) if self.prior is None else self.expanded_loss(terms)
        if not np.ndim(self.penalties):
            return total
        squares = terms.encoder * terms.encoder + terms.atoms * terms.atoms
        decay: Ball = (squares * self.penalties[:, None]).sum()
        return total + decay

    def misfit(self, terms: Terms) -> Ball:
        """Return the residual variance tr((I − W₂W₁)Σ(I − W₂W₁)ᵀ).

        It is computed from R with Σ = RᵀR, if that is known, which loses no digits if the result is
        small beside tr Σ.
        """
        data, encoder, atoms = terms.data, terms.encoder, terms.atoms
        if data.factor is not None:
            root = Ball(data.factor[0])
            rest = root - (root @ encoder.T) @ atoms
            return (rest * rest).sum()
        return self.expanded_loss(terms)

    def expanded_loss(self, terms: Terms) -> Ball:
        """Return tr Σ + tr NΣ."""
        keep = self.keep(len(terms.encoder.value))
        total = Ball(terms.data.trace, gamma(terms.data.n_features) * terms.data.trace)
        cross = terms.encoded * terms.atoms * keep[:, None]
        squares = terms.gram * terms.code_moment * np.minimum.outer(keep, keep)
        return total - 2.0 * cross.sum() + squares.sum()

    def gradients(self, terms: Terms) -> tuple[Ball, Ball]:
        """Return the gradients of tr NΣ for both layers."""
        keep = self.keep(len(terms.encoder.value))
        pairs, kept = np.minimum.outer(keep, keep), keep[:, None]
        encoder = 2.0 * ((terms.gram * pairs) @ terms.encoded - terms.decoded * kept)
        atoms = 2.0 * ((terms.code_moment * pairs) @ terms.atoms - terms.encoded * kept)
        return encoder, atoms

    def direction(self, terms: Terms) -> tuple[Ball, ...]:
        """Return the gradient."""
        encoder, atoms = self.gradients(terms)
        decay = 2 * np.reshape(self.penalties, (-1, 1))
        return terms.gathered(encoder + terms.encoder * decay, atoms + terms.atoms * decay)

    def scale(self, terms: Terms, top: float) -> float:
        """Return 4(σ₁² + λ) for the largest penalty λ."""
        return super().scale(terms, top) + 4 * float(np.max(self.penalties))

    def size(self, data: Data) -> float:
        """Return the total variance, by which loss minus minimum is divided."""
        return max(data.trace, TINY)

    def latent_order(self, k: int) -> Vector:
        """Return the latents, sorted by descending variance at the optimum: ascending penalty."""
        return np.argsort(self.penalties + np.zeros(k), kind="stable")

    def zero_latents(self, values: Ball) -> tuple[Vector, Vector]:
        """Return the latents that are zero at the optimum, and those for which it is not known.

        Their penalty is not below their eigenvalue (Bao et al. 2020, Theorem 2). It is not known if
        the difference is smaller than the error of the eigenvalue.
        """
        penalties = np.asarray(self.penalties)
        if not penalties.ndim:
            return np.empty(0, dtype=int), np.empty(0, dtype=int)
        # Latent i belongs to the component that is the rank of its penalty.
        own = values[np.argsort(self.latent_order(len(penalties)))]
        free = penalties == 0.0  # without a penalty a latent is zero only if there is no variance
        zero = np.where(free, own.value <= 0.0, penalties >= own.high)
        nonzero = np.where(free, own.low > 0.0, penalties < own.low)
        return np.flatnonzero(zero), np.flatnonzero(~zero & ~nonzero)

    def loss_in_unit(self, loss: float, unit: float, m: int) -> float:  # noqa: ARG002
        """Return a loss for data that were divided by `unit` in the unit of the data."""
        return loss * unit * unit

    def losses(self, terms: Terms, leading: Leading) -> Losses | None:
        """Return the loss of the weights and its global minimum; None if one is not known."""
        data, k, values = terms.data, len(terms.encoder.value), leading.values
        m, size, value = data.n_features, self.size(data), self.loss(terms)
        known, error = values.value[:k], values.error[:k]
        if leading.complete:  # of Σ̃ itself they are known up to the rounding errors of LAPACK
            error = np.maximum(error - data.error, 0.0) + gamma(m) * values.value[0]
        # The minimum decreases with every leading eigenvalue while the trace is fixed.
        least, best, most = (
            self.minimum(ends, max(data.trace - float(np.sum(ends)), 0.0), m)
            for ends in (known + error, known, np.maximum(known - error, 0.0))
        )
        if leading.complete:  # the other eigenvalues may be small beside the trace
            best = self.minimum(known, float(np.sum(values.value[k:])), m)
        if value is None or not all(map(math.isfinite, (most, best, least))):
            return None
        rounding = gamma(8 * m) * (abs(best) + size) + self.gap_error(terms, leading)
        return Losses(value, Ball(best, max(most - best, best - least) + rounding), size)

    def gap_error(self, terms: Terms, leading: Leading) -> float:
        """Return how much the unknown part E of Σ may change the loss minus its minimum.

        The Frobenius norm of E is at most u = `data.error`. The minimum for Σ + E is at most the
        loss, for Σ + E, of the optimum for Σ, and vice versa. Loss minus minimum therefore changes
        by at most u·‖N − N*‖, where N* is the matrix N of the true optimum. N* = Σᵢ cᵢuᵢuᵢᵀ has
        the principal axes uᵢ and the coefficients cᵢ = d((1 − a)² − 1). The computed N* differs
        from the true one: the projection on the first i axes by at most 2√2·u/(λᵢ − λᵢ₊₁) (Yu,
        Wang & Samworth 2015), and the coefficients by what the errors of the eigenvalues change.
        """
        unsure, encoder, atoms = terms.data.error, terms.encoder.value, terms.atoms.value
        if leading.axes is None:
            return unsure * sum(self.separate_sizes(terms))
        k, values = len(encoder), leading.values[: len(encoder)]
        keep = self.keep(k)
        least, own, most = (
            keep * ((1 - self.squared_lengths(ends)) ** 2 - 1)
            for ends in (values.high, values.value, values.low)
        )
        # N − N* vanishes outside of the span of encoder, decoder and axes.
        span = np.linalg.qr(np.concatenate([encoder, atoms, leading.axes.T]).T)[0]
        inner, outer, axes = encoder @ span, atoms @ span, span.T @ leading.axes
        product, pairs = (outer.T * keep) @ inner, np.minimum.outer(keep, keep)
        form = inner.T @ (pairs * (outer @ outer.T)) @ inner - product - product.T
        steps = np.abs(np.diff(np.append(own, 0.0)))
        turned = 2 * math.sqrt(2) * unsure / np.maximum(leading.steps(k)[0], TINY)
        turned = np.minimum(turned, np.sqrt(2.0 * np.arange(1, k + 1)))
        apart = norm(form - (axes * own) @ axes.T) + float(np.max(most - least))
        return unsure * (apart + float(steps @ turned))

    def separate_sizes(self, terms: Terms) -> tuple[float, float]:
        """Return how much tr NΣ with its minimum, and tr W₁ΣW₁ᵀ, change with Σ on their own."""
        # ‖N‖ ≤ ‖P‖² + 2‖P‖ for P = W₂W₁, whose norm needs no m × m matrix.
        codes = terms.encoder.value @ terms.encoder.value.T
        size = math.sqrt(max(float(np.sum(codes * terms.gram.value)), 0.0))
        return size * size + 2 * size + math.sqrt(len(codes)), norm(codes)


@dataclass(frozen=True)
class SelfJudged(ObjectiveReference):
    """The formulas of an objective or a rule that has no record, from its own methods.

    `Data` has what such methods use of a covariance: `apply`, `trace` and `n_features`.
    """

    citation: str = (
        "the methods of the registered objective or rule itself, not verified independently"
    )
    rule: Any = None

    independent = False

    def direction(self, terms: Terms) -> tuple[Ball, ...]:
        """Return what the method `direction` returns."""
        found = self.rule.direction(terms.weights, terms.data)
        return tuple(Ball(to_numpy(part)) for part in found)

    def scale(self, terms: Terms, top: float) -> float:
        """Return what the method `scale` returns."""
        return float(self.rule.scale(known_spectrum(np.array([top]), terms.data)))

    def loss(self, terms: Terms) -> Ball:
        """Return what the method `value` returns."""
        found = float(to_numpy(self.rule.value(terms.weights, terms.data)))
        return Ball(found, gamma(8 * terms.data.n_features) * (abs(found) + terms.data.trace))

    def minimum(self, values: Vector, rest: float, m: int) -> float:
        """Return what the method `minimum` returns; infinity if it is not known."""
        known = Spectrum(values, np.zeros((m, len(values))), float(np.sum(values)) + rest)
        best = self.rule.minimum(known, len(values))
        return math.inf if best is None else float(best)

    def size(self, data: Data) -> float:
        """Return what the method `size` returns."""
        return float(self.rule.size(known_spectrum(np.empty(0), data)))

    def gap_error(self, terms: Terms, leading: Leading) -> float:  # noqa: ARG002
        """Return the error of a trace."""
        return math.sqrt(terms.data.n_features) * terms.data.error

    def latent_order(self, k: int) -> Vector:
        """Return what the method `latent_order` returns."""
        return np.asarray(self.rule.latent_order(k))

    def zero_latents(self, values: Ball) -> tuple[Vector, Vector]:
        """Return what the method `zero_latents` returns, if the objective has penalties."""
        none = np.empty(0, dtype=int)
        if not self.rule.has_penalties:
            return none, none
        return np.asarray(self.rule.zero_latents(values.value)) - 1, none


def known_spectrum(values: Vector, data: Data) -> Spectrum:
    """Return known eigenvalues, with zeros as eigenvectors, in the form that objectives take."""
    return Spectrum(values, np.zeros((data.n_features, len(values))), data.trace)


@dataclass(frozen=True)
class LinearVAEReference(ObjectiveReference):
    """Negative evidence lower bound per row: negative log-likelihood plus KL divergence.

    The noise variance s² is fixed (`noise`) or, if that is None, a parameter of the weights.
    """

    citation: str = "Tipping & Bishop 1999; Bao et al. 2020, Appendix F"
    noise: float | None = None

    def in_units(self, unit: float) -> LinearVAEReference:
        """Return the objective with the noise variance in the new unit."""
        return replace(self, noise=None if self.noise is None else self.noise / unit**2)

    def loss_in_unit(self, loss: float, unit: float, m: int) -> float:
        """Return the loss by −log p(sx) = −log p(x) + m log s."""
        return loss + m * math.log(unit)

    def _noise(self, terms: Terms) -> float:
        given = self.noise
        return math.exp(float(terms.weights.log_noise[0, 0])) if given is None else float(given)

    def loss(self, terms: Terms) -> Ball | None:
        """Return −ELBO; None if the noise variance is 0."""
        k, m = terms.encoder.value.shape
        noise, logs = self._noise(terms), terms.weights.log_variances[:, 0]
        if not noise > 0.0:
            return None
        log_noise = float(terms.weights.log_noise[0, 0]) if self.noise is None else math.log(noise)
        variances = np.exp(logs)
        spread = float(variances @ np.diag(terms.gram.value))
        divergence = float(np.sum(np.diag(terms.code_moment.value) + variances - logs)) - k
        constant = m * math.log(2 * math.pi) + m * log_noise + spread / noise + divergence
        rounding = m * abs(log_noise) + m + abs(spread) / noise + abs(divergence) + k
        return (self.misfit(terms) / noise + Ball(constant, gamma(8 * m) * rounding)) * 0.5

    def minimum(self, values: Vector, rest: float, m: int) -> float:
        """Return the smallest negative log-likelihood per row of probabilistic PCA.

        The covariance of the model has the eigenvalues max(σ², s²) for the k leading eigenvalues
        σ², and s² for the other m − k directions, whose variances sum to `rest`. If s² is learned,
        it is the mean of these; if that is zero up to rounding, the result is −inf.
        """
        k, given, others = len(values), self.noise, rest / max(m - len(values), 1)
        noise = others if given is None else given
        if noise <= (0.0 if given is not None else gamma(m) * (float(np.sum(values)) + rest)):
            return -math.inf
        model = np.append(np.maximum(values, noise), np.full(m - k, noise))
        spread = np.append(values, np.full(m - k, others))
        return float(m * math.log(2 * math.pi) + np.sum(np.log(model) + spread / model)) / 2

    def direction(self, terms: Terms) -> tuple[Ball, ...]:
        """Return the gradient for encoder, decoder, log posterior variances and log s²."""
        noise, variances = self._noise(terms), np.exp(terms.weights.log_variances)
        lengths = np.diag(terms.gram.value)[:, None]
        (encoder, atoms), slope = self.gradients(terms), Ball(0.0)
        if self.noise is None:
            misfit = self.misfit(terms) + float(np.sum(variances * lengths))
            slope = float(terms.data.n_features) - misfit / noise
        return (
            encoder / (2.0 * noise) + terms.encoded,
            (atoms * 0.5 + terms.atoms * variances) / noise,
            Ball((variances * (1 + lengths / noise) - 1) / 2),
            slope * 0.5,
        )

    def scale(self, terms: Terms, top: float) -> float:  # noqa: ARG002
        """Return the number of features."""
        return float(terms.data.n_features)

    def sensitivity(self, terms: Terms) -> float | None:
        """Return the change per change of Σ; None if the gradient is rounding errors alone.

        The gradient contains 1/s². Without variance a learned s² tends to zero, and no weights are
        stationary.
        """
        noise, data = self._noise(terms), terms.data
        unknown = self.noise is None and not data.trace > data.rounding
        if unknown or not noise > gamma(data.n_features) * data.trace:
            return None
        return (super().sensitivity(terms) or 0.0) / noise

    def size(self, data: Data) -> float:
        """Return the number of features."""
        return float(data.n_features)

    def gap_error(self, terms: Terms, leading: Leading) -> float:  # noqa: ARG002
        """Return the errors of loss and minimum on their own, which contain Σ divided by s²."""
        fit, codes = self.separate_sizes(terms)
        return terms.data.error * (fit / self._noise(terms) + codes)


class RotationAugmentedReference(Reference):
    """The reconstruction gradient plus a rotation that vanishes for uncorrelated codes."""

    citation = "Bao et al. 2020, Theorem 5"

    def direction(self, terms: Terms) -> tuple[Ball, ...]:
        """Return the direction of Bao et al. 2020, Algorithm 1."""
        encoder, atoms = ObjectiveReference().gradients(terms)
        moment = terms.code_moment
        turn = Ball((np.triu(moment.value, 1) - np.tril(moment.value, -1)) / 2, moment.error)
        return terms.gathered(encoder - turn @ terms.encoder, atoms - turn @ terms.atoms)


class GeneralizedHebbianReference(Reference):
    """Sanger's rule."""

    citation = "Sanger 1989"

    def direction(self, terms: Terms) -> tuple[Ball, ...]:
        """Return tril(WΣWᵀ)W − WΣ."""
        lower = Ball(np.tril(terms.code_moment.value), terms.code_moment.error)
        return (lower @ terms.encoder - terms.encoded,)

    def scale(self, terms: Terms, top: float) -> float:
        """Return 2σ₁²."""
        return super().scale(terms, top) / 2


@dataclass(frozen=True)
class BrockettReference(Reference):
    """Riemannian ascent of Brockett's cost tr(WΣWᵀD)."""

    ranks: Vector  # (k,): the diagonal of D

    citation = "Brockett 1991; Bao et al. 2020, eq. 51"

    def direction(self, terms: Terms) -> tuple[Ball, ...]:
        """Return 2DWΣ − (DM + MD)W with M = WΣWᵀ."""
        both = self.ranks[:, None] + self.ranks[None, :]
        straight = terms.encoded * (2.0 * self.ranks[:, None])
        return (straight - (terms.code_moment * both) @ terms.encoder,)

    def scale(self, terms: Terms, top: float) -> float:
        """Return 4σ₁² times the largest entry of D."""
        return super().scale(terms, top) * float(np.max(self.ranks))


# Functions that return the reference formulas of each objective and rule of the package.
REFERENCES: dict[type, Any] = {
    Reconstruction: lambda _: ObjectiveReference(),
    NonUniformL2: lambda rule: ObjectiveReference(
        "Bao et al. 2020, Theorem 3", penalties=to_numpy(rule.penalties)
    ),
    ExpectedNestedDropout: lambda rule: ObjectiveReference(
        "Rippel et al. 2014; Bao et al. 2020, Section 5", prior=to_numpy(rule.prior)
    ),
    LinearVAE: lambda rule: LinearVAEReference(noise=rule.noise),
    RotationAugmentedRule: lambda _: RotationAugmentedReference(),
    GeneralizedHebbianRule: lambda _: GeneralizedHebbianReference(),
    BrockettRule: lambda rule: BrockettReference(to_numpy(rule.ranks)),
}


def reference_of(rule: Any) -> Any:
    """Return the reference formulas of an objective or a rule; its own ones if it has no record."""
    make = REFERENCES.get(type(rule))
    return SelfJudged(rule=rule) if make is None else make(rule)
