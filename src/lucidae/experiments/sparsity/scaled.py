"""Recovery of codes whose rows have very different norms."""

from __future__ import annotations

from lucidae.experiments.declaration import Drawing, Experiment, Scale
from lucidae.experiments.sparsity.recovery import Recovery
from lucidae.experiments.verdicts import AtLeast, AtMost, Ordered, Reported

EXPERIMENT = Experiment(
    name="sparse-scaled",
    title="Which columns explain the responses: rows of very different norms",
    reference="Wipf 2023, Figure 2(b)",
    shows="recovery against the number of active rows, norms from Jeffreys' prior",
    claim="Widely different row norms, which Theorem 4.1 asks for, make the full VAE nearly "
    "perfect up to the limit of any method, while the autoencoder gets much worse.",
    scales={
        "smoke": Scale(
            Recovery((6, 12, 18, 24, 28, 32, 36), 12, d=40, kappa=80, row_scaling="jeffreys"),
            (
                AtLeast("full", 0.9, at=(6, 28), says="the full VAE is nearly perfect"),
                AtMost("autoencoder", 0.4, at=(12, 36), says="the autoencoder degrades"),
                Ordered(("full", "group lasso"), at="mean", margin=0.2, says="full on top"),
                Reported("frobenius/full", at=36, says="by the Frobenius criterion"),
            ),
        ),
        "paper": Scale(
            Recovery(tuple(range(1, 101)), 100, row_scaling="jeffreys"),
            (
                AtLeast("full", 0.95, at=(1, 80), says="the full VAE is nearly perfect"),
                AtMost("autoencoder", 0.1, at=(30, 100), says="the autoencoder degrades"),
                Ordered(("full", "group lasso"), at="mean", margin=0.3, says="full on top"),
                Reported("full", at=90, says="full VAE, row by row"),
                Reported("frobenius/full", at=90, says="full VAE by the Frobenius criterion"),
            ),
        ),
    },
    draw=Drawing("recovery", "recovery"),
)
