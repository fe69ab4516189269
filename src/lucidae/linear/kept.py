"""What a fitted `LinearAutoencoder` keeps to itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse

from lucidae._arrays import Array, device, like, namespace
from lucidae._estimators import Kept
from lucidae.certificate import Certificate, does_not_apply
from lucidae.linear.claims import linear_claims
from lucidae.linear.evidence import Evidence
from lucidae.linear.fitting import solve
from lucidae.linear.model import Model
from lucidae.linear.options import Options
from lucidae.linear.sources import EXACT_FEATURES, KEPT_FEATURES, MomentSource, Source
from lucidae.linear.spectrum import Spectrum
from lucidae.linear.streaming import StreamFit
from lucidae.linear.weights import map_fields
from lucidae.moments import SecondMoment


class LinearKept(Kept):
    """A moment or a stream that can go on, and the model, which is solved when first asked for.

    Parameters
    ----------
    options : Options
        The checked arguments.
    reference : array
        Its library, device and dtype are those of what the estimator shows.
    """

    def __init__(self, options: Options, reference: Array) -> None:
        self.options = options
        self.reference = reference
        self.moment: SecondMoment | None = None
        self.stream: StreamFit | None = None
        self.previous: Any = None
        self._model: Model | None = None
        self._spectrum: Spectrum | None = None

    def solve(self, source: Source) -> None:
        """Fit now, and keep no more of the source than is small."""
        self._model, self._spectrum = solve(self.options, source, self.previous)
        self.previous = self._model.outcome.weights
        moment = source.moment
        self.moment = moment if source.covariance.n_features <= KEPT_FEATURES else None
        self.certificate = None if self.moment is not None else self.certify(source)

    def advance(self, options: Options, X: Any, weights: Array | None) -> None:
        """Take one more batch; the model is solved when it is next read."""
        self.options = options
        if options.route == "stochastic" or X.shape[1] > EXACT_FEATURES:
            self.stream = self._flowing(options, X, weights).after(X, weights)
        else:
            self.moment = self._accumulated(X, weights)
        self._model, self._spectrum, self.certificate = None, None, None

    def _flowing(self, options: Options, X: Any, weights: Array | None) -> StreamFit:
        if self.stream is not None:
            return self.stream
        if self._model is not None:
            return StreamFit.resume(options, self._model)
        return StreamFit.begin(options, X, weights)

    def _accumulated(self, X: Any, weights: Array | None) -> SecondMoment:
        if self.moment is not None:
            return self.moment.update(X, weights)
        if self._model is None:
            return SecondMoment.of(X, weights)
        raise ValueError(
            f"fit kept no second moment of {X.shape[1]} features, so partial_fit cannot go on from "
            "it. Start a new estimator and give all batches to partial_fit."
        )

    @property
    def model(self) -> Model:
        """The fitted model."""
        if self._model is None:
            if self.stream is not None:
                self._model = self.stream.model()
            elif self.moment is not None:
                source = MomentSource(self.moment)
                self._model, self._spectrum = solve(self.options, source, self.previous)
                self.previous = self._model.outcome.weights
        assert self._model is not None, "a fit leaves a model, a moment or a stream"
        return self._model

    @property
    def weight(self) -> float:
        """Total weight seen, without solving anything."""
        if self._model is None and self.moment is not None:
            return self.moment.weight
        return self.model.weight

    def draw(self, title: str) -> Certificate:
        """Return the certificate from what was kept."""
        if self.moment is not None:
            return self.certify(MomentSource(self.moment), title)
        why = "the stream was not kept: call lucidae.certify(estimator, X) with data"
        return Certificate(title, (does_not_apply("optimum", "the fit is optimal", "", why),))

    def certify(self, source: Source, title: str = "LinearAutoencoder") -> Certificate:
        """Return the certificate of the model on the data of `source`."""
        outcome, training = self.model.outcome, self.options.training
        k = outcome.weights.encoder.shape[-2]
        spectrum = self._exact_spectrum(source, k)
        weights = map_fields(lambda rows: like(rows, source.mean), outcome.weights)
        rate = outcome.learning_rate
        if rate is None and spectrum is not None and spectrum.trace > 0.0:
            rate = training.rate(outcome.method.curvature(spectrum.leading(k)))
        evidence = Evidence(
            outcome.method,
            weights,
            source.covariance,
            spectrum,
            training.tol,
            rate,
            training.effective_momentum,
        )
        name = f"{title}(method={self.options.method!r})"
        return Certificate(name, tuple(linear_claims(evidence)))

    def _exact_spectrum(self, source: Source, k: int) -> Spectrum | None:
        """Return all eigenpairs where they are cheap, k + 1 where they are not, or None."""
        m = source.covariance.n_features
        if source.moment is not None:
            return MomentSource(source.moment).spectrum(
                None if m <= KEPT_FEATURES else min(k + 1, m)
            )
        if self._spectrum is not None and self._spectrum.values.shape[0] > min(k, m - 1):
            return self._spectrum
        return source.spectrum(min(k + 1, m))

    def shown(self, values: Array) -> Array:
        """Return `values` in the library, dtype and on the device of the training data."""
        return like(values, self.reference)


def reference_of(X: Any) -> Array:
    """Return an empty array of the library, dtype and device in which results are shown."""
    if scipy.sparse.issparse(X):
        return np.empty(0, dtype=X.dtype)
    return namespace(X).empty(0, dtype=X.dtype, device=device(X))
