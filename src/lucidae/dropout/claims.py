"""Claims about dropout networks, from the values that `lucidae.dropout.verify` measures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse
from scipy.stats import chi2

from lucidae.arrays import largest, to_numpy
from lucidae.certificates.bounds import Ball
from lucidae.certificates.claims import Certificate, Claim, certifies, undecided
from lucidae.certificates.rows import OVERFLOW, SMALL_ROWS, Data, GivenRows, RereadRows
from lucidae.certificates.sketch import column_scales, sketch_pairs
from lucidae.counting import separated_components
from lucidae.dropout.problem import (
    LARGEST_ENTRY,
    Passed,
    check_hidden_units,
    checked_targets,
    host,
    joint_moment,
    read_passed,
)
from lucidae.dropout.theory import strength_of
from lucidae.dropout.verify import (
    ATTRIBUTES,
    CERTIFIED,
    SINGLE,
    SMALL,
    UNKNOWN,
    DropoutFigures,
    Judged,
    JudgedRows,
    Matrix,
    Subject,
    measure,
)
from lucidae.dropout.verify_completion import CompletionFigures
from lucidae.rows.kinds import aligned_blocks, in_memory
from lucidae.rows.passes import Passes, load_rows
from lucidae.validation import check_flag, check_number, check_rows, check_weights

LARGEST_GAP = 2e-2
"""Largest gap that the certificate of a fit by SGD allows, whatever its `tol`. The gap is the loss
minus its global minimum, divided by the part of E‖y‖² that least squares explains; weights with a
larger gap are not called optimal."""

UNCERTAIN_CURVATURE = 4.0
"""If the relative norm of the gradient is g, the Hessian differs from that of the nearest critical
point by about UNCERTAIN_CURVATURE · g."""

EXCEEDED = 1e-3
"""Largest probability with which a singular value of pure noise exceeds `noise_level`."""

UNDERESTIMATED = 1e-2
"""Largest probability with which the noise variance exceeds the one that `noise_level` uses."""

INFLUENTIAL = 0.1
"""Smallest share of the energy of all rows with which one row is mentioned, if there are many."""

_EXACT = "solver='exact' computes the optimum from one decomposition."

_EQUALIZE = "lucidae.equalize_pair makes the units equal without changing the product U Vᵀ."

_SEE = (
    "The errors of the computation are too large to judge the distance to the optimum: see the "
    "claim 'conditioning'."
)

_COARSE = (
    "The rounding errors of this figure are too large for a verdict; the claim 'gap', whose errors "
    "are smaller, decides that the loss is minimal."
)

_BOUNDED = "Of so many rows and features, singular values that dropout removes are only bounded."

_NOT_KNOWN = "For tied weights and inputs that are not white no formula of the optimum is known."

_OTHER_WEIGHTS = (
    "These are not the optimal {weights} for these rows: they belong to other rows or settings, or "
    "were changed. Call fit again."
)

_PART = "the part of E‖y‖² that least squares explains"

_THEOREM = "Mianjy et al. 2018, Theorem 3.6"

STATEMENTS = {
    "gap": (
        "the expected loss of the weights equals its global minimum",
        "Mianjy et al. 2018, Theorems 2.4 (tied weights) and 3.6",
    ),
    "product": ("the weights' product U Vᵀ is that of the global minimum", _THEOREM),
    "equalized": (
        "all hidden units have equal importance scores: their relative variance is zero",
        "Mianjy et al. 2018, Theorem 3.4",
    ),
    "path_norm": (
        "no weights with the same product U Vᵀ have a smaller path norm",
        "Mianjy et al. 2018, Theorems 3.3 and 3.4",
    ),
    "rank": ("the product U Vᵀ has the rank of the optimum, at most {width}", _THEOREM),
    "stationarity": ("the gradient of the loss is zero", "Mianjy et al. 2018, eq. 2"),
    "curvature": (
        "the Hessian of the loss has no negative eigenvalue, so this is not a strict saddle",
        "Mianjy et al. 2018, Definition 4.2 and Theorem 4.3",
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
"""Statement and reference of each claim about a network."""

UNITS = ("equalized", "path_norm")
"""Claims about the norms of the hidden units, which reduced-rank regression does not have."""

WITHOUT_DROPOUT = {
    **dict.fromkeys(("gap", "product", "rank"), "Eckart & Young 1936; Izenman 1975"),
    **dict.fromkeys(("stationarity", "curvature"), "Baldi & Hornik 1989"),
    "attributes": "Izenman 1975",
}
"""References of the claims about reduced-rank regression."""


def claims(figures: DropoutFigures, *, exact: bool = False) -> tuple[Claim, ...]:
    """Return the claims that the measured values support, most important first.

    `exact` says that the weights are those of an exact solver, not trained.
    """
    judged, white, tolerance = figures.judged, figures.white, figures.judged.tolerance
    texts = {
        name: Claim(name, statement.format(width=judged.width), reference)
        for name, (statement, reference) in STATEMENTS.items()
    }
    for name, reference in () if judged.shrink else WITHOUT_DROPOUT.items():
        texts[name] = replace(texts[name], reference=reference)
    if judged.alpha:
        gap = texts["gap"]
        statement = f"{gap.statement}, with the ridge penalty alpha={judged.alpha:g} included"
        reference = f"{gap.reference}; Mukherjee & Zhu 2011"
        texts["gap"] = replace(gap, statement=statement, reference=reference)
    advice = _advice(figures, exact)
    # 1) Figures, compared with the largest ones that an allowed gap implies.
    gap = _gap(figures, texts["gap"], advice)
    found = {
        name: texts[name].judged(figure, limit, _EQUALIZE if name in UNITS else advice)
        for name, (figure, limit) in figures.implied.items()
        if judged.shrink or name not in UNITS
    }
    rank, optimal, level = figures.rank, figures.optimal_rank, -judged.level
    same: Any = {"value": rank, "threshold": optimal, "holds": rank == optimal}
    found["rank"] = replace(texts["rank"], **same, advice="" if rank == optimal else advice)
    if figures.curvature is not None:
        steepness, _ = figures.implied["stationarity"]
        ball = Ball(figures.curvature, UNCERTAIN_CURVATURE * steepness.value + steepness.error)
        found["curvature"] = texts["curvature"].judged(ball, level, advice, least=True)
    if figures.attributes is not None:
        why = f"{figures.attribute} belongs to other weights or data, or was assigned after the fit"
        text = texts["attributes"]
        claim = text.judged(figures.attributes, ATTRIBUTES, f"{why}. Call fit again.")
        bounded = claim.undecided and white.upper is not None
        found["attributes"] = replace(claim, advice=_BOUNDED) if bounded else claim
    # 2) Claims that do not apply, and what the gap implies for the others.
    inapplicable = _inapplicable(figures)
    for name in inapplicable.keys() & (found.keys() | {"curvature"}):
        found[name] = replace(texts[name], advice=inapplicable[name])
    lost = figures.uncounted > tolerance or (white.known and gap.holds is None)
    for name, claim in found.items():
        if lost and (name != "attributes" or claim.holds is not False):
            # Neither the optimum nor the distance to it is known.
            found[name] = replace(texts[name], advice=_SEE, undecided=True)
        elif gap.holds and claim.undecided and name in ("product", "stationarity", "curvature"):
            # These follow from a minimal loss, and their own figures may have larger errors.
            found[name] = replace(texts[name], advice=_COARSE)
    # 3) What the data allow to say.
    coarse = figures.gap.error > tolerance
    why = _lost(figures) if coarse else _constant(white.dropped)
    verdict: Any = {"holds": None if coarse else True, "undecided": coarse, "advice": why}
    text = replace(texts["conditioning"], value=figures.gap.error, threshold=tolerance)
    found["conditioning"] = replace(text, **verdict)
    for name, measured in (("sampling", _sampling), ("leverage", _leverage)):
        why = inapplicable.get(name, "")
        found[name] = replace(texts[name], advice=why) if why else measured(figures, texts[name])
    return gap, *(found[name] for name in STATEMENTS if name in found)


def _inapplicable(figures: DropoutFigures) -> dict[str, str]:
    """Return the claims that do not apply to these weights and data, each with the reason."""
    judged, white, rows = figures.judged, figures.white, figures.white.rows
    found, limits = {}, {name: limit for name, (_, limit) in figures.implied.items()}
    if limits["product"] >= 1.0:
        found["product"] = _NOT_UNIQUE if white.known else _NOT_KNOWN
    for name in UNITS:
        if judged.strength == 0:
            found[name] = (
                "Without dropout the loss depends on the product U Vᵀ alone, not on the norms of "
                "single units."
            )
        elif not white.known:
            found[name] = (
                "Theorems 3.3 and 3.4 of Mianjy et al. 2018 hold for separate layers, and for tied "
                "layers with white inputs. With tied layers and correlated inputs the hidden units "
                "of the optimum have in general unequal norms."
            )
        elif limits[name] >= 1.0:
            found[name] = (
                "Dropout is so weak, or the fit so small, that a loss within the tolerance of its "
                "minimum says nothing about the norms of single units."
            )
    lowest, highest = figures.rank_band
    if figures.optimal_rank is None:
        found["rank"] = _NOT_KNOWN
    elif figures.rank != figures.optimal_rank and lowest <= figures.rank <= highest:
        found["rank"] = (
            "The rank is not defined at this tolerance: a singular value of the optimal product is "
            f"so close to {judged.level:.1g} times the largest, the limit below which it counts as "
            "zero, that weights whose loss is minimal may have either rank."
        )
    if figures.curvature is None:
        found["curvature"] = figures.reason
    if rows is None:
        found["leverage"] = "A matrix is given, not rows: every row counts."
        found["sampling"] = "A matrix is given, not rows that were drawn from a population."
    elif white.rest > 0:
        found["sampling"] = "Only the leading singular values of the data were computed."
    elif white.residual is not None and rows.n_rows <= len(white.inner):
        found["sampling"] = (
            f"The number of rows (less one, if the mean was estimated) is {rows.n_rows:g}, too few "
            f"to estimate the effects of {len(white.inner)} inputs and the variance of the noise."
        )
    return found


_NOT_UNIQUE = (
    "The optimal product is not unique: the last singular value of the least-squares map that the "
    "rank allows equals the next one within the tolerance."
)


def _gap(figures: DropoutFigures, text: Claim, advice: str) -> Claim:
    """Return the claim that the loss equals its global minimum.

    A loss below it by more than the tolerance is refuted too: one of them was computed wrongly. If
    its error exceeds the tolerance, a smaller loss is possible, however small the gap is. For tied
    weights and inputs that are not white, the minimum for separate layers is a lower bound.
    """
    ball, tolerance, known = figures.gap, figures.judged.tolerance, figures.white.known
    holds, why = None, _lost(figures)
    if ball.high < -tolerance:
        holds, why = False, "The loss is below its lower bound: one of them was computed wrongly."
    elif abs(ball.value) <= tolerance and max(ball.high, ball.error) <= tolerance:
        holds, why = True, ""
    elif not known:
        why = (
            f"{_NOT_KNOWN} The loss exceeds the optimum by at most {ball.value:.2g} times {_PART}, "
            "because the optimum of separate layers is smaller by that much."
        )
    elif ball.low + figures.uncounted > tolerance:
        # Singular values that were not computed can only make the minimum smaller.
        holds, why = False, advice
    return replace(
        text,
        value=ball.value,
        threshold=tolerance,
        error=ball.error,
        holds=holds,
        undecided=holds is None,
        headline="global minimum of the loss" if known else "",
        advice=why,
    )


def _advice(figures: DropoutFigures, exact: bool) -> str:
    """Return the advice for weights that are not optimal."""
    if not figures.judged.shrink:
        return _OTHER_WEIGHTS.format(weights="coefficients of reduced rank")
    if figures.curvature is not None and figures.curvature < -figures.judged.level:
        return f"The weights are at a strict saddle. {figures.reason}"
    rounded = figures.judged.precision > SINGLE
    hint = " The weights are rounded to float32: give the rows as float64." if rounded else ""
    longer = f"Train longer with a decreasing learning rate; {_EXACT}"
    return (_OTHER_WEIGHTS.format(weights="weights") if exact else longer) + hint


def _lost(figures: DropoutFigures) -> str:
    """Return why it could not be decided whether the loss is minimal."""
    error, white = figures.gap.error, figures.white
    if error > math.sqrt(UNKNOWN):
        return (
            "The second moment that fit computed could not be confirmed by the sketch of the rows "
            "that passed, so that nothing is known about the minimum. Call lucidae.certify with "
            "all rows at once."
        )
    if white.upper is not None and figures.uncounted > error / 2:
        return (
            "Only the leading singular values of the data were computed, and the bounds on the "
            f"others leave open whether the minimum is smaller by {figures.uncounted:.1g} times "
            f"{_PART}: the singular values near the last one that {figures.judged.width} hidden "
            "units can represent are too close to each other. More dropout, or another number of "
            "hidden units, separates them."
        )
    return (
        f"float64 is not precise enough: rounding errors may change the loss minus its minimum by "
        f"{error:.1g} times {_PART} ({white.energy / white.explained:.1g} times smaller than E‖y‖² "
        "itself), and the second moment of the standardised inputs has the condition number "
        f"{white.condition:.1g}. {_constant(white.dropped)} Large means lose digits (subtract "
        "them, or use fit_intercept=True), and so do float32 and the second moment: call "
        "lucidae.certify with all rows at once, as float64."
    )


def _constant(dropped: int) -> str:
    """Return how many directions of the inputs have no variance beyond rounding, if any."""
    known = "Number of directions in which the inputs are constant up to rounding errors"
    return f"{known}: {dropped}." if dropped else ""


def _sampling(figures: DropoutFigures, text: Claim) -> Claim:
    """Return a claim that reports how many singular values of the data exceed sampling noise."""
    white, spectrum = figures.white, figures.best.values
    assert white.rows is not None
    n_rows, width = white.rows.n_rows, min(figures.judged.width, len(spectrum))
    if white.residual is None:
        count = int(separated_components(spectrum**2, n_rows, width).sum())
    else:
        level = noise_level(white.residual, len(white.inner), n_rows)
        count = int((spectrum[:width] > level).sum())
    why = f"{count} of the {width} leading components exceed the sampling noise of {n_rows:g} rows."
    if figures.judged.alpha:  # the level of the noise is that without
        why += " With a ridge penalty the number of components above the noise may be larger."
    return replace(text, value=count, advice=why, headline=f"sampling: {count} of {width}")


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


def _leverage(figures: DropoutFigures, text: Claim) -> Claim:
    """Return a claim that names the rows that have more than their share of the energy."""
    rows = figures.white.rows
    assert rows is not None
    assert rows.data.peaks is not None
    numbers, shares = rows.data.peaks
    high = shares > max(INFLUENTIAL, min(20.0 / (rows.n_rows + 1.0), 0.5))
    named, large = [int(number) for number in numbers[high]], [float(s) for s in shares[high]]
    figures.evidence.update(leverage_rows=named, leverage_shares=large)
    return text.influenced(named, large, float(shares[0]))


def certificate_of(
    subject: Subject | None,
    judged: Judged,
    *,
    title: str,
    attributes: Mapping[str, Any] | None = None,
) -> Certificate:
    """Return the certificate of weights on data; None if nothing is known of the rows.

    `attributes` are the fitted ones, numbers and arrays of NumPy, that are compared with the data.
    """
    why = "Nothing is known of the training rows that fit itself did not compute."
    if subject is not None:
        check_shapes(subject, judged)
        figures = measure(subject, judged, attributes)
        if figures is not None:
            exact = attributes is not None and judged.tolerance <= CERTIFIED
            return Certificate(title, claims(figures, exact=exact), figures.evidence)
        why = "The comparison with the optimum takes too much memory for so many rows and features."
    why = f"{why} Call lucidae.certify with the rows."
    return Certificate(title, (undecided("optimum", "the weights are optimal", "", why),))


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
    left, right = (
        host(check_rows(layer, accept_sparse=False, name=name))
        for layer, name in ((U, "U"), (U if tied else V, "V"))
    )
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
        else host(check_rows(matrix, accept_sparse=False, name="matrix"))
    )
    judged = Judged(left, right, strength, tied=tied, tolerance=tolerance)
    return certificate_of(data, judged, title="dropout weights")


def given_rows(X: Any, Y: Any, sample_weight: Any, *, centered: bool) -> JudgedRows:
    """Return rows, in memory or read in blocks, in the form that the verifier reads."""
    if not (in_memory(X) and in_memory(Y, "y") and in_memory(sample_weight, "sample_weight")):
        blocks = aligned_blocks(X, Y, sample_weight, with_targets=Y is not None)
        small = load_rows(blocks)
        if small is None:
            passed = read_passed(blocks, verbose=False)
            m = None if Y is None else blocks.rows.n_features
            again = RereadRows(Passes(blocks, False), passed.moment.n_features)
            return tested_rows(passed, again if blocks.repeatable else None, m, centered)
        X, Y, sample_weight = small
    X = check_rows(X)
    weights = check_weights(sample_weight, X)
    Y = None if Y is None else to_numpy(checked_targets(X, Y)[0])
    X = X if scipy.sparse.issparse(X) else to_numpy(X)
    return judged_rows(X, Y, None if weights is None else to_numpy(weights), centered)


def judged_rows(
    X: Any, Y: Any, weights: Any, centered: bool, passed: Passed | None = None
) -> JudgedRows:
    """Return rows in memory, as arrays of NumPy, in the form that the verifier reads.

    If their moment and their sketch are known (`passed`), that moment is tested.
    """
    if largest(X.data if scipy.sparse.issparse(X) else X) > LARGEST_ENTRY:
        raise ValueError(OVERFLOW)
    rows, m = GivenRows(X, weights, Y), None if Y is None else int(X.shape[1])
    n, p = rows.shape
    small, wide = n * p <= SMALL_ROWS, p > SMALL if m is None else n < m
    if passed is None or small or wide:
        scales = column_scales(X, Y, centered=centered)
        sketch = sketch_pairs(X, Y, weights, scales)
    if small or wide:
        data = Data.of_rows(rows, sketch.mean * scales, scales)
        data = replace(data, peaks=sketch.shares)
        return JudgedRows((data.refactored() if small else None) or data, m, centered)
    passed = passed or Passed(joint_moment(X, Y, weights), sketch, scales)
    return tested_rows(passed, rows, m, centered)


def tested_rows(passed: Passed, rows: Any, n_inputs: int | None, centered: bool) -> JudgedRows:
    """Return the second moment of rows, which a sketch tests, in the form that the verifier reads.

    If `rows` are known, they decide what the moment does not.
    """
    moment, sketch, scales = passed
    covariance = to_numpy(moment.covariance) / np.outer(scales, scales)
    known = to_numpy(moment.mean) / scales, covariance, float(moment.weight)
    return JudgedRows(Data.of_moment(*known, sketch, rows, unit=scales), n_inputs, centered)


def check_shapes(data: Subject, judged: Judged) -> None:
    """Raise an error unless the weights fit the numbers of outputs and inputs of the data."""
    if not isinstance(data, JudgedRows):
        outputs, inputs = data.shape
    else:
        total = data.data.n_features
        inputs = data.n_inputs or total
        outputs = total - inputs or total
    given = (judged.left.shape[0], judged.right.shape[0])
    if (outputs, inputs) != given:
        raise ValueError(
            f"the data have {outputs} outputs and {inputs} inputs, but the outgoing weights U have "
            f"{given[0]} rows and the incoming weights V have {given[1]}: give the data to which "
            "these weights belong."
        )


_AGAIN = "The iteration has not converged, or the factors belong to other data. Call fit again."

COMPLETION = {
    "gap": (
        "the loss exceeds its smallest value over all matrices by at most the tolerance",
        "Rockafellar 1970, Theorem 31.1 (Fenchel duality)",
    ),
    "equalized": (
        "of all factors with the same product U Vᵀ, these have the smallest penalty Σ‖uᵢ‖²‖vᵢ‖²",
        "Srebro, Rennie & Jaakkola 2004, and the Cauchy–Schwarz inequality",
    ),
    "stationarity": (
        "the gradient of the loss on the observed entries is zero",
        "derivatives of the loss with respect to U and V",
    ),
    "rank": ("rank of the completed matrix", "singular values of U Vᵀ"),
    "observed_share": ("share of the entries of the matrix that are observed", "their number"),
    "attributes": ("the fitted attributes agree with the factors and the data", "their definition"),
}
"""Statement and reference of the claims about a completed matrix."""


def completion_claims(figures: CompletionFigures, judged: Judged) -> tuple[Claim, ...]:
    """Return the claims about a completed matrix.

    The tolerance is increased for factors of type float32, whose rounding changes the residual.
    """
    coarse = 64 * judged.precision
    tolerance = max(judged.tolerance, coarse)
    level, width = math.sqrt(tolerance), judged.width
    texts = {name: Claim(name, *words) for name, words in COMPLETION.items()}

    def compared(name: str, value: float, limit: float, advice: str) -> Claim:
        return texts[name].judged(Ball(value, figures.error), limit, advice)

    gap = compared("gap", figures.gap, tolerance, _AGAIN)
    # The lower bound on the loss holds for matrices of any rank, so that factors with a limited
    # number of columns may be optimal without attaining it. If a column were zero, the loss could
    # be decreased by this column, unless the bound is attained.
    full, why = figures.rank >= width, ""
    used = f"All {width} columns of the factors are used; matrices of a larger rank are excluded."
    if figures.smallest_gap <= tolerance:
        why = "Only a bound on the spectral norm of the residual is known: it is too large."
    elif full and figures.stationarity <= level:
        why = used
    if figures.gap > tolerance and why:
        why += (
            f" At most {figures.gap:.2g} times ‖P_Ω M‖², the sum of squares of the observed "
            "entries, could be gained: increase n_components or dropout."
        )
        gap = replace(gap, holds=None, error=0.0, advice=why, undecided=True)
    empty = (
        f"{figures.empty_rows} rows and {figures.empty_columns} columns have no observed entry: "
        "the completed matrix is zero there."
    )
    empty = empty if figures.empty_rows or figures.empty_columns else ""
    return (
        gap,
        compared("equalized", figures.excess_penalty, level, _EQUALIZE),
        compared("stationarity", figures.stationarity, level, _AGAIN),
        replace(texts["rank"], value=figures.rank, advice=used if full else ""),
        replace(texts["observed_share"], value=figures.share, advice=empty),
        texts["attributes"].judged(
            figures.attributes,
            max(ATTRIBUTES, coarse),
            _OTHER_WEIGHTS.format(weights="factors"),
        ),
    )
