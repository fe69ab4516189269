"""What the estimators share: results that are computed when first read, and training by SGD."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state

from lucidae.arrays import Array, beside, like, to_numpy, zeros_like_shape
from lucidae.base import CertifiedMixin, Fitted, FittedState
from lucidae.certificate import Certificate
from lucidae.dropout.certificate import judge, measure
from lucidae.dropout.moments import whiten
from lucidae.dropout.objectives import DropoutObjective, LinearProblem, Weights
from lucidae.dropout.sgd import SCHEDULES, SampleSource, descend
from lucidae.dropout.solvers import ExactSolution, assemble, leading_svd
from lucidae.dropout.theory import dropout_of
from lucidae.io.models import reads, saved_as
from lucidae.iteration import History, Status
from lucidae.moments import SecondMoment
from lucidae.validation import check_choice, check_integer, check_number

SOLVERS = ("exact", "sgd")

CERTIFIED = 1e-6
"""Relative gap to the optimum that counts as none for the exact solver."""


@saved_as("lucidae.dropout.network/1", formerly="lucidae.dropout.estimators._shared:Outcome")
class TrainedNetwork(NamedTuple):
    """Weights, what theory says of the problem, and how the solver ended."""

    weights: Weights
    optimum: ExactSolution
    n_iter: int
    status: Status
    history: History


@dataclass(frozen=True, slots=True)
class SgdSettings:
    """The settings of Algorithm 1, checked."""

    learning_rate: float | str
    schedule: str
    batch_size: int
    max_iter: int
    tol: float
    random_state: Any

    @classmethod
    def of(cls, estimator: Any) -> SgdSettings:
        """Return an estimator's settings, or say which one is wrong."""
        rate = estimator.learning_rate
        if rate != "auto":
            check_number(rate, "learning_rate", low=0.0, open_low=True)
        return cls(
            rate,
            check_choice(estimator.schedule, "schedule", SCHEDULES),
            check_integer(estimator.batch_size, "batch_size", low=1),
            check_integer(estimator.max_iter, "max_iter", low=1),
            check_number(estimator.tol, "tol", low=0.0),
            estimator.random_state,
        )


def exact_network(optimum: ExactSolution) -> TrainedNetwork:
    """Return an optimum as the outcome of one step."""
    return TrainedNetwork(
        optimum.weights, optimum, 1, Status.CONVERGED, History(np.empty(0, dtype=int))
    )


def train(
    X: Any,
    Y: Any,
    sample_weight: Array | None,
    problem: LinearProblem,
    centers: tuple[Array, Array],
    strength: float,
    width: int,
    settings: SgdSettings,
) -> TrainedNetwork:
    """Train by dropout SGD on white coordinates of the inputs, where the paper works."""
    white = whiten(problem)
    center, output_center = centers
    cumulative = None if sample_weight is None else np.cumsum(to_numpy(sample_weight))
    source = SampleSource(X, Y, center, white.lift, output_center, cumulative)
    solution = descend(
        source,
        white.matrix,
        [dropout_of(strength)],
        width,
        rng=check_random_state(settings.random_state),
        noise=white.floor**0.5,
        learning_rate=settings.learning_rate,
        schedule=settings.schedule,
        batch_size=settings.batch_size,
        limit=settings.max_iter,
        tolerance=settings.tol,
    )
    if not solution.status.ok:
        warnings.warn(solution.advice, ConvergenceWarning, stacklevel=3)
    runs = solution.value
    weights = white.raise_weights(Weights(runs.left[0, :, :], runs.right[0, :, :]))
    optimum = assemble(white, leading_svd(white.matrix, width + 1, strength), strength, width)
    # scikit-learn asks for at least one iteration, also where the start was the optimum.
    n_iter = max(solution.n_iter, 1)
    return TrainedNetwork(weights, optimum, n_iter, solution.status, solution.history)


def reference_array(X: Any) -> Array:
    """Return an empty array in whose library, dtype and place the results belong."""
    return np.empty(0, dtype=X.dtype) if is_sparse(X) else zeros_like_shape((0,), X)


def is_sparse(X: Any) -> bool:
    """Tell whether rows are a SciPy sparse matrix."""
    return bool(scipy.sparse.issparse(X))


def beside_rows(fitted: Array, X: Any) -> Array:
    """Return a fitted array where it can meet rows X: on the host for sparse ones."""
    return to_numpy(fitted) if is_sparse(X) else beside(fitted, X)


def check_code_width(codes: Array, factor: Array) -> None:
    """Refuse codes that do not have one column per hidden unit."""
    if codes.shape[1] != factor.shape[1]:
        raise ValueError(
            f"X has {codes.shape[1]} columns, expected {factor.shape[1]}: one per hidden unit."
        )


def hidden_width(n_components: Any, default: int) -> int:
    """Return r, or the default where it is None."""
    if n_components is None:
        return default
    return check_integer(n_components, "n_components", low=1)


@dataclass(eq=False)
class NetworkState(FittedState):
    """Fitted state of an estimator with a hidden layer.

    Parameters
    ----------
    moment : SecondMoment
        Moment of the rows, with the targets behind the features where there are any.
    strength : float
        λ.
    width : int
        r.
    ref : array
        An empty array of the library, dtype and device in which attributes are returned.
    tolerance : float
        Relative gap to the optimum that the certificate allows.
    trained : TrainedNetwork or None
        What SGD found, where it ran.
    """

    moment: SecondMoment
    strength: float
    width: int
    ref: Array
    tolerance: float
    trained: TrainedNetwork | None

    @property
    @abstractmethod
    def problem(self) -> LinearProblem:
        """The three moments on which the loss depends."""

    @abstractmethod
    def solve(self) -> TrainedNetwork:
        """Return the exact optimum."""

    @property
    def network(self) -> TrainedNetwork:
        """The weights and how they were found."""
        if self.trained is None:
            self.trained = self.solve()
        return self.trained

    def compute_attributes(self) -> dict[str, Any]:
        """Return the fitted attributes that all networks have."""
        network = self.network
        value = DropoutObjective(self.problem, self.strength).value(network.weights)
        return {
            "left_": like(network.weights.left, self.ref),
            "right_": like(network.weights.right, self.ref),
            "rank_": network.optimum.rank,
            "threshold_": network.optimum.threshold,
            "singular_values_": like(network.optimum.singular_values, self.ref),
            "objective_": float(value),
            "n_iter_": network.n_iter,
            "status_": network.status,
            "history_": network.history,
        }

    def compute_certificate(self, title: str) -> Certificate:
        """Return the certificate of the weights on the kept moment."""
        figures = measure(
            self.problem,
            self.network.weights,
            self.strength,
            tolerance=self.tolerance,
            optimum=self.network.optimum,
        )
        return judge(figures, self.tolerance, title)


class NetworkMixin(CertifiedMixin):
    """Fitted attributes of an estimator with a hidden layer."""

    left_ = Fitted()
    right_ = Fitted()
    rank_ = Fitted()
    threshold_ = Fitted()
    singular_values_ = Fitted()
    objective_ = Fitted()
    n_iter_ = Fitted()
    status_ = Fitted()
    history_ = Fitted()

    _state: NetworkState
    solver: str
    tol: float

    def _keep(self, state: NetworkState) -> None:
        """Keep a fit and compute its attributes; only a stream waits until one is read."""
        self._state = state
        _ = state.attributes

    @property
    def _gap_allowed(self) -> float:
        """Gap that the certificate allows: what SGD was asked for, or none."""
        return CERTIFIED if self.solver == "exact" else max(float(self.tol), CERTIFIED)


def upgraded_network(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a state from those of lucidae 0.1.0, which left the gap to `tol`."""
    trained = fields.pop("outcome")
    return fields | {"tolerance": CERTIFIED if trained is None else 1e-2, "trained": trained}


def upgraded_state(fields: dict[str, Any]) -> Any:
    """Return the state that lucidae 0.1.0 kept as a recipe and its results."""
    state, results = fields["recipe"], fields["_results"]
    if results is not None:
        state.trained = results.pop("outcome", None)
        state._attributes = results
    state._certificate = fields.get("certificate")
    return state


reads("lucidae.dropout.estimators._shared:LazyFit")(upgraded_state)
