"""Experiment: epochs until the decoder is nearly axis-aligned, against the number of latents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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

    def cells_of(self, method: str, optimizer: str, learning_rate: float, k: int) -> Sequence[Cell]:
        """Return one run per seed of a model with k latents.

        On an accelerator the seeds are trained together. Models that draw dropout masks can not be
        trained together and no statement is about them: they have the first seed alone.
        """
        settings = {
            "method": method,
            "optimizer": optimizer,
            "learning_rate": learning_rate,
            "k": k,
            "data": self.data,
            "n_epochs": self.limit,
            "target": self.target,
            "check_every": 10,
            "penalties": {"rule": "spaced", "low": 0.1, "high": 10.0},
            "batch_size": None,
            **START,
        }
        cost = cost_of(method, optimizer, self.data, k, self.limit) / 3  # most reach the target
        stochastic = method in STOCHASTIC
        together = "" if stochastic else f"{method}/{optimizer}/{k}/{learning_rate:g}"
        return [
            Cell(measure, {**settings, "seed": seed}, cost, together)
            for seed in (SEEDS[:1] if stochastic else SEEDS)
        ]

    def sizes_of(self, method: str) -> tuple[int, ...]:
        """Return the numbers of latents of a model: of those that draw masks, at most 400."""
        return tuple(k for k in self.sizes if method not in STOCHASTIC or k <= 400)

    def cells(self) -> Sequence[Cell]:
        """Return the runs of every model and optimizer with every number of latents."""
        return [
            cell
            for pair, rates in self.rates.items()
            for k in self.sizes_of(pair[0])
            for cell in self.cells_of(*pair, rates[k > 50], k)
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
            found, sizes = results.where(method=method, optimizer=optimizer), self.sizes_of(method)
            epochs = epochs_of(found, len(sizes))
            name = f"{method}/{optimizer}"
            curves[f"epochs/{name}"] = Curve.over_seeds(sizes, epochs, "k =")
            lower = np.where(np.isfinite(epochs), epochs, self.limit)
            curves[f"epochs at least/{name}"] = Curve.over_seeds(sizes, lower, "k =")
            slopes = [[exponent(sizes, one)] for one in epochs]
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
            "seeds": f"{len(SEEDS)}; one for nested dropout with random masks, up to 400 latents",
            "initial weights": START_WORDS,
        }


def epochs_of(results: Results, points: int) -> Any:
    """Return the epochs to the target, (seeds, points); infinite if it was not reached.

    The results are ordered by the points of the grid, and for each of them by the seed.
    """
    every = np.reshape([float(cell.arrays["epochs"]) for cell in results], (points, -1)).T
    return np.where(np.isnan(every), np.inf, every)


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
RATIO = f"{EPOCHS}: rate in use over best rate"
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


SMALL = EpochsToAlignment("small-gaussian", (2, 5, 10, 20), RATES, limit=2500)
PAPER = EpochsToAlignment("gaussian", EVERY_SIZE, RATES, limit=50_000)

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
        SMALL,
        expect(2500),
        reported=REPORTED,
        unjudged={"adam": "this scale has at most 20 latents; the claim is about hundreds."},
    ),
    paper=Scale(PAPER, expect(50_000, (50, 100), (200, 300, 400, 500)), reported=REPORTED),
    draw="training.scaling",
)


@dataclass(frozen=True, slots=True)
class RateSearch:
    """Settings of a search: models with k latents, each with several learning rates.

    The other settings are those of the experiment lae-scaling, so that runs which both have are
    done once.
    """

    baseline: EpochsToAlignment  # settings of lae-scaling
    # the learning rates that are tried, by number of latents, and by method and optimizer
    search: Mapping[int, Mapping[tuple[str, str], tuple[float, ...]]]

    def used(self, pair: tuple[str, str], k: int) -> float:
        """Return the learning rate of the experiment lae-scaling."""
        return self.baseline.rates[pair][k > 50]

    def cells(self) -> Sequence[Cell]:
        """Return one run per number of latents, model, optimizer, learning rate and seed."""
        return [
            cell
            for k, models in self.search.items()
            for pair, rates in models.items()
            for rate in rates
            for cell in self.baseline.cells_of(*pair, rate, k)
        ]

    def curves(self, results: Results) -> Curves:
        """Return, over the learning rates, the epochs until the decoder is aligned.

        ``"least"`` is the smallest number of epochs of the search, and ``"ratio"`` the number at
        the rate that the experiment lae-scaling uses, divided by it, both over the numbers of
        latents. The limit takes the place of infinity.
        """
        curves: dict[str, Curve] = {}
        found: dict[str, dict[int, Any]] = {}
        for k, models in self.search.items():
            for (method, optimizer), rates in models.items():
                name = f"{method}/{optimizer}"
                chosen = results.where(method=method, optimizer=optimizer, k=k)
                epochs = epochs_of(chosen, len(rates))
                curves[f"epochs/{k}/{name}"] = Curve.over_seeds(rates, epochs, "learning rate")
                lower = np.where(np.isfinite(epochs), epochs, self.baseline.limit)
                used = lower[:, rates.index(self.used((method, optimizer), k))]
                found.setdefault(f"least/{name}", {})[k] = lower.min(axis=1)
                found.setdefault(f"ratio/{name}", {})[k] = used / lower.min(axis=1)
        for name, by_size in found.items():
            runs = np.transpose([*by_size.values()])
            curves[name] = Curve.over_seeds([*by_size], runs, "k =")
        return curves

    def facts(self) -> Mapping[str, str]:
        """Return the settings in words, for the HTML page of the results."""
        return {
            **self.baseline.facts(),
            "latents": listed(self.search),
            "seeds": str(len(SEEDS)),
        } | {"rates": "those of Bao et al. 2020, Table 3"}


# Bao et al. 2020, Table 3 (a) to (c); nested dropout with random masks is left out.
NESTEROV = {
    ("nonuniform_l2", "nesterov"): (1e-4, 3e-4, 1e-3, 3e-3),
    ("rag", "nesterov"): (3e-5, 1e-4, 3e-4, 1e-3),
    ("expected_nested_dropout", "nesterov"): (1e-4, 3e-4, 1e-3, 3e-3),
    ("linear_vae", "nesterov"): (3e-5, 1e-4, 3e-4, 1e-3),
}
ADAM = {
    ("nonuniform_l2", "adam"): (1e-3, 3e-3, 1e-2, 3e-2),
    ("expected_nested_dropout", "adam"): (1e-3, 3e-3, 1e-2, 3e-2),
    ("linear_vae", "adam"): (3e-4, 1e-3, 3e-3, 1e-2),
}
TABLE_3 = {
    20: NESTEROV | ADAM,
    200: NESTEROV | ADAM,
    500: {("expected_nested_dropout", "adam"): (3e-3, 1e-2, 3e-2, 1e-1)},
}
SMOKE_SEARCH = {
    10: {
        ("nonuniform_l2", "nesterov"): (3e-4, 1e-3, 3e-3),
        ("rag", "nesterov"): (3e-5, 1e-4, 3e-4),
        ("expected_nested_dropout", "adam"): (1e-3, 3e-3, 1e-2),
    }
}
# Models that reach the target at one of these rates, by number of latents.
REACHING = {
    20: tuple(pair for pair in TABLE_3[20] if pair[0] != "linear_vae"),
    200: (("rag", "nesterov"), ("expected_nested_dropout", "adam")),
}


def expect_of_rates(factor: float) -> tuple[AtMost, ...]:
    """Return the verdicts that no rate of the search needs `factor` times fewer epochs.

    There is none about models that reach the target at none of the rates.
    """
    return tuple(
        AtMost(f"ratio/{method}/{optimizer}", factor, k, f"{RATIO}, {label(method, optimizer)}")
        for k, models in REACHING.items()
        for method, optimizer in models
    )


def least(search: Mapping[int, Iterable[tuple[str, str]]]) -> tuple[Reported, ...]:
    """Return the reports of the epochs at the best rate."""
    return tuple(
        Reported(
            f"least/{method}/{optimizer}",
            k,
            f"{EPOCHS} (or the limit), best rate, {label(method, optimizer)}",
        )
        for k, models in search.items()
        for method, optimizer in models
    )


RATES_OF_SCALING = Experiment(
    name="lae-scaling-rates",
    title="Search over learning rates, Gaussian data",
    reference="Bao et al. 2020, Table 3",
    about="The number of epochs until the axis-alignment distance is 0.3, as in the experiment "
    "lae-scaling, for several learning rates of each model and optimizer. A run that does not "
    "reach this distance counts with the limit of epochs.",
    claims={
        "best": "Of the learning rates that were tried, those that Bao et al. 2020 use (Tables 3 "
        "and 4) need the fewest epochs.",
    },
    findings={
        "close": "No other rate of the search needs less than half of the epochs of the rate in "
        "use.",
    },
    smoke=Scale(
        RateSearch(SMALL, SMOKE_SEARCH),
        {},
        reported=least(SMOKE_SEARCH),
        unjudged=dict.fromkeys(
            ("best", "close"), "the table is about 1000 features; this scale has other data."
        ),
    ),
    paper=Scale(
        RateSearch(PAPER, TABLE_3),
        {"best": expect_of_rates(1.0), "close": expect_of_rates(2.0)},
        reported=least(TABLE_3),
    ),
    draw="training.rates_of_scaling",
)
