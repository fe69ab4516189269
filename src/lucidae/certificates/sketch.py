"""A sketch of rows: what remains of them when they have passed, to test a second moment with.

For rows x with weights w, a shift c and a matrix Ω of independent standard normal entries (m × q),

    Y = Σ w (x − c)(x − c)ᵀΩ,   s = Σ w (x − c),   W = Σ w

give the product CΩ of the covariance C of the rows about their mean with Ω. A solver that used
another matrix C′ has the error E = C′ − C, and EΩ = C′Ω − CΩ is known. For the leading right
singular vector v of E, ‖EΩ‖ ≥ ‖E‖ ‖vᵀΩ‖, and ‖vᵀΩ‖² has a chi-squared distribution with q degrees
of freedom, because Ω is independent of E. So ‖EΩ‖_F divided by a small quantile is a bound on ‖E‖
that is wrong with the probability `FAILURE` (Freivalds' test of a product, with a bound on the
error). With this bound C′ is as good as C: Weyl's inequality does the rest.

The sums are made block by block by the code of this module alone, in float64 on the device of the
rows; no solver uses them. Reading of the data is outside of what a sketch can test.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import scipy.sparse

from lucidae.arrays import as_double, is_numpy, like, namespace, squared_norms, to_numpy
from lucidae.arrays.threads import blas_threads, in_threads, one_thread
from lucidae.certificates.bounds import TINY, Ball, gamma
from lucidae.certificates.complement import start_share

__all__ = ["Sketch", "column_scales", "sketch_pairs"]

Vector = np.ndarray[Any, Any]

# Number q of random directions: the quantile of 1e-9 is then 0.16, so that ‖E‖ ≤ 6.4 ‖EΩ‖_F.
DIRECTIONS = 8

# Entries of rows that are shifted and multiplied at a time: one mebibyte, which fits the cache.
BLOCK_ENTRIES = 2**17

# Number of rows whose mean is the shift.
FIRST_ROWS = 64

# Number of rows from which the units of columns are taken.
SAMPLED = 1024

# Number of rows with the largest squared distance from the shift that are remembered.
PEAKS = 8


@lru_cache(maxsize=4)
def _directions(m: int) -> Vector:
    return np.random.default_rng([m, 20181]).standard_normal((DIRECTIONS, m))


@dataclass(frozen=True)
class Sketch:
    """Sums over rows with which a covariance and a mean are tested; see the module's docstring."""

    shift: Vector  # (m,): the shift c
    weight: float  # W
    sums: Vector  # (m,): s
    images: Vector  # (q, m): Yᵀ
    # sum of w‖x − c‖² over all rows and shifts, which bounds every sum of absolute terms
    size: float
    depth: int  # rounding errors in sequence of an entry of the sums
    rows: int  # number of rows
    peaks: Vector  # (2, ≤ PEAKS): numbers of the rows farthest from the shift, and their w‖x − c‖²

    @classmethod
    def empty(cls, m: int) -> Sketch:
        """Return the sketch of no rows with m features."""
        zeros = np.zeros(m)
        return cls(zeros, 0.0, zeros, np.zeros((DIRECTIONS, m)), 0.0, 0, 0, np.empty((2, 0)))

    @classmethod
    def of(cls, X: Any, weights: Any = None) -> Sketch:
        """Return the sketch of the rows X (dense of any library, or sparse) with their weights."""
        n, m = X.shape
        if not n:
            return cls.empty(m)
        omega, step = _directions(m), n
        shares = np.ones(n) if weights is None else to_numpy(weights).astype(float)
        if scipy.sparse.issparse(X):
            # Sparse rows are shifted in the columns without zeros, so that zeros stay zeros.
            rows = X.tocsr().astype(np.float64, copy=True)
            rows.sum_duplicates()
            full = np.bincount(rows.indices, minlength=m) == n
            shift = np.where(full, np.asarray(rows.sum(axis=0)).ravel() / n, 0.0)
            rows.data -= shift[rows.indices]
            images = np.asarray(np.vstack([(rows @ omega.T).T * shares, shares]) @ rows)
            squares = np.asarray(rows.multiply(rows).sum(axis=1)).ravel()
        else:
            # The first rows give a shift that is close to the mean of most data. Those of weight
            # zero do not count, however large they are.
            first = to_numpy(as_double(X[: min(n, FIRST_ROWS), :]))
            share = shares[: len(first)]
            shift = np.average(first, axis=0, weights=share if share.any() else None)
            device_omega, device_shift = (
                like(part, as_double(X[:1, :])) for part in (omega, shift)
            )
            step = max(1, BLOCK_ENTRIES // m)

            def part_of(first: int, last: int) -> tuple[Vector, Vector]:
                images, squares = np.zeros((DIRECTIONS + 1, m)), np.empty(last - first)
                for start in range(first, last, step):
                    part = slice(start, min(start + step, last))
                    block = as_double(X[part, :]) - device_shift
                    codes = np.empty((DIRECTIONS + 1, part.stop - start))
                    codes[:-1] = to_numpy(device_omega @ block.mT) * shares[part]
                    codes[-1] = shares[part]
                    squares[start - first : part.stop - first] = to_numpy(
                        squared_norms(block, axis=-1)
                    )
                    images += to_numpy(like(codes, block) @ block)
                return images, squares

            # Threads of BLAS would only wait for each other in products that are so small.
            threads = blas_threads() if n * m > 4 * BLOCK_ENTRIES and is_numpy(X) else 1
            with one_thread():
                found = in_threads(part_of, n, threads)
            images = np.sum([part[0] for part in found], axis=0)
            squares = np.concatenate([part[1] for part in found])
        squares *= shares
        top = np.argsort(-squares, kind="stable")[:PEAKS]
        weight, size, depth = float(shares.sum()), float(squares.sum()), step + m + -(-n // step)
        peaks = np.stack([top, squares[top]])
        return cls(shift, weight, images[-1], images[:-1], size, min(depth, n + m + 1), n, peaks)

    @classmethod
    def given(cls, mean: Any, covariance: Any, weight: float) -> Sketch:
        """Return the sketch of rows of which only mean and covariance are given, as data."""
        mean, covariance = to_numpy(mean), to_numpy(covariance)
        images = weight * (_directions(len(mean)) @ covariance)
        size = weight * float(np.trace(covariance))
        peaks = np.empty((2, 0))
        rows = max(1, int(weight))
        return cls(mean, weight, np.zeros(len(mean)), images, size, len(mean), rows, peaks)

    def update(self, X: Any, weights: Any = None) -> Sketch:
        """Return the sketch of the rows so far and the rows X together."""
        return self.merge(Sketch.of(X, weights))

    def merge(self, other: Sketch) -> Sketch:
        """Return the sketch of the rows of both, those of `other` after those of this one.

        Sums about another shift follow by (x − c) = (x − c′) + (c′ − c).
        """
        if not self.rows or not other.rows:
            return self if self.rows else other
        later = other.peaks + np.array([[self.rows], [0.0]])
        peaks = np.concatenate([self.peaks, later], axis=1)
        images, sums, size = other.images, other.sums, other.size
        if not np.array_equal(self.shift, other.shift):
            omega, step = _directions(len(self.shift)), other.shift - self.shift
            along = omega @ step
            images = images + np.outer(along, sums + other.weight * step)
            images = images + np.outer(omega @ other.sums, step)
            sums = sums + other.weight * step
            size = 2.0 * (size + other.weight * float(step @ step))
        return Sketch(
            self.shift,
            self.weight + other.weight,
            self.sums + sums,
            self.images + images,
            self.size + size,
            max(self.depth, other.depth) + 1,
            self.rows + other.rows,
            peaks[:, np.argsort(-peaks[1], kind="stable")[:PEAKS]],
        )

    @property
    def mean(self) -> Vector:
        """Mean of the rows."""
        return np.asarray(self.shift + self.sums / self.weight)

    def compare(self, covariance: Vector) -> Ball:
        """Return a bound on ‖C′ − C‖ for a matrix C′ that is claimed to be the covariance C.

        The error of the ball is the part of the bound that rounding errors of the sketch and of C′
        explain. The divisor of C is the total weight W.
        """
        omega, m = _directions(len(self.shift)), len(self.shift)
        # In units of the largest entry no square overflows or vanishes.
        unit = max(self.size / self.weight, float(np.max(np.abs(covariance))), TINY)
        covariance, root = covariance / unit, np.sqrt(unit)
        offset = self.sums / self.weight / root
        true = self.images / self.weight / unit - np.outer(omega @ offset, offset)
        apart = float(np.linalg.norm(omega @ covariance - true))
        # The sums over rows of codes c = (x − c)ᵀω times x − c are wrong by at most γ times
        # (Σ w c² · Σ w‖x − c‖²)^½, each code by γ‖x − c‖‖ω‖, and the mean by γ(Σ w‖x − c‖²/W)^½.
        spread, length = self.size / self.weight / unit, float(np.linalg.norm(omega))
        codes = max(float(np.sum(self.images * omega)), 0.0) / self.weight / unit
        shifted = length * float(np.linalg.norm(offset)) + float(np.linalg.norm(omega @ offset))
        rounding = gamma(self.depth) * (codes**0.5 + shifted) * spread**0.5
        rounding += gamma(m) * length * (spread + float(np.linalg.norm(covariance)))
        share = start_share(DIRECTIONS)
        apart = apart * unit if np.isfinite(apart) else math.inf
        return Ball(apart / share, 2.0 * rounding * unit / share)

    def moment_error(self, covariance: Vector) -> float:
        """Return the bound on ‖C′ − C‖ of `compare`, with its rounding errors."""
        bound = float(self.compare(covariance).high)
        return bound if np.isfinite(bound) else math.inf


def column_scales(X: Any, Y: Any, *, centered: bool = True) -> Vector:
    """Return powers of two near the standard deviations of the columns of [X | Y].

    They are those of at most `SAMPLED` rows: a sketch of rows in these units tests a column of
    small scale as well as one of large scale, and any units give a bound.
    """
    found = []
    for part in (X, Y):
        step = max(1, -(-part.shape[0] // SAMPLED))
        if scipy.sparse.issparse(part):
            rows = part.tocsr()[::step].astype(np.float64)
            sizes = np.sqrt(np.asarray(rows.multiply(rows).mean(axis=0)).ravel())
        else:
            rows = to_numpy(as_double(part[::step, :]))
            away = rows - rows.mean(axis=0)
            sizes = np.sqrt(np.mean(away * away, axis=0))
            largest = np.max(np.abs(rows), axis=0)
            constant = sizes <= gamma(len(rows)) * largest
            sizes[constant] = 0.0 if centered else largest[constant]
        known = (sizes > 0) & np.isfinite(sizes)
        # Columns that are constant so far have the size of the others.
        found.append(np.where(known, sizes, np.median(sizes[known]) if known.any() else 1.0))
    return np.asarray(np.exp2(np.round(np.log2(np.concatenate(found)))))


def sketch_pairs(
    X: Any, Y: Any, weights: Any, scales: Vector, before: Sketch | None = None
) -> Sketch:
    """Return the sketch of the rows of [X | Y] divided by `scales`, after those of `before`."""
    sketch = Sketch.empty(X.shape[1] + Y.shape[1]) if before is None else before
    m, n = X.shape[1], X.shape[0]
    step = n if scipy.sparse.issparse(X) else max(FIRST_ROWS, BLOCK_ENTRIES // len(scales))
    for start in range(0, n, step):
        part = slice(start, start + step)
        share = None if weights is None else weights[part]
        outputs = to_numpy(as_double(Y[part, :])) / scales[m:]
        if scipy.sparse.issparse(X):
            inputs = X.tocsr().astype(np.float64).multiply(1.0 / scales[:m])
            rows = scipy.sparse.hstack([inputs, scipy.sparse.csr_array(outputs)], format="csr")
        else:
            block = as_double(X[part, :])
            beside = [block / like(scales[:m], block), like(outputs, block)]
            rows = namespace(block).concat(beside, axis=1)
        sketch = sketch.update(rows, share)
    return sketch
