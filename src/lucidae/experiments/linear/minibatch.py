"""Learning dynamics with mini-batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lucidae.experiments.declaration import Drawing, Experiment, Scale, Statement, listed
from lucidae.experiments.labels import label
from lucidae.experiments.linear.training import DIGITS, MNIST, Baseline, TrainingRuns
from lucidae.experiments.verdicts import AtMost, Ordered


def minibatch_runs(baseline: Baseline, sizes: Mapping[int, int], note: str = "") -> TrainingRuns:
    """Return one run per batch size (with its epochs), model and optimizer."""
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
    """Return the verdicts for every batch size, on the distance to the axes at the end."""
    axes = "distance to the axes"
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
                says=f"{axes}, {label('nonuniform_l2', 'nesterov')} minus RAG, {batches}",
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
    shows="axis-alignment and subspace distance with two batch sizes",
    about="The training of lae-dynamics with mini-batches of two sizes. The paper reports results "
    "similar to those of the full batch, with additional noise.",
    statements={
        "rag": Statement(
            "As with the full batch, the rotation-augmented gradient (RAG) finds the axes."
        ),
        "slower": Statement(
            "As with the full batch, the non-uniform ℓ₂ penalty is slower than RAG."
        ),
        "nested": Statement("As with the full batch, expected nested dropout finds the axes."),
    },
    scales={
        "smoke": Scale(minibatch_runs(DIGITS, SMOKE_SIZES), expect(SMOKE_SIZES, 0.2, 0.03)),
        "paper": Scale(
            minibatch_runs(MNIST, PAPER_SIZES, "; the paper does not state the number of epochs"),
            expect(PAPER_SIZES, 0.1, 0.1),
        ),
    },
    draw=Drawing("training", "minibatch"),
)
