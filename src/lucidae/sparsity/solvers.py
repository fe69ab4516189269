"""Solvers, which compute relevances from a problem and an energy, in one table.

Solvers of the full energy end at the same minimum where there is only one, and may end at
different ones where there are several. Observed with 20 dB noise (d = 100, κ = 200, rank 3, ten
problems a line; energy per response above the lowest of all solvers, median and largest):

=====  ==========  =======  =======  =========  =======  ==========
n      rows r      auto     mm       em         mackay   coordinate
=====  ==========  =======  =======  =========  =======  ==========
20     40, 60      0, 0     0, 0     0, 0       0, 0     0, 0
20     70          0, 0     0, 0     0, 10.8    0, 0     0, 19.9
20     80          0, 0.9   0, 0.9   0, 3.5     0, 0.9   0.9, 3.8
1      10          0, 0     0, 0.4   0, 0       0, 0.4   0, 2.5
1      30          0, 1.2   0, 1.2   0, 1.2     0, 1.2   0, 54.5
=====  ==========  =======  =======  =========  =======  ==========

At a noise variance far below the true one, and without noise above r = 0.8 d, the slower path of
EM finds the lower minima. So "auto" uses EM for one or two responses. With more of them it uses
MacKay's rule, or coordinates where there is no noise or the dictionary is wide or large. Where the
result uses more than 0.6 d of a small problem's rows, "auto" also runs EM (and another update) and
returns the lowest energy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from lucidae.arrays import Array, device, namespace, put, scalar, to_numpy, zeros_like_shape
from lucidae.iteration import Below, Callback, History, Solution, Status, iterate
from lucidae.sparsity.groups import Groups
from lucidae.sparsity.objectives import Energy, Marginal
from lucidae.sparsity.problem import Problem, rounding_distance
from lucidae.sparsity.state import State, evaluate, evaluate_from, flat_start, positive
from lucidae.sparsity.updates import learned_noise
from lucidae.sparsity.working_set import best_change, continuation, solve_working_set
from lucidae.validation import check_choice

BASIN = 1e-2
"""Distance to stationarity at which updates have chosen a basin of attraction.

Newton steps then reach its minimum."""

BASIN_LIMIT = {"mm": 30, "mackay": 15, "em": 300}
"""Largest number of updates spent on choosing a basin; more of them end no lower."""

FEW_RESPONSES = 2
"""Number of responses up to which "auto" uses EM, since minima are many."""

EM_PER_COLUMN = 15
"""EM steps that "auto" spends on few responses, times columns per row; 30 to 100 of them."""

SMALL = 200_000
"""Entries of a dictionary up to which updates of all columns are affordable."""

CROWDED = 0.6
"""Degrees of freedom per row above which an estimate may have stopped in one of many minima."""

WIDE = 8
"""Columns per row above which coordinates, most of which never move, are cheaper than updates."""

NOISE_FREE = 1e-6
"""Noise variance, relative to the mean square response, below which EM's slow path is tried too."""

NEGLIGIBLE = 1e-14
"""Relevance, relative to the noise variance, that no longer changes Σ in double precision."""

LIFT = 1e-2
"""Share of the flat start that every column gets where updates start from given relevances."""


@dataclass(frozen=True, slots=True)
class Limits:
    """When a solver stops, and the callbacks that it calls."""

    tolerance: float = 1e-6
    steps: int = 1000
    callbacks: Sequence[Callback] = ()


Minimise: TypeAlias = Callable[[Problem, Energy, Array | None, Limits], Solution[State]]


@dataclass(frozen=True, slots=True)
class Solver:
    """A method that minimises an energy, and the properties of the energy that it needs."""

    minimise: Minimise
    suits: Callable[[Energy], bool]
    needs: str = ""


def solve(
    problem: Problem,
    objective: Energy,
    *,
    method: str = "auto",
    start: Array | None = None,
    tolerance: float = 1e-6,
    limit: int = 1000,
    callbacks: Sequence[Callback] = (),
) -> Solution[State]:
    """Minimise an energy at the problem's noise variance.

    Parameters
    ----------
    problem : Problem
        One problem, not a stack.
    objective : Energy
        The energy.
    method : {"auto", "mm", "em", "mackay", "coordinate"}
        The solver. The updates choose a basin of the full energy, Newton steps on a working set
        then reach its minimum. The other energies have one update each.
    start : array of shape (κ,), optional
        Relevances to start from.
    tolerance : float
        Distance to stationarity at which to stop.
    limit : int
        Largest number of iterations.
    callbacks : sequence of callable
        As in `iterate`.

    Returns
    -------
    Solution
        Its value is a `State`.
    """
    solver = SOLVERS[check_suited(method, objective)]
    return solver.minimise(problem, objective, start, Limits(tolerance, limit, callbacks))


def check_suited(method: Any, objective: Energy) -> str:
    """Return the name of a solver, or raise an error if the energy lacks what the solver needs."""
    name = check_choice(method, "solver", SOLVERS)
    solver = SOLVERS[name]
    if not solver.suits(objective):
        energy = type(objective).__name__ + ("" if objective.groups is None else " with groups")
        raise ValueError(
            f"solver={name!r} needs {solver.needs}, which {energy} does not have: use "
            "solver='auto'."
        )
    return name


def is_small(problem: Problem) -> bool:
    """Tell whether updates of all columns are affordable."""
    return problem.rows * problem.columns <= SMALL


def em_steps(problem: Problem) -> int:
    """Return the number of EM steps after which a basin of attraction is chosen (few responses)."""
    return min(max(EM_PER_COLUMN * problem.columns // problem.rows, 30), 100)


def basin_limit(objective: Energy, rule: str) -> int:
    """Return the largest number of updates before Newton steps take over."""
    return max(BASIN_LIMIT.values()) if objective.patient else BASIN_LIMIT[rule]


class PrunedState(NamedTuple):
    """A state on the columns that have not been dropped, and the indices of these columns."""

    state: State
    columns: np.ndarray[Any, Any]


def repeat_update(
    problem: Problem,
    objective: Energy,
    rule: str = "mm",
    start: Array | None = None,
    *,
    tolerance: float,
    limit: int,
    learn: bool = False,
    prune: bool = True,
    callbacks: Sequence[Callback] = (),
) -> Solution[State]:
    """Repeat one update of the relevances (and of γ, if `learn`) until it is stationary.

    If `prune`, columns whose relevance no longer changes the covariance Σ of a response are dropped
    on the way, where the energy allows it; the returned state has all of them again. The history
    records the energy per response.
    """
    update = objective.update(rule)

    def step(pruned: PrunedState) -> PrunedState:
        state = pruned.state
        relevance = update(state)
        following = _with_learned_noise(state, objective) if learn else state.problem
        if prune and objective.prunes:
            pruned, following, relevance = _dropped(pruned, following, relevance)
        return PrunedState(evaluate(following, relevance), pruned.columns)

    def distance(pruned: PrunedState) -> float:
        violation = scalar(objective.violation(pruned.state))
        return max(violation, _noise_distance(pruned.state, objective)) if learn else violation

    first = evaluate(problem, flat_start(problem, objective.groups) if start is None else start)
    solution = iterate(
        step,
        PrunedState(first, np.arange(problem.columns)),
        stop=Below(distance, max(tolerance, rounding_distance(problem))),
        limit=limit,
        record={"energy": lambda pruned: objective.value(pruned.state)},
        callbacks=callbacks,
        size=problem.rows,
    )
    return with_value(solution, _restored(problem, solution.value))


def _with_learned_noise(state: State, objective: Energy) -> Problem:
    noise = learned_noise(state, objective.degrees_of_freedom(state))
    return state.problem._replace(noise=noise)


def _noise_distance(state: State, objective: Energy) -> float:
    """Return the relative change that the next update of the noise variance would bring."""
    return abs(scalar(_with_learned_noise(state, objective).noise / state.noise) - 1.0)


def _dropped(
    pruned: PrunedState, problem: Problem, relevance: Array
) -> tuple[PrunedState, Problem, Array]:
    """Drop the columns with negligible relevances as soon as these are a tenth of all columns."""
    # A column whose relevance still grows (Q > z) is not dropped however small it is.
    state = pruned.state
    negligible = (relevance <= NEGLIGIBLE * state.noise) & (state.alignment <= state.curvature)
    remaining = np.flatnonzero(~to_numpy(negligible))
    if remaining.size > 0.9 * pruned.columns.size or not remaining.size:
        return pruned, problem, relevance
    xp = namespace(relevance)
    index = xp.asarray(remaining, device=device(relevance))
    narrowed = problem._replace(dictionary=xp.take(problem.dictionary, index, axis=1))
    columns = pruned.columns[remaining]
    return PrunedState(state, columns), narrowed, xp.take(relevance, index, axis=0)


def _restored(problem: Problem, pruned: PrunedState) -> State:
    """Return the state on all columns, with relevance zero for those that were dropped."""
    state = pruned.state
    if pruned.columns.size == problem.columns:
        return state
    nothing = zeros_like_shape((problem.columns,), state.relevance)
    relevance = put(nothing, pruned.columns, state.relevance)
    return evaluate(problem._replace(noise=state.noise), relevance, factor=state.factor)


def with_value(solution: Solution[Any], value: State) -> Solution[State]:
    """Return a copy of the solution with another value."""
    return Solution(
        value,
        solution.status,
        solution.n_iter,
        solution.distance,
        solution.tolerance,
        solution.history,
    )


def lifted(problem: Problem, start: Array | None, groups: Groups | None = None) -> Array | None:
    """Raise every relevance to a small positive number, because the updates cannot leave zero."""
    if start is None:
        return None
    return namespace(start).maximum(start, LIFT * flat_start(problem, groups))


def _solve_by_updates(
    rule: str, problem: Problem, objective: Energy, start: Array | None, limits: Limits,
    updates: int | None = None,
) -> Solution[State]:  # fmt: skip
    """Repeat an update, then reach the minimum by Newton steps if the energy allows them."""
    marginal = objective.marginal
    tolerance, steps = limits.tolerance, limits.steps
    if marginal is not None:
        allowed = basin_limit(objective, rule) if updates is None else updates
        tolerance, steps = max(BASIN, tolerance), min(steps, allowed)
    basin = repeat_update(
        problem, objective, rule, lifted(problem, start, objective.groups),
        tolerance=tolerance, limit=steps, callbacks=limits.callbacks,
    )  # fmt: skip
    return basin if marginal is None else _finish(basin, marginal, limits)


def _finish(basin: Solution[State], marginal: Marginal, limits: Limits) -> Solution[State]:
    """Reach the minimum by Newton steps from where the updates have ended."""
    left = limits.steps - basin.n_iter
    if basin.status is Status.DIVERGED or basin.distance <= limits.tolerance:
        return basin
    if left <= 0:  # the basin was reached, its minimum was not
        return replace(basin, status=Status.ITERATION_LIMIT, tolerance=limits.tolerance)
    start = without_vanishing(basin.value, marginal)
    return joined(basin, _descend(start, marginal, replace(limits, steps=left)))


def _descend(start: State, marginal: Marginal, limits: Limits) -> Solution[State]:
    return solve_working_set(
        start,
        marginal,
        tolerance=limits.tolerance,
        limit=limits.steps,
        callbacks=limits.callbacks,
    )


def without_vanishing(state: State, marginal: Marginal) -> State:
    """Return the state, or the stack, with relevances that tend to zero set to zero.

    These are the ones far below the noise that still decrease and, where coordinates are exact, all
    those whose minimiser is zero (Wipf 2023, Theorem 4.4), if that together raises no energy.
    """
    xp = namespace(state.relevance)
    falling = marginal.gradient(state) > 0
    vanishing = (state.relevance < 1e-6 * state.noise[..., None]) & falling
    remaining = xp.where(vanishing, 0.0 * state.relevance, state.relevance)
    if not marginal.exact_coordinates:
        return evaluate_from(state, remaining)
    # Each minimiser holds the others fixed; setting many to zero at once may raise the energy.
    change = best_change(state.relevance, positive(state.curvature), state.alignment)
    trial = xp.where(change <= -state.relevance, 0.0 * remaining, remaining)
    reached = evaluate_from(state, trial)
    lower = marginal.value(reached) <= marginal.value(state)
    return evaluate_from(reached, xp.where(lower[..., None], trial, remaining))


def joined(first: Solution[State], second: Solution[State]) -> Solution[State]:
    """Return two solutions as one; the second was started from the first."""
    iterations = np.concatenate(
        [first.history.iterations, second.history.iterations[1:] + first.n_iter]
    )
    values = {
        name: np.concatenate([series, second.history[name][1:]])
        for name, series in first.history.values.items()
    }
    history = History(iterations, values)
    return replace(second, n_iter=first.n_iter + second.n_iter, history=history)


def _solve_by_coordinates(
    problem: Problem, objective: Energy, start: Array | None, limits: Limits
) -> Solution[State]:
    """Solve with falling noise variances, then by coordinate moves and Newton steps."""
    if start is None:
        first = continuation(problem, limits.callbacks)
    else:
        first = evaluate(problem, start, columns=True)
    return _descend(first, _marginal(objective), limits)


def _marginal(objective: Energy) -> Marginal:
    """Return the energy as a data term and a log-volume, or raise an error if it is not one."""
    if objective.marginal is None:
        raise ValueError(
            f"{type(objective).__name__} has exact_coordinates and no marginal: define both, "
            "since coordinate moves are followed by Newton steps."
        )
    return objective.marginal


def _solve_auto(
    problem: Problem, objective: Energy, start: Array | None, limits: Limits
) -> Solution[State]:
    """Solve by one method; where many minima are likely, return the lowest result of several."""
    if not objective.exact_coordinates:
        updates = max(BASIN_LIMIT.values())
        return _solve_by_updates("mm", problem, objective, start, limits, updates)
    noise_free = scalar(problem.noise) < NOISE_FREE
    allowed = BASIN_LIMIT if noise_free else BASIN_LIMIT | {"em": em_steps(problem)}

    def solved_by(method: str) -> Solution[State]:
        if method not in allowed:
            return SOLVERS[method].minimise(problem, objective, start, limits)
        return _solve_by_updates(method, problem, objective, None, limits, allowed[method])

    first, *others = ("coordinate",) if start is not None else methods_for(problem)
    found = solved_by(first)
    if scalar(found.value.used) <= CROWDED * problem.rows:
        return found
    ended = [found, *(solved_by(method) for method in others)]
    return min(ended, key=lambda each: scalar(objective.value(each.value)))


def methods_for(problem: Problem) -> tuple[str, ...]:
    """Return the method that suits a problem, and others to compare where minima are many."""
    if not is_small(problem):
        return ("coordinate",)
    if problem.responses.shape[-1] <= FEW_RESPONSES:
        return ("em",)
    if scalar(problem.noise) < NOISE_FREE:
        return ("coordinate", "mm", "em")
    if problem.columns > WIDE * problem.rows:
        return ("coordinate", "mackay", "em")
    return ("mackay", "em")


def _by_rule(rule: str, words: str) -> Solver:
    return Solver(partial(_solve_by_updates, rule), lambda energy: rule in energy.rules, words)


SOLVERS: dict[str, Solver] = {
    "auto": Solver(_solve_auto, lambda _: True),
    "mm": _by_rule("mm", "an MM update"),
    "em": _by_rule("em", "the EM update of the full energy"),
    "mackay": _by_rule("mackay", "MacKay's update of the full energy"),
    "coordinate": Solver(
        _solve_by_coordinates,
        lambda energy: energy.exact_coordinates,
        "exact moves of single relevances (the full energy has them; columns in groups share a "
        "relevance)",
    ),
}
