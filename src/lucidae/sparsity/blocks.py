"""Groups of columns in the working-set solver: covariances as stacks of matrices."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from lucidae.arrays import (
    Array,
    adjoint,
    multiply_lower,
    scalar,
    squared_norm,
    squared_norms,
)
from lucidae.sparsity.columns import POLISHED, Blocks, DictionaryProducts, candidates, exact_blocks
from lucidae.sparsity.dictionary import adjoint_times, dense_columns
from lucidae.sparsity.moves import (
    Matrices,
    at_rest,
    majorized_covariances,
    multiples_of_identity,
    square_root,
)
from lucidae.sparsity.newton import NEWTON_STEPS, polish_covariances, polish_relevances
from lucidae.sparsity.objectives import FullCovariance
from lucidae.sparsity.prior import (
    BlockPrior,
    Groups,
    group_grams,
    principal_axes,
)
from lucidae.sparsity.problem import Problem, rounding_distance
from lucidae.sparsity.state import Factor, PrincipalState, State, evaluate, factor_of

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


@dataclass(frozen=True, eq=False)
class BlockModel:
    """The full energy as a function of the covariances of groups of columns."""

    prior: BlockPrior
    products: DictionaryProducts | None
    basis: GroupBasis | None  # orthonormal columns, taken if every group has its own covariance

    @classmethod
    def of(cls, problem: Problem, prior: BlockPrior) -> tuple[BlockModel, Problem]:
        """Return the model, and the problem in the bases that it uses."""
        basis = None
        if prior.full:
            problem, basis = orthonormal(problem, prior.groups)
        return cls(prior, DictionaryProducts.of(problem, prior.groups), basis), problem

    @property
    def groups(self) -> Groups:
        """The groups of columns."""
        return self.prior.groups

    def empty(self, problem: Problem) -> Matrices:  # noqa: ARG002
        """Return covariances of zero."""
        count, size = self.groups.members.shape
        return np.zeros((count, size, size))

    def within(self, given: Any) -> Matrices:
        """Return the covariances of all groups, in the bases of the model, from given parameters.

        These are relevances of columns, or covariances of groups.
        """
        if given.ndim == 1:
            size = self.groups.members.shape[1]
            given = self.groups.gather(given)[:, :, None] * np.eye(size)
        return given if self.basis is None else self.basis.within(given)

    def evaluate(self, problem: Problem, covariances: Matrices) -> BlockPoint:
        """Return the point at given covariances (g, m, m) of all groups, padded with zeros."""
        numbers = np.flatnonzero(covariances.any(axis=(1, 2)))
        return self.at(problem, numbers, covariances[numbers])

    def at(self, problem: Problem, numbers: Matrices, active: Matrices) -> BlockPoint:
        """Return the point at covariances `active` (a, m, m) of groups `numbers`, others zero."""
        members, present = self.groups.members[numbers], self.groups.present[numbers]
        # Σ = Σ_g Φ_gTTᵀΦ_gᵀ + γI, where the columns of T are the principal axes of the covariance.
        columns = dense_columns(problem.dictionary, members.ravel())
        columns = np.moveaxis(columns.reshape(problem.rows, *members.shape), 1, 0)
        roots = square_root(active) * present[:, :, None]
        scaled = np.moveaxis(columns @ roots, 0, 1).reshape(problem.rows, members.size)
        factor = factor_of(problem._replace(dictionary=scaled), np.ones(members.size))
        return BlockPoint(self, problem, numbers, active, factor)

    def exact(self, point: BlockPoint) -> BlockPoint:
        """Return the point without evaluations from the active columns."""
        return replace(point, model=replace(self, products=None))


class Ranking(NamedTuple):
    """Gains of the best covariances of all groups, if one moves alone, and the distance."""

    gains: Matrices
    violation: float


@dataclass(frozen=True, eq=False)
class BlockPoint:
    """All groups of a problem at given covariances."""

    model: BlockModel
    problem: Problem
    numbers: Matrices  # (a,): the groups whose covariance is not zero, ascending
    active: Matrices  # (a, m, m): their covariances, padded with zeros
    factor: Factor  # of Σ

    moves_exactly = True

    @property
    def noise(self) -> Array:
        """The noise variance."""
        return self.problem.noise

    @property
    def covariances(self) -> Matrices:
        """The covariance of each of g groups, of shape (g, m, m), padded with zeros."""
        count, size = self.model.groups.members.shape
        found = np.zeros((count, size, size), dtype=self.active.dtype)
        found[self.numbers] = self.active
        return found

    parameters = covariances

    @property
    def size(self) -> int:
        """Number of rows of the problem."""
        return self.problem.rows

    @property
    def rounding(self) -> float:
        """Distance to optimality that rounding allows."""
        return rounding_distance(self.problem)

    @cached_property
    def energy(self) -> float:
        """The energy per response."""
        at, factor = self.problem, self.factor
        constant = at.outside / at.noise + at.spare * np.log(at.noise)
        return scalar(squared_norm(factor.responses) + factor.log_determinant + constant)

    @cached_property
    def blocks(self) -> list[Blocks]:
        """Metrics and explained moments of all groups, for each size of groups."""
        groups, products = self.model.groups, self.model.products
        members, present = groups.members[self.numbers], groups.present[self.numbers]
        used = np.flatnonzero(present.ravel() > 0)
        variance = float(np.trace(self.active, axis1=1, axis2=2).real.sum())
        if products is None or not products.serve(self.problem, used.size, variance):
            return exact_blocks(self.problem, self.factor, groups)
        roots = np.zeros((*members.shape, *members.shape), dtype=self.active.dtype)
        every = np.arange(len(members))
        roots[every, :, every, :] = square_root(self.active)
        used = used[np.argsort(members.ravel()[used])]
        flat = roots.reshape(members.size, members.size)[used]
        return products.blocks(self.problem, members.ravel()[used], flat)

    @cached_property
    def ranking(self) -> Ranking:
        """The gain of the best covariance of every group, and the distance to optimality."""
        prior, count = self.model.prior, self.model.groups.count
        gains, worst, where = np.zeros(count), 0.0, np.full(count, -1)
        where[self.numbers] = np.arange(self.numbers.size)
        for numbers, members, metric, explained in self.blocks:
            size, place = members.shape[1], where[numbers]
            moving = np.arange(len(numbers))
            if moving.size >= FEW:  # groups at rest have no gain, and satisfy the conditions
                moving = np.flatnonzero((place >= 0) | ~at_rest(metric, explained))
            if not moving.size:
                continue
            place, metric, explained = place[moving], metric[moving], explained[moving]
            present = np.zeros(metric.shape, dtype=np.result_type(self.active, metric))
            present[place >= 0] = self.active[place[place >= 0], :size, :size]
            _, found = prior.moves(present, metric, explained, GROUP_CANDIDATES)
            gains[numbers[moving]] = found
            # Of inactive groups the largest distance belongs to one whose gain is at least the
            # largest one divided by the number of columns, up to groups with several minima.
            largest = found[place < 0].max(initial=0.0)
            near = (place >= 0) | (not prior.full) | (found >= 0.99 * largest / size)
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
        active = np.zeros(self.model.groups.count, dtype=bool)
        active[self.numbers] = True
        chosen = candidates(active, self.ranking.gains, GROUP_CANDIDATES)
        return BlockPart(self, chosen) if chosen.size else None

    def without_vanishing(self) -> BlockPoint:
        """Return the point without the groups whose best covariance is zero, if it is not higher.

        Updates never reach zero, and every group that is not zero slows the Newton steps.
        """
        remaining, where = np.ones(self.numbers.size, dtype=bool), self.covariances
        for numbers, members, metric, explained in self.blocks:
            size = members.shape[1]
            moved, _ = self.model.prior.moves(where[numbers][:, :size, :size], metric, explained)
            places = np.searchsorted(self.numbers, numbers)
            known = np.isin(numbers, self.numbers)
            remaining[places[known]] = moved[known].any(axis=(1, 2))
        trial = self.model.at(self.problem, self.numbers[remaining], self.active[remaining])
        return trial if trial.energy <= self.energy else self

    def majorized(self) -> BlockPoint:
        """Return the point after one step of majorise–minimise in all covariances."""
        present = self.covariances
        found = np.zeros(present.shape, dtype=np.result_type(present, self.blocks[0].explained))
        for numbers, members, metric, explained in self.blocks:
            size = members.shape[1]
            found[numbers, :size, :size] = majorized_covariances(
                present[numbers][:, :size, :size], metric, explained
            )
        return self.model.evaluate(self.problem, found)

    @cached_property
    def state(self) -> State:
        """The state at active columns, as they are given or in principal axes; zero elsewhere."""
        groups, problem, axes = self.model.groups, self.problem, None
        if self.model.prior.full:
            axes, relevance = principal_axes(self.covariances, groups)
            problem = problem._replace(dictionary=axes.columns(problem.dictionary))
        else:
            relevance = groups.expand(self.covariances[:, 0, 0].real)
        active = np.flatnonzero(relevance)
        whitened = self.factor.inverse @ dense_columns(problem.dictionary, active)
        curvature, alignment = np.zeros(relevance.size), np.zeros(relevance.size)
        curvature[active] = squared_norms(whitened, -2)
        alignment[active] = squared_norms(adjoint(whitened) @ self.factor.responses, -1)
        nothing = np.zeros((0, 0))
        state = State(
            *problem, relevance, curvature, alignment, squared_norm(self.factor.responses),
            self.factor.log_determinant, self.factor.inverse, self.factor.responses,
            nothing, nothing,
        )  # fmt: skip
        if axes is None:
            return state
        if self.model.basis is not None:
            into = self.model.basis.into[groups.labels[axes.members[:, 0]]]
            axes = replace(axes, vectors=into @ axes.vectors)
        return PrincipalState.at(state, axes, groups)


class BlockPart:
    """The groups of a working set, with arrays for their moves by updates of rank m.

    `gram` is the matrix [ΦᵀΣ⁻¹Φ | ΦᵀΣ⁻¹Y] of their columns Φ, `members` and `covariances` contain
    the columns, as positions among them, and the covariances of the groups of each size.
    """

    def __init__(self, point: BlockPoint, chosen: Matrices) -> None:
        groups, size = point.model.groups, point.active.shape[1]
        self.point, self.chosen, self.prior = point, chosen, point.model.prior
        self.index = groups.columns(chosen)
        self.inside = groups.restricted(self.index)
        whitened = multiply_lower(point.factor.inverse,
                                  dense_columns(point.problem.dictionary, self.index))  # fmt: skip
        loading = adjoint(whitened) @ point.factor.responses
        self.gram = np.hstack([adjoint(whitened) @ whitened, loading])
        present = np.zeros((chosen.size, size, size), np.result_type(point.active, self.gram))
        present[np.searchsorted(chosen, point.numbers)] = point.active
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
        if not self.prior.full:
            self._polish_relevances(tolerance, limit)
            return
        violation = self.point.violation
        # Far from the minimum, turned ranges would fit the groups that were chosen first so well
        # that better ones are not found: on recordings of extended sources this ended at higher
        # minima. Near it a sweep is to end at about the square of the distance before, since Newton
        # steps converge quadratically; far from it other groups will join, and accurate steps are
        # wasted.
        near = violation <= COARSE
        whole = self.chosen.size == self.point.model.groups.count  # there are no other groups
        reduced = violation if near else ROUGH
        accuracy = max(tolerance / 4.0, 0.0 if whole else reduced * violation)
        used = [c.any(axis=(1, 2)) for c in self.covariances]
        pairs = zip(self.members, used, strict=True)
        columns = np.sort(np.concatenate([index[mask].ravel() for index, mask in pairs]))
        if not columns.size:
            return
        part = self._problem(self.index[columns])
        place = np.zeros(self.index.size, dtype=int)
        place[columns] = np.arange(columns.size)
        self.covariances = polish_covariances(
            part, [place[index] for index in self.members], self.covariances, accuracy,
            limit if near else min(limit, FAR_STEPS), near or whole,
        )  # fmt: skip

    def _problem(self, index: Matrices) -> Problem:
        """Return the problem of some columns, in their span if they are few."""
        problem = self.point.problem
        if 2 * index.size <= problem.rows:
            return problem.restricted(index)
        return problem._replace(dictionary=dense_columns(problem.dictionary, index))

    def _polish_relevances(self, tolerance: float, limit: int) -> None:
        """Take Newton steps in the relevances of groups that have one each."""
        free, relevance = np.zeros(self.index.size, dtype=bool), np.zeros(self.index.size)
        for members, covariance in zip(self.members, self.covariances, strict=True):
            loading = self.gram[members, self.gram.shape[0] :]
            slope = (np.abs(loading) ** 2).sum(axis=(1, 2))
            slope -= self.gram[members, members].real.sum(axis=1)
            weights = covariance[:, 0, 0].real
            relevance[members] = weights[:, None]
            free[members] = ((weights > 0) | (slope > 0))[:, None]
        chosen = np.flatnonzero(free)
        if not chosen.size:
            return
        part = self._problem(self.index[chosen])
        state = evaluate(part, relevance[chosen], columns=True)
        marginal = FullCovariance(self.inside.restricted(chosen))
        enough = max(tolerance / 4.0, POLISHED * self.point.violation)
        (ended,) = polish_relevances([state], marginal, tolerance=enough, limit=limit)
        relevance[chosen] = ended.relevance
        self.covariances = [
            multiples_of_identity(relevance[members[:, 0]], members.shape[1])
            for members in self.members
        ]

    def evaluated(self) -> BlockPoint:
        """Return the point at the covariances after moves and Newton steps, others zero."""
        size = self.point.active.shape[1]
        found = np.zeros((self.chosen.size, size, size), dtype=self.covariances[0].dtype)
        for (numbers, _), covariance in zip(self.inside.by_size(), self.covariances, strict=True):
            place = np.arange(covariance.shape[1])
            found[numbers[:, None, None], place[:, None], place] = covariance
        used = found.any(axis=(1, 2))
        return self.point.model.at(self.point.problem, self.chosen[used], found[used])


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


INDEPENDENT = 1e-4
"""Smallest relative eigenvalue of a Gram matrix from which singular values are accurate enough."""


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
        gram = group_grams(columns, members)
        norms = np.sqrt(np.diagonal(gram, axis1=1, axis2=2).real)
        norms = np.where(norms > 0, norms, 1.0)
        powers, axes = np.linalg.eigh(gram / (norms[:, :, None] * norms[:, None, :]))
        values = np.sqrt(np.maximum(powers, 0.0))
        poor = np.flatnonzero(~(powers[:, 0] > INDEPENDENT * powers[:, -1]))
        if poor.size:  # the Gram matrix has lost digits of small singular values
            scaled = np.moveaxis(columns[:, members[poor]] / norms[poor], 0, 1)
            _, exact, right = np.linalg.svd(scaled, full_matrices=False)
            values[poor] = 0.0
            values[poor, : exact.shape[1]] = exact
            axes[poor, :, : exact.shape[1]] = adjoint(right)
        kept = values > DROPPED * values.max(axis=1, keepdims=True)
        inverse = np.where(kept, 1.0 / np.where(kept, values, 1.0), 0.0)
        turns = axes * inverse[:, None, :] / norms[:, :, None]
        width = np.arange(members.shape[1])
        into[numbers[:, None, None], width[:, None], width] = turns
        back[numbers[:, None, None], width[:, None], width] = (
            (values * kept)[:, :, None] * adjoint(axes) * norms[:, None, :]
        )
        # Entry by entry for all groups at once, which is faster than one product for each group.
        for place in width:
            for other in width:
                found[:, members[:, place]] += (
                    columns[:, members[:, other]] * turns[:, other, place]
                )
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
