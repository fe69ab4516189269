"""Errors of predicting held-out rows along a path of noise variances γ, by which γ is chosen.

Each fit of a fold starts from the one before, evaluates all columns once, and minimises the energy
on a working set to the low accuracy that predictions need. Small problems take a few MacKay steps
from equal relevances instead, which do not start in a bad minimum.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from sklearn.model_selection import KFold

from lucidae.arrays import Array, namespace, scalar, squared_norm, squared_norms
from lucidae.iteration import Below, Callback, iterate, limited_blas, of_each
from lucidae.sparsity.blocks import entry_noise_of_groups
from lucidae.sparsity.dictionary import adjoint_times, column_squares
from lucidae.sparsity.newton import NEWTON_STEPS
from lucidae.sparsity.objectives import Energy, GroupCovariance
from lucidae.sparsity.posterior import ActiveFactor
from lucidae.sparsity.problem import Problem, Rows, Units
from lucidae.sparsity.solve import (
    FEW_RESPONSES,
    coarse_fit,
    is_small,
    lifted,
    model_of,
    repeat_update,
)
from lucidae.sparsity.state import State, axes_of, positive
from lucidae.validation import check_integer

PATH_STEP = 10.0**-0.5
"""Ratio of each noise variance on the path to the one before."""

PATH_END = 1e-10
"""Smallest noise variance on the path, relative to the mean square response."""

PATIENCE = 3
"""The path ends after this many noise variances without a better prediction of held-out rows."""

LARGE_PATIENCE = 2
"""Noise variances without a better prediction that end the path of a large problem."""

IMPROVED = 0.99
"""A prediction counts as better if its error is below this share of the smallest error so far."""

WORSE = 1.01
"""The path of a large problem without groups ends if the error exceeds the smallest one by this
factor and as many columns as training rows are active.

This happened in 59 of 120 problems with five kinds of dictionaries, and in none of them did the
next noise variances predict better."""

QUICK_STEPS = 2
"""Newton steps of a fit that only has to show that the prediction is worse."""

FEW_STEPS = 10
"""Number of MacKay steps after which the predictions of a small problem no longer improve."""

MISFIT, EXACT = 0.1, 1e-3
"""Share of the mean square response that "auto" adds to the held-out error, for errors of the
dictionary, and the share below which this error shows that there are none: noise-free problems are
fitted exactly. `python -m benchmarks noise_rules` compares this rule with others."""

USED = 0.01
"""Share of the sum of squares of all contributions above which a column counts as in use."""

OVERTAKEN = 0.5
"""Columns are equally strong if the weaker has this share of the other's sum of squares."""

SAME_NOISE = 1e-9
"""Relative difference up to which two noise variances are the same one after rounding."""

EXPLAINED = 0.4
"""Smallest share of the chosen fit's explained power at which another fit is compared with it.

Fits that explain less merge several columns into one even if the dictionary is right."""


def folds(
    cv: Any, random_state: Any, distinct: Rows, given: Rows
) -> tuple[Rows, Iterator[tuple[Any, Any]]]:
    """Return the rows to split for cross-validation, and the (train, test) indices of each fold."""
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
    return given, cv.split(given.dictionary, given.responses)


@dataclass(slots=True)
class RowFold:
    """Training and test rows of one cross-validation fold, with the start of its next fit."""

    model: Any  # of the working-set solver; None for fits by updates
    problem: Problem  # the training rows after normalisation, in the bases of the model
    units: Units
    train: Rows
    test: Rows
    # relevances (or group covariances) of the last fit; None before the first one
    start: Any = None

    @classmethod
    def of(cls, train: Rows, test: Rows, objective: Energy) -> RowFold:
        """Return a fold with its training rows in normalised units."""
        problem, units = train.normalised(objective.groups)
        sweeps = isinstance(objective, GroupCovariance) or not is_small(problem)
        model = None
        if objective.exact_coordinates and sweeps:
            model, problem = model_of(problem, objective)
        return cls(model, problem, units, train, test)

    def fitted(self, noise: float, objective: Energy, quick: bool) -> tuple[float, Any, float]:
        """Return the error on the test rows, the start of the next fit, and columns per row."""
        with limited_blas(self.train.count):
            at = self.problem.with_noise(scalar(self.units.normalised_noise(noise)))
            state, start = _coarse(self.model, at, objective, self.start, quick)
            dictionary, responses = self.train.weighted
            relevance = self.units.relevance(state.relevance)
            factor = ActiveFactor.of(dictionary, relevance, noise, axes_of(state))
            error = self.test.squared_error(*factor.nonzero_mean(responses), self.train)
            return error, start, factor.active.size / self.train.count


def _coarse(
    model: Any, problem: Problem, objective: Energy, start: Any, quick: bool = False
) -> tuple[State, Any]:
    """Return a fit of the low accuracy that predictions need, and where the next one starts."""
    if model is not None:
        point = coarse_fit(model, problem, start, QUICK_STEPS if quick else NEWTON_STEPS)
        return point.state, point.parameters
    if objective.exact_coordinates:
        # No start is better for a small problem: one from a larger γ may end at a higher energy.
        limits: dict[str, Any] = {"tolerance": 1e-2, "limit": FEW_STEPS}
        return repeat_update(problem, objective, "mackay", **limits).value, None
    begin = lifted(problem, start, objective.groups)
    state = repeat_update(problem, objective, start=begin, tolerance=1e-2, limit=100).value
    return state, state.relevance


class PathTrace(NamedTuple):
    """What each column contributes to the fitted values along a path of noise variances."""

    noise: Any
    powers: Any
    explained: Any

    def stability(self, noise: float, powers: Any, explained: float) -> dict[str, Any]:
        """Return how much columns in use change along the path around a chosen noise variance."""
        compared = (self.noise >= 0.25 * noise) & (self.explained >= EXPLAINED * explained)
        rows = [i for i in np.flatnonzero(compared) if self.powers[i].any()]
        near = [
            i
            for i in rows
            if noise / 10.0 <= self.noise[i] <= 10.0 * noise
            and abs(self.noise[i] / noise - 1.0) > SAME_NOISE
        ]
        here = in_use(powers)
        shares = [_overlap(here, in_use(self.powers[i])) for i in near]
        column = int(np.argmax(powers)) if powers.any() else -1
        strongest = np.array([np.argmax(self.powers[i]) for i in rows], dtype=int)
        return {
            "column": column,
            "noise": np.array([self.noise[i] for i in rows], dtype=float),
            "strongest": strongest,
            "changed": (powers[strongest] < OVERTAKEN * powers.max()) | (column < 0),
            "overlap": float(np.mean(shares)) if shares else None,
        }


class Guide(NamedTuple):
    """A path of noise variances, and a solution on it from which a fit starts."""

    start: Array
    trace: PathTrace | None


def entry_noise(problem: Problem, objective: Energy) -> float:
    """Return the normalised noise variance above which all relevances are zero.

    At w = 0 the energy falls with the relevance of φ if ‖φᵀX‖²/n > γ‖φ‖²; for a group these are
    sums.
    """
    if isinstance(objective, GroupCovariance):
        return entry_noise_of_groups(problem, objective.prior)
    xp = namespace(problem.noise)
    powers = squared_norms(adjoint_times(problem.dictionary, problem.responses), -1)
    squares = column_squares(problem.dictionary)
    if objective.groups is not None:
        powers, squares = objective.groups.total(powers), objective.groups.total(squares)
    return scalar(xp.max(powers / positive(squares)))


def coarse_trace(problem: Problem, objective: Energy, noise: float) -> PathTrace:
    """Return what each column contributes at noise variances above a given one."""
    target, highest = scalar(problem.noise), entry_noise(problem, objective)
    if not highest > target:
        return PathTrace(np.zeros(0), np.zeros((0, problem.columns)), np.zeros(0))
    count = max(1, int(np.ceil(np.log(highest / target) / -np.log(PATH_STEP))))
    steps = np.geomspace(highest, target, count + 1)[1:-1]
    model, turned = None, problem
    if objective.exact_coordinates:
        model, turned = model_of(problem, objective)
    start, powers, shares = None, np.zeros((len(steps), problem.columns)), np.zeros(len(steps))
    for place, level in enumerate(steps):
        state, start = _coarse(model, turned.with_noise(float(level)), objective, start)
        powers[place], shares[place] = column_powers(state, objective), explained_share(state)
    return PathTrace(noise * steps / target, powers, shares)


def column_powers(state: State, objective: Energy) -> Any:
    """Return the sum of squares that each column, or group, contributes to the fitted values."""
    powers = state.power * column_squares(state.dictionary)
    return powers if objective.groups is None else objective.groups.share(powers)


def path_stability(
    trace: PathTrace | None, state: State, units: Units, objective: Energy
) -> dict[str, Any] | None:
    """Return measures of how the columns in use change with the noise variance."""
    if trace is None:
        return None
    noise, powers = scalar(units.noise(state.noise)), column_powers(state, objective)
    return trace.stability(noise, powers, explained_share(state))


def explained_share(state: State) -> float:
    """Return the share of the sum of squares of the responses that the fitted values explain."""
    total = scalar(squared_norm(state.responses) + state.outside)
    return 1.0 - scalar(state.residual) / total if total > 0 else 0.0


def in_use(powers: Any) -> Any:
    """Return a Boolean mask of the columns with at least a hundredth of all contributions."""
    return powers > USED * powers.sum()


def _overlap(first: Any, second: Any) -> float:
    """Return the size of the intersection of two sets of columns divided by that of their union."""
    either = int((first | second).sum())
    return float((first & second).sum()) / either if either else 1.0


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Errors of predicting held-out rows, for a decreasing sequence of noise variances."""

    noise: Any  # (m,): the noise variances, in descending order
    errors: Any  # (m, n_folds): mean squared error of the held-out rows of each fold
    shares: Any  # (n_folds,): share of each fold in the weight of all held-out rows
    scale: float  # mean square response

    @property
    def mean(self) -> Any:
        """Mean squared error of all held-out rows, for each noise variance."""
        return self.errors @ self.shares

    @property
    def standard_error(self) -> Any:
        """Standard error of `mean`, from the differences between the folds; NaN for one fold."""
        count = self.shares.size
        if count < 2:
            return np.full(len(self.noise), np.nan)
        spread = ((self.errors - self.mean[:, None]) ** 2) @ self.shares
        return np.sqrt(spread / (count - 1))

    @property
    def best(self) -> int:
        """Index of the noise variance with the smallest mean error."""
        return int(np.argmin(self.mean))

    def minimum(self) -> float:
        """Return the smallest mean squared error, up to sampling errors an upper bound of γ."""
        return max(float(self.mean[self.best]), PATH_END * self.scale)

    def with_misfit(self) -> float:
        """Return the smallest error plus a tenth of the mean square response.

        Errors of a dictionary are predicted like the responses, by further columns, so that
        held-out rows do not show them. With a larger noise variance they stay unexplained.
        """
        least = self.minimum()
        return least if least <= EXACT * self.scale else least + MISFIT * self.scale

    def one_standard_error(self) -> float:
        """Return the largest γ whose error is within a standard error of the smallest.

        Errors are interpolated in log γ. The result is never below `minimum`.
        """
        errors, best = self.mean, self.best
        level = errors[best] + np.nan_to_num(self.standard_error[best])
        last = best
        while last > 0 and errors[last - 1] <= level:
            last -= 1
        if not self.noise[last] > 0.0:  # the responses are zero
            return self.minimum()
        logarithm = np.log(self.noise[last])
        if last > 0:
            share = (level - errors[last]) / (errors[last - 1] - errors[last])
            logarithm += share * np.log(self.noise[last - 1] / self.noise[last])
        return max(float(np.exp(logarithm)), self.minimum())


RULES = {"auto": HeldOut.with_misfit, "cv": HeldOut.minimum, "cv_1se": HeldOut.one_standard_error}
"""How the noise variance follows from the errors of held-out rows, by the name of the rule."""


class Walk(NamedTuple):
    """Progress along the path of noise variances."""

    tried: int
    best: float
    waited: int


def held_out_errors(
    rows: Rows,
    splits: Iterable[tuple[Any, Any]],
    objective: Energy,
    callbacks: Sequence[Callback] = (),
    n_jobs: int | None = None,
    noise: Any = None,
    patience: int | None = None,
) -> HeldOut:
    """Return the errors of predicting held-out rows along a path of noise variances."""
    scale = rows.mean_square()
    pairs = [
        (rows.take(train), rows.take(test)) for train, test in _checked_splits(splits, rows.count)
    ]
    weights = np.array([test.total_weight for _, test in pairs])
    if not weights.sum() > 0.0 or not all(train.total_weight > 0.0 for train, _ in pairs):
        raise ValueError(
            "In a fold of cv, the training rows or the test rows all have weight zero. Give other "
            "folds as cv, or another sample_weight."
        )
    if scale == 0.0:
        nothing = np.zeros((1, len(pairs)))
        return HeldOut(np.zeros(1), nothing, weights / weights.sum(), 0.0)
    parts = [RowFold.of(train, test, objective) for train, test in pairs]
    path = default_path(scale) if noise is None else np.asarray(noise)
    counts = np.where(weights > 0, weights, 1.0) * rows.responses.shape[1]
    errors: list[Any] = []

    def step(walk: Walk) -> Walk:
        quick = screened and walk.waited > 0
        jobs = [(fold, float(path[walk.tried]), objective, quick) for fold in parts]
        found, starts, dense = zip(*of_each(RowFold.fitted, jobs, n_jobs=n_jobs), strict=True)
        for fold, start in zip(parts, starts, strict=True):
            fold.start = start
        errors.append(np.array(found) / counts)
        error = float(errors[-1] @ weights / weights.sum())
        waited = 0 if error < IMPROVED * walk.best else walk.waited + 1
        if screened and patience is None and np.mean(dense) >= 1.0 and error > WORSE * walk.best:
            waited = allowed
        return Walk(walk.tried + 1, min(walk.best, error), waited)

    large = parts[0].model is not None
    screened = large and objective.groups is None
    allowed = patience or (LARGE_PATIENCE if large else PATIENCE)
    iterate(
        step,
        Walk(0, np.inf, 0),
        stop=Below(lambda walk: allowed - walk.waited, 0.0),
        limit=len(path),
        callbacks=callbacks,
    )
    return HeldOut(path[: len(errors)], np.array(errors), weights / weights.sum(), scale)


def default_path(scale: float) -> Any:
    """Return the noise variances to try, decreasing from `scale`, the mean square response."""
    path = [scale]
    while path[-1] * PATH_STEP > PATH_END * scale:
        path.append(path[-1] * PATH_STEP)
    return np.array(path)


def _checked_splits(splits: Iterable[tuple[Any, Any]], n_rows: int) -> list[tuple[Any, Any]]:
    """Return the folds as pairs of non-empty integer arrays; raise if one is invalid."""
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
