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
    to_numpy,
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
"""Largest number of entries of the matrices F of all groups; if there are more, F is zero."""

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

UNUSED, RANGE, COMPLEMENT = 0, 1, 2


class Latents(NamedTuple):
    """Columns Φ_gT and Φ_gU of the groups of a working set, and values computed from them."""

    axes: list[Matrices]  # (k, m, m): the matrices [T, U] of all groups, for each size m of groups
    # (k, m): for each column of `axes`, `RANGE` if it is one of T, `COMPLEMENT` if it is one of U,
    # and `UNUSED` otherwise
    kinds: list[Matrices]
    group: Matrices  # (r,): group of each of the r columns in use
    inside: Matrices  # (r,): whether the column belongs to T
    metric: Matrices  # (r, r): the matrices G and K of these columns
    explained: Matrices
    energy: float  # the energy per response, up to a constant

    @property
    def distance(self) -> float:
        """Distance to optimality among covariances of the same ranks."""
        # Columns have unit norm in the metric. For those of T it is below 1.
        powers = np.diagonal(self.metric).real
        powers = np.where(powers > 0, powers, 1.0)
        slope = np.abs(self.explained - self.metric) ** 2 / (powers[:, None] * powers)
        counted = (self.group[:, None] == self.group) & (self.inside[:, None] | self.inside)
        return float(np.sqrt((slope * counted).sum(axis=1).max(initial=0.0)))


def polish_covariances(
    part: Problem, members: list[Matrices], covariances: list[Matrices], tolerance: float,
    limit: int, turning: bool,
) -> list[Matrices]:  # fmt: skip
    """Return the covariances of the groups `members` of a problem after damped Newton steps."""
    # Groups whose covariance is zero stay at zero, so they are left out.
    active = [covariance.any(axis=(1, 2)) for covariance in covariances]
    found = [np.zeros_like(covariance) for covariance in covariances]
    if not any(used.any() for used in active):
        return found
    members = [index[used] for index, used in zip(members, active, strict=True)]
    first = [covariance[used] for covariance, used in zip(covariances, active, strict=True)]
    columns, noise = to_numpy(part.dictionary), to_numpy(part.noise)
    stacks = [np.moveaxis(columns[:, index], 0, 1) for index in members]
    zeros = [np.asarray(~stack.any(axis=1)) for stack in stacks]

    def latents(at: list[Matrices]) -> Latents:
        return _latents(part, stacks, zeros, at, turning)

    def step(point: tuple[Latents, float]) -> tuple[Latents, float]:
        at, damping = point
        moved = _newton_covariances(at, damping)
        if moved is not None:
            trial = latents(moved)
            if is_accepted(at.energy, trial.energy, noise, lambda: (at.distance, trial.distance)):
                return trial, max(damping / 10.0, SMALLEST_DAMPING)
        return at, max(10.0 * damping, FADED)

    def distance(point: tuple[Latents, float]) -> float:
        return 0.0 if point[1] > LARGEST_DAMPING else point[0].distance

    stop = Below(distance, tolerance, patience=10)
    last = iterate(step, (latents(first), FIRST_DAMPING), stop=stop, limit=limit).value[0]
    for covariance, used, axes, kinds in zip(found, active, last.axes, last.kinds, strict=True):
        root = axes * (kinds == RANGE)[:, None, :]
        covariance[used] = root @ adjoint(root)
    return found


def _latents(
    part: Problem, stacks: list[Matrices], zeros: list[Matrices], covariances: list[Matrices],
    turning: bool,
) -> Latents:  # fmt: skip
    """Return the columns Φ_gT and Φ_gU of all groups, and what follows from them."""
    all_axes, all_kinds = _principal(zeros, covariances, turning)
    kind = np.concatenate([kinds.ravel() for kinds in all_kinds])
    sizes = [kinds.shape for kinds in all_kinds]
    ends = np.cumsum([0, *(count for count, _ in sizes)])
    labels = np.concatenate(
        [np.repeat(first + np.arange(k), m) for first, (k, m) in zip(ends, sizes, strict=False)]
    )
    used = kind != UNUSED
    labels, inside = labels[used], kind[used] == RANGE
    responses, rows = to_numpy(part.responses), part.rows
    pairs = zip(stacks, all_axes, strict=True)
    turned = [np.moveaxis(each @ axes, 0, 1).reshape(rows, -1) for each, axes in pairs]
    scaled = np.hstack(turned)[:, used]
    spanning = scaled[:, inside]
    covariance = spanning @ adjoint(spanning)
    covariance[np.diag_indices(rows)] += scalar(part.noise)
    try:
        lower = np.linalg.cholesky(covariance)
    except np.linalg.LinAlgError:
        nothing = np.eye(inside.size)
        return Latents(all_axes, all_kinds, labels, inside, nothing, 0.0 * nothing, np.inf)
    both = solve_lower(lower, np.hstack([scaled, responses]))
    whitened, targets = both[:, : inside.size], both[:, inside.size :]
    energy = (np.abs(targets) ** 2).sum() + 2.0 * np.log(np.diagonal(lower).real).sum()
    if not inside.all():  # columns of U have unit norm in the metric
        norms = np.linalg.norm(whitened, axis=0)
        scale = np.where(inside | ~(norms > 0), 1.0, 1.0 / np.where(norms > 0, norms, 1.0))
        whitened = whitened * scale
        scales = np.zeros(used.size)
        scales[used] = scale
        parts = np.split(scales, np.cumsum([k * m for k, m in sizes])[:-1])
        for axes, each in zip(all_axes, parts, strict=True):
            axes *= each.reshape(axes.shape[0], 1, axes.shape[2])
    loading = adjoint(whitened) @ targets
    metric, explained = adjoint(whitened) @ whitened, loading @ adjoint(loading)
    return Latents(all_axes, all_kinds, labels, inside, metric, explained, float(energy))


def _principal(
    zeros: list[Matrices], covariances: list[Matrices], turning: bool
) -> tuple[list[Matrices], list[Matrices]]:
    """Return the fields `axes` and `kinds` of `Latents`, with axes U of unit norm."""
    found, kinds = [], []
    for missing, covariance in zip(zeros, covariances, strict=True):
        # Columns of zeros get the eigenvalue −1, so that no other axis contains them.
        values, vectors = np.linalg.eigh(
            covariance - missing[:, :, None] * np.eye(missing.shape[1])
        )
        inside = values > NEGLIGIBLE * values[:, -1:]
        kinds.append(np.where(inside, RANGE, np.where(values > -0.5, COMPLEMENT, UNUSED)))
        found.append(vectors * np.where(inside, np.sqrt(np.abs(values)), 1.0)[:, None, :])
    turns = sum(
        int(((k == RANGE).sum(axis=1) * (k == COMPLEMENT).sum(axis=1)).sum()) for k in kinds
    )
    if not turning or turns > MOST_TURNS:
        kinds = [np.where(kind == RANGE, RANGE, UNUSED) for kind in kinds]
    axes = [each * (kind != UNUSED)[:, None, :] for each, kind in zip(found, kinds, strict=True)]
    return axes, kinds


def _newton_covariances(at: Latents, damping: float) -> list[Matrices] | None:
    """Return the covariances after a damped Newton step; None if the Hessian is indefinite."""
    G, K = at.metric, at.explained
    rows, others, weights = _directions(at.group, at.inside, np.iscomplexobj(G))
    if not rows.size:
        return None
    slope = 2.0 * (weights * (G - K)[others, rows]).real
    faded = max(1.0 - damping, 0.0)
    hessian = _curvature(G, 2.0 * K - faded * G, rows, others, weights)
    hessian += _curvature_of_turns(at, G - faded * K, rows, others, weights)
    sizes = np.diagonal(G).real
    units = 1.0 / np.sqrt(np.where(sizes > 0, sizes, 1.0))
    units = units[rows] * units[others]
    scaled = hessian * units[:, None] * units
    scaled[np.diag_indices_from(scaled)] += ROUNDING * damping
    try:
        lower = np.linalg.cholesky(scaled)
    except np.linalg.LinAlgError:
        return None
    half = solve_lower(lower, -(slope * units)[:, None])
    step = units * solve_lower(lower, half, transpose=True)[:, 0]
    change = np.zeros(G.shape, dtype=G.dtype)
    np.add.at(change, (rows, others), weights * step)
    np.add.at(change, (others, rows), np.conj(weights) * step)
    return _stepped(at, change)


def _directions(
    group: Matrices, inside: Matrices, is_complex: bool
) -> tuple[Matrices, Matrices, Matrices]:
    """Return a basis of the symmetric (or Hermitian) matrices with one block for each group.

    Element p is aₚDᵢⱼ plus its adjoint, where Dᵢⱼ is one at (i, j). The arrays contain i, which is
    inside the range of its group's covariance, j and aₚ.
    """
    same = group[:, None] == group
    ordered = np.triu(same & inside[:, None] & inside)
    rows, others = np.nonzero(ordered | (same & inside[:, None] & ~inside))
    weights = np.where(rows == others, 0.5, 0.5**0.5)
    if not is_complex:
        return rows, others, weights
    mixed = rows != others
    return (
        np.concatenate([rows, rows[mixed]]),
        np.concatenate([others, others[mixed]]),
        np.concatenate([weights, 1j * weights[mixed]]),
    )


def _curvature(G: Matrices, M: Matrices, i: Matrices, j: Matrices, a: Matrices) -> Matrices:
    """Return Re tr(N_p G N_q M) for all pairs of elements N of the basis of `_directions`."""
    k, m, b = i, j, a
    total = np.outer(a, b) * G[j][:, k] * M[m][:, i].T
    total = total + np.outer(a, np.conj(b)) * G[j][:, m] * M[k][:, i].T
    total = total + np.outer(np.conj(a), b) * G[i][:, k] * M[m][:, j].T
    total = total + np.outer(np.conj(a), np.conj(b)) * G[i][:, m] * M[k][:, j].T
    return np.asarray(0.5 * (total + total.T).real)


def _curvature_of_turns(
    at: Latents, M: Matrices, i: Matrices, j: Matrices, a: Matrices
) -> Matrices | float:
    """Return the curvature of the energy in F that is due to the product FFᵀ.

    Turning by F adds UFFᵀUᵀ to a covariance, whose derivative is M = G − K on the columns of U.
    """
    turning = ~at.inside[j]
    if not turning.any():
        return 0.0
    shared = (i[:, None] == i) & turning[:, None] & turning & (at.group[j][:, None] == at.group[j])
    return np.where(shared, 2.0 * (np.outer(np.conj(a), a) * M[j][:, j].T).real, 0.0)


def _stepped(at: Latents, change: Matrices) -> list[Matrices]:
    """Return all covariances with T replaced by (T + UF)(I + E)^½, negative parts zero."""
    found, first = [], 0
    for axes, kinds in zip(at.axes, at.kinds, strict=True):
        count, size = kinds.shape
        used, inside = kinds != UNUSED, kinds == RANGE
        # Latents are numbered by group, then by column of [T, U]. Columns that are not in T get the
        # eigenvalue −1, so that their roots are zero.
        place = np.full((count, size), -1)
        place[used] = first + np.arange(np.count_nonzero(used))
        both = used[:, :, None] & inside[:, None, :]
        blocks = np.where(both, change[place[:, :, None], place[:, None, :]], 0.0)
        inner = np.where(inside[:, :, None], blocks, 0.0)
        inner = inner + np.where(inside, 1.0, -1.0)[:, :, None] * np.eye(size)
        values, vectors = np.linalg.eigh(inner)
        roots = np.sqrt(np.where(values > 1e-12, values, 0.0))
        turned = np.eye(size) + np.where(inside[:, :, None], 0.0, blocks)
        half = axes @ (turned @ (vectors * roots[:, None, :]))
        found.append(half @ adjoint(half))
        first += int(np.count_nonzero(used))
    return found
