"""Experiments: deep VAEs of images with a full and with a diagonal posterior covariance."""

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
    own,
)
from lucidae_papers.verdicts import AtMost, Ordered, Outweighs, Reported

QUANTITIES = ("mse", "sampled_mse", "kl", "active", "active_directions", "loss", "noise_variance")
DATA = {
    "smoke": "digits, 1500 images for training and 297 for evaluation",
    "paper": "MNIST, 60 000 images for training and 10 000 for evaluation",
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """Settings: networks of equal size with both kinds of posterior covariance; needs PyTorch."""

    scale: str  # name of the settings in `lucidae_papers.vae.training`
    seconds: float  # approximate seconds per run
    # noise variance γ of the decoder: learned by each model, or fixed
    noise_variance: str | float = "learn"

    def cells(self) -> Sequence[Cell]:
        """Return one run per kind of posterior covariance (full, diagonal) and seed."""
        study = self._study()
        settings = study.cell_settings(self.scale, self.noise_variance)
        return [Cell(study.measure, one, self.seconds) for one in settings]

    def _study(self) -> Any:
        """Import and return `lucidae_papers.vae.training`, which needs PyTorch."""
        try:
            from lucidae_papers.vae import training
        except ImportError as error:
            raise ValueError(
                "the experiments on deep VAEs need PyTorch, which is not installed: "
                f"{install_command('torch')}."
            ) from error
        return training

    def curves(self, results: Results) -> Curves:
        """Return each measured quantity over the epochs, averaged over the seeds.

        ELBO is the evidence lower bound. ``"evidence"`` is −ELBO with full minus −ELBO with
        diagonal covariance, in nats per image.
        """
        curves = {}
        for kind in ("full", "diagonal"):
            cells = results.where(arm=kind).cells
            for name in QUANTITIES:
                series = np.mean([cell.arrays[name] for cell in cells], axis=0)
                curves[f"{name}/{kind}"] = Curve(np.arange(1, len(series) + 1), series, "epoch")
        evidence = curves["loss/full"].y - curves["loss/diagonal"].y
        curves["evidence"] = Curve(curves["loss/full"].x, evidence, "epoch")
        return curves

    def facts(self) -> Mapping[str, str]:
        """Return the settings in words, for the HTML page of the results."""
        runs = self._study().RUNS[self.scale]
        noise = "learned: the mean squared error of each model"
        if self.noise_variance != "learn":
            noise = f"fixed at {self.noise_variance:g} for both models"
        return {
            "data": DATA[self.scale],
            "networks": f"{runs.latent_dim} latents, width {runs.width}, "
            f"image size halved {runs.stages} times",
            "noise variance γ": noise,
            "training": f"{runs.training.epochs} epochs, batches of "
            f"{runs.training.batch_size}, latents independent for the first "
            f"{runs.training.uncoupled:.0%} of the steps",
            "seeds": str(len(runs.seeds)),
        }


STATEMENTS = {
    "error": Statement(
        "The VAE with a full posterior covariance has a lower reconstruction error "
        "than the VAE with a diagonal one."
    ),
    "latents": Statement(
        "The VAE with a full posterior covariance uses fewer latents than the "
        "VAE with a diagonal one."
    ),
    "evidence": own(
        "The VAE with a full posterior covariance has a higher evidence lower bound "
        "(ELBO) than the VAE with a diagonal one."
    ),
}
EXPECT = {
    "error": (
        Outweighs(
            "mse/diagonal",
            "mse/full",
            1.0,
            says="reconstruction error from posterior means: ratio of the diagonal-covariance VAE "
            "to the full-covariance VAE",
        ),
        Outweighs(
            "sampled_mse/diagonal",
            "sampled_mse/full",
            1.0,
            says="reconstruction error from samples of the posterior: ratio of the "
            "diagonal-covariance VAE to the full-covariance VAE",
        ),
    ),
    "latents": (
        Ordered(
            ("active_directions/diagonal", "active_directions/full"),
            margin=1.0,
            says="number of active latent directions: diagonal-covariance VAE minus "
            "full-covariance VAE",
        ),
    ),
    "evidence": (
        AtMost(
            "evidence",
            0.0,
            says="negative evidence lower bound (−ELBO) in nats per image: full-covariance VAE "
            "minus diagonal-covariance VAE",
        ),
    ),
}
REPORTED = tuple(
    Reported(f"{name}/{kind}", says=f"{words}, {kind} covariance")
    for name, words in (
        ("active", "number of active latents (coordinates)"),
        ("kl", "KL divergence to the prior in nats per image"),
    )
    for kind in ("full", "diagonal")
)


def scales(smoke: str | float, paper: str | float) -> dict[str, Scale]:
    """Return the settings at the scales "smoke" (small) and "paper", for given noise variances.

    A noise variance is a number, or "learn".
    """
    return {
        "smoke": Scale(
            Comparison("smoke", 15.0, smoke),
            {"evidence": EXPECT["evidence"]},
            REPORTED,
            dict.fromkeys(("error", "latents"), "12 epochs on 1500 small images do not decide it."),
        ),
        "paper": Scale(Comparison("paper", 300.0, paper), EXPECT, REPORTED),
    }


ABOUT = (
    "Two variational autoencoders (VAE) with residual networks of equal capacity, which differ in "
    "the posterior covariance only: full, or diagonal. Active directions are counted instead of "
    "latents, because with a full covariance a rotation of the latents changes nothing."
)

EXPERIMENT = Experiment(
    name="vae-mnist",
    title="Full against diagonal covariance in deep VAEs",
    reference="Wipf 2023, Section 5.2",
    shows="error and number of used latents of deep VAEs with full and with diagonal covariance",
    about=ABOUT,
    statements=STATEMENTS,
    scales=scales("learn", "learn"),
    draw=Drawing("sparsity", "covariances"),
)


FIXED_NOISE = Experiment(
    name="vae-mnist-fixed",
    title="Full against diagonal covariance in deep VAEs of equal noise variance",
    reference="Wipf 2023, Section 5.2",
    shows="error and number of used latents of deep VAEs at one fixed noise variance",
    about=f"{ABOUT} Here the noise variance γ is the same fixed number for both models, so that "
    "both have the same trade-off between the error and the KL divergence.",
    statements=STATEMENTS,
    scales=scales(0.05, 0.02),
    draw=Drawing("sparsity", "covariances"),
)
