"""First-order optimizers, each a pure update from state to state, and their settings.

A learning rate is a number, or an array that broadcasts over (runs, k, m), one rate per run.
"""

from __future__ import annotations

import math
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


@dataclass(frozen=True, slots=True)
class Optimizer(ABC):
    """An update of weights along a direction.

    Parameters
    ----------
    rate : float or array
        The step size.
    momentum : float
        The momentum μ, which optimizers without momentum ignore.

    Attributes
    ----------
    uses_momentum : bool
        Whether the momentum has an effect.
    commutes_with_rotations : bool
        Whether an update commutes with a rotation of the features.
    """

    rate: Any
    momentum: float = 0.9

    uses_momentum = False
    commutes_with_rotations = True

    @abstractmethod
    def start(self, weights: Any) -> Any:
        """Return the state before the first step."""

    @abstractmethod
    def update(self, state: Any, direction: Any, scale: float = 1.0) -> Any:
        """Return the next state; `scale` multiplies the rate."""

    @staticmethod
    @abstractmethod
    def largest_stable_product(momentum: float) -> float:
        """Return the largest rate times curvature at which a quadratic does not diverge."""

    @classmethod
    def automatic_rate(cls, curvature: float, momentum: float) -> float:
        """Return the step size for a bound on the curvature: half of the largest stable one."""
        return SAFETY * cls.largest_stable_product(momentum) / curvature


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
    """Gradient descent w ← w − αg with the step size α; the momentum is ignored."""

    def start(self, weights: Any) -> DescentState:
        """Return the state before the first step."""
        return DescentState(weights)

    def update(self, state: DescentState, direction: Any, scale: float = 1.0) -> DescentState:
        """Return the state after one step."""
        rate = self.rate * scale
        return DescentState(map_fields(lambda w, g: w - rate * g, state.weights, direction))

    @staticmethod
    def largest_stable_product(momentum: float) -> float:  # noqa: ARG004
        """Return 2, the bound of gradient descent on a quadratic."""
        return 2.0


class MomentumOptimizer(Optimizer):
    """An optimizer with the velocity v ← μv + g, which starts at 0."""

    __slots__ = ()

    uses_momentum = True

    def start(self, weights: Any) -> MomentumState:
        """Return the state before the first step."""
        return MomentumState(weights, map_fields(lambda w: 0.0 * w, weights))

    def _velocity(self, state: MomentumState, direction: Any) -> Any:
        return map_fields(self._accumulate, state.velocity, direction)

    def _accumulate(self, velocity: Any, direction: Any) -> Any:
        """Return μv + g with one allocation; a second one would take longer than the addition."""
        total = self.momentum * velocity
        total += direction
        return total


@dataclass(frozen=True, slots=True)
class HeavyBall(MomentumOptimizer):
    """The heavy-ball method: v ← μv + g and w ← w − αv (Polyak 1964)."""

    def update(self, state: MomentumState, direction: Any, scale: float = 1.0) -> MomentumState:
        """Return the state after one step."""
        rate, velocity = self.rate * scale, self._velocity(state, direction)
        moved = map_fields(lambda w, v: w - rate * v, state.weights, velocity)
        return MomentumState(moved, velocity)

    @staticmethod
    def largest_stable_product(momentum: float) -> float:
        """Return 2(1 + μ), the bound of the heavy-ball method with momentum μ."""
        return 2 * (1 + momentum)

    @classmethod
    def automatic_rate(cls, curvature: float, momentum: float) -> float:
        """Return the step of Nesterov's method: a larger one overshoots on a quartic loss."""
        return Nesterov.automatic_rate(curvature, momentum)


@dataclass(frozen=True, slots=True)
class Nesterov(MomentumOptimizer):
    """Nesterov's method in the form of PyTorch: v ← μv + g and w ← w − α(g + μv)."""

    def update(self, state: MomentumState, direction: Any, scale: float = 1.0) -> MomentumState:
        """Return the state after one step."""
        rate, velocity = self.rate * scale, self._velocity(state, direction)

        def move(w: Any, g: Any, v: Any) -> Any:
            ahead = self._accumulate(v, g)
            ahead *= -rate
            ahead += w
            return ahead

        return MomentumState(map_fields(move, state.weights, direction, velocity), velocity)

    @staticmethod
    def largest_stable_product(momentum: float) -> float:
        """Return 2(1 + μ)/(1 + 2μ), the bound of Nesterov's method with momentum μ."""
        return 2 * (1 + momentum) / (1 + 2 * momentum)


@dataclass(frozen=True, slots=True)
class Adam(Optimizer):
    """Adam with bias correction (Kingma & Ba 2015), which rescales each coordinate.

    The argument `momentum` is ignored.
    """

    decay_first: float = 0.9
    decay_second: float = 0.999
    floor: float = 1e-8

    commutes_with_rotations = False

    def start(self, weights: Any) -> AdamState:
        """Return the state before the first step."""
        zero = map_fields(lambda w: 0.0 * w, weights)
        return AdamState(weights, zero, zero, zero[0][..., :1, :1])

    def update(self, state: AdamState, direction: Any, scale: float = 1.0) -> AdamState:
        """Return the state after one step."""
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

    @staticmethod
    def largest_stable_product(momentum: float) -> float:  # noqa: ARG004
        """Return infinity: a step is at most about as long as the rate, for every curvature."""
        return math.inf

    @classmethod
    def automatic_rate(cls, curvature: float, momentum: float) -> float:  # noqa: ARG003
        """Return a fixed step size, since Adam's steps do not depend on the scale of the loss."""
        return ADAM_RATE


OPTIMIZERS: dict[str, type[Optimizer]] = {
    "gradient_descent": GradientDescent,
    "heavy_ball": HeavyBall,
    "nesterov": Nesterov,
    "adam": Adam,
}
"""The optimizers by name; each is made from (rate, momentum)."""


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
        Descent stops when ‖direction‖ ≤ tol · scale · ‖weights‖, with Frobenius norms over all
        weights. See `lucidae.linear.methods.relative_direction`.
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

    @property
    def preconditions(self) -> bool:
        """Whether directions are preconditioned: where the step size is chosen automatically.

        Adam rescales each coordinate by itself.
        """
        return self.learning_rate == "auto" and OPTIMIZERS[self.optimizer] is not Adam

    def rate(self, curvature: float) -> float:
        """Return the step size: the given one, or the automatic one for a bound on curvature."""
        if self.learning_rate != "auto":
            return float(self.learning_rate)
        return OPTIMIZERS[self.optimizer].automatic_rate(curvature, self.momentum)

    def build(self, curvature: float) -> Optimizer:
        """Return the optimizer with its step size."""
        return OPTIMIZERS[self.optimizer](self.rate(curvature), self.momentum)
