"""From rows in memory or read in blocks to the second moments that define the dropout loss.

A regression on fewer rows than features works on products with the rows, centred and scaled, and on
their Gram matrix (`WideRows`) in place of their second moment; where these would
lose digits, on a factorisation of the rows (`LinearProblem.from_root`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
import scipy.sparse

from lucidae.arrays import (
    Array,
    as_double,
    as_float,
    beside,
    device,
    diagonal,
    is_array,
    largest,
    like,
    machine_epsilon,
    namespace,
    scalar,
    squared_norms,
    to_numpy,
)
from lucidae.base import reference_array
from lucidae.certificates.sketch import Sketch, column_scales, sketch_pairs
from lucidae.dropout.problem import (
    CONDITION,
    GRAM_CONDITION,
    RANGE_FACTOR,
    SMALLEST_ENERGY,
    LinearProblem,
    WideRows,
    resolved,
    triangle,
    varying,
)
from lucidae.moments import SecondMoment
from lucidae.rows.kinds import AlignedBlocks
from lucidae.rows.operator import STORED_FEATURES, RowOperator
from lucidae.rows.passes import fold, nothing_read
from lucidae.validation import check_rows

LARGEST_COPY = 2**27
"""Largest number of entries of rows that are made dense and factorised, one gibibyte, if their Gram
matrix is ill-conditioned. Of larger rows the Gram matrix is used in any case."""

LARGE_MEAN = 100.0
"""If the squared norm of the mean of sparse rows exceeds their total variance by this factor, rows
of at most `LARGEST_COPY` entries are made dense before they are centred."""

BLOCK_ROWS = 16_384
"""Number of rows of which X and Y are joined at a time, so that a large X is never copied whole."""

LARGEST_ENTRY = 1e150
"""Largest entry of X and y that is accepted: the sum of the squares of larger ones may overflow."""

ROOT_ROWS = 4096
"""Number of rows that are factorised at a time, or twice the number of columns if that is more."""


class Passed(NamedTuple):
    """What remains of rows that have passed: their second moment, and a sketch to test it."""

    moment: SecondMoment
    sketch: Sketch | None  # of the rows divided by `scales`; None if some rows were not seen
    scales: Any  # (p,): powers of two

    def merge(self, other: Passed) -> Passed:
        """Return what remains of the rows of both, those of `other` after those of this one."""
        moment = self.moment.merge(other.moment)
        if self.sketch is None or other.sketch is None:
            return Passed(moment, None, other.scales)
        return Passed(moment, self.sketch.merge(other.sketch), self.scales)


@dataclass
class PassedLeaf:
    """Function that returns what remains of a block of rows.

    The units of the columns of rows with targets are those of the first block, unless the blocks
    are summarised in parallel: sketches in different units cannot be joined.
    """

    pairs: bool  # whether the rows have targets
    scales: Any = None

    def __call__(self, rows: Any, targets: Any, weights: Any) -> Passed:
        """Return the moment and the sketch of one block."""
        if not self.pairs:
            return Passed(SecondMoment.of(rows, weights), Sketch.of(rows, weights), None)
        targets = as_columns(targets)
        if self.scales is None:
            self.scales = column_scales(rows, targets)
        sketch = sketch_pairs(rows, targets, weights, self.scales)
        return Passed(joint_moment(rows, targets, weights), sketch, self.scales)


def read_passed(
    data: AlignedBlocks,
    *,
    pairs: bool,
    start: SecondMoment | None = None,
    verbose: bool | str = "auto",
) -> Passed:
    """Return the second moment of data that are read in blocks, and the sketch of their rows."""
    scales = None
    if pairs and hasattr(data, "fold") and data.targets is not None:
        scales = np.ones(data.rows.n_features + data.targets.n_features)
    leaf = PassedLeaf(pairs, scales)
    before = None if start is None else Passed(start, None, None)
    found: Passed | None = fold(data, leaf, Passed.merge, start=before, verbose=verbose)
    if found is None:
        raise nothing_read(data)
    return found


class BlockProblem(NamedTuple):
    """Second moments of data that were read in blocks: a problem, and what remains of the rows."""

    problem: LinearProblem
    passed: Passed


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


def is_wide(X: Any) -> bool:
    """Tell whether a regression works on rows instead of on their second moment."""
    return bool(X.shape[0] < X.shape[1] and X.shape[1] > STORED_FEATURES)


def rows_problem(
    X: Any,
    Y: Any,
    weights: Array | None,
    *,
    centered: bool,
) -> tuple[LinearProblem, SecondMoment | RowMean]:
    """Return the problem of predicting Y from X, and the moment or mean of rows [x | y].

    With fewer rows than features the second moment is not formed. If that of the inputs is
    ill-conditioned, the rows are factorised.
    """
    mean: SecondMoment | RowMean
    few = few_rows(X, Y, weights, centered=centered)
    if few is not None:
        mean = few[0]
        problem = LinearProblem.from_rows(few[1], X.shape[1], mean.weight - centered)
    else:
        mean = moment = joint_moment(X, Y, weights)
        root = accurate_root(X, as_columns(Y), weights, moment, centered=centered)
        problem = LinearProblem.from_moment(moment, X.shape[1], centered=centered, root=root)
    precision = machine_epsilon(X.data if scipy.sparse.issparse(X) else X)
    return resolved(problem, mean, precision, centered=centered), mean


def accurate_root(
    X: Any, Y: Array, weights: Array | None, moment: SecondMoment, *, centered: bool
) -> Array | None:
    """Return the triangular factor of rows whose second moment is ill-conditioned, else None."""
    problem = LinearProblem.from_moment(moment, X.shape[1], centered=centered)
    if not is_ill_conditioned(problem):
        return None
    return row_root(X, Y, weights, moment, centered=centered)


def is_ill_conditioned(problem: LinearProblem) -> bool:
    """Tell whether the condition number of E[xxᵀ] exceeds `CONDITION`."""
    variances = namespace(problem.inputs).linalg.eigvalsh(problem.inputs)
    return not scalar(variances[0]) * CONDITION >= scalar(variances[-1])


def joint_moment(X: Any, Y: Any, weights: Array | None = None) -> SecondMoment:
    """Return the second moment of the rows of [X | Y]; a sparse X stays sparse."""
    Y = checked_columns(X, Y)
    moment = None
    for start in range(0, X.shape[0], BLOCK_ROWS):
        rows = slice(start, start + BLOCK_ROWS)
        part = None if weights is None else weights[rows]
        if part is None or bool(namespace(part).any(part > 0)):  # otherwise there is no mean
            block = SecondMoment.of(_joined(X, Y, rows), part)
            moment = block if moment is None else moment.merge(block)
    assert moment is not None
    # `SecondMoment` itself tests only the sum over all columns, in which one may be negligible.
    _refuse_underflow(diagonal(moment.squares), moment.mean, X.shape[1])
    return moment


def _joined(X: Any, Y: Array, rows: slice) -> Any:
    """Return the given rows of [X | Y], sparse if X is, in the wider dtype of the two."""
    if scipy.sparse.issparse(X):
        parts = [X[rows].astype(np.float64), scipy.sparse.csr_array(Y[rows])]
        return scipy.sparse.hstack(parts, format="csr")
    inputs, outputs = X[rows, :], beside(Y[rows, :], X)
    if inputs.dtype != outputs.dtype:  # a target in float64 keeps its digits beside float32 inputs
        inputs, outputs = as_double(inputs), as_double(outputs)
    return namespace(X).concat([inputs, outputs], axis=1)


def checked_columns(X: Any, Y: Any) -> Array:
    """Return the targets Y as columns; as many rows as X, and no squares that overflow."""
    Y = as_columns(Y)
    if Y.shape[0] != X.shape[0]:
        raise ValueError(
            f"X has {X.shape[0]} rows and y has {Y.shape[0]}: give one row of y per row of X."
        )
    if largest(Y) > LARGEST_ENTRY:
        check_rows(Y, name="y")  # infinity is not an overflow
        raise ValueError(
            f"the squares of y overflow double precision: its largest entry is {largest(Y):.3g}, "
            f"expected at most {LARGEST_ENTRY:g}. Divide y by a constant first."
        )
    return Y


def as_columns(Y: Any) -> Array:
    """Return targets of shape (n,) or (n, d) as a floating matrix with one column per target."""
    Y = as_float(Y if is_array(Y) else np.asarray(Y))
    return Y[:, None] if Y.ndim == 1 else Y


def _refuse_overflow(X: Any) -> None:
    """Raise an error if the square of an entry of X may overflow."""
    size = largest(X.data if scipy.sparse.issparse(X) else X)
    if size > LARGEST_ENTRY:
        raise ValueError(
            f"the squares of X overflow double precision: its largest entry is {size:.3g}, "
            f"expected at most {LARGEST_ENTRY:g}. Divide X by a constant first."
        )


def _refuse_underflow(squares: Array, mean: Array, n_features: int) -> None:
    """Raise an error if a column is not constant, but its sum of squares underflows."""
    sizes, center = np.sqrt(np.clip(to_numpy(squares), 0.0, None)), np.abs(to_numpy(mean))
    varies = (sizes > 1e-15 * center) | ((center > 0) & (center < SMALLEST_ENERGY**0.5))
    for column in np.flatnonzero(varies & (sizes**2 < SMALLEST_ENERGY)):
        name = f"column {column} of X" if column < n_features else "y"
        raise ValueError(
            f"the squares of {name} underflow double precision. Multiply it by a constant first."
        )


def row_root(
    X: Any, Y: Array, weights: Array | None, moment: SecondMoment, *, centered: bool
) -> Array:
    """Return the triangular factor F of the rows [x | y], for which FᵀF is their second moment.

    Blocks of rows are joined to the factor of the rows before them and factorised again, so that
    only one block is dense at a time. The mean is the sum of two vectors, which are subtracted one
    after the other to preserve deviations that are far smaller than the mean.
    """
    size = moment.n_features
    step = max(ROOT_ROWS, 2 * size)
    total = None
    for start in range(0, X.shape[0], step):
        rows = joined_rows(X, Y, slice(start, start + step), moment.center)
        if centered:
            rows = (rows - moment.center) - moment.offset
        xp = namespace(rows)
        if weights is not None:
            rows = rows * xp.sqrt(like(weights[start : start + step], rows))[:, None]
        rows = rows / moment.weight**0.5
        total = triangle(rows if total is None else xp.concat([total, rows], axis=0))
    return total * varying(diagonal(moment.covariance), moment.mean) if centered else total


def joined_rows(X: Any, Y: Array, rows: slice, ref: Array) -> Array:
    """Return the given rows of [X | Y] as one dense float64 array, in the library of `ref`."""
    inputs = X[rows].toarray() if scipy.sparse.issparse(X) else X[rows, :]
    return namespace(ref).concat([like(inputs, ref), like(Y[rows, :], ref)], axis=1)


def take_rows(values: Any, rows: np.ndarray[Any, Any]) -> Any:
    """Return the rows with the given indices of an array of any library, or a sparse matrix."""
    if scipy.sparse.issparse(values):
        return values[rows]
    xp = namespace(values)
    return xp.take(values, xp.asarray(rows, device=device(values)), axis=0)


def row_factor(X: Any, Y: Any, weights: Array | None, *, centered: bool) -> tuple[RowMean, Array]:
    """Return the mean of the rows [x | y], and F with FᵀF = E[(x, y)(x, y)ᵀ]: the scaled rows.

    The mean is the sum of two vectors, so that deviations far smaller than it keep their digits.
    """
    Y = checked_columns(X, Y)
    _refuse_overflow(X)
    ref = as_double(reference_array(X))
    xp, n = namespace(ref), X.shape[0]
    rows = joined_rows(X, Y, slice(0, n), ref)
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
    _refuse_underflow(squares, center + offset, X.shape[1])
    spread = xp.sqrt(squares if centered else xp.clip(squares - center * center, 0.0, None))
    if centered:
        rows *= varying(squares, center)
    return RowMean(total, center, offset, spread), rows


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
    _refuse_overflow(rows)
    mean, outputs = rows.T @ share, share @ Y
    # Σ share (x − mean)² over the stored entries, and mean² times the share of the other entries.
    each = np.repeat(share, np.diff(rows.indptr))
    away = each * (rows.data - mean[rows.indices]) ** 2
    stored = np.bincount(rows.indices, minlength=m)
    empty = 1.0 - np.bincount(rows.indices, weights=each, minlength=m)
    empty = np.where(stored == n, 0.0, np.clip(empty, 0.0, None))
    spread = np.bincount(rows.indices, weights=away, minlength=m) + empty * mean**2
    squares = spread if centered else spread + mean**2
    rows.data *= np.sqrt(each)
    deviations = Y - outputs
    offset = share @ deviations
    targets = (deviations - offset if centered else Y) * np.sqrt(share)[:, None]
    beside = (targets**2).sum(axis=0)
    means = np.concatenate([mean, outputs])
    _refuse_underflow(np.concatenate([squares, beside]), means, m)
    if centered:
        targets = targets * varying(beside, outputs)
        kept = varying(squares, mean)
        rows.data *= kept[rows.indices]
        squares = squares * kept
    found = RowMean(
        total,
        means,
        np.concatenate([0.0 * mean, offset * centered]),
        np.sqrt(np.concatenate([spread, share @ (deviations - offset) ** 2])),
    )
    center = mean * kept if centered else 0.0 * mean
    entries = (rows.data, rows.indices, rows.indptr)
    return found, WideRows(targets, squares, None, entries, np.sqrt(share), center, centered)


def few_rows(
    X: Any, Y: Any, weights: Array | None, *, centered: bool, products: bool = True
) -> tuple[RowMean, Array | WideRows] | None:
    """Return the mean of rows [x | y], and the rows, if a regression works on them: see `is_wide`.

    They are `WideRows`, unless `products` is False or would lose digits (a large mean, an
    ill-conditioned Gram matrix) of at most `LARGEST_COPY` entries: then they are to be factorised.
    """
    if not is_wide(X):
        return None
    small = X.shape[0] * X.shape[1] <= LARGEST_COPY
    if products and scipy.sparse.issparse(X):
        mean, rows = sparse_rows(X, Y, weights, centered=centered)
        size = 0.0 if rows.mean is None else float(rows.mean @ rows.mean)
        far = size > LARGE_MEAN * float(rows.squares.sum())
        if not small or not (far or _loses_digits(rows.gram())):
            return mean, rows
    mean, factor = row_factor(X, Y, weights, centered=centered)
    if products and not scipy.sparse.issparse(X):
        inward, outward = factor[:, : X.shape[1]], factor[:, X.shape[1] :]
        rows = WideRows(outward, squared_norms(inward, axis=-2), inward, centered=centered)
        if not small or not _loses_digits(rows.gram()):
            return mean, rows
    return mean, factor


def _loses_digits(gram: Array) -> bool:
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


def read_problem(
    data: AlignedBlocks,
    *,
    centered: bool,
    start: SecondMoment | None = None,
    verbose: bool | str = "auto",
) -> BlockProblem:
    """Return the second moments of data that are read in blocks, after the rows of `start`.

    If they are ill-conditioned, the data are read again and a QR factorisation is computed block by
    block. An iterator can be read once only, so that its moment alone is used.
    """
    passed = read_passed(data, pairs=True, start=start, verbose=verbose)
    moment = passed.moment
    problem = LinearProblem.from_moment(moment, data.rows.n_features, centered=centered)
    if start is None and data.repeatable and is_ill_conditioned(problem):
        factor = partial(row_root, moment=moment, centered=centered)
        problem = replace(problem, root=fold(data, factor, _stacked_root, verbose=verbose))
    return BlockProblem(problem, passed)


def _stacked_root(first: Array, second: Array) -> Array:
    """Return the triangular factor R of a QR factorisation of `first` stacked on `second`."""
    return triangle(namespace(first).concat([first, second], axis=0))


def mean_of(source: RowOperator) -> RowMean:
    """Return weight and mean of the rows of a source; deviations are not computed."""
    zeros = 0.0 * source.mean
    return RowMean(source.weight, source.mean, zeros, zeros)
