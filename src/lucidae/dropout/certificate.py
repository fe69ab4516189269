"""Claims about dropout networks, from the figures that `lucidae.dropout.verifier` measures."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from lucidae.arrays import as_double, is_array, like, to_numpy
from lucidae.certificate import (
    Certificate,
    Claim,
    at_least,
    at_most,
    certifies,
    does_not_apply,
    reported,
    undecided,
)
from lucidae.data import in_memory
from lucidae.dropout.batches import BlockProblem, loaded_or_problem
from lucidae.dropout.figures import ATTRIBUTES, DropoutFigures, ReportedAttributes
from lucidae.dropout.landscape import classify
from lucidae.dropout.moments import joint_moment, row_problem
from lucidae.dropout.objectives import LinearProblem, Weights, check_hidden_units
from lucidae.dropout.theory import strength_of
from lucidae.dropout.verifier import CERTIFIED, measure
from lucidae.moments import SecondMoment
from lucidae.validation import check_flag, check_number, check_rows, check_weights

__all__ = ["CERTIFIED", "DropoutFigures", "certify_weights", "claims", "measure"]

LARGEST_GAP = 2e-2
"""Largest gap, relative to E‖y‖², that the certificate of a fit by SGD allows, whatever its `tol`:
weights with a larger gap are not called a global minimum."""

CONSISTENT = 1e-9
"""Largest difference between the second moment of the rows and that of their triangular factor, in
units of standard deviations: more than the rounding errors of 10⁶ rows, less than any error that
changes a certified gap."""

UNCERTAIN_CURVATURE = 4.0
"""Where the relative norm of the gradient is g, the Hessian differs from that of the nearest
critical point by about UNCERTAIN_CURVATURE · g."""

SINGLE = 1e-10
"""Rounding units above this are those of single precision."""

_EXACT = "solver='exact' computes the optimum from one decomposition."
_NO_DROPOUT = "Without dropout the loss depends on the product U Vᵀ alone."
_CORRELATED = (
    "Theorems 3.3 and 3.4 of Mianjy et al. 2018 hold for separate layers, and for tied layers with "
    "white inputs. With tied layers and correlated inputs the optimum is in general not equalized."
)
_REMEDY = "Call fit, or lucidae.certify, with all rows at once: they have more digits than moments."
_SEE = "float64 does not determine the gap: see the claim on conditioning."
_NOT_KNOWN = "No closed form is known for tied weights with inputs that are not white."


def claims(figures: DropoutFigures, tolerance: float) -> tuple[Claim, ...]:
    """Return the claims that the figures support, most important first.

    Parameters
    ----------
    figures : DropoutFigures
        The result of `measure`.
    tolerance : float
        Relative gap up to which weights count as optimal. Relative distances are compared with
        its square root, since the gap is quadratic in them.

    Returns
    -------
    tuple of Claim
    """
    gap = _gap(figures, tolerance)
    compared: tuple[Claim, ...] = (
        _subgradient(figures, tolerance),
        _product(figures, tolerance),
        _equalized(figures, tolerance),
        _path_norm(figures, tolerance),
        _rank(figures, tolerance),
        _stationarity(figures, tolerance),
        _curvature(figures, tolerance, decided=gap.holds is not None),
        *_attributes(figures),
    )
    if figures.undecided > tolerance or (figures.gap is not None and gap.holds is None):
        # Neither the optimum nor the distance to it is known, so nothing can be compared with it.
        compared = tuple(
            undecided(claim.name, claim.statement, claim.reference, _SEE) for claim in compared
        )
    return (
        gap,
        *compared,
        _conditioning(figures, tolerance),
        *_small_dropout(figures),
        _sampling(figures),
    )


def _gap(figures: DropoutFigures, tolerance: float) -> Claim:
    """Claim a gap between −tolerance and tolerance: below, the value or the bound is wrong."""
    if figures.gap is None:
        return _bounded_gap(figures, tolerance)
    reference = f"Mianjy et al. 2018, Theorem {'2.4' if figures.tied else '3.6'}"
    gap, error = figures.gap, figures.gap_error
    if gap + error < -tolerance:
        why = "The loss is below its lower bound, so one of them was computed wrongly."
        return Claim("gap", _MINIMUM, reference, gap, tolerance, False, why, error)
    if gap < -tolerance or error > tolerance:
        # An error above the tolerance leaves room for a smaller loss, however small the gap is.
        if gap - error > tolerance:
            why = _training(figures) if figures.from_rows else _REMEDY
            return Claim("gap", _MINIMUM, reference, gap, tolerance, False, why, error)
        why = _lost(figures)
        return undecided("gap", _MINIMUM, reference, why, gap, tolerance, error=error)
    at_saddle = figures.curvature is not None and figures.curvature < -math.sqrt(tolerance)
    advice = _saddle_advice(figures) if at_saddle else _training(figures)
    return at_most("gap", _MINIMUM, reference, gap, tolerance, advice, error=error)


_MINIMUM = "the expected dropout loss is its global minimum"


def _bounded_gap(figures: DropoutFigures, tolerance: float) -> Claim:
    """Claim a small gap where the minimum is not known, from a lower and an upper bound of it.

    The minimum for separate layers bounds the loss of tied layers from below; a loss that a
    descent reached bounds the minimum from above.
    """
    reference = "Mianjy et al. 2018, Theorem 3.6, as a bound for tied layers"
    assert figures.lower_bound is not None
    error = figures.gap_error
    most = figures.share(figures.value - figures.lower_bound)
    if most + error < -tolerance or abs(most) + error <= tolerance:
        why = "The loss is below its lower bound, so one of them was computed wrongly."
        return at_most("gap", _MINIMUM, reference, abs(most), tolerance, why, error=error)
    reached = figures.value if figures.reached is None else figures.reached
    least = figures.share(figures.value - reached)
    if least - error > tolerance:
        why = f"L-BFGS from these weights reaches a loss that is smaller by {least:.2g} of E‖y‖²."
        return Claim("gap", _MINIMUM, reference, least, tolerance, False, why, error)
    why = (
        f"{_NOT_KNOWN} The gap lies between 0 and {most:.2g}, the distance to the minimum for "
        "separate layers; L-BFGS from these weights found no smaller loss."
    )
    return undecided("gap", _MINIMUM, reference, why, most, tolerance, error=error)


def _training(figures: DropoutFigures) -> str:
    """Return the advice for weights that are not optimal."""
    rounded = figures.precision > SINGLE
    hint = " The weights are rounded to float32: fit to rows in float64." if rounded else ""
    return f"Train longer with a decreasing learning rate; {_EXACT}{hint}"


def _lost(figures: DropoutFigures) -> str:
    """Return a sentence that says why rounding errors leave the gap undecided."""
    dropped = (
        f" The number of directions of the inputs that cannot be told from constants is "
        f"{figures.dropped}."
        if figures.dropped
        else ""
    )
    remedy = "" if figures.from_rows else f" {_REMEDY}"
    return (
        f"float64 does not decide it: rounding errors may change the gap by "
        f"{figures.gap_error:.1g} of E‖y‖², because the second moment of the standardised inputs "
        f"has the condition number {figures.condition:.1g}.{dropped}{remedy}"
    )


def _saddle_advice(figures: DropoutFigures) -> str:
    return f"The weights are at a strict saddle. {figures.reason}"


def _subgradient(figures: DropoutFigures, tolerance: float) -> Claim:
    statement = "the product U Vᵀ satisfies the optimality conditions of the convex relaxation"
    reference = "Mianjy et al. 2018, Theorem 3.6 (Cavazza et al. 2018)"
    if figures.subgradient is None:
        return does_not_apply("subgradient", statement, reference, _NOT_KNOWN)
    return at_most(
        "subgradient",
        statement,
        reference,
        figures.subgradient,
        math.sqrt(tolerance),
        f"Some singular value of the product differs from the optimal one. {_EXACT}",
        error=figures.error,
    )


def _product(figures: DropoutFigures, tolerance: float) -> Claim:
    statement = "the network computes the optimal function: the least-squares map, shrunk"
    reference = "Mianjy et al. 2018, Theorem 3.6"
    if figures.product_distance is None:
        why = (
            _NOT_KNOWN
            if figures.optimum is None
            else "The optimal function is not unique: the last singular value of the least-squares "
            "map that fits into the hidden layer equals the next one within the tolerance."
        )
        return does_not_apply("product", statement, reference, why)
    return at_most(
        "product",
        statement,
        reference,
        figures.product_distance,
        math.sqrt(tolerance),
        f"The network computes a function that differs from the optimal one. {_EXACT}",
        error=figures.error + figures.optimum_error,
    )


def _equalized(figures: DropoutFigures, tolerance: float) -> Claim:
    statement = "all hidden units have equal importance: variance over squared mean of the scores"
    reference = "Mianjy et al. 2018, Theorem 3.4"
    why = _why_not_equalized(figures)
    if why:
        return does_not_apply("equalized", statement, reference, why)
    advice = "lucidae.equalize_pair equalizes the units without changing the product."
    variance = figures.relative_variance
    error = _error_of_square(variance, figures.error)
    return at_most("equalized", statement, reference, variance, tolerance, advice, error=error)


def _path_norm(figures: DropoutFigures, tolerance: float) -> Claim:
    statement = "the path norm is the smallest one of all weights with this product U Vᵀ"
    reference = "Mianjy et al. 2018, Theorems 3.3 and 3.4"
    why = _why_not_equalized(figures)
    if why:
        return does_not_apply("path_norm", statement, reference, why)
    advice = "lucidae.equalize_pair minimises the path norm without changing the product."
    excess = figures.path_excess
    error = _error_of_square(excess, figures.error)
    return at_most("path_norm", statement, reference, excess, tolerance, advice, error=error)


def _error_of_square(figure: float, error: float) -> float:
    """Return the error of a figure that is quadratic about its minimum zero.

    Importance scores with relative errors e change a figure v by at most 2e√v + e².
    """
    return 2 * error * math.sqrt(max(figure, 0.0)) + error**2


def _why_not_equalized(figures: DropoutFigures) -> str:
    """Return the reason why the optimum need not be equalized; empty where it is equalized."""
    if figures.strength == 0:
        return _NO_DROPOUT
    return _CORRELATED if figures.tied and not figures.white else ""


def _rank(figures: DropoutFigures, tolerance: float) -> Claim:
    statement = (
        f"the product U Vᵀ has the rank of the optimal one with {figures.width} hidden units"
    )
    reference = "Mianjy et al. 2018, Theorem 3.6"
    rank, optimal = figures.rank, figures.optimal_rank
    lowest, highest = figures.rank_band
    if optimal is None or lowest is None or highest is None:
        return does_not_apply("rank", statement, reference, _NOT_KNOWN)
    if rank != optimal and lowest <= rank <= highest:
        why = (
            "The numerical rank of the optimal product is not defined: one of its singular values "
            f"is about {math.sqrt(tolerance):.1g} of the largest, at which zero is told from "
            "nonzero, or is smaller than its rounding error."
        )
        return undecided("rank", statement, reference, why, float(rank), float(optimal))
    advice = "" if rank == optimal else _rank_advice(rank > optimal)
    return Claim("rank", statement, reference, float(rank), float(optimal), not advice, advice)


def _rank_advice(too_large: bool) -> str:
    if too_large:
        return f"The network uses directions that dropout removes at the optimum. {_EXACT}"
    return f"The network lacks directions that are present at the optimum. {_EXACT}"


def _stationarity(figures: DropoutFigures, tolerance: float) -> Claim:
    return at_most(
        "stationarity",
        "the gradient of the expected dropout loss vanishes",
        "Mianjy et al. 2018, eq. 2",
        figures.stationarity,
        math.sqrt(tolerance),
        f"Training has not converged. {_EXACT}",
        error=figures.error,
    )


def _curvature(figures: DropoutFigures, tolerance: float, *, decided: bool) -> Claim:
    """Claim that no curvature is negative; needed only where the gap is not decided."""
    statement = "the Hessian has no negative eigenvalue, so the point is not a strict saddle"
    reference = f"Mianjy et al. 2018, {'Theorem 4.3' if figures.tied else 'Definition 4.2'}"
    if figures.curvature is None or math.isnan(figures.curvature):
        state = does_not_apply if decided else undecided
        return state("curvature", statement, reference, figures.reason)
    level, advice = -math.sqrt(tolerance), _saddle_advice(figures)
    error = UNCERTAIN_CURVATURE * figures.stationarity + figures.error
    return at_least(
        "curvature", statement, reference, figures.curvature, level, advice, error=error
    )


def _attributes(figures: DropoutFigures) -> tuple[Claim, ...]:
    """Claim that the attributes of the estimator are those of the data."""
    if figures.attributes is None:
        return ()
    return (
        at_most(
            "attributes",
            "the fitted attributes agree with the weights and the data",
            "Mianjy et al. 2018, Theorem 3.6",
            figures.attributes,
            ATTRIBUTES,
            "The attributes do not belong to these weights and data, or they were changed.",
            error=figures.attributes_error,
        ),
    )


def _conditioning(figures: DropoutFigures, tolerance: float) -> Claim:
    """Claim that the gap is known within the tolerance."""
    statement = "rounding errors change the gap, relative to E‖y‖², by at most the tolerance"
    reference = "Higham 2002, sections 10.3 and 19.4"
    if figures.inconsistency > CONSISTENT:
        why = "The rows and their second moment differ, so one of them is wrong."
        value = figures.inconsistency
        return Claim("conditioning", statement, reference, value, CONSISTENT, False, why)
    share = figures.gap_error
    if share > tolerance:
        why = _lost(figures)
        return undecided("conditioning", statement, reference, why, share, tolerance)
    note = (
        f"The number of directions of the inputs that count as constant is {figures.dropped}: "
        "their standard deviation, relative to the features, is at the level of rounding errors."
        if figures.dropped
        else ""
    )
    return Claim("conditioning", statement, reference, share, tolerance, True, note)


def _small_dropout(figures: DropoutFigures) -> tuple[Claim, ...]:
    """Report the strength below which Mianjy et al. 2018, Theorem 4.3 applies, for tied weights."""
    if figures.paper_bound is None:
        return ()
    inside = figures.strength < figures.paper_bound
    advice = (
        f"The strength of this dropout, {figures.strength:.3g}, is "
        f"{'below' if inside else 'above'} it. Every local minimum is global in both cases (proof "
        "in the docstring of lucidae.dropout.theory)."
    )
    return (
        reported(
            "small_dropout",
            "the optimum has full rank if dropout/(1 − dropout) is below this strength",
            "Mianjy et al. 2018, Theorem 4.3",
            figures.paper_bound,
            advice,
        ),
    )


def _sampling(figures: DropoutFigures) -> Claim:
    """Report how many components another sample of the same size would show again."""
    statement = "number of leading components that are separated from sampling noise"
    reference = "Bunea, She & Wegkamp 2011 (regression); Johnstone 2001 (autoencoder)"
    if figures.separated is None:
        return does_not_apply("sampling", statement, reference, figures.sampling)
    count = float(figures.separated)
    return reported("sampling", statement, reference, count, figures.sampling)


def certificate_of(
    problem: LinearProblem,
    weights: Weights,
    strength: float,
    *,
    title: str,
    tied: bool = False,
    tolerance: float = CERTIFIED,
    reported: ReportedAttributes | None = None,
) -> Certificate:
    """Return the certificate of weights on a problem; `title` says what is certified.

    The other arguments are those of `lucidae.dropout.verifier.measure`.
    """
    check_problem(problem, weights)
    weights = Weights(*(like(part, problem.cross) for part in weights))
    figures = measure(problem, weights, strength, tied=tied, tolerance=tolerance, reported=reported)
    figures = _explained(figures, problem, weights, tolerance)
    return Certificate(title, claims(figures, tolerance), figures.evidence)


def _explained(
    figures: DropoutFigures, problem: LinearProblem, weights: Weights, tolerance: float
) -> DropoutFigures:
    """Add the sentence of `classify` if tied weights are at a saddle; no figure changes."""
    at_saddle = figures.curvature is not None and figures.curvature < -math.sqrt(tolerance)
    if not (figures.tied and figures.white and at_saddle):
        return figures
    verdict = classify(
        weights.left, problem.cross, figures.strength, tolerance=tolerance, critical=math.inf
    )
    reason = f"{verdict.reason} lucidae.dropout.landscape.classify returns the direction."
    return replace(figures, reason=reason)


def check_problem(problem: LinearProblem, weights: Weights) -> None:
    """Refuse weights that do not fit the numbers of outputs and inputs of a problem."""
    given = (weights.left.shape[0], weights.right.shape[0])
    if tuple(problem.cross.shape) != given:
        raise ValueError(
            f"the data have {problem.cross.shape[0]} outputs and {problem.cross.shape[1]} inputs, "
            f"but U and V have {given[0]} and {given[1]} rows."
        )


@certifies("dropout")
def certify_weights(
    U: Any,
    V: Any,
    X: Any = None,
    Y: Any = None,
    *,
    dropout: float,
    tied: bool = False,
    matrix: Any = None,
    fit_intercept: bool = True,
    sample_weight: Any = None,
    tolerance: float = CERTIFIED,
) -> Certificate:
    """Certify the weights of a linear network x ↦ U Vᵀx that was trained with dropout.

    Parameters
    ----------
    U : array of shape (d1, r)
        Outgoing weights of the r hidden units; of a torch model, the weight of the second linear
        layer.
    V : array of shape (d2, r) or None
        Incoming weights; of a torch model, the transposed weight of the first linear layer.
        None for tied weights.
    X : array-like of shape (n, d2), optional
        Inputs.
    Y : array-like of shape (n, d1) or (n,), optional
        Outputs; None for an autoencoder, whose outputs are its inputs.
    dropout : float
        Probability of dropping a hidden unit, in [0, 1).
    tied : bool, default=False
        Whether both layers share U.
    matrix : array-like of shape (d1, d2), optional
        Instead of data, the matrix M of white inputs x with targets y = Mx, or the matrix that
        UVᵀ factorises.
    fit_intercept : bool, default=True
        Whether the network has biases, so that it is judged on centred data.
    sample_weight : array-like of shape (n,), optional
        Frequencies of the rows.
    tolerance : float, default=1e-6
        Gap to the optimum, relative to E‖y‖², up to which the weights count as optimal.

    Returns
    -------
    Certificate

    Examples
    --------
    >>> import numpy as np
    >>> M = np.diag([3.0, 2.0])
    >>> certificate = certify_weights(np.eye(2), np.eye(2), matrix=M, dropout=0.5)
    >>> certificate.holds, certificate["gap"].holds
    (False, False)
    """
    strength = strength_of(dropout)
    check_number(tolerance, "tolerance", low=0.0, open_low=True)
    fit_intercept = check_flag(fit_intercept, "fit_intercept")
    tied = check_flag(tied, "tied") or V is None
    weights = Weights(_layer(U, "U"), _layer(U if tied else V, "V"))
    check_hidden_units(*weights)
    if (X is None) == (matrix is None):
        raise ValueError(
            "give either data (X, and Y unless the network is an autoencoder) or matrix=M."
        )
    problem = (
        data_problem(X, Y, fit_intercept, sample_weight)
        if matrix is None
        else matrix_problem(matrix)
    )
    return certificate_of(
        problem, weights, strength, title="dropout weights", tied=tied, tolerance=tolerance
    )


def _layer(weights: Any, name: str) -> np.ndarray[Any, Any]:
    """Return weights as a float64 NumPy array, detached from automatic differentiation."""
    host = to_numpy(weights) if is_array(weights) else np.asarray(weights)
    return np.asarray(check_rows(host, accept_sparse=False, name=name), dtype=np.float64)


def matrix_problem(matrix: Any) -> LinearProblem:
    """Return the problem of factorising a matrix, which is checked, in double precision."""
    rows = check_rows(matrix, accept_sparse=False, name="matrix")
    return LinearProblem.from_matrix(as_double(rows))


def data_problem(X: Any, Y: Any, fit_intercept: bool, sample_weight: Any) -> LinearProblem:
    """Return the problem of predicting Y from X, or X itself if Y is None."""
    if not (in_memory(X) and in_memory(Y) and in_memory(sample_weight)):
        found = loaded_or_problem(X, Y, sample_weight, centered=fit_intercept)
        if isinstance(found, BlockProblem):
            return found.problem
        X, Y, sample_weight = found
    X = check_rows(X)
    weights = check_weights(sample_weight, X)
    if Y is None:
        return LinearProblem.autoencoder(SecondMoment.of(X, weights), centered=fit_intercept)
    moment = joint_moment(X, Y, weights)
    return row_problem(X, Y, weights, moment, centered=fit_intercept)
