"""Damped Newton steps on the relevances of a working set: the end of every descent.

The full energy per response has gradient z − Q and Hessian G ∘ (2K − G), where G = ΦᵀΣ⁻¹Φ and
K = ΦᵀΣ⁻¹XXᵀΣ⁻¹Φ/n; the diagonal one has its own pressure in place of z. Near a minimum a few
steps reach rounding, where coordinate moves and multiplicative updates would need thousands.
"""

from __future__ import annotations

from typing import NamedTuple

from lucidae._arrays import (
    Array,
    add_diagonal,
    cholesky,
    machine_epsilon,
    namespace,
    scalar,
    solve_lower,
    where_set,
)
from lucidae.iterate import Below, iterate
from lucidae.sparsity.groups import Groups
from lucidae.sparsity.problem import Problem, covariance, whiten
from lucidae.sparsity.state import complementarity, positive
from lucidae.sparsity.volume import LogDeterminant, Volume

FULL: Volume = LogDeterminant()
FIRST_DAMPING = 1e-4
SMALLEST_DAMPING = 1e-12


class Descent(NamedTuple):
    """A point of the descent: w, its pressure, L⁻¹Φ, ΦᵀΣ⁻¹X/√n, the energy, the next damping."""

    relevance: Array
    pressure: Array
    whitened: Array
    loading: Array
    energy: float
    damping: float


def newton_direction(point: Descent, groups: Groups | None = None, volume: Volume = FULL) -> Array:
    """Solve the damped Newton system on the free coordinates; NaN if it is not definite.

    A coordinate is free if it is positive or wants to be. Curvatures are the units in which
    the damping counts, so that the step does not depend on the scale of columns or responses.
    """
    xp = namespace(point.relevance)
    metric = point.whitened.mT @ point.whitened
    bend = volume.bend(metric, point.pressure)
    hessian = 2.0 * metric * (point.loading @ point.loading.mT) - bend
    slope = xp.sum(point.loading**2, axis=-1) - point.pressure
    pressure, relevance = point.pressure, point.relevance
    if groups is not None:
        hessian = groups.total(groups.total(hessian).mT)
        slope, pressure = groups.total(slope), groups.total(pressure)
        relevance = groups.gather(relevance)[..., 0]
    free = (relevance > 0) | (slope > 0)
    units = where_set(1.0 / positive(pressure), ~free, 0.0)
    held = xp.astype(~free, metric.dtype)
    scaled = hessian * units[:, None] * units[None, :]
    factor, _ = cholesky(add_diagonal(scaled, point.damping + held))
    half = solve_lower(factor, (slope * units)[:, None])
    direction = units * solve_lower(factor, half, transpose=True)[:, 0]
    return direction if groups is None else groups.expand(direction)


def look(problem: Problem, relevance: Array, damping: float, volume: Volume = FULL) -> Descent:
    """Factorise Σ at `relevance`."""
    xp = namespace(relevance)
    white = whiten(covariance(problem.dictionary, relevance, problem.noise), problem.responses)
    whitened = white.inverse @ problem.dictionary
    pressure = volume.pressure(problem, relevance, xp.sum(whitened**2, axis=-2))
    energy = scalar(white.fit + volume.value(problem, relevance, white.log_determinant))
    loading = whitened.mT @ white.responses
    return Descent(relevance, pressure, whitened, loading, energy, damping)


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

    A step that would raise the energy is not taken; the damping grows instead.

    Returns
    -------
    array of shape (κ,)
    """
    rounding = 16.0 * machine_epsilon(relevance)

    def step(point: Descent) -> Descent:
        direction = newton_direction(point, groups, volume)
        trial = namespace(direction).maximum(point.relevance + direction, 0.0 * direction)
        reached = look(problem, trial, max(point.damping / 10.0, SMALLEST_DAMPING), volume)
        allowed = point.energy + rounding * max(abs(point.energy), 1.0)
        if reached.energy <= allowed:  # false for NaN, too
            return reached
        return point._replace(damping=10.0 * point.damping)

    def violation(point: Descent) -> Array:
        alignment = namespace(point.relevance).sum(point.loading**2, axis=-1)
        return complementarity(point.relevance, alignment, point.pressure, groups)

    start = look(problem, relevance, FIRST_DAMPING, volume)
    stop = Below(violation, tolerance, patience=10)
    return iterate(step, start, stop=stop, limit=limit).value.relevance
