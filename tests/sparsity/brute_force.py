"""What is true about a sparse fit, by the plainest dense formulas, for tests of certificates.

Nothing of `lucidae` is used here. Σ is formed and inverted in extended precision where the
platform has it, or in 60 decimal digits on request.
"""

from contextlib import contextmanager
from itertools import combinations

import mpmath
import numpy as np
import scipy.stats

DIGITS = []
"""Holds the number of decimal digits inside of `in_digits`."""


@contextmanager
def in_digits(digits=60):
    """Evaluate `parts`, and what is computed from it, in so many decimal digits."""
    DIGITS.append(digits)
    try:
        yield
    finally:
        DIGITS.pop()


def centred(X, y, weights=None, intercept=True):
    """Return the rows as repeated by their weights, less their means."""
    X, y = np.asarray(X, float), np.asarray(y, float)
    y = y[:, None] if y.ndim == 1 else y
    if weights is not None:
        index = np.repeat(np.arange(len(X)), np.asarray(weights, int))
        X, y = X[index], y[index]
    if intercept:
        X, y = X - X.mean(axis=0), y - y.mean(axis=0)
    return X, y


def inverse(A):
    """Invert a positive definite matrix in extended precision, by Newton's iteration."""
    guess = np.linalg.inv(A.astype(float)).astype(np.longdouble)
    for _ in range(5):
        guess = guess @ (2 * np.eye(len(A), dtype=np.longdouble) - A @ guess)
    return guess


def parts(X, y, w, noise):
    """Return z, Q, the posterior mean, log|Σ| and tr(yyᵀΣ⁻¹)."""
    if DIGITS:
        return decimal_parts(X, y, w, noise)
    if not np.linalg.cond((X * w) @ X.T + noise * np.eye(len(X))) < 1e14:
        with in_digits():
            return decimal_parts(X, y, w, noise)
    wide = X.astype(np.longdouble)
    sigma = (wide * w) @ wide.T + np.longdouble(noise) * np.eye(len(X))
    precise = inverse(sigma)
    inner = wide.T @ precise
    z = (inner * wide.T).sum(axis=1)
    loading = inner @ y
    mean = w[:, None] * loading
    return (
        z.astype(float),
        ((loading**2).sum(axis=1) / y.shape[1]).astype(float),
        mean.astype(float),
        float(np.linalg.slogdet(sigma.astype(float))[1]),
        float((y * (precise @ y)).sum()),
    )


def decimal_parts(X, y, w, noise):
    """Return the same, in decimal digits."""
    with mpmath.workdps(DIGITS[-1]):
        wide, targets = mpmath.matrix(X.tolist()), mpmath.matrix(y.tolist())
        relevance = [mpmath.mpf(float(value)) for value in w]
        sigma = wide * mpmath.diag(relevance) * wide.T + mpmath.mpf(noise) * mpmath.eye(len(X))
        inverted = mpmath.inverse(sigma)
        inner = wide.T * inverted
        loading, metric = inner * targets, inner * wide
        columns, n = range(X.shape[1]), y.shape[1]
        z = np.array([float(metric[j, j]) for j in columns])
        Q = np.array([float(sum(v**2 for v in loading[j, :]) / n) for j in columns])
        mean = np.array([[float(relevance[j] * v) for v in loading[j, :]] for j in columns])
        fit = targets.T * inverted * targets
        trace = float(sum(fit[k, k] for k in range(n)))
        return z, Q, mean, float(mpmath.log(mpmath.det(sigma))), trace


def pressure(X, w, noise, z, posterior):
    squares = (X**2).sum(axis=0)
    return z if posterior == "full" else squares / (noise + w * squares)


def violation(X, y, w, noise, posterior="full", groups=None):
    """Largest violation of complementarity."""
    z, Q, *_ = parts(X, y, w, noise)
    p = pressure(X, w, noise, z, posterior)
    if groups is not None:
        groups = np.asarray(groups)
        p, Q = (np.array([v[groups == g].sum() for g in groups]) for v in (p, Q))
    slope = Q - p
    ratio = slope[p > 0] / p[p > 0]
    return max(float((w * np.abs(slope)).max()), float(ratio.max(initial=0.0)))


def energy(X, y, w, noise, spare=0.0, posterior="full"):
    """Energy of the rows; `spare` counts dimensions of pure noise (minus one for an intercept)."""
    *_, log_determinant, fit = parts(X, y, w, noise)
    if posterior == "diagonal":
        squares = (X**2).sum(axis=0)
        log_determinant = np.log1p(w * squares / noise).sum() + len(X) * np.log(noise)
    return fit + y.shape[1] * (log_determinant + spare * np.log(noise))


def noise_slope(X, y, w, noise, spare=0.0, posterior="full"):
    """Derivative of the energy in log γ, relative to n d."""
    step = 1e-5
    sides = [energy(X, y, w, noise * np.exp(s * step), spare, posterior) for s in (1, -1)]
    return (sides[0] - sides[1]) / (2 * step) / (y.shape[1] * (len(X) + spare))


def variances(X, w, noise, new):
    """Posterior variances of the means that are predicted for new rows, already centred."""
    if DIGITS:
        return decimal_variances(X, w, noise, new)
    dense = np.diag(w) - (X * w).T @ np.linalg.solve((X * w) @ X.T + noise * np.eye(len(X)), X * w)
    return np.maximum(np.einsum("ij,jk,ik->i", new, dense, new), 0.0)


def decimal_variances(X, w, noise, new):
    """Return the same, in decimal digits."""
    with mpmath.workdps(DIGITS[-1]):
        wide, rows = mpmath.matrix(X.tolist()), mpmath.matrix(new.tolist())
        prior = mpmath.diag([mpmath.mpf(float(value)) for value in w])
        sigma = wide * prior * wide.T + mpmath.mpf(noise) * mpmath.eye(len(X))
        cross = rows * prior * wide.T
        dense = rows * prior * rows.T - cross * mpmath.inverse(sigma) * cross.T
        return np.array([float(dense[i, i]) for i in range(len(new))])


def significant(X, y, w, noise, groups=None, level=0.05):
    """Columns (or all columns of groups) without which the likelihood falls significantly."""
    labels = np.arange(len(w)) if groups is None else np.asarray(groups)
    quantile = scipy.stats.chi2.isf(level / np.unique(labels).size, 1)
    found = []
    norms = (np.abs(X) ** 2).sum(axis=0)
    strong = w * parts(X, y, w, noise)[0] > 0.01
    for label in np.unique(labels[w > 0]):
        without = np.where(labels == label, 0.0, w)
        if groups is None:  # twice the log-likelihood that the best relevance of the column gains
            # proportional columns are left out together, and the first in use stands for them
            cosines = np.abs(X[:, label].conj() @ X) ** 2
            tied = (norms > 0) & (cosines >= (1 - 1e-12) * norms[label] * norms)
            if (tied & strong).any():
                if label != np.flatnonzero(tied & strong)[0]:
                    continue
                without = np.where(tied, 0.0, w)
            z, Q, *_ = parts(X, y, without, noise)
            ratio = max(Q[label] / z[label], 1.0)
            gain = y.shape[1] * (ratio - 1.0 - np.log(ratio))
        else:
            gain = energy(X, y, without, noise) - energy(X, y, w, noise)
        if gain > quantile:
            found.extend(np.flatnonzero(labels == label))
    return np.sort(found).astype(int)


def representations(Phi, X, size, exact=1e-8):
    """Return all sets of at most `size` columns that represent X exactly, the minimal ones."""
    found = []
    for count in range(1, size + 1):
        for chosen in combinations(range(Phi.shape[1]), count):
            if any(set(smaller) <= set(chosen) for smaller in found):
                continue
            columns = Phi[:, chosen]
            fit = np.linalg.lstsq(columns, X, rcond=1e-12)[0]
            if np.linalg.norm(X - columns @ fit) <= exact * np.linalg.norm(X):
                found.append(chosen)
    return found
