"""Exact moves of groups: the minimum of the full energy in the covariance Γ of one group.

Γ is wI or any positive semi-definite matrix. With all other groups fixed, a change Δ of Γ changes
the energy per response by log|I + ΔS| − tr (I + ΔS)⁻¹ΔQ (`group_blocks` has S and Q). The gain of a
move is its decrease. NumPy computes these small matrices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from lucidae.arrays import adjoint, to_numpy
from lucidae.sparsity.group_blocks import Matrices, group_blocks
from lucidae.sparsity.groups import Groups
from lucidae.sparsity.state import State

MoveRule: TypeAlias = Callable[[Matrices, Matrices, Matrices], tuple[Matrices, Matrices]]

EPSILON = float(np.finfo(float).eps)

GRID = 32
"""Number of intervals into which the search for the best relevance of a group divides its range."""

NEWTON = 12
"""Largest number of Newton steps by which the search for one relevance ends."""

SETTLED = 1e-5
"""Relative change of a relevance at which the Newton steps of its search end."""

NEGLIGIBLE = 1e-14
"""Eigenvalues of a group's covariance below this share of the largest one are set to zero."""

DEPENDENT = 1e-14
"""Eigenvalues of a group's metric, scaled to a unit diagonal, below this count as zero."""

AT_REST = 1e-12
"""A covariance of zero is surely the best if the pivots of S − Q over the diagonal of S exceed
this."""

WELL_CONDITIONED = 1e-6
"""Squared pivot of a Cholesky factor, relative to the diagonal, above which few digits are lost."""

FEW = 200
"""Number of groups below which a test which groups are at rest takes more time than it saves."""


def at_rest(metric: Matrices, explained: Matrices) -> Matrices:
    """Tell for each group whether its best covariance is zero, as a Boolean mask.

    That is so if S − Q is positive definite, beyond rounding. Most groups pass this cheap test.
    """
    # A matrix is positive definite if all pivots of Gaussian elimination are positive.
    left, sizes = metric - explained, np.diagonal(metric, axis1=1, axis2=2).real
    positive = np.ones(len(metric), dtype=bool)
    for place in range(metric.shape[1]):
        pivot = left[:, :1, :1]
        positive &= pivot[:, 0, 0].real > AT_REST * sizes[:, place]
        left = left[:, 1:, 1:] - left[:, 1:, :1] * left[:, :1, 1:] / np.where(pivot, pivot, 1.0)
    return positive


def multiples_of_identity(weights: Matrices, size: int) -> Matrices:
    """Return the matrices wI of the given size, one for each entry w of `weights`."""
    return weights[:, None, None] * np.eye(size)


def spherical_moves(
    covariance: Matrices, metric: Matrices, explained: Matrices, most: int | None = None
) -> tuple[Matrices, Matrices]:
    """Return the best covariance wI of each group, with all other groups fixed, and its gain.

    With S = V diag(s) Vᵀ and the diagonal q of VᵀQV, a change Δ of w changes the energy by Σᵢ log(1
    + Δsᵢ) − Δqᵢ/(1 + Δsᵢ). Each term falls until Δ = (qᵢ − sᵢ)/sᵢ² and rises after it, so all
    stationary points lie between these numbers. There may be several minima: energies are compared.
    """
    rule = partial(_best_multiples, most=most)
    if len(metric) < FEW:
        return rule(covariance, metric, explained)
    moving = (covariance[:, 0, 0].real > 0) | ~at_rest(metric, explained)
    return _moves_of(rule, moving, covariance, metric, explained)


def _best_multiples(
    covariance: Matrices, metric: Matrices, explained: Matrices, most: int | None = None
) -> tuple[Matrices, Matrices]:
    """`spherical_moves` of the groups whose best covariance is not obviously zero."""
    weights = covariance[:, 0, 0].real
    s, vectors = np.linalg.eigh(metric)
    q = _powers(vectors, explained)
    flat = s <= 8.0 * EPSILON * s.shape[1] * s[:, -1:]  # the group has no column in this direction
    s, q = np.where(flat, 0.0, s), np.where(flat, 0.0, np.maximum(q, 0.0))
    change, gain = np.zeros_like(weights), np.zeros_like(weights)
    moving = (weights > 0) | (q > s).any(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        for part in _searched(moving, weights, s, q, gain, most):
            change[part], gain[part] = _best_changes(weights[part], s[part], q[part])
    # If rounding errors make a metric indefinite, the energy is not a number and nothing moves.
    sound = np.isfinite(gain) & np.isfinite(change)
    change, gain = np.where(sound, change, 0.0), np.where(sound, gain, 0.0)
    moved = np.where(change <= -weights, 0.0, weights + change)
    return multiples_of_identity(moved, metric.shape[1]), gain


def _searched(
    moving: Matrices, weights: Matrices, s: Matrices, q: Matrices, gain: Matrices, most: int | None
) -> Iterator[Matrices]:
    """Yield the indices of groups whose best relevance is searched for, in one or two parts."""
    inside = np.flatnonzero(moving)
    active = weights[inside] > 0
    if most is None or np.count_nonzero(~active) <= 4 * most:
        if inside.size:
            yield inside
        return
    # A term of the energy of a group of relevance zero falls by at most ρ − 1 − log ρ, with
    # ρ = qᵢ/sᵢ, where it falls at all, and the gain is at most their sum. Groups whose bound is
    # below the gains of enough others need no search.
    ratios = np.maximum(q[inside], s[inside]) / np.where(s[inside] > 0, s[inside], np.inf)
    ratios = np.maximum(ratios, 1.0)
    bounds = (ratios - 1.0 - np.log(ratios)).sum(axis=1)
    cut = np.partition(bounds[~active], -2 * most)[-2 * most]
    yield inside[active | (bounds >= cut)]
    known = gain[inside[~active & (bounds >= cut)]]
    enough = np.partition(known, -most)[-most]
    rest = inside[~active & (bounds < cut) & (bounds > enough)]
    if rest.size:
        yield rest


def _moves_of(
    rule: MoveRule, moving: Matrices, covariance: Matrices, metric: Matrices, explained: Matrices
) -> tuple[Matrices, Matrices]:
    """Return best covariances by `rule`, and gains, of the groups in the mask `moving`."""
    if not moving.any():
        return np.zeros_like(covariance), np.zeros(len(covariance))
    part, gains = rule(covariance[moving], metric[moving], explained[moving])
    moved, gain = np.zeros(covariance.shape, dtype=part.dtype), np.zeros(len(covariance))
    moved[moving], gain[moving] = part, gains
    return moved, gain


def _powers(vectors: Matrices, explained: Matrices) -> Matrices:
    """Return vᵀQv for the columns v of each matrix in `vectors` and its matrix Q in `explained`."""
    return np.asarray((np.conj(vectors) * (explained @ vectors)).sum(axis=1).real)


def _best_changes(weights: Matrices, s: Matrices, q: Matrices) -> tuple[Matrices, Matrices]:
    """Return the change Δ of each group's relevance that lowers the energy most, and its gain."""
    used = s > 0
    target = (q - s) / np.where(used, s, 1.0) ** 2
    low = np.maximum(np.where(used, target, np.inf).min(axis=1, initial=np.inf), -weights)
    high = np.maximum(np.where(used, target, -np.inf).max(axis=1, initial=-np.inf), -weights)
    low = np.minimum(low, high)

    def change_of_energy(change: Matrices) -> Matrices:
        growth = change[..., None] * s[:, None, :]
        terms = np.log1p(growth) - change[..., None] * q[:, None, :] / (1.0 + growth)
        return np.asarray(terms.sum(axis=-1))

    # The terms are functions of Δ + 1/sᵢ, so the search proceeds in log(Δ + 1/max s). Its domain is
    # Δ ≥ −w > −1/max s.
    shift = 1.0 / s.max(axis=1)
    smallest = EPSILON * shift
    below, above = (np.log(np.maximum(end + shift, smallest)) for end in (low, high))
    width = (above - below) / GRID
    points = np.exp(below[:, None] + width[:, None] * np.arange(GRID + 1)) - shift[:, None]
    points = np.maximum(points, -weights[:, None])
    best = change_of_energy(points).argmin(axis=1)
    every = np.arange(best.size)
    low, high = points[every, np.maximum(best - 1, 0)], points[every, np.minimum(best + 1, GRID)]
    change = _root_of_slope(low, high, s, q)
    # No move and removal of the group are compared with the point that was found.
    choices = np.stack([change, np.zeros_like(change), -weights], axis=1)
    values = change_of_energy(choices)
    chosen = values.argmin(axis=1)
    return choices[every, chosen], -values[every, chosen]


def _root_of_slope(low: Matrices, high: Matrices, s: Matrices, q: Matrices) -> Matrices:
    """Return the change Δ of each relevance, from `low` to `high`, where the energy is stationary.

    Newton steps that leave the interval, or start where the energy is concave, are bisections.
    """
    if len(low) == 1:
        return np.array([_root_of_one(float(low[0]), float(high[0]), s[0].tolist(), q[0].tolist())])
    change = 0.5 * (low + high)
    for _ in range(NEWTON):
        inverse = 1.0 / (1.0 + change[:, None] * s)
        squared = inverse**2
        slope = (s * inverse - q * squared).sum(axis=1)
        bend = ((2.0 * q * inverse - s) * s * squared).sum(axis=1)
        low, high = np.where(slope < 0, change, low), np.where(slope < 0, high, change)
        step = change - slope / np.where(bend > 0, bend, 1.0)
        inside = (bend > 0) & (step >= low) & (step <= high)
        following = np.where(inside, step, 0.5 * (low + high))
        if (np.abs(following - change) <= SETTLED * np.abs(change)).all():
            return following
        change = following
    return change


def _root_of_one(low: float, high: float, s: list[float], q: list[float]) -> float:
    """`_root_of_slope` for one group in Python numbers, which take a tenth of the time."""
    change = 0.5 * (low + high)
    for _ in range(NEWTON):
        slope = bend = 0.0
        for curvature, power in zip(s, q, strict=True):
            inverse = 1.0 / (1.0 + change * curvature)
            slope += inverse * (curvature - power * inverse)
            bend += (2.0 * power * inverse - curvature) * curvature * inverse * inverse
        low, high = (change, high) if slope < 0 else (low, change)
        following = change - slope / bend if bend > 0 else np.inf
        if not low <= following <= high:
            following = 0.5 * (low + high)
        if abs(following - change) <= SETTLED * abs(change):
            return following
        change = following
    return change


def full_moves(
    covariance: Matrices, metric: Matrices, explained: Matrices
) -> tuple[Matrices, Matrices]:
    """Return the best covariance Γ of each group, with all other groups fixed, and its gain.

    With S and Q after the group is left out and S^{-½}QS^{-½} = U diag(λ) Uᵀ, the minimum is at
    S^{-½}U diag(max(λ − 1, 0)) UᵀS^{-½}, lower by Σ λᵢ − 1 − log λᵢ over all λᵢ > 1. There is no
    other (Wipf 2023, Theorem 4.4, here for groups).
    """
    if len(metric) < FEW:
        return _best_covariances(covariance, metric, explained)
    moving = covariance.any(axis=(1, 2)) | ~at_rest(metric, explained)
    return _moves_of(_best_covariances, moving, covariance, metric, explained)


def _best_covariances(
    covariance: Matrices, metric: Matrices, explained: Matrices
) -> tuple[Matrices, Matrices]:
    """`full_moves` of the groups whose best covariance is not obviously zero."""
    if _are_pairs(metric, explained):
        return _of_pairs(covariance, metric, explained)
    try:
        return _by_triangles(covariance, metric, explained)
    except np.linalg.LinAlgError:  # a metric is singular up to rounding
        return _by_eigenvalues(covariance, metric, explained)


# The three functions below compute the same. Let S₋ and Q₋ be the metric and the explained moment
# without the group. Woodbury's identity gives S₋ = S(S − SΓS)⁻¹S, Q₋ = (I − SΓ)⁻¹Q(I − ΓS)⁻¹. With
# N = S − SΓS = BBᵀ and R = BᵀS⁻¹, therefore RS₋Rᵀ = I and RQ₋Rᵀ = B⁻¹QB⁻ᵀ = U diag(λ) Uᵀ = F. The
# minimiser is RᵀU diag(max(λ − 1, 0)) UᵀR, and the present Γ saves log|N| − log|S| + tr(F − S⁻¹Q).


def _of_pairs(
    covariance: Matrices, metric: Matrices, explained: Matrices
) -> tuple[Matrices, Matrices]:
    """Return the best covariances and their gains for groups of two real columns."""
    entries = [_entries(each) for each in (covariance, metric, explained)]
    with np.errstate(divide="ignore", invalid="ignore"):
        (x, y, z), gain, sound = _pair_formula(np, *entries)
    moved = np.empty(metric.shape)
    moved[:, 0, 0], moved[:, 0, 1], moved[:, 1, 0], moved[:, 1, 1] = x, y, y, z
    if not sound.all():
        rest = ~sound
        parts = (covariance[rest], metric[rest], explained[rest])
        moved[rest], gain[rest] = _by_eigenvalues(*parts)
    return moved, np.where(np.isfinite(gain), gain, 0.0)


def _are_pairs(*matrices: Matrices) -> bool:
    """Tell whether stacks of matrices are those of groups of two real columns."""
    return all(each.shape[1] == 2 and not np.iscomplexobj(each) for each in matrices)


def _entries(matrices: Matrices) -> tuple[Matrices, Matrices, Matrices]:
    """Return the entries (0, 0), (0, 1) and (1, 1) of symmetric 2 × 2 matrices."""
    return matrices[:, 0, 0], matrices[:, 0, 1], matrices[:, 1, 1]


def largest_ratios(metric: Matrices, explained: Matrices) -> Matrices:
    """Return the largest eigenvalue of S^{-½}QS^{-½} for each group, where S is not zero."""
    if _are_pairs(metric, explained):
        return _pair_ratios(metric, explained)[0]
    return _ratios(metric, explained)[:, -1]


def entry_gains(metric: Matrices, explained: Matrices) -> tuple[Matrices, Matrices]:
    """Return what groups of covariance zero gain by their best one, and the largest eigenvalues.

    The gain is Σ λ − 1 − log λ over the eigenvalues λ > 1 of S^{-½}QS^{-½}. Largest eigenvalues
    that cannot be the largest of all may be zero.
    """
    if _are_pairs(metric, explained):
        one, two = _pair_ratios(metric, explained)
        larger, smaller = np.maximum(one - 1.0, 0.0), np.maximum(two - 1.0, 0.0)
        return larger - np.log1p(larger) + smaller - np.log1p(smaller), one
    gains, largest = np.zeros(len(metric)), np.zeros(len(metric))
    moving = np.flatnonzero(~at_rest(metric, explained))
    if moving.size:
        nothing = np.zeros_like(metric[moving])
        _, found = full_moves(nothing, metric[moving], explained[moving])
        # The largest eigenvalue of all belongs to a group whose gain is at least the largest one
        # divided by the number of columns.
        near = moving[found >= 0.99 * found.max() / metric.shape[1]]
        gains[moving], largest[near] = found, largest_ratios(metric[near], explained[near])
    return gains, largest


def _ratios(metric: Matrices, explained: Matrices) -> Matrices:
    """Return all eigenvalues of S^{-½}QS^{-½} for each group, ascending."""
    root = inverse_root(metric)
    return np.asarray(np.linalg.eigvalsh(root @ explained @ adjoint(root)))


def _pair_ratios(metric: Matrices, explained: Matrices) -> tuple[Matrices, Matrices]:
    """Return the larger and the smaller eigenvalues of S^{-½}QS^{-½} for groups of two columns."""
    # With S = BBᵀ, B⁻¹QB⁻ᵀ has the entries `top`, `side` and `bottom`, as in `_pair_formula`.
    (a, b, c), (p, q, r) = _entries(metric), _entries(explained)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = b / a
        second = c - share * b
        sound = (a > 0) & (second > WELL_CONDITIONED * c)
        middle = q - share * p
        top, bottom = p / a, (r - share * (q + middle)) / second
        gap = np.hypot(0.5 * (top - bottom), middle / np.sqrt(a * second))
    half = 0.5 * (top + bottom)
    one, two = half + gap, half - gap
    if not sound.all():
        values = _ratios(metric[~sound], explained[~sound])
        two[~sound], one[~sound] = values[:, 0], values[:, 1]
    return one, two


def of_one_pair(
    covariance: Matrices, metric: Matrices, explained: Matrices
) -> tuple[Matrices, float]:
    """`_of_pairs` for one group in Python numbers, which take a tenth of the time."""
    (a, b), (_, c) = metric.tolist()
    (p, q), (_, r) = explained.tolist()
    (u, v), (_, w) = covariance.tolist()
    try:
        (x, y, z), gain, sound = _pair_formula(_Scalars, (u, v, w), (a, b, c), (p, q, r))
    except (ValueError, ZeroDivisionError):  # the root or the logarithm of a negative number
        raise np.linalg.LinAlgError from None
    if not sound or not math.isfinite(gain):
        raise np.linalg.LinAlgError
    return np.array([[x, y], [y, z]]), gain


class _Scalars:
    """The functions of NumPy that `_pair_formula` calls, for Python numbers."""

    log, log1p, sqrt, hypot = math.log, math.log1p, math.sqrt, math.hypot
    sin, cos, arctan2 = math.sin, math.cos, math.atan2
    maximum = max


def _pair_formula(lib: Any, present: Any, metric: Any, explained: Any) -> tuple[Any, Any, Any]:
    """Return the best covariances of groups of two real columns, their gains, and a mask.

    The arguments are the entries (0, 0), (0, 1) and (1, 1) of Γ, S and Q. Where the mask is False,
    digits would be lost.
    """
    (u, v, w), (a, b, c), (p, q, r) = present, metric, explained
    # The entries of N = S − SΓS, from the rows (i, j) and (k, h) of SΓ.
    i, j, k, h = a * u + b * v, a * v + b * w, b * u + c * v, b * v + c * w
    first, edge, last = a - i * a - j * b, b - i * b - j * c, c - k * b - h * c
    volume = a * c - b * b
    share = edge / first
    second = last - share * edge
    sound = (first > WELL_CONDITIONED * a) & (volume > WELL_CONDITIONED * a * c)
    sound = sound & (second > WELL_CONDITIONED * c)
    # B has the columns (β, share·β) and (0, δ); F = B⁻¹QB⁻ᵀ the entries `top`, `side` and `bottom`.
    beta, delta = lib.sqrt(first), lib.sqrt(second)
    middle = q - share * p
    top, bottom, side = p / first, (r - share * (q + middle)) / second, middle / (beta * delta)
    half, gap = 0.5 * (top + bottom), 0.5 * (top - bottom)
    radius, turn = lib.hypot(gap, side), 0.5 * lib.arctan2(side, gap)
    one, two = lib.maximum(half + radius - 1.0, 0.0), lib.maximum(half - radius - 1.0, 0.0)
    # Columns of B times those of U, the eigenvectors (cos, sin) and (−sin, cos), then of S⁻¹.
    cos, sin, covariance = lib.cos(turn), lib.sin(turn), (0.0, 0.0, 0.0)
    for excess, over, under in ((one, cos, sin), (two, -sin, cos)):
        over, under = beta * over, share * beta * over + delta * under
        over, under = (c * over - b * under) / volume, (a * under - b * over) / volume
        x, y, z = covariance
        scaled = excess * over
        covariance = x + scaled * over, y + scaled * under, z + excess * under * under
    saved = lib.log(first * second / volume) + top + bottom
    saved = saved - (c * p - 2.0 * b * q + a * r) / volume
    return covariance, one - lib.log1p(one) + two - lib.log1p(two) - saved, sound


def _by_triangles(
    covariance: Matrices, metric: Matrices, explained: Matrices
) -> tuple[Matrices, Matrices]:
    """Return the best covariances and gains by Cholesky factors; raise if digits would be lost."""
    # S⁻¹B = (I − ΓS)B⁻ᵀ, log|N| − log|S| = log|I − SΓ| and N⁻¹ − S⁻¹ = N⁻¹SΓ, so that S is not
    # inverted.
    sizes = np.diagonal(metric, axis1=1, axis2=2).real
    used = sizes > 0
    if not used.all():  # columns of zeros get no variance, and their unit does not matter
        metric, sizes = metric + ~used[:, :, None] * np.eye(used.shape[1]), sizes + ~used
    coupled = metric @ covariance
    root = np.linalg.cholesky(metric - coupled @ metric)
    pivots = np.diagonal(root, axis1=1, axis2=2).real
    if not (pivots**2 > WELL_CONDITIONED * sizes).all():
        raise np.linalg.LinAlgError
    inner = np.linalg.inv(root)
    ratios, axes = np.linalg.eigh(inner @ explained @ adjoint(inner))
    excess = np.maximum(ratios - 1.0, 0.0)
    half = adjoint(inner) @ (axes * np.sqrt(excess)[:, None, :])
    half = used[:, :, None] * (half - adjoint(coupled) @ half)
    gain = (excess - np.log1p(excess)).sum(axis=1)
    active = covariance.any(axis=(1, 2))
    if active.any():
        inner, coupled, explained = inner[active], coupled[active], explained[active]
        shares = np.conj(inner @ coupled @ explained) * inner
        gain[active] -= np.linalg.slogdet(np.eye(used.shape[1]) - coupled)[1]
        gain[active] -= shares.sum(axis=(1, 2)).real
    return half @ adjoint(half), np.where(np.isfinite(gain), gain, 0.0)


def _by_eigenvalues(
    covariance: Matrices, metric: Matrices, explained: Matrices
) -> tuple[Matrices, Matrices]:
    """Return the best covariances and their gains from eigenvalues, also for singular metrics."""
    # With t = 1 + Δs, log t + q(1/t − 1)/s is minimal at t = q/s for one direction. For a matrix,
    # T = I + S^½ΓS^½ ⪰ I minimises log|T| + tr(Q̃T⁻¹) with Q̃ = S^{-½}QS^{-½}: T has the eigenvectors
    # of Q̃ and the eigenvalues max(λ, 1).
    outside, quality, saved = leave_group_out(covariance, metric, explained)
    root = inverse_root(outside)
    ratios, axes = np.linalg.eigh(root @ quality @ adjoint(root))
    excess = np.maximum(ratios - 1.0, 0.0)
    half = adjoint(root) @ (axes * np.sqrt(excess)[:, None, :])
    gain = (excess - np.log1p(excess)).sum(axis=1) - saved
    return half @ adjoint(half), np.where(np.isfinite(gain), gain, 0.0)


def inverse_root(metric: Matrices) -> Matrices:
    """Return R with RSRᵀ = I for each positive semi-definite matrix S of a stack.

    Directions in which S, scaled to a unit diagonal, is zero up to rounding have rows of zeros.
    """
    sizes = np.diagonal(metric, axis1=1, axis2=2).real
    scale = np.where(sizes > 0, 1.0 / np.sqrt(np.where(sizes > 0, sizes, 1.0)), 0.0)
    values, vectors = np.linalg.eigh(metric * scale[:, :, None] * scale[:, None, :])
    flat = values <= DEPENDENT
    roots = np.where(flat, 0.0, 1.0 / np.sqrt(np.where(flat, 1.0, values)))
    return np.asarray(roots[:, :, None] * adjoint(vectors) * scale[:, None, :])


def leave_group_out(
    covariance: Matrices, metric: Matrices, explained: Matrices
) -> tuple[Matrices, Matrices, Matrices]:
    """Return metric and explained moment of each group after it is left out, and what it gains."""
    # Let Γ = TTᵀ and M = I − TᵀST, the posterior covariance of the group's latents. Woodbury's
    # identity gives Σ₋⁻¹ = Σ⁻¹ + Σ⁻¹Φ_gT M⁻¹ TᵀΦ_gᵀΣ⁻¹, so S₋ = S + ST M⁻¹ TᵀS = RS and Q₋ = RQRᵀ
    # with R = I + ST M⁻¹ Tᵀ. The energy rises by log|M| + tr(M⁻¹TᵀQT).
    active = covariance.any(axis=(1, 2))
    if not active.all():  # most groups are not active and need no work
        outside, quality, saved = metric.copy(), explained.copy(), np.zeros(len(metric))
        if active.any():
            parts = (covariance[active], metric[active], explained[active])
            outside[active], quality[active], saved[active] = leave_group_out(*parts)
        return outside, quality, saved
    half = square_root(covariance)
    coupled = metric @ half
    left = np.eye(metric.shape[1]) - adjoint(half) @ coupled
    spread, turn = np.linalg.eigh(left)
    spread = np.maximum(spread, EPSILON)
    rotated = half @ turn
    resolvent = np.eye(metric.shape[1]) + (metric @ rotated / spread[:, None, :]) @ adjoint(rotated)
    saved = (np.log(spread) + _powers(rotated, explained) / spread).sum(axis=1)
    outside = resolvent @ metric
    quality = resolvent @ explained @ adjoint(resolvent)
    return 0.5 * (outside + adjoint(outside)), 0.5 * (quality + adjoint(quality)), saved


def square_root(covariance: Matrices) -> Matrices:
    """Return T with TTᵀ = Γ for each positive semi-definite matrix Γ of a stack."""
    values, vectors = np.linalg.eigh(covariance)
    values = np.where(values > NEGLIGIBLE * values[:, -1:], values, 0.0)
    return np.asarray(vectors * np.sqrt(values)[:, None, :])


class Ranking(NamedTuple):
    """What the best move of every group, with all others fixed, would achieve."""

    # (g,): decrease of the energy per response, one for each of the g groups
    gains: Matrices
    vanishes: Matrices  # (g,): whether the covariance of the group is zero after the move


def rank_groups(state: State, groups: Groups, most: int | None = None) -> Ranking:
    """Return the gain of the best move of every group; the columns of a group share one relevance.

    If `most` is given, gains of inactive groups beyond the `most` largest may be zero.
    """
    relevance = to_numpy(state.relevance)
    gains, vanishes = np.zeros(groups.count), np.zeros(groups.count, dtype=bool)
    for numbers, members, metric, explained in group_blocks(state, groups):
        present = multiples_of_identity(relevance[members[:, 0]], members.shape[1])
        moved, gains[numbers] = spherical_moves(present, metric, explained, most)
        vanishes[numbers] = moved[:, 0, 0] == 0.0
    return Ranking(gains, vanishes)
