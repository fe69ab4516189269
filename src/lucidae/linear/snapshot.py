"""What is saved of a fitted `LinearAutoencoder`."""

from __future__ import annotations

from typing import Any

from lucidae.certificates.sketch import Sketch
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
from lucidae.models import DTYPE, HISTORY, STATUS, Record, Snapshot
from lucidae.moments import SecondMoment
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
# directions of a sketch.
_NUMBERS = {"noise": float, "weight": float}
_MOMENT = Record(SecondMoment, weight=float, squares="mm", center="m", offset="m", rounding=float)
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
_SKETCH = Record(
    Sketch,
    shift="m",
    weight=float,
    sums="m",
    images="am",
    size=float,
    depth=int,
    rows=int,
    peaks="bu",
)


class _Probe:
    """What earlier versions stored to test a second moment; it is read and ignored."""


_PROBE = Record(
    _Probe,
    None,
    lambda **_: None,
    directions="dm",
    weight=float,
    mean="d",
    scatter="dd",
    size=float,
    rows=int,
)


_SHOWN = ("options", "previous", "stream", "observed")
_HIDDEN = ("rounding", "sketch", "spectrum", "count")


def _fields(state: LinearState) -> dict[str, Any]:
    """Return the parts of a state; the model of a stream follows from the stream."""
    count = state.component_count  # computed together with the model
    parts = {name: getattr(state, name) for name in _SHOWN}
    parts |= {name: getattr(state, f"_{name}") for name in _HIDDEN}
    parts["model"] = state._model if state.stream is None else None
    parts["moment" if state.stream is None else "seen"] = state.moment
    parts["sketch"], parts["count"] = state.saved_sketch(), count
    return parts | {"dtype": state.reference}


def _made(options: Options, dtype: Any, **parts: Any) -> LinearState:
    """Return the state with the given parts."""
    parts.pop("probe", None)
    moments = parts.pop("moment", None), parts.pop("seen", None)
    state = LinearState(options, dtype)
    state._moment = moments[0] or moments[1]
    for name, part in parts.items():
        setattr(state, name if name in _SHOWN else f"_{name}", part)
    # Files of earlier versions have no sketch, and no result of a criterion.
    state._given = state._sketch is None
    if is_criterion(options.n_components) and state._count is None and state._moment is not None:
        spectrum = leading(MomentRows(state._moment), None)
        assert spectrum is not None, "a matrix has all eigenvalues"
        state._count = count_in_spectrum(options.n_components, spectrum, state._moment.weight)
    return state


STATE = Record(
    LinearState,
    _fields,
    _made,
    dtype=DTYPE,
    options=_OPTIONS,
    moment=_MOMENT,
    rounding=float,
    seen=_MOMENT,
    probe=_PROBE,
    sketch=_SKETCH,
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
