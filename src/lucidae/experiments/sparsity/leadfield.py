"""Recovery with the correlated columns of a MEG lead field."""

from __future__ import annotations

from lucidae.experiments.declaration import Drawing, Experiment
from lucidae.experiments.sparsity.recovery import above, scales
from lucidae.experiments.verdicts import AtLeast

BETTER = tuple(
    above("full", other, at="mean", margin=0.3)
    for other in ("autoencoder", "diagonal", "group lasso")
)

EXPERIMENT = Experiment(
    name="sparse-leadfield",
    title="Recovery of brain sources: correlated columns",
    reference="Wipf 2023, Figure 2(c)",
    shows="recovery against the number of active sources, MEG lead field as dictionary",
    claim="With correlated columns the group lasso, the autoencoder and the diagonal VAE fail at "
    "small numbers of sources, while the full VAE has a high success rate.",
    scales=scales(
        smoke=(AtLeast("full", 0.85, at=(6, 28), says="success rate of the full VAE"), *BETTER),
        paper=(AtLeast("full", 0.9, at=(1, 60), says="success rate of the full VAE"), *BETTER),
        leadfield=True,
    ),
    draw=Drawing("recovery", "recovery"),
)
