"""The energy of sparse Bayesian learning and the quality of a support, in plain NumPy.

The formulas do not use the code of any solver of the benchmark.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.linalg import cho_factor, cho_solve

Floats = np.ndarray[Any, Any]


def energy(
    dictionary: Floats, responses: Floats, relevance: Floats, noise_variance: float
) -> float:
    """Return tr(XXᵀΣ⁻¹)/n + log|Σ| for Σ = Φ diag(w) Φᵀ + γI (Wipf 2023, eq. 18, per response).

    Parameters
    ----------
    dictionary : array of shape (d, kappa)
        The dictionary Φ.
    responses : array of shape (d, n)
        The responses X.
    relevance : array of shape (kappa,)
        The relevances w ≥ 0: prior variances of the coefficients of each column.
    noise_variance : float
        The noise variance γ.

    Returns
    -------
    float
        The energy; infinite if a relevance is negative or not finite.
    """
    if not np.all(np.isfinite(relevance)) or np.any(relevance < 0):
        return float("inf")
    sigma = (dictionary * relevance) @ dictionary.T
    sigma.flat[:: len(sigma) + 1] += noise_variance
    factor = cho_factor(sigma, lower=True)
    fit = np.sum(responses * cho_solve(factor, responses)) / responses.shape[1]
    return float(fit + 2.0 * np.sum(np.log(np.diag(factor[0]))))


def selected(dictionary: Floats, relevance: Floats, noise_variance: float) -> Floats:
    """Return the columns φ whose signal-to-noise ratio w‖φ‖²/γ exceeds one."""
    power = relevance * np.sum(dictionary**2, axis=0)
    return np.flatnonzero(power > noise_variance)


def support_f1(found: Floats, true: Floats) -> float:
    """Return the harmonic mean of precision and recall of a set of columns; 1 if both are empty."""
    total = len(found) + len(true)
    return 2.0 * len(np.intersect1d(found, true)) / total if total else 1.0
