"""Gaussian posteriors (diagonal, full or low-rank covariance) and the layer that predicts them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

from lucidae.nn.layers import Tensor, check_tensor, full_precision, without_autocast
from lucidae.validation import check_choice, check_integer, check_number

__all__ = [
    "DiagonalGaussian",
    "FullGaussian",
    "Gaussian",
    "GaussianHead",
    "LowRankGaussian",
    "as_gaussian",
]

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
        size = self._factor_size()
        self.factor = nn.Linear(in_features, size) if size else None
        rows, columns = torch.tril_indices(latent_dim, latent_dim, -1)
        self.register_buffer("positions", rows * latent_dim + columns, persistent=False)
        self.register_buffer("coupling", torch.tensor(1.0))
        self._initialise_near_prior()

    def _initialise_near_prior(self) -> None:
        """Initialise all layers: standard deviations near 1, latents nearly independent."""
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
            return _BUILDERS[self.covariance](self, mean, scale, features)

    @property
    def of_decoder(self) -> bool:
        """Whether the covariance is that of a decoder, so that only the mean is predicted."""
        return self.covariance.startswith("decoder")

    def extra_repr(self) -> str:
        """Return the settings that are shown when the module is printed."""
        shape = f"{self.in_features}, {self.latent_dim}"
        return f"{shape}, covariance={self.covariance!r}, floor={self.floor:g}"

    def _factor_size(self) -> int:
        """Return the number of predicted covariance entries besides the k standard deviations.

        k is the number of latents.
        """
        k = self.latent_dim
        sizes = {"full": k * (k - 1) // 2, "low_rank": k * self.rank}
        return sizes.get(self.covariance, 0)


def _diagonal(_: Any, mean: Tensor, scale: Tensor, __: Tensor) -> DiagonalGaussian:
    """Return the Gaussian posterior with the given means and standard deviations, uncorrelated.

    The first and the last argument are ignored: `_full` and `_low_rank` have the same signature.
    """
    return DiagonalGaussian(mean, scale)


def _full(head: Any, mean: Tensor, scale: Tensor, features: Tensor) -> FullGaussian:
    """Return the Gaussian posterior with full covariance, for the given means and scales.

    The entries of its triangular factor below the diagonal are predicted from the features by
    ``head.factor``, relative to the scales.
    """
    k = head.latent_dim
    if k == 1:
        return FullGaussian(mean, scale[..., None])
    below = _coupled(head, features) / math.sqrt(k)
    return FullGaussian(mean, relative_factor(scale, below, head.positions))


def relative_factor(scale: Tensor, below: Tensor, positions: Tensor) -> Tensor:
    """Return the triangular factor diag(s)(I + N) of a covariance, shape (…, k, k)."""
    # diag(s)(I + N) has diagonal s, so the factor is triangular with a positive diagonal for
    # every prediction.
    k = scale.shape[-1]
    flat = below.new_zeros((*below.shape[:-1], k * k))
    lower = flat.index_copy(-1, positions, below).unflatten(-1, (k, k))
    return scale[..., None] * lower + torch.diag_embed(scale)


def _low_rank(head: Any, mean: Tensor, scale: Tensor, features: Tensor) -> LowRankGaussian:
    """Return the Gaussian posterior with low-rank covariance, for the given means and scales.

    Its factor is predicted from the features by ``head.factor``, relative to the scales.
    """
    factor = _coupled(head, features) / math.sqrt(head.rank)
    relative = factor.unflatten(-1, (head.latent_dim, head.rank))
    return LowRankGaussian(mean, scale, scale[..., None] * relative)


def _coupled(head: Any, features: Tensor) -> Tensor:
    """Return the predicted entries of the covariance factor, multiplied by ``head.coupling``.

    The coupling is a number from 0 (independent latents) to 1 (the covariance as predicted).
    """
    return head.coupling * full_precision(head.factor(features))


_BUILDERS: dict[str, Callable[..., Gaussian]] = {
    "full": _full,
    "diagonal": _diagonal,
    "low_rank": _low_rank,
}

COVARIANCES = (*_BUILDERS, "decoder", "decoder_diagonal")
"""Kinds of covariance: those that a head predicts, and those of a decoder."""
