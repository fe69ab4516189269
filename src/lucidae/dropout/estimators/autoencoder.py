"""The linear autoencoder that dropout training converges to."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import scipy.sparse
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import Tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from lucidae.arrays import Array, beside, like, machine_epsilon, scalar, trace
from lucidae.base import (
    Fitted,
    checked_codes,
    reference_array,
    restored_on_failure,
    validated_rows,
)
from lucidae.certificate import Certificate
from lucidae.data import by_blocks, in_memory
from lucidae.dropout.batches import BlockProblem, loaded_or_problem
from lucidae.dropout.certificate import check_problem
from lucidae.dropout.estimators.blocks import AutoencoderBatchesMixin
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
from lucidae.dropout.figures import ReportedAttributes
from lucidae.dropout.moments import principal_problem
from lucidae.dropout.objectives import DropoutObjective, LinearProblem, Weights, second_about
from lucidae.dropout.reduction import host
from lucidae.dropout.solvers import assemble
from lucidae.dropout.theory import strength_of
from lucidae.io.models import saved_as
from lucidae.moments import SecondMoment
from lucidae.validation import check_rows, check_weights


@saved_as(
    "lucidae.dropout.autoencoder.fitted/2",
    formerly=(
        "lucidae.dropout.estimators._autoencoding:Autoencoding",
        "lucidae.dropout.autoencoder.fitted/1",
    ),
    upgrade=upgraded_network,
)
@dataclass(eq=False)
class AutoencoderState(NetworkState):
    """Fitted state of `DropoutAutoencoder`."""

    @property
    def problem(self) -> LinearProblem:
        """The problem whose target is the input."""
        return LinearProblem.autoencoder(self.moment)

    def centers(self) -> tuple[Array, Array]:
        """Return the mean of the rows, as inputs and as outputs."""
        return self.moment.mean, self.moment.mean

    def solve(self) -> TrainedNetwork:
        """Return the exact optimum."""
        white, triple = principal_problem(self.problem.inputs)
        return exact_network(assemble(white, triple, self.strength, self.width))

    def compute_attributes(self) -> dict[str, Any]:
        """Return the fitted attributes by name."""
        return super().compute_attributes() | {
            "mean_": representable(self.moment.mean, self.ref, "mean_", factor=False),
            "n_components_": self.width,
        }

    def reported(self, attributes: Mapping[str, Any], moment: SecondMoment) -> ReportedAttributes:
        """Return the attributes that the certificate compares with data of the given moment."""
        found = super().reported(attributes, moment)
        mean, center, offset = map(host, (attributes["mean_"], moment.center, moment.offset))
        if mean.shape != center.shape:
            raise ValueError(f"mean_ has shape {mean.shape}, expected {center.shape}.")
        rounding = found.precision * np.abs(mean)
        return found._replace(
            mean_shift=np.clip(np.abs((mean - center) - offset) - rounding, 0.0, None),
            settings=((float(attributes["n_components_"]), float(self.width)),),
        )

    def remainder(self, mean: Any, subtracted: Array) -> np.ndarray[Any, Any]:
        """Return the mean of the rows minus `subtracted`, the mean in the dtype of new rows.

        The stored mean has more digits than its attribute `mean_`. They are used if the attribute
        is the rounded mean; if a user has assigned another value, that value is the mean.
        """
        mean, done = host(mean), host(subtracted)
        center, offset = host(self.moment.center), host(self.moment.offset)
        difference = (mean - center) - offset
        fitted = np.abs(difference) <= machine_epsilon(self.ref) * np.abs(mean)
        return np.where(fitted, (center - done) + offset, mean - done)


@saved_as(
    "lucidae.DropoutAutoencoder/1",
    formerly="lucidae.dropout.estimators._autoencoder:DropoutAutoencoder",
    upgrade=upgraded_sgd_estimator,
)
class DropoutAutoencoder(
    AutoencoderBatchesMixin,
    NetworkMixin,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
    BaseEstimator,
):
    """Linear autoencoder with dropout in its hidden layer, solved exactly.

    The target is the input itself. At the optimum the reconstruction lies in the span of the
    leading principal components, whose standard deviations are all reduced by the same threshold,
    and all hidden units have equal importance, so that dropping any one of them has the same effect
    (Mianjy et al. 2018, Theorem 3.6, for inputs of any covariance).

    Parameters
    ----------
    n_components : int or None, default=None
        Number r of hidden units; it may exceed the number of features. None: the number of
        features.
    dropout : float, default=0.5
        Probability of dropping a hidden unit, in [0, 1); 0 spans the principal subspace.
    solver : {"exact", "sgd"}, default="exact"
        The closed form, or stochastic gradient descent (Mianjy et al. 2018, Algorithm 1).
    learning_rate, schedule, batch_size, max_iter, random_state
        Settings of SGD, as in `DropoutRegressor`.
    tol : float, default=1e-2
        Relative norm of the expected gradient at which SGD stops, as in `DropoutRegressor`. The
        exact solver does not use it. The certificate of SGD allows a gap of `tol` to the optimum,
        but at most 0.02.
    warm_start : bool, default=False
        Whether SGD starts from the weights of the last fit, exact or by SGD, instead of random
        ones. If their shapes do not fit, it warns and starts from random weights.
    verbose : bool, default=False
        Whether SGD shows its progress, if it takes longer than two seconds.

    Attributes
    ----------
    mean_ : array of shape (n_features,)
        Mean of the rows.
    left_ : array of shape (n_features, r)
        U, the decoder.
    right_ : array of shape (n_features, r)
        V, the encoder.
    n_components_ : int
        Number r of hidden units.
    rank_ : int
        Rank of the optimal product U Vᵀ.
    threshold_ : float
        Amount by which dropout reduces each principal standard deviation.
    singular_values_ : array
        Standard deviations along the leading principal components.
    objective_ : float
        Expected dropout loss of the weights, mean over rows.
    n_iter_, status_, history_
        How the solver ended.
    certificate_ : Certificate
        Claims about the fit: gap to the global optimum, equalization, rank, stationarity.
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

    _state: AutoencoderState

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
        warm_start: bool = False,
        verbose: bool = False,
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
        self.warm_start = warm_start
        self.verbose = verbose

    @restored_on_failure
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:  # noqa: ARG002
        """Fit to all rows at once.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Rows. Files, memory maps, iterables of batches and Dask collections are read in
            blocks: see `lucidae.data.row_blocks`.
        y : None
            Ignored.
        sample_weight : array-like of shape (n_samples,), optional
            Frequencies of the rows.

        Returns
        -------
        self
        """
        solver, settings = self._chosen_solver, SgdSettings.of(self)
        if not (in_memory(X, rows_drawn=solver.needs_rows) and in_memory(sample_weight)):
            return self.fit_batches(X, sample_weight)
        X = validated_rows(self, X, reset=True)
        weights = check_weights(sample_weight, X)
        state = self._unsolved(SecondMoment.of(X, weights), reference_array(X))
        if solver.needs_rows:
            state.train(X, X, weights, settings)
        state.row_objective = state.measured_on(X, X, weights, centered=True)
        self._keep(state)
        return self

    @available_if(merges_moments)
    @restored_on_failure
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
        SgdSettings.of(self)  # refuses wrong settings, which this solver does not use
        first = not self.__sklearn_is_fitted__()
        X = validated_rows(self, X, reset=first)
        moment, ref = SecondMoment.of(X, check_weights(sample_weight, X)), reference_array(X)
        if not first:
            seen = self._state
            moment, ref = seen.moment.merge(moment), seen.ref
        self._state = self._unsolved(moment, ref)
        return self

    @by_blocks
    def transform(self, X: Any) -> Array:
        """Return the codes Vᵀ(x − mean) of rows x.

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
        rest = like(self._state.remainder(self.mean_, mean), encoder)
        with np.errstate(over="ignore", invalid="ignore"):
            # Sparse rows are centred after the product, so that they stay sparse.
            sparse = scipy.sparse.issparse(X)
            codes = X @ encoder - mean @ encoder if sparse else (X - mean) @ encoder
            return finite_output(codes - rest @ encoder, "codes")

    @by_blocks
    def inverse_transform(self, X: Any) -> Array:
        """Return the rows that the network reconstructs from codes: U code + mean.

        Parameters
        ----------
        X : array-like of shape (n_samples, r)
            Codes.

        Returns
        -------
        array of shape (n_samples, n_features)
        """
        check_is_fitted(self)
        codes = checked_codes(X, self.left_.shape[1])
        with np.errstate(over="ignore", invalid="ignore"):
            rows = codes @ beside(self.left_, codes).mT + beside(self.mean_, codes)
        return finite_output(rows, "rows")

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
        X = validated_rows(self, X, reset=False) if in_memory(X) else X
        moment = SecondMoment.of(X)
        with np.errstate(over="ignore", invalid="ignore"):
            second = second_about(moment, like(self.mean_, moment.mean))
            problem = LinearProblem(second, second, scalar(trace(second)))
            weights = Weights(like(self.left_, second), like(self.right_, second))
            loss = scalar(DropoutObjective(problem, 0.0).loss(weights))
        if not math.isfinite(loss) or not math.isfinite(problem.energy):
            raise ValueError(
                "the squares of X overflow double precision. Give X in the units of the rows that "
                "were fitted."
            )
        return 1.0 - loss / problem.energy if problem.energy > 0 else 1.0

    @property
    def _n_features_out(self) -> int:
        return int(self.left_.shape[1])

    def _unsolved(self, moment: SecondMoment, ref: Array) -> AutoencoderState:
        """Return the state of a fit whose optimum is computed when it is first read."""
        width = hidden_width(self.n_components, moment.n_features)
        strength = strength_of(self.dropout)
        tolerance = self._chosen_solver.allowed_gap(self.tol)
        return AutoencoderState(moment, strength, width, ref, tolerance, None)

    def _certify_on(self, X: Any, _y: Any, sample_weight: Any = None) -> Certificate:
        """Return the certificate of the fitted weights on given rows."""
        check_is_fitted(self)
        if not (in_memory(X) and in_memory(sample_weight)):
            found = loaded_or_problem(X, None, sample_weight, centered=True)
            if isinstance(found, BlockProblem):
                return self._certificate_on_blocks(found)
            X, _, sample_weight = found
        state, X, attributes = self._state, check_rows(X), self._attributes_now()
        weights = check_weights(sample_weight, X)
        moment = SecondMoment.of(X, weights)
        problem = LinearProblem.autoencoder(moment)
        check_problem(problem, weights_of(attributes))
        rows = state.measured_on(X, X, weights, centered=True, attributes=attributes)
        return state.certificate_on(problem, moment, type(self).__name__, attributes, rows)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags
