"""What is saved of the fitted dropout estimators."""

from __future__ import annotations

from typing import Any

import numpy as np

from lucidae.dropout.factorization import FactorsState
from lucidae.dropout.network import NetworkState, TrainedNetwork
from lucidae.dropout.path import CrossValidation
from lucidae.dropout.problem import DropoutObjective, RowMean, Weights, host
from lucidae.dropout.solvers import ExactSolution
from lucidae.models import (
    CERTIFICATE,
    DTYPE,
    HISTORY,
    MOMENT,
    STATUS,
    Record,
    Snapshot,
    sketch_record,
    with_size,
)


def _made(judged: Any = None, **fields: Any) -> Any:
    """Return a fitted state; `judged`, and what is left out, are those of earlier versions."""
    for name in ("row_objective", "refined"):
        fields.pop(name, None)
    if fields.get("sketch") is not None and fields.get("scales") is None:  # of an autoencoder
        fields["scales"] = np.ones(fields["moment"].n_features)
    state = NetworkState(**fields)
    state._certificate = judged
    trained = state.trained
    if state.objective is None and trained is not None:
        pairs = zip(trained.weights, trained.optimum.weights, strict=True)
        if not all(np.array_equal(host(a), host(b)) for a, b in pairs):  # by SGD
            objective = DropoutObjective(state.problem, state.strength)
            state.objective = float(objective.value(trained.weights))
    return state


def _row_mean(deviations: Any = None, **fields: Any) -> RowMean:
    """Return the mean of rows; `deviations` are those of earlier versions."""
    del deviations
    return RowMean(**fields)


def _of_solution(solution: ExactSolution, **fields: Any) -> FactorsState:
    """Return the factors of a matrix without missing entries, of earlier versions."""
    trained = TrainedNetwork(solution.weights, solution)
    return FactorsState(completed=False, trained=trained, **fields)


_OF_OPTIMUM = ("rank", "threshold", "singular_values", "value")
_OF_NETWORK = ("weights", "n_iter", "status", "history")


def _flat(state: FactorsState) -> dict[str, Any]:
    """Return the fields of the state of factors, in which there is one set of weights."""
    network = state.network
    fields = vars(state) | {name: getattr(network.optimum, name) for name in _OF_OPTIMUM}
    fields |= {name: getattr(network, name) for name in _OF_NETWORK}
    return fields if state.objective is None else fields | {"value": state.objective}


def _factors(weights: Weights, **fields: Any) -> FactorsState:
    """Return the state of factors that has the given fields."""
    found = {name: fields.pop(name) for name in _OF_OPTIMUM}
    ended = {name: fields.pop(name) for name in _OF_NETWORK[1:] if name in fields}
    optimum = ExactSolution(weights, **found, next_singular_value=0.0)
    return FactorsState(trained=TrainedNetwork(weights, optimum, **ended), **fields)


# Letters: m features, o outputs, r hidden units, p columns of the moment (features and targets),
# s singular values, n rows, q rows of a factor, c values compared in f folds, d directions of a
# sketch, t rows of the largest distance (k numbers each).
_CV = Record(CrossValidation, dropout="c", errors="fc", weights=("f", "i:f"), n_components="i:c")
_WEIGHTS = Record(Weights, left="or", right="mr")
_OPTIMUM = Record(
    ExactSolution,
    weights=_WEIGHTS,
    rank=int,
    threshold=float,
    singular_values="s",
    value=float,
    next_singular_value=float,
)
_NETWORK = {
    "moment": (
        Record(RowMean, vars, _row_mean, deviations="p", weight=float, center="p", offset="p"),
        with_size(MOMENT, "m", "p"),
    ),
    "strength": float,
    "width": int,
    "ref": DTYPE,
    "tolerance": float,
    "trained": Record(
        TrainedNetwork,
        weights=_WEIGHTS,
        optimum=_OPTIMUM,
        n_iter=int,
        status=STATUS,
        history=HISTORY,
    ),
    "row_objective": object,
    "sketch": sketch_record("p", "dp", "kt"),
    "scales": "p",
    "objective": float,
    "judged": CERTIFICATE,
}
# Rows that earlier versions stored in place of their factor, and that are not used any more.
_ROWS = Record(
    object,
    None,
    lambda **_: None,
    outputs="no",
    squares="m",
    dense="nm",
    entries=object,
    shares="n",
    mean="m",
    centered=bool,
    ridge=float,
)
_REGRESSION = Record(
    NetworkState,
    NetworkState.__getstate__,
    _made,
    **_NETWORK,
    n_features=int,
    centered=bool,
    flat=bool,
    dropout=float,
    cv=_CV,
    root=("qp", _ROWS),
    shrink=bool,
    alpha=float,
)
_SHARED = {"strength": float, "ref": DTYPE, "dropout": float, "cv": _CV}
# Earlier versions stored the solution for a matrix without missing entries as such.
_SOLUTION = Record(object, None, _of_solution, solution=_OPTIMUM, **_SHARED)
_FACTORS = Record(
    FactorsState,
    _flat,
    _factors,
    weights=_WEIGHTS,
    rank=int,
    threshold=float,
    singular_values="s",
    value=float,
    n_iter=int,
    tolerance=float,
    completed=bool,
    status=STATUS,
    history=HISTORY,
    **_SHARED,
)


SNAPSHOTS = {
    "DropoutAutoencoder": Snapshot(
        Record(NetworkState, NetworkState.__getstate__, _made, **_NETWORK, refined=bool)
    ),
    "DropoutRegressor": Snapshot(_REGRESSION),
    "DropoutFactorization": Snapshot((_SOLUTION, _FACTORS)),
}
