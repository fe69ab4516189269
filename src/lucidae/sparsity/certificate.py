"""Certificates of sparse representations: figures measured on a fit, and the claims they make."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from lucidae.arrays import Array, as_double, is_array, namespace, scalar, to_numpy
from lucidae.certificate import Certificate, Claim, at_most, certifies, does_not_apply, reported
from lucidae.io.models import saved_as
from lucidae.iteration import Solution
from lucidae.sparsity.objectives import Energy, FullCovariance
from lucidae.sparsity.problem import Rows, normalise
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
"""Share of its prior variance that a latent must have given up to count as active."""

THEOREM = "Wipf 2023, Theorem 4.1"
CHEN_HUO = "Chen & Huo 2006, Theorem 2.4"


@saved_as("lucidae.sparsity.figures/1", formerly="lucidae.sparsity.summary:Summary")
@dataclass(frozen=True)
class SparseFigures:
    """The figures of one fit: small, and free of the training data.

    Parameters
    ----------
    title : str
    violation, tolerance : float or None
        Distance to stationarity, and what was asked for; None without a noise variance.
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

    @cached_property
    def certificate(self) -> Certificate:
        """The claims, most important first."""
        claims = (
            self._stationarity(),
            reported(
                "reconstruction", "relative error ‖X − ΦU‖/‖X‖ of the estimate",
                f"{THEOREM} (ii)", self.relative_error,
            ),
            reported(
                "active dimensions", f"latents in use, of {self.n_columns}",
                "Wipf 2023, Definition 3.1", self.n_active,
            ),
            self._unique("uniqueness (general position)", self._general_spark(), ""),
            self._unique_by_coherence(),
            self._row_scales(),
            self._collapse(),
        )  # fmt: skip
        return Certificate(self.title, claims)

    def _stationarity(self) -> Claim:
        statement, reference = "the energy is stationary (KKT)", "Wipf 2023, eq. 18 and 21"
        if self.violation is None or self.tolerance is None:
            why = "No noise variance is known for these coefficients: give noise_variance."
            return does_not_apply("stationarity", statement, reference, why)
        advice = "Raise max_iter, or tol if this accuracy is enough."
        return at_most("stationarity", statement, reference, self.violation, self.tolerance, advice)

    def _general_spark(self) -> float:
        """Independent columns have no dependent subset; else d + 1 in general position."""
        return float("inf") if self.n_columns <= self.dimension else self.dimension + 1.0

    def _unique(self, name: str, spark: float, why_weak: str) -> Claim:
        statement = "no other representation uses as few columns"
        bound = uniqueness_bound(spark, self.rank)
        if self.exact_error > EXACT:
            why = (
                f"The active columns fit with relative error {self.exact_error:.2g}, and the "
                "theorem speaks of exact fits."
            )
            return Claim(name, statement, CHEN_HUO, float(self.n_active), bound, None, why)
        if self.n_active < bound:
            return Claim(name, statement, CHEN_HUO, float(self.n_active), bound, True)
        why = f"Not certified, which is no failure: the condition is sufficient only. {why_weak}"
        return Claim(name, statement, CHEN_HUO, float(self.n_active), bound, None, why.strip())

    def _unique_by_coherence(self) -> Claim:
        name = "uniqueness (coherence)"
        if self.coherence is None:
            statement = "no other representation uses as few columns"
            why = "The dictionary's coherence needs the data: certify(estimator, X, y)."
            return does_not_apply(name, statement, CHEN_HUO, why)
        detail = f"The coherence is {self.coherence:.3g}."
        return self._unique(name, spark_bound(self.coherence), detail)

    def _row_scales(self) -> Claim:
        name, statement = "row scales", "median ratio of successive row norms"
        ratios = row_scale_ratios(self.row_norms)
        if not ratios.size:
            why = "Fewer than two columns are active."
            return does_not_apply(name, statement, THEOREM, why)
        advice = "The smaller, the fewer bad minima; the theorem's constants are not explicit."
        return reported(name, statement, THEOREM, float(np.median(ratios)), advice)

    def _collapse(self) -> Claim:
        name = "posterior collapse"
        collapsed = self.n_columns - self.n_active
        statement = f"the {collapsed} latents whose posterior is the prior would not help"
        reference = "Wipf 2023, Theorem 4.4"
        if self.unjustified is None:
            why = "No noise variance is known for these coefficients: give noise_variance."
            return does_not_apply(name, statement, reference, why)
        advice = "Some would lower the full energy: use posterior='full', or raise max_iter."
        return at_most(name, statement, reference, self.unjustified, 0, advice)


def summarize(
    rows: Rows, estimate: Array, solution: Solution[State], objective: Energy, posterior: str
) -> SparseFigures:
    """Collect the figures of a fit from its last state and its coefficients U (κ, n)."""
    dictionary, responses = rows.whitened
    figures = figures_of(dictionary, responses, estimate, rows.dimension)
    tolerance = max(solution.tolerance, 1e-6)
    return replace(
        figures,
        title=f"{posterior} posterior",
        violation=scalar(objective.violation(solution.value)),
        tolerance=tolerance,
        n_active=int(active_latents(solution.value).sum()),
        unjustified=int(unjustified_collapse(solution.value, objective, tolerance).sum()),
    )


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
    """Return an orthonormal basis of what some columns span in floating point."""
    left, values, _ = np.linalg.svd(columns, full_matrices=False)
    return left[:, values > values[0] * max(columns.shape) * np.finfo(float).eps]


def figures_of(
    dictionary: Array, responses: Array, estimate: Array, dimension: float
) -> SparseFigures:
    """Everything that needs no noise variance."""
    Phi, X, U = (to_numpy(part) for part in (dictionary, responses, estimate))
    total = float(np.linalg.norm(X))
    norms = np.linalg.norm(U, axis=1) * np.linalg.norm(Phi, axis=0)
    active = np.flatnonzero(norms > ACTIVE * norms.max(initial=0.0))
    error = float(np.linalg.norm(X - Phi @ U)) / total if total > 0 else 0.0
    exact = error
    if 0 < active.size < Phi.shape[0] and error < 0.1:
        basis = span_of(Phi[:, active])
        exact = float(np.linalg.norm(X - basis @ (basis.T @ X))) / total
    return SparseFigures(
        "coefficients", None, None, error, exact, int(active.size), Phi.shape[1], dimension,
        numerical_rank(X), norms[active],
    )  # fmt: skip


@certifies("sparsity")
def certify_coefficients(
    coef: Any,
    dictionary: Any,
    X: Any,
    *,
    noise_variance: float | None = None,
    tol: float = 1e-6,
) -> Certificate:
    """Certify coefficients from any source as a sparse representation of the responses.

    Parameters
    ----------
    coef : array-like of shape (n, κ) or (κ,)
        Coefficients in scikit-learn's orientation.
    dictionary : array-like of shape (d, κ)
        The dictionary Φ.
    X : array-like of shape (d, n) or (d,)
        The responses.
    noise_variance : float, optional
        With it the claims about the energy are judged too, at the relevances under which the
        coefficients would be the posterior mean.
    tol : float
        Distance to stationarity that counts as optimal.

    Returns
    -------
    Certificate

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> Phi, U = rng.standard_normal((10, 30)), np.zeros((30, 4))
    >>> U[:3] = rng.standard_normal((3, 4))
    >>> certify_coefficients(U.T, Phi, Phi @ U)["uniqueness (general position)"].holds
    True
    """
    Phi = as_double(check_rows(dictionary, accept_sparse=False, name="dictionary"))
    responses = _matrix(X, "X", columns=True)
    estimate = _matrix(coef, "coef", columns=False).mT
    if estimate.shape != (Phi.shape[1], responses.shape[1]) or responses.shape[0] != Phi.shape[0]:
        raise ValueError(
            f"coef has shape {tuple(np.shape(coef))}, dictionary {tuple(Phi.shape)} and X "
            f"{tuple(np.shape(X))}, expected (n, κ), (d, κ) and (d, n)."
        )
    figures = figures_of(Phi, responses, estimate, float(Phi.shape[0]))
    figures = replace(figures, coherence=coherence(Phi))
    if noise_variance is None:
        return figures.certificate
    noise = check_number(noise_variance, "noise_variance", low=0.0, open_low=True)
    relevance = implied_relevance(Phi, responses, estimate, noise)
    rows = Rows(Phi, responses, namespace(Phi).ones_like(Phi[:, 0]), False)
    return judged(figures, rows, relevance, noise, FullCovariance(), tol).certificate


def _matrix(values: Any, name: str, *, columns: bool) -> Array:
    """Return a vector as one column (or one row) and a matrix as it is, in doubles."""
    given = values if is_array(values) else np.asarray(values)
    if given.ndim == 1:
        given = given[:, None] if columns else given[None, :]
    return as_double(check_rows(given, accept_sparse=False, name=name))


def judged(
    figures: SparseFigures, rows: Rows, relevance: Array, noise: float, objective: Energy,
    tolerance: float,
) -> SparseFigures:  # fmt: skip
    """Add what follows from relevances and a noise variance."""
    dictionary, responses = rows.whitened
    problem, units = normalise(
        dictionary, responses, dimension=rows.dimension, groups=objective.groups
    )
    level = scalar(units.normalised_noise(noise))
    state = evaluate(problem.with_noise(level), units.normalised_relevance(relevance))
    # Relevances that went through coarser precision cannot be judged at the solver's own.
    bar = max(tolerance, 1e-6)
    return replace(
        figures,
        violation=scalar(objective.violation(state)),
        tolerance=bar,
        unjustified=int(unjustified_collapse(state, objective, bar).sum()),
    )
