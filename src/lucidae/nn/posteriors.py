"""Gaussian posteriors, the layer that predicts them, and what a diagonal covariance costs.

Covariances are diagonal, full or of low rank.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from lucidae.arrays import to_numpy
from lucidae.cards import card, facts
from lucidae.nn.layers import (
    Tensor,
    check_module,
    check_tensor,
    evaluation,
    full_precision,
    without_autocast,
)
from lucidae.validation import check_choice, check_integer, check_number

Shape = tuple[int, ...]


def kl_to_standard(mean: Tensor, trace: Tensor, log_determinant: Tensor) -> Tensor:
    """Return KL[N(μ, Σ) ‖ N(0, I)] = ½(tr Σ + ‖μ‖² − k − log|Σ|) in nats, for k latents.

    `mean` is μ of shape (…, k), `trace` is tr Σ and `log_determinant` is log|Σ|, both of shape (…).
    """
    return (trace + torch.sum(mean * mean, -1) - mean.shape[-1] - log_determinant) / 2


def marginal_kl(mean: Tensor, variance: Tensor) -> Tensor:
    """Return the KL divergence of each of k latents to N(0, 1) in nats, shape (…, k).

    The marginal of a latent is a Gaussian with its mean and variance.
    """
    return (variance + mean * mean - 1 - torch.log(variance)) / 2


def _noise(mean: Tensor, sample_shape: Shape, count: int | None = None) -> Tensor:
    """Return standard normal noise of shape (*sample_shape, …, count), for a mean of shape (…, k).

    `count` is k by default.
    """
    shape = tuple(sample_shape) + tuple(mean.shape[:-1]) + (count or mean.shape[-1],)
    return torch.randn(shape, dtype=mean.dtype, device=mean.device)


class DiagonalGaussian(NamedTuple):
    """Gaussian distribution N(mean, diag(scale²)) with a diagonal covariance.

    Parameters
    ----------
    mean : tensor of shape (…, k)
        Means of the k latents.
    scale : tensor of shape (…, k)
        Standard deviations of the latents, positive.

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
        """Variances of the k latents, shape (…, k)."""
        return torch.square(self.scale).expand(self.mean.shape)

    @property
    def covariance(self) -> Tensor:
        """Covariance matrix of the k latents, shape (…, k, k)."""
        return torch.diag_embed(self.variance)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        """Return differentiable random samples of k latents: ``(*sample_shape, …, k)``."""
        return self.mean + self.scale * _noise(self.mean, sample_shape)

    def kl(self) -> Tensor:
        """Return the KL divergence of each posterior to N(0, I) in nats, shape (…)."""
        log_determinant = 2 * torch.sum(torch.log(self.scale), -1)
        return kl_to_standard(self.mean, torch.sum(self.variance, -1), log_determinant)

    def marginal_kl(self) -> Tensor:
        """Return the KL divergence of each of k latents to N(0, 1) in nats, shape (…, k)."""
        return marginal_kl(self.mean, self.variance)


class FullGaussian(NamedTuple):
    """Gaussian distribution N(mean, LLᵀ) with a full covariance, given by a triangular factor L.

    Parameters
    ----------
    mean : tensor of shape (…, k)
        Means of the k latents.
    factor : tensor of shape (…, k, k)
        The factor L, lower triangular with a positive diagonal; leading axes may broadcast.

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
        """Variances of the k latents, shape (…, k)."""
        return torch.sum(torch.square(self.factor), -1).expand(self.mean.shape)

    @property
    def covariance(self) -> Tensor:
        """Covariance matrix of the k latents, shape (…, k, k)."""
        with without_autocast(self.mean):
            product = self.factor @ self.factor.mT
        return product.expand(*self.mean.shape, self.mean.shape[-1])

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        """Return differentiable random samples of k latents: ``(*sample_shape, …, k)``."""
        noise = _noise(self.mean, sample_shape)
        with without_autocast(self.mean):
            return self.mean + (self.factor @ noise[..., None])[..., 0]

    def kl(self) -> Tensor:
        """Return the KL divergence of each posterior to N(0, I) in nats, shape (…)."""
        # tr(LLᵀ) is the sum of the squared entries of L, and |LLᵀ| the squared product of its
        # diagonal: no decomposition is needed.
        diagonal = torch.diagonal(self.factor, dim1=-2, dim2=-1)
        trace = torch.sum(torch.square(self.factor), (-2, -1))
        return kl_to_standard(self.mean, trace, 2 * torch.sum(torch.log(diagonal), -1))

    def marginal_kl(self) -> Tensor:
        """Return the KL divergence of each of k latents to N(0, 1) in nats, shape (…, k)."""
        return marginal_kl(self.mean, self.variance)


class LowRankGaussian(NamedTuple):
    """Gaussian distribution N(mean, diag(scale²) + FFᵀ) with a factor F of a few columns.

    Parameters
    ----------
    mean : tensor of shape (…, k)
        Means of the k latents.
    scale : tensor of shape (…, k)
        Standard deviations of the diagonal part, positive.
    factor : tensor of shape (…, k, r)
        The factor F of the low-rank part.

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
        """Variances of the k latents, shape (…, k)."""
        return torch.square(self.scale) + torch.sum(torch.square(self.factor), -1)

    @property
    def covariance(self) -> Tensor:
        """Covariance matrix of the k latents, shape (…, k, k)."""
        with without_autocast(self.mean):
            return torch.diag_embed(torch.square(self.scale)) + self.factor @ self.factor.mT

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        """Return differentiable random samples of k latents: ``(*sample_shape, …, k)``."""
        own = _noise(self.mean, sample_shape)
        shared = _noise(self.mean, sample_shape, self.factor.shape[-1])
        with without_autocast(self.mean):
            return self.mean + self.scale * own + (self.factor @ shared[..., None])[..., 0]

    def kl(self) -> Tensor:
        """Return the KL divergence of each posterior to N(0, I) in nats, shape (…).

        With D = diag(scale), F = `factor` and the entries dⱼ of `scale`, log|D² + FFᵀ| = 2 Σ log dⱼ
        + log|I + FᵀD⁻²F| by the determinant lemma. The second determinant is that of AᵀA with A =
        [D⁻¹F; I], so it is the squared product of the diagonal of R in A = QR. If F is large,
        forming AᵀA first would lose the identity to rounding.
        """
        with without_autocast(self.mean):
            scaled = self.factor / self.scale[..., None]
            count = scaled.shape[-1]
            identity = torch.eye(count, dtype=scaled.dtype, device=scaled.device)
            identity = identity.expand(*scaled.shape[:-2], count, count)
            triangle = torch.linalg.qr(torch.cat([scaled, identity], -2)).R
            pivots = torch.log(torch.abs(torch.diagonal(triangle, dim1=-2, dim2=-1)))
            log_determinant = 2 * (torch.log(self.scale).sum(-1) + pivots.sum(-1))
        return kl_to_standard(self.mean, torch.sum(self.variance, -1), log_determinant)

    def marginal_kl(self) -> Tensor:
        """Return the KL divergence of each of k latents to N(0, 1) in nats, shape (…, k)."""
        return marginal_kl(self.mean, self.variance)


Gaussian = DiagonalGaussian | FullGaussian | LowRankGaussian


COVARIANCES = ("full", "diagonal", "low_rank", "decoder", "decoder_diagonal")

FACTOR_INIT = 1e-2
"""Size of the initial weights that predict standard deviations and factors, relative to torch's
initialisation. It is small, so that all kinds of covariance start near the identity."""


def as_gaussian(posterior: Any) -> Any:
    """Convert the output of an encoder to a Gaussian of this package, if it is of a known kind.

    A Normal (also inside Independent) and a MultivariateNormal of `torch.distributions` are
    converted, and so is a pair (mean, log-variance) of tensors of equal shape. Any other object is
    returned unchanged.
    """
    if hasattr(posterior, "marginal_kl"):
        return posterior
    if isinstance(posterior, torch.distributions.Independent):
        posterior = posterior.base_dist
    if isinstance(posterior, torch.distributions.MultivariateNormal):
        return FullGaussian(posterior.loc, posterior.scale_tril)
    if isinstance(posterior, torch.distributions.Normal):
        return DiagonalGaussian(posterior.loc, posterior.scale)
    if not isinstance(posterior, tuple | list):
        return posterior
    shapes = [getattr(part, "shape", None) for part in posterior]
    if len(posterior) != 2 or shapes[0] is None or shapes[0] != shapes[1]:
        raise ValueError(
            f"model.encode returned {len(posterior)} objects of shapes "
            f"{[None if shape is None else tuple(shape) for shape in shapes]}, expected a pair "
            "(mean, log-variance) of equal shapes: give a module whose encode returns these two."
        )
    mean, log_variance = posterior
    return DiagonalGaussian(mean, torch.exp(log_variance / 2))


class GaussianHead(nn.Module):
    """Layer that predicts a Gaussian posterior over the latents from features of a sample.

    Parameters
    ----------
    in_features : int
        Number of features of a sample.
    latent_dim : int
        Number k of latents.
    covariance : {"full", "diagonal", "low_rank", "decoder", "decoder_diagonal"}, default="full"
        ``"full"`` predicts a Cholesky factor L with k(k + 1)/2 entries, ``"diagonal"`` k standard
        deviations, ``"low_rank"`` k standard deviations and a k × `rank` factor F. ``"decoder"``
        and ``"decoder_diagonal"`` predict the mean alone: a `VAE` takes the covariance from its
        decoder, see `VAE`.
    rank : int, optional
        Number of columns of the low-rank factor; by default the square root of k, rounded up.
    floor : float, default=1e-6
        Smallest predicted standard deviation (with a full covariance, smallest entry on the
        diagonal of L), so that logarithms stay finite.

    Notes
    -----
    Standard deviations s are the softplus of a prediction plus `floor`, and start at 1. The
    off-diagonal part is predicted relative to them: a strictly lower triangular N with
    L = diag(s)(I + cN/√k), or a k × rank matrix N with F = c diag(s)N/√rank. Adam changes all
    predicted entries by about the same amount. If the up to k entries of a row of L were predicted
    directly, one step would therefore change the standard deviation of that latent by about √k
    times the step size, whatever its scale, and no latent could have a small variance. With
    entries relative to s and divided by √k, the change is proportional to the scale of the latent.

    The buffer `coupling` contains c, usually 1. If c = 0, the latents are independent; a training
    that increases c after some epochs continues from the optimum of a diagonal covariance. With
    ``covariance="decoder"`` it multiplies the entries of JᵀJ beside the diagonal.

    Under autocast this layer computes in float32, from the half-precision features.

    Examples
    --------
    >>> import torch
    >>> from lucidae.nn import GaussianHead
    >>> head = GaussianHead(16, 3, covariance="full")
    >>> posterior = head(torch.randn(5, 16))
    >>> posterior.mean.shape, posterior.covariance.shape, posterior.kl().shape
    (torch.Size([5, 3]), torch.Size([5, 3, 3]), torch.Size([5]))
    >>> posterior.rsample((2,)).shape
    torch.Size([2, 5, 3])
    """

    def __init__(
        self,
        in_features: int,
        latent_dim: int,
        covariance: str = "full",
        *,
        rank: int | None = None,
        floor: float = 1e-6,
    ) -> None:
        super().__init__()
        self.in_features = check_integer(in_features, "in_features", low=1)
        self.latent_dim = check_integer(latent_dim, "latent_dim", low=1)
        self.covariance = check_choice(covariance, "covariance", COVARIANCES)
        self.floor = check_number(floor, "floor", low=0.0, high=0.1, open_low=True)
        if rank is not None and covariance != "low_rank":
            raise ValueError(
                f"rank={rank!r} was given with covariance={covariance!r}, but only "
                "covariance='low_rank' has a rank: omit rank or change covariance."
            )
        default = math.ceil(math.sqrt(latent_dim))
        self.rank = check_integer(default if rank is None else rank, "rank", low=1, high=latent_dim)
        self.mean = nn.Linear(in_features, latent_dim)
        self.scale = None if self.of_decoder else nn.Linear(in_features, latent_dim)
        k = self.latent_dim
        size = {"full": k * (k - 1) // 2, "low_rank": k * self.rank}.get(covariance, 0)
        self.factor = nn.Linear(in_features, size) if size else None
        rows, columns = torch.tril_indices(latent_dim, latent_dim, -1)
        self.register_buffer("positions", rows * latent_dim + columns, persistent=False)
        self.register_buffer("coupling", torch.tensor(1.0))
        # Standard deviations are near 1 at first, and latents nearly independent.
        unit = math.log(math.expm1(1.0 - self.floor))
        with torch.no_grad():
            for layer in filter(None, (self.scale, self.factor)):
                layer.weight.mul_(FACTOR_INIT)
                layer.bias.zero_()
            if self.scale is not None:
                self.scale.bias.fill_(unit)
            if self.factor is not None and self.covariance == "low_rank":
                self.factor.bias.normal_(std=FACTOR_INIT)  # at F = 0 the gradient over F vanishes

    def forward(self, features: Tensor) -> Gaussian:
        """Return the posterior of each sample, for features of shape (…, in_features).

        With the covariance of a decoder, which this layer does not know, deviations are 1.
        """
        check_tensor(features, "features", (..., self.in_features), self.mean.weight)
        with without_autocast(features):
            features = features.to(self.mean.weight.dtype)
            mean = full_precision(self.mean(features))
            if self.scale is None:
                return DiagonalGaussian(mean, torch.ones_like(mean))
            scale = nn.functional.softplus(full_precision(self.scale(features))) + self.floor
            if self.covariance == "diagonal":
                return DiagonalGaussian(mean, scale)
            if self.factor is None:  # one latent
                return FullGaussian(mean, scale[..., None])
            entries = self.coupling * full_precision(self.factor(features))
            if self.covariance == "full":
                below = entries / math.sqrt(self.latent_dim)
                return FullGaussian(mean, relative_factor(scale, below, self.positions))
            relative = entries.unflatten(-1, (self.latent_dim, self.rank)) / math.sqrt(self.rank)
            return LowRankGaussian(mean, scale, scale[..., None] * relative)

    @property
    def of_decoder(self) -> bool:
        """Whether the covariance is that of a decoder, so that only the mean is predicted."""
        return self.covariance.startswith("decoder")

    def extra_repr(self) -> str:
        """Return the settings that are shown when the module is printed."""
        shape = f"{self.in_features}, {self.latent_dim}"
        return f"{shape}, covariance={self.covariance!r}, floor={self.floor:g}"


def relative_factor(scale: Tensor, below: Tensor, positions: Tensor) -> Tensor:
    """Return the triangular factor diag(s)(I + N) of a covariance, shape (…, k, k)."""
    # diag(s)(I + N) has diagonal s, so the factor is triangular with a positive diagonal for
    # every prediction.
    k = scale.shape[-1]
    flat = below.new_zeros((*below.shape[:-1], k * k))
    lower = flat.index_copy(-1, positions, below).unflatten(-1, (k, k))
    return scale[..., None] * lower + torch.diag_embed(scale)


MOST_ENTRIES = 1 << 25
"""Largest number of entries of the Jacobians that are computed at a time."""

NEGLIGIBLE = 1e-9
"""Amounts below this many nats are rounding errors, which are shown as zero."""


@dataclass(frozen=True, slots=True, eq=False)
class HadamardGap:
    """Amount by which a full posterior covariance raises the ELBO of a VAE with a given decoder.

    It is the result of `lucidae.nn.hadamard_gap`, which explains it.

    Parameters
    ----------
    value : float
        The gap H in nats: mean over the samples.
    standard_error : float
        Standard error of the mean over the samples; NaN for one sample.
    samples : ndarray of shape (n,)
        The gap of each sample.
    noise_variance : float
        Noise variance γ of the decoder.
    jacobian : {"forward", "reverse"}
        How the Jacobians were computed.

    Examples
    --------
    >>> import numpy as np
    >>> from lucidae.nn import HadamardGap
    >>> print(HadamardGap(0.33, 0.01, np.array([0.32, 0.34]), 1e-3, "forward"))
    Hadamard gap 0.33 ± 0.01 nats (2 samples, γ = 0.001)
    """

    value: float
    standard_error: float
    samples: np.ndarray[Any, Any] = field(repr=False)
    noise_variance: float
    jacobian: str

    def __str__(self) -> str:
        unit = "sample" if len(self.samples) == 1 else "samples"
        return (
            f"Hadamard gap {self._shown} nats ({len(self.samples)} {unit}, "
            f"γ = {self.noise_variance:.3g})"
        )

    @property
    def _shown(self) -> str:
        """Value and standard error as text; for one sample, the value alone.

        Amounts below `NEGLIGIBLE` are shown as 0: for a linear decoder the gaps of all samples are
        equal up to rounding.
        """
        value, error = (
            0.0 if abs(amount) < NEGLIGIBLE else amount
            for amount in (self.value, self.standard_error)
        )
        return f"{value:.3g} ± {error:.2g}" if math.isfinite(error) else f"{value:.3g}"

    @property
    def answer(self) -> str:
        """One sentence that says by how much a full posterior covariance would help this model."""
        return (
            "Would a full covariance help? With this decoder it raises the evidence lower bound by "
            f"{self._shown} nats per sample, to first order."
        )

    def _repr_html_(self) -> str:
        values: dict[str, Any] = {
            "gap (nats)": self.value,
            "standard error": self.standard_error,
            "samples": len(self.samples),
            "noise variance γ": self.noise_variance,
            "Jacobian": self.jacobian,
        }
        return card("Hadamard gap", facts(values), self.answer)

    def to_dict(self) -> dict[str, Any]:
        """Return value, standard error and settings as values that JSON can represent."""
        error = self.standard_error
        return {
            "value": self.value,
            "standard_error": error if math.isfinite(error) else None,
            "n_samples": len(self.samples),
            "noise_variance": self.noise_variance,
            "jacobian": self.jacobian,
        }


def hadamard_gap(
    model: Any,
    x: Any = None,
    *,
    codes: Any = None,
    noise_variance: float | None = None,
    jacobian: str = "forward",
) -> HadamardGap:
    """Return how many nats a diagonal posterior covariance costs a VAE with a given decoder.

    Let J be the Jacobian of the decoder at the posterior mean of a sample, of shape (D, k) for D
    output entries and k latents, γ the noise variance and C = JᵀJ/γ. To first order, and exactly
    for a linear decoder, the best Gaussian posterior has the precision I + C, and the best one with
    a diagonal covariance the variances 1/(1 + Cᵢᵢ). With the same decoder, the evidence lower bound
    (ELBO) of the diagonal posterior is therefore lower by

        H = ½ E[Σᵢ log(1 + Cᵢᵢ) − log|I + C|] ≥ 0

    nats, with the mean E over the samples. The inequality is Hadamard's; it is an equality exactly
    if the columns of the Jacobian are orthogonal. If one VAE is trained with a diagonal and one
    with a full covariance, and each to its optimum, the difference of their bounds is at least the
    gap of the first decoder and at most the gap of the second.

    Parameters
    ----------
    model : nn.Module or callable
        A model with the methods ``encode(x)``, which returns a Gaussian posterior, a tuple that
        begins with its mean, or the mean alone, of shape (n, k), and ``decode(z)``; or, if `codes`
        are given, a decoder that maps latents of shape (n, k) to means of shape (n, …). Rows have
        to be decoded independently of each other; a module is used in evaluation mode.
    x : tensor of shape (n, …), optional
        Inputs of the model, at least two axes; needed, and used, only if no `codes` are given.
    codes : tensor of shape (n, k), optional
        Latents at which the Jacobians are computed, instead of the posterior means of `x`.
    noise_variance : float, optional
        Noise variance γ of the decoder; by default the attribute ``noise_variance`` of the model.
    jacobian : {"forward", "reverse"}, default="forward"
        ``"forward"`` computes JᵀJ by k products with tangents (forward mode), ``"reverse"`` by D
        products with cotangents, for decoders without derivatives in forward mode.

    Returns
    -------
    HadamardGap
        ``value`` and ``standard_error`` in nats, and the gap of each sample.

    Examples
    --------
    Two columns of equal length at an angle of 60 degrees:

    >>> import torch
    >>> from lucidae.nn import hadamard_gap
    >>> decoder = torch.nn.Linear(2, 2, bias=False)
    >>> _ = decoder.weight.data.copy_(torch.tensor([[1.0, 0.5], [0.0, 0.75**0.5]]))
    >>> gap = hadamard_gap(decoder, codes=torch.zeros(3, 2), noise_variance=1e-6)
    >>> round(gap.value, 4), gap.standard_error
    (0.1438, 0.0)

    This is −½ log(1 − cos²60°) = ½ log(4/3) = 0.1438 nats. Orthogonal columns cost nothing:

    >>> _ = decoder.weight.data.copy_(torch.tensor([[3.0, 0.0], [0.0, 1.0]]))
    >>> hadamard_gap(decoder, codes=torch.zeros(3, 2), noise_variance=0.1).value
    0.0
    """
    check_choice(jacobian, "jacobian", _GRAMS)
    noise = getattr(model, "noise_variance", None) if noise_variance is None else noise_variance
    if noise is None:
        raise ValueError(
            f"model is of type {type(model).__name__} and has no attribute noise_variance: give "
            "noise_variance, the variance of the Gaussian noise of the decoder."
        )
    noise = float(noise) if noise_variance is None else noise  # that of a model may be a tensor
    check_number(noise, "noise_variance", low=0.0, open_low=True)
    with evaluation(model if isinstance(model, torch.nn.Module) else torch.nn.Identity()):
        decode, latents = _decoder_and_codes(model, x, codes)
        k = latents.shape[1]
        size = max(k, decode(latents[:1]).numel())
        chunks = latents.split(max(1, MOST_ENTRIES // (k * size)))
        gaps = [gap_of_gram(_GRAMS[jacobian](decode, z) / noise) for z in chunks]
    samples = to_numpy(torch.cat(gaps))
    if not np.isfinite(samples).all():
        raise ValueError(
            "the Jacobian of the decoder contains NaN or infinity: the training has diverged. "
            "Train again with a smaller learning rate."
        )
    error = float(np.std(samples, ddof=1) / math.sqrt(len(samples))) if len(samples) > 1 else np.nan
    return HadamardGap(float(samples.mean()), error, samples, noise, jacobian)


def gap_of_gram(gram: Tensor) -> Tensor:
    """Return ½[Σᵢ log(1 + Cᵢᵢ) − log|I + C|] in nats for each matrix C in `gram` (…, k, k)."""
    # With the correlations of I + C as matrix, the gap is −½ log of its determinant: large
    # logarithms that cancel are not formed, and orthogonal columns give exactly zero.
    scale = torch.rsqrt(1 + torch.diagonal(gram, dim1=-2, dim2=-1))
    correlations = gram * scale[..., None] * scale[..., None, :]
    torch.diagonal(correlations, dim1=-2, dim2=-1).fill_(1.0)
    log_determinant = torch.linalg.slogdet(correlations).logabsdet
    return torch.clamp(log_determinant, max=0.0).abs() / 2


def _decoder_and_codes(model: Any, x: Any, codes: Any) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """Return the function that decodes latents, and `codes` or the posterior means of `x`."""
    encode: Any = getattr(model, "encode", None)
    decode: Any = getattr(model, "decode", None)
    if callable(encode) != callable(decode) or (codes is None and not callable(encode)):
        raise ValueError(
            f"model is of type {type(model).__name__} without the methods encode and decode: give "
            "a model such as lucidae.nn.VAE, or a decoder together with codes and noise_variance."
        )
    if not callable(decode):
        decode = check_module(model, "model", "that maps latents (n, k) to means (n, …)")
    if codes is None:
        if x is None:
            raise ValueError("x is None and codes is None, expected one of them.")
        found = encode(check_tensor(x, "x", (..., "n", "features")))
        if isinstance(found, tuple | list) and found and not hasattr(found, "mean"):
            found = found[0]
        codes = found if isinstance(found, torch.Tensor) else getattr(found, "mean", None)
        check_tensor(codes, "the posterior mean of model.encode", ("n", "k"))
    codes = full_precision(check_tensor(codes, "codes", ("n", "k")).detach())
    if not torch.isfinite(codes).all():
        raise ValueError("the latents contain NaN or infinity. Remove those samples first.")
    decoded = decode(codes[:1])
    if not isinstance(decoded, torch.Tensor) or decoded.ndim < 2 or len(decoded) != 1:
        raise ValueError(
            f"the decoder returned {getattr(decoded, 'shape', type(decoded).__name__)} for one row "
            "of latents, expected a tensor of shape (1, …)."
        )
    return decode, codes


def _gram_forward(decode: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
    """Return JᵀJ for each row of latents z, shape (n, k, k), by forward-mode differentiation."""
    jacobian = jacobian_of(decode, z).flatten(1, -2).double()
    return jacobian.mT @ jacobian


def jacobian_of(decode: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
    """Return the derivatives of ``decode(z)`` with respect to each latent, on a new last axis.

    All k products with tangents are computed at once, in forward mode.
    """

    def derivative(direction: Tensor) -> Tensor:
        return torch.func.jvp(decode, (z,), (direction.expand_as(z),))[1]

    with warnings.catch_warnings():  # the first use of forward mode compiles scripts inside torch
        warnings.filterwarnings("ignore", message=".*torch.jit.script", category=DeprecationWarning)
        try:
            unit = torch.eye(z.shape[-1], dtype=z.dtype, device=z.device)
            return torch.func.vmap(derivative, out_dims=-1)(unit)
        except (RuntimeError, NotImplementedError) as error:
            raise ValueError(
                f"the decoder cannot be differentiated in forward mode ({error}): use "
                "jacobian='reverse'."
            ) from error


def _gram_reverse(decode: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
    """Return JᵀJ for each row of latents z, shape (n, k, k), by reverse-mode differentiation.

    One product with a cotangent is computed for each entry of the output.
    """
    # Rows are decoded independently, so that the sum over rows has the Jacobians of all of them.
    outputs = torch.func.jacrev(lambda z: decode(z).flatten(1).sum(0), chunk_size=1)(z).double()
    return torch.einsum("dni,dnj->nij", outputs, outputs)


_GRAMS: dict[str, Callable[..., Tensor]] = {"forward": _gram_forward, "reverse": _gram_reverse}
