"""The search that picks the learning rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lucidae.experiments.declaration import Cell, Curve, Curves, Drawing, Experiment, Results, Scale
from lucidae.experiments.linear.dynamics import (
    DIGITS_MARKS,
    DIGITS_PENALTIES,
    DIGITS_RATES,
    PAPER_MARKS,
    PAPER_PENALTIES,
    PAPER_RATES,
)
from lucidae.experiments.linear.training import TrainingRuns, Trial
from lucidae.experiments.verdicts import AtMost

# Bao et al. 2020, Table 2, without stochastic nested dropout, whose expectation is searched.
PAPER_SEARCH = {
    ("nonuniform_l2", "nesterov"): (1e-4, 3e-4, 1e-3, 3e-3),
    ("rag", "nesterov"): (1e-3, 3e-3, 1e-2),
    ("expected_nested_dropout", "nesterov"): (1e-2, 3e-2, 1e-1),
    ("linear_vae", "nesterov"): (3e-4, 1e-3, 3e-3),
    ("nonuniform_l2", "adam"): (1e-3, 3e-3, 1e-2, 3e-2),
    ("expected_nested_dropout", "adam"): (3e-3, 1e-2, 3e-2, 1e-1),
    ("linear_vae", "adam"): (3e-4, 1e-3, 3e-3),
}
DIGITS_SEARCH = {
    ("nonuniform_l2", "nesterov"): (1e-2, 3e-2, 1e-1),
    ("rag", "nesterov"): (3e-3, 1e-2, 3e-2),
    ("expected_nested_dropout", "nesterov"): (3e-2, 1e-1, 3e-1, 1.0),
    ("linear_vae", "nesterov"): (1e-3, 3e-3, 1e-2, 3e-2),
    ("nonuniform_l2", "adam"): (3e-3, 1e-2, 3e-2),
    ("expected_nested_dropout", "adam"): (3e-3, 1e-2, 3e-2),
    ("linear_vae", "adam"): (1e-3, 3e-3, 1e-2),
}


@dataclass(frozen=True, slots=True)
class Search:
    """Every model at every rate of a search."""

    data: str
    k: int
    n_epochs: int
    search: Mapping[tuple[str, str], tuple[float, ...]]
    used: Mapping[tuple[str, str], float]
    penalties: Mapping[str, Mapping[str, Any]]
    marks: tuple[int, ...]  # those of lae-dynamics, so that the runs in common are done once

    @property
    def trials(self) -> tuple[Trial, ...]:
        """One trial per model and rate."""
        return tuple(
            Trial(
                method,
                optimizer,
                rate,
                data=self.data,
                k=self.k,
                n_epochs=self.n_epochs,
                penalties=self.penalties.get(method),
                marks=self.marks,
            )
            for (method, optimizer), rates in self.search.items()
            for rate in rates
        )

    def cells(self) -> Sequence[Cell]:
        """Return one cell per model and rate."""
        return [trial.cell for trial in self.trials]

    def curves(self, results: Results) -> Curves:
        """Return the last alignment over the rates, and what the rate in use costs above the best.

        A run that diverged counts as 1, the largest distance.
        """
        curves = {}
        for (method, optimizer), rates in self.search.items():
            found = results.where(method=method, optimizer=optimizer)
            last = np.array([cell.arrays["alignment"][-1] for cell in found])
            last = np.where(np.isnan(last), 1.0, last)
            chosen = last[rates.index(self.used[method, optimizer])]
            curves[f"alignment/{method}/{optimizer}"] = Curve(rates, last)
            curves[f"excess/{method}/{optimizer}"] = Curve([0], [chosen - last.min()])
        return curves

    def facts(self) -> Mapping[str, str]:
        """Return the setting in words."""
        return {
            **TrainingRuns(self.trials).facts(),
            "measure": "axis-alignment distance after the last epoch",
        }


def expect(search: Mapping[tuple[str, str], Any], slack: float) -> tuple[AtMost, ...]:
    """Claim of every model that the rate in use is within `slack` of the best one."""
    return tuple(
        AtMost(f"excess/{method}/{optimizer}", slack, says=f"{method}, {optimizer}: rate in use")
        for method, optimizer in search
    )


EXPERIMENT = Experiment(
    name="lae-learning-rates",
    title="Learning rates, searched",
    reference="Bao et al. 2020, Table 2",
    shows="the search over learning rates that the other experiments rely on",
    claim="For each model and optimizer the rate in use brings the axes about as close as any "
    "rate of the search does.",
    scales={
        "smoke": Scale(
            Search("digits", 10, 3000, DIGITS_SEARCH, DIGITS_RATES, DIGITS_PENALTIES, DIGITS_MARKS),
            expect(DIGITS_SEARCH, 0.08),
        ),
        "paper": Scale(
            Search("mnist", 20, 30_000, PAPER_SEARCH, PAPER_RATES, PAPER_PENALTIES, PAPER_MARKS),
            expect(PAPER_SEARCH, 0.1),
        ),
    },
    draw=Drawing("training", "learning_rates"),
)
