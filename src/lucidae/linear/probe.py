"""Figures with an error, and the comparison of a second moment with the rows it came from."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from lucidae.arrays import as_double, like, namespace, to_numpy
from lucidae.io.models import saved_as
from lucidae.moments import SecondMoment

__all__ = ["Estimate", "Probe"]

Vector = np.ndarray[Any, Any]

EPS = float(np.finfo(float).eps)

DIRECTIONS = 3
"""Number of random directions."""

BLOCK_ROWS = 32_768
"""Rows converted to double precision at a time."""


class Estimate(NamedTuple):
    """A figure and a bound on its error."""

    value: float
    error: float = 0.0

    @classmethod
    def between(cls, low: float, high: float) -> Estimate:
        """Return the middle of an interval, with half its length as the error."""
        return cls((low + high) / 2, (high - low) / 2)


@saved_as("lucidae.linear.probe/1")
class Probe(NamedTuple):
    """Mean and scatter of rows along random directions, computed without their moment.

    A pass over n rows costs O(nm). It is made while the rows are there, and only a few numbers are
    stored; `difference` then shows whether a moment, after any number of updates, is that of the
    rows.

    Parameters
    ----------
    directions : ndarray of shape (3, m)
        Random numbers, divided by the standard deviation of each feature in the first batch, so
        that all features count alike.
    weight : float
        Total weight of the rows.
    mean : ndarray of shape (3,)
        Mean of the projections.
    scatter : ndarray of shape (3, 3)
        Sum of the products of the centred projections.
    size : float
        Largest absolute entry of a projection's terms, for its rounding error.
    """

    directions: Vector
    weight: float
    mean: Vector
    scatter: Vector
    size: float

    @classmethod
    def of(cls, X: Any, weights: Any, moment: SecondMoment) -> Probe:
        """Return the probe of the first rows, whose moment only scales the directions."""
        mean, offset = np.abs(to_numpy(moment.mean)), to_numpy(moment.offset)
        squares = to_numpy(namespace(moment.squares).linalg.diagonal(moment.squares))
        variances = np.maximum(squares / moment.weight - offset * offset, 0.0)
        scale = np.where(variances > 0.0, np.sqrt(variances), np.where(mean > 0.0, mean, 1.0))
        scale = np.where(np.isfinite(scale), scale, 1.0)
        directions = np.random.default_rng(0).standard_normal((DIRECTIONS, len(mean))) / scale
        empty = cls(directions, 0.0, np.zeros(DIRECTIONS), np.zeros((DIRECTIONS, DIRECTIONS)), 0.0)
        return empty.after(X, weights)

    def after(self, X: Any, weights: Any) -> Probe:
        """Return the probe of these rows and of one more batch."""
        shares = np.ones(X.shape[0]) if weights is None else to_numpy(weights).astype(float)
        weight = float(np.sum(shares))
        if weight <= 0.0:
            return self
        codes, size = _projected(X, self.directions)
        codes, shares = codes[shares > 0.0], shares[shares > 0.0] / weight
        first = shares @ codes
        mean = first + shares @ (codes - first)
        codes = codes - mean
        scatter = weight * (codes * shares[:, None]).T @ codes
        total, shift = self.weight + weight, mean - self.mean
        # Sums of squares about two means merge by one term in their difference (Chan et al. 1983).
        between = np.outer(shift, shift) * (self.weight * (weight / total))
        return Probe(
            self.directions,
            total,
            self.mean + shift * (weight / total),
            self.scatter + scatter + between,
            max(self.size, size),
        )

    def difference(self, moment: SecondMoment) -> Estimate:
        """Return how far a moment is from the rows, in standard deviations of the projections."""
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


def _projected(X: Any, directions: Vector) -> tuple[Vector, float]:
    """Return the projections of rows, and the largest sum of absolute terms."""
    if scipy.sparse.issparse(X):
        codes = np.asarray(X.astype(np.float64) @ directions.T)
        return codes, float(np.max(abs(X.astype(np.float64)) @ np.abs(directions.T), initial=0.0))
    blocks, peak = [], np.zeros(X.shape[1])
    for start in range(0, X.shape[0], BLOCK_ROWS):
        rows = as_double(X[start : min(start + BLOCK_ROWS, X.shape[0]), :])
        blocks.append(to_numpy(rows @ like(directions, rows).mT))
        # The largest of a few rows stands for all of them.
        peak = np.maximum(peak, np.max(np.abs(to_numpy(rows[: min(64, rows.shape[0]), :])), axis=0))
    return np.concatenate(blocks), float(np.max(np.abs(directions) @ peak))
