"""Certificates for fitted estimators and for coefficients from any source."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from lucidae._arrays import Array, as_double, is_array, like, namespace, scalar
from lucidae._validation import check_number, check_rows
from lucidae.certificate import Certificate
from lucidae.sparsity.objectives import FullCovariance, Objective
from lucidae.sparsity.preparation import checked_objective, read_data
from lucidae.sparsity.problem import normalise
from lucidae.sparsity.rows import Rows, canonical
from lucidae.sparsity.state import evaluate
from lucidae.sparsity.summary import Summary, figures_of, unjustified_collapse
from lucidae.sparsity.theory import coherence, implied_relevance

__all__ = ["certify_coefficients", "certify_estimator"]


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
    judged = _judged(figures, rows, relevance, estimator.noise_variance_, objective, estimator.tol)
    title = f"SparseVAE, {estimator.posterior} posterior"
    return replace(judged, title=title, coherence=coherence(whitened)).certificate


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
    return _judged(figures, rows, relevance, noise, FullCovariance(), tol).certificate


def _matrix(values: Any, name: str, *, columns: bool) -> Array:
    """Return a vector as one column (or one row) and a matrix as it is, in doubles."""
    given = values if is_array(values) else np.asarray(values)
    if given.ndim == 1:
        given = given[:, None] if columns else given[None, :]
    return as_double(check_rows(given, accept_sparse=False, name=name))


def _judged(
    figures: Summary, rows: Rows, relevance: Array, noise: float, objective: Objective,
    tolerance: float,
) -> Summary:  # fmt: skip
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
