"""What a saved file may contain: scikit-learn's types, required fields, shapes, usable estimators.

A file can be undamaged and still describe an object that no fit produces. The checks here refuse
the file when it is loaded, instead of failing when the estimator is first used.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from numbers import Integral
from typing import Any

import numpy as np

from lucidae.io.atomic import reason_of

__all__ = [
    "KINDS",
    "check_estimator",
    "check_fields",
    "check_plain",
    "check_shapes",
    "scikit_kinds",
]

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
    "lucidae.linear.observed_gaussian": {"mean": "m", "loadings": "mk"},
    "lucidae.linear.incomplete_stream": {"beta": "mk", "center": "m"},
    "lucidae.linear.probe": {"directions": "qm", "mean": "q", "scatter": "qq"},
    "lucidae.dropout.weights": {"left": "or", "right": "ir"},
    "lucidae.dropout.optimum": {"singular_values": "r"},
    "lucidae.sparsity.posterior": {"active": "a", "roots": "a"},
}
"""Shapes of the arrays of saved objects, by the tag of their type without the version.

Each letter is the size of one axis. Equal letters in one object mean equal sizes."""

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
"""Shapes of fitted attributes, one letter for each axis.

The letter m is the number of features; equal letters in one estimator mean equal sizes."""


def check_fields(kind: type, fields: Mapping[str, Any]) -> None:
    """Raise ValueError if a field that the dataclass `kind` requires is not among `fields`."""
    if not dataclasses.is_dataclass(kind):
        return
    absent = dataclasses.MISSING
    for field in dataclasses.fields(kind):
        needed = field.init and field.default is absent and field.default_factory is absent
        if needed and field.name not in fields:
            raise ValueError(f"{kind.__name__} has no value for the required field {field.name!r}.")


def check_shapes(tag: str, record: Any) -> None:
    """Raise ValueError if the arrays of a loaded object have shapes that do not agree."""
    expected = SHAPES.get(tag.rpartition("/")[0], {})
    values = {name: getattr(record, name, None) for name in expected}
    _compare(type(record).__name__, values, expected, {"1": 1})


def _compare(
    owner: str, values: Mapping[str, Any], expected: Mapping[str, str], sizes: dict[str, int]
) -> None:
    """Raise ValueError if one of the arrays `values` does not have its expected shape.

    `owner` is the name of the type for the message. `expected` has one letter for each axis of each
    array, and equal letters mean equal sizes. `sizes` has the known sizes by letter; the sizes of
    the arrays are added to it.
    """
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
    """Raise ValueError if attributes of a loaded estimator disagree or it cannot process a row."""
    owner = type(estimator).__name__
    features = getattr(estimator, "n_features_in_", None)
    if isinstance(features, bool) or not isinstance(features, Integral):
        raise ValueError(f"{owner}.n_features_in_ is {features!r}, expected an integer.")
    if not 1 <= int(features) <= most:
        raise ValueError(
            f"{owner}.n_features_in_ is {features}, but no array of the file has that many entries."
        )
    try:
        if "_state" in vars(estimator):
            attributes = _Values(estimator._state.attributes)
            _compare(owner, attributes, ATTRIBUTES, {"m": int(features)})
        _check_row(estimator, np.zeros((1, int(features))))
    except Exception as error:  # a state with other content than a fit writes may raise anything
        raise ValueError(f"{owner} is not consistent: {reason_of(error)}") from error


class _Values(dict[str, Any]):
    """Mapping of an estimator's fitted attributes by name; None for attributes it does not have."""

    def __missing__(self, name: str) -> None:
        return None


def _check_row(estimator: Any, row: Any) -> None:
    """Raise an error unless `transform` or `predict` of the estimator returns one row for `row`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the row has no names of features
        use = estimator.transform if hasattr(estimator, "transform") else estimator.predict
        output = use(row)
    if output.shape[0] != 1:
        raise ValueError(f"for one row of data the estimator returns {output.shape[0]} rows.")


KINDS = (
    "sklearn.decomposition:PCA",
    "sklearn.feature_selection:VarianceThreshold",
    "sklearn.impute:SimpleImputer",
    "sklearn.pipeline:FeatureUnion",
    "sklearn.pipeline:Pipeline",
    "sklearn.preprocessing:MaxAbsScaler",
    "sklearn.preprocessing:MinMaxScaler",
    "sklearn.preprocessing:Normalizer",
    "sklearn.preprocessing:RobustScaler",
    "sklearn.preprocessing:StandardScaler",
)
"""Module and name of each type of scikit-learn that can be written.

Their attributes are numbers, text, arrays and other estimators of this list or of lucidae. No
attribute is a function, so a file cannot choose code to be executed."""


@cache
def scikit_kinds() -> dict[str, type]:
    """Return the types of scikit-learn that can be written, by their tag in the file."""
    pairs = (kind.split(":") for kind in KINDS)
    return {f"sklearn.{name}/1": getattr(import_module(module), name) for module, name in pairs}


def check_plain(estimator: Any) -> None:
    """Raise an error if a loaded pipeline has a cache, because its `fit` would read pickles.

    The folder of the cache is chosen by the file, so reading pickles from it is not safe.
    """
    if getattr(estimator, "memory", None) is not None and hasattr(estimator, "steps"):
        raise ValueError(
            "a pipeline with a cache cannot be written to a file or read from one; remove the "
            "cache by set_params(memory=None)."
        )
