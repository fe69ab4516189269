"""Experiment: recovery of brain sources from magnetic fields (MEG), a correlated dictionary."""

from __future__ import annotations

from lucidae.experiments.declaration import Drawing, Experiment, Statement
from lucidae.experiments.sparsity.recovery import ABOUT, above, rate, scales
from lucidae.experiments.verdicts import AtLeast

BETTER = tuple(
    above("full", other, at="mean", margin=0.3)
    for other in ("autoencoder", "diagonal", "group lasso")
)

EXPERIMENT = Experiment(
    name="sparse-leadfield",
    title="Recovery of brain sources: correlated columns",
    reference="Wipf 2023, Figure 2(c)",
    shows="recovery of brain sources against their number, MEG lead field as dictionary",
    about=f"{ABOUT} The dictionary is a lead field of magnetoencephalography (MEG), whose columns "
    "are strongly correlated.",
    statements={
        "others": Statement(
            "The success rates of the group lasso, the autoencoder and the diagonal-covariance VAE "
            "fall at small numbers of active sources already."
        ),
        "full": Statement(
            "The full-covariance VAE keeps a high success rate with many active sources."
        ),
    },
    scales=scales(
        smoke={
            "others": BETTER,
            "full": (AtLeast("full", 0.85, at=(6, 28), says=rate("full")),),
        },
        paper={
            "others": BETTER,
            "full": (AtLeast("full", 0.9, at=(1, 60), says=rate("full")),),
        },
        leadfield=True,
    ),
    draw=Drawing("recovery", "recovery"),
)
