"""Noise variances that are learned with the relevances, by minimising the energy over both.

Learning is safe if there are enough rows to determine the coefficients. Otherwise the energy falls
without limit as γ → 0.

With one noise variance for each row, Σ = ΦWΦᵀ + Λ with a diagonal Λ. With an intercept, Σ⁻¹ is
replaced by P = Σ⁻¹ − Σ⁻¹1(1ᵀΣ⁻¹1)⁻¹1ᵀΣ⁻¹ (restricted likelihood). Minimisations over the relevances
alternate with updates of Λ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from lucidae.arrays import Array, like, scalar, to_numpy
from lucidae.iteration import Below, Callback, Solution, Status, iterate
from lucidae.sparsity.covariances import NoiseCovariance, whitened_rows
from lucidae.sparsity.noise import FALLBACK
from lucidae.sparsity.objectives import (
    SMALLEST_LEARNED,
    Energy,
    FullCovariance,
    State,
    learned_noise,
)
from lucidae.sparsity.problem import Problem, Rows, Units
from lucidae.sparsity.solve import advice_on, solve
from lucidae.validation import warn_user

WARM_STEPS = 50
"""Largest number of descent sweeps in the relevances between two updates of the noise variance."""


class Learning(NamedTuple):
    """The solution at some noise variances, and the noise variances after one EM step."""

    solution: Solution[Any]
    levels: list[float]
    following: list[float]

    @property
    def distance(self) -> float:
        """Distance to stationarity: the larger of that in relevances and the step of γ."""
        pairs = zip(self.following, self.levels, strict=True)
        return max(self.solution.distance, *(abs(new / old - 1.0) for new, old in pairs))


def learn_levels(
    solved: Callable[[list[float], Any], Solution[Any]], states: Callable[[Any], list[State]],
    objective: Energy, first: list[float], energy: Callable[[Any], Any], *, tolerance: float,
    **limits: Any,
) -> Solution[Any]:  # fmt: skip
    """Minimise an energy over relevances, in alternation with EM steps of noise variances.

    `solved` minimises it at given noise variances, from a solution or from nothing (None).
    """

    def after(solution: Solution[Any]) -> Learning:
        at = states(solution.value)
        following = [learned_noise(each, objective.degrees_of_freedom(each)) for each in at]
        return Learning(solution, [scalar(s.noise) for s in at], [scalar(g) for g in following])

    learned: Solution[Any] = iterate(
        lambda learning: after(solved(learning.following, learning.solution.value)),
        after(solved(first, None)),
        stop=Below(lambda learning: learning.distance, tolerance),
        record={"energy": lambda learning: energy(learning.solution.value)},
        **limits,
    )
    return replace(learned, value=learned.value.solution.value)


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
    """Minimise the energy over the relevances, in alternation with EM steps of γ."""
    again = "coordinate" if objective.exact_coordinates else "mm"

    def solved(levels: list[float], last: State | None) -> Solution[State]:
        at = problem.with_noise(levels[0])
        if last is None:
            return solve(at, objective, method=method, start=start, tolerance=tolerance,
                         limit=limit, callbacks=callbacks)  # fmt: skip
        begin = objective.parameters(last)
        return solve(
            at, objective, method=again, start=begin, tolerance=tolerance, limit=WARM_STEPS
        )

    return learn_levels(
        solved, lambda state: [state], objective, [first_noise(problem)], objective.value,
        tolerance=tolerance, limit=limit, callbacks=callbacks, size=problem.rows,
    )  # fmt: skip


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


SMALLEST_ROW = 1e-6
"""Smallest noise variance of a row that is learned, relative to the mean square response."""

ROW_UPDATES = 5
"""Number of updates of the noise variances of the rows between two fits of the relevances."""


class RowFigures(NamedTuple):
    """The diagonal entries dᵢ of P, and the mean squares qᵢ of the rows of PX."""

    precision: Any
    power: Any


def row_figures(
    dictionary: Any, responses: Any, relevance: Any, variances: Any, intercept: bool
) -> RowFigures:
    """Return the diagonal of P, and the mean square of each row of PX."""
    # With S = Λ^(−½)ΦW^½ on the active columns and SᵀS + I = LLᵀ, Σ⁻¹ = Λ^(−½)(I − KᵀK)Λ^(−½)
    # for K = L⁻¹Sᵀ (Woodbury). An intercept takes the direction Bt from B = I − KᵀK, t = Λ^(−½)1.
    root = np.sqrt(variances)
    used = np.flatnonzero(relevance)
    scaled = dictionary[:, used] * np.sqrt(relevance[used]) / root[:, None]
    lower = np.linalg.cholesky(scaled.conj().T @ scaled + np.eye(used.size))
    K = np.linalg.solve(lower, scaled.conj().T)
    white = responses / root[:, None]
    white = white - K.conj().T @ (K @ white)
    diagonal = 1.0 - np.sum(np.abs(K) ** 2, axis=0)
    if intercept:
        ones = 1.0 / root
        axis = ones - K.conj().T @ (K @ ones)
        share = float((ones @ axis).real)
        diagonal = diagonal - np.abs(axis) ** 2 / share
        white = white - np.outer(axis, ones @ white) / share
    power = np.mean(np.abs(white) ** 2, axis=1)
    return RowFigures(np.maximum(diagonal, 0.0) / variances, power / variances)


def updated_variances(variances: Any, figures: RowFigures, floor: float) -> Any:
    """Return rᵢ/(Λᵢdᵢ), at least `floor`, with the mean squared residual rᵢ = Λᵢ²qᵢ.

    It is a step twice as long in log Λ as the MM step √(rᵢ/dᵢ), and does not raise the energy.
    """
    # The log-determinant is concave in Λ with gradient d, and the data term is the minimum over
    # the coefficients of Σᵢ rᵢ/Λᵢ + …, so dᵢΛᵢ + rᵢ/Λᵢ majorises the energy in Λᵢ. This bound has
    # the same value at Λᵢ and at rᵢ/(Λᵢdᵢ).
    ratio = figures.power / np.where(figures.precision > 0, figures.precision, 1.0)
    return np.maximum(variances * ratio, floor)


def row_distance(variances: Any, figures: RowFigures, floor: float) -> float:
    """Return the largest distance Λᵢ|dᵢ − qᵢ| of a row to stationarity.

    At `floor` a noise variance also counts as stationary if a smaller one would lower the energy.
    """
    slope = variances * (figures.precision - figures.power)
    at_floor = (variances <= 1.01 * floor) & (slope > 0)
    return float(np.max(np.where(at_floor, 0.0, np.abs(slope)), initial=0.0))


class RowLearning(NamedTuple):
    """Noise variances of the rows, and the relevances fitted at them."""

    variances: Any
    rows: Rows
    units: Units
    solution: Solution[State]
    distance: float

    @property
    def covariance(self) -> NoiseCovariance:
        """The covariance of the noise, divided by the mean noise variance of the rows."""
        return NoiseCovariance(self.variances / np.mean(self.variances))

    @property
    def relevance(self) -> Array:
        """The relevances in the units of the data."""
        return self.units.relevance(self.solution.value.relevance)


def check_learnable_rows(objective: Energy, n_outputs: int, weighted: bool, given: bool) -> None:
    """Raise an error if one noise variance for each row cannot be learned."""
    if not isinstance(objective, FullCovariance) or objective.marginal is None:
        raise ValueError(
            "noise_variance='learn_diagonal' needs the full posterior covariance, and groups that "
            "share one relevance (prior variance): use posterior='full' and "
            "group_covariance='spherical', or give the noise variances of the rows as noise_cov."
        )
    if weighted:
        raise ValueError(
            "noise_variance='learn_diagonal' and sample_weight were given; weights are frequencies "
            "of rows, and repeated rows have noise variances of their own. Repeat the rows instead."
        )
    if given:
        raise ValueError(
            "noise_variance='learn_diagonal' and noise_cov were given: give noise_variance='learn' "
            "or a number with noise_cov, or leave noise_cov out."
        )
    if n_outputs < 2:
        raise ValueError(
            "noise_variance='learn_diagonal' needs at least 2 outputs, since one response cannot "
            "tell the noise of its rows apart. Use noise_variance='learn' or 'cv'."
        )


def learn_row_noise(
    rows: Rows,
    objective: Energy,
    *,
    method: str,
    tolerance: float,
    limit: int,
    start: Array | None = None,
    callbacks: Sequence[Callback] = (),
) -> RowLearning:
    """Minimise the energy over the relevances and one noise variance for each row."""
    dictionary, responses = (to_numpy(part) for part in rows.centred())
    problem, _ = rows.normalised(objective.groups)
    scale = rows.mean_square() or 1.0
    floor = SMALLEST_ROW * scale

    def figures(variances: Any, relevance: Any) -> RowFigures:
        return row_figures(dictionary, responses, relevance, variances, rows.intercept)

    def fitted(variances: Any, relevance: Array | None) -> RowLearning:
        mean = float(np.mean(variances))
        white = whitened_rows(rows, NoiseCovariance(variances / mean))
        at, units = white.normalised(objective.groups)
        at = at.with_noise(scalar(units.normalised_noise(mean)))
        begin = None if relevance is None else units.normalised_relevance(relevance)
        found = solve(
            at, objective, method=method, start=begin, tolerance=tolerance, limit=limit
        )  # fmt: skip
        plain = to_numpy(units.relevance(found.value.relevance))
        distance = row_distance(variances, figures(variances, plain), floor)
        return RowLearning(variances, white, units, found, distance)

    def step(last: RowLearning) -> RowLearning:
        variances, relevance = last.variances, to_numpy(last.relevance)
        for _ in range(ROW_UPDATES):
            variances = updated_variances(variances, figures(variances, relevance), floor)
        return fitted(variances, like(relevance, last.units.norms))

    def energy(last: RowLearning) -> Any:
        total = objective.in_units(objective.value(last.solution.value), last.units)
        return total / last.units.n_responses + last.rows.log_volume

    first = np.full(rows.count, first_noise(problem) * scale)
    learned: Solution[Any] = iterate(
        step,
        fitted(first, start),
        stop=Below(lambda last: max(last.distance, last.solution.distance), tolerance),
        limit=limit,
        record={"energy": energy},
        callbacks=callbacks,
        size=rows.count,
    )
    solution = replace(learned, value=learned.value.solution.value)
    low = int(np.sum(learned.value.variances <= 1.01 * floor))
    if low:
        warn_user(
            f"The noise variances of {low} rows fell to the smallest value allowed, because "
            "the likelihood of these data grows as they tend to zero (too few responses or too "
            "many columns). Use noise_variance='cv', or give noise_cov.",
            ConvergenceWarning,
        )
    found: RowLearning = learned.value._replace(solution=solution)
    return found
