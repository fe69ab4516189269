"""Exact mean and second moment of rows: the only place where data are summed up."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import scipy.linalg
import scipy.sparse
import scipy.sparse.linalg

from lucidae._arrays import (
    Array,
    device,
    eigh_descending,
    is_numpy,
    largest,
    namespace,
    scalar,
    to_numpy,
)
from lucidae._files import atomic_path
from lucidae._validation import check_integer, check_rows, check_weights

__all__ = ["SecondMoment"]

BLOCK_ROWS = 4096
"""Rows centred at a time, so that a large array is never copied whole."""

ITERATIVE_FEATURES = 2000
"""From this many features on, few eigenvectors are found by Lanczos iteration."""

SMALLEST_SQUARE = 1e-280
"""A total variance below this has lost digits to underflow."""

_FORMAT = 1


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
        X = check_rows(X)
        return cls._empty(X)._fold(X, check_weights(sample_weight, X))

    @classmethod
    def _empty(cls, X: Any) -> Self:
        """Return the moment of no rows, in the library and on the device of `X`."""
        reference = np.empty(0) if scipy.sparse.issparse(X) else X
        xp, m = namespace(reference), X.shape[1]
        zeros = xp.zeros(m, dtype=xp.float64, device=device(reference))
        return cls(0.0, zeros[:, None] * zeros[None, :], zeros, zeros)

    def _fold(self, X: Any, weights: Array | None) -> Self:
        """Add checked rows, a block at a time."""
        if scipy.sparse.issparse(X):
            return self.merge(self._of_sparse(X, weights))
        moment = self
        with np.errstate(over="ignore", invalid="ignore"):
            for start in range(0, X.shape[0], BLOCK_ROWS):
                block = slice(start, start + BLOCK_ROWS)
                moment = moment._fold_block(
                    X[block, :], None if weights is None else weights[block]
                )
        return moment._checked(X)

    def _fold_block(self, X: Array, weights: Array | None) -> Self:
        """Centre the rows in one buffer, append the shift of the means as a last row, square.

        The appended row carries the rank-one term of Chan, Golub & LeVeque (1983), so that all
        work of size m² is one symmetric product and one sum.
        """
        xp, n_rows = namespace(X), X.shape[0]
        added = float(n_rows) if weights is None else scalar(xp.sum(weights))
        if added == 0.0:
            return self
        rows = xp.empty((n_rows + 1, X.shape[1]), dtype=xp.float64, device=device(X))
        body = rows[:n_rows, :]
        body[...] = X if X.dtype == xp.float64 else xp.astype(X, xp.float64)
        center = self.center if self.weight else _weighted_mean(body, weights, added)
        body -= center
        offset = _weighted_mean(body, weights, added)
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
        return type(self)(total, scatter, *_two_sum(center, self.offset + shift * (added / total)))

    def _checked(self, X: Any) -> Self:
        """Refuse rows whose squares leave the range of double precision."""
        if not math.isfinite(self.trace):
            raise ValueError(
                "the squares of X overflow double precision: its entries are as large as "
                f"{largest(X):.3g}. Divide X by a constant first."
            )
        if self.trace < SMALLEST_SQUARE and largest(X - X[0:1, :]) > 0.0:
            raise ValueError(
                "the squares of X underflow double precision: its entries are as small as "
                f"{largest(X):.3g}. Multiply X by a constant first."
            )
        return self

    @classmethod
    def _of_sparse(cls, X: Any, weights: Array | None) -> Self:
        """Raw second moment of the stored entries, then one rank-one correction by the mean."""
        X = X.astype(np.float64)
        total = float(X.shape[0]) if weights is None else float(weights.sum())
        scaled = X if weights is None else scipy.sparse.diags_array(weights) @ X
        mean = np.asarray(scaled.sum(axis=0)).ravel() / total
        scatter = (X.T @ scaled).toarray() - total * np.outer(mean, mean)
        return cls(total, scatter, mean, np.zeros_like(mean))

    def update(self, batch: Any, sample_weight: Any = None) -> Self:
        """Return the moment of these rows and those of `batch` together."""
        batch = check_rows(batch, name="batch")
        if batch.shape[1] != self.n_features:
            raise ValueError(
                f"batch has {batch.shape[1]} features, but this moment has {self.n_features}."
            )
        return self._fold(batch, check_weights(sample_weight, batch))

    def merge(self, other: SecondMoment) -> Self:
        """Return the moment of the rows of both, whatever the order or grouping.

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
        total = self.weight + other.weight
        if total == 0.0 or other.weight == 0.0:
            return self
        center = self.center if self.weight else other.center
        shift = (other.center - center) + (other.offset - self.offset)
        scatter = self.scatter + other.scatter
        scatter += (shift * (self.weight * other.weight / total))[:, None] * shift[None, :]
        offset = self.offset + shift * (other.weight / total)
        return type(self)(total, scatter, *_two_sum(center, offset))

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
        values, vectors = _leading_eigenpairs(self.covariance, k)
        xp = namespace(values)
        return xp.where(values > 0, values, 0.0 * values), _fix_signs(vectors)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the moment to an ``.npz`` file, whole or not at all."""
        with atomic_path(path) as temporary, temporary.open("wb") as stream:
            np.savez(
                stream,
                format=_FORMAT,
                weight=self.weight,
                scatter=to_numpy(self.scatter),
                center=to_numpy(self.center),
                offset=to_numpy(self.offset),
            )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a moment that `save` wrote; nothing in the file is executed."""
        try:
            with np.load(path, allow_pickle=False) as stored:
                fields = {name: stored[name] for name in ("weight", "scatter", "center", "offset")}
        except (KeyError, ValueError, OSError, EOFError) as error:
            if isinstance(error, FileNotFoundError):
                raise
            raise ValueError(f"{os.fspath(path)!r} is not a saved SecondMoment.") from error
        return cls(float(fields.pop("weight")), **fields)

    def __repr__(self) -> str:
        return f"SecondMoment(n_features={self.n_features}, weight={self.weight:g})"


def _weighted_mean(X: Array, weights: Array | None, total: float) -> Array:
    xp = namespace(X)
    return xp.sum(X, axis=0) / total if weights is None else (weights @ X) / total


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """Return (s, e) with s = fl(a + b) and s + e = a + b exactly (Knuth 1969)."""
    total = a + b
    virtual = total - a
    return total, (a - (total - virtual)) + (b - virtual)


def _leading_eigenpairs(matrix: Array, k: int) -> tuple[Array, Array]:
    size = matrix.shape[0]
    if is_numpy(matrix) and size >= ITERATIVE_FEATURES and k <= size // 20:
        # A fixed start keeps the result reproducible.
        start = np.random.default_rng(0).standard_normal(size)
        values, vectors = scipy.sparse.linalg.eigsh(matrix, k=k, which="LA", v0=start)
        order = np.argsort(values)[::-1]
        return values[order], vectors[:, order]
    if is_numpy(matrix) and k < size:
        values, vectors = scipy.linalg.eigh(
            matrix, subset_by_index=[size - k, size - 1], check_finite=False
        )
        return values[::-1], vectors[:, ::-1]
    values, vectors = eigh_descending(matrix)
    return values[:k], vectors[:, :k]


def _fix_signs(vectors: Array) -> Array:
    xp = namespace(vectors)
    rows = xp.argmax(xp.abs(vectors), axis=0)
    peaks = xp.sum(
        vectors * (xp.arange(vectors.shape[0], device=device(vectors))[:, None] == rows), axis=0
    )
    return vectors * xp.where(peaks < 0, -xp.ones_like(peaks), xp.ones_like(peaks))
