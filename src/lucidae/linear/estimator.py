"""The estimator `LinearAutoencoder`: ordered, axis-aligned principal components."""

from __future__ import annotations

import inspect
from typing import Any, Self

import numpy as np
import scipy.sparse
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from lucidae.arrays import Array, as_double, device, like, namespace
from lucidae.base import CertifiedMixin, Fitted, FittedState, upgraded_estimator, validated_rows
from lucidae.certificate import Certificate, does_not_apply
from lucidae.data import by_blocks, in_memory, loaded
from lucidae.io.models import saved_as
from lucidae.linear.batches import FitBatchesMixin, draws_rows
from lucidae.linear.certificate import certificate, checked_data, measure
from lucidae.linear.data import (
    EXACT_FEATURES,
    STORED_FEATURES,
    MomentSource,
    RowsSource,
    Source,
    source_of,
)
from lucidae.linear.methods import Options
from lucidae.linear.model import Model
from lucidae.linear.probe import Probe
from lucidae.linear.solvers import solve
from lucidae.linear.spectrum import Spectrum
from lucidae.linear.streaming import StreamFit
from lucidae.linear.verified_spectrum import Data, data_of
from lucidae.moments import SecondMoment
from lucidae.validation import check_rows, check_weights

__all__ = ["LinearAutoencoder"]


def _upgraded_state(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes of a state from those that lucidae 0.1.0 saved."""
    return {"_certificate" if name == "certificate" else name: v for name, v in fields.items()}


@saved_as(
    "lucidae.linear.fitted/1",
    formerly="lucidae.linear.kept:LinearKept",
    upgrade=_upgraded_state,
)
class LinearState(FittedState):
    """Fitted state of `LinearAutoencoder`: a moment or a stream, and the model that follows.

    Parameters
    ----------
    options : Options
        The checked arguments.
    reference : array
        An empty array of the library, dtype and device in which attributes are returned.
    """

    def __init__(self, options: Options, reference: Array) -> None:
        self.options = options
        self.reference = reference
        self.moment: SecondMoment | None = None
        self.stream: StreamFit | None = None
        self.previous: Any = None
        self._model: Model | None = None
        self._spectrum: Spectrum | None = None

    _probe: Probe | None = None

    def solve(self, source: Source, rows: Any = None, weights: Array | None = None) -> None:
        """Fit now, and store the moment of the source if it is small.

        The moment is compared with its rows while these are there.
        """
        self._model, self._spectrum = solve(self.options, source, self.previous)
        self.previous = self._model.outcome.weights
        moment = source.moment
        self.moment = moment if source.covariance.n_features <= STORED_FEATURES else None
        self.changed()
        self._probe = None
        if moment is not None and rows is not None:
            self._probe = Probe.of(rows, weights, moment)
        if self.moment is None:
            self._certificate = self.certify(self._data(source))

    def advance(self, options: Options, X: Any, weights: Array | None) -> None:
        """Add one more batch; the model is computed when it is next read."""
        self.options = options
        if options.route == "stochastic" or X.shape[1] > EXACT_FEATURES:
            self.stream = self._stream_before(options, X, weights).after(X, weights)
        else:
            before, self.moment = self.moment, self._accumulated(X, weights)
            if before is None:
                self._probe = Probe.of(X, weights, self.moment)
            elif self._probe is not None:
                self._probe = self._probe.after(X, weights)
        self._model, self._spectrum = None, None
        self.changed()

    def _stream_before(self, options: Options, X: Any, weights: Array | None) -> StreamFit:
        if self.stream is not None:
            return self.stream
        if self._model is not None:
            return StreamFit.resume(options, self._model)
        return StreamFit.begin(options, X, weights)

    def _accumulated(self, X: Any, weights: Array | None) -> SecondMoment:
        if self.moment is not None:
            return self.moment.update(X, weights)
        if self._model is None:
            return SecondMoment.of(X, weights)
        raise ValueError(
            f"fit does not store the second moment of {X.shape[1]} features, so partial_fit cannot "
            "continue from it. Start a new estimator and give all batches to partial_fit."
        )

    @property
    def model(self) -> Model:
        """The fitted model."""
        if self._model is None:
            if self.stream is not None:
                self._model = self.stream.model()
            elif self.moment is not None:
                source = MomentSource(self.moment)
                self._model, self._spectrum = solve(self.options, source, self.previous)
                self.previous = self._model.outcome.weights
        assert self._model is not None, "a fitted state contains a model, a moment or a stream"
        return self._model

    @property
    def last_weights(self) -> Any:
        """The weights of the last fit or step, from which a warm start begins; None before."""
        return self.previous if self.stream is None else self.stream.state.weights

    @property
    def weight(self) -> float:
        """Total weight of the data, without computing the model."""
        if self._model is None and self.moment is not None:
            return self.moment.weight
        return self.model.weight

    @property
    def keeps_certificate(self) -> bool:
        """Whether the certificate is saved: without the moment it cannot be computed again."""
        return self.moment is None

    def compute_attributes(self) -> dict[str, Any]:
        """Return the fitted attributes by name."""
        model = self.model
        total, degrees = model.total_variance, model.degrees
        share = model.variances / total if total > 0 else 0.0 * model.variances
        singular = namespace(model.variances).sqrt(model.variances * degrees)
        return {
            "mean_": self.returned(model.mean),
            "encoder_": self.returned(model.encoder),
            "decoder_": self.returned(model.atoms.mT),
            "components_": self.returned(model.components),
            "explained_variance_": self.returned(model.variances),
            "explained_variance_ratio_": self.returned(share),
            "singular_values_": self.returned(singular),
            "noise_variance_": model.noise_variance,
            "n_components_": int(model.components.shape[0]),
            "n_iter_": model.outcome.n_iter,
            "status_": model.outcome.status,
            "history_": model.outcome.history,
        }

    def compute_certificate(self, title: str) -> Certificate:
        """Return the certificate on the stored moment."""
        if self.moment is not None:
            return self.certify(self._data(MomentSource(self.moment)), title)
        why = "The data of the stream were not stored: call lucidae.certify(estimator, X)."
        return Certificate(title, (does_not_apply("optimum", "the fit is optimal", "", why),))

    def certify(self, data: Data, title: str = "LinearAutoencoder") -> Certificate:
        """Return the certificate of the model on data."""
        model, training = self.model, self.options.training
        outcome = model.outcome
        # The variances of a stream are running averages, which no data reproduce.
        compared = model if self.stream is None else None
        figures = measure(
            outcome.method,
            outcome.weights,
            data,
            training,
            outcome.learning_rate,
            compared,
            self.options.n_components,
        )
        return certificate(f"{title}(method={self.options.method!r})", figures)

    def _data(self, source: Source) -> Data:
        """Return the data of a source in the form that the verifier needs."""
        if source.moment is None:
            assert isinstance(source, RowsSource), "other sources have a moment"
            return data_of(source.rows, source.weights)
        difference = None if self._probe is None else self._probe.difference(source.moment)
        return data_of(source.moment, difference=difference)

    def returned(self, values: Array) -> Array:
        """Return `values` in the library, dtype and on the device of the training data."""
        return like(values, self.reference)


@saved_as(
    "lucidae.LinearAutoencoder/1",
    formerly="lucidae.linear.estimators:LinearAutoencoder",
    upgrade=upgraded_estimator,
)
class LinearAutoencoder(
    FitBatchesMixin,
    CertifiedMixin,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
    BaseEstimator,
):
    """Linear autoencoder that recovers the ordered principal components.

    With the default arguments it is principal component analysis: exact, streaming through
    `partial_fit`, with sample weights and a certificate. Every objective and learning rule of Bao
    et al. (2020) is a `method`, and each can be solved in closed form, by full-batch descent
    through the second moment, or by mini-batches.

    Parameters
    ----------
    n_components : int, float in (0, 1) or None, default=None
        Number of latents, the share of the variance that they should explain, or None for the
        numerical rank (eigenvalues above m·eps times the largest).
    method : str, default="rag"
        ``"rag"`` (rotation augmented gradient), ``"gha"`` (Sanger's rule; Oja's for one latent),
        ``"brockett"``, ``"plain"``, ``"uniform_l2"``, ``"nonuniform_l2"``, ``"nested_dropout"``,
        ``"expected_nested_dropout"``, ``"linear_vae"``, or a name given to
        `lucidae.linear.register_method`.
    solver : {"auto", "exact", "gradient", "stochastic"}, default="auto"
        Closed form of the method's optimum; full-batch descent through the second moment of the
        data; mini-batches with O(mk) memory. ``"auto"`` is exact where there are at most 8192 rows
        or features, and stochastic otherwise.
    optimizer : {"nesterov", "heavy_ball", "gradient_descent", "adam"}, default="nesterov"
        For the gradient and stochastic solvers. Adam is refused for the rules ``"rag"``, ``"gha"``
        and ``"brockett"``.
    learning_rate : float or "auto", default="auto"
        Step size; ``"auto"`` takes half of the largest step that is stable at the optimum, from a
        bound on the curvature by a few power iterations (for Adam: 3e-3).
    momentum : float in [0, 1), default=0.9
        For Nesterov and heavy ball.
    l2 : "auto", float or array of shape (n_components,), default="auto"
        Penalties of the ℓ₂ methods, in any order. ``"auto"`` minimises the condition number of
        the Hessian at the optimum.
    prior : {"geometric", "uniform"} or array of shape (n_components,), default="geometric"
        Distribution of the prefix length in nested dropout, the number of latents that are kept.
    whiten : bool, default=False
        Whether `transform` scales every code to unit variance.
    batch_size : int, optional
        Rows per step of the stochastic solver, 256 by default.
    tied : bool or "auto", default="auto"
        Whether the decoder is the encoder's transpose throughout. ``"auto"`` ties the rules,
        which need it, and leaves the objectives free.
    init_scale : float, default=1e-2
        Standard deviation of the first weights.
    max_iter : int, default=10000
        Largest number of steps of the gradient and stochastic solvers.
    tol : float, default=1e-6
        The gradient and stochastic solvers stop when ‖D‖ ≤ tol · c · ‖W‖, where W are all weights
        as one vector, D is the method's direction at W (for an objective, its gradient) and c a
        bound on the curvature at the optimum (4σ₁² for most methods, σ₁² being the largest
        eigenvalue; for ``"linear_vae"`` the number of features). The full-batch solver tests this
        every 20 steps; the stochastic solver tests it on all rows once per pass.
    random_state : int, RandomState or None, default=None
        Seed of the first weights, of the order of mini-batches and of the masks of nested dropout.
        The exact solver does not use it.
    warm_start : bool, default=False
        Whether the gradient and stochastic solvers start from the weights of the last `fit`, which
        may come from any solver or method: weights are converted between tied and untied. If their
        shape differs from the one that is needed, a warning says so and random weights are used.
    verbose : bool, default=False
        Whether the gradient and stochastic solvers, and reading data in blocks, show their
        progress if they take longer than two seconds.

    Attributes
    ----------
    mean_ : array of shape (m,)
        Mean of the data.
    encoder_ : array of shape (k, m)
        Encoder W₁.
    decoder_ : array of shape (m, k)
        Decoder W₂.
    components_ : array of shape (k, m)
        Decoder columns at unit length, ordered by variance, the largest entry of each positive;
        rows of zeros for zero latents.
    explained_variance_, explained_variance_ratio_, singular_values_ : arrays of shape (k,)
        Variance along each component (divisor Σw − 1), its share, and the singular values.
    noise_variance_ : float
        Mean variance outside the components.
    n_components_ : int
        Number of latents.
    n_iter_ : int
        Number of steps, 1 for the exact solver.
    n_samples_seen_ : int or float
        Total weight of the samples.
    status_ : Status
        How the solver ended.
    history_ : History
        The loss during descent.
    certificate_ : Certificate
        Distance of the fit to the optimum, claim by claim.
    n_features_in_ : int
        Number of features m.

    See Also
    --------
    lucidae.certify : Certify this estimator on given data, or any pair of weights.

    References
    ----------
    Bao, Lucas, Sachdeva & Grosse (2020), Regularized linear autoencoders recover the principal
    components, eventually. NeurIPS.

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
        n_components: int | float | None = None,
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
        verbose: bool = False,
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

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:  # noqa: ARG002
        """Fit to the rows of `X`.

        Parameters
        ----------
        X : array-like, data frame, sparse matrix or tensor of shape (n, m)
            The data, at least two rows. Files, memory maps, iterables of batches and Dask
            collections are read in blocks: see `lucidae.data.row_blocks`.
        y : ignored
            For scikit-learn's pipelines.
        sample_weight : array-like of shape (n,), optional
            Frequencies of the rows.

        Returns
        -------
        LinearAutoencoder
            Itself.
        """
        options = self._options()
        drawn = draws_rows(options, X)
        if not (in_memory(X, rows_drawn=drawn) and in_memory(sample_weight)):
            return self.fit_batches(X, sample_weight)
        X = validated_rows(self, X, reset=True, least=2, finite=False)
        weights = check_weights(sample_weight, X)
        source = source_of(X, weights, options.route)
        _check_weight(source.weight)
        state = LinearState(options, reference_of(X))
        if self.warm_start and hasattr(self, "_state"):
            state.previous = self._state.last_weights
        state.solve(source, X, weights)
        self._state = state
        return self

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:  # noqa: ARG002
        """Fit to one more batch of rows, of any size.

        Up to m = 8192 features the second moment is updated, and after the last batch the result
        equals `fit` on all rows. With more features, or with ``solver="stochastic"``, the rule
        takes one step per batch, starting from the weights of an earlier `fit` if there was one.
        Attributes that need an eigendecomposition are computed when they are first read.

        Parameters
        ----------
        X : array-like, data frame, sparse matrix or tensor of shape (n, m)
            The batch, at least one row.
        y : ignored
            For scikit-learn's pipelines.
        sample_weight : array-like of shape (n,), optional
            Frequencies of the rows.

        Returns
        -------
        LinearAutoencoder
            Itself.
        """
        options = self._options()
        first = not hasattr(self, "_state")
        X = validated_rows(self, X, reset=first, finite=False)
        weights = check_weights(sample_weight, X)
        if isinstance(options.n_components, int) and options.n_components > X.shape[1]:
            raise ValueError(
                f"n_components={options.n_components} was given, but X has {X.shape[1]} features: "
                f"expected at most {X.shape[1]}."
            )
        state = LinearState(options, reference_of(X)) if first else self._state
        state.advance(options, X, weights)
        self._state = state
        return self

    def _fit_moment(self, options: Options, moment: SecondMoment, reference: Array) -> None:
        """Fit to data of which only the moment is left, as `fit` does with rows."""
        _check_weight(moment.weight)
        state = LinearState(options, reference)
        if self.warm_start and hasattr(self, "_state"):
            state.previous = self._state.last_weights
        state.solve(MomentSource(moment))
        self._state = state

    def _options(self) -> Options:
        """Return the checked arguments."""
        given = vars(self)
        return Options.of(**{name: given[name] for name in _ARGUMENTS})

    @by_blocks
    def transform(self, X: Any) -> Array:
        """Encode rows: (X − mean) W₁ᵀ, divided by their standard deviations with `whiten`.

        Parameters
        ----------
        X : array-like, data frame, sparse matrix or tensor of shape (n, m)
            The data.

        Returns
        -------
        array of shape (n, k)
        """
        check_is_fitted(self)
        X = validated_rows(self, X, reset=False)
        model = self._state.model
        encoder = model.encoder
        if self.whiten:
            encoder = encoder / model.code_deviations[:, None]
        if scipy.sparse.issparse(X):
            return np.asarray(X @ encoder.T - encoder @ model.mean, dtype=X.dtype)
        mean, encoder = like(model.mean, X), like(encoder, X)
        return (X - mean) @ encoder.mT

    @by_blocks
    def inverse_transform(self, X: Any) -> Array:
        """Decode codes: X W₂ᵀ + mean.

        Parameters
        ----------
        X : array-like of shape (n, k)
            Codes as `transform` returns them.

        Returns
        -------
        array of shape (n, m)
        """
        check_is_fitted(self)
        model = self._state.model
        codes = _check_codes(X, model.atoms.shape[0])
        atoms = model.atoms
        if self.whiten:
            atoms = atoms * model.code_deviations[:, None]
        return codes @ like(atoms, codes) + like(model.mean, codes)

    @by_blocks
    def score_samples(self, X: Any) -> Array:
        """Return the log-likelihood of each row under probabilistic PCA.

        Parameters
        ----------
        X : array-like of shape (n, m)
            The data.

        Returns
        -------
        array of shape (n,)
        """
        check_is_fitted(self)
        X = validated_rows(self, X, reset=False, accept_sparse=False)
        model = self._state.model
        return like(model.log_likelihood(like(as_double(X), model.mean) - model.mean), X)

    def score(self, X: Any, y: Any = None) -> float:  # noqa: ARG002
        """Return the mean log-likelihood of the rows under probabilistic PCA.

        Parameters
        ----------
        X : array-like of shape (n, m)
            The data.
        y : ignored
            For scikit-learn's model selection.

        Returns
        -------
        float
        """
        likelihoods = loaded(self.score_samples(X))
        return float(namespace(likelihoods).mean(likelihoods))

    def get_covariance(self) -> Array:
        """Return the covariance that the model implies, shape (m, m)."""
        check_is_fitted(self)
        return self._state.returned(self._state.model.covariance())

    def get_precision(self) -> Array:
        """Return the inverse of the covariance that the model implies, shape (m, m)."""
        check_is_fitted(self)
        return self._state.returned(self._state.model.precision())

    @property
    def n_samples_seen_(self) -> int | float:
        """Total weight of the samples, an integer where it is whole."""
        check_is_fitted(self)
        weight = self._state.weight
        return int(weight) if weight == int(weight) else weight

    @property
    def _n_features_out(self) -> int:
        return int(self.n_components_)

    def _certify_on(self, X: Any, y: Any = None, *, sample_weight: Any = None) -> Certificate:  # noqa: ARG002
        data = data_of(*checked_data(X, sample_weight))
        return self._state.certify(data, type(self).__name__)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


_ARGUMENTS = tuple(inspect.signature(LinearAutoencoder).parameters)


def reference_of(X: Any) -> Array:
    """Return an empty array of the library, dtype and device in which results are returned."""
    if scipy.sparse.issparse(X):
        return np.empty(0, dtype=X.dtype)
    return namespace(X).empty(0, dtype=X.dtype, device=device(X))


def _check_weight(weight: float) -> None:
    if weight <= 1.0:
        raise ValueError(
            f"sample_weight sums to {weight:g}, expected more than 1: weights are frequencies. "
            "Multiply them so that they sum to the number of samples."
        )


def _check_codes(X: Any, k: int) -> Array:
    codes = check_rows(X, accept_sparse=False)
    if codes.shape[1] != k:
        raise ValueError(f"X has {codes.shape[1]} columns, expected {k} codes per row.")
    return codes
