"""The fitted state of `SparseVAE`, stored apart from what it shows, to notice and check changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import numpy as np
import scipy.sparse

from lucidae.arrays import (
    Array,
    as_double,
    device,
    is_array,
    like,
    machine_epsilon,
    namespace,
    to_numpy,
)
from lucidae.base import FittedState, changed_attributes
from lucidae.certificates.claims import Certificate, undecided
from lucidae.iteration import limited_blas
from lucidae.rows.operator import TrainingRows
from lucidae.sparsity.claims import certificate_of, plain
from lucidae.sparsity.covariances import checked_noise_cov, whitened_rows
from lucidae.sparsity.objectives import Energy, as_penalty, evaluate, make_objective, stored_penalty
from lucidae.sparsity.posterior import Posterior, level_at_center
from lucidae.sparsity.prior import Groups
from lucidae.sparsity.problem import (
    Problem,
    Rows,
    Units,
    dense_if_small,
    distinct_rows,
    refuse_extremes,
    sparse_rows,
)
from lucidae.sparsity.verify import HELD_OUT, EnergyKind, Fit, Sample, measure
from lucidae.validation import (
    check_row_count,
    check_rows,
    check_weights,
    has_complex,
    is_dask,
    real_array,
)

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

VERIFIED = ("full", "diagonal", "point")
"""Posteriors whose distance to stationarity the verifier computes; others report their own."""


LARGEST_WEIGHT = 1e150
"""Largest sum of weights, of which the energy is a multiple that must be finite."""

CHANGED_DATA = (
    "X or y were changed in place after fit, before certificate_ was read: call "
    "lucidae.certify(estimator, X, y) with the data that were given to fit."
)
"""Advice of a certificate whose training data were changed before it was computed."""


class SparseData(NamedTuple):
    """Checked data of a fit."""

    X: Any  # (d, κ): the dictionary
    y: Any  # (d, n): the responses
    weights: Any  # (d,): weights of the rows; None for 1 each
    noise_cov: Any  # covariance of their noise, or its diagonal; None for 1 each

    @classmethod
    def of(
        cls, estimator: Any, X: Any, y: Any, sample_weight: Any, noise_cov: Any, reset: bool = True
    ) -> SparseData:
        """Return checked data as NumPy arrays; `reset` says that they are those of a fit."""
        # 1) The kinds of X and y. A large sparse X becomes a CSR array, a small one is dense.
        if y is None:
            raise ValueError("SparseVAE requires y to be passed, but the target y is None.")
        for values, name in ((X, "X"), (y, "y")):
            if is_dask(values):
                raise ValueError(
                    f"{name} is a Dask collection, but SparseVAE needs the whole dictionary in "
                    f"memory: give {name}.compute(). LinearAutoencoder reads Dask arrays block by "
                    "block."
                )
        if scipy.sparse.issparse(X) and (X.dtype.kind == "c" or has_complex(y)):
            raise ValueError(
                "a sparse X was given with complex numbers in X or y, expected real numbers: give "
                "X.toarray() if it fits into memory."
            )
        X = dense_if_small(check_rows(X, estimator=estimator, reset=reset, accept_complex=True))
        y = check_rows(y, name="y", every_column=True, flat=True, accept_complex=True)
        check_row_count(X, y)
        # 2) The weights. Sums and squares must not leave the float64 range.
        weights = check_weights(sample_weight, X)
        for values, name in ((X, "X"), (y, "y")):
            refuse_extremes(values, name)
            if weights is not None:
                roots = namespace(weights).sqrt(weights)[:, None]
                sparse = scipy.sparse.issparse(values)
                weighted = values.multiply(roots) if sparse else as_double(values) * roots
                refuse_extremes(weighted, f"{name} times the square roots of sample_weight")
        total = 0.0 if weights is None else float(to_numpy(weights).sum())
        if total > LARGEST_WEIGHT:
            raise ValueError(
                f"sample_weight sums to {total:.3g}; the energy, which grows with this sum, may "
                "leave the range of float64. Rescale the weights so that they sum to at most "
                f"{LARGEST_WEIGHT:g}."
            )
        X, y = to_numpy(X) if is_array(X) else X, as_double(to_numpy(y))
        weights = None if weights is None else to_numpy(weights)
        if noise_cov is not None:
            noise_cov = checked_noise_cov(noise_cov, X, y, weights)
        return cls(X, y, weights, noise_cov)


class PreparedProblem(NamedTuple):
    """Data as the canonical problem of an energy."""

    objective: Energy
    given: Rows  # all rows, the distinct ones after whitening, and the rows for folds
    rows: Rows
    split: Rows
    problem: Problem
    units: Units

    @classmethod
    def of(
        cls, data: SparseData, objective: Energy, intercept: bool, compress: bool = True
    ) -> Self:
        """Return the problem of centred and whitened rows."""
        weights = np.ones(len(data.y)) if data.weights is None else data.weights
        if scipy.sparse.issparse(data.X):
            given: Rows = sparse_rows(data.X, data.y, weights, intercept)
        else:
            given = Rows(as_double(data.X), data.y, weights, intercept)
        split = given if data.noise_cov is None else whitened_rows(given, data.noise_cov)
        rows = distinct_rows(split)
        return cls(objective, given, rows, split, *rows.normalised(objective.groups, compress))


@dataclass(eq=False)
class SparseState(FittedState):
    """Fitted state of `SparseVAE`: attributes, posterior, means and measured values."""

    results: dict[str, Any]  # the fitted attributes by name
    posterior: Posterior  # posterior covariance of the coefficients on the active columns
    # (n_features,): weighted mean of the training rows, rounded to float64; zero without an
    # intercept
    center: Array
    # (n_features,): difference between the exact weighted mean of the training rows and `center`
    rest: Array | None = None
    level: Array | None = None  # (n_outputs,): prediction for the mean training row
    # the parameters of the fit that its certificate depends on; earlier versions saved none
    parameters: dict[str, Any] = field(default_factory=dict)
    # noise variance of predictions (mean over the training rows, or error of held-out rows),
    # divided by the attribute ``noise_variance_``
    noise_level: float = 1.0
    noise_rule: str = ""  # how the noise variance was found, "given" if it was a number
    stability: dict[str, Any] | None = None  # of a path of noise variances, if one was computed
    # the data of the fit, unless they are large; neither saved nor pickled
    rows: TrainingRows | None = None
    targets: TrainingRows | None = None
    noise_cov: Any = None  # of the noise of these rows

    def move_beside(self, ref: Array) -> None:
        """Move the fitted attributes to the library and the device of the array `ref`."""
        for name, value in self.results.items():
            if isinstance(value, np.ndarray) and name != "noise_variances_":
                self.results[name] = namespace(ref).asarray(value, device=device(ref))

    def refer(self, data: SparseData, title: str) -> None:
        """Refer to the data of the fit, or compute the certificate at once if they are large."""
        self.noise_cov = data.noise_cov
        self.rows = TrainingRows.referenced(data.X, data.weights, title)
        self.targets = TrainingRows.referenced(data.y, None, title)
        if self.rows is None or self.targets is None:
            self._certificate = self.judged(self.results, data, title, self.parameters)
            self.rows = self.targets = self.noise_cov = None

    @property
    def data(self) -> SparseData | None:
        """The data of the fit; None if they are not known any more, or have been changed."""
        rows, targets = self.rows, self.targets
        if rows is None or targets is None or not (rows.unchanged and targets.unchanged):
            return None
        return SparseData(rows.rows, targets.rows, rows.weights, self.noise_cov)

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
        return {
            name: namespace(value).asarray(value, copy=True)
            if is_array(value) and value.ndim > 0
            else value
            for name, value in self.results.items()
        }

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
        self.certificate(self.rows.title if self.rows else "SparseVAE")
        changed = {"_attributes": self._attributes} if self.changed_in_place() else {}
        dropped = dict.fromkeys(("rows", "targets", "noise_cov"))
        return super().__getstate__() | changed | dropped

    def compute_certificate(self, title: str) -> Certificate:
        """Return the certificate of the fitted attributes on the data of the fit."""
        data = self.data
        if data is not None:
            return self.judged(self.results, data, title, self.parameters)
        if self.rows is None:
            raise ValueError("the data of the fit are no longer there: call certify with them.")
        claim = undecided("stationarity", "the fitted relevances are optimal", "", CHANGED_DATA)
        return Certificate(title, (claim,))

    def judged(
        self,
        attributes: Mapping[str, Any],
        data: SparseData,
        title: str,
        settings: Mapping[str, Any],
    ) -> Certificate:
        """Return the certificate of fitted attributes on data, which the verifier reads itself."""
        X, y, weights, cov = data
        fitted = checked_attributes(attributes, X.shape[1], y.shape[1])
        coef, relevance, noise = fitted["coef_"], fitted["relevance_"], fitted["noise_variance_"]
        rule, asked = self.noise_rule, None
        if not isinstance(settings["noise_variance"], str):
            rule, asked = "given", [float(settings["noise_variance"])]
        elif rule in HELD_OUT:
            asked = [self.results["noise_variance_"]]
        responses = settings["response_covariance"]
        posterior, groups = settings["posterior"], settings["groups"]
        full_groups = groups is not None and settings["group_covariance"] == "full"
        with limited_blas(X.shape[0]), np.errstate(all="ignore"):
            violation = None
            if posterior not in VERIFIED:  # an energy added by `register_posterior` reports its own
                energy = make_objective(settings, X.shape[1])
                posed = PreparedProblem.of(data, energy, bool(settings["fit_intercept"]))
                w = like(relevance, posed.problem.noise) / posed.units.relevance
                at = posed.problem.with_noise(noise, posed.units)
                violation = float(energy.violation(evaluate(at, w)))
            fit = Fit(
                [plain(coef.mT)],
                plain(relevance),
                [noise],
                fitted["energy_"],
                rule,
                asked,
                plain(self.predicted(X, coef, fitted["intercept_"])),
                plain(self.variances(X)),
                fitted["support_"],
                plain(fitted.get("group_covariances_")),
                plain(self.posterior.prior_roots(Groups.of(groups, X.shape[1])))
                if full_groups
                else None,
                plain(fitted.get("response_covariance_")),
                None if isinstance(responses, str) else plain(responses),
                plain(fitted.get("noise_variances_")),
                max(machine_epsilon(coef), machine_epsilon(relevance)),
                self.stability,
            )
            kind = EnergyKind(
                posterior,
                stored_penalty(as_penalty(settings["penalty"])),
                groups,
                full_groups,
                settings["tol"],
                settings["significance"],
                violation,
            )
            sample = Sample(
                plain(X), plain(y), plain(weights), bool(settings["fit_intercept"]),
                plain(cov),
            )  # fmt: skip
            return certificate_of(measure([sample], fit, kind), f"{title}, {posterior} posterior")


def checked_attributes(fitted: Mapping[str, Any], n_columns: int, n_outputs: int) -> dict[str, Any]:
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
