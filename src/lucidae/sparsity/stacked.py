"""How the problems of a stack are solved: each on its own, or all of them at once."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from lucidae._arrays import (
    Array,
    keeper,
    namespace,
    on_host,
    replayable,
)
from lucidae.iterate import Below, iterate_batch
from lucidae.solution import BatchSolution, Solution, Status
from lucidae.sparsity.newton import look, newton_step
from lucidae.sparsity.noise import learn_noise
from lucidae.sparsity.objectives import FullCovariance, Marginal, Objective
from lucidae.sparsity.problem import Problem, rounding_distance
from lucidae.sparsity.repetition import SMALLEST_LEARNED, update_of
from lucidae.sparsity.solvers import (
    BASIN,
    FEW_RESPONSES,
    basin_limit,
    em_steps,
    solve,
    thinned,
)
from lucidae.sparsity.stacks import Settings
from lucidae.sparsity.state import State, evaluate, evaluate_fit, flat_start
from lucidae.sparsity.updates import noise_by_expectation

NEWTON_COLUMNS = 10
"""Newton steps form κ × κ, so they are taken up to this many columns per row."""


class Looks(NamedTuple):
    """Steps between two looks at the distances: of updates, and of Newton steps."""

    updates: int
    newton: int


LOOKS, LOOKS_AT_DEVICE = Looks(5, 1), Looks(15, 2)
"""On a device each look waits for it, while steps that problems no longer need are nearly free."""

PATIENCE = 16
"""Newton steps without progress after which a problem is left as it is."""


def first_noise(problem: Problem) -> Array:
    """Residual variance where there are more rows than columns, a tenth elsewhere."""
    xp = namespace(problem.noise)
    spare = xp.maximum(problem.spare, xp.ones_like(problem.spare))
    estimate = xp.where(problem.spare >= 1, problem.outside / spare, 0.1 * problem.noise)
    return xp.maximum(estimate, xp.full_like(estimate, SMALLEST_LEARNED))


def solve_each(
    problem: Problem, objective: Objective, settings: Settings, learn: bool
) -> BatchSolution[State]:
    """Solve one problem after the other; a processor is no faster on all of them at once."""

    def alone(index: int) -> Solution[State]:
        one = Problem(*(field[index, ...] for field in problem))
        solved = learn_noise if learn else solve
        return solved(
            one, objective, method="auto", tolerance=settings.tol, limit=settings.max_iter
        )

    ended = [alone(index) for index in range(problem.dictionary.shape[0])]
    xp = namespace(problem.dictionary)
    fields = zip(*(solution.value for solution in ended), strict=True)
    return BatchSolution(
        State(*(xp.stack([xp.asarray(part) for part in parts]) for parts in fields)),
        tuple(solution.status for solution in ended),
        np.array([solution.n_iter for solution in ended]),
        np.array([solution.distance for solution in ended]),
        max(solution.tolerance for solution in ended),
    )


def solve_together(
    problem: Problem, objective: Objective, settings: Settings, learn: bool
) -> BatchSolution[State]:
    """Update to the basin, then take Newton steps if κ × κ is small."""
    reachable = max(settings.tol, rounding_distance(problem))
    large = problem.columns > NEWTON_COLUMNS * problem.rows
    if learn or large or reachable >= BASIN or not isinstance(objective, Marginal):
        return _updated(problem, objective, settings, reachable, settings.max_iter, learn)
    settings, updates = _rule(problem, objective, settings)
    limit = min(settings.max_iter, updates)
    basin = _updated(problem, objective, settings, BASIN, limit, learn)
    left = settings.max_iter - int(basin.n_iter.max())
    if left >= 1:
        return _polished(basin, objective, reachable, left)
    status = tuple(
        Status.ITERATION_LIMIT if ended.ok and distance > reachable else ended
        for ended, distance in zip(basin.status, basin.distance, strict=True)
    )
    return replace(basin, status=status, tolerance=reachable)


def _rule(problem: Problem, objective: Objective, settings: Settings) -> tuple[Settings, int]:
    """Return the update that chooses the basin, and how often it may be repeated."""
    if settings.solver == "auto" and isinstance(objective, FullCovariance):
        if problem.responses.shape[-1] <= FEW_RESPONSES:
            return settings._replace(solver="em"), em_steps(problem)
        settings = settings._replace(solver="mackay")
    return settings, basin_limit(objective, settings.solver)


def _updated(
    problem: Problem, objective: Objective, settings: Settings, tolerance: float, limit: int,
    learn: bool,
) -> BatchSolution[State]:  # fmt: skip
    update = update_of(objective, settings.solver)
    look_at = evaluate if isinstance(objective, FullCovariance) else evaluate_fit
    xp = namespace(problem.noise)

    def learned(state: State) -> Array:
        noise = noise_by_expectation(state, objective.degrees_of_freedom(state))
        return xp.maximum(noise, xp.full_like(noise, SMALLEST_LEARNED))

    def step(state: State) -> State:
        following = state.problem._replace(noise=learned(state)) if learn else state.problem
        return look_at(following, update(state, None))

    def distance(state: State) -> Array:
        violation = objective.violation(state)
        change = xp.abs(learned(state) / state.noise - 1.0) if learn else 0.0 * violation
        return xp.maximum(violation, change)

    start = look_at(problem, flat_start(problem))
    recorded = replayable(step, start)
    return iterate_batch(
        recorded,
        start,
        stop=Below(distance, tolerance),
        limit=limit,
        check_every=_looks(start.noise).updates,
        copy=keeper(recorded),
        size=problem.rows,
    )


def _looks(example: Array) -> Looks:
    return LOOKS if on_host(example) else LOOKS_AT_DEVICE


def _polished(
    basin: BatchSolution[State], objective: Marginal, tolerance: float, limit: int
) -> BatchSolution[State]:
    """Reach the bottoms of the basins by damped Newton steps on all columns, all problems at once.

    Steps on the columns in play alone would be less work, but more launches, which cost more.
    """
    problem = basin.value.problem
    relevance = thinned(basin.value, objective)
    stride = _looks(relevance).newton
    ended = iterate_batch(
        lambda point: newton_step(point, None, objective.volume),
        look(problem, relevance, volume=objective.volume),
        stop=Below(lambda point: point.violation(), tolerance, patience=PATIENCE // stride),
        limit=limit,
        check_every=stride,
        size=problem.rows,
    )
    state = evaluate(problem, ended.value.relevance)
    return replace(ended, value=state, n_iter=basin.n_iter + ended.n_iter)
