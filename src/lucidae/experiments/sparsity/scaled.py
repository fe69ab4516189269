"""Experiment: recovery of codes whose nonzero rows have very different norms."""

from __future__ import annotations

from lucidae.experiments.declaration import Drawing, Experiment, Statement, own
from lucidae.experiments.sparsity.recovery import ABOUT, above, rate, scales
from lucidae.experiments.verdicts import AtLeast, AtMost, Reported

FROBENIUS = f"{rate('full')}, if the error of the code is measured in Frobenius norm"

EXPERIMENT = Experiment(
    name="sparse-scaled",
    title="Recovery of the relevant columns: rows of very different norms",
    reference="Wipf 2023, Figure 2(b)",
    shows="recovery of sparse codes against the number of nonzero rows, norms from Jeffreys' prior",
    about=f"{ABOUT} The norms of the nonzero rows differ widely, as Wipf 2023, Theorem 4.1 "
    "assumes.",
    statements={
        "perfect": Statement(
            "The full-covariance VAE recovers the code nearly always, up to r = d nonzero rows for "
            "a dictionary of d rows, which is the limit of any method."
        ),
        "degrades": Statement(
            "The success rate of the autoencoder falls to low values if the row norms differ."
        ),
        "others": Statement(
            "The full-covariance VAE has the highest success rate of the four methods."
        ),
        "most": own(
            "The full-covariance VAE recovers the code nearly always, up to r = 0.7 d nonzero rows "
            "for a dictionary of d rows."
        ),
    },
    scales=scales(
        smoke={
            "perfect": (AtLeast("full", 0.9, at=36, says=rate("full")),),
            "degrades": (AtMost("autoencoder", 0.4, at=(12, 36), says=rate("autoencoder")),),
            "others": (
                above("full", "group lasso", at="mean", margin=0.2),
                above("full", "diagonal", at="mean", margin=0.2),
            ),
            "most": (AtLeast("full", 0.9, at=(6, 28), says=rate("full")),),
        },
        paper={
            "perfect": (AtLeast("full", 0.9, at=90, says=rate("full")),),
            "degrades": (AtMost("autoencoder", 0.1, at=(30, 100), says=rate("autoencoder")),),
            "others": (
                above("full", "group lasso", at="mean", margin=0.3),
                above("full", "diagonal", at="mean", margin=0.3),
            ),
            "most": (AtLeast("full", 0.95, at=(1, 80), says=rate("full")),),
        },
        reported={
            "smoke": (Reported("frobenius/full", at=36, says=FROBENIUS),),
            "paper": (Reported("frobenius/full", at=90, says=FROBENIUS),),
        },
        row_scaling="jeffreys",
    ),
    draw=Drawing("recovery", "recovery"),
)
