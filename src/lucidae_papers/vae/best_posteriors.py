"""The best Gaussian posterior of each sample for a given decoder, which is not changed.

The loss of a VAE, −ELBO, exceeds its minimum for three reasons: the decoder is not the best one,
the encoder does not predict the best posterior of each sample, and the posterior has a diagonal
covariance. Optimising the posterior of each sample by itself shows how much each of the three
reasons contributes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from lucidae.nn.hadamard import jacobian_columns
from lucidae.nn.layers import Tensor
from lucidae.nn.vae import negative_log_likelihood

__all__ = ["best_losses"]

LEARNING_RATE = 0.05
"""First learning rate of Adam, in units of posterior standard deviations; it falls linearly to
zero."""

TRAINED_DRAWS = 8
"""Number of posterior samples per step: half of them are the negatives of the others."""

NEWTON_STEPS = 20
"""Largest number of steps with which the most likely latents of a sample are sought."""

NEGLIGIBLE = 1e-3
"""The search for the most likely latents ends when no sample's log-likelihood increases by more
than this many nats in a step."""

EVALUATED_DRAWS = 256
"""Number of posterior samples with which the loss is evaluated at the end."""


def best_losses(
    decode: Callable[[Tensor], Tensor],
    x: Tensor,
    noise: Any,
    mean: Tensor,
    steps: int,
    seed: int = 0,
) -> dict[str, Tensor]:
    """Return the smallest −ELBO of each sample over Gaussian posteriors, by kind of covariance.

    The search begins at the most likely latents of a sample, which are found by the method of
    Levenberg and Marquardt from the given mean. To first order, the best posterior has this mean
    and the precision I + JᵀJ/γ, for the Jacobian J of the decoder and the noise variance γ. Let A
    be a factor of its inverse and, for diagonal covariances, of the inverse of its diagonal.
    Posteriors are written as N(μ + Bu, AM(AM)ᵀ), with the first mean μ, the factor B of the full
    first-order covariance, a vector u and a triangular or diagonal matrix M, and begin at u = 0
    and M = I. In these coordinates the loss has about unit curvature, so that Adam takes few steps
    to the minimum.
    """
    noise = torch.as_tensor(noise, dtype=x.dtype, device=x.device)
    mean = _most_likely(decode, x, noise, mean.detach())
    precision = _first_order(decode, x, noise, mean)[1]
    full = _factor_of_inverse(precision)
    diagonal = torch.diag_embed(torch.rsqrt(torch.diagonal(precision, dim1=-2, dim2=-1)))
    found = {}
    for kind, factor in (("full", full), ("diagonal", diagonal)):
        posterior = _Posteriors(mean, precision, full, factor, kind == "full")
        optimizer = torch.optim.Adam(posterior.trained)
        rng = torch.Generator(x.device).manual_seed(seed)
        for step in range(steps):
            optimizer.param_groups[0]["lr"] = LEARNING_RATE * (1 - step / steps)
            optimizer.zero_grad()
            posterior.losses(decode, x, noise, TRAINED_DRAWS, rng).sum().backward()
            optimizer.step()
        rng = torch.Generator(x.device).manual_seed(seed + 1)
        with torch.no_grad():
            parts = [
                posterior.losses(decode, x, noise, TRAINED_DRAWS, rng).double()
                for _ in range(EVALUATED_DRAWS // TRAINED_DRAWS)
            ]
        found[kind] = torch.stack(parts).mean(0)
    return found


class _Posteriors:
    """Gaussian posteriors N(μ + Bu, AM(AM)ᵀ) of some samples, see `best_losses`."""

    def __init__(
        self, mean: Tensor, precision: Tensor, shift: Tensor, factor: Tensor, coupled: bool
    ) -> None:
        self.first, self.shift, self.factor = mean.detach(), shift, factor
        self.curvature = precision - torch.eye(mean.shape[-1], dtype=mean.dtype, device=mean.device)
        self.moved = torch.zeros_like(mean).requires_grad_()
        self.scale = torch.zeros_like(mean).requires_grad_()
        self.below = torch.zeros_like(factor).requires_grad_(coupled)
        self.trained = [self.moved, self.scale, *([self.below] if coupled else [])]

    def losses(
        self, decode: Callable[[Tensor], Tensor], x: Tensor, noise: Tensor, draws: int, rng: Any
    ) -> Tensor:
        """Return −ELBO of each sample (…, B), estimated with `draws` posterior samples.

        Over the range of one posterior the decoder is nearly linear. A linear decoder would add a
        known quadratic form of the draw to the error. This form is subtracted for each draw and its
        expectation is added (a control variate), which removes most of the sampling noise. Each
        draw is used with both signs, which removes linear terms.
        """
        mean = self.first + (self.shift @ self.moved[..., None])[..., 0]
        inner = torch.tril(self.below, -1) + torch.diag_embed(torch.exp(self.scale))
        factor = self.factor @ inner
        half = (*x.shape[:-1], mean.shape[-1], draws // 2)
        normal = torch.randn(half, generator=rng, dtype=x.dtype, device=x.device)
        steps = factor @ torch.cat([normal, -normal], -1)
        latents = mean[..., None] + steps
        rows = latents.mT.flatten(-3, -2)  # (…, B · draws, k)
        decoded = decode(rows).unflatten(-2, (x.shape[-2], draws))
        error = torch.sum(torch.square(x[..., None, :] - decoded), -1).mean(-1)
        fit = negative_log_likelihood(error, x.shape[-1], noise)
        drawn = torch.sum(steps * (self.curvature @ steps), (-2, -1)) / draws
        expected = torch.sum(factor * (self.curvature @ factor), (-2, -1))
        fit = fit + (expected - drawn) / 2
        log_determinant = 2 * (_log_diagonal(self.factor) + self.scale.sum(-1))
        trace = torch.sum(torch.square(factor), (-2, -1))
        size = torch.sum(torch.square(mean), -1) + trace - mean.shape[-1]
        return fit + (size - log_determinant) / 2


def _log_diagonal(factor: Tensor) -> Tensor:
    return torch.log(torch.diagonal(factor, dim1=-2, dim2=-1)).sum(-1)


def _most_likely(decode: Callable[[Tensor], Tensor], x: Tensor, noise: Tensor, z: Tensor) -> Tensor:
    """Return the latents of each sample that minimise ½‖x − f(z)‖²/γ + ½‖z‖², for the decoder f.

    `x` are the samples, `noise` is the noise variance γ and `z` are the first latents. Each sample
    has its own damping of the Levenberg–Marquardt steps. It is decreased after a step that lowers
    the value; a step that does not is discarded, and the damping is increased.
    """

    def values(z: Tensor) -> Tensor:
        error = torch.sum(torch.square(x - decode(z)), -1) / noise
        return (error + torch.sum(torch.square(z), -1)) / 2

    with torch.no_grad():
        damping, best = torch.full_like(z[..., :1], 1e-3), values(z)
        for _ in range(NEWTON_STEPS):
            gradient, precision = _first_order(decode, x, noise, z)
            size = damping[..., None] * torch.diagonal(precision, dim1=-2, dim2=-1)[..., None, :]
            damped = precision + torch.eye(z.shape[-1], dtype=z.dtype, device=z.device) * size
            moved = z - torch.linalg.solve(damped.double(), gradient.double()).to(z.dtype)
            found = values(moved)
            lower = found < best  # false for NaN
            gain = torch.where(lower, best - found, 0.0).max()
            z = torch.where(lower[..., None], moved, z)
            best = torch.where(lower, found, best)
            if float(gain) < NEGLIGIBLE and bool(lower.any()):
                break
            damping = torch.where(lower[..., None], damping / 5, damping * 10).clamp(1e-8, 1e8)
    return z


def _first_order(
    decode: Callable[[Tensor], Tensor], x: Tensor, noise: Tensor, z: Tensor
) -> tuple[Tensor, Tensor]:
    """Return gradient z − Jᵀ(x − f(z))/γ and Hessian I + JᵀJ/γ for each sample x.

    f is the decoder (`decode`), J its Jacobian at the latents z, and γ (`noise`) the noise
    variance. The Hessian is that of the Gauss–Newton approximation to ½‖x − f(z)‖²/γ + ½‖z‖².
    """
    jacobian = torch.stack(jacobian_columns(decode, z), -1)
    unit = torch.eye(z.shape[-1], dtype=z.dtype, device=z.device)
    pulled = ((x - decode(z))[..., None, :] @ jacobian)[..., 0, :]
    gradient = z - pulled / noise[..., None]
    return gradient, unit + jacobian.mT @ jacobian / noise[..., None, None]


def _factor_of_inverse(precision: Tensor) -> Tensor:
    """Return the upper triangular factors A with AAᵀ = P⁻¹ of the matrices P in `precision`.

    With the Cholesky factor L of P, A is L⁻ᵀ. It is computed in double precision.
    """
    lower = torch.linalg.cholesky(precision.double())
    unit = torch.eye(precision.shape[-1], dtype=lower.dtype, device=lower.device)
    return torch.linalg.solve_triangular(lower.mT, unit, upper=True).to(precision.dtype)
