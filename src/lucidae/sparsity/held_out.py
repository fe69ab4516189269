"""Errors of predicting held-out rows along a path of noise variances γ, by which γ is chosen.

Each fit of a fold starts from the one before, evaluates all columns once, and minimises the energy
on a working set to the low accuracy that predictions need. Small problems take a few MacKay steps
from equal relevances instead, which do not start in a bad minimum.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from sklearn.model_selection import KFold

from lucidae.arrays import Array, like, namespace, scalar, squared_norm, squared_norms, to_numpy
from lucidae.iteration import Below, Callback, iterate, limited_blas, of_each
from lucidae.sparsity.blocks import entry_noise_of_groups
from lucidae.sparsity.dictionary import adjoint_times, column_squares
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
from lucidae.sparsity.state import State, axes_of, evaluate, positive
from lucidae.validation import check_integer

Shared: TypeAlias = tuple[Any, Problem]
"""What the fits of a path at several noise variances share, the result of `model_of`."""

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
    """Training and test rows of one cross-validation fold, with the relevances of its last fit."""

    # the training rows after normalisation, and the factors by which they were divided
    problem: Problem
    units: Units
    train: Rows  # the training rows and the held-out rows
    test: Rows
    # the fitted relevances (or group covariances) for the previous noise variance, from which the
    # next fit starts; None before the first fit
    start: Array | None = None
    # the model of all fits, and the problem in its bases; None for fits by updates
    shared: Shared | None = None

    @classmethod
    def of(cls, train: Rows, test: Rows, objective: Energy) -> RowFold:
        """Return a fold with its training rows in normalised units."""
        problem, units = train.normalised(objective.groups)
        return cls(problem, units, train, test, shared=_shared(problem, objective))

    def fitted(self, noise: float, objective: Energy, quick: bool = False) -> FoldFit:
        """Return the fit at the noise variance `noise`, and its error on the test rows."""
        with limited_blas(self.train.count):
            normalised = scalar(self.units.normalised_noise(noise))
            at = self.problem.with_noise(normalised)
            found = _coarse(at, objective, self.start, self.shared, quick)
            dictionary, responses = self.train.weighted
            relevance = self.units.relevance(found.relevance)
            factor = ActiveFactor.of(dictionary, relevance, noise, found.axes)
            error = self.test.squared_error(*factor.nonzero_mean(responses), self.train)
            return FoldFit(error, found.start, factor.active.size / self.train.count)


class FoldFit(NamedTuple):
    """The fit of one fold at one noise variance."""

    error: float
    start: Array
    density: float


class CoarseFit(NamedTuple):
    """A fit of low accuracy: relevances (along `axes` of groups), and where the next fit starts."""

    relevance: Array
    axes: Any
    start: Array

    @classmethod
    def of(cls, state: State, objective: Energy) -> CoarseFit:
        """Return the fit with the relevances of a solver's state."""
        return cls(state.relevance, axes_of(state), objective.parameters(state))


def _shared(problem: Problem, objective: Energy) -> Shared | None:
    """Return what the fits of a path at several noise variances share; see `RowFold`."""
    full = objective.marginal is not None and objective.exact_coordinates
    if isinstance(objective, GroupCovariance) or (full and not is_small(problem)):
        return model_of(problem, objective)
    return None


def _coarse(
    problem: Problem,
    objective: Energy,
    start: Array | None,
    shared: Shared | None,
    quick: bool,
) -> CoarseFit:
    """Return relevances that minimise the energy to the low accuracy that predictions need."""
    if shared is not None:
        model, at = shared[0], shared[1].with_noise(scalar(problem.noise))
        steps = {"newton_steps": QUICK_STEPS} if quick else {}
        point = coarse_fit(model, at, start, **steps)
        axes, variances = point.in_given_columns()
        return CoarseFit(like(variances, problem.noise), axes, point.parameters)
    rough: dict[str, Any] = {"tolerance": 1e-2, "limit": 100}
    if objective.marginal is None or not objective.exact_coordinates:
        begin = lifted(problem, start, objective.groups)
        updated = repeat_update(problem, objective, start=begin, **rough)
        return CoarseFit.of(updated.value, objective)
    # No start is better for a small problem: one from a larger γ may end at a higher energy.
    rough |= {"limit": FEW_STEPS}
    return CoarseFit.of(repeat_update(problem, objective, "mackay", **rough).value, objective)


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
    found = list(_contributions(problem, objective, steps))
    powers = np.reshape([power for power, _ in found], (len(steps), problem.columns))
    shares = np.array([share for _, share in found], dtype=float)
    return PathTrace(noise * steps / target, powers, shares)


def _contributions(problem: Problem, objective: Energy, levels: Any) -> Iterator[tuple[Any, float]]:
    """Yield the contributions of all columns, and the share that is explained, of coarse fits."""
    start: Any = None
    if (objective.marginal is None and not isinstance(objective, GroupCovariance)) or (
        not objective.exact_coordinates
    ):
        for level in levels:
            at = problem.with_noise(float(level))
            start = _coarse(at, objective, start, None, False).relevance
            whole = evaluate(at, start)
            yield column_powers(whole, objective), explained_share(whole)
        return
    model, turned = model_of(problem, objective)
    for level in levels:
        point = coarse_fit(model, turned.with_noise(float(level)), start)
        start = point.parameters
        axes, relevance = point.in_given_columns()
        active, power, share = np.flatnonzero(to_numpy(relevance)), np.zeros(problem.columns), 0.0
        if active.size:
            given = problem.with_noise(float(level))
            if axes is not None:
                columns = axes.columns_at(given.dictionary, active)
                part = given._replace(dictionary=columns).restricted(np.arange(active.size))
            else:
                part = given.restricted(active)
            state = evaluate(part, like(to_numpy(relevance)[active], problem.noise))
            power[active] = to_numpy(state.power * column_squares(state.dictionary))
            share = explained_share(state)
        yield power if objective.groups is None else objective.groups.share(power), share


def column_powers(state: State, objective: Energy) -> Any:
    """Return the sum of squares that each column, or group, contributes to the fitted values."""
    powers = state.power * column_squares(state.dictionary)
    return to_numpy(powers if objective.groups is None else objective.groups.share(powers))


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
        fits = of_each(RowFold.fitted, jobs, n_jobs=n_jobs)
        for fold, fit in zip(parts, fits, strict=True):
            fold.start = fit.start
        errors.append(np.array([fit.error for fit in fits]) / counts)
        error = float(errors[-1] @ weights / weights.sum())
        waited = 0 if error < IMPROVED * walk.best else walk.waited + 1
        dense = float(np.mean([fit.density for fit in fits])) >= 1.0
        if screened and patience is None and dense and error > WORSE * walk.best:
            waited = allowed
        return Walk(walk.tried + 1, min(walk.best, error), waited)

    coarse = parts[0].shared is not None or not is_small(parts[0].problem)
    large = objective.exact_coordinates and coarse
    screened = parts[0].shared is not None and objective.groups is None
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
