"""`certify`, and the registry of the functions by which it judges the families of models.

Each family (linear, dropout, sparsity) registers the function that certifies its weights with the
decorator `certifies`. This module therefore does not import the families.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

from lucidae.certificates.claims import Certificate
from lucidae.iteration.progress import elapsed_on

__all__ = ["certifies", "certify", "check_settings"]

Certifier = Callable[..., Certificate]

# The registered functions that certify weights, by name of the family: see `certifies`.
_CERTIFIERS: dict[str, Certifier] = {}


def certifies(family: str) -> Callable[[Certifier], Certifier]:
    """Return a decorator that registers the function by which `certify` judges a family of models.

    Parameters
    ----------
    family : str
        ``"linear"`` or ``"dropout"`` for pairs of weights, ``"sparsity"`` for coefficients, or
        ``"components"`` for fitted objects of other libraries that have ``components_``.

    Returns
    -------
    callable
        Decorator that stores its function under `family` and returns it unchanged.
    """

    def register(certifier: Certifier) -> Certifier:
        _CERTIFIERS[family] = certifier
        return certifier

    return register


def certify(subject: Any, X: Any = None, y: Any = None, **settings: Any) -> Certificate:
    """Judge how close fitted weights are to the optimum that theory gives for the data.

    The result lists claims, such as "the loss is its global minimum", each with the theorem, the
    measured value and the verdict.

    Parameters
    ----------
    subject : estimator, pair of arrays, or array
        A fitted estimator of this package, or a result of `lucidae.sparsity.solve_joint`; any
        fitted object with ``components_`` and optionally ``mean_`` and ``explained_variance_``,
        such as scikit-learn's ``PCA``, ``IncrementalPCA`` and ``TruncatedSVD``; a pair of weights,
        ``(encoder, decoder)`` with ``family="linear"`` or ``(U, V)`` with ``family="dropout"``; or
        the coefficients of a sparse regression, shaped as ``coef_``.
    X : array-like, optional
        The rows of data on which the fit is judged. For the coefficients of a sparse regression,
        the dictionary: d rows, and one column per coefficient. If X is None, an estimator is judged
        on the statistics of the training rows that `fit` stored.
    y : array-like, optional
        The targets, one row per row of X. Required for coefficients; not used by the linear family.
    **settings
        For an estimator or an object with ``components_``: `sample_weight`. For a pair of weights:
        `family`, and the settings with which the weights were trained, which are arguments of
        `LinearAutoencoder` for ``family="linear"``, and `dropout`, `tied` and `matrix` for
        ``family="dropout"``. For coefficients: `noise_variance`.

    Returns
    -------
    Certificate
        The claims with their verdicts; `holds` is the overall verdict.

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
    if X is None:
        return _certified(subject, X, y, settings)
    with elapsed_on(X, "certificate", getattr(subject, "verbose", "auto")):
        return _certified(subject, X, y, settings)


def _certified(subject: Any, X: Any, y: Any, settings: dict[str, Any]) -> Certificate:
    """Return the certificate of `subject` on the rows X and the targets y, as `certify` does."""
    name = type(subject).__name__
    if hasattr(type(subject), "_certify_on"):
        check_settings(settings, _keywords(subject._certify_on), name)
        _check_rows_given(X, {"y": y} | settings)
        if X is None:
            return subject.certificate_  # type: ignore[no-any-return]
        certificate: Certificate = subject._certify_on(X, y, **settings)
        return certificate._named(getattr(subject, "feature_names_in_", None))
    for family in ("linear", "dropout", "sparsity"):  # importing one registers its certifier
        import_module(f"lucidae.{family}")
    if isinstance(subject, tuple | list) and len(subject) == 2 and "family" in settings:
        return _certify_pair(subject[0], subject[1], X, y, **settings)
    if hasattr(subject, "components_"):
        check_settings(settings, _keywords(_CERTIFIERS["components"]), name)
        return _CERTIFIERS["components"](subject, X, **settings)
    if hasattr(subject, "shape"):
        check_settings(settings, _keywords(_CERTIFIERS["sparsity"]), "coefficients")
        if X is None or y is None:
            raise ValueError(
                "certify was called with coefficients but without the dictionary (X) or the "
                "responses (y): give both."
            )
        return _CERTIFIERS["sparsity"](subject, X, y, **settings)
    raise ValueError(
        f"certify got an object of type {name}, expected a fitted estimator of lucidae, a fitted "
        "object with components_, a pair of weights with family='linear' or family='dropout', or "
        "an array of coefficients."
    )


def check_settings(given: Iterable[str], allowed: Iterable[str], subject: str) -> None:
    """Raise a ValueError if `certify` was called with a keyword that it does not take.

    Parameters
    ----------
    given : iterable of str
        Names of the keywords of the call.
    allowed : iterable of str
        Names of the keywords that are allowed.
    subject : str
        Description of what is certified, which completes the message "but the keywords for … are".
    """
    names, unknown = list(allowed), [name for name in given if name not in set(allowed)]
    if unknown:
        known = ", ".join(names) if names else "none"
        raise ValueError(
            f"certify was called with {', '.join(unknown)}, but the keywords for {subject} are: "
            f"{known}."
        )


def _check_rows_given(X: Any, others: dict[str, Any]) -> None:
    """Raise an error if targets or weights of rows were given without the rows X themselves."""
    given = [name for name, value in others.items() if value is not None]
    if X is None and given:
        raise ValueError(
            f"certify was called with {' and '.join(given)} but without X: an estimator is then "
            "certified on what fit stored of its training rows, which cannot be combined with "
            f"other data. Give X too, or leave out {' and '.join(given)}."
        )


def _keywords(function: Callable[..., Any]) -> list[str]:
    """Return the names of a certifying function's optional arguments, apart from X, Y and y."""
    parameters = inspect.signature(function).parameters.values()
    return [
        given.name
        for given in parameters
        if given.kind is given.KEYWORD_ONLY
        or (given.default is not given.empty and given.name not in ("X", "Y", "y"))
    ]


def _certify_pair(first: Any, second: Any, X: Any, y: Any, **settings: Any) -> Certificate:
    family = settings.pop("family")
    if not isinstance(family, str) or family not in ("linear", "dropout"):
        raise ValueError(f"family={family!r} was given, expected 'linear' or 'dropout'.")
    if family == "linear" and X is None:
        raise ValueError(
            "certify was called with weights but without data: give the rows X, or their "
            "SecondMoment."
        )
    if family == "dropout":
        check_settings(settings, ["family", *_keywords(_CERTIFIERS[family])], "a pair of weights")
    data = (X,) if family == "linear" else (X, y)
    return _CERTIFIERS[family](first, second, *data, **settings)
