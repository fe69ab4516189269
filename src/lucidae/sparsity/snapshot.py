"""What is saved of a fitted `SparseVAE`: its schema, and the conversion of its state.

The measured values of the certificate are not saved, because the certificate itself is.
"""

from __future__ import annotations

from typing import Any

from lucidae.iteration import Status
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
from lucidae.sparsity.correlated_posterior import CorrelatedPosterior
from lucidae.sparsity.fitted import CERTIFIED_PARAMETERS, SparseState
from lucidae.sparsity.group_covariance import Axes
from lucidae.sparsity.penalties import penalty_of, stored_penalty
from lucidae.sparsity.posterior import Posterior

__all__ = ["FORMS"]

# Letters: m columns, t outputs, g groups of at most c columns, n rows, s selected columns,
# a active columns, b groups with axes of at most d columns, r and f dimensions of the posterior.
SCHEMA: Schema = {
    "coef_": ("tm", "m"),
    "intercept_": ("t", float),
    "relevance_": "m",
    "group_covariances_": "gcc",
    "response_covariance_": "tt",
    "support_": "i:s",
    "noise_variance_": float,
    "noise_variances_": "n",
    "energy_": float,
    "n_iter_": int,
    "status_": str,
    **HISTORY,
    "center": "m",
    "rest": "m",
    "level": "t",
    "noise_level": float,
    "noise_rule": str,
    "stability": object,
    **flat("fit", dict.fromkeys((*CERTIFIED_PARAMETERS, "noise_cov"), object)),
    "posterior.active": "i:a",
    "posterior.roots": "a",
    "posterior.n_columns": int,
    "posterior.factor": "fa",
    "posterior.explicit": bool,
    "posterior.axes.members": "i:bd",
    "posterior.axes.present": "bd",
    "posterior.axes.vectors": "bdd",
    "posterior.directions": "ra",
    "posterior.powers": "r",
    "posterior.values": "t",
    "posterior.vectors": "tt",
    "posterior.noise": float,
}


def _values(state: SparseState) -> Values:
    """Return the values of the snapshot of a fitted state."""
    results = dict(state.results)
    values = history_values(results.pop("history_")) | results
    values["status_"] = results["status_"].value
    names = ("center", "rest", "level", "noise_level", "noise_rule", "stability")
    values |= {name: getattr(state, name) for name in names}
    values |= flat("fit", None if state.parameters is None else _stored(state.parameters))
    posterior = flat("posterior", state.posterior)
    axes = posterior.pop("posterior.axes", None)
    return values | posterior | flat("posterior.axes", axes)


def _state(values: Values) -> SparseState:
    """Return the fitted state with the values of a snapshot."""
    results = {name: values[name] for name in values if name.endswith("_")}
    results |= {"history_": history_of(values), "status_": Status(values["status_"])}
    found: Any = part(values, "posterior") or {}
    axes = part(found, "axes")
    own = {name: value for name, value in found.items() if "." not in name}
    kind: Any = CorrelatedPosterior if "directions" in own else Posterior
    parameters = part(values, "fit")
    absent = {"groups": None, "response_covariance": None}  # None is not stored
    return SparseState(
        results,
        kind(**own, **({} if axes is None else {"axes": Axes(**axes)})),
        values["center"],
        None,
        values.get("rest"),
        values.get("level"),
        None if parameters is None else absent | _given(parameters),
        values["noise_level"],
        values["noise_rule"],
        values.get("stability"),
    )


def _stored(parameters: Values) -> Values:
    """Return parameters with the penalty as plain values."""
    return parameters | {"penalty": stored_penalty(parameters["penalty"])}


def _given(stored: Values) -> Values:
    """Return parameters with the penalty as it was given."""
    return stored | {"penalty": penalty_of(stored["penalty"])}


FORMS = {"SparseVAE": SnapshotForm(SCHEMA, _values, _state, _stored, _given)}
