"""The estimator `LinearAutoencoder`: ordered, axis-aligned principal components."""

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
    fitted_names,
    reference_array,
    restored_on_failure,
    upgraded_estimator,
    validated_rows,
)
from lucidae.certificate import Certificate
from lucidae.io.models import saved_as
from lucidae.linear.attributes import finite
from lucidae.linear.certificate import checked_data, with_changes
from lucidae.linear.data import (
    source_of,
)
from lucidae.linear.methods import Options
from lucidae.linear.state import LinearState
from lucidae.linear.verified_spectrum import data_of
from lucidae.validation import check_weights

__all__ = ["LinearAutoencoder"]


@saved_as(
    "lucidae.LinearAutoencoder/1",
    formerly="lucidae.linear.estimators:LinearAutoencoder",
    upgrade=upgraded_estimator,
)
class LinearAutoencoder(
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
        data; mini-batches with O(mk) memory. ``"auto"`` is exact: the leading
        eigenpairs come from the second moment of the features, from the Gram matrix of the rows or
        from block Krylov iteration, whichever is cheapest for the shape of the data. The direction
        of a mini-batch is corrected by the direction of all rows at the last check (Johnson &
        Zhang 2013), so that the noise vanishes at the optimum and the step size need not decrease.
    optimizer : {"nesterov", "heavy_ball", "gradient_descent", "adam"}, default="nesterov"
        For the gradient and stochastic solvers. Adam is refused for the rules ``"rag"``, ``"gha"``
        and ``"brockett"``.
    learning_rate : float or "auto", default="auto"
        Step size; ``"auto"`` takes half of the largest step that is stable at the optimum, from a
        bound on the curvature by a few power iterations (for Adam: 3e-3). With ``"auto"``, the
        full-batch gradient of ``"linear_vae"`` is also divided, block by block, by its curvature.
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
        every 20 steps; the stochastic solver tests it on all rows after each pass, or after 20
        steps if that is later.
    random_state : int, RandomState or None, default=None
        Seed of the first weights, of the order of mini-batches and of the masks of nested dropout.
        The exact solver does not use it.
    warm_start : bool, default=False
        Whether the gradient and stochastic solvers start from the weights of the last `fit`, which
        may come from any solver or method: weights are converted between tied and untied. If their
        shape differs from the one that is needed, a warning says so and random weights are used.
    verbose : bool, default=False
        Whether the gradient and stochastic solvers print a progress bar.

    Attributes
    ----------
    mean_ : array of shape (m,)
        Mean of the data; m is the number of features.
    encoder_ : array of shape (k, m)
        Encoder W₁; k is the number of latents.
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

    @restored_on_failure
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:  # noqa: ARG002
        """Fit to the rows of `X`.

        Parameters
        ----------
        X : array-like, data frame, sparse matrix or tensor of shape (n, m)
            The data, at least two rows.
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
        X = validated_rows(self, X, reset=True, least=2, finite=False)
        weights = check_weights(sample_weight, X)
        source = source_of(X, weights, options.reads, options.n_components)
        _check_weight(source.weight)
        state = LinearState(options, reference_array(X))
        if self.warm_start and hasattr(self, "_state"):
            state.previous = self._state.last_weights
        state.solve(source, X, weights, type(self).__name__)
        state.check_range()
        self._state = state
        return self

    @restored_on_failure
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
        options.check_before_solving(X.shape[1])
        before = LinearState(options, reference_array(X)) if first else self._state
        state = before.after(options, X, weights)
        state.check_range()
        self._state = state
        return self

    def _options(self) -> Options:
        """Return the checked arguments."""
        given = vars(self)
        return Options.of(**{name: given[name] for name in _ARGUMENTS})

    @finite("the codes")
    def transform(self, X: Any) -> Array:
        """Return the codes (X − mean) W₁ᵀ, divided by their standard deviations with `whiten`.

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

    @finite("the decoded rows")
    def inverse_transform(self, X: Any) -> Array:
        """Return the rows X W₂ᵀ + mean that codes X reconstruct.

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
        codes = checked_codes(X, model.atoms.shape[0])
        atoms = model.atoms
        if self.whiten:
            atoms = atoms * model.code_deviations[:, None]
        return codes @ like(atoms, codes) + like(model.mean, codes)

    @finite("the log-likelihoods")
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
        likelihoods = self.score_samples(X)
        return float(namespace(likelihoods).mean(likelihoods))

    def get_covariance(self) -> Array:
        """Return the covariance that the model implies, shape (m, m)."""
        check_is_fitted(self)
        return self._state.returned(self._state.model.covariance())

    @finite("the entries of the precision matrix")
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

    @property
    def certificate_(self) -> Certificate:
        """Certificate of the fit: its distance to the optimum, claim by claim."""
        return self._with_changes(super().certificate_)

    def _certify_on(self, X: Any, y: Any = None, *, sample_weight: Any = None) -> Certificate:  # noqa: ARG002
        data = data_of(*checked_data(X, sample_weight))
        return self._with_changes(self._state.certify(data, type(self).__name__))

    def _with_changes(self, found: Certificate) -> Certificate:
        """Return the certificate, which fails where fitted attributes were changed by a user."""
        names = fitted_names(type(self))  # type: ignore[arg-type]
        assigned = {name: vars(self)[name] for name in names & vars(self).keys()}
        return with_changes(found, self._state.changed_attributes(assigned))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


_ARGUMENTS = tuple(inspect.signature(LinearAutoencoder).parameters)


def _check_weight(weight: float) -> None:
    if weight <= 1.0:
        raise ValueError(
            f"sample_weight sums to {weight:g}, expected more than 1: weights are frequencies. "
            "Multiply them so that they sum to the number of samples."
        )
