"""Simulated training of linear autoencoders: many runs at once, in the eigenbasis of the data.

Gradient descent, heavy ball, Nesterov's method and the update rules commute with a rotation of the
features. In the eigenbasis of the second moment, an epoch with m features and k latents therefore
costs O(mk²) and gives the same trajectory as in the original basis. Adam rescales each coordinate
and is run in the original basis.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np

from lucidae.linear.simulation.ensemble import Ensemble
from lucidae.linear.simulation.runs import Plan, Run, Trajectory

__all__ = ["Plan", "Run", "Trajectory", "epochs_to_alignment", "simulate"]


def simulate(runs: Sequence[Run], plan: Plan) -> list[Trajectory]:
    """Train all runs and return their trajectories, in the given order.

    Runs that share method, optimizer and tying are stepped together, whatever their rates and
    seeds.

    Parameters
    ----------
    runs : sequence of Run
        Method, optimizer, step size, seed and tying of each run.
    plan : Plan
        Spectrum, number of latents and of epochs, and what else the runs share.

    Returns
    -------
    list of Trajectory
        One per run.

    Examples
    --------
    >>> from lucidae.linear import Spectrum
    >>> plan = Plan(Spectrum(np.array([3.0, 1.0]), np.eye(2), 4.0), k=1, n_epochs=200)
    >>> (trajectory,) = simulate([Run("rag", "nesterov", 0.01)], plan)
    >>> bool(trajectory.values["alignment"][-1] < 1e-3)
    True
    """
    results: dict[int, Trajectory] = {}
    for group in _groups(runs):
        ensemble = Ensemble([runs[index] for index in group], plan)
        results |= zip(group, ensemble.record(), strict=True)
    return [results[index] for index in range(len(runs))]


def epochs_to_alignment(
    runs: Sequence[Run], plan: Plan, target: float = 0.3, check_every: int = 10
) -> np.ndarray[Any, Any]:
    """Return how many epochs each run takes to an axis-alignment distance of at most `target`.

    A run is no longer stepped once it has reached the target.

    Parameters
    ----------
    runs, plan
        As for `simulate`.
    target : float, default=0.3
        The distance to reach.
    check_every : int, default=10
        Epochs between two measurements; the result is a multiple of it.

    Returns
    -------
    ndarray of shape (n_runs,)
        NaN for runs that reach the limit of epochs first, or diverge.
    """
    epochs = np.full(len(runs), np.nan)
    for group in _groups(runs):
        ensemble = Ensemble([runs[index] for index in group], plan)
        epochs[group] = ensemble.race(target, check_every)
    return epochs


def _groups(runs: Sequence[Run]) -> list[list[int]]:
    def kind(index: int) -> tuple[str, str, str]:
        return runs[index].method, runs[index].optimizer, str(runs[index].tied)

    return [list(group) for _, group in groupby(sorted(range(len(runs)), key=kind), key=kind)]
