"""Seeded data of the papers' experiments: known spectra, linear networks, sparse codes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from sklearn.utils import check_random_state

from lucidae.datasets._checks import Floats, check_finite
from lucidae.validation import check_integer, check_number


class SpectrumData(NamedTuple):
    """Gaussian samples whose covariance is known.

    Attributes
    ----------
    data : ndarray of shape (n_samples, n_features)
    eigenvalues : ndarray of shape (n_features,)
        Of the population's covariance, largest first.
    eigenvectors : ndarray of shape (n_features, n_features)
        Of the population's covariance, as columns in the same order.
    """

    data: Floats
    eigenvalues: Floats
    eigenvectors: Floats


class LinearNetworkData(NamedTuple):
    """Inputs and outputs of a linear map whose singular values are known.

    Attributes
    ----------
    data : ndarray of shape (n_samples, n_features)
    target : ndarray of shape (n_samples, n_targets)
    coef : ndarray of shape (n_targets, n_features)
        The map M, in the orientation of scikit-learn's ``coef_``.
    singular_values : ndarray of shape (rank,)
        Of M, largest first.
    """

    data: Floats
    target: Floats
    coef: Floats
    singular_values: Floats


def random_orthonormal(size: int, columns: int, rng: np.random.RandomState) -> Floats:
    """Return orthonormal columns drawn uniformly (Haar): QR with the signs of R's diagonal."""
    basis, triangle = np.linalg.qr(rng.standard_normal((size, columns)))
    return np.asarray(basis * np.where(np.diag(triangle) < 0, -1.0, 1.0))


def make_spectrum(
    n_samples: int = 5000,
    n_features: int = 1000,
    *,
    eigenvalues: Any = None,
    random_state: Any = None,
) -> SpectrumData:
    """Draw Gaussian samples with a chosen spectrum and random principal directions.

    The defaults are the synthetic data of Bao et al. 2020, Figure 4: the covariance has Haar
    distributed eigenvectors and eigenvalues equally spaced from 100 down to 1. An experiment
    that measures alignment on a sample should take the sample's own principal directions as
    its reference; the population's are returned for comparison.

    Parameters
    ----------
    n_samples, n_features : int
        Size of the sample.
    eigenvalues : array-like of shape (n_features,), default=None
        Variances along the principal directions, in any order, none negative. None: equally
        spaced from 100 to 1.
    random_state : int, RandomState instance or None, default=None
        Seed, as everywhere in scikit-learn.

    Returns
    -------
    SpectrumData
        Named tuple (data, eigenvalues, eigenvectors).

    Examples
    --------
    >>> from lucidae.datasets import make_spectrum
    >>> sample = make_spectrum(200, 3, eigenvalues=[9.0, 4.0, 1.0], random_state=0)
    >>> sample.data.shape
    (200, 3)
    >>> sample.eigenvalues
    array([9., 4., 1.])
    """
    check_integer(n_samples, "n_samples", low=1)
    check_integer(n_features, "n_features", low=1)
    spaced = np.linspace(100.0, 1.0, n_features) if eigenvalues is None else eigenvalues
    variances = np.sort(check_finite(spaced, "eigenvalues", (n_features,)))[::-1].copy()
    if variances[-1] < 0:
        raise ValueError(f"eigenvalues must not be negative; the smallest is {variances[-1]}.")
    rng = check_random_state(random_state)
    directions = random_orthonormal(n_features, n_features, rng)
    scores = rng.standard_normal((n_samples, n_features)) * np.sqrt(variances)
    return SpectrumData(scores @ directions.T, variances, directions)


def make_linear_network(
    n_samples: int = 1000,
    n_features: int = 80,
    n_targets: int = 120,
    *,
    rank: int | None = None,
    decay: float = 0.1,
    noise: float = 0.0,
    random_state: Any = None,
) -> LinearNetworkData:
    """Draw white inputs x and outputs y = Mx of a map with exponentially decaying spectrum.

    The setting of Mianjy et al. 2018, Figure 3: the singular subspaces of M are uniformly
    random and its i-th singular value is exp(−decay · i), i = 0, 1, … The paper does not print
    its rate of decay.

    Parameters
    ----------
    n_samples, n_features, n_targets : int
        Number of samples, of inputs and of outputs.
    rank : int, default=None
        Number of singular values of M that are not zero; None: min(n_features, n_targets).
    decay : float, default=0.1
        Rate of decay, zero or more.
    noise : float, default=0.0
        Standard deviation of white noise added to the outputs.
    random_state : int, RandomState instance or None, default=None
        Seed, as everywhere in scikit-learn.

    Returns
    -------
    LinearNetworkData
        Named tuple (data, target, coef, singular_values).

    Examples
    --------
    >>> from lucidae.datasets import make_linear_network
    >>> network = make_linear_network(50, 4, 6, random_state=0)
    >>> network.coef.shape, network.target.shape
    ((6, 4), (50, 6))
    """
    check_integer(n_samples, "n_samples", low=1)
    check_integer(n_features, "n_features", low=1)
    check_integer(n_targets, "n_targets", low=1)
    widest = min(n_features, n_targets)
    kept = widest if rank is None else check_integer(rank, "rank", low=1, high=widest)
    check_number(decay, "decay", low=0.0)
    check_number(noise, "noise", low=0.0)
    rng = check_random_state(random_state)
    singular_values = np.exp(-decay * np.arange(kept))
    left = random_orthonormal(n_targets, kept, rng)
    right = random_orthonormal(n_features, kept, rng)
    coef = (left * singular_values) @ right.T
    data = rng.standard_normal((n_samples, n_features))
    target = data @ coef.T + noise * rng.standard_normal((n_samples, n_targets))
    return LinearNetworkData(data, target, coef, singular_values)
