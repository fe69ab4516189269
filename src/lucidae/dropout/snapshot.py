"""What is saved of the fitted dropout estimators: their schemas, and the conversion of states."""

from __future__ import annotations

from typing import Any

import numpy as np

from lucidae.arrays import to_numpy
from lucidae.dropout.estimators.autoencoder import AutoencoderState
from lucidae.dropout.estimators.factors import CompletionState, FactorizationState
from lucidae.dropout.estimators.network import NetworkState, TrainedNetwork
from lucidae.dropout.estimators.regression import RegressionState
from lucidae.dropout.held_out import CrossValidation
from lucidae.dropout.objectives import Weights
from lucidae.dropout.row_space import WideRows
from lucidae.dropout.solvers import ExactSolution
from lucidae.dropout.wide import RowMean
from lucidae.iteration import Status
from lucidae.moments import SecondMoment
from lucidae.snapshots import (
    HISTORY,
    Schema,
    SnapshotForm,
    Values,
    certificate_of,
    flat,
    history_of,
    history_values,
    part,
)

__all__ = ["FORMS"]

# Letters: m features, o outputs, r hidden units, p columns of the moment (features and targets),
# s singular values, n rows, e entries of sparse rows, c values compared in f folds.
CV: Schema = {
    "cv.dropout": "c",
    "cv.errors": "fc",
    "cv.weights": ("f", "i:f"),
    "cv.n_components": "i:c",
}
OPTIMUM: Schema = {
    "optimum.rank": int,
    "optimum.threshold": float,
    "optimum.singular_values": "s",
    "optimum.value": float,
    "optimum.next_singular_value": float,
}
SHARED: Schema = {
    "dtype": str,
    "strength": float,
    "weights.left": "or",
    "weights.right": "mr",
    **OPTIMUM,
}
NETWORK: Schema = {
    **SHARED,
    **HISTORY,
    "moment.weight": float,
    "moment.squares": "pp",
    "moment.center": "p",
    "moment.offset": "p",
    "moment.rounding": float,
    "moment.deviations": "p",  # in place of squares that are not stored
    "width": int,
    "tolerance": float,
    "row_objective": object,
    "objective": float,
    "optimum.left": "or",  # if they are not the trained weights
    "optimum.right": "mr",
    "n_iter": int,
    "status": str,
}
REGRESSION: Schema = {
    **NETWORK,
    **CV,
    "n_features": int,
    "centered": bool,
    "flat": bool,
    "dropout": float,
    "shrink": bool,
    "alpha": float,
    "root": "qp",
    "rows.outputs": "no",
    "rows.squares": "m",
    "rows.dense": "nm",
    "rows.entries.*": ("e", "i:e", "i:l"),
    "rows.shares": "n",
    "rows.mean": "m",
    "rows.centered": bool,
    "rows.ridge": float,
}
FACTORIZATION: Schema = {
    **SHARED,
    **CV,
    "dropout": float,
    "n_iter": int,  # this and the next of a matrix with missing entries alone
    "tolerance": float,
}


def _network_values(state: NetworkState) -> Values:
    """Return the values that both networks have."""
    names = ("strength", "width", "tolerance", "row_objective", "objective")
    values = {name: getattr(state, name) for name in names} | flat("moment", state.moment)
    values["dtype"] = str(to_numpy(state.ref).dtype)
    trained = state.trained
    if trained is not None:
        values |= flat("weights", trained.weights) | _optimum_values(trained.optimum)
        if trained.optimum.weights is not trained.weights:
            values |= flat("optimum", trained.optimum.weights)
        values |= {"n_iter": trained.n_iter, "status": trained.status.value}
        values |= history_values(trained.history)
    return values


def _optimum_values(optimum: ExactSolution) -> Values:
    return {name: getattr(optimum, name.partition(".")[2]) for name in OPTIMUM}


def _network(values: Values) -> Values:
    """Return the fields that the states of both networks have."""
    moment: Any = part(values, "moment") or {}
    trained = None
    if "weights.left" in values:
        weights = Weights(values["weights.left"], values["weights.right"])
        sgd = "optimum.left" in values
        optimum = Weights(values["optimum.left"], values["optimum.right"]) if sgd else weights
        trained = TrainedNetwork(
            weights,
            _optimum(values, optimum),
            values["n_iter"],
            Status(values["status"]),
            history_of(values),
        )
    return {
        "moment": RowMean(**moment) if "deviations" in moment else SecondMoment(**moment),
        "strength": values["strength"],
        "width": values["width"],
        "tolerance": values["tolerance"],
        "ref": np.empty(0, dtype=values["dtype"]),
        "trained": trained,
        "row_objective": values.get("row_objective"),
        "objective": values.get("objective"),
        "judged": certificate_of(values),
    }


def _optimum(values: Values, weights: Weights) -> ExactSolution:
    return ExactSolution(weights, *(values[name] for name in OPTIMUM))


def _autoencoder_values(state: AutoencoderState) -> Values:
    state.settle()
    return _network_values(state)


def _regression_values(state: RegressionState) -> Values:
    names = ("n_features", "centered", "flat", "dropout", "shrink", "alpha")
    values = _network_values(state) | {name: getattr(state, name) for name in names}
    if isinstance(state.root, WideRows):
        rows = flat("rows", state.root)
        entries = rows.pop("rows.entries") or ()
        values |= rows | flat("rows.entries", dict(enumerate(entries)))
    else:
        values["root"] = state.root
    return values | flat("cv", state.cv)


def _regression(values: Values) -> RegressionState:
    names = ("n_features", "centered", "flat", "dropout", "shrink", "alpha")
    rows = part(values, "rows")
    root = values.get("root")
    if rows is not None:
        entries = [rows.pop(f"entries.{at}") for at in range(3) if f"entries.{at}" in rows]
        root = WideRows(**rows, entries=tuple(entries) or None)
        if entries:
            root._sparse.check_format(full_check=True)  # products would read beyond the arrays
    own = {name: values[name] for name in names}
    return RegressionState(**_network(values), **own, cv=_cv(values), root=root)


def _cv(values: Values) -> CrossValidation | None:
    found = part(values, "cv")
    return None if found is None else CrossValidation(**found)


def _factorization_values(state: FactorizationState | CompletionState) -> Values:
    values = {"dtype": str(to_numpy(state.ref).dtype), "strength": state.strength}
    values |= {"dropout": state.dropout} | flat("cv", state.cv)
    if isinstance(state, FactorizationState):
        optimum = state.solution
        return values | flat("weights", optimum.weights) | _optimum_values(optimum)
    names = ("rank", "threshold", "singular_values", "value")
    values |= flat("weights", state.weights)
    values |= flat("optimum", {name: getattr(state, name) for name in names})
    return values | {"n_iter": state.n_iter, "tolerance": state.tolerance}


def _factorization(values: Values) -> FactorizationState | CompletionState:
    weights = Weights(values["weights.left"], values["weights.right"])
    ref, cv = np.empty(0, dtype=values["dtype"]), _cv(values)
    shared: Any = {"strength": values["strength"], "dropout": values.get("dropout"), "cv": cv}
    if "n_iter" not in values:
        return FactorizationState(_optimum(values, weights), None, ref=ref, **shared)
    names = ("n_iter", "tolerance")
    found = {name: values[name] for name in names} | (part(values, "optimum") or {})
    return CompletionState(weights, ref=ref, **found, **shared)


def _of_equal_columns(schema: Schema) -> Schema:
    """Return the schema of an autoencoder, whose inputs are its outputs."""
    return {
        name: kind.replace("p", "m").replace("o", "m") if isinstance(kind, str) else kind
        for name, kind in schema.items()
    }


FORMS = {
    "DropoutAutoencoder": SnapshotForm(
        _of_equal_columns(NETWORK),
        _autoencoder_values,
        lambda values: AutoencoderState(**_network(values)),
    ),
    "DropoutRegressor": SnapshotForm(REGRESSION, _regression_values, _regression),
    "DropoutFactorization": SnapshotForm(FACTORIZATION, _factorization_values, _factorization),
}
