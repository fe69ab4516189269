"""Experiment: deep VAEs of images with a full and with a diagonal posterior covariance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lucidae_papers.cells import Cell, settings_of, work_with_torch
from lucidae_papers.declaration import Experiment, Scale
from lucidae_papers.results import Curve, Curves, Results
from lucidae_papers.verdicts import Ordered, Outweighs, Reported

QUANTITIES = ("mse", "kl", "loss", "noise_variance")
THRESHOLDS = (0.1, 0.5, 0.9)
"""A latent, or a direction, counts as active if its posterior variance, averaged over the images,
is below the threshold; that of the prior is 1 (Wipf 2023, Definition 3.1)."""

Pairs = tuple[tuple[str, str], ...]
HEADS: Pairs = (("full", "diagonal"), ("full, warm-up", "diagonal"))
"""Arms that are compared: with full and with diagonal covariance, which a head predicts."""

DECODER: Pairs = (("full, no head", "diagonal, no head"),)
"""The same for covariances that are taken from the decoder."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Settings: networks of equal size, trained with several kinds of posterior covariance."""

    pairs: Pairs
    data: str  # name of the images in `lucidae_papers.vae.training`
    latents: int
    channels: int  # base channels of the convolutions
    epochs: int
    batch_size: int
    learning_rate: float  # the largest of one cycle
    seeds: int
    seconds: float  # approximate seconds per run

    @property
    def arms(self) -> tuple[str, ...]:
        """Names of the kinds of posterior covariance."""
        return arms_of(self.pairs)

    def cells(self) -> Sequence[Cell]:
        """Return one run per arm and seed."""
        measure = work_with_torch("vae.published")
        names = ("data", "latents", "channels", "epochs", "batch_size", "learning_rate")
        shared = settings_of(self, *names)
        return [
            Cell(measure, {"arm": arm, "seed": seed, **shared}, self.seconds)
            for arm in self.arms
            for seed in range(self.seeds)
        ]

    def curves(self, results: Results) -> Curves:
        """Return measured quantities over the epochs, and numbers of active latents.

        ``"coordinates"`` and ``"directions"`` are, over the thresholds, the numbers of latents and
        of eigenvectors of the mean posterior covariance whose variance is below the threshold;
        ``"variances"`` and ``"eigenvalues"`` are these variances in ascending order.
        """
        curves = {}
        for arm in self.arms:
            runs = [cell.arrays for cell in results.where(arm=arm)]
            epochs = np.arange(1, len(runs[0]["mse"]) + 1)
            for name in QUANTITIES:
                measured = [run[name] for run in runs]
                curves[f"{name}/{arm}"] = Curve.over_seeds(epochs, measured, "epoch")
            spectra = {
                "coordinates": [np.sort(np.diag(run["covariance"])) for run in runs],
                "directions": [np.linalg.eigvalsh(run["covariance"]) for run in runs],
            }
            for name, values in spectra.items():
                counts = [[np.sum(one < level) for level in THRESHOLDS] for one in values]
                curves[f"{name}/{arm}"] = Curve.over_seeds(THRESHOLDS, counts, "variance below")
                order = np.arange(1, self.latents + 1)
                curves[f"variances of {name}/{arm}"] = Curve.over_seeds(order, values)
        return curves

    def facts(self) -> Mapping[str, str]:
        """Return the settings in words, for the HTML page of the results."""
        return {
            "data": f"{self.data}, pixels from 0.001 to 0.999",
            "networks": f"those published by Zheng et al. 2023: {self.latents} latents, "
            f"{self.channels} base channels",
            "training": f"{self.epochs} epochs, batches of {self.batch_size}, Adam, one cycle of "
            f"the learning rate up to {self.learning_rate:g}, γ learned",
            "seeds": str(self.seeds),
        }


def arms_of(pairs: Pairs) -> tuple[str, ...]:
    """Return the names of the arms in some pairs, each once."""
    return tuple(dict.fromkeys(arm for pair in pairs for arm in pair))


def _expect(pairs: Pairs) -> dict[str, tuple[Any, ...]]:
    """Return the comparisons of all pairs of arms, by statement."""
    error, latents = [], []
    for full, diagonal in pairs:
        words = f"{diagonal} (first) and {full} (second)"
        says = f"ratio of the reconstruction errors from posterior means, {words}"
        error.append(Outweighs(f"mse/{diagonal}", f"mse/{full}", 1.0, says=says))
        latents += [
            Ordered(
                (f"{name}/{diagonal}", f"{name}/{full}"),
                level,
                1.0,
                f"number of active {name} minus that of the other model, {words}",
            )
            for name in ("coordinates", "directions")
            for level in THRESHOLDS
        ]
    return {"error": tuple(error), "latents": tuple(latents)}


def _reported(pairs: Pairs) -> tuple[Reported, ...]:
    return tuple(
        Reported(f"{name}/{arm}", says=f"{words}, {arm}")
        for name, words in (
            ("mse", "mean squared error of a pixel"),
            ("loss", "negative evidence lower bound (−ELBO) in nats per image"),
        )
        for arm in arms_of(pairs)
    )


def _experiment(
    name: str, title: str, how: str, pairs: Pairs, epochs: int, seeds: int
) -> Experiment:
    """Return the comparison of some pairs of arms, for a number of epochs and seeds."""
    return Experiment(
        name=name,
        title=title,
        reference="Wipf 2023, Section 5.2",
        about="Variational autoencoders (VAE) with residual networks of equal capacity, which "
        f"differ in the posterior covariance only: full or diagonal, {how}. The paper does not "
        "give its settings; these are those of the code that it refers to.",
        claims={
            "error": "A full posterior covariance gives a lower reconstruction error than a "
            "diagonal one.",
            "latents": "A full posterior covariance uses fewer latents than a diagonal one.",
        },
        smoke=Scale(
            Comparison(pairs, "digits", 8, 3, 10, 150, 1e-2, 2, 5.0),
            {},
            _reported(pairs),
            dict.fromkeys(("error", "latents"), "10 epochs on 1500 small images decide nothing."),
        ),
        paper=Scale(
            Comparison(pairs, "mnist", 32, 5, epochs, 512, 2e-3, seeds, 600.0),
            _expect(pairs),
            _reported(pairs),
        ),
        draw="sparsity.covariances",
    )


EXPERIMENT = _experiment(
    "vae-mnist",
    "Full against diagonal covariance in deep VAEs",
    "predicted by a head from the start, or after a warm-up in which latents are independent for "
    "the first quarter of the steps",
    HEADS,
    epochs=400,
    seeds=4,
)
WITHOUT_HEAD = _experiment(
    "vae-mnist-decoder",
    "Covariances of the decoder in deep VAEs",
    "taken from the decoder, linearised at the posterior mean",
    DECODER,
    epochs=100,  # a step takes four times as long
    seeds=3,
)
