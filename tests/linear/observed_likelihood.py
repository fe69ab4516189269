"""The likelihood of rows with missing entries by its definition, and its maximum by brute force."""

import numpy as np
from scipy.optimize import minimize


def make_incomplete(n=60, m=6, k=2, missing=0.3, noise=0.6, seed=0):
    """Return rows of a k-factor model with entries removed at random, and the complete rows.

    Each row and each feature has an observed entry.
    """
    rng = np.random.default_rng(seed)
    loadings = rng.standard_normal((m, k)) * np.linspace(2.0, 1.0, k)
    complete = rng.standard_normal((n, k)) @ loadings.T + noise * rng.standard_normal((n, m))
    complete += 2.0 * rng.standard_normal(m)
    hidden = rng.random((n, m)) < missing
    hidden[np.arange(n), rng.integers(m, size=n)] = False
    hidden[rng.integers(n, size=m), np.arange(m)] = False
    return np.where(hidden, np.nan, complete), complete


def loss_and_gradient(theta, X, k, weights=None):
    """Return the negative log-likelihood of N(μ, WWᵀ + γI), row by row, and its gradient.

    θ contains W (m × k), μ and log γ.
    """
    n, m = X.shape
    weights = np.ones(n) if weights is None else weights
    W, mean, noise = theta[: m * k].reshape(m, k), theta[m * k : -1], np.exp(theta[-1])
    C = W @ W.T + noise * np.eye(m)
    loss, on_mean, on_covariance = 0.0, np.zeros(m), np.zeros((m, m))
    for row, weight in zip(X, weights, strict=True):
        o = np.flatnonzero(~np.isnan(row))
        own, rest = C[np.ix_(o, o)], row[o] - mean[o]
        inverse = np.linalg.inv(own)
        solved = inverse @ rest
        log_det = np.linalg.slogdet(own)[1]
        loss += weight * (rest @ solved + log_det + len(o) * np.log(2 * np.pi)) / 2
        on_mean[o] -= weight * solved
        on_covariance[np.ix_(o, o)] += weight * (inverse - np.outer(solved, solved)) / 2
    on_noise = noise * np.trace(on_covariance)
    return loss, np.concatenate([(2 * on_covariance @ W).ravel(), on_mean, [on_noise]])


def parameters(mean, loadings, noise):
    return np.concatenate([np.ravel(loadings), mean, [np.log(noise)]])


def smallest_loss(X, k, seed=0, starts=8):
    """Return the smallest negative log-likelihood that L-BFGS finds from random starts."""
    m, rng, best = X.shape[1], np.random.default_rng(seed), np.inf
    for _ in range(starts):
        spread = np.nanstd(X)
        start = parameters(
            np.nanmean(X, axis=0) + 0.3 * spread * rng.standard_normal(m),
            spread * rng.standard_normal((m, k)),
            spread**2 * rng.uniform(0.05, 1.0),
        )
        bounds = [(None, None)] * (len(start) - 1) + [(np.log(1e-8 * spread**2), None)]
        found = minimize(
            loss_and_gradient,
            start,
            (X, k),
            jac=True,
            method="L-BFGS-B",
            bounds=bounds,
            options={"maxiter": 3000, "maxfun": 3000, "ftol": 1e-14, "gtol": 1e-7},
        )
        best = min(best, float(found.fun))
    return best
