"""Refusals that the generators share."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float64]]


def check_count(value: Any, name: str, at_least: int = 1, at_most: int | None = None) -> int:
    """Return `value` as an int, or say which counts are possible."""
    upper = math.inf if at_most is None else at_most
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not whole or not at_least <= value <= upper:
        bounds = f"at least {at_least}" + ("" if at_most is None else f" and at most {at_most}")
        raise ValueError(f"{name} must be an integer, {bounds}; got {value!r}.")
    return int(value)


def check_real(value: Any, name: str, above: float = -math.inf, below: float = math.inf) -> float:
    """Return `value` as a float in the open interval, or say what was expected."""
    number = math.nan if isinstance(value, bool) or not isinstance(value, Real) else float(value)
    if not above < number < below:
        raise ValueError(
            f"{name} must be a number between {above} and {below}, both excluded; got {value!r}."
        )
    return number


def check_finite(values: Any, name: str, shape: tuple[int | None, ...]) -> Floats:
    """Return `values` as a finite float64 array of `shape`, where None is any length."""
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be an array of numbers; {error}.") from error
    fits = array.ndim == len(shape) and all(
        wanted in (None, found) for wanted, found in zip(shape, array.shape, strict=True)
    )
    if not fits or not array.size:
        wanted_shape = ", ".join("any" if length is None else str(length) for length in shape)
        raise ValueError(f"{name} must have shape ({wanted_shape}); got {array.shape}.")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} holds NaN or infinite values; remove or replace them.")
    return array
