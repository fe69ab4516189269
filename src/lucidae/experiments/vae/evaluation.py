"""What a VAE does on data that it was not trained on."""

from __future__ import annotations

import math
from typing import Any

import torch

from lucidae.metrics import active_dimensions
from lucidae.nn.diagnostics import active_directions
from lucidae.nn.layers import Tensor, evaluation, full_precision
from lucidae.nn.vae import negative_log_likelihood

__all__ = ["evaluate"]

CHUNK = 2500
"""Samples evaluated at a time."""


def evaluate(model: Any, images: Tensor, *, seed: int = 0) -> dict[str, float]:
    """Measure reconstruction, KL, −ELBO and active latents on a set of samples.

    Parameters
    ----------
    model : VAE
    images : tensor of shape (n, …)
        Two samples at least, on the model's device.
    seed : int, default=0
        Of the noise; the caller's random state is left alone.

    Returns
    -------
    dict of str to float
        ``mse`` from the posterior means (Wipf 2023, Definition 3.1) and ``sampled_mse`` from
        samples, both a pixel; ``kl`` and ``loss`` (−ELBO) in nats a sample; ``noise_variance``;
        ``active`` latents and ``active_directions``.

    Examples
    --------
    >>> import torch
    >>> from lucidae.nn import VAE
    >>> from lucidae.experiments.vae.evaluation import evaluate
    >>> figures = evaluate(VAE.resnet((1, 8, 8), 2, width=8, features=8), torch.rand(9, 1, 8, 8))
    >>> sorted(figures)
    ['active', 'active_directions', 'kl', 'loss', 'mse', 'noise_variance', 'sampled_mse']
    """
    devices = [images.device] if images.device.type == "cuda" else []
    with evaluation(model), torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        parts = [_measure(model, chunk) for chunk in images.split(CHUNK)]
    sums = torch.stack([part[0] for part in parts]).sum(0) / len(images)
    error, sampled, kl = (float(total) for total in sums)
    covariance = torch.stack([part[1] for part in parts]).sum(0) / len(images)
    mean, variance = (torch.cat([part[index] for part in parts]) for index in (2, 3))
    entries, noise = math.prod(images.shape[1:]), model.noise_variance
    fit = negative_log_likelihood(torch.as_tensor(sampled), entries, noise.cpu())
    finite = bool(torch.isfinite(mean).all())
    return {
        "mse": error / entries,
        "sampled_mse": sampled / entries,
        "kl": kl,
        "loss": float(fit) + kl if finite else math.nan,
        "noise_variance": float(noise),
        "active": float(active_dimensions(mean, variance)) if finite else 0.0,
        "active_directions": float(active_directions(covariance, mean)) if finite else 0.0,
    }


def _measure(model: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return summed errors and KL, summed covariance, means and variances of one chunk."""
    posterior = model.encode(x)
    target = full_precision(x)
    decoded = [full_precision(model.decode(z)) for z in (posterior.mean, posterior.rsample())]
    errors = [torch.sum(torch.square(target - mean), dtype=torch.float64) for mean in decoded]
    kl = torch.sum(posterior.kl(), dtype=torch.float64)
    covariance = posterior.covariance.sum(0).double()
    return torch.stack([*errors, kl]), covariance, posterior.mean, posterior.variance
