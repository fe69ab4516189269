"""What all estimators share: a certificate, where people look for it, and validated rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted, validate_data

from lucidae._arrays import Array, is_array, is_numpy
from lucidae._validation import check_rows
from lucidae.certificate import Certificate, does_not_apply


class Kept:
    """What a fit keeps to itself, outside the estimator's own attributes.

    Reading an attribute may compute and cache, which scikit-learn forbids in the estimator's
    `__dict__`; in here it is allowed.
    """

    certificate: Certificate | None = None


class CertifiedMixin:
    """Give an estimator its `certificate_`, and show it in the HTML representation."""

    _kept: Any

    def _draw_certificate(self) -> Certificate:
        """Return the certificate; each estimator says how."""
        raise AttributeError(f"{type(self).__name__} draws no certificate")

    @property
    def certificate_(self) -> Certificate:
        """How far the fit is from the optimum that theory promises, and why."""
        check_is_fitted(self)
        if self._kept.certificate is None:
            self._kept.certificate = self._drawn_safely()
        certificate: Certificate = self._kept.certificate
        return certificate

    def _drawn_safely(self) -> Certificate:
        """Draw the certificate; what goes wrong becomes a claim that does not apply."""
        try:
            return self._draw_certificate()
        except Exception as error:
            why = f"the certificate could not be drawn: {error}"
            return Certificate(
                type(self).__name__,
                (does_not_apply("certificate", "the fit is certified", "", why),),
            )

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_kept")

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
    """Return checked rows and keep the estimator's feature count and names.

    NumPy, data frames and sparse matrices go through scikit-learn; arrays of other libraries stay
    in their library and on their device. Without `finite` the entries are not looked at: the
    caller sums their squares and sees it there.
    """
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
