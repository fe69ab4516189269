"""Evaluation of all groups of columns from the active columns alone.

With Σ⁻¹ = (I − KᵀK)/γ (`low_rank`) and K = MΦ_aᵀ, the matrices S and Q of all groups follow from
Φ_aᵀΦ, Φ_gᵀΦ_g and ΦᵀY, which depend neither on the covariances nor on γ: a sweep costs κa² instead
of κd². They are differences of numbers of the size 1/γ, so that a solver confirms where it ends by
a factor of Σ (`confirmed`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from lucidae.arrays import (
    Array,
    adjoint,
    device,
    like,
    matched,
    namespace,
    scalar,
    solve_lower,
    squared_norm,
    to_numpy,
    zeros_like_shape,
)
from lucidae.iteration.solution import Solution, Status, joined
from lucidae.sparsity.dictionary import is_sparse
from lucidae.sparsity.group_blocks import Blocks, Matrices, ScreenedState, group_grams
from lucidae.sparsity.groups import Groups
from lucidae.sparsity.low_rank import WELL_CONDITIONED, LowRank
from lucidae.sparsity.problem import Problem
from lucidae.sparsity.state import Factor, State, evaluate, factor_of

SCREENED_ENTRIES = 200_000
"""Number of entries of a dictionary above which its groups are evaluated from the active columns.
"""

FEW_ACTIVE = 0.5
"""Largest number of active columns per row for which the products with them take less time."""

S = TypeVar("S")


@dataclass(slots=True)
class GroupProducts:
    """Products of a dictionary Φ with its active columns, for evaluations of all its groups."""

    dictionary: Array  # (d, κ): the dictionary
    groups: Groups  # the groups of its columns
    # (k, m, m): φ_gᵀΦ_g of the k groups of each size m, in the order of ``groups.by_size()``
    grams: list[Matrices]
    responses: Array  # (p, κ): yᵀΦ for the p responses Y
    index: Matrices  # (c,): columns whose products are stored
    rows: Array  # (c, κ): their products with all columns

    @classmethod
    def of(cls, problem: Problem, groups: Groups | None) -> GroupProducts | None:
        """Return the products; None without groups, or for a small or sparse dictionary."""
        dictionary = problem.dictionary
        if groups is None or is_sparse(dictionary) or dictionary.ndim > 2:
            return None
        if problem.rows * problem.columns <= SCREENED_ENTRIES:
            return None
        grams = [group_grams(dictionary, members) for _, members in groups.by_size()]
        responses = adjoint(problem.responses) @ dictionary
        nothing = dictionary[:0, :]
        return cls(dictionary, groups, grams, responses, np.zeros(0, dtype=int), nothing)

    def serve(self, problem: Problem, active: int, variance: float) -> bool:
        """Tell whether evaluations from the active columns are accurate and take less time."""
        small = active <= FEW_ACTIVE * problem.rows
        return small and variance <= WELL_CONDITIONED * scalar(problem.noise)

    def with_columns(self, index: Matrices) -> Array:
        """Return ΦᵀΦ in the rows `index`, which are ascending, and store those that are new."""
        xp = namespace(self.dictionary)
        new = np.setdiff1d(index, self.index)
        if new.size:
            chosen = xp.asarray(new, device=device(self.dictionary))
            found = adjoint(xp.take(self.dictionary, chosen, axis=1)) @ self.dictionary
            self.rows = xp.concat([self.rows, found], axis=0)
            self.index = np.concatenate([self.index, new])
        order = np.argsort(self.index)
        places = order[np.searchsorted(self.index, index, sorter=order)]
        if np.array_equal(places, np.arange(self.index.size)):
            return self.rows
        taken = xp.take(self.rows, xp.asarray(places, device=device(self.rows)), axis=0)
        if self.index.size > self.dictionary.shape[0]:
            self.index, self.rows = index, taken
        return taken

    def blocks(self, problem: Problem, index: Matrices, roots: Any) -> list[Blocks]:
        """Return the matrices of all groups (see `Blocks`), for each size of groups."""
        xp = namespace(self.dictionary)
        chosen = xp.asarray(index, device=device(self.dictionary))
        columns = xp.take(self.dictionary, chosen, axis=1)
        roots = like(matched(roots, problem.noise), columns)
        inverse = LowRank.of(columns @ roots, problem.noise)
        # KΦ = L⁻¹TᵀΦ_aᵀΦ, and the adjoint of ΦᵀΣ⁻¹Y is (YᵀΦ − (KY)ᵀKΦ)/γ.
        if index.size:
            shares = solve_lower(inverse.lower, adjoint(roots)) @ self.with_columns(index)
        else:
            shares = self.dictionary[:0, :]
        inside = adjoint(inverse.reduced @ problem.responses)
        loading = inverse.forms(self.responses, inside @ shares)
        noise, found = scalar(problem.noise), []
        for (numbers, members), gram in zip(self.groups.by_size(), self.grams, strict=True):
            metric = (gram - group_grams(shares, members)) / noise
            found.append(Blocks(numbers, members, metric, group_grams(loading, members)))
        return found


def evaluate_screened(
    problem: Problem,
    relevance: Array,
    products: GroupProducts | None,
    factor: Factor | None = None,
) -> State:
    """Return the state at relevances of groups, by `products` where these serve."""
    variances = to_numpy(relevance)
    active = np.flatnonzero(variances)
    if products is None or not products.serve(problem, active.size, float(variances.sum())):
        return evaluate(problem, relevance, factor=factor, columns=True)
    factor = factor_of(problem, relevance) if factor is None else factor
    blocks = products.blocks(problem, active, np.diag(np.sqrt(variances[active])))
    curvature, alignment = np.zeros(variances.size), np.zeros(variances.size)
    for _, members, metric, explained in blocks:
        curvature[members] = np.diagonal(metric, axis1=1, axis2=2).real
        alignment[members] = np.diagonal(explained, axis1=1, axis2=2).real
    empty = zeros_like_shape((0, 0), relevance)
    state = ScreenedState(
        *problem, relevance, like(np.maximum(curvature, 0.0), relevance),
        like(alignment, relevance), squared_norm(factor.responses), factor.log_determinant,
        factor.inverse, factor.responses, empty, empty,
    )  # fmt: skip
    state.known = blocks
    return state


def confirmed(
    found: Solution[S],
    exact: Callable[[S], S],
    proceed: Callable[[S, int], Solution[S]],
    limit: int,
) -> Solution[S]:
    """Return a solution found by screened evaluations after an evaluation without them."""
    value = exact(found.value)
    if found.status in (Status.CONVERGED, Status.STALLED):
        return joined(found, proceed(value, max(limit - found.n_iter, 0)))
    return Solution(
        value, found.status, found.n_iter, found.distance, found.tolerance, found.history
    )
