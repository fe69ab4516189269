"""The working-set solver: `descend`, its sweeps over single columns, and those over groups.

Relevances of single columns, or of groups that share one, are those of one problem, or of several
problems whose energies are added with weights (`joint`). The full energy of one problem has exact
moves of single columns, and of groups with covariances (`prior`): the best move of a block follows
from its metric S = Φ_bᵀΣ⁻¹Φ_b and its explained moment Q = Φ_bᵀΣ⁻¹CΣ⁻¹Φ_b, C = XXᵀ/n, alone. Newton
steps on all blocks of the working set follow: in the relevances, or in the covariances of groups.

In the direction N of a prior covariance the full energy has the slope tr(N(G − K)) and the
curvature 2 tr(NGNK) − tr(NGNG), where G = ΦᵀΣ⁻¹Φ and K = ΦᵀΣ⁻¹(XXᵀ/n)Σ⁻¹Φ. The first term is
positive semi-definite (Schur). The second one makes the Hessian indefinite where the model explains
little; the damping fades it out, so that a damping of one always gives a step downhill.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg

from lucidae.arrays import (
    Array,
    add_diagonal,
    adjoint,
    cholesky,
    conjugate,
    machine_epsilon,
    multiply_lower,
    namespace,
    rank_one_,
    real_part,
    solve_lower,
    squared_moduli,
    squared_norm,
    squared_norms,
    where_set,
)
from lucidae.iteration import Below, Callback, Progress, Solution, Status, iterate
from lucidae.sparsity.objectives import (
    Energy,
    Factor,
    GroupCovariance,
    Marginal,
    PrincipalState,
    State,
    evaluate,
    factorise,
    flat_start,
    leave_one_out,
    positive,
    whitened_columns,
)
from lucidae.sparsity.prior import (
    NEGLIGIBLE,
    Groups,
    Matrices,
    at_rest,
    best_change,
    full_moves,
    gain_of,
    group_distances,
    majorized_covariances,
    principal_axes,
    square_root,
)
from lucidae.sparsity.problem import (
    Problem,
    columns_in_order,
    dense_columns,
    group_grams,
    rounding_distances,
)

CANDIDATES = 150
"""Largest number of columns of relevance zero in a working set."""

GROUP_CANDIDATES = 60
"""Largest number of groups with a covariance of zero in a working set."""

PROMISING = 1e-3
"""Inactive blocks join the working set if their gain exceeds this share of the largest."""

SLOW = 3
"""Sweeps without a lower distance after which every second one makes exact moves alone."""

IDLE = 15
"""Sweeps that lower neither distance nor energy, beyond rounding, that end the iteration."""

CHECK_MOVES = 16
"""Number of coordinate moves between two checks of the stopping rule."""

CANCELLED = 1e-3
"""All alignments are computed again if one falls below this share in a move: terms cancel."""

POLISHED = 1e-2
"""Newton steps stop when the distance to optimality of all columns has fallen by this factor."""

COARSE = 1e-2
"""Distance to optimality at which fits of low accuracy end, such as stages of a continuation."""

ROUGH = 0.1
"""Newton steps far from the minimum stop when the distance to optimality has fallen by this factor.
"""

FAR_STEPS = 6
"""Largest number of Newton steps in a sweep far from the minimum, where some are damped much."""

MOST_MOVES = 80
"""Largest number of moves of groups in a sweep."""

TOGETHER = 8
"""Number of moves after which the gains of all groups of a working set are computed again."""

STILL = 0.3
"""A group moves if its gain is at least this share of the largest one known of other groups."""

ROUNDS = 100
"""Largest number of rounds in a sweep that makes exact moves alone."""

NO_GAIN = 1e-14
"""Decrease of the energy per response in a round of exact moves that counts as rounding."""

NEWTON_STEPS = 30
"""Largest number of Newton steps on a working set."""

FIRST_DAMPING = 1e-4
SMALLEST_DAMPING = 1e-12

DEFINITE = 1.0
"""Damping at and above which the damped Hessian matrix is positive definite."""

ROUNDING = 0.1
"""Share of the damping that is added to the Hessian's diagonal, for nearly dependent columns."""

NEAR = 1e-3
"""Distance to optimality below which a Newton step may be judged by the distance after it."""

LARGEST_DAMPING = 1e8
"""Damping at which Newton steps in covariances end, because none lowers the energy."""

FADED = 0.1
"""Smallest damping after a step in covariances that was impossible or raised the energy."""

MOST_TURNS = 400
"""Largest number of parameters by which ranges may turn; if there are more, they stay."""

DROPPED = 1e-10
"""Singular values of a group's unit columns below this share of the largest count as zero."""

LIFT = 1e-2
"""Smallest relevance from which updates start, relative to that of `flat_start`."""

STAGE = 10.0
"""Factor by which the noise variance is divided from one stage of a continuation to the next."""

STAGE_SWEEPS = 20
"""Largest number of sweeps in a stage of a continuation."""


# 1. The solver, for single columns ----------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Point:
    """Parameters of an energy, and what the sweeps of the solver need of them.

    They are the relevances of all columns or, with exact moves of groups, the covariances (g, m, m)
    of all groups in orthonormal bases, padded with zeros.
    """

    problems: list[Problem]
    parameters: Any
    objective: Any
    shares: tuple[float, ...] = (1.0,)  # weights of the problems
    basis: Any = None  # orthonormal columns of the groups, if they have covariances


def descend(first: Any, settings: SolverSettings) -> Solution[Any]:
    """Minimise an energy by sweeps over working sets of blocks, from the point `first`.

    A sweep has five phases: 1) one factorisation of Σ, and the gains of moves of all blocks, 2) the
    choice of a working set, 3) exact moves of single blocks of it, 4) Newton steps on all of them,
    and 5) the check of the conditions of optimality of all blocks. The phases 2) to 4) are `swept`,
    for columns below, and for groups further down.
    """
    rounding = max(float(rounding_distances(problem.noise)) for problem in first.problems)
    reachable = max(settings.tolerance, rounding)
    lowest, waited, idle = [np.inf, np.inf], 0, 0

    def noticed(progress: Progress) -> bool:
        nonlocal waited, idle
        point = progress.state
        nearer = progress.distance < lowest[0]
        lower = point.energy < lowest[1] - rounding * max(abs(point.energy), 1.0)
        lowest[0] = min(lowest[0], progress.distance)
        lowest[1] = point.energy if lower else lowest[1]
        waited, idle = 0 if nearer else waited + 1, 0 if nearer or lower else idle + 1
        return idle >= IDLE

    def step(point: Any) -> Any:
        # 1) to 4) If the distance has stopped falling, every second sweep makes exact moves alone.
        alone = waited >= SLOW and waited % 2 == 1
        trial = point.swept(reachable, alone, NEWTON_STEPS)
        # Moves and steps that raise the energy by rounding errors are not taken.
        allowed = point.energy + rounding * max(abs(point.energy), 1.0)
        return trial if not trial.energy > allowed else point

    # 5) Check: the distance to optimality of all blocks.
    size = max(len(problem.responses) for problem in first.problems)
    checks = replace(settings, tolerance=reachable, callbacks=[noticed, *settings.callbacks])
    found = iterated(step, first, checks, size)
    stalled = found.status is Status.STOPPED and idle >= IDLE
    return replace(found, status=Status.STALLED) if stalled else found


class ColumnPoint(Point):
    """Relevances of all columns, of one problem or of several that share them."""

    objective: Energy

    @cached_property
    def states(self) -> list[State]:
        """The states of the problems: one factorisation, and curvatures of all columns."""
        return [evaluate(problem, self.parameters, columns=True) for problem in self.problems]

    @cached_property
    def energy(self) -> float:
        """The energy per response, averaged over the problems."""
        return float(self.objective.value(averaged(self.states, self.shares)))

    @cached_property
    def violation(self) -> float:
        """Distance to the optimality (KKT) conditions."""
        return float(self.objective.violation(averaged(self.states, self.shares)))

    def swept(self, tolerance: float, alone: bool, newton_steps: int) -> ColumnPoint:
        """Return the point after exact moves and Newton steps on a working set of columns."""
        energy: Any = self.objective.marginal
        groups, w, state = energy.groups, self.parameters, averaged(self.states, self.shares)
        # 2) Working set: active columns, and those that gain most by becoming active.
        exact = energy.exact_coordinates and groups is None and len(self.problems) == 1
        if exact:
            curvature = positive(state.curvature)  # zero columns gain nothing
            change = best_change(w, curvature, state.alignment)
            gains = gain_of(change, curvature, state.alignment)
            index = candidates(w > 0, gains, CANDIDATES)
        else:
            pressure = energy.pressure(state)
            pressure = positive(pressure if groups is None else groups.share(pressure))
            excess = np.maximum(-energy.gradient(state) / pressure, 0.0)
            index = candidates(w > 0, excess, CANDIDATES)
            if groups is not None:
                index = groups.columns(np.unique(groups.labels[index]))
        if not index.size:
            return self
        # 3) Exact moves of single relevances, that which gains most first.
        if exact:
            whitened, loading = whitened_columns(state, index)
            gram = np.hstack([adjoint(whitened) @ whitened, loading])
            w, free = descend_coordinates(w, index, gram, 1e-2 * tolerance**2)
            index = index[free]
        # 4) Newton steps. With fewer columns than rows the problems have as many rows as columns.
        if (alone and exact) or not index.size:
            return replace(self, parameters=w)
        share = POLISHED if exact else 0.0  # otherwise few columns join later
        if groups is not None:
            energy = replace(energy, groups=groups.restricted(index))
        small = [evaluate(p.restricted(index), w[index], columns=True) for p in self.problems]
        ended = polish_relevances(
            small, energy, self.shares, limit=newton_steps,
            tolerance=max(tolerance / 4.0, share * self.violation),
        )  # fmt: skip
        found = w.copy()
        found[index] = ended[0].relevance
        return replace(self, parameters=found)

    def updated(self, rule: str) -> ColumnPoint:
        """Return the point after an update of the relevances."""
        state = averaged(self.states, self.shares)
        return replace(self, parameters=self.objective.update(rule)(state))

    def without_vanishing(self) -> ColumnPoint:
        """Return the point with relevances that tend to zero set to zero."""
        found = remaining_relevances(self.states, self.objective.marginal, self.shares)
        return replace(self, parameters=found)


def candidates(active: Any, gains: Any, most: int) -> np.ndarray[Any, Any]:
    """Return ascending indices of active items and of inactive ones with the largest gains."""
    # Candidates far below the best gain rarely survive the first moves, and each one makes the
    # buffers of the moves and the Newton system larger.
    promise = np.where(active, 0.0, gains)
    count = min(most, int(np.count_nonzero(promise > PROMISING * gains.max())))
    best = np.argpartition(-promise, count - 1)[:count] if count else np.empty(0, dtype=int)
    return np.union1d(np.flatnonzero(active), best)


def descend_coordinates(
    relevance: Array, index: Matrices, gram: Matrices, floor: float
) -> tuple[Array, Matrices]:
    """Lower the energy by moves of single columns `index` until none lowers it by much.

    `gram` is [ΦᵀΣ⁻¹Φ | ΦᵀΣ⁻¹Y] for these columns, which is overwritten. The second result masks the
    columns that Newton steps may change.
    """
    size, w = index.size, relevance[index]
    curvature = np.diagonal(gram[:, :size]).real + 0.0
    enough = 0.0
    for _ in range(-(-4 * size // CHECK_MOVES)):
        # Alignments, which moves update by differences, are computed again from `gram`.
        alignment = squared_norms(gram[:, size:], -1)
        gains = gain_of(best_change(w, curvature, alignment), curvature, alignment)
        enough = enough or max(1e-2 * float(gains.max()), floor)
        if not gains.max() > enough:
            break
        for _ in range(CHECK_MOVES):
            # Sherman–Morrison: Σ⁻¹ loses sΣ⁻¹φφᵀΣ⁻¹ with s = Δ/(1 + Δz). Multiplied by Φᵀ and
            # [Φ, Y], this takes s times the outer product of column φ and row φ from the buffer.
            # The column is the conjugate c̄ of the row's left part c. So a row r of the right part
            # becomes r − sc̄ⱼy with the row's right part y, and ‖r‖² becomes ‖r‖² − 2s Re(cⱼ rȳᵀ) +
            # s²|cⱼ|²‖y‖².
            changes = best_change(w, curvature, alignment)
            best = int(gain_of(changes, curvature, alignment).argmax())
            change, row = float(changes[best]), gram[best] + 0.0
            coupling, response = row[:size], row[size:]
            shrink = change / (1.0 + change * float(coupling[best].real))
            across = (coupling * (gram[:, size:] @ response.conj())).real
            rank_one_(gram, coupling.conj(), row, -shrink)
            w[best] = max(float(w[best]) + change, 0.0)
            lost = shrink * squared_moduli(coupling)
            power = shrink * float(squared_norm(response[None]))
            updated = alignment + (power * lost - 2.0 * shrink * across)
            if (updated < CANCELLED * alignment).any():
                updated = squared_norms(gram[:, size:], -1)
            curvature, alignment = curvature - lost, updated
    # Columns at zero whose derivative is positive stay there in every Newton step.
    found = relevance.copy()
    found[index] = w
    return found, (w > 0) | (alignment > curvature)


def polish_relevances(
    states: Sequence[State], marginal: Marginal, shares: Sequence[float] = (1.0,), *,
    tolerance: float, limit: int = NEWTON_STEPS,
) -> tuple[State, ...]:  # fmt: skip
    """Return the states after damped Newton steps on all relevances of a working set."""
    damping = namespace(states[0].noise).full_like(states[0].noise, FIRST_DAMPING)
    stop = Below(
        lambda point: marginal.violation(averaged(point[0], shares)), tolerance, patience=10
    )
    begin = (tuple(states), damping)
    return iterate(
        lambda point: newton_step(*point, marginal, shares), begin, stop=stop, limit=limit
    ).value[0]


def newton_step(
    states: Sequence[State], damping: Array, marginal: Marginal, shares: Sequence[float] = (1.0,)
) -> tuple[tuple[State, ...], Array]:
    """Return states and damping after one damped Newton step, for one problem or a stack of them.

    If `is_accepted` refuses it, the relevances stay the same and the damping is raised.
    """
    xp, relevance = namespace(damping), states[0].relevance
    direction = newton_direction(states, damping, marginal, shares)
    one = relevance.ndim == 1
    if one and bool(xp.any(xp.isnan(direction))):  # in a stack, this problem would wait
        damping = _raised(damping, direction)
        direction = newton_direction(states, damping, marginal, shares)
    trial = xp.maximum(relevance + direction, 0.0 * relevance)
    reached = tuple(evaluate(state.problem, trial, columns=True) for state in states)
    before, after = averaged(states, shares), averaged(reached, shares)
    accepted = is_accepted(
        marginal.reduced_value(before),
        marginal.reduced_value(after),
        before.noise,
        lambda: (marginal.violation(before), marginal.violation(after)),
        lazily=one,
    )
    lowered = xp.maximum(damping / 10.0, xp.full_like(damping, SMALLEST_DAMPING))
    raised = _raised(damping, direction)
    if one:
        return (reached, lowered) if bool(accepted) else (tuple(states), raised)
    chosen = [
        xp.where(xp.reshape(accepted, accepted.shape + (1,) * (new.ndim - accepted.ndim)), new, old)
        for new, old in zip(after[5:], before[5:], strict=True)
    ]
    return (State(*before[:5], *chosen),), xp.where(accepted, lowered, raised)


def _raised(damping: Array, direction: Array) -> Array:
    """Return ten times the damping, at least `DEFINITE` if the step was indefinite."""
    xp = namespace(damping)
    safe = where_set(0.0 * damping, xp.any(xp.isnan(direction), axis=-1), DEFINITE)
    return xp.maximum(10.0 * damping, safe)


def newton_direction(
    states: Sequence[State], damping: Array, marginal: Marginal, shares: Sequence[float] = (1.0,)
) -> Array:
    """Return the damped Newton step: the change of each relevance.

    Only relevances that are positive, or with which the energy falls, change. The Hessian is scaled
    by the pressures, so that the step has no units, and is NaN if it is not definite.
    """
    # With N = φⱼφⱼᵀ the Hessian is 2 Re(G∘K̄) − |G|∘|G|; another log-volume replaces |G|∘|G| by its
    # own concave part. Relevances of groups have sums over their columns.
    xp, groups, mean, hessian = namespace(damping), marginal.groups, averaged(states, shares), 0.0
    for state, share in zip(states, shares, strict=True):
        metric = adjoint(state.whitened) @ state.whitened
        explained = state.loading @ adjoint(state.loading)
        concave = marginal.concavity(metric, marginal.pressure(state))
        concave = (1.0 - damping[..., None, None]) * concave
        hessian = hessian + share * (real_part(2.0 * metric * conjugate(explained)) - concave)
    relevance, pressure = mean.relevance, marginal.pressure(mean)
    slope = mean.alignment - pressure
    if groups is not None:
        hessian = groups.total(groups.total(hessian).mT)
        slope, pressure = groups.total(slope), groups.total(pressure)
        relevance = groups.gather(relevance)[..., 0]
    free = (relevance > 0) | (slope > 0)
    units = where_set(1.0 / positive(pressure), ~free, 0.0)
    fixed = xp.astype(~free, relevance.dtype)
    scaled = hessian * units[..., :, None] * units[..., None, :]
    factor, _ = cholesky(add_diagonal(scaled, ROUNDING * damping[..., None] + fixed))
    half = solve_lower(factor, (slope * units)[..., None])
    direction = units * solve_lower(factor, half, transpose=True)[..., 0]
    return direction if groups is None else groups.expand(direction)


def is_accepted(
    energy: Any, after: Any, noise: Any, distances: Callable[[], tuple[Any, Any]], *,
    lazily: bool = True,
) -> Any:  # fmt: skip
    """Tell whether a Newton step is accepted: it lowers the energy, or the distance.

    Near a minimum a step gains about the square of the distance, which may be less than the
    rounding error of the energy. Then the distance must halve.
    """
    size = abs(energy) + 1.0
    lower = after <= energy + 16.0 * machine_epsilon(noise) * size
    if lazily and bool(lower):
        return lower
    before, reached = distances()
    same = after <= energy + rounding_distances(noise) * size
    return lower | (same & (before <= NEAR) & (reached <= 0.5 * before))


def averaged(states: Sequence[State], shares: Sequence[float]) -> State:
    """Return the state with the derivatives and the full energy of problems that share relevances.

    They are sums over the problems, weighted by `shares`, and the noise variance is the smallest.
    """
    first = states[0]
    if len(states) == 1:
        return first
    xp, parts = namespace(first.noise), list(zip(shares, states, strict=True))
    noise = first.noise
    for state in states[1:]:
        noise = xp.minimum(noise, state.noise)
    volumes = (p * (at.log_determinant + at.spare * xp.log(at.noise)) for p, at in parts)
    zero = 0.0 * noise
    return first._replace(
        noise=noise, outside=zero, spare=zero,
        curvature=sum(p * at.curvature for p, at in parts),
        alignment=sum(p * at.alignment for p, at in parts),
        fit=sum(p * at.energy_of_fit for p, at in parts), log_determinant=sum(volumes),
    )  # fmt: skip


def remaining_relevances(
    states: Sequence[State], marginal: Any, shares: Sequence[float] = (1.0,)
) -> Array:
    """Return the relevances of problems, or stacks of them, with those set to zero that tend to it.

    These are relevances far below γ if the energy falls as they shrink and, for single columns with
    exact moves, those whose minimiser is zero, if that does not raise the energy.
    """
    state = averaged(states, shares)
    w, xp = state.relevance, namespace(state.relevance)
    vanishing = (w < 1e-6 * state.noise[..., None]) & (marginal.gradient(state) > 0)
    remaining = xp.where(vanishing, 0.0 * w, w)
    if not marginal.exact_coordinates or marginal.groups is not None:
        return remaining
    # The slope of the energy at zero, Σ s − q², is not negative if zero is the minimiser. Each
    # minimiser holds the others fixed; setting many to zero at once may raise the energy.
    slope: Any = 0.0
    for share, each in zip(shares, states, strict=True):
        sparsity, quality = leave_one_out(each)
        slope = slope + share * (sparsity - quality)
    trial = xp.where(slope >= 0, 0.0 * w, remaining)
    reached = averaged([evaluate(Problem(*each[:5]), trial) for each in states], shares)
    lower = marginal.value(reached) <= marginal.value(state)
    return xp.where(lower[..., None], trial, remaining)


# 2. The same for groups with covariances ----------------------------------------------------------


class BlockPoint(Point):
    """Covariances of all groups of the columns of one problem."""

    @property
    def groups(self) -> Groups:
        """The groups of columns."""
        found: Groups = self.objective.groups
        return found

    @cached_property
    def factor(self) -> Factor:
        """The factorisation of Σ = Φ_aTTᵀΦ_aᵀ + γI with the roots T of the covariances."""
        (problem,) = self.problems
        half = [np.zeros((len(problem.responses), 0))]
        for numbers, members in self.groups.by_size:
            present = self.present(numbers, members.shape[1])
            active = present.any(axis=(1, 2))
            columns = np.moveaxis(problem.dictionary[:, members[active]], 0, 1)
            columns = columns @ square_root(present[active])
            half.append(np.moveaxis(columns, 0, 1).reshape(len(problem.responses), -1))
        scaled = np.hstack(half)
        return factorise(problem._replace(dictionary=scaled), np.ones(scaled.shape[1]))

    @cached_property
    def energy(self) -> float:
        """The energy per response."""
        at, factor = self.problems[0], self.factor
        constant = at.outside / at.noise + at.spare * np.log(at.noise)
        return float(squared_norm(factor.responses) + factor.log_determinant + constant)

    def present(self, numbers: Matrices, size: int) -> Matrices:
        """Return the covariances of some groups of one size, without padding."""
        return np.asarray(self.parameters[numbers, :size, :size])

    @cached_property
    def blocks(self) -> list[tuple[Matrices, ...]]:
        """Numbers (k,), members (k, m), metrics S and moments Q of the groups of each size."""
        found: list[tuple[Matrices, ...]] = []
        for numbers, members in self.groups.by_size:
            columns = columns_in_order(self.problems[0].dictionary, members.ravel())
            whitened = multiply_lower(self.factor.inverse, columns)
            loading = adjoint(self.factor.responses) @ whitened
            places = np.arange(members.size).reshape(members.shape)
            grams = group_grams(whitened, places), group_grams(loading, places)
            found.append((numbers, members, *grams))
        return found

    @cached_property
    def ranking(self) -> tuple[Matrices, float]:
        """The gain of the best covariance of every group, and the distance to optimality."""
        gains, worst = np.zeros(self.groups.count), 0.0
        for numbers, members, metric, explained in self.blocks:
            present = self.present(numbers, members.shape[1])
            # Groups at rest have no gain, and satisfy the conditions.
            moving = np.flatnonzero(present.any(axis=(1, 2)) | ~at_rest(metric, explained))
            blocks = present[moving], metric[moving], explained[moving]
            if moving.size:
                gains[numbers[moving]] = full_moves(*blocks)[1]
                worst = max(worst, float(group_distances(*blocks).max()))
        return gains, worst

    @property
    def violation(self) -> float:
        """Distance to the optimality (KKT) conditions."""
        return self.ranking[1]

    def swept(self, tolerance: float, alone: bool, newton_steps: int) -> BlockPoint:
        """Return the point after exact moves and Newton steps on a working set of groups."""
        # 2) Working set: active groups, and those that gain most by becoming active. `gram` is
        # [ΦᵀΣ⁻¹Φ | ΦᵀΣ⁻¹Y] of their columns, `members` are these as positions among them.
        active = self.parameters.any(axis=(1, 2))
        chosen = candidates(active, self.ranking[0], GROUP_CANDIDATES)
        if not chosen.size:
            return self
        index = self.groups.columns(chosen)
        inside = self.groups.restricted(index).by_size
        members = [places for _, places in inside]
        whitened = multiply_lower(
            self.factor.inverse, dense_columns(self.problems[0].dictionary, index)
        )
        loading = adjoint(whitened) @ self.factor.responses
        gram = np.hstack([adjoint(whitened) @ whitened, loading])
        kind = np.result_type(self.parameters, gram)
        covariances = [
            self.present(chosen[numbers], places.shape[1]).astype(kind)
            for numbers, places in inside
        ]
        # 3) Exact moves. Near the minimum Newton steps, which do not increase ranks, converge
        # faster than moves: only groups whose rank changes move.
        before, near = [each + 0.0 for each in covariances], self.violation <= COARSE
        try:
            if alone:
                for _ in range(ROUNDS):
                    if move_all(gram, members, covariances) <= NO_GAIN:
                        break
            else:
                move_best(gram, members, covariances, 0.1 * tolerance**2, near)
        except np.linalg.LinAlgError:  # I + ΔS is singular up to rounding
            covariances = before
        # 4) Newton steps. Far from the minimum, turned ranges would fit the groups that were chosen
        # first so well that better ones are not found: on recordings of extended sources this
        # ended at higher minima. Near it a sweep is to end at about the square of the distance
        # before, since Newton steps converge quadratically; far from it other groups will join,
        # and accurate steps are wasted.
        if not alone:
            whole = chosen.size == self.groups.count  # there are no other groups
            reduced = 0.0 if whole else self.violation if near else ROUGH
            covariances = polish_covariances(
                self.problems[0], [index[places] for places in members], covariances,
                max(tolerance / 4.0, reduced * self.violation),
                newton_steps if near else min(newton_steps, FAR_STEPS), near or whole,
            )  # fmt: skip
        found = np.zeros(self.parameters.shape, dtype=kind)
        for (numbers, places), covariance in zip(inside, covariances, strict=True):
            found[chosen[numbers], : places.shape[1], : places.shape[1]] = covariance
        return replace(self, parameters=found)

    def without_vanishing(self) -> BlockPoint:
        """Return the point without the groups whose best covariance is zero, if it is not higher.

        Updates never reach zero, and every group that is not zero slows the Newton steps.
        """
        remaining = self.parameters + 0.0
        for numbers, members, metric, explained in self.blocks:
            moved, _ = full_moves(self.present(numbers, members.shape[1]), metric, explained)
            remaining[numbers[~moved.any(axis=(1, 2))]] = 0.0
        trial = replace(self, parameters=remaining)
        return trial if trial.energy <= self.energy else self

    def updated(self, rule: str) -> BlockPoint:  # noqa: ARG002
        """Return the point after one step of majorise–minimise in all covariances."""
        kind = np.result_type(self.parameters, self.blocks[0][3])
        found = np.zeros(self.parameters.shape, dtype=kind)
        for numbers, members, metric, explained in self.blocks:
            size = members.shape[1]
            found[numbers, :size, :size] = majorized_covariances(
                self.present(numbers, size), metric, explained
            )
        return replace(self, parameters=found)

    @cached_property
    def states(self) -> list[State]:
        """The state in the principal axes of the groups, at active columns; zero elsewhere."""
        axes, relevance = principal_axes(self.parameters, self.groups)
        factor, turned = self.factor, self.problems[0].dictionary @ axes.turn(relevance.size)
        active = np.flatnonzero(relevance)
        whitened = factor.inverse @ turned[:, active]
        curvature, alignment = np.zeros(relevance.size), np.zeros(relevance.size)
        curvature[active] = squared_norms(whitened, -2)
        alignment[active] = squared_norms(adjoint(whitened) @ factor.responses, -1)
        fit, nothing = squared_norm(factor.responses), factor.inverse[:0, :0]
        state = State(
            *self.problems[0]._replace(dictionary=turned), relevance, curvature, alignment, fit,
            factor.log_determinant, factor.inverse, factor.responses, nothing, nothing,
        )  # fmt: skip
        into = self.basis.into[self.groups.labels[axes.members[:, 0]]]
        return [PrincipalState.at(state, replace(axes, vectors=into @ axes.vectors), self.groups)]


def move_best(
    gram: Matrices, members: list[Matrices], covariances: list[Matrices], floor: float, near: bool
) -> None:
    """Move single groups to their best covariance, that which gains most first.

    It ends if no gain exceeds `floor`, or a hundredth of the first one unless `near`: then only
    groups whose rank changes move.
    """

    def moves(size: int, places: Any) -> tuple[Matrices, Matrices]:
        index = members[size][places]
        metric = gram[index[:, :, None], index[:, None, :]]
        loading = gram[index, gram.shape[0] :]
        return full_moves(covariances[size][places], metric, loading @ adjoint(loading))

    where = [(size, place) for size, index in enumerate(members) for place in range(len(index))]
    enough = floor
    for count in range(-(-min(4 * len(where), MOST_MOVES) // TOGETHER)):
        found = [moves(size, slice(None)) for size in range(len(members))]
        gains = np.concatenate([gains for _, gains in found])
        if near:
            pairs = [(moved, now) for (moved, _), now in zip(found, covariances, strict=True)]
            ranks = [[square_root(each).any(axis=1).sum(axis=1) for each in p] for p in pairs]
            gains = gains * np.concatenate([after != now for after, now in ranks])
        elif count == 0:
            enough = max(POLISHED * float(gains.max(initial=0.0)), floor)
        # A move changes the gains of the other groups, but mostly those of a few. They are computed
        # again after several moves, and in between only that of the group that is to move, which
        # it does if its gain is still among the largest.
        if not gains.max(initial=0.0) > enough:
            return
        for _ in range(TOGETHER):
            best = int(gains.argmax())
            if not gains[best] > enough:
                break
            size, place = where[best]
            (moved,), (gain,) = moves(size, slice(place, place + 1))
            gains[best] = 0.0
            if gain > enough and gain >= STILL * gains.max():
                change_covariance_(gram, members[size][place], moved - covariances[size][place])
                covariances[size][place] = moved
            else:
                gains[best] = min(gain, gains.max())


def move_all(
    gram: Matrices, members: list[Matrices], covariances: list[Matrices], moves: Any = full_moves
) -> float:
    """Move every group once, one after the other, and return by how much the energy fell."""
    total, columns = 0.0, gram.shape[0]
    for groups, present in zip(members, covariances, strict=True):
        for place, index in enumerate(groups):
            rows = gram[index]
            loading = rows[:, columns:]
            explained = loading @ adjoint(loading)
            moved, gain = moves(present[place][None], rows[:, index][None], explained[None])
            if gain[0] > 0.0:
                change_covariance_(gram, index, moved[0] - present[place])
                present[place] = moved[0]
                total += float(gain[0])
    return total


def change_covariance_(gram: Matrices, index: Matrices, change: Matrices) -> None:
    """Update [ΦᵀΣ⁻¹Φ | ΦᵀΣ⁻¹Y] after the covariance of the columns `index` has changed."""
    # Woodbury's identity: with Γ changed by Δ, Σ⁻¹ loses Σ⁻¹Φ_g(I + ΔS)⁻¹ΔΦ_gᵀΣ⁻¹. Multiplied by Φᵀ
    # and [Φ, Y], this takes a product of columns and rows from the buffer.
    rows = gram[index, :]
    lost = np.linalg.solve(np.eye(index.size) + change @ rows[:, index], change) @ rows
    gram -= gram[:, index] @ lost


# Covariances. Γ_g = TTᵀ, with as many columns in T as its rank, becomes (T + UF)(I + E)(T + UF)ᵀ
# with a symmetric E, where U spans the complement of the range: it stays positive semi-definite and
# of its rank, and its range may turn. Energy and derivatives follow from the columns Φ_gT and Φ_gU.


class Roots(NamedTuple):
    """Covariances of the groups of a working set, and values computed from their roots T."""

    covariances: list[Matrices]  # (k, m, m) for each size m of groups
    beside: Matrices  # (a, u) and (a, r): U and T of all groups in blocks, for their a columns Φ
    roots: Matrices
    metric: Matrices  # (u + r, u + r): the matrices G and K of the columns [ΦU, ΦT]
    explained: Matrices
    # the directions N = c eᵢeⱼᴴ plus its adjoint: j is a column of T, i one of U, or of T before j
    rows: Matrices
    latents: Matrices
    weights: Matrices  # the numbers c
    energy: float  # the energy per response, up to a constant
    distance: float  # to optimality among covariances of the same ranks


def polish_covariances(
    problem: Problem, members: list[Matrices], covariances: list[Matrices], tolerance: float,
    limit: int, turning: bool,
) -> list[Matrices]:  # fmt: skip
    """Return the covariances of the groups `members` of a problem after damped Newton steps."""
    # Groups whose covariance is zero stay at zero, so they are left out.
    used = [covariance.any(axis=(1, 2)) for covariance in covariances]
    members = [index[mask] for index, mask in zip(members, used, strict=True)]
    index = np.concatenate([columns.ravel() for columns in members])
    if not index.size:
        return covariances
    part = problem.restricted(index)
    zeros = np.split(~part.dictionary.any(axis=0), np.cumsum([i.size for i in members])[:-1])
    owner = np.repeat(np.arange(sum(map(len, members))),
                      [columns.shape[1] for columns in members for _ in columns])  # fmt: skip

    def at(found: list[Matrices]) -> Roots:
        # 1) The axes T and U. Columns of zeros get the eigenvalue −1: no axis contains them.
        roots, beside = [], []
        for stack, missing in zip(found, zeros, strict=True):
            values, vectors = np.linalg.eigh(
                stack - missing.reshape(stack.shape[:2])[:, :, None] * np.eye(stack.shape[1])
            )
            inside = values > NEGLIGIBLE * values[:, -1:]
            roots += list(vectors * np.sqrt(np.where(inside, values, 0.0))[:, None, :])
            beside += list(vectors * (~inside & (values > -0.5))[:, None, :])
        T, U = scipy.linalg.block_diag(*roots), scipy.linalg.block_diag(*beside)
        kept, free = T.any(axis=0), U.any(axis=0)
        own, other = owner[kept], owner[free]
        if not turning or (other[:, None] == own).sum() > MOST_TURNS:
            free, other = free[:0], other[:0]
            U = U[:, :0]
        T, U = T[:, kept], U[:, free] if free.size else U
        # 2) Whitened columns ΦU and ΦT, and from these G, K and the energy.
        both = part.dictionary @ np.hstack([U, T])
        count, spanning = U.shape[1], both[:, U.shape[1] :]
        covariance = spanning @ adjoint(spanning) + float(part.noise) * np.eye(len(both))
        try:
            lower = np.linalg.cholesky(covariance)
        except np.linalg.LinAlgError:
            return Roots(found, U, T, both, both, own, own, own, np.inf, np.inf)
        solved = solve_lower(lower, np.hstack([both, part.responses]))
        whitened, targets = solved[:, : both.shape[1]], solved[:, both.shape[1] :]
        energy = (np.abs(targets) ** 2).sum() + 2.0 * np.log(np.diagonal(lower).real).sum()
        loading = adjoint(whitened) @ targets
        metric, explained = adjoint(whitened) @ whitened, loading @ adjoint(loading)
        # 3) Directions, and the slopes along them, for columns of unit norm in the metric.
        same = np.vstack([other[:, None] == own, np.triu(own[:, None] == own)])
        rows, latents = np.nonzero(same)
        latents += count
        powers = np.diagonal(metric).real
        powers = np.where(powers > 0, powers, 1.0)
        slope = np.abs(explained - metric) ** 2 / (powers[:, None] * powers)
        pairs = np.zeros(slope.shape, dtype=bool)
        pairs[rows, latents] = pairs[latents, rows] = True
        distance = float(np.sqrt((slope * pairs).sum(axis=1).max(initial=0.0)))
        weights: Any = np.where(rows == latents, 0.5, 0.5**0.5)
        if np.iscomplexobj(metric):
            mixed = rows != latents
            weights = np.concatenate([weights, 1j * weights[mixed]])
            rows, latents = (np.concatenate([i, i[mixed]]) for i in (rows, latents))
        return Roots(found, U, T, metric, explained, rows, latents, weights, energy, distance)

    def step(point: tuple[Roots, float]) -> tuple[Roots, float]:
        old, damping = point
        roots = _newton_roots(old, damping)
        if roots is not None:
            moved, first = [], 0
            for columns in members:
                # blocks of TTᵀ, for groups in the order of their columns
                place = first + np.arange(columns.size).reshape(columns.shape)
                half, first = roots[place], first + columns.size
                moved.append(half @ adjoint(half))
            trial = at(moved)
            if is_accepted(
                old.energy, trial.energy, part.noise, lambda: (old.distance, trial.distance)
            ):
                return trial, max(damping / 10.0, SMALLEST_DAMPING)
        return old, max(10.0 * damping, FADED)

    def distance(point: tuple[Roots, float]) -> float:
        return 0.0 if point[1] > LARGEST_DAMPING else point[0].distance

    pairs = zip(covariances, used, strict=True)
    start = at([covariance[mask] for covariance, mask in pairs]), FIRST_DAMPING
    stop = Below(distance, tolerance, patience=10)
    last = iterate(step, start, stop=stop, limit=limit).value[0]
    found = [np.zeros_like(covariance) for covariance in covariances]
    for covariance, mask, ended in zip(found, used, last.covariances, strict=True):
        covariance[mask] = ended
    return found


def _newton_roots(at: Roots, damping: float) -> Matrices | None:
    """Return the roots T after a damped Newton step; None if the Hessian is indefinite."""
    G, K, i, j, a, count = *at[3:8], at.beside.shape[1]
    if not i.size:
        return None
    slope, faded = 2.0 * (np.conj(a) * (G - K)[i, j]).real, max(1.0 - damping, 0.0)
    # tr(N_pGN_qM) with N_p = a eᵢeⱼᴴ + ā eⱼeᵢᴴ is the sum of four products of entries of G and M.
    M, total = 2.0 * K - faded * G, np.zeros((i.size, i.size), G.dtype)
    for first, left, right in ((a, j, i), (np.conj(a), i, j)):
        for second, k, m in ((a, i, j), (np.conj(a), j, i)):
            total = total + np.outer(first, second) * G[left][:, k] * M[m][:, right].T
    # Turning by F adds UFFᵀUᵀ to a covariance, whose derivative is G − K on the columns of U.
    turned = np.outer(np.conj(a), a) * (G - faded * K)[i][:, i]
    turns = (j[:, None] == j) & (i < count)[:, None] & (i < count)
    hessian = 0.5 * (total + total.T).real + 2.0 * np.where(turns, turned.real, 0.0)
    sizes = np.diagonal(G).real
    units = 1.0 / np.sqrt(np.where(sizes > 0, sizes, 1.0))
    units = units[i] * units[j]
    scaled = hessian * units[:, None] * units
    scaled[np.diag_indices_from(scaled)] += ROUNDING * damping
    try:
        lower = np.linalg.cholesky(scaled)
    except np.linalg.LinAlgError:
        return None
    half = solve_lower(lower, -(slope * units)[:, None])
    step = a * units * solve_lower(lower, half, transpose=True)[:, 0]
    change = np.zeros(G.shape, dtype=G.dtype)
    np.add.at(change, (i, j), step)
    np.add.at(change, (j, i), np.conj(step))
    change = change[:, count:]
    values, vectors = np.linalg.eigh(np.eye(len(G) - count) + change[count:])
    half = vectors * np.sqrt(np.where(values > 1e-12, values, 0.0))
    return np.asarray((at.roots + at.beside @ change[:count]) @ half)


class GroupBasis(NamedTuple):
    """An orthonormal basis Φ_gB of the span of the m columns Φ_g of each group."""

    # (g, m, m): the matrices B of the g groups and their pseudo-inverses, padded with zeros. A
    # covariance Γ of the coefficients of the basis is BΓBᵀ for the given columns
    into: Matrices
    back: Matrices


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
    for numbers, members in groups.by_size:
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
    turned, basis = problem._replace(dictionary=found), GroupBasis(into, back)
    index = np.flatnonzero(used)
    if not 0 < index.size < len(problem.responses):
        return turned, basis
    # The energy outside the span of the columns is a constant, which would hide gains.
    small = turned.restricted(index)
    wide = np.zeros((index.size, columns.shape[1]), small.dictionary.dtype)
    wide[:, index] = small.dictionary
    return small._replace(dictionary=wide), basis


# 3. How it is called, and from where it starts ----------------------------------------------------


@dataclass(frozen=True, slots=True)
class SolverSettings:
    """How an energy is minimised, and at which distance to stationarity or after how many steps."""

    method: str = "auto"
    tolerance: float = 1e-6
    limit: int = 1000
    callbacks: Sequence[Callback] = ()


def iterated(
    step: Callable[[Any], Any], first: Any, settings: SolverSettings, size: int
) -> Solution[Any]:
    """Repeat a step, from a point with an `energy` and a `violation`, until it is stationary."""
    return iterate(
        step,
        first,
        stop=Below(attrgetter("violation"), settings.tolerance),
        limit=settings.limit,
        record={"energy": attrgetter("energy")},
        callbacks=settings.callbacks,
        size=size,
    )


def first_point(problem: Problem, energy: Energy, given: Any = None, *, lift: bool = False) -> Any:
    """Return the point at zero, or at given relevances or covariances of groups.

    With `lift` it is one from which updates can begin: they cannot change relevances of zero.
    """
    if lift and (given is None or given.ndim == 1):
        flat = flat_start(problem, energy.groups)
        given = flat if given is None else namespace(given).maximum(given, LIFT * flat)
    if isinstance(energy, GroupCovariance):
        assert energy.groups is not None
        count, size = energy.groups.members.shape
        turned, basis = orthonormal(problem, energy.groups)
        if given is None:
            return BlockPoint([turned], np.zeros((count, size, size)), energy, basis=basis)
        if given.ndim == 1:
            given = energy.groups.gather(given)[:, :, None] * np.eye(size)
        inside = np.asarray(basis.back @ given @ adjoint(basis.back))
        return BlockPoint([turned], inside, energy, basis=basis)
    if energy.exact_coordinates and energy.marginal is None:
        raise ValueError(
            f"The energy {type(energy).__name__} has exact_coordinates=True but its marginal is "
            "None. Define the property marginal too, because steps in one relevance (prior "
            "variance) are followed by Newton steps."
        )
    start = np.zeros(problem.dictionary.shape[-1]) if given is None else given
    return ColumnPoint([problem], start, energy)


def continuation(first: Any, settings: SolverSettings) -> Any:
    """Return the point from which to minimise the full energy, found at decreasing γ.

    A large γ smooths the energy: blocks hardly interact, and those that explain most enter first.
    For a tiny γ this ends lower than a direct descent, and avoids the ill-conditioned Σ of a poor
    start.
    """
    problem, point = first.problems[0], first
    target = float(problem.noise)
    stages = round(math.log(max(1.0 / target, 1.0), STAGE))
    rough = replace(settings, tolerance=max(COARSE, settings.tolerance), limit=STAGE_SWEEPS)
    for stage in range(1, stages):
        smooth = problem.with_noise(target ** (stage / stages))
        point = descend(replace(point, problems=[smooth]), rough).value
    return replace(point, problems=[problem])
