"""Posterior collapse of VAEs: which latents are used, and whether the others' collapse is optimal.

A latent collapses if its posterior becomes equal to its prior.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import torch

from lucidae.arrays import to_numpy
from lucidae.cards import card, plain_table, table
from lucidae.metrics import active_dimensions
from lucidae.moments import SecondMoment
from lucidae.nn.layers import (
    Tensor,
    affine_matrix,
    batches,
    check_tensor,
    device_of,
    evaluation,
)
from lucidae.nn.posteriors import HadamardGap, as_gaussian, hadamard_gap, marginal_kl
from lucidae.validation import check_integer, check_number, install_command

MOST_ENTRIES = 4096
"""Largest number of features for which the covariance of the data is computed, to compare with a
linear VAE."""


MOST_COVARIANCES = 2**24
"""Largest number of entries of posterior covariances that are kept, those of the first samples."""

COUPLED = 1e-6
"""Latents are coupled if the mean posterior covariance of two of them exceeds this multiple of
their deviations; smaller ones are rounding errors of float32."""


class PosteriorSummary(NamedTuple):
    """Posteriors of all samples, and the second moment of the data."""

    mean: Tensor  # (n, k): posterior means and variances of the k latents
    variance: Tensor
    kl: Tensor  # (k,): mean KL divergence of each latent's marginal posterior to N(0, 1)
    first: Tensor  # (q, k, k): posterior covariances of the first samples
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

    A decoder can undo any rotation of the latents, so that with a full posterior covariance the
    coordinates mean nothing: latents are then the directions that the mean posterior covariance
    has as eigenvectors. Without coupling, and if the columns of the decoder are fixed, they are the
    coordinates. All numbers of the report use these latents.

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
    >>> report.n_active, report.linear_latents
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
    stated = getattr(model, "noise_variance", None) if noise_variance is None else noise_variance
    stated = None if stated is None else float(stated)
    with evaluation(model):
        found = _gather(model, loader, reconstruct=stated is None)
    noise = found.mean_square if stated is None else stated
    codes = found.mean[:gap_samples]
    count = active_dimensions(
        found.mean, found.variance, max_variance=max_variance, min_spread=min_spread
    )
    deviations = found.covariance.diagonal().sqrt()
    coupling = (found.covariance / torch.outer(deviations, deviations)).fill_diagonal_(0.0)
    if hasattr(model, "dictionary") or not bool((coupling.abs() > COUPLED).any()):
        axes, mean, kl = None, found.mean, found.kl
        variance = found.variance.mean(0)
    else:  # the directions; their divergence is that of the first samples
        variance, axes = torch.linalg.eigh(found.covariance)
        mean = found.mean.double() @ axes
        along = torch.einsum("ia,nij,ja->na", axes, found.first.double(), axes)
        kl = marginal_kl(mean[: len(along)], along).mean(0)
    spread = mean.var(0, correction=0)
    active = (variance < max_variance) & (spread > min_spread)
    gains, useful = _linear_comparison(model, found, axes, active, noise)
    return CollapseReport(
        kl=to_numpy(kl),
        variance=to_numpy(variance),
        spread=to_numpy(spread),
        active=to_numpy(active),
        total_kl=found.total_kl,
        n_samples=int(found.mean.shape[0]),
        n_coordinates=int(count),
        gains=None if gains is None else to_numpy(gains),
        linear_latents=useful,
        noise_variance=noise,
        noise_estimated=stated is None and noise is not None,
        max_variance=max_variance,
        min_spread=min_spread,
        tolerance=tolerance,
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
    parts, errors = [], []
    covariance: Tensor = 0.0
    first: list[Tensor] = []
    moment: SecondMoment | None = None
    device = device_of(model)
    for batch in batches(loader, "loader"):
        x = batch.to(device, _dtype_of(model, batch))
        posterior = _posterior(model, x)
        parts.append((posterior.mean, posterior.variance, posterior.marginal_kl(), posterior.kl()))
        matrices = posterior.covariance
        covariance = covariance + matrices.double().sum(0)
        kept = sum(len(part) for part in first) * matrices[0].numel()
        if kept < MOST_COVARIANCES:
            first.append(matrices[: max(1, (MOST_COVARIANCES - kept) // matrices[0].numel())])
        if reconstruct:
            errors.append(_squared_errors(model, posterior.mean, x))
        rows = x.flatten(1)
        if rows.shape[1] <= MOST_ENTRIES:
            moment = SecondMoment.of(rows) if moment is None else moment.update(rows)
    mean, variance, kl, total = (torch.cat(part) for part in zip(*parts, strict=True))
    if len(mean) < 2:
        raise ValueError("loader contains one sample, expected at least two to compute variances.")
    return PosteriorSummary(
        mean,
        variance,
        kl.mean(0),
        torch.cat(first),
        float(total.mean()),
        covariance / len(mean),
        moment,
        float(torch.cat(errors).mean()) if errors and None not in errors else None,
    )


def _squared_errors(model: Any, codes: Tensor, x: Tensor) -> Tensor | None:
    """Return the mean squared error of each reconstruction from codes, in double precision.

    None if the model cannot decode, or decodes to anything else than a tensor in the shape of the
    data.
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
    model: Any, found: PosteriorSummary, axes: Tensor | None, active: Tensor, noise: float | None
) -> tuple[Tensor | None, int | None]:
    """Return the likelihood ratio of each latent, and how many latents a linear VAE would use.

    The ratios (see `CollapseReport.gains`) are None unless the decoder is linear. Both results are
    None if the noise variance is not known, or if there are too many features.
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
        columns = decoder.double() if axes is None else decoder.double() @ axes
        gain = free_gain(columns[:, active], noise, sigma)
        return gain.expand(decoder.shape[1]), useful
    return column_gains(decoder.double(), noise, sigma, dictionary), useful


def linear_decoder_of(model: Any, codes: Tensor) -> Tensor | None:
    """Return the matrix (d × k) of a model's decoder; None if the decoder is not linear.

    What a method ``decode`` computes decides (see `affine_matrix`). Without one, the matrix is that
    of its method ``linear_decoder`` or its layer ``decoder``.
    """
    decode = getattr(model, "decode", None)
    if callable(decode):
        try:  # with latents alone
            inspect.signature(decode).bind(None)
        except TypeError:
            return None
        except ValueError:  # functions of torch itself have no signature
            pass
        with evaluation(model):
            return affine_matrix(decode, codes.to(_dtype_of(model, codes)))
    if hasattr(model, "linear_decoder"):
        return model.linear_decoder().detach()
    decoder = getattr(model, "decoder", None)
    return decoder.weight.detach() if isinstance(decoder, torch.nn.Linear) else None


def free_gain(decoder: Tensor, noise: float, sigma: Tensor) -> Tensor:
    """Return the largest variance of the data outside the decoder's range, relative to the noise.

    A latent that has collapsed to its prior, but whose decoder column can be chosen freely, would
    increase the likelihood if the result exceeds 1: outside the range of the decoder the model
    covariance is C = γI, so that vᵀC⁻¹ΣC⁻¹v / vᵀC⁻¹v = vᵀΣv/(γ vᵀv) for a direction v and the data
    covariance Σ. Its maximum is the largest eigenvalue of Σ on the complement of that range,
    over γ.
    """
    basis = torch.linalg.svd(decoder, full_matrices=True)[0][:, decoder.shape[1] :]
    outside = basis.mT @ sigma.to(basis) @ basis
    return torch.linalg.eigvalsh(outside)[-1] / noise if len(outside) else sigma.new_zeros(())


def column_gains(decoder: Tensor, noise: float, sigma: Tensor, dictionary: Tensor) -> Tensor:
    """Return the ratio vᵀC⁻¹ΣC⁻¹v / vᵀC⁻¹v for each column v of a dictionary.

    If it exceeds 1, using a latent with this fixed column would increase the likelihood: along
    C + t vvᵀ the log-likelihood −½(log|C| + tr C⁻¹Σ) has the derivative ½(vᵀC⁻¹ΣC⁻¹v − vᵀC⁻¹v) at
    t = 0.
    """
    identity = torch.eye(decoder.shape[0], dtype=decoder.dtype, device=decoder.device)
    model_covariance = decoder @ decoder.mT + noise * identity
    columns = dictionary.to(decoder)
    solved = torch.linalg.solve(model_covariance, columns)
    power = torch.sum(columns * solved, 0)
    captured = torch.sum(solved * (sigma.to(decoder) @ solved), 0)
    return torch.where(power > 0, captured / power.clamp_min(np.finfo(float).tiny), 0.0)


_WORDS = {True: "justified", False: "not justified", None: "not known"}


@dataclass(frozen=True, slots=True, eq=False)
class CollapseReport:
    """Which latents of a VAE are used, and whether the collapse of the others is optimal.

    A latent collapses if its posterior becomes equal to its prior. The report is the result of
    `lucidae.nn.collapse_report`.

    Parameters
    ----------
    kl : ndarray of shape (k,)
        Mean KL divergence of each latent's marginal posterior to N(0, 1), in nats.
    variance : ndarray of shape (k,)
        Mean posterior variance of each latent.
    spread : ndarray of shape (k,)
        Variance over samples of the posterior mean of each latent.
    active : ndarray of bool, shape (k,)
        Which latents carry information about the data.
    total_kl : float
        Mean KL divergence of the joint posterior to N(0, I), in nats; larger than the sum of `kl`
        if latents are correlated.
    n_samples : int
        Number of samples.
    n_coordinates : int
        Number of coordinates that are active (Wipf 2023, Definition 3.1). It differs from
        `n_active` if the posterior covariance is full, and depends on the rotation of the latents.
    gains : ndarray of shape (k,) or None
        For a linear decoder, the largest ratio vᵀC⁻¹ΣC⁻¹v / vᵀC⁻¹v over the decoder columns v that
        each latent could use, with the covariance C of the model and Σ of the data. Above 1 the
        likelihood would increase, so that the collapse of the latent is not justified. None if the
        decoder is not linear or γ is not known.
    linear_latents : int or None
        Number of latents that the best linear VAE of the same noise variance γ would use: the
        number of eigenvalues of the data covariance above γ. None if γ is not known or there are
        too many features.
    noise_variance : float or None
        Noise variance γ of the decoder; None if the model has none.
    max_variance, min_spread, tolerance : float
        The settings of `collapse_report` with which the report was made.
    noise_estimated : bool, default=False
        Whether `noise_variance` is the mean squared error of the reconstructions, because the
        model does not state its noise variance.
    gap : HadamardGap, optional
        What a full posterior covariance would gain with this decoder, in nats; None if it was not
        computed.

    Examples
    --------
    >>> import numpy as np
    >>> from lucidae.nn import CollapseReport
    >>> report = CollapseReport(
    ...     kl=np.array([2.0, 0.0]), variance=np.array([0.1, 1.0]), spread=np.array([0.9, 0.0]),
    ...     active=np.array([True, False]), total_kl=2.0, n_samples=100, n_coordinates=1,
    ...     gains=np.array([0.5, 0.5]), linear_latents=1, noise_variance=0.1,
    ...     max_variance=0.9, min_spread=0.01, tolerance=0.05)
    >>> report.justified
    (None, True)
    >>> print(report)
    1 of 2 latents active, total KL 2.00 nats over 100 samples, γ = 0.1
    latent    KL  variance  spread  active  collapse
         0  2.00      0.10    0.90  yes
         1  0.00      1.00    0.00  no      justified
    Active: mean posterior variance < 0.9 and variance of the mean > 0.01.
    The best linear VAE of this noise variance would use 1 latent.
    How many latents? 1: as many as the data need, according to both models.
    """

    kl: np.ndarray[Any, Any]
    variance: np.ndarray[Any, Any]
    spread: np.ndarray[Any, Any]
    active: np.ndarray[Any, Any]
    total_kl: float
    n_samples: int
    n_coordinates: int
    gains: np.ndarray[Any, Any] | None
    linear_latents: int | None
    noise_variance: float | None
    max_variance: float
    min_spread: float
    tolerance: float
    noise_estimated: bool = False
    gap: HadamardGap | None = None

    @property
    def n_active(self) -> int:
        """Number of active latents."""
        return int(np.sum(self.active))

    @property
    def justified(self) -> tuple[bool | None, ...]:
        """Whether the collapse of each latent to its prior is optimal; None for active latents.

        It is also None if this is not known, because the decoder is not linear.
        """
        if self.gains is None:
            return (None,) * len(self.kl)
        fine = self.gains <= 1.0 + self.tolerance
        return tuple(None if used else bool(ok) for used, ok in zip(self.active, fine, strict=True))

    def __str__(self) -> str:
        return self.summary()

    def summary(self) -> str:
        """Return the report as a table in plain text."""
        lines = plain_table(self._columns(), right=("latent", "KL", "variance", "spread"))
        return "\n".join([self.headline, *lines, *self.notes])

    @property
    def headline(self) -> str:
        """One line: number of active latents, KL divergence, samples and noise variance."""
        noise = "" if self.noise_variance is None else f", γ = {self.noise_variance:.3g}"
        noise += " (estimated)" if self.noise_estimated else ""
        return (
            f"{self.n_active} of {_count(len(self.kl), 'latent')} active, total KL "
            f"{self.total_kl:.2f} nats over {_count(self.n_samples, 'sample')}{noise}"
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on active latents, on the comparison with a linear VAE, and the advice.

        If the Hadamard gap of the decoder was computed, the last sentence says whether a full
        posterior covariance would help.
        """
        meaning = (
            f"Active: mean posterior variance < {self.max_variance:g} and variance of the mean > "
            f"{self.min_spread:g}."
        )
        if self.n_coordinates != self.n_active:
            meaning += (
                " The posterior covariance is full, so latents are its principal directions: they "
                f"are spread over {_count(self.n_coordinates, 'active coordinate')}, which a "
                "rotation that the decoder undoes would change."
            )
        if self.linear_latents is None:
            unknown = "the noise variance is not known, or there are too many features"
            compared = f"No comparison with a linear VAE: {unknown}."
        else:
            number = _count(self.linear_latents, "latent")
            compared = f"The best linear VAE of this noise variance would use {number}."
            if self.gains is None:
                compared += (
                    " Whether a collapse is justified is not known: the decoder is not linear."
                )
        found = meaning, compared, f"How many latents? {self.advice}"
        return found if self.gap is None else (*found, self.gap.answer)

    @property
    def advice(self) -> str:
        """How many latents the model needs, and why: one or two sentences.

        The number of active latents is compared with the number k of latents that the model has,
        and with the number L of eigenvalues of the data covariance above the noise variance γ, the
        number that probabilistic PCA would use at this noise (Tipping and Bishop 1999; Wipf 2023,
        Lemma 3.2).
        """
        used, total, linear = self.n_active, len(self.kl), self.linear_latents
        if not used:
            return self._advice_if_collapsed
        others = ""
        if linear is not None and linear != used:
            others = f" A linear decoder with this noise would need {linear}."
        if used >= total:
            enough = linear is not None and linear <= total
            return f"{total if enough else f'More than {total} may help'}: all are used.{others}"
        if used == linear:
            return f"{used}: as many as the data need, according to both models."
        if linear is not None and used < linear and False in self.justified:
            return (
                f"{min(linear, total)}: the model uses {used}, and the collapse of others is not "
                "justified. Train longer, or with a smaller noise variance at first."
            )
        left = total - used
        rest = "other one carries" if left == 1 else f"other {left} carry"
        rest = f"{used} of {total}: the {rest} no information.{others}"
        if linear is not None and used < linear:
            rest += (
                " The decoder describes the data with fewer, or training has not found the "
                "others: compare with a run that starts with a smaller noise variance."
            )
        return rest

    @property
    def _advice_if_collapsed(self) -> str:
        """Advice in one or two sentences for a model that uses none of its latents."""
        if self.linear_latents == 0:
            return (
                "None: no direction of the data has more variance than the noise. A smaller noise "
                "variance, or a smaller weight of the KL divergence, makes latents useful."
            )
        linear = self.linear_latents
        known = "" if linear is None else f", a linear VAE of this noise {linear}"
        return (
            f"The model uses none of {len(self.kl)}{known}: all posteriors have collapsed. Start "
            "with a small weight of the KL divergence or a small noise variance, and train again."
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the report as a dictionary of values that JSON can represent."""
        found = {part.name: getattr(self, part.name) for part in fields(self)}
        found |= {
            "justified": list(self.justified),
            "n_active": self.n_active,
            "advice": self.advice,
            "gap": None if self.gap is None else self.gap.to_dict(),
        }
        return {
            name: value.tolist() if isinstance(value, np.ndarray) else value
            for name, value in found.items()
        }

    def plot(self, ax: Any = None) -> Any:
        """Draw the posterior variance and the spread of the mean of each latent.

        Latents are sorted by their variance; a line shows below which variance they are active.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            Where to draw; a new figure by default.

        Returns
        -------
        matplotlib Axes
            With one bar and one point for each latent.
        """
        if ax is None:
            try:
                from matplotlib import pyplot as plt
            except ImportError as error:
                raise ImportError(f"plot needs matplotlib: {install_command('cli')}") from error
            ax = plt.subplots(figsize=(6.4, 3.4), layout="constrained")[1]
        order = np.argsort(self.variance, kind="stable")
        places, used = np.arange(len(order)), self.active[order]
        variance = self.variance[order]
        ax.bar(places[used], variance[used], color="C0", label="active")
        ax.bar(places[~used], variance[~used], color="0.75", label="collapsed")
        ink = ax.xaxis.label.get_color()  # seen on a light and on a dark ground
        ax.plot(places, self.spread[order], ".", color=ink, label="variance of the posterior mean")
        ax.axhline(self.max_variance, color="C3", linewidth=1, linestyle="--")
        ax.set(xlabel="latent, sorted", ylabel="mean posterior variance", title=self.headline)
        ax.title.set_fontsize("medium")
        ax.set_ylim(0.0, 1.08 * max(1.0, float(np.max(self.variance)), float(np.max(self.spread))))
        ax.xaxis.get_major_locator().set_params(integer=True)
        ax.figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize="small")
        return ax

    def _repr_html_(self) -> str:
        classes = ["active" if used else "collapsed" for used in self.active]
        return card(self.headline, table(self._columns(), classes=classes, most=None), *self.notes)

    def _columns(self) -> dict[str, list[str]]:
        """Return the table of latents as text."""
        reasons = zip(self.active, self.justified, strict=True)
        return {
            "latent": [str(index) for index in range(len(self.kl))],
            "KL": [f"{value:.2f}" for value in self.kl],
            "variance": [f"{value:.2f}" for value in self.variance],
            "spread": [f"{value:.2f}" for value in self.spread],
            "active": ["yes" if used else "no" for used in self.active],
            "collapse": ["" if used else _WORDS[justified] for used, justified in reasons],
        }


def _count(number: int, unit: str) -> str:
    """Return a number with its unit, such as "1 latent" or "2 latents"."""
    return f"{number} {unit}{'' if number == 1 else 's'}"
