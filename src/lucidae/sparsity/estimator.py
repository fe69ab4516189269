"""The estimator `SparseVAE`."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import KFold, check_cv
from sklearn.utils.validation import check_is_fitted, validate_data

from lucidae.arrays import (
    Array,
    as_double,
    device,
    is_array,
    is_numpy,
    like,
    namespace,
    scalar,
    to_numpy,
)
from lucidae.base import CertifiedMixin, Fitted, FittedState, upgraded_estimator, validated_rows
from lucidae.certificate import Certificate
from lucidae.io.models import reads, saved_as
from lucidae.iteration import Solution, limited_blas
from lucidae.sparsity.certificate import SparseFigures, figures_of, judged, summarize
from lucidae.sparsity.groups import Groups
from lucidae.sparsity.noise import FALLBACK, cross_validated_noise, learn_noise
from lucidae.sparsity.objectives import Autoencoder, Energy
from lucidae.sparsity.penalties import as_penalty
from lucidae.sparsity.posterior import Posterior
from lucidae.sparsity.problem import Problem, Rows, Units, canonical, normalise
from lucidae.sparsity.solvers import FEW_RESPONSES, POSTERIORS, SOLVERS, make_objective, solve
from lucidae.sparsity.state import State
from lucidae.sparsity.support import significant_columns
from lucidae.sparsity.theory import coherence
from lucidae.sparsity.updates import SMALLEST_LEARNED
from lucidae.validation import (
    check_choice,
    check_integer,
    check_number,
    check_rows,
    check_weights,
)

__all__ = ["SparseVAE"]

LARGEST = 1e75
"""Magnitudes beyond this, or columns whose entries all lie below its inverse, are refused."""


def checked_objective(settings: Any, n_columns: int) -> Energy:
    """Check the settings of an estimator that need no data and return its objective."""
    check_choice(settings.posterior, "posterior", POSTERIORS)
    check_choice(settings.solver, "solver", SOLVERS)
    check_number(settings.significance, "significance", low=0.0, high=1.0, open_low=True)
    check_number(settings.tol, "tol", low=0.0)
    check_integer(settings.max_iter, "max_iter", low=1)
    if settings.posterior != "full" and settings.solver not in ("auto", "mm"):
        raise ValueError(
            f"solver={settings.solver!r} lowers the full energy alone; with "
            f"posterior={settings.posterior!r} use solver='auto'."
        )
    if settings.groups is not None and settings.solver == "coordinate":
        raise ValueError(
            "solver='coordinate' moves one column at a time and groups share a relevance; "
            "use solver='auto'."
        )
    groups = None if settings.groups is None else Groups.of(settings.groups, n_columns)
    return make_objective(settings.posterior, as_penalty(settings.penalty), groups)


def noise_rule(settings: Any, n_rows: int, n_columns: int) -> str | float:
    """Return "learn", "cv", "fallback" or the noise variance that was given."""
    given = settings.noise_variance
    if isinstance(given, Real):
        return check_number(given, "noise_variance", low=0.0, open_low=True)
    rule = check_choice(given, "noise_variance", ("auto", "learn", "cv"))
    if rule == "learn" and settings.posterior == "point":
        raise ValueError(
            "noise_variance='learn' needs a posterior, and a point estimate has none: its "
            "energy falls without end as γ → 0. Use 'cv' or give a number."
        )
    if rule == "cv" and n_rows < 2:
        raise ValueError(
            f"noise_variance='cv' holds rows out, and there is {n_rows} distinct row. Give "
            "more rows or a number."
        )
    if rule != "auto":
        return rule
    if settings.posterior != "point" and n_columns <= n_rows / 2:
        return "learn"
    return "cv" if n_rows >= 2 else "fallback"


def folds(settings: Any, distinct: Rows, given: Rows) -> tuple[Rows, Iterator[tuple[Any, Any]]]:
    """Return the rows to split, and the splits.

    A number of folds divides the distinct rows, so that weighting and repeating rows agree; a
    splitter or explicit folds speak of the rows as they were given.
    """
    if settings.cv is None or isinstance(settings.cv, int | np.integer):
        few = given.responses.shape[1] <= FEW_RESPONSES
        usual = 10 if few else 5  # one response is no longer identified by four fifths of its rows
        wanted = usual if settings.cv is None else check_integer(settings.cv, "cv", low=2)
        seed = 0 if settings.random_state is None else settings.random_state
        splitter = KFold(min(wanted, distinct.count), shuffle=True, random_state=seed)
        return distinct, splitter.split(np.empty((distinct.count, 1)))
    splitter = check_cv(settings.cv)
    return given, splitter.split(to_numpy(given.dictionary), to_numpy(given.responses))


def validated_pair(estimator: Any, X: Any, y: Any) -> tuple[Array, Array]:
    """Validate the data of a fit; arrays of other libraries stay where they are."""
    if is_array(X) and not is_numpy(X):
        X = validated_rows(estimator, X, reset=True, accept_sparse=False)
        flat = y.ndim == 1
        targets = check_rows(y[:, None] if flat else y, name="y")
        if targets.shape[0] != X.shape[0]:
            raise ValueError(f"X has {X.shape[0]} rows and y {targets.shape[0]}: give as many.")
        y = targets[:, 0] if flat else targets
    else:
        X, y = validate_data(
            estimator, X, y, dtype=(np.float64, np.float32), multi_output=True, y_numeric=True
        )
        y = np.asarray(y, dtype=np.float64)
    refuse_extremes(X, "X")
    refuse_extremes(y if y.ndim == 2 else y[:, None], "y")
    return X, y


def read_data(
    estimator: Any, X: Any, y: Any, sample_weight: Any
) -> tuple[Array, Array, Array | None]:
    """Return the dictionary, the responses as columns and the weights, in doubles."""
    X = as_double(validated_rows(estimator, X, reset=False, accept_sparse=False))
    given = y if is_array(y) else np.asarray(y, dtype=np.float64)
    targets = as_double(check_rows(given[:, None] if given.ndim == 1 else given, name="y"))
    if targets.shape[0] != X.shape[0]:
        raise ValueError(f"X has {X.shape[0]} rows and y {targets.shape[0]}: give as many.")
    outputs = estimator.coef_.shape[0] if estimator.coef_.ndim == 2 else 1
    if targets.shape[1] != outputs:
        raise ValueError(
            f"y has {targets.shape[1]} outputs, the estimator was fitted to {outputs}."
        )
    return X, targets, check_weights(sample_weight, X)


def refuse_extremes(values: Array, name: str) -> None:
    """Refuse magnitudes whose squares, or the ratios of these, leave the range of doubles."""
    xp = namespace(values)
    peaks = as_double(xp.max(xp.abs(values), axis=0))
    tiny = (peaks > 0) & (peaks < 1.0 / LARGEST)
    if bool(xp.any(peaks > LARGEST)) or bool(xp.any(tiny)):
        worst = scalar(xp.min(peaks[tiny])) if bool(xp.any(tiny)) else scalar(xp.max(peaks))
        raise ValueError(
            f"{name} has a column of magnitude {worst:.3g}; squares of such numbers leave the "
            f"range of doubles. Rescale it to lie between {1 / LARGEST:g} and {LARGEST:g}."
        )


def warn_if_collapsed(solution: Solution[State]) -> None:
    """Warn when learning took the noise variance to its floor."""
    if scalar(solution.value.noise) <= 1.01 * SMALLEST_LEARNED:
        warnings.warn(
            "The learned noise variance fell to its floor: the evidence of these data has its "
            "infimum at zero (too few rows for so many columns, or no noise at all). Use "
            "noise_variance='cv' or give a number.",
            ConvergenceWarning,
            stacklevel=5,
        )


@saved_as("lucidae.sparsity.fitted/1")
@dataclass(eq=False)
class SparseState(FittedState):
    """Fitted state of `SparseVAE`.

    Parameters
    ----------
    results : dict
        The fitted attributes by name.
    posterior : Posterior
        Posterior of the coefficients on the active columns.
    center : array of shape (n_features,)
        Weighted mean of the rows, zero without an intercept.
    summary : SparseFigures
        The figures that the certificate judges.
    """

    results: dict[str, Any]
    posterior: Posterior
    center: Array
    summary: SparseFigures

    def compute_attributes(self) -> dict[str, Any]:
        """Return the fitted attributes by name."""
        return self.results

    def compute_certificate(self, title: str) -> Certificate:
        """Return the claims that the kept figures support."""
        return replace(self.summary, title=f"{title}, {self.summary.title}").certificate


ATTRIBUTES = (
    "coef_",
    "intercept_",
    "relevance_",
    "support_",
    "noise_variance_",
    "energy_",
    "history_",
    "n_iter_",
    "status_",
)


@reads("lucidae.sparsity.estimators:Fitted")
def _former_state(fields: dict[str, Any]) -> SparseState:
    """Return the state that lucidae 0.1.0 saved, still without its attributes."""
    title = fields["summary"].title.removeprefix("SparseVAE, ")
    summary = replace(fields["summary"], title=title)
    return SparseState({}, fields["posterior"], fields["center"], summary)


def _upgraded(fields: dict[str, Any]) -> dict[str, Any]:
    """Move the fitted attributes of an estimator of lucidae 0.1.0 into its state."""
    fields = upgraded_estimator(fields)
    fields["_state"].results |= {name: fields.pop(name) for name in ATTRIBUTES}
    return fields


@saved_as(
    "lucidae.SparseVAE/1", formerly="lucidae.sparsity.estimators:SparseVAE", upgrade=_upgraded
)
class SparseVAE(CertifiedMixin, MultiOutputMixin, RegressorMixin, BaseEstimator):
    """Multi-output sparse regression by a variational autoencoder with a fixed dictionary.

    Finds the few columns of `X` that together explain all outputs `y`. With the full posterior
    this is the energy whose bad local minima are smoothed away (Wipf 2023, Theorem 4.1).

    Parameters
    ----------
    posterior : {"full", "diagonal", "point"}, default="full"
        Covariance of the encoder; "point" is the deterministic autoencoder.
    noise_variance : float, "auto", "learn" or "cv", default="auto"
        γ, or how to find it: by evidence, or as the error of predicting held-out rows. "auto"
        learns it where there are at most half as many columns as rows and uses held-out rows
        elsewhere; a single row counts a tenth of its mean square as noise.
    solver : {"auto", "mm", "em", "mackay", "coordinate"}, default="auto"
        How the full energy goes down. The other posteriors have one update each ("mm").
    groups : array-like of int of shape (n_features,), optional
        Columns with the same label share one relevance.
    penalty : {"log", "power", "arctan"} or object, default="log"
        Concave penalty of the point estimate, by methods ``value`` and ``supergradient``.
    cv : int, splitter or iterable, optional
        Folds over rows for ``noise_variance="cv"``; five by default, ten for one or two outputs.
    significance : float, default=0.05
        Family-wise level of the test behind ``support_``.
    fit_intercept : bool, default=True
        Whether to centre rows.
    max_iter : int, default=1000
        Largest number of iterations.
    tol : float, default=1e-6
        Distance to stationarity at which to stop.
    random_state : int, RandomState or None, default=None
        Shuffles the rows among the folds; None takes them in their canonical order.

    Attributes
    ----------
    coef_ : ndarray of shape (n_outputs, n_features) or (n_features,)
        Posterior mean of the coefficients.
    intercept_ : ndarray of shape (n_outputs,) or float
    relevance_ : ndarray of shape (n_features,)
        The optimal w = w_x², zero for columns that are not used.
    support_ : ndarray of int
        Columns whose relevance is statistically significant.
    noise_variance_ : float
    energy_ : float
    history_ : History
    n_iter_ : int
    status_ : Status
    certificate_ : Certificate
    n_features_in_ : int

    References
    ----------
    Wipf 2023, Marginalization is not marginal: no bad VAE local minima when learning optimal
    sparse representations.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((50, 100))
    >>> y = X[:, [3, 41]] @ rng.standard_normal((2, 10)) + 0.1 * rng.standard_normal((50, 10))
    >>> model = SparseVAE().fit(X, y)
    >>> model.support_
    array([ 3, 41])
    >>> model.certificate_["stationarity"].holds
    True
    """

    coef_ = Fitted()
    intercept_ = Fitted()
    relevance_ = Fitted()
    support_ = Fitted()
    noise_variance_ = Fitted()
    energy_ = Fitted()
    history_ = Fitted()
    n_iter_ = Fitted()
    status_ = Fitted()

    _state: SparseState

    def __init__(
        self,
        *,
        posterior: str = "full",
        noise_variance: float | str = "auto",
        solver: str = "auto",
        groups: Any = None,
        penalty: Any = "log",
        cv: Any = None,
        significance: float = 0.05,
        fit_intercept: bool = True,
        max_iter: int = 1000,
        tol: float = 1e-6,
        random_state: Any = None,
    ) -> None:
        self.posterior = posterior
        self.noise_variance = noise_variance
        self.solver = solver
        self.groups = groups
        self.penalty = penalty
        self.cv = cv
        self.significance = significance
        self.fit_intercept = fit_intercept
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Find the relevant columns of `X` for all outputs `y`.

        Parameters
        ----------
        X : array-like of shape (d, n_features)
            The dictionary.
        y : array-like of shape (d,) or (d, n_outputs)
            The responses.
        sample_weight : array-like of shape (d,), optional
            Frequencies: weight 2 is the same as giving the row twice.

        Returns
        -------
        SparseVAE
        """
        X, y = validated_pair(self, X, y)
        objective = checked_objective(self, X.shape[1])
        weights = check_weights(sample_weight, X)
        with limited_blas(X.shape[0]):
            solution = self._fit(X, y, weights, objective)
        if not solution.status.ok:
            warnings.warn(solution.advice, ConvergenceWarning, stacklevel=2)
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Predict the outputs, and on request the standard deviation of each row.

        Parameters
        ----------
        X : array-like of shape (d, n_features)
            New rows of the dictionary.
        return_std : bool, default=False
            Whether to return the predictive standard deviation, noise included.

        Returns
        -------
        y : ndarray of shape (d,) or (d, n_outputs)
        std : ndarray of shape (d,)
            Shared by the outputs; only if `return_std`.
        """
        check_is_fitted(self)
        X = validated_rows(self, X, reset=False, accept_sparse=False)
        coef = like(self.coef_, X)
        mean = X @ (coef.mT if coef.ndim == 2 else coef) + like(self.intercept_, X)
        if not return_std:
            return mean
        spread = self._state.posterior.variance(as_double(X) - self._state.center)
        return mean, like(namespace(X).sqrt(spread + self.noise_variance_), X)

    def posterior_covariance(self, indices: Any) -> Any:
        """Return the posterior covariance of some coefficients, which all outputs share.

        Parameters
        ----------
        indices : array-like of int of shape (m,)
            Columns.

        Returns
        -------
        ndarray of shape (m, m)
        """
        check_is_fitted(self)
        wanted = np.asarray(indices)
        inside = wanted.dtype.kind in "iu" and wanted.ndim == 1 and wanted.size
        if not inside or wanted.min() < 0 or wanted.max() >= self.n_features_in_:
            raise ValueError(
                f"indices={indices!r} was given, expected a list of integers in "
                f"[0, {self.n_features_in_ - 1}]."
            )
        return self._state.posterior.covariance(wanted)

    def _certify_on(self, X: Any, y: Any = None, sample_weight: Any = None) -> Certificate:
        return certify_estimator(self, X, y, sample_weight)

    def _fit(self, X: Array, y: Array, weights: Array | None, objective: Energy) -> Solution[State]:
        targets = as_double(y if y.ndim == 2 else y[:, None])
        rows = canonical(as_double(X), targets, weights, bool(self.fit_intercept))
        dictionary, responses = rows.whitened
        problem, units = normalise(
            dictionary, responses, dimension=rows.dimension, groups=objective.groups
        )
        given = Rows(as_double(X), targets, weights, rows.intercept)
        solution = self._solve(problem, units, objective, rows, given)
        self._copy_out(solution, units, objective, rows, X, y)
        return solution

    def _solve(
        self, problem: Problem, units: Units, objective: Energy, rows: Rows, given: Rows
    ) -> Solution[State]:
        rule = noise_rule(self, rows.count, problem.columns)
        if rule == "learn":
            learned = learn_noise(
                problem, objective, method=self.solver, tolerance=self.tol, limit=self.max_iter
            )
            warn_if_collapsed(learned)
            return learned
        if rule == "cv":
            noise = cross_validated_noise(*folds(self, rows, given), objective)
        else:
            noise = FALLBACK * rows.mean_square() if rule == "fallback" else float(rule)
        level = scalar(units.normalised_noise(noise))
        return solve(
            problem.with_noise(level), objective,
            method=self.solver, tolerance=self.tol, limit=self.max_iter,
        )  # fmt: skip

    def _copy_out(
        self, solution: Solution[State], units: Units, objective: Energy, rows: Rows,
        X: Array, y: Array,
    ) -> None:  # fmt: skip
        state = solution.value
        relevance = units.relevance(state.relevance)
        noise = scalar(units.noise(state.noise))
        coefficients = rows.coefficients(relevance, noise).mT
        center, level = rows.offsets
        intercept = level - coefficients @ center
        single = y.ndim == 1
        significant = significant_columns(state, units.n_responses, self.significance, objective)
        plain = isinstance(objective, Autoencoder)
        energy = objective.value(state)
        results = {
            "coef_": like(coefficients[0, :] if single else coefficients, X),
            "intercept_": scalar(intercept[0]) if single else like(intercept, X),
            "relevance_": like(relevance, X),
            "noise_variance_": noise,
            "support_": namespace(X).asarray(np.flatnonzero(significant), device=device(X)),
            "energy_": scalar(units.n_responses * energy if plain else units.energy(energy)),
            "history_": solution.history,
            "n_iter_": max(1, solution.n_iter),
            "status_": solution.status,
        }
        self._state = SparseState(
            results,
            Posterior.of(rows.whitened[0], relevance, noise),
            center,
            summarize(rows, coefficients.mT, solution, objective, self.posterior),
        )


def certify_estimator(
    estimator: Any, X: Any = None, y: Any = None, sample_weight: Any = None
) -> Certificate:
    """Certify a fitted `SparseVAE`, with the claims that need data where these are given.

    Parameters
    ----------
    estimator : SparseVAE
    X, y : array-like, optional
        The data of the fit, or others to be judged on.
    sample_weight : array-like, optional

    Returns
    -------
    Certificate

    Examples
    --------
    >>> from lucidae import SparseVAE
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((20, 40))
    >>> y = X[:, :2] @ rng.standard_normal((2, 5))
    >>> model = SparseVAE(noise_variance=1e-8, fit_intercept=False).fit(X, y)
    >>> certify_estimator(model, X, y)["uniqueness (general position)"].holds
    True
    """
    if X is None or y is None:
        certificate: Certificate = estimator.certificate_
        return certificate
    dictionary, targets, weights = read_data(estimator, X, y, sample_weight)
    rows = canonical(dictionary, targets, weights, bool(estimator.fit_intercept))
    coef = like(estimator.coef_, dictionary)
    estimate = coef.mT if coef.ndim == 2 else coef[:, None]
    whitened, responses = rows.whitened
    objective = checked_objective(estimator, dictionary.shape[1])
    figures = figures_of(whitened, responses, estimate, rows.dimension)
    relevance = like(estimator.relevance_, dictionary)
    complete = judged(figures, rows, relevance, estimator.noise_variance_, objective, estimator.tol)
    title = f"SparseVAE, {estimator.posterior} posterior"
    return replace(complete, title=title, coherence=coherence(whitened)).certificate
