"""Update rules and objectives of linear autoencoders: direction, value, gradient and minimizer.

A rule computes a `direction`, which an optimizer uses as it would use a gradient. An objective is a
rule whose direction is its gradient. The reconstruction loss is tr((I − W₂W₁)Σ(I − W₂W₁)ᵀ) with the
encoder W₁ (k × m), the decoder W₂ (m × k) and the second moment Σ of the data (m × m): the mean
squared error, without a factor ½.
"""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
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
    solve_positive,
    to_numpy,
    where_set,
    zeros_like_shape,
)
from lucidae.arrays.eigen import orthonormal_rows
from lucidae.linear.theory import (
    AlignedPoint,
    hessian_eigenvalues,
    inner_gap,
    outer_gap,
    squared_lengths,
    zero_latents,
)
from lucidae.linear.weights import (
    AnyWeights,
    Products,
    TiedWeights,
    UntiedWeights,
    VariationalWeights,
    products,
)
from lucidae.rows.covariances import TINY, Covariance, RowsCovariance
from lucidae.spectrum import Spectrum
from lucidae.validation import check_number

Vector = np.ndarray[Any, Any]

NOISE_FLOOR = 1e-6
"""Smallest noise variance of a linear VAE during training; at 0 the likelihood may diverge."""

NO_ADAM: Mapping[str, str] = {
    "adam": (
        "Adam rescales every coordinate separately, which does not commute with a rotation of the "
        "latents, so the rule loses the property that makes it converge to the components."
    )
}
"""The reason, shown in an error, why rules that rotate or orthogonalise latents refuse Adam."""


class Rule(ABC):
    """Interface of update rules: the direction of each step, and what is proved about its limit.

    A subclass must define `direction`. Solvers and certificates read the other members; their
    defaults claim no property of the fixed points. An `Objective` is a rule whose direction is its
    gradient.

    Attributes
    ----------
    balanced : bool
        Whether it is proved that the encoder W₁ and the decoder W₂ satisfy W₁W₁ᵀ = W₂ᵀW₂ at the
        fixed points.
    needs_rows : bool
        Whether the direction is computed from rows rather than from their second moment.
    tying : str
        Whether encoder and decoder may share one array (tied layers). ``"optional"``: untied unless
        ``tied=True`` is given; ``"default"``: tied unless ``tied=False`` is given; ``"required"``:
        always tied; ``"refused"``: never tied, because the two differ at the optimum.
    refused_optimizers : mapping of str to str
        Names of the optimizers with which the rule does not work, each with the reason.
    """

    __slots__ = ()

    balanced = False
    needs_rows = False
    tying = "optional"
    refused_optimizers: ClassVar[Mapping[str, str]] = {}

    @abstractmethod
    def direction(self, weights: Any, covariance: Any) -> Any:
        """Return the direction that an optimizer subtracts from the weights, like a gradient.

        Parameters
        ----------
        weights : UntiedWeights, TiedWeights or VariationalWeights
            Encoder and decoder, each of shape (…, k, m) for k latents and m features; leading axes
            are independent runs.
        covariance : Covariance
            Products with the second moment of the data; a `RowsCovariance` if the rule needs rows.

        Returns
        -------
        weights
            The direction, of the same type and shapes as the argument `weights`.
        """

    @property
    def aligns(self) -> bool:
        """Whether it is proved that each latent converges to one principal axis of the data."""
        return False

    @property
    def orders(self) -> bool:
        """Whether it is proved that the latents end in descending order of variance."""
        return self.aligns

    @property
    def summary(self) -> str:
        """First line of the docstring of the rule's class, which `lucidae list` shows."""
        return (inspect.getdoc(type(self)) or "").partition("\n")[0]

    def start(self, encoder: Array, atoms: Array, tied: bool) -> Any:
        """Return the initial weights of training, tied or untied.

        They are moved to the set on which the rule is defined (see `retract`).

        Parameters
        ----------
        encoder : array of shape (…, k, m)
            Rows of the encoder.
        atoms : array of shape (…, k, m)
            Columns of the decoder, as rows; ignored if `tied`.
        tied : bool
            Whether encoder and decoder share one array.
        """
        weights = TiedWeights(encoder) if tied else UntiedWeights(encoder, atoms)
        return self.retract(weights)

    def retract(self, weights: Any) -> Any:
        """Return the weights after a step, moved back to the set on which the rule is defined.

        By default the weights are unchanged; a rule on orthonormal weights makes them orthonormal.

        Parameters
        ----------
        weights : weights
            The weights as the optimizer returns them.
        """
        return weights

    def expected(self, objective: Rule) -> Rule:  # noqa: ARG002
        """Return the rule whose direction is the expectation of this rule's direction.

        It is this rule itself unless its direction depends on random masks.

        Parameters
        ----------
        objective : Objective
            The loss of which the random direction is an unbiased gradient.
        """
        return self

    def drawn(self, weights: Any, covariance: Any) -> Callable[[Any, Any], Any]:  # noqa: ARG002
        """Draw random masks for one batch, and return the direction that always uses these masks.

        A solver that compares the directions at two sets of weights needs the same masks in both.
        The result is the method `direction` itself unless it depends on random masks.

        Parameters
        ----------
        weights : weights
            Weights of the shape for which directions will be computed.
        covariance : Covariance
            The batch for which directions will be computed.
        """
        return self.direction

    def curvature(self, spectrum: Spectrum) -> float:
        """Return a bound on the curvature of the loss near the optimum, for the step size.

        The default is 4σ₁², where σ₁² is the largest eigenvalue of the second moment of the data.
        This is the largest curvature of the reconstruction loss at a minimum at which the decoder
        is the transpose of the encoder.

        Parameters
        ----------
        spectrum : Spectrum
            The k leading eigenpairs of the second moment, for k latents.
        """
        return 4 * float(spectrum.values[0])

    def preconditioned_direction(self, weights: Any, covariance: Any) -> Any:
        """Return the direction that full-batch descent with an automatic step size uses.

        By default it is `direction` itself. A rule whose groups of parameters have very different
        curvatures divides the direction of each group by the curvature of that group.

        Parameters
        ----------
        weights : weights
            The current weights.
        covariance : Covariance
            Products with the second moment of the data.
        """
        return self.direction(weights, covariance)

    def preconditioned_curvature(self, spectrum: Spectrum) -> float:
        """Return a bound on the curvature of the loss after preconditioning.

        Preconditioning divides the direction of each group of weights by the group's curvature.

        Parameters
        ----------
        spectrum : Spectrum
            The k leading eigenpairs of the second moment, for k latents.
        """
        return self.curvature(spectrum)

    def scale(self, spectrum: Spectrum) -> float:
        """Return the curvature by which the stopping rule divides the norm of a direction.

        The quotient is then of the size of the distance of the weights from the optimum.

        Parameters
        ----------
        spectrum : Spectrum
            The k leading eigenpairs of the second moment, for k latents.
        """
        return self.curvature(spectrum)

    def steepening(self, start: Any) -> float:
        """Return a bound on the curvature at the initial weights divided by that at the minimum.

        The reconstruction loss is quartic in the weights. If the decoder is the transpose of the
        encoder and both have the spectral norm w, its curvature is (6w² − 2)σ₁², where σ₁² is the
        largest eigenvalue of the second moment. At the minimum (w = 1) the curvature is 4σ₁², so
        that the ratio is (3w² − 1)/2. The larger number 4w² − 3 is returned for w > 1, because
        momentum may enlarge the weights further; for w ≤ 1 the result is 1.

        Parameters
        ----------
        start : weights
            The initial weights.
        """
        norm = namespace(start.encoder).linalg.matrix_norm
        size = max(float(norm(start.encoder, ord=2)), float(norm(start.atoms, ord=2)))
        return max(1.0, 4.0 * size * size - 3.0)  # infinite for huge weights, where ** would raise

    def alignment_rate(self, values: Vector, k: int) -> float | None:  # noqa: ARG002
        """Return the rate at which the latents align with the principal axes close to the optimum.

        Time is measured so that a step of size α takes the time α (gradient flow). The misalignment
        decays at least as exp(−rate · time). The result is None if the rate is not known.

        Parameters
        ----------
        values : ndarray of shape (q,)
            Eigenvalues of the second moment in descending order; at least the first k, and all of
            them for an objective.
        k : int
            Number of latents.
        """
        return None


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
        return squared_lengths(values, like(np.sort(to_numpy(self.penalties)), values))

    def minimum(self, spectrum: Spectrum, k: int) -> float:
        """Return the global minimum of the penalised loss, which is the loss at `minimizer`."""
        values = spectrum.values[:k]
        lengths = self.squared_lengths(values)
        penalties = like(np.sort(to_numpy(self.penalties)), values)
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
        return 4 * float(spectrum.values[0]) + 4 * largest(self.penalties)


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
        top = float(spectrum.values[0])
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


# Rules that are not the gradient of any loss -----------------------------------------------------


def reconstruction_gradient(
    weights: AnyWeights, data: Products, kept: Any = 1.0, pairs: Any = 1.0
) -> tuple[Array, Array]:
    """Return the gradients of the reconstruction loss for the encoder and the transposed decoder.

    Both have shape (…, k, m) for k latents and m features. `data` are the products of `weights`
    with the second moment, and `kept` (k, 1) and `pairs` (k, k) the probabilities with which nested
    dropout keeps a latent and both of two latents.
    """
    encoder = 2 * ((data.gram * pairs) @ data.encoded - kept * data.decoded)
    atoms = 2 * ((data.code_moment * pairs) @ weights.atoms - kept * data.encoded)
    return encoder, atoms


def rotation_generator(code_moment: Array) -> Array:
    """Return the skew-symmetric matrix by which the rotation augmented gradient turns the latents.

    It is half of the strict upper triangle of `code_moment`, the second moment of the codes (…, k,
    k), minus half of its strict lower triangle (Bao et al. 2020, Algorithm 1). It is zero if and
    only if the codes are uncorrelated.
    """
    xp = namespace(code_moment)
    return (xp.triu(code_moment, k=1) - xp.tril(code_moment, k=-1)) / 2


@dataclass(frozen=True, slots=True)
class RotationAugmentedRule(Rule):
    """The reconstruction gradient plus a rotation of the latents (Bao et al. 2020, Algorithm 1).

    With `UntiedWeights` it is the algorithm of Bao et al. 2020. Its discrete steps drift away from
    a decoder that is the transpose of the encoder, and it has fixed points whose latents are not
    principal axes. With `TiedWeights` it has neither defect.
    """

    aligns = True  # Bao et al. 2020, Theorem 5
    balanced = True
    tying = "default"
    refused_optimizers = NO_ADAM

    def direction(self, weights: AnyWeights, covariance: Covariance) -> AnyWeights:
        """Return the reconstruction gradient plus the rotation of the latents.

        With the encoder W₁, the decoder W₂, the gradients g₁ and g₂ of the reconstruction loss for
        the two, and the skew-symmetric matrix A of `rotation_generator`, the direction is g₁ − AW₁
        for the encoder and (g₂ + W₂A)ᵀ for the transposed decoder. A is zero if the codes are
        uncorrelated.
        """
        data = products(weights, covariance)
        # The rotation leaves W₂W₁ and thus the loss unchanged to first order: it only aligns.
        turn = rotation_generator(data.code_moment)
        encoder, atoms = reconstruction_gradient(weights, data)
        return weights.gather(encoder - turn @ weights.encoder, atoms - turn @ weights.atoms)

    def alignment_rate(self, values: Vector, k: int) -> float:
        """Return the rate at which the latents align with the principal axes.

        It is the smaller of two numbers: half of the smallest difference between two of the first k
        eigenvalues of the second moment, and the difference of eigenvalues k and k + 1. See Bao et
        al. 2020, Theorem 5; the half is the factor ½ of their Algorithm 1.
        """
        return min(inner_gap(values, k) / 2, outer_gap(values, k))


@dataclass(frozen=True, slots=True)
class GeneralizedHebbianRule(Rule):
    """Sanger's rule W ← W + α(WΣ − tril(WΣWᵀ)W), which is Oja's rule for one latent.

    W (k × m) are the tied weights of k latents and m features, Σ (m × m) is the second moment of
    the data, α the step size, and tril takes the lower triangle.
    """

    aligns = True
    balanced = True
    tying = "required"
    refused_optimizers = NO_ADAM

    def direction(self, weights: TiedWeights, covariance: Covariance) -> TiedWeights:
        """Return tril(WΣWᵀ)W − WΣ, the negative of the update of Sanger's rule.

        W (k × m) are the weights of k latents and m features, Σ (m × m) is the second moment of the
        data, and tril takes the lower triangle.
        """
        encoded = covariance.apply(weights.encoder)
        code_moment = encoded @ weights.encoder.mT
        return TiedWeights(namespace(encoded).tril(code_moment) @ weights.encoder - encoded)

    def curvature(self, spectrum: Spectrum) -> float:
        """Return twice the largest eigenvalue of the second moment, for the step size.

        It is the convergence rate along the first component.
        """
        return 2 * float(spectrum.values[0])

    def alignment_rate(self, values: Vector, k: int) -> float:
        """Return the rate at which the latents align with the principal axes.

        It is the smallest difference between two of the first k + 1 eigenvalues of the second
        moment.
        """
        return min(inner_gap(values, k), outer_gap(values, k))


def brockett_ranks(k: int) -> Vector:
    """Return the weights 1, (k − 1)/k, …, 1/k of the k latents in Brockett's cost."""
    return np.arange(k, 0, -1, dtype=float) / k


@dataclass(frozen=True, slots=True)
class BrockettRule(Rule):
    """Riemannian ascent of tr(W₂ᵀΣW₂D) over orthonormal decoders W₂ (Bao et al. 2020, eq. 51).

    Σ (m × m) is the second moment of the data, and D = diag(d₁, …, d_k) has one weight per latent.

    Parameters
    ----------
    ranks : array of shape (k,)
        The positive weights d₁ > … > d_k, which determine the order of the latents.
    """

    ranks: Array

    aligns = True
    balanced = True
    tying = "required"
    refused_optimizers = NO_ADAM

    def direction(self, weights: TiedWeights, covariance: Covariance) -> TiedWeights:
        """Return the negative of the Riemannian gradient of Brockett's cost tr(WΣWᵀD).

        W (k × m) are the weights with orthonormal rows, Σ (m × m) is the second moment of the data
        and D the diagonal matrix of the latents' weights (`ranks`). The Euclidean gradient is 2DWΣ.
        Its projection on the tangent space subtracts (DM + MD)W with M = WΣWᵀ, and DM + MD = 2DM −
        (DM − MD).
        """
        encoded = covariance.apply(weights.encoder)
        code_moment = encoded @ weights.encoder.mT
        ranks = like(self.ranks, encoded)
        scaled = ranks[:, None] * code_moment
        swap = scaled - code_moment * ranks[None, :]
        ascent = 2 * ranks[:, None] * encoded - (2 * scaled - swap) @ weights.encoder
        return TiedWeights(-ascent)

    def retract(self, weights: TiedWeights) -> TiedWeights:
        """Return the weights with their rows made orthonormal by a QR factorisation."""
        return TiedWeights(orthonormal_rows(weights.encoder))

    def curvature(self, spectrum: Spectrum) -> float:
        """Return an upper bound on the curvature of Brockett's cost.

        It is four times the largest eigenvalue of the second moment times the largest entry of
        `ranks`, the weights of the latents in this cost.
        """
        return 4 * float(spectrum.values[0]) * float(np.max(to_numpy(self.ranks)))

    def alignment_rate(self, values: Vector, k: int) -> float:
        """Return the rate at which the latents align with the principal axes.

        It is min(g/k, 2d_k(σ_k² − σ_{k+1}²)), where σ₁² ≥ σ₂² ≥ … are the eigenvalues of the second
        moment, g is the smallest difference between two of the first k, and d_k is the weight of
        the last latent in Brockett's cost (the last entry of `ranks`).
        """
        last = float(to_numpy(self.ranks)[-1])
        return min(inner_gap(values, k) / k, 2 * last * outer_gap(values, k))


@dataclass(frozen=True, slots=True)
class NestedDropoutRule(Rule):
    """Nested dropout with one prefix length drawn per row (Rippel et al. 2014).

    A prefix length of b keeps the first b latents of a row and sets the others to 0. The rule needs
    rows instead of their second moment, because each row has its own mask.

    Parameters
    ----------
    prior : array of shape (k,)
        Probabilities of the prefix lengths 1 … k.
    rng : numpy.random.Generator
        Generator from which prefix lengths are drawn.
    """

    prior: Array
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    needs_rows = True

    def direction(self, weights: AnyWeights, covariance: RowsCovariance) -> AnyWeights:
        """Draw one mask per row and return the gradient of the loss with these masks.

        The loss is the mean over the n rows x of ‖x − W₂π_b(W₁x)‖², with the encoder W₁ and the
        decoder W₂. The projection π_b keeps the first b codes, and b is drawn for each row.
        """
        return self.drawn(weights, covariance)(weights, covariance)

    def drawn(
        self, weights: AnyWeights, covariance: RowsCovariance
    ) -> Callable[[Any, Any], AnyWeights]:
        """Draw one prefix length per row, and return the direction with these lengths."""
        shape = (*weights.encoder.shape[:-2], covariance.weights.shape[0])
        return partial(self.sampled, drawn=like(self.rng.random(shape), weights.encoder))

    def sampled(self, weights: AnyWeights, covariance: RowsCovariance, drawn: Array) -> AnyWeights:
        """Return the gradient of the reconstruction loss with given masks of the codes.

        Let X be the n rows, W₁ the encoder, W₂ the decoder and M the masks (n × k, entries 0 and
        1). With the masked codes Z = M ∘ (XW₁ᵀ) the loss is ‖X − ZW₂ᵀ‖²/n. Its gradients are
        2(M ∘ (ZW₂ᵀW₂ − XW₂))ᵀX/n for W₁ and 2(ZᵀZW₂ᵀ − ZᵀX)/n for W₂ᵀ. Latent i of a row is kept if
        the row's uniform number in `drawn` (…, n) is at least the probability that fewer than i
        latents are kept.
        """
        xp, k, far = namespace(drawn), weights.encoder.shape[-2], weights.atoms
        keep = keep_probabilities(like(self.prior, drawn))
        mask = xp.astype(drawn[..., None] >= 1 - keep / keep[0], drawn.dtype)
        # The rows are read twice, not four times: both layers share each product with them.
        both = covariance.codes(xp.concat([weights.encoder, far], axis=-2))
        kept = both[..., :k] * mask
        error = mask * (kept @ (far @ far.mT) - both[..., k:])
        share = (covariance.weights / covariance.total)[:, None]
        products = covariance.centred_products(xp.concat([kept, error], axis=-1) * share)
        atoms = (kept * share).mT @ kept @ far - products[..., :k, :]
        return weights.gather(2 * products[..., k:, :], 2 * atoms)

    def expected(self, objective: Rule) -> Rule:
        """Return `objective`, the expectation of this rule's loss over its random masks."""
        return objective


def keep_probabilities(prior: Array) -> Array:
    """Return, for each of the k latents, the probability that nested dropout keeps it.

    `prior` has the probabilities of the prefix lengths 1 … k: latent i is kept if the prefix length
    is at least i (Bao et al. 2020, Appendix C).
    """
    xp = namespace(prior)
    return xp.flip(xp.cumulative_sum(xp.flip(prior)))
