"""Experiment: search for the learning rates that the other linear experiments use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lucidae_papers.declaration import (
    Cell,
    Curve,
    Curves,
    Drawing,
    Experiment,
    Results,
    Scale,
    Statement,
    own,
)
from lucidae_papers.linear.training import DIGITS, MNIST, Baseline, TrainingRuns
from lucidae_papers.verdicts import AtMost, label

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
    """Settings of a search: every model and optimizer is trained with several learning rates.

    The other settings are those of the experiment lae-dynamics, so that runs which both have are
    done once.
    """

    baseline: Baseline  # settings of lae-dynamics
    search: Mapping[tuple[str, str], tuple[float, ...]]  # the learning rates that are tried

    @property
    def runs(self) -> TrainingRuns:
        """The training runs: one per model, optimizer and learning rate."""
        return TrainingRuns(
            tuple(
                self.baseline.trial(*pair, learning_rate=rate)
                for pair, rates in self.search.items()
                for rate in rates
            ),
            {"measure": "axis-alignment distance after the last epoch"},
        )

    def cells(self) -> Sequence[Cell]:
        """Return one run per model, optimizer and learning rate."""
        return self.runs.cells()

    def curves(self, results: Results) -> Curves:
        """Return, over the learning rates, the distance to the principal axes after the last epoch.

        ``"excess"`` is the distance at the rate that the other experiments use, minus the smallest
        distance. A run that diverged counts as 1, the largest distance.
        """
        curves = {}
        for (method, optimizer), rates in self.search.items():
            found = results.where(method=method, optimizer=optimizer)
            last = np.array([cell.arrays["alignment"][-1] for cell in found])
            last = np.where(np.isnan(last), 1.0, last)
            used = last[rates.index(self.baseline.rates[method, optimizer])]
            curves[f"alignment/{method}/{optimizer}"] = Curve(rates, last)
            curves[f"excess/{method}/{optimizer}"] = Curve([0], [used - last.min()])
        return curves

    def facts(self) -> Mapping[str, str]:
        """Return the settings in words, for the HTML page of the results."""
        return self.runs.facts()


def expect(search: Mapping[tuple[str, str], Any], slack: float) -> tuple[AtMost, ...]:
    """Return the verdicts that the learning rates in use are nearly the best of the search.

    The distance to the principal axes after the last epoch may exceed the smallest one by `slack`.
    """
    return tuple(
        AtMost(
            f"excess/{method}/{optimizer}",
            slack,
            says="distance of the decoder's columns to the principal axes: learning rate in use "
            f"minus best learning rate of the search, {label(method, optimizer)}",
        )
        for method, optimizer in search
    )


EXPERIMENT = Experiment(
    name="lae-learning-rates",
    title="Search over learning rates",
    reference="Bao et al. 2020, Table 2",
    shows="the search over learning rates that the other experiments rely on",
    about="The distance to the principal axes after the last epoch of the experiment "
    "lae-dynamics, for several learning rates of each model and optimizer.",
    statements={
        "best": Statement(
            "Of the learning rates that were tried, those in bold in Bao et al. 2020, Table 2 "
            "converge fastest to the principal axes."
        ),
        "close": own(
            "For each model and optimizer, the distance to the principal axes at the rate that the "
            "other experiments use is close to the smallest of the search."
        ),
    },
    scales={
        "smoke": Scale(
            Search(DIGITS, DIGITS_SEARCH),
            {"close": expect(DIGITS_SEARCH, 0.08)},
            unjudged={"best": "the table is about MNIST; the digits used here need other rates."},
        ),
        "paper": Scale(
            Search(MNIST, PAPER_SEARCH),
            {"best": expect(PAPER_SEARCH, 0.01), "close": expect(PAPER_SEARCH, 0.1)},
        ),
    },
    draw=Drawing("training", "learning_rates"),
)
