"""The noise variance γ: given, learned by minimising the energy, or estimated on held-out rows.

Learning minimises the energy (loss) with respect to γ too. It is safe if there are enough rows to
determine the coefficients. Otherwise the energy falls without limit as γ tends to zero. In that
case models are fitted at a decreasing sequence (a path) of noise variances, and γ is the smallest
mean squared error with which one of them predicts held-out rows. Each fit starts from the one
before. For small problems each fit takes a few MacKay steps from equal relevances (prior variances)
instead, which costs less and does not start in a bad minimum.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import KFold

from lucidae.arrays import Array, scalar, to_numpy
from lucidae.iteration import Below, Callback, Solution, iterate, limited_blas, of_each
from lucidae.sparsity.objectives import Energy
from lucidae.sparsity.posterior import posterior_mean
from lucidae.sparsity.problem import Problem, Rows, Units
from lucidae.sparsity.solvers import (
    FEW_RESPONSES,
    is_small,
    joined,
    lifted,
    repeat_update,
    solve,
    with_value,
)
from lucidae.sparsity.state import State, empty_start, evaluate
from lucidae.sparsity.updates import SMALLEST_LEARNED, learned_noise
from lucidae.sparsity.working_set import solve_working_set
from lucidae.validation import check_choice, check_integer, check_number, warn_user

PATH_STEP = 10.0**-0.5
"""Ratio of each noise variance on the path to the one before."""

PATH_END = 1e-10
"""Smallest noise variance on the path, relative to the mean square response."""

PATIENCE = 3
"""The path ends after this many noise variances without a better prediction of held-out rows."""

FEW_STEPS = 10
"""Number of MacKay steps after which the predictions of a small problem no longer improve."""

WARM_STEPS = 50
"""Largest number of descent sweeps in the relevances between two updates of the noise variance."""

FALLBACK = 0.1
"""Noise variance for data with a single row, relative to the mean square response."""


def noise_rule(given: Any, objective: Energy, n_rows: int, n_columns: int) -> str | float:
    """Return how the noise variance is found: "learn", "cv", "fallback" or the number given.

    "auto" becomes "learn" if the energy (loss) has a posterior variance and there are at most half
    as many columns as rows, "cv" otherwise, and "fallback" for a single row.
    """
    if isinstance(given, Real):
        words = " or one of 'auto', 'learn', 'cv'"
        return check_number(given, "noise_variance", low=0.0, open_low=True, others=words)
    rule = check_choice(
        given, "noise_variance", ("auto", "learn", "cv"), others=" or a finite number above 0"
    )
    if rule == "learn":
        check_learnable(objective)
    if rule == "cv" and n_rows < 2:
        raise ValueError(
            f"noise_variance='cv' needs at least 2 distinct rows to predict held-out rows, but "
            f"there is only {n_rows}. Give more rows, or give the noise variance as a number."
        )
    if rule != "auto":
        return rule
    if objective.has_posterior and n_columns <= n_rows / 2:
        return "learn"
    return "cv" if n_rows >= 2 else "fallback"


def check_learnable(objective: Energy) -> None:
    """Raise an error if the energy has no posterior variance; the noise cannot be learned then.

    The energy is the loss that is minimised.
    """
    if not objective.has_posterior:
        raise ValueError(
            f"noise_variance='learn' needs a posterior, but {type(objective).__name__} is a point "
            "estimate without one: its energy (loss) has no lower bound as the noise variance "
            "tends to zero. Give the noise variance as a number, use posterior='full', or use "
            "noise_variance='cv' (SparseVAE only)."
        )


def folds(
    cv: Any, random_state: Any, distinct: Rows, given: Rows
) -> tuple[Rows, Iterator[tuple[Any, Any]]]:
    """Return the rows to split for cross-validation, and the (train, test) indices of each fold.

    Parameters
    ----------
    cv : int, splitter, iterable of folds or None
        If it is a number of folds or None, the distinct rows are shuffled and divided, so that
        weighting a row and repeating it give the same result. A splitter or explicit folds refer to
        the rows as they were given.
    random_state : int, RandomState or None
        Seed of the shuffling; None uses the seed 0, so that two fits agree.
    distinct, given : Rows
        The distinct rows with their total weights, and the rows as they were given.

    Returns
    -------
    rows : Rows
        Either `distinct` or `given`.
    splits : iterator of (train, test) indices
        Indices into `rows`.
    """
    others = ", a splitter of scikit-learn, a list of folds or None"
    if cv is None or isinstance(cv, int | np.integer):
        few = given.responses.shape[1] <= FEW_RESPONSES
        usual = 10 if few else 5  # one response is no longer identified by four fifths of its rows
        wanted = usual if cv is None else check_integer(cv, "cv", low=2, others=others)
        seed = 0 if random_state is None else random_state
        splitter = KFold(min(wanted, distinct.count), shuffle=True, random_state=seed)
        return distinct, splitter.split(np.empty((distinct.count, 1)))
    if isinstance(cv, str | bytes) or not (hasattr(cv, "split") or np.iterable(cv)):
        check_integer(cv, "cv", low=2, others=others)
    if not hasattr(cv, "split"):
        return given, iter(cv)
    return given, cv.split(given.indexable, to_numpy(given.responses))


class Learning(NamedTuple):
    """The relevances found at one noise variance, and the noise variance to be tried next.

    The relevance of a column is the prior variance of its coefficients. The next noise variance
    follows from one step of expectation–maximisation (EM).
    """

    solution: Solution[State]
    noise: float

    @classmethod
    def after(cls, solution: Solution[State], objective: Energy) -> Learning:
        """Return `solution` with the noise variance after one step of expectation–maximisation."""
        state = solution.value
        return cls(solution, scalar(learned_noise(state, objective.degrees_of_freedom(state))))

    @property
    def distance(self) -> float:
        """Distance to stationarity in the relevances or in the noise variance, the larger one.

        The latter is the relative change of the noise variance in the next expectation–maximisation
        (EM) step. The relevance of a column is the prior variance of its coefficients.
        """
        change = abs(self.noise / scalar(self.solution.value.noise) - 1.0)
        return max(change, self.solution.distance)


def first_noise(problem: Problem) -> float:
    """Return the noise variance from which learning starts, in units of the mean square response.

    It is the residual variance of least squares on all columns, or 0.1 if there are not more rows
    than columns.
    """
    spare, outside = scalar(problem.spare), scalar(problem.outside)
    estimate = outside / spare if spare >= 1.0 else FALLBACK
    return max(estimate, SMALLEST_LEARNED)


def learn_noise(
    problem: Problem,
    objective: Energy,
    *,
    method: str,
    tolerance: float,
    limit: int,
    start: Array | None = None,
    callbacks: Sequence[Callback] = (),
) -> Solution[State]:
    """Minimise the energy (loss) with respect to the relevances and the noise variance together.

    For the full posterior, minimisations over the relevances alternate with steps of
    expectation–maximisation (EM) of the noise variance; both lower the energy. For the diagonal
    posterior, both are updated in every step. The relevance of a column is the prior variance of
    its coefficients.

    Parameters
    ----------
    problem : Problem
        One normalised problem; its noise variance is ignored.
    objective : Energy
        The energy.
    method : str
        Name of the solver for the relevances, see `solve`.
    tolerance, limit : float and int
        Distance to stationarity at which to stop, and largest number of steps.
    start : array of shape (n_columns,), optional
        Relevances to start from.
    callbacks : sequence of callable
        As in `iterate`.

    Returns
    -------
    Solution
        Its value is a `State` with the learned noise variance.
    """
    problem = problem.with_noise(first_noise(problem))
    stop: dict[str, Any] = {"tolerance": tolerance, "callbacks": callbacks}
    if not objective.descends_between_noise_steps:
        begin = lifted(problem, start, objective.groups)
        return _learn_by_updates(problem, objective, begin, limit, stop)
    warm: dict[str, Any] = {
        "method": "coordinate" if objective.exact_coordinates else "mm",
        "tolerance": tolerance,
        "limit": WARM_STEPS,
    }

    def step(learning: Learning) -> Learning:
        state, at_noise = learning.solution.value, problem.with_noise(learning.noise)
        return Learning.after(solve(at_noise, objective, start=state.relevance, **warm), objective)

    first = solve(problem, objective, method=method, start=start, limit=limit, **stop)
    learned = iterate(
        step,
        Learning.after(first, objective),
        stop=Below(lambda learning: learning.distance, tolerance),
        limit=limit,
        record={"energy": lambda learning: objective.value(learning.solution.value)},
        callbacks=callbacks,
        size=problem.rows,
    )
    return with_value(learned, learned.value.solution.value)


def _learn_by_updates(
    problem: Problem, objective: Energy, start: Array | None, limit: int, stop: dict[str, Any]
) -> Solution[State]:
    """Update the relevances (prior variances) and the noise variance together in every step.

    Columns with negligible relevances are dropped on the way. If one of them should grow at the
    end, the updates continue with all columns.
    """
    solution = repeat_update(problem, objective, start=start, limit=limit, learn=True, **stop)
    left, state = limit - solution.n_iter, solution.value
    # A column is dropped where its relevance decreases; as γ falls later, it might increase again.
    grows = scalar(objective.violation(state)) > solution.tolerance
    if not solution.status.ok or not grows or left <= 0:
        return solution
    start = lifted(problem, state.relevance, objective.groups)
    problem = problem._replace(noise=state.noise)
    again = repeat_update(
        problem, objective, start=start, limit=left, learn=True, prune=False, **stop
    )
    return joined(solution, again)


def warn_if_collapsed(solution: Solution[State]) -> None:
    """Warn if learning ended at the smallest noise variance that is allowed."""
    if scalar(solution.value.noise) <= 1.01 * SMALLEST_LEARNED:
        warn_user(
            "The learned noise variance fell to the smallest value that is allowed, because the "
            "likelihood of these data grows as the noise variance tends to zero (too few rows for "
            "so many columns, or no noise at all). Use noise_variance='cv' or give a number.",
            ConvergenceWarning,
        )


@dataclass(slots=True)
class RowFold:
    """Training and test rows of one cross-validation fold, with the relevances of its last fit.

    The relevance of a column is the prior variance of its coefficients.

    Parameters
    ----------
    problem, units : Problem and Units
        The training rows as a normalised problem, and its units.
    train, test : Rows
        The training rows and the held-out rows.
    relevance : array of shape (n_columns,), optional
        Relevances fitted at the previous noise variance; None before the first.
    """

    problem: Problem
    units: Units
    train: Rows
    test: Rows
    relevance: Array | None = None

    @classmethod
    def of(cls, train: Rows, test: Rows, objective: Energy) -> RowFold:
        """Return a fold with its training rows in normalised units.

        In these units columns have unit norm and responses have unit mean square.
        """
        return cls(*train.normalised(objective.groups), train, test)

    def fitted(self, noise: float, objective: Energy) -> tuple[float, Array]:
        """Return the error of the test rows after a fit at `noise`, and the fitted relevances.

        The error is the weighted sum of squares. The fit starts from the relevances (prior
        variances) of the last one.
        """
        with limited_blas(self.train.count):
            normalised = scalar(self.units.normalised_noise(noise))
            solution = _coarse(self.problem.with_noise(normalised), objective, self.relevance)
            relevance = self.units.relevance(solution.value.relevance)
            coefficients = posterior_mean(*self.train.weighted, relevance, noise)
            return self.test.squared_error(coefficients, self.train), solution.value.relevance


def _coarse(problem: Problem, objective: Energy, start: Array | None) -> Solution[State]:
    """Return relevances that minimise the energy to the low accuracy that predictions need.

    The energy is the loss, and the relevance of a column is the prior variance of its coefficients.
    """
    if not objective.exact_coordinates:
        begin = lifted(problem, start, objective.groups)
        return repeat_update(problem, objective, start=begin, tolerance=1e-2, limit=100)
    if is_small(problem):  # no start is better: one from a larger γ may end at a higher energy
        return repeat_update(problem, objective, "mackay", tolerance=1e-2, limit=FEW_STEPS)
    first = empty_start(problem) if start is None else start
    return solve_working_set(evaluate(problem, first, columns=True), tolerance=1e-2, limit=10)


class PathPoint(NamedTuple):
    """Progress along the path of noise variances.

    The fields are the number of noise variances tried, the smallest mean squared error of held-out
    rows so far, and the number of noise variances tried since this error last improved.
    """

    tried: int
    best: float
    waited: int


def cross_validated_noise(
    rows: Rows,
    splits: Iterable[tuple[Any, Any]],
    objective: Energy,
    callbacks: Sequence[Callback] = (),
    n_jobs: int | None = None,
) -> float:
    """Return the smallest mean squared error of held-out rows along a path of noise variances.

    Models are fitted to the training rows at each noise variance of a decreasing sequence.

    Parameters
    ----------
    rows : Rows
        The dictionary, the responses and the weights of the rows.
    splits : iterable of (train, test) indices
        The folds.
    objective : Energy
        The energy (loss) that is minimised on the training rows.
    callbacks : sequence of callable
        Called at every noise variance. The distance passed to them is the number of further noise
        variances that will be tried if the prediction does not improve.
    n_jobs : int, optional
        Number of folds that are fitted at a time, as in scikit-learn.

    Returns
    -------
    float
        The error, in squared units of the responses. Up to sampling errors it is an upper bound of
        the noise variance.
    """
    scale = rows.mean_square()
    if scale == 0.0:
        return 0.0
    pairs = [
        (rows.take(train), rows.take(test)) for train, test in _checked_splits(splits, rows.count)
    ]
    total = sum(test.total_weight for _, test in pairs) * rows.responses.shape[1]
    if not total > 0.0 or not all(train.total_weight > 0.0 for train, _ in pairs):
        raise ValueError(
            "In a fold of cv, the training rows or the test rows all have weight zero. Give other "
            "folds in cv or other sample_weight."
        )
    parts = [RowFold.of(train, test, objective) for train, test in pairs]
    path = _noise_path(scale)

    def step(point: PathPoint) -> PathPoint:
        noise = path[point.tried]
        fits = of_each(RowFold.fitted, [(f, noise, objective) for f in parts], n_jobs=n_jobs)
        for fold, (_, relevance) in zip(parts, fits, strict=True):
            fold.relevance = relevance
        error = sum(error for error, _ in fits) / total
        waited = 0 if error < 0.99 * point.best else point.waited + 1
        return PathPoint(point.tried + 1, min(point.best, error), waited)

    ended = iterate(
        step,
        PathPoint(0, np.inf, 0),
        stop=Below(lambda point: PATIENCE - point.waited, 0.0),
        limit=len(path),
        callbacks=callbacks,
    )
    return max(float(ended.value.best), PATH_END * scale)


def _checked_splits(splits: Iterable[tuple[Any, Any]], n_rows: int) -> list[tuple[Any, Any]]:
    """Return the folds as pairs of non-empty integer arrays, or raise an error if one is invalid.

    Boolean masks are converted to indices.
    """
    pairs = []
    for split in splits:
        try:
            parts = [np.asarray(part) for part in split]
        except (TypeError, ValueError):
            parts = []
        parts = [np.flatnonzero(part) if part.dtype.kind == "b" else part for part in parts]
        whole = all(part.dtype.kind in "iu" and part.size and part.ndim == 1 for part in parts)
        inside = whole and all(part.min() >= 0 and part.max() < n_rows for part in parts)
        if len(parts) != 2 or not inside:
            raise ValueError(
                f"cv contains the fold {split!r}, expected two non-empty arrays of row indices in "
                f"[0, {n_rows - 1}]: the training rows and the test rows."
            )
        pairs.append((parts[0], parts[1]))
    if not pairs:
        raise ValueError(
            "cv contains no folds, expected at least one pair of training and test rows."
        )
    return pairs


def _noise_path(scale: float) -> list[float]:
    """Return the noise variances to try, decreasing from `scale`, the mean square response."""
    path = [scale]
    while path[-1] * PATH_STEP > PATH_END * scale:
        path.append(path[-1] * PATH_STEP)
    return path
