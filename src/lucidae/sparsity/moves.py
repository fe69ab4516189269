"""Exact moves: the minimum of the full energy in the prior covariance Γ of one block of columns.

A block is a column (Γ = w), a group with one relevance (Γ = wI), or a group with a covariance of
its own (any Γ ⪰ 0). With all other blocks fixed, a change Δ of Γ changes the energy per response by
log|I + ΔS| − tr (I + ΔS)⁻¹ΔQ, where S = Φ_bᵀΣ⁻¹Φ_b is the metric and Q = Φ_bᵀΣ⁻¹(XXᵀ/n)Σ⁻¹Φ_b the
explained moment of the block. The *gain* of a move is the decrease. Columns move as vectors, groups
as stacks of small matrices, which NumPy computes.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from lucidae.arrays import Array, adjoint, namespace

Matrices: TypeAlias = np.ndarray[Any, Any]

EPSILON = float(np.finfo(float).eps)

GRID = 32
"""Number of intervals into which the search for the best relevance of a group divides its range."""

NEWTON = 12
"""Largest number of Newton steps by which the search for one relevance ends."""

SETTLED = 1e-4
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
    If `most` is given, gains of inactive groups beyond about the `most` largest may be zero.
    """
    weights = covariance[:, 0, 0].real
    s, vectors = np.linalg.eigh(metric)
    q = _powers(vectors, explained)
    flat = s <= 8.0 * EPSILON * s.shape[1] * s[:, -1:]  # the group has no column in this direction
    s, q = np.where(flat, 0.0, s), np.where(flat, 0.0, np.maximum(q, 0.0))
    change, gain = np.zeros_like(weights), np.zeros_like(weights)
    part = np.flatnonzero((weights > 0) | (q > s).any(axis=1))
    if most is not None and part.size > 4 * most:
        # A term of the energy of a group of relevance zero falls by at most ρ − 1 − log ρ with
        # ρ = qᵢ/sᵢ > 1, and the gain is at most their sum. Groups with tr Q > tr S surely gain.
        ratios = np.maximum(q[part], s[part]) / np.where(s[part] > 0, s[part], np.inf)
        ratios = np.maximum(ratios, 1.0)
        bounds = (ratios - 1.0 - np.log(ratios)).sum(axis=1)
        sure = (weights[part] > 0) | (q[part].sum(axis=1) > s[part].sum(axis=1))
        part = part[sure | (bounds >= np.partition(bounds, -4 * most)[-4 * most])]
    if part.size:
        with np.errstate(divide="ignore", invalid="ignore"):
            change[part], gain[part] = _best_changes(weights[part], s[part], q[part])
    # If rounding errors make a metric indefinite, the energy is not a number and nothing moves.
    sound = np.isfinite(gain) & np.isfinite(change)
    change, gain = np.where(sound, change, 0.0), np.where(sound, gain, 0.0)
    moved = np.where(change <= -weights, 0.0, weights + change)
    return multiples_of_identity(moved, metric.shape[1]), gain


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
    below, above = (np.log(np.maximum(end + shift, EPSILON * shift)) for end in (low, high))
    width = (above - below) / GRID
    points = np.exp(below[:, None] + width[:, None] * np.arange(GRID + 1)) - shift[:, None]
    points = np.maximum(points, -weights[:, None])
    best = change_of_energy(points).argmin(axis=1)
    every = np.arange(best.size)
    low, high = points[every, np.maximum(best - 1, 0)], points[every, np.minimum(best + 1, GRID)]
    # Newton steps that leave the interval, or start where the energy is concave, are bisections.
    change = 0.5 * (low + high)
    for _ in range(NEWTON):
        inverse = 1.0 / (1.0 + change[:, None] * s)
        squared = inverse**2
        slope = (s * inverse - q * squared).sum(axis=1)
        bend = ((2.0 * q * inverse - s) * s * squared).sum(axis=1)
        low, high = np.where(slope < 0, change, low), np.where(slope < 0, high, change)
        step = change - slope / np.where(bend > 0, bend, 1.0)
        inside = (bend > 0) & (step >= low) & (step <= high)
        last, change = change, np.where(inside, step, 0.5 * (low + high))
        if (np.abs(change - last) <= SETTLED * np.abs(last)).all():
            break
    # No move and removal of the group are compared with the point that was found.
    choices = np.stack([change, np.zeros_like(change), -weights], axis=1)
    values = change_of_energy(choices)
    chosen = values.argmin(axis=1)
    return choices[every, chosen], -values[every, chosen]


def full_moves(
    covariance: Matrices, metric: Matrices, explained: Matrices
) -> tuple[Matrices, Matrices]:
    """Return the best covariance Γ of each group, with all other groups fixed, and its gain.

    With S and Q after the group is left out and S^{-½}QS^{-½} = U diag(λ) Uᵀ, the minimum is at
    S^{-½}U diag(max(λ − 1, 0)) UᵀS^{-½}, lower by Σ λᵢ − 1 − log λᵢ over all λᵢ > 1. There is no
    other (Wipf 2023, Theorem 4.4, here for groups).
    """
    try:
        return _by_triangles(covariance, metric, explained)
    except np.linalg.LinAlgError:  # a metric is singular up to rounding
        return _by_eigenvalues(covariance, metric, explained)


# The two functions below compute the same. Let S₋ and Q₋ be the metric and the explained moment
# without the group. Woodbury's identity gives S₋ = S(S − SΓS)⁻¹S, Q₋ = (I − SΓ)⁻¹Q(I − ΓS)⁻¹. With
# N = S − SΓS = BBᵀ and R = BᵀS⁻¹, therefore RS₋Rᵀ = I and RQ₋Rᵀ = B⁻¹QB⁻ᵀ = U diag(λ) Uᵀ = F. The
# minimiser is RᵀU diag(max(λ − 1, 0)) UᵀR, and the present Γ saves log|N| − log|S| + tr(F − S⁻¹Q).


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


def majorized_covariances(covariance: Matrices, metric: Matrices, explained: Matrices) -> Matrices:
    """Return S^{-½}(S^½AS^½)^½S^{-½}: one step of majorise–minimise in each covariance.

    A = ΓQΓ is the mean of uuᵀ over the posterior means u = ΓΦ_gᵀΣ⁻¹x of the responses.
    """
    # log|Σ| is concave in Γ, with gradient S, and the data term is the minimum over U of a sum with
    # tr(Γ⁻¹A): tr(SΓ) + tr(Γ⁻¹A) is minimal where ΓSΓ = A. With RSRᵀ = I and Γ = RᵀBR this is
    # B² = R⁻ᵀAR⁻¹, where R⁻ᵀ = RS.
    inverse = inverse_root(metric)
    root = inverse @ metric @ covariance
    half = square_root(root @ explained @ adjoint(root))
    values = np.linalg.norm(half, axis=1)  # square roots of the eigenvalues
    scaled = adjoint(inverse) @ (half / np.sqrt(np.where(values > 0, values, 1.0))[:, None, :])
    return np.asarray(scaled @ adjoint(scaled))


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
