"""What is saved of a fitted `LinearAutoencoder`: its schema, and the conversion of its state.

The method is made again from the arguments of the fit; only its penalties, which may have been
chosen from the data, and the state of its random generator are saved. The model of a stream follows
from the stream.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from lucidae.arrays import to_numpy
from lucidae.iteration import Status
from lucidae.linear.methods import Method, MethodSettings, Options, make_method
from lucidae.linear.missing import IncompleteStream
from lucidae.linear.model import Model, TrainedWeights
from lucidae.linear.observed_gaussian import ObservedGaussian
from lucidae.linear.patterns import Statistics
from lucidae.linear.probe import Probe
from lucidae.linear.solvers import Stream
from lucidae.linear.state import LinearState
from lucidae.linear.streaming import StreamFit
from lucidae.linear.weights import TiedWeights, UntiedWeights, VariationalWeights
from lucidae.moments import SecondMoment
from lucidae.rows.spectrum import Spectrum
from lucidae.snapshots import (
    HISTORY,
    Schema,
    SnapshotForm,
    Values,
    flat,
    history_of,
    history_values,
    part,
)

__all__ = ["FORMS"]

# Letters: k latents, m features, r dimensions of the decoder, q eigenvalues, d random directions,
# l = latents of probabilistic PCA + 1.
ARGUMENTS: Schema = dict.fromkeys(Options.of().arguments, object)
MOMENT: Schema = {
    "weight": float,
    "squares": "mm",
    "center": "m",
    "offset": "m",
    "rounding": float,
}
WEIGHTS: Schema = {
    "encoder": "km",
    "atoms": "km",
    "log_variances": "k1",
    "log_noise": "11",
}
SCHEMA: Schema = {
    "dtype": str,
    "rounding": float,
    **flat("fit", ARGUMENTS),
    **flat("moment", MOMENT),
    **flat("seen", MOMENT),  # of all rows of a stream
    "probe.directions": "dm",
    "probe.weight": float,
    "probe.mean": "d",
    "probe.scatter": "dd",
    "probe.size": float,
    "probe.rows": int,
    "spectrum.values": "q",
    "spectrum.trace": float,
    "spectrum.beyond": float,
    "model.mean": "m",
    "model.encoder": "km",
    "model.atoms": "km",
    "model.components": "km",
    "model.variances": "k",
    "model.code_deviations": "k",
    "model.total_variance": float,
    "model.basis": "mr",
    "model.inside": "rr",
    "model.noise_variance": float,
    "model.weight": float,
    "method.penalties": "k",
    "method.tied": bool,
    "method.rng": object,
    **flat("weights", WEIGHTS),
    **flat("previous", {name: letters.replace("k", "p") for name, letters in WEIGHTS.items()}),
    "status": str,
    "n_iter": int,
    "learning_rate": float,
    **HISTORY,
    **flat("stream.fit", ARGUMENTS),
    **flat("stream.weights", WEIGHTS),
    **flat("stream.velocity", WEIGHTS),
    **flat("stream.first", WEIGHTS),
    **flat("stream.second", WEIGHTS),
    "stream.steps": ("11", float),
    "stream.count": int,
    "stream.mean": "m",
    "stream.weight": float,
    "stream.variance": float,
    "stream.curvature": float,
    "stream.inside": "kk",
    "observed.mean": "m",
    "observed.loadings": "mo",
    "observed.noise": float,
    "observed.weight": float,
    "observed.bounded": bool,
    "incomplete.beta": "ml",
    "incomplete.noise": float,
    "incomplete.center": "m",
    "incomplete.unit": float,
    "incomplete.steps": int,
    "incomplete.statistics.information": "mll",
    "incomplete.statistics.cross": "ml",
    "incomplete.statistics.latent": "ll",
    **flat(
        "incomplete.statistics",
        dict.fromkeys(("squares", "entries", "weight", "rest", "value"), float),
    ),
    **flat("incomplete.moment", MOMENT),
}


def _values(state: LinearState) -> Values:
    """Return the values of the snapshot of a fitted state."""
    moment, stream, spectrum = state.moment, state.stream, state._spectrum
    model = state._model if stream is None else None
    values = {"dtype": str(to_numpy(state.reference).dtype), "rounding": state._rounding}
    values |= flat("fit", state.options.arguments)
    values |= flat("moment", moment) | flat("seen", state.seen) | flat("probe", state._probe)
    values |= flat("observed", state.observed)
    if model is not None:
        outcome = model.outcome
        values |= flat("model", _fields(model, but=("outcome",)))
        values |= flat("weights", outcome.weights) | _method_values(outcome.method)
        values |= {"status": outcome.status.value, "n_iter": outcome.n_iter}
        values |= {"learning_rate": outcome.learning_rate} | history_values(outcome.history)
    if spectrum is not None and model is not None:
        values |= flat("spectrum", _fields(spectrum, but=("vectors",)))
    if state.previous is not None and (model is None or state.previous is not outcome.weights):
        values |= flat("previous", state.previous)
    if stream is not None:
        values |= flat("stream", _fields(stream, but=("options", "method", "state")))
        values |= flat("stream.fit", stream.options.arguments) | _method_values(stream.method)
        values["stream.count"] = stream.state.steps
        for name, entry in stream.state.optimizer._asdict().items():
            values |= flat(f"stream.{name}", entry) if name != "steps" else {"stream.steps": entry}
    incomplete = state.incomplete
    if incomplete is not None:
        values |= flat("incomplete", _fields(incomplete, but=("statistics", "moment")))
        values |= flat("incomplete.statistics", incomplete.statistics)
        values |= flat("incomplete.moment", incomplete.moment)
    return values


def _state(values: Values) -> LinearState:
    """Return the fitted state with the values of a snapshot."""

    def record(kind: Any, name: str, **others: Any) -> Any:
        found = part(values, name)
        own = {key: value for key, value in (found or {}).items() if "." not in key}
        return None if found is None else kind(**own, **others)

    options = Options.of(**part(values, "fit") or {})
    state = LinearState(options, np.empty(0, dtype=values["dtype"]))
    state.moment, state.seen = record(SecondMoment, "moment"), record(SecondMoment, "seen")
    state._rounding, state._probe = values["rounding"], record(Probe, "probe")
    state.observed = record(ObservedGaussian, "observed")
    state.previous = _weights(values, "previous")
    if "model.mean" in values:
        outcome = TrainedWeights(
            _weights(values, "weights"),
            _method(values, options),
            Status(values["status"]),
            values["n_iter"],
            history_of(values),
            values.get("learning_rate"),
        )
        state._model = record(Model, "model", outcome=outcome)
        # The vectors are not used any more; their number of rows is that of the features.
        unused = values["model.mean"][:, None][:, :0]
        state._spectrum = record(Spectrum, "spectrum", vectors=unused)
        if state.previous is None and state.observed is None:
            state.previous = outcome.weights
    if "stream.mean" in values:
        options = Options.of(**part(values, "stream.fit") or {})
        start = options.training.build(1.0).start(_weights(values, "stream.weights"))
        known = {name: _weights(values, f"stream.{name}") for name in start._fields}
        if "stream.steps" in values:
            known["steps"] = values["stream.steps"]
        names = ("mean", "weight", "variance", "curvature", "inside")
        state.stream = StreamFit(
            options,
            _method(values, options),
            Stream(start._replace(**known), values["stream.count"]),
            **{name: values[f"stream.{name}"] for name in names},
        )
    statistics = record(Statistics, "incomplete.statistics")
    moment = record(SecondMoment, "incomplete.moment")
    state.incomplete = record(IncompleteStream, "incomplete", statistics=statistics, moment=moment)
    return state


def _fields(record: Any, but: tuple[str, ...]) -> Values:
    """Return the fields of a dataclass by name, without some of them."""
    return {
        entry.name: getattr(record, entry.name) for entry in fields(record) if entry.name not in but
    }


def _method_values(method: Method) -> Values:
    settings = method.settings
    assert settings is not None, "methods of estimators are made by make_method"
    own = {"penalties": settings.penalties, "tied": method.tied, "rng": settings.rng}
    return flat("method", own)


def _method(values: Values, options: Options) -> Method:
    penalties = values["method.penalties"]
    prior = options.prefix_prior(len(penalties))
    settings = MethodSettings(penalties, prior, values["method.rng"], values["method.tied"])
    return make_method(options.method, settings)


def _weights(values: Values, name: str) -> Any:
    """Return the weights under `name`, whose kind follows from their arrays; None without any."""
    found = part(values, name)
    if found is None:
        return None
    kinds: tuple[Any, ...] = (TiedWeights, UntiedWeights, VariationalWeights)
    for kind in kinds:
        if set(kind._fields) == found.keys():
            return kind(**found)
    raise ValueError(f"{name} has the arrays {', '.join(found)}, which are no known weights")


FORMS = {"LinearAutoencoder": SnapshotForm(SCHEMA, _values, _state)}
