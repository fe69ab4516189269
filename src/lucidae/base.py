"""Base of all estimators: fitted state, `certificate_`, HTML representation, input validation."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import cache, wraps
from typing import Any, TypeVar

import numpy as np
import scipy.sparse
from sklearn.utils.validation import check_is_fitted

from lucidae.arrays import Array, is_array, to_numpy, zeros_like_shape
from lucidae.certificates.claims import Certificate, undecided
from lucidae.iteration.progress import TIMED_FEATURES, elapsed, elapsed_on
from lucidae.validation import check_rows

CHANGED = 16.0
"""An attribute counts as changed if its relative difference exceeds this many machine epsilons.

Differences from the fitted attribute are divided by its largest entry if it is a matrix, and entry
by entry if it is a vector. The machine epsilon is that of the attribute's dtype."""

Method = TypeVar("Method", bound=Callable[..., Any])


class FittedState(ABC):
    """Private fitted state of an estimator: summaries of the data, and values computed from them.

    The fitted attributes and the certificate are computed when they are first read. They are cached
    here, because scikit-learn forbids an estimator to change its ``__dict__`` when an attribute is
    read. A state contains small summaries (such as a second moment). It may refer to training rows,
    without a copy, until the certificate is computed from them, but never saves them. It is
    pickled with its estimator, and `lucidae.save` writes its snapshot (`lucidae.models`).
    """

    _attributes: Mapping[str, Any] | None = None
    _certificate: Certificate | None = None

    doubt: str | None = None  # why no certificate can be given, such as a file that was changed

    @abstractmethod
    def compute_attributes(self) -> Mapping[str, Any]:
        """Return the fitted attributes by name, such as ``components_``."""

    @abstractmethod
    def compute_certificate(self, title: str) -> Certificate:
        """Return the certificate, under the given title.

        It is computed from the stored summaries of the data.
        """

    @property
    def attributes(self) -> Mapping[str, Any]:
        """The fitted attributes by name; they are computed when they are first read."""
        if self._attributes is None:
            self._attributes = self.compute_attributes()
        return self._attributes

    def certificate(self, title: str) -> Certificate:
        """Return the certificate; it is computed once and cached.

        If computing it raises an error, a certificate with one undecided claim is returned, which
        quotes the error. Reading never raises, because scikit-learn's HTML representation reads
        every attribute. The next call tries again, since a lack of memory may have passed.
        """
        why = self.doubt
        if why is None:
            try:
                if self._certificate is None:
                    self._certificate = self.compute_certificate(title)
                return self._certificate
            except Exception as error:
                why = f"Computing the certificate raised {type(error).__name__}: {error}"
        claim = undecided("certificate", "the fitted parameters are optimal", "", why)
        return Certificate(title, (claim,))

    @property
    def keeps_certificate(self) -> bool:
        """Whether `lucidae.save` writes the certificate.

        It does if the certificate cannot be computed again from the stored summaries of the data.
        """
        return False

    def __getstate__(self) -> dict[str, Any]:
        left_out = {"_attributes"} if self.keeps_certificate else {"_attributes", "_certificate"}
        return {name: value for name, value in vars(self).items() if name not in left_out}

    def changed_in_place(self) -> dict[str, Any]:
        """Return the fitted attributes that a user changed in place and that predictions use."""
        return {}

    def changed(self) -> None:
        """Discard the cached fitted attributes and the cached certificate.

        Call this after a change of the stored summaries of the data, from which both are computed.
        """
        self._attributes = self._certificate = None


class Fitted:
    """Descriptor of a fitted attribute, which reads its value from the estimator's `FittedState`.

    Before `fit`, reading the attribute raises an AttributeError. A value that a user assigns to the
    attribute takes precedence over the fitted one.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        state = instance.__dict__.get("_state")
        if state is None:
            raise AttributeError(
                f"{type(instance).__name__} has no attribute {self._name} before it is fitted. "
                "Call fit first."
            )
        if self._name not in state.attributes:
            raise AttributeError(
                f"this {type(instance).__name__} has no attribute {self._name}: with its arguments "
                "and data, fit does not compute it."
            )
        return state.attributes[self._name]


@cache
def fitted_names(kind: type) -> frozenset[str]:
    """Return the names of the fitted attributes (`Fitted` descriptors) of a class."""
    return frozenset(
        name
        for parent in kind.__mro__
        for name, value in vars(parent).items()
        if isinstance(value, Fitted)
    )


def replaced_attributes(estimator: Any) -> dict[str, Any]:
    """Return the fitted attributes that users read from elsewhere than the fitted state.

    They were assigned, or a subclass overrides them. A certificate judges what users read.
    """
    kind = type(estimator)
    return {
        name: getattr(estimator, name)
        for name in fitted_names(kind)  # type: ignore[arg-type]
        if name in vars(estimator) or not isinstance(getattr(kind, name), Fitted)
    }


def fitting_method(method: Method) -> Method:
    """Decorate a method that fits, such as `fit`: it shows its time, and changes all or nothing.

    If it makes a new fitted state, fitted attributes that a user had assigned are removed, so that
    those of the new fit are read. If it raises, every attribute gets its old value back, whatever
    was raised (also KeyboardInterrupt, and a warning that a filter turns into an error). The values
    themselves are not copied, so `method` must not change the old fitted state in place; it has to
    make a new one. The estimator's parameter `verbose` decides whether the time is shown.
    """

    @wraps(method)
    def fitted(self: Any, *args: Any, **kwargs: Any) -> Any:
        before, data = dict(vars(self)), next(iter((*args, *kwargs.values())), None)
        title, verbose = f"fitting {type(self).__name__}", getattr(self, "verbose", "auto")
        try:
            with elapsed_on(data, title, verbose):
                found = method(self, *args, **kwargs)
        except BaseException:
            self.__dict__ = before  # one assignment, which a second interrupt cannot divide
            raise
        if vars(self).get("_state") is not before.get("_state"):
            for name in fitted_names(type(self)) & before.keys():  # type: ignore[arg-type]
                self.__dict__.pop(name, None)
        return found

    return fitted  # type: ignore[return-value]


class CertifiedMixin:
    """Mixin that adds `certificate_`, and shows it in HTML."""

    _state: Any

    @property
    def certificate_(self) -> Certificate:
        """Checked statements (claims) on how far the fitted parameters are from the optimum."""
        check_is_fitted(self)
        state, name = self._state, type(self).__name__
        verbose = getattr(self, "verbose", "auto")
        slow = getattr(self, "n_features_in_", 0) >= TIMED_FEATURES and state._certificate is None
        with elapsed(f"{name}, certificate", verbose) if slow else nullcontext():
            certificate: Certificate = state.certificate(name)
        named = certificate._named(getattr(self, "feature_names_in_", None))
        if state._certificate is certificate:
            state._certificate = named
        return named

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
        return self.certificate_._folded_html() if self.__sklearn_is_fitted__() else ""


def reference_array(X: Any) -> Array:
    """Return an empty array of the library, dtype and device of X, from which these can be read.

    For a sparse matrix it is a NumPy array.
    """
    plain = isinstance(X, np.ndarray) or scipy.sparse.issparse(X)
    return np.empty(0, dtype=X.dtype) if plain else zeros_like_shape((0,), X)


def checked_codes(X: Any, width: int) -> Array:
    """Return the codes X given to `inverse_transform` if they have `width` columns.

    Another number of columns raises a ValueError.
    """
    codes = check_rows(X, accept_sparse=False)
    if codes.shape[1] != width:
        raise ValueError(
            f"X has {codes.shape[1]} columns, expected {width} codes per row. Give codes as "
            "`transform` returns them."
        )
    return codes


def changed_attributes(shown: Mapping[str, Any], fitted: Mapping[str, Any]) -> dict[str, float]:
    """Return the attributes that a user changed after `fit`, each with the size of the change."""
    differences = {name: _change(shown[name], fitted[name]) for name in shown}
    return {name: size for name, size in differences.items() if not size <= 0.0}


def _change(shown: Any, fitted: Any) -> float:
    """Return the relative difference between the current and the fitted value of an attribute.

    It is 0 if rounding errors explain the difference, and infinite if the current value has
    another shape or contains NaN or infinity.
    """
    if shown is fitted:
        return 0.0
    if not is_array(fitted) and not isinstance(fitted, int | float | complex):
        return 0.0 if type(shown) is type(fitted) and shown == fitted else math.inf
    expected = to_numpy(fitted)
    floats = expected.dtype if expected.dtype.kind in "fc" else np.dtype(float)
    try:
        found = np.asarray(to_numpy(shown))
        kind = complex if "c" in (found.dtype.kind, expected.dtype.kind) else float
        found, expected = found.astype(kind), expected.astype(kind)
    except (TypeError, ValueError):
        return math.inf
    if found.shape != expected.shape or not np.all(np.isfinite(found)):
        return math.inf
    # Each entry of a vector has its own size, such as the variance of a component. An empty array,
    # such as `support_` without columns, has no entry that could differ.
    sizes = np.abs(expected)
    sizes = sizes if expected.ndim == 1 else np.max(sizes, initial=0.0)
    with np.errstate(over="ignore"):
        ratios = np.abs(found - expected) / np.maximum(sizes, float(np.finfo(float).tiny))
    size = float(np.max(ratios, initial=0.0))
    return 0.0 if size <= CHANGED * float(np.finfo(floats).eps) else size
