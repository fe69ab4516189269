"""The full energy with a covariance matrix Γ_g of its own for every group of columns.

Results do not depend on the axes inside a group, so that solvers take an orthonormal basis of each.
With Γ_g = V diag(w) Vᵀ the columns Φ_gV have independent coefficients with variances w: in these
principal axes the problem is one without groups, and every formula for relevances holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np

from lucidae.arrays import (
    Array,
    adjoint,
    as_complex,
    device,
    inverse_lower,
    is_complex,
    like,
    matched,
    multiply_lower,
    namespace,
    put,
    squared_norm,
    to_numpy,
    zeros_like_shape,
)
from lucidae.sparsity.group_blocks import (
    Blocks,
    Matrices,
    columns_in_order,
    group_blocks,
    group_grams,
    in_order,
)
from lucidae.sparsity.group_moves import (
    NEGLIGIBLE,
    entry_gains,
    full_moves,
    inverse_root,
    largest_ratios,
    square_root,
)
from lucidae.sparsity.group_screening import GroupProducts
from lucidae.sparsity.groups import Groups
from lucidae.sparsity.objectives import Energy, FullCovariance, make_objective
from lucidae.sparsity.penalties import Penalty
from lucidae.sparsity.problem import Problem
from lucidae.sparsity.state import State, evaluate, evaluate_from, factorise
from lucidae.validation import check_choice


@dataclass(frozen=True, slots=True, eq=False)
class Axes:
    """Principal axes (eigenvectors of the prior covariance) of some groups."""

    # (a, m): the columns of each of these groups, padded to the size m of the largest group
    members: Any
    present: Any  # (a, m): 1 for a member, 0 for padding
    vectors: Array  # (a, m, m): the axes of each group, as columns; zero where there is padding

    def _turned(self, values: Array, vectors: Array) -> Array:
        """Return `values` with the rows of each group multiplied by its matrix in `vectors`."""
        if not self.members.shape[0]:
            return values
        xp = namespace(values)
        values = as_complex(values) if is_complex(vectors) else values
        turns = like(vectors, values)
        index = xp.asarray(self.members.ravel(), device=device(values))
        rows = xp.reshape(xp.take(values, index, axis=0), (*self.members.shape, values.shape[1]))
        turned = xp.reshape(turns @ rows, (-1, values.shape[1]))
        used = np.flatnonzero(self.present.ravel() > 0)
        order = used[np.argsort(self.members.ravel()[used])]
        part = xp.take(turned, xp.asarray(order, device=device(values)), axis=0)
        return put(values, self.members.ravel()[order], part)

    def columns(self, dictionary: Array) -> Array:
        """Return the dictionary with Φ_gV in place of the columns Φ_g of each group with axes V."""
        xp = namespace(self.vectors)
        return self._turned(dictionary.mT, xp.matrix_transpose(self.vectors)).mT

    def columns_at(self, dictionary: Array, index: Any) -> Array:
        """Return the columns with the indices `index` of what `columns` returns."""
        involved = self.closure(index)
        xp, place = namespace(dictionary), device(dictionary)
        part = xp.take(dictionary, xp.asarray(involved, device=place), axis=1)
        turned = self._among(involved).columns(part)
        chosen = xp.asarray(np.searchsorted(involved, index), device=place)
        return xp.take(turned, chosen, axis=1)

    def coefficients(self, latent: Array) -> Array:
        """Return coefficients of the given columns from those along the principal axes."""
        return self._turned(latent, self.vectors)

    def coefficients_from(self, latent: Array, index: Any) -> tuple[Any, Array]:
        """Return the columns whose coefficients may differ from zero, and these coefficients."""
        involved = self.closure(index)
        nothing = zeros_like_shape((involved.size, latent.shape[1]), latent)
        whole = put(nothing, np.searchsorted(involved, index), latent) if index.size else nothing
        return involved, self._among(involved).coefficients(whole)

    def closure(self, columns: Any) -> Any:
        """Return the given columns and all columns of the groups that they belong to, ascending."""
        touched = self._touched(columns)
        others = self.members[touched][self.present[touched] > 0]
        return np.union1d(columns, others)

    def _touched(self, columns: Any) -> Any:
        """Return, for each group with axes, whether some of `columns` belong to it."""
        return (np.isin(self.members, columns) & (self.present > 0)).any(axis=1)

    def _among(self, columns: Any) -> Axes:
        """Return the axes of the groups of some columns, numbered by their places among these."""
        touched = self._touched(columns)
        # Padding may belong to a column that is not among them; its axes are zero.
        places = np.minimum(np.searchsorted(columns, self.members[touched]), len(columns) - 1)
        index = np.flatnonzero(touched)
        vectors, xp = self.vectors, namespace(self.vectors)
        chosen = xp.take(vectors, xp.asarray(index, device=device(vectors)), axis=0)
        return Axes(places, self.present[touched], chosen)

    def covariances(self, relevance: Array, groups: Groups) -> Array:
        """Return the prior covariance of each group, of shape (g, m, m), padded with zeros."""
        variances = to_numpy(groups.gather(relevance))
        found = variances[:, :, None] * np.eye(variances.shape[1])
        numbers = groups.labels[self.members[:, 0]]
        vectors = to_numpy(self.vectors)
        found = found.astype(np.result_type(found, vectors))
        found[numbers] = (vectors * variances[numbers][:, None, :]) @ adjoint(vectors)
        return matched(found, relevance)

    def covariance_roots(self, deviations: Array, groups: Groups) -> Matrices:
        """Return square roots A of the prior covariances AAᵀ of groups, of shape (g, m, m).

        If columns are nearly dependent, the entries of a covariance cancel; its root keeps their
        digits.
        """
        spread = to_numpy(groups.gather(deviations))
        found = spread[:, :, None] * np.eye(spread.shape[1])
        vectors = to_numpy(self.vectors)
        found = found.astype(np.result_type(found, vectors))
        numbers = groups.labels[self.members[:, 0]]
        found[numbers] = vectors * spread[numbers][:, None, :]
        return np.asarray(found)


def principal_axes(covariances: Matrices, groups: Groups) -> tuple[Axes, Matrices]:
    """Return the principal axes of the covariances of groups, and the variances along them."""
    active = np.flatnonzero(covariances.any(axis=(1, 2)))
    members, present = groups.members[active], groups.present[active]
    # Padding gets the eigenvalue −1, so that its axes are not mixed with those of variance zero.
    marked = covariances[active] - (1.0 - present)[:, :, None] * np.eye(members.shape[1])
    values, vectors = np.linalg.eigh(marked)
    values, vectors = values[:, ::-1], vectors[:, :, ::-1]
    vectors = vectors * present[:, :, None] * present[:, None, :]
    values = np.where(values > NEGLIGIBLE * values[:, :1], values, 0.0)
    relevance = np.zeros(groups.labels.size)
    relevance[members[present > 0]] = values[present > 0]
    return Axes(members, present, vectors), relevance


DROPPED = 1e-10
"""Singular values of a group's unit columns below this share of the largest count as zero."""


INDEPENDENT = 1e-4
"""Smallest relative eigenvalue of a Gram matrix from which singular values are accurate enough."""


class GroupBasis(NamedTuple):
    """An orthonormal basis Φ_gB of the span of the m columns Φ_g of each group."""

    groups: Groups  # the groups of columns
    # (g, m, m): the matrices B of the g groups and their pseudo-inverses, padded with zeros
    into: Matrices
    back: Matrices

    def within(self, covariances: Any) -> Matrices:
        """Return the covariances of the coefficients that belong to the orthonormal bases."""
        given = _as_covariances(covariances, self.groups)
        return np.asarray(self.back @ given @ adjoint(self.back))

    def outside(self, covariances: Matrices) -> Matrices:
        """Return the covariances of the coefficients of the given columns; undoes `within`."""
        return np.asarray(self.into @ covariances @ adjoint(self.into))

    def given(self, state: PrincipalState) -> PrincipalState:
        """Return a state with orthonormal columns as a state for the given columns."""
        axes, groups = state.axes, self.groups
        turns = np.zeros(self.into.shape, np.result_type(self.into, to_numpy(axes.vectors)))
        turns += np.eye(self.into.shape[1])
        turns[groups.labels[axes.members[:, 0]]] = to_numpy(axes.vectors)
        whole = Axes(groups.members, groups.present, self.into @ turns)
        return PrincipalState.at(State(*state), whole, groups)


def orthonormal(problem: Problem, groups: Groups) -> tuple[Problem, GroupBasis]:
    """Return the problem with orthonormal columns in every group, and the bases of the groups.

    Nearly dependent columns would enlarge rounding errors. Directions whose singular value, for
    columns of unit norm, is below `DROPPED` become zero. With fewer columns than rows the problem
    is reduced to their span.
    """
    columns = to_numpy(problem.dictionary)
    count, size = groups.members.shape
    into = np.zeros((count, size, size), columns.dtype)
    back, found = np.zeros_like(into), np.zeros(columns.shape, columns.dtype)
    used = np.zeros(columns.shape[1], dtype=bool)
    for numbers, members in groups.by_size():
        basis, values, axes, norms = _singular_vectors(columns, members)
        kept = values > DROPPED * values[:, :1]
        inverse = np.where(kept, 1.0 / np.where(kept, values, 1.0), 0.0)
        rank, width = np.arange(values.shape[1]), np.arange(members.shape[1])
        into[numbers[:, None, None], width[:, None], rank] = (
            adjoint(axes) * inverse[:, None, :] / norms[:, :, None]
        )
        back[numbers[:, None, None], rank[:, None], width] = (
            (values * kept)[:, :, None] * axes * norms[:, None, :]
        )
        basis = basis if kept.all() else basis * kept
        if basis.size == found.size and in_order(members.ravel()):
            found = basis.reshape(found.shape)  # without a copy
        else:
            found[:, members[:, rank]] = basis
        used[members[:, rank]] = kept
    turned = problem._replace(dictionary=matched(found, problem.dictionary))
    return _in_span(turned, np.flatnonzero(used)), GroupBasis(groups, into, back)


def _in_span(problem: Problem, index: Matrices) -> Problem:
    """Return the problem in the span of columns `index`; a constant would hide gains."""
    if not 0 < index.size < problem.rows:
        return problem
    small = problem.restricted(index)
    wide = zeros_like_shape((index.size, problem.columns), small.dictionary)
    xp = namespace(wide)
    return small._replace(dictionary=put(wide.mT, index, xp.matrix_transpose(small.dictionary)).mT)


def _singular_vectors(
    columns: Matrices, members: Matrices
) -> tuple[Matrices, Matrices, Matrices, Matrices]:
    """Return singular value decompositions of groups of unit columns, and the norms of the columns.

    They follow from Gram matrices where these are accurate enough.
    """
    gram = group_grams(columns, members)
    norms = np.sqrt(np.diagonal(gram, axis1=1, axis2=2).real)
    norms = np.where(norms > 0, norms, 1.0)
    size = members.shape[1]
    block = columns_in_order(columns, members.ravel()).reshape(len(columns), -1, size)
    if len(columns) < size:
        poor = np.ones(len(members), dtype=bool)
        basis = np.zeros((len(columns), len(members), len(columns)), columns.dtype)
        values = np.zeros((len(members), len(columns)))
        axes = np.zeros((len(members), len(columns), size), columns.dtype)
    else:
        powers, turns = _axes_of_unit_columns(gram / (norms[:, :, None] * norms[:, None, :]))
        poor = ~(powers[:, 0] > INDEPENDENT * powers[:, -1])
        values = np.sqrt(np.where(poor[:, None], 1.0, powers))[:, ::-1] + 0.0
        turns = turns[:, :, ::-1]
        basis, axes = np.empty_like(block), adjoint(turns) + 0.0
        turns = turns / (norms[:, :, None] * values[:, None, :])
        # Entry by entry for all groups at once, which is faster than one product for each group.
        for place in range(size):
            np.multiply(block[:, :, 0], turns[:, 0, place], out=basis[:, :, place])
            for other in range(1, size):
                basis[:, :, place] += block[:, :, other] * turns[:, other, place]
    if poor.any():
        scaled = np.moveaxis(block[:, poor] / norms[poor], 0, 1)
        left, values[poor], axes[poor] = np.linalg.svd(scaled, full_matrices=False)
        basis[:, poor] = np.moveaxis(left, 0, 1)
    return basis, values, axes, norms


def _axes_of_unit_columns(grams: Matrices) -> tuple[Matrices, Matrices]:
    """Return the eigenvalues, ascending, and eigenvectors of Gram matrices of unit columns."""
    unit = grams.shape[1] == 2 and bool((grams[:, [0, 1], [0, 1]] > 0.5).all())
    if not unit or np.iscomplexobj(grams):
        values, vectors = np.linalg.eigh(grams)
        return values, vectors
    # With their correlation c, the axes (1, −1) and (1, 1) have the eigenvalues 1 − c and 1 + c.
    correlation = grams[:, 0, 1]
    size, sign = np.abs(correlation), np.where(correlation < 0.0, -1.0, 1.0)
    vectors = np.full(grams.shape, 0.5**0.5)
    vectors[:, 1, 0], vectors[:, 1, 1] = -sign * 0.5**0.5, sign * 0.5**0.5
    return np.stack([1.0 - size, 1.0 + size], axis=1), vectors


class GroupRanking(NamedTuple):
    """Gains of the best covariances of all groups, and their distance to optimality."""

    gains: Matrices  # (g,): decrease of the energy per response if one group moves alone
    violation: float  # distance to the optimality (KKT) conditions


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

    @cached_property
    def ranking(self) -> GroupRanking:
        """The gains of all groups and the distance to optimality, see `rank_covariances`."""
        whole = evaluate_from(self, self.relevance)
        numbers = self.groups.labels[self.axes.members[:, 0]]
        variances = to_numpy(self.groups.gather(self.relevance))[numbers]
        blocks = variances[:, :, None] * np.eye(variances.shape[1])
        return rank_covariances(group_blocks(whole, self.groups), self.groups, numbers, blocks)


class CovarianceState(State):
    """A state at covariances of groups with the columns as given; fields per column are not stored.

    Columns along the principal axes of new covariances would copy the whole dictionary.
    """

    groups: Groups  # the groups of columns
    numbers: Matrices  # (a,): the groups whose covariance is not zero, ascending
    # (a, m, m): their covariances, padded with zeros to the size m of the largest group
    blocks: Matrices
    # products by which all groups are evaluated from the active ones, if this serves
    products: GroupProducts | None

    @property
    def covariances(self) -> Array:
        """The prior covariance of each of g groups, of shape (g, m, m), padded with zeros."""
        found = np.zeros((self.groups.count, *self.blocks.shape[1:]), dtype=self.blocks.dtype)
        found[self.numbers] = self.blocks
        return matched(found, self.relevance)

    @cached_property
    def ranking(self) -> GroupRanking:
        """The gains of all groups and the distance to optimality, see `rank_covariances`."""
        return rank_covariances(self.matrices(), self.groups, self.numbers, self.blocks)

    def matrices(self) -> Iterable[Blocks]:
        """Return the metrics and explained moments of all groups, for each size of groups."""
        members, present = self.groups.members[self.numbers], self.groups.present[self.numbers]
        used = np.flatnonzero(present.ravel() > 0)
        variance = float(np.trace(self.blocks, axis1=1, axis2=2).real.sum())
        products = self.products
        if products is None or not products.serve(self.problem, used.size, variance):
            return group_blocks(self, self.groups)
        roots = np.zeros((*members.shape, *members.shape), dtype=self.blocks.dtype)
        every = np.arange(len(members))
        roots[every, :, every, :] = square_root(self.blocks)
        used = used[np.argsort(members.ravel()[used])]
        flat = roots.reshape(members.size, members.size)[used]
        return products.blocks(self.problem, members.ravel()[used], flat)

    def exact(self) -> CovarianceState:
        """Return the same state without `products`."""
        state = CovarianceState(*self)
        state.groups, state.numbers, state.blocks = self.groups, self.numbers, self.blocks
        state.products = None
        return state

    def take(self, index: Any) -> State:
        """Return the state restricted to the columns `index`; others must have variance zero."""
        xp = namespace(self.relevance)
        chosen = xp.asarray(index, device=device(self.relevance))
        columns = xp.take(self.dictionary, chosen, axis=1)
        whitened = multiply_lower(self.inverse, columns)
        return State(*self)._replace(
            dictionary=columns,
            relevance=xp.take(self.relevance, chosen, axis=0),
            whitened=whitened,
            loading=adjoint(whitened) @ self.whitened_responses,
        )

    def in_principal_axes(self) -> PrincipalState:
        """Return the same state with the columns along the principal axes of the covariances."""
        axes, relevance = principal_axes(to_numpy(self.covariances), self.groups)
        turned = self.problem._replace(dictionary=axes.columns(self.dictionary))
        weights = like(relevance, self.noise)
        state = evaluate(turned, weights, factor=self.factor, columns=True)
        return PrincipalState.at(state, axes, self.groups)


def evaluate_covariances(
    problem: Problem,
    groups: Groups,
    numbers: Matrices,
    blocks: Matrices,
    products: GroupProducts | None = None,
) -> CovarianceState:
    """Return the state at covariances `blocks` (a, m, m) of groups `numbers`, others zero."""
    used = blocks.any(axis=(1, 2))
    numbers, blocks = (numbers, blocks) if used.all() else (numbers[used], blocks[used])
    members, present = groups.members[numbers], groups.present[numbers]
    xp, place = namespace(problem.dictionary), device(problem.dictionary)
    # Σ = Σ_g Φ_gTTᵀΦ_gᵀ + γI, where the columns of T are the principal axes of the covariance of g.
    roots = matched(square_root(blocks) * present[:, :, None], problem.dictionary)
    roots = as_complex(roots) if is_complex(problem.dictionary) else roots
    columns = xp.take(problem.dictionary, xp.asarray(members.ravel(), device=place), axis=1)
    columns = xp.permute_dims(xp.reshape(columns, (problem.rows, *members.shape)), (1, 0, 2))
    turned = xp.permute_dims(columns @ roots, (1, 0, 2))
    scaled = xp.reshape(turned, (problem.rows, members.size))
    ones = matched(np.ones(scaled.shape[1]), problem.noise)
    lower, log_determinant = factorise(problem._replace(dictionary=scaled), ones)
    inverse = inverse_lower(lower)
    responses = inverse @ problem.responses
    variances = np.zeros(groups.labels.size)
    variances[members[present > 0]] = np.diagonal(blocks, axis1=1, axis2=2).real[present > 0]
    nothing, empty = (zeros_like_shape((0,) * axes, problem.noise) for axes in (1, 2))
    state = CovarianceState(
        *problem, like(variances, problem.noise), nothing, nothing, squared_norm(responses),
        log_determinant, inverse, responses, empty, empty,
    )  # fmt: skip
    state.groups, state.numbers, state.blocks = groups, numbers, blocks
    state.products = products
    return state


def rank_covariances(
    matrices: Iterable[Blocks], groups: Groups, numbers: Matrices, blocks: Matrices
) -> GroupRanking:
    """Return the gains of the best covariances of all groups, and the distance to optimality.

    A covariance Γ is optimal if Q − S is zero on its range and negative semi-definite. The distance
    is the largest eigenvalue of |Γ^½(Q − S)Γ^½| and of S^{-½}(Q − S)S^{-½} over all groups.
    """
    gains, worst = np.zeros(groups.count), 0.0
    where = np.full(groups.count, -1)
    where[numbers] = np.arange(len(numbers))
    for these, members, metric, explained in matrices:
        place, size = where[these], members.shape[1]
        found, largest = entry_gains(metric, explained)
        active = np.flatnonzero(place >= 0)
        inner = 0.0
        if active.size:
            covariances = blocks[place[active], :size, :size]
            metric, explained = metric[active], explained[active]
            _, found[active] = full_moves(covariances, metric, explained)
            largest[active] = largest_ratios(metric, explained)
            roots = square_root(covariances)
            slack = adjoint(roots) @ (explained - metric) @ roots
            inner = float(np.abs(np.linalg.eigvalsh(slack)).max())
        gains[these] = found
        worst = max(worst, float(largest.max(initial=1.0)) - 1.0, inner)
    return GroupRanking(gains, worst)


@dataclass(frozen=True, slots=True)
class GroupCovariance(FullCovariance):
    """The full energy tr(XXᵀΣ⁻¹) + n log|Σ| with Σ = Σ_g Φ_gΓ_gΦ_gᵀ + γI."""

    rules: ClassVar[tuple[str, ...]] = ("mm",)

    @property
    def marginal(self) -> None:  # type: ignore[override]
        """None: Newton steps in the relevances do not apply to this energy."""
        return None

    def violation(self, state: State) -> Any:
        """Return the distance of the covariances to the optimality (KKT) conditions."""
        assert isinstance(state, PrincipalState | CovarianceState)
        return state.ranking.violation

    def parameters(self, state: State) -> Array:
        """Return the covariances of all groups (g, m, m), from which another fit can start."""
        assert isinstance(state, PrincipalState | CovarianceState)
        return state.covariances

    def update(self, rule: str = "mm") -> Callable[[State], Array]:  # noqa: ARG002
        """Return the MM update, from a state to new covariances of all groups."""
        return majorize_minimize_groups


def objective_of(
    posterior: Any, penalty: Penalty, groups: Groups | None, group_covariance: Any
) -> Energy:
    """Return the energy that belongs to arguments of `SparseVAE` with these names."""
    kind = check_choice(group_covariance, "group_covariance", ("spherical", "full"))
    objective = make_objective(posterior, penalty, groups)
    if kind == "spherical":
        return objective
    if groups is None or posterior != "full":
        raise ValueError(
            "group_covariance='full' needs groups of columns and posterior='full', but "
            f"groups={'None' if groups is None else 'labels'} and posterior={posterior!r} were "
            "given."
        )
    return GroupCovariance(groups)


def majorize_minimize_groups(state: State) -> Any:
    """Return the covariances of groups after one step of majorise–minimise.

    Γ becomes Z^{-½}(Z^½AZ^½)^½Z^{-½}, with Z = Φ_gᵀΣ⁻¹Φ_g and A = U_gU_gᵀ/n for the posterior mean
    U_g: the minimiser of an upper bound.
    """
    # log|Σ| is concave in Γ, with gradient Z, and the data term is the minimum over U of a sum with
    # tr(Γ⁻¹A): tr(ZΓ) + tr(Γ⁻¹A) is minimal where ΓZΓ = A. With RZRᵀ = I and Γ = RᵀBR this is
    # B² = R⁻ᵀAR⁻¹, where R⁻ᵀ = RZ.
    assert isinstance(state, PrincipalState)
    groups, relevance = state.groups, to_numpy(state.relevance)
    whole = evaluate_from(state, state.relevance)
    size = groups.members.shape[1]
    found: Matrices = np.zeros((groups.count, size, size), dtype=to_numpy(whole.loading).dtype)
    for numbers, members, metric, explained in group_blocks(whole, groups):
        variances = relevance[members]
        moment = variances[:, :, None] * explained * variances[:, None, :]
        inverse = inverse_root(metric)
        root = inverse @ metric
        half = square_root(root @ moment @ adjoint(root))
        values = np.linalg.norm(half, axis=1)  # square roots of the eigenvalues
        scaled = adjoint(inverse) @ (half / np.sqrt(np.where(values > 0, values, 1.0))[:, None, :])
        place = np.arange(members.shape[1])
        found[numbers[:, None, None], place[:, None], place] = scaled @ adjoint(scaled)
    return in_given_axes(found, state)


def in_given_axes(covariances: Matrices, state: PrincipalState) -> Matrices:
    """Return the prior covariances of the coefficients of the given columns of each group."""
    axes, found = state.axes, covariances + 0.0
    numbers, vectors = state.groups.labels[axes.members[:, 0]], to_numpy(axes.vectors)
    found[numbers] = vectors @ found[numbers] @ adjoint(vectors)
    return found


def axes_of(state: State) -> Axes | None:
    """Return the principal axes along which a state takes its columns; None for given columns."""
    return state.axes if isinstance(state, PrincipalState) else None


def evaluate_groups(problem: Problem, groups: Groups, covariances: Any) -> PrincipalState:
    """Return the state of a problem at given covariances of its groups, in principal axes."""
    axes, relevance = principal_axes(_as_covariances(covariances, groups), groups)
    turned = problem._replace(dictionary=axes.columns(problem.dictionary))
    state = evaluate(turned, like(relevance, problem.noise), columns=True)
    return PrincipalState.at(state, axes, groups)


def _as_covariances(given: Any, groups: Groups) -> Matrices:
    """Return the covariance of each group, of shape (g, m, m) for g groups of at most m columns."""
    given = to_numpy(given)
    if given.ndim > 1:
        return np.asarray(given)
    return np.asarray(to_numpy(groups.gather(given))[:, :, None] * np.eye(groups.members.shape[1]))
