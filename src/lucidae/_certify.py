"""One door to the certificates of all families."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lucidae.certificate import Certificate
from lucidae.dropout import DropoutAutoencoder, DropoutFactorization, DropoutRegressor
from lucidae.dropout import certify as dropout
from lucidae.linear import certify as linear
from lucidae.linear.estimators import LinearAutoencoder
from lucidae.sparsity import certify as sparsity
from lucidae.sparsity.estimators import SparseVAE

__all__ = ["certify"]

_ESTIMATORS: dict[type, Callable[..., Certificate]] = {
    LinearAutoencoder: linear.certify_estimator,
    DropoutRegressor: dropout.certify_estimator,
    DropoutAutoencoder: dropout.certify_estimator,
    DropoutFactorization: dropout.certify_estimator,
    SparseVAE: sparsity.certify_estimator,
}


def certify(subject: Any, X: Any = None, y: Any = None, **settings: Any) -> Certificate:
    """Say how far a fit is from the optimum that theory promises, and why.

    Parameters
    ----------
    subject : estimator, pair of arrays, or array
        A fitted estimator of this package; a pair of weights, ``(encoder, decoder)`` with
        ``family="linear"`` or ``(U, V)`` with ``family="dropout"``; or the coefficients of a
        sparse regression, shaped as ``coef_``.
    X : array-like, optional
        The data; for coefficients, the dictionary Φ of shape (d, κ). An estimator can be
        certified without them, on what its fit kept.
    y : array-like, optional
        The targets; for coefficients, the responses of shape (d, n).
    **settings
        For an estimator, `sample_weight`. For weights, `family` and what they were trained for:
        the arguments of `LinearAutoencoder`, or `dropout`, `tied` and `matrix`. For
        coefficients, `noise_variance`.

    Returns
    -------
    Certificate

    Examples
    --------
    >>> import numpy as np
    >>> from lucidae import LinearAutoencoder, certify
    >>> X = np.random.default_rng(0).standard_normal((200, 4)) * [4, 3, 2, 1]
    >>> certify(LinearAutoencoder(2).fit(X), X).holds
    True
    >>> mixed = np.array([[0.6, 0.8, 0.0, 0.0], [-0.8, 0.6, 0.0, 0.0]])
    >>> certificate = certify((mixed, mixed.T), X, family="linear", method="rag")
    >>> certificate["subspace"].value < 0.01, certificate["alignment"].holds
    (True, False)
    """
    for kind, certify_estimator in _ESTIMATORS.items():
        if isinstance(subject, kind):
            return certify_estimator(subject, X, y, **settings)
    if isinstance(subject, tuple | list) and len(subject) == 2 and "family" in settings:
        return _certify_pair(subject[0], subject[1], X, y, **settings)
    if hasattr(subject, "shape"):
        return _certify_coefficients(subject, X, y, **settings)
    raise ValueError(
        f"{type(subject).__name__} was given, expected a fitted estimator of lucidae, a pair of "
        "weights with family='linear' or family='dropout', or an array of coefficients."
    )


def _certify_pair(first: Any, second: Any, X: Any, y: Any, **settings: Any) -> Certificate:
    family = settings.pop("family")
    if family == "linear":
        if X is None:
            raise ValueError("weights are certified on data: give X or its SecondMoment.")
        return linear.certify_weights(first, second, X, **settings)
    if family == "dropout":
        return dropout.certify_weights(first, second, X, y, **settings)
    raise ValueError(f"family={family!r} was given, expected 'linear' or 'dropout'.")


def _certify_coefficients(coef: Any, X: Any, y: Any, **settings: Any) -> Certificate:
    if X is None or y is None:
        raise ValueError(
            "coefficients are certified with their dictionary and responses: give X and y."
        )
    return sparsity.certify_coefficients(coef, X, y, **settings)
