"""Processor seconds of `sparse_vae` and of gamma_map, with one penalty and with all of them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from benchmarks._meg_runs import ALPHAS, Cell, gamma_map, quiet, simulate
from benchmarks._tables import duration, markdown

CALLS = 3
"""Number of calls of `sparse_vae` on each recording, of which the fastest counts.

Other work on the machine makes single calls slower."""


def times(cell: Cell, seed: int, folder: str) -> tuple[float, float, float]:
    """Return the seconds of `sparse_vae`, of gamma_map with α = 1, and of gamma_map with all α.

    One more call of `sparse_vae` before all others is not counted.
    """
    from lucidae.mne import sparse_vae

    recording = simulate(cell, seed, folder)
    data = (recording.evoked, recording.forward, recording.noise_cov)

    def seconds(call: Callable[[], Any]) -> float:
        begin = time.process_time()
        call()
        return time.process_time() - begin

    def own() -> Any:
        return sparse_vae(*data, loose=cell.loose, verbose="ERROR")

    own()
    fastest = min(seconds(own) for _ in range(CALLS))
    peers = {
        alpha: seconds(lambda alpha=alpha: gamma_map(recording, cell.loose, alpha, 1))
        for alpha in ALPHAS
    }
    return fastest, peers[1.0], sum(peers.values())


def calls(cells: Iterable[Cell], seeds: int, folder: str) -> str:
    """Return the table of `--calls`."""
    rows, ratios = [], []
    with quiet():
        for cell in cells:
            measured = np.array([times(cell, seed, folder) for seed in range(seeds)])
            ratios.append(np.median(measured[:, 1:] / measured[:, :1], axis=0))
            shown = [duration(value) for value in np.median(measured, axis=0)]
            rows.append((cell.name, *shown, *(f"{ratio:.3g}" for ratio in ratios[-1])))
            print(*rows[-1], sep=" | ", file=sys.stderr, flush=True)
    names = ("α = 1", f"all {len(ALPHAS)} α")
    header = (
        "cell", "`sparse_vae`", *(f"gamma_map, {name}" for name in names),
        *(f"ratio, {name}" for name in names),
    )  # fmt: skip
    found = [
        f"With {name} the median of the cells is {np.median(column):.2g}, the smallest "
        f"{column.min():.2g}, and {np.sum(column < 10.0)} of {len(column)} cells are below 10."
        for name, column in zip(names, np.transpose(ratios), strict=True)
    ]
    return f"{markdown(header, rows)}\n\n{' '.join(found)}"
