"""Exact mean and second moment of weighted rows, which can be updated and merged.

A covariance computed as E[xxᵀ] − E[x]E[x]ᵀ is inaccurate if the squared mean is much larger than
the variance. For rows x with weights w, this module therefore computes the scatter (the sum of
squares about the mean) from the squares S about a centre c close to the mean and from the offset o
of the mean from c:

    S = Σ w (x − c)(x − c)ᵀ,    o = mean(x) − c,    scatter = S − (Σ w) o oᵀ.

A centre is accepted only if the subtraction costs at most three bits of every variance
(`keeps_digits`). For most data c = 0 is accepted, and the rows need not be centred. The mean is
stored as the pair (c, o) of float64 vectors, whose sum is more accurate than one float64 vector.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, cast

import numpy as np
import scipy.linalg
import scipy.sparse

from lucidae.arrays import (
    Array,
    beside,
    diagonal,
    is_numpy,
    largest,
    like,
    mirrored,
    namespace,
    on_host,
    scalar,
    to_numpy,
)
from lucidae.arrays.eigen import fix_signs, leading_eigenpairs
from lucidae.cards import card, facts
from lucidae.io.atomic import load_arrays, save_arrays
from lucidae.iteration.progress import elapsed_on
from lucidae.row_sums import (
    dense_sums,
    keeps_digits,
    slices,
    sparse_sums,
    sums_about,
)
from lucidae.validation import check_integer, check_rows, check_verbose, check_weights

__all__ = ["SecondMoment"]

SCATTER_ROWS = 64
"""Number of rows of the scatter from which the part of the mean is subtracted at a time, so that
they stay in the cache."""

SMALLEST_SCATTER = 1e-280
"""Smallest sum of squares that counts as accurate; a smaller one has lost digits to underflow."""

LARGEST_ENTRY = 1e140
"""Rows of smaller entries overflow only because of their weights, which the message then names."""

_FORMAT = 2
_FIELDS = ("weight", "squares", "center", "offset", "rounding")

Reader = Callable[[Any, Any, bool | str], "SecondMoment | None"]
_READERS: list[Reader] = []


def reads_moments(read: Reader) -> Reader:
    """Register a function that `SecondMoment.of` asks before it takes its data as arrays."""
    _READERS.append(read)
    return read


@dataclass(frozen=True, slots=True, eq=False)
class SecondMoment:
    """Mean and covariance of weighted rows with m features, computed as float64.

    If float32 rows without weights have more than two million entries, their products are computed
    in single precision and added in double precision.

    Use `SecondMoment.of` to compute a moment; `update` and `merge` return a new one with more rows.
    The covariance is accurate even if the mean is much larger than the deviations from it, because
    the rows are squared about a centre close to the mean.

    Parameters
    ----------
    weight : float
        Sum of the weights of the rows.
    squares : array of shape (m, m)
        Weighted sum of the outer products of the rows minus `center`; only the lower triangle is
        used.
    center : array of shape (m,)
        A vector close to the mean.
    offset : array of shape (m,)
        The mean minus `center`.
    rounding : float, default=0.0
        Estimate, with a margin, of the error of the covariance due to products in single precision:
        its Frobenius norm divided by the total variance. It is 0 if all products were computed in
        double precision. Certificates take it into account.

    Notes
    -----
    Notebooks show the means and variances, and `plot` draws the eigenvalues of the covariance.

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
    rounding: float = 0.0

    @classmethod
    def of(cls, X: Any, sample_weight: Any = None, *, verbose: bool | str = "auto") -> Self:
        """Compute the mean and the covariance of the rows of `X`.

        Parameters
        ----------
        X : array-like, data frame, sparse matrix or data of any other kind, of shape (n, m)
            The data: n samples with m features. Sparse input is never made dense. Files, memory
            maps, iterables of batches and Dask collections are read in blocks (see
            `lucidae.data.row_blocks`).
        sample_weight : array-like of shape (n,), optional
            Weights of the rows as frequencies: weight 2 counts a row twice. By default 1 each.
        verbose : bool or "auto", default="auto"
            Whether to show the progress of reading that takes longer than two seconds: always,
            never, or, with ``"auto"``, if standard error is a terminal or belongs to a notebook.

        Returns
        -------
        SecondMoment
            The moment, in the array library and on the device of `X`.
        """
        check_verbose(verbose)
        for read in _READERS:
            found = read(X, sample_weight, verbose)
            if found is not None:
                return cast(Self, found)
        X, weights = _weighted_rows(X, sample_weight, "X")
        with elapsed_on(X, "second moment", verbose):
            return cls._of_rows(X, weights)

    @classmethod
    def _of_rows(cls, X: Any, weights: Array | None) -> Self:
        """Return the second moment of validated rows X."""
        with np.errstate(over="ignore", invalid="ignore"):
            sums = sparse_sums if scipy.sparse.issparse(X) else dense_sums
            return cls(*sums(X, weights))._checked(X)

    def _add_rows(self, X: Any, weights: Array | None) -> Self:
        """Return the second moment of the earlier rows and of validated rows X together.

        The new rows are squared about the centre of this moment if that loses no digits, because
        squares about the same centre are merely added. Otherwise a new centre is chosen.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            if scipy.sparse.issparse(X):
                return self._absorb(SecondMoment(*sparse_sums(X, weights)))._checked(X)
            X = beside(X, self.center)
            weights = None if weights is None else beside(weights, self.center)
            joined = self._absorb(SecondMoment(*sums_about(self.center, X, weights)))
            if not keeps_digits(joined.weight, joined.squares, joined.center, joined.offset):
                joined = self._absorb(SecondMoment(*dense_sums(X, weights)))
            return joined._checked(X)

    def _checked(self, X: Any) -> Self:
        """Return this second moment, or raise a ValueError if it is not accurate for the rows `X`.

        Their squares may overflow or underflow. Since an entry that is not finite makes the trace
        NaN or infinite, the entries themselves are tested only if the trace is not finite.
        """
        squares = self.trace * self.weight
        if not math.isfinite(squares):
            check_rows(X)
            size = largest(_entries(X))
            factor = "X" if size > LARGEST_ENTRY else "sample_weight"
            raise ValueError(
                "the squares of X overflow double precision: its largest entry by magnitude is "
                f"{size:.3g}, and its weights sum to {self.weight:.3g}. Divide {factor} by a "
                "constant first."
            )
        if squares < SMALLEST_SCATTER and self._deviates(X):
            raise ValueError(
                "the squares of X underflow double precision: its largest entry by magnitude is "
                f"{largest(_entries(X)):.3g}. Multiply X, or sample_weight, by a constant first."
            )
        return self

    def _deviates(self, X: Any) -> bool:
        """Tell whether some entry of `X` differs from the mean by more than a rounding error."""
        mean = self.mean[X.indices] if scipy.sparse.issparse(X) else self.mean
        deviations = like(_entries(X), mean) - mean
        return largest(deviations) > 1e-15 * largest(_entries(X))

    def update(self, batch: Any, sample_weight: Any = None) -> Self:
        """Return the second moment of the rows so far and those of `batch` together.

        Parameters
        ----------
        batch : array-like, data frame or sparse matrix of shape (n, m)
            More samples, in any number n ≥ 1, with the same m features.
        sample_weight : array-like of shape (n,), optional
            Weights of the rows of `batch` as frequencies. By default 1 each.

        Returns
        -------
        SecondMoment
            A new moment; this one is unchanged.
        """
        batch, weights = _weighted_rows(batch, sample_weight, "batch")
        if batch.shape[1] != self.n_features:
            raise ValueError(
                f"batch has {batch.shape[1]} features, but this second moment has "
                f"{self.n_features}: give rows with the same features."
            )
        return self._add_rows(batch, weights)

    def merge(self, other: SecondMoment) -> Self:
        """Return the second moment of the rows of both moments together.

        Up to rounding errors, the result does not depend on the order in which moments are merged.

        Parameters
        ----------
        other : SecondMoment
            The moment of other rows with the same features.

        Returns
        -------
        SecondMoment
            A new moment, in the array library and on the device of this one.

        Raises
        ------
        ValueError
            If the two moments have different numbers of features.
        """
        if not isinstance(other, SecondMoment):
            raise ValueError(
                f"merge expects a SecondMoment, got {type(other).__name__}. Use update for rows."
            )
        if other.n_features != self.n_features:
            raise ValueError(
                f"cannot merge moments of {self.n_features} and {other.n_features} features: "
                "both must come from rows with the same features."
            )
        fresh = replace(other, squares=1.0 * other.squares)
        with np.errstate(over="ignore", invalid="ignore"):
            return self._absorb(fresh)._checked(other.mean[None, :])

    def _absorb(self, fresh: SecondMoment) -> Self:
        """Return the second moment of the rows of this moment and of `fresh`, which is overwritten.

        This moment has the weight a, squares S and offset o of the mean from the centre; `fresh`
        has the weight b, squares T and offset p; δ is the difference of the two means. Then

            scatter = (S − a ooᵀ) + (T − b ppᵀ) + ab/(a + b) δδᵀ

        (Chan, Golub & LeVeque 1983). The new centre is the joint mean rounded to float64. The
        squares about it are the scatter plus (a + b) eeᵀ, where e is the rounding error of that
        mean, so that four rank-one terms are added to S + T. If both moments have the same centre,
        these terms cancel, and S + T are the squares about it.

        The relative error of a sum of two scatters is at most the larger of their relative errors.
        """
        rounding = max(self.rounding, fresh.rounding)
        squares, center, offset = (
            like(part, self.center) for part in (fresh.squares, fresh.center, fresh.offset)
        )
        total = self.weight + fresh.weight
        shift = (center - self.center) + (offset - self.offset)
        offset_of_both = self.offset + shift * (fresh.weight / total)
        squares += self.squares
        if bool(namespace(center).all(center == self.center)):
            return type(self)(total, squares, center, offset_of_both, rounding)
        mean, error = _two_sum(self.center, offset_of_both)
        between = self.weight * (fresh.weight / total)
        weights = (-self.weight, -fresh.weight, between, total)
        _add_outer_(squares, weights, (self.offset, offset, shift, error))
        return type(self)(total, squares, mean, error, rounding)

    @property
    def n_features(self) -> int:
        """Number of features of the data."""
        return int(self.center.shape[0])

    @property
    def mean(self) -> Array:
        """Weighted mean of the rows, shape (m,), where m is the number of features."""
        return self.center + self.offset

    @property
    def scatter(self) -> Array:
        """Weighted sum of the outer products of the centred rows, (m, m) for m features."""
        root, found = math.sqrt(self.weight) * self.offset, mirrored(self.squares)
        for part in slices(self.n_features, SCATTER_ROWS if on_host(root) else self.n_features):
            found[part, :] -= root[part, None] * root[None, :]
        return found

    @property
    def covariance(self) -> Array:
        """Covariance of the rows, (m, m) for m features; the divisor is the total weight."""
        covariance = self.scatter
        covariance /= self.weight
        return covariance

    @property
    def trace(self) -> float:
        """Total variance of the rows: the trace of the covariance."""
        xp = namespace(self.squares)
        squares = scalar(xp.linalg.trace(self.squares)) / self.weight
        return squares - scalar(xp.sum(self.offset * self.offset))

    def spectrum(self, k: int | None = None) -> tuple[Array, Array]:
        """Return the largest eigenvalues of the covariance and their eigenvectors.

        Parameters
        ----------
        k : int, optional
            Number of eigenvalues; by default all m.

        Returns
        -------
        eigenvalues : array of shape (k,)
            The eigenvalues in descending order. Negative eigenvalues, which are rounding errors,
            are replaced by zero.
        eigenvectors : array of shape (m, k)
            The eigenvectors as orthonormal columns in the same order. The entry of largest
            magnitude of each column is positive.
        """
        return covariance_spectrum(self.covariance, k)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the second moment to an ``.npz`` file.

        If writing fails, no incomplete file is left, and an existing file stays as it was.

        Parameters
        ----------
        path : str or path
            Path of the file; an existing file is replaced.
        """
        whole = replace(self, squares=mirrored(self.squares))
        fields = {name: to_numpy(getattr(whole, name)) for name in _FIELDS}
        save_arrays(path, {"format": _FORMAT} | fields)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a second moment from a file that `save` wrote; no code in the file is executed.

        Parameters
        ----------
        path : str or path
            Path of the file.

        Returns
        -------
        SecondMoment
            The moment with NumPy arrays.

        Raises
        ------
        ValueError
            If the file is damaged or was not written by `save`.
        """
        stored = load_arrays(path, "a saved SecondMoment")
        # Files without this number were written when all products were in double precision.
        stored.setdefault("rounding", np.array(0.0))
        m = stored["center"].size if "center" in stored else 0
        expected = {"format": (), "weight": (), "squares": (m, m), "center": (m,), "offset": (m,)}
        expected["rounding"] = ()
        shapes = {name: values.shape for name, values in stored.items()}
        if not m or shapes != expected or stored["format"] != _FORMAT:
            raise ValueError(
                f"{os.fspath(path)!r} is not a saved SecondMoment: its arrays have the shapes "
                f"{shapes}. Give a file that SecondMoment.save wrote."
            )
        numbers = [stored[name] for name in _FIELDS]
        finite = all(a.dtype == np.float64 and np.isfinite(a).all() for a in numbers)
        if not finite or stored["weight"] <= 0 or stored["rounding"] < 0:
            raise ValueError(
                f"{os.fspath(path)!r} is not a saved SecondMoment: its arrays must be finite "
                "float64 numbers and its weight positive. Give a file that SecondMoment.save wrote."
            )
        _, squares, center, offset, rounding = numbers
        return cls(float(stored["weight"]), squares, center, offset, float(rounding))

    def plot(self, k: int | None = None, *, ax: Any = None, **line: Any) -> Any:
        """Draw the eigenvalues of the covariance; see `lucidae.displays.SpectrumDisplay`.

        Parameters
        ----------
        k : int, optional
            Number of eigenvalues, the largest first; by default all.
        ax : matplotlib axes, optional
            Axes to draw on; by default a new figure is made.
        **line
            Keyword arguments of ``ax.plot``.

        Returns
        -------
        SpectrumDisplay
            The display, already drawn; its axes are ``ax_``.
        """
        from lucidae.displays import SpectrumDisplay

        return SpectrumDisplay(self.spectrum(k)[0]).plot(ax=ax, **line)

    def __repr__(self) -> str:
        return f"SecondMoment(n_features={self.n_features}, weight={self.weight:g})"

    def _repr_html_(self) -> str:
        variances = to_numpy(diagonal(self.covariance))
        values = {
            "features": self.n_features,
            "weight (number of rows)": self.weight,
            "mean": to_numpy(self.mean),
            "variances": variances,
            "total variance": float(variances.sum()),
        }
        return card("Second moment", facts(values))


def covariance_spectrum(covariance: Array, k: int | None = None) -> tuple[Array, Array]:
    """Return the `k` largest eigenpairs (by default all) with order and signs of `spectrum`."""
    m = int(covariance.shape[0])
    k = m if k is None else check_integer(k, "k", low=1, high=m)
    values, vectors = leading_eigenpairs(covariance, k)
    xp = namespace(values)
    return xp.where(values > 0, values, 0.0 * values), fix_signs(vectors)


def _weighted_rows(X: Any, sample_weight: Any, name: str) -> tuple[Any, Array | None]:
    """Return validated rows and weights, without the rows of weight zero.

    Weighted rows and sparse rows are searched for NaN; in other rows it shows in the sums.
    """
    X = check_rows(X, name=name, finite=sample_weight is not None or scipy.sparse.issparse(X))
    return positive_rows(X, check_weights(sample_weight, X))


def positive_rows(X: Any, weights: Array | None) -> tuple[Any, Array | None]:
    """Return checked rows and weights without the rows of weight zero."""
    if weights is None or bool(namespace(weights).all(weights > 0)):
        return X, weights
    (positive,) = namespace(weights).nonzero(weights)
    rows = X[positive] if scipy.sparse.issparse(X) else namespace(X).take(X, positive, axis=0)
    return rows, namespace(weights).take(weights, positive, axis=0)


def _add_outer_(A: Array, weights: Sequence[float], vectors: Sequence[Array]) -> None:
    """Add w v vᵀ to the matrix `A` in place, for each weight w with its vector v.

    All terms use one temporary array, because new arrays are slow in workers of Dask. For one
    product of all vectors BLAS would start threads, which wait longer than they compute.
    """
    term = np.empty_like(A) if is_numpy(A) else None
    for weight, vector in zip(weights, vectors, strict=True):
        scaled = (weight * vector)[:, None]
        A += scaled * vector if term is None else np.multiply(scaled, vector, out=term)


def _entries(X: Any) -> Array:
    return X.data if scipy.sparse.issparse(X) else X


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """Return the rounded sum s of two numbers a and b, and its rounding error e = a + b − s.

    The sum s + e equals a + b exactly (Knuth 1969): b′ = s − a is the part of b that entered s, and
    a′ = s − b′ the part of a. The error e = (a − a′) + (b − b′) is computed without rounding.
    """
    total = a + b
    entered = total - a
    return total, (a - (total - entered)) + (b - entered)
