"""The Gaussian variational autoencoder: encoder, posterior, decoder, noise, evidence."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import torch
from torch import nn

from lucidae.nn.layers import Tensor, full_precision
from lucidae.nn.noise import NoiseVariance
from lucidae.nn.posteriors import Gaussian, GaussianHead
from lucidae.nn.resnet import ResNetDecoder, ResNetEncoder, image_shape

__all__ = ["VAE", "Evidence", "negative_log_likelihood"]


class Evidence(NamedTuple):
    """What a variational autoencoder says about a batch.

    Parameters
    ----------
    loss : tensor, a number
        Mean over samples of −ELBO, in nats.
    squared_error : tensor of shape (B,)
        Squared error of each sample, summed over its entries.
    kl : tensor of shape (B,)
        KL divergence of each sample's posterior to N(0, I).
    noise_variance : tensor, a number
        γ.

    Examples
    --------
    >>> import torch
    >>> from lucidae.nn import Evidence
    >>> Evidence(torch.tensor(1.0), torch.ones(2), torch.ones(2), torch.tensor(0.1)).loss
    tensor(1.)
    """

    loss: Tensor
    squared_error: Tensor
    kl: Tensor
    noise_variance: Tensor


def negative_log_likelihood(squared_error: Tensor, size: int, noise: Tensor) -> Tensor:
    """Return ½(d log 2πγ + ‖x − μ‖²/γ), −log N(x; μ, γI) for x of `size` d.

    Examples
    --------
    >>> import torch
    >>> from lucidae.nn import negative_log_likelihood
    >>> round(float(negative_log_likelihood(torch.tensor(0.0), 2, torch.tensor(1.0))), 6)
    1.837877
    """
    return (size * torch.log(2 * math.pi * noise) + squared_error / noise) / 2


class VAE(nn.Module):
    """A variational autoencoder for continuous data, with any encoder and decoder.

    x ~ N(decoder(z), γI), z ~ N(0, I), and an amortised Gaussian posterior (Wipf 2023, eq. 2).
    `VAE.resnet` builds one for images. The forward pass returns the loss, so that compiling the
    module compiles all of it.

    Parameters
    ----------
    encoder : nn.Module
        From a batch to features of shape (B, head.in_features).
    head : GaussianHead
        From features to the posterior.
    decoder : nn.Module
        From latents (B, k) to means of the shape of the batch.
    noise_variance : "learn", float, or callable, default="learn"
        γ: at its optimum, fixed, or a schedule; see `NoiseVariance`.

    Examples
    --------
    >>> import torch
    >>> from lucidae.nn import VAE
    >>> model = VAE.resnet((1, 8, 8), latent_dim=4, width=8, features=16)
    >>> x = torch.rand(5, 1, 8, 8)
    >>> evidence = model(x)
    >>> evidence.loss.backward()
    >>> model.reconstruct(x).shape, model.sample(2).shape
    (torch.Size([5, 1, 8, 8]), torch.Size([2, 1, 8, 8]))
    """

    def __init__(
        self,
        encoder: Any,
        head: GaussianHead,
        decoder: Any,
        *,
        noise_variance: str | float | Callable[[Tensor], Any] = "learn",
    ) -> None:
        super().__init__()
        if not isinstance(head, GaussianHead):
            raise ValueError(f"head is a {type(head).__name__}, expected a GaussianHead.")
        self.encoder, self.decoder, self.head = encoder, decoder, head
        self.noise = NoiseVariance(noise_variance)

    @classmethod
    def resnet(
        cls,
        shape: Any,
        latent_dim: int,
        *,
        covariance: str = "full",
        rank: int | None = None,
        features: int = 256,
        width: int = 32,
        blocks: int = 1,
        stages: int = 2,
        noise_variance: str | float | Callable[[Tensor], Any] = "learn",
    ) -> Self:
        """Build a VAE with residual encoder and decoder for images.

        The posterior's layer is drawn last: from one random seed, models that differ in
        `covariance` alone start with the same encoder, decoder and means.

        Parameters
        ----------
        shape : (channels, height, width)
            Shape of an image.
        latent_dim : int
            Number of latents.
        covariance, rank
            As in `GaussianHead`.
        features, width, blocks, stages
            As in `ResNetEncoder`.
        noise_variance
            As in `VAE`.

        Returns
        -------
        VAE
        """
        size = {"width": width, "blocks": blocks, "stages": stages}
        encoder = ResNetEncoder(image_shape(shape), features, **size)
        decoder = ResNetDecoder(shape, latent_dim, **size)
        head = GaussianHead(features, latent_dim, covariance, rank=rank)
        return cls(encoder, head, decoder, noise_variance=noise_variance)

    @property
    def latent_dim(self) -> int:
        """Number of latents."""
        return self.head.latent_dim

    @property
    def noise_variance(self) -> Tensor:
        """γ as it stands."""
        return self.noise.value

    def encode(self, x: Tensor) -> Gaussian:
        """Return the posterior of each sample."""
        posterior: Gaussian = self.head(self.encoder(x))
        return posterior

    def decode(self, z: Tensor) -> Tensor:
        """Return the mean of x given latents of shape (B, k)."""
        return self.decoder(z)

    def forward(self, x: Tensor) -> Evidence:
        """Return −ELBO and its parts for a batch, from one sample of each posterior."""
        posterior = self.encode(x)
        decoded = full_precision(self.decode(posterior.rsample()))
        squared_error = torch.sum(torch.square(full_precision(x) - decoded).flatten(1), 1)
        size = math.prod(x.shape[1:])
        noise = self.noise(torch.mean(squared_error) / size)
        kl = posterior.kl()
        loss = torch.mean(negative_log_likelihood(squared_error, size, noise) + kl)
        return Evidence(loss, squared_error, kl, noise)

    def reconstruct(self, x: Tensor) -> Tensor:
        """Return what the decoder makes of the posterior means."""
        return self.decode(self.encode(x).mean)

    def sample(self, count: int) -> Tensor:
        """Decode `count` draws from the prior."""
        ref = self.head.mean.weight
        return self.decode(torch.randn(count, self.latent_dim, dtype=ref.dtype, device=ref.device))
