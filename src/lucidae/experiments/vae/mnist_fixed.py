"""Deep VAEs with full and with diagonal covariance at one noise variance for both."""

from __future__ import annotations

from lucidae.experiments.declaration import Drawing, Experiment, Scale
from lucidae.experiments.vae.mnist import CLAIMS, Comparison
from lucidae.experiments.verdicts import AtMost, Ordered, Reported

EXPERIMENT = Experiment(
    name="vae-mnist-fixed",
    title="Full against diagonal covariance in deep VAEs of equal noise",
    reference="Wipf 2023, Section 5.2",
    shows="the same at one fixed noise variance, which leaves latents over",
    claim="Of two ResNet VAEs of equal capacity, the one with full covariance reconstructs better "
    "and uses fewer latents; here both weigh error against KL alike.",
    scales={
        "smoke": Scale(
            Comparison("smoke", 15.0, noise_variance=0.05),
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
        "paper": Scale(Comparison("paper", 300.0, noise_variance=0.02), CLAIMS),
    },
    draw=Drawing("recovery", "covariances"),
)
