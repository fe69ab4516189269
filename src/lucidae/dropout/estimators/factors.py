"""Fitted states of `DropoutFactorization`, for complete matrices and for missing entries.

They contain the factors U and V of the matrix, not the matrix itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lucidae.arrays import Array, as_double, like, machine_epsilon, namespace
from lucidae.base import FittedState, reference_array
from lucidae.certificate import Certificate
from lucidae.dropout.certificate import CERTIFIED, claims
from lucidae.dropout.completion import Completion, ObservedEntries, observed_codes
from lucidae.dropout.equalize import equalized_factors, product_svd
from lucidae.dropout.estimators.fitted_arrays import representable, shown, weights_of
from lucidae.dropout.figures import DropoutFigures, ReportedAttributes
from lucidae.dropout.held_out import CrossValidation
from lucidae.dropout.objectives import DropoutObjective, LinearProblem, Weights
from lucidae.dropout.projection import UnprojectedError
from lucidae.dropout.reduction import host
from lucidae.dropout.solvers import ExactSolution, solve
from lucidae.dropout.theory import code_map, dropout_of, strength_of
from lucidae.dropout.verified_completion import (
    ZERO,
    CompletionFigures,
    completion_certificate,
    measure_completion,
)
from lucidae.dropout.verifier import measure

__all__ = [
    "CompletionState",
    "FactorizationState",
    "factorised_state",
    "reported_attributes",
    "weighted_factors",
]


@dataclass(eq=False)
class FactorizationState(FittedState):
    """Fitted state of `DropoutFactorization`: the factors and measured values, not the matrix."""

    solution: ExactSolution  # the factors U and V, rounded to the dtype of the matrix
    figures: DropoutFigures | None  # values measured for the certificate at the end of `fit`
    strength: float  # strength λ = dropout / (1 − dropout) of dropout
    ref: Array  # an empty array of the library, dtype and device in which attributes are returned
    # probability of dropping a column; None in files of earlier versions
    dropout: float | None = None
    # errors on held-out entries by which that probability was chosen; None if it was given
    cv: CrossValidation | None = None

    @property
    def keeps_certificate(self) -> bool:
        """Whether the certificate is saved: always, because the matrix is not stored."""
        return True

    def compute_attributes(self) -> dict[str, Any]:
        """Return the fitted attributes (such as ``left_`` and ``rank_``) by name."""
        left, right = self.solution.weights
        return {
            "left_": shown(left, self.ref),
            "right_": shown(right, self.ref),
            "rank_": self.solution.rank,
            "threshold_": self.solution.threshold,
            "singular_values_": shown(self.solution.singular_values, self.ref),
            "objective_": self.solution.value,
            "n_components_": int(right.shape[1]),
            "dropout_": dropout_of(self.strength) if self.dropout is None else self.dropout,
            "cv_": self.cv,
            "n_iter_": 1,
        }

    def compute_certificate(self, title: str) -> Certificate:
        """Return the certificate of the factors; `title` is its heading."""
        if self.figures is None:
            raise ValueError(
                "no certificate was computed by fit: call lucidae.certify(estimator, X)."
            )
        return Certificate(title, claims(self.figures, CERTIFIED), self.figures.evidence)


def factorised_state(
    X: Array, weights: Array | None, width: int, dropout: float, cv: CrossValidation | None
) -> FactorizationState:
    """Return the fitted state for a matrix X without missing entries, from its singular values.

    `weights` are the frequencies of the rows or None, `width` is the number of columns of the
    factors, `dropout` the probability of dropping a column, and `cv` contains the errors on
    held-out entries by which it was chosen, or is None.
    """
    strength, rows, ref = strength_of(dropout), as_double(X), reference_array(X)
    roots = None if weights is None else like(namespace(weights).sqrt(weights), rows)
    problem = LinearProblem.from_matrix(rows if roots is None else rows * roots[:, None])
    # Of the transposed matrix, so that the signs depend on V alone, which weights do not scale.
    solution = solve(LinearProblem.from_matrix(problem.cross.mT), strength, width)
    solution = replace(solution, weights=Weights(solution.weights.right, solution.weights.left))
    solution = _returned(solution, problem, strength, ref, rows, roots)
    state = FactorizationState(solution, None, strength, ref, dropout, cv)
    reported = reported_attributes(state.attributes, state)
    with suppress(UnprojectedError):  # the certificate is then undecided
        left, right = solution.weights
        factors = weighted_factors(left, right, roots)
        state.figures = measure(problem, factors, strength, reported=reported)
    return state


def _returned(
    solution: ExactSolution,
    problem: LinearProblem,
    strength: float,
    ref: Array,
    rows: Array,
    roots: Array | None,
) -> Any:
    """Return a solution with its factors rounded to the dtype of `ref`, and the loss of these.

    `rows` is the factorised matrix; `problem` contains it with its rows multiplied by `roots`, the
    square roots of their weights, unless these are None. `strength` is the strength of dropout. The
    rows of the returned factor U are the codes of `rows`.
    """
    left, right = solution.weights
    right = like(representable(right, ref, "right_"), problem.cross)
    if roots is not None:
        left = rows @ code_map(right, strength)
    left = like(representable(left, ref, "left_"), problem.cross)
    representable(solution.singular_values, ref, "singular_values_")
    value = float(DropoutObjective(problem, strength).value(weighted_factors(left, right, roots)))
    return replace(solution, weights=Weights(left, right), value=value)


def weighted_factors(left: Array, right: Array, roots: Array | None) -> Weights:
    """Return the factors U and V, the rows of U multiplied by `roots` unless that is None.

    U is `left` and V is `right`; `roots` are the square roots of the weights of the rows.
    """
    return Weights(left if roots is None else left * roots[:, None], right)


@dataclass(eq=False)
class CompletionState(FittedState):
    """Fitted state of `DropoutFactorization` if entries of the matrix were missing."""

    weights: Weights  # the factors U and V, rounded to the dtype of the matrix
    rank: int  # ``rank_``, ``threshold_``, ``singular_values_`` and ``objective_`` of these factors
    threshold: float
    singular_values: Array
    value: float
    n_iter: int  # number of Newton steps
    # largest duality gap that the certificate allows, relative to the sum of squares of the
    # observed entries
    tolerance: float
    # strength λ = dropout / (1 − dropout) of dropout, and the probability of dropping a column
    strength: float
    dropout: float
    ref: Array  # an empty array of the library, dtype and device in which attributes are returned
    # values measured for the certificate at the end of `fit`
    figures: CompletionFigures | None = None
    # errors on held-out entries by which that probability was chosen; None if it was given
    cv: CrossValidation | None = None

    @classmethod
    def of(
        cls,
        found: Completion,
        entries: ObservedEntries,
        roots: Array | None,
        strength: float,
        width: int,
        ref: Array,
        **settings: Any,
    ) -> CompletionState:
        """Return the fitted state of a completed matrix: factors U and V, columns of equal norm.

        V, with `width` columns, is rounded to the dtype of `ref`. The rows of U are the codes that
        `transform` computes with this V from the observed entries, for the strength λ of dropout
        (`strength`). `roots` are square roots of the weights of the rows, by which `found` has been
        multiplied, and `entries` are the observed entries without these weights. `settings` are
        further fields of the state.
        """
        _, V = equalized_factors(found.left, found.values, found.right, width)
        V = np.asarray(host(representable(V, ref, "right_")), dtype=float)
        U = observed_codes(entries, V, strength)
        U = np.asarray(host(representable(U, ref, "left_")), dtype=float)
        scale = np.ones(entries.shape[0]) if roots is None else roots
        scaled = U * scale[:, None]
        values = product_svd(scaled, V)[1]
        level = max(ZERO, 64 * machine_epsilon(ref))
        rank = int(np.count_nonzero(values > level * values.max(initial=0.0)))
        missed = (entries.values - entries.product(U, V)) * scale[entries.rows]
        penalty = float(np.sum(scaled * scaled, axis=0) @ np.sum(V * V, axis=0))
        threshold = strength / width * float(values.sum())
        shown_values = representable(values[:rank] + threshold, ref, "singular_values_")
        value = float(missed @ missed) + strength * penalty
        return cls(
            Weights(U, V),
            rank,
            threshold,
            shown_values,
            value,
            strength=strength,
            ref=ref,
            **settings,
        )

    @property
    def keeps_certificate(self) -> bool:
        """Whether the certificate is saved: always, because the matrix is not stored."""
        return True

    def compute_attributes(self) -> dict[str, Any]:
        """Return the fitted attributes (such as ``left_`` and ``rank_``) by name."""
        return {
            "left_": shown(self.weights.left, self.ref),
            "right_": shown(self.weights.right, self.ref),
            "rank_": self.rank,
            "threshold_": self.threshold,
            "singular_values_": shown(self.singular_values, self.ref),
            "objective_": self.value,
            "n_components_": int(self.weights.right.shape[1]),
            "dropout_": self.dropout,
            "cv_": self.cv,
            "n_iter_": self.n_iter,
        }

    def compute_certificate(self, title: str) -> Certificate:
        """Return the certificate of the fitted factors U and V; `title` is its heading."""
        if self.figures is None:
            raise ValueError(
                "no certificate was computed during fit: call lucidae.certify(estimator, X)."
            )
        return completion_certificate(title, self.figures, self.tolerance)

    def measured(self, X: Any, attributes: Mapping[str, Any], weights: Any) -> CompletionFigures:
        """Return the values that the certificate needs, measured from attributes and a matrix X.

        `attributes` are the fitted attributes by name, and `weights` the frequencies of the rows or
        None.
        """
        factors = weights_of(attributes)
        return measure_completion(
            X,
            host(factors.left),
            host(factors.right),
            self.strength,
            sample_weight=weights,
            reported=reported_attributes(attributes, self)._replace(
                singular_values=host(attributes["singular_values_"])
            ),
        )


def reported_attributes(attributes: Mapping[str, Any], state: Any) -> ReportedAttributes:
    """Return the fitted attributes that the certificate checks, such as ``objective_``.

    The certificate computes them again from the fitted factors and the matrix X that was given to
    `fit`, and compares. `attributes` are the fitted attributes by name, and `state` is the fitted
    state of the estimator.
    """
    ref, dropout = state.ref, dropout_of(state.strength)
    return ReportedAttributes(
        attributes["objective_"],
        attributes["rank_"],
        attributes["threshold_"],
        attributes["singular_values_"],
        settings=(
            (float(attributes["n_components_"]), float(attributes["right_"].shape[1])),
            (float(attributes["dropout_"]), dropout),
        ),
        precision=machine_epsilon(ref),
    )
