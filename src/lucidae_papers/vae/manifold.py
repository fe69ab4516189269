"""Experiment: what a diagonal posterior covariance costs on manifolds of known dimension."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lucidae_papers.cells import Cell, work_with_torch
from lucidae_papers.declaration import Experiment, Scale, listed
from lucidae_papers.results import Curve, Curves, Results
from lucidae_papers.verdicts import AtLeast, AtMost, Ordered, Reported

ARMS = ("full", "diagonal")

ALLOWED = 3.0
"""A bound counts as violated if a value exceeds it by more than this many standard errors over the
seeds."""

PARTS = ("coupled from the start", "not divided by √k", "absolute", "absolute from the start")
"""Ablations: VAEs with a full posterior covariance that is not parametrised and trained in all
respects as in `GaussianHead`. The names are those of `batched.ARMS`."""

WORSE = "−ELBO minus that of GaussianHead (nats)"

SOME = 0.5
"""Two mean numbers of active directions count as different if they differ by at least this."""

Noise = str | float

SMALL = 8
"""On an accelerator, runs with at most this number of latents are trained together, and runs with
more latents together in another group."""


@dataclass(frozen=True, slots=True)
class Manifold:
    """Settings: pairs of VAEs, with full and with diagonal posterior covariance.

    They are trained on data of random generators of known dimension and on images. Ablations, VAEs
    whose full covariance is not parametrised and trained in all respects as in `GaussianHead`, are
    trained as well.
    """

    scale: str  # name of the scale
    dimensions: tuple[int, ...]  # dimensions r of the data of random generators
    ratios: tuple[int, ...]  # numbers of latents, as multiples of r
    widest: int  # largest number of latents
    # noise variances γ at the end of training; ``"learn"`` learns γ, for the ratios 1 and 2 only
    noises: tuple[Noise, ...]
    seeds: int  # number of seeds
    entries: int  # number of entries of a sample
    design: Mapping[str, Any]  # arguments of `batched.Design`
    image_steps: int  # number of steps of training on images, instead of that in `design`
    image_dimensions: tuple[int, ...]  # dimensions of the trained generators of images
    image_noises: tuple[Noise, ...]  # as `noises`, for images
    image_seeds: int  # number of seeds for images, and for the ablations
    generator_steps: int  # steps of training of a generator of images
    parts_latents: int  # number of latents of the ablations
    # approximate seconds on one core of a pair of VAEs of random generators, of images, and of the
    # ablations
    costs: tuple[float, float, float]

    @property
    def rows(self) -> str:
        """Name of the data set of images: digits at smoke scale, MNIST at paper scale."""
        return "digits" if self.scale == "smoke" else "mnist"

    def cells(self) -> Sequence[Cell]:
        """Return all runs, each a `Cell`; runs with equal labels are trained together on a GPU."""
        measure = work_with_torch("vae.manifold_runs")
        on_images = {"rows": self.rows, "design": {**self.design, "steps": self.image_steps}}
        generated = on_images | {"generator_steps": self.generator_steps}
        # The ablations are trained on images of the data set itself.
        ablated = on_images | {
            "source": "rows",
            "latents": self.parts_latents,
            "noise": "learn",
            "arms": [*ARMS, *PARTS],
        }
        pairs, on_generated, ablations = self.costs
        cells = [
            Cell(
                measure,
                settings | {"entries": self.entries},
                pairs,
                f"random {'small' if settings['latents'] <= SMALL else 'large'}",
            )
            for settings in self._pairs("random", self.seeds)
        ]
        cells += [
            Cell(measure, settings | generated, on_generated, "images")
            for settings in self._pairs("images", self.image_seeds)
        ]
        return cells + [
            Cell(measure, ablated | {"seed": seed}, ablations, "parts")
            for seed in range(self.image_seeds)
        ]

    def panels(self, source: str) -> list[tuple[int, Noise, tuple[int, ...]]]:
        """Return (ratio, noise, dimensions) of each panel of a figure, for a source of data.

        The ratio is the number of latents divided by the dimension of the data, `noise` the noise
        variance, and `dimensions` are those of the data.
        """
        random = source == "random"
        dimensions = self.dimensions if random else self.image_dimensions
        return [
            (ratio, noise, tuple(r for r in dimensions if ratio * r <= self.widest))
            for noise in (self.noises if random else self.image_noises)
            for ratio in (self.ratios if random and noise != "learn" else self.ratios[:2])
        ]

    def _pairs(self, source: str, seeds: int) -> list[dict[str, Any]]:
        """Return the settings of all pairs of VAEs, with full and with diagonal covariance."""
        return [
            {
                "source": source,
                "dimension": r,
                "latents": ratio * r,
                "noise": noise,
                "seed": seed,
                "arms": list(ARMS),
                "design": dict(self.design),
            }
            for ratio, noise, dimensions in self.panels(source)
            for r in dimensions
            for seed in range(seeds)
        ]

    def curves(self, results: Results) -> Curves:
        """Return all curves against the dimension r of the data.

        Δ is −ELBO with diagonal minus −ELBO with full covariance, the mean over the seeds, and H
        the Hadamard gap of a decoder. Curves are named ``QUANTITY/SOURCE/RATIO/NOISE``.
        """
        curves: dict[str, Curve] = {}
        for source in ("random", "images"):
            for ratio, noise, dimensions in self.panels(source):
                cells = [
                    results.where(source=source, dimension=r, latents=ratio * r, noise=noise)
                    for r in dimensions
                ]
                panel = f"{source}/{ratio}/{noise}"
                curves |= {
                    f"{name}/{panel}": curve for name, curve in compared(dimensions, cells).items()
                }
        return curves | self._courses(results)

    def _courses(self, results: Results) -> dict[str, Curve]:
        """Return training losses of the ablations, and their last −ELBO minus `GaussianHead`'s.

        Ablations are VAEs whose full covariance is not parametrised and trained in all respects as
        in `GaussianHead`.
        """
        cells = results.where(source="rows").cells
        curves = {}
        for arm in (*ARMS, *PARTS):
            course = np.mean([cell.arrays[f"course/{arm}"] for cell in cells], axis=0)
            steps = (np.arange(len(course)) + 0.5) / len(course) * self.image_steps
            curves[f"course/{arm}"] = Curve(steps, course, "step")
            worse = [[cell.arrays[f"loss/{arm}"] - cell.arrays["loss/full"]] for cell in cells]
            curves[f"worse/{arm}"] = Curve.over_seeds([0.0], worse)
            directions = [[cell.arrays[f"active_directions/{arm}"]] for cell in cells]
            curves[f"directions/{arm}"] = Curve.over_seeds([0.0], directions)
        return curves

    def facts(self) -> Mapping[str, str]:
        """Return the settings in words, for the HTML page of the results."""
        noises = ", ".join("learned" if one == "learn" else f"{one:g}" for one in self.noises)
        design = self.design
        images = {"digits": "digits (8 × 8)", "mnist": "MNIST"}[self.rows]
        return {
            "data": f"x = tanh(uA)B of {self.entries} entries, u standard normal with r = "
            f"{listed(self.dimensions)} entries, new samples in every step",
            "latents": f"{listed(self.ratios, ' r, ')} r, at most {self.widest}",
            "noise variance γ": f"{noises}; a fixed value is reached from 0.1 after half the steps",
            "networks": f"two hidden layers of {design['hidden']} in encoder and decoder",
            "training": f"{design['steps']} steps of Adam ({self.image_steps} on images), "
            f"batches of {design['batch_size']}, "
            f"learning rate {design['learning_rate']:g}, equal for both covariances",
            "seeds": f"{self.seeds}; images: {self.image_seeds}",
            "images": f"decoders of r = {listed(self.image_dimensions)} latents, trained on "
            f"{images}, as generators",
            "parts of the method": f"{self.parts_latents} latents, {images}",
        }


def compared(dimensions: Sequence[int], cells: Sequence[Results]) -> dict[str, Curve]:
    """Return measured values of VAEs with diagonal and with full covariance, for each seed.

    `cells` are the results for each dimension r of the data. Let Δ be the cost of a diagonal
    covariance (−ELBO with diagonal minus −ELBO with full covariance), and H₁ and H₂ the Hadamard
    gaps of the decoders that were trained with diagonal and with full covariance. ``lower`` is the
    mean of Δ − H₁ and ``upper`` that of H₂ − Δ, each plus `ALLOWED` standard errors: negative if
    H₁ ≤ Δ ≤ H₂ is violated. ``step``, if there are such dimensions, is the mean of Δ for r ≥ 4
    minus that for r ≤ 3.
    """

    def per_seed(name: str) -> Any:
        return np.transpose([[float(cell.arrays[name]) for cell in one] for one in cells])

    def over(each: Any) -> Curve:
        return Curve.over_seeds(dimensions, each, "r =")

    cost = per_seed("loss/diagonal") - per_seed("loss/full")
    diagonal, full = (per_seed(f"gap/{arm}") for arm in ("diagonal", "full"))
    found = {
        "difference": over(cost),
        "gap_diagonal": over(diagonal),
        "gap_full": over(full),
        "mse_ratio": over(per_seed("mse/diagonal") / per_seed("mse/full")),
    }
    for name, margin in (("lower", over(cost - diagonal)), ("upper", over(full - cost))):
        found[name] = Curve(margin.x, margin.y + ALLOWED * margin.error, "r =")
    for arm in ARMS:
        found[f"active_directions_{arm}"] = over(per_seed(f"active_directions/{arm}"))
    found["excess"] = over(abs(per_seed("active_directions/full") - np.asarray(dimensions)))
    few = np.asarray(dimensions) <= 3
    if few.any() and not few.all():
        rise = cost[:, ~few].mean(axis=1) - cost[:, few].mean(axis=1)
        found["step"] = Curve.over_seeds([0.0], rise[:, None])
    return found


COST = "cost of a diagonal covariance"
DIRECTIONS = "active latent directions"


def _bounds(panels: Sequence[tuple[str, str]]) -> tuple[Any, ...]:
    """Return verdicts that the cost of a diagonal covariance lies between two Hadamard gaps.

    The gaps are those of the decoders that were trained with diagonal and with full covariance.
    """
    errors = f"plus {ALLOWED:g} standard errors (nats)"
    kinds = {
        "lower": f"{COST} minus the Hadamard gap of the diagonal decoder",
        "upper": f"Hadamard gap of the full decoder minus {COST}",
    }
    return tuple(
        AtLeast(f"{bound}/{panel}", 0.0, "everywhere", f"{says}, {errors}, {words}")
        for panel, words in panels
        for bound, says in kinds.items()
    )


def panel_words(ratio: int, noise: Noise) -> str:
    """Return a phrase that describes a panel: its number of latents and its noise variance."""
    latents = "k = r" if ratio == 1 else f"k = {ratio} r"
    return f"{latents}, γ {'learned' if noise == 'learn' else f'= {noise:g}'}"


def _panels(source: str, ratios: Sequence[int], noises: Sequence[Noise]) -> list[tuple[str, str]]:
    """Return name and description of each panel: a ratio of latents to dimensions and a noise."""
    return [
        (f"{source}/{ratio}/{noise}", panel_words(ratio, noise))
        for noise in noises
        for ratio in ratios
    ]


def _errors(panels: Sequence[tuple[str, str]], low: int, high: int) -> tuple[Any, ...]:
    """Return verdicts that a diagonal covariance has at least the error of a full one.

    The errors are averaged over data of `low` to `high` dimensions.
    """
    says = "ratio of the reconstruction errors from posterior means, diagonal over full covariance"
    return tuple(
        AtLeast(f"mse_ratio/{panel}", 1.0, (low, high), f"{says}, {words}")
        for panel, words in panels
    )


def _latents(panels: Sequence[tuple[str, str]]) -> tuple[Any, ...]:
    """Return verdicts that a diagonal covariance uses more latent directions than a full one."""
    names = ("active_directions_diagonal", "active_directions_full")
    return tuple(
        Ordered(
            tuple(f"{name}/{panel}" for name in names),
            "mean",
            SOME,
            f"{DIRECTIONS}, diagonal minus full covariance, {words}",
        )
        for panel, words in panels
    )


def _needed(panels: Sequence[tuple[str, str]]) -> tuple[Any, ...]:
    """Return verdicts that a full covariance uses as many directions as the data have."""
    says = f"{DIRECTIONS}, full covariance, difference from r"
    return tuple(
        AtMost(f"excess/{panel}", SOME, "everywhere", f"{says}, {words}") for panel, words in panels
    )


def expected(setting: Manifold) -> dict[str, tuple[Any, ...]]:
    """Return the verdicts on each statement at paper scale, for the runs of `setting`."""
    fixed = [noise for noise in setting.noises if noise != "learn"]
    low, high = 2, max(setting.dimensions)
    return {
        "error": _errors(_panels("random", (1, 2), setting.noises), low, high),
        "latents": _latents(_panels("random", (2,), setting.noises)),
        "needed": _needed(_panels("random", (2,), setting.noises)),
        "bounds": _bounds(_panels("random", (1,), fixed)),
        "bounds_wide": _bounds(_panels("random", setting.ratios[1:], fixed)),
        "bounds_learned": _bounds(_panels("random", setting.ratios[:2], ["learn"])),
        "dimension": tuple(
            AtLeast(
                f"step/{panel}",
                0.0,
                says=f"mean {COST} (nats), r ≥ 4 minus r ≤ 3, {words}",
            )
            for panel, words in _panels("random", (1,), fixed)
        ),
        "images": _bounds(_panels("images", setting.ratios[:2], setting.image_noises)),
        "parts": tuple(AtLeast(f"worse/{arm}", 0.0, says=f"{WORSE}: {arm}") for arm in PARTS),
    }


def reported(setting: Manifold) -> tuple[Any, ...]:
    """Return the values that are reported without a verdict, each as a `Reported`."""
    noise = setting.noises[0]
    low = [r for r in setting.dimensions if 2 <= r <= 4]
    costs = [
        Reported(
            f"difference/random/1/{noise}", float(r), f"{COST} (nats), {panel_words(1, noise)}"
        )
        for r in low
    ]
    directions = [
        Reported(
            f"active_directions_{arm}/random/{ratio}/{noise}",
            says=f"{DIRECTIONS}, {arm} covariance, {panel_words(ratio, noise)}",
        )
        for ratio in setting.ratios[:2]
        for arm in ARMS
    ]
    return (*costs, *directions, Reported("worse/diagonal", says=f"{WORSE}: diagonal covariance"))


SMOKE = Manifold(
    scale="smoke",
    dimensions=(2,),
    ratios=(1, 2),
    widest=8,
    noises=(0.01,),
    seeds=3,
    entries=12,
    design={
        "hidden": 32,
        "steps": 800,
        "batch_size": 100,
        "learning_rate": 3e-3,
        "samples": 1024,
        "draws": 4,
        "gap_samples": 256,
    },
    image_steps=200,
    image_dimensions=(2,),
    image_noises=(0.01,),
    image_seeds=1,
    generator_steps=100,
    parts_latents=8,
    costs=(1.0, 1.5, 2.0),
)
PAPER = Manifold(
    scale="paper",
    dimensions=(1, 2, 3, 4, 6, 8, 12, 16),
    ratios=(1, 2, 4),
    widest=32,
    noises=(1e-3, 1e-4, "learn"),
    seeds=4,
    entries=100,
    design={
        "hidden": 256,
        "steps": 16_000,
        "batch_size": 256,
        "learning_rate": 1e-3,
        "samples": 8192,
        "draws": 4,
        "gap_samples": 1024,
    },
    image_steps=10_000,
    image_dimensions=(2, 5, 10),
    image_noises=(1e-3, "learn"),
    image_seeds=3,
    generator_steps=3000,
    parts_latents=64,
    costs=(90.0, 200.0, 1000.0),
)

WHY_NOT = "The smoke scale has too few dimensions, seeds and steps to judge this."
UNJUDGED = dict.fromkeys(
    (
        "error",
        "latents",
        "needed",
        "bounds_wide",
        "bounds_learned",
        "dimension",
        "images",
        "parts",
    ),
    WHY_NOT,
)

EXPERIMENT = Experiment(
    name="vae-manifold",
    title="Full against diagonal covariance on manifolds of known dimension",
    reference="Wipf 2023, Section 5.2",
    about="Pairs of variational autoencoders (VAE), one with a full and one with a diagonal "
    "posterior covariance, are trained alike on data without noise from generators of r "
    "dimensions. The cost of a diagonal covariance is −ELBO of the diagonal-covariance VAE "
    "minus −ELBO of the full-covariance VAE. The Hadamard gap of a decoder is the "
    "difference of −ELBO between the best diagonal and the best full posteriors with this "
    "decoder, to first order; by Hadamard's inequality it is not negative.",
    claims={
        "error": "On data from a manifold, a full posterior covariance gives a lower "
        "reconstruction error than a diagonal one.",
        "latents": "A full posterior covariance uses fewer latents than a diagonal one.",
        "needed": "A full posterior covariance uses as many latents as the manifold has "
        "dimensions.",
    },
    findings={
        "bounds": "With as many latents as data dimensions, the cost of a diagonal covariance "
        "lies between the Hadamard gaps of the decoders trained with diagonal and with full "
        "covariance.",
        "bounds_wide": "Also with two to four times as many latents, the cost lies between both "
        "Hadamard gaps.",
        "bounds_learned": "Also with a learned noise variance, the cost lies between both "
        "Hadamard gaps.",
        "dimension": "A diagonal covariance costs more for data of r ≥ 4 dimensions than r ≤ 3.",
        "images": "On generated images, too, the cost lies between both Hadamard gaps.",
        "parts": "Each of three measures improves the training of a full covariance: off-diagonal "
        "entries relative to the standard deviations, their division by √k for k latents, and "
        "latents that are independent in the first steps.",
    },
    smoke=Scale(
        SMOKE,
        {"bounds": expected(SMOKE)["bounds"]},
        reported(SMOKE),
        UNJUDGED,
    ),
    paper=Scale(PAPER, expected(PAPER), reported(PAPER)),
    draw="sparsity.costs",
)
