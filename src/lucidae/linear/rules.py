"""Learning rules that are no gradient of any loss, and the stochastic nested dropout.

A rule gives a `direction`: what an optimizer takes for a gradient.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from lucidae.arrays import Array, like, namespace, where_set, zeros_like_shape
from lucidae.io.models import saved_as
from lucidae.linear.data import Covariance, RowsCovariance, products
from lucidae.linear.objectives import keep_probabilities, reconstruction_gradient
from lucidae.linear.weights import (
    AnyWeights,
    TiedWeights,
    VariationalWeights,
    orthonormal_rows,
)


class Rule(Protocol):
    """A direction of descent for weights, with a retraction after each step."""

    def direction(self, weights: Any, covariance: Any) -> Any:
        """Return what the optimizer takes for a gradient."""

    def retract(self, weights: Any) -> Any:
        """Bring the weights back to where they must lie."""


def rotation_generator(code_moment: Array) -> Array:
    """Skew matrix that vanishes exactly when the code's second moment is diagonal.

    Bao et al. 2020, Algorithm 1: half of upper minus lower triangle.
    """
    xp = namespace(code_moment)
    return (xp.triu(code_moment, k=1) - xp.tril(code_moment, k=-1)) / 2


@saved_as("lucidae.linear.rule.gradient/1", formerly="lucidae.linear.rules:Descent")
@dataclass(frozen=True, slots=True)
class GradientRule:
    """Gradient descent on an objective."""

    objective: Any

    def direction(self, weights: AnyWeights, covariance: Covariance) -> AnyWeights:
        """Return the gradient."""
        gradient: AnyWeights = self.objective.gradient(weights, covariance)
        return gradient

    def retract(self, weights: AnyWeights) -> AnyWeights:
        """Leave the weights alone."""
        return weights


NOISE_FLOOR = 1e-6
"""Smallest noise variance that gradient steps may reach: the likelihood is unbounded at 0."""


@saved_as("lucidae.linear.rule.variational/1", formerly="lucidae.linear.rules:VariationalDescent")
@dataclass(frozen=True, slots=True)
class VariationalRule:
    """Gradient descent on the negative ELBO, the noise variance kept off zero."""

    objective: Any

    def direction(self, weights: VariationalWeights, covariance: Covariance) -> VariationalWeights:
        """Return the gradient."""
        gradient: VariationalWeights = self.objective.gradient(weights, covariance)
        return gradient

    def retract(self, weights: VariationalWeights) -> VariationalWeights:
        """Lift the noise variance to its floor."""
        floor = math.log(NOISE_FLOOR)
        low = weights.log_noise < floor
        return weights._replace(log_noise=where_set(weights.log_noise, low, floor))


@saved_as("lucidae.linear.rule.rag/1", formerly="lucidae.linear.rules:RotationAugmented")
@dataclass(frozen=True, slots=True)
class RotationAugmentedRule:
    """The reconstruction gradient plus a rotation of the latents. Bao et al. 2020, Algorithm 1.

    With `Weights` it is the paper's untied form, which discrete steps carry away from balance
    and which has fixed points that are not aligned; with `TiedWeights` these are gone.
    """

    def direction(self, weights: AnyWeights, covariance: Covariance) -> AnyWeights:
        """Return g₁ − AW₁ and (g₂ + W₂A)ᵀ."""
        data = products(weights, covariance)
        turn = rotation_generator(data.code_moment)
        encoder, atoms = reconstruction_gradient(weights, data)
        encoder -= turn @ weights.encoder
        atoms -= turn @ weights.atoms
        return weights.gather(encoder, atoms)

    def retract(self, weights: AnyWeights) -> AnyWeights:
        """Leave the weights alone."""
        return weights


@saved_as("lucidae.linear.rule.gha/1", formerly="lucidae.linear.rules:GeneralizedHebbian")
@dataclass(frozen=True, slots=True)
class GeneralizedHebbianRule:
    """W ← W + α(WΣ − tril(WΣWᵀ)W), Sanger's rule; Oja's rule when k = 1."""

    def direction(self, weights: TiedWeights, covariance: Covariance) -> TiedWeights:
        """Return tril(WΣWᵀ)W − WΣ."""
        encoded = covariance.apply(weights.encoder)
        code_moment = encoded @ weights.encoder.mT
        return TiedWeights(namespace(encoded).tril(code_moment) @ weights.encoder - encoded)

    def retract(self, weights: TiedWeights) -> TiedWeights:
        """Leave the weights alone."""
        return weights


@saved_as("lucidae.linear.rule.brockett/1", formerly="lucidae.linear.rules:Brockett")
@dataclass(frozen=True, slots=True)
class BrockettRule:
    """Riemannian ascent of tr(W₂ᵀΣW₂D) on the Stiefel manifold. Bao et al. 2020, eq. 51.

    Parameters
    ----------
    ranks : array of shape (k,)
        d₁ > … > d_k > 0.
    """

    ranks: Array

    def direction(self, weights: TiedWeights, covariance: Covariance) -> TiedWeights:
        """Return minus the Riemannian gradient, as rows."""
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


@saved_as("lucidae.linear.rule.nested_dropout/1", formerly="lucidae.linear.rules:NestedDropout")
@dataclass(frozen=True, slots=True)
class NestedDropoutRule:
    """Nested dropout with one prefix length drawn per row. Rippel et al. 2014.

    It needs rows, not a second moment: each row has its own mask.

    Parameters
    ----------
    prior : array of shape (k,)
        Probabilities of the prefix lengths 1 … k.
    random : numpy.random.Generator
        Source of the masks.
    """

    prior: Array
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def direction(self, weights: AnyWeights, covariance: RowsCovariance) -> AnyWeights:
        """Draw masks and return the gradient of the sampled loss (1/n) Σ‖x − W₂π_b(W₁x)‖²."""
        shape = (*weights.encoder.shape[:-2], covariance.weights.shape[0])
        return self.sampled(weights, covariance, like(self.random.random(shape), weights.encoder))

    def sampled(
        self,
        weights: AnyWeights,
        covariance: RowsCovariance,
        drawn: Array,
        width: int | None = None,
    ) -> AnyWeights:
        """Return the gradient for given masks.

        Parameters
        ----------
        weights : Weights or TiedWeights
            Both layers, (…, k, m).
        covariance : RowsCovariance
            The n rows.
        drawn : array of shape (…, n)
            One uniform number per row, from which its prefix length follows.
        width : int, optional
            No prefix is longer than this: the gradients of later units are 0 and cost nothing.
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

    def retract(self, weights: AnyWeights) -> AnyWeights:
        """Leave the weights alone."""
        return weights

    def _masks(self, drawn: Array, width: int) -> Array:
        """Keep unit i where the number drawn is at least P(length < i)."""
        thresholds = prefix_thresholds(like(self.prior, drawn))[:width]
        return namespace(drawn).astype(drawn[..., None] >= thresholds, drawn.dtype)


def prefix_thresholds(prior: Array) -> Array:
    """Return P(length < i) for i = 1 … k, which ascend from 0."""
    keep = keep_probabilities(prior)
    return 1 - keep / keep[0]


def _lengthened(rows: Array, k: int) -> Array:
    """Return k rows, zeros after the given ones."""
    missing = k - rows.shape[-2]
    if missing == 0:
        return rows
    zeros = zeros_like_shape((*rows.shape[:-2], missing, rows.shape[-1]), rows)
    return namespace(rows).concat([rows, zeros], axis=-2)
