"""Reads what `lucidae.save` of versions 0.1 to 0.3 wrote: formats 1 and 2.

These files contain a tree of records of the internal classes of their time. Records become plain
dicts here, and one function per estimator makes today's snapshot (`lucidae.snapshots`) of them.
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
from lucidae.certificate import Certificate
from lucidae.dropout.certificate import CERTIFIED, claims
from lucidae.dropout.figures import EPSILON, DropoutFigures
from lucidae.dropout.theory import dropout_of
from lucidae.dropout.verified_completion import CompletionFigures, completion_certificate
from lucidae.iteration import Status
from lucidae.models import built, check_part
from lucidae.snapshots import Values, certificate_values, flat, restored
from lucidae.sparsity.certificate import certificate_of
from lucidae.sparsity.figures import FORMER, SparseFigures

__all__ = ["loaded"]

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


def loaded(tree: Any, arrays: Mapping[str, Any]) -> Any:
    """Return the estimator that the tree in the header of a file describes."""
    found = _plain(tree, arrays)
    if not hasattr(found, "fit"):
        raise ValueError(f"it contains an object of type {type(found).__name__}, not an estimator")
    return found


def _plain(tree: Any, arrays: Mapping[str, Any]) -> Any:
    """Return the value of a tree: estimators as they are, other records as dicts of fields."""
    if not isinstance(tree, dict):
        return tree
    if "array" in tree:
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
    fields = {name: _plain(item, arrays) for name, item in tree["fields"].items()}
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
        return {"name": name.removesuffix("Penalty").lower()} | fields
    return fields


def _estimator(name: str, fields: Values) -> Any:
    """Return an estimator from the attributes that it had, by name."""
    names = inspect.signature(getattr(lucidae, name)).parameters
    state = fields.pop("_state", None) or fields.pop("_kept")
    parameters = {key: fields.pop(key) for key in names if key in fields}
    parameters.setdefault("verbose", False)  # as it was before there was the parameter
    parameters = {key: value for key, value in parameters.items() if key in names}
    if isinstance(state.get("recipe"), dict):  # 0.1 kept results beside the state
        results = state["_results"] or {}
        state = state["recipe"] | {"tolerance": _former_tolerance(state["recipe"])}
        state["trained"] = results.get("outcome") or state.pop("outcome", None)
    values = ESTIMATORS[name](state, fields)
    attributes = {
        key: value for key, value in fields.items() if not isinstance(value, dict) and key != "cv_"
    }
    return built(name, parameters, attributes, values)


def _former_tolerance(recipe: Values) -> float:
    return CERTIFIED if recipe.get("outcome") is None else 1e-2


def _linear(state: Values, _: Values) -> Values:
    values = flat("fit", _arguments(state["options"]))
    values |= {"dtype": str(state["reference"].dtype), "rounding": state.get("_rounding", 0.0)}
    for name in ("moment", "seen", "observed"):
        values |= flat(name, state.get(name))
    values |= flat("probe", state.get("_probe")) | flat("previous", state["previous"])
    spectrum, model, stream = state["_spectrum"], state["_model"], state["stream"]
    if spectrum is not None:
        values |= flat("spectrum", {name: v for name, v in spectrum.items() if name != "vectors"})
    if model is not None and stream is None:
        outcome = model.pop("outcome")
        values |= flat("model", model) | flat("weights", outcome["weights"])
        values |= _method(outcome["method"], len(model["encoder"])) | _history(outcome["history"])
        values |= {name: outcome[name] for name in ("status", "n_iter", "learning_rate")}
    if stream is not None:
        steps = stream.pop("state")
        for name, entry in steps["optimizer"].items():
            values |= flat(f"stream.{name}", entry) if name != "steps" else {"stream.steps": entry}
        values |= {"stream.count": steps["steps"]}
        values |= flat("stream.fit", _arguments(stream.pop("options")))
        values |= _method(stream.pop("method"), len(stream["inside"])) | flat("stream", stream)
    incomplete = state.get("incomplete")
    if incomplete is not None:
        for name in ("statistics", "moment"):
            values |= flat(f"incomplete.{name}", incomplete.pop(name))
        values |= flat("incomplete", incomplete)
    return values | flat("certificate", state.get("_certificate"))


def _arguments(options: Values) -> Values:
    return options | dict(options.pop("training"))


def _method(method: Values, k: int) -> Values:
    rule, penalties = method["rule"], method["objective"].get("penalties")
    own = {
        "penalties": np.zeros(k) if penalties is None else penalties,
        "tied": method["tied"],
        "rng": rule.get("rng") or rule.get("random") or np.random.default_rng(0),
    }
    return flat("method", own)


def _history(history: Values) -> Values:
    return {"history.iterations": history["iterations"]} | flat("history.values", history["values"])


def _network(state: Values) -> Values:
    names = ("strength", "width", "tolerance", "row_objective", "objective")
    values = {name: state.get(name) for name in names} | {"dtype": str(state["ref"].dtype)}
    values |= flat("moment", state["moment"])
    trained, figures = state["trained"], state.get("figures")
    if trained is not None:
        optimum = trained["optimum"]
        values |= flat("weights", trained["weights"]) | flat("optimum", optimum["weights"])
        values |= _optimum(optimum) | _history(trained["history"])
        values |= {name: trained[name] for name in ("status", "n_iter")}
    if figures is not None:
        values |= _judged("DropoutAutoencoder", figures, state["tolerance"])
    return values


def _optimum(optimum: Values) -> Values:
    renamed = {"beyond": "next_singular_value"}
    fields = {renamed.get(name, name): v for name, v in optimum.items() if name != "weights"}
    return flat("optimum", fields)


def _judged(title: str, figures: Values, tolerance: float) -> Values:
    """Return the certificate that follows from values measured by an earlier version."""
    optimum = figures["optimum"]
    former = {
        "excess": 0.0 if optimum is None else figures["value"] - optimum,
        "explainable": figures["energy"],
        "white": True,
        "rank_band": (figures["optimal_rank"], figures["optimal_rank"]),
        **dict.fromkeys(("subgradient", "attributes", "lower_bound", "decrease", "separated")),
        **dict.fromkeys(("attributes_error", "gap_error", "error", "optimum_error"), 0.0),
        **dict.fromkeys(("undecided", "inconsistency", "missed"), 0.0),
        "condition": 1.0,
        "dropped": 0,
        "from_rows": False,
        "precision": EPSILON,
        "sampling": "This certificate was saved before sampling noise was measured.",
        "evidence": {},
    }
    known = {name: value for name, value in figures.items() if name != "reached"}
    found = DropoutFigures(**former | known)
    return certificate_values(Certificate(title, claims(found, tolerance), found.evidence))


def _regressor(state: Values, estimator: Values) -> Values:
    former: Values = {"dropout": dropout_of(state["strength"]), "shrink": True, "alpha": 0.0}
    state = former | state
    names = ("n_features", "centered", "flat", "dropout", "shrink", "alpha")
    values = _network(state) | {name: state[name] for name in names}
    root = state.get("root")
    if isinstance(root, dict):
        entries = root.pop("entries") or ()
        values |= flat("rows", root) | flat("rows.entries", dict(enumerate(entries)))
    else:
        values["root"] = root
    return values | flat("cv", state.get("cv") or estimator.get("cv_"))


def _factorization(state: Values, _: Values) -> Values:
    values = {"dtype": str(state["ref"].dtype), "strength": state["strength"]}
    values |= {"dropout": state.get("dropout")} | flat("cv", state.get("cv"))
    title, figures = "DropoutFactorization", state["figures"]
    if "solution" in state:
        values |= flat("weights", state["solution"]["weights"]) | _optimum(state["solution"])
        return values | ({} if figures is None else _judged(title, figures, CERTIFIED))
    values |= {name: state[name] for name in ("n_iter", "tolerance")}
    names = ("rank", "threshold", "singular_values", "value")
    values |= flat("weights", state["weights"])
    values |= flat("optimum", {name: state[name] for name in names})
    if figures is not None:
        found = CompletionFigures(**figures)
        values |= certificate_values(completion_certificate(title, found, state["tolerance"]))
    return values


def _sparse(state: Values, estimator: Values) -> Values:
    results = state.get("results")
    if results is None:  # 0.1 kept them as attributes of the estimator
        results = {name: estimator.pop(name) for name in list(estimator) if name in SPARSE_RESULTS}
    figures: Values = state.get("figures") or state["summary"]
    figures = {name: v for name, v in figures.items() if name not in ("certificate", "dimension")}
    if figures.get("position") is not True:  # uniqueness was assumed once
        figures |= {"spark": None, "position": False, "position_reason": FORMER}
    title = figures["title"].removeprefix("SparseVAE, ")
    found = SparseFigures(**{"n_used": figures["n_active"]} | figures | {"title": title})
    estimator |= state.get("_attributes") or {}  # what a user had changed in place
    posterior = state["posterior"]
    axes = posterior.pop("axes", None)
    names = ("center", "rest", "level")
    return (
        _history(results.pop("history_"))
        | results
        | {name: state.get(name) for name in names}
        | {"noise_level": state.get("noise_level", 1.0), "stability": found.path}
        | {"noise_rule": found.noise_rule.replace("floor", "learn")}
        | flat("fit", state.get("parameters"))
        | flat("posterior", posterior)
        | flat("posterior.axes", axes)
        | certificate_values(certificate_of(found, f"SparseVAE, {title}"))
    )


SPARSE_RESULTS = (
    *("coef_", "intercept_", "relevance_", "support_", "noise_variance_", "energy_"),
    *("history_", "n_iter_", "status_"),
)

ESTIMATORS: dict[str, Callable[[Values, Values], Values]] = {
    "LinearAutoencoder": _linear,
    "DropoutRegressor": _regressor,
    "DropoutAutoencoder": lambda state, _: _network(state),
    "DropoutFactorization": _factorization,
    "SparseVAE": _sparse,
}
