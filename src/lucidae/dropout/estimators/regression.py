"""Fitted state of `DropoutRegressor`, with its predictions and certificate, and its checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse

from lucidae.arrays import Array, as_float, beside, is_array, like, machine_epsilon, namespace
from lucidae.base import reference_array
from lucidae.certificate import Certificate, Claim
from lucidae.dropout.estimators.fitted_arrays import beside_rows, representable
from lucidae.dropout.estimators.network import (
    NetworkState,
    TrainedNetwork,
    exact_network,
)
from lucidae.dropout.figures import MEAN_ERROR, DropoutFigures, ReportedAttributes
from lucidae.dropout.held_out import CrossValidation
from lucidae.dropout.moments import resolved, ridged
from lucidae.dropout.objectives import LinearProblem
from lucidae.dropout.reduced_rank import (
    REDUCED_RANK_ATTRIBUTES,
    reduced_rank_claims,
    ridge_claims,
    solve_reduced_rank,
)
from lucidae.dropout.reduction import host
from lucidae.dropout.row_space import WideRows
from lucidae.dropout.solvers import solve
from lucidae.dropout.standard_errors import fitted_value_errors
from lucidae.dropout.wide import RowMean
from lucidae.moments import SecondMoment
from lucidae.validation import real_array

__all__ = ["RegressionState", "checked_targets"]


@dataclass(eq=False)
class RegressionState(NetworkState):
    """Fitted state of `DropoutRegressor`: second moment of the rows, settings and weights."""

    n_features: int  # number of features of X; in the moment, the targets follow them
    centered: bool  # whether the means are subtracted, so that there is an intercept
    flat: bool  # whether y was one-dimensional
    dropout: float  # probability of dropping a hidden unit
    # errors on held-out rows by which that probability, or the number of hidden units, was chosen;
    # None if both were given
    cv: CrossValidation | None = None
    # triangular factor of a QR factorisation of the rows
    root: Array | WideRows | None = None
    # whether the network is that of dropout; otherwise it is the least-squares map of rank at most
    # `width`, and `dropout` is zero
    shrink: bool = True
    # ridge penalty: alpha times the squared norm of the coefficients is added to the sum of squared
    # errors over the rows
    alpha: float = 0.0

    @property
    def problem(self) -> LinearProblem:
        """The second moments of inputs and targets that define the loss, with the ridge penalty."""
        return self._resolved(self.unpenalized, self.moment)

    @property
    def unpenalized(self) -> LinearProblem:
        """The second moments of inputs and targets, without the ridge penalty."""
        if isinstance(self.moment, RowMean):
            assert self.root is not None
            n_rows = self.moment.weight - self.centered
            if isinstance(self.root, WideRows):
                return LinearProblem.from_wide(self.root, n_rows)
            return LinearProblem.from_root(self.root, self.n_features, n_rows)
        return LinearProblem.from_moment(
            self.moment, self.n_features, centered=self.centered, root=self.root
        )

    @property
    def penalty(self) -> float:
        """Factor of ‖coefficients‖² in the ridge penalty on the sum of squared errors."""
        return self.alpha

    def _resolved(self, problem: LinearProblem, moment: Any) -> LinearProblem:
        """Return a problem with ridge penalty, and with the size of its inputs' rounding errors.

        Inputs of data type float32 have larger rounding errors than the computation, which is done
        in float64 (see `lucidae.dropout.moments.resolved`). `moment` is the second moment of the
        rows.
        """
        problem = ridged(problem, self.alpha / moment.weight)
        return resolved(problem, moment, machine_epsilon(self.ref), centered=self.centered)

    def certificate_on(
        self,
        problem: LinearProblem,
        moment: Any,
        title: str,
        attributes: Mapping[str, Any],
        rows: tuple[float, float] | None,
    ) -> Certificate:
        """Return the certificate of given attributes, judged on other data than the training rows.

        The arguments are those of `NetworkState.certificate_on`. Directions of the inputs that the
        dtype of the training rows does not resolve count as constant, as in the fit.
        """
        problem = self._resolved(problem, moment)
        return super().certificate_on(problem, moment, title, attributes, rows)

    def solve(self) -> TrainedNetwork:
        """Return the network at the global minimum of its loss.

        The loss is the expected dropout loss or, without shrinkage, the mean squared error.
        """
        if not self.shrink:
            return exact_network(solve_reduced_rank(self.problem, self.width))
        return exact_network(solve(self.problem, self.strength, self.width))

    @property
    def attributes_claim(self) -> tuple[str, str, str]:
        """Name, statement and reference of the claim about the fitted attributes."""
        return super().attributes_claim if self.shrink else REDUCED_RANK_ATTRIBUTES

    def judge(self, figures: DropoutFigures, tolerance: float) -> tuple[Claim, ...]:
        """Return the claims about the weights that follow from the values measured on the data.

        `figures` are the measured values, and `tolerance` the largest accepted loss minus its
        minimum, divided by the part of the mean squared target that least squares explains.
        """
        if self.shrink:
            return ridge_claims(super().judge(figures, tolerance), self.alpha)
        return ridge_claims(reduced_rank_claims(figures, tolerance), self.alpha)

    def compute_attributes(self) -> dict[str, Any]:
        """Return the fitted attributes (such as ``coef_`` and ``left_``) by name."""
        shared = super().compute_attributes()
        left, right = (like(shared[name], self.moment.center) for name in ("left_", "right_"))
        coef = representable(left @ right.mT, self.ref, "coef_")
        center, output_center = self.centers()
        intercept = output_center - like(coef, center) @ center
        intercept = representable(intercept, self.ref, "intercept_", factor=False)
        return (
            shared
            | self.chosen()
            | {
                "coef_": coef[0, :] if self.flat else coef,
                "intercept_": float(intercept[0]) if self.flat else intercept,
            }
        )

    def chosen(self) -> dict[str, Any]:
        """Return ``dropout_``, ``n_components_`` and the results of cross-validation, by name."""
        results = None if self.cv is None else self.cv.results()
        settings = {"dropout_": self.dropout, "n_components_": self.width}
        return settings | {"cv_": self.cv, "cv_results_": results}

    def reported(self, attributes: Mapping[str, Any], moment: Any) -> ReportedAttributes:
        """Return the attributes that the certificate compares with data whose moment is given.

        `attributes` are the fitted attributes by name, and `moment` is the second moment of the
        rows [x | y] of inputs and targets, or their mean.
        """
        found = super().reported(attributes, moment)
        coef, bias = self.function(attributes["coef_"], attributes["intercept_"])
        means = [host(part) for part in (moment.center, moment.offset)]
        if not self.centered:
            means = [0.0 * part for part in means]
        shift = (means[0] - self._mean_parts[0]) + (means[1] - self._mean_parts[1])
        expected = (means[0] + means[1])[self.n_features :]
        rounding = 2 * found.precision * np.abs(expected)
        # Means of other rows than those of the fit have rounding errors of their own.
        spread = _spread(moment)
        with np.errstate(invalid="ignore"):  # infinity gives NaN, which fails the claim
            away = np.abs(coef @ shift[: self.n_features] + (bias - expected))
            doubt = np.abs(coef) @ (spread * (shift != 0.0))[: self.n_features]
        return found._replace(
            coef=coef,
            output_bias=np.clip(away - rounding, 0.0, None),
            output_bias_error=MEAN_ERROR * doubt,
            settings=(
                (float(attributes["dropout_"]), self.dropout),
                (float(attributes["n_components_"]), float(self.width)),
            ),
        )

    @property
    def _mean_parts(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """The mean of the training rows [x | y] as two vectors, whose sum has more digits than one.

        A row contains inputs x and targets y side by side. Both vectors are zero without an
        intercept.
        """
        center, offset = host(self.moment.center), host(self.moment.offset)
        return (center, offset) if self.centered else (0.0 * center, 0.0 * offset)

    def function(
        self, coef: Any, intercept: Any
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return the coefficients as a (targets × features) matrix, and the prediction at mean x.

        That prediction is the mean target. It is computed from `intercept` only if a user has
        assigned another value than the fitted one, because an intercept loses digits if the means
        are much larger than the deviations.
        """
        center, output_center = (host(part) for part in self.centers())
        coef = host(coef).reshape(len(output_center), len(center))
        intercept = np.broadcast_to(host(intercept).reshape(-1), output_center.shape)
        through = coef @ center
        sizes = np.abs(output_center) + np.abs(coef) @ np.abs(center)
        rounding = (len(center) + 8) * machine_epsilon(self.ref) * sizes
        fitted = np.abs(intercept - (output_center - through)) <= rounding
        return coef, np.where(fitted, output_center, intercept + through)

    def centers(self) -> tuple[Array, Array]:
        """Return the means of inputs and targets; zeros without an intercept."""
        mean = self.moment.mean if self.centered else 0.0 * self.moment.mean
        return mean[: self.n_features], mean[self.n_features :]

    def predict(self, X: Any, coef: Any, intercept: Any) -> Array:
        """Return the predictions coef (x − mean of x) + mean of y for the rows of X.

        The mean of x is rounded to the dtype of the rows and subtracted before the product. The
        effect of this rounding is then subtracted from the result.
        """
        matrix, bias = self.function(coef, intercept)
        used = beside_rows(coef, X) if is_array(coef) else like(np.asarray(coef), self.ref)
        ref = reference_array(X)
        center = like(self.centers()[0], ref)
        parts = [part[: self.n_features] for part in self._mean_parts]
        bias = bias + matrix @ ((host(center) - parts[0]) - parts[1])
        bias = like(bias[0] if used.ndim == 1 else bias, used)
        columns = used.mT if used.ndim == 2 else used
        with np.errstate(over="ignore", invalid="ignore"):
            if scipy.sparse.issparse(X):
                return X @ columns + (bias - center @ columns)
            return (X - center) @ columns + bias

    def standard_errors(self, X: Any) -> Array:
        """Return the standard errors of the predictions for the rows of X, in the dtype of X."""
        problem, plain = self.problem, self.unpenalized
        plain = replace(plain, resolution=problem.resolution)
        found = fitted_value_errors(
            problem if self.alpha > 0 else plain,
            plain,
            float(self.moment.weight),
            strength=self.strength if self.shrink else None,
            width=self.width,
            centered=self.centered,
        )
        rows = host(X.toarray() if scipy.sparse.issparse(X) else X)
        parts = [part[: self.n_features] for part in self._mean_parts]
        errors = found.of((rows - parts[0]) - parts[1])
        return like(errors[:, 0] if self.flat else errors, reference_array(X))


def _spread(moment: SecondMoment | RowMean) -> np.ndarray[Any, Any]:
    """Return the square root of the mean square of every column, about a point near its mean.

    `moment` is the second moment of the rows, or their mean and deviations.
    """
    if isinstance(moment, RowMean):
        return host(moment.deviations)
    squares = np.clip(np.diag(host(moment.squares)), 0.0, None)
    return np.asarray(np.sqrt(squares / moment.weight))


def checked_targets(y: Any, X: Array) -> Array:
    """Return the targets y in the array library of X, after checking them.

    They must be finite and have one entry or row per row of X.
    """
    if y is None:
        raise ValueError("y is None, but DropoutRegressor requires y: pass the targets as y.")
    y = as_float(real_array(y, "y"))
    y = y if scipy.sparse.issparse(X) else beside(y, X)
    xp = namespace(y)
    if y.ndim not in (1, 2) or y.shape[0] != X.shape[0] or 0 in y.shape:
        raise ValueError(
            f"y has shape {tuple(y.shape)}, expected ({X.shape[0]},) or ({X.shape[0]}, n_targets)."
        )
    if not bool(xp.all(xp.isfinite(y))):
        raise ValueError("y contains NaN or infinity. Remove or impute those entries first.")
    return y
