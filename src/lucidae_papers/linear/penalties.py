"""Experiments: ℓ₂ penalties chosen by the conditioning at the optimum, and this conditioning."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.optimize

from lucidae.linear.methods import geometric_prior, uniform_prior
from lucidae.linear.theory import (
    AlignedPoint,
    condition_number,
    hessian_eigenvalues,
)
from lucidae_papers.cells import Arrays, Cell, Settings, grid, on_processor, work
from lucidae_papers.declaration import Experiment, Scale, listed
from lucidae_papers.linear.training import (
    DIGITS,
    MNIST,
    Baseline,
    TrainingRuns,
    data_set,
    penalties,
    spectrum,
)
from lucidae_papers.results import Curve, Curves, Results
from lucidae_papers.verdicts import AtLeast, AtMost, Outweighs, Reported

RULES = ("spaced", "paper", "best")
EARLY, LATE = (32, 100, 316), 1000
"""Epochs at which the runs are compared; training ends at `LATE`."""

SEEDS = tuple(range(6))


def nonuniform_condition_bound(values: np.ndarray[Any, Any]) -> float:
    """Return 2(k−1)(σ₁²−σ_k²) Σ_{1<i<k}(σᵢ²−σ_k²) / (σ₁²σ_k²) for the k eigenvalues given.

    It bounds the condition number of the non-uniform ℓ₂ objective (Bao et al. 2020, Section 4.3).
    """
    values = np.asarray(values, dtype=float)
    first, last, k = values[0], values[-1], len(values)
    inner = float(np.sum(values[1:-1] - last))
    return float(2 * (k - 1) * (first - last) * inner / (first * last))


def nested_condition_bound(values: np.ndarray[Any, Any]) -> float:
    """Return 8σ₁²(k−1)²/(σ₁²−σ_k²) for the k eigenvalues given; infinity if all are equal.

    It bounds the condition number of expected nested dropout (Bao et al. 2020, Section 5).
    """
    values = np.asarray(values, dtype=float)
    spread = values[0] - values[-1]
    return float(8 * values[0] * (len(values) - 1) ** 2 / spread) if spread > 0 else math.inf


def rotation_bound(values: np.ndarray[Any, Any], penalties: np.ndarray[Any, Any]) -> float:
    """Return the largest of the ratios in Bao et al. 2020, eq. 16, for two neighbouring latents.

    That paper minimises this number instead of the condition number of the Hessian. With the k
    eigenvalues σ² (`values`, descending), the ascending penalties λ and ν = 1 − λ/σ², the ratio for
    latents j and j + 1 is 2(σ₁² − σ_k²)(νⱼ₊₁ + νⱼ) / ((λⱼ₊₁ − λⱼ)(νⱼ − νⱼ₊₁)).
    """
    power = 1 - penalties / values
    gaps = (penalties[1:] - penalties[:-1]) * (power[:-1] - power[1:])
    return float(np.max(2 * (values[0] - values[-1]) * (power[1:] + power[:-1]) / gaps))


@dataclass(frozen=True, slots=True)
class Penalties:
    """Settings: three choices of the ℓ₂ penalties of the latents, and training with each.

    For each choice the condition number of the Hessian at the optimum is computed.
    """

    baseline: Baseline  # data and number of latents, as in the experiment lae-dynamics
    rates: tuple[float, ...]  # learning rates of Adam

    @property
    def rules(self) -> Mapping[str, Mapping[str, Any]]:
        """The three rules that choose penalties, with their constants, by name."""
        spaced = self.baseline.penalties["nonuniform_l2"]
        return {name: spaced if name == "spaced" else {"rule": name} for name in RULES}

    @property
    def runs(self) -> TrainingRuns:
        """The training runs: one per rule, learning rate and seed."""
        spaced = self.rules["spaced"]
        return TrainingRuns(
            tuple(
                self.baseline.trial(
                    "nonuniform_l2",
                    "adam",
                    learning_rate=rate,
                    n_epochs=LATE,
                    penalties=rule,
                    marks=(),
                    label=f"{name}/{rate:g}",
                    seed=seed,
                )
                for name, rule in self.rules.items()
                for rate in self.rates
                for seed in SEEDS
            ),
            {
                "optimizer": f"Adam, learning rates {listed(self.rates)}",
                "spaced": f"square roots of the penalties from {spaced['low']:g} to "
                f"{spaced['high']:g}",
            },
        )

    def cells(self) -> Sequence[Cell]:
        """Return all runs.

        These are one that computes penalties per rule, one search by general-purpose optimizers,
        and one training per rule, learning rate and seed.
        """
        shared = {"data": self.baseline.data, "k": self.baseline.k}
        rules = [dict(rule) for rule in self.rules.values()]
        chosen = grid(measure, {"rule": rules}, shared, 2.0)
        return [*chosen, Cell(search, shared, 2.0), *self.runs.cells()]

    def curves(self, results: Results) -> Curves:
        """Return penalties, condition number of the Hessian and training curves of each rule."""
        latents = np.arange(1, self.baseline.k + 1)
        curves: dict[str, Curve] = {}
        for name, cell in zip(RULES, results, strict=False):
            curves[f"penalties/{name}"] = Curve(latents, cell.arrays["penalties"])
            for figure in ("condition", "flatness", "eq16", "smallest", "largest"):
                curves[f"{figure}/{name}"] = Curve([0], cell.arrays[figure][None])
        searched, trained_cells = results.cells[len(RULES)], results.cells[len(RULES) + 1 :]
        for name, found in searched.arrays.items():
            curves[name] = Curve([0], found[None])
        trained = self.runs.curves(Results(trained_cells))
        for rate in self.rates:
            # distance to the axes: penalties of eq. 16 minus equally spaced
            ours, usual = (trained[f"alignment/{name}/{rate:g}"] for name in ("paper", "spaced"))
            curves[f"increase/{rate:g}"] = Curve.over_seeds(ours.x, ours.each - usual.each, "epoch")
        return {**curves, **trained}

    def facts(self) -> Mapping[str, str]:
        """Return the settings in words, for the HTML page of the results."""
        return self.runs.facts()


@work("linear.penalties/2")
@on_processor
def measure(settings: Settings) -> dict[str, Any]:
    """Return the penalties that a rule chooses, and the condition number of the Hessian with them.

    There are k penalties, one per latent. ``"flatness"`` is the smallest eigenvalue of the Hessian
    divided by the largest, ``"eq16"`` the bound of Bao et al. 2020, eq. 16; ``"smallest"`` and
    ``"largest"`` are the first and the last penalty divided by the k-th eigenvalue of the
    covariance.
    """
    data, k = settings["data"], settings["k"]
    values, chosen = spectrum(data).values, penalties(settings["rule"], data, k)
    curvatures = hessian_eigenvalues(AlignedPoint.nonuniform(values, chosen))
    with np.errstate(divide="ignore"):
        found = {
            "condition": curvatures[-1] / max(curvatures[0], 0.0),
            "flatness": curvatures[0] / curvatures[-1],
            "eq16": rotation_bound(values[:k], chosen),
            "smallest": chosen[0] / values[k - 1],
            "largest": chosen[-1] / values[k - 1],
        }
    return {"penalties": chosen} | {name: np.array(figure) for name, figure in found.items()}


@work("linear.penalties_search/1")
@on_processor
def search(settings: Settings) -> dict[str, Any]:
    """Minimise Bao et al. 2020, eq. 16 and the condition number by general-purpose optimizers.

    Both searches are independent of the algorithms by which the rules choose their k penalties, one
    per latent. The condition number of the Hessian is minimised over two parameters, a factor and a
    shift, that move the penalties of eq. 16 into the interval from 0 to the k-th eigenvalue of the
    covariance.
    """
    values, k = spectrum(settings["data"]).values, settings["k"]
    found = search_eq16(values[:k])
    return {
        "eq16/search": np.array(rotation_bound(values[:k], found)),
        "smallest/search": np.array(found[0] / values[k - 1]),
        "largest/search": np.array(found[-1] / values[k - 1]),
        "condition/moved": np.array(search_condition(values, found)),
    }


def search_eq16(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Minimise the largest ratio of Bao et al. 2020, eq. 16 by sequential quadratic programming.

    The variables are the penalties λⱼ divided by the smallest eigenvalue σ_k², and the logarithm
    of a bound c that all ratios must respect:
    c (λⱼ₊₁ − λⱼ)(νⱼ − νⱼ₊₁) ≥ 2(σ₁² − σ_k²)(νⱼ₊₁ + νⱼ), with the eigenvalues σⱼ² in descending
    order and νⱼ = 1 − λⱼ/σⱼ².
    """
    k, last = len(values), values[-1]

    def sides(shares: np.ndarray[Any, Any]) -> tuple[Any, Any]:
        kept = 1 - shares * last / values
        numerators = 2 * (values[0] - last) / last * (kept[1:] + kept[:-1])
        return np.diff(shares) * (kept[:-1] - kept[1:]), numerators

    def slack(point: np.ndarray[Any, Any]) -> Any:
        gaps, numerators = sides(point[:-1])
        return gaps - numerators * np.exp(-point[-1])

    start = np.linspace(0.02, 0.98, k)
    gaps, numerators = sides(start)
    found = scipy.optimize.minimize(
        lambda point: point[-1],
        np.append(start, np.log(np.max(numerators / gaps))),
        bounds=[(0.0, 1.0)] * k + [(None, None)],
        constraints=[
            {"type": "ineq", "fun": slack},
            {"type": "ineq", "fun": lambda point: np.diff(point[:-1]) - 1e-9},
        ],
        method="SLSQP",
        options={"maxiter": 1000, "ftol": 1e-12},
    )
    return np.asarray(last * found.x[:-1])


def search_condition(values: np.ndarray[Any, Any], outer: np.ndarray[Any, Any]) -> float:
    """Return the smallest condition number with penalties a + b·outer, over shifts a and factors b.

    It is that of the Hessian at the optimum. The penalties stay between 0 and the k-th entry of
    `values`, the eigenvalues of the covariance in descending order; `outer` has k entries.
    """
    last = values[len(outer) - 1]

    def condition(point: np.ndarray[Any, Any]) -> float:
        low, high = np.sort(1 / (1 + np.exp(-point)))
        moved = last * low + outer * (high - low)
        return float(np.log(condition_number(AlignedPoint.nonuniform(values, moved))))

    found = scipy.optimize.minimize(condition, [-3.0, 3.0], method="Nelder-Mead")
    return float(np.exp(found.fun))


INCREASE = "increase of the distance to the principal axes by eq. 16 instead of equal spacing"


def expect(gap: float, rates: tuple[float, ...]) -> dict[str, Any]:
    """Return, for each statement of the experiment, the comparisons by which it is judged.

    `gap` is the smallest accepted difference of two distances to the principal axes at epoch
    `LATE`: equally spaced penalties minus those of Bao et al. 2020, eq. 16.
    """
    return {
        "slow": tuple(
            AtLeast(f"increase/{rate:g}", 0.05, epoch, f"{INCREASE}, learning rate {rate:g}")
            for rate in rates
            for epoch in EARLY
        ),
        "exact": (
            Outweighs(
                "eq16/search",
                "eq16/paper",
                1 - 1e-6,
                says="bound of eq. 16: general-purpose optimizer over the penalties used here",
            ),
            AtMost("smallest/search", 1e-3, says="smallest penalty of the optimizer over σ_k²"),
            AtLeast("largest/search", 1 - 1e-3, says="largest penalty of the optimizer over σ_k²"),
        ),
        "later": (
            AtMost(
                f"increase/{max(rates):g}", -gap, LATE, f"{INCREASE}, learning rate {max(rates):g}"
            ),
        ),
        "singular": (
            AtMost(
                "flatness/paper",
                1e-9,
                says="smallest over largest eigenvalue of the Hessian, penalties of eq. 16",
            ),
        ),
        "best": (
            Outweighs(
                "condition/moved",
                "condition/best",
                1.0,
                says="condition number: best moved penalties of eq. 16 over best of all",
            ),
            AtLeast("smallest/best", 1e-6, says="smallest of the best penalties over σ_k²"),
            AtMost("largest/best", 1 - 1e-4, says="largest of the best penalties over σ_k²"),
        ),
    }


def reported(rates: tuple[float, ...]) -> tuple[Reported, ...]:
    """Return the values at epoch `LATE` for the learning rates that are not judged there."""
    return tuple(
        Reported(f"increase/{rate:g}", LATE, f"{INCREASE}, learning rate {rate:g}")
        for rate in rates
        if rate != max(rates)
    )


SMOKE_RATES, PAPER_RATES = (3e-3, 1e-2), (1e-3, 3e-3, 1e-2)

EXPERIMENT = Experiment(
    name="lae-penalties",
    title="Choice of the ℓ₂ penalties",
    reference="Bao et al. 2020, Figures 5 and 6",
    about="Three choices of non-uniform ℓ₂ penalties: square roots that are equally spaced, the "
    "minimiser of the bound in Bao et al. 2020, eq. 16, and the penalties with the smallest "
    "condition number of the Hessian. Linear autoencoders are trained with each of them.",
    claims={
        "slow": "The penalties that are optimal at the global minimum (Bao et al. 2020, eq. 16) "
        "slow down the first phase of the training significantly, compared with equally spaced "
        "penalties.",
    },
    findings={
        "exact": "A general-purpose optimizer finds no smaller value of eq. 16 than these "
        "penalties, and ends at penalties of 0 and σ_k², the smallest of the k eigenvalues.",
        "later": "After 1000 epochs at the largest learning rate that was tried, the penalties of "
        "eq. 16 give a smaller distance to the principal axes than equally spaced ones.",
        "singular": "The penalties of eq. 16 make the Hessian singular: they do not minimise its "
        "condition number.",
        "best": "The penalties with the smallest condition number lie strictly between 0 and "
        "σ_k²; those of eq. 16, moved into this interval, never have a smaller one.",
    },
    smoke=Scale(Penalties(DIGITS, SMOKE_RATES), expect(0.03, SMOKE_RATES), reported(SMOKE_RATES)),
    paper=Scale(Penalties(MNIST, PAPER_RATES), expect(0.05, PAPER_RATES), reported(PAPER_RATES)),
    draw="training.penalties",
)


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
            measure_conditioning,
            {"k": self.sizes},
            {"data": self.data},
            lambda settings: 0.05 + 0.06 * settings["k"],
        )

    def curves(self, results: Results) -> Curves:
        """Return each condition number and bound over the numbers of latents, and their growth.

        ``"exponent"`` is that of the power of k by which a condition number grows from the
        smallest number of latents to k.
        """
        curves = {}
        for name in QUANTITIES:
            figures = np.array([float(cell.arrays[name]) for cell in results])
            curves[name] = Curve(self.sizes, figures, "k =")
            if not name.endswith("bound"):  # the bound for two latents is zero
                more = np.log(np.divide(self.sizes[1:], self.sizes[0]))
                growth = np.log(figures[1:] / figures[0]) / more
                curves[f"exponent/{name}"] = Curve(self.sizes[1:], growth, "k =")
        return curves

    def facts(self) -> Mapping[str, str]:
        """Return the settings in words, for the HTML page of the results."""
        return {
            "data": data_set(self.data).words,
            "latents": listed(self.sizes),
            "penalties": "those with the smallest condition number, for each number of latents",
            "spectrum": "exact eigenvalues of the Hessian, from its 2 × 2 and 4 × 4 blocks; for "
            "nested dropout those of rotations and scalings inside the principal subspace",
        }


@work("linear.conditioning/2")
@on_processor
def measure_conditioning(settings: Settings) -> Arrays:
    """Return exact condition numbers and the lower bounds of Bao et al. 2020, by name.

    For nested dropout the latents stay inside the principal subspace. Outside of it the curvature
    along a feature without variance (a dead pixel) is zero, and along one that is nearly constant
    it is as small as its variance, which says nothing about the number of latents.
    """
    data, k = settings["data"], settings["k"]
    values = spectrum(data).values
    chosen = penalties({"rule": "best"}, data, k)
    found: dict[str, float] = {
        "nonuniform/best": condition_number(AlignedPoint.nonuniform(values, chosen)),
        "nonuniform/bound": nonuniform_condition_bound(values[:k]),
        "nested/bound": nested_condition_bound(values[:k]),
    }
    for name, prior in PRIORS.items():
        point = AlignedPoint.nested(values[:k], prior(k))
        found[f"nested/{name}"] = condition_number(point, effective=True)
    return {name: np.array(figure) for name, figure in found.items()}


def exceeds_bound(series: str, bound: str, words: str) -> Outweighs:
    """Return the verdict that a condition number is never below its lower bound."""
    says = f"condition number over its lower bound, {words}"
    return Outweighs(series, bound, 1.0, at="everywhere", says=says)


def grows(name: str, power: float, words: str) -> AtLeast:
    """Return the verdict that a condition number grows at least with a power of the latents."""
    says = f"exponent a of the growth ∝ kᵃ from the smallest k, {words}"
    return AtLeast(f"exponent/{name}", power, "everywhere", says)


BOUNDS = (
    exceeds_bound("nonuniform/best", "nonuniform/bound", "non-uniform ℓ₂"),
    exceeds_bound("nested/geometric", "nested/bound", "nested dropout, geometric prior"),
    exceeds_bound("nested/uniform", "nested/bound", "nested dropout, uniform prior"),
)
PENALTY = (grows("nonuniform/best", 1.0, "non-uniform ℓ₂"),)


CONDITIONING = Experiment(
    name="lae-conditioning",
    title="Condition numbers against the number of latents",
    reference="Bao et al. 2020, Sections 4.3 and 5",
    about="The condition number of the Hessian at the global minimum, computed exactly: for the "
    "non-uniform ℓ₂ penalty with the penalties that make it smallest, and for expected nested "
    "dropout, inside the principal subspace, with two priors of the number of latents that are "
    "kept.",
    claims={
        "penalty": "With non-uniform ℓ₂ penalties, even the best ones, the condition number grows "
        "quickly with the number of latents.",
        "nested": "With expected nested dropout the condition number grows at least quadratically "
        "with the number of latents.",
    },
    identities={
        "bound": "The condition numbers are at least as large as the lower bounds of Bao et al. "
        "2020.",
    },
    smoke=Scale(
        Conditioning("digits", (2, 3, 4, 6, 8, 12)),
        {"bound": BOUNDS, "penalty": PENALTY},
        unjudged={"nested": "a dozen latents are too few for a power."},
    ),
    paper=Scale(
        Conditioning("mnist", (2, 3, 5, 8, 12, 20, 30, 50)),
        {
            "bound": BOUNDS,
            "penalty": PENALTY,
            "nested": (
                grows("nested/geometric", 2.0, "nested dropout, geometric prior"),
                grows("nested/uniform", 2.0, "nested dropout, uniform prior"),
            ),
        },
    ),
    draw="training.conditioning",
)
