"""Recovery of codes whose rows have unit norm."""

from __future__ import annotations

from lucidae.experiments.declaration import Drawing, Experiment
from lucidae.experiments.sparsity.recovery import above, scales
from lucidae.experiments.verdicts import Agree, AtLeast

EQUAL = "the diagonal VAE has the success rate of the autoencoder"

EXPERIMENT = Experiment(
    name="sparse-unit",
    title="Recovery of the relevant columns: rows of unit norm",
    reference="Wipf 2023, Figure 2(a)",
    shows="recovery against the number of active rows, four methods, rows of unit norm",
    claim="Even where the theory guarantees least, the full-covariance VAE recovers more than the "
    "autoencoder. The diagonal VAE equals the autoencoder as γ → 0, and both recover more than "
    "the group lasso.",
    scales=scales(
        smoke=(
            above("full", "autoencoder", at=(24, 36), margin=0.05),
            above("autoencoder", "group lasso", at=(18, 28), margin=0.1),
            Agree("diagonal", "autoencoder", 0.1, at="everywhere", says=EQUAL),
            AtLeast("full", 0.9, at=24, says="success rate of the full VAE at r = 0.6 d"),
        ),
        paper=(
            above("full", "autoencoder", at=(50, 80), margin=0.3),
            above("autoencoder", "group lasso", at=(40, 70), margin=0.1),
            Agree("diagonal", "autoencoder", 0.05, at="mean", says=EQUAL),
            AtLeast("full", 0.95, at=70, says="success rate of the full VAE at r = 0.7 d"),
        ),
    ),
    draw=Drawing("recovery", "recovery"),
)
