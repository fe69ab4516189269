"""Which principal components are separated from sampling noise, without a bootstrap."""

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
"""The 99.9 % quantile of the Tracy-Widom law of order 1 (Johnstone 2001).

White Gaussian noise passes the test of one component in about one sample of a thousand."""

TURNED = 0.5
"""Largest expected squared sine between a component of the sample and that of the population.

At 1/2 the component of another sample would lie 45 degrees away."""


def component_sampling_error(
    eigenvalues: NDArray[np.float64], n_rows: float
) -> NDArray[np.float64]:
    r"""Estimate how far each principal component of a sample lies from that of the population.

    For n independent Gaussian rows whose covariance has the distinct eigenvalues λ, the squared
    sine of the angle between component i of the sample and of the population has the asymptotic
    expectation :math:`\frac1n \sum_{j \ne i} λ_i λ_j / (λ_i - λ_j)^2` (Anderson 1963).
    The eigenvalues of the sample stand for those of the population.

    Parameters
    ----------
    eigenvalues : ndarray of shape (m,)
        All eigenvalues of the sample covariance, in descending order.
    n_rows : float
        Number of independent rows.

    Returns
    -------
    ndarray of shape (m,)
        Expected squared sine of each component; infinite where two eigenvalues are equal.

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
    r"""Estimate how far the principal subspace of a sample lies from that of the population.

    As `component_sampling_error`, but components that turn inside of the subspace do not count: the
    expected mean of the squared sines of the k principal angles between the two subspaces is
    :math:`\frac1{nk} \sum_{i \le k < j} λ_i λ_j / (λ_i - λ_j)^2`.

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
        Infinite where eigenvalues k and k + 1 are equal.

    Examples
    --------
    >>> import numpy as np
    >>> round(subspace_sampling_error(np.array([4.0, 4.0, 1.0]), 100, 2), 4)
    0.0044
    """
    k = n_components
    return float(_squared_sines(eigenvalues)[:k, k:].sum() / (n_rows * k))


def _squared_sines(eigenvalues: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return λ_i λ_j / (λ_i − λ_j)² for all pairs, 0 on the diagonal."""
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

    A component counts if it passes two tests. Its eigenvalue, divided by the mean of itself and
    all smaller ones, exceeds what the largest eigenvalue of white Gaussian noise of that dimension
    reaches, and so do all eigenvalues before it (`components_above_noise`); and the component of
    another sample of the same size would lie less than 45 degrees away
    (`component_sampling_error`).

    Parameters
    ----------
    eigenvalues : ndarray of shape (m,)
        All eigenvalues of the sample covariance, in descending order.
    n_rows : float
        Number of independent rows; rows less one if the mean was estimated.
    n_components : int
        How many leading components are judged.

    Returns
    -------
    ndarray of bool of shape (n_components,)

    Examples
    --------
    One direction with four times the variance of the noise, then noise alone:

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

    Eigenvalue i, divided by the mean of itself and all smaller ones, is compared with the largest
    eigenvalue of white Gaussian noise of that dimension (Johnstone 2001; the mean estimates the
    noise variance as in Nadler 2011). It counts only if all eigenvalues before it do. When all m
    eigenvalues are asked for, the last one has no noise to be compared with and counts if it is
    positive.

    Parameters
    ----------
    eigenvalues : ndarray of shape (m,)
        All eigenvalues of the sample covariance, in descending order.
    n_rows : float
        Number of independent rows; rows less one if the mean was estimated.
    n_components : int
        How many leading eigenvalues are judged.

    Returns
    -------
    ndarray of bool of shape (n_components,)

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
    """Test the largest of `values` against white noise with the mean of `values` as variance."""
    size = values.size
    if size < 2 or n_rows <= 1:
        return bool(n_rows > 1 and size and values[0] > 0)
    # Johnstone 2001: n λ_1 of white noise is centred at μ and spread by ξ, with the -1/2 that
    # makes the approximation second-order accurate (Ma 2012).
    rows, columns = np.sqrt(n_rows - 0.5), np.sqrt(size - 0.5)
    centre = (rows + columns) ** 2
    spread = (rows + columns) * (1 / rows + 1 / columns) ** (1 / 3)
    return bool(values[0] * n_rows > values.mean() * (centre + TRACY_WIDOM * spread))
