"""Weighted rows of a dictionary and its responses, as the estimator holds them.

Weights are frequencies: rows are put in one canonical order with equal rows merged, so that
weighting a row and repeating it are the same computation, bit by bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from lucidae._arrays import (
    Array,
    add_diagonal,
    cholesky,
    device,
    like,
    machine_epsilon,
    namespace,
    put,
    scalar,
    solve_lower,
    to_numpy,
    zeros_like_shape,
)


@dataclass(frozen=True)
class Rows:
    """Rows of a dictionary (d, κ) with responses (d, n) and weights (d,).

    The offsets are the weighted means that the intercept removes; zero without an intercept.
    """

    dictionary: Array
    responses: Array
    frequencies: Array | None
    intercept: bool

    @property
    def count(self) -> int:
        """Number of rows, whatever their weights."""
        return int(self.dictionary.shape[0])

    @property
    def weights(self) -> Array:
        """Weights of the rows, one each where none were given."""
        if self.frequencies is None:
            return namespace(self.dictionary).ones_like(self.dictionary[:, 0])
        return self.frequencies

    @property
    def total_weight(self) -> float:
        """Number of rows that the data stand for."""
        return scalar(namespace(self.weights).sum(self.weights))

    @property
    def dimension(self) -> float:
        """Number of independent rows once the intercept is taken out."""
        return self.total_weight - float(self.intercept)

    @cached_property
    def offsets(self) -> tuple[Array, Array]:
        """Weighted means of the dictionary's and the responses' rows, or zeros."""
        return self._offset(self.dictionary), self._offset(self.responses)

    def _offset(self, values: Array) -> Array:
        if not self.intercept:
            return values[0, :] * 0.0
        shares = self.weights / self.total_weight
        center = shares @ values
        return center + shares @ (values - center)

    def centred(self) -> tuple[Array, Array]:
        """Return both less their offsets; constant columns become exactly zero."""
        xp = namespace(self.dictionary)
        results = []
        for values, offset in zip((self.dictionary, self.responses), self.offsets, strict=True):
            moved = values - offset
            rounding = 8.0 * machine_epsilon(moved) * xp.max(xp.abs(values), axis=0)
            constant = xp.max(xp.abs(moved), axis=0) <= rounding
            results.append(xp.where(constant[None, :] & self.intercept, 0.0 * moved, moved))
        return results[0], results[1]

    @cached_property
    def whitened(self) -> tuple[Array, Array]:
        """Centred rows times the square root of their weights."""
        roots = namespace(self.weights).sqrt(self.weights)[:, None]
        dictionary, responses = self.centred()
        return dictionary * roots, responses * roots

    def mean_square(self) -> float:
        """Weighted mean square of the centred responses."""
        _, responses = self.whitened
        xp = namespace(responses)
        count = self.total_weight * float(responses.shape[1])
        return scalar(xp.sum(responses**2)) / count

    def take(self, index: Any) -> Rows:
        """Return some of the rows."""
        xp = namespace(self.weights)
        chosen = xp.asarray(index, device=device(self.weights))
        parts = (self.dictionary, self.responses, self.weights)
        dictionary, responses, weights = (xp.take(part, chosen, axis=0) for part in parts)
        return Rows(dictionary, responses, weights, self.intercept)

    def coefficients(self, relevance: Array, noise: float) -> Array:
        """Posterior mean U = WΦᵀΣ⁻¹X, of shape (κ, n), from the active columns alone."""
        xp = namespace(relevance)
        dictionary, responses = self.whitened
        index = np.flatnonzero(to_numpy(relevance))
        chosen = xp.asarray(index, device=device(relevance))
        active = xp.take(dictionary, chosen, axis=1)
        estimate = ridge(active, responses, xp.take(relevance, chosen, axis=0), noise)
        nothing = zeros_like_shape((dictionary.shape[1], responses.shape[1]), responses)
        return put(nothing, index, estimate)

    def squared_error(self, coefficients: Array, reference: Rows) -> float:
        """Weighted squared error of predicting these rows with the offsets of `reference`."""
        center, level = reference.offsets
        predicted = (self.dictionary - center) @ coefficients + level
        errors = self.weights[:, None] * (self.responses - predicted) ** 2
        return scalar(namespace(errors).sum(errors))


def ridge(dictionary: Array, responses: Array, relevance: Array, noise: float) -> Array:
    """Solve the ridge problem with prior variances `relevance` in its smaller dimension."""
    xp = namespace(dictionary)
    roots = xp.sqrt(relevance)
    scaled = dictionary * roots[None, :]
    if dictionary.shape[1] <= dictionary.shape[0]:
        factor, _ = cholesky(add_diagonal(scaled.mT @ scaled, noise))
        half = solve_lower(factor, scaled.mT @ responses)
        return roots[:, None] * solve_lower(factor, half, transpose=True)
    factor, _ = cholesky(add_diagonal(scaled @ scaled.mT, noise))
    half = solve_lower(factor, responses)
    return roots[:, None] * (scaled.mT @ solve_lower(factor, half, transpose=True))


def canonical(dictionary: Array, responses: Array, weights: Array | None, intercept: bool) -> Rows:
    """Merge equal rows, drop weightless ones and sort, whatever order they came in."""
    xp = namespace(dictionary)
    joint = to_numpy(xp.concat([dictionary, responses], axis=1)) + 0.0  # no negative zeros
    frequencies = np.ones(joint.shape[0]) if weights is None else to_numpy(weights)
    totals: dict[bytes, float] = {}
    places: dict[bytes, int] = {}
    for place in np.flatnonzero(frequencies > 0):
        key = joint[place].tobytes()
        places.setdefault(key, int(place))
        totals[key] = totals.get(key, 0.0) + float(frequencies[place])
    order = sorted(places)
    merged = like(np.array([totals[key] for key in order]), dictionary)
    index = xp.asarray(np.array([places[key] for key in order]), device=device(dictionary))
    columns, targets = (xp.take(part, index, axis=0) for part in (dictionary, responses))
    return Rows(columns, targets, merged, intercept)
