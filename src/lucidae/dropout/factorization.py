"""Matrix factorisation with dropout on the factors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import scipy.sparse
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from lucidae.arrays import Array, as_double, beside, like, machine_epsilon, namespace, to_numpy
from lucidae.base import Fitted, checked_codes, fitting_method, reference_array
from lucidae.certificates.claims import Certificate
from lucidae.dropout.claims import certificate_of, completion_claims
from lucidae.dropout.completion import (
    ABSENT,
    Completion,
    ObservedEntries,
    complete,
    cross_validate_entries,
    marked,
    observed_codes,
)
from lucidae.dropout.network import (
    NetworkMixin,
    TrainedNetwork,
    WeightsState,
    allowed_gap,
    finite_output,
    representable,
    sgd_settings,
    train,
)
from lucidae.dropout.path import SELECTIONS
from lucidae.dropout.problem import DropoutObjective, LinearProblem, Weights, Whitened, host
from lucidae.dropout.sgd import GaussianSource
from lucidae.dropout.solvers import (
    ExactSolution,
    equalized_factors,
    hidden_width,
    product_svd,
    solve,
)
from lucidae.dropout.theory import checked_dropout, code_map, is_auto, strength_of
from lucidae.dropout.verify import Judged
from lucidae.dropout.verify_completion import ZERO, measure_completion
from lucidae.rows.operator import TrainingRows
from lucidae.validation import (
    check_choice,
    check_integer,
    check_number,
    check_rows,
    check_weights,
    warn_user,
)


@dataclass(eq=False, kw_only=True)
class FactorsState(WeightsState):
    """Fitted state of `DropoutFactorization`: the factors, but not the matrix."""

    completed: bool  # whether entries of the matrix were missing

    def compute_attributes(self) -> dict[str, Any]:
        """Return the fitted attributes (such as ``left_`` and ``rank_``) by name."""
        return super().compute_attributes() | {"dropout_": self.dropout, "cv_": self.cv}

    def judge(
        self, data: tuple[Any, Any], judged: Judged, shown: dict[str, Any], title: str
    ) -> Certificate:
        """Return the certificate of factors and attributes for a matrix X and weights of rows."""
        X, weights = data
        if self.completed:
            expected = (len(judged.left), len(judged.right))
            if tuple(X.shape) != expected:
                raise ValueError(
                    f"X has the shape {tuple(X.shape)}, expected {expected}: give the matrix to "
                    "which the model was fitted."
                )
            figures = measure_completion(X, judged, shown, weights)
            return Certificate(title, completion_claims(figures, judged), figures.evidence)
        matrix = host(check_rows(X, accept_sparse=False, name="matrix"))
        if weights is not None and len(judged.left) == len(matrix):
            roots = np.sqrt(host(weights))[:, None]
            matrix, judged = matrix * roots, judged._replace(left=judged.left * roots)
        return certificate_of(matrix, judged, title=title, attributes=shown)


HANDLE_MISSING = ("error", "complete")
"""What `DropoutFactorization` does with missing entries: refuse them, or complete the matrix."""


class DropoutFactorization(
    NetworkMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator
):
    """Factorise a matrix as M ≈ U Vᵀ with dropout on the columns of the factors, exactly.

    Minimises E‖M − U diag(b) Vᵀ/θ‖², where the random mask b keeps each column with probability θ =
    1 − dropout. This expectation is ‖M − UVᵀ‖² + λΣ‖uᵢ‖²‖vᵢ‖² with λ = dropout/(1 − dropout) and
    the columns uᵢ and vᵢ of U and V. Its minimum is computed from one singular value decomposition
    (Mianjy et al. 2018, Algorithm 3), or approached by stochastic gradient descent (Algorithm 1).
    Rows are not centred.

    With ``handle_missing="complete"`` entries of M may be missing. The loss is then
    ‖P_Ω(M − UVᵀ)‖² + λΣ‖uᵢ‖²‖vᵢ‖², where P_Ω selects the observed entries. The smallest penalty of
    a product X = UVᵀ is (λ/r)‖X‖∗², with the nuclear norm of X, so that the problem is convex in X
    as long as r is not smaller than the rank of its solution. It is solved iteratively, and the
    certificate bounds the distance to the minimum by a duality gap. This is not the expectation of
    dropout on the observed entries alone, whose penalty is a sum over the observed entries and for
    which no optimum is known; see ``docs/completion.md``.

    Parameters
    ----------
    n_components : int or None, default=None
        Number r of columns of the factors; None means the number of features.
    dropout : float, "cv" or "cv_1se", default=0.5
        Probability of dropping a column, in [0, 1); 0 gives the truncated singular value
        decomposition, and is not allowed if entries are missing. "cv" tries rates from the largest
        one on and takes the one with the smallest mean squared error on held-out entries, "cv_1se"
        the largest one whose error is within one standard error of the smallest.
    solver : {"exact", "sgd"}, default="exact"
        ``"exact"`` computes the minimum; ``"sgd"`` trains the network x ↦ U Vᵀx with dropout on
        examples y = Mx with Gaussian inputs x of identity covariance, whose expected loss is the
        one above (SGD, Mianjy et al. 2018, Algorithm 1). It needs a matrix without missing entries.
    handle_missing : {"error", "complete"}, default="error"
        ``"error"`` refuses missing entries in `fit` and `transform`; ``"complete"`` allows them in
        both. A matrix in which nothing is missing gives the same factors in both cases.
    missing_values : nan or "absent", default=nan
        What marks a missing entry if ``handle_missing="complete"``. With NaN, the entries that a
        sparse matrix does not store are zeros, as everywhere in scikit-learn, and the matrix is
        converted to a dense one. With ``"absent"`` they are missing, as in a table of ratings; the
        stored entries, also stored zeros, are observed, and no dense matrix is formed.

    Other Parameters
    ----------------
    cv : int, splitter or iterable, default=5
        Folds of ``dropout="cv"``, as in scikit-learn, but of observed entries, numbered row by
        row. For a number of folds the entries are shuffled with a fixed seed.
    tol : float or "auto", default="auto"
        The iteration for a matrix with missing entries ends when the duality gap is at most `tol`
        times the sum of squares of the observed entries; SGD ends when the norm of the gradient of
        the expected loss is at most tol · 2‖M‖ ‖(U, V)‖. "auto" means 1e-6, and 1e-2 for SGD. The
        certificate allows a gap of `tol`, but at least of 1e-6 and at most of 0.02.
    max_iter : int or "auto", default="auto"
        Largest number of Newton steps of this iteration, or of steps of SGD. "auto" means 500, and
        5000 for SGD.
    learning_rate, schedule, batch_size, random_state
        Settings of SGD, as in `DropoutRegressor`.

    Attributes
    ----------
    left_ : array of shape (n_samples, r)
        The factor U: codes of the training rows, which are optimal for V, also if V was trained.
    right_ : array of shape (n_features, r)
        The factor V: one column per component.
    n_components_ : int
        Number r of columns of the factors.
    rank_ : int
        Rank of the optimal product U Vᵀ.
    threshold_ : float
        Amount by which dropout reduces each singular value of M.
    singular_values_ : array
        Leading singular values of M, before they are reduced. If entries are missing, these are
        the first ``rank_`` singular values of M with the missing entries filled in by U Vᵀ.
    objective_ : float
        The loss of the factors.
    dropout_ : float
        Probability of dropping a column, given or chosen by cross-validation.
    cv_ : CrossValidation or None
        Errors on held-out entries by which `dropout_` was chosen; None if `dropout` was given as a
        number.
    n_iter_, status_, history_
        Number of steps (1 for the closed form), `lucidae.iteration.Status` at the end, and recorded
        losses of the solver.
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

    Missing entries:

    >>> M[1, 2] = np.nan
    >>> model = DropoutFactorization(2, dropout=0.01, handle_missing="complete").fit(M)
    >>> bool(abs(model.inverse_transform(model.transform(M))[1, 2] - 3.0) < 0.1)
    True
    """

    dropout_ = Fitted()
    cv_ = Fitted()

    def __init__(
        self,
        n_components: int | None = None,
        *,
        dropout: float | str = 0.5,
        solver: str = "exact",
        handle_missing: str = "error",
        missing_values: float | str = np.nan,
        cv: Any = 5,
        tol: float | str = "auto",
        max_iter: int | str = "auto",
        learning_rate: float | str = "auto",
        schedule: str = "linear",
        batch_size: int = 32,
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.dropout = dropout
        self.solver = solver
        self.handle_missing = handle_missing
        self.missing_values = missing_values
        self.cv = cv
        self.tol = tol
        self.max_iter = max_iter
        self.learning_rate = learning_rate
        self.schedule = schedule
        self.batch_size = batch_size
        self.random_state = random_state

    @fitting_method
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:  # noqa: ARG002
        """Factorise a matrix M as U Vᵀ.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            The matrix M. Missing entries and sparse matrices are accepted only with
            ``handle_missing="complete"``.
        y : None
            Ignored.
        sample_weight : array-like of shape (n_samples,), optional
            Frequencies of the rows: a row of weight 2 counts as two equal rows.

        Returns
        -------
        self
            The fitted estimator itself.
        """
        rule, settings = self._checked_settings()
        X = self._validated(X, reset=True)
        weights = check_weights(sample_weight, X)
        width = hidden_width(self.n_components, X.shape[1])
        rows = marked(X, self.missing_values)
        whole = not scipy.sparse.issparse(rows) and not np.isnan(rows).any()
        dropout, cv = self.dropout, None
        starts: dict[float, Completion] = {}
        if rule is not None or not whole:
            observed = ObservedEntries.of(rows)
            whole = observed.complete
            roots = None if weights is None else np.sqrt(to_numpy(weights))
        if rule is not None:
            with observed.limited_threads():
                cv, starts = cross_validate_entries(observed, width, self.cv, roots)
            dropout = rule(cv)
        dropout = checked_dropout(dropout)
        if whole:
            if scipy.sparse.issparse(X):
                X = np.asarray(rows.toarray() if scipy.sparse.issparse(rows) else rows)
            state = self._factored(X, weights, width, dropout, settings)
            state.rows = TrainingRows.referenced(X, weights, type(self).__name__)
        else:
            ref, start = reference_array(X), starts.get(dropout)
            with observed.limited_threads():
                state = self._completed(observed, roots, width, dropout, settings, ref, start)
            X = rows  # judged at once, because its copy would be as large as the factors
        state.cv = cv
        if state.rows is None:
            title = type(self).__name__
            state._certificate = state.judged_on((X, weights), state.attributes, title)
        self._state = state
        return self

    def _factored(
        self, X: Array, weights: Array | None, width: int, dropout: float, settings: dict[str, Any]
    ) -> FactorsState:
        """Return the fitted state for a matrix without missing entries.

        The rows of the factor U are the codes of the rows of X, without their weights.
        """
        strength, rows, ref = strength_of(dropout), as_double(X), reference_array(X)
        roots = None if weights is None else like(namespace(weights).sqrt(weights), rows)
        problem = LinearProblem.from_matrix(rows if roots is None else rows * roots[:, None])
        if self._trains:
            white, source = Whitened(problem.cross, None, 0.0), GaussianSource(problem.cross)
            found, _ = train(self, settings, source, white, strength, width)
            right = found.weights.right
        else:
            # Of the transposed matrix, so that the signs depend on V, which weights do not scale.
            optimum = solve(replace(problem, cross=problem.cross.mT), strength, width)
            found, (right, left) = TrainedNetwork(optimum.weights, optimum), optimum.weights
        right = like(representable(right, ref, "right_"), rows)
        if self._trains or roots is not None:
            left = rows @ code_map(right, strength)
        left = like(representable(left, ref, "left_"), rows)
        representable(found.optimum.singular_values, ref, "singular_values_")
        scaled = Weights(left if roots is None else left * roots[:, None], right)
        value = float(DropoutObjective(problem, strength).value(scaled))
        return FactorsState(
            trained=found._replace(weights=Weights(left, right)),
            objective=value,
            strength=strength,
            ref=ref,
            tolerance=allowed_gap(settings["tolerance"], self._trains),
            completed=False,
            dropout=dropout,
        )

    def _completed(
        self,
        observed: ObservedEntries,
        roots: Any,
        width: int,
        dropout: float,
        settings: dict[str, Any],
        ref: Array,
        start: Completion | None,
    ) -> FactorsState:
        """Return the fitted state for a matrix with missing entries, solved from `start`.

        V is rounded to the dtype of `ref`. The rows of U are the codes that `transform` computes
        with this V from the observed entries.
        """
        strength = strength_of(dropout)
        if not observed.count:
            raise ValueError("X has no observed entry: all entries are missing.")
        if self._trains:
            raise ValueError(
                "solver='sgd' was given, but entries of X are missing: use solver='exact'."
            )
        if strength == 0.0:
            raise ValueError(
                "dropout=0 was given, but entries of X are missing: without dropout there is no "
                "penalty, and the completed matrix is not determined. Give a positive dropout."
            )
        weighted = observed if roots is None else observed.weighted(roots)
        tol, limit = settings["tolerance"], settings["limit"]
        solution = complete(weighted, strength, width, start=start, tolerance=tol, limit=limit)
        if not solution.status.ok:
            warn_user(solution.advice, ConvergenceWarning)
        found = solution.value
        _, V = equalized_factors(found.left, found.values, found.right, width)
        V = host(representable(V, ref, "right_"))
        U = host(representable(observed_codes(observed, V, strength), ref, "left_"))
        scale = np.ones(observed.shape[0]) if roots is None else roots
        scaled = U * scale[:, None]
        values = product_svd(scaled, V)[1]
        level = max(ZERO, 64 * machine_epsilon(ref))
        rank = int(np.count_nonzero(values > level * values.max(initial=0.0)))
        missed = (observed.values - observed.product(U, V)) * scale[observed.rows]
        penalty = float(np.sum(scaled * scaled, axis=0) @ np.sum(V * V, axis=0))
        threshold, weights = strength / width * float(values.sum()), Weights(U, V)
        value = float(missed @ missed) + strength * penalty
        filled = ExactSolution(weights, rank, threshold, values[:rank] + threshold, value, 0.0)
        ended = max(solution.n_iter, 1), solution.status, solution.history
        return FactorsState(
            trained=TrainedNetwork(weights, filled, *ended),
            strength=strength,
            ref=ref,
            tolerance=allowed_gap(tol, True),
            completed=True,
            dropout=dropout,
        )

    def _checked_settings(self) -> tuple[Any, dict[str, Any]]:
        """Return the rule that chooses `dropout`, if it is no number, and the other settings."""
        tol, max_iter = (1e-2, 5000) if self._trains else (1e-6, 500)
        if not is_auto(self.tol):
            others = " or 'auto'"
            tol = check_number(self.tol, "tol", low=0.0, open_low=True, others=others)
        if not is_auto(self.max_iter):
            max_iter = check_integer(self.max_iter, "max_iter", low=1, others=" or 'auto'")
        settings = sgd_settings(self, tol=tol, max_iter=max_iter)
        if isinstance(self.dropout, str) and self.dropout in SELECTIONS:
            return SELECTIONS[self.dropout], settings
        checked_dropout(self.dropout, ", 'cv' or 'cv_1se'")
        return None, settings

    @property
    def _completes(self) -> bool:
        return check_choice(self.handle_missing, "handle_missing", HANDLE_MISSING) == "complete"

    def _validated(self, X: Any, *, reset: bool) -> Any:
        """Return a validated matrix; missing entries are an error unless they are allowed.

        If `reset`, the number of features is stored; otherwise it is compared with the stored one.
        """
        if not self._completes and scipy.sparse.issparse(X):
            raise ValueError(
                "a sparse X was given, but handle_missing='error' needs a dense one. If the "
                "entries that X does not store are missing, as in a table of ratings, use "
                "handle_missing='complete' and missing_values='absent'; if they are zeros, "
                "give X.toarray()."
            )
        X = check_rows(X, estimator=self, reset=reset, finite=self._completes and "allow-nan")
        if not self._completes and not bool(namespace(X).all(namespace(X).isfinite(X))):
            raise ValueError(
                "X contains NaN or infinity. If entries are missing, use handle_missing='complete'."
            )
        return X

    def fit_transform(self, X: Any, y: Any = None, sample_weight: Any = None) -> Array:  # noqa: ARG002
        """Factorise a matrix M as U Vᵀ and return U, the codes of its rows.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            The matrix M.
        y : None
            Ignored.
        sample_weight : array-like of shape (n_samples,), optional
            Frequencies of the rows.

        Returns
        -------
        array of shape (n_samples, r)
            The r codes of each row, the rows of U.
        """
        return self.fit(X, sample_weight=sample_weight).left_

    @finite_output
    def transform(self, X: Any) -> Array:
        """Return the codes of rows that minimise the loss for the fitted V.

        V is ``right_``, with the columns vᵢ. The code of a row m is m V(VᵀV + λ diag‖vᵢ‖²)⁻¹ with λ
        = dropout/(1 − dropout). For a row with missing entries, V and m are restricted to the
        observed ones, apart from the norms ‖vᵢ‖; a row without any has the code 0. The codes of
        the training rows equal ``left_``.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            The data, one row per sample.

        Returns
        -------
        array of shape (n_samples, r)
            The r codes of each row.
        """
        check_is_fitted(self)
        X, strength = self._validated(X, reset=False), self._state.strength
        if self._completes:
            rows = marked(X, self.missing_values)
            observed = ObservedEntries.of(rows)
            if not observed.complete:
                if strength == 0.0:
                    raise ValueError(
                        "X has missing entries, but the model was fitted with dropout=0: the codes "
                        "of incomplete rows need a positive dropout."
                    )
                right = np.asarray(host(self.right_), dtype=float)
                found = observed_codes(observed, right, strength)
                return like(found, beside(self.right_, reference_array(X)))
            X = rows.toarray() if scipy.sparse.issparse(rows) else X
        rows = as_double(X)
        codes = code_map(beside(as_double(self.right_), rows), strength)
        return like(rows @ codes, X)

    @finite_output
    def inverse_transform(self, X: Any) -> Array:
        """Return the rows that codes represent: V times each code, V being ``right_``.

        Parameters
        ----------
        X : array-like of shape (n_samples, r)
            Codes, as `transform` returns them.

        Returns
        -------
        array of shape (n_samples, n_features)
            The row of the matrix that belongs to each row of codes.
        """
        check_is_fitted(self)
        codes = checked_codes(X, self.right_.shape[1])
        return codes @ beside(self.right_, codes).mT

    @property
    def _n_features_out(self) -> int:
        return int(self.right_.shape[1])

    def _certify_on(self, X: Any, _y: Any, sample_weight: Any = None) -> Certificate:
        """Return the certificate of the factors on a given matrix, for `lucidae.certify`."""
        check_is_fitted(self)
        if self._state.completed:
            X = marked(check_rows(X, finite="allow-nan"), self.missing_values)
        else:
            X = check_rows(X, accept_sparse=False, name="matrix")
        return self._certificate_on((X, check_weights(sample_weight, X)))

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        completes = self.handle_missing == "complete"
        tags.input_tags.sparse = completes
        tags.input_tags.allow_nan = completes and self.missing_values != ABSENT
        return tags
