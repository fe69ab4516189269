"""Base of all estimators: fitted state, `certificate_`, HTML representation, validated rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cache, wraps
from typing import Any, TypeVar

import numpy as np
import scipy.sparse
from sklearn.utils.validation import check_is_fitted, validate_data

from lucidae.arrays import Array, is_array, is_numpy, zeros_like_shape
from lucidae.certificate import Certificate, undecided
from lucidae.validation import check_kind, check_rows

__all__ = [
    "PROBED_ENTRIES",
    "CertifiedMixin",
    "Fitted",
    "FittedState",
    "checked_codes",
    "reference_array",
    "restored_on_failure",
    "validated_rows",
]

Method = TypeVar("Method", bound=Callable[..., Any])

PROBED_ENTRIES = 2_000_000
"""Largest number of entries of the data for which a fit compares its second moment with the rows.

On more data the additional pass would take a tenth of the time of a fit or more."""


class FittedState(ABC):
    """Private fitted state of an estimator: stored summaries, and values computed on first access.

    scikit-learn forbids an estimator to change its ``__dict__`` when an attribute is read, so
    everything that is computed on demand is cached here. A state contains small summaries (a
    moment, a posterior, figures), never the training data. It is pickled with its estimator, and
    `lucidae.save` writes all its attributes under the tag that `saved_as` gave to its class.
    """

    _attributes: Mapping[str, Any] | None = None
    _certificate: Certificate | None = None

    @abstractmethod
    def compute_attributes(self) -> Mapping[str, Any]:
        """Return the fitted attributes by name, such as ``components_``."""

    @abstractmethod
    def compute_certificate(self, title: str) -> Certificate:
        """Return the certificate, computed from the stored summaries."""

    @property
    def attributes(self) -> Mapping[str, Any]:
        """The fitted attributes by name."""
        if self._attributes is None:
            self._attributes = self.compute_attributes()
        return self._attributes

    def certificate(self, title: str) -> Certificate:
        """Return the certificate, computed once; after an error its one claim is undecided.

        scikit-learn's HTML representation reads every attribute, so reading must never raise. The
        next reading tries again, because the error may have been one of memory.
        """
        if self._certificate is None:
            try:
                self._certificate = self.compute_certificate(title)
            except Exception as error:
                why = f"The certificate could not be computed: {type(error).__name__}: {error}"
                claim = undecided("certificate", "the fit is optimal", "", why)
                return Certificate(title, (claim,))
        return self._certificate

    @property
    def keeps_certificate(self) -> bool:
        """Whether the certificate is saved, because the summaries do not suffice to compute it."""
        return False

    def saved_fields(self) -> dict[str, Any]:
        """Return what `lucidae.save` and pickle write: not what can be computed again."""
        left_out = {"_attributes"} if self.keeps_certificate else {"_attributes", "_certificate"}
        return {name: value for name, value in vars(self).items() if name not in left_out}

    def __getstate__(self) -> dict[str, Any]:
        return self.saved_fields()

    def changed(self) -> None:
        """Discard the cached values, because the stored summaries have changed."""
        self._attributes = self._certificate = None


class Fitted:
    """A fitted attribute: absent before `fit`, read from the estimator's `FittedState`.

    It is a non-data descriptor: a value that a user assigns to the attribute takes precedence.

    Examples
    --------
    >>> class Estimator:
    ...     coef_ = Fitted()
    >>> hasattr(Estimator(), "coef_")
    False
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        state = instance.__dict__.get("_state")
        if state is None:
            raise AttributeError(f"{type(instance).__name__} has no {self._name} before fit.")
        if self._name not in state.attributes:
            raise AttributeError(f"this fit of {type(instance).__name__} has no {self._name}.")
        return state.attributes[self._name]


class StateSlot:
    """The attribute `_state` of an estimator.

    A new state replaces the fitted attributes of the last fit, also those that a user assigned.
    """

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        if "_state" not in instance.__dict__:
            raise AttributeError(f"{type(instance).__name__} has no fitted state before fit.")
        return instance.__dict__["_state"]

    def __set__(self, instance: Any, state: FittedState) -> None:
        names = fitted_names(type(instance))  # type: ignore[arg-type]
        for name in names & instance.__dict__.keys():
            del instance.__dict__[name]
        instance.__dict__["_state"] = state


@cache
def fitted_names(kind: type) -> frozenset[str]:
    """Return the names of the `Fitted` attributes of a class."""
    return frozenset(
        name
        for parent in kind.__mro__
        for name, value in vars(parent).items()
        if isinstance(value, Fitted)
    )


def restored_on_failure(method: Method) -> Method:
    """Decorate `fit` or `partial_fit`: if it raises, the estimator is as it was before the call.

    Every attribute gets its old value back, whatever was raised (also KeyboardInterrupt, and a
    warning that a filter turns into an error): a fitted estimator keeps its last fit, and one that
    was not fitted stays so. The values themselves are not copied, so `method` must not change the
    old fitted state in place; it has to make a new one.

    Examples
    --------
    >>> class Estimator:
    ...     @restored_on_failure
    ...     def fit(self, X):
    ...         self.n_features_in_ = len(X[0])
    ...         raise ValueError("the rows are not finite")
    >>> estimator = Estimator()
    >>> estimator.fit([[float("nan")]])
    Traceback (most recent call last):
    ValueError: the rows are not finite
    >>> vars(estimator)
    {}
    """

    @wraps(method)
    def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = dict(vars(self))
        try:
            return method(self, *args, **kwargs)
        except BaseException:
            self.__dict__ = before  # one assignment, which a second interrupt cannot divide
            raise

    return guarded  # type: ignore[return-value]


def upgraded_estimator(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes of an estimator from those that lucidae 0.1.0 saved."""
    return {"_state" if name == "_kept" else name: value for name, value in fields.items()}


class CertifiedMixin:
    """Give an estimator its `certificate_`, and show it in the HTML representation."""

    _state: Any = StateSlot()

    @property
    def certificate_(self) -> Certificate:
        """Certificate of the fit: its distance to the optimum, claim by claim."""
        check_is_fitted(self)
        certificate: Certificate = self._state.certificate(type(self).__name__)
        return certificate

    def __sklearn_is_fitted__(self) -> bool:
        return "_state" in self.__dict__

    def _repr_html_inner(self) -> str:
        return super()._repr_html_inner() + self._certificate_card()  # type: ignore[misc,no-any-return]

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        bundle: dict[str, str] = super()._repr_mimebundle_(**kwargs)  # type: ignore[misc]
        if "text/html" in bundle:
            bundle["text/html"] += self._certificate_card()
        return bundle

    def _certificate_card(self) -> str:
        return self.certificate_._repr_html_() if self.__sklearn_is_fitted__() else ""


def validated_rows(
    estimator: Any,
    X: Any,
    *,
    reset: bool,
    least: int = 1,
    accept_sparse: bool = True,
    finite: bool = True,
) -> Array:
    """Return validated rows; if `reset`, store the number and names of the features.

    Without `reset` they are compared with those of the fit. NumPy arrays, data frames and sparse
    matrices are validated by scikit-learn; arrays of other libraries stay in their library and on
    their device. `least` is the smallest number of rows that is accepted. If `finite` is false, NaN
    and infinity are not searched for, because the caller detects them in the sums of squares.
    """
    X = check_kind(X, "X")
    if not is_array(X) or is_numpy(X):
        return validate_data(
            estimator,
            X,
            reset=reset,
            accept_sparse=("csr",) if accept_sparse else False,
            dtype=(np.float64, np.float32),
            ensure_min_samples=least,
            ensure_all_finite=finite,
        )
    X = check_rows(X, accept_sparse=accept_sparse, finite=finite)
    if X.shape[0] < least:
        raise ValueError(
            f"Found array with n_samples={X.shape[0]} while a minimum of {least} is required."
        )
    if reset:
        estimator.n_features_in_ = X.shape[1]
    elif X.shape[1] != estimator.n_features_in_:
        raise ValueError(
            f"X has {X.shape[1]} features, but {type(estimator).__name__} is expecting "
            f"{estimator.n_features_in_} features as input."
        )
    return X


def reference_array(X: Any) -> Array:
    """Return an empty array of the library, dtype and device of X, in which results are returned.

    For sparse rows it is a NumPy array.
    """
    return np.empty(0, dtype=X.dtype) if scipy.sparse.issparse(X) else zeros_like_shape((0,), X)


def checked_codes(X: Any, width: int) -> Array:
    """Check that the codes given to `inverse_transform` have `width` columns, and return them."""
    codes = check_rows(X, accept_sparse=False)
    if codes.shape[1] != width:
        raise ValueError(
            f"X has {codes.shape[1]} columns, expected {width} codes per row, as `transform` "
            "returns them."
        )
    return codes
