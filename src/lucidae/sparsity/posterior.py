"""The Gaussian posterior of the coefficients, predictions from it, and its storage.

With S = ΦW^½ on the a active columns and C = (I + SᵀS/γ)⁻¹ the covariance is W^½CW^½ and the mean
W^½CSᵀX/γ. By Woodbury's identity C = I − Sᵀ(SSᵀ + γI)⁻¹S and CSᵀ/γ = Sᵀ(SSᵀ + γI)⁻¹.

At the optimum about half of the columns that are pure noise have a small positive relevance. So
each column is tested by the likelihood that it adds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Self

import numpy as np
import scipy.optimize
import scipy.sparse
import scipy.special

from lucidae.arrays import (
    Array,
    adjoint,
    as_double,
    is_array,
    like,
    machine_epsilon,
    matched,
    namespace,
    squared_moduli,
    to_numpy,
)
from lucidae.sparsity.objectives import (
    Energy,
    GroupCovariance,
    State,
    leave_one_out,
    positive,
    whitened_columns,
)
from lucidae.sparsity.prior import Groups
from lucidae.sparsity.problem import Dictionary, Rows, column_squares, dense_columns, group_grams


def active_columns(dictionary: Dictionary, relevance: Any, axes: Any) -> tuple[Any, Any, Any]:
    """Return the indices (a,) of the active columns, the roots of their relevances, and S (d, a).

    With principal axes of groups, `axes`, the columns are taken along these.
    """
    active = np.flatnonzero(relevance)
    roots = np.sqrt(relevance[active])
    if axes is None:
        return active, roots, dense_columns(dictionary, active) * roots
    involved, turn = axes.latents(active, relevance.size)
    return active, roots, dictionary[:, involved] @ turn * roots


def rough_mean(
    dictionary: Dictionary, responses: Any, relevance: Any, noise: float, axes: Any
) -> tuple[Any, Any]:
    """Return the indices of the columns whose coefficients are not zero, and their posterior mean.

    It is sooner computed than that of `Posterior.fitted`, and as accurate as the solution of
    equations with Σ.
    """
    active, roots, S = active_columns(dictionary, relevance, axes)
    covariance = S @ adjoint(S) + noise * np.eye(len(S))
    found = roots[:, None] * (adjoint(S) @ np.linalg.solve(covariance, responses))
    if axes is None:
        return active, found
    involved, turn = axes.latents(active, relevance.size)
    return involved, turn @ found


@dataclass(frozen=True, eq=False)
class Posterior:
    """Posterior covariance of the coefficients, which is the same for all responses.

    On the active columns it is W^½KᵀKW^½ if these are at most as many as rows (`explicit`), and
    W^½(I − KᵀK)W^½ otherwise.
    """

    active: Any  # (a,): indices of the active columns, those with positive relevance
    roots: Array  # (a,): square roots of their relevances
    factor: Array  # (min(a, n_rows): the matrix K
    explicit: bool  # whether the covariance is W^½ KᵀK W^½; if False, it is W^½ (I − KᵀK) W^½
    n_columns: int  # number of all columns of the dictionary
    axes: Any = None  # principal axes of the covariances of groups of columns

    @classmethod
    def fitted(
        cls, dictionary: Dictionary, responses: Any, relevance: Any, noise: float, axes: Any = None
    ) -> tuple[Self, Any]:
        """Return the posterior for centred and weighted rows, and its mean of shape (κ, n).

        Products SᵀS are not formed, so that no digits are lost if the noise variance is small.
        """
        active, roots, S = active_columns(dictionary, relevance, axes)
        left, values, right = np.linalg.svd(S, full_matrices=False)
        # C = P diag(γ/(s² + γ)) Pᴴ if P has all directions of the latents, else I − P diag(s²/(s² +
        # γ)) Pᴴ.
        explicit = len(active) <= len(S)
        part = noise if explicit else values**2
        half = np.sqrt(part / (values**2 + noise))[:, None] * right
        shrunk = values / (values**2 + noise)
        found = roots[:, None] * (adjoint(right) @ (shrunk[:, None] * (adjoint(left) @ responses)))
        index = active
        if axes is not None:
            index, turn = axes.latents(active, relevance.size)
            found = turn @ found
        mean = np.zeros((relevance.size, responses.shape[1]), found.dtype)
        mean[index] = found
        return cls(active, roots, half, explicit, relevance.size, axes), mean

    def prior_roots(self, groups: Any) -> Any:
        """Return square roots A of the prior covariances AAᵀ of groups with `axes`."""
        deviations = np.zeros(self.n_columns)
        deviations[self.active] = to_numpy(self.roots)
        return self.axes.covariance_roots(deviations, groups)

    @property
    def involved(self) -> Any:
        """Indices of the columns on which predictions depend: active ones and their groups."""
        return self.latents[0]

    @cached_property
    def latents(self) -> tuple[Any, Any]:
        """The columns that are involved, and the matrix that turns latents into coefficients."""
        if self.axes is None:
            return self.active, scipy.sparse.eye_array(self.active.size)
        return self.axes.latents(self.active, self.n_columns)  # type: ignore[no-any-return]

    def variance(self, columns: Any) -> Any:
        """Return xᵀCx, the variance of the predicted mean, for rows x of the columns `involved`."""
        scaled = columns @ self.latents[1] * self.roots
        inner = squared_moduli(scaled @ adjoint(self.factor)).sum(axis=1)
        if self.explicit:
            return inner
        return np.maximum(squared_moduli(scaled).sum(axis=1) - inner, 0.0)

    def covariance(self, indices: Any) -> Any:
        """Return the posterior covariance of the coefficients of the columns `indices`."""
        # Coefficients are HW^½v for latents v with covariance KᵀK or I − KᵀK; H are the rows of the
        # identity, or of the axes of groups.
        index, half = self.latents
        turn = np.zeros((len(indices), self.active.size), half.dtype)
        known = np.isin(indices, index)
        places = np.searchsorted(index, np.asarray(indices)[known])
        turn[known] = half.tocsr()[places].toarray() * self.roots
        inner = turn @ adjoint(self.factor)
        inner = inner @ adjoint(inner)
        return inner if self.explicit else turn @ adjoint(turn) - inner


@dataclass(frozen=True, slots=True, eq=False)
class CorrelatedPosterior:
    """Posterior of the coefficients if those of different responses are correlated.

    Let S = ΦW^½ = QD^½Pᵀ on the active columns and B = VΛVᵀ the covariance over the n responses. In
    the basis V the coefficients of response t have the covariance W^½(λₜI − P diag(λₜ²D/(λₜD +
    γ))Pᵀ)W^½.
    """

    active: Any  # (a,): indices of the active columns, those with positive relevance
    roots: Any  # (a,): square roots of their relevances
    # (r, a): the matrix Pᵀ and the diagonal of D, where r is the smaller of a and the number of
    # rows
    directions: Any
    powers: Any
    values: Any  # (n,): eigenvalues λ and eigenvectors V of B
    vectors: Any
    noise: float  # the noise variance γ
    n_columns: int  # number of all columns of the dictionary

    @classmethod
    def fitted(
        cls,
        dictionary: Any,
        responses: Any,
        relevance: Any,
        noise: float,
        values: Any,
        vectors: Any,
    ) -> tuple[CorrelatedPosterior, Any]:
        """Return the posterior, and its mean of shape (n_columns, n_responses)."""
        active, roots, scaled = active_columns(dictionary, relevance, None)
        basis, singular, directions = np.linalg.svd(scaled, full_matrices=False)
        shrunk = np.outer(singular, values) / (np.outer(singular**2, values) + noise)
        latent = (shrunk * (basis.T @ responses @ vectors)) @ vectors.T
        mean = np.zeros((relevance.size, responses.shape[1]))
        mean[active] = roots[:, None] * (directions.T @ latent)
        powers = singular**2
        return cls(active, roots, directions, powers, values, vectors, noise, relevance.size), mean

    @property
    def of_each(self) -> list[Posterior]:
        """The posteriors of the coefficients of each response in the basis V."""
        shrunk = [value * self.powers / (value * self.powers + self.noise) for value in self.values]
        return [
            Posterior(self.active, self.roots * value**0.5, share[:, None] ** 0.5 * self.directions,
                      False, self.n_columns)
            for value, share in zip(self.values, shrunk, strict=True)
        ]  # fmt: skip

    @property
    def involved(self) -> Any:
        """Indices of the columns on which predictions depend."""
        return self.active

    def variance(self, columns: Any) -> Any:
        """Return the variance of the predicted means, (n_rows, n_responses), for `columns`."""
        return np.stack([each.variance(columns) for each in self.of_each], -1) @ (self.vectors**2).T

    def covariance(self, indices: Any) -> Any:
        """Return the posterior covariance matrices of the coefficients of the columns `indices`."""
        blocks = np.stack([each.covariance(indices) for each in self.of_each])
        return np.tensordot(self.vectors**2, blocks, 1)


KEPT_DIGITS = 1e-5
"""Largest relative change of a fitted number that matters when it is stored as float32."""


def level_at_center(coef: Any, intercept: Any, center: Any, level: Any) -> Any:
    """Return the prediction cU + b for the mean training row c.

    Rows are predicted as (x − c)U + (cU + b), which loses no digits far from zero. The more
    accurate `level` of the fit is returned if it agrees with the stored, rounded b; it does not if
    a user assigned other values.
    """
    stored = machine_epsilon(intercept if is_array(intercept) else coef)
    plain = coef @ center + to_numpy(intercept)
    if level is None:
        return plain
    terms = np.abs(coef) @ np.abs(center) + np.abs(level)
    return np.where(np.abs(plain - level) <= 4.0 * stored * terms, level, plain)


def determination(targets: Any, predicted: Any, weights: Any) -> float:
    """Return R² of complex predictions, averaged over outputs as `r2_score` does."""
    mean = weights @ targets / weights.sum()
    errors = weights @ np.abs(targets - predicted) ** 2
    spread = weights @ np.abs(targets - mean) ** 2
    varies = spread > 0
    ratios = errors / np.where(varies, spread, 1.0)
    return float(np.where(varies, 1.0 - ratios, errors == 0).mean())


def narrowed(values: Array, ref: Array, name: str, sizes: Array | None = None) -> Array:
    """Return `values` in library, precision and device of `ref`.

    It is an error if they leave its range or if, with the `sizes` of what they stand for, entries
    that matter are too small for it.
    """
    xp = namespace(values)
    magnitudes = xp.abs(values)
    if not bool(xp.all(magnitudes <= namespace(ref).finfo(ref.dtype).max)):
        largest = float(xp.max(magnitudes))
        if as_double(ref).dtype == ref.dtype or not largest < float("inf"):
            raise ValueError(
                f"{name} is not finite, because numbers in the computation leave the range of "
                "float64. Rescale X and y, or give a larger noise_variance."
            )
        raise ValueError(
            f"{name} has an entry of magnitude {largest:.3g}, which is outside the range of "
            f"{ref.dtype}. Rescale X or y, or give X as float64."
        )
    found = matched(values, ref)
    if sizes is None or as_double(ref).dtype == ref.dtype:
        return found
    ones = xp.ones_like(magnitudes)
    lost = xp.abs(like(found, values) - values) / xp.where(values == 0, ones, magnitudes)
    if bool(xp.any((lost > KEPT_DIGITS) & (sizes > KEPT_DIGITS * xp.max(sizes)))):
        smallest = float(xp.min(xp.where(values == 0, xp.inf * ones, magnitudes)))
        raise ValueError(
            f"{name} has entries of magnitude {smallest:.3g}, which are too small for float32. "
            "Rescale X or y, or give X as float64."
        )
    return found


TIED, IN_USE, NEARLY = 1e-12, 0.01, 1e-4
"""Columns are tied if the squared sine of their angle is below the first number. Compared are those
whose latents have a variance of at most 1 − 0.01, with columns of equal z/‖φ‖² up to 1e-4."""


def evidence_ratios(state: State, n_responses: int) -> Array:
    """Return twice the log-likelihood that each column adds to a model of all other columns.

    It is n(t − 1 − log t) with t = q²/s (`leave_one_out`), and zero if t ≤ 1, since the best
    relevance is then zero. Complex responses count twice.
    """
    xp = namespace(state.relevance)
    sparsity, quality = leave_one_out(state)
    ratio = quality / positive(sparsity)
    ratio = xp.maximum(ratio, xp.ones_like(ratio))
    return n_responses * (ratio - 1.0 - xp.log(ratio))


def merged_relevance(relevance: Array, curvature: Array, dictionaries: Sequence[Dictionary]) -> Any:
    """Return the relevances with those of proportional columns added to the first one in use.

    Such columns act as one. Tested each beside the others, none of them would be significant.
    `curvature` are the z of the columns, averaged over all responses.
    """
    w, z = to_numpy(relevance).copy(), to_numpy(curvature)
    norms: Any = sum(to_numpy(column_squares(Phi)) for Phi in dictionaries)
    level = z / np.where(norms > 0, norms, 1.0)  # equal for proportional columns
    done = norms <= 0
    for column in np.flatnonzero(w * z > IN_USE):
        near = np.flatnonzero(~done & (np.abs(level - level[column]) <= NEARLY * level[column]))
        if done[column] or near.size < 2:
            continue
        inner: Any = 0.0
        for Phi in dictionaries:
            one, others = (to_numpy(dense_columns(Phi, np.asarray(i))) for i in ([column], near))
            inner = inner + one[:, 0].conj() @ others
        tied = near[np.abs(inner) ** 2 >= (1.0 - TIED) * norms[column] * norms[near]]
        total = (w[tied] * norms[tied]).sum() / norms[column]
        w[tied] = 0.0
        w[column] = total
        done[tied] = True
    return w


def significant_columns(state: State, rows: Rows, significance: float, objective: Energy) -> Any:
    """Return a Boolean mask of the significant columns; groups are tested together."""
    # Twice the log-likelihood ratio of one parameter is χ²₁ under the null hypothesis (Wilks); the
    # level α/κ per column bounds the probability of any spurious column by α (Bonferroni).
    groups, count = objective.groups, rows.responses.shape[1] * (1 + rows.is_complex)
    blocks = state.dictionary.shape[-1] if groups is None else groups.count
    threshold = scipy.special.chdtri(1, significance / blocks)
    if groups is None:
        merged = merged_relevance(state.relevance, state.curvature, [state.dictionary])
        state = state._replace(relevance=merged)
        return (merged > 0) & (to_numpy(evidence_ratios(state, count)) > threshold)
    if isinstance(objective, GroupCovariance):
        found = {
            size: covariance_threshold(significance, groups.count, size, 1 + rows.is_complex)
            for size in np.unique(groups.sizes).tolist()
        }
        threshold = np.array([found[size] for size in groups.sizes.tolist()])
    return groups.expand(group_evidence(state, groups, count) > threshold)


def group_evidence(state: State, groups: Groups, n_responses: int) -> Any:
    """Return, for each group, twice the log-likelihood that is lost without its columns.

    Per response it is log|I − G| + tr(Bᵀ(I − G)⁻¹B) with G = W^½Φ_gᵀΣ⁻¹Φ_gW^½ and B =
    W^½Φ_gᵀΣ⁻¹X/√n, in the principal axes of groups that have covariances of their own.
    """
    evidence = np.zeros(groups.count)
    active = np.flatnonzero(groups.total(state.relevance))
    index = groups.columns(active)
    if not index.size:
        return evidence
    whitened, loading = whitened_columns(state, index)
    roots = np.sqrt(state.relevance[index])
    whitened, loading = whitened * roots, adjoint(loading) * roots
    for numbers, members in groups.restricted(index).by_size:
        left = np.eye(members.shape[1]) - group_grams(whitened, members)
        evidence[active[numbers]] = removal_costs(left, group_grams(loading, members))
    return n_responses * evidence


def shared_support(
    states: Sequence[State], counts: Sequence[int], significance: float, groups: Groups | None
) -> Any:
    """Return a mask of the significant columns of problems that share their relevances.

    `counts` are the numbers of responses of the problems, complex ones twice. What is lost without
    a block is summed over the problems.
    """
    w, blocks = states[0].relevance, groups
    if blocks is None:
        shares = np.asarray(counts) / sum(counts)
        z = sum(share * state.curvature for share, state in zip(shares, states, strict=True))
        w = merged_relevance(w, z, [state.dictionary for state in states])
        blocks = Groups.of(1, w.size)
    lost = sum(
        group_evidence(state._replace(relevance=w), blocks, count)
        for state, count in zip(states, counts, strict=True)
    )
    return blocks.expand(lost > scipy.special.chdtri(1, significance / blocks.count))


def removal_costs(left: Any, moment: Any) -> Any:
    """Return the increase of the energy per response when each of several groups is removed.

    It is log|M| + tr(M⁻¹C) for the posterior covariance M of the group's latents and the mean C of
    xxᵀ over their posterior means x, and infinite if M is not positive definite. With one relevance
    M = I − wG and C = wBBᵀ (`group_evidence`).
    """
    # Σ₋g = Σ − wΦ_gΦ_gᵀ. The determinant lemma gives |Σ₋g| = |Σ||I − wG|, Woodbury's identity
    # Σ₋g⁻¹ = Σ⁻¹ + wΣ⁻¹Φ_g(I − wG)⁻¹Φ_gᵀΣ⁻¹.
    values, vectors = np.linalg.eigh(left)
    powers = (np.conj(vectors) * (moment @ vectors)).sum(axis=1).real
    definite = values[:, :1] > 0
    values = np.where(definite, values, 1.0)
    return np.where(definite[:, 0], (np.log(values) + powers / values).sum(axis=1), np.inf)


BOUNDARY_WEIGHTS = {
    1: (0.0, 1.0),
    2: (0.1464, 0.3536, 0.3536, 0.1464),
    3: (0.0249, 0.1048, 0.2251, 0.2904, 0.2251, 0.1048, 0.0249),
    4: (0.0024, 0.0150, 0.0525, 0.1240, 0.1951, 0.2221, 0.1951, 0.1240, 0.0525, 0.0150, 0.0024),
}
"""For m columns, the weights of the χ² distributions with 0, 1, …, m(m + 1)/2 degrees of freedom.

They belong to the projection of a normal symmetric matrix on the positive semi-definite ones. For m
= 2 they are (1 − √½)/2 and √2/4; for m = 3 and 4 they were fitted to 10⁶ simulated matrices."""


@lru_cache(maxsize=100)
def covariance_threshold(significance: float, n_groups: int, size: int, parts: int = 1) -> float:
    """Return the evidence that a group with a covariance of its own must exceed.

    Without an effect the best m × m covariance lies at the boundary of the positive semi-definite
    matrices. For many responses twice the log-likelihood is then a mixture of χ² variables with 0
    to m(m + 1)/2 degrees of freedom and the weights `BOUNDARY_WEIGHTS`. For m > 4, and for complex
    data (m² degrees of freedom), the last of them alone is taken, which is conservative. For n
    responses, importance sampling gave these rates of false positives, divided by the level:

    ===  =====  ============  ===========  ===========
    m    n      level 0.05    level 1e-3   level 1e-5
    ===  =====  ============  ===========  ===========
    2    1      0.28          0.17         0.12
    2    5      0.52          0.36         0.29
    2    20     0.71          0.58         0.42
    2    400    0.92          0.86         0.65
    3    1      0.15          0.07         0.04
    3    5      0.38          0.23         0.17
    3    20     0.57          0.45         0.33
    3    400    0.87          0.68         0.60
    4    1      0.07          0.02         0.01
    4    5      0.26          0.13         0.09
    4    20     0.48          0.31         0.13
    4    400    0.82          0.69         0.53
    ===  =====  ============  ===========  ===========
    """
    level = significance / n_groups
    dof = size * (size + 1) // 2 if parts == 1 else size**2
    highest = float(scipy.special.chdtri(dof, level))
    weights = BOUNDARY_WEIGHTS.get(size) if parts == 1 else None
    if weights is None:
        return highest
    degrees = np.arange(1, dof + 1)

    def excess(evidence: float) -> float:
        tails = scipy.special.chdtrc(degrees, evidence)
        return float(np.dot(weights[1:], tails)) - level

    if excess(0.0) <= 0.0:  # the level exceeds the probability of any evidence
        return 0.0
    return float(scipy.optimize.brentq(excess, 0.0, highest + 1.0))
