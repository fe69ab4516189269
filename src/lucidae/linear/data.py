"""Products with the second moment Σ, and the sources from which a fit takes Σ."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import scipy.sparse

from lucidae.arrays import (
    Array,
    as_double,
    device,
    eigh_descending,
    largest,
    namespace,
    normal,
    scalar,
    squared_norms,
    trace,
    zeros_like_shape,
)
from lucidae.arrays.eigen import fix_signs
from lucidae.arrays.krylov import krylov_eigenpairs
from lucidae.linear.routes import (
    EXACT_FEATURES,
    FEWEST_PASSES,
    costs,
    gram_eigenpairs,
    gram_matrix,
)
from lucidae.linear.spectrum import Spectrum, spectrum_of_rows
from lucidae.linear.weights import AnyWeights
from lucidae.moments import BLOCK_ROWS, SMALLEST_SCATTER, SecondMoment, covariance_spectrum
from lucidae.validation import check_rows

PLAIN_ROWS = 2**18
"""Number of rows per product if the rows need no copy; their codes take memory."""

SMALL_MEAN = 1.0
"""Largest squared length of the mean, in units of the total variance, that is subtracted from the
products instead of from the rows: at most one bit is lost."""


class Covariance(Protocol):
    """Interface of products with the second moment Σ of centred rows, a matrix of shape (m, m)."""

    @property
    def trace(self) -> Any:
        """Total variance, the trace of the second moment Σ."""

    @property
    def n_features(self) -> int:
        """Number of features m."""

    def apply(self, rows: Array) -> Array:
        """Return the product of `rows`, of shape (…, k, m), with the second moment Σ."""


@dataclass(frozen=True, slots=True)
class DenseCovariance:
    """The second moment Σ as a matrix, with which a product of k rows costs O(m²k)."""

    matrix: Array

    @property
    def trace(self) -> Array:
        """Total variance, the trace of the second moment Σ."""
        return trace(self.matrix)

    @property
    def n_features(self) -> int:
        """Number of features m."""
        return int(self.matrix.shape[0])

    def apply(self, rows: Array) -> Array:
        """Return the product of `rows` with the second moment Σ."""
        return rows @ self.matrix

    def in_units(self, unit: float) -> DenseCovariance:
        """Return the second moment Σ of the same data divided by the number `unit`."""
        return self if unit == 1.0 else DenseCovariance(self.matrix / unit**2)


@dataclass(frozen=True, slots=True)
class EigenbasisCovariance:
    """The second moment Σ in the basis of its eigenvectors, where it is diagonal.

    A product with k rows costs O(mk).
    """

    values: Array

    @property
    def trace(self) -> Array:
        """Total variance, the trace of the second moment Σ."""
        return namespace(self.values).sum(self.values)

    @property
    def n_features(self) -> int:
        """Number of features m."""
        return int(self.values.shape[-1])

    def apply(self, rows: Array) -> Array:
        """Return the product of `rows` with the second moment Σ."""
        return rows * self.values


@dataclass(frozen=True, slots=True)
class RowsCovariance:
    """The second moment Σ of n weighted rows, without the m × m matrix.

    A product with k rows costs O(nmk) operations and O(nk) memory.

    The rows are not centred; the contribution of the mean is subtracted from the products, so that
    sparse rows stay sparse.
    """

    rows: Any
    mean: Array
    weights: Array
    total: float

    @property
    def trace(self) -> float:
        """Total variance, the trace of the second moment Σ."""
        xp = namespace(self.mean)
        squares = self.rows.multiply(self.rows) if self._sparse else self.rows * self.rows
        # With the weighted average a of the rows, Σw‖x − μ‖²/Σw = Σw‖x‖²/Σw − (2a − μ)ᵀμ; the mean
        # μ may be that of more rows than these.
        raw = scalar(xp.sum(self.weights @ squares)) / self.total
        average = (self.weights @ self.rows) / self.total
        found = raw - scalar(xp.sum((2 * average - self.mean) * self.mean))
        return max(found, 0.0)  # in this order a NaN is returned as NaN

    @property
    def _sparse(self) -> bool:
        return bool(scipy.sparse.issparse(self.rows))

    @property
    def n_features(self) -> int:
        """Number of features m."""
        return int(self.rows.shape[1])

    def codes(self, encoder: Array) -> Array:
        """Return the centred codes of the rows, shape (…, n, k)."""
        return self.rows @ encoder.mT - (encoder @ self.mean)[..., None, :]

    def centred_products(self, codes: Array) -> Array:
        """Return the product of `codes`, transposed from (…, n, k), with the centred rows."""
        # codesᵀ(X − 1μᵀ) = codesᵀX − (codesᵀ1)μᵀ
        spread = namespace(self.mean).sum(codes, axis=-2)
        raw = (self.rows.T @ codes).mT if self._sparse else codes.mT @ self.rows
        return raw - spread[..., :, None] * self.mean

    def apply(self, rows: Array) -> Array:
        """Return the product of `rows` with the second moment Σ."""
        return self.centred_products(self.codes(rows) * (self.weights / self.total)[:, None])


def rows_covariance(X: Any, mean: Array, weights: Array) -> RowsCovariance:
    """Return the second moment Σ of rows about a given mean.

    Dense rows are centred in a copy; sparse rows are not changed.
    """
    total = scalar(namespace(weights).sum(weights))
    if scipy.sparse.issparse(X):
        return RowsCovariance(X, mean, weights, total)
    return RowsCovariance(as_double(X) - mean, 0.0 * mean, weights, total)


@dataclass(frozen=True, slots=True)
class StreamCovariance:
    """The second moment Σ of all rows, whose products are computed in blocks of rows.

    The m × m matrix is not formed.
    """

    rows: Any
    mean: Array
    weights: Array
    small_mean: bool = False  # against the deviations: it may be subtracted from the products

    @property
    def n_features(self) -> int:
        """Number of features m."""
        return int(self.rows.shape[1])

    @property
    def trace(self) -> float:
        """Total variance, the trace of the second moment Σ."""
        return sum(block.trace * share for block, share in self._blocks())

    def apply(self, rows: Array) -> Array:
        """Return the product of `rows` with the second moment Σ; the data are read once."""
        total: Any = None
        for block, share in self._blocks():
            part = block.apply(rows)
            part *= share
            if total is None:
                total = part
            else:
                total += part
        return total

    def in_units(self, unit: float) -> StreamCovariance:
        """Return the second moment Σ of the same data divided by the number `unit`."""
        if unit == 1.0:
            return self
        return replace(self, rows=self.rows / unit, mean=self.mean / unit)

    @property
    def _as_they_are(self) -> bool:
        """Whether the rows are multiplied without a centred copy in double precision."""
        double = namespace(self.mean).float64
        return scipy.sparse.issparse(self.rows) or (self.small_mean and self.rows.dtype == double)

    def batch(self, index: Any) -> RowsCovariance:
        """Return the second moment of the rows with the positions `index`, a NumPy array."""
        xp = namespace(self.weights)
        chosen = xp.asarray(index, device=device(self.weights))
        sparse = scipy.sparse.issparse(self.rows)
        rows = self.rows[index] if sparse else xp.take(self.rows, chosen, axis=0)
        return rows_covariance(rows, self.mean, xp.take(self.weights, chosen, axis=0))

    def _blocks(self) -> Iterator[tuple[RowsCovariance, float]]:
        total = scalar(namespace(self.weights).sum(self.weights))
        n_rows, plain = self.rows.shape[0], self._as_they_are
        size = PLAIN_ROWS if plain else BLOCK_ROWS
        for start in range(0, n_rows, size):
            part = slice(start, min(start + size, n_rows))
            rows, weights = self.rows[part, :], self.weights[part]
            weight = scalar(namespace(weights).sum(weights))
            if weight <= 0.0:
                continue
            if plain:
                yield RowsCovariance(rows, self.mean, weights, weight), weight / total
            else:
                yield rows_covariance(rows, self.mean, weights), weight / total


class Products(NamedTuple):
    """The products that full-batch objectives and rules need from the data.

    With the encoder W₁ and the decoder W₂, `encoded` is W₁Σ and `decoded` is W₂ᵀΣ, both of shape
    (…, k, m). The second moment of the codes, `code_moment`, is W₁ΣW₁ᵀ, and `gram` is W₂ᵀW₂; both
    have shape (…, k, k).
    """

    encoded: Array
    decoded: Array
    code_moment: Array
    gram: Array


def products(weights: AnyWeights, covariance: Covariance) -> Products:
    """Return the products of both layers with the second moment Σ, computed as one product."""
    encoder, atoms = weights.encoder, weights.atoms
    if atoms is encoder:  # tied weights
        encoded = decoded = covariance.apply(encoder)
    else:
        k = encoder.shape[-2]
        stacked = covariance.apply(namespace(encoder).concat([encoder, atoms], axis=-2))
        encoded, decoded = stacked[..., :k, :], stacked[..., k:, :]
    return Products(encoded, decoded, encoded @ encoder.mT, atoms @ atoms.mT)


def ritz_spectrum(covariance: Covariance, k: int, like: Array, *, n_iter: int = 8) -> Spectrum:
    """Estimate the leading `k` eigenpairs of the second moment by `n_iter` block power iterations.

    The matrix is not factorised. The estimates (Ritz values) never exceed the true eigenvalues.
    """
    xp = namespace(like)
    width = min(k + 8, covariance.n_features)  # more columns than k make the first k accurate
    rows = normal(np.random.default_rng(0), (width, covariance.n_features), like)
    for _ in range(n_iter):
        basis, _ = xp.linalg.qr(rows.mT)
        rows = covariance.apply(basis.mT)
    # Rayleigh–Ritz: the eigenpairs of Σ restricted to the span of the basis.
    values, rotation = eigh_descending((rows @ basis + (rows @ basis).mT) / 2)
    return Spectrum(values[:k], (basis @ rotation)[:, :k], float(covariance.trace))


STORED_FEATURES = 1024
"""Largest number of features whose second moment is stored after `fit`, for `partial_fit`.

It takes eight mebibytes."""


@dataclass(frozen=True)
class MomentSource:
    """The data of a fit as their second moment."""

    moment: SecondMoment

    affordable = True  # whether the spectrum can be computed

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
        return Spectrum(*covariance_spectrum(self.covariance.matrix, k), self.moment.trace)


@dataclass(frozen=True, slots=True)
class RowsSource:
    """The data of a fit as rows, for few rows or for too many features for an m × m matrix."""

    rows: Any
    weights: Array
    mean: Array
    weight: float
    trace: float
    moment: SecondMoment | None = None

    @classmethod
    def of(cls, X: Any, weights: Array | None, moment: SecondMoment | None = None) -> RowsSource:
        """Return the source of rows X, with their second moment where it was computed too."""
        reference = np.empty(0) if scipy.sparse.issparse(X) else X
        xp = namespace(reference)
        if weights is None:
            weights = xp.ones(X.shape[0], dtype=xp.float64, device=device(reference))
        total = scalar(xp.sum(weights))
        with np.errstate(over="ignore", invalid="ignore"):
            mean, trace = _mean_and_trace(X, weights, total)
            source = cls(X, weights, mean, total, trace, moment)
            _check_squares(source)
        return source

    @property
    def covariance(self) -> StreamCovariance:
        """Products with the second moment."""
        small = scalar(namespace(self.mean).sum(self.mean**2)) <= SMALL_MEAN * self.trace
        return StreamCovariance(self.rows, self.mean, self.weights, small)

    @property
    def affordable(self) -> bool:
        """Whether all eigenpairs can be computed, through a matrix of at most 8192 columns."""
        return bool(min(self.rows.shape) <= EXACT_FEATURES)

    def spectrum(self, k: int | None) -> Spectrum | None:
        """Return the leading `k` eigenpairs, by default all, by the cheapest route.

        None where all are asked for, but there are too many rows and features.
        """
        n, m = self.rows.shape
        if k is not None and k < min(n, m):
            return self._leading(k)
        if n <= min(m, EXACT_FEATURES):
            return _padded(spectrum_of_rows(self.rows, self.mean, self.weights, self.weight), k)
        return self._whole.spectrum(k) if m <= EXACT_FEATURES else None

    @property
    def _whole(self) -> MomentSource:
        return MomentSource(self.moment or SecondMoment.of(self.rows, self.weights))

    def _leading(self, k: int) -> Spectrum | None:
        n, m = self.rows.shape
        entries = self.rows.nnz if scipy.sparse.issparse(self.rows) else None
        cost = costs(n, m, k, entries=entries)
        if cost.passes >= FEWEST_PASSES:
            covariance = self.covariance
            pairs = krylov_eigenpairs(covariance.apply, k, self.mean, passes=cost.passes)
            if pairs is not None:
                return Spectrum(pairs[0], fix_signs(pairs[1]), self.trace)
        if cost.moment < cost.gram:
            return self._whole.spectrum(k)
        rows = (self.rows, self.mean, self.weights, self.weight)
        found = gram_eigenpairs(gram_matrix(*rows), *rows, k)
        return found or _padded(spectrum_of_rows(*rows), k)


def _check_squares(source: RowsSource) -> None:
    """Raise an error if rows are not finite, or if their squares overflow or underflow."""
    total = source.trace * source.weight
    peak = largest(source.rows.data if scipy.sparse.issparse(source.rows) else source.rows)
    if not math.isfinite(total):
        check_rows(source.rows)
        raise ValueError(
            f"the largest entry of X is {peak:.3g}, so that the squares of X overflow double "
            "precision. Divide X by a constant first."
        )
    # The scatter of equal rows is 0; the squares of the entries themselves must not underflow.
    if total < SMALLEST_SCATTER and 0.0 < peak < math.sqrt(SMALLEST_SCATTER):
        raise ValueError(
            f"the largest entry of X is {peak:.3g}, so that the squares of X underflow double "
            "precision. Multiply X, or its weights, by a constant first."
        )


def _mean_and_trace(X: Any, weights: Array, total: float) -> tuple[Array, float]:
    """Return the mean of weighted rows and their total variance, reading dense rows twice."""
    if scipy.sparse.issparse(X):
        mean = np.asarray(weights @ X.astype(np.float64)).ravel() / total
        return mean, StreamCovariance(X, mean, weights).trace
    n = X.shape[0]
    blocks = [slice(i, min(i + BLOCK_ROWS, n)) for i in range(0, n, BLOCK_ROWS)]
    first = sum(weights[part] @ as_double(X[part, :]) for part in blocks) / total
    # The mean of the deviations from a first mean corrects its rounding error.
    squares, rest = 0.0, 0.0 * first
    for part in blocks:
        deviations = as_double(X[part, :]) - first
        rest = rest + weights[part] @ deviations
        squares += scalar(weights[part] @ squared_norms(deviations, axis=-1))
    rest = rest / total
    return first + rest, squares / total - scalar(namespace(rest).sum(rest * rest))


def _padded(spectrum: Spectrum, k: int | None) -> Spectrum:
    """Return `k` eigenpairs; where there are fewer, add eigenvectors of the eigenvalue 0."""
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


Source = MomentSource | RowsSource
"""The data of a fit: mean, total weight, products with the second moment, and its spectrum."""


@dataclass(frozen=True, slots=True)
class LinearSolver:
    """What a solver reads of the data, and which solver replaces it.

    Parameters
    ----------
    closed_form : bool
        Whether it computes the optimum from the leading eigenpairs of Σ.
    batches : bool
        Whether it draws batches of rows. The other solvers read the data through Σ.
    if_unknown : str, optional
        The solver that replaces it for objectives whose minimum is not known in closed form.
    """

    closed_form: bool
    batches: bool = False
    if_unknown: str | None = None


SOLVERS = {
    "auto": LinearSolver(closed_form=True, if_unknown="gradient"),
    "exact": LinearSolver(closed_form=True),
    "gradient": LinearSolver(closed_form=False),
    "stochastic": LinearSolver(closed_form=False, batches=True),
}
"""The solvers of `LinearAutoencoder` by name."""


def source_of(
    X: Any, weights: Array | None, solver: LinearSolver = SOLVERS["auto"], wanted: Any = None
) -> Source:
    """Return the source of the second moment that suits the shape of the rows and the solver.

    Parameters
    ----------
    X : array or sparse matrix of shape (n, m)
        Checked rows.
    weights : array of shape (n,) or None
        Frequencies of the rows.
    solver : LinearSolver
        What the solver reads.
    wanted : int, float or None
        The argument `n_components`; for other values than integers all eigenpairs are needed.
    """
    n, m = X.shape
    if solver.batches:
        return RowsSource.of(X, weights)
    if not solver.closed_form and m <= EXACT_FEATURES:
        return MomentSource(SecondMoment.of(X, weights))
    if n <= m // 2:
        moment = SecondMoment.of(X, weights) if m <= STORED_FEATURES else None
        return RowsSource.of(X, weights, moment)
    if m <= STORED_FEATURES or _moment_is_cheapest(X, wanted):
        return MomentSource(SecondMoment.of(X, weights))
    return RowsSource.of(X, weights)


def _moment_is_cheapest(X: Any, wanted: Any) -> bool:
    n, m = X.shape
    if m > EXACT_FEATURES:
        return False
    if not isinstance(wanted, int):
        return True
    entries = X.nnz if scipy.sparse.issparse(X) else None
    cost = costs(n, m, min(wanted + 1, m), entries=entries)
    return cost.passes < FEWEST_PASSES and cost.moment < cost.gram
