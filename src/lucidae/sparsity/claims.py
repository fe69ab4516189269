"""Certificates of sparse representations: claims judged by the values that `verify` measures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from lucidae.arrays import as_double, is_array, machine_epsilon, to_numpy
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
from lucidae.sparsity.dictionary import dense_if_small
from lucidae.sparsity.problem import takes_dictionary_and_responses
from lucidae.sparsity.theory import (
    EXACT,
    UNCHECKED,
    Uniqueness,
    row_scale_ratios,
    spark_bound,
    uniqueness_bound,
    uniqueness_of,
)
from lucidae.sparsity.verify import FINEST, HELD_OUT, EnergyKind, Figures, Fit, Sample, measure
from lucidae.validation import check_number, check_rows

__all__ = ["certify_coefficients"]

GIVEN = 1e-9
"""Largest relative difference of γ, or of B, from what was given; units cause about 1e-15."""

ENERGY = 1e-8
"""Largest relative difference of a reported energy, and decrease that is taken for rounding."""

STABLE = 0.5
"""The certificate warns below this overlap (intersection over union) of columns at neighbouring γ.
"""
SAME_COLUMN = 0.9
"""Smallest correlation at which one strongest column may replace another at neighbouring γ."""

WIPF, CHEN_HUO = "Wipf 2023", "Chen & Huo 2006, Theorem 2.4"
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
TRUST = (
    "If the dictionary fits the data only roughly, as an approximate forward model does, trust "
    "the solutions at larger noise variances more: see lucidae.sparsity.noise_path."
)


class SparseClaim(NamedTuple):
    """A claim that a measured value is at most a limit: what it says, and what to do if it fails.

    It is undecided if it fails by no more than `reach`, the accuracy of solvers in float64: the
    verifier is accurate to ε√cond(Σ), so that what holds does hold, but solvers that form Σ are
    accurate to ε cond(Σ), and a distance within that may be as small as they can make it.
    """

    name: str
    statement: str
    reference: str
    value: Callable[[Figures], Ball | None]
    limit: Callable[[Figures], float]
    advice: str
    without: str = NO_NOISE  # why nothing was measured
    reach: Callable[[Figures], float] = lambda _: 0.0
    headline: str = ""

    def claim(self, figures: Figures) -> Claim:
        """Return the claim about a fit."""
        words, measured = self[:3], self.value(figures)
        if measured is None:
            return does_not_apply(*words, self.without)
        limit, reach = self.limit(figures), self.reach(figures)
        value, error = measured.value, measured.error
        found = at_most(*words, value, limit, self.advice, error=error)
        if found.holds is False and value - limit <= reach:
            why = OUT_OF_REACH.format(reach=reach)
            found = undecided(*words, why, value, limit, error=reach)
        return replace(found, headline=self.headline)


def _reach(figures: Figures) -> float:
    return figures.reach


STATIONARITY, MEAN, ENERGIES, VARIANCE, SUPPORT = (
    SparseClaim(
        "stationarity", "the energy is stationary in the relevances (KKT conditions)",
        f"{WIPF}, eq. 18 and 21", lambda of: of.violation, lambda of: of.tolerance,
        "Raise max_iter, or raise tol if this accuracy is enough.", NO_NOISE, _reach,
        "stationary point of the loss",
    ),
    SparseClaim(
        "posterior_mean",
        "the coefficients are the posterior mean, and predictions are computed from it",
        f"{WIPF}, eq. 18", lambda of: of.mean, lambda of: of.mean_tolerance,
        "The coefficients, the intercept and the relevances do not fit together or do not belong "
        "to these data. Fit again.", NO_NOISE, _reach,
    ),
    SparseClaim(
        "energy", "the reported energy is the energy at the fitted relevances and noise variance",
        f"{WIPF}, eq. 18, 48 and 50", lambda of: of.energy, lambda _: ENERGY,
        "The reported energy (loss) belongs to other relevances (prior variances) or to other "
        "data. Fit again.",
        "No energy was reported, or the verifier does not know the formula of this energy.", _reach,
    ),
    SparseClaim(
        "predictive_variance",
        "the variances of predictions follow from the relevances and the noise variance",
        f"{WIPF}, eq. 18", lambda of: of.variance, lambda _: FINEST,
        "The relevances (prior variances), the noise variance or the data have changed. Fit again.",
        "Coefficients alone have no predictive variance.",
        # Variances are differences of numbers of the size of γ cond(Σ).
        lambda of: min(float(of.evidence.get("reach", 0.0)), 1.0),
    ),
    SparseClaim(
        "support", "support_ contains exactly the statistically significant columns", "Wilks 1938",
        lambda of: of.support, lambda _: 0,
        "The value is the number of columns that support_ lacks or contains wrongly. Fit again.",
        "Coefficients alone have no support with a test of significance.",
    ),
)  # fmt: skip

COVARIANCES = SparseClaim(
    "group_covariances",
    "the covariances of the groups are symmetric and positive semi-definite, and their diagonals "
    "are the relevances", f"{WIPF}, eq. 18",
    lambda of: None if of.covariance is None else Ball(of.covariance), lambda _: FINEST,
    "group_covariances_ or relevance_ were changed. Fit again.",
)  # fmt: skip

LEARNED = SparseClaim(
    "noise_variance", "the energy is stationary in the noise variance", "Wipf & Rao 2007",
    lambda of: of.noise, lambda of: of.tolerance,
    "Raise max_iter. If the noise variance then falls further, towards zero, these data do not "
    "determine it (too few rows for so many columns, or no noise): use noise_variance='cv' or give "
    "a number.",
    "The noise variance was given with the coefficients, and nothing was fitted.", _reach,
)  # fmt: skip
ASKED = LEARNED._replace(
    statement="the noise variance is the one that was given", limit=lambda _: GIVEN,
    advice="The noise variance was changed. Fit again.", reach=lambda _: 0.0,
)  # fmt: skip
HELD = ASKED._replace(without="Held-out rows are predicted only during fit.")
NOISE_RULES = {
    "learn": LEARNED,
    "floor": LEARNED,
    "learn_diagonal": LEARNED._replace(
        statement="the energy is stationary in the noise variance of every row"
    ),
    "auto": HELD._replace(
        statement="the noise variance is the mean squared error of predicting held-out rows, plus "
        "a share for errors of the dictionary"
    ),
    "cv": HELD._replace(
        statement="the noise variance is the mean squared error of predicting held-out rows"
    ),
    "cv_1se": HELD._replace(
        statement="held-out rows are predicted within one standard error of the best noise variance"
    ),
}
"""The claim about the noise variance, by the rule by which it was found."""

NOT_REPEATED = {
    **dict.fromkeys(
        HELD_OUT, "Held-out rows are predicted during fit; the certificate does not repeat this."
    ),
    "floor": "Learning ended at the smallest noise variance that is allowed. The energy has no "
    "minimum: it falls without limit as the noise variance tends to zero.",
}
"""Why a noise variance that is the one of its rule is not claimed to be right."""

RESPONSE_RULES = {
    "given": SparseClaim(
        "response_covariance", "the covariance of the responses is the one that was given",
        "Zhang & Rao 2011", lambda of: Ball(of.response[1]), lambda _: GIVEN,  # type: ignore[index]
        "The covariance of the responses was changed. Fit again.",
    ),
    "learn": SparseClaim(
        "response_covariance",
        "no nearby correlation of successive responses lowers the energy per response",
        "Zhang & Rao 2011", lambda of: Ball(of.response[1]), lambda _: ENERGY, "Raise max_iter.",  # type: ignore[index]
    ),
}  # fmt: skip

JOINT_STATEMENTS = {
    "stationarity": "the energy of all parts is stationary in the relevances (KKT conditions)",
    "posterior_mean": "the coefficients of every part are the posterior mean",
    "noise_variance": "the noise variance of every part is the one asked for, or is stationary",
    "energy": "the reported energy is the sum of the energies of all parts",
    "support": "support contains exactly the statistically significant columns",
}
"""Statements about several dictionaries, where they differ from those about one."""


def certificate_of(figures: Figures, title: str) -> Certificate:
    """Return a certificate with all claims about a fit and the numbers from which to check them."""
    (rows,) = figures.rows
    unique = uniqueness_of(rows.dictionary, rows.responses, figures.used, figures.relative_error)
    first, last = _claims(figures), figures.response
    at = [claim.name for claim in first].index("row_scales")
    found = (
        *first[:at], _unique_in_general_position(figures, unique),
        _unique_by_coherence(figures, unique), *first[at:], *_path(figures),
        *_noise_covariance(figures),
        *(() if last is None else (RESPONSE_RULES[last[0]].claim(figures),)),
    )  # fmt: skip
    return Certificate(title, found, figures.evidence | unique.evidence)


def joint_certificate(figures: Figures) -> Certificate:
    """Return the certificate of a fit of several dictionaries with one set of relevances."""
    found = [
        replace(
            claim,
            statement=JOINT_STATEMENTS.get(claim.name, claim.statement),
            advice=claim.advice.replace("use noise_variance='cv' or give a number", "give numbers"),
        )
        for claim in _claims(figures)
        if claim.name != "predictive_variance"
    ]
    return Certificate("solve_joint, full posterior", tuple(found), figures.evidence)


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


def _claims(figures: Figures) -> tuple[Claim, ...]:
    """Return the claims that fits of one and of several dictionaries share."""
    stationarity, rule = STATIONARITY.claim(figures), figures.noise_rule
    if figures.full_groups:
        words = stationarity.statement.replace("relevances", "covariances of the groups")
        stationarity = replace(stationarity, statement=words)
    noise = NOISE_RULES.get(rule, ASKED)
    noise = noise if figures.violation is not None else noise._replace(without=NO_NOISE)
    variance = noise.claim(figures)
    if variance.holds and rule in NOT_REPEATED:
        variance = does_not_apply(*noise[:3], NOT_REPEATED[rule])
    support = SUPPORT.claim(figures)
    if figures.tied and support.holds is not None:
        sets = "; ".join(" or ".join(map(str, found)) for found in figures.tied)
        alternatives = (
            "Some columns are proportional to others, so that the data cannot tell them apart, and "
            f"support_ has one of each set. Alternatives: {sets}."
        )
        support = replace(support, advice=f"{support.advice} {alternatives}".strip())
    return (
        stationarity,
        *(() if figures.covariance is None else (COVARIANCES.claim(figures),)),
        MEAN.claim(figures),
        variance,
        ENERGIES.claim(figures),
        VARIANCE.claim(figures),
        support,
        reported(
            "reconstruction", "relative error of the reconstructed responses",
            f"{WIPF}, Theorem 4.1 (ii)", figures.relative_error,
        ),
        reported(
            "active_dimensions", f"number of active latents among {figures.n_columns} columns",
            f"{WIPF}, Definition 3.1", figures.n_active,
        ),
        _row_scales(figures),
        _posterior_collapse(figures),
        _leverage(figures),
    )  # fmt: skip


def _row_scales(figures: Figures) -> Claim:
    """Return a claim that reports the median ratio of a coefficient row's norm to the next."""
    statement = "median ratio of successive norms of the coefficient rows, in descending order"
    words = "row_scales", statement, f"{WIPF}, Theorem 4.1"
    ratios = row_scale_ratios(figures.row_norms)
    if not ratios.size:
        return does_not_apply(*words, "Fewer than two columns are active.")
    advice = (
        "The smaller this ratio, the fewer bad local minima the energy has. How small it must be "
        "is not known, because the theorem does not state its constants."
    )
    return reported(*words, float(np.median(ratios)), advice)


def _posterior_collapse(figures: Figures) -> Claim:
    """Return the claim that no inactive column would lower the energy if it were active."""
    collapsed, known = figures.n_columns - figures.n_active, figures.posterior
    judged = SparseClaim(
        "posterior_collapse",
        f"none of the {collapsed} collapsed latents would lower the energy if it were active",
        f"{WIPF}, Theorem 4.4", lambda of: of.collapse, lambda _: 0,
        "The value is the number of collapsed latents that would lower it. Raise max_iter.",
        NO_NOISE if figures.violation is None
        else "A zero coefficient is stationary for this energy, whatever the data say.",
    )  # fmt: skip
    claim = judged.claim(figures)
    if figures.violation is not None and claim.value is None and known in ("full", "diagonal"):
        return undecided(*judged[:3], NOT_DETERMINED)
    if figures.violation is None or not figures.full_gains or known == "full":
        return claim
    full = (
        f"{figures.full_gains} of the collapsed latents would lower the energy of posterior='full'."
    )
    return replace(claim, advice=f"{claim.advice} {full}".strip())


def _leverage(figures: Figures) -> Claim:
    """Return a claim that names the rows on which the fit rests more than on others."""
    statement = "largest share of the data, or of a column's coefficients, that one row carries"
    words = "leverage", statement, "Belsley, Kuh & Welsch 1980"
    if figures.leverage is None:
        return does_not_apply(*words, NO_NOISE)
    rows, shares, most = figures.leverage
    if not rows.size:
        return reported(*words, most)
    named = ", ".join(
        f"row {row} ({100.0 * share:.0f} %)" for row, share in zip(rows[:5], shares, strict=False)
    )
    more = f" and {rows.size - 5} more" if rows.size > 5 else ""
    advice = (
        f"The fit rests on {named}{more}: check whether these rows are in the unit of the others, "
        "or fit without them and compare the columns."
    )
    headline = f"influence: row{'s' * (rows.size > 1)} {', '.join(map(str, rows[:5]))}{more}"
    return replace(reported(*words, most, advice), headline=headline)


def _path(figures: Figures) -> tuple[Claim, ...]:
    """Return claims about how the columns in use change with the noise variance."""
    reference = "Meinshausen & Bühlmann 2010"
    statement = "share of the columns in use that stay in use if the noise variance is varied"
    path = figures.path
    if not figures.noise_rule:
        return ()
    if path is None or path["overlap"] is None:
        correlated = ", without response_covariance," * (figures.response is not None)
        why = (
            "The fit was not repeated at neighbouring noise variances. Call "
            f"lucidae.sparsity.noise_path{correlated} to see how the columns change."
        )
        return (does_not_apply("path_stability", statement, reference, why),)
    warnings = []
    if path["overlap"] < STABLE:
        warnings.append(
            f"of the columns that are in use at this or at a neighbouring noise variance, only "
            f"{100.0 * path['overlap']:.0f} % are in use at both"
        )
    changed = path.get("changed", path["strongest"] != path["column"])  # older fits do not tell
    if changed.any():
        worst = int(np.argmax(changed))
        warnings.append(
            f"the strongest column changes: it is column {path['column']} at this noise variance "
            f"and column {path['strongest'][worst]} at {path['noise'][worst]:.3g}"
        )
    advice = f"Warning: {', and '.join(warnings)}. {TRUST}" if warnings else ""
    stability = reported("path_stability", statement, reference, path["overlap"], advice)
    if figures.correlation is None:
        return (stability,)
    claim = at_least(
        "strongest_column",
        "the strongest column is the same at neighbouring noise variances, or is replaced by one "
        "that is correlated with it", reference, figures.correlation, SAME_COLUMN,
        f"The noise variance decides which column is the strongest. {TRUST}",
    )  # fmt: skip
    return stability, replace(claim, headline="same strongest column at nearby noise variances")


def _noise_covariance(figures: Figures) -> tuple[Claim, ...]:
    """Return a claim that reports the rank of a given covariance of the noise."""
    if figures.noise_rank is None:
        return ()
    rank, rows, share = figures.noise_rank
    advice = (
        f"The noise covariance of the {rows} rows has rank {rank}, as after an average reference "
        f"or a projection. The fit uses the {rank} dimensions of its range; of the power of the "
        f"responses, {100.0 * share:.2g} % lie outside and were not used."
    )
    statement = f"rank of the noise covariance of {rows} rows, by which the rows were whitened"
    advice = advice if rank < rows else ""
    return (reported("noise_covariance", statement, "Aitken 1936", rank, advice),)


def _not_proved(unique: Uniqueness) -> str:
    """Return why nothing is claimed about uniqueness; an empty string if something may be."""
    if not unique.exact_error <= EXACT:
        return (
            "Least squares on the active columns leaves a relative error of "
            f"{unique.exact_error:.2g}, and the theorem covers exact fits only."
        )
    return "" if unique.spark is not None else unique.reason or NO_FEWER


def _unique_in_general_position(figures: Figures, unique: Uniqueness) -> Claim:
    """Return the claim that no other set of as few columns represents the responses."""
    words, count = ("unique_in_general_position", SPARSEST, CHEN_HUO), figures.used.size
    if unique.proved and unique.exact_error <= EXACT:
        return Claim(*words, count, None, True, unique.reason)
    why = _not_proved(unique)
    if not why and unique.spark is not None:
        bound = uniqueness_bound(unique.spark, unique.rank)
        why = f"{OPEN}. {unique.reason}"
        if count < bound and unique.reason.startswith(UNCHECKED):
            why += (
                f" If all columns are in general position, the {count} active columns are the only "
                f"possible choice, because {count} is smaller than {bound:g}."
            )
    return does_not_apply(*words, why)


def _unique_by_coherence(figures: Figures, unique: Uniqueness) -> Claim:
    """Return the claim that no other set of as few columns represents the responses."""
    words, count = ("unique_by_coherence", SPARSEST, CHEN_HUO), figures.used.size
    why = _not_proved(unique)
    if why:
        return does_not_apply(*words, why)
    if unique.coherence is None:
        why = "The mutual coherence was not computed, because the dictionary has too many columns."
        return does_not_apply(*words, why)
    bound = uniqueness_bound(spark_bound(unique.coherence, figures.n_rows), unique.rank)
    if count < bound:
        return Claim(*words, float(count), bound, True)
    why = (
        f"{OPEN}: the condition is sufficient but not necessary. The mutual coherence of the "
        f"dictionary is {unique.coherence:.3g}, so fewer than {bound:.3g} columns would have to "
        f"be active; {count} are."
    )
    return does_not_apply(*words, why)


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
        [Sample(plain(dictionary), plain(responses))],
        Fit([plain(estimate)], noise=None if noise is None else [noise],
            rounding=machine_epsilon(estimate)),
        EnergyKind(tolerance=tol),
    )  # fmt: skip
    return certificate_of(figures, "coefficients")


def plain(values: Any) -> Any:
    """Return numbers as NumPy arrays in double precision; sparse matrices stay sparse."""
    if values is None:
        return None
    found = values if scipy.sparse.issparse(values) else to_numpy(values)
    return found.astype(np.complex128 if np.iscomplexobj(found) else np.float64, copy=False)


def _matrix(values: Any, name: str, *, columns: bool) -> Any:
    """Return checked values as a dense matrix; a vector is a column if `columns`, else a row."""
    if scipy.sparse.issparse(values):
        values = values.toarray()  # such as `sparse_coef_` of scikit-learn's Lasso
    given = values if is_array(values) else np.asarray(values)
    if given.ndim == 1:
        given = given[:, None] if columns else given[None, :]
    return check_rows(given, accept_sparse=False, accept_complex=True, name=name)
