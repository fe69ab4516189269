"""The moment of rows [x | y], dense or sparse, in blocks."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np
import scipy.sparse

from lucidae._arrays import Array, as_float, is_array, like, namespace
from lucidae.moments import SecondMoment

BLOCK_ROWS = 16_384
"""Rows joined at a time, so that a large X is never copied whole."""


def joint_moment(X: Any, Y: Any, weights: Array | None = None) -> SecondMoment:
    """Return the moment of [X | Y]; sparse X stays sparse.

    Examples
    --------
    >>> import numpy as np
    >>> joint_moment(np.eye(3), np.arange(3.0)).n_features
    4
    """
    Y = as_columns(Y)
    if Y.shape[0] != X.shape[0]:
        raise ValueError(f"X has {X.shape[0]} rows and y has {Y.shape[0]}: give one y per row.")
    starts = [start for start in range(0, X.shape[0], BLOCK_ROWS) if _counts(weights, start)]
    blocks = (_block(X, Y, weights, start) for start in starts)
    return reduce(SecondMoment.merge, blocks)


def as_columns(Y: Any) -> Array:
    """Return targets as a floating matrix with one column per target."""
    Y = as_float(Y if is_array(Y) else np.asarray(Y))
    return Y[:, None] if Y.ndim == 1 else Y


def _block(X: Any, Y: Array, weights: Array | None, start: int) -> SecondMoment:
    rows = slice(start, start + BLOCK_ROWS)
    part = None if weights is None else weights[rows]
    if scipy.sparse.issparse(X):
        columns = scipy.sparse.csr_array(Y[rows])
        joined = scipy.sparse.hstack([X[rows].astype(np.float64), columns], format="csr")
        return SecondMoment.of(joined, part)
    xp = namespace(X)
    return SecondMoment.of(xp.concat([X[rows, :], like(Y[rows, :], X)], axis=1), part)


def _counts(weights: Array | None, start: int) -> bool:
    """Tell whether a block has any weight: one without has no moment."""
    if weights is None:
        return True
    return bool(namespace(weights).any(weights[start : start + BLOCK_ROWS] > 0))
