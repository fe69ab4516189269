"""Streams of batches: one step of descent for each batch."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np

from lucidae.arrays import Array, as_double, namespace, scalar
from lucidae.arrays.eigen import orthonormal_rows
from lucidae.iteration import History, Status
from lucidae.linear.methods import Method, Options
from lucidae.linear.model import Model, TrainedWeights
from lucidae.linear.solvers import (
    Stream,
    batch_noise,
    batch_step,
    build_model,
    random_start,
    resolve_components,
    stiffness,
)
from lucidae.rows.covariances import Covariance, rows_covariance
from lucidae.rows.operator import RowOperator
from lucidae.spectrum import Spectrum, ritz_spectrum

HORIZON = 200.0
"""Number of batches after which the step size has halved."""

MEMORY = 20
"""Number of recent batches over which the covariance of the latents is averaged."""


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
