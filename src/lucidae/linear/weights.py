"""Weights of a linear autoencoder: untied, tied, and those of a linear VAE.

Both layers are stored as (…, k, m) arrays with one row per latent: the encoder W₁, and the
decoder's columns as rows (`atoms`, W₂ᵀ). Leading axes are independent runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, Self

from lucidae.arrays import Array, diagonal, namespace, squared_norm
from lucidae.io.models import saved_as


class AnyWeights(Protocol):
    """Interface of weights, as objectives, rules and optimizers use them."""

    @property
    def encoder(self) -> Array:
        """Encoder W₁, shape (…, k, m)."""

    @property
    def atoms(self) -> Array:
        """Decoder's columns as rows, shape (…, k, m)."""

    def gather(self, encoder: Array, atoms: Array) -> Self:
        """Return changes of both layers in the form of these weights."""

    def in_units(self, unit: float) -> Self:
        """Return the weights of the same autoencoder for data multiplied by `unit`."""


@saved_as("lucidae.linear.weights.untied/1", formerly="lucidae.linear.weights:Weights")
class UntiedWeights(NamedTuple):
    """Encoder and decoder as independent arrays."""

    encoder: Array
    atoms: Array

    def gather(self, encoder: Array, atoms: Array) -> UntiedWeights:
        """Return the changes of both layers."""
        return UntiedWeights(encoder, atoms)

    def in_units(self, unit: float) -> UntiedWeights:  # noqa: ARG002
        """Return these weights: the map W₂W₁ has no unit."""
        return self


@saved_as("lucidae.linear.weights.tied/1", formerly="lucidae.linear.weights:TiedWeights")
class TiedWeights(NamedTuple):
    """One array for both layers: W₂ = W₁ᵀ throughout."""

    encoder: Array

    @property
    def atoms(self) -> Array:
        """The encoder itself."""
        return self.encoder

    def gather(self, encoder: Array, atoms: Array) -> TiedWeights:
        """Return the mean of the changes of the two layers."""
        # By the chain rule the gradient is the sum; the mean has the step size of untied weights.
        total = encoder + atoms
        total /= 2
        return TiedWeights(total)

    def in_units(self, unit: float) -> TiedWeights:  # noqa: ARG002
        """Return these weights: the map W₂W₁ has no unit."""
        return self


@saved_as(
    "lucidae.linear.weights.variational/1", formerly="lucidae.linear.weights:VariationalWeights"
)
class VariationalWeights(NamedTuple):
    """Linear VAE: encoder, decoder, log posterior variances and log noise variance.

    The last two have shapes (…, k, 1) and (…, 1, 1), so that a learning rate per run broadcasts
    over every field.
    """

    encoder: Array
    atoms: Array
    log_variances: Array
    log_noise: Array

    def gather(self, encoder: Array, atoms: Array) -> VariationalWeights:
        """Return changes of both layers that leave the variances unchanged."""
        return VariationalWeights(encoder, atoms, 0.0 * self.log_variances, 0.0 * self.log_noise)

    def in_units(self, unit: float) -> VariationalWeights:
        """Return the weights for data multiplied by `unit`: codes keep their unit variance."""
        if unit == 1.0:
            return self
        return VariationalWeights(
            self.encoder / unit,
            self.atoms * unit,
            self.log_variances,
            self.log_noise + 2 * math.log(unit),
        )


def map_fields(function: Callable[..., Array], first: Any, *others: Any) -> Any:
    """Apply `function` to matching fields of weights and return weights of the same kind."""
    return type(first)(*(function(*fields) for fields in zip(first, *others, strict=True)))


def orthonormal_rows(rows: Array) -> Array:
    """Return the orthonormal rows of a QR factorisation whose triangle has a positive diagonal.

    The signs make the result a continuous function of the rows.
    """
    xp = namespace(rows)
    basis, triangle = xp.linalg.qr(rows.mT)
    signs = 1.0 - 2.0 * xp.astype(diagonal(triangle) < 0, rows.dtype)
    return (basis * signs[..., None, :]).mT


def balanced_mean(encoder: Array, atoms: Array) -> Array:
    """Return the mean of both layers, each latent's two vectors scaled to equal length before.

    The scaling leaves the map W₂W₁ unchanged, and so does the mean where the two vectors of each
    latent are parallel, as at the optimum of a linear VAE.
    """
    xp = namespace(encoder)
    lengths = [xp.sqrt(xp.sum(rows * rows, axis=-1, keepdims=True)) for rows in (encoder, atoms)]
    nonzero = (lengths[0] > 0) & (lengths[1] > 0)
    one = xp.ones_like(lengths[0])
    ratio = xp.where(nonzero, lengths[1], one) / xp.where(nonzero, lengths[0], one)
    root = xp.sqrt(ratio)
    return (root * encoder + atoms / root) / 2


def frobenius(weights: Any) -> Array:
    """Return the Frobenius norm over all fields, one per run."""
    xp = namespace(weights[0])
    # Divided by the largest entry first, so that no square overflows or underflows.
    peaks = [xp.max(xp.abs(field), axis=(-2, -1)) for field in weights]
    peak = peaks[0]
    for other in peaks[1:]:
        peak = xp.maximum(peak, other)
    unit = xp.where(peak > 0, peak, xp.ones_like(peak))
    squares = sum(squared_norm(field / unit[..., None, None]) for field in weights)
    return unit * xp.sqrt(squares)
