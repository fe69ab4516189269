"""Multi-output regression by the linear network that dropout training converges to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import scipy.sparse
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils import Tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, validate_data

from lucidae.arrays import (
    Array,
    as_float,
    beside,
    is_array,
    is_numpy,
    like,
    machine_epsilon,
    namespace,
    to_numpy,
)
from lucidae.base import Fitted, reference_array, restored_on_failure, validated_rows
from lucidae.certificate import Certificate
from lucidae.data import by_blocks, in_memory, loaded
from lucidae.dropout.batches import BlockProblem, loaded_or_problem
from lucidae.dropout.certificate import check_problem
from lucidae.dropout.estimators.blocks import RegressorBatchesMixin
from lucidae.dropout.estimators.network import (
    NetworkMixin,
    NetworkState,
    SgdSettings,
    TrainedNetwork,
    beside_rows,
    exact_network,
    finite_output,
    hidden_width,
    merges_moments,
    representable,
    upgraded_network,
    upgraded_sgd_estimator,
    weights_of,
)
from lucidae.dropout.figures import MEAN_ERROR, ReportedAttributes
from lucidae.dropout.moments import as_columns, joint_moment, resolved, row_problem
from lucidae.dropout.objectives import LinearProblem
from lucidae.dropout.path import (
    SELECTIONS,
    CrossValidation,
    DropoutChoice,
    cross_validate,
    cross_validate_rows,
    fold_moments,
)
from lucidae.dropout.reduction import host
from lucidae.dropout.solvers import solve
from lucidae.dropout.theory import checked_dropout, dropout_of, strength_of
from lucidae.dropout.wide import RowMean, is_wide, row_factor, rows_problem
from lucidae.io.models import saved_as
from lucidae.moments import SecondMoment
from lucidae.validation import (
    check_flag,
    check_jobs,
    check_kind,
    check_rows,
    check_weights,
    real_array,
)


def _upgraded_regression(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of `RegressionState` from those that earlier versions saved."""
    added = {"root": None, "cv": None, "dropout": dropout_of(fields["strength"])}
    return added | upgraded_network(fields)


@saved_as(
    "lucidae.dropout.regression.fitted/3",
    formerly=(
        "lucidae.dropout.estimators._regression:Regression",
        "lucidae.dropout.regression.fitted/1",
        "lucidae.dropout.regression.fitted/2",
    ),
    upgrade=_upgraded_regression,
)
@dataclass(eq=False)
class RegressionState(NetworkState):
    """Fitted state of `DropoutRegressor`: second moment of the rows, settings and weights.

    Parameters
    ----------
    n_features : int
        Number of features of X; in the moment, the targets follow them.
    centered : bool
        Whether the means are subtracted, so that there is an intercept.
    flat : bool
        Whether y was one-dimensional.
    dropout : float
        Probability of dropping a hidden unit.
    cv : CrossValidation or None
        Errors on held-out rows by which that probability was chosen; None if it was given.
    root : array or None
        Triangular factor of a QR factorisation of the rows, if their moment is ill-conditioned; the
        centred and scaled rows themselves, if there are fewer of them than features.
    """

    n_features: int
    centered: bool
    flat: bool
    dropout: float
    cv: CrossValidation | None = None
    root: Array | None = None

    @property
    def problem(self) -> LinearProblem:
        """The second moments of inputs and targets on which the expected dropout loss depends."""
        if isinstance(self.moment, RowMean):
            assert self.root is not None
            problem = LinearProblem.from_root(
                self.root, self.n_features, self.moment.weight - self.centered
            )
        else:
            problem = LinearProblem.from_moment(
                self.moment, self.n_features, centered=self.centered, root=self.root
            )
        return self._resolved(problem, self.moment)

    def _resolved(self, problem: LinearProblem, moment: Any) -> LinearProblem:
        """Return a problem with the resolution of inputs in the dtype of the training rows."""
        return resolved(problem, moment, machine_epsilon(self.ref), centered=self.centered)

    def certificate_on(
        self,
        problem: LinearProblem,
        moment: Any,
        title: str,
        attributes: Mapping[str, Any],
        rows: tuple[float, float] | None,
    ) -> Certificate:
        """Return the certificate of given attributes, judged on other data than the training rows.

        The arguments are those of `NetworkState.certificate_on`. Directions of the inputs that the
        dtype of the training rows does not resolve count as constant, as in the fit.
        """
        problem = self._resolved(problem, moment)
        return super().certificate_on(problem, moment, title, attributes, rows)

    def solve(self) -> TrainedNetwork:
        """Return the network at the global minimum of the expected dropout loss."""
        return exact_network(solve(self.problem, self.strength, self.width))

    def compute_attributes(self) -> dict[str, Any]:
        """Return the fitted attributes (such as ``coef_`` and ``left_``) by name."""
        shared = super().compute_attributes()
        left, right = (like(shared[name], self.moment.center) for name in ("left_", "right_"))
        coef = representable(left @ right.mT, self.ref, "coef_")
        center, output_center = self.centers()
        intercept = output_center - like(coef, center) @ center
        intercept = representable(intercept, self.ref, "intercept_", factor=False)
        return (
            shared
            | self.chosen()
            | {
                "coef_": coef[0, :] if self.flat else coef,
                "intercept_": float(intercept[0]) if self.flat else intercept,
            }
        )

    def chosen(self) -> dict[str, Any]:
        """Return ``dropout_``, the dropout rate, and ``cv_``, the errors by which it was chosen."""
        return {"dropout_": self.dropout, "cv_": self.cv}

    def reported(self, attributes: Mapping[str, Any], moment: Any) -> ReportedAttributes:
        """Return the attributes that the certificate compares with data of the given moment."""
        found = super().reported(attributes, moment)
        coef, bias = self.function(attributes["coef_"], attributes["intercept_"])
        means = [host(part) for part in (moment.center, moment.offset)]
        if not self.centered:
            means = [0.0 * part for part in means]
        shift = (means[0] - self._mean_parts[0]) + (means[1] - self._mean_parts[1])
        expected = (means[0] + means[1])[self.n_features :]
        away = np.abs(coef @ shift[: self.n_features] + (bias - expected))
        rounding = 2 * found.precision * np.abs(expected)
        # Means of other rows than those of the fit have rounding errors of their own.
        spread = _spread(moment)
        doubt = np.abs(coef) @ (spread * (shift != 0.0))[: self.n_features]
        return found._replace(
            coef=coef,
            output_bias=np.clip(away - rounding, 0.0, None),
            output_bias_error=MEAN_ERROR * doubt,
            settings=((float(attributes["dropout_"]), self.dropout),),
        )

    @property
    def _mean_parts(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """The mean of the training rows [x | y] as a sum of two vectors, which has more digits.

        A row contains inputs x and targets y side by side. Both vectors are zero without an
        intercept.
        """
        center, offset = host(self.moment.center), host(self.moment.offset)
        return (center, offset) if self.centered else (0.0 * center, 0.0 * offset)

    def function(
        self, coef: Any, intercept: Any
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return the coefficients as a (targets × features) matrix, and the prediction at mean x.

        That prediction is the mean target. It is computed from `intercept` only if a user has
        assigned another value than the fitted one, because an intercept loses digits if the means
        are much larger than the deviations.
        """
        center, output_center = (host(part) for part in self.centers())
        coef = host(coef).reshape(len(output_center), len(center))
        intercept = np.broadcast_to(host(intercept).reshape(-1), output_center.shape)
        through = coef @ center
        sizes = np.abs(output_center) + np.abs(coef) @ np.abs(center)
        rounding = (len(center) + 8) * machine_epsilon(self.ref) * sizes
        fitted = np.abs(intercept - (output_center - through)) <= rounding
        return coef, np.where(fitted, output_center, intercept + through)

    def centers(self) -> tuple[Array, Array]:
        """Return the means of inputs and targets; zeros without an intercept."""
        mean = self.moment.mean if self.centered else 0.0 * self.moment.mean
        return mean[: self.n_features], mean[self.n_features :]

    def predict(self, X: Any, coef: Any, intercept: Any) -> Array:
        """Return the predictions coef (x − mean of x) + mean of y for the rows of X.

        The mean of x is rounded to the dtype of the rows and subtracted before the product. The
        effect of this rounding is then subtracted from the result.
        """
        matrix, bias = self.function(coef, intercept)
        used = beside_rows(coef, X) if is_array(coef) else like(np.asarray(coef), self.ref)
        ref = reference_array(X)
        center = like(self.centers()[0], ref)
        parts = [part[: self.n_features] for part in self._mean_parts]
        bias = bias + matrix @ ((host(center) - parts[0]) - parts[1])
        bias = like(bias[0] if used.ndim == 1 else bias, used)
        columns = used.mT if used.ndim == 2 else used
        with np.errstate(over="ignore", invalid="ignore"):
            if scipy.sparse.issparse(X):
                return X @ columns + (bias - center @ columns)
            return (X - center) @ columns + bias


def _spread(moment: SecondMoment | RowMean) -> np.ndarray[Any, Any]:
    """Return the square root of the mean square of every column, about a point near its mean."""
    if isinstance(moment, RowMean):
        return host(moment.deviations)
    squares = np.clip(np.diag(host(moment.squares)), 0.0, None)
    return np.asarray(np.sqrt(squares / moment.weight))


def _streams(estimator: Any) -> bool:
    """Return True if `partial_fit` is available; otherwise raise an AttributeError.

    scikit-learn calls it. It is not available for cross-validation and for SGD.
    """
    if isinstance(estimator.dropout, str):
        raise AttributeError(
            f"partial_fit is not available for dropout={estimator.dropout!r}: give a number."
        )
    return merges_moments(estimator)


def _upgraded_regressor(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters and attributes of a `DropoutRegressor` of an earlier version."""
    return {"n_jobs": None} | upgraded_sgd_estimator(fields)


@saved_as(
    "lucidae.DropoutRegressor/2",
    formerly=(
        "lucidae.dropout.estimators._regressor:DropoutRegressor",
        "lucidae.DropoutRegressor/1",
    ),
    upgrade=_upgraded_regressor,
)
class DropoutRegressor(
    RegressorBatchesMixin, NetworkMixin, MultiOutputMixin, RegressorMixin, BaseEstimator
):
    """Linear regression through a hidden layer with dropout, solved exactly.

    The network x ↦ U Vᵀx + b with r hidden units (incoming weights V, outgoing weights U), each
    dropped with the given probability in training, and a bias b, has a global optimum in closed
    form (Mianjy et al. 2018, Theorem 3.6): for whitened inputs, whose covariance is the identity,
    it is the least-squares map whose singular values are all reduced by one threshold and cut at
    rank r, distributed evenly over the hidden units. Inputs may be correlated, and their covariance
    may be singular: directions whose variance is as small as rounding errors, 10 · n_features · ε
    times the largest with the rounding unit ε, count as constant.

    Parameters
    ----------
    n_components : int or None, default=None
        Number r of hidden units. It limits the rank of the coefficients, and the wider the layer,
        the weaker the same dropout shrinks them. None means the smaller of the numbers of features
        and targets. For one target this is a single unit, and dropout then multiplies the
        least-squares coefficients by 1 − dropout; r units multiply them by
        r / (r + dropout/(1 − dropout)).
    dropout : float or "cv", default=0.5
        Probability of dropping a hidden unit, in [0, 1); 0 is reduced-rank least squares. "cv"
        compares 162 rates and takes the one with the smallest cross-validated error.
    solver : {"exact", "sgd"}, default="exact"
        ``"exact"`` computes the optimum in closed form; ``"sgd"`` trains by stochastic gradient
        descent (Mianjy et al. 2018, Algorithm 1).
    fit_intercept : bool, default=True
        Whether both layers have a bias; the optimal biases centre the data.
    cv : int, splitter or iterable, default=5
        Folds of ``dropout="cv"``, as in scikit-learn.
    learning_rate : float or "auto", default="auto"
        Learning rate of the first SGD step. SGD works on whitened inputs, whose covariance is
        the identity.
    schedule : {"linear", "inverse", "constant"}, default="linear"
        How the learning rate of SGD decreases over `max_iter` steps.
    batch_size : int, default=32
        Number of rows per SGD step.
    max_iter : int, default=5000
        Largest number of SGD steps.
    tol : float, default=1e-2
        SGD stops when the norm of the gradient of the expected loss is at most
        tol · 2‖E[yxᵀ]‖ ‖(U, V)‖, for inputs whose covariance is the identity. The exact solver
        does not use it. The certificate of SGD allows a loss that exceeds the optimum by `tol`
        times the part of E‖y‖² that least squares explains, but at most by 0.02 times this part.
    random_state : int, RandomState instance or None, default=None
        Seed of SGD.
    warm_start : bool, default=False
        Whether SGD starts from the weights of the last fit, exact or by SGD, instead of random
        ones. If their shapes do not fit, it warns and starts from random weights.
    n_jobs : int or None, default=None
        Number of folds of ``dropout="cv"`` that are computed at a time, by joblib. None means 1,
        unless `fit` is called inside of a `joblib.parallel_config` context; -1 means all
        processors. With ``joblib.parallel_config("dask")`` the folds are computed by the workers
        of a Dask cluster.
    verbose : bool, default=False
        Whether SGD and cross-validation show their progress, if they take longer than two seconds.

    Attributes
    ----------
    coef_ : array of shape (n_targets, n_features) or (n_features,)
        Coefficients U Vᵀ; one-dimensional if y was.
    intercept_ : array of shape (n_targets,) or float
        Mean target minus the product of `coef_` with the mean input. `predict` subtracts the mean
        input before it multiplies, and so keeps more digits than X @ coef_.T + intercept_; a value
        that is assigned to `intercept_` is used as it is.
    left_ : array of shape (n_targets, r)
        Outgoing weights U of the hidden units.
    right_ : array of shape (n_features, r)
        Incoming weights V of the hidden units.
    rank_ : int
        Rank of the optimal product U Vᵀ.
    threshold_ : float
        Amount by which dropout reduces each singular value of the least-squares map.
    singular_values_ : array
        Leading singular values of the least-squares map, for whitened inputs (of identity
        covariance), before they are reduced.
    objective_ : float
        Expected dropout loss of the weights, mean over rows and summed over targets.
    dropout_ : float
        The probability of dropping a hidden unit that was used.
    cv_ : CrossValidation or None
        Errors on held-out rows for every rate, if ``dropout="cv"``; otherwise None.
    n_iter_, status_, history_
        Number of steps, `lucidae.iteration.Status` at the end, and recorded losses of the solver.
    certificate_ : Certificate
        Claims about the weights: distance to the global minimum, equal importance of the hidden
        units, rank, zero gradient.
    n_features_in_ : int
        Number of features of X in `fit`.
    feature_names_in_ : ndarray of str
        Names of the features, if X had them.

    Notes
    -----
    `sample_weight` are frequencies: weight 2 is the same as giving a row twice. The exact solver
    uses X only through its second moment, in double precision: a fit stores
    (n_features + n_targets)² numbers for any number of rows, and a sparse X stays sparse. If the
    condition number of the second moment of X exceeds 10⁶, `fit` factorises the rows too, in dense
    blocks, and is as accurate as least squares by a QR factorisation. Fewer rows than features, of
    which there are more than 1024, are not squared at all: `fit` stores the centred rows instead
    of their moment, from which `partial_fit` cannot continue. `partial_fit` has only the moment; if
    that is not accurate enough, the certificate says so.

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
    dropout_ = Fitted()
    cv_ = Fitted()

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
        n_jobs: int | None = None,
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
        self.n_jobs = n_jobs
        self.verbose = verbose

    @restored_on_failure
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit the network to all rows at once.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Inputs, one row per sample. Files, memory maps, iterables of batches and Dask
            collections are read in blocks: see `lucidae.data.row_blocks`. The same holds for `y`.
        y : array-like of shape (n_samples,) or (n_samples, n_targets)
            Targets, one row per sample.
        sample_weight : array-like of shape (n_samples,), optional
            Frequencies of the rows: a row of weight 2 counts as two equal rows.

        Returns
        -------
        self
        """
        solver, settings = self._chosen_solver, SgdSettings.of(self)
        drawn = solver.needs_rows or isinstance(self.dropout, str)
        if not (in_memory(X, rows_drawn=drawn) and in_memory(y) and in_memory(sample_weight)):
            return self.fit_batches(X, y, sample_weight)
        X, y, weights = self._checked_data(X, y, sample_weight, reset=True)
        centered = check_flag(self.fit_intercept, "fit_intercept")
        factor = row_factor(X, y, weights, centered=centered) if is_wide(X) else None
        mean = None if factor is None else factor[0]
        choice = self._choose_dropout(X, y, weights, settings.bars("cross-validation"), mean)
        state = self._unsolved(choice, y.ndim == 1, reference_array(X))
        columns = as_columns(y)
        if factor is None:
            state.root = row_problem(X, y, weights, state.moment, centered=centered).root
        else:
            state.root = factor[1]
        if solver.needs_rows:
            state.train(X, columns, weights, settings)
        state.row_objective = state.measured_on(X, columns, weights, centered=centered)
        self._keep(state)
        return self

    @available_if(_streams)
    @restored_on_failure
    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Update the fit with further rows; after the last batch it equals `fit` on all rows.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Inputs of a batch of any size, one row per sample.
        y : array-like of shape (n_samples,) or (n_samples, n_targets)
            Targets, one row per sample.
        sample_weight : array-like of shape (n_samples,), optional
            Frequencies of the rows: a row of weight 2 counts as two equal rows.

        Returns
        -------
        self
        """
        SgdSettings.of(self)  # refuses wrong settings, which this solver does not use
        first = not self.__sklearn_is_fitted__()
        X, y, weights = self._checked_data(X, y, sample_weight, reset=first)
        choice = self._choose_dropout(X, y, weights)
        flat, ref = y.ndim == 1, reference_array(X)
        if not first:
            seen = self._state
            flat, ref = flat and seen.flat, seen.ref
            if choice.moment.n_features != seen.moment.n_features:
                raise ValueError(
                    f"y has {choice.moment.n_features - X.shape[1]} targets, expected "
                    f"{seen.moment.n_features - X.shape[1]} as in earlier batches."
                )
            choice = choice._replace(moment=seen.moment.merge(choice.moment))
        self._keep_unsolved(self._unsolved(choice, flat, ref))
        return self

    @by_blocks
    def predict(self, X: Any) -> Array:
        """Return the predictions of the network, without dropout.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Inputs, one row per sample.

        Returns
        -------
        array of shape (n_samples,) or (n_samples, n_targets)
        """
        check_is_fitted(self)
        X = validated_rows(self, X, reset=False)
        predicted = self._state.predict(X, self.coef_, self.intercept_)
        return finite_output(predicted, "predictions")

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the coefficient of determination R² of the predictions, mean over targets.

        Parameters
        ----------
        X, y : array-like
            Inputs and targets, as in `fit`.
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
        """Return checked inputs, targets and weights of the rows.

        The number and the names of the features are stored if `reset`, otherwise compared.
        """
        X, y = check_kind(X, "X"), check_kind(y, "y")
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

    def _choose_dropout(
        self,
        X: Any,
        y: Array,
        weights: Array | None,
        callbacks: Sequence[Any] = (),
        mean: RowMean | None = None,
    ) -> DropoutChoice:
        """Return the dropout rate, the moment of inputs and targets, and the cross-validation.

        The moment is not computed if `mean` is given, the mean of fewer rows than features.
        """
        jobs = check_jobs(self.n_jobs)
        if not isinstance(self.dropout, str):
            moment = joint_moment(X, y, weights) if mean is None else mean
            return DropoutChoice(moment, checked_dropout(self.dropout, " or 'cv'"), None)
        if self.dropout not in SELECTIONS:
            checked_dropout(self.dropout, " or 'cv'")
        select = SELECTIONS[self.dropout]
        columns = as_columns(y)
        width = hidden_width(self.n_components, min(X.shape[1], columns.shape[1]))
        centered = check_flag(self.fit_intercept, "fit_intercept")
        if mean is not None:
            given = (X, columns, weights, self.cv, width)
            found = cross_validate_rows(*given, centered=centered, callbacks=callbacks, n_jobs=jobs)
            return DropoutChoice(mean, select(found), found)
        folds = fold_moments(X, columns, weights, self.cv, callbacks, jobs)
        found = cross_validate(
            folds.folds, X.shape[1], width, centered=centered, callbacks=callbacks, n_jobs=jobs
        )
        # Folds that partition the rows have the moment of all rows already.
        total = folds.total if folds.total is not None else joint_moment(X, columns, weights)
        return DropoutChoice(total, select(found), found)

    def _unsolved(self, choice: DropoutChoice, flat: bool, ref: Array) -> RegressionState:
        """Return the state of a fit; its optimum is computed when an attribute is first read.

        `flat` says whether y was one-dimensional, and `ref` has the dtype and device of X.
        """
        moment, n_features = choice.moment, self.n_features_in_
        width = hidden_width(self.n_components, min(n_features, moment.n_features - n_features))
        return RegressionState(
            moment,
            strength_of(choice.dropout),
            width,
            ref,
            self._chosen_solver.allowed_gap(self.tol),
            None,
            n_features,
            check_flag(self.fit_intercept, "fit_intercept"),
            flat,
            choice.dropout,
            choice.cv,
        )

    def _certify_on(self, X: Any, y: Any, sample_weight: Any = None) -> Certificate:
        """Return the certificate of the fitted weights on given data, for `lucidae.certify`."""
        if y is None:
            raise ValueError(
                "X was given without y: a DropoutRegressor is certified on X and y, give both."
            )
        check_is_fitted(self)
        state = self._state
        if not (in_memory(X) and in_memory(y) and in_memory(sample_weight)):
            found = loaded_or_problem(X, y, sample_weight, centered=state.centered)
            if isinstance(found, BlockProblem):
                return self._certificate_on_blocks(found)
            X, y, sample_weight = found
        X, attributes = check_rows(X), self._attributes_now()
        weights, columns = check_weights(sample_weight, X), as_columns(_checked_targets(y, X))
        problem, moment = rows_problem(X, columns, weights, centered=state.centered)
        check_problem(problem, weights_of(attributes))
        rows = state.measured_on(
            X, columns, weights, centered=state.centered, attributes=attributes
        )
        return state.certificate_on(problem, moment, type(self).__name__, attributes, rows)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


def _checked_targets(y: Any, X: Array) -> Array:
    """Return the targets y in the array library of X, after checking them.

    They must be finite and have one entry or row per row of X.
    """
    if y is None:
        raise ValueError("y is None, but DropoutRegressor requires y: pass the targets as y.")
    y = as_float(real_array(y, "y"))
    y = y if scipy.sparse.issparse(X) else beside(y, X)
    xp = namespace(y)
    if y.ndim not in (1, 2) or y.shape[0] != X.shape[0] or 0 in y.shape:
        raise ValueError(
            f"y has shape {tuple(y.shape)}, expected ({X.shape[0]},) or ({X.shape[0]}, n_targets)."
        )
    if not bool(xp.all(xp.isfinite(y))):
        raise ValueError("y contains NaN or infinity. Remove or impute those entries first.")
    return y
