"""Experiment: energies (training losses) along one coordinate, and their numbers of minima."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lucidae.arrays import Array, namespace, squared_moduli
from lucidae.datasets import make_sparse_regression
from lucidae.sparsity.objectives import (
    DiagonalCovariance,
    FullCovariance,
    LogPenalty,
    Penalty,
    State,
    evaluate,
    leave_one_out,
    penalty_value,
    scan_minima,
)
from lucidae.sparsity.prior import best_change
from lucidae.sparsity.problem import Problem, normalise
from lucidae_papers.cells import Arrays, Cell, Settings, grid, on_processor, settings_of, work
from lucidae_papers.declaration import Experiment, Scale
from lucidae_papers.results import Curve, Curves, Results
from lucidae_papers.verdicts import LABELS, AtLeast, AtMost

GRID = np.concatenate([[0.0], np.geomspace(1e-4, 1e3, 300)])
"""Values of one relevance (prior variance of a coefficient) at which energies are evaluated."""

SIGNED = np.linspace(-3.0, 6.0, 901)  # includes zero, where h = log is unbounded

ENERGIES = {"full": FullCovariance(), "diagonal": DiagonalCovariance()}


def full_slice(weight: Array, power: float, inner: float) -> Array:
    """Return a/(w + γ') + log(w + γ'): the full energy in one relevance w (Wipf 2023, eq. 54).

    a (`power`) is the mean square of the coefficients that fit the column to the residual of the
    others, and γ' (`inner`) their variance; `slice_parameters` computes them.
    """
    return power / (weight + inner) + namespace(weight).log(weight + inner)


def diagonal_slice(weight: Array, power: float, inner: float, outer: float) -> Array:
    """Return a/(w + γ') + log(w + γ''): the diagonal energy in one w (Wipf 2023, eq. 55)."""
    return power / (weight + inner) + namespace(weight).log(weight + outer)


def autoencoder_slice(
    value: Array, target: float, noise: float, penalty: Penalty | None = None
) -> Array:
    """Return u² − 2au + γh(u²): the autoencoder's energy in one u (Wipf 2023, eq. 63)."""
    chosen = LogPenalty() if penalty is None else penalty
    return value**2 - 2.0 * target * value + noise * penalty_value(chosen, value**2)


def full_slice_minima(power: float, inner: float) -> list[float]:
    """Return the only local minimum of `full_slice`, max(a − γ', 0) (Wipf 2023, Theorem 4.4)."""
    return [max(0.0, power - inner)]


def diagonal_slice_minima(power: float, inner: float, outer: float) -> list[float]:
    """Return the one or two local minima of `diagonal_slice` (Wipf 2023, Corollary 4.5).

    Stationary points are (a − 2γ' ± √(a² + 4a(γ'' − γ')))/2. The larger one is a minimum, the
    smaller one a maximum. If the maximum is positive, there is a second minimum at zero.
    """
    discriminant = power**2 + 4.0 * power * (outer - inner)
    rises_at_zero = power / inner**2 < 1.0 / outer
    edge = [0.0] if rises_at_zero else []
    if discriminant <= 0.0:
        return [0.0]
    far = (power - 2.0 * inner + discriminant**0.5) / 2.0
    return edge + ([far] if far > 0.0 else []) or [0.0]


def slice_parameters(state: State, index: int) -> tuple[float, float, float]:
    """Return (a, γ', γ'') of the slices: q²/s², 1/s and γ/‖φ‖² (`leave_one_out`); γ'' ≤ γ'."""
    sparsities, qualities = leave_one_out(state)
    sparsity, quality = float(sparsities[index]), float(qualities[index])
    norm = float(namespace(state.noise).sum(squared_moduli(state.dictionary[:, index])))
    return quality / sparsity**2, 1.0 / sparsity, float(state.noise) / norm


@dataclass(frozen=True, slots=True)
class Slices:
    """Settings: one example slice of three energies, and slices through random points.

    An energy is the loss of a sparse model after its encoder has been optimised. A slice is the
    energy as a function of one coordinate, with all others fixed. The models are two VAEs, whose
    posterior covariance is full or diagonal, and an autoencoder.
    """

    states: int  # number of random problems, each with a random point
    # the example of the two VAEs: squared response, model variance without the column, and noise
    # variance; see `measure_slice`
    power: float = 10.0
    inner: float = 1.0
    outer: float = 0.01
    target: float = 3.0  # the example of the autoencoder: response and noise variance
    noise: float = 1.0

    def cells(self) -> Sequence[Cell]:
        """Return one run for the example slice, and one per random problem.

        A slice is the loss as a function of one coordinate, with all others fixed.
        """
        example = settings_of(self, "power", "inner", "outer", "target", "noise")
        problem = {"d": 15, "kappa": 30, "r": 6, "n": 10, "snr_db": 20.0}
        return [
            Cell(measure_slice, example, 0.1),
            *grid(count_minima, {"seed": range(self.states)}, problem, 0.3),
        ]

    def curves(self, results: Results) -> Curves:
        """Return the energies along the example slice, and the numbers of minima of all slices.

        A slice is an energy (training loss) as a function of one coordinate, with the others fixed.
        """
        paper, *states = results.cells
        random = {
            name: np.concatenate([cell.arrays[name] for cell in states])
            for name in ("full", "diagonal", "distance")
        }
        slices = np.arange(len(random["full"]))
        energies = {name: paper.arrays[name] for name in ("full", "diagonal", "autoencoder")}
        abscissae = dict.fromkeys(ENERGIES, paper.arrays["weight"])
        abscissae["autoencoder"] = paper.arrays["value"]
        curves = {
            f"energy/{name}": Curve(abscissae[name], energy) for name, energy in energies.items()
        }
        for name, energy in energies.items():
            curves[f"minima/{name}"] = Curve([0], [len(scan_minima(abscissae[name], energy))])
        for name in ENERGIES:
            curves[f"random/{name}"] = Curve(slices, random[name])
        curves["distance/full"] = Curve(slices, random["distance"])
        curves["several/diagonal"] = Curve([0], [float(np.mean(random["diagonal"] > 1))])
        return curves

    def facts(self) -> Mapping[str, str]:
        """Return the settings in words, for the HTML page of the results."""
        return {
            "example": f"one response whose square is {self.power:g}, noise variance "
            f"{self.outer:g}, model variance {self.inner:g} without the column",
            "autoencoder": f"response {self.target:g}, noise variance {self.noise:g}, penalty "
            "h = log",
            "random slices": f"one per column of {self.states} random problems of 15 rows and 30 "
            "columns, signal-to-noise ratio 20 dB, at random relevances",
        }


def energies_along(
    problem: Problem, relevance: np.ndarray[Any, Any], index: int, weights: np.ndarray[Any, Any]
) -> dict[str, np.ndarray[Any, Any]]:
    """Return the energies of two VAEs along one relevance, with the other relevances fixed.

    An energy is the training loss after optimising the encoder. One VAE has a full posterior
    covariance, the other a diagonal one. A relevance is the prior variance of a coefficient.
    """
    stack = np.repeat(relevance[None, :], len(weights), axis=0)
    stack[:, index] = weights
    fields = (np.broadcast_to(part, (len(weights), *np.shape(part))) for part in problem)
    state = evaluate(Problem(*fields), stack)
    return {name: np.asarray(energy.value(state)) for name, energy in ENERGIES.items()}


@work("sparsity.slice/2")
@on_processor
def measure_slice(settings: Settings) -> Arrays:
    """Return three energies (training losses) along one coordinate of an example, on a grid.

    Those of the VAEs with full and with diagonal posterior covariance are along a relevance (the
    prior variance of a coefficient), that of the autoencoder is along a coefficient.

    The problem has one row and two equal columns of unit norm. The noise variance is ``outer``; the
    relevance ``inner − outer`` of the second column makes ``inner`` the variance of the model
    without the first column. The squared response is ``power``.
    """
    power, inner, outer = settings["power"], settings["inner"], settings["outer"]
    zero = np.array(0.0)
    problem = Problem(np.ones((1, 2)), np.array([[power**0.5]]), np.array(outer), zero, zero)
    weight = np.concatenate([[0.0], np.geomspace(1e-3, 50.0, 400)])
    nonzero = np.where(abs(SIGNED) < 1e-12, 1e-12, SIGNED)
    energies = energies_along(problem, np.array([0.0, inner - outer]), 0, weight)
    autoencoder = autoencoder_slice(nonzero, settings["target"], settings["noise"])
    return {"weight": weight, **energies, "value": SIGNED, "autoencoder": autoencoder}


@work("sparsity.slice_minima/2")
@on_processor
def count_minima(settings: Settings) -> Arrays:
    """Return the numbers of local minima of two VAEs' energies along each relevance.

    An energy is the training loss after optimising the encoder; the VAEs have a full and a diagonal
    posterior covariance. A relevance is the prior variance of a coefficient. The other relevances
    are those of a random point; minima are counted on a fine grid. ``"distance"`` is the number of
    grid steps between the lowest point of the energy with full covariance and the minimiser of Wipf
    2023, Theorem 4.4.
    """
    sizes = {name: settings[name] for name in ("d", "kappa", "r", "n", "snr_db")}
    data = make_sparse_regression(**sizes, random_state=settings["seed"])
    problem, units = normalise(data.dictionary, data.responses)
    rng = np.random.default_rng(settings["seed"])
    relevance = 10.0 ** rng.uniform(-4, 1, size=data.dictionary.shape[1])
    problem = problem.with_noise(data.noise_variance, units)
    state = evaluate(problem, relevance)
    minimisers = relevance + best_change(relevance, state.curvature, state.alignment)
    found: dict[str, list[float]] = {"full": [], "diagonal": [], "distance": []}
    for index, minimiser in enumerate(minimisers):
        energies = energies_along(problem, relevance, index, GRID)
        for name, energy in energies.items():
            found[name].append(len(scan_minima(GRID, energy)))
        expected = int(np.abs(GRID - minimiser).argmin())
        found["distance"].append(abs(int(energies["full"].argmin()) - expected))
    return {name: np.array(values) for name, values in found.items()}


MINIMA = "number of local minima"

EXPECT = {
    "full": (
        AtMost("minima/full", 1, says=f"{MINIMA}, {LABELS['full']}, example"),
        AtMost("random/full", 1, "everywhere", f"{MINIMA}, {LABELS['full']}, random points"),
    ),
    "minimiser": (
        AtMost(
            "distance/full",
            1,
            "everywhere",
            f"grid steps from the minimiser of Theorem 4.4, {LABELS['full']}, random points",
        ),
    ),
    "diagonal": (AtLeast("minima/diagonal", 2, says=f"{MINIMA}, {LABELS['diagonal']}, example"),),
    "autoencoder": (AtLeast("minima/autoencoder", 2, says=f"{MINIMA}, autoencoder, example"),),
    "several": (
        AtLeast(
            "several/diagonal",
            0.01,
            says=f"share of random points with several, {LABELS['diagonal']}",
        ),
    ),
}

EXPERIMENT = Experiment(
    name="sparse-slices",
    title="Minima along one coordinate, with and without marginalisation",
    reference="Wipf 2023, Theorem 4.4, Corollaries 4.5 and 4.6",
    about="Slices of the energies of three sparse models: VAEs with a full and with a diagonal "
    "posterior covariance, and an autoencoder. The energy of a model is its training loss after "
    "its encoder has been optimised. A slice is the energy along one coordinate, with all other "
    "coordinates fixed: for one example, and for random problems at random points.",
    claims={
        "diagonal": "Along one relevance (prior variance of a coefficient), the energy (loss) of "
        "the diagonal-covariance VAE can have two minima.",
        "autoencoder": "Along one coefficient, the energy (loss) of the autoencoder can have "
        "several minima.",
    },
    findings={
        "several": "The energy (loss) of the diagonal-covariance VAE has several minima along "
        "more than 1 % of random coordinates.",
    },
    identities={
        "full": "Along each relevance (prior variance of a coefficient), the energy (loss) of the "
        "full-covariance VAE has a single minimum.",
        "minimiser": "The single minimum of the full-covariance VAE's energy (loss) along a "
        "relevance (prior variance of a coefficient) is that of Wipf 2023, Theorem 4.4.",
    },
    smoke=Scale(Slices(6), EXPECT),
    paper=Scale(Slices(200), EXPECT),
    draw="sparsity.slices",
)
