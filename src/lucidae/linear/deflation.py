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

Whether the eigenpairs are accurate is estimated from the eigenvalues alone, so that other data cost
no time.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

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
from lucidae.linear.covariances import RowsCovariance
from lucidae.linear.data import MomentSource, RowsSource, Source, source_of
from lucidae.linear.spectrum import Spectrum

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

COPIED_ENTRIES = 2**26
"""Largest number of entries of rows that are copied and deflated: the copy takes half a gibibyte.
"""

DENSE_ENTRIES = 2**24
"""The same for sparse rows, which a deflation makes dense."""

NOISE = 16.0
"""Deflated rows whose norm is at most this number times ε times the norm of all rows consist of
rounding errors."""


def accurate_pairs(
    values: np.ndarray[Any, Any], k: int, rounding: float, allowed: float = ALLOWED
) -> int:
    """Return how many of the first `k` eigenvectors of a second moment are accurate.

    Parameters
    ----------
    values : ndarray of shape (q,)
        Leading eigenvalues, descending: at least k of them, unless there are fewer.
    k : int
        Number of eigenpairs that are wanted.
    rounding : float
        Relative error of the second moment: the machine epsilon, or more.
    allowed : float
        Largest angle of an accurate eigenvector to the true one.

    Returns
    -------
    int
        The number of eigenpairs before the first one that is not accurate.

    Examples
    --------
    >>> import numpy as np
    >>> accurate_pairs(np.array([3.0, 2.0, 1.0]), 2, 2.2e-16)
    2
    >>> accurate_pairs(np.array([3e12, 2.0, 1.0]), 2, 2.2e-16)
    1
    """
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
) -> tuple[Spectrum, RowsCovariance] | None:
    """Return accurate eigenpairs of the rows of `source` if those of `spectrum` are not accurate.

    Parameters
    ----------
    source : MomentSource, RowsSource or BlocksSource
        The data that were passed to `fit`.
    spectrum : Spectrum
        Leading eigenpairs of their second moment.
    k : int
        Number of eigenpairs that are used.

    Returns
    -------
    tuple of Spectrum and RowsCovariance, or None
        Accurate eigenpairs, as many as there were, and products with the second moment by centred
        rows. None if the first k pairs of `spectrum` are accurate, or if the rows are not in memory
        or too large.
    """
    if are_accurate(source, spectrum.values, k):
        return None
    assert isinstance(source, MomentSource | RowsSource), "other sources have no rows"
    rows, ref = source.rows, spectrum.values
    kept = accurate_pairs(to_numpy(ref), k, machine_epsilon(ref))
    centred, weights = _centred(rows, source.weights, source.mean, ref)
    if _is_single(rows):  # the eigenpairs may come from products in single precision
        count = int(spectrum.values.shape[0])
        spectrum = replace(_leading(centred, weights, count).leading(count), trace=spectrum.trace)
        kept = accurate_pairs(to_numpy(spectrum.values), count, machine_epsilon(ref))
    found = deflated(centred, weights, spectrum, max(kept, 1))
    return found, RowsCovariance(centred, 0.0 * like(source.mean, ref), weights, source.weight)


def are_accurate(source: Source, values: Array, k: int) -> bool:
    """Tell whether `k` leading eigenpairs are accurate, or cannot be computed more accurately.

    `values` are leading eigenvalues of the second moment of the data `source`, at least k of them
    unless there are fewer. They cannot be computed more accurately if the rows are not in memory or
    too large.
    """
    if not isinstance(source, MomentSource | RowsSource) or source.rows is None:
        return True
    kept = accurate_pairs(to_numpy(values), k, *_errors(source))
    most = DENSE_ENTRIES if scipy.sparse.issparse(source.rows) else COPIED_ENTRIES
    large: bool = math.prod(source.rows.shape) > most
    return kept >= min(k, int(values.shape[0])) or large


def _errors(source: MomentSource | RowsSource) -> tuple[float, float]:
    """Return the relative error of the second moment of `source`, and the allowed error."""
    eps = machine_epsilon(source.mean)
    if isinstance(source, MomentSource) and source.moment.rounding > 0.0:
        return max(source.moment.rounding, eps), ALLOWED_PRODUCTS
    return eps, ALLOWED_SINGLE if _is_single(source.rows) else ALLOWED_DOUBLE


def _is_single(rows: Any) -> bool:
    """Tell whether an array or sparse matrix contains float32 numbers, in any array library."""
    return str(rows.dtype).endswith("float32")


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


def deflated(rows: Array, weights: Array, spectrum: Spectrum, kept: int) -> Spectrum:
    """Return eigenpairs of rows, of which the first `kept` of `spectrum` are accurate.

    Parameters
    ----------
    rows : array of shape (n, m)
        Centred rows; they are not changed.
    weights : array of shape (n,)
        Weights of the rows.
    spectrum : Spectrum
        Leading eigenpairs of their second moment.
    kept : int
        Number of its eigenpairs that are kept, at least 1.

    Returns
    -------
    Spectrum
        As many eigenpairs as `spectrum` has. Its field `beyond` is known.
    """
    xp, wanted = namespace(rows), int(spectrum.values.shape[0])
    eps, share = machine_epsilon(rows), 1.0 / scalar(xp.sum(weights))
    values, vectors = spectrum.values[:kept], spectrum.vectors[:, :kept]
    whole = left = scalar(weights @ squared_norms(rows, axis=-1)) * share
    newest = vectors
    while True:
        rows = rows - (rows @ newest) @ newest.mT
        left = scalar(weights @ squared_norms(rows, axis=-1)) * share
        missing = wanted - int(values.shape[0])
        if not missing or not left > (NOISE * eps) ** 2 * whole:
            break
        found = _leading(rows, weights, missing)
        kept = max(1, accurate_pairs(to_numpy(found.values), missing, eps))
        newest = _orthonormal(found.vectors[:, :kept], vectors)
        values = xp.concat([values, found.values[:kept]])
        vectors = xp.concat([vectors, newest], axis=1)
    if missing:
        # No direction is left in which the rows vary: any orthonormal vectors complete the others.
        rest = spectrum.vectors[:, wanted - missing :]
        vectors = xp.concat([vectors, _orthonormal(rest, vectors)], axis=1)
        values = xp.concat([values, zeros_like_shape((missing,), values)])
        left = 0.0
    order = xp.argsort(-values)
    values, vectors = xp.take(values, order), xp.take(vectors, order, axis=1)
    return Spectrum(values, fix_signs(vectors), spectrum.trace, left)


def _leading(rows: Array, weights: Array, k: int) -> Spectrum:
    """Return the `k` leading eigenpairs of the second moment of rows whose mean is zero.

    One more is computed, if there is one, so that the eigengap after the last is known.
    """
    pairs = min(k + 1, rows.shape[1])
    found = source_of(rows, weights, wanted=pairs).spectrum(pairs)
    assert found is not None, "a number of pairs is given"
    return found


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
