"""The weights of a linear autoencoder, as rows of latents.

Both layers are kept as (…, k, m) arrays whose rows belong to latents: the encoder W₁, and the
decoder's columns laid as rows (`atoms`, W₂ᵀ). Leading axes are independent runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, Self

from lucidae.arrays import Array, diagonal, namespace, squared_norm
from lucidae.io.models import saved_as


class AnyWeights(Protocol):
    """What objectives, rules and optimizers need to know of weights."""

    @property
    def encoder(self) -> Array:
        """Encoder W₁, shape (…, k, m)."""

    @property
    def atoms(self) -> Array:
        """Decoder's columns as rows, shape (…, k, m)."""

    def gather(self, encoder: Array, atoms: Array) -> Self:
        """Return a change of both layers in the form of these weights."""


@saved_as("lucidae.linear.weights.untied/1", formerly="lucidae.linear.weights:Weights")
class UntiedWeights(NamedTuple):
    """Encoder and decoder, free of each other."""

    encoder: Array
    atoms: Array

    def gather(self, encoder: Array, atoms: Array) -> UntiedWeights:
        """Return a change of both layers, kept apart."""
        return UntiedWeights(encoder, atoms)


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
        total = encoder + atoms
        total /= 2
        return TiedWeights(total)


@saved_as(
    "lucidae.linear.weights.variational/1", formerly="lucidae.linear.weights:VariationalWeights"
)
class VariationalWeights(NamedTuple):
    """Linear VAE: decoder mean, encoder mean, log posterior variances and log noise variance.

    The last two have shapes (…, k, 1) and (…, 1, 1), so that a step size for each run
    broadcasts over every field.
    """

    encoder: Array
    atoms: Array
    log_variances: Array
    log_noise: Array

    def gather(self, encoder: Array, atoms: Array) -> VariationalWeights:
        """Return a change of both layers that leaves the variances alone."""
        return VariationalWeights(encoder, atoms, 0.0 * self.log_variances, 0.0 * self.log_noise)


def map_fields(function: Callable[..., Array], first: Any, *others: Any) -> Any:
    """Apply `function` to matching fields of weights and return weights of the same kind."""
    return type(first)(*(function(*fields) for fields in zip(first, *others, strict=True)))


def orthonormal_rows(rows: Array) -> Array:
    """Return the orthonormal rows of a QR factorisation whose triangle has a positive diagonal.

    The signs make it a continuous function of the rows.
    """
    xp = namespace(rows)
    basis, triangle = xp.linalg.qr(rows.mT)
    signs = diagonal(triangle)
    signs = xp.where(signs < 0, -xp.ones_like(signs), xp.ones_like(signs))
    return (basis * signs[..., None, :]).mT


def frobenius(weights: Any) -> Array:
    """Return the Frobenius norm over all fields, one per run, whatever their scale."""
    xp = namespace(weights[0])
    peaks = [xp.max(xp.abs(field), axis=(-2, -1)) for field in weights]
    peak = peaks[0]
    for other in peaks[1:]:
        peak = xp.maximum(peak, other)
    unit = xp.where(peak > 0, peak, xp.ones_like(peak))
    squares = sum(squared_norm(field / unit[..., None, None]) for field in weights)
    return unit * xp.sqrt(squares)
