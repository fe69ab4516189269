"""Streams of batches: their exact second moment, or one step of descent for each batch.

Threads share a product of rows as `fit` divides it only if there are enough rows. So batches of few
rows are copied into a buffer, and their products are computed together with those of the batch for
which the buffer has no space, or when the moment is needed. The m × m matrix of the earlier rows is
then added once, not for every batch.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lucidae.arrays import Array, as_double, is_numpy, namespace, scalar
from lucidae.arrays.eigen import orthonormal_rows
from lucidae.arrays.threads import one_thread
from lucidae.iteration import History, Status
from lucidae.linear.methods import Method, Options
from lucidae.linear.model import Model, TrainedWeights, build_model
from lucidae.linear.solvers import (
    Stream,
    batch_noise,
    batch_step,
    random_start,
    resolve_components,
    stiffness,
)
from lucidae.moments import SMALLEST_SCATTER, SecondMoment
from lucidae.rows.covariances import Covariance, ritz_spectrum, rows_covariance
from lucidae.rows.operator import RowOperator
from lucidae.rows.spectrum import Spectrum

BUFFERED_ROWS = 8
"""Number of rows of the buffer divided by the number m of features: the buffer has 8m² entries."""

BUFFERED_ENTRIES = 2**22
"""Largest number of entries of the buffer, which then takes 32 mebibytes."""

COPIED_ROWS = 128
"""Number of rows that are copied at a time, and squared while they are in the cache."""

LARGEST_SQUARES = 1e200
"""Largest sum of squares of rows in the buffer; the moment of larger ones is computed at once,
which shows whether it overflows."""

HORIZON = 200.0
"""Number of batches after which the step size has halved."""

MEMORY = 20
"""Number of recent batches over which the covariance of the latents is averaged."""


FIRST_PRODUCTS = 2**30
"""Largest number of multiplications of a first batch for which BLAS uses one thread (30 ms)."""


def first_moment(X: Any, weights: Array | None) -> SecondMoment:
    """Return the second moment of the first batch of a stream, of rows X (n, m) with weights.

    Threads of BLAS would wait actively for some hundredths of a second after the product of a small
    batch, while Python threads multiply the next rows.
    """
    few = X.shape[0] * X.shape[1] ** 2 <= FIRST_PRODUCTS
    with one_thread() if few else nullcontext():
        return SecondMoment.of(X, weights)


class _Buffer:
    """Rows of a stream with m features, to which batches are appended.

    Several values of `RunningMoment` use the same buffer. Each of them owns the rows up to its own
    count, which are never changed.
    """

    def __init__(self, m: int) -> None:
        self.n_rows, self._m = min(BUFFERED_ROWS * m, BUFFERED_ENTRIES // m), m
        self._takers: dict[int, object] = {}

    def take(self, first: int, count: int) -> Array | None:
        """Return the rows `first` to `first + count` − 1, to be written by this caller alone."""
        taker = object()
        # `setdefault` is one operation also where several threads call it.
        if self._takers.setdefault(first, taker) is not taker:
            return None
        if first == 0:
            self.rows = np.empty((self.n_rows, self._m))
        return self.rows[first : first + count]


def _copied(X: Array, rows: Array) -> float:
    """Copy the entries of X to `rows`, and return the sum of their squares."""
    squares = 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for first in range(0, len(X), COPIED_ROWS):
            part = rows[first : first + COPIED_ROWS]
            part[...] = X[first : first + COPIED_ROWS]
            # One product for each row: those of all entries would be divided among BLAS threads.
            squares += float(np.sum(np.vecdot(part, part)))
    return squares


@dataclass(frozen=True, slots=True, eq=False)
class RunningMoment:
    """The second moment of earlier rows, and rows that are not yet included in it.

    `begin` returns one without such rows. `after` returns a new value and does not change this one.
    """

    before: SecondMoment  # second moment of the earlier rows
    scatter: float  # sum of squared distances of the earlier rows from their mean
    squares: float  # sum of squared norms of all rows, the earlier ones and those in the buffer
    buffer: _Buffer  # rows that are not yet included in `before`
    count: int = 0  # number of these rows; other rows in the buffer do not belong to this stream

    @classmethod
    def begin(cls, moment: SecondMoment) -> RunningMoment:
        """Return the running moment of rows whose second moment is known."""
        mean, scatter = moment.mean, moment.trace * moment.weight
        with np.errstate(over="ignore"):
            squares = scatter + moment.weight * scalar(namespace(mean).sum(mean * mean))
        return cls(moment, scatter, squares, _Buffer(moment.n_features))

    def after(self, X: Any) -> RunningMoment | None:
        """Return the running moment after one more batch of rows X (n, m), which are copied.

        The result is None if the batch must be added to the second moment by
        `SecondMoment.update`: because it is larger than the buffer or not a dense array of NumPy,
        or because its squares, or those of all earlier rows, may overflow or underflow. This
        includes rows with NaN or infinity, for which an error is raised there.
        """
        if not (is_numpy(X) and is_numpy(self.before.center) and len(X) <= self.buffer.n_rows):
            return None
        # Sums of squares that grow from such a number do not underflow.
        if not self.scatter > SMALLEST_SCATTER / np.finfo(float).eps:
            return None
        if self.count + len(X) > self.buffer.n_rows:
            return self.begin(self.total()._add_rows(X, None))
        rows = self.buffer.take(self.count, len(X))
        if rows is None:  # by another estimator that continues from the same rows
            return self.begin(self.total()).after(X)
        squares = self.squares + _copied(X, rows)
        if not squares < LARGEST_SQUARES:
            return None
        return replace(self, squares=squares, count=self.count + len(X))

    @property
    def _rows(self) -> Array:
        return self.buffer.rows[: self.count]

    @property
    def weight(self) -> float:
        """Sum of the weights of all rows."""
        return self.before.weight + self.count

    @property
    def variance_bounds(self) -> tuple[float, float]:
        """A lower and an upper bound on the total variance of all rows.

        The sum of squared distances of rows from their mean does not decrease if rows are added,
        and it is at most the sum of their squared norms.
        """
        return self.scatter / self.weight, self.squares / self.weight

    def total(self) -> SecondMoment:
        """Return the second moment of all rows."""
        return self.before._add_rows(self._rows, None) if self.count else self.before


@dataclass(frozen=True, slots=True)
class LowRankCovariance:
    """The approximation QMQᵀ + s²(I − QQᵀ) of the second moment of the data (m × m).

    Q has orthonormal columns, M is the second moment in their span, and s² is the variance in every
    direction orthogonal to them; it follows from the trace.
    """

    basis: Array  # (m, r): the columns Q
    inside: Array  # (r, r): the matrix M
    trace: float  # total variance: the trace of the approximation

    @property
    def n_features(self) -> int:
        """Number of features of the data."""
        return int(self.basis.shape[0])

    def apply(self, rows: Array) -> Array:
        """Return the product of `rows`, of shape (…, k, m), with the approximated second moment."""
        xp = namespace(rows)
        outside = self.n_features - self.basis.shape[1]
        captured = scalar(xp.linalg.trace(self.inside))
        level = max(0.0, self.trace - captured) / outside if outside else 0.0
        codes = rows @ self.basis
        return codes @ self.inside @ self.basis.mT + level * (rows - codes @ self.basis.mT)


@dataclass(frozen=True, slots=True)
class StreamFit:
    """State of training on a stream of batches: weights, optimizer, running mean and variances.

    `after` returns the state after one more batch and leaves this one unchanged.
    """

    options: Options  # the checked arguments of the estimator
    method: Method  # the training method
    state: Stream  # weights, state of the optimizer and number of steps
    mean: Array  # (m,): mean of the rows seen
    weight: float  # sum of the weights of the rows seen
    variance: float  # weighted sum of the squared distances of the rows seen from their mean
    curvature: float  # largest bound on the curvature of the batches seen, for the step size
    # (k, k): running average of the covariance of the batches in an orthonormal basis of the span
    # of the decoder's columns
    inside: Array

    @classmethod
    def begin(cls, options: Options, X: Any, weights: Array | None) -> StreamFit:
        """Return the state before the first batch, with random weights.

        The batch X (n, m) is used only to choose the number of latents and automatic penalties, not
        for training.
        """
        source = RowOperator.of(X, weights)
        k = resolve_components(options.n_components, source, None)
        rng = options.rng()
        spectrum = _first_spectrum(options, source, k)
        method = options.make(k, spectrum, rng)
        start = random_start(method, k, source.n_features, options.init_scale, rng, source.mean)
        first = Stream(options.training.build(1.0).start(start), 0)
        inside = 0.0 * (start.atoms @ start.atoms.mT)
        return cls(options, method, first, 0.0 * source.mean, 0.0, 0.0, 0.0, inside)

    @classmethod
    def resume(cls, options: Options, model: Model) -> StreamFit:
        """Return the state with which training continues from a fitted model.

        The weights, the mean and the variances are those of the model.
        """
        outcome = model.outcome
        weights = outcome.method.adopt(outcome.weights)
        state = Stream(options.training.build(1.0).start(weights), outcome.n_iter)
        share = model.degrees / model.weight
        known = LowRankCovariance(model.basis, model.inside * share, model.total_variance * share)
        return cls(
            options,
            outcome.method,
            state,
            model.mean,
            model.weight,
            model.total_variance * model.degrees,
            0.0,
            _inside(orthonormal_rows(as_double(weights.atoms)), known),
        )

    def check_continued(self, options: Options) -> None:
        """Raise an error if method or number of latents differ from those of earlier batches."""
        k = int(self.state.weights.encoder.shape[-2])
        wanted = options.n_components if isinstance(options.n_components, int) else k
        if wanted != k or options.method != self.method.name:
            raise ValueError(
                f"n_components={options.n_components} and method={options.method!r} were given, "
                f"but training was started with {k} latents by method={self.method.name!r}. Give "
                "the same values as for the earlier batches, or start a new estimator."
            )

    def after(self, X: Any, weights: Array | None) -> StreamFit:
        """Return the state after one step of descent on a batch of rows X (n, m)."""
        source = RowOperator.of(X, weights)
        total = self.weight + source.weight
        shift = source.mean - self.mean
        xp = namespace(shift)
        mean = self.mean + shift * (source.weight / total)
        # Sums of squares about two means merge by one term in their difference (Chan et al. 1983).
        between = 0.0
        if self.weight > 0.0:
            with np.errstate(over="ignore"):
                between = scalar(xp.sum(shift * shift)) * self.weight * source.weight / total
            if not math.isfinite(between):
                raise ValueError(
                    "the squared distance of the mean of X from the mean of earlier batches "
                    "overflows double precision. Divide X by a constant, and start a new estimator."
                )
        variance = self.variance + source.trace * source.weight + between
        batch = rows_covariance(X, mean, source.shares)
        training, rows = self.options.training, X.shape[0]
        noise = batch_noise(rows, rows + 1, training)
        stiff = stiffness(self.method, batch, self.state.weights, noise)
        # A first batch of one row has no variance, and no curvature can be estimated from it.
        curvature = max(self.curvature, stiff.curvature if batch.trace > 0.0 else 0.0)
        optimizer = training.build(curvature or 1.0)
        method = deepcopy(self.method)  # a rule that samples changes its generator at each step
        state = batch_step(method, optimizer, self.state, batch, HORIZON)
        inside = _inside(orthonormal_rows(as_double(state.weights.atoms)), batch)
        # A plain average of the first batches, then an exponential one: old weights are forgotten.
        share = 1.0 / min(state.steps, MEMORY)
        return StreamFit(
            self.options,
            method,
            state,
            mean,
            total,
            variance,
            curvature,
            self.inside + share * (inside - self.inside),
        )

    def model(self) -> Model:
        """Return the model with the current weights; its status is `Status.STOPPED`."""
        outcome = TrainedWeights(
            self.state.weights,
            self.method,
            Status.STOPPED,
            max(1, self.state.steps),
            History(np.empty(0, dtype=int)),
            self.options.training.rate(self.curvature or 1.0),
        )
        basis = orthonormal_rows(as_double(self.state.weights.atoms)).mT
        known = LowRankCovariance(basis, self.inside, self.variance / self.weight)
        return build_model(outcome, self.mean, self.weight, known)


def _first_spectrum(options: Options, source: RowOperator, k: int) -> Spectrum | None:
    if not options.needs_spectrum:
        return None
    return ritz_spectrum(source, k, source.mean)


def _inside(basis: Array, batch: Covariance) -> Array:
    """Return the second moment of a batch in an orthonormal basis: BΣBᵀ, of shape (k, k).

    B (k, m) are the orthonormal rows `basis`, and Σ (m, m) is the second moment `batch`.
    """
    inside = batch.apply(basis) @ basis.mT
    return (inside + inside.mT) / 2
