"""Rotation-augmented gradients for a linear bottleneck inside any network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from lucidae.linear.rules import rotation_generator
from lucidae.nn.layers import Tensor, check_bottleneck, full_precision, without_autocast
from lucidae.validation import check_number

__all__ = ["RotationAugmented"]

RESCALING = ("ada", "rmsprop", "rprop", "lion", "signsgd", "muon")
"""Parts of the names of optimizers that rescale the coordinates of a step."""


class RotationAugmented(torch.optim.Optimizer):
    """Wrap an optimizer so that it also rotates the latents onto the principal axes.

    Before each step the rotation of Bao et al. 2020, Algorithm 1 is added to the gradients: with
    the second moment Y of the outputs of `encoder` since the last step and
    A = ½(triu(Y, 1) − tril(Y, −1)), g₁ ← g₁ − AW₁ and g₂ ← g₂ + W₂A. To first order this does not
    change the function of the network, for any layers around the bottleneck. The encoder's bias is
    rotated, too.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        Gradient descent with or without momentum, such as `torch.optim.SGD`; its parameters
        must include the weights of both layers. Optimizers that rescale each coordinate, such as
        Adam, raise an error.
    encoder : nn.Linear
        The layer whose outputs are the latents.
    decoder : nn.Linear
        The layer whose inputs are the latents.
    tied : bool or "auto", default="auto"
        Keep ``decoder.weight`` equal to the transpose of ``encoder.weight``: both are then
        updated by the mean of their two directions. The untied rule has fixed points that are not
        aligned, and discrete steps drift towards them. ``True`` ties the layers now (the decoder
        is overwritten); ``"auto"`` ties layers that are transposes of each other at the start.
    strength : float, default=1.0
        Factor of the rotation. The value 1 suits a loss that sums squared errors over features and
        averages them over samples; for s times that loss, use s.
    centered : bool, default=False
        Subtract the mean of the codes of each step, for latents whose mean is not zero.

    Examples
    --------
    >>> import torch
    >>> from lucidae.nn import RotationAugmented
    >>> encoder = torch.nn.Linear(5, 2, bias=False)
    >>> decoder = torch.nn.Linear(2, 5, bias=False)
    >>> sgd = torch.optim.SGD([encoder.weight, decoder.weight], lr=0.01, momentum=0.9)
    >>> optimizer = RotationAugmented(sgd, encoder, decoder, tied=True)
    >>> x = torch.randn(8, 5)
    >>> loss = (x - decoder(encoder(x))).square().sum(1).mean()
    >>> loss.backward()
    >>> optimizer.step()
    >>> torch.equal(decoder.weight, encoder.weight.T)
    True
    """

    def __init__(
        self,
        optimizer: Any,
        encoder: Any,
        decoder: Any,
        *,
        tied: bool | str = "auto",
        strength: float = 1.0,
        centered: bool = False,
    ) -> None:
        refuse_rescaling(optimizer)
        self.encoder, self.decoder = check_bottleneck(encoder, decoder, ("encoder", "decoder"))
        self.strength = check_number(strength, "strength", low=0.0)
        self.centered = bool(centered)
        self.tied = _resolve_tying(optimizer, encoder, decoder, tied)
        self.optimizer = optimizer
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self._share()
        self._clear_codes()
        self._hook = encoder.register_forward_hook(self._record_codes)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Add the rotation to the gradients and let the wrapped optimizer step."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            self._augment()
            self.optimizer.step()
            if self.tied:
                self.decoder.weight.copy_(self.encoder.weight.mT)
        self._clear_codes()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients and the codes that belong to them."""
        self.optimizer.zero_grad(set_to_none=set_to_none)
        self._clear_codes()

    def add_param_group(self, param_group: Any) -> None:
        """Add a group of parameters to the wrapped optimizer."""
        if "optimizer" in self.__dict__ and hasattr(self, "_hook"):
            self.optimizer.add_param_group(param_group)
        else:
            super().add_param_group(param_group)

    def state_dict(self) -> Any:
        """Return the state of the wrapped optimizer."""
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: Any) -> None:
        """Restore the state of the wrapped optimizer."""
        self.optimizer.load_state_dict(state_dict)
        self._share()

    def detach(self) -> Any:
        """Remove the hook from the encoder and return the wrapped optimizer."""
        self._hook.remove()
        return self.optimizer

    def _share(self) -> None:
        """Share groups and state with the wrapped optimizer, for schedulers and scalers."""
        self.param_groups = self.optimizer.param_groups
        self.state = self.optimizer.state

    def _clear_codes(self) -> None:
        self._codes: list[Tensor] = []

    def _record_codes(self, layer: Any, _: Any, codes: Tensor) -> None:
        if layer.training and torch.is_grad_enabled():
            self._codes.append(codes.detach())

    def _code_moment(self) -> Tensor:
        """Return the second moment of the codes since the last step."""
        if not self._codes:
            raise RuntimeError(
                "step() was called, but the encoder was not used in training mode since the last "
                "step: call the network and loss.backward() first."
            )
        codes = torch.cat([part.reshape(-1, part.shape[-1]) for part in self._codes])
        codes = full_precision(codes).to(self.encoder.weight.dtype)
        codes = codes - codes.mean(0) if self.centered else codes
        return codes.mT @ codes / codes.shape[0]

    def _augment(self) -> None:
        weights = (self.encoder.weight, self.decoder.weight)
        if any(weight.grad is None for weight in weights):
            raise RuntimeError(
                "step() was called, but a layer of the bottleneck has no gradient: call "
                "loss.backward() first, and do not freeze these layers."
            )
        with without_autocast(weights[0]):
            generator = self.strength * rotation_generator(self._code_moment())
            self._add_rotation(generator, *weights)

    def _add_rotation(self, generator: Tensor, encoder: Tensor, decoder: Tensor) -> None:
        # A step of size η adds ηA W₁ to the encoder and −ηW₂A to the decoder, since the gradient
        # is subtracted. As (I − ηA)(I + ηA) = I − η²A², the product W₂W₁ changes by O(η²) only,
        # and I + ηA is a rotation to first order because A is skew. The bias of the encoder is
        # part of the codes and is multiplied by the same matrix.
        if self.tied:
            # With W₂ = W₁ᵀ the decoder's step is the transpose of the encoder's, Aᵀ = −A; both
            # follow the mean of the two loss gradients, so that rounding cannot separate them.
            mean = (encoder.grad + decoder.grad.mT) / 2 - generator @ encoder
            encoder.grad, decoder.grad = mean, mean.mT.contiguous()
        else:
            encoder.grad = encoder.grad - generator @ encoder
            decoder.grad = decoder.grad + decoder @ generator
        bias = self.encoder.bias
        if bias is not None and bias.grad is not None:
            bias.grad = bias.grad - generator @ bias


def refuse_rescaling(optimizer: Any) -> None:
    """Raise ValueError for an optimizer whose step would not apply a rotation."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ValueError(
            f"optimizer is a {type(optimizer).__name__}, expected a torch.optim optimizer."
        )
    name = type(optimizer).__name__
    ancestors = [kind.__name__.lower() for kind in type(optimizer).__mro__]
    if any(part in ancestor for ancestor in ancestors for part in RESCALING):
        raise ValueError(
            f"{name} was given, which rescales the coordinates of a step: the result is no longer "
            "a rotation of the latents, and the function of the network changes. Use "
            "torch.optim.SGD, with or without momentum."
        )
    if isinstance(optimizer, torch.optim.LBFGS | RotationAugmented):
        raise ValueError(
            f"{name} was given, which needs the gradient of a loss, but the rotation is not the "
            "gradient of any loss. Use torch.optim.SGD, with or without momentum."
        )


def _resolve_tying(optimizer: Any, encoder: Any, decoder: Any, tied: bool | str) -> bool:
    """Return whether the layers are tied, tying them if that was asked for."""
    groups = [_group_of(optimizer, layer, name) for layer, name in _named(encoder, decoder)]
    if not isinstance(tied, bool) and tied != "auto":
        raise ValueError(f"tied={tied!r} was given, expected True, False or 'auto'.")
    fits = tuple(encoder.weight.shape) == tuple(decoder.weight.mT.shape)
    if tied == "auto":
        tied = fits and torch.equal(encoder.weight, decoder.weight.mT)
    if not tied:
        return False
    if not fits:
        raise ValueError(
            f"tied=True was given, but the encoder maps {encoder.in_features} to "
            f"{encoder.out_features} and the decoder {decoder.in_features} to "
            f"{decoder.out_features}: only transposes of each other can be tied."
        )
    if _settings(groups[0]) != _settings(groups[1]):
        raise ValueError(
            "tied=True was given, but the two weights are in parameter groups of different "
            "settings: give both the same learning rate and momentum."
        )
    with torch.no_grad():
        decoder.weight.copy_(encoder.weight.mT)
    return True


def _named(encoder: Any, decoder: Any) -> tuple[tuple[Any, str], tuple[Any, str]]:
    return (encoder, "encoder"), (decoder, "decoder")


def _group_of(optimizer: Any, layer: Any, name: str) -> Any:
    for group in optimizer.param_groups:
        if any(parameter is layer.weight for parameter in group["params"]):
            return group
    raise ValueError(f"{name}.weight is not a parameter of the optimizer: add it first.")


def _settings(group: Any) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != "params"}
