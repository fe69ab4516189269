"""Experiment: epochs until the decoder is nearly axis-aligned, against the number of latents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lucidae.linear.simulation import epochs_to_alignment
from lucidae_papers.cells import Arrays, Cell, Settings, work
from lucidae_papers.declaration import Experiment, Scale, listed
from lucidae_papers.linear.training import (
    START,
    START_WORDS,
    STOCHASTIC,
    cost_of,
    data_set,
    plan_of,
    run_of,
)
from lucidae_papers.results import Curve, Curves, Results
from lucidae_papers.verdicts import (
    LABELS,
    AtLeast,
    AtMost,
    Ordered,
    Outweighs,
    Reported,
    label,
)

SEEDS = (0, 1, 2)


@dataclass(frozen=True, slots=True)
class EpochsToAlignment:
    """Settings of runs that train until the decoder is nearly aligned with the principal axes."""

    data: str  # A name of `lucidae_papers.linear.training`
    sizes: tuple[int, ...]  # numbers of latents
    # learning rates for at most 50 latents and for more than 50
    rates: Mapping[tuple[str, str], tuple[float, float]]
    limit: int  # epochs after which a run is stopped
    target: float = 0.3  # the axis-alignment distance at which a run is stopped

    def cells(self) -> Sequence[Cell]:
        """Return one run per model, optimizer, seed and number of latents.

        On an accelerator the seeds are trained together. Models that draw dropout masks can not be
        trained together and no statement is about them: they have the first seed alone.
        """
        shared = {
            "data": self.data,
            "n_epochs": self.limit,
            "target": self.target,
            "check_every": 10,
            "penalties": {"rule": "spaced", "low": 0.1, "high": 10.0},
            "batch_size": None,
            **START,
        }
        return [
            Cell(
                measure,
                {
                    "method": method,
                    "optimizer": optimizer,
                    "learning_rate": rates[k > 50],
                    "k": k,
                    "seed": seed,
                    **shared,
                },
                cost_of(method, optimizer, self.data, k, self.limit) / 3,  # most reach the target
                "" if method in STOCHASTIC else f"{method}/{optimizer}/{k}",
            )
            for (method, optimizer), rates in self.rates.items()
            for seed in (SEEDS[:1] if method in STOCHASTIC else SEEDS)
            for k in self.sizes
        ]

    def curves(self, results: Results) -> Curves:
        """Return curves of the epochs until the decoder is aligned, over the numbers of latents.

        It is aligned if its distance to the principal axes is at most the target. ``"epochs"`` is
        infinite if the target was not reached within the limit; in ``"epochs at least"`` the limit
        takes the place of infinity. ``"exponent"`` is that of a power law fitted to the numbers of
        latents at which the target was reached.
        """
        curves = {}
        for method, optimizer in self.rates:
            found = results.where(method=method, optimizer=optimizer)
            every = [float(cell.arrays["epochs"]) for cell in found]
            epochs = np.reshape(every, (-1, len(self.sizes)))
            epochs = np.where(np.isnan(epochs), np.inf, epochs)
            name = f"{method}/{optimizer}"
            curves[f"epochs/{name}"] = Curve.over_seeds(self.sizes, epochs, "k =")
            lower = np.where(np.isfinite(epochs), epochs, self.limit)
            curves[f"epochs at least/{name}"] = Curve.over_seeds(self.sizes, lower, "k =")
            slopes = [[exponent(self.sizes, one)] for one in epochs]
            curves[f"exponent/{name}"] = Curve.over_seeds([0], slopes)
        return curves

    def facts(self) -> Mapping[str, str]:
        """Return the settings in words, for the HTML page of the results."""
        return {
            "data": data_set(self.data).words,
            "latents": listed(self.sizes),
            "stops at": f"axis-alignment distance {self.target:g}, or {self.limit} epochs",
            "rates": "learning rates of Bao et al. 2020, Table 4; at k = 50 with Adam those of the "
            "smaller k (nested dropout 0.01 for 0.003, linear VAE 0.003 for 0.001)",
            "seeds": f"{len(SEEDS)}; one for nested dropout with random masks",
            "initial weights": START_WORDS,
        }


def exponent(sizes: Sequence[float], epochs: Any) -> float:
    """Return the exponent of a power law epochs ∝ size^exponent, fitted to the finite epochs.

    It is the slope of a line through the logarithms; NaN if fewer than two points are finite.
    """
    finite = np.isfinite(epochs) & (np.asarray(epochs) > 0)
    if finite.sum() < 2:
        return float("nan")
    logs = np.log(np.asarray(sizes, dtype=float)[finite]), np.log(np.asarray(epochs)[finite])
    return float(np.polyfit(*logs, 1)[0])


@work("linear.scaling/1")
def measure(group: Sequence[Settings], device: str) -> list[Arrays]:
    """Return the epochs that each run needs to the target; NaN if it does not reach the target.

    The target is an axis-alignment distance of the decoder. The runs differ in their seeds only.
    """
    first, runs = group[0], [run_of(settings) for settings in group]
    plan = plan_of(first, device)
    epochs = epochs_to_alignment(runs, plan, first["target"], first["check_every"])
    return [{"epochs": np.array(one)} for one in epochs]


# Bao et al. 2020, Table 4: k ≤ 50, and k > 50.
RATES = {
    ("nonuniform_l2", "nesterov"): (1e-3, 1e-3),
    ("rag", "nesterov"): (1e-4, 1e-4),
    ("nested_dropout", "nesterov"): (1e-3, 1e-3),
    ("expected_nested_dropout", "nesterov"): (1e-3, 1e-3),
    ("linear_vae", "nesterov"): (3e-4, 3e-4),
    ("nonuniform_l2", "adam"): (3e-3, 3e-3),
    ("nested_dropout", "adam"): (1e-2, 3e-3),
    ("expected_nested_dropout", "adam"): (3e-3, 1e-2),
    ("linear_vae", "adam"): (3e-3, 1e-3),
}
EVERY_SIZE = (2, 5, 10, 20, 50, 100, 200, 300, 400, 500)


EPOCHS = "epochs until the distance to the principal axes is 0.3"
EXPONENT = "exponent a of the power law, epochs ∝ kᵃ"


def slower(method: str, factor: float, at: int) -> Outweighs:
    """Return the verdict that a method needs at least `factor` times as many epochs as RAG."""
    return Outweighs(
        f"epochs at least/{method}",
        "epochs/rag/nesterov",
        factor,
        at,
        f"{EPOCHS} (or the limit): {label(*method.split('/'))} over RAG",
    )


def steeper(method: str) -> Ordered:
    """Return the verdict that the epochs of a method grow faster with the latents than RAG's."""
    return Ordered(
        (f"exponent/{method}/nesterov", "exponent/rag/nesterov"),
        margin=0.2,
        says=f"{EXPONENT}: {LABELS[method]} minus RAG",
    )


def fails(method: str, at: int, limit: int) -> AtLeast:
    """Return the verdict that a method does not reach the target within the limit of epochs.

    The target is an axis-alignment distance of the decoder; `at` is the number of latents.
    """
    says = f"{EPOCHS} (or the limit), {label(*method.split('/'))}"
    return AtLeast(f"epochs at least/{method}", limit, at, says)


REPORTED = (Reported("exponent/rag/nesterov", says=f"{EXPONENT}: RAG"),)


def expect(
    limit: int, sizes: tuple[int, ...] = (), many: tuple[int, ...] = ()
) -> dict[str, tuple[Any, ...]]:
    """Return the verdicts on each statement.

    Epochs are compared with RAG's at the numbers of latents `sizes`; with Adam, models do not
    converge at the numbers `many`.
    """
    models = {"penalty": "nonuniform_l2", "nested": "expected_nested_dropout"}
    found: dict[str, tuple[Any, ...]] = {
        name: (steeper(method), *(slower(f"{method}/nesterov", 2.5, k) for k in sizes))
        for name, method in models.items()
    }
    if many:
        found["adam"] = tuple(
            fails(f"{method}/adam", k, limit) for method in models.values() for k in many
        )
    found["rag"] = (AtMost("epochs/rag/nesterov", limit, "everywhere", f"{EPOCHS}, RAG"),)
    return found


EXPERIMENT = Experiment(
    name="lae-scaling",
    title="Epochs against the number of latents",
    reference="Bao et al. 2020, Figure 4",
    about="The number of epochs until the axis-alignment distance (Bao et al. 2020, Definition "
    "7.1) is 0.3, against the number k of latents, for five models and two optimizers.",
    claims={
        "penalty": "With Nesterov momentum the non-uniform ℓ₂ penalty scales badly with the "
        "number of latents, compared with the rotation-augmented gradient (RAG).",
        "nested": "With Nesterov momentum expected nested dropout scales badly with the number of "
        "latents, compared with the rotation-augmented gradient (RAG).",
        "adam": "With many latents, the non-uniform ℓ₂ penalty and expected nested dropout do not "
        "converge with Adam either.",
    },
    findings={
        "rag": "With the rotation-augmented gradient (RAG) the distance to the principal axes "
        "falls to 0.3 at every number of latents.",
    },
    smoke=Scale(
        EpochsToAlignment("small-gaussian", (2, 5, 10, 20), RATES, limit=2500),
        expect(2500),
        reported=REPORTED,
        unjudged={"adam": "this scale has at most 20 latents; the claim is about hundreds."},
    ),
    paper=Scale(
        EpochsToAlignment("gaussian", EVERY_SIZE, RATES, limit=50_000),
        expect(50_000, (50, 100), (200, 300, 400, 500)),
        reported=REPORTED,
    ),
    draw="training.scaling",
)
