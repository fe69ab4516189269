"""Learning dynamics with mini-batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lucidae.experiments.declaration import Drawing, Experiment, Scale, listed
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


def expect(sizes: Mapping[int, int], aligned: float, gap: float) -> tuple[Any, ...]:
    """Claim that mini-batches lead to the same order of the models as the full batch."""
    claims: list[Any] = []
    for size in sizes:
        rag = f"alignment/rag/nesterov/{size}"
        claims += [
            AtMost(rag, aligned, says=f"RAG finds the axes with batches of {size}"),
            Ordered(
                (f"alignment/nonuniform_l2/nesterov/{size}", rag),
                margin=gap,
                says=f"the non-uniform penalty is slower than RAG with batches of {size}",
            ),
        ]
    return tuple(claims)


SMOKE_SIZES = {300: 250, 100: 120}
PAPER_SIZES = {1000: 600, 100: 150}

EXPERIMENT = Experiment(
    name="lae-minibatch",
    title="Learning dynamics with mini-batches",
    reference="Bao et al. 2020, Figures 7 and 8",
    shows="axis-alignment and subspace distance with two batch sizes",
    claim="Mini-batches only add noise: rotation-augmented gradient finds the axes, and the "
    "non-uniform penalty is slower.",
    scales={
        "smoke": Scale(minibatch_runs(DIGITS, SMOKE_SIZES), expect(SMOKE_SIZES, 0.2, 0.03)),
        "paper": Scale(
            minibatch_runs(MNIST, PAPER_SIZES, "; the paper does not state the number of epochs"),
            expect(PAPER_SIZES, 0.1, 0.1),
        ),
    },
    draw=Drawing("training", "minibatch"),
)
