"""Everything as a function of the dropout rate, from one decomposition; cross-validation too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from sklearn.model_selection import check_cv

from lucidae.arrays import (
    Array,
    as_float,
    as_plain,
    device,
    diagonal,
    is_array,
    like,
    namespace,
    scalar,
    squared_norm,
    to_numpy,
)
from lucidae.dropout.moments import joint_moment, whiten
from lucidae.dropout.objectives import LinearProblem
from lucidae.dropout.solvers import leading_svd
from lucidae.dropout.theory import breakpoints, dropout_of, optimal_value, shrink, strength_of
from lucidae.io.models import saved_as
from lucidae.moments import SecondMoment
from lucidae.validation import check_integer

__all__ = ["CrossValidation", "RegularizationPath", "cross_validate", "regularization_path"]

Vector = np.ndarray[Any, Any]

GRID = np.concatenate([[0.0], np.geomspace(1e-4, 1e4, 161)])
"""Strengths λ that cross-validation compares: no dropout, then twenty to a decade."""


@dataclass(frozen=True, slots=True, eq=False)
class RegularizationPath:
    """The optimum as a function of the dropout rate.

    Parameters
    ----------
    dropout : ndarray of shape (n,)
        Probabilities of dropping a unit.
    rank : ndarray of int, shape (n,)
        ρ, the rank of the optimal product.
    threshold : ndarray of shape (n,)
        α, what is taken from each singular value.
    error : ndarray of shape (n,)
        E‖y − UVᵀx‖² of the optimal network, without dropout.
    objective : ndarray of shape (n,)
        The minimum of the expected dropout loss.
    breaks : ndarray of shape (min(r, rank),)
        The dropout rates at which the rank falls below 1, 2, …; 1 where it never does.
    """

    dropout: Vector
    rank: Vector
    threshold: Vector
    error: Vector
    objective: Vector
    breaks: Vector


def regularization_path(
    problem: LinearProblem, width: int, dropouts: Sequence[float] | Vector | None = None
) -> RegularizationPath:
    """Return rank, error and objective for many dropout rates from one decomposition.

    Parameters
    ----------
    problem : LinearProblem
        Moments of the data.
    width : int
        r.
    dropouts : sequence of float, optional
        Rates in [0, 1); by default a grid that is even in log λ.

    Returns
    -------
    RegularizationPath

    Examples
    --------
    >>> import numpy as np
    >>> problem = LinearProblem.from_matrix(np.diag([3.0, 2.0, 1.0]))
    >>> path = regularization_path(problem, 3, [0.0, 0.4, 0.9])
    >>> path.rank
    array([3, 3, 1])
    >>> path.breaks.round(3)
    array([1.   , 0.857, 0.5  ])
    """
    width = check_integer(width, "width", low=1)
    strengths = GRID if dropouts is None else np.array([strength_of(p) for p in dropouts])
    white = whiten(problem)
    values = leading_svd(white.matrix, width)[1]
    total = scalar(squared_norm(white.matrix))
    shrunk = [shrink(values, float(strength), width) for strength in strengths]
    minima = [optimal_value(values, float(strength), width, total) for strength in strengths]
    errors = [_loss_of(values, found.values, total) for found in shrunk]
    limits = to_numpy(breakpoints(values, width))
    return RegularizationPath(
        np.array([dropout_of(float(strength)) for strength in strengths]),
        np.array([found.rank for found in shrunk]),
        np.array([found.threshold for found in shrunk]),
        white.floor + np.array(errors),
        white.floor + np.array(minima),
        1.0 - 1.0 / (1.0 + limits[limits > 0]),
    )


def _loss_of(values: Array, shrunk: Array, total: float) -> float:
    """Return ‖M − P diag(ŝ) Qᵀ‖² = ‖M‖² − Σ s² + Σ (s − ŝ)²."""
    xp = namespace(values)
    unseen = max(total - scalar(xp.sum(values * values)), 0.0)
    return unseen + scalar(xp.sum((values - shrunk) ** 2))


class MomentFold(NamedTuple):
    """Moments of [x | y] over the rows that a fold trains on and those that it holds out."""

    training: SecondMoment
    held_out: SecondMoment


@saved_as("lucidae.dropout.cross_validation/1", formerly="lucidae.dropout.path:CrossValidation")
@dataclass(frozen=True, slots=True, eq=False)
class CrossValidation:
    """Held-out error along the path of dropout rates.

    Parameters
    ----------
    dropout : ndarray of shape (n,)
        The rates that were compared.
    errors : ndarray of shape (n_folds, n)
        Mean squared error over the held-out rows, summed over targets.
    weights : ndarray of shape (n_folds,)
        Weight of the rows that each fold held out.
    """

    dropout: Vector
    errors: Vector
    weights: Vector

    @property
    def mean(self) -> Vector:
        """Mean held-out error at every rate."""
        return np.average(self.errors, axis=0, weights=self.weights)

    @property
    def best(self) -> float:
        """The rate with the smallest mean held-out error; the larger one of equals."""
        mean = self.mean
        ties = np.flatnonzero(mean <= mean.min() + 1e-12 * np.abs(mean).max())
        return float(self.dropout[ties[-1]])


def cross_validate(
    folds: Sequence[MomentFold],
    n_features: int,
    width: int,
    *,
    centered: bool = True,
    strengths: Vector = GRID,
) -> CrossValidation:
    """Return the held-out error of every strength, one decomposition per fold.

    Data enter through moments alone: once the moments of the folds are known, which is one pass
    over the rows, neither the number of rows nor that of strengths matters much.
    """
    errors = [_fold_errors(fold, n_features, width, centered, strengths) for fold in folds]
    return CrossValidation(
        strengths / (1.0 + strengths),
        np.array(errors),
        np.array([fold.held_out.weight for fold in folds]),
    )


def _fold_errors(
    fold: MomentFold, n_features: int, width: int, centered: bool, strengths: Vector
) -> Vector:
    """Return E‖y − P diag(ŝ) Q'ᵀx‖² over held-out rows: a quadratic in ŝ for each strength."""
    problem = LinearProblem.from_moment(fold.training, n_features, centered=centered)
    white = whiten(problem)
    P, values, Qt = leading_svd(white.matrix, width)
    directions = Qt.mT if white.lift is None else white.lift @ Qt.mT
    judged = _held_out_problem(fold, n_features, centered)
    agreement = diagonal(P.mT @ (judged.cross @ directions))
    spread = diagonal(directions.mT @ judged.through_inputs(directions))
    xp = namespace(values)
    found = xp.stack([shrink(values, float(s), width).values for s in strengths])
    # P has orthonormal columns: only the diagonal of the inputs' quadratic form is left.
    return to_numpy(judged.energy - 2 * (found @ agreement) + (found * found) @ spread)


def _held_out_problem(fold: MomentFold, n_features: int, centered: bool) -> LinearProblem:
    """Return the held-out moments about the means that the training rows gave."""
    held_out = fold.held_out
    shift = held_out.mean - fold.training.mean if centered else held_out.mean
    second = held_out.covariance + shift[:, None] * shift[None, :]
    xp = namespace(second)
    energy = scalar(xp.sum(diagonal(second)[n_features:]))
    return LinearProblem(second[n_features:, :n_features], second[:n_features, :n_features], energy)


def complementary_folds(held_out: Sequence[SecondMoment]) -> list[MomentFold]:
    """Return folds over moments that partition the rows: each trains on the merge of the others.

    Merged from both ends, so that the cost is linear in the number of folds.
    """
    before: list[SecondMoment] = list(accumulate(held_out, SecondMoment.merge))
    after: list[SecondMoment] = list(accumulate(reversed(held_out), SecondMoment.merge))[::-1]
    middle = [a.merge(b) for a, b in zip(before[:-2], after[2:], strict=True)]
    training = [after[1], *middle, before[-2]]
    return [MomentFold(*pair) for pair in zip(training, held_out, strict=True)]


Rows = np.ndarray[Any, Any]


class Folds(NamedTuple):
    """Moments of every fold, and of all rows where the folds partition them."""

    folds: list[MomentFold]
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
    return Folds([MomentFold(*pair) for pair in zip(training, held_out, strict=True)], None)


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
