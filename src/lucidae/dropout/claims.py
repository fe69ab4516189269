"""Claims about dropout networks, from the values that `lucidae.dropout.verifier` measures."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from lucidae.arrays import is_array, like, to_numpy
from lucidae.certificates.certify import certifies
from lucidae.certificates.claims import (
    Certificate,
    Claim,
    at_least,
    at_most,
    does_not_apply,
    reported,
    undecided,
)
from lucidae.data import in_memory
from lucidae.dropout.figures import ATTRIBUTES, DropoutFigures, ReportedAttributes
from lucidae.dropout.landscape import classify
from lucidae.dropout.problem import (
    SINGLE,
    LinearProblem,
    Weights,
    check_features,
    check_hidden_units,
    check_problem,
)
from lucidae.dropout.projection import has_many_features, projected_rows
from lucidae.dropout.reduction import LARGEST_ROWS
from lucidae.dropout.rows import BlockProblem, loaded_or_problem, rows_problem
from lucidae.dropout.theory import strength_of
from lucidae.dropout.verifier import CERTIFIED, measure
from lucidae.moments import SecondMoment
from lucidae.validation import check_flag, check_number, check_rows, check_weights

LARGEST_GAP = 2e-2
"""Largest gap that the certificate of a fit by SGD allows, whatever its `tol`. The gap is the loss
minus its global minimum, divided by the part of E‖y‖² that least squares explains; weights with a
larger gap are not called optimal."""


CONSISTENT = 1e-9
"""Largest difference between the second moment of the rows and that of their triangular factor (of
a QR factorisation), in units of standard deviations. It exceeds the rounding errors of 10⁶ rows
and is smaller than any difference that could change the verdict of a claim."""


UNCERTAIN_CURVATURE = 4.0
"""If the relative norm of the gradient is g, the Hessian differs from that of the nearest critical
point by about UNCERTAIN_CURVATURE · g."""


UNEXPLAINED = 1e6
"""If E‖y‖², the mean squared norm of the outputs y, exceeds the part of it that least squares
explains by this factor, rounding errors of the outputs limit the accuracy: the outputs have large
means or consist mostly of noise."""


_EXACT = "solver='exact' computes the optimum from one decomposition."


_NO_DROPOUT = (
    "Without dropout the loss depends on the product U Vᵀ alone, not on the norms of single units."
)


_CORRELATED = (
    "Theorems 3.3 and 3.4 of Mianjy et al. 2018 hold for separate layers, and for tied layers with "
    "white inputs. With tied layers and correlated inputs the hidden units of the optimum have in "
    "general unequal norms."
)


_REMEDY = (
    "Call fit, or lucidae.certify, with all rows at once: the rows lose fewer digits to rounding "
    "than their second moment."
)


_SEE = (
    "The errors of the computation are too large to judge the distance to the optimum: see the "
    "claim 'conditioning'."
)


_NOT_KNOWN = "For tied weights and inputs that are not white no formula of the optimum is known."


def claims(figures: DropoutFigures, tolerance: float) -> tuple[Claim, ...]:
    """Return the claims that the measured values support, most important first."""
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
    """Return the claim that the loss equals its global minimum.

    A loss below it by more than the tolerance is refuted too: one of them was computed wrongly.
    """
    if figures.gap is None:
        return _bounded_gap(figures, tolerance)
    reference = f"Mianjy et al. 2018, Theorem {'2.4' if figures.tied else '3.6'}"
    gap, error = figures.gap, figures.gap_error
    if gap + error < -tolerance:
        why = "The loss is below its lower bound, so one of them was computed wrongly."
        return Claim("gap", _MINIMUM, reference, gap, tolerance, False, why, error)
    if gap < -tolerance or error > tolerance:
        # If the error exceeds the tolerance, a smaller loss is possible, however small the gap is.
        # Singular values that were not computed can only make the minimum smaller.
        if gap - (error - figures.missed) > tolerance:
            missed = figures.missed > error / 2
            why = _training(figures) if figures.from_rows or missed else _REMEDY
            return Claim("gap", _MINIMUM, reference, gap, tolerance, False, why, error)
        why = _lost(figures)
        return undecided("gap", _MINIMUM, reference, why, gap, tolerance, error=error)
    at_saddle = figures.curvature is not None and figures.curvature < -math.sqrt(tolerance)
    advice = _saddle_advice(figures) if at_saddle else _training(figures)
    return at_most("gap", _MINIMUM, reference, gap, tolerance, advice, error=error)


_PART = "the part of E‖y‖² that least squares explains"


_MINIMUM = "the expected dropout loss equals its global minimum"


def _bounded_gap(figures: DropoutFigures, tolerance: float) -> Claim:
    """Return the claim that tied weights are optimal, from bounds on the unknown minimum.

    The minimum for separate layers bounds it from below, a loss that a descent reached from above.
    """
    reference = "Mianjy et al. 2018, Theorem 3.6, as a bound for tied layers"
    error = figures.gap_error
    most = figures.share(figures.excess)
    if most + error < -tolerance or abs(most) + error <= tolerance:
        why = "The loss is below its lower bound, so one of them was computed wrongly."
        return at_most("gap", _MINIMUM, reference, abs(most), tolerance, why, error=error)
    least = figures.share(figures.decrease or 0.0)
    if least - error > tolerance:
        why = (
            f"L-BFGS from these weights finds a loss that is smaller by {least:.2g} times {_PART}."
        )
        return Claim("gap", _MINIMUM, reference, least, tolerance, False, why, error)
    why = (
        f"{_NOT_KNOWN} The loss minus the optimum lies between 0 and {most:.2g} times {_PART}: the "
        "optimum of separate layers is smaller by that much, but L-BFGS from these weights found "
        "no smaller loss of tied layers."
    )
    return undecided("gap", _MINIMUM, reference, why, most, tolerance, error=error)


def _training(figures: DropoutFigures) -> str:
    """Return the advice for weights that are not optimal."""
    rounded = figures.precision > SINGLE
    hint = " The weights are rounded to float32: give the rows as float64." if rounded else ""
    return f"Train longer with a decreasing learning rate; {_EXACT}{hint}"


def _lost(figures: DropoutFigures) -> str:
    """Return why it could not be decided whether the loss is minimal."""
    if figures.missed > figures.gap_error / 2:
        return (
            "Only the leading singular values of the data were computed, and the bounds on the "
            f"others leave open whether the minimum is smaller by {figures.missed:.1g} times "
            f"{_PART}: the singular values near the last one that {figures.width} hidden units "
            "can represent are too close to each other. More dropout, or another number of hidden "
            "units, separates them."
        )
    dropped = (
        f" Number of directions in which the inputs are constant up to rounding errors: "
        f"{figures.dropped}."
        if figures.dropped
        else ""
    )
    remedy = "" if figures.from_rows else f" {_REMEDY}"
    if figures.dropped and figures.precision > SINGLE:
        remedy = (
            " The inputs were rounded to float32, which gives them a spurious variance in these "
            "directions: give the rows as float64."
        )
    if figures.share(figures.energy) > UNEXPLAINED:
        remedy = " Subtract the means of inputs and outputs first, or use fit_intercept=True."
    return (
        f"float64 is not precise enough: rounding errors may change the loss minus its minimum by "
        f"{figures.gap_error:.1g} times {_PART} ({figures.share(figures.energy):.1g} times smaller "
        "than E‖y‖² itself), and the second moment of the standardised inputs has the condition "
        f"number {figures.condition:.1g}.{dropped}{remedy}"
    )


def _saddle_advice(figures: DropoutFigures) -> str:
    """Return the advice for weights at a strict saddle."""
    return f"The weights are at a strict saddle. {figures.reason}"


def _subgradient(figures: DropoutFigures, tolerance: float) -> Claim:
    """Return the claim on the first-order conditions of the convex relaxation in U Vᵀ."""
    statement = "the weights' product U Vᵀ meets the optimality conditions of the convex relaxation"
    reference = "Mianjy et al. 2018, Theorem 3.6 (Cavazza et al. 2018)"
    if figures.subgradient is None:
        return does_not_apply("subgradient", statement, reference, _NOT_KNOWN)
    return at_most(
        "subgradient",
        statement,
        reference,
        figures.subgradient,
        math.sqrt(tolerance),
        f"Some singular value of the product U Vᵀ differs from the optimal one. {_EXACT}",
        error=figures.error,
    )


def _product(figures: DropoutFigures, tolerance: float) -> Claim:
    """Return the claim that the product U Vᵀ of the weights equals the optimal product."""
    statement = "the weights' product U Vᵀ is optimal: least squares with reduced singular values"
    reference = "Mianjy et al. 2018, Theorem 3.6"
    if figures.product_distance is None:
        why = (
            _NOT_KNOWN
            if figures.optimum is None
            else "The optimal function is not unique: the last singular value of the least-squares "
            "map that the hidden units can represent equals the next one within the tolerance."
        )
        return does_not_apply("product", statement, reference, why)
    return at_most(
        "product",
        statement,
        reference,
        figures.product_distance,
        math.sqrt(tolerance),
        f"The product U Vᵀ differs from the optimal one. {_EXACT}",
        error=figures.error + figures.optimum_error,
    )


def _equalized(figures: DropoutFigures, tolerance: float) -> Claim:
    """Return the claim that all hidden units have equal importance scores ‖uᵢ‖ √(vᵢᵀC vᵢ)."""
    statement = "all hidden units have equal importance scores: their relative variance is zero"
    reference = "Mianjy et al. 2018, Theorem 3.4"
    why = _why_not_equalized(figures)
    if why:
        return does_not_apply("equalized", statement, reference, why)
    advice = "lucidae.equalize_pair makes the scores equal without changing the product U Vᵀ."
    variance = figures.relative_variance
    error = _error_of_square(variance, figures.error)
    return at_most("equalized", statement, reference, variance, tolerance, advice, error=error)


def _path_norm(figures: DropoutFigures, tolerance: float) -> Claim:
    """Return the claim that no weights with the same product have a smaller path norm."""
    statement = "no weights with the same product U Vᵀ have a smaller path norm"
    reference = "Mianjy et al. 2018, Theorems 3.3 and 3.4"
    why = _why_not_equalized(figures)
    if why:
        return does_not_apply("path_norm", statement, reference, why)
    advice = "lucidae.equalize_pair minimises the path norm without changing the product U Vᵀ."
    excess = figures.path_excess
    error = _error_of_square(excess, figures.error)
    return at_most("path_norm", statement, reference, excess, tolerance, advice, error=error)


def _error_of_square(figure: float, error: float) -> float:
    """Return a bound on the error of a value v that is quadratic in the importance scores.

    If their relative errors are at most e, a v that is zero at its minimum changes by at most 2e√v
    + e².
    """
    return 2 * error * math.sqrt(max(figure, 0.0)) + error**2


def _why_not_equalized(figures: DropoutFigures) -> str:
    """Return why the hidden units of an optimum may have unequal norms, or ""."""
    if figures.strength == 0:
        return _NO_DROPOUT
    return _CORRELATED if figures.tied and not figures.white else ""


def _rank(figures: DropoutFigures, tolerance: float) -> Claim:
    """Return the claim that the product U Vᵀ of the weights has the rank of the optimal product."""
    statement = (
        f"the weights' product U Vᵀ has the rank of the optimum with {figures.width} hidden units"
    )
    reference = "Mianjy et al. 2018, Theorem 3.6"
    rank, optimal = figures.rank, figures.optimal_rank
    lowest, highest = figures.rank_band
    if optimal is None or lowest is None or highest is None:
        return does_not_apply("rank", statement, reference, _NOT_KNOWN)
    if rank != optimal and lowest <= rank <= highest:
        why = (
            "The numerical rank of the optimal product is not defined: one of its singular values "
            f"is about {math.sqrt(tolerance):.1g} times the largest, the limit below which it "
            "counts as zero, or is smaller than its rounding error."
        )
        return undecided("rank", statement, reference, why, float(rank), float(optimal))
    advice = "" if rank == optimal else _rank_advice(rank > optimal)
    return Claim("rank", statement, reference, float(rank), float(optimal), not advice, advice)


def _rank_advice(too_large: bool) -> str:
    """Return the advice for a product of the weights whose rank is too large, or too small."""
    if too_large:
        return f"The product U Vᵀ has singular directions that the optimum does not have. {_EXACT}"
    return f"The product U Vᵀ lacks singular directions that the optimum has. {_EXACT}"


def _stationarity(figures: DropoutFigures, tolerance: float) -> Claim:
    """Return the claim that the gradient of the expected dropout loss is zero at the weights."""
    return at_most(
        "stationarity",
        "the gradient of the expected dropout loss is zero",
        "Mianjy et al. 2018, eq. 2",
        figures.stationarity,
        math.sqrt(tolerance),
        f"Training has not converged. {_EXACT}",
        error=figures.error,
    )


def _curvature(figures: DropoutFigures, tolerance: float, *, decided: bool) -> Claim:
    """Return the claim that the Hessian of the loss has no negative eigenvalue.

    If it was not measured, it does not apply where the gap is `decided`, and is undecided
    otherwise.
    """
    statement = "the Hessian of the loss has no negative eigenvalue, so this is not a strict saddle"
    reference = f"Mianjy et al. 2018, {'Theorem 4.3' if figures.tied else 'Definition 4.2'}"
    if figures.curvature is None or math.isnan(figures.curvature):
        state = does_not_apply if decided else undecided
        return state("curvature", statement, reference, figures.reason)
    level, advice = -math.sqrt(tolerance), _saddle_advice(figures)
    error = UNCERTAIN_CURVATURE * figures.stationarity + figures.error
    return at_least(
        "curvature", statement, reference, figures.curvature, level, advice, error=error
    )


ATTRIBUTES_CLAIM = (
    "attributes",
    "the fitted attributes agree with the weights and the data",
    "Mianjy et al. 2018, Theorem 3.6",
)
"""Name, statement and reference of the claim about the fitted attributes."""


def _attributes(figures: DropoutFigures) -> tuple[Claim, ...]:
    """Return the claim that the fitted attributes agree with weights and data, if compared."""
    if figures.attributes is None:
        return ()
    return (
        at_most(
            *ATTRIBUTES_CLAIM,
            figures.attributes,
            ATTRIBUTES,
            "The fitted attributes belong to other weights or data, or were assigned after the "
            "fit. Call fit again.",
            error=figures.attributes_error,
        ),
    )


def _conditioning(figures: DropoutFigures, tolerance: float) -> Claim:
    """Return the claim that rounding errors change the gap by less than the tolerance."""
    statement = "rounding errors of the loss minus its minimum are below the tolerance"
    reference = "Higham 2002, sections 10.3 and 19.4"
    if figures.inconsistency > CONSISTENT:
        why = (
            "The second moment of the rows differs from the second moment that is stored with "
            "them, so that one of the two is wrong. Call fit again with the rows."
        )
        value = figures.inconsistency
        return Claim("conditioning", statement, reference, value, CONSISTENT, False, why)
    share = figures.gap_error
    if share > tolerance:
        why = _lost(figures)
        return undecided("conditioning", statement, reference, why, share, tolerance)
    note = (
        f"Number of directions in which the inputs count as constant: {figures.dropped}. Their "
        "standard deviation in these directions is as small as rounding errors."
        if figures.dropped
        else ""
    )
    return Claim("conditioning", statement, reference, share, tolerance, True, note)


def _small_dropout(figures: DropoutFigures) -> tuple[Claim, ...]:
    """Return up to which strength of dropout tied weights have full rank, if they are tied."""
    if figures.paper_bound is None:
        return ()
    inside = figures.strength < figures.paper_bound
    advice = (
        f"The strength of this dropout, {figures.strength:.3g}, is "
        f"{'below' if inside else 'above'} this limit. In both cases every local minimum of the "
        "loss is global (proof in the docstring of lucidae.dropout.theory)."
    )
    return (
        reported(
            "small_dropout",
            "value of dropout/(1 − dropout) below which the optimal product U Uᵀ of tied weights U "
            "has full rank",
            "Mianjy et al. 2018, Theorem 4.3",
            figures.paper_bound,
            advice,
        ),
    )


def _sampling(figures: DropoutFigures) -> Claim:
    """Return a claim that reports how many singular values of the data exceed sampling noise."""
    statement = "number of leading singular directions of the data that exceed sampling noise"
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
    judge: Callable[[DropoutFigures, float], tuple[Claim, ...]] = claims,
) -> Certificate:
    """Return the certificate of weights; `judge` makes the claims from the measured values."""
    check_problem(problem, weights)
    if problem.rows is not None and problem.rows.shape[0] > LARGEST_ROWS:
        why = (
            f"The weights were not compared with the optimum: with {problem.rows.shape[0]} rows "
            "the Gram matrix that the comparison needs takes too much memory (more than "
            f"{LARGEST_ROWS} rows of more than {problem.rows.shape[0]} features)."
        )
        return Certificate(title, (undecided("optimum", "the weights are optimal", "", why),))
    weights = Weights(*(like(part, problem.cross) for part in weights))
    figures = measure(problem, weights, strength, tied=tied, tolerance=tolerance, reported=reported)
    figures = _explained(figures, problem, weights, tolerance)
    return Certificate(title, judge(figures, tolerance), figures.evidence)


def _explained(
    figures: DropoutFigures, problem: LinearProblem, weights: Weights, tolerance: float
) -> DropoutFigures:
    """Return the measured values with the reason of `classify` if tied weights are at a saddle."""
    at_saddle = figures.curvature is not None and figures.curvature < -math.sqrt(tolerance)
    if not (figures.tied and figures.white and at_saddle):
        return figures
    verdict = classify(
        weights.left, problem.cross, figures.strength, tolerance=tolerance, critical=math.inf
    )
    reason = f"{verdict.reason} lucidae.dropout.classify returns the direction of descent."
    return replace(figures, reason=reason)


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

    The weights are compared with the known global minimum of the expected dropout loss (Mianjy et
    al. 2018, Theorems 2.4 and 3.6).

    Parameters
    ----------
    U : array of shape (d1, r)
        Outgoing weights of the r hidden units, one column per unit; of a torch model, the weight of
        the second linear layer.
    V : array of shape (d2, r) or None
        Incoming weights, one column per hidden unit; of a torch model, the transposed weight of
        the first linear layer. None for tied weights.
    X : array-like of shape (n, d2), optional
        Inputs, one row per sample.
    Y : array-like of shape (n, d1) or (n,), optional
        Targets; None for an autoencoder, whose outputs are its inputs.
    dropout : float
        Probability of dropping a hidden unit, in [0, 1).
    tied : bool, default=False
        Whether both layers share their weights, V = U.
    matrix : array-like of shape (d1, d2), optional
        Given instead of data: the matrix M that U Vᵀ approximates. This is equivalent to inputs x
        whose second moment is the identity, with targets y = Mx.
    fit_intercept : bool, default=True
        Whether the network has biases. Optimal biases centre the data, so that the weights are then
        judged on centred data.
    sample_weight : array-like of shape (n,), optional
        Frequencies of the rows: a row of weight 2 counts as two equal rows.
    tolerance : float, default=1e-6
        The weights count as optimal if their loss minus the global minimum is at most this
        multiple of the part of E‖y‖² that least squares explains.

    Returns
    -------
    Certificate
        Claims about the weights: distance to the global minimum, equal importance of the hidden
        units, rank, zero gradient.

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
            f"{'neither X nor matrix was' if X is None else 'X and matrix were both'} given. Give "
            "either data (X, and Y unless the network is an autoencoder) or matrix=M, the matrix "
            "that U Vᵀ approximates."
        )
    if matrix is None:
        problem, weights = _data_problem(
            X, Y, fit_intercept, sample_weight, weights, strength, tied=tied
        )
    else:
        problem = LinearProblem.from_matrix(matrix)
    return certificate_of(
        problem, weights, strength, title="dropout weights", tied=tied, tolerance=tolerance
    )


def _data_problem(
    X: Any,
    Y: Any,
    fit_intercept: bool,
    sample_weight: Any,
    weights: Weights,
    strength: float,
    *,
    tied: bool,
) -> tuple[LinearProblem, Weights]:
    """Return second moments for predicting Y from X, or X itself if Y is None, and the weights.

    For an autoencoder with many features both are projected on a few directions.
    """
    if not (in_memory(X) and in_memory(Y) and in_memory(sample_weight)):
        found = loaded_or_problem(X, Y, sample_weight, centered=fit_intercept)
        if isinstance(found, BlockProblem):
            return found.problem, weights
        X, Y, sample_weight = found
    X = check_rows(X)
    frequencies = check_weights(sample_weight, X)
    if Y is not None:
        problem, _ = rows_problem(X, Y, frequencies, centered=fit_intercept, products=not tied)
        return problem, weights
    if not tied and has_many_features(X.shape, weights.left.shape[1]):
        check_features(X, weights.left)
        check_features(X, weights.right)
        return projected_rows(X, frequencies, weights, strength, centered=fit_intercept)[:2]
    moment = SecondMoment.of(X, frequencies)
    return LinearProblem.autoencoder(moment, centered=fit_intercept), weights


def _layer(weights: Any, name: str) -> np.ndarray[Any, Any]:
    """Return the weights of a layer as a float64 NumPy array, without their gradient history."""
    host = to_numpy(weights) if is_array(weights) else np.asarray(weights)
    return np.asarray(check_rows(host, accept_sparse=False, name=name), dtype=np.float64)


_LOW_RANK = "Eckart & Young 1936; Izenman 1975"


_LANDSCAPE = "Baldi & Hornik 1989"


REDUCED_RANK_ATTRIBUTES = (*ATTRIBUTES_CLAIM[:2], "Izenman 1975")
"""Name, statement and reference of the claim about the fitted attributes without shrinkage."""


_TIED_VALUES = (
    "The optimal coefficients are not unique: the last singular value of the least-squares map "
    "that the rank allows equals the next one within the tolerance."
)


_OTHER = (
    "These are not the coefficients of reduced-rank least squares for these rows: they belong to "
    "other rows or another rank, or were changed. Call fit again."
)


def reduced_rank_claims(figures: DropoutFigures, tolerance: float) -> tuple[Claim, ...]:
    """Return the claims about coefficients of reduced-rank regression, most important first.

    They are those of a network without dropout, in words of Eckart and Young.
    """
    rank = figures.width
    words = {
        "gap": (f"no coefficients of rank at most {rank} have a smaller squared error", _LOW_RANK),
        "subgradient": (
            "least squares minus fit is orthogonal to the fit, whose singular values are larger",
            "Eckart & Young 1936",
        ),
        "product": (
            f"for white inputs, the fit has the {rank} leading singular triples of least squares",
            _LOW_RANK,
        ),
        "rank": (f"the coefficients have the rank of the optimum, at most {rank}", _LOW_RANK),
        "stationarity": (
            "the gradient of the squared error is zero for both factors of the coefficients",
            _LANDSCAPE,
        ),
        "curvature": (
            "the Hessian of the squared error has no negative eigenvalue: no strict saddle",
            _LANDSCAPE,
        ),
        "attributes": REDUCED_RANK_ATTRIBUTES[1:],
    }
    found = []
    for claim in claims(figures, tolerance):
        if claim.name in ("equalized", "path_norm"):
            continue  # properties of dropout
        statement, reference = words.get(claim.name, (claim.statement, claim.reference))
        name = "orthogonality" if claim.name == "subgradient" else claim.name
        advice = _advice(claim)
        found.append(
            replace(claim, name=name, statement=statement, reference=reference, advice=advice)
        )
    return tuple(found)


def _advice(claim: Claim) -> str:
    """Return the advice of a claim about dropout weights, reworded for reduced-rank regression."""
    if claim.name == "product" and claim.value is None and claim.holds is None:
        return claim.advice if "errors" in claim.advice else _TIED_VALUES
    trained = ("gap", "subgradient", "product", "rank", "stationarity", "curvature")
    return _OTHER if claim.holds is False and claim.name in trained else claim.advice


def ridge_claims(found: tuple[Claim, ...], alpha: float) -> tuple[Claim, ...]:
    """Return the claims `found`, with the ridge penalty `alpha` mentioned if it is not zero."""
    if alpha == 0.0:
        return found
    included = f", with the ridge penalty alpha={alpha:g} included"
    fewer = " With a ridge penalty the number of components above the noise may be larger."
    changes = {
        "gap": lambda claim: replace(
            claim,
            statement=claim.statement + included,
            reference=f"{claim.reference}; Mukherjee & Zhu 2011",
        ),
        "sampling": lambda claim: replace(claim, advice=claim.advice + fewer),
    }
    return tuple(changes[c.name](c) if c.name in changes else c for c in found)
