"""Six models and two optimizers: how fast the axes are found."""

from __future__ import annotations

from typing import Any

from lucidae.experiments.declaration import Drawing, Experiment, Scale
from lucidae.experiments.linear.training import TrainingRuns, Trial
from lucidae.experiments.verdicts import AtLeast, AtMost, Between, Reported, Sooner

# Bao et al. 2020, Table 2.
PAPER_RATES = {
    ("uniform_l2", "nesterov"): 1e-3,
    ("nonuniform_l2", "nesterov"): 3e-4,
    ("rag", "nesterov"): 3e-3,
    ("nested_dropout", "nesterov"): 3e-2,
    ("expected_nested_dropout", "nesterov"): 3e-2,
    ("linear_vae", "nesterov"): 1e-3,
    ("uniform_l2", "adam"): 1e-3,
    ("nonuniform_l2", "adam"): 1e-2,
    ("nested_dropout", "adam"): 1e-2,
    ("expected_nested_dropout", "adam"): 1e-2,
    ("linear_vae", "adam"): 1e-3,
}
# The winners of lae-learning-rates at its smoke scale.
DIGITS_RATES = {
    ("uniform_l2", "nesterov"): 3e-2,
    ("nonuniform_l2", "nesterov"): 3e-2,
    ("rag", "nesterov"): 1e-2,
    ("nested_dropout", "nesterov"): 1e-1,
    ("expected_nested_dropout", "nesterov"): 3e-1,
    ("linear_vae", "nesterov"): 1e-2,
    ("uniform_l2", "adam"): 1e-3,
    ("nonuniform_l2", "adam"): 1e-2,
    ("nested_dropout", "adam"): 1e-2,
    ("expected_nested_dropout", "adam"): 1e-2,
    ("linear_vae", "adam"): 3e-3,
}
PAPER_MARKS = (1000, 5000, 10_000, 30_000)
DIGITS_MARKS = (1000, 3000)
PAPER_PENALTIES = {
    "uniform_l2": {"rule": "uniform", "value": 0.25},
    "nonuniform_l2": {"rule": "spaced", "low": 0.1, "high": 0.9},
}
# As far below the digits' variances as the paper's are below MNIST's: one latent must die.
DIGITS_PENALTIES = {
    "uniform_l2": {"rule": "uniform", "value": 0.05},
    "nonuniform_l2": {"rule": "spaced", "low": 0.045, "high": 0.4025},
}


def trials(
    rates: dict[tuple[str, str], float], penalties: dict[str, dict[str, Any]], **shared: Any
) -> tuple[Trial, ...]:
    """Return one trial per model and optimizer, with the penalties of the ℓ₂ models."""
    return tuple(
        Trial(method, optimizer, rate, penalties=penalties.get(method), **shared)
        for (method, optimizer), rate in rates.items()
    )


EXPERIMENT = Experiment(
    name="lae-dynamics",
    title="Learning dynamics of six models",
    reference="Bao et al. 2020, Figure 2",
    shows="axis-alignment and subspace distance over the epochs, six models, two optimizers",
    claim="Every model finds the principal subspace, but the uniform penalty never finds the "
    "axes, the non-uniform penalty hardly does, and rotation-augmented gradient does so fast. "
    "Adam speeds up the regularised models.",
    scales={
        "smoke": Scale(
            TrainingRuns(
                trials(
                    DIGITS_RATES,
                    DIGITS_PENALTIES,
                    data="digits",
                    k=10,
                    n_epochs=3000,
                    marks=DIGITS_MARKS,
                ),
                {"rates": "the best of lae-learning-rates at its smoke scale"},
            ),
            (
                AtMost("alignment/rag/nesterov", 0.1, at=3000, says="RAG finds the axes"),
                AtMost("subspace/rag/nesterov", 1e-3, at=1000, says="RAG finds the subspace"),
                Between(
                    "alignment/uniform_l2/nesterov",
                    0.5,
                    0.8,
                    at=3000,
                    says="the uniform penalty does not find the axes",
                ),
                AtMost(
                    "subspace/uniform_l2/nesterov",
                    1e-3,
                    at=3000,
                    says="the uniform penalty does find the subspace",
                ),
                AtLeast(
                    "alignment/nonuniform_l2/nesterov",
                    0.15,
                    at=3000,
                    says="the non-uniform penalty is slow",
                ),
                AtMost(
                    "alignment/expected_nested_dropout/nesterov",
                    0.1,
                    at=3000,
                    says="expected nested dropout finds the axes",
                ),
                Sooner(
                    "alignment/rag/nesterov",
                    "alignment/nonuniform_l2/nesterov",
                    0.2,
                    factor=1.5,
                    says="RAG is faster than the non-uniform penalty",
                ),
                Sooner(
                    "alignment/linear_vae/adam",
                    "alignment/linear_vae/nesterov",
                    0.1,
                    factor=2.0,
                    says="Adam speeds up the linear VAE",
                ),
            ),
        ),
        "paper": Scale(
            TrainingRuns(
                trials(
                    PAPER_RATES,
                    PAPER_PENALTIES,
                    data="mnist",
                    k=20,
                    n_epochs=30_000,
                    marks=PAPER_MARKS,
                ),
                {"rates": "Table 2 of the paper"},
            ),
            (
                AtMost("alignment/rag/nesterov", 0.1, at=5000, says="RAG finds the axes fast"),
                AtMost("alignment/rag/nesterov", 0.01, at=30_000, says="RAG finds the axes"),
                Between(
                    "alignment/uniform_l2/nesterov",
                    0.65,
                    0.8,
                    at=30_000,
                    says="the uniform penalty does not find the axes",
                ),
                AtLeast(
                    "alignment/nonuniform_l2/nesterov",
                    0.3,
                    at=30_000,
                    says="the non-uniform penalty is slow",
                ),
                AtMost(
                    "alignment/expected_nested_dropout/nesterov",
                    0.2,
                    at=5000,
                    says="expected nested dropout finds the axes",
                ),
                Sooner(
                    "alignment/nonuniform_l2/adam",
                    "alignment/nonuniform_l2/nesterov",
                    0.4,
                    factor=3.0,
                    says="Adam speeds up the non-uniform penalty",
                ),
                Sooner(
                    "alignment/linear_vae/adam",
                    "alignment/linear_vae/nesterov",
                    0.3,
                    factor=2.0,
                    says="Adam speeds up the linear VAE",
                ),
                Reported(
                    "subspace/nonuniform_l2/adam",
                    at=30_000,
                    says="two latents of the non-uniform penalty must die, which costs 0.1",
                ),
            ),
        ),
    },
    draw=Drawing("training", "dynamics"),
)
