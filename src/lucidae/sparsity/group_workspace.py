"""Moves of the groups of a working set, one after the other, with updates of rank m."""

from __future__ import annotations

import bisect
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import blas

from lucidae.arrays import adjoint, matched, scalar, to_numpy
from lucidae.iteration import Below, iterate
from lucidae.sparsity.group_blocks import Matrices
from lucidae.sparsity.group_moves import MoveRule, full_moves, of_one_pair, square_root
from lucidae.sparsity.groups import Groups
from lucidae.sparsity.problem import Problem, rounding_distance
from lucidae.sparsity.state import State, evaluate

ILL_CONDITIONED = 1e-4
"""Normalised noise variance below which the energy after the moves is computed.

A gain depends on I − TᵀST, whose smallest eigenvalue is of the order of γ, with the error of S."""

TOGETHER = 8
"""Largest number of moves after which the gains of all groups of a working set are computed."""

TOGETHER_AT_MOST = 40
"""Largest number of groups that move at once, because they hardly depend on each other."""

RELATED = 0.5
"""Correlation ‖Φ_gᵀΣ⁻¹Φ_h‖/√(‖Φ_gᵀΣ⁻¹Φ_g‖‖Φ_hᵀΣ⁻¹Φ_h‖) from which groups do not move at once."""

WEAK = 0.5
"""Largest gain of a group that moves together with others, which it would change."""

WORTH = 0.01
"""Gain, relative to the largest one, that a group needs to move together with others."""

STILL = 0.3
"""A group moves if its gain is at least this share of the largest one known of other groups."""

WRONG = 2
"""Number of groups with a smaller gain after which the gains of all groups are computed."""

CHECK_MOVES = 4
"""Number of times that the gains of all groups are computed between two checks whether to stop."""

_PRODUCTS: dict[str, Callable[..., Any]] = {"d": blas.dgemm, "D": blas.zgemm}
"""Products of matrices that are added to a given one in place, by type of number."""


@dataclass(slots=True)
class GroupWorkspace:
    """Arrays for moves of the groups of a working set; the moves overwrite them."""

    # (c, c + p): the matrix [ΦᵀΣ⁻¹Φ | ΦᵀΣ⁻¹Y] of the c columns Φ of the working set, where Σ is the
    # covariance of a response and Y are the p responses of the normalised problem
    gram: Matrices
    # (k, m): the columns of each group, as positions in the working set, for each size m of groups
    members: list[Matrices]
    covariances: list[Matrices]  # (k, m, m): the prior covariances of these groups
    rule: MoveRule  # `spherical_moves` or `full_moves`
    problem: Problem  # the problem with these columns alone
    energy: float  # the energy per response, up to a constant, when `gram` was last computed
    # (k,): the groups that do not move any more, for each size of groups
    fixed: list[Matrices] | None = None

    @classmethod
    def of(
        cls, state: State, groups: Groups, covariances: list[Matrices], rule: MoveRule
    ) -> GroupWorkspace:
        """Return the arrays for all columns of a state that stores `whitened` and `loading`."""
        members = [members for _, members in groups.by_size()]
        return cls(_gram(state), members, covariances, rule, state.problem, _energy(state))

    def best_moves(self) -> list[tuple[Matrices, Matrices]]:
        """Return, for each size of groups, the best covariances of these groups and their gains."""
        columns, found = self.gram.shape[0], []
        for members, covariance in zip(self.members, self.covariances, strict=True):
            metric = self.gram[members[:, :, None], members[:, None, :]]
            loading = self.gram[members, columns:]
            found.append(self.rule(covariance, metric, loading @ adjoint(loading)))
        if self.fixed is not None:
            pairs = zip(found, self.fixed, strict=True)
            found = [(moved, np.where(fixed, 0.0, gains)) for (moved, gains), fixed in pairs]
        return found

    def best_move(self, size: int, place: int) -> tuple[Matrices, float]:
        """Return the best covariance of one group, and its gain, as `best_moves` does for all."""
        columns, index = self.gram.shape[0], self.members[size][place]
        rows = self.gram[index]
        loading, covariance = rows[:, columns:], self.covariances[size][place]
        metric, explained = rows[:, index], loading @ adjoint(loading)
        if self.fixed is not None and self.fixed[size][place]:
            return covariance, 0.0
        if self.rule is full_moves and index.size == 2 and rows.dtype.kind == "f":
            with suppress(np.linalg.LinAlgError):
                return of_one_pair(covariance, metric, explained)
        moved, gain = self.rule(covariance[None], metric[None], explained[None])
        return moved[0], float(gain[0])

    def slopes(self, members: Matrices) -> Matrices:
        """Return minus the derivative of the energy in the relevance of each group."""
        loading = self.gram[members, self.gram.shape[0] :]
        alignment = (np.abs(loading) ** 2).sum(axis=(1, 2))
        return np.asarray(alignment - self.gram[members, members].real.sum(axis=1))

    def move(self, size: int, place: int, covariance: Matrices) -> None:
        """Give one group another covariance, and update the arrays of the workspace."""
        # Woodbury's identity: with Γ changed by Δ, Σ⁻¹ loses Σ⁻¹Φ_g(I + ΔS)⁻¹ΔΦ_gᵀΣ⁻¹. Multiplied
        # by Φᵀ and [Φ, Y], this takes a product of columns and rows from the buffer.
        if self.fixed is not None:
            self._move_if_lower(size, place, covariance)
            return
        index = self.members[size][place]
        change = covariance - self.covariances[size][place]
        rows = self.gram[index, :]
        system = np.eye(index.size) + change @ rows[:, index]
        lost = np.linalg.solve(system, change) @ rows
        self._lose(index, lost)
        self.covariances[size][place] = covariance

    def apart(self, places: list[tuple[int, int]]) -> list[int]:
        """Return which of some groups hardly depend on each other: each on none before it."""
        parts = [self.members[size][place] for size, place in places]
        index = np.concatenate(parts)
        # Squared Frobenius norms of the blocks of ΦᵀΣ⁻¹Φ do not depend on the axes of the groups.
        powers = np.abs(self.gram[index[:, None], index]) ** 2
        first = np.cumsum([0, *(part.size for part in parts[:-1])])
        powers = np.add.reduceat(np.add.reduceat(powers, first, axis=0), first, axis=1)
        sizes = np.sqrt(np.diagonal(powers))
        related = powers > RELATED**2 * sizes[:, None] * sizes
        chosen, excluded = [], np.zeros(len(parts), dtype=bool)
        for number, others in enumerate(related):
            if not excluded[number]:
                chosen.append(number)
                excluded |= others
        return chosen

    def move_together(self, moves: list[tuple[int, int, Matrices, float]]) -> bool:
        """Give groups other covariances at once, if this gains half of what they gain alone."""
        parts = [self.members[size][place] for size, place, _, _ in moves]
        index, columns = np.concatenate(parts), self.gram.shape[0]
        change, first = np.zeros((index.size, index.size), dtype=self.gram.dtype), 0
        for part, (size, place, covariance, _) in zip(parts, moves, strict=True):
            here = slice(first, first + part.size)
            change[here, here] = covariance - self.covariances[size][place]
            first += part.size
        rows = self.gram[index, :]
        system = np.eye(index.size) + change @ rows[:, index]
        lost = np.linalg.solve(system, change) @ rows
        # The energy changes by log|I + ΔS| − tr(LᵀΔ(I + SΔ)⁻¹L) for L = ΦᵀΣ⁻¹Y.
        fit = float((rows[:, columns:].conj() * lost[:, columns:]).real.sum())
        sign, volume = np.linalg.slogdet(system)
        decrease = fit - float(volume)
        if not sign.real > 0 or decrease < 0.5 * sum(gain for *_, gain in moves):
            return False
        self._lose(index, lost)
        for size, place, covariance, _ in moves:
            self.covariances[size][place] = covariance
        return True

    def _lose(self, index: Matrices, lost: Matrices) -> None:
        """Subtract the columns `index` of `gram` times `lost` from it."""
        multiply = _PRODUCTS.get(self.gram.dtype.char)
        if multiply is None or lost.dtype != self.gram.dtype:
            self.gram -= self.gram[:, index] @ lost
        else:  # in place: BLAS is column-major and sees the transposes
            into = {"beta": 1.0, "c": self.gram.T, "overwrite_c": True}
            multiply(-1.0, lost.T, self.gram[:, index].T, **into)

    def move_all(self) -> float:
        """Move every group once, one after the other, and return by how much the energy fell."""
        total = 0.0
        for size, members in enumerate(self.members):
            for place in range(len(members)):
                moved, gain = self.best_move(size, place)
                if gain > 0.0:
                    self.move(size, place, moved)
                    total += gain
        return total

    def _move_if_lower(self, size: int, place: int, covariance: Matrices) -> None:
        """Change one covariance if a new factorisation has a lower energy; else fix it."""
        assert self.fixed is not None
        before = self.covariances[size][place] + 0.0
        self.covariances[size][place] = covariance
        state = self._evaluated()
        if _energy(state) <= self.energy:
            self.gram, self.energy = _gram(state), _energy(state)
        else:
            self.covariances[size][place], self.fixed[size][place] = before, True

    def make(self, moves: Callable[[], None]) -> None:
        """Call `moves`, and call it again with more care if the energy rose.

        Updates of `gram` accumulate rounding errors. The moves are then undone and repeated, each
        with a factorisation of its own.
        """
        if scalar(self.problem.noise) >= ILL_CONDITIONED:
            moves()
            return
        before = [covariance + 0.0 for covariance in self.covariances]
        try:
            moves()
            lower = _energy(self._evaluated()) <= self.energy + rounding_distance(self.problem)
        except np.linalg.LinAlgError:  # I + ΔS is singular up to rounding
            lower = False
        if lower:
            return
        self.covariances = before
        self.gram = _gram(self._evaluated())
        self.fixed = [np.zeros(len(members), dtype=bool) for members in self.members]
        moves()

    def _evaluated(self) -> State:
        """Return the state at the present covariances; its field `relevance` has no meaning."""
        columns, parts = to_numpy(self.problem.dictionary), []
        for members, covariance in zip(self.members, self.covariances, strict=True):
            turned = np.moveaxis(columns[:, members], 0, 1) @ square_root(covariance)
            parts.append(np.moveaxis(turned, 0, 1).reshape(len(columns), -1))
        scaled = matched(np.hstack(parts), self.problem.dictionary)
        ones = matched(np.ones(scaled.shape[1]), self.problem.noise)
        factor = evaluate(self.problem._replace(dictionary=scaled), ones).factor
        return evaluate(self.problem, ones, factor=factor, columns=True)


def _gram(state: State) -> Matrices:
    """Return [ΦᵀΣ⁻¹Φ | ΦᵀΣ⁻¹Y] for columns Φ, responses Y and the covariance Σ of a response."""
    whitened, loading = to_numpy(state.whitened), to_numpy(state.loading)
    return np.hstack([adjoint(whitened) @ whitened, loading])


def _energy(state: State) -> float:
    """Return the full energy per response of a state, up to a constant."""
    return scalar(state.energy_of_fit + state.log_determinant)


def descend_groups(workspace: GroupWorkspace, *, share: float, floor: float, limit: int) -> None:
    """Lower the energy by moves of single groups; the group that gains most moves first.

    They end when no gain exceeds `floor`, or `share` times the first one, or after `limit` moves.
    """
    workspace.make(lambda: _descend(workspace, share, floor, limit))


def _descend(workspace: GroupWorkspace, share: float, floor: float, limit: int) -> None:
    """Make the moves of `descend_groups` without a check of the energy after them."""
    found = workspace.best_moves()
    ends = np.cumsum([len(gains) for _, gains in found]).tolist()

    def largest_gain(_: int = 0) -> float:
        return max(float(gains.max(initial=0.0)) for _, gains in found)

    # A move changes the gains of the other groups, but mostly those of a few. Groups that hardly
    # depend on each other move together. Otherwise the gains of all groups are computed after
    # several moves, and in between only that of the group that is to move; it moves if its gain is
    # still among the largest.
    def step(count: int) -> int:
        nonlocal found
        gains, wrong = np.concatenate([gains for _, gains in found]), 0
        if together(gains):
            found = workspace.best_moves()
            return count + 1
        for tried in range(TOGETHER):
            largest = int(gains.argmax())
            if gains[largest] <= enough or wrong > WRONG:
                break
            size, place = where(largest)
            moved, gain = workspace.best_move(size, place) if tried else _at(found, size, place)
            gains[largest] = 0.0
            if gain > enough and gain >= STILL * float(gains.max()):
                workspace.move(size, place, moved)
            else:
                gains[largest], wrong = min(gain, float(gains.max())), wrong + 1
        else:
            tried = TOGETHER
        if tried:
            found = workspace.best_moves()
        return count + 1

    def together(gains: Matrices) -> bool:
        if workspace.fixed is not None or gains.max() > WEAK:
            return False
        order = np.argsort(-gains)[:TOGETHER_AT_MOST]
        order = order[gains[order] > max(enough, WORTH * float(gains[order[0]]))]
        places = [where(number) for number in order.tolist()]
        chosen = workspace.apart(places) if len(places) > 1 else []
        moves = [(*places[number], *_at(found, *places[number])) for number in chosen]
        return len(moves) > 1 and workspace.move_together(moves)

    def where(number: int) -> tuple[int, int]:
        size = bisect.bisect_right(ends, number)
        return size, number - (ends[size - 1] if size else 0)

    enough = max(share * largest_gain(), floor)
    stop = Below(largest_gain, enough)
    iterate(step, 0, stop=stop, limit=-(-limit // TOGETHER), check_every=CHECK_MOVES)


def _at(found: list[tuple[Matrices, Matrices]], size: int, place: int) -> tuple[Matrices, float]:
    """Return the covariance and the gain of one group from the results of `best_moves`."""
    moved, gains = found[size]
    return moved[place], float(gains[place])
