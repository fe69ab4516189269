"""A real recording: the four conditions of MNE's sample data, with default arguments.

    python -m benchmarks meg_real [--data-path FOLDER] [--figure FILE.png] [--peers]

FOLDER is that of `mne.datasets.sample` (by default the function finds or downloads it), or a folder
with the files ``sample-ave.fif.gz``, ``sample-cov.fif``, ``sample-trans.fif`` and
``sample-bem-sol.fif``. Sources are on a grid of 10 mm in the inner skull, MEG channels only, and
free in orientation. Printed are, for the auditory (70 to 110 ms) and the visual responses (50 to
150 ms), the sources by the power of their fields at the sensors, with positions in the coordinates
of the head in millimetres. The auditory responses are known to come from both superior temporal
planes, near (±50, 5 to 15, 55 to 70) mm, and the visual ones from the back of the head (y < 0).
With `--peers`, a dipole that MNE fits at the peak, the largest peaks of dSPM and eLORETA, and the
sources of `mixed_norm(alpha="sure")` and `gamma_map(alpha=1)` are printed too.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import mne
import numpy as np
from mne.inverse_sparse import gamma_map, mixed_norm

from lucidae.displays import SourceDisplay
from lucidae.mne import sparse_vae

FILES = ("sample-ave.fif.gz", "sample-cov.fif", "sample-trans.fif", "sample-bem-sol.fif")
SAMPLE = (
    "MEG/sample/sample_audvis-ave.fif",
    "MEG/sample/sample_audvis-cov.fif",
    "MEG/sample/sample_audvis_raw-trans.fif",
    "subjects/sample/bem/sample-5120-bem-sol.fif",
)
WINDOWS = {"auditory": (0.07, 0.11), "visual": (0.05, 0.15)}


def paths(folder: Path | None) -> list[Path]:
    """Return the files of evokeds, noise covariance, transformation and head model."""
    folder = Path(mne.datasets.sample.data_path()) if folder is None else folder
    for names in (FILES, SAMPLE):
        found = [folder / name for name in names]
        if all(path.exists() for path in found):
            return found
    raise SystemExit(f"{folder} has neither {', '.join(FILES)} nor {', '.join(SAMPLE)}.")


def listed(positions: Any, powers: Any) -> str:
    """Return positions in millimetres, with the power of each in percent of all of them."""
    shares = 100.0 * np.asarray(powers) / max(float(np.sum(powers)), 1e-300)
    places = [", ".join(f"{1e3 * x:.0f}" for x in place) for place in positions]
    parts = zip(places, shares, strict=True)
    return "; ".join(f"({place}) {share:.0f} %" for place, share in parts)


def peers(evoked: Any, forward: Any, noise_cov: Any, bem: Path, trans: Path) -> None:
    """Print what methods of MNE find, the slow ones last."""
    peak = evoked.get_peak("grad")[1]
    dipole = mne.fit_dipole(evoked.copy().crop(peak, peak), noise_cov, bem, trans)[0]
    print(f"  dipole at {1e3 * peak:.0f} ms: {listed(dipole.pos, dipole.gof)}", flush=True)
    operator = mne.minimum_norm.make_inverse_operator(evoked.info, forward, noise_cov, loose=1.0)
    for method in ("dSPM", "eLORETA"):
        stc = mne.minimum_norm.apply_inverse(evoked, operator, method=method)
        power = np.linalg.norm(stc.data, axis=1)
        found = []
        for _ in range(2):
            found.append(int(np.argmax(power)))
            gaps = np.linalg.norm(forward["source_rr"] - forward["source_rr"][found[-1]], axis=1)
            power[gaps < 0.03] = 0.0
        print(f"  {method}, two peaks: {listed(forward['source_rr'][found], [1, 1])}", flush=True)
    for function, alpha in ((mixed_norm, "sure"), (gamma_map, 1.0)):
        begin = time.process_time()
        dipoles = function(
            evoked, forward, noise_cov, alpha=alpha, loose=1.0, return_as_dipoles=True
        )
        taken = time.process_time() - begin
        dipoles = sorted(dipoles, key=lambda dipole: -float(np.sum(dipole.gof)))
        shown = listed([one.pos[0] for one in dipoles], [float(np.sum(one.gof)) for one in dipoles])
        print(f"  {function.__name__}: {len(dipoles)} sources, {taken:.1f} s: {shown}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data-path", type=Path)
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--peers", action="store_true")
    options = parser.parse_args()
    mne.set_log_level("ERROR")
    evokeds, covariance, trans, bem = paths(options.data_path)
    src = mne.setup_volume_source_space(pos=10.0, bem=bem, mindist=5.0)
    drawn = None
    for evoked in mne.read_evokeds(evokeds, baseline=(None, 0), proj=True):
        window = next(w for name, w in WINDOWS.items() if name in evoked.comment.lower())
        evoked = evoked.pick("meg").crop(*window)
        forward = mne.make_forward_solution(evoked.info, trans, src, bem, eeg=False, mindist=5.0)
        noise_cov = mne.cov.regularize(mne.read_cov(covariance), evoked.info, rank=None)
        begin = time.process_time()
        result = sparse_vae(evoked, forward, noise_cov, return_result=True)
        taken = time.process_time() - begin
        shown = listed(
            [one.position for one in result.found_sources],
            [one.power for one in result.found_sources],
        )
        print(f"{evoked.comment}, {1e3 * window[0]:.0f} to {1e3 * window[1]:.0f} ms", flush=True)
        print(
            f"  sparse_vae: {len(result.found_sources)} sources, {taken:.1f} s, "
            f"{evoked.times.size} samples count as {result.errors.samples:.0f}: {shown}"
        )
        if options.peers:
            peers(evoked, forward, noise_cov, bem, trans)
        drawn = result if drawn is None else drawn
    if options.figure and drawn is not None:
        SourceDisplay.from_result(drawn, path=False).figure_.savefig(options.figure, dpi=120)


if __name__ == "__main__":
    main()
