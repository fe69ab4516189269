"""Multi-output regression by the network that dropout training converges to."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils import Tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, validate_data

from lucidae.arrays import Array, is_array, is_numpy, like, to_numpy
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
    exact_network,
    hidden_width,
    reference_array,
    train,
    upgraded_network,
)
from lucidae.dropout.moments import as_columns, joint_moment
from lucidae.dropout.objectives import LinearProblem
from lucidae.dropout.path import CrossValidation, check_targets, cross_validate, fold_moments
from lucidae.dropout.solvers import solve
from lucidae.dropout.theory import checked_dropout, strength_of
from lucidae.io.models import saved_as
from lucidae.moments import SecondMoment
from lucidae.validation import check_choice, check_weights


@saved_as(
    "lucidae.dropout.regression.fitted/1",
    formerly="lucidae.dropout.estimators._regression:Regression",
    upgrade=upgraded_network,
)
@dataclass(eq=False)
class RegressionState(NetworkState):
    """Fitted state of `DropoutRegressor`.

    Beyond the fields of `NetworkState`: the number of features, whether rows are centred, and
    whether y was one-dimensional.
    """

    n_features: int
    centered: bool
    flat: bool

    @property
    def problem(self) -> LinearProblem:
        """The three moments on which the loss depends."""
        return LinearProblem.from_moment(self.moment, self.n_features, centered=self.centered)

    def solve(self) -> TrainedNetwork:
        """Return the exact optimum."""
        return exact_network(solve(self.problem, self.strength, self.width))

    def compute_attributes(self) -> dict[str, Any]:
        """Return the fitted attributes by name."""
        left, right = self.network.weights
        coef = left @ right.mT
        center, output_center = self.centers()
        intercept = output_center - coef @ center
        return super().compute_attributes() | {
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


def _streams(estimator: Any) -> bool:
    """Tell whether `partial_fit` makes sense; scikit-learn hides it where this raises."""
    if estimator.solver == "sgd" or estimator.dropout == "cv":
        raise AttributeError(
            "partial_fit merges exact moments: use solver='exact' and a number for dropout."
        )
    return True


@saved_as(
    "lucidae.DropoutRegressor/1",
    formerly="lucidae.dropout.estimators._regressor:DropoutRegressor",
    upgrade=upgraded_estimator,
)
class DropoutRegressor(NetworkMixin, MultiOutputMixin, RegressorMixin, BaseEstimator):
    """Linear regression through a hidden layer with dropout, solved exactly.

    The network x ↦ U Vᵀx + b with r hidden units, each dropped with the given probability in
    training, has a global optimum in closed form: the least-squares map with its singular values
    (in the metric of the inputs) shrunk by one threshold and cut at rank r, spread evenly over
    the hidden units (Mianjy et al. 2018, Theorem 3.6). Inputs need not be white, and need not be
    independent: directions that they do not have are left out (eigenvalues of their covariance
    below 10 · n_features · ε of the largest).

    Parameters
    ----------
    n_components : int or None, default=None
        Width r of the hidden layer; it is part of the regulariser, λ/r. None: the smaller of
        the numbers of features and targets.
    dropout : float or "cv", default=0.5
        Probability of dropping a hidden unit, in [0, 1); 0 is reduced-rank least squares.
        "cv" takes the one with the smallest cross-validated error along the whole path.
    solver : {"exact", "sgd"}, default="exact"
        The closed form, or stochastic gradient descent (Mianjy et al. 2018, Algorithm 1).
    fit_intercept : bool, default=True
        Whether to fit a bias in both layers, which is exact on centred data.
    cv : int, splitter or iterable, default=5
        Folds of ``dropout="cv"``, as everywhere in scikit-learn.
    learning_rate : float or "auto", default="auto"
        Rate of the first SGD step, in white coordinates of the inputs.
    schedule : {"linear", "inverse", "constant"}, default="linear"
        How SGD's rate falls over `max_iter` steps.
    batch_size : int, default=32
        Examples per SGD step.
    max_iter : int, default=5000
        Largest number of SGD steps.
    tol : float, default=1e-2
        Relative norm of the expected gradient at which SGD stops.
    random_state : int, RandomState instance or None, default=None
        Seed of SGD.

    Attributes
    ----------
    coef_ : array of shape (n_targets, n_features) or (n_features,)
        U Vᵀ; one-dimensional when y was.
    intercept_ : array of shape (n_targets,) or float
        Bias of the output.
    left_ : array of shape (n_targets, r)
        U, outgoing weights of the hidden layer.
    right_ : array of shape (n_features, r)
        V, incoming weights.
    rank_ : int
        ρ, the rank that dropout leaves.
    threshold_ : float
        α, what dropout takes from each singular value.
    singular_values_ : array
        Leading singular values of the least-squares map in white coordinates.
    objective_ : float
        Expected dropout loss of the weights, mean over rows and summed over targets.
    dropout_ : float
        The probability that was used.
    cv_ : CrossValidation or None
        Held-out errors along the path, for ``dropout="cv"``.
    n_iter_, status_, history_
        How the solver ended; `history_` records SGD's objective.
    certificate_ : Certificate
        Gap to the global optimum, equalization, rank, stationarity.
    n_features_in_ : int
        Number of features seen.
    feature_names_in_ : ndarray of str
        Names of the features, where X had them.

    Notes
    -----
    `sample_weight` are frequencies: weight 2 is the same as giving a row twice. X enters through
    its second moment alone, in double precision: a fit keeps (n_features + n_targets)² numbers,
    whatever the number of rows, and a sparse X is never made dense.

    References
    ----------
    Mianjy, Arora and Vidal, "On the implicit bias of dropout", ICML 2018.

    Examples
    --------
    >>> import numpy as np
    >>> from lucidae import DropoutRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((100, 5))
    >>> Y = X[:, :2] @ np.array([[2.0, 0.0, 1.0], [0.0, 1.0, 1.0]])
    >>> model = DropoutRegressor(dropout=0.2).fit(X, Y)
    >>> model.coef_.shape, model.rank_
    ((3, 5), 2)
    >>> model.certificate_.holds
    True
    """

    coef_ = Fitted()
    intercept_ = Fitted()

    _state: RegressionState

    def __init__(
        self,
        n_components: int | None = None,
        *,
        dropout: float | str = 0.5,
        solver: str = "exact",
        fit_intercept: bool = True,
        cv: Any = 5,
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
        self.fit_intercept = fit_intercept
        self.cv = cv
        self.learning_rate = learning_rate
        self.schedule = schedule
        self.batch_size = batch_size
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit to all rows at once.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Inputs.
        y : array-like of shape (n_samples,) or (n_samples, n_targets)
            Targets.
        sample_weight : array-like of shape (n_samples,), optional
            Frequencies of the rows.

        Returns
        -------
        self
        """
        check_choice(self.solver, "solver", SOLVERS)
        settings = SgdSettings.of(self)
        X, y, weights = checked_pair(self, X, y, sample_weight, reset=True)
        self.dropout_, self.cv_, moment = choose(self, X, y, weights)
        state = self._unsolved(moment, y.ndim == 1, reference_array(X))
        if self.solver == "sgd":
            state.trained = train(
                X,
                as_columns(y),
                weights,
                state.problem,
                state.centers(),
                state.strength,
                state.width,
                settings,
            )
        self._keep(state)
        return self

    @available_if(_streams)
    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Add rows; after the last batch the result equals `fit` on all of them.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Inputs; batches may have any size.
        y : array-like of shape (n_samples,) or (n_samples, n_targets)
            Targets.
        sample_weight : array-like of shape (n_samples,), optional
            Frequencies of the rows.

        Returns
        -------
        self
        """
        first = not hasattr(self, "_state")
        check_choice(self.solver, "solver", SOLVERS)
        X, y, weights = checked_pair(self, X, y, sample_weight, reset=first)
        self.dropout_, self.cv_, moment = choose(self, X, y, weights)
        flat, ref = y.ndim == 1, reference_array(X)
        if not first:
            seen = self._state
            flat, ref = flat and seen.flat, seen.ref
            if moment.n_features != seen.moment.n_features:
                raise ValueError(
                    f"y has {moment.n_features - X.shape[1]} targets, but earlier batches had "
                    f"{seen.moment.n_features - X.shape[1]}."
                )
            moment = seen.moment.merge(moment)
        self._state = self._unsolved(moment, flat, ref)
        return self

    def predict(self, X: Any) -> Array:
        """Return the network's output, without dropout.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Inputs.

        Returns
        -------
        array of shape (n_samples,) or (n_samples, n_targets)
        """
        check_is_fitted(self)
        X = validated_rows(self, X, reset=False)
        coef, intercept = beside_rows(self.coef_, X), self.intercept_
        intercept = beside_rows(intercept, X) if is_array(intercept) else intercept
        return X @ (coef.mT if coef.ndim == 2 else coef) + intercept

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the coefficient of determination R² of the prediction, mean over targets.

        Parameters
        ----------
        X, y : array-like
            Inputs and targets.
        sample_weight : array-like of shape (n_samples,), optional
            Weights of the rows.

        Returns
        -------
        float
        """
        truth = to_numpy(y) if is_array(y) else y
        weights = to_numpy(sample_weight) if is_array(sample_weight) else sample_weight
        return float(r2_score(truth, to_numpy(self.predict(X)), sample_weight=weights))

    def _unsolved(self, moment: SecondMoment, flat: bool, ref: Array) -> RegressionState:
        n_features = self.n_features_in_
        width = hidden_width(self.n_components, min(n_features, moment.n_features - n_features))
        return RegressionState(
            moment,
            strength_of(self.dropout_),
            width,
            ref,
            self._gap_allowed,
            None,
            n_features,
            bool(self.fit_intercept),
            flat,
        )

    def _certify_on(self, X: Any, y: Any, sample_weight: Any = None) -> Certificate:
        """Certify the fitted weights on other data."""
        if y is None:
            raise ValueError("certify of a DropoutRegressor on data needs y beside X.")
        certificate = certify_weights(
            self.left_,
            self.right_,
            X,
            y,
            dropout=self.dropout_,
            fit_intercept=bool(self.fit_intercept),
            sample_weight=sample_weight,
            tolerance=self._gap_allowed,
        )
        return replace(certificate, title=type(self).__name__)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags
