"""Experiment: recovery of codes whose nonzero rows have unit norm."""

from __future__ import annotations

from lucidae.experiments.declaration import Drawing, Experiment, Statement, own
from lucidae.experiments.sparsity.recovery import ABOUT, above, rate, scales
from lucidae.experiments.verdicts import Agree, AtLeast

EQUAL = (
    "success rates of the diagonal-covariance VAE and the autoencoder at recovering r nonzero rows"
)

EXPERIMENT = Experiment(
    name="sparse-unit",
    title="Recovery of the relevant columns: rows of unit norm",
    reference="Wipf 2023, Figure 2(a)",
    shows="recovery of sparse codes against the number of nonzero rows, all of unit norm",
    about=f"{ABOUT} The nonzero rows have unit norm, which is the case for which the theory "
    "of Wipf 2023 guarantees least.",
    statements={
        "full": Statement(
            "The full-covariance VAE has a higher success rate than the autoencoder."
        ),
        "diagonal": Statement(
            "The diagonal-covariance VAE has the same success rate as the autoencoder."
        ),
        "lasso": Statement(
            "Both VAEs and the autoencoder have higher success rates than the group lasso."
        ),
        "rate": own(
            "The full-covariance VAE recovers nearly all codes with r = 0.6 d nonzero rows, where "
            "d is the number of rows of the dictionary."
        ),
    },
    scales=scales(
        smoke={
            "full": (above("full", "autoencoder", at=(24, 36), margin=0.05),),
            "diagonal": (Agree("diagonal", "autoencoder", 0.1, at="everywhere", says=EQUAL),),
            "lasso": tuple(
                above(method, "group lasso", at=(18, 28), margin=0.1)
                for method in ("full", "diagonal", "autoencoder")
            ),
            "rate": (AtLeast("full", 0.9, at=24, says=rate("full")),),
        },
        paper={
            "full": (above("full", "autoencoder", at=(50, 80), margin=0.3),),
            "diagonal": (Agree("diagonal", "autoencoder", 0.05, at="mean", says=EQUAL),),
            "lasso": tuple(
                above(method, "group lasso", at=(40, 70), margin=0.1)
                for method in ("full", "diagonal", "autoencoder")
            ),
            "rate": (AtLeast("full", 0.95, at=60, says=rate("full")),),
        },
    ),
    draw=Drawing("recovery", "recovery"),
)
