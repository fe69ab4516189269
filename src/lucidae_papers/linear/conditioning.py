"""Experiment: condition numbers of two objectives against the number of latents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lucidae.linear.prefixes import geometric_prior, uniform_prior
from lucidae.linear.theory import (
    AlignedPoint,
    condition_number,
    nested_condition_bound,
    nonuniform_condition_bound,
)
from lucidae_papers.data import DATA, penalties, spectrum
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
from lucidae_papers.verdicts import AtLeast, Outweighs

PRIORS = {"geometric": geometric_prior, "uniform": uniform_prior}
QUANTITIES = (
    "nonuniform/best",
    "nonuniform/bound",
    "nested/geometric",
    "nested/uniform",
    "nested/bound",
)


@dataclass(frozen=True, slots=True)
class Conditioning:
    """Settings: a data set, and the numbers of latents for which the Hessian is examined."""

    data: str
    sizes: tuple[int, ...]

    def cells(self) -> Sequence[Cell]:
        """Return one run per number of latents."""
        return grid(
            measure,
            {"k": self.sizes},
            {"data": self.data},
            lambda settings: 0.05 + 0.06 * settings["k"],
        )

    def curves(self, results: Results) -> Curves:
        """Return each condition number and bound over the numbers of latents, and their growth.

        ``"growth"`` is the condition number at the last number of latents divided by that at the
        first.
        """
        curves = {}
        for name in QUANTITIES:
            figures = np.array([float(cell.arrays[name]) for cell in results])
            curves[name] = Curve(self.sizes, figures, "k =")
            if not name.endswith("bound"):  # the bound for two latents is zero
                curves[f"growth/{name}"] = Curve([0], [figures[-1] / figures[0]])
        return curves

    def facts(self) -> Mapping[str, str]:
        """Return the settings in words, for the HTML page of the results."""
        return {
            "data": DATA[self.data].words,
            "latents": listed(self.sizes),
            "penalties": "those with the smallest condition number, for each number of latents",
            "spectrum": "exact eigenvalues of the Hessian, from its 2 × 2 and 4 × 4 blocks",
        }


@work("linear.conditioning/1")
@on_processor
def measure(settings: Settings) -> Arrays:
    """Return exact condition numbers and the lower bounds of Bao et al. 2020, by name."""
    data, k = settings["data"], settings["k"]
    values = spectrum(data).values
    chosen = penalties({"rule": "best"}, data, k)
    found: dict[str, float] = {
        "nonuniform/best": condition_number(AlignedPoint.nonuniform(values, chosen)),
        "nonuniform/bound": nonuniform_condition_bound(values[:k]),
        "nested/bound": nested_condition_bound(values[:k]),
    }
    for name, prior in PRIORS.items():
        point = AlignedPoint.nested(values, prior(k))
        found[f"nested/{name}"] = condition_number(point, effective=True)
    return {name: np.array(figure) for name, figure in found.items()}


def exceeds_bound(series: str, bound: str, words: str) -> Outweighs:
    """Return the verdict that a condition number is never below its lower bound.

    `series` and `bound` are the names of the two curves, and `words` describes the objective.
    """
    says = f"ratio of the condition number of the Hessian to its lower bound, {words}"
    return Outweighs(series, bound, 1.0, at="everywhere", says=says)


def expect(nonuniform: float, nested: float) -> dict[str, Any]:
    """Return, for each statement of the experiment, the comparisons by which it is judged.

    `nonuniform` and `nested` are the smallest ratios of the condition number at the largest number
    of latents to that at the smallest, for the non-uniform ℓ₂ penalty and for nested dropout.
    """
    growth = (
        "ratio of the condition number at the largest number of latents to that at the smallest"
    )
    return {
        "bound": (
            exceeds_bound("nonuniform/best", "nonuniform/bound", "non-uniform ℓ₂"),
            exceeds_bound("nested/geometric", "nested/bound", "nested dropout, geometric prior"),
            exceeds_bound("nested/uniform", "nested/bound", "nested dropout, uniform prior"),
        ),
        "penalty": (
            AtLeast("growth/nonuniform/best", nonuniform, says=f"{growth}, non-uniform ℓ₂"),
        ),
        "nested": (
            AtLeast("growth/nested/geometric", nested, says=f"{growth}, expected nested dropout"),
        ),
    }


EXPERIMENT = Experiment(
    name="lae-conditioning",
    title="Condition numbers against the number of latents",
    reference="Bao et al. 2020, Sections 4.3 and 5",
    shows="condition number of the Hessian at the minimum, and its lower bound (Bao et al. 2020), "
    "by the number of latents",
    about="The condition number of the Hessian at the global minimum, computed exactly: for the "
    "non-uniform ℓ₂ penalty with the penalties that make it smallest, and for expected nested "
    "dropout with two priors of the number of latents that are kept.",
    statements={
        "bound": Statement(
            "The condition numbers are at least as large as the lower bounds of Bao et al. 2020."
        ),
        "penalty": Statement(
            "With non-uniform ℓ₂ penalties, even the best ones, the condition number grows quickly "
            "with the number of latents."
        ),
        "nested": Statement(
            "With expected nested dropout the condition number grows with the number of latents."
        ),
    },
    scales={
        "smoke": Scale(Conditioning("digits", (2, 3, 4, 6, 8, 12)), expect(20.0, 2.0)),
        "paper": Scale(Conditioning("mnist", (2, 3, 5, 8, 12, 20, 30, 50)), expect(20.0, 5.0)),
    },
    draw=Drawing("training", "conditioning"),
)
