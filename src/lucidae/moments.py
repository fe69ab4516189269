"""Exact mean and second moment of weighted rows, which can be updated and merged.

A covariance computed as E[xxᵀ] − E[x]E[x]ᵀ is inaccurate if the squared mean is much larger than
the variance. For rows x with weights w, this module therefore computes the scatter (the sum of
squares about the mean) from the squares S about a centre c close to the mean and from the offset o
of the mean from c:

    S = Σ w (x − c)(x − c)ᵀ,    o = mean(x) − c,    scatter = S − (Σ w) o oᵀ.

A centre is accepted only if the subtraction costs at most three bits of every variance
(`keeps_digits`); otherwise `dense_sums` chooses another one. For most data c = 0 is accepted, and
the rows need not be centred. The mean is stored as the pair (c, o) of float64 vectors, whose sum is
more accurate than one float64 vector. Products of large float32 rows are computed in single
precision, and their error is measured.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Self, cast

import numpy as np
import scipy.linalg
import scipy.sparse

from lucidae.arrays import (
    Array,
    add_gram_,
    as_double,
    beside,
    diagonal,
    largest,
    like,
    mirrored,
    namespace,
    on_host,
    to_numpy,
)
from lucidae.arrays.eigen import fix_signs, leading_eigenpairs
from lucidae.arrays.threads import blas_threads, in_threads, one_thread
from lucidae.cards import card, facts
from lucidae.io import load_arrays, save_arrays
from lucidae.iteration.progress import elapsed_on
from lucidae.validation import check_argument, check_integer, check_rows, check_weights

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

PLAIN_ROWS = 16_384
"""Number of rows multiplied at a time if they need no centring, weighting or conversion."""

SHARED_FEATURES = 2048
"""Largest number of features for which Python threads share the products of rows. Each thread has a
matrix of its own, and for more features the products take almost all of the time."""

SHARED_ROWS = 768
"""Smallest number of rows for each of these threads; starting them for every small batch of a
stream would take longer than it saves."""

SHARED_PRODUCTS = 2**28
"""Smallest number of multiplications for which such threads are started."""

BLOCK_ROWS = 2048
"""Number of rows that are copied and centred at a time, so that a large array is never copied as a
whole."""

DEVICE_ENTRIES = 2**25
"""Number of entries of the rows that are multiplied at a time on a GPU, which computes products of
a few thousand rows at a fraction of its speed. Their copy takes 256 mebibytes."""

DENSE_ENTRIES = 2**23
"""Number of entries of the sparse rows that are made dense at a time: 64 mebibytes. The products
of fewer rows take a fifth longer, because each adds a matrix of shape (m, m)."""

PROBED_ROWS = 256
"""Number of rows from which the mean is estimated, to choose the first centre."""

LIKELY_SHARE = 0.75
"""The first centre is zero if, for every feature, the squared estimate of the mean is at most this
share of the mean square."""

LARGEST_SHARE = 0.875
"""Largest ratio of the subtracted term (Σ w) o² to the sum of squares S of a feature, where o is
the offset of its mean from the centre. At least 1/8 of S remains, so that three bits are lost."""

SINGLE_ENTRIES = 2_000_000
"""Number of entries of float32 rows above which their products are computed in single precision and
added in double precision. For MNIST, the error of the covariance is then 1e-7 times its largest
eigenvalue; it is larger for entries of few distinct values, whose rounding errors have the same
sign, and is therefore measured (`SecondMoment.rounding`). Fewer entries take little time in double
precision."""

SINGLE_BLOCK = 3072
"""Number of rows whose products are computed in single precision at a time."""

MEASURED_BLOCKS = 4
"""Smallest number of blocks, spread over the rows, whose products are compared with those in double
precision."""

MEASURED_ROWS = 128
"""Number of rows that are converted to double precision for it at a time; they stay in cache."""

MEASURED_DIRECTIONS = 8
"""Number of random vectors by which this error is multiplied, to estimate its Frobenius norm."""

MEASURED_MARGIN = 4.0
"""Factor by which the estimate is multiplied. A norm is more than 4 times its estimate from eight
random vectors with a probability of at most 2e-4."""

SINGLE_ROWS = 64
"""Number of rows that are added in single precision for the mean."""

SINGLE_RANGE = 1e20
"""Mean squares of the entries between the inverse of this number and this number neither overflow
nor underflow in single precision."""

SPARSE_SQUARE_COST = 256.0
"""Time of one floating-point operation in a product of a sparse matrix with its own transpose,
relative to one in a product of dense matrices. Rows with more than a sixteenth of their entries
stored are therefore made dense some at a time: on one core, the second moment of 50 000 × 2000 rows
of which 16 % are stored takes 3.7 s, and 12.5 s from sparse rows."""

Sums = tuple[float, Array, Array, Array, float]
"""The fields of a `SecondMoment`: total weight, squares S about the centre (lower triangle only),
centre c, offset o of the mean from the centre, and error of products in single precision."""


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
            `lucidae.rows.row_blocks`).
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
        check_argument(verbose, "verbose")
        for read in _READERS:
            found = read(X, sample_weight, verbose)
            if found is not None:
                return cast(Self, found)
        X, weights = _checked_rows(X, sample_weight, "X")
        with elapsed_on(X, "second moment", verbose):
            return cls._of_rows(X, weights)

    @classmethod
    def _of_rows(cls, X: Any, weights: Array | None, before: SecondMoment | None = None) -> Self:
        """Return the second moment of validated rows X together with those `before` them.

        Rows of weight zero do not count. New rows are squared about the centre of the earlier ones
        if that loses no digits, because squares about the same centre are merely added. Otherwise a
        new centre is chosen.
        """
        if weights is not None and not bool(namespace(weights).all(weights > 0)):
            xp, (positive,) = namespace(weights), namespace(weights).nonzero(weights)
            X = X[positive] if scipy.sparse.issparse(X) else xp.take(X, positive, axis=0)
            weights = xp.take(weights, positive, axis=0)
        with np.errstate(over="ignore", invalid="ignore"):
            if before is None or scipy.sparse.issparse(X):
                sums = sparse_sums if scipy.sparse.issparse(X) else dense_sums
                fresh = cls(*sums(X, weights))
                found = fresh if before is None else before._absorb(fresh)
            else:
                X = beside(X, before.center)
                weights = None if weights is None else beside(weights, before.center)
                found = before._absorb(cls(*sums_about(before.center, X, weights)))
                if not keeps_digits(found.weight, found.squares, found.center, found.offset):
                    found = before._absorb(cls(*dense_sums(X, weights)))
            check_squares(X, found.mean, found.trace * found.weight, found.weight)
        return cast(Self, found)

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
        batch, weights = _checked_rows(batch, sample_weight, "batch")
        if batch.shape[1] != self.n_features:
            raise ValueError(
                f"batch has {batch.shape[1]} features, but this second moment has "
                f"{self.n_features}: give rows with the same features."
            )
        return type(self)._of_rows(batch, weights, self)

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
            found = self._absorb(fresh)
            check_squares(other.mean[None, :], found.mean, found.trace * found.weight, found.weight)
        return found

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
        m = root.shape[0]
        for part in slices(m, SCATTER_ROWS if on_host(root) else m):
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
        squares = float(xp.linalg.trace(self.squares)) / self.weight
        return squares - float(xp.sum(self.offset * self.offset))

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


def _checked_rows(X: Any, sample_weight: Any, name: str) -> tuple[Any, Array | None]:
    """Return validated rows and weights.

    Weighted rows and sparse rows are searched for NaN; in other rows it shows in the sums.
    """
    X = check_rows(X, name=name, finite=sample_weight is not None or scipy.sparse.issparse(X))
    return X, check_weights(sample_weight, X)


def _add_outer_(A: Array, weights: Sequence[float], vectors: Sequence[Array]) -> None:
    """Add w v vᵀ to the matrix `A` in place, for each weight w with its vector v.

    All terms use one temporary array, because new arrays are slow in workers of Dask. For one
    product of all vectors BLAS would start threads, which wait longer than they compute.
    """
    term = np.empty_like(A) if isinstance(A, np.ndarray) else None
    for weight, vector in zip(weights, vectors, strict=True):
        scaled = (weight * vector)[:, None]
        A += scaled * vector if term is None else np.multiply(scaled, vector, out=term)


def check_squares(X: Any, mean: Array, scatter: float, weight: float) -> None:
    """Raise a ValueError if rows X contain NaN or infinity, or squares overflow or underflow.

    `scatter` is the sum of their squares about the mean. Since an entry that is not finite makes it
    NaN or infinite, the entries themselves are tested only then.
    """
    if math.isfinite(scatter) and scatter >= SMALLEST_SCATTER:
        return
    entries = like(X.data if scipy.sparse.issparse(X) else X, mean)
    peak = largest(entries)
    words = f"its largest entry by magnitude is {peak:.3g}, and its weights sum to {weight:.3g}"
    if not math.isfinite(scatter):
        check_rows(X)
        factor = "X" if peak > LARGEST_ENTRY else "sample_weight"
        raise ValueError(
            f"the squares of X overflow double precision: {words}. Divide {factor} by a constant "
            "first."
        )
    # The scatter of equal rows is zero; here entries differ by more than rounding errors.
    if largest(entries - (mean[X.indices] if scipy.sparse.issparse(X) else mean)) > 1e-15 * peak:
        raise ValueError(
            f"the squares of X underflow double precision: {words}. Multiply X, or sample_weight, "
            "by a constant first."
        )


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """Return the rounded sum s of two numbers a and b, and its rounding error e = a + b − s.

    The sum s + e equals a + b exactly (Knuth 1969): b′ = s − a is the part of b that entered s, and
    a′ = s − b′ the part of a. The error e = (a − a′) + (b − b′) is computed without rounding.
    """
    total = a + b
    entered = total - a
    return total, (a - (total - entered)) + (b - entered)


def dense_sums(X: Array, weights: Array | None) -> Sums:
    """Return the weighted sums of dense rows about a centre that is close enough to their mean.

    The first centre is chosen from some of the rows: zero if, in every feature, their squared mean
    is small compared with their mean square (`LIKELY_SHARE`), otherwise their mean. The sums show
    whether it is close enough for an accurate scatter. If it is not, the mean computed with it
    becomes the next centre. The sums about the third centre are returned in any case.
    """
    xp, step = namespace(X), -(-X.shape[0] // PROBED_ROWS)
    rows = as_double(X[::step, :])
    # Differences to the first row make the mean of a constant column exact.
    center = rows[0, :] + xp.mean(rows - rows[0, :], axis=0)
    if isinstance(X, np.ndarray) and X.dtype == np.float32:
        # Rounding errors of products in single precision grow with the offset of the mean.
        center = center.astype(np.float32).astype(np.float64)
    else:
        allowed = LIKELY_SHARE * xp.mean(rows * rows, axis=0)
        if bool(xp.all((center * center <= allowed) & (allowed < math.inf))):
            center = 0.0 * center
    for _ in range(3):
        sums = sums_about(center, X, weights)
        if keeps_digits(*sums[:4]):
            break
        center = center + sums[3]
    return sums


def sums_about(center: Array, X: Array, weights: Array | None) -> Sums:
    """Return the sums of weighted rows about a given centre.

    Python threads share large products: threads of BLAS would wait actively for some time after
    the products, and slow down those of SciPy. Each thread has a matrix (m, m) of its own, which
    should take at most as much memory as twice its rows.
    """
    n, m = X.shape
    large = isinstance(X, np.ndarray) and n * m * m >= SHARED_PRODUCTS and m <= SHARED_FEATURES
    threads = blas_threads() if large else 1
    threads = threads if n >= max(SHARED_ROWS, m // 2) * threads else 1
    single = isinstance(X, np.ndarray) and X.dtype == np.float32 and n * m > SINGLE_ENTRIES
    sums = _single_sums(center, X, threads) if single and weights is None else None
    if sums is not None:
        return sums
    total = float(n) if weights is None else float(namespace(weights).sum(weights))

    def part(first: int, last: int) -> tuple[Array, Array]:
        own = None if weights is None else weights[first:last]
        squares, mean = None, 0.0 * center
        for rows, shares in _blocks(center, X[first:last, :], own):
            xp = namespace(rows)
            ones = xp.ones(rows.shape[0], dtype=rows.dtype, device=rows.device)
            mean = mean + (ones if shares is None else shares) @ rows / total
            if shares is not None:
                rows *= xp.sqrt(shares)[:, None]
            squares = add_gram_(squares, rows)
        return squares, mean

    if threads == 1:
        squares, mean = part(0, n)
    else:
        with one_thread():
            parts = in_threads(part, n, threads)
        squares, mean = (sum(terms[1:], terms[0]) for terms in zip(*parts, strict=True))
    return total, squares, center, mean, 0.0


def _single_sums(center: Array, X: Array, threads: int) -> Sums | None:
    """Return the sums of float32 rows about a centre, from products in single precision."""
    rounded, n = center.astype(np.float32), X.shape[0]
    if not np.array_equal(rounded, center):
        return None

    def part(first: int, last: int) -> tuple[Array, Array, float, float]:
        return _single_part(rounded, X[first:last], -(-MEASURED_BLOCKS // threads))

    with one_thread() if threads > 1 else nullcontext():
        squares, total, errors, sizes = map(sum, zip(*in_threads(part, n, threads), strict=True))
    size = float(np.trace(squares)) / X.size
    if not 1.0 / SINGLE_RANGE < size < SINGLE_RANGE:
        return None
    rounding = MEASURED_MARGIN * errors / sizes if sizes > 0.0 else MEASURED_MARGIN
    return float(n), squares, center, total / n, rounding


def _single_part(center: Array, X: Array, measured: int) -> tuple[Array, Array, float, float]:
    """Return sums of products and rows of X − center, and error and trace of `measured` products.

    The measured blocks are spread over the rows.
    """
    n, m = X.shape
    squares, total, errors, sizes = np.zeros((m, m)), np.zeros(m), 0.0, 0.0
    step = -(-n // (measured * SINGLE_BLOCK)) * SINGLE_BLOCK
    # Arrays are allocated once: workers of Dask return memory to the system as soon as it is free,
    # so that new memory is slow there.
    buffer = np.empty((min(SINGLE_BLOCK, n), m), dtype=np.float32)
    product, scratch = np.empty((m, m), dtype=np.float32), np.empty((MEASURED_ROWS, m))
    for block in slices(n, SINGLE_BLOCK):
        given, rows = X[block], buffer[: block.stop - block.start]
        for piece in slices(len(rows), SINGLE_ROWS):  # which stays in the cache
            np.subtract(given[piece], center, out=rows[piece])
            total += np.sum(rows[piece], axis=0)
        np.matmul(rows.T, rows, out=product)  # NumPy computes one triangle and copies the other
        squares += product
        if block.start % step == 0:
            errors += _single_error(product, given, center, scratch)
            sizes += float(np.trace(product))
    return squares, total, errors, sizes


def _single_error(product: Array, X: Array, center: Array, scratch: Array) -> float:
    """Estimate the Frobenius norm of the error of `product`, (X − center)ᵀ(X − center).

    The error matrix E is multiplied with random vectors g, because the mean of ‖Eg‖² over standard
    normal vectors g is the squared Frobenius norm of E. `scratch` is overwritten.
    """
    m = X.shape[1]
    random = np.random.default_rng(0).standard_normal((m, MEASURED_DIRECTIONS))
    error = np.empty_like(random)
    for piece in slices(m, len(scratch)):
        exact = scratch[: piece.stop - piece.start]
        exact[...] = product[piece]
        np.matmul(exact, random, out=error[piece])
    for piece in slices(len(X), len(scratch)):
        exact = scratch[: piece.stop - piece.start]
        exact[...] = X[piece]
        exact -= center
        error -= exact.T @ (exact @ random)
    return float(np.linalg.norm(error)) / math.sqrt(MEASURED_DIRECTIONS)


def keeps_digits(total: float, squares: Array, center: Array, offset: Array) -> bool:
    """Tell whether sums over rows about a centre give an accurate variance of every feature.

    The variance is accurate if Wo² is at most `LARGEST_SHARE` times S. A feature whose offset is
    only a rounding error of its centre passes as well, because no float64 number is closer to its
    mean. An example is a constant feature, whose variance is zero.
    """
    xp = namespace(squares)
    sound = total * offset * offset <= LARGEST_SHARE * xp.linalg.diagonal(squares)
    resolved = xp.abs(offset) <= 4 * xp.finfo(xp.float64).eps * xp.abs(center)
    return bool(xp.all(sound | resolved))


def _blocks(center: Array, X: Array, weights: Array | None) -> Iterator[tuple[Array, Array | None]]:
    """Yield blocks of the rows of X minus the centre, as float64, each with its weights.

    Rows that need no change are views of X; otherwise each block overwrites the one before.
    """
    xp, n_rows, plain = namespace(X), X.shape[0], not bool(namespace(X).any(center != 0.0))
    least = 0 if on_host(X) else DEVICE_ENTRIES // X.shape[1]
    if plain and weights is None and X.dtype == xp.float64:
        yield from ((X[block, :], None) for block in slices(n_rows, max(PLAIN_ROWS, least)))
        return
    size = min(max(BLOCK_ROWS, least), n_rows)
    buffer = xp.empty((size, X.shape[1]), dtype=xp.float64, device=X.device)
    for block in slices(n_rows, size):
        rows = buffer[: block.stop - block.start, :]
        rows[...] = X[block, :]
        if not plain:
            rows -= center
        yield rows, None if weights is None else weights[block]


def slices(n_rows: int, size: int) -> Iterator[slice]:
    """Yield consecutive slices of at most `size` rows."""
    return (slice(start, min(start + size, n_rows)) for start in range(0, n_rows, size))


def sparse_sums(X: Any, weights: Array | None) -> Sums:
    """Return the sums of sparse rows, as the fields of a `SecondMoment`.

    Columns without zeros are centred, the other columns are squared about zero (`sparse_centre`).
    X is not made dense as a whole.
    """
    X, center, offset = sparse_centre(X, weights)
    total = float(X.shape[0]) if weights is None else float(weights.sum())
    if weights is not None:
        X = scipy.sparse.diags_array(np.sqrt(weights)) @ X
    return total, sparse_square(X), center, offset, 0.0


def sparse_square(X: Any) -> Array:
    """Return XᵀX for sparse rows X (n, m); only the lower triangle is defined."""
    n, m = X.shape
    if n * m * m > SPARSE_SQUARE_COST * X.nnz * X.nnz / n:
        return (X.T @ X).toarray()
    squares = None
    # At most a quarter of the rows is dense at a time, however small they are.
    for part in slices(n, max(1, min(DENSE_ENTRIES // m, n // 4))):
        squares = add_gram_(squares, X[part].toarray())
    return cast(Array, squares)


def sparse_centre(X: Any, weights: Array | None, center: Any = None) -> tuple[Any, Array, Array]:
    """Return sparse rows with centred columns, the vector subtracted, and the mean of the result.

    Columns without zeros are centred about their mean, or about the given `center`, which adds no
    stored entries. Only such a column can have a mean far above its standard deviation: if a share
    z of the entries of a column is zero, its variance is at least z times its mean square.
    """
    total = float(X.shape[0]) if weights is None else float(weights.sum())
    X = X.tocsr()
    if not X.has_canonical_format:
        X = X.copy()
        X.sum_duplicates()
    X = X.astype(np.float64, copy=False)
    full = np.bincount(X.indices, minlength=X.shape[1]) == X.shape[0]
    subtracted = np.zeros(X.shape[1])
    if full.any():
        X = X.copy()
        if center is None:
            # Differences to the first row make the mean of a constant column exact.
            first, entries = np.where(full, X[:1].toarray()[0], 0.0), X.data
            X.data = entries - first[X.indices]
            center = first + _sparse_mean(X, weights, total)
            X.data = entries
        subtracted = np.where(full, center, 0.0)
        X.data = X.data - subtracted[X.indices]
    return X, subtracted, _sparse_mean(X, weights, total)


def _sparse_mean(X: Any, weights: Array | None, total: float) -> Array:
    return np.asarray(X.sum(axis=0) if weights is None else weights @ X).ravel() / total
