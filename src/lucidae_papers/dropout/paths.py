"""Experiment: paths of dropout SGD for a network with one input, one output, two units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lucidae.dropout.landscape import scalar_surface
from lucidae.dropout.objectives import sampled_gradient
from lucidae.dropout.sgd import DropoutStep, GaussianSource, Runs, linear_decay
from lucidae.iteration import Below, iterate
from lucidae_papers.declaration import (
    Arrays,
    Cell,
    Curve,
    Curves,
    Drawing,
    Experiment,
    Results,
    Scale,
    Settings,
    Statement,
    grid,
    on_processor,
    work,
)
from lucidae_papers.verdicts import AtMost

TARGET = 2.0
STARTS = ((1.6, 0.15), (-0.2, 0.1))


@dataclass(frozen=True, slots=True)
class Paths:
    """Settings of dropout SGD on a network with one input, one output and two hidden units."""

    strengths: tuple[float, ...]  # strengths λ = dropout/(1 − dropout)
    n_steps: int  # steps of SGD, and examples per step
    batch_size: int
    rate: float  # first learning rate; it decreases linearly to zero
    seeds: int  # number of random seeds for each strength

    def cells(self) -> Sequence[Cell]:
        """Return one run per strength of dropout and seed.

        A run trains the network with SGD from two initial weights and records both paths.
        """
        shared = {
            "target": TARGET,
            "starts": [list(start) for start in STARTS],
            "n_steps": self.n_steps,
            "batch_size": self.batch_size,
            "rate": self.rate,
        }
        axes = {"strength": self.strengths, "seed": range(self.seeds)}
        return grid(measure, axes, shared, self.n_steps * 2e-4)

    def curves(self, results: Results) -> Curves:
        """Return curves of the distance to the nearest global optimum along each path of SGD.

        Each value is the largest one of all seeds.
        """
        curves = {}
        for lam in self.strengths:
            cells = results.where(strength=lam).cells
            for place in range(len(STARTS)):
                away = [distance(cell.arrays["path"][:, place], lam) for cell in cells]
                steps = np.linspace(0, self.n_steps, 251).round().astype(int)
                farthest = np.max(away, axis=0)[steps]
                curves[f"distance/{lam:g}/start {place + 1}"] = Curve(steps, farthest, "step")
        return curves

    def facts(self) -> Mapping[str, str]:
        """Return the settings in words, for the HTML page of the results."""
        return {
            "network": f"one input, one output, target {TARGET:g}, two hidden units with equal "
            "incoming and outgoing weights",
            "steps": f"{self.n_steps}, batches of {self.batch_size}, learning rate falling from "
            f"{self.rate:g} to zero",
            "seeds": f"{self.seeds}; the largest of their distances is judged",
        }


def distance(path: Any, strength: float) -> Any:
    """Return the distance of each point of a path, shape (n, 2), to the nearest global optimum.

    A point consists of the weights of the two hidden units.
    """
    minima = scalar_surface(TARGET, strength, points=2).minima
    return np.min(np.linalg.norm(path[:, None, :] - minima, axis=-1), axis=-1)


@work("dropout.paths/1")
@on_processor
def measure(settings: Settings) -> Arrays:
    """Train with dropout and return the path of the weights, shape (steps, starts, 2).

    The incoming and the outgoing weights of the two hidden units start equal and stay equal,
    because with one input and one output both gradients are the same.
    """
    starts = np.array(settings["starts"])[:, None, :]
    keep = np.full(len(starts), 1.0 / (1.0 + settings["strength"]))
    step = DropoutStep(
        GaussianSource(np.array([[settings["target"]]])),
        np.full(len(starts), settings["rate"]),
        linear_decay,
        settings["n_steps"],
        settings["batch_size"],
        sampled_gradient,
        np.random.RandomState(settings["seed"]),
    )
    solution = iterate(
        step,
        Runs(starts, starts, keep, 0.0 * keep),
        stop=Below(lambda _: 1.0, 0.0),
        limit=settings["n_steps"],
        record={"weights": lambda runs: runs.left[:, 0, :]},
        record_at=1,
        size=2,
    )
    return {"path": solution.history["weights"]}


def expect(within: float) -> dict[str, tuple[AtMost, ...]]:
    """Return, for every path of SGD, the comparison that it ends within `within` of an optimum."""
    return {
        "optimum": tuple(
            AtMost(
                f"distance/{lam:g}/start {place}",
                within,
                says=f"distance of the weights to the nearest global optimum, dropout strength "
                f"λ = {lam:g}, start {place}",
            )
            for lam in (0.1, 0.5, 1.0)
            for place in (1, 2)
        )
    }


EXPERIMENT = Experiment(
    name="dropout-paths",
    title="Paths of dropout SGD",
    reference="Mianjy et al. 2018, Figure 2",
    shows="paths of dropout SGD for three strengths of dropout",
    about="Stochastic gradient descent with dropout on a linear network with one input, one output "
    "and two hidden units, from two starts, for three strengths λ = dropout/(1 − dropout).",
    statements={
        "optimum": Statement(
            "For every dropout strength λ and from both starts, SGD converges to a global optimum, "
            "at which both hidden units have weights of equal size."
        )
    },
    scales={
        "smoke": Scale(Paths((0.1, 0.5, 1.0), 5000, 8, 0.02, 1), expect(0.08)),
        "paper": Scale(Paths((0.1, 0.5, 1.0), 20_000, 1, 0.005, 3), expect(0.06)),
    },
    draw=Drawing("landscapes", "paths"),
)
