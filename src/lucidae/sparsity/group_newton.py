"""Damped Newton steps in the covariances of the groups of a working set.

A working set contains the groups that a sweep of the solver may change. The covariance Γ_g of the
coefficients of a group with columns Φ_g is written as TTᵀ. A step replaces it by T(I + E)Tᵀ with a
symmetric matrix E for each group, so that it stays positive semi-definite. The energy (loss) and
its derivatives follow from the columns Φ_gT alone. The steps are computed by NumPy, because working
sets are small.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lucidae.arrays import adjoint, scalar, solve_lower, to_numpy
from lucidae.iteration import Below, iterate
from lucidae.sparsity.group_blocks import Matrices
from lucidae.sparsity.group_moves import square_root
from lucidae.sparsity.group_workspace import GroupWorkspace
from lucidae.sparsity.problem import rounding_distance
from lucidae.sparsity.state import State
from lucidae.sparsity.working_set import FIRST_DAMPING, ROUNDING, SMALLEST_DAMPING

NEWTON_STEPS = 30
"""Largest number of Newton steps on the covariances of a working set."""

NEAR = 1e-3
"""Distance to optimality below which a Newton step may be judged by the distance after it."""

LARGEST_DAMPING = 1e8
"""Damping at which Newton steps end, because none lowers the energy."""


class Latents(NamedTuple):
    """Columns Φ_gT of the groups of a working set, and values computed from their covariance.

    Φ_g are the columns of a group, and its coefficients have the prior covariance Γ_g = TTᵀ.

    Parameters
    ----------
    factors : list of ndarray of shape (k, m, m)
        The matrices T of all groups, for each size m of groups.
    group : ndarray of int of shape (r,)
        Group of each of the r columns that are not zero.
    metric, explained : ndarray of shape (r, r)
        ΦᵀΣ⁻¹Φ and ΦᵀΣ⁻¹CΣ⁻¹Φ for these columns Φ, the covariance Σ and the second moment C of a
        response.
    energy : float
        The energy (loss) per response, up to a constant.
    """

    factors: list[Matrices]
    group: Matrices
    metric: Matrices
    explained: Matrices
    energy: float


def polish_groups(
    part: State, workspace: GroupWorkspace, tolerance: float, limit: int = NEWTON_STEPS
) -> list[Matrices]:
    """Return the covariances of the groups of a working set after damped Newton steps.

    Parameters
    ----------
    part : State
        The state restricted to the columns of the working set.
    workspace : GroupWorkspace
        The covariances from which to start.
    tolerance : float
        Distance to optimality, on the range of the covariances, at which to stop.
    limit : int
        Largest number of steps.

    Returns
    -------
    list of ndarray of shape (k, m, m)
        The covariances, for each size m of groups.
    """
    # Groups whose covariance is zero stay at zero, so they are left out.
    active = [covariance.any(axis=(1, 2)) for covariance in workspace.covariances]
    columns = to_numpy(part.dictionary)
    stacks = [
        np.moveaxis(columns[:, index[used]], 0, 1)
        for index, used in zip(workspace.members, active, strict=True)
    ]
    covariances = zip(workspace.covariances, active, strict=True)
    factors = [square_root(covariance[used]) for covariance, used in covariances]
    responses, noise = to_numpy(part.responses), scalar(part.noise)
    rounding = rounding_distance(part.problem)

    def step(point: _DampedPoint) -> _DampedPoint:
        factors = _newton_step(point.at, point.damping)
        trial = None if factors is None else _latents(stacks, responses, noise, factors)
        if trial is None or not _is_better(trial, point.at, rounding):
            return _DampedPoint(point.at, max(10.0 * point.damping, FIRST_DAMPING))
        return _DampedPoint(trial, max(point.damping / 10.0, SMALLEST_DAMPING))

    first = _DampedPoint(_latents(stacks, responses, noise, factors), FIRST_DAMPING)
    stop = Below(_distance, tolerance, patience=10)
    last = iterate(step, first, stop=stop, limit=limit).value.at
    found = [np.zeros_like(covariance) for covariance in workspace.covariances]
    for covariance, used, factor in zip(found, active, last.factors, strict=True):
        covariance[used] = factor @ adjoint(factor)
    return found


class _DampedPoint(NamedTuple):
    """The latents of the groups of a working set, and the damping of the next Newton step."""

    at: Latents
    damping: float


def _is_better(trial: Latents, at: Latents, rounding: float) -> bool:
    """Tell whether a Newton step is taken: it lowers the energy (loss), or the distance.

    Near a minimum a step gains about the square of the distance to optimality, which may be less
    than the error `rounding` of the energy. It is then judged by the distance, which must halve.
    """
    size = max(abs(at.energy), 1.0)
    if trial.energy <= at.energy + 1e-15 * size:
        return True
    same = trial.energy <= at.energy + rounding * size
    before = _slope(at)
    return same and before <= NEAR and _slope(trial) <= 0.5 * before


def _distance(point: _DampedPoint) -> float:
    """Return the distance to optimality on the range of the covariances; 0 if no step is left."""
    return 0.0 if point.damping > LARGEST_DAMPING else _slope(point.at)


def _slope(at: Latents) -> float:
    """Return the distance to optimality on the range of the covariances."""
    slope = np.abs(at.explained - at.metric) ** 2
    same = at.group[:, None] == at.group
    return float(np.sqrt((slope * same).sum(axis=1).max(initial=0.0)))


def _latents(
    stacks: list[Matrices], responses: Matrices, noise: float, factors: list[Matrices]
) -> Latents:
    """Return the columns Φ_gT of all groups, and values computed from them, as `Latents`.

    Φ_g are the columns of a group, whose coefficients have the prior covariance TTᵀ. For d rows
    and k groups of m columns, `stacks` contains the matrices Φ_g as an array of shape (k, d, m),
    and `factors` the matrices T, for each size m of groups.
    """
    parts, group, used, first, rows = [], [], [], 0, len(responses)
    for stack, factor in zip(stacks, factors, strict=True):
        parts.append(np.moveaxis(stack @ factor, 0, 1).reshape(rows, -1))
        group.append(np.repeat(first + np.arange(len(factor)), factor.shape[2]))
        used.append(factor.any(axis=1).ravel())
        first += len(factor)
    chosen = np.concatenate(used)
    scaled, labels = np.hstack(parts), np.concatenate(group)
    if not chosen.all():
        scaled, labels = scaled[:, chosen], labels[chosen]
    covariance = scaled @ adjoint(scaled)
    covariance[np.diag_indices(rows)] += noise
    try:
        lower = np.linalg.cholesky(covariance)
    except np.linalg.LinAlgError:
        return Latents(factors, labels, np.eye(labels.size), np.eye(labels.size), np.inf)
    both = solve_lower(lower, np.hstack([scaled, responses]))
    whitened, targets = both[:, : labels.size], both[:, labels.size :]
    loading = adjoint(whitened) @ targets
    energy = (np.abs(targets) ** 2).sum() + 2.0 * np.log(np.diagonal(lower).real).sum()
    metric = adjoint(whitened) @ whitened
    return Latents(factors, labels, metric, loading @ adjoint(loading), float(energy))


def _newton_step(at: Latents, damping: float) -> list[Matrices] | None:
    """Return factors of the group covariances after a damped Newton step; None if it is impossible.

    The covariance of a group is TTᵀ. T becomes T(I + E)^½, with one symmetric matrix E for each
    group. The step is impossible if the Hessian is indefinite.
    """
    # In the direction of a Hermitian N, the energy has the slope tr(N(G − K)) and the curvature
    # 2 tr(NGNK) − tr(NGNG), with G = `metric` and K = `explained`. The first term is positive
    # semi-definite; the second, the concave part, is faded out by the damping as in `newton_step`.
    G, K = at.metric, at.explained
    rows, others, weights = _directions(at.group, np.iscomplexobj(G))
    if not rows.size:
        return None
    slope = 2.0 * (weights * (G - K)[others, rows]).real
    inner = 2.0 * K - (1.0 - damping) * G if damping < 1.0 else 2.0 * K
    hessian = _curvature(G, inner, rows, others, weights)
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


def _directions(group: Matrices, is_complex: bool) -> tuple[Matrices, Matrices, Matrices]:
    """Return a basis of the symmetric (or Hermitian) matrices with one block for each group.

    `group` is the group of each row. Element p of the basis is aₚDᵢⱼ plus its adjoint, where Dᵢⱼ
    has a one in row i and column j. The three arrays contain i, j and aₚ for each p.
    """
    rows, others = np.nonzero(np.triu(group[:, None] == group))
    weights = np.where(rows == others, 0.5, 0.5**0.5)
    if not is_complex:
        return rows, others, weights
    mixed = rows < others
    return (
        np.concatenate([rows, rows[mixed]]),
        np.concatenate([others, others[mixed]]),
        np.concatenate([weights, 1j * weights[mixed]]),
    )


def _curvature(G: Matrices, M: Matrices, i: Matrices, j: Matrices, a: Matrices) -> Matrices:
    """Return Re tr(N_p G N_q M) for all pairs (p, q) of elements N of the basis of `_directions`.

    The arrays `i`, `j` and `a` describe the basis; G and M are matrices of its size.
    """
    k, m, b = i, j, a
    total = np.outer(a, b) * G[j][:, k] * M[m][:, i].T
    total = total + np.outer(a, np.conj(b)) * G[j][:, m] * M[k][:, i].T
    total = total + np.outer(np.conj(a), b) * G[i][:, k] * M[m][:, j].T
    total = total + np.outer(np.conj(a), np.conj(b)) * G[i][:, m] * M[k][:, j].T
    return np.asarray(0.5 * (total + total.T).real)


def _stepped(at: Latents, change: Matrices) -> list[Matrices]:
    """Return the matrices T(I + E)^½ of all groups, whose covariances are TTᵀ before the step.

    `change` has the symmetric matrices E as its diagonal blocks. Negative eigenvalues of I + E are
    replaced by zero.
    """
    found, first = [], 0
    for factor in at.factors:
        count, size = factor.shape[:2]
        used = np.asarray(factor.any(axis=1))
        # Latents are numbered by group, then by column of T. Columns of T that are zero get the
        # eigenvalue −1, so that their roots are zero too.
        place = np.full((count, size), -1)
        place[used] = first + np.arange(np.count_nonzero(used))
        both = used[:, :, None] & used[:, None, :]
        blocks = np.where(both, change[place[:, :, None], place[:, None, :]], 0.0)
        blocks = blocks + np.where(used, 1.0, -1.0)[:, :, None] * np.eye(size)
        values, vectors = np.linalg.eigh(blocks)
        roots = np.sqrt(np.where(values > 1e-12, values, 0.0))
        found.append(factor @ (vectors * roots[:, None, :]))
        first += int(np.count_nonzero(used))
    return found
