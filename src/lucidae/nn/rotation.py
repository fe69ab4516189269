"""Rotation-augmented gradients (Bao et al. 2020) for a linear bottleneck inside any network."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from lucidae.linear.rules import rotation_generator
from lucidae.nn.layers import Tensor, check_bottleneck, full_precision, summed, without_autocast
from lucidae.validation import check_number

__all__ = ["RotationAugmented"]

RESCALING = ("ada", "rmsprop", "rprop", "lion", "signsgd", "muon")
"""An optimizer whose class name contains one of these words rescales each coordinate of a step, so
that it cannot apply a rotation."""


class CodeRecorder:
    """Record the outputs (codes) of an encoder from which its present gradients were computed.

    Codes are recorded when ``backward`` reaches them, and dropped when the gradients are cleared.
    Forward passes without a backward pass, such as an evaluation between two steps, are therefore
    not counted, and the order of ``zero_grad`` and the forward pass does not matter.

    If the encoder is copied, its hooks are copied too. The recorder of a copy is not connected to
    any encoder and records nothing.
    """

    def __init__(self, encoder: Any = None) -> None:
        self.codes: list[Tensor] = []
        self._arriving: list[Tensor] = []
        self._cleared = False
        self._handles: tuple[Any, ...] = ()
        self._connected = encoder is not None
        if encoder is not None:
            self._handles = (
                encoder.register_forward_hook(self),
                encoder.weight.register_hook(self._before_gradient),
                encoder.weight.register_post_accumulate_grad_hook(self._after_gradient),
            )
            self._weight = encoder.weight

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        return CodeRecorder, ()

    def __call__(self, layer: Any, _inputs: Any, codes: Tensor) -> None:
        """Register outputs (codes) of the encoder, to be recorded when ``backward`` reaches them.

        This is the forward hook of the encoder.
        """
        if not self._connected or not codes.requires_grad or not torch.is_grad_enabled():
            return
        kept = codes.detach()
        if not torch.compiler.is_compiling():
            codes.register_hook(functools.partial(self._arrive, kept))
        elif layer.training:
            # A compiled graph cannot have a hook on one of its tensors: these codes count with the
            # next gradient.
            self._arriving.append(kept)

    def _arrive(self, kept: Tensor, _gradient: Tensor) -> None:
        """Record the codes (outputs of the encoder) that ``backward`` has reached, once.

        This is the hook that torch calls with the gradient of the codes.
        """
        # A graph that is retained may be traversed more than once.
        if not any(kept is other for other in (*self.codes, *self._arriving)):
            self._arriving.append(kept)

    def _before_gradient(self, _gradient: Tensor) -> None:
        """Note whether the gradient of the encoder was cleared since the last backward pass.

        It may have been cleared by other means than the optimizer, such as ``model.zero_grad()``.
        """
        self._cleared = self._weight.grad is None

    def _after_gradient(self, _weight: Tensor) -> None:
        """Assign the codes of this backward pass to the gradient that was just accumulated.

        The codes are the outputs of the encoder.
        """
        self.codes = self._arriving if self._cleared else [*self.codes, *self._arriving]
        self._arriving = []

    def clear(self) -> None:
        """Drop the codes (outputs of the encoder) that belong to the present gradients."""
        self.codes = []

    def remove(self) -> None:
        """Remove the hooks from the encoder."""
        for handle in self._handles:
            handle.remove()
        self._connected = False


class RotationAugmented(torch.optim.Optimizer):
    """Wrap an optimizer so that it also rotates the latents onto the principal axes.

    Before each step the rotation of Bao et al. 2020, Algorithm 1 is added to the gradients of the
    weight W₁ of the encoder and W₂ of the decoder. With the second moment Y of the outputs of
    `encoder` from which these gradients were computed, and the skew matrix A = ½(triu(Y, 1) −
    tril(Y, −1)), AW₁ is subtracted from the gradient of W₁, and W₂A is added to that of W₂. To
    first order this does not change the function of the network, for any layers around the
    bottleneck. The encoder's bias is rotated, too. After the step the gradients are again those of
    the loss.

    The optimizer is used like any other: ``zero_grad`` may be called before or after the forward
    pass, gradients may be accumulated over several forward and backward passes, ``step`` accepts a
    closure, and `torch.amp.GradScaler` can be applied. Forward passes without a backward pass do
    not count. If a network is compiled, each forward pass in training mode counts.

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
        Keep ``decoder.weight`` equal to the transpose of ``encoder.weight``: both are then updated
        by the mean of their two directions. The untied rule also has fixed points at which the
        latents are not aligned with the principal axes, and discrete steps drift towards them.
        ``True`` ties the layers now (the decoder is overwritten); ``"auto"`` ties layers that are
        transposes of each other at the start.
    strength : float, default=1.0
        Factor of the rotation. The value 1 suits a loss that sums squared errors over features and
        averages them over samples; for s times that loss, use s.
    centered : bool, default=False
        Subtract the mean of the codes of each step, for latents whose mean is not zero.
    distributed : bool or "auto", default="auto"
        Compute Y from the codes of all processes of `torch.distributed`, as
        `DistributedDataParallel` does for the gradients; all processes then make the same step.
        ``"auto"`` does so if there is more than one process. Use False if each process trains a
        network of its own.

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
    >>> optimizer.zero_grad()
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
        distributed: bool | str = "auto",
    ) -> None:
        refuse_rescaling(optimizer)
        self.encoder, self.decoder = check_bottleneck(encoder, decoder, ("encoder", "decoder"))
        self.strength = check_number(strength, "strength", low=0.0)
        self.centered = bool(centered)
        if not isinstance(distributed, bool) and distributed != "auto":
            raise ValueError(
                f"distributed={distributed!r} was given, expected True, False or 'auto'."
            )
        self.distributed = distributed
        self.tied = _resolve_tying(optimizer, encoder, decoder, tied)
        self.optimizer = optimizer
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self._share()
        self._recorder = CodeRecorder(encoder)

    def __reduce__(self) -> tuple[Any, ...]:
        # Copies and pickles are made of the same arguments, so that the copy of an optimizer
        # belongs to the copy of its network. Gradients and their codes are not copied by torch.
        names = ("tied", "strength", "centered", "distributed")
        settings = {name: getattr(self, name) for name in names}
        return _rebuild, (self.optimizer, self.encoder, self.decoder, settings)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Add the rotation term to the gradients and let the wrapped optimizer make a step.

        The term turns the latents towards the principal axes (Bao et al. 2020, Algorithm 1).

        Parameters
        ----------
        closure : callable, optional
            Clears the gradients, computes the loss, calls its ``backward`` and returns it.

        Returns
        -------
        object or None
            The loss that the closure returned; None without a closure.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            of_loss = self._augment()
            try:
                self.optimizer.step()
            finally:
                for parameter, gradient in of_loss:
                    parameter.grad = gradient
            if self.tied:
                self.decoder.weight.copy_(self.encoder.weight.mT)
        self._recorder.clear()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients, and the codes from which they were computed.

        With `set_to_none` the gradients become None, otherwise zero.
        """
        self.optimizer.zero_grad(set_to_none=set_to_none)
        self._recorder.clear()

    def add_param_group(self, param_group: Any) -> None:
        """Add a group of parameters to the wrapped optimizer."""
        if "_recorder" in self.__dict__:
            self.optimizer.add_param_group(param_group)
        else:
            super().add_param_group(param_group)  # called by the constructor of the base class

    def state_dict(self) -> Any:
        """Return the state of the wrapped optimizer."""
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: Any) -> None:
        """Restore the state of the wrapped optimizer."""
        self.optimizer.load_state_dict(state_dict)
        self._share()

    def detach(self) -> Any:
        """Remove the hooks from the encoder and return the wrapped optimizer."""
        self._recorder.remove()
        return self.optimizer

    def _share(self) -> None:
        """Make this optimizer use the parameter groups and the state of the wrapped optimizer.

        Learning-rate schedulers and gradient scalers then see the same objects.
        """
        self.param_groups = self.optimizer.param_groups
        self.state = self.optimizer.state

    def _code_moment(self) -> Tensor:
        """Return the second moment of the codes from which the gradients were computed, (k, k).

        The codes are the k outputs of the encoder. Their mean is subtracted first if `centered`.
        """
        if not self._recorder.codes:
            raise RuntimeError(
                "step() was called, but no gradient went through the encoder since the last step. "
                "Call the network and loss.backward() first."
            )
        codes = torch.cat([part.reshape(-1, part.shape[-1]) for part in self._recorder.codes])
        codes = full_precision(codes).to(self.encoder.weight.dtype)
        count = self._summed(codes.new_tensor(float(len(codes)))).clamp_min(1.0)
        if self.centered:
            codes = codes - self._summed(codes.sum(0)) / count
        return self._summed(codes.mT @ codes) / count

    def _summed(self, values: Tensor) -> Tensor:
        """Return the sum of a tensor over all processes, if this training is distributed."""
        if self.distributed is False:
            return values
        processes = torch.distributed
        if self.distributed is True and not (
            processes.is_available() and processes.is_initialized()
        ):
            raise RuntimeError(
                "distributed=True was given, but torch.distributed is not initialized: call "
                "torch.distributed.init_process_group first."
            )
        return summed(values)

    def _augment(self) -> list[tuple[Any, Tensor]]:
        """Add the rotation to the gradients of the bottleneck."""
        weights = (self.encoder.weight, self.decoder.weight)
        if any(weight.grad is None for weight in weights):
            raise RuntimeError(
                "step() was called, but a layer of the bottleneck has no gradient: call "
                "loss.backward() first, and do not freeze these layers."
            )
        changed = [weight for weight in (*weights, self.encoder.bias) if weight is not None]
        before = [(parameter, parameter.grad) for parameter in changed]
        with without_autocast(weights[0]):
            generator = self.strength * rotation_generator(self._code_moment())
            self._add_rotation(generator, *weights)
        return before

    def _add_rotation(self, generator: Tensor, encoder: Tensor, decoder: Tensor) -> None:
        # A step of size η adds ηA W₁ to the encoder and −ηW₂A to the decoder, since the gradient
        # is subtracted. As (I − ηA)(I + ηA) = I − η²A², the product W₂W₁ changes by O(η²) only,
        # and I + ηA is a rotation to first order because A is skew. The bias of the encoder is
        # part of the codes and is multiplied by the same matrix.
        """Add terms to the gradients of both layers, by which a step also rotates the latents.

        The terms are −AW₁ for the encoder W₁ and W₂A for the decoder W₂, with the skew-symmetric
        matrix A, `generator`. They do not change the product W₂W₁, to first order.
        """
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


def _rebuild(
    optimizer: Any, encoder: Any, decoder: Any, settings: dict[str, Any]
) -> RotationAugmented:
    """Return a new `RotationAugmented` from the parts of a copied or unpickled object."""
    return RotationAugmented(optimizer, encoder, decoder, **settings)


def refuse_rescaling(optimizer: Any) -> None:
    """Raise an error for an optimizer whose steps are not multiples of the gradients it is given.

    Its steps would distort the rotation of the latents that is added to the gradients.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ValueError(
            f"optimizer is of type {type(optimizer).__name__}, expected a torch.optim.Optimizer."
        )
    name = type(optimizer).__name__
    ancestors = [kind.__name__.lower() for kind in type(optimizer).__mro__]
    if any(part in ancestor for ancestor in ancestors for part in RESCALING):
        raise ValueError(
            f"{name} was given, which rescales each coordinate of a step: the result is no longer "
            "a rotation of the latents, and changes the function of the network. Use "
            "torch.optim.SGD, with or without momentum."
        )
    if isinstance(optimizer, torch.optim.LBFGS | RotationAugmented):
        raise ValueError(
            f"{name} was given, which needs the gradient of a loss, but the rotation is not the "
            "gradient of any loss. Use torch.optim.SGD, with or without momentum."
        )


def _resolve_tying(optimizer: Any, encoder: Any, decoder: Any, tied: bool | str) -> bool:
    """Return whether the two layers are tied; tied layers are made transposes of each other."""
    groups = [
        _group_of(optimizer, encoder, "encoder"),
        _group_of(optimizer, decoder, "decoder"),
    ]
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
            f"{decoder.out_features} features: tied layers need weights of transposed shapes."
        )
    if _settings(groups[0]) != _settings(groups[1]):
        raise ValueError(
            "tied=True was given, but the two weights are in parameter groups of different "
            "settings: give both the same learning rate and momentum."
        )
    with torch.no_grad():
        decoder.weight.copy_(encoder.weight.mT)
    return True


def _group_of(optimizer: Any, layer: Any, name: str) -> Any:
    """Return the parameter group of an optimizer that contains the weight of a layer.

    A weight that is not trainable, or not in the optimizer, is an error; `name` is the layer's name
    in the message.
    """
    if not layer.weight.requires_grad:
        raise ValueError(
            f"{name}.weight does not require a gradient, so that it cannot be trained: call "
            f"{name}.requires_grad_() first."
        )
    for group in optimizer.param_groups:
        if any(parameter is layer.weight for parameter in group["params"]):
            return group
    raise ValueError(f"{name}.weight is not a parameter of the optimizer: add it to the optimizer.")


def _settings(group: Any) -> dict[str, Any]:
    """Return the settings of a parameter group, such as the learning rate, without parameters."""
    return {name: value for name, value in group.items() if name != "params"}
