"""Solvers that find the relevances at which an energy is minimal, in one table by name.

If the full energy has several minima, solvers may end at different ones. The table shows the energy
per response above the lowest of all solvers (median, largest) for ten problems a line with d = 100
rows, κ = 200 columns, n responses of rank 3, r relevant columns and noise of 20 dB:

=====  ==========  =======  =======  =========  =======  ==========
n      r           auto     mm       em         mackay   coordinate
=====  ==========  =======  =======  =========  =======  ==========
20     40, 60      0, 0     0, 0     0, 0       0, 0     0, 0
20     70          0, 0     0, 0     0, 10.8    0, 0     0, 19.9
20     80          0, 0.9   0, 0.9   0, 3.5     0, 0.9   0.9, 3.8
1      10          0, 0     0, 0.4   0, 0       0, 0.4   0, 2.5
1      30          0, 1.2   0, 1.2   0, 1.2     0, 1.2   0, 54.5
=====  ==========  =======  =======  =========  =======  ==========

EM (expectation–maximisation), which is slower, finds the lower minima if the noise variance is far
below the true one, and without noise if r > 0.8 d. So "auto" uses EM for one or two responses. For
more responses it uses MacKay's rule, or coordinate moves if there is no noise or the dictionary is
wide or large. If the result has more than 0.6 d effective parameters and the problem is small,
"auto" also runs EM (and another update) and returns the result with the lowest energy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from lucidae.arrays import Array, device, namespace, put, scalar, to_numpy, zeros_like_shape
from lucidae.iteration import Below, Callback, Solution, Status, iterate
from lucidae.iteration.solution import joined
from lucidae.sparsity.dictionary import selected_columns
from lucidae.sparsity.group_covariance import GroupCovariance
from lucidae.sparsity.group_moves import rank_groups
from lucidae.sparsity.group_screening import GroupProducts, confirmed, evaluate_screened
from lucidae.sparsity.group_solver import fit_groups, solve_groups
from lucidae.sparsity.groups import Groups
from lucidae.sparsity.objectives import Energy, Marginal
from lucidae.sparsity.problem import Problem, rounding_distance
from lucidae.sparsity.screening import continuation
from lucidae.sparsity.state import State, evaluate, evaluate_from, flat_start, positive
from lucidae.sparsity.updates import learned_noise
from lucidae.sparsity.working_set import best_change, solve_working_set
from lucidae.validation import check_choice

BASIN = 1e-2
"""Distance to stationarity at which a basin is chosen and Newton steps take over."""

BASIN_LIMIT = {"mm": 30, "mackay": 15, "em": 300}
"""Largest number of updates before Newton steps; more did not end at a lower energy."""

FEW_RESPONSES = 2
"""Largest number of responses for which "auto" uses EM, which then finds lower minima."""

EM_PER_COLUMN = 15
"""For few responses, "auto" makes this many EM steps times the ratio of columns to rows."""

SMALL = 200_000
"""Largest number of entries of a dictionary for which "auto" updates all columns in every step."""

CROWDED = 0.6
"""Effective parameters per row above which "auto" compares solvers: minima are many."""

FEW_FOR_GROUPS = 5
CROWDED_GROUPS = 0.3
"""Limits within which "auto" starts only once if every group of columns has its own covariance.

Among 66 problems with more responses than `FEW_FOR_GROUPS` and fewer parameters per row than
`CROWDED_GROUPS`, the second start never ended at a lower energy."""

WIDE = 8
"""Columns per row above which coordinate moves are cheaper: most relevances never move."""

EQUAL = 1e-9
"""Relative difference of energies up to which they count as equal."""

NOISE_FREE = 1e-6
"""Noise variance, relative to the mean square response, below which data count as noise-free."""

NEGLIGIBLE = 1e-14
"""Relevance over γ below which a column no longer changes Σ in float64 and is dropped."""

LIFT = 1e-2
"""Smallest relevance from which updates start, relative to that of `flat_start`."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Distance to stationarity and number of steps at which a solver stops, and its callbacks."""

    tolerance: float = 1e-6
    steps: int = 1000
    callbacks: Sequence[Callback] = ()


Minimise: TypeAlias = Callable[[Problem, Energy, Array | None, Limits], Solution[State]]


@dataclass(frozen=True, slots=True)
class Solver:
    """A method that minimises an energy, and the property of the energy that it needs."""

    # called with the problem, the energy, the relevances to start from (or None)
    # and the `Limits`; returns a `Solution`
    minimise: Minimise
    # called with an energy; returns whether the method can minimise it
    suits: Callable[[Energy], bool]
    needs: str = ""  # name of the property that the method needs, for the error message


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
    """Minimise an energy with respect to the relevances, at the problem's noise variance."""
    solver = SOLVERS[check_suited(method, objective)]
    limits = Limits(tolerance, limit, callbacks)
    if isinstance(objective, GroupCovariance):
        return _solve_group_covariances(problem, objective, method, start, limits)
    return solver.minimise(problem, objective, start, limits)


def _solve_group_covariances(
    problem: Problem, objective: GroupCovariance, method: str, start: Array | None, limits: Limits
) -> Solution[State]:
    """Minimise the energy with a covariance for every group; twice if minima are probably many."""

    def solved_by(name: str) -> Solution[State]:
        return solve_groups(
            problem, objective, method=name, start=start,
            tolerance=limits.tolerance, limit=limits.steps, callbacks=limits.callbacks,
        )  # fmt: skip

    if method != "auto" or start is not None or not is_small(problem):
        return solved_by(method)
    found = solved_by("coordinate")
    few = problem.responses.shape[-1] <= FEW_FOR_GROUPS
    if not few and scalar(found.value.used) <= CROWDED_GROUPS * problem.rows:
        return found
    return _lowest([found, solved_by("mm")], objective)


def fitted_parameters(
    problem: Problem, objective: Energy, *, start: Array | None, tolerance: float, limit: int
) -> tuple[Solution[Any], Array]:
    """Minimise an energy and return what was fitted, without the state of all columns."""
    if not isinstance(objective, GroupCovariance) or (start is None and is_small(problem)):
        solution = solve(problem, objective, start=start, tolerance=tolerance, limit=limit)
        return solution, objective.parameters(solution.value)
    found, basis = fit_groups(
        problem, objective, method="auto", start=start, tolerance=tolerance, limit=limit
    )
    return found, basis.outside(to_numpy(found.value.covariances))


def advice_on(solution: Solution[State]) -> str:
    """Return how a minimisation ended and what the user can do.

    A noise variance far below that of the data makes Σ nearly singular.
    """
    if solution.status is not Status.STALLED:
        return solution.advice
    return (
        f"{solution.advice} The noise variance is {scalar(solution.value.noise):.1g} times the "
        "mean square response, and rounding errors grow as it falls: give a larger one if it is "
        "below that of the data."
    )


def _lowest(ended: list[Solution[State]], objective: Energy) -> Solution[State]:
    """Return the first solution whose energy is the lowest, up to rounding errors."""
    values = [scalar(objective.value(each.value)) for each in ended]
    best = min(values)
    return next(
        each
        for each, value in zip(ended, values, strict=True)
        if not value > best + EQUAL * max(abs(best), 1.0)
    )


def check_suited(method: Any, objective: Energy) -> str:
    """Return the name `method` if that solver can minimise the energy; otherwise raise an error."""
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
    """Tell whether the dictionary is so small that every update may include all its columns."""
    return problem.rows * problem.columns <= SMALL


def em_steps(problem: Problem) -> int:
    """Return how many EM steps ``solver="auto"`` makes for one or two responses: 30 to 100."""
    return min(max(EM_PER_COLUMN * problem.columns // problem.rows, 30), 100)


def basin_limit(objective: Energy, rule: str) -> int:
    """Return the largest number of updates by `rule` before Newton steps take over."""
    return max(BASIN_LIMIT.values()) if objective.patient else BASIN_LIMIT[rule]


class PrunedState(NamedTuple):
    """A state restricted to the columns that are still updated, and the indices of the columns."""

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
    """Repeat one update of the relevances until they are stationary."""
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
    """Return the problem of a state with its noise variance updated."""
    noise = learned_noise(state, objective.degrees_of_freedom(state))
    return state.problem._replace(noise=noise)


def _noise_distance(state: State, objective: Energy) -> float:
    """Return the relative change of the noise variance in its next update."""
    return abs(scalar(_with_learned_noise(state, objective).noise / state.noise) - 1.0)


def _dropped(
    pruned: PrunedState, problem: Problem, relevance: Array
) -> tuple[PrunedState, Problem, Array]:
    """Return the arguments without the columns that have negligible relevances."""
    # A column whose relevance still grows (Q > z) is not dropped however small it is.
    state = pruned.state
    negligible = (relevance <= NEGLIGIBLE * state.noise) & (state.alignment <= state.curvature)
    remaining = np.flatnonzero(~to_numpy(negligible))
    if remaining.size > 0.9 * pruned.columns.size or not remaining.size:
        return pruned, problem, relevance
    xp = namespace(relevance)
    index = xp.asarray(remaining, device=device(relevance))
    narrowed = problem._replace(dictionary=selected_columns(problem.dictionary, remaining))
    columns = pruned.columns[remaining]
    return PrunedState(state, columns), narrowed, xp.take(relevance, index, axis=0)


def _restored(problem: Problem, pruned: PrunedState) -> State:
    """Return the state on all columns of the problem; dropped columns get relevance zero."""
    state = pruned.state
    if pruned.columns.size == problem.columns:
        return state
    nothing = zeros_like_shape((problem.columns,), state.relevance)
    relevance = put(nothing, pruned.columns, state.relevance)
    return evaluate(problem._replace(noise=state.noise), relevance, factor=state.factor)


def with_value(solution: Solution[Any], value: State) -> Solution[State]:
    """Return a copy of `solution` whose value is `value`."""
    return Solution(
        value,
        solution.status,
        solution.n_iter,
        solution.distance,
        solution.tolerance,
        solution.history,
    )


def lifted(problem: Problem, start: Array | None, groups: Groups | None = None) -> Array | None:
    """Return the relevances `start`, raised to a small number: updates cannot change zeros."""
    if start is None:
        return None
    return namespace(start).maximum(start, LIFT * flat_start(problem, groups))


def _solve_by_updates(
    rule: str, problem: Problem, objective: Energy, start: Array | None, limits: Limits,
    updates: int | None = None,
) -> Solution[State]:  # fmt: skip
    """Repeat an update of the relevances; then take Newton steps if the energy allows them."""
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
    """Return the minimum of the energy, by Newton steps from where the updates ended."""
    left = limits.steps - basin.n_iter
    if basin.status is Status.DIVERGED or basin.distance <= limits.tolerance:
        return basin
    if left <= 0:  # the basin was reached, its minimum was not
        return replace(basin, status=Status.ITERATION_LIMIT, tolerance=limits.tolerance)
    start = without_vanishing(basin.value, marginal)
    return joined(basin, _descend(start, marginal, replace(limits, steps=left)))


def _descend(
    start: State, marginal: Marginal, limits: Limits, products: GroupProducts | None = None
) -> Solution[State]:
    """Minimise the energy by sweeps over working sets of columns, from the state `start`."""

    def solved(state: State, steps: int, used: GroupProducts | None = None) -> Solution[State]:
        return solve_working_set(
            state, marginal, tolerance=limits.tolerance, limit=steps, callbacks=limits.callbacks,
            products=used,
        )  # fmt: skip

    if products is None:
        return solved(start, limits.steps)
    found = solved(start, limits.steps, products)
    return confirmed(found, lambda at: evaluate_from(at, at.relevance), solved, limits.steps)


def without_vanishing(state: State, marginal: Marginal) -> State:
    """Return the state with relevances that tend to zero set to zero.

    These are relevances far below γ if the energy falls as they shrink and, with exact coordinates,
    those whose minimiser is zero, if this does not raise the energy.
    """
    xp = namespace(state.relevance)
    falling = marginal.gradient(state) > 0
    vanishing = (state.relevance < 1e-6 * state.noise[..., None]) & falling
    remaining = xp.where(vanishing, 0.0 * state.relevance, state.relevance)
    if not marginal.exact_coordinates:
        return evaluate_from(state, remaining)
    # Each minimiser holds the others fixed; setting many to zero at once may raise the energy.
    if marginal.groups is None:
        change = best_change(state.relevance, positive(state.curvature), state.alignment)
        vanishing = change <= -state.relevance
    elif state.relevance.ndim == 1:
        state = evaluate_from(state, state.relevance)
        vanishes = marginal.groups.expand(rank_groups(state, marginal.groups).vanishes)
        vanishing = xp.asarray(vanishes, device=device(state.relevance))
    trial = xp.where(vanishing, 0.0 * remaining, remaining)
    reached = evaluate_from(state, trial)
    lower = marginal.value(reached) <= marginal.value(state)
    return evaluate_from(reached, xp.where(lower[..., None], trial, remaining))


def _solve_by_coordinates(
    problem: Problem, objective: Energy, start: Array | None, limits: Limits
) -> Solution[State]:
    """Minimise the energy by coordinate moves and Newton steps on a working set of columns."""
    marginal = _marginal(objective)
    products = GroupProducts.of(problem, marginal.groups)
    if start is None:
        first = continuation(problem, marginal, limits.callbacks, products)
    else:
        first = evaluate_screened(problem, start, products)
    return _descend(first, marginal, limits, products)


def _marginal(objective: Energy) -> Marginal:
    """Return the energy as a data term plus a log-volume; raise an error if it has no such form."""
    if objective.marginal is None:
        raise ValueError(
            f"The energy {type(objective).__name__} has exact_coordinates=True but its marginal is "
            "None. Define the property marginal too, because steps in one relevance (prior "
            "variance) are followed by Newton steps."
        )
    return objective.marginal


def _solve_auto(
    problem: Problem, objective: Energy, start: Array | None, limits: Limits
) -> Solution[State]:
    """Minimise the energy by the method that suits the problem.

    If the energy probably has many minima, further methods run, and the lowest result is returned.
    """
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
    if start is None and objective.groups is not None and is_small(problem):
        others = [name for name in ("coordinate", "mm") if name != first]
    elif scalar(found.value.used) <= CROWDED * problem.rows:
        return found
    ended = [found, *(solved_by(method) for method in others)]
    return _lowest(ended, objective)


def methods_for(problem: Problem) -> tuple[str, ...]:
    """Return the solver that suits a problem, and others to compare it with."""
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
    """Return the solver that repeats an update rule; `words` describe the rule in messages."""
    return Solver(partial(_solve_by_updates, rule), lambda energy: rule in energy.rules, words)


SOLVERS: dict[str, Solver] = {
    "auto": Solver(_solve_auto, lambda _: True),
    "mm": _by_rule("mm", "an MM update"),
    "em": _by_rule("em", "the expectation–maximisation (EM) update of posterior='full'"),
    "mackay": _by_rule("mackay", "MacKay's update of posterior='full'"),
    "coordinate": Solver(
        _solve_by_coordinates,
        lambda energy: energy.exact_coordinates,
        "an exact minimiser in each single relevance, a prior variance (only the full energy "
        "has it)",
    ),
}
