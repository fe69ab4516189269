"""Dropout training by stochastic gradient descent (Mianjy et al. 2018, Algorithm 1).

Many networks, called runs, are trained at once, stacked along the first axis of the arrays of
weights. One step draws examples and dropout masks for all of them. Examples come from a population
(`GaussianSource`) or from the rows of a data set (`SampleSource`), in both cases with white inputs
(their second moment is the identity).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import scipy.sparse

from lucidae.arrays import Array, largest, like, namespace, normal, squared_norm
from lucidae.dropout.problem import (
    DropoutObjective,
    LinearProblem,
    Weights,
    draw_masks,
    sampled_gradient,
    shared_direction,
    take,
)
from lucidae.dropout.theory import checked_dropout, checked_rate
from lucidae.iteration import Below, Solution, iterate
from lucidae.validation import check_choice, check_integer

Rng = np.random.RandomState
Schedule = Callable[[Array, int], Array]

TINY = 1e-150
"""Replaces the norm of a target matrix that is zero, so that the sizes of the initial weights and
of the learning rate are defined."""

RATE = 0.25
"""Fraction of the largest stable learning rate that learning_rate="auto" uses."""


class ExampleSource(Protocol):
    """A source of random examples (x, y) whose inputs are white."""

    def draw(self, rng: Rng, n_runs: int, batch_size: int, ref: Array) -> tuple[Array, Array]:
        """Return random inputs (n_runs, batch_size, d2) and outputs (n_runs, batch_size, d1)."""


@dataclass(frozen=True, slots=True, eq=False)
class GaussianSource:
    """Examples with Gaussian inputs x of identity covariance and outputs y = Mx, M being `matrix`.

    This is the population of Mianjy et al. 2018, section 6.
    """

    matrix: Array

    def draw(self, rng: Rng, n_runs: int, batch_size: int, ref: Array) -> tuple[Array, Array]:
        """Return new random inputs and outputs for every run."""
        inputs = normal(rng, (n_runs, batch_size, self.matrix.shape[1]), ref)
        return inputs, inputs @ self.matrix.mT


@dataclass(frozen=True, slots=True, eq=False)
class SampleSource:
    """Rows drawn with replacement from a data set, in proportion to their weights.

    Inputs are centred and whitened when they are drawn, x' = Bᵀ(x − μ), with their mean μ and a
    whitening matrix B, for which the second moment of x' is the identity. If the data set is
    sparse, only the batch is made dense.

    Parameters
    ----------
    inputs : array or sparse matrix of shape (n, d2)
        Inputs x.
    outputs : array or sparse matrix of shape (n, d1)
        Outputs y.
    center : array of shape (d2,)
        The mean μ, which is subtracted from the inputs.
    lift : array of shape (d2, q)
        The whitening matrix B, with the rank q of the inputs.
    output_center : array of shape (d1,)
        The mean of the outputs, which is subtracted from them.
    cumulative : ndarray of shape (n,), optional
        Cumulative sums of the weights of the rows; None for equal weights.
    noise : float, default=0.0
        Standard deviation of Gaussian noise that is added to each input. In expectation it adds
        the ridge penalty noise² ‖UVᵀ‖² to the loss (Bishop 1995), and noise² I to E[xxᵀ].
    """

    inputs: Any
    outputs: Array
    center: Array
    lift: Array
    output_center: Array
    cumulative: np.ndarray[Any, Any] | None = None
    noise: float = 0.0

    def draw(self, rng: Rng, n_runs: int, batch_size: int, ref: Array) -> tuple[Array, Array]:
        """Return white inputs and centred outputs of random rows for every run."""
        count = n_runs * batch_size
        if self.cumulative is None:
            rows = rng.randint(self.inputs.shape[0], size=count)
        else:  # inverse transform sampling; side="right" skips rows of weight zero
            drawn = rng.random_sample(count) * self.cumulative[-1]
            rows = np.searchsorted(self.cumulative, drawn, side="right")
        white = _dense_rows(self.inputs, rows, ref) @ self.lift - self.center @ self.lift
        if self.noise > 0.0:
            added = rng.standard_normal((count, self.lift.shape[0]))
            white = white + self.noise * (like(added, self.lift) @ self.lift)
        targets = _dense_rows(self.outputs, rows, ref) - self.output_center
        xp = namespace(ref)
        return tuple(
            xp.reshape(like(part, ref), (n_runs, batch_size, part.shape[1]))
            for part in (white, targets)
        )


def _dense_rows(values: Any, rows: np.ndarray[Any, Any], ref: Array) -> Array:
    """Return the rows with the given indices as a dense array."""
    taken = take(values, rows)
    return taken.toarray() if scipy.sparse.issparse(taken) else like(taken, ref)


class Runs(NamedTuple):
    """The weights and settings of several networks that are trained at once."""

    left: Array  # (n_runs, d1, r): outgoing weights U of every run
    right: Array  # (n_runs, d2, r): incoming weights V of every run
    keep: Array  # (n_runs,): probability of keeping a hidden unit in each run
    time: Array  # (n_runs,): number of steps that each run has made

    @property
    def weights(self) -> Weights:
        """The weights of all runs, along the first axis of the arrays."""
        return Weights(self.left, self.right)

    @property
    def strength(self) -> Array:
        """Strength (1 − keep) / keep of dropout of every run."""
        return (1.0 - self.keep) / self.keep


def first_runs(
    start: Weights | None, rng: Rng, matrix: Array, keep: Array, width: int, scale: float
) -> Runs:
    """Return the runs at the start of training, with the weights `start` or, if None, random ones.

    Random weights are `scale` times as large as the optimum.
    """
    n_runs, (outputs, features) = keep.shape[0], matrix.shape
    expected = ((n_runs, outputs, width), (n_runs, features, width))
    if start is None:
        # The optimal weights are of order √‖M‖ for the target M, and shrink with the square root
        # of the probability of keeping a unit; so does the start.
        size = (scale * max(spectral_bound(matrix), TINY) ** 0.5) * keep[:, None, None] ** 0.5
        left = normal(rng, expected[0], matrix) * (size / outputs**0.5)
        right = normal(rng, expected[1], matrix) * (size / features**0.5)
        return Runs(left, right, keep, 0.0 * keep)
    left, right = (like(part, matrix) for part in start)
    if (tuple(left.shape), tuple(right.shape)) != expected:
        raise ValueError(
            f"start has shapes {tuple(left.shape)} and {tuple(right.shape)}, expected "
            f"{expected[0]} and {expected[1]}: (runs, outputs, width) and (runs, inputs, width)."
        )
    return Runs(left, right, keep, 0.0 * keep)


def spectral_bound(matrix: Array) -> float:
    """Return an upper bound of the spectral norm of a matrix, at most rank^(1/8) times too large.

    It is the Schatten norm of order 8, (Σ sᵢ⁸)^(1/8) = ‖(MMᵀ)²‖^(1/4), which needs no
    decomposition.
    """
    top = largest(matrix)
    if top == 0:
        return 0.0
    scaled = matrix / top
    gram = scaled @ scaled.mT if scaled.shape[0] <= scaled.shape[1] else scaled.mT @ scaled
    square = gram @ gram
    return float(top * float(squared_norm(square)) ** 0.125)


def stable_rates(
    matrix: Array, strengths: Array, width: int, batch_size: int, noise: float = 0.0
) -> Array:
    """Return a learning rate for each run at which dropout SGD is stable, for white inputs.

    The Hessian of the loss at the optimum is of order ‖M‖/√(1 + λ), since the weights shrink as the
    strength λ grows. That of a batch of b examples exceeds its mean: the squared length of the d₂
    inputs contributes d₂/b, the masks of the r hidden units r(1 + λ)/b. The part of the outputs
    that no network explains, of size `noise`, sets the scale if it is larger than ‖M‖. `RATE` was
    tuned on inputs of 1 to 80 dimensions with λ from 0 to 100.
    """
    loaded = 1.0 + strengths
    spread = 1.0 + (matrix.shape[1] + width * loaded) / batch_size
    scale = max(math.hypot(spectral_bound(matrix), noise), TINY)
    return RATE / (scale * loaded**0.5 * spread)


def constant(time: Array, _limit: int) -> Array:
    """Return the factor 1 of the learning rate."""
    return 0.0 * time + 1.0


def inverse_time(time: Array, limit: int) -> Array:
    """Return the factor 1/(1 + 10 t/T) of the learning rate at step t of T."""
    return 1.0 / (1.0 + 10.0 * time / max(limit, 1))


def linear_decay(time: Array, limit: int) -> Array:
    """Return 1 during the first half of the training, then a linear decrease to zero."""
    remaining = 2.0 * (1.0 - time / max(limit, 1))
    return namespace(time).clip(remaining, 0.0, 1.0)


SCHEDULES: dict[str, Schedule] = {
    "constant": constant,
    "inverse": inverse_time,
    "linear": linear_decay,
}


@dataclass(frozen=True, slots=True, eq=False)
class DropoutStep:
    """One step of stochastic gradient descent with dropout, for several runs at once."""

    source: ExampleSource  # draws the examples
    rates: Array  # (n_runs,): learning rate of each run's first step
    # function (time, limit) that returns the factor by which the rates are multiplied
    schedule: Schedule
    limit: int  # number of steps of the whole training, which the schedule needs
    batch_size: int  # number of examples per step; Mianjy et al. 2018 use one
    # `sampled_gradient`, or `paper_direction` for the step of Mianjy et al. 2018
    direction: Callable[..., Weights]
    rng: Rng  # draws examples and masks

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
    direction: Callable[..., Weights] = sampled_gradient,
    tied: bool = False,
    start: Weights | None = None,
    record: Mapping[str, Callable[[Runs], Array]] | None = None,
    batch_size: int = 32,
    limit: int = 2000,
    tolerance: float = 1e-3,
    init_scale: float = 0.3,
    check_every: int = 100,
    record_at: int | Iterable[int] | None = None,
    callbacks: Sequence[Callable[..., Any]] = (),
) -> Solution[Runs]:
    """Train networks with dropout by stochastic gradient descent, one run per entry of `dropouts`.

    Parameters
    ----------
    source : ExampleSource
        Draws examples with white inputs (of identity second moment).
    matrix : array of shape (d1, d2)
        M = E[yxᵀ] of that source. It sets the scale of the learning rate and of the initial
        weights, and determines the expected gradient that the stopping rule measures. The steps do
        not use it.
    dropouts : sequence of float
        Probability of dropping a hidden unit, for each run.
    width : int
        Number r of hidden units.
    rng : RandomState
        Draws the initial weights, examples and masks.
    noise : float, default=0.0
        √E‖y − Mx‖², the size of the part of the outputs that no network explains.
    learning_rate : float or "auto"
        Learning rate of the first step; "auto" uses `stable_rates`.
    schedule : {"linear", "inverse", "constant"}
        How the learning rate decreases. With a constant rate the weights fluctuate about the
        optimum; they converge to it only if the rate decreases to zero.
    direction : callable
        `lucidae.dropout.problem.sampled_gradient`, or `paper_direction` for the step of
        Mianjy et al. 2018, Algorithm 1, which is θ/2 times as long, θ the probability of keeping a
        unit.
    tied : bool, default=False
        Whether both layers share their weights; M must be square.
    start : Weights, optional
        Initial weights of every run, of shapes (n_runs, d1, r) and (n_runs, d2, r); random by
        default.
    record : mapping of str to callable, optional
        Further quantities that the history records, by name; each is a function of `Runs`.
    batch_size, limit : int
        Number of examples per step, and largest number of steps.
    tolerance : float
        Relative norm of the expected gradient at which the training stops; all runs must reach it.
    init_scale : float
        Size of the initial weights, relative to √‖M‖.
    check_every, record_at, callbacks
        As in `lucidae.iteration.iterate`; the history records the expected objective of every run
        and the variance of its importance scores.

    Returns
    -------
    Solution of Runs
        The runs after the last step (`value`), with history, number of steps and status.

    Examples
    --------
    >>> import numpy as np
    >>> from lucidae.dropout.sgd import GaussianSource
    >>> M = np.array([[2.0]])
    >>> solution = descend(GaussianSource(M), M, [0.5], 2, rng=np.random.RandomState(0), limit=500)
    >>> float(solution.history["objective"][-1, 0]).__round__(1)
    1.3
    """
    width = check_integer(width, "width", low=1)
    dropped = like(np.array([checked_dropout(p) for p in dropouts]), matrix)
    if tied and matrix.shape[0] != matrix.shape[1]:
        raise ValueError(
            f"tied=True was given for {matrix.shape[1]} inputs and {matrix.shape[0]} outputs, "
            "expected equal numbers."
        )
    runs = first_runs(start, rng, matrix, 1.0 - dropped, width, init_scale)
    runs = runs._replace(right=runs.left) if tied else runs
    rate = checked_rate(learning_rate)
    rates = (
        stable_rates(matrix, runs.strength, width, batch_size, noise)
        if rate is None
        else 0.0 * runs.keep + rate
    )
    problem = LinearProblem(matrix, None, float(squared_norm(matrix)) + noise * noise)
    step = DropoutStep(
        source,
        rates,
        SCHEDULES[check_choice(schedule, "schedule", SCHEDULES)],
        limit,
        batch_size,
        shared_direction(direction) if tied else direction,
        rng,
    )
    expected = DropoutObjective(problem, runs.strength)

    def importance_variance(runs: Runs) -> Array:
        scores = expected.importance(runs.weights)
        return namespace(scores).var(scores, axis=-1)

    def distance(runs: Runs) -> float:
        if tied:
            return largest(expected.tied_stationarity(runs.left))
        return largest(expected.stationarity(runs.weights))

    figures = {
        "objective": lambda runs: expected.value(runs.weights),
        "importance_variance": importance_variance,
    }
    return iterate(
        step,
        runs,
        stop=Below(distance, tolerance),
        limit=limit,
        check_every=check_every,
        record=figures | dict(record or {}),
        record_at=record_at,
        callbacks=callbacks,
        size=max(*matrix.shape, width),
    )
