"""What is saved of a fitted `LinearAutoencoder`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lucidae.counting import ComponentCount, count_in_spectrum, is_criterion
from lucidae.linear.methods import (
    Method,
    MethodSettings,
    Model,
    Options,
    TrainedWeights,
    make_method,
)
from lucidae.linear.missing import ObservedGaussian
from lucidae.linear.solvers import Stream, StreamFit
from lucidae.linear.state import LinearState
from lucidae.linear.weights import (
    AdamState,
    DescentState,
    MomentumState,
    TiedWeights,
    UntiedWeights,
    VariationalWeights,
)
from lucidae.models import DTYPE, HISTORY, MOMENT, STATUS, Record, Snapshot, sketch_record
from lucidae.rows.operator import MomentRows
from lucidae.spectrum import Spectrum, leading

__all__ = ["SNAPSHOTS", "STATE"]


def _method_fields(method: Method) -> dict[str, Any]:
    settings = method.settings
    assert settings is not None, "methods of estimators are made by make_method"
    drawn = {"prior": settings.prior, "rng": settings.rng, "penalties": settings.penalties}
    return drawn | {"name": method.name, "tied": method.tied}


def _made_method(name: str, **settings: Any) -> Method:
    return make_method(name, MethodSettings(**settings))


# Letters: k latents, m features, r dimensions of the decoder, q eigenvalues, d random directions,
# o latents of probabilistic PCA, p latents of an earlier fit, c scores of a criterion, a random
# directions of a sketch, u of its rows (b numbers each).
_NUMBERS = {"noise": float, "weight": float}
_OPTIONS = Record(
    Options,
    lambda options: options.arguments,
    Options.of,
    **dict.fromkeys(Options.of().arguments, object),
)
_METHOD = Record(
    Method,
    _method_fields,
    _made_method,
    name=str,
    penalties="k",
    prior="k",
    tied=bool,
    rng=object,
)


def _weights(k: str) -> tuple[Record, ...]:
    both = {"encoder": f"{k}m", "atoms": f"{k}m"}
    return (
        Record(TiedWeights, encoder=f"{k}m"),
        Record(UntiedWeights, **both),
        Record(VariationalWeights, **both, log_variances=f"{k}1", log_noise="11"),
    )


_WEIGHTS = _weights("k")
_MODEL = Record(
    Model,
    mean="m",
    encoder="km",
    atoms="km",
    components="km",
    variances="k",
    code_deviations="k",
    total_variance=float,
    basis="mr",
    inside="rr",
    noise_variance=float,
    weight=float,
    outcome=Record(
        TrainedWeights,
        weights=_WEIGHTS,
        method=_METHOD,
        status=STATUS,
        n_iter=int,
        history=HISTORY,
        learning_rate=float,
    ),
)
_OPTIMIZER = (
    Record(DescentState, weights=_WEIGHTS),
    Record(MomentumState, weights=_WEIGHTS, velocity=_WEIGHTS),
    Record(AdamState, weights=_WEIGHTS, first=_WEIGHTS, second=_WEIGHTS, steps="11"),
)
_STREAM = Record(
    StreamFit,
    options=_OPTIONS,
    method=_METHOD,
    state=Record(Stream, optimizer=_OPTIMIZER, steps=int),
    mean="m",
    weight=float,
    variance=float,
    curvature=float,
    inside="kk",
)
# What earlier versions stored to test a second moment; it is read and ignored.
_TESTED = {"directions": "dm", "weight": float, "mean": "d", "scatter": "dd"}
_PROBE = Record(object, None, lambda **_: None, **_TESTED, size=float, rows=int)

_SHOWN = ("options", "previous", "stream", "observed")
_COMPUTED = ("spectrum", "count")  # of the model


def _fields(state: LinearState) -> dict[str, Any]:
    """Return the parts of a state; the model of a stream follows from the stream."""
    model = state._model if state.stream is None else None
    parts = {name: getattr(state, name) for name in _SHOWN}
    parts["moment" if state.stream is None else "seen"] = state.moment
    parts |= {"model": model} | {name: getattr(model, name, None) for name in _COMPUTED}
    parts |= {"rounding": state._rounding, "sketch": state.saved_sketch()}
    return parts | {"dtype": state.reference}


def _made(options: Options, dtype: Any, **parts: Any) -> LinearState:
    """Return the state with the given parts."""
    state = LinearState(options, dtype)
    known = {name: parts.pop(name, None) for name in _COMPUTED}
    moments = [parts.pop(name, None) for name in ("moment", "seen", "probe")]
    parts["moment"] = moment = moments[0] or moments[1]
    for name, part in parts.items():
        setattr(state, name if name in _SHOWN else f"_{name}", part)
    state._given = state._sketch is None  # in files of earlier versions
    if state._model is not None:
        if is_criterion(options.n_components) and known["count"] is None and moment is not None:
            spectrum = leading(MomentRows(moment), None)  # these have no result of a criterion
            known["count"] = count_in_spectrum(options.n_components, spectrum, moment.weight)
        state._model = replace(state._model, **known)
    return state


STATE = Record(
    LinearState,
    _fields,
    _made,
    dtype=DTYPE,
    options=_OPTIONS,
    moment=MOMENT,
    rounding=float,
    seen=MOMENT,
    probe=_PROBE,
    sketch=sketch_record("m", "am", "bu"),
    spectrum=Record(
        Spectrum,
        # The eigenvectors are not used any more, only their length.
        lambda found: {
            "values": found.values,
            "vectors": found.vectors[:, :0],
            "trace": found.trace,
            "beyond": found.beyond,
        },
        values="q",
        vectors="m0",
        trace=float,
        beyond=float,
    ),
    model=_MODEL,
    previous=_weights("p"),
    stream=_STREAM,
    observed=Record(ObservedGaussian, mean="m", loadings="mo", bounded=bool, **_NUMBERS),
    count=Record(ComponentCount, criterion=str, n_components=int, scores="c"),
)

SNAPSHOTS = {"LinearAutoencoder": Snapshot(STATE)}
