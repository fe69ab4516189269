"""Certificates of dropout networks: figures measured on weights, and the claims they support."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from lucidae.arrays import (
    Array,
    as_double,
    is_array,
    like,
    namespace,
    scalar,
    squared_norm,
    to_numpy,
)
from lucidae.certificate import (
    Certificate,
    Claim,
    at_least,
    at_most,
    certifies,
    does_not_apply,
    reported,
)
from lucidae.dropout.equalize import product_svd
from lucidae.dropout.landscape import classify, smallest_curvature
from lucidae.dropout.moments import Whitened, joint_moment, whiten
from lucidae.dropout.objectives import (
    DropoutObjective,
    LinearProblem,
    Weights,
    check_hidden_units,
)
from lucidae.dropout.solvers import ExactSolution, assemble, leading_svd, solve_tied
from lucidae.dropout.theory import small_dropout_bound, strength_of
from lucidae.io.models import saved_as
from lucidae.moments import SecondMoment
from lucidae.validation import check_number, check_rows, check_weights

__all__ = ["CERTIFIED", "DropoutFigures", "certify_weights", "claims", "measure"]

Vector = np.ndarray[Any, Any]

CERTIFIED = 1e-6
"""Gap to the optimum, relative to E‖y‖², up to which weights count as optimal."""

MOST_WEIGHTS = 20_000
"""The curvature is measured for networks of up to this number of weights."""


@saved_as("lucidae.dropout.figures/1", formerly="lucidae.dropout.measurement:Measurement")
@dataclass(frozen=True, slots=True)
class DropoutFigures:
    """Figures that `measure` found for given weights.

    Parameters
    ----------
    strength, width, tied
        λ, r, and whether both layers share their weights.
    value : float
        f, the expected dropout loss of the weights.
    optimum : float or None
        The global minimum of f; None if no closed form is known.
    energy : float
        E‖y‖².
    stationarity : float
        Norm of the gradient, relative to its scale.
    relative_variance : float
        Variance of the importance scores over their squared mean.
    path_excess : float
        Relative excess of the squared path norm over its minimum for the same product.
    rank, optimal_rank : int
        Numerical rank of the product, and that of the optimal one; None if it is not known.
    product_distance : float or None
        Relative distance to the optimal product; None if that is not known or not unique.
    curvature : float or None
        Smallest measured curvature, relative to ‖E[yxᵀ]‖; None if it was not measured.
    reason : str
        A sentence about the curvature: why it was not measured, or what its direction is.
    paper_bound : float or None
        The strength below which Mianjy et al. 2018, Theorem 4.3 applies; None where that theorem
        makes no statement.
    """

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
    tolerance: float = CERTIFIED,
    optimum: ExactSolution | None = None,
) -> DropoutFigures:
    """Return the figures of weights on a problem.

    Parameters
    ----------
    problem : LinearProblem
        Moments of the data.
    weights : Weights
        U and V, for the inputs of the problem.
    strength : float
        λ.
    tied : bool, default=False
        Whether both layers share their weights.
    tolerance : float, default=1e-6
        Gap to the optimum, relative to E‖y‖², up to which weights count as optimal.
    optimum : ExactSolution, optional
        The optimum, if it is known already.

    Returns
    -------
    DropoutFigures
    """
    white = whiten(problem)
    kind = (_TiedWhite if problem.is_white else _Tied) if tied else _Untied
    network = kind(DropoutObjective(problem, strength), weights, white, tolerance)
    known = optimum or network.optimum()
    whitened = white.lower_weights(weights)
    values = product_svd(*whitened)[1]
    scores = to_numpy(network.objective.importance(weights))
    stationarity = network.stationarity()
    value = scalar(network.objective.value(weights))
    if known is not None and value - known.value <= tolerance * problem.energy:
        curvature, reason = None, "Not measured: the gap shows that this is a global minimum."
    else:
        curvature, reason = _measured_curvature(network, stationarity)
    # The gap is quadratic in distances, so these are compared with the square root.
    level = tolerance**0.5
    return DropoutFigures(
        strength,
        network.width,
        tied,
        value,
        known.value if known else None,
        problem.energy,
        stationarity,
        _relative_variance(scores),
        _path_excess(scores, values),
        _numerical_rank(values, level),
        _optimal_rank(known, level) if known else None,
        _product_distance(whitened, white, known),
        curvature,
        reason,
        network.paper_bound(),
    )


@dataclass(frozen=True, slots=True)
class _Untied:
    """A network whose layers have separate weights; the closed form is known for all inputs."""

    objective: DropoutObjective
    weights: Weights
    white: Whitened
    tolerance: float
    tied = False

    @property
    def width(self) -> int:
        return int(self.weights.left.shape[1])

    def optimum(self) -> ExactSolution | None:
        strength = self.objective.strength
        triple = leading_svd(self.white.matrix, self.width + 1, strength)
        return assemble(self.white, triple, strength, self.width)

    def stationarity(self) -> float:
        return scalar(self.objective.stationarity(self.weights))

    def curvature(self) -> tuple[float | None, str]:
        """Return the smallest curvature, or None, and a sentence about it."""
        if sum(part.shape[0] * part.shape[1] for part in self.weights) > MOST_WEIGHTS:
            return None, f"Not measured for networks of more than {MOST_WEIGHTS} weights."
        curvature, _ = smallest_curvature(self.objective, self.weights, tied=self.tied)
        return curvature, "lucidae.dropout.landscape.smallest_curvature returns the direction."

    def paper_bound(self) -> float | None:
        return None


class _Tied(_Untied):
    """A network with tied weights; for inputs that are not white no closed form is known."""

    tied = True

    def optimum(self) -> ExactSolution | None:
        return None

    def stationarity(self) -> float:
        return scalar(self.objective.tied_stationarity(self.weights.left))


class _TiedWhite(_Tied):
    """A network with tied weights and white inputs (Mianjy et al. 2018, sections 2 and 4)."""

    def optimum(self) -> ExactSolution | None:
        return solve_tied(self.objective.problem.cross, self.objective.strength, self.width)

    def curvature(self) -> tuple[float | None, str]:
        verdict = classify(
            self.weights.left,
            self.objective.problem.cross,
            self.objective.strength,
            tolerance=self.tolerance,
            critical=self.tolerance**0.5,
        )
        hint = " lucidae.dropout.landscape.classify returns the direction."
        return verdict.curvature, verdict.reason + (hint if verdict.kind.is_saddle else "")

    def paper_bound(self) -> float | None:
        cross = self.objective.problem.cross
        xp = namespace(cross)
        eigenvalues = xp.flip(xp.linalg.eigvalsh((cross + cross.mT) / 2))
        return small_dropout_bound(eigenvalues, self.width)


def _measured_curvature(network: _Untied, stationarity: float) -> tuple[float | None, str]:
    """Return the curvature relative to ‖E[yxᵀ]‖ at a critical point, and a sentence about it."""
    if stationarity > network.tolerance**0.5:
        return None, "Not measured: the gradient does not vanish, so this is not a critical point."
    scale = scalar(squared_norm(network.objective.problem.cross)) ** 0.5 or 1.0
    curvature, reason = network.curvature()
    return None if curvature is None else curvature / scale, reason


def _relative_variance(scores: Vector) -> float:
    """Return the variance of the importance scores over their squared mean."""
    mean = float(scores.mean())
    return float((scores / mean).var()) if mean > 0 else 0.0


def _path_excess(scores: Vector, values: Array) -> float:
    """Return ψ₂² r / ‖UVᵀ‖_*² − 1, which is zero if the path norm is minimal for this product.

    ψ₂² = Σ scoresᵢ² ≥ (Σ scoresᵢ)²/r by Cauchy–Schwarz, and Σ ‖uᵢ‖‖vᵢ‖ ≥ ‖UVᵀ‖_* always.
    """
    nuclear = float(to_numpy(values).sum())
    if nuclear == 0.0:
        return 0.0 if not scores.any() else float("inf")
    return float(((scores / nuclear) ** 2).sum() * len(scores) - 1.0)


def _numerical_rank(values: Array, level: float) -> int:
    host = to_numpy(values)
    return int((host > level * host[0]).sum()) if host.size and host[0] > 0 else 0


def _optimal_rank(optimum: ExactSolution, level: float) -> int:
    """Return the rank of the optimal product, counted by the same rule as that of the weights."""
    kept = optimum.singular_values[: optimum.rank]
    return _numerical_rank(kept - optimum.threshold, level)


def _product_distance(
    whitened: Weights, white: Whitened, optimum: ExactSolution | None
) -> float | None:
    """Return ‖UVᵀ − best‖ / ‖best‖ in white coordinates; None if the best is not unique."""
    if optimum is None or not optimum.unique:
        return None
    xp = namespace(whitened.left)
    best = white.lower_weights(optimum.weights)
    product, reference = whitened.left @ whitened.right.mT, best.left @ best.right.mT
    distance = scalar(xp.sqrt(squared_norm(product - reference)))
    size = scalar(xp.sqrt(squared_norm(reference)))
    return distance / size if size > 0 else distance


_EXACT = "solver='exact' computes the optimum from one decomposition."
_NO_DROPOUT = "Without dropout the loss depends on the product U Vᵀ alone."


def claims(figures: DropoutFigures, tolerance: float) -> tuple[Claim, ...]:
    """Return the claims that the figures support, most important first.

    Parameters
    ----------
    figures : DropoutFigures
        The result of `measure`.
    tolerance : float
        Relative gap up to which weights count as optimal. Relative distances are compared with
        its square root, since the gap is quadratic in them.

    Returns
    -------
    tuple of Claim
    """
    return (
        _gap(figures, tolerance),
        _product(figures, tolerance),
        _equalized(figures, tolerance),
        _path_norm(figures, tolerance),
        _rank(figures),
        _stationarity(figures, tolerance),
        _curvature(figures, tolerance),
        *_small_dropout(figures),
    )


def _gap(figures: DropoutFigures, tolerance: float) -> Claim:
    reference = f"Mianjy et al. 2018, Theorem {'2.4' if figures.tied else '3.6'}"
    statement = "the expected dropout loss is its global minimum"
    if figures.gap is None:
        why = "No closed form is known for tied weights with inputs that are not white."
        return does_not_apply("gap", statement, reference, why)
    at_saddle = figures.curvature is not None and figures.curvature < -math.sqrt(tolerance)
    advice = (
        _saddle_advice(figures)
        if at_saddle
        else f"Train longer with a decreasing learning rate; {_EXACT}"
    )
    return at_most("gap", statement, reference, figures.gap, tolerance, advice)


def _saddle_advice(figures: DropoutFigures) -> str:
    return f"The weights are at a strict saddle. {figures.reason}"


def _product(figures: DropoutFigures, tolerance: float) -> Claim:
    statement = "the network computes the optimal function: singular values shrunk by one threshold"
    reference = "Mianjy et al. 2018, Theorem 3.6"
    if figures.product_distance is None:
        why = (
            "The optimal product is not known, or it is not unique because the singular values "
            "r and r + 1 are equal."
        )
        return does_not_apply("product", statement, reference, why)
    return at_most(
        "product",
        statement,
        reference,
        figures.product_distance,
        math.sqrt(tolerance),
        f"The network computes a function that differs from the optimal one. {_EXACT}",
    )


def _equalized(figures: DropoutFigures, tolerance: float) -> Claim:
    statement = "all hidden units have equal importance (variance over squared mean)"
    reference = "Mianjy et al. 2018, Theorem 3.4"
    if figures.strength == 0:
        return does_not_apply("equalized", statement, reference, _NO_DROPOUT)
    advice = "lucidae.equalize_pair equalizes the units without changing the product."
    variance = figures.relative_variance
    return at_most("equalized", statement, reference, variance, tolerance, advice)


def _path_norm(figures: DropoutFigures, tolerance: float) -> Claim:
    statement = "the path norm is the smallest that this product allows"
    reference = "Mianjy et al. 2018, Theorems 3.3 and 3.4"
    if figures.strength == 0:
        return does_not_apply("path_norm", statement, reference, _NO_DROPOUT)
    advice = "lucidae.equalize_pair minimises it without changing the product."
    return at_most("path_norm", statement, reference, figures.path_excess, tolerance, advice)


def _rank(figures: DropoutFigures) -> Claim:
    statement = f"at width {figures.width} the product has the rank of the optimal one"
    reference = "Mianjy et al. 2018, Theorem 3.6"
    if figures.optimal_rank is None:
        return does_not_apply("rank", statement, reference, "The optimal rank is not known.")
    rank, optimal = figures.rank, figures.optimal_rank
    advice = "" if rank == optimal else _rank_advice(rank > optimal)
    return Claim("rank", statement, reference, float(rank), float(optimal), not advice, advice)


def _rank_advice(too_large: bool) -> str:
    if too_large:
        return f"The network uses directions that dropout removes at the optimum. {_EXACT}"
    return f"The network lacks directions that are present at the optimum. {_EXACT}"


def _stationarity(figures: DropoutFigures, tolerance: float) -> Claim:
    return at_most(
        "stationarity",
        "the gradient of the expected dropout loss vanishes",
        "Mianjy et al. 2018, eq. 2",
        figures.stationarity,
        math.sqrt(tolerance),
        f"Training has not converged. {_EXACT}",
    )


def _curvature(figures: DropoutFigures, tolerance: float) -> Claim:
    statement = "no direction of negative curvature: not a saddle"
    reference = f"Mianjy et al. 2018, {'Theorem 4.3' if figures.tied else 'Definition 4.2'}"
    if figures.curvature is None or math.isnan(figures.curvature):
        return does_not_apply("curvature", statement, reference, figures.reason)
    level, advice = -math.sqrt(tolerance), _saddle_advice(figures)
    return at_least("curvature", statement, reference, figures.curvature, level, advice)


def _small_dropout(figures: DropoutFigures) -> tuple[Claim, ...]:
    """Report the bound of Theorem 4.3, which its conclusion turned out not to need."""
    if figures.paper_bound is None:
        return ()
    inside = figures.strength < figures.paper_bound
    advice = (
        f"λ = {figures.strength:.3g} is {'below' if inside else 'above'} it. Every local minimum "
        "is global in both cases (proof in the docstring of lucidae.dropout.theory)."
    )
    return (
        reported(
            "small_dropout",
            "strength below which the optimum has full rank",
            "Mianjy et al. 2018, Theorem 4.3",
            figures.paper_bound,
            advice,
        ),
    )


def certificate_of(
    problem: LinearProblem,
    weights: Weights,
    strength: float,
    *,
    title: str,
    tied: bool = False,
    tolerance: float = CERTIFIED,
    optimum: ExactSolution | None = None,
) -> Certificate:
    """Return the certificate of weights on a problem; the arguments are those of `measure`."""
    check_problem(problem, weights)
    weights = Weights(*(like(part, problem.cross) for part in weights))
    figures = measure(problem, weights, strength, tied=tied, tolerance=tolerance, optimum=optimum)
    return Certificate(title, claims(figures, tolerance))


def check_problem(problem: LinearProblem, weights: Weights) -> None:
    """Refuse weights that do not fit the numbers of outputs and inputs of a problem."""
    given = (weights.left.shape[0], weights.right.shape[0])
    if tuple(problem.cross.shape) != given:
        raise ValueError(
            f"the data have {problem.cross.shape[0]} outputs and {problem.cross.shape[1]} inputs, "
            f"but U and V have {given[0]} and {given[1]} rows."
        )


@certifies("dropout")
def certify_weights(
    U: Any,
    V: Any,
    X: Any = None,
    Y: Any = None,
    *,
    dropout: float,
    tied: bool = False,
    matrix: Any = None,
    fit_intercept: bool = True,
    sample_weight: Any = None,
    tolerance: float = CERTIFIED,
) -> Certificate:
    """Certify the weights of a linear network x ↦ U Vᵀx that was trained with dropout.

    Parameters
    ----------
    U : array of shape (d1, r)
        Outgoing weights; of a torch model, the weight of the second linear layer.
    V : array of shape (d2, r) or None
        Incoming weights; of a torch model, the transposed weight of the first linear layer.
        None for tied weights.
    X : array-like of shape (n, d2), optional
        Inputs.
    Y : array-like of shape (n, d1) or (n,), optional
        Outputs; None for an autoencoder, whose outputs are its inputs.
    dropout : float
        Probability of dropping a hidden unit, in [0, 1).
    tied : bool, default=False
        Whether both layers share U.
    matrix : array-like of shape (d1, d2), optional
        M, instead of data: white inputs with y = Mx, or the matrix that UVᵀ factorises.
    fit_intercept : bool, default=True
        Whether the network has biases, so that it is judged on centred data.
    sample_weight : array-like of shape (n,), optional
        Frequencies of the rows.
    tolerance : float, default=1e-6
        Gap to the optimum, relative to E‖y‖², up to which the weights count as optimal.

    Returns
    -------
    Certificate

    Examples
    --------
    >>> import numpy as np
    >>> M = np.diag([3.0, 2.0])
    >>> certificate = certify_weights(np.eye(2), np.eye(2), matrix=M, dropout=0.5)
    >>> certificate.holds, certificate["gap"].holds
    (False, False)
    """
    strength = strength_of(dropout)
    check_number(tolerance, "tolerance", low=0.0, open_low=True)
    tied = tied or V is None
    weights = Weights(_layer(U, "U"), _layer(U if tied else V, "V"))
    check_hidden_units(*weights)
    if (X is None) == (matrix is None):
        raise ValueError(
            "give either data (X, and Y unless the network is an autoencoder) or matrix=M."
        )
    problem = (
        data_problem(X, Y, fit_intercept, sample_weight)
        if matrix is None
        else matrix_problem(matrix)
    )
    return certificate_of(
        problem, weights, strength, title="dropout weights", tied=tied, tolerance=tolerance
    )


def _layer(weights: Any, name: str) -> np.ndarray[Any, Any]:
    """Return weights as a float64 NumPy array, detached from automatic differentiation."""
    host = to_numpy(weights) if is_array(weights) else np.asarray(weights)
    return np.asarray(check_rows(host, accept_sparse=False, name=name), dtype=np.float64)


def matrix_problem(matrix: Any) -> LinearProblem:
    """Return the problem of a matrix M, checked and in double precision."""
    rows = check_rows(matrix, accept_sparse=False, name="matrix")
    return LinearProblem.from_matrix(as_double(rows))


def data_problem(X: Any, Y: Any, fit_intercept: bool, sample_weight: Any) -> LinearProblem:
    """Return the moments of (X, Y), or of an autoencoder of X."""
    X = check_rows(X)
    if Y is None:
        moment = SecondMoment.of(X, sample_weight)
        return LinearProblem.autoencoder(moment, centered=fit_intercept)
    weights = check_weights(sample_weight, X)
    return LinearProblem.from_moment(
        joint_moment(X, Y, weights), X.shape[1], centered=fit_intercept
    )
