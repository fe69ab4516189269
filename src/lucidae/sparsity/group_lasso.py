"""The group lasso over rows of coefficients, a convex alternative, by existing solvers."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
from sklearn.linear_model import Lasso, MultiTaskLasso

from lucidae.arrays import Array, scalar
from lucidae.sparsity.objectives import Autoencoder
from lucidae.sparsity.penalties import PowerPenalty
from lucidae.sparsity.posterior import posterior_mean
from lucidae.sparsity.problem import normalise, takes_dictionary_and_responses
from lucidae.sparsity.solvers import repeat_update
from lucidae.validation import check_choice, check_integer, check_number, check_rows

__all__ = ["group_lasso", "noise_free_group_lasso"]

LASSO_SOLVERS = ("auto", "sklearn", "skglm")

LARGE = 1_000_000
"""Entries of a dictionary from which on skglm is faster in spite of its compilation."""


@takes_dictionary_and_responses
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

    It minimises ½‖X − ΦU‖² + λ Σⱼ‖uⱼ‖ over coefficients U with rows uⱼ, where λ is the square root
    of the noise variance.

    Parameters
    ----------
    X : array-like of shape (d, κ)
        The dictionary, Φ in the formula.
    y : array-like of shape (d, n)
        The responses, X in the formula.
    noise_variance : float
        The noise variance, whose square root is the penalty λ.
    solver : {"auto", "sklearn", "skglm"}, default="auto"
        Which package solves it. "auto" uses skglm, where it is installed, for large dictionaries
        and several responses, and scikit-learn elsewhere.
    tol : float
        Duality gap relative to the squared norm of the responses; skglm, which measures the
        subgradient conditions, is asked for its square root relative to the penalty.
    max_iter : int
        Largest number of passes.

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
    installed = find_spec("skglm") is not None
    if solver == "skglm" and not (installed and several):
        raise ValueError(
            "solver='skglm' needs the package skglm (pip install skglm) and more than one "
            "response. Use solver='sklearn'."
        )
    return solver == "skglm" or (solver == "auto" and installed and several and entries >= LARGE)


@takes_dictionary_and_responses
def noise_free_group_lasso(
    X: Array,
    y: Array,
    *,
    noise_variance: float = 1e-10,
    tol: float = 1e-6,
    max_iter: int = 2000,
) -> Array:
    """Return the group lasso estimate of noise-free responses.

    It minimises Σⱼ‖φⱼ‖‖uⱼ‖ subject to X = ΦU, for columns φⱼ of the dictionary Φ and rows uⱼ of the
    coefficients U, by repeated ridge regression with a tiny noise variance. With unit columns, as
    in Wipf 2023, this is the group lasso of the noise-free experiments.

    Parameters
    ----------
    X : array of shape (d, κ)
        The dictionary, Φ in the formula.
    y : array of shape (d, n)
        The responses, X in the formula.
    noise_variance : float
        The tiny noise variance of the ridge regressions, in squared units of the responses.
    tol : float
        Distance to the fixed point of the reweighting at which to stop.
    max_iter : int
        Largest number of updates.

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
