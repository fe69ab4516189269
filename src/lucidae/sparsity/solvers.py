"""From a problem and an objective to relevances: one table of methods, one way to call them.

Solvers of the full energy end at the same minimum where one is left, and may part where there
are several. Seen with 20 dB noise (d = 100, κ = 200, rank 3, ten problems a line; energy per
response above the best of all solvers, median and worst):

=====  ==========  =======  =======  =========  =======  ==========
n      rows r      auto     mm       em         mackay   coordinate
=====  ==========  =======  =======  =========  =======  ==========
20     40, 60      0, 0     0, 0     0, 0       0, 0     0, 0
20     70          0, 0     0, 0     0, 10.8    0, 0     0, 19.9
20     80          0, 0.9   0, 0.9   0, 3.5     0, 0.9   0.9, 3.8
1      10          0, 0     0, 0.4   0, 0       0, 0.4   0, 2.5
1      30          0, 1.2   0, 1.2   0, 1.2     0, 1.2   0, 54.5
=====  ==========  =======  =======  =========  =======  ==========

At a noise variance far below the true one, and without noise beyond r = 0.8 d, EM's slower path
finds the lower minima. So "auto" follows EM for one or two responses. With more of them it follows
MacKay's rule, or goes down by coordinates where there is no noise or the dictionary is wide or
large. Where that uses more than 0.6 d of a small problem's rows it compares with EM (and another
update) and keeps the lowest energy.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from lucidae.arrays import Array, namespace, scalar
from lucidae.iteration import History, Solution, Status
from lucidae.sparsity.groups import Groups
from lucidae.sparsity.objectives import (
    Autoencoder,
    DiagonalCovariance,
    Energy,
    FullCovariance,
    Marginal,
)
from lucidae.sparsity.problem import Problem
from lucidae.sparsity.state import State, evaluate, positive
from lucidae.sparsity.updates import repeat_update, revalued, update_of
from lucidae.sparsity.working_set import as_state, best_change, continuation, solve_working_set

SOLVERS = ("auto", "mm", "em", "mackay", "coordinate")
POSTERIORS = ("full", "diagonal", "point")

BASIN = 1e-2
"""Distance at which an update has chosen its basin and exact steps take over."""

BASIN_LIMIT = {"mm": 30, "mackay": 15, "em": 300}
"""Largest number of updates spent on choosing a basin; more of them end no lower."""

FEW_RESPONSES = 2
"""Number of responses up to which "auto" follows EM, since minima are many."""

EM_PER_COLUMN = 15
"""EM steps that "auto" spends on few responses, times columns per row; 30 to 100 of them."""

SMALL = 200_000
"""Entries of a dictionary up to which updates of all columns are affordable."""

CROWDED = 0.6
"""Share of the rows beyond which an estimate may have stopped in one of many minima."""

WIDE = 8
"""Columns per row beyond which coordinates, most of which never move, are cheaper than updates."""

NOISE_FREE = 1e-6
"""Noise variance, relative to the mean square response, below which EM's slow path is tried too."""


def make_objective(posterior: str, penalty: Any, groups: Groups | None) -> Energy:
    """Return the energy that belongs to a posterior."""
    if posterior == "full":
        return FullCovariance(groups)
    if posterior == "diagonal":
        return DiagonalCovariance(groups)
    return Autoencoder(penalty, groups)


def solve(
    problem: Problem,
    objective: Energy,
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
    objective : Energy
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
    if not isinstance(objective, Marginal):
        update = update_of(objective, method)
        return repeat_update(problem, objective, update, start, tolerance=tolerance, limit=limit)
    exact = isinstance(objective, FullCovariance) and objective.groups is None
    if method == "coordinate" and exact:
        return _solve_by_coordinates(problem, start, tolerance, limit)
    if method == "auto" and exact:
        return _solve_the_best_way(problem, start, tolerance, limit)
    updates = basin_limit(objective, method)
    return _solve_by_updates(problem, objective, method, start, tolerance, limit, updates)


def basin_limit(objective: Energy, method: str) -> int:
    """Return how many updates may be spent on choosing a basin."""
    patient = isinstance(objective, DiagonalCovariance) or method not in BASIN_LIMIT
    return max(BASIN_LIMIT.values()) if patient else BASIN_LIMIT[method]


def is_small(problem: Problem) -> bool:
    """Tell whether updates of all columns are affordable."""
    return problem.rows * problem.columns <= SMALL


def em_steps(problem: Problem) -> int:
    """Return how many EM steps choose the basin of few responses."""
    return min(max(EM_PER_COLUMN * problem.columns // problem.rows, 30), 100)


def _solve_by_updates(
    problem: Problem, objective: Marginal, method: str, start: Array | None,
    tolerance: float, limit: int, updates: int,
) -> Solution[State]:  # fmt: skip
    """Let an update choose the basin, and exact steps reach its bottom."""
    basin = repeat_update(
        problem, objective, update_of(objective, method), start,
        tolerance=max(BASIN, tolerance), limit=min(limit, updates),
    )  # fmt: skip
    return _finish(problem, basin, objective, tolerance, limit)


def _solve_by_coordinates(
    problem: Problem, start: Array | None, tolerance: float, limit: int
) -> Solution[State]:
    """Continuation in γ, then coordinate descent."""
    first = continuation(problem) if start is None else start
    return _polished(problem, first, FullCovariance(), tolerance, limit)


def _solve_the_best_way(
    problem: Problem, start: Array | None, tolerance: float, limit: int
) -> Solution[State]:
    """Choose one way down, and where minima are many keep the lowest end of several."""

    def down(method: str) -> Solution[State]:
        if method == "coordinate":
            return _solve_by_coordinates(problem, start, tolerance, limit)
        patient = method == "em" and scalar(problem.noise) < NOISE_FREE
        updates = em_steps(problem) if method == "em" and not patient else BASIN_LIMIT[method]
        return _solve_by_updates(problem, full, method, None, tolerance, limit, updates)

    full = FullCovariance()
    first, *others = ("coordinate",) if start is not None else ways_down(problem)
    found = down(first)
    if scalar(found.value.used) <= CROWDED * problem.rows:
        return found
    ended = [found, *(down(method) for method in others)]
    return min(ended, key=lambda each: scalar(full.value(each.value)))


def ways_down(problem: Problem) -> tuple[str, ...]:
    """Return the methods that suit a problem: the first, and others to compare where it is hard."""
    if not is_small(problem):
        return ("coordinate",)
    if problem.responses.shape[-1] <= FEW_RESPONSES:
        return ("em",)
    if scalar(problem.noise) < NOISE_FREE:
        return ("coordinate", "mm", "em")
    if problem.columns > WIDE * problem.rows:
        return ("coordinate", "mackay", "em")
    return ("mackay", "em")


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
    start = thinned(basin.value, objective)
    return joined(basin, _polished(problem, start, objective, tolerance, left))


def thinned(state: State, objective: Marginal) -> Array:
    """Set relevances that are on their way to zero to zero.

    These are the ones far below the noise that still fall and, for the full energy, all those
    whose exact minimiser is zero (Wipf 2023, Theorem 4.4), if that together raises no energy.
    """
    xp = namespace(state.relevance)
    falling = objective.gradient(state) > 0
    vanishing = (state.relevance < 1e-6 * state.noise[..., None]) & falling
    kept = xp.where(vanishing, 0.0 * state.relevance, state.relevance)
    if not isinstance(objective, FullCovariance) or objective.groups is not None:
        return kept
    change = best_change(state.relevance, positive(state.curvature), state.alignment)
    trial = xp.where(change <= -state.relevance, 0.0 * kept, kept)
    lower = objective.value(evaluate(state.problem, trial)) <= objective.value(state)
    return xp.where(lower[..., None], trial, kept)


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
