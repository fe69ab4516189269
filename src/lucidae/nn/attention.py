"""Attention heads of fewer dimensions: queries and keys, values and outputs, ordered and truncated.

A head of width h has queries q, keys k and the logits qᵀk/√h. For independent tokens, the error of
maps P and T (r × h) of queries and keys, E(qᵀk − (Pq)ᵀTk)², is ‖R_qᵀ(I − PᵀT)R_k‖² with
R_qR_qᵀ = E[qqᵀ] and R_kR_kᵀ = E[kkᵀ]. With the singular value decomposition R_qᵀR_k = U diag(s) Vᵀ
the best maps of rank r are **P = s^{-½}V_rᵀR_kᵀ and T = s^{-½}U_rᵀR_qᵀ** (balanced truncation):
R_qᵀPᵀTR_k = U_r diag(s) V_rᵀ, the best approximation of rank r by Eckart and Young (1936), and the
error is Σ_{i>r} sᵢ². No moment is inverted. Biases are part of q and k.

The output of the layer is the sum of W_O,h z over the heads, with the mean z of the values under
the weights of attention, so that a linear map of the values is one of z. The best layer of rank r
for z (`lucidae.nn.compress`) has the factors U_r, which replaces W_O,h, and U_rᵀW_O,h, which
multiplies the projection of the values; its bias joins that of the output.
"""

from __future__ import annotations

import copy
import inspect
import math
from typing import Any

import torch
from torch import nn

from lucidae.nn.layers import Tensor
from lucidae.nn.low_rank import Moment, RowMoment, batches_of, call, observed, unwrapped
from lucidae.validation import check_flag, check_integer

INPUTS = ("query", "key", "value", "key_padding_mask", "attn_mask", "is_causal")
COUNTS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "nhead")
ROTARY = ("rotary", "rope", "position_embeddings", "freqs_cis")


class LowRankAttention(nn.Module):
    """Multi-head attention whose heads may have fewer dimensions than the original ones.

    `lucidae.nn.compress.heads` returns such modules. The call is that of `nn.MultiheadAttention`;
    key and value are the query if they are left out.

    Parameters
    ----------
    q_proj, k_proj, v_proj, out_proj : nn.Linear
        The projections. Queries and keys of all heads have one width, values another.
    num_heads : int
        Number of heads.
    scale : float
        Factor of the logits: one over the root of the original width of a head.
    batch_first : bool, default=True
        Whether the batch is the first axis of inputs and outputs, or the second one.
    dropout : float, default=0.0
        Probability of dropping an attention weight in training.
    is_causal : bool, default=False
        Whether each token always attends to itself and earlier tokens alone.
    returns_weights : bool, default=True
        Whether a call returns a pair: the output, and the weights or None.

    Attributes
    ----------
    qk_values : tensor of shape (num_heads, h)
        Singular values s of the logits of each original head of width h, descending: the mean
        squared error of its logits (before the scale) at rank r is the sum of s² beyond r.
    vo_values : tensor of shape (num_heads, h)
        Variances of each head's contribution to the output, descending: the mean squared error of
        the contribution at rank r is their sum beyond r.

    Examples
    --------
    >>> import torch
    >>> from lucidae.nn.compress import LowRankAttention
    >>> parts = [torch.nn.Linear(8, 4) for _ in range(3)]
    >>> layer = LowRankAttention(*parts, torch.nn.Linear(4, 8), num_heads=2, scale=0.5)
    >>> output, weights = layer(torch.randn(3, 5, 8))
    >>> output.shape, weights.shape
    (torch.Size([3, 5, 8]), torch.Size([3, 5, 5]))
    """

    qk_values: Tensor
    vo_values: Tensor
    # nn.TransformerEncoderLayer reads these two before it reads weights past the module.
    in_proj_bias = None
    _qkv_same_embed_dim = False

    def __init__(
        self,
        q_proj: Any,
        k_proj: Any,
        v_proj: Any,
        out_proj: Any,
        *,
        num_heads: int,
        scale: float,
        batch_first: bool = True,
        dropout: float = 0.0,
        is_causal: bool = False,
        returns_weights: bool = True,
    ) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = q_proj, k_proj, v_proj, out_proj
        self.num_heads, self.scale, self.dropout = num_heads, scale, dropout
        self.batch_first, self.is_causal = batch_first, is_causal
        self.returns_weights = returns_weights

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> Any:
        """Return the output and, if asked for, the weights of attention.

        Parameters
        ----------
        query, key, value : tensors of shape (B, L, e), (B, S, e_k), (B, S, e_v)
            Inputs; the first two axes are exchanged without `batch_first`, and the batch may be
            missing. The key is by default the query, and the value the key.
        key_padding_mask : tensor of shape (B, S), optional
            True (or −∞) for keys that are ignored.
        need_weights : bool, default=True
            Whether the weights are returned; otherwise a faster kernel is used.
        attn_mask : tensor of shape (L, S) or (B·num_heads, L, S), optional
            True for pairs that are ignored, or numbers that are added to the logits.
        average_attn_weights : bool, default=True
            Whether the returned weights are averaged over heads.
        is_causal : bool, default=False
            Whether later keys are ignored; `attn_mask` may then be left out.

        Returns
        -------
        tensor, or pair of tensor and (tensor or None)
            The output of shape (B, L, e), and the weights of shape (B, L, S), or
            (B, num_heads, L, S) if they are not averaged.
        """
        q, k, v, mask = self._heads(query, key, value, key_padding_mask, attn_mask, is_causal)
        z, weights = self._attended(q, k, v, mask, need_weights and self.returns_weights)
        output = self.out_proj(z.transpose(1, 2).flatten(2))
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        if query.ndim == 2:
            output = output[0]
            weights = weights if weights is None else weights[0]
        elif not self.batch_first:
            output = output.transpose(0, 1)
        return (output, weights) if self.returns_weights else output

    def _heads(
        self, query: Tensor, key: Any, value: Any, padding: Any, given: Any, is_causal: Any
    ) -> tuple[Tensor, Tensor, Tensor, Any]:
        """Return q, k and v of all heads, (B, num_heads, length, width), and a mask or None.

        The mask, (B, num_heads, L, S), is added to the logits.
        """
        key = query if key is None else key
        value = key if value is None else value
        parts = []
        projections = self.q_proj, self.k_proj, self.v_proj
        for x, layer in zip((query, key, value), projections, strict=True):
            x = x[None] if x.ndim == 2 else x if self.batch_first else x.transpose(0, 1)
            parts.append(layer(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2))
        q, k, v = parts
        shape = (*q.shape[:-1], k.shape[-2])
        masks = []
        if given is not None:
            masks.append(given if given.ndim == 2 else given.reshape(-1, *shape[1:]))
        elif is_causal or self.is_causal:
            masks.append(torch.ones(shape[-2:], dtype=torch.bool, device=q.device).triu(1))
        if padding is not None:
            masks.append(padding[..., None, None, :])
        floats = [
            torch.zeros(mask.shape, dtype=q.dtype, device=q.device).masked_fill(mask, -math.inf)
            if mask.dtype == torch.bool
            else mask.to(q.dtype)
            for mask in masks
        ]
        return q, k, v, sum(floats[1:], floats[0]) if floats else None

    def _attended(self, q: Tensor, k: Tensor, v: Tensor, mask: Any, weigh: bool) -> Any:
        """Return the means of the values, (B, num_heads, L, width), and the weights or None."""
        dropout = self.dropout if self.training else 0.0
        if not weigh:
            attend = nn.functional.scaled_dot_product_attention
            return attend(q, k, v, attn_mask=mask, dropout_p=dropout, scale=self.scale), None
        logits = q @ k.mT * self.scale
        weights = torch.softmax(logits if mask is None else logits + mask, -1)
        weights = nn.functional.dropout(weights, dropout)
        return weights @ v, weights

    def extra_repr(self) -> str:
        """Return the number of heads."""
        return f"num_heads={self.num_heads}"


def heads(
    layer: Any,
    inputs: Any,
    *,
    rank: int | None = None,
    qk_rank: int | None = None,
    vo_rank: int | None = None,
    model: Any = None,
    forward: Any = None,
    names: tuple[str, str, str, str] | None = None,
    num_heads: int | None = None,
    is_causal: bool = False,
) -> LowRankAttention:
    """Order and truncate the dimensions of attention heads.

    Logits depend on the product of the projections of queries and keys alone, and outputs on that
    of values and output. For independent tokens the new queries and keys have the smallest mean
    squared error of the logits for their rank, and the new values the smallest error of each
    head's contribution to the output; biases are included.

    Parameters
    ----------
    layer : nn.MultiheadAttention, or module with four projections
        The attention layer; it is not changed. Rotary embeddings between projections and logits,
        and keys that heads share, are refused.
    inputs : tensor of shape (B, L, e), or loader
        Calibration inputs of the layer: batches of queries, or lists of the arguments query, key,
        value, …, or dicts of arguments by name. If `model` is given, inputs of the model, as in
        `lucidae.nn.compress.plan`.
    rank : int, optional
        Number of dimensions of a head, for queries and keys and for values.
    qk_rank, vo_rank : int, optional
        Number of dimensions of queries and keys, and of values; by default `rank`, or the width of
        a head if that is not given either.
    model : nn.Module, optional
        The network that contains `layer`; it is run on `inputs`, and the inputs of the layer are
        taken from there.
    forward : callable, optional
        ``forward(model, batch)`` runs the model on a batch of `inputs`.
    names : tuple of four str, optional
        Names of the projections of queries, keys, values and output; by default ``q_proj``,
        ``k_proj``, ``v_proj`` and ``o_proj`` or ``out_proj``.
    num_heads : int, optional
        Number of heads; by default an attribute of the layer such as ``num_heads``.
    is_causal : bool, default=False
        Whether the layer always masks later keys without being told.

    Returns
    -------
    LowRankAttention
        A module with the call of `nn.MultiheadAttention` and the errors of every rank.

    Notes
    -----
    Tokens of one sequence are not independent and softmax is not linear: what the truncation does
    to the outputs has to be measured. The first batch is used to test that attention is computed
    as assumed; a layer with another scale or mask is refused.

    Examples
    --------
    >>> import torch
    >>> from lucidae.nn import compress
    >>> _ = torch.manual_seed(0)
    >>> layer, x = torch.nn.MultiheadAttention(16, 2, batch_first=True), torch.randn(8, 10, 16)
    >>> small = compress.heads(layer, x, qk_rank=4, vo_rank=6)
    >>> small.q_proj.out_features, small.v_proj.out_features
    (8, 12)
    >>> same = compress.heads(layer, x, rank=8)
    >>> torch.allclose(same(x, x, x)[0], layer(x, x, x)[0], atol=1e-5)
    True
    """
    full = _full_attention(layer, names, num_heads, check_flag(is_causal, "is_causal"))
    width = full.q_proj.out_features // full.num_heads
    value_width = min(full.v_proj.out_features // full.num_heads, full.out_proj.out_features)
    if rank is None and qk_rank is None and vo_rank is None:
        raise ValueError("rank, qk_rank and vo_rank are None, expected at least one of them.")
    qk_rank = _checked_rank(qk_rank, rank, "qk_rank", width)
    vo_rank = _checked_rank(vo_rank, rank, "vo_rank", value_width)
    moments = _head_moments(layer, full, inputs, model, forward)
    with torch.no_grad():
        small = _truncated(full, moments, qk_rank, vo_rank)
    small.train(layer.training)
    return small


def _checked_rank(given: int | None, rank: int | None, name: str, width: int) -> int:
    chosen, name = (rank, "rank") if given is None else (given, name)
    return width if chosen is None else check_integer(chosen, name, low=1, high=width)


def _full_attention(layer: Any, names: Any, num_heads: Any, is_causal: bool) -> LowRankAttention:
    """Return a `LowRankAttention` of full width that computes what an attention layer computes."""
    if isinstance(layer, nn.MultiheadAttention):
        if layer.bias_k is not None or layer.add_zero_attn:
            raise ValueError(
                "layer has add_bias_kv or add_zero_attn, expected neither: the key that they add "
                "has no token."
            )
        if layer._qkv_same_embed_dim:
            weights = layer.in_proj_weight.chunk(3)
        else:
            weights = (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight)
        given = layer.in_proj_bias
        biases = (None,) * 3 if given is None else given.chunk(3)
        out = layer.out_proj
        parts = [_linear(w, b, out.weight) for w, b in zip(weights, biases, strict=True)]
        batch_first, dropout = layer.batch_first, layer.dropout
        count, returns = layer.num_heads, True
    else:
        _refuse_rotary(layer)
        *projections, out = _projections(layer, names)
        parts = [_linear(part.weight, part.bias, part.weight) for part in projections]
        count = num_heads or next((getattr(layer, c) for c in COUNTS if hasattr(layer, c)), None)
        if count is None:
            raise ValueError(
                f"layer of type {type(layer).__name__} has none of the attributes "
                f"{', '.join(COUNTS)}: give num_heads."
            )
        dropout = getattr(layer, "dropout", 0.0)
        dropout = dropout if isinstance(dropout, float) else getattr(dropout, "p", 0.0)
        batch_first = getattr(layer, "batch_first", True)
        returns = False  # until a call of the layer shows otherwise
    check_integer(count, "num_heads", low=1)
    q, k, v = (part.out_features for part in parts)
    if q != k or q % count or v % count or out.in_features != v:
        raise ValueError(
            f"queries, keys, values and the input of the output have {q}, {k}, {v} and "
            f"{out.in_features} entries for {count} heads, expected heads of equal widths: keys "
            "and values that heads share are not supported."
        )
    query, key, value = parts
    full = LowRankAttention(
        query,
        key,
        value,
        _linear(out.weight, out.bias, out.weight),
        num_heads=count,
        scale=(q // count) ** -0.5,
        is_causal=is_causal,
        returns_weights=returns,
        batch_first=batch_first,
        dropout=dropout,
    )
    full.eval()
    return full


def _refuse_rotary(layer: Any) -> None:
    """Raise an error for a layer that rotates queries and keys by their position."""
    if not isinstance(layer, nn.Module):
        raise ValueError(f"layer is of type {type(layer).__name__}, expected an attention module.")
    found = [*vars(layer), *(name for name, _ in layer.named_modules())]
    found += list(inspect.signature(layer.forward).parameters)
    rotary = [name for name in found if any(word in name.lower() for word in ROTARY)]
    if rotary:
        raise ValueError(
            f"layer has rotary embeddings ({rotary[0]}), which turn queries and keys by their "
            "position: their dimensions cannot be mixed or cut. Use compress.plan for the "
            "projections instead."
        )


def _projections(layer: Any, names: Any) -> list[Any]:
    """Return the four linear projections of an attention module."""
    last = "o_proj" if hasattr(layer, "o_proj") else "out_proj"
    wanted = ("q_proj", "k_proj", "v_proj", last) if names is None else tuple(names)
    found = []
    for name in wanted:
        try:
            found.append(layer.get_submodule(name))
        except AttributeError:
            found.append(None)
        if not isinstance(found[-1], nn.Linear):
            raise ValueError(
                f"layer of type {type(layer).__name__} has no nn.Linear named {name!r}: give names "
                "of the projections of queries, keys, values and output."
            )
    if len(found) != 4:
        raise ValueError(f"names has {len(found)} entries, expected 4.")
    return found


def _linear(weight: Tensor, bias: Tensor | None, like: Tensor) -> Any:
    """Return an nn.Linear with copies of a weight and a bias, in the dtype and device of `like`."""
    n, m = weight.shape
    options = {"device": like.device, "dtype": like.dtype, "bias": bias is not None}
    layer = nn.utils.skip_init(nn.Linear, m, n, **options)
    layer.weight.data.copy_(weight.detach())
    if bias is not None:
        layer.bias.data.copy_(bias.detach())
    return layer.requires_grad_(like.requires_grad)


def _head_moments(
    layer: Any, full: LowRankAttention, inputs: Any, model: Any, forward: Any
) -> list[Moment]:
    """Run the layer, or the model around it, and return the moments of q, k and z of all heads."""
    sums: list[RowMoment] = []
    parameters = inspect.signature(full.forward)

    def observe(_layer: Any, args: Any, keywords: Any, output: Any) -> None:
        try:
            given = parameters.bind(*args, **keywords).arguments
        except TypeError as error:
            raise ValueError(
                f"layer was called with arguments that are not those of nn.MultiheadAttention: "
                f"{error}."
            ) from error
        if not sums:
            full.returns_weights = isinstance(output, tuple)
            _compare(full(*args, **keywords), output)
        inputs = [given.get(name) for name in INPUTS]
        q, k, v, mask = full._heads(*inputs)
        z, _ = full._attended(q, k, v, mask, False)
        padding = given.get("key_padding_mask")
        if padding is not None:  # keys that no query sees
            seen = ~padding if padding.dtype == torch.bool else padding == 0
            k = k.transpose(1, 2)[seen.reshape(k.shape[0], -1)].transpose(0, 1)[None]
        parts = [part.transpose(0, 1).flatten(1, -2).double() for part in (q, k, z)]
        if not sums:
            sums.extend(RowMoment(len(p), p.shape[-1], device=p.device) for p in parts)
        for moment, rows in zip(sums, parts, strict=True):  # (num_heads, N, h)
            moment.add(rows)

    network = layer if model is None else unwrapped(model)
    with observed(network, {layer: observe}):
        for batch in batches_of(inputs, network):
            if model is None and isinstance(batch, list) and forward is None:
                layer(*batch)
            elif model is None and isinstance(batch, torch.Tensor) and forward is None:
                layer(*(batch,) * (3 if isinstance(layer, nn.MultiheadAttention) else 1))
            else:
                call(network, batch, forward)
    if not sums:
        raise ValueError("layer was not called by model, expected a layer of this model.")
    return [moment.merged() for moment in sums]


def _compare(found: Any, expected: Any) -> None:
    """Raise an error unless a `LowRankAttention` of full width has the output of the layer."""
    found, expected = (part[0] if isinstance(part, tuple) else part for part in (found, expected))
    tolerance = math.sqrt(torch.finfo(expected.dtype).eps) * float(expected.abs().max())
    if found.shape != expected.shape or not float((found - expected).abs().max()) <= tolerance:
        raise ValueError(
            "layer does not compute softmax(qkᵀ/√h)v of its projections on the first batch: another"
            " scale, a mask of its own (is_causal=True) or a change of queries and keys (rotary "
            "embeddings, normalisation) is not supported."
        )


def _root(moment: Tensor) -> Tensor:
    """Return R with RRᵀ = moment, for each of a batch of positive semidefinite matrices."""
    values, vectors = torch.linalg.eigh((moment + moment.mT) / 2)
    return vectors * values.clamp_min(0.0).sqrt()[..., None, :]


def _truncated(
    full: LowRankAttention, moments: list[Moment], qk_rank: int, vo_rank: int
) -> LowRankAttention:
    """Return attention of the given ranks; the formulas are in the docstring of the module."""
    # 1) Queries and keys. Where the calibration inputs do not reach all dimensions, heads of full
    #    width stay as they are, so that they are exact for other inputs too.
    queries, keys, means = moments
    Rq, Rk = _root(queries.uncentred), _root(keys.uncentred)
    U, s, Vt = torch.linalg.svd(Rq.mT @ Rk)
    used = _used(s)
    gain = (torch.where(used, s, 1.0).rsqrt() * used)[..., None]
    P, T = gain * (Vt @ Rk.mT), gain * (U.mT @ Rq.mT)
    if qk_rank == s.shape[-1] and not used.all():
        P = T = torch.eye(qk_rank).to(s).expand_as(P)
    # 2) Values and output, the layer of rank r whose inputs are z.
    out = full.out_proj.weight.double().unflatten(1, (full.num_heads, -1)).transpose(0, 1)
    second, spread, _ = torch.linalg.svd(out @ _root(means.covariance), full_matrices=False)
    first = second.mT @ out
    if vo_rank == out.shape[-1] and not _used(spread).all():
        second, first = out, torch.eye(vo_rank).to(s).expand(len(out), -1, -1)
    second, first = second[..., :vo_rank], first[:, :vo_rank]
    lost = torch.einsum("hed,hd->e", out - second @ first, means.mean)
    old = full.out_proj.bias
    small = copy.deepcopy(full)
    small.q_proj, small.k_proj = (
        _mapped(full.q_proj, P[:, :qk_rank]),
        _mapped(full.k_proj, T[:, :qk_rank]),
    )
    small.v_proj = _mapped(full.v_proj, first)
    bias = lost if old is None else old.double() + lost
    small.out_proj = _linear(second.transpose(0, 1).flatten(1), bias, full.out_proj.weight)
    small.qk_values, small.vo_values = s, spread.square()
    return small


def _used(values: Tensor) -> Tensor:
    """Tell which of the descending singular values (num_heads, h) are more than rounding errors."""
    return values > values.shape[-1] * torch.finfo(values.dtype).eps * values[:, :1]


def _mapped(layer: Any, maps: Tensor) -> Any:
    """Return a projection whose heads are multiplied by maps of shape (num_heads, r, h)."""
    weight = layer.weight.double().unflatten(0, (len(maps), -1))
    bias = layer.bias
    if bias is not None:
        bias = (maps @ bias.double().reshape(len(maps), -1, 1)).flatten()
    return _linear((maps @ weight).flatten(0, 1), bias, layer.weight)
