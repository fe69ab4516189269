"""Certificates of sparse representations: claims judged by values that the verifier measures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse

from lucidae.arrays import as_double, is_array
from lucidae.certificates.certify import certifies
from lucidae.certificates.claims import (
    Certificate,
    Claim,
    at_most,
    does_not_apply,
    reported,
    undecided,
)
from lucidae.sparsity.evaluation import Sample
from lucidae.sparsity.figures import FINEST, FORMER, SparseFigures
from lucidae.sparsity.inputs import dense_if_small
from lucidae.sparsity.problem import takes_dictionary_and_responses
from lucidae.sparsity.theory import (
    EXACT,
    UNCHECKED,
    row_scale_ratios,
    spark_bound,
    uniqueness_bound,
)
from lucidae.sparsity.verifier import EnergyKind, Fit, measure
from lucidae.validation import check_number, check_rows

__all__ = ["certify_coefficients"]

GIVEN_NOISE = 1e-9
"""Largest relative difference of γ from the given number; units cause about 1e-15."""

STABLE = 0.5
"""The certificate warns below this overlap (intersection over union) of columns at neighbouring γ.
"""
LOWER_ENERGY = 1e-8
"""Largest decrease of the energy per response that is taken for a rounding error."""

ENERGY = 1e-8
"""Largest relative difference allowed between the reported energy and the verifier's."""

THEOREM = "Wipf 2023, Theorem 4.1"
CHEN_HUO = "Chen & Huo 2006, Theorem 2.4"
SPARSEST = "no other representation of the responses uses as few columns"
OPEN = "It is not known whether another set of as few columns represents the responses"
NO_NOISE = "No noise variance is known for these coefficients: give noise_variance."
NOT_DETERMINED = (
    "The coefficients do not determine the relevances (prior variances of the coefficients): these "
    "are not finite, or too inaccurate because the coefficients interpolate the responses."
)
NO_FEWER = "No column is active, or there are at least as many active columns as rows."
OUT_OF_REACH = (
    "The noise variance is so small that the covariance of a response is ill-conditioned. Solvers "
    "in float64 are then accurate to ±{reach:.1g} only, and the measured value exceeds the "
    "threshold by no more than that, so the claim is not decided."
)


def claims(figures: SparseFigures) -> tuple[Claim, ...]:
    """Return all claims of a certificate, judged by the measured values, most important first."""
    return (
        _stationarity(figures),
        *_group_covariances(figures),
        _posterior_mean(figures),
        _noise_variance(figures),
        _energy(figures),
        _predictive_variance(figures),
        _support(figures),
        reported(
            "reconstruction", "relative error of the reconstructed responses",
            f"{THEOREM} (ii)", figures.relative_error,
        ),
        reported(
            "active_dimensions", f"number of active latents among {figures.n_columns} columns",
            "Wipf 2023, Definition 3.1", figures.n_active,
        ),
        _unique_in_general_position(figures),
        _unique_by_coherence(figures),
        _row_scales(figures),
        _posterior_collapse(figures),
        *_path_stability(figures),
        *_noise_covariance(figures),
        *_response_covariance(figures),
    )  # fmt: skip


UNIQUE = ("unique_in_general_position", "unique_by_coherence")
JOINT_STATEMENTS = {
    "stationarity": "the energy of all parts is stationary in the relevances (KKT conditions)",
    "posterior_mean": "the coefficients of every part are the posterior mean",
    "noise_variance": "the noise variance of every part is the one asked for, or is stationary",
    "energy": "the reported energy is the sum of the energies of all parts",
    "support": "support contains exactly the statistically significant columns",
}
"""Statements about several dictionaries, where they differ from those about one."""


def joint_certificate(figures: SparseFigures) -> Certificate:
    """Return the certificate of a fit of several dictionaries with one set of relevances."""
    found = tuple(
        replace(
            claim,
            statement=JOINT_STATEMENTS.get(claim.name, claim.statement),
            advice=claim.advice.replace("use noise_variance='cv' or give a number", "give numbers"),
        )
        for claim in claims(figures)
        if claim.name not in ("predictive_variance", "path_stability", *UNIQUE)
    )
    return Certificate("solve_joint, full posterior", found, figures.evidence)


def _path_stability(figures: SparseFigures) -> tuple[Claim, ...]:
    """Return a claim that reports how the columns in use change with the noise variance."""
    name, reference = "path_stability", "Meinshausen & Bühlmann 2010"
    statement = "share of the columns in use that stay in use if the noise variance is varied"
    path = figures.path
    if not figures.noise_rule:
        return ()
    if path is None or path["overlap"] is None:
        correlated = figures.evidence.get("response_covariance_rule") is not None
        why = (
            "The fit was not repeated at neighbouring noise variances. Call "
            f"lucidae.sparsity.noise_path{', without response_covariance,' * correlated} to see "
            "how the columns change."
        )
        return (does_not_apply(name, statement, reference, why),)
    column = path["column"]
    changed = path.get("changed", path["strongest"] != column)  # older saved fits do not tell
    warnings = []
    if path["overlap"] < STABLE:
        warnings.append(
            f"of the columns that are in use at this or at a neighbouring noise variance, only "
            f"{100.0 * path['overlap']:.0f} % are in use at both"
        )
    if changed.any():
        worst = int(np.argmax(changed))
        warnings.append(
            f"the strongest column changes: it is {column} at this noise variance and "
            f"{path['strongest'][worst]} at the noise variance {path['noise'][worst]:.3g}"
        )
    advice = ""
    if warnings:
        advice = (
            f"Warning: {', and '.join(warnings)}. If the dictionary fits the data only roughly, as "
            "an approximate forward model does, trust the solutions at larger noise variances "
            "more: see lucidae.sparsity.noise_path."
        )
    return (reported(name, statement, reference, path["overlap"], advice),)


def _noise_covariance(figures: SparseFigures) -> tuple[Claim, ...]:
    """Return a claim that reports the rank of the noise covariance; none for white noise."""
    rank, rows = figures.noise_rank, figures.noise_rows
    if rank is None or rows is None:
        return ()
    advice = ""
    if rank < rows:
        share = figures.noise_outside or 0.0
        advice = (
            f"The noise covariance of the {rows} rows has rank {rank}, as after an average "
            f"reference or a projection. The fit uses the {rank} dimensions of its range; of the "
            f"power of the responses, {100.0 * share:.2g} % lie outside and were not used."
        )
    statement = f"rank of the noise covariance of {rows} rows, by which the rows were whitened"
    return (reported("noise_covariance", statement, "Aitken 1936", rank, advice),)


def certificate_of(figures: SparseFigures, title: str) -> Certificate:
    """Return a certificate with all claims about a fit and the numbers from which to check them."""
    return Certificate(title, claims(figures), figures.evidence)


def with_changes(found: Certificate, changed: Mapping[str, float]) -> Certificate:
    """Return the certificate of a fit with a failed claim added if attributes were changed."""
    if not changed:
        return found
    names = ", ".join(changed)
    advice = (
        f"{names} {'was' if len(changed) == 1 else 'were'} changed after the fit, and the other "
        "claims are about the fit: fit again, or certify the changed attributes with "
        "certify(estimator, X, y)."
    )
    claim = "no fitted attribute was changed after the fit (largest relative change)"
    failed = at_most("attributes", claim, "", max(changed.values()), 0.0, advice)
    return Certificate(found.title, (*found, failed), found.evidence)


def _reachable(claim: Claim, reach: float) -> Claim:
    """Return `claim`, undecided if it fails by no more than `reach` of float64 solvers."""
    # The verifier is accurate to ε√cond(Σ), so that what holds does hold. Solvers that form Σ are
    # accurate to ε cond(Σ), and a distance within that may be as small as they can make it.
    if claim.holds is not False or claim.value is None or claim.threshold is None:
        return claim
    if not claim.value - claim.threshold <= reach:
        return claim
    return undecided(
        claim.name, claim.statement, claim.reference, OUT_OF_REACH.format(reach=reach),
        claim.value, claim.threshold, error=reach,
    )  # fmt: skip


def _unknown(figures: SparseFigures, name: str, statement: str, reference: str, why: str) -> Claim:
    """Return a claim that does not apply because of `why`, or that was not measured before."""
    estimated = bool(figures.noise_rule) and name in ("predictive_variance", "support")
    if estimated or (figures.position_reason == FORMER and figures.violation is not None):
        return undecided(name, statement, reference, FORMER)
    return does_not_apply(name, statement, reference, why)


def _stationarity(figures: SparseFigures) -> Claim:
    """Return the claim that the relevances satisfy the optimality (KKT) conditions."""
    name = "stationarity"
    statement = "the energy is stationary in the relevances (KKT conditions)"
    if figures.covariance_distance is not None:
        statement = "the energy is stationary in the covariances of the groups (KKT conditions)"
    reference = "Wipf 2023, eq. 18 and 21"
    if figures.violation is None or figures.tolerance is None:
        return does_not_apply(name, statement, reference, NO_NOISE)
    advice = "Raise max_iter, or raise tol if this accuracy is enough."
    claim = at_most(
        name, statement, reference, figures.violation, figures.tolerance, advice,
        error=figures.violation_error,
    )  # fmt: skip
    return _reachable(claim, figures.reach)


def _group_covariances(figures: SparseFigures) -> tuple[Claim, ...]:
    """Return the claim that `group_covariances_` are covariances with the right diagonals."""
    if figures.covariance_distance is None:
        return ()
    claim = at_most(
        "group_covariances",
        "the covariances of the groups are symmetric and positive semi-definite, and their "
        "diagonals are the relevances",
        "Wipf 2023, eq. 18", figures.covariance_distance, FINEST,
        "group_covariances_ or relevance_ were changed. Fit again.",
    )  # fmt: skip
    return (claim,)


def _posterior_mean(figures: SparseFigures) -> Claim:
    """Return the claim that the coefficients are the posterior mean and predictions use them."""
    name = "posterior_mean"
    statement = "the coefficients are the posterior mean, and predictions are computed from it"
    reference = "Wipf 2023, eq. 18"
    if figures.mean_distance is None:
        return _unknown(figures, name, statement, reference, NO_NOISE)
    advice = (
        "The coefficients, the intercept and the relevances do not fit together or do not belong "
        "to these data. Fit again."
    )
    claim = at_most(
        name, statement, reference, figures.mean_distance, figures.mean_tolerance, advice,
        error=figures.mean_error,
    )  # fmt: skip
    return _reachable(claim, figures.reach)


NOISE_STATEMENTS = {
    "learn": "the energy is stationary in the noise variance",
    "floor": "the energy is stationary in the noise variance",
    "learn_diagonal": "the energy is stationary in the noise variance of every row",
    "cv": "the noise variance is the mean squared error of predicting held-out rows",
    "cv_1se": "held-out rows are predicted within one standard error of the best noise variance",
}
HELD_OUT = ("cv", "cv_1se")
STILL_LEARNING = (
    "Raise max_iter. If the noise variance then falls further, towards zero, these data do not "
    "determine it (too few rows for so many columns, or no noise): use noise_variance='cv' or give "
    "a number."
)


def _noise_variance(figures: SparseFigures) -> Claim:
    """Return the claim that the noise variance is what the rule by which it was found gives."""
    name, rule, reference = "noise_variance", figures.noise_rule, "Wipf & Rao 2007"
    statement = NOISE_STATEMENTS.get(rule, "the noise variance is the one that was given")
    if figures.noise_distance is None:
        why = "The noise variance was given with the coefficients, and nothing was fitted."
        why = "Held-out rows are predicted only during fit." if rule in HELD_OUT else why
        why = NO_NOISE if figures.violation is None else why
        return _unknown(figures, name, statement, reference, why)
    learned = rule in ("learn", "floor", "learn_diagonal")
    threshold = (figures.tolerance or 0.0) if learned else GIVEN_NOISE
    advice = STILL_LEARNING if learned else "The noise variance was changed. Fit again."
    # The learned γ inherits the rounding errors of z and Q, summed over the active columns.
    error = figures.violation_error * max(1, figures.n_active) if learned else 0.0
    claim = at_most(
        name, statement, reference, figures.noise_distance, threshold, advice, error=error
    )
    if rule in HELD_OUT and claim.holds:
        why = "Held-out rows are predicted during fit; the certificate does not repeat this."
        return does_not_apply(name, statement, reference, why)
    if rule == "floor" and claim.holds:
        why = (
            "Learning ended at the smallest noise variance that is allowed. The energy has no "
            "minimum: it falls without limit as the noise variance tends to zero."
        )
        return does_not_apply(name, statement, reference, why)
    return _reachable(claim, figures.reach) if learned else claim


def _energy(figures: SparseFigures) -> Claim:
    """Return the claim that the reported energy is the one at the fitted relevances."""
    name = "energy"
    statement = "the reported energy is the energy at the fitted relevances and noise variance"
    reference = "Wipf 2023, eq. 18, 48 and 50"
    if figures.energy_distance is None:
        why = "No energy was reported, or the verifier does not know the formula of this energy."
        return _unknown(figures, name, statement, reference, why)
    claim = at_most(
        name, statement, reference, figures.energy_distance, ENERGY,
        "The reported energy (loss) belongs to other relevances (prior variances) or to other "
        "data. Fit again.",
        error=figures.energy_error,
    )  # fmt: skip
    return _reachable(claim, figures.reach)


def _predictive_variance(figures: SparseFigures) -> Claim:
    """Return the claim that predictive variances follow from relevances and noise variance."""
    name = "predictive_variance"
    statement = "the variances of predictions follow from the relevances and the noise variance"
    reference = "Wipf 2023, eq. 18"
    if figures.variance_distance is None:
        why = "Coefficients alone have no predictive variance."
        return _unknown(figures, name, statement, reference, why)
    claim = at_most(
        name, statement, reference, figures.variance_distance, FINEST,
        "The relevances (prior variances), the noise variance or the data have changed. Fit again.",
        error=figures.variance_error,
    )  # fmt: skip
    # Variances are differences of numbers of the size of γ cond(Σ), without an upper limit.
    return _reachable(claim, min(float(figures.evidence.get("reach", 0.0)), 1.0))


def _support(figures: SparseFigures) -> Claim:
    """Return the claim that `support_` contains exactly the statistically significant columns."""
    name, statement = "support", "support_ contains exactly the statistically significant columns"
    reference = "Wilks 1938"
    if figures.support_wrong is None:
        why = "Coefficients alone have no support with a test of significance."
        return _unknown(figures, name, statement, reference, why)
    return at_most(
        name, statement, reference, figures.support_wrong, 0,
        "The value is the number of columns that support_ lacks or contains wrongly. Fit again.",
        error=float(figures.support_undecided if not figures.support_wrong else 0),
    )  # fmt: skip


def _not_exact(figures: SparseFigures, name: str) -> Claim:
    """Return a claim of uniqueness that does not apply because the fit is not exact."""
    why = (
        "Least squares on the active columns leaves a relative error of "
        f"{figures.exact_error:.2g}, and the theorem covers exact fits only."
    )
    return does_not_apply(name, SPARSEST, CHEN_HUO, why)


def _unique_in_general_position(figures: SparseFigures) -> Claim:
    """Return the claim that no other set of as few columns represents the responses."""
    name, count = "unique_in_general_position", figures.n_used
    if not figures.exact_error <= EXACT:
        return _not_exact(figures, name)
    if figures.position:
        return Claim(name, SPARSEST, CHEN_HUO, count, None, True, figures.position_reason)
    if figures.spark is None:
        why = figures.position_reason or NO_FEWER
        return does_not_apply(name, SPARSEST, CHEN_HUO, why)
    bound = uniqueness_bound(figures.spark, figures.rank)
    why = f"{OPEN}. {figures.position_reason}"
    if count < bound and figures.position_reason.startswith(UNCHECKED):
        why += (
            f" If all columns are in general position, the {count} active columns are the only "
            f"possible choice, because {count} is smaller than {bound:g}."
        )
    return does_not_apply(name, SPARSEST, CHEN_HUO, why)


def _unique_by_coherence(figures: SparseFigures) -> Claim:
    """Return the claim that no other set of as few columns represents the responses."""
    name, count = "unique_by_coherence", float(figures.n_used)
    if not figures.exact_error <= EXACT:
        return _not_exact(figures, name)
    if figures.spark is None:
        return does_not_apply(name, SPARSEST, CHEN_HUO, figures.position_reason or NO_FEWER)
    if figures.coherence is None:
        why = "The mutual coherence was not computed, because the dictionary has too many columns."
        return does_not_apply(name, SPARSEST, CHEN_HUO, why)
    bound = uniqueness_bound(spark_bound(figures.coherence, figures.rows), figures.rank)
    if count < bound:
        return Claim(name, SPARSEST, CHEN_HUO, count, bound, True)
    why = (
        f"{OPEN}: the condition is sufficient but not necessary. The mutual coherence of the "
        f"dictionary is {figures.coherence:.3g}, so fewer than {bound:.3g} columns would have to "
        f"be active; {figures.n_used} are."
    )
    return does_not_apply(name, SPARSEST, CHEN_HUO, why)


def _row_scales(figures: SparseFigures) -> Claim:
    """Return a claim that reports the median ratio of a coefficient row's norm to the next."""
    name = "row_scales"
    statement = "median ratio of successive norms of the coefficient rows, in descending order"
    ratios = row_scale_ratios(figures.row_norms)
    if not ratios.size:
        return does_not_apply(name, statement, THEOREM, "Fewer than two columns are active.")
    advice = (
        "The smaller this ratio, the fewer bad local minima the energy has. How small it must be "
        "is not known, because the theorem does not state its constants."
    )
    return reported(name, statement, THEOREM, float(np.median(ratios)), advice)


def _posterior_collapse(figures: SparseFigures) -> Claim:
    """Return the claim that no inactive column would lower the full energy if it were active."""
    name = "posterior_collapse"
    collapsed = figures.n_columns - figures.n_active
    statement = (
        f"none of the {collapsed} collapsed latents would lower the full energy if it were active"
    )
    reference = "Wipf 2023, Theorem 4.4"
    if figures.unjustified is None and figures.violation is None:
        return does_not_apply(name, statement, reference, NO_NOISE)
    if figures.unjustified is None:
        return undecided(name, statement, reference, NOT_DETERMINED)
    advice = (
        "The value is the number of collapsed latents that would lower the full energy. Use "
        "posterior='full', or raise max_iter."
    )
    return at_most(
        name, statement, reference, figures.unjustified, 0, advice,
        error=float(figures.undecided if not figures.unjustified else 0),
    )  # fmt: skip


def _response_covariance(figures: SparseFigures) -> tuple[Claim, ...]:
    """Return the claim that the covariance of responses is as given, or locally the best."""
    rule = figures.evidence.get("response_covariance_rule")
    if rule is None:
        return ()
    name, reference = "response_covariance", "Zhang & Rao 2011"
    value = float(figures.evidence["response_covariance"])
    if rule == "given":
        statement = "the covariance of the responses is the one that was given"
        advice = "The covariance of the responses was changed. Fit again."
        return (at_most(name, statement, reference, value, GIVEN_NOISE, advice),)
    statement = "no nearby correlation of successive responses lowers the energy per response"
    advice = "Raise max_iter."
    return (at_most(name, statement, reference, value, LOWER_ENERGY, advice),)


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
    coef : array-like or sparse matrix of shape (n, κ) or (κ,)
        Coefficients, real or complex, in scikit-learn's orientation: one row for each of the n
        responses, one column for each of the κ columns of the dictionary.
    X : array-like or sparse matrix of shape (d, κ)
        The dictionary, with d rows. A large sparse one is read in blocks of columns.
    y : array-like of shape (d, n) or (d,)
        The responses.
    noise_variance : float, optional
        Noise variance of the responses. If it is given, the claims about the energy (loss) are
        judged too, at the relevances (prior variances) under which the coefficients would be the
        posterior mean. If no such relevances exist, these claims fail. Without a noise variance
        they do not apply.
    tol : float
        Distance to the optimality (KKT) conditions, a dimensionless number, that counts as optimal.

    Returns
    -------
    Certificate
        Claims about the fit, the optimality and the uniqueness of the representation.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X, U = rng.standard_normal((10, 30)), np.zeros((30, 4))
    >>> U[:3] = rng.standard_normal((3, 4))
    >>> certify_coefficients(U.T, X, X @ U)["unique_in_general_position"].holds
    True
    """
    dictionary = dense_if_small(check_rows(X, accept_complex=True))
    dictionary = dictionary if scipy.sparse.issparse(dictionary) else as_double(dictionary)
    responses = _matrix(y, "y", columns=True)
    estimate = _matrix(coef, "coef", columns=False).mT
    expected = (dictionary.shape[1], responses.shape[1])
    if estimate.shape != expected or responses.shape[0] != dictionary.shape[0]:
        raise ValueError(
            f"coef has shape {tuple(estimate.mT.shape)}, X has shape {tuple(dictionary.shape)} and "
            f"y has shape {tuple(responses.shape)}, expected (responses, columns), (rows, columns) "
            "and (rows, responses)."
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
    """Return checked values as a dense matrix; a vector is a column if `columns`, else a row."""
    if scipy.sparse.issparse(values):
        values = values.toarray()  # such as `sparse_coef_` of scikit-learn's Lasso
    given = values if is_array(values) else np.asarray(values)
    if given.ndim == 1:
        given = given[:, None] if columns else given[None, :]
    return check_rows(given, accept_sparse=False, accept_complex=True, name=name)
