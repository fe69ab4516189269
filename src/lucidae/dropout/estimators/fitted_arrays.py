"""Fitted arrays as the dropout estimators return them: dtype, overflow, and changes by a user."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.sparse

from lucidae.arrays import (
    Array,
    beside,
    is_array,
    largest,
    like,
    machine_epsilon,
    namespace,
    to_numpy,
)
from lucidae.dropout.objectives import Weights
from lucidae.dropout.reduction import host
from lucidae.validation import check_rows

__all__ = [
    "UnrepresentableError",
    "beside_rows",
    "finite_output",
    "representable",
    "same_values",
    "shown",
    "weights_of",
]


class UnrepresentableError(ValueError, AttributeError):
    """Error for a fitted attribute that overflows or underflows its dtype.

    Like scikit-learn's NotFittedError it is an AttributeError too, so that `hasattr` and `dir` work
    after `partial_fit`, whose attributes are computed when they are first read.
    """


def representable(values: Array, ref: Array, name: str, *, factor: bool = True) -> Array:
    """Return the fitted array `values` in the dtype of `ref`; an overflow or underflow is an error.

    Underflow is an error only for an array by which rows are multiplied (`factor`). `name` is the
    attribute's name in the message.
    """
    limits, size = namespace(ref).finfo(ref.dtype), largest(values)
    vanishes = factor and 0.0 < size < float(limits.smallest_normal)
    if not size <= float(limits.max) or vanishes:
        raise UnrepresentableError(
            f"{name} has entries of the size {size:.3g}, which {ref.dtype} cannot represent. "
            "Divide X or y by a constant, so that both have entries of similar size"
            f"{', or give X as float64' if machine_epsilon(ref) > 1e-10 else ''}."
        )
    return shown(values, ref)


def shown(values: Array, ref: Array) -> Array:
    """Return a copy of `values` in the library, dtype and on the device of `ref`.

    Because it is a copy, a user who writes into an attribute does not change the fitted state.
    """
    converted = like(values, ref)
    return namespace(converted).asarray(converted, copy=True)


def same_values(found: Any, expected: Any) -> bool:
    """Tell whether an attribute (`found`) has the fitted value `expected`.

    It has not if a user has assigned another value, or written into the array. Values that are
    neither arrays nor numbers are records of the fit, such as ``history_``, from which nothing is
    computed; they are not compared.
    """
    if not is_array(expected) and not isinstance(expected, int | float | np.generic):
        return True
    try:
        return np.array_equal(host(found), host(expected))
    except (TypeError, ValueError):
        return False


def weights_of(attributes: Mapping[str, Any]) -> Weights:
    """Return the weights U (``left_``) and V (``right_``) among attributes, after checking them.

    A user may have assigned them.
    """
    return Weights(
        *(check_rows(attributes[name], name=name) for name in ("left_", "right_")),
    )


def beside_rows(fitted: Array, X: Any) -> Array:
    """Return a fitted array in the library and on the device of rows X; NumPy if X is sparse."""
    return to_numpy(fitted) if scipy.sparse.issparse(X) else beside(fitted, X)


def finite_output(values: Array, name: str) -> Array:
    """Return the output `values` of an estimator; an entry that is not finite is an error.

    The inputs are finite, so that this means an overflow. `name` says what the values are.
    """
    if not bool(namespace(values).all(namespace(values).isfinite(values))):
        raise ValueError(
            f"the {name} overflow {values.dtype}: X is too large for the fitted weights. Give X "
            "as float64, or in the units of the data passed to fit."
        )
    return values
