"""Solutions for data with many features, computed without the second moment of all features.

An autoencoder needs the leading principal components of the rows, one more than it has hidden
units. They are computed by the cheapest algorithm for the shape of the data
(`lucidae.rows.routes`). A regression on fewer rows than features works on the rows themselves,
centred and scaled, in place of their second moment (`LinearProblem.from_root`); with more than
`WIDE_FEATURES` features, on products with the rows (`lucidae.dropout.row_space`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse

from lucidae.arrays import (
    Array,
    as_double,
    device,
    diagonal,
    largest,
    like,
    machine_epsilon,
    namespace,
    scalar,
    squared_norms,
    svd_thin,
    to_numpy,
    where_set,
    zeros_like_shape,
)
from lucidae.base import reference_array
from lucidae.dropout.moments import (
    GRAM_CONDITION,
    LARGEST_ENTRY,
    RANGE_FACTOR,
    checked_columns,
    joined_rows,
    joint_moment,
    principal_map,
    resolved,
    row_problem,
)
from lucidae.dropout.objectives import CONSTANT, SMALLEST_ENERGY, LinearProblem, varying
from lucidae.dropout.row_space import WideRows
from lucidae.dropout.solvers import ExactSolution, assemble
from lucidae.dropout.theory import shrink
from lucidae.moments import SecondMoment
from lucidae.rows.deflation import are_accurate, refined_spectrum
from lucidae.rows.sources import SOLVERS, STORED_FEATURES, MomentSource, RowsSource, source_of
from lucidae.validation import check_rows

WIDE_FEATURES = 4096
"""A regression on fewer rows than features computes only products with the rows, and their Gram
matrix, if there are more features than this. Below, the rows are factorised."""

LARGEST_COPY = 2**27
"""Largest number of entries of rows that are made dense and factorised, one gibibyte, if their Gram
matrix is ill-conditioned. Of larger rows the Gram matrix is used in any case."""

LARGE_MEAN = 100.0
"""If the squared norm of the mean of sparse rows exceeds their total variance by this factor, rows
of at most `LARGEST_COPY` entries are made dense before they are centred."""


@dataclass(frozen=True, slots=True, eq=False)
class RowMean:
    """Mean and standard deviations of rows whose second moment is not stored."""

    weight: float  # sum of the weights of the rows
    center: Array  # (m,): two vectors whose sum is the mean
    offset: Array
    deviations: Array  # (m,): square roots of the mean squares of the rows minus `center`

    @property
    def mean(self) -> Array:
        """Weighted mean of the rows, shape (m,)."""
        return self.center + self.offset

    @property
    def n_features(self) -> int:
        """Number m of features, the entries of a row."""
        return int(self.center.shape[0])

    def merge(self, other: Any) -> Any:
        """Raise an error: a fit without the second moment cannot continue with other rows."""
        del other
        raise ValueError(
            f"fit does not store the second moment of {self.n_features} features, so partial_fit "
            "cannot continue from it. Start a new estimator and give all batches to partial_fit."
        )


def leading_source(X: Any, weights: Array | None, width: int) -> RowsSource | None:
    """Return the rows as a source of principal components; None if the second moment is better.

    It is for few features, from which `partial_fit` can continue, and for many more rows than
    features.
    """
    if X.shape[1] <= STORED_FEATURES:
        return None
    source = source_of(X, weights, SOLVERS["exact"], width)
    return source if isinstance(source, RowsSource) and source.moment is None else None


def leading_optimum(source: RowsSource, strength: float, width: int) -> ExactSolution:
    """Return the optimal autoencoder from the leading principal components of the rows."""
    n, m = source.rows.shape
    spectrum = source.spectrum(min(width + 1, n, m))
    if spectrum is None:
        raise ValueError(
            f"{width} hidden units need all principal components of {n} rows with {m} features, "
            "which takes too much memory: give a smaller n_components."
        )
    xp = namespace(spectrum.values)
    # Components that dropout removes need not be accurate.
    squares = where_set(spectrum.values, spectrum.values < 0, 0.0)
    refined = refined_spectrum(source, spectrum, shrink(xp.sqrt(squares), strength, width).rank)
    scales, axes = _refined(source, (spectrum if refined is None else refined[0]).vectors)
    return _optimum_of(source, scales, axes, strength, width)


def deflated_optimum(source: MomentSource, strength: float, width: int) -> ExactSolution | None:
    """Return the optimal autoencoder of rows that are read again without their large components.

    The result is None if the principal components from the second moment are accurate.
    """
    spectrum = source.spectrum(min(width + 1, source.moment.n_features))
    xp = namespace(spectrum.values)
    scales = xp.sqrt(where_set(spectrum.values, spectrum.values < 0, 0.0))
    refined = refined_spectrum(source, spectrum, shrink(scales, strength, width).rank)
    if refined is None:
        return None
    found, _ = refined
    return _optimum_of(source, xp.sqrt(found.values), found.vectors, strength, width)


def _optimum_of(
    source: MomentSource | RowsSource, scales: Array, axes: Array, strength: float, width: int
) -> ExactSolution:
    """Return the optimal autoencoder from leading standard deviations and principal axes."""
    xp, m = namespace(scales), axes.shape[0]
    level = RANGE_FACTOR * m * machine_epsilon(scales) * largest(scales[:1])
    if not source.trace > scalar(xp.sum((CONSTANT * source.mean) ** 2)):
        level = largest(scales[:1])  # equal rows, up to the rounding errors of their mean
    count = max(int(xp.sum(xp.astype(scales > level, xp.int64))), 1)
    scales = xp.where(scales > level, scales, 0.0 * scales)[:count]
    white, triple = principal_map(scales, axes[:, :count])
    return assemble(white, triple, strength, width, source.trace)


def needs_rows(source: MomentSource, optimum: ExactSolution, strength: float, width: int) -> bool:
    """Tell whether an optimum from a second moment is inaccurate, and its rows must be used.

    Rounding errors of the moment hide components of small variance beside much larger ones. It
    matters if the optimum contains them.
    """
    scales = optimum.singular_values
    xp, count = namespace(scales), int(scales.shape[0])
    if not are_accurate(source, scales**2, optimum.rank):
        return True
    # Standard deviations below this one were left out, because they may be rounding errors.
    m = source.moment.n_features
    lost = (RANGE_FACTOR * m * machine_epsilon(scales)) ** 0.5 * largest(scales[:1])
    if count >= min(width, m) or optimum.threshold >= lost:
        return False
    padded = xp.concat([scales, zeros_like_shape((1,), scales) + lost])
    hidden = shrink(padded, strength, width).rank > count
    return hidden and not are_accurate(source, xp.concat([scales**2, 0.0 * scales[:1]]), count + 1)


def _refined(source: RowsSource, vectors: Array) -> tuple[Array, Array]:
    """Return standard deviations along the leading principal axes, and the axes as columns.

    Eigenvalues of the moment are squares, in which a deviation below √ε times the largest is lost.
    The singular values of the rows on the span of `vectors` (one Rayleigh–Ritz step) have an error
    of the order ε times the largest.
    """
    known = source.centred if source.single is None else None
    rows, mean = known or (source.rows, source.mean)
    xp = namespace(vectors)
    codes = rows @ vectors if scipy.sparse.issparse(rows) else as_double(rows) @ vectors
    codes = (codes - mean @ vectors) * xp.sqrt(source.weights / source.weight)[:, None]
    _, scales, turn = svd_thin(codes)
    return scales, vectors @ turn.mT


def mean_of(source: RowsSource) -> RowMean:
    """Return weight and mean of the rows of a source; deviations are not computed."""
    zeros = 0.0 * source.mean
    return RowMean(source.weight, source.mean, zeros, zeros)


def autoencoder_loss(
    source: RowsSource, left: Array, right: Array, strength: float, center: Array | None = None
) -> tuple[float, float]:
    """Return the expected dropout loss of an autoencoder on rows, and the total variance of these.

    It is tr C − 2 tr UᵀCV + tr(UᵀU VᵀCV) + λ Σᵢ ‖uᵢ‖² vᵢᵀC vᵢ about the mean or `center`; C is not
    formed.
    """
    xp = namespace(left)
    inward, total = source.covariance.apply(right.mT).mT, source.trace
    if center is not None:
        shift = source.mean - center
        inward = inward + shift[:, None] * (shift @ right)
        total += scalar(xp.sum(shift * shift))
    inner, outer = right.mT @ inward, left.mT @ left
    fitted = scalar(xp.sum(outer * inner)) - 2 * scalar(xp.sum(left * inward))
    penalty = scalar(xp.sum(diagonal(outer) * diagonal(inner)))
    return total + fitted + strength * penalty, total


def is_wide(X: Any) -> bool:
    """Tell whether a regression works on rows instead of on their second moment."""
    return bool(X.shape[0] < X.shape[1] and X.shape[1] > STORED_FEATURES)


def row_factor(X: Any, Y: Any, weights: Array | None, *, centered: bool) -> tuple[RowMean, Array]:
    """Return the mean of the rows [x | y], and F with FᵀF = E[(x, y)(x, y)ᵀ]: the scaled rows.

    The mean is the sum of two vectors, so that deviations far smaller than it keep their digits.
    """
    Y = checked_columns(X, Y)
    ref = as_double(reference_array(X))
    xp, n = namespace(ref), X.shape[0]
    with np.errstate(over="ignore", invalid="ignore"):
        rows = joined_rows(X, Y, slice(0, n), ref)
        if largest(rows) > LARGEST_ENTRY:
            check_rows(rows)
            raise ValueError(
                "the squares of X or y overflow double precision: the largest entry is "
                f"{largest(rows):.3g}, expected at most {LARGEST_ENTRY:g}. Divide the data by a "
                "constant first."
            )
    ones = xp.ones(n, dtype=xp.float64, device=device(ref))
    frequencies = ones if weights is None else like(weights, ones)
    total = scalar(xp.sum(frequencies))
    share = frequencies / total
    center = share @ rows
    offset = 0.0 * center
    if centered:  # in place, because the rows are a large part of the memory
        rows -= center
        offset = share @ rows
        rows -= offset
    rows *= xp.sqrt(share)[:, None]
    squares = squared_norms(rows, axis=-2)
    _refuse_underflow(rows, squares, center)
    spread = xp.sqrt(squares if centered else xp.clip(squares - center * center, 0.0, None))
    if centered:
        rows *= varying(squares, center)
    return RowMean(total, center, offset, spread), rows


def _refuse_underflow(rows: Array, squares: Array, center: Array) -> None:
    """Raise an error if a column is not constant, but the squares of its entries underflow."""
    for column in np.flatnonzero(to_numpy(squares) < SMALLEST_ENERGY):
        size = largest(rows[:, int(column)])
        if size > 1e-15 * abs(scalar(center[int(column)])):
            raise ValueError(
                f"the squares of column {column} of [X | y] underflow double precision: its "
                f"largest entry, times the square root of its weight, is {size:.3g}. Multiply the "
                "column by a constant first."
            )


def sparse_rows(
    X: Any, Y: Any, weights: Array | None, *, centered: bool
) -> tuple[RowMean, WideRows]:
    """Return the mean of the rows [x | y] of sparse inputs, and the rows, which stay sparse."""
    Y = np.asarray(as_double(to_numpy(checked_columns(X, Y))))
    n, m = X.shape
    given = np.ones(n) if weights is None else np.asarray(to_numpy(weights), dtype=np.float64)
    total = float(given.sum())
    share = given / total
    rows = scipy.sparse.csr_array(X, dtype=np.float64, copy=True)
    rows.sum_duplicates()
    _refuse_overflow(rows.data)
    mean, outputs = rows.T @ share, share @ Y
    # Σ share (x − mean)² over the stored entries, and mean² times the share of the other entries.
    each = np.repeat(share, np.diff(rows.indptr))
    away = each * (rows.data - mean[rows.indices]) ** 2
    stored = np.bincount(rows.indices, minlength=m)
    empty = 1.0 - np.bincount(rows.indices, weights=each, minlength=m)
    empty = np.where(stored == n, 0.0, np.clip(empty, 0.0, None))
    spread = np.bincount(rows.indices, weights=away, minlength=m) + empty * mean**2
    squares = spread if centered else spread + mean**2
    _refuse_lost_squares(rows, squares, mean * centered, np.sqrt(each))
    rows.data *= np.sqrt(each)
    deviations = Y - outputs
    offset = share @ deviations
    targets = (deviations - offset if centered else Y) * np.sqrt(share)[:, None]
    beside = (targets**2).sum(axis=0)
    _refuse_underflow(targets, beside, outputs)
    if centered:
        targets = targets * varying(beside, outputs)
        kept = varying(squares, mean)
        rows.data *= kept[rows.indices]
        squares = squares * kept
    found = RowMean(
        total,
        np.concatenate([mean, outputs]),
        np.concatenate([0.0 * mean, offset * centered]),
        np.sqrt(np.concatenate([spread, share @ (deviations - offset) ** 2])),
    )
    center = mean * kept if centered else 0.0 * mean
    entries = (rows.data, rows.indices, rows.indptr)
    return found, WideRows(targets, squares, None, entries, np.sqrt(share), center, centered)


def _refuse_overflow(entries: Array) -> None:
    """Raise an error if an entry of sparse inputs is so large that its square overflows."""
    if largest(entries) > LARGEST_ENTRY:
        raise ValueError(
            "the squares of X overflow double precision: the largest entry is "
            f"{largest(entries):.3g}, expected at most {LARGEST_ENTRY:g}. Divide the data by a "
            "constant first."
        )


def _refuse_lost_squares(rows: Any, squares: Array, center: Array, shares: Array) -> None:
    """Raise an error if a sparse column is not constant, but the squares of its entries underflow.

    `squares` are the mean squares of the columns, `center` is subtracted from the rows, and
    `shares` are the square roots of the weights of all stored entries.
    """
    columns = rows.indices
    sizes = shares * np.abs(rows.data - center[columns])
    lost = (squares[columns] < SMALLEST_ENERGY) & (sizes > 1e-15 * np.abs(center[columns]))
    if np.any(lost):
        raise ValueError(
            f"the squares of column {columns[lost][0]} of X underflow double precision: its "
            f"largest entry, times the square root of its weight, is {sizes[lost].max():.3g}. "
            "Multiply the column by a constant first."
        )


def wide_rows(
    X: Any, Y: Any, weights: Array | None, *, centered: bool
) -> tuple[RowMean, WideRows] | None:
    """Return the mean of the rows [x | y], and the rows for products.

    The result is None if the rows are to be factorised: at most `WIDE_FEATURES` features, or
    products that would lose digits (a large mean, an ill-conditioned Gram matrix) of at most
    `LARGEST_COPY` entries.
    """
    if not (is_wide(X) and X.shape[1] > WIDE_FEATURES):
        return None
    small = X.shape[0] * X.shape[1] <= LARGEST_COPY
    if scipy.sparse.issparse(X):
        mean, rows = sparse_rows(X, Y, weights, centered=centered)
        size = 0.0 if rows.mean is None else float(rows.mean @ rows.mean)
        if small and size > LARGE_MEAN * float(rows.squares.sum()):
            return None
    else:
        mean, factor = row_factor(X, Y, weights, centered=centered)
        inward, outward = factor[:, : X.shape[1]], factor[:, X.shape[1] :]
        rows = WideRows(outward, squared_norms(inward, axis=-2), inward, centered=centered)
    return None if small and _is_ill_conditioned(rows.gram()) else (mean, rows)


def _is_ill_conditioned(gram: Array) -> bool:
    """Tell whether the condition number of a Gram matrix, on its range, exceeds `GRAM_CONDITION`.

    The squared pivots of its Cholesky factorisation are either large or rounding errors otherwise.
    """
    host = np.array(to_numpy(gram), dtype=np.float64)
    top = float(np.diag(host).max())
    if not top > 0:
        return False
    noise = RANGE_FACTOR * len(host) * machine_epsilon(host)
    factor, _, rank, _ = scipy.linalg.lapack.dpstrf(host / top, tol=noise, lower=1)
    pivots = np.diag(factor)[:rank] ** 2
    return bool(pivots.min() * GRAM_CONDITION < 1.0)


def rows_problem(
    X: Any, Y: Any, weights: Array | None, *, centered: bool, products: bool = True
) -> tuple[LinearProblem, SecondMoment | RowMean]:
    """Return the problem of predicting Y from X, and the moment or mean of rows [x | y].

    With fewer rows than features the second moment is not formed; with very many features only
    products with the rows are computed, unless `products` is False.
    """
    found = wide_rows(X, Y, weights, centered=centered) if products else None
    if found is not None:
        return LinearProblem.from_wide(found[1], found[0].weight - centered), found[0]
    if is_wide(X):
        mean, factor = row_factor(X, Y, weights, centered=centered)
        problem = LinearProblem.from_root(factor, X.shape[1], mean.weight - centered)
        precision = machine_epsilon(X.data if scipy.sparse.issparse(X) else X)
        return resolved(problem, mean, precision, centered=centered), mean
    moment = joint_moment(X, Y, weights)
    return row_problem(X, Y, weights, moment, centered=centered), moment
