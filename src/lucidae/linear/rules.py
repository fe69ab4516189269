"""Update rules: their interface, rules that are not the gradient of any loss, nested dropout.

A rule has a `direction`, which an optimizer uses as it would use a gradient. The objectives, whose
direction is their gradient, are in `lucidae.linear.objectives`.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from lucidae.arrays import (
    Array,
    like,
    namespace,
    scalar,
    to_numpy,
    zeros_like_shape,
)
from lucidae.io.models import saved_as
from lucidae.linear.data import Covariance, Products, RowsCovariance, products
from lucidae.linear.spectrum import Spectrum
from lucidae.linear.theory import inner_gap, outer_gap
from lucidae.linear.weights import (
    AnyWeights,
    TiedWeights,
    UntiedWeights,
    orthonormal_rows,
)

Vector = np.ndarray[Any, Any]

NO_ADAM: Mapping[str, str] = {
    "adam": (
        "Adam rescales every coordinate separately, which does not commute with a rotation of the "
        "latents, so the rule loses the property that makes it converge to the components."
    )
}
"""Why rules that rotate or orthogonalise latents refuse Adam."""


class Rule(ABC):
    """A direction of descent, and what is proved about its fixed points.

    A new rule defines `direction`. Solvers and certificates read the other members, whose defaults
    claim nothing. An `Objective` is a rule whose direction is its gradient.

    Attributes
    ----------
    balanced : bool
        Whether it is proved that the encoder W₁ and the decoder W₂ satisfy W₁W₁ᵀ = W₂ᵀW₂ at the
        fixed points.
    needs_rows : bool
        Whether a direction needs rows rather than their second moment.
    tying : str
        How the layers may be tied. ``"optional"``: untied unless ``tied=True`` is given;
        ``"default"``: tied unless ``tied=False`` is given; ``"required"``: the rule has one set of
        weights; ``"refused"``: encoder and decoder differ at the optimum.
    refused_optimizers : mapping of str to str
        Optimizers with which the rule does not work, each with the reason.
    """

    __slots__ = ()

    balanced = False
    needs_rows = False
    tying = "optional"
    refused_optimizers: ClassVar[Mapping[str, str]] = {}

    @abstractmethod
    def direction(self, weights: Any, covariance: Any) -> Any:
        """Return the direction against which an optimizer steps, as against a gradient.

        Parameters
        ----------
        weights : UntiedWeights, TiedWeights or VariationalWeights
            Both layers, (…, k, m); leading axes are independent runs.
        covariance : Covariance
            Products with the second moment; `RowsCovariance` for a rule that needs rows.

        Returns
        -------
        weights
            Of the same type as the argument `weights`.
        """

    @property
    def aligns(self) -> bool:
        """Whether it is proved that each latent converges to one principal direction."""
        return False

    @property
    def orders(self) -> bool:
        """Whether it is proved that the latents end in descending order of variance."""
        return self.aligns

    @property
    def summary(self) -> str:
        """The first line of the documentation, for `lucidae list`."""
        return (inspect.getdoc(type(self)) or "").partition("\n")[0]

    def start(self, encoder: Array, atoms: Array, tied: bool) -> Any:
        """Return first weights.

        Parameters
        ----------
        encoder, atoms : arrays of shape (…, k, m)
            Rows of both layers.
        tied : bool
            Whether both layers share one array, which is then the encoder's.
        """
        weights = TiedWeights(encoder) if tied else UntiedWeights(encoder, atoms)
        return self.retract(weights)

    def retract(self, weights: Any) -> Any:
        """Return the weights after a step, moved back to the set on which the rule is defined.

        Parameters
        ----------
        weights : weights
            As the optimizer returns them.
        """
        return weights

    def expected(self, objective: Rule) -> Rule:  # noqa: ARG002
        """Return the rule that this one follows in expectation: itself unless it samples.

        Parameters
        ----------
        objective : Objective
            The loss whose gradient the rule samples.
        """
        return self

    def drawn(self, weights: Any, covariance: Any) -> Rule:  # noqa: ARG002
        """Return the rule with the random numbers of one direction fixed: itself unless it samples.

        A solver that compares directions at two sets of weights needs the same numbers in both.

        Parameters
        ----------
        weights : weights
            Weights of the shape for which directions will be computed.
        covariance : Covariance
            The data for which they will be computed.
        """
        return self

    def prefix_numbers(self, rng: np.random.Generator, n_rows: int) -> PrefixNumbers | None:  # noqa: ARG002
        """Return a source of the random numbers of nested dropout, None for other rules.

        Parameters
        ----------
        rng : numpy.random.Generator
            The generator.
        n_rows : int
            Rows of the batch.
        """
        return None

    def curvature(self, spectrum: Spectrum) -> float:
        """Return a bound on the curvature near the optimum, for the automatic step size.

        At a balanced minimum the largest curvature of the reconstruction loss is 4σ₁², where σ₁² is
        the largest eigenvalue of the second moment.

        Parameters
        ----------
        spectrum : Spectrum
            The leading eigenpairs, `n_eigenvalues` of them.
        """
        return 4 * scalar(spectrum.values[0])

    def preconditioned(self, direction: Any, weights: Any, covariance: Any) -> Any:  # noqa: ARG002
        """Return the direction that solvers with an automatic step size follow: `direction` itself.

        A rule whose blocks of weights have very different curvatures divides each block by its own.

        Parameters
        ----------
        direction : weights
            The direction at `weights`, of all rows or of a batch.
        weights : weights
            The current weights.
        covariance : Covariance
            The data of `direction`.
        """
        return direction

    def preconditioned_curvature(self, spectrum: Spectrum) -> float:
        """Return a bound on the curvature that the preconditioned direction sees.

        Parameters
        ----------
        spectrum : Spectrum
            As for `curvature`.
        """
        return self.curvature(spectrum)

    def n_eigenvalues(self, k: int) -> int:  # noqa: ARG002
        """Return how many leading eigenvalues `curvature` reads.

        Parameters
        ----------
        k : int
            Number of latents.
        """
        return 1

    def scale(self, spectrum: Spectrum) -> float:
        """Return the number by which the stopping rule divides the norm of a direction.

        Parameters
        ----------
        spectrum : Spectrum
            As for `curvature`.
        """
        return self.curvature(spectrum)

    def steepening(self, start: Any) -> float:
        """Return how much larger the curvature may be at the first weights than at the minimum.

        The loss is quartic: where the encoder W₁ equals the transposed decoder W₂ᵀ and has the norm
        w, the curvature is (6w² − 2)σ₁², with the largest eigenvalue σ₁² of the second moment. At
        the minimum (w = 1) it is 4σ₁², which is smaller by the factor (3w² − 1)/2. The factor 4 in
        place of 3/2 leaves a margin for momentum that overshoots.

        Parameters
        ----------
        start : weights
            The first weights.
        """
        norm = namespace(start.encoder).linalg.matrix_norm
        size = max(scalar(norm(start.encoder, ord=2)), scalar(norm(start.atoms, ord=2)))
        return max(1.0, 4.0 * size**2 - 3.0)

    def alignment_rate(self, values: Vector, k: int) -> float | None:  # noqa: ARG002
        """Return the slowest local decay of misalignment per unit of time; None if not known.

        Parameters
        ----------
        values : ndarray of shape (q,)
            Eigenvalues, descending; at least the first k, all of them for an objective.
        k : int
            Number of latents.
        """
        return None


def reconstruction_gradient(weights: AnyWeights, data: Products) -> tuple[Array, Array]:
    """Return the gradients of the reconstruction loss for the encoder W₁ and the decoder W₂ᵀ."""
    # In place: at these sizes a new array costs more than the arithmetic that fills it.
    encoder = data.gram @ data.encoded
    encoder -= data.decoded
    encoder *= 2
    atoms = data.code_moment @ weights.atoms
    atoms -= data.encoded
    atoms *= 2
    return encoder, atoms


def rotation_generator(code_moment: Array) -> Array:
    """Return the skew matrix that is zero exactly if the second moment of the codes is diagonal.

    It is half of the upper triangle minus the lower triangle (Bao et al. 2020, Algorithm 1).
    """
    xp = namespace(code_moment)
    return (xp.triu(code_moment, k=1) - xp.tril(code_moment, k=-1)) / 2


@saved_as("lucidae.linear.rule.rag/1", formerly="lucidae.linear.rules:RotationAugmented")
@dataclass(frozen=True, slots=True)
class RotationAugmentedRule(Rule):
    """The reconstruction gradient plus a rotation of the latents (Bao et al. 2020, Algorithm 1).

    With `UntiedWeights` it is the paper's form, whose discrete steps drift away from balance and
    which has fixed points that are not aligned; with `TiedWeights` it has neither defect.
    """

    aligns = True  # Bao et al. 2020, Theorem 5
    balanced = True
    tying = "default"
    refused_optimizers = NO_ADAM

    def direction(self, weights: AnyWeights, covariance: Covariance) -> AnyWeights:
        """Return g₁ − AW₁ and (g₂ + W₂A)ᵀ for the gradients g₁ and g₂ and the skew matrix A."""
        data = products(weights, covariance)
        # The rotation leaves W₂W₁ and thus the loss unchanged to first order: it only aligns.
        turn = rotation_generator(data.code_moment)
        encoder, atoms = reconstruction_gradient(weights, data)
        encoder -= turn @ weights.encoder
        atoms -= turn @ weights.atoms
        return weights.gather(encoder, atoms)

    def alignment_rate(self, values: Vector, k: int) -> float:
        """Return min(g/2, σ_k² − σ_{k+1}²), where g is the smallest gap of the first k eigenvalues.

        See Bao et al. 2020, Theorem 5; the factor ½ is that of their Algorithm 1.
        """
        return min(inner_gap(values, k) / 2, outer_gap(values, k))


@saved_as("lucidae.linear.rule.gha/1", formerly="lucidae.linear.rules:GeneralizedHebbian")
@dataclass(frozen=True, slots=True)
class GeneralizedHebbianRule(Rule):
    """Sanger's rule W ← W + α(WΣ − tril(WΣWᵀ)W), which is Oja's rule for one latent.

    W are the tied weights, Σ is the second moment of the data and α the step size.
    """

    aligns = True
    balanced = True
    tying = "required"
    refused_optimizers = NO_ADAM

    def direction(self, weights: TiedWeights, covariance: Covariance) -> TiedWeights:
        """Return tril(WΣWᵀ)W − WΣ, minus the update of Sanger's rule."""
        encoded = covariance.apply(weights.encoder)
        code_moment = encoded @ weights.encoder.mT
        return TiedWeights(namespace(encoded).tril(code_moment) @ weights.encoder - encoded)

    def curvature(self, spectrum: Spectrum) -> float:
        """Return 2σ₁², the rate at which Sanger's rule contracts along the first component."""
        return 2 * scalar(spectrum.values[0])

    def alignment_rate(self, values: Vector, k: int) -> float:
        """Return the smallest gap among the first k + 1 eigenvalues."""
        return min(inner_gap(values, k), outer_gap(values, k))


def brockett_ranks(k: int) -> Vector:
    """Return k equally spaced, positive, descending numbers: 1, (k − 1)/k, …, 1/k."""
    return np.arange(k, 0, -1, dtype=float) / k


@saved_as("lucidae.linear.rule.brockett/1", formerly="lucidae.linear.rules:Brockett")
@dataclass(frozen=True, slots=True)
class BrockettRule(Rule):
    """Riemannian ascent of tr(W₂ᵀΣW₂D) over orthonormal decoders W₂ (Bao et al. 2020, eq. 51).

    Σ is the second moment of the data and D = diag(d₁, …, d_k).

    Parameters
    ----------
    ranks : array of shape (k,)
        The positive numbers d₁ > … > d_k.
    """

    ranks: Array

    aligns = True
    balanced = True
    tying = "required"
    refused_optimizers = NO_ADAM

    def direction(self, weights: TiedWeights, covariance: Covariance) -> TiedWeights:
        """Return minus the Riemannian gradient, as rows.

        The Euclidean gradient of tr(WΣWᵀD) is 2DWΣ. Its projection on the tangent space subtracts
        (DM + MD)W with M = WΣWᵀ, and DM + MD = 2DM − (DM − MD).
        """
        encoded = covariance.apply(weights.encoder)
        code_moment = encoded @ weights.encoder.mT
        ranks = like(self.ranks, encoded)
        scaled = ranks[:, None] * code_moment
        swap = scaled - code_moment * ranks[None, :]
        ascent = 2 * ranks[:, None] * encoded - (2 * scaled - swap) @ weights.encoder
        return TiedWeights(-ascent)

    def retract(self, weights: TiedWeights) -> TiedWeights:
        """Return the orthonormal rows of the QR retraction."""
        return TiedWeights(orthonormal_rows(weights.encoder))

    def curvature(self, spectrum: Spectrum) -> float:
        """Return 4d₁σ₁², with the largest eigenvalue σ₁² of the second moment."""
        return 4 * scalar(spectrum.values[0]) * float(np.max(to_numpy(self.ranks)))

    def alignment_rate(self, values: Vector, k: int) -> float:
        """Return min(g/k, 2d_k(σ_k² − σ_{k+1}²)).

        Here g is the smallest gap among the first k eigenvalues σ₁² ≥ … ≥ σ_k².
        """
        last = float(to_numpy(self.ranks)[-1])
        return min(inner_gap(values, k) / k, 2 * last * outer_gap(values, k))


def _renamed_generator(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of `NestedDropoutRule` from those that lucidae 0.1.0 saved."""
    return {"rng" if name == "random" else name: value for name, value in fields.items()}


@saved_as(
    "lucidae.linear.rule.nested_dropout/1",
    formerly="lucidae.linear.rules:NestedDropout",
    upgrade=_renamed_generator,
)
@dataclass(frozen=True, slots=True)
class NestedDropoutRule(Rule):
    """Nested dropout with one prefix length drawn per row (Rippel et al. 2014).

    The rule needs rows instead of their second moment, because each row has its own mask.

    Parameters
    ----------
    prior : array of shape (k,)
        Probabilities of the prefix lengths 1 … k.
    rng : numpy.random.Generator
        Source of the masks.
    """

    prior: Array
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    needs_rows = True

    def direction(self, weights: AnyWeights, covariance: RowsCovariance) -> AnyWeights:
        """Draw masks and return the gradient of the sampled loss (1/n) Σ‖x − W₂π_b(W₁x)‖².

        The projection π_b keeps the first b codes, and b is drawn for each row x.
        """
        return self.drawn(weights, covariance).direction(weights, covariance)

    def drawn(self, weights: AnyWeights, covariance: RowsCovariance) -> DrawnPrefixes:
        """Draw one prefix length per row, and return the rule that uses these."""
        shape = (*weights.encoder.shape[:-2], covariance.weights.shape[0])
        return DrawnPrefixes(self, like(self.rng.random(shape), weights.encoder))

    def sampled(
        self,
        weights: AnyWeights,
        covariance: RowsCovariance,
        drawn: Array,
        width: int | None = None,
    ) -> AnyWeights:
        """Return the gradient for given masks.

        With masked codes Z = M ∘ (XW₁ᵀ), one row per sample, the sampled loss is ‖X − ZW₂ᵀ‖²/n. Its
        gradients are 2(M ∘ (ZW₂ᵀW₂ − XW₂))ᵀX/n for W₁ and 2(ZᵀZW₂ᵀ − ZᵀX)/n for W₂ᵀ.

        Parameters
        ----------
        weights : UntiedWeights or TiedWeights
            Both layers, (…, k, m).
        covariance : RowsCovariance
            The n rows.
        drawn : array of shape (…, n)
            One uniform number per row, from which its prefix length follows.
        width : int, optional
            An upper bound on the prefix lengths: the gradients of later units are 0 and are not
            computed.
        """
        xp, k = namespace(weights.encoder), weights.encoder.shape[-2]
        width = k if width is None else width
        near, far = weights.encoder[..., :width, :], weights.atoms[..., :width, :]
        # The rows are read twice, not four times: both layers share each product with them.
        both = covariance.codes(xp.concat([near, far], axis=-2))
        codes, images = both[..., :width], both[..., width:]
        mask = self._masks(drawn, width)
        kept = codes * mask
        error = mask * (kept @ (far @ far.mT) - images)
        share = (covariance.weights / covariance.total)[:, None]
        products = covariance.centred_products(xp.concat([kept, error], axis=-1) * share)
        through, encoder = products[..., :width, :], products[..., width:, :]
        atoms = (kept * share).mT @ kept @ far - through
        return weights.gather(_lengthened(2 * encoder, k), _lengthened(2 * atoms, k))

    def expected(self, objective: Rule) -> Rule:
        """Return the expected loss, whose gradient is sampled."""
        return objective

    def prefix_numbers(self, rng: np.random.Generator, n_rows: int) -> PrefixNumbers:
        """Return a source of the numbers from which prefix lengths follow."""
        return PrefixNumbers(self.prior, rng, n_rows)

    def _masks(self, drawn: Array, width: int) -> Array:
        """Return masks that keep unit i if the number drawn is at least P(prefix length < i)."""
        thresholds = prefix_thresholds(like(self.prior, drawn))[:width]
        return namespace(drawn).astype(drawn[..., None] >= thresholds, drawn.dtype)


@dataclass(frozen=True, slots=True)
class DrawnPrefixes(Rule):
    """Nested dropout with given prefix lengths.

    Parameters
    ----------
    rule : NestedDropoutRule
        The rule, which has the distribution of the prefix lengths.
    numbers : array of shape (…, n)
        One uniform number per row, from which its prefix length follows.
    """

    rule: NestedDropoutRule
    numbers: Array

    needs_rows = True

    def direction(self, weights: AnyWeights, covariance: RowsCovariance) -> AnyWeights:
        """Return the gradient for the given prefix lengths."""
        return self.rule.sampled(weights, covariance, self.numbers)


def keep_probabilities(prior: Array) -> Array:
    """Return the probability that nested dropout keeps each unit, from those of the prefix lengths.

    See Bao et al. 2020, Appendix C.
    """
    xp = namespace(prior)
    return xp.flip(xp.cumulative_sum(xp.flip(prior)))


def prefix_thresholds(prior: Array) -> Array:
    """Return the probability of a prefix shorter than i, for i = 1 … k."""
    keep = keep_probabilities(prior)
    return 1 - keep / keep[0]


WIDTHS = 32
"""The number of computed units is a multiple of this, so that a device records few variants."""

SLACK = 1e-12
"""Difference by which a device may round the probability of a prefix length."""


class PrefixNumbers:
    """Uniform numbers, one per epoch, run and row, and the longest prefix that they give.

    NumPy draws them in the order in which the epochs need them, so that a seed gives one
    trajectory on any device, however many epochs are taken at once.

    Parameters
    ----------
    prior : array of shape (k,)
        Probabilities of the prefix lengths.
    rng : numpy.random.Generator
        The source.
    n_rows : int
        Rows of the batch.

    Examples
    --------
    >>> draw = PrefixNumbers(np.array([0.5, 0.5]), np.random.default_rng(0), 3)
    >>> numbers, width = draw(4, 1)
    >>> numbers.shape, width
    ((4, 1, 3), 2)
    """

    def __init__(self, prior: Array, rng: np.random.Generator, n_rows: int) -> None:
        self.thresholds = prefix_thresholds(to_numpy(prior))
        self.rng, self.n_rows = rng, n_rows
        self.ahead: Vector | None = None

    def __call__(self, epochs: int, runs: int) -> tuple[Vector, int]:
        """Return numbers of shape (epochs, runs, rows), and a width that no prefix exceeds."""
        shape = (epochs, runs, self.n_rows)
        if self.ahead is None or self.ahead.shape != shape:
            self.ahead = self.rng.random(shape)
        drawn, self.ahead = self.ahead, None
        return drawn, self.width(float(drawn.max()))

    def prepare(self, epochs: int, runs: int) -> None:
        """Draw the next numbers now, while a device is busy with the last ones."""
        self.ahead = self.rng.random((epochs, runs, self.n_rows))

    def width(self, largest: float) -> int:
        """Return the longest prefix for numbers up to `largest`, rounded up."""
        longest = int(np.searchsorted(self.thresholds, largest + SLACK, side="right"))
        return min(len(self.thresholds), -(-longest // WIDTHS) * WIDTHS)


def _lengthened(rows: Array, k: int) -> Array:
    """Return k rows, with zeros after the given ones."""
    missing = k - rows.shape[-2]
    if missing == 0:
        return rows
    zeros = zeros_like_shape((*rows.shape[:-2], missing, rows.shape[-1]), rows)
    return namespace(rows).concat([rows, zeros], axis=-2)
