"""Deep VAEs with full and with diagonal covariance at one noise variance for both."""

from __future__ import annotations

from lucidae.experiments.declaration import Drawing, Experiment
from lucidae.experiments.vae.mnist import scales

EXPERIMENT = Experiment(
    name="vae-mnist-fixed",
    title="Full against diagonal covariance in deep VAEs of equal noise variance",
    reference="Wipf 2023, Section 5.2",
    shows="error and active latents of deep VAEs at one fixed noise variance",
    claim="Of two ResNet VAEs of equal capacity, the one with full covariance reconstructs better "
    "and uses fewer latents. Here both have the same trade-off between error and KL.",
    scales=scales(0.05, 0.02),
    draw=Drawing("recovery", "covariances"),
)
