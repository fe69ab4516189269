"""The VAE whose decoder is a fixed dictionary: sparse approximation by stochastic gradients."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from lucidae.nn.layers import Tensor, full_precision
from lucidae.nn.posteriors import DiagonalGaussian, FullGaussian
from lucidae.nn.vae import Evidence, negative_log_likelihood
from lucidae.validation import check_choice, check_number

__all__ = ["DictionaryVAE"]

FLOOR = 1e-8
"""Smallest standard deviation of the posterior."""


class DictionaryVAE(nn.Module):
    """Variational autoencoder with decoder Φ diag(w) z, trained by any torch optimizer.

    The model of Wipf 2023, eq. 5: encoder mean W_z x, one posterior covariance SSᵀ for all
    samples. Its minima over the encoder are the energies that `lucidae.SparseVAE` minimises
    directly, eq. 18 for a full and eq. 50 for a diagonal covariance; this module reaches them by
    gradients, as larger networks have to.

    Parameters
    ----------
    dictionary : tensor of shape (d, κ)
        Φ, fixed.
    noise_variance : float
        γ, fixed.
    covariance : {"full", "diagonal"}, default="full"
        Form of the posterior covariance.
    sampled : bool, default=False
        Estimate the squared error from one sample of each posterior instead of its exact mean.

    Examples
    --------
    >>> import torch
    >>> from lucidae.nn import DictionaryVAE
    >>> model = DictionaryVAE(torch.eye(3), noise_variance=0.1)
    >>> x = torch.randn(20, 3)
    >>> model(x).loss.backward()
    >>> model.relevance.shape, model.coefficients(x).shape
    (torch.Size([3]), torch.Size([20, 3]))
    """

    def __init__(
        self,
        dictionary: Any,
        noise_variance: float,
        *,
        covariance: str = "full",
        sampled: bool = False,
    ) -> None:
        super().__init__()
        columns = torch.as_tensor(dictionary)
        columns = columns if columns.is_floating_point() else columns.double()
        if columns.ndim != 2 or not columns.numel() or not torch.isfinite(columns).all():
            raise ValueError(
                f"dictionary has shape {tuple(columns.shape)}, expected (d, κ) with finite entries."
            )
        gamma = check_number(noise_variance, "noise_variance", low=0.0, open_low=True)
        self.covariance = check_choice(covariance, "covariance", ("full", "diagonal"))
        self.sampled = bool(sampled)
        self.register_buffer("dictionary", columns.detach().clone())
        self.register_buffer("noise_variance", columns.new_tensor(gamma))
        self._make_parameters()

    def _make_parameters(self) -> None:
        """Start with every column in use and the posterior at the prior."""
        d, k = self.dictionary.shape
        new = self.dictionary.new_zeros
        self.weight = nn.Parameter(new(k) + 1.0)
        self.encoder = nn.Parameter(new(k, d))
        self.raw_scale = nn.Parameter(new(k) + math.log(math.expm1(1.0)))
        if self.covariance == "full":
            self.below = nn.Parameter(new(k, k))

    @property
    def latent_dim(self) -> int:
        """Number κ of latents."""
        return int(self.dictionary.shape[1])

    @property
    def relevance(self) -> Tensor:
        """Relevance w² of each column, shape (κ,)."""
        return torch.square(self.weight.detach())

    def linear_decoder(self) -> Tensor:
        """Return the decoder's matrix Φ diag(w), shape (d, κ)."""
        return self.dictionary * self.weight

    def encode(self, x: Tensor) -> FullGaussian | DiagonalGaussian:
        """Return the posterior of each sample, for x of shape (B, d)."""
        mean = full_precision(x) @ self.encoder.mT
        scale = nn.functional.softplus(self.raw_scale) + FLOOR
        if self.covariance == "diagonal":
            return DiagonalGaussian(mean, scale)
        return FullGaussian(mean, torch.tril(self.below, -1) + torch.diag(scale))

    def decode(self, z: Tensor) -> Tensor:
        """Return Φ diag(w) z for latents of shape (B, κ)."""
        return z @ self.linear_decoder().mT

    def coefficients(self, x: Tensor) -> Tensor:
        """Return the sparse codes diag(w) W_z x, shape (B, κ) (Wipf 2023, Theorem 4.1)."""
        return self.encode(x).mean * self.weight

    def forward(self, x: Tensor) -> Evidence:
        """Return −ELBO and its parts for a batch of shape (B, d)."""
        if x.ndim != 2 or x.shape[1] != self.dictionary.shape[0]:
            raise ValueError(
                f"x has shape {tuple(x.shape)}, expected (B, {self.dictionary.shape[0]})."
            )
        posterior = self.encode(x)
        squared_error = self._squared_error(x, posterior)
        kl = posterior.kl()
        fit = negative_log_likelihood(squared_error, x.shape[1], self.noise_variance)
        return Evidence(torch.mean(fit + kl), squared_error, kl, self.noise_variance)

    def energy(self, x: Tensor) -> float:
        """Return the energy over all samples in the scale of eq. 18 and eq. 50.

        −2 ELBO without the constant d log 2π a sample. It bounds `SparseVAE.energy_` at the same
        relevances from above, with equality at the best encoder.
        """
        with torch.no_grad():
            loss = float(self(x).loss)
        return float(len(x) * (2 * loss - x.shape[1] * math.log(2 * math.pi)))

    def _squared_error(self, x: Tensor, posterior: FullGaussian | DiagonalGaussian) -> Tensor:
        """Return E‖x − Φ diag(w) z‖² over the posterior, or its estimate from one sample."""
        decoder = self.linear_decoder()
        z = posterior.rsample() if self.sampled else posterior.mean
        error = torch.sum(torch.square(full_precision(x) - z @ decoder.mT), 1)
        if self.sampled:
            return error
        if isinstance(posterior, DiagonalGaussian):
            return error + posterior.variance @ torch.sum(torch.square(decoder), 0)
        return error + torch.sum(torch.square(decoder @ posterior.factor))
