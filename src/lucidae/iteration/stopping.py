"""The rules by which an iteration stops: convergence, divergence, stalling and the step limit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from lucidae.arrays import Array
from lucidae.iteration.status import Status
from lucidae.validation import check_integer

DIVERGENCE_FACTOR = 1e10
"""An iteration has diverged when its distance to optimality exceeds this number times the larger
one of 1 and the first distance."""


@dataclass(frozen=True, slots=True)
class Below:
    """Stopping rule: the distance to optimality is at most `tolerance`.

    Parameters
    ----------
    distance : callable
        Takes a state and returns its distance to optimality, which has no unit: a number for one
        problem, an array with one entry per problem for many.
    tolerance : float
        The distance to optimality at which the problem counts as solved.
    patience : int, optional
        Number of evaluations without a new smallest distance after which the iteration ends as
        stalled. By default it never does.

    Examples
    --------
    >>> Below(abs, 1e-3).tolerance
    0.001
    """

    distance: Callable[[Any], Any]
    tolerance: float
    patience: int | None = None

    def __post_init__(self) -> None:
        if math.isnan(self.tolerance):
            raise ValueError("tolerance=nan was given, expected a number that is not NaN.")
        if self.patience is not None:
            check_integer(self.patience, "patience", low=1)


class Judge:
    """Judge of running problems: after each check it tells which of them have ended, and how."""

    def __init__(self, stop: Below, count: int) -> None:
        self.stop = stop
        self.best = np.full(count, np.inf)
        self.waited = np.zeros(count, dtype=int)
        self.latest = np.full(count, np.nan)
        self.ceiling: Array | None = None

    def __call__(self, distances: Array, exhausted: bool) -> Array:
        """Return for each running problem the `Status` with which it ended; None if it continues.

        `distances` are the distances to optimality of the running problems, and `exhausted` tells
        whether the largest number of steps has been made.
        """
        if distances.shape != self.latest.shape:
            raise ValueError(
                f"the distance function of the stopping rule returned shape {distances.shape}, "
                f"expected {self.latest.shape}: one entry per problem."
            )
        if self.ceiling is None:
            self.ceiling = DIVERGENCE_FACTOR * np.maximum(distances, 1.0)
        self.latest = distances
        improved = distances < self.best
        self.best = np.where(improved, distances, self.best)
        self.waited = np.where(improved, 0, self.waited + 1)
        return self._verdicts(exhausted)

    def _verdicts(self, exhausted: bool) -> Array:
        """Return the status of each problem, or None if it continues, from the latest distances.

        The distances are those to optimality, and `exhausted` tells whether the largest number of
        steps has been made. If several statuses apply to a problem, divergence has precedence over
        convergence, convergence over the limit of steps, and this limit over stalling.
        """
        verdicts = np.full(self.latest.shape, None, dtype=object)
        if self.stop.patience is not None:
            verdicts[self.waited >= self.stop.patience] = Status.STALLED
        if exhausted:
            verdicts[:] = Status.ITERATION_LIMIT
        verdicts[self.latest <= self.stop.tolerance] = Status.CONVERGED
        # The negated comparison is true for NaN as well.
        verdicts[~(self.latest <= self.ceiling) | np.isinf(self.latest)] = Status.DIVERGED
        return verdicts

    def drop(self, finished: Array) -> None:
        """Remove the problems where the mask `finished` is true from the running problems."""
        for name in ("best", "waited", "latest", "ceiling"):
            setattr(self, name, getattr(self, name)[~finished])
