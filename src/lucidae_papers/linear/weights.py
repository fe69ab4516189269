"""Experiment: alignment of decoder columns with principal directions during training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lucidae_papers.data import spectrum
from lucidae_papers.declaration import (
    Cell,
    Curve,
    Curves,
    Drawing,
    Experiment,
    Results,
    Scale,
    Statement,
    listed,
    own,
)
from lucidae_papers.linear.training import DIGITS, MNIST, Baseline, TrainingRuns
from lucidae_papers.verdicts import LABELS, AtLeast, AtMost

METHODS = (
    "uniform_l2",
    "nonuniform_l2",
    "rag",
    "linear_vae",
    "nested_dropout",
    "expected_nested_dropout",
)


@dataclass(frozen=True, slots=True)
class Snapshots:
    """Settings: decoders of six models at a few epochs, all from the same initial weights."""

    # data, number of latents and learning rates, as in the experiment lae-dynamics
    baseline: Baseline
    # epochs at which the decoders are compared with the principal directions
    epochs: tuple[int, ...]

    @property
    def runs(self) -> TrainingRuns:
        """The training runs: one per model and last epoch."""
        return TrainingRuns(
            tuple(
                self.baseline.trial(method, "nesterov", n_epochs=epoch, marks=(), keep_weights=True)
                for method in METHODS
                for epoch in self.epochs
            ),
            {"epochs": listed(self.epochs), "runs": str(len(METHODS)), "optimizer": "Nesterov"},
        )

    def cells(self) -> Sequence[Cell]:
        """Return one run per model and last epoch."""
        return self.runs.cells()

    def cosines(self, results: Results, method: str, epoch: int) -> Any:
        """Return the cosines between principal directions and decoder columns, shape (k, k).

        k is the number of latents. Rows belong to principal directions, columns to decoder columns.
        The cosines of a decoder column that is nearly zero are 0. The decoder is that of the run of
        `method` with `epoch` epochs.
        """
        atoms = results.one(method=method, n_epochs=epoch).arrays["atoms"]
        lengths = np.linalg.norm(atoms, axis=1, keepdims=True)
        unit = atoms / np.where(lengths > 1e-6 * lengths.max(), lengths, np.inf)
        return spectrum(self.baseline.data).vectors[:, : self.baseline.k].T @ unit.T

    def curves(self, results: Results) -> Curves:
        """Return two means of squared cosines over the epochs, for each method.

        The cosines are those between principal directions (rows) and decoder columns. ``"ordered"``
        is the mean over the diagonal, ``"matched"`` the mean of the largest value of each row.
        """
        curves = {}
        for method in METHODS:
            squares = [self.cosines(results, method, epoch) ** 2 for epoch in self.epochs]
            ordered = [float(np.mean(np.diag(square))) for square in squares]
            matched = [float(np.mean(square.max(axis=1))) for square in squares]
            curves[f"ordered/{method}"] = Curve(self.epochs, ordered, "epoch")
            curves[f"matched/{method}"] = Curve(self.epochs, matched, "epoch")
        return curves

    def facts(self) -> Mapping[str, str]:
        """Return the settings in words, for the HTML page of the results."""
        return self.runs.facts()


STATEMENTS = {
    "ordered": Statement(
        "With the rotation-augmented gradient (RAG) and with expected nested dropout the matrix of "
        "cosines between principal directions and decoder columns becomes diagonal: the principal "
        "components are found in order."
    ),
    "permuted": Statement(
        "With the linear VAE the matrix of cosines between principal directions and decoder "
        "columns becomes a permutation matrix: the principal components are found in an arbitrary "
        "order."
    ),
    "uniform": Statement("With the uniform ℓ₂ penalty the principal components are not found."),
    "start": own("The initial weights are not aligned with the principal components."),
}


def expect(rag: float, nested: float, uniform: float, start: float) -> dict[str, Any]:
    """Return, for each statement of the experiment, the comparisons by which it is judged.

    The arguments are bounds of mean squared cosines between principal directions and decoder
    columns. `rag` and `nested` are lower bounds of the mean over directions and columns of equal
    index, for the rotation-augmented gradient and for expected nested dropout. `uniform` and
    `start` are upper bounds of the mean over each direction's best column, for the uniform ℓ₂
    penalty and for the initial weights.
    """
    diagonal = "mean squared cosine of each principal direction and the decoder column of its index"
    best = "mean over the principal directions of the largest squared cosine with a decoder column"
    return {
        "ordered": (
            AtLeast("ordered/rag", rag, says=f"{diagonal}, {LABELS['rag']}"),
            AtLeast(
                "ordered/expected_nested_dropout",
                nested,
                says=f"{diagonal}, {LABELS['expected_nested_dropout']}",
            ),
        ),
        "permuted": (
            AtLeast("matched/linear_vae", 0.9, says=f"{best}, {LABELS['linear_vae']}"),
            AtMost("ordered/linear_vae", 0.5, says=f"{diagonal}, {LABELS['linear_vae']}"),
        ),
        "uniform": (AtMost("matched/uniform_l2", uniform, says=f"{best}, {LABELS['uniform_l2']}"),),
        "start": (AtMost("matched/rag", start, at=0, says=f"{best}, {LABELS['rag']}"),),
    }


EXPERIMENT = Experiment(
    name="lae-weights",
    title="Alignment of the decoder with the principal directions",
    reference="Bao et al. 2020, Figure 3",
    shows="cosines of principal directions and decoder columns at four epochs; decoders as images",
    about="The cosines UᵀW₂ between the principal directions (the columns of U) and the columns "
    "of the decoder W₂, at four epochs of the training of six models.",
    statements=STATEMENTS,
    scales={
        "smoke": Scale(Snapshots(DIGITS, (0, 300, 1000, 3000)), expect(0.9, 0.9, 0.5, 0.3)),
        "paper": Scale(Snapshots(MNIST, (0, 1000, 5000, 10_000)), expect(0.85, 0.8, 0.4, 0.1)),
    },
    draw=Drawing("training", "weights"),
)
