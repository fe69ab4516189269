"""Multi-output regression of reduced rank: the network that dropout training converges to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import numpy as np
import scipy.sparse
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from lucidae.arrays import Array, is_array, like, to_numpy
from lucidae.base import (
    Fitted,
    changed_attributes,
    fitting_method,
    reference_array,
)
from lucidae.dropout.network import (
    NetworkMixin,
    NetworkState,
    allowed_gap,
    beside_rows,
    finite_output,
    merges_moments,
    sgd_settings,
)
from lucidae.dropout.path import SELECTIONS, CrossValidation, cross_validate
from lucidae.dropout.problem import RowMean, checked_targets, host, rows_problem
from lucidae.dropout.solvers import hidden_width
from lucidae.dropout.standard_errors import fitted_value_errors
from lucidae.dropout.theory import checked_dropout, strength_of
from lucidae.iteration import progress_bars
from lucidae.moments import SecondMoment
from lucidae.rows.kinds import in_memory, loaded
from lucidae.rows.passes import by_blocks
from lucidae.validation import (
    check_argument,
    check_flag,
    check_number,
    check_rows,
    check_weights,
    real_array,
)

LARGEST_ALPHA = 1e100
"""Largest ridge penalty that is accepted; products of much larger ones with the data overflow."""


DEFAULT_DROPOUT = 0.5
"""With ``shrink=False`` there is no dropout, and another rate than this one or zero is an error."""


class DropoutRegressor(NetworkMixin, MultiOutputMixin, RegressorMixin, BaseEstimator):
    """Reduced-rank regression: linear, through a hidden layer with dropout, solved exactly.

    The network x ↦ U Vᵀx + b with r hidden units (incoming weights V, outgoing weights U), each
    dropped with the given probability in training, and a bias b, has a global optimum in closed
    form (Mianjy et al. 2018, Theorem 3.6): for whitened inputs, whose covariance is the identity,
    it is the least-squares map whose singular values are all reduced by one threshold and cut at
    rank r, distributed evenly over the hidden units. This is shrunken reduced-rank regression;
    ``shrink=False`` gives the classical one (Izenman 1975), which cuts and does not reduce. Inputs
    may be correlated, and their covariance may be singular: directions whose variance is as small
    as rounding errors, 10 · n_features · ε times the largest with the rounding unit ε, count as
    constant.

    Parameters
    ----------
    n_components : int, "cv", "cv_1se" or None, default=None
        Number r of hidden units. It limits the rank of the coefficients, and the wider the layer,
        the weaker the same dropout shrinks them. None means the smaller of the numbers of features
        and targets. For one target this is a single unit, and dropout then multiplies the
        least-squares coefficients by 1 − dropout; r units multiply them by
        r / (r + dropout/(1 − dropout)). "cv" and "cv_1se" choose the rank by cross-validation, with
        ``shrink=False`` only: with dropout the rate chooses the rank.
    dropout : float, "cv" or "cv_1se", default=0.5
        Probability of dropping a hidden unit, in [0, 1); 0 is reduced-rank least squares. "cv"
        compares 162 rates and takes the one with the smallest cross-validated error. "cv_1se" takes
        the largest rate whose error exceeds the smallest by at most one standard error: fewer
        components at nearly the same error. With ``shrink=False`` there is no dropout; leave the
        default, or give 0.
    shrink : bool, default=True
        Whether dropout shrinks the singular values of the least-squares map. If False, the
        coefficients are those of classical reduced-rank regression: least squares (or ridge) under
        the constraint that their rank is at most `n_components`.
    alpha : float, default=0.0
        Ridge penalty, as in scikit-learn's `Ridge`: alpha times the squared norm of the
        coefficients is added to the sum of the squared errors over all rows, both in expectation
        under dropout. The intercept is not penalised. Use it if inputs are nearly collinear.
    solver : {"exact", "sgd"}, default="exact"
        ``"exact"`` computes the optimum in closed form; ``"sgd"`` trains by stochastic gradient
        descent (Mianjy et al. 2018, Algorithm 1).
    fit_intercept : bool, default=True
        Whether both layers have a bias; the optimal biases centre the data.
    cv : int, splitter or iterable, default=5
        Folds of cross-validation, as in scikit-learn.
    verbose : bool or "auto", default="auto"
        Whether progress is shown, if a fit or a pass over data that are read in blocks takes longer
        than two seconds. With ``"auto"`` it is if standard error is a terminal or belongs to a
        notebook: as a bar, or as the elapsed time where the length is not known. True also prints
        lines to a file or a pipe, and False shows nothing.

    Other Parameters
    ----------------
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
        Number of folds of cross-validation that are computed at a time, by joblib. None means 1,
        unless `fit` is called inside of a `joblib.parallel_config` context; -1 means all
        processors. With ``joblib.parallel_config("dask")`` the folds are computed by the workers
        of a Dask cluster.

    Attributes
    ----------
    coef_ : array of shape (n_targets, n_features) or (n_features,)
        Coefficients U Vᵀ; one-dimensional if y was.
    intercept_ : array of shape (n_targets,) or float
        Mean target minus the product of `coef_` with the mean input. `predict` subtracts the mean
        input before it multiplies, and so keeps more digits than ``X @ coef_.T + intercept_``.
    left_ : array of shape (n_targets, r)
        Outgoing weights U of the hidden units. With ``shrink=False`` its columns are orthonormal
        directions of the targets, the most important first.
    right_ : array of shape (n_features, r)
        Incoming weights V of the hidden units. With ``shrink=False`` the values of different
        columns, ``X @ right_``, are uncorrelated.
    rank_ : int
        Rank of the optimal product U Vᵀ.
    n_components_ : int
        The number r of hidden units that was used.
    threshold_ : float
        Amount by which dropout reduces each singular value of the least-squares map.
    singular_values_ : array
        Leading singular values of the least-squares map, for whitened inputs (of identity
        covariance), before they are reduced.
    objective_ : float
        Expected dropout loss of the weights, mean over rows and summed over targets, with the ridge
        penalty. With ``shrink=False`` the mean squared error takes the place of the dropout loss.
    dropout_ : float
        The probability of dropping a hidden unit that was used; 0 with ``shrink=False``.
    cv_ : CrossValidation or None
        Errors on held-out rows for every rate or rank, if one was chosen by cross-validation;
        otherwise None.
    cv_results_ : dict or None
        The same errors under the names of scikit-learn's `GridSearchCV`: ``mean_test_score``,
        ``std_test_score``, ``rank_test_score``, ``split0_test_score``, …, ``params``. Scores are
        negative mean squared errors, summed over targets.
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
    which there are more than 1024, are not squared: their Gram matrix is decomposed, n_samples²
    numbers, and sparse rows stay sparse. Only if that would lose digits (the condition number of
    the Gram matrix exceeds 10⁴) are rows made dense and factorised. `partial_fit` cannot continue
    from such a fit, and `predict` has no standard errors. `partial_fit` has only the moment; if
    that is not accurate enough, the certificate says so.

    References
    ----------
    Mianjy, Arora and Vidal, "On the implicit bias of dropout", ICML 2018.
    Izenman, "Reduced-rank regression for the multivariate linear model", 1975.
    Mukherjee and Zhu, "Reduced rank ridge regression and its kernel extensions", 2011.

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

    Classical reduced-rank regression of rank 1, and a rank chosen by cross-validation:

    >>> DropoutRegressor(1, shrink=False).fit(X, Y).rank_
    1
    >>> DropoutRegressor("cv", shrink=False).fit(X, Y).n_components_
    2
    """

    coef_ = Fitted()
    intercept_ = Fitted()
    dropout_ = Fitted()
    cv_ = Fitted()
    cv_results_ = Fitted()

    _state: NetworkState

    def __init__(
        self,
        n_components: int | str | None = None,
        *,
        dropout: float | str = DEFAULT_DROPOUT,
        shrink: bool = True,
        alpha: float = 0.0,
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
        verbose: bool | str = "auto",
    ) -> None:
        self.n_components = n_components
        self.dropout = dropout
        self.shrink = shrink
        self.alpha = alpha
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

    @fitting_method
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit the network to all rows at once.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Inputs, one row per sample. Files, memory maps, iterables of batches and Dask
            collections are read in blocks: see `lucidae.rows.row_blocks`. The same holds for `y`.
        y : array-like of shape (n_samples,) or (n_samples, n_targets)
            Targets, one row per sample.
        sample_weight : array-like of shape (n_samples,), optional
            Frequencies of the rows: a row of weight 2 counts as two equal rows.

        Returns
        -------
        self
            The fitted estimator itself.
        """
        trains, settings, rule = self._trains, sgd_settings(self), self._checked_settings()
        drawn = trains or rule is not None
        if not (
            in_memory(X, rows_drawn=drawn)
            and in_memory(y, "y")
            and in_memory(sample_weight, "sample_weight")
        ):
            return self.fit_batches(X, y, sample_weight)
        self._store_target_names(y)
        X = check_rows(X, estimator=self, reset=True)
        (Y, flat), weights = checked_targets(X, y), check_weights(sample_weight, X)
        centered = check_flag(self.fit_intercept, "fit_intercept")
        jobs = check_argument(self.n_jobs, "n_jobs")
        cv = total = None
        dropout, width = self._network(Y.shape[1], chosen=rule is not None)
        if rule is not None:
            bars = progress_bars("cross-validation", self.verbose)
            cv, total = cross_validate(
                X,
                Y,
                weights,
                self.cv,
                width,
                centered=centered,
                shrinks=bool(self.shrink),
                alpha=float(self.alpha),
                callbacks=bars,
                n_jobs=jobs,
            )
            selected = rule(cv)
            dropout, width = (selected, width) if self.shrink else (0.0, int(selected))
        # Folds that partition the rows have the moment of all rows already.
        problem, moment = rows_problem(X, Y, weights, centered=centered, moment=total)
        state = self._unsolved(moment, reference_array(X), (dropout, width))
        state.flat, state.cv, state.root = flat, cv, getattr(problem, "root", None)
        if trains:
            state.train(self, settings, (X, Y, weights), problem)
        else:
            state.solve(problem)
        state.refer(X, Y, weights, type(self).__name__)
        _ = state.attributes
        self._state = state
        return self

    @fitting_method
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
            is given. See `lucidae.rows.row_blocks` for the other kinds.
        y : data of any kind, optional
            Targets, unless the batches contain them.
        sample_weight : data of any kind, optional
            Frequencies of the rows, unless the batches contain them.
        start : SecondMoment, optional
            Moment of rows [x | y] that were read before, such as that of a
            `lucidae.rows.ReadInterrupted`.

        Returns
        -------
        self
            The fitted estimator itself.
        """
        self._checked_settings()
        check_flag(self.fit_intercept, "fit_intercept")
        self._fit_blocks(batches, y, sample_weight, start, with_targets=True)
        self._store_target_names(y)
        return self

    @available_if(merges_moments)
    @fitting_method
    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Update the fit with further rows; after the last batch it equals `fit` on all rows.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Inputs of a batch of any size, one row per sample. Of a Dask array or data frame, each
            chunk of rows is a batch.
        y : array-like of shape (n_samples,) or (n_samples, n_targets)
            Targets, one row per sample.
        sample_weight : array-like of shape (n_samples,), optional
            Frequencies of the rows: a row of weight 2 counts as two equal rows.

        Returns
        -------
        self
            The fitted estimator itself.
        """
        self._checked_settings()
        return self._add_batch(X, y, sample_weight, with_targets=True)

    @by_blocks
    @finite_output
    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Return the predictions of the network, without dropout.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Inputs, one row per sample.
        return_std : bool, default=False
            Whether to return the standard errors of the predictions too. They are those of the
            fitted mean of the targets, by the delta method for independent errors of equal
            covariance (see `lucidae.dropout.standard_errors`); the noise of single targets is not
            included. The bias of shrinkage and of a ridge penalty is not included either, and a
            rate or rank chosen by cross-validation counts as given. If the components of the fit
            are hardly separated from the next one, a warning is given.

        Returns
        -------
        y : array of shape (n_samples,) or (n_samples, n_targets)
            Predictions.
        std : array of the same shape
            Their standard errors; only if `return_std`.
        """
        check_is_fitted(self)
        X = check_rows(X, estimator=self, reset=False)
        predicted = self._predicted(X)
        if not check_flag(return_std, "return_std"):
            return predicted
        if self._trains:
            raise ValueError(
                f"return_std=True was given with solver={self.solver!r}, whose weights also depend "
                "on random numbers, so that their standard errors are not known: use "
                "solver='exact'."
            )
        state = self._state
        if isinstance(state.moment, RowMean):
            raise ValueError(
                "return_std=True was given, but the model was fitted to fewer rows than features, "
                "so that the variance of the noise of the targets cannot be estimated: standard "
                "errors need more rows than columns."
            )
        fitted = {name: state.attributes[name] for name in ("coef_", "intercept_")}
        if changed_attributes({name: getattr(self, name) for name in fitted}, fitted):
            raise ValueError(
                "return_std=True was given, but coef_ or intercept_ were changed after the fit: "
                "call fit again."
            )
        errors = fitted_value_errors(
            state.problem,
            state.alpha,
            strength=state.strength,
            width=state.width,
            centered=state.centered,
        )
        rows = host(X.toarray() if scipy.sparse.issparse(X) else X)
        found = errors.of(rows - host(state.centers()[0]))
        found = like(found[:, 0] if state.flat else found, reference_array(X))
        return predicted, found

    def _predicted(self, X: Any) -> Array:
        """Return coef_ (x − c) + (intercept_ + coef_ c) for the rows x of X and their mean c.

        Deviations from the mean lose fewer digits in the product than the rows themselves.
        """
        coef, center = self.coef_, like(self._state.centers()[0], reference_array(X))
        used = beside_rows(coef, X) if is_array(coef) else like(np.asarray(coef), self._state.ref)
        bias = like(host(self.intercept_) + host(coef) @ host(center), used)
        columns = used.mT if used.ndim == 2 else used
        if scipy.sparse.issparse(X):
            return X @ columns + (bias - center @ columns)
        return (X - center) @ columns + bias

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
            The mean R²; 1 for exact predictions.
        """
        truth = to_numpy(real_array(loaded(y), "y"))
        weights = to_numpy(sample_weight) if is_array(sample_weight) else sample_weight
        return float(r2_score(truth, to_numpy(self.predict(X)), sample_weight=weights))

    def _store_target_names(self, y: Any) -> None:
        """Store the names of the targets y, if it has any, for predictions in a data frame."""
        columns = getattr(y, "columns", None)
        given = [getattr(y, "name", None)] if columns is None else list(columns)
        if given and all(isinstance(name, str) for name in given):
            self._target_names = given
        else:
            self.__dict__.pop("_target_names", None)

    def _checked_settings(self) -> Callable[[CrossValidation], float] | None:
        """Return the rule that chooses the dropout rate or the rank; None if both are given.

        Settings that contradict each other, and a wrong ridge penalty, are errors.
        """
        check_number(self.alpha, "alpha", low=0.0, high=LARGEST_ALPHA)
        rate_rule, rank_rule = (
            SELECTIONS.get(value) if isinstance(value, str) else None
            for value in (self.dropout, self.n_components)
        )
        if check_flag(self.shrink, "shrink"):
            if rank_rule:
                raise ValueError(
                    f"n_components={self.n_components!r} was given with shrink=True, where the "
                    f"dropout rate chooses the rank: use dropout={self.n_components!r}, or "
                    "shrink=False."
                )
        elif rate_rule:
            raise ValueError(
                f"dropout={self.dropout!r} was given with shrink=False, which has no dropout: use "
                f"n_components={self.dropout!r} to choose the rank, or shrink=True."
            )
        elif checked_dropout(self.dropout) not in (0.0, DEFAULT_DROPOUT):
            raise ValueError(
                f"dropout={self.dropout!r} was given with shrink=False, which has no dropout: "
                f"leave dropout={DEFAULT_DROPOUT}, its default, or use shrink=True."
            )
        if self._trains and not self.shrink:
            raise ValueError(
                f"solver={self.solver!r} was given with shrink=False, but it trains with dropout: "
                "use solver='exact'."
            )
        return rate_rule or rank_rule

    def _network(self, n_targets: int, *, chosen: bool = False) -> tuple[float, int]:
        """Return the dropout rate, and the number of hidden units.

        If cross-validation chooses the rate or the rank (`chosen`), they are 0 and the largest
        rank.
        """
        most = min(self.n_features_in_, n_targets)
        if not self.shrink:
            others = ", 'cv', 'cv_1se' or None"
            return 0.0, most if chosen else hidden_width(self.n_components, most, others)
        dropout = 0.0 if chosen else checked_dropout(self.dropout, ", 'cv' or 'cv_1se'")
        others = " or None (with shrink=False also 'cv' or 'cv_1se')"
        return dropout, hidden_width(self.n_components, most, others)

    def _unsolved(
        self,
        moment: SecondMoment | RowMean,
        ref: Array,
        network: tuple[float, int] | None = None,
    ) -> NetworkState:
        """Return the fitted state; the optimum is computed when an attribute is read.

        `ref` has the dtype and device of X, and `network` are dropout rate and width, if
        cross-validation may have chosen them.
        """
        dropout, width = network or self._network(moment.n_features - self.n_features_in_)
        return NetworkState(
            moment=moment,
            strength=strength_of(dropout),
            width=width,
            ref=ref,
            tolerance=allowed_gap(self.tol, self._trains),
            n_features=self.n_features_in_,
            centered=check_flag(self.fit_intercept, "fit_intercept"),
            dropout=dropout,
            shrink=bool(self.shrink),
            alpha=float(self.alpha),
        )
