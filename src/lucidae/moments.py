"""Sums over rows that keep the digits of small deviations from large means."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import scipy.sparse

from lucidae.arrays import (
    Array,
    add_gram_,
    as_double,
    beside,
    device,
    largest,
    like,
    mirrored,
    namespace,
    scalar,
    to_numpy,
    weighted_sum,
)
from lucidae.arrays.eigen import fix_signs as fix_signs
from lucidae.arrays.eigen import leading_eigenpairs
from lucidae.io.atomic import load_arrays, save_arrays
from lucidae.io.models import saved_as
from lucidae.validation import check_integer, check_rows, check_weights

__all__ = ["SecondMoment"]

PLAIN_ROWS = 16_384
"""Rows squared at a time as they are."""

BLOCK_ROWS = 2048
"""Rows centred at a time, so that a large array is never copied whole."""

PROBED_ROWS = 256
"""Rows from which a first guess at the mean is taken."""

LIKELY_SHARE = 0.75
"""Rows whose probe has at most this share of its squares in the mean are squared as they are."""

LARGEST_SHARE = 0.875
"""Largest share of the squares that the mean may hold: its removal then costs three bits."""


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """Return (s, e) with s = fl(a + b) and s + e = a + b exactly (Knuth 1969)."""
    total = a + b
    virtual = total - a
    return total, (a - (total - virtual)) + (b - virtual)


def weighted_mean(X: Any, weights: Array | None, total: float) -> Array:
    """Return the mean of the rows of `X`, dense or sparse; `total` is the sum of the weights."""
    if scipy.sparse.issparse(X):
        return np.asarray(X.sum(axis=0) if weights is None else weights @ X).ravel() / total
    return weighted_sum(weights, X) / total


Sums = tuple[float, Array, Array, Array]
"""Total weight, squares about a center (lower triangle), the center, the mean less the center."""


def dense_sums(X: Array, weights: Array | None) -> Sums:
    """Return the sums of dense rows about a point that loses no digits.

    The point is zero where squares about it serve as well, which saves a pass over the rows, and
    else a guess at the mean. Whether the guess was good is seen afterwards: if not, the mean just
    found is the point of another look.
    """
    center = _guess(X)
    for _ in range(3):
        sums = sums_about(center, X, weights)
        if keeps_digits(*sums):
            break
        center = center + sums[3]
    return sums


def sums_about(center: Array, X: Array, weights: Array | None) -> Sums:
    """Return total weight, Σ w (x − c)(x − c)ᵀ, c, and the mean of x − c."""
    xp, squares, mean = namespace(X), None, 0.0 * center
    total = float(X.shape[0]) if weights is None else scalar(xp.sum(weights))
    for rows, part in _blocks(center, X, weights):
        mean = mean + weighted_mean(rows, part, total)
        if part is not None:
            rows *= xp.sqrt(part)[:, None]
        squares = add_gram_(squares, rows)
    return total, squares, center, mean


def keeps_digits(total: float, squares: Array, center: Array, offset: Array) -> bool:
    """Tell whether every variance is well above the rounding of what is taken away from it."""
    xp = namespace(squares)
    sound = total * offset * offset <= LARGEST_SHARE * xp.linalg.diagonal(squares)
    resolved = xp.abs(offset) <= 4 * xp.finfo(xp.float64).eps * xp.abs(center)
    return bool(xp.all(sound | resolved))


def _guess(X: Array) -> Array:
    """Return the mean of a few rows, or zero where their squares are hardly affected by it."""
    xp, step = namespace(X), -(-X.shape[0] // PROBED_ROWS)
    rows = as_double(X[::step, :])
    # Taken from the first row, the mean of a constant column is exact.
    mean = rows[0, :] + xp.mean(rows - rows[0, :], axis=0)
    allowed = LIKELY_SHARE * xp.mean(rows * rows, axis=0)
    plain = (mean * mean <= allowed) & (allowed < math.inf)
    return 0.0 * rows[0, :] if bool(xp.all(plain)) else mean


def _blocks(center: Array, X: Array, weights: Array | None) -> Iterator[tuple[Array, Array | None]]:
    """Yield rows less the center, in double precision, with their weights.

    Rows that were changed lie in one buffer, used again for every block.
    """
    xp, n_rows, plain = namespace(X), X.shape[0], not bool(namespace(X).any(center != 0.0))
    if plain and weights is None and X.dtype == xp.float64:
        yield from ((X[block, :], None) for block in _slices(n_rows, PLAIN_ROWS))
        return
    shape = (min(BLOCK_ROWS, n_rows), X.shape[1])
    buffer = xp.empty(shape, dtype=xp.float64, device=device(X))
    for block in _slices(n_rows, BLOCK_ROWS):
        rows = buffer[: block.stop - block.start, :]
        rows[...] = X[block, :]
        if not plain:
            rows -= center
        yield rows, None if weights is None else weights[block]


def _slices(n_rows: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, n_rows)) for start in range(0, n_rows, size))


def sparse_sums(X: Any, weights: Array | None) -> Sums:
    """Return the sums of sparse rows, never made dense, about a point that loses no digits.

    Only a column without a single zero can have a mean far above its deviation; such columns are
    centred first, which stores nothing new. The others are squared about zero.
    """
    X = X.astype(np.float64, copy=True)
    X.sum_duplicates()
    total = float(X.shape[0]) if weights is None else float(weights.sum())
    full = np.bincount(X.indices, minlength=X.shape[1]) == X.shape[0]
    center = np.where(full, weighted_mean(X, weights, total), 0.0)
    X.data -= center[X.indices]
    offset = weighted_mean(X, weights, total)
    if weights is not None:
        X = scipy.sparse.diags_array(np.sqrt(weights)) @ X
    return total, (X.T @ X).toarray(), center, offset


SMALLEST_SCATTER = 1e-280
"""Squares that sum to less than this have lost digits to underflow."""

_FORMAT = 2
_FIELDS = ("weight", "squares", "center", "offset")


@saved_as("lucidae.moment/1", formerly="lucidae.moments:SecondMoment")
@dataclass(frozen=True, slots=True, eq=False)
class SecondMoment:
    """Mean and scatter of weighted rows, in double precision.

    Make one with `SecondMoment.of`; `update` and `merge` return a new one. The mean is kept as
    an unevaluated sum of two doubles, and rows are squared about a point so near to it that
    deviations far below the mean survive; zero is such a point for most data.

    Parameters
    ----------
    weight : float
        Total weight of the rows.
    squares : array of shape (m, m)
        Weighted sum of the outer products of the rows less the center; only the lower triangle
        counts.
    center, offset : arrays of shape (m,)
        The mean is ``center + offset``.

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
    squares: Array
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
        """Add checked rows, about the center of this moment where that loses no digits."""
        with np.errstate(over="ignore", invalid="ignore"):
            if scipy.sparse.issparse(X):
                return self._absorb(SecondMoment(*sparse_sums(X, weights)))._checked(X)
            X = beside(X, self.center)
            weights = None if weights is None else beside(weights, self.center)
            if self.weight:
                joined = self._absorb(SecondMoment(*sums_about(self.center, X, weights)))
                if keeps_digits(joined.weight, joined.squares, joined.center, joined.offset):
                    return joined._checked(X)
            return self._absorb(SecondMoment(*dense_sums(X, weights)))._checked(X)

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
        mean = self.mean[X.indices] if scipy.sparse.issparse(X) else self.mean
        away = like(_stored(X), mean) - mean
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
        fresh = replace(other, squares=1.0 * other.squares)
        with np.errstate(over="ignore", invalid="ignore"):
            return self._absorb(fresh)._checked(other.mean[None, :])

    def _absorb(self, fresh: SecondMoment) -> Self:
        """Return the sum of both; the squares of `fresh` are overwritten.

        Squares about one point add up. Otherwise the shift of the means is one rank-one term
        (Chan, Golub & LeVeque 1983), and one more brings the squares to the nearest double of the
        mean.
        """
        squares, center, offset = (
            like(part, self.center) for part in (fresh.squares, fresh.center, fresh.offset)
        )
        if self.weight == 0.0:
            return type(self)(fresh.weight, squares, center, offset)
        total = self.weight + fresh.weight
        shift = (center - self.center) + (offset - self.offset)
        offset_of_both = self.offset + shift * (fresh.weight / total)
        if bool(namespace(center).all(center == self.center)):
            squares += self.squares
            return type(self)(total, squares, center, offset_of_both)
        mean, rest = two_sum(self.center, offset_of_both)
        squares += self.squares
        for weight, vector in (
            (-self.weight, self.offset),
            (-fresh.weight, offset),
            (self.weight * (fresh.weight / total), shift),
            (total, rest),
        ):
            squares += (weight * vector)[:, None] * vector[None, :]
        return type(self)(total, squares, mean, rest)

    @property
    def n_features(self) -> int:
        """Number of features m."""
        return int(self.center.shape[0])

    @property
    def mean(self) -> Array:
        """Weighted mean of the rows, shape (m,)."""
        return self.center + self.offset

    @property
    def scatter(self) -> Array:
        """Weighted sum of the outer products of the centred rows, shape (m, m)."""
        root = math.sqrt(self.weight) * self.offset
        return mirrored(self.squares) - root[:, None] * root[None, :]

    @property
    def covariance(self) -> Array:
        """Second moment of the centred rows, divided by the total weight, shape (m, m)."""
        covariance = self.scatter
        covariance /= self.weight
        return covariance

    @property
    def trace(self) -> float:
        """Total variance: the trace of the covariance."""
        xp = namespace(self.squares)
        squares = scalar(xp.linalg.trace(self.squares)) / self.weight
        return squares - scalar(xp.sum(self.offset * self.offset))

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
        return covariance_spectrum(self.covariance, k)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the moment to an ``.npz`` file, whole or not at all."""
        whole = replace(self, squares=mirrored(self.squares))
        fields = {name: to_numpy(getattr(whole, name)) for name in _FIELDS}
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
        expected = {"format": (), "weight": (), "squares": (m, m), "center": (m,), "offset": (m,)}
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


def covariance_spectrum(covariance: Array, k: int | None = None) -> tuple[Array, Array]:
    """Return leading eigenvalues and eigenvectors of a covariance: see `SecondMoment.spectrum`."""
    m = int(covariance.shape[0])
    k = m if k is None else check_integer(k, "k", low=1, high=m)
    values, vectors = leading_eigenpairs(covariance, k)
    xp = namespace(values)
    return xp.where(values > 0, values, 0.0 * values), fix_signs(vectors)


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
