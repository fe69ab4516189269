"""Input validation and warnings shared by all modules."""

from __future__ import annotations

import math
import os
import sys
import warnings
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import sklearn
from sklearn.utils.validation import check_array

from lucidae.arrays import (
    Array,
    as_float,
    as_plain,
    device,
    is_array,
    is_numpy,
    like,
    namespace,
    scalar,
)

_FLOATS = (np.float64, np.float32)


def check_rows(
    X: Any, *, accept_sparse: bool = True, name: str = "X", finite: bool = True
) -> Array:
    """Return `X` as a finite, non-empty, two-dimensional floating array of rows.

    Arrays of other libraries stay in their library and on their device and are detached from
    automatic differentiation; lists, data frames and sparse matrices are validated by
    scikit-learn's `check_array`. If `finite` is false, NaN and infinity are not searched for.
    """
    if isinstance(X, list | tuple):
        X = np.asarray(X)  # scikit-learn refuses complex numbers by their dtype
    if not finite and type(X) is np.ndarray and X.dtype in _FLOATS and X.ndim == 2 and X.size:
        return X  # what scikit-learn's check would return, at a cost above that of a small fit
    if not is_array(X) or is_numpy(X):
        return check_array(
            X,
            accept_sparse=("csr",) if accept_sparse else False,
            dtype=_FLOATS,
            ensure_all_finite=finite,
            input_name=name,
        )
    X, xp = as_plain(X), namespace(X)
    if xp.isdtype(X.dtype, "complex floating"):
        raise ValueError(f"{name} is complex ({X.dtype}), expected real numbers.")
    if X.ndim != 2:
        raise ValueError(
            f"{name} must have two dimensions (rows, features), got shape {tuple(X.shape)}."
        )
    if 0 in X.shape:
        raise ValueError(f"{name} is empty: its shape is {tuple(X.shape)}. Give at least one row.")
    X = as_float(X)
    if finite and not bool(xp.all(xp.isfinite(X))):
        raise ValueError(f"{name} contains NaN or infinity. Remove or impute those entries first.")
    return X


def check_weights(sample_weight: Any, X: Array) -> Array | None:
    """Return the weights as a float64 vector with one entry per row of `X`, or None."""
    if sample_weight is None:
        return None
    n_rows = X.shape[0]
    reference = np.empty(0) if scipy.sparse.issparse(X) else X
    xp = namespace(reference)
    ones = xp.ones(n_rows, dtype=xp.float64, device=device(reference))
    weights = ones * sample_weight if isinstance(sample_weight, Real) else like(sample_weight, ones)
    weights = as_plain(weights)
    if tuple(weights.shape) != (n_rows,):
        raise ValueError(
            f"sample_weight has shape {tuple(weights.shape)}, expected ({n_rows},): "
            "one weight per row."
        )
    if not bool(xp.all(xp.isfinite(weights))) or bool(xp.any(weights < 0)):
        raise ValueError(
            "sample_weight must be finite and not negative, because weights are frequencies."
        )
    with np.errstate(over="ignore"):
        total = scalar(xp.sum(weights))
    if not 0.0 < total < math.inf:
        raise ValueError(
            f"sample_weight sums to {total:g}, expected a positive finite number: "
            "not all weights may be zero."
        )
    return weights


def check_integer(value: Any, name: str, *, low: int, high: int | None = None) -> int:
    """Return `value` as an int inside [low, high]."""
    whole = isinstance(value, Integral) and not isinstance(value, bool | np.bool_)
    if not whole or value < low or (high is not None and value > high):
        expected = (
            f"an integer of at least {low}" if high is None else f"an integer in [{low}, {high}]"
        )
        raise ValueError(f"{name}={value!r} was given, expected {expected}.")
    return int(value)


def check_number(
    value: Any, name: str, *, low: float = -math.inf, high: float = math.inf, open_low: bool = False
) -> float:
    """Return `value` as a finite float inside [low, high], or (low, high] when `open_low`."""
    number = _float(value)
    if not math.isfinite(number) or not low <= number <= high or (open_low and number == low):
        raise ValueError(f"{name}={value!r} was given, expected {_range(low, high, open_low)}.")
    return number


def _float(value: Any) -> float:
    """Return a real number as a float, and NaN for anything else."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, Real):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.nan


def _range(low: float, high: float, open_low: bool) -> str:
    if math.isinf(high) and math.isinf(low):
        return "a finite number"
    if math.isinf(high):
        return f"a finite number {'above' if open_low else 'of at least'} {low:g}"
    return f"a number in {'(' if open_low else '['}{low:g}, {high:g}]"


def check_choice(value: Any, name: str, choices: Any) -> str:
    """Return `value` if it is one of the named `choices`."""
    options = tuple(choices)
    if not isinstance(value, str) or value not in options:
        named = ", ".join(repr(option) for option in options)
        raise ValueError(f"{name}={value!r} was given, expected one of {named}.")
    return value


_PACKAGES = tuple(f"{Path(file).parent}{os.sep}" for file in (__file__, str(sklearn.__file__)))


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line of the user's code: the first one outside lucidae and scikit-learn.

    A fixed ``stacklevel`` would point into the package wherever a value is computed when it is
    first read, or where scikit-learn calls `fit`.
    """
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGES):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
