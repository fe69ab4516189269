"""Values with error bounds, and a check of a second moment against the rows it was made from."""

from __future__ import annotations

import math
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from lucidae.arrays import as_double, diagonal, like, to_numpy
from lucidae.arrays.threads import one_thread
from lucidae.base import PROBED_ENTRIES
from lucidae.moments import SecondMoment

__all__ = ["Estimate", "Probe", "probe_after"]

Vector = np.ndarray[Any, Any]

EPS = float(np.finfo(float).eps)

FEWEST_ROUNDINGS = 8
"""Number of rounding errors that a second moment has for any number of features: those of the mean,
of its square, of the sums and of the divisions."""

DIRECTIONS = 3
"""Number of random directions on which rows are projected."""


class Estimate(NamedTuple):
    """A measured value, and a bound on its absolute error."""

    value: float
    error: float = 0.0

    @classmethod
    def between(cls, low: float, high: float) -> Estimate:
        """Return the midpoint of the interval [low, high], with half its length as the error."""
        return cls((low + high) / 2, (high - low) / 2)


class Probe(NamedTuple):
    """Mean and scatter of rows projected on random directions, computed from the rows themselves.

    `difference` compares them with a `SecondMoment` that was updated batch by batch, and so shows
    whether that moment is correct. One pass over n rows of m features costs O(nm) and is made
    during `fit`, unless the rows have more than `PROBED_ENTRIES` entries.
    """

    directions: Vector  # (3, m): random directions
    weight: float  # sum of the weights of the rows
    mean: Vector  # (3,): mean of the rows' projections on the directions
    scatter: Vector  # (3, 3): weighted sum of the outer products of the centred projections
    # largest sum of absolute terms in a projection, which determines its rounding error
    size: float
    rows: int  # number of rows

    @classmethod
    def of(cls, X: Any, weights: Any, moment: SecondMoment) -> Probe | None:
        """Return the probe of the first batch of rows X; None if it has too many entries.

        A probe is the mean and the scatter of the rows along random directions. The largest number
        of entries is `PROBED_ENTRIES`.
        """
        if X.shape[0] * X.shape[1] > PROBED_ENTRIES:
            return None
        directions = _random_directions(X.shape[1]) / _scale(moment)
        return cls(directions, *_summary(X, weights, directions), X.shape[0])

    def after(self, X: Any, weights: Any) -> Probe | None:
        """Return the probe of the previous rows and the rows of `X` together.

        A probe is the mean and the scatter of rows along random directions.
        """
        rows = self.rows + X.shape[0]
        if rows * X.shape[1] > PROBED_ENTRIES:
            return None
        weight, mean, scatter, size = _summary(X, weights, self.directions)
        if weight <= 0.0:
            return self
        total, shift = self.weight + weight, mean - self.mean
        # Sums of squares about two means merge by one term in their difference (Chan et al. 1983).
        between = np.outer(shift, shift) * (self.weight * (weight / total))
        return Probe(
            self.directions,
            total,
            self.mean + shift * (weight / total),
            self.scatter + scatter + between,
            max(self.size, size),
            rows,
        )

    def difference(self, moment: SecondMoment) -> Estimate:
        """Return the largest difference between a second moment and the rows, with its error.

        Mean and covariance are compared along random directions, in units of the largest standard
        deviation of the projections; the relative difference of the total weights counts as well.
        The error is that of rounding.
        """
        along = self.directions @ to_numpy(moment.covariance) @ self.directions.T
        covariance = self.scatter / self.weight
        spread = math.sqrt(max(float(np.max(np.diag(covariance))), 0.0)) or 1.0
        squares = float(np.max(np.abs(along - covariance))) / spread**2
        means = float(np.max(np.abs(self.directions @ to_numpy(moment.mean) - self.mean))) / spread
        weights = abs(moment.weight / self.weight - 1.0)
        # A projection has m rounding errors of the size of its terms, its square twice as many.
        terms = (self.directions.shape[1] + 2) * EPS * self.size / spread
        sums = math.sqrt(self.weight) * EPS
        error = 4 * (terms * (2 + terms) + sums) + 8 * self.directions.shape[1] * EPS
        return Estimate(max(squares, means, weights), error)


def probe_after(
    probe: Probe | None, before: SecondMoment | None, moment: SecondMoment, X: Any, weights: Any
) -> Probe | None:
    """Return the probe (mean and scatter along random directions) of all rows seen so far."""
    if before is None:
        return Probe.of(X, weights, moment)
    return None if probe is None else probe.after(X, weights)


def _scale(moment: SecondMoment) -> Vector:
    """Return the standard deviation of each feature.

    A constant feature gets the absolute value of its mean instead, or 1 if that is zero too.
    """
    squares = to_numpy(diagonal(moment.squares))
    variances = squares / moment.weight - to_numpy(moment.offset) ** 2
    deviations = np.sqrt(np.maximum(variances, 0.0))
    if not np.all(deviations > 0.0):
        sizes = np.abs(to_numpy(moment.mean))
        sizes = np.where(sizes > 0.0, sizes, 1.0)
        deviations = np.where(deviations > 0.0, deviations, sizes)
    return np.where(np.isfinite(deviations), deviations, 1.0)


def _summary(X: Any, weights: Any, directions: Vector) -> tuple[float, Vector, Vector, float]:
    """Return total weight, mean and scatter of the rows of X projected on some directions.

    The fourth value is the largest sum of absolute terms in a projection. These are the fields
    `weight`, `mean`, `scatter` and `size` of `Probe`.
    """
    codes, size = _projected(X, directions)
    if weights is None:
        weight, shares = float(len(codes)), np.full(len(codes), 1.0 / len(codes))
    else:
        frequencies = to_numpy(weights).astype(float)
        weight = float(np.sum(frequencies))
        if weight <= 0.0:
            return 0.0, codes[0], np.zeros((DIRECTIONS, DIRECTIONS)), 0.0
        codes, shares = codes[frequencies > 0.0], frequencies[frequencies > 0.0] / weight
    first = shares @ codes
    codes = codes - first
    rest = shares @ codes  # what rounding left in the mean
    codes -= rest
    return weight, first + rest, weight * ((codes.T * shares) @ codes), size


def _projected(X: Any, directions: Vector) -> tuple[Vector, float]:
    """Return the projections of the rows of X on directions, and a number for their rounding error.

    This number is the largest sum of the absolute terms of a projection. For dense rows it is
    computed from the largest entries of the first 64 rows.
    """
    if scipy.sparse.issparse(X):
        codes = np.asarray(X.astype(np.float64) @ directions.T)
        return codes, float(np.max(abs(X.astype(np.float64)) @ np.abs(directions.T), initial=0.0))
    rows = as_double(X)
    with one_thread():  # those of BLAS would still be waiting when the next rows are multiplied
        codes = to_numpy(rows @ like(directions, rows).mT)
    # The largest of a few rows stands for all of them.
    peak = np.max(np.abs(to_numpy(rows[: min(64, rows.shape[0]), :])), axis=0)
    return codes, float(np.max(np.abs(directions) @ peak))


@cache
def _random_directions(m: int) -> Vector:
    return np.random.default_rng(0).standard_normal((DIRECTIONS, m))
