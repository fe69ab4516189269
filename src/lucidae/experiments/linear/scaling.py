"""Epochs to a given alignment against the number of latents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lucidae.experiments.data import DATA
from lucidae.experiments.declaration import (
    Arrays,
    Cell,
    Curve,
    Curves,
    Drawing,
    Experiment,
    Results,
    Scale,
    Settings,
    listed,
    work,
)
from lucidae.experiments.linear.training import START, START_WORDS, STOCHASTIC, plan_of, run_of
from lucidae.experiments.verdicts import AtMost, Ordered, Outweighs, Reported
from lucidae.linear.simulation import epochs_to_alignment

REACH = 128
"""Prefix length that the geometric prior of ratio 0.9 rarely exceeds; used to estimate the cost."""


@dataclass(frozen=True, slots=True)
class EpochsToAlignment:
    """Epochs to an axis-alignment distance against the number of latents.

    Parameters
    ----------
    data : str
        A name of `lucidae.experiments.data`.
    sizes : tuple of int
        Numbers of latents.
    rates : mapping of (method, optimizer) to a pair
        Learning rates for k ≤ 50 and for k > 50.
    limit : int
        Epochs after which a run is stopped.
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
            Cell(measure, self._settings(method, optimizer, k), self._cost(method, optimizer, k))
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
            "seed": 0,
            **START,
        }

    def _cost(self, method: str, optimizer: str, k: int) -> float:
        m = DATA[self.data].n_features
        if method in STOCHASTIC:
            epoch = 4e-4 + DATA[self.data].n_samples * m * min(k, REACH) * 1e-9
        else:
            epoch = 1.5e-4 + m * k * ((m if optimizer == "adam" else k) * 2e-10 + 1e-8)
        return epoch * self.limit / 3

    def curves(self, results: Results) -> Curves:
        """Return the epochs over the sizes (infinite where the limit was reached), and exponents.

        The exponent is that of a power law fitted to the sizes at which the target was reached.
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
        """Describe the setting in words."""
        return {
            "data": DATA[self.data].words,
            "latents": listed(self.sizes),
            "stops at": f"axis-alignment distance {self.target:g}, or {self.limit} epochs",
            "rates": "Table 4 of the paper",
            "initial weights": START_WORDS,
        }


def exponent(sizes: Sequence[float], epochs: Any) -> float:
    """Return the slope of log epochs over log size at finite points; NaN if fewer than two.

    Examples
    --------
    >>> round(exponent([1, 10, 100], np.array([1.0, 100.0, np.inf])), 6)
    2.0
    """
    finite = np.isfinite(epochs) & (np.asarray(epochs) > 0)
    if finite.sum() < 2:
        return float("nan")
    logs = np.log(np.asarray(sizes, dtype=float)[finite]), np.log(np.asarray(epochs)[finite])
    return float(np.polyfit(*logs, 1)[0])


@work("linear.scaling/1")
def measure(group: Sequence[Settings], device: str) -> list[Arrays]:
    """Return the epochs that each run needs; NaN where it does not reach the target."""
    return [{"epochs": np.array(_epochs(settings, device))} for settings in group]


def _epochs(settings: Settings, device: str) -> float:
    plan, target, stride = plan_of(settings, device), settings["target"], settings["check_every"]
    return float(epochs_to_alignment([run_of(settings)], plan, target, stride)[0])


# Bao et al. 2020, Table 4: k ≤ 50, and k > 50.
RATES = {
    ("nonuniform_l2", "nesterov"): (1e-3, 1e-3),
    ("rag", "nesterov"): (1e-4, 1e-4),
    ("nested_dropout", "nesterov"): (1e-3, 1e-3),
    ("expected_nested_dropout", "nesterov"): (1e-3, 1e-3),
    ("linear_vae", "nesterov"): (3e-4, 3e-4),
    ("nonuniform_l2", "adam"): (3e-3, 3e-3),
    ("nested_dropout", "adam"): (1e-2, 3e-3),
    ("expected_nested_dropout", "adam"): (3e-3, 1e-2),
    ("linear_vae", "adam"): (3e-3, 1e-3),
}
EVERY_SIZE = (2, 5, 10, 20, 50, 100, 200, 300, 400, 500)


def slower(method: str, factor: float, at: int, says: str) -> Outweighs:
    """Claim that a method needs at least `factor` times as many epochs as RAG."""
    return Outweighs(f"epochs/{method}", "epochs/rag/nesterov", factor, at=at, says=says)


def expect(limit: int, size: int, *more: Outweighs) -> tuple[Any, ...]:
    """Claims at both scales: RAG reaches the target, the others are slower."""
    return (
        AtMost(
            "epochs/rag/nesterov",
            limit,
            at="everywhere",
            says="RAG reaches the target at every size",
        ),
        slower("nonuniform_l2/nesterov", 3.0, size, "the non-uniform penalty is slower than RAG"),
        Ordered(
            ("exponent/expected_nested_dropout/nesterov", "exponent/rag/nesterov"),
            says="expected nested dropout scales worse than RAG",
        ),
        *more,
        Reported("exponent/rag/nesterov", says="exponent of RAG"),
    )


EXPERIMENT = Experiment(
    name="lae-scaling",
    title="Epochs against the number of latents",
    reference="Bao et al. 2020, Figure 4",
    shows="epochs to an axis-alignment distance of 0.3 against the number of latents",
    claim="The non-uniform penalty and expected nested dropout scale badly with the number of "
    "latents, and rotation-augmented gradient scales well; Adam does not change this.",
    scales={
        "smoke": Scale(
            EpochsToAlignment("small-gaussian", (2, 5, 10, 20), RATES, limit=2500),
            expect(2500, 20),
        ),
        "paper": Scale(
            EpochsToAlignment("gaussian", EVERY_SIZE, RATES, limit=50_000),
            expect(
                50_000,
                50,
                slower(
                    "nonuniform_l2/adam",
                    5.0,
                    500,
                    "with Adam the non-uniform penalty is still slower at 500 latents",
                ),
                slower(
                    "expected_nested_dropout/adam",
                    5.0,
                    500,
                    "with Adam expected nested dropout is still slower at 500 latents",
                ),
            ),
        ),
    },
    draw=Drawing("training", "scaling"),
)
