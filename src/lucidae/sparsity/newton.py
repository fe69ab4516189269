"""Damped Newton steps on a working set: in the relevances, or in the covariances of groups.

In the direction N of a prior covariance the full energy has the slope tr(N(G − K)) and the
curvature 2 tr(NGNK) − tr(NGNG), where G = ΦᵀΣ⁻¹Φ and K = ΦᵀΣ⁻¹(XXᵀ/n)Σ⁻¹Φ. The first term is
positive semi-definite (Schur). The second one makes the Hessian indefinite where the model explains
little; the damping fades it out, so that a damping of one always gives a step downhill.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    namespace,
    real_part,
    scalar,
    solve_lower,
    where_set,
)
from lucidae.iteration import Below, iterate
from lucidae.sparsity.objectives import Marginal, State, complementarity, evaluate, positive
from lucidae.sparsity.prior import NEGLIGIBLE, Matrices
from lucidae.sparsity.problem import Problem, rounding_distances

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

NEWTON_STEPS = 30
"""Largest number of Newton steps on a working set."""


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


# Relevances. The states are those of one problem, or of several problems that share their
# relevances, whose energies are added with the weights `shares`.


def average(shares: Sequence[float], values: Sequence[Any]) -> Any:
    """Return the sum of values, one for each problem that shares the relevances, times shares."""
    if len(values) == 1:
        return values[0]
    parts = [share * value for share, value in zip(shares, values, strict=True)]
    return sum(parts[1:], parts[0])


def violation(states: Sequence[State], marginal: Marginal, shares: Sequence[float]) -> Array:
    """Return the distance of shared relevances to the optimality (KKT) conditions."""
    if len(states) == 1:
        return marginal.violation(states[0])
    alignment = average(shares, [state.alignment for state in states])
    pressure = average(shares, [marginal.pressure(state) for state in states])
    return complementarity(states[0].relevance, alignment, pressure, marginal.groups)


def newton_direction(
    states: Sequence[State], damping: Array, marginal: Marginal, shares: Sequence[float] = (1.0,)
) -> Array:
    """Return the damped Newton step: the change of each relevance.

    Only relevances that are positive, or with which the energy falls, change. The Hessian is scaled
    by the pressures, so that the step has no units, and is NaN if it is not definite.
    """
    # With N = φⱼφⱼᵀ the Hessian is 2 Re(G∘K̄) − |G|∘|G|; another log-volume replaces |G|∘|G| by its
    # own concave part. Relevances of groups have sums over their columns.
    xp, groups, relevance = namespace(damping), marginal.groups, states[0].relevance
    pressures, hessian = [marginal.pressure(state) for state in states], 0.0
    for state, pressure, share in zip(states, pressures, shares, strict=True):
        metric = adjoint(state.whitened) @ state.whitened
        explained = state.loading @ adjoint(state.loading)
        concave = (1.0 - damping[..., None, None]) * marginal.concavity(metric, pressure)
        hessian = hessian + share * (real_part(2.0 * metric * conjugate(explained)) - concave)
    pressure = average(shares, pressures)
    slope = average(shares, [state.alignment for state in states]) - pressure
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
    reached = tuple(evaluate(Problem(*state[:5]), trial, columns=True) for state in states)
    noise = states[0].noise
    for state in states[1:]:
        noise = xp.minimum(noise, state.noise)
    accepted = is_accepted(
        average(shares, [marginal.reduced_value(state) for state in states]),
        average(shares, [marginal.reduced_value(state) for state in reached]),
        noise,
        lambda: (violation(states, marginal, shares), violation(reached, marginal, shares)),
        lazily=one,
    )
    lowered = xp.maximum(damping / 10.0, xp.full_like(damping, SMALLEST_DAMPING))
    raised = _raised(damping, direction)
    if one:
        return (reached, lowered) if bool(accepted) else (tuple(states), raised)
    new, old = reached[0], states[0]
    chosen = [
        xp.where(xp.reshape(accepted, accepted.shape + (1,) * (after.ndim - accepted.ndim)), after,
                 before)
        for after, before in zip(new[5:], old[5:], strict=True)
    ]  # fmt: skip
    return (State(*old[:5], *chosen),), xp.where(accepted, lowered, raised)


def _raised(damping: Array, direction: Array) -> Array:
    """Return ten times the damping, at least `DEFINITE` if the step was indefinite."""
    xp = namespace(damping)
    safe = where_set(0.0 * damping, xp.any(xp.isnan(direction), axis=-1), DEFINITE)
    return xp.maximum(10.0 * damping, safe)


def polish_relevances(
    states: Sequence[State], marginal: Marginal, shares: Sequence[float] = (1.0,), *,
    tolerance: float, limit: int = NEWTON_STEPS,
) -> tuple[State, ...]:  # fmt: skip
    """Return the states after damped Newton steps on all relevances of a working set."""
    damping = namespace(states[0].noise).full_like(states[0].noise, FIRST_DAMPING)
    stop = Below(lambda point: violation(point[0], marginal, shares), tolerance, patience=10)
    begin = (tuple(states), damping)
    return iterate(
        lambda point: newton_step(*point, marginal, shares), begin, stop=stop, limit=limit
    ).value[0]


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
        covariance = spanning @ adjoint(spanning) + scalar(part.noise) * np.eye(part.rows)
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
