"""What is known about the optimum: significance, uniqueness, closed forms."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.stats

from lucidae.arrays import Array, machine_epsilon, namespace, svd_thin, to_numpy
from lucidae.sparsity.state import State, positive

BLOCK_COLUMNS = 1024


def leave_one_out(state: State) -> tuple[Array, Array]:
    """Return sⱼ and qⱼ²: curvature and alignment of each column with itself left out of Σ."""
    xp = namespace(state.relevance)
    left = 1.0 - state.relevance * state.curvature
    left = xp.maximum(left, xp.full_like(left, machine_epsilon(left)))
    return state.curvature / left, state.alignment / left**2


def evidence_ratios(state: State, n_responses: int) -> Array:
    """Twice the gain in log-likelihood that each column alone brings: n(t − 1 − log t), t = q²/s.

    Zero for columns with t ≤ 1, whose best relevance is zero.
    """
    xp = namespace(state.relevance)
    sparsity, quality = leave_one_out(state)
    ratio = quality / positive(sparsity)
    ratio = xp.maximum(ratio, xp.ones_like(ratio))
    return n_responses * (ratio - 1.0 - xp.log(ratio))


def significance_threshold(significance: float, n_columns: int) -> float:
    """Quantile of χ²₁ at 1 − α/κ: what a column's evidence must exceed to count."""
    return float(scipy.stats.chi2.isf(significance / n_columns, 1))


def orthonormal_optimum(dictionary: Array, responses: Array, noise: float) -> Array:
    """Return the optimum for orthonormal columns, wⱼ = max(0, ‖φⱼᵀX‖²/n − γ).

    Examples
    --------
    >>> orthonormal_optimum(np.eye(2), np.array([[2.0], [0.5]]), 1.0)
    array([3., 0.])
    """
    xp = namespace(dictionary)
    powers = xp.sum((dictionary.mT @ responses) ** 2, axis=-1) / responses.shape[-1]
    return xp.maximum(powers - noise, 0.0 * powers)


def linear_vae_decoder(responses: Array, noise: float) -> Array:
    """Optimal decoder of a VAE with a free linear decoder (Wipf 2023, Lemma 3.2).

    The singular directions of X/√n whose singular values exceed √γ, scaled by √(s² − γ): as
    many active dimensions as there are such values, which is rank(X) as γ → 0.
    """
    xp = namespace(responses)
    directions, values, _ = svd_thin(responses / responses.shape[-1] ** 0.5)
    scales = xp.sqrt(xp.maximum(values**2 - noise, 0.0 * values))
    return directions * scales[None, :]


def coherence(dictionary: Any) -> float:
    """Largest absolute correlation μ between two different columns; zero columns are left out.

    Examples
    --------
    >>> float(round(coherence(np.array([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]])), 4))
    0.7071
    """
    columns = to_numpy(dictionary).astype(np.float64)
    norms = np.linalg.norm(columns, axis=0)
    unit = columns[:, norms > 0] / norms[norms > 0]
    largest = 0.0
    for start in range(0, unit.shape[1], BLOCK_COLUMNS):
        stop = min(start + BLOCK_COLUMNS, unit.shape[1])
        block = np.abs(unit[:, start:stop].T @ unit[:, start:])
        block[np.arange(stop - start), np.arange(stop - start)] = 0.0
        largest = max(largest, float(block.max(initial=0.0)))
    return largest


def spark_bound(mutual_coherence: float) -> float:
    """Lower bound on the spark, 1 + 1/μ (Donoho & Elad 2003)."""
    return 1.0 + 1.0 / mutual_coherence if mutual_coherence > 0 else float("inf")


def uniqueness_bound(spark: float, rank: int) -> float:
    """Return the number of non-zero rows below which a feasible U is the only sparsest one.

    That is (spark − 1 + rank X)/2 (Chen & Huo 2006, Theorem 2.4).
    """
    return (spark - 1.0 + rank) / 2.0


def numerical_rank(values: Any, relative: float = 1e-8) -> int:
    """Return how many singular values exceed `relative` times the largest."""
    singular = np.linalg.svd(to_numpy(values), compute_uv=False)
    return int((singular > relative * singular.max(initial=0.0)).sum()) if singular.size else 0


def row_scale_ratios(norms: Any) -> Any:
    """Return π₍ⱼ₊₁₎/π₍ⱼ₎ of the non-zero row norms, descending (Wipf 2023, Theorem 4.1)."""
    positive_norms = np.sort(to_numpy(norms)[to_numpy(norms) > 0])[::-1]
    return positive_norms[1:] / positive_norms[:-1]


def implied_relevance(dictionary: Array, responses: Array, rows: Array, noise: float) -> Array:
    """Relevances under which U is the posterior mean: wⱼ = γ‖uⱼ‖/‖φⱼᵀ(X − ΦU)‖.

    Holds because X − ΦU = γΣ⁻¹X and uⱼ = wⱼφⱼᵀΣ⁻¹X.
    """
    xp = namespace(dictionary)
    slopes = dictionary.mT @ (responses - dictionary @ rows)
    lengths = xp.sqrt(xp.sum(slopes**2, axis=-1))
    return noise * xp.sqrt(xp.sum(rows**2, axis=-1)) / positive(lengths)
