"""Experiments on dropout in linear networks: Mianjy et al. 2018, Figures 1 to 3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.optimize

from lucidae.arrays import like
from lucidae.datasets import make_linear_network
from lucidae.dropout.landscape import scalar_surface, tied_objective
from lucidae.dropout.problem import sampled_gradient
from lucidae.dropout.sgd import DropoutStep, GaussianSource, Runs, descend, linear_decay
from lucidae.dropout.theory import dropout_of, optimal_value
from lucidae.iteration import Below, iterate, log_grid
from lucidae_papers.cells import Arrays, Cell, Settings, grid, on_processor, settings_of, work
from lucidae_papers.declaration import Experiment, Scale, listed
from lucidae_papers.device import reference
from lucidae_papers.results import Curve, Curves, Results
from lucidae_papers.verdicts import AtLeast, AtMost, Ordered

TARGET = 2.0


@dataclass(frozen=True, slots=True)
class Surfaces:
    """Settings of loss surfaces of a network with two hidden units, and of descents on them."""

    strengths: tuple[float, ...]  # strengths λ = dropout/(1 − dropout); the first one is 0
    points: int  # grid points of the surface along each weight
    starts: int  # random starts of a descent for each strength

    def cells(self) -> Sequence[Cell]:
        """Return one run per strength of dropout."""
        shared = {"target": TARGET, "points": self.points, "starts": self.starts, "seed": 0}
        return grid(measure_surface, {"strength": self.strengths}, shared, 0.3)

    def curves(self, results: Results) -> Curves:
        """Return curves over the strengths λ of dropout that describe where the descents end.

        ``"norm"`` is the mean norm of these weights, ``"gap"`` their largest loss minus the global
        minimum, and ``"inequality"`` the largest difference between the absolute weights of the two
        hidden units, for λ > 0. For λ = 0 there are two further curves, the range of the norms and
        the same inequality, which show whether the minima form a circle.
        """
        names = ("norm", "gap", "inequality")
        table = {name: [_figures(cell.arrays)[name] for cell in results] for name in names}
        curves = {name: Curve(self.strengths, figures, "λ =") for name, figures in table.items()}
        curves["inequality"] = Curve(self.strengths[1:], table["inequality"][1:], "λ =")
        curves["step of the norm"] = Curve(self.strengths[1:], np.diff(table["norm"]), "λ =")
        norms = np.linalg.norm(results.one(strength=0.0).arrays["ends"], axis=1)
        curves["radius range"] = Curve([0], [np.ptp(norms)])
        curves["inequality without dropout"] = Curve([0], table["inequality"][:1])
        return curves

    def facts(self) -> Mapping[str, str]:
        """Return the settings in words, for the HTML page of the results."""
        return {
            "network": f"one input, one output, target {TARGET:g}, two hidden units, tied weights",
            "strengths": listed(self.strengths),
            "descents": f"{self.starts} random starts for each strength",
        }


def _figures(arrays: Arrays) -> dict[str, float]:
    """Return mean norm, loss gap and inequality of the weights at which descents end."""
    ends = arrays["ends"]
    return {
        "norm": float(np.mean(np.linalg.norm(ends, axis=1))),
        "gap": float(np.max(arrays["values"]) - float(arrays["optimum"])),
        "inequality": float(np.max(abs(abs(ends[:, 0]) - abs(ends[:, 1])))),
    }


@work("dropout.landscape/1")
@on_processor
def measure_surface(settings: Settings) -> Arrays:
    """Return the loss on a grid of weights, and the end points of descents from random starts."""
    target, strength = settings["target"], settings["strength"]
    surface = scalar_surface(target, strength, points=settings["points"])
    objective = tied_objective(np.array([[target]]), strength)
    starts = np.random.default_rng(settings["seed"]).standard_normal((settings["starts"], 2))
    ended = [
        scipy.optimize.minimize(
            lambda u: float(objective.tied_value(u[None, :])),
            start,
            jac=lambda u: objective.tied_gradient(u[None, :])[0],
            tol=1e-12,
        )
        for start in starts
    ]
    return {
        "axis": surface.axis,
        "surface": surface.values,
        "levels": surface.levels,
        "minima": surface.minima,
        "ends": np.array([end.x for end in ended]),
        "values": np.array([end.fun for end in ended]),
        "optimum": np.array(optimal_value(np.array([target]), strength, 2)),
    }


INEQUALITY = "largest difference of |u₁| and |u₂| at a minimum"

EXPECTED_ON_SURFACES = {
    "circle": (
        AtMost("radius range", 1e-3, says="range of the norms of the minima, λ = 0"),
        AtLeast("inequality without dropout", 0.5, says=f"{INEQUALITY}, λ = 0"),
    ),
    "global": (AtMost("gap", 1e-6, "everywhere", "largest final loss minus the global minimum"),),
    "equalized": (AtMost("inequality", 1e-3, "everywhere", f"{INEQUALITY}, λ > 0"),),
    "shrink": (AtMost("step of the norm", -0.01, "everywhere", "change of the norm with λ"),),
}

LANDSCAPE = Experiment(
    name="dropout-landscape",
    title="Loss surface of dropout",
    reference="Mianjy et al. 2018, Figure 1",
    about="The expected dropout loss of a linear autoencoder with one input, one output and two "
    "hidden units with weights u₁ and u₂, for three strengths λ = dropout/(1 − dropout), and the "
    "minima at which descents from random points end.",
    identities={
        "circle": "Without dropout (λ = 0) the loss is rotation invariant: the optima form a "
        "circle.",
        "global": "All local minima of the expected dropout loss are global.",
        "equalized": "With dropout the optimal weights are equalized: |u₁| and |u₂| are equal.",
        "shrink": "The optima move towards the origin as the dropout strength λ grows.",
    },
    smoke=Scale(Surfaces((0.0, 0.5, 1.0), points=61, starts=30), EXPECTED_ON_SURFACES),
    paper=Scale(Surfaces((0.0, 0.5, 1.0), points=121, starts=200), EXPECTED_ON_SURFACES),
    draw="landscapes.dropout",
)


STARTS = ((1.6, 0.15), (-0.2, 0.1))


@dataclass(frozen=True, slots=True)
class Paths:
    """Settings of dropout SGD on a network with one input, one output and two hidden units."""

    strengths: tuple[float, ...]  # strengths λ = dropout/(1 − dropout)
    n_steps: int  # steps of SGD, and examples per step
    batch_size: int
    rate: float  # first learning rate; it decreases linearly to zero
    seeds: int  # number of random seeds for each strength

    def cells(self) -> Sequence[Cell]:
        """Return one run per strength of dropout and seed.

        A run trains the network with SGD from two initial weights and records both paths.
        """
        starts = [list(start) for start in STARTS]
        shared = settings_of(self, "n_steps", "batch_size", "rate")
        shared |= {"target": TARGET, "starts": starts}
        axes = {"strength": self.strengths, "seed": range(self.seeds)}
        return grid(measure_paths, axes, shared, self.n_steps * 2e-4)

    def curves(self, results: Results) -> Curves:
        """Return curves of the distance to the nearest global optimum along each path of SGD."""
        curves = {}
        for lam in self.strengths:
            cells = results.where(strength=lam).cells
            for place in range(len(STARTS)):
                steps = np.linspace(0, self.n_steps, 251).round().astype(int)
                away = [distance(cell.arrays["path"][steps, place], lam) for cell in cells]
                name = f"distance/{lam:g}/start {place + 1}"
                curves[name] = Curve.over_seeds(steps, away, "step")
        return curves

    def facts(self) -> Mapping[str, str]:
        """Return the settings in words, for the HTML page of the results."""
        return {
            "network": f"one input, one output, target {TARGET:g}, two hidden units with equal "
            "incoming and outgoing weights",
            "steps": f"{self.n_steps}, batches of {self.batch_size}, learning rate falling from "
            f"{self.rate:g} to zero",
            "seeds": str(self.seeds),
        }


def distance(path: Any, strength: float) -> Any:
    """Return the distance of each point of a path, shape (n, 2), to the nearest global optimum.

    A point consists of the weights of the two hidden units.
    """
    minima = scalar_surface(TARGET, strength, points=2).minima
    return np.min(np.linalg.norm(path[:, None, :] - minima, axis=-1), axis=-1)


@work("dropout.paths/1")
@on_processor
def measure_paths(settings: Settings) -> Arrays:
    """Train with dropout and return the path of the weights, shape (steps, starts, 2).

    The incoming and the outgoing weights of the two hidden units start equal and stay equal,
    because with one input and one output both gradients are the same.
    """
    starts = np.array(settings["starts"])[:, None, :]
    keep = np.full(len(starts), 1.0 / (1.0 + settings["strength"]))
    step = DropoutStep(
        GaussianSource(np.array([[settings["target"]]])),
        np.full(len(starts), settings["rate"]),
        linear_decay,
        settings["n_steps"],
        settings["batch_size"],
        sampled_gradient,
        np.random.RandomState(settings["seed"]),
    )
    solution = iterate(
        step,
        Runs(starts, starts, keep, 0.0 * keep),
        stop=Below(lambda _: 1.0, 0.0),
        limit=settings["n_steps"],
        record={"weights": lambda runs: runs.left[:, 0, :]},
        record_at=1,
        size=2,
    )
    return {"path": solution.history["weights"]}


def expect_of_paths(within: float) -> dict[str, tuple[AtMost, ...]]:
    """Return, for every path of SGD, the comparison that it ends within `within` of an optimum."""
    return {
        "optimum": tuple(
            AtMost(
                f"distance/{lam:g}/start {place}",
                within,
                says=f"distance to the nearest global optimum, λ = {lam:g}, start {place}",
            )
            for lam in (0.1, 0.5, 1.0)
            for place in (1, 2)
        )
    }


PATHS = Experiment(
    name="dropout-paths",
    title="Paths of dropout SGD",
    reference="Mianjy et al. 2018, Figure 2",
    about="Stochastic gradient descent with dropout on a linear network with one input, one output "
    "and two hidden units, from two starts, for three strengths λ = dropout/(1 − dropout).",
    claims={
        "optimum": "For every dropout strength λ and from both starts, SGD converges to a global "
        "optimum, at which both hidden units have weights of equal size.",
    },
    smoke=Scale(Paths((0.1, 0.5, 1.0), 5000, 8, 0.02, 1), expect_of_paths(0.08)),
    paper=Scale(Paths((0.1, 0.5, 1.0), 20_000, 1, 0.005, 10), expect_of_paths(0.06)),
    draw="landscapes.paths",
)


INIT_SCALES = (0.03, 0.3, 1.0, 1.5)
"""Sizes of the initial weights relative to the optimum; Mianjy et al. 2018 do not state theirs.

From twice the optimum on, descent at the automatic learning rate may diverge."""
INIT_SCALE = 0.3
"""The scale that is drawn."""


@dataclass(frozen=True, slots=True)
class Convergence:
    """Settings of linear networks that are trained with dropout, several times each."""

    shape: tuple[int, int]  # numbers of outputs and of inputs
    widths: tuple[int, ...]  # numbers of hidden units
    strengths: tuple[float, ...]  # strengths λ = dropout/(1 − dropout)
    n_steps: int  # steps of SGD, and new examples per step
    batch_size: int
    runs: int  # trainings for each width and strength; curves are means over them
    runs_per_cell: int  # trainings that are computed together, as one `Cell`

    def cells(self) -> Sequence[Cell]:
        """Return one `Cell` per initial scale, width, strength of dropout and seed.

        A `Cell` is a stored unit of work, here `runs_per_cell` trainings; the width is the number
        of hidden units.
        """
        shared = settings_of(self, "shape", "n_steps", "batch_size")
        shared |= {"runs": self.runs_per_cell, "schedule": "linear"}
        shared["record_at"] = list(log_grid(self.n_steps))
        axes = {
            "init_scale": INIT_SCALES,
            "width": self.widths,
            "strength": self.strengths,
            "seed": range(self.runs // self.runs_per_cell),
        }
        return grid(measure_convergence, axes, shared, self._cost)

    def _cost(self, settings: Settings) -> float:
        size = sum(self.shape) * settings["width"] * self.batch_size * self.runs_per_cell
        return float(self.n_steps * (2e-4 + 1.5e-9 * size))

    def curves(self, results: Results) -> Curves:
        """Return curves for each width and strength, one for each seed.

        A seed stands for the mean of `runs_per_cell` runs, as Mianjy et al. 2018 judge means.
        The width is the number of hidden units, the strength is λ = dropout/(1 − dropout).
        ``"objective"``, the expected dropout loss, and ``"variance"``, the variance of the
        importance scores over the hidden units, are curves over the steps at the initial scale that
        is drawn; ``"optimum"`` is the optimal value. The importance score of a unit is the product
        of the norms of its incoming and outgoing weights. The others are those of `_figures_of`,
        over the initial scales.
        """
        curves = {}
        for width in self.widths:
            for lam in self.strengths:
                name, found = f"{width}/{lam:g}", results.where(width=width, strength=lam)
                scales = [found.where(init_scale=scale) for scale in INIT_SCALES]
                figures = [_figures_of(cells) for cells in scales]
                for kind in figures[0]:
                    each = np.transpose([one[kind] for one in figures])
                    curves[f"{kind}/{name}"] = Curve.over_seeds(INIT_SCALES, each, "initial scale")
                drawn = scales[INIT_SCALES.index(INIT_SCALE)]
                first = drawn.cells[0].arrays
                curves[f"optimum/{name}"] = Curve([0], [first["optimum"]])
                for kind in ("objective", "variance"):
                    each = _means(drawn, kind)
                    curves[f"{kind}/{name}"] = Curve.over_seeds(first["steps"], each, "step")
        return curves

    def facts(self) -> Mapping[str, str]:
        """Return the settings in words, for the HTML page of the results."""
        outputs, inputs = self.shape
        return {
            "network": f"{inputs} inputs, {outputs} outputs, "
            f"{listed(self.widths, ' and ')} hidden units",
            "target": "random singular vectors, singular values decrease as exp(−i/10)",
            "strengths": listed(self.strengths),
            "steps": f"{self.n_steps}, each with {self.batch_size} new examples",
            "runs": f"{self.runs} for each width and strength; a seed is the mean of "
            f"{self.runs_per_cell}",
            "initial weights": f"random, of the scales {listed(INIT_SCALES)}, drawn at "
            f"{INIT_SCALE:g}; the scale in Mianjy et al. 2018 is not known",
        }


def _means(results: Results, name: str) -> Any:
    """Return an array of each `Cell` over the steps, averaged over its runs: (cells, steps)."""
    return np.array([cell.arrays[name].mean(axis=1) for cell in results])


def _figures_of(results: Results) -> dict[str, Any]:
    """Return numbers on the trainings at one initial scale, for each `Cell`.

    ``"excess"`` is the objective at the last step minus its optimal value, divided by this value,
    and ``"lowest"`` the smallest such number of all steps. The others are about the variance of the
    importance scores divided by its largest value: its value at the last step (``"last"``), its
    mean over the steps (``"mean"``), and its largest increase above an earlier value (``"rise"``).
    """
    excess = _means(results, "objective") / float(results.cells[0].arrays["optimum"]) - 1.0
    variance = _means(results, "variance")
    variance = variance / variance.max(axis=1, keepdims=True)
    return {
        "excess": excess[:, -1],
        "lowest": excess.min(axis=1),
        "last": variance[:, -1],
        "mean": variance.mean(axis=1),
        "rise": np.max(variance - np.minimum.accumulate(variance, axis=1), axis=1),
    }


@work("dropout.convergence/1")
def measure_convergence(group: Sequence[Settings], device: str) -> list[Arrays]:
    """Train networks with dropout for each of the settings in `group`; return curves as arrays."""
    return [_train(settings, device) for settings in group]


def _train(settings: Settings, device: str) -> dict[str, Any]:
    """Train networks with dropout as `settings` say; return their curves over the steps."""
    outputs, inputs = settings["shape"]
    network = make_linear_network(1, inputs, outputs, random_state=0)
    matrix = like(network.coef, reference(device))
    solution = descend(
        GaussianSource(matrix),
        matrix,
        [dropout_of(settings["strength"])] * settings["runs"],
        settings["width"],
        rng=np.random.RandomState(settings["seed"]),
        schedule=settings["schedule"],
        batch_size=settings["batch_size"],
        limit=settings["n_steps"],
        tolerance=0.0,
        init_scale=settings["init_scale"],
        check_every=settings["n_steps"],
        record_at=settings["record_at"],
    )
    best = optimal_value(network.singular_values, settings["strength"], settings["width"])
    return {
        "steps": solution.history.iterations,
        "objective": solution.history["objective"],
        "variance": solution.history["importance_variance"],
        "optimum": np.array(best),
    }


STRENGTHS = (0.1, 0.5, 1.0)
VARIANCE = "variance of the importance scores relative to its largest value"


def expect_of_convergence(widths: tuple[int, ...], within: float) -> dict[str, Any]:
    """Return, for each statement of the experiment, the comparisons by which it is judged.

    There is one for every width (number of hidden units) and strength of dropout, at every initial
    scale. Larger strengths must make the units equally important sooner; this is judged on the
    mean, over the whole training, of the variance of their importance scores (products of the norms
    of incoming and outgoing weights). The steps are those of a logarithmic grid, so that the result
    does not depend on the choice of one step.
    """
    names = ("optimum", "equalized", "monotone", "faster", "bound")
    verdicts: dict[str, list[Any]] = {name: [] for name in names}
    for width in widths:
        for lam in STRENGTHS:
            run, words = f"{width}/{lam:g}", f"r = {width}, λ = {lam:g}"
            excess = "relative excess of the objective over its optimum"
            last = f"{excess} after the last step, {words}, all initial scales"
            lowest = f"{excess}, smallest of all steps, {words}, all initial scales"
            variance = f"{VARIANCE} after the last step, {words}, all initial scales"
            rise = f"largest rise of the {VARIANCE}, {words}"
            verdicts["optimum"].append(AtMost(f"excess/{run}", within, "everywhere", last))
            verdicts["bound"].append(AtLeast(f"lowest/{run}", -1e-9, "everywhere", lowest))
            verdicts["equalized"].append(AtMost(f"last/{run}", 0.1, "everywhere", variance))
            verdicts["monotone"] += [
                AtMost(f"rise/{run}", 0.02, scale, rise) for scale in INIT_SCALES
            ]
        verdicts["faster"] += [
            Ordered(
                tuple(f"mean/{width}/{lam:g}" for lam in STRENGTHS),
                scale,
                says=f"decrease of the mean of the {VARIANCE}, from each λ to the next, "
                f"r = {width}",
            )
            for scale in INIT_SCALES
        ]
    return {name: tuple(found) for name, found in verdicts.items()}


CONVERGENCE = Experiment(
    name="dropout-convergence",
    title="Dropout training and the closed form",
    reference="Mianjy et al. 2018, Figure 3",
    about="Linear networks with r hidden units, trained by stochastic gradient descent with "
    "dropout of strength λ = dropout/(1 − dropout). The importance score of a hidden unit is the "
    "product of the norms of its incoming and outgoing weights.",
    claims={
        "optimum": "Training with dropout converges to the global optimum that the closed form "
        "gives.",
        "equalized": "The hidden units become equally important: the variance of their importance "
        "scores goes to zero.",
        "monotone": "The variance of the hidden units' importance scores decreases monotonically.",
        "faster": "The larger the dropout strength λ, the faster the hidden units become equally "
        "important.",
    },
    identities={
        "bound": "In training the objective is never below the optimal value of the closed form.",
    },
    smoke=Scale(
        Convergence((30, 20), (5, 20), STRENGTHS, 1500, 16, 10, 10),
        expect_of_convergence((5, 20), 0.05),
    ),
    paper=Scale(
        Convergence((120, 80), (20, 80), STRENGTHS, 4000, 32, 50, 10),
        expect_of_convergence((20, 80), 0.02),
    ),
    draw="training.convergence",
)
