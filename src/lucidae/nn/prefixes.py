"""Prefixes of embeddings and latents: `PrefixLoss` for any loss, nested dropout, all prefix losses.

A prefix of length b consists of the first b dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from lucidae.linear.methods import PRIORS
from lucidae.nn.layers import Tensor, check_module, check_tensor, full_precision, without_autocast
from lucidae.validation import check_choice, check_integer, check_vector

DRAWS = ("sample", "batch")
TRUNCATIONS = ("mask", "slice")

MULTIPLIER = 6364136223846793005
"""Factor of the linear congruential generator of Knuth's MMIX, modulo 2⁶⁴."""


class PrefixLoss(nn.Module):
    """Sum or expectation of a loss over prefixes of the dimensions of embeddings.

    The prefix of length b consists of the first b dimensions. With the loss ℓ(b) of this prefix and
    a weight w(b), the value is Σ w(b) ℓ(b) over the lengths `dims` (Kusupati et al. 2022, eq. 1),
    or, if a `prior` p is given, an unbiased estimate of the expectation Σ p(b) w(b) ℓ(b) from
    `samples` random lengths per call (Rippel et al. 2014, for any loss). A network that is trained
    with it has embeddings that can be cut after any of these lengths.

    The module calls `loss` once per prefix and changes neither the network nor the loss. By default
    the dimensions after the prefix are set to zero, which keeps all shapes. For inner products,
    distances and cosines, zeros and missing dimensions give the same value, and a linear layer
    inside the loss, such as a classifier, then uses its own first b columns.

    Parameters
    ----------
    loss : nn.Module or callable
        Function of the embeddings, and of any further arguments, that returns one number, such as
        `nn.CosineEmbeddingLoss()`, or ``lambda z, y: cross_entropy(head(z), y)``. If its layers are
        to be found among the parameters of this module, give an `nn.Module`.
    dims : iterable of int, or int, optional
        Lengths of the prefixes; an int k stands for all of 1, …, k. Without it the prior has to be
        an array, and k is its length.
    prior : {"geometric", "uniform"} or array with one probability per length, optional
        If given, lengths are drawn from it in training mode; in evaluation mode the expectation is
        computed exactly, from all lengths of positive probability. Without it, all lengths are
        evaluated in each call.
    weights : array with one number per length, optional
        Weights w(b), not negative; 1 by default.
    samples : int, default=1
        Number of lengths drawn per call. They are drawn from equally probable parts of the prior
        (systematic sampling), so that several of them vary less than independent ones.
    embeddings : int or sequence of str, default=1
        Which arguments of `loss` are truncated: the number of leading positional arguments, or the
        names of keyword arguments. An argument may be a tensor, or a list or tuple of tensors.
        Other arguments, such as labels or the embeddings of a teacher, are passed on.
    normalize : bool, default=False
        Divide each prefix by its Euclidean norm, for losses that expect unit vectors.
    truncate : {"mask", "slice"}, default="mask"
        ``"mask"`` sets the dimensions after the prefix to zero. ``"slice"`` removes them, which is
        faster, for losses that accept any number of dimensions; use it if the loss averages over
        dimensions.
    recompute : bool, default=False
        Store no intermediate results of `loss`, and compute them again in the backward pass, one
        prefix at a time. This saves memory if the loss is large, such as a contrastive loss with
        many negatives.
    axis : int, default=-1
        Axis of the dimensions.
    seed : int or None, default=0
        The drawn lengths are a function of the seed and of the number of calls in training mode,
        which is saved in ``state_dict``. All processes of a distributed training therefore use the
        same lengths, as losses that gather embeddings from all processes need, a resumed training
        continues the same sequence, and no other random numbers change. With None, lengths come
        from torch's generator of the device and may differ between processes.
    name : str, default="prefix"
        The loss of length b is called ``f"{name}_{b}"`` in `last`.

    Attributes
    ----------
    last : dict of str to float
        Losses of the prefixes of the last call by name, without weights, for logging. Reading it
        waits for the device.

    Examples
    --------
    >>> import torch
    >>> from lucidae.nn import PrefixLoss
    >>> head = torch.nn.Linear(8, 3)
    >>> def classify(embedding, labels):
    ...     return torch.nn.functional.cross_entropy(head(embedding), labels)
    >>> loss = PrefixLoss(classify, dims=[2, 4, 8])
    >>> embedding, labels = torch.randn(5, 8, requires_grad=True), torch.tensor([0, 1, 2, 0, 1])
    >>> loss(embedding, labels).backward()
    >>> list(loss.last)
    ['prefix_2', 'prefix_4', 'prefix_8']

    One random length per step, for a loss of two embeddings:

    >>> pairs = PrefixLoss(torch.nn.CosineEmbeddingLoss(), 8, prior="uniform", embeddings=2)
    >>> other, same = torch.randn(5, 8), torch.ones(5)
    >>> pairs(embedding, other, same).shape, len(pairs.last)
    (torch.Size([]), 1)
    """

    def __init__(
        self,
        loss: Callable[..., Tensor],
        dims: Iterable[int] | int | None = None,
        *,
        prior: Any = None,
        weights: Any = None,
        samples: int = 1,
        embeddings: int | Iterable[str] = 1,
        normalize: bool = False,
        truncate: str = "mask",
        recompute: bool = False,
        axis: int = -1,
        seed: int | None = 0,
        name: str = "prefix",
    ) -> None:
        super().__init__()
        self.loss = check_module(loss, "loss", "or a function that returns one number")
        lengths = _lengths(dims, prior)
        self.embeddings = _check_embeddings(embeddings)
        self.samples = check_integer(samples, "samples", low=1)
        self.truncate = check_choice(truncate, "truncate", TRUNCATIONS)
        self.axis = check_integer(axis, "axis", low=-64, high=63)
        self.seed = None if seed is None else check_integer(seed, "seed", low=0, high=2**62)
        self.normalize, self.recompute = bool(normalize), bool(recompute)
        self.name, self.longest, self.sampled = str(name), max(lengths), prior is not None
        if samples > 1 and prior is None:
            raise ValueError(
                f"samples={samples} was given without a prior, expected a prior from which the "
                "lengths are drawn, such as prior='uniform'."
            )
        factors, count = np.ones(len(lengths)), len(lengths)
        if weights is not None:
            wanted = (
                f"{count} finite numbers that are not negative and not all zero: one for each "
                "length"
            )
            factors = check_vector(weights, "weights", expected=wanted)
            if factors.shape != (count,) or not factors.any():
                raise ValueError(f"weights={weights!r} was given, expected {wanted}.")
        prior = prefix_prior(prior, count) if self.sampled else np.ones(count)
        possible = prior > 0
        self._exact = {"weights": factors[possible], "prior": prior[possible]}
        self.register_buffer("lengths", torch.tensor(lengths)[possible], persistent=False)
        for name in self._exact:
            self.register_buffer(name, None, persistent=False)
        self._apply(lambda part: part)
        self.register_buffer("calls", torch.tensor(0))
        self._last: tuple[Tensor, Tensor] | None = None  # lengths, and losses without weights

    def forward(self, *arguments: Any, **keywords: Any) -> Tensor:
        """Return the weighted sum, or the estimated expectation, of the losses of the prefixes.

        Parameters
        ----------
        *arguments, **keywords
            Arguments of `loss`; those that `embeddings` names are truncated.

        Returns
        -------
        zero-dimensional tensor
            Differentiable, in single precision or better.
        """
        places = self._places(arguments, keywords)
        chosen, factors = self._choose(places[0].device)
        cuts = chosen.unbind() if self.truncate == "mask" else chosen.tolist()
        losses = torch.stack([self._one(cut, arguments, keywords) for cut in cuts])
        self._last = chosen, losses.detach()
        return torch.sum(factors.to(losses.dtype) * losses)

    @property
    def last(self) -> dict[str, float]:
        """Losses of the prefixes of the embeddings in the last call, by name, without weights."""
        if self._last is None:
            return {}
        found: dict[int, list[float]] = {}
        for length, value in zip(*(part.tolist() for part in self._last), strict=True):
            found.setdefault(length, []).append(value)
        return {f"{self.name}_{b}": float(np.mean(found[b])) for b in sorted(found)}

    def extra_repr(self) -> str:
        """Return the settings that are shown when the module is printed."""
        drawn = f", samples={self.samples}, seed={self.seed}" if self.sampled else ""
        return (
            f"{len(self.lengths)} lengths up to {self.longest}{drawn}, "
            f"embeddings={self.embeddings}, truncate={self.truncate!r}"
        )

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Move the module to another device or type; weights and prior keep full precision.

        Half precision, to which ``module.bfloat16()`` would convert them, has too few digits.
        """
        super()._apply(fn, recurse)
        device = self.lengths.device
        kind = torch.float32 if device.type == "mps" else torch.float64  # mps has no float64
        for name, values in self._exact.items():
            self._buffers[name] = torch.as_tensor(values, dtype=kind, device=device)
        return self

    def _choose(self, device: Any) -> tuple[Tensor, Tensor]:
        """Return the lengths of the prefixes that this call evaluates, and a factor for each.

        The loss of each prefix is multiplied by its factor, and the products are added.
        """
        lengths, weights, prior = (
            part.to(device) for part in (self.lengths, self.weights, self.prior)
        )
        if not self.sampled or not self.training:
            return lengths, prior * weights
        # Quantiles at (u + i)/n for i = 0, …, n − 1, with one uniform number u: each length is
        # drawn n p(b) times on average.
        parts = torch.arange(self.samples, device=device) + self._uniform(device)
        drawn = _quantiles(prior, parts / self.samples)
        return lengths[drawn], weights[drawn] / self.samples

    def _uniform(self, device: Any) -> Tensor:
        """Return a random number in [0, 1), a function of the seed and the number of calls.

        It is computed with tensor operations only, so that the module can be compiled: the counter
        passes through a linear congruential generator modulo 2⁶⁴ and a shift, three times, and the
        upper 53 bits become the number.
        """
        if self.seed is None:
            return torch.rand((), dtype=self.prior.dtype, device=device)
        bits = self.calls.to(device) + (self.seed * MULTIPLIER) % 2**62
        for _ in range(3):
            bits = bits * MULTIPLIER + 1442695040888963407
            bits = bits ^ ((bits >> 29) & (2**35 - 1))  # the shift of a negative number adds ones
        self.calls.add_(1)
        return ((bits >> 11) & (2**53 - 1)).to(self.prior.dtype) / 2**53

    def _one(self, cut: Any, arguments: Any, keywords: Any) -> Tensor:
        """Return the loss of embeddings cut to `cut` dimensions, in single precision or better."""

        def evaluate() -> Tensor:
            parts = {key: self._cut(value, cut) for key, value in self._given(arguments, keywords)}
            args = [parts.get(place, value) for place, value in enumerate(arguments)]
            return self.loss(*args, **{name: parts.get(name, v) for name, v in keywords.items()})

        value = checkpoint(evaluate, use_reentrant=False) if self.recompute else evaluate()
        if not isinstance(value, torch.Tensor) or value.ndim:
            shape = tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
            raise ValueError(
                f"loss returned {shape}, expected a tensor with one number: use reduction='mean', "
                "or a function that returns only the loss."
            )
        return full_precision(value)

    def _cut(self, embedding: Any, cut: Any) -> Any:
        """Return the first `cut` dimensions of a tensor, or of each tensor of a list or tuple."""
        if not isinstance(embedding, torch.Tensor):
            parts = [self._cut(part, cut) for part in embedding]
            return parts if isinstance(embedding, list) else tuple(parts)
        if self.truncate == "slice":
            prefix = embedding.narrow(self.axis, 0, cut)
        else:
            prefix = _masked(embedding, cut, self.axis)
        return nn.functional.normalize(prefix, dim=self.axis) if self.normalize else prefix

    def _given(self, arguments: Any, keywords: Any) -> list[tuple[Any, Any]]:
        """Return the embeddings of a call with their places or names, as `embeddings` says."""
        if isinstance(self.embeddings, int):
            return list(enumerate(arguments[: self.embeddings]))
        return [(name, keywords[name]) for name in self.embeddings if name in keywords]

    def _places(self, arguments: Any, keywords: Any) -> list[Tensor]:
        """Return all embeddings among the arguments of a call; missing ones are an error."""
        given, wanted = self._given(arguments, keywords), self.embeddings
        missing = (wanted if isinstance(wanted, int) else len(wanted)) - len(given)
        if missing:
            raise ValueError(
                f"embeddings={self.embeddings!r} was given, but {missing} of these embeddings are "
                "missing in the call of the loss: pass them as its first positional arguments if "
                "embeddings is a number, or as keyword arguments if it is a list of names."
            )
        tensors = []
        for key, value in given:
            name = key if isinstance(key, str) else f"argument {key + 1} of the loss"
            for part in value if isinstance(value, list | tuple) else [value]:
                tensors.append(check_tensor(part, name, (..., "k")))
                fits = -part.ndim <= self.axis < part.ndim
                if not fits or part.shape[self.axis] < self.longest:
                    raise ValueError(
                        f"{name} has shape {tuple(part.shape)}, expected at least {self.longest} "
                        f"dimensions on axis {self.axis}, the length of the longest prefix."
                    )
        if len({part.shape[self.axis] for part in tensors}) != 1:
            raise ValueError(
                f"the embeddings have {[part.shape[self.axis] for part in tensors]} dimensions, "
                "expected equal numbers: name in `embeddings` only those that are to be truncated."
            )
        return tensors


def _lengths(dims: Any, prior: Any) -> list[int]:
    """Return the lengths of the prefixes from the arguments `dims` and `prior` of `PrefixLoss`."""
    if dims is None:
        if prior is None or isinstance(prior, str) or not hasattr(prior, "__len__"):
            raise ValueError(
                f"dims=None and prior={prior!r} were given, expected the lengths of the prefixes "
                "in dims, or a prior with one probability for each of the lengths 1, …, k."
            )
        dims = len(prior)
    if isinstance(dims, str | bytes) or (not isinstance(dims, Iterable) and not _is_whole(dims)):
        raise ValueError(
            f"dims={dims!r} was given, expected lengths of prefixes such as [8, 16, 32], or a "
            "number k for all of 1, …, k."
        )
    if not isinstance(dims, Iterable) or getattr(dims, "ndim", 1) == 0:
        return list(range(1, check_integer(dims, "dims", low=1) + 1))
    lengths = [check_integer(length, "dims", low=1) for length in dims]
    if not lengths or len(set(lengths)) < len(lengths):
        raise ValueError(
            f"dims={lengths} was given, expected at least one length, and no length twice."
        )
    return lengths


def _is_whole(value: Any) -> bool:
    """Return whether a value can be used as an integer, and is not a bool."""
    return hasattr(value, "__index__") and not isinstance(value, bool)


def _check_embeddings(embeddings: Any) -> int | tuple[str, ...]:
    """Return `embeddings` after a check: the number of leading arguments, or names of keywords."""
    if _is_whole(embeddings):
        return check_integer(embeddings, "embeddings", low=1)
    if isinstance(embeddings, str):
        return (embeddings,)
    names = tuple(embeddings) if isinstance(embeddings, Iterable) else ()
    if not names or not all(isinstance(name, str) for name in names):
        raise ValueError(
            f"embeddings={embeddings!r} was given, expected the number of leading arguments that "
            "are embeddings, or the names of keyword arguments."
        )
    return names


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
        check_tensor(codes, "codes", (...,), self.prior)
        if not -codes.ndim <= self.axis < codes.ndim or codes.shape[self.axis] != self.dim:
            raise ValueError(
                f"codes have shape {tuple(codes.shape)}, expected {self.dim} latents "
                f"on axis {self.axis}."
            )
        if prefix is None and self.training:
            return _masked(codes, self.draw_lengths(codes), self.axis)
        length = self.prefix if prefix is None else prefix
        if length is None:
            return codes
        length = check_integer(length, "prefix", low=1, high=self.dim)
        return _masked(codes, length, self.axis)

    def draw_lengths(self, codes: Tensor) -> Tensor:
        """Return random prefix lengths, shaped to broadcast over `codes`.

        A prefix of length b consists of the first b latents. One length is drawn for each sample,
        or one for all, according to the setting `draw`.
        """
        count = codes.shape[0] if self.draw == "sample" and codes.ndim > 1 else 1
        drawn = torch.rand(count, dtype=self.prior.dtype, device=self.prior.device)
        lengths = 1 + _quantiles(self.prior, drawn)
        return lengths.reshape((count,) + (1,) * (codes.ndim - 1))

    def extra_repr(self) -> str:
        """Return the settings that are shown when the module is printed."""
        return f"dim={self.dim}, draw={self.draw!r}, axis={self.axis}, prefix={self.prefix}"


def _masked(codes: Tensor, lengths: Any, axis: int) -> Tensor:
    """Return codes that are zero after the first `lengths` (which broadcast) on an axis."""
    shape = [1] * codes.ndim
    shape[axis] = codes.shape[axis]
    positions = torch.arange(shape[axis], device=codes.device).reshape(shape)
    return codes.masked_fill(positions >= lengths, 0.0)


def _quantiles(prior: Tensor, points: Tensor) -> Tensor:
    """Return the inverse of the distribution function of `prior` at points of [0, 1), from 0.

    Without its last value, which rounding may leave below 1, no result is beyond the last length.
    """
    return torch.searchsorted(torch.cumsum(prior, 0)[:-1], points, right=True)


def prefix_prior(prior: Any, dim: int) -> np.ndarray[Any, Any]:
    """Return the probabilities of the prefix lengths 1, …, `dim` from a name or an array.

    A prefix of length b consists of the first b latents. An array that is not a probability
    distribution is an error.
    """
    if isinstance(prior, str):
        return np.asarray(PRIORS[check_choice(prior, "prior", PRIORS)](dim), dtype=float)
    expected = (
        "'geometric', 'uniform', or an array with the probability of each number of leading latents"
    )
    probabilities = check_vector(prior, "prior", expected=expected)
    if probabilities.shape != (dim,):
        raise ValueError(
            f"prior has shape {probabilities.shape}, expected ({dim},): one probability for each "
            "number of leading latents."
        )
    if not np.isclose(probabilities.sum(), 1.0, rtol=1e-6):
        raise ValueError(
            f"prior={prior!r} was given, expected non-negative probabilities with sum 1."
        )
    return np.asarray(probabilities / probabilities.sum())


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
        wanted = target.flatten(1).shape[1]
        if (decoder.in_features, decoder.out_features) != (dim, wanted):
            raise ValueError(
                f"decoder maps {decoder.in_features} to {decoder.out_features} features, expected "
                f"{dim} to {wanted}, the numbers of latents and of target entries."
            )
        return _linear_prefix_losses(codes, decoder, target)[[b - 1 for b in lengths]]
    return _stacked_prefix_losses(codes, decoder, target, lengths, loss)


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
    stacked = _masked(codes[None], cut, -1).reshape(count * size, dim)
    wanted = target[None].expand(count, *target.shape).flatten(0, 1)
    decoded = decoder(stacked)
    if decoded.shape != wanted.shape:
        raise ValueError(
            f"decoder returned shape {tuple(decoded.shape)} for {count * size} rows of latents, "
            f"expected {tuple(wanted.shape)}: one target for each row."
        )
    values = torch.square(decoded - wanted) if loss is None else loss(decoded, wanted)
    if values.shape[:1] != (count * size,):
        raise ValueError(
            f"loss returned shape {tuple(values.shape)}, expected one value for each of "
            f"{count * size} samples: use reduction='none'."
        )
    return values.reshape(count, size, -1).sum(-1).mean(-1)
