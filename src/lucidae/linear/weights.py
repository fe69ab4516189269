"""Weights of a linear autoencoder, and the first-order optimizers that change them.

Both layers are stored as arrays of shape (…, k, m) for k latents and m features: `encoder` is the
encoder matrix W₁, and `atoms` the transposed decoder matrix W₂ᵀ, whose rows are the decoder's
columns. Leading axes contain the weights of independent training runs.

An optimizer does not change itself or its state: `update` returns a new state. A learning rate is a
number, or an array that broadcasts over weights of shape (runs, k, m), with one rate per run.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, NamedTuple

from lucidae.arrays import Array, namespace, squared_norm, where_set
from lucidae.metrics import alignment_of, subspace_distance
from lucidae.rows.covariances import Covariance


class UntiedWeights(NamedTuple):
    """Encoder and transposed decoder (`atoms`) as two independent arrays of shape (…, k, m).

    k is the number of latents and m that of features.
    """

    encoder: Annotated[Array, "km"]
    atoms: Annotated[Array, "km"]

    def gather(self, encoder: Array, atoms: Array) -> UntiedWeights:
        """Return the gradients of the encoder and of `atoms` as `UntiedWeights`."""
        return UntiedWeights(encoder, atoms)

    def in_units(self, unit: float) -> UntiedWeights:  # noqa: ARG002
        """Return the weights unchanged: the product of decoder and encoder has no unit."""
        return self


class TiedWeights(NamedTuple):
    """One array of shape (…, k, m) for both layers: the decoder is the transposed encoder.

    k is the number of latents and m that of features.
    """

    encoder: Annotated[Array, "km"]

    @property
    def atoms(self) -> Array:
        """The transposed decoder, which is the encoder itself."""
        return self.encoder

    def gather(self, encoder: Array, atoms: Array) -> TiedWeights:
        """Return the mean of the gradients of encoder and decoder as `TiedWeights`."""
        # By the chain rule the gradient is the sum; the mean has the step size of untied weights.
        return TiedWeights((encoder + atoms) / 2)

    def in_units(self, unit: float) -> TiedWeights:  # noqa: ARG002
        """Return the weights unchanged: the product of decoder and encoder has no unit."""
        return self


class VariationalWeights(NamedTuple):
    """Parameters of a linear VAE: both layers, posterior variances and noise variance.

    Parameters
    ----------
    encoder, atoms : arrays of shape (…, k, m)
        Encoder and transposed decoder, for k latents and m features.
    log_variances : array of shape (…, k, 1)
        Logarithm of the posterior variance of each latent.
    log_noise : array of shape (…, 1, 1)
        Logarithm of the noise variance of the decoder. The two trailing axes of length 1 let a
        learning rate per run broadcast over every field.
    """

    encoder: Annotated[Array, "km"]
    atoms: Annotated[Array, "km"]
    log_variances: Annotated[Array, "k1"]
    log_noise: Annotated[Array, "11"]

    def gather(self, encoder: Array, atoms: Array) -> VariationalWeights:
        """Return the gradients of both layers as weights of a VAE, with zeros for the variances."""
        return VariationalWeights(encoder, atoms, 0.0 * self.log_variances, 0.0 * self.log_noise)

    def in_units(self, unit: float) -> VariationalWeights:
        """Return the weights that compute the same latents from data multiplied by `unit`.

        The posterior variances of the latents stay the same, and the noise variance is multiplied
        by the square of `unit`.
        """
        return VariationalWeights(
            self.encoder / unit,
            self.atoms * unit,
            self.log_variances,
            self.log_noise + 2 * math.log(unit),
        )


AnyWeights = UntiedWeights | TiedWeights | VariationalWeights
"""The weights of a linear autoencoder that objectives and update rules take."""


def map_fields(function: Callable[..., Array], first: Any, *others: Any) -> Any:
    """Return weights of the type of `first` whose fields are `function` of the given fields."""
    return type(first)(*(function(*fields) for fields in zip(first, *others, strict=True)))


def finite_or_nan(measure: Callable[[Array, Array], Array]) -> Callable[[Any], Array]:
    """Return a function of weights: `measure` of both layers, NaN for weights that diverged.

    These are not finite, or so large that a measure, which has fourth powers, would overflow.
    """

    def measured(weights: Any) -> Array:
        (encoder, atoms), xp = (weights.encoder, weights.atoms), namespace(weights.atoms)
        most = float(xp.finfo(atoms.dtype).max) ** 0.2
        finite = (xp.abs(encoder) < most) & (xp.abs(atoms) < most)
        encoder, atoms = (where_set(part, ~finite, 0.0) for part in (encoder, atoms))
        found = xp.asarray(measure(encoder, atoms.mT), device=atoms.device)
        return where_set(found, ~xp.all(finite, axis=(-2, -1)), float("nan"))

    return measured


def axis_distances(axes: Array) -> dict[str, Callable[[Any], Array]]:
    """Return functions of weights, by name: the distances of the decoder to known axes (m, k).

    ``"alignment"`` and ``"subspace"`` are the axis-alignment and the subspace distance of Bao et
    al. 2020, Definitions 7.1 and 7.2.
    """
    return {
        "alignment": finite_or_nan(lambda _, decoder: alignment_of(decoder, axes)),
        "subspace": finite_or_nan(lambda _, decoder: subspace_distance(decoder, axes)),
    }


def of_states(measures: Mapping[str, Callable[[Any], Array]]) -> dict[str, Callable[[Any], Array]]:
    """Return functions of an optimizer's state, from functions of its weights."""
    return {
        name: partial(lambda measure, state: measure(state.weights), measure)
        for name, measure in measures.items()
    }


def frobenius(weights: Any) -> Array:
    """Return the Frobenius norm of all fields of the weights together, one number per run."""
    xp = namespace(weights[0])
    # Divided by the largest entry first, so that no square overflows or underflows.
    peak = xp.max(xp.stack([xp.max(xp.abs(field), axis=(-2, -1)) for field in weights]), axis=0)
    unit = xp.where(peak > 0, peak, xp.ones_like(peak))
    squares = sum(squared_norm(field / unit[..., None, None]) for field in weights)
    return unit * xp.sqrt(squares)


class Products(NamedTuple):
    """The matrix products from which full-batch losses and their gradients are computed.

    For m features and k latents, let Σ be the second moment of the data (m × m), W₁ the encoder
    (k × m) and W₂ the decoder (m × k). `encoded` is W₁Σ and `decoded` is W₂ᵀΣ, both of shape
    (…, k, m). `code_moment`, the second moment of the codes, is W₁ΣW₁ᵀ, and `gram` is W₂ᵀW₂; both
    have shape (…, k, k).
    """

    encoded: Array
    decoded: Array
    code_moment: Array
    gram: Array


def products(weights: AnyWeights, covariance: Covariance) -> Products:
    """Return the `Products` of the encoder and the decoder with the second moment of the data.

    Both layers are multiplied in one product, so that the data are read once.
    """
    encoder, atoms = weights.encoder, weights.atoms
    if atoms is encoder:  # tied weights
        encoded = decoded = covariance.apply(encoder)
    else:
        k = encoder.shape[-2]
        stacked = covariance.apply(namespace(encoder).concat([encoder, atoms], axis=-2))
        encoded, decoded = stacked[..., :k, :], stacked[..., k:, :]
    return Products(encoded, decoded, encoded @ encoder.mT, atoms @ atoms.mT)


ADAM_RATE = 3e-3
"""Step size of Adam with `learning_rate="auto"`; it does not depend on the scale of the loss."""


@dataclass(frozen=True, slots=True)
class Optimizer(ABC):
    """Interface of optimizers, which update weights against a direction such as a gradient."""

    rate: Any  # the step size; an array has one step size per run
    # the momentum, from 0 to below 1, which optimizers without momentum ignore
    momentum: float = 0.9

    has_momentum: ClassVar[bool] = False

    def start(self, weights: Any) -> Any:
        """Return the optimizer's state before the first step from the given weights."""
        return DescentState(weights)

    @abstractmethod
    def update(self, state: Any, direction: Any) -> Any:
        """Return the state after one step against `direction`."""


class DescentState(NamedTuple):
    """State of gradient descent: only the weights."""

    weights: Any


class MomentumState(NamedTuple):
    """State of heavy ball and Nesterov: the weights, and the velocity in the same shape."""

    weights: Any
    velocity: Any


class AdamState(NamedTuple):
    """State of Adam.

    The fields are the weights, the running averages of the gradient (`first`) and of its square
    (`second`) in the same shape, and the number of steps.
    """

    weights: Any
    first: Any
    second: Any
    steps: Annotated[Array, "11"]


def _plus(weights: Any, direction: Any, scale: Any) -> Any:
    """Return weights + scale · direction for every field of the weights."""
    return map_fields(lambda w, d: w + scale * d, weights, direction)


@dataclass(frozen=True, slots=True)
class GradientDescent(Optimizer):
    """Gradient descent w ← w − αg with weights w, gradient g and step size α.

    The momentum is ignored.
    """

    def update(self, state: DescentState, direction: Any) -> DescentState:
        """Return the state after one step against `direction`."""
        return DescentState(_plus(state.weights, direction, -self.rate))


@dataclass(frozen=True, slots=True)
class HeavyBall(Optimizer):
    """The heavy-ball method v ← μv + g, w ← w − αv (Polyak 1964).

    w are the weights, v is the velocity, g the gradient, μ the momentum and α the step size.
    """

    has_momentum: ClassVar[bool] = True

    def start(self, weights: Any) -> MomentumState:
        """Return the state before the first step: the given weights and the velocity 0."""
        return MomentumState(weights, map_fields(lambda w: 0.0 * w, weights))

    def update(self, state: MomentumState, direction: Any) -> MomentumState:
        """Return the state after one step against `direction`."""
        velocity = _plus(direction, state.velocity, self.momentum)
        return MomentumState(_plus(state.weights, velocity, -self.rate), velocity)


@dataclass(frozen=True, slots=True)
class Nesterov(HeavyBall):
    """Nesterov's method in the form of PyTorch: v ← μv + g, w ← w − α(g + μv).

    w are the weights, v is the velocity, g the gradient, μ the momentum and α the step size.
    """

    def update(self, state: MomentumState, direction: Any) -> MomentumState:
        """Return the state after one step against `direction`."""
        velocity = _plus(direction, state.velocity, self.momentum)
        ahead = _plus(direction, velocity, self.momentum)
        return MomentumState(_plus(state.weights, ahead, -self.rate), velocity)


@dataclass(frozen=True, slots=True)
class Adam(Optimizer):
    """Adam with bias correction (Kingma & Ba 2015), which rescales each coordinate.

    The argument `momentum` is ignored. `decay_first` and `decay_second` are the decay rates β₁ and
    β₂ of the averages of the gradient and of its square. `floor` is added to the root of the
    average square before dividing by it.
    """

    decay_first: float = 0.9
    decay_second: float = 0.999
    floor: float = 1e-8

    def start(self, weights: Any) -> AdamState:
        """Return the state before the first step: the given weights, and averages of 0."""
        zero = map_fields(lambda w: 0.0 * w, weights)
        return AdamState(weights, zero, zero, zero[0][..., :1, :1])

    def update(self, state: AdamState, direction: Any) -> AdamState:
        """Return the state after one step against `direction`."""
        steps = state.steps + 1.0
        one, two = self.decay_first, self.decay_second
        first = map_fields(lambda a, g: one * a + (1 - one) * g, state.first, direction)
        second = map_fields(lambda b, g: two * b + (1 - two) * g * g, state.second, direction)
        # Both averages start at 0; dividing by 1 − βᵗ removes the bias.
        rate = self.rate / (1 - one**steps)
        correction = 1 - two**steps

        def move(w: Any, a: Any, b: Any) -> Any:
            return w - rate * a / (namespace(b).sqrt(b / correction) + self.floor)

        return AdamState(map_fields(move, state.weights, first, second), first, second, steps)


OPTIMIZERS: dict[str, type[Optimizer]] = {
    "gradient_descent": GradientDescent,
    "heavy_ball": HeavyBall,
    "nesterov": Nesterov,
    "adam": Adam,
}
"""Classes of the optimizers by name; each is called with a step size and a momentum."""
