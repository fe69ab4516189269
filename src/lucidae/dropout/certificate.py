"""Certificates of dropout networks: figures measured on weights, and the claims they support."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lucidae.arrays import (
    Array,
    as_double,
    eye_like,
    is_array,
    largest,
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
from lucidae.dropout.landscape import Kind, classify, smallest_curvature
from lucidae.dropout.moments import Whitened, joint_moment, whiten
from lucidae.dropout.objectives import DropoutObjective, LinearProblem, Weights
from lucidae.dropout.solvers import ExactSolution, assemble, leading_svd, solve_tied
from lucidae.dropout.theory import small_dropout_bound, strength_of
from lucidae.io.models import saved_as
from lucidae.moments import SecondMoment
from lucidae.validation import check_number, check_rows, check_weights

__all__ = ["certify_estimator", "certify_weights"]

Vector = np.ndarray[Any, Any]

WHITE = 1e-8
"""Inputs whose second moment differs from the identity by no more are white."""

MOST_WEIGHTS = 20_000
"""Curvature is measured for networks of up to this many weights."""


@saved_as("lucidae.dropout.figures/1", formerly="lucidae.dropout.measurement:Measurement")
@dataclass(frozen=True, slots=True)
class DropoutFigures:
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
) -> DropoutFigures:
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
        else _measured_curvature(objective, weights, tied, stationarity, tolerance)
    )
    return DropoutFigures(
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


def _measured_curvature(
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
    words = "lucidae.dropout.landscape.smallest_curvature returns the direction."
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


_EXACT = "solver='exact' reaches the optimum in one decomposition."


def judge(figures: DropoutFigures, tolerance: float, title: str) -> Certificate:
    """Return the certificate that the figures support.

    Parameters
    ----------
    figures : DropoutFigures
        What was measured.
    tolerance : float
        Relative gap that counts as none; relative distances are judged by its square root, since
        the gap is quadratic in them.
    title : str
        What was certified.
    """
    claims = (
        _gap(figures, tolerance),
        _product(figures, tolerance),
        _equalized(figures, tolerance),
        _path_norm(figures, tolerance),
        _rank(figures),
        _stationary(figures, tolerance),
        _curvature(figures, tolerance),
        *_paper_condition(figures),
    )
    return Certificate(title, claims)


def _gap(figures: DropoutFigures, tolerance: float) -> Claim:
    reference = f"Mianjy et al. 2018, Theorem {'2.4' if figures.tied else '3.6'}"
    statement = "the expected dropout loss is its global minimum"
    if figures.gap is None:
        why = "No closed form is known for tied weights with inputs that are not white."
        return does_not_apply("gap", statement, reference, why)
    advice = figures.reason or f"Train on with a falling learning rate; {_EXACT}"
    return at_most("gap", statement, reference, figures.gap, tolerance, advice)


def _product(figures: DropoutFigures, tolerance: float) -> Claim:
    statement = "the network is the optimal one: singular values shrunk by one threshold"
    reference = "Mianjy et al. 2018, Theorem 3.6"
    if figures.product_distance is None:
        why = "The optimal product is not known, or not unique: two singular values tie at the cut."
        return does_not_apply("product", statement, reference, why)
    return at_most(
        "product",
        statement,
        reference,
        figures.product_distance,
        math.sqrt(tolerance),
        f"The network computes another function than the optimal one. {_EXACT}",
    )


def _equalized(figures: DropoutFigures, tolerance: float) -> Claim:
    statement = "all hidden units weigh the same (variance over squared mean)"
    reference = "Mianjy et al. 2018, Theorem 3.4"
    if figures.strength == 0:
        return does_not_apply("equalized", statement, reference, "Without dropout nothing asks it.")
    advice = "lucidae.equalize_pair levels the units and keeps the product."
    variance = figures.relative_variance
    return at_most("equalized", statement, reference, variance, tolerance, advice)


def _path_norm(figures: DropoutFigures, tolerance: float) -> Claim:
    statement = "the path norm is the least that this product allows"
    reference = "Mianjy et al. 2018, Theorems 3.3 and 3.4"
    if figures.strength == 0:
        return does_not_apply("path norm", statement, reference, "Without dropout nothing asks it.")
    advice = "lucidae.equalize_pair attains it and keeps the product."
    return at_most("path norm", statement, reference, figures.path_excess, tolerance, advice)


def _rank(figures: DropoutFigures) -> Claim:
    statement = f"at width {figures.width} the network has the rank that dropout leaves"
    reference = "Mianjy et al. 2018, Theorem 3.6"
    if figures.optimal_rank is None:
        return does_not_apply("rank", statement, reference, "The optimal rank is not known.")
    holds = figures.rank == figures.optimal_rank
    advice = "" if holds else "Directions that dropout would remove, or keep, differ from these."
    return Claim(
        "rank",
        statement,
        reference,
        float(figures.rank),
        float(figures.optimal_rank),
        holds,
        advice,
    )


def _stationary(figures: DropoutFigures, tolerance: float) -> Claim:
    return at_most(
        "stationary",
        "the gradient of the expected dropout loss vanishes",
        "Mianjy et al. 2018, eq. 2",
        figures.stationarity,
        math.sqrt(tolerance),
        f"Training has not ended. {_EXACT}",
    )


def _curvature(figures: DropoutFigures, tolerance: float) -> Claim:
    statement = "no direction of negative curvature: not a saddle"
    reference = f"Mianjy et al. 2018, {'Theorem 4.3' if figures.tied else 'Definition 4.2'}"
    if figures.curvature is None or math.isnan(figures.curvature):
        return does_not_apply("curvature", statement, reference, figures.reason)
    advice = f"A strict saddle. {figures.reason}"
    level = -math.sqrt(tolerance)
    return at_least("curvature", statement, reference, figures.curvature, level, advice)


def _paper_condition(figures: DropoutFigures) -> tuple[Claim, ...]:
    """Report the bound of Theorem 4.3; the landscape does not need it."""
    if figures.paper_bound is None:
        return ()
    inside = figures.strength < figures.paper_bound
    advice = (
        f"λ = {figures.strength:.3g} lies {'below' if inside else 'above'} it; every local minimum "
        "is global either way (proof in lucidae.dropout.theory)."
    )
    return (
        reported(
            "small dropout",
            "strength below which the optimum keeps its full rank",
            "Mianjy et al. 2018, Theorem 4.3",
            figures.paper_bound,
            advice,
        ),
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
    tolerance: float = 1e-6,
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
        M in place of data: white inputs with y = Mx, or the matrix that UVᵀ factorises.
    fit_intercept : bool, default=True
        Whether the network has biases, so that centred data are what counts.
    sample_weight : array-like of shape (n,), optional
        Frequencies of the rows.
    tolerance : float, default=1e-6
        Gap to the optimum, relative to E‖y‖², that counts as none.

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
    left, right = _layer(U, "U"), _layer(U if V is None or tied else V, "V")
    if left.shape[1] != right.shape[1]:
        raise ValueError(
            f"U has {left.shape[1]} columns and V has {right.shape[1]}: both need one column per "
            "hidden unit."
        )
    tied = tied or V is None
    problem = _problem(X, Y, matrix, left, right, fit_intercept, sample_weight)
    weights = Weights(like(left, problem.cross), like(right, problem.cross))
    figures = measure(problem, weights, strength, tied=tied, tolerance=tolerance)
    return judge(figures, tolerance, "dropout weights")


def certify_estimator(
    estimator: Any, X: Any = None, y: Any = None, *, sample_weight: Any = None
) -> Certificate:
    """Certify a fitted estimator of this family, on its own fit or on other data.

    Parameters
    ----------
    estimator : DropoutRegressor, DropoutAutoencoder or DropoutFactorization
        Fitted.
    X, y : array-like, optional
        Data to judge the weights on; None for what the fit kept.
    sample_weight : array-like, optional
        Frequencies of the rows of X.

    Returns
    -------
    Certificate

    Examples
    --------
    >>> import numpy as np
    >>> from lucidae import DropoutFactorization
    >>> M = np.arange(12.0).reshape(4, 3)
    >>> model = DropoutFactorization(2).fit(M)
    >>> certify_estimator(model).holds, certify_estimator(model, M).holds
    (True, True)
    """
    certificate: Certificate = (
        estimator.certificate_ if X is None else estimator._certify_on(X, y, sample_weight)
    )
    return replace(certificate, title=type(estimator).__name__)


def _layer(weights: Any, name: str) -> np.ndarray[Any, Any]:
    """Return weights as float64 on the host, detached from whatever graph made them."""
    host = to_numpy(weights) if is_array(weights) else np.asarray(weights)
    return np.asarray(check_rows(host, accept_sparse=False, name=name), dtype=np.float64)


def _problem(
    X: Any,
    Y: Any,
    matrix: Any,
    left: Any,
    right: Any,
    fit_intercept: bool,
    sample_weight: Any,
) -> LinearProblem:
    """Return the problem that the given data pose, checked against the shapes of the weights."""
    if (X is None) == (matrix is None):
        raise ValueError(
            "give either data (X, and Y unless the network is an autoencoder) or matrix=M."
        )
    if matrix is not None:
        problem = LinearProblem.from_matrix(
            as_double(check_rows(matrix, accept_sparse=False, name="matrix"))
        )
    else:
        problem = data_problem(X, Y, fit_intercept, sample_weight)
    expected = (left.shape[0], right.shape[0])
    if tuple(problem.cross.shape) != expected:
        raise ValueError(
            f"the data have {problem.cross.shape[0]} outputs and {problem.cross.shape[1]} inputs, "
            f"but U and V have {expected[0]} and {expected[1]} rows."
        )
    return problem


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
