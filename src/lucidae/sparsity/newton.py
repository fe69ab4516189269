"""Damped Newton steps on the relevances of a working set: the end of every descent.

The full energy per response has gradient z − Q and Hessian G ∘ (2K − G), where G = ΦᵀΣ⁻¹Φ and
K = ΦᵀΣ⁻¹XXᵀΣ⁻¹Φ/n; the diagonal one has its own pressure in place of z. Near a minimum a few
steps reach rounding, where coordinate moves and multiplicative updates would need thousands.
Damping adds a multiple of the concave part G ∘ G, so that a multiple of one leaves 2G ∘ K, which
is never indefinite.
"""

from __future__ import annotations

from typing import NamedTuple

from lucidae._arrays import (
    Array,
    add_diagonal,
    cholesky,
    machine_epsilon,
    namespace,
    solve_lower,
    squared_norms,
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
DEFINITE = 1.0
"""Damping from which on the damped Hessian is positive definite."""

ROUNDING = 0.1
"""Part of the damping that goes to the diagonal alone, where columns are nearly dependent."""


class Descent(NamedTuple):
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


def newton_direction(point: Descent, groups: Groups | None = None, volume: Volume = FULL) -> Array:
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
) -> Descent:
    """Factorise Σ at `relevance`."""
    xp = namespace(relevance)
    white = whiten(covariance(problem.dictionary, relevance, problem.noise), problem.responses)
    whitened = white.inverse @ problem.dictionary
    pressure = volume.pressure(problem, relevance, squared_norms(whitened, -2))
    energy = white.fit + volume.value(problem, relevance, white.log_determinant)
    loading = whitened.mT @ white.responses
    first = xp.full_like(problem.noise, FIRST_DAMPING) if damping is None else damping
    return Descent(*problem, relevance, pressure, whitened, loading, energy, first)


def newton_step(point: Descent, groups: Groups | None = None, volume: Volume = FULL) -> Descent:
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
    return Descent(*point.problem, *chosen)


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
