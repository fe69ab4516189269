"""The state of a sparse problem: quantities that follow from one factorisation of the covariance.

Σ = ΦWΦᵀ + γI is the covariance of a response, with the dictionary Φ, the relevances W (prior
variances of the coefficients) and the noise variance γ. `evaluate` and `evaluate_fit` are the only
functions of the solvers that factorise Σ. Coordinate moves, Newton steps, updates and the test of
significance all use the state that they return.
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
    quadratic_forms,
    selected_columns,
)
from lucidae.sparsity.groups import Groups
from lucidae.sparsity.problem import Problem, covariance, root_by_qr

CANCELLING = 1e-5
"""Noise variance below which curvatures of sparse columns are not sums over pairs of entries.

It is relative to the mean square response. In these sums numbers of the size of the inverse noise
variance cancel."""


class Factor(NamedTuple):
    """A Cholesky factorisation Σ = LLᵀ of the covariance Σ of a response.

    The fields are L⁻¹, the product L⁻¹Y with the responses Y of the problem in normalised units,
    and log|Σ|.
    """

    inverse: Array
    responses: Array
    log_determinant: Array


class State(NamedTuple):
    """A problem with relevances, and the quantities that follow from them (Wipf 2023, eq. 18).

    Φ is the dictionary with d rows and κ columns φⱼ, X are the n responses and Y is a matrix with p
    columns and YYᵀ = XXᵀ/n. W is the diagonal matrix of the relevances, γ the noise variance and Σ
    = ΦWΦᵀ + γI = LLᵀ the covariance of a response. With several problems every field has one more
    leading axis. The last four fields have shape (0, 0) if they are not stored: the updates do not
    need them, and problems on an accelerator would copy them in every step.
    """

    dictionary: Dictionary  # the fields of `Problem`
    responses: Array
    noise: Array
    outside: Array
    spare: Array
    relevance: Array  # (κ,): the relevances, prior variances of the coefficients of each column
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
        """Data term of the energy, including responses outside the span of the dictionary.

        It is tr(XXᵀΣ⁻¹)/n for n responses X with covariance Σ.
        """
        return self.fit + self.outside / self.noise

    @property
    def residual(self) -> Array:
        """Squared residual ‖X − ΦU‖²/n of the posterior mean U, divided by the number of responses.

        Φ is the dictionary and X are the n responses. Since X − ΦU = γΣ⁻¹X, with the noise variance
        γ and the covariance Σ of a response, it is γ² tr(XXᵀΣ⁻²)/n. With Σ⁻¹ = Σ⁻¹ΣΣ⁻¹ = γΣ⁻² +
        Σ⁻¹ΦWΦᵀΣ⁻¹ this is γ times the difference of the data term tr(XXᵀΣ⁻¹)/n and the sum of all
        wⱼQⱼ. Here W are the relevances wⱼ, and Qⱼ = ‖φⱼᵀΣ⁻¹X‖²/n are the alignments of the columns
        φⱼ.
        """
        explained = namespace(self.relevance).sum(self.relevance * self.alignment, axis=-1)
        return self.noise * (self.fit - explained) + self.outside

    @property
    def power(self) -> Array:
        """Mean square, taken over all responses, of each column's coefficients.

        It is the squared relevance of the column φ times its alignment ‖φᵀΣ⁻¹X‖²/n, for n responses
        X with covariance Σ.
        """
        return self.relevance**2 * self.alignment

    @property
    def used(self) -> Array:
        """Effective number of parameters: the sum of the relevances times the curvatures.

        It is tr(ΦWΦᵀΣ⁻¹) for the dictionary Φ, the relevances W and the covariance Σ of a response.
        The relevance of a column φ is the prior variance of its coefficients, its curvature is
        φᵀΣ⁻¹φ.
        """
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
        """Return the state with `inverse`, `whitened_responses`, `whitened` and `loading` emptied.

        This saves memory; `evaluate` computes them again.
        """
        nothing = _not_stored(self.relevance)
        return self.without_factor()._replace(whitened=nothing, loading=nothing)

    def take(self, index: Any) -> State:
        """Return the state restricted to the columns `index`; all others must have relevance zero.

        The state must be that of one problem. Its fields `whitened` and `loading`, products of the
        dictionary with the inverse covariance of a response, are computed for these columns if they
        are not stored. The columns of the result are dense.
        """
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


def factorise(problem: Problem, relevance: Array) -> tuple[Array, Array]:
    """Return the Cholesky factor of the covariance of a response, and its log-determinant.

    If rounding errors make the covariance indefinite, the factor of a single problem is computed by
    QR decomposition instead; among several problems, the factor of that problem is NaN.
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
    """Return the columns, with their relevances, from which the covariance is computed.

    These are the columns of positive relevance if there are few of them, otherwise all columns.
    """
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
    """Return the state of a problem at given relevances.

    The cost is one Cholesky factorisation and one product with the dictionary.
    """
    factor = factor_of(problem, relevance) if factor is None else factor
    nothing = _not_stored(relevance)
    if is_sparse(problem.dictionary):
        return State(
            *problem,
            relevance,
            _curvature(problem, factor),
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


def _curvature(problem: Problem, factor: Factor) -> Array:
    """Return φᵀΣ⁻¹φ for all columns φ of a sparse dictionary; Σ is the covariance of a response.

    It is ‖L⁻¹φ‖² with Σ = LLᵀ, and only if the noise variance is not small, the faster sum over
    pairs of entries of φ.
    """
    if float(problem.noise) < CANCELLING:
        return norms_after(problem.dictionary, factor.inverse)
    return quadratic_forms(problem.dictionary, factor.inverse)


def evaluate_fit(problem: Problem, relevance: Array) -> State:
    """Return the state of a problem at given relevances, with curvatures that are NaN.

    This takes less time than `evaluate` and suffices for energies whose update and distance to
    stationarity do not depend on the curvatures φᵀΣ⁻¹φ of the columns φ, with the covariance Σ of a
    response. Two triangular systems are solved for the responses, instead of inverting the Cholesky
    factor.
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
    """Return the state at the relevances `relevance`, with `whitened` and `loading` stored.

    These two fields are products of the dictionary with the inverse covariance of a response. The
    factorisation stored in `state` is reused if the relevances are unchanged.
    """
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

    Columns that are zero get relevance zero, but a zero column of a group has the relevance of its
    group, which is zero if all its columns are.
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
    """Return `values` with entries that are not positive replaced by one.

    Used as divisors of zero columns, they then give zero instead of NaN.
    """
    xp = namespace(values)
    return xp.where(values > 0, values, xp.ones_like(values))


def complementarity(
    relevance: Array, alignment: Array, pressure: Array, groups: Groups | None = None
) -> Array:
    """Return the distance of relevances to the optimality (KKT) conditions, a dimensionless number.

    The relevance of a column is the prior variance of its coefficients, and the energy is the sum
    of a data term and a log-volume, which does not depend on the responses. Let w be the relevance
    of a column, Q its alignment (minus the derivative of the data term) and z its pressure (the
    derivative of the log-volume). The conditions are Q = z if w > 0, and Q ≤ z if w = 0. The
    distance is the largest of w|Q − z| and (Q − z)/z over all columns, and zero exactly if the
    conditions hold. For a group of columns, Q and z are sums over the group.
    """
    xp = namespace(relevance)
    if groups is not None:
        alignment, pressure = groups.share(alignment), groups.share(pressure)
    slope = alignment - pressure
    slack = xp.max(relevance * xp.abs(slope), axis=-1)
    return xp.maximum(slack, xp.max(slope / positive(pressure), axis=-1))
