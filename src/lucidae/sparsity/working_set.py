"""Points and working sets of the solver: single columns as vectors, groups as stacks of matrices.

Relevances of single columns are those of one problem, or of several problems that share them
(`joint`), whose energies are added with weights. The diagonal energy, and shared relevances, have
no exact moves; their working set contains all columns with which the energy falls.

The best move of a block of columns follows from its metric S = Φ_bᵀΣ⁻¹Φ_b and its explained moment
Q = Φ_bᵀΣ⁻¹CΣ⁻¹Φ_b, C = XXᵀ/n, alone (`prior`). They are computed from a factor of Σ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np

from lucidae.arrays import (
    Array,
    adjoint,
    conjugate,
    diagonal,
    largest,
    multiply_lower,
    put,
    rank_one_,
    real_part,
    scalar,
    squared_moduli,
    squared_norm,
    squared_norms,
)
from lucidae.sparsity.newton import (
    NEWTON_STEPS,
    average,
    polish_covariances,
    polish_relevances,
    violation,
)
from lucidae.sparsity.objectives import (
    Factor,
    GroupCovariance,
    Marginal,
    PrincipalState,
    State,
    evaluate,
    factor_of,
    leave_one_out,
    positive,
    state_at,
    whitened_columns,
)
from lucidae.sparsity.prior import (
    BlockPrior,
    Groups,
    Matrices,
    at_rest,
    best_change,
    coordinate_gains,
    gain_of,
    majorized_covariances,
    multiples_of_identity,
    principal_axes,
    square_root,
)
from lucidae.sparsity.problem import (
    Problem,
    adjoint_times,
    columns_in_order,
    dense_columns,
    group_grams,
    rounding_distance,
)

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
class EnergyModel:
    """An energy of one problem, or of several that share their relevances, for the solver.

    Its parameters are the relevances of all columns or, with exact moves of groups, the covariances
    (g, m, m) of all groups, padded with zeros.
    """

    energy: Marginal
    prior: BlockPrior | None = None  # of groups that have exact moves
    basis: GroupBasis | None = None  # orthonormal columns, taken if every group has its own Γ
    shares: tuple[float, ...] = (1.0,)  # weights of the problems

    @classmethod
    def of(cls, problem: Problem, energy: Marginal) -> tuple[EnergyModel, Problem]:
        """Return the model of a single problem, and the problem in the bases that it uses."""
        if not energy.exact_coordinates:
            return cls(energy), problem
        prior, basis = None, None
        if energy.groups is not None:
            prior = BlockPrior(energy.groups, isinstance(energy, GroupCovariance))
            if prior.full:
                problem, basis = orthonormal(problem, prior.groups)
        return cls(energy, prior, basis), problem

    def start(self, problem: Problem, given: Any = None) -> Any:
        """Return parameters in the bases of the model: zeros, or from relevances or covariances."""
        if self.prior is None:
            return np.zeros(problem.columns) if given is None else given
        groups, size = self.prior.groups, self.prior.groups.members.shape[1]
        if given is None:
            return np.zeros((groups.count, size, size))
        if given.ndim == 1:
            given = groups.gather(given)[:, :, None] * np.eye(size)
        return given if self.basis is None else self.basis.within(given)

    def evaluate(self, problems: Any, parameters: Any) -> Any:
        """Return the point at given parameters; it is evaluated when it is first needed."""
        several = problems if isinstance(problems, list) else [problems]
        return (ColumnPoint if self.prior is None else BlockPoint)(self, several, parameters)


@dataclass(frozen=True, eq=False)
class Point:
    """The parameters of a model, and what the sweeps of the solver need of them."""

    model: EnergyModel
    problems: list[Problem]
    parameters: Any

    @property
    def problem(self) -> Problem:
        """The first problem."""
        return self.problems[0]

    @property
    def rounding(self) -> float:
        """Distance to optimality that rounding allows."""
        return max(rounding_distance(problem) for problem in self.problems)

    def moved(self, parameters: Any) -> Self:
        """Return the point at other parameters."""
        return replace(self, parameters=parameters)


class ColumnPoint(Point):
    """Relevances of all columns, of one problem or of several that share them."""

    @cached_property
    def states(self) -> list[State]:
        """The states of the problems: one factorisation, and curvatures of all columns."""
        return [evaluate(problem, self.parameters, columns=True) for problem in self.problems]

    @property
    def state(self) -> State:
        """The state of the first problem."""
        return self.states[0]

    @cached_property
    def energy(self) -> float:
        """The energy per response, averaged over the problems."""
        return scalar(self._average(self.model.energy.value))

    @cached_property
    def violation(self) -> float:
        """Distance to the optimality (KKT) conditions."""
        return scalar(violation(self.states, self.model.energy, self.model.shares))

    @property
    def moves_exactly(self) -> bool:
        """Whether single relevances have a minimiser in closed form."""
        return self.model.energy.exact_coordinates and len(self.problems) == 1

    def _average(self, quantity: Callable[[State], Any]) -> Any:
        """Return the average of a quantity of the states over the problems."""
        return average(self.model.shares, [quantity(state) for state in self.states])

    def working_set(self) -> ColumnPart | None:
        """Return the active columns and those that gain most by becoming active."""
        w = self.parameters
        if self.moves_exactly:
            curvature = positive(self.state.curvature)  # zero columns gain nothing
            gains = coordinate_gains(w, curvature, self.state.alignment)
            index = candidates(w > 0, gains, CANDIDATES)
        else:
            index = np.flatnonzero((w > 0) | (self._average(self.model.energy.gradient) < 0))
        return ColumnPart(self, index) if index.size else None

    def without_vanishing(self) -> ColumnPoint:
        """Return the point with relevances that tend to zero set to zero, if the energy allows it.

        These are relevances far below γ if the energy falls as they shrink and, with exact moves,
        those whose minimiser is zero.
        """
        w, noise = self.parameters, min(scalar(problem.noise) for problem in self.problems)
        vanishing = (w < 1e-6 * noise) & (self._average(self.model.energy.gradient) > 0)
        remaining = np.where(vanishing, 0.0, w)
        if self.model.energy.exact_coordinates:
            # The slope of the energy at zero, Σ s − q², is not negative if zero is the minimiser.
            # Each minimiser holds the others fixed; setting many to zero at once may raise the
            # energy.
            zero = self._average(lambda state: np.subtract(*leave_one_out(state))) >= 0
            reached = self.moved(np.where(zero, 0.0, remaining))
            if reached.energy <= self.energy:
                return reached
        return self.moved(remaining)


class ColumnPart:
    """The columns of a working set, and the relevances that its moves and Newton steps change."""

    def __init__(self, point: ColumnPoint, index: np.ndarray[Any, Any]) -> None:
        self.point, self.index, self.relevance = point, index, point.parameters

    def move(self, tolerance: float, alone: bool) -> None:  # noqa: ARG002
        """Move single relevances to their minimum, that which gains most first."""
        if not self.point.moves_exactly:
            return
        index, size = self.index, self.index.size
        whitened, loading = whitened_columns(self.point.state, index)
        gram = np.hstack([adjoint(whitened) @ whitened, loading])
        workspace = Workspace(
            self.relevance[index], gram, real_part(diagonal(gram[:, :size])) + 0.0,
            squared_norms(gram[:, size:], -1),
        )  # fmt: skip
        gains = coordinate_gains(workspace.relevance, workspace.curvature, workspace.alignment)
        enough = max(1e-2 * largest(gains), 1e-2 * tolerance**2)
        workspace = descend_coordinates(workspace, enough, 4 * size)
        self.relevance = put(self.relevance, index, workspace.relevance)
        # Columns at zero whose derivative is positive stay there in every Newton step.
        free = (workspace.relevance > 0) | (workspace.alignment > workspace.curvature)
        self.index = index[free]

    def polish(self, tolerance: float, limit: int = NEWTON_STEPS) -> None:
        """Take Newton steps in the relevances of the working set."""
        share = POLISHED if self.point.moves_exactly else 0.0  # otherwise few columns join later
        enough = max(tolerance / 4.0, share * self.point.violation)
        self.relevance = polished(self.point, self.relevance, self.index, enough, limit)

    def evaluated(self) -> ColumnPoint:
        """Return the point at the relevances after moves and Newton steps."""
        return self.point.moved(self.relevance)


def polished(point: Point, relevance: Any, index: Matrices, tolerance: float, limit: int) -> Array:
    """Return relevances after Newton steps on the columns `index`; those outside must be zero."""
    if not index.size:
        return relevance
    energy, groups = point.model.energy, point.model.energy.groups
    if groups is not None:
        energy = replace(energy, groups=groups.restricted(index))
    # With fewer columns than rows the problems have as many rows as columns: steps are cheaper.
    small = [
        evaluate(problem.restricted(index), relevance[index], columns=True)
        for problem in point.problems
    ]
    shares = point.model.shares
    ended = polish_relevances(small, energy, shares, tolerance=tolerance, limit=limit)
    return put(relevance, index, ended[0].relevance)


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


GROUP_CANDIDATES = 60
"""Largest number of groups of relevance zero in a working set."""

FEW = 200
"""Number of groups below which a test which groups are at rest takes more time than it saves."""

COARSE = 1e-2
"""Distance to optimality at which fits of low accuracy end, such as stages of a continuation."""

ROUGH = 0.1
"""Newton steps far from the minimum stop when the distance to optimality has fallen by this factor.
"""

FAR_STEPS = 6
"""Largest number of Newton steps in a sweep far from the minimum, where some are damped much."""

MOST_MOVES = 80
"""Largest number of moves in a sweep."""

TOGETHER = 8
"""Number of moves after which the gains of all groups of a working set are computed again."""

STILL = 0.3
"""A group moves if its gain is at least this share of the largest one known of other groups."""

ROUNDS = 100
"""Largest number of rounds in a sweep that makes exact moves alone."""

NO_GAIN = 1e-14
"""Decrease of the energy per response in a round of exact moves that counts as rounding."""


class Ranking(NamedTuple):
    """Gains of the best covariances of all groups, if one moves alone, and the distance."""

    gains: Matrices
    violation: float


class BlockPoint(Point):
    """Covariances of all groups of the columns of one problem."""

    moves_exactly = True

    @property
    def prior(self) -> BlockPrior:
        """The prior of the groups."""
        assert self.model.prior is not None
        return self.model.prior

    @cached_property
    def numbers(self) -> Matrices:
        """The groups whose covariance is not zero, ascending."""
        return np.flatnonzero(self.parameters.any(axis=(1, 2)))

    @cached_property
    def active(self) -> tuple[Matrices, Matrices]:
        """The columns (a,) of these groups, ascending, and the roots T (a, r) of their Γ = TTᵀ."""
        groups, numbers = self.prior.groups, self.numbers
        members, used = groups.members[numbers], np.flatnonzero(groups.present[numbers].ravel() > 0)
        roots = np.zeros((*members.shape, *members.shape), dtype=self.parameters.dtype)
        every = np.arange(len(members))
        roots[every, :, every, :] = square_root(self.parameters[numbers])
        used = used[np.argsort(members.ravel()[used])]
        return members.ravel()[used], roots.reshape(members.size, members.size)[used]

    @cached_property
    def factor(self) -> Factor:
        """The factorisation of Σ = Φ_aTTᵀΦ_aᵀ + γI."""
        index, roots = self.active
        scaled = dense_columns(self.problem.dictionary, index) @ roots
        return factor_of(self.problem._replace(dictionary=scaled), np.ones(scaled.shape[1]))

    @cached_property
    def energy(self) -> float:
        """The energy per response."""
        at, factor = self.problem, self.factor
        constant = at.outside / at.noise + at.spare * np.log(at.noise)
        return scalar(squared_norm(factor.responses) + factor.log_determinant + constant)

    @cached_property
    def blocks(self) -> list[Blocks]:
        """Metrics and explained moments of all groups, for each size of groups."""
        return exact_blocks(self.problem, self.factor, self.prior.groups)

    def present(self, numbers: Matrices, size: int) -> Matrices:
        """Return the covariances of some groups of one size, without padding."""
        return np.asarray(self.parameters[numbers, :size, :size])

    @cached_property
    def ranking(self) -> Ranking:
        """The gain of the best covariance of every group, and the distance to optimality."""
        prior = self.prior
        gains, worst = np.zeros(prior.groups.count), 0.0
        active = self.parameters.any(axis=(1, 2))
        for numbers, members, metric, explained in self.blocks:
            size, used = members.shape[1], active[numbers]
            if numbers.size >= FEW:  # groups at rest have no gain, and satisfy the conditions
                moving = np.flatnonzero(used | ~at_rest(metric, explained))
                numbers, used = numbers[moving], used[moving]
                metric, explained = metric[moving], explained[moving]
            if not numbers.size:
                continue
            present = self.present(numbers, size)
            _, found = prior.moves(present, metric, explained)
            gains[numbers] = found
            # Of inactive groups the largest distance belongs to one whose gain is at least the
            # largest one divided by the number of columns, up to groups with several minima.
            largest = found[~used].max(initial=0.0)
            near = used | (not prior.full) | (found >= 0.99 * largest / size)
            distances = prior.violation(present[near], metric[near], explained[near])
            worst = max(worst, float(distances.max(initial=0.0)))
        # Near a minimum the gain of a move is of the order of the squared distance. A larger gain
        # leads to another minimum, of which a group with one relevance may have several.
        jump = 0.0 if prior.full else float(gains.max(initial=0.0))
        return Ranking(gains, max(worst, jump))

    @property
    def violation(self) -> float:
        """Distance to the optimality (KKT) conditions."""
        return self.ranking.violation

    def working_set(self) -> BlockPart | None:
        """Return the active groups and those that gain most by becoming active."""
        chosen = candidates(self.parameters.any(axis=(1, 2)), self.ranking.gains, GROUP_CANDIDATES)
        return BlockPart(self, chosen) if chosen.size else None

    def without_vanishing(self) -> BlockPoint:
        """Return the point without the groups whose best covariance is zero, if it is not higher.

        Updates never reach zero, and every group that is not zero slows the Newton steps.
        """
        remaining = self.parameters + 0.0
        for numbers, members, metric, explained in self.blocks:
            present = self.present(numbers, members.shape[1])
            moved, _ = self.prior.moves(present, metric, explained)
            remaining[numbers[~moved.any(axis=(1, 2))]] = 0.0
        trial = self.moved(remaining)
        return trial if trial.energy <= self.energy else self

    def majorized(self) -> BlockPoint:
        """Return the point after one step of majorise–minimise in all covariances."""
        kind = np.result_type(self.parameters, self.blocks[0].explained)
        found = np.zeros(self.parameters.shape, dtype=kind)
        for numbers, members, metric, explained in self.blocks:
            size = members.shape[1]
            found[numbers, :size, :size] = majorized_covariances(
                self.present(numbers, size), metric, explained
            )
        return self.moved(found)

    @cached_property
    def state(self) -> State:
        """The state at active columns, as they are given or in principal axes; zero elsewhere."""
        groups, problem, axes = self.prior.groups, self.problem, None
        if self.prior.full:
            axes, relevance = principal_axes(self.parameters, groups)
            turned = problem.dictionary @ axes.turn(relevance.size)
            problem = problem._replace(dictionary=turned)
        else:
            relevance = groups.expand(self.parameters[:, 0, 0].real)
        active = np.flatnonzero(relevance)
        whitened = self.factor.inverse @ dense_columns(problem.dictionary, active)
        curvature, alignment = np.zeros(relevance.size), np.zeros(relevance.size)
        curvature[active] = squared_norms(whitened, -2)
        alignment[active] = squared_norms(adjoint(whitened) @ self.factor.responses, -1)
        state = state_at(problem, relevance, curvature, alignment, self.factor)
        if axes is None:
            return state
        assert self.model.basis is not None
        into = self.model.basis.into[groups.labels[axes.members[:, 0]]]
        return PrincipalState.at(state, replace(axes, vectors=into @ axes.vectors), groups)


class BlockPart:
    """The groups of a working set, with arrays for their moves by updates of rank m.

    `gram` is the matrix [ΦᵀΣ⁻¹Φ | ΦᵀΣ⁻¹Y] of their columns Φ, `members` and `covariances` contain
    the columns, as positions among them, and the covariances of the groups of each size.
    """

    def __init__(self, point: BlockPoint, chosen: Matrices) -> None:
        groups = point.prior.groups
        self.point, self.chosen, self.prior = point, chosen, point.prior
        self.index = groups.columns(chosen)
        self.inside = groups.restricted(self.index)
        columns = dense_columns(point.problem.dictionary, self.index)
        whitened = multiply_lower(point.factor.inverse, columns)
        loading = adjoint(whitened) @ point.factor.responses
        self.gram = np.hstack([adjoint(whitened) @ whitened, loading])
        present = point.parameters[chosen].astype(np.result_type(point.parameters, self.gram))
        self.members = [members for _, members in self.inside.by_size()]
        self.covariances = [
            present[numbers, : members.shape[1], : members.shape[1]]
            for numbers, members in self.inside.by_size()
        ]

    def move(self, tolerance: float, alone: bool) -> None:
        """Move single groups to their best covariance, that which gains most first.

        Near the minimum Newton steps, which do not increase ranks, converge faster than moves: only
        groups whose rank changes move. `alone` repeats rounds of moves of all groups.
        """
        before = [covariance + 0.0 for covariance in self.covariances]
        floor = 0.1 * tolerance**2
        count = sum(len(members) for members in self.members)
        try:
            if alone:
                for _ in range(ROUNDS):
                    if move_all(self.gram, self.members, self.covariances, self.prior) <= NO_GAIN:
                        break
            else:
                near = self.prior.full and self.point.violation <= COARSE
                self._move_best(POLISHED, floor, min(4 * count, MOST_MOVES), near)
        except np.linalg.LinAlgError:  # I + ΔS is singular up to rounding
            self.covariances = before

    def _moves(self, size: int, places: Any) -> tuple[Matrices, Matrices]:
        """Return the best covariances, and their gains, of some groups of one size."""
        members = self.members[size][places]
        metric = self.gram[members[:, :, None], members[:, None, :]]
        loading = self.gram[members, self.gram.shape[0] :]
        return self.prior.moves(self.covariances[size][places], metric, loading @ adjoint(loading))

    def _move_best(self, share: float, floor: float, limit: int, ranks: bool) -> None:
        """Make moves until no gain exceeds `floor`, or `share` times the first one."""
        where = [(size, place) for size, m in enumerate(self.members) for place in range(len(m))]
        enough = floor
        for count in range(-(-limit // TOGETHER)):
            found = [self._moves(size, slice(None)) for size in range(len(self.members))]
            gains = np.concatenate([gains for _, gains in found])
            if ranks:
                pairs = zip(found, self.covariances, strict=True)
                changed = [_ranks(moved) != _ranks(now) for (moved, _), now in pairs]
                gains = gains * np.concatenate(changed)
            elif count == 0:
                enough = max(share * float(gains.max(initial=0.0)), floor)
            if not gains.max(initial=0.0) > enough:
                break
            # A move changes the gains of the other groups, but mostly those of a few. They are
            # computed again after several moves, and in between only that of the group that is to
            # move, which it does if its gain is still among the largest.
            for _ in range(TOGETHER):
                best = int(gains.argmax())
                if not gains[best] > enough:
                    break
                size, place = where[best]
                (moved,), (gain,) = self._moves(size, slice(place, place + 1))
                gains[best] = 0.0
                if gain > enough and gain >= STILL * gains.max():
                    change = moved - self.covariances[size][place]
                    change_covariance_(self.gram, self.members[size][place], change)
                    self.covariances[size][place] = moved
                else:
                    gains[best] = min(gain, gains.max())

    def polish(self, tolerance: float, limit: int = NEWTON_STEPS) -> None:
        """Take Newton steps in the covariances of all groups of the working set."""
        violation = self.point.violation
        if not self.prior.full:
            self._polish_relevances(max(tolerance / 4.0, POLISHED * violation), limit)
            return
        # Far from the minimum, turned ranges would fit the groups that were chosen first so well
        # that better ones are not found: on recordings of extended sources this ended at higher
        # minima. Near it a sweep is to end at about the square of the distance before, since Newton
        # steps converge quadratically; far from it other groups will join, and accurate steps are
        # wasted.
        near = violation <= COARSE
        whole = self.chosen.size == self.prior.groups.count  # there are no other groups
        reduced = violation if near else ROUGH
        accuracy = max(tolerance / 4.0, 0.0 if whole else reduced * violation)
        used = [c.any(axis=(1, 2)) for c in self.covariances]
        pairs = zip(self.members, used, strict=True)
        columns = np.sort(np.concatenate([index[mask].ravel() for index, mask in pairs]))
        if not columns.size:
            return
        part = self.point.problem.restricted(self.index[columns])
        place = np.zeros(self.index.size, dtype=int)
        place[columns] = np.arange(columns.size)
        self.covariances = polish_covariances(
            part, [place[index] for index in self.members], self.covariances, accuracy,
            limit if near else min(limit, FAR_STEPS), near or whole,
        )  # fmt: skip

    def _polish_relevances(self, tolerance: float, limit: int) -> None:
        """Take Newton steps in the relevances of groups that have one each."""
        free, relevance = (
            np.zeros(self.index.size, dtype=bool),
            np.zeros(self.point.problem.columns),
        )
        for members, covariance in zip(self.members, self.covariances, strict=True):
            loading = self.gram[members, self.gram.shape[0] :]
            slope = (np.abs(loading) ** 2).sum(axis=(1, 2))
            slope -= self.gram[members, members].real.sum(axis=1)
            weights = covariance[:, 0, 0].real
            relevance[self.index[members]] = weights[:, None]
            free[members] = ((weights > 0) | (slope > 0))[:, None]
        relevance = polished(self.point, relevance, self.index[free], tolerance, limit)
        self.covariances = [
            multiples_of_identity(relevance[self.index[members[:, 0]]], members.shape[1])
            for members in self.members
        ]

    def evaluated(self) -> BlockPoint:
        """Return the point at the covariances after moves and Newton steps, others zero."""
        found = np.zeros(self.point.parameters.shape, dtype=self.covariances[0].dtype)
        for (numbers, _), covariance in zip(self.inside.by_size(), self.covariances, strict=True):
            place = np.arange(covariance.shape[1])
            found[self.chosen[numbers][:, None, None], place[:, None], place] = covariance
        return self.point.moved(found)


def change_covariance_(gram: Matrices, index: Matrices, change: Matrices) -> None:
    """Update [ΦᵀΣ⁻¹Φ | ΦᵀΣ⁻¹Y] after the covariance of the columns `index` has changed."""
    # Woodbury's identity: with Γ changed by Δ, Σ⁻¹ loses Σ⁻¹Φ_g(I + ΔS)⁻¹ΔΦ_gᵀΣ⁻¹. Multiplied by Φᵀ
    # and [Φ, Y], this takes a product of columns and rows from the buffer.
    rows = gram[index, :]
    lost = np.linalg.solve(np.eye(index.size) + change @ rows[:, index], change) @ rows
    gram -= gram[:, index] @ lost


def move_all(
    gram: Matrices, members: list[Matrices], covariances: list[Matrices], prior: BlockPrior
) -> float:
    """Move every group once, one after the other, and return by how much the energy fell."""
    total, columns = 0.0, gram.shape[0]
    for groups, present in zip(members, covariances, strict=True):
        for place, index in enumerate(groups):
            rows = gram[index]
            loading = rows[:, columns:]
            explained = loading @ adjoint(loading)
            moved, gain = prior.moves(present[place][None], rows[:, index][None], explained[None])
            if gain[0] > 0.0:
                change_covariance_(gram, index, moved[0] - present[place])
                present[place] = moved[0]
                total += float(gain[0])
    return total


def _ranks(covariances: Matrices) -> Matrices:
    """Return the rank of each positive semi-definite matrix of a stack."""
    return np.asarray(square_root(covariances).any(axis=1).sum(axis=1))


def entry_noise_of_groups(problem: Problem, prior: BlockPrior) -> float:
    """Return the γ from which all Γ are zero: the largest eigenvalue of any Φ_gᵀCΦ_g.

    Columns of a group are orthonormal here.
    """
    turned, _ = orthonormal(problem, prior.groups)
    loading = adjoint_times(turned.dictionary, turned.responses)
    norms = [np.linalg.norm(loading[index], 2, axis=(1, 2)) for _, index in prior.groups.by_size()]
    return float(np.concatenate(norms).max()) ** 2


DROPPED = 1e-10
"""Singular values of a group's unit columns below this share of the largest count as zero."""


class GroupBasis(NamedTuple):
    """An orthonormal basis Φ_gB of the span of the m columns Φ_g of each group."""

    groups: Groups  # the groups of columns
    # (g, m, m): the matrices B of the g groups and their pseudo-inverses, padded with zeros
    into: Matrices
    back: Matrices

    def within(self, covariances: Any) -> Matrices:
        """Return the covariances of the coefficients that belong to the orthonormal bases."""
        return np.asarray(self.back @ covariances @ adjoint(self.back))

    def outside(self, covariances: Matrices) -> Matrices:
        """Return the covariances of the coefficients of the given columns; undoes `within`."""
        return np.asarray(self.into @ covariances @ adjoint(self.into))


def orthonormal(problem: Problem, groups: Groups) -> tuple[Problem, GroupBasis]:
    """Return the problem with orthonormal columns in every group, and the bases of the groups.

    Nearly dependent columns would enlarge rounding errors. Directions whose singular value, for
    columns of unit norm, is below `DROPPED` become zero. With fewer columns than rows the problem
    is reduced to their span.
    """
    columns = problem.dictionary
    count, size = groups.members.shape
    into = np.zeros((count, size, size), columns.dtype)
    back, found = np.zeros_like(into), np.zeros_like(columns)
    used = np.zeros(columns.shape[1], dtype=bool)
    for numbers, members in groups.by_size():
        stack = np.moveaxis(columns[:, members], 1, 0)
        norms = np.linalg.norm(stack, axis=1)
        norms = np.where(norms > 0, norms, 1.0)
        triangle: Any = np.linalg.qr(stack / norms[:, None, :], mode="r")
        missing = members.shape[1] - triangle.shape[1]  # of rows, in groups wider than the problem
        triangle = np.pad(triangle, ((0, 0), (0, missing), (0, 0)))
        _, values, right = np.linalg.svd(triangle)
        kept = values > DROPPED * values[:, :1]
        inverse = np.where(kept, 1.0 / np.where(kept, values, 1.0), 0.0)
        turns = adjoint(right) * inverse[:, None, :] / norms[:, :, None]
        width = np.arange(members.shape[1])
        into[numbers[:, None, None], width[:, None], width] = turns
        back[numbers[:, None, None], width[:, None], width] = (
            (values * kept)[:, :, None] * right * norms[:, None, :]
        )
        found[:, members] = np.moveaxis(stack @ turns, 0, 1)
        used[members] = kept
    turned = problem._replace(dictionary=found)
    return _in_span(turned, np.flatnonzero(used)), GroupBasis(groups, into, back)


def _in_span(problem: Problem, index: Matrices) -> Problem:
    """Return the problem in the span of columns `index`; a constant would hide gains."""
    if not 0 < index.size < problem.rows:
        return problem
    small = problem.restricted(index)
    wide = np.zeros((index.size, problem.columns), small.dictionary.dtype)
    wide[:, index] = small.dictionary
    return small._replace(dictionary=wide)
