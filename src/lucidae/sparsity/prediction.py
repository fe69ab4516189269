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
"""Largest relative change of a fitted number that matters when it is stored as float32."""


def level_at_center(coef: Array, intercept: Any, center: Array, level: Array | None) -> Array:
    """Return the prediction cU + b for the mean training row c.

    Rows are predicted as (x − c)U + (cU + b), which loses no digits far from zero. The more
    accurate `level` of the fit is returned if it agrees with the stored, rounded b; it does not if
    a user assigned other values.
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
    """Return R² of complex predictions, averaged over outputs as `r2_score` does."""
    mean = weights @ targets / weights.sum()
    errors = weights @ np.abs(targets - predicted) ** 2
    spread = weights @ np.abs(targets - mean) ** 2
    varies = spread > 0
    ratios = errors / np.where(varies, spread, 1.0)
    return float(np.where(varies, 1.0 - ratios, errors == 0).mean())


def narrowed(values: Array, ref: Array, name: str) -> Array:
    """Return `values` in library, precision and device of `ref`; raise if they leave its range."""
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
