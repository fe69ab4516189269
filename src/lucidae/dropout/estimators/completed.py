"""Fitted state of `DropoutFactorization` for a matrix with missing entries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lucidae.arrays import Array, machine_epsilon
from lucidae.base import FittedState
from lucidae.certificate import Certificate
from lucidae.dropout.completion import Completion
from lucidae.dropout.equalize import equalized_factors, product_svd
from lucidae.dropout.estimators.network import representable, shown, weights_of
from lucidae.dropout.figures import ReportedAttributes
from lucidae.dropout.held_out import CrossValidation
from lucidae.dropout.objectives import Weights
from lucidae.dropout.observed import ObservedEntries, observed_codes
from lucidae.dropout.reduction import host
from lucidae.dropout.theory import dropout_of
from lucidae.dropout.verified_completion import (
    ZERO,
    CompletionFigures,
    completion_certificate,
    measure_completion,
)
from lucidae.io.models import saved_as

__all__ = ["CompletionState", "reported_attributes"]


@saved_as("lucidae.dropout.completion.fitted/1")
@dataclass(eq=False)
class CompletionState(FittedState):
    """Fitted state of `DropoutFactorization` if entries of the matrix were missing.

    Parameters
    ----------
    weights : Weights
        The factors U and V, rounded to the dtype of the matrix.
    rank, threshold, singular_values, value : int, float, array, float
        ``rank_``, ``threshold_``, ``singular_values_`` and ``objective_`` of these factors.
    n_iter : int
        Number of Newton steps.
    tolerance : float
        Largest duality gap that the certificate allows, relative to the sum of squares of the
        observed entries.
    strength, dropout : float
        Strength λ = dropout / (1 − dropout) of dropout, and the probability of dropping a column.
    ref : array
        An empty array of the library, dtype and device in which attributes are returned.
    figures : CompletionFigures or None
        Values measured for the certificate at the end of `fit`.
    cv : CrossValidation or None
        Errors on held-out entries by which that probability was chosen; None if it was given.
    """

    weights: Weights
    rank: int
    threshold: float
    singular_values: Array
    value: float
    n_iter: int
    tolerance: float
    strength: float
    dropout: float
    ref: Array
    figures: CompletionFigures | None = None
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

        V is rounded to the dtype of the data, and the rows of U are the codes that `transform`
        computes with this V from the observed entries. `roots` are square roots of the weights of
        the rows, by which `found` has been multiplied, and `entries` are the observed entries
        without these weights.
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
    """Return the fitted attributes that the certificate compares with the factorised matrix.

    `attributes` are the fitted attributes by name, and `state` is the fitted state of the
    estimator.
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
