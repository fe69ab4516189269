"""One step of each majorise–minimise rule: from a state to new relevances or a new noise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from lucidae.arrays import Array, device, namespace, put, scalar, to_numpy, zeros_like_shape
from lucidae.iteration import Below, History, Solution, iterate
from lucidae.sparsity.groups import Groups
from lucidae.sparsity.objectives import Autoencoder, DiagonalCovariance, Energy
from lucidae.sparsity.problem import Problem, rounding_distance
from lucidae.sparsity.state import State, evaluate, flat_start, positive

Update: TypeAlias = Callable[[State, Groups | None], Array]


def _pair(state: State, groups: Groups | None) -> tuple[Array, Array]:
    """Alignments and curvatures, as totals where columns are grouped."""
    if groups is None:
        return state.alignment, state.curvature
    return groups.share(state.alignment), groups.share(state.curvature)


def expectation_maximization(state: State, groups: Groups | None = None) -> Array:
    """EM: w ← w + w²(Q − z), the posterior second moment of each row (Wipf & Rao 2007)."""
    alignment, curvature = _pair(state, groups)
    slope = alignment - curvature
    if groups is not None:
        slope = slope / groups.share(namespace(slope).ones_like(slope))
    grown = state.relevance * (1.0 + state.relevance * slope)
    return namespace(grown).maximum(grown, 0.0 * grown)


def majorize_minimize(state: State, groups: Groups | None = None) -> Array:
    """MM: w ← w √(Q/z), from the tangent of log|Σ| (Wipf 2023, eq. 21)."""
    alignment, curvature = _pair(state, groups)
    return state.relevance * namespace(alignment).sqrt(alignment / positive(curvature))


def mackay(state: State, groups: Groups | None = None) -> Array:
    """MacKay: w ← w Q/z; the MM majoriser is equal at both ends of this longer step."""
    alignment, curvature = _pair(state, groups)
    return state.relevance * (alignment / positive(curvature))


def diagonal_minimizer(state: State, groups: Groups | None = None) -> Array:
    """Diagonal posterior: the minimiser of a/w + log(γ + wc), from eq. 50 with U held fixed.

    For a group the tangent of the logarithms is minimised in place of the logarithms.
    """
    xp = namespace(state.noise)
    if groups is not None:
        pressure = groups.share(DiagonalCovariance().pressure(state))
        return xp.sqrt(groups.share(state.power) / positive(pressure))
    norms = positive(xp.sum(state.dictionary**2, axis=-2))
    power = state.power
    return (power + xp.sqrt(power * (power + 4.0 * state.noise[..., None] / norms))) / 2.0


def reweighting(objective: Autoencoder) -> Update:
    """Deterministic autoencoder: w ← 1/h′(a), iteratively reweighted ridge regression."""

    def update(state: State, _: Groups | None = None) -> Array:
        return objective.target(state)

    return update


UPDATES: dict[str, Update] = {
    "em": expectation_maximization,
    "mm": majorize_minimize,
    "mackay": mackay,
}


def noise_by_expectation(state: State, degrees_of_freedom: Array) -> Array:
    """EM for γ: (‖X − ΦU‖²/n + γ·dof)/d, dof = tr(ΦWΦᵀΣ⁻¹) for the full posterior."""
    return (state.residual + state.noise * degrees_of_freedom) / state.dimension


def noise_by_majorization(state: State) -> Array:
    """MM for γ: √(‖X − ΦU‖²/(n tr Σ⁻¹)), jointly monotone with the MM update of w."""
    rows = float(state.dictionary.shape[-2])
    inverse_trace = (rows - state.used + state.spare) / state.noise
    return namespace(state.noise).sqrt(state.residual / inverse_trace)


NEGLIGIBLE = 1e-14
"""Relevance, relative to the noise variance, that no longer changes Σ in double precision."""

SMALLEST_LEARNED = 1e-10
"""Learning never takes the noise variance below this share of the mean square response."""


class PrunedState(NamedTuple):
    """A state on the columns that are still in play, and which these are."""

    state: State
    columns: Any


def update_of(objective: Energy, method: str) -> Update:
    """Return the update rule that lowers `objective`."""
    if isinstance(objective, DiagonalCovariance):
        return diagonal_minimizer
    if isinstance(objective, Autoencoder):
        return reweighting(objective)
    return UPDATES["mm" if method in ("auto", "coordinate") else method]


def repeat_update(
    problem: Problem,
    objective: Energy,
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

    def step(kept: PrunedState) -> PrunedState:
        state = kept.state
        relevance = update(state, objective.groups)
        following = _learned(state, objective) if learn else state.problem
        if prunes:
            kept, following, relevance = _pruned(kept, following, relevance)
        return PrunedState(evaluate(following, relevance), kept.columns)

    def distance(kept: PrunedState) -> float:
        violation = scalar(objective.violation(kept.state))
        return max(violation, _noise_distance(kept.state, objective)) if learn else violation

    first = evaluate(problem, flat_start(problem) if start is None else start)
    reachable = max(tolerance, rounding_distance(problem))
    solution = iterate(
        step,
        PrunedState(first, np.arange(problem.columns)),
        stop=Below(distance, reachable),
        limit=limit,
        record={"energy": lambda kept: objective.value(kept.state)},
        size=problem.rows,
    )
    return revalued(solution, _restored(problem, solution.value))


def _learned(state: State, objective: Energy) -> Problem:
    learned = noise_by_expectation(state, objective.degrees_of_freedom(state))
    floor = namespace(learned).full_like(learned, SMALLEST_LEARNED)
    return state.problem._replace(noise=namespace(learned).maximum(learned, floor))


def _noise_distance(state: State, objective: Energy) -> float:
    """Relative change that the next update of γ would bring."""
    return abs(scalar(_learned(state, objective).noise / state.noise) - 1.0)


def _pruned(
    kept: PrunedState, problem: Problem, relevance: Array
) -> tuple[PrunedState, Problem, Array]:
    """Drop negligible columns once they are a tenth of all."""
    state = kept.state
    negligible = (relevance <= NEGLIGIBLE * state.noise) & (state.alignment <= state.curvature)
    alive = np.flatnonzero(~to_numpy(negligible))
    if alive.size > 0.9 * kept.columns.size or not alive.size:
        return kept, problem, relevance
    xp = namespace(relevance)
    index = xp.asarray(alive, device=device(relevance))
    narrowed = problem._replace(dictionary=xp.take(problem.dictionary, index, axis=1))
    return PrunedState(state, kept.columns[alive]), narrowed, xp.take(relevance, index, axis=0)


def _restored(problem: Problem, kept: PrunedState) -> State:
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
