"""Theorem 4.4 as an algorithm: exact one-dimensional minimisers on a working set.

With all other relevances fixed, the full energy is unimodal in one of them, and its minimiser
needs nothing but the current curvature z and alignment Q of that column. On a small working set
a step costs one rank-one update of the columns' Gram matrix in the metric Σ⁻¹.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from lucidae.arrays import (
    Array,
    add_diagonal,
    cholesky,
    device,
    diagonal,
    largest,
    machine_epsilon,
    namespace,
    put,
    rank_one_,
    scalar,
    solve_lower,
    squared_norms,
    to_numpy,
    where_set,
)
from lucidae.iteration import Below, Solution, iterate, limited_blas
from lucidae.sparsity.groups import Groups
from lucidae.sparsity.objectives import FullCovariance, LogDeterminant, Marginal, Volume
from lucidae.sparsity.problem import Problem, covariance, rounding_distance, whiten
from lucidae.sparsity.state import State, complementarity, empty_start, positive


def best_change(relevance: Array, curvature: Array, alignment: Array) -> Array:
    """Change of each wⱼ to its exact minimiser max(0, wⱼ + (Qⱼ − zⱼ)/zⱼ²) (Wipf 2023, Thm 4.4).

    Curvatures must be positive, as those of all columns that are not zero are.
    """
    free = (alignment - curvature) / (curvature * curvature)
    return namespace(relevance).maximum(-relevance, free)


def gain_of(change: Array, curvature: Array, alignment: Array) -> Array:
    """Decrease of the energy per response when one relevance moves by `change`."""
    growth = change * curvature
    return alignment * change / (1.0 + growth) - namespace(change).log1p(growth)


def coordinate_gains(relevance: Array, curvature: Array, alignment: Array) -> Array:
    """Decrease of the energy per response that each coordinate alone can bring."""
    return gain_of(best_change(relevance, curvature, alignment), curvature, alignment)


class Workspace(NamedTuple):
    """Owned buffers of a descent on a few columns.

    `gram` is [ΦᵀΣ⁻¹Φ | ΦᵀΣ⁻¹X/√n] of those columns; curvature and alignment are its diagonal
    and the squared row norms of its right part.
    """

    relevance: Array
    gram: Array
    curvature: Array
    alignment: Array

    @property
    def loading(self) -> Array:
        """The part ΦᵀΣ⁻¹X/√n, a view."""
        return self.gram[:, self.gram.shape[0] :]

    @property
    def metric(self) -> Array:
        """The part ΦᵀΣ⁻¹Φ, a view."""
        return self.gram[:, : self.gram.shape[0]]


def open_workspace(problem: Problem, relevance: Array) -> Workspace:
    """Factorise Σ anew for a problem that is already restricted to the working set."""
    white = whiten(covariance(problem.dictionary, relevance, problem.noise), problem.responses)
    return gather_workspace(white.inverse @ problem.dictionary, white.responses, relevance)


def gather_workspace(whitened: Array, responses: Array, relevance: Array) -> Workspace:
    """Build the buffers from whitened columns and whitened responses."""
    xp = namespace(whitened)
    gram = xp.concat([whitened.mT @ whitened, whitened.mT @ responses], axis=1)
    size = whitened.shape[1]
    loading = gram[:, size:]
    curvature = diagonal(gram[:, :size]) + 0.0
    return Workspace(relevance + 0.0, gram, curvature, squared_norms(loading, -1))


def move_coordinate_(space: Workspace, index: int, change: float) -> Workspace:
    """Move one relevance and update the buffers in place by one rank-one term."""
    size = space.gram.shape[0]
    row = space.gram[index, :] + 0.0
    coupling = row[:size]
    shrink = change / (1.0 + change * float(coupling[index]))
    rank_one_(space.gram, coupling, row, -shrink)
    moved = float(space.relevance[index]) + change
    space.relevance[index] = moved if moved > 0.0 else 0.0
    curvature = space.curvature - shrink * coupling**2
    alignment = squared_norms(space.gram[:, size:], -1)
    return Workspace(space.relevance, space.gram, curvature, alignment)


def best_coordinate_step(space: Workspace) -> Workspace:
    """Move the coordinate that lowers the energy most."""
    xp = namespace(space.gram)
    changes = best_change(space.relevance, space.curvature, space.alignment)
    index = int(xp.argmax(gain_of(changes, space.curvature, space.alignment)))
    return move_coordinate_(space, index, float(changes[index]))


def cyclic_sweep(space: Workspace) -> Workspace:
    """Move every coordinate of the working set once, in order."""
    for index in range(space.gram.shape[0]):
        change = best_change(
            space.relevance[index : index + 1],
            space.curvature[index : index + 1],
            space.alignment[index : index + 1],
        )
        space = move_coordinate_(space, index, float(change[0]))
    return space


ORDERS: dict[str, tuple[Callable[[Workspace], Workspace], int]] = {
    "best": (best_coordinate_step, 16),
    "cyclic": (cyclic_sweep, 1),
}
"""The step of each order, and how many of them lie between two looks at the gains."""


def descend(space: Workspace, *, tolerance: float, limit: int, order: str = "best") -> Workspace:
    """Lower the energy coordinate by coordinate until none gains more than `tolerance`.

    Parameters
    ----------
    space : Workspace
        Owned by the caller and overwritten.
    tolerance : float
        Largest gain per response that may be left.
    limit : int
        Largest number of coordinate moves (of sweeps, for the cyclic order).
    order : {"best", "cyclic"}
        Which coordinate moves next.

    Returns
    -------
    Workspace
    """
    step, stride = ORDERS[order]

    def largest_gain(state: Workspace) -> float:
        gains = coordinate_gains(state.relevance, state.curvature, state.alignment)
        return float(namespace(gains).max(gains))

    stop = Below(largest_gain, tolerance)
    return iterate(step, space, stop=stop, limit=limit, check_every=stride).value


FULL: Volume = LogDeterminant()
FIRST_DAMPING = 1e-4
SMALLEST_DAMPING = 1e-12
DEFINITE = 1.0
"""Damping from which on the damped Hessian is positive definite."""

ROUNDING = 0.1
"""Part of the damping that goes to the diagonal alone, where columns are nearly dependent."""


class NewtonPoint(NamedTuple):
    """A point of the descent, or a stack of them.

    Beyond the fields of `Problem`: w, its pressure, L⁻¹Φ, ΦᵀΣ⁻¹X/√n, the energy and the damping
    that the next step will try.
    """

    dictionary: Array
    responses: Array
    noise: Array
    outside: Array
    spare: Array
    relevance: Array
    pressure: Array
    whitened: Array
    loading: Array
    energy: Array
    damping: Array

    @property
    def problem(self) -> Problem:
        """The problem without its relevances."""
        return Problem(*self[:5])

    def violation(self, groups: Groups | None = None) -> Array:
        """Distance to the KKT conditions."""
        alignment = squared_norms(self.loading, -1)
        return complementarity(self.relevance, alignment, self.pressure, groups)


def newton_direction(
    point: NewtonPoint, groups: Groups | None = None, volume: Volume = FULL
) -> Array:
    """Solve the damped Newton system on the free coordinates; NaN if it is not definite.

    A coordinate is free if it is positive or wants to be. Pressures are the units in which the
    damping counts, so that the step does not depend on the scale of columns or responses.
    """
    xp = namespace(point.relevance)
    metric = point.whitened.mT @ point.whitened
    bend = volume.bend(metric, point.pressure)
    damping = point.damping[..., None]
    hessian = 2.0 * metric * (point.loading @ point.loading.mT) - (1.0 - damping[..., None]) * bend
    slope = squared_norms(point.loading, -1) - point.pressure
    pressure, relevance = point.pressure, point.relevance
    if groups is not None:
        hessian = groups.total(groups.total(hessian).mT)
        slope, pressure = groups.total(slope), groups.total(pressure)
        relevance = groups.gather(relevance)[..., 0]
    free = (relevance > 0) | (slope > 0)
    units = where_set(1.0 / positive(pressure), ~free, 0.0)
    held = xp.astype(~free, metric.dtype)
    scaled = hessian * units[..., :, None] * units[..., None, :]
    factor, _ = cholesky(add_diagonal(scaled, ROUNDING * damping + held))
    half = solve_lower(factor, (slope * units)[..., None])
    direction = units * solve_lower(factor, half, transpose=True)[..., 0]
    return direction if groups is None else groups.expand(direction)


def look(
    problem: Problem, relevance: Array, damping: Array | None = None, volume: Volume = FULL
) -> NewtonPoint:
    """Factorise Σ at `relevance`."""
    xp = namespace(relevance)
    white = whiten(covariance(problem.dictionary, relevance, problem.noise), problem.responses)
    whitened = white.inverse @ problem.dictionary
    pressure = volume.pressure(problem, relevance, squared_norms(whitened, -2))
    energy = white.fit + volume.value(problem, relevance, white.log_determinant)
    loading = whitened.mT @ white.responses
    first = xp.full_like(problem.noise, FIRST_DAMPING) if damping is None else damping
    return NewtonPoint(*problem, relevance, pressure, whitened, loading, energy, first)


def newton_step(
    point: NewtonPoint, groups: Groups | None = None, volume: Volume = FULL
) -> NewtonPoint:
    """Take one damped Newton step where it does not raise the energy; raise the damping elsewhere.

    Rounding may lift the energy in its last digits, which is not counted as a rise.
    """
    xp = namespace(point.relevance)
    direction = newton_direction(point, groups, volume)
    if point.relevance.ndim == 1 and bool(xp.any(xp.isnan(direction))):  # a stack would wait
        point = point._replace(damping=_raised(point.damping, direction))
        direction = newton_direction(point, groups, volume)
    trial = xp.maximum(point.relevance + direction, 0.0 * point.relevance)
    floor = xp.full_like(point.damping, SMALLEST_DAMPING)
    reached = look(point.problem, trial, xp.maximum(point.damping / 10.0, floor), volume)
    size = xp.maximum(xp.abs(point.energy), xp.ones_like(point.energy))
    accepted = reached.energy <= point.energy + 16.0 * machine_epsilon(size) * size  # not if NaN
    refused = point._replace(damping=_raised(point.damping, direction))
    chosen = [
        xp.where(xp.reshape(accepted, accepted.shape + (1,) * (new.ndim - accepted.ndim)), new, old)
        for new, old in zip(reached[5:], refused[5:], strict=True)
    ]
    return NewtonPoint(*point.problem, *chosen)


def _raised(damping: Array, direction: Array) -> Array:
    """Return the damping to try next: at once one that is safe where the Hessian was indefinite."""
    xp = namespace(damping)
    safe = where_set(0.0 * damping, xp.any(xp.isnan(direction), axis=-1), DEFINITE)
    return xp.maximum(10.0 * damping, safe)


def polish(
    problem: Problem,
    relevance: Array,
    *,
    groups: Groups | None = None,
    volume: Volume = FULL,
    tolerance: float,
    limit: int = 30,
) -> Array:
    """Run damped Newton from `relevance` on a problem restricted to its working set.

    Returns
    -------
    array of shape (κ,)
    """
    stop = Below(lambda point: point.violation(groups), tolerance, patience=10)
    solution = iterate(
        lambda point: newton_step(point, groups, volume),
        look(problem, relevance, volume=volume),
        stop=stop,
        limit=limit,
    )
    return solution.value.relevance


FULL_ENERGY = FullCovariance()

CANDIDATES = 150
"""Largest number of inactive columns that join the active ones in a working set."""

PROMISING = 1e-3
"""Gain, relative to the largest, from which on an inactive column may join."""

STAGE = 10.0
"""Factor by which the noise variance falls from one stage of the continuation to the next."""

COARSE = 1e-2
"""Distance to optimality at which a stage of the continuation is left."""


POLISHED = 1e-2
"""How much closer to optimality, relative to all columns, the working set is brought."""


class Sweep(NamedTuple):
    """Everything about all columns at the current relevances."""

    relevance: Array
    whitened: Array
    responses: Array
    curvature: Array
    alignment: Array
    pressure: Array
    energy: float

    def violation(self, groups: Groups | None = None) -> float:
        """Distance to the KKT conditions."""
        return scalar(complementarity(self.relevance, self.alignment, self.pressure, groups))


def sweep(problem: Problem, relevance: Array, volume: Volume = FULL) -> Sweep:
    """Factorise Σ from the active columns and whiten all of them."""
    active = _take(problem, relevance, np.flatnonzero(to_numpy(relevance)))
    white = whiten(covariance(active[0].dictionary, active[1], problem.noise), problem.responses)
    whitened = white.inverse @ problem.dictionary
    curvature = squared_norms(whitened, -2)
    loading = whitened.mT @ white.responses
    alignment = squared_norms(loading, -1)
    pressure = volume.pressure(problem, relevance, curvature)
    energy = scalar(white.fit + volume.value(problem, relevance, white.log_determinant))
    return Sweep(relevance, whitened, white.responses, curvature, alignment, pressure, energy)


def _take(problem: Problem, relevance: Array, index: Array) -> tuple[Problem, Array]:
    """Restrict a problem and its relevances to some columns."""
    xp = namespace(relevance)
    chosen = xp.asarray(index, device=device(relevance))
    columns = xp.take(problem.dictionary, chosen, axis=1)
    return problem._replace(dictionary=columns), xp.take(relevance, chosen, axis=0)


def working_set(seen: Sweep, groups: Groups | None = None, by_gain: bool = True) -> Array:
    """Return the indices of the active columns and of the most promising others, ascending."""
    relevance = to_numpy(seen.relevance)
    if groups is not None or not by_gain:
        slope = seen.alignment - seen.pressure
        wanting = to_numpy(slope if groups is None else groups.share(slope)) > 0
        return np.flatnonzero((relevance > 0) | wanting)
    curvature = positive(seen.curvature)  # zero columns align with nothing and gain nothing
    gains = to_numpy(coordinate_gains(seen.relevance, curvature, seen.alignment))
    promise = np.where(relevance > 0, 0.0, gains)
    count = min(CANDIDATES, int(np.count_nonzero(promise > PROMISING * gains.max())))
    best = np.argpartition(-promise, count - 1)[:count] if count else np.empty(0, dtype=int)
    return np.union1d(np.flatnonzero(relevance), best)


def improve(
    problem: Problem, seen: Sweep, objective: Marginal, tolerance: float, order: str
) -> Array:
    """Lower the energy on the working set; return all relevances."""
    groups = objective.groups
    relevance = seen.relevance
    index = working_set(seen, groups, _by_gain(objective))
    if index.size and _by_gain(objective):
        relevance, index = _descended(seen, index, tolerance, order)
    if not index.size:
        return relevance
    small, start = _take(problem, relevance, index)
    better = polish(
        small,
        start,
        groups=None if groups is None else groups.restricted(index),
        volume=objective.volume,
        tolerance=max(tolerance / 4.0, POLISHED * seen.violation(groups)),
    )
    return put(relevance, index, better)


def _by_gain(objective: Marginal) -> bool:
    """Tell whether exact coordinate moves lower this energy."""
    return objective.groups is None and objective.volume == FULL


def _descended(seen: Sweep, index: Array, tolerance: float, order: str) -> tuple[Array, Array]:
    """Move coordinates of the working set; return all relevances and the columns still in play."""
    xp = namespace(seen.relevance)
    chosen = xp.asarray(index, device=device(seen.relevance))
    relevance = xp.take(seen.relevance, chosen, axis=0)
    space = gather_workspace(xp.take(seen.whitened, chosen, axis=1), seen.responses, relevance)
    gains = coordinate_gains(relevance, space.curvature, space.alignment)
    enough = max(1e-2 * largest(gains), 1e-2 * tolerance**2)
    space = descend(space, tolerance=enough, limit=4 * index.size, order=order)
    # the others stay at zero in every Newton step, at a price
    playing = to_numpy((space.relevance > 0) | (space.alignment > space.curvature))
    return put(seen.relevance, index, space.relevance), index[playing]


def solve_working_set(
    problem: Problem,
    start: Array | None = None,
    *,
    objective: Marginal = FULL_ENERGY,
    tolerance: float = 1e-6,
    limit: int = 200,
    order: str = "best",
) -> Solution[Sweep]:
    """Minimise an energy from `start` (zero by default) at the problem's noise variance.

    Parameters
    ----------
    problem : Problem
        One problem, not a stack.
    start : array of shape (κ,), optional
        Where to begin.
    objective : FullCovariance or DiagonalCovariance
        Coordinate moves serve the full energy without groups; Newton steps serve all.
    tolerance : float
        Distance to the KKT conditions at which to stop.
    limit : int
        Largest number of sweeps.
    order : {"best", "cyclic"}
        Order of the coordinate moves.

    Returns
    -------
    Solution
        Its value is the last `Sweep`; the history records the energy per response.
    """
    reachable = max(tolerance, rounding_distance(problem))

    def step(seen: Sweep) -> Sweep:
        better = improve(problem, seen, objective, reachable, order)
        return sweep(problem, better, objective.volume)

    first = empty_start(problem) if start is None else start
    stop = Below(lambda seen: seen.violation(objective.groups), reachable, patience=15)
    record = {"energy": lambda seen: seen.energy}
    with limited_blas(problem.rows):
        return iterate(
            step, sweep(problem, first, objective.volume), stop=stop, limit=limit, record=record
        )


def continuation(problem: Problem, order: str = "best") -> Array:
    """Relevances to start from: stages of falling noise variance, each solved coarsely.

    A large noise variance smooths the energy, so that the columns that matter most come first;
    for tiny noise this finds lower energies than a direct descent, and keeps it accurate.
    """
    relevance = empty_start(problem)
    for noise in noise_stages(scalar(problem.noise)):
        solved = solve_working_set(
            problem.with_noise(noise),
            relevance,
            tolerance=COARSE,
            limit=20,
            order=order,
        )
        relevance = solved.value.relevance
    return relevance


def noise_stages(target: float) -> list[float]:
    """Noise variances of the continuation: geometric, below the mean square 1, above `target`.

    Examples
    --------
    >>> [round(noise, 6) for noise in noise_stages(1e-3)]
    [0.1, 0.01]
    """
    stages = round(math.log(max(1.0 / target, 1.0), STAGE))
    return [target ** (stage / stages) for stage in range(1, stages)]


def as_state(problem: Problem, seen: Sweep) -> State:
    """Return what the sweep saw as a `State`."""
    xp = namespace(seen.relevance)
    sigma_active, active = _take(problem, seen.relevance, np.flatnonzero(to_numpy(seen.relevance)))
    white = whiten(covariance(sigma_active.dictionary, active, problem.noise), problem.responses)
    pulled = white.inverse.mT @ white.responses
    return State(
        *problem,
        seen.relevance,
        seen.curvature,
        seen.alignment,
        white.fit,
        white.log_determinant,
        xp.sum(pulled**2),
    )
