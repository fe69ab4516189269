"""Seconds of single calls of `sparse_vae` and of gamma_map, in turn, at the default threads."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from benchmarks._meg_runs import Cell, gamma_map, quiet, simulate
from benchmarks._tables import duration, markdown

CALLS = 5
"""Number of calls of `sparse_vae` in a round, of which the median of the seconds is taken.

Threads that wait for work make single times vary."""

ROUNDS = 5
"""Largest number of rounds on each recording; a round has one call of gamma_map."""

ENOUGH = 12.0
"""Seconds of gamma_map on one recording after which no further round begins."""


def rounds(cell: Cell, seed: int, folder: str) -> list[tuple[float, float]]:
    """Return the seconds of `sparse_vae` and of gamma_map (α = 1, MNE's update_mode=1) by rounds.

    The first are medians; one more call before all others is not counted.
    """
    from lucidae.mne import sparse_vae

    recording = simulate(cell, seed, folder)
    data = (recording.evoked, recording.forward, recording.noise_cov)

    def seconds(call: Callable[[], Any]) -> float:
        begin = time.perf_counter()
        call()
        return time.perf_counter() - begin

    def own() -> Any:
        return sparse_vae(*data, loose=cell.loose, verbose="ERROR")

    def peer() -> Any:
        return gamma_map(recording, cell.loose, 1.0, 1)

    own()
    found: list[tuple[float, float]] = []
    while len(found) < ROUNDS and sum(theirs for _, theirs in found) < ENOUGH:
        median = float(np.median([seconds(own) for _ in range(CALLS)]))
        found.append((median, seconds(peer)))
    return found


def calls(cells: Iterable[Cell], seeds: int, folder: str) -> str:
    """Return the table of `--calls` for the cells with free orientation."""
    rows, medians = [], []
    with quiet(None):
        for cell in cells:
            if cell.loose != 1.0:
                continue
            measured = np.array(
                [pair for seed in range(seeds) for pair in rounds(cell, seed, folder)]
            )
            low, middle, high = np.quantile(measured[:, 1] / measured[:, 0], [0.25, 0.5, 0.75])
            own, peer = np.median(measured, axis=0)
            ranges = f"{low:.3g} to {high:.3g}"
            row = (cell.name, f"{middle:.3g}", ranges, duration(own), duration(peer))
            print(*row, len(measured), sep=" | ", file=sys.stderr, flush=True)
            rows.append((*row, str(len(measured))))
            medians.append(middle)
    if not rows:
        return "No cell has free orientation."
    header = ("cell", "ratio: median", "half of them", "`sparse_vae`", "gamma_map", "calls")
    few = sum(middle < 10.0 for middle in medians)
    return (
        f"{markdown(header, rows)}\n\nMedian of the cells: {np.median(medians):.3g}. "
        f"Smallest: {min(medians):.3g}. Below 10: {few} of {len(medians)} cells."
    )
