"""Energies along one coordinate: number of minima with and without marginalisation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
    grid,
    on_processor,
    work,
)
from lucidae.experiments.verdicts import AtLeast, AtMost, Between, Ordered
from lucidae.sparsity.landscape import (
    autoencoder_slice,
    diagonal_slice,
    diagonal_slice_minima,
    full_slice,
    full_slice_minima,
    scan_minima,
    slice_parameters,
)
from lucidae.sparsity.problem import normalise
from lucidae.sparsity.state import evaluate

GRID = np.concatenate([[0.0], np.geomspace(1e-4, 1e3, 4000)])
SIGNED = np.linspace(-3.0, 6.0, 901)  # includes zero, where h = log is unbounded


@dataclass(frozen=True, slots=True)
class Slices:
    """The paper's own slice, and slices through random states of random problems."""

    states: int
    power: float = 10.0
    inner: float = 1.0
    outer: float = 0.01
    target: float = 3.0
    noise: float = 1.0

    def cells(self) -> Sequence[Cell]:
        """Return the paper's slice and one cell per random state."""
        slice_of_paper = {
            "power": self.power,
            "inner": self.inner,
            "outer": self.outer,
            "target": self.target,
            "noise": self.noise,
        }
        problem = {"d": 15, "kappa": 30, "r": 6, "n": 10, "snr_db": 20.0}
        return [
            Cell(measure_slice, slice_of_paper, 0.1),
            *grid(count_minima, {"seed": range(self.states)}, problem, 0.3),
        ]

    def curves(self, results: Results) -> Curves:
        """Return the energies along the slice, and the numbers of minima of random slices."""
        paper, *states = results.cells
        counts = {
            name: np.concatenate([cell.arrays[name] for cell in states])
            for name in ("full", "diagonal")
        }
        weight, value = paper.arrays["weight"], paper.arrays["value"]
        return {
            "energy/full": Curve(weight, paper.arrays["full"]),
            "energy/diagonal": Curve(weight, paper.arrays["diagonal"]),
            "energy/autoencoder": Curve(value, paper.arrays["autoencoder"]),
            "minima/full": Curve([0], [len(full_slice_minima(self.power, self.inner))]),
            "minima/diagonal": Curve(
                [0], [len(diagonal_slice_minima(self.power, self.inner, self.outer))]
            ),
            "minima/autoencoder": Curve([0], [len(paper.arrays["autoencoder minima"])]),
            "random/full": Curve(np.arange(len(counts["full"])), counts["full"]),
            "random/diagonal": Curve(np.arange(len(counts["diagonal"])), counts["diagonal"]),
            "several/diagonal": Curve([0], [float(np.mean(counts["diagonal"] > 1))]),
            "several/full": Curve([0], [float(np.mean(counts["full"] > 1))]),
        }

    def facts(self) -> Mapping[str, str]:
        """Describe the setting in words."""
        return {
            "slice of the paper": f"a = {self.power:g}, γ' = {self.inner:g}, γ'' = {self.outer:g}",
            "autoencoder": f"a = {self.target:g}, γ = {self.noise:g}, h = log",
            "random slices": f"every column of {self.states} problems 15 × 30 at 20 dB, random w",
        }


@work("sparsity.slice/1")
@on_processor
def measure_slice(settings: Settings) -> Arrays:
    """Return the three energies along one coordinate."""
    power, inner, outer = settings["power"], settings["inner"], settings["outer"]
    weight = np.concatenate([[0.0], np.geomspace(1e-3, 50.0, 400)])
    nonzero = np.where(abs(SIGNED) < 1e-12, 1e-12, SIGNED)
    energy = autoencoder_slice(nonzero, settings["target"], settings["noise"])
    return {
        "weight": weight,
        "full": full_slice(weight, power, inner),
        "diagonal": diagonal_slice(weight, power, inner, outer),
        "value": SIGNED,
        "autoencoder": energy,
        "autoencoder minima": np.array(scan_minima(SIGNED, energy)),
    }


@work("sparsity.slice_minima/1")
@on_processor
def count_minima(settings: Settings) -> Arrays:
    """Count the minima of each column's slice through a random state, on a fine grid."""
    sizes = {name: settings[name] for name in ("d", "kappa", "r", "n", "snr_db")}
    data = make_sparse_regression(**sizes, random_state=settings["seed"])
    problem, units = normalise(data.dictionary, data.responses)
    noise = float(units.normalised_noise(np.asarray(data.noise_variance)))
    rng = np.random.default_rng(settings["seed"])
    relevance = 10.0 ** rng.uniform(-4, 1, size=data.dictionary.shape[1])
    state = evaluate(problem.with_noise(noise), relevance)
    parameters = [slice_parameters(state, index) for index in range(len(relevance))]
    return {
        "full": np.array(
            [len(scan_minima(GRID, full_slice(GRID, a, g))) for a, g, _ in parameters]
        ),
        "diagonal": np.array(
            [len(scan_minima(GRID, diagonal_slice(GRID, a, g, h))) for a, g, h in parameters]
        ),
    }


EXPECT = (
    Between("minima/full", 1, 1, says="minima of the full VAE along the slice"),
    Between("minima/diagonal", 2, 2, says="minima of the diagonal VAE along the slice"),
    AtLeast("minima/autoencoder", 2, says="minima of the autoencoder along the slice"),
    AtMost("random/full", 1, at="everywhere", says="minima of the full VAE along a random slice"),
    AtLeast(
        "random/full", 1, at="everywhere", says="every random slice of the full VAE has a minimum"
    ),
    AtLeast(
        "several/diagonal",
        0.01,
        says="share of random slices of the diagonal VAE with several minima",
    ),
    Ordered(
        ("several/diagonal", "several/full"),
        says="the diagonal VAE has several minima more often than the full VAE",
    ),
)

EXPERIMENT = Experiment(
    name="sparse-slices",
    title="Minima along one coordinate, with and without marginalisation",
    reference="Wipf 2023, Theorem 4.4, Corollaries 4.5 and 4.6",
    shows="one-dimensional energies of the full VAE, the diagonal VAE and the autoencoder",
    claim="With all other weights fixed, the energy of the full VAE along one of them has a single "
    "minimum; those of the diagonal VAE and of the autoencoder may have two.",
    scales={
        "smoke": Scale(Slices(20), EXPECT),
        "paper": Scale(Slices(200), EXPECT),
    },
    draw=Drawing("recovery", "slices"),
)
