"""What one factorisation of Σ tells about every column at once."""

from __future__ import annotations

from typing import NamedTuple

from lucidae.arrays import (
    Array,
    cholesky,
    diagonal,
    namespace,
    solve_lower,
    squared_norm,
    squared_norms,
    zeros_like_shape,
)
from lucidae.sparsity.groups import Groups
from lucidae.sparsity.problem import Problem, covariance, whiten


class State(NamedTuple):
    """A problem with relevances w, and what follows from them (Wipf 2023, eq. 18).

    Beyond the fields of `Problem`: the relevances w (κ,), the curvatures zⱼ = φⱼᵀΣ⁻¹φⱼ, the
    alignments Qⱼ = ‖φⱼᵀΣ⁻¹X‖²/n, the data term tr(XXᵀΣ⁻¹)/n, log|Σ| and the pull ‖Σ⁻¹X‖²/n.
    Stacks of problems have one more leading axis everywhere.
    """

    dictionary: Array
    responses: Array
    noise: Array
    outside: Array
    spare: Array
    relevance: Array
    curvature: Array
    alignment: Array
    fit: Array
    log_determinant: Array
    pull: Array

    @property
    def problem(self) -> Problem:
        """The problem without its relevances."""
        return Problem(*self[:5])

    @property
    def energy_of_fit(self) -> Array:
        """Data term per response, the part outside the rows kept included."""
        return self.fit + self.outside / self.noise

    @property
    def residual(self) -> Array:
        """Mean square residual ‖X − ΦU‖²/n, since X − ΦU = γΣ⁻¹X."""
        return self.noise**2 * self.pull + self.outside

    @property
    def power(self) -> Array:
        """Mean square of each row of the estimate: aⱼ = ‖uⱼ‖²/n = wⱼ²Qⱼ."""
        return self.relevance**2 * self.alignment

    @property
    def used(self) -> Array:
        """Degrees of freedom that the fit uses: tr(ΦWΦᵀΣ⁻¹) = Σ wⱼzⱼ."""
        return namespace(self.relevance).sum(self.relevance * self.curvature, axis=-1)

    @property
    def dimension(self) -> Array:
        """Number of independent rows that the data stand for."""
        return self.spare + float(self.dictionary.shape[-2])


def evaluate(problem: Problem, relevance: Array) -> State:
    """Factorise Σ for these relevances: one Cholesky factor and one product with [Φ, X]."""
    xp = namespace(problem.dictionary)
    white = whiten(covariance(problem.dictionary, relevance, problem.noise), problem.responses)
    whitened = white.inverse @ problem.dictionary
    loading = xp.matrix_transpose(whitened) @ white.responses
    pulled = xp.matrix_transpose(white.inverse) @ white.responses
    return State(
        *problem,
        relevance,
        squared_norms(whitened, -2),
        squared_norms(loading, -1),
        white.fit,
        white.log_determinant,
        squared_norm(pulled),
    )


def evaluate_fit(problem: Problem, relevance: Array) -> State:
    """Evaluate all but the curvatures, which are NaN: two small solves in place of an inverse.

    Only the full posterior looks at curvatures.
    """
    xp = namespace(problem.dictionary)
    factor, _ = cholesky(covariance(problem.dictionary, relevance, problem.noise))
    white = solve_lower(factor, problem.responses)
    pulled = solve_lower(factor, white, transpose=True)
    loading = xp.matrix_transpose(problem.dictionary) @ pulled
    return State(
        *problem,
        relevance,
        xp.full_like(relevance, xp.nan),
        squared_norms(loading, -1),
        squared_norm(white),
        2.0 * xp.sum(xp.log(diagonal(factor)), axis=-1),
        squared_norm(pulled),
    )


def flat_start(problem: Problem) -> Array:
    """Equal relevances that explain the mean square of the responses; zero for zero columns."""
    xp = namespace(problem.dictionary)
    share = float(problem.rows) / problem.columns
    alive = xp.any(problem.dictionary != 0, axis=-2)
    return xp.where(alive, xp.ones_like(problem.dictionary[..., 0, :]) * share, 0.0)


def empty_start(problem: Problem) -> Array:
    """All relevances zero."""
    shape = (*problem.dictionary.shape[:-2], problem.columns)
    return zeros_like_shape(shape, problem.dictionary)


def positive(values: Array) -> Array:
    """Replace zeros (of zero columns) by one, so that ratios with them are zero, not NaN."""
    xp = namespace(values)
    return xp.where(values > 0, values, xp.ones_like(values))


def complementarity(
    relevance: Array, alignment: Array, pressure: Array, groups: Groups | None = None
) -> Array:
    """Distance to the KKT conditions Q = z where w > 0 and Q ≤ z where w = 0.

    The largest of wⱼ|Qⱼ − zⱼ| and (Qⱼ − zⱼ)/zⱼ; both are free of units and vanish together
    exactly at a stationary point. For a group, Q and z are totals over its columns.
    """
    xp = namespace(relevance)
    if groups is not None:
        alignment, pressure = groups.share(alignment), groups.share(pressure)
    slope = alignment - pressure
    slack = xp.max(relevance * xp.abs(slope), axis=-1)
    return xp.maximum(slack, xp.max(slope / positive(pressure), axis=-1))
