"""Learning dynamics of six models with two optimizers."""

from __future__ import annotations

from typing import Any

from lucidae.experiments.declaration import Drawing, Experiment, Scale, Statement, own
from lucidae.experiments.labels import label
from lucidae.experiments.linear.training import DIGITS, MNIST, Baseline, TrainingRuns
from lucidae.experiments.verdicts import AtLeast, AtMost, Reported, Sooner

AXES, SUBSPACE = "distance to the axes", "distance to the subspace"


def every_run(baseline: Baseline, source_of_rates: str) -> TrainingRuns:
    """Return one run per model and optimizer."""
    trials = tuple(baseline.trial(*pair) for pair in baseline.rates)
    return TrainingRuns(trials, {"rates": source_of_rates})


def axes(method: str, optimizer: str = "nesterov") -> dict[str, str]:
    """Return the curve of the distance to the axes of a run, and its name in the figure."""
    return {
        "series": f"alignment/{method}/{optimizer}",
        "says": f"{AXES}, {label(method, optimizer)}",
    }


def subspace(method: str) -> dict[str, str]:
    """Return the curve of the distance to the subspace of a run, and its name in the figure."""
    return {
        "series": f"subspace/{method}/nesterov",
        "says": f"{SUBSPACE}, {label(method, 'nesterov')}",
    }


def sooner(first: tuple[str, str], second: tuple[str, str], level: float) -> Sooner:
    """Claim that the first run comes within a distance of the axes before the second."""
    return Sooner(
        "/".join(("alignment", *first)),
        "/".join(("alignment", *second)),
        level,
        factor=1.2,
        says=f"{AXES}, {label(*first)} against {label(*second)}",
    )


RAG, NON_UNIFORM = ("rag", "nesterov"), ("nonuniform_l2", "nesterov")
NESTED = ("expected_nested_dropout", "nesterov")

STATEMENTS = {
    "uniform": Statement("The uniform ℓ₂ penalty does not find the principal axes."),
    "slow": Statement("With Nesterov momentum the non-uniform ℓ₂ penalty converges slowly."),
    "rag": Statement(
        "The rotation-augmented gradient (RAG) finds the axes, sooner than the non-uniform ℓ₂ "
        "penalty does."
    ),
    "rag_nested": Statement("RAG finds the axes sooner than expected nested dropout does."),
    "adam": Statement("Adam speeds up the regularised models: penalty and nested dropout."),
    "adam_vae": Statement("Adam speeds up the linear VAE."),
    "subspace": own("RAG and the uniform ℓ₂ penalty find the principal subspace."),
    "nested": own("Expected nested dropout finds the axes with Nesterov momentum."),
}


def expect(
    end: int, levels: tuple[float, float], slow: float, aligned: float, nested: tuple[float, int]
) -> dict[str, Any]:
    """Return the verdicts at a scale.

    Parameters
    ----------
    end : int
        The last epoch.
    levels : (float, float)
        Distances to the axes at which two runs are compared, coarse and fine.
    slow, aligned : float
        Distance above which the non-uniform penalty counts as slow at the end, and below which
        RAG has found the axes.
    nested : (float, int)
        Distance that expected nested dropout reaches, and the epoch.
    """
    coarse, fine = levels
    adam = [
        sooner((method, "adam"), (method, "nesterov"), coarse)
        for method in ("nonuniform_l2", "expected_nested_dropout")
    ]
    return {
        "uniform": (AtLeast(**axes("uniform_l2"), bound=0.5, at=end),),
        "slow": (AtLeast(**axes("nonuniform_l2"), bound=slow, at=end),),
        "rag": (AtMost(**axes("rag"), bound=aligned, at=end), sooner(RAG, NON_UNIFORM, fine)),
        "rag_nested": (sooner(RAG, NESTED, coarse),),
        "adam": tuple(adam),
        "adam_vae": (sooner(("linear_vae", "adam"), ("linear_vae", "nesterov"), fine),),
        "subspace": (
            AtMost(**subspace("rag"), bound=1e-3, at=end),
            AtMost(**subspace("uniform_l2"), bound=1e-3, at=end),
        ),
        "nested": (AtMost(**axes(*NESTED), bound=nested[0], at=nested[1]),),
    }


EXPERIMENT = Experiment(
    name="lae-dynamics",
    title="Learning dynamics of six models",
    reference="Bao et al. 2020, Figure 2",
    shows="axis-alignment and subspace distance over the epochs, six models, two optimizers",
    about="Six linear autoencoders are trained with two optimizers. The distance to the axes is "
    "the axis-alignment distance of Bao et al. 2020, Definition 7.1, the distance to the subspace "
    "that of Definition 7.2; both lie between 0 and 1.",
    statements=STATEMENTS,
    scales={
        "smoke": Scale(
            every_run(DIGITS, "the best of lae-learning-rates at its smoke scale"),
            expect(3000, (0.3, 0.2), 0.15, 0.1, (0.1, 3000)),
        ),
        "paper": Scale(
            every_run(MNIST, "Bao et al. 2020, Table 2"),
            expect(30_000, (0.4, 0.3), 0.3, 0.01, (0.2, 5000)),
            reported=(
                Reported(
                    "subspace/nonuniform_l2/adam",
                    at=30_000,
                    says=f"{SUBSPACE}, {label('nonuniform_l2', 'adam')}; two penalties exceed "
                    "their eigenvalues, so two latents are zero at the optimum, which alone gives "
                    "0.1",
                ),
            ),
        ),
    },
    draw=Drawing("training", "dynamics"),
)
