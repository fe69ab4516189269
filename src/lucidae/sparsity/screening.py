"""Fits of low accuracy that evaluate all columns of a dictionary only once, or a few times.

This screening finds the columns whose activation lowers the energy most; with those in use they
form a working set. Such fits predict held-out rows, trace paths and start accurate fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from lucidae.arrays import (
    Array,
    adjoint,
    device,
    namespace,
    put,
    scalar,
    squared_norms,
    to_numpy,
    zeros_like_shape,
)
from lucidae.iteration import Below, Callback, iterate
from lucidae.sparsity.dictionary import (
    adjoint_times,
    column_squares,
    dense_columns,
    is_sparse,
    norms_after,
)
from lucidae.sparsity.group_screening import GroupProducts, evaluate_screened
from lucidae.sparsity.low_rank import WELL_CONDITIONED, LowRank
from lucidae.sparsity.objectives import Marginal
from lucidae.sparsity.problem import Problem
from lucidae.sparsity.state import State, empty_start, evaluate
from lucidae.sparsity.working_set import (
    COARSE,
    POLISHED,
    Workspace,
    move_coordinates,
    noise_stages,
    open_workspace,
    polish,
    solve_working_set,
    state_in_span,
    working_set,
    workspace_of,
)

LOW_RANK = 1e-8
"""Noise variance, over the mean square response, above which low-rank updates keep digits."""


SCREENED_STAGE = 1e-4
"""Noise variance, relative to the mean square response, above which a stage of a continuation
evaluates all columns by `Screening`."""


class DictionaryProducts(NamedTuple):
    """Products with the whole dictionary that do not depend on relevances or noise variance."""

    squares: Array
    responses: Array | None

    @classmethod
    def of(cls, problem: Problem) -> DictionaryProducts:
        """Return the products of a problem, whatever its noise variance is."""
        dictionary = problem.dictionary
        dense = None if is_sparse(dictionary) else adjoint_times(dictionary, problem.responses)
        return cls(column_squares(dictionary), dense)


class Screening(NamedTuple):
    """An evaluation of all columns at given relevances, from the active ones (`low_rank`)."""

    # the state with the curvatures φᵀΣ⁻¹φ and the alignments ‖φᵀΣ⁻¹Y‖² of all columns φ, for
    # responses Y with covariance Σ. Its other fields are NaN or empty
    state: State
    inverse: LowRank  # the inverse Σ⁻¹, from the active columns
    residual: Array  # (d, p): γΣ⁻¹Y for the p responses Y

    @classmethod
    def of(
        cls, problem: Problem, relevance: Array, products: DictionaryProducts | None = None
    ) -> Screening:
        """Return the evaluation of all columns of a problem."""
        squares, known = DictionaryProducts.of(problem) if products is None else products
        xp, noise, responses = namespace(relevance), problem.noise, problem.responses
        active = np.flatnonzero(to_numpy(relevance))
        roots = xp.sqrt(xp.take(relevance, xp.asarray(active, device=device(relevance)), axis=0))
        scaled = dense_columns(problem.dictionary, active) * roots[None, :]
        inverse = LowRank.of(scaled, noise)
        reduced = inverse.reduced
        inside = reduced @ responses
        residual = responses - adjoint(reduced) @ inside
        if known is None:
            explained = norms_after(problem.dictionary, reduced)
            powers = squared_norms(adjoint_times(problem.dictionary, residual), -1)
        else:
            shares = reduced @ problem.dictionary
            explained = squared_norms(shares, -2)
            loading = adjoint(shares) @ inside
            loading -= known  # minus the loading, of which only squares are needed
            powers = squared_norms(loading, -1)
        curvature = xp.maximum(inverse.forms(squares, explained), xp.zeros_like(squares))
        nothing, unknown = zeros_like_shape((0, 0), relevance), noise * xp.nan
        vectors = (relevance, curvature, powers / noise / noise, unknown, unknown)
        state = State(*problem, *vectors, nothing, nothing, nothing, nothing)
        return cls(state, inverse, residual)

    def workspace(self, index: np.ndarray[Any, Any]) -> Workspace:
        """Return new arrays for coordinate moves on the columns `index`, with all active ones."""
        xp, noise, relevance = namespace(self.residual), self.state.noise, self.state.relevance
        columns = dense_columns(self.state.dictionary, index)
        chosen = xp.take(relevance, xp.asarray(index, device=device(relevance)), axis=0)
        if scalar(xp.sum(relevance)) > WELL_CONDITIONED * scalar(noise):
            problem = self.state.problem._replace(dictionary=columns)
            return open_workspace(evaluate(problem, chosen, columns=True))
        shares = self.inverse.reduced @ columns
        metric = self.inverse.forms(adjoint(columns) @ columns, adjoint(shares) @ shares)
        loading = adjoint(columns) @ self.residual / noise
        return workspace_of(chosen, metric, loading)


def coarse_fit(
    problem: Problem,
    marginal: Marginal,
    start: Array,
    products: DictionaryProducts | GroupProducts | None = None,
    newton_steps: int = 30,
) -> tuple[Array, np.ndarray[Any, Any], State | None]:
    """Return relevances of a low energy, found by evaluating all columns only once."""
    few = int(np.count_nonzero(to_numpy(start))) < problem.rows
    if isinstance(products, GroupProducts):
        return _exact_fit(problem, marginal, start, products)
    if marginal.groups is not None or scalar(problem.noise) < LOW_RANK or not few:
        return _exact_fit(problem, marginal, start)
    return _refined(Screening.of(problem, start, products), marginal, newton_steps)


def _refined(
    screening: Screening, marginal: Marginal, newton_steps: int = 30
) -> tuple[Array, np.ndarray[Any, Any], State | None]:
    """Return the result of `coarse_fit` from an evaluation of all columns."""
    state = screening.state
    relevance, index = state.relevance, np.flatnonzero(to_numpy(state.relevance))
    distance = scalar(marginal.violation(state))
    if distance > COARSE:
        index = working_set(state, marginal)
        moved, free = move_coordinates(screening.workspace(index), COARSE)
        relevance, index = put(relevance, index, moved), index[free]
    if not index.size:
        return relevance, index, None
    small = state_in_span(state.problem, relevance, index)
    if distance > COARSE:
        enough = max(COARSE / 4.0, POLISHED * distance)
        small = polish(small, marginal, tolerance=enough, limit=newton_steps).state
    return put(relevance, index, small.relevance), index, small


def _exact_fit(
    problem: Problem, marginal: Marginal, start: Array, products: GroupProducts | None = None
) -> tuple[Array, np.ndarray[Any, Any], State | None]:
    """Return `coarse_fit` with all columns evaluated by a factor of the covariance."""
    state = evaluate_screened(problem, start, products)
    index = working_set(state, marginal)
    if not index.size:
        return start, index, None
    groups = None if marginal.groups is None else marginal.groups.restricted(index)
    solved = solve_working_set(
        state.take(index), replace(marginal, groups=groups), tolerance=COARSE, limit=1
    ).value
    return put(start, index, solved.relevance), index, solved


def continuation(
    problem: Problem, marginal: Marginal, callbacks: Sequence[Callback] = (),
    grouped: GroupProducts | None = None,
) -> State:  # fmt: skip
    """Return a state from which to minimise the full energy, found at decreasing noise variances.

    A large γ smooths the energy: columns hardly interact, and those that explain most enter first.
    For a tiny γ this ends lower than a direct descent, and avoids the ill-conditioned Σ of a poor
    start.
    """
    relevance, stages = empty_start(problem), noise_stages(scalar(problem.noise))
    products: DictionaryProducts | GroupProducts | None = grouped
    if stages and marginal.groups is None:
        products = DictionaryProducts.of(problem)
    for noise in stages:
        at = problem.with_noise(noise)
        relevance = _stage(at, marginal, relevance, products, callbacks)
    return evaluate_screened(problem, relevance, grouped)


def _stage(
    problem: Problem, marginal: Marginal, start: Array,
    products: DictionaryProducts | GroupProducts | None, callbacks: Sequence[Callback],
) -> Array:  # fmt: skip
    """Return the relevances at the end of one stage of `continuation`."""
    limits: dict[str, Any] = {"limit": 20, "callbacks": callbacks}
    if not isinstance(products, DictionaryProducts) or scalar(problem.noise) < SCREENED_STAGE:
        grouped = products if isinstance(products, GroupProducts) else None
        limits |= {"tolerance": COARSE, "products": grouped}
        first = evaluate_screened(problem, start, grouped)
        return solve_working_set(first, marginal, **limits).value.relevance

    def sweep(screening: Screening) -> Screening:
        return Screening.of(problem, _refined(screening, marginal)[0], products)

    stop = Below(lambda screening: marginal.violation(screening.state), COARSE, patience=15)
    begin = Screening.of(problem, start, products)
    ended = iterate(sweep, begin, stop=stop, size=problem.rows, **limits)
    return ended.value.state.relevance
