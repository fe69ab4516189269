"""Reads what `lucidae.save` of versions 0.1 to 0.3 wrote: formats 1 and 2.

These files contain a tree of records of the internal classes of their time. Records become plain
dicts here, and one function per estimator makes today's snapshot (`lucidae.models`) of them.
What an early version did not store has the value that it stood for.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import numpy as np

import lucidae
from lucidae.dropout.theory import dropout_of
from lucidae.dropout.verify import CERTIFIED
from lucidae.iteration import Status
from lucidae.linear.methods import PRIORS, Options
from lucidae.models import Values, built, check_part, check_row, restored

FORMER = (
    "The estimator was saved by an earlier version of lucidae, whose verdicts are not repeated. "
    "Call lucidae.certify with the estimator and its data."
)

SCIKIT = {
    "PCA": "sklearn.decomposition",
    "VarianceThreshold": "sklearn.feature_selection",
    "SimpleImputer": "sklearn.impute",
    "FeatureUnion": "sklearn.pipeline",
    "Pipeline": "sklearn.pipeline",
    "MaxAbsScaler": "sklearn.preprocessing",
    "MinMaxScaler": "sklearn.preprocessing",
    "Normalizer": "sklearn.preprocessing",
    "RobustScaler": "sklearn.preprocessing",
    "StandardScaler": "sklearn.preprocessing",
}
"""Types of scikit-learn that these files may contain, with their modules. No attribute of them is a
function, so that a file cannot choose code to be executed."""


class _Fields(dict[str, Any]):
    """The fields of a record, as opposed to a dict that is a value."""

    def flat(self, name: str = "") -> Values:
        """Return the fields, and those of the records in them, under flat names."""
        found: Values = {}
        for key, value in self.items():
            own = f"{name}{key}"
            found |= value.flat(f"{own}.") if isinstance(value, _Fields) else {own: value}
        return {key: value for key, value in found.items() if value is not None}


def loaded(tree: Any, arrays: Mapping[str, Any]) -> Any:
    """Return the estimator that the tree in the header of a file describes."""
    found = _plain(tree, arrays)
    if not hasattr(found, "fit"):
        raise ValueError(f"it contains an object of type {type(found).__name__}, not an estimator")
    if not 1 <= found.n_features_in_ <= sum(array.size for array in arrays.values()):
        raise ValueError(f"it has {found.n_features_in_} features, but no array of that size")
    check_row(found)
    return found


def _plain(tree: Any, arrays: Mapping[str, Any]) -> Any:
    """Return the value of a tree: estimators as they are, other records as their fields."""
    if not isinstance(tree, dict):
        return tree
    if "array" in tree:
        array = arrays[tree["array"]]
        stated = tree.get("shape", [*array.shape]), tree.get("dtype", array.dtype.str)
        if stated != ([*array.shape], array.dtype.str):
            raise ValueError(f"the array {tree['array']} is not the one that was saved")
        return restored({"array": tree["array"]}, arrays)
    for kind in ("list", "tuple"):
        if kind in tree:
            items = [_plain(item, arrays) for item in tree[kind]]
            return items if kind == "list" else tuple(items)
    if "map" in tree:
        return {_plain(key, arrays): _plain(item, arrays) for key, item in tree["map"]}
    if "dtype" in tree:
        found = np.dtype(str(tree["dtype"]))
        if found.kind not in "biuf":
            raise ValueError(f"the dtype {tree['dtype']!r} is not one of numbers")
        return found
    if "member" in tree:  # of the only enumeration
        return Status[tree["name"]].value
    if "record" not in tree:
        return restored(tree, arrays)
    fields = _Fields({name: _plain(item, arrays) for name, item in tree["fields"].items()})
    # A tag such as "lucidae.LinearAutoencoder/2" or, in 0.1, "lucidae.linear.estimators:Name".
    name = re.split(r"[.:]", tree["record"].partition("/")[0])[-1]
    if name in ESTIMATORS:
        return _estimator(name, fields)
    if name in SCIKIT and tree["record"].startswith("sklearn."):
        kind = getattr(import_module(SCIKIT[name]), name)
        made = kind.__new__(kind)
        vars(made).update(fields)
        check_part(made)
        return made
    if ".penalt" in tree["record"]:  # "….penalty.power/1" or "….penalties:PowerPenalty"
        return {"name": name.removesuffix("Penalty").lower(), **fields}
    return fields


def _estimator(name: str, fields: _Fields) -> Any:
    """Return an estimator from the attributes that it had, by name."""
    names = inspect.signature(getattr(lucidae, name)).parameters
    state = fields.pop("_state", None) or fields.pop("_kept")
    if "recipe" in state:  # 0.1 kept results beside the state
        results, state = state["_results"] or {}, state["recipe"]
        solved = state.pop("outcome", None)
        state["tolerance"] = CERTIFIED if solved is None else 1e-2
        state["trained"] = results.get("outcome") or solved
    values = ESTIMATORS[name](state, fields)
    if name != "LinearAutoencoder":
        for key in ("figures", "certificate", "_certificate"):
            values.pop(key, None)
    former = {"verbose": False} if "verbose" in names else {}  # before there was the parameter
    parameters = former | {key: fields[key] for key in names if key in fields}
    attributes = {key: fields[key] for key in fields.keys() - names.keys() - {"cv_"}}
    estimator = built(name, parameters, attributes, values.flat())
    if name != "LinearAutoencoder":
        estimator._state.doubt = FORMER
    return estimator


def _linear(state: _Fields, _: _Fields) -> _Fields:
    found = _Fields({key.lstrip("_"): value for key, value in state.items()})
    found |= {"dtype": str(found.pop("reference").dtype)}
    found.setdefault("rounding", 0.0)
    found.pop("incomplete", None)  # statistics of online EM, with which partial_fit went on
    options = found["options"] = _arguments(found["options"])
    stream = found["stream"]
    if found["model"] is not None:
        outcome, k = found["model"]["outcome"], len(found["model"]["encoder"])
        outcome["method"] = _method(outcome["method"], options, k)
    if stream is not None:
        found["model"] = None  # it follows from the stream
        stream["options"] = _arguments(stream["options"])
        stream["method"] = _method(stream["method"], stream["options"], len(stream["inside"]))
    if found["spectrum"] is not None:
        found["spectrum"]["vectors"] = found["spectrum"]["vectors"][:, :0]
    certificate = found.get("certificate")
    if certificate is not None:
        certificate["claims"] = [dict(claim) for claim in certificate["claims"]]
        certificate.setdefault("evidence", {})
    return found


def _arguments(options: _Fields) -> _Fields:
    return _Fields(options | options.pop("training"))


def _method(method: _Fields, options: Values, k: int) -> _Fields:
    rule, prior = method["rule"], Options(**options).prior
    found = {
        "name": method["name"],
        "penalties": method["objective"].get("penalties", np.zeros(k)),
        "prior": PRIORS[prior](k) if isinstance(prior, str) else prior / prior.sum(),
        "tied": method["tied"],
        "rng": rule.get("rng") or rule.get("random") or np.random.default_rng(0),
    }
    return _Fields(found)


def _network(state: _Fields, _: _Fields) -> _Fields:
    state["ref"] = str(state["ref"].dtype)
    if state["trained"] is not None:
        _rename(state["trained"]["optimum"])
    return state


def _rename(optimum: _Fields) -> None:
    if "beyond" in optimum:
        optimum["next_singular_value"] = optimum.pop("beyond")


def _regressor(state: _Fields, estimator: _Fields) -> _Fields:
    former = {"dropout": dropout_of(state["strength"]), "shrink": True, "alpha": 0.0}
    state = _Fields(former | _network(state, estimator))
    state["cv"] = state.get("cv") or estimator.get("cv_")
    return state


def _factorization(state: _Fields, _: _Fields) -> _Fields:
    state["ref"] = str(state["ref"].dtype)
    if "solution" in state:
        for name in ("tolerance", "trained"):  # of 0.1
            state.pop(name, None)
        _rename(state["solution"])
    else:
        state.setdefault("completed", True)
    state.setdefault("dropout", dropout_of(state["strength"]))  # which 0.1 did not store
    return state


def _sparse(state: _Fields, estimator: _Fields) -> _Fields:
    figures: Any = state.pop("figures", None) or state.pop("summary")
    fitted = [name for name in estimator if name in SPARSE]  # as 0.1 kept them
    results = state.get("results") or {name: estimator.pop(name) for name in fitted}
    estimator |= state.pop("_attributes", None) or {}  # what a user had changed in place
    state |= {"results": _Fields(results)}
    state |= {"stability": figures.get("path")}
    state |= {"noise_rule": figures.get("noise_rule", "").replace("floor", "learn")}
    state["parameters"] = _Fields(state.get("parameters") or {})
    return _Fields({"noise_level": 1.0} | state)


SPARSE = (
    *("coef_", "intercept_", "relevance_", "support_", "noise_variance_", "energy_"),
    *("history_", "n_iter_", "status_"),
)
ESTIMATORS: dict[str, Callable[[_Fields, _Fields], _Fields]] = {
    "LinearAutoencoder": _linear,
    "DropoutRegressor": _regressor,
    "DropoutAutoencoder": _network,
    "DropoutFactorization": _factorization,
    "SparseVAE": _sparse,
}
