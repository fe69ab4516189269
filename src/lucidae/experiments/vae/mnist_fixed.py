"""Experiment: deep VAEs with full and with diagonal covariance, at one fixed noise variance."""

from __future__ import annotations

from lucidae.experiments.declaration import Drawing, Experiment
from lucidae.experiments.vae.mnist import ABOUT, STATEMENTS, scales

EXPERIMENT = Experiment(
    name="vae-mnist-fixed",
    title="Full against diagonal covariance in deep VAEs of equal noise variance",
    reference="Wipf 2023, Section 5.2",
    shows="error and number of used latents of deep VAEs at one fixed noise variance",
    about=f"{ABOUT} Here the noise variance γ is the same fixed number for both models, so that "
    "both have the same trade-off between the error and the KL divergence.",
    statements=STATEMENTS,
    scales=scales(0.05, 0.02),
    draw=Drawing("recovery", "covariances"),
)
