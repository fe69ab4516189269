"""The fitted state of `SparseVAE`, stored apart from what it shows, to notice changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse

from lucidae.arrays import (
    Array,
    as_double,
    device,
    is_array,
    matched,
    namespace,
    of_one_kind,
    to_numpy,
)
from lucidae.base import FittedState, changed_attributes
from lucidae.certificates.claims import Certificate
from lucidae.sparsity.posterior import Posterior, level_at_center
from lucidae.sparsity.whitening import NoiseCovariance

CERTIFIED_PARAMETERS = (
    "posterior",
    "penalty",
    "groups",
    "group_covariance",
    "noise_variance",
    "fit_intercept",
    "tol",
    "significance",
    "response_covariance",
)
"""Names of the parameters of `SparseVAE` on which its certificate depends."""


@dataclass(eq=False)
class SparseState(FittedState):
    """Fitted state of `SparseVAE`: attributes, posterior, means and measured values."""

    results: dict[str, Any]  # the fitted attributes by name
    posterior: Posterior  # posterior covariance of the coefficients on the active columns
    # (n_features,): weighted mean of the training rows, rounded to float64; zero without an
    # intercept
    center: Array
    # function that certifies the fit on the data that it holds; None if the certificate is stored
    verify: Callable[[], Certificate] | None
    # (n_features,): difference between the exact weighted mean of the training rows and `center`
    rest: Array | None = None
    level: Array | None = None  # (n_outputs,): prediction for the mean training row
    # the parameters of the fit that its certificate depends on; earlier versions saved none
    parameters: dict[str, Any] | None = None
    # mean noise variance of the training rows, divided by the attribute ``noise_variance_``
    noise_level: float = 1.0
    noise_rule: str = ""  # how the noise variance was found, "given" if it was a number
    stability: dict[str, Any] | None = None  # of a path of noise variances, if one was computed
    # dictionary, responses, weights and noise covariance of the fit, and the norms of the columns,
    # unless they are large; neither saved nor pickled
    data: tuple[Any, Any, Any, Any, Any] | None = None

    def move_beside(self, ref: Array) -> None:
        """Move fitted attributes and posterior to the library and the device of the array `ref`."""

        def moved(values: Any) -> Array:
            return namespace(ref).asarray(values, device=device(ref))

        for name, value in self.results.items():
            if isinstance(value, np.ndarray) and name != "noise_variances_":
                self.results[name] = moved(value)
        found = self.posterior
        self.posterior = replace(found, roots=moved(found.roots), factor=moved(found.factor))

    def add_noise(self, cov: NoiseCovariance | None, weights: Array | None) -> None:
        """Store ``noise_variances_``, one per training row, if a covariance `cov` is given."""
        if cov is not None:
            variances = self.results["noise_variance_"] * cov.variances
            self.results["noise_variances_"] = variances
            shares = None if weights is None else to_numpy(weights)
            self.noise_level = float(np.average(cov.variances, weights=shares))

    def learned_noise(self, n_rows: int) -> NoiseCovariance | None:
        """Return the learned covariance of the noise of `n_rows` rows; None if none was learned."""
        if self.noise_rule != "learn_diagonal":
            return None
        variances = self.results["noise_variances_"]
        if len(variances) != n_rows:
            raise ValueError(
                f"The noise variances of {len(variances)} rows were learned, but {n_rows} rows "
                "were given: give as many rows as fit had, or their noise as noise_cov."
            )
        return NoiseCovariance(variances / self.results["noise_variance_"])

    def moved(self, rows: Array) -> Array:
        """Return rows minus the mean of the training rows, in double precision."""
        wide = as_double(rows)
        moved = wide - matched(self.center, wide)
        return moved if self.rest is None else moved - matched(self.rest, wide)

    def predicted(self, rows: Array, coef: Any, intercept: Any) -> Array:
        """Return the predictions for `rows`, in double precision, of shape (n_rows, n_outputs)."""
        if scipy.sparse.issparse(rows):
            return self._predicted_sparse(rows, coef, intercept)
        wide = as_double(rows)
        coef = matched(coef, wide)
        center = matched(self.center, wide)
        center = center if self.rest is None else center + matched(self.rest, wide)
        level = None if self.level is None else matched(self.level, wide)
        moved, transposed = of_one_kind(self.moved(wide), coef.mT)
        return moved @ transposed + level_at_center(coef, intercept, center, level)

    def _predicted_sparse(self, rows: Any, coef: Any, intercept: Any) -> Array:
        """Return the predictions for sparse rows from the columns with non-zero coefficients."""
        coef = to_numpy(coef).astype(np.float64)
        used = np.flatnonzero(coef.any(axis=0))
        narrow = self._restricted(used)
        return narrow.predicted(rows[:, used].toarray(), coef[:, used], intercept)

    def _restricted(self, columns: Any) -> SparseState:
        """Return the state with the means of some columns only; `columns` are their indices."""
        rest = None if self.rest is None else to_numpy(self.rest)[columns]
        return replace(self, center=to_numpy(self.center)[columns], rest=rest)

    def variances(self, rows: Array) -> Array:
        """Return the posterior variance of the mean predicted for each row, without the noise."""
        if scipy.sparse.issparse(rows):
            active = to_numpy(self.posterior.active)
            moved = self._restricted(active).moved(rows[:, active].toarray())
            return self.posterior.active_variance(moved)
        return self.posterior.variance(self.moved(rows))

    def compute_attributes(self) -> dict[str, Any]:
        """Return copies of the fitted attributes by name, into which a user may write."""
        return {name: _copied(value) for name, value in self.results.items()}

    def changed_attributes(self, assigned: Mapping[str, Any]) -> dict[str, float]:
        """Return the attributes that a user assigned or changed in place, with their difference."""
        shown = dict(self._attributes or {}) | dict(assigned)
        shown.pop("history_", None)
        known = {name: value for name, value in shown.items() if name in self.results}
        return changed_attributes(known, self.results)

    def changed_in_place(self) -> dict[str, Any]:
        """Return the fitted attributes that a user changed in place."""
        return {name: (self._attributes or {})[name] for name in self.changed_attributes({})}

    @property
    def keeps_certificate(self) -> bool:
        """Whether the certificate is saved: always, because the data are not stored."""
        return True

    def __getstate__(self) -> dict[str, Any]:
        """Return what pickle writes: attributes that were changed in place, and the certificate."""
        self.certificate("SparseVAE")
        changed = {"_attributes": self._attributes} if self.changed_in_place() else {}
        return super().__getstate__() | changed | {"verify": None, "data": None}

    def compute_certificate(self, title: str) -> Certificate:  # noqa: ARG002
        """Return the certificate; the data from which it is computed are released."""
        if self.verify is None:
            raise ValueError("the data of the fit are no longer there: call certify with them.")
        found = self.verify()
        self.verify = None
        return found


def _copied(value: Any) -> Any:
    """Return a copy of an array, and any other value as it is."""
    mutable = is_array(value) and value.ndim > 0
    return namespace(value).asarray(value, copy=True) if mutable else value
