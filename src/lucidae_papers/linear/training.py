"""Data sets of the linear experiments, and their training runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.utils import check_array

from lucidae import datasets
from lucidae.arrays import like
from lucidae.iteration import log_grid
from lucidae.linear.simulation import Plan, Run, Trajectory, simulate
from lucidae.linear.theory import best_penalties, paper_penalties
from lucidae.moments import SecondMoment
from lucidae.spectrum import Spectrum
from lucidae.validation import check_choice
from lucidae_papers.cells import Arrays, Cell, Settings, settings_of, work
from lucidae_papers.device import reference
from lucidae_papers.results import Curve, Curves, Results

Matrix = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class DataSet:
    """A data set of the experiments on linear autoencoders."""

    # function without arguments that returns the data, shape (n_samples, n_features)
    load: Callable[[], Matrix]
    n_samples: int  # shape of the data, known before they are loaded
    n_features: int
    words: str  # description on the HTML page
    image_shape: tuple[int, int] | None = None  # shape of the rows as images
    embedded: bool = True  # whether it is available without a download


def _gaussian(n_samples: int, n_features: int) -> DataSet:
    """Return a data set of Gaussian rows whose covariance has equally spaced eigenvalues.

    The eigenvalues are those of Bao et al. 2020, Figure 4, where the data have 5000 rows and 1000
    features.
    """

    def load() -> Matrix:
        return datasets.make_spectrum(n_samples, n_features, random_state=0).data

    words = f"Gaussian, {n_samples} × {n_features}, eigenvalues equally spaced from 100 to 1"
    return DataSet(load, n_samples, n_features, words)


DATA = {
    "digits": DataSet(
        lambda: np.asarray(datasets.load_digits().data),
        1797,
        64,
        "digits, 1797 × 64, pixels in [0, 1], centred",
        (8, 8),
    ),
    "mnist": DataSet(
        lambda: np.asarray(datasets.fetch_mnist("train", dtype="float64").data),
        60_000,
        784,
        "MNIST, 60 000 × 784, pixels in [0, 1], centred",
        (28, 28),
        embedded=False,
    ),
    "gaussian": _gaussian(5000, 1000),
    "small-gaussian": _gaussian(500, 100),
}


def data_set(name: str) -> DataSet:
    """Return the data set called `name`: one of `DATA`, or the rows of a file."""
    if name in DATA or not Path(name).suffix:
        return DATA[check_choice(name, "data", DATA)]
    return _file(name, Path(name).stat().st_mtime_ns)


@lru_cache(maxsize=2)
def _file(name: str, _changed: int) -> DataSet:
    """Return the rows of a file, which is read once for each time of its last change."""
    rows = np.load(name) if name.endswith(".npy") else datasets.read_table(name).to_numpy()
    rows = check_array(rows, dtype=np.float64)
    n, m = rows.shape
    return DataSet(lambda: rows, n, m, f"{Path(name).name}, {n} × {m}, centred")


@lru_cache(maxsize=2)
def centred_rows(name: str) -> Matrix:
    """Return the rows of the data set called `name` minus their mean, as float64."""
    rows = data_set(name).load()
    return np.asarray(rows - rows.mean(axis=0))


@lru_cache(maxsize=4)
def _spectrum(name: str) -> Spectrum:
    moment = SecondMoment.of(centred_rows(name))
    return Spectrum(*moment.spectrum(), moment.trace)


def spectrum(name: str, device: str = "cpu") -> Spectrum:
    """Return all eigenvalues and eigenvectors of the covariance of a data set, on a device."""
    found, ref = _spectrum(name), reference(device)
    return Spectrum(like(found.values, ref), like(found.vectors, ref), found.trace)


def _spaced(_values: Matrix, k: int, low: float, high: float) -> Matrix:
    """Return k penalties whose square roots are equally spaced from `low` to `high`.

    This is the choice of Bao et al. 2020, Appendix H.
    """
    return np.linspace(low, high, k) ** 2


def _uniform(_values: Matrix, k: int, value: float) -> Matrix:
    return np.full(k, value)


def _paper(values: Matrix, k: int) -> Matrix:
    """Return the k penalties that minimise the bound of Bao et al. 2020, eq. 16 (Figure 5)."""
    return paper_penalties(values[:k])


PENALTIES: dict[str, Callable[..., Matrix]] = {
    "spaced": _spaced,
    "uniform": _uniform,
    "paper": _paper,
    "best": best_penalties,
}


def penalties(rule: Mapping[str, Any], data: str, k: int) -> Matrix:
    """Return the ℓ₂ penalties of k latents that a rule gives for a data set."""
    constants = {name: value for name, value in rule.items() if name != "rule"}
    maker = PENALTIES[check_choice(rule["rule"], "rule", PENALTIES)]
    return maker(_spectrum(data).values, k, **constants)


MEASURES = ("alignment", "subspace", "loss", "imbalance")
STOCHASTIC = ("nested_dropout",)
START: Settings = {"init_scale": 1e-4, "momentum": 0.9, "tied": False}
"""Settings that all runs of Bao et al. 2020 have in common."""

START_WORDS = "normal, standard deviation 1e-4, encoder and decoder untied"


@dataclass(frozen=True, slots=True)
class Trial:
    """Settings of one training run of a linear autoencoder."""

    method: str  # as in `lucidae.linear.simulation.Run`
    optimizer: str
    learning_rate: float
    data: str  # A name of `lucidae_papers.linear.training.DATA`
    k: int  # numbers of latents and of epochs
    n_epochs: int
    # for the ℓ₂ methods, the rule that chooses the penalties, as in
    # `lucidae_papers.linear.training.penalties`
    penalties: Mapping[str, Any] | None = None
    batch_size: int | None = None  # rows per step; the full batch by default
    marks: tuple[int, ...] = ()  # epochs to record in addition to a logarithmic grid
    keep_weights: bool = False  # whether to store the weights after the last epoch
    seed: int = 0  # seed of the initial weights, of dropout masks and of batches
    label: str = ""  # name of the curves of this run; method and optimizer by default

    @property
    def name(self) -> str:
        """Name of the curves of this run: `label`, or method and optimizer."""
        return self.label or f"{self.method}/{self.optimizer}"

    @property
    def grid(self) -> list[int]:
        """Sorted epochs at which a run is recorded: a logarithmic grid, and those in `marks`."""
        inside = {mark for mark in self.marks if mark <= self.n_epochs}
        return sorted({*log_grid(self.n_epochs), *inside})

    @property
    def cell(self) -> Cell:
        """The run as a `Cell`, which the engine can compute and store."""
        recorded = {"record_at": self.grid, **START}
        own = [one.name for one in fields(self) if one.name not in ("marks", "label")]
        settings = settings_of(self, *own) | recorded
        run = (self.method, self.optimizer, self.data, self.k, self.n_epochs, self.batch_size)
        return Cell(measure, settings, cost_of(*run), self._companions(settings))

    def _companions(self, settings: Settings) -> str:
        """Return a label that is equal for runs that differ in learning rate and seed only.

        Runs with equal labels may be computed together. The label is empty for runs that draw
        dropout masks or batches, because such runs would share one random generator.
        """
        if self.method in STOCHASTIC or self.batch_size is not None:
            return ""
        own = ("learning_rate", "seed")
        return repr({name: settings[name] for name in settings if name not in own})


def cost_of(
    method: str, optimizer: str, data: str, k: int, n_epochs: int, batch_size: int | None = None
) -> float:
    """Return the approximate seconds of a training run on one core."""
    m, rows = data_set(data).n_features, data_set(data).n_samples
    if method in STOCHASTIC or batch_size is not None:
        steps = 1 if batch_size is None else -(-rows // batch_size)
        return 0.05 + n_epochs * (steps * 3e-4 + rows * m * k * 1.2e-9)
    # Adam works by coordinates of the original basis, where the covariance is not diagonal.
    width = m if optimizer == "adam" else k
    return 0.05 + n_epochs * (1.5e-4 + m * k * (width * 2e-10 + 1e-8))


@dataclass(frozen=True, slots=True)
class Baseline:
    """Settings of the runs of Bao et al. 2020, Figure 2; other experiments change some of them."""

    data: str  # as in `Trial`
    k: int
    n_epochs: int
    marks: tuple[int, ...]
    rates: Mapping[tuple[str, str], float]  # learning rate of each run
    penalties: Mapping[str, Mapping[str, Any]]  # the rule that chooses the penalties, by ℓ₂ method

    def trial(self, method: str, optimizer: str, **changes: Any) -> Trial:
        """Return the `Trial` of a method and an optimizer; `changes` replace its other settings."""
        settings = {
            "learning_rate": self.rates[method, optimizer],
            "data": self.data,
            "k": self.k,
            "n_epochs": self.n_epochs,
            "penalties": self.penalties.get(method),
            "marks": self.marks,
        }
        return Trial(method, optimizer, **{**settings, **changes})


DIGITS = Baseline(
    data="digits",
    k=10,
    n_epochs=3000,
    marks=(1000, 3000),
    rates={  # the best of lae-learning-rates at its smoke scale
        ("uniform_l2", "nesterov"): 3e-2,
        ("nonuniform_l2", "nesterov"): 1e-1,
        ("rag", "nesterov"): 3e-2,
        ("nested_dropout", "nesterov"): 1e-1,
        ("expected_nested_dropout", "nesterov"): 3e-1,
        ("linear_vae", "nesterov"): 1e-2,
        ("uniform_l2", "adam"): 1e-3,
        ("nonuniform_l2", "adam"): 3e-2,
        ("nested_dropout", "adam"): 1e-2,
        ("expected_nested_dropout", "adam"): 1e-2,
        ("linear_vae", "adam"): 3e-3,
    },
    # In the same proportion to the eigenvalues of the digits as the paper's penalties are to those
    # of MNIST: the last penalty exceeds its eigenvalue, so one latent is zero at the optimum.
    penalties={
        "uniform_l2": {"rule": "uniform", "value": 0.05},
        "nonuniform_l2": {"rule": "spaced", "low": 0.045, "high": 0.4025},
    },
)
MNIST = Baseline(
    data="mnist",
    k=20,
    n_epochs=30_000,
    marks=(1000, 5000, 10_000, 30_000),
    rates={  # Bao et al. 2020, Table 2
        ("uniform_l2", "nesterov"): 1e-3,
        ("nonuniform_l2", "nesterov"): 3e-4,
        ("rag", "nesterov"): 3e-3,
        ("nested_dropout", "nesterov"): 3e-2,
        ("expected_nested_dropout", "nesterov"): 3e-2,
        ("linear_vae", "nesterov"): 1e-3,
        ("uniform_l2", "adam"): 1e-3,
        ("nonuniform_l2", "adam"): 1e-2,
        ("nested_dropout", "adam"): 1e-2,
        ("expected_nested_dropout", "adam"): 1e-2,
        ("linear_vae", "adam"): 1e-3,
    },
    penalties={
        "uniform_l2": {"rule": "uniform", "value": 0.25},
        "nonuniform_l2": {"rule": "spaced", "low": 0.1, "high": 0.9},
    },
)


@dataclass(frozen=True, slots=True)
class TrainingRuns:
    """Settings of an experiment whose runs all train a model, at one scale ("smoke" or "paper")."""

    trials: tuple[Trial, ...]  # the runs
    # additional settings, described in words, which the page of results shows
    words: Mapping[str, str] = field(default_factory=dict)

    def cells(self) -> Sequence[Cell]:
        """Return each run as a `Cell`."""
        return [trial.cell for trial in self.trials]

    def curves(self, results: Results) -> Curves:
        """Return the curves over the epochs, by names such as ``"alignment/rag/nesterov"``.

        A name consists of the measure, the method and the optimizer. The measures are the distances
        of the decoder to the principal axes and to the principal subspace, the loss, and the
        imbalance of encoder and decoder. Runs of one name differ in their seeds.
        """
        seeds: dict[str, list[Arrays]] = {}
        for trial, cell in zip(self.trials, results, strict=True):
            seeds.setdefault(trial.name, []).append(cell.arrays)
        return {
            f"{measure}/{name}": Curve.over_seeds(
                runs[0]["epochs"], [run[measure] for run in runs], "epoch"
            )
            for name, runs in seeds.items()
            for measure in MEASURES
        }

    def facts(self) -> Mapping[str, str]:
        """Return the settings in words, for the HTML page of the results."""
        first = self.trials[0]
        return {
            "data": data_set(first.data).words,
            "latents": str(first.k),
            "epochs": str(max(trial.n_epochs for trial in self.trials)),
            "runs": str(len(self.trials)),
            "seeds": str(len({trial.seed for trial in self.trials})),
            "initial weights": START_WORDS,
            **self.words,
        }


@work("linear.training/1")
def measure(group: Sequence[Settings], device: str) -> list[Arrays]:
    """Train the runs of a group together and return their curves as arrays.

    The runs differ in their learning rates and seeds only.
    """
    runs = [run_of(settings) for settings in group]
    found = simulate(runs, plan_of(group[0], device))
    return [_arrays(one, group[0]) for one in found]


def run_of(settings: Settings) -> Run:
    """Return method, optimizer, rate and seed from the settings of a training run, as a `Run`."""
    names = ("method", "optimizer", "learning_rate", "seed", "tied")
    return Run(*(settings[name] for name in names))


def plan_of(settings: Settings, device: str) -> Plan:
    """Return data, latents, epochs and penalties from the settings of a run, as a `Plan`.

    All runs of a group have the same plan.
    """
    data, k, rule = settings["data"], settings["k"], settings["penalties"]
    needs_rows = settings["method"] in STOCHASTIC or settings["batch_size"] is not None
    return Plan(
        spectrum(data, device),
        k,
        settings["n_epochs"],
        penalties=None if rule is None else penalties(rule, data, k),
        init_scale=settings["init_scale"],
        momentum=settings["momentum"],
        rows=like(centred_rows(data), reference(device)) if needs_rows else None,
        batch_size=settings["batch_size"],
        record_at=settings.get("record_at"),
    )


def _arrays(found: Trajectory, settings: Settings) -> dict[str, Any]:
    arrays = {"epochs": found.epochs, **{name: found.values[name] for name in MEASURES}}
    if settings["keep_weights"]:
        arrays |= {"encoder": found.weights.encoder, "atoms": found.weights.atoms}
    return {name: np.asarray(values) for name, values in arrays.items()}
