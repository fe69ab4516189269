"""Figures of dropout weights that a certificate is made of, and the attributes it checks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from lucidae.io.models import saved_as

EPSILON = float(np.finfo(np.float64).eps)

ATTRIBUTES = 1e-6
"""Largest relative difference of a reported attribute from the data, beyond the rounding of its
dtype. The exact solver and the verifier agree to about 1e-12 on well-conditioned data."""


MEAN_ERROR = 64 * EPSILON
"""Relative rounding error of a mean, in units of standard deviations."""


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
    coef : array of shape (d1, d2), optional
        ``coef_``.
    output_bias, output_bias_error : arrays of shape (d1,), optional
        Mean prediction over the given rows minus the mean of their targets, less the rounding of
        the prediction, and a bound on the error of this difference.
    mean_shift : array of shape (d2,), optional
        ``mean_`` minus the mean of the given rows, less the rounding of ``mean_``.
    settings : tuple of pairs of float
        Attributes that repeat a setting, such as ``dropout_``, each with the value in use.
    rows : tuple of float, optional
        The objective measured on the rows themselves, and a bound on its rounding error.
    precision : float
        Rounding unit of the dtype in which the attributes are returned.
    """

    objective: float
    rank: int
    threshold: float
    singular_values: Any
    coef: Any = None
    output_bias: Any = None
    output_bias_error: Any = None
    mean_shift: Any = None
    settings: tuple[tuple[float, float], ...] = ()
    rows: tuple[float, float] | None = None
    precision: float = EPSILON


def _upgraded_figures(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of figures from those that an earlier version saved."""
    return {
        "white": True,
        "rank_band": (fields["optimal_rank"], fields["optimal_rank"]),
        "subgradient": None,
        "attributes": None,
        "attributes_error": 0.0,
        "gap_error": 0.0,
        "error": 0.0,
        "optimum_error": 0.0,
        "undecided": 0.0,
        "condition": 1.0,
        "dropped": 0,
        "from_rows": False,
        "inconsistency": 0.0,
        "lower_bound": None,
        "reached": None,
        "separated": None,
        "precision": EPSILON,
        "sampling": "This certificate was saved before sampling noise was measured.",
        "evidence": {},
    } | fields


@saved_as(
    "lucidae.dropout.figures/3",
    formerly=(
        "lucidae.dropout.measurement:Measurement",
        "lucidae.dropout.figures/1",
        "lucidae.dropout.figures/2",
    ),
    upgrade=_upgraded_figures,
)
@dataclass(frozen=True, slots=True)
class DropoutFigures:
    """Figures that `measure` found for given weights.

    In the notation of `lucidae.dropout.verifier`, x' are the inputs in white coordinates,
    M = E[yx'ᵀ] is the least-squares map, and V' are the incoming weights for x'.

    Parameters
    ----------
    strength, width, tied
        The strength λ of dropout, the number r of hidden units, and whether both layers share
        their weights.
    white : bool
        Whether the second moment E[xxᵀ] of the inputs is the identity.
    value : float
        The expected dropout loss f of the weights.
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
        Smallest and largest rank of the optimal product that `BAND` and rounding leave possible.
    product_distance : float or None
        Relative distance to the optimal product; None if that is not known or not unique.
    subgradient : float or None
        Violation of the optimality conditions of the product, relative to √E‖y‖².
    attributes, attributes_error : float or None
        Relative difference of the reported attribute that agrees least with the data, and its
        error.
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
    optimum_error : float
        Bound on the relative rounding error of the optimal product. It grows with λ, since the
        optimal singular values are differences sᵢ − α that tend to zero.
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
    lower_bound : float or None
        A lower bound of f where its minimum is not known: the minimum for separate layers.
    reached : float or None
        The smallest loss that a descent from the weights reached, where the minimum is not known.
    separated : int or None
        Number of leading components that are separated from sampling noise; None if the data are
        not a sample, or too few.
    sampling : str
        A sentence that says how `separated` was found, or why it was not.
    precision : float
        Rounding unit of the dtype of the weights.
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
    optimum_error: float
    undecided: float
    condition: float
    dropped: int
    from_rows: bool
    inconsistency: float
    lower_bound: float | None
    reached: float | None
    separated: int | None
    sampling: str
    precision: float
    evidence: dict[str, Any]

    @property
    def gap(self) -> float | None:
        """(f − min f) / E‖y‖²; without targets that vary, f − min f."""
        return None if self.optimum is None else self.share(self.value - self.optimum)

    def share(self, loss: float) -> float:
        """Return a difference of losses relative to E‖y‖², as it is if the targets are constant."""
        return loss / (self.energy if self.energy > 0 else 1.0)
