"""From a problem and an objective to relevances: one table of methods, one way to call them.

Solvers of the full energy end at the same minimum where one is left, and may part where there
are several. Seen with 20 dB noise (d = 100, κ = 200, n = 20, rank 3, ten problems a line; energy
per response above the best of all solvers, median and worst):

======  ==========  =========  ==========  ===========
rows r  mm          em         mackay      coordinate
======  ==========  =========  ==========  ===========
40, 60  0, 0        0, 0       0, 0        0, 0
70      0, 0        0, 11      0, 0        0, 20
80      0, 0.9      0.2, 3.5   0, 0.9      0.9, 7.3
======  ==========  =========  ==========  ===========

Without noise EM's slower path finds the lower minima beyond r = 0.8 d. So "auto" goes down by
coordinates, and where these use more than half of the rows it compares with MM (and EM without
noise) and keeps the lowest energy.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from lucidae._arrays import Array, device, namespace, scalar, to_numpy, zeros_like_shape
from lucidae.iterate import Below, iterate
from lucidae.solution import History, Solution, Status
from lucidae.sparsity.groups import Groups
from lucidae.sparsity.objectives import (
    Autoencoder,
    DiagonalCovariance,
    FullCovariance,
    Marginal,
    Objective,
)
from lucidae.sparsity.problem import Problem, rounding_distance
from lucidae.sparsity.state import State, evaluate, flat_start
from lucidae.sparsity.updates import (
    UPDATES,
    Update,
    diagonal_minimizer,
    noise_by_expectation,
    reweighting,
)
from lucidae.sparsity.workingset import as_state, continuation, solve_working_set

SOLVERS = ("auto", "mm", "em", "mackay", "coordinate")
POSTERIORS = ("full", "diagonal", "point")

BASIN = 1e-2
"""Distance at which an update has chosen its basin and exact steps take over."""

BASIN_LIMIT = 300
"""Largest number of updates spent on choosing a basin."""

SMALL = 200_000
"""Entries of a dictionary up to which "auto" compares several paths down."""

NOISE_FREE = 1e-6
"""Noise variance, relative to the mean square response, below which EM's slow path is tried too."""

NEGLIGIBLE = 1e-14
"""Relevance, relative to the noise variance, that no longer changes Σ in double precision."""

SMALLEST_LEARNED = 1e-10
"""Learning never takes the noise variance below this share of the mean square response."""


class Kept(NamedTuple):
    """A state on the columns that are still in play, and which these are."""

    state: State
    columns: Any


def make_objective(posterior: str, penalty: Any, groups: Groups | None) -> Objective:
    """Return the energy that belongs to a posterior."""
    if posterior == "full":
        return FullCovariance(groups)
    if posterior == "diagonal":
        return DiagonalCovariance(groups)
    return Autoencoder(penalty, groups)


def update_of(objective: Objective, method: str) -> Update:
    """Return the update rule that lowers `objective`."""
    if isinstance(objective, DiagonalCovariance):
        return diagonal_minimizer
    if isinstance(objective, Autoencoder):
        return reweighting(objective)
    return UPDATES["mm" if method in ("auto", "coordinate") else method]


def repeat_update(
    problem: Problem,
    objective: Objective,
    update: Update,
    start: Array | None = None,
    *,
    tolerance: float,
    limit: int,
    learn: bool = False,
) -> Solution[State]:
    """Repeat one update of the relevances (and of γ, if `learn`) until it is stationary.

    Columns whose relevance no longer changes Σ are dropped on the way; the returned state
    holds all of them again. The history records the energy per response.
    """
    prunes = objective.groups is None and not isinstance(objective, Autoencoder)

    def step(kept: Kept) -> Kept:
        state = kept.state
        relevance = update(state, objective.groups)
        following = _learned(state, objective) if learn else state.problem
        if prunes:
            kept, following, relevance = _pruned(kept, following, relevance)
        return Kept(evaluate(following, relevance), kept.columns)

    def distance(kept: Kept) -> float:
        violation = scalar(objective.violation(kept.state))
        return max(violation, _noise_distance(kept.state, objective)) if learn else violation

    first = evaluate(problem, flat_start(problem) if start is None else start)
    reachable = max(tolerance, rounding_distance(problem))
    solution = iterate(
        step,
        Kept(first, np.arange(problem.columns)),
        stop=Below(distance, reachable),
        limit=limit,
        record={"energy": lambda kept: objective.value(kept.state)},
        size=problem.rows,
    )
    return revalued(solution, _restored(problem, solution.value))


def _learned(state: State, objective: Objective) -> Problem:
    learned = noise_by_expectation(state, objective.degrees_of_freedom(state))
    floor = namespace(learned).full_like(learned, SMALLEST_LEARNED)
    return state.problem._replace(noise=namespace(learned).maximum(learned, floor))


def _noise_distance(state: State, objective: Objective) -> float:
    """Relative change that the next update of γ would bring."""
    return abs(scalar(_learned(state, objective).noise / state.noise) - 1.0)


def _pruned(kept: Kept, problem: Problem, relevance: Array) -> tuple[Kept, Problem, Array]:
    """Drop negligible columns once they are a tenth of all."""
    state = kept.state
    negligible = (relevance <= NEGLIGIBLE * state.noise) & (state.alignment <= state.curvature)
    alive = np.flatnonzero(~to_numpy(negligible))
    if alive.size > 0.9 * kept.columns.size or not alive.size:
        return kept, problem, relevance
    xp = namespace(relevance)
    index = xp.asarray(alive, device=device(relevance))
    narrowed = problem._replace(dictionary=xp.take(problem.dictionary, index, axis=1))
    return Kept(state, kept.columns[alive]), narrowed, xp.take(relevance, index, axis=0)


def _restored(problem: Problem, kept: Kept) -> State:
    if kept.columns.size == problem.columns:
        return kept.state
    state = kept.state
    relevance = zeros_like_shape((problem.columns,), state.relevance)
    index = namespace(relevance).asarray(kept.columns, device=device(relevance))
    relevance[index] = state.relevance
    return evaluate(problem._replace(noise=state.noise), relevance)


def solve(
    problem: Problem,
    objective: Objective,
    *,
    method: str = "auto",
    start: Array | None = None,
    tolerance: float = 1e-6,
    limit: int = 1000,
) -> Solution[State]:
    """Minimise an objective at the problem's noise variance.

    Parameters
    ----------
    problem : Problem
        One problem, not a stack.
    objective : Objective
        The energy.
    method : {"auto", "mm", "em", "mackay", "coordinate"}
        How to go down. The updates choose a basin of the full energy, exact steps on a working
        set then reach its bottom. The other energies have one update each.
    start : array of shape (κ,), optional
        Relevances to start from.
    tolerance : float
        Distance to stationarity at which to stop.
    limit : int
        Largest number of iterations.

    Returns
    -------
    Solution
        Its value is a `State`.
    """
    update = update_of(objective, method)
    if not isinstance(objective, Marginal):
        return repeat_update(problem, objective, update, start, tolerance=tolerance, limit=limit)
    exact = isinstance(objective, FullCovariance) and objective.groups is None
    if method in ("auto", "coordinate") and exact:
        return _solve_by_coordinates(problem, start, method, tolerance, limit)
    basin = repeat_update(
        problem, objective, update, start,
        tolerance=max(BASIN, tolerance), limit=min(limit, BASIN_LIMIT),
    )  # fmt: skip
    return _finish(problem, basin, objective, tolerance, limit)


def _solve_by_coordinates(
    problem: Problem, start: Array | None, method: str, tolerance: float, limit: int
) -> Solution[State]:
    """Continuation in γ, then coordinate descent; "auto" tries updates where minima are many."""
    first = continuation(problem) if start is None else start
    found = _polished(problem, first, FullCovariance(), tolerance, limit)
    small = problem.rows * problem.columns <= SMALL
    crowded = scalar(found.value.used) > problem.rows / 2
    if method != "auto" or start is not None or not small or not crowded:
        return found
    others = ("mm", "em") if scalar(problem.noise) < NOISE_FREE else ("mm",)
    tried = [
        solve(problem, FullCovariance(), method=other, tolerance=tolerance, limit=limit)
        for other in others
    ]
    return min((found, *tried), key=lambda each: scalar(FullCovariance().value(each.value)))


def _polished(
    problem: Problem, start: Array, objective: Marginal, tolerance: float, limit: int
) -> Solution[State]:
    """Exact steps on working sets from `start`, as a solution whose value is a `State`."""
    solved = solve_working_set(
        problem, start, objective=objective, tolerance=tolerance, limit=limit
    )
    constant = scalar(
        problem.outside / problem.noise + problem.spare * namespace(start).log(problem.noise)
    )
    energies = solved.history["energy"] + constant
    values = dict(solved.history.values) | {"energy": energies}
    state = as_state(problem, solved.value)
    return revalued(solved, state, History(solved.history.iterations, values))


def _finish(
    problem: Problem, basin: Solution[State], objective: Marginal, tolerance: float, limit: int
) -> Solution[State]:
    """Reach the bottom of the basin in which an update has ended."""
    left = limit - basin.n_iter
    if basin.status is Status.DIVERGED or basin.distance <= tolerance:
        return basin
    if left <= 0:  # the basin was reached, its bottom was not
        return replace(basin, status=Status.ITERATION_LIMIT, tolerance=tolerance)
    start = without_negligible(basin.value, objective)
    return joined(basin, _polished(problem, start, objective, tolerance, left))


def without_negligible(state: State, objective: Marginal) -> Array:
    """Set relevances that are on their way to zero, and far below the noise, to zero."""
    xp = namespace(state.relevance)
    gradient = objective.gradient(state)
    vanishing = (state.relevance < 1e-6 * state.noise[..., None]) & (gradient > 0)
    return xp.where(vanishing, 0.0 * state.relevance, state.relevance)


def revalued(
    solution: Solution[Any], value: State, history: History | None = None
) -> Solution[State]:
    """Return a solution that ended alike, with another value."""
    kept = solution.history if history is None else history
    return Solution(
        value, solution.status, solution.n_iter, solution.distance, solution.tolerance, kept
    )


def joined(first: Solution[Any], second: Solution[Any]) -> Solution[Any]:
    """Return two solutions, the second started from the first, as one."""
    iterations = np.concatenate(
        [first.history.iterations, second.history.iterations[1:] + first.n_iter]
    )
    values = {
        name: np.concatenate([series, second.history[name][1:]])
        for name, series in first.history.values.items()
    }
    history = History(iterations, values)
    return replace(second, n_iter=first.n_iter + second.n_iter, history=history)
