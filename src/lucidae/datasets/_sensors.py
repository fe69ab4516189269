"""Data of sensors: snapshots of arrays that receive plane waves, and lead fields of MEG.

A lead field of magnetoencephalography (MEG) is the matrix of the magnetic field of each source in
the head at each sensor; the sources are dipoles in a spherical head (Sarvas 1987).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from sklearn.utils import check_random_state

from lucidae.datasets._generators import LARGEST_DECADE, Floats, check_finite, unit_columns
from lucidae.validation import check_argument, check_flag, check_integer, check_number, real_array

Complexes = np.ndarray[Any, np.dtype[np.complex128]]

ROUNDING = 1e-10
"""Largest relative error of a correlation matrix that counts as rounding."""


class ArraySnapshots(NamedTuple):
    """Snapshots of an array of sensors, as `make_array_snapshots` returns them.

    With several frequencies, `dictionary`, `responses` and `coef` have a first axis for them.
    """

    # (n_sensors, n_angles): the steering vectors of the directions `angles`, one per column;
    # scikit-learn calls it `X`
    dictionary: Complexes
    # (n_sensors, n_snapshots): the snapshots: the signals of all sensors at one time, one per
    # column; scikit-learn calls them `y`
    responses: Complexes
    # (n_snapshots, n_angles): the signals of the sources, in the orientation of scikit-learn's
    # ``coef_``
    coef: Complexes
    # mean square of the absolute value of the noise at one sensor; 0 if there is none
    noise_variance: float
    # (n_sources,): indices of the directions on the grid that are nearest to the sources, in the
    # order of `source_angles`
    support: np.ndarray[Any, np.dtype[np.intp]]
    angles: Floats  # (n_angles,): the directions of the grid, in degrees
    # (n_sources,): the directions of the sources, in degrees, in the order in which they were given
    source_angles: Floats
    positions: Floats  # (n_sensors, 2): coordinates x and y of the sensors, in wavelengths


def steering_vectors(positions: Any, angles: Any, frequency: float = 1.0) -> Complexes:
    """Return the signals exp(2πi f p·u) of unit plane waves at sensors, of shape (d, κ).

    The d sensors have the coordinates p = (x, y) in wavelengths at the frequency 1, and f is
    `frequency`. The κ waves come from the directions u = (sin θ, cos θ), where the angles θ are in
    degrees from the y axis, which is the broadside of an array along the x axis.
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
        Directions of the sources in degrees from broadside, on the grid or not. For the uniform
        linear array they are between -90 and 90, since it cannot tell front from back. If
        `positions` are given, any angle is allowed.
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
    rng = check_random_state(check_argument(random_state, "random_state"))
    places, directions = _sensor_positions(positions, n_sensors), _grid(angles)
    sources = check_finite(source_angles, "source_angles", (None,))
    if positions is None and (np.abs(sources) > 90.0).any():
        raise ValueError(
            f"source_angles contains {sources[np.abs(sources) > 90.0][0]:g} degrees, expected "
            "directions between -90 and 90 degrees from the broadside of a linear array: it "
            "cannot tell front from back. Give positions for an array in the plane."
        )
    check_integer(n_snapshots, "n_snapshots", low=1)
    root = _signal_root(correlation, _source_powers(powers, len(sources)))
    variance = 0.0
    if snr_db is not None:
        largest = 10.0 * LARGEST_DECADE
        ratio = check_number(snr_db, "snr_db", low=-largest, high=largest, others=" or None")
        variance = 10.0 ** (-ratio / 10.0)
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
    """Return the directions of the grid in degrees: `angles`, or that many if it is an integer."""
    if np.ndim(angles) == 0:
        others = ", or an array of directions in degrees"
        return np.linspace(-90.0, 90.0, check_integer(angles, "angles", low=2, others=others))
    return check_finite(angles, "angles", (None,))


def _source_powers(powers: Any, count: int) -> Floats:
    """Return the power of each of `count` sources, from one number for all or one for each."""
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
    if matrix.shape != (count, count):
        raise ValueError(f"{expected}a matrix of shape {matrix.shape} was given.")
    if not np.isfinite(matrix).all():
        raise ValueError(f"{expected}the given matrix contains NaN or infinity.")
    if not np.allclose(matrix, matrix.conj().T, rtol=0.0, atol=ROUNDING):
        raise ValueError(f"{expected}the given matrix is not Hermitian.")
    if not np.allclose(np.diagonal(matrix), 1.0, rtol=0.0, atol=ROUNDING):
        raise ValueError(f"{expected}the diagonal of the given matrix contains other numbers.")
    values, vectors = np.linalg.eigh(matrix)
    if values[0] < -ROUNDING * count:
        raise ValueError(
            f"{expected}the smallest eigenvalue of the given matrix is {values[0]:.3g}."
        )
    root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.conj().T
    return np.asarray(np.sqrt(powers)[:, None] * root)


MAGNETIC_CONSTANT = 1e-7  # μ₀/4π, in T·m/A
HELMET_AXES = (0.11, 0.13, 0.12)  # half axes to the right, to the front and upwards, in metres
HELMET_RIM = -0.5  # sine of the elevation of the rim: 30° below the horizontal plane
SOURCE_SHELL = (0.03, 0.08)  # smallest and largest distance of a source from the centre, in metres
GOLDEN_ANGLE = np.pi * (3.0 - np.sqrt(5.0))
# Powers of the real root of x⁴ = x + 1: additive recurrence with low discrepancy in 3-D.
QUASI_RANDOM_STEPS = 1.2207440846057596 ** -np.arange(1.0, 4.0)


class MegLeadfield(NamedTuple):
    """A lead field and the geometry from which it was computed; positions are in metres.

    The lead field is the matrix of the magnetic field of each source at each sensor.
    """

    leadfield: Floats  # (n_sensors, n_sources): field of each source at each sensor
    # (n_sensors, 3): positions of the sensors relative to the centre of the head
    sensor_positions: Floats
    sensor_normals: Floats  # (n_sensors, 3): unit vectors along which the sensors measure the field
    # (n_sources, 3): positions of the sources relative to the centre of the head
    source_positions: Floats
    # (n_sources, 3): unit vectors in the direction of the sources' dipoles
    source_orientations: Floats


def sarvas_gain(sensors: Floats, normals: Floats, sources: Floats) -> Floats:
    """Return the magnetic field of unit dipoles at the sensors, along the sensors' normals.

    The sources lie in a conducting sphere around the origin, whose radius and radial conductivity
    profile do not affect the field. For a dipole Q at the position r₀ and a sensor at the position
    x, let r = |x|, a = |x − r₀| and F = a(ra + r² − r₀·x). By Sarvas 1987, eq. 25, the field at the
    sensor is

        B = μ₀/(4πF²) (F Q×r₀ − (Q×r₀·x) ∇F).

    Both terms are linear in Q×r₀. Since (Q×r₀)·v = Q·(r₀×v), the component along the normal n is
    n·B = Q · r₀×(F n − (n·∇F) x) μ₀/(4πF²), and the factor of Q is returned. It is orthogonal to
    r₀, so that radial dipoles produce no field outside the sphere.
    """
    here, source = sensors[:, None, :], sources[None, :, :]
    offset = here - source
    distance = np.linalg.norm(offset, axis=-1)
    radius = np.linalg.norm(sensors, axis=-1)[:, None]
    # With p = (x − r₀)·x/a, ∇F = (a²/r + p + 2a + 2r) x − (a + 2r + p) r₀, here projected on the
    # normals; `projection` is p, `along_sensor` and `along_source` are the factors of x and r₀.
    projection = np.sum(offset * here, axis=-1) / distance
    scale = distance * (radius * distance + radius**2 - sensors @ sources.T)
    along_sensor = distance**2 / radius + projection + 2.0 * (distance + radius)
    along_source = distance + 2.0 * radius + projection
    radial = np.sum(sensors * normals, axis=-1)[:, None]
    gradient = along_sensor * radial - along_source * (normals @ sources.T)
    factor = scale[..., None] * normals[:, None, :] - gradient[..., None] * here
    return np.asarray(MAGNETIC_CONSTANT * np.cross(source, factor) / scale[..., None] ** 2)


def helmet(count: int) -> tuple[Floats, Floats]:
    """Return positions and outward unit normals of `count` sensors on an ellipsoidal helmet.

    The points are a Fibonacci lattice on a sphere: equal steps in height cover equal areas, and
    turning by the golden angle from one point to the next spreads them evenly. The lattice is then
    stretched to the half axes of the ellipsoid, whose normal at x is parallel to x divided by the
    squared half axes.
    """
    steps = (np.arange(count) + 0.5) / count
    height = 1.0 - steps * (1.0 - HELMET_RIM)
    angle = GOLDEN_ANGLE * np.arange(count)
    ring = np.sqrt(1.0 - height**2)
    directions = np.stack([ring * np.cos(angle), ring * np.sin(angle), height], axis=1)
    outward = directions / np.asarray(HELMET_AXES)
    normals = outward / np.linalg.norm(outward, axis=1, keepdims=True)
    return directions * np.asarray(HELMET_AXES), normals


def brain_points(count: int, rng: np.random.RandomState) -> Floats:
    """Return `count` points that fill the upper half of a spherical shell evenly, in metres.

    They have shape (count, 3) and follow a quasi-random sequence with a random first point.
    """
    cube = (rng.uniform(size=3) + np.outer(np.arange(count), QUASI_RANDOM_STEPS)) % 1.0
    inner, outer = SOURCE_SHELL
    radius = np.cbrt(inner**3 + cube[:, 0] * (outer**3 - inner**3))
    height, angle = cube[:, 1], 2.0 * np.pi * cube[:, 2]
    ring = np.sqrt(1.0 - height**2)
    directions = np.stack([ring * np.cos(angle), ring * np.sin(angle), height], axis=1)
    return np.asarray(radius[:, None] * directions)


def dominant_orientation(gain: Floats) -> tuple[Floats, Floats]:
    """Return the field of each source in its strongest orientation, and that orientation."""
    left, strength, right = np.linalg.svd(np.moveaxis(gain, 0, 1), full_matrices=False)
    columns = left[:, :, 0] * strength[:, :1]
    peaks = np.take_along_axis(columns, np.argmax(abs(columns), axis=1)[:, None], axis=1)
    signs = np.where(peaks < 0, -1.0, 1.0)
    return (columns * signs).T, right[:, 0, :] * signs


def make_meg_leadfield(
    n_sensors: int = 102,
    n_sources: int = 250,
    *,
    sensors: Any = None,
    sources: Any = None,
    normalize: bool = True,
    return_geometry: bool = False,
    random_state: Any = None,
) -> Any:
    """Compute the MEG lead field: the field of each source in a spherical head at each sensor.

    The sources are current dipoles and the sensors point magnetometers (Sarvas 1987). Each source
    has the tangential orientation with the largest field at the sensors; radial dipoles produce no
    field. The columns of the lead field are strongly correlated; Wipf 2023, Figure 2(c), uses such
    a dictionary.

    Parameters
    ----------
    n_sensors : int, default=102
        Number of magnetometers, spread evenly over a helmet (part of an ellipsoid).
    n_sources : int, default=250
        Number of sources, spread over the upper half of a spherical shell, 3 to 8 cm from the
        centre of the head.
    sensors : pair of array-likes of shape (n_sensors, 3), default=None
        Positions of given magnetometers, in metres from the centre, and their unit normals. The
        argument `n_sensors` is then ignored.
    sources : array-like of shape (n_sources, 3), default=None
        Positions of given sources, in metres from the centre. The argument `n_sources` is then
        ignored.
    normalize : bool, default=True
        Whether to scale every column to unit norm. If False, the unit is teslas per ampere-metre.
    return_geometry : bool, default=False
        Whether to return the positions and orientations as well.
    random_state : int, RandomState instance or None, default=None
        Seed of the random source positions.

    Returns
    -------
    ndarray of shape (n_sensors, n_sources) or MegLeadfield
        The lead field; with ``return_geometry=True`` the named tuple (leadfield, sensor_positions,
        sensor_normals, source_positions, source_orientations).

    References
    ----------
    J. Sarvas, "Basic mathematical and electromagnetic concepts of the biomagnetic inverse
    problem", Physics in Medicine and Biology 32(1), 1987.

    Examples
    --------
    >>> from lucidae.datasets import make_meg_leadfield
    >>> make_meg_leadfield(n_sensors=60, n_sources=100, random_state=0).shape
    (60, 100)
    """
    check_flag(normalize, "normalize")
    check_flag(return_geometry, "return_geometry")
    positions, normals = (
        _given_sensors(sensors)
        if sensors is not None
        else helmet(check_integer(n_sensors, "n_sensors", low=1))
    )
    if sources is None:
        count = check_integer(n_sources, "n_sources", low=1)
        places = brain_points(
            count, check_random_state(check_argument(random_state, "random_state"))
        )
    else:
        places = check_finite(sources, "sources", (None, 3))
    _check_depths(positions, places)
    leadfield, orientations = _strongest_fields(positions, normals, places)
    leadfield = unit_columns(leadfield) if normalize else leadfield
    geometry = MegLeadfield(leadfield, positions, normals, places, orientations)
    return geometry if return_geometry else leadfield


def _strongest_fields(sensors: Floats, normals: Floats, sources: Floats) -> tuple[Floats, Floats]:
    """Return the lead field (n_sensors, n_sources) and the orientations of its sources.

    Raise a ValueError if a field overflows or underflows float64.
    """
    with np.errstate(all="ignore"):
        gain = sarvas_gain(sensors, normals, sources)
    if not np.isfinite(gain).all() or not np.square(gain).any(axis=(0, 2)).all():
        raise ValueError(
            "the field of a source is too large or too small for float64; give positions in "
            "metres, which for a head lie within about 0.3 m of the centre."
        )
    return dominant_orientation(gain)


def _given_sensors(sensors: Any) -> tuple[Floats, Floats]:
    """Return positions and unit normals of the sensors that the user gave as a pair, checked."""
    try:
        positions, normals = sensors
    except (TypeError, ValueError) as error:
        raise ValueError(
            "sensors must be a pair (positions, normals) of arrays of shape (n_sensors, 3)."
        ) from error
    positions = check_finite(positions, "sensor positions", (None, 3))
    normals = check_finite(normals, "sensor normals", (len(positions), 3))
    if not np.allclose(np.linalg.norm(normals, axis=1), 1.0, atol=1e-3):
        raise ValueError("sensor normals must have length one; divide each normal by its norm.")
    return positions, normals


def _check_depths(sensors: Floats, sources: Floats) -> None:
    """Raise a ValueError if a source is as far from the centre as a sensor, or at the centre."""
    with np.errstate(over="ignore"):
        nearest = np.linalg.norm(sensors, axis=1).min()
        depths = np.linalg.norm(sources, axis=1)
    if depths.max() >= nearest:
        raise ValueError(
            f"every source must be nearer to the centre than every sensor; the farthest source "
            f"is at {depths.max():.4g} m, the nearest sensor is at {nearest:.4g} m."
        )
    if depths.min() == 0.0:
        raise ValueError(
            "a source at the centre of the sphere produces no field; move or remove this source."
        )
