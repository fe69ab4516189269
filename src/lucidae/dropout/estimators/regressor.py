"""Multi-output regression by the network that dropout training converges to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils import Tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, validate_data

from lucidae.arrays import (
    Array,
    as_float,
    as_plain,
    is_array,
    is_numpy,
    like,
    namespace,
    to_numpy,
)
from lucidae.base import Fitted, reference_array, restored_on_failure, validated_rows
from lucidae.certificate import Certificate
from lucidae.data import aligned_blocks, by_blocks, in_memory, loaded, store_features
from lucidae.dropout.batches import check_streamed, loaded_or_problem, read_problem
from lucidae.dropout.certificate import check_problem, data_problem
from lucidae.dropout.estimators.network import (
    NetworkMixin,
    NetworkState,
    SgdSettings,
    TrainedNetwork,
    beside_rows,
    exact_network,
    hidden_width,
    merges_moments,
    upgraded_network,
    upgraded_sgd_estimator,
)
from lucidae.dropout.figures import ReportedAttributes
from lucidae.dropout.moments import as_columns, joint_moment, row_problem
from lucidae.dropout.objectives import LinearProblem
from lucidae.dropout.path import SELECTIONS, CrossValidation, cross_validate, fold_moments
from lucidae.dropout.solvers import solve
from lucidae.dropout.theory import checked_dropout, strength_of
from lucidae.io.models import saved_as
from lucidae.moments import SecondMoment
from lucidae.validation import check_rows, check_weights


@saved_as(
    "lucidae.dropout.regression.fitted/2",
    formerly=(
        "lucidae.dropout.estimators._regression:Regression",
        "lucidae.dropout.regression.fitted/1",
    ),
    upgrade=lambda fields: {"root": None} | upgraded_network(fields),
)
@dataclass(eq=False)
class RegressionState(NetworkState):
    """Fitted state of `DropoutRegressor`.

    Parameters
    ----------
    n_features : int
        Number of features; the targets follow them in the moment.
    centered : bool
        Whether rows are centred, so that there is an intercept.
    flat : bool
        Whether y was one-dimensional.
    root : array or None
        Triangular factor of the rows, where their moment is ill-conditioned.
    """

    n_features: int
    centered: bool
    flat: bool
    root: Array | None = None

    @property
    def problem(self) -> LinearProblem:
        """The moments on which the loss depends."""
        return LinearProblem.from_moment(
            self.moment, self.n_features, centered=self.centered, root=self.root
        )

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

    def reported(self, attributes: Mapping[str, Any]) -> ReportedAttributes:
        """Return the attributes that the certificate compares with the data."""
        mean = self.moment.mean if self.centered else 0.0 * self.moment.mean
        return (
            super()
            .reported(attributes)
            ._replace(coef=attributes["coef_"], intercept=attributes["intercept_"], mean=mean)
        )

    def centers(self) -> tuple[Array, Array]:
        """Return the means of x and y; zeros without an intercept."""
        mean = self.moment.mean if self.centered else 0.0 * self.moment.mean
        return mean[: self.n_features], mean[self.n_features :]


def _streams(estimator: Any) -> bool:
    """Tell scikit-learn whether `partial_fit` is available; an AttributeError means no."""
    if isinstance(estimator.dropout, str):
        raise AttributeError(
            f"partial_fit cannot cross-validate dropout={estimator.dropout!r}: give a number."
        )
    return merges_moments(estimator)


@saved_as(
    "lucidae.DropoutRegressor/1",
    formerly="lucidae.dropout.estimators._regressor:DropoutRegressor",
    upgrade=upgraded_sgd_estimator,
)
class DropoutRegressor(NetworkMixin, MultiOutputMixin, RegressorMixin, BaseEstimator):
    """Linear regression through a hidden layer with dropout, solved exactly.

    The network x ↦ U Vᵀx + b with r hidden units, each dropped with the given probability in
    training, has a global optimum in closed form: the least-squares map with its singular values
    (in the metric of the inputs) shrunk by one threshold and cut at rank r, spread evenly over
    the hidden units (Mianjy et al. 2018, Theorem 3.6). Inputs may be correlated, and their
    covariance may be singular: directions whose variance is at the level of rounding errors,
    10 · n_features · ε times the largest, count as constant.

    Parameters
    ----------
    n_components : int or None, default=None
        Width r of the hidden layer, which enters the regulariser as λ/r. None: the smaller of
        the numbers of features and targets.
    dropout : float or "cv", default=0.5
        Probability of dropping a hidden unit, in [0, 1); 0 is reduced-rank least squares.
        "cv" takes the one with the smallest cross-validated error along a path of rates.
    solver : {"exact", "sgd"}, default="exact"
        The closed form, or stochastic gradient descent (Mianjy et al. 2018, Algorithm 1).
    fit_intercept : bool, default=True
        Whether both layers have a bias; the optimal biases centre the data.
    cv : int, splitter or iterable, default=5
        Folds of ``dropout="cv"``, as in scikit-learn.
    learning_rate : float or "auto", default="auto"
        Rate of the first SGD step, in white coordinates of the inputs.
    schedule : {"linear", "inverse", "constant"}, default="linear"
        How SGD's rate decreases over `max_iter` steps.
    batch_size : int, default=32
        Examples per SGD step.
    max_iter : int, default=5000
        Largest number of SGD steps.
    tol : float, default=1e-2
        Relative norm of the expected gradient, ‖∇f‖ / (2‖E[yxᵀ]‖ ‖(U, V)‖) in white coordinates,
        at which SGD stops. The exact solver does not use it. The certificate of SGD allows a gap
        of `tol` to the optimum, but at most 0.02.
    random_state : int, RandomState instance or None, default=None
        Seed of SGD.
    warm_start : bool, default=False
        Whether SGD starts from the weights of the last fit, exact or by SGD, instead of random
        ones. If their shapes do not fit, it warns and starts from random weights.
    verbose : bool, default=False
        Whether SGD shows its progress, if it takes longer than two seconds.

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
        ρ, the rank of the optimal product.
    threshold_ : float
        α, the amount by which dropout reduces each singular value.
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
        Claims about the fit: gap to the global optimum, equalization, rank, stationarity.
    n_features_in_ : int
        Number of features seen.
    feature_names_in_ : ndarray of str
        Names of the features, where X had them.

    Notes
    -----
    `sample_weight` are frequencies: weight 2 is the same as giving a row twice. The exact solver
    uses X only through its second moment, in double precision: a fit stores
    (n_features + n_targets)² numbers for any number of rows, and a sparse X stays sparse. If the
    condition number of the second moment of X exceeds 10⁶, `fit` factorises the rows too, in dense
    blocks, and is as accurate as least squares by a QR factorisation. `partial_fit` has only the
    moment; where that is too little, the certificate says so.

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

    cv_: CrossValidation | None
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
        warm_start: bool = False,
        verbose: bool = False,
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
        self.warm_start = warm_start
        self.verbose = verbose

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit to all rows at once.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Inputs. Files, memory maps, iterables of batches and Dask collections are read in
            blocks: see `lucidae.data.row_blocks`. The same holds for `y`.
        y : array-like of shape (n_samples,) or (n_samples, n_targets)
            Targets.
        sample_weight : array-like of shape (n_samples,), optional
            Frequencies of the rows.

        Returns
        -------
        self
        """
        solver, settings = self._chosen_solver, SgdSettings.of(self)
        drawn = solver.needs_rows or isinstance(self.dropout, str)
        if not (in_memory(X, rows_drawn=drawn) and in_memory(y) and in_memory(sample_weight)):
            return self.fit_batches(X, y, sample_weight)
        X, y, weights = self._checked_data(X, y, sample_weight, reset=True)
        moment = self._choose_dropout(X, y, weights)
        state = self._unsolved(moment, y.ndim == 1, reference_array(X))
        state.root = row_problem(X, y, weights, moment, centered=state.centered).root
        if solver.needs_rows:
            state.train(X, as_columns(y), weights, settings)
        columns = as_columns(y)
        state.row_objective = state.measured_on(X, columns, weights, centered=state.centered)
        self._keep(state)
        return self

    @restored_on_failure
    def fit_batches(
        self,
        batches: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        start: SecondMoment | None = None,
    ) -> Self:
        """Fit to data that are read in blocks of rows; the result equals `fit` on all rows.

        Not more than a few blocks are in memory at a time, besides the second moment. Data that
        fit into one block (32 MiB) are loaded.

        Parameters
        ----------
        batches : iterable of batches, path, memory map, or data of any other kind
            Each batch is a tuple of rows, targets and, optionally, weights; or of rows alone, if y
            is given. See `lucidae.data.row_blocks` for
            the other kinds.
        y : data of any kind, optional
            Targets, unless the batches contain them.
        sample_weight : data of any kind, optional
            Frequencies of the rows, unless the batches contain them.
        start : SecondMoment, optional
            Moment of rows [x | y] that were read before, such as that of a
            `lucidae.data.ReadInterrupted`.

        Returns
        -------
        self
        """
        data = aligned_blocks(batches, y, sample_weight, with_targets=True)
        small = data.load() if start is None else None
        if small is not None:
            return self.fit(small.rows, small.targets, small.weights)
        check_streamed(self, data, start)
        self.dropout_, self.cv_ = checked_dropout(float(self.dropout)), None
        centered, verbose = bool(self.fit_intercept), bool(self.verbose)
        moment, root = read_problem(data, centered=centered, start=start, verbose=verbose)
        store_features(self, data)
        state = self._unsolved(moment, data.flat_targets, data.rows.reference)
        state.root = root
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
        first = not self.__sklearn_is_fitted__()
        X, y, weights = self._checked_data(X, y, sample_weight, reset=first)
        moment = self._choose_dropout(X, y, weights)
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

    @by_blocks
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
        truth = to_numpy(y) if is_array(y) else loaded(y)
        weights = to_numpy(sample_weight) if is_array(sample_weight) else sample_weight
        return float(r2_score(truth, to_numpy(self.predict(X)), sample_weight=weights))

    def _checked_data(
        self, X: Any, y: Any, sample_weight: Any, *, reset: bool
    ) -> tuple[Any, Array, Array | None]:
        """Return checked inputs, targets and weights; store feature count and names."""
        if is_array(X) and not is_numpy(X):
            X = validated_rows(self, X, reset=reset)
            y = _checked_targets(y, X)
        else:
            X, y = validate_data(
                self,
                X,
                y,
                reset=reset,
                accept_sparse=("csr",),
                dtype=(np.float64, np.float32),
                multi_output=True,
                y_numeric=True,
            )
        return X, y, check_weights(sample_weight, X)

    def _choose_dropout(self, X: Any, y: Array, weights: Array | None) -> SecondMoment:
        """Set `dropout_` and `cv_`, and return the moment of all rows [x | y]."""
        if not isinstance(self.dropout, str):
            self.dropout_, self.cv_ = checked_dropout(self.dropout), None
            return joint_moment(X, y, weights)
        if self.dropout not in SELECTIONS:
            named = " or ".join(repr(name) for name in SELECTIONS)
            raise ValueError(
                f"dropout={self.dropout!r} was given, expected a probability in [0, 1) or {named}."
            )
        select = SELECTIONS[self.dropout]
        columns = as_columns(y)
        width = hidden_width(self.n_components, min(X.shape[1], columns.shape[1]))
        folds = fold_moments(X, columns, weights, self.cv)
        centered = bool(self.fit_intercept)
        self.cv_ = cross_validate(folds.folds, X.shape[1], width, centered=centered)
        self.dropout_ = select(self.cv_)
        # Folds that partition the rows have the moment of all rows already.
        return folds.total if folds.total is not None else joint_moment(X, columns, weights)

    def _unsolved(self, moment: SecondMoment, flat: bool, ref: Array) -> RegressionState:
        """Return the state of a fit whose optimum is computed when it is first read."""
        n_features = self.n_features_in_
        width = hidden_width(self.n_components, min(n_features, moment.n_features - n_features))
        return RegressionState(
            moment,
            strength_of(self.dropout_),
            width,
            ref,
            self._chosen_solver.allowed_gap(self.tol),
            None,
            n_features,
            bool(self.fit_intercept),
            flat,
        )

    def _certify_on(self, X: Any, y: Any, sample_weight: Any = None) -> Certificate:
        """Return the certificate of the fitted weights on given data."""
        if y is None:
            raise ValueError(
                "X was given without y; the certificate of a DropoutRegressor on data needs y too."
            )
        centered = bool(self.fit_intercept)
        if not (in_memory(X) and in_memory(y) and in_memory(sample_weight)):
            found = loaded_or_problem(X, y, sample_weight, centered=centered)
            if isinstance(found, LinearProblem):
                return self._certificate_on_blocks(found)
            X, y, sample_weight = found
        X = check_rows(X)
        problem = data_problem(X, y, centered, sample_weight)
        check_problem(problem, self._state.network.weights)
        weights = check_weights(sample_weight, X)
        rows = self._state.measured_on(X, as_columns(y), weights, centered=centered)
        return self._state.certificate_on(
            problem, type(self).__name__, self._attributes_now(), rows
        )

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


def _checked_targets(y: Any, X: Array) -> Array:
    """Return targets in the library of X: finite, with one or two axes and one entry per row."""
    if y is None:
        raise ValueError("y is None, but targets are needed: requires y to be passed.")
    y = like(as_plain(y) if is_array(y) else np.asarray(y), X)
    y, xp = as_float(y), namespace(X)
    if y.ndim not in (1, 2) or y.shape[0] != X.shape[0] or 0 in y.shape:
        raise ValueError(
            f"y has shape {tuple(y.shape)}, expected ({X.shape[0]},) or ({X.shape[0]}, n_targets)."
        )
    if not bool(xp.all(xp.isfinite(y))):
        raise ValueError("y contains NaN or infinity. Remove or impute those entries first.")
    return y
