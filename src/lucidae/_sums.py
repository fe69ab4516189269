"""Sums over rows that keep the digits of small deviations from large means."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy.sparse

from lucidae._arrays import Array, namespace


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """Return (s, e) with s = fl(a + b) and s + e = a + b exactly (Knuth 1969)."""
    total = a + b
    virtual = total - a
    return total, (a - (total - virtual)) + (b - virtual)


def weighted_mean(X: Any, weights: Array | None, total: float) -> Array:
    """Return the mean of the rows of `X`, dense or sparse; `total` is the sum of the weights."""
    if scipy.sparse.issparse(X):
        return np.asarray(X.sum(axis=0) if weights is None else weights @ X).ravel() / total
    return namespace(X).sum(X, axis=0) / total if weights is None else (weights @ X) / total


def sparse_sums(X: Any, weights: Array | None) -> tuple[float, Array, Array, Array]:
    """Return total weight, scatter and mean (as two doubles) of sparse rows, never made dense.

    The scatter is the raw second moment less one rank-one term. That difference cancels only
    where the mean is far above the deviation, which takes a column without a single zero; such
    columns are centred first, which stores nothing new.
    """
    X = X.astype(np.float64, copy=True)
    X.sum_duplicates()
    total = float(X.shape[0]) if weights is None else float(weights.sum())
    full = np.bincount(X.indices, minlength=X.shape[1]) == X.shape[0]
    center = np.where(full, weighted_mean(X, weights, total), 0.0)
    X.data -= center[X.indices]
    offset = weighted_mean(X, weights, total)
    if weights is not None:
        X = scipy.sparse.diags_array(np.sqrt(weights)) @ X
    root = math.sqrt(total) * offset
    return total, (X.T @ X).toarray() - np.outer(root, root), *two_sum(center, offset)
