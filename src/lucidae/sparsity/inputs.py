"""Validation of the data and of the assigned attributes of `SparseVAE`."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import validate_data

from lucidae.arrays import (
    Array,
    as_double,
    is_array,
    is_numpy,
    namespace,
    scalar,
    to_numpy,
)
from lucidae.base import validated_rows
from lucidae.validation import check_kind, check_rows, check_weights, real_array

LARGEST = 1e75
"""Magnitudes above this, or columns whose entries all lie below its inverse, are refused."""


def validated_pair(estimator: Any, X: Any, y: Any) -> tuple[Array, Array]:
    """Return the checked dictionary and responses of a fit.

    Arrays of other libraries stay in their library and on their device. Responses are doubles in
    NumPy, with as many dimensions as were given.
    """
    X, y = check_kind(X, "X"), check_kind(y, "y")
    if is_array(X) and not is_numpy(X):
        X = validated_rows(estimator, X, reset=True, accept_sparse=False)
        flat = y.ndim == 1
        targets = check_rows(y[:, None] if flat else y, name="y")
        check_row_count(X, targets)
        y = targets[:, 0] if flat else targets
    else:
        X, y = validate_data(
            estimator, X, y, dtype=(np.float64, np.float32), multi_output=True, y_numeric=True
        )
        y = np.asarray(y, dtype=np.float64)
        check_rows(y[:, None] if y.ndim == 1 else y, name="y")  # None became NaN
    refuse_extremes(X, "X")
    refuse_extremes(y if y.ndim == 2 else y[:, None], "y")
    return X, y


def validated_data(
    estimator: Any, X: Any, y: Any, sample_weight: Any
) -> tuple[Array, Array, Array | None]:
    """Return the dictionary, the responses as columns and the weights, in doubles."""
    X = as_double(validated_rows(estimator, X, reset=False, accept_sparse=False))
    given = real_array(y, "y")
    targets = as_double(check_rows(given[:, None] if given.ndim == 1 else given, name="y"))
    check_row_count(X, targets)
    refuse_extremes(X, "X")
    refuse_extremes(targets, "y")
    return X, targets, validated_weights(sample_weight, X, targets)


def validated_weights(sample_weight: Any, X: Array, y: Array) -> Array | None:
    """Return the checked weights of rows, whose roots times X and y must be moderate numbers.

    `X` has shape (d, κ) and `y` shape (d, n).
    """
    weights = check_weights(sample_weight, X)
    if weights is not None:
        roots = namespace(weights).sqrt(weights)[:, None]
        for values, name in ((X, "X"), (y, "y")):
            refuse_extremes(as_double(values) * roots, f"{name} times the roots of sample_weight")
    return weights


def check_row_count(X: Array, y: Array) -> None:
    """Raise an error unless X and y have as many rows."""
    if y.shape[0] != X.shape[0]:
        raise ValueError(
            f"X has {X.shape[0]} rows and y has {y.shape[0]}: give as many rows of each."
        )


def refuse_extremes(values: Array, name: str) -> None:
    """Refuse magnitudes whose squares, or the ratios of these, leave the range of doubles.

    `values` has the rows along its last but one axis.
    """
    xp = namespace(values)
    peaks = as_double(xp.max(xp.abs(values), axis=-2))
    tiny = (peaks > 0) & (peaks < 1.0 / LARGEST)
    if bool(xp.any(peaks > LARGEST)) or bool(xp.any(tiny)):
        worst = scalar(xp.min(peaks[tiny])) if bool(xp.any(tiny)) else scalar(xp.max(peaks))
        raise ValueError(
            f"{name} has a column of magnitude {worst:.3g}; squares of such numbers leave the "
            f"range of doubles. Rescale it to lie between {1 / LARGEST:g} and {LARGEST:g}."
        )


def checked_attributes(fitted: dict[str, Any], n_columns: int, n_outputs: int) -> dict[str, Any]:
    """Return fitted attributes, which a user may have assigned, with the shapes of a fit.

    Parameters
    ----------
    fitted : dict
        The attributes by name.
    n_columns, n_outputs : int
        Number of columns of the dictionary and of responses.

    Returns
    -------
    dict
        Arrays with coefficients of shape (n_outputs, n_columns); numbers as floats.
    """
    flat = np.ndim(to_numpy(real_array(fitted["coef_"], "coef_"))) == 1
    shapes = {
        "coef_": (n_columns,) if flat and n_outputs == 1 else (n_outputs, n_columns),
        "relevance_": (n_columns,),
    }
    checked = dict(fitted)
    for name, shape in shapes.items():
        values = real_array(fitted[name], name)
        if tuple(values.shape) != shape:
            raise ValueError(f"{name} has shape {tuple(values.shape)}, expected {shape}.")
        checked[name] = values
    checked["coef_"] = checked["coef_"][None, :] if flat else checked["coef_"]
    intercept = real_array(fitted["intercept_"], "intercept_")
    if tuple(intercept.shape) not in ((), (n_outputs,)):
        raise ValueError(
            f"intercept_ has shape {tuple(intercept.shape)}, expected ({n_outputs},) or a number."
        )
    checked["intercept_"] = intercept
    for name in ("noise_variance_", "energy_"):
        checked[name] = _as_number(fitted[name], name)
    checked["support_"] = _as_indices(fitted["support_"], n_columns)
    return checked


def _as_number(value: Any, name: str) -> float:
    """Return a real number as a float; NaN and infinity are numbers that a certificate refutes."""
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}={value!r} was given, expected a real number.") from error


def _as_indices(values: Any, n_columns: int) -> Any:
    """Return different column indices as an integer array."""
    given = np.asarray(to_numpy(values) if is_array(values) else values)
    whole = given.ndim == 1 and (given.dtype.kind in "iu" or not given.size)
    given = given.astype(int) if whole else given
    inside = whole and (not given.size or (given.min() >= 0 and given.max() < n_columns))
    if not inside or np.unique(given).size != given.size:
        raise ValueError(
            f"support_={values!r} was given, expected different integers in [0, {n_columns - 1}]."
        )
    return given
