"""Products of a few vectors with the second moment of dense rows, in one pass over the rows.

For rows X (n × m) with weights p of sum 1 and mean μ, the product of vectors V (b × m) with the
second moment is C(X − 1μᵀ) with the codes C = (V(X − 1μᵀ)ᵀ)diag(p), so that X is needed twice. Here
it is read once: some rows at a time are multiplied twice while they are in the cache. Products with
few vectors are limited by the memory bandwidth, and so take half of the time. There is a second
reason for small pieces: OpenBLAS multiplies small matrices without first copying them, which for
four vectors takes more time than the product.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lucidae.arrays import is_numpy
from lucidae.arrays.threads import blas_threads, in_threads

__all__ = ["has_fast_products", "moment_product"]

Vector = np.ndarray[Any, Any]

SMALL_PRODUCT = 10**6
"""Largest number of multiplications of a product that OpenBLAS computes without copying."""

CACHED_BYTES = 2**20
"""Largest size of the rows that are multiplied at a time, so that they stay in the cache."""

FEWEST_ROWS = 4
"""Smallest number of rows at a time; with fewer, calling BLAS takes too much of the time."""

LARGE_PIECE = 2**22
"""Number of entries of the rows that are multiplied at a time if pieces for the cache would have
too few rows."""

SMALLEST_PASS = 2**19
"""Smallest number of entries of the rows for which they are read in pieces."""

THREADED_PASS = 2**25
"""Smallest number of multiplications for which several threads are started."""


def has_fast_products(X: Any, width: int) -> bool:
    """Tell whether `moment_product` is the fastest way to multiply `width` vectors by rows X.

    X must be a NumPy array of float32 or float64 numbers that is neither small nor too wide.
    """
    if not is_numpy(X) or X.dtype.char not in "fd" or X.size < SMALLEST_PASS:
        return False
    return _piece(X.shape[1], width, 8) >= FEWEST_ROWS


def moment_product(
    vectors: Vector, X: Vector, mean: Vector, shares: Vector | None, *, single: bool = False
) -> Vector:
    """Return the product of vectors with the second moment of weighted rows, in float64."""
    (n, m), dtype = X.shape, np.float32 if single and X.dtype == np.float32 else np.float64
    vectors, converted = np.ascontiguousarray(vectors, dtype=dtype), X.dtype != dtype
    if shares is not None and np.all(shares == 1.0 / n):
        shares = None
    shift = (vectors @ mean)[:, None].astype(dtype)
    size = _piece(m, len(vectors), np.dtype(dtype).itemsize)
    threads = blas_threads() if n * m * len(vectors) >= THREADED_PASS else 1
    if size < FEWEST_ROWS:
        size = max(1, LARGE_PIECE // m)

    def summed(first: int, last: int) -> tuple[Vector, Vector]:
        total, spread = np.zeros((len(vectors), m)), np.zeros(len(vectors))
        buffer = np.empty((min(size, last - first), m), dtype=dtype)
        for start in range(first, last, size):
            rows = X[start : min(start + size, last)]
            # A copy reads memory faster than BLAS does; BLAS then reads from the cache.
            if converted:
                rows = np.subtract(rows, mean, out=buffer[: len(rows)])
            elif threads > 1:
                buffer[: len(rows)] = rows
                rows = buffer[: len(rows)]
            codes = vectors @ rows.T
            if not converted:
                codes -= shift
            if shares is not None:
                codes *= shares[start : start + len(rows)].astype(dtype, copy=False)
            spread += codes.sum(axis=1)
            total += codes @ rows
        return total, spread

    parts = in_threads(summed, n, threads)
    total, spread = (sum(terms[1:], terms[0]) for terms in zip(*parts, strict=True))
    if not converted:
        total -= spread[:, None] * mean
    if shares is None:
        total /= n
    return np.asarray(total)


def _piece(m: int, width: int, itemsize: int) -> int:
    """Return the number of rows of m features that are multiplied with `width` vectors at once."""
    cached = max(CACHED_BYTES // (m * itemsize), FEWEST_ROWS)
    return min(SMALL_PRODUCT // (m * width), cached)
