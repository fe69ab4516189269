"""Moments of cross-validation folds, and the targets that they need."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from sklearn.model_selection import check_cv

from lucidae._arrays import Array, as_float, as_plain, device, is_array, like, namespace
from lucidae.dropout.joint import joint_moment
from lucidae.dropout.path import Fold, complementary_folds
from lucidae.moments import SecondMoment

Rows = np.ndarray[Any, Any]


class Folds(NamedTuple):
    """Moments of every fold, and of all rows where the folds partition them."""

    folds: list[Fold]
    total: SecondMoment | None


def fold_moments(X: Any, Y: Array, weights: Array | None, cv: Any) -> Folds:
    """Return the moments of every fold's training and held-out rows.

    Folds whose held-out rows partition the data, as k-fold does, cost one pass over the rows in
    all: each trains on the merge of the others.
    """
    n_rows = X.shape[0]
    splits = list(check_cv(cv, classifier=False).split(np.empty((n_rows, 1))))
    partition = _is_partition(splits, n_rows)
    if len(splits) < 2 and partition:
        raise ValueError(f"cv={cv!r} was given, expected at least two folds.")
    held_out = [_moment(X, Y, weights, test) for _, test in splits]
    if partition:
        folds = complementary_folds(held_out)
        return Folds(folds, folds[0].held_out.merge(folds[0].training))
    training = [_moment(X, Y, weights, train) for train, _ in splits]
    return Folds([Fold(*pair) for pair in zip(training, held_out, strict=True)], None)


def _is_partition(splits: list[tuple[Rows, Rows]], n_rows: int) -> bool:
    """Tell whether every row is held out once and trained on otherwise."""
    tests = np.sort(np.concatenate([test for _, test in splits]))
    complete = all(len(train) + len(test) == n_rows for train, test in splits)
    return complete and np.array_equal(tests, np.arange(n_rows))


def _moment(X: Any, Y: Array, weights: Array | None, rows: Rows) -> Any:
    part = None if weights is None else _take(weights, rows)
    return joint_moment(_take(X, rows), _take(Y, rows), part)


def _take(values: Any, rows: Rows) -> Any:
    if scipy.sparse.issparse(values):
        return values[rows]
    xp = namespace(values)
    return xp.take(values, xp.asarray(rows, device=device(values)), axis=0)


def check_targets(y: Any, X: Array) -> Array:
    """Return targets beside an X of another library: finite, one or two axes, one per row."""
    if y is None:
        raise ValueError("y is None, but targets are needed: requires y to be passed.")
    y = like(as_plain(y) if is_array(y) else np.asarray(y), X)
    y, xp = as_float(y), namespace(X)
    if y.ndim not in (1, 2) or y.shape[0] != X.shape[0] or 0 in y.shape:
        raise ValueError(
            f"y has shape {tuple(y.shape)}, expected ({X.shape[0]},) or ({X.shape[0]}, n_targets)."
        )
    if not bool(xp.all(xp.isfinite(y))):
        raise ValueError("y contains NaN or infinity. Remove or impute those entries first.")
    return y
