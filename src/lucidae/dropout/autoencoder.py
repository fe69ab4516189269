"""The linear autoencoder that dropout training converges to."""

from __future__ import annotations

from typing import Any, Self

import scipy.sparse
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from lucidae.arrays import Array, beside, like, namespace
from lucidae.base import Fitted, checked_codes, fitting_method, reference_array
from lucidae.dropout.network import (
    NetworkMixin,
    NetworkState,
    allowed_gap,
    beside_rows,
    finite_output,
    merges_moments,
    sgd_settings,
)
from lucidae.dropout.problem import RowMean, host
from lucidae.dropout.solvers import hidden_width
from lucidae.dropout.theory import strength_of
from lucidae.moments import SecondMoment
from lucidae.rows.kinds import in_memory
from lucidae.rows.operator import STORED_FEATURES, MomentRows, RowOperator
from lucidae.rows.passes import ReadTwiceMixin, by_blocks, check_start, given_moment
from lucidae.spectrum import scatter_is_cheapest
from lucidae.validation import check_rows, check_weights


class DropoutAutoencoder(
    ReadTwiceMixin,
    NetworkMixin,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
    BaseEstimator,
):
    """Linear autoencoder with dropout in its hidden layer, solved exactly.

    The network x ↦ mean + U Vᵀ(x − mean), with the incoming weights V and the outgoing weights U of
    its hidden units, reconstructs its input. At the optimum the reconstruction lies in the span of
    the leading principal components, whose standard deviations are all reduced by the same
    threshold, and all hidden units have equal importance, so that dropping any one of them has the
    same effect (Mianjy et al. 2018, Theorem 3.6, for inputs of any covariance).

    Parameters
    ----------
    n_components : int or None, default=None
        Number r of hidden units; it may exceed the number of features. None means the number of
        features.
    dropout : float, default=0.5
        Probability of dropping a hidden unit, in [0, 1). With 0 the network projects on the
        principal subspace.
    solver : {"exact", "sgd"}, default="exact"
        ``"exact"`` computes the optimum in closed form; ``"sgd"`` trains by stochastic gradient
        descent (Mianjy et al. 2018, Algorithm 1).
    learning_rate, schedule, batch_size, max_iter, random_state
        Settings of SGD, as in `DropoutRegressor`.
    tol : float, default=1e-2
        Relative norm of the gradient of the expected loss at which SGD stops, as in
        `DropoutRegressor`. The exact solver does not use it. The certificate of SGD allows a loss
        that exceeds the optimum by `tol` times the total variance, but at most by 0.02 times it.
    warm_start : bool, default=False
        Whether SGD starts from the weights of the last fit, exact or by SGD, instead of random
        ones. If their shapes do not fit, it warns and starts from random weights.
    verbose : bool or "auto", default="auto"
        Whether progress is shown, if a fit or a pass over data that are read in blocks takes longer
        than two seconds. With ``"auto"`` it is if standard error is a terminal or belongs to a
        notebook: as a bar, or as the elapsed time where the length is not known. True also prints
        lines to a file or a pipe, and False shows nothing.

    Attributes
    ----------
    mean_ : array of shape (n_features,)
        Mean of the training rows.
    left_ : array of shape (n_features, r)
        Outgoing weights U of the hidden units, the decoder.
    right_ : array of shape (n_features, r)
        Incoming weights V of the hidden units, the encoder.
    n_components_ : int
        Number r of hidden units.
    rank_ : int
        Rank of the optimal product U Vᵀ.
    threshold_ : float
        Amount by which dropout reduces the standard deviation along each principal component.
    singular_values_ : array
        Standard deviations along the leading principal components, before they are reduced.
    objective_ : float
        Expected dropout loss of the weights, mean over rows.
    n_iter_, status_, history_
        Number of steps, `lucidae.iteration.Status` at the end, and recorded losses of the solver.
    certificate_ : Certificate
        Claims about the weights: distance to the global minimum, equal importance of the hidden
        units, rank, zero gradient.
    n_features_in_ : int
        Number of features of the data passed to `fit`.

    Notes
    -----
    The exact solver uses X through its second moment, from which `partial_fit` can continue. For
    more than 1024 features, `fit` computes the leading principal components without this matrix if
    that costs less, such as for fewer rows than features; `partial_fit` cannot continue from it.

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

    _state: NetworkState

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
        verbose: bool | str = "auto",
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

    @fitting_method
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:  # noqa: ARG002
        """Fit the autoencoder to all rows at once.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            The data, one row per sample. Files, memory maps, iterables of batches and Dask
            collections are read in blocks: see `lucidae.rows.row_blocks`.
        y : None
            Ignored.
        sample_weight : array-like of shape (n_samples,), optional
            Frequencies of the rows: a row of weight 2 counts as two equal rows.

        Returns
        -------
        self
            The fitted estimator itself.
        """
        trains, settings = self._trains, sgd_settings(self)
        if not (in_memory(X, rows_drawn=trains) and in_memory(sample_weight, "sample_weight")):
            return self.fit_batches(X, sample_weight)
        X = check_rows(X, estimator=self, reset=True)
        weights = check_weights(sample_weight, X)
        width = hidden_width(self.n_components, X.shape[1])
        rows = RowOperator.of(X, weights)
        stored = trains or X.shape[1] <= STORED_FEATURES
        stored = stored or scatter_is_cheapest(rows, width)
        moment = rows.scatter() if stored else RowMean(rows.weight, rows.mean, 0.0 * rows.mean)
        state = self._unsolved(moment, reference_array(X))
        if trains:
            state.train(self, settings, (X, X, weights), state.problem)
        else:
            state.solve(rows)
        state.refer(X, None, weights, type(self).__name__)
        _ = state.attributes
        self._state = state
        return self

    @fitting_method
    def fit_batches(
        self, batches: Any, sample_weight: Any = None, *, start: SecondMoment | None = None
    ) -> Self:
        """Fit to data that are read in blocks of rows; the result equals `fit` on all rows.

        Not more than a few blocks are in memory at a time, besides the second moment. Data that
        fit into one block (32 MiB) are loaded.

        Parameters
        ----------
        batches : iterable of batches, path, memory map, or data of any other kind
            Each batch is an array, a data frame or a sparse matrix of rows, the path of a file, or
            a tuple of rows, targets (which are ignored) and weights. See
            `lucidae.rows.row_blocks` for the other kinds. None if `start` is the moment of all
            rows.
        sample_weight : data of any kind, optional
            Frequencies of the rows, unless the batches contain them.
        start : SecondMoment, optional
            Moment of rows that were read before, such as that of a
            `lucidae.rows.ReadInterrupted`.

        Returns
        -------
        self
            The fitted estimator itself.
        """
        if batches is None:
            sgd_settings(self)  # refuses wrong settings, which this solver does not use
            check_start(start)
            moment = given_moment(self, start)
            state = self._unsolved(moment, moment.center[:0])
            _ = state.attributes
            self._state = state
            return self
        return self._fit_blocks(batches, None, sample_weight, start)

    @available_if(merges_moments)
    @fitting_method
    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:  # noqa: ARG002
        """Update the fit with further rows; after the last batch it equals `fit` on all rows.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            A batch of any size, one row per sample. Of a Dask array or data frame, each chunk of
            rows is a batch.
        y : None
            Ignored.
        sample_weight : array-like of shape (n_samples,), optional
            Frequencies of the rows: a row of weight 2 counts as two equal rows.

        Returns
        -------
        self
            The fitted estimator itself.
        """
        return self._add_batch(X, None, sample_weight, with_targets=False)

    @by_blocks
    @finite_output
    def transform(self, X: Any) -> Array:
        """Return the codes Vᵀ(x − mean) of rows x, the values of the hidden units.

        V are the incoming weights ``right_``.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            The data, one row per sample.

        Returns
        -------
        array of shape (n_samples, r)
            The codes.
        """
        check_is_fitted(self)
        X = check_rows(X, estimator=self, reset=False)
        encoder, mean = beside_rows(self.right_, X), beside_rows(self.mean_, X)
        # The stored mean, unless another was assigned, has more digits than one in float32.
        exact = self.mean_ if "mean_" in vars(self) else self._state.centers()[0]
        rest = like(host(exact) - host(mean), encoder) @ encoder
        # Sparse rows are centred after the product, so that they stay sparse.
        sparse = scipy.sparse.issparse(X)
        return (X @ encoder - mean @ encoder if sparse else (X - mean) @ encoder) - rest

    @by_blocks
    @finite_output
    def inverse_transform(self, X: Any) -> Array:
        """Return the rows that the network reconstructs from codes: U code + mean.

        U are the outgoing weights ``left_``.

        Parameters
        ----------
        X : array-like of shape (n_samples, r)
            Codes, as `transform` returns them.

        Returns
        -------
        array of shape (n_samples, n_features)
            The reconstructed rows.
        """
        check_is_fitted(self)
        codes = checked_codes(X, self.left_.shape[1])
        return codes @ beside(self.left_, codes).mT + beside(self.mean_, codes)

    def score(self, X: Any, y: Any = None) -> float:  # noqa: ARG002
        """Return the share of the variance about the fitted mean that the network reconstructs.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            The data, one row per sample.
        y : None
            Ignored.

        Returns
        -------
        float
            1 for a perfect reconstruction, 0 if its error is as large as that of the fitted mean.
        """
        check_is_fitted(self)
        X = check_rows(X, estimator=self, reset=False) if in_memory(X) else X
        # With C = E[(x − mean)(x − mean)ᵀ], which is not formed, the mean squared error of x is
        # tr C − 2 tr UᵀCV + tr(UᵀU VᵀCV), and E‖x − mean‖² is tr C.
        source = RowOperator.of(X) if in_memory(X) else MomentRows(SecondMoment.of(X))
        left, right, mean = (
            like(part, source.mean) for part in (self.left_, self.right_, self.mean_)
        )
        xp, shift = namespace(left), source.mean - mean
        inward = source.apply(right.mT).mT + shift[:, None] * (shift @ right)
        total = source.trace + float(xp.sum(shift * shift))
        fitted = float(xp.sum((left.mT @ left) * (right.mT @ inward)))
        explained = 2 * float(xp.sum(left * inward)) - fitted
        return explained / total if total > 0 else 1.0

    @property
    def _n_features_out(self) -> int:
        return int(self.left_.shape[1])

    def _unsolved(self, moment: SecondMoment | RowMean, ref: Array) -> NetworkState:
        """Return a fitted state with the given second moment, or mean, of the rows.

        The fitted attributes are computed when they are first read.
        """
        return NetworkState(
            moment=moment,
            strength=strength_of(self.dropout),
            width=hidden_width(self.n_components, moment.n_features),
            ref=ref,
            tolerance=allowed_gap(self.tol, self._trains),
        )
