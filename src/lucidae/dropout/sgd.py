"""Where dropout training finds its examples: a population, or the rows of a data set."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import scipy.sparse

from lucidae.arrays import Array, device, largest, like, namespace, normal, scalar, squared_norm
from lucidae.dropout.objectives import (
    DropoutObjective,
    LinearProblem,
    Weights,
    draw_masks,
    paper_direction,
    sampled_gradient,
    shared_direction,
)
from lucidae.dropout.theory import checked_dropout
from lucidae.iteration import Below, Solution, iterate
from lucidae.validation import check_choice, check_number

Rng = np.random.RandomState


class ExampleSource(Protocol):
    """Where examples come from."""

    def draw(self, rng: Rng, n_runs: int, batch_size: int, ref: Array) -> tuple[Array, Array]:
        """Return inputs (n_runs, batch_size, d2) and outputs (n_runs, batch_size, d1)."""


@dataclass(frozen=True, slots=True, eq=False)
class GaussianSource:
    """White Gaussian inputs and y = Mx: the population of Mianjy et al. 2018, section 6."""

    matrix: Array

    def draw(self, rng: Rng, n_runs: int, batch_size: int, ref: Array) -> tuple[Array, Array]:
        """Draw fresh examples for every run."""
        inputs = normal(rng, (n_runs, batch_size, self.matrix.shape[1]), ref)
        return inputs, inputs @ self.matrix.mT


@dataclass(frozen=True, slots=True, eq=False)
class SampleSource:
    """Rows drawn with replacement from a data set, in proportion to their weights.

    Inputs are centred and brought to white coordinates as they are drawn, x' = Bᵀ(x − μ); of a
    sparse data set no more than the batch is ever dense.
    """

    inputs: Any
    outputs: Array
    center: Array
    lift: Array
    output_center: Array
    cumulative: np.ndarray[Any, Any] | None = None

    def draw(self, rng: Rng, n_runs: int, batch_size: int, ref: Array) -> tuple[Array, Array]:
        """Draw rows for every run."""
        rows = self._rows(rng, n_runs * batch_size)
        white = _take(self.inputs, rows, ref) @ self.lift - self.center @ self.lift
        targets = _take(self.outputs, rows, ref) - self.output_center
        xp = namespace(ref)
        return tuple(
            xp.reshape(like(part, ref), (n_runs, batch_size, part.shape[1]))
            for part in (white, targets)
        )

    def _rows(self, rng: Rng, count: int) -> np.ndarray[Any, Any]:
        if self.cumulative is None:
            return np.asarray(rng.randint(self.inputs.shape[0], size=count))
        drawn = rng.random_sample(count) * self.cumulative[-1]
        return np.asarray(np.searchsorted(self.cumulative, drawn, side="right"))


def _take(values: Any, rows: np.ndarray[Any, Any], ref: Array) -> Array:
    """Return some rows; of a sparse matrix, a batch of them made dense."""
    if scipy.sparse.issparse(values):
        return values[rows].toarray()
    xp = namespace(values)
    return like(xp.take(values, xp.asarray(rows, device=device(values)), axis=0), ref)


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


Schedule = Callable[[Array, int], Array]

RATE = 0.25
"""Fraction of the largest stable rate that "auto" takes."""


def constant(time: Array, _limit: int) -> Array:
    """Return the rate's factor 1."""
    return 0.0 * time + 1.0


def inverse_time(time: Array, limit: int) -> Array:
    """Return 1/(1 + 10 t/T), the classical decay that lets the noise die out."""
    return 1.0 / (1.0 + 10.0 * time / max(limit, 1))


def linear_decay(time: Array, limit: int) -> Array:
    """Return 1 for the first half of the run, then a line that ends at zero."""
    xp = namespace(time)
    left = 2.0 * (1.0 - time / max(limit, 1))
    return xp.clip(left, 0.0, 1.0)


SCHEDULES: dict[str, Schedule] = {
    "constant": constant,
    "inverse": inverse_time,
    "linear": linear_decay,
}


@dataclass(frozen=True, slots=True, eq=False)
class DropoutStep:
    """One step of dropout for every run.

    Parameters
    ----------
    source : ExampleSource
        Where examples come from.
    rates : array of shape (n_runs,)
        Learning rate of each run's first step.
    schedule : callable
        Factor of the rate as a function of time and limit.
    limit : int
        Number of steps that the schedule is laid out for.
    batch_size : int
        Examples per step; the paper takes one.
    direction : callable
        `sampled_gradient`, or `paper_direction` for the paper's own step.
    rng : RandomState
        Draws examples and masks.
    """

    source: ExampleSource
    rates: Array
    schedule: Schedule
    limit: int
    batch_size: int
    direction: Callable[..., Weights]
    rng: Rng

    def __call__(self, runs: Runs) -> Runs:
        """Return the runs after one step."""
        n_runs, _, width = runs.left.shape
        X, Y = self.source.draw(self.rng, n_runs, self.batch_size, runs.left)
        keep = runs.keep[:, None, None]
        masks = draw_masks(self.rng, (n_runs, self.batch_size, width), keep)
        slope = self.direction(runs.weights, X, Y, masks, keep)
        rate = (self.rates * self.schedule(runs.time, self.limit))[:, None, None]
        left, right = runs.left - rate * slope.left, runs.right - rate * slope.right
        return Runs(left, right, runs.keep, runs.time + 1.0)


def stable_rates(
    matrix: Array, strengths: Array, width: int, batch_size: int, noise: float = 0.0
) -> Array:
    """Return learning rates that keep dropout SGD stable, for white inputs and target M.

    The curvature of f grows with ‖M‖, and the weights shrink as λ grows; a single example
    multiplies it by the squared length of the input, its mask by (1 + λ) for every unit, both
    divided by the batch. Outputs that no network explains push the weights about in proportion
    to their size, so where they are larger than ‖M‖ they set the scale. `RATE` was set on inputs
    of 1 to 80 dimensions with λ from 0 to 100.
    """
    loaded = 1.0 + strengths
    spread = 1.0 + (matrix.shape[1] + width * loaded) / batch_size
    scale = max(math.hypot(spectral_bound(matrix), noise), TINY)
    return RATE / (scale * loaded**0.5 * spread)


def descend(
    source: ExampleSource,
    matrix: Array,
    dropouts: Sequence[float],
    width: int,
    *,
    rng: Rng,
    noise: float = 0.0,
    learning_rate: float | str = "auto",
    schedule: str = "linear",
    exact_gradient: bool = True,
    tied: bool = False,
    start: Weights | None = None,
    record_weights: bool = False,
    batch_size: int = 32,
    limit: int = 2000,
    tolerance: float = 1e-3,
    init_scale: float = 0.3,
    check_every: int = 100,
    record_at: int | Iterable[int] | None = None,
) -> Solution[Runs]:
    """Train networks with dropout by stochastic gradient descent, one run per entry of `dropouts`.

    Parameters
    ----------
    source : ExampleSource
        Draws examples with white inputs.
    matrix : array of shape (d1, d2)
        M = E[yxᵀ] of that source: it sets the scale of the rate and measures the distance to
        optimality, the norm of the *expected* gradient; the steps never see it.
    dropouts : sequence of float
        Probability of dropping a unit, for each run.
    width : int
        r.
    rng : RandomState
        Draws starts, examples and masks.
    noise : float, default=0.0
        √E‖y − Mx‖², the part of the outputs that no network explains.
    learning_rate : float or "auto"
        Rate of the first step; "auto" takes `stable_rates`.
    schedule : {"linear", "inverse", "constant"}
        How the rate falls: only a rate that falls to zero ends at the optimum itself.
    exact_gradient : bool, default=True
        Whether to step along the gradient of the sampled loss, or along the paper's direction,
        θ/2 times as long.
    tied : bool, default=False
        Whether both layers share their weights; M must be square.
    start : Weights, optional
        First weights of every run, (n_runs, d, r) each, in place of random ones.
    record_weights : bool, default=False
        Whether the history keeps U ("left") and V ("right") too.
    batch_size, limit : int
        Examples per step, and number of steps.
    tolerance : float
        Distance to optimality at which every run counts as done.
    init_scale : float
        Size of the first weights, relative to √‖M‖.
    check_every, record_at
        As in `lucidae.iteration.iterate`; the history keeps every run's expected objective and the
        variance of its importance scores.

    Returns
    -------
    Solution of Runs

    Examples
    --------
    >>> import numpy as np
    >>> from lucidae.dropout.sgd import GaussianSource
    >>> M = np.array([[2.0]])
    >>> solution = descend(GaussianSource(M), M, [0.5], 2, rng=np.random.RandomState(0), limit=500)
    >>> float(solution.history["objective"][-1, 0]).__round__(1)
    1.3
    """
    dropped = like(np.array([checked_dropout(p) for p in dropouts]), matrix)
    runs = first_runs(start, rng, matrix, 1.0 - dropped, width, init_scale)
    runs = share(runs) if tied else runs
    rates = (
        stable_rates(matrix, runs.strength, width, batch_size, noise)
        if learning_rate == "auto"
        else 0.0 * runs.keep + check_number(learning_rate, "learning_rate", low=0, open_low=True)
    )
    direction = sampled_gradient if exact_gradient else paper_direction
    problem = LinearProblem(matrix, None, scalar(squared_norm(matrix)) + noise * noise)
    step = DropoutStep(
        source,
        rates,
        SCHEDULES[check_choice(schedule, "schedule", SCHEDULES)],
        limit,
        batch_size,
        shared_direction(direction) if tied else direction,
        rng,
    )
    watch = Watch(problem, tied)
    record: dict[str, Callable[[Runs], Array]] = {
        "objective": watch.objective,
        "importance_variance": watch.importance_variance,
    }
    if record_weights:
        record |= {"left": lambda runs: runs.left, "right": lambda runs: runs.right}
    return iterate(
        step,
        runs,
        stop=Below(watch.distance, tolerance),
        limit=limit,
        check_every=check_every,
        record=record,
        record_at=record_at,
        size=max(*matrix.shape, width),
    )
