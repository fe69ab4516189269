"""Experiment: deep VAEs of images with a full and with a diagonal posterior covariance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lucidae.validation import install_command
from lucidae_papers.declaration import (
    Cell,
    Curve,
    Curves,
    Drawing,
    Experiment,
    Results,
    Scale,
    Statement,
)
from lucidae_papers.verdicts import Ordered, Outweighs, Reported

QUANTITIES = ("mse", "kl", "loss", "noise_variance")
THRESHOLDS = (0.1, 0.5, 0.9)
"""A latent, or a direction, counts as active if its posterior variance, averaged over the images,
is below the threshold; that of the prior is 1 (Wipf 2023, Definition 3.1)."""

PAIRS = (
    ("full", "diagonal"),
    ("full, warm-up", "diagonal"),
    ("full, no head", "diagonal, no head"),
)
"""Arms that are compared: with full and with diagonal covariance."""
ARMS = tuple(dict.fromkeys(arm for pair in PAIRS for arm in pair))


@dataclass(frozen=True, slots=True)
class Comparison:
    """Settings: networks of equal size, trained with five kinds of posterior covariance."""

    data: str  # name of the images in `lucidae_papers.vae.training`
    latents: int
    channels: int  # base channels of the convolutions
    epochs: int
    batch_size: int
    learning_rate: float  # the largest of one cycle
    seeds: int
    # of the arms without a head, whose steps take four times as long; they are compared with each
    # other only
    headless_epochs: int
    headless_seeds: int
    seconds: float  # approximate seconds per run

    def cells(self) -> Sequence[Cell]:
        """Return one run per arm and seed."""
        try:
            from lucidae_papers.vae.published import measure
        except ImportError as error:
            raise ValueError(
                "the experiments on deep VAEs need PyTorch, which is not installed: "
                f"{install_command('torch')}."
            ) from error
        shared = {
            name: getattr(self, name)
            for name in ("data", "latents", "channels", "batch_size", "learning_rate")
        }
        cells = []
        for arm in ARMS:
            headless = arm.endswith("no head")
            epochs = self.headless_epochs if headless else self.epochs
            for seed in range(self.headless_seeds if headless else self.seeds):
                settings = {"arm": arm, "seed": seed, "epochs": epochs, **shared}
                cells.append(Cell(measure, settings, self.seconds))
        return cells

    def curves(self, results: Results) -> Curves:
        """Return measured quantities over the epochs, and numbers of active latents.

        ``"coordinates"`` and ``"directions"`` are, over the thresholds, the numbers of latents and
        of eigenvectors of the mean posterior covariance whose variance is below the threshold;
        ``"variances"`` and ``"eigenvalues"`` are these variances in ascending order.
        """
        curves = {}
        for arm in ARMS:
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
            "warm-up": "latents are independent for the first quarter of the steps",
            "no head": "posterior covariance of the decoder, linearised at the posterior mean; "
            f"{self.headless_epochs} epochs, {self.headless_seeds} seeds",
            "seeds": str(self.seeds),
        }


def _expect() -> dict[str, tuple[Any, ...]]:
    """Return the comparisons of all pairs of arms, by statement."""
    words = "(first) and ".join(("{}", "{} (second)"))
    error, latents = [], []
    for full, diagonal in PAIRS:
        both = words.format(diagonal, full)
        error.append(
            Outweighs(
                f"mse/{diagonal}",
                f"mse/{full}",
                1.0,
                says=f"ratio of the reconstruction errors from posterior means, {both}",
            )
        )
        latents += [
            Ordered(
                (f"{name}/{diagonal}", f"{name}/{full}"),
                at=0.5,
                margin=1.0,
                says=f"number of active {name} minus that of the other model, {both}",
            )
            for name in ("coordinates", "directions")
        ]
    return {"error": tuple(error), "latents": tuple(latents)}


REPORTED = tuple(
    Reported(f"{name}/{arm}", says=f"{words}, {arm}")
    for name, words in (
        ("mse", "mean squared error of a pixel"),
        ("loss", "negative evidence lower bound (−ELBO) in nats per image"),
    )
    for arm in ARMS
)

EXPERIMENT = Experiment(
    name="vae-mnist",
    title="Full against diagonal covariance in deep VAEs",
    reference="Wipf 2023, Section 5.2",
    shows="error and number of used latents of deep VAEs with full and with diagonal covariance",
    about="Variational autoencoders (VAE) with residual networks of equal capacity, which differ "
    "in the posterior covariance only: full or diagonal, predicted by a head from the start, "
    "predicted after a warm-up with independent latents, or taken from the decoder. The paper "
    "does not give its settings; these are those of the code that it refers to.",
    statements={
        "error": Statement(
            "The VAE with a full posterior covariance has a lower reconstruction error "
            "than the VAE with a diagonal one."
        ),
        "latents": Statement(
            "The VAE with a full posterior covariance uses fewer latents than the "
            "VAE with a diagonal one."
        ),
    },
    scales={
        "smoke": Scale(
            Comparison("digits", 8, 3, 10, 150, 1e-2, 2, 10, 2, 5.0),
            {},
            REPORTED,
            dict.fromkeys(("error", "latents"), "10 epochs on 1500 small images decide nothing."),
        ),
        "paper": Scale(
            Comparison("mnist", 32, 5, 400, 512, 2e-3, 4, 100, 3, 600.0), _expect(), REPORTED
        ),
    },
    draw=Drawing("sparsity", "covariances"),
)
