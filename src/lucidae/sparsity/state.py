"""The state of a sparse problem: one factorisation of the covariance Σ, and its consequences.

Σ = ΦWΦᵀ + γI is the covariance of a response, with the dictionary Φ, the relevances W and the noise
variance γ. `evaluate` and `evaluate_fit` are the only functions of the solvers that factorise it.
Sweeps, Newton steps, updates and the test of significance all read their result.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from lucidae.arrays import (
    Array,
    cholesky,
    device,
    diagonal,
    inverse_lower,
    namespace,
    solve_lower,
    squared_norm,
    squared_norms,
    to_numpy,
    zeros_like_shape,
)
from lucidae.sparsity.groups import Groups
from lucidae.sparsity.problem import Problem, covariance, root_by_qr


class Factor(NamedTuple):
    """A factorisation Σ = LLᵀ of the covariance: L⁻¹, the whitened responses L⁻¹Y and log|Σ|."""

    inverse: Array
    responses: Array
    log_determinant: Array


class State(NamedTuple):
    """A problem with relevances w, and the quantities that follow from them (Wipf 2023, eq. 18).

    After the fields of `Problem`: the relevances w (κ,), the curvatures zⱼ = φⱼᵀΣ⁻¹φⱼ, the
    alignments Qⱼ = ‖φⱼᵀΣ⁻¹X‖²/n, the data term tr(XXᵀΣ⁻¹)/n and log|Σ|; then the inverse Cholesky
    factor L⁻¹ (d, d) of Σ, the whitened responses L⁻¹Y (d, p), the whitened columns L⁻¹Φ (d, κ)
    and the loadings ΦᵀΣ⁻¹Y (κ, p). The last four have shape (0, 0) where they are not stored:
    the updates need none of them, and a stack on a device would copy them in every step.
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
    inverse: Array
    whitened_responses: Array
    whitened: Array
    loading: Array

    @property
    def problem(self) -> Problem:
        """The problem without its relevances."""
        return Problem(*self[:5])

    @property
    def factor(self) -> Factor | None:
        """The factorisation of Σ, None where it is not stored."""
        if not self.inverse.shape[-1]:
            return None
        return Factor(self.inverse, self.whitened_responses, self.log_determinant)

    @property
    def energy_of_fit(self) -> Array:
        """Data term tr(XXᵀΣ⁻¹)/n, including the responses outside the span of the dictionary."""
        return self.fit + self.outside / self.noise

    @property
    def residual(self) -> Array:
        """Mean square residual ‖X − ΦU‖²/n.

        X − ΦU = γΣ⁻¹X, so it is γ² tr(XXᵀΣ⁻²)/n; and since Σ⁻¹ = Σ⁻¹ΣΣ⁻¹ = γΣ⁻² + Σ⁻¹ΦWΦᵀΣ⁻¹,
        this is γ times the data term less Σ wⱼQⱼ.
        """
        explained = namespace(self.relevance).sum(self.relevance * self.alignment, axis=-1)
        return self.noise * (self.fit - explained) + self.outside

    @property
    def power(self) -> Array:
        """Mean square of each row of the estimate: aⱼ = ‖uⱼ‖²/n = wⱼ²Qⱼ."""
        return self.relevance**2 * self.alignment

    @property
    def used(self) -> Array:
        """Degrees of freedom that the fit uses: tr(ΦWΦᵀΣ⁻¹), which is the sum of all wⱼzⱼ."""
        return namespace(self.relevance).sum(self.relevance * self.curvature, axis=-1)

    @property
    def dimension(self) -> Array:
        """Number of independent rows that the data stand for."""
        return self.spare + float(self.dictionary.shape[-2])

    def without_factor(self) -> State:
        """Return the state without the factorisation of Σ."""
        nothing = _not_stored(self.relevance)
        return self._replace(inverse=nothing, whitened_responses=nothing)

    def compact(self) -> State:
        """Return the state without the factorisation, whitened columns and loadings."""
        nothing = _not_stored(self.relevance)
        return self.without_factor()._replace(whitened=nothing, loading=nothing)

    def take(self, index: Any) -> State:
        """Return the state of one problem on some columns; all others must have relevance zero."""
        xp = namespace(self.relevance)
        chosen = xp.asarray(index, device=device(self.relevance))
        vectors = ("relevance", "curvature", "alignment")
        parts = {name: xp.take(getattr(self, name), chosen, axis=0) for name in vectors}
        return self._replace(
            dictionary=xp.take(self.dictionary, chosen, axis=1),
            whitened=xp.take(self.whitened, chosen, axis=1),
            loading=xp.take(self.loading, chosen, axis=0),
            **parts,
        )


def factorise(problem: Problem, relevance: Array) -> tuple[Array, Array]:
    """Return the Cholesky factor of Σ and log|Σ|.

    Where rounding makes Σ indefinite, the factor of one problem is computed without forming Σ, and
    those of a stack are NaN.
    """
    xp = namespace(problem.dictionary)
    dictionary, weights = _active_columns(problem, relevance)
    factor, definite = cholesky(covariance(dictionary, weights, problem.noise))
    if relevance.ndim == 1 and not bool(definite) and bool(xp.all(xp.isfinite(weights))):
        factor, _ = root_by_qr((dictionary * xp.sqrt(weights)[None, :]).mT, problem.noise)
    return factor, 2.0 * xp.sum(xp.log(diagonal(factor)), axis=-1)


def _active_columns(problem: Problem, relevance: Array) -> tuple[Array, Array]:
    """Return the columns and relevances that form Σ: the active ones, where they are a minority."""
    if relevance.ndim > 1 or problem.columns <= problem.rows:
        return problem.dictionary, relevance
    active = np.flatnonzero(to_numpy(relevance))
    if 2 * active.size > problem.columns:
        return problem.dictionary, relevance
    xp = namespace(relevance)
    index = xp.asarray(active, device=device(relevance))
    return xp.take(problem.dictionary, index, axis=1), xp.take(relevance, index, axis=0)


def evaluate(
    problem: Problem, relevance: Array, *, factor: Factor | None = None, columns: bool = False
) -> State:
    """Return the state at `relevance`: one Cholesky factor and one product with the dictionary.

    Parameters
    ----------
    problem : Problem
        One problem, or a stack.
    relevance : array of shape (..., κ)
    factor : Factor, optional
        The factorisation of Σ at these relevances, where it is known already.
    columns : bool
        Whether to store the whitened columns and the loadings, which Newton steps and coordinate
        moves need.

    Returns
    -------
    State
    """
    xp = namespace(problem.dictionary)
    if factor is None:
        lower, log_determinant = factorise(problem, relevance)
        inverse = inverse_lower(lower)
        factor = Factor(inverse, inverse @ problem.responses, log_determinant)
    whitened = factor.inverse @ problem.dictionary
    loading = xp.matrix_transpose(whitened) @ factor.responses
    nothing = _not_stored(relevance)
    return State(
        *problem,
        relevance,
        squared_norms(whitened, -2),
        squared_norms(loading, -1),
        squared_norm(factor.responses),
        factor.log_determinant,
        factor.inverse,
        factor.responses,
        whitened if columns else nothing,
        loading if columns else nothing,
    )


def evaluate_fit(problem: Problem, relevance: Array) -> State:
    """Return a state without curvatures (they are NaN), which takes less time than `evaluate`.

    It serves energies whose update and violation do not depend on the curvatures. Two triangular
    systems for the responses replace the inverse of the Cholesky factor.
    """
    xp = namespace(problem.dictionary)
    lower, log_determinant = factorise(problem, relevance)
    whitened_responses = solve_lower(lower, problem.responses)
    precise = solve_lower(lower, whitened_responses, transpose=True)
    loading = xp.matrix_transpose(problem.dictionary) @ precise
    nothing = _not_stored(relevance)
    return State(
        *problem,
        relevance,
        xp.full_like(relevance, xp.nan),
        squared_norms(loading, -1),
        squared_norm(whitened_responses),
        log_determinant,
        *(nothing, nothing, nothing, nothing),
    )


def evaluate_from(state: State, relevance: Array) -> State:
    """Return the state at `relevance` with its columns; reuse Σ if the relevances are equal."""
    unchanged = bool(namespace(relevance).all(relevance == state.relevance))
    if unchanged and state.whitened.shape[-1]:
        return state
    factor = state.factor if unchanged else None
    return evaluate(state.problem, relevance, factor=factor, columns=True)


def _not_stored(relevance: Array) -> Array:
    """Return an empty matrix, which stands for a matrix that is not stored."""
    return zeros_like_shape((*relevance.shape[:-1], 0, 0), relevance)


def flat_start(problem: Problem, groups: Groups | None = None) -> Array:
    """Return equal relevances that explain the mean square response; zero for zero columns.

    A zero column of a group has the relevance of its group, which is zero if all its columns are.
    """
    xp = namespace(problem.dictionary)
    share = float(problem.rows) / problem.columns
    ones = xp.ones_like(problem.dictionary[..., 0, :])
    nonzero = xp.where(xp.any(problem.dictionary != 0, axis=-2), ones, 0.0 * ones)
    # Newton steps and the test of significance read a group's relevance off its first column.
    nonzero = nonzero if groups is None else groups.share(nonzero)
    return xp.where(nonzero > 0, ones * share, 0.0 * ones)


def empty_start(problem: Problem) -> Array:
    """Return relevances that are all zero."""
    shape = (*problem.dictionary.shape[:-2], problem.columns)
    return zeros_like_shape(shape, problem.dictionary)


def positive(values: Array) -> Array:
    """Replace zeros (of zero columns) by one, so that ratios with them are zero, not NaN."""
    xp = namespace(values)
    return xp.where(values > 0, values, xp.ones_like(values))


def complementarity(
    relevance: Array, alignment: Array, pressure: Array, groups: Groups | None = None
) -> Array:
    """Return the distance to the KKT conditions: Q = z where w > 0, and Q ≤ z where w = 0.

    Here w are the relevances, Q the alignments and z the curvatures (or another derivative of the
    log-volume, `pressure`). The distance is the largest of wⱼ|Qⱼ − zⱼ| and (Qⱼ − zⱼ)/zⱼ; both are
    dimensionless and vanish together exactly at a stationary point. For a group, Q and z are totals
    over its columns.
    """
    xp = namespace(relevance)
    if groups is not None:
        alignment, pressure = groups.share(alignment), groups.share(pressure)
    slope = alignment - pressure
    slack = xp.max(relevance * xp.abs(slope), axis=-1)
    return xp.maximum(slack, xp.max(slope / positive(pressure), axis=-1))
