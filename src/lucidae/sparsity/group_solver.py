"""Solvers of the energy with a covariance matrix for every group (`group_covariance`).

A sweep evaluates all columns once, ranks the groups by the gain of their exact moves, moves those
of a working set (active, or with the largest gains), and takes Newton steps in their covariances.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from lucidae.arrays import scalar, to_numpy
from lucidae.iteration import Below, Callback, Progress, Solution, Status, iterate
from lucidae.sparsity.dictionary import adjoint_times
from lucidae.sparsity.group_blocks import Matrices, group_blocks
from lucidae.sparsity.group_covariance import (
    Axes,
    CovarianceState,
    GroupBasis,
    GroupCovariance,
    PrincipalState,
    evaluate_covariances,
    evaluate_groups,
    majorize_minimize_groups,
    orthonormal,
    principal_axes,
)
from lucidae.sparsity.group_moves import full_moves, square_root
from lucidae.sparsity.group_newton import NEWTON_STEPS, polish_groups
from lucidae.sparsity.group_screening import GroupProducts, confirmed
from lucidae.sparsity.group_workspace import GroupWorkspace, descend_groups
from lucidae.sparsity.groups import Groups
from lucidae.sparsity.problem import Problem, rounding_distance
from lucidae.sparsity.state import State, evaluate_from, flat_start
from lucidae.sparsity.working_set import (
    COARSE,
    GROUP_CANDIDATES,
    POLISHED,
    candidates,
    noise_stages,
)


def solve_groups(problem: Problem, objective: GroupCovariance, **settings: Any) -> Solution[State]:
    """Minimise the energy with respect to the covariances of all groups of columns."""
    solution, basis = fit_groups(problem, objective, **settings)
    value = basis.given(solution.value.in_principal_axes())
    return replace(solution, value=value)  # type: ignore[return-value, arg-type]


def fit_groups(
    problem: Problem,
    objective: GroupCovariance,
    *,
    method: str,
    start: Any,
    tolerance: float,
    limit: int,
    callbacks: Sequence[Callback] = (),
) -> tuple[Solution[CovarianceState], GroupBasis]:
    """Return the covariances of all groups of columns that minimise the energy."""
    groups = objective.groups
    assert groups is not None
    problem, basis = orthonormal(problem, groups)
    start = None if start is None else basis.within(start)
    reachable = max(tolerance, rounding_distance(problem))
    products = GroupProducts.of(problem, groups)
    if method == "mm":
        begun = flat_start(problem, groups) if start is None else start
        updated = repeat_group_update(problem, groups, begun, COARSE, min(limit, MM_STEPS))
        covariances = to_numpy(without_vanishing_groups(problem, updated.value).covariances)
    else:
        covariances = (
            _continuation(problem, groups, products, reachable) if start is None else start
        )
    numbers = np.flatnonzero(covariances.any(axis=(1, 2)))
    first = evaluate_covariances(problem, groups, numbers, covariances[numbers], products)
    solution = _sweeps(first, reachable, limit, callbacks)
    # Screened evaluations are accurate enough for a fit of low accuracy.
    if products is not None and reachable < COARSE:
        solution = confirmed(
            solution,
            CovarianceState.exact,
            lambda state, steps: _sweeps(state, reachable, steps, callbacks),
            limit,
        )
    return solution, basis


MM_STEPS = 30
"""Largest number of MM updates before exact moves; more did not end at a lower energy."""

CHECK_UPDATES = 10
"""MM updates between two checks of the stopping rule, which take as long as an update."""


def repeat_group_update(
    problem: Problem, groups: Groups, start: Any, tolerance: float, limit: int
) -> Solution[PrincipalState]:
    """Repeat the majorise–minimise update of the covariances of groups until they are optimal."""
    return iterate(
        lambda state: evaluate_groups(problem, groups, majorize_minimize_groups(state)),
        evaluate_groups(problem, groups, start),
        stop=Below(lambda state: state.ranking.violation, tolerance),
        limit=limit,
        check_every=CHECK_UPDATES,
        record={"energy": GroupCovariance(groups).value},
        size=problem.rows,
    )


def without_vanishing_groups(problem: Problem, state: PrincipalState) -> PrincipalState:
    """Return the state with covariances that tend to zero set to zero, if the energy does not rise.

    The updates never reach zero, and every group that is not zero slows the Newton steps.
    """
    groups, whole = state.groups, evaluate_from(state, state.relevance)
    relevance, energy = to_numpy(state.relevance), GroupCovariance(state.groups)
    remaining = np.ones(groups.count, dtype=bool)
    for numbers, members, metric, explained in group_blocks(whole, groups):
        present = relevance[members][:, :, None] * np.eye(members.shape[1])
        moved, _ = full_moves(present, metric, explained)
        remaining[numbers] = moved.any(axis=(1, 2))
    kept = to_numpy(state.covariances) * remaining[:, None, None]
    trial = evaluate_groups(problem, groups, kept)
    return trial if scalar(energy.value(trial)) <= scalar(energy.value(state)) else state


STAGES = 4.0
"""Distance to optimality at larger noise variances, at least `COARSE`, relative to the given one.
"""


def _continuation(
    problem: Problem, groups: Groups, products: GroupProducts | None, tolerance: float
) -> Matrices:
    """Return covariances from which to minimise the energy, found at decreasing noise variances."""
    size = groups.members.shape[1]
    numbers, blocks = np.zeros(0, dtype=int), np.zeros((0, size, size))
    for noise in noise_stages(scalar(problem.noise)):
        at = problem.with_noise(noise)
        first = evaluate_covariances(at, groups, numbers, blocks, products)
        state = _sweeps(first, max(COARSE, STAGES * tolerance), 20).value
        numbers, blocks = state.numbers, state.blocks
    found = np.zeros((groups.count, size, size), dtype=blocks.dtype)
    found[numbers] = blocks
    return found


SLOW = 3
"""Sweeps without a lower distance after which every second one makes exact moves alone."""

EXACT_ROUNDS = 100
"""Largest number of rounds in a sweep that makes exact moves alone."""

PATIENCE = 100
"""Sweeps without a lower distance that end the iteration; near a saddle there are many."""

IDLE = 10
"""Sweeps that lower neither distance nor energy, below rounding, that end the iteration."""

NO_GAIN = 1e-14
"""Decrease of the energy per response in a round of exact moves that counts as rounding."""


class _SweepProgress:
    """Callback that ends the iteration after `IDLE` sweeps without progress."""

    def __init__(self, objective: GroupCovariance, rounding: float) -> None:
        self.objective, self.rounding = objective, rounding
        self.distance = self.energy = np.inf
        self.since_distance = self.idle = 0

    def __call__(self, progress: Progress) -> bool:
        energy = scalar(self.objective.value(progress.state))
        nearer = progress.distance < self.distance
        lower = energy < self.energy - self.rounding * max(abs(energy), 1.0)
        self.distance = min(progress.distance, self.distance)
        self.energy = energy if lower else self.energy
        self.since_distance = 0 if nearer else self.since_distance + 1
        self.idle = 0 if nearer or lower else self.idle + 1
        return self.idle >= IDLE


def _sweeps(
    first: CovarianceState, tolerance: float, limit: int, callbacks: Sequence[Callback] = ()
) -> Solution[CovarianceState]:
    """Repeat sweeps of moves and Newton steps until the covariances are optimal.

    If the distance stops falling, every second sweep consists of exact moves alone.
    """
    objective = GroupCovariance(first.groups)
    progress = _SweepProgress(objective, rounding_distance(first.problem))

    def step(state: CovarianceState) -> CovarianceState:
        alone = progress.since_distance >= SLOW and progress.since_distance % 2
        trial = move_groups(state) if alone else improve_groups(state, tolerance)
        energy = scalar(objective.value(state))
        allowed = energy + progress.rounding * max(abs(energy), 1.0)
        return trial if scalar(objective.value(trial)) <= allowed else state

    solution: Solution[CovarianceState] = iterate(
        step,
        first,
        stop=Below(objective.violation, tolerance, patience=PATIENCE),
        limit=limit,
        record={"energy": objective.value},
        callbacks=[progress, *callbacks],
        size=first.problem.rows,
    )
    if solution.status is Status.STOPPED and progress.idle >= IDLE:
        solution = replace(solution, status=Status.STALLED)
    return solution


def improve_groups(
    state: CovarianceState, tolerance: float, newton_steps: int = NEWTON_STEPS
) -> CovarianceState:
    """Return the state after one sweep: moves and Newton steps of the groups of a working set."""
    if (working := _WorkingSet.of(state)) is None:
        return state
    part, workspace = working.part.problem, working.workspace
    count = sum(len(members) for members in workspace.members)
    floor = 0.1 * tolerance**2
    violation = state.ranking.violation
    # Far from the minimum, turned ranges would fit the groups that were chosen first so well that
    # better ones are not found: on recordings of extended sources this ended at higher minima.
    near = violation <= COARSE
    whole = len(working.chosen) == state.groups.count  # there are no other groups to be found
    # Near the minimum, a sweep is to end at about the square of the distance before: Newton steps
    # converge quadratically, and the gain of a move is of the order of its squared distance. Far
    # from it other groups will join, so that accurate steps are wasted.
    reduced = violation if near else ROUGH
    if near:  # Newton steps, which do not increase ranks, converge faster than moves
        change_ranks(workspace, floor)
    else:
        limit = min(4 * count, MOST_MOVES)
        descend_groups(workspace, share=POLISHED, floor=floor, limit=limit)
    accuracy = max(tolerance / 4.0, 0.0 if whole else reduced * violation)
    most = newton_steps if near else min(newton_steps, FAR_STEPS)
    found = polish_groups(part, workspace, accuracy, most, turning=near or whole)
    return working.state(found)


ROUGH = 0.1
"""Newton steps far from the minimum stop when the distance to optimality has fallen by this factor.
"""

FAR_STEPS = 6
"""Largest number of Newton steps in a sweep far from the minimum, where some are damped much."""

MOST_MOVES = 80
"""Largest number of moves in a sweep, up to the number that are made together."""

RANK_ROUNDS = 3
"""Largest number of times that all groups are examined for a change of the rank."""


def change_ranks(workspace: GroupWorkspace, floor: float) -> None:
    """Move groups whose best covariance has another rank and gains more than `floor`."""

    def moves() -> None:
        for _ in range(RANK_ROUNDS):
            places = []
            for size, (moved, gains) in enumerate(workspace.best_moves()):
                changed = _ranks(moved) != _ranks(workspace.covariances[size])
                chosen = np.flatnonzero((gains > floor) & changed)
                places += [(float(gains[place]), size, int(place)) for place in chosen]
            for _, size, place in sorted(places, reverse=True):
                moved, gain = workspace.best_move(size, place)
                if gain > floor:
                    workspace.move(size, place, moved)
            if not places:
                break

    workspace.make(moves)


def _ranks(covariances: Matrices) -> Matrices:
    """Return the rank of each positive semi-definite matrix of a stack."""
    return np.asarray(square_root(covariances).any(axis=1).sum(axis=1))


def move_groups(state: CovarianceState) -> CovarianceState:
    """Return the state after rounds of exact moves of all groups of a working set, one by one."""
    if (working := _WorkingSet.of(state)) is None:
        return state

    def rounds() -> None:
        for _ in range(EXACT_ROUNDS):
            if working.workspace.move_all() <= NO_GAIN:
                break

    working.workspace.make(rounds)
    return working.state(working.workspace.covariances)


FIRST_SWEEPS = 3
"""Largest number of sweeps of a fit of low accuracy that starts from covariances of zero.

After one, the errors of held-out rows were up to 2.5 times those of an accurate fit. From the fit
before, one sweep ended at the same smallest error, up to 0.1 %, in three kinds of problems."""


class CoarseGroups(NamedTuple):
    """A problem for fits of low accuracy at several noise variances."""

    problem: Problem  # the problem with orthonormal columns in every group, as by `orthonormal`
    basis: GroupBasis  # the bases of the groups
    # products by which all groups are evaluated from the active ones
    products: GroupProducts | None = None

    @classmethod
    def of(cls, problem: Problem, objective: GroupCovariance) -> CoarseGroups:
        """Return the problem with orthonormal columns in every group of the energy."""
        assert objective.groups is not None
        turned, basis = orthonormal(problem, objective.groups)
        return cls(turned, basis, GroupProducts.of(turned, objective.groups))

    def entry_noise(self) -> float:
        """Return the largest eigenvalue of any Φ_gᵀCΦ_g, the γ from which all Γ are zero."""
        loading = to_numpy(adjoint_times(self.problem.dictionary, self.problem.responses))
        norms = [
            np.linalg.norm(loading[members], 2, axis=(1, 2))
            for _, members in self.basis.groups.by_size()
        ]
        return float(np.concatenate(norms).max()) ** 2

    def fitted(
        self, noise: float, start: Any = None, newton_steps: int = NEWTON_STEPS
    ) -> CovarianceState:
        """Return the state after a sweep at one noise variance."""
        groups = self.basis.groups
        blocks = np.zeros(self.basis.into.shape) if start is None else to_numpy(start)
        used = np.flatnonzero(blocks.any(axis=(1, 2)))
        at = self.problem.with_noise(noise)
        state = evaluate_covariances(at, groups, used, blocks[used], self.products)
        for _ in range(1 if used.size else FIRST_SWEEPS):
            if state.ranking.violation <= COARSE:
                break
            state = improve_groups(state, COARSE, newton_steps)
        return state

    def in_given_columns(self, state: CovarianceState) -> tuple[Axes, Matrices]:
        """Return the principal axes of the covariances, and the variances along them."""
        axes, relevance = principal_axes(to_numpy(state.covariances), state.groups)
        into = self.basis.into[state.groups.labels[axes.members[:, 0]]]
        return replace(axes, vectors=into @ axes.vectors), relevance


class _WorkingSet(NamedTuple):
    """The groups that a sweep changes: their numbers, their columns, and arrays for their moves."""

    before: CovarianceState
    chosen: Matrices
    inside: Groups
    part: State
    workspace: GroupWorkspace

    @classmethod
    def of(cls, state: CovarianceState) -> _WorkingSet | None:
        """Return the active groups and those that gain most; None if there is neither."""
        groups, size = state.groups, state.blocks.shape[1]
        active = np.zeros(groups.count, dtype=bool)
        active[state.numbers] = True
        chosen = candidates(active, state.ranking.gains, GROUP_CANDIDATES)
        if not chosen.size:
            return None
        index = groups.columns(chosen)
        inside, part = groups.restricted(index), state.take(index)
        dtype = np.result_type(state.blocks, to_numpy(part.loading))
        present = np.zeros((len(chosen), size, size), dtype=dtype)
        present[np.searchsorted(chosen, state.numbers)] = state.blocks
        covariances = [
            present[numbers, : members.shape[1], : members.shape[1]]
            for numbers, members in inside.by_size()
        ]
        workspace = GroupWorkspace.of(part, inside, covariances, full_moves)
        return cls(state, chosen, inside, part, workspace)

    def state(self, covariances: list[Matrices]) -> CovarianceState:
        """Return the state with these covariances of the working set, others zero."""
        size = self.before.blocks.shape[1]
        found = np.zeros((len(self.chosen), size, size), dtype=covariances[0].dtype)
        for (numbers, _), covariance in zip(self.inside.by_size(), covariances, strict=True):
            place = np.arange(covariance.shape[1])
            found[numbers[:, None, None], place[:, None], place] = covariance
        before = self.before
        return evaluate_covariances(
            before.problem, before.groups, self.chosen, found, before.products
        )
