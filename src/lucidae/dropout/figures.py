"""The values measured for a certificate of dropout weights, and the attributes it checks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

EPSILON = float(np.finfo(np.float64).eps)

ATTRIBUTES = 1e-6
"""Largest relative difference between a fitted attribute and its value computed from the data,
beyond the rounding of its dtype. On well-conditioned data the exact solver and the verifier agree
to about 1e-12."""


MEAN_ERROR = 64 * EPSILON
"""Rounding error of a mean, in units of the standard deviation."""


class ReportedAttributes(NamedTuple):
    """Attributes of a fitted estimator that its certificate compares with the data.

    x are the inputs (d2 features) and y the targets (d1 columns).
    """

    objective: float  # ``objective_``, the expected dropout loss of the weights
    rank: int  # ``rank_``, the rank of the optimal product U Vᵀ of the weights
    threshold: float  # ``threshold_``, the amount by which dropout reduces each singular value
    # ``singular_values_``, those of the least-squares map before they are reduced
    singular_values: Any
    coef: Any = None  # (d1, d2): ``coef_``, the product U Vᵀ
    # (d1,): absolute difference between the mean prediction and the mean target of the given rows,
    # minus the rounding of the prediction, and a bound on the error of this difference
    output_bias: Any = None
    output_bias_error: Any = None
    # (d2,): absolute difference between ``mean_`` and the mean of the given rows, minus the
    # rounding of ``mean_``
    mean_shift: Any = None
    # pairs of an attribute that repeats a setting, such as ``dropout_``, and the setting that was
    # used
    settings: tuple[tuple[float, float], ...] = ()
    # the expected dropout loss measured on the rows themselves instead of their moments, and a
    # bound on its rounding error
    rows: tuple[float, float] | None = None
    precision: float = EPSILON  # rounding unit of the dtype in which the attributes are returned


@dataclass(frozen=True, slots=True)
class DropoutFigures:
    """Values that `lucidae.dropout.verifier.measure` found for given weights U and V.

    U are the outgoing and V the incoming weights of the hidden units, x the inputs and y the
    outputs. x' are the inputs in white coordinates, M = E[yx'ᵀ] is the least-squares map, and V'
    are the incoming weights for x'. "Gap" means the loss minus its global minimum.
    """

    # the strength λ of dropout, the number r of hidden units, and whether both layers share their
    # weights
    strength: float
    width: int
    tied: bool
    value: float  # the expected dropout loss f of the weights
    optimum: float | None  # the global minimum of f; None if no closed form is known
    energy: float  # E‖y‖², the mean squared norm of the outputs
    excess: float  # f minus its global minimum or, if that is not known, minus `lower_bound`
    # ‖M‖², the part of E‖y‖² that least squares explains, to which the gap is relative
    explainable: float
    stationarity: float  # norm of the gradient in white coordinates, relative to 2‖M‖ ‖(U, V')‖
    # variance of the importance scores ‖uᵢ‖ ‖v'ᵢ‖ of the hidden units, divided by their squared
    # mean
    relative_variance: float
    # squared path norm, the sum of the squared importance scores, divided by its minimum over all
    # weights with the same product U V'ᵀ, minus 1
    path_excess: float
    # numerical rank of the product U V'ᵀ, and that of the optimal product; `optimal_rank` is None
    # if the optimum is not known
    rank: int
    optimal_rank: int | None
    # distance of the product U V'ᵀ from the optimal product, divided by the norm of the optimal
    # product; None if the optimal product is not known or not unique
    product_distance: float | None
    # smallest eigenvalue of the Hessian in white coordinates, relative to ‖M‖; None if it was not
    # measured
    curvature: float | None
    # A sentence about the curvature: why it was not measured, or which function returns its
    # direction
    reason: str
    # the strength of dropout below which Mianjy et al. 2018, Theorem 4.3 applies; None if the
    # layers are not tied or the optimum is not known
    paper_bound: float | None
    white: bool  # whether the second moment E[xxᵀ] of the inputs is the identity
    # smallest and largest rank that the optimal product may have, given rounding errors and the
    # constant `lucidae.dropout.verifier.BAND`; (None, None) if the optimum is not known
    rank_band: tuple[int, int] | tuple[None, None]
    # amount by which the product U V'ᵀ violates the first-order optimality conditions, divided by
    # ‖M‖; None if the optimum is not known
    subgradient: float | None
    # relative difference of the fitted attribute that agrees least with the data (None if no
    # attributes were given), and a bound on its rounding error
    attributes: float | None
    attributes_error: float
    # bound on the error of the gap, divided by ‖M‖², that is caused by rounding, by ill-conditioned
    # inputs, and by singular values of M that were not computed (`missed`)
    gap_error: float
    # bound on the relative rounding error of the values that are computed from U, V' and M alone,
    # without the optimum
    error: float
    optimum_error: float  # bound on the relative rounding error of the optimal product
    # bound on the error of the minimum that is caused by ill-conditioned inputs and by singular
    # values that were not computed, divided by ‖M‖²
    undecided: float
    # condition number of the second moment of the standardised inputs, on their range
    condition: float
    # number of directions in which the inputs count as constant because their standard deviation is
    # as small as rounding errors
    dropped: int
    # whether a QR factorisation of the rows was available, instead of their second moment alone
    from_rows: bool
    # relative difference between the moment that this factorisation implies and the given one
    inconsistency: float
    # the minimum of f for separate layers, which bounds it from below, if the minimum for tied
    # layers is not known; otherwise None
    lower_bound: float | None
    # the largest decrease of the loss by a descent from the weights, if the minimum is not known
    # and the loss exceeds `lower_bound`; otherwise None
    decrease: float | None
    # number of leading singular values of M that exceed sampling noise; None if a matrix was given
    # instead of rows, or if there are too few rows
    separated: int | None
    sampling: str  # A sentence that says how `separated` was found, or why it was not
    precision: float  # rounding unit of the dtype of the weights
    evidence: dict[str, Any]  # the numbers from which these values can be computed again, by name
    # bound on how much smaller the minimum is if M has larger singular values than those that were
    # computed, divided by ‖M‖²; 0 if all were computed
    missed: float

    @property
    def gap(self) -> float | None:
        """Loss minus its global minimum, divided by the part of E‖y‖² that least squares explains.

        E‖y‖² is the mean squared norm of the outputs y. The gap is None if the minimum is not
        known.
        """
        return None if self.optimum is None else self.share(self.excess)

    def share(self, loss: float) -> float:
        """Return `loss`, a difference of losses, divided by the explained part of E‖y‖².

        E‖y‖² is the mean squared norm of the outputs y, and the explained part is what least
        squares explains of it. If that part is zero, the difference is returned undivided.
        """
        return loss / (self.explainable if self.explainable > 0 else 1.0)
