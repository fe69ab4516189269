"""Values that every JSON reader understands."""

from __future__ import annotations

import math
from typing import Any


def json_safe(value: Any) -> Any:
    """Return `value` with numbers beyond JSON (infinities, NaN) written as strings.

    Examples
    --------
    >>> json_safe([1.0, float("inf")])
    [1.0, 'inf']
    """
    if isinstance(value, list):
        return [json_safe(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
