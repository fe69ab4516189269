"""Nested dropout, losses of all prefixes of the latents, and ordering of a trained bottleneck."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import nn

from lucidae.arrays import eigh_descending
from lucidae.arrays.eigen import fix_signs
from lucidae.linear.methods import geometric_prior, uniform_prior
from lucidae.moments import SecondMoment
from lucidae.nn.layers import (
    Tensor,
    batches,
    check_bottleneck,
    check_module,
    check_tensor,
    without_autocast,
)
from lucidae.validation import check_choice, check_integer

__all__ = ["NestedDropout", "order_dimensions", "prefix_losses"]

PRIORS: dict[str, Callable[[int], Any]] = {"geometric": geometric_prior, "uniform": uniform_prior}
DRAWS = ("sample", "batch")


class NestedDropout(nn.Module):
    """Set all latents after a random prefix to zero, so that training orders them by importance.

    While training, a length b is drawn from `prior` and latents b + 1, …, k are set to zero
    (Rippel et al. 2014). A linear autoencoder that is trained in this way converges to the
    ordered principal components (Bao et al. 2020, Theorem 2). In evaluation mode the first
    `prefix` latents are used, or all if `prefix` is None.

    Lengths come from torch's generator of the device. In a distributed training each process draws
    for its own samples: give the processes different seeds, or equal ones if ``draw="batch"`` is to
    use one length in all of them.

    Parameters
    ----------
    dim : int
        Number k of latents.
    prior : {"geometric", "uniform"} or array of shape (k,), default="geometric"
        Probabilities of the lengths 1, …, k. ``"geometric"`` is the prior of Bao et al. 2020
        with ratio 0.9. Latents are identifiable only if every length has a positive probability.
    draw : {"sample", "batch"}, default="sample"
        ``"sample"`` draws one length for each sample (first axis), ``"batch"`` one for the whole
        batch.
    axis : int, default=-1
        Axis of the latents; 1 for the channels of images.
    prefix : int, optional
        Number of latents used in evaluation mode; may be set later.

    Examples
    --------
    >>> import torch
    >>> from lucidae.nn import NestedDropout
    >>> layer = NestedDropout(4).eval()
    >>> layer(torch.ones(1, 4), prefix=2)
    tensor([[1., 1., 0., 0.]])
    """

    def __init__(
        self,
        dim: int,
        prior: Any = "geometric",
        *,
        draw: str = "sample",
        axis: int = -1,
        prefix: int | None = None,
    ) -> None:
        super().__init__()
        self.dim = check_integer(dim, "dim", low=1)
        self.draw = check_choice(draw, "draw", DRAWS)
        self.axis = check_integer(axis, "axis", low=-64, high=63)
        self.prefix = None if prefix is None else check_integer(prefix, "prefix", low=1, high=dim)
        probabilities = torch.as_tensor(prefix_prior(prior, dim), dtype=torch.get_default_dtype())
        self.register_buffer("prior", probabilities)

    def forward(self, codes: Tensor, prefix: int | None = None) -> Tensor:
        """Return the codes with all latents after a prefix set to zero.

        The length of the prefix is `prefix` if given. Otherwise it is random in training mode, and
        the attribute `prefix` in evaluation mode (all latents if that is None).
        """
        self._check(codes)
        if prefix is None and self.training:
            return self._truncate(codes, self.draw_lengths(codes))
        length = self.prefix if prefix is None else prefix
        if length is None:
            return codes
        return self._truncate(codes, check_integer(length, "prefix", low=1, high=self.dim))

    def draw_lengths(self, codes: Tensor) -> Tensor:
        """Return random prefix lengths, shaped to broadcast over `codes`.

        A prefix of length b consists of the first b latents. One length is drawn for each sample,
        or one for all, according to the setting `draw`.
        """
        count = codes.shape[0] if self.draw == "sample" and codes.ndim > 1 else 1
        # Inverse of the distribution function. Without its last value, which rounding may leave
        # below 1, no draw exceeds k.
        edges = torch.cumsum(self.prior, 0)[:-1]
        drawn = torch.rand(count, dtype=edges.dtype, device=edges.device)
        lengths = 1 + torch.searchsorted(edges, drawn, right=True)
        return lengths.reshape((count,) + (1,) * (codes.ndim - 1))

    def extra_repr(self) -> str:
        """Return the settings that are shown when the module is printed."""
        return f"dim={self.dim}, draw={self.draw!r}, axis={self.axis}, prefix={self.prefix}"

    def _truncate(self, codes: Tensor, lengths: Any) -> Tensor:
        # Latent i (from 0) belongs to a prefix of length b when i < b; the mask broadcasts one
        # length per sample over all other axes.
        """Return the codes with all latents after the first `lengths` latents set to zero."""
        shape = [1] * codes.ndim
        shape[self.axis] = self.dim
        positions = torch.arange(self.dim, device=codes.device).reshape(shape)
        return codes.masked_fill(positions >= lengths, 0.0)

    def _check(self, codes: Tensor) -> None:
        """Raise an error unless `codes` is a tensor with `dim` latents on the axis `axis`."""
        check_tensor(codes, "codes", (...,), self.prior)
        if not -codes.ndim <= self.axis < codes.ndim or codes.shape[self.axis] != self.dim:
            raise ValueError(
                f"codes have shape {tuple(codes.shape)}, expected {self.dim} latents "
                f"on axis {self.axis}."
            )


def prefix_prior(prior: Any, dim: int) -> np.ndarray[Any, Any]:
    """Return the probabilities of the prefix lengths 1, …, `dim` from a name or an array.

    A prefix of length b consists of the first b latents. An array that is not a probability
    distribution is an error.
    """
    if isinstance(prior, str):
        return np.asarray(PRIORS[check_choice(prior, "prior", PRIORS)](dim), dtype=float)
    try:
        probabilities = real_array(prior)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"prior={prior!r} was given, expected 'geometric', 'uniform', or an array with the "
            "probability of each number of leading latents."
        ) from error
    if probabilities.shape != (dim,):
        raise ValueError(
            f"prior has shape {probabilities.shape}, expected ({dim},): one probability for each "
            "number of leading latents."
        )
    positive = np.isfinite(probabilities).all() and (probabilities >= 0).all()
    if not positive or not np.isclose(probabilities.sum(), 1.0, rtol=1e-6):
        raise ValueError(
            f"prior={prior!r} was given, expected non-negative probabilities with sum 1."
        )
    return np.asarray(probabilities / probabilities.sum())


def real_array(values: Any) -> np.ndarray[Any, Any]:
    """Return numbers, a tensor or an array as a NumPy array of float64.

    A `TypeError` or `ValueError` is raised for anything that is not an array of real numbers.
    """
    found = np.asarray(values.detach().cpu() if isinstance(values, torch.Tensor) else values)
    if found.dtype.kind not in "bifu":
        raise TypeError
    return found.astype(float)


def prefix_losses(
    codes: Tensor,
    decoder: Callable[[Tensor], Tensor],
    target: Tensor,
    *,
    prefixes: Iterable[int] | None = None,
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> Tensor:
    """Return the loss of every prefix of the latents, in one pass through the decoder.

    The prefix of length b consists of the first b latents; the others are set to zero. The sum of
    these losses, weighted with the prior of nested dropout, is the expected loss of nested dropout
    (Bao et al. 2020, eq. 6, without the factor ½). Equal weights train representations that are
    useful at every length.

    Parameters
    ----------
    codes : tensor of shape (B, k)
        The k latents of each of the B samples.
    decoder : nn.Linear or callable
        Maps latents (B, k) to the shape of the target. For an `nn.Linear` with the default loss,
        all prefixes cost as much as one decoding, because only the Gram matrix of its columns is
        needed. Any other decoder is called once, on all prefixes of the B samples.
    target : tensor of shape (B, …)
        Desired output of the decoder.
    prefixes : iterable of int, optional
        Lengths of the prefixes; all of 1, …, k by default.
    loss : callable, optional
        Function (prediction, target) that returns one number for each sample, or one for each
        entry, which are then summed over each sample. The squared error by default.

    Returns
    -------
    tensor of shape (number of prefixes,)
        Mean over samples of the loss of each prefix; differentiable.

    Examples
    --------
    >>> import torch
    >>> from lucidae.nn import prefix_losses
    >>> decoder = torch.nn.Linear(2, 2, bias=False)
    >>> _ = decoder.weight.data.copy_(torch.eye(2))
    >>> x = torch.tensor([[3.0, 4.0]])
    >>> prefix_losses(x, decoder, x).detach()
    tensor([16.,  0.])
    """
    check_tensor(codes, "codes", ("B", "k"))
    check_tensor(target, "target", (..., "B", "m"), codes)
    if target.shape[0] != codes.shape[0]:
        raise ValueError(
            f"codes have shape {tuple(codes.shape)} and target {tuple(target.shape)}, expected "
            "(B, k) and (B, …): one target for each row of the codes."
        )
    check_module(decoder, "decoder", "that maps latents (B, k) to the shape of the target")
    if loss is not None:
        check_module(loss, "loss", "or a function of a prediction and a target")
    dim = codes.shape[1]
    chosen = range(1, dim + 1) if prefixes is None else prefixes
    if not isinstance(chosen, Iterable) or getattr(chosen, "ndim", 1) == 0:  # type: ignore[redundant-expr]
        raise ValueError(
            f"prefixes={prefixes!r} was given, expected numbers of leading latents such as [1, 2, "
            "4]."
        )
    lengths = [check_integer(length, "prefixes", low=1, high=dim) for length in chosen]
    if not lengths:
        raise ValueError("prefixes is empty, expected at least one number of leading latents.")
    if loss is None and isinstance(decoder, nn.Linear):
        _check_decoder(decoder, codes, target)
        return _linear_prefix_losses(codes, decoder, target)[[b - 1 for b in lengths]]
    return _stacked_prefix_losses(codes, decoder, target, lengths, loss or _squared_error)


def _check_decoder(decoder: Any, codes: Tensor, target: Tensor) -> None:
    """Raise an error unless a linear layer maps the codes to the entries of the target."""
    wanted = target.flatten(1).shape[1]
    if (decoder.in_features, decoder.out_features) != (codes.shape[1], wanted):
        raise ValueError(
            f"decoder maps {decoder.in_features} to {decoder.out_features} features, expected "
            f"{codes.shape[1]} to {wanted}, the numbers of latents and of target entries."
        )


def _linear_prefix_losses(codes: Tensor, decoder: Any, target: Tensor) -> Tensor:
    """Return the mean squared error of every prefix of the latents, for a linear decoder.

    The error of the prefix of length b is ‖y − Σ_{i≤b} zᵢwᵢ‖², with the target y, the latents zᵢ
    and the columns wᵢ of the decoder's weight W. With r = y − Σ_{j<b} z_j w_j, adding latent b
    changes the squared error by ‖r − z_b w_b‖² − ‖r‖² = z_b(2 Σ_{j<b} G_bj z_j + G_bb z_b − 2
    w_bᵀy), G = WᵀW. All changes need one product with the lower triangle of G, and their cumulative
    sum gives all prefixes.
    """
    with without_autocast(codes):
        parts = (codes, decoder.weight, target.flatten(1))
        double = any(part.dtype == torch.float64 for part in parts)
        z, weight, wanted = (part.double() if double else part.float() for part in parts)
        wanted = wanted if decoder.bias is None else wanted - decoder.bias.to(wanted.dtype)
        gram = weight.mT @ weight
        doubled = 2 * torch.tril(gram, -1) + torch.diag(torch.diagonal(gram))
        changes = z * (z @ doubled.mT - 2 * wanted @ weight)
        return torch.mean(torch.sum(wanted * wanted, 1)) + torch.cumsum(changes.mean(0), 0)


def _stacked_prefix_losses(
    codes: Tensor, decoder: Any, target: Tensor, lengths: list[int], loss: Any
) -> Tensor:
    """Return the loss of each prefix length, from one call of the decoder on all prefixes.

    The prefix of length b, an entry of `lengths`, consists of the first b latents in `codes`; the
    others are zero. The prefixes of all samples are joined along the batch axis, and the decoded
    ones are compared with `target`.
    """
    count, (size, dim) = len(lengths), codes.shape
    cut = torch.tensor(lengths, device=codes.device)[:, None, None]
    dropped = torch.arange(dim, device=codes.device) >= cut
    stacked = codes[None].masked_fill(dropped, 0.0).reshape(count * size, dim)
    wanted = target[None].expand(count, *target.shape).flatten(0, 1)
    decoded = decoder(stacked)
    if decoded.shape != wanted.shape:
        raise ValueError(
            f"decoder returned shape {tuple(decoded.shape)} for {count * size} rows of latents, "
            f"expected {tuple(wanted.shape)}: one target for each row."
        )
    values = loss(decoded, wanted)
    if values.shape[:1] != (count * size,):
        raise ValueError(
            f"loss returned shape {tuple(values.shape)}, expected one value for each of "
            f"{count * size} samples: use reduction='none'."
        )
    return values.reshape(count, size, -1).sum(-1).mean(-1)


def _squared_error(prediction: Tensor, target: Tensor) -> Tensor:
    """Return the squared difference of prediction and target for each entry."""
    return torch.square(prediction - target)


def order_dimensions(encoder: Any, decoder: Any, data: Any, *, center: bool = False) -> Tensor:
    """Rotate the latents of a linear bottleneck onto ordered principal axes, in place.

    The composition ``decoder(encoder(x))`` does not change, for any x. Afterwards the decoder's
    columns are orthonormal, the codes of the data are uncorrelated, and their variances are in
    descending order: the first b latents explain as much variance of the decoder's output as any b
    latents can. For a linear autoencoder at any minimum of the reconstruction loss, the decoder's
    columns are then the principal components, whichever rotation the training converged to (Bao et
    al. 2020, section 4).

    Parameters
    ----------
    encoder : nn.Linear
        The layer whose outputs are the k latents.
    decoder : nn.Linear
        The layer whose inputs are the latents.
    data : tensor of shape (n, encoder.in_features), or loader of such batches
        Inputs of `encoder`; at least two rows.
    center : bool, default=False
        Also move the mean of the codes into the bias of the decoder, so that the codes have mean
        zero and a latent that is set to zero is replaced by its mean. Use it if latents are to be
        truncated afterwards; both layers need a bias.

    Returns
    -------
    tensor of shape (k,)
        Variance of the decoder's output along each of its columns, descending; 0 for latents
        beyond the number of its outputs.

    Examples
    --------
    >>> import torch
    >>> from lucidae.nn import order_dimensions
    >>> _ = torch.manual_seed(0)
    >>> encoder, decoder = torch.nn.Linear(5, 2), torch.nn.Linear(2, 5)
    >>> x = torch.randn(100, 5)
    >>> before = decoder(encoder(x))
    >>> variances = order_dimensions(encoder, decoder, x)
    >>> torch.allclose(decoder(encoder(x)), before, atol=1e-5)
    True
    >>> torch.allclose(torch.cov(encoder(x).T, correction=0), torch.diag(variances), atol=1e-5)
    True
    """
    check_bottleneck(encoder, decoder, ("encoder", "decoder"))
    if center and (encoder.bias is None or decoder.bias is None):
        raise ValueError(
            "center=True was given, but a layer has no bias, expected a bias in both layers: the "
            "mean of the codes is moved from the bias of the encoder to that of the decoder."
        )
    inputs = _input_moment(encoder, data)
    weight = encoder.weight.detach().double()
    moment = weight @ inputs.covariance @ weight.mT
    # With W₂ = QR and the covariance C of the codes z, the output W₂z has covariance Q(RCRᵀ)Qᵀ. The
    # eigenvectors A of RCRᵀ give orthonormal columns QA and new codes AᵀRz, whose covariance is
    # diagonal: QA(AᵀRz) = W₂z, so the function is the same. `fix_signs` flips columns of QA, hence
    # the new codes are computed as (QA)ᵀQRz, with the signs of the final columns.
    with torch.no_grad():
        basis, triangle = torch.linalg.qr(decoder.weight.double())
        variances, axes = eigh_descending(triangle @ moment @ triangle.mT)
        columns = fix_signs(basis @ axes)
        turn = columns.mT @ basis @ triangle
        _write(encoder, decoder, turn, columns)
        if center:
            mean = encoder.weight.double() @ inputs.mean + encoder.bias.double()
            encoder.bias.sub_(mean.to(encoder.bias.dtype))
            decoder.bias.add_((decoder.weight.double() @ mean).to(decoder.bias.dtype))
        return _padded(variances.clamp_min(0.0), encoder.out_features).to(encoder.weight.dtype)


def _input_moment(encoder: Any, data: Any) -> SecondMoment:
    """Return the exact mean and covariance of the inputs of a linear encoder, in double precision.

    With the covariance Σ and the weight W of the encoder, its outputs have the covariance W Σ Wᵀ.
    """
    moment: SecondMoment | None = None
    for batch in batches(data):
        if batch.ndim != 2 or batch.shape[1] != encoder.in_features:
            raise ValueError(
                f"data contains a batch of shape {tuple(batch.shape)}, expected "
                f"(batch, {encoder.in_features})."
            )
        rows = batch.detach().to(encoder.weight.device)
        moment = SecondMoment.of(rows) if moment is None else moment.update(rows)
    if moment is None or moment.weight < 2:
        raise ValueError("data contains one row, expected at least two to compute variances.")
    return moment


def _write(encoder: Any, decoder: Any, turn: Tensor, columns: Tensor) -> None:
    """Change the weights of encoder and decoder in place, so that their latents are rotated.

    The weight and the bias of the encoder are multiplied by `turn`, and `columns` are the new
    columns of the decoder's weight. Latents beyond the number of outputs become zero.
    """
    width = encoder.out_features
    encoder.weight.copy_(_padded(turn @ encoder.weight.double(), width))
    if encoder.bias is not None:
        encoder.bias.copy_(_padded(turn @ encoder.bias.double(), width))
    decoder.weight.copy_(_padded(columns.mT, width).mT)


def _padded(rows: Tensor, count: int) -> Tensor:
    """Return `rows` with zero rows added, so that there are `count` rows."""
    missing = count - rows.shape[0]
    return torch.cat([rows, rows.new_zeros((missing, *rows.shape[1:]))]) if missing else rows
