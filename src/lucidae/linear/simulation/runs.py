"""Settings of simulated training runs, settings that runs share, and recorded trajectories."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lucidae.arrays import Array
from lucidae.iteration import Callback
from lucidae.linear.spectrum import Spectrum


@dataclass(frozen=True, slots=True)
class Run:
    """The settings of one training run.

    Parameters
    ----------
    method : str
        A method of `LinearAutoencoder`.
    optimizer : str
        ``"gradient_descent"``, ``"heavy_ball"``, ``"nesterov"`` or ``"adam"``.
    learning_rate : float
        The step size, in the units of the data.
    seed : int, default=0
        Seed of the first weights.
    tied : bool or "auto", default="auto"
        As in `LinearAutoencoder`; the paper's runs are untied.
    """

    method: str
    optimizer: str
    learning_rate: float
    seed: int = 0
    tied: bool | str = "auto"


@dataclass(frozen=True, slots=True)
class Plan:
    """Settings that all runs of a simulation share.

    Parameters
    ----------
    spectrum : Spectrum
        All m eigenpairs of the second moment. The simulation runs in the library and on the device
        of these arrays.
    k : int
        Number of latents.
    n_epochs : int
        Number of epochs.
    penalties, prior : arrays of shape (k,), optional
        For the ℓ₂ methods and nested dropout; 0.25 for each latent and the geometric prior by
        default.
    init_scale : float, default=1e-4
        Standard deviation of the first weights.
    momentum : float, default=0.9
        For heavy ball and Nesterov.
    rows : array of shape (n, m), optional
        Centred data, for stochastic nested dropout and mini-batches.
    batch_size : int, optional
        Rows per step; an epoch is one pass over all rows. The full batch by default.
    record_at : iterable of int, optional
        Epochs to record; a logarithmic grid by default.
    callbacks : sequence of callable
        Callbacks of the iteration loop.
    """

    spectrum: Spectrum
    k: int
    n_epochs: int
    penalties: Array | None = None
    prior: Array | None = None
    init_scale: float = 1e-4
    momentum: float = 0.9
    rows: Array | None = None
    batch_size: int | None = None
    record_at: Iterable[int] | None = None
    callbacks: Sequence[Callback] = ()


@dataclass(frozen=True, slots=True)
class Trajectory:
    """The recorded trajectory of one run.

    Parameters
    ----------
    run : Run
        The run.
    epochs : ndarray of int
        Recorded epochs.
    values : dict of str to ndarray
        ``alignment``, ``subspace``, ``loss`` and ``imbalance`` at those epochs; NaN after a
        divergence.
    weights : tuple
        The last weights, in the original basis.
    """

    run: Run
    epochs: np.ndarray[Any, Any]
    values: dict[str, np.ndarray[Any, Any]] = field(repr=False)
    weights: Any = field(repr=False, default=None)
