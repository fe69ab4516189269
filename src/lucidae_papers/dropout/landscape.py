"""Experiment: loss surface of dropout for a network with one input, one output, two units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.optimize

from lucidae.dropout.landscape import scalar_surface, tied_objective
from lucidae.dropout.theory import optimal_value
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
    listed,
    on_processor,
    work,
)
from lucidae_papers.verdicts import AtLeast, AtMost, Falls

TARGET = 2.0


@dataclass(frozen=True, slots=True)
class Surfaces:
    """Settings of loss surfaces of a network with two hidden units, and of descents on them."""

    strengths: tuple[float, ...]  # strengths λ = dropout/(1 − dropout); the first one is 0
    points: int  # grid points of the surface along each weight
    starts: int  # random starts of a descent for each strength

    def cells(self) -> Sequence[Cell]:
        """Return one run per strength of dropout."""
        shared = {"target": TARGET, "points": self.points, "starts": self.starts, "seed": 0}
        return grid(measure, {"strength": self.strengths}, shared, 0.3)

    def curves(self, results: Results) -> Curves:
        """Return curves over the strengths λ of dropout that describe where the descents end.

        ``"norm"`` is the mean norm of these weights, ``"gap"`` their largest loss minus the global
        minimum, and ``"inequality"`` the largest difference between the absolute weights of the two
        hidden units, for λ > 0. For λ = 0 there are two further curves, the range of the norms and
        the same inequality, which show whether the minima form a circle.
        """
        names = ("norm", "gap", "inequality")
        table = {name: [_figures(cell.arrays)[name] for cell in results] for name in names}
        curves = {name: Curve(self.strengths, figures, "λ =") for name, figures in table.items()}
        curves["inequality"] = Curve(self.strengths[1:], table["inequality"][1:], "λ =")
        norms = np.linalg.norm(results.one(strength=0.0).arrays["ends"], axis=1)
        curves["radius range"] = Curve([0], [np.ptp(norms)])
        curves["inequality without dropout"] = Curve([0], table["inequality"][:1])
        return curves

    def facts(self) -> Mapping[str, str]:
        """Return the settings in words, for the HTML page of the results."""
        return {
            "network": f"one input, one output, target {TARGET:g}, two hidden units, tied weights",
            "strengths": listed(self.strengths),
            "descents": f"{self.starts} random starts for each strength",
        }


def _figures(arrays: Arrays) -> dict[str, float]:
    """Return mean norm, loss gap and inequality of the weights at which descents end."""
    ends = arrays["ends"]
    return {
        "norm": float(np.mean(np.linalg.norm(ends, axis=1))),
        "gap": float(np.max(arrays["values"]) - float(arrays["optimum"])),
        "inequality": float(np.max(abs(abs(ends[:, 0]) - abs(ends[:, 1])))),
    }


@work("dropout.landscape/1")
@on_processor
def measure(settings: Settings) -> Arrays:
    """Return the loss on a grid of weights, and the end points of descents from random starts."""
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


INEQUALITY = "largest difference between the absolute weights of the two hidden units at a minimum"
NO_DROPOUT = "without dropout (λ = 0)"

EXPECT = {
    "circle": (
        AtMost(
            "radius range",
            1e-3,
            says=f"norm of the weights at the minima: largest minus smallest, {NO_DROPOUT}",
        ),
        AtLeast(
            "inequality without dropout",
            0.5,
            says=f"{INEQUALITY}, {NO_DROPOUT}",
        ),
    ),
    "global": (
        AtMost(
            "gap",
            1e-6,
            at="everywhere",
            says="loss: largest value at which a descent ends minus the global minimum",
        ),
    ),
    "equalized": (
        AtMost(
            "inequality",
            1e-3,
            at="everywhere",
            says=f"{INEQUALITY}, with dropout (λ > 0)",
        ),
    ),
    "shrink": (
        Falls(
            "norm",
            -0.01,
            says="norm of the weights at the minima, as the strength λ of dropout grows",
        ),
    ),
}

EXPERIMENT = Experiment(
    name="dropout-landscape",
    title="Loss surface of dropout",
    reference="Mianjy et al. 2018, Figure 1",
    shows="loss surface of a network with two hidden units for three strengths of dropout",
    about="The expected dropout loss of a linear autoencoder with one input, one output and two "
    "hidden units with weights u₁ and u₂, for three strengths λ = dropout/(1 − dropout), and the "
    "minima at which descents from random points end.",
    statements={
        "circle": Statement(
            "Without dropout (λ = 0) the loss is rotation invariant: the optima form a circle."
        ),
        "global": Statement("All local minima of the expected dropout loss are global."),
        "equalized": Statement(
            "With dropout the optimal weights are equalized: |u₁| and |u₂| are equal."
        ),
        "shrink": Statement("The optima move towards the origin as the dropout strength λ grows."),
    },
    scales={
        "smoke": Scale(Surfaces((0.0, 0.5, 1.0), points=61, starts=30), EXPECT),
        "paper": Scale(Surfaces((0.0, 0.5, 1.0), points=121, starts=200), EXPECT),
    },
    draw=Drawing("landscapes", "dropout"),
)
