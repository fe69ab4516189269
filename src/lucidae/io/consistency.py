"""Consistency of what a file describes: required fields, agreeing shapes, and a usable estimator.

A file can be intact and still describe an object that no fit produces. The checks here refuse it
when it is loaded, instead of failing at its first use.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from numbers import Integral
from typing import Any

import numpy as np

from lucidae.io.atomic import reason_of

__all__ = ["check_estimator", "check_fields", "check_shapes"]

SHAPES: dict[str, dict[str, str]] = {
    "lucidae.moment": {"squares": "mm", "center": "m", "offset": "m"},
    "lucidae.linear.model": {
        "mean": "m",
        "encoder": "km",
        "atoms": "km",
        "components": "km",
        "variances": "k",
        "code_deviations": "k",
    },
    "lucidae.linear.weights.untied": {"encoder": "km", "atoms": "km"},
    "lucidae.linear.weights.tied": {"encoder": "km"},
    "lucidae.linear.weights.variational": {"encoder": "km", "atoms": "km", "log_variances": "k1"},
    "lucidae.linear.spectrum": {"values": "q", "vectors": "mq"},
    "lucidae.linear.probe": {"directions": "qm", "mean": "q", "scatter": "qq"},
    "lucidae.dropout.weights": {"left": "or", "right": "ir"},
    "lucidae.dropout.optimum": {"singular_values": "r"},
    "lucidae.sparsity.posterior": {"active": "a", "roots": "a"},
}
"""Shapes of the arrays of a record, by its tag without the version.

Each letter is a number of entries; equal letters in one record mean equal numbers."""

ATTRIBUTES = {
    "mean_": "m",
    "encoder_": "km",
    "decoder_": "mk",
    "components_": "km",
    "explained_variance_": "k",
    "explained_variance_ratio_": "k",
    "left_": "or",
    "right_": "mr",
    "relevance_": "m",
}
"""Shapes of fitted attributes; m is the number of features."""


def check_fields(kind: type, fields: Mapping[str, Any]) -> None:
    """Raise ValueError if a dataclass lacks one of its fields."""
    if not dataclasses.is_dataclass(kind):
        return
    absent = dataclasses.MISSING
    for field in dataclasses.fields(kind):
        needed = field.init and field.default is absent and field.default_factory is absent
        if needed and field.name not in fields:
            raise ValueError(f"{kind.__name__} lacks its field {field.name!r}.")


def check_shapes(tag: str, record: Any) -> None:
    """Raise ValueError if the arrays of a record have shapes that do not agree.

    Parameters
    ----------
    tag : str
        The name of the record's type with its version.
    record : object
        The record; fields that are not arrays are not compared.
    """
    expected = SHAPES.get(tag.rpartition("/")[0], {})
    values = {name: getattr(record, name, None) for name in expected}
    _compare(type(record).__name__, values, expected, {"1": 1})


def _compare(
    owner: str, values: Mapping[str, Any], expected: Mapping[str, str], sizes: dict[str, int]
) -> None:
    for name, letters in expected.items():
        shape = getattr(values[name], "shape", None)
        if shape is None:
            continue
        agrees = len(shape) == len(letters) and all(
            sizes.setdefault(letter, size) == size
            for letter, size in zip(letters, shape, strict=True)
        )
        if not agrees:
            other = ", ".join(map(str, (sizes.get(letter, "any") for letter in letters)))
            raise ValueError(f"{owner}.{name} has the shape {shape}, expected ({other}).")


def check_estimator(estimator: Any, most: int) -> None:
    """Raise ValueError if a loaded estimator cannot process a row.

    Parameters
    ----------
    estimator : estimator
        A fitted estimator of this package or of scikit-learn.
    most : int
        Number of entries of all arrays of the file, which bounds the number of features.
    """
    owner = type(estimator).__name__
    features = getattr(estimator, "n_features_in_", None)
    if isinstance(features, bool) or not isinstance(features, Integral):
        raise ValueError(f"{owner}.n_features_in_ is {features!r}, expected an integer.")
    if not 1 <= int(features) <= most:
        raise ValueError(f"{owner}.n_features_in_ is {features}, but no array is that large.")
    try:
        if "_state" in vars(estimator):
            attributes = _Values(estimator._state.attributes)
            _compare(owner, attributes, ATTRIBUTES, {"m": int(features)})
        _check_row(estimator, np.zeros((1, int(features))))
    except Exception as error:  # a state with other content than a fit writes may raise anything
        raise ValueError(f"{owner} is not consistent: {reason_of(error)}") from error


class _Values(dict[str, Any]):
    """Attributes by name; None for an attribute that this estimator does not have."""

    def __missing__(self, name: str) -> None:
        return None


def _check_row(estimator: Any, row: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the row has no names of features
        use = estimator.transform if hasattr(estimator, "transform") else estimator.predict
        output = use(row)
    if output.shape[0] != 1:
        raise ValueError(f"one row gives {output.shape[0]} rows.")
