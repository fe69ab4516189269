"""Experiment: learning dynamics of linear autoencoders with mini-batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lucidae.experiments.declaration import Drawing, Experiment, Scale, Statement, listed
from lucidae.experiments.linear.training import DIGITS, MNIST, Baseline, TrainingRuns
from lucidae.experiments.verdicts import AtMost, Ordered, label


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


def expect(sizes: Mapping[int, int], aligned: float, gap: float) -> dict[str, Any]:
    """Return the verdicts on the last distance to the principal axes, for every batch size.

    Parameters
    ----------
    sizes : mapping
        Number of epochs by batch size; only the batch sizes are used.
    aligned : float
        Largest distance to the principal axes at which the rotation-augmented gradient (RAG)
        counts as aligned.
    gap : float
        Smallest difference of the distances of the non-uniform ℓ₂ penalty and RAG.
    """
    axes = "distance of the decoder's columns to the principal axes"
    verdicts: dict[str, list[Any]] = {"rag": [], "slower": [], "nested": []}
    for size in sizes:
        rag = f"alignment/rag/nesterov/{size}"
        nested = f"alignment/expected_nested_dropout/nesterov/{size}"
        name = label("expected_nested_dropout", "nesterov")
        batches = f"batches of {size}"
        verdicts["rag"].append(
            AtMost(rag, aligned, says=f"{axes}, {label('rag', 'nesterov')}, {batches}")
        )
        verdicts["slower"].append(
            Ordered(
                (f"alignment/nonuniform_l2/nesterov/{size}", rag),
                margin=gap,
                says=f"{axes}: non-uniform ℓ₂ penalty minus rotation-augmented gradient (RAG), "
                f"both trained with Nesterov momentum on {batches}",
            )
        )
        verdicts["nested"].append(AtMost(nested, 0.2, says=f"{axes}, {name}, {batches}"))
    return {statement: tuple(found) for statement, found in verdicts.items()}


SMOKE_SIZES = {300: 250, 100: 120}
PAPER_SIZES = {1000: 600, 100: 150}

EXPERIMENT = Experiment(
    name="lae-minibatch",
    title="Learning dynamics with mini-batches",
    reference="Bao et al. 2020, Figures 7 and 8",
    shows="distances to the principal axes and subspace over the epochs, two batch sizes",
    about="The training of the experiment lae-dynamics with mini-batches of two sizes. Bao et al. "
    "2020 report results similar to those of the full batch, with additional noise.",
    statements={
        "rag": Statement(
            "As with the full batch, the rotation-augmented gradient (RAG) finds the principal "
            "axes."
        ),
        "slower": Statement(
            "As with the full batch, the non-uniform ℓ₂ penalty is slower than the "
            "rotation-augmented gradient (RAG)."
        ),
        "nested": Statement(
            "As with the full batch, expected nested dropout finds the principal axes."
        ),
    },
    scales={
        "smoke": Scale(minibatch_runs(DIGITS, SMOKE_SIZES), expect(SMOKE_SIZES, 0.2, 0.03)),
        "paper": Scale(
            minibatch_runs(
                MNIST, PAPER_SIZES, "; Bao et al. 2020 do not state the number of epochs"
            ),
            expect(PAPER_SIZES, 0.1, 0.1),
        ),
    },
    draw=Drawing("training", "minibatch"),
)
