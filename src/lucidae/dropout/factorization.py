"""Matrix factorisation with dropout on the factors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import scipy.sparse
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from lucidae.arrays import Array, as_double, beside, like, machine_epsilon, namespace, to_numpy
from lucidae.base import (
    Fitted,
    FittedState,
    checked_codes,
    reference_array,
    restored_on_failure,
    validated_rows,
)
from lucidae.certificates.claims import Certificate, undecided
from lucidae.dropout.claims import (
    CERTIFIED,
    LARGEST_GAP,
    Context,
    certificate_of,
    check_shapes,
    completion_claims,
    given_matrix,
)
from lucidae.dropout.completion import (
    ABSENT,
    Completion,
    ObservedEntries,
    check_missing_values,
    complete,
    cross_validate_entries,
    marked,
    observed_codes,
)
from lucidae.dropout.equalize import equalized_factors, product_svd
from lucidae.dropout.network import (
    WeightsMixin,
    finite_output,
    hidden_width,
    representable,
    shown,
    weights_of,
)
from lucidae.dropout.path import SELECTIONS, CrossValidation
from lucidae.dropout.problem import DropoutObjective, LinearProblem, Weights, host
from lucidae.dropout.solvers import ExactSolution, solve
from lucidae.dropout.theory import checked_dropout, code_map, dropout_of, strength_of
from lucidae.dropout.verify import FittedArrays, GivenMatrix, Judged
from lucidae.dropout.verify_completion import ZERO, measure_completion
from lucidae.iteration.progress import timed_fit
from lucidae.rows.operator import CHANGED_ROWS, TrainingRows
from lucidae.validation import (
    check_choice,
    check_integer,
    check_number,
    check_rows,
    check_weights,
    warn_user,
)


class FactorsState(FittedState):
    """What the fitted states of `DropoutFactorization` share: factors, but not the matrix."""

    ref: Array  # an empty array of the library, dtype and device in which attributes are returned
    strength: float  # strength λ = dropout / (1 − dropout) of dropout
    dropout: float | None  # probability of dropping a column; None in files of earlier versions
    cv: CrossValidation | None  # errors on held-out entries by which it was chosen; None if given
    rows: TrainingRows | None = None  # the matrix, until the certificate was computed; not saved

    @property
    @abstractmethod
    def found(self) -> tuple[Weights, int, float, Array, float, int]:
        """Factors, rank, threshold, singular values, loss and number of steps."""

    @property
    def keeps_certificate(self) -> bool:
        """Whether the certificate is saved: always, because the matrix is not stored."""
        return True

    def compute_attributes(self) -> dict[str, Any]:
        """Return the fitted attributes (such as ``left_`` and ``rank_``) by name."""
        weights, rank, threshold, singular_values, value, n_iter = self.found
        return {
            "left_": shown(weights.left, self.ref),
            "right_": shown(weights.right, self.ref),
            "rank_": rank,
            "threshold_": threshold,
            "singular_values_": shown(singular_values, self.ref),
            "objective_": value,
            "n_components_": int(weights.right.shape[1]),
            "dropout_": dropout_of(self.strength) if self.dropout is None else self.dropout,
            "cv_": self.cv,
            "n_iter_": n_iter,
        }

    def fitted_arrays(self, attributes: Mapping[str, Any]) -> FittedArrays:
        """Return the attributes that the certificate computes again from factors and matrix."""
        return FittedArrays(
            float(attributes["objective_"]),
            int(attributes["rank_"]),
            float(attributes["threshold_"]),
            host(attributes["singular_values_"]),
            settings=(
                (float(attributes["n_components_"]), float(attributes["right_"].shape[1])),
                (float(attributes["dropout_"]), dropout_of(self.strength)),
            ),
            precision=machine_epsilon(self.ref),
        )

    def compute_certificate(self, title: str) -> Certificate:
        """Return the certificate of the factors; `title` is its heading."""
        rows, found = self.rows, self._certificate
        if found is not None:  # by another thread
            return found
        if rows is None:
            raise ValueError(
                "no certificate was computed by fit: call lucidae.certify(estimator, X)."
            )
        if rows.unchanged:
            found = self.judged(rows.rows, rows.weights, self.compute_attributes(), title)
        else:
            claim = undecided("optimum", "the fitted factors are optimal", "", CHANGED_ROWS)
            found = Certificate(title, (claim,))
        self._certificate, self.rows = found, None
        return found

    def __getstate__(self) -> dict[str, Any]:
        if self.rows is not None:
            self.certificate(self.rows.title)
        return super().__getstate__()

    @abstractmethod
    def judged(
        self, X: Any, weights: Any, attributes: Mapping[str, Any], title: str
    ) -> Certificate:
        """Return the certificate of the factors among attributes for a matrix X."""


@dataclass(eq=False)
class FactorizationState(FactorsState):
    """Fitted state of `DropoutFactorization` if no entry was missing."""

    solution: ExactSolution  # the factors U and V, rounded to the dtype of the matrix
    strength: float
    ref: Array
    dropout: float | None = None
    cv: CrossValidation | None = None

    @classmethod
    def of(
        cls,
        X: Array,
        weights: Array | None,
        width: int,
        dropout: float,
        cv: CrossValidation | None,
        title: str,
    ) -> FactorizationState:
        """Return the fitted state for a matrix X without missing entries, from its singular values.

        The rows of the factor U are the codes of the rows of X, without their weights.
        """
        strength, rows, ref = strength_of(dropout), as_double(X), reference_array(X)
        roots = None if weights is None else like(namespace(weights).sqrt(weights), rows)
        problem = LinearProblem.from_matrix(rows if roots is None else rows * roots[:, None])
        # Of the transposed matrix, so that the signs depend on V alone, which weights do not scale.
        solution = solve(replace(problem, cross=problem.cross.mT), strength, width)
        right, left = solution.weights
        right = like(representable(right, ref, "right_"), rows)
        left = left if roots is None else rows @ code_map(right, strength)
        left = like(representable(left, ref, "left_"), rows)
        representable(solution.singular_values, ref, "singular_values_")
        scaled = Weights(left if roots is None else left * roots[:, None], right)
        value = float(DropoutObjective(problem, strength).value(scaled))
        solution = replace(solution, weights=Weights(left, right), value=value)
        state = cls(solution, strength, ref, dropout, cv)
        state.rows = TrainingRows.referenced(X, weights, title)
        if state.rows is None:
            state._certificate = state.judged(X, weights, state.attributes, title)
        return state

    @property
    def found(self) -> tuple[Weights, int, float, Array, float, int]:
        """Factors, rank, threshold, singular values, loss and number of steps."""
        known = self.solution
        return known.weights, known.rank, known.threshold, known.singular_values, known.value, 1

    def judged(
        self, X: Any, weights: Any, attributes: Mapping[str, Any], title: str
    ) -> Certificate:
        """Return the certificate of the factors among attributes for a matrix X."""
        left, right = (host(part) for part in weights_of(attributes))
        matrix, factors = given_matrix(X), Judged(left, right, self.strength)
        check_shapes(matrix, factors)
        if weights is not None:
            roots = np.sqrt(np.asarray(to_numpy(weights), dtype=float))[:, None]
            matrix = GivenMatrix(matrix.matrix * roots)
            factors = factors._replace(left=left * roots)
        fitted, context = self.fitted_arrays(attributes), Context(exact=True)
        return certificate_of([matrix], factors, title=title, fitted=fitted, context=context)


@dataclass(eq=False)
class CompletionState(FactorsState):
    """Fitted state of `DropoutFactorization` if entries of the matrix were missing."""

    weights: Weights  # the factors U and V, rounded to the dtype of the matrix
    rank: int  # ``rank_``, ``threshold_``, ``singular_values_`` and ``objective_`` of these factors
    threshold: float
    singular_values: Array
    value: float
    n_iter: int  # number of Newton steps
    # largest duality gap that the certificate allows, relative to the sum of squares of the
    # observed entries
    tolerance: float
    strength: float
    dropout: float
    ref: Array
    cv: CrossValidation | None = None

    @classmethod
    def of(
        cls,
        completed: Completion,
        entries: ObservedEntries,
        roots: Array | None,
        width: int,
        *,
        strength: float,
        ref: Array,
        **settings: Any,
    ) -> CompletionState:
        """Return the fitted state of a completed matrix: factors U and V, columns of equal norm.

        V, with `width` columns, is rounded to the dtype of `ref`. The rows of U are the codes that
        `transform` computes with this V from the observed entries.
        """
        _, V = equalized_factors(completed.left, completed.values, completed.right, width)
        V = host(representable(V, ref, "right_"))
        U = host(representable(observed_codes(entries, V, strength), ref, "left_"))
        scale = np.ones(entries.shape[0]) if roots is None else roots
        scaled = U * scale[:, None]
        values = product_svd(scaled, V)[1]
        level = max(ZERO, 64 * machine_epsilon(ref))
        rank = int(np.count_nonzero(values > level * values.max(initial=0.0)))
        missed = (entries.values - entries.product(U, V)) * scale[entries.rows]
        penalty = float(np.sum(scaled * scaled, axis=0) @ np.sum(V * V, axis=0))
        threshold = strength / width * float(values.sum())
        kept = representable(values[:rank] + threshold, ref, "singular_values_")
        value = float(missed @ missed) + strength * penalty
        found = (Weights(U, V), rank, threshold, kept, value)
        return cls(*found, strength=strength, ref=ref, **settings)

    @property
    def found(self) -> tuple[Weights, int, float, Array, float, int]:
        """Factors, rank, threshold, singular values, loss and number of steps."""
        known = (self.weights, self.rank, self.threshold, self.singular_values)
        return *known, self.value, self.n_iter

    def judged(
        self, X: Any, weights: Any, attributes: Mapping[str, Any], title: str
    ) -> Certificate:
        """Return the certificate of the factors among attributes for a matrix X."""
        left, right = (host(part) for part in weights_of(attributes))
        fitted, expected = self.fitted_arrays(attributes), (len(left), len(right))
        if tuple(X.shape) != expected:
            raise ValueError(
                f"X has the shape {tuple(X.shape)}, expected {expected}: give the matrix to which "
                "the model was fitted."
            )
        figures = measure_completion(
            X, left, right, self.strength, sample_weight=weights, fitted=fitted
        )
        claims = completion_claims(figures, self.tolerance)
        return Certificate(title, claims, figures.evidence)


HANDLE_MISSING = ("error", "complete")
"""What `DropoutFactorization` does with missing entries: refuse them, or complete the matrix."""


class DropoutFactorization(
    WeightsMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator
):
    """Factorise a matrix as M ≈ U Vᵀ with dropout on the columns of the factors, exactly.

    Minimises E‖M − U diag(b) Vᵀ/θ‖², where the random mask b keeps each column with probability θ =
    1 − dropout. This expectation is ‖M − UVᵀ‖² + λΣ‖uᵢ‖²‖vᵢ‖² with λ = dropout/(1 − dropout) and
    the columns uᵢ and vᵢ of U and V. Its minimum is computed from one singular value decomposition
    (Mianjy et al. 2018, Algorithm 3). Rows are not centred.

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
    tol : float, default=1e-6
        The iteration for a matrix with missing entries ends when the duality gap is at most `tol`
        times the sum of squares of the observed entries. The certificate allows this gap, but at
        least 1e-6 and at most 0.02.
    max_iter : int, default=500
        Largest number of Newton steps of this iteration.

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
        Leading singular values of M, before they are reduced. If entries are missing, these are
        the first ``rank_`` singular values of M with the missing entries filled in by U Vᵀ.
    objective_ : float
        The minimum of the loss.
    dropout_ : float
        Probability of dropping a column, given or chosen by cross-validation.
    cv_ : CrossValidation or None
        Errors on held-out entries by which `dropout_` was chosen; None if `dropout` was given as a
        number.
    n_iter_ : int
        Number of Newton steps; 1 if nothing is missing.
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
        handle_missing: str = "error",
        missing_values: float | str = np.nan,
        cv: Any = 5,
        tol: float = 1e-6,
        max_iter: int = 500,
    ) -> None:
        self.n_components = n_components
        self.dropout = dropout
        self.handle_missing = handle_missing
        self.missing_values = missing_values
        self.cv = cv
        self.tol = tol
        self.max_iter = max_iter

    @restored_on_failure
    @timed_fit
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
        rule = self._checked_settings()
        X = self._validated(X, reset=True)
        weights = check_weights(sample_weight, X)
        width = hidden_width(self.n_components, X.shape[1])
        rows, title = self._marked(X), type(self).__name__
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
            self._state = FactorizationState.of(X, weights, width, dropout, cv, title)
        else:
            ref, start = reference_array(X), starts.get(dropout)
            with observed.limited_threads():
                self._state = self._completed(rows, observed, roots, width, dropout, cv, ref, start)
        return self

    def _completed(
        self,
        rows: Any,
        observed: ObservedEntries,
        roots: Any,
        width: int,
        dropout: float,
        cv: CrossValidation | None,
        ref: Array,
        start: Completion | None,
    ) -> CompletionState:
        """Return the fitted state for a matrix with missing entries, solved from `start`."""
        strength, title = strength_of(dropout), type(self).__name__
        if not observed.count:
            raise ValueError("X has no observed entry: all entries are missing.")
        if strength == 0.0:
            raise ValueError(
                "dropout=0 was given, but entries of X are missing: without dropout there is no "
                "penalty, and the completed matrix is not determined. Give a positive dropout."
            )
        weighted = observed if roots is None else observed.weighted(roots)
        solution = complete(
            weighted, strength, width, start=start, tolerance=self.tol, limit=self.max_iter
        )
        if not solution.status.ok:
            warn_user(solution.advice, ConvergenceWarning)
        state = CompletionState.of(
            solution.value,
            observed,
            roots,
            width,
            strength=strength,
            ref=ref,
            n_iter=max(solution.n_iter, 1),
            tolerance=min(max(self.tol, CERTIFIED), LARGEST_GAP),
            dropout=dropout,
            cv=cv,
        )
        weights = None if roots is None else roots * roots
        state._certificate = state.judged(rows, weights, state.attributes, title)
        return state

    def _checked_settings(self) -> Any:
        """Return the rule that chooses `dropout`; None if it is a number. Check all parameters."""
        check_choice(self.handle_missing, "handle_missing", HANDLE_MISSING)
        check_missing_values(self.missing_values)
        check_number(self.tol, "tol", low=0.0, open_low=True)
        check_integer(self.max_iter, "max_iter", low=1)
        if isinstance(self.dropout, str) and self.dropout in SELECTIONS:
            return SELECTIONS[self.dropout]
        checked_dropout(self.dropout, ", 'cv' or 'cv_1se'")
        return None

    @property
    def _completes(self) -> bool:
        return check_choice(self.handle_missing, "handle_missing", HANDLE_MISSING) == "complete"

    def _validated(self, X: Any, *, reset: bool) -> Any:
        """Return a validated matrix; missing entries are an error unless they are allowed.

        If `reset`, the number of features is stored; otherwise it is compared with the stored one.
        """
        if not self._completes:
            if scipy.sparse.issparse(X):
                raise ValueError(
                    "a sparse X was given, but handle_missing='error' needs a dense one. If the "
                    "entries that X does not store are missing, as in a table of ratings, use "
                    "handle_missing='complete' and missing_values='absent'; if they are zeros, "
                    "give X.toarray()."
                )
            return self._complete(validated_rows(self, X, reset=reset, finite=False))
        return validated_rows(self, X, reset=reset, accept_sparse=True, finite=False)

    @staticmethod
    def _complete(X: Any) -> Any:
        """Return validated rows, or raise an error if they contain NaN or infinity."""
        xp = namespace(X)
        if not bool(xp.all(xp.isfinite(X))):
            unknown = bool(xp.any(xp.isnan(X)))
            raise ValueError(
                f"X contains {'NaN' if unknown else 'infinity'}. "
                + ("If entries are missing, use handle_missing='complete'." if unknown
                   else "Give finite numbers.")
            )  # fmt: skip
        return X

    def _marked(self, X: Any) -> Any:
        """Return a validated matrix in main memory: sparse, or dense with NaN where missing."""
        return marked(X, absent=check_missing_values(self.missing_values))

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
            rows = self._marked(X)
            observed = ObservedEntries.of(rows)
            if not observed.complete:
                if strength == 0.0:
                    raise ValueError(
                        "X has missing entries, but the model was fitted with dropout=0: the codes "
                        "of incomplete rows need a positive dropout."
                    )
                right = np.asarray(host(self.right_), dtype=float)
                found = observed_codes(observed, right, strength)
                return finite_output(like(found, beside(self.right_, reference_array(X))), "codes")
            X = rows.toarray() if scipy.sparse.issparse(rows) else X
        rows = as_double(X)
        codes = code_map(beside(as_double(self.right_), rows), strength)
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
            The row of the matrix that belongs to each row of codes.
        """
        check_is_fitted(self)
        codes = checked_codes(X, self.right_.shape[1])
        with np.errstate(over="ignore", invalid="ignore"):
            return finite_output(codes @ beside(self.right_, codes).mT, "rows")

    @property
    def _n_features_out(self) -> int:
        return int(self.right_.shape[1])

    def _certify_on(self, X: Any, _y: Any, sample_weight: Any = None) -> Certificate:
        """Return the certificate of the factors on a given matrix, for `lucidae.certify`."""
        check_is_fitted(self)
        state, attributes, title = self._state, self._attributes_now(), type(self).__name__
        if isinstance(state, CompletionState):
            X = self._marked(check_rows(X, finite=False))
        else:
            X = check_rows(X, accept_sparse=False, name="matrix")
        found: Certificate = state.judged(X, check_weights(sample_weight, X), attributes, title)
        return found

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        completes = self.handle_missing == "complete"
        tags.input_tags.sparse = completes
        tags.input_tags.allow_nan = completes and self.missing_values != ABSENT
        return tags
