"""Recovery of the support under noise."""

from __future__ import annotations

from typing import Any

from lucidae.experiments.declaration import Drawing, Experiment, Scale
from lucidae.experiments.sparsity.recovery import Recovery
from lucidae.experiments.verdicts import AtLeast, Ordered

NOISY: dict[str, Any] = {"snr_db": 20.0, "criterion": "support", "tol": 1e-4}

EXPERIMENT = Experiment(
    name="sparse-noise",
    title="Which columns explain noisy responses",
    reference="Wipf 2023, Figure 2(d)",
    shows="recovery of the support against the number of active rows at 20 dB, four methods",
    claim="With noise the order is full VAE, diagonal VAE, autoencoder, group lasso: even a "
    "diagonal posterior smooths away some minima that the autoencoder keeps.",
    scales={
        "smoke": Scale(
            Recovery((6, 12, 18, 24, 28, 32, 36), 12, d=40, kappa=80, **NOISY),
            (
                Ordered(("full", "diagonal"), at=(18, 36), margin=0.03, says="full above diagonal"),
                Ordered(
                    ("diagonal", "autoencoder"),
                    at="mean",
                    margin=-0.02,
                    says="diagonal not below autoencoder",
                ),
                Ordered(
                    ("autoencoder", "group lasso"),
                    at=(18, 36),
                    margin=0.0,
                    says="autoencoder above group lasso",
                ),
                AtLeast("full", 0.9, at=24, says="the full VAE is right at r = 0.6 d"),
            ),
        ),
        "paper": Scale(
            Recovery(tuple(range(1, 101)), 100, **NOISY),
            (
                Ordered(("full", "diagonal"), at=(50, 80), margin=0.1, says="full above diagonal"),
                Ordered(
                    ("diagonal", "autoencoder"),
                    at=(50, 80),
                    margin=0.05,
                    says="diagonal above autoencoder",
                ),
                Ordered(
                    ("autoencoder", "group lasso"),
                    at=(40, 70),
                    margin=0.05,
                    says="autoencoder above group lasso",
                ),
                AtLeast("full", 0.95, at=60, says="the full VAE is right at r = 0.6 d"),
            ),
        ),
    },
    draw=Drawing("recovery", "recovery"),
)
