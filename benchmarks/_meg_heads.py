"""Heads of ``benchmarks/meg.py``: forward models that MNE computes without any downloaded file.

A head is the pair of the measurement info and the forward model (free orientation, in metres and
in the coordinates of the head). The sensors are MNE's canonical Neuromag sensors and a standard
EEG montage. Sources are on a grid in a sphere, on two folded closed surfaces made from an
icosahedron, or on a grid in the inner skull that MNE contains. Heads are written to files once, so
that all methods and all processes use the same numbers, which MNE stores in single precision.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Array = Any

CENTRE = np.array([0.0, 0.0, 0.04])
"""Centre of the spherical head in metres; the sensor array is moved so that it lies around it."""

RADIUS = 0.075
"""Radius of the ball that contains the sources of the spherical head, in metres."""

HOLLOW = 0.025
"""Sources are not nearer to the centre than this; the MEG of a source in the centre is zero."""

SURFACES = {"lh": -1.0, "rh": 1.0}


class Head(NamedTuple):
    """Measurement info and forward model with free orientation."""

    info: Any
    forward: Any


def grid(spacing: float, radius: float = RADIUS, hollow: float = HOLLOW) -> Array:
    """Return the points of a cubic grid in the upper part of a ball around `CENTRE`, in metres.

    Examples
    --------
    >>> points = grid(0.02)
    >>> bool(np.all(np.linalg.norm(points - CENTRE, axis=1) <= RADIUS))
    True
    """
    ticks = np.arange(-radius, radius + spacing / 2, spacing)
    points = np.stack(np.meshgrid(ticks, ticks, ticks, indexing="ij"), axis=-1).reshape(-1, 3)
    distance = np.linalg.norm(points, axis=1)
    inside = (distance <= radius) & (distance >= hollow) & (points[:, 2] >= -0.045)
    return points[inside] + CENTRE


def scattered(count: int, seed: int = 0) -> Array:
    """Return random points in the region of `grid`, which are not on its cubic grid."""
    rng = np.random.default_rng(seed)
    points = rng.uniform(-RADIUS, RADIUS, size=(20 * count, 3))
    distance = np.linalg.norm(points, axis=1)
    inside = (distance <= RADIUS) & (distance >= HOLLOW) & (points[:, 2] >= -0.045)
    return points[inside][:count] + CENTRE


def point_sources(points: Array) -> Any:
    """Return MNE's source space of single points."""
    import mne

    normals = np.tile([0.0, 0.0, 1.0], (len(points), 1))
    return mne.setup_volume_source_space(pos={"rr": points, "nn": normals}, verbose=False)


def folded_surfaces(grade: int) -> Any:
    """Return a surface source space: two folded ellipsoids beside each other, as hemispheres.

    The vertices are those of an icosahedron that was subdivided `grade` times. The radius is
    modulated by waves, so that the normals of the surface take all directions, as in a cortex; the
    radial normals of a sphere would have no magnetic field.
    """
    import mne
    from mne.surface import _get_ico_surface, complete_surface_info

    spaces = []
    for number, side in enumerate(SURFACES.values()):
        ico = _get_ico_surface(grade)
        unit = ico["rr"] / np.linalg.norm(ico["rr"], axis=1)[:, None]
        x, y, z = unit.T
        waves = np.sin(5.0 * np.arctan2(y, x)) * np.sqrt(1.0 - z**2) + np.sin(7.0 * z)
        points = unit * np.array([0.027, 0.058, 0.042]) * (1.0 + 0.12 * waves)[:, None]
        points = points + CENTRE + np.array([side * 0.034, 0.0, 0.005])
        surface = {"rr": points, "tris": ico["tris"], "np": len(points), "ntri": len(ico["tris"])}
        complete_surface_info(surface, copy=False, verbose=False)
        spaces.append(
            {
                "id": 101 + number,
                "type": "surf",
                "coord_frame": mne.io.constants.FIFF.FIFFV_COORD_MRI,
                "rr": points,
                "nn": surface["nn"],
                "tris": surface["tris"],
                "np": len(points),
                "ntri": len(surface["tris"]),
                "nuse": len(points),
                "inuse": np.ones(len(points), int),
                "vertno": np.arange(len(points)),
                "nuse_tri": 0,
                "use_tris": None,
                "nearest": None,
                "nearest_dist": None,
                "pinfo": None,
                "patch_inds": None,
                "dist": None,
                "dist_limit": None,
                "subject_his_id": "simulated",
            }
        )
    return mne.SourceSpaces(spaces)


def magnetic_info(kinds: str | bool, shift: float = 0.0) -> Any:
    """Return the info of the Neuromag sensors of some kinds, with the head `shift` metres away.

    Parameters
    ----------
    kinds : {"mag", "grad", True}
        Magnetometers, gradiometers, or both.
    shift : float
        Length of a shift of the head against the sensors, to the right, the front and above alike.
    """
    import mne

    info = mne.channels.read_meg_canonical_info("neuromag", verbose=False)
    info = mne.pick_info(info, mne.pick_types(info, meg=kinds))
    trans = np.eye(4)
    trans[:3, 3] = CENTRE + shift / np.sqrt(3.0)
    info["dev_head_t"] = mne.Transform("meg", "head", trans)
    with info._unlock():
        info["sfreq"] = SAMPLING
    return info


SAMPLING = 200.0
"""Samples in a second."""


def electric_info() -> Any:
    """Return the info of the 64 electrodes of a standard montage."""
    import mne

    montage = mne.channels.make_standard_montage("biosemi64")
    info = mne.create_info(montage.ch_names, SAMPLING, "eeg", verbose=False)
    return info.set_montage(montage, verbose=False)


def solved(info: Any, sources: Any, conductor: Any, trans: Any = None) -> Head:
    """Return the head with the forward model that MNE computes, with free orientation."""
    import mne

    kinds = mne.channel_type(info, 0)
    forward = mne.make_forward_solution(
        info, trans, sources, conductor, meg=kinds != "eeg", eeg=kinds == "eeg", mindist=0.0,
        verbose=False,
    )  # fmt: skip
    return Head(info, forward)


def spherical(kinds: str | bool, points: Array, shift: float = 0.0) -> Head:
    import mne

    sphere = mne.make_sphere_model(r0=CENTRE, head_radius=None, verbose=False)
    return solved(magnetic_info(kinds, shift), point_sources(points), sphere)


def folded(kinds: str | bool, grade: int) -> Head:
    import mne

    sphere = mne.make_sphere_model(r0=CENTRE, head_radius=None, verbose=False)
    return solved(magnetic_info(kinds), folded_surfaces(grade), sphere)


def layered(spacing: float, skull: float = 0.004) -> Head:
    """Return a head with electrodes on a sphere of four layers; `skull` is its conductivity."""
    import mne

    info = electric_info()
    sphere = mne.make_sphere_model(
        "auto", "auto", info, sigmas=(0.33, 1.0, skull, 0.33), verbose=False
    )
    inner = 0.9 * float(sphere["layers"][0]["rad"])
    points = grid(spacing, radius=inner, hollow=HOLLOW) - CENTRE + sphere["r0"]
    return solved(info, point_sources(points), sphere)


def inner_skull(spacing: float, spherical_model: bool = False) -> Head:
    """Return the head whose conductor is the inner skull that MNE contains, with 642 vertices.

    With `spherical_model` the conductor is a sphere, for the same sources and sensors: a forward
    model with an error, as if no image of the head were available.
    """
    import mne
    from mne.bem import _ico_downsample

    folder = Path(mne.__file__).parent / "data" / "fsaverage"
    trans = mne.read_trans(folder / "fsaverage-trans.fif")  # from the head to the image
    (surface,) = mne.read_bem_surfaces(folder / "fsaverage-inner_skull-bem.fif", verbose=False)
    back = np.linalg.inv(trans["trans"])
    vertices = mne.transforms.apply_trans(back, surface["rr"])
    middle = 0.5 * (vertices.min(axis=0) + vertices.max(axis=0))
    info = magnetic_info("mag")
    info["dev_head_t"]["trans"][:3, 3] = middle
    points = grid(spacing, radius=0.065, hollow=HOLLOW) - CENTRE + middle
    sources = point_sources(mne.transforms.apply_trans(trans, points))
    if spherical_model:
        conductor = mne.make_sphere_model(r0=middle, head_radius=None, verbose=False)
    else:
        fine, surface = surface, _ico_downsample(surface, 3)
        surface.update({key: fine[key] for key in ("id", "coord_frame")}, sigma=0.3)
        conductor = mne.make_bem_solution([surface], verbose=False)
    return solved(info, sources, conductor, trans)


HEADS: dict[str, Callable[[], Head]] = {
    "magnetometers": lambda: spherical("mag", grid(0.0115)),
    "magnetometers, scattered": lambda: spherical("mag", scattered(1000)),
    **{
        f"magnetometers, {shift} mm": partial(spherical, "mag", grid(0.0115), 1e-3 * shift)
        for shift in (2, 3, 5, 6, 8)
    },
    "306 sensors": lambda: spherical(True, grid(0.0115)),
    "8000 sources": lambda: spherical("mag", grid(0.0057)),
    "surface": lambda: folded("mag", 3),
    "electrodes": lambda: layered(0.0115),
    "electrodes, skull": lambda: layered(0.0115, skull=0.008),
    "inner skull": lambda: inner_skull(0.0105),
    "inner skull, sphere": lambda: inner_skull(0.0105, spherical_model=True),
}
"""Functions that compute the heads, by name."""


def file_of(folder: str | os.PathLike[str], name: str) -> Path:
    """Return the file of a head in a folder."""
    return Path(folder) / f"{name.replace(', ', '-').replace(' ', '_')}-fwd.fif"


def prepare(folder: str | os.PathLike[str], name: str) -> Path:
    """Compute a head and write its forward model to a file, unless the file exists.

    The file is complete or absent: it is written under another name, and then renamed.
    """
    import mne

    path = file_of(folder, name)
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    forward = HEADS[name]().forward
    with tempfile.TemporaryDirectory(dir=path.parent) as temporary:
        written = Path(temporary) / path.name
        mne.write_forward_solution(written, forward, verbose=False)
        written.replace(path)
    return path


@cache
def head(folder: str, name: str) -> Head:
    """Return a head from its file, or from a lead field if `name` is a path to an NPZ file."""
    import mne

    if name.endswith(".npz"):
        return from_lead_field(name)
    forward = mne.read_forward_solution(prepare(folder, name), verbose=False)
    if name.startswith("electrodes"):
        return Head(electric_info(), forward)
    info = magnetic_info(True)
    info = mne.pick_info(info, mne.pick_channels(info["ch_names"], forward["sol"]["row_names"]))
    return Head(info, forward)


def from_lead_field(path: str | os.PathLike[str]) -> Head:
    """Return the head of a lead field in an NPZ file.

    Parameters
    ----------
    path : path-like
        File with the arrays ``gain`` of shape (channels, 3 × sources), whose columns are the fields
        of unit dipoles along x, y and z of the first source, then of the second one, and so on;
        and ``positions`` of shape (sources, 3) in metres. Optional: ``kind``, one of "mag", "grad"
        and "eeg" ("mag" if it is absent).
    """
    import mne

    with np.load(path, allow_pickle=False) as arrays:
        missing = {"gain", "positions"} - set(arrays.files)
        if missing:
            raise ValueError(
                f"{path} has the arrays {', '.join(arrays.files)}, but not "
                f"{' and '.join(sorted(missing))}; see `python -m benchmarks meg --help`."
            )
        gain, positions = np.asarray(arrays["gain"], float), np.asarray(arrays["positions"], float)
        kind = str(arrays["kind"]) if "kind" in arrays.files else "mag"
    if gain.ndim != 2 or positions.ndim != 2 or gain.shape[1] != positions.size:
        raise ValueError(
            f"{path}: gain has shape {gain.shape} and positions {positions.shape}; expected "
            "(channels, 3 × sources) and (sources, 3)."
        )
    names = [f"{kind.upper()} {index:04d}" for index in range(len(gain))]
    info = mne.create_info(names, SAMPLING, kind, verbose=False)
    # A forward model of the same sources for other sensors, whose gain is then replaced.
    forward = spherical("mag", positions).forward
    sol = {
        "data": gain,
        "row_names": names,
        "nrow": len(gain),
        "ncol": gain.shape[1],
        "col_names": [],
    }
    forward.update(sol=sol, _orig_sol=gain.copy(), nchan=len(gain))
    with forward["info"]._unlock():
        forward["info"].update(chs=info["chs"], ch_names=names, nchan=len(gain), bads=[])
    return Head(info, forward)
