"""What is saved of a fitted `SparseVAE`.

The data are not saved; the certificate, which is computed from them, is.
"""

from __future__ import annotations

from typing import Any

from lucidae.models import HISTORY, STATUS, As, Record, Snapshot
from lucidae.sparsity.fitted import CERTIFIED_PARAMETERS, SparseState
from lucidae.sparsity.objectives import penalty_of, stored_penalty
from lucidae.sparsity.posterior import CorrelatedPosterior, Posterior
from lucidae.sparsity.prior import Axes

__all__ = ["SNAPSHOTS"]

_PENALTY = As(object, stored_penalty, penalty_of)


def _parameters(groups: Any = None, response_covariance: Any = None, **others: Any) -> Any:
    """Return the parameters of a fit; those that may be None are not stored then."""
    return others | {"groups": groups, "response_covariance": response_covariance}


# Letters: m columns, t outputs, g groups of at most c columns, n rows, s selected columns,
# a active columns, b groups with axes of at most d columns, r and f dimensions of the posterior.
_RESULTS = Record(
    dict,
    dict,
    coef_=("tm", "m"),
    intercept_=("t", float),
    relevance_="m",
    group_covariances_="gcc",
    response_covariance_="tt",
    support_="i:s",
    noise_variance_=float,
    noise_variances_="n",
    energy_=float,
    n_iter_=int,
    status_=STATUS,
    history_=HISTORY,
)
_ACTIVE = {"active": "i:a", "roots": "a", "n_columns": int}
_AXES = Record(Axes, members="i:bd", present="bd", vectors="bdd")
_POSTERIOR = (
    Record(Posterior, factor="fa", explicit=bool, axes=_AXES, **_ACTIVE),
    Record(
        CorrelatedPosterior,
        directions="ra",
        powers="r",
        values="t",
        vectors="tt",
        noise=float,
        **_ACTIVE,
    ),
)
_KINDS = dict.fromkeys((*CERTIFIED_PARAMETERS, "noise_cov"), object) | {"penalty": _PENALTY}
_STATE = Record(
    SparseState,
    results=_RESULTS,
    posterior=_POSTERIOR,
    center="m",
    rest="m",
    level="t",
    parameters=Record(dict, dict, _parameters, **_KINDS),
    noise_level=float,
    noise_rule=str,
    stability=object,
)

SNAPSHOTS = {"SparseVAE": Snapshot(_STATE, {"penalty": _PENALTY})}
