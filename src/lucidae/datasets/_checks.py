"""Arrays that a user hands to a generator."""

from __future__ import annotations

from typing import Any

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float64]]


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
