"""What is known about the optimum: when it is unique, and which relevances coefficients imply."""

from __future__ import annotations

from typing import Any

import numpy as np

from lucidae.arrays import Array, namespace, to_numpy
from lucidae.sparsity.state import positive

BLOCK_COLUMNS = 1024


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
