"""Recovery of codes whose rows have unit norm."""

from __future__ import annotations

from lucidae.experiments.declaration import Drawing, Experiment, Scale
from lucidae.experiments.sparsity.recovery import Recovery
from lucidae.experiments.verdicts import Agree, AtLeast, Ordered

EXPERIMENT = Experiment(
    name="sparse-unit",
    title="Which columns explain the responses: rows of unit norm",
    reference="Wipf 2023, Figure 2(a)",
    shows="recovery against the number of active rows, four methods, rows of unit norm",
    claim="Even where theory promises least, the full-covariance VAE recovers more than the "
    "autoencoder; the diagonal VAE equals the autoencoder as γ → 0; both beat the group lasso.",
    scales={
        "smoke": Scale(
            Recovery((6, 12, 18, 24, 28, 32, 36), 12, d=40, kappa=80),
            (
                Ordered(
                    ("full", "autoencoder"),
                    at=(24, 36),
                    margin=0.05,
                    says="full above autoencoder",
                ),
                Ordered(
                    ("autoencoder", "group lasso"),
                    at=(18, 28),
                    margin=0.1,
                    says="autoencoder above group lasso",
                ),
                Agree(
                    "diagonal", "autoencoder", 0.1, at="everywhere", says="diagonal = autoencoder"
                ),
                AtLeast("full", 0.9, at=24, says="the full VAE is right at r = 0.6 d"),
            ),
        ),
        "paper": Scale(
            Recovery(tuple(range(1, 101)), 100),
            (
                Ordered(
                    ("full", "autoencoder"),
                    at=(50, 80),
                    margin=0.3,
                    says="full above autoencoder",
                ),
                Ordered(
                    ("autoencoder", "group lasso"),
                    at=(40, 70),
                    margin=0.1,
                    says="autoencoder above group lasso",
                ),
                Agree("diagonal", "autoencoder", 0.05, at="mean", says="diagonal = autoencoder"),
                AtLeast("full", 0.95, at=70, says="the full VAE is right at r = 0.7 d"),
            ),
        ),
    },
    draw=Drawing("recovery", "recovery"),
)
