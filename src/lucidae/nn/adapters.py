"""Low-rank adapters (LoRA) of a layer: the best one of a rank, and how far a given one is from it.

For a weight difference Δ (n × m), inputs with the second moment C = E[xxᵀ] and dropout of inputs at
the rate p, λ = p/(1 − p), the expected error of an adapter BA over masks is
E‖Δx − BA(mask ∘ x)/(1 − p)‖² = ‖(BA − Θ)T‖² + constant with S = TTᵀ = C + λ diag C and Θ = ΔCS⁻¹,
so that the best BA of rank r is U_rU_rᵀΘ with the left singular vectors U_r of ΘT.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from lucidae.certificates.claims import Certificate, at_most, does_not_apply, reported
from lucidae.dropout.theory import strength_of
from lucidae.nn.layers import Tensor, batches, check_tensor
from lucidae.nn.low_rank import RowMoment
from lucidae.validation import check_integer, check_number


def adapter(
    delta: Tensor, moment: Tensor, rank: int, dropout: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Return the best low-rank adapter for a weight difference and the inputs of its layer.

    Parameters
    ----------
    delta : tensor of shape (n, m)
        The weight difference Δ that the adapter approximates: fine-tuned weight minus weight.
    moment : tensor of shape (m, m)
        Second moment E[xxᵀ] of the inputs of the layer, not centred. It may be singular.
    rank : int
        Rank of the adapter, at most the smaller of n and m.
    dropout : float, default=0.0
        Probability of dropping an input of the adapter, in [0, 1), as `lora_dropout` of peft.

    Returns
    -------
    B : tensor of shape (n, rank)
        Second factor, with orthonormal columns.
    A : tensor of shape (rank, m)
        First factor. No other BA of this rank has a smaller E‖Δx − BA(mask ∘ x)/(1 − dropout)‖².

    Examples
    --------
    >>> import torch
    >>> from lucidae.nn import compress
    >>> _ = torch.manual_seed(0)
    >>> x, delta = torch.randn(100, 6) * torch.tensor([9, 1, 1, 1, 1, 1]), torch.randn(4, 6)
    >>> B, A = compress.adapter(delta, x.T @ x / 100, rank=1)
    >>> u, s, v = torch.linalg.svd(delta)
    >>> plain = s[0] * torch.outer(u[:, 0], v[0])
    >>> error = lambda D: ((x @ (delta - D).T) ** 2).sum(1).mean()
    >>> bool(error(B @ A) < error(plain))
    True
    """
    check_tensor(delta, "delta", ("n", "m"))
    n, m = delta.shape
    check_tensor(moment, "moment", (m, m))
    check_integer(rank, "rank", low=1, high=min(n, m))
    strength = strength_of(dropout)
    with torch.no_grad():
        best = _optimum(delta.double(), moment.to(delta.device).double(), strength)
        left = best.left[:, :rank]
        return left.to(delta.dtype), (left.mT @ best.full).to(delta.dtype)


class _Optimum(NamedTuple):
    """The best adapters of all ranks."""

    full: Tensor  # (n, m): Θ, the best adapter of full rank
    left: Tensor  # (n, k): left singular vectors of ΘT
    values: Tensor  # (k,): squared singular values of ΘT


def _optimum(delta: Tensor, moment: Tensor, strength: float) -> _Optimum:
    """Return the best adapters of all ranks for E‖Δx − BA(mask ∘ x)/(1 − p)‖², in float64.

    With D² = diag C and the correlations D⁻¹CD⁻¹ = V diag(k) Vᵀ the moment of the masked inputs is
    S = DV diag(k + λ) VᵀD, so that Θ = ΔDV diag(k/(k + λ)) VᵀD⁻¹ and ΘT = ΔDV diag(k/√(k + λ)):
    D is the only matrix inverted. Without dropout Θ = Δ.
    """
    scale = torch.diagonal(moment).clamp_min(0.0).sqrt()
    inverse = torch.where(scale > 0, 1.0 / torch.where(scale > 0, scale, 1.0), 0.0)
    k, V = torch.linalg.eigh(inverse[:, None] * ((moment + moment.mT) / 2) * inverse)
    k = k.clamp_min(0.0)
    whitened = torch.where(k > 0, k / torch.where(k > 0, k + strength, 1.0).sqrt(), 0.0)
    U, s, _ = torch.linalg.svd(((delta * scale) @ V) * whitened, full_matrices=False)
    if not strength:
        return _Optimum(delta, U, s.square())
    shrunk = ((delta * scale) @ V) * (k / (k + strength))
    return _Optimum(shrunk @ V.mT * inverse, U, s.square())


def certify_adapter(
    layer: Any,
    activations: Any,
    *,
    delta: Tensor | None = None,
    targets: Tensor | None = None,
    dropout: float | None = None,
    name: str | None = None,
    tolerance: float = 1e-3,
) -> Certificate:
    """Certify how far a trained low-rank adapter is from the best one of its rank.

    Parameters
    ----------
    layer : module or pair (B, A)
        A layer with the attributes ``lora_A`` and ``lora_B`` (and, if present, ``scaling`` and
        ``lora_dropout``) as those of peft or loralib, or the factors B (n × r) and A (r × m).
    activations : tensor of shape (…, m), or loader of such tensors
        Inputs of the layer.
    delta : tensor of shape (n, m), optional
        The weight difference that the adapter should reproduce on these inputs.
    targets : tensor of shape (…, n), optional
        Instead of `delta`: the outputs that the adapter should add, for `activations` that are a
        tensor.
    dropout : float, optional
        Probability of dropping an input, in [0, 1); by default that of ``lora_dropout``, or 0.
    name : str, optional
        Name of the adapter, if the layer has several.
    tolerance : float, default=1e-3
        The adapter counts as optimal if its error exceeds the smallest one by no more than this
        share of E‖Δx‖².

    Returns
    -------
    Certificate
        ``gap``: how much the expected error of the adapter exceeds the smallest one of its rank
        (it does not apply without `delta` or `targets`); ``rank``: the smallest rank of an adapter
        that differs from the given one by no more than 1 % of its squared output.

    Examples
    --------
    >>> import torch
    >>> from lucidae.nn import compress
    >>> _ = torch.manual_seed(0)
    >>> x, delta = torch.randn(200, 8), torch.randn(5, 8)
    >>> best = compress.adapter(delta, x.T @ x / 200, rank=2)
    >>> compress.certify_adapter(best, x, delta=delta).holds
    True
    >>> u, s, v = torch.linalg.svd(delta * torch.arange(8.0))
    >>> compress.certify_adapter((u[:, :2], v[:2]), x, delta=delta)["gap"].holds
    False
    """
    check_number(tolerance, "tolerance", low=0.0, open_low=True)
    B, A, rate = _factors(layer, name)
    strength = strength_of(rate if dropout is None else dropout)
    if delta is not None and targets is not None:
        raise ValueError("delta and targets were given, expected one of them.")
    title, product = f"adapter of rank {len(A)}", B @ A
    moment, cross, power = _moments(activations, targets, A.shape[1], B)
    own = _optimum(product, moment, 0.0).values
    tails = own.flip(0).cumsum(0).flip(0)
    rank = reported(
        "rank",
        "smallest rank of an adapter within 1 % of the squared output of this one",
        "Eckart & Young 1936",
        float(torch.sum(tails > 0.01 * tails[0])),
    )
    if delta is not None:
        target = check_tensor(delta, "delta", tuple(product.shape)).detach().to(B)
        cross = target @ moment
        power = torch.sum(cross * target)
    elif targets is not None:
        target = cross @ torch.linalg.pinv(moment, hermitian=True)  # regression on the inputs
    else:
        why = "Give delta or targets, what the adapter should do, and it is compared with them."
        return Certificate(title, (does_not_apply(*GAP, why), rank))
    # E‖t − BAx̂‖² for targets t and masked inputs x̂, as E[tx̂ᵀ] = E[txᵀ] and E[x̂x̂ᵀ] = `masked`.
    masked = moment + strength * torch.diag(torch.diagonal(moment))
    error = power - 2 * torch.sum(cross * product) + torch.sum((product @ masked) * product)
    best = power - _optimum(target, moment, strength).values[: len(A)].sum()
    scale = float(power) or 1.0
    advice = (
        f"The error is {float(error) / scale:.4g} of E‖Δx‖², the smallest one "
        f"{float(best) / scale:.4g}: compress.adapter returns an adapter that has it."
    )
    gap = at_most(*GAP, float(error - best) / scale, tolerance, advice)
    evidence = {"error": float(error), "smallest_error": float(best), "power": float(power)}
    return Certificate(title, (gap, rank), evidence)


GAP = (
    "gap",
    "no adapter of this rank has a smaller expected error, relative to E‖Δx‖²",
    "Eckart & Young 1936, with dropout of inputs",
)


def _factors(layer: Any, name: str | None) -> tuple[Any, Any, float]:
    """Return B (n, r) with the scaling, A (r, m) and the dropout rate of an adapter, in float64."""
    if isinstance(layer, tuple | list) and len(layer) == 2:
        (B, A), scaling, rate = layer, 1.0, 0.0
    elif hasattr(layer, "lora_A") and hasattr(layer, "lora_B"):
        A, B = _named(layer.lora_A, name), _named(layer.lora_B, name)
        scaling = _named(getattr(layer, "scaling", 1.0), name)
        dropped = _named(getattr(layer, "lora_dropout", None), name)
        rate = float(getattr(dropped, "p", 0.0))
    else:
        raise ValueError(
            f"layer is of type {type(layer).__name__}, expected a layer with the attributes lora_A "
            "and lora_B, or a pair (B, A)."
        )
    A = check_tensor(getattr(A, "weight", A), "A", ("r", "m"))
    B = check_tensor(getattr(B, "weight", B), "B", ("n", A.shape[0]))
    return B.detach().double() * float(scaling), A.detach().to(B.device).double(), rate


def _named(part: Any, name: str | None) -> Any:
    """Return one entry of a dict by adapter; anything else as it is."""
    if not isinstance(part, Mapping | torch.nn.ModuleDict | torch.nn.ParameterDict):
        return part
    names = list(part.keys())
    if name not in names and (name is not None or len(names) != 1):
        raise ValueError(f"name={name!r} was given, expected one of the adapters {names}.")
    return part[names[0] if name is None else name]


def _moments(
    activations: Any, targets: Tensor | None, m: int, like: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return E[xxᵀ], E[txᵀ] and E‖t‖² for inputs x and targets t, over all processes."""
    n = 0 if targets is None else len(like)
    if targets is not None:
        check_tensor(activations, "activations", (..., "n", m))
        check_tensor(targets, "targets", (*activations.shape[:-1], n))
    moment = RowMoment(m + n, device=like.device)
    for batch in batches(activations, "activations"):
        parts = [check_tensor(batch, "activations", (..., "n", m))]
        parts += [] if targets is None else [targets]
        rows = [part.detach().to(like).reshape(-1, part.shape[-1]) for part in parts]
        moment.add(torch.cat(rows, 1))
    second = moment.merged().uncentred
    return second[:m, :m], second[m:, :m], torch.diagonal(second)[m:].sum()
