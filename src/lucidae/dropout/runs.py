"""Runs of dropout training: a stack of networks, where they start, what is watched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from lucidae._arrays import Array, largest, like, namespace, normal, scalar, squared_norm
from lucidae.dropout.objectives import DropoutObjective, LinearProblem, Weights
from lucidae.dropout.sources import Rng

TINY = 1e-150
"""Stands for ‖M‖ where M is zero, so that a start still exists."""


class Runs(NamedTuple):
    """The state of a stack of runs."""

    left: Array
    right: Array
    keep: Array
    time: Array

    @property
    def weights(self) -> Weights:
        """The weights of all runs."""
        return Weights(self.left, self.right)

    @property
    def strength(self) -> Array:
        """λ of every run."""
        return (1.0 - self.keep) / self.keep


def spectral_bound(matrix: Array) -> float:
    """Return an upper bound of the spectral norm, at most rank^(1/8) times too large.

    The Schatten norm of order 8: two products with the smaller Gram matrix, no decomposition.
    """
    top = largest(matrix)
    if top == 0:
        return 0.0
    scaled = matrix / top
    gram = scaled @ scaled.mT if scaled.shape[0] <= scaled.shape[1] else scaled.mT @ scaled
    square = gram @ gram
    return float(top * scalar(squared_norm(square)) ** 0.125)


def random_start(rng: Rng, matrix: Array, keep: Array, width: int, scale: float) -> Runs:
    """Return small random weights for every run, in proportion to √(θ‖M‖)."""
    n_runs, (outputs, features) = keep.shape[0], matrix.shape
    # The optimum shrinks as dropout grows: so does the start, by the square root of θ = 1/(1 + λ).
    size = (scale * max(spectral_bound(matrix), TINY) ** 0.5) * keep[:, None, None] ** 0.5
    left = normal(rng, (n_runs, outputs, width), matrix) * (size / outputs**0.5)
    right = normal(rng, (n_runs, features, width), matrix) * (size / features**0.5)
    return Runs(left, right, keep, 0.0 * keep)


@dataclass(frozen=True, slots=True, eq=False)
class Watch:
    """What is looked at along the way: figures of the expected loss, which no step sees."""

    problem: LinearProblem
    tied: bool

    def expected(self, runs: Runs) -> DropoutObjective:
        """Return the expected loss, each run with its own strength."""
        return DropoutObjective(self.problem, runs.strength)

    def objective(self, runs: Runs) -> Array:
        """Return the expected dropout loss of every run."""
        return self.expected(runs).value(runs.weights)

    def importance_variance(self, runs: Runs) -> Array:
        """Return the variance of every run's importance scores over its hidden units."""
        scores = self.expected(runs).importance(runs.weights)
        return namespace(scores).var(scores, axis=-1)

    def distance(self, runs: Runs) -> float:
        """Return the largest relative norm of the expected gradient over all runs."""
        expected = self.expected(runs)
        if self.tied:
            return largest(expected.tied_stationarity(runs.left))
        return largest(expected.stationarity(runs.weights))


def first_runs(
    start: Weights | None, rng: Rng, matrix: Array, keep: Array, width: int, scale: float
) -> Runs:
    """Return the given start, checked, or a random one."""
    if start is None:
        return random_start(rng, matrix, keep, width, scale)
    left, right = (like(part, matrix) for part in start)
    n_runs, (outputs, features) = keep.shape[0], matrix.shape
    expected = ((n_runs, outputs, width), (n_runs, features, width))
    if (tuple(left.shape), tuple(right.shape)) != expected:
        raise ValueError(
            f"start has shapes {tuple(left.shape)} and {tuple(right.shape)}, expected "
            f"{expected[0]} and {expected[1]}: (runs, outputs, width) and (runs, inputs, width)."
        )
    return Runs(left, right, keep, 0.0 * keep)


def share(runs: Runs) -> Runs:
    """Return runs whose right weights are their left ones."""
    if runs.left.shape != runs.right.shape:
        raise ValueError(
            f"tied weights need as many inputs as outputs, got {runs.right.shape[1]} and "
            f"{runs.left.shape[1]}."
        )
    return Runs(runs.left, runs.left, runs.keep, runs.time)
