"""Experiments: training of linear autoencoders by all methods, their learning rates and weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lucidae_papers.cells import Cell
from lucidae_papers.declaration import Experiment, Scale, listed
from lucidae_papers.linear.training import DIGITS, MNIST, Baseline, TrainingRuns, spectrum
from lucidae_papers.results import Curve, Curves, Results
from lucidae_papers.verdicts import LABELS, AtLeast, AtMost, Ordered, Reported, Sooner, label

AXES = "distance to the principal axes"
SUBSPACE = "distance to the principal subspace"

SEEDS = (0, 1, 2)


def every_run(baseline: Baseline, source_of_rates: str) -> TrainingRuns:
    """Return the settings with one training run per model, optimizer and seed."""
    trials = tuple(baseline.trial(*pair, seed=seed) for pair in baseline.rates for seed in SEEDS)
    return TrainingRuns(trials, {"rates": source_of_rates})


def run(method: str, optimizer: str = "nesterov", distance: str = "alignment") -> dict[str, str]:
    """Return name (`series`) and description (`says`) of a distance over the epochs of a run."""
    words = {"alignment": AXES, "subspace": SUBSPACE}[distance]
    return {
        "series": f"{distance}/{method}/{optimizer}",
        "says": f"{words}, {label(method, optimizer)}",
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


def expect(
    late: tuple[int, ...],
    levels: tuple[float, float],
    slow: float,
    aligned: float,
    nested: float,
    vae: tuple[float, ...],
) -> dict[str, Any]:
    """Return, for each statement of the experiment, the comparisons by which it is judged.

    What a model does not reach, or keeps, is judged at the epochs `late`, the last of which ends
    the training; the two optimizers of the linear VAE are compared at the distances `vae`.
    """
    (coarse, fine), end = levels, late[-1]
    everywhere = (coarse, coarse / 2, coarse / 8)
    adam = [
        sooner((method, "adam"), (method, "nesterov"), level)
        for method, judged in (
            ("nonuniform_l2", everywhere[:2]),  # its optimum has a distance of about 0.1
            ("expected_nested_dropout", everywhere),
        )
        for level in judged
    ]
    return {
        "uniform": tuple(AtLeast(**run("uniform_l2"), bound=0.5, at=epoch) for epoch in late),
        "slow": tuple(AtLeast(**run("nonuniform_l2"), bound=slow, at=epoch) for epoch in late),
        "rag": (
            AtMost(**run("rag"), bound=aligned, at=end),
            sooner(RAG, NON_UNIFORM, fine),
        ),
        "rag_nested": tuple(sooner(RAG, NESTED, level) for level in everywhere),
        "adam": tuple(adam),
        "adam_vae": tuple(
            sooner(("linear_vae", "adam"), ("linear_vae", "nesterov"), level) for level in vae
        ),
        "subspace": (
            AtMost(**run("rag", distance="subspace"), bound=1e-3, at=end),
            AtMost(**run("uniform_l2", distance="subspace"), bound=1e-3, at=end),
        ),
        "nested": tuple(AtMost(**run(*NESTED), bound=nested, at=epoch) for epoch in late),
    }


SMOKE_UNJUDGED = dict.fromkeys(
    ("rag_nested", "adam"), "3000 epochs on these data end before the curves separate."
)

EXPERIMENT = Experiment(
    name="lae-dynamics",
    title="Learning dynamics of six models",
    reference="Bao et al. 2020, Figure 2",
    about="Six linear autoencoders are trained with two optimizers. The distance to the "
    "principal axes is the axis-alignment distance of Bao et al. 2020, Definition 7.1. The "
    "distance to the principal subspace is that of Definition 7.2. Both lie between 0 and 1.",
    claims={
        "uniform": "The uniform ℓ₂ penalty does not find the principal axes.",
        "slow": "With Nesterov momentum the non-uniform ℓ₂ penalty converges slowly.",
        "rag": "The rotation-augmented gradient (RAG) finds the principal axes, sooner than the "
        "non-uniform ℓ₂ penalty does.",
        "rag_nested": "The rotation-augmented gradient (RAG) finds the principal axes sooner than "
        "nested dropout whose loss is computed as an expectation.",
        "adam": "Compared with Nesterov momentum, Adam speeds up the training with the "
        "non-uniform ℓ₂ penalty and with nested dropout.",
        "adam_vae": "Compared with Nesterov momentum, Adam speeds up the training of the linear "
        "VAE.",
    },
    findings={
        "subspace": "The rotation-augmented gradient (RAG) and the uniform ℓ₂ penalty find the "
        "principal subspace.",
        "nested": "Expected nested dropout finds the principal axes with Nesterov momentum.",
    },
    smoke=Scale(
        every_run(
            DIGITS,
            "the best rates of the experiment lae-learning-rates at its small scale (smoke)",
        ),
        {
            name: found
            for name, found in expect((3000,), (0.3, 0.2), 0.15, 0.1, 0.1, (0.2,)).items()
            if name not in SMOKE_UNJUDGED
        },
        unjudged=SMOKE_UNJUDGED,
    ),
    paper=Scale(
        every_run(MNIST, "Bao et al. 2020, Table 2"),
        expect((5000, 10_000, 30_000), (0.4, 0.3), 0.3, 0.01, 0.2, (0.4, 0.3)),
        reported=(
            Reported(
                "subspace/nonuniform_l2/adam",
                30_000,
                f"{SUBSPACE}, {label('nonuniform_l2', 'adam')} (two latents are zero at the "
                "optimum, which alone gives 0.1)",
            ),
        ),
    ),
    draw="training.dynamics",
)


MINIBATCH_JUDGED = (RAG, NON_UNIFORM, NESTED, (NESTED[0], "adam"))


def minibatch_runs(
    baseline: Baseline, sizes: Mapping[int, tuple[int, ...]], note: str = ""
) -> TrainingRuns:
    """Return the settings with one training run per batch size, model, optimizer and seed.

    Models about which nothing is claimed have the first seed alone. `sizes` maps each batch size to
    the epochs that are judged, the last of which ends the run; `note` is added to the description.
    """
    trials = tuple(
        baseline.trial(
            method,
            optimizer,
            batch_size=size,
            n_epochs=epochs[-1],
            marks=(),
            label=f"{method}/{optimizer}/{size}",
            seed=seed,
        )
        for size, epochs in sizes.items()
        for method, optimizer in baseline.rates
        if method != "uniform_l2"
        for seed in (SEEDS if (method, optimizer) in MINIBATCH_JUDGED else SEEDS[:1])
    )
    words = {
        "seeds": f"{len(SEEDS)}; one for models about which nothing is claimed",
        "batches": f"of {listed(sizes, ' and of ')} rows{note}",
    }
    return TrainingRuns(trials, words)


def expect_minibatch(
    sizes: Mapping[int, tuple[int, ...]], aligned: float, gap: float
) -> dict[str, Any]:
    """Return the verdicts on the distance to the principal axes, for every batch size and epoch."""
    verdicts: dict[str, list[Any]] = {"rag": [], "slower": [], "nested": []}
    for size, epoch in ((size, epoch) for size, epochs in sizes.items() for epoch in epochs):
        batches = f"batches of {size}"
        for statement, *run in (("rag", *RAG), ("nested", *NESTED), ("nested", NESTED[0], "adam")):
            name, says = "/".join(["alignment", *run, str(size)]), f"{AXES}, {label(*run)}, "
            verdicts[statement].append(AtMost(name, aligned, epoch, says + batches))
        verdicts["slower"].append(
            Ordered(
                tuple(f"alignment/{method}/nesterov/{size}" for method in ("nonuniform_l2", "rag")),
                epoch,
                gap,
                f"{AXES}: non-uniform ℓ₂ minus RAG, Nesterov, {batches}",
            )
        )
    return {statement: tuple(found) for statement, found in verdicts.items()}


# Epochs of the logarithmic grid at which each run is recorded.
SMOKE_SIZES = {300: (199, 250), 100: (85, 120)}
PAPER_SIZES = {1000: (108, 215, 600), 100: (27, 54, 150)}

MINIBATCH = Experiment(
    name="lae-minibatch",
    title="Learning dynamics with mini-batches",
    reference="Bao et al. 2020, Figures 7 and 8",
    about="Six linear autoencoders are trained as in the experiment lae-dynamics, but with "
    "mini-batches of two sizes instead of the full batch. Bao et al. 2020 report results "
    "similar to those of the full batch, with additional noise.",
    claims={
        "rag": "With mini-batches, as with the full batch, the rotation-augmented gradient (RAG) "
        "finds the principal axes.",
        "slower": "With mini-batches, as with the full batch, the non-uniform ℓ₂ penalty is "
        "slower than the rotation-augmented gradient (RAG).",
        "nested": "With mini-batches, as with the full batch, expected nested dropout finds the "
        "principal axes.",
    },
    smoke=Scale(
        minibatch_runs(DIGITS, SMOKE_SIZES),
        {
            name: found
            for name, found in expect_minibatch(SMOKE_SIZES, 0.2, 0.03).items()
            if name != "nested"
        },
        unjudged={
            "nested": "its learning rate, the best for the full batch, is not stable for "
            "batches of 100 rows of these data."
        },
    ),
    paper=Scale(
        minibatch_runs(MNIST, PAPER_SIZES, "; Bao et al. 2020 do not state the number of epochs"),
        expect_minibatch(PAPER_SIZES, 0.1, 0.1),
    ),
    draw="training.dynamics",
)


# Bao et al. 2020, Table 2, without stochastic nested dropout, whose expectation is searched.
PAPER_SEARCH = {
    ("nonuniform_l2", "nesterov"): (1e-4, 3e-4, 1e-3, 3e-3),
    ("rag", "nesterov"): (1e-3, 3e-3, 1e-2),
    ("expected_nested_dropout", "nesterov"): (1e-2, 3e-2, 1e-1),
    ("linear_vae", "nesterov"): (3e-4, 1e-3, 3e-3),
    ("nonuniform_l2", "adam"): (1e-3, 3e-3, 1e-2, 3e-2),
    ("expected_nested_dropout", "adam"): (3e-3, 1e-2, 3e-2, 1e-1),
    ("linear_vae", "adam"): (3e-4, 1e-3, 3e-3),
}
DIGITS_SEARCH = {
    ("nonuniform_l2", "nesterov"): (1e-2, 3e-2, 1e-1),
    ("rag", "nesterov"): (3e-3, 1e-2, 3e-2),
    ("expected_nested_dropout", "nesterov"): (3e-2, 1e-1, 3e-1, 1.0),
    ("linear_vae", "nesterov"): (1e-3, 3e-3, 1e-2, 3e-2),
    ("nonuniform_l2", "adam"): (3e-3, 1e-2, 3e-2),
    ("expected_nested_dropout", "adam"): (3e-3, 1e-2, 3e-2),
    ("linear_vae", "adam"): (1e-3, 3e-3, 1e-2),
}


@dataclass(frozen=True, slots=True)
class Search:
    """Settings of a search: every model and optimizer is trained with several learning rates.

    The other settings are those of the experiment lae-dynamics, so that runs which both have are
    done once.
    """

    baseline: Baseline  # settings of lae-dynamics
    search: Mapping[tuple[str, str], tuple[float, ...]]  # the learning rates that are tried

    @property
    def runs(self) -> TrainingRuns:
        """The training runs: one per model, optimizer, seed and learning rate."""
        return TrainingRuns(
            tuple(
                self.baseline.trial(*pair, learning_rate=rate, seed=seed)
                for pair, rates in self.search.items()
                for seed in SEEDS
                for rate in rates
            ),
            {"measure": "axis-alignment distance after the last epoch"},
        )

    def cells(self) -> Sequence[Cell]:
        """Return one run per model, optimizer, seed and learning rate."""
        return self.runs.cells()

    def curves(self, results: Results) -> Curves:
        """Return, over the learning rates, the distance to the principal axes after the last epoch.

        ``"excess"`` is the distance at the rate that the other experiments use, minus the smallest
        distance. A run that diverged counts as 1, the largest distance.
        """
        curves = {}
        for (method, optimizer), rates in self.search.items():
            found = results.where(method=method, optimizer=optimizer)
            last = np.reshape([cell.arrays["alignment"][-1] for cell in found], (-1, len(rates)))
            last = np.where(np.isnan(last), 1.0, last)
            used = last[:, [rates.index(self.baseline.rates[method, optimizer])]]
            excess = used - last.min(axis=1, keepdims=True)
            curves[f"alignment/{method}/{optimizer}"] = Curve.over_seeds(rates, last)
            curves[f"excess/{method}/{optimizer}"] = Curve.over_seeds([0], excess)
        return curves

    def facts(self) -> Mapping[str, str]:
        """Return the settings in words, for the HTML page of the results."""
        return self.runs.facts()


def expect_of_rates(search: Mapping[tuple[str, str], Any], slack: float) -> tuple[AtMost, ...]:
    """Return the verdicts that the rates in use are the best of the search, up to `slack`."""
    return tuple(
        AtMost(
            f"excess/{method}/{optimizer}",
            slack,
            says=f"{AXES}: rate in use minus best rate, {label(method, optimizer)}",
        )
        for method, optimizer in search
    )


LEARNING_RATES = Experiment(
    name="lae-learning-rates",
    title="Search over learning rates",
    reference="Bao et al. 2020, Table 2",
    about="The distance to the principal axes after the last epoch of the experiment "
    "lae-dynamics, for several learning rates of each model and optimizer.",
    claims={
        "best": "Of the learning rates that were tried, those in bold in Bao et al. 2020, Table 2 "
        "converge fastest to the principal axes.",
    },
    findings={
        "close": "For each model and optimizer, the distance to the principal axes at the rate "
        "that the other experiments use is close to the smallest of the search.",
    },
    smoke=Scale(
        Search(DIGITS, DIGITS_SEARCH),
        {"close": expect_of_rates(DIGITS_SEARCH, 0.08)},
        unjudged={"best": "the table is about MNIST; the digits used here need other rates."},
    ),
    paper=Scale(
        Search(MNIST, PAPER_SEARCH),
        {
            "best": expect_of_rates(PAPER_SEARCH, 0.01),
            "close": expect_of_rates(PAPER_SEARCH, 0.1),
        },
    ),
    draw="training.learning_rates",
)


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
    converged: int  # epoch at which the linear VAE, the slowest model, has converged

    def epochs_of(self, method: str) -> tuple[int, ...]:
        """Return the epochs at which the decoder of a method is examined."""
        return (*self.epochs, self.converged) if method == "linear_vae" else self.epochs

    @property
    def runs(self) -> TrainingRuns:
        """The training runs: one per model, last epoch and seed."""
        return TrainingRuns(
            tuple(
                self.baseline.trial(
                    method, "nesterov", n_epochs=epoch, marks=(), keep_weights=True, seed=seed
                )
                for method in METHODS
                for epoch in self.epochs_of(method)
                for seed in SEEDS
            ),
            {
                "epochs": f"{listed(self.epochs)}; linear VAE also {self.converged}",
                "optimizer": "Nesterov",
            },
        )

    def cells(self) -> Sequence[Cell]:
        """Return one run per model, last epoch and seed."""
        return self.runs.cells()

    def cosines(self, results: Results, method: str, epoch: int, seed: int = 0) -> Any:
        """Return the cosines between principal directions and decoder columns, shape (k, k).

        k is the number of latents. Rows belong to principal directions, columns to decoder columns.
        The cosines of a decoder column that is nearly zero are 0. The decoder is that of the run of
        `method` with `epoch` epochs and a seed.
        """
        atoms = results.one(method=method, n_epochs=epoch, seed=seed).arrays["atoms"]
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
            epochs = self.epochs_of(method)
            squares = [
                [self.cosines(results, method, epoch, seed) ** 2 for epoch in epochs]
                for seed in SEEDS
            ]
            ordered = [[float(np.mean(np.diag(one))) for one in run] for run in squares]
            matched = [[float(np.mean(one.max(axis=1))) for one in run] for run in squares]
            curves[f"ordered/{method}"] = Curve.over_seeds(epochs, ordered, "epoch")
            curves[f"matched/{method}"] = Curve.over_seeds(epochs, matched, "epoch")
        return curves

    def facts(self) -> Mapping[str, str]:
        """Return the settings in words, for the HTML page of the results."""
        return self.runs.facts()


DIAGONAL = "mean squared cosine of each principal direction and the decoder column of its index"
BEST = "mean of the largest squared cosine of each principal direction with a decoder column"


def expect_of_weights(rag: float, nested: float, uniform: float, start: float) -> dict[str, Any]:
    """Return, for each statement of the experiment, the comparisons by which it is judged."""
    vae = LABELS["linear_vae"]
    return {
        "ordered": tuple(
            AtLeast(f"ordered/{name}", bound, says=f"{DIAGONAL}, {LABELS[name]}")
            for name, bound in (("rag", rag), ("expected_nested_dropout", nested))
        ),
        "permuted": (
            AtLeast("matched/linear_vae", 0.9, says=f"{BEST}, {vae}"),
            AtMost("ordered/linear_vae", 0.5, says=f"{DIAGONAL}, {vae}"),
        ),
        "uniform": (AtMost("matched/uniform_l2", uniform, says=f"{BEST}, {LABELS['uniform_l2']}"),),
        "start": (AtMost("matched/rag", start, 0, f"{BEST}, {LABELS['rag']}"),),
    }


WEIGHTS = Experiment(
    name="lae-weights",
    title="Alignment of the decoder with the principal directions",
    reference="Bao et al. 2020, Figure 3",
    about="The cosines UᵀW₂ between the principal directions (the columns of U) and the columns "
    "of the decoder W₂, at four epochs of the training of six models.",
    claims={
        "ordered": "With the rotation-augmented gradient (RAG) and with expected nested dropout "
        "the matrix of cosines between principal directions and decoder columns becomes diagonal: "
        "the principal components are found in order.",
        "permuted": "At convergence of the linear VAE the matrix of cosines between principal "
        "directions and decoder columns is a permutation matrix: the principal components are "
        "found in an arbitrary order.",
        "uniform": "With the uniform ℓ₂ penalty the principal components are not found.",
    },
    findings={
        "start": "The initial weights are not aligned with the principal components.",
    },
    smoke=Scale(
        Snapshots(DIGITS, (0, 300, 1000, 3000), 60_000), expect_of_weights(0.9, 0.9, 0.5, 0.3)
    ),
    paper=Scale(
        Snapshots(MNIST, (0, 1000, 5000, 10_000), 1_000_000),
        expect_of_weights(0.85, 0.8, 0.4, 0.1),
    ),
    draw="training.weights",
)
