"""What is saved of the fitted dropout estimators."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from lucidae.certificates.sketch import Sketch
from lucidae.dropout.autoencoder import AutoencoderState
from lucidae.dropout.factorization import CompletionState, FactorizationState
from lucidae.dropout.network import TrainedNetwork
from lucidae.dropout.path import CrossValidation
from lucidae.dropout.problem import DropoutObjective, Weights, WideRows, host
from lucidae.dropout.regressor import RegressionState
from lucidae.dropout.rows import RowMean
from lucidae.dropout.solvers import ExactSolution
from lucidae.moments import SecondMoment
from lucidae.snapshots import CERTIFICATE, DTYPE, HISTORY, STATUS, Record, Snapshot

__all__ = ["SNAPSHOTS"]


def _wide_rows(**fields: Any) -> WideRows:
    rows = WideRows(**fields)
    if rows.entries is not None:  # products would read beyond the arrays
        rows._sparse.check_format(full_check=True)
    return rows


def _made(kind: Any, /, row_objective: Any = None, judged: Any = None, **fields: Any) -> Any:
    """Return a fitted state; `row_objective` and `judged` are those of earlier versions."""
    del row_objective
    state = kind(**{"trained": None} | fields)
    state._certificate = judged
    trained = state.trained
    if state.objective is None and trained is not None:
        pairs = zip(trained.weights, trained.optimum.weights, strict=True)
        if not all(np.array_equal(host(a), host(b)) for a, b in pairs):  # by SGD
            objective = DropoutObjective(state.problem, state.strength)
            state.objective = float(objective.value(trained.weights))
    return state


def _settled(state: Any) -> dict[str, Any]:
    """Return the fields of a state whose certificate no longer needs the training rows."""
    state.settle()
    fields: dict[str, Any] = vars(state)
    return fields


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
_MEANS = {"weight": float, "center": "p", "offset": "p"}
_SKETCH = Record(
    Sketch,
    shift="p",
    weight=float,
    sums="p",
    images="dp",
    size=float,
    depth=int,
    rows=int,
    peaks="kt",
)
_NETWORK = {
    "moment": (
        Record(SecondMoment, squares="pp", rounding=float, **_MEANS),
        Record(RowMean, deviations="p", **_MEANS),
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
    "sketch": _SKETCH,
    "scales": "p",
    "objective": float,
    "judged": CERTIFICATE,
}
_ROWS = Record(
    WideRows,
    None,
    _wide_rows,
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
    RegressionState,
    _settled,
    partial(_made, RegressionState),
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
_COMPLETE = Record(
    FactorizationState,
    solution=_OPTIMUM,
    **_SHARED,
)
_COMPLETED = Record(
    CompletionState,
    weights=_WEIGHTS,
    rank=int,
    threshold=float,
    singular_values="s",
    value=float,
    n_iter=int,
    tolerance=float,
    **_SHARED,
)


SNAPSHOTS = {
    "DropoutAutoencoder": Snapshot(
        Record(
            AutoencoderState,
            _settled,
            partial(_made, AutoencoderState),
            **_NETWORK,
            refined=bool,
        )
    ),
    "DropoutRegressor": Snapshot(_REGRESSION),
    "DropoutFactorization": Snapshot((_COMPLETE, _COMPLETED)),
}
