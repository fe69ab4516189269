"""The metric S = Φ_bᵀΣ⁻¹Φ_b and the explained moment Q = Φ_bᵀΣ⁻¹CΣ⁻¹Φ_b of every block of columns.

C is XXᵀ/n. The best move of a block follows from S and Q alone (`moves`). They are computed from a
factor of Σ (`exact_blocks`), or from the active columns (`DictionaryProducts`): with these times
roots of their prior covariances, A = Φ_aT, AᵀA + γI = LLᵀ and K = L⁻¹Aᵀ, Woodbury's identity gives
Σ⁻¹ = (I − KᵀK)/γ. So S and Q follow from Φ_aᵀΦ, Φ_bᵀΦ_b and ΦᵀY, which depend neither on the
covariances nor on γ, and a sweep costs κa² instead of κd². They are then differences of numbers of
the size 1/γ, so that a solver confirms where it ends by a factor of Σ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from lucidae.arrays import (
    Array,
    add_diagonal,
    adjoint,
    cholesky,
    device,
    like,
    matched,
    multiply_lower,
    namespace,
    scalar,
    solve_lower,
    squared_norm,
    squared_norms,
    to_numpy,
    zeros_like_shape,
)
from lucidae.sparsity.dictionary import (
    Dictionary,
    adjoint_times,
    column_squares,
    dense_columns,
    is_sparse,
    norms_after,
)
from lucidae.sparsity.moves import Matrices
from lucidae.sparsity.prior import Groups, columns_in_order, group_grams
from lucidae.sparsity.problem import Problem, root_by_qr
from lucidae.sparsity.state import Factor, State, evaluate, factor_of

SCREENED_ENTRIES = 200_000
"""Number of entries of a dictionary above which blocks are evaluated from the active columns."""

FEW_ACTIVE = 0.5
"""Largest number of active columns per row for which the products with them take less time."""

WELL_CONDITIONED = 1e6
"""Largest sum of the prior variances, relative to γ, for accurate forms.

The relative error of φᵀΣ⁻¹φ is then below 1e-4, and below 1e-9 unless columns are nearly dependent.
"""

IN_CACHE = 200_000
"""Largest number of entries of the dictionary that are whitened at a time, to stay in the cache."""


class Blocks(NamedTuple):
    """The matrices S and Q (metric and explained moment) of k groups of m columns each."""

    numbers: Matrices  # (k,): numbers of the groups
    members: Matrices  # (k, m): their columns
    metric: Matrices  # (k, m, m)
    explained: Matrices  # (k, m, m)


def exact_blocks(problem: Problem, factor: Factor, groups: Groups) -> list[Blocks]:
    """Return the matrices of all groups, for each size of groups, by a factor of Σ."""
    found = []
    for numbers, members in groups.by_size():
        step, parts = max(1, IN_CACHE // (problem.rows * members.shape[1])), []
        for first in range(0, len(members), step):
            index = members[first : first + step]
            columns = columns_in_order(problem.dictionary, index.ravel())
            whitened = multiply_lower(factor.inverse, columns)
            loading = adjoint(factor.responses) @ whitened
            places = np.arange(index.size).reshape(index.shape)
            parts.append((group_grams(whitened, places), group_grams(loading, places)))
        metric, explained = (np.concatenate(part) for part in zip(*parts, strict=True))
        found.append(Blocks(numbers, members, metric, explained))
    return found


@dataclass(slots=True)
class DictionaryProducts:
    """Products of a dictionary Φ with its active columns, for evaluations of all its blocks."""

    dictionary: Dictionary  # (d, κ): the dictionary
    groups: Groups  # the blocks of its columns, which may be single columns
    # (k, m, m): Φ_bᵀΦ_b of the k blocks of each size m, in the order of ``groups.by_size()``
    grams: list[Matrices]
    responses: Array  # (p, κ): YᵀΦ for the p responses Y
    index: Matrices  # (c,): columns whose products are stored
    rows: Array  # (c, κ): their products with all columns

    @classmethod
    def of(cls, problem: Problem, groups: Groups | None) -> DictionaryProducts | None:
        """Return the products; None for a small dictionary, and for groups of a sparse one."""
        dictionary = problem.dictionary
        if problem.rows * problem.columns <= SCREENED_ENTRIES:
            return None
        if is_sparse(dictionary) and groups is not None:
            return None
        blocks = Groups.of(1, problem.columns) if groups is None else groups
        if groups is None:
            grams = [to_numpy(column_squares(dictionary))[:, None, None]]
        else:
            grams = [group_grams(dictionary, members) for _, members in blocks.by_size()]
        responses = adjoint(adjoint_times(dictionary, problem.responses))
        return cls(dictionary, blocks, grams, responses, np.zeros(0, dtype=int), responses[:0, :])

    def serve(self, problem: Problem, active: int, variance: float) -> bool:
        """Tell whether evaluations from the active columns are accurate and take less time."""
        small = active <= FEW_ACTIVE * problem.rows
        return small and variance <= WELL_CONDITIONED * scalar(problem.noise)

    def with_columns(self, index: Matrices) -> Array:
        """Return ΦᵀΦ in the rows `index`, which are ascending, and store those that are new."""
        xp = namespace(self.rows)
        new = np.setdiff1d(index, self.index)
        if new.size:
            found = adjoint(adjoint_times(self.dictionary, dense_columns(self.dictionary, new)))
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
        """Return the matrices of all blocks, for each size, from active columns and their roots."""
        noise, columns = problem.noise, dense_columns(self.dictionary, index)
        roots = like(matched(roots, noise), columns)
        scaled = columns @ roots
        lower, definite = cholesky(add_diagonal(adjoint(scaled) @ scaled, noise[None]))
        if not bool(definite):
            lower, _ = root_by_qr(scaled, noise)
        inside = solve_lower(lower, adjoint(scaled) @ problem.responses)
        if is_sparse(self.dictionary):  # products with active columns would be a dense array
            K = solve_lower(lower, adjoint(scaled))
            residual = problem.responses - adjoint(K) @ inside
            squares = norms_after(self.dictionary, K)
            powers = squared_norms(adjoint_times(self.dictionary, residual), -1)
            (numbers, members), level = self.groups.by_size()[0], scalar(noise)
            metric = (self.grams[0] - squares[:, None, None]) / level
            return [Blocks(numbers, members, metric, powers[:, None, None] / level**2)]
        # KΦ = L⁻¹TᵀΦ_aᵀΦ, and the adjoint of γΦᵀΣ⁻¹Y is YᵀΦ − (KY)ᵀKΦ.
        shares = solve_lower(lower, adjoint(roots)) @ self.with_columns(index)
        loading = self.responses - adjoint(inside) @ shares
        level, found = scalar(noise), []
        for (numbers, members), gram in zip(self.groups.by_size(), self.grams, strict=True):
            metric = (gram - group_grams(shares, members)) / level
            explained = group_grams(loading, members) / level**2
            found.append(Blocks(numbers, members, metric, explained))
        return found


def evaluate_columns(
    problem: Problem,
    relevance: Array,
    products: DictionaryProducts | None,
    factor: Factor | None = None,
) -> State:
    """Return the state of single columns at given relevances, by `products` where these serve."""
    variances = to_numpy(relevance)
    active = np.flatnonzero(variances)
    if products is None or not products.serve(problem, active.size, float(variances.sum())):
        return evaluate(problem, relevance, factor=factor, columns=True)
    factor = factor_of(problem, relevance) if factor is None else factor
    (found,) = products.blocks(problem, active, np.diag(np.sqrt(variances[active])))
    empty = zeros_like_shape((0, 0), relevance)
    return State(
        *problem, relevance, like(np.maximum(found.metric[:, 0, 0].real, 0.0), relevance),
        like(found.explained[:, 0, 0].real, relevance), squared_norm(factor.responses),
        factor.log_determinant, factor.inverse, factor.responses, empty, empty,
    )  # fmt: skip
