"""Figures of dropout weights that a certificate is made of, and the attributes it checks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from lucidae.io.models import saved_as

EPSILON = float(np.finfo(np.float64).eps)


class ReportedAttributes(NamedTuple):
    """Attributes of an estimator that its certificate compares with the data.

    Attributes
    ----------
    objective : float
        ``objective_``.
    rank : int
        ``rank_``.
    threshold : float
        ``threshold_``.
    singular_values : array
        ``singular_values_``.
    layers : tuple of arrays, optional
        ``left_`` and ``right_``.
    coef, intercept, mean : arrays, optional
        ``coef_``, ``intercept_``, and the mean of the rows [x | y].
    rows : tuple of float, optional
        The objective measured on the rows themselves, and its error.
    precision : float
        Rounding unit of the dtype in which the attributes are returned.
    """

    objective: float
    rank: int
    threshold: float
    singular_values: Any
    layers: Any = None
    coef: Any = None
    intercept: Any = None
    mean: Any = None
    rows: tuple[float, float] | None = None
    precision: float = EPSILON


def _upgraded_figures(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of figures from those that lucidae 0.1.0 saved."""
    return fields | {
        "white": True,
        "rank_band": (fields["optimal_rank"], fields["optimal_rank"]),
        "subgradient": None,
        "attributes": None,
        "attributes_error": 0.0,
        "gap_error": 0.0,
        "error": 0.0,
        "undecided": 0.0,
        "condition": 1.0,
        "dropped": 0,
        "from_rows": False,
        "inconsistency": 0.0,
        "evidence": {},
    }


@saved_as(
    "lucidae.dropout.figures/2",
    formerly=("lucidae.dropout.measurement:Measurement", "lucidae.dropout.figures/1"),
    upgrade=_upgraded_figures,
)
@dataclass(frozen=True, slots=True)
class DropoutFigures:
    """Figures that `measure` found for given weights.

    Parameters
    ----------
    strength, width, tied
        λ, r, and whether both layers share their weights.
    white : bool
        Whether E[xxᵀ] is the identity.
    value : float
        f, the expected dropout loss of the weights.
    optimum : float or None
        The global minimum of f; None if no closed form is known.
    energy : float
        E‖y‖².
    stationarity : float
        Norm of the gradient in white coordinates, relative to 2‖M‖ ‖(U, V')‖.
    relative_variance : float
        Variance of the importance scores over their squared mean.
    path_excess : float
        Relative excess of the squared path norm over its minimum for the same product.
    rank, optimal_rank : int
        Numerical rank of the product, and that of the optimal one; None if it is not known.
    rank_band : tuple of int
        Smallest and largest rank of the optimal product that `BAND` leaves possible.
    product_distance : float or None
        Relative distance to the optimal product; None if that is not known or not unique.
    subgradient : float or None
        Violation of the optimality conditions of the product, relative to √E‖y‖².
    attributes, attributes_error : float or None
        Largest relative difference of a reported attribute from the data, and its error.
    curvature : float or None
        Smallest eigenvalue of the Hessian in white coordinates, relative to ‖M‖; None if it was
        not measured.
    reason : str
        A sentence about the curvature: why it was not measured, or what its direction is.
    paper_bound : float or None
        The strength below which Mianjy et al. 2018, Theorem 4.3 applies; None where that theorem
        makes no statement.
    gap_error : float
        Bound on the error of the gap by rounding and by the conditioning of the inputs.
    error : float
        Bound on the relative rounding error of the figures that involve V' alone.
    undecided : float
        Share of E‖y‖² by which the minimum is uncertain because of the inputs' conditioning.
    condition : float
        Condition number of the second moment of the standardised inputs, on their range.
    dropped : int
        Number of directions that count as constant, besides features that are constant: their
        standard deviation is at the level of rounding errors.
    from_rows : bool
        Whether a factorisation of the rows was available, instead of the moment alone.
    inconsistency : float
        Relative difference of that factorisation from the moment of the rows.
    evidence : dict
        The numbers from which the figures can be computed again.
    """

    strength: float
    width: int
    tied: bool
    value: float
    optimum: float | None
    energy: float
    stationarity: float
    relative_variance: float
    path_excess: float
    rank: int
    optimal_rank: int | None
    product_distance: float | None
    curvature: float | None
    reason: str
    paper_bound: float | None
    white: bool
    rank_band: tuple[int, int] | tuple[None, None]
    subgradient: float | None
    attributes: float | None
    attributes_error: float
    gap_error: float
    error: float
    undecided: float
    condition: float
    dropped: int
    from_rows: bool
    inconsistency: float
    evidence: dict[str, Any]

    @property
    def gap(self) -> float | None:
        """(f − min f) / E‖y‖²; without targets that vary, f − min f."""
        if self.optimum is None:
            return None
        return (self.value - self.optimum) / (self.energy if self.energy > 0 else 1.0)
