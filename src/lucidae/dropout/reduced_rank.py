"""Reduced-rank regression: least squares whose coefficients have at most a given rank.

The coefficients B (d₁ × d₂) of the inputs x and outputs y minimise E‖y − Bx‖² + ρ‖B‖² over all B of
rank at most k, with a ridge penalty ρ ≥ 0. Let C = E[xxᵀ] + ρI = LLᵀ and M = E[yxᵀ]L⁻ᵀ. Completing
the square gives ‖M − BL‖² plus a constant, and BL has the rank of B. By Eckart and Young the best
BL consists of the k leading singular triples of M, so that B = PₖPₖᵀM L⁻¹ with the k leading left
singular vectors Pₖ of M: least squares (or ridge) coefficients, projected on k directions of the
outputs. Truncating the singular values of the coefficients themselves is another estimator, which
is worse for correlated inputs.

References
----------
Eckart and Young, "The approximation of one matrix by another of lower rank", 1936.
Izenman, "Reduced-rank regression for the multivariate linear model", 1975.
Baldi and Hornik, "Neural networks and principal component analysis", 1989.
Mukherjee and Zhu, "Reduced rank ridge regression and its kernel extensions", 2011.
"""

from __future__ import annotations

from dataclasses import replace

from lucidae.arrays import namespace, scalar
from lucidae.arrays.eigen import column_signs
from lucidae.certificate import Claim
from lucidae.dropout.certificate import ATTRIBUTES_CLAIM, claims
from lucidae.dropout.equalize import check_width
from lucidae.dropout.figures import DropoutFigures
from lucidae.dropout.moments import whiten
from lucidae.dropout.objectives import LinearProblem, Weights
from lucidae.dropout.solvers import ExactSolution, leading_svd, value_after
from lucidae.dropout.theory import optimal_rank

__all__ = ["REDUCED_RANK_ATTRIBUTES", "reduced_rank_claims", "ridge_claims", "solve_reduced_rank"]


def solve_reduced_rank(problem: LinearProblem, width: int) -> ExactSolution:
    """Return the factors U and V of the least-squares coefficients of rank at most `width`.

    The columns of U are orthonormal directions of the outputs, by descending singular values; those
    of V are the least-squares coefficients along them, with uncorrelated values vᵢᵀx. Columns
    beyond the rank of the least-squares map are zero.
    """
    width = check_width(width, "width", max(problem.cross.shape))
    white = whiten(problem)
    P, values, Qt = leading_svd(white.matrix, width + 1)
    xp, rank = namespace(values), optimal_rank(values, 0.0, width)
    signs = column_signs(P[:, :rank])
    left, right = P[:, :rank] * signs, Qt[:rank, :].mT * (signs * values[:rank])
    # M − PₖPₖᵀM is formed, because the difference of squared norms would cancel digits.
    rest = white.matrix - left @ (left.mT @ white.matrix)
    zeros = [xp.zeros_like(part[:, :1]) + 0.0 * values[:1] for part in (P, Qt.mT)]
    padded = [
        xp.concat([part, *([zero] * (width - rank))], axis=1)
        for part, zero in zip((left, right), zeros, strict=True)
    ]
    return ExactSolution(
        white.raise_weights(Weights(*padded)),
        rank,
        0.0,
        values[:width],
        white.floor + scalar(xp.sum(rest * rest)),
        value_after(values, width),
    )


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
