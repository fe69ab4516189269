"""The noise variance γ: which rule finds it, from held-out rows or by learning.

**Held-out rows** are predicted along a decreasing path of γ. Each fit of a fold starts from the one
before, evaluates all columns once, and minimises the energy on a working set to the low accuracy
that predictions need. Small problems take a few MacKay steps from equal relevances instead, which
do not start in a bad minimum. Fits of this accuracy also show how stable the columns are.

**Learned.** γ is learned with the relevances by minimising the energy over both. That is safe if
there are enough rows to determine the coefficients; otherwise the energy falls without limit as
γ → 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import KFold

from lucidae.arrays import Array, namespace, squared_moduli, squared_norm, squared_norms
from lucidae.iteration import Below, Solution, Status, iterate, limited_blas, of_each
from lucidae.iteration.progress import progress_bars
from lucidae.sparsity.objectives import (
    SMALLEST_LEARNED,
    Energy,
    GroupCovariance,
    State,
    evaluate,
    learned_noise,
    positive,
)
from lucidae.sparsity.posterior import rough_mean
from lucidae.sparsity.problem import Mean, Problem, Rows, Units, adjoint_times, column_squares
from lucidae.sparsity.solve import FEW_RESPONSES, advice_on, is_small, minimised, solve
from lucidae.sparsity.working_set import (
    COARSE,
    NEWTON_STEPS,
    SolverSettings,
    first_point,
    iterated,
    orthonormal,
)
from lucidae.validation import (
    check_choice,
    check_integer,
    check_number,
    check_vector,
    pair_of_rows,
    warn_user,
)

WAYS = ("auto", "learn", "cv", "cv_1se")
"""Names of the ways to find the noise variance."""

FALLBACK = 0.1
"""Noise variance for data with a single row, relative to the mean square response."""


def checked_noise(given: Any) -> str | float:
    """Return `noise_variance` if it is a positive number or one of the names `WAYS`."""
    if isinstance(given, Real):
        words = f" or one of {', '.join(map(repr, WAYS))}"
        return check_number(given, "noise_variance", low=0.0, open_low=True, others=words)
    return check_choice(given, "noise_variance", WAYS, others=" or a finite number above 0")


def checked_levels(given: Any, count: int) -> Any:
    """Return one positive noise variance for each of `count` problems; None if they are learned."""
    expected = f"a finite number above 0 or an array of {count} of them"
    if isinstance(given, str):
        check_choice(given, "noise_variance", ("learn",), others=f", {expected}")
        return None
    values = check_vector(given, "noise_variance", expected=f"{expected}, or 'learn'")
    if values.shape not in ((), (1,), (count,)) or not (values > 0).all():
        raise ValueError(f"noise_variance={given!r} was given, expected {expected}, or 'learn'.")
    return np.broadcast_to(values, (count,))


def noise_rule(given: Any, objective: Energy, n_rows: int, n_columns: int) -> str | float:
    """Return how the noise variance is found: a rule by name, "fallback" or the number given.

    "auto" is "learn" for energies with a posterior and κ ≤ d/2, "fallback" for a single row, and a
    rule of held-out rows otherwise.
    """
    rule = checked_noise(given)
    if not isinstance(rule, str):
        return rule
    if rule == "learn":
        check_learnable(objective)
    if rule in ("cv", "cv_1se") and n_rows < 2:
        raise ValueError(
            f"noise_variance={rule!r} needs at least 2 distinct rows to predict held-out rows, but "
            f"there is only {n_rows}. Give more rows, or give the noise variance as a number."
        )
    if rule != "auto":
        return rule
    if objective.has_posterior and n_columns <= n_rows / 2:
        return "learn"
    return "auto" if n_rows >= 2 else "fallback"


def check_learnable(objective: Energy) -> None:
    """Raise an error if the energy has no posterior variance; the noise cannot be learned then."""
    if not objective.has_posterior:
        raise ValueError(
            f"noise_variance='learn' needs a posterior, but {type(objective).__name__} is a point "
            "estimate without one: its energy (loss) has no lower bound as the noise variance "
            "tends to zero. Give the noise variance as a number, use posterior='full', or use "
            "noise_variance='cv' (SparseVAE only)."
        )


PATH_STEP = 10.0**-0.5
"""Ratio of each noise variance on the path to the one before."""

PATH = PATH_STEP ** np.arange(21)
"""The path, ten decades of noise variances, relative to the mean square response."""

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

USED = 0.01
"""Share of the sum of squares of all contributions above which a column counts as in use."""

OVERTAKEN = 0.5
"""Columns are equally strong if the weaker has this share of the other's sum of squares."""

SAME_NOISE = 1e-9
"""Relative difference up to which two noise variances are the same one after rounding."""

EXPLAINED = 0.4
"""Smallest share of the chosen fit's explained power at which another fit is compared with it.

Fits that explain less merge several columns into one even if the dictionary is right."""


def row_pairs(cv: Any, random_state: Any, distinct: Rows, given: Rows) -> list[tuple[Rows, Rows]]:
    """Return the training and test rows of each fold; splitters and lists divide all given rows."""
    others = ", a splitter of scikit-learn, a list of folds or None"
    if cv is None or isinstance(cv, int | np.integer):
        few = given.responses.shape[1] <= FEW_RESPONSES
        usual = 10 if few else 5  # one response is no longer identified by four fifths of its rows
        wanted = usual if cv is None else check_integer(cv, "cv", low=2, others=others)
        seed = 0 if random_state is None else random_state
        splitter = KFold(min(wanted, len(distinct.weights)), shuffle=True, random_state=seed)
        splits = splitter.split(np.empty((len(distinct.weights), 1)))
        return [(distinct.take(train), distinct.take(test)) for train, test in splits]
    if isinstance(cv, str | bytes) or not (hasattr(cv, "split") or np.iterable(cv)):
        check_integer(cv, "cv", low=2, others=others)
    splits = cv.split(given.dictionary, given.responses) if hasattr(cv, "split") else cv
    count = len(given.weights)
    folds = [pair_of_rows(split, count, number) for number, split in enumerate(splits)]
    pairs = [(given.take(train), given.take(test)) for train, test in folds]
    if not pairs:
        raise ValueError(
            "cv contains no folds, expected at least one pair of training and test rows."
        )
    if not all(train.weights.any() for train, _ in pairs) or not any(
        test.weights.any() for _, test in pairs
    ):
        raise ValueError(
            "In a fold of cv, the training rows or the test rows all have weight zero. Give other "
            "folds as cv, or another sample_weight."
        )
    return pairs


@dataclass(slots=True)
class RowFold:
    """Training and test rows of one cross-validation fold, with the start of its next fit."""

    point: Any  # of the working-set solver; None for fits by updates
    problem: Problem  # the training rows after normalisation
    units: Units
    train: Rows
    test: Rows
    # relevances (or group covariances) of the last fit; None before the first one
    start: Any = None

    def fitted(self, noise: float, objective: Energy, quick: bool) -> tuple[float, Any, float]:
        """Return the error on the test rows, the start of the next fit, and columns per row."""
        train, test = self.train, self.test
        with limited_blas(len(train.weights)):
            at = self.problem.with_noise(noise, self.units)
            point = _coarse(self.point, at, objective, self.start, quick)
            relevance, axes = point.parameters, None
            if isinstance(objective, GroupCovariance):
                (state,) = point.states
                relevance, axes = state.relevance, getattr(state, "axes", None)
            relevance = self.units.relevance * relevance
            index, mean = rough_mean(*train.weighted, relevance, noise, axes)
            # Both means are those of the training rows.
            center, level = train.offsets
            columns = test.dictionary[:, index]
            columns = columns.toarray() if scipy.sparse.issparse(columns) else columns
            part = Mean(center.rounded[index], center.rest[index])
            predicted = part.removed_from(columns, test.ones) @ mean
            left = level.removed_from(test.responses, test.ones) - predicted
            error = float(test.weights @ squared_moduli(left).sum(axis=1))
            dense = np.count_nonzero(relevance) / len(train.weights)
            return error, point.parameters, dense


def _coarse(
    first: Any, problem: Problem, objective: Energy, start: Any, quick: bool = False
) -> Any:
    """Return the point at which a fit of the low accuracy that predictions need ends."""
    if first is not None:
        # After one sweep from nothing, the errors of held-out rows of groups with covariances were
        # up to 2.5 times those of an accurate fit, so that there are three. From the fit before,
        # one sweep ended at the same smallest error, up to 0.1 %.
        problems = [first.problems[0]._replace(noise=problem.noise)]
        point = replace(first, problems=problems)
        if start is not None:
            point = replace(point, parameters=start)
        several = isinstance(objective, GroupCovariance) and not point.parameters.any()
        for _ in range(3 if several else 1):
            if point.violation <= COARSE:
                break
            # Not by `sweep`, whose test of the energy would evaluate all columns once more.
            point = point.swept(COARSE, False, QUICK_STEPS if quick else NEWTON_STEPS)
        return point
    # No start is better for a small problem: one from a larger γ may end at a higher energy.
    exact = objective.exact_coordinates
    begin = first_point(problem, objective, None if exact else start, lift=True)
    rule, limit = ("mackay", FEW_STEPS) if exact else ("mm", 100)
    settings = SolverSettings(tolerance=COARSE, limit=limit)
    return iterated(lambda at: at.updated(rule), begin, settings, len(problem.responses)).value


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Errors of predicting held-out rows, for a decreasing sequence of noise variances."""

    noise: Any  # (m,): the noise variances, in descending order
    mean: Any  # (m,): mean squared error of all held-out rows
    # (m,): standard error of `mean`, from the differences between the folds; NaN for one fold
    standard_error: Any
    scale: float  # mean square response

    def found(self, rule: str, n_rows: int, n_columns: int) -> tuple[float, float]:
        """Return the noise variance of a rule, and the smallest mean squared error.

        "cv" takes this error, up to sampling errors an upper bound of γ. "auto" takes 1 + 3(1 −
        d/2κ) times it, at most the mean square response: errors of a dictionary are predicted on
        held-out rows by further columns, the better the more there are, and stay unexplained with a
        larger noise variance. At κ = d/2, below which "auto" learns γ, the factor is 1. `python -m
        benchmarks noise_rules` compares rules. "cv_1se" takes the largest γ whose error is within a
        standard error of the smallest, with errors interpolated in log γ.
        """
        errors, last = self.mean, int(np.argmin(self.mean))
        least = found = max(float(errors[last]), float(PATH[-1]) * self.scale)
        if rule == "auto":
            excess = max(1.0 - n_rows / (2.0 * n_columns), 0.0)
            found = min((1.0 + 3.0 * excess) * least, max(self.scale, least))
        elif rule == "cv_1se" and self.scale > 0.0:
            level = errors[last] + np.nan_to_num(self.standard_error[last])
            while last > 0 and errors[last - 1] <= level:
                last -= 1
            logarithm = np.log(self.noise[last])
            if last > 0:
                share = (level - errors[last]) / (errors[last - 1] - errors[last])
                logarithm += share * np.log(self.noise[last - 1] / self.noise[last])
            found = max(float(np.exp(logarithm)), least)
        return found, least


class Walk(NamedTuple):
    """Progress along the path of noise variances."""

    tried: int
    best: float
    waited: int


def held_out_errors(
    model: Any, posed: Any, task: str, noise: Any = None, patience: int | None = None
) -> HeldOut:
    """Return the errors of predicting held-out rows along a path of noise variances.

    The folds are those of the `SparseVAE` `model` for the `PreparedProblem` `posed`.
    """
    objective, scale = posed.objective, posed.rows.mean_square()
    pairs = row_pairs(model.cv, model.random_state, posed.rows, posed.split)
    weights = np.array([test.weights.sum() for _, test in pairs])
    shares = weights / weights.sum()
    if scale == 0.0:
        unknown = np.zeros(1) if len(pairs) > 1 else np.full(1, np.nan)
        return HeldOut(np.zeros(1), np.zeros(1), unknown, 0.0)
    parts = []
    for train, test in pairs:
        problem, units = train.normalised(objective.groups)
        sweeps = isinstance(objective, GroupCovariance) or not is_small(problem)
        exact = objective.exact_coordinates and sweeps
        point = first_point(problem, objective) if exact else None
        parts.append(RowFold(point, problem, units, train, test))
    path = scale * PATH if noise is None else np.asarray(noise)
    counts = np.where(weights > 0, weights, 1.0) * pairs[0][0].responses.shape[1]
    large = parts[0].point is not None
    screened = large and objective.groups is None
    allowed = patience or (LARGE_PATIENCE if large else PATIENCE)
    errors: list[Any] = []

    def step(walk: Walk) -> Walk:
        quick = screened and walk.waited > 0
        jobs = [(fold, float(path[walk.tried]), objective, quick) for fold in parts]
        fits = of_each(RowFold.fitted, jobs, n_jobs=model.n_jobs)
        found, starts, dense = zip(*fits, strict=True)
        for fold, start in zip(parts, starts, strict=True):
            fold.start = start
        errors.append(np.array(found) / counts)
        error = float(errors[-1] @ shares)
        waited = 0 if error < IMPROVED * walk.best else walk.waited + 1
        if screened and patience is None and np.mean(dense) >= 1.0 and error > WORSE * walk.best:
            waited = allowed
        return Walk(walk.tried + 1, min(walk.best, error), waited)

    iterate(
        step,
        Walk(0, np.inf, 0),
        stop=Below(lambda walk: allowed - walk.waited, 0.0),
        limit=len(path),
        callbacks=progress_bars(f"SparseVAE, {task}", model.verbose),
    )
    mean = np.array(errors) @ shares
    spread = ((np.array(errors) - mean[:, None]) ** 2) @ shares
    others = len(pairs) - 1 if len(pairs) > 1 else np.nan
    return HeldOut(path[: len(errors)], mean, np.sqrt(spread / others), scale)


class PathTrace(NamedTuple):
    """What each column contributes to the fitted values along a path of noise variances."""

    noise: Any
    powers: Any
    explained: Any

    def stability(self, noise: float, powers: Any, explained: float) -> dict[str, Any]:
        """Return how much columns in use change along the path around a chosen noise variance."""
        compared = (self.noise >= 0.25 * noise) & (self.explained >= EXPLAINED * explained)
        rows = np.flatnonzero(compared & self.powers.any(axis=1))
        ratio, strongest = self.noise[rows] / noise, self.powers[rows].argmax(axis=1)
        near = rows[(ratio >= 0.1) & (ratio <= 10.0) & (abs(ratio - 1.0) > SAME_NOISE)]
        # Overlap: the size of the intersection of two sets of columns over that of their union.
        here, *others = (each > USED * each.sum() for each in (powers, *self.powers[near]))
        shares = []
        for there in others:
            union = np.sum(here | there)
            shares.append(np.sum(here & there) / union if union else 1.0)
        column = int(np.argmax(powers)) if powers.any() else -1
        return {
            "column": column,
            "noise": self.noise[rows],
            "strongest": strongest,
            "changed": (powers[strongest] < OVERTAKEN * powers.max()) | (column < 0),
            "overlap": float(np.mean(shares)) if shares else None,
        }


def entry_noise(problem: Problem, objective: Energy) -> float:
    """Return the normalised noise variance above which all relevances are zero.

    At w = 0 the energy falls with the relevance of φ if ‖φᵀX‖²/n > γ‖φ‖²; for a group these are
    sums, or for one with a covariance the largest eigenvalue of Φ_gᵀCΦ_g for orthonormal columns.
    """
    if isinstance(objective, GroupCovariance) and objective.groups is not None:
        turned, _ = orthonormal(problem, objective.groups)
        loading = adjoint_times(turned.dictionary, turned.responses)
        sizes = objective.groups.by_size
        norms = [np.linalg.norm(loading[index], 2, axis=(1, 2)) for _, index in sizes]
        return float(np.concatenate(norms).max()) ** 2
    xp = namespace(problem.noise)
    powers = squared_norms(adjoint_times(problem.dictionary, problem.responses), -1)
    squares = column_squares(problem.dictionary)
    if objective.groups is not None:
        powers, squares = objective.groups.total(powers), objective.groups.total(squares)
    return float(xp.max(powers / positive(squares)))


def coarse_trace(problem: Problem, objective: Energy, noise: float) -> PathTrace:
    """Return what each column contributes at noise variances above a given one."""
    target, highest = float(problem.noise), entry_noise(problem, objective)
    columns = problem.dictionary.shape[-1]
    if not highest > target:
        return PathTrace(np.zeros(0), np.zeros((0, columns)), np.zeros(0))
    count = max(1, int(np.ceil(np.log(highest / target) / -np.log(PATH_STEP))))
    steps = np.geomspace(highest, target, count + 1)[1:-1]
    first = first_point(problem, objective) if objective.exact_coordinates else None
    start, powers, shares = None, np.zeros((len(steps), columns)), np.zeros(len(steps))
    for place, level in enumerate(steps):
        point = _coarse(first, problem.with_noise(float(level)), objective, start)
        start, (at,) = point.parameters, point.problems
        full = isinstance(objective, GroupCovariance)
        state = point.states[0] if full else evaluate(at, start, curvature=False)
        powers[place], shares[place] = contributions(state, objective)
    return PathTrace(noise * steps / target, powers, shares)


def contributions(state: State, objective: Energy) -> tuple[Any, float]:
    """Return the sum of squares that each column, or group, contributes to the fitted values.

    The second value is the share of the sum of squares of the responses that these explain.
    """
    powers = state.relevance**2 * state.alignment * column_squares(state.dictionary)
    total = float(squared_norm(state.responses) + state.outside)
    explained = 1.0 - float(state.residual) / total if total > 0 else 0.0
    return powers if objective.groups is None else objective.groups.share(powers), explained


# Noise variances that are learned.

WARM_STEPS = 50
"""Largest number of descent sweeps in the relevances between two updates of the noise variance."""


class Learning(NamedTuple):
    """The solution at some noise variances, these after one EM step, distance and energy."""

    solution: Solution[Any]
    following: list[float]
    violation: float  # the larger one of that in relevances and the relative steps of γ
    energy: Any


def learn_levels(
    solved: Callable[[list[float], Any], Solution[Any]], states: Callable[[Any], list[State]],
    objective: Energy, first: list[float], energy: Callable[[Any], Any], settings: SolverSettings,
    size: int,
) -> Solution[Any]:  # fmt: skip
    """Minimise an energy over relevances, in alternation with EM steps of noise variances.

    `solved` minimises it at given noise variances, from a solution or from nothing (None).
    """

    def after(solution: Solution[Any]) -> Learning:
        at = states(solution.value)
        levels = [float(learned_noise(s, objective.degrees_of_freedom(s))) for s in at]
        changes = [abs(new / float(s.noise) - 1.0) for new, s in zip(levels, at, strict=True)]
        distance = max(solution.distance, *changes)
        return Learning(solution, levels, distance, energy(solution.value))

    learned = iterated(
        lambda last: after(solved(last.following, last.solution.value)),
        after(solved(first, None)), settings, size,
    )  # fmt: skip
    return replace(learned, value=learned.value.solution.value)


def first_noise(problem: Problem) -> Array:
    """Return the normalised γ at which learning starts: that of least squares, or 0.1."""
    xp = namespace(problem.noise)
    spare = xp.maximum(problem.spare, xp.ones_like(problem.spare))
    estimate = xp.where(problem.spare >= 1, problem.outside / spare, FALLBACK)
    return xp.maximum(estimate, xp.full_like(estimate, SMALLEST_LEARNED))


def learn_noise(
    problem: Problem, objective: Energy, settings: SolverSettings, start: Any = None
) -> Solution[State]:
    """Minimise the energy over the relevances, in alternation with EM steps of γ."""
    method = "coordinate" if objective.exact_coordinates else "mm"
    again = replace(settings, limit=WARM_STEPS, callbacks=())

    def solved(levels: list[float], last: State | None) -> Solution[State]:
        at = problem.with_noise(levels[0])
        if last is None:
            return solve(at, objective, settings, start)
        found = minimised(at, objective, again, objective.parameters(last), method)
        return replace(found, value=found.value.states[0])

    first = [float(first_noise(problem))]
    return learn_levels(
        solved, lambda state: [state], objective, first, objective.value, settings,
        len(problem.responses),
    )  # fmt: skip


def warn_if_collapsed(solution: Solution[Any]) -> None:
    """Warn if learning ended at the smallest noise variance that is allowed."""
    if float(solution.value.noise) <= 1.01 * SMALLEST_LEARNED:
        warn_user(
            "The learned noise variance fell to the smallest value that is allowed, because the "
            "likelihood of these data grows as the noise variance tends to zero (too few rows for "
            "so many columns, or no noise at all). Use noise_variance='cv' or give a number.",
            ConvergenceWarning,
        )


FALLEN = 1e-3
"""Noise variance, relative to the mean square response, below which one that still falls may have
no minimum above zero."""


def advice_on_learning(solution: Solution[Any]) -> str:
    """Return how the learning of a noise variance ended, and what the user can do.

    With as many columns as rows the likelihood may grow without bound as γ → 0.
    """
    state, limited = solution.value, solution.status is Status.ITERATION_LIMIT
    noise = float(state.noise)
    if not limited or noise >= FALLEN or float(state.problem.spare) >= 1.0:
        return advice_on(solution)
    return (
        f"The learned noise variance has fallen to {noise:.1g} times the mean square response in "
        f"{solution.n_iter} iterations and is still falling. With as many columns as rows the "
        "likelihood may grow without bound as it tends to zero, and raising max_iter does not help "
        "then: use noise_variance='cv' or give a number."
    )
