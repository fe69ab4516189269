"""Simulated training of linear autoencoders: many runs at once, in the eigenbasis of the data.

Gradient descent, heavy ball, Nesterov's method and the update rules commute with a rotation of the
features: training on rotated features gives rotated weights. An epoch with m features and k latents
can therefore be computed in the basis of the eigenvectors of the second moment, where it costs only
O(mk²) operations. Adam rescales each coordinate and is run in the original basis.
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
    """Train a linear autoencoder for each run, and return the recorded trajectories.

    Runs with the same method, optimizer and value of `tied` are computed together as one batch of
    arrays; their step sizes and seeds may differ.

    Parameters
    ----------
    runs : sequence of Run
        Settings of each run: method, optimizer, step size, seed and tied weights.
    plan : Plan
        Settings that all runs share: data, number of latents, number of epochs and others.

    Returns
    -------
    list of Trajectory
        One trajectory per run, in the order of `runs`.

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
    """Return the number of epochs after which each run is aligned with the principal axes.

    A run is aligned when the axis-alignment distance of its decoder
    (`lucidae.metrics.axis_alignment_distance`) is at most `target`. Its training then ends.

    Parameters
    ----------
    runs : sequence of Run
        Settings of each run: method, optimizer, step size, seed and tied weights.
    plan : Plan
        Settings that all runs share: data, number of latents, largest number of epochs and others.
    target : float, default=0.3
        The axis-alignment distance at which a run is aligned, between 0 and 1.
    check_every : int, default=10
        Number of epochs between two measurements of the distance; the result is a multiple of it.

    Returns
    -------
    ndarray of shape (n_runs,)
        The number of epochs of each run; NaN for runs that diverge or are not aligned after
        ``plan.n_epochs`` epochs.
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
