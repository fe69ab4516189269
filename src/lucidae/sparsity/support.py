"""Test of significance of each column, by the likelihood that it adds.

At the optimum about half of the columns that are pure noise have a small positive relevance (prior
variance of the coefficients). A positive relevance alone therefore does not make a column part of
the support.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.stats

from lucidae.arrays import Array, machine_epsilon, namespace, to_numpy
from lucidae.sparsity.groups import Groups
from lucidae.sparsity.objectives import Energy
from lucidae.sparsity.state import State, evaluate_from, positive


def leave_one_out(state: State) -> tuple[Array, Array]:
    """Return the sparsity sⱼ and the squared quality qⱼ² of each column (Tipping & Faul 2003).

    They are the curvature zⱼ = φⱼᵀΣ⁻¹φⱼ and the alignment Qⱼ = ‖φⱼᵀΣ⁻¹X‖²/n of the column φⱼ with
    relevance (prior variance) wⱼ, for n responses X, after the column is left out of their
    covariance Σ. Then Σ₋ⱼ = Σ − wⱼφⱼφⱼᵀ, and by Sherman–Morrison φⱼᵀΣ₋ⱼ⁻¹ = φⱼᵀΣ⁻¹/(1 − wⱼzⱼ). So
    sⱼ = zⱼ/(1 − wⱼzⱼ) and qⱼ² = Qⱼ/(1 − wⱼzⱼ)². The divisor 1 − wⱼzⱼ is the posterior variance of
    the column's latent, whose prior variance is 1; it is kept above zero in spite of rounding.
    """
    xp = namespace(state.relevance)
    variance = 1.0 - state.relevance * state.curvature
    variance = xp.maximum(variance, xp.full_like(variance, machine_epsilon(variance)))
    return state.curvature / variance, state.alignment / variance**2


def evidence_ratios(state: State, n_responses: int) -> Array:
    """Return twice the log-likelihood that each column adds to a model of all other columns.

    For n responses X it is n(t − 1 − log t) with t = q²/s, where s = φᵀS⁻¹φ is the sparsity and q²
    = ‖φᵀS⁻¹X‖²/n the squared quality of the column φ; S is the covariance of a response without
    this column. It is zero if t ≤ 1, since the best relevance (prior variance) of the column is
    then zero. For complex responses n is twice their number (`Rows.real_responses`).
    """
    xp = namespace(state.relevance)
    sparsity, quality = leave_one_out(state)
    ratio = quality / positive(sparsity)
    ratio = xp.maximum(ratio, xp.ones_like(ratio))
    return n_responses * (ratio - 1.0 - xp.log(ratio))


def significance_threshold(significance: float, n_columns: int) -> float:
    """Return the evidence that a column (or group) must exceed to be significant.

    The evidence is twice the log-likelihood that the column adds. The threshold is the quantile of
    the χ² distribution with one degree of freedom at one minus the significance divided by the
    number of columns (or groups).
    """
    return float(scipy.stats.chi2.isf(significance / n_columns, 1))


def significant_columns(
    state: State, n_responses: int, significance: float, objective: Energy
) -> Any:
    """Return a Boolean mask of the statistically significant columns.

    A column is significant if twice the log-likelihood that it adds exceeds
    `significance_threshold`. The columns of a group are tested together. Each complex response
    counts as two in `n_responses`.
    """
    # Twice the log-likelihood ratio of one parameter is χ²₁ under the null hypothesis (Wilks); the
    # level α/κ per column bounds the probability of any spurious column by α (Bonferroni).
    groups = objective.groups
    if groups is None:
        threshold = significance_threshold(significance, state.dictionary.shape[-1])
        used = to_numpy(state.relevance) > 0
        return used & (to_numpy(evidence_ratios(state, n_responses)) > threshold)
    threshold = significance_threshold(significance, groups.count)
    gains = group_evidence(state, groups, n_responses)
    return groups.expand(gains) > threshold


def group_evidence(state: State, groups: Groups, n_responses: int) -> Any:
    """Return, for each group, twice the log-likelihood that is lost without its columns.

    Let Φ_g be the columns of a group with relevance (prior variance) w, X the n responses with
    covariance Σ, G = Φ_gᵀΣ⁻¹Φ_g and B = Φ_gᵀΣ⁻¹X/√n. Without the group the energy per response,
    minus twice the log-likelihood, is larger by log|I − wG| + w tr(Bᵀ(I − wG)⁻¹B).
    """
    state = evaluate_from(state, state.relevance)
    relevance = to_numpy(state.relevance)
    gains = np.zeros(groups.count)
    for group in np.flatnonzero(groups.total(relevance)):
        index = groups.members[group][groups.present[group] > 0]
        weight = float(relevance[index[0]])
        columns = state.take(index)
        whitened, loading = to_numpy(columns.whitened), to_numpy(columns.loading)
        metric = whitened.conj().T @ whitened
        gains[group] = _removal_cost(np.eye(index.size) - weight * metric, loading, weight)
    return n_responses * gains


def _removal_cost(left: Any, loading: Any, weight: float) -> float:
    """Return the increase of the energy (loss) per response when a group of columns is removed.

    It is log|M| + w tr(BᵀM⁻¹B), where M = I − wG is `left`, B is `loading` and w is `weight` (see
    `group_evidence`), or infinity if M is not positive definite.
    """
    # Σ₋g = Σ − wΦ_gΦ_gᵀ. The determinant lemma gives |Σ₋g| = |Σ||I − wG|, Woodbury's identity
    # Σ₋g⁻¹ = Σ⁻¹ + wΣ⁻¹Φ_g(I − wG)⁻¹Φ_gᵀΣ⁻¹; both are read off the eigenvalues of M.
    values, vectors = np.linalg.eigh(left)
    if values[0] <= 0:
        return float("inf")
    rotated = np.abs(vectors.conj().T @ loading)
    return float(np.log(values).sum() + weight * ((rotated**2).sum(axis=1) / values).sum())
