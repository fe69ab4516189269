"""The optimum for many dropout rates or ranks, with errors on training and held-out rows.

The least-squares map and its singular value decomposition depend neither on the rate nor on the
rank. The results for many rates or ranks, and the errors of a fold of cross-validation, therefore
cost one decomposition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import scipy.sparse
from scipy.stats import rankdata
from sklearn.model_selection import check_cv

from lucidae.arrays import Array, arange_like, like, namespace, squared_norm, to_numpy
from lucidae.cards import card, table
from lucidae.dropout.problem import (
    LinearProblem,
    checked_targets,
    host,
    is_wide,
    joint_moment,
    rows_problem,
    take,
    whiten,
)
from lucidae.dropout.solvers import assemble, leading_svd
from lucidae.dropout.theory import breakpoints, dropout_of, optimal_value, shrink, strength_of
from lucidae.iteration import limited_blas, of_each
from lucidae.iteration.progress import elapsed_on
from lucidae.moments import SecondMoment
from lucidae.validation import (
    check_argument,
    check_flag,
    check_integer,
    check_number,
    check_rows,
    check_weights,
    pair_of_rows,
)

Vector = np.ndarray[Any, Any]

GRID = np.concatenate([[0.0], np.geomspace(1e-4, 1e4, 161)])
"""Strengths dropout/(1 − dropout) that cross-validation compares: 0, and twenty per decade from
1e-4 to 1e4."""


@dataclass(frozen=True, slots=True, eq=False)
class PathOfRates:
    """Base class of results for several dropout rates, with a plot, and a table for notebooks."""

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
    total = float(squared_norm(white.matrix))
    shrunk = [shrink(values, float(strength), width) for strength in strengths]
    minima = [optimal_value(values, float(strength), width, total) for strength in strengths]
    # ‖M − P diag(ŝ) Qᵀ‖² = ‖M‖² − Σ s² + Σ (s − ŝ)², with the singular vectors P and Q of M.
    remainder = max(total - float(values @ values), 0.0)
    lost = [values - found.values for found in shrunk]
    errors = [remainder + float(part @ part) for part in lost]
    limits = to_numpy(breakpoints(values, width))
    return RegularizationPath(
        np.array([dropout_of(float(strength)) for strength in strengths]),
        np.array([found.rank for found in shrunk]),
        np.array([found.threshold for found in shrunk]),
        white.floor + np.array(errors),
        white.floor + np.array(minima),
        1.0 - 1.0 / (1.0 + limits[limits > 0]),
    )


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
    check_argument(verbose, "verbose")
    X = check_rows(X)
    Y, _ = checked_targets(X, y)
    weights = check_weights(sample_weight, X)
    centered = check_flag(fit_intercept, "fit_intercept")
    alpha, jobs = check_number(alpha, "alpha", low=0.0), check_argument(n_jobs, "n_jobs")
    most = min(X.shape[1], Y.shape[1])
    width = most
    if max_rank is not None:
        width = check_integer(max_rank, "max_rank", low=1, high=most, others=" or None")
    validated = None
    with elapsed_on(X, "rank_path", verbose):
        problem, moment = rows_problem(X, Y, weights, centered=centered)
        penalty = alpha / moment.weight
        found = assemble(whiten(problem, penalty), 0.0, width, shrinks=False)
        left, right = (host(part) for part in found.weights)
        if cv is not None:
            validated, _ = cross_validate(
                X, Y, weights, cv, width, centered=centered, shrinks=False, alpha=alpha, n_jobs=jobs
            )
    values = np.zeros(width)
    values[: found.singular_values.shape[0]] = host(found.singular_values)
    # Rank k has the smallest loss with the ridge penalty, found.value, plus the squares of the
    # values that it leaves out; its coefficients have the squared norm Σ_{i≤k} ‖vᵢ‖².
    left_out = np.append(np.cumsum(values[::-1] ** 2)[::-1], 0.0)
    norms = np.append(0.0, np.cumsum((right * right).sum(axis=0)))
    errors = np.maximum(found.value + left_out - penalty * norms, 0.0)
    mean = host(moment.mean) * centered
    return RankPath(
        np.arange(width + 1),
        errors,
        values,
        validated,
        left,
        right,
        mean[: X.shape[1]],
        mean[X.shape[1] :],
    )


@dataclass(frozen=True, slots=True, eq=False)
class CrossValidation:
    """Prediction error on held-out rows for every dropout rate, or for every rank.

    Parameters
    ----------
    dropout : ndarray of shape (n,)
        The dropout rates that were compared; zeros if ranks were compared.
    errors : ndarray of shape (n_folds, n)
        Mean squared error over the rows that each fold held out, summed over targets.
    weights : ndarray of shape (n_folds,)
        Total weight (or number) of the rows that each fold held out.
    n_components : ndarray of int of shape (n,), optional
        The ranks 0, 1, … that were compared without shrinkage. Rank 0 predicts the mean of the
        targets; it is not chosen. None if dropout rates were compared.

    Examples
    --------
    >>> import numpy as np
    >>> errors = np.array([[4.0, 2.0, 1.9], [5.0, 2.2, 2.1]])
    >>> found = CrossValidation(np.zeros(3), errors, np.ones(2), np.arange(3))
    >>> found.best, found.one_se
    (2, 1)
    """

    dropout: Vector
    errors: Vector
    weights: Vector
    n_components: Vector | None = None

    @property
    def mean(self) -> Vector:
        """Mean squared error on held-out rows at every rate or rank.

        Each fold counts with the total weight of the rows that it held out.
        """
        share = self.weights / self.weights.sum()
        return np.asarray(np.sum(share[:, None] * self.errors, axis=0))

    @property
    def standard_error(self) -> Vector:
        """Standard error of `mean`, from the differences between folds; NaN for a single fold.

        For folds of equal weight it is their standard deviation divided by the square root of
        their number. Folds share training rows, so that it is usually too small.
        """
        count = len(self.weights)
        if count < 2:
            return np.full(self.errors.shape[1], np.nan)
        share = self.weights / self.weights.sum()
        return np.asarray(self._root_sum(share**2) * (count / (count - 1)) ** 0.5)

    def _root_sum(self, weights: Vector) -> Vector:
        """Return √Σ wᵢ(eᵢ − mean)² over the folds i, with their errors eᵢ."""
        size = max(float(np.abs(self.errors).max()), np.finfo(float).tiny)
        differences = self.errors / size - self.mean / size  # squares of errors may overflow
        return np.asarray(size * np.sqrt(weights @ differences**2))

    @property
    def best(self) -> float:
        """The rate or rank with the smallest mean error; of equals, the simplest.

        The simplest is the largest rate, or the smallest rank.
        """
        return self._setting(self._simplest(0.0))

    @property
    def one_se(self) -> float:
        """The simplest rate or rank whose mean error is within one standard error of the smallest.

        The simplest is the largest rate, or the smallest rank. The standard error is that at the
        smallest error (Breiman et al. 1984, section 3.4.3).
        """
        error = float(self.standard_error[self._simplest(0.0)])
        if np.isnan(error):
            raise ValueError(
                "cv has a single fold, expected at least two for the rule of one standard error: "
                "give cv=5, or use 'cv' in place of 'cv_1se'."
            )
        return self._setting(self._simplest(error))

    def _repr_html_(self) -> str:
        name, compared = self._compared
        name = "rank" if name == "n_components" else name
        columns: dict[str, Any] = {
            name: compared,
            "held-out error": self.mean,
            "standard error": self.standard_error,
        }
        best = f"{name.capitalize()} {self.best:.4g} has the smallest error."
        return card(f"Cross-validation with {len(self.weights)} folds", table(columns), best)

    def results(self) -> dict[str, Any]:
        """Return the errors under the names of scikit-learn's ``GridSearchCV.cv_results_``.

        The scores are negative mean squared errors, summed over targets. As in `mean`, folds are
        weighted by their rows.
        """
        mean = self.mean
        spread = self._root_sum(self.weights / self.weights.sum())
        name, compared = self._compared
        found = {
            f"param_{name}": compared,
            "params": [{name: setting} for setting in compared.tolist()],
        }
        found |= {f"split{i}_test_score": -errors for i, errors in enumerate(self.errors)}
        found |= {"mean_test_score": -mean, "std_test_score": spread}
        return found | {"rank_test_score": rankdata(mean, method="min").astype(int)}

    @property
    def _compared(self) -> tuple[str, Vector]:
        """The name and the values of the setting that was compared: rates, or ranks."""
        if self.n_components is None:
            return "dropout", self.dropout
        return "n_components", self.n_components

    def _simplest(self, excess: float) -> int:
        """Return the index of the simplest setting within `excess` of the smallest mean error."""
        mean, ranks = self.mean, self.n_components
        if ranks is not None:  # rank 0 is not chosen
            mean = np.where(ranks > 0, mean, np.inf)
        excess = max(excess, 1e-12 * float(np.abs(self.mean).max()))
        allowed = np.flatnonzero(mean <= mean.min() + excess)
        return int(allowed[-1] if ranks is None else allowed[0])

    def _setting(self, index: int) -> float:
        """Return the rate (a float) or the rank (an int) with the given index."""
        found: float = self._compared[1][index].item()
        return found


SELECTIONS: dict[str, Callable[[CrossValidation], float]] = {
    "cv": lambda found: found.best,
    "cv_1se": lambda found: found.one_se,
}
"""Rules that choose the dropout rate or the rank from the held-out errors, by name."""


FoldRows = tuple[Any, Array, Array | None]
"""Inputs, outputs and weights of some rows; the weights are None if all rows count once."""


def cross_validate(
    X: Any,
    Y: Array,
    weights: Array | None,
    cv: Any,
    width: int,
    *,
    centered: bool,
    shrinks: bool,
    alpha: float,
    callbacks: Sequence[Callable[..., Any]] = (),
    n_jobs: int | None = None,
) -> tuple[CrossValidation, SecondMoment | None]:
    """Return the error on held-out rows for every strength of `GRID` or, unless it shrinks, rank.

    Each fold takes one decomposition. If every row is held out exactly once, the moment of the
    training rows of a fold is the merge of the other folds' moments; that of all rows is returned
    too. Few rows with many features have no moment.
    """

    def taken(rows: Vector) -> FoldRows:
        return take(X, rows), take(Y, rows), None if weights is None else take(weights, rows)

    splits = checked_splits(cv, X.shape[0], weights)
    held_out = [taken(test) for _, test in splits]
    # Whether every row is held out in exactly one fold, which trains on all other rows
    partition = all(len(train) + len(test) == X.shape[0] for train, test in splits)
    tests = np.sort(np.concatenate([test for _, test in splits]))
    partition = partition and np.array_equal(tests, np.arange(X.shape[0]))
    total = None
    if partition and not is_wide(X):
        moments = of_each(_moment, held_out, n_jobs=n_jobs, callbacks=callbacks)
        training: list[Any] = _complements(moments)
        total = moments[0].merge(training[0])
    else:
        training = [taken(train) for train, _ in splits]
    items = [
        (*pair, width, centered, shrinks, alpha) for pair in zip(training, held_out, strict=True)
    ]
    found = of_each(_fold_errors, items, n_jobs=n_jobs, callbacks=callbacks)
    errors, sizes = (np.array(part) for part in zip(*found, strict=True))
    if shrinks:
        return CrossValidation(GRID / (1.0 + GRID), errors, sizes), total
    ranks = np.arange(errors.shape[1])
    return CrossValidation(np.zeros(len(ranks)), errors, sizes, ranks), total


def _fold_errors(
    training: FoldRows | SecondMoment,
    held_out: FoldRows,
    width: int,
    centered: bool,
    shrinks: bool,
    alpha: float,
) -> tuple[Vector, float]:
    """Return the errors on the held-out rows of a fold, and these rows' total weight.

    The network is x ↦ P diag(ŝ) Q'ᵀx, with the singular vectors P and Q' of the least-squares map
    of the training rows and its shrunk singular values ŝ. As P has orthonormal columns, its error
    is E‖y‖² − 2 Σᵢ ŝᵢ E[pᵢᵀy q'ᵢᵀx] + Σᵢ ŝᵢ² E[(q'ᵢᵀx)²].
    """
    X, Y, weights = held_out
    n, m = X.shape
    with limited_blas(m if isinstance(training, SecondMoment) else n):
        if isinstance(training, SecondMoment):
            mean: Any = training
            problem: Any = LinearProblem.from_moment(training, m, centered=centered)
        else:
            problem, mean = rows_problem(*training, centered=centered)
        white = whiten(problem, alpha / mean.weight)
        P, values, Qt = leading_svd(white.matrix, width)
        assert white.lift is not None, "rows were given"
        directions = white.lift @ Qt.mT
        # The intercept is part of the fit: held-out rows are centred at the means of training rows.
        center = mean.mean * float(centered)
        targets = like(Y, values) - center[m:]
        if scipy.sparse.issparse(X):
            codes = X @ directions - center[:m] @ directions
        else:
            codes = (like(X, values) - center[:m]) @ directions
        xp = namespace(values)
        share = xp.ones_like(targets[:, 0]) if weights is None else like(weights, values)
        total = float(xp.sum(share))
        share = share / total
        agreement, spread = share @ (codes * (targets @ P)), share @ (codes * codes)
        energy = float(xp.sum(share @ (targets * targets)))
        if shrinks:
            found = xp.stack([shrink(values, float(s), width).values for s in GRID])
        else:
            order = arange_like(values)
            found = xp.stack([xp.where(order < k, values, 0.0 * values) for k in range(width + 1)])
        return to_numpy(energy - 2 * (found @ agreement) + (found * found) @ spread), total


def checked_splits(cv: Any, n_rows: int, weights: Array | None) -> list[tuple[Vector, Vector]]:
    """Return the folds of `cv` as pairs of row indices (training rows, held-out rows).

    A fold that trains on, or holds out, only rows of weight zero is an error.
    """
    # scikit-learn would unpack a list of folds itself, with an error that does not name cv.
    # A zero-dimensional array is an instance of Iterable, but cannot be iterated over.
    scalar_array = isinstance(cv, np.ndarray) and cv.ndim == 0
    listed = isinstance(cv, Iterable) and not scalar_array and not hasattr(cv, "split")
    if not listed and not hasattr(cv, "split"):
        others = ", a splitter of scikit-learn, a list of folds or None"
        cv = 5 if cv is None else check_integer(cv, "cv", low=2, others=others)
        if cv > n_rows:
            raise ValueError(
                f"cv={cv} folds were given, but X has n_samples={n_rows}, and every fold needs a "
                "row: give more rows, a smaller cv, or a number instead of 'cv' and 'cv_1se'."
            )
    given = cv if listed else check_cv(cv, classifier=False).split(np.empty((n_rows, 1)))
    splits = [pair_of_rows(split, n_rows, number) for number, split in enumerate(given)]
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


def _moment(X: Any, Y: Array, weights: Array | None) -> SecondMoment:
    """Return the second moment of rows [X | Y]."""
    with limited_blas(X.shape[1]):
        return joint_moment(X, Y, weights)


def _complements(parts: Sequence[SecondMoment]) -> list[SecondMoment]:
    """Return for each moment the merge of all others.

    That of part i is before[i − 1] merged with after[i + 1], the running merges from both ends, so
    that the cost is linear. Subtracting a part from the total would cancel digits.
    """
    before: list[SecondMoment] = list(accumulate(parts, SecondMoment.merge))
    after: list[SecondMoment] = list(accumulate(reversed(parts), SecondMoment.merge))[::-1]
    middle = [a.merge(b) for a, b in zip(before[:-2], after[2:], strict=True)]
    return [after[1], *middle, before[-2]]
