"""Simulate the training of linear autoencoders: many runs at once, exact, in the eigenbasis.

Gradient descent, heavy ball, Nesterov and the rules commute with a rotation of the features, so
in the eigenbasis of Σ an epoch costs O(mk²) and gives the same trajectory as a step on the data.
Adam works coordinate by coordinate and is run in the original basis.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np

from lucidae.linear.simulation.ensemble import Crew
from lucidae.linear.simulation.runs import Plan, Run, Trajectory

__all__ = ["Plan", "Run", "Trajectory", "epochs_to_alignment", "simulate"]


def simulate(runs: Sequence[Run], plan: Plan) -> list[Trajectory]:
    """Train all runs and return their trajectories, in the given order.

    Runs that share method, optimizer and tying are stepped together, whatever their rates and
    seeds.
    """
    results: dict[int, Trajectory] = {}
    for group in _groups(runs):
        crew = Crew([runs[index] for index in group], plan)
        results |= zip(group, crew.record(), strict=True)
    return [results[index] for index in range(len(runs))]


def epochs_to_alignment(
    runs: Sequence[Run], plan: Plan, target: float = 0.3, check_every: int = 10
) -> np.ndarray[Any, Any]:
    """Return how many epochs each run needs to an axis-alignment distance of `target`.

    Runs leave as they arrive. The answer is exact to `check_every` epochs; NaN where the limit
    of epochs came first or the run diverged.
    """
    epochs = np.full(len(runs), np.nan)
    for group in _groups(runs):
        crew = Crew([runs[index] for index in group], plan)
        epochs[group] = crew.race(target, check_every)
    return epochs


def _groups(runs: Sequence[Run]) -> list[list[int]]:
    def kind(index: int) -> tuple[str, str, str]:
        return runs[index].method, runs[index].optimizer, str(runs[index].tied)

    return [list(group) for _, group in groupby(sorted(range(len(runs)), key=kind), key=kind)]
