"""The prior of the coefficients: blocks of columns, each with a covariance of its own.

Σ = γI + Σ_b Φ_bΓ_bΦ_bᵀ. A block is a single column (Γ = w, its relevance), a group of columns that
share one relevance (Γ = wI), or a group with any positive semi-definite Γ. Single columns are
stored and moved as vectors (`columns`), groups as stacks of matrices (`blocks`).

Results for groups with any Γ do not depend on the axes inside a group, so that solvers take an
orthonormal basis of each (`orthonormal`). With Γ = V diag(w) Vᵀ the columns Φ_bV have independent
coefficients with variances w: in these principal axes (`Axes`) the problem is one of single
columns, and every formula for relevances holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from lucidae.arrays import (
    Array,
    adjoint,
    device,
    namespace,
    squared_norms,
    to_numpy,
)
from lucidae.sparsity.dictionary import dense_columns
from lucidae.sparsity.moves import (
    NEGLIGIBLE,
    Matrices,
    full_moves,
    inverse_root,
    spherical_moves,
    square_root,
)


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
            labels = _consecutive(int(labels), n_columns)
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

    def by_size(self) -> list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
        """Return numbers (k,) and columns (k, m) of the groups of each size m, ascending."""
        return self._by_size

    @cached_property
    def _by_size(self) -> list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
        """What `by_size` returns; solvers read it several times in each step."""
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


def _consecutive(size: int, n_columns: int) -> np.ndarray[Any, Any]:
    """Return labels by which each `size` consecutive columns form a group."""
    if size < 1 or n_columns % size:
        raise ValueError(
            f"groups={size} was given for {n_columns} columns, expected a positive number of "
            "columns per group that divides the number of columns, or one label per column."
        )
    return np.arange(n_columns) // size


@dataclass(frozen=True, eq=False)
class BlockPrior:
    """Groups of columns with a covariance each: wI, or any Γ (`full`)."""

    groups: Groups
    full: bool = False

    def moves(
        self, covariance: Matrices, metric: Matrices, explained: Matrices, most: int | None = None
    ) -> tuple[Matrices, Matrices]:
        """Return the best covariance of each group, with all others fixed, and its gain."""
        if self.full:
            return full_moves(covariance, metric, explained)
        return spherical_moves(covariance, metric, explained, most)

    def violation(self, covariance: Matrices, metric: Matrices, explained: Matrices) -> Matrices:
        """Return the distance of each group to the optimality (KKT) conditions.

        A covariance Γ is optimal if Q − S is zero on its range and negative semi-definite. The
        distance is the largest eigenvalue of |Γ^½(Q − S)Γ^½| and of S^{-½}(Q − S)S^{-½}; if groups
        share one relevance w, matrices are replaced by their traces.
        """
        if not self.full:
            trace = np.trace(metric, axis1=1, axis2=2).real
            slope = np.trace(explained, axis1=1, axis2=2).real - trace
            slack = covariance[:, 0, 0].real * np.abs(slope)
            return np.asarray(np.maximum(slack, slope / np.where(trace > 0, trace, 1.0)))
        root = inverse_root(metric)
        ratios = np.linalg.eigvalsh(root @ explained @ adjoint(root))[:, -1] - 1.0
        active = covariance.any(axis=(1, 2))
        half = square_root(covariance[active])
        slack = np.linalg.eigvalsh(adjoint(half) @ (explained - metric)[active] @ half)
        ratios[active] = np.maximum(ratios[active], np.abs(slack).max(axis=1))
        return np.asarray(ratios)


def in_order(index: Matrices) -> bool:
    """Tell whether indices are consecutive."""
    return bool((np.diff(index) == 1).all())


def columns_in_order(columns: Any, index: Matrices) -> Array:
    """Return the columns with the indices `index`, without a copy if these are consecutive."""
    if not isinstance(columns, np.ndarray) or not in_order(index):
        return dense_columns(columns, index)
    return columns[:, int(index[0]) : int(index[-1]) + 1]


def group_grams(columns: Any, members: Matrices) -> Matrices:
    """Return AᵀA for the columns A of each group, of shape (k, m, m)."""
    (count, size), columns = members.shape, columns_in_order(columns, members.ravel())
    if size == 1:
        return to_numpy(squared_norms(columns, -2))[:, None, None]
    if isinstance(columns, np.ndarray) and count >= MANY and not np.iscomplexobj(columns):
        return _grams_by_entries(columns, size)
    xp = namespace(columns)
    columns = xp.permute_dims(xp.reshape(columns, (-1, count, size)), (1, 0, 2))
    return to_numpy(adjoint(columns) @ columns)


MANY = 200
"""Number of groups from which on their Gram matrices are computed entry by entry."""


def _grams_by_entries(columns: Matrices, size: int) -> Matrices:
    """Return the Gram matrices of groups of `size` consecutive columns of a real matrix."""
    total = columns.shape[1]
    found = np.empty((total // size, size, size))
    # Products with columns further to the right are computed for all columns, because strided
    # access would take longer; those with columns of the next group are not used.
    for distance in range(size):
        left, right = columns[:, : total - distance], columns[:, distance:]
        entries = np.zeros(total)
        entries[: total - distance] = np.einsum("dk,dk->k", left, right)
        for row in range(size - distance):
            found[:, row, row + distance] = found[:, row + distance, row] = entries[row::size]
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Axes:
    """Principal axes (eigenvectors of the prior covariance) of some groups."""

    # (a, m): the columns of each of these groups, padded to the size m of the largest group
    members: Any
    present: Any  # (a, m): 1 for a member, 0 for padding
    vectors: Array  # (a, m, m): the axes of each group, as columns; zero where there is padding

    def columns(self, dictionary: Any) -> Any:
        """Return the dictionary with Φ_gV in place of the columns Φ_g of each group with axes V."""
        turned = dictionary.astype(np.result_type(dictionary, self.vectors))
        used = self.present > 0
        parts = np.moveaxis(dictionary[:, self.members], 0, 1) @ self.vectors
        turned[:, self.members[used]] = np.moveaxis(parts, 1, 0)[:, used]
        return turned

    def columns_at(self, dictionary: Any, index: Any) -> Any:
        """Return the columns with the indices `index` of what `columns` returns."""
        part, involved = self.among(index)
        return part.columns(dictionary[:, involved])[:, np.searchsorted(involved, index)]

    def coefficients_from(self, latent: Any, index: Any) -> tuple[Any, Any]:
        """Return the columns whose coefficients may differ from zero, and these coefficients.

        `latent` are the coefficients along the axes of the columns `index`.
        """
        part, involved = self.among(index)
        whole = np.zeros((involved.size, latent.shape[1]), np.result_type(latent, self.vectors))
        whole[np.searchsorted(involved, index)] = latent
        used = part.present > 0
        turned = part.vectors @ whole[part.members]
        whole[part.members[used]] = turned[used]
        return involved, whole

    def among(self, index: Any) -> tuple[Axes, Any]:
        """Return the axes of the groups of some columns, and all columns of these groups.

        The axes are numbered by places among these columns.
        """
        touched = (np.isin(self.members, index) & (self.present > 0)).any(axis=1)
        members, present = self.members[touched], self.present[touched]
        involved = np.union1d(index, members[present > 0])
        return Axes(np.searchsorted(involved, members), present, self.vectors[touched]), involved

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
