"""Certificates of sparse representations: `measure` gives figures, `claims` judges them.

Fitted estimators and coefficients from elsewhere are measured (by the verifier) and judged alike.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lucidae.arrays import as_double, is_array
from lucidae.certificate import (
    Certificate,
    Claim,
    at_most,
    certifies,
    does_not_apply,
    reported,
)
from lucidae.sparsity.evaluation import Sample
from lucidae.sparsity.figures import FINEST, SparseFigures
from lucidae.sparsity.problem import takes_dictionary_and_responses
from lucidae.sparsity.theory import EXACT, row_scale_ratios, spark_bound, uniqueness_bound
from lucidae.sparsity.verifier import EnergyKind, Fit, measure
from lucidae.validation import check_number, check_rows

__all__ = ["certify_coefficients"]

GIVEN_NOISE = 1e-9
"""Relative distance of γ from the number that was asked for; units are converted to 1e-15."""

ENERGY = 1e-8
"""Relative distance between the reported energy and the verifier's; both are exact to rounding."""

THEOREM = "Wipf 2023, Theorem 4.1"
UNDECIDED = "Uniqueness is neither confirmed nor refuted"
CHEN_HUO = "Chen & Huo 2006, Theorem 2.4"
SPARSEST = "no other representation uses as few columns"
NO_NOISE = "No noise variance is known for these coefficients: give noise_variance."
NOT_MEASURED = "This was not measured: certify(estimator, X, y)."
OUT_OF_REACH = (
    "Σ has a condition number of the order of 1/γ, and solvers in float64 reach ±{reach:.1g} only, "
    "so float64 does not decide the claim."
)


def claims(figures: SparseFigures) -> tuple[Claim, ...]:
    """Return the claims that the figures support, most important first."""
    return (
        _stationarity(figures),
        _posterior_mean(figures),
        _noise_variance(figures),
        _energy(figures),
        reported(
            "reconstruction", "relative error ‖X − ΦU‖/‖X‖ of the estimate",
            f"{THEOREM} (ii)", figures.relative_error,
        ),
        reported(
            "active_dimensions", f"number of active latents, of {figures.n_columns}",
            "Wipf 2023, Definition 3.1", figures.n_active,
        ),
        _unique_in_general_position(figures),
        _unique_by_coherence(figures),
        _row_scales(figures),
        _posterior_collapse(figures),
    )  # fmt: skip


def certificate_of(figures: SparseFigures, title: str) -> Certificate:
    """Return the claims about a fit with the numbers from which to check them."""
    return Certificate(title, claims(figures), figures.evidence)


def _reachable(claim: Claim, reach: float) -> Claim:
    """Withdraw a failure that lies within what solvers in float64 can reach."""
    # The verifier is accurate to ε√cond(Σ), so that what holds does hold. Solvers that form Σ are
    # accurate to ε cond(Σ), and a distance within that is not a fault of theirs.
    if claim.holds is not False or claim.value is None or claim.threshold is None:
        return claim
    if not claim.value - claim.threshold <= reach:
        return claim
    why = OUT_OF_REACH.format(reach=reach)
    return Claim(
        claim.name, claim.statement, claim.reference, claim.value, claim.threshold, None, why, reach
    )


def _stationarity(figures: SparseFigures) -> Claim:
    name, statement = "stationarity", "the energy is stationary (KKT)"
    reference = "Wipf 2023, eq. 18 and 21"
    if figures.violation is None or figures.tolerance is None:
        return does_not_apply(name, statement, reference, NO_NOISE)
    advice = "Raise max_iter, or tol if this accuracy is enough."
    claim = at_most(
        name, statement, reference, figures.violation, figures.tolerance, advice,
        error=figures.violation_error,
    )  # fmt: skip
    return _reachable(claim, figures.reach)


def _posterior_mean(figures: SparseFigures) -> Claim:
    name = "posterior_mean"
    statement = "the coefficients are the posterior mean of their relevances, WΦᵀΣ⁻¹X"
    reference = "Wipf 2023, eq. 18"
    if figures.mean_distance is None:
        why = NO_NOISE if figures.violation is None else NOT_MEASURED
        return does_not_apply(name, statement, reference, why)
    advice = "Coefficients and relevances do not belong together: fit again, or take both."
    claim = at_most(
        name, statement, reference, figures.mean_distance, figures.mean_tolerance, advice,
        error=figures.mean_error,
    )  # fmt: skip
    return _reachable(claim, figures.reach)


def _noise_variance(figures: SparseFigures) -> Claim:
    name, rule = "noise_variance", figures.noise_rule
    reference = "Wipf & Rao 2007"
    statement = {
        "learn": "the energy is stationary in the noise variance",
        "floor": "the energy is stationary in the noise variance",
        "cv": "the noise variance is the error of predicting held-out rows",
    }.get(rule, "the noise variance is the one that was asked for")
    if rule == "cv":
        why = "Held-out rows are predicted once, in the fit; the certificate does not repeat it."
        return does_not_apply(name, statement, reference, why)
    if figures.noise_distance is None:
        why = NOT_MEASURED if rule else "It was given with the coefficients."
        why = NO_NOISE if figures.violation is None else why
        return does_not_apply(name, statement, reference, why)
    learned = rule in ("learn", "floor")
    threshold = (figures.tolerance or 0.0) if learned else GIVEN_NOISE
    advice = "Raise max_iter." if learned else "Fit again."
    # The learned γ inherits the rounding errors of z and Q, summed over the active columns.
    error = figures.violation_error * max(1, figures.n_active) if learned else 0.0
    claim = at_most(
        name, statement, reference, figures.noise_distance, threshold, advice, error=error
    )
    if rule == "floor" and claim.holds:
        why = "Learning took the noise variance to its floor: the evidence has its infimum at 0."
        return does_not_apply(name, statement, reference, why)
    return _reachable(claim, figures.reach) if learned else claim


def _energy(figures: SparseFigures) -> Claim:
    name, statement = "energy", "the reported energy is that of relevances and noise variance"
    reference = "Wipf 2023, eq. 18, 48 and 50"
    if figures.energy_distance is None:
        return does_not_apply(name, statement, reference, "No energy was reported.")
    # Relevances that were stored in single precision are not quite those of the reported energy.
    stored = figures.mean_tolerance
    threshold = stored if stored > FINEST else ENERGY
    claim = at_most(
        name, statement, reference, figures.energy_distance, threshold,
        "The energy belongs to other relevances: fit again.",
    )  # fmt: skip
    return _reachable(claim, figures.reach)


def _not_exact(figures: SparseFigures, name: str) -> Claim:
    why = (
        f"The active columns fit with relative error {figures.exact_error:.2g}, and the theorem "
        "covers exact fits only."
    )
    return Claim(name, SPARSEST, CHEN_HUO, float(figures.n_used), None, None, why)


def _unique_in_general_position(figures: SparseFigures) -> Claim:
    """Judge uniqueness by Chen and Huo's condition, where general position was supported."""
    name, count = "unique_in_general_position", float(figures.n_used)
    if not figures.exact_error <= EXACT:
        return _not_exact(figures, name)
    if figures.spark is None:
        why = figures.position_reason or "As many columns as rows are active."
        return does_not_apply(name, SPARSEST, CHEN_HUO, why)
    bound = uniqueness_bound(figures.spark, figures.rank)
    if figures.position is False:
        why = f"{UNDECIDED}. {figures.position_reason}"
        return Claim(name, SPARSEST, CHEN_HUO, count, bound, None, why)
    if count < bound:
        return Claim(name, SPARSEST, CHEN_HUO, count, bound, True, figures.position_reason)
    why = f"{UNDECIDED}: the condition is sufficient but not necessary."
    return Claim(name, SPARSEST, CHEN_HUO, count, bound, None, why)


def _unique_by_coherence(figures: SparseFigures) -> Claim:
    name, count = "unique_by_coherence", float(figures.n_used)
    if not figures.exact_error <= EXACT:
        return _not_exact(figures, name)
    if figures.coherence is None or not figures.rank:
        why = "The coherence of so many columns was not computed."
        return does_not_apply(name, SPARSEST, CHEN_HUO, figures.position_reason or why)
    bound = uniqueness_bound(spark_bound(figures.coherence, figures.rows), figures.rank)
    if count < bound:
        return Claim(name, SPARSEST, CHEN_HUO, count, bound, True)
    why = (
        f"{UNDECIDED}: the condition is sufficient but not necessary. The coherence "
        f"is {figures.coherence:.3g}."
    )
    return Claim(name, SPARSEST, CHEN_HUO, count, bound, None, why)


def _row_scales(figures: SparseFigures) -> Claim:
    name, statement = "row_scales", "median ratio of successive row norms"
    ratios = row_scale_ratios(figures.row_norms)
    if not ratios.size:
        return does_not_apply(name, statement, THEOREM, "Fewer than two columns are active.")
    advice = "The smaller, the fewer bad minima; the theorem's constants are not explicit."
    return reported(name, statement, THEOREM, float(np.median(ratios)), advice)


def _posterior_collapse(figures: SparseFigures) -> Claim:
    name = "posterior_collapse"
    collapsed = figures.n_columns - figures.n_active
    statement = f"activating any of the {collapsed} collapsed latents would not lower the energy"
    reference = "Wipf 2023, Theorem 4.4"
    if figures.unjustified is None:
        return does_not_apply(name, statement, reference, NO_NOISE)
    advice = "Some would lower the full energy: use posterior='full', or raise max_iter."
    return at_most(
        name, statement, reference, figures.unjustified, 0, advice,
        error=float(figures.undecided if not figures.unjustified else 0),
    )  # fmt: skip


@certifies("sparsity")
@takes_dictionary_and_responses
def certify_coefficients(
    coef: Any,
    X: Any,
    y: Any,
    *,
    noise_variance: float | None = None,
    tol: float = 1e-6,
) -> Certificate:
    """Certify coefficients from any source as a sparse representation of the responses.

    Parameters
    ----------
    coef : array-like of shape (n, κ) or (κ,)
        Coefficients in scikit-learn's orientation.
    X : array-like of shape (d, κ)
        The dictionary.
    y : array-like of shape (d, n) or (d,)
        The responses.
    noise_variance : float, optional
        With it the claims about the energy are judged too, at the relevances under which the
        coefficients would be the posterior mean; where there are none, the claims fail.
    tol : float
        Distance to stationarity (dimensionless) that counts as optimal.

    Returns
    -------
    Certificate

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X, U = rng.standard_normal((10, 30)), np.zeros((30, 4))
    >>> U[:3] = rng.standard_normal((3, 4))
    >>> certify_coefficients(U.T, X, X @ U)["unique_in_general_position"].holds
    True
    """
    dictionary = as_double(check_rows(X, accept_sparse=False))
    responses = _matrix(y, "y", columns=True)
    estimate = _matrix(coef, "coef", columns=False).mT
    expected = (dictionary.shape[1], responses.shape[1])
    if estimate.shape != expected or responses.shape[0] != dictionary.shape[0]:
        raise ValueError(
            f"coef has shape {tuple(np.shape(coef))}, X {tuple(dictionary.shape)} and y "
            f"{tuple(np.shape(y))}, expected (n, κ), (d, κ) and (d, n)."
        )
    noise = noise_variance
    if noise is not None:
        noise = check_number(noise, "noise_variance", low=0.0, open_low=True)
    check_number(tol, "tol", low=0.0)
    figures = measure(
        Sample(dictionary, responses), Fit(estimate, noise=noise), EnergyKind(tolerance=tol)
    )
    return certificate_of(figures, "coefficients")


def _matrix(values: Any, name: str, *, columns: bool) -> Any:
    """Return a vector as one column (or one row) and a matrix as it is."""
    given = values if is_array(values) else np.asarray(values)
    if given.ndim == 1:
        given = given[:, None] if columns else given[None, :]
    return check_rows(given, accept_sparse=False, name=name)
