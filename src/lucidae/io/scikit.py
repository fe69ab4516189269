"""The types of scikit-learn that `lucidae.save` can write: those with plain attributes only."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

__all__ = ["KINDS", "check_plain", "scikit_kinds"]

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
    """Return the types of scikit-learn that can be written, by their tag in the file.

    Examples
    --------
    >>> scikit_kinds()["sklearn.StandardScaler/1"].__name__
    'StandardScaler'
    """
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
