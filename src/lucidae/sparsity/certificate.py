"""Certificates of sparse representations: `measure` gives figures, `claims` judges them.

Fitted estimators and coefficients from elsewhere are measured and judged alike.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lucidae.arrays import Array, as_double, is_array, scalar, to_numpy
from lucidae.certificate import Certificate, Claim, at_most, certifies, does_not_apply, reported
from lucidae.io.models import saved_as
from lucidae.sparsity.objectives import Energy, FullCovariance
from lucidae.sparsity.problem import Rows, takes_dictionary_and_responses
from lucidae.sparsity.state import State, evaluate, positive
from lucidae.sparsity.theory import (
    coherence,
    implied_relevance,
    numerical_rank,
    row_scale_ratios,
    spark_bound,
    uniqueness_bound,
)
from lucidae.validation import check_number, check_rows

__all__ = ["certify_coefficients"]

EXACT = 1e-8
"""Relative residual below which a fit counts as exact."""

ACTIVE = 1e-6
"""Amount by which the posterior variance of an active latent is below its prior variance 1."""

FINEST = 1e-6
"""Relevances may have been stored in single precision, so no smaller tolerance is applied."""

THEOREM = "Wipf 2023, Theorem 4.1"
CHEN_HUO = "Chen & Huo 2006, Theorem 2.4"
SPARSEST = "no other representation uses as few columns"
NO_NOISE = "No noise variance is known for these coefficients: give noise_variance."


def _without_cache(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the figures that lucidae 0.1.0 saved without the certificate cached beside them."""
    return {name: value for name, value in fields.items() if name != "certificate"}


@saved_as(
    "lucidae.sparsity.figures/1",
    formerly="lucidae.sparsity.summary:Summary",
    upgrade=_without_cache,
)
@dataclass(frozen=True, slots=True)
class SparseFigures:
    """The figures of one fit: small, and free of the training data.

    Parameters
    ----------
    title : str
    violation, tolerance : float or None
        Distance to stationarity, and the largest that counts as stationary; None without a noise
        variance.
    relative_error : float
        ‖X − ΦU‖/‖X‖.
    exact_error : float
        The same for the least-squares refit on the active columns.
    n_active, n_columns : int
    dimension : float
        Number of independent rows.
    rank : int
        Numerical rank of the responses.
    row_norms : ndarray
        Norms of the active rows of U times those of their columns.
    unjustified : int or None
        Collapsed latents whose activation would lower the full energy.
    coherence : float or None
        Of the dictionary, where it was computed.
    """

    title: str
    violation: float | None
    tolerance: float | None
    relative_error: float
    exact_error: float
    n_active: int
    n_columns: int
    dimension: float
    rank: int
    row_norms: Any
    unjustified: int | None = None
    coherence: float | None = None


def measure(
    rows: Rows,
    estimate: Array,
    *,
    title: str,
    state: State | None = None,
    objective: Energy | None = None,
    tolerance: float = FINEST,
    with_coherence: bool = False,
) -> SparseFigures:
    """Measure an estimate U (κ, n) on rows.

    Parameters
    ----------
    rows : Rows
        The dictionary and the responses.
    estimate : array of shape (κ, n)
        The coefficients.
    title : str
        What is measured.
    state, objective : State and Energy, optional
        The relevances and the energy that they should minimise; without them the claims about
        the energy do not apply.
    tolerance : float
        Distance to stationarity that counts as optimal.
    with_coherence : bool
        Whether to compute the coherence of the dictionary, which takes κ²d operations.

    Returns
    -------
    SparseFigures
    """
    dictionary, responses = rows.weighted
    figures = _figures_of_fit(dictionary, responses, estimate, rows.dimension, title)
    if with_coherence:
        figures = replace(figures, coherence=coherence(dictionary))
    if state is None or objective is None:
        return figures
    tolerance = max(tolerance, FINEST)
    return replace(
        figures,
        violation=scalar(objective.violation(state)),
        tolerance=tolerance,
        n_active=int(active_latents(state).sum()),
        unjustified=int(unjustified_collapse(state, objective, tolerance).sum()),
    )


def _figures_of_fit(
    dictionary: Array, responses: Array, estimate: Array, dimension: float, title: str
) -> SparseFigures:
    """Return the figures that do not need a noise variance."""
    Phi, X, U = (to_numpy(part) for part in (dictionary, responses, estimate))
    total = float(np.linalg.norm(X))
    norms = np.linalg.norm(U, axis=1) * np.linalg.norm(Phi, axis=0)
    active = np.flatnonzero(norms > ACTIVE * norms.max(initial=0.0))
    error = float(np.linalg.norm(X - Phi @ U)) / total if total > 0 else 0.0
    exact = error
    # The posterior mean shrinks its coefficients, so whether the active columns fit exactly is
    # decided by their least-squares refit: the residual outside their span.
    if 0 < active.size < Phi.shape[0] and error < 0.1:
        basis = span_of(Phi[:, active])
        exact = float(np.linalg.norm(X - basis @ (basis.T @ X))) / total
    return SparseFigures(
        title, None, None, error, exact, int(active.size), Phi.shape[1], dimension,
        numerical_rank(X), norms[active],
    )  # fmt: skip


def state_of(rows: Rows, relevance: Array, noise: float, objective: Energy) -> State:
    """Return the state of rows at relevances and a noise variance in the units of the data."""
    problem, units = rows.normalised(objective.groups)
    level = scalar(units.normalised_noise(noise))
    return evaluate(problem.with_noise(level), units.normalised_relevance(relevance))


def active_latents(state: State) -> Any:
    """Mask of the latents whose posterior variance 1 − wⱼzⱼ is below the prior's."""
    return to_numpy(state.relevance * state.curvature) > ACTIVE


def unjustified_collapse(state: State, objective: Energy, tolerance: float) -> Any:
    """Mask of collapsed latents that the full energy would activate: Q > z."""
    alignment, curvature = state.alignment, state.curvature
    if objective.groups is not None:
        alignment, curvature = objective.groups.share(alignment), objective.groups.share(curvature)
    excess = to_numpy((alignment - curvature) / positive(curvature))
    return ~active_latents(state) & (excess > max(10.0 * tolerance, 1e-3))


def span_of(columns: Any) -> Any:
    """Return an orthonormal basis of the numerical span of some columns."""
    left, values, _ = np.linalg.svd(columns, full_matrices=False)
    return left[:, values > values[0] * max(columns.shape) * np.finfo(float).eps]


def claims(figures: SparseFigures) -> tuple[Claim, ...]:
    """Return the claims that the figures support, most important first."""
    return (
        _stationarity(figures),
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


def _stationarity(figures: SparseFigures) -> Claim:
    name, statement = "stationarity", "the energy is stationary (KKT)"
    reference = "Wipf 2023, eq. 18 and 21"
    if figures.violation is None or figures.tolerance is None:
        return does_not_apply(name, statement, reference, NO_NOISE)
    advice = "Raise max_iter, or tol if this accuracy is enough."
    return at_most(name, statement, reference, figures.violation, figures.tolerance, advice)


def _unique(figures: SparseFigures, name: str, spark: float, detail: str = "") -> Claim:
    """Judge uniqueness by Chen and Huo's sufficient condition for a spark, or a bound on it."""
    bound = uniqueness_bound(spark, figures.rank)
    count = float(figures.n_active)
    if figures.exact_error > EXACT:
        why = (
            f"The active columns fit with relative error {figures.exact_error:.2g}, and the "
            "theorem covers exact fits only."
        )
        return Claim(name, SPARSEST, CHEN_HUO, count, bound, None, why)
    if count < bound:
        return Claim(name, SPARSEST, CHEN_HUO, count, bound, True)
    why = f"Not certified, which is not a failure: the condition is sufficient only. {detail}"
    return Claim(name, SPARSEST, CHEN_HUO, count, bound, None, why.strip())


def _unique_in_general_position(figures: SparseFigures) -> Claim:
    """Independent columns have no dependent subset; more than d in general position have d + 1."""
    independent = figures.n_columns <= figures.dimension
    spark = float("inf") if independent else figures.dimension + 1.0
    return _unique(figures, "unique_in_general_position", spark)


def _unique_by_coherence(figures: SparseFigures) -> Claim:
    name = "unique_by_coherence"
    if figures.coherence is None:
        why = "The coherence of the dictionary needs the data: certify(estimator, X, y)."
        return does_not_apply(name, SPARSEST, CHEN_HUO, why)
    detail = f"The coherence is {figures.coherence:.3g}."
    return _unique(figures, name, spark_bound(figures.coherence), detail)


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
    return at_most(name, statement, reference, figures.unjustified, 0, advice)


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
        coefficients would be the posterior mean.
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
    rows = Rows(dictionary, responses, None, False)
    energy: dict[str, Any] = {}
    if noise_variance is not None:
        noise = check_number(noise_variance, "noise_variance", low=0.0, open_low=True)
        relevance = implied_relevance(dictionary, responses, estimate, noise)
        objective = FullCovariance()
        energy = {"state": state_of(rows, relevance, noise, objective), "objective": objective}
    figures = measure(
        rows, estimate, title="coefficients", tolerance=tol, with_coherence=True, **energy
    )
    return Certificate(figures.title, claims(figures))


def _matrix(values: Any, name: str, *, columns: bool) -> Array:
    """Return a vector as one column (or one row) and a matrix as it is, in doubles."""
    given = values if is_array(values) else np.asarray(values)
    if given.ndim == 1:
        given = given[:, None] if columns else given[None, :]
    return as_double(check_rows(given, accept_sparse=False, name=name))
