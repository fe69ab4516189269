"""Recovery of codes whose rows have very different norms."""

from __future__ import annotations

from lucidae.experiments.declaration import Drawing, Experiment
from lucidae.experiments.sparsity.recovery import above, scales
from lucidae.experiments.verdicts import AtLeast, AtMost, Reported

EXPERIMENT = Experiment(
    name="sparse-scaled",
    title="Recovery of the relevant columns: rows of very different norms",
    reference="Wipf 2023, Figure 2(b)",
    shows="recovery against the number of active rows, norms from Jeffreys' prior",
    claim="With widely different row norms, the condition of Theorem 4.1, the full VAE succeeds "
    "almost always up to the limit of any method, while the success rate of the autoencoder "
    "becomes much lower.",
    scales=scales(
        smoke=(
            AtLeast("full", 0.9, at=(6, 28), says="success rate of the full VAE"),
            AtMost("autoencoder", 0.4, at=(12, 36), says="success rate of the autoencoder"),
            above("full", "group lasso", at="mean", margin=0.2),
            Reported("frobenius/full", at=36, says="full VAE by the Frobenius criterion"),
        ),
        paper=(
            AtLeast("full", 0.95, at=(1, 80), says="success rate of the full VAE"),
            AtMost("autoencoder", 0.1, at=(30, 100), says="success rate of the autoencoder"),
            above("full", "group lasso", at="mean", margin=0.3),
            Reported("full", at=90, says="full VAE by the criterion on rows"),
            Reported("frobenius/full", at=90, says="full VAE by the Frobenius criterion"),
        ),
        row_scaling="jeffreys",
    ),
    draw=Drawing("recovery", "recovery"),
)
