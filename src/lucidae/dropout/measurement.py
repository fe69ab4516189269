"""The figures behind a certificate: a handful of numbers about given weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lucidae._arrays import (
    Array,
    eye_like,
    largest,
    namespace,
    scalar,
    squared_norm,
    to_numpy,
)
from lucidae.dropout.curvature import smallest_curvature
from lucidae.dropout.equalize import product_svd
from lucidae.dropout.landscape import Kind, classify
from lucidae.dropout.objectives import DropoutObjective, LinearProblem, Weights
from lucidae.dropout.solvers import ExactSolution, assemble, leading_svd, solve_tied
from lucidae.dropout.theory import small_dropout_bound
from lucidae.dropout.whitening import Whitened, whiten

Vector = np.ndarray[Any, Any]

WHITE = 1e-8
"""Inputs whose second moment differs from the identity by no more are white."""

MOST_WEIGHTS = 20_000
"""Curvature is measured for networks of up to this many weights."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """Figures about weights; relative ones are dimensionless, None does not apply."""

    strength: float
    width: int
    tied: bool
    value: float
    optimum: float | None
    energy: float
    stationarity: float
    relative_variance: float
    path_excess: float
    rank: int
    optimal_rank: int | None
    product_distance: float | None
    curvature: float | None
    reason: str
    paper_bound: float | None

    @property
    def gap(self) -> float | None:
        """(f − min f) / E‖y‖²."""
        if self.optimum is None:
            return None
        return (self.value - self.optimum) / (self.energy if self.energy > 0 else 1.0)


def measure(
    problem: LinearProblem,
    weights: Weights,
    strength: float,
    *,
    tied: bool = False,
    tolerance: float = 1e-6,
    optimum: ExactSolution | None = None,
) -> Measurement:
    """Measure weights against the optimum; `optimum` saves solving for it again."""
    objective = DropoutObjective(problem, strength)
    white = whiten(problem)
    width = weights.left.shape[1]
    known = optimum or _optimum(problem, white, strength, width, tied)
    lowered = white.lower_weights(weights)
    values = product_svd(*lowered)[1]
    scores = to_numpy(objective.importance(weights))
    stationarity = _stationarity(objective, weights, tied)
    value = scalar(objective.value(weights))
    solved = known is not None and value - known.value <= tolerance * problem.energy
    curvature, reason = (
        (None, "Nothing leads down from the global minimum, which the gap confirms.")
        if solved
        else _curvature(objective, weights, tied, stationarity, tolerance)
    )
    return Measurement(
        strength,
        width,
        tied,
        value,
        known.value if known else None,
        problem.energy,
        stationarity,
        _relative_variance(scores),
        _path_excess(scores, values),
        _numerical_rank(values, tolerance**0.5),
        _optimal_rank(known, tolerance**0.5) if known else None,
        _product_distance(lowered, white, known),
        curvature,
        reason,
        _paper_bound(problem, width) if tied and is_white(problem) else None,
    )


def is_white(problem: LinearProblem) -> bool:
    """Tell whether the inputs have the identity as their second moment."""
    if problem.inputs is None:
        return True
    return largest(problem.inputs - eye_like(problem.inputs.shape[0], problem.inputs)) <= WHITE


def _optimum(
    problem: LinearProblem, white: Whitened, strength: float, width: int, tied: bool
) -> ExactSolution | None:
    """Return the global optimum where a closed form is known: not for tied, correlated inputs."""
    if not tied:
        triple = leading_svd(white.matrix, width + 1, strength)
        return assemble(white, triple, strength, width)
    return solve_tied(problem.cross, strength, width) if is_white(problem) else None


def _stationarity(objective: DropoutObjective, weights: Weights, tied: bool) -> float:
    if tied:
        return scalar(objective.tied_stationarity(weights.left))
    return scalar(objective.stationarity(weights))


def _curvature(
    objective: DropoutObjective, weights: Weights, tied: bool, stationarity: float, tolerance: float
) -> tuple[float | None, str]:
    """Return the curvature along the way down, relative to ‖E[yxᵀ]‖, and that way in words."""
    critical = tolerance**0.5
    if stationarity > critical:
        return None, "The gradient does not vanish here: its negative leads down."
    scale = scalar(squared_norm(objective.problem.cross)) ** 0.5 or 1.0
    if tied and is_white(objective.problem):
        verdict = classify(
            weights.left,
            objective.problem.cross,
            objective.strength,
            tolerance=tolerance,
            critical=critical,
        )
        saddle = verdict.kind in (Kind.EQUALIZED_SADDLE, Kind.UNEQUALIZED_SADDLE)
        hint = " lucidae.dropout.landscape.classify returns the direction." if saddle else ""
        return verdict.curvature / scale, f"{verdict.reason}{hint}"
    if sum(part.shape[0] * part.shape[1] for part in weights) > MOST_WEIGHTS:
        return None, f"Not measured for networks of more than {MOST_WEIGHTS} weights."
    curvature, _ = smallest_curvature(objective, weights, tied=tied)
    words = "lucidae.dropout.curvature.smallest_curvature returns the direction."
    return curvature / scale, words


def _relative_variance(scores: Vector) -> float:
    """Return the variance of the importance scores over their squared mean."""
    mean = float(scores.mean())
    return float((scores / mean).var()) if mean > 0 else 0.0


def _path_excess(scores: Vector, values: Array) -> float:
    """Return ψ₂² r / ‖UVᵀ‖_*² − 1: zero where the path norm is the least for this product."""
    nuclear = float(to_numpy(values).sum())
    if nuclear == 0.0:
        return 0.0 if not scores.any() else float("inf")
    return float(((scores / nuclear) ** 2).sum() * len(scores) - 1.0)


def _numerical_rank(values: Array, level: float) -> int:
    host = to_numpy(values)
    return int((host > level * host[0]).sum()) if host.size and host[0] > 0 else 0


def _optimal_rank(optimum: ExactSolution, level: float) -> int:
    """Return the rank of the optimal product, counted as that of the weights is."""
    kept = optimum.singular_values[: optimum.rank]
    return _numerical_rank(kept - optimum.threshold, level)


def _product_distance(
    lowered: Weights, white: Whitened, optimum: ExactSolution | None
) -> float | None:
    """Return ‖UVᵀ − best‖ / ‖best‖ in white coordinates, None where the best is not unique."""
    if optimum is None or not optimum.unique:
        return None
    xp = namespace(lowered.left)
    best = white.lower_weights(optimum.weights)
    product, reference = lowered.left @ lowered.right.mT, best.left @ best.right.mT
    distance = scalar(xp.sqrt(squared_norm(product - reference)))
    size = scalar(xp.sqrt(squared_norm(reference)))
    return distance / size if size > 0 else distance


def _paper_bound(problem: LinearProblem, width: int) -> float:
    xp = namespace(problem.cross)
    eigenvalues = xp.flip(xp.linalg.eigvalsh((problem.cross + problem.cross.mT) / 2))
    return small_dropout_bound(eigenvalues, width)
