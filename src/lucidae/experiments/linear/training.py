"""TrainingRuns runs of linear autoencoders as cells: dynamics, weights, searches, mini-batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lucidae.arrays import like
from lucidae.experiments.data import SHAPES, centred_rows, penalties, spectrum
from lucidae.experiments.declaration import Arrays, Cell, Curve, Curves, Results, Settings
from lucidae.experiments.device import reference
from lucidae.iteration import log_grid
from lucidae.linear.simulation import Plan, Run, Trajectory, simulate

__all__ = ["TrainingRuns", "Trial", "measure"]

WORK = "lucidae.experiments.linear.training:measure"
MEASURES = ("alignment", "subspace", "loss", "imbalance")
FEATURES = {"digits": 64, "mnist": 784, "gaussian": 1000, "small-gaussian": 100}
SAMPLES = {"digits": 1797, "mnist": 60_000, "gaussian": 5000, "small-gaussian": 500}
STOCHASTIC = ("nested_dropout",)


@dataclass(frozen=True, slots=True)
class Trial:
    """One training run, with all that it depends on.

    Parameters
    ----------
    method, optimizer, learning_rate
        As in `lucidae.linear.simulation.Run`; the paper's runs are untied.
    data : str
        A name of `lucidae.experiments.data`.
    k, n_epochs : int
        Latents and epochs.
    penalties : mapping, optional
        A rule of `lucidae.experiments.data.PENALTIES`, for the ℓ₂ methods.
    batch_size : int, optional
        Rows per step; the full batch by default.
    marks : tuple of int
        Epochs to record besides a logarithmic grid.
    keep_weights : bool, default=False
        Whether to keep the last weights.
    seed : int, default=0
        Seed of the first weights, and of masks and batches.
    label : str, default=""
        Name of its curves; method and optimizer by default.
    """

    method: str
    optimizer: str
    learning_rate: float
    data: str
    k: int
    n_epochs: int
    penalties: Mapping[str, Any] | None = None
    batch_size: int | None = None
    marks: tuple[int, ...] = ()
    keep_weights: bool = False
    seed: int = 0
    label: str = ""

    @property
    def name(self) -> str:
        """Name of its curves."""
        return self.label or f"{self.method}/{self.optimizer}"

    @property
    def grid(self) -> list[int]:
        """Epochs that are recorded."""
        inside = {mark for mark in self.marks if mark <= self.n_epochs}
        return sorted({*log_grid(self.n_epochs), *inside})

    @property
    def cell(self) -> Cell:
        """The work."""
        settings = {
            "method": self.method,
            "optimizer": self.optimizer,
            "learning_rate": self.learning_rate,
            "data": self.data,
            "k": self.k,
            "n_epochs": self.n_epochs,
            "penalties": None if self.penalties is None else dict(self.penalties),
            "batch_size": self.batch_size,
            "record_at": self.grid,
            "keep_weights": self.keep_weights,
            "init_scale": 1e-4,
            "momentum": 0.9,
            "tied": False,
            "seed": self.seed,
        }
        return Cell(WORK, settings, self._cost(), self._companions(settings))

    def _companions(self, settings: Settings) -> str:
        """Name the runs that differ in their rate alone, unless they draw at random."""
        if self.method in STOCHASTIC or self.batch_size is not None:
            return ""
        shared = {name: settings[name] for name in settings if name not in ("learning_rate",)}
        return repr(shared)

    def _cost(self) -> float:
        m, k = FEATURES[self.data], self.k
        if self.method in STOCHASTIC or self.batch_size is not None:
            rows = SAMPLES[self.data]
            steps = 1 if self.batch_size is None else -(-rows // self.batch_size)
            return 0.05 + self.n_epochs * (steps * 3e-4 + rows * m * k * 1.2e-9)
        width = m if self.optimizer == "adam" else k
        return 0.05 + self.n_epochs * (1.5e-4 + m * k * (width * 2e-10 + 1e-8))


@dataclass(frozen=True, slots=True)
class TrainingRuns:
    """A setting that consists of training runs.

    Parameters
    ----------
    trials : tuple of Trial
        The runs.
    words : mapping
        The setting in words.
    """

    trials: tuple[Trial, ...]
    words: Mapping[str, str] = field(default_factory=dict)

    def cells(self) -> Sequence[Cell]:
        """Return one cell per run."""
        return [trial.cell for trial in self.trials]

    def curves(self, results: Results) -> Curves:
        """Return "measure/run" over the epochs."""
        return {
            f"{measure}/{trial.name}": Curve(cell.arrays["epochs"], cell.arrays[measure])
            for trial, cell in zip(self.trials, results, strict=True)
            for measure in MEASURES
        }

    def facts(self) -> Mapping[str, str]:
        """Return the setting in words."""
        first = self.trials[0]
        return {
            "data": DATA_WORDS[first.data],
            "latents": str(first.k),
            "epochs": str(max(trial.n_epochs for trial in self.trials)),
            "runs": str(len(self.trials)),
            "first weights": "normal, standard deviation 1e-4, encoder and decoder untied",
            **self.words,
        }


DATA_WORDS = {
    "digits": "digits, 1797 × 64, pixels in [0, 1], centred",
    "mnist": "MNIST, 60 000 × 784, pixels in [0, 1], centred",
    "gaussian": "Gaussian, 5000 × 1000, eigenvalues equally spaced from 100 to 1",
    "small-gaussian": "Gaussian, 500 × 100, eigenvalues equally spaced from 100 to 1",
}


def measure(group: Sequence[Settings], device: str) -> list[Arrays]:
    """Train all runs of a group, which differ in their rates at most, at once."""
    shared = group[0]
    runs = [_run(settings) for settings in group]
    return [_arrays(found, shared) for found in simulate(runs, plan_of(shared, device))]


def _run(settings: Settings) -> Run:
    return Run(
        settings["method"],
        settings["optimizer"],
        settings["learning_rate"],
        settings["seed"],
        settings["tied"],
    )


def plan_of(settings: Settings, device: str) -> Plan:
    """Return what the runs of a group share."""
    data, k, rule = settings["data"], settings["k"], settings["penalties"]
    needs_rows = settings["method"] in STOCHASTIC or settings["batch_size"] is not None
    return Plan(
        spectrum(data, device),
        k,
        settings["n_epochs"],
        penalties=None if rule is None else penalties(rule, data, k),
        init_scale=settings["init_scale"],
        momentum=settings["momentum"],
        rows=like(centred_rows(data), reference(device)) if needs_rows else None,
        batch_size=settings["batch_size"],
        record_at=settings.get("record_at"),
    )


def _arrays(found: Trajectory, settings: Settings) -> dict[str, Any]:
    arrays = {"epochs": found.epochs, **{name: found.values[name] for name in MEASURES}}
    if settings["keep_weights"]:
        arrays |= {"encoder": found.weights.encoder, "atoms": found.weights.atoms}
    return {name: np.asarray(values) for name, values in arrays.items()}


def images(atoms: Any, data: str) -> Any:
    """Return rows of pixels as images."""
    return np.reshape(atoms, (-1, *SHAPES[data]))
