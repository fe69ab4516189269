"""Predictions from coefficients, and conversion of fitted arrays to the dtype of the data."""

from __future__ import annotations

from typing import Any

import numpy as np

from lucidae.arrays import (
    Array,
    as_double,
    is_array,
    machine_epsilon,
    matched,
    namespace,
    of_one_kind,
    scalar,
)

KEPT_DIGITS = 1e-5
"""Largest relative change of a fitted number allowed when it is stored as float32.

Numbers whose contribution to the fit is smaller than this share of the largest may change more.
"""


def level_at_center(coef: Array, intercept: Any, center: Array, level: Array | None) -> Array:
    """Return the prediction for the mean training row, one number for each output.

    For coefficients U and intercept b, a row x is predicted as (x − c) U + (c U + b) with the mean
    training row c, because this loses no digits if columns are far from zero. This function returns
    c U + b. The stored intercept b is rounded, so the more accurate `level` found by `fit` is
    returned if the two agree up to rounding. They disagree if the user has assigned other
    coefficients or another intercept; then c U + b is returned.
    """
    xp = namespace(coef)
    stored = machine_epsilon(intercept if is_array(intercept) else coef)
    offset = matched(intercept, coef) if is_array(intercept) else intercept + 0.0 * coef[:, 0]
    coef, center = of_one_kind(coef, center)
    plain = coef @ center + offset
    if level is None:
        return plain
    terms = xp.abs(coef) @ xp.abs(center) + xp.abs(level)
    return xp.where(xp.abs(plain - level) <= 4.0 * stored * terms, level, plain)


def determination(targets: Any, predicted: Any, weights: Any) -> float:
    """Return R² of complex predictions: one minus the mean square error over the variance.

    It is averaged over outputs, of which `targets` and `predicted` are the true and the predicted
    values, of shape (n_rows, n_outputs). As in scikit-learn's `r2_score`, an output that does not
    vary has R² = 1 if it is predicted exactly, and 0 otherwise.
    """
    mean = weights @ targets / weights.sum()
    errors = weights @ np.abs(targets - predicted) ** 2
    spread = weights @ np.abs(targets - mean) ** 2
    varies = spread > 0
    ratios = errors / np.where(varies, spread, 1.0)
    return float(np.where(varies, 1.0 - ratios, errors == 0).mean())


def narrowed(values: Array, ref: Array, name: str) -> Array:
    """Return `values` in the library, the precision and on the device of `ref`.

    Complex values stay complex and real values stay real. Raise an error that mentions `name` if a
    number is outside the range of the dtype.
    """
    xp = namespace(values)
    if bool(xp.all(xp.abs(values) <= namespace(ref).finfo(ref.dtype).max)):
        return matched(values, ref)
    largest = scalar(xp.max(xp.abs(values)))
    if as_double(ref).dtype == ref.dtype or not largest < float("inf"):
        raise ValueError(
            f"{name} is not finite, because numbers in the computation leave the range of float64. "
            "Rescale X and y, or give a larger noise_variance."
        )
    raise ValueError(
        f"{name} has an entry of magnitude {largest:.3g}, which is outside the range of "
        f"{ref.dtype}. Rescale X or y, or give X as float64."
    )


def check_kept(exact: Array, stored: Array, sizes: Array, name: str) -> None:
    """Raise an error if entries that matter are too small to be stored in the dtype of the data."""
    xp = namespace(exact)
    largest = xp.abs(exact)
    ones = xp.ones_like(largest)
    lost = xp.abs(stored - exact) / xp.where(exact == 0, ones, largest)
    if bool(xp.any((lost > KEPT_DIGITS) & (sizes > KEPT_DIGITS * xp.max(sizes)))):
        smallest = scalar(xp.min(xp.where(exact == 0, xp.inf * ones, largest)))
        raise ValueError(
            f"{name} has entries of magnitude {smallest:.3g}, which are too small for float32. "
            "Rescale X or y, or give X as float64."
        )
