"""Recovery of the support under noise."""

from __future__ import annotations

from lucidae.experiments.declaration import Drawing, Experiment
from lucidae.experiments.sparsity.recovery import above, scales
from lucidae.experiments.verdicts import AtLeast, Ordered

EXPERIMENT = Experiment(
    name="sparse-noise",
    title="Recovery of the relevant columns from noisy responses",
    reference="Wipf 2023, Figure 2(d)",
    shows="recovery of the support against the number of active rows at 20 dB, four methods",
    claim="With noise the full VAE has the highest success rate, followed by the diagonal VAE, the "
    "autoencoder and the group lasso: even a diagonal posterior removes some local minima of the "
    "autoencoder.",
    scales=scales(
        smoke=(
            above("full", "diagonal", at=(18, 36), margin=0.03),
            Ordered(
                ("diagonal", "autoencoder"),
                at="mean",
                margin=-0.02,
                says="the diagonal VAE does not recover less than the autoencoder",
            ),
            above("autoencoder", "group lasso", at=(18, 36), margin=0.0),
            AtLeast("full", 0.9, at=24, says="success rate of the full VAE at r = 0.6 d"),
        ),
        paper=(
            above("full", "diagonal", at=(50, 80), margin=0.1),
            above("diagonal", "autoencoder", at=(50, 80), margin=0.05),
            above("autoencoder", "group lasso", at=(40, 70), margin=0.05),
            AtLeast("full", 0.95, at=60, says="success rate of the full VAE at r = 0.6 d"),
        ),
        snr_db=20.0,
        criterion="support",
        tol=1e-4,
    ),
    draw=Drawing("recovery", "recovery"),
)
