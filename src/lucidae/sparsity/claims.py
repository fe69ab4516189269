"""Certificates of sparse representations: claims judged by the values that `verify` measures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse

from lucidae.arrays import as_double, is_array, machine_epsilon, to_numpy
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
from lucidae.sparsity.problem import dense_if_small, refuse_extremes
from lucidae.sparsity.theory import (
    EXACT,
    UNCHECKED,
    Uniqueness,
    row_scale_ratios,
    spark_bound,
    uniqueness_bound,
    uniqueness_of,
)
from lucidae.sparsity.verify import HELD_OUT, EnergyKind, Figures, Fit, Sample, measure
from lucidae.validation import check_number, check_rows

__all__ = ["certify_coefficients"]

STABLE = 0.5
"""The certificate warns below this overlap (intersection over union) of columns at neighbouring γ.
"""
SAME_COLUMN = 0.9
"""Smallest correlation at which one strongest column may replace another at neighbouring γ."""

WIPF, CHEN_HUO = "Wipf 2023", "Chen & Huo 2006, Theorem 2.4"
UNVERIFIED = "the methods of the registered energy itself, not verified independently"
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

LEARNED = "the energy is stationary in the noise variance"
HELD = "the noise variance is the mean squared error of predicting held-out rows"
NOISE_STATEMENTS = {
    "learn": LEARNED,
    "floor": LEARNED,
    "learn_diagonal": f"{LEARNED} of every row",
    "auto": f"{HELD}, plus a share for errors of the dictionary",
    "cv": HELD,
    "cv_1se": "held-out rows are predicted within one standard error of the best noise variance",
}
"""What is claimed of the noise variance, by the rule by which it was found."""

NOT_REPEATED = {
    **dict.fromkeys(
        HELD_OUT, "Held-out rows are predicted during fit; the certificate does not repeat this."
    ),
    "floor": "Learning ended at the smallest noise variance that is allowed. The energy has no "
    "minimum: it falls without limit as the noise variance tends to zero.",
}
"""Why a noise variance that is the one of its rule is not claimed to be right."""

RESPONSE_CLAIMS = {
    "given": (
        "the covariance of the responses is the one that was given",
        "The covariance of the responses was changed. Fit again.",
    ),
    "learn": (
        "no nearby correlation of successive responses lowers the energy per response",
        "Raise max_iter.",
    ),
}
"""What is claimed of the covariance of the responses and the advice, by how it was found."""


def certificate_of(figures: Figures, title: str) -> Certificate:
    """Return a certificate with all claims about a fit and the numbers from which to check them."""
    (rows,) = figures.rows
    unique = uniqueness_of(rows.dictionary, rows.responses, figures.used, figures.relative_error)
    found = (
        *_optimality(figures), _variance(figures), *_representation(figures),
        _unique_in_general_position(figures, unique), _unique_by_coherence(figures, unique),
        *_shape(figures), *_path(figures), *_noise_covariance(figures),
        *_response_covariance(figures),
    )  # fmt: skip
    return Certificate(title, found, figures.evidence | unique.evidence)


def joint_certificate(figures: Figures) -> Certificate:
    """Return the certificate of a fit of several dictionaries with one set of relevances."""
    found = (*_optimality(figures), *_representation(figures), *_shape(figures))
    return Certificate("solve_joint, full posterior", found, figures.evidence)


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


def judged(
    figures: Figures, name: str, statement: str, reference: str, advice: str,
    without: str = NO_NOISE, headline: str = "",
) -> Claim:  # fmt: skip
    """Return the claim about what was measured under its name; `without` says why nothing was."""
    words, found = (name, statement, reference), figures.distances.get(name)
    if found is None:
        return does_not_apply(*words, without)
    (value, error), limit, reach = (found.ball.value, found.ball.error), *found[1:]
    claim = at_most(*words, value, limit, advice, error=error)
    if claim.holds is False and value - limit <= reach:
        claim = undecided(*words, OUT_OF_REACH.format(reach=reach), value, limit, error=reach)
    return replace(claim, headline=headline)


def _optimality(figures: Figures) -> Iterator[Claim]:
    """Yield the claims about relevances, coefficients, noise variance and energy."""
    full, own = figures.kind.full_groups, figures.kind.violation is not None
    yield judged(
        figures, "stationarity",
        f"the energy is stationary in the {'covariances of the groups' if full else 'relevances'} "
        "(KKT conditions)", UNVERIFIED if own else f"{WIPF}, eq. 18 and 21",
        "Raise max_iter, or raise tol if this accuracy is enough.",
        headline="stationary point of the loss",
    )  # fmt: skip
    if "group_covariances" in figures.distances:
        yield judged(
            figures, "group_covariances",
            "the covariances of the groups are symmetric and positive semi-definite, and their "
            "diagonals are the relevances", f"{WIPF}, eq. 18",
            "group_covariances_ or relevance_ were changed. Fit again.",
        )  # fmt: skip
    yield judged(
        figures, "posterior_mean",
        "the coefficients are the posterior mean, and predictions are computed from it",
        f"{WIPF}, eq. 18",
        "The coefficients, the intercept and the relevances do not fit together or do not belong "
        "to these data. Fit again.",
    )  # fmt: skip
    yield _noise_variance(figures)
    yield judged(
        figures, "energy",
        "the reported energy is the energy at the fitted relevances and noise variance",
        f"{WIPF}, eq. 18, 48 and 50",
        "The reported energy (loss) belongs to other relevances (prior variances) or to other "
        "data. Fit again.",
        "No energy was reported, or the verifier does not know the formula of this energy.",
    )  # fmt: skip


def _noise_variance(figures: Figures) -> Claim:
    """Return the claim that the noise variance is what its rule gives."""
    rule, without = figures.noise_rule, NO_NOISE
    advice = "The noise variance was changed. Fit again."
    if rule.startswith("learn") or rule == "floor":
        advice = (
            "Raise max_iter. If the noise variance then falls further, towards zero, these data do "
            "not determine it (too few rows for so many columns, or no noise): give a number, or "
            "let SparseVAE find it by noise_variance='cv'."
        )
    if "stationarity" in figures.distances:
        without = "The noise variance was given with the coefficients, and nothing was fitted."
    if rule in HELD_OUT:
        without = "Held-out rows are predicted only during fit."
    statement = NOISE_STATEMENTS.get(rule, "the noise variance is the one that was given")
    claim = judged(figures, "noise_variance", statement, "Wipf & Rao 2007", advice, without)
    if claim.holds and rule in NOT_REPEATED:
        return does_not_apply(claim.name, statement, claim.reference, NOT_REPEATED[rule])
    return claim


def _variance(figures: Figures) -> Claim:
    """Return the claim about the variances of predictions."""
    return judged(
        figures, "predictive_variance",
        "the variances of predictions follow from the relevances and the noise variance",
        f"{WIPF}, eq. 18",
        "The relevances (prior variances), the noise variance or the data have changed. Fit again.",
        "Coefficients alone have no predictive variance.",
    )  # fmt: skip


def _representation(figures: Figures) -> Iterator[Claim]:
    """Yield the claims about the columns in use and the error that they leave."""
    support = judged(
        figures, "support", "support_ contains exactly the statistically significant columns",
        "Wilks 1938",
        "The value is the number of columns that support_ lacks or contains wrongly. Fit again.",
        "Coefficients alone have no support with a test of significance.",
    )  # fmt: skip
    if figures.tied and support.holds is not None:
        sets = "; ".join(" or ".join(map(str, found)) for found in figures.tied)
        alternatives = (
            "Some columns are proportional to others, so that the data cannot tell them apart, and "
            f"support_ has one of each set. Alternatives: {sets}."
        )
        support = replace(support, advice=f"{support.advice} {alternatives}".strip())
    yield support
    yield reported(
        "reconstruction", "relative error of the reconstructed responses",
        f"{WIPF}, Theorem 4.1 (ii)", figures.relative_error,
    )  # fmt: skip
    yield reported(
        "active_dimensions", f"number of active latents among {figures.n_columns} columns",
        f"{WIPF}, Definition 3.1", figures.n_active,
    )  # fmt: skip


def _shape(figures: Figures) -> Iterator[Claim]:
    """Yield the claims about local minima, collapsed latents and rows of large influence."""
    yield _row_scales(figures)
    yield _posterior_collapse(figures)
    yield _leverage(figures)


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
    known, without = figures.kind.posterior, NO_NOISE
    if "stationarity" in figures.distances:
        without = "A zero coefficient is stationary for this energy, whatever the data say."
    claim = judged(
        figures, "posterior_collapse",
        f"none of the {figures.n_columns - figures.n_active} collapsed latents would lower the "
        "energy if it were active", f"{WIPF}, Theorem 4.4",
        "The value is the number of collapsed latents that would lower it. Raise max_iter.",
        without,
    )  # fmt: skip
    if claim.value is None and without != NO_NOISE and known in ("full", "diagonal"):
        return undecided(claim.name, claim.statement, claim.reference, NOT_DETERMINED)
    if not figures.full_gains or known == "full":
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
        correlated = ", without response_covariance," * bool(figures.response_rule)
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


def _response_covariance(figures: Figures) -> Iterator[Claim]:
    """Yield the claim about the covariance of the responses, if there is one."""
    if figures.response_rule:
        statement, advice = RESPONSE_CLAIMS[figures.response_rule]
        yield judged(figures, "response_covariance", statement, "Zhang & Rao 2011", advice)


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
    refuse_extremes(dictionary, "X")
    refuse_extremes(responses, "y")
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
