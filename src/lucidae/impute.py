"""Imputation of missing entries by a low-rank Gaussian model: `LowRankImputer`."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import _check_feature_names_in, check_is_fitted

from lucidae.arrays import is_array, to_numpy
from lucidae.base import CertifiedMixin, Fitted, FittedState, fitting_method
from lucidae.certificates import Certificate, does_not_apply
from lucidae.iteration.progress import CountedBar, is_shown
from lucidae.linear.estimator import LinearAutoencoder
from lucidae.linear.methods import Options
from lucidae.linear.missing import ObservedGaussian, fit_observed, gaussian_of, unmasked
from lucidae.linear.snapshot import STATE
from lucidae.linear.state import LinearState
from lucidae.models import DTYPE, Record, Snapshot, with_size
from lucidae.validation import check_flag, check_number, check_rows, warn_user

__all__ = ["LowRankImputer"]

Floats = np.ndarray[Any, Any]

FOLDS = 10
"""Number of parts into which the observed entries of each column are divided. One part is held out
at a time; columns with fewer observed entries are not held out."""

HELD_OUT = 2000
"""Number of held-out entries from which on one part suffices. Their mean squared error then has a
standard error of about 3 %; of smaller tables, up to five parts are held out."""

ROWS = 1000
ROWS_PER_COLUMN = 30
"""Number of rows by which the number of components is chosen, and this number for each column, if
that is more. Of larger tables these rows are drawn; the model is fitted to all rows."""

TOLERANCE = 1e-4
"""Largest gradient of the likelihood, in units of the standard error of one row; n rows have the
standard error 1/√n, so that this is far below it up to a million rows."""

ROUGH = 1e-2
"""The same for the fits of which only the errors of held-out entries are compared: they do not
change by more than 1 % (wine, breast_cancer)."""

ROUGH_STEPS = 100
"""Largest number of steps of each of these fits. More are needed only with so many latents that
they fit noise."""

NOISELESS = 1e-3
"""Share of the variance below which the rest is hardly noise. With so many latents the likelihood
may have no maximum; they are chosen only if they halve the error, as in data without noise."""

PATIENCE = 3
"""Number of larger ranks without a smaller error after which no more than `ALWAYS` are tried."""

ALWAYS = 30
"""Ranks up to this one are always tried: latents that begin to fit a column of its own may raise
the error before the next ones halve it."""


@dataclass(eq=False)
class ImputerState(FittedState):
    """Fitted state of `LowRankImputer`, for m columns."""

    center: Floats  # (m,): means of the observed entries; NaN if there are none
    scale: Floats  # (m,): their standard deviations or 1; 0 for constant columns
    gaps: Floats  # (m,): 1 for columns in which entries were missing, otherwise 0
    dtype: Floats  # an empty array with the dtype of the data
    # the model of columns of which (x − center)/scale varies; None if each is filled alone
    linear: LinearState | None = None
    # numbers of components that were tried, and their errors of held-out entries; None if
    # `n_components` is not "cv"
    ranks: Floats | None = None
    errors: Floats | None = None
    judged: Floats | None = None  # the columns of the model, until its certificate was computed

    @property
    def varying(self) -> Floats:
        """Indices of the columns of the model."""
        return np.flatnonzero(self.scale > 0.0)

    def standardized(self, X: Floats) -> Floats:
        """Return the varying columns of rows, centred and divided by their scales."""
        at = self.varying
        return np.asarray((X[:, at].astype(float) - self.center[at]) / self.scale[at])

    def completed(self, X: Floats) -> Floats:
        """Return the rows X (n, m) with expectations in place of missing entries."""
        filled = np.where(np.isnan(X), self.center, X)
        if self.linear is not None:
            at, Z = self.varying, self.standardized(X)
            guess = self.center[at] + self.scale[at] * self._gaussian.expectation(Z)
            filled[:, at] = np.where(np.isnan(X[:, at]), guess, X[:, at])
        return filled

    def deviations(self, X: Floats) -> Floats:
        """Return the standard deviations of the missing entries, and 0 for observed ones."""
        spread = np.where(np.isnan(X), np.where(np.isnan(self.scale), np.nan, self.scale), 0.0)
        if self.linear is not None:
            at = self.varying
            spread[:, at] = self.scale[at] * self._gaussian.deviations(self.standardized(X))
        return spread

    @property
    def _gaussian(self) -> ObservedGaussian:
        assert self.linear is not None, "called only if there is a model"
        return gaussian_of(self.linear.model)

    def compute_attributes(self) -> dict[str, Any]:
        """Return the fitted attributes by name."""
        found: dict[str, Any] = {"n_components_": 0}
        if self.linear is not None:
            found["n_components_"] = int(self.linear.model.components.shape[0])
        if self.ranks is not None:
            found["cv_results_"] = {
                "n_components": self.ranks.copy(),
                "mean_squared_error": np.array(self.errors),
            }
        return found

    def compute_certificate(self, title: str) -> Certificate:
        """Return the certificate of the model, if there is one, on the columns `judged`."""
        if self.linear is not None:
            return replace(self.linear.certify_observed(self.judged, None, title), title=title)
        why = "Missing entries are replaced by the mean of their column, without a model."
        return Certificate(title, (does_not_apply("likelihood", "", "", why),))

    @property
    def keeps_certificate(self) -> bool:
        """Always true: the rows are not stored."""
        return True


class LowRankImputer(CertifiedMixin, TransformerMixin, BaseEstimator):
    """Fill missing entries by their expectation under a low-rank Gaussian model.

    The model is probabilistic PCA (Tipping & Bishop 1999): x = μ + Wz + noise, with few latents z.
    It is fitted to the observed entries by maximum likelihood, as
    ``LinearAutoencoder(handle_missing="em")`` does. Missing entries are replaced by their
    expectation given the observed entries of the row; observed entries do not change. Columns are
    standardised first, so that their units do not matter. It is assumed that entries are missing at
    random: whether one is missing must not depend on its own value.

    Parameters
    ----------
    n_components : "cv", int, float in (0, 1), str, tuple or None, default="cv"
        Number of latents. ``"cv"`` chooses the number with the smallest squared error of held-out
        entries (always the same, a tenth of the observed ones, or up to five tenths in small
        tables; of more than 1000 rows, and 30 per column, so many are drawn for this choice); 0,
        with a warning, if no number is better than the mean. All numbers up to 10 are tried, then
        those that grow by a fifth; beyond 30 until the error has not fallen for three of them, and
        none after one that leaves no noise. Everything else is as in `LinearAutoencoder`.
    missing_values : float, default=numpy.nan
        The number that marks missing entries. With NaN, pandas' NA and masked entries count too.
    standardize : bool, default=True
        Whether columns are divided by the standard deviation of their observed entries. If all
        columns have the same unit, their own scale can be better.
    add_indicator : bool, default=False
        Whether `transform` appends a column for each one in which entries were missing in `fit`,
        with 1 where they are missing.
    keep_empty_features : bool, default=False
        Whether columns of an array without an observed entry in `fit` are kept and filled with 0;
        otherwise, and always if `X` is a data frame, they are left out, with a warning.
    verbose : bool or "auto", default="auto"
        Whether progress is shown from the third second on; ``"auto"`` on a terminal and in
        notebooks.

    Attributes
    ----------
    n_components_ : int
        Number of latents; 0 if missing entries are replaced by the mean of their column.
    cv_results_ : dict
        With ``n_components="cv"``: the numbers that were tried, and their mean squared errors of
        held-out entries, in units of the standardised columns.
    certificate_ : Certificate
        Checked statements (claims) on the fitted model: whether the likelihood is stationary, and
        whether the observed entries determine the model.
    n_features_in_ : int
        Number of columns m.

    See Also
    --------
    lucidae.LinearAutoencoder : The model itself: its components, codes and likelihoods.

    References
    ----------
    Tipping & Bishop (1999), Probabilistic principal component analysis. Journal of the Royal
    Statistical Society B 61.

    Examples
    --------
    >>> import numpy as np
    >>> from lucidae.impute import LowRankImputer
    >>> X = np.random.default_rng(0).standard_normal((100, 1)) @ [[1.0, 2.0, 3.0]]
    >>> X += 0.01 * np.random.default_rng(1).standard_normal(X.shape)
    >>> gaps = X.copy()
    >>> gaps[0, 1] = np.nan
    >>> imputer = LowRankImputer(1).fit(gaps)
    >>> filled, deviations = imputer.transform(gaps, return_std=True)
    >>> bool(abs(filled[0, 1] - X[0, 1]) < 4 * deviations[0, 1] < 0.1)
    True
    """

    n_components_ = Fitted()
    cv_results_ = Fitted()

    _state: ImputerState

    def __init__(
        self,
        n_components: int | float | str | tuple[str, float] | None = "cv",
        *,
        missing_values: float = np.nan,
        standardize: bool = True,
        add_indicator: bool = False,
        keep_empty_features: bool = False,
        verbose: bool | str = "auto",
    ) -> None:
        self.n_components = n_components
        self.missing_values = missing_values
        self.standardize = standardize
        self.add_indicator = add_indicator
        self.keep_empty_features = keep_empty_features
        self.verbose = verbose

    @fitting_method
    def fit(self, X: Any, y: Any = None) -> Self:  # noqa: ARG002
        """Fit the model to the observed entries of `X`.

        Parameters
        ----------
        X : array-like or data frame of shape (n, m)
            The rows, with missing entries.
        y : ignored
            Accepted for scikit-learn's pipelines.

        Returns
        -------
        LowRankImputer
            The fitted imputer itself.
        """
        for name in ("standardize", "add_indicator", "keep_empty_features"):
            check_flag(getattr(self, name), name)
        chosen = isinstance(self.n_components, str) and self.n_components == "cv"
        wanted: Any = None if chosen else self.n_components
        model = LinearAutoencoder(wanted, handle_missing="em", tol=TOLERANCE, verbose=self.verbose)
        options = model._options()  # checks n_components and verbose
        X = self._rows(X, reset=True)
        state = _summary(X, self.standardize)
        empty = np.flatnonzero(np.isnan(state.center))
        if len(empty) and not self.keep_empty_features:
            names = getattr(self, "feature_names_in_", np.arange(X.shape[1]))[empty[:10]]
            warn_user(
                f"columns {', '.join(map(str, names))} have no observed entry and are left out. "
                "With keep_empty_features=True they are kept and filled with 0."
            )
        Z = state.standardized(X)
        modelled = Z.shape[1] > 1  # of one column nothing is known but its mean
        if chosen and modelled:
            state.ranks, state.errors = _held_out_errors(Z, options)
            best = int(state.ranks[np.argmin(state.errors)])
            modelled = best > 0
            if not modelled:
                warn_user(
                    "n_components='cv' chose 0: missing entries are filled by the mean of their "
                    "column, because no number of components predicted held-out entries better. "
                    "Columns may be unrelated or have fewer than ten observed entries, or a few "
                    "extreme values may hide what they share: look at those, or give n_components."
                )
            model.set_params(n_components=best or None)
        if modelled:
            state.linear = model.fit(Z)._state
        state.judged = _judged_columns(X, state, self.standardize)
        state.certificate(type(self).__name__)
        state.judged = None
        self._state = state
        return self

    def transform(self, X: Any, return_std: bool = False) -> Any:
        """Return the rows of `X` with their missing entries filled.

        Parameters
        ----------
        X : array-like or data frame of shape (n, m)
            The rows, with missing entries.
        return_std : bool, default=False
            Whether the standard deviations of the filled entries are returned as well.

        Returns
        -------
        filled : array of shape (n, m'), or a frame as `set_output` says
            The rows, without empty columns, and with indicators if ``add_indicator=True``.
        deviations : ndarray of shape (n, m')
            Only if ``return_std=True``: the standard deviation of each filled entry given the
            observed entries of its row, under the fitted model; 0 for observed entries. It does
            not include the error of the estimated model.
        """
        check_is_fitted(self)
        check_flag(return_std, "return_std")
        state, X = self._state, self._rows(X, reset=False)
        kept, missing = self._kept(), np.isnan(X)
        filled = np.where(missing & np.isnan(state.center), 0.0, state.completed(X))[:, kept]
        added = missing[:, state.gaps > 0] if self.add_indicator else missing[:, :0]
        filled = np.concatenate([filled, added], axis=1).astype(X.dtype)
        if not return_std:
            return filled
        deviations = np.concatenate([state.deviations(X)[:, kept], 0.0 * added], axis=1)
        return filled, deviations.astype(X.dtype)

    def get_feature_names_out(self, input_features: Any = None) -> Any:
        """Return the names of the columns that `transform` returns.

        Parameters
        ----------
        input_features : array-like of str, optional
            Names of the columns of the data; by default those seen in `fit`.

        Returns
        -------
        ndarray of str
            The names; indicators have the prefix ``missingindicator_``.
        """
        check_is_fitted(self)
        names = _check_feature_names_in(self, input_features)
        gaps = names[self._state.gaps > 0] if self.add_indicator else []
        added = np.array([f"missingindicator_{name}" for name in gaps], dtype=object)
        return np.concatenate([names[self._kept()], added])

    def _kept(self) -> Floats:
        """Return the indices of the columns of the data that `transform` returns."""
        if self.keep_empty_features:
            return np.arange(self.n_features_in_)
        return np.flatnonzero(~np.isnan(self._state.center))

    def _rows(self, X: Any, *, reset: bool) -> Floats:
        """Return the rows X after validation, in which NaN marks missing entries."""
        X = unmasked(X)
        if is_array(X) and not isinstance(X, np.ndarray):
            raise ValueError(
                f"X is of the type {type(X).__module__}.{type(X).__name__}, expected a NumPy array "
                "or a data frame. Convert it first."
            )
        number, marked = self.missing_values, _is_nan(self.missing_values)
        if not marked:
            number = check_number(number, "missing_values", others=" or NaN")
        finite: bool | str = "allow-nan" if marked else True
        rows = np.asarray(
            check_rows(X, estimator=self, reset=reset, accept_sparse=False, finite=finite)
        )
        return rows if marked else np.where(rows == number, np.asarray(np.nan, rows.dtype), rows)

    def _certify_on(self, X: Any, y: Any = None) -> Certificate:  # noqa: ARG002
        rows, linear = self._rows(X, reset=False), self._state.linear
        if linear is None:
            return self.certificate_
        columns = _judged_columns(rows, self._state, self.standardize)
        return linear.certify_observed(columns, None, type(self).__name__)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = _is_nan(self.missing_values)
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def _is_nan(value: Any) -> bool:
    return isinstance(value, float | np.floating) and math.isnan(value)


def _summary(X: Floats, standardize: bool) -> ImputerState:
    """Return means and scales of the columns of rows X (n, m)."""
    seen = ~np.isnan(X)
    count = np.where(seen.any(axis=0), seen.sum(axis=0), np.nan)
    double = np.where(seen, X, 0.0).astype(float)
    center = double.sum(axis=0) / count
    center = center + np.where(seen, double - center, 0.0).sum(axis=0) / count
    apart = np.where(seen, double - center, 0.0)
    # Deviations of the size of rounding errors are none.
    peak = np.max(np.abs(apart), axis=0, initial=0.0)
    constant = peak <= 8 * np.finfo(float).eps * np.abs(center)
    spread = np.sqrt((apart**2).sum(axis=0) / count) if standardize else np.ones(X.shape[1])
    scale = np.where(np.isnan(center), np.nan, np.where(constant, 0.0, spread))
    gaps = (~seen).any(axis=0).astype(int)
    return ImputerState(center, scale, gaps, np.empty(0, dtype=X.dtype))


def _judged_columns(X: Floats, state: ImputerState, standardize: bool) -> Floats:
    """Return the varying columns of rows X (n, m), centred and scaled as a certificate needs them.

    Means and deviations are computed anew, so that wrong ones of the fit are noticed.
    """
    Z = X[:, state.varying].astype(float)
    Z = Z - np.nanmean(Z, axis=0)
    return np.asarray(Z / np.nanstd(Z, axis=0) if standardize else Z)


def _held_out_errors(Z: Floats, training: Options) -> tuple[Floats, Floats]:
    """Return numbers of components, and the mean squared errors of held-out entries of each.

    The rows Z are standardised; of very many, some are drawn. Number 0 stands for the mean. Numbers
    grow by one or a fifth, from a fit that starts from the one before; large ones until the error
    has not fallen for some.
    """
    m = Z.shape[1]
    enough = max(ROWS, ROWS_PER_COLUMN * m)
    if len(Z) > enough:
        drawn = Z[np.sort(np.random.default_rng(0).choice(len(Z), enough, replace=False))]
        # A column without an observed entry among them could not be held out either.
        Z = drawn[:, ~np.isnan(drawn).all(axis=0)]
    n, m = Z.shape
    parts = _parts_of_entries(Z)
    observed = int(np.sum(parts >= 0))
    number = int(np.clip(math.ceil(FOLDS * HELD_OUT / max(1, observed)), 1, 5))
    hidden = [parts == part for part in range(number) if (parts == part).any()]
    if not hidden:
        return np.zeros(1, dtype=int), np.ones(1)
    rough = replace(training, max_iter=ROUGH_STEPS, tol=ROUGH, verbose=False)
    gaps = [np.where(mask, np.nan, Z) for mask in hidden]
    fits: list[Any] = [None] * len(gaps)
    variance = float(np.nanmean(Z**2))
    truth = np.concatenate([Z[mask] for mask in hidden])
    means = [np.broadcast_to(np.nanmean(rows, axis=0), Z.shape) for rows in gaps]
    ranks = [0]
    errors = [_error([one[mask] for one, mask in zip(means, hidden, strict=True)], truth)]
    most, k = min(m, n) - 1, 1
    bar = CountedBar("LowRankImputer, n_components='cv'", "components")
    while k <= most and (k <= ALWAYS or len(ranks) - int(np.argmin(errors)) <= PATIENCE):
        if is_shown(training.verbose):
            bar.show(k, most, f"error {min(errors):.3g}")
        fits = [
            fit_observed(rows, None, k, rough, fitted).gaussian
            for rows, fitted in zip(gaps, fits, strict=True)
        ]
        parted = zip(fits, gaps, hidden, strict=True)
        error = _error([to_numpy(fit.expectation(rows))[mask] for fit, rows, mask in parted], truth)
        noiseless = max(fit.noise for fit in fits) < NOISELESS * variance
        if not noiseless or error < min(errors) / 2:
            ranks.append(k)
            errors.append(error)
        if noiseless:
            break
        k += max(1, k // 5)
    bar.close()
    return np.array(ranks), np.array(errors)


def _error(found: list[Floats], truth: Floats) -> float:
    error = float(np.mean((np.concatenate(found) - truth) ** 2))
    return error if math.isfinite(error) else math.inf


def _parts_of_entries(Z: Floats) -> Floats:
    """Return the part (0 … `FOLDS` − 1) of each observed entry, −1 for entries never held out.

    The observed entries of each column are divided at random, but always in the same way.
    """
    rng, parts = np.random.default_rng(0), np.full(Z.shape, -1)
    for j in range(Z.shape[1]):
        seen = np.flatnonzero(~np.isnan(Z[:, j]))
        if len(seen) >= FOLDS:
            parts[rng.permutation(seen), j] = np.arange(len(seen)) % FOLDS
    return parts


SNAPSHOTS = {
    "LowRankImputer": Snapshot(
        Record(
            ImputerState,
            center="m",
            scale="m",
            gaps="i:m",
            dtype=DTYPE,
            linear=with_size(STATE, "m", "v"),  # the columns that vary
            ranks="i:g",
            errors="g",
        )
    )
}
"""What is saved of a fitted `LowRankImputer`."""
