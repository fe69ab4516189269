"""First-order optimizers, each a pure update from state to state, and their settings.

A learning rate is a number, or an array that broadcasts over (runs, k, m), one rate per run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

from lucidae.arrays import namespace
from lucidae.io.models import saved_as
from lucidae.iteration import Callback, ProgressBar
from lucidae.linear.weights import map_fields

SAFETY = 0.5
"""Share of the largest stable step that `learning_rate="auto"` takes."""

ADAM_RATE = 3e-3
"""Automatic step of Adam, which does not depend on the scale of the loss."""


class Optimizer(ABC):
    """An update of weights along a direction; made from a rate and a momentum."""

    __slots__ = ()

    uses_momentum = False
    """Whether the momentum that it is made from has an effect."""

    commutes_with_rotations = True
    """Whether an update commutes with a rotation of the features."""

    @abstractmethod
    def __init__(self, rate: Any, momentum: float = 0.9) -> None:
        """Take a rate and a momentum, which those without momentum ignore."""

    @abstractmethod
    def start(self, weights: Any) -> Any:
        """Return the first state."""

    @abstractmethod
    def update(self, state: Any, direction: Any, scale: float = 1.0) -> Any:
        """Return the next state; `scale` multiplies the rate."""

    @classmethod
    @abstractmethod
    def automatic_rate(cls, curvature: float, momentum: float) -> float:
        """Return the step size for a bound on the curvature."""


@saved_as("lucidae.linear.optimizer.plain/1", formerly="lucidae.linear.optimizers:Plain")
class DescentState(NamedTuple):
    """State of gradient descent."""

    weights: Any


@saved_as("lucidae.linear.optimizer.momentum/1", formerly="lucidae.linear.optimizers:Momentum")
class MomentumState(NamedTuple):
    """State of heavy ball and Nesterov."""

    weights: Any
    velocity: Any


@saved_as("lucidae.linear.optimizer.adam/1", formerly="lucidae.linear.optimizers:Moments")
class AdamState(NamedTuple):
    """State of Adam."""

    weights: Any
    first: Any
    second: Any
    steps: Any


@dataclass(frozen=True, slots=True)
class GradientDescent(Optimizer):
    """w ← w − αg; the momentum is ignored."""

    rate: Any
    momentum: float = 0.0

    def start(self, weights: Any) -> DescentState:
        """Return the first state."""
        return DescentState(weights)

    def update(self, state: DescentState, direction: Any, scale: float = 1.0) -> DescentState:
        """Return the next state."""
        rate = self.rate * scale
        return DescentState(map_fields(lambda w, g: w - rate * g, state.weights, direction))

    @classmethod
    def automatic_rate(cls, curvature: float, momentum: float) -> float:
        """Return half of the largest stable step."""
        return SAFETY * largest_stable_product("gradient_descent", momentum) / curvature


@dataclass(frozen=True, slots=True)
class HeavyBall(Optimizer):
    """v ← μv + g; w ← w − αv (Polyak 1964)."""

    rate: Any
    momentum: float = 0.9

    uses_momentum = True

    def start(self, weights: Any) -> MomentumState:
        """Return the first state."""
        return MomentumState(weights, map_fields(lambda w: 0.0 * w, weights))

    def update(self, state: MomentumState, direction: Any, scale: float = 1.0) -> MomentumState:
        """Return the next state."""
        rate, momentum = self.rate * scale, self.momentum
        velocity = map_fields(lambda v, g: _accumulate(momentum, v, g), state.velocity, direction)
        return MomentumState(
            map_fields(lambda w, v: w - rate * v, state.weights, velocity), velocity
        )

    @classmethod
    def automatic_rate(cls, curvature: float, momentum: float) -> float:
        """Return the step of Nesterov's method: a larger one overshoots on a quartic loss."""
        return Nesterov.automatic_rate(curvature, momentum)


@dataclass(frozen=True, slots=True)
class Nesterov(Optimizer):
    """v ← μv + g; w ← w − α(g + μv), in the form that PyTorch uses."""

    rate: Any
    momentum: float = 0.9

    uses_momentum = True

    def start(self, weights: Any) -> MomentumState:
        """Return the first state."""
        return MomentumState(weights, map_fields(lambda w: 0.0 * w, weights))

    def update(self, state: MomentumState, direction: Any, scale: float = 1.0) -> MomentumState:
        """Return the next state."""
        rate, momentum = self.rate * scale, self.momentum
        velocity = map_fields(lambda v, g: _accumulate(momentum, v, g), state.velocity, direction)

        def move(w: Any, g: Any, v: Any) -> Any:
            ahead = _accumulate(momentum, v, g)
            ahead *= -rate
            ahead += w
            return ahead

        return MomentumState(map_fields(move, state.weights, direction, velocity), velocity)

    @classmethod
    def automatic_rate(cls, curvature: float, momentum: float) -> float:
        """Return half of the largest stable step."""
        return SAFETY * largest_stable_product("nesterov", momentum) / curvature


def _accumulate(momentum: float, velocity: Any, direction: Any) -> Any:
    """Return μv + g in one new array: at these sizes a second one costs more than the sum."""
    total = momentum * velocity
    total += direction
    return total


@dataclass(frozen=True, slots=True)
class Adam(Optimizer):
    """Kingma & Ba (2015), with bias correction; it scales each coordinate; momentum is ignored."""

    rate: Any
    momentum: float = 0.0
    decay_first: float = 0.9
    decay_second: float = 0.999
    floor: float = 1e-8

    commutes_with_rotations = False

    def start(self, weights: Any) -> AdamState:
        """Return the first state."""
        zero = map_fields(lambda w: 0.0 * w, weights)
        return AdamState(weights, zero, zero, zero[0][..., :1, :1])

    def update(self, state: AdamState, direction: Any, scale: float = 1.0) -> AdamState:
        """Return the next state."""
        steps = state.steps + 1.0
        one, two = self.decay_first, self.decay_second
        first = map_fields(lambda a, g: one * a + (1 - one) * g, state.first, direction)
        second = map_fields(lambda b, g: two * b + (1 - two) * g * g, state.second, direction)
        # Both averages start at 0; dividing by 1 − βᵗ removes the bias.
        rate = self.rate * scale / (1 - one**steps)
        correction = 1 - two**steps

        def move(w: Any, a: Any, b: Any) -> Any:
            return w - rate * a / (namespace(b).sqrt(b / correction) + self.floor)

        return AdamState(map_fields(move, state.weights, first, second), first, second, steps)

    @classmethod
    def automatic_rate(cls, curvature: float, momentum: float) -> float:  # noqa: ARG003
        """Return a fixed step: weights are of order one, and so are Adam's steps over the rate."""
        return ADAM_RATE


OPTIMIZERS: dict[str, type[Optimizer]] = {
    "gradient_descent": GradientDescent,
    "heavy_ball": HeavyBall,
    "nesterov": Nesterov,
    "adam": Adam,
}
"""The optimizers by name; each is made from (rate, momentum)."""


def largest_stable_product(optimizer: str, momentum: float) -> float:
    """Return the largest rate times curvature at which a quadratic does not diverge."""
    limits = {
        "gradient_descent": 2.0,
        "heavy_ball": 2 * (1 + momentum),
        "nesterov": 2 * (1 + momentum) / (1 + 2 * momentum),
    }
    return limits[optimizer]


@saved_as("lucidae.linear.descent/1", formerly="lucidae.linear.solvers:Training")
@dataclass(frozen=True, slots=True)
class DescentSettings:
    """Checked settings of gradient and stochastic descent.

    Parameters
    ----------
    optimizer : str
        A key of `OPTIMIZERS`.
    learning_rate : float or "auto"
        The step size.
    momentum : float
        For heavy ball and Nesterov.
    max_iter : int
        Largest number of steps.
    tol : float
        Descent stops when ‖direction‖ ≤ tol · scale · ‖weights‖ (Frobenius norms over all weights):
        see `lucidae.linear.methods.relative_direction`.
    verbose : bool
        Whether to show progress.
    """

    optimizer: str = "nesterov"
    learning_rate: float | str = "auto"
    momentum: float = 0.9
    max_iter: int = 10_000
    tol: float = 1e-6
    verbose: bool = False

    @property
    def callbacks(self) -> tuple[Callback, ...]:
        """Callbacks of the iteration loop: a progress bar where `verbose`."""
        return (ProgressBar("training"),) if self.verbose else ()

    @property
    def effective_momentum(self) -> float:
        """The momentum that the optimizer uses, 0 for those without."""
        return self.momentum if OPTIMIZERS[self.optimizer].uses_momentum else 0.0

    def rate(self, curvature: float) -> float:
        """Return the step size: the given one, or the automatic one for a bound on curvature."""
        if self.learning_rate != "auto":
            return float(self.learning_rate)
        return OPTIMIZERS[self.optimizer].automatic_rate(curvature, self.momentum)

    def build(self, curvature: float) -> Optimizer:
        """Return the optimizer with its step size."""
        return OPTIMIZERS[self.optimizer](self.rate(curvature), self.momentum)
