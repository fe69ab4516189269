"""Claims about dropout networks, from the values that `lucidae.dropout.verify` measures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse
from scipy.stats import chi2

from lucidae.arrays import as_double, is_array, to_numpy
from lucidae.certificates.bounds import Ball
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
    paper_bound,
)
from lucidae.dropout.verify_completion import CompletionFigures
from lucidae.rows.kinds import aligned_blocks, in_memory
from lucidae.rows.passes import load_rows
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

_BELOW = "The loss is below its lower bound, so one of them was computed wrongly."

_PART = "the part of E‖y‖² that least squares explains"

_THEOREM = "Mianjy et al. 2018, Theorem 3.6"

STATEMENTS = {
    "gap": ("the expected dropout loss equals its global minimum", _THEOREM),
    "subgradient": (
        "the weights' product U Vᵀ meets the optimality conditions of the convex relaxation",
        f"{_THEOREM} (Cavazza et al. 2018)",
    ),
    "product": (
        "the weights' product U Vᵀ is optimal: least squares with reduced singular values",
        _THEOREM,
    ),
    "equalized": (
        "all hidden units have equal importance scores: their relative variance is zero",
        "Mianjy et al. 2018, Theorem 3.4",
    ),
    "path_norm": (
        "no weights with the same product U Vᵀ have a smaller path norm",
        "Mianjy et al. 2018, Theorems 3.3 and 3.4",
    ),
    "rank": (
        "the weights' product U Vᵀ has the rank of the optimum with {width} hidden units",
        _THEOREM,
    ),
    "stationarity": (
        "the gradient of the expected dropout loss is zero",
        "Mianjy et al. 2018, eq. 2",
    ),
    "curvature": (
        "the Hessian of the loss has no negative eigenvalue, so this is not a strict saddle",
        "Mianjy et al. 2018, Definition 4.2",
    ),
    "attributes": ("the fitted attributes agree with the weights and the data", _THEOREM),
    "conditioning": (
        "rounding errors of the loss minus its minimum are below the tolerance",
        "Higham 2002, sections 10.3 and 19.4",
    ),
    "sampling": (
        "number of leading singular directions of the data that exceed sampling noise",
        "Bunea, She & Wegkamp 2011 (regression); Johnstone 2001 (autoencoder)",
    ),
    "leverage": (
        "largest share of the squared deviations of all rows that one row has",
        "Cook 1977; Huber 1981",
    ),
}
"""Statement and reference of the claims about a network with dropout."""

_LOW_RANK = "Eckart & Young 1936; Izenman 1975"

_LANDSCAPE = "Baldi & Hornik 1989"

REDUCED_RANK = STATEMENTS | {
    "gap": ("no coefficients of rank at most {width} have a smaller squared error", _LOW_RANK),
    "subgradient": (
        "least squares minus fit is orthogonal to the fit, whose singular values are larger",
        "Eckart & Young 1936",
    ),
    "product": (
        "for white inputs, the fit has the {width} leading singular triples of least squares",
        _LOW_RANK,
    ),
    "rank": ("the coefficients have the rank of the optimum, at most {width}", _LOW_RANK),
    "stationarity": (
        "the gradient of the squared error is zero for both factors of the coefficients",
        _LANDSCAPE,
    ),
    "curvature": (
        "the Hessian of the squared error has no negative eigenvalue: no strict saddle",
        _LANDSCAPE,
    ),
    "attributes": (STATEMENTS["attributes"][0], "Izenman 1975"),
}
"""Statement and reference of the claims without dropout, in words of Eckart and Young."""


@dataclass(frozen=True)
class Context:
    """What the words of claims depend on, beside the measured values."""

    exact: bool = False  # whether the weights are those of an exact solver, not trained
    shrink: bool = True  # whether they are those of dropout, not of reduced-rank regression
    alpha: float = 0.0  # ridge penalty

    def named(self, name: str, width: int = 0) -> tuple[str, str, str]:
        """Return name, statement and reference of a claim."""
        statement, reference = (STATEMENTS if self.shrink else REDUCED_RANK)[name]
        if self.alpha and name == "gap":
            statement += f", with the ridge penalty alpha={self.alpha:g} included"
            reference += "; Mukherjee & Zhu 2011"
        shown = "orthogonality" if name == "subgradient" and not self.shrink else name
        return shown, statement.format(width=width), reference


def claims(
    figures: DropoutFigures, tolerance: float, context: Context = Context()
) -> tuple[Claim, ...]:
    """Return the claims that the measured values support, most important first."""
    level = math.sqrt(tolerance)
    gap = _gap(figures, tolerance, context)

    def compare(name: str, ball: Ball | None, limit: float, advice: str, why: str) -> Claim:
        described = context.named(name, figures.judged.width)
        if why or ball is None:
            return does_not_apply(*described, why or _NOT_KNOWN)
        advice = advice if context.shrink else _OTHER
        return at_most(*described, ball.value, limit, advice, error=ball.error)

    # The thresholds are implied by the tolerance of the gap: see `lucidae.dropout.verify`.
    far, uneven = level * max(figures.far, 1.0), tolerance * max(figures.unequal, 1.0)
    tie = (_NOT_UNIQUE if context.shrink else _TIED_VALUES) if far >= 1.0 else ""
    why = _NO_DROPOUT if figures.judged.strength == 0 else _WEAK if uneven >= 1.0 else ""
    why = _CORRELATED if figures.judged.strength > 0 and figures.tied and not figures.known else why
    same = "without changing the product U Vᵀ."
    spectrum = f"Some singular value of the product U Vᵀ differs from the optimal one. {_EXACT}"
    differs = f"The product U Vᵀ differs from the optimal one. {_EXACT}"
    scores = f"lucidae.equalize_pair makes the scores equal {same}"
    shorter = f"lucidae.equalize_pair minimises the path norm {same}"
    longer = _OTHER_WEIGHTS if context.exact else f"Training has not converged. {_EXACT}"
    compared = [
        compare("subgradient", figures.subgradient, level, spectrum, ""),
        compare("product", figures.product, far, differs, tie if figures.known else ""),
        compare("equalized", figures.equalized, uneven, scores, why),
        compare("path_norm", figures.path, uneven, shorter, why),
        _rank(figures, level, context),
        compare("stationarity", figures.stationarity, level, longer, ""),
        _curvature(figures, level, context, decided=gap.holds is not None),
        *_attributes(figures, context),
    ]
    compared = [claim for claim in compared if context.shrink or claim.name not in _OF_DROPOUT]
    if figures.missed + figures.lost > tolerance or (figures.known and gap.holds is None):
        # Neither the optimum nor the distance to it is known, so nothing can be compared with it.
        compared = [
            claim
            if claim.name == "attributes" and claim.holds is False
            else undecided(claim.name, claim.statement, claim.reference, _SEE)
            for claim in compared
        ]
    elif gap.holds:
        # These follow from a minimal loss, and their own figures may have larger errors.
        compared = [
            does_not_apply(claim.name, claim.statement, claim.reference, _COARSE)
            if claim.undecided and claim.name not in (*_OF_DROPOUT, "rank", "attributes")
            else claim
            for claim in compared
        ]
    return (
        gap,
        *compared,
        _conditioning(figures, tolerance),
        *_small_dropout(figures),
        _sampling(figures, context),
        _leverage(figures),
    )


_OF_DROPOUT = ("equalized", "path_norm")

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

_NOT_UNIQUE = (
    "The optimal function is not unique: the last singular value of the least-squares map that the "
    "hidden units can represent equals the next one within the tolerance."
)

_TIED_VALUES = (
    "The optimal coefficients are not unique: the last singular value of the least-squares map "
    "that the rank allows equals the next one within the tolerance."
)

_OTHER = (
    "These are not the coefficients of reduced-rank least squares for these rows: they belong to "
    "other rows or another rank, or were changed. Call fit again."
)


def _gap(figures: DropoutFigures, tolerance: float, context: Context) -> Claim:
    """Return the claim that the loss equals its global minimum.

    A loss below it by more than the tolerance is refuted too: one of them was computed wrongly. If
    its error exceeds the tolerance, a smaller loss is possible, however small the gap is. For tied
    weights and inputs that are not white, the minimum for separate layers is a lower bound.
    """
    name, statement, reference = context.named("gap", figures.judged.width)
    ball, holds, why = figures.gap, None, ""
    if figures.tied:
        reference = "Mianjy et al. 2018, Theorem 2.4"
    if not figures.known:
        reference = f"{_THEOREM}, as a bound for tied layers"
    # Singular values that were not computed can only make the minimum smaller.
    low = ball.low + figures.missed + figures.lost
    if ball.high < -tolerance:
        holds, why = False, _BELOW
    elif abs(ball.value) <= tolerance and max(ball.high, ball.error) <= tolerance:
        holds = True
    elif not figures.known:
        why = (
            f"{_NOT_KNOWN} The loss exceeds the optimum by at most {ball.value:.2g} times {_PART}, "
            "because the optimum of separate layers is smaller by that much."
        )
    elif low > tolerance:
        holds, why = False, _advice(figures, math.sqrt(tolerance), context)
    else:
        why = _lost(figures)
    headline = "global minimum of the loss" if figures.known else ""
    described = (name, statement, reference, ball.value, tolerance, holds, why, ball.error)
    return Claim(*described, undecided=holds is None, headline=headline)


def _advice(figures: DropoutFigures, level: float, context: Context) -> str:
    """Return the advice for weights that are not optimal."""
    if not context.shrink:
        return _OTHER
    if figures.curvature is not None and figures.curvature < -level:
        return f"The weights are at a strict saddle. {figures.reason}"
    rounded = figures.precision > SINGLE
    hint = " The weights are rounded to float32: give the rows as float64." if rounded else ""
    longer = f"Train longer with a decreasing learning rate; {_EXACT}"
    return (_OTHER_WEIGHTS if context.exact else longer) + hint


def _lost(figures: DropoutFigures) -> str:
    """Return why it could not be decided whether the loss is minimal."""
    error, dropped = figures.gap.error, figures.white.dropped
    if error > math.sqrt(UNKNOWN):
        return (
            "The second moment that fit computed could not be confirmed by the sketch of the rows "
            f"that passed, so that nothing is known about the minimum. {_REMEDY}"
        )
    if figures.missed > error / 2:
        return (
            "Only the leading singular values of the data were computed, and the bounds on the "
            f"others leave open whether the minimum is smaller by {figures.missed:.1g} times "
            f"{_PART}: the singular values near the last one that {figures.judged.width} hidden "
            "units can represent are too close to each other. More dropout, or another number of "
            "hidden units, separates them."
        )
    directions = (
        f" Number of directions in which the inputs are constant up to rounding errors: {dropped}."
    )
    remedy = f" {_REMEDY}" if figures.white.squared else ""
    if dropped and figures.precision > SINGLE:
        remedy = (
            " The inputs were rounded to float32, which gives them a spurious variance in these "
            "directions: give the rows as float64."
        )
    unexplained = figures.white.energy / figures.white.explained
    if unexplained > UNEXPLAINED:
        remedy = " Subtract the means of inputs and outputs first, or use fit_intercept=True."
    return (
        f"float64 is not precise enough: rounding errors may change the loss minus its minimum by "
        f"{error:.1g} times {_PART} ({unexplained:.1g} times smaller "
        "than E‖y‖² itself), and the second moment of the standardised inputs has the condition "
        f"number {figures.white.condition:.1g}.{directions if dropped else ''}{remedy}"
    )


def _rank(figures: DropoutFigures, level: float, context: Context) -> Claim:
    """Return the claim that the product U Vᵀ of the weights has the rank of the optimal product."""
    described = context.named("rank", figures.judged.width)
    rank, optimal, (lowest, highest) = figures.rank, figures.optimal_rank, figures.rank_band
    if optimal is None:
        return does_not_apply(*described, _NOT_KNOWN)
    if rank != optimal and lowest <= rank <= highest:
        why = (
            "The rank is not defined at this tolerance: a singular value of the optimal product is "
            f"so close to {level:.1g} times the largest, the limit below which it "
            "counts as zero, that weights whose loss is minimal may have either rank."
        )
        return does_not_apply(*described, why)
    has = "has singular directions that the optimum does not have"
    words = has if rank > optimal else "lacks singular directions that the optimum has"
    advice = f"The product U Vᵀ {words}. {_EXACT}" if context.shrink else _OTHER
    same = rank == optimal
    return Claim(*described, float(rank), float(optimal), same, "" if same else advice)


def _curvature(figures: DropoutFigures, level: float, context: Context, *, decided: bool) -> Claim:
    """Return the claim that the Hessian of the loss has no negative eigenvalue.

    If it was not measured, it does not apply where the gap is `decided`, and is undecided
    otherwise.
    """
    name, statement, reference = context.named("curvature")
    reference = "Mianjy et al. 2018, Theorem 4.3" if figures.tied else reference
    if figures.curvature is None:
        state = does_not_apply if decided else undecided
        return state(name, statement, reference, figures.reason)
    advice = f"The weights are at a strict saddle. {figures.reason}"
    error = UNCERTAIN_CURVATURE * figures.stationarity.value + figures.stationarity.error
    return at_least(
        name,
        statement,
        reference,
        figures.curvature,
        -level,
        advice if context.shrink else _OTHER,
        error=error,
    )


def _attributes(figures: DropoutFigures, context: Context) -> tuple[Claim, ...]:
    """Return the claim that the fitted attributes agree with weights and data, if compared."""
    if figures.attributes is None:
        return ()
    value, error = figures.attributes.value, figures.attributes.error
    described = context.named("attributes")
    why = (
        f"{figures.attribute} belongs to other weights or data, or was assigned after the fit. "
        "Call fit again."
    )
    if math.isfinite(value) and error > 1.0:
        why = f"Rounding errors are too large to judge {figures.attribute}. {_REMEDY}"
        return (undecided(*described, why, value, ATTRIBUTES),)
    claim = at_most(*described, value, ATTRIBUTES, why, error=error)
    advice = f"{figures.attribute}: {claim.advice}"
    return (replace(claim, advice=advice) if claim.undecided else claim,)


def _conditioning(figures: DropoutFigures, tolerance: float) -> Claim:
    """Return the claim that rounding errors change the gap by less than the tolerance."""
    described, share = Context().named("conditioning"), figures.gap.error
    dropped = figures.white.dropped
    if share > tolerance:
        return undecided(*described, _lost(figures), share, tolerance)
    note = (
        f"Number of directions in which the inputs count as constant: {dropped}. Their "
        "standard deviation in these directions is as small as rounding errors."
    )
    return Claim(*described, share, tolerance, True, note if dropped else "")


def _small_dropout(figures: DropoutFigures) -> tuple[Claim, ...]:
    """Return up to which strength of dropout tied weights have full rank, if they are tied."""
    if not (figures.tied and figures.known):
        return ()
    strength = figures.judged.strength
    bound = paper_bound(figures.best.values, figures.judged.width)
    inside = strength < bound
    advice = (
        f"The strength of this dropout, {strength:.3g}, is "
        f"{'below' if inside else 'above'} this limit. In both cases every local minimum of the "
        "loss is global (proof in the docstring of lucidae.dropout.theory)."
    )
    statement = (
        "value of dropout/(1 − dropout) below which the optimal product U Uᵀ of tied weights U has "
        "full rank"
    )
    reference = "Mianjy et al. 2018, Theorem 4.3"
    return (reported("small_dropout", statement, reference, bound, advice),)


def _sampling(figures: DropoutFigures, context: Context) -> Claim:
    """Return a claim that reports how many singular values of the data exceed sampling noise."""
    described, white, spectrum = context.named("sampling"), figures.white, figures.best.values
    n_rows, n_inputs = white.n_rows, len(white.inner)
    # With a ridge penalty the level of the noise is that without.
    fewer = " With a ridge penalty the number of components above the noise may be larger."
    fewer = fewer if context.alpha else ""
    why = ""
    if n_rows is None:
        why = (
            "The matrix itself is given, not rows that were drawn from a population, so there is "
            "no sampling noise to compare with."
        )
    elif white.rest > 0:
        why = "Only the leading singular values of the data were computed."
    elif white.residual is not None and n_rows <= n_inputs:
        why = (
            f"The number of rows (less one, if the mean was estimated) is {n_rows:g}, too few to "
            f"estimate the effects of {n_inputs} inputs and the variance of the noise."
        )
    if why or n_rows is None:
        return does_not_apply(*described, why + fewer)
    judged = min(figures.judged.width, len(spectrum))
    if white.residual is None:
        count = int(separated_components(spectrum**2, n_rows, judged).sum())
    else:
        level = noise_level(white.residual, n_inputs, n_rows)
        count = int((spectrum[:judged] > level).sum())
    sentence = (
        f"{count} of the {judged} leading components exceed the sampling noise of {n_rows:g} rows."
    )
    claim = reported(*described, float(count), sentence + fewer)
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
    described = Context().named("leverage")
    rows = figures.white.known
    if rows is None or not rows.peaks.size:
        why = "A matrix is given, not rows: every row counts."
        return does_not_apply(*described, why)
    numbers, shares = rows.peaks
    most = float(shares[0])
    limit = max(INFLUENTIAL, min(20.0 / (rows.weight - rows.centered + 1.0), 0.5))
    named = [f"{int(row)}" for row, share in zip(numbers, shares, strict=True) if share > limit]
    figures.evidence["leverage_rows"] = [int(row) for row in named]
    figures.evidence["leverage_shares"] = [float(share) for share in shares if share > limit]
    if not named:
        return reported(*described, most)
    words = f"row{'s' if len(named) > 1 else ''} {', '.join(named)}"
    advice = (
        f"{words[0].upper()}{words[1:]} (counted from 0) {'have' if len(named) > 1 else 'has'} up "
        f"to {most:.0%} of the squared deviations of all rows, so that the fit depends on "
        f"{'them' if len(named) > 1 else 'it'}: check for errors, and compare with a fit without."
    )
    claim = reported(*described, most, advice)
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
    return Certificate(title, claims(figures, tolerance, context), figures.evidence)


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


def given_matrix(matrix: Any) -> GivenMatrix:
    """Return a matrix that is factorised, checked and in double precision."""
    checked = as_double(check_rows(matrix, accept_sparse=False, name="matrix"))
    return GivenMatrix(np.asarray(to_numpy(checked)))


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


_DUALITY = "Rockafellar 1970, Theorem 31.1 (Fenchel duality)"

_AGAIN = "The iteration has not converged, or the factors belong to other data. Call fit again."

_OBSERVED = "‖P_Ω M‖², the sum of squares of the observed entries"


COMPLETION = {
    "gap": (
        "the loss exceeds its smallest value over all matrices by at most the tolerance",
        _DUALITY,
        _AGAIN,
    ),
    "spectral_norm": (
        "the residual's largest singular value is at most λ/r times the nuclear norm of U Vᵀ",
        _DUALITY,
        _AGAIN,
    ),
    "complementarity": (
        "the inner product of residual and U Vᵀ is λ/r times the squared nuclear norm of U Vᵀ",
        _DUALITY,
        _AGAIN,
    ),
    "equalized": (
        "of all factors with the same product U Vᵀ, these have the smallest penalty Σ‖uᵢ‖²‖vᵢ‖²",
        "Srebro, Rennie & Jaakkola 2004, and the Cauchy–Schwarz inequality",
        "lucidae.equalize_pair makes the norms equal without changing the product U Vᵀ.",
    ),
    "stationarity": (
        "the gradient of the loss on the observed entries is zero",
        "derivatives of the loss with respect to U and V",
        _AGAIN,
    ),
    "attributes": (
        "the fitted attributes agree with the factors and the data",
        "definition of the attributes",
        "An attribute belongs to other factors or data, or was assigned later. Call fit again.",
    ),
}
"""Statement, reference and advice of the claims about a completed matrix, with the strength λ."""


def completion_claims(figures: CompletionFigures, tolerance: float) -> tuple[Claim, ...]:
    """Return the claims about a completed matrix.

    The tolerance is increased for factors of type float32, whose rounding changes the residual.
    """
    tolerance = max(tolerance, 64 * figures.precision)
    level, width = math.sqrt(tolerance), figures.width
    # The lower bound on the loss holds for matrices of any rank, so that factors with a limited
    # number of columns may be optimal without attaining it. If a column were zero, the loss could
    # be decreased by this column, unless the bound is attained.
    limited = figures.rank >= width and figures.stationarity <= level
    could = f"At most {figures.gap:.2g} times {_OBSERVED}, could be gained."
    open_gap = open_norm = ""
    if figures.gap > tolerance >= figures.smallest_gap:
        open_gap = f"The bound on the spectral norm of the residual is not tight enough. {could}"
    elif figures.gap > tolerance and limited:
        open_gap = (
            f"The factors use all of their {width} columns and are a stationary point, but "
            "the lower bound, which is that of matrices of any rank, is not attained: its minimum "
            "has a larger rank, or there are better factors (with a limited rank the problem is "
            f"not convex). {could} Increase n_components or dropout."
        )
    if figures.spectral > level and limited:
        open_norm = (
            "All columns of the factors are used. The best factors with this number of columns "
            "need not meet this condition; it is meant for matrices of any rank."
        )
    elif figures.spectral > level >= figures.smallest_spectral:
        open_norm = "Only a bound on the spectral norm of the residual is known: it is too large."
    found = []
    for name, value, limit, unknown in (
        ("gap", figures.gap, tolerance, open_gap),
        ("spectral_norm", figures.spectral, level, open_norm),
        ("complementarity", figures.complementarity, level, ""),
        ("equalized", figures.excess_penalty, level, ""),
        ("stationarity", figures.stationarity, level, ""),
        ("attributes", figures.attributes, max(ATTRIBUTES, 64 * figures.precision), ""),
    ):
        error = 0.0 if name in ("spectral_norm", "attributes") else figures.error
        statement, reference, advice = COMPLETION[name]
        if unknown:
            claim = undecided(name, statement, reference, unknown, value, limit)
        else:
            claim = at_most(name, statement, reference, value, limit, advice, error=error)
        found.append(claim)
    all_used = (
        f"All {width} columns of the factors are used; matrices of a larger rank are excluded."
    )
    empty = (
        f"{figures.empty_rows} rows and {figures.empty_columns} columns have no observed entry: "
        "the completed matrix is zero there."
    )
    rank = reported(
        "rank",
        f"rank of the completed matrix, which is at most {width}",
        "singular values of U Vᵀ",
        float(figures.rank),
        all_used if figures.rank >= width else "",
    )
    share = reported(
        "observed_share",
        "share of the entries of the matrix that are observed",
        "number of observed entries divided by the number of all entries",
        figures.share,
        empty if figures.empty_rows or figures.empty_columns else "",
    )
    return (*found[:-1], rank, share, found[-1])
