"""Exact mean and second moment of rows: the only place where data are summed up."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import scipy.sparse

from lucidae._arrays import Array, beside, device, largest, like, namespace, scalar, to_numpy
from lucidae._eigen import fix_signs as fix_signs
from lucidae._eigen import leading_eigenpairs
from lucidae._files import load_arrays, save_arrays
from lucidae._sums import sparse_sums, two_sum, weighted_mean
from lucidae._validation import check_integer, check_rows, check_weights

__all__ = ["SecondMoment"]

BLOCK_ROWS = 2048
"""Rows centred at a time, so that a large array is never copied whole."""

SMALLEST_SCATTER = 1e-280
"""Squares that sum to less than this have lost digits to underflow."""

_FORMAT = 1
_FIELDS = ("weight", "scatter", "center", "offset")


@dataclass(frozen=True, slots=True, eq=False)
class SecondMoment:
    """Mean and scatter of weighted rows, in double precision.

    Make one with `SecondMoment.of`; `update` and `merge` return a new one. The mean is kept as
    an unevaluated sum of two doubles and every batch is centred before it is squared, so that
    deviations far below the mean survive.

    Parameters
    ----------
    weight : float
        Total weight of the rows.
    scatter : array of shape (m, m)
        Weighted sum of the outer products of the centred rows.
    center, offset : arrays of shape (m,)
        The mean is ``center + offset``, the offset holding what one double cannot.

    Examples
    --------
    >>> import numpy as np
    >>> from lucidae import SecondMoment
    >>> X = np.array([[1.0, 2.0], [3.0, 2.0], [5.0, 5.0]])
    >>> moment = SecondMoment.of(X[:2]).update(X[2:])
    >>> moment.mean
    array([3., 3.])
    >>> np.allclose(moment.covariance, np.cov(X.T, bias=True))
    True
    """

    weight: float
    scatter: Array
    center: Array
    offset: Array

    @classmethod
    def of(cls, X: Any, sample_weight: Any = None) -> Self:
        """Return the moment of the rows of `X`.

        Parameters
        ----------
        X : array-like, data frame or sparse matrix of shape (n, m)
            The rows. Sparse input is never made dense.
        sample_weight : array-like of shape (n,), optional
            Frequencies: weight 2 is the same as giving the row twice.

        Returns
        -------
        SecondMoment
        """
        X, weights = _weighted_rows(X, sample_weight, "X")
        return cls._empty(X)._fold(X, weights)

    @classmethod
    def _empty(cls, X: Any) -> Self:
        """Return the moment of no rows, in the library and on the device of `X`."""
        reference = np.empty(0) if scipy.sparse.issparse(X) else X
        xp, m = namespace(reference), X.shape[1]
        zeros = xp.zeros(m, dtype=xp.float64, device=device(reference))
        return cls(0.0, zeros[:, None] * zeros[None, :], zeros, zeros)

    def _fold(self, X: Any, weights: Array | None) -> Self:
        """Add checked rows, a block at a time."""
        with np.errstate(over="ignore", invalid="ignore"):
            if scipy.sparse.issparse(X):
                return self._merge(SecondMoment(*sparse_sums(X, weights)))._checked(X)
            X = beside(X, self.center)
            weights = None if weights is None else beside(weights, self.center)
            moment, buffer = self, self._buffer(X)
            for start in range(0, X.shape[0], BLOCK_ROWS):
                block = slice(start, min(start + BLOCK_ROWS, X.shape[0]))
                moment = moment._fold_block(
                    X[block, :], None if weights is None else weights[block], buffer
                )
            return moment._checked(X)

    @staticmethod
    def _buffer(X: Array) -> Array:
        """Return room for one block and one row more, used again for every block."""
        xp = namespace(X)
        shape = (min(BLOCK_ROWS, X.shape[0]) + 1, X.shape[1])
        return xp.empty(shape, dtype=xp.float64, device=device(X))

    def _fold_block(self, X: Array, weights: Array | None, buffer: Array) -> Self:
        """Centre the rows in one buffer, append the shift of the means as a last row, square.

        The appended row carries the rank-one term of Chan, Golub & LeVeque (1983), so that all
        work of size m² is one symmetric product and one sum.
        """
        xp, n_rows = namespace(X), X.shape[0]
        added = float(n_rows) if weights is None else scalar(xp.sum(weights))
        rows = buffer[: n_rows + 1, :]
        body = rows[:n_rows, :]
        body[...] = X
        center = self.center if self.weight else weighted_mean(body, weights, added)
        body -= center
        offset = weighted_mean(body, weights, added)
        body -= offset
        if weights is not None:
            body *= xp.sqrt(weights)[:, None]
        total = self.weight + added
        shift = offset - self.offset
        rows[n_rows, :] = shift * math.sqrt(self.weight * added / total)
        # NumPy turns AᵀA into a symmetric rank-b product. SciPy's BLAS is left alone here: two
        # thread pools that alternate slow each other down.
        scatter = rows.mT @ rows
        scatter += self.scatter
        return type(self)(total, scatter, *two_sum(center, self.offset + shift * (added / total)))

    def _checked(self, X: Any) -> Self:
        """Refuse rows that are not finite, or whose squares leave the range of double precision.

        A single entry that is not finite spoils the scatter's diagonal, which is quicker to look
        at than all entries.
        """
        squares = self.trace * self.weight
        if not math.isfinite(squares):
            check_rows(X)
            raise ValueError(
                "the squares of X overflow double precision: its entries are as large as "
                f"{largest(_stored(X)):.3g}. Divide X by a constant first."
            )
        if squares < SMALLEST_SCATTER and self._deviates(X):
            raise ValueError(
                "the squares of X underflow double precision: its entries are as small as "
                f"{largest(_stored(X)):.3g}. Multiply X, or its weights, by a constant first."
            )
        return self

    def _deviates(self, X: Any) -> bool:
        """Tell whether a row of `X` lies away from the mean by more than rounding."""
        center = self.center[X.indices] if scipy.sparse.issparse(X) else self.center
        away = like(_stored(X), center) - center
        return largest(away) > 1e-15 * largest(_stored(X))

    def update(self, batch: Any, sample_weight: Any = None) -> Self:
        """Return the moment of these rows and those of `batch` together."""
        batch, weights = _weighted_rows(batch, sample_weight, "batch")
        if batch.shape[1] != self.n_features:
            raise ValueError(
                f"batch has {batch.shape[1]} features, but this moment has {self.n_features}."
            )
        return self._fold(batch, weights)

    def merge(self, other: SecondMoment) -> Self:
        """Return the moment of the rows of both, whatever the order or grouping.

        The result lives in the library and on the device of this moment.

        Raises
        ------
        ValueError
            If the two have different numbers of features.
        """
        if not isinstance(other, SecondMoment):
            raise ValueError(f"merge takes a SecondMoment, got {type(other).__name__}.")
        if other.n_features != self.n_features:
            raise ValueError(
                f"cannot merge moments of {self.n_features} and {other.n_features} features: "
                "both must come from rows of the same length."
            )
        with np.errstate(over="ignore", invalid="ignore"):
            return self._merge(other)._checked(other.mean[None, :])

    def _merge(self, other: SecondMoment) -> Self:
        """Add the shift of the means as one rank-one term (Chan, Golub & LeVeque 1983)."""
        scatter, center, offset = (
            like(part, self.center) for part in (other.scatter, other.center, other.offset)
        )
        if self.weight == 0.0:
            return type(self)(other.weight, scatter, center, offset)
        total = self.weight + other.weight
        shift = (center - self.center) + (offset - self.offset)
        spread = shift * math.sqrt(self.weight * (other.weight / total))
        mean = two_sum(self.center, self.offset + shift * (other.weight / total))
        merged = self.scatter + scatter
        merged += spread[:, None] * spread[None, :]
        return type(self)(total, merged, *mean)

    @property
    def n_features(self) -> int:
        """Number of features m."""
        return int(self.center.shape[0])

    @property
    def mean(self) -> Array:
        """Weighted mean of the rows, shape (m,)."""
        return self.center + self.offset

    @property
    def covariance(self) -> Array:
        """Second moment of the centred rows, divided by the total weight, shape (m, m)."""
        return self.scatter / self.weight

    @property
    def trace(self) -> float:
        """Total variance: the trace of the covariance."""
        return scalar(namespace(self.scatter).linalg.trace(self.scatter)) / self.weight

    def spectrum(self, k: int | None = None) -> tuple[Array, Array]:
        """Return the leading eigenvalues, descending, and eigenvectors of the covariance.

        Parameters
        ----------
        k : int, optional
            How many; all of them by default.

        Returns
        -------
        eigenvalues : array of shape (k,)
            Never negative: rounding below zero is cut.
        eigenvectors : array of shape (m, k)
            Orthonormal columns; the entry of largest magnitude of each is positive.
        """
        k = self.n_features if k is None else check_integer(k, "k", low=1, high=self.n_features)
        values, vectors = leading_eigenpairs(self.covariance, k)
        xp = namespace(values)
        return xp.where(values > 0, values, 0.0 * values), fix_signs(vectors)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the moment to an ``.npz`` file, whole or not at all."""
        fields = {name: to_numpy(getattr(self, name)) for name in _FIELDS}
        save_arrays(path, {"format": _FORMAT} | fields)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a moment that `save` wrote, into NumPy; nothing in the file is executed.

        Raises
        ------
        ValueError
            If the file is damaged or was not written by `save`.
        """
        stored = load_arrays(path, "a saved SecondMoment")
        m = stored["center"].size if "center" in stored else 0
        expected = {"format": (), "weight": (), "scatter": (m, m), "center": (m,), "offset": (m,)}
        shapes = {name: values.shape for name, values in stored.items()}
        if not m or shapes != expected or stored["format"] != _FORMAT:
            raise ValueError(f"{os.fspath(path)!r} is not a saved SecondMoment: it holds {shapes}.")
        numbers = [stored[name] for name in _FIELDS]
        finite = all(a.dtype == np.float64 and np.isfinite(a).all() for a in numbers)
        if not finite or stored["weight"] <= 0:
            raise ValueError(
                f"{os.fspath(path)!r} is not a saved SecondMoment: "
                "it holds something else than finite numbers."
            )
        return cls(float(stored["weight"]), *numbers[1:])

    def __repr__(self) -> str:
        return f"SecondMoment(n_features={self.n_features}, weight={self.weight:g})"


def _weighted_rows(X: Any, sample_weight: Any, name: str) -> tuple[Any, Array | None]:
    """Return checked rows and weights, without the rows of no weight.

    Entries that no sum will meet, and sparse ones, are looked at here (see `_checked`).
    """
    X = check_rows(X, name=name, finite=sample_weight is not None or scipy.sparse.issparse(X))
    weights = check_weights(sample_weight, X)
    if weights is None or bool(namespace(weights).all(weights > 0)):
        return X, weights
    (kept,) = namespace(weights).nonzero(weights)
    rows = X[kept] if scipy.sparse.issparse(X) else namespace(X).take(X, kept, axis=0)
    return rows, namespace(weights).take(weights, kept, axis=0)


def _stored(X: Any) -> Array:
    return X.data if scipy.sparse.issparse(X) else X
