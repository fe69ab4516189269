"""Damped Newton steps in the covariances of the groups of a working set.

Γ_g = TTᵀ, with as many columns in T as its rank, becomes (T + UF)(I + E)(T + UF)ᵀ with a symmetric
E, where U spans the complement of the range: it stays positive semi-definite and of its rank, and
its range may turn. Energy and derivatives follow from the columns Φ_gT and Φ_gU alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np

from lucidae.arrays import adjoint, scalar, solve_lower, to_numpy
from lucidae.iteration import Below, iterate
from lucidae.sparsity.group_blocks import Matrices
from lucidae.sparsity.group_moves import NEGLIGIBLE
from lucidae.sparsity.group_workspace import GroupWorkspace
from lucidae.sparsity.problem import Problem
from lucidae.sparsity.working_set import FIRST_DAMPING, ROUNDING, SMALLEST_DAMPING, is_accepted

NEWTON_STEPS = 30
"""Largest number of Newton steps on the covariances of a working set."""

LOUD = 1e-3
"""Normalised noise variance from which latents are measured by Woodbury's identity, which cancels.
"""

LARGEST_DAMPING = 1e8
"""Damping at which Newton steps end, because none lowers the energy."""


FADED = 0.1
"""Smallest damping after a step that was impossible or raised the energy."""

MOST_TURNS = 400
"""Largest number of entries of the matrices F of all groups; if there are more, F is zero."""


_Values: TypeAlias = tuple[Matrices, Matrices, float]
Measured: TypeAlias = Callable[[list[Matrices], Matrices, Matrices], _Values]


class Latents(NamedTuple):
    """Columns Φ_gT and Φ_gU of the groups of a working set, and values computed from them."""

    axes: list[Matrices]  # (k, m, m): the matrices [T, U] of all groups, for each size m of groups
    # (k, m): for each column of `axes`, `RANGE` if it is one of T, `COMPLEMENT` if it is one of U,
    # and `UNUSED` otherwise
    kinds: list[Matrices]
    group: Matrices  # (r,): group of each of the r columns in use
    inside: Matrices  # (r,): whether the column belongs to T
    # (r, r): φᵀΣ⁻¹Φ and ΦᵀΣ⁻¹CΣ⁻¹Φ for these columns Φ, the covariance Σ and the second moment C of
    # a response
    metric: Matrices
    explained: Matrices
    energy: float  # the energy per response, up to a constant


UNUSED, RANGE, COMPLEMENT = 0, 1, 2


def polish_groups(
    part: Problem, workspace: GroupWorkspace, tolerance: float, limit: int = NEWTON_STEPS,
    turning: bool = True,
) -> list[Matrices]:  # fmt: skip
    """Return the covariances of the groups of a working set after damped Newton steps."""
    # Groups whose covariance is zero stay at zero, so they are left out.
    active = [covariance.any(axis=(1, 2)) for covariance in workspace.covariances]
    pairs = zip(workspace.members, active, strict=True)
    members = [index[used] for index, used in pairs]
    pairs = zip(workspace.covariances, active, strict=True)
    first = [covariance[used] for covariance, used in pairs]
    measured, noise = _measures(part, members), to_numpy(part.noise)
    missing = np.asarray(~to_numpy(part.dictionary).any(axis=0))
    zeros = [missing[index] for index in members]

    def accepted(at: Latents, trial: Latents) -> bool:
        found = is_accepted(at.energy, trial.energy, noise, lambda: (_slope(at), _slope(trial)))
        return bool(found)

    def step(point: _DampedPoint) -> _DampedPoint:
        moved = _newton_step(point.at, point.damping)
        trial = None if moved is None else _latents(measured, zeros, moved, turning)
        if trial is None or not accepted(point.at, trial):
            return _DampedPoint(point.at, max(10.0 * point.damping, FADED))
        return _DampedPoint(trial, max(point.damping / 10.0, SMALLEST_DAMPING))

    begin = _DampedPoint(_latents(measured, zeros, first, turning), FIRST_DAMPING)
    stop = Below(_distance, tolerance, patience=10)
    last = iterate(step, begin, stop=stop, limit=limit).value.at
    found = [np.zeros_like(covariance) for covariance in workspace.covariances]
    for covariance, used, factor in zip(found, active, _roots(last), strict=True):
        covariance[used] = factor @ adjoint(factor)
    return found


class _DampedPoint(NamedTuple):
    """The latents of the groups of a working set, and the damping of the next Newton step."""

    at: Latents
    damping: float


def _roots(at: Latents) -> list[Matrices]:
    """Return T with TTᵀ = Γ_g of all groups; columns that do not belong to T are zero."""
    pairs = zip(at.axes, at.kinds, strict=True)
    return [axes * (kinds == RANGE)[:, None, :] for axes, kinds in pairs]


def _distance(point: _DampedPoint) -> float:
    """Return the distance to optimality among covariances of these ranks; 0 if no step is left."""
    return 0.0 if point.damping > LARGEST_DAMPING else _slope(point.at)


def _slope(at: Latents) -> float:
    """Return the distance to optimality among covariances of the same ranks."""
    # As in `rank_covariances`, columns have unit norm in the metric. For those of T it is below 1.
    powers = np.diagonal(at.metric).real
    powers = np.where(powers > 0, powers, 1.0)
    slope = np.abs(at.explained - at.metric) ** 2 / (powers[:, None] * powers)
    counted = (at.group[:, None] == at.group) & (at.inside[:, None] | at.inside)
    return float(np.sqrt((slope * counted).sum(axis=1).max(initial=0.0)))


def _latents(
    measured: Measured, zeros: list[Matrices], covariances: list[Matrices], turning: bool = True
) -> Latents:
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
    metric, loading, energy = measured(all_axes, used, inside)
    if not inside.all():
        norms = np.sqrt(np.diagonal(metric).real)
        scale = np.where(inside | ~(norms > 0), 1.0, 1.0 / np.where(norms > 0, norms, 1.0))
        metric, loading = metric * scale[:, None] * scale, loading * scale[:, None]
        scales = np.zeros(used.size)
        scales[used] = scale
        parts = np.split(scales, np.cumsum([k * m for k, m in sizes])[:-1])
        for axes, part in zip(all_axes, parts, strict=True):
            axes *= part.reshape(axes.shape[0], 1, axes.shape[2])
    explained = loading @ adjoint(loading)
    return Latents(all_axes, all_kinds, labels, inside, metric, explained, energy)


def _measures(part: Problem, members: list[Matrices]) -> Measured:
    """Return a function from axes to ΦᵀΣ⁻¹Φ, ΦᵀΣ⁻¹Y and the energy (or infinity)."""
    columns, responses = to_numpy(part.dictionary), to_numpy(part.responses)
    noise, rows = scalar(part.noise), len(responses)
    stacks = [np.moveaxis(columns[:, index], 0, 1) for index in members]

    def by_rows(axes: list[Matrices], used: Matrices, inside: Matrices) -> _Values:
        parts = zip(stacks, axes, strict=True)
        turned = [np.moveaxis(each @ turn, 0, 1).reshape(rows, -1) for each, turn in parts]
        scaled = np.hstack(turned)[:, used]
        spanning = scaled[:, inside]
        covariance = spanning @ adjoint(spanning)
        covariance[np.diag_indices(rows)] += noise
        try:
            lower = np.linalg.cholesky(covariance)
        except np.linalg.LinAlgError:
            return np.eye(inside.size), np.zeros((inside.size, 1)), np.inf
        both = solve_lower(lower, np.hstack([scaled, responses]))
        whitened, targets = both[:, : inside.size], both[:, inside.size :]
        energy = (np.abs(targets) ** 2).sum() + 2.0 * np.log(np.diagonal(lower).real).sum()
        return adjoint(whitened) @ whitened, adjoint(whitened) @ targets, float(energy)

    order = np.concatenate([index.ravel() for index in members])
    if noise < LOUD or order.size > rows:
        return by_rows
    chosen = columns[:, order]
    gram = adjoint(chosen) @ np.hstack([chosen, responses])
    power = float(np.linalg.norm(responses) ** 2)

    def by_columns(axes: list[Matrices], used: Matrices, inside: Matrices) -> _Values:
        # Woodbury's identity: γΣ⁻¹ = I − A(γI + AᵀA)⁻¹Aᵀ for the columns A that span Σ − γI.
        turn = _block_diagonal(axes)[:, used]
        plain = adjoint(turn) @ gram
        plain = np.hstack([plain[:, : order.size] @ turn, plain[:, order.size :]])
        inner = plain[np.ix_(inside, np.flatnonzero(inside))]
        inner[np.diag_indices(len(inner))] += noise
        try:
            lower = np.linalg.cholesky(inner)
        except np.linalg.LinAlgError:
            return np.eye(inside.size), np.zeros((inside.size, 1)), np.inf
        both = solve_lower(lower, plain[inside])
        left = (plain - adjoint(both[:, : inside.size]) @ both) / noise
        fit = (power - np.linalg.norm(both[:, inside.size :]) ** 2) / noise
        volume = 2.0 * np.log(np.diagonal(lower).real).sum() + (rows - len(inner)) * np.log(noise)
        return left[:, : inside.size], left[:, inside.size :], float(fit + volume)

    return by_columns


def _block_diagonal(blocks: list[Matrices]) -> Matrices:
    """Return the matrix with the given square blocks on its diagonal, arrays of shape (k, m, m)."""
    size = sum(each.shape[0] * each.shape[1] for each in blocks)
    found, first = np.zeros((size, size), dtype=np.result_type(*blocks)), 0
    for each in blocks:
        count, width = each.shape[:2]
        place = first + np.arange(count * width).reshape(count, width)
        found[place[:, :, None], place[:, None, :]] = each
        first += count * width
    return found


def _principal(
    zeros: list[Matrices], covariances: list[Matrices], turning: bool
) -> tuple[list[Matrices], list[Matrices]]:
    """Return the fields `axes` and `kinds` of `Latents`, with axes U of unit norm."""
    found, kinds = [], []
    for missing, covariance in zip(zeros, covariances, strict=True):
        # Columns of zeros get the eigenvalue −1, so that no other axis contains them.
        marked = covariance
        if missing.any():
            marked = covariance - missing[:, :, None] * np.eye(missing.shape[1])
        values, vectors = np.linalg.eigh(marked)
        inside = values > NEGLIGIBLE * values[:, -1:]
        other = np.where(values > -0.5, COMPLEMENT, UNUSED)
        kinds.append(np.where(inside, RANGE, other))
        found.append(vectors * np.where(inside, np.sqrt(np.abs(values)), 1.0)[:, None, :])
    turns = sum(
        int(((k == RANGE).sum(axis=1) * (k == COMPLEMENT).sum(axis=1)).sum()) for k in kinds
    )
    if not turning or turns > MOST_TURNS:
        kinds = [np.where(kind == RANGE, RANGE, UNUSED) for kind in kinds]
    axes = [each * (kind != UNUSED)[:, None, :] for each, kind in zip(found, kinds, strict=True)]
    return axes, kinds


def _newton_step(at: Latents, damping: float) -> list[Matrices] | None:
    """Return the covariances after a damped Newton step; None if the Hessian is indefinite."""
    # In the direction of a Hermitian N, the energy has the slope tr(N(G − K)) and the curvature
    # 2 tr(NGNK) − tr(NGNG), with G = `metric` and K = `explained`. The first term is positive
    # semi-definite; the second, the concave part, is faded out by the damping as in `newton_step`.
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
