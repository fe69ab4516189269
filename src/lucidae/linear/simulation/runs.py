"""Settings of simulated training runs, one by one and shared, and recorded trajectories."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lucidae.arrays import Array
from lucidae.iteration import Callback
from lucidae.rows.spectrum import Spectrum


@dataclass(frozen=True, slots=True)
class Run:
    """Settings of one simulated training run of a linear autoencoder.

    Parameters
    ----------
    method : str
        The argument `method` of `LinearAutoencoder`, such as ``"rag"``.
    optimizer : str
        ``"gradient_descent"``, ``"heavy_ball"``, ``"nesterov"`` or ``"adam"``.
    learning_rate : float
        The step size; it is not scaled by the variance of the data.
    seed : int, default=0
        Seed of the random initial weights.
    tied : bool or "auto", default="auto"
        Whether the decoder is the encoder's transpose, as in `LinearAutoencoder`. The runs of Bao
        et al. 2020 are untied.
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
        All m eigenpairs of the second moment of the data. The simulation runs in the array library
        and on the device of these arrays.
    k : int
        Number of latents.
    n_epochs : int
        Largest number of epochs (passes over the data).
    penalties : array of shape (k,), optional
        ℓ₂ penalty of each latent, for the methods with penalties; 0.25 each by default.
    prior : array of shape (k,), optional
        Probabilities of the prefix lengths 1 … k of nested dropout; geometric by default.
    init_scale : float, default=1e-4
        Standard deviation of the random initial weights.
    momentum : float, default=0.9
        Momentum of heavy ball and Nesterov.
    rows : array of shape (n, m), optional
        Centred data; needed for mini-batches and for nested dropout with random masks.
    batch_size : int, optional
        Number of rows per step; an epoch is one pass over all rows. All rows by default.
    record_at : iterable of int, optional
        Numbers of the epochs to record; a logarithmic grid by default.
    callbacks : sequence of callable
        Functions that are called with a `Progress` during training, such as a progress bar.
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
    """The recorded trajectory of one simulated training run.

    Parameters
    ----------
    run : Run
        The settings of the run.
    epochs : ndarray of int
        Numbers of the recorded epochs; 0 is before the first step.
    values : dict of str to ndarray
        Quantities recorded at those epochs, NaN after a divergence: ``"alignment"`` (axis-alignment
        distance of the decoder), ``"subspace"`` (its subspace distance), ``"loss"`` (loss of the
        method) and ``"imbalance"`` (distance of the encoder from the transposed decoder). See
        `lucidae.metrics`.
    weights : tuple of ndarray
        The weights after the last epoch, in the original features.
    """

    run: Run
    epochs: np.ndarray[Any, Any]
    values: dict[str, np.ndarray[Any, Any]] = field(repr=False)
    weights: Any = field(repr=False, default=None)
