"""Experiments: learning dynamics of linear autoencoders, with all rows and with mini-batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lucidae_papers.declaration import Drawing, Experiment, Scale, Statement, listed, own
from lucidae_papers.linear.training import DIGITS, MNIST, Baseline, TrainingRuns
from lucidae_papers.verdicts import AtLeast, AtMost, Ordered, Reported, Sooner, label

AXES = "distance of the decoder's columns to the principal axes"
SUBSPACE = "distance of the decoder's columns to the principal subspace"


def every_run(baseline: Baseline, source_of_rates: str) -> TrainingRuns:
    """Return the settings with one training run per model and optimizer.

    `baseline` has the data, the epochs and the learning rates; `source_of_rates` says in words
    where the rates come from.
    """
    trials = tuple(baseline.trial(*pair) for pair in baseline.rates)
    return TrainingRuns(trials, {"rates": source_of_rates})


def axes(method: str, optimizer: str = "nesterov") -> dict[str, str]:
    """Return the name of a curve (`series`) and its description (`says`), for a verdict on it.

    The curve is the distance of the decoder to the principal axes, in the run of `method` with
    `optimizer`.
    """
    return {
        "series": f"alignment/{method}/{optimizer}",
        "says": f"{AXES}, {label(method, optimizer)}",
    }


def subspace(method: str) -> dict[str, str]:
    """Return the name of a curve (`series`) and its description (`says`), for a verdict on it.

    The curve is the distance to the principal subspace, in the run of `method` with Nesterov
    momentum.
    """
    return {
        "series": f"subspace/{method}/nesterov",
        "says": f"{SUBSPACE}, {label(method, 'nesterov')}",
    }


def sooner(first: tuple[str, str], second: tuple[str, str], level: float) -> Sooner:
    """Return the verdict that the second run needs 1.2 times as many epochs as the first."""
    return Sooner(
        "/".join(("alignment", *first)),
        "/".join(("alignment", *second)),
        level,
        factor=1.2,
        says=f"{AXES}, of {label(*first)} (first) and {label(*second)} (second)",
    )


RAG, NON_UNIFORM = ("rag", "nesterov"), ("nonuniform_l2", "nesterov")
NESTED = ("expected_nested_dropout", "nesterov")

STATEMENTS = {
    "uniform": Statement("The uniform ℓ₂ penalty does not find the principal axes."),
    "slow": Statement("With Nesterov momentum the non-uniform ℓ₂ penalty converges slowly."),
    "rag": Statement(
        "The rotation-augmented gradient (RAG) finds the principal axes, sooner than the "
        "non-uniform ℓ₂ penalty does."
    ),
    "rag_nested": Statement(
        "The rotation-augmented gradient (RAG) finds the principal axes sooner than nested dropout "
        "whose loss is computed as an expectation."
    ),
    "adam": Statement(
        "Compared with Nesterov momentum, Adam speeds up the training with the non-uniform ℓ₂ "
        "penalty and with nested dropout."
    ),
    "adam_vae": Statement(
        "Compared with Nesterov momentum, Adam speeds up the training of the linear VAE."
    ),
    "subspace": own(
        "The rotation-augmented gradient (RAG) and the uniform ℓ₂ penalty find the principal "
        "subspace."
    ),
    "nested": own("Expected nested dropout finds the principal axes with Nesterov momentum."),
}


def expect(
    end: int, levels: tuple[float, float], slow: float, aligned: float, nested: tuple[float, int]
) -> dict[str, Any]:
    """Return, for each statement of the experiment, the comparisons by which it is judged."""
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
    shows="distances of six models to principal axes and subspace over the epochs, two optimizers",
    about="Six linear autoencoders are trained with two optimizers. The distance to the "
    "principal axes is the axis-alignment distance of Bao et al. 2020, Definition 7.1. The "
    "distance to the principal subspace is that of Definition 7.2. Both lie between 0 and 1.",
    statements=STATEMENTS,
    scales={
        "smoke": Scale(
            every_run(
                DIGITS,
                "the best rates of the experiment lae-learning-rates at its small scale (smoke)",
            ),
            expect(3000, (0.3, 0.2), 0.15, 0.1, (0.1, 3000)),
        ),
        "paper": Scale(
            every_run(MNIST, "Bao et al. 2020, Table 2"),
            expect(30_000, (0.4, 0.3), 0.3, 0.01, (0.2, 5000)),
            reported=(
                Reported(
                    "subspace/nonuniform_l2/adam",
                    at=30_000,
                    says=f"{SUBSPACE}, {label('nonuniform_l2', 'adam')} (two penalties exceed "
                    "their eigenvalues, so that two latents are zero at the optimum, which alone "
                    "gives a distance of 0.1)",
                ),
            ),
        ),
    },
    draw=Drawing("training", "dynamics"),
)


def minibatch_runs(baseline: Baseline, sizes: Mapping[int, int], note: str = "") -> TrainingRuns:
    """Return the settings with one training run per batch size, model and optimizer.

    `sizes` maps each batch size to its number of epochs; `note` is added to the description.
    """
    trials = tuple(
        baseline.trial(
            method,
            optimizer,
            batch_size=size,
            n_epochs=n_epochs,
            marks=(),
            label=f"{method}/{optimizer}/{size}",
        )
        for size, n_epochs in sizes.items()
        for method, optimizer in baseline.rates
        if method != "uniform_l2"
    )
    return TrainingRuns(trials, {"batches": f"of {listed(sizes, ' and of ')} rows{note}"})


def expect_minibatch(sizes: Mapping[int, int], aligned: float, gap: float) -> dict[str, Any]:
    """Return the verdicts on the last distance to the principal axes, for every batch size."""
    verdicts: dict[str, list[Any]] = {"rag": [], "slower": [], "nested": []}
    for size in sizes:
        rag = f"alignment/rag/nesterov/{size}"
        nested = f"alignment/expected_nested_dropout/nesterov/{size}"
        name = label("expected_nested_dropout", "nesterov")
        batches = f"batches of {size}"
        verdicts["rag"].append(
            AtMost(rag, aligned, says=f"{AXES}, {label('rag', 'nesterov')}, {batches}")
        )
        verdicts["slower"].append(
            Ordered(
                (f"alignment/nonuniform_l2/nesterov/{size}", rag),
                margin=gap,
                says=f"{AXES}: non-uniform ℓ₂ penalty minus rotation-augmented gradient (RAG), "
                f"both trained with Nesterov momentum on {batches}",
            )
        )
        verdicts["nested"].append(AtMost(nested, 0.2, says=f"{AXES}, {name}, {batches}"))
    return {statement: tuple(found) for statement, found in verdicts.items()}


SMOKE_SIZES = {300: 250, 100: 120}
PAPER_SIZES = {1000: 600, 100: 150}

MINIBATCH = Experiment(
    name="lae-minibatch",
    title="Learning dynamics with mini-batches",
    reference="Bao et al. 2020, Figures 7 and 8",
    shows="distances to the principal axes and subspace over the epochs, two batch sizes",
    about="Six linear autoencoders are trained as in the experiment lae-dynamics, but with "
    "mini-batches of two sizes instead of the full batch. Bao et al. 2020 report results "
    "similar to those of the full batch, with additional noise.",
    statements={
        "rag": Statement(
            "With mini-batches, as with the full batch, the rotation-augmented gradient (RAG) "
            "finds the principal axes."
        ),
        "slower": Statement(
            "With mini-batches, as with the full batch, the non-uniform ℓ₂ penalty is slower than "
            "the rotation-augmented gradient (RAG)."
        ),
        "nested": Statement(
            "With mini-batches, as with the full batch, expected nested dropout finds the "
            "principal axes."
        ),
    },
    scales={
        "smoke": Scale(
            minibatch_runs(DIGITS, SMOKE_SIZES), expect_minibatch(SMOKE_SIZES, 0.2, 0.03)
        ),
        "paper": Scale(
            minibatch_runs(
                MNIST, PAPER_SIZES, "; Bao et al. 2020 do not state the number of epochs"
            ),
            expect_minibatch(PAPER_SIZES, 0.1, 0.1),
        ),
    },
    draw=Drawing("training", "minibatch"),
)
