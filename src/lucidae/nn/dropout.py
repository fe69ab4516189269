"""Dropout between two linear layers: its penalty on the weights, equalized weights, certificate."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from lucidae.arrays import scalar
from lucidae.certificates.claims import Certificate, Claim, at_most
from lucidae.dropout.claims import certify_weights
from lucidae.dropout.equalize import equalize_pair
from lucidae.dropout.theory import strength_of
from lucidae.nn.layers import (
    Tensor,
    check_bottleneck,
    check_pair,
    check_tensor,
    full_precision,
    without_autocast,
)
from lucidae.validation import check_choice, check_number

__all__ = ["DropoutPenalty", "certify_dropout", "equalize_layers"]

NAMES = ("linear1", "linear2")


class DropoutPenalty(nn.Module):
    """The penalty that dropout between two linear layers adds to the squared error.

    The penalty is λ Σᵢ ‖uᵢ‖² E[hᵢ²], with λ = dropout / (1 − dropout), hidden units h = linear1(x)
    and the columns uᵢ of the second layer's weight (Mianjy et al. 2018, eq. 2, here for any inputs
    and with biases). The squared error without dropout plus this penalty is exactly the mean of the
    squared error with dropout over all masks, so that training minimises the same loss without the
    noise of the masks.

    Parameters
    ----------
    dropout : float, default=0.5
        Probability of dropping a hidden unit, in [0, 1).
    reduction : {"sum", "mean"}, default="sum"
        Whether the squared error to which the penalty is added is a sum over the outputs of a
        sample, or a mean as in `nn.MSELoss`. Over samples it is a mean in both cases.

    Examples
    --------
    >>> import torch
    >>> from lucidae.nn import DropoutPenalty
    >>> first, second = torch.nn.Linear(2, 1, bias=False), torch.nn.Linear(1, 1, bias=False)
    >>> _ = first.weight.data.fill_(1.0), second.weight.data.fill_(2.0)
    >>> penalty = DropoutPenalty(dropout=0.5)
    >>> penalty(first, second, torch.tensor([[1.0, 2.0]])).item()
    36.0
    """

    def __init__(self, dropout: float = 0.5, *, reduction: str = "sum") -> None:
        super().__init__()
        self.strength = strength_of(dropout)
        self.dropout = float(dropout)
        self.reduction = check_choice(reduction, "reduction", ("sum", "mean"))

    def forward(self, linear1: Any, linear2: Any, inputs: Tensor | None = None) -> Tensor:
        """Return the penalty of dropout for two layers, a zero-dimensional tensor.

        Parameters
        ----------
        linear1, linear2 : nn.Linear
            The layers before and after the dropout.
        inputs : tensor of shape (…, linear1.in_features), optional
            Inputs of `linear1`; without them, inputs of identity covariance are assumed.
        """
        check_pair(linear1, linear2, NAMES)
        if inputs is not None:
            check_tensor(inputs, "inputs", (..., linear1.in_features), linear1.weight)
        with without_autocast(linear1.weight):
            power = _hidden_power(linear1, inputs)
            outgoing = torch.sum(torch.square(full_precision(linear2.weight)), 0)
            outputs = linear2.out_features if self.reduction == "mean" else 1
            return self.strength / outputs * torch.sum(outgoing * power)

    def extra_repr(self) -> str:
        """Return the settings that are shown when the module is printed."""
        return f"dropout={self.dropout}, reduction={self.reduction!r}"


def _hidden_power(layer: Any, inputs: Tensor | None) -> Tensor:
    """Return the mean square E[hᵢ²] of each hidden unit over `inputs`.

    If `inputs` is None, inputs of mean 0 and identity covariance are assumed.
    """
    weight = full_precision(layer.weight)
    bias = None if layer.bias is None else full_precision(layer.bias)
    if inputs is not None:
        rows = inputs.reshape(-1, inputs.shape[-1]).to(weight.dtype)
        return torch.mean(torch.square(nn.functional.linear(rows, weight, bias)), 0)
    power = torch.sum(torch.square(weight), 1)
    return power if bias is None else power + torch.square(bias)


def equalize_layers(linear1: Any, linear2: Any) -> None:
    """Make the norms of the hidden units between two linear layers equal, in place.

    The function ``linear2(linear1(x))`` does not change. Afterwards every column of
    ``linear2.weight`` and every row of ``linear1.weight`` has the same norm, the smallest one
    possible for this product, so that for inputs of identity covariance no other weights of the
    same function have a smaller dropout penalty (Mianjy et al. 2018, Theorem 3.3).

    Parameters
    ----------
    linear1, linear2 : nn.Linear
        The layers before and after the hidden units.

    Examples
    --------
    >>> import torch
    >>> from lucidae.nn import equalize_layers
    >>> _ = torch.manual_seed(0)
    >>> first, second, x = torch.nn.Linear(4, 3), torch.nn.Linear(3, 4), torch.randn(7, 4)
    >>> before = second(first(x))
    >>> equalize_layers(first, second)
    >>> torch.allclose(second(first(x)), before, atol=1e-5)
    True
    >>> second.weight.norm(dim=0).std().item() < 1e-5
    True
    """
    check_bottleneck(linear1, linear2, NAMES)
    with torch.no_grad():
        old, bias = linear2.weight.double(), linear1.bias
        left, right = equalize_pair(old, linear1.weight.double().mT)
        if bias is not None:
            _carry_bias(linear1, linear2, old @ bias.double(), left)
        linear1.weight.copy_(right.mT)
        linear2.weight.copy_(left)


def _carry_bias(linear1: Any, linear2: Any, shift: Tensor, left: Tensor) -> None:
    """Set new biases of both layers so that the bias of the hidden units has the same effect.

    The old hidden bias b added U b (`shift`) to the output, with the old weight U of `linear2`.
    With the new weight U' (`left`) and its pseudoinverse U'⁺, the hidden bias U'⁺U b reproduces the
    part of the shift in the range of U'; the remaining part is added to the output bias.
    """
    hidden = torch.linalg.pinv(left) @ shift
    rest = shift - left @ hidden
    if linear2.bias is None and torch.linalg.vector_norm(rest) > 1e-6 * (
        torch.linalg.vector_norm(shift) + torch.finfo(shift.dtype).tiny
    ):
        raise ValueError(
            "linear1 has a bias that the new weights cannot reproduce, and linear2 has none: "
            "give linear2 a bias, or set the bias of linear1 to zero."
        )
    linear1.bias.copy_(hidden)
    if linear2.bias is not None:
        linear2.bias.add_(rest.to(linear2.bias.dtype))


def certify_dropout(
    linear1: Any,
    linear2: Any,
    data: Tensor,
    target: Tensor | None = None,
    *,
    dropout: float = 0.5,
    tolerance: float = 1e-6,
) -> Certificate:
    """Certify two linear layers with dropout between them against the known optimum.

    The optimum is the global minimum of the expected dropout loss (Mianjy et al. 2018, Theorem
    3.6).

    Parameters
    ----------
    linear1, linear2 : nn.Linear
        The layers before and after the dropout.
    data : tensor of shape (n, linear1.in_features)
        Inputs, one row per sample.
    target : tensor of shape (n, linear2.out_features), optional
        Desired outputs; the inputs themselves by default, for an autoencoder.
    dropout : float, default=0.5
        Probability of dropping a hidden unit, in [0, 1).
    tolerance : float, default=1e-6
        The weights count as optimal if their loss minus the global minimum, relative to the mean
        squared norm of the targets, is at most this.

    Returns
    -------
    Certificate
        The claims of `lucidae.certify` for dropout weights. If a layer has a bias, these claims
        refer to centred data, and a claim about the biases is added: the loss of the network is
        the loss on centred data plus the contribution of the biases.

    Examples
    --------
    >>> import torch
    >>> from lucidae.nn import certify_dropout
    >>> _ = torch.manual_seed(0)
    >>> first, second = torch.nn.Linear(3, 2, bias=False), torch.nn.Linear(2, 3, bias=False)
    >>> certificate = certify_dropout(first, second, torch.randn(50, 3))
    >>> certificate["gap"].holds
    False
    """
    check_bottleneck(linear1, linear2, NAMES)
    check_number(tolerance, "tolerance", low=0.0, open_low=True)
    inputs = check_tensor(data, "data", ("n", linear1.in_features)).detach().double()
    outputs = inputs
    if target is None:
        if linear2.out_features != linear1.in_features:
            raise ValueError(
                f"no target was given, but linear1 has {linear1.in_features} inputs and linear2 "
                f"{linear2.out_features} outputs: give the target (only an autoencoder needs none)."
            )
    else:
        check_tensor(target, "target", (len(data), linear2.out_features))
        outputs = target.detach().double()
    biased = linear1.bias is not None or linear2.bias is not None
    certificate = certify_weights(
        linear2.weight.detach(),
        linear1.weight.detach().mT,
        inputs,
        outputs,
        dropout=dropout,
        fit_intercept=biased,
        tolerance=tolerance,
    )
    if not biased:
        return certificate
    claim = _bias_claim(linear1, linear2, inputs, outputs, strength_of(dropout), tolerance)
    return Certificate(certificate.title, (*certificate.claims, claim), certificate.evidence)


def _bias_claim(
    linear1: Any, linear2: Any, inputs: Tensor, outputs: Tensor, strength: float, tolerance: float
) -> Claim:
    """Return the claim that the biases of two layers add nothing to the loss on centred data.

    The expected dropout loss is that on centred data plus ‖ȳ − ŷ‖² + λ Σᵢ ‖uᵢ‖² h̄ᵢ², with the mean
    target ȳ, the mean output ŷ, the strength λ of dropout, the columns uᵢ of the second weight and
    the means h̄ᵢ of the hidden units. Both terms are zero for the best biases.
    """
    with torch.no_grad():
        first, second = linear1.weight.double(), linear2.weight.double()
        mean = inputs.to(first.device).mean(0)
        hidden = first @ mean + (0.0 if linear1.bias is None else linear1.bias.double())
        miss = outputs.to(first.device).mean(0) - second @ hidden
        miss = miss - (0.0 if linear2.bias is None else linear2.bias.double())
        drag = strength * torch.sum(torch.sum(second * second, 0) * hidden * hidden)
        excess = scalar(torch.sum(miss * miss) + drag)
        power = scalar(torch.var(outputs, 0, correction=0).sum())
    return at_most(
        "biases",
        "the biases are optimal: the hidden units and the errors of the outputs have mean zero",
        "Mianjy et al. 2018, eq. 2, with biases",
        excess / (power if power > 0 else 1.0),
        tolerance,
        "Set linear1.bias to minus linear1.weight times the mean input and linear2.bias to the "
        "mean target; both layers need a bias.",
    )
