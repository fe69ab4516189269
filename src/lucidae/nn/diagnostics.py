"""Posterior collapse of VAEs: which latents are used, and whether the others' collapse is optimal.

A latent collapses if its posterior becomes equal to its prior.
"""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

import numpy as np
import torch

from lucidae.arrays import scalar, to_numpy
from lucidae.metrics import active_dimensions
from lucidae.moments import SecondMoment
from lucidae.nn.collapse import CollapseReport
from lucidae.nn.hadamard import hadamard_gap
from lucidae.nn.layers import (
    Tensor,
    affine_matrix,
    batches,
    check_tensor,
    device_of,
    evaluation,
)
from lucidae.nn.posteriors import as_gaussian
from lucidae.validation import check_integer, check_number

__all__ = ["active_directions", "collapse_report"]


MOST_ENTRIES = 4096
"""Largest number of features for which the covariance of the data is computed, to compare with a
linear VAE."""


class PosteriorSummary(NamedTuple):
    """Posteriors of all samples, and the second moment of the data."""

    mean: Tensor  # (n, k): posterior means and variances of the k latents
    variance: Tensor
    kl: Tensor  # (k,): mean KL divergence of each latent's marginal posterior to N(0, 1)
    total_kl: float  # mean KL divergence of the joint posterior to N(0, I)
    covariance: Tensor  # (k, k): mean posterior covariance
    # moment of the data; None if they have more than `MOST_ENTRIES` features
    moment: SecondMoment | None
    # mean squared error of the reconstructions from posterior means; None if it was not computed
    mean_square: float | None


def collapse_report(
    model: Any,
    loader: Any,
    *,
    max_variance: float = 0.9,
    min_spread: float = 0.01,
    tolerance: float = 0.05,
    noise_variance: float | None = None,
    gap_samples: int = 0,
) -> CollapseReport:
    """Report how many latents of a variational autoencoder are used, and how many it needs.

    A superfluous latent collapses to its prior: its posterior mean is constant and its variance one
    (Wipf 2023, Definition 3.1 and section 3). A latent is active if the mean over samples of its
    posterior variance is below `max_variance` and the variance over samples of its posterior mean
    is above `min_spread`.

    If the decoder is linear, with matrix W and noise variance γ, the best model is known (Wipf
    2023, Lemma 3.2; Lucas et al. 2019): with model covariance C = WWᵀ + γI and data covariance Σ, a
    latent that is added along a direction v increases the likelihood exactly if vᵀC⁻¹ΣC⁻¹v >
    vᵀC⁻¹v. The collapse of a latent is justified if this holds for none of the directions that it
    could use. With a diagonal posterior covariance the evidence lower bound may collapse a latent
    that the likelihood would use; this collapse is not justified either.

    Whether the decoder is linear is found out by evaluating ``model.decode``, whatever the layers
    are called: it is if decode(z) = b + Wz, up to rounding, at random points near the origin and
    far from it and at posterior means. A model without a method ``decode`` has a linear decoder if
    it has a method ``linear_decoder()`` that returns W, or an ``nn.Linear`` as attribute
    ``decoder``.

    Parameters
    ----------
    model : nn.Module
        Any model with a method ``encode(x)`` that returns a Gaussian posterior over k latents: a
        posterior of this package, a `torch.distributions` Normal (also inside Independent) or
        MultivariateNormal, or a pair (mean, log-variance) of tensors of shape (B, k).
    loader : tensor, or iterable of batches
        Inputs of the model, at least two samples. If a batch is a tuple, its first entry is used.
    max_variance, min_spread : float
        Largest mean posterior variance, and smallest variance of the posterior mean, of an active
        latent.
    tolerance : float, default=0.05
        Amount by which the ratio of vᵀC⁻¹ΣC⁻¹v to vᵀC⁻¹v may exceed 1 before the collapse counts
        as not justified.
    noise_variance : float, optional
        Noise variance γ per entry of the data. By default the attribute ``noise_variance`` of the
        model; if it has none but has a method ``decode(z)``, the mean squared error of the
        reconstructions from posterior means, which is the best γ for this decoder. For a loss
        ``c·‖x − μ‖² + KL``, γ = 1/(2c).
    gap_samples : int, default=0
        Number of samples, the first ones, at which the Hadamard gap of the decoder is computed,
        which answers whether a full posterior covariance would help; see `hadamard_gap`. The model
        then needs a method ``decode``. With 0 it is not computed.

    Returns
    -------
    CollapseReport
        The measured values of each latent, and which latents have collapsed.

    Examples
    --------
    >>> import torch
    >>> from lucidae.nn import DictionaryVAE, collapse_report
    >>> model = DictionaryVAE(torch.eye(2), noise_variance=1.0)
    >>> report = collapse_report(model, torch.randn(50, 2))
    >>> report.n_active
    0

    A plain module that does not use this package, with data of two directions and four latents:

    >>> class Plain(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.encoder, self.decoder = torch.nn.Linear(6, 8), torch.nn.Linear(4, 6)
    ...     def encode(self, x):
    ...         return self.encoder(x).chunk(2, dim=1)  # mean and log-variance
    ...     def decode(self, z):
    ...         return self.decoder(z)
    >>> _ = torch.manual_seed(0)
    >>> x = torch.randn(400, 2) @ torch.randn(2, 6) + 0.1 * torch.randn(400, 6)
    >>> plain = Plain()
    >>> optimizer = torch.optim.Adam(plain.parameters(), lr=0.05)
    >>> for _ in range(300):
    ...     mean, log_variance = plain.encode(x)
    ...     z = mean + torch.randn_like(mean) * (log_variance / 2).exp()
    ...     error = (x - plain.decode(z)).square().sum(1) / (2 * 0.1)
    ...     kl = (log_variance.exp() + mean.square() - 1 - log_variance).sum(1) / 2
    ...     optimizer.zero_grad()
    ...     (error + kl).mean().backward()
    ...     optimizer.step()
    >>> report = collapse_report(plain, x, noise_variance=0.1)
    >>> report.n_directions, report.linear_latents
    (2, 2)
    >>> print(report.advice)
    2: as many as the data need, according to both models.
    """
    check_number(tolerance, "tolerance", low=0.0)
    check_number(max_variance, "max_variance", low=0.0)
    check_number(min_spread, "min_spread", low=0.0)
    if noise_variance is not None:
        check_number(noise_variance, "noise_variance", low=0.0, open_low=True)
    check_integer(gap_samples, "gap_samples", low=0)
    if not isinstance(model, torch.nn.Module) or not callable(getattr(model, "encode", None)):
        raise ValueError(
            f"model is of type {type(model).__name__}, expected an nn.Module with a method encode "
            "that returns a Gaussian posterior, such as lucidae.nn.VAE."
        )
    stated = _noise_of(model) if noise_variance is None else float(noise_variance)
    with evaluation(model):
        found = _gather(model, loader, reconstruct=stated is None)
    noise = found.mean_square if stated is None else stated
    codes = found.mean[:gap_samples]
    count, active = active_dimensions(
        found.mean,
        found.variance,
        max_variance=max_variance,
        min_spread=min_spread,
        return_mask=True,
    )
    gains, useful = _linear_comparison(model, found, active, noise)
    return CollapseReport(
        kl=to_numpy(found.kl),
        variance=to_numpy(found.variance.mean(0)),
        spread=to_numpy(found.mean.var(0, correction=0)),
        active=to_numpy(active),
        n_active=int(count),
        n_directions=active_directions(found.covariance, found.mean, max_variance, min_spread),
        total_kl=found.total_kl,
        n_samples=int(found.mean.shape[0]),
        gains=None if gains is None else to_numpy(gains),
        linear_active=None if useful is None else min(useful, int(found.mean.shape[1])),
        noise_variance=noise,
        max_variance=max_variance,
        min_spread=min_spread,
        tolerance=tolerance,
        linear_latents=useful,
        noise_estimated=stated is None and noise is not None,
        gap=hadamard_gap(model, codes=codes, noise_variance=noise) if gap_samples else None,
    )


def active_directions(
    covariance: Tensor, mean: Tensor, max_variance: float = 0.9, min_spread: float = 0.01
) -> int:
    """Return the number of active directions, rather than active coordinates, of the latents.

    A direction is active if the posterior variance along it is below `max_variance` and the
    variance of the posterior means along it is above `min_spread`. With a full covariance the
    rotation of the latents is arbitrary, because the decoder can undo it. The directions are
    therefore the eigenvectors of the mean posterior covariance, which for a diagonal covariance are
    the coordinates.

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
        Number of active directions.

    Examples
    --------
    >>> import torch
    >>> from lucidae.nn import active_directions
    >>> turn = torch.tensor([[0.6, -0.8], [0.8, 0.6]])
    >>> mean = torch.tensor([[1.0, 0.0], [-1.0, 0.0]]) @ turn.T
    >>> active_directions(turn @ torch.diag(torch.tensor([0.1, 1.0])) @ turn.T, mean)
    1
    """
    check_tensor(mean, "mean", ("n", "k"))
    check_tensor(covariance, "covariance", (mean.shape[1], mean.shape[1]))
    for name, values in (("mean", mean), ("covariance", covariance)):
        if not torch.isfinite(values).all():
            raise ValueError(
                f"{name} contains NaN or infinity: the training has diverged. Train again with a "
                "smaller learning rate."
            )
    variances, axes = torch.linalg.eigh(covariance.double())
    rotated = mean.double() @ axes
    spread = rotated.var(0, correction=0)
    return int(((variances < max_variance) & (spread > min_spread)).sum())


def _gather(model: Any, loader: Any, reconstruct: bool) -> PosteriorSummary:
    """Return the posteriors of all samples and the second moment of the data, from one pass.

    The error of the reconstructions is computed if `reconstruct` is True and the model can decode.
    """
    means, variances, kls, totals, errors = [], [], [], [], []
    covariance: Tensor = 0.0
    moment: SecondMoment | None = None
    device = device_of(model)
    for batch in batches(loader, "loader"):
        x = batch.to(device, _dtype_of(model, batch))
        posterior = _posterior(model, x)
        means.append(posterior.mean)
        variances.append(posterior.variance)
        kls.append(posterior.marginal_kl())
        totals.append(posterior.kl())
        covariance = covariance + posterior.covariance.double().sum(0)
        if reconstruct:
            errors.append(_squared_errors(model, posterior.mean, x))
        rows = x.flatten(1)
        if rows.shape[1] <= MOST_ENTRIES:
            moment = SecondMoment.of(rows) if moment is None else moment.update(rows)
    count = sum(len(mean) for mean in means)
    if count < 2:
        raise ValueError("loader contains one sample, expected at least two to compute variances.")
    return PosteriorSummary(
        torch.cat(means),
        torch.cat(variances),
        torch.cat(kls).mean(0),
        scalar(torch.cat(totals).mean()),
        covariance / count,
        moment,
        scalar(torch.cat(errors).mean()) if errors and None not in errors else None,
    )


def _squared_errors(model: Any, codes: Tensor, x: Tensor) -> Tensor | None:
    """Return the mean squared error of each reconstruction from codes, in double precision.

    The result is None if the model has no method ``decode``, or if that returns anything else than
    a tensor in the shape of the data.
    """
    decode = getattr(model, "decode", None)
    decoded = decode(codes) if callable(decode) else None
    if not isinstance(decoded, torch.Tensor) or decoded.shape != x.shape:
        return None
    return (decoded.double() - x.double()).square().flatten(1).mean(1)


def _dtype_of(model: Any, batch: Tensor) -> Any:
    """Return the floating dtype of a model's parameters; the dtype of the batch if it has none."""
    kinds = (part.dtype for part in model.parameters() if part.is_floating_point())
    return next(kinds, batch.dtype)


def _posterior(model: Any, x: Tensor) -> Any:
    """Return the posterior of a batch x from ``model.encode``.

    An error is raised unless it is a Gaussian over k latents with a mean of shape (B, k).
    """
    posterior = as_gaussian(model.encode(x))
    needed = ("mean", "variance", "covariance", "kl", "marginal_kl")
    missing = [name for name in needed if not hasattr(posterior, name)]
    if missing:
        raise ValueError(
            f"model.encode returned an object of type {type(posterior).__name__} without "
            f"{', '.join(missing)}, expected a posterior such as lucidae.nn.FullGaussian, a Normal "
            "or MultivariateNormal of torch.distributions, or a pair (mean, log-variance)."
        )
    check_tensor(posterior.mean, "the posterior mean of model.encode", (len(x), "k"))
    return posterior


def _linear_comparison(
    model: Any, found: PosteriorSummary, active: Tensor, noise: float | None
) -> tuple[Tensor | None, int | None]:
    """Return the likelihood ratio of each latent, and how many latents a linear VAE would use.

    A ratio above 1 means that using the latent would increase the likelihood (see
    `CollapseReport.gains`); the ratios are None unless the decoder is linear. `found` contains the
    posteriors of all samples, `active` says which latents are active, and `noise` is the noise
    variance of the model and of the linear VAE. Both results are None if the noise variance is not
    known, or if there are too many features.
    """
    if found.moment is None or noise is None:
        return None, None
    sigma = found.moment.covariance
    useful = int((torch.linalg.eigvalsh(sigma) > noise).sum())
    decoder = linear_decoder_of(model, found.mean)
    if decoder is None or len(decoder) != len(sigma):
        return None, useful
    dictionary = getattr(model, "dictionary", None)
    if dictionary is None:
        gain = free_gain(decoder[:, active].double(), noise, sigma)
        return gain.expand(decoder.shape[1]), useful
    return column_gains(decoder.double(), noise, sigma, dictionary), useful


def linear_decoder_of(model: Any, codes: Tensor) -> Tensor | None:
    """Return the matrix (d × k) of a model's decoder; None if the decoder is not linear.

    d is the number of features, k the number of latents, and `codes` of shape (n, k) are latents.
    If the model has a method ``decode``, it is evaluated to find the matrix (see `affine_matrix`).
    Otherwise the matrix is taken from its method ``linear_decoder`` or its layer ``decoder``.
    """
    decode = getattr(model, "decode", None)
    if callable(decode):
        if not _takes_one(decode):
            return None
        with evaluation(model):
            return affine_matrix(decode, codes.to(_dtype_of(model, codes)))
    if hasattr(model, "linear_decoder"):
        return model.linear_decoder().detach()
    decoder = getattr(model, "decoder", None)
    return decoder.weight.detach() if isinstance(decoder, torch.nn.Linear) else None


def _takes_one(function: Any) -> bool:
    """Return whether a function, such as a decoder, can be called with latents alone."""
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        return False
    except ValueError:  # functions of torch itself have no signature
        return True
    return True


def free_gain(decoder: Tensor, noise: float, sigma: Tensor) -> Tensor:
    """Return the largest variance of the data outside the decoder's range, relative to the noise.

    A latent that has collapsed to its prior, but whose decoder column can be chosen freely, would
    increase the likelihood if the result exceeds 1. Outside the range of the decoder's matrix
    (`decoder`) the model covariance is C = γI with the noise variance γ (`noise`), so that
    vᵀC⁻¹ΣC⁻¹v / vᵀC⁻¹v = vᵀΣv/(γ vᵀv) for a direction v and the data covariance Σ (`sigma`). Its
    maximum is the largest eigenvalue of Σ, restricted to the complement of that range, divided by
    γ.
    """
    basis = torch.linalg.svd(decoder, full_matrices=True)[0][:, decoder.shape[1] :]
    outside = basis.mT @ sigma.to(basis) @ basis
    return torch.linalg.eigvalsh(outside)[-1] / noise if len(outside) else sigma.new_zeros(())


def column_gains(decoder: Tensor, noise: float, sigma: Tensor, dictionary: Tensor) -> Tensor:
    """Return the ratio vᵀC⁻¹ΣC⁻¹v / vᵀC⁻¹v for each column v of a dictionary.

    If the ratio exceeds 1, using a latent with this fixed column would increase the likelihood. C
    is the covariance of the model, from its matrix `decoder` and its noise variance `noise`, and Σ
    that of the data (`sigma`). The log-likelihood −½(log|C| + tr C⁻¹Σ) along C + t vvᵀ has the
    derivative ½(vᵀC⁻¹ΣC⁻¹v − vᵀC⁻¹v) at t = 0.
    """
    identity = torch.eye(decoder.shape[0], dtype=decoder.dtype, device=decoder.device)
    model_covariance = decoder @ decoder.mT + noise * identity
    columns = dictionary.to(decoder)
    solved = torch.linalg.solve(model_covariance, columns)
    power = torch.sum(columns * solved, 0)
    captured = torch.sum(solved * (sigma.to(decoder) @ solved), 0)
    return torch.where(power > 0, captured / power.clamp_min(np.finfo(float).tiny), 0.0)


def _noise_of(model: Any) -> float | None:
    """Return the attribute ``noise_variance`` of a model as a float; None if it has none."""
    noise = getattr(model, "noise_variance", None)
    return None if noise is None else float(noise)
