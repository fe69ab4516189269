"""What a regression keeps, checks and chooses before it is solved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from sklearn.utils.validation import validate_data

from lucidae._arrays import Array, is_array, is_numpy, like
from lucidae._estimators import validated_rows
from lucidae._validation import check_choice, check_weights
from lucidae.dropout.estimators._shared import (
    Outcome,
    Results,
    common_results,
    exact_outcome,
    hidden_width,
)
from lucidae.dropout.folds import check_targets, fold_moments
from lucidae.dropout.joint import as_columns, joint_moment
from lucidae.dropout.objectives import LinearProblem
from lucidae.dropout.path import CrossValidation, cross_validate
from lucidae.dropout.solvers import solve
from lucidae.dropout.theory import checked_dropout
from lucidae.moments import SecondMoment


@dataclass(frozen=True, slots=True, eq=False)
class Regression:
    """What a fit keeps: moments of [x | y], settings, and SGD's outcome where it ran."""

    moment: SecondMoment
    n_features: int
    centered: bool
    strength: float
    width: int
    flat: bool
    ref: Array
    outcome: Outcome | None = None

    @property
    def problem(self) -> LinearProblem:
        """The three moments that the loss depends on."""
        return LinearProblem.from_moment(self.moment, self.n_features, centered=self.centered)

    def results(self) -> Results:
        """Return the fitted attributes by name."""
        problem = self.problem
        outcome = self.outcome or exact_outcome(solve(problem, self.strength, self.width))
        left, right = outcome.weights
        coef = left @ right.mT
        center, output_center = self.centers()
        intercept = output_center - coef @ center
        return common_results(outcome, problem, self.strength, self.ref) | {
            "coef_": like(coef[0, :] if self.flat else coef, self.ref),
            "intercept_": float(intercept[0]) if self.flat else like(intercept, self.ref),
        }

    def centers(self) -> tuple[Array, Array]:
        """Return the means of x and y, zero without an intercept."""
        mean = self.moment.mean if self.centered else 0.0 * self.moment.mean
        return mean[: self.n_features], mean[self.n_features :]


def checked_pair(
    estimator: Any, X: Any, y: Any, sample_weight: Any, *, reset: bool
) -> tuple[Any, Array, Array | None]:
    """Return checked inputs, targets and weights; keep feature count and names."""
    if is_array(X) and not is_numpy(X):
        X = validated_rows(estimator, X, reset=reset)
        y = check_targets(y, X)
    else:
        X, y = validate_data(
            estimator,
            X,
            y,
            reset=reset,
            accept_sparse=("csr",),
            dtype=(np.float64, np.float32),
            multi_output=True,
            y_numeric=True,
        )
    return X, y, check_weights(sample_weight, X)


class Choice(NamedTuple):
    """The probability to use, how it was found, and the moment of all rows."""

    dropout: float
    cross_validation: CrossValidation | None
    moment: SecondMoment


def choose(estimator: Any, X: Any, y: Array, weights: Array | None) -> Choice:
    """Return the moment of all rows and the dropout to use, cross-validated where asked for."""
    if not isinstance(estimator.dropout, str):
        dropout = checked_dropout(estimator.dropout)
        return Choice(dropout, None, joint_moment(X, y, weights))
    check_choice(estimator.dropout, "dropout", ("cv",))
    columns = as_columns(y)
    width = hidden_width(estimator.n_components, min(X.shape[1], columns.shape[1]))
    folds = fold_moments(X, columns, weights, estimator.cv)
    centered = bool(estimator.fit_intercept)
    found = cross_validate(folds.folds, X.shape[1], width, centered=centered)
    moment = folds.total if folds.total is not None else joint_moment(X, columns, weights)
    return Choice(found.best, found, moment)
