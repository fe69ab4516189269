"""The estimator `LinearAutoencoder`, whose latents are the ordered principal components."""

from __future__ import annotations

import inspect
from typing import Any, Self

import numpy as np
import scipy.sparse
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from lucidae.arrays import Array, as_double, like, namespace
from lucidae.base import (
    CertifiedMixin,
    Fitted,
    checked_codes,
    fitting_method,
    replaced_attributes,
)
from lucidae.certificates.claims import Certificate, with_changes
from lucidae.certificates.sketch import Sketch
from lucidae.counting import ComponentCount
from lucidae.linear.certify import checked_data, data_of, loaded_rows, read_blocks
from lucidae.linear.methods import Options
from lucidae.linear.missing import gaussian_of, has_missing, observed_part, unmasked
from lucidae.linear.solvers import resolve_components
from lucidae.linear.state import LinearState, fitted_to, fitted_to_observed, updated
from lucidae.moments import SecondMoment
from lucidae.rows import blocks
from lucidae.rows.kinds import aligned_blocks, check_batch, in_memory, loaded
from lucidae.rows.operator import (
    EXACT_FEATURES,
    STORED_FEATURES,
    MomentRows,
    RowOperator,
)
from lucidae.rows.passes import (
    ReadTwiceMixin,
    by_blocks,
    check_start,
    given_moment,
    store_features,
)
from lucidae.validation import check_rows, check_weights, columns_with_gaps, warn_user

IN_MEMORY = (
    "To use the observed entries of rows with missing ones, set handle_missing='em'; otherwise "
    "remove or impute the missing entries."
)
"""Advice for missing entries of rows in memory."""

IN_BLOCKS = "Or set handle_missing='em', if all rows fit into memory."
"""Advice for missing entries of rows that are read in blocks."""


class LinearAutoencoder(
    ReadTwiceMixin,
    CertifiedMixin,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
    BaseEstimator,
):
    """Linear autoencoder that recovers the ordered principal components.

    With the default arguments it is an exact principal component analysis, which accepts sample
    weights, can be fitted batch by batch (`partial_fit`) and has a certificate of its optimality.
    Every objective and learning rule of Bao et al. (2020) is a `method`. A method is solved in
    closed form if one is known, by full-batch descent on the second moment of the data, or by
    descent on mini-batches of rows.

    Parameters
    ----------
    n_components : int, float in (0, 1), str, tuple or None, default=None
        Number of latents k, or the share of the variance that they should explain, or None for the
        numerical rank: the number of eigenvalues of the covariance above m times the machine
        epsilon times the largest one, where m is the number of features. Three criteria choose k
        from all eigenvalues and the number of rows: ``"mle"`` (Minka's evidence, as in scikit-learn
        but also for fewer rows than features), ``"parallel_analysis"`` (eigenvalues above the 99 %
        quantile of 999 simulations of white Gaussian noise, with a fixed seed) and
        ``"hard_threshold"`` (Gavish & Donoho; with a known variance of the noise,
        ``("hard_threshold", variance)``). They assume noise of the same variance in every feature;
        see `lucidae.linear.count_components`. If a criterion finds no component, a warning says so
        and k is 1. ``solver="stochastic"`` needs an integer, and so do data with more than 8192
        rows and more than 8192 features.
    method : str, default="rag"
        ``"rag"`` (rotation augmented gradient), ``"gha"`` (generalized Hebbian algorithm: Sanger's
        rule, which is Oja's rule for one latent), ``"brockett"`` (Riemannian ascent of Brockett's
        cost), ``"plain"`` (reconstruction loss alone), ``"uniform_l2"`` (the same ℓ₂ penalty for
        all latents), ``"nonuniform_l2"`` (one ℓ₂ penalty per latent), ``"nested_dropout"`` (with
        random masks), ``"expected_nested_dropout"`` (its expectation), ``"linear_vae"``, or a name
        that was registered by `lucidae.linear.register_method`.
    solver : {"auto", "exact", "gradient", "stochastic"}, default="auto"
        ``"exact"`` computes the method's optimum in closed form. The leading eigenpairs of the
        covariance come from the second moment of the features, from the Gram matrix of the rows or
        from block Krylov iteration, whichever is cheapest for the shape of the data.
        ``"gradient"`` is full-batch descent, which uses only the second moment of the data.
        ``"stochastic"`` is descent on mini-batches of rows with O(mk) memory. The direction of a
        mini-batch is corrected by the direction of all rows at the last evaluation of the stopping
        rule (Johnson & Zhang 2013), so that the noise vanishes at the optimum and the step size
        need not decrease. ``"auto"`` is ``"exact"`` if the method has a closed form, otherwise
        ``"gradient"``.
    whiten : bool, default=False
        Whether `transform` divides every code by its standard deviation.
    random_state : int, RandomState or None, default=None
        Seed of the initial weights, of the order of mini-batches and of the masks of nested
        dropout. The exact solver does not use it.
    handle_missing : {"error", "em"}, default="error"
        What to do with missing entries, which are NaN (or pandas' NA, or masked entries). With
        ``"error"`` they raise an error. With ``"em"``, mean and covariance of the rows are those of
        probabilistic PCA with `n_components` latents (Tipping & Bishop 1999), which maximise the
        likelihood of the observed entries; the method's closed form is computed from them. So all
        methods with a closed form are allowed, and the solvers ``"exact"`` and ``"auto"``. This
        assumes that entries are missing at random: whether an entry is missing may depend on
        observed entries, but not on its own value (Rubin 1976). The likelihood is maximised by
        expectation maximisation (EM) with quasi-Newton acceleration, until the norm of its gradient
        per row, in units of standard errors of one row, is at most `tol`. If `n_components` is
        None, all components that differ from noise are fitted (at most n − 1 for n rows). For a
        share of the variance or a criterion it is the smallest k for which the fit with k latents
        says that k components suffice. Without missing entries the result is that of
        ``"error"``. Rows without any observed entry do not count. With ``warm_start=True`` the
        maximisation starts from the last fit, also from one with another number of components. See
        docs/missing.md.
    verbose : bool or "auto", default="auto"
        Whether progress is shown, if a fit or a pass over data that are read in blocks takes longer
        than two seconds. With ``"auto"`` it is if standard error is a terminal or belongs to a
        notebook: as a bar, or as the elapsed time where the length is not known. True also prints
        lines to a file or a pipe, and False shows nothing.

    Other Parameters
    ----------------
    optimizer : {"nesterov", "heavy_ball", "gradient_descent", "adam"}, default="nesterov"
        How the gradient and stochastic solvers update the weights. Adam is refused for the methods
        ``"rag"``, ``"gha"`` and ``"brockett"``.
    learning_rate : float or "auto", default="auto"
        Step size of the gradient and stochastic solvers. ``"auto"`` takes half of the largest step
        that is stable at the optimum; the curvature there is bounded by a few power iterations.
        For Adam, ``"auto"`` is 3e-3. With ``"auto"``, the full-batch gradient of ``"linear_vae"``
        for each group of parameters is also divided by a bound on the curvature in that group.
    momentum : float in [0, 1), default=0.9
        Momentum of the optimizers ``"nesterov"`` and ``"heavy_ball"``; the others ignore it.
    l2 : "auto", float or array of shape (n_components,), default="auto"
        Penalties of the methods ``"uniform_l2"`` and ``"nonuniform_l2"``: one number for all
        latents, or one per latent in any order. ``"auto"`` chooses the penalties that minimise the
        condition number of the Hessian at the optimum.
    prior : {"geometric", "uniform"} or array of shape (n_components,), default="geometric"
        Probabilities of the prefix lengths 1 … k in nested dropout. The prefix length is the number
        of latents that are kept.
    batch_size : int, optional
        Number of rows per step of the stochastic solver, 256 by default.
    tied : bool or "auto", default="auto"
        Whether the decoder is the transpose of the encoder during all of the training. ``"auto"``
        ties the layers for the methods ``"rag"``, ``"gha"`` and ``"brockett"`` and trains them
        separately for the others.
    init_scale : float, default=1e-2
        Standard deviation of the random initial weights, at most 1e10.
    max_iter : int, default=10000
        Largest number of steps of the gradient and stochastic solvers.
    tol : float, default=1e-6
        The gradient and stochastic solvers stop when ‖D‖ ≤ tol · c · ‖W‖, where W are all weights
        as one vector, D is the method's update direction at W (for an objective, its gradient) and
        c a bound on the curvature at the optimum (for most methods 4σ₁², where σ₁² is the largest
        eigenvalue of the second moment; for ``"linear_vae"`` the number of features). The gradient
        solver tests this every 20 steps. The stochastic solver tests it on all rows after each pass
        over the rows, or after 20 steps if that is later. If the loss then exceeds its minimum by
        more than 1e-6 of the total variance, because components of small eigenvalues have not
        converged, a ConvergenceWarning states by how much.
    warm_start : bool, default=False
        Whether the gradient and stochastic solvers start from the weights of the last `fit`. These
        may come from any solver and method: weights are converted between tied and untied. If their
        shape differs from the one that is needed, a warning says so and random weights are used.
        Momentum starts at zero, so that several short fits differ from one long one.

    Attributes
    ----------
    mean_ : array of shape (m,)
        Mean of the data; m is the number of features.
    encoder_ : array of shape (k, m)
        Encoder W₁; k is the number of latents.
    decoder_ : array of shape (m, k)
        Decoder W₂.
    components_ : array of shape (k, m)
        Decoder columns scaled to unit length, one per row, in descending order of variance. The
        entry of largest magnitude of each is positive; see the notes. A latent that is zero has a
        row of zeros.
    explained_variance_ : array of shape (k,)
        Variance of the data along each component. The divisor is the total weight of the samples
        minus 1.
    explained_variance_ratio_ : array of shape (k,)
        `explained_variance_` divided by the total variance.
    singular_values_ : array of shape (k,)
        Square roots of `explained_variance_` times its divisor. For a fit without weights these
        are the leading singular values of the centred data.
    noise_variance_ : float
        Mean variance of the data per dimension outside the span of the components.
    n_components_ : int
        Number of latents.
    component_count_ : ComponentCount or None
        If `n_components` names a criterion, what it found (0 if nothing) and the scores by which it
        decided; otherwise None.
    n_iter_ : int
        Number of steps that the solver took; 1 for the exact solver.
    n_samples_seen_ : int or float
        Sum of the sample weights of all rows seen; without weights, the number of rows.
    status_ : Status
        How the solver ended: converged, diverged, stopped, or at the limit of steps.
    history_ : History
        Values at some of the steps of the gradient and stochastic solvers: ``"loss"``,
        ``"distance"`` to optimality and, for up to 1024 features, ``"alignment"`` and
        ``"subspace"``, the distances of the decoder to the principal axes and to their span
        (`lucidae.metrics`). Empty for the exact solver; ``history_.plot()`` draws it.
    certificate_ : Certificate
        Checked statements (claims) on how far the fitted weights are from the optimum.
    n_features_in_ : int
        Number of features m.

    See Also
    --------
    lucidae.certify : Certify this estimator on given data, or any pair of weights.
    lucidae.linear.count_components : The criteria for the number of components.
    lucidae.displays.ComponentCountDisplay : Plot of the eigenvalues with all criteria.

    Notes
    -----
    The sign of a component is a convention, because an eigenvector times −1 is one too. It is a
    promise: in each row of `components_` the entry of largest magnitude is positive, and if several
    entries share this magnitude, the first of them. Rows of `encoder_` and columns of `decoder_`
    have the same signs. This holds for every method, solver and kind of data, and depends on the
    component alone: not on the order, scale or number of the rows, nor on an earlier fit. If two
    entries of opposite sign have almost the same magnitude, small changes of the data can still
    change the sign.

    `fit` refers to the rows, without a copy, until `certificate_` is read or the estimator is saved
    or pickled, if they are a NumPy array or a sparse matrix of at most 256 MiB; their memory stays
    in use until then. (Rows of at most 1 MiB are copied.) Rows that are not kept leave a sketch of
    a few vectors, from which the certificate is computed. If the rows are changed in place before,
    `certificate_` is undecided and says so; `lucidae.certify` with the original rows decides it.
    Rows with more than 1024 features that are larger, or memory maps, are certified by `fit`.

    References
    ----------
    Bao, Lucas, Sachdeva & Grosse (2020), Regularized linear autoencoders recover the principal
    components, eventually. NeurIPS.

    Tipping & Bishop (1999), Probabilistic principal component analysis. Journal of the Royal
    Statistical Society B 61.

    Rubin (1976), Inference and missing data. Biometrika 63.

    Johnson & Zhang (2013), Accelerating stochastic gradient descent using predictive variance
    reduction. NeurIPS.

    Examples
    --------
    >>> from lucidae import LinearAutoencoder
    >>> from lucidae.datasets import load_digits
    >>> X, _ = load_digits(return_X_y=True)
    >>> autoencoder = LinearAutoencoder(n_components=5).fit(X)
    >>> autoencoder.transform(X).shape
    (1797, 5)
    >>> autoencoder.certificate_.holds
    True
    """

    mean_ = Fitted()
    encoder_ = Fitted()
    decoder_ = Fitted()
    components_ = Fitted()
    explained_variance_ = Fitted()
    explained_variance_ratio_ = Fitted()
    singular_values_ = Fitted()
    noise_variance_ = Fitted()
    n_components_ = Fitted()
    n_iter_ = Fitted()
    status_ = Fitted()
    history_ = Fitted()

    _state: LinearState

    def __init__(
        self,
        n_components: int | float | str | tuple[str, float] | None = None,
        *,
        method: str = "rag",
        solver: str = "auto",
        optimizer: str = "nesterov",
        learning_rate: float | str = "auto",
        momentum: float = 0.9,
        l2: Any = "auto",
        prior: Any = "geometric",
        whiten: bool = False,
        batch_size: int | None = None,
        tied: bool | str = "auto",
        init_scale: float = 1e-2,
        max_iter: int = 10_000,
        tol: float = 1e-6,
        random_state: Any = None,
        warm_start: bool = False,
        verbose: bool | str = "auto",
        handle_missing: str = "error",
    ) -> None:
        self.n_components = n_components
        self.method = method
        self.solver = solver
        self.optimizer = optimizer
        self.learning_rate = learning_rate
        self.momentum = momentum
        self.l2 = l2
        self.prior = prior
        self.whiten = whiten
        self.batch_size = batch_size
        self.tied = tied
        self.init_scale = init_scale
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state
        self.warm_start = warm_start
        self.verbose = verbose
        self.handle_missing = handle_missing

    @fitting_method
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:  # noqa: ARG002
        """Fit the autoencoder to the rows of `X`.

        Parameters
        ----------
        X : array-like, data frame, sparse matrix or tensor of shape (n, m)
            The data: n ≥ 2 samples with m features. Files, memory maps, iterables of batches and
            Dask collections are read in blocks: see `lucidae.rows.row_blocks`. With more than 8192
            features they are read several times, for which an iterator is refused.
        y : ignored
            Accepted for scikit-learn's pipelines.
        sample_weight : array-like of shape (n,), optional
            Weights of the rows as frequencies: weight 2 counts a row twice. By default 1 each.

        Returns
        -------
        LinearAutoencoder
            The fitted estimator itself.
        """
        options = self._options()
        # Whether the rows of a memory map themselves are needed, not only their second moment.
        wide = isinstance(X, np.memmap) and X.ndim == 2 and X.shape[1] > EXACT_FEATURES
        drawn = options.draws_rows or (wide and not isinstance(options.n_components, int))
        if not (in_memory(X, rows_drawn=drawn) and in_memory(sample_weight, "sample_weight")):
            return self.fit_batches(X, sample_weight)
        try:
            # 1) Rows. Without weights, NaN and infinity show in the sums of squares.
            rows = self._rows(X, reset=True, least=2, finite=sample_weight is not None)
            weights = check_weights(sample_weight, rows)
            if self.handle_missing == "em" and has_missing(rows):
                given = rows, weights
                names = getattr(self, "feature_names_in_", None)
                rows, weights = observed_part(rows, weights, names)
                if has_missing(rows):  # also in rows with an observed entry
                    self._fit_observed(options, rows, weights, given)
                    return self
            data, m = RowOperator.of(rows, weights), rows.shape[1]
            with data.suitable_threads():
                # Rows on the CPU that take less memory than their second moment are stored instead.
                few = (
                    isinstance(rows, np.ndarray) or scipy.sparse.issparse(rows)
                ) and data.entries <= m * m
                if m <= STORED_FEATURES and not few and not options.draws_rows:
                    data.scatter()
                # 2) Eigenpairs, closed form or descent, and what the certificate needs.
                self._fit_data(options, data)
        except ValueError as error:
            refuse_missing(self, X, error)
            raise
        return self

    @fitting_method
    def fit_batches(
        self, batches: Any, sample_weight: Any = None, *, start: SecondMoment | None = None
    ) -> Self:
        """Fit to data that are read in blocks of rows; the result equals `fit` on all rows.

        Besides the second moment, only a few blocks are in memory at a time. Data that fit into
        one block (32 MiB) are loaded. With more than 8192 features the second moment is
        not formed, and the data are read once for each step of block Krylov iteration. Missing
        entries (``handle_missing="em"``) are allowed only in data that are loaded.

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
        LinearAutoencoder
            Itself.
        """
        options = self._options()
        check_start(start)
        if batches is None:
            moment = given_moment(self, start)
            check_streamed(options, moment.n_features, moment)
            self._fit_data(options, MomentRows(moment))
            return self
        try:
            data = aligned_blocks(batches, None, sample_weight)
            missing = self.handle_missing == "em"
            if start is None:
                small = loaded_rows(data, missing=missing, verbose=self.verbose)
                if small is not None:
                    return self.fit(small.rows, sample_weight=small.weights)
            check_streamed(options, data.rows.n_features, start)
            rows, sketch = read_blocks(data, start, self.verbose)
            store_features(self, data)
            self._fit_data(options, rows, sketch)
        except ValueError as error:
            refuse_missing(self, batches, error)
            raise
        return self

    @fitting_method
    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:  # noqa: ARG002
        """Update the fit with one more batch of rows, of any size.

        Up to m = 8192 features the second moment of all batches is updated, and after the last
        batch the result equals `fit` on all rows. With more features, or with
        ``solver="stochastic"``, each batch is used for one step of descent, which starts from the
        weights of an earlier `fit` if there was one and otherwise from random weights. Attributes
        that need an eigendecomposition are computed when they are first read.

        Missing entries are refused, also with ``handle_missing="em"``, which needs all rows.

        Parameters
        ----------
        X : array-like, data frame, sparse matrix or tensor of shape (n, m)
            The batch: n ≥ 1 samples with m features. Of a Dask array or data frame, each chunk of
            rows is a batch.
        y : ignored
            Accepted for scikit-learn's pipelines.
        sample_weight : array-like of shape (n,), optional
            Weights of the rows as frequencies: weight 2 counts a row twice. By default 1 each.

        Returns
        -------
        LinearAutoencoder
            The fitted estimator itself.
        """
        options = self._options()
        check_batch(X)
        first = not hasattr(self, "_state")
        try:
            rows = self._rows(X, reset=first, finite=sample_weight is not None)
            weights = check_weights(sample_weight, rows)
            options.check_before_solving(rows.shape[1])
            before = None if first else self._state
            missing = self.handle_missing == "em" and has_missing(rows)
            if missing or (before is not None and before.observed is not None):
                raise ValueError(
                    "rows with missing entries were given to partial_fit, or to fit before it, but "
                    "handle_missing='em' needs all rows at once: give all of them to fit."
                )
            self._state = updated(before, options, rows, weights)
        except ValueError as error:
            refuse_missing(self, X, error)
            raise
        return self

    def _fit_observed(
        self, options: Options, X: Array, weights: Array, given: tuple[Array, Array | None]
    ) -> None:
        """Fit to rows X (n, m) with missing entries; each row has at least one observed entry.

        `given` are all rows and weights, by whose numbers the certificate names rows.
        """
        previous = None
        if self.warm_start and hasattr(self, "_state"):
            previous = self._state.parameters
            if previous.mean.shape[0] != X.shape[1]:
                warn_user(
                    f"warm_start=True was given, but the last fit has {previous.mean.shape[0]} "
                    f"features and X has {X.shape[1]}: the fit starts anew."
                )
                previous = None
        title = type(self).__name__
        self._state = fitted_to_observed(X, weights, options, title, previous, given)

    def _rows(self, X: Any, *, finite: bool = True, **settings: Any) -> Array:
        """Return the rows X after validation; missing entries, if allowed, become NaN."""
        try:
            if self.handle_missing != "em" or scipy.sparse.issparse(X):
                return check_rows(X, estimator=self, finite=finite, **settings)
            return check_rows(unmasked(X), estimator=self, finite="allow-nan", **settings)
        except ValueError as error:
            refuse_missing(self, X, error)
            raise

    def _fit_data(self, options: Options, data: RowOperator, sketch: Sketch | None = None) -> None:
        """Fit to data of any kind; `sketch` is that of rows that were read in blocks."""
        previous = None
        if self.warm_start and hasattr(self, "_state"):
            before = self._state
            previous = before.stream.state.weights if before.stream else before.previous
        self._state = fitted_to(data, options, type(self).__name__, previous, sketch)

    def _options(self) -> Options:
        """Return the constructor's arguments after checking them; wrong ones raise an error."""
        given = vars(self)
        return Options(**{name: given[name] for name in _ARGUMENTS})

    @by_blocks
    def transform(self, X: Any) -> Array:
        """Return the codes (X − mean) W₁ᵀ of the rows of `X`, where W₁ is the encoder.

        With ``whiten=True``, each code is divided by its standard deviation on the training rows.
        With ``handle_missing="em"``, missing entries of a row are replaced by their expectation
        given its observed entries, so that the codes are the expected ones; a row without observed
        entries has the codes 0.

        Parameters
        ----------
        X : array-like, data frame, sparse matrix or tensor of shape (n, m)
            The rows to encode, with m features.

        Returns
        -------
        array of shape (n, k)
            One row of k codes per row of `X`.
        """
        check_is_fitted(self)
        X = self._rows(X, reset=False)
        model = self._state.model
        encoder = model.encoder / (model.code_deviations[:, None] if self.whiten else 1.0)
        if self.handle_missing == "em" and has_missing(X):
            X = gaussian_of(model).expectation(X)
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            if scipy.sparse.issparse(X):
                codes = np.asarray(X @ encoder.T - encoder @ model.mean, dtype=X.dtype)
            else:
                codes = (X - like(model.mean, X)) @ like(encoder, X).mT
        return _check_finite(codes, "the codes")

    @by_blocks
    def inverse_transform(self, X: Any) -> Array:
        """Return the rows X W₂ᵀ + mean decoded from the codes `X`, where W₂ is the decoder.

        Parameters
        ----------
        X : array-like of shape (n, k)
            Codes as `transform` returns them: whitened codes if ``whiten=True``.

        Returns
        -------
        array of shape (n, m)
            One reconstructed row of m features per row of codes.
        """
        check_is_fitted(self)
        model = self._state.model
        codes = checked_codes(X, model.atoms.shape[0])
        atoms = model.atoms * (model.code_deviations[:, None] if self.whiten else 1.0)
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            rows = codes @ like(atoms, codes) + like(model.mean, codes)
        return _check_finite(rows, "the decoded rows")

    def posterior_covariance(self, X: Any) -> Array:
        """Return the covariance of the codes of each row of `X` given its observed entries.

        The code of a complete row is known, so that its covariance is zero. That of a row without
        observed entries is the covariance of the codes under the fitted probabilistic PCA model.
        Missing entries need ``handle_missing="em"``.

        Parameters
        ----------
        X : array-like of shape (n, m)
            The rows, with m features.

        Returns
        -------
        array of shape (n, k, k)
            One covariance matrix per row, of the codes that `transform` returns.

        Examples
        --------
        >>> import numpy as np
        >>> from lucidae import LinearAutoencoder
        >>> X = np.random.default_rng(0).standard_normal((50, 3)) * [3.0, 2.0, 1.0]
        >>> X[:10, 0] = np.nan
        >>> autoencoder = LinearAutoencoder(1, handle_missing="em").fit(X)
        >>> covariances = autoencoder.posterior_covariance(X)
        >>> bool(covariances[0, 0, 0] > 1.0), float(covariances[-1, 0, 0])
        (True, 0.0)
        """
        check_is_fitted(self)
        X = self._rows(X, reset=False, accept_sparse=False)
        model = self._state.model
        encoder = model.encoder / (model.code_deviations[:, None] if self.whiten else 1.0)
        return like(gaussian_of(model).code_covariance(X, encoder), X)

    @by_blocks
    def score_samples(self, X: Any) -> Array:
        """Return the log-likelihood of each row of `X` under probabilistic PCA.

        With ``handle_missing="em"`` it is that of the observed entries of the row, and 0 without
        observed entries.

        Parameters
        ----------
        X : array-like, data frame, sparse matrix or tensor of shape (n, m)
            The rows to score, with m features.

        Returns
        -------
        array of shape (n,)
            One log-likelihood per row, in nats.
        """
        check_is_fitted(self)
        X = self._rows(X, reset=False)
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            if scipy.sparse.issparse(X):
                # Centred rows are dense: those of one block at a time.
                step = max(1, blocks.BLOCK_BYTES // (8 * X.shape[1]))
                starts = range(0, X.shape[0], step)
                parts = [self._log_likelihood(X[at : at + step].toarray()) for at in starts]
                found = np.concatenate(parts)
            else:
                found = self._log_likelihood(X)
        return _check_finite(found, "the log-likelihoods")

    def _log_likelihood(self, X: Array) -> Array:
        """Return the log-likelihood of each of the dense rows X, which have been validated."""
        model = self._state.model
        if self.handle_missing == "em" and has_missing(X):
            return like(gaussian_of(model).log_likelihood(X), X)
        return like(model.log_likelihood(like(as_double(X), model.mean) - model.mean), X)

    def score(self, X: Any, y: Any = None) -> float:  # noqa: ARG002
        """Return the mean log-likelihood of the rows of `X` under probabilistic PCA.

        Parameters
        ----------
        X : array-like, data frame, sparse matrix or tensor of shape (n, m)
            The rows to score, with m features.
        y : ignored
            Accepted for scikit-learn's model selection.

        Returns
        -------
        float
            The mean over the rows, in nats.
        """
        likelihoods = loaded(self.score_samples(X))
        return float(namespace(likelihoods).mean(likelihoods))

    def get_covariance(self) -> Array:
        """Return the covariance of the data under the fitted probabilistic PCA model.

        Returns
        -------
        array of shape (m, m)
            The covariance of m features: that of the training rows in the span of the components,
            and `noise_variance_` in every direction orthogonal to it.
        """
        check_is_fitted(self)
        return like(self._state.model.covariance(), self._state.reference)

    def get_precision(self) -> Array:
        """Return the inverse of the covariance of the fitted probabilistic PCA model.

        Returns
        -------
        array of shape (m, m)
            The inverse of `get_covariance`, for m features. Variances of zero are first replaced by
            the machine epsilon times the largest variance.
        """
        check_is_fitted(self)
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            found = like(self._state.model.precision(), self._state.reference)
        return _check_finite(found, "the entries of the precision matrix")

    @property
    def n_samples_seen_(self) -> int | float:
        """Sum of the sample weights of all rows seen; an integer if it is a whole number."""
        check_is_fitted(self)
        weight = self._state.weight
        return int(weight) if weight == int(weight) else weight

    @property
    def component_count_(self) -> ComponentCount | None:
        """Result of the criterion that `n_components` names; None if it does not name one."""
        check_is_fitted(self)
        found: ComponentCount | None = self._state.model.count
        return found

    @property
    def _n_features_out(self) -> int:
        return int(self.n_components_)

    @property
    def certificate_(self) -> Certificate:
        """Checked statements (claims) on how far the fitted weights are from the optimum."""
        return self._with_changes(super().certificate_)

    def _certify_on(self, X: Any, y: Any = None, *, sample_weight: Any = None) -> Certificate:  # noqa: ARG002
        missing, state, title = self.handle_missing == "em", self._state, type(self).__name__
        data, sketch = checked_data(X, sample_weight, missing=missing, verbose=self.verbose)
        if data.n_features != self.n_features_in_:
            raise ValueError(
                f"X has {data.n_features} features, but {title} is expecting "
                f"{self.n_features_in_} features as input."
            )
        # not in blocks, nor in a second moment, nor sparse
        in_rows = missing and data.rows is not None and not scipy.sparse.issparse(data.rows)
        if in_rows and (state.observed is not None or has_missing(data.rows)):
            return self._with_changes(state.certify_observed(data.rows, data.weights, title))
        return self._with_changes(state.certify(data_of(data, sketch), title))

    def _with_changes(self, found: Certificate) -> Certificate:
        """Return `found` with a failed claim added if a user changed fitted attributes.

        Without changes, `found` is returned as it is.
        """
        advice = (
            "but `transform` and `inverse_transform` use the fitted weights. Fit again, or certify "
            "other weights by certify((encoder, decoder), X, family='linear')."
        )
        changed = self._state.changed_attributes(replaced_attributes(self))
        return with_changes(found, changed, advice)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = self.handle_missing == "em"
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


_ARGUMENTS = tuple(inspect.signature(LinearAutoencoder).parameters)


def _check_finite(values: Array, name: str) -> Array:
    """Return `values`; raise a ValueError if they overflow their dtype."""
    xp = namespace(values)
    if not bool(xp.all(xp.isfinite(values))):
        raise ValueError(
            f"{name} overflow {values.dtype}: give X as float64, or fit again with X divided by a "
            "constant."
        )
    return values


def check_streamed(options: Options, n_features: int, start: SecondMoment | None) -> None:
    """Raise an error for settings that do not work with data that are read in blocks."""
    if options.draws_rows:
        raise ValueError(
            f"solver={options.solver!r} with method={options.method!r} draws rows in random order, "
            "but X is read in blocks: use solver='exact', give X as an array or a memory map, or "
            "call partial_fit with each batch."
        )
    if isinstance(options.n_components, int) or n_features > EXACT_FEATURES:
        resolve_components(options.n_components, n_features)
    if start is not None and not start.n_features == n_features <= EXACT_FEATURES:
        raise ValueError(
            f"start has {start.n_features} features and X has {n_features}, expected the second "
            f"moment of earlier rows of the same data with at most {EXACT_FEATURES} features. With "
            "more features, give all rows, without start."
        )


def refuse_missing(estimator: Any, X: Any, error: ValueError) -> None:
    """Raise an error about NaN in the rows X again, with advice on the argument `handle_missing`.

    Nothing happens for other errors.
    """
    first, _, _ = str(error).partition("\n")
    if "contains NaN" not in first or "handle_missing" in first or "sample_weight" in first:
        return
    advice = IN_BLOCKS if " in block " in first else IN_MEMORY
    if first == "Input X contains NaN.":
        # The rows were converted to an array before the NaN was found in their squares.
        first = f"Input X contains NaN{columns_with_gaps(X, 'X')}."
    if estimator.handle_missing == "em":
        advice = (
            "With handle_missing='em', rows with missing entries are not fitted in blocks or "
            "batches, or as a sparse matrix: load all rows and call fit with a dense array."
        )
    raise ValueError(f"{first} {advice}") from error
