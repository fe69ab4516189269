"""Matrix factorisation with dropout on the factors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

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
from lucidae.certificate import Certificate
from lucidae.dropout.certificate import (
    CERTIFIED,
    DropoutFigures,
    certificate_of,
    claims,
    matrix_problem,
    measure,
)
from lucidae.dropout.estimators.network import hidden_width
from lucidae.dropout.figures import ReportedAttributes
from lucidae.dropout.objectives import LinearProblem
from lucidae.dropout.solvers import ExactSolution, solve
from lucidae.dropout.theory import code_map, strength_of
from lucidae.io.models import saved_as


@saved_as(
    "lucidae.dropout.factorization.fitted/1",
    formerly="lucidae.dropout.estimators._factorization:Factorization",
)
@dataclass(eq=False)
class FactorizationState(FittedState):
    """Fitted state of `DropoutFactorization`: the factors and their figures, not the matrix.

    Parameters
    ----------
    solution : ExactSolution
        The factors.
    figures : DropoutFigures
        Figures of the factors, measured during the fit.
    strength : float
        λ.
    ref : array
        An empty array of the library, dtype and device in which attributes are returned.
    """

    solution: ExactSolution
    figures: DropoutFigures
    strength: float
    ref: Array

    def compute_attributes(self) -> dict[str, Any]:
        """Return the fitted attributes by name."""
        left, right = self.solution.weights
        return {
            "left_": like(left, self.ref),
            "right_": like(right, self.ref),
            "rank_": self.solution.rank,
            "threshold_": self.solution.threshold,
            "singular_values_": like(self.solution.singular_values, self.ref),
            "objective_": self.solution.value,
            "n_components_": int(right.shape[1]),
            "codes": code_map(right, self.strength),
        }

    def compute_certificate(self, title: str) -> Certificate:
        """Return the certificate of the factors."""
        return Certificate(title, claims(self.figures, CERTIFIED), self.figures.evidence)


def _reported(solution: ExactSolution) -> ReportedAttributes:
    """Return the attributes that the certificate compares with the matrix."""
    return ReportedAttributes(
        solution.value, solution.rank, solution.threshold, solution.singular_values
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

    Minimises E‖M − U diag(b) Vᵀ/θ‖², where b drops columns at random; this is
    ‖M − UVᵀ‖² + λΣ‖uᵢ‖²‖vᵢ‖² with λ = dropout/(1 − dropout), whose optimum takes one singular
    value decomposition (Mianjy et al. 2018, Algorithm 3). Rows are not centred.

    Parameters
    ----------
    n_components : int or None, default=None
        Number r of columns of the factors; None: the number of features.
    dropout : float, default=0.5
        Probability of dropping a column, in [0, 1); 0 gives the truncated singular value
        decomposition.

    Attributes
    ----------
    left_ : array of shape (n_samples, r)
        U, the codes of the training rows.
    right_ : array of shape (n_features, r)
        V.
    n_components_ : int
        r.
    rank_ : int
        ρ, the rank of the optimal product.
    threshold_ : float
        α, the amount by which dropout reduces each singular value.
    singular_values_ : array
        Leading singular values of M.
    objective_ : float
        The minimum of the expected loss.
    certificate_ : Certificate
        Claims about the fit: gap to the global optimum, equalization, rank, stationarity.
    n_features_in_ : int
        Number of features seen.

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
        """Factorise a matrix.

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
        problem = LinearProblem.from_matrix(as_double(X))
        solution = solve(problem, strength, width)
        figures = measure(problem, solution.weights, strength, reported=_reported(solution))
        self._state = FactorizationState(solution, figures, strength, reference_array(X))
        return self

    def fit_transform(self, X: Any, y: Any = None) -> Array:  # noqa: ARG002
        """Factorise a matrix and return U, the codes of its rows.

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
        """Return the optimal codes of rows, m V(VᵀV + λ diag‖vᵢ‖²)⁻¹.

        For the training rows they equal `left_`.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows m.

        Returns
        -------
        array of shape (n_samples, r)
        """
        check_is_fitted(self)
        X = validated_rows(self, X, reset=False, accept_sparse=False)
        return like(as_double(X) @ beside(self._state.attributes["codes"], as_double(X)), X)

    def inverse_transform(self, X: Any) -> Array:
        """Return the rows that codes represent, code Vᵀ.

        Parameters
        ----------
        X : array-like of shape (n_samples, r)
            Codes.

        Returns
        -------
        array of shape (n_samples, n_features)
        """
        check_is_fitted(self)
        codes = checked_codes(X, self.right_.shape[1])
        return codes @ beside(self.right_, codes).mT

    @property
    def _n_features_out(self) -> int:
        return int(self.right_.shape[1])

    def _certify_on(self, X: Any, _y: Any, sample_weight: Any = None) -> Certificate:
        """Return the certificate of the factors on a given matrix."""
        if sample_weight is not None:
            raise ValueError(
                "sample_weight was given, but DropoutFactorization does not weight rows: omit it."
            )
        state, title = self._state, type(self).__name__
        return certificate_of(
            matrix_problem(X),
            state.solution.weights,
            state.strength,
            title=title,
            reported=_reported(state.solution)._replace(
                objective=self.objective_,
                rank=self.rank_,
                threshold=self.threshold_,
                singular_values=self.singular_values_,
                layers=(self.left_, self.right_),
                precision=machine_epsilon(state.ref),
            ),
        )

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags
