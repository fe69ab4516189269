"""The linear autoencoder that dropout training converges to."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import Tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from lucidae.arrays import Array, beside, like, namespace, scalar
from lucidae.base import Fitted, upgraded_estimator, validated_rows
from lucidae.certificate import Certificate
from lucidae.dropout.certificate import certify_weights
from lucidae.dropout.estimators.shared import (
    SOLVERS,
    NetworkMixin,
    NetworkState,
    SgdSettings,
    TrainedNetwork,
    beside_rows,
    check_code_width,
    exact_network,
    hidden_width,
    is_sparse,
    reference_array,
    train,
    upgraded_network,
)
from lucidae.dropout.moments import principal_problem
from lucidae.dropout.objectives import DropoutObjective, LinearProblem, Weights
from lucidae.dropout.solvers import assemble
from lucidae.dropout.theory import strength_of
from lucidae.io.models import saved_as
from lucidae.moments import SecondMoment
from lucidae.validation import check_choice, check_rows, check_weights


@saved_as(
    "lucidae.dropout.autoencoder.fitted/1",
    formerly="lucidae.dropout.estimators._autoencoding:Autoencoding",
    upgrade=upgraded_network,
)
@dataclass(eq=False)
class AutoencoderState(NetworkState):
    """Fitted state of `DropoutAutoencoder`."""

    @property
    def problem(self) -> LinearProblem:
        """The problem whose target is the input."""
        return LinearProblem.autoencoder(self.moment)

    def solve(self) -> TrainedNetwork:
        """Return the exact optimum."""
        white, triple = principal_problem(self.problem.inputs)
        return exact_network(assemble(white, triple, self.strength, self.width))

    def compute_attributes(self) -> dict[str, Any]:
        """Return the fitted attributes by name."""
        return super().compute_attributes() | {
            "mean_": like(self.moment.mean, self.ref),
            "n_components_": self.width,
        }


def _streams(estimator: Any) -> bool:
    """Tell whether `partial_fit` makes sense; scikit-learn hides it where this raises."""
    if estimator.solver == "sgd":
        raise AttributeError("partial_fit merges exact moments: use solver='exact'.")
    return True


@saved_as(
    "lucidae.DropoutAutoencoder/1",
    formerly="lucidae.dropout.estimators._autoencoder:DropoutAutoencoder",
    upgrade=upgraded_estimator,
)
class DropoutAutoencoder(
    NetworkMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator
):
    """Linear autoencoder with dropout in its hidden layer, solved exactly.

    The target is the input itself. At the optimum the code spans the leading principal
    components, each shrunk in standard deviation by the same threshold, and every hidden unit
    carries the same weight: information is spread so evenly that no unit can be missed much
    (Mianjy et al. 2018, Theorem 3.6, for inputs of any covariance).

    Parameters
    ----------
    n_components : int or None, default=None
        Width r of the hidden layer; it may exceed the number of features. None: as many as
        there are features.
    dropout : float, default=0.5
        Probability of dropping a hidden unit, in [0, 1); 0 spans the principal subspace.
    solver : {"exact", "sgd"}, default="exact"
        The closed form, or stochastic gradient descent (Mianjy et al. 2018, Algorithm 1).
    learning_rate, schedule, batch_size, max_iter, tol, random_state
        Of SGD, as in `DropoutRegressor`.

    Attributes
    ----------
    mean_ : array of shape (n_features,)
        Mean of the rows.
    left_ : array of shape (n_features, r)
        U, the decoder.
    right_ : array of shape (n_features, r)
        V, the encoder.
    n_components_ : int
        r.
    rank_ : int
        ρ, the rank that dropout leaves.
    threshold_ : float
        α, what dropout takes from each principal standard deviation.
    singular_values_ : array
        Standard deviations along the leading principal components.
    objective_ : float
        Expected dropout loss of the weights, mean over rows.
    n_iter_, status_, history_
        How the solver ended.
    certificate_ : Certificate
        Gap to the global optimum, equalization, rank, stationarity.
    n_features_in_ : int
        Number of features seen.

    Examples
    --------
    >>> import numpy as np
    >>> from lucidae import DropoutAutoencoder
    >>> X = np.random.default_rng(0).standard_normal((200, 4)) * [5.0, 3.0, 1.0, 0.1]
    >>> model = DropoutAutoencoder(3, dropout=0.3).fit(X)
    >>> model.transform(X).shape, model.rank_
    ((200, 3), 3)
    """

    mean_ = Fitted()
    n_components_ = Fitted()

    def __init__(
        self,
        n_components: int | None = None,
        *,
        dropout: float = 0.5,
        solver: str = "exact",
        learning_rate: float | str = "auto",
        schedule: str = "linear",
        batch_size: int = 32,
        max_iter: int = 5000,
        tol: float = 1e-2,
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.dropout = dropout
        self.solver = solver
        self.learning_rate = learning_rate
        self.schedule = schedule
        self.batch_size = batch_size
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:  # noqa: ARG002
        """Fit to all rows at once.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Rows.
        y : None
            Ignored.
        sample_weight : array-like of shape (n_samples,), optional
            Frequencies of the rows.

        Returns
        -------
        self
        """
        check_choice(self.solver, "solver", SOLVERS)
        settings = SgdSettings.of(self)
        X = validated_rows(self, X, reset=True)
        weights = check_weights(sample_weight, X)
        state = self._unsolved(SecondMoment.of(X, weights), reference_array(X))
        if self.solver == "sgd":
            mean = state.moment.mean
            state.trained = train(
                X, X, weights, state.problem, (mean, mean), state.strength, state.width, settings
            )
        self._keep(state)
        return self

    @available_if(_streams)
    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:  # noqa: ARG002
        """Add rows; after the last batch the result equals `fit` on all of them.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Rows; batches may have any size.
        y : None
            Ignored.
        sample_weight : array-like of shape (n_samples,), optional
            Frequencies of the rows.

        Returns
        -------
        self
        """
        check_choice(self.solver, "solver", SOLVERS)
        first = not hasattr(self, "_state")
        X = validated_rows(self, X, reset=first)
        moment, ref = SecondMoment.of(X, check_weights(sample_weight, X)), reference_array(X)
        if not first:
            seen = self._state
            moment, ref = seen.moment.merge(moment), seen.ref
        self._state = self._unsolved(moment, ref)
        return self

    def transform(self, X: Any) -> Array:
        """Return the code (x − mean) V of every row.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        array of shape (n_samples, r)
        """
        check_is_fitted(self)
        X = validated_rows(self, X, reset=False)
        encoder, mean = beside_rows(self.right_, X), beside_rows(self.mean_, X)
        # The mean is taken out after the product, so that sparse rows stay sparse.
        return X @ encoder - mean @ encoder if is_sparse(X) else (X - mean) @ encoder

    def inverse_transform(self, X: Any) -> Array:
        """Return the rows that codes stand for, code Uᵀ + mean.

        Parameters
        ----------
        X : array-like of shape (n_samples, r)
            Codes.

        Returns
        -------
        array of shape (n_samples, n_features)
        """
        check_is_fitted(self)
        codes = check_rows(X, accept_sparse=False)
        check_code_width(codes, self.left_)
        return codes @ beside(self.left_, codes).mT + beside(self.mean_, codes)

    def score(self, X: Any, y: Any = None) -> float:  # noqa: ARG002
        """Return the share of the variance about the fitted mean that the network reconstructs.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Rows.
        y : None
            Ignored.

        Returns
        -------
        float
        """
        check_is_fitted(self)
        X = validated_rows(self, X, reset=False)
        moment = SecondMoment.of(X)
        shift = moment.mean - like(self.mean_, moment.mean)
        second = moment.covariance + shift[:, None] * shift[None, :]
        problem = LinearProblem(second, second, scalar(namespace(second).linalg.trace(second)))
        weights = Weights(like(self.left_, second), like(self.right_, second))
        loss = scalar(DropoutObjective(problem, 0.0).loss(weights))
        return 1.0 - loss / problem.energy if problem.energy > 0 else 1.0

    @property
    def _n_features_out(self) -> int:
        return int(self.left_.shape[1])

    def _unsolved(self, moment: SecondMoment, ref: Array) -> AutoencoderState:
        width = hidden_width(self.n_components, moment.n_features)
        strength = strength_of(self.dropout)
        return AutoencoderState(moment, strength, width, ref, self._gap_allowed, None)

    def _certify_on(self, X: Any, _y: Any, sample_weight: Any = None) -> Certificate:
        """Certify the fitted weights on other rows."""
        certificate = certify_weights(
            self.left_,
            self.right_,
            X,
            dropout=self.dropout,
            sample_weight=sample_weight,
            tolerance=self._gap_allowed,
        )
        return replace(certificate, title=type(self).__name__)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags
