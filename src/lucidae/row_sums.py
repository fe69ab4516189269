"""Sums over weighted rows about a centre, from which mean and second moment follow.

For rows x with weights w, the sums are the total weight W = Σ w, the squares about a centre c,
S = Σ w (x − c)(x − c)ᵀ, and the offset o of the mean from c. The scatter is S − W o oᵀ. The
subtraction costs at most three bits of every variance if `keeps_digits` accepts the centre;
otherwise `dense_sums` chooses another one. Products of large float32 rows are computed in single
precision, and their error is measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import scipy.sparse

from lucidae.arrays import (
    Array,
    add_gram_,
    as_double,
    device,
    is_numpy,
    namespace,
    on_host,
    scalar,
    weighted_sum,
)
from lucidae.arrays.threads import blas_threads, in_threads, one_thread

__all__ = [
    "dense_sums",
    "keeps_digits",
    "slices",
    "sparse_centre",
    "sparse_sums",
    "sums_about",
]

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

Sums = tuple[float, Array, Array, Array, float]
"""The fields of a `SecondMoment`: total weight, squares S about the centre (lower triangle only),
centre c, offset o of the mean from the centre, and error of products in single precision."""


def dense_sums(X: Array, weights: Array | None) -> Sums:
    """Return the weighted sums of dense rows about a centre that is close enough to their mean.

    The first centre is an estimate of the mean, and the sums show whether it is close enough for an
    accurate scatter. If it is not, the mean computed with it becomes the next centre. The sums
    about the third centre are returned in any case.
    """
    center = _first_center(X)
    for _ in range(3):
        sums = sums_about(center, X, weights)
        if keeps_digits(*sums[:4]):
            break
        center = center + sums[3]
    return sums


def _first_center(X: Array) -> Array:
    """Return the first centre for rows X, chosen from some of the rows.

    It is zero if, in every feature, the squared mean of these rows is small compared with their
    mean square (`LIKELY_SHARE`). Otherwise, and always for products in single precision, it is
    their mean.
    """
    xp, step = namespace(X), -(-X.shape[0] // PROBED_ROWS)
    rows = as_double(X[::step, :])
    # Differences to the first row make the mean of a constant column exact.
    mean = rows[0, :] + xp.mean(rows - rows[0, :], axis=0)
    if _in_single_precision(X):  # rounding errors of products then grow with the offset
        return mean.astype(np.float32).astype(np.float64)
    allowed = LIKELY_SHARE * xp.mean(rows * rows, axis=0)
    plain = (mean * mean <= allowed) & (allowed < math.inf)
    return 0.0 * rows[0, :] if bool(xp.all(plain)) else mean


def sums_about(center: Array, X: Array, weights: Array | None) -> Sums:
    """Return the sums of weighted rows about a given centre."""
    if weights is None and _in_single_precision(X):
        sums = _single_sums(center, X)
        if sums is not None:
            return sums
    return _double_sums(center, X, weights)


def _double_sums(center: Array, X: Array, weights: Array | None) -> Sums:
    """Return the sums of weighted rows about a centre, in double precision."""
    n = X.shape[0]
    total = float(n) if weights is None else scalar(namespace(weights).sum(weights))
    threads = _sharing_threads(X)

    def part(first: int, last: int) -> tuple[Array, Array]:
        own = None if weights is None else weights[first:last]
        squares, mean = None, 0.0 * center
        for rows, shares in _blocks(center, X[first:last, :], own):
            mean = mean + weighted_sum(shares, rows) / total
            if shares is not None:
                rows *= namespace(rows).sqrt(shares)[:, None]
            squares = add_gram_(squares, rows)
        return squares, mean

    with one_thread() if threads > 1 else nullcontext():
        parts = in_threads(part, n, threads)
    squares, mean = parts[0]
    for others in parts[1:]:
        squares += others[0]
        mean = mean + others[1]
    return total, squares, center, mean, 0.0


def _sharing_threads(X: Array) -> int:
    """Return the number of Python threads that share the products of rows X (n, m).

    Each of them needs a matrix (m, m) of its own, which should take at most as much memory as twice
    its rows. Threads of BLAS would wait actively for some time after the products, and slow down
    those of SciPy.
    """
    (n, m), threads = X.shape, blas_threads() if is_numpy(X) else 1
    large = n >= max(SHARED_ROWS, m // 2) * threads and n * m * m >= SHARED_PRODUCTS
    return threads if large and m <= SHARED_FEATURES else 1


def _in_single_precision(X: Array) -> bool:
    """Tell whether products of rows X are computed in single precision and added in double."""
    return is_numpy(X) and X.dtype == np.float32 and X.size > SINGLE_ENTRIES


def _single_sums(center: Array, X: Array) -> Sums | None:
    """Return the sums of float32 rows about a centre, from products in single precision."""
    rounded, n = center.astype(np.float32), X.shape[0]
    if not np.array_equal(rounded, center):
        return None
    # Python threads also share the work between the products, during which the threads of BLAS
    # would wait; but each of them needs matrices of its own.
    threads = _sharing_threads(X)

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
    buffer = xp.empty((size, X.shape[1]), dtype=xp.float64, device=device(X))
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
    """Return the sums of sparse rows, as the fields of a `SecondMoment`; X is not made dense.

    Columns without zeros are centred, the other columns are squared about zero (`sparse_centre`).
    """
    X, center, offset = sparse_centre(X, weights)
    total = float(X.shape[0]) if weights is None else float(weights.sum())
    if weights is not None:
        X = scipy.sparse.diags_array(np.sqrt(weights)) @ X
    return total, (X.T @ X).toarray(), center, offset, 0.0


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
