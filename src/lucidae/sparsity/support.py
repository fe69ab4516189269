"""Test of significance of each column, by the likelihood that it adds.

At the optimum about half of the columns that are pure noise have a small positive relevance.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import scipy.optimize
import scipy.special

from lucidae.arrays import Array, adjoint, like, namespace, to_numpy
from lucidae.sparsity.dictionary import Dictionary, column_squares, dense_columns
from lucidae.sparsity.objectives import Energy, GroupCovariance
from lucidae.sparsity.prior import Groups, group_grams
from lucidae.sparsity.state import State, leave_one_out, positive

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


def significance_threshold(significance: float, n_columns: int) -> float:
    """Return the quantile of χ²₁ at 1 − significance/count that the evidence must exceed."""
    return float(scipy.special.chdtri(1, significance / n_columns))


def merged_relevance(relevance: Array, curvature: Array, dictionaries: Sequence[Dictionary]) -> Any:
    """Return the relevances with those of proportional columns added to the first one in use.

    Such columns act as one. Tested each beside the others, none of them would be significant.
    `curvature` are the z of the columns, averaged over all responses.
    """
    w, z = to_numpy(relevance).copy(), to_numpy(curvature)
    norms: Any = sum(to_numpy(column_squares(Phi)) for Phi in dictionaries)
    level = z / np.where(norms > 0, norms, 1.0)  # equal for proportional columns
    order = np.argsort(level)
    places = np.searchsorted(level[order], [level * (1.0 - NEARLY), level * (1.0 + NEARLY)])
    done = norms <= 0
    for column in np.flatnonzero((w * z > IN_USE) & (places[1] - places[0] > 1)):
        near = np.sort(order[places[0, column] : places[1, column]])
        near = near[~done[near]]
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


def significant_columns(
    state: State, n_responses: int, significance: float, objective: Energy, parts: int = 1
) -> Any:
    """Return a Boolean mask of the statistically significant columns; groups are tested together.

    `parts` is 2 for complex data.
    """
    # Twice the log-likelihood ratio of one parameter is χ²₁ under the null hypothesis (Wilks); the
    # level α/κ per column bounds the probability of any spurious column by α (Bonferroni).
    groups = objective.groups
    if groups is None:
        threshold = significance_threshold(significance, state.dictionary.shape[-1])
        merged = merged_relevance(state.relevance, state.curvature, [state.dictionary])
        state = state._replace(relevance=like(merged, state.relevance))
        return (merged > 0) & (to_numpy(evidence_ratios(state, n_responses)) > threshold)
    thresholds: Any = significance_threshold(significance, groups.count)
    if isinstance(objective, GroupCovariance):
        found = {
            size: covariance_threshold(significance, groups.count, size, parts)
            for size in np.unique(groups.sizes).tolist()
        }
        thresholds = np.array([found[size] for size in groups.sizes.tolist()])
    return groups.expand(group_evidence(state, groups, n_responses) > thresholds)


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
    part = state.take(index)
    roots = np.sqrt(part.relevance)
    whitened, loading = part.whitened * roots, adjoint(part.loading) * roots
    for numbers, members in groups.restricted(index).by_size():
        left = np.eye(members.shape[1]) - group_grams(whitened, members)
        evidence[active[numbers]] = removal_costs(left, group_grams(loading, members))
    return n_responses * evidence


def removal_costs(left: Any, moment: Any) -> Any:
    """Return the increase of the energy per response when each of several groups is removed.

    It is log|M| + tr(M⁻¹C) for the posterior covariance M of the group's latents and the mean C of
    xxᵀ over their posterior means x, and infinite if M is not positive definite. With one relevance
    M = I − wG and C = wBBᵀ (`group_evidence`).
    """
    # Σ₋g = Σ − wΦ_gΦ_gᵀ. The determinant lemma gives |Σ₋g| = |Σ||I − wG|, Woodbury's identity
    # Σ₋g⁻¹ = Σ⁻¹ + wΣ⁻¹Φ_g(I − wG)⁻¹Φ_gᵀΣ⁻¹.
    if left.shape[1] == 2 and not np.iscomplexobj(left):  # eigenvalues would take longer
        (a, b, c), (p, q, r) = (each.reshape(-1, 4)[:, [0, 1, 3]].T for each in (left, moment))
        volume = a * c - b * b
        definite = (a > 0) & (volume > 0)
        volume = np.where(definite, volume, 1.0)
        return np.where(definite, np.log(volume) + (c * p - 2.0 * b * q + a * r) / volume, np.inf)
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
