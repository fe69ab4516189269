"""Objectives of linear autoencoders: value, gradient and closed-form minimizer of each.

All values follow the scaling L = tr((I − W₂W₁)Σ(I − W₂W₁)ᵀ), without a factor ½.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from lucidae.arrays import (
    Array,
    cholesky,
    diagonal,
    eye_like,
    largest,
    like,
    namespace,
    scalar,
    solve_lower,
    squared_norm,
    to_numpy,
    where_set,
    zeros_like_shape,
)
from lucidae.io.models import reads, saved_as
from lucidae.linear.data import Covariance, Products, products
from lucidae.linear.hessian import AlignedPoint, hessian_eigenvalues
from lucidae.linear.rules import Rule, keep_probabilities, reconstruction_gradient
from lucidae.linear.spectrum import TINY, Spectrum
from lucidae.linear.theory import zero_latents
from lucidae.linear.weights import AnyWeights, UntiedWeights, VariationalWeights
from lucidae.validation import check_integer, check_number

Vector = np.ndarray[Any, Any]

NOISE_FLOOR = 1e-6
"""Smallest noise variance that gradient steps may reach: the likelihood is unbounded at 0."""


class Objective(Rule):
    """A loss of the weights and the second moment, and what theory says about its minimum.

    A new objective defines `value` and `gradient`, and `minimizer` and `minimum` where a closed
    form is known. The other members are the questions that solvers and certificates ask; their
    defaults promise nothing.

    Attributes
    ----------
    gap_statement : str
        What the claim `gap` states.
    has_penalties : bool
        Whether latents can be zero at the minimum because their penalty is too large.
    """

    __slots__ = ()

    gap_statement = "the loss is its global minimum (excess over the total variance)"
    has_penalties = False

    @abstractmethod
    def value(self, weights: Any, covariance: Covariance) -> Array:
        """Return the loss, one per run.

        Parameters
        ----------
        weights : UntiedWeights, TiedWeights or VariationalWeights
            Both layers, (…, k, m); leading axes are independent runs.
        covariance : Covariance
            Products with the second moment.
        """

    @abstractmethod
    def gradient(self, weights: Any, covariance: Covariance) -> Any:
        """Return the gradient in the form of the weights: see `weights.gather`.

        Parameters
        ----------
        weights, covariance
            As for `value`.
        """

    def direction(self, weights: Any, covariance: Covariance) -> Any:
        """Return the gradient."""
        return self.gradient(weights, covariance)

    def minimizer(self, spectrum: Spectrum, k: int) -> Any:  # noqa: ARG002
        """Return weights at a global minimum; None where no closed form is known.

        Parameters
        ----------
        spectrum : Spectrum
            The leading eigenpairs, at least k of them.
        k : int
            Number of latents.
        """
        return None

    def minimum(self, spectrum: Spectrum, k: int) -> float | None:  # noqa: ARG002
        """Return the global minimum of the loss; None where it is not known.

        Parameters
        ----------
        spectrum, k
            As for `minimizer`.
        """
        return None

    @property
    def has_minimizer(self) -> bool:
        """Whether a closed form of the global minimum is known."""
        return type(self).minimizer is not Objective.minimizer

    def latent_order(self, k: int) -> Vector:
        """Return the indices of the latents in the order in which their variances descend.

        Parameters
        ----------
        k : int
            Number of latents.
        """
        return np.arange(k)

    def zero_latents(self, values: Vector) -> Vector:  # noqa: ARG002
        """Return the latents, counted from 1, that are zero at the minimum.

        Parameters
        ----------
        values : ndarray of shape (q,)
            The leading eigenvalues, descending, at least k of them.
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
        """Return the smallest non-zero eigenvalue of the Hessian, where the objective aligns."""
        curvatures = self.hessian_eigenvalues(values)
        if curvatures is None or not self.aligns:
            return None
        positive = curvatures[curvatures > 1e-12 * curvatures[-1]]
        return float(positive[0]) if positive.size else 0.0

    def size(self, spectrum: Spectrum) -> float:
        """Return the number by which the claim `gap` divides the excess over the minimum.

        Parameters
        ----------
        spectrum : Spectrum
            The leading eigenpairs.
        """
        return max(spectrum.trace, TINY)

    def unit(self, covariance: Covariance) -> float:  # noqa: ARG002
        """Return the unit of length in which the data are measured for automatic step sizes.

        It is 1 for objectives that scale with the data as a whole.

        Parameters
        ----------
        covariance : Covariance
            Products with the second moment.
        """
        return 1.0

    def completed(self, weights: Any, noise_variance: float | None) -> Any:  # noqa: ARG002
        """Return the weights of this objective from an encoder and a decoder alone.

        Parameters
        ----------
        weights : UntiedWeights or TiedWeights
            Both layers.
        noise_variance : float or None
            The observation variance, where the objective has one.
        """
        return weights


def reconstruction(weights: AnyWeights, data: Products, trace: Any) -> Array:
    """Return L = tr Σ − 2 tr(W₂W₁Σ) + tr(W₂ᵀW₂ · W₁ΣW₁ᵀ). Bao et al. 2020, eq. 1."""
    xp = namespace(weights.encoder)
    cross = xp.sum(weights.atoms * data.encoded, axis=(-2, -1))
    return trace - 2 * cross + xp.sum(data.gram * data.code_moment, axis=(-2, -1))


@saved_as("lucidae.linear.reconstruction/1", formerly="lucidae.linear.objectives:Plain")
@dataclass(frozen=True, slots=True)
class Reconstruction(Objective):
    """The reconstruction loss without a penalty. Bao et al. 2020, eq. 1."""

    def value(self, weights: AnyWeights, covariance: Covariance) -> Array:
        """Return the loss."""
        return reconstruction(weights, products(weights, covariance), covariance.trace)

    def gradient(self, weights: AnyWeights, covariance: Covariance) -> AnyWeights:
        """Return ∇W₁ = 2(W₂ᵀW₂W₁Σ − W₂ᵀΣ) and ∇W₂ = 2(W₂W₁ΣW₁ᵀ − ΣW₁ᵀ)."""
        return weights.gather(*reconstruction_gradient(weights, products(weights, covariance)))

    def minimizer(self, spectrum: Spectrum, k: int) -> UntiedWeights:
        """Return the balanced minimizer W₁ = Uᵀ, W₂ = U."""
        axes = spectrum.vectors[:, :k].mT
        return UntiedWeights(axes, axes)

    def minimum(self, spectrum: Spectrum, k: int) -> float:
        """Return the sum of the discarded eigenvalues."""
        return spectrum.noise(k) * (spectrum.n_features - k)


@saved_as("lucidae.linear.nonuniform_l2/1", formerly="lucidae.linear.objectives:NonUniformL2")
@dataclass(frozen=True, slots=True)
class NonUniformL2(Objective):
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
        """Return the loss."""
        root = self._root(weights.encoder)
        decay = squared_norm(root * weights.encoder) + squared_norm(root * weights.atoms)
        return Reconstruction().value(weights, covariance) + decay

    def gradient(self, weights: AnyWeights, covariance: Covariance) -> AnyWeights:
        """Return ∇L + 2ΛW₁ and ∇L + 2W₂Λ."""
        encoder, atoms = reconstruction_gradient(weights, products(weights, covariance))
        twice = 2 * self._root(weights.encoder) ** 2
        return weights.gather(encoder + twice * weights.encoder, atoms + twice * weights.atoms)

    def minimizer(self, spectrum: Spectrum, k: int) -> UntiedWeights:
        """Return the global minimum: principal axes of squared length 1 − λ/σ².

        The smallest penalty λ belongs to the largest eigenvalue σ²; a latent with λ ≥ σ² is zero.
        Bao et al. 2020, Theorem 3.
        """
        # The rank of a latent's penalty is the number of its eigenvalue (rearrangement inequality).
        order = np.argsort(np.argsort(to_numpy(self.penalties), kind="stable"))
        values, vectors = spectrum.values[:k], spectrum.vectors[:, :k]
        rows = vectors.mT * namespace(values).sqrt(self.squared_lengths(values))[:, None]
        xp = namespace(rows)
        assigned = xp.take(rows, xp.asarray(order, device=rows.device), axis=0)
        return UntiedWeights(assigned, assigned)

    def squared_lengths(self, values: Array) -> Array:
        """Return the squared lengths at the minimum: 1 − λ/σ², or 0 where λ ≥ σ²."""
        ascending = like(np.sort(to_numpy(self.penalties)), values)
        nonzero = values > ascending
        return where_set(1 - ascending / where_set(values, ~nonzero, 1.0), ~nonzero, 0.0)

    def minimum(self, spectrum: Spectrum, k: int) -> float:
        """Return the sum of 2λ − λ²/σ² over non-zero latents plus every other eigenvalue."""
        values = spectrum.values[:k]
        xp = namespace(values)
        ascending = like(np.sort(to_numpy(self.penalties)), values)
        nonzero = values > ascending
        safe = where_set(values, ~nonzero, 1.0)
        latent = where_set(ascending * (2 - ascending / safe), ~nonzero, 0.0) + where_set(
            values, nonzero, 0.0
        )
        return float(xp.sum(latent)) + spectrum.noise(k) * (spectrum.n_features - k)

    @property
    def aligns(self) -> bool:
        """Whether no two penalties are equal; latents with equal penalties can rotate freely."""
        return bool(np.all(np.diff(np.sort(to_numpy(self.penalties))) > 0.0))

    def latent_order(self, k: int) -> Vector:  # noqa: ARG002
        """Return the latents by ascending penalty: the smallest has the largest variance."""
        return np.argsort(to_numpy(self.penalties))

    def zero_latents(self, values: Vector) -> Vector:
        """Return the latents, counted from 1, whose penalty is at least their eigenvalue."""
        penalties = to_numpy(self.penalties)
        return zero_latents(values[: len(penalties)], penalties)

    def hessian_eigenvalues(self, values: Vector) -> Vector:
        """Return the eigenvalues of the Hessian at the minimum, ascending."""
        return hessian_eigenvalues(AlignedPoint.nonuniform(values, to_numpy(self.penalties)))

    def curvature(self, spectrum: Spectrum) -> float:
        """Return 4σ₁² + 4 max λ: a penalty adds at most 4λ."""
        return 4 * scalar(spectrum.values[0]) + 4 * largest(self.penalties)

    def _root(self, ref: Array) -> Array:
        return namespace(ref).sqrt(like(self.penalties, ref))[..., :, None]


def geometric_prior(k: int, ratio: float = 0.9) -> Vector:
    """Return p_B(b) = ρ^(b−1)(1−ρ) for b < k, and the remaining probability for b = k.

    Parameters
    ----------
    k : int
        Number of latents.
    ratio : float, default=0.9
        The ratio ρ of neighbouring probabilities, in (0, 1).

    Returns
    -------
    ndarray of shape (k,)

    Examples
    --------
    >>> geometric_prior(3, ratio=0.5)
    array([0.5 , 0.25, 0.25])
    """
    k = check_integer(k, "k", low=1)
    ratio = check_number(ratio, "ratio", low=0.0, high=1.0, open_low=True, open_high=True)
    prior = (1 - ratio) * ratio ** np.arange(k, dtype=float)
    prior[-1] = ratio ** (k - 1)
    return prior


def uniform_prior(k: int) -> Vector:
    """Return p_B(b) = 1/k, the prior of Oftadeh et al. (2020)."""
    k = check_integer(k, "k", low=1)
    return np.full(k, 1.0 / k)


@saved_as(
    "lucidae.linear.expected_nested_dropout/1",
    formerly="lucidae.linear.objectives:ExpectedNestedDropout",
)
@dataclass(frozen=True, slots=True)
class ExpectedNestedDropout(Objective):
    """Twice the expected nested-dropout loss. Bao et al. 2020, eq. 6 (without its ½).

    Parameters
    ----------
    prior : array of shape (k,)
        Probabilities p_B(b) of keeping the first b latents. The uniform prior gives the loss of
        Oftadeh et al. (2020). Components are identified only if every entry is positive.
    """

    prior: Array

    def value(self, weights: AnyWeights, covariance: Covariance) -> Array:
        """Return tr Σ − 2 tr(ΣW₂P_DW₁) + tr(W₁ΣW₁ᵀ (W₂ᵀW₂ ∘ P_L)); see `_masks` for P_D and P_L."""
        xp, data = namespace(weights.encoder), products(weights, covariance)
        kept, pairs = self._masks(weights.encoder)
        cross = xp.sum(kept * weights.atoms * data.encoded, axis=(-2, -1))
        square = xp.sum(pairs * data.gram * data.code_moment, axis=(-2, -1))
        return covariance.trace - 2 * cross + square

    def gradient(self, weights: AnyWeights, covariance: Covariance) -> AnyWeights:
        """Return the gradient of the value."""
        data = products(weights, covariance)
        kept, pairs = self._masks(weights.encoder)
        encoder = 2 * ((data.gram * pairs) @ data.encoded - kept * data.decoded)
        atoms = 2 * ((data.code_moment * pairs) @ weights.atoms - kept * data.encoded)
        return weights.gather(encoder, atoms)

    def minimizer(self, spectrum: Spectrum, k: int) -> UntiedWeights:
        """Return the minimizer of unit scale, W₁ = Uᵀ, W₂ = U."""
        return Reconstruction().minimizer(spectrum, k)

    def minimum(self, spectrum: Spectrum, k: int) -> float:
        """Return the total variance less Σᵢ pᵢσᵢ², pᵢ the probability of keeping latent i."""
        kept = like(keep_probabilities(self.prior), spectrum.values)
        return spectrum.trace - float(namespace(kept).sum(kept * spectrum.values[:k]))

    @property
    def aligns(self) -> bool:
        """Whether every prefix length has positive probability.

        A prefix length of probability 0 leaves the latents on both sides of it free to mix.
        """
        return bool(np.all(to_numpy(self.prior) > 0))

    def hessian_eigenvalues(self, values: Vector) -> Vector:
        """Return the eigenvalues of the Hessian at the minimum of unit scale, ascending."""
        return hessian_eigenvalues(AlignedPoint.nested(values, to_numpy(self.prior)))

    def _masks(self, ref: Array) -> tuple[Array, Array]:
        """Return P_D, P(unit i is kept), and P_L, P(units i and j are kept).

        Prefixes are nested, so that both are kept whenever the later one is: P_L is the smaller of
        the two probabilities.
        """
        kept = like(keep_probabilities(self.prior), ref)
        return kept[:, None], namespace(ref).minimum(kept[:, None], kept[None, :])


def _positive_solve(A: Array, B: Array) -> Array:
    """Return A⁻¹B for positive definite A, and NaN where A is not, as after a divergence."""
    factor, _ = cholesky(A)
    return solve_lower(factor, solve_lower(factor, B), transpose=True)


@saved_as("lucidae.linear.linear_vae/1", formerly="lucidae.linear.objectives:LinearVAE")
@dataclass(frozen=True, slots=True)
class LinearVAE(Objective):
    """Negative ELBO per sample of a linear VAE with diagonal posterior.

    The decoder W has the noise variance s², the encoder V the posterior variances D (Bao et al.
    2020, Appendix F).

    Parameters
    ----------
    noise : float, optional
        A fixed observation variance s²; learned when None.
    """

    noise: float | None = None

    gap_statement = "−ELBO is the negative log-likelihood of the optimum (excess per feature)"
    aligns = True  # the diagonal posterior breaks the rotational symmetry
    orders = False  # any permutation of the latents has the same ELBO
    tying = "refused"

    def value(self, weights: VariationalWeights, covariance: Covariance) -> Array:
        """Return −ELBO."""
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
        """Return the gradient with respect to V, Wᵀ, log D and log s²."""
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
        """Return first weights with posterior and noise variances of 1."""
        k = encoder.shape[-2]
        zero = zeros_like_shape((*encoder.shape[:-2], k, 1), encoder)
        return VariationalWeights(encoder, atoms, zero, zero[..., :1, :])

    def retract(self, weights: VariationalWeights) -> VariationalWeights:
        """Return the weights with the noise variance at `NOISE_FLOOR` or above."""
        floor = math.log(NOISE_FLOOR)
        low = weights.log_noise < floor
        return weights._replace(log_noise=where_set(weights.log_noise, low, floor))

    def minimizer(self, spectrum: Spectrum, k: int) -> VariationalWeights:
        """Return probabilistic PCA: W = U(S² − s²I)₊^½ and V = (WᵀW + s²I)⁻¹Wᵀ.

        U are the principal axes, S² their eigenvalues, and s² is the mean of the other eigenvalues.
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
        """Return the negative log-likelihood of probabilistic PCA, which the bound attains."""
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
        """Return about σ₁⁴/s² (encoder) or 1/s² (decoder), whichever is larger, plus m/2 (noise).

        `spectrum` must have all k leading eigenvalues: the noise variance follows from them.
        """
        top = scalar(spectrum.values[0])
        noise = self.noise or spectrum.noise(spectrum.values.shape[0])
        floor = max(noise, NOISE_FLOOR)
        return 2 * max(top * (top / floor), 1.0 / floor) + spectrum.n_features / 2

    def preconditioned(
        self, direction: VariationalWeights, weights: VariationalWeights, covariance: Covariance
    ) -> VariationalWeights:
        """Return the gradient with each of its four blocks divided by its own second derivative.

        These are (WᵀW/s² + I) ⊗ Σ for the encoder V, (D + VΣVᵀ)/s² for the decoder Wᵀ,
        D(1 + ‖wᵢ‖²/s²)/2 for log D and m/2 for log s². The minimum over V alone is
        (WᵀW + s²I)⁻¹Wᵀ for every Σ, so that its Newton step needs no inverse of Σ.
        """
        xp, k = namespace(weights.encoder), weights.encoder.shape[-2]
        noise = xp.exp(self._log_noise(weights))
        variances = xp.exp(weights.log_variances)
        identity = eye_like(k, weights.encoder)
        gram = weights.atoms @ weights.atoms.mT
        best = _positive_solve(gram + noise * identity, weights.atoms)
        code_moment = covariance.apply(weights.encoder) @ weights.encoder.mT
        spread = code_moment + variances * identity
        curvature = variances * (1 + diagonal(gram)[..., :, None] / noise) / 2
        # Far from the minimum a Newton step in a logarithm is too long: it is limited to 1.
        return VariationalWeights(
            weights.encoder - best,
            noise * _positive_solve(spread, direction.atoms),
            xp.clip(direction.log_variances / curvature, -1.0, 1.0),
            xp.clip(2 * direction.log_noise / weights.encoder.shape[-1], -1.0, 1.0),
        )

    def preconditioned_curvature(self, spectrum: Spectrum) -> float:  # noqa: ARG002
        """Return 2: each block has the curvature 1, and encoder and decoder are coupled."""
        return 2.0

    def n_eigenvalues(self, k: int) -> int:
        """Return k: the noise variance follows from all leading eigenvalues."""
        return k

    def steepening(self, start: Any) -> float:  # noqa: ARG002
        """Return 1: the ELBO is not quartic."""
        return 1.0

    def scale(self, spectrum: Spectrum) -> float:
        """Return the number of features, which is the size of the loss itself.

        The largest curvature would hide the slow directions of this stiff objective.
        """
        return float(spectrum.n_features)

    def size(self, spectrum: Spectrum) -> float:
        """Return the number of features."""
        return float(spectrum.n_features)

    def unit(self, covariance: Covariance) -> float:
        """Return the standard deviation per feature: the noise variance starts at 1."""
        variance = float(covariance.trace) / covariance.n_features
        return float(np.sqrt(variance)) if variance > 0.0 else 1.0

    def completed(self, weights: AnyWeights, noise_variance: float | None) -> VariationalWeights:
        """Return weights with the optimal posterior variances D = s²/(diag(WᵀW) + s²)."""
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
        """Return tr(RΣRᵀ) + tr(W diag(D) Wᵀ), R = I − WV."""
        xp = namespace(weights.encoder)
        variances = xp.exp(weights.log_variances)[..., 0]
        spread = xp.sum(variances * diagonal(data.gram), axis=-1)
        return reconstruction(weights, data, trace) + spread


@reads("lucidae.linear.rule.gradient/1")
@reads("lucidae.linear.rule.variational/1")
@reads("lucidae.linear.rules:Descent")
@reads("lucidae.linear.rules:VariationalDescent")
def _descended(fields: dict[str, Any]) -> Any:
    """Return the objective, which earlier files hold inside a rule of its own."""
    return fields["objective"]
