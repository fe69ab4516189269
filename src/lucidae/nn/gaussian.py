"""Gaussian posteriors with a diagonal, full or low-rank covariance: moments, samples, KL."""

from __future__ import annotations

from typing import NamedTuple

import torch

from lucidae.nn._layers import Tensor, without_autocast

__all__ = ["DiagonalGaussian", "FullGaussian", "Gaussian", "LowRankGaussian"]

Shape = tuple[int, ...]


def kl_to_standard(mean: Tensor, trace: Tensor, log_determinant: Tensor) -> Tensor:
    """Return KL[N(μ, Σ) ‖ N(0, I)] = ½(tr Σ + ‖μ‖² − k − log|Σ|)."""
    return (trace + torch.sum(mean * mean, -1) - mean.shape[-1] - log_determinant) / 2


def marginal_kl(mean: Tensor, variance: Tensor) -> Tensor:
    """Return the KL of each latent's marginal N(μⱼ, Σⱼⱼ) to N(0, 1)."""
    return (variance + mean * mean - 1 - torch.log(variance)) / 2


def _noise(mean: Tensor, sample_shape: Shape, count: int | None = None) -> Tensor:
    shape = tuple(sample_shape) + tuple(mean.shape[:-1]) + (count or mean.shape[-1],)
    return torch.randn(shape, dtype=mean.dtype, device=mean.device)


class DiagonalGaussian(NamedTuple):
    """N(mean, diag(scale²)).

    Parameters
    ----------
    mean : tensor of shape (…, k)
    scale : tensor of shape (…, k)
        Standard deviations, positive.

    Examples
    --------
    >>> import torch
    >>> from lucidae.nn import DiagonalGaussian
    >>> posterior = DiagonalGaussian(torch.zeros(1, 2), torch.ones(1, 2))
    >>> posterior.kl()
    tensor([0.])
    """

    mean: Tensor
    scale: Tensor

    @property
    def variance(self) -> Tensor:
        """Variances of the latents, shape (…, k)."""
        return torch.square(self.scale).expand(self.mean.shape)

    @property
    def covariance(self) -> Tensor:
        """Covariance, shape (…, k, k)."""
        return torch.diag_embed(self.variance)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        """Draw samples of shape (*sample_shape, …, k) that gradients flow through."""
        return self.mean + self.scale * _noise(self.mean, sample_shape)

    def kl(self) -> Tensor:
        """Return the KL divergence to N(0, I), shape (…)."""
        log_determinant = 2 * torch.sum(torch.log(self.scale), -1)
        return kl_to_standard(self.mean, torch.sum(self.variance, -1), log_determinant)

    def marginal_kl(self) -> Tensor:
        """Return the KL divergence of each latent's marginal, shape (…, k)."""
        return marginal_kl(self.mean, self.variance)


class FullGaussian(NamedTuple):
    """N(mean, LLᵀ) with a lower-triangular factor.

    Parameters
    ----------
    mean : tensor of shape (…, k)
    factor : tensor of shape (…, k, k)
        L, lower triangular with a positive diagonal; leading axes may broadcast.

    Examples
    --------
    >>> import torch
    >>> from lucidae.nn import FullGaussian
    >>> posterior = FullGaussian(torch.zeros(1, 2), torch.tensor([[1.0, 0.0], [1.0, 1.0]]))
    >>> posterior.covariance
    tensor([[[1., 1.],
             [1., 2.]]])
    """

    mean: Tensor
    factor: Tensor

    @property
    def variance(self) -> Tensor:
        """Variances of the latents, shape (…, k)."""
        return torch.sum(torch.square(self.factor), -1).expand(self.mean.shape)

    @property
    def covariance(self) -> Tensor:
        """Covariance, shape (…, k, k)."""
        with without_autocast(self.mean):
            product = self.factor @ self.factor.mT
        return product.expand(*self.mean.shape, self.mean.shape[-1])

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        """Draw samples of shape (*sample_shape, …, k) that gradients flow through."""
        noise = _noise(self.mean, sample_shape)
        with without_autocast(self.mean):
            return self.mean + (self.factor @ noise[..., None])[..., 0]

    def kl(self) -> Tensor:
        """Return the KL divergence to N(0, I), shape (…)."""
        diagonal = torch.diagonal(self.factor, dim1=-2, dim2=-1)
        trace = torch.sum(torch.square(self.factor), (-2, -1))
        return kl_to_standard(self.mean, trace, 2 * torch.sum(torch.log(diagonal), -1))

    def marginal_kl(self) -> Tensor:
        """Return the KL divergence of each latent's marginal, shape (…, k)."""
        return marginal_kl(self.mean, self.variance)


class LowRankGaussian(NamedTuple):
    """N(mean, diag(scale²) + FFᵀ) with a factor of few columns.

    Parameters
    ----------
    mean : tensor of shape (…, k)
    scale : tensor of shape (…, k)
        Positive.
    factor : tensor of shape (…, k, r)
        F.

    Examples
    --------
    >>> import torch
    >>> from lucidae.nn import LowRankGaussian
    >>> ones = torch.ones(1, 2)
    >>> LowRankGaussian(0 * ones, ones, ones[..., None]).variance
    tensor([[2., 2.]])
    """

    mean: Tensor
    scale: Tensor
    factor: Tensor

    @property
    def variance(self) -> Tensor:
        """Variances of the latents, shape (…, k)."""
        return torch.square(self.scale) + torch.sum(torch.square(self.factor), -1)

    @property
    def covariance(self) -> Tensor:
        """Covariance, shape (…, k, k)."""
        with without_autocast(self.mean):
            return torch.diag_embed(torch.square(self.scale)) + self.factor @ self.factor.mT

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        """Draw samples of shape (*sample_shape, …, k) that gradients flow through."""
        own = _noise(self.mean, sample_shape)
        shared = _noise(self.mean, sample_shape, self.factor.shape[-1])
        with without_autocast(self.mean):
            return self.mean + self.scale * own + (self.factor @ shared[..., None])[..., 0]

    def kl(self) -> Tensor:
        """Return the KL divergence to N(0, I), shape (…).

        log|D² + FFᵀ| = 2 Σ log dⱼ + log|I + FᵀD⁻²F|, the latter from the triangle of [D⁻¹F; I]:
        squaring it first would lose the identity beside a large factor.
        """
        with without_autocast(self.mean):
            whitened = self.factor / self.scale[..., None]
            count = whitened.shape[-1]
            identity = torch.eye(count, dtype=whitened.dtype, device=whitened.device)
            identity = identity.expand(*whitened.shape[:-2], count, count)
            triangle = torch.linalg.qr(torch.cat([whitened, identity], -2)).R
            pivots = torch.log(torch.abs(torch.diagonal(triangle, dim1=-2, dim2=-1)))
            log_determinant = 2 * (torch.log(self.scale).sum(-1) + pivots.sum(-1))
        return kl_to_standard(self.mean, torch.sum(self.variance, -1), log_determinant)

    def marginal_kl(self) -> Tensor:
        """Return the KL divergence of each latent's marginal, shape (…, k)."""
        return marginal_kl(self.mean, self.variance)


Gaussian = DiagonalGaussian | FullGaussian | LowRankGaussian
