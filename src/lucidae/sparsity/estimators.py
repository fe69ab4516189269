"""The estimator: validate, build the objective, solve, copy out."""

from __future__ import annotations

import warnings
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from lucidae._arrays import Array, as_double, device, like, namespace, scalar
from lucidae._estimators import CertifiedMixin, Kept, validated_rows
from lucidae._validation import check_weights
from lucidae.certificate import Certificate
from lucidae.iterate import limited_blas
from lucidae.solution import Solution
from lucidae.sparsity.noise import FALLBACK, cross_validated_noise, learn_noise
from lucidae.sparsity.objectives import Autoencoder, Objective
from lucidae.sparsity.posterior import Posterior
from lucidae.sparsity.preparation import (
    checked_objective,
    folds,
    noise_rule,
    validated_pair,
    warn_if_collapsed,
)
from lucidae.sparsity.problem import Problem, Units, normalise
from lucidae.sparsity.rows import Rows, canonical
from lucidae.sparsity.selection import significant_columns
from lucidae.sparsity.solvers import solve
from lucidae.sparsity.state import State
from lucidae.sparsity.summary import Summary, summarize

__all__ = ["SparseVAE"]


class Fitted(Kept):
    """What a fit keeps: the posterior, the centre of the rows, and the figures it certifies."""

    def __init__(self, posterior: Posterior, center: Array, summary: Summary) -> None:
        self.posterior = posterior
        self.center = center
        self.summary = summary


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
        spread = self._kept.posterior.variance(as_double(X) - self._kept.center)
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
        return self._kept.posterior.covariance(wanted)

    def _draw_certificate(self) -> Certificate:
        kept: Fitted = self._kept
        return kept.summary.certificate

    def _fit(
        self, X: Array, y: Array, weights: Array | None, objective: Objective
    ) -> Solution[State]:
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
        self, problem: Problem, units: Units, objective: Objective, rows: Rows, given: Rows
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
        self, solution: Solution[State], units: Units, objective: Objective, rows: Rows,
        X: Array, y: Array,
    ) -> None:  # fmt: skip
        state = solution.value
        relevance = units.relevance(state.relevance)
        noise = scalar(units.noise(state.noise))
        coefficients = rows.coefficients(relevance, noise).mT
        center, level = rows.offsets
        intercept = level - coefficients @ center
        single = y.ndim == 1
        self.coef_ = like(coefficients[0, :] if single else coefficients, X)
        self.intercept_ = scalar(intercept[0]) if single else like(intercept, X)
        self.relevance_ = like(relevance, X)
        self.noise_variance_ = noise
        significant = significant_columns(state, units.n_responses, self.significance, objective)
        self.support_ = namespace(X).asarray(np.flatnonzero(significant), device=device(X))
        plain = isinstance(objective, Autoencoder)
        energy = objective.value(state)
        self.energy_ = scalar(units.n_responses * energy if plain else units.energy(energy))
        self.history_ = solution.history
        self.n_iter_ = max(1, solution.n_iter)
        self.status_ = solution.status
        self._kept = Fitted(
            Posterior.of(rows.whitened[0], relevance, noise),
            center,
            summarize(rows, coefficients.mT, solution, objective, self.posterior),
        )
