"""When a sparse representation is the only one, and which relevances coefficients imply.

No solver uses this module. Uniqueness needs a lower bound on the spark of the dictionary, the
smallest number of dependent columns: from its coherence, or from subsets that were checked.
"""

from __future__ import annotations

from itertools import combinations, islice
from math import comb
from typing import Any, NamedTuple

import numpy as np

from lucidae.arrays import to_numpy

BLOCK_COLUMNS = 1024

EXACT = 1e-8
"""Relative residual below which a fit counts as exact: far above rounding, far below noise."""

MARGIN = 10.0
"""How many times `EXACT` the smallest change of the responses must be that tells two sets apart.

Two exact fits differ by at most 2 EXACT in their reconstruction, so any factor above 2 is safe.
"""

MINORS = 3000
"""Largest number of subsets of columns that are all checked; more are sampled."""

SAMPLED = 100
"""Number of random minors that are checked where they are too many; fewer if they are large."""

SINGULAR = 1e-10
"""Smallest singular value, for unit columns, below which a random minor is singular.

Regular minors of random dictionaries may have singular values of 1e-6, and structural dependence
leaves 1e-15.
"""

PAIR_WORK = 2e9
"""Multiplications up to which all pairs of columns are compared."""


def coherence(dictionary: Any) -> float:
    """Largest absolute correlation μ between two different columns; zero columns are left out.

    Examples
    --------
    >>> float(round(coherence(np.array([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]])), 4))
    0.7071
    """
    unit, _ = unit_columns(to_numpy(dictionary).astype(np.float64))
    largest = 0.0
    for start in range(0, unit.shape[1], BLOCK_COLUMNS):
        stop = min(start + BLOCK_COLUMNS, unit.shape[1])
        block = np.abs(unit[:, start:stop].T @ unit[:, start:])
        block[np.arange(stop - start), np.arange(stop - start)] = 0.0
        largest = max(largest, float(block.max(initial=0.0)))
    return largest


def unit_columns(columns: Any) -> tuple[Any, Any]:
    """Return the columns that are not zero, divided by their norms, and which these are."""
    norms = np.linalg.norm(columns, axis=0)
    nonzero = np.flatnonzero(norms > 0)
    return columns[:, nonzero] / norms[nonzero], nonzero


def spark_bound(mutual_coherence: float, rows: int = 0) -> float:
    """Lower bound on the spark, 1 + 1/μ (Donoho & Elad 2003).

    With `rows`, μ is raised by a bound on the rounding error of an inner product of so many terms.
    """
    raised = mutual_coherence + 2.0 * (rows + 2) * np.finfo(float).eps if rows else mutual_coherence
    return 1.0 + 1.0 / raised if raised > 0 else float("inf")


def uniqueness_bound(spark: float, rank: int) -> float:
    """Return the number of non-zero rows below which a feasible U is the only sparsest one.

    That is (spark − 1 + rank X)/2 (Chen & Huo 2006, Theorem 2.4).
    """
    return (spark - 1.0 + rank) / 2.0


def row_scale_ratios(norms: Any) -> Any:
    """Return π₍ⱼ₊₁₎/π₍ⱼ₎ of the non-zero row norms, descending (Wipf 2023, Theorem 4.1)."""
    positive_norms = np.sort(to_numpy(norms)[to_numpy(norms) > 0])[::-1]
    return positive_norms[1:] / positive_norms[:-1]


def implied_relevance(dictionary: Any, responses: Any, rows: Any, noise: float) -> Any:
    """Relevances under which U can be the posterior mean: wⱼ = γ‖uⱼ‖/‖φⱼᵀ(X − ΦU)‖.

    Holds because X − ΦU = γΣ⁻¹X and uⱼ = wⱼφⱼᵀΣ⁻¹X. Infinite where the slope φⱼᵀ(X − ΦU) vanishes
    and uⱼ does not: then U is not a posterior mean.
    """
    slopes = dictionary.T @ (responses - dictionary @ rows)
    lengths, norms = np.linalg.norm(slopes, axis=1), np.linalg.norm(rows, axis=1)
    with np.errstate(divide="ignore", over="ignore"):
        return np.where(norms > 0, noise * norms / np.where(norms > 0, lengths, 1.0), 0.0)


class Position(NamedTuple):
    """What is known about other representations with as few columns.

    `spark` is the value used in the bound of Chen and Huo; `verdict` is True where uniqueness was
    proved, False where general position was refuted, and None where it is assumed.
    """

    spark: float
    verdict: bool | None
    reason: str


def position_of(columns: Any, used: Any, rank: int, weakest: float) -> Position:
    """Judge whether columns are in general position, as far as the `used` ones depend on it.

    Parameters
    ----------
    columns : ndarray of shape (d, κ)
        The dictionary.
    used : ndarray of int
        The columns S of an exact representation X = Φ_S U.
    rank : int
        Numerical rank of X.
    weakest : float
        The smallest of the norms ‖φⱼ‖‖uⱼ‖ and of the first `rank` singular values of X, relative
        to ‖X‖: a dependence with a singular value below MARGIN · EXACT / weakest would be an exact
        representation of X by other columns.

    Returns
    -------
    Position
    """
    unit, nonzero = unit_columns(columns)
    place = np.searchsorted(nonzero, used)
    least = MARGIN * EXACT / weakest if weakest > 0 else np.inf
    full_rank, smallest = _rank(unit)
    spark = float("inf") if full_rank == unit.shape[1] else full_rank + 1.0
    if np.isinf(spark) and smallest > least:
        return Position(spark, True, "Checked: all columns are linearly independent.")
    outside, spread = _outside_span(unit, place)
    if spread <= least:
        return Position(spark, False, "The active columns are linearly dependent.")
    near = np.flatnonzero(outside * spread / 3.0 <= least)
    near = near[~np.isin(near, place)]
    if near.size:
        column = int(nonzero[near[0]])
        why = f"Column {column} lies in the span of the active ones and can replace one of them."
        return Position(spark, False, why)
    if rank == used.size:
        # Others would have to span range X = span Φ_S, so all of them would lie in it.
        return Position(spark, True, "Checked: no other column lies in the span of the active.")
    return _by_minors(unit, place, rank, spark, least, full_rank)


def _by_minors(
    unit: Any, used: Any, rank: int, spark: float, least: float, full_rank: int
) -> Position:
    """Judge by subsets of columns: all of the size that decides, or random ones of full size."""
    size = 2 * used.size - rank + 1  # Chen and Huo's condition: every subset of it is independent
    if size <= full_rank and comb(unit.shape[1], size) <= MINORS:
        subsets = np.array(list(combinations(range(unit.shape[1]), size)))
        if _smallest_minor(unit, subsets) <= least:
            why = f"Some {size} columns are linearly dependent."
            return Position(spark, False, why)
        return Position(spark, True, f"Checked: all subsets of {size} columns are independent.")
    if unit.shape[1] ** 2 * unit.shape[0] <= PAIR_WORK and _dependent_pair(unit, used, least):
        why = "Two other columns depend linearly on the active ones."
        return Position(spark, False, why)
    rng = np.random.default_rng(0)
    count = int(min(SAMPLED, max(4.0, 2e8 / full_rank**3)))
    draws = (rng.choice(unit.shape[1], full_rank, replace=False) for _ in iter(int, 1))
    if _smallest_minor(unit, np.array(list(islice(draws, count)))) <= SINGULAR:
        why = f"Some {full_rank} columns are linearly dependent."
        return Position(spark, False, why)
    why = f"General position is assumed; {count} random minors of size {full_rank} were regular."
    return Position(spark, None, why)


def _rank(unit: Any) -> tuple[int, float]:
    """Return the numerical rank of unit columns, and their smallest singular value."""
    tall = unit.shape[0] >= unit.shape[1]
    values = np.linalg.eigvalsh(unit.T @ unit if tall else unit @ unit.T)
    # Squares of singular values below this are rounding errors of the product.
    rounding = 10.0 * max(unit.shape) * np.finfo(float).eps * float(values.max(initial=0.0))
    rank = int((values > rounding).sum())
    smallest = float(np.sqrt(max(values.min(initial=0.0) - rounding, 0.0))) if values.size else 0.0
    return rank, smallest


def _outside_span(unit: Any, used: Any) -> tuple[Any, float]:
    """Return norms of all columns outside the span of some, and the smallest singular of these."""
    left, values, _ = np.linalg.svd(unit[:, used], full_matrices=False)
    smallest = float(values[-1]) if used.size <= unit.shape[0] else 0.0
    return np.linalg.norm(unit - left @ (left.T @ unit), axis=0), smallest


def _smallest_minor(unit: Any, subsets: Any) -> float:
    """Return the smallest singular value of all the subsets of columns."""
    if not subsets.size:
        return 0.0
    stacks = unit.T[subsets]
    return float(np.linalg.svd(stacks, compute_uv=False)[:, -1].min())


def _dependent_pair(unit: Any, used: Any, least: float) -> bool:
    """Tell whether two columns outside the used ones depend on each other and on these."""
    # With S ∪ {j} independent, {k} joins a dependence exactly if the parts of φ_j and φ_k outside
    # span Φ_S are collinear: their coherence is 1.
    left, values, _ = np.linalg.svd(unit[:, used], full_matrices=False)
    others = np.setdiff1d(np.arange(unit.shape[1]), used)
    rest = unit[:, others] - left @ (left.T @ unit[:, others])
    lengths = np.linalg.norm(rest, axis=0)
    if not lengths.all() or others.size < 2:
        return bool(others.size and not lengths.all())
    sine = np.sqrt(max(1.0 - coherence(rest) ** 2, 0.0))
    # 1 − μ² below the rounding error of μ cannot be told from 0.
    resolved = sine**2 > 16.0 * unit.shape[0] * np.finfo(float).eps
    return not resolved or bool(float(values[-1]) * lengths.min() ** 2 * sine / 9.0 <= least)
