"""Which columns count: a test of what each one buys."""

from __future__ import annotations

from typing import Any

import numpy as np

from lucidae.arrays import to_numpy
from lucidae.sparsity.groups import Groups
from lucidae.sparsity.objectives import Energy
from lucidae.sparsity.problem import covariance, whiten
from lucidae.sparsity.state import State
from lucidae.sparsity.theory import evidence_ratios, significance_threshold


def significant_columns(
    state: State, n_responses: int, significance: float, objective: Energy
) -> Any:
    """Return a mask of the columns whose evidence exceeds the χ²₁ quantile at 1 − α/κ.

    At the optimum about half of the columns of pure noise keep a small positive relevance, so
    w > 0 is no support. Grouped columns are tested together, one relevance at a time.
    """
    groups = objective.groups
    if groups is None:
        threshold = significance_threshold(significance, state.dictionary.shape[-1])
        used = to_numpy(state.relevance) > 0
        return used & (to_numpy(evidence_ratios(state, n_responses)) > threshold)
    threshold = significance_threshold(significance, groups.count)
    gains = group_evidence(state, groups, n_responses)
    return groups.expand(gains) > threshold


def group_evidence(state: State, groups: Groups, n_responses: int) -> Any:
    """Return twice the log-likelihood lost when each group is taken out of Σ.

    With G = Φ_gᵀΣ⁻¹Φ_g and B = Φ_gᵀΣ⁻¹X/√n, taking out w_g raises the energy per response by
    log|I − wG| + w tr(Bᵀ(I − wG)⁻¹B).
    """
    white = whiten(covariance(state.dictionary, state.relevance, state.noise), state.responses)
    whitened = to_numpy(white.inverse @ state.dictionary)
    loading = whitened.T @ to_numpy(white.responses)
    relevance = to_numpy(state.relevance)
    gains = np.zeros(groups.count)
    for group in np.flatnonzero(groups.total(relevance)):
        index = groups.members[group][groups.present[group] > 0]
        weight = float(relevance[index[0]])
        metric = whitened[:, index].T @ whitened[:, index]
        gains[group] = _removal_cost(np.eye(index.size) - weight * metric, loading[index], weight)
    return n_responses * gains


def _removal_cost(left: Any, loading: Any, weight: float) -> float:
    """Return log|M| + w tr(BᵀM⁻¹B) of M = I − wG, infinite where rounding leaves nothing."""
    values, vectors = np.linalg.eigh(left)
    if values[0] <= 0:
        return float("inf")
    rotated = vectors.T @ loading
    return float(np.log(values).sum() + weight * ((rotated**2).sum(axis=1) / values).sum())
