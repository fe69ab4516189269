"""The fitted state of `LinearAutoencoder`: summary of the data, trained model, certificate.

The summary is the second moment of the data, or the running averages of a stream of batches, each
of which makes one step of descent.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lucidae.arrays import Array, as_double, fields_beside, is_array, like, namespace, to_numpy
from lucidae.arrays.threads import fork_safe
from lucidae.base import FittedState, changed_attributes, reference_array
from lucidae.certificates.claims import Certificate, undecided
from lucidae.certificates.rows import SMALL_ROWS, Data
from lucidae.certificates.sketch import Sketch
from lucidae.iteration.progress import TIMED_FEATURES, elapsed
from lucidae.linear.certify import data_of
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
    MomentRows,
    RowOperator,
    TrainingRows,
)
from lucidae.spectrum import leading

CERTIFIED_STREAM_FEATURES = 256
"""Largest number of features for which training on a stream of batches also stores the second
moment of all rows, for the certificate; the matrix then takes half a mebibyte."""

_READING = fork_safe(threading.RLock())
"""Lock under which moments and certificates are computed from training rows, which are released
afterwards: another thread that reads at the same time must wait."""


@dataclass(eq=False, repr=False)
class LinearState(FittedState):
    """Fitted state of `LinearAutoencoder`: what is known of all rows, and the fitted model.

    It is made at once, by `fitted_to`, `fitted_to_observed` or `updated`. Two fields that these
    leave open are computed when they are first read: `solution` by `model`, and `sums` by `moment`.
    """

    options: Options
    reference: Array  # an empty array of the library, dtype and device of the rows
    solution: Model | None = None  # the model; None after a batch, until it is first read
    sums: SecondMoment | None = None  # second moment of all rows, if it is small
    rounding: float = 0.0  # of the second moment that was fitted, which may not be stored
    sketch: Sketch | None = None  # of all rows, which tests the second moment
    # where a second moment comes from that no sketch tests (`Data.origin`)
    origin: str = "lost"
    rows: TrainingRows | None = None  # training rows, until the certificate is computed
    previous: Any = None  # weights of the last fit, for a warm start
    stream: StreamFit | None = None  # of descent on a stream of batches
    # parameters that were estimated from rows with missing entries
    observed: ObservedGaussian | None = None

    def __post_init__(self) -> None:
        """Raise a ValueError if the total variance is outside the range of the data's dtype."""
        limits = namespace(self.reference).finfo(self.reference.dtype)
        low, high = float(limits.smallest_normal), float(limits.max)
        if self.solution is not None:
            variance = self.solution.total_variance
        elif self.stream is not None:
            variance = self.stream.variance / max(self.stream.weight - 1.0, 1.0)
        else:
            assert self.sums is not None, "a fitted state contains a model, a moment or a stream"
            variance = self.sums.trace
        if variance > 0.0 and not low <= variance <= high:
            small = variance < 1.0
            raise ValueError(
                f"the variance of X is {variance:.3g}, which is {'below' if small else 'above'} "
                f"the range of its dtype {self.reference.dtype}. Give X as float64, or "
                f"{'multiply' if small else 'divide'} it by a constant first."
            )

    def saved_sketch(self) -> Sketch | None:
        """Return the sketch of all rows, which small rows that are still known do not have yet."""
        rows = self.rows
        if self.sketch is None and rows is not None and rows.unchanged:
            return Sketch.of(*rows.given)
        return self.sketch

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

    @property
    def moment(self) -> SecondMoment | None:
        """Second moment of all rows, computed from stored rows when it is first read.

        It is None if it is not known.
        """
        with _READING:
            rows = None if self.options.draws_rows else self.rows
            copied = rows is not None and rows.stored and rows.rows.shape[1] <= STORED_FEATURES
            if self.sums is None and rows is not None and copied:
                self.sums = SecondMoment.of(rows.rows, rows.weights)
            return self.sums

    @property
    def model(self) -> Model:
        """The fitted model; it is computed when it is first read."""
        if self.solution is None:
            if self.stream is not None:
                self.solution = self.stream.model()
            else:
                assert self.sums is not None, "a state contains a model, a moment or a stream"
                data, shown = MomentRows(self.sums), self.options.verbose
                many = data.n_features >= TIMED_FEATURES
                with elapsed("solving", shown) if many else nullcontext():
                    self.solution = solve(self.options, data, self.previous)
                self.previous = self.solution.outcome.weights
        return self.solution

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
        if self.solution is None and self.moment is not None:
            return self.moment.weight
        return self.model.weight

    @property
    def keeps_certificate(self) -> bool:
        """Whether a certificate that was computed is saved: always, as its rows are not."""
        return True

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes that pickle writes; what needs training rows is computed now."""
        if self.rows is not None:
            self.certificate(self.rows.title)
        known = {"sums": self.moment, "sketch": self.saved_sketch(), "rows": None}
        return super().__getstate__() | known

    def compute_attributes(self) -> dict[str, Any]:
        """Return the fitted attributes by name, in the library and dtype of the training data."""
        model, xp = self.model, namespace(self.reference)
        total, variances = model.total_variance, model.variances
        arrays = {
            "mean_": model.mean,
            "encoder_": model.encoder,
            "decoder_": model.atoms.mT,
            "components_": model.components,
            "explained_variance_": variances,
            "explained_variance_ratio_": variances / total if total > 0 else 0.0 * variances,
            "singular_values_": namespace(variances).sqrt(variances * model.degrees),
        }
        # Copies: a user who writes into an attribute does not change the fitted state.
        shown = {
            name: xp.asarray(like(values, self.reference), copy=True)
            for name, values in arrays.items()
        }
        return shown | {
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
        rows = self.rows
        if rows is not None and rows.unchanged:
            if self.sums is not None and not rows.stored:  # it remains when the rows are gone
                self.sketch = self.saved_sketch()
            data: RowOperator = RowOperator.of(*rows.given)
            if (moment := rows.moment or self.sums) is not None:
                data.know(moment)
            found = self.certify(data_of(data, self.sketch), title)
            if rows.unchanged:  # while the certificate was computed as well
                self.rows = rows if rows.stored else None
                return found
        self.rows = None
        if self.moment is not None and rows is None:
            data = MomentRows(self.moment)
            return self.certify(data_of(data, self.sketch, self.origin), title)
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
        model, wanted, stored = self.model, self.options.n_components, self.sums
        if self.observed is not None and not isinstance(wanted, int):
            wanted = int(model.encoder.shape[0])  # its meaning depends on the rows, not on Σ
        figures = LinearFigures(
            model.outcome,
            data,
            self.options,
            model,
            wanted,
            # The variances of a stream are running averages, which no data reproduce.
            running=self.stream is not None,
            fit_rounding=self.rounding if stored is None else stored.rounding,
            observed=observed,
            shown={
                name: to_numpy(value) if is_array(value) else value
                for name, value in self.compute_attributes().items()
            },
        )
        missing = "" if observed is None else ", handle_missing='em'"
        return certificate(f"{title}(method={self.options.method!r}{missing})", figures)

    def changed_attributes(self, given: Mapping[str, Any]) -> dict[str, float]:
        """Return the fitted attributes that a user changed, each with its relative difference.

        Attributes whose arrays were changed in place are found as well. ``history_`` is not
        compared, because nothing is computed from it.
        """
        shown = dict(self._attributes or {}) | dict(given)
        shown.pop("history_", None)
        return changed_attributes(shown, self.compute_attributes()) if shown else {}


def fitted_to(
    data: RowOperator, options: Options, title: str, previous: Any, sketch: Sketch | None = None
) -> LinearState:
    """Return the state of a fit to data, with what its certificate needs.

    That is a copy of small rows, or of rows that are smaller than their second moment; of larger
    ones the second moment, if it is small, and a reference to the rows. Of rows to which nobody may
    refer, a sketch tests the second moment. If none of these can be stored, the certificate is
    computed now.
    """
    _check_total(data.weight)
    model = solve(options, data, previous)
    # 1) The rows themselves.
    small, moment, rows = data.n_features <= STORED_FEATURES, data.moment, data.rows
    held: TrainingRows | None = None
    if rows is not None:
        copied = small and moment is None and not options.draws_rows
        if copied or math.prod(rows.shape) <= SMALL_ROWS:
            held = TrainingRows.copied(rows, data.weights, title)
        else:
            held = TrainingRows.referenced(rows, data.weights, title, moment)
        if held is None and small and moment is not None:
            sketch = Sketch.of(rows, data.weights)
    state = LinearState(
        options,
        data.reference,
        model,
        moment if small else None,
        0.0 if moment is None else moment.rounding,
        sketch if small else None,
        "given" if isinstance(data, MomentRows) and sketch is None else "lost",
        held,
        model.outcome.weights,
    )
    # 2) The certificate. Where rounding errors of the second moment hide components of small
    # variance, the fit used the rows beside it (`lucidae.spectrum`), and the certificate must too.
    factored = model.spectrum is not None and model.spectrum.factored
    if held is None and (state.sums is None or factored):
        state._certificate = state.certify(data_of(data, sketch), title)
    return state


def fitted_to_observed(
    X: Array,
    weights: Array,
    options: Options,
    title: str,
    previous: ObservedGaussian | None,
    given: tuple[Array, Array | None],
) -> LinearState:
    """Return the state of a fit to rows X (n, m) with missing entries by maximum likelihood.

    The method's closed form is computed from mean and covariance of the fitted probabilistic PCA.
    The rows are not stored: the certificate is computed now, on the `given` rows and weights, of
    which X are those with an observed entry.
    """
    _check_total(float(namespace(X).sum(weights)))
    found = fit_observed(X, weights, options.n_components, options, previous)
    found.warn()
    if found.criterion is not None:
        latents_counted(found.criterion)
    k, gaussian = found.n_components, found.gaussian
    spectrum = gaussian.spectrum(min(k + 1, gaussian.mean.shape[0]))
    model = closed_form(options, k, spectrum, gaussian)
    status, n_iter = found.ended.status, max(1, found.ended.n_iter)
    outcome = replace(model.outcome, status=status, n_iter=n_iter, history=found.history)
    model = replace(model, outcome=outcome, count=found.criterion)
    state = LinearState(options, reference_array(X), model, observed=gaussian)
    state._certificate = state.certify_observed(*given, title)
    return state


def updated(
    before: LinearState | None, options: Options, X: Any, weights: Array | None
) -> LinearState:
    """Return the state after one more batch of rows X (n, m) with their weights.

    The state `before` is None for the first batch, and is not changed. The model of the new state
    is computed when it is first read.
    """
    m, earlier = X.shape[1], None if before is None else before.moment
    known = before is None or earlier is not None
    # 1) One step of descent, or the second moment of all rows.
    stream: StreamFit | None = None
    if options.draws_rows or m > EXACT_FEATURES:
        if before is None:
            stream = StreamFit.begin(options, X, weights)
        else:
            stream = before.stream or StreamFit.resume(options, before.model)
            stream.check_continued(options)
        stream = stream.after(X, weights)
        known = known and m <= CERTIFIED_STREAM_FEATURES
    elif not known or (before is not None and before.stream is not None):
        raise ValueError(
            "the second moment of the earlier rows is not stored: they were given to "
            f"solver='stochastic', or to fit with {m} features. Keep solver='stochastic', or "
            "start a new estimator and give all batches to partial_fit."
        )
    sums = SecondMoment._of_rows(X, weights, earlier) if known else None
    if before is None:
        sketch = Sketch.of(X, weights) if known else None
        return LinearState(options, reference_array(X), None, sums, sketch=sketch, stream=stream)
    # 2) The sketch of all rows, unless that of earlier ones is lost.
    sketch = None
    if known and earlier is not None:
        sketch = before.saved_sketch()
        if sketch is None and before.origin == "given":
            sketch = Sketch.given(earlier.mean, earlier.covariance, earlier.weight)
    state = LinearState(
        options,
        before.reference,
        sums=sums,
        sketch=None if sketch is None else sketch.update(X, weights),
        previous=before.previous,
        stream=stream,
    )
    state.doubt = before.doubt
    return state


def _check_total(weight: float) -> None:
    """Raise a ValueError unless the sum of the weights of all rows exceeds 1."""
    if weight <= 1.0:
        raise ValueError(
            f"sample_weight sums to {weight:g}, expected a sum above 1, because weights are "
            "frequencies. Multiply the weights so that they sum to the number of samples."
        )
