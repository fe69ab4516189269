"""A training run as named arrays, and back: no pickle."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lucidae.arrays import to_numpy
from lucidae.io.atomic import load_arrays, save_arrays
from lucidae.nn.noise import NoiseVariance

__all__ = ["SaveTraining", "load_model", "restore", "save_model", "stored"]

MODEL, OPTIMIZER, RECORD = "model/", "optimizer/", "record/"


def model_arrays(model: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Return the parameters and buffers of a module under prefixed names."""
    return {MODEL + name: to_numpy(tensor) for name, tensor in model.state_dict().items()}


def load_model_arrays(model: Any, arrays: dict[str, Any]) -> None:
    """Put stored parameters and buffers into a module of the same structure."""
    state = {
        name.removeprefix(MODEL): torch.as_tensor(values)
        for name, values in arrays.items()
        if name.startswith(MODEL)
    }
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise ValueError(f"the file belongs to another model: {error}") from error


def save_model(path: str | os.PathLike[str], model: Any) -> None:
    """Write a module's parameters and buffers to an ``.npz`` file.

    Examples
    --------
    >>> import tempfile, torch
    >>> from lucidae.experiments.vae.checkpoint import load_model, save_model
    >>> path = Path(tempfile.mkdtemp()) / "model.npz"
    >>> first, second = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    >>> save_model(path, first)
    >>> load_model(path, second)
    >>> torch.equal(first.weight, second.weight)
    True
    """
    save_arrays(path, model_arrays(model))


def load_model(path: str | os.PathLike[str], model: Any) -> None:
    """Read what `save_model` or a training run wrote into a module of the same structure.

    Examples
    --------
    >>> import tempfile, torch
    >>> path = Path(tempfile.mkdtemp()) / "model.npz"
    >>> save_model(path, torch.nn.Linear(2, 2))
    >>> load_model(path, torch.nn.Linear(2, 2))
    """
    load_model_arrays(model, load_arrays(path, "a saved model"))


def stored(state: Any) -> dict[str, Any]:
    """Return all that a run needs to go on, as arrays and numbers.

    Examples
    --------
    >>> import torch
    >>> from lucidae.nn import VAE
    >>> from lucidae.experiments.vae.training import Training, TrainingSettings
    >>> x = torch.rand(4, 1, 8, 8)
    >>> model = VAE.resnet((1, 8, 8), 2, width=8, features=8)
    >>> int(stored(Training(model, x, x, TrainingSettings(batch_size=2)))["n_steps"])
    0
    """
    moments = {
        f"{OPTIMIZER}{index}/{name}": to_numpy(value)
        for index, values in state.optimizer.state_dict()["state"].items()
        for name, value in values.items()
    }
    history = {RECORD + name: values for name, values in state.history().values.items()}
    progress = {"n_steps": state.n_steps, "settings": described(state)}
    return progress | model_arrays(state.model) | moments | history


def described(state: Any) -> str:
    """Return what decides the numbers of a run, its model's shape apart, as one line of JSON."""
    settings = [part.setting for part in state.model.modules() if isinstance(part, NoiseVariance)]
    noise = ["scheduled" if callable(setting) else str(setting) for setting in settings]
    return json.dumps(asdict(state.settings) | {"noise_variance": noise}, sort_keys=True)


class SaveTraining:
    """Write a run to a file from time to time, so that it can go on after a kill.

    Parameters
    ----------
    path : path
        The file; replaced atomically.
    every_seconds : float, default=30.0
        Time between two writes.

    Examples
    --------
    >>> SaveTraining("run.npz").every_seconds
    30.0
    """

    def __init__(self, path: str | os.PathLike[str], every_seconds: float = 30.0) -> None:
        self.path = Path(path)
        self.every_seconds = every_seconds
        self._written = time.monotonic()

    def __call__(self, progress: Any) -> None:
        """Write the state if it is time."""
        if time.monotonic() - self._written >= self.every_seconds:
            self.save(progress.state)

    def save(self, state: Any) -> None:
        """Write the state now."""
        save_arrays(self.path, stored(state))
        self._written = time.monotonic()


def restore(state: Any, path: str | os.PathLike[str]) -> None:
    """Bring a run to where its file left it; without a file, leave it at the start.

    Examples
    --------
    >>> restore(None, "never-written.npz")
    """
    if not Path(path).exists():
        return
    arrays = load_arrays(path, "a checkpoint of a training run")
    if str(arrays.get("settings")) != described(state):
        raise ValueError(
            f"{os.fspath(path)!r} belongs to a run with other settings, "
            f"{arrays.get('settings')}, not {described(state)}: remove it, or use another."
        )
    load_model_arrays(state.model, arrays)
    _load_optimizer(state.optimizer, arrays)
    state.n_steps = int(arrays["n_steps"])
    names = [name for name in arrays if name.startswith(RECORD)]
    rows = zip(*(arrays[name].tolist() for name in names), strict=True)
    keys = [name.removeprefix(RECORD) for name in names]
    state.records = [dict(zip(keys, row, strict=True)) for row in rows]


def _load_optimizer(optimizer: Any, arrays: dict[str, Any]) -> None:
    moments: dict[int, dict[str, Any]] = {}
    for name, values in arrays.items():
        if name.startswith(OPTIMIZER):
            index, _, key = name.removeprefix(OPTIMIZER).partition("/")
            moments.setdefault(int(index), {})[key] = torch.as_tensor(values)
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": moments, "param_groups": groups})
