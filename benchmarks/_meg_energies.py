"""Energies of gamma_map and of `SparseVAE` on the same whitened problems, with their times.

The two minimise the same energy if the three columns of a source share one prior variance: per
sample, log|Σ| + tr(Σ⁻¹MMᵀ)/n for n samples M of the whitened sensors with the covariance Σ =
G diag(w) Gᵀ + αI, where G is the whitened gain, w are the prior variances and α is the noise
variance. The seconds of `SparseVAE` until its energy is at most that of gamma_map are those of the
fit with the fewest iterations (`max_iter`) that ends there.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from benchmarks._meg_runs import Array, Cell, quiet, simulate
from benchmarks._tables import duration, markdown
from lucidae import SparseVAE
from lucidae.mne.problem import EvokedProblem

MODES = (1, 2)
"""The values of `update_mode` of gamma_map that are run."""

ENERGY_CELLS = (
    "base", "0 dB", "20 dB", "its covariance estimated", "sources between grid points",
    "inner skull (BEM)", "306 sensors", "8000 sources", "EEG",
)  # fmt: skip

HEADER = (
    "cell",
    *(f"gamma_map {mode}: energy above ours" for mode in MODES),
    *(f"gamma_map {mode}: seconds" for mode in MODES),
    "ours: seconds",
    "ours: seconds to the energy of gamma_map",
    "ratio",
)


class Comparison(NamedTuple):
    """What was measured on one recording: energies per sample above ours, and seconds."""

    above: list[float]
    theirs: list[float]
    ours: float
    same: float


def whitened(cell: Cell, seed: int, folder: str) -> tuple[Array, Array]:
    """Return the gain and the samples of a recording, prepared as gamma_map prepares them."""
    recording = simulate(cell, seed, folder)
    problem = EvokedProblem.of(
        recording.evoked, recording.forward, recording.noise_cov, loose=cell.loose, depth=0.8,
        rank=None, pick_ori=None, weights=None, weights_min=0.0, nave=1,
    )  # fmt: skip
    return problem.gain, problem.responses


def energy(gain: Array, samples: Array, variances: Array, noise: float) -> float:
    """Return the energy per sample at the given prior variances of the columns of the gain."""
    covariance = (gain * variances) @ gain.T + noise * np.eye(len(gain))
    lower = np.linalg.cholesky(covariance)
    residual = np.linalg.solve(lower, samples)
    fit = float(np.sum(residual**2)) / samples.shape[1]
    return fit + 2.0 * float(np.sum(np.log(np.diagonal(lower))))


def variances_of(
    gain: Array, samples: Array, found: Array, active: Array, noise: float, size: int
) -> Array:
    """Return the prior variances to which amplitudes belong as a posterior mean.

    The amplitudes of a source are its prior variance w times the product of its columns with Σ⁻¹M,
    which is also that with the residual divided by the noise variance.
    """
    amplitudes = np.zeros((gain.shape[1], samples.shape[1]))
    amplitudes[active] = found
    slopes = gain.T @ (samples - gain @ amplitudes) / noise
    norms = [np.linalg.norm(part.reshape(len(part) // size, -1), axis=1)
             for part in (amplitudes, slopes)]  # fmt: skip
    return np.repeat(norms[0] / np.where(norms[0] > 0, norms[1], 1.0), size)


def fitted(gain: Array, samples: Array, noise: float, size: int, steps: int) -> tuple[Any, float]:
    """Return `SparseVAE` after at most `steps` iterations, and its processor seconds."""
    model = SparseVAE(
        groups=size, noise_variance=noise, fit_intercept=False, max_iter=steps,
        group_covariance="spherical",
    )  # fmt: skip
    begin = time.process_time()
    model.fit(gain, samples)
    return model, time.process_time() - begin


def compared(cell: Cell, seed: int, folder: str, noise: float = 1.0) -> Comparison:
    """Return the energies and seconds of gamma_map and of `SparseVAE` on one recording."""
    import mne
    from mne.inverse_sparse._gamma_map import _gamma_map_opt

    size = 3 if cell.loose else 1
    with quiet(), mne.use_log_level("ERROR"):
        gain, samples = whitened(cell, seed, folder)
        fitted(gain, samples, noise, size, 1)  # imports and memory are not timed
        model, ours = fitted(gain, samples, noise, size, 1000)
        best = energy(gain, samples, np.asarray(model.relevance_), noise)
        above, theirs = [], []
        for mode in MODES:
            begin = time.process_time()
            found, active = _gamma_map_opt(
                samples, gain, noise, maxit=10_000, tol=1e-6, update_mode=mode, group_size=size,
                verbose="ERROR",
            )  # fmt: skip
            theirs.append(time.process_time() - begin)
            variances = variances_of(gain, samples, found, active, noise, size)
            above.append(energy(gain, samples, variances, noise) - best)
        target = min(above) + best
        for steps in range(1, int(model.n_iter_) + 1):
            model, same = fitted(gain, samples, noise, size, steps)
            if energy(gain, samples, np.asarray(model.relevance_), noise) <= target:
                return Comparison(above, theirs, ours, same)
    return Comparison(above, theirs, ours, np.nan)


def energies(cells: Iterable[Cell], seeds: int, folder: str) -> str:
    """Return a table of medians over the seeds, and a sentence about it."""
    rows, ratios, lowest = [], [], np.inf
    for cell in cells:
        runs = [compared(cell, seed, folder) for seed in range(seeds)]
        above, theirs = (np.median([getattr(run, name) for run in runs], axis=0)
                         for name in ("above", "theirs"))  # fmt: skip
        # Of the two modes, the one that ends at the lower energy sets the target.
        quotients = [run.theirs[int(np.argmin(run.above))] / run.same for run in runs]
        ours, same = (float(np.median([getattr(run, name) for run in runs]))
                      for name in ("ours", "same"))  # fmt: skip
        ratios.append(float(np.median(quotients)))
        lowest = min(lowest, *(min(run.above) for run in runs))
        rows.append((
            cell.name, *(f"{value:+.2f}" for value in above), *map(duration, theirs),
            duration(ours), duration(same), f"{ratios[-1]:.2g}",
        ))  # fmt: skip
        print(*rows[-1], sep="  ", flush=True)
    return (
        f"{markdown(HEADER, rows)}\n\nMedians over {seeds} recordings at α = γ = 1, with one "
        "variance for each source; energies per sample. The last two columns take the update mode "
        "of gamma_map that ends at the lower energy, and the ratio is its seconds divided by ours "
        f"(median of the cells: {np.median(ratios):.2g}). The smallest difference of energies on "
        f"any recording is {lowest:+.2f}."
    )
