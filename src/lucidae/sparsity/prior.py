"""The prior of the coefficients: blocks of columns, each with a covariance of its own.

Σ = γI + Σ_b Φ_bΓ_bΦ_bᵀ. A block is a single column (Γ = w, its relevance), a group of columns that
share one relevance (Γ = wI), or a group with any positive semi-definite Γ. Relevances are stored
as vectors, covariances of groups as stacks of matrices.

Results for groups with any Γ do not depend on the axes inside a group, so that solvers take an
orthonormal basis of each (`orthonormal`). With Γ = V diag(w) Vᵀ the columns Φ_bV have independent
coefficients with variances w: in these principal axes (`Axes`) the problem is one of single
columns, and every formula for relevances holds.

An exact move goes to the minimum of the full energy in the prior covariance Γ of one block. With
all other blocks fixed, a change Δ of Γ changes the energy per response by
log|I + ΔS| − tr (I + ΔS)⁻¹ΔQ, where S = Φ_bᵀΣ⁻¹Φ_b is the metric and Q = Φ_bᵀΣ⁻¹(XXᵀ/n)Σ⁻¹Φ_b the
explained moment of the block. The *gain* of a move is the decrease.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse

from lucidae.arrays import Array, adjoint, device, namespace

Matrices: TypeAlias = np.ndarray[Any, Any]

EPSILON = float(np.finfo(float).eps)

GRID = 32
"""Number of intervals into which the search for the best relevance of a group divides its range."""

FINER = 6
"""Number of grids of that search: the last one has intervals of 6e-8 times its range."""

NEGLIGIBLE = 1e-14
"""Eigenvalues of a group's covariance below this share of the largest one are set to zero."""

DEPENDENT = 1e-14
"""Eigenvalues of a group's metric, scaled to a unit diagonal, below this count as zero."""

AT_REST = 1e-12
"""A covariance of zero is surely the best if the pivots of S − Q over the diagonal of S exceed
this."""


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


def spherical_moves(
    covariance: Matrices, metric: Matrices, explained: Matrices
) -> tuple[Matrices, Matrices]:
    """Return the best covariance wI of each group, with all other groups fixed, and its gain.

    With S = V diag(s) Vᵀ and the diagonal q of VᵀQV, a change Δ of w changes the energy by Σᵢ log(1
    + Δsᵢ) − Δqᵢ/(1 + Δsᵢ). Each term falls until Δ = (qᵢ − sᵢ)/sᵢ² and rises after it, so all
    stationary points lie between these numbers. There may be several minima: energies are compared.
    """
    w, every = covariance[:, 0, 0].real, np.arange(len(metric))
    s, vectors = np.linalg.eigh(metric)
    used = s > 8.0 * EPSILON * s.shape[1] * s[:, -1:]  # otherwise there is no column this way
    s, q = np.where(used, s, 0.0), np.where(used, np.maximum(_powers(vectors, explained), 0.0), 0.0)

    def energy(change: Matrices) -> Matrices:
        growth = 1.0 + change[..., None] * s[:, None, :]
        return np.asarray((np.log(growth) - change[..., None] * q[:, None, :] / growth).sum(-1))

    # The terms are functions of Δ + 1/sᵢ, so the search proceeds in log(Δ + 1/max s), on ever finer
    # grids around the lowest point.
    target = np.where(used, (q - s) / np.where(used, s, 1.0) ** 2, np.nan)
    shift = 1.0 / np.where(s[:, -1] > 0, s[:, -1], 1.0)
    ends = [np.fmax(end(target, axis=1), -w) + shift for end in (np.fmin.reduce, np.fmax.reduce)]
    low, high = (np.log(np.maximum(end, EPSILON * shift)) for end in ends)
    for _ in range(FINER):
        points = low[:, None] + (high - low)[:, None] * np.linspace(0.0, 1.0, GRID + 1)
        moves = np.maximum(np.exp(points) - shift[:, None], -w[:, None])
        best = energy(moves).argmin(axis=1)
        low, high = (
            points[every, np.maximum(best - 1, 0)],
            points[every, np.minimum(best + 1, GRID)],
        )
    # No move and removal of the group are compared with the point that was found.
    found = np.maximum(np.exp(0.5 * (low + high)) - shift, -w)
    choices = np.stack([found, 0.0 * w, -w], axis=1)
    values = energy(choices)
    chosen = values.argmin(axis=1)
    moved = (w + choices[every, chosen])[:, None, None] * np.eye(metric.shape[1])
    return moved, -values[every, chosen]


def _powers(vectors: Matrices, explained: Matrices) -> Matrices:
    """Return vᵀQv for the columns v of each matrix in `vectors` and its matrix Q in `explained`."""
    return np.asarray((np.conj(vectors) * (explained @ vectors)).sum(axis=1).real)


def full_moves(
    covariance: Matrices, metric: Matrices, explained: Matrices
) -> tuple[Matrices, Matrices]:
    """Return the best covariance Γ of each group, with all other groups fixed, and its gain.

    With S and Q after the group is left out and S^{-½}QS^{-½} = U diag(λ) Uᵀ, the minimum is at
    S^{-½}U diag(max(λ − 1, 0)) UᵀS^{-½}, lower by Σ λᵢ − 1 − log λᵢ over all λᵢ > 1. There is no
    other (Wipf 2023, Theorem 4.4, here for groups).
    """
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
    if not covariance.any():
        return metric, explained, np.zeros(len(metric))
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


@dataclass(frozen=True, eq=False)
class Groups:
    """A partition of κ columns into g groups; the columns of a group share one relevance."""

    labels: np.ndarray[Any, Any]  # (κ,): the group of each column, numbered from 0 without gaps
    # (g, m): the columns of each group, padded with the group's first column to the size m of the
    # largest group
    members: np.ndarray[Any, Any]
    present: np.ndarray[Any, Any]  # (g, m): 1 for a member, 0 for padding

    @classmethod
    def of(cls, labels: Any, n_columns: int) -> Groups:
        """Return the partition by integer labels, or into groups of so many columns."""
        whole = isinstance(labels, int | np.integer)
        if whole and not isinstance(labels, bool | np.timedelta64):
            if labels < 1 or n_columns % labels:
                raise ValueError(
                    f"groups={labels} was given for {n_columns} columns, expected a positive "
                    "number of columns per group that divides the number of columns, or one label "
                    "per column."
                )
            labels = np.arange(n_columns) // labels
        given = np.asarray(labels)
        if given.ndim == 0:
            raise ValueError(
                f"groups={labels!r} was given, expected an integer number of columns per group, or "
                f"one integer label for each of the {n_columns} columns."
            )
        if given.shape != (n_columns,):
            raise ValueError(
                f"groups has shape {given.shape}, expected ({n_columns},): one label per column."
            )
        if given.dtype.kind not in "iu":
            raise ValueError(
                f"groups has dtype {given.dtype}, expected integers: columns with the same label "
                "share one relevance (prior variance)."
            )
        # Groups of different sizes become rows of one rectangle, so that totals are a gather and a
        # sum on any device; padding repeats a column and is multiplied by zero.
        _, numbered, sizes = np.unique(given, return_inverse=True, return_counts=True)
        order = np.argsort(numbered, kind="stable")
        starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        place = np.arange(sizes.max())
        present = place < sizes[:, None]
        members = order[starts[:, None] + np.where(present, place, 0)]
        return cls(numbered, members, present.astype(float))

    @property
    def count(self) -> int:
        """Number of groups."""
        return int(self.members.shape[0])

    @property
    def sizes(self) -> np.ndarray[Any, Any]:
        """Number of columns of each group."""
        return np.asarray(self.present.sum(axis=1), dtype=int)

    @cached_property
    def by_size(self) -> list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
        """Numbers (k,) and columns (k, m) of the groups of each size m, ascending."""
        sizes = self.sizes
        return [
            (numbers, self.members[numbers, :size])
            for size in np.unique(sizes)
            for numbers in (np.flatnonzero(sizes == size),)
        ]

    def columns(self, numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the columns of some groups in ascending order; `numbers` are their numbers."""
        return np.sort(self.members[numbers][self.present[numbers] > 0])

    def gather(self, values: Array) -> Array:
        """Return values (..., κ) of columns arranged by group, (..., g, m), zero if unused."""
        xp = namespace(values)
        index = xp.asarray(self.members.ravel(), device=device(values))
        taken = xp.reshape(
            xp.take(values, index, axis=-1), (*values.shape[:-1], *self.members.shape)
        )
        return taken * xp.asarray(self.present, dtype=values.dtype, device=device(values))

    def spread(self, values: Array) -> Array:
        """Return the values of each column from values arranged by group; undoes `gather`."""
        xp = namespace(values)
        places = np.zeros(self.labels.size, dtype=int)
        used = np.flatnonzero(self.present.ravel() > 0)
        places[self.members.ravel()[used]] = used
        flat = xp.reshape(values, (self.members.size,))
        return xp.take(flat, xp.asarray(places, device=device(values)), axis=0)

    def total(self, values: Array) -> Array:
        """Return the sum of the values of each group's columns: one number for each group."""
        return namespace(values).sum(self.gather(values), axis=-1)

    def expand(self, values: Array) -> Array:
        """Return, for each column, the value of its group; `values` has one entry per group."""
        xp = namespace(values)
        return xp.take(values, xp.asarray(self.labels, device=device(values)), axis=-1)

    def share(self, values: Array) -> Array:
        """Return, for each column, the sum of the values of all columns of its group."""
        return self.expand(self.total(values))

    def restricted(self, columns: np.ndarray[Any, Any]) -> Groups:
        """Return the partition of the selected columns; `columns` are their indices, in order."""
        return Groups.of(self.labels[columns], len(columns))


def group_distances(covariance: Matrices, metric: Matrices, explained: Matrices) -> Matrices:
    """Return the distance of the covariance of each group to the optimality (KKT) conditions.

    A covariance Γ is optimal if Q − S is zero on its range and negative semi-definite. The distance
    is the largest eigenvalue of |Γ^½(Q − S)Γ^½| and of S^{-½}(Q − S)S^{-½}.
    """
    root = inverse_root(metric)
    ratios = np.linalg.eigvalsh(root @ explained @ adjoint(root))[:, -1] - 1.0
    active = covariance.any(axis=(1, 2))
    half = square_root(covariance[active])
    slack = np.linalg.eigvalsh(adjoint(half) @ (explained - metric)[active] @ half)
    ratios[active] = np.maximum(ratios[active], np.abs(slack).max(axis=1))
    return np.asarray(ratios)


@dataclass(frozen=True, slots=True, eq=False)
class Axes:
    """Principal axes (eigenvectors of the prior covariance) of some groups."""

    # (a, m): the columns of each of these groups, padded to the size m of the largest group
    members: Any
    present: Any  # (a, m): 1 for a member, 0 for padding
    vectors: Array  # (a, m, m): the axes of each group, as columns; zero where there is padding

    def turn(self, n_columns: int) -> Any:
        """Return the block-diagonal matrix V with these axes, and ones for columns without axes."""
        used = self.present > 0
        inside = used[:, :, None] & used[:, None, :]
        rows = np.broadcast_to(self.members[:, :, None], inside.shape)[inside]
        columns = np.broadcast_to(self.members[:, None, :], inside.shape)[inside]
        others = np.setdiff1d(np.arange(n_columns), self.members[used])
        entries = np.concatenate([self.vectors[inside], np.ones(others.size)])
        places = np.append(rows, others), np.append(columns, others)
        return scipy.sparse.csc_array((entries, places), shape=(n_columns, n_columns))

    def latents(self, index: Any, n_columns: int) -> tuple[Any, Any]:
        """Return the columns on which the latents `index` depend, and their part of `turn`."""
        part = self.turn(n_columns)[:, index]
        involved = np.unique(part.indices)
        return involved, part[involved]

    def covariance_roots(self, deviations: Any, groups: Groups) -> Matrices:
        """Return square roots A of the prior covariances AAᵀ of groups, of shape (g, m, m).

        If columns are nearly dependent, the entries of a covariance cancel; its root keeps their
        digits.
        """
        spread = groups.gather(deviations)
        found = spread[:, :, None] * np.eye(spread.shape[1])
        found = found.astype(np.result_type(found, self.vectors))
        numbers = groups.labels[self.members[:, 0]]
        found[numbers] = self.vectors * spread[numbers][:, None, :]
        return np.asarray(found)

    def covariances(self, relevance: Any, groups: Groups) -> Matrices:
        """Return the prior covariance of each group, of shape (g, m, m), padded with zeros."""
        roots = self.covariance_roots(np.sqrt(relevance), groups)
        return np.asarray(roots @ adjoint(roots))


def principal_axes(covariances: Matrices, groups: Groups) -> tuple[Axes, Matrices]:
    """Return the principal axes of the covariances of groups, and the variances along them."""
    active = np.flatnonzero(covariances.any(axis=(1, 2)))
    members, present = groups.members[active], groups.present[active]
    # Padding gets the eigenvalue −1, so that its axes are not mixed with those of variance zero.
    marked = covariances[active] - (1.0 - present)[:, :, None] * np.eye(members.shape[1])
    values, vectors = np.linalg.eigh(marked)
    values, vectors = values[:, ::-1], vectors[:, :, ::-1]
    vectors = vectors * present[:, :, None] * present[:, None, :]
    values = np.where(values > NEGLIGIBLE * values[:, :1], values, 0.0)
    relevance = np.zeros(groups.labels.size)
    relevance[members[present > 0]] = values[present > 0]
    return Axes(members, present, vectors), relevance
