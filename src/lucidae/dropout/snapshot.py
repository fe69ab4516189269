"""What is saved of the fitted dropout estimators."""

from __future__ import annotations

from functools import partial
from typing import Any

from lucidae.dropout.estimators.autoencoder import AutoencoderState
from lucidae.dropout.estimators.factorization import CompletionState, FactorizationState
from lucidae.dropout.estimators.network import TrainedNetwork
from lucidae.dropout.estimators.regressor import RegressionState
from lucidae.dropout.held_out import CrossValidation
from lucidae.dropout.problem import Weights, WideRows
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


# Letters: m features, o outputs, r hidden units, p columns of the moment (features and targets),
# s singular values, n rows, q rows of a factor, c values compared in f folds.
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
    None,
    partial(RegressionState, trained=None),
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
    None,
    partial(FactorizationState, figures=None),
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


def _autoencoder_fields(state: AutoencoderState) -> dict[str, Any]:
    state.settle()
    return vars(state)


SNAPSHOTS = {
    "DropoutAutoencoder": Snapshot(
        Record(
            AutoencoderState,
            _autoencoder_fields,
            partial(AutoencoderState, trained=None),
            **_NETWORK,
        )
    ),
    "DropoutRegressor": Snapshot(_REGRESSION),
    "DropoutFactorization": Snapshot((_COMPLETE, _COMPLETED)),
}
