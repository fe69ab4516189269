"""Lead field of magnetoencephalography (MEG) for dipoles in a spherical head (Sarvas 1987).

It is the matrix of the magnetic field of each source in the brain at each sensor.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from sklearn.utils import check_random_state

from lucidae.datasets._generators import Floats, check_finite, unit_columns
from lucidae.validation import check_flag, check_integer, check_seed

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

    Attributes
    ----------
    leadfield : ndarray of shape (n_sensors, n_sources)
        Field of each source at each sensor.
    sensor_positions : ndarray of shape (n_sensors, 3)
        Positions of the sensors relative to the centre of the head.
    sensor_normals : ndarray of shape (n_sensors, 3)
        Unit vectors along which the sensors measure the field.
    source_positions : ndarray of shape (n_sources, 3)
        Positions of the sources relative to the centre of the head.
    source_orientations : ndarray of shape (n_sources, 3)
        Unit vectors in the direction of the sources' dipoles.
    """

    leadfield: Floats
    sensor_positions: Floats
    sensor_normals: Floats
    source_positions: Floats
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

    Parameters
    ----------
    sensors, normals : ndarrays of shape (n_sensors, 3)
        Positions of the sensors in metres, and their unit normals.
    sources : ndarray of shape (n_sources, 3)
        Positions of the dipoles in metres.

    Returns
    -------
    ndarray of shape (n_sensors, n_sources, 3)
        The field in teslas of a dipole of 1 A·m along each of the three axes.
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

    Both have shape (count, 3), positions in metres. The points are a Fibonacci lattice on a sphere:
    equal steps in height cover equal areas, and turning by the golden angle from one point to the
    next spreads them evenly. The lattice is then stretched to the half axes of the ellipsoid, whose
    normal at x is parallel to x divided by the squared half axes.
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
    """Return the field of each source in its strongest orientation, and that orientation.

    Parameters
    ----------
    gain : ndarray of shape (n_sensors, n_sources, 3)
        Fields of unit dipoles along the three axes, see `sarvas_gain`.

    Returns
    -------
    fields : ndarray of shape (n_sensors, n_sources)
        Largest singular value of each source's gain times its left singular vector. The entry of
        largest magnitude of each column is positive.
    orientations : ndarray of shape (n_sources, 3)
        The right singular vectors: the directions of the dipoles with the largest field. They are
        tangential, because radial dipoles produce no field.
    """
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
        places = brain_points(count, check_random_state(check_seed(random_state)))
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
            "the field of a source exceeds the range of float64 or vanishes; give positions in "
            "metres, which for a head lie within about 0.3 m of the centre."
        )
    return dominant_orientation(gain)


def _given_sensors(sensors: Any) -> tuple[Floats, Floats]:
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
            f"is at {depths.max():.4g} m, the nearest sensor at {nearest:.4g} m."
        )
    if depths.min() == 0.0:
        raise ValueError(
            "a source at the centre of the sphere produces no field; move or remove this source."
        )
