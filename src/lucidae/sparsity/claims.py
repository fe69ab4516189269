"""Certificates of sparse representations: claims judged by the values that `verify` measures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse

from lucidae.arrays import as_double, is_array, machine_epsilon, to_numpy
from lucidae.certificates.claims import Certificate, Claim, certifies
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

WIPF, EQ_18, CHEN_HUO = "Wipf 2023", "Wipf 2023, eq. 18", "Chen & Huo 2006, Theorem 2.4"
UNVERIFIED = "the methods of the registered energy itself, not verified independently"
SPARSEST = "no other representation of the responses uses as few columns"
OPEN = "It is not known whether another set of as few columns represents the responses"
NO_NOISE = "No noise variance is known for these coefficients: give noise_variance."
NOT_FITTED = "The noise variance was given with the coefficients, and nothing was fitted."
ZERO_STATIONARY = "A zero coefficient is stationary for this energy, whatever the data say."
ONE_COLUMN = "Fewer than two columns are active."
NO_COHERENCE = "The mutual coherence was not computed, because the dictionary has too many columns."
SCALES = (
    "The smaller this ratio, the fewer bad local minima the energy has. How small it must be is "
    "not known, because the theorem does not state its constants."
)
LEARN_AGAIN = (
    "Raise max_iter. If the noise variance then falls further, towards zero, these data do not "
    "determine it (too few rows for so many columns, or no noise): give a number, or let SparseVAE "
    "find it by noise_variance='cv'."
)
CHANGED = (
    "The fitted attributes do not fit together, or do not belong to these data: they were changed, "
    "or these are other data. Fit again."
)
AGAIN = (
    "and the other claims are about the fit: fit again, or certify the changed attributes with "
    "certify(estimator, X, y)."
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
HELD = "the noise variance follows from predictions of held-out rows"
NOISE_STATEMENTS = {"learn": LEARNED, "floor": LEARNED} | dict.fromkeys(HELD_OUT, HELD)
"""What is claimed of the noise variance, by the rule by which it was found."""

NOT_REPEATED = dict.fromkeys(
    HELD_OUT, "Held-out rows are predicted during fit; the certificate does not repeat this."
) | {
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
    """Return all claims about a fit, of one dictionary or of several, and numbers to check them."""
    found, evidence = [*_fit(figures), *_representation(figures)], figures.evidence
    if len(figures.rows) == 1:
        (rows,) = figures.rows
        used, error = evidence["used"], evidence["relative_error"]
        unique = uniqueness_of(rows.dictionary, rows.responses, used, error)
        found, evidence = [*found, *_uniqueness(figures, unique)], evidence | unique.evidence
    found += [*_shape(figures), *_path(figures), *_covariances(figures)]
    return Certificate(title, tuple(found), evidence)


def judged(
    figures: Figures, name: str, statement: str, reference: str, advice: str,
    without: str = NO_NOISE, headline: str = "",
) -> Claim:  # fmt: skip
    """Return the claim about what was measured under a name; `without` says why nothing was."""
    claim, found = Claim(name, statement, reference, headline=headline), figures.distances.get(name)
    if found is None:
        return replace(claim, advice=without)
    verdict = claim.judged(found.ball, found.limit, advice)
    if verdict.holds is False and found.ball.value - found.limit <= found.reach:
        why = OUT_OF_REACH.format(reach=found.reach)
        return replace(verdict, holds=None, error=found.reach, advice=why, undecided=True)
    return verdict


def _fit(figures: Figures) -> Iterator[Claim]:
    """Yield the claims about relevances, coefficients, noise variance, energy and predictions."""
    blocks = "covariances of the groups" if figures.kind.full_groups else "relevances"
    known = figures.kind.violation is None
    statement = f"the energy is stationary in the {blocks} (KKT conditions)"
    reference = f"{WIPF}, eq. 18 and 21" if known else UNVERIFIED
    advice = "Raise max_iter, or raise tol if this accuracy is enough."
    headline = "stationary point of the loss"
    yield judged(figures, "stationarity", statement, reference, advice, headline=headline)
    if "group_covariances" in figures.distances:
        statement = (
            "the covariances of the groups are symmetric and positive semi-definite, and their "
            "diagonals are the relevances"
        )
        yield judged(figures, "group_covariances", statement, EQ_18, CHANGED)
    statement = "the coefficients are the posterior mean, and predictions are computed from it"
    yield judged(figures, "posterior_mean", statement, EQ_18, CHANGED)
    yield _noise_variance(figures)
    statement = "the reported energy is the energy at the fitted relevances and noise variance"
    without = "No energy was reported, or the verifier does not know the formula of this energy."
    yield judged(figures, "energy", statement, f"{EQ_18}, 48 and 50", CHANGED, without)
    if figures.fit.variances is not None or figures.fit.relevance is None:
        statement = "the variances of predictions follow from the relevances and the noise variance"
        without = "Coefficients alone have no predictive variance."
        yield judged(figures, "predictive_variance", statement, EQ_18, CHANGED, without)


def _noise_variance(figures: Figures) -> Claim:
    """Return the claim that the noise variance is what its rule gives."""
    rule = figures.noise_rule
    statement = NOISE_STATEMENTS.get(rule, "the noise variance is the one that was given")
    without = NOT_FITTED if "stationarity" in figures.distances else NO_NOISE
    without, reference = NOT_REPEATED.get(rule, without), "Wipf & Rao 2007"
    advice = LEARN_AGAIN if statement == LEARNED else CHANGED
    claim = judged(figures, "noise_variance", statement, reference, advice, without)
    if claim.holds and rule in NOT_REPEATED:  # right for its rule, whose result is not judged
        return Claim(claim.name, statement, reference, advice=without)
    return claim


def _representation(figures: Figures) -> Iterator[Claim]:
    """Yield the claims about the columns in use and the error that they leave."""
    statement = "support_ contains exactly the statistically significant columns"
    advice = (
        "The value is the number of columns that support_ lacks or contains wrongly. Fit again."
    )
    without = "Coefficients alone have no support with a test of significance."
    support = judged(figures, "support", statement, "Wilks 1938", advice, without)
    if figures.tied and support.holds is not None:
        sets = "; ".join(" or ".join(map(str, np.sort(found))) for found in figures.tied)
        alternatives = (
            "Some columns are proportional to others, so that the data cannot tell them apart, and "
            f"support_ has one of each set. Alternatives: {sets}."
        )
        support = replace(support, advice=f"{support.advice} {alternatives}".strip())
    yield support
    statement = "relative error of the reconstructed responses"
    error = figures.evidence["relative_error"]
    yield Claim("reconstruction", statement, f"{WIPF}, Theorem 4.1 (ii)", error)
    statement = f"number of active latents among {figures.rows[0].powers.size} columns"
    yield Claim("active_dimensions", statement, f"{WIPF}, Definition 3.1", figures.n_active)


def _shape(figures: Figures) -> Iterator[Claim]:
    """Yield the claims about local minima, collapsed latents and rows of large influence."""
    statement = "median ratio of successive norms of the coefficient rows, in descending order"
    scales = Claim("row_scales", statement, f"{WIPF}, Theorem 4.1", advice=ONE_COLUMN)
    ratios = row_scale_ratios(figures.evidence["row_norms"])
    if ratios.size:
        scales = replace(scales, value=float(np.median(ratios)), advice=SCALES)
    yield scales
    collapsed = figures.rows[0].powers.size - figures.n_active
    statement = (
        f"none of the {collapsed} collapsed latents would lower the energy if it were active"
    )
    advice = "The value is the number of collapsed latents that would lower it. Raise max_iter."
    without = ZERO_STATIONARY if "stationarity" in figures.distances else NO_NOISE
    theorem = f"{WIPF}, Theorem 4.4"
    collapse = judged(figures, "posterior_collapse", statement, theorem, advice, without)
    if figures.full_gains and figures.kind.posterior != "full":
        full = f"{figures.full_gains} of the collapsed latents would lower the energy of "
        advice = f"{collapse.advice} {full}posterior='full'."
        collapse = replace(collapse, advice=advice.strip())
    yield collapse
    statement = "largest share of the data, or of a column's coefficients, that one row carries"
    leverage = Claim("leverage", statement, "Belsley, Kuh & Welsch 1980")
    yield leverage.influenced(*figures.leverage)


def _path(figures: Figures) -> Iterator[Claim]:
    """Yield claims about how the columns in use change with the noise variance."""
    reference, path = "Meinshausen & Bühlmann 2010", figures.fit.path
    statement = "share of the columns in use that stay in use if the noise variance is varied"
    stability = Claim("path_stability", statement, reference)
    if not figures.noise_rule or len(figures.rows) > 1:
        return
    if path is None or path["overlap"] is None:
        correlated = ", without response_covariance," * (figures.fit.responses is not None)
        why = (
            "The fit was not repeated at neighbouring noise variances. Call "
            f"lucidae.sparsity.noise_path{correlated} to see how the columns change."
        )
        yield replace(stability, advice=why)
        return
    warnings, overlap = [], path["overlap"]
    if overlap < STABLE:
        warnings.append(
            f"of the columns that are in use at this or at a neighbouring noise variance, only "
            f"{100.0 * overlap:.0f} % are in use at both"
        )
    changed = path.get("changed", path["strongest"] != path["column"])  # older fits do not tell
    for worst in np.flatnonzero(changed)[:1]:
        warnings.append(
            f"the strongest column changes: it is column {path['column']} at this noise variance "
            f"and column {path['strongest'][worst]} at {path['noise'][worst]:.3g}"
        )
    advice = f"Warning: {', and '.join(warnings)}. {TRUST}" if warnings else ""
    yield replace(stability, value=overlap, advice=advice)
    if figures.correlation is not None:
        statement = (
            "the strongest column is the same at neighbouring noise variances, or is replaced by "
            "one that is correlated with it"
        )
        headline = "same strongest column at nearby noise variances"
        claim = Claim("strongest_column", statement, reference, headline=headline)
        advice = f"The noise variance decides which column is the strongest. {TRUST}"
        yield claim.judged(figures.correlation, SAME_COLUMN, advice, least=True)


def _covariances(figures: Figures) -> Iterator[Claim]:
    """Yield the claims about covariances of the noise and of the responses, if there are any."""
    problem = figures.rows[0]
    if problem.sample.noise_cov is not None:
        rank, rows = problem.whitener.shape
        advice = (
            f"The noise covariance of the {rows} rows has rank {rank}, as after an average "
            f"reference or a projection. The fit uses the {rank} dimensions of its range; of the "
            f"power of the responses, {100.0 * problem.outside:.2g} % lie outside and were not "
            "used."
        ) * (rank < rows)
        statement = f"rank of the noise covariance of {rows} rows, by which the rows were whitened"
        yield Claim("noise_covariance", statement, "Aitken 1936", rank, advice=advice)
    if figures.fit.responses is not None:
        rule = "learn" if figures.fit.given_responses is None else "given"
        statement, advice = RESPONSE_CLAIMS[rule]
        yield judged(figures, "response_covariance", statement, "Zhang & Rao 2011", advice)


def _uniqueness(figures: Figures, unique: Uniqueness) -> Iterator[Claim]:
    """Yield two claims that no other set of as few columns represents the responses."""
    general, coherent = (
        Claim(name, SPARSEST, CHEN_HUO)
        for name in ("unique_in_general_position", "unique_by_coherence")
    )
    count, why = figures.evidence["used"].size, ""
    if unique.exact_error > EXACT:
        why = (
            "Least squares on the active columns leaves a relative error of "
            f"{unique.exact_error:.2g}, and the theorem covers exact fits only."
        )
    elif unique.spark is None:
        why = unique.reason or NO_FEWER
    if why or unique.spark is None:
        yield from (replace(claim, advice=why) for claim in (general, coherent))
        return
    # 1) if all columns are in general position, any d of them are independent
    bound, only = uniqueness_bound(unique.spark, unique.rank), ""
    if count < bound and unique.reason.startswith(UNCHECKED):
        only = (
            f" If all columns are in general position, the {count} active columns are the only "
            f"possible choice, because {count} is smaller than {bound:g}."
        )
    if unique.proved:
        yield replace(general, value=count, holds=True, advice=unique.reason)
    else:
        yield replace(general, advice=f"{OPEN}. {unique.reason}{only}")
    # 2) the mutual coherence bounds the number of columns that can be dependent
    if unique.coherence is None:
        yield replace(coherent, advice=NO_COHERENCE)
        return
    spark = spark_bound(unique.coherence, len(figures.rows[0].responses))
    bound = uniqueness_bound(spark, unique.rank)
    why = (
        f"{OPEN}: the condition is sufficient but not necessary. The mutual coherence of the "
        f"dictionary is {unique.coherence:.3g}, so fewer than {bound:.3g} columns would have to "
        f"be active; {count} are."
    )
    found: Any = {"value": count, "threshold": bound, "holds": True}
    yield replace(coherent, **(found if count < bound else {"advice": why}))


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
