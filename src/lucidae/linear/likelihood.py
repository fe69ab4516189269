"""The Gaussian that a linear autoencoder implies: probabilistic PCA on its subspace."""

from __future__ import annotations

from typing import Any

from sklearn.utils.validation import check_is_fitted

from lucidae._arrays import Array, as_double, like, namespace
from lucidae._estimators import validated_rows
from lucidae.linear.kept import LinearKept


class GaussianMixin:
    """Log-likelihood, covariance and precision of the fitted model, as in scikit-learn's PCA."""

    _kept: LinearKept

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
        model = self._kept.model
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
        return self._kept.shown(self._kept.model.covariance())

    def get_precision(self) -> Array:
        """Return the inverse of the covariance that the model implies, shape (m, m)."""
        check_is_fitted(self)
        return self._kept.shown(self._kept.model.precision())
