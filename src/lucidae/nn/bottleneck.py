"""Two linear layers around a bottleneck: order of the latents, dropout, rotations, certificates.

The optimum of such a pair is known: principal components (Bao et al. 2020), and with dropout of the
hidden units shrunk ones (Mianjy et al. 2018).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from lucidae.arrays import eigh_descending
from lucidae.arrays.eigen import fix_signs
from lucidae.certificates.claims import Certificate, Claim, at_most, certify
from lucidae.dropout.claims import certify_weights
from lucidae.dropout.solvers import equalize_pair
from lucidae.dropout.theory import strength_of
from lucidae.linear.objectives import rotation_generator
from lucidae.moments import SecondMoment
from lucidae.nn.layers import (
    Tensor,
    batches,
    check_bottleneck,
    check_pair,
    check_tensor,
    full_precision,
    summed,
    without_autocast,
)
from lucidae.validation import check_choice, check_number

NAMES = ("linear1", "linear2")

RESCALING = ("ada", "rmsprop", "rprop", "lion", "signsgd", "muon")
"""An optimizer whose class name contains one of these words rescales each coordinate of a step, so
that it cannot apply a rotation."""


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
    inputs: SecondMoment | None = None
    for batch in batches(data):
        if batch.ndim != 2 or batch.shape[1] != encoder.in_features:
            raise ValueError(
                f"data contains a batch of shape {tuple(batch.shape)}, expected "
                f"(batch, {encoder.in_features})."
            )
        rows = batch.detach().to(encoder.weight.device)
        inputs = SecondMoment.of(rows) if inputs is None else inputs.update(rows)
    if inputs is None or inputs.weight < 2:
        raise ValueError("data contains one row, expected at least two to compute variances.")
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
        pad, extra = nn.functional.pad, encoder.out_features - len(turn)
        turn = pad(turn, (0, 0, 0, extra))  # latents beyond the number of outputs become zero
        encoder.weight.copy_(turn @ encoder.weight.double())
        if encoder.bias is not None:
            encoder.bias.copy_(turn @ encoder.bias.double())
        decoder.weight.copy_(pad(columns, (0, extra)))
        if center:
            mean = encoder.weight.double() @ inputs.mean + encoder.bias.double()
            encoder.bias.sub_(mean.to(encoder.bias.dtype))
            decoder.bias.add_((decoder.weight.double() @ mean).to(decoder.bias.dtype))
        return pad(variances.clamp_min(0.0), (0, extra)).to(encoder.weight.dtype)


def certify_linear(
    encoder: Any, decoder: Any, data: Tensor, *, method: str = "rag", **settings: Any
) -> Certificate:
    """Certify a linear bottleneck against the principal components of its inputs.

    The optimum of a linear autoencoder is known (Bao et al. 2020, Theorems 1 to 3). Biases are not
    judged: the weights are compared with the covariance of the data.

    Parameters
    ----------
    encoder, decoder : nn.Linear
        The layers before and after the latents.
    data : tensor of shape (n, encoder.in_features)
        Inputs of the encoder, which are also the targets of the decoder.
    method : str, default="rag"
        Method with which the layers were trained, a value of the argument `method` of
        `LinearAutoencoder`: it decides which claims are made about the latents.
    **settings
        Further settings of `certify` for a pair of weights, such as `l2`.

    Returns
    -------
    Certificate
        The claims with their verdicts.

    Examples
    --------
    >>> import torch
    >>> from lucidae.nn import certify_linear
    >>> x = torch.randn(100, 3, generator=torch.Generator().manual_seed(0))
    >>> x = x * torch.tensor([3.0, 2.0, 1.0])
    >>> encoder, decoder = torch.nn.Linear(3, 2), torch.nn.Linear(2, 3)
    >>> certify_linear(encoder, decoder, x)["subspace"].holds
    False
    """
    check_bottleneck(encoder, decoder, ("encoder", "decoder"))
    rows = check_tensor(data, "data", ("n", encoder.in_features)).detach().double()
    if decoder.out_features != encoder.in_features:
        raise ValueError(
            f"encoder has {encoder.in_features} inputs and decoder {decoder.out_features} outputs, "
            "expected equal numbers: the principal components are the optimum of an autoencoder."
        )
    weights = tuple(layer.weight.detach().double() for layer in (encoder, decoder))
    return certify(weights, rows.to(weights[0].device), family="linear", method=method, **settings)


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
            weight = full_precision(linear1.weight)
            bias = None if linear1.bias is None else full_precision(linear1.bias)
            if inputs is None:
                power = torch.sum(torch.square(weight), 1)
                power = power if bias is None else power + torch.square(bias)
            else:
                rows = inputs.reshape(-1, inputs.shape[-1]).to(weight.dtype)
                power = torch.mean(torch.square(nn.functional.linear(rows, weight, bias)), 0)
            outgoing = torch.sum(torch.square(full_precision(linear2.weight)), 0)
            outputs = linear2.out_features if self.reduction == "mean" else 1
            return self.strength / outputs * torch.sum(outgoing * power)

    def extra_repr(self) -> str:
        """Return the settings that are shown when the module is printed."""
        return f"dropout={self.dropout}, reduction={self.reduction!r}"


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
            # The hidden bias b added U b to the output. With the new weight U' the hidden bias
            # U'⁺U b reproduces its part in the range of U'; the rest is added to the output bias.
            shift = old @ bias.double()
            hidden = torch.linalg.pinv(left) @ shift
            rest = shift - left @ hidden
            size, tiny = torch.linalg.vector_norm(shift), torch.finfo(shift.dtype).tiny
            if linear2.bias is not None:
                linear2.bias.add_(rest.to(linear2.bias.dtype))
            elif torch.linalg.vector_norm(rest) > 1e-6 * (size + tiny):
                raise ValueError(
                    "linear1 has a bias that the new weights cannot reproduce, and linear2 has "
                    "none: give linear2 a bias, or set the bias of linear1 to zero."
                )
            bias.copy_(hidden)
        linear1.weight.copy_(right.mT)
        linear2.weight.copy_(left)


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
        excess = float(torch.sum(miss * miss) + drag)
        power = float(torch.var(outputs, 0, correction=0).sum())
    return at_most(
        "biases",
        "the biases are optimal: the hidden units and the errors of the outputs have mean zero",
        "Mianjy et al. 2018, eq. 2, with biases",
        excess / (power if power > 0 else 1.0),
        tolerance,
        "Set linear1.bias to minus linear1.weight times the mean input and linear2.bias to the "
        "mean target; both layers need a bias.",
    )


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
        made = functools.partial(RotationAugmented, **settings)
        return made, (self.optimizer, self.encoder, self.decoder)

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
        self._recorder.codes = []
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients, and the codes from which they were computed.

        With `set_to_none` the gradients become None, otherwise zero.
        """
        self.optimizer.zero_grad(set_to_none=set_to_none)
        self._recorder.codes = []

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
        processes = torch.distributed
        started = processes.is_available() and processes.is_initialized()
        if self.distributed is True and not started:
            raise RuntimeError(
                "distributed=True was given, but torch.distributed is not initialized: call "
                "torch.distributed.init_process_group first."
            )
        return summed(values) if self.distributed else values

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
        encoder, decoder = weights
        # A step of size η adds ηA W₁ to the encoder and −ηW₂A to the decoder, since the gradient
        # is subtracted. As (I − ηA)(I + ηA) = I − η²A², the product W₂W₁ changes by O(η²) only,
        # and I + ηA is a rotation to first order because A is skew. The bias of the encoder is
        # part of the codes and is multiplied by the same matrix.
        with without_autocast(encoder):
            generator = self.strength * rotation_generator(self._code_moment())
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
        return before


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
    settings = [
        {name: value for name, value in _group_of(optimizer, *pair).items() if name != "params"}
        for pair in ((encoder, "encoder"), (decoder, "decoder"))
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
    if settings[0] != settings[1]:
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
