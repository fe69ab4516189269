"""Update rules of linear autoencoders: their interface, and the rules that are not gradients.

A rule computes a `direction`, which an optimizer uses as it would use a gradient. Here are the
rules that are not the gradient of any loss, and nested dropout with random masks. The objectives,
whose direction is their gradient, are in `lucidae.linear.objectives`.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import numpy as np

from lucidae.arrays import Array, like, namespace, scalar, to_numpy
from lucidae.arrays.eigen import orthonormal_rows
from lucidae.linear.theory import inner_gap, outer_gap
from lucidae.linear.weights import AnyWeights, Products, TiedWeights, UntiedWeights, products
from lucidae.rows.covariances import Covariance, RowsCovariance
from lucidae.spectrum import Spectrum

Vector = np.ndarray[Any, Any]

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
            The leading eigenpairs of the second moment, as many as `n_eigenvalues` says.
        """
        return 4 * scalar(spectrum.values[0])

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
            The leading eigenpairs of the second moment, as many as `n_eigenvalues` says.
        """
        return self.curvature(spectrum)

    def n_eigenvalues(self, k: int) -> int:  # noqa: ARG002
        """Return the number of leading eigenvalues of the second moment that `curvature` needs.

        Parameters
        ----------
        k : int
            Number of latents.
        """
        return 1

    def scale(self, spectrum: Spectrum) -> float:
        """Return the curvature by which the stopping rule divides the norm of a direction.

        The quotient is then of the size of the distance of the weights from the optimum.

        Parameters
        ----------
        spectrum : Spectrum
            The leading eigenpairs of the second moment, as many as `n_eigenvalues` says.
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
        size = max(scalar(norm(start.encoder, ord=2)), scalar(norm(start.atoms, ord=2)))
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
        return 2 * scalar(spectrum.values[0])

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
        return 4 * scalar(spectrum.values[0]) * float(np.max(to_numpy(self.ranks)))

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
        mask = xp.astype(
            drawn[..., None] >= prefix_thresholds(like(self.prior, drawn)), drawn.dtype
        )
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


def prefix_thresholds(prior: Array) -> Array:
    """Return, for i = 1 … k, the probability that nested dropout keeps fewer than i latents.

    It keeps the first b of k latents, where b is the prefix length.
    """
    keep = keep_probabilities(prior)
    return 1 - keep / keep[0]
