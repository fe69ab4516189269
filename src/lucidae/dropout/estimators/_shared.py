"""What the estimators share: results that are computed when first read, and training by SGD."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import scipy.sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state

from lucidae._arrays import Array, beside, like, to_numpy, zeros_like_shape
from lucidae._estimators import CertifiedMixin, Kept
from lucidae._validation import check_choice, check_integer, check_number
from lucidae.certificate import Certificate
from lucidae.dropout.claims import judge
from lucidae.dropout.measurement import measure
from lucidae.dropout.objectives import DropoutObjective, LinearProblem, Weights
from lucidae.dropout.sgd import SCHEDULES, descend
from lucidae.dropout.solvers import ExactSolution, assemble, leading_svd
from lucidae.dropout.sources import SampleSource
from lucidae.dropout.theory import dropout_of
from lucidae.dropout.whitening import whiten
from lucidae.solution import History, Status

SOLVERS = ("exact", "sgd")

CERTIFIED = 1e-6
"""Relative gap to the optimum that counts as none for the exact solver."""

Results = Mapping[str, Any]


class Outcome(NamedTuple):
    """Weights, what theory says of the problem, and how the solver ended."""

    weights: Weights
    optimum: ExactSolution
    n_iter: int
    status: Status
    history: History


class Recipe(Protocol):
    """Knows how to make the fitted attributes from what a fit keeps; it can be pickled."""

    def results(self) -> Results:
        """Return the fitted attributes by name."""


class LazyFit(Kept):
    """What a fit keeps: a recipe, and its results once somebody reads them.

    A stream of batches so pays for no more decompositions than are looked at.
    """

    def __init__(self, recipe: Any) -> None:
        self.recipe = recipe
        self._results: Results | None = None

    @property
    def results(self) -> Results:
        """The fitted attributes by name."""
        if self._results is None:
            self._results = self.recipe.results()
        return self._results


class Fitted:
    """A fitted attribute: absent before `fit`, computed with the others when first read."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        kept = instance.__dict__.get("_kept")
        if kept is None:
            raise AttributeError(f"{type(instance).__name__} has no {self._name} before fit.")
        return kept.results[self._name]


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


def exact_outcome(optimum: ExactSolution) -> Outcome:
    """Return an optimum as the outcome of one step."""
    return Outcome(optimum.weights, optimum, 1, Status.CONVERGED, History(np.empty(0, dtype=int)))


def train(
    X: Any,
    Y: Any,
    sample_weight: Array | None,
    problem: LinearProblem,
    centers: tuple[Array, Array],
    strength: float,
    width: int,
    settings: SgdSettings,
) -> Outcome:
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
    return Outcome(weights, optimum, n_iter, solution.status, solution.history)


def common_results(
    outcome: Outcome, problem: LinearProblem, strength: float, ref: Array
) -> dict[str, Any]:
    """Return the fitted attributes that regressor and autoencoder share."""
    value = DropoutObjective(problem, strength).value(outcome.weights)
    return {
        "left_": like(outcome.weights.left, ref),
        "right_": like(outcome.weights.right, ref),
        "rank_": outcome.optimum.rank,
        "threshold_": outcome.optimum.threshold,
        "singular_values_": like(outcome.optimum.singular_values, ref),
        "objective_": float(value),
        "n_iter_": outcome.n_iter,
        "status_": outcome.status,
        "history_": outcome.history,
        "outcome": outcome,
    }


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


class NetworkMixin(CertifiedMixin):
    """Fitted attributes and certificate of an estimator with a hidden layer."""

    left_ = Fitted()
    right_ = Fitted()
    rank_ = Fitted()
    threshold_ = Fitted()
    singular_values_ = Fitted()
    objective_ = Fitted()
    n_iter_ = Fitted()
    status_ = Fitted()
    history_ = Fitted()

    _kept: LazyFit
    solver: str
    tol: float

    def _keep(self, recipe: Any) -> None:
        """Keep a fit and make its results: only a stream waits until somebody reads them."""
        self._kept = LazyFit(recipe)
        _ = self._kept.results

    @property
    def _gap_allowed(self) -> float:
        """Gap that the certificate allows: what SGD was asked for, or none."""
        return CERTIFIED if self.solver == "exact" else max(float(self.tol), CERTIFIED)

    def _draw_certificate(self) -> Certificate:
        recipe, outcome = self._kept.recipe, self._kept.results["outcome"]
        figures = measure(
            recipe.problem,
            outcome.weights,
            recipe.strength,
            tolerance=self._gap_allowed,
            optimum=outcome.optimum,
        )
        return judge(figures, self._gap_allowed, type(self).__name__)
