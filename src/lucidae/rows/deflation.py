"""Eigenpairs of small eigenvalues beside much larger ones, from rows without the larger components.

Rounding errors change the second moment Σ of rows, or their Gram matrix, by about ε λ₁, with the
machine epsilon ε and the largest eigenvalue λ₁. An eigenvector whose eigenvalue differs from the
others by `gap` is therefore known up to an angle of about ε λ₁/gap, whatever solver is used: with
λ₁ = 1e12 times the other eigenvalues, up to 1e-4. A singular value decomposition of the centred
rows A would know it up to ε √λ₁/(difference of the singular values), which is 1e-10.

The same accuracy is reached without this decomposition, by the algorithms that are fastest for the
shape of the rows. The accurate eigenvectors V of the largest eigenvalues are kept, and the
eigenpairs of the rows B = A − (AV)Vᵀ are computed, whose largest eigenvalue is smaller. Let the
computed V differ from the true one by δ. Then BᵀB = (I − VVᵀ)Σ(I − VVᵀ) differs from the true one
by only λ₁δ², because the true one has no part along V. The rounding errors of B itself are ε times
the entries of A, as in a singular value decomposition. This is repeated until all eigenpairs that
are wanted are accurate, once for about four decades of eigenvalues.

Of data that are read in blocks and can be read again, the second moment of B is computed in one
more pass for each repetition. With very many features the second moment of B is not formed either:
each product with it is one pass, as with that of A.

Whether the eigenpairs are accurate is estimated from the eigenvalues alone, so that other data cost
no time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Self

import numpy as np
import scipy.sparse

from lucidae.arrays import (
    Array,
    as_double,
    like,
    machine_epsilon,
    namespace,
    scalar,
    squared_norms,
    to_numpy,
    zeros_like_shape,
)
from lucidae.arrays.eigen import fix_signs
from lucidae.arrays.krylov import krylov_eigenpairs
from lucidae.data.passes import Passes, ReadInterrupted, read_moment, rows_differed
from lucidae.moments import SecondMoment
from lucidae.rows.covariances import Covariance, DeflatedCovariance, RowsCovariance
from lucidae.rows.sources import MomentSource, RowsSource, Source, source_of
from lucidae.rows.spectrum import Spectrum
from lucidae.rows.sums import BlocksSource, DeflatedPass, DeflatedSums

__all__ = ["accurate_pairs", "are_accurate", "deflated", "refined_spectrum"]

ALLOWED = 1e-11
"""Largest estimated error ε λ₁/gap of an eigenvector, as an angle, that is kept by a deflation."""

ALLOWED_DOUBLE = 1e-10
"""Largest estimated error of the eigenvectors of float64 rows that are not deflated at all. The
true error is usually a third of the estimate or less."""

ALLOWED_SINGLE = 1e-7
"""The same for float32 rows: their components are rounded to single precision."""

ALLOWED_PRODUCTS = 1e-3
"""The same if products of the rows were computed in single precision. The bound on their error is a
Frobenius norm, of which a single eigenvector gets a small part."""

CLOSE = 1e-2
"""Eigenvalues whose relative difference is smaller than this count as different by this much. The
axes of so close eigenvalues depend on the last digits of the data; the subspace of all of them does
not, and is what must be accurate."""

BLOCK_ROWS = 8192
"""Number of rows of a block that are centred and deflated at a time."""

COPIED_ENTRIES = 2**26
"""Largest number of entries of rows that are copied and deflated: copy takes half a gibibyte."""

DENSE_ENTRIES = 2**24
"""The same for sparse rows, which a deflation makes dense."""

REREAD = 1e-4
"""The variance that a further deflation of blocks leaves follows from their second moment, without
another pass, if it is at least this share of the variance before."""

SAME_MEAN = 1e-9
"""Largest distance between the means of the same rows in two passes, relative to the size of the
rows. It is far above rounding errors."""

NOISE = 16.0
"""Deflated rows whose norm is at most this number times ε times the norm of all rows consist of
rounding errors."""


def accurate_pairs(
    values: np.ndarray[Any, Any], k: int, rounding: float, allowed: float = ALLOWED
) -> int:
    """Return how many of the first `k` eigenvectors of a second moment are accurate."""
    k = min(k, len(values))
    if k < 2 or not values[0] > 0.0:
        return k
    if rounding * values[0] <= allowed * CLOSE * values[k - 1]:
        return k  # as for most data, whatever the gaps are
    steps = values[:-1] - values[1:]
    before = np.append(math.inf, steps)[:k]
    after = np.append(steps, values[-1])[:k]  # the next eigenvalue may be zero
    gaps = np.maximum(np.minimum(before, after), CLOSE * values[:k])
    wrong = ~(rounding * values[0] <= allowed * gaps)
    return int(np.argmax(wrong)) if wrong.any() else k


def refined_spectrum(
    source: Source, spectrum: Spectrum, k: int
) -> tuple[Spectrum, Covariance] | None:
    """Return accurate eigenpairs of rows of `source` if those of `spectrum` are not accurate."""
    if are_accurate(source, spectrum.values, k):
        return None
    ref = spectrum.values
    kept = accurate_pairs(to_numpy(ref), k, machine_epsilon(ref))
    if isinstance(source, BlocksSource):
        wide = WideBlocks(source, to_numpy(spectrum.vectors)[:, :0])
        found, left = deflated(wide, spectrum, max(kept, 1))
        assert isinstance(left, WideBlocks), "blocks remain blocks"
        return found, DeflatedBlocksCovariance(found, left)
    data: CentredRows | CentredBlocks
    if source.rows is None:
        assert isinstance(source, MomentSource), "other sources have rows"
        assert source.passes is not None, "the pairs would count as accurate"
        data = CentredBlocks(source.passes, source.moment, spectrum.vectors[:, :0])
    else:
        data = CentredRows(*_centred(source.rows, source.weights, source.mean, ref))
    if _is_single(source):  # the eigenpairs may come from products in single precision
        count = int(spectrum.values.shape[0])
        spectrum = replace(data.leading(count).leading(count), trace=spectrum.trace)
        kept = accurate_pairs(to_numpy(spectrum.values), count, machine_epsilon(ref))
    found, rest = deflated(data, spectrum, max(kept, 1))
    if isinstance(data, CentredRows):
        zero = 0.0 * like(source.mean, ref)
        return found, RowsCovariance(data.rows, zero, data.weights, source.weight)
    assert isinstance(rest, CentredBlocks), "blocks remain blocks"
    return found, DeflatedCovariance(found.values, found.vectors, rest.covariance_without(found))


def are_accurate(source: Source, values: Array, k: int) -> bool:
    """Tell whether `k` leading eigenpairs are accurate, or cannot be computed more accurately.

    `values` are leading eigenvalues of the second moment of the data `source`, at least k of them
    unless there are fewer. They cannot be computed more accurately if the rows are too large, or
    not in memory and cannot be read again.
    """
    if not _has_rows(source):
        return True
    if isinstance(source, BlocksSource):
        unknown = False
    elif source.rows is None:
        unknown = isinstance(source, RowsSource) or source.passes is None
    else:
        most = DENSE_ENTRIES if scipy.sparse.issparse(source.rows) else COPIED_ENTRIES
        unknown = math.prod(source.rows.shape) > most
    kept = accurate_pairs(to_numpy(values), k, *_errors(source))
    return unknown or kept >= min(k, int(values.shape[0]))


def _has_rows(source: Any) -> bool:
    """Tell whether `source` has rows or a second moment, which a Gaussian model does not have.

    Such a model is estimated from rows with missing entries.
    """
    return isinstance(source, MomentSource | RowsSource | BlocksSource)


def _errors(source: Source) -> tuple[float, float]:
    """Return the relative error of the second moment of `source`, and the allowed error."""
    eps = machine_epsilon(source.mean)
    if isinstance(source, MomentSource) and source.moment.rounding > 0.0:
        return max(source.moment.rounding, eps), ALLOWED_PRODUCTS
    return eps, ALLOWED_SINGLE if _is_single(source) else ALLOWED_DOUBLE


def _is_single(source: Source) -> bool:
    """Tell whether the rows are float32 numbers, in any array library; False without rows."""
    rows = None if isinstance(source, BlocksSource) else source.rows
    passes = None if isinstance(source, RowsSource) else source.passes
    if rows is None and passes is not None:
        rows = passes.data.rows
    return rows is not None and str(rows.dtype).endswith("float32")


def _centred(X: Any, weights: Array | None, mean: Array, ref: Array) -> tuple[Array, Array]:
    """Return rows X (n, m) minus their mean, dense as float64 beside `ref`, and their weights."""
    rows = X.toarray() if scipy.sparse.issparse(X) else X
    rows = like(as_double(rows), ref) - like(mean, ref)
    if weights is None:
        weights = zeros_like_shape((rows.shape[0],), ref) + 1.0
    weights = like(weights, ref)
    # The mean of the deviations corrects the rounding error of the first mean.
    rows -= (weights @ rows) / scalar(namespace(ref).sum(weights))
    return rows, weights


@dataclass(frozen=True)
class CentredRows:
    """Centred rows in memory, from which components are removed."""

    rows: Array  # (n, m): the rows, whose mean is zero
    weights: Array  # (n,): weights of the rows

    @cached_property
    def variance(self) -> float:
        """Total variance of the rows."""
        total = scalar(namespace(self.weights).sum(self.weights))
        return scalar(self.weights @ squared_norms(self.rows, axis=-1)) / total

    def without(self, vectors: Array) -> Self:
        """Return the rows without their parts along orthonormal `vectors`, of shape (m, q)."""
        return replace(self, rows=_removed(self.rows, vectors))

    def variance_without(self, vectors: Array) -> float:
        """Return the total variance of the rows without their parts along `vectors` (m, q)."""
        return self.without(vectors).variance

    def leading(self, k: int) -> Spectrum:
        """Return the `k` leading eigenpairs of the second moment.

        One more is computed, if there is one, so that the eigengap after the last is known.
        """
        pairs = min(k + 1, self.rows.shape[1])
        found = source_of(self.rows, self.weights, wanted=pairs).spectrum(pairs)
        assert found is not None, "a number of pairs is given"
        return found


@dataclass(frozen=True)
class CentredBlocks:
    """Centred rows that are read in blocks, several times, from which components are removed."""

    passes: Passes  # the rows, not centred, with their weights
    whole: SecondMoment  # mean and second moment of the rows, from the first pass
    vectors: Array  # (m, q): orthonormal vectors along which the rows have no part

    @cached_property
    def moment(self) -> SecondMoment:
        """The second moment of the rows without their parts along the vectors, from one pass."""
        leaf = partial(_block_moment, self.whole.center, self.whole.offset, self.vectors)
        try:
            found = read_moment(self.passes.data, leaf, verbose=self.passes.verbose)
        except ReadInterrupted:  # its moment is not that of the rows
            raise ReadInterrupted(None, 0) from None
        # The deviations from the mean of the first pass have the mean zero in every other pass.
        size = math.sqrt(self.whole.trace + _length(self.whole.mean) ** 2)
        weight = self.whole.weight
        if abs(found.weight - weight) > SAME_MEAN * weight:
            raise rows_differed(self.passes.data)
        if _length(found.mean) > SAME_MEAN * size:
            raise rows_differed(self.passes.data)
        return found

    @property
    def variance(self) -> float:
        """Total variance of the rows; of all rows it is known without another pass."""
        return self.moment.trace if self.vectors.shape[1] else self.whole.trace

    def without(self, vectors: Array) -> Self:
        """Return the rows without their parts along orthonormal `vectors`, of shape (m, q)."""
        joined = namespace(vectors).concat([self.vectors, vectors], axis=1)
        return replace(self, vectors=joined)

    def variance_without(self, vectors: Array) -> float:
        """Return the total variance of the rows without their parts along `vectors` (m, q)."""
        if self.vectors.shape[1]:
            products = self.moment.covariance @ vectors
            left = self.variance - scalar(namespace(vectors).sum(products * vectors))
            if left > REREAD * self.variance:
                return left
        return self.without(vectors).variance

    def leading(self, k: int) -> Spectrum:
        """Return the `k` leading eigenpairs of the second moment, and one more if there is one."""
        return MomentSource(self.moment).spectrum(min(k + 1, self.moment.n_features))

    def covariance_without(self, spectrum: Spectrum) -> Array:
        """Return the second moment (m, m) of the rows without their parts along eigenvectors."""
        covariance = _removed(self.moment.covariance, spectrum.vectors)
        return _removed(covariance.mT, spectrum.vectors)


@dataclass(frozen=True)
class WideBlocks:
    """Centred rows with very many features that are read in blocks, without some components.

    Their second moment is not formed: each product with it is a pass over the data.
    """

    source: BlocksSource  # the rows, not centred
    vectors: np.ndarray[Any, Any]  # (m, q): orthonormal vectors along which the rows have no part

    @cached_property
    def variance(self) -> float:
        """Total variance of the rows; of all rows it is known without another pass."""
        if not self.vectors.shape[1]:
            return self.source.covariance.trace
        found = self._sums(np.empty((0, self.vectors.shape[0])))
        return found.squares / found.weight

    def without(self, vectors: Array) -> Self:
        """Return the rows without their parts along orthonormal `vectors`, of shape (m, q)."""
        return replace(self, vectors=np.concatenate([self.vectors, vectors], axis=1))

    def variance_without(self, vectors: Array) -> float:
        """Return the total variance of the rows without their parts along `vectors` (m, q)."""
        return self.without(vectors).variance

    def leading(self, k: int) -> Spectrum:
        """Return the `k` leading eigenpairs of the second moment, and one more if there is one."""
        count = min(k + 1, self.vectors.shape[0])
        pairs = krylov_eigenpairs(self.apply, count, self.source.mean)
        assert pairs is not None, "the number of passes is not limited"
        return Spectrum(pairs[0], fix_signs(pairs[1]), self.source.covariance.trace)

    def apply(self, rows: Array) -> Array:
        """Return ``rows @ R`` for rows (b, m) and the second moment R of the deflated rows."""
        outside = np.asarray(_removed(rows, self.vectors))
        found = self._sums(outside)
        offset = found.rest / found.weight
        products = found.products / found.weight - (outside @ offset)[:, None] * offset
        return _removed(products, self.vectors)

    def _sums(self, rows: np.ndarray[Any, Any]) -> DeflatedSums:
        removed = np.ascontiguousarray(self.vectors.T)
        leaf = DeflatedPass(rows, removed, rows @ self.vectors, self.source.mean)
        found: DeflatedSums = self.source.passes.total(leaf)
        return found


@dataclass(frozen=True)
class DeflatedBlocksCovariance:
    """The second moment Σ as leading eigenpairs and the rest, which is multiplied by a pass.

    It is the counterpart of `DeflatedCovariance` for very many features.
    """

    spectrum: Spectrum  # the leading eigenpairs
    blocks: WideBlocks  # the rows without their parts along some of the eigenvectors

    @property
    def trace(self) -> float:
        """Total variance of the data: the trace of the second moment."""
        return self.blocks.source.covariance.trace

    @property
    def n_features(self) -> int:
        """Number of features of the data."""
        return int(self.spectrum.vectors.shape[0])

    def apply(self, rows: Array) -> Array:
        """Return ``rows @ Σ``, where `rows` have shape (…, k, m) and Σ is the second moment."""
        vectors = self.spectrum.vectors
        flat = np.reshape(rows, (-1, self.n_features))
        codes = flat @ vectors
        rest = self.blocks.apply(_removed(flat, vectors))
        found = (codes * self.spectrum.values) @ vectors.mT + _removed(rest, vectors)
        return np.reshape(found, rows.shape)


def _length(vector: Array) -> float:
    return math.sqrt(scalar(namespace(vector).sum(vector * vector)))


def _removed(rows: Array, vectors: Array) -> Array:
    """Return rows (n, m) without their parts along orthonormal columns (m, q)."""
    return rows - (rows @ vectors) @ vectors.mT


def _block_moment(
    center: Array, offset: Array, vectors: Array, X: Any, _targets: Any, weights: Any
) -> SecondMoment:
    """Return the second moment of a block X of rows without their parts along `vectors`.

    The mean of all rows, center + offset, is subtracted first.
    """
    found = None
    for start in range(0, X.shape[0], BLOCK_ROWS):
        part = slice(start, min(start + BLOCK_ROWS, X.shape[0]))
        rows = X[part].toarray() if scipy.sparse.issparse(X) else X[part, :]
        rows = (like(as_double(rows), vectors) - like(center, vectors)) - like(offset, vectors)
        shares = None if weights is None else like(weights[part], vectors)
        if shares is not None and not scalar(namespace(shares).sum(shares)) > 0.0:
            continue
        moment = SecondMoment.of(_removed(rows, vectors), shares, verbose=False)
        found = moment if found is None else found.merge(moment)
    assert found is not None, "blocks without a positive weight are left out"
    return found


def deflated(
    data: CentredRows | CentredBlocks | WideBlocks, spectrum: Spectrum, kept: int
) -> tuple[Spectrum, CentredRows | CentredBlocks | WideBlocks]:
    """Return eigenpairs of rows, of which the first `kept` of `spectrum` are accurate."""
    wanted = int(spectrum.values.shape[0])
    values, vectors = spectrum.values[:kept], spectrum.vectors[:, :kept]
    xp, eps = namespace(values), machine_epsilon(values)
    least, newest, missing = (NOISE * eps) ** 2 * data.variance, vectors, wanted - kept
    while missing:
        data = data.without(newest)
        if not data.variance > least:
            break
        found = data.leading(missing)
        kept = min(max(1, accurate_pairs(to_numpy(found.values), missing, eps)), missing)
        newest = _orthonormal(found.vectors[:, :kept], vectors)
        values = xp.concat([values, found.values[:kept]])
        vectors = xp.concat([vectors, newest], axis=1)
        missing -= kept
    if missing:
        # No direction is left in which the rows vary: any orthonormal vectors complete the others.
        rest = spectrum.vectors[:, wanted - missing :]
        vectors = xp.concat([vectors, _orthonormal(rest, vectors)], axis=1)
        values = xp.concat([values, zeros_like_shape((missing,), values)])
        left = 0.0
    else:
        left = data.variance_without(newest)
    order = xp.argsort(-values)
    values, vectors = xp.take(values, order), xp.take(vectors, order, axis=1)
    return Spectrum(values, fix_signs(vectors), spectrum.trace, left), data


def _orthonormal(columns: Array, others: Array) -> Array:
    """Return an orthonormal basis of `columns` minus their parts along the orthonormal `others`.

    The basis is close to the columns themselves if these are nearly orthonormal already.
    """
    xp, count = namespace(columns), others.shape[1]
    # A column in the span of the others would leave rounding errors alone; the factorisation of all
    # of them returns a vector that is orthogonal to the others even then.
    basis, triangle = xp.linalg.qr(xp.concat([others, columns], axis=1))
    signs = xp.sign(xp.linalg.diagonal(triangle))[count:]
    return basis[:, count:] * xp.where(signs == 0, xp.ones_like(signs), signs)
