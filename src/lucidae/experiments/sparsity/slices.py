"""Energies along one coordinate: number of minima with and without marginalisation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lucidae.datasets import make_sparse_regression
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
    Statement,
    grid,
    on_processor,
    own,
    work,
)
from lucidae.experiments.verdicts import AtLeast, AtMost, Between
from lucidae.sparsity.landscape import autoencoder_slice, scan_minima
from lucidae.sparsity.objectives import DiagonalCovariance, FullCovariance
from lucidae.sparsity.problem import Problem, normalise
from lucidae.sparsity.state import evaluate
from lucidae.sparsity.working_set import best_change

GRID = np.concatenate([[0.0], np.geomspace(1e-4, 1e3, 300)])
"""Relevances at which energies along a random slice are evaluated."""

SIGNED = np.linspace(-3.0, 6.0, 901)  # includes zero, where h = log is unbounded

ENERGIES = {"full": FullCovariance(), "diagonal": DiagonalCovariance()}


@dataclass(frozen=True, slots=True)
class Slices:
    """One example slice, and slices through random points of random problems."""

    states: int
    power: float = 10.0
    inner: float = 1.0
    outer: float = 0.01
    target: float = 3.0
    noise: float = 1.0

    def cells(self) -> Sequence[Cell]:
        """Return the example slice, and one run (a `Cell`) per random problem."""
        example = {
            "power": self.power,
            "inner": self.inner,
            "outer": self.outer,
            "target": self.target,
            "noise": self.noise,
        }
        problem = {"d": 15, "kappa": 30, "r": 6, "n": 10, "snr_db": 20.0}
        return [
            Cell(measure_slice, example, 0.1),
            *grid(count_minima, {"seed": range(self.states)}, problem, 0.3),
        ]

    def curves(self, results: Results) -> Curves:
        """Return the energies along the slice, and the numbers of minima of random slices."""
        paper, *states = results.cells
        random = {
            name: np.concatenate([cell.arrays[name] for cell in states])
            for name in ("full", "diagonal", "distance")
        }
        slices = np.arange(len(random["full"]))
        energies = {name: paper.arrays[name] for name in ("full", "diagonal", "autoencoder")}
        abscissae = dict.fromkeys(ENERGIES, paper.arrays["weight"])
        abscissae["autoencoder"] = paper.arrays["value"]
        curves = {
            f"energy/{name}": Curve(abscissae[name], energy) for name, energy in energies.items()
        }
        for name, energy in energies.items():
            curves[f"minima/{name}"] = Curve([0], [len(scan_minima(abscissae[name], energy))])
        for name in ENERGIES:
            curves[f"random/{name}"] = Curve(slices, random[name])
        curves["distance/full"] = Curve(slices, random["distance"])
        curves["several/diagonal"] = Curve([0], [float(np.mean(random["diagonal"] > 1))])
        return curves

    def facts(self) -> Mapping[str, str]:
        """Describe the setting in words."""
        return {
            "example": f"one response of square {self.power:g}, noise variance {self.outer:g}, "
            f"variance {self.inner:g} without the column",
            "autoencoder": f"response {self.target:g}, noise variance {self.noise:g}, penalty "
            "h = log",
            "random slices": f"every column of {self.states} problems 15 × 30 at 20 dB, at random "
            "weights",
        }


def energies_along(
    problem: Problem, relevance: np.ndarray[Any, Any], index: int, weights: np.ndarray[Any, Any]
) -> dict[str, np.ndarray[Any, Any]]:
    """Return the energies as one relevance takes given values and the others stay fixed."""
    stack = np.repeat(relevance[None, :], len(weights), axis=0)
    stack[:, index] = weights
    fields = (np.broadcast_to(part, (len(weights), *np.shape(part))) for part in problem)
    state = evaluate(Problem(*fields), stack)
    return {name: np.asarray(energy.value(state)) for name, energy in ENERGIES.items()}


@work("sparsity.slice/2")
@on_processor
def measure_slice(settings: Settings) -> Arrays:
    """Return the three energies along one coordinate.

    The problem has one row and two equal columns of unit norm. The noise variance is ``outer``; the
    relevance ``inner − outer`` of the second column makes ``inner`` the variance without the first
    column. The squared response is ``power``.
    """
    power, inner, outer = settings["power"], settings["inner"], settings["outer"]
    zero = np.array(0.0)
    problem = Problem(np.ones((1, 2)), np.array([[power**0.5]]), np.array(outer), zero, zero)
    weight = np.concatenate([[0.0], np.geomspace(1e-3, 50.0, 400)])
    nonzero = np.where(abs(SIGNED) < 1e-12, 1e-12, SIGNED)
    energies = energies_along(problem, np.array([0.0, inner - outer]), 0, weight)
    autoencoder = autoencoder_slice(nonzero, settings["target"], settings["noise"])
    return {"weight": weight, **energies, "value": SIGNED, "autoencoder": autoencoder}


@work("sparsity.slice_minima/2")
@on_processor
def count_minima(settings: Settings) -> Arrays:
    """Count the minima of the energies along each relevance at a random point, on a fine grid.

    ``"distance"`` compares the lowest point of the full energy with the minimiser of Wipf 2023,
    Theorem 4.4, in steps of the grid.
    """
    sizes = {name: settings[name] for name in ("d", "kappa", "r", "n", "snr_db")}
    data = make_sparse_regression(**sizes, random_state=settings["seed"])
    problem, units = normalise(data.dictionary, data.responses)
    noise = float(units.normalised_noise(np.asarray(data.noise_variance)))
    rng = np.random.default_rng(settings["seed"])
    relevance = 10.0 ** rng.uniform(-4, 1, size=data.dictionary.shape[1])
    problem = problem.with_noise(noise)
    state = evaluate(problem, relevance)
    minimisers = relevance + best_change(relevance, state.curvature, state.alignment)
    found: dict[str, list[float]] = {"full": [], "diagonal": [], "distance": []}
    for index, minimiser in enumerate(minimisers):
        energies = energies_along(problem, relevance, index, GRID)
        for name, energy in energies.items():
            found[name].append(len(scan_minima(GRID, energy)))
        expected = int(np.abs(GRID - minimiser).argmin())
        found["distance"].append(abs(int(energies["full"].argmin()) - expected))
    return {name: np.array(values) for name, values in found.items()}


EXPECT = {
    "full": (
        Between("minima/full", 1, 1, says="minima of the full VAE along the slice"),
        AtMost(
            "random/full", 1, at="everywhere", says="minima of the full VAE along a random slice"
        ),
    ),
    "minimiser": (
        AtMost(
            "distance/full",
            1,
            at="everywhere",
            says="grid steps between the minimum of the full VAE and the minimiser of Wipf 2023, "
            "Theorem 4.4",
        ),
    ),
    "diagonal": (
        Between("minima/diagonal", 2, 2, says="minima of the diagonal VAE along the slice"),
    ),
    "autoencoder": (
        AtLeast("minima/autoencoder", 2, says="minima of the autoencoder along the slice"),
    ),
    "several": (
        AtLeast(
            "several/diagonal",
            0.01,
            says="share of random slices of the diagonal VAE with several minima",
        ),
    ),
}

EXPERIMENT = Experiment(
    name="sparse-slices",
    title="Minima along one coordinate, with and without marginalisation",
    reference="Wipf 2023, Theorem 4.4, Corollaries 4.5 and 4.6",
    shows="one-dimensional energies of the full VAE, the diagonal VAE and the autoencoder",
    about="The energies of three methods along one coordinate, with all other coordinates fixed: "
    "for one example, and for random problems at random points.",
    statements={
        "full": Statement(
            "Along one of its weights, the energy of the full VAE has a single minimum."
        ),
        "minimiser": Statement("This minimum is where Wipf 2023, Theorem 4.4 says."),
        "diagonal": Statement("The energy of the diagonal VAE can have two minima."),
        "autoencoder": Statement("The energy of the autoencoder can have several minima."),
        "several": own("For the diagonal VAE this happens in more than 1 % of random slices."),
    },
    scales={
        "smoke": Scale(Slices(6), EXPECT),
        "paper": Scale(Slices(200), EXPECT),
    },
    draw=Drawing("recovery", "slices"),
)
