"""Dropout by stochastic gradient descent (Mianjy et al. 2018, Algorithm 1), many runs at once.

A run has its own weights, its own examples, its own masks and its own rate of dropout; runs lie
along the leading axis, on whatever device the data live.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from lucidae._arrays import (
    Array,
    like,
    namespace,
    scalar,
    squared_norm,
)
from lucidae._validation import check_choice, check_number
from lucidae.dropout.objectives import (
    LinearProblem,
    Weights,
    draw_masks,
    paper_direction,
    sampled_gradient,
    shared_direction,
)
from lucidae.dropout.runs import TINY, Runs, Watch, first_runs, share, spectral_bound
from lucidae.dropout.sources import Rng, Source
from lucidae.dropout.theory import checked_dropout
from lucidae.iterate import Below, iterate
from lucidae.solution import Solution

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
    source : Source
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

    source: Source
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
    source: Source,
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
    source : Source
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
        As in `lucidae.iterate.iterate`; the history keeps every run's expected objective and the
        variance of its importance scores.

    Returns
    -------
    Solution of Runs

    Examples
    --------
    >>> import numpy as np
    >>> from lucidae.dropout.sources import GaussianSource
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
