"""Predictions from coefficients, and conversion of fitted arrays to the dtype of the data."""

from __future__ import annotations

from typing import Any

from lucidae.arrays import Array, as_double, is_array, like, machine_epsilon, namespace, scalar

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

    Parameters
    ----------
    coef : array of shape (n_outputs, n_columns)
        The transposed coefficients, as float64.
    intercept : array of shape (n_outputs,) or float
        The intercept b, in the dtype in which it is stored.
    center : array of shape (n_columns,)
        The mean training row c.
    level : array of shape (n_outputs,), optional
        The prediction for the mean training row that `fit` found.
    """
    xp = namespace(coef)
    stored = machine_epsilon(intercept if is_array(intercept) else coef)
    offset = like(intercept, coef) if is_array(intercept) else intercept + 0.0 * coef[:, 0]
    product = coef @ center
    plain = product + offset
    if level is None:
        return plain
    terms = xp.abs(coef) @ xp.abs(center) + xp.abs(level)
    return xp.where(xp.abs(plain - level) <= 4.0 * stored * terms, level, plain)


def narrowed(values: Array, ref: Array, name: str) -> Array:
    """Return `values` in the library, dtype and device of `ref`.

    Raise an error that mentions `name` if a number is outside the range of the dtype.
    """
    xp = namespace(values)
    if bool(xp.all(xp.abs(values) <= namespace(ref).finfo(ref.dtype).max)):
        return like(values, ref)
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
    """Raise an error if entries that matter are too small to be stored in the dtype of the data.

    Parameters
    ----------
    exact, stored : array
        The numbers before and after conversion to the dtype of the data, both as float64.
    sizes : array
        Contribution of each number to the fit; only numbers with a large contribution matter.
    name : str
        Name of the attribute, for the message.
    """
    xp = namespace(exact)
    ones = xp.ones_like(exact)
    lost = xp.abs(stored - exact) / xp.where(exact == 0, ones, xp.abs(exact))
    if bool(xp.any((lost > KEPT_DIGITS) & (sizes > KEPT_DIGITS * xp.max(sizes)))):
        smallest = scalar(xp.min(xp.where(exact == 0, xp.inf * ones, xp.abs(exact))))
        raise ValueError(
            f"{name} has entries of magnitude {smallest:.3g}, which are too small for float32. "
            "Rescale X or y, or give X as float64."
        )
