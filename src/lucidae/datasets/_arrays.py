"""Snapshots of arrays of sensors: plane waves from few directions, with noise."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from sklearn.utils import check_random_state

from lucidae.datasets._generators import LARGEST_DECADE, Floats, check_finite
from lucidae.validation import check_integer, check_number, check_seed, real_array

Complexes = np.ndarray[Any, np.dtype[np.complex128]]

ROUNDING = 1e-10
"""Largest relative error of a correlation matrix that counts as rounding."""


class ArraySnapshots(NamedTuple):
    """Snapshots of an array of sensors, as `make_array_snapshots` returns them.

    With several frequencies, `dictionary`, `responses` and `coef` have a first axis for them.

    Attributes
    ----------
    dictionary : ndarray of complex of shape (n_sensors, n_angles)
        The steering vectors of the directions `angles`, one per column; scikit-learn calls it `X`.
    responses : ndarray of complex of shape (n_sensors, n_snapshots)
        The snapshots: the signals of all sensors at one time, one per column; scikit-learn calls
        them `y`.
    coef : ndarray of complex of shape (n_snapshots, n_angles)
        The signals of the sources, in the orientation of scikit-learn's ``coef_``. A source whose
        direction is not on the grid has its signal at the nearest direction.
    noise_variance : float
        Mean square of the absolute value of the noise at one sensor; 0 if there is none.
    support : ndarray of int of shape (n_sources,)
        Indices of the directions on the grid that are nearest to the sources, in the order of
        `source_angles`.
    angles : ndarray of shape (n_angles,)
        The directions of the grid, in degrees.
    source_angles : ndarray of shape (n_sources,)
        The directions of the sources, in degrees, in the order in which they were given.
    positions : ndarray of shape (n_sensors, 2)
        Coordinates x and y of the sensors, in wavelengths.
    """

    dictionary: Complexes
    responses: Complexes
    coef: Complexes
    noise_variance: float
    support: np.ndarray[Any, np.dtype[np.intp]]
    angles: Floats
    source_angles: Floats
    positions: Floats


def steering_vectors(positions: Any, angles: Any, frequency: float = 1.0) -> Complexes:
    """Return the signals exp(2πi f p·u) of unit plane waves at sensors, of shape (d, κ).

    The d sensors have the coordinates p = (x, y) in wavelengths at the frequency 1, and f is
    `frequency`. The κ waves come from the directions u = (sin θ, cos θ), where the angles θ are in
    degrees from the y axis, which is the broadside of an array along the x axis.

    Examples
    --------
    >>> steering_vectors([[0.0, 0.0], [0.5, 0.0]], [0.0, 90.0]).real.round(3)
    array([[ 1.,  1.],
           [ 1., -1.]])
    """
    radians = np.deg2rad(np.asarray(angles, dtype=float))
    directions = np.stack([np.sin(radians), np.cos(radians)])
    return np.asarray(np.exp(2j * np.pi * frequency * (np.asarray(positions) @ directions)))


def make_array_snapshots(
    n_sensors: int = 12,
    n_snapshots: int = 50,
    *,
    source_angles: Any = (-10.0, 15.0),
    powers: Any = 1.0,
    correlation: Any = 0.0,
    snr_db: float | None = 10.0,
    angles: Any = 181,
    positions: Any = None,
    frequencies: Any = None,
    random_state: Any = None,
) -> ArraySnapshots:
    """Draw snapshots of an array of sensors that receives plane waves from few directions.

    Antennas, hydrophones or microphones record complex signals at one frequency. The snapshots are
    X = A S + E, where the columns of A are the steering vectors of the sources, the signals S of
    the sources are circular complex Gaussian and independent from snapshot to snapshot, and so is
    the noise E. A dictionary of steering vectors on a grid of directions turns the search for the
    directions into a sparse regression (Malioutov et al. 2005), which `lucidae.SparseVAE` solves.

    Parameters
    ----------
    n_sensors : int, default=12
        Number of sensors of a uniform linear array with a spacing of half a wavelength. It is
        ignored if `positions` are given.
    n_snapshots : int, default=50
        Number of snapshots.
    source_angles : array-like of shape (n_sources,), default=(-10.0, 15.0)
        Directions of the sources in degrees from broadside, on the grid or not.
    powers : float or array-like of shape (n_sources,), default=1.0
        Mean square of the absolute value of each source's signal.
    correlation : float or array-like of shape (n_sources, n_sources), default=0.0
        Correlation of the signals of two sources, from 0 (independent) to 1 (coherent: all signals
        are proportional), or the complex correlation matrix of all sources.
    snr_db : float, default=10.0
        Signal-to-noise ratio in decibels of a source of power 1 at one sensor. If None, there is no
        noise.
    angles : int or array-like of shape (n_angles,), default=181
        Number of directions of the grid, which are equally spaced from -90 to 90 degrees, or the
        directions themselves.
    positions : array-like of shape (n_sensors,) or (n_sensors, 2), default=None
        Coordinates of the sensors in wavelengths: x, or x and y. The direction of broadside is
        the y axis.
    frequencies : array-like of shape (n_frequencies,), default=None
        Frequencies, in units of the one whose wavelength measures `positions`. Signals and noise
        of different frequencies are independent. None means the frequency 1 alone, and results
        without an axis for frequencies.
    random_state : int, RandomState instance or None, default=None
        Seed of the random numbers, as in scikit-learn.

    Returns
    -------
    ArraySnapshots
        Named tuple (dictionary, responses, coef, noise_variance, support, angles, source_angles,
        positions).

    References
    ----------
    Malioutov, Çetin & Willsky 2005, A sparse signal reconstruction perspective for source
    localization with sensor arrays.

    Examples
    --------
    >>> from lucidae import SparseVAE
    >>> from lucidae.datasets import make_array_snapshots
    >>> data = make_array_snapshots(source_angles=[-3.0, 4.0], random_state=0)
    >>> model = SparseVAE(noise_variance=data.noise_variance, fit_intercept=False)
    >>> data.angles[model.fit(data.dictionary, data.responses).support_]
    array([-3.,  4.])
    """
    rng = check_random_state(check_seed(random_state))
    places, directions = _sensor_positions(positions, n_sensors), _grid(angles)
    sources = check_finite(source_angles, "source_angles", (None,))
    check_integer(n_snapshots, "n_snapshots", low=1)
    root = _signal_root(correlation, _source_powers(powers, len(sources)))
    variance = 0.0 if snr_db is None else 10.0 ** (-_checked_ratio(snr_db) / 10.0)
    single = frequencies is None
    scales = np.ones(1) if single else check_finite(frequencies, "frequencies", (None,))
    if not (scales > 0).all():
        raise ValueError(f"frequencies={frequencies!r} was given, expected numbers above 0.")
    support = np.argmin(np.abs(directions[None, :] - sources[:, None]), axis=1)
    size = (len(scales), len(sources), n_snapshots)
    signals = root @ _circular(rng, size)
    waves = np.stack([steering_vectors(places, sources, scale) for scale in scales])
    dictionary = np.stack([steering_vectors(places, directions, scale) for scale in scales])
    clean = waves @ signals
    responses = clean + variance**0.5 * _circular(rng, clean.shape)
    coef = np.zeros((len(scales), n_snapshots, len(directions)), dtype=complex)
    for source, column in enumerate(support):  # two sources may share their nearest direction
        coef[:, :, column] += signals[:, source]
    parts = (dictionary, responses, coef)
    dictionary, responses, coef = (part[0] if single else part for part in parts)
    return ArraySnapshots(
        dictionary, responses, coef, variance, support, directions, sources, places
    )


def _circular(rng: np.random.RandomState, shape: tuple[int, ...]) -> Complexes:
    """Return circular complex Gaussian numbers, whose absolute values have mean square 1."""
    parts = rng.standard_normal((*shape, 2)) * 0.5**0.5
    return np.asarray(parts[..., 0] + 1j * parts[..., 1])


def _sensor_positions(positions: Any, n_sensors: int) -> Floats:
    """Return the coordinates (x, y) of the sensors in wavelengths, of shape (n_sensors, 2)."""
    if positions is None:
        line = np.arange(check_integer(n_sensors, "n_sensors", low=1)) / 2.0
        return np.stack([line - line.mean(), np.zeros_like(line)], axis=1)
    one_axis = np.ndim(positions) == 1
    given = check_finite(positions, "positions", (None,) if one_axis else (None, 2))
    return np.stack([given, np.zeros_like(given)], axis=1) if one_axis else given


def _grid(angles: Any) -> Floats:
    """Return the directions of the grid in degrees; if `angles` is an integer, that many."""
    if np.ndim(angles) == 0:
        others = ", or an array of directions in degrees"
        return np.linspace(-90.0, 90.0, check_integer(angles, "angles", low=2, others=others))
    return check_finite(angles, "angles", (None,))


def _checked_ratio(snr_db: Any) -> float:
    """Return a signal-to-noise ratio in decibels whose noise variance is in range."""
    largest = 10.0 * LARGEST_DECADE
    return check_number(snr_db, "snr_db", low=-largest, high=largest, others=" or None")


def _source_powers(powers: Any, count: int) -> Floats:
    """Return the power of each of `count` sources."""
    if np.ndim(powers) == 0:
        return np.full(count, check_number(powers, "powers", low=0.0))
    values = check_finite(powers, "powers", (count,))
    if (values < 0).any():
        raise ValueError(f"powers={powers!r} was given, expected numbers of at least 0.")
    return values


def _signal_root(correlation: Any, powers: Floats) -> Complexes:
    """Return a matrix R such that R g has the covariance of the sources' signals for white g.

    White g has independent entries of variance 1. R is a square root of the correlation matrix
    whose rows are multiplied by the square roots of the powers. It also exists if the correlation
    matrix is singular, as that of coherent sources is.
    """
    count = len(powers)
    if np.ndim(correlation) == 0:
        others = ", or a correlation matrix"
        shared = check_number(correlation, "correlation", low=0.0, high=1.0, others=others)
        matrix = np.full((count, count), shared, dtype=complex)
        np.fill_diagonal(matrix, 1.0)
    else:
        given = real_array(correlation, "correlation", accept_complex=True)
        matrix = np.asarray(given, dtype=complex)
    expected = (
        f"correlation must be a number in [0, 1] or a Hermitian positive semi-definite matrix of "
        f"shape ({count}, {count}) with ones on its diagonal; "
    )
    if matrix.shape != (count, count) or not np.isfinite(matrix).all():
        raise ValueError(f"{expected}got shape {matrix.shape}, or entries that are not finite.")
    hermitian = np.allclose(matrix, matrix.conj().T, rtol=0.0, atol=ROUNDING)
    if not hermitian or not np.allclose(np.diagonal(matrix), 1.0, rtol=0.0, atol=ROUNDING):
        raise ValueError(f"{expected}it is not Hermitian, or its diagonal is not 1.")
    values, vectors = np.linalg.eigh(matrix)
    if values[0] < -ROUNDING * count:
        raise ValueError(f"{expected}its smallest eigenvalue is {values[0]:.3g}.")
    root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.conj().T
    return np.asarray(np.sqrt(powers)[:, None] * root)
