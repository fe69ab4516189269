"""Recovery with the correlated columns of a MEG lead field."""

from __future__ import annotations

from lucidae.experiments.declaration import Drawing, Experiment, Scale
from lucidae.experiments.sparsity.recovery import Recovery
from lucidae.experiments.verdicts import AtLeast, Ordered

EXPERIMENT = Experiment(
    name="sparse-leadfield",
    title="Sources in the brain: correlated columns",
    reference="Wipf 2023, Figure 2(c)",
    shows="recovery against the number of active sources, MEG lead field as dictionary",
    claim="Correlated columns make the group lasso and the autoencoder fail early, and the "
    "diagonal VAE with them, while the full VAE keeps a high success rate.",
    scales={
        "smoke": Scale(
            Recovery((6, 12, 18, 24, 28, 32, 36), 12, d=40, kappa=80, leadfield=True),
            (
                AtLeast("full", 0.85, at=(6, 28), says="the full VAE holds out"),
                Ordered(("full", "autoencoder"), at="mean", margin=0.3, says="autoencoder drops"),
                Ordered(("full", "diagonal"), at="mean", margin=0.3, says="diagonal drops"),
                Ordered(("full", "group lasso"), at="mean", margin=0.3, says="group lasso drops"),
            ),
        ),
        "paper": Scale(
            Recovery(tuple(range(1, 101)), 100, leadfield=True),
            (
                AtLeast("full", 0.9, at=(1, 60), says="the full VAE holds out"),
                Ordered(("full", "autoencoder"), at="mean", margin=0.3, says="autoencoder drops"),
                Ordered(("full", "diagonal"), at="mean", margin=0.3, says="diagonal drops"),
                Ordered(("full", "group lasso"), at="mean", margin=0.3, says="group lasso drops"),
            ),
        ),
    },
    draw=Drawing("recovery", "recovery"),
)
