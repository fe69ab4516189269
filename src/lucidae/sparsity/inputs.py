"""Validation of the data and of the assigned attributes of `SparseVAE`."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse

from lucidae.arrays import (
    Array,
    as_double,
    is_array,
    is_numpy,
    namespace,
    scalar,
    to_numpy,
)
from lucidae.base import validate_named, validated_rows
from lucidae.sparsity import dictionary
from lucidae.validation import (
    check_kind,
    check_rows,
    check_weights,
    explained_refusals,
    has_complex,
    in_given_precision,
    is_dask,
    numeric_columns,
    real_array,
)

LARGEST = 1e75
"""Largest absolute value in X and y; columns below its inverse are refused, unless zero."""

LARGEST_WEIGHT = 1e150
"""Largest sum of weights, of which the energy is a multiple that must be finite."""


def validated_pair(estimator: Any, X: Any, y: Any) -> tuple[Array, Array]:
    """Return the dictionary X and the responses y that were passed to `fit`, checked.

    scikit-learn refuses complex numbers, so that they are checked without it. A sparse X becomes a
    CSR array, or a dense array if it is small.
    """
    for values, name in ((X, "X"), (y, "y")):
        if is_dask(values):
            raise ValueError(
                f"{name} is a Dask collection, but SparseVAE needs the whole dictionary in memory: "
                f"give {name}.compute(). LinearAutoencoder reads Dask arrays block by block."
            )
    X, y = check_kind(numeric_columns(X, "X"), "X"), check_kind(y, "y")
    if scipy.sparse.issparse(y):
        raise ValueError("y is a sparse matrix, expected a dense array: give y.toarray().")
    if scipy.sparse.issparse(X) and (X.dtype.kind == "c" or has_complex(y)):
        raise ValueError(
            "a sparse X was given with complex numbers in X or y, expected real numbers: give "
            "X.toarray() if it fits into memory."
        )
    if has_complex(X) or has_complex(y) or (is_array(X) and not is_numpy(X)):
        X = validated_rows(estimator, X, reset=True, accept_sparse=False, accept_complex=True)
        y = y if is_array(y) else np.asarray(y)
        flat = y.ndim == 1
        targets = check_rows(y[:, None] if flat else y, name="y", accept_complex=True)
        targets = as_double(targets) if is_numpy(targets) else targets
        check_row_count(X, targets)
        y = targets[:, 0] if flat else targets
    else:
        with explained_refusals(X=X, y=y):
            rows, y = validate_named(
                estimator, X, y, reset=True, dtype=(np.float64, np.float32), multi_output=True,
                y_numeric=True, accept_sparse="csr",
            )  # fmt: skip
        X = dense_if_small(in_given_precision(rows, X))
        y = np.asarray(y, dtype=np.float64)
        check_rows(y[:, None] if y.ndim == 1 else y, name="y")  # None became NaN
    refuse_extremes(X, "X")
    refuse_extremes(y if y.ndim == 2 else y[:, None], "y")
    return X, y


def refuse_zero() -> None:
    """Raise the error for responses that are zero, or become zero when they are centred."""
    raise ValueError(
        "y is zero (or constant, with fit_intercept=True), so that there is nothing to explain and "
        "no noise to learn. Give responses that vary."
    )


def refuse_zero_problem(number: int) -> None:
    """Raise the error for responses that are zero in the problem `number` of several problems."""
    raise ValueError(
        f"y[{number}] is zero, so that there is nothing to explain and no noise to learn: leave "
        "this problem out, or give responses that are not all zero."
    )


def refuse_nothing_left(rows: Any, given: Any) -> None:
    """Raise an error if the responses are zero after centring and whitening."""
    if rows.mean_square() > 0.0:
        return
    if given.intercept and given.count == 1:
        raise ValueError(
            "X and y have 1 sample, which fit_intercept=True removes with the mean, so that there "
            "is nothing to explain: give more rows, or set fit_intercept=False."
        )
    if given.mean_square() > 0.0:
        raise ValueError(
            "y is zero (or constant, with fit_intercept=True) on the range of noise_cov, so that "
            "there is nothing to explain: give a noise_cov of higher rank, or responses that vary "
            "on its range."
        )
    refuse_zero()


def validated_data(
    estimator: Any, X: Any, y: Any, sample_weight: Any
) -> tuple[Array, Array, Array | None]:
    """Return the checked dictionary, responses and weights of rows to certify, as float64."""
    rows = dense_if_small(validated_rows(estimator, X, reset=False, accept_complex=True))
    X = rows.astype(np.float64) if scipy.sparse.issparse(rows) else as_double(rows)
    given = real_array(y, "y", accept_complex=True)
    targets = check_rows(
        given[:, None] if given.ndim == 1 else given, name="y", accept_complex=True
    )
    targets = as_double(targets)
    check_row_count(X, targets)
    refuse_extremes(X, "X")
    refuse_extremes(targets, "y")
    return X, targets, validated_weights(sample_weight, X, targets)


def validated_weights(sample_weight: Any, X: Array, y: Array) -> Array | None:
    """Return the checked weights; raise if sums or squares could leave the float64 range."""
    weights = check_weights(sample_weight, X)
    if weights is not None:
        xp = namespace(weights)
        roots = xp.sqrt(weights)[:, None]
        for values, name in ((X, "X"), (y, "y")):
            sparse = scipy.sparse.issparse(values)
            weighted = values.multiply(roots) if sparse else as_double(values) * roots
            refuse_extremes(weighted, f"{name} times the square roots of sample_weight")
        total = scalar(xp.sum(weights))
        if total > LARGEST_WEIGHT:
            raise ValueError(
                f"sample_weight sums to {total:.3g}; the energy, which grows with this sum, may "
                "leave the range of float64. Rescale the weights so that they sum to at most "
                f"{LARGEST_WEIGHT:g}."
            )
    return weights


def check_row_count(X: Array, y: Array) -> None:
    """Raise an error unless X and y have the same number of rows."""
    if y.shape[0] != X.shape[0]:
        raise ValueError(
            f"X has {X.shape[0]} rows and y has {y.shape[0]}: give one row of y for each row of X."
        )


def refuse_extremes(values: Array, name: str) -> None:
    """Raise an error if squares of values, or their ratios, leave the float64 range."""
    peaks = _column_peaks(values)
    xp = namespace(peaks)
    tiny = (peaks > 0) & (peaks < 1.0 / LARGEST)
    if bool(xp.any(peaks > LARGEST)) or bool(xp.any(tiny)):
        worst = scalar(xp.min(peaks[tiny])) if bool(xp.any(tiny)) else scalar(xp.max(peaks))
        raise ValueError(
            f"{name} has a column whose largest absolute value is {worst:.3g}; the squares of such "
            "numbers are too large or too small for float64. Rescale the column so that this "
            f"value lies between {1 / LARGEST:g} and {LARGEST:g}."
        )


def _column_peaks(values: Any) -> Array:
    """Return the largest absolute value of each column, as float64."""
    if scipy.sparse.issparse(values):
        return abs(values).max(axis=0).toarray().ravel().astype(np.float64)
    xp = namespace(values)
    return as_double(xp.max(xp.abs(values), axis=-2))


def dense_if_small(X: Any) -> Any:
    """Return a sparse matrix as a dense array if it is small, and as a CSR array otherwise."""
    if not scipy.sparse.issparse(X):
        return X
    if X.shape[0] * X.shape[1] <= dictionary.DENSE_ENTRIES:
        return X.toarray()
    return dictionary.canonical_entries(X)


def checked_attributes(fitted: dict[str, Any], n_columns: int, n_outputs: int) -> dict[str, Any]:
    """Return fitted attributes after checking shapes and types; users may have assigned them."""
    flat = np.ndim(to_numpy(real_array(fitted["coef_"], "coef_", accept_complex=True))) == 1
    shapes = {
        "coef_": (n_columns,) if flat and n_outputs == 1 else (n_outputs, n_columns),
        "relevance_": (n_columns,),
    }
    checked = dict(fitted)
    for name, shape in shapes.items():
        values = real_array(fitted[name], name, accept_complex=name == "coef_")
        if tuple(values.shape) != shape:
            raise ValueError(
                f"the fitted attribute {name} was overwritten with an array of shape "
                f"{tuple(values.shape)}, expected {shape}: fit again, or assign an array of this "
                "shape."
            )
        checked[name] = values
    if "group_covariances_" in checked:
        given = to_numpy(fitted["group_covariances_"])
        if given.ndim != 3 or given.dtype.kind not in "iufc":
            raise ValueError(
                "the fitted attribute group_covariances_ was overwritten with an array of shape "
                f"{given.shape} and dtype {given.dtype}, expected numbers of shape (n_groups, m, "
                "m), for groups of at most m columns: fit again."
            )
        checked["group_covariances_"] = given
    checked["coef_"] = checked["coef_"][None, :] if flat else checked["coef_"]
    intercept = real_array(fitted["intercept_"], "intercept_", accept_complex=True)
    if tuple(intercept.shape) not in ((), (n_outputs,)):
        raise ValueError(
            "the fitted attribute intercept_ was overwritten with an array of shape "
            f"{tuple(intercept.shape)}, expected ({n_outputs},) or a number: fit again, or assign "
            "an array of this shape."
        )
    checked["intercept_"] = intercept
    for name in ("noise_variance_", "energy_"):
        checked[name] = _as_number(fitted[name], name)
    checked["support_"] = _as_indices(fitted["support_"], n_columns)
    if "response_covariance_" in fitted:
        given = to_numpy(real_array(fitted["response_covariance_"], "response_covariance_"))
        checked["response_covariance_"] = given.astype(np.float64)
    return checked


def _as_number(value: Any, name: str) -> float:
    """Return `value` as a float; NaN and infinity pass, so that a certificate can refute them."""
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"the fitted attribute {name} was overwritten with {value!r}, expected a real number: "
            "fit again, or assign a number."
        ) from error


def _as_indices(values: Any, n_columns: int) -> Any:
    """Return column indices as an integer array; raise an error if some are invalid or repeated."""
    given = np.asarray(to_numpy(values) if is_array(values) else values)
    whole = given.ndim == 1 and (given.dtype.kind in "iu" or not given.size)
    given = given.astype(int) if whole else given
    inside = whole and (not given.size or (given.min() >= 0 and given.max() < n_columns))
    if not inside or np.unique(given).size != given.size:
        raise ValueError(
            f"the fitted attribute support_ was overwritten with {values!r}, expected different "
            f"integers in [0, {n_columns - 1}], the indices of columns: fit again, or assign such "
            "indices."
        )
    return given


def is_covariance(matrices: Any) -> bool:
    """Tell whether all matrices of a stack are finite, symmetric and positive semi-definite."""
    if not np.isfinite(matrices).all():
        return False
    scale = np.abs(matrices).max(axis=(1, 2), initial=0.0)
    gap = np.abs(matrices - np.swapaxes(matrices, 1, 2).conj()).max(axis=(1, 2), initial=0.0)
    values = np.linalg.eigvalsh(matrices)
    return bool((gap <= 1e-10 * scale).all() and (values[:, 0] >= -1e-10 * scale).all())
