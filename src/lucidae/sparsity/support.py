"""Which columns are significant: a test of how much each one adds to the likelihood.

At the optimum about half of the columns of pure noise have a small positive relevance, so a
positive relevance does not make a column part of the support.
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

    They are the curvature zⱼ and the alignment Qⱼ with column j left out of the covariance Σ. Σ₋ⱼ =
    Σ − wⱼφⱼφⱼᵀ, and by Sherman–Morrison φⱼᵀΣ₋ⱼ⁻¹ = φⱼᵀΣ⁻¹/(1 − wⱼzⱼ). So sⱼ = zⱼ/(1 − wⱼzⱼ) and qⱼ²
    = Qⱼ/(1 − wⱼzⱼ)²; 1 − wⱼzⱼ is the posterior variance of the latent, which rounding must not take
    to zero.
    """
    xp = namespace(state.relevance)
    variance = 1.0 - state.relevance * state.curvature
    variance = xp.maximum(variance, xp.full_like(variance, machine_epsilon(variance)))
    return state.curvature / variance, state.alignment / variance**2


def evidence_ratios(state: State, n_responses: int) -> Array:
    """Return twice the log-likelihood that each column alone gains: n(t − 1 − log t) with t = q²/s.

    It is zero for columns with t ≤ 1, whose best relevance is zero.
    """
    xp = namespace(state.relevance)
    sparsity, quality = leave_one_out(state)
    ratio = quality / positive(sparsity)
    ratio = xp.maximum(ratio, xp.ones_like(ratio))
    return n_responses * (ratio - 1.0 - xp.log(ratio))


def significance_threshold(significance: float, n_columns: int) -> float:
    """Return the quantile of χ²₁ at 1 − α/κ for the significance α and κ columns (or groups)."""
    return float(scipy.stats.chi2.isf(significance / n_columns, 1))


def significant_columns(
    state: State, n_responses: int, significance: float, objective: Energy
) -> Any:
    """Return a Boolean mask of the columns whose evidence exceeds `significance_threshold`.

    Grouped columns are tested together, one relevance at a time.
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
    """Return twice the log-likelihood that is lost when each group is taken out of Σ.

    With G = Φ_gᵀΣ⁻¹Φ_g and B = Φ_gᵀΣ⁻¹X/√n, taking out w_g raises the energy per response by
    log|I − wG| + w tr(Bᵀ(I − wG)⁻¹B).
    """
    state = evaluate_from(state, state.relevance)
    whitened, loading = to_numpy(state.whitened), to_numpy(state.loading)
    relevance = to_numpy(state.relevance)
    gains = np.zeros(groups.count)
    for group in np.flatnonzero(groups.total(relevance)):
        index = groups.members[group][groups.present[group] > 0]
        weight = float(relevance[index[0]])
        metric = whitened[:, index].T @ whitened[:, index]
        gains[group] = _removal_cost(np.eye(index.size) - weight * metric, loading[index], weight)
    return n_responses * gains


def _removal_cost(left: Any, loading: Any, weight: float) -> float:
    """Return log|M| + w tr(BᵀM⁻¹B); M is `left`, B is `loading`; infinite for indefinite M."""
    # Σ₋g = Σ − wΦ_gΦ_gᵀ. The determinant lemma gives |Σ₋g| = |Σ||I − wG|, Woodbury's identity
    # Σ₋g⁻¹ = Σ⁻¹ + wΣ⁻¹Φ_g(I − wG)⁻¹Φ_gᵀΣ⁻¹; both are read off the eigenvalues of M.
    values, vectors = np.linalg.eigh(left)
    if values[0] <= 0:
        return float("inf")
    rotated = vectors.T @ loading
    return float(np.log(values).sum() + weight * ((rotated**2).sum(axis=1) / values).sum())
