"""First-order optimizers, each one pure update from state to state.

A rate is a number, or an array that broadcasts over (runs, k, m) to give each run its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from lucidae.arrays import namespace
from lucidae.io.models import saved_as
from lucidae.linear.weights import map_fields


class Optimizer(Protocol):
    """Starts a state and moves it along a direction."""

    def start(self, weights: Any) -> Any:
        """Return the first state."""

    def update(self, state: Any, direction: Any, scale: float = 1.0) -> Any:
        """Return the next state; `scale` multiplies the rate."""


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
class GradientDescent:
    """w ← w − αg."""

    rate: Any

    def start(self, weights: Any) -> DescentState:
        """Return the first state."""
        return DescentState(weights)

    def update(self, state: DescentState, direction: Any, scale: float = 1.0) -> DescentState:
        """Return the next state."""
        rate = self.rate * scale
        return DescentState(map_fields(lambda w, g: w - rate * g, state.weights, direction))


@dataclass(frozen=True, slots=True)
class HeavyBall:
    """v ← μv + g; w ← w − αv (Polyak 1964)."""

    rate: Any
    momentum: float = 0.9

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


@dataclass(frozen=True, slots=True)
class Nesterov:
    """v ← μv + g; w ← w − α(g + μv), in the form that PyTorch uses."""

    rate: Any
    momentum: float = 0.9

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


def _accumulate(momentum: float, velocity: Any, direction: Any) -> Any:
    """Return μv + g in one new array: at these sizes it costs more than the arithmetic."""
    total = momentum * velocity
    total += direction
    return total


@dataclass(frozen=True, slots=True)
class Adam:
    """Kingma & Ba (2015), with bias correction. It works coordinate by coordinate."""

    rate: Any
    decay_first: float = 0.9
    decay_second: float = 0.999
    floor: float = 1e-8

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
        rate = self.rate * scale / (1 - one**steps)
        correction = 1 - two**steps

        def move(w: Any, a: Any, b: Any) -> Any:
            return w - rate * a / (namespace(b).sqrt(b / correction) + self.floor)

        return AdamState(map_fields(move, state.weights, first, second), first, second, steps)


def _gradient_descent(rate: Any, _: float) -> GradientDescent:
    return GradientDescent(rate)


def _adam(rate: Any, _: float) -> Adam:
    return Adam(rate)


OPTIMIZERS: dict[str, Callable[[Any, float], Optimizer]] = {
    "gradient_descent": _gradient_descent,
    "heavy_ball": HeavyBall,
    "nesterov": Nesterov,
    "adam": _adam,
}
"""From a name to a maker of (rate, momentum)."""


def largest_stable_product(optimizer: str, momentum: float) -> float:
    """Return the largest rate times curvature at which a quadratic does not diverge."""
    limits = {
        "gradient_descent": 2.0,
        "heavy_ball": 2 * (1 + momentum),
        "nesterov": 2 * (1 + momentum) / (1 + 2 * momentum),
    }
    return limits[optimizer]
