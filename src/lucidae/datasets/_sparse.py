"""Simultaneous sparse approximation: a dictionary, responses, and the code behind them."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from sklearn.utils import check_random_state

from lucidae.datasets._checks import Floats, check_finite
from lucidae.validation import check_choice, check_integer, check_number


class SparseRegressionData(NamedTuple):
    """Responses that few columns of a dictionary explain jointly.

    Attributes
    ----------
    dictionary : ndarray of shape (d, kappa)
        Φ, the design matrix in scikit-learn's words.
    responses : ndarray of shape (d, n)
        X = ΦU₀ plus noise.
    coef : ndarray of shape (n, kappa)
        U₀ᵀ, in the orientation of scikit-learn's ``coef_``.
    noise_variance : float
        γ, 0 without noise.
    support : ndarray of shape (r,)
        Ascending indices of the columns in use.
    """

    dictionary: Floats
    responses: Floats
    coef: Floats
    noise_variance: float
    support: np.ndarray[Any, np.dtype[np.intp]]


def unit_scales(count: int, _spread: float, _rng: np.random.RandomState) -> Floats:
    """Return ones: every row of the code keeps its unit norm. Wipf 2023, Figure 2(a)."""
    return np.ones(count)


def jeffreys_scales(count: int, spread: float, rng: np.random.RandomState) -> Floats:
    """Return norms with a uniform logarithm on [spread, 1/spread]. Wipf 2023, Figure 2(b)."""
    return np.asarray(np.exp(rng.uniform(math.log(spread), -math.log(spread), size=count)))


ROW_SCALINGS = {"unit": unit_scales, "jeffreys": jeffreys_scales}


def unit_columns(matrix: Floats) -> Floats:
    """Return `matrix` with every column scaled to Euclidean norm one."""
    return np.asarray(matrix / np.linalg.norm(matrix, axis=0))


def make_sparse_regression(
    d: int = 100,
    kappa: int = 200,
    r: int = 10,
    n: int = 20,
    tau: int = 3,
    *,
    row_scaling: str = "unit",
    spread: float = 0.01,
    snr_db: float | None = None,
    dictionary: Any = None,
    random_state: Any = None,
) -> SparseRegressionData:
    """Draw a simultaneous sparse approximation problem X = ΦU₀ (+ noise).

    The experiments of Wipf 2023, Appendix A. Φ has Gaussian columns of unit norm. U₀ has `r`
    nonzero rows at random places; they form a sum of `tau` random outer products, so that they
    are correlated across the `n` responses, and each is scaled to unit norm or by Jeffreys'
    prior. The paper leaves n and tau open; 20 and 3 are this project's choice.

    Parameters
    ----------
    d : int, default=100
        Rows of Φ (measurements).
    kappa : int, default=200
        Columns of Φ (candidates).
    r : int, default=10
        Columns in use, from 0 to kappa.
    n : int, default=20
        Responses that share the support.
    tau : int, default=3
        Number of outer products; the rank of U₀ is min(tau, r, n).
    row_scaling : {"unit", "jeffreys"}, default="unit"
        Norms of the nonzero rows: all one, or log-uniform between `spread` and 1/`spread`.
    spread : float in (0, 1], default=0.01
        Range of the Jeffreys scaling.
    snr_db : float, default=None
        Signal-to-noise ratio in decibels, 10 log₁₀(mean square of ΦU₀ / γ); None: no noise.
    dictionary : array-like of shape (d, kappa), default=None
        Use this Φ as it is, such as a lead field; `d` and `kappa` are then read from it.
    random_state : int, RandomState instance or None, default=None
        Seed, as everywhere in scikit-learn.

    Returns
    -------
    SparseRegressionData
        Named tuple (dictionary, responses, coef, noise_variance, support).

    Examples
    --------
    >>> import numpy as np
    >>> from lucidae.datasets import make_sparse_regression
    >>> problem = make_sparse_regression(d=20, kappa=50, r=3, n=4, random_state=0)
    >>> problem.dictionary.shape, problem.responses.shape, problem.coef.shape
    ((20, 50), (20, 4), (4, 50))
    >>> np.allclose(problem.responses, problem.dictionary @ problem.coef.T)
    True
    """
    rng = check_random_state(random_state)
    if dictionary is None:
        size = check_integer(d, "d", low=1), check_integer(kappa, "kappa", low=1)
        atoms = unit_columns(rng.standard_normal(size))
    else:
        atoms = check_finite(dictionary, "dictionary", (None, None)).copy()
    check_integer(r, "r", low=0, high=atoms.shape[1])
    support = np.sort(rng.permutation(atoms.shape[1])[:r])
    coef = np.zeros((check_integer(n, "n", low=1), atoms.shape[1]))
    coef[:, support] = _active_rows(r, n, tau, row_scaling, spread, rng).T
    clean = atoms @ coef.T
    variance = _noise_variance(clean, snr_db)
    responses = clean + math.sqrt(variance) * rng.standard_normal(clean.shape)
    return SparseRegressionData(atoms, responses, coef, variance, support)


def _active_rows(
    r: int, n: int, tau: int, row_scaling: str, spread: float, rng: np.random.RandomState
) -> Floats:
    """Return the nonzero rows of the code, (r, n): Σₜ aₜbₜᵀ with rows rescaled."""
    check_integer(tau, "tau", low=1)
    check_number(spread, "spread", low=0.0, high=1.0, open_low=True)
    check_choice(row_scaling, "row_scaling", ROW_SCALINGS)
    rows = rng.standard_normal((r, tau)) @ rng.standard_normal((tau, n))
    scales = ROW_SCALINGS[row_scaling](r, spread, rng)
    return np.asarray(scales[:, None] * unit_columns(rows.T).T)


def _noise_variance(clean: Floats, snr_db: float | None) -> float:
    if snr_db is None:
        return 0.0
    power = float(np.mean(clean**2))
    if power == 0.0:
        raise ValueError("snr_db needs a signal, and with r = 0 there is none; use snr_db=None.")
    return power * math.pow(10.0, -check_number(snr_db, "snr_db") / 10.0)
