"""Second moment of a stream of batches, whose products are computed for several batches at once.

Threads share a product of rows as `fit` divides it only if there are enough rows. So batches of few
rows are copied into a buffer, and their products are computed together with those of the batch for
which the buffer has no space, or when the moment is needed. The m × m matrix of the earlier rows is
then added once, not for every batch.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lucidae.arrays import Array, is_numpy, namespace, scalar
from lucidae.arrays.threads import one_thread
from lucidae.moments import SMALLEST_SCATTER, SecondMoment

__all__ = ["RunningMoment", "first_moment"]

BUFFERED_ROWS = 8
"""Number of rows of the buffer divided by the number m of features: the buffer has 8m² entries."""

BUFFERED_ENTRIES = 2**22
"""Largest number of entries of the buffer, which then takes 32 mebibytes."""

COPIED_ROWS = 128
"""Number of rows that are copied at a time, and squared while they are in the cache."""

LARGEST_SQUARES = 1e200
"""Largest sum of squares of rows in the buffer; the moment of larger ones is computed at once,
which shows whether it overflows."""


FIRST_PRODUCTS = 2**30
"""Largest number of multiplications of a first batch for which BLAS uses one thread (30 ms)."""


def first_moment(X: Any, weights: Array | None) -> SecondMoment:
    """Return the second moment of the first batch of a stream, of rows X (n, m) with weights.

    Threads of BLAS would wait actively for some hundredths of a second after the product of a small
    batch, while Python threads multiply the next rows.
    """
    few = X.shape[0] * X.shape[1] ** 2 <= FIRST_PRODUCTS
    with one_thread() if few else nullcontext():
        return SecondMoment.of(X, weights)


class _Buffer:
    """Rows of a stream with m features, to which batches are appended.

    Several values of `RunningMoment` use the same buffer. Each of them owns the rows up to its own
    count, which are never changed.
    """

    def __init__(self, m: int) -> None:
        self.n_rows, self._m = min(BUFFERED_ROWS * m, BUFFERED_ENTRIES // m), m
        self._takers: dict[int, object] = {}

    def take(self, first: int, count: int) -> Array | None:
        """Return the rows `first` to `first + count` − 1, to be written by this caller alone.

        The result is None if another caller has taken them.
        """
        taker = object()
        # `setdefault` is one operation also where several threads call it.
        if self._takers.setdefault(first, taker) is not taker:
            return None
        if first == 0:
            self.rows = np.empty((self.n_rows, self._m))
        return self.rows[first : first + count]


def _copied(X: Array, rows: Array) -> float:
    """Copy the entries of X to `rows`, and return the sum of their squares."""
    squares = 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for first in range(0, len(X), COPIED_ROWS):
            part = rows[first : first + COPIED_ROWS]
            part[...] = X[first : first + COPIED_ROWS]
            # One product for each row: those of all entries would be divided among BLAS threads.
            squares += float(np.sum(np.vecdot(part, part)))
    return squares


@dataclass(frozen=True, slots=True, eq=False)
class RunningMoment:
    """The second moment of earlier rows, and rows that are not yet included in it.

    `begin` returns one without such rows. `after` returns a new value and does not change this one.
    """

    before: SecondMoment  # second moment of the earlier rows
    scatter: float  # sum of squared distances of the earlier rows from their mean
    squares: float  # sum of squared norms of all rows, the earlier ones and those in the buffer
    buffer: _Buffer  # rows that are not yet included in `before`
    count: int = 0  # number of these rows; other rows in the buffer do not belong to this stream

    @classmethod
    def begin(cls, moment: SecondMoment) -> RunningMoment:
        """Return the running moment of rows whose second moment is known."""
        mean, scatter = moment.mean, moment.trace * moment.weight
        with np.errstate(over="ignore"):
            squares = scatter + moment.weight * scalar(namespace(mean).sum(mean * mean))
        return cls(moment, scatter, squares, _Buffer(moment.n_features))

    def after(self, X: Any) -> RunningMoment | None:
        """Return the running moment after one more batch of rows X (n, m), which are copied.

        The result is None if the batch must be added to the second moment by
        `SecondMoment.update`: because it is larger than the buffer or not a dense array of NumPy,
        or because its squares, or those of all earlier rows, may overflow or underflow. This
        includes rows with NaN or infinity, for which an error is raised there.
        """
        if not (is_numpy(X) and is_numpy(self.before.center) and len(X) <= self.buffer.n_rows):
            return None
        # Sums of squares that grow from such a number do not underflow.
        if not self.scatter > SMALLEST_SCATTER / np.finfo(float).eps:
            return None
        if self.count + len(X) > self.buffer.n_rows:
            return self.begin(self.before._add_blocks([self._rows, X]))
        rows = self.buffer.take(self.count, len(X))
        if rows is None:  # by another estimator that continues from the same rows
            return self.begin(self.total()).after(X)
        squares = self.squares + _copied(X, rows)
        if not squares < LARGEST_SQUARES:
            return None
        return replace(self, squares=squares, count=self.count + len(X))

    @property
    def _rows(self) -> Array:
        return self.buffer.rows[: self.count]

    @property
    def weight(self) -> float:
        """Sum of the weights of all rows."""
        return self.before.weight + self.count

    @property
    def variance_bounds(self) -> tuple[float, float]:
        """A lower and an upper bound on the total variance of all rows.

        The sum of squared distances of rows from their mean does not decrease if rows are added,
        and it is at most the sum of their squared norms.
        """
        return self.scatter / self.weight, self.squares / self.weight

    def total(self) -> SecondMoment:
        """Return the second moment of all rows."""
        return self.before._add_blocks([self._rows]) if self.count else self.before
