"""The protocol of BSI-Zoo, and the figures of `mne.simulation.metrics`, for `sparse_vae`.

    python -m benchmarks meg_zoo [--runs 3] [--folder build/meg] [--write docs/benchmarks/meg.md]

As in BSI-Zoo (github.com/braindatalab/BSI-Zoo), 1, 2, 3 or 5 sources at random vertices of a cortex
have Gaussian amplitudes at 10 independent times, with one component (fixed orientation) or three
(free). The covariance of the noise is a random matrix with the Wishart distribution of as many
degrees of freedom as sensors. With the parameter α, the norm of the noise is (1 − α)/α times that
of the signal. The cortex is the folded surface of `meg` (1284 vertices, 102 magnetometers), because
the lead fields of BSI-Zoo belong to subjects of Cam-CAN.

F1, distance and earth mover's distance are those of BSI-Zoo: F1 is that of the same vertices; the
distance is the mean over the k strongest found sources (k is the true number), which are paired
with the true ones in the order of their vertices; the earth mover's distance is that between the
norms of all amplitudes. From `mne.simulation.metrics` are `f1_score`, `region_localization_error`
and `cosine_score` of the norms of amplitudes over time, at thresholds of 5 %.
"""

from __future__ import annotations

import argparse
from typing import Any

import mne
import numpy as np
import scipy.optimize
import scipy.sparse
from mne.simulation import metrics
from scipy.spatial.distance import cdist
from scipy.stats import wishart

from benchmarks._meg_heads import head, prepare
from benchmarks._meg_runs import Estimate, Recording, gamma_map, ours, quiet
from benchmarks._tables import markdown, write_section

SOURCES = (1, 2, 3, 5)
LEVELS = (0.99, 0.9, 0.8, 0.7, 0.6, 0.5)
TIMES = 10
FIGURES = ("F1", "distance (mm)", "EMD (mm)", "MNE: F1", "MNE: region error (mm)", "MNE: cosine")


def simulated(folder: str, loose: float, count: int, level: float, seed: int) -> Recording:
    """Return a recording by the protocol of BSI-Zoo."""
    rng = np.random.default_rng([seed, count, int(100 * level), int(loose)])
    info, forward = head(folder, "surface")
    gain = np.asarray(forward["sol"]["data"], float).reshape(len(info["ch_names"]), -1, 3)
    if loose == 0.0:
        normals = np.concatenate([space["nn"][space["vertno"]] for space in forward["src"]])
        gain = np.einsum("dso,so->ds", gain, normals)[:, :, None]
    chosen = np.sort(rng.choice(gain.shape[1], count, replace=False))
    amplitudes = 1e-8 * rng.standard_normal((count, gain.shape[2], TIMES))
    signal = np.einsum("dso,sot->dt", gain[:, chosen], amplitudes)
    covariance = wishart(len(gain), np.eye(len(gain))).rvs(random_state=rng)
    noise = np.linalg.cholesky(covariance) @ rng.standard_normal(signal.shape)
    scale = (1.0 - level) / level * np.linalg.norm(signal) / np.linalg.norm(noise)
    evoked = mne.EvokedArray(signal + scale * noise, info, nave=1, verbose=False)
    info["description"] = str(level / (1.0 - level))
    cov = mne.Covariance(scale**2 * covariance, evoked.ch_names, [], [], nfree=10**6, verbose=False)
    positions = forward["source_rr"][chosen]
    return Recording(evoked, forward, cov, positions, np.linalg.norm(amplitudes, axis=1))


def moved_mass(first: Any, second: Any, distances: Any) -> float:
    """Return the earth mover's distance of two distributions of mass, by linear programming."""
    rows, columns = distances.shape
    sums = scipy.sparse.vstack([
        scipy.sparse.kron(scipy.sparse.eye(rows), np.ones((1, columns))),
        scipy.sparse.kron(np.ones((1, rows)), scipy.sparse.eye(columns)),
    ]).tocsr()[:-1]  # fmt: skip
    given = np.concatenate([first / first.sum(), second / second.sum()])[:-1]
    return float(scipy.optimize.linprog(distances.ravel(), A_eq=sums, b_eq=given).fun)


def as_stc(forward: Any, sources: Any, values: Any) -> Any:
    """Return MNE's source estimate of one value for each source."""
    order = np.argsort(sources)
    parts, first = [], 0
    for space in forward["src"]:
        here = sources[order] - first
        parts.append(space["vertno"][here[(here >= 0) & (here < space["nuse"])]])
        first += space["nuse"]
    return mne.SourceEstimate(values[order][:, None], parts, 0.0, 1.0)


def judged(recording: Recording, estimate: Estimate) -> list[float]:
    """Return the `FIGURES` of an estimate; distances are NaN if nothing was found."""
    places = recording.forward["source_rr"]
    true = np.sort(
        [int(np.argmin(np.linalg.norm(places - p, axis=1))) for p in recording.positions]
    )
    sizes = np.linalg.norm(recording.magnitudes, axis=1)
    found, values = estimate.sources, np.linalg.norm(estimate.magnitudes, axis=1)
    if not found.size:
        return [0.0, np.nan, np.nan, 0.0, np.nan, 0.0]
    hits = np.isin(true, found).sum()
    strongest = np.sort(found[np.argsort(-values)[: true.size]])
    pairs = places[true[: strongest.size]] - places[strongest]
    mass = moved_mass(sizes, values, cdist(places[true], places[found]))
    stc, other = as_stc(recording.forward, true, sizes), as_stc(recording.forward, found, values)
    setting = {"per_sample": False, "threshold": "5%"}
    return [
        2.0 * hits / (true.size + found.size),
        1e3 * float(np.linalg.norm(pairs, axis=1).mean()),
        1e3 * mass,
        float(metrics.f1_score(stc, other, **setting)),
        1e3 * float(
            metrics.region_localization_error(stc, other, recording.forward["src"], **setting)
        ),
        float(metrics.cosine_score(stc, other, per_sample=False)),
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="meg_zoo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3, help="recordings of each setting")
    parser.add_argument("--folder", default="build/meg", help="folder of forward models")
    parser.add_argument("--write", help="page whose section is replaced by the table")
    options = parser.parse_args()
    mne.set_log_level("ERROR")
    prepare(options.folder, "surface")
    methods = {
        "lucidae": lambda recording, loose: ours(recording, loose, 1.0),
        "lucidae, exact": lambda recording, loose: ours(
            recording, loose, 1.0, position_error=0, model_error=0, samples="independent"
        ),
        "gamma_map": lambda recording, loose: gamma_map(recording, loose, 1.0, 2),
    }
    rows = []
    for loose, orientation in ((0.0, "fixed"), (1.0, "free")):
        for level in LEVELS:
            for name, method in methods.items():
                found = []
                for count in SOURCES:
                    for seed in range(options.runs):
                        recording = simulated(options.folder, loose, count, level, seed)
                        with quiet():
                            found.append(judged(recording, method(recording, loose)))
                means = np.nanmean(found, axis=0)
                shown = [f"{mean:.2f}" if abs(mean) <= 1 else f"{mean:.1f}" for mean in means]
                rows.append((orientation, f"{level:g}", name, *shown))
                print(*rows[-1], sep=" | ", flush=True)
    text = markdown(("orientation", "α", "method", *FIGURES), rows)
    if options.write:
        write_section(options.write, "meg zoo", text)


if __name__ == "__main__":
    main()
