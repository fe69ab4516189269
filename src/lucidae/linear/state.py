"""The fitted state of `LinearAutoencoder`: summary of the data, trained model, certificate.

The summary is the second moment of the data, or the running averages of a stream of batches, each
of which makes one step of descent.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np

from lucidae.arrays import Array, as_double, fields_beside, is_array, like, namespace, to_numpy
from lucidae.arrays.threads import fork_safe
from lucidae.base import FittedState, changed_attributes
from lucidae.certificates.claims import Certificate, undecided
from lucidae.certificates.rows import SMALL_ROWS, Data, GivenRows, RereadRows
from lucidae.certificates.sketch import Sketch
from lucidae.iteration.progress import TIMED_FEATURES, elapsed
from lucidae.linear.certify import data_of_rows
from lucidae.linear.claims import LinearFigures, certificate
from lucidae.linear.methods import Model, Options
from lucidae.linear.missing import ObservedGaussian, fit_observed, gaussian_of
from lucidae.linear.solvers import StreamFit, closed_form, latents_counted, solve
from lucidae.linear.verify import ObservedFigures, observed_figures
from lucidae.moments import SecondMoment
from lucidae.rows.operator import (
    CHANGED_ROWS,
    EXACT_FEATURES,
    STORED_FEATURES,
    BlockRows,
    MomentRows,
    RowOperator,
    TrainingRows,
)
from lucidae.spectrum import leading

__all__ = ["LinearState"]

CERTIFIED_STREAM_FEATURES = 256
"""Largest number of features for which training on a stream of batches also stores the second
moment of all rows, for the certificate; the matrix then takes half a mebibyte."""

_READING = fork_safe(threading.RLock())
"""Lock under which moments and certificates are computed from training rows, which are released
afterwards: another thread that reads at the same time must wait."""


class LinearState(FittedState):
    """Fitted state of `LinearAutoencoder`: a summary of the data, and the fitted model."""

    def __init__(self, options: Options, reference: Array, weight: float = math.inf) -> None:
        if weight <= 1.0:  # the sum of the weights of all rows, if all are fitted at once
            raise ValueError(
                f"sample_weight sums to {weight:g}, expected a sum above 1, because weights are "
                "frequencies. Multiply the weights so that they sum to the number of samples."
            )
        self.options = options
        self.reference = reference  # an empty array of the library, dtype and device of the rows
        self.previous: Any = None  # weights of the last fit, for a warm start
        self.stream: StreamFit | None = None  # of descent on a stream of batches
        # parameters that were estimated from rows with missing entries
        self.observed: ObservedGaussian | None = None
        self._model: Model | None = None
        self._moment: SecondMoment | None = None  # of all rows, if it is small
        self._rounding = 0.0  # of the second moment that was fitted, which may not be stored
        self._sketch: Sketch | None = None  # of all rows, which tests the second moment
        # whether the second moment was given without rows, and is taken as data
        self._given = False
        self._rows: TrainingRows | None = None

    def solve(self, data: RowOperator, title: str, sketch: Sketch | None = None) -> None:
        """Fit the model to data, and store what the certificate needs.

        That is a copy of small rows, or of rows that are smaller than their second moment; of
        larger ones the second moment, if it is small, and a reference to the rows. Of rows to which
        nobody may refer, a sketch tests the second moment. If none of these can be stored, the
        certificate is computed now.
        """
        self._model = solve(self.options, data, self.previous)
        self.previous = self._model.outcome.weights
        small, moment = data.n_features <= STORED_FEATURES, data.moment
        self._rows, self._sketch = None, sketch if small else None
        self._rounding = 0.0 if moment is None else moment.rounding
        self._moment, rows = moment if small else None, data.rows
        again: GivenRows | RereadRows | None = None
        self._given = rows is None and sketch is None and moment is not None
        if rows is not None:
            copied = small and moment is None and not self.options.draws_rows
            if copied or math.prod(rows.shape) <= SMALL_ROWS:
                self._rows = TrainingRows.copied(rows, data.weights, title)
                return
            self._rows = TrainingRows.referenced(rows, data.weights, title, moment)
            if self._rows is not None:
                return
            again = GivenRows(rows, data.weights)
            if self._moment is not None:
                sketch = self._sketch = Sketch.of(rows, data.weights)
        elif isinstance(data, BlockRows):
            again = RereadRows(data.passes, data.n_features)
        # Where rounding errors of the second moment hide components of small variance, the fit used
        # the rows beside it (`lucidae.spectrum`), and the certificate must too.
        spectrum = self._model.spectrum
        refined = spectrum is not None and spectrum.beyond is not None
        if self._moment is None or (refined and again is not None):
            self._certificate = self.certify(data_of_rows(again, moment, sketch), title)

    def after(self, options: Options, X: Any, weights: Array | None) -> LinearState:
        """Return a new state that includes one more batch of rows X (n, m) with their weights.

        This state is not changed. The model of the new state is computed when it is first read.
        """
        state = LinearState(options, self.reference)
        state.previous, state.doubt = self.previous, self.doubt
        before = self.moment
        first = self._model is None and self.stream is None and before is None
        # 1) One step of descent, or the second moment of all rows.
        m, known = X.shape[1], first or before is not None
        if options.draws_rows or m > EXACT_FEATURES:
            if first:
                stream = StreamFit.begin(options, X, weights)
            else:
                stream = self.stream or StreamFit.resume(options, self.model)
                stream.check_continued(options)
            state.stream = stream.after(X, weights)
            known = known and m <= CERTIFIED_STREAM_FEATURES
        elif self.stream is not None or not known:
            raise ValueError(
                "the second moment of the earlier rows is not stored: they were given to "
                f"solver='stochastic', or to fit with {m} features. Keep solver='stochastic', or "
                "start a new estimator and give all batches to partial_fit."
            )
        if not known:
            return state
        state._moment = SecondMoment._of_rows(X, weights, before)
        # 2) The sketch of all rows, unless that of earlier ones is lost.
        earlier = None if first else self.saved_sketch()
        if earlier is None and self._given and before is not None:
            earlier = Sketch.given(before.mean, before.covariance, before.weight)
        if first:
            state._sketch = Sketch.of(X, weights)
        elif earlier is not None:
            state._sketch = earlier.update(X, weights)
        return state

    def saved_sketch(self) -> Sketch | None:
        """Return the sketch of all rows, which small rows that are still known do not have yet."""
        rows = self._rows
        if self._sketch is None and rows is not None and rows.unchanged:
            return Sketch.of(*rows.given)
        return self._sketch

    def solve_observed(
        self, X: Array, weights: Array | None, previous: ObservedGaussian | None
    ) -> None:
        """Fit the model to rows X (n, m) with missing entries by maximum likelihood.

        The method's closed form is computed from mean and covariance of the fitted probabilistic
        PCA. The rows are not stored: the caller computes the certificate at once.
        """
        found = fit_observed(X, weights, self.options.n_components, self.options, previous)
        found.warn()
        if found.criterion is not None:
            latents_counted(found.criterion)
        self.observed = gaussian = found.gaussian
        k = found.n_components
        spectrum = gaussian.spectrum(min(k + 1, gaussian.mean.shape[0]))
        model = closed_form(self.options, k, spectrum, gaussian)
        status, n_iter = found.ended.status, max(1, found.ended.n_iter)
        outcome = replace(model.outcome, status=status, n_iter=n_iter, history=found.history)
        self._model = replace(model, outcome=outcome, count=found.criterion)

    def certify_observed(self, X: Any, weights: Any, title: str) -> Certificate:
        """Return the certificate of a fit to rows X (n, m) with missing entries.

        If X is None, the parameters are not judged.
        """
        model = fields_beside(self.parameters, np.empty(0))
        encoder = to_numpy(as_double(self.model.encoder))
        converged = self.observed is None or self.model.outcome.status.ok
        data, found = observed_figures(model, encoder, X, weights, converged)
        return self.certify(data, title, found)

    @property
    def parameters(self) -> ObservedGaussian:
        """Parameters of probabilistic PCA from which missing entries are predicted.

        They were estimated from rows with missing entries or, for complete rows, follow from the
        model.
        """
        return self.observed or gaussian_of(self.model, maximum_likelihood=True)

    def check_range(self) -> None:
        """Raise a ValueError if the total variance is outside the range of the data's dtype."""
        limits = namespace(self.reference).finfo(self.reference.dtype)
        low, high = float(limits.smallest_normal), float(limits.max)
        if self._model is not None:
            variance = self._model.total_variance
        elif self.stream is not None:
            variance = self.stream.variance / max(self.stream.weight - 1.0, 1.0)
        else:
            assert self.moment is not None, "a fitted state contains a model, a moment or a stream"
            variance = self.moment.trace
        if variance > 0.0 and not low <= variance <= high:
            small = variance < 1.0
            raise ValueError(
                f"the variance of X is {variance:.3g}, which is {'below' if small else 'above'} "
                f"the range of its dtype {self.reference.dtype}. Give X as float64, or "
                f"{'multiply' if small else 'divide'} it by a constant first."
            )

    @property
    def moment(self) -> SecondMoment | None:
        """Second moment of all rows, computed from stored rows when it is first read.

        It is None if it is not known.
        """
        with _READING:
            rows = None if self.options.draws_rows else self._rows
            copied = rows is not None and rows.stored and rows.rows.shape[1] <= STORED_FEATURES
            if self._moment is None and rows is not None and copied:
                self._moment = SecondMoment.of(rows.rows, rows.weights)
            return self._moment

    @property
    def model(self) -> Model:
        """The fitted model; it is computed when it is first read."""
        if self._model is None:
            if self.stream is not None:
                self._model = self.stream.model()
            else:
                assert self.moment is not None, "a state contains a model, a moment or a stream"
                many = self.moment.n_features >= TIMED_FEATURES
                shown = self.options.verbose
                with elapsed("solving", shown) if many else nullcontext():
                    self._model = solve(self.options, MomentRows(self.moment), self.previous)
                self.previous = self._model.outcome.weights
        return self._model

    @property
    def eigenvalues(self) -> np.ndarray[Any, Any] | None:
        """All m eigenvalues of the second moment, for displays; None if they are not known.

        Those below their rounding error are 0. The divisor is the total weight.
        """
        if self.stream is not None:
            return None
        spectrum = self.model.spectrum
        if spectrum is None or isinstance(self.options.n_components, int):
            spectrum = None if self.moment is None else leading(MomentRows(self.moment), None)
        return None if spectrum is None else spectrum.resolved(spectrum.n_features)

    @property
    def weight(self) -> float:
        """Sum of the weights of all rows seen; reading it does not compute the model."""
        if self._model is None and self.moment is not None:
            return self.moment.weight
        return self.model.weight

    @property
    def keeps_certificate(self) -> bool:
        """Whether a certificate that was computed is saved: always, as its rows are not."""
        return True

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes that pickle writes; what needs training rows is computed now."""
        if self._rows is not None:
            self.certificate(self._rows.title)
        known = {"_moment": self.moment, "_sketch": self.saved_sketch(), "_rows": None}
        return super().__getstate__() | known

    def compute_attributes(self) -> dict[str, Any]:
        """Return the fitted attributes of the estimator, such as ``components_``, by name."""
        model = self.model
        total, degrees = model.total_variance, model.degrees
        share = model.variances / total if total > 0 else 0.0 * model.variances
        singular = namespace(model.variances).sqrt(model.variances * degrees)
        return {
            "mean_": self.returned(model.mean),
            "encoder_": self.returned(model.encoder),
            "decoder_": self.returned(model.atoms.mT),
            "components_": self.returned(model.components),
            "explained_variance_": self.returned(model.variances),
            "explained_variance_ratio_": self.returned(share),
            "singular_values_": self.returned(singular),
            "noise_variance_": model.noise_variance,
            "n_components_": int(model.components.shape[0]),
            "n_iter_": model.outcome.n_iter,
            "status_": model.outcome.status,
            "history_": model.outcome.history,
        }

    def certificate(self, title: str) -> Certificate:
        """Return the certificate, computed by the first thread that reads it; see `FittedState`."""
        if self._certificate is None or self.doubt is not None:
            with _READING:
                return super().certificate(title)
        return self._certificate

    def compute_certificate(self, title: str) -> Certificate:
        """Return the certificate of the model on the stored second moment.

        If no second moment is stored, its only claim is undecided and says what to do.
        """
        if self.observed is not None:
            return self.certify_observed(None, None, title)
        rows = self._rows
        if rows is not None and rows.unchanged:
            if self._moment is not None and not rows.stored:  # it remains when the rows are gone
                self._sketch = self.saved_sketch()
            moment = rows.moment or self._moment
            data = data_of_rows(GivenRows(*rows.given), moment, self._sketch)
            found = self.certify(data, title)
            if rows.unchanged:  # while the certificate was computed as well
                self._rows = rows if rows.stored else None
                return found
        self._rows = None
        if self.moment is not None and rows is None:
            origin = "given" if self._given else "lost"
            return self.certify(data_of_rows(None, self.moment, self._sketch, origin), title)
        why = CHANGED_ROWS
        if rows is None:
            why = (
                "The rows given to partial_fit were not stored: call lucidae.certify(estimator, X) "
                "with all rows X."
            )
        claim = undecided("optimum", "the fitted weights are optimal", "", why)
        return Certificate(title, (claim,))

    def certify(
        self, data: Data, title: str, observed: ObservedFigures | None = None
    ) -> Certificate:
        """Return the certificate of the fitted model on the given data.

        `observed` is what rows with missing entries say of it.
        """
        model, outcome = self.model, self.model.outcome
        wanted, stored = self.options.n_components, self._moment
        if self.observed is not None and not isinstance(wanted, int):
            wanted = int(model.encoder.shape[0])  # its meaning depends on the rows, not on Σ
        figures = LinearFigures(
            outcome.method,
            outcome.weights,
            data,
            self.options,
            outcome.learning_rate,
            model,
            wanted,
            # The variances of a stream are running averages, which no data reproduce.
            running=self.stream is not None,
            fit_rounding=self._rounding if stored is None else stored.rounding,
            observed=observed,
            shown={
                name: to_numpy(value) if is_array(value) else value
                for name, value in self.compute_attributes().items()
            },
        )
        missing = "" if observed is None else ", handle_missing='em'"
        return certificate(f"{title}(method={self.options.method!r}{missing})", figures)

    def returned(self, values: Array) -> Array:
        """Return a copy of `values` in the library, dtype and on the device of the training data.

        Because it is a copy, a user who writes into an attribute does not change the fitted state.
        """
        converted = like(values, self.reference)
        return namespace(converted).asarray(converted, copy=True)

    def changed_attributes(self, given: Mapping[str, Any]) -> dict[str, float]:
        """Return the fitted attributes that a user changed, each with its relative difference.

        Attributes whose arrays were changed in place are found as well. ``history_`` is not
        compared, because nothing is computed from it.
        """
        shown = dict(self._attributes or {}) | dict(given)
        shown.pop("history_", None)
        return changed_attributes(shown, self.compute_attributes()) if shown else {}
