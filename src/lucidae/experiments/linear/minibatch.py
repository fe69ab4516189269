"""The same dynamics with mini-batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lucidae.experiments.declaration import Drawing, Experiment, Scale
from lucidae.experiments.linear.dynamics import (
    DIGITS_PENALTIES,
    DIGITS_RATES,
    PAPER_PENALTIES,
    PAPER_RATES,
)
from lucidae.experiments.linear.training import TrainingRuns, Trial
from lucidae.experiments.verdicts import AtMost, Ordered


def minibatch_trials(
    sizes: Mapping[int, int],
    rates: Mapping[tuple[str, str], float],
    penalties: Mapping[str, Mapping[str, Any]],
    **shared: Any,
) -> tuple[Trial, ...]:
    """Return one trial per batch size (with its epochs), model and optimizer."""
    return tuple(
        Trial(
            method,
            optimizer,
            rate,
            penalties=penalties.get(method),
            batch_size=size,
            n_epochs=n_epochs,
            label=f"{method}/{optimizer}/{size}",
            **shared,
        )
        for size, n_epochs in sizes.items()
        for (method, optimizer), rate in rates.items()
        if method != "uniform_l2"
    )


def expect(sizes: Mapping[int, int], aligned: float, gap: float) -> tuple[Any, ...]:
    """Claim that mini-batches tell the same story as the full batch."""
    claims: list[Any] = []
    for size in sizes:
        claims += [
            AtMost(f"alignment/rag/nesterov/{size}", aligned, says=f"RAG, batches of {size}"),
            Ordered(
                (f"alignment/nonuniform_l2/nesterov/{size}", f"alignment/rag/nesterov/{size}"),
                margin=gap,
                says=f"the non-uniform penalty is behind RAG, batches of {size}",
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
    claim="Mini-batches add noise and change nothing else: rotation-augmented gradient finds the "
    "axes, the non-uniform penalty stays behind.",
    scales={
        "smoke": Scale(
            TrainingRuns(
                minibatch_trials(SMOKE_SIZES, DIGITS_RATES, DIGITS_PENALTIES, data="digits", k=10),
                {"batches": "of 300 and of 100 rows"},
            ),
            expect(SMOKE_SIZES, 0.2, 0.03),
        ),
        "paper": Scale(
            TrainingRuns(
                minibatch_trials(PAPER_SIZES, PAPER_RATES, PAPER_PENALTIES, data="mnist", k=20),
                {"batches": "of 1000 and of 100 rows; the paper does not say how many epochs"},
            ),
            expect(PAPER_SIZES, 0.1, 0.1),
        ),
    },
    draw=Drawing("training", "minibatch"),
)
