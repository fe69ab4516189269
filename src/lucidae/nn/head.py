"""The last layer of a variational encoder: from features to a Gaussian posterior."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from lucidae._validation import check_choice, check_integer, check_number
from lucidae.nn._layers import Tensor, full_precision, without_autocast
from lucidae.nn.gaussian import DiagonalGaussian, FullGaussian, Gaussian, LowRankGaussian

__all__ = ["GaussianHead"]

FACTOR_INIT = 1e-2
"""Initial size of what couples latents, relative to the usual initialisation: all kinds of
covariance start near the identity."""


class GaussianHead(nn.Module):
    """Map features to an amortised Gaussian posterior over the latents.

    Parameters
    ----------
    in_features : int
        Number of features.
    latent_dim : int
        Number k of latents.
    covariance : {"full", "diagonal", "low_rank"}, default="full"
        ``"full"`` predicts a Cholesky factor L with k(k + 1)/2 entries, ``"diagonal"`` k standard
        deviations, ``"low_rank"`` k standard deviations and a k × `rank` factor F.
    rank : int, optional
        Columns of the low-rank factor; by default the square root of k, rounded up.
    floor : float, default=1e-6
        Smallest standard deviation (diagonal of the factor), so that logarithms stay finite.

    Notes
    -----
    Standard deviations s are softplus of the prediction plus the floor, and start at 1. What
    couples latents is predicted relative to them, N with L = diag(s)(I + cN/√k) and
    F = c diag(s)N/√rank: an optimizer such as Adam moves every entry of N by much the same
    amount, so entries of L itself would leave a noise of √k such steps in each latent, whatever
    its own scale, and a latent could not become precise.

    The buffer `coupling` is c, usually 1. At 0 the latents are independent; a run that raises it
    after some epochs starts from where a diagonal covariance leads (`TrainingSettings`).

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
        self.covariance = check_choice(covariance, "covariance", _BUILDERS)
        self.floor = check_number(floor, "floor", low=0.0, high=0.1, open_low=True)
        if rank is not None and covariance != "low_rank":
            raise ValueError(
                f"rank={rank!r} was given with covariance={covariance!r}: it has none."
            )
        default = math.ceil(math.sqrt(latent_dim))
        self.rank = check_integer(default if rank is None else rank, "rank", low=1, high=latent_dim)
        self.mean = nn.Linear(in_features, latent_dim)
        self.scale = nn.Linear(in_features, latent_dim)
        size = self._factor_size()
        self.factor = nn.Linear(in_features, size) if size else None
        rows, columns = torch.tril_indices(latent_dim, latent_dim, -1)
        self.register_buffer("positions", rows * latent_dim + columns, persistent=False)
        self.register_buffer("coupling", torch.tensor(1.0))
        self._start_at_the_prior()

    def _start_at_the_prior(self) -> None:
        """Start with standard deviations near 1 and latents that are nearly independent."""
        unit = math.log(math.expm1(1.0 - self.floor))
        with torch.no_grad():
            for layer in filter(None, (self.scale, self.factor)):
                layer.weight.mul_(FACTOR_INIT)
                layer.bias.zero_()
            self.scale.bias.fill_(unit)
            if self.factor is not None and self.covariance == "low_rank":
                self.factor.bias.normal_(std=FACTOR_INIT)  # a factor of zero would never move

    def forward(self, features: Tensor) -> Gaussian:
        """Return the posterior of each sample, for features of shape (…, in_features)."""
        with without_autocast(features):
            features = features.to(self.mean.weight.dtype)
            mean = full_precision(self.mean(features))
            scale = nn.functional.softplus(full_precision(self.scale(features))) + self.floor
            return _BUILDERS[self.covariance](self, mean, scale, features)

    def extra_repr(self) -> str:
        """Return the settings for the printed module."""
        shape = f"{self.in_features}, {self.latent_dim}"
        return f"{shape}, covariance={self.covariance!r}, floor={self.floor:g}"

    def _factor_size(self) -> int:
        k = self.latent_dim
        return {"full": k * (k - 1) // 2, "diagonal": 0, "low_rank": k * self.rank}[self.covariance]


def _diagonal(_: Any, mean: Tensor, scale: Tensor, __: Tensor) -> DiagonalGaussian:
    return DiagonalGaussian(mean, scale)


def _full(head: Any, mean: Tensor, scale: Tensor, features: Tensor) -> FullGaussian:
    k = head.latent_dim
    if k == 1:
        return FullGaussian(mean, scale[..., None])
    below = _coupled(head, features) / math.sqrt(k)
    flat = below.new_zeros((*below.shape[:-1], k * k))
    lower = flat.index_copy(-1, head.positions, below).unflatten(-1, (k, k))
    return FullGaussian(mean, scale[..., None] * lower + torch.diag_embed(scale))


def _low_rank(head: Any, mean: Tensor, scale: Tensor, features: Tensor) -> LowRankGaussian:
    factor = _coupled(head, features) / math.sqrt(head.rank)
    relative = factor.unflatten(-1, (head.latent_dim, head.rank))
    return LowRankGaussian(mean, scale, scale[..., None] * relative)


def _coupled(head: Any, features: Tensor) -> Tensor:
    return head.coupling * full_precision(head.factor(features))


_BUILDERS: dict[str, Callable[..., Gaussian]] = {
    "full": _full,
    "diagonal": _diagonal,
    "low_rank": _low_rank,
}
