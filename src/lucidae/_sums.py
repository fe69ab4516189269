"""Sums over rows that keep the digits of small deviations from large means."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse

from lucidae._arrays import Array, add_gram_, as_double, device, namespace, scalar, weighted_sum

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
