"""Full sweeps that verify, and descents on a working set in between.

One outer step takes the active columns and the most promising others, lowers the energy on
them by exact coordinate moves and damped Newton steps, and then factorises Σ anew for one sweep
over all columns. The sweep is the only part whose cost grows with κ.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from lucidae._arrays import Array, device, largest, namespace, put, scalar, squared_norms, to_numpy
from lucidae.iterate import Below, iterate, limited_blas
from lucidae.solution import Solution
from lucidae.sparsity.coordinate import coordinate_gains, descend, gather_workspace
from lucidae.sparsity.groups import Groups
from lucidae.sparsity.newton import FULL, polish
from lucidae.sparsity.objectives import FullCovariance, Marginal
from lucidae.sparsity.problem import Problem, covariance, rounding_distance, whiten
from lucidae.sparsity.state import State, complementarity, empty_start, positive
from lucidae.sparsity.volume import Volume

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
