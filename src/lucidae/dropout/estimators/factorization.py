"""Matrix factorisation with dropout on the factors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from lucidae.arrays import Array, as_double, beside, like, machine_epsilon
from lucidae.base import (
    CertifiedMixin,
    Fitted,
    FittedState,
    checked_codes,
    reference_array,
    restored_on_failure,
    upgraded_estimator,
    validated_rows,
)
from lucidae.certificate import Certificate, Claim
from lucidae.dropout.certificate import (
    ATTRIBUTES_CLAIM,
    CERTIFIED,
    DropoutFigures,
    certificate_of,
    claims,
    matrix_problem,
    measure,
)
from lucidae.dropout.estimators.network import (
    finite_output,
    hidden_width,
    representable,
    same_values,
    shown,
    weights_of,
)
from lucidae.dropout.figures import ATTRIBUTES, ReportedAttributes
from lucidae.dropout.objectives import DropoutObjective, LinearProblem, Weights
from lucidae.dropout.projection import UnprojectedError
from lucidae.dropout.reduction import host, relative_distance
from lucidae.dropout.solvers import ExactSolution, solve
from lucidae.dropout.theory import code_map, strength_of
from lucidae.io.models import saved_as


@saved_as(
    "lucidae.dropout.factorization.fitted/1",
    formerly="lucidae.dropout.estimators._factorization:Factorization",
)
@dataclass(eq=False)
class FactorizationState(FittedState):
    """Fitted state of `DropoutFactorization`: the factors and measured values, not the matrix.

    Parameters
    ----------
    solution : ExactSolution
        The factors U and V, rounded to the dtype of the matrix.
    figures : DropoutFigures or None
        Values measured for the certificate at the end of `fit`.
    strength : float
        Strength λ = dropout / (1 − dropout) of dropout.
    ref : array
        An empty array of the library, dtype and device in which attributes are returned.
    """

    solution: ExactSolution
    figures: DropoutFigures | None
    strength: float
    ref: Array

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
        }

    def compute_certificate(self, title: str) -> Certificate:
        """Return the certificate of the factors; `title` is its heading."""
        if self.figures is None:
            raise ValueError("the factors could not be judged: call lucidae.certify(estimator, X).")
        return Certificate(title, claims(self.figures, CERTIFIED), self.figures.evidence)


def _returned(solution: ExactSolution, problem: LinearProblem, strength: float, ref: Array) -> Any:
    """Return a solution with factors rounded to the dtype of `ref`, and their loss."""
    left, right = (
        like(representable(part, ref, name), problem.cross)
        for part, name in zip(solution.weights, ("left_", "right_"), strict=True)
    )
    representable(solution.singular_values, ref, "singular_values_")
    value = float(DropoutObjective(problem, strength).value(Weights(left, right)))
    return replace(solution, weights=Weights(left, right), value=value)


def _reported(attributes: Mapping[str, Any], ref: Array) -> ReportedAttributes:
    """Return the fitted attributes that the certificate compares with the factorised matrix."""
    return ReportedAttributes(
        attributes["objective_"],
        attributes["rank_"],
        attributes["threshold_"],
        attributes["singular_values_"],
        settings=((float(attributes["n_components_"]), float(attributes["right_"].shape[1])),),
        precision=machine_epsilon(ref),
    )


@saved_as(
    "lucidae.DropoutFactorization/1",
    formerly="lucidae.dropout.estimators._factorization:DropoutFactorization",
    upgrade=upgraded_estimator,
)
class DropoutFactorization(
    CertifiedMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator
):
    """Factorise a matrix as M ≈ U Vᵀ with dropout on the columns of the factors, exactly.

    Minimises E‖M − U diag(b) Vᵀ/θ‖², where the random mask b keeps each column with probability θ =
    1 − dropout. This expectation is ‖M − UVᵀ‖² + λΣ‖uᵢ‖²‖vᵢ‖² with λ = dropout/(1 − dropout) and
    the columns uᵢ and vᵢ of U and V. Its minimum is computed from one singular value decomposition
    (Mianjy et al. 2018, Algorithm 3). Rows are not centred.

    Parameters
    ----------
    n_components : int or None, default=None
        Number r of columns of the factors; None means the number of features.
    dropout : float, default=0.5
        Probability of dropping a column, in [0, 1); 0 gives the truncated singular value
        decomposition.

    Attributes
    ----------
    left_ : array of shape (n_samples, r)
        The factor U: codes of the training rows.
    right_ : array of shape (n_features, r)
        The factor V: one column per component.
    n_components_ : int
        Number r of columns of the factors.
    rank_ : int
        Rank of the optimal product U Vᵀ.
    threshold_ : float
        Amount by which dropout reduces each singular value of M.
    singular_values_ : array
        Leading singular values of M, before they are reduced.
    objective_ : float
        The minimum of the expected dropout loss.
    certificate_ : Certificate
        Claims about the factors: distance to the global minimum, equal norms of their columns,
        rank, zero gradient.
    n_features_in_ : int
        Number of columns of M.

    Examples
    --------
    >>> import numpy as np
    >>> from lucidae import DropoutFactorization
    >>> M = np.outer(np.arange(4.0), [1.0, 2.0, 3.0])
    >>> model = DropoutFactorization(2, dropout=0.1).fit(M)
    >>> codes = model.transform(M)
    >>> np.allclose(codes, model.left_)
    True
    >>> model.rank_
    1
    """

    left_ = Fitted()
    right_ = Fitted()
    n_components_ = Fitted()
    rank_ = Fitted()
    threshold_ = Fitted()
    singular_values_ = Fitted()
    objective_ = Fitted()

    def __init__(self, n_components: int | None = None, *, dropout: float = 0.5) -> None:
        self.n_components = n_components
        self.dropout = dropout

    @restored_on_failure
    def fit(self, X: Any, y: Any = None) -> Self:  # noqa: ARG002
        """Factorise a matrix M as U Vᵀ.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The matrix M.
        y : None
            Ignored.

        Returns
        -------
        self
        """
        strength = strength_of(self.dropout)
        X = validated_rows(self, X, reset=True, accept_sparse=False)
        width = hidden_width(self.n_components, X.shape[1])
        problem, ref = LinearProblem.from_matrix(as_double(X)), reference_array(X)
        solution = _returned(solve(problem, strength, width), problem, strength, ref)
        state = FactorizationState(solution, None, strength, ref)
        reported = _reported(state.attributes, ref)
        with suppress(UnprojectedError):  # the certificate is then undecided
            state.figures = measure(problem, solution.weights, strength, reported=reported)
        self._state = state
        return self

    def fit_transform(self, X: Any, y: Any = None) -> Array:  # noqa: ARG002
        """Factorise a matrix M as U Vᵀ and return U, the codes of its rows.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The matrix M.
        y : None
            Ignored.

        Returns
        -------
        array of shape (n_samples, r)
        """
        return self.fit(X).left_

    def transform(self, X: Any) -> Array:
        """Return the codes of rows that minimise the expected dropout loss for the fitted V.

        V is ``right_``, with the columns vᵢ. The code of a row m is m V(VᵀV + λ diag‖vᵢ‖²)⁻¹ with λ
        = dropout/(1 − dropout). The codes of the training rows equal ``left_``.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The data, one row per sample.

        Returns
        -------
        array of shape (n_samples, r)
        """
        check_is_fitted(self)
        X = validated_rows(self, X, reset=False, accept_sparse=False)
        rows = as_double(X)
        codes = code_map(beside(as_double(self.right_), rows), self._state.strength)
        with np.errstate(over="ignore", invalid="ignore"):
            return finite_output(like(rows @ codes, X), "codes")

    def inverse_transform(self, X: Any) -> Array:
        """Return the rows that codes represent: V times each code, V being ``right_``.

        Parameters
        ----------
        X : array-like of shape (n_samples, r)
            Codes, as `transform` returns them.

        Returns
        -------
        array of shape (n_samples, n_features)
        """
        check_is_fitted(self)
        codes = checked_codes(X, self.right_.shape[1])
        with np.errstate(over="ignore", invalid="ignore"):
            return finite_output(codes @ beside(self.right_, codes).mT, "rows")

    @property
    def certificate_(self) -> Certificate:
        """Certificate of the factors: claims about their distance to the global minimum."""
        check_is_fitted(self)
        state, title = self._state, type(self).__name__
        certificate: Certificate = state.certificate(title)
        changed = _difference(self._attributes_now(), state.compute_attributes())
        if changed == 0.0:
            return certificate
        # The matrix is not stored, so that changed factors cannot be judged by their loss.
        kept = [claim for claim in certificate if claim.name != "attributes"]
        why = "Attributes were changed after the fit: call lucidae.certify(model, X) instead."
        claim = Claim(*ATTRIBUTES_CLAIM, changed, ATTRIBUTES, changed <= ATTRIBUTES, why)
        return Certificate(title, (*kept, claim), certificate.evidence)

    def _attributes_now(self) -> dict[str, Any]:
        """Return the present fitted attributes by name, including values assigned by a user."""
        return {name: getattr(self, name) for name in self._state.attributes}

    @property
    def _n_features_out(self) -> int:
        return int(self.right_.shape[1])

    def _certify_on(self, X: Any, _y: Any, sample_weight: Any = None) -> Certificate:
        """Return the certificate of the factors on a given matrix, for `lucidae.certify`."""
        if sample_weight is not None:
            raise ValueError(
                "sample_weight was given, but DropoutFactorization does not weight rows: omit it."
            )
        check_is_fitted(self)
        attributes = self._attributes_now()
        return certificate_of(
            matrix_problem(X),
            weights_of(attributes),
            self._state.strength,
            title=type(self).__name__,
            reported=_reported(attributes, self._state.ref),
        )

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def _difference(now: Mapping[str, Any], fitted: Mapping[str, Any]) -> float:
    """Return the largest relative difference between present attributes and those that fit set."""
    differences = [0.0]
    for name, expected in fitted.items():
        if same_values(now[name], expected):
            continue
        try:
            difference = relative_distance(host(now[name]), host(expected))
        except (TypeError, ValueError):
            difference = math.inf
        differences.append(math.inf if math.isnan(difference) else difference)
    return max(differences)
