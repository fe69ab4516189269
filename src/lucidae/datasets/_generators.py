"""Seeded generators of synthetic data: Gaussian samples, linear networks and sparse codes.

They draw the data of Bao et al. 2020, Mianjy et al. 2018 and Wipf 2023.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from sklearn.utils import check_random_state

from lucidae.arrays import to_numpy
from lucidae.validation import check_argument, check_choice, check_integer, check_number, real_array

Floats = np.ndarray[Any, np.dtype[np.float64]]


def check_finite(values: Any, name: str, shape: tuple[int | None, ...]) -> Floats:
    """Return `values` as a float64 array; raise a ValueError unless it is finite and has `shape`.

    None in `shape` means any length.
    """
    try:
        array = to_numpy(real_array(values, name)).astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be an array of real numbers: {error}") from error
    fits = array.ndim == len(shape) and all(
        wanted in (None, found) for wanted, found in zip(shape, array.shape, strict=True)
    )
    if not fits or not array.size:
        wanted_shape = ", ".join("any" if length is None else str(length) for length in shape)
        raise ValueError(f"{name} must have shape ({wanted_shape}); got shape {array.shape}.")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} contains NaN or infinite values; remove or replace them.")
    return array


class SpectrumData(NamedTuple):
    """Gaussian samples with a known covariance, as `make_spectrum` returns them."""

    data: Floats  # (n_samples, n_features): the samples, one per row
    # (n_features,): eigenvalues of the covariance from which the samples were drawn, in descending
    # order
    eigenvalues: Floats
    # (n_features, n_features): eigenvectors of that covariance, as columns in the same order
    eigenvectors: Floats


class LinearNetworkData(NamedTuple):
    """Inputs and outputs of a linear map, as `make_linear_network` returns them."""

    data: Floats  # (n_samples, n_features): the inputs x, one per row
    target: Floats  # (n_samples, n_targets): the outputs y = Mx, plus noise, one per row
    # (n_targets, n_features): the map M, in the orientation of scikit-learn's ``coef_``
    coef: Floats
    singular_values: Floats  # (rank,): singular values of M, in descending order


def check_range(values: Floats, name: str) -> Floats:
    """Return the computed `values` if they are finite; otherwise raise a ValueError."""
    if not np.isfinite(values).all():
        raise ValueError(
            f"{name} would exceed the range of float64 with the given arguments; give smaller "
            "numbers."
        )
    return values


def random_orthonormal(size: int, columns: int, rng: np.random.RandomState) -> Floats:
    """Return a uniformly random matrix of shape (size, columns) with orthonormal columns.

    It is the factor Q of the QR factorisation of a Gaussian matrix, after the signs of the diagonal
    of R have been moved into Q. This makes the factorisation unique and Q uniform, that is, Haar
    distributed (Mezzadri 2007).
    """
    basis, triangle = np.linalg.qr(rng.standard_normal((size, columns)))
    return np.asarray(basis * np.where(np.diag(triangle) < 0, -1.0, 1.0))


def make_spectrum(
    n_samples: int = 5000,
    n_features: int = 1000,
    *,
    eigenvalues: Any = None,
    random_state: Any = None,
) -> SpectrumData:
    """Draw Gaussian samples whose covariance has given eigenvalues and random eigenvectors.

    The defaults are the synthetic data of Bao et al. 2020, Figure 4: the eigenvectors are uniformly
    (Haar) distributed, and the eigenvalues are equally spaced from 100 down to 1. The eigenvectors
    that are returned are those of the distribution. The minimum of an autoencoder trained on the
    samples has the principal axes of the samples instead.

    Parameters
    ----------
    n_samples : int, default=5000
        Number of samples.
    n_features : int, default=1000
        Number of features.
    eigenvalues : array-like of shape (n_features,), default=None
        Eigenvalues of the covariance, at least 0, in any order. If None, they are equally spaced
        from 100 to 1.
    random_state : int, RandomState instance or None, default=None
        Seed of the random numbers, as in scikit-learn.

    Returns
    -------
    SpectrumData
        Named tuple (data, eigenvalues, eigenvectors); `data` has shape (n_samples, n_features).

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
        raise ValueError(
            f"eigenvalues must be at least 0, but the smallest given one is {variances[-1]}."
        )
    rng = check_random_state(check_argument(random_state, "random_state"))
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
    """Draw standard normal inputs x and outputs y = Mx of a random linear map M.

    This is the setting of Mianjy et al. 2018, Figure 3: the singular vectors of M are uniformly
    random, and its i-th singular value is exp(−decay · i) for i = 0, 1, … Mianjy et al. 2018 do not
    state the rate of decay; the default 0.1 is the choice of lucidae.

    Parameters
    ----------
    n_samples : int, default=1000
        Number of samples.
    n_features : int, default=80
        Number of inputs.
    n_targets : int, default=120
        Number of outputs.
    rank : int, default=None
        Number of singular values of M that are not zero; min(n_features, n_targets) if None.
    decay : float, default=0.1
        Rate at which the singular values decay, at least 0.
    noise : float, default=0.0
        Standard deviation of Gaussian noise that is added to each output.
    random_state : int, RandomState instance or None, default=None
        Seed of the random numbers, as in scikit-learn.

    Returns
    -------
    LinearNetworkData
        Named tuple (data, target, coef, singular_values); `coef` is M.

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
    order = widest if rank is None else check_integer(rank, "rank", low=1, high=widest)
    check_number(decay, "decay", low=0.0)
    check_number(noise, "noise", low=0.0)
    rng = check_random_state(check_argument(random_state, "random_state"))
    with np.errstate(over="ignore"):  # exp(−∞) = 0 is the right value for a huge rate
        singular_values = np.exp(-np.multiply(decay, np.arange(order)))
    left = random_orthonormal(n_targets, order, rng)
    right = random_orthonormal(n_features, order, rng)
    coef = (left * singular_values) @ right.T
    data = rng.standard_normal((n_samples, n_features))
    with np.errstate(over="ignore"):
        target = data @ coef.T + noise * rng.standard_normal((n_samples, n_targets))
    return LinearNetworkData(data, check_range(target, "target"), coef, singular_values)


class SparseRegressionData(NamedTuple):
    """A regression problem whose coefficients are sparse."""

    # (d, kappa): the dictionary Φ, one candidate column per feature; scikit-learn calls it `X`
    dictionary: Floats
    # (d, n): the responses ΦU₀ plus noise, one per column; scikit-learn calls them `y`
    responses: Floats
    # (n, kappa): the true coefficients U₀ᵀ, in the orientation of scikit-learn's ``coef_``
    coef: Floats
    noise_variance: float  # variance of the noise; 0 if there is none
    # (r,): indices of the columns of Φ whose coefficients are not zero, in ascending order
    support: np.ndarray[Any, np.dtype[np.intp]]


def unit_scales(count: int, _spread: float, _rng: np.random.RandomState) -> Floats:
    """Return `count` norms of 1 for the nonzero rows of the coefficients (Wipf 2023, Figure 2(a)).

    The other arguments are ignored.
    """
    return np.ones(count)


def jeffreys_scales(count: int, spread: float, rng: np.random.RandomState) -> Floats:
    """Return `count` random norms for the nonzero rows of the coefficients.

    They are log-uniform between `spread` and 1/`spread` (Wipf 2023, Figure 2(b)).
    """
    return np.asarray(np.exp(rng.uniform(math.log(spread), -math.log(spread), size=count)))


LARGEST_DECADE = 300
"""Largest absolute value of the decimal logarithm of a noise variance that is accepted, because
float64 cannot represent much larger or smaller numbers."""

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
    """Draw responses that are combinations of few columns of a dictionary, with or without noise.

    These are the problems X = ΦU₀ of Wipf 2023, Appendix A. The dictionary Φ (d × kappa) has
    Gaussian columns, scaled to unit norm. The coefficients U₀ (kappa × n) have `r` nonzero rows at
    random positions. These rows are a sum of `tau` random outer products, so that they are
    correlated across the `n` responses, and each is then scaled to a given norm. Wipf 2023 does not
    state n and tau; the defaults 20 and 3 are the choice of lucidae.

    Parameters
    ----------
    d : int, default=100
        Number of rows of Φ (measurements).
    kappa : int, default=200
        Number of columns of Φ (candidate features).
    r : int, default=10
        Number of columns of Φ whose coefficients are not zero, from 0 to kappa.
    n : int, default=20
        Number of responses; all use the same columns of Φ.
    tau : int, default=3
        Number of outer products; the rank of U₀ is min(tau, r, n).
    row_scaling : {"unit", "jeffreys"}, default="unit"
        Norms of the nonzero rows of U₀: all one, or log-uniform between `spread` and 1/`spread`
        (Jeffreys' prior).
    spread : float in (0, 1], default=0.01
        Smallest norm with ``row_scaling="jeffreys"``; the largest is 1/`spread`.
    snr_db : float, default=None
        Signal-to-noise ratio in decibels: 10 log₁₀ of the ratio of the mean square of ΦU₀ to the
        noise variance. If None, no noise is added.
    dictionary : array-like of shape (d, kappa), default=None
        A given dictionary Φ, such as a lead field. It is used unchanged, and the arguments `d` and
        `kappa` are ignored.
    random_state : int, RandomState instance or None, default=None
        Seed of the random numbers, as in scikit-learn.

    Returns
    -------
    SparseRegressionData
        Named tuple (dictionary, responses, coef, noise_variance, support); `coef` is U₀ᵀ.

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
    rng = check_random_state(check_argument(random_state, "random_state"))
    if dictionary is None:
        size = check_integer(d, "d", low=1), check_integer(kappa, "kappa", low=1)
        atoms = unit_columns(rng.standard_normal(size))
    else:
        atoms = check_finite(dictionary, "dictionary", (None, None)).copy()
    others = f", because kappa={atoms.shape[1]} is the number of columns of the dictionary"
    check_integer(r, "r", low=0, high=atoms.shape[1], others=others)
    support = np.sort(rng.permutation(atoms.shape[1])[:r])
    coef = np.zeros((check_integer(n, "n", low=1), atoms.shape[1]))
    coef[:, support] = _active_rows(r, n, tau, row_scaling, spread, rng).T
    with np.errstate(over="ignore", invalid="ignore"):
        clean = check_range(atoms @ coef.T, "the responses")
        variance = _noise_variance(clean, snr_db)
        responses = clean + math.sqrt(variance) * rng.standard_normal(clean.shape)
    return SparseRegressionData(
        atoms, check_range(responses, "the responses"), coef, variance, support
    )


def _active_rows(
    r: int, n: int, tau: int, row_scaling: str, spread: float, rng: np.random.RandomState
) -> Floats:
    """Return the nonzero rows of random coefficients, of shape (r, n).

    They are a sum of `tau` outer products of Gaussian vectors, with every row scaled to the norm
    that `row_scaling` and `spread` give (see `make_sparse_regression`).
    """
    check_integer(tau, "tau", low=1)
    check_number(spread, "spread", low=0.0, high=1.0, open_low=True)
    check_choice(row_scaling, "row_scaling", ROW_SCALINGS)
    rows = rng.standard_normal((r, tau)) @ rng.standard_normal((tau, n))
    scales = ROW_SCALINGS[row_scaling](r, spread, rng)
    return np.asarray(scales[:, None] * unit_columns(rows.T).T)


def _noise_variance(clean: Floats, snr_db: float | None) -> float:
    """Return the noise variance for a signal-to-noise ratio in decibels; 0 if it is None."""
    if snr_db is None:
        return 0.0
    ratio = check_number(snr_db, "snr_db")
    power = float(np.mean(clean**2))
    if power == 0.0:
        raise ValueError(
            "snr_db was given, but the signal is zero: r is 0, or the selected columns of the "
            "dictionary are zero. Use snr_db=None."
        )
    decades = math.log10(power) - ratio / 10.0 if math.isfinite(power) else math.inf
    if not abs(decades) <= LARGEST_DECADE:
        raise ValueError(
            f"snr_db={snr_db!r} was given, which makes the noise variance 10^{decades:.4g}; "
            "expected a signal-to-noise ratio for which the noise variance is from "
            f"1e-{LARGEST_DECADE} to 1e{LARGEST_DECADE}."
        )
    return power * math.pow(10.0, -ratio / 10.0)
