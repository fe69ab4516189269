"""Learning dynamics of six models with two optimizers."""

from __future__ import annotations

from lucidae.experiments.declaration import Drawing, Experiment, Scale
from lucidae.experiments.linear.training import DIGITS, MNIST, Baseline, TrainingRuns
from lucidae.experiments.verdicts import AtLeast, AtMost, Between, Reported, Sooner


def every_run(baseline: Baseline, source_of_rates: str) -> TrainingRuns:
    """Return one run per model and optimizer."""
    trials = tuple(baseline.trial(*pair) for pair in baseline.rates)
    return TrainingRuns(trials, {"rates": source_of_rates})


EXPERIMENT = Experiment(
    name="lae-dynamics",
    title="Learning dynamics of six models",
    reference="Bao et al. 2020, Figure 2",
    shows="axis-alignment and subspace distance over the epochs, six models, two optimizers",
    claim="Every model finds the principal subspace. The uniform penalty does not find the "
    "principal axes, the non-uniform penalty finds them very slowly, and rotation-augmented "
    "gradient (RAG) finds them fast. Adam speeds up the regularised models.",
    scales={
        "smoke": Scale(
            every_run(DIGITS, "the best of lae-learning-rates at its smoke scale"),
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
                    says="the uniform penalty finds the subspace",
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
            every_run(MNIST, "Table 2 of the paper"),
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
                    says="subspace distance of the non-uniform penalty; two penalties exceed their "
                    "eigenvalues, so two latents are zero at the optimum, which alone gives 0.1",
                ),
            ),
        ),
    },
    draw=Drawing("training", "dynamics"),
)
