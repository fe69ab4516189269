"""What `sparse_vae` finds, and warns of, where something is wrong with the files it is given.

    python -m benchmarks meg_checks [--recordings 8] [--write docs/benchmarks/meg.md]

Three sources of 989 in a spherical head, free in orientation, 306 sensors, 200 Hz, data from 50 to
300 ms. The noise covariance is that of the baselines of 160 epochs (MNE's "empirical"); all
arguments are the defaults. The data are an average of 40 epochs with moments of 20 nA·m at the
peak, in the lines of sensors shifted by 5 mm single epochs with 30 or 10 nA·m. True are found
sources within 15 mm of simulated ones.
"""

from __future__ import annotations

import argparse
import warnings
from functools import cache
from typing import Any

import mne
import numpy as np
from scipy.signal import butter, sosfiltfilt

from benchmarks._meg_heads import SAMPLING, grid, spherical
from benchmarks._meg_runs import NEAR, matched, orientations, placed, time_courses
from benchmarks._tables import markdown, write_section
from lucidae.mne import sparse_vae

CHECKS: dict[str, dict[str, Any]] = {
    "nothing": {"epochs": 160},
    "sensors shifted 5 mm": {"epochs": 160, "nave": 1, "shift": 5e-3, "moment": 30e-9},
    "sensors shifted 5 mm, 10 nA·m": {"epochs": 160, "nave": 1, "shift": 5e-3, "moment": 10e-9},
    "head position wrong by 10 mm": {"epochs": 160, "shift": 10e-3},
    "head position wrong by 20 mm": {"epochs": 160, "shift": 20e-3},
    **{f"covariance of {count} epochs": {"epochs": count} for count in (15, 25, 40, 80)},
    "low-pass filter, 40 Hz": {"epochs": 160, "low_pass": 40.0},
    "low-pass filter, 20 Hz": {"epochs": 160, "low_pass": 20.0},
    "evoked in fT": {"epochs": 160, "unit": 1e15},
    "evoked and covariance in fT": {"epochs": 160, "unit": 1e15, "noise_unit": 1e15},
}

SAID = {
    "The model does not fit": "misfit",
    "noise_cov was estimated": "few samples of noise_cov",
    "as correlated in time": "filtered noise",
    "the units of MNE": "units",
    "No source was found": "no source",
}
"""Parts of warnings and errors, and what the table calls them."""


@cache
def head(shift: float) -> Any:
    """Return the head with the sensors shifted by some metres."""
    return spherical(True, grid(0.0115), shift)


def recording(
    seed: int, *, epochs: int, nave: int = 40, moment: float = 20e-9, shift: float = 0.0,
    low_pass: float | None = None, unit: float = 1.0, noise_unit: float = 1.0,
) -> tuple[Any, Any, Any, Any]:  # fmt: skip
    """Return evoked, forward, noise covariance, and positions of the sources."""
    rng = np.random.default_rng([seed, 38])
    info, forward = head(0.0)
    truth = head(shift).forward
    chosen = placed(truth["source_rr"], 3, rng)
    fields = np.reshape(truth["sol"]["data"], (len(info["ch_names"]), -1, 3))[:, chosen]
    directions = orientations(fields.transpose(1, 0, 2), None, rng)
    times = np.arange(-0.2, 0.3, 1.0 / SAMPLING)
    courses = np.zeros((3, times.size))
    courses[:, times > 0.049] = time_courses(3, 0.0, rng)
    courses *= moment / np.abs(courses).max(axis=1, keepdims=True)
    scale = np.sqrt(np.asarray(mne.make_ad_hoc_cov(info).data))[:, None]
    noise = scale * rng.standard_normal((epochs, len(scale), times.size))
    data = np.einsum("dso,so,st->dt", fields, directions, courses) + noise
    if low_pass is not None:
        data = sosfiltfilt(butter(4, low_pass, fs=SAMPLING, output="sos"), data)
    every = mne.EpochsArray(data, info, tmin=-0.2)
    noise_cov = mne.compute_covariance(every, tmax=0.0)
    noise_cov["data"] *= noise_unit**2
    evoked = every[:nave].average().crop(0.05)
    evoked.data *= unit
    return evoked, forward, noise_cov, truth["source_rr"][chosen]


def checked(seed: int, settings: dict[str, Any]) -> tuple[str, str, list[str]]:
    """Return the numbers of true and of false sources, and what was said."""
    *data, positions = recording(seed, **settings)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = sparse_vae(*data, return_result=True).positions
            hits = len(matched(positions, found, NEAR)[0])
            counts = str(hits), str(len(found) - hits)
            texts = [str(one.message) for one in caught]
        except ValueError as error:
            counts, texts = ("–", "–"), [str(error)]
    return *counts, [name for part, name in SAID.items() if any(part in text for text in texts)]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="meg_checks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recordings", type=int, default=8, help="recordings of each line")
    parser.add_argument("--write", help="page whose section is replaced by the table")
    options = parser.parse_args()
    mne.set_log_level("ERROR")
    rows = []
    for name, settings in CHECKS.items():
        runs = [checked(seed, settings) for seed in range(options.recordings)]
        said = [one for run in runs for one in run[2]]
        shown = "; ".join(f"{one}: {said.count(one)}" for one in SAID.values() if one in said)
        counts = [", ".join(run[place] for run in runs) for place in (0, 1)]
        rows.append((name, *counts, shown or "none"))
        print(*rows[-1], sep=" | ", flush=True)
    if options.write:
        text = markdown(("what is wrong", "true (of 3)", "false", "warnings"), rows)
        write_section(options.write, "meg checks", text)


if __name__ == "__main__":
    main()
