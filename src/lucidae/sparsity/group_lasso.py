"""The group lasso on rows of coefficients: a convex alternative to `SparseVAE`."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
from sklearn.linear_model import Lasso, MultiTaskLasso

from lucidae.arrays import Array, scalar
from lucidae.sparsity.objectives import Autoencoder, PowerPenalty
from lucidae.sparsity.posterior import posterior_mean
from lucidae.sparsity.problem import normalise
from lucidae.sparsity.solve import repeat_update
from lucidae.validation import check_choice, check_integer, check_number, check_rows

__all__ = ["group_lasso", "noise_free_group_lasso"]

LASSO_SOLVERS = ("auto", "sklearn", "skglm")

LARGE = 1_000_000
"""Number of entries above which skglm, with its compilation, is faster than scikit-learn."""


def group_lasso(
    X: Any,
    y: Any,
    *,
    noise_variance: float,
    solver: str = "auto",
    tol: float = 1e-8,
    max_iter: int = 10_000,
) -> Array:
    """Return the group lasso estimate with the penalty of Wipf 2023, Figure 2(d).

    For the dictionary Φ and the responses X it minimises ½‖X − ΦU‖² + λ Σⱼ‖uⱼ‖ with respect to the
    coefficients U with rows uⱼ, where λ is the square root of the noise variance.

    Parameters
    ----------
    X : array-like of shape (d, κ)
        The dictionary, Φ in the formula, with d rows and κ columns.
    y : array-like of shape (d, n)
        The n responses, X in the formula.
    noise_variance : float
        The noise variance, whose square root is the penalty λ.
    solver : {"auto", "sklearn", "skglm"}, default="auto"
        Which package solves the problem. "auto" uses skglm if it is installed, the dictionary is
        large and there are several responses. Otherwise it uses scikit-learn.
    tol : float
        Duality gap at which to stop, relative to the squared norm of the responses. skglm measures
        the violation of the subgradient conditions instead and stops at √tol times the penalty.
    max_iter : int
        Largest number of passes through all columns.

    Returns
    -------
    ndarray of shape (κ, n)
        The estimate U.

    Examples
    --------
    >>> import numpy as np
    >>> group_lasso(np.eye(2), np.array([[3.0], [0.5]]), noise_variance=1.0).round(6)
    array([[2.],
           [0.]])
    """
    X = np.asarray(check_rows(X, accept_sparse=False), dtype=float)
    y = np.asarray(check_rows(y, accept_sparse=False, name="y"), dtype=float)
    check_number(tol, "tol", low=0.0)
    check_integer(max_iter, "max_iter", low=1)
    strength = check_number(noise_variance, "noise_variance", low=0.0, open_low=True) ** 0.5
    alpha = strength / X.shape[0]  # their data term is ‖·‖²/(2d)
    several = y.shape[1] > 1
    if _takes_skglm(check_choice(solver, "solver", LASSO_SOLVERS), several, X.size):
        from skglm import MultiTaskLasso as FastLasso

        model = FastLasso(alpha, tol=alpha * tol**0.5, max_iter=max_iter, fit_intercept=False)
    else:
        chosen = MultiTaskLasso if several else Lasso
        model = chosen(alpha=alpha, tol=tol, max_iter=max_iter, fit_intercept=False)
    model.fit(X, y if several else y[:, 0])
    return np.asarray(model.coef_).reshape(y.shape[1], X.shape[1]).T


def _takes_skglm(solver: str, several: bool, entries: int) -> bool:
    """Return whether skglm solves the problem; raise an error if it was asked for and cannot."""
    installed = find_spec("skglm") is not None
    if solver == "skglm" and not (installed and several):
        raise ValueError(
            "solver='skglm' needs the package skglm (pip install skglm) and more than one "
            "response. Use solver='sklearn'."
        )
    return solver == "skglm" or (solver == "auto" and installed and several and entries >= LARGE)


def noise_free_group_lasso(
    X: Array,
    y: Array,
    *,
    noise_variance: float = 1e-10,
    tol: float = 1e-6,
    max_iter: int = 2000,
) -> Array:
    """Return the group lasso estimate that reproduces noise-free responses exactly.

    For the dictionary Φ with columns φⱼ and the responses X, it minimises Σⱼ‖φⱼ‖‖uⱼ‖ subject to
    X = ΦU, where uⱼ are the rows of the coefficients U. The algorithm is repeated ridge regression
    with a tiny noise variance. With columns of unit norm, as in Wipf 2023, this is the group lasso
    of the noise-free experiments there.

    Parameters
    ----------
    X : array of shape (d, κ)
        The dictionary, Φ in the formula, with d rows and κ columns.
    y : array of shape (d, n)
        The n responses, X in the formula.
    noise_variance : float
        The tiny noise variance of the ridge regressions, in squared units of the responses.
    tol : float
        Relative distance of the ridge weights to their fixed point at which to stop.
    max_iter : int
        Largest number of ridge regressions.

    Returns
    -------
    array of shape (κ, n)
        The estimate U.

    Examples
    --------
    >>> import numpy as np
    >>> noise_free_group_lasso(np.eye(2), np.array([[3.0], [0.0]])).round(4)
    array([[3.],
           [0.]])
    """
    check_number(tol, "tol", low=0.0)
    check_integer(max_iter, "max_iter", low=1)
    check_number(noise_variance, "noise_variance", low=0.0, open_low=True)
    problem, units = normalise(X, y)
    problem = problem.with_noise(scalar(units.normalised_noise(noise_variance)))
    objective = Autoencoder(PowerPenalty(0.5))  # 1/h′ = √a
    solution = repeat_update(problem, objective, tolerance=tol, limit=max_iter)
    relevance = units.relevance(solution.value.relevance)
    return posterior_mean(X, y, relevance, scalar(units.noise(problem.noise)))
