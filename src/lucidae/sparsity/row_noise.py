"""One noise variance for each row, learned together with the relevances.

Now Σ = ΦWΦᵀ + Λ with a diagonal Λ. With an intercept, Σ⁻¹ is replaced by P = Σ⁻¹ −
Σ⁻¹1(1ᵀΣ⁻¹1)⁻¹1ᵀΣ⁻¹ (restricted likelihood). Minimisations over the relevances alternate with
updates of Λ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from lucidae.arrays import Array, like, scalar, to_numpy
from lucidae.iteration import Below, Callback, Solution, iterate
from lucidae.sparsity.noise import first_noise
from lucidae.sparsity.objectives import Energy
from lucidae.sparsity.problem import Rows, Units
from lucidae.sparsity.solve import solve, with_value
from lucidae.sparsity.state import State
from lucidae.sparsity.whitening import NoiseCovariance, WhitenedRows, whitened_rows
from lucidae.validation import warn_user

SMALLEST_ROW = 1e-6
"""Smallest noise variance of a row that is learned, relative to the mean square response."""

UPDATES = 5
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


def majorized_variances(variances: Any, figures: RowFigures, floor: float) -> Any:
    """Return √(rᵢ/dᵢ), at least `floor`, with the mean squared residual rᵢ = Λᵢ²qᵢ: an MM step."""
    # The log-determinant is concave in Λ with gradient d, and the data term is the minimum over
    # the coefficients of Σᵢ rᵢ/Λᵢ + …, so dᵢΛᵢ + rᵢ/Λᵢ majorises the energy in Λᵢ.
    ratio = figures.power / np.where(figures.precision > 0, figures.precision, 1.0)
    return np.maximum(variances * np.sqrt(ratio), floor)


def longer_variances(variances: Any, figures: RowFigures, floor: float) -> Any:
    """Return Λᵢqᵢ/dᵢ, at least `floor`: a step twice as long in log Λ as `majorized_variances`.

    The bound dᵢΛᵢ + rᵢ/Λᵢ has the same value before and after it, so that the energy does not rise.
    """
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
    rows: WhitenedRows
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
    if not objective.descends_between_noise_steps or objective.marginal is None:
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
        for _ in range(UPDATES):
            variances = longer_variances(variances, figures(variances, relevance), floor)
        return fitted(variances, like(relevance, last.units.norms))

    def energy(last: RowLearning) -> Any:
        total = objective.in_units(objective.value(last.solution.value), last.units)
        return total / last.units.n_responses + last.rows.noise_volume()

    first = np.full(rows.count, first_noise(problem) * scale)
    learned = iterate(
        step,
        fitted(first, start),
        stop=Below(lambda last: max(last.distance, last.solution.distance), tolerance),
        limit=limit,
        record={"energy": energy},
        callbacks=callbacks,
        size=rows.count,
    )
    solution = with_value(learned, learned.value.solution.value)
    low = int(np.sum(learned.value.variances <= 1.01 * floor))
    if low:
        warn_user(
            f"The noise variances of {low} rows fell to the smallest value allowed, because "
            "the likelihood of these data grows as they tend to zero (too few responses or too "
            "many columns). Use noise_variance='cv', or give noise_cov.",
            ConvergenceWarning,
        )
    return learned.value._replace(solution=solution)
