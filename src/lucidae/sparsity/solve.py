"""The solvers of `SparseVAE` by name, and which of them suit a problem.

"coordinate" is the solver of `working_set`. The others begin with an update that is repeated
(`UPDATES`), which chooses a basin of attraction. `group_lasso` is a convex alternative.

If the full energy has several minima, solvers may end at different ones. The table shows the energy
per response above the lowest of all solvers (median, largest) for ten problems a line with d = 100
rows, κ = 200 columns, n responses of rank 3, r relevant columns and noise of 20 dB:

=====  ==========  =======  =======  =========  =======  ==========
n      r           auto     mm       em         mackay   coordinate
=====  ==========  =======  =======  =========  =======  ==========
20     40, 60      0, 0     0, 0     0, 0       0, 0     0, 0
20     70          0, 0     0, 0     0, 10.8    0, 0     0, 19.9
20     80          0, 0.9   0, 0.9   0, 3.5     0, 0.9   0.9, 3.8
1      10          0, 0     0, 0.4   0, 0       0, 0.4   0, 2.5
1      30          0, 1.2   0, 1.2   0, 1.2     0, 1.2   0, 54.5
=====  ==========  =======  =======  =========  =======  ==========

EM (expectation–maximisation), which is slower, finds the lower minima if the noise variance is far
below the true one, and without noise if r > 0.8 d. So "auto" uses EM for one or two responses. For
more responses it uses MacKay's rule, or coordinate moves if there is no noise or the dictionary is
wide or large. If the result has more than 0.6 d effective parameters and the problem is small,
"auto" also runs EM (and another update) and returns the result with the lowest energy.
"""

from __future__ import annotations

import math
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np
from sklearn.linear_model import Lasso, MultiTaskLasso

from lucidae.arrays import Array, adjoint
from lucidae.iteration import Solution, Status
from lucidae.iteration.solution import joined
from lucidae.sparsity.objectives import Autoencoder, Energy, GroupCovariance, PowerPenalty, State
from lucidae.sparsity.posterior import Posterior
from lucidae.sparsity.problem import Problem, normalise, rounding_distances
from lucidae.sparsity.working_set import (
    SolverSettings,
    continuation,
    descend,
    first_point,
    iterated,
)
from lucidae.validation import check_choice, check_integer, check_number, check_rows

BASIN = 1e-2
"""Distance to stationarity at which a basin is chosen and Newton steps take over."""

BASIN_LIMIT = {"mm": 30, "mackay": 15, "em": 300}
"""Largest number of updates before Newton steps; more did not end at a lower energy."""

FEW_RESPONSES = 2
"""Largest number of responses for which "auto" uses EM, which then finds lower minima."""

EM_PER_COLUMN, EM_STEPS = 15, (30, 100)
"""For few responses, "auto" makes this many EM steps times the ratio of columns to rows, but at
least and at most these."""

SMALL = 200_000
"""Largest number of entries of a dictionary for which "auto" updates all columns in every step."""

CROWDED = 0.6
"""Effective parameters per row above which "auto" compares solvers: minima are many."""

FEW_FOR_GROUPS = 5
CROWDED_GROUPS = 0.3
"""Limits within which "auto" starts only once if every group of columns has its own covariance.

Among 66 problems with more responses than `FEW_FOR_GROUPS` and fewer parameters per row than
`CROWDED_GROUPS`, the second start never ended at a lower energy."""

WIDE = 8
"""Columns per row above which coordinate moves are cheaper: most relevances never move."""

EQUAL = 1e-9
"""Relative difference of energies up to which they count as equal."""

NOISE_FREE = 1e-6
"""Noise variance, relative to the mean square response, below which data count as noise-free."""


def repeat_update(
    first: Any, rule: str, settings: SolverSettings, updates: int | None = None
) -> Solution[Any]:
    """Repeat one update of the parameters, from the point `first`, until they are stationary.

    If `updates` is given, that many at most choose a basin, and sweeps find its minimum.
    """
    rounding = max(float(rounding_distances(problem.noise)) for problem in first.problems)
    tolerance, limit = max(settings.tolerance, rounding), settings.limit
    if updates is not None:
        tolerance, limit = max(BASIN, tolerance), min(limit, updates)
    rough = replace(settings, tolerance=tolerance, limit=limit)
    rows = len(first.problems[0].responses)
    basin = iterated(lambda point: point.updated(rule), first, rough, rows)
    diverged = basin.status is Status.DIVERGED
    if updates is None or diverged or basin.distance <= settings.tolerance:
        return basin
    left = settings.limit - basin.n_iter
    if left <= 0:  # the basin was reached, its minimum was not
        return replace(basin, status=Status.ITERATION_LIMIT, tolerance=settings.tolerance)
    return joined(basin, descend(basin.value.without_vanishing(), replace(settings, limit=left)))


def advice_on(solution: Solution[State]) -> str:
    """Return how a minimisation ended and what the user can do.

    A noise variance far below that of the data makes Σ nearly singular.
    """
    if solution.status is not Status.STALLED:
        return solution.advice
    noise = float(solution.value.problem.noise)
    return (
        f"{solution.advice} The noise variance is {noise:.1g} times the mean square response, "
        "and rounding errors grow as it falls: give a larger one if it is below that of the data."
    )


def check_suited(method: Any, objective: Energy) -> str:
    """Return the name `method` if that solver can minimise the energy; otherwise raise an error."""
    name = check_choice(method, "solver", ("auto", *NEEDED))
    exact = name == "coordinate" and objective.exact_coordinates
    if name == "auto" or exact or name in objective.rules:
        return name
    energy = type(objective).__name__ + ("" if objective.groups is None else " with groups")
    raise ValueError(
        f"solver={name!r} needs {NEEDED[name]}, which {energy} does not have: use solver='auto'."
    )


def is_small(problem: Problem) -> bool:
    """Tell whether the dictionary is so small that every update may include all its columns."""
    return bool(math.prod(problem.dictionary.shape) <= SMALL)


def basin_limit(objective: Energy, rule: str) -> int:
    """Return the largest number of updates by `rule` before Newton steps take over."""
    return BASIN_LIMIT[rule] if objective.exact_coordinates else max(BASIN_LIMIT.values())


def minimised(
    problem: Problem, objective: Energy, settings: SolverSettings, start: Any, method: str,
    updates: int | None = None,
) -> Solution[Any]:  # fmt: skip
    """Return the point at which one method ends: sweeps, or updates and then sweeps."""
    if method == "coordinate":
        first = first_point(problem, objective, start)
        return descend(continuation(first, settings) if start is None else first, settings)
    begin = first_point(problem, objective, start, lift=True)
    if objective.marginal is None and not isinstance(objective, GroupCovariance):  # no sweeps
        return repeat_update(begin, method, settings)
    allowed = basin_limit(objective, method) if updates is None else updates
    return repeat_update(begin, method, settings, allowed)


def solve(
    problem: Problem, objective: Energy, settings: SolverSettings, start: Any = None
) -> Solution[State]:
    """Minimise an energy with respect to the relevances, at the problem's noise variance.

    If the energy probably has many minima, "auto" runs several methods, and the lowest result is
    returned.
    """
    # 1) The method that suits the problem, and others to compare it with.
    methods: tuple[str, ...] = (check_suited(settings.method, objective),)
    noise_free = float(problem.noise) < NOISE_FREE
    full = isinstance(objective, GroupCovariance)
    (rows, columns), n_responses = problem.dictionary.shape, problem.responses.shape[-1]
    allowed: dict[str, int] = {}
    if methods == ("auto",) and not objective.exact_coordinates:
        methods = ("mm",)
    elif methods == ("auto",):
        allowed = (
            BASIN_LIMIT
            if noise_free
            else BASIN_LIMIT | {"em": int(np.clip(EM_PER_COLUMN * columns // rows, *EM_STEPS))}
        )
        methods = ("mackay", "em")
        if start is not None or not is_small(problem):
            methods = ("coordinate",)
        elif full:
            methods = ("coordinate", "mm")
        elif n_responses <= FEW_RESPONSES:
            methods = ("em",)
        elif noise_free or columns > WIDE * rows:
            methods = ("coordinate", "mm", "em")

    # 2) Where the energy probably has one minimum, the result of the first one is taken.
    few, limit = full and n_responses <= FEW_FOR_GROUPS, CROWDED_GROUPS if full else CROWDED
    ended: list[Solution[State]] = []
    for method in methods:
        found = minimised(problem, objective, settings, start, method, allowed.get(method))
        ended.append(replace(found, value=found.value.states[0]))
        if len(methods) == 1:
            return ended[0]
        crowded = float(objective.degrees_of_freedom(ended[0].value)) / rows
        if not (few or crowded > limit):
            return ended[0]
    # 3) Otherwise the first of those results that have the lowest energy.
    values = [float(objective.value(each.value)) for each in ended]
    highest = min(values) + EQUAL * max(abs(min(values)), 1.0)
    pairs = zip(ended, values, strict=True)
    return next(each for each, value in pairs if not value > highest)


def fitted_parameters(
    problem: Problem, objective: Energy, settings: SolverSettings, start: Any
) -> tuple[Solution[Any], Any]:
    """Minimise an energy and return what was fitted, without the state of all columns."""
    if not isinstance(objective, GroupCovariance) or (start is None and is_small(problem)):
        solution = solve(problem, objective, settings, start)
        return solution, objective.parameters(solution.value)
    found = minimised(problem, objective, settings, start, "coordinate")
    basis = found.value.basis.into
    return found, basis @ found.value.parameters @ adjoint(basis)


NEEDED = {
    "mm": "an MM update",
    "em": "the expectation–maximisation (EM) update of posterior='full'",
    "mackay": "MacKay's update of posterior='full'",
    "coordinate": "an exact minimiser in each single relevance, a prior variance (only the full "
    "energy has it)",
}
"""What each solver needs of an energy, for messages."""


LASSO_SOLVERS = ("auto", "sklearn", "skglm")

LARGE = 1_000_000
"""Number of entries above which skglm, with its compilation, is faster than scikit-learn."""


def group_lasso(
    X: Any,
    y: Any,
    *,
    noise_variance: float,
    solver: str = "auto",
    tol: float = 1e-8,
    max_iter: int = 10_000,
) -> Array:
    """Return the group lasso estimate with the penalty of Wipf 2023, Figure 2(d).

    For the dictionary Φ and the responses X it minimises ½‖X − ΦU‖² + λ Σⱼ‖uⱼ‖ with respect to the
    coefficients U with rows uⱼ, where λ is the square root of the noise variance.

    Parameters
    ----------
    X : array-like of shape (d, κ)
        The dictionary, Φ in the formula, with d rows and κ columns.
    y : array-like of shape (d, n)
        The n responses, X in the formula.
    noise_variance : float
        The noise variance, whose square root is the penalty λ.
    solver : {"auto", "sklearn", "skglm"}, default="auto"
        Which package solves the problem. "auto" uses skglm if it is installed, the dictionary is
        large and there are several responses. Otherwise it uses scikit-learn.
    tol : float
        Duality gap at which to stop, relative to the squared norm of the responses. skglm measures
        the violation of the subgradient conditions instead and stops at √tol times the penalty.
    max_iter : int
        Largest number of passes through all columns.

    Returns
    -------
    ndarray of shape (κ, n)
        The estimate U.

    Examples
    --------
    >>> import numpy as np
    >>> group_lasso(np.eye(2), np.array([[3.0], [0.5]]), noise_variance=1.0).round(6)
    array([[2.],
           [0.]])
    """
    X = np.asarray(check_rows(X, accept_sparse=False), dtype=float)
    y = np.asarray(check_rows(y, accept_sparse=False, name="y"), dtype=float)
    check_number(tol, "tol", low=0.0)
    check_integer(max_iter, "max_iter", low=1)
    strength = check_number(noise_variance, "noise_variance", low=0.0, open_low=True) ** 0.5
    alpha = strength / X.shape[0]  # their data term is ‖·‖²/(2d)
    several = y.shape[1] > 1
    check_choice(solver, "solver", LASSO_SOLVERS)
    usable = find_spec("skglm") is not None and several
    if solver == "skglm" and not usable:
        raise ValueError(
            "solver='skglm' needs the package skglm (pip install skglm) and more than one "
            "response. Use solver='sklearn'."
        )
    if solver == "skglm" or (solver == "auto" and usable and X.size >= LARGE):
        from skglm import MultiTaskLasso as FastLasso

        model = FastLasso(alpha, tol=alpha * tol**0.5, max_iter=max_iter, fit_intercept=False)
    else:
        chosen = MultiTaskLasso if several else Lasso
        model = chosen(alpha=alpha, tol=tol, max_iter=max_iter, fit_intercept=False)
    model.fit(X, y if several else y[:, 0])
    return np.asarray(model.coef_).reshape(y.shape[1], X.shape[1]).T


def noise_free_group_lasso(
    X: Array,
    y: Array,
    *,
    noise_variance: float = 1e-10,
    tol: float = 1e-6,
    max_iter: int = 2000,
) -> Array:
    """Return the group lasso estimate that reproduces noise-free responses exactly.

    For the dictionary Φ with columns φⱼ and the responses X, it minimises Σⱼ‖φⱼ‖‖uⱼ‖ subject to
    X = ΦU, where uⱼ are the rows of the coefficients U. The algorithm is repeated ridge regression
    with a tiny noise variance. With columns of unit norm, as in Wipf 2023, this is the group lasso
    of the noise-free experiments there.

    Parameters
    ----------
    X : array of shape (d, κ)
        The dictionary, Φ in the formula, with d rows and κ columns.
    y : array of shape (d, n)
        The n responses, X in the formula.
    noise_variance : float
        The tiny noise variance of the ridge regressions, in squared units of the responses.
    tol : float
        Relative distance of the ridge weights to their fixed point at which to stop.
    max_iter : int
        Largest number of ridge regressions.

    Returns
    -------
    array of shape (κ, n)
        The estimate U.

    Examples
    --------
    >>> import numpy as np
    >>> noise_free_group_lasso(np.eye(2), np.array([[3.0], [0.0]])).round(4)
    array([[3.],
           [0.]])
    """
    check_number(tol, "tol", low=0.0)
    check_integer(max_iter, "max_iter", low=1)
    check_number(noise_variance, "noise_variance", low=0.0, open_low=True)
    problem, units = normalise(X, y)
    problem = problem.with_noise(noise_variance, units)
    objective = Autoencoder(PowerPenalty(0.5))  # 1/h′ = √a
    settings = SolverSettings(tolerance=tol, limit=max_iter)
    solution = repeat_update(first_point(problem, objective, lift=True), "mm", settings)
    relevance = units.relevance * solution.value.parameters
    return Posterior.fitted(X, y, relevance, float(units.noise * problem.noise))[1]
