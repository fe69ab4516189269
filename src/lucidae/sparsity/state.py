"""The state of a sparse problem: quantities that follow from one factorisation Σ = LLᵀ.

The *curvature* of a column is z = φᵀΣ⁻¹φ and its *alignment* Q = ‖φᵀΣ⁻¹X‖²/n, the derivatives of
log|Σ| and, with the opposite sign, of the data term in its relevance. *Whitened* columns are L⁻¹φ,
and the *loading* is ΦᵀΣ⁻¹Y. Only `evaluate` and `evaluate_fit` factorise Σ.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from lucidae.arrays import (
    Array,
    adjoint,
    cholesky,
    device,
    diagonal,
    inverse_lower,
    machine_epsilon,
    multiply_lower,
    namespace,
    real_part,
    solve_lower,
    squared_norm,
    squared_norms,
    to_numpy,
    zeros_like_shape,
)
from lucidae.sparsity.dictionary import (
    Dictionary,
    adjoint_times,
    dense_columns,
    is_sparse,
    nonzero_columns,
    norms_after,
    selected_columns,
)
from lucidae.sparsity.prior import Axes, Groups
from lucidae.sparsity.problem import Problem, covariance, root_by_qr


class Factor(NamedTuple):
    """A Cholesky factorisation Σ = LLᵀ: L⁻¹, L⁻¹Y and log|Σ|."""

    inverse: Array
    responses: Array
    log_determinant: Array


class State(NamedTuple):
    """A problem with relevances, and the quantities that follow from them (Wipf 2023, eq. 18).

    Y has p columns and YYᵀ = XXᵀ/n. With several problems every field has one more leading axis.
    The last four fields have shape (0, 0) if they are not stored.
    """

    dictionary: Dictionary  # the fields of `Problem`
    responses: Array
    noise: Array
    outside: Array
    spare: Array
    relevance: Array  # (κ,): the relevances
    curvature: Array  # (κ,): φⱼᵀΣ⁻¹φⱼ for each column
    alignment: Array  # (κ,): ‖φⱼᵀΣ⁻¹X‖²/n for each column
    fit: Array  # (): the data term tr(XXᵀΣ⁻¹)/n, and log|Σ|
    log_determinant: Array
    inverse: Array  # (d, d): the inverse L⁻¹ of the Cholesky factor
    # (d, p): L⁻¹Y and L⁻¹Φ. The latter is never stored for a sparse dictionary
    whitened_responses: Array
    whitened: Array
    loading: Array  # (κ, p): φᵀΣ⁻¹Y. It is never stored for a sparse dictionary

    @property
    def problem(self) -> Problem:
        """The problem without its relevances."""
        return Problem(*self[:5])

    @property
    def factor(self) -> Factor | None:
        """The Cholesky factorisation of the covariance of a response; None if it is not stored."""
        if not self.inverse.shape[-1]:
            return None
        return Factor(self.inverse, self.whitened_responses, self.log_determinant)

    @property
    def energy_of_fit(self) -> Array:
        """Data term tr(XXᵀΣ⁻¹)/n, including responses outside the span of the dictionary."""
        return self.fit + self.outside / self.noise

    @property
    def residual(self) -> Array:
        """Squared residual ‖X − ΦU‖²/n of the posterior mean U.

        X − ΦU = γΣ⁻¹X and Σ⁻¹ = γΣ⁻² + Σ⁻¹ΦWΦᵀΣ⁻¹, so it is γ² tr(XXᵀΣ⁻²)/n = γ(tr(XXᵀΣ⁻¹)/n − Σⱼ
        wⱼQⱼ).
        """
        explained = namespace(self.relevance).sum(self.relevance * self.alignment, axis=-1)
        return self.noise * (self.fit - explained) + self.outside

    @property
    def power(self) -> Array:
        """Mean squares w²Q of each column's coefficients over the responses."""
        return self.relevance**2 * self.alignment

    @property
    def used(self) -> Array:
        """Effective number of parameters Σⱼ wⱼzⱼ = tr(ΦWΦᵀΣ⁻¹)."""
        return namespace(self.relevance).sum(self.relevance * self.curvature, axis=-1)

    @property
    def dimension(self) -> Array:
        """Number of independent rows of the data, including those outside the dictionary's span."""
        return self.spare + float(self.dictionary.shape[-2])

    def without_factor(self) -> State:
        """Return the state without the stored factorisation of the covariance of a response."""
        nothing = _not_stored(self.relevance)
        return self._replace(inverse=nothing, whitened_responses=nothing)

    def compact(self) -> State:
        """Return the state without the four fields of matrices, which saves memory."""
        nothing = _not_stored(self.relevance)
        return self.without_factor()._replace(whitened=nothing, loading=nothing)

    def take(self, index: Any) -> State:
        """Return the state restricted to the columns `index`; all others must be inactive."""
        xp = namespace(self.relevance)
        chosen = xp.asarray(index, device=device(self.relevance))
        vectors = ("relevance", "curvature", "alignment")
        parts = {name: xp.take(getattr(self, name), chosen, axis=0) for name in vectors}
        columns = dense_columns(self.dictionary, index)
        if not self.whitened.shape[-1]:
            whitened = multiply_lower(self.inverse, columns)
            loading = adjoint(whitened) @ self.whitened_responses
        else:
            whitened = xp.take(self.whitened, chosen, axis=1)
            loading = xp.take(self.loading, chosen, axis=0)
        whole = State(*self)  # a subclass would describe all columns
        return whole._replace(dictionary=columns, whitened=whitened, loading=loading, **parts)

    @property
    def complete(self) -> bool:
        """Whether all that `take` returns is stored; otherwise it computes products."""
        stored = self.inverse if is_sparse(self.dictionary) else self.whitened
        return bool(stored.shape[-1])


class PrincipalState(State):
    """The state of a problem in the principal axes of the covariances of its groups."""

    axes: Axes  # the principal axes
    groups: Groups  # the groups of columns

    @classmethod
    def at(cls, state: State, axes: Axes, groups: Groups) -> PrincipalState:
        """Return a `PrincipalState` with the fields of `state`, and with these axes and groups."""
        made = cls(*state)
        made.axes, made.groups = axes, groups
        return made

    @property
    def covariances(self) -> Array:
        """The prior covariance of each group, of shape (g, m, m), padded with zeros."""
        return self.axes.covariances(self.relevance, self.groups)


def axes_of(state: State) -> Axes | None:
    """Return the principal axes along which a state takes its columns; None for given columns."""
    return state.axes if isinstance(state, PrincipalState) else None


def factorise(problem: Problem, relevance: Array) -> tuple[Array, Array]:
    """Return the Cholesky factor of Σ, and its log-determinant.

    If rounding makes Σ indefinite, QR serves a single problem; among several its factor is NaN.
    """
    xp = namespace(problem.noise)
    dictionary, weights = _active_columns(problem, relevance)
    factor, definite = cholesky(covariance(dictionary, weights, problem.noise))
    if relevance.ndim == 1 and not bool(definite) and bool(xp.all(xp.isfinite(weights))):
        dictionary = _all_dense(dictionary)
        factor, _ = root_by_qr(adjoint(dictionary * xp.sqrt(weights)[None, :]), problem.noise)
    return factor, 2.0 * xp.sum(xp.log(real_part(diagonal(factor))), axis=-1)


def factor_of(problem: Problem, relevance: Array) -> Factor:
    """Return the factorisation of the covariance at given relevances."""
    lower, log_determinant = factorise(problem, relevance)
    inverse = inverse_lower(lower)
    return Factor(inverse, inverse @ problem.responses, log_determinant)


def _all_dense(dictionary: Dictionary) -> Array:
    """Return a dictionary as a dense array."""
    sparse = is_sparse(dictionary)
    return dense_columns(dictionary, np.arange(dictionary.shape[1])) if sparse else dictionary


def _active_columns(problem: Problem, relevance: Array) -> tuple[Dictionary, Array]:
    """Return the active columns, with their relevances, if they are few, otherwise all columns."""
    if relevance.ndim > 1 or problem.columns <= problem.rows:
        return problem.dictionary, relevance
    active = np.flatnonzero(to_numpy(relevance))
    if 2 * active.size > problem.columns:
        return problem.dictionary, relevance
    xp = namespace(relevance)
    index = xp.asarray(active, device=device(relevance))
    return selected_columns(problem.dictionary, active), xp.take(relevance, index, axis=0)


def evaluate(
    problem: Problem, relevance: Array, *, factor: Factor | None = None, columns: bool = False
) -> State:
    """Return the state at given relevances: one Cholesky factorisation, one product with Φ."""
    factor = factor_of(problem, relevance) if factor is None else factor
    nothing = _not_stored(relevance)
    if is_sparse(problem.dictionary):
        return State(
            *problem,
            relevance,
            norms_after(problem.dictionary, factor.inverse),
            squared_norms(adjoint_times(problem.dictionary, _precise(factor)), -1),
            squared_norm(factor.responses),
            factor.log_determinant,
            factor.inverse,
            factor.responses,
            nothing,
            nothing,
        )
    whitened = multiply_lower(factor.inverse, problem.dictionary)
    loading = adjoint(whitened) @ factor.responses
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


def _precise(factor: Factor) -> Array:
    """Return Σ⁻¹Y for the covariance Σ of a response and the responses Y."""
    return adjoint(factor.inverse) @ factor.responses


def evaluate_fit(problem: Problem, relevance: Array) -> State:
    """Return the state with curvatures NaN, for energies that do not need them.

    Two triangular systems are solved for the responses, instead of inverting the Cholesky factor.
    """
    xp = namespace(problem.noise)
    lower, log_determinant = factorise(problem, relevance)
    whitened_responses = solve_lower(lower, problem.responses)
    precise = solve_lower(lower, whitened_responses, transpose=True)
    loading = adjoint_times(problem.dictionary, precise)
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
    """Return the state at `relevance` with its matrices, by the stored factor if unchanged."""
    unchanged = bool(namespace(relevance).all(relevance == state.relevance))
    if unchanged and state.complete:
        return state
    factor = state.factor if unchanged else None
    return evaluate(state.problem, relevance, factor=factor, columns=True)


def _not_stored(relevance: Array) -> Array:
    """Return an empty matrix, the value of a field of `State` that is not stored."""
    return zeros_like_shape((*relevance.shape[:-1], 0, 0), relevance)


def flat_start(problem: Problem, groups: Groups | None = None) -> Array:
    """Return equal relevances for which the prior variance of a response is its mean square.

    Zero columns get zero, but a zero column of a group the relevance of its group.
    """
    xp = namespace(problem.noise)
    share = float(problem.rows) / problem.columns
    ones = empty_start(problem) + 1.0
    nonzero = xp.where(nonzero_columns(problem.dictionary), ones, 0.0 * ones)
    # Newton steps and the test of significance read a group's relevance off its first column.
    nonzero = nonzero if groups is None else groups.share(nonzero)
    return xp.where(nonzero > 0, ones * share, 0.0 * ones)


def empty_start(problem: Problem) -> Array:
    """Return an array of relevances that are all zero, one for each column of the problem."""
    shape = (*problem.dictionary.shape[:-2], problem.columns)
    return zeros_like_shape(shape, problem.noise)


def positive(values: Array) -> Array:
    """Return `values` with entries that are not positive replaced by one, as divisors."""
    xp = namespace(values)
    return xp.where(values > 0, values, xp.ones_like(values))


def leave_one_out(state: State) -> tuple[Array, Array]:
    """Return the sparsity sⱼ and the squared quality qⱼ² of each column (Tipping & Faul 2003).

    These are zⱼ and Qⱼ after the column is left out of Σ: by Sherman–Morrison sⱼ = zⱼ/(1 − wⱼzⱼ)
    and qⱼ² = Qⱼ/(1 − wⱼzⱼ)². The divisor, the posterior variance of the column's latent, is kept
    above zero.
    """
    xp = namespace(state.relevance)
    variance = 1.0 - state.relevance * state.curvature
    variance = xp.maximum(variance, xp.full_like(variance, machine_epsilon(variance)))
    return state.curvature / variance, state.alignment / variance**2


def complementarity(
    relevance: Array, alignment: Array, pressure: Array, groups: Groups | None = None
) -> Array:
    """Return the distance to the KKT conditions Q = z if w > 0 and Q ≤ z if w = 0."""
    xp = namespace(relevance)
    if groups is not None:
        alignment, pressure = groups.share(alignment), groups.share(pressure)
    slope = alignment - pressure
    slack = xp.max(relevance * xp.abs(slope), axis=-1)
    return xp.maximum(slack, xp.max(slope / positive(pressure), axis=-1))
