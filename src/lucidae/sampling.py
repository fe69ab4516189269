"""Tests of which principal components are separated from sampling noise, without a bootstrap."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.integrate import quad
from scipy.optimize import brentq
from sklearn.utils import check_random_state

from lucidae.validation import check_number

__all__ = [
    "TRACY_WIDOM",
    "TURNED",
    "WishartSpectra",
    "component_sampling_error",
    "components_above_noise",
    "marchenko_pastur_median",
    "separated_components",
]

TRACY_WIDOM = 3.2724
"""The 99.9 % quantile of the Tracy-Widom distribution of order 1 (Johnstone 2001).

In about one of a thousand samples of white Gaussian noise, the largest eigenvalue exceeds the limit
that follows from this quantile."""

TURNED = 0.5
"""Limit for the expected squared sine of the angle between a sample and a population component.

A component of the sample counts as separated from noise if the expectation is below this limit. The
value 1/2 corresponds to an angle of 45 degrees."""


def component_sampling_error(
    eigenvalues: NDArray[np.float64], n_rows: float
) -> NDArray[np.float64]:
    r"""Estimate the squared sine of the angle between each sample and population component.

    For n independent Gaussian rows whose covariance has the distinct eigenvalues λ, the squared
    sine of the angle between component i of the sample and of the population has the asymptotic
    expectation :math:`\frac1n \sum_{j \ne i} λ_i λ_j / (λ_i - λ_j)^2` (Anderson 1963).
    The eigenvalues of the sample are used in place of those of the population.
    """
    values = np.maximum(np.asarray(eigenvalues, dtype=np.float64), 0.0)
    top = values.max(initial=0.0)
    if not top:
        return np.full(values.size, np.inf)
    values = values / top
    products, gaps = np.outer(values, values), np.subtract.outer(values, values) ** 2
    np.fill_diagonal(products, 0.0)
    np.fill_diagonal(gaps, 1.0)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        shares = products / gaps
    # Two zero eigenvalues turn freely into each other: 0 / 0 counts as infinite.
    shares[np.isnan(shares)] = np.inf
    return np.asarray(shares.sum(axis=1) / n_rows)


def separated_components(
    eigenvalues: NDArray[np.float64], n_rows: float, n_components: int
) -> NDArray[np.bool_]:
    r"""Return which of the leading principal components are separated from sampling noise.

    A component is separated if it passes two tests:

    1. Its eigenvalue and all larger ones exceed what white Gaussian noise would give
       (`components_above_noise`).
    2. The expected squared sine of its angle to the component of the population
       (`component_sampling_error`) is below 1/2, which corresponds to 45 degrees.
    """
    above = components_above_noise(eigenvalues, n_rows, n_components)
    found_again = component_sampling_error(eigenvalues, n_rows)[:n_components] < TURNED
    return np.asarray(above & found_again)


def components_above_noise(
    eigenvalues: NDArray[np.float64], n_rows: float, n_components: int
) -> NDArray[np.bool_]:
    """Return which of the leading eigenvalues exceed those of white Gaussian noise.

    Each eigenvalue is divided by the mean of itself and all smaller ones, which estimates the noise
    variance (Nadler 2011). The ratio is compared with the 99.9 % quantile of the largest eigenvalue
    of white Gaussian noise with as many features as there are eigenvalues in that mean (Johnstone
    2001). An eigenvalue counts only if all larger ones do. The last of all m eigenvalues has no
    smaller one to be compared with and passes if it is positive.
    """
    values = np.maximum(np.asarray(eigenvalues, dtype=np.float64), 0.0)
    above = np.zeros(n_components, dtype=bool)
    for i in range(n_components):
        left = values[i:]
        if n_rows <= 1:
            break
        above[i] = left.size > 0 and left[0] > 0
        if left.size >= 2:
            # Johnstone 2001: n λ_1 of white noise is centred at μ and spread by ξ, with the -1/2
            # that makes the approximation second-order accurate (Ma 2012).
            rows, columns = np.sqrt(n_rows - 0.5), np.sqrt(left.size - 0.5)
            centre = (rows + columns) ** 2
            spread = (rows + columns) * (1 / rows + 1 / columns) ** (1 / 3)
            above[i] = left[0] * n_rows > left.mean() * (centre + TRACY_WIDOM * spread)
        if not above[i]:
            break
    return above


class WishartSpectra:
    """Simulated eigenvalues of white Gaussian noise, as bidiagonal matrices of chi variables.

    Let q ≥ p be the larger and the smaller of the numbers of features and of degrees of freedom.
    The lower bidiagonal matrix B with the diagonal χ_q, χ_{q−1}, …, χ_{q−p+1} and the subdiagonal
    χ_{p−1}, …, χ_1, all independent, has the singular values of a q × p matrix of standard normal
    entries (Dumitriu & Edelman 2002). Without its first row and column it has those of a
    (q − 1) × (p − 1) matrix.
    """

    def __init__(
        self, smaller: int, larger: float, n_simulations: int, random_state: Any = 0
    ) -> None:
        self.size = p = smaller
        seed = check_random_state(random_state).randint(2**31 - 1)
        rng = np.random.default_rng(seed)
        shape = (n_simulations, p)
        self.diagonal = rng.chisquare(np.maximum(larger - np.arange(p), 1.0), shape).T.copy()
        below = p - 1.0 - np.arange(p - 1)
        self.below = rng.chisquare(below, (n_simulations, p - 1)).T.copy()
        sums = self.diagonal.copy()
        sums[:-1] += self.below
        self.left = np.cumsum(sums[::-1], axis=0)[::-1]
        # The leading eigenvector of the tridiagonal matrix BBᵀ decays within O(p^(1/3)) rows, like
        # Airy's function (Edelman & Persson 2005); after 12 p^(1/3) rows it is rounding error.
        self.rows = 12 + int(12 * p ** (1 / 3))

    def exceeding(self, k: int, share: float) -> int:
        """Return in how many simulations the largest eigenvalue exceeds a share of the sum."""
        level = share * self.left[k]
        # All pivots of BBᵀ − level·I are negative if and only if no eigenvalue exceeds the level.
        pivot = self.diagonal[k] - level
        above = pivot >= 0.0
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            for i in range(k + 1, min(k + self.rows, self.size)):
                crossed = self.diagonal[i - 1] * self.below[i - 1]
                pivot = self.diagonal[i] + self.below[i - 1] - level - crossed / pivot
                above |= pivot >= 0.0
        return int(np.sum(above))

    def level(self, k: int, significance: float) -> float:
        """Return the smallest significant share of the largest eigenvalue after `k` ones."""
        low, high = 1.0 / (self.size - k), 1.0
        for _ in range(50):
            middle = (low + high) / 2
            if self.p_value(k, middle) <= significance:
                high = middle
            else:
                low = middle
        return high

    def p_value(self, k: int, share: float) -> float:
        """Return the p-value of a share of the largest eigenvalue in the sum, both after `k` ones.

        The observed `share` is counted as one of the simulated ones, which makes the test exact
        (Besag & Clifford 1989).
        """
        return (1 + self.exceeding(k, share)) / (1 + int(self.diagonal.shape[1]))


@lru_cache(maxsize=256)
def marchenko_pastur_median(ratio: float) -> float:
    r"""Return the median of the Marchenko–Pastur distribution, by numerical integration.

    It is the distribution of the eigenvalues of XᵀX/q for a large q × p matrix X of independent
    noise of variance one, with β = p/q. With :math:`x = 1 + β + 2\sqrt β \cos t` its upper tail is
    :math:`\int_0^t (2/π) \sin^2 s / (1 + β + 2\sqrt β \cos s) \, ds`, whose integrand is bounded.
    """
    beta = check_number(ratio, "ratio", low=0.0, high=1.0, open_low=True)
    root = 2 * math.sqrt(beta)

    def density(angle: float) -> float:
        return 2 / math.pi * math.sin(angle) ** 2 / (1 + beta + root * math.cos(angle))

    def excess(angle: float) -> float:
        return float(quad(density, 0.0, angle, epsabs=1e-13, epsrel=1e-13)[0]) - 0.5

    # The angle of the median grows from π/2 for β → 0 to 2.31 for β = 1.
    angle = brentq(excess, 1.0, 3.0, xtol=1e-14, rtol=1e-14)
    return float(1 + beta + root * math.cos(angle))
