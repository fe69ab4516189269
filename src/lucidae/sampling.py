"""Tests of which principal components are separated from sampling noise, without a bootstrap."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "TRACY_WIDOM",
    "TURNED",
    "component_sampling_error",
    "components_above_noise",
    "separated_components",
    "subspace_sampling_error",
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

    Parameters
    ----------
    eigenvalues : ndarray of shape (m,)
        All eigenvalues of the sample covariance, in descending order.
    n_rows : float
        Number of independent rows.

    Returns
    -------
    ndarray of shape (m,)
        Expected squared sine for each component; infinite if its eigenvalue equals another one.

    Examples
    --------
    >>> import numpy as np
    >>> component_sampling_error(np.array([4.0, 1.0]), 100).round(4)
    array([0.0044, 0.0044])
    """
    shares = _squared_sines(eigenvalues)
    return np.asarray(shares.sum(axis=1) / n_rows)


def subspace_sampling_error(
    eigenvalues: NDArray[np.float64], n_rows: float, n_components: int
) -> float:
    r"""Estimate the mean squared sine between the principal subspaces of sample and population.

    For n independent Gaussian rows whose covariance has the eigenvalues λ, the mean of the squared
    sines of the k principal angles between the subspaces of the k leading components has the
    asymptotic expectation :math:`\frac1{nk} \sum_{i \le k < j} λ_i λ_j / (λ_i - λ_j)^2` (Anderson
    1963). Rotations of components inside of the subspace do not count. The eigenvalues of the
    sample are used in place of those of the population.

    Parameters
    ----------
    eigenvalues : ndarray of shape (m,)
        All eigenvalues of the sample covariance, in descending order.
    n_rows : float
        Number of independent rows.
    n_components : int
        Dimension k of the subspace.

    Returns
    -------
    float
        Expected mean squared sine; infinite if eigenvalues k and k + 1 are equal.

    Examples
    --------
    >>> import numpy as np
    >>> round(subspace_sampling_error(np.array([4.0, 4.0, 1.0]), 100, 2), 4)
    0.0044
    """
    k = n_components
    return float(_squared_sines(eigenvalues)[:k, k:].sum() / (n_rows * k))


def _squared_sines(eigenvalues: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return λ_i λ_j / (λ_i − λ_j)² for all pairs of the eigenvalues λ, with zeros on the diagonal.

    Pairs of equal eigenvalues give infinity. The result has the shape (m, m).
    """
    values = np.maximum(np.asarray(eigenvalues, dtype=np.float64), 0.0)
    top = values.max(initial=0.0)
    if not top:
        return np.full((values.size, values.size), np.inf)
    values = values / top
    products, gaps = np.outer(values, values), np.subtract.outer(values, values) ** 2
    np.fill_diagonal(products, 0.0)
    np.fill_diagonal(gaps, 1.0)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        shares = products / gaps
    # Two zero eigenvalues turn freely into each other: 0 / 0 counts as infinite.
    shares[np.isnan(shares)] = np.inf
    return np.asarray(shares)


def separated_components(
    eigenvalues: NDArray[np.float64], n_rows: float, n_components: int
) -> NDArray[np.bool_]:
    r"""Return which of the leading principal components are separated from sampling noise.

    A component is separated if it passes two tests:

    1. Its eigenvalue and all larger ones exceed what white Gaussian noise would give
       (`components_above_noise`).
    2. The expected squared sine of its angle to the component of the population
       (`component_sampling_error`) is below 1/2, which corresponds to 45 degrees.

    Parameters
    ----------
    eigenvalues : ndarray of shape (m,)
        All eigenvalues of the sample covariance, in descending order.
    n_rows : float
        Number of independent rows; the number of rows minus one if the mean was estimated.
    n_components : int
        Number of leading components that are tested.

    Returns
    -------
    ndarray of bool of shape (n_components,)
        True for each component that passes both tests.

    Examples
    --------
    One direction with ten times the variance of the others (`signal`), then noise alone:

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> noise = rng.standard_normal((200, 50))
    >>> signal = noise + 3 * rng.standard_normal((200, 1)) * np.eye(50)[0]
    >>> for rows in (signal, noise):
    ...     values = np.linalg.eigvalsh(rows.T @ rows / 200)[::-1]
    ...     print(separated_components(values, 200, 3))
    [ True False False]
    [False False False]
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

    Parameters
    ----------
    eigenvalues : ndarray of shape (m,)
        All eigenvalues of the sample covariance, in descending order.
    n_rows : float
        Number of independent rows; the number of rows minus one if the mean was estimated.
    n_components : int
        Number of leading eigenvalues that are tested.

    Returns
    -------
    ndarray of bool of shape (n_components,)
        True for each eigenvalue that exceeds the noise.

    Examples
    --------
    >>> import numpy as np
    >>> components_above_noise(np.array([9.0, 1.1, 1.0, 0.9]), 50, 2)
    array([ True, False])
    """
    values = np.maximum(np.asarray(eigenvalues, dtype=np.float64), 0.0)
    above = np.array([_exceeds_noise(values[i:], n_rows) for i in range(n_components)], dtype=bool)
    return np.asarray(np.logical_and.accumulate(above))


def _exceeds_noise(values: NDArray[np.float64], n_rows: float) -> bool:
    """Return whether the first of the descending eigenvalues `values` exceeds white Gaussian noise.

    The noise has the mean of `values` as its variance and is sampled `n_rows` times.
    """
    size = values.size
    if size < 2 or n_rows <= 1:
        return bool(n_rows > 1 and size and values[0] > 0)
    # Johnstone 2001: n λ_1 of white noise is centred at μ and spread by ξ, with the -1/2 that
    # makes the approximation second-order accurate (Ma 2012).
    rows, columns = np.sqrt(n_rows - 0.5), np.sqrt(size - 0.5)
    centre = (rows + columns) ** 2
    spread = (rows + columns) * (1 / rows + 1 / columns) ** (1 / 3)
    return bool(values[0] * n_rows > values.mean() * (centre + TRACY_WIDOM * spread))
