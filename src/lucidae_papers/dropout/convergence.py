"""Experiment: dropout SGD compared with the closed form, and how units become equally important."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lucidae.arrays import like
from lucidae.datasets import make_linear_network
from lucidae.dropout.sgd import GaussianSource, descend
from lucidae.dropout.theory import dropout_of, optimal_value
from lucidae.iteration import log_grid
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
    own,
    work,
)
from lucidae_papers.device import reference
from lucidae_papers.verdicts import AtLeast, AtMost, Falls, Ordered

INIT_SCALE = 0.3


@dataclass(frozen=True, slots=True)
class Convergence:
    """Settings of linear networks that are trained with dropout, several times each."""

    shape: tuple[int, int]  # numbers of outputs and of inputs
    widths: tuple[int, ...]  # numbers of hidden units
    strengths: tuple[float, ...]  # strengths λ = dropout/(1 − dropout)
    n_steps: int  # steps of SGD, and new examples per step
    batch_size: int
    runs: int  # trainings for each width and strength; curves are means over them
    runs_per_cell: int  # trainings that are computed together, as one `Cell`

    def cells(self) -> Sequence[Cell]:
        """Return one `Cell` per width, strength of dropout and seed.

        A `Cell` is a stored unit of work, here `runs_per_cell` trainings; the width is the number
        of hidden units.
        """
        shared = {
            "shape": list(self.shape),
            "n_steps": self.n_steps,
            "batch_size": self.batch_size,
            "runs": self.runs_per_cell,
            "schedule": "linear",
            "init_scale": INIT_SCALE,
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
        """Return curves over the steps, averaged over the runs, for each width and strength.

        The width is the number of hidden units, the strength is λ = dropout/(1 − dropout).
        ``"objective"`` is the expected dropout loss, ``"optimum"`` its optimal value and
        ``"excess"`` their difference divided by the optimal value. ``"variance"`` is the variance
        of the importance scores over the hidden units; the score of a unit is the product of the
        norms of its incoming and outgoing weights. ``"relative variance"`` is this variance divided
        by its largest value, so that strengths can be compared.
        """
        curves = {}
        for width in self.widths:
            for lam in self.strengths:
                cells = results.where(width=width, strength=lam).cells
                steps, name = cells[0].arrays["steps"], f"{width}/{lam:g}"
                objective = np.hstack([cell.arrays["objective"] for cell in cells]).mean(axis=1)
                spread = np.hstack([cell.arrays["variance"] for cell in cells]).mean(axis=1)
                optimum = float(cells[0].arrays["optimum"])
                curves[f"objective/{name}"] = Curve(steps, objective, "step")
                curves[f"excess/{name}"] = Curve(steps, objective / optimum - 1.0, "step")
                curves[f"optimum/{name}"] = Curve([0], [optimum])
                curves[f"variance/{name}"] = Curve(steps, spread, "step")
                relative = Curve(steps, spread / spread.max(), "step")
                curves[f"relative variance/{name}"] = relative
        return curves

    def facts(self) -> Mapping[str, str]:
        """Return the settings in words, for the HTML page of the results."""
        outputs, inputs = self.shape
        return {
            "network": f"{inputs} inputs, {outputs} outputs, "
            f"{listed(self.widths, ' and ')} hidden units",
            "target": "random singular vectors, singular values decrease as exp(−i/10)",
            "strengths": listed(self.strengths),
            "steps": f"{self.n_steps}, each with {self.batch_size} new examples",
            "runs": f"{self.runs} for each width and strength",
            "initial weights": f"random, of scale {INIT_SCALE:g}; the scale in Mianjy et al. "
            "2018 is not known",
        }


@work("dropout.convergence/1")
def measure(group: Sequence[Settings], device: str) -> list[Arrays]:
    """Train networks with dropout for each of the settings in `group`; return curves as arrays."""
    return [_train(settings, device) for settings in group]


def _train(settings: Settings, device: str) -> dict[str, Any]:
    """Train networks with dropout as `settings` say; return their curves over the steps."""
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
VARIANCE = "variance of the importance scores relative to its largest value in training"


STATEMENTS = {
    "optimum": Statement(
        "Training with dropout converges to the global optimum that the closed form gives."
    ),
    "equalized": Statement(
        "The hidden units become equally important: the variance of their importance scores goes "
        "to zero."
    ),
    "monotone": Statement(
        "The variance of the hidden units' importance scores decreases monotonically."
    ),
    "faster": Statement(
        "The larger the dropout strength λ, the faster the hidden units become equally important."
    ),
    "bound": own("In training the objective is never below the optimal value of the closed form."),
}


def expect(widths: tuple[int, ...], within: float) -> dict[str, Any]:
    """Return, for each statement of the experiment, the comparisons by which it is judged.

    There is one for every width (number of hidden units) and strength of dropout. `within` is the
    largest accepted difference between the last objective and the optimal value, divided by the
    optimal value. Larger strengths must make the units equally important sooner; this is judged on
    the mean, over the whole training, of the variance of their importance scores (products of the
    norms of incoming and outgoing weights). The steps are those of a logarithmic grid, so that the
    result does not depend on the choice of one step.
    """
    verdicts: dict[str, list[Any]] = {name: [] for name in STATEMENTS}
    for width in widths:
        for lam in STRENGTHS:
            run, words = f"{width}/{lam:g}", f"r = {width} hidden units, λ = {lam:g}"
            excess = f"relative excess of the objective over its optimal value, {words}"
            variance = f"{VARIANCE}, {words}"
            verdicts["optimum"].append(AtMost(f"excess/{run}", within, says=excess))
            verdicts["bound"].append(AtLeast(f"excess/{run}", -1e-9, at="everywhere", says=excess))
            verdicts["equalized"].append(AtMost(f"relative variance/{run}", 0.1, says=variance))
            verdicts["monotone"].append(Falls(f"relative variance/{run}", 0.02, says=variance))
        verdicts["faster"].append(
            Ordered(
                tuple(f"relative variance/{width}/{lam:g}" for lam in STRENGTHS),
                at="mean",
                says=f"decrease of the {VARIANCE}, from each λ to the next larger λ, "
                f"r = {width} hidden units",
            )
        )
    return {name: tuple(found) for name, found in verdicts.items()}


EXPERIMENT = Experiment(
    name="dropout-convergence",
    title="Dropout training and the closed form",
    reference="Mianjy et al. 2018, Figure 3",
    shows="loss, its optimum, and variance of the hidden units' importance, during dropout SGD",
    about="Linear networks with r hidden units, trained by stochastic gradient descent with "
    "dropout of strength λ = dropout/(1 − dropout). The importance score of a hidden unit is the "
    "product of the norms of its incoming and outgoing weights.",
    statements=STATEMENTS,
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
