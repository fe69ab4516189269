"""The Hadamard gap: how much a diagonal posterior covariance lowers the ELBO of a given decoder."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from lucidae.arrays import to_numpy
from lucidae.cards import card, facts
from lucidae.nn.layers import Tensor, check_module, check_tensor, evaluation, full_precision
from lucidae.validation import check_choice, check_number

__all__ = ["HadamardGap", "gap_of_gram", "hadamard_gap", "jacobian_of"]

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
    noise = _noise_variance(model, noise_variance)
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
    identity = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    # With the correlations of I + C as matrix, the gap is −½ log of its determinant: large
    # logarithms that cancel are not formed, and orthogonal columns give exactly zero.
    scale = torch.rsqrt(1 + torch.diagonal(gram, dim1=-2, dim2=-1))
    correlations = (gram + identity) * scale[..., None] * scale[..., None, :]
    correlations = correlations - torch.diag_embed(torch.diagonal(correlations, dim1=-2, dim2=-1))
    log_determinant = torch.linalg.slogdet(correlations + identity).logabsdet
    return torch.clamp(log_determinant, max=0.0).abs() / 2


def _noise_variance(model: Any, given: float | None) -> float:
    """Return the noise variance `given` or, if it is None, the attribute of the model.

    A model without the attribute ``noise_variance`` is then an error.
    """
    found = getattr(model, "noise_variance", None) if given is None else given
    if found is None:
        raise ValueError(
            f"model is of type {type(model).__name__} and has no attribute noise_variance: give "
            "noise_variance, the variance of the Gaussian noise of the decoder."
        )
    found = float(found) if given is None else found  # that of a model may be a tensor
    return check_number(found, "noise_variance", low=0.0, open_low=True)


def _decoder_and_codes(model: Any, x: Any, codes: Any) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """Return the function that decodes latents, and the latents, of shape (n, k).

    They come from the arguments of `hadamard_gap` of the same names: the latents are `codes` or, if
    that is None, the posterior means of the inputs `x`.
    """
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
        codes = _posterior_mean(encode(_inputs(x)))
    codes = _finite(check_tensor(codes, "codes", ("n", "k")).detach())
    decoded = decode(codes[:1])
    if not isinstance(decoded, torch.Tensor) or decoded.ndim < 2 or len(decoded) != 1:
        raise ValueError(
            f"the decoder returned {getattr(decoded, 'shape', type(decoded).__name__)} for one row "
            "of latents, expected a tensor of shape (1, …)."
        )
    return decode, codes


def _inputs(x: Any) -> Tensor:
    """Return the inputs of a model if they are a tensor of shape (n, …); else raise an error."""
    if not isinstance(x, torch.Tensor) or x.ndim < 2:
        given = (
            f"x has shape {tuple(x.shape)}"
            if isinstance(x, torch.Tensor)
            else f"x is {'None' if x is None else f'of type {type(x).__name__}'}"
        )
        raise ValueError(
            f"{given} and codes is None, expected one of them: x, inputs of the model as a tensor "
            "of shape (n, …) with at least two axes, or codes, latents as a tensor of shape (n, k)."
        )
    return check_tensor(x, "x", (..., "n", "features"))


def _posterior_mean(posterior: Any) -> Tensor:
    """Return the posterior means (n, k) from the output of ``encode``.

    The output may be a posterior, a tuple that begins with the means, or the means.
    """
    mean = posterior if isinstance(posterior, torch.Tensor) else getattr(posterior, "mean", None)
    if not isinstance(mean, torch.Tensor) and isinstance(posterior, tuple | list) and posterior:
        mean = posterior[0]
    return check_tensor(mean, "the posterior mean of model.encode", ("n", "k"))


def _finite(codes: Tensor) -> Tensor:
    """Return latents in float32 or float64 if they are finite; otherwise raise an error."""
    if not torch.isfinite(codes).all():
        raise ValueError("the latents contain NaN or infinity. Remove those samples first.")
    return full_precision(codes)


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
    decoded, pull_back = torch.func.vjp(decode, z)
    gram = z.new_zeros((len(z), z.shape[1], z.shape[1]), dtype=torch.float64)
    for index in range(decoded[0].numel()):
        cotangent = torch.zeros_like(decoded)
        cotangent.view(len(z), -1)[:, index] = 1.0
        row = pull_back(cotangent)[0].double()
        gram += row[:, :, None] * row[:, None, :]
    return gram


_GRAMS: dict[str, Callable[..., Tensor]] = {"forward": _gram_forward, "reverse": _gram_reverse}
