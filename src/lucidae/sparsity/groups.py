"""Groups of columns that share one relevance, such as the dummy columns of a category."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from lucidae.arrays import Array, device, namespace


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
