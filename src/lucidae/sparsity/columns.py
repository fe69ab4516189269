"""Single columns in the working-set solver: relevances as vectors, moves by rank-one updates.

The relevances are those of one problem, or of several problems that share them (`joint`), whose
energies are added with weights. The diagonal energy, and shared relevances, have no exact moves;
their working set contains all columns with which the energy falls.

The best move of a block of columns, here and in `blocks`, follows from its metric S = Φ_bᵀΣ⁻¹Φ_b
and its explained moment Q = Φ_bᵀΣ⁻¹CΣ⁻¹Φ_b, C = XXᵀ/n, alone (`moves`). They are computed from a
factor of Σ (`exact_blocks`), or from the active columns (`DictionaryProducts`): with these times
roots of their prior covariances, A = Φ_aT, AᵀA + γI = LLᵀ and K = L⁻¹Aᵀ, Woodbury's identity gives
Σ⁻¹ = (I − KᵀK)/γ. So S and Q follow from Φ_aᵀΦ, Φ_bᵀΦ_b and ΦᵀY, which depend neither on the
covariances nor on γ, and a sweep costs κa² instead of κd². They are then differences of numbers of
the size 1/γ, so that a solver confirms where it ends by a factor of Σ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from lucidae.arrays import (
    Array,
    add_diagonal,
    adjoint,
    cholesky,
    conjugate,
    diagonal,
    largest,
    multiply_lower,
    put,
    rank_one_,
    real_part,
    scalar,
    solve_lower,
    squared_moduli,
    squared_norm,
    squared_norms,
)
from lucidae.sparsity.dictionary import (
    Dictionary,
    adjoint_times,
    column_squares,
    dense_columns,
    is_sparse,
    norms_after,
)
from lucidae.sparsity.moves import Matrices, best_change, coordinate_gains, gain_of
from lucidae.sparsity.newton import NEWTON_STEPS, average, polish_relevances, violation
from lucidae.sparsity.objectives import Marginal
from lucidae.sparsity.prior import Groups, columns_in_order, group_grams
from lucidae.sparsity.problem import Problem, root_by_qr, rounding_distance
from lucidae.sparsity.state import (
    Factor,
    State,
    empty_start,
    evaluate,
    factor_of,
    leave_one_out,
    positive,
)

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
            grams = [column_squares(dictionary)[:, None, None]]
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
        new = np.setdiff1d(index, self.index)
        if new.size:
            found = adjoint(adjoint_times(self.dictionary, dense_columns(self.dictionary, new)))
            self.rows = np.concatenate([self.rows, found])
            self.index = np.concatenate([self.index, new])
        order = np.argsort(self.index)
        places = order[np.searchsorted(self.index, index, sorter=order)]
        if np.array_equal(places, np.arange(self.index.size)):
            return self.rows
        taken = self.rows[places]
        if self.index.size > self.dictionary.shape[0]:
            self.index, self.rows = index, taken
        return taken

    def blocks(self, problem: Problem, index: Matrices, roots: Any) -> list[Blocks]:
        """Return the matrices of all blocks, for each size, from active columns and their roots."""
        noise, columns = problem.noise, dense_columns(self.dictionary, index)
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
    active = np.flatnonzero(relevance)
    if products is None or not products.serve(problem, active.size, float(relevance.sum())):
        return evaluate(problem, relevance, factor=factor, columns=True)
    factor = factor_of(problem, relevance) if factor is None else factor
    (found,) = products.blocks(problem, active, np.diag(np.sqrt(relevance[active])))
    empty = np.zeros((0, 0))
    return State(
        *problem, relevance, np.maximum(found.metric[:, 0, 0].real, 0.0),
        found.explained[:, 0, 0].real, squared_norm(factor.responses),
        factor.log_determinant, factor.inverse, factor.responses, empty, empty,
    )  # fmt: skip


CANDIDATES = 150
"""Largest number of columns of relevance zero in a working set."""

PROMISING = 1e-3
"""Inactive blocks join the working set if their gain exceeds this share of the largest."""

CHECK_MOVES = 16
"""Number of coordinate moves between two checks of the stopping rule."""

CANCELLED = 1e-3
"""All alignments are computed again if one falls below this share in a move: terms cancel."""

POLISHED = 1e-2
"""Newton steps stop when the distance to optimality of all columns has fallen by this factor."""


def candidates(active: Any, gains: Any, most: int) -> np.ndarray[Any, Any]:
    """Return ascending indices of active items and of inactive ones with the largest gains."""
    # Candidates far below the best gain rarely survive the first moves, and each one makes the
    # buffers of the moves and the Newton system larger.
    promise = np.where(active, 0.0, gains)
    count = min(most, int(np.count_nonzero(promise > PROMISING * gains.max())))
    best = np.argpartition(-promise, count - 1)[:count] if count else np.empty(0, dtype=int)
    return np.union1d(np.flatnonzero(active), best)


@dataclass(frozen=True, eq=False)
class ColumnModel:
    """Energies of one problem, or of several that share relevances, as functions of these."""

    marginal: Marginal
    products: DictionaryProducts | None = None
    shares: tuple[float, ...] = (1.0,)  # weights of the problems

    @classmethod
    def of(cls, problem: Problem, marginal: Marginal) -> ColumnModel:
        """Return the model of a single problem."""
        exact = marginal.exact_coordinates
        return cls(marginal, DictionaryProducts.of(problem, None) if exact else None)

    def empty(self, problem: Problem) -> Array:
        """Return relevances of zero."""
        return empty_start(problem)

    def within(self, given: Array) -> Array:
        """Return the relevances from which a fit starts as they are."""
        return given

    def evaluate(self, problems: Any, relevance: Array) -> ColumnPoint:
        """Return the point at given relevances; it is evaluated when it is first needed."""
        several = problems if isinstance(problems, list) else [problems]
        return ColumnPoint(self, several, relevance, [None] * len(several))

    def exact(self, point: ColumnPoint) -> ColumnPoint:
        """Return the point without evaluations from the active columns."""
        return replace(point, model=replace(self, products=None))


@dataclass(frozen=True, eq=False)
class ColumnPoint:
    """All columns of a model at given relevances."""

    model: ColumnModel
    problems: list[Problem]
    relevance: Array
    factors: Sequence[Factor | None]  # known factorisations of the covariances

    @cached_property
    def states(self) -> list[State]:
        """The states of the problems: one factorisation, and curvatures of all columns."""
        pairs = zip(self.problems, self.factors, strict=True)
        return [evaluate_columns(p, self.relevance, self.model.products, f) for p, f in pairs]

    @property
    def state(self) -> State:
        """The state of the first problem."""
        return self.states[0]

    @property
    def parameters(self) -> Array:
        """The relevances, from which another fit can start."""
        return self.relevance

    @property
    def size(self) -> int:
        """Number of rows of the largest problem."""
        return max(problem.rows for problem in self.problems)

    @property
    def rounding(self) -> float:
        """Distance to optimality that rounding allows."""
        return max(rounding_distance(problem) for problem in self.problems)

    @cached_property
    def energy(self) -> float:
        """The energy per response, averaged over the problems."""
        values = [self.model.marginal.value(state) for state in self.states]
        return scalar(average(self.model.shares, values))

    @cached_property
    def violation(self) -> float:
        """Distance to the optimality (KKT) conditions."""
        return scalar(violation(self.states, self.model.marginal, self.model.shares))

    @property
    def moves_exactly(self) -> bool:
        """Whether single relevances have a minimiser in closed form."""
        return self.model.marginal.exact_coordinates and len(self.problems) == 1

    def working_set(self) -> ColumnPart | None:
        """Return the active columns and those that gain most by becoming active."""
        w = self.relevance
        if self.moves_exactly:
            curvature = positive(self.state.curvature)  # zero columns gain nothing
            gains = coordinate_gains(w, curvature, self.state.alignment)
            index = candidates(w > 0, gains, CANDIDATES)
        else:
            slopes = [self.model.marginal.gradient(state) for state in self.states]
            index = np.flatnonzero((w > 0) | (average(self.model.shares, slopes) < 0))
        return ColumnPart(self, index) if index.size else None

    def without_vanishing(self) -> ColumnPoint:
        """Return the point with relevances that tend to zero set to zero, if the energy allows it.

        These are relevances far below γ if the energy falls as they shrink and, with exact moves,
        those whose minimiser is zero.
        """
        marginal = self.model.marginal
        slope = average(self.model.shares, [marginal.gradient(state) for state in self.states])
        noise = min(scalar(problem.noise) for problem in self.problems)
        vanishing = (self.relevance < 1e-6 * noise) & (slope > 0)
        remaining = np.where(vanishing, 0.0, self.relevance)
        if self.moves_exactly or len(self.problems) > 1:
            # Each minimiser holds the others fixed; setting many to zero at once may raise the
            # energy. Shared relevances vanish if their slope at zero, Σ s − q², is not negative.
            trial = np.where(self._shrinks(), 0.0, remaining)
            reached = self.model.evaluate(self.problems, trial)
            if reached.energy <= self.energy:
                return reached
        if (remaining == self.relevance).all():
            return self
        return self.model.evaluate(self.problems, remaining)

    def _shrinks(self) -> Array:
        """Return a mask of the columns whose best relevance is zero if all others are fixed."""
        if len(self.problems) == 1:
            state = self.state
            change = best_change(self.relevance, positive(state.curvature), state.alignment)
            return change <= -self.relevance
        pairs = [leave_one_out(state) for state in self.states]
        return average(self.model.shares, [s - q for s, q in pairs]) >= 0


class ColumnPart:
    """The columns of a working set, and the relevances that its moves and Newton steps change."""

    def __init__(self, point: ColumnPoint, index: np.ndarray[Any, Any]) -> None:
        self.point, self.index = point, index
        self.relevance, self.factors = point.relevance, list(point.factors)

    def move(self, tolerance: float, alone: bool) -> None:  # noqa: ARG002
        """Move single relevances to their minimum, that which gains most first."""
        if not self.point.moves_exactly:
            return
        part = self.point.state.take(self.index)
        metric = adjoint(part.whitened) @ part.whitened
        gram = np.concatenate([metric, part.loading], axis=1)
        curvature = real_part(diagonal(metric)) + 0.0
        workspace = Workspace(
            part.relevance + 0.0, gram, curvature, squared_norms(part.loading, -1)
        )  # fmt: skip
        gains = coordinate_gains(workspace.relevance, workspace.curvature, workspace.alignment)
        enough = max(1e-2 * largest(gains), 1e-2 * tolerance**2)
        workspace = descend_coordinates(workspace, enough, 4 * self.index.size)
        self.relevance = put(self.relevance, self.index, workspace.relevance)
        # Columns at zero whose derivative is positive stay there in every Newton step.
        free = (workspace.relevance > 0) | (workspace.alignment > workspace.curvature)
        self.index = self.index[free]

    def polish(self, tolerance: float, limit: int = NEWTON_STEPS) -> None:
        """Take Newton steps in the relevances of the working set."""
        if not self.index.size:
            return
        marginal, groups = self.point.model.marginal, self.point.model.marginal.groups
        if groups is not None:
            marginal = replace(marginal, groups=groups.restricted(self.index))
        share = POLISHED if self.point.moves_exactly else 0.0  # otherwise few columns join later
        enough = max(tolerance / 4.0, share * self.point.violation)
        small = [self._restricted(place) for place in range(len(self.point.problems))]
        ended = polish_relevances(
            small, marginal, self.point.model.shares, tolerance=enough, limit=limit
        )
        self.relevance = put(self.relevance, self.index, ended[0].relevance)
        # Columns outside the working set have relevance zero, so the last states have the Σ of all
        # columns: their factors serve the sweep, unless they are in the span of the working set.
        whole = [
            state.problem.rows == p.rows
            for state, p in zip(ended, self.point.problems, strict=True)
        ]
        pairs = zip(ended, whole, strict=True)
        self.factors = [state.factor if same else None for state, same in pairs]

    def _restricted(self, place: int) -> State:
        """Return the state of a problem restricted to the working set, at the present relevances.

        With fewer columns than rows it has as many rows as columns: Newton steps are cheaper.
        """
        problem, index = self.point.problems[place], self.index
        chosen = self.relevance[index]
        if 2 * index.size <= problem.rows:
            return evaluate(problem.restricted(index), chosen, columns=True)
        if (self.relevance == self.point.relevance).all():
            return self.point.states[place].take(index)
        part = problem._replace(dictionary=dense_columns(problem.dictionary, index))
        return evaluate(part, chosen, columns=True)

    def evaluated(self) -> ColumnPoint:
        """Return the point at the relevances after moves and Newton steps."""
        return replace(self.point, relevance=self.relevance, factors=self.factors)


class Workspace(NamedTuple):
    """Arrays for coordinate moves on the columns of a working set; the moves overwrite them."""

    relevance: Any  # (m,): relevances of the m columns
    # (m, m + p): the matrix [ΦᵀΣ⁻¹Φ | ΦᵀΣ⁻¹Y] of the m columns Φ, where Σ is the covariance of a
    # response and Y are the p responses of the normalised problem
    gram: Any
    # (m,): diagonal of the left part of `gram` (curvatures), and squared row norms of its right
    # part (alignments)
    curvature: Any
    alignment: Any


def descend_coordinates(workspace: Workspace, enough: float, limit: int) -> Workspace:
    """Lower the energy by coordinate moves until no move lowers it by more than `enough`."""
    for _ in range(-(-limit // CHECK_MOVES)):
        gains = coordinate_gains(workspace.relevance, workspace.curvature, workspace.alignment)
        if not gains.max() > enough:
            break
        for _ in range(CHECK_MOVES):
            workspace = best_coordinate_step(workspace)
        # Alignments, which moves update by differences, are computed again from `gram`.
        responses = workspace.gram[:, workspace.gram.shape[0] :]
        workspace = workspace._replace(alignment=squared_norms(responses, -1))
    return workspace


def best_coordinate_step(workspace: Workspace) -> Workspace:
    """Move the relevance that lowers the energy most to its minimiser; return the new workspace."""
    # Sherman–Morrison: Σ⁻¹ loses sΣ⁻¹φφᵀΣ⁻¹ with s = Δ/(1 + Δz). Multiplied by Φᵀ and
    # [Φ, Y], this takes s times the outer product of column φ and row φ from the buffer. The
    # column is the conjugate c̄ of the row's left part c. So a row r of the right part becomes
    # r − sc̄ⱼy with the row's right part y, and ‖r‖² becomes ‖r‖² − 2s Re(cⱼ rȳᵀ) + s²|cⱼ|²‖y‖².
    relevance, gram, curvature, alignment = workspace
    changes = best_change(relevance, curvature, alignment)
    index = int(gain_of(changes, curvature, alignment).argmax())
    change, size = float(changes[index]), gram.shape[0]
    row = gram[index] + 0.0
    coupling, response = row[:size], row[size:]
    shrink = change / (1.0 + change * float(coupling[index].real))
    across = real_part(coupling * (gram[:, size:] @ conjugate(response)))
    rank_one_(gram, conjugate(coupling), row, -shrink)
    relevance[index] = max(float(relevance[index]) + change, 0.0)
    lost = shrink * squared_moduli(coupling)
    power = shrink * float(squared_norm(response[None]))
    updated = alignment + (power * lost - 2.0 * shrink * across)
    if (updated < CANCELLED * alignment).any():
        updated = squared_norms(gram[:, size:], -1)
    return Workspace(relevance, gram, curvature - lost, updated)
