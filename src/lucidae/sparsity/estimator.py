"""The estimator `SparseVAE`: multi-output sparse regression on a fixed dictionary."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import scipy.sparse
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from lucidae.arrays import Array, as_double, is_array, is_complex, like, namespace, number, to_numpy
from lucidae.base import (
    CertifiedMixin,
    Fitted,
    changed_attributes,
    fitted_names,
    fitting_method,
    reference_array,
    replaced_attributes,
)
from lucidae.certificates.claims import Certificate, with_changes
from lucidae.iteration import Solution, Status, limited_blas, progress_bars
from lucidae.sparsity.claims import AGAIN
from lucidae.sparsity.covariances import checked_spectrum, correlated_attributes, solve_correlated
from lucidae.sparsity.fitted import (
    CERTIFIED_PARAMETERS,
    PreparedProblem,
    SparseData,
    SparseState,
    is_covariance,
)
from lucidae.sparsity.noise import (
    FALLBACK,
    PathTrace,
    advice_on_learning,
    coarse_trace,
    contributions,
    first_noise,
    held_out_errors,
    learn_noise,
    noise_rule,
    warn_if_collapsed,
)
from lucidae.sparsity.objectives import (
    Energy,
    EnergySlice,
    GroupCovariance,
    as_penalty,
    energy_slice,
    evaluate,
    flat_start,
    make_objective,
    prior_in_units,
)
from lucidae.sparsity.posterior import Posterior, determination, narrowed, significant_columns
from lucidae.sparsity.prior import Groups
from lucidae.sparsity.problem import Mean, Problem, dense_if_small
from lucidae.sparsity.solve import advice_on, check_suited, solve
from lucidae.sparsity.verify import HELD_OUT
from lucidae.sparsity.working_set import SolverSettings
from lucidae.validation import (
    check_argument,
    check_integer,
    check_number,
    check_rows,
    check_vector,
    has_complex,
    real_array,
    warn_user,
)

__all__ = ["SparseVAE"]

DIVERGED = (
    "The fit diverged, because rounding errors made the covariance matrix of a response "
    "indefinite; the last finite relevances are returned. Use fit_intercept=True if columns of X "
    "are far from zero, or give a larger noise_variance."
)


class SparseVAE(CertifiedMixin, MultiOutputMixin, RegressorMixin, BaseEstimator):
    """Multi-output sparse regression by a variational autoencoder with a fixed dictionary.

    The estimator finds the few columns of `X` that together explain all outputs `y`. The relevance
    of a column is the prior variance of its coefficients. The estimator minimises an energy, a
    bound on minus the log-likelihood, over the relevances of all columns. With the full posterior
    covariance, many bad local minima of the deterministic autoencoder are not local minima of the
    energy (Wipf 2023, Theorem 4.1).

    `X` and `y` may be complex, such as the snapshots of an array of antennas: coefficients and
    noise are then circular complex Gaussian variables, and relevances and the noise variance are
    the mean squares of their absolute values.

    Parameters
    ----------
    posterior : {"full", "diagonal", "point"}, default="full"
        Posterior covariance of the coefficients (the encoder's covariance): full, diagonal, or none
        ("point", the deterministic autoencoder). Names given to
        `lucidae.sparsity.register_posterior` are also accepted.
    noise_variance : float, "auto", "learn", "cv" or "cv_1se", default="auto"
        The noise variance, or how to find it. "learn" minimises the energy over the noise variance
        too. "cv" takes the mean squared error of predicting held-out rows. "cv_1se" takes the
        largest noise variance at which this error is within one standard error of its smallest
        value, which gives fewer columns. "auto" means "learn" if there are at most half as many
        columns as rows. Otherwise it multiplies the noise variance of "cv" by
        ``4 - 1.5 * n_samples / n_features`` (but takes at most the mean square of `y`), because
        errors of the dictionary are predicted, too, by further columns. For a single row it takes
        0.1 times the mean square of `y`.
    solver : {"auto", "mm", "em", "mackay", "coordinate"}, default="auto"
        How the energy of the full posterior is minimised: by majorise–minimise (MM),
        expectation–maximisation (EM) or MacKay's updates, or one relevance at a time
        ("coordinate"). The other posteriors have one update each ("mm").
    groups : int or array-like of int of shape (n_features,), optional
        Group label of each column, or the number of consecutive columns in each group (such as 3
        for sources with three orientations). Columns of a group are selected together.
    group_covariance : {"spherical", "full"}, default="spherical"
        Prior covariance of the coefficients of a group. "spherical": the columns of a group share
        one relevance. "full": each group has a covariance matrix of its own, any positive
        semi-definite one, so that results do not depend on the choice of axes inside a group. It
        needs `groups` and the full posterior.
    significance : float, default=0.05
        Family-wise significance level of the test that decides which columns are in ``support_``:
        the probability that any irrelevant column is included.
    fit_intercept : bool, default=True
        Whether to centre columns and outputs. This is accurate even if means are far from zero.
    verbose : bool or "auto", default="auto"
        Whether the progress of a fit of more than two seconds is shown. With ``"auto"`` it is if
        standard error is a terminal or belongs to a notebook: as a bar, or as the elapsed time
        where the length is not known. True also prints lines to a file or a pipe, and False shows
        nothing.

    Other Parameters
    ----------------
    penalty : {"log", "power", "arctan"} or object, default="log"
        Concave penalty of the point estimate: a name, or an object with the methods ``value`` and
        ``supergradient``.
    cv : int, splitter or iterable, optional
        Folds over rows for ``noise_variance="cv"`` and ``"cv_1se"``; five by default, ten for one
        or two outputs.
    response_covariance : None, "learn" or array of shape (n_outputs, n_outputs), default=None
        Covariance B of the coefficients over the outputs: those of a column with relevance w have
        the prior N(0, wB), with white noise. None means independent outputs, B = I. "learn" is for
        outputs in the order of time: B is that of an autoregressive model of order one, with the
        entries ρ^|s−t|, and ρ is learned with the relevances (Zhang & Rao 2011). A given matrix is
        divided by its mean diagonal entry. It needs ``posterior="full"``, real data, two outputs or
        more, and ``solver="auto"``. Cross-validation of the noise variance assumes B = I.
    max_iter : int, default=1000
        Largest number of iterations.
    tol : float, default=1e-6
        Distance to the optimality (KKT) conditions at which to stop, a dimensionless number. The
        energy is a data term plus a term that does not depend on `y`. For a column with relevance
        w, let −Q and z be the derivatives of these two terms in w. For the full and the diagonal
        posterior the distance is the largest of w|Q − z| and (Q − z)/z over all columns. For the
        point estimate it is the relative distance to the fixed point of its update.
    random_state : int, RandomState or None, default=None
        Seed with which the distinct rows are shuffled among the folds of ``noise_variance="cv"``,
        if `cv` is an integer or None; nothing else is random. None uses the seed 0, so that two
        fits agree. Splitters given as `cv` have their own random state.
    warm_start : bool, default=False
        Whether a further `fit` starts from the relevances of the last one. The noise variance is
        found as usual. If the number of columns or the groups have changed, `fit` warns and starts
        from the default relevances.
    n_jobs : int or None, default=None
        Number of folds of ``noise_variance="cv"`` that are fitted at a time, by joblib. None means
        1, unless `fit` is called inside of a `joblib.parallel_config` context; -1 means all
        processors. With ``joblib.parallel_config("dask")`` the folds are fitted by the workers of
        a Dask cluster.

    Attributes
    ----------
    coef_ : ndarray of shape (n_outputs, n_features) or (n_features,)
        Posterior mean of the coefficients.
    intercept_ : ndarray of shape (n_outputs,) or float
        Intercept, zero without `fit_intercept`. `predict` is more accurate than
        ``X @ coef_.T + intercept_`` if columns are far from zero.
    relevance_ : ndarray of shape (n_features,)
        The optimal relevances: prior variances of the coefficients of each column (w_x² in Wipf
        2023), zero for columns that are not used. With ``group_covariance="full"`` they are the
        diagonals of ``group_covariances_``.
    group_covariances_ : ndarray of shape (n_groups, m, m)
        Only with ``group_covariance="full"``: the prior covariance of the coefficients of each
        group, in float64. Groups are in the order of their labels, columns of a group in ascending
        order, and groups of fewer than m columns are padded with zeros. For nearly dependent
        columns their entries are large and cancel: energies and certificates are computed from
        square roots that the estimator keeps, because the rounded entries do not contain them.
    support_ : ndarray of int
        Indices of the columns whose relevance is statistically significant, in ascending order.
    noise_variance_ : float
        The noise variance that was given or found; with `noise_cov`, the factor of this covariance.
        After "auto" with more than half as many columns as rows it is up to four times the error of
        held-out rows, and no estimate of the noise. Fit with "cv" for an estimate.
    noise_variances_ : ndarray of shape (n_samples,)
        Noise variance of each row: ``noise_variance_`` times the diagonal of `noise_cov`. Only
        after a fit with `noise_cov`.
    energy_ : float
        Energy at the fitted relevances and noise variance, summed over the outputs. With the full
        posterior covariance it is minus twice the log-likelihood of real outputs, and minus the
        log-likelihood of complex outputs, up to a constant. With `noise_cov` it includes the
        log-determinant of this covariance (on its range).
    history_ : History
        Energy divided by the number of outputs, in each iteration.
    n_iter_ : int
        Number of iterations.
    status_ : Status
        How the iteration ended.
    certificate_ : Certificate
        Claims about the fit (optimality, posterior mean, support, uniqueness), each with a verdict.
    response_covariance_ : ndarray of shape (n_outputs, n_outputs)
        The covariance B over the outputs; only with `response_covariance`.
    n_features_in_ : int
        Number of columns of `X`.

    References
    ----------
    Wipf 2023, Marginalization is not marginal: no bad VAE local minima when learning optimal
    sparse representations.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((50, 100))
    >>> y = X[:, [3, 41]] @ rng.standard_normal((2, 10)) + 0.1 * rng.standard_normal((50, 10))
    >>> model = SparseVAE().fit(X, y)
    >>> model.support_
    array([ 3, 41])
    >>> model.certificate_["stationarity"].holds
    True
    """

    coef_ = Fitted()
    intercept_ = Fitted()
    relevance_ = Fitted()
    group_covariances_ = Fitted()
    support_ = Fitted()
    noise_variance_ = Fitted()
    noise_variances_ = Fitted()
    energy_ = Fitted()
    history_ = Fitted()
    n_iter_ = Fitted()
    status_ = Fitted()
    response_covariance_ = Fitted()

    _state: SparseState

    def __init__(
        self,
        *,
        posterior: str = "full",
        noise_variance: float | str = "auto",
        solver: str = "auto",
        groups: Any = None,
        group_covariance: str = "spherical",
        penalty: Any = "log",
        cv: Any = None,
        response_covariance: Any = None,
        significance: float = 0.05,
        fit_intercept: bool = True,
        max_iter: int = 1000,
        tol: float = 1e-6,
        random_state: Any = None,
        warm_start: bool = False,
        n_jobs: int | None = None,
        verbose: bool | str = "auto",
    ) -> None:
        self.posterior = posterior
        self.noise_variance = noise_variance
        self.solver = solver
        self.groups = groups
        self.group_covariance = group_covariance
        self.penalty = penalty
        self.cv = cv
        self.response_covariance = response_covariance
        self.significance = significance
        self.fit_intercept = fit_intercept
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state
        self.warm_start = warm_start
        self.n_jobs = n_jobs
        self.verbose = verbose

    @fitting_method
    def fit(self, X: Any, y: Any, sample_weight: Any = None, noise_cov: Any = None) -> Self:
        """Find the relevant columns of `X` for all outputs `y`.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            The dictionary, whose columns are the candidate regressors. A SciPy sparse matrix or
            array is centred implicitly and never made dense; only the columns that are used are.
            NumPy solves the problem of torch and CuPy arrays, too, on the CPU; fitted attributes
            are then arrays of their library on their device.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            The responses.
        sample_weight : array-like of shape (n_samples,), optional
            Frequencies of the rows: weight 2 is the same as giving the row twice. If weights are
            given, `noise_cov` must not be a matrix, but one variance for each row.
        noise_cov : array-like of shape (n_samples, n_samples) or (n_samples,), optional
            Covariance R of the noise of the rows, or its diagonal if their noise is independent.
            The noise has covariance ``noise_variance_`` times R, so give ``noise_variance=1`` if R
            is an estimate of the noise itself. X, y and the intercept's column of ones are whitened
            by R (generalised least squares), and the folds of ``noise_variance="cv"`` are folds of
            whitened rows. If R is singular, only what lies in its range is fitted, and the
            certificate says so. Functions that select rows, such as `GridSearchCV`, can split
            variances but not a covariance matrix.

        Returns
        -------
        SparseVAE
            The fitted estimator itself.
        """
        return self._fit_on(X, y, sample_weight, noise_cov)

    def _fit_on(
        self, X: Any, y: Any, sample_weight: Any, noise_cov: Any, start: Array | None = None,
        trace: PathTrace | None = None, zeros: bool = False,
    ) -> Self:  # fmt: skip
        """Check the data and fit to them, from a solution of `noise_path` with its path if given.

        Responses that are all zero are refused, unless `zeros`.
        """
        # 1) Check data and parameters. NumPy solves the problem wherever the arrays are.
        data, posed = self._posed(X, y, sample_weight, noise_cov, zeros)
        objective, n_columns = posed.objective, posed.problem.dictionary.shape[-1]
        with limited_blas(len(data.y)):
            # 2) How the noise variance is found.
            wanted, spectrum = self.response_covariance, None
            n_rows = len(posed.rows.weights)
            rule = noise_rule(self.noise_variance, objective, n_rows, n_columns)
            if wanted is not None:
                spectrum = checked_spectrum(
                    wanted, posed.rows, objective, self.posterior, self.solver
                )
            # 3) The noise variance, and a path above it that shows how stable the columns are.
            error, units, problem = None, posed.units, posed.problem
            if rule in HELD_OUT:
                held_out = held_out_errors(self, posed, "path of noise variances")
                noise, error = held_out.found(rule, n_rows, n_columns)
            else:
                noise = FALLBACK * posed.rows.mean_square() if isinstance(rule, str) else rule
            at = problem.with_noise(noise, units)
            if rule in HELD_OUT and wanted is None:
                trace = coarse_trace(at, objective, noise)
            # 4) The relevances of lowest energy, with the noise variance if it is learned.
            solution: Any
            bar = progress_bars("SparseVAE, minimising the energy", self.verbose)
            settings = SolverSettings(self.solver, self.tol, self.max_iter, bar)
            begin = start
            if start is None and self.warm_start and self.__sklearn_is_fitted__():
                begin = self._last_fit(posed)
            if spectrum is not None:
                learn = rule == "learn"
                at = problem.with_noise(first_noise(problem)) if learn else at
                solution = solve_correlated(at, objective, spectrum, learn, settings, begin)
            elif rule == "learn":
                solution = learn_noise(problem, objective, settings, begin)
            else:
                solution = solve(at, objective, settings, begin)
            # 5) The posterior of the coefficients and the fitted attributes.
            single = (y.ndim if hasattr(y, "ndim") else np.asarray(y).ndim) == 1
            state = self._fitted_state(solution, posed, data, single)
            if error is not None:  # predictions have the noise that held-out rows have shown
                state.noise_level *= error / state.results["noise_variance_"]
            if trace is not None:
                level, found = state.results["noise_variance_"], solution.value
                state.stability = trace.stability(level, *contributions(found, objective))
            state.noise_rule = rule if isinstance(rule, str) else "given"
            state.parameters = {name: getattr(self, name) for name in CERTIFIED_PARAMETERS}
            state.parameters |= {
                "groups": None if self.groups is None else Groups.of(self.groups, n_columns).labels,
                "response_covariance": wanted
                if spectrum is None or isinstance(wanted, str)
                else spectrum.covariance,
                "noise_cov": noise_cov is not None,
            }
            state.refer(data, type(self).__name__)
        if is_array(X) and not isinstance(X, np.ndarray):
            state.move_beside(X)
        self._state = state
        if rule == "learn":
            warn_if_collapsed(solution)
        if solution.status is not Status.CONVERGED:
            advice = advice_on_learning(solution) if rule == "learn" else advice_on(solution)
            diverged = solution.status is Status.DIVERGED
            warn_user(DIVERGED if diverged else advice, ConvergenceWarning)
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Predict the outputs of rows, and on request the standard deviation of each prediction.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            New rows of the dictionary.
        return_std : bool, default=False
            Whether to return the predictive standard deviation, noise included. If the noise
            variance was found on held-out rows, this noise is their smallest mean squared error,
            not ``noise_variance_``, which "auto" and "cv_1se" enlarge. After a fit with
            `noise_cov`, it has the mean of the noise variances of the training rows.

        Returns
        -------
        y : ndarray of shape (n_samples,) or (n_samples, n_outputs)
            Predicted outputs.
        std : ndarray of shape (n_samples,) or (n_samples, n_outputs)
            Predictive standard deviation, which all outputs share unless `response_covariance` was
            given. Returned only if `return_std`.
        """
        check_is_fitted(self)
        coef = to_numpy(self.coef_)
        if has_complex(X) and not is_complex(coef):
            raise ValueError(
                "X is complex, but the estimator was fitted to real data: give real rows."
            )
        X = dense_if_small(check_rows(X, estimator=self, reset=False, accept_complex=True))
        ref, rows = reference_array(X), to_numpy(X) if is_array(X) else X
        coef, flat = as_double(coef), coef.ndim == 1
        with np.errstate(all="ignore"):  # what overflows is refused below
            mean = self._state.predicted(rows, np.atleast_2d(coef), self.intercept_)
        mean = narrowed(mean[:, 0] if flat else mean, ref, "the prediction")
        if not return_std:
            return mean
        with np.errstate(all="ignore"):
            noise = self.noise_variance_ * self._state.noise_level
            spread = np.sqrt(self._state.variances(rows) + noise)
        return mean, narrowed(spread, ref, "the standard deviation")

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the coefficient of determination R² of the predictions, averaged over outputs.

        For complex outputs, squares are those of absolute values.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows of the dictionary.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Their true outputs.
        sample_weight : array-like of shape (n_samples,), optional
            Weights of the rows.

        Returns
        -------
        float
            R²: 1 for exact predictions, 0 if they are no better than the mean of each output.
        """
        check_is_fitted(self)
        if not is_complex(np.asarray(to_numpy(self.coef_))):
            return float(super().score(X, real_array(y, "y"), sample_weight))
        data = SparseData.of(self, X, y, sample_weight, None, reset=False)
        predicted = to_numpy(self.predict(X)).reshape(data.y.shape)
        weights = np.ones(len(data.y)) if data.weights is None else data.weights
        return determination(data.y, predicted, weights)

    def posterior_covariance(self, indices: Any) -> Any:
        """Return the posterior covariance of the coefficients of some columns.

        Parameters
        ----------
        indices : array-like of int of shape (m,)
            Indices of the columns of `X`.

        Returns
        -------
        ndarray of shape (m, m) or (n_outputs, m, m)
            Posterior covariance of one output's coefficients. It is the same for all outputs unless
            `response_covariance` was given; then there is one for each.
        """
        check_is_fitted(self)
        wanted = np.asarray(indices)
        inside = wanted.dtype.kind in "iu" and wanted.ndim == 1 and wanted.size
        if not inside or wanted.min() < 0 or wanted.max() >= self.n_features_in_:
            raise ValueError(
                f"indices={indices!r} was given, expected a list of integers in "
                f"[0, {self.n_features_in_ - 1}]."
            )
        return self._state.posterior.covariance(wanted)

    def energy(
        self, relevance: Any, X: Any = None, y: Any = None, sample_weight: Any = None,
        noise_cov: Any = None,
    ) -> float:  # fmt: skip
        """Return the energy (loss) at other relevances, with the fitted noise variance.

        Parameters
        ----------
        relevance : array-like of shape (n_features,)
            Relevances (prior variances) of the columns, equal within groups.
        X, y, sample_weight, noise_cov : optional
            The data, as `fit` takes them; by default those of the fit, which an estimator keeps
            until it is saved or pickled.

        Returns
        -------
        float
            Energy summed over the outputs, as ``energy_`` is.
        """
        posed, problem = self._fitted_problem(X, y, sample_weight, noise_cov)
        columns = problem.dictionary.shape[-1]
        given = check_vector(relevance, "relevance")
        if given.shape != (columns,) or not (given >= 0).all():
            raise ValueError(
                f"relevance has shape {given.shape} and the smallest entry "
                f"{given.min(initial=np.inf):.3g}, expected {columns} numbers, none negative."
            )
        groups = posed.objective.groups
        if groups is not None and not _constant_in(groups, given):
            raise ValueError(
                "relevance has different entries for columns of one group, expected equal ones."
            )
        state = evaluate(problem, given / posed.units.relevance)
        return float(posed.objective.in_units(posed.objective.value(state), posed.units))

    def energy_slice(
        self, j: int, X: Any = None, y: Any = None, sample_weight: Any = None,
        noise_cov: Any = None,
    ) -> EnergySlice:  # fmt: skip
        """Return the energies of the three posteriors along the relevance of one column.

        All other relevances and the noise variance have their fitted values. Along one relevance
        the energy of the full posterior covariance has a single minimum (Wipf 2023, Theorem 4.4);
        the others may have several.

        Parameters
        ----------
        j : int
            Index of the column. If it belongs to a group, the relevance of the group is varied.
        X, y, sample_weight, noise_cov : optional
            The data, as `fit` takes them; by default those of the fit, which an estimator keeps
            until it is saved or pickled.

        Returns
        -------
        EnergySlice
            Relevances and energies, with a method ``plot``.
        """
        posed, problem = self._fitted_problem(X, y, sample_weight, noise_cov)
        column, columns = check_integer(j, "j", low=0), problem.dictionary.shape[-1]
        if column >= columns:
            raise ValueError(f"j={j} was given, expected an index of one of {columns} columns.")
        relevance = like(self.relevance_, problem.noise) / posed.units.relevance
        penalty, groups = as_penalty(self._settings()["penalty"]), posed.objective.groups
        return energy_slice(problem, posed.units, relevance, column, penalty, groups)

    def _fitted_problem(
        self, X: Any, y: Any, sample_weight: Any, noise_cov: Any
    ) -> tuple[PreparedProblem, Problem]:
        """Return the problem of given or stored data, and it at the fitted noise variance."""
        check_is_fitted(self)
        settings = self._settings()
        if settings["response_covariance"] is not None or settings["group_covariance"] == "full":
            raise ValueError(
                "energies as functions of relevances need independent outputs, and columns or "
                "groups with one relevance each: fit with response_covariance=None and "
                "group_covariance='spherical'."
            )
        if X is not None or y is not None:
            data = SparseData.of(self, X, y, sample_weight, noise_cov, reset=False)
        elif self._state.data is None:
            raise ValueError(
                "the data of the fit are not stored (they are large, or the estimator was loaded), "
                "or X or y have been changed in place since: give X and y."
            )
        else:
            data = self._state.data
        objective = make_objective(settings, data.X.shape[1])
        posed = PreparedProblem.of(data, objective, bool(settings["fit_intercept"]))
        return posed, posed.problem.with_noise(self.noise_variance_, posed.units)

    def _settings(self) -> dict[str, Any]:
        """Return the parameters on which the certificate depends: those of the fit."""
        now = {name: getattr(self, name) for name in CERTIFIED_PARAMETERS}
        return now | self._state.parameters

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    @property
    def certificate_(self) -> Certificate:
        """Certificate of the fit; it has a failed claim if fitted attributes were changed since."""
        found = super().certificate_
        changed = self._state.changed_attributes(replaced_attributes(self))
        return with_changes(found, changed, AGAIN)

    def _checked_objective(self, n_columns: int) -> Energy:
        """Check the parameters that do not depend on data; return the energy to minimise."""
        for name in ("fit_intercept", "warm_start", "verbose", "n_jobs", "random_state"):
            check_argument(getattr(self, name), name)
        check_number(self.significance, "significance", low=0.0, high=1.0, open_low=True)
        check_number(self.tol, "tol", low=0.0)
        check_integer(self.max_iter, "max_iter", low=1)
        objective = make_objective(vars(self), n_columns)
        check_suited(self.solver, objective)
        return objective

    def _posed(
        self, X: Any, y: Any, sample_weight: Any, noise_cov: Any, zeros: bool = False
    ) -> tuple[SparseData, PreparedProblem]:
        """Check data and parameters; return the data and their canonical problem.

        Responses that are all zero are refused, unless `zeros`.
        """
        data = SparseData.of(self, X, y, sample_weight, noise_cov)
        objective = self._checked_objective(data.X.shape[1])
        correlated = self.response_covariance is not None
        for name, used in (
            ("noise_cov", data.noise_cov is not None),
            ("group_covariance='full'", isinstance(objective, GroupCovariance)),
        ):
            if used and scipy.sparse.issparse(data.X):
                raise ValueError(
                    f"{name} was given with a sparse X, but needs a dense one: give X.toarray() if "
                    "it fits into memory."
                )
            if used and correlated:
                raise ValueError(
                    f"{name} and response_covariance were both given, but can be used only one at "
                    "a time: leave one of them out."
                )
        with limited_blas(len(data.y)):
            posed = PreparedProblem.of(data, objective, bool(self.fit_intercept), not correlated)
        if zeros or posed.rows.mean_square() > 0.0:
            return data, posed
        if self.fit_intercept and len(data.y) == 1:
            raise ValueError(
                "X and y have 1 sample, which fit_intercept=True removes with the mean, so that "
                "there is nothing to explain: give more rows, or set fit_intercept=False."
            )
        if posed.given.mean_square() > 0.0:
            raise ValueError(
                "y is zero (or constant, with fit_intercept=True) on the range of noise_cov, so "
                "that there is nothing to explain: give a noise_cov of higher rank, or responses "
                "that vary on its range."
            )
        raise ValueError(
            "y is zero (or constant, with fit_intercept=True), so that there is nothing to explain "
            "and no noise to learn. Give responses that vary."
        )

    def _last_fit(self, posed: PreparedProblem) -> Array | None:
        """Return the relevances (or group covariances) of the last fit, normalised, to start at.

        None, with a warning, if they do not suit the new columns or groups.
        """
        problem, units, groups = posed.problem, posed.units, posed.objective.groups
        full = isinstance(posed.objective, GroupCovariance)
        if full and groups is not None and hasattr(self, "group_covariances_"):
            covariances = to_numpy(self.group_covariances_)
            last: Any = self._state.parameters.get("groups")
            same = np.array_equal(last, groups.labels)
            if same and is_covariance(covariances):
                return covariances / to_numpy(units.relevance)[groups.members[:, :1, None]]
        relevance = to_numpy(self.relevance_)
        if not (np.isfinite(relevance).all() and (relevance >= 0).all()):
            reason = "relevance_ has entries that are negative or not finite"
        elif relevance.size != problem.dictionary.shape[-1]:
            columns = problem.dictionary.shape[-1]
            reason = f"the last fit had {relevance.size} columns, this one has {columns}"
        elif groups is not None and not full and not _constant_in(groups, relevance):
            reason = "the relevances of the last fit differ within the groups of this one"
        else:
            xp = namespace(problem.noise)
            start = like(relevance, problem.noise) / units.relevance
            return xp.where(flat_start(problem, groups) > 0, start, 0.0 * start)
        warn_user(
            f"warm_start=True was given, but {reason}: the fit starts from the default relevances "
            "(prior variances)."
        )
        return None

    def _fitted_state(
        self, solution: Solution[Any], posed: PreparedProblem, data: SparseData, single: bool
    ) -> SparseState:
        """Return the fitted state, with arrays in the dtype of the dictionary."""
        rows, units, ref = posed.rows, posed.units, np.empty(0, dtype=data.X.dtype)
        posterior: Any
        if self.response_covariance is not None:
            results, posterior, estimate = correlated_attributes(
                solution.value, posed.objective, units, rows, ref, self.significance
            )
        else:
            # Everything is computed from the relevances as they are stored. Variances along
            # principal axes are not rounded: it would change small eigenvalues.
            state = solution.value
            objective, relevance = posed.objective, units.relevance * state.relevance
            axes = getattr(state, "axes", None)
            if axes is None:
                relevance = narrowed(relevance, ref, "relevance_", state.relevance)
                if relevance.dtype != state.relevance.dtype:
                    state = evaluate(state.problem, as_double(relevance) / units.relevance)
            noise = float(units.noise * state.noise)
            posterior, estimate = Posterior.fitted(
                *rows.weighted, as_double(relevance), noise, axes
            )
            significant = significant_columns(state, rows, self.significance, objective)
            results = {
                "relevance_": relevance,
                "noise_variance_": noise,
                "support_": np.flatnonzero(significant),
                "energy_": float(objective.in_units(objective.value(state), units)),
            }
            if axes is not None:
                shared, results["group_covariances_"] = prior_in_units(state, units)
                results["relevance_"] = narrowed(shared, ref, "relevance_")
        coef = narrowed(estimate, ref, "coef_", abs(estimate) * units.norms[:, None])
        kept = as_double(coef)
        center, mean = rows.offsets
        if rows.origin is not None:  # means were removed before, and after the rows were whitened
            pairs = zip(rows.origin, rows.offsets, strict=True)
            center, mean = (Mean(a.rounded, a.rest + b.rounded + b.rest) for a, b in pairs)
        level = mean.rounded + mean.rest
        intercept = level - kept.mT @ center.rounded - kept.mT @ center.rest
        results |= {
            "coef_": coef[:, 0] if single else coef.mT,
            "intercept_": number(intercept[0])
            if single
            else narrowed(intercept, ref, "intercept_"),
            "history_": solution.history,
            "n_iter_": max(1, solution.n_iter),
            "status_": solution.status,
        }
        found = SparseState(results, posterior, center.rounded, center.rest, level)
        if data.noise_cov is not None:
            cov = data.noise_cov
            variances = cov if cov.ndim == 1 else np.diagonal(cov).real
            results["noise_variances_"] = results["noise_variance_"] * variances
            found.noise_level = float(np.average(variances, weights=data.weights))
        return found

    def _certify_on(
        self, X: Any, y: Any = None, sample_weight: Any = None, noise_cov: Any = None
    ) -> Certificate:
        """Certify the current attributes on given data, with the parameters of the fit."""
        check_is_fitted(self)
        if y is None:
            raise ValueError(
                f"y is missing: to certify a {type(self).__name__} on other data, give X and y; "
                "for the data of the fit, give neither."
            )
        data = SparseData.of(self, X, y, sample_weight, noise_cov, reset=False)
        outputs = np.shape(to_numpy(self.coef_))[0] if np.ndim(to_numpy(self.coef_)) == 2 else 1
        if data.y.shape[1] != outputs:
            raise ValueError(
                f"y has {data.y.shape[1]} outputs, but the estimator was fitted to {outputs}: "
                "give y with as many outputs."
            )
        settings = self._settings()
        if "noise_variances_" in self._state.results and noise_cov is None:
            raise ValueError(
                "The estimator was fitted with noise_cov: give the noise_cov of these rows too."
            )
        names = fitted_names(type(self)) & self._state.results.keys()  # type: ignore[arg-type]
        attributes = {name: getattr(self, name) for name in names}
        # No claim depends on the noise variances of the training rows, but they may be changed.
        shown = {name: attributes.pop(name) for name in ("noise_variances_",) if name in attributes}
        found = self._state.judged(attributes, data, type(self).__name__, settings)
        return with_changes(found, changed_attributes(shown, self._state.results), AGAIN)


def _constant_in(groups: Groups, relevance: Any) -> bool:
    """Return whether all columns of each group have the same relevance."""
    shared = groups.expand(groups.gather(relevance)[:, 0])
    return bool(np.allclose(shared, relevance, rtol=1e-6, atol=0.0))
