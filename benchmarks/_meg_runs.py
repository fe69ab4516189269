"""Simulated recordings, methods and figures of merit of ``benchmarks/meg.py``.

This module is imported by worker processes; the command, its tables and plots are in ``meg.py``.
"""

from __future__ import annotations

import importlib
import json
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.signal import lfilter
from scipy.spatial.distance import cdist
from threadpoolctl import threadpool_limits

from benchmarks._meg_heads import SAMPLING, head
from lucidae.io import atomic_path

Array = Any

SAMPLES = 50
APART = 0.03
"""Smallest distance of two simulated sources, in metres; peaks are at least as far apart."""

NEAR = 0.015
"""A found source this near to a simulated one, in metres, counts as found."""

FARTHEST = 0.05
"""Largest localisation error that is counted, in metres; also that of a missing source."""

NEGLIGIBLE = 0.05
"""Found sources of smaller strength, relative to the strongest one, are left out."""

ALPHAS = (0.3, 1.0, 3.0, 10.0)
"""Noise variances of the whitened data that gamma_map is given; the best one is kept."""

TIME_FREQUENCY_ALPHAS = (40.0, 50.0, 60.0, 70.0, 80.0)
"""Penalties of tf_mixed_norm, in percent of the largest one; the best one is kept."""

IMPORTED = ("lucidae.mne", "mne.inverse_sparse", "mne.minimum_norm")
"""Modules that are imported before the time of a method is taken."""

VERSION = 4
"""Version of the computation; stored results of another version are not used.

Since version 3 the fastest of equally good settings is the best one."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One line of the table: the base setting with one factor changed.

    Parameters
    ----------
    name : str
        What is changed.
    factor : str
        Name of the factor.
    model : str
        Head whose forward model is used to find the sources, or path to a lead field (NPZ).
    truth : str
        Head whose forward model is used to simulate; empty for `model`.
    sources : int
        Number of simulated sources.
    correlation : float
        Correlation of the time courses of each pair of sources.
    snr : float
        Signal-to-noise ratio of the whitened data in decibels.
    noise : {"white", "in space", "estimated", "in time"}
        White noise; noise that is correlated over the sensors, whose covariance is known or
        estimated; or noise that is correlated over time.
    loose : float
        1 for free orientation, 0 for that of the surface's normals.
    """

    name: str
    factor: str
    model: str = "magnetometers"
    truth: str = ""
    sources: int = 3
    correlation: float = 0.0
    snr: float = 10.0
    noise: str = "white"
    loose: float = 1.0


CELLS = (
    Cell("base", "base"),
    *(Cell(f"{k} source{'s' if k > 1 else ''}", "sources", sources=k) for k in (1, 2, 4, 5)),
    *(Cell(f"correlation {rho:g}", "correlation", correlation=rho) for rho in (0.5, 0.9, 0.99)),
    *(Cell(f"{snr:g} dB", "SNR", snr=snr) for snr in (0.0, 5.0, 15.0, 20.0)),
    Cell("noise correlated in space", "noise", noise="in space"),
    Cell("its covariance estimated", "noise", noise="estimated"),
    Cell("noise correlated in time", "noise", noise="in time"),
    Cell("sources between grid points", "forward", truth="magnetometers, scattered"),
    *(
        Cell(f"sensors shifted {size} mm", "forward", truth=f"magnetometers, {size} mm")
        for size in (2, 3, 5, 6, 8)
    ),
    Cell("shifted 5 mm, 20 dB", "forward", truth="magnetometers, 5 mm", snr=20.0),
    Cell("between grid points, 20 dB", "forward", truth="magnetometers, scattered", snr=20.0),
    Cell("inner skull (BEM)", "head", model="inner skull"),
    Cell(
        "BEM, inverted with a sphere", "forward", model="inner skull, sphere", truth="inner skull"
    ),
    Cell("surface, free orientation", "head", model="surface"),
    Cell("surface, fixed orientation", "head", model="surface", loose=0.0),
    Cell("306 sensors", "head", model="306 sensors"),
    Cell("8000 sources", "head", model="8000 sources"),
    Cell("EEG", "head", model="electrodes"),
    Cell("EEG, skull conducts twice", "forward", model="electrodes", truth="electrodes, skull"),
)


class Recording(NamedTuple):
    """A simulated evoked response, what methods are given, and the truth."""

    evoked: Any
    forward: Any
    noise_cov: Any
    positions: Array
    magnitudes: Array

    @property
    def snr(self) -> float:
        """Amplitude ratio of signal and noise that minimum-norm methods are given."""
        return float(self.evoked.info["description"])


class Estimate(NamedTuple):
    """Indices of the found sources, and the norm of each source's current at each time."""

    sources: Array
    magnitudes: Array


# Simulation.


def time_courses(count: int, correlation: float, rng: np.random.Generator) -> Array:
    """Return windowed oscillations as rows of unit norm, each pair with the given correlation."""
    times = np.arange(SAMPLES) / SAMPLING
    rows = []
    for _ in range(count + 1):
        centre, width = rng.uniform(0.08, 0.17), rng.uniform(0.03, 0.06)
        wave = np.cos(2 * np.pi * (rng.uniform(6.0, 25.0) * times + rng.uniform()))
        rows.append(wave * np.exp(-(((times - centre) / width) ** 2)))
    own = np.linalg.qr(np.array(rows).T)[0].T
    return np.sqrt(correlation) * own[:1] + np.sqrt(1.0 - correlation) * own[1:]


def placed(points: Array, count: int, rng: np.random.Generator) -> Array:
    """Return indices of random points that are at least `APART` from each other."""
    chosen: list[int] = []
    for candidate in rng.permutation(len(points)):
        if all(np.linalg.norm(points[candidate] - points[other]) >= APART for other in chosen):
            chosen.append(int(candidate))
        if len(chosen) == count:
            return np.array(chosen)
    raise ValueError(f"No {count} sources that are {1000 * APART:g} mm apart were found.")


def noise_covariance(kind: str, gain: Array, scale: Array, rng: np.random.Generator) -> Array:
    """Return the noise covariance: diagonal, or mostly that of 200 random sources.

    `scale` has the standard deviations of the noise, one for each sensor.
    """
    if kind not in ("in space", "estimated"):
        return np.diag(scale**2)
    parts = (gain / scale[:, None])[:, rng.choice(gain.shape[1], 200, replace=False)]
    brain = parts @ parts.T
    brain *= len(scale) / np.trace(brain)
    return (0.3 * np.eye(len(scale)) + 0.7 * brain) * np.outer(scale, scale)


def noise_samples(kind: str, factor: Array, rng: np.random.Generator, count: int) -> Array:
    """Return samples of noise with the covariance of `factor` times its transpose."""
    if kind != "in time":
        return factor @ rng.standard_normal((len(factor), count))
    memory, run_in = 0.8, 50
    white = rng.standard_normal((len(factor), count + run_in))
    samples = np.sqrt(1.0 - memory**2) * lfilter([1.0], [1.0, -memory], white, axis=1)
    return factor @ samples[:, run_in:]


def orientations(gain: Array, normals: Array | None, rng: np.random.Generator) -> Array:
    """Return a unit vector for each source: its normal, or a random direction that is seen.

    A random direction is in the plane of the two directions with the strongest field, because the
    sensors do not see the third direction of a spherical head.
    """
    if normals is not None:
        return normals
    vectors = np.linalg.svd(gain, full_matrices=False)[2][:, :2]
    turns = rng.uniform(0.0, 2.0 * np.pi, len(gain))
    return np.cos(turns)[:, None] * vectors[:, 0] + np.sin(turns)[:, None] * vectors[:, 1]


def simulate(cell: Cell, seed: int, folder: str) -> Recording:
    """Return the recording of a cell and a seed, which is the same for all methods."""
    import mne

    rng = np.random.default_rng([seed, 16])
    info, model = head(folder, cell.model)
    truth = head(folder, cell.truth).forward if cell.truth else model
    gain = np.asarray(truth["sol"]["data"], dtype=float)
    fields = gain.reshape(len(gain), -1, 3).transpose(1, 0, 2)
    points = truth["source_rr"]
    ad_hoc = mne.make_ad_hoc_cov(info, verbose=False)
    scale = np.sqrt(np.asarray(ad_hoc.data))
    covariance = noise_covariance(cell.noise, gain, scale, rng)
    factor = np.linalg.cholesky(covariance)
    chosen = placed(points, cell.sources, rng)
    normals = None
    if cell.loose == 0.0:
        normals = np.concatenate([space["nn"][space["vertno"]] for space in truth["src"]])[chosen]
    directions = orientations(fields[chosen], normals, rng)
    courses = time_courses(cell.sources, cell.correlation, rng)
    signal = np.zeros((len(gain), SAMPLES))
    sizes = np.exp(0.25 * rng.standard_normal(cell.sources))
    for place, (field, direction) in enumerate(zip(fields[chosen], directions, strict=True)):
        sizes[place] /= np.linalg.norm(np.linalg.solve(factor, field @ direction))
        signal += np.outer(field @ direction, sizes[place] * courses[place])
    power = np.linalg.norm(np.linalg.solve(factor, signal)) ** 2 / signal.size
    level = np.sqrt(10.0 ** (cell.snr / 10.0) / power)
    samples, count = noise_samples(cell.noise, factor, rng, SAMPLES), 10**6
    if cell.noise == "estimated":
        before = noise_samples(cell.noise, factor, rng, 5 * len(factor))
        count = before.shape[1]
        covariance = before @ before.T / count
    info = info.copy()
    info["description"] = str(float(np.sqrt(10.0 ** (cell.snr / 10.0))))
    evoked = mne.EvokedArray(level * signal + samples, info, tmin=0.0, nave=1, verbose=False)
    if "eeg" in evoked:
        evoked.set_eeg_reference(projection=True, verbose=False)
    noise_cov = mne.Covariance(covariance, evoked.ch_names, [], [], nfree=count, verbose=False)
    magnitudes = np.abs(level * sizes[:, None] * courses)
    return Recording(evoked, model, noise_cov, points[chosen], magnitudes)


# Figures of merit.


def matched(positions: Array, found: Array, limit: float) -> tuple[Array, Array, Array]:
    """Return pairs of true and found points within `limit` of each other, and their distances.

    As many pairs as possible are formed, and among these choices that of least total distance.
    """
    distances = cdist(positions, found)
    near = distances <= limit
    rows, columns = linear_sum_assignment(np.where(near, distances, 1.0e3))
    kept = near[rows, columns]
    rows, columns = rows[kept], columns[kept]
    return rows, columns, distances[rows, columns]


def figures(
    positions: Array, magnitudes: Array, found: Array, estimated: Array, strengths: Array
) -> dict[str, float]:
    """Return the figures of merit of one estimate.

    Parameters
    ----------
    positions : array of shape (k, 3)
        Positions of the simulated sources in metres.
    magnitudes : array of shape (k, n_times)
        Norms of their currents.
    found : array of shape (m, 3)
        Positions of the found sources.
    estimated : array of shape (m, n_times)
        Norms of their currents; NaN if the method does not estimate them.
    strengths : array of shape (m,)
        Strengths of the found sources, of which the k largest give the localisation error.

    Returns
    -------
    dict
        ``localisation`` in millimetres, ``f1``, ``spurious``, ``amplitude`` (relative error) and
        the number of ``found`` sources.
    """
    count = len(positions)
    strongest = found[np.argsort(-strengths, kind="stable")[:count]]
    errors = np.full(count, FARTHEST)
    rows, _, distances = matched(positions, strongest, FARTHEST)
    errors[rows] = distances
    rows, columns, _ = matched(positions, found, NEAR)
    amplitude = np.ones(count)
    for row, column in zip(rows, columns, strict=True):
        difference = np.linalg.norm(estimated[column] - magnitudes[row])
        amplitude[row] = difference / np.linalg.norm(magnitudes[row])
    if estimated.size and np.all(np.isnan(estimated)):
        amplitude[:] = np.nan
    return {
        "localisation": 1000.0 * float(np.mean(errors)),
        "f1": 2.0 * len(rows) / (count + len(found)),
        "spurious": float(len(found) - len(rows)),
        "amplitude": float(np.mean(amplitude)),
        "found": float(len(found)),
    }


def judged(recording: Recording, estimate: Estimate) -> dict[str, float]:
    """Return the figures of merit of an estimate, without its negligible sources.

    The strength of a source is the norm of its current over time times the norm of its whitened
    field. Peaks have no currents; they are in the order of their strengths.
    """
    gain = np.asarray(recording.forward["sol"]["data"], dtype=float)
    whitened = gain / np.sqrt(np.diag(np.atleast_2d(recording.noise_cov.data)))[:, None]
    norms = np.linalg.norm(whitened.reshape(len(gain), -1, 3), axis=(0, 2))
    strengths = np.linalg.norm(estimate.magnitudes, axis=1) * norms[estimate.sources]
    if np.any(np.isnan(strengths)):
        strengths = np.arange(len(strengths), 0, -1) / len(strengths)
    kept = strengths >= NEGLIGIBLE * strengths.max(initial=0.0)
    found = figures(
        recording.positions,
        recording.magnitudes,
        recording.forward["source_rr"][estimate.sources[kept]],
        estimate.magnitudes[kept],
        strengths[kept],
    )
    return {**found, "returned": float(len(kept))}


# Methods.


def ours(recording: Recording, loose: float, gamma: Any, **errors: Any) -> Estimate:
    from lucidae.mne import sparse_vae

    result = sparse_vae(
        recording.evoked, recording.forward, recording.noise_cov,
        loose=loose, noise_variance=gamma, return_result=True, verbose="ERROR", **errors,
    )  # fmt: skip
    return Estimate(result.sources, np.linalg.norm(result.amplitudes, axis=1))


def of_stc(recording: Recording, stc: Any) -> Estimate:
    """Return the estimate of a sparse source estimate of MNE."""
    vertices = stc.vertices if isinstance(stc.vertices, list) else [stc.vertices]
    found, before = [], 0
    for space, used in zip(recording.forward["src"], vertices, strict=True):
        found.append(before + np.searchsorted(space["vertno"], used))
        before += space["nuse"]
    return Estimate(np.concatenate(found).astype(int), np.abs(stc.data))


def gamma_map(recording: Recording, loose: float, alpha: float, mode: int) -> Estimate:
    return inverted("gamma_map", recording, loose, alpha=alpha, update_mode=mode)


def mixed_norm(recording: Recording, loose: float) -> Estimate:
    return inverted("mixed_norm", recording, loose, alpha="sure", **seeded())


def tf_mixed_norm(recording: Recording, loose: float, alpha: float) -> Estimate:
    settings = {"l1_ratio": 0.05, "wsize": 16, "tstep": 4}
    return inverted("tf_mixed_norm", recording, loose, alpha=alpha, **settings)


def inverted(name: str, recording: Recording, loose: float, **settings: Any) -> Estimate:
    """Return the sources that a function of `mne.inverse_sparse` finds."""
    import mne.inverse_sparse

    data = (recording.evoked, recording.forward, recording.noise_cov)
    function = getattr(mne.inverse_sparse, name)
    try:
        stc = function(*data, loose=loose, verbose="ERROR", **settings)
    except Exception as error:  # MNE raises a bare Exception here
        if "No active dipoles" not in str(error):
            raise
        return Estimate(np.zeros(0, int), np.zeros((0, SAMPLES)))
    return of_stc(recording, stc)


def seeded() -> dict[str, int]:
    """Return the argument that seeds `mixed_norm`, whose name has changed in version 1.13."""
    import inspect

    from mne.inverse_sparse import mixed_norm

    names = inspect.signature(mixed_norm).parameters
    return {"rng": 0} if "rng" in names else {"random_state": 0}


def peaks(recording: Recording, loose: float, method: str) -> Estimate:
    """Return as many peaks of a distributed estimate as there are simulated sources.

    The largest value of its root mean square over time is the first peak; the largest one at least
    `APART` from it the second, and so on. The regularisation is that of the true ratio of signal
    and noise.
    """
    import mne

    operator = mne.minimum_norm.make_inverse_operator(
        recording.evoked.info, recording.forward, recording.noise_cov,
        loose=loose, fixed=loose == 0.0, verbose="ERROR",
    )  # fmt: skip
    stc = mne.minimum_norm.apply_inverse(
        recording.evoked, operator, lambda2=1.0 / recording.snr**2, method=method, verbose="ERROR"
    )
    points = recording.forward["source_rr"]
    power = np.linalg.norm(stc.data, axis=1)
    chosen: list[int] = []
    while len(chosen) < len(recording.positions) and np.any(power > 0.0):
        chosen.append(int(np.argmax(power)))
        power[np.linalg.norm(points - points[chosen[-1]], axis=1) < APART] = 0.0
    return Estimate(np.array(chosen, dtype=int), np.full((len(chosen), SAMPLES), np.nan))


@dataclass(frozen=True, slots=True)
class Method:
    """A method of the table.

    Parameters
    ----------
    estimate : callable
        Function of a recording, the orientation and one of `settings`.
    settings : tuple
        Settings of which the one with the best figures is kept, with the truth known.
    cost : int
        Rank of the time that it takes; cheap methods are run first.
    note : str
        What the table says below it.
    """

    estimate: Callable[..., Estimate]
    settings: tuple[tuple[Any, ...], ...] = ((),)
    cost: int = 0
    note: str = ""


METHODS = {
    "lucidae": Method(ours, ((1.0,),), note="`sparse_vae` with its defaults"),
    "lucidae, exact": Method(
        partial(ours, position_error=0, model_error=0, samples="independent"), ((1.0,),),
        note="`position_error=0, model_error=0, samples=\"independent\"`",
    ),
    "lucidae, learn": Method(
        ours, (("learn",),), cost=1, note='`sparse_vae` with `noise_variance="learn"`'
    ),
    "gamma_map 1": Method(
        gamma_map, tuple((alpha, 1) for alpha in ALPHAS), cost=1,
        note=f"`update_mode=1`, the best of α = {', '.join(f'{a:g}' for a in ALPHAS)}",
    ),
    "gamma_map 2": Method(
        gamma_map, tuple((alpha, 2) for alpha in ALPHAS), cost=1,
        note="`update_mode=2`, the best of the same α",
    ),
    "mixed_norm": Method(mixed_norm, cost=1, note='`alpha="sure"`'),
    "tf_mixed_norm": Method(
        tf_mixed_norm, tuple((alpha,) for alpha in TIME_FREQUENCY_ALPHAS), cost=1,
        note=f"the best of α = {', '.join(f'{a:g}' for a in TIME_FREQUENCY_ALPHAS)}",
    ),
    "dSPM": Method(peaks, (("dSPM",),), note="as many peaks as there are sources"),
    "eLORETA": Method(peaks, (("eLORETA",),), note="as many peaks as there are sources"),
}  # fmt: skip


# Runs.


@contextmanager
def quiet(threads: int | None = 1) -> Iterator[None]:
    """Ignore warnings, and limit the threads of linear algebra; None leaves them as they are."""
    with warnings.catch_warnings(), threadpool_limits(threads):
        warnings.simplefilter("ignore")
        yield


def merit(found: dict[str, Any]) -> tuple[float, float, float]:
    """Return numbers by which settings of a method are compared; the largest is the best.

    F1 decides, then the localisation. Among equally good settings the fastest is the best, so that
    a method that is slow with some of them is not judged by these.

    Examples
    --------
    >>> slow = {"f1": 1.0, "localisation": 0.0, "seconds": 2.0}
    >>> merit({**slow, "seconds": 0.3}) > merit(slow) > merit({**slow, "f1": 0.8, "seconds": 0.1})
    True
    """
    return round(found["f1"], 6), -round(found["localisation"], 3), -found["seconds"]


def measured(cell: Cell, seed: int, name: str, folder: str) -> dict[str, Any]:
    """Return the figures of merit of a method on one recording, and its processor seconds.

    They are those of the best setting by `merit`.
    """
    found: list[dict[str, Any]] = []
    with quiet():
        for module in IMPORTED:
            importlib.import_module(module)
        recording = simulate(cell, seed, folder)
        for setting in METHODS[name].settings:
            begin = time.process_time()
            estimate = METHODS[name].estimate(recording, cell.loose, *setting)
            seconds = time.process_time() - begin
            figures = judged(recording, estimate)
            found.append({**figures, "seconds": seconds, "setting": list(setting)})
    return max(found, key=merit)


def slug(text: str) -> str:
    """Return a text as part of a file's name."""
    return "".join(letter if letter.isalnum() else "-" for letter in text)


def result_path(folder: str, cell: Cell, seed: int, name: str) -> Path:
    return Path(folder) / "runs" / f"{slug(cell.name)}_{seed}_{slug(name)}.json"


def stored(folder: str, cell: Cell, seed: int, name: str) -> dict[str, Any] | None:
    """Return a stored result, or None if there is none of this setting and version."""
    path = result_path(folder, cell, seed, name)
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    same = result.get("version") == VERSION and result.get("settings") == asdict(cell)
    return result if same else None


def run(folder: str, cell: Cell, seed: int, name: str, deadline: float) -> dict[str, Any] | None:
    """Return a result, from its file if there is one; None if it is later than `deadline`.

    A failure of a method is a result too, with the message of the error.
    """
    known = stored(folder, cell, seed, name)
    if known is not None:
        return known
    if time.time() > deadline:
        return None
    result: dict[str, Any] = {
        "version": VERSION,
        "settings": asdict(cell),
        "cell": cell.name,
        "seed": seed,
        "method": name,
    }
    try:
        result |= measured(cell, seed, name, folder)
    except Exception as error:
        result["error"] = f"{type(error).__name__}: {error}"
    path = result_path(folder, cell, seed, name)
    text = json.dumps(result)
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return result
