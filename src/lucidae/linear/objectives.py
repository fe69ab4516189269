"""Objectives of linear autoencoders: value, gradient and closed-form minimizer of each.

The reconstruction loss is tr((I − W₂W₁)Σ(I − W₂W₁)ᵀ) with the encoder W₁ (k × m), the decoder W₂
(m × k) and the second moment Σ of the data (m × m): the mean squared error, without a factor ½.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from lucidae.arrays import (
    Array,
    add_diagonal,
    clamped,
    diagonal,
    largest,
    like,
    namespace,
    scalar,
    solve_positive,
    to_numpy,
    where_set,
    zeros_like_shape,
)
from lucidae.linear.rules import Rule, keep_probabilities, reconstruction_gradient
from lucidae.linear.theory import AlignedPoint, hessian_eigenvalues, zero_latents
from lucidae.linear.weights import AnyWeights, Products, UntiedWeights, VariationalWeights, products
from lucidae.rows.covariances import TINY, Covariance
from lucidae.spectrum import Spectrum
from lucidae.validation import check_number

Vector = np.ndarray[Any, Any]

NOISE_FLOOR = 1e-6
"""Smallest noise variance of a linear VAE during training; at 0 the likelihood may diverge."""


class Objective(Rule):
    """Base class of losses, which depend on the weights and the second moment of the data.

    A new objective defines `value` and `gradient`, and `minimizer` and `minimum` if a closed form
    is known. Solvers and certificates also use the other members, whose defaults claim nothing.

    Attributes
    ----------
    gap_statement : str
        Statement of the claim `gap` in certificates, which is about the loss minus its minimum.
    size_name : str
        Words that follow the number (loss − minimum) / `size` in messages, such as "of the total
        variance".
    has_minimizer : bool
        Whether `minimizer` is defined: a closed form of the optimal weights is known.
    has_penalties : bool
        Whether latents can be zero at the minimum because their penalty is too large.
    """

    __slots__ = ()

    has_minimizer: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        cls.has_minimizer = cls.minimizer is not Objective.minimizer

    gap_statement = "the loss is its global minimum (excess divided by the total variance)"
    size_name = "of the total variance"
    has_penalties = False

    @abstractmethod
    def value(self, weights: Any, covariance: Covariance) -> Array:
        """Return the loss, one number per training run.

        Parameters
        ----------
        weights : UntiedWeights, TiedWeights or VariationalWeights
            Both layers, of shape (…, k, m); leading axes are independent runs.
        covariance : Covariance
            The second moment of the data, of which only products are used.
        """

    @abstractmethod
    def gradient(self, weights: Any, covariance: Covariance) -> Any:
        """Return the gradient of the loss as an object of the type of `weights`.

        Parameters
        ----------
        weights : UntiedWeights, TiedWeights or VariationalWeights
            Both layers, of shape (…, k, m); leading axes are independent runs.
        covariance : Covariance
            The second moment of the data, of which only products are used.
        """

    def direction(self, weights: Any, covariance: Covariance) -> Any:
        """Return the gradient of the loss, which optimizers subtract from the weights."""
        return self.gradient(weights, covariance)

    def minimizer(self, spectrum: Spectrum, k: int) -> Any:  # noqa: ARG002
        """Return weights at a global minimum; None if no closed form is known.

        Parameters
        ----------
        spectrum : Spectrum
            At least k leading eigenvalues and eigenvectors of the second moment.
        k : int
            Number of latents.
        """
        return None

    def minimum(self, spectrum: Spectrum, k: int) -> float | None:  # noqa: ARG002
        """Return the global minimum of the loss; None if it is not known.

        Parameters
        ----------
        spectrum : Spectrum
            At least k leading eigenvalues and eigenvectors of the second moment.
        k : int
            Number of latents.
        """
        return None

    def latent_order(self, k: int) -> Vector:
        """Return the indices of the latents, sorted by descending variance at the minimum.

        Parameters
        ----------
        k : int
            Number of latents.
        """
        return np.arange(k)

    def zero_latents(self, values: Vector) -> Vector:  # noqa: ARG002
        """Return the numbers, from 1, of the latents that are zero at the minimum.

        Parameters
        ----------
        values : ndarray of shape (q,)
            At least k leading eigenvalues of the second moment, descending.
        """
        return np.empty(0, dtype=int)

    def hessian_eigenvalues(self, values: Vector) -> Vector | None:  # noqa: ARG002
        """Return the eigenvalues of the Hessian at the minimum, ascending; None if not known.

        Parameters
        ----------
        values : ndarray of shape (m,)
            All eigenvalues of the second moment, descending.
        """
        return None

    def alignment_rate(self, values: Vector, k: int) -> float | None:  # noqa: ARG002
        """Return the rate at which gradient descent aligns the latents with the principal axes.

        It is the smallest non-zero eigenvalue of the Hessian at the minimum; None if the latents do
        not align (`aligns` is false).
        """
        curvatures = self.hessian_eigenvalues(values)
        if curvatures is None or not self.aligns:
            return None
        positive = curvatures[curvatures > 1e-12 * curvatures[-1]]
        return float(positive[0]) if positive.size else 0.0

    def size(self, spectrum: Spectrum) -> float:
        """Return the total variance, by which the claim `gap` divides loss minus minimum.

        Parameters
        ----------
        spectrum : Spectrum
            The leading eigenvalues and the trace of the second moment.
        """
        return max(spectrum.trace, TINY)

    def unit(self, covariance: Covariance) -> float:  # noqa: ARG002
        """Return the number by which the data are divided before automatic step sizes are chosen.

        It is 1 for objectives whose value is proportional to the square of the data.

        Parameters
        ----------
        covariance : Covariance
            The second moment of the data.
        """
        return 1.0

    def completed(self, weights: Any, noise_variance: float | None) -> Any:  # noqa: ARG002
        """Return the weights in the type that this objective needs, from encoder and decoder.

        Objectives with further parameters, such as a linear VAE, set them to their optimum. By
        default `weights` itself is returned.

        Parameters
        ----------
        weights : UntiedWeights or TiedWeights
            Both layers.
        noise_variance : float or None
            The observation variance of a linear VAE; other objectives do not use it.
        """
        return weights


def reconstruction(
    weights: AnyWeights, data: Products, trace: Any, kept: Any = 1.0, pairs: Any = 1.0
) -> Array:
    """Return the reconstruction loss, one number per run (Bao et al. 2020, eq. 1).

    With the probabilities `kept` (k, 1) and `pairs` (k, k) that nested dropout keeps a latent, and
    both of two latents, it is the expected loss of nested dropout.
    """
    xp = namespace(weights.encoder)
    cross = xp.sum(kept * weights.atoms * data.encoded, axis=(-2, -1))
    return trace - 2 * cross + xp.sum(pairs * data.gram * data.code_moment, axis=(-2, -1))


@dataclass(frozen=True, slots=True)
class Reconstruction(Objective):
    """Reconstruction loss without a penalty (Bao et al. 2020, eq. 1)."""

    def value(self, weights: AnyWeights, covariance: Covariance) -> Array:
        """Return the reconstruction loss, one number per training run."""
        data = products(weights, covariance)
        return reconstruction(weights, data, covariance.trace, *self._masks(weights.encoder))

    def gradient(self, weights: AnyWeights, covariance: Covariance) -> AnyWeights:
        """Return the gradient of the reconstruction loss with respect to encoder and decoder."""
        masks = self._masks(weights.encoder)
        return weights.gather(
            *reconstruction_gradient(weights, products(weights, covariance), *masks)
        )

    def _masks(self, ref: Array) -> tuple[Any, Any]:  # noqa: ARG002
        """Return the probabilities that latent i, and both latents i and j, are kept."""
        return 1.0, 1.0

    def minimizer(self, spectrum: Spectrum, k: int) -> UntiedWeights:
        """Return the k leading principal axes as encoder rows and as decoder columns."""
        axes = spectrum.vectors[:, :k].mT
        return UntiedWeights(axes, axes)

    def minimum(self, spectrum: Spectrum, k: int) -> float:
        """Return the sum of all eigenvalues of the second moment after the first k."""
        return spectrum.noise(k) * (spectrum.n_features - k)


@dataclass(frozen=True, slots=True)
class NonUniformL2(Reconstruction):
    """Reconstruction loss plus Σᵢ λᵢ(‖encoder row i‖² + ‖decoder column i‖²).

    Bao et al. 2020, eq. 3.

    Parameters
    ----------
    penalties : array of shape (k,)
        One penalty λᵢ per latent, in any order. If all are equal, this is the uniform penalty of
        Bao et al. 2020, eq. 2.
    """

    penalties: Array

    balanced = True  # at every stationary point: Bao et al. 2020, Theorem 1
    has_penalties = True

    def value(self, weights: AnyWeights, covariance: Covariance) -> Array:
        """Return the penalised reconstruction loss, one number per training run."""
        penalties = like(self.penalties, weights.encoder)[..., :, None]
        squares = weights.encoder * weights.encoder + weights.atoms * weights.atoms
        decay = namespace(squares).sum(penalties * squares, axis=(-2, -1))
        return Reconstruction().value(weights, covariance) + decay

    def gradient(self, weights: AnyWeights, covariance: Covariance) -> AnyWeights:
        """Return the gradient of the penalised loss with respect to encoder and decoder."""
        encoder, atoms = reconstruction_gradient(weights, products(weights, covariance))
        twice = 2 * like(self.penalties, encoder)[..., :, None]
        return weights.gather(encoder + twice * weights.encoder, atoms + twice * weights.atoms)

    def minimizer(self, spectrum: Spectrum, k: int) -> UntiedWeights:
        """Return optimal weights: principal axes, scaled to the squared length 1 − λ/σ².

        The smallest penalty λ belongs to the largest eigenvalue σ². A latent with λ ≥ σ² is zero
        (Bao et al. 2020, Theorem 3).
        """
        # The rank of a latent's penalty is the number of its eigenvalue (rearrangement inequality).
        order = np.argsort(np.argsort(to_numpy(self.penalties), kind="stable"))
        values, vectors = spectrum.values[:k], spectrum.vectors[:, :k]
        rows = vectors.mT * namespace(values).sqrt(self.squared_lengths(values))[:, None]
        xp = namespace(rows)
        assigned = xp.take(rows, xp.asarray(order, device=rows.device), axis=0)
        return UntiedWeights(assigned, assigned)

    def squared_lengths(self, values: Array) -> Array:
        """Return each latent's squared length at the minimum: max(0, 1 − penalty/eigenvalue)."""
        ascending = like(np.sort(to_numpy(self.penalties)), values)
        nonzero = values > ascending
        return where_set(1 - ascending / where_set(values, ~nonzero, 1.0), ~nonzero, 0.0)

    def minimum(self, spectrum: Spectrum, k: int) -> float:
        """Return the global minimum of the penalised loss, which is the loss at `minimizer`."""
        values = spectrum.values[:k]
        lengths, penalties = (
            self.squared_lengths(values),
            like(np.sort(to_numpy(self.penalties)), values),
        )
        latents = values * (1 - lengths) ** 2 + 2 * penalties * lengths
        rest = Reconstruction().minimum(spectrum, k)
        return float(namespace(values).sum(latents)) + rest

    @property
    def aligns(self) -> bool:
        """Whether all penalties differ, so that each latent finds one principal axis."""
        return bool(np.all(np.diff(np.sort(to_numpy(self.penalties))) > 0.0))

    def latent_order(self, k: int) -> Vector:  # noqa: ARG002
        """Return the indices of the latents by ascending penalty, that is, descending variance."""
        return np.argsort(to_numpy(self.penalties))

    def zero_latents(self, values: Vector) -> Vector:
        """Return the numbers, from 1, of latents whose penalty is not below their eigenvalue."""
        penalties = to_numpy(self.penalties)
        return zero_latents(values[: len(penalties)], penalties)

    def hessian_eigenvalues(self, values: Vector) -> Vector:
        """Return the eigenvalues of the Hessian of the loss at `minimizer`, ascending."""
        return hessian_eigenvalues(AlignedPoint.nonuniform(values, to_numpy(self.penalties)))

    def curvature(self, spectrum: Spectrum) -> float:
        """Return 4(σ₁² + λ), a bound on the curvature of the loss.

        σ₁² is the largest eigenvalue of the second moment, and λ the largest penalty.
        """
        return 4 * scalar(spectrum.values[0]) + 4 * largest(self.penalties)


@dataclass(frozen=True, slots=True)
class ExpectedNestedDropout(Reconstruction):
    """Expected loss of nested dropout (Bao et al. 2020, eq. 6, without its factor ½).

    Nested dropout keeps only the first b latents, where b is random.

    Parameters
    ----------
    prior : array of shape (k,)
        Entry b is the probability that nested dropout keeps the first b latents alone. Equal
        entries give the loss of Oftadeh et al. 2020. Each latent finds one principal axis only if
        every entry is positive.
    """

    prior: Array

    def minimum(self, spectrum: Spectrum, k: int) -> float:
        """Return the total variance minus Σᵢ pᵢσᵢ², the global minimum of the loss.

        pᵢ is the probability with which nested dropout keeps latent i, and σᵢ² the i-th largest
        eigenvalue of the second moment.
        """
        kept = like(keep_probabilities(self.prior), spectrum.values)
        return spectrum.trace - float(namespace(kept).sum(kept * spectrum.values[:k]))

    @property
    def aligns(self) -> bool:
        """Whether all entries of `prior` are positive; otherwise some latents can mix."""
        return bool(np.all(to_numpy(self.prior) > 0))

    def hessian_eigenvalues(self, values: Vector) -> Vector:
        """Return the eigenvalues of the Hessian of the loss at `minimizer`, ascending."""
        return hessian_eigenvalues(AlignedPoint.nested(values, to_numpy(self.prior)))

    def _masks(self, ref: Array) -> tuple[Array, Array]:
        """Return the probabilities that nested dropout keeps latent i, and both latents i and j.

        The arrays have the shapes (k, 1) and (k, k) for k latents. Since the first b latents are
        kept, for a random b, two latents are both kept whenever the later one is.
        """
        kept = like(keep_probabilities(self.prior), ref)
        return kept[:, None], namespace(ref).minimum(kept[:, None], kept[None, :])


@dataclass(frozen=True, slots=True)
class LinearVAE(Objective):
    """Negative evidence lower bound (−ELBO) per row of a linear VAE with diagonal covariance.

    The model is p(x|z) = N(Wz, s²I) and q(z|x) = N(Vx, D) with the decoder W, the noise variance
    s², the encoder V and the posterior variances D (Bao et al. 2020, Appendix F).

    Parameters
    ----------
    noise : float, optional
        The noise variance s² if it is fixed; None if it is learned.
    """

    noise: float | None = None

    gap_statement = "−ELBO is its global minimum, that of probabilistic PCA (excess per feature)"
    size_name = "per feature"
    aligns = True  # the diagonal posterior breaks the rotational symmetry
    orders = False  # any permutation of the latents has the same ELBO
    tying = "refused"

    def value(self, weights: VariationalWeights, covariance: Covariance) -> Array:
        """Return the negative evidence lower bound (−ELBO) per row, one number per training run."""
        xp, data = namespace(weights.encoder), products(weights, covariance)
        k, m = weights.encoder.shape[-2:]
        log_noise = self._log_noise(weights)[..., 0, 0]
        variances = xp.exp(weights.log_variances)
        misfit = self._misfit(weights, data, covariance.trace) * xp.exp(-log_noise)
        code = diagonal(data.code_moment) + (variances - weights.log_variances)[..., 0]
        return (m * (math.log(2 * math.pi) + log_noise) + misfit) / 2 + (
            xp.sum(code, axis=-1) - k
        ) / 2

    def gradient(self, weights: VariationalWeights, covariance: Covariance) -> VariationalWeights:
        """Return the gradient of the negative evidence lower bound (−ELBO) for all weights."""
        xp, data = namespace(weights.encoder), products(weights, covariance)
        m = weights.encoder.shape[-1]
        precision = xp.exp(-self._log_noise(weights))
        variances = xp.exp(weights.log_variances)
        encoder = (data.gram @ data.encoded - data.decoded) * precision + data.encoded
        atoms = precision * (
            variances * weights.atoms + data.code_moment @ weights.atoms - data.encoded
        )
        # −ELBO depends on log D by (D(1 + ‖wᵢ‖²/s²) − log D)/2, and on log s² by
        # (m log s² + misfit/s²)/2.
        spread = diagonal(data.gram)[..., :, None] * precision
        log_variances = (variances * (1 + spread) - 1) / 2
        misfit = self._misfit(weights, data, covariance.trace)[..., None, None] * precision
        log_noise = (m - misfit) / 2 if self.noise is None else 0.0 * misfit
        return VariationalWeights(encoder, atoms, log_variances, log_noise)

    def start(self, encoder: Array, atoms: Array, tied: bool) -> VariationalWeights:  # noqa: ARG002
        """Return weights from which training starts, with posterior and noise variances of 1.

        `encoder` contains the rows of the encoder, and `atoms` the columns of the decoder as rows.
        `tied` is not used.
        """
        k = encoder.shape[-2]
        zero = zeros_like_shape((*encoder.shape[:-2], k, 1), encoder)
        return VariationalWeights(encoder, atoms, zero, zero[..., :1, :])

    def retract(self, weights: VariationalWeights) -> VariationalWeights:
        """Return the weights with a noise variance below `NOISE_FLOOR` raised to it."""
        floor = math.log(NOISE_FLOOR)
        low = weights.log_noise < floor
        return weights._replace(log_noise=where_set(weights.log_noise, low, floor))

    def minimizer(self, spectrum: Spectrum, k: int) -> VariationalWeights:
        """Return the weights of probabilistic PCA: W = U(S² − s²I)₊^½ and V = (WᵀW + s²I)⁻¹Wᵀ.

        W is the decoder, V the encoder, U the k leading principal axes, S² their eigenvalues, and
        s² the fixed noise variance, or the mean of the other eigenvalues if it is learned.
        """
        xp, values = namespace(spectrum.values), spectrum.values[:k]
        noise = spectrum.noise(k) if self.noise is None else self.noise
        power = where_set(values - noise, values <= noise, 0.0)
        atoms = xp.sqrt(power)[:, None] * spectrum.vectors[:, :k].mT
        total = where_set(power + noise, power + noise <= 0.0, 1.0)[:, None]
        tiny = float(xp.finfo(values.dtype).smallest_normal)
        level = zeros_like_shape((1, 1), values) + math.log(max(noise, tiny))
        log_variances = level - xp.log(total)
        return VariationalWeights(atoms / total, atoms, log_variances, level)

    def minimum(self, spectrum: Spectrum, k: int) -> float:
        """Return the smallest negative evidence lower bound (−ELBO) per row.

        It is the negative log-likelihood per row of probabilistic PCA.
        """
        xp, values = namespace(spectrum.values), spectrum.values[:k]
        noise = spectrum.noise(k) if self.noise is None else self.noise
        m = spectrum.n_features
        if noise <= 0.0:
            return -math.inf
        # The model covariance has the eigenvalues max(σᵢ², s²) inside the subspace and s² outside.
        captured = where_set(values, values < noise, noise)
        rest = spectrum.trace - float(xp.sum(values))
        inside = float(xp.sum(xp.log(captured) + values / captured))
        outside = (m - k) * math.log(noise) + rest / noise
        return (m * math.log(2 * math.pi) + inside + outside) / 2

    def curvature(self, spectrum: Spectrum) -> float:
        """Return an approximate bound on the curvature near the optimum, for the step size.

        It is 2 max(σ₁⁴, 1)/s² + m/2 for m features, the largest eigenvalue σ₁² and the noise
        variance s². If s² is learned, it is computed from the k leading eigenvalues in `spectrum`.
        """
        top = scalar(spectrum.values[0])
        noise = self.noise or spectrum.noise(spectrum.values.shape[0])
        floor = max(noise, NOISE_FLOOR)
        return 2 * max(top * (top / floor), 1.0 / floor) + spectrum.n_features / 2

    def preconditioned_direction(
        self, weights: VariationalWeights, covariance: Covariance
    ) -> VariationalWeights:
        """Return the Newton step of each group of parameters while the others are fixed.

        Σ is the second moment of the data with m features. The groups are the encoder V, the
        decoder W, the posterior variances D and the noise variance s². The best V is
        (WᵀW + s²I)⁻¹Wᵀ for every Σ. With A = WᵀW + s²I and B = D + VΣVᵀ, the gradient for Wᵀ is
        (BWᵀ − VΣ)/s², so that the Newton steps are V − A⁻¹Wᵀ for V and Wᵀ − B⁻¹VΣ for Wᵀ. They are
        1 − s²/(DᵢAᵢᵢ) for log Dᵢ, and 1 − misfit/(ms²) for log s², where misfit = tr Σ +
        tr W(BWᵀ − 2VΣ) is the expected squared error. Far from the minimum a Newton step in a
        logarithm is too long: it is limited to 1.
        """
        xp, (encoder, atoms) = namespace(weights.encoder), weights[:2]
        log_noise = self._log_noise(weights)
        noise, variances = xp.exp(log_noise), xp.exp(weights.log_variances)
        encoded, gram = covariance.apply(encoder), atoms @ atoms.mT
        inner = add_diagonal(gram, (noise + 0.0 * variances)[..., 0])
        outer = add_diagonal(encoded @ encoder.mT, variances[..., 0])
        fitted = xp.sum(outer * gram, axis=(-2, -1)) - 2 * xp.sum(encoded * atoms, axis=(-2, -1))
        misfit = (covariance.trace + fitted)[..., None, None] / (noise * encoder.shape[-1])
        power = variances * diagonal(inner)[..., :, None]
        return VariationalWeights(
            encoder - solve_positive(inner, atoms),
            atoms - solve_positive(outer, encoded),
            clamped(1 - noise / power, -1.0, 1.0),
            clamped(1 - misfit, -1.0, 1.0) if self.noise is None else 0.0 * log_noise,
        )

    def preconditioned_curvature(self, spectrum: Spectrum) -> float:  # noqa: ARG002
        """Return 2, a bound on the curvature of the loss after preconditioning.

        Preconditioning gives each group of parameters the curvature 1; the coupling of encoder and
        decoder can double it.
        """
        return 2.0

    def n_eigenvalues(self, k: int) -> int:
        """Return k, the number of eigenvalues of the second moment that `curvature` needs."""
        return k

    def steepening(self, start: Any) -> float:  # noqa: ARG002
        """Return 1, the ratio of the curvature at the start of training to that at the optimum.

        Other rules return a larger number if the curvature is larger at the start.
        """
        return 1.0

    def scale(self, spectrum: Spectrum) -> float:
        """Return the number of features, by which the stopping rule divides the gradient's norm.

        If the norm were divided by the largest curvature, directions that converge slowly would
        seem to have converged.
        """
        return float(spectrum.n_features)

    def size(self, spectrum: Spectrum) -> float:
        """Return the number of features, by which the claim `gap` divides loss minus minimum."""
        return float(spectrum.n_features)

    def unit(self, covariance: Covariance) -> float:
        """Return the square root of the mean variance of the features.

        The data are divided by it before automatic step sizes are chosen.
        """
        variance = float(covariance.trace) / covariance.n_features
        return float(np.sqrt(variance)) if variance > 0.0 else 1.0

    def completed(self, weights: AnyWeights, noise_variance: float | None) -> VariationalWeights:
        """Return the weights of a linear VAE with the given encoder, decoder and noise variance.

        The posterior variances are set to their optimum.
        """
        noise = check_number(noise_variance, "noise_variance", low=0.0, open_low=True)
        xp = namespace(weights.atoms)
        power = xp.sum(weights.atoms * weights.atoms, axis=-1)[:, None]
        log_noise = 0.0 * power[:1, :] + math.log(noise)
        log_variances = math.log(noise) - xp.log(power + noise)
        return VariationalWeights(weights.encoder, weights.atoms, log_variances, log_noise)

    def _log_noise(self, weights: VariationalWeights) -> Array:
        if self.noise is None:
            return weights.log_noise
        return 0.0 * weights.log_noise + math.log(self.noise)

    @staticmethod
    def _misfit(weights: VariationalWeights, data: Products, trace: Any) -> Array:
        """Return the expected squared error: reconstruction loss plus the posterior's variance."""
        xp = namespace(weights.encoder)
        variances = xp.exp(weights.log_variances)[..., 0]
        spread = xp.sum(variances * diagonal(data.gram), axis=-1)
        return reconstruction(weights, data, trace) + spread
