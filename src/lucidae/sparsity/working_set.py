"""Minimisation of a sparse energy on a working set of columns: coordinate moves, Newton steps.

The working set contains the active columns and those whose activation lowers the energy most. A
sweep evaluates all columns once, moves single relevances to their minimum by rank-one updates (Wipf
2023, Theorem 4.4), and finishes with damped Newton steps. Groups move as in `group_moves`; the
diagonal energy takes Newton steps alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from lucidae.arrays import (
    Array,
    add_diagonal,
    adjoint,
    cholesky,
    conjugate,
    device,
    diagonal,
    largest,
    like,
    machine_epsilon,
    namespace,
    put,
    rank_one_,
    real_part,
    scalar,
    solve_lower,
    squared_moduli,
    squared_norms,
    to_numpy,
    where_set,
)
from lucidae.iteration import Below, Callback, Solution, iterate
from lucidae.sparsity.dictionary import dense_columns
from lucidae.sparsity.group_moves import (
    Ranking,
    multiples_of_identity,
    rank_groups,
    spherical_moves,
)
from lucidae.sparsity.group_screening import GroupProducts, evaluate_screened
from lucidae.sparsity.group_workspace import GroupWorkspace, descend_groups
from lucidae.sparsity.groups import Groups
from lucidae.sparsity.objectives import FullCovariance, Marginal
from lucidae.sparsity.problem import Problem, rounding_distance, rounding_distances
from lucidae.sparsity.state import (
    Factor,
    State,
    evaluate,
    evaluate_from,
    positive,
)

FULL = FullCovariance()

CANDIDATES = 150
"""Largest number of columns of relevance zero in a working set."""

GROUP_CANDIDATES = 60
"""Largest number of groups of relevance zero in a working set."""

PROMISING = 1e-3
"""Inactive columns join the working set if their gain exceeds this share of the largest."""

CHECK_MOVES = 16
"""Number of coordinate moves between two checks of the stopping rule."""

CANCELLED = 1e-3
"""All alignments are computed again if one falls below this share in a move: terms cancel."""

FIRST_DAMPING = 1e-4
SMALLEST_DAMPING = 1e-12
DEFINITE = 1.0
"""Damping at and above which the damped Hessian matrix is positive definite."""

ROUNDING = 0.1
"""Share of the damping that is added to the Hessian's diagonal, for nearly dependent columns."""

NEAR = 1e-3
"""Distance to optimality below which a Newton step may be judged by the distance after it."""

POLISHED = 1e-2
"""Newton steps stop when the distance to optimality of all columns has fallen by this factor."""

STAGE = 10.0
"""Factor by which the noise variance is divided from one stage of a continuation to the next."""

COARSE = 1e-2
"""Distance to optimality at which fits of low accuracy end, such as stages of a continuation."""


def best_change(relevance: Array, curvature: Array, alignment: Array) -> Array:
    """Return max(0, w + (Q − z)/z²) − w, the way to the minimiser (Wipf 2023, Theorem 4.4).

    All other relevances are fixed. Curvatures must be positive; replace those of zero columns.
    """
    # When wⱼ moves by Δ, Σ gains Δφφᵀ: log|Σ| gains log(1 + Δz) (determinant lemma), the data term
    # loses QΔ/(1 + Δz) (Sherman–Morrison). The derivative z/(1 + Δz) − Q/(1 + Δz)² vanishes at
    # 1 + Δz = Q/z, that is at Δ = (Q − z)/z²; it is negative before and positive after.
    free = (alignment - curvature) / (curvature * curvature)
    return namespace(relevance).maximum(-relevance, free)


def gain_of(change: Array, curvature: Array, alignment: Array) -> Array:
    """Return the decrease QΔ/(1 + zΔ) − log(1 + zΔ) of the energy if one relevance changes by Δ."""
    growth = change * curvature
    return alignment * change / (1.0 + growth) - namespace(change).log1p(growth)


def coordinate_gains(relevance: Array, curvature: Array, alignment: Array) -> Array:
    """Return the decrease of the full energy if each relevance alone moves to its minimiser."""
    return gain_of(best_change(relevance, curvature, alignment), curvature, alignment)


class Workspace(NamedTuple):
    """Arrays for coordinate moves on the columns of a working set; the moves overwrite them."""

    relevance: Array  # (m,): relevances of the m columns
    # (m, m + p): the matrix [ΦᵀΣ⁻¹Φ | ΦᵀΣ⁻¹Y] of the m columns Φ, where Σ is the covariance of a
    # response and Y are the p responses of the normalised problem
    gram: Array
    # (m,): diagonal of the left part of `gram` (curvatures), and squared row norms of its right
    # part (alignments)
    curvature: Array
    alignment: Array


def open_workspace(state: State) -> Workspace:
    """Return new arrays for coordinate moves on all columns of a state."""
    metric = adjoint(state.whitened) @ state.whitened
    return workspace_of(state.relevance + 0.0, metric, state.loading)


def workspace_of(relevance: Array, metric: Array, loading: Array) -> Workspace:
    """Return the workspace of m columns Φ with given relevances."""
    return Workspace(
        relevance,
        namespace(metric).concat([metric, loading], axis=1),
        real_part(diagonal(metric)) + 0.0,
        squared_norms(loading, -1),
    )


def move_coordinate_(workspace: Workspace, index: int, change: float) -> Workspace:
    """Change one relevance by `change` and update the workspace by a rank-one term."""
    # Sherman–Morrison: Σ⁻¹ loses sΣ⁻¹φφᵀΣ⁻¹ with s = Δ/(1 + Δz). Multiplied by Φᵀ and
    # [Φ, Y], this takes s times the outer product of column φ and row φ from the buffer. The
    # column is the conjugate c̄ of the row's left part c. So a row r of the right part becomes
    # r − sc̄ⱼy with the row's right part y, and ‖r‖² becomes ‖r‖² − 2s Re(cⱼ rȳᵀ) + s²|cⱼ|²‖y‖².
    relevance, gram, curvature, alignment = workspace
    size = gram.shape[0]
    row = gram[index, :] + 0.0
    coupling, response = row[:size], row[size:]
    shrink = change / (1.0 + change * float(real_part(coupling[index])))
    across = real_part(coupling * (gram[:, size:] @ conjugate(response)))
    rank_one_(gram, conjugate(coupling), row, -shrink)
    moved = float(relevance[index]) + change
    relevance[index] = moved if moved > 0.0 else 0.0
    lost = shrink * squared_moduli(coupling)
    power = shrink * float(real_part(response @ conjugate(response)))
    updated = alignment + (power * lost - 2.0 * shrink * across)
    if bool(namespace(updated).any(updated < CANCELLED * alignment)):
        updated = squared_norms(gram[:, size:], -1)
    return Workspace(relevance, gram, curvature - lost, updated)


def best_coordinate_step(workspace: Workspace) -> Workspace:
    """Move the relevance that lowers the energy most to its minimiser; return the new workspace."""
    xp = namespace(workspace.gram)
    changes = best_change(workspace.relevance, workspace.curvature, workspace.alignment)
    index = int(xp.argmax(gain_of(changes, workspace.curvature, workspace.alignment)))
    return move_coordinate_(workspace, index, float(changes[index]))


def coordinate_steps(workspace: Workspace) -> Workspace:
    """Return the workspace after `CHECK_MOVES` calls of `best_coordinate_step`.

    Alignments, which moves update by differences, are then computed again from `gram`.
    """
    for _ in range(CHECK_MOVES):
        workspace = best_coordinate_step(workspace)
    responses = workspace.gram[:, workspace.gram.shape[0] :]
    return workspace._replace(alignment=squared_norms(responses, -1))


def descend(workspace: Workspace, *, tolerance: float, limit: int) -> Workspace:
    """Lower the energy by coordinate moves until no move lowers it by more than `tolerance`."""

    def largest_gain(current: Workspace) -> float:
        gains = coordinate_gains(current.relevance, current.curvature, current.alignment)
        return float(namespace(gains).max(gains))

    stop = Below(largest_gain, tolerance)
    return iterate(coordinate_steps, workspace, stop=stop, limit=-(-limit // CHECK_MOVES)).value


class NewtonPoint(NamedTuple):
    """A state and the damping of the next Newton step, flat as `iterate_batch` needs it."""

    dictionary: Array
    responses: Array
    noise: Array
    outside: Array
    spare: Array
    relevance: Array
    curvature: Array
    alignment: Array
    fit: Array
    log_determinant: Array
    inverse: Array
    whitened_responses: Array
    whitened: Array
    loading: Array
    damping: Array

    @classmethod
    def at(cls, state: State, damping: Array | None = None) -> NewtonPoint:
        """Return the point at a state that stores its fields `whitened` and `loading`."""
        if damping is None:
            damping = namespace(state.noise).full_like(state.noise, FIRST_DAMPING)
        return cls(*state, damping)

    @property
    def state(self) -> State:
        """The state without damping: relevances and what follows from them."""
        return State(*self[:-1])

    @property
    def factor(self) -> Factor:
        """The Cholesky factorisation of the covariance of a response."""
        return Factor(self.inverse, self.whitened_responses, self.log_determinant)


def newton_direction(point: NewtonPoint, marginal: Marginal = FULL) -> Array:
    """Return the damped Newton step: the change of each relevance.

    Only relevances that are positive, or with which the energy falls, change. The Hessian is scaled
    by the pressures, so that the step has no units, and is NaN if it is not definite.
    """
    # dΣ⁻¹/dwⱼ = −Σ⁻¹φⱼφⱼᵀΣ⁻¹, so with G = ΦᵀΣ⁻¹Φ and K = ΦᵀΣ⁻¹YYᵀΣ⁻¹Φ the data term has gradient
    # −diag(K) and Hessian 2 G∘K, and log|Σ| has gradient diag(G) and Hessian −G∘G. Together
    # G∘(2K − G), which is indefinite where the model explains little. 2 G∘K is positive
    # semidefinite (Schur), so fading the concave part out by the damping makes it definite. For
    # complex data the two are 2 Re(G∘K̄) and |G|∘|G|.
    xp = namespace(point.relevance)
    state, groups = point.state, marginal.groups
    metric = adjoint(point.whitened) @ point.whitened
    pressure, relevance = marginal.pressure(state), point.relevance
    concave = marginal.concavity(metric, pressure)
    damping = point.damping[..., None]
    explained = point.loading @ adjoint(point.loading)
    hessian = real_part(2.0 * metric * conjugate(explained)) - (1.0 - damping[..., None]) * concave
    slope = point.alignment - pressure
    if groups is not None:
        hessian = groups.total(groups.total(hessian).mT)
        slope, pressure = groups.total(slope), groups.total(pressure)
        relevance = groups.gather(relevance)[..., 0]
    free = (relevance > 0) | (slope > 0)
    units = where_set(1.0 / positive(pressure), ~free, 0.0)
    fixed = xp.astype(~free, relevance.dtype)
    scaled = hessian * units[..., :, None] * units[..., None, :]
    factor, _ = cholesky(add_diagonal(scaled, ROUNDING * damping + fixed))
    half = solve_lower(factor, (slope * units)[..., None])
    direction = units * solve_lower(factor, half, transpose=True)[..., 0]
    return direction if groups is None else groups.expand(direction)


def newton_step(point: NewtonPoint, marginal: Marginal = FULL) -> NewtonPoint:
    """Return the point after one damped Newton step, for each of one or several problems.

    If `is_accepted` refuses it, the relevances stay the same and the damping is raised.
    """
    xp = namespace(point.relevance)
    direction = newton_direction(point, marginal)
    one = point.relevance.ndim == 1
    if one and bool(xp.any(xp.isnan(direction))):  # in a stack, this problem would wait
        point = point._replace(damping=_raised(point.damping, direction))
        direction = newton_direction(point, marginal)
    trial = xp.maximum(point.relevance + direction, 0.0 * point.relevance)
    floor = xp.full_like(point.damping, SMALLEST_DAMPING)
    state = evaluate(Problem(*point[:5]), trial, columns=True)
    state = state if one else state.without_factor()  # a stack would only copy it
    reached = NewtonPoint.at(state, xp.maximum(point.damping / 10.0, floor))
    accepted = is_accepted(
        marginal.reduced_value(point.state), marginal.reduced_value(state), point.noise,
        lambda: (marginal.violation(point.state), marginal.violation(state)), lazily=one,
    )  # fmt: skip
    refused = point._replace(damping=_raised(point.damping, direction))
    if one:
        return reached if bool(accepted) else refused
    chosen = [
        xp.where(xp.reshape(accepted, accepted.shape + (1,) * (new.ndim - accepted.ndim)), new, old)
        for new, old in zip(reached[5:], refused[5:], strict=True)
    ]
    return NewtonPoint(*point[:5], *chosen)


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


def _raised(damping: Array, direction: Array) -> Array:
    """Return ten times the damping, at least `DEFINITE` if the step was indefinite."""
    xp = namespace(damping)
    safe = where_set(0.0 * damping, xp.any(xp.isnan(direction), axis=-1), DEFINITE)
    return xp.maximum(10.0 * damping, safe)


def polish(
    state: State, marginal: Marginal = FULL, *, tolerance: float, limit: int = 30
) -> NewtonPoint:
    """Return the point after damped Newton steps on the relevances of a working set of columns."""
    stop = Below(lambda point: marginal.violation(point.state), tolerance, patience=10)
    return iterate(
        lambda point: newton_step(point, marginal), NewtonPoint.at(state), stop=stop, limit=limit
    ).value


def working_set(
    state: State, marginal: Marginal = FULL, ranking: Ranking | None = None
) -> np.ndarray[Any, Any]:
    """Return the ascending indices of active columns and of those that gain most."""
    relevance = to_numpy(state.relevance)
    if not marginal.exact_coordinates:
        rising = to_numpy(marginal.gradient(state)) < 0
        return np.flatnonzero((relevance > 0) | rising)
    if marginal.groups is not None:
        if ranking is None:
            ranking = rank_groups(state, marginal.groups, GROUP_CANDIDATES)
        active = relevance[marginal.groups.members[:, 0]] > 0
        return marginal.groups.columns(candidates(active, ranking.gains, GROUP_CANDIDATES))
    curvature = positive(state.curvature)  # zero columns align with nothing and gain nothing
    gains = to_numpy(coordinate_gains(state.relevance, curvature, state.alignment))
    return candidates(relevance > 0, gains, CANDIDATES)


def candidates(active: Any, gains: Any, most: int) -> np.ndarray[Any, Any]:
    """Return ascending indices of active items and of inactive ones with the largest gains."""
    # Candidates far below the best gain rarely survive the first moves, and each one makes the
    # buffers of the moves and the Newton system larger.
    promise = np.where(active, 0.0, gains)
    count = min(most, int(np.count_nonzero(promise > PROMISING * gains.max())))
    best = np.argpartition(-promise, count - 1)[:count] if count else np.empty(0, dtype=int)
    return np.union1d(np.flatnonzero(active), best)


def improve(
    state: State,
    marginal: Marginal,
    tolerance: float,
    ranking: Ranking | None = None,
    products: GroupProducts | None = None,
) -> State:
    """Return the state after one sweep: coordinate moves and Newton steps on the working set."""
    index = working_set(state, marginal, ranking)
    relevance, groups = state.relevance, marginal.groups
    if index.size and marginal.exact_coordinates:
        if groups is None:
            moved, free = move_coordinates(open_workspace(state.take(index)), tolerance)
            relevance, index = put(relevance, index, moved), index[free]
        else:
            relevance, index = _move_groups(state, index, groups, tolerance)
    if not index.size:
        if products is not None:
            return evaluate_screened(state.problem, relevance, products)
        return evaluate_from(state, relevance)
    small = _restricted(state, relevance, index)
    point = polish(
        small,
        replace(marginal, groups=None if groups is None else groups.restricted(index)),
        tolerance=max(tolerance / 4.0, POLISHED * scalar(marginal.violation(state))),
    )
    # Columns outside the working set have relevance zero, so the last Newton point has the Σ of
    # all columns: its factor serves the sweep, unless the point is in the span of its columns.
    better = put(relevance, index, point.relevance)
    factor = point.factor if small.problem.rows == state.problem.rows else None
    return evaluate_screened(state.problem, better, products, factor)


def _move_groups(
    state: State, index: np.ndarray[Any, Any], groups: Groups, tolerance: float
) -> tuple[Array, np.ndarray[Any, Any]]:
    """Return all relevances after moves of groups in the working set, and the free columns."""
    inside = groups.restricted(index)
    part = state.take(index)
    relevance = to_numpy(part.relevance) + 0.0
    covariances = [
        multiples_of_identity(relevance[members[:, 0]], members.shape[1])
        for _, members in inside.by_size()
    ]
    workspace = GroupWorkspace.of(part, inside, covariances, spherical_moves)
    descend_groups(workspace, share=1e-2, floor=1e-2 * tolerance**2, limit=4 * inside.count)
    free = np.zeros(index.size, dtype=bool)
    for members, covariance in zip(workspace.members, workspace.covariances, strict=True):
        weights = covariance[:, :1, 0]
        relevance[members] = weights
        slope = workspace.slopes(members)
        free[members] = (weights > 0) | (slope > 0)[:, None]
    chosen = like(relevance, state.relevance)
    return put(state.relevance, index, chosen), index[free]


def move_coordinates(workspace: Workspace, tolerance: float) -> tuple[Array, np.ndarray[Any, Any]]:
    """Return the relevances after coordinate moves, and a mask of the free ones."""
    gains = coordinate_gains(workspace.relevance, workspace.curvature, workspace.alignment)
    enough = max(1e-2 * largest(gains), 1e-2 * tolerance**2)
    workspace = descend(workspace, tolerance=enough, limit=4 * workspace.gram.shape[0])
    # Columns at zero whose derivative is positive stay there in every Newton step.
    free = (workspace.relevance > 0) | (workspace.alignment > workspace.curvature)
    return workspace.relevance, to_numpy(free)


def _restricted(state: State, relevance: Array, index: np.ndarray[Any, Any]) -> State:
    """Return the state restricted to the columns `index`, at the relevances `relevance`."""
    if 2 * index.size <= state.problem.rows:
        return state_in_span(state.problem, relevance, index)
    xp = namespace(relevance)
    if bool(xp.all(relevance == state.relevance)):
        return state.take(index)
    chosen = xp.asarray(index, device=device(relevance))
    problem = state.problem._replace(dictionary=dense_columns(state.dictionary, index))
    return evaluate(problem, xp.take(relevance, chosen, axis=0), columns=True)


def state_in_span(problem: Problem, relevance: Array, index: np.ndarray[Any, Any]) -> State:
    """Return the state of a problem restricted to the columns `index`, from which to polish.

    With fewer columns than rows it has as many rows as columns, which makes Newton steps cheaper.
    """
    xp = namespace(relevance)
    chosen = xp.asarray(index, device=device(relevance))
    return evaluate(problem.restricted(index), xp.take(relevance, chosen, axis=0), columns=True)


def solve_working_set(
    start: State,
    marginal: Marginal = FULL,
    *,
    tolerance: float = 1e-6,
    limit: int = 200,
    callbacks: Sequence[Callback] = (),
    products: GroupProducts | None = None,
) -> Solution[State]:
    """Minimise an energy with respect to the relevances by sweeps over sets of columns."""
    problem = start.problem
    reachable = max(tolerance, rounding_distance(problem))
    groups = marginal.groups if marginal.exact_coordinates else None
    ranked: list[tuple[State, Ranking]] = []  # the stopping rule and the next sweep share it

    def ranking(state: State) -> Ranking | None:
        if groups is None:
            return None
        if not ranked or ranked[0][0] is not state:
            ranked[:] = [(state, rank_groups(state, groups, GROUP_CANDIDATES))]
        return ranked[0][1]

    def distance(state: State) -> float:
        # Near a minimum the gain of a move is of the order of the squared violation. A larger gain
        # leads to another minimum, of which a group of columns may have several.
        best = ranking(state)
        jump = 0.0 if best is None else float(best.gains.max(initial=0.0))
        return max(scalar(marginal.violation(state)), jump)

    return iterate(
        lambda state: improve(state, marginal, reachable, ranking(state), products),
        start,
        stop=Below(distance, reachable, patience=15),
        limit=limit,
        record={"energy": marginal.value},
        callbacks=callbacks,
        size=problem.rows,
    )


def noise_stages(target: float) -> list[float]:
    """Return the noise variances of a continuation: a geometric sequence to `target`."""
    stages = round(math.log(max(1.0 / target, 1.0), STAGE))
    return [target ** (stage / stages) for stage in range(1, stages)]
