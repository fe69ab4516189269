"""One update, repeated until it is stationary."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from lucidae._arrays import Array, device, namespace, put, scalar, to_numpy, zeros_like_shape
from lucidae.iterate import Below, iterate
from lucidae.solution import History, Solution
from lucidae.sparsity.objectives import Autoencoder, DiagonalCovariance, Objective
from lucidae.sparsity.problem import Problem, rounding_distance
from lucidae.sparsity.state import State, evaluate, flat_start
from lucidae.sparsity.updates import (
    UPDATES,
    Update,
    diagonal_minimizer,
    noise_by_expectation,
    reweighting,
)

NEGLIGIBLE = 1e-14
"""Relevance, relative to the noise variance, that no longer changes Σ in double precision."""

SMALLEST_LEARNED = 1e-10
"""Learning never takes the noise variance below this share of the mean square response."""


class Kept(NamedTuple):
    """A state on the columns that are still in play, and which these are."""

    state: State
    columns: Any


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
    nothing = zeros_like_shape((problem.columns,), state.relevance)
    relevance = put(nothing, kept.columns, state.relevance)
    return evaluate(problem._replace(noise=state.noise), relevance)


def revalued(
    solution: Solution[Any], value: State, history: History | None = None
) -> Solution[State]:
    """Return a solution that ended alike, with another value."""
    kept = solution.history if history is None else history
    return Solution(
        value, solution.status, solution.n_iter, solution.distance, solution.tolerance, kept
    )
