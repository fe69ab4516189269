"""Where a fit takes its second moment from: a kept moment, few rows, or a stream of rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import scipy.sparse

from lucidae._arrays import (
    Array,
    as_double,
    device,
    largest,
    namespace,
    normal,
    scalar,
    zeros_like_shape,
)
from lucidae._validation import check_rows
from lucidae.linear.covariance import Covariance, DenseCovariance, StreamCovariance
from lucidae.linear.spectrum import Spectrum, ritz_spectrum, spectrum_of_moment, spectrum_of_rows
from lucidae.moments import SMALLEST_SCATTER, SecondMoment

EXACT_FEATURES = 8192
"""Largest m (or n) for which an m × m (or n × n) matrix is formed: half a gibibyte."""

KEPT_FEATURES = 1024
"""Largest m whose second moment a fit keeps, so that `partial_fit` can go on: eight mebibytes."""


class Source(Protocol):
    """Mean, total weight and second moment of the data."""

    @property
    def mean(self) -> Array:
        """Mean of the rows."""

    @property
    def weight(self) -> float:
        """Total weight of the rows."""

    @property
    def covariance(self) -> Covariance:
        """Products with the second moment."""

    @property
    def moment(self) -> SecondMoment | None:
        """The second moment itself, where it was formed."""

    def spectrum(self, k: int | None) -> Spectrum | None:
        """Return the leading `k` eigenpairs (all by default), None where out of reach."""


@dataclass(frozen=True)
class MomentSource:
    """A second moment that was formed."""

    moment: SecondMoment

    @property
    def mean(self) -> Array:
        """Mean of the rows."""
        return self.moment.mean

    @property
    def weight(self) -> float:
        """Total weight of the rows."""
        return self.moment.weight

    @cached_property
    def covariance(self) -> DenseCovariance:
        """Products with the second moment."""
        return DenseCovariance(self.moment.covariance)

    def spectrum(self, k: int | None) -> Spectrum:
        """Return the leading `k` eigenpairs, all by default."""
        return spectrum_of_moment(self.moment, k)


@dataclass(frozen=True, slots=True)
class RowsSource:
    """Rows whose second moment is too large to form, or wider than they are many."""

    rows: Any
    weights: Array
    mean: Array
    weight: float
    moment: SecondMoment | None = None

    @classmethod
    def of(cls, X: Any, weights: Array | None, moment: SecondMoment | None = None) -> RowsSource:
        """Take rows and, where it was formed all the same, their moment."""
        reference = np.empty(0) if scipy.sparse.issparse(X) else X
        xp = namespace(reference)
        if weights is None:
            weights = xp.ones(X.shape[0], dtype=xp.float64, device=device(reference))
        total = scalar(xp.sum(weights))
        with np.errstate(over="ignore", invalid="ignore"):
            source = cls(X, weights, _mean(X, weights, total), total, moment)
            _check_squares(source)
        return source

    @property
    def covariance(self) -> StreamCovariance:
        """Products with the second moment."""
        return StreamCovariance(self.rows, self.mean, self.weights)

    @property
    def affordable(self) -> bool:
        """Whether the spectrum is in reach through an n × n matrix."""
        return bool(self.rows.shape[0] <= EXACT_FEATURES)

    def spectrum(self, k: int | None) -> Spectrum | None:
        """Return the leading eigenpairs of few rows; None when there are too many."""
        if not self.affordable:
            return None
        found = spectrum_of_rows(self.rows, self.mean, self.weights, self.weight)
        return _padded(found, k)

    def ritz(self, k: int) -> Spectrum:
        """Estimate the leading eigenpairs by power iterations over the rows."""
        return ritz_spectrum(self.covariance, k, self.mean)


def _check_squares(source: RowsSource) -> None:
    """Refuse rows that are not finite or whose squares are out of range, as a moment does."""
    total = source.covariance.trace * source.weight
    peak = largest(source.rows.data if scipy.sparse.issparse(source.rows) else source.rows)
    if not math.isfinite(total):
        check_rows(source.rows)
        raise ValueError(
            "the squares of X overflow double precision: its entries are as large as "
            f"{peak:.3g}. Divide X by a constant first."
        )
    # Squares of equal rows may vanish; those of the entries themselves may not.
    if total < SMALLEST_SCATTER and 0.0 < peak < math.sqrt(SMALLEST_SCATTER):
        raise ValueError(
            "the squares of X underflow double precision: its entries are as small as "
            f"{peak:.3g}. Multiply X, or its weights, by a constant first."
        )


def _mean(X: Any, weights: Array, total: float) -> Array:
    if scipy.sparse.issparse(X):
        return np.asarray(weights @ X.astype(np.float64)).ravel() / total
    X = as_double(X)
    first = (weights @ X) / total
    return first + (weights @ (X - first)) / total


def _padded(spectrum: Spectrum, k: int | None) -> Spectrum:
    """Return `k` eigenpairs, completing the basis with null directions where rows ran out."""
    found = int(spectrum.values.shape[0])
    if k is None or k <= found:
        return spectrum if k is None else spectrum.leading(k)
    xp = namespace(spectrum.values)
    extra = k - found
    rows = normal(np.random.default_rng(0), (spectrum.n_features, extra), spectrum.values)
    completed, _ = xp.linalg.qr(xp.concat([spectrum.vectors, rows], axis=1))
    zeros = zeros_like_shape((extra,), spectrum.values)
    vectors = xp.concat([spectrum.vectors, completed[:, found:]], axis=1)
    return Spectrum(xp.concat([spectrum.values, zeros]), vectors, spectrum.trace)


def source_of(X: Any, weights: Array | None, solver: str) -> Source:
    """Choose where the second moment comes from, by the shape of the rows and the solver."""
    n, m = X.shape
    if solver == "stochastic":
        return RowsSource.of(X, weights)
    few = n <= m // 2 and n <= EXACT_FEATURES
    if few and solver != "gradient":
        kept = SecondMoment.of(X, weights) if m <= KEPT_FEATURES else None
        return RowsSource.of(X, weights, kept)
    if solver == "auto" and m > EXACT_FEATURES:
        return RowsSource.of(X, weights)
    return MomentSource(SecondMoment.of(X, weights))
