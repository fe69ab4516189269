"""The optimum as a function of the dropout rate, and the choice of the rate by cross-validation.

The least-squares map and its singular value decomposition do not depend on the rate. A path over
many rates therefore costs one decomposition, and cross-validation one for each fold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from sklearn.model_selection import check_cv

from lucidae.arrays import (
    Array,
    diagonal,
    like,
    namespace,
    scalar,
    squared_norm,
    to_numpy,
)
from lucidae.dropout.moments import joined_rows, joint_moment, take_rows, whiten
from lucidae.dropout.objectives import LinearProblem, second_about
from lucidae.dropout.solvers import leading_svd
from lucidae.dropout.theory import breakpoints, dropout_of, optimal_value, shrink, strength_of
from lucidae.dropout.wide import RowMean, row_factor
from lucidae.io.models import saved_as
from lucidae.iteration import limited_blas, of_each
from lucidae.moments import SecondMoment
from lucidae.validation import check_integer

__all__ = [
    "SELECTIONS",
    "CrossValidation",
    "DropoutChoice",
    "RegularizationPath",
    "checked_splits",
    "cross_validate",
    "cross_validate_rows",
    "fold_moments",
    "regularization_path",
]

Vector = np.ndarray[Any, Any]

GRID = np.concatenate([[0.0], np.geomspace(1e-4, 1e4, 161)])
"""Strengths dropout/(1 − dropout) that cross-validation compares: 0, and twenty per decade from
1e-4 to 1e4."""


@dataclass(frozen=True, slots=True, eq=False)
class RegularizationPath:
    """The optimal network as a function of the dropout rate, for a fixed number r of hidden units.

    Parameters
    ----------
    dropout : ndarray of shape (n,)
        Dropout rates: probabilities of dropping a hidden unit.
    rank : ndarray of int, shape (n,)
        Rank of the optimal product U Vᵀ of the weights at each rate.
    threshold : ndarray of shape (n,)
        Amount by which dropout reduces each singular value of the least-squares map.
    error : ndarray of shape (n,)
        Mean squared error E‖y − UVᵀx‖² of the optimal network, predicting without dropout.
    objective : ndarray of shape (n,)
        The minimum of the expected dropout loss.
    breaks : ndarray of shape (min(r, rank),)
        Entry j is the dropout rate from which on the rank is below j + 1; 1 if it never is.
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
    """Return rank, error and loss of the optimal network for many dropout rates.

    All rates share one singular value decomposition.

    Parameters
    ----------
    problem : LinearProblem
        Second moments of the data.
    width : int
        Number r of hidden units.
    dropouts : sequence of float, optional
        Rates in [0, 1); by default a grid on which log(dropout/(1 − dropout)) is equally spaced.

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
    """Return ‖M − P diag(ŝ) Qᵀ‖² for a matrix M whose singular values s are replaced by ŝ.

    P and Q are the singular vectors of M. The loss is ‖M‖² − Σ s² + Σ (s − ŝ)². `values` are the
    leading singular values s, `shrunk` are ŝ, and `total` is ‖M‖².
    """
    xp = namespace(values)
    remainder = max(total - scalar(xp.sum(values * values)), 0.0)
    return remainder + scalar(xp.sum((values - shrunk) ** 2))


class MomentFold(NamedTuple):
    """Second moments of the rows that a fold trains on (`training`) and holds out (`held_out`).

    A row contains inputs x and outputs y side by side.
    """

    training: SecondMoment
    held_out: SecondMoment


@saved_as("lucidae.dropout.cross_validation/1", formerly="lucidae.dropout.path:CrossValidation")
@dataclass(frozen=True, slots=True, eq=False)
class CrossValidation:
    """Prediction error on held-out rows for every dropout rate that was compared.

    Parameters
    ----------
    dropout : ndarray of shape (n,)
        The dropout rates that were compared.
    errors : ndarray of shape (n_folds, n)
        Mean squared error over the rows that each fold held out, summed over targets.
    weights : ndarray of shape (n_folds,)
        Total weight (or number) of the rows that each fold held out.
    """

    dropout: Vector
    errors: Vector
    weights: Vector

    @property
    def mean(self) -> Vector:
        """Mean squared error on held-out rows at every rate, folds weighted by their rows."""
        return np.average(self.errors, axis=0, weights=self.weights)

    @property
    def best(self) -> float:
        """The rate with the smallest mean error on held-out rows; of equals, the largest rate."""
        mean = self.mean
        ties = np.flatnonzero(mean <= mean.min() + 1e-12 * np.abs(mean).max())
        return float(self.dropout[ties[-1]])


SELECTIONS: dict[str, Callable[[CrossValidation], float]] = {"cv": lambda found: found.best}
"""Rules that choose the dropout rate from the held-out errors, by name."""


class DropoutChoice(NamedTuple):
    """Moment of all rows [x | y], the probability of dropping a unit, and how it was chosen.

    If there are fewer rows than features, `moment` contains only the mean.
    """

    moment: SecondMoment | RowMean
    dropout: float
    cv: CrossValidation | None


def cross_validate(
    folds: Sequence[MomentFold],
    n_features: int,
    width: int,
    *,
    centered: bool = True,
    strengths: Vector = GRID,
    callbacks: Sequence[Callable[..., Any]] = (),
    n_jobs: int | None = None,
) -> CrossValidation:
    """Return the error on held-out rows for every strength of dropout.

    Only the second moments of the folds are needed, which take one pass over the rows. After that
    each fold takes one decomposition, whose cost does not depend on the number of rows, and little
    on the number of strengths.

    Parameters
    ----------
    folds : sequence of MomentFold
        Moments of the training and the held-out rows [x | y] of every fold.
    n_features, width : int
        Number of features of x, and number of hidden units.
    centered : bool, default=True
        Whether the network has an intercept.
    strengths : array, optional
        Strengths dropout / (1 − dropout) that are compared.
    callbacks : sequence of callables
        As in `lucidae.iteration.iterate`; a step is a fold, and the distance is the number of
        folds that are left.
    n_jobs : int, optional
        Number of folds that are solved at a time, as in scikit-learn.
    """
    errors = of_each(
        _fold_errors,
        [(fold, n_features, width, centered, strengths) for fold in folds],
        n_jobs=n_jobs,
        callbacks=callbacks,
    )
    return CrossValidation(
        strengths / (1.0 + strengths),
        np.array(errors),
        np.array([fold.held_out.weight for fold in folds]),
    )


def cross_validate_rows(
    X: Any,
    Y: Array,
    weights: Array | None,
    cv: Any,
    width: int,
    *,
    centered: bool = True,
    strengths: Vector = GRID,
    callbacks: Sequence[Callable[..., Any]] = (),
    n_jobs: int | None = None,
) -> CrossValidation:
    """Return the error on held-out rows for every strength of dropout, without any moment.

    It is the result of `cross_validate` for data with fewer rows than features: each fold works on
    its training rows (see `lucidae.dropout.wide.row_factor`). The arguments are those of
    `fold_moments` and `cross_validate`.
    """
    splits = checked_splits(cv, X.shape[0], weights)
    parts = [tuple(_taken(X, Y, weights, rows) for rows in split) for split in splits]
    items = [(*pair, width, centered, strengths) for pair in parts]
    found = of_each(_row_fold_errors, items, n_jobs=n_jobs, callbacks=callbacks)
    errors, held_out = zip(*found, strict=True)
    return CrossValidation(strengths / (1.0 + strengths), np.array(errors), np.array(held_out))


def _row_fold_errors(
    training: FoldRows, held_out: FoldRows, width: int, centered: bool, strengths: Vector
) -> tuple[Vector, float]:
    """Return the mean squared errors on held-out rows, as `_fold_errors`, and the rows' weight.

    The error of x ↦ P diag(ŝ) Q'ᵀx is E‖y‖² − 2 Σᵢ ŝᵢ E[pᵢᵀy q'ᵢᵀx] + Σᵢ ŝᵢ² E[(q'ᵢᵀx)²], with the
    columns pᵢ of P, which are orthonormal, and q'ᵢ of Q'. x and y are centred at the means of the
    training rows.
    """
    X, Y, weights = training
    n_features = X.shape[1]
    with limited_blas(X.shape[0]):
        mean, factor = row_factor(X, Y, weights, centered=centered)
        white = whiten(LinearProblem.from_root(factor, n_features))
        P, values, Qt = leading_svd(white.matrix, width)
        directions = Qt.mT if white.lift is None else white.lift @ Qt.mT
        xp, n = namespace(values), held_out.inputs.shape[0]
        rows = joined_rows(held_out.inputs, held_out.outputs, slice(0, n), values)
        if centered:
            rows = (rows - mean.center) - mean.offset
        share = xp.ones_like(rows[:, 0])
        if held_out.weights is not None:
            share = like(held_out.weights, values)
        total = scalar(xp.sum(share))
        share = share / total
        codes, targets = rows[:, :n_features] @ directions, rows[:, n_features:]
        agreement, spread = share @ (codes * (targets @ P)), share @ (codes * codes)
        energy = scalar(xp.sum(share @ (targets * targets)))
        found = xp.stack([shrink(values, float(s), width).values for s in strengths])
        errors = energy - 2 * (found @ agreement) + (found * found) @ spread
        return to_numpy(errors), total


class FoldRows(NamedTuple):
    """Inputs, outputs and weights of some rows; the weights are None if all rows count once."""

    inputs: Any
    outputs: Array
    weights: Array | None


def _taken(X: Any, Y: Array, weights: Array | None, rows: Vector) -> FoldRows:
    """Return the rows with the given numbers."""
    part = None if weights is None else take_rows(weights, rows)
    return FoldRows(take_rows(X, rows), take_rows(Y, rows), part)


def _fold_errors(
    fold: MomentFold, n_features: int, width: int, centered: bool, strengths: Vector
) -> Vector:
    """Return the mean squared error on a fold's held-out rows, for each strength of dropout.

    The network is x ↦ P diag(ŝ) Q'ᵀx, with the singular vectors P and Q' of the least-squares map
    of the training rows (Q' for the original inputs x) and its singular values ŝ, shrunk by
    dropout. With the outputs y, A = E[yxᵀ] and C = E[xxᵀ] of the held-out rows the error equals
    E‖y‖² − 2 Σᵢ ŝᵢ (PᵀAQ')ᵢᵢ + Σᵢⱼ ŝᵢŝⱼ (PᵀP)ᵢⱼ(Q'ᵀCQ')ᵢⱼ. As P has orthonormal columns, only the
    diagonal of Q'ᵀCQ' remains, and each strength costs O(r) for r hidden units.
    """
    with limited_blas(n_features):
        problem = LinearProblem.from_moment(fold.training, n_features, centered=centered)
        white = whiten(problem)
        P, values, Qt = leading_svd(white.matrix, width)
        directions = Qt.mT if white.lift is None else white.lift @ Qt.mT
        # The intercept is part of the fit: held-out rows are centred at the means of training rows.
        center = fold.training.mean if centered else 0.0
        held_out = LinearProblem.from_second(second_about(fold.held_out, center), n_features)
        agreement = diagonal(P.mT @ (held_out.cross @ directions))
        spread = diagonal(directions.mT @ held_out.through_inputs(directions))
        xp = namespace(values)
        found = xp.stack([shrink(values, float(s), width).values for s in strengths])
        return to_numpy(held_out.energy - 2 * (found @ agreement) + (found * found) @ spread)


class Folds(NamedTuple):
    """Second moments of every fold (`folds`), and of all rows (`total`).

    `total` is known only if every row is held out exactly once; otherwise it is None.
    """

    folds: list[MomentFold]
    total: SecondMoment | None


def fold_moments(
    X: Any,
    Y: Array,
    weights: Array | None,
    cv: Any,
    callbacks: Sequence[Callable[..., Any]] = (),
    n_jobs: int | None = None,
) -> Folds:
    """Return the second moments of every fold's training rows and held-out rows.

    If every row is held out exactly once, as in k-fold cross-validation, one pass over the rows is
    enough: the moment of the training rows of a fold is the merge of the other folds' moments. `cv`
    and `n_jobs` are arguments as in scikit-learn.
    """
    n_rows = X.shape[0]
    splits = checked_splits(cv, n_rows, weights)
    partition = _is_partition(splits, n_rows)
    if len(splits) < 2 and partition:
        raise ValueError(f"cv={cv!r} was given, expected at least two folds, such as cv=5.")

    def moments(parts: list[Vector]) -> list[SecondMoment]:
        given = [(X, Y, weights, rows) for rows in parts]
        return of_each(_moment, given, n_jobs=n_jobs, callbacks=callbacks)

    held_out = moments([test for _, test in splits])
    if partition:
        folds = _complementary_folds(held_out)
        return Folds(folds, folds[0].held_out.merge(folds[0].training))
    training = moments([train for train, _ in splits])
    return Folds([MomentFold(*pair) for pair in zip(training, held_out, strict=True)], None)


def checked_splits(cv: Any, n_rows: int, weights: Array | None) -> list[tuple[Vector, Vector]]:
    """Return the folds of `cv` as pairs of row indices (training rows, held-out rows).

    A part without rows of positive weight is an error.
    """
    # scikit-learn would unpack a list of folds itself, with an error that does not name cv.
    # A zero-dimensional array is an instance of Iterable, but cannot be iterated over.
    scalar_array = isinstance(cv, np.ndarray) and cv.ndim == 0
    listed = isinstance(cv, Iterable) and not scalar_array and not hasattr(cv, "split")
    if not listed and cv is not None and not hasattr(cv, "split"):
        check_integer(
            cv, "cv", low=2, others=", a splitter of scikit-learn, a list of folds or None"
        )
    given = cv if listed else check_cv(cv, classifier=False).split(np.empty((n_rows, 1)))
    splits = [_pair_of_rows(split, n_rows, number) for number, split in enumerate(given)]
    if not splits:
        raise ValueError(f"cv={cv!r} was given, expected at least one fold, such as cv=5.")
    for number, (train, test) in enumerate(splits):
        for rows, use in ((train, "trains on"), (test, "holds out")):
            heavy = len(rows) if weights is None else to_numpy(weights)[rows].sum()
            if not heavy > 0:
                why = "no rows" if len(rows) == 0 else "only rows of weight zero"
                raise ValueError(
                    f"fold {number} of cv={cv!r} {use} {why}. Remove the rows of weight zero, or "
                    "shuffle: cv=KFold(5, shuffle=True)."
                )
    return splits


def _pair_of_rows(split: Any, n_rows: int, number: int) -> tuple[Vector, Vector]:
    """Return the indices of the rows of a fold to train on, and of those to hold out."""
    parts = list(split) if isinstance(split, Iterable) else []
    if len(parts) != 2:
        raise ValueError(
            f"fold {number} of cv is {split!r}, expected two arrays of row indices: the rows to "
            "train "
            "on, and those to hold out."
        )
    return _row_numbers(parts[0], n_rows, number), _row_numbers(parts[1], n_rows, number)


def _row_numbers(rows: Any, n_rows: int, number: int) -> Vector:
    """Return the row indices of one part of a fold, given as integers or as a boolean mask.

    `number` is the number of the fold in the error message.
    """
    rows = np.asarray(rows)
    if rows.dtype == bool and rows.shape == (n_rows,):
        return np.flatnonzero(rows)
    if rows.size == 0:
        return np.empty(0, dtype=int)
    whole = rows.ndim == 1 and rows.dtype.kind in "iu"
    if not whole or rows.min() < -n_rows or rows.max() >= n_rows:
        raise ValueError(
            f"fold {number} of cv contains {rows!r}, expected row indices (integers from 0 to "
            f"{n_rows - 1})."
        )
    return np.asarray(rows % n_rows)


def _is_partition(splits: list[tuple[Vector, Vector]], n_rows: int) -> bool:
    """Tell whether every row is held out in exactly one fold, which trains on all other rows."""
    tests = np.sort(np.concatenate([test for _, test in splits]))
    complete = all(len(train) + len(test) == n_rows for train, test in splits)
    return complete and np.array_equal(tests, np.arange(n_rows))


def _moment(X: Any, Y: Array, weights: Array | None, rows: Vector) -> SecondMoment:
    """Return the second moment of the given rows of [X | Y]."""
    with limited_blas(X.shape[1]):
        return joint_moment(*_taken(X, Y, weights, rows))


def _complementary_folds(held_out: Sequence[SecondMoment]) -> list[MomentFold]:
    """Return one fold for each second moment, which trains on the merge of all other moments.

    The moments belong to disjoint sets of rows. Fold i trains on before[i − 1] merged with after[i
    + 1], the running merges from both ends, so that the cost is linear in the number of folds.
    Subtracting a fold from the total would be as cheap, but would cancel digits.
    """
    before: list[SecondMoment] = list(accumulate(held_out, SecondMoment.merge))
    after: list[SecondMoment] = list(accumulate(reversed(held_out), SecondMoment.merge))[::-1]
    middle = [a.merge(b) for a, b in zip(before[:-2], after[2:], strict=True)]
    training = [after[1], *middle, before[-2]]
    return [MomentFold(*pair) for pair in zip(training, held_out, strict=True)]
