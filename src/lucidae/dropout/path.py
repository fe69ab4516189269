"""The optimal network for many dropout rates, and reduced-rank least squares for all ranks.

The least-squares map and its singular value decomposition depend neither on the rate nor on the
rank. The results for many rates or ranks therefore cost one decomposition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lucidae.arrays import Array, is_array, namespace, scalar, squared_norm, to_numpy
from lucidae.cards import card, table
from lucidae.dropout.held_out import (
    GRID,
    CrossValidation,
    cross_validate,
    cross_validate_rows,
    fold_moments,
)
from lucidae.dropout.problem import DropoutObjective, LinearProblem, Weights, host
from lucidae.dropout.rows import checked_columns, is_wide, rows_problem
from lucidae.dropout.solvers import leading_svd, solve_reduced_rank
from lucidae.dropout.theory import breakpoints, dropout_of, optimal_value, shrink, strength_of
from lucidae.dropout.whitening import ridged, whiten
from lucidae.iteration.progress import elapsed_on
from lucidae.validation import (
    check_flag,
    check_integer,
    check_jobs,
    check_number,
    check_rows,
    check_verbose,
    check_weights,
)

__all__ = ["RankPath", "RegularizationPath", "rank_path", "regularization_path"]

Vector = np.ndarray[Any, Any]


class PathOfRates:
    """Base class of results for several dropout rates, with a plot, and a table for notebooks."""

    __slots__ = ()

    dropout: Vector
    rank: Vector
    threshold: Vector
    error: Vector
    objective: Vector

    def plot(self, *, ax: Any = None, **line: Any) -> Any:
        """Draw error and rank of the optimum against the dropout rate; see `DropoutPathDisplay`.

        Parameters
        ----------
        ax : matplotlib axes, optional
            Axes to draw on; by default a new figure is made.
        **line
            Keyword arguments of ``ax.plot`` for the error.

        Returns
        -------
        DropoutPathDisplay
            The display, already drawn; its axes are ``ax_``.
        """
        from lucidae.displays import DropoutPathDisplay

        return DropoutPathDisplay.from_path(self, ax=ax, **line)

    def _table(self, title: str, **further: Vector) -> str:
        """Return the results for all rates as an HTML table, with `further` columns at the end."""
        names = ("dropout", "rank", "threshold", "error", "objective")
        return card(title, table({name: getattr(self, name) for name in names} | further))


@dataclass(frozen=True, slots=True, eq=False)
class RegularizationPath(PathOfRates):
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
        Entry j (from 0) is the smallest dropout rate at which the rank of U Vᵀ is below j + 1; 1 if
        no rate below 1 reduces the rank that far. `rank` in the shape is the rank of the
        least-squares map.

    Notes
    -----
    Notebooks show the path as a table, and `plot` draws it.
    """

    dropout: Vector
    rank: Vector
    threshold: Vector
    error: Vector
    objective: Vector
    breaks: Vector

    def _repr_html_(self) -> str:
        return self._table(f"Optimal networks for {len(self.dropout)} dropout rates")


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
        Rank, error and smallest loss of the optimal network at each dropout rate.

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
    """Return ‖M − P diag(ŝ) Qᵀ‖² = ‖M‖² − Σ s² + Σ (s − ŝ)², with the singular vectors of M."""
    xp = namespace(values)
    remainder = max(total - scalar(xp.sum(values * values)), 0.0)
    return remainder + scalar(xp.sum((values - shrunk) ** 2))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RankPath:
    """Reduced-rank regression for all ranks 0, 1, … up to a largest one.

    Parameters
    ----------
    rank : ndarray of int of shape (n,)
        The ranks. Rank 0 predicts the mean of the targets (or zero, without an intercept).
    error : ndarray of shape (n,)
        Mean squared error on the training rows, summed over targets.
    singular_values : ndarray of shape (n − 1,)
        Singular values of the least-squares map for white inputs, one per component.
    cv : CrossValidation or None
        Errors on held-out rows for every rank; None if they were not computed.
    left, right : ndarrays of shapes (n_targets, n − 1) and (n_features, n − 1)
        Factors: the coefficients of rank k are the product of the first k columns of both.
    center, output_center : ndarrays of shapes (n_features,) and (n_targets,)
        Means of inputs and targets; zeros without an intercept.

    Notes
    -----
    Notebooks show the path as a table, and `plot` draws it.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((200, 5))
    >>> Y = X[:, :2] @ rng.standard_normal((2, 4)) + 0.5 * rng.standard_normal((200, 4))
    >>> path = rank_path(X, Y)
    >>> path
    RankPath(ranks 0 to 4, 5 features, 4 targets, smallest held-out error at rank 2)
    >>> path.best, path.one_se
    (2, 2)
    >>> path.coef(2).shape, int(np.linalg.matrix_rank(path.coef(2)))
    ((4, 5), 2)
    """

    rank: Vector
    error: Vector
    singular_values: Vector
    cv: CrossValidation | None
    left: Vector
    right: Vector
    center: Vector
    output_center: Vector

    def __repr__(self) -> str:
        chosen = "" if self.cv is None else f", smallest held-out error at rank {self.best}"
        return (
            f"RankPath(ranks {self.rank[0]} to {self.rank[-1]}, {len(self.right)} features, "
            f"{len(self.left)} targets{chosen})"
        )

    @property
    def held_out_error(self) -> Vector:
        """Mean squared error on held-out rows for every rank; NaN if it was not computed."""
        return np.full(self.rank.shape, np.nan) if self.cv is None else self.cv.mean

    @property
    def standard_error(self) -> Vector:
        """Standard error of `held_out_error` for every rank; NaN if it was not computed."""
        return np.full(self.rank.shape, np.nan) if self.cv is None else self.cv.standard_error

    @property
    def best(self) -> int:
        """The rank, at least 1, with the smallest error on held-out rows."""
        return int(self._validated.best)

    @property
    def one_se(self) -> int:
        """The smallest rank ≥ 1 whose held-out error is within one standard error of the least."""
        return int(self._validated.one_se)

    @property
    def _validated(self) -> CrossValidation:
        if self.cv is None:
            raise ValueError(
                "the path was computed with cv=None, expected folds to choose a rank from: call "
                "rank_path(X, y, cv=5)."
            )
        return self.cv

    def coef(self, rank: int) -> Vector:
        """Return the coefficients of the given rank, of shape (n_targets, n_features)."""
        rank = check_integer(rank, "rank", low=0, high=int(self.rank[-1]))
        return np.asarray(self.left[:, :rank] @ self.right[:, :rank].T)

    def intercept(self, rank: int) -> Vector:
        """Return the intercepts of the given rank, of shape (n_targets,)."""
        return np.asarray(self.output_center - self.coef(rank) @ self.center)

    def plot(self, *, ax: Any = None, **style: Any) -> Any:
        """Draw the errors on training and held-out rows against the rank; see `RankPathDisplay`.

        Parameters
        ----------
        ax : matplotlib axes, optional
            Axes to draw on; by default a new figure is made.
        **style
            Keyword arguments of ``ax.errorbar``.

        Returns
        -------
        RankPathDisplay
            The display, already drawn; its axes are ``ax_``.
        """
        from lucidae.displays import RankPathDisplay

        return RankPathDisplay.from_path(self, ax=ax, **style)

    def _repr_html_(self) -> str:
        columns: dict[str, Any] = {
            "rank": self.rank,
            "training error": self.error,
            "held-out error": self.held_out_error,
            "standard error": self.standard_error,
            "singular value": [None, *self.singular_values],
        }
        return card(repr(self), table(columns))


def rank_path(
    X: Any,
    y: Any,
    *,
    max_rank: int | None = None,
    alpha: float = 0.0,
    fit_intercept: bool = True,
    cv: Any = 5,
    sample_weight: Any = None,
    n_jobs: int | None = None,
    verbose: bool | str = "auto",
) -> RankPath:
    """Return reduced-rank regression of y on X for all ranks, with errors on held-out rows.

    All ranks share one singular value decomposition, and one more for each fold. The coefficients
    of rank k are those of ``DropoutRegressor(n_components=k, shrink=False)``.

    Parameters
    ----------
    X : {array-like, sparse matrix} of shape (n_samples, n_features)
        Inputs, one row per sample.
    y : array-like of shape (n_samples,) or (n_samples, n_targets)
        Targets, one row per sample.
    max_rank : int, optional
        Largest rank; by default the smaller of the numbers of features and targets.
    alpha : float, default=0.0
        Ridge penalty, as in `DropoutRegressor`.
    fit_intercept : bool, default=True
        Whether the means are subtracted.
    cv : int, splitter, iterable or None, default=5
        Folds, as in scikit-learn; None computes no errors on held-out rows.
    sample_weight : array-like of shape (n_samples,), optional
        Frequencies of the rows: a row of weight 2 counts as two equal rows.
    n_jobs : int, optional
        Number of folds that are computed at a time, as in scikit-learn.
    verbose : bool or "auto", default="auto"
        Whether to show the elapsed time of a call of more than two seconds: always, never, or, with
        ``"auto"``, if standard error is a terminal or belongs to a notebook.

    Returns
    -------
    RankPath
        The errors on training and held-out rows for each rank.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((50, 3))
    >>> path = rank_path(X, X @ np.diag([3.0, 1.0, 0.0]), cv=None)
    >>> path.rank, path.error.round(3)
    (array([0, 1, 2, 3]), array([11.706,  0.681,  0.   ,  0.   ]))
    """
    with elapsed_on(X, "rank_path", check_verbose(verbose)):
        return _rank_path(X, y, max_rank, alpha, fit_intercept, cv, sample_weight, n_jobs)


def _rank_path(
    X: Any, y: Any, max_rank: Any, alpha: Any, fit_intercept: Any, cv: Any, sample_weight: Any,
    n_jobs: Any,
) -> RankPath:  # fmt: skip
    """Return what `rank_path` returns for the same arguments."""
    X = check_rows(X)
    Y = checked_columns(X, check_rows(_columns(y), name="y"))
    weights = check_weights(sample_weight, X)
    centered = check_flag(fit_intercept, "fit_intercept")
    alpha, jobs = check_number(alpha, "alpha", low=0.0), check_jobs(n_jobs)
    most = min(X.shape[1], Y.shape[1])
    width = most
    if max_rank is not None:
        width = check_integer(max_rank, "max_rank", low=1, high=most, others=" or None")
    problem, moment = rows_problem(X, Y, weights, centered=centered)
    found = solve_reduced_rank(ridged(problem, alpha / moment.weight), width)
    left, right = found.weights
    plain = DropoutObjective(problem, 0.0)
    errors = [
        float(plain.loss(Weights(left[:, :rank], right[:, :rank]))) for rank in range(width + 1)
    ]
    options: dict[str, Any] = {
        "centered": centered, "shrinks": False, "alpha": alpha, "n_jobs": jobs
    }  # fmt: skip
    validated = None
    if cv is not None and is_wide(X):
        validated = cross_validate_rows(X, Y, weights, cv, width, **options)
    elif cv is not None:
        folds = fold_moments(X, Y, weights, cv, n_jobs=jobs).folds
        validated = cross_validate(folds, X.shape[1], width, **options)
    values = np.zeros(width)
    values[: found.singular_values.shape[0]] = host(found.singular_values)
    mean = host(moment.mean) * centered
    return RankPath(
        np.arange(width + 1),
        np.array(errors),
        values,
        validated,
        host(left),
        host(right),
        mean[: X.shape[1]],
        mean[X.shape[1] :],
    )


def _columns(y: Any) -> Any:
    """Return one-dimensional targets as a matrix of one column, and any other targets unchanged."""
    shape = getattr(y, "shape", None)
    y = np.asarray(y) if shape is None else y
    if y.ndim != 1:
        return y
    return y[:, None] if is_array(y) else np.asarray(y)[:, None]
