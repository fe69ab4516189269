"""Predictions from coefficients, and the rounding of a fit to the precision of its data."""

from __future__ import annotations

from typing import Any

from lucidae.arrays import Array, as_double, is_array, like, machine_epsilon, namespace, scalar

KEPT_DIGITS = 1e-5
"""Largest relative change of what matters in a fit when it is stored in single precision."""


def level_at_center(coef: Array, intercept: Any, center: Array, level: Array | None) -> Array:
    """Return what is predicted for the mean row of the fit, for each output.

    Predicting from there loses no digits to columns far from zero: x U + b is evaluated as
    (x − c) U + (c U + b) with the mean row c. The intercept b is rounded relative to c U, so the
    level that the fit itself found replaces c U + b where the two agree to this rounding; where the
    user has assigned other coefficients or another intercept, they do not.

    Parameters
    ----------
    coef : array of shape (n, κ)
        The coefficients Uᵀ, in doubles.
    intercept : array of shape (n,) or float
        The intercept b, in the precision in which it is stored.
    center : array of shape (κ,)
        The mean row c.
    level : array of shape (n,), optional
        The level that the fit found.
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
    """Convert to the library, dtype and device of `ref`; raise if a number leaves its range."""
    xp = namespace(values)
    if bool(xp.all(xp.abs(values) <= namespace(ref).finfo(ref.dtype).max)):
        return like(values, ref)
    largest = scalar(xp.max(xp.abs(values)))
    if as_double(ref).dtype == ref.dtype or not largest < float("inf"):
        raise ValueError(
            f"{name} is not finite: the numbers of this problem leave the range of float64. "
            "Rescale X and y, or give a larger noise_variance."
        )
    raise ValueError(
        f"{name} reaches {largest:.3g}, which leaves the range of {ref.dtype}. Rescale X or y, or "
        "give X in double precision."
    )


def check_kept(exact: Array, stored: Array, sizes: Array, name: str) -> None:
    """Raise an error if single precision has lost numbers that matter, because they are so small.

    Parameters
    ----------
    exact, stored : array
        The numbers before and after rounding, in doubles.
    sizes : array
        What each of them contributes to the fit.
    name : str
        Name of the attribute.
    """
    xp = namespace(exact)
    ones = xp.ones_like(exact)
    lost = xp.abs(stored - exact) / xp.where(exact == 0, ones, xp.abs(exact))
    if bool(xp.any((lost > KEPT_DIGITS) & (sizes > KEPT_DIGITS * xp.max(sizes)))):
        smallest = scalar(xp.min(xp.where(exact == 0, xp.inf * ones, xp.abs(exact))))
        raise ValueError(
            f"{name} has entries of {smallest:.3g}, which are too small for single precision. "
            "Rescale X or y, or give X in double precision."
        )
