"""`LinearAutoencoder`: ordered, axis-aligned principal components by every rule of the paper."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import scipy.sparse
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from lucidae._arrays import Array, like
from lucidae._estimators import CertifiedMixin, validated_rows
from lucidae._validation import check_rows, check_weights
from lucidae.certificate import Certificate
from lucidae.linear.kept import LinearKept, reference_of
from lucidae.linear.likelihood import GaussianMixin
from lucidae.linear.options import Options
from lucidae.linear.shown import ShownMixin
from lucidae.linear.sources import source_of

__all__ = ["LinearAutoencoder"]


class LinearAutoencoder(
    ShownMixin,
    GaussianMixin,
    CertifiedMixin,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
    BaseEstimator,
):
    """Linear autoencoder that recovers the ordered principal components.

    With its defaults it is principal component analysis: exact, streaming through `partial_fit`,
    with sample weights and a certificate. Every objective and learning rule of Bao et al. (2020)
    is a `method`; every one can be solved in closed form, by full-batch descent through the
    second moment, or by mini-batches.

    Parameters
    ----------
    n_components : int, float in (0, 1) or None, default=None
        Number of latents, the share of the variance that they should explain, or None for the
        numerical rank (eigenvalues above m·eps times the largest).
    method : str, default="rag"
        ``"rag"`` (rotation augmented gradient), ``"gha"`` (Sanger's rule; Oja's for one latent),
        ``"brockett"``, ``"plain"``, ``"uniform_l2"``, ``"nonuniform_l2"``, ``"nested_dropout"``,
        ``"expected_nested_dropout"`` or ``"linear_vae"``.
    solver : {"auto", "exact", "gradient", "stochastic"}, default="auto"
        Closed form of the method's optimum; full-batch descent that sees the data only through
        their second moment; mini-batches with O(mk) memory. ``"auto"`` is exact as long as rows
        or features number at most 8192, else stochastic.
    optimizer : {"nesterov", "heavy_ball", "gradient_descent", "adam"}, default="nesterov"
        For the gradient and stochastic solvers. Adam is refused for the rules.
    learning_rate : float or "auto", default="auto"
        Step size; ``"auto"`` takes half of the largest stable step at the optimum, from a bound
        on the curvature by a few power iterations (for Adam: 3e-3).
    momentum : float in [0, 1), default=0.9
        For Nesterov and heavy ball.
    l2 : "auto", float or array of shape (n_components,), default="auto"
        Penalties of the ℓ₂ methods, in any order. ``"auto"`` minimises the condition number of
        the Hessian at the optimum.
    prior : {"geometric", "uniform"} or array of shape (n_components,), default="geometric"
        Distribution of the kept prefix length in nested dropout.
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
        Largest number of steps.
    tol : float, default=1e-6
        Descent stops when the direction is this small relative to curvature times weights.
    random_state : int, RandomState or None, default=None
        Seed of first weights, batches and masks.
    warm_start : bool, default=False
        Whether descent starts from the weights of the last fit.
    verbose : bool, default=False
        Whether to show progress.

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
        zero rows for dead latents.
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
        What descent recorded.
    certificate_ : Certificate
        How far the fit is from the optimum, and why.
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
        options = Options.of(self)
        X = validated_rows(self, X, reset=True, least=2, finite=False)
        weights = check_weights(sample_weight, X)
        source = source_of(X, weights, options.route)
        _check_weight(source.weight)
        kept = LinearKept(options, reference_of(X))
        if self.warm_start and hasattr(self, "_kept"):
            kept.previous = self._kept.previous
        kept.solve(source)
        self._kept = kept
        return self

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:  # noqa: ARG002
        """Go on with one more batch of rows, of any size.

        While an m × m matrix is affordable (m ≤ 8192) the second moment is updated, and after the
        last batch the result equals `fit` on all rows. Above, or with ``solver="stochastic"``,
        the rule takes one step per batch. What costs an eigendecomposition is computed when it is
        first read.

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
        options = Options.of(self)
        first = not hasattr(self, "_kept")
        X = validated_rows(self, X, reset=first, finite=False)
        weights = check_weights(sample_weight, X)
        if isinstance(options.n_components, int) and options.n_components > X.shape[1]:
            raise ValueError(
                f"n_components={options.n_components} was given, but X has {X.shape[1]} features."
            )
        kept = LinearKept(options, reference_of(X)) if first else self._kept
        kept.advance(options, X, weights)
        self._kept = kept
        return self

    def transform(self, X: Any) -> Array:
        """Encode rows: (X − mean) W₁ᵀ, divided by the codes' deviations if whitened.

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
        model = self._kept.model
        encoder = model.encoder
        if self.whiten:
            encoder = encoder / model.code_deviations[:, None]
        if scipy.sparse.issparse(X):
            return np.asarray(X @ encoder.T - encoder @ model.mean, dtype=X.dtype)
        mean, encoder = like(model.mean, X), like(encoder, X)
        return (X - mean) @ encoder.mT

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
        model = self._kept.model
        codes = _check_codes(X, model.atoms.shape[0])
        atoms = model.atoms
        if self.whiten:
            atoms = atoms * model.code_deviations[:, None]
        return codes @ like(atoms, codes) + like(model.mean, codes)

    def _draw_certificate(self) -> Certificate:
        return self._kept.draw(type(self).__name__)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


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
