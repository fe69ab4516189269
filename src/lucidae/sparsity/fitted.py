"""The fitted state of `SparseVAE`, stored apart from what it shows, to notice and check changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

from lucidae.arrays import (
    Array,
    device,
    is_array,
    namespace,
    to_numpy,
)
from lucidae.base import FittedState, changed_attributes
from lucidae.certificates.claims import Certificate
from lucidae.sparsity.posterior import Posterior, level_at_center
from lucidae.sparsity.whitening import NoiseCovariance
from lucidae.validation import real_array

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
    # noise variance of predictions (mean over the training rows, or error of held-out rows),
    # divided by the attribute ``noise_variance_``
    noise_level: float = 1.0
    noise_rule: str = ""  # how the noise variance was found, "given" if it was a number
    stability: dict[str, Any] | None = None  # of a path of noise variances, if one was computed
    # dictionary, responses, weights and noise covariance of the fit, and the norms of the columns,
    # unless they are large; neither saved nor pickled
    data: tuple[Any, Any, Any, Any, Any] | None = None

    def move_beside(self, ref: Array) -> None:
        """Move the fitted attributes to the library and the device of the array `ref`."""
        for name, value in self.results.items():
            if isinstance(value, np.ndarray) and name != "noise_variances_":
                self.results[name] = namespace(ref).asarray(value, device=device(ref))

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

    def predicted(self, rows: Any, coef: Any, intercept: Any) -> Any:
        """Return the predictions for `rows`, in double precision, of shape (n_rows, n_outputs)."""
        used = np.flatnonzero(coef.any(axis=0))
        center, rest = self.center, 0.0 if self.rest is None else self.rest
        level = level_at_center(coef, intercept, center + rest, self.level)
        return self._moved(rows, used) @ coef[:, used].T + level

    def _moved(self, rows: Any, columns: Any) -> Any:
        """Return some columns of rows minus the mean of the training rows, in double precision."""
        part = rows[:, columns]
        part = part.toarray() if scipy.sparse.issparse(part) else part
        moved = part - self.center[columns]
        return moved if self.rest is None else moved - self.rest[columns]

    def variances(self, rows: Any) -> Any:
        """Return the posterior variance of the mean predicted for each row, without the noise."""
        return self.posterior.variance(self._moved(rows, self.posterior.involved))

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


def checked_attributes(fitted: dict[str, Any], n_columns: int, n_outputs: int) -> dict[str, Any]:
    """Return fitted attributes after checking shapes and types; users may have assigned them."""
    checked, flat = dict(fitted), np.ndim(to_numpy(fitted["coef_"])) == 1
    shapes: dict[str, list[tuple[int, ...]]] = {
        "coef_": [(n_columns,) if flat and n_outputs == 1 else (n_outputs, n_columns)],
        "relevance_": [(n_columns,)],
        "intercept_": [(n_outputs,), ()],
    }
    for name, allowed in shapes.items():
        values = to_numpy(real_array(fitted[name], name, accept_complex=name != "relevance_"))
        if tuple(values.shape) not in allowed:
            _refuse(name, f"an array of shape {tuple(values.shape)}", f"{allowed[0]}")
        checked[name] = values
    checked["coef_"] = checked["coef_"][None, :] if flat else checked["coef_"]
    if "group_covariances_" in checked:
        given = to_numpy(fitted["group_covariances_"])
        if given.ndim != 3 or given.dtype.kind not in "iufc":
            wanted = "numbers of shape (n_groups, m, m), for groups of at most m columns"
            _refuse("group_covariances_", f"an array of shape {given.shape}", wanted)
        checked["group_covariances_"] = given
    for name in ("noise_variance_", "energy_"):
        try:  # NaN and infinity pass, so that a certificate can refute them
            checked[name] = float(fitted[name])
        except (TypeError, ValueError):
            _refuse(name, repr(fitted[name]), "a real number")
    support = to_numpy(fitted["support_"])
    whole = support.ndim == 1 and (support.dtype.kind in "iu" or not support.size)
    if not whole or np.unique(support[(support >= 0) & (support < n_columns)]).size < support.size:
        wanted = f"different integers in [0, {n_columns - 1}], the indices of columns"
        _refuse("support_", repr(fitted["support_"]), wanted)
    checked["support_"] = support.astype(int)
    if "response_covariance_" in fitted:
        given = to_numpy(real_array(fitted["response_covariance_"], "response_covariance_"))
        checked["response_covariance_"] = given.astype(np.float64)
    return checked


def _refuse(name: str, given: str, wanted: str) -> None:
    """Raise the error for a fitted attribute that a user has overwritten with something else."""
    raise ValueError(
        f"the fitted attribute {name} was overwritten with {given}, expected {wanted}: fit again, "
        "or assign what is expected."
    )


def is_covariance(matrices: Any) -> bool:
    """Tell whether all matrices of a stack are finite, symmetric and positive semi-definite."""
    if not np.isfinite(matrices).all():
        return False
    scale = np.abs(matrices).max(axis=(1, 2), initial=0.0)
    gap = np.abs(matrices - np.swapaxes(matrices, 1, 2).conj()).max(axis=(1, 2), initial=0.0)
    values = np.linalg.eigvalsh(matrices)
    return bool((gap <= 1e-10 * scale).all() and (values[:, 0] >= -1e-10 * scale).all())
