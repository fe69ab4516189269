"""Exact mean and second moment of rows: the only place where data are summed up."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import scipy.linalg
import scipy.sparse
import scipy.sparse.linalg

from lucidae._arrays import (
    Array,
    as_double,
    device,
    eigh_descending,
    is_numpy,
    like,
    namespace,
    rank_one_,
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
        weights = check_weights(sample_weight, X)
        if scipy.sparse.issparse(X):
            return cls._of_sparse(X, weights)
        blocks = range(0, X.shape[0], BLOCK_ROWS)
        moment = cls._of_block(X[:BLOCK_ROWS], _rows(weights, 0))
        for start in blocks[1:]:
            block = cls._of_block(X[start : start + BLOCK_ROWS], _rows(weights, start))
            moment = moment._absorb(block)
        return moment

    @classmethod
    def _of_block(cls, X: Array, weights: Array | None) -> Self:
        """Two corrected passes over rows that are centred in a copy."""
        xp = namespace(X)
        X = as_double(X)
        total = float(X.shape[0]) if weights is None else scalar(xp.sum(weights))
        if total == 0.0:
            return cls(0.0, X.mT[:, :1] * X[:1, :] * 0.0, X[0, :], X[0, :] * 0.0)
        center = _weighted_mean(X, weights, total)
        deviations = X - center
        offset = _weighted_mean(deviations, weights, total)
        if weights is not None:
            deviations = deviations * xp.sqrt(weights)[:, None]
        # NumPy turns AᵀA into one symmetric rank-b product.
        scatter = deviations.mT @ deviations
        rank_one_(scatter, offset, offset, -total)
        return cls(total, scatter, *_two_sum(center, offset))

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
        return self.merge(type(self).of(batch, sample_weight))

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
        copied = type(self)(self.weight, self.scatter + 0.0, self.center, self.offset)
        return copied._absorb(other)

    def _absorb(self, other: SecondMoment) -> Self:
        """Merge `other` into this moment's own scatter buffer (Chan, Golub & LeVeque 1983)."""
        total = self.weight + other.weight
        if other.weight == 0.0:
            return self
        shift = (other.center - self.center) + (other.offset - self.offset)
        scatter = self.scatter
        scatter += like(other.scatter, scatter)
        shift = like(shift, scatter)
        rank_one_(scatter, shift, shift, self.weight * other.weight / total)
        center, offset = _two_sum(self.center, self.offset + shift * (other.weight / total))
        return type(self)(total, scatter, center, offset)

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


def _rows(weights: Array | None, start: int) -> Array | None:
    return None if weights is None else weights[start : start + BLOCK_ROWS]


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
