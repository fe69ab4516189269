"""Weights of a linear autoencoder: untied, tied, and those of a linear VAE.

Both layers are stored as arrays of shape (…, k, m) for k latents and m features: `encoder` is the
encoder matrix W₁, and `atoms` the transposed decoder matrix W₂ᵀ, whose rows are the decoder's
columns. Leading axes contain the weights of independent training runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, Self

from lucidae.arrays import Array, namespace, squared_norm, where_set
from lucidae.metrics import alignment_of, subspace_distance
from lucidae.rows.covariances import Covariance


class AnyWeights(Protocol):
    """Interface of the weights of a linear autoencoder that objectives and update rules use."""

    @property
    def encoder(self) -> Array:
        """Encoder matrix of shape (…, k, m), for k latents and m features."""

    @property
    def atoms(self) -> Array:
        """Transposed decoder matrix of shape (…, k, m), for k latents and m features."""

    def gather(self, encoder: Array, atoms: Array) -> Self:
        """Return an object of this class that contains gradients of the encoder and of `atoms`."""

    def in_units(self, unit: float) -> Self:
        """Return the weights that compute the same latents from data multiplied by `unit`."""


class UntiedWeights(NamedTuple):
    """Encoder and transposed decoder (`atoms`) as two independent arrays of shape (…, k, m).

    k is the number of latents and m that of features.
    """

    encoder: Array
    atoms: Array

    def gather(self, encoder: Array, atoms: Array) -> UntiedWeights:
        """Return the gradients of the encoder and of `atoms` as `UntiedWeights`."""
        return UntiedWeights(encoder, atoms)

    def in_units(self, unit: float) -> UntiedWeights:  # noqa: ARG002
        """Return the weights unchanged: the product of decoder and encoder has no unit."""
        return self


class TiedWeights(NamedTuple):
    """One array of shape (…, k, m) for both layers: the decoder is the transposed encoder.

    k is the number of latents and m that of features.
    """

    encoder: Array

    @property
    def atoms(self) -> Array:
        """The transposed decoder, which is the encoder itself."""
        return self.encoder

    def gather(self, encoder: Array, atoms: Array) -> TiedWeights:
        """Return the mean of the gradients of encoder and decoder as `TiedWeights`."""
        # By the chain rule the gradient is the sum; the mean has the step size of untied weights.
        total = encoder + atoms
        total /= 2
        return TiedWeights(total)

    def in_units(self, unit: float) -> TiedWeights:  # noqa: ARG002
        """Return the weights unchanged: the product of decoder and encoder has no unit."""
        return self


class VariationalWeights(NamedTuple):
    """Parameters of a linear VAE: both layers, posterior variances and noise variance.

    Parameters
    ----------
    encoder, atoms : arrays of shape (…, k, m)
        Encoder and transposed decoder, for k latents and m features.
    log_variances : array of shape (…, k, 1)
        Logarithm of the posterior variance of each latent.
    log_noise : array of shape (…, 1, 1)
        Logarithm of the noise variance of the decoder. The two trailing axes of length 1 let a
        learning rate per run broadcast over every field.
    """

    encoder: Array
    atoms: Array
    log_variances: Array
    log_noise: Array

    def gather(self, encoder: Array, atoms: Array) -> VariationalWeights:
        """Return the gradients of both layers as weights of a VAE, with zeros for the variances."""
        return VariationalWeights(encoder, atoms, 0.0 * self.log_variances, 0.0 * self.log_noise)

    def in_units(self, unit: float) -> VariationalWeights:
        """Return the weights that compute the same latents from data multiplied by `unit`.

        The posterior variances of the latents stay the same, and the noise variance is multiplied
        by the square of `unit`.
        """
        if unit == 1.0:
            return self
        return VariationalWeights(
            self.encoder / unit,
            self.atoms * unit,
            self.log_variances,
            self.log_noise + 2 * math.log(unit),
        )


def map_fields(function: Callable[..., Array], first: Any, *others: Any) -> Any:
    """Return weights of the type of `first` whose fields are `function` of the given fields."""
    return type(first)(*(function(*fields) for fields in zip(first, *others, strict=True)))


def balanced_mean(encoder: Array, atoms: Array) -> Array:
    """Return one array (…, k, m) for both layers, the mean of an encoder and a decoder.

    The encoder row and the decoder column of each latent are scaled to equal length, which does not
    change their product, and then averaged. If the two are parallel, as at the optimum of a linear
    VAE, the autoencoder with the result as both layers computes the same function.
    """
    xp = namespace(encoder)
    lengths = [xp.sqrt(xp.sum(rows * rows, axis=-1, keepdims=True)) for rows in (encoder, atoms)]
    nonzero = (lengths[0] > 0) & (lengths[1] > 0)
    one = xp.ones_like(lengths[0])
    ratio = xp.where(nonzero, lengths[1], one) / xp.where(nonzero, lengths[0], one)
    root = xp.sqrt(ratio)
    return (root * encoder + atoms / root) / 2


def axis_distances(axes: Array) -> dict[str, Callable[[Any], Array]]:
    """Return functions of weights, by name: the distances of the decoder to known axes (m, k).

    ``"alignment"`` and ``"subspace"`` are the axis-alignment and the subspace distance of Bao et
    al. 2020, Definitions 7.1 and 7.2; NaN for weights that diverged, which the metrics refuse.
    """

    def of_finite(measure: Callable[[Array, Array], Array]) -> Callable[[Any], Array]:
        def measured(weights: Any) -> Array:
            atoms, xp = weights.atoms, namespace(weights.atoms)
            finite = xp.isfinite(atoms)
            distance = measure(where_set(atoms, ~finite, 0.0).mT, axes)
            diverged = ~xp.all(finite, axis=(-2, -1))
            return where_set(xp.asarray(distance, device=atoms.device), diverged, float("nan"))

        return measured

    return {"alignment": of_finite(alignment_of), "subspace": of_finite(subspace_distance)}


def frobenius(weights: Any) -> Array:
    """Return the Frobenius norm of all fields of the weights together, one number per run."""
    xp = namespace(weights[0])
    # Divided by the largest entry first, so that no square overflows or underflows.
    peaks = [xp.max(xp.abs(field), axis=(-2, -1)) for field in weights]
    peak = peaks[0]
    for other in peaks[1:]:
        peak = xp.maximum(peak, other)
    unit = xp.where(peak > 0, peak, xp.ones_like(peak))
    squares = sum(squared_norm(field / unit[..., None, None]) for field in weights)
    return unit * xp.sqrt(squares)


class Products(NamedTuple):
    """The matrix products from which full-batch losses and their gradients are computed.

    For m features and k latents, let Σ be the second moment of the data (m × m), W₁ the encoder
    (k × m) and W₂ the decoder (m × k). `encoded` is W₁Σ and `decoded` is W₂ᵀΣ, both of shape
    (…, k, m). `code_moment`, the second moment of the codes, is W₁ΣW₁ᵀ, and `gram` is W₂ᵀW₂; both
    have shape (…, k, k).
    """

    encoded: Array
    decoded: Array
    code_moment: Array
    gram: Array


def products(weights: AnyWeights, covariance: Covariance) -> Products:
    """Return the `Products` of the encoder and the decoder with the second moment of the data.

    Both layers are multiplied in one product, so that the data are read once.
    """
    encoder, atoms = weights.encoder, weights.atoms
    if atoms is encoder:  # tied weights
        encoded = decoded = covariance.apply(encoder)
    else:
        k = encoder.shape[-2]
        stacked = covariance.apply(namespace(encoder).concat([encoder, atoms], axis=-2))
        encoded, decoded = stacked[..., :k, :], stacked[..., k:, :]
    return Products(encoded, decoded, encoded @ encoder.mT, atoms @ atoms.mT)
