"""Convergence of dropout SGD to the closed form, and the speed of equalization."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lucidae.arrays import like
from lucidae.datasets import make_linear_network
from lucidae.dropout.sgd import GaussianSource, descend
from lucidae.dropout.theory import dropout_of, optimal_value
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
    listed,
    work,
)
from lucidae.experiments.device import reference
from lucidae.experiments.verdicts import AtLeast, AtMost, Ordered
from lucidae.iteration import log_grid


@dataclass(frozen=True, slots=True)
class Convergence:
    """Networks trained with dropout, averaged over runs."""

    shape: tuple[int, int]
    widths: tuple[int, ...]
    strengths: tuple[float, ...]
    n_steps: int
    batch_size: int
    runs: int
    runs_per_cell: int

    def cells(self) -> Sequence[Cell]:
        """Return one cell per width, strength and share of the runs."""
        shared = {
            "shape": list(self.shape),
            "n_steps": self.n_steps,
            "batch_size": self.batch_size,
            "runs": self.runs_per_cell,
            "schedule": "linear",
            "init_scale": 0.3,
            "record_at": list(log_grid(self.n_steps)),
        }
        axes = {
            "width": self.widths,
            "strength": self.strengths,
            "seed": range(self.runs // self.runs_per_cell),
        }
        return grid(measure, axes, shared, self._cost)

    def _cost(self, settings: Settings) -> float:
        size = sum(self.shape) * settings["width"] * self.batch_size * self.runs_per_cell
        return float(self.n_steps * (2e-4 + 1.5e-9 * size))

    def curves(self, results: Results) -> Curves:
        """Return mean objective, its excess over the optimum, and mean importance variance.

        ``"relative variance"`` is divided by its largest value, so that strengths can be compared.
        """
        curves = {}
        for width in self.widths:
            for lam in self.strengths:
                cells = results.where(width=width, strength=lam).cells
                steps, name = cells[0].arrays["steps"], f"{width}/{lam:g}"
                objective = np.hstack([cell.arrays["objective"] for cell in cells]).mean(axis=1)
                spread = np.hstack([cell.arrays["variance"] for cell in cells]).mean(axis=1)
                optimum = float(cells[0].arrays["optimum"])
                curves[f"objective/{name}"] = Curve(steps, objective)
                curves[f"excess/{name}"] = Curve(steps, objective / optimum - 1.0)
                curves[f"optimum/{name}"] = Curve([0], [optimum])
                curves[f"variance/{name}"] = Curve(steps, spread)
                curves[f"relative variance/{name}"] = Curve(steps, spread / spread.max())
        return curves

    def facts(self) -> Mapping[str, str]:
        """Describe the setting in words."""
        outputs, inputs = self.shape
        return {
            "network": f"{inputs} inputs, {outputs} outputs, "
            f"{listed(self.widths, ' and ')} hidden units",
            "target": "random singular vectors, singular values decrease as exp(−i/10)",
            "strengths": listed(self.strengths),
            "steps": f"{self.n_steps}, {self.batch_size} new examples each",
            "runs": f"{self.runs} for each width and strength",
        }


@work("dropout.convergence/1")
def measure(group: Sequence[Settings], device: str) -> list[Arrays]:
    """Train some networks with dropout, all at once."""
    return [_train(settings, device) for settings in group]


def _train(settings: Settings, device: str) -> dict[str, Any]:
    outputs, inputs = settings["shape"]
    network = make_linear_network(1, inputs, outputs, random_state=0)
    matrix = like(network.coef, reference(device))
    solution = descend(
        GaussianSource(matrix),
        matrix,
        [dropout_of(settings["strength"])] * settings["runs"],
        settings["width"],
        rng=np.random.RandomState(settings["seed"]),
        schedule=settings["schedule"],
        batch_size=settings["batch_size"],
        limit=settings["n_steps"],
        tolerance=0.0,
        init_scale=settings["init_scale"],
        check_every=settings["n_steps"],
        record_at=settings["record_at"],
    )
    best = optimal_value(network.singular_values, settings["strength"], settings["width"])
    return {
        "steps": solution.history.iterations,
        "objective": solution.history["objective"],
        "variance": solution.history["importance_variance"],
        "optimum": np.array(best),
    }


STRENGTHS = (0.1, 0.5, 1.0)


def expect(widths: tuple[int, ...], within: float) -> tuple[Any, ...]:
    """Claims for every width: the optimum is reached, and larger λ equalizes sooner.

    The speed of equalization is judged on the mean over the whole training, on a logarithmic grid
    of steps, so that it does not depend on the choice of one step.
    """
    claims: list[Any] = []
    for width in widths:
        for lam in STRENGTHS:
            series, words = f"excess/{width}/{lam:g}", f"for r = {width}, λ = {lam:g}"
            claims += [
                AtMost(series, within, says=f"relative excess over the optimum {words}"),
                AtLeast(
                    series,
                    -1e-9,
                    at="everywhere",
                    says=f"the closed form is a lower bound {words}",
                ),
            ]
        claims.append(
            Ordered(
                tuple(f"relative variance/{width}/{lam:g}" for lam in STRENGTHS),
                at="mean",
                says=f"a larger λ equalizes the units faster for r = {width}",
            )
        )
    return tuple(claims)


EXPERIMENT = Experiment(
    name="dropout-convergence",
    title="Dropout converges to the closed form",
    reference="Mianjy et al. 2018, Figure 3",
    shows="objective against the closed form and importance variance; three strengths, two widths",
    claim="Dropout converges to the global optimum that the closed form gives, and the hidden "
    "units become equally important, faster for larger λ.",
    scales={
        "smoke": Scale(
            Convergence((30, 20), (5, 20), STRENGTHS, 1500, 16, 10, 10),
            expect((5, 20), 0.05),
        ),
        "paper": Scale(
            Convergence((120, 80), (20, 80), STRENGTHS, 4000, 32, 50, 10),
            expect((20, 80), 0.02),
        ),
    },
    draw=Drawing("training", "convergence"),
)
