"""Penalties that are best at the optimum, and what they cost early in training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lucidae.experiments.data import penalties, spectrum
from lucidae.experiments.declaration import (
    Cell,
    Curve,
    Curves,
    Drawing,
    Experiment,
    Results,
    Scale,
    Settings,
    on_processor,
    work,
)
from lucidae.experiments.linear.training import TrainingRuns, Trial
from lucidae.experiments.verdicts import AtLeast, AtMost, Ordered, Outweighs, Reported
from lucidae.linear.hessian import AlignedPoint, condition_number
from lucidae.linear.penalties import rotation_bound

RULES = ("spaced", "paper", "best")


@dataclass(frozen=True, slots=True)
class Penalties:
    """Three choices of penalties, their conditioning, and training with each."""

    data: str
    k: int
    n_epochs: int
    rates: tuple[float, ...]
    spaced: Mapping[str, Any]
    marks: tuple[int, ...] = ()

    def rule(self, name: str) -> Mapping[str, Any]:
        """Return a rule with its constants."""
        return self.spaced if name == "spaced" else {"rule": name}

    @property
    def trials(self) -> tuple[Trial, ...]:
        """One trial per rule and rate."""
        return tuple(
            Trial(
                "nonuniform_l2",
                "adam",
                rate,
                data=self.data,
                k=self.k,
                n_epochs=self.n_epochs,
                penalties=self.rule(name),
                marks=self.marks,
                label=f"{name}/{rate:g}",
            )
            for name in RULES
            for rate in self.rates
        )

    def cells(self) -> Sequence[Cell]:
        """Return the choices, and one cell per rule and rate."""
        choices = [
            Cell(
                measure,
                {"data": self.data, "k": self.k, "rule": dict(self.rule(name))},
                2.0,
            )
            for name in RULES
        ]
        return [*choices, *(trial.cell for trial in self.trials)]

    def curves(self, results: Results) -> Curves:
        """Return penalties over latents, condition numbers, and the training curves."""
        curves: dict[str, Curve] = {}
        for name, cell in zip(RULES, results, strict=False):
            curves[f"penalties/{name}"] = Curve(np.arange(1, self.k + 1), cell.arrays["penalties"])
            for figure in ("condition", "eq16", "smallest", "largest"):
                curves[f"{figure}/{name}"] = Curve([0], cell.arrays[figure][None])
        trained = TrainingRuns(self.trials).curves(Results(results.cells[len(RULES) :]))
        for rate in self.rates:
            ours, usual = (trained[f"alignment/{name}/{rate:g}"] for name in ("paper", "spaced"))
            curves[f"slowdown/{rate:g}"] = Curve(ours.x, ours.y - usual.y)
        return {**curves, **trained}

    def facts(self) -> Mapping[str, str]:
        """Return the setting in words."""
        rates = ", ".join(f"{rate:g}" for rate in self.rates)
        return {
            **TrainingRuns(self.trials).facts(),
            "optimizer": f"Adam, rates {rates}",
            "spaced": f"√λ from {self.spaced['low']:g} to {self.spaced['high']:g}",
        }


@work("linear.penalties/1")
@on_processor
def measure(settings: Settings) -> dict[str, Any]:
    """Return penalties by a rule, and the condition numbers that they give."""
    data, k = settings["data"], settings["k"]
    values, chosen = spectrum(data).values, penalties(settings["rule"], data, k)
    with np.errstate(divide="ignore"):
        found = {
            "condition": condition_number(AlignedPoint.nonuniform(values, chosen)),
            "eq16": rotation_bound(values[:k], chosen),
            "smallest": chosen[0] / values[k - 1],
            "largest": chosen[-1] / values[k - 1],
        }
    return {"penalties": chosen} | {name: np.array(figure) for name, figure in found.items()}


def expect(rate: float, early: float, late: float, gap: float) -> tuple[Any, ...]:
    """Claims at one learning rate, early in training and late."""
    return (
        Reported(
            f"slowdown/{rate:g}",
            at=early,
            says="alignment lost early by the penalties of eq. 16 (the paper's Figure 6: a lot)",
        ),
        Ordered(
            (f"alignment/spaced/{rate:g}", f"alignment/paper/{rate:g}"),
            at=late,
            margin=gap,
            says="later they align better, unlike in the paper's Figure 6",
        ),
        Outweighs(
            "condition/paper",
            "condition/best",
            100.0,
            says="the penalties of eq. 16 leave the true Hessian far worse conditioned",
        ),
        Ordered(("eq16/best", "eq16/paper"), says="though they do minimise eq. 16"),
        AtMost("smallest/paper", 1e-9, says="eq. 16 puts the first penalty at zero"),
        AtLeast("largest/paper", 1 - 1e-6, says="and the last one at the last eigenvalue"),
        AtMost("largest/best", 1 - 1e-4, says="the best ones stay inside"),
    )


EXPERIMENT = Experiment(
    name="lae-penalties",
    title="The best penalties, and their price",
    reference="Bao et al. 2020, Figures 5 and 6",
    shows="optimal penalties, and what they cost early in training",
    claim="The paper picks penalties that minimise eq. 16 at the global minimum and reports that "
    "they slow down the first phase of training. With eq. 16 solved exactly that is not seen: "
    "the first epochs are alike, and later these penalties align better. Nor do they minimise "
    "the condition number, for they make the Hessian singular; the best ones lie strictly inside.",
    scales={
        "smoke": Scale(
            Penalties(
                "digits",
                10,
                1000,
                (3e-3, 1e-2),
                {"rule": "spaced", "low": 0.045, "high": 0.4025},
                marks=(100, 1000),
            ),
            expect(1e-2, 100, 1000, 0.03),
        ),
        "paper": Scale(
            Penalties(
                "mnist",
                20,
                1000,
                (1e-3, 3e-3, 1e-2),
                {"rule": "spaced", "low": 0.1, "high": 0.9},
                marks=(100, 1000),
            ),
            expect(1e-2, 100, 1000, 0.05),
        ),
    },
    draw=Drawing("training", "penalties"),
)
