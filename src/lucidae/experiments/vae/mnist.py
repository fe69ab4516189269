"""Deep VAEs with full and with diagonal covariance on images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lucidae.experiments.declaration import Cell, Curve, Curves, Drawing, Experiment, Results, Scale
from lucidae.experiments.verdicts import AtMost, Ordered, Outweighs, Reported

ARMS = ("full", "diagonal")
QUANTITIES = ("mse", "sampled_mse", "kl", "active", "active_directions", "loss", "noise_variance")
DATA = {
    "smoke": "digits, 1500 images to train and 297 to measure",
    "paper": "MNIST, 60 000 images to train and 10 000 to measure",
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """Networks of equal capacity, several seeds for each covariance; needs PyTorch."""

    scale: str
    seconds: float
    noise_variance: str | float = "learn"

    def cells(self) -> Sequence[Cell]:
        """Return one cell per covariance and seed."""
        settings = self._settings()
        from lucidae.experiments.vae.cell import measure

        return [Cell(measure, one, self.seconds) for one in settings]

    def _settings(self) -> list[dict[str, Any]]:
        try:
            from lucidae.experiments.vae.cell import cell_settings
        except ImportError as error:
            raise ValueError('deep VAEs need PyTorch: pip install "lucidae[torch]"') from error
        return cell_settings(self.scale, self.noise_variance)

    def curves(self, results: Results) -> Curves:
        """Return every quantity over the epochs, averaged over the seeds."""
        curves = {}
        for arm in ARMS:
            cells = results.where(arm=arm).cells
            for name in QUANTITIES:
                series = np.mean([cell.arrays[name] for cell in cells], axis=0)
                curves[f"{name}/{arm}"] = Curve(np.arange(1, len(series) + 1), series)
        evidence = curves["loss/full"].y - curves["loss/diagonal"].y
        curves["evidence"] = Curve(curves["loss/full"].x, evidence)
        return curves

    def facts(self) -> Mapping[str, str]:
        """Return the setting in words."""
        design = self._settings()[0]["design"]
        training = design["training"]
        return {
            "data": DATA[self.scale],
            "networks": f"{design['latent_dim']} latents, width {design['width']}, "
            f"{design['stages']} halvings",
            "noise variance γ": self._noise(),
            "training": f"{training['epochs']} epochs, batches of {training['batch_size']}, "
            f"latents independent for the first {training['uncoupled']:.0%} of the steps",
            "seeds": str(len(design["seeds"])),
        }

    def _noise(self) -> str:
        if self.noise_variance == "learn":
            return "learned: the mean squared error of each arm"
        return f"fixed at {self.noise_variance:g} for both arms"


CLAIMS = (
    Outweighs("mse/diagonal", "mse/full", 1.0, says="the full covariance errs less"),
    Ordered(
        ("active_directions/diagonal", "active_directions/full"),
        margin=1.0,
        says="it uses fewer directions",
    ),
    Reported("active/full", says="active latents as the coordinates stand, full"),
    Reported("active/diagonal", says="the same, diagonal"),
    AtMost("evidence", 0.0, says="−ELBO in nats, full less diagonal"),
    Outweighs("sampled_mse/diagonal", "sampled_mse/full", 1.0, says="it errs less from samples"),
    Reported("kl/full", says="KL to the prior in nats, full"),
    Reported("kl/diagonal", says="the same, diagonal"),
)
"""The paper's claim on error and active latents, and what the two arms trade for each other."""


EXPERIMENT = Experiment(
    name="vae-mnist",
    title="Full against diagonal covariance in deep VAEs",
    reference="Wipf 2023, Section 5.2",
    shows="error and active latents of deep VAEs with full and with diagonal covariance",
    claim="Of two ResNet VAEs of equal capacity, the one with full covariance reconstructs better "
    "and uses fewer latents.",
    scales={
        "smoke": Scale(
            Comparison("smoke", 15.0),
            (
                AtMost("evidence", 0.0, says="−ELBO in nats, full less diagonal"),
                Ordered(
                    ("active_directions/diagonal", "active_directions/full"),
                    says="the full covariance does not use more directions",
                ),
                Reported("mse/full", says="error of the full covariance after 12 epochs"),
                Reported("mse/diagonal", says="error of the diagonal one after 12 epochs"),
            ),
        ),
        "paper": Scale(Comparison("paper", 300.0), CLAIMS),
    },
    draw=Drawing("recovery", "covariances"),
)
