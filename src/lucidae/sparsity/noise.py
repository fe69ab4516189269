"""The noise variance γ: how it is found, and learning it by minimising the energy.

Learning is safe if there are enough rows to determine the coefficients. Otherwise the energy falls
without limit as γ → 0, and γ follows from held-out rows (`held_out`).
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import Any, NamedTuple

from sklearn.exceptions import ConvergenceWarning

from lucidae.arrays import Array, scalar
from lucidae.iteration import Below, Callback, Solution, Status, iterate
from lucidae.iteration.solution import joined
from lucidae.sparsity.objectives import Energy
from lucidae.sparsity.problem import Problem
from lucidae.sparsity.solve import advice_on, lifted, repeat_update, solve, with_value
from lucidae.sparsity.state import State
from lucidae.sparsity.updates import SMALLEST_LEARNED, learned_noise
from lucidae.validation import check_choice, check_number, warn_user

WARM_STEPS = 50
"""Largest number of descent sweeps in the relevances between two updates of the noise variance."""

WAYS = ("auto", "learn", "learn_diagonal", "cv", "cv_1se")
"""Names of the ways to find the noise variance."""

FALLBACK = 0.1
"""Noise variance for data with a single row, relative to the mean square response."""


def checked_noise(given: Any, ways: tuple[str, ...] = WAYS) -> str | float:
    """Return `noise_variance` if it is a positive number or one of the names `ways`."""
    if isinstance(given, Real):
        words = f" or one of {', '.join(map(repr, ways))}"
        return check_number(given, "noise_variance", low=0.0, open_low=True, others=words)
    return check_choice(given, "noise_variance", ways, others=" or a finite number above 0")


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


class Learning(NamedTuple):
    """The relevances found at one noise variance, and the γ of the next EM step."""

    solution: Solution[State]
    noise: float

    @classmethod
    def after(cls, solution: Solution[State], objective: Energy) -> Learning:
        """Return `solution` with the noise variance after one step of expectation–maximisation."""
        state = solution.value
        return cls(solution, scalar(learned_noise(state, objective.degrees_of_freedom(state))))

    @property
    def distance(self) -> float:
        """Distance to stationarity: the larger of that in relevances and the step of γ."""
        change = abs(self.noise / scalar(self.solution.value.noise) - 1.0)
        return max(change, self.solution.distance)


def first_noise(problem: Problem) -> float:
    """Return the normalised γ at which learning starts: that of least squares, or 0.1."""
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
    """Minimise the energy with respect to the relevances and the noise variance together.

    For the full posterior, minimisations over the relevances alternate with EM steps of γ; for the
    diagonal one both are updated in every step.
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
        begin = objective.parameters(state)
        return Learning.after(solve(at_noise, objective, start=begin, **warm), objective)

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
    """Update relevances and γ together in every step; negligible columns are dropped on the way."""
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


def warn_if_collapsed(solution: Solution[Any]) -> None:
    """Warn if learning ended at the smallest noise variance that is allowed."""
    if scalar(solution.value.noise) <= 1.01 * SMALLEST_LEARNED:
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
    noise = scalar(state.noise)
    if not limited or noise >= FALLEN or scalar(state.problem.spare) >= 1.0:
        return advice_on(solution)
    return (
        f"The learned noise variance has fallen to {noise:.1g} times the mean square response in "
        f"{solution.n_iter} iterations and is still falling. With as many columns as rows the "
        "likelihood may grow without bound as it tends to zero, and raising max_iter does not help "
        "then: use noise_variance='cv' or give a number."
    )
