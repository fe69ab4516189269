"""The types of scikit-learn that `lucidae.save` writes: those with plain attributes only."""

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
"""Module and name of each type.

Their attributes are numbers, texts, arrays and other estimators of this list or of lucidae; none is
a function, which a file could otherwise choose."""


@cache
def scikit_kinds() -> dict[str, type]:
    """Return the types by the tag under which they are written.

    Examples
    --------
    >>> scikit_kinds()["sklearn.StandardScaler/1"].__name__
    'StandardScaler'
    """
    pairs = (kind.split(":") for kind in KINDS)
    return {f"sklearn.{name}/1": getattr(import_module(module), name) for module, name in pairs}


def check_plain(estimator: Any) -> None:
    """Refuse a pipeline with a cache: `fit` would read pickles from a folder that a file chose."""
    if getattr(estimator, "memory", None) is not None and hasattr(estimator, "steps"):
        raise ValueError(
            "a pipeline with a cache (memory) cannot be written to a file or read from one; set "
            "memory=None."
        )
