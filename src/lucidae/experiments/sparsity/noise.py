"""Experiment: recovery of the set of nonzero rows (the support) from noisy responses."""

from __future__ import annotations

from lucidae.experiments.declaration import Drawing, Experiment, Statement, own
from lucidae.experiments.sparsity.recovery import ABOUT, above, rate, scales
from lucidae.experiments.verdicts import AtLeast

EXPERIMENT = Experiment(
    name="sparse-noise",
    title="Recovery of the relevant columns from noisy responses",
    reference="Wipf 2023, Figure 2(d)",
    shows="recovery of the set of nonzero rows against their number, signal-to-noise ratio 20 dB",
    about=f"{ABOUT} Noise is added to the responses, with a signal-to-noise ratio of 20 dB, and "
    "recovery of the support, the set of nonzero rows, counts as success.",
    statements={
        "full": Statement(
            "Also with noise, the full-covariance VAE has the highest success rate of the four "
            "methods."
        ),
        "diagonal": Statement(
            "With noise the diagonal-covariance VAE has a higher success rate than the "
            "autoencoder: even a diagonal posterior removes some local minima."
        ),
        "lasso": Statement(
            "With noise the autoencoder has a higher success rate than the group lasso."
        ),
        "rate": own(
            "The full-covariance VAE recovers nearly all supports of 0.6 d rows, where d is the "
            "number of rows of the dictionary."
        ),
    },
    scales=scales(
        smoke={
            "full": (above("full", "diagonal", at=(18, 36), margin=0.03),),
            "diagonal": (above("diagonal", "autoencoder", at=(18, 36), margin=0.02),),
            "lasso": (above("autoencoder", "group lasso", at=(18, 36), margin=0.02),),
            "rate": (AtLeast("full", 0.9, at=24, says=rate("full")),),
        },
        paper={
            "full": (above("full", "diagonal", at=(50, 80), margin=0.1),),
            "diagonal": (above("diagonal", "autoencoder", at=(50, 80), margin=0.05),),
            "lasso": (above("autoencoder", "group lasso", at=(40, 70), margin=0.05),),
            "rate": (AtLeast("full", 0.95, at=60, says=rate("full")),),
        },
        snr_db=20.0,
        criterion="support",
        tol=1e-4,
    ),
    draw=Drawing("recovery", "recovery"),
)
