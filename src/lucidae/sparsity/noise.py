"""The noise variance γ: learned by evidence, or read off held-out rows.

Learning is safe where the rows determine the coefficients. Elsewhere the evidence has its
infimum at γ = 0, and γ is chosen as the smallest mean squared error with which fits along a
path of γ predict rows that they have not seen. Each fit starts from the one before, but for small
problems, where a few MacKay steps from equal relevances cost less and never inherit a bad minimum.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from lucidae.arrays import Array, namespace, scalar
from lucidae.iteration import Below, Solution, iterate
from lucidae.sparsity.objectives import Energy, FullCovariance
from lucidae.sparsity.problem import Problem, Rows, Units, normalise
from lucidae.sparsity.solvers import is_small, solve
from lucidae.sparsity.state import State, flat_start
from lucidae.sparsity.updates import (
    SMALLEST_LEARNED,
    UPDATES,
    noise_by_expectation,
    repeat_update,
    revalued,
    update_of,
)
from lucidae.sparsity.working_set import solve_working_set

PATH_STEP = 10.0**-0.5
"""Ratio of two neighbouring noise variances on the path."""

PATH_END = 1e-10
"""The path ends here, relative to the mean square response."""

PATIENCE = 3
"""Points of the path without a better prediction after which it ends."""

FEW_STEPS = 10
"""MacKay steps after which the fit of a small problem predicts as well as it will."""

FALLBACK = 0.1
"""Share of the mean square response that counts as noise where one row leaves nothing to learn."""


class Learning(NamedTuple):
    """The last solution at the current noise variance, and the noise variance that follows."""

    solution: Solution[State]
    noise: float


def first_noise(problem: Problem) -> float:
    """Unbiased residual variance where there are more rows than columns, a tenth elsewhere."""
    spare, outside = scalar(problem.spare), scalar(problem.outside)
    estimate = outside / spare if spare >= 1.0 else FALLBACK
    return max(estimate, SMALLEST_LEARNED)


def learn_noise(
    problem: Problem, objective: Energy, *, method: str, tolerance: float, limit: int
) -> Solution[State]:
    """Minimise the energy over the relevances and γ together.

    For the full posterior, exact descents in the relevances alternate with EM steps in γ; both
    lower the energy. For the diagonal one, both are updated at once.
    """
    begun = problem.with_noise(first_noise(problem))
    if not isinstance(objective, FullCovariance):
        update = update_of(objective, method)
        return repeat_update(begun, objective, update, tolerance=tolerance, limit=limit, learn=True)

    def following(solution: Solution[State]) -> Learning:
        state = solution.value
        noise = scalar(noise_by_expectation(state, objective.degrees_of_freedom(state)))
        return Learning(solution, max(noise, SMALLEST_LEARNED))

    def step(learning: Learning) -> Learning:
        start = learning.solution.value.relevance
        chosen = "coordinate" if objective.groups is None else "mm"
        at_noise = problem.with_noise(learning.noise)
        return following(
            solve(at_noise, objective, method=chosen, start=start, tolerance=tolerance, limit=50)
        )

    def distance(learning: Learning) -> float:
        change = abs(learning.noise / scalar(learning.solution.value.noise) - 1.0)
        return max(change, learning.solution.distance)

    first = following(solve(begun, objective, method=method, tolerance=tolerance, limit=limit))
    record = {"energy": lambda learning: objective.value(learning.solution.value)}
    learned = iterate(
        step, first, stop=Below(distance, tolerance), limit=limit, record=record, size=problem.rows
    )
    return revalued(learned, learned.value.solution.value)


@dataclass(slots=True)
class RowFold:
    """One split of the rows, carried along the path of noise variances."""

    problem: Problem
    units: Units
    train: Rows
    test: Rows
    relevance: Array | None = None

    def error(self, noise: float, objective: Energy) -> float:
        """Fit at `noise` from the last fit and return the weighted squared error held out."""
        normalised = scalar(self.units.normalised_noise(noise))
        solution = _coarse(self.problem.with_noise(normalised), objective, self.relevance)
        self.relevance = solution.value.relevance
        relevance = self.units.relevance(self.relevance)
        coefficients = self.train.coefficients(relevance, noise)
        return self.test.squared_error(coefficients, self.train)


def _coarse(problem: Problem, objective: Energy, start: Array | None) -> Solution[Any]:
    """Solve well enough to predict with."""
    if isinstance(objective, FullCovariance) and objective.groups is None:
        if is_small(problem):  # no start is better: one from a larger γ may lead too high
            update = UPDATES["mackay"]
            return repeat_update(problem, objective, update, tolerance=1e-2, limit=FEW_STEPS)
        return solve_working_set(problem, start, tolerance=1e-2, limit=10)
    xp = namespace(problem.dictionary)
    # The updates cannot leave zero, so every column is given a little to start with.
    flat = flat_start(problem)
    begin = flat if start is None else xp.maximum(start, 1e-2 * flat)
    update = update_of(objective, "mm")
    return repeat_update(problem, objective, update, begin, tolerance=1e-2, limit=100)


def cross_validated_noise(
    rows: Rows, splits: Iterable[tuple[Any, Any]], objective: Energy
) -> float:
    """Return the smallest mean squared error of predicting held-out rows along a path of γ.

    Parameters
    ----------
    rows : Rows
        The dictionary, the responses and their weights.
    splits : iterable of (train, test) indices
        The folds.
    objective : Energy
        Which energy is fitted on the training rows.

    Returns
    -------
    float
        In squared units of the responses. The error of predicting unseen rows bounds the noise
        variance from above, up to sampling, and is zero only if they are predicted exactly.
    """
    folds = [_fold(rows.take(train), rows.take(test), objective) for train, test in splits]
    total = sum(fold.test.total_weight for fold in folds) * rows.responses.shape[1]
    scale = rows.mean_square()
    if scale == 0.0:
        return 0.0
    best, waited, noise = np.inf, 0, scale
    while waited < PATIENCE and noise > PATH_END * scale:
        error = sum(fold.error(noise, objective) for fold in folds) / total
        waited = 0 if error < 0.99 * best else waited + 1
        best, noise = min(best, error), noise * PATH_STEP
    return max(float(best), PATH_END * scale)


def _fold(train: Rows, test: Rows, objective: Energy) -> RowFold:
    dictionary, responses = train.whitened
    problem, units = normalise(
        dictionary, responses, dimension=train.dimension, groups=objective.groups
    )
    return RowFold(problem, units, train, test)
