"""Posterior collapse, measured: which latents say something, which do not, and whether rightly."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from lucidae._arrays import scalar, to_numpy
from lucidae._validation import check_number
from lucidae.metrics import active_dimensions
from lucidae.moments import SecondMoment
from lucidae.nn._layers import Tensor, batches, device_of, evaluation
from lucidae.nn.collapse_table import CollapseReport

__all__ = ["collapse_report"]

MOST_ENTRIES = 4096
"""Samples with more entries are not compared with a linear model: their second moment is large."""


class Gathered(NamedTuple):
    """What one pass over the data leaves: posteriors on the host, and moments."""

    mean: Tensor
    variance: Tensor
    kl: Tensor
    total_kl: float
    covariance: Tensor
    moment: SecondMoment | None


def collapse_report(
    model: Any,
    loader: Any,
    *,
    max_variance: float = 0.9,
    min_spread: float = 0.01,
    tolerance: float = 0.05,
) -> CollapseReport:
    """Say for each latent of a variational autoencoder whether it is used, and whether it should.

    A superfluous latent falls back to its prior: its posterior mean is constant and its variance
    one (Wipf 2023, Definition 3.1 and section 3). A latent is active when the mean over samples
    of its posterior variance is below `max_variance` and the variance over samples of its
    posterior mean is above `min_spread`.

    Where the decoder is linear it is known what the best model would do (Wipf 2023, Lemma 3.2;
    Lucas et al. 2019): with model covariance C = WWᵀ + γI and data covariance Σ, a latent that
    comes back along a direction v raises the likelihood exactly when vᵀC⁻¹ΣC⁻¹v > vᵀC⁻¹v.
    Collapse is justified when no direction open to the latent does. With a diagonal covariance
    the bound may collapse a latent that the likelihood would keep: that is not justified either.

    Parameters
    ----------
    model : nn.Module
        With ``encode(x)`` that returns a Gaussian posterior, such as `VAE` or `DictionaryVAE`.
    loader : tensor, or iterable of batches
        Inputs; of tuples the first entry is taken.
    max_variance, min_spread : float
        Thresholds of an active latent.
    tolerance : float, default=0.05
        By how much a direction's ratio may exceed 1 before collapse counts as unjustified.

    Returns
    -------
    CollapseReport

    Examples
    --------
    >>> import torch
    >>> from lucidae.nn import DictionaryVAE, collapse_report
    >>> model = DictionaryVAE(torch.eye(2), noise_variance=1.0)
    >>> report = collapse_report(model, torch.randn(50, 2))
    >>> report.n_active
    0
    """
    check_number(tolerance, "tolerance", low=0.0)
    with evaluation(model):
        seen = _gather(model, loader)
    count, active = active_dimensions(
        seen.mean,
        seen.variance,
        max_variance=max_variance,
        min_spread=min_spread,
        return_mask=True,
    )
    gains, kept = _linear_comparison(model, seen, active)
    return CollapseReport(
        kl=to_numpy(seen.kl),
        variance=to_numpy(seen.variance.mean(0)),
        spread=to_numpy(seen.mean.var(0, correction=0)),
        active=to_numpy(active),
        n_active=int(count),
        n_directions=active_directions(seen.covariance, seen.mean, max_variance, min_spread),
        total_kl=seen.total_kl,
        n_samples=int(seen.mean.shape[0]),
        gains=None if gains is None else to_numpy(gains),
        linear_active=kept,
        noise_variance=_noise_of(model),
        max_variance=max_variance,
        min_spread=min_spread,
        tolerance=tolerance,
    )


def active_directions(
    covariance: Tensor, mean: Tensor, max_variance: float = 0.9, min_spread: float = 0.01
) -> int:
    """Count active directions rather than active coordinates of the latent space.

    A full covariance leaves the rotation of the latents free: the decoder can undo any. The
    directions are therefore the eigenvectors of the mean posterior covariance, which for a
    diagonal covariance are the coordinates.

    Parameters
    ----------
    covariance : tensor of shape (k, k)
        Mean over samples of the posterior covariance.
    mean : tensor of shape (n, k)
        Posterior means.
    max_variance, min_spread : float
        As in `collapse_report`.

    Returns
    -------
    int

    Examples
    --------
    >>> import torch
    >>> from lucidae.nn import active_directions
    >>> turn = torch.tensor([[0.6, -0.8], [0.8, 0.6]])
    >>> mean = torch.tensor([[1.0, 0.0], [-1.0, 0.0]]) @ turn.T
    >>> active_directions(turn @ torch.diag(torch.tensor([0.1, 1.0])) @ turn.T, mean)
    1
    """
    variances, axes = torch.linalg.eigh(covariance.double())
    turned = mean.double() @ axes
    spread = turned.var(0, correction=0)
    return int(((variances < max_variance) & (spread > min_spread)).sum())


def _gather(model: Any, loader: Any) -> Gathered:
    means, variances, kls, totals = [], [], [], []
    covariance: Tensor = 0.0
    moment: SecondMoment | None = None
    device = device_of(model)
    for batch in batches(loader, "loader"):
        x = batch.to(device)
        posterior = model.encode(x)
        means.append(posterior.mean)
        variances.append(posterior.variance)
        kls.append(posterior.marginal_kl())
        totals.append(posterior.kl())
        covariance = covariance + posterior.covariance.double().sum(0)
        rows = x.flatten(1)
        if rows.shape[1] <= MOST_ENTRIES:
            moment = SecondMoment.of(rows) if moment is None else moment.update(rows)
    count = sum(len(mean) for mean in means)
    if count < 2:
        raise ValueError("loader holds one sample, expected two or more: one shows no variation.")
    return Gathered(
        torch.cat(means),
        torch.cat(variances),
        torch.cat(kls).mean(0),
        scalar(torch.cat(totals).mean()),
        covariance / count,
        moment,
    )


def _linear_comparison(
    model: Any, seen: Gathered, active: Tensor
) -> tuple[Tensor | None, int | None]:
    """Return what each latent would gain, and how many a linear VAE of the same γ would use."""
    noise = _noise_of(model)
    if seen.moment is None or noise is None:
        return None, None
    sigma = seen.moment.covariance
    kept = int((torch.linalg.eigvalsh(sigma) > noise).sum())
    kept = min(kept, int(seen.mean.shape[1]))
    decoder = linear_decoder_of(model)
    if decoder is None:
        return None, kept
    dictionary = getattr(model, "dictionary", None)
    if dictionary is None:
        gain = free_gain(decoder[:, active].double(), noise, sigma)
        return gain.expand(decoder.shape[1]), kept
    return column_gains(decoder.double(), noise, sigma, dictionary), kept


def linear_decoder_of(model: Any) -> Tensor | None:
    """Return the matrix of a model's decoder, None where it is not linear."""
    if hasattr(model, "linear_decoder"):
        return model.linear_decoder().detach()
    decoder = getattr(model, "decoder", None)
    return decoder.weight.detach() if isinstance(decoder, torch.nn.Linear) else None


def free_gain(decoder: Tensor, noise: float, sigma: Tensor) -> Tensor:
    """Return the largest variance of the data outside the decoder's range, over γ.

    There C = γI, so this is the largest vᵀC⁻¹ΣC⁻¹v / vᵀC⁻¹v over the directions that no active
    latent reaches: above 1, a collapsed latent of a free decoder would pay.
    """
    basis = torch.linalg.svd(decoder, full_matrices=True)[0][:, decoder.shape[1] :]
    left = basis.mT @ sigma.to(basis) @ basis
    return torch.linalg.eigvalsh(left)[-1] / noise if len(left) else sigma.new_zeros(())


def column_gains(decoder: Tensor, noise: float, sigma: Tensor, dictionary: Tensor) -> Tensor:
    """Return vᵀC⁻¹ΣC⁻¹v / vᵀC⁻¹v for each column v of a dictionary, Qⱼ/zⱼ of Wipf 2023, eq. 18.

    Above 1, a latent whose column is fixed would pay if it came back.
    """
    identity = torch.eye(decoder.shape[0], dtype=decoder.dtype, device=decoder.device)
    model_covariance = decoder @ decoder.mT + noise * identity
    columns = dictionary.to(decoder)
    solved = torch.linalg.solve(model_covariance, columns)
    power = torch.sum(columns * solved, 0)
    captured = torch.sum(solved * (sigma.to(decoder) @ solved), 0)
    return torch.where(power > 0, captured / power.clamp_min(np.finfo(float).tiny), 0.0)


def _noise_of(model: Any) -> float | None:
    noise = getattr(model, "noise_variance", None)
    return None if noise is None else float(noise)
