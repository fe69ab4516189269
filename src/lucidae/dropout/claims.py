"""Claims about dropout networks, from the values that `lucidae.dropout.verify` measures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse
from scipy.stats import chi2

from lucidae.arrays import as_double, is_array, to_numpy
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
from lucidae.data.kinds import aligned_blocks
from lucidae.data.passes import load_rows
from lucidae.dropout.landscape import classify
from lucidae.dropout.problem import check_hidden_units
from lucidae.dropout.rows import as_columns, checked_columns
from lucidae.dropout.theory import strength_of
from lucidae.dropout.verify import (
    ATTRIBUTES,
    SINGLE,
    UNKNOWN,
    Data,
    DropoutFigures,
    FittedArrays,
    GivenMatrix,
    Judged,
    JudgedRows,
    Matrix,
    UnprojectedError,
    measure,
)
from lucidae.dropout.verify_completion import CompletionFigures
from lucidae.sampling import separated_components
from lucidae.validation import check_flag, check_number, check_rows, check_weights

CERTIFIED = 1e-6
"""Weights count as optimal if their loss minus the global minimum is at most this times ‖M‖², the
part of E‖y‖² that least squares explains."""

LARGEST_GAP = 2e-2
"""Largest gap that the certificate of a fit by SGD allows, whatever its `tol`. The gap is the loss
minus its global minimum, divided by the part of E‖y‖² that least squares explains; weights with a
larger gap are not called optimal."""

UNCERTAIN_CURVATURE = 4.0
"""If the relative norm of the gradient is g, the Hessian differs from that of the nearest critical
point by about UNCERTAIN_CURVATURE · g."""

UNEXPLAINED = 1e6
"""If E‖y‖², the mean squared norm of the outputs y, exceeds the part of it that least squares
explains by this factor, rounding errors of the outputs limit the accuracy: the outputs have large
means or consist mostly of noise."""

EXCEEDED = 1e-3
"""Largest probability with which a singular value of pure noise exceeds `noise_level`."""

UNDERESTIMATED = 1e-2
"""Largest probability with which the noise variance exceeds the one that `noise_level` uses."""

INFLUENTIAL = 0.1
"""Smallest share of the energy of all rows with which one row is mentioned, if there are many."""

_EXACT = "solver='exact' computes the optimum from one decomposition."

_NO_DROPOUT = (
    "Without dropout the loss depends on the product U Vᵀ alone, not on the norms of single units."
)

_CORRELATED = (
    "Theorems 3.3 and 3.4 of Mianjy et al. 2018 hold for separate layers, and for tied layers with "
    "white inputs. With tied layers and correlated inputs the hidden units of the optimum have in "
    "general unequal norms."
)

_WEAK = (
    "Dropout is so weak, or the fit so small, that a loss within the tolerance of its minimum says "
    "nothing about the norms of single units."
)

_REMEDY = (
    "Call lucidae.certify with all rows at once: the rows lose fewer digits to rounding than their "
    "second moment."
)

_SEE = (
    "The errors of the computation are too large to judge the distance to the optimum: see the "
    "claim 'conditioning'."
)

_COARSE = (
    "The rounding errors of this figure are too large for a verdict; the claim 'gap', whose errors "
    "are smaller, decides that the loss is minimal."
)

_NOT_KNOWN = "For tied weights and inputs that are not white no formula of the optimum is known."

_OTHER_WEIGHTS = (
    "These are not the optimal weights for these rows: they belong to other rows or settings, or "
    "were changed. Call fit again."
)


@dataclass(frozen=True)
class Context:
    """What the words of claims depend on, beside the measured values."""

    exact: bool = False  # whether the weights are those of an exact solver, not trained
    shrink: bool = True  # whether they are those of dropout, not of reduced-rank regression
    alpha: float = 0.0  # ridge penalty


def claims(
    figures: DropoutFigures, tolerance: float, context: Context = Context()
) -> tuple[Claim, ...]:
    """Return the claims that the measured values support, most important first."""
    gap = _gap(figures, tolerance, context)
    compared: tuple[Claim, ...] = (
        _subgradient(figures, tolerance),
        _product(figures, tolerance),
        _equalized(figures, tolerance),
        _path_norm(figures, tolerance),
        _rank(figures, tolerance),
        _stationarity(figures, tolerance, context),
        _curvature(figures, tolerance, decided=gap.holds is not None),
        *_attributes(figures),
    )
    if figures.missed + figures.lost > tolerance or (figures.known and gap.holds is None):
        # Neither the optimum nor the distance to it is known, so nothing can be compared with it.
        compared = tuple(
            claim
            if claim.name == "attributes" and claim.holds is False
            else undecided(claim.name, claim.statement, claim.reference, _SEE)
            for claim in compared
        )
    elif gap.holds:
        # These follow from a minimal loss, and their own figures may have larger errors.
        compared = tuple(
            does_not_apply(claim.name, claim.statement, claim.reference, _COARSE)
            if claim.undecided
            and claim.name in ("subgradient", "product", "stationarity", "curvature")
            else claim
            for claim in compared
        )
    found = (
        gap,
        *compared,
        _conditioning(figures, tolerance),
        *_small_dropout(figures),
        _sampling(figures),
        _leverage(figures),
    )
    return ridge_claims(found if context.shrink else _reduced_rank(found, figures), context.alpha)


_PART = "the part of E‖y‖² that least squares explains"

_MINIMUM = "the expected dropout loss equals its global minimum"

_HEADLINE = "global minimum of the loss"


def _gap(figures: DropoutFigures, tolerance: float, context: Context) -> Claim:
    """Return the claim that the loss equals its global minimum.

    A loss below it by more than the tolerance is refuted too: one of them was computed wrongly.
    """
    if not figures.known:
        return _bounded_gap(figures, tolerance)
    reference = f"Mianjy et al. 2018, Theorem {'2.4' if figures.tied else '3.6'}"
    gap, error = figures.gap.value, figures.gap.error
    described = ("gap", _MINIMUM, reference, gap, tolerance)
    if gap + error < -tolerance:
        why = "The loss is below its lower bound, so one of them was computed wrongly."
        return Claim(*described, False, why, error, headline=_HEADLINE)
    if gap < -tolerance or error > tolerance:
        # If the error exceeds the tolerance, a smaller loss is possible, however small the gap is.
        # Singular values that were not computed can only make the minimum smaller.
        if gap - (error - figures.missed - figures.lost) > tolerance:
            missed = figures.missed > error / 2
            why = _training(figures, context) if figures.from_rows or missed else _REMEDY
            return Claim(*described, False, why, error, headline=_HEADLINE)
        why = _lost(figures)
        return replace(
            undecided(*described[:3], why, gap, tolerance, error=error), headline=_HEADLINE
        )
    at_saddle = figures.curvature is not None and figures.curvature < -math.sqrt(tolerance)
    advice = _saddle_advice(figures) if at_saddle else _training(figures, context)
    return replace(at_most(*described, advice, error=error), headline=_HEADLINE)


def _bounded_gap(figures: DropoutFigures, tolerance: float) -> Claim:
    """Return the claim that tied weights are optimal, from bounds on the unknown minimum.

    The minimum for separate layers bounds it from below, a loss that a descent reached from above.
    """
    reference = "Mianjy et al. 2018, Theorem 3.6, as a bound for tied layers"
    most, error = figures.gap.value, figures.gap.error
    if most + error < -tolerance or abs(most) + error <= tolerance:
        why = "The loss is below its lower bound, so one of them was computed wrongly."
        return at_most("gap", _MINIMUM, reference, abs(most), tolerance, why, error=error)
    least = figures.decrease
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


def _training(figures: DropoutFigures, context: Context) -> str:
    """Return the advice for weights that are not optimal."""
    rounded = figures.precision > SINGLE
    hint = " The weights are rounded to float32: give the rows as float64." if rounded else ""
    if context.exact:
        return f"{_OTHER_WEIGHTS}{hint}"
    return f"Train longer with a decreasing learning rate; {_EXACT}{hint}"


def _lost(figures: DropoutFigures) -> str:
    """Return why it could not be decided whether the loss is minimal."""
    error = figures.gap.error
    if error > math.sqrt(UNKNOWN):
        return (
            "The second moment that fit computed could not be confirmed by the sketch of the rows "
            f"that passed, so that nothing is known about the minimum. {_REMEDY}"
        )
    if figures.missed > error / 2:
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
    if figures.unexplained > UNEXPLAINED:
        remedy = " Subtract the means of inputs and outputs first, or use fit_intercept=True."
    return (
        f"float64 is not precise enough: rounding errors may change the loss minus its minimum by "
        f"{error:.1g} times {_PART} ({figures.unexplained:.1g} times smaller "
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
        figures.subgradient.value,
        math.sqrt(tolerance),
        f"Some singular value of the product U Vᵀ differs from the optimal one. {_EXACT}",
        error=figures.subgradient.error,
    )


_NOT_UNIQUE = (
    "The optimal function is not unique: the last singular value of the least-squares map that the "
    "hidden units can represent equals the next one within the tolerance."
)


def _product(figures: DropoutFigures, tolerance: float) -> Claim:
    """Return the claim that the product U Vᵀ of the weights equals the optimal product.

    The threshold is implied by the tolerance of the gap: see `lucidae.dropout.verify`.
    """
    statement = "the weights' product U Vᵀ is optimal: least squares with reduced singular values"
    reference = "Mianjy et al. 2018, Theorem 3.6"
    limit = math.sqrt(tolerance) * max(figures.far, 1.0)
    if figures.product is None or limit >= 1.0:
        why = _NOT_UNIQUE if figures.known else _NOT_KNOWN
        return does_not_apply("product", statement, reference, why)
    return at_most(
        "product",
        statement,
        reference,
        figures.product.value,
        limit,
        f"The product U Vᵀ differs from the optimal one. {_EXACT}",
        error=figures.product.error,
    )


def _equalized(figures: DropoutFigures, tolerance: float) -> Claim:
    """Return the claim that all hidden units have equal importance scores ‖uᵢ‖ √(vᵢᵀC vᵢ)."""
    statement = "all hidden units have equal importance scores: their relative variance is zero"
    reference = "Mianjy et al. 2018, Theorem 3.4"
    limit = tolerance * max(figures.unequal, 1.0)
    why = _why_not_equalized(figures, limit)
    if why:
        return does_not_apply("equalized", statement, reference, why)
    advice = "lucidae.equalize_pair makes the scores equal without changing the product U Vᵀ."
    value, error = figures.equalized.value, figures.equalized.error
    return at_most("equalized", statement, reference, value, limit, advice, error=error)


def _path_norm(figures: DropoutFigures, tolerance: float) -> Claim:
    """Return the claim that no weights with the same product have a smaller path norm."""
    statement = "no weights with the same product U Vᵀ have a smaller path norm"
    reference = "Mianjy et al. 2018, Theorems 3.3 and 3.4"
    limit = tolerance * max(figures.unequal, 1.0)
    why = _why_not_equalized(figures, limit)
    if why:
        return does_not_apply("path_norm", statement, reference, why)
    advice = "lucidae.equalize_pair minimises the path norm without changing the product U Vᵀ."
    value, error = figures.path.value, figures.path.error
    return at_most("path_norm", statement, reference, value, limit, advice, error=error)


def _why_not_equalized(figures: DropoutFigures, limit: float) -> str:
    """Return why the hidden units of an optimum may have unequal norms, or ""."""
    if figures.strength == 0:
        return _NO_DROPOUT
    if figures.tied and not figures.white:
        return _CORRELATED
    return _WEAK if limit >= 1.0 else ""


def _rank(figures: DropoutFigures, tolerance: float) -> Claim:
    """Return the claim that the product U Vᵀ of the weights has the rank of the optimal product."""
    statement = (
        f"the weights' product U Vᵀ has the rank of the optimum with {figures.width} hidden units"
    )
    reference = "Mianjy et al. 2018, Theorem 3.6"
    rank, optimal, (lowest, highest) = figures.rank, figures.optimal_rank, figures.rank_band
    if optimal is None:
        return does_not_apply("rank", statement, reference, _NOT_KNOWN)
    if rank != optimal and lowest <= rank <= highest:
        why = (
            "The rank is not defined at this tolerance: a singular value of the optimal product is "
            f"so close to {math.sqrt(tolerance):.1g} times the largest, the limit below which it "
            "counts as zero, that weights whose loss is minimal may have either rank."
        )
        return does_not_apply("rank", statement, reference, why)
    advice = "" if rank == optimal else _rank_advice(rank > optimal)
    return Claim("rank", statement, reference, float(rank), float(optimal), not advice, advice)


def _rank_advice(too_large: bool) -> str:
    """Return the advice for a product of the weights whose rank is too large, or too small."""
    if too_large:
        return f"The product U Vᵀ has singular directions that the optimum does not have. {_EXACT}"
    return f"The product U Vᵀ lacks singular directions that the optimum has. {_EXACT}"


def _stationarity(figures: DropoutFigures, tolerance: float, context: Context) -> Claim:
    """Return the claim that the gradient of the expected dropout loss is zero at the weights."""
    return at_most(
        "stationarity",
        "the gradient of the expected dropout loss is zero",
        "Mianjy et al. 2018, eq. 2",
        figures.stationarity.value,
        math.sqrt(tolerance),
        _OTHER_WEIGHTS if context.exact else f"Training has not converged. {_EXACT}",
        error=figures.stationarity.error,
    )


def _curvature(figures: DropoutFigures, tolerance: float, *, decided: bool) -> Claim:
    """Return the claim that the Hessian of the loss has no negative eigenvalue.

    If it was not measured, it does not apply where the gap is `decided`, and is undecided
    otherwise.
    """
    statement = "the Hessian of the loss has no negative eigenvalue, so this is not a strict saddle"
    reference = f"Mianjy et al. 2018, {'Theorem 4.3' if figures.tied else 'Definition 4.2'}"
    if figures.curvature is None:
        state = does_not_apply if decided else undecided
        return state("curvature", statement, reference, figures.reason)
    level, advice = -math.sqrt(tolerance), _saddle_advice(figures)
    error = UNCERTAIN_CURVATURE * figures.stationarity.value + figures.stationarity.error
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
    value, error = figures.attributes.value, figures.attributes.error
    why = (
        f"{figures.attribute} belongs to other weights or data, or was assigned after the fit. "
        "Call fit again."
    )
    if math.isfinite(value) and error > 1.0:
        why = f"Rounding errors are too large to judge {figures.attribute}. {_REMEDY}"
        return (undecided(*ATTRIBUTES_CLAIM, why, value, ATTRIBUTES),)
    claim = at_most(*ATTRIBUTES_CLAIM, value, ATTRIBUTES, why, error=error)
    return (
        replace(claim, advice=f"{figures.attribute}: {claim.advice}") if claim.undecided else claim,
    )


def _conditioning(figures: DropoutFigures, tolerance: float) -> Claim:
    """Return the claim that rounding errors change the gap by less than the tolerance."""
    statement = "rounding errors of the loss minus its minimum are below the tolerance"
    reference = "Higham 2002, sections 10.3 and 19.4"
    share = figures.gap.error
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
    n_rows, n_inputs = figures.n_rows, figures.n_inputs
    why = ""
    if n_rows is None:
        why = (
            "The matrix itself is given, not rows that were drawn from a population, so there is "
            "no sampling noise to compare with."
        )
    elif figures.spectrum is None:
        why = "Only the leading singular values of the data were computed."
    elif figures.residual is not None and n_rows <= n_inputs:
        why = (
            f"The number of rows (less one, if the mean was estimated) is {n_rows:g}, too few to "
            f"estimate the effects of {n_inputs} inputs and the variance of the noise."
        )
    if why or n_rows is None or figures.spectrum is None:
        return does_not_apply("sampling", statement, reference, why)
    judged = min(figures.width, len(figures.spectrum))
    if figures.residual is None:
        count = int(separated_components(figures.spectrum**2, n_rows, judged).sum())
    else:
        level = noise_level(figures.residual, n_inputs, n_rows)
        count = int((figures.spectrum[:judged] > level).sum())
    sentence = (
        f"{count} of the {judged} leading components exceed the sampling noise of {n_rows:g} rows."
    )
    claim = reported("sampling", statement, reference, float(count), sentence)
    return replace(claim, headline=f"sampling: {count} of {judged}")


def noise_level(residual: Matrix, n_inputs: int, n_rows: float) -> float:
    """Return the size that singular values of the least-squares map M reach by noise alone.

    If the m targets of the n rows do not depend on the q whitened inputs, M consists of q
    independent columns of noise with covariance S/n, where S is the covariance of the residuals and
    s its largest eigenvalue. The probability that the largest singular value of M exceeds (√s (√q +
    t) + √tr S)/√n is at most exp(−t²/2) (Davidson & Szarek 2001, Theorem II.13; for S = σ²I and t =
    0 this is the noise level σ(√q + √m)/√n of reduced-rank regression, Bunea, She & Wegkamp 2011).
    S is estimated with n − q degrees of freedom for each independent target, and enlarged to an
    upper confidence limit (χ² distribution).
    """
    variances = np.clip(scipy.linalg.eigvalsh(residual), 0.0, None)
    top, total = float(variances[-1]), float(variances.sum())
    if top == 0:
        return 0.0
    freedom = (n_rows - n_inputs) * total / top
    enlarged = n_rows / (n_rows - n_inputs) * freedom / float(chi2.ppf(UNDERESTIMATED, freedom))
    margin = math.sqrt(-2.0 * math.log(EXCEEDED))
    level = math.sqrt(top) * (math.sqrt(n_inputs) + margin) + math.sqrt(total)
    return level * math.sqrt(enlarged / n_rows)


def _leverage(figures: DropoutFigures) -> Claim:
    """Return a claim that names the rows that have more than their share of the energy."""
    statement = "largest share of the squared deviations of all rows that one row has"
    reference = "Cook 1977; Huber 1981"
    if figures.peaks is None or not figures.peaks.size or figures.n_rows is None:
        why = "A matrix is given, not rows: every row counts."
        return does_not_apply("leverage", statement, reference, why)
    rows, shares = figures.peaks
    most = float(shares[0])
    limit = max(INFLUENTIAL, min(20.0 / (figures.n_rows + 1.0), 0.5))
    named = [f"{int(row)}" for row, share in zip(rows, shares, strict=True) if share > limit]
    figures.evidence["leverage_rows"] = [int(row) for row in named]
    figures.evidence["leverage_shares"] = [float(share) for share in shares if share > limit]
    if not named:
        return reported("leverage", statement, reference, most)
    words = f"row{'s' if len(named) > 1 else ''} {', '.join(named)}"
    advice = (
        f"{words[0].upper()}{words[1:]} (counted from 0) {'have' if len(named) > 1 else 'has'} up "
        f"to {most:.0%} of the squared deviations of all rows, so that the fit depends on "
        f"{'them' if len(named) > 1 else 'it'}: check for errors, and compare with a fit without."
    )
    claim = reported("leverage", statement, reference, most, advice)
    return replace(claim, headline=f"influence: {words}")


def certificate_of(
    candidates: Iterable[Data],
    judged: Judged,
    *,
    title: str,
    tolerance: float = CERTIFIED,
    fitted: FittedArrays | None = None,
    context: Context = Context(),
) -> Certificate:
    """Return the certificate of weights on the first data whose digits suffice to judge them."""
    figures = None
    try:
        for data in candidates:
            figures = measure(data, judged, tolerance, fitted)
            if not figures.vague(tolerance):
                break
    except UnprojectedError as error:
        why = f"The weights were not compared with the optimum: {error}"
        return Certificate(title, (undecided("optimum", "the weights are optimal", "", why),))
    if figures is None:
        why = (
            "Nothing is known of the training rows that fit itself did not compute, so that "
            "nothing can be checked: call lucidae.certify with the rows."
        )
        return Certificate(title, (undecided("optimum", "the weights are optimal", "", why),))
    if figures.tied and figures.white and (figures.curvature or 0.0) < -math.sqrt(tolerance):
        figures = replace(figures, reason=_saddle(data, judged, tolerance))
    return Certificate(title, claims(figures, tolerance, context), figures.evidence)


def _saddle(data: Data, judged: Judged, tolerance: float) -> str:
    """Return why tied weights for white inputs are at a saddle, in words of `classify`."""
    if isinstance(data, GivenMatrix):
        cross = data.matrix
    else:
        assert isinstance(data, JudgedRows)
        X, Y = np.asarray(data.X, dtype=float), np.asarray(data.Y, dtype=float)
        cross = Y.T @ X / len(X)
    verdict = classify(judged.left, cross, judged.strength, tolerance=tolerance, critical=math.inf)
    return f"{verdict.reason} lucidae.dropout.classify returns the direction of descent."


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
    left, right = _layer(U, "U"), _layer(U if tied else V, "V")
    check_hidden_units(left, right)
    if (X is None) == (matrix is None):
        raise ValueError(
            f"{'neither X nor matrix was' if X is None else 'X and matrix were both'} given. Give "
            "either data (X, and Y unless the network is an autoencoder) or matrix=M, the matrix "
            "that U Vᵀ approximates."
        )
    data = (
        given_rows(X, Y, sample_weight, centered=fit_intercept)
        if matrix is None
        else given_matrix(matrix)
    )
    judged = Judged(left, right, strength, tied=tied)
    check_shapes(data, judged)
    return certificate_of([data], judged, title="dropout weights", tolerance=tolerance)


def given_matrix(matrix: Any, roots: Any = None) -> GivenMatrix:
    """Return a matrix that is factorised; its rows multiplied by `roots` unless that is None."""
    checked = as_double(check_rows(matrix, accept_sparse=False, name="matrix"))
    host = np.asarray(to_numpy(checked))
    return GivenMatrix(host if roots is None else host * np.asarray(to_numpy(roots))[:, None])


def given_rows(X: Any, Y: Any, sample_weight: Any, *, centered: bool) -> JudgedRows:
    """Return rows in main memory, or a function that reads them in blocks."""
    if not (in_memory(X) and in_memory(Y) and in_memory(sample_weight)):
        data = aligned_blocks(X, Y, sample_weight, with_targets=Y is not None)
        small = load_rows(data)
        if small is None:
            return JudgedRows(None, None, None, centered, lambda: _read(data), data.repeatable)
        X, Y, sample_weight = small
    X = check_rows(X)
    weights = check_weights(sample_weight, X)
    Y = None if Y is None else to_numpy(checked_columns(X, Y))
    X = X if scipy.sparse.issparse(X) else to_numpy(X)
    return JudgedRows(X, Y, None if weights is None else to_numpy(weights), centered)


def _read(data: Any) -> Iterator[tuple[Any, Any, Any]]:
    for block in data:
        rows, targets, weights = block[:3]
        rows = rows if scipy.sparse.issparse(rows) else to_numpy(rows)
        targets = None if targets is None else to_numpy(as_columns(targets))
        yield rows, targets, None if weights is None else to_numpy(weights)


def check_shapes(data: JudgedRows | GivenMatrix, judged: Judged) -> None:
    """Raise an error unless the weights fit the numbers of outputs and inputs of the data."""
    if isinstance(data, GivenMatrix):
        outputs, inputs = data.matrix.shape
    elif data.X is None:
        return  # the first block shows it
    else:
        inputs = data.X.shape[1]
        outputs = inputs if data.Y is None else data.Y.shape[1]
    given = (judged.left.shape[0], judged.right.shape[0])
    if (outputs, inputs) != given:
        raise ValueError(
            f"the data have {outputs} outputs and {inputs} inputs, but the outgoing weights U have "
            f"{given[0]} rows and the incoming weights V have {given[1]}: give the data to which "
            "these weights belong."
        )


def _layer(weights: Any, name: str) -> Matrix:
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


def _reduced_rank(claims: tuple[Claim, ...], figures: DropoutFigures) -> tuple[Claim, ...]:
    """Return the claims of a network without dropout, in words of Eckart and Young."""
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
    for claim in claims:
        if claim.name in ("equalized", "path_norm"):
            continue  # properties of dropout
        statement, reference = words.get(claim.name, (claim.statement, claim.reference))
        name = "orthogonality" if claim.name == "subgradient" else claim.name
        trained = claim.name in words and claim.name != "attributes"
        advice = _OTHER if claim.holds is False and trained else claim.advice
        advice = _TIED_VALUES if advice == _NOT_UNIQUE else advice
        found.append(
            replace(claim, name=name, statement=statement, reference=reference, advice=advice)
        )
    return tuple(found)


def ridge_claims(found: tuple[Claim, ...], alpha: float) -> tuple[Claim, ...]:
    """Return the claims `found`, with the ridge penalty `alpha` mentioned if it is not zero."""
    if alpha == 0.0:
        return found
    included = f", with the ridge penalty alpha={alpha:g} included"
    fewer = " With a ridge penalty the number of components above the noise may be larger."
    changes: dict[str, Callable[[Claim], Claim]] = {
        "gap": lambda claim: replace(
            claim,
            statement=claim.statement + included,
            reference=f"{claim.reference}; Mukherjee & Zhu 2011",
        ),
        "sampling": lambda claim: replace(claim, advice=claim.advice + fewer),
    }
    return tuple(changes[c.name](c) if c.name in changes else c for c in found)


def completion_claims(figures: CompletionFigures, tolerance: float) -> tuple[Claim, ...]:
    """Return the claims about a completed matrix.

    The tolerance is increased for factors of type float32, whose rounding changes the residual.
    """
    tolerance = max(tolerance, 64 * figures.precision)
    rows, columns = figures.empty_rows, figures.empty_columns
    note = (
        f"{rows} rows and {columns} columns have no observed entry: the completed matrix is zero "
        "there."
        if rows or columns
        else ""
    )
    return (
        _completion_gap(figures, tolerance),
        _spectral(figures, tolerance),
        at_most(
            "complementarity",
            "the inner product of residual and U Vᵀ is λ/r times the squared nuclear norm of U Vᵀ "
            "(λ = dropout / (1 − dropout), r columns)",
            _DUALITY,
            figures.complementarity,
            math.sqrt(tolerance),
            _AGAIN,
            error=figures.error,
        ),
        at_most(
            "equalized",
            "of all factors with the same product U Vᵀ, these have the smallest penalty "
            "Σ‖uᵢ‖²‖vᵢ‖²",
            "Srebro, Rennie & Jaakkola 2004, and the Cauchy–Schwarz inequality",
            figures.excess_penalty,
            math.sqrt(tolerance),
            "lucidae.equalize_pair makes the norms equal without changing the product U Vᵀ.",
            error=figures.error,
        ),
        at_most(
            "stationarity",
            "the gradient of the loss on the observed entries is zero",
            "derivatives of the loss with respect to U and V",
            figures.stationarity,
            math.sqrt(tolerance),
            _AGAIN,
            error=figures.error,
        ),
        _completion_rank(figures),
        reported(
            "observed_share",
            "share of the entries of the matrix that are observed",
            "number of observed entries divided by the number of all entries",
            figures.share,
            note,
        ),
        at_most(
            "attributes",
            "the fitted attributes agree with the factors and the data",
            "definition of the attributes",
            figures.attributes,
            max(ATTRIBUTES, 64 * figures.precision),
            "The fitted attributes belong to other factors or data, or were assigned after the "
            "fit. Call fit again.",
        ),
    )


_DUALITY = "Rockafellar 1970, Theorem 31.1 (Fenchel duality)"

_AGAIN = "The iteration has not converged, or the factors belong to other data. Call fit again."


def _limited(figures: CompletionFigures, tolerance: float) -> bool:
    """Tell whether the factors are stationary and use all columns, so that more may be needed.

    The lower bound on the loss holds for matrices of any rank, so that factors with a limited
    number of columns may be optimal without attaining it. If a column were zero, the loss could be
    decreased by this column, unless the bound is attained.
    """
    return figures.rank >= figures.width and figures.stationarity <= math.sqrt(tolerance)


def _completion_gap(figures: CompletionFigures, tolerance: float) -> Claim:
    """Return the claim that loss minus a lower bound of its minimum is at most the tolerance."""
    statement = "the loss exceeds its smallest value over all matrices by at most the tolerance"
    if figures.gap > tolerance >= figures.smallest_gap:
        why = (
            "The bound on the spectral norm of the residual is not tight enough. The loss exceeds "
            f"the minimum by at most {figures.gap:.2g} times ‖P_Ω M‖², the sum of squares of the "
            "observed entries."
        )
        return undecided("gap", statement, _DUALITY, why, figures.gap, tolerance)
    if figures.gap > tolerance and _limited(figures, tolerance):
        why = (
            f"The factors use all of their {figures.width} columns and are a stationary point, but "
            "the lower bound, which is that of matrices of any rank, is not attained: its minimum "
            "has a larger rank, or there are better factors (with a limited rank the problem is "
            f"not convex). At most {figures.gap:.2g} times ‖P_Ω M‖², the sum of squares of the "
            "observed entries, could be gained. Increase n_components or dropout."
        )
        return undecided("gap", statement, _DUALITY, why, figures.gap, tolerance)
    return at_most("gap", statement, _DUALITY, figures.gap, tolerance, _AGAIN, error=figures.error)


def _spectral(figures: CompletionFigures, tolerance: float) -> Claim:
    """Return the claim that the spectral norm of the residual is at most (λ/r)‖X‖*."""
    statement = (
        "the residual's largest singular value is at most λ/r times the nuclear norm of U Vᵀ "
        "(λ = dropout / (1 − dropout), r columns)"
    )
    level = math.sqrt(tolerance)
    value = figures.spectral
    if value > level and _limited(figures, tolerance):
        why = (
            "All columns of the factors are used. The best factors with this number of columns "
            "need not meet this condition; it is meant for matrices of any rank."
        )
        return undecided("spectral_norm", statement, _DUALITY, why, value, level)
    if value > level >= figures.smallest_spectral:
        why = "Only a bound on the spectral norm of the residual is known, and it is too large."
        return undecided("spectral_norm", statement, _DUALITY, why, value, level)
    if not math.isfinite(value):
        value = math.inf
    return at_most("spectral_norm", statement, _DUALITY, value, level, _AGAIN)


def _completion_rank(figures: CompletionFigures) -> Claim:
    """Return a claim that reports the rank of the completed matrix."""
    note = (
        f"All {figures.width} columns of the factors are used; matrices of a larger rank are "
        "excluded."
        if figures.rank >= figures.width
        else ""
    )
    statement = f"rank of the completed matrix, which is at most {figures.width}"
    return reported("rank", statement, "singular values of U Vᵀ", float(figures.rank), note)


def completion_certificate(title: str, figures: CompletionFigures, tolerance: float) -> Certificate:
    """Return the certificate of a completed matrix, with the claims about its measured values."""
    return Certificate(title, completion_claims(figures, tolerance), figures.evidence)
