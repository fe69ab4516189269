"""Recovery of the support under noise."""

from __future__ import annotations

from lucidae.experiments.declaration import Drawing, Experiment, Statement, own
from lucidae.experiments.sparsity.recovery import ABOUT, above, rate, scales
from lucidae.experiments.verdicts import AtLeast

EXPERIMENT = Experiment(
    name="sparse-noise",
    title="Recovery of the relevant columns from noisy responses",
    reference="Wipf 2023, Figure 2(d)",
    shows="recovery of the support against the number of active rows at 20 dB, four methods",
    about=f"{ABOUT} Noise of 20 dB is added to the responses, and recovery of the support, the set "
    "of nonzero rows, counts as success.",
    statements={
        "full": Statement("With noise, too, the full VAE has the highest success rate."),
        "diagonal": Statement(
            "With noise the diagonal VAE recovers more than the autoencoder: even a diagonal "
            "posterior removes some local minima."
        ),
        "lasso": Statement("The autoencoder recovers more than the group lasso."),
        "rate": own("The full VAE recovers nearly all supports of 0.6 d rows."),
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
