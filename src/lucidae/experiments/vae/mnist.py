"""Deep VAEs with full and with diagonal covariance on images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lucidae.experiments.declaration import Cell, Curve, Curves, Drawing, Experiment, Results, Scale
from lucidae.experiments.verdicts import AtMost, Ordered, Outweighs, Reported

QUANTITIES = ("mse", "sampled_mse", "kl", "active", "active_directions", "loss", "noise_variance")
DATA = {
    "smoke": "digits, 1500 images for training and 297 for evaluation",
    "paper": "MNIST, 60 000 images for training and 10 000 for evaluation",
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """Networks of equal capacity with both kinds of covariance; needs PyTorch.

    Parameters
    ----------
    scale : {"smoke", "paper"}
        Name of the design in `lucidae.experiments.vae.comparison`.
    seconds : float
        Approximate seconds per run.
    noise_variance : "learn" or float, default="learn"
        γ.
    """

    scale: str
    seconds: float
    noise_variance: str | float = "learn"

    def cells(self) -> Sequence[Cell]:
        """Return one cell per covariance and seed."""
        study = self._study()
        settings = study.cell_settings(self.scale, self.noise_variance)
        return [Cell(study.measure, one, self.seconds) for one in settings]

    def _study(self) -> Any:
        """Import the module that needs PyTorch."""
        try:
            from lucidae.experiments.vae import comparison
        except ImportError as error:
            raise ValueError(
                "the experiments on deep VAEs need PyTorch, which is not installed: "
                "pip install 'lucidae[torch]'."
            ) from error
        return comparison

    def curves(self, results: Results) -> Curves:
        """Return every quantity over the epochs, averaged over the seeds."""
        curves = {}
        for arm in ("full", "diagonal"):
            cells = results.where(arm=arm).cells
            for name in QUANTITIES:
                series = np.mean([cell.arrays[name] for cell in cells], axis=0)
                curves[f"{name}/{arm}"] = Curve(np.arange(1, len(series) + 1), series)
        evidence = curves["loss/full"].y - curves["loss/diagonal"].y
        curves["evidence"] = Curve(curves["loss/full"].x, evidence)
        return curves

    def facts(self) -> Mapping[str, str]:
        """Describe the setting in words."""
        design = self._study().DESIGNS[self.scale]
        noise = "learned: the mean squared error of each model"
        if self.noise_variance != "learn":
            noise = f"fixed at {self.noise_variance:g} for both models"
        return {
            "data": DATA[self.scale],
            "networks": f"{design.latent_dim} latents, width {design.width}, "
            f"{design.stages} halvings of the image size",
            "noise variance γ": noise,
            "training": f"{design.training.epochs} epochs, batches of "
            f"{design.training.batch_size}, latents independent for the first "
            f"{design.training.uncoupled:.0%} of the steps",
            "seeds": str(len(design.seeds)),
        }


SMOKE_CLAIMS = (
    AtMost("evidence", 0.0, says="−ELBO of the full minus that of the diagonal covariance, nats"),
    Ordered(
        ("active_directions/diagonal", "active_directions/full"),
        says="the full covariance does not use more directions",
    ),
    Reported("mse/full", says="error of the full covariance after 12 epochs"),
    Reported("mse/diagonal", says="error of the diagonal covariance after 12 epochs"),
)
PAPER_CLAIMS = (
    Outweighs(
        "mse/diagonal", "mse/full", 1.0, says="the full covariance has the smaller squared error"
    ),
    Ordered(
        ("active_directions/diagonal", "active_directions/full"),
        margin=1.0,
        says="the full covariance uses fewer directions",
    ),
    Reported("active/full", says="active latents (coordinates) of the full covariance"),
    Reported("active/diagonal", says="active latents (coordinates) of the diagonal covariance"),
    AtMost("evidence", 0.0, says="−ELBO of the full minus that of the diagonal covariance, nats"),
    Outweighs(
        "sampled_mse/diagonal",
        "sampled_mse/full",
        1.0,
        says="the full covariance has the smaller squared error from samples",
    ),
    Reported("kl/full", says="KL to the prior of the full covariance, nats"),
    Reported("kl/diagonal", says="KL to the prior of the diagonal covariance, nats"),
)
"""The paper's claim on error and active latents, and the parts of the evidence."""


def scales(smoke: str | float, paper: str | float) -> dict[str, Scale]:
    """Return both scales, each with its noise variance."""
    return {
        "smoke": Scale(Comparison("smoke", 15.0, smoke), SMOKE_CLAIMS),
        "paper": Scale(Comparison("paper", 300.0, paper), PAPER_CLAIMS),
    }


EXPERIMENT = Experiment(
    name="vae-mnist",
    title="Full against diagonal covariance in deep VAEs",
    reference="Wipf 2023, Section 5.2",
    shows="error and active latents of deep VAEs with full and with diagonal covariance",
    claim="Of two ResNet VAEs of equal capacity, the one with full covariance reconstructs better "
    "and uses fewer latents.",
    scales=scales("learn", "learn"),
    draw=Drawing("recovery", "covariances"),
)
