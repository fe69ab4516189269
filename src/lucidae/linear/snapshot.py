"""What is saved of a fitted `LinearAutoencoder`."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Annotated, Any, get_origin, get_type_hints

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
from lucidae.models import (
    DTYPE,
    HISTORY,
    MOMENT,
    STATUS,
    Record,
    Snapshot,
    sketch_record,
    with_size,
)
from lucidae.rows.operator import MomentRows
from lucidae.spectrum import Spectrum, leading


def _method_fields(method: Method) -> dict[str, Any]:
    settings = method.settings
    assert settings is not None, "methods of estimators are made by make_method"
    drawn = {"prior": settings.prior, "rng": settings.rng, "penalties": settings.penalties}
    return drawn | {"name": method.name, "tied": method.tied}


# Letters: k latents, m features, r dimensions of the decoder, q eigenvalues, d random directions,
# o latents of probabilistic PCA, p latents of an earlier fit, c scores of a criterion, a random
# directions of a sketch, u of its rows (b numbers each).


def _record(of: type, **kinds: Any) -> Record:
    """Return the record of a class whose fields are annotated with their kinds.

    Those of some fields are given instead; None leaves a field out.
    """
    for name, hint in get_type_hints(of, include_extras=True).items():
        kind = hint.__metadata__[0] if get_origin(hint) is Annotated else hint
        kinds.setdefault(name, kind)
    return Record(of, **{name: kind for name, kind in kinds.items() if kind is not None})


_ARGUMENTS = {entry.name for entry in fields(Options) if entry.init}
_NOT_STORED = {"whiten", "warm_start", "handle_missing"}  # the estimator has these parameters
_OPTIONS = Record(Options, **dict.fromkeys(sorted(_ARGUMENTS - _NOT_STORED), object))
_METHOD = Record(
    Method,
    _method_fields,
    lambda name, **settings: make_method(name, MethodSettings(**settings)),
    name=str,
    penalties="k",
    prior="k",
    tied=bool,
    rng=object,
)
_WEIGHTS = tuple(_record(kind) for kind in (TiedWeights, UntiedWeights, VariationalWeights))
_OUTCOME = _record(
    TrainedWeights,
    weights=_WEIGHTS,
    method=_METHOD,
    status=STATUS,
    history=HISTORY,
    learning_rate=float,
)
_COMPUTED = ("spectrum", "count")  # of the model
_MODEL = _record(Model, outcome=_OUTCOME, **dict.fromkeys(_COMPUTED))
_OPTIMIZER = (
    Record(DescentState, weights=_WEIGHTS),
    Record(MomentumState, weights=_WEIGHTS, velocity=_WEIGHTS),
    _record(AdamState, weights=_WEIGHTS, first=_WEIGHTS, second=_WEIGHTS),
)
_STREAM = _record(
    StreamFit,
    options=_OPTIONS,
    method=_METHOD,
    state=_record(Stream, optimizer=_OPTIMIZER),
)
# What earlier versions stored to test a second moment; it is read and ignored.
_TESTED = {"directions": "dm", "weight": float, "mean": "d", "scatter": "dd"}
_PROBE = Record(object, None, lambda **_: None, **_TESTED, size=float, rows=int)

_SHOWN = ("options", "previous", "stream", "observed", "rounding")


def _fields(state: LinearState) -> dict[str, Any]:
    """Return the parts of a state; the model of a stream follows from the stream."""
    model = state.solution if state.stream is None else None
    parts = {name: getattr(state, name) for name in _SHOWN}
    parts["moment" if state.stream is None else "seen"] = state.moment
    parts |= {"model": model} | {name: getattr(model, name, None) for name in _COMPUTED}
    return parts | {"sketch": state.saved_sketch(), "dtype": state.reference}


def _made(options: Options, dtype: Any, **parts: Any) -> LinearState:
    """Return the state with the given parts."""
    known = {name: parts.pop(name, None) for name in _COMPUTED}
    sums, seen, _ = (parts.pop(name, None) for name in ("moment", "seen", "probe"))
    sums, model = sums or seen, parts.pop("model", None)
    if model is not None:
        if is_criterion(options.n_components) and known["count"] is None and sums is not None:
            spectrum = leading(MomentRows(sums), None)  # these have no result of a criterion
            known["count"] = count_in_spectrum(options.n_components, spectrum, sums.weight)
        model = replace(model, **known)
    # Files of earlier versions have no sketch.
    origin = "given" if parts.get("sketch") is None else "lost"
    return LinearState(options, dtype, model, sums, origin=origin, **parts)


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
    previous=with_size(_WEIGHTS, "k", "p"),
    stream=_STREAM,
    observed=_record(ObservedGaussian),
    count=Record(ComponentCount, criterion=str, n_components=int, scores="c"),
)

SNAPSHOTS = {"LinearAutoencoder": Snapshot(STATE)}
