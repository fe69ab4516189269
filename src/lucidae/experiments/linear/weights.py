"""The decoder as it turns towards the axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lucidae.experiments.data import spectrum
from lucidae.experiments.declaration import Cell, Curve, Curves, Drawing, Experiment, Results, Scale
from lucidae.experiments.linear.dynamics import (
    DIGITS_PENALTIES,
    DIGITS_RATES,
    PAPER_PENALTIES,
    PAPER_RATES,
)
from lucidae.experiments.linear.training import TrainingRuns, Trial
from lucidae.experiments.verdicts import AtLeast, AtMost

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
    """Decoders of every model at a few epochs, each reached from the same start."""

    data: str
    k: int
    epochs: tuple[int, ...]
    rates: Mapping[tuple[str, str], float]
    penalties: Mapping[str, Mapping[str, Any]]

    @property
    def trials(self) -> tuple[Trial, ...]:
        """One trial per model and epoch."""
        return tuple(
            Trial(
                method,
                "nesterov",
                self.rates[method, "nesterov"],
                data=self.data,
                k=self.k,
                n_epochs=epoch,
                penalties=self.penalties.get(method),
                keep_weights=True,
            )
            for method in METHODS
            for epoch in self.epochs
        )

    def cells(self) -> Sequence[Cell]:
        """Return one cell per model and epoch."""
        return [trial.cell for trial in self.trials]

    def cosines(self, results: Results, method: str, epoch: int) -> Any:
        """Return uᵢᵀwⱼ/‖wⱼ‖ between principal directions and the decoder's columns, (k, k)."""
        atoms = results.one(method=method, n_epochs=epoch).arrays["atoms"]
        lengths = np.linalg.norm(atoms, axis=1, keepdims=True)
        unit = atoms / np.where(lengths > 1e-6 * lengths.max(), lengths, np.inf)
        return spectrum(self.data).vectors[:, : self.k].T @ unit.T

    def curves(self, results: Results) -> Curves:
        """Return the mean squared cosine on the diagonal, and of the best match, over epochs."""
        curves = {}
        for method in METHODS:
            squares = [self.cosines(results, method, epoch) ** 2 for epoch in self.epochs]
            ordered = [float(np.mean(np.diag(square))) for square in squares]
            matched = [float(np.mean(square.max(axis=1))) for square in squares]
            curves[f"ordered/{method}"] = Curve(self.epochs, ordered)
            curves[f"matched/{method}"] = Curve(self.epochs, matched)
        return curves

    def facts(self) -> Mapping[str, str]:
        """Return the setting in words."""
        words = TrainingRuns(self.trials[:1]).facts()
        epochs = ", ".join(str(epoch) for epoch in self.epochs)
        return {**words, "epochs": epochs, "runs": str(len(METHODS)), "optimizer": "Nesterov"}


EXPERIMENT = Experiment(
    name="lae-weights",
    title="The decoder turns towards the axes",
    reference="Bao et al. 2020, Figure 3",
    shows="UᵀW₂ at four epochs, and the decoder as images",
    claim="With rotation-augmented gradient and with nested dropout UᵀW₂ becomes diagonal: the "
    "components are found in their order. The linear VAE finds them in any order, the uniform "
    "penalty not at all.",
    scales={
        "smoke": Scale(
            Snapshots("digits", 10, (0, 300, 1000, 3000), DIGITS_RATES, DIGITS_PENALTIES),
            (
                AtLeast("ordered/rag", 0.9, says="RAG makes UᵀW₂ diagonal"),
                AtLeast(
                    "ordered/expected_nested_dropout",
                    0.9,
                    says="expected nested dropout makes UᵀW₂ diagonal",
                ),
                AtMost("matched/uniform_l2", 0.5, says="the uniform penalty finds no axis"),
                AtMost("matched/rag", 0.3, at=0, says="the start is not aligned"),
            ),
        ),
        "paper": Scale(
            Snapshots("mnist", 20, (0, 1000, 5000, 10_000), PAPER_RATES, PAPER_PENALTIES),
            (
                AtLeast("ordered/rag", 0.85, says="RAG makes UᵀW₂ diagonal"),
                AtLeast(
                    "ordered/expected_nested_dropout",
                    0.8,
                    says="expected nested dropout makes UᵀW₂ diagonal",
                ),
                AtMost("matched/uniform_l2", 0.4, says="the uniform penalty finds no axis"),
                AtMost("matched/rag", 0.1, at=0, says="the start is not aligned"),
            ),
        ),
    },
    draw=Drawing("training", "weights"),
)
