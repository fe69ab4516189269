"""Checks whether results overflow or underflow the dtype of the data."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import numpy as np

from lucidae.arrays import Array, namespace

__all__ = ["check_range", "finite", "in_range"]

AnyMethod = TypeVar("AnyMethod", bound=Callable[..., Array])


def check_range(variance: float, reference: Array) -> None:
    """Raise a ValueError if the total variance of the data overflows or underflows their dtype."""
    if variance == 0.0 or in_range(variance, reference):
        return
    small = variance < 1.0
    raise ValueError(
        f"the variance of X is {variance:.3g}, which is {'below' if small else 'above'} the range "
        f"of its dtype {reference.dtype}. Give X as float64, or "
        f"{'multiply' if small else 'divide'} it by a constant first."
    )


def in_range(variance: float, reference: Array) -> bool:
    """Tell whether a positive number is a normal number of the dtype of an array."""
    limits = namespace(reference).finfo(reference.dtype)
    return float(limits.smallest_normal) <= variance <= float(limits.max)


def finite(name: str) -> Callable[[AnyMethod], AnyMethod]:
    """Return a decorator of methods that return an array; overflow raises an error."""

    def decorate(method: AnyMethod) -> AnyMethod:
        @wraps(method)
        def checked(*args: Any, **kwargs: Any) -> Array:
            with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
                values = method(*args, **kwargs)
            xp = namespace(values)
            if bool(xp.all(xp.isfinite(values))):
                return values
            raise ValueError(
                f"{name} overflow {values.dtype}: give X as float64, or fit again with X divided "
                "by a constant."
            )

        return checked  # type: ignore[return-value]

    return decorate
