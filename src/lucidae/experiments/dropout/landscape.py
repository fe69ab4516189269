"""Loss surface of dropout for a scalar network with two hidden units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.optimize

from lucidae.dropout.landscape import scalar_surface, tied_objective
from lucidae.dropout.theory import optimal_value
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
    on_processor,
    work,
)
from lucidae.experiments.verdicts import AtMost, Falls

TARGET = 2.0


@dataclass(frozen=True, slots=True)
class Surfaces:
    """The loss over both weights, and the end points of descents from random starts."""

    strengths: tuple[float, ...]
    points: int
    starts: int

    def cells(self) -> Sequence[Cell]:
        """Return one cell per strength."""
        shared = {"target": TARGET, "points": self.points, "starts": self.starts, "seed": 0}
        return grid(measure, {"strength": self.strengths}, shared, 0.3)

    def curves(self, results: Results) -> Curves:
        """Return norm, gap and inequality of the weights at the end points, over the strengths."""
        names = ("norm", "gap", "inequality")
        table = {name: [_figures(cell.arrays)[name] for cell in results] for name in names}
        curves = {name: Curve(self.strengths, figures) for name, figures in table.items()}
        positive = [place for place, lam in enumerate(self.strengths) if lam > 0]
        curves["inequality"] = Curve(
            [self.strengths[i] for i in positive], [table["inequality"][i] for i in positive]
        )
        return curves

    def facts(self) -> Mapping[str, str]:
        """Describe the setting in words."""
        return {
            "network": f"scalar, M = {TARGET:g}, two hidden units, tied weights",
            "strengths": listed(self.strengths),
            "descents": f"{self.starts} random starts for each",
        }


def _figures(arrays: Arrays) -> dict[str, float]:
    ends = arrays["ends"]
    return {
        "norm": float(np.mean(np.linalg.norm(ends, axis=1))),
        "gap": float(np.max(arrays["values"]) - float(arrays["optimum"])),
        "inequality": float(np.max(abs(abs(ends[:, 0]) - abs(ends[:, 1])))),
    }


@work("dropout.landscape/1")
@on_processor
def measure(settings: Settings) -> Arrays:
    """Evaluate the surface, and minimise the loss from random starts."""
    target, strength = settings["target"], settings["strength"]
    surface = scalar_surface(target, strength, points=settings["points"])
    objective = tied_objective(np.array([[target]]), strength)
    starts = np.random.default_rng(settings["seed"]).standard_normal((settings["starts"], 2))
    ended = [
        scipy.optimize.minimize(
            lambda u: float(objective.tied_value(u[None, :])),
            start,
            jac=lambda u: objective.tied_gradient(u[None, :])[0],
            tol=1e-12,
        )
        for start in starts
    ]
    return {
        "axis": surface.axis,
        "surface": surface.values,
        "levels": surface.levels,
        "minima": surface.minima,
        "ends": np.array([end.x for end in ended]),
        "values": np.array([end.fun for end in ended]),
        "optimum": np.array(optimal_value(np.array([target]), strength, 2)),
    }


EXPECT = (
    AtMost("gap", 1e-6, at="everywhere", says="every local minimum that was found is global"),
    AtMost("inequality", 1e-3, at="everywhere", says="the minima are equalized"),
    Falls("norm", -0.01, says="norm of the optima as λ grows"),
)

EXPERIMENT = Experiment(
    name="dropout-landscape",
    title="Loss surface of dropout",
    reference="Mianjy et al. 2018, Figure 1",
    shows="loss surface and contours of a scalar network for three strengths of dropout",
    claim="Without dropout the optima form a circle. With dropout only the equalized ones remain "
    "optimal, all local minima are global, and the optima shrink towards the origin as λ grows.",
    scales={
        "smoke": Scale(Surfaces((0.0, 0.5, 1.0), points=61, starts=30), EXPECT),
        "paper": Scale(Surfaces((0.0, 0.5, 1.0), points=121, starts=200), EXPECT),
    },
    draw=Drawing("landscapes", "dropout"),
)
