"""Gaussian variational autoencoders: evidence lower bound, noise variance, and two models."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch
from torch import nn

from lucidae.nn.layers import (
    ResNetDecoder,
    ResNetEncoder,
    Tensor,
    check_module,
    check_tensor,
    evaluation,
    full_precision,
    without_autocast,
)
from lucidae.nn.posteriors import (
    DiagonalGaussian,
    FullGaussian,
    Gaussian,
    GaussianHead,
    jacobian_of,
)
from lucidae.validation import check_choice, check_integer, check_number

AVERAGING_RATE = 0.05
"""Weight of the newest batch in the running mean of the squared error."""

SMALLEST_VARIANCE = 1e-8
"""Smallest noise variance that is learnt: in single precision, smaller mean squared errors are
rounding errors."""

SMALLEST_SCALE = 1e-8
"""Lower bound of the posterior standard deviations of `DictionaryVAE`."""


class Evidence(NamedTuple):
    """Negative evidence lower bound (−ELBO) of a batch of B samples, and its parts.

    Parameters
    ----------
    loss : zero-dimensional tensor
        Mean over samples of −ELBO, in nats.
    squared_error : tensor of shape (B,)
        Squared error of each sample, summed over its entries.
    kl : tensor of shape (B,)
        KL divergence of each sample's posterior to N(0, I), in nats.
    noise_variance : zero-dimensional tensor
        Noise variance γ of the decoder.

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
    """Return −log N(x; μ, γI) = ½(d log 2πγ + ‖x − μ‖²/γ) of each sample x, in nats.

    μ is the mean that the decoder predicts, γ the noise variance and d the number of entries of x.

    Parameters
    ----------
    squared_error : tensor
        ‖x − μ‖², the squared error of each sample.
    size : int
        Number d of entries of a sample.
    noise : zero-dimensional tensor
        Noise variance γ.

    Returns
    -------
    tensor
        The result in nats, in the shape of `squared_error`.

    Examples
    --------
    >>> import torch
    >>> from lucidae.nn import negative_log_likelihood
    >>> round(float(negative_log_likelihood(torch.tensor(0.0), 2, torch.tensor(1.0))), 6)
    1.837877
    """
    return (size * torch.log(2 * math.pi * noise) + squared_error / noise) / 2


@dataclass(frozen=True, slots=True)
class GeometricSchedule:
    """Schedule of a noise variance that changes by a constant factor per training step.

    Parameters
    ----------
    start, end : float
        First and last variance.
    steps : int
        Number of training steps from `start` to `end`; the variance is constant afterwards.

    Examples
    --------
    >>> import torch
    >>> from lucidae.nn import GeometricSchedule
    >>> schedule = GeometricSchedule(1.0, 0.01, steps=100)
    >>> round(float(schedule(torch.tensor(50))), 6)
    0.1
    """

    start: float
    end: float
    steps: int

    def __post_init__(self) -> None:
        check_number(self.start, "start", low=0.0, open_low=True)
        check_number(self.end, "end", low=0.0, open_low=True)
        check_integer(self.steps, "steps", low=1)

    def __call__(self, step: Tensor) -> Tensor:
        """Return the noise variance after `step` training steps."""
        done = torch.clamp(step / self.steps, 0.0, 1.0)
        return self.start * (self.end / self.start) ** done


class NoiseVariance(nn.Module):
    """The noise variance γ of a Gaussian decoder, updated once for every training batch.

    Parameters
    ----------
    setting : "learn", float, or callable, default="learn"
        ``"learn"`` sets γ to its optimum, the mean squared error, as a running mean over batches.
        (If γ were trained by gradient descent with the learning rate of the network, it would lag
        behind by orders of magnitude.) A float fixes γ. A callable computes γ from the number of
        training steps, a tensor; see `GeometricSchedule`.

    Examples
    --------
    >>> import torch
    >>> from lucidae.nn import NoiseVariance
    >>> noise = NoiseVariance("learn")
    >>> noise(torch.tensor(0.25)).item()
    0.25
    """

    def __init__(self, setting: str | float | Callable[[Tensor], Any] = "learn") -> None:
        super().__init__()
        if isinstance(setting, str) and setting != "learn":
            raise ValueError(
                f"noise_variance={setting!r} was given, expected 'learn', a positive number, "
                "or a function of the step."
            )
        first = 1.0
        if not (callable(setting) or setting == "learn"):
            first = check_number(setting, "noise_variance", low=0.0, open_low=True)
        self.setting = setting
        self.register_buffer("value", torch.tensor(first))
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, mean_square: Tensor) -> Tensor:
        """Return the noise variance γ for a batch of this mean squared error, without gradient.

        In training mode γ is updated first. If γ is at its optimum, the derivative of the loss with
        respect to γ is zero, so that the gradients of all other parameters are exact although γ is
        treated as a constant.
        """
        if self.training:
            mean_square = full_precision(mean_square.detach())
            if callable(self.setting):
                self.value.copy_(torch.as_tensor(self.setting(self.steps), dtype=self.value.dtype))
            elif self.setting == "learn":
                # The minimum over γ of ½(d log 2πγ + ‖x − μ‖²/γ), averaged over the data, is the
                # mean of ‖x − μ‖²/d. The first batch sets it, so that the initial value has no
                # influence.
                running = (1 - AVERAGING_RATE) * self.value + AVERAGING_RATE * mean_square
                running = torch.where(self.steps == 0, mean_square, running)
                self.value.copy_(running.clamp_min(SMALLEST_VARIANCE))
            self.steps.add_(1)
        return self.value.clone()

    def extra_repr(self) -> str:
        """Return the setting that is shown when the module is printed."""
        return f"{self.setting!r}"


class VAE(nn.Module):
    """A variational autoencoder for continuous data, with any encoder and decoder.

    The latents z have the prior N(0, I), a sample x has the distribution N(decoder(z), γI) with the
    noise variance γ, and the posterior of z is a Gaussian that encoder and head predict (Wipf 2023,
    eq. 2). `VAE.resnet` builds one for images. The forward pass returns the loss, so that
    `torch.compile` compiles the loss with the networks.

    Parameters
    ----------
    encoder : nn.Module
        Maps a batch of B samples to features of shape (B, head.in_features).
    head : GaussianHead
        Maps features to the posterior over the k latents. With ``covariance="decoder"`` or
        ``"decoder_diagonal"`` it predicts the mean alone, and the covariance is the best one for
        the decoder linearised at this mean, (I + JᵀJ/γ)⁻¹ with its Jacobian J (k forward-mode
        products a batch). Such a covariance, too, is best coupled late in the training; `fit_vae`
        does so.
    decoder : nn.Module
        Maps latents (B, k) to means of the shape of the batch.
    noise_variance : "learn", float, or callable, default="learn"
        How the noise variance γ is set: ``"learn"`` sets it to its optimum, a number fixes it, and
        a function of the training step is a schedule; see `NoiseVariance`.

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
            raise ValueError(f"head is of type {type(head).__name__}, expected a GaussianHead.")
        check_module(encoder, "encoder", "that maps a batch to features")
        check_module(decoder, "decoder", "that maps latents to means of the shape of a batch")
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
        """Return a VAE for images with residual encoder and decoder networks.

        The layer of the posterior is initialised last: with one random seed, models that differ in
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
            The model, with random initial weights.
        """
        size = {"width": width, "blocks": blocks, "stages": stages}
        encoder = ResNetEncoder(shape, features, **size)
        decoder = ResNetDecoder(shape, latent_dim, **size)
        head = GaussianHead(features, latent_dim, covariance, rank=rank)
        return cls(encoder, head, decoder, noise_variance=noise_variance)

    @property
    def latent_dim(self) -> int:
        """Number k of latents."""
        return self.head.latent_dim

    @property
    def noise_variance(self) -> Tensor:
        """Current value of the noise variance γ, a zero-dimensional tensor."""
        return self.noise.value

    def encode(self, x: Tensor) -> Gaussian:
        """Return the Gaussian posterior over the latents of each sample of a batch x."""
        check_tensor(x, "x", (..., "B", "features"), self.head.mean.weight)
        posterior: Gaussian = self.head(self.encoder(x))
        return self._of_decoder(posterior.mean) if self.head.of_decoder else posterior

    def _of_decoder(self, mean: Tensor) -> Gaussian:
        """Return the best Gaussian posterior with this mean for the decoder linearised there.

        Its precision is I + JᵀJ/γ with the Jacobian J of the decoder; the best diagonal covariance
        has the inverse of the diagonal of this matrix. The covariance is a constant for the
        gradient: at its optimum the derivative of the loss with respect to it vanishes (envelope
        theorem). Statistics of batch normalisation are held fixed in J, and autocast is off.
        Entries of JᵀJ beside the diagonal are multiplied by the coupling of the head.
        """
        with evaluation(self.decoder), without_autocast(mean):
            jacobian = full_precision(jacobian_of(self.decode, mean.detach())).flatten(1, -2)
            precision = (jacobian.mT @ jacobian).double() / self.noise_variance.double()
            diagonal = 1.0 + precision.diagonal(dim1=-2, dim2=-1)
            if self.head.covariance == "decoder_diagonal":
                return DiagonalGaussian(mean, diagonal.rsqrt().to(mean.dtype))
            precision = self.head.coupling * precision
            precision.diagonal(dim1=-2, dim2=-1).copy_(diagonal)
            covariance = torch.cholesky_inverse(torch.linalg.cholesky(precision))
            factor = torch.linalg.cholesky(covariance)
        return FullGaussian(mean, factor.to(mean.dtype))

    def decode(self, z: Tensor) -> Tensor:
        """Return the mean of x given latents z of shape (B, k), in the shape of a batch."""
        return self.decoder(check_tensor(z, "z", ("B", self.latent_dim), self.head.mean.weight))

    def forward(self, x: Tensor) -> Evidence:
        """Return the loss of a batch and its parts, from one random sample of each posterior.

        The loss is the negative evidence lower bound (ELBO).
        """
        posterior = self.encode(x)
        decoded = full_precision(self.decode(posterior.rsample()))
        if decoded.shape != x.shape:
            raise ValueError(
                f"decoder returned shape {tuple(decoded.shape)} for a batch of shape "
                f"{tuple(x.shape)}, expected the same shape."
            )
        squared_error = torch.sum(torch.square(full_precision(x) - decoded).flatten(1), 1)
        size = math.prod(x.shape[1:])
        noise = self.noise(torch.mean(squared_error) / size)
        kl = posterior.kl()
        loss = torch.mean(negative_log_likelihood(squared_error, size, noise) + kl)
        return Evidence(loss, squared_error, kl, noise)

    def reconstruct(self, x: Tensor) -> Tensor:
        """Return the decoded posterior means of a batch x, in the shape of x."""
        return self.decode(self.encode(x).mean)

    def sample(self, count: int) -> Tensor:
        """Return `count` random samples: decoded latents that are drawn from the prior N(0, I)."""
        ref = self.head.mean.weight
        check_integer(count, "count", low=1)
        return self.decode(torch.randn(count, self.latent_dim, dtype=ref.dtype, device=ref.device))


class DictionaryVAE(nn.Module):
    """Variational autoencoder with decoder Φ diag(w) z, trained by any torch optimizer.

    This is the model of Wipf 2023, eq. 5, for latents z, a dictionary Φ of shape (d, κ) and trained
    weights w. The posterior of a sample x has the mean W_z x with a trained matrix W_z, and the
    covariance SSᵀ with one trained factor S for all samples. Minimised over the encoder, its loss
    is, up to a factor and a constant, the loss (energy) that `lucidae.SparseVAE` minimises directly
    (Wipf 2023, eq. 18 for a full and eq. 50 for a diagonal covariance). This module minimises it by
    gradient descent, as larger networks are trained.

    Parameters
    ----------
    dictionary : tensor of shape (d, κ)
        The dictionary Φ, which is not trained.
    noise_variance : float
        The noise variance γ, which is not trained.
    covariance : {"full", "diagonal"}, default="full"
        Whether the posterior covariance is full or diagonal.
    sampled : bool, default=False
        Whether the squared error is estimated from one random sample of each posterior instead of
        its exact mean.

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
        try:
            columns = torch.as_tensor(dictionary)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(
                f"dictionary is of type {type(dictionary).__name__}, expected a matrix of numbers "
                "with one column per latent."
            ) from error
        check_tensor(columns, "dictionary", ("features", "latents"))
        columns = columns if columns.is_floating_point() else columns.double()
        if not torch.isfinite(columns).all():
            raise ValueError("dictionary contains NaN or infinity, expected a finite matrix.")
        gamma = check_number(noise_variance, "noise_variance", low=0.0, open_low=True)
        self.covariance = check_choice(covariance, "covariance", ("full", "diagonal"))
        self.sampled = bool(sampled)
        self.register_buffer("dictionary", columns.detach().clone())
        self.register_buffer("noise_variance", columns.new_tensor(gamma))
        # At first all weights w are 1, and the posterior is the prior.
        d, k = self.dictionary.shape
        new = self.dictionary.new_zeros
        self.weight = nn.Parameter(new(k) + 1.0)
        self.encoder = nn.Parameter(new(k, d))
        self.raw_scale = nn.Parameter(new(k) + math.log(math.expm1(1.0)))
        if self.covariance == "full":
            self.below = nn.Parameter(new(k, k))

    @property
    def latent_dim(self) -> int:
        """Number κ of latents, which is the number of columns of the dictionary."""
        return int(self.dictionary.shape[1])

    @property
    def relevance(self) -> Tensor:
        """Squared weight w² of each dictionary column, its relevance, shape (κ,).

        It is the prior variance of the column's coefficient.
        """
        return torch.square(self.weight.detach())

    def linear_decoder(self) -> Tensor:
        """Return the decoder's matrix Φ diag(w), shape (d, κ).

        It consists of the κ columns of the dictionary Φ times their weights w.
        """
        return self.dictionary * self.weight

    def encode(self, x: Tensor) -> FullGaussian | DiagonalGaussian:
        """Return the Gaussian posterior of each of B samples x with d entries, shape (B, d)."""
        mean = self._rows(x) @ self.encoder.mT
        scale = nn.functional.softplus(self.raw_scale) + SMALLEST_SCALE
        if self.covariance == "diagonal":
            return DiagonalGaussian(mean, scale)
        return FullGaussian(mean, torch.tril(self.below, -1) + torch.diag(scale))

    def decode(self, z: Tensor) -> Tensor:
        """Return the decoded means of B samples, shape (B, d), for latents z of shape (B, κ).

        The dictionary has d rows and κ columns, one per latent.
        """
        check_tensor(z, "z", ("B", self.latent_dim), self.encoder)
        return z.to(self.encoder.dtype) @ self.linear_decoder().mT

    def coefficients(self, x: Tensor) -> Tensor:
        """Return the sparse codes of B samples x, shape (B, κ): posterior means times weights w.

        They are the coefficients of the κ columns of the dictionary (Wipf 2023, Theorem 4.1).
        """
        return self.encode(x).mean * self.weight

    def forward(self, x: Tensor) -> Evidence:
        """Return the loss of a batch of B samples with d entries, shape (B, d), and its parts.

        The loss is the negative evidence lower bound (ELBO).
        """
        x = self._rows(x)
        posterior = self.encode(x)
        # With z = μ + Sε, E‖x − Dz‖² = ‖x − Dμ‖² + ‖DS‖²_F, and ‖DS‖²_F = Σⱼ sⱼ²‖dⱼ‖² where S is
        # diagonal. The exact mean has no sampling noise.
        decoder = self.linear_decoder()
        z = posterior.rsample() if self.sampled else posterior.mean
        squared_error = torch.sum(torch.square(full_precision(x) - z @ decoder.mT), 1)
        if not self.sampled and isinstance(posterior, FullGaussian):
            squared_error = squared_error + torch.sum(torch.square(decoder @ posterior.factor))
        elif not self.sampled:
            lengths = torch.sum(torch.square(decoder), 0)
            squared_error = squared_error + posterior.variance @ lengths
        kl = posterior.kl()
        fit = negative_log_likelihood(squared_error, x.shape[1], self.noise_variance)
        return Evidence(torch.mean(fit + kl), squared_error, kl, self.noise_variance)

    def energy(self, x: Tensor) -> float:
        """Return the energy (loss) of all samples x, as in Wipf 2023, eq. 18 or eq. 50.

        Equation 18 is for a full posterior covariance, equation 50 for a diagonal one. The energy
        is −2 times the evidence lower bound (ELBO), summed over samples, without the constant d log
        2π per sample of d entries. It is an upper bound of `SparseVAE.energy_` at the same
        relevances (prior variances), with equality at the best encoder.
        """
        if not torch.isfinite(self._rows(x)).all():
            raise ValueError("x contains NaN or infinity. Remove or impute those entries first.")
        with torch.no_grad():
            loss = float(self(x).loss)
        return float(len(x) * (2 * loss - x.shape[1] * math.log(2 * math.pi)))

    def _rows(self, x: Tensor) -> Tensor:
        """Return a batch of shape (B, d) in the dtype of the encoder, after checking its shape."""
        check_tensor(x, "x", ("B", self.dictionary.shape[0]), self.dictionary)
        return full_precision(x).to(self.encoder.dtype)
