"""The estimator `SparseVAE`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
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
from lucidae.base import (
    CertifiedMixin,
    Fitted,
    FittedState,
    restored_on_failure,
    upgraded_estimator,
    validated_rows,
)
from lucidae.certificate import Certificate
from lucidae.io.models import reads, saved_as
from lucidae.iteration import Callback, ProgressBar, Solution, limited_blas
from lucidae.sparsity.certificate import certificate_of
from lucidae.sparsity.evaluation import Sample
from lucidae.sparsity.figures import SparseFigures
from lucidae.sparsity.groups import Groups
from lucidae.sparsity.noise import (
    FALLBACK,
    cross_validated_noise,
    folds,
    learn_noise,
    noise_rule,
    warn_if_collapsed,
)
from lucidae.sparsity.objectives import Energy, make_objective
from lucidae.sparsity.penalties import as_penalty
from lucidae.sparsity.posterior import ActiveFactor, Posterior
from lucidae.sparsity.problem import Problem, Rows, Units, canonical
from lucidae.sparsity.solvers import check_suited, solve
from lucidae.sparsity.state import State, evaluate
from lucidae.sparsity.support import significant_columns
from lucidae.sparsity.verifier import EnergyKind, Fit, measure
from lucidae.validation import check_integer, check_number, check_rows, check_weights, warn_user

__all__ = ["SparseVAE"]

LARGEST = 1e75
"""Magnitudes above this, or columns whose entries all lie below its inverse, are refused."""

VERIFIED = ("full", "diagonal", "point")
"""Posteriors whose conditions the verifier knows; others measure their own violation."""

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
    figures : SparseFigures
        The figures that the certificate judges.
    """

    results: dict[str, Any]
    posterior: Posterior
    center: Array
    figures: SparseFigures

    def compute_attributes(self) -> dict[str, Any]:
        """Return the fitted attributes by name."""
        return self.results

    def compute_certificate(self, title: str) -> Certificate:
        """Return the claims that the figures support."""
        return certificate_of(self.figures, f"{title}, {self.figures.title}")


@reads("lucidae.sparsity.estimators:Fitted")
def _former_state(fields: dict[str, Any]) -> SparseState:
    """Return the state that lucidae 0.1.0 saved, still without its attributes."""
    title = fields["summary"].title.removeprefix("SparseVAE, ")
    figures = replace(fields["summary"], title=title)
    return SparseState({}, fields["posterior"], fields["center"], figures)


def _upgraded(fields: dict[str, Any]) -> dict[str, Any]:
    """Move the fitted attributes of an estimator of lucidae 0.1.0 into its state."""
    fields = {"warm_start": False, "verbose": False} | upgraded_estimator(fields)
    fields["_state"].results |= {name: fields.pop(name) for name in ATTRIBUTES}
    return fields


@saved_as(
    "lucidae.SparseVAE/1", formerly="lucidae.sparsity.estimators:SparseVAE", upgrade=_upgraded
)
class SparseVAE(CertifiedMixin, MultiOutputMixin, RegressorMixin, BaseEstimator):
    """Multi-output sparse regression by a variational autoencoder with a fixed dictionary.

    Finds the few columns of `X` that together explain all outputs `y`. With the full posterior
    this minimises the energy that marginalisation smooths: bad local minima of the deterministic
    autoencoder are not local minima of this energy (Wipf 2023, Theorem 4.1).

    Parameters
    ----------
    posterior : {"full", "diagonal", "point"}, default="full"
        Covariance of the encoder; "point" is the deterministic autoencoder. Also a name given to
        `lucidae.sparsity.register_posterior`.
    noise_variance : float, "auto", "learn" or "cv", default="auto"
        γ, or how to find it: by evidence, or as the error of predicting held-out rows. "auto"
        learns it where there are at most half as many columns as rows and uses held-out rows
        elsewhere; for a single row it is a tenth of the mean square.
    solver : {"auto", "mm", "em", "mackay", "coordinate"}, default="auto"
        How the full energy is minimised. The other posteriors have one update each ("mm").
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
        Distance to the KKT conditions at which to stop. It is dimensionless: for the full and the
        diagonal posterior the largest violation of complementarity, max of w|Q − z| and
        (Q − z)/z over the columns; for the point estimate the relative distance to the fixed point
        of its update.
    random_state : int, RandomState or None, default=None
        Shuffles the distinct rows among the folds of ``noise_variance="cv"`` with an integer `cv`
        or None; nothing else is random. None uses the seed 0, so that two fits agree; an integer
        is the seed of another division. Splitters given as `cv` have their own.
    warm_start : bool, default=False
        Whether a further `fit` starts from the relevances of the last one. The noise variance is
        found as usual. Where the number of columns or the groups have changed, the fit warns and
        starts from the default relevances.
    verbose : bool, default=False
        Whether to show the progress of updates, sweeps and of the path of noise variances.

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
        warm_start: bool = False,
        verbose: bool = False,
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
        self.warm_start = warm_start
        self.verbose = verbose

    @restored_on_failure
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
        X, y = _validated_pair(self, X, y)
        objective = self._checked_objective(X.shape[1])
        weights = check_weights(sample_weight, X)
        with limited_blas(X.shape[0]):
            solution = self._fit(X, y, weights, objective)
        if not solution.status.ok:
            warn_user(solution.advice, ConvergenceWarning)
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

    def _checked_objective(self, n_columns: int) -> Energy:
        """Check the settings that do not need data and return the energy."""
        check_number(self.significance, "significance", low=0.0, high=1.0, open_low=True)
        check_number(self.tol, "tol", low=0.0)
        check_integer(self.max_iter, "max_iter", low=1)
        groups = None if self.groups is None else Groups.of(self.groups, n_columns)
        objective = make_objective(self.posterior, as_penalty(self.penalty), groups)
        check_suited(self.solver, objective)
        return objective

    def _fit(self, X: Array, y: Array, weights: Array | None, objective: Energy) -> Solution[State]:
        targets = as_double(y if y.ndim == 2 else y[:, None])
        rows = canonical(as_double(X), targets, weights, bool(self.fit_intercept))
        problem, units = rows.normalised(objective.groups)
        given = Rows(as_double(X), targets, weights, rows.intercept)
        solution = self._solve(problem, units, objective, rows, given)
        results, posterior = self._copied_out(solution, units, objective, rows, X, y)
        figures = self._verified(results, given, rows, objective)
        self._state = SparseState(results, posterior, rows.offsets[0], figures)
        return solution

    def _solve(
        self, problem: Problem, units: Units, objective: Energy, rows: Rows, given: Rows
    ) -> Solution[State]:
        rule = noise_rule(self.noise_variance, objective, rows.count, problem.columns)
        settings: dict[str, Any] = {
            "method": self.solver,
            "tolerance": self.tol,
            "limit": self.max_iter,
            "start": self._last_relevance(problem, units, objective.groups),
            "callbacks": self._callbacks("minimising the energy"),
        }
        if rule == "learn":
            learned = learn_noise(problem, objective, **settings)
            warn_if_collapsed(learned)
            return learned
        if rule == "cv":
            split = folds(self.cv, self.random_state, rows, given)
            noise = cross_validated_noise(
                *split, objective, self._callbacks("path of noise variances")
            )
        else:
            noise = FALLBACK * rows.mean_square() if rule == "fallback" else float(rule)
        level = scalar(units.normalised_noise(noise))
        return solve(problem.with_noise(level), objective, **settings)

    def _callbacks(self, description: str) -> Sequence[Callback]:
        return [ProgressBar(f"SparseVAE, {description}")] if self.verbose else []

    def _last_relevance(
        self, problem: Problem, units: Units, groups: Groups | None
    ) -> Array | None:
        """Return the relevances of the last fit in the units of this one, where they apply."""
        if not self.warm_start or not self.__sklearn_is_fitted__():
            return None
        relevance = to_numpy(self.relevance_)
        if relevance.size != problem.columns:
            reason = f"the last fit had {relevance.size} columns, this one {problem.columns}"
        elif groups is not None and not _constant_in(groups, relevance):
            reason = "the relevances of the last fit differ within the groups of this one"
        else:
            xp = namespace(problem.dictionary)
            nonzero = xp.any(problem.dictionary != 0, axis=0)
            start = units.normalised_relevance(like(relevance, problem.dictionary))
            return xp.where(nonzero, start, 0.0 * start)
        warn_user(
            f"warm_start=True was given, but {reason}: the fit starts from the default relevances."
        )
        return None

    def _copied_out(
        self, solution: Solution[State], units: Units, objective: Energy, rows: Rows,
        X: Array, y: Array,
    ) -> tuple[dict[str, Any], Posterior]:  # fmt: skip
        """Return the fitted attributes, in the library and precision of X, and the posterior."""
        state = solution.value
        relevance = units.relevance(state.relevance)
        noise = scalar(units.noise(state.noise))
        dictionary, responses = rows.weighted
        factor = ActiveFactor.of(dictionary, relevance, noise)
        estimate = factor.mean(responses)
        center, level = rows.offsets
        intercept = level - estimate.mT @ center
        single = y.ndim == 1
        significant = significant_columns(state, units.n_responses, self.significance, objective)
        results = {
            "coef_": like(estimate[:, 0] if single else estimate.mT, X),
            "intercept_": scalar(intercept[0]) if single else like(intercept, X),
            "relevance_": like(relevance, X),
            "noise_variance_": noise,
            "support_": namespace(X).asarray(np.flatnonzero(significant), device=device(X)),
            "energy_": scalar(objective.in_units(objective.value(state), units)),
            "history_": solution.history,
            "n_iter_": max(1, solution.n_iter),
            "status_": solution.status,
        }
        return results, factor.posterior(noise)

    def _verified(
        self, fitted: Mapping[str, Any], given: Rows, rows: Rows, objective: Energy
    ) -> SparseFigures:
        """Measure fitted attributes on the rows as given; `rows` are those without repetition."""
        coef, relevance, noise = fitted["coef_"], fitted["relevance_"], fitted["noise_variance_"]
        rule = noise_rule(self.noise_variance, objective, rows.count, int(relevance.shape[0]))
        known = self.posterior in VERIFIED
        fit = Fit(
            coef.mT if coef.ndim == 2 else coef[:, None],
            relevance,
            float(noise),
            fitted["intercept_"],
            fitted["energy_"],
            rule if isinstance(rule, str) else "given",
            None if isinstance(rule, str) else rule,
        )
        model = EnergyKind(
            self.posterior,
            as_penalty(self.penalty),
            None if objective.groups is None else objective.groups.labels,
            self.tol,
            None if known else _violation(rows, relevance, float(noise), objective),
        )
        sample = Sample(given.dictionary, given.responses, given.frequencies, given.intercept)
        return measure(sample, fit, model, title=f"{self.posterior} posterior")

    def _certify_on(self, X: Any, y: Any = None, sample_weight: Any = None) -> Certificate:
        """Certify the fit on data: those of the fit, or others."""
        if y is None:
            return self.certificate_
        dictionary, targets, weights = _validated_data(self, X, y, sample_weight)
        given = Rows(dictionary, targets, weights, bool(self.fit_intercept))
        rows = canonical(dictionary, targets, weights, given.intercept)
        objective = self._checked_objective(dictionary.shape[1])
        fitted = {name: getattr(self, name) for name in ATTRIBUTES}
        with limited_blas(dictionary.shape[0]):
            figures = self._verified(fitted, given, rows, objective)
        return certificate_of(figures, f"{type(self).__name__}, {figures.title}")


def _violation(rows: Rows, relevance: Array, noise: float, objective: Energy) -> float:
    """Return the distance to stationarity that an energy from outside the package measures."""
    problem, units = rows.normalised(objective.groups)
    level = scalar(units.normalised_noise(noise))
    weights = units.normalised_relevance(like(relevance, problem.dictionary))
    return scalar(objective.violation(evaluate(problem.with_noise(level), weights)))


def _constant_in(groups: Groups, relevance: Any) -> bool:
    """Tell whether the columns of each group have the same relevance."""
    shared = groups.expand(groups.gather(relevance)[:, 0])
    return bool(np.allclose(shared, relevance, rtol=1e-6, atol=0.0))


def _validated_pair(estimator: Any, X: Any, y: Any) -> tuple[Array, Array]:
    """Validate the data of a fit; arrays of other libraries stay where they are."""
    if is_array(X) and not is_numpy(X):
        X = validated_rows(estimator, X, reset=True, accept_sparse=False)
        flat = y.ndim == 1
        targets = check_rows(y[:, None] if flat else y, name="y")
        _check_row_count(X, targets)
        y = targets[:, 0] if flat else targets
    else:
        X, y = validate_data(
            estimator, X, y, dtype=(np.float64, np.float32), multi_output=True, y_numeric=True
        )
        y = np.asarray(y, dtype=np.float64)
    _refuse_extremes(X, "X")
    _refuse_extremes(y if y.ndim == 2 else y[:, None], "y")
    return X, y


def _validated_data(
    estimator: Any, X: Any, y: Any, sample_weight: Any
) -> tuple[Array, Array, Array | None]:
    """Return the dictionary, the responses as columns and the weights, in doubles."""
    X = as_double(validated_rows(estimator, X, reset=False, accept_sparse=False))
    given = y if is_array(y) else np.asarray(y, dtype=np.float64)
    targets = as_double(check_rows(given[:, None] if given.ndim == 1 else given, name="y"))
    _check_row_count(X, targets)
    outputs = estimator.coef_.shape[0] if estimator.coef_.ndim == 2 else 1
    if targets.shape[1] != outputs:
        raise ValueError(
            f"y has {targets.shape[1]} outputs, the estimator was fitted to {outputs}."
        )
    return X, targets, check_weights(sample_weight, X)


def _check_row_count(X: Array, y: Array) -> None:
    if y.shape[0] != X.shape[0]:
        raise ValueError(
            f"X has {X.shape[0]} rows and y has {y.shape[0]}: give as many rows of each."
        )


def _refuse_extremes(values: Array, name: str) -> None:
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
