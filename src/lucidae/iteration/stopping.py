"""Stopping rules: distance to optimality, divergence, stalling and the iteration limit."""

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
"""Growth of the distance, relative to its first value or to 1, that counts as divergence."""


@dataclass(frozen=True, slots=True)
class Below:
    """Stop when a distance to optimality is at most `tolerance`.

    Parameters
    ----------
    distance : callable
        From a state to its dimensionless distance to optimality: a number for one problem,
        an array with one entry per problem for a stack.
    tolerance : float
        The distance at which the problem counts as solved.
    patience : int, optional
        Number of checks without a new smallest distance after which the iteration has stalled.

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
            raise ValueError("tolerance=nan was given, expected a number.")
        if self.patience is not None:
            check_integer(self.patience, "patience", low=1)


class Judge:
    """Decide for each running problem how it ended: by a Status, or None if it continues."""

    def __init__(self, stop: Below, count: int) -> None:
        self.stop = stop
        self.best = np.full(count, np.inf)
        self.waited = np.zeros(count, dtype=int)
        self.latest = np.full(count, np.nan)
        self.ceiling: Array | None = None

    def __call__(self, distances: Array, exhausted: bool) -> Array:
        """Return one verdict per running problem from their distances."""
        if distances.shape != self.latest.shape:
            raise ValueError(
                f"the distance has shape {distances.shape}, expected {self.latest.shape}: "
                "one entry per problem."
            )
        if self.ceiling is None:
            self.ceiling = DIVERGENCE_FACTOR * np.maximum(distances, 1.0)
        self.latest = distances
        improved = distances < self.best
        self.best = np.where(improved, distances, self.best)
        self.waited = np.where(improved, 0, self.waited + 1)
        return self._verdicts(exhausted)

    def _verdicts(self, exhausted: bool) -> Array:
        """Return one verdict per problem; later assignments have precedence over earlier ones."""
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
        """Remove the finished problems."""
        for name in ("best", "waited", "latest", "ceiling"):
            setattr(self, name, getattr(self, name)[~finished])
