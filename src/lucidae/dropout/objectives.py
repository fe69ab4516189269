"""What dropout training minimises: the sampled loss, its expectation, gradients, curvature.

The network is x ↦ U Vᵀx with U of shape (d₁, r) and V of shape (d₂, r). A hidden unit is kept
with probability θ and rescaled by 1/θ; λ = (1 − θ)/θ is the strength. Every function accepts
leading batch axes on the weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np

from lucidae.arrays import (
    Array,
    add_diagonal,
    diagonal,
    is_array,
    like,
    namespace,
    scalar,
    squared_norm,
    trace,
)
from lucidae.io.models import saved_as
from lucidae.moments import SecondMoment


@saved_as("lucidae.dropout.weights/1", formerly="lucidae.dropout.objectives:Weights")
class Weights(NamedTuple):
    """Outgoing and incoming weights of the hidden layer."""

    left: Array
    right: Array


@dataclass(frozen=True, slots=True, eq=False)
class LinearProblem:
    """All that the expected loss knows of the data: three moments.

    Parameters
    ----------
    cross : array of shape (d1, d2)
        E[y xᵀ].
    inputs : array of shape (d2, d2) or None
        C = E[x xᵀ]; None stands for the identity, the paper's white inputs.
    energy : float
        E‖y‖².

    Examples
    --------
    >>> import numpy as np
    >>> problem = LinearProblem.from_matrix(np.diag([3.0, 1.0]))
    >>> problem.energy
    10.0
    """

    cross: Array
    inputs: Array | None
    energy: float

    @classmethod
    def from_matrix(cls, matrix: Array) -> Self:
        """Return the problem of the paper: white inputs and y = Mx, or the factorisation of M."""
        return cls(matrix, None, scalar(squared_norm(matrix)))

    @classmethod
    def from_moment(cls, moment: SecondMoment, n_features: int, *, centered: bool = True) -> Self:
        """Return the problem of rows [x | y] from their joint moment.

        Centred rows give the network with a bias in both layers, where the intercept is exact.
        """
        second = _second(moment, centered)
        outputs = second[n_features:, n_features:]
        return cls(
            second[n_features:, :n_features],
            second[:n_features, :n_features],
            scalar(trace(outputs)),
        )

    @classmethod
    def autoencoder(cls, moment: SecondMoment, *, centered: bool = True) -> Self:
        """Return the problem whose target is the input itself."""
        second = _second(moment, centered)
        return cls(second, second, scalar(trace(second)))

    def through_inputs(self, right: Array) -> Array:
        """Return C V."""
        return right if self.inputs is None else self.inputs @ right


def _second(moment: SecondMoment, centered: bool) -> Array:
    """Return the second moment about the mean, or about zero."""
    if centered:
        return moment.covariance
    return moment.covariance + moment.mean[:, None] * moment.mean[None, :]


@dataclass(frozen=True, slots=True, eq=False)
class DropoutObjective:
    """Expected dropout loss f(U, V) = E‖y − UVᵀx‖² + λ Σᵢ ‖uᵢ‖² · vᵢᵀC vᵢ.

    Mianjy et al. 2018, eq. 2 and Lemma A.1, for any second moment C of the inputs. Tied weights
    are the same formulas at V = U, their derivatives summed over both places.

    Parameters
    ----------
    problem : LinearProblem
        The moments of the data.
    strength : float or array
        λ = dropout / (1 − dropout); an array gives every network of a stack its own.

    Examples
    --------
    >>> import numpy as np
    >>> objective = DropoutObjective(LinearProblem.from_matrix(np.array([[2.0]])), 0.5)
    >>> u = np.array([[1.0, 0.0]])
    >>> float(objective.value(Weights(u, u)))
    1.5
    """

    problem: LinearProblem
    strength: Any

    def loss(self, weights: Weights) -> Array:
        """Return E‖y − UVᵀx‖², the loss without dropout."""
        left, right = weights
        inward = self.problem.through_inputs(right)
        fitted = trace((left.mT @ left) @ (right.mT @ inward))
        agreement = namespace(left).sum(left * (self.problem.cross @ right), axis=(-2, -1))
        return self.problem.energy - 2 * agreement + fitted

    def importance(self, weights: Weights) -> Array:
        """Return ‖uᵢ‖ √(vᵢᵀC vᵢ) per hidden unit (Mianjy et al. 2018, section 6)."""
        inward = self.problem.through_inputs(weights.right)
        xp = namespace(weights.left)
        incoming = xp.sum(weights.right * inward, axis=-2)
        outgoing = xp.sum(weights.left * weights.left, axis=-2)
        return xp.sqrt(xp.clip(incoming, 0.0, None)) * xp.sqrt(outgoing)

    def regularizer(self, weights: Weights) -> Array:
        """Return λ Σᵢ ‖uᵢ‖² vᵢᵀC vᵢ = λψ₂², the explicit form of dropout's bias."""
        scores = self.importance(weights)
        return self.strength * namespace(scores).sum(scores * scores, axis=-1)

    def value(self, weights: Weights) -> Array:
        """Return the expected dropout loss."""
        return self.loss(weights) + self.regularizer(weights)

    def gradient(self, weights: Weights) -> Weights:
        """Return (∂f/∂U, ∂f/∂V)."""
        left, right = weights
        inward = self.problem.through_inputs(right)
        outer, inner = left.mT @ left, right.mT @ inward
        cross = self.problem.cross
        on_left = left @ self._loaded(inner) - cross @ right
        on_right = inward @ self._loaded(outer) - cross.mT @ left
        return Weights(2 * on_left, 2 * on_right)

    def hessian_product(self, weights: Weights, direction: Weights) -> Weights:
        """Return the Hessian of f applied to a direction."""
        (left, right), (turn_left, turn_right) = weights, direction
        inward, turn_inward = map(self.problem.through_inputs, (right, turn_right))
        outer, inner = left.mT @ left, right.mT @ inward
        inner_change, outer_change = right.mT @ turn_inward, left.mT @ turn_left
        cross = self.problem.cross
        on_left = (
            turn_left @ self._loaded(inner)
            + left @ self._loaded(inner_change + inner_change.mT)
            - cross @ turn_right
        )
        on_right = (
            turn_inward @ self._loaded(outer)
            + inward @ self._loaded(outer_change + outer_change.mT)
            - cross.mT @ turn_left
        )
        return Weights(2 * on_left, 2 * on_right)

    def tied_value(self, factor: Array) -> Array:
        """Return f(U, U) (Mianjy et al. 2018, Problem 4)."""
        return self.value(Weights(factor, factor))

    def tied_gradient(self, factor: Array) -> Array:
        """Return the gradient of U ↦ f(U, U)."""
        on_left, on_right = self.gradient(Weights(factor, factor))
        return on_left + on_right

    def tied_hessian_product(self, factor: Array, direction: Array) -> Array:
        """Return the Hessian of U ↦ f(U, U) applied to a direction."""
        on_left, on_right = self.hessian_product(
            Weights(factor, factor), Weights(direction, direction)
        )
        return on_left + on_right

    def stationarity(self, weights: Weights) -> Array:
        """Return ‖∇f‖ / (2‖E[yxᵀ]‖ ‖(U, V)‖): dimensionless, about 1 at a small random start."""
        slope = self.gradient(weights)
        steepness = squared_norm(slope.left) + squared_norm(slope.right)
        size = squared_norm(weights.left) + squared_norm(weights.right)
        scale = 4 * squared_norm(self.problem.cross) * size
        xp = namespace(size)
        return xp.sqrt(steepness / xp.where(scale > 0, scale, xp.ones_like(scale)))

    def tied_stationarity(self, factor: Array) -> Array:
        """Return the same for tied weights, where both gradients add up."""
        steepness = squared_norm(self.tied_gradient(factor))
        scale = 16 * squared_norm(self.problem.cross) * squared_norm(factor)
        xp = namespace(scale)
        return xp.sqrt(steepness / xp.where(scale > 0, scale, xp.ones_like(scale)))

    def _loaded(self, gram: Array) -> Array:
        """Return gram + λ diag(gram): what the mean over masks makes of a Gram matrix."""
        strength = self.strength[..., None] if is_array(self.strength) else self.strength
        return add_diagonal(gram, strength * diagonal(gram))


def draw_masks(rng: np.random.RandomState, shape: tuple[int, ...], keep: Array) -> Array:
    """Draw Bernoulli(θ) masks by NumPy; θ is an array that broadcasts against `shape`."""
    uniform = like(rng.random_sample(shape), keep)
    return namespace(keep).astype(uniform < keep, keep.dtype)


def sampled_loss(weights: Weights, X: Array, Y: Array, masks: Array, keep: Any) -> Array:
    """Return the mean over rows of ‖y − U diag(b) Vᵀx / θ‖² (Mianjy et al. 2018, eq. 1)."""
    residual = (X @ weights.right) * masks / keep @ weights.left.mT - Y
    return squared_norm(residual) / X.shape[-2]


def sampled_gradient(weights: Weights, X: Array, Y: Array, masks: Array, keep: Any) -> Weights:
    """Return the exact gradient of `sampled_loss`.

    Mianjy et al. 2018, Algorithm 1 steps along θ/2 times this: its update does not rescale the
    factor that is propagated back. See `paper_direction`.
    """
    gates = masks / keep
    hidden = (X @ weights.right) * gates
    residual = hidden @ weights.left.mT - Y
    scale = 2.0 / X.shape[-2]
    on_left = residual.mT @ hidden
    on_right = X.mT @ ((residual @ weights.left) * gates)
    return Weights(scale * on_left, scale * on_right)


def shared_direction(direction: Callable[..., Weights]) -> Callable[..., Weights]:
    """Return the direction of shared weights: the sum over both layers, given to both."""

    def shared(*arguments: Any) -> Weights:
        both = sum(direction(*arguments))
        return Weights(both, both)

    return shared


def paper_direction(weights: Weights, X: Array, Y: Array, masks: Array, keep: Any) -> Weights:
    """Return the direction that Mianjy et al. 2018, Algorithm 1 subtracts, mean over the batch."""
    exact = sampled_gradient(weights, X, Y, masks, keep)
    return Weights(exact.left * (keep / 2), exact.right * (keep / 2))
