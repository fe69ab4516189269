"""Races as cells: how many epochs a model needs to a given alignment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lucidae.experiments.declaration import Arrays, Cell, Curve, Curves, Results, Settings
from lucidae.experiments.linear.training import DATA_WORDS, FEATURES, SAMPLES, STOCHASTIC, plan_of
from lucidae.linear.simulation import Run, epochs_to_alignment

__all__ = ["Race", "measure"]

WORK = "lucidae.experiments.linear.race:measure"
REACH = 128
"""Latents that nested dropout's geometric prior of ratio 0.9 reaches in a few epochs."""


@dataclass(frozen=True, slots=True)
class Race:
    """Epochs to an axis-alignment distance against the number of latents.

    Parameters
    ----------
    data : str
        A name of `lucidae.experiments.data`.
    sizes : tuple of int
        Numbers of latents.
    rates : mapping of (method, optimizer) to a pair
        Learning rates for k ≤ 50 and for more.
    limit : int
        Epochs after which a run has failed.
    target : float, default=0.3
        The distance to reach.
    """

    data: str
    sizes: tuple[int, ...]
    rates: Mapping[tuple[str, str], tuple[float, float]]
    limit: int
    target: float = 0.3

    def cells(self) -> Sequence[Cell]:
        """Return one cell per model, optimizer and size."""
        return [
            Cell(WORK, self._settings(method, optimizer, k), self._cost(method, optimizer, k))
            for method, optimizer in self.rates
            for k in self.sizes
        ]

    def _settings(self, method: str, optimizer: str, k: int) -> dict[str, Any]:
        return {
            "method": method,
            "optimizer": optimizer,
            "learning_rate": self.rates[method, optimizer][k > 50],
            "data": self.data,
            "k": k,
            "n_epochs": self.limit,
            "target": self.target,
            "check_every": 10,
            "penalties": {"rule": "spaced", "low": 0.1, "high": 10.0},
            "batch_size": None,
            "init_scale": 1e-4,
            "momentum": 0.9,
            "tied": False,
            "seed": 0,
        }

    def _cost(self, method: str, optimizer: str, k: int) -> float:
        m = FEATURES[self.data]
        if method in STOCHASTIC:
            epoch = 4e-4 + SAMPLES[self.data] * m * min(k, REACH) * 1e-9
        else:
            epoch = 1.5e-4 + m * k * ((m if optimizer == "adam" else k) * 2e-10 + 1e-8)
        return epoch * self.limit / 3

    def curves(self, results: Results) -> Curves:
        """Return the epochs over the sizes (infinite where the limit came first), and slopes.

        The slope is the exponent of a power law through the sizes that arrived.
        """
        curves = {}
        for method, optimizer in self.rates:
            found = results.where(method=method, optimizer=optimizer)
            epochs = np.array([float(cell.arrays["epochs"]) for cell in found])
            epochs = np.where(np.isnan(epochs), np.inf, epochs)
            curves[f"epochs/{method}/{optimizer}"] = Curve(self.sizes, epochs)
            curves[f"exponent/{method}/{optimizer}"] = Curve([0], [exponent(self.sizes, epochs)])
        return curves

    def facts(self) -> Mapping[str, str]:
        """Return the setting in words."""
        return {
            "data": DATA_WORDS[self.data],
            "latents": ", ".join(str(k) for k in self.sizes),
            "stops at": f"axis-alignment distance {self.target:g}, or {self.limit} epochs",
            "rates": "Table 4 of the paper",
            "first weights": "normal, standard deviation 1e-4, encoder and decoder untied",
        }


def exponent(sizes: Sequence[float], epochs: Any) -> float:
    """Return the slope of log epochs over log size where they are finite, NaN below two points.

    Examples
    --------
    >>> round(exponent([1, 10, 100], np.array([1.0, 100.0, np.inf])), 6)
    2.0
    """
    there = np.isfinite(epochs) & (np.asarray(epochs) > 0)
    if there.sum() < 2:
        return float("nan")
    logs = np.log(np.asarray(sizes, dtype=float)[there]), np.log(np.asarray(epochs)[there])
    return float(np.polyfit(*logs, 1)[0])


def measure(group: Sequence[Settings], device: str) -> list[Arrays]:
    """Return the epochs that each run needs; NaN where it does not arrive."""
    return [{"epochs": np.array(_epochs(settings, device))} for settings in group]


def _epochs(settings: Settings, device: str) -> float:
    run = Run(
        settings["method"],
        settings["optimizer"],
        settings["learning_rate"],
        settings["seed"],
        settings["tied"],
    )
    plan = plan_of(settings, device)
    target, stride = settings["target"], settings["check_every"]
    return float(epochs_to_alignment([run], plan, target, stride)[0])
