"""Proofs that a sparse representation is unique.

Uniqueness is proved from the coherence, which bounds the spark (the smallest number of linearly
dependent columns), or by checking all sets of columns that could replace the active ones. It is
never assumed. No solver uses this module.
"""

from __future__ import annotations

from itertools import combinations
from math import comb
from typing import Any, NamedTuple

import numpy as np

from lucidae.arrays import to_numpy
from lucidae.certificates.bounds import EPS
from lucidae.sparsity.verify import SparseColumns, squares, upper

BLOCK_COLUMNS = 1024

EXACT = 1e-8
"""Relative residual of an exact fit: far above rounding, far below the noise of data."""

MARGIN = 10.0
"""Reconstructions differ if they do by this times `EXACT`; exact fits differ by at most 2."""

SUBSETS = 20_000
"""Largest number of subsets of three or more columns that are checked one by one."""

RANK = 1e-6
"""The rank counts singular values above this share, a hundred times `EXACT`, of the largest."""

SPARSE_ENTRIES = 5_000_000
"""Largest number of entries of a sparse dictionary that is made dense to search for other fits."""

PAIR_WORK = 2e9
"""Largest number of multiplications spent on comparing all pairs of columns."""

NO_OTHER = "Checked: no other column lies in the span of the active ones."

UNCHECKED = "General position was not checked"

DEPENDENT = "The active columns are linearly dependent."

TOO_LARGE = (
    "Other sets of columns were not examined, because the sparse dictionary has more than "
    f"{SPARSE_ENTRIES} entries, zeros included."
)

SUPERFLUOUS = (
    "Fewer columns may be enough: without column {column}, the other used columns fit the "
    "responses with a relative error of {share:.2g}."
)

TOO_MANY = (
    "{unchecked}, because there are too many sets of {size} columns. Checked: no single other "
    "column lies in the span of the active ones."
)


def coherence(dictionary: Any) -> float:
    """Return the mutual coherence: the largest absolute cosine of two non-zero columns."""
    given = to_numpy(dictionary)
    unit, _ = unit_columns(given if np.iscomplexobj(given) else given.astype(np.float64))
    largest = 0.0
    for start in range(0, unit.shape[1], BLOCK_COLUMNS):
        stop = min(start + BLOCK_COLUMNS, unit.shape[1])
        block = np.abs(unit[:, start:stop].conj().T @ unit[:, start:])
        block[np.arange(stop - start), np.arange(stop - start)] = 0.0
        largest = max(largest, float(block.max(initial=0.0)))
    return largest


def unit_columns(columns: Any) -> tuple[Any, Any]:
    """Return the non-zero columns divided by their norms, and the indices of these columns."""
    norms = np.linalg.norm(columns, axis=0)
    nonzero = np.flatnonzero(norms > 0)
    return columns[:, nonzero] / norms[nonzero], nonzero


def spark_bound(mutual_coherence: float, rows: int = 0) -> float:
    """Return 1 + 1/μ, a lower bound on the spark for the coherence μ (Donoho & Elad 2003).

    If `rows` is given, μ is first raised by the rounding error of an inner product of so many
    terms.
    """
    raised = mutual_coherence + 2.0 * (rows + 2) * EPS if rows else mutual_coherence
    return 1.0 + 1.0 / raised if raised > 0 else float("inf")


def uniqueness_bound(spark: float, rank: int) -> float:
    """Return (spark − 1 + rank)/2 (Chen & Huo 2006, Theorem 2.4).

    An exact representation by fewer columns is the only sparsest one.
    """
    return (spark - 1.0 + rank) / 2.0


def row_scale_ratios(norms: Any) -> Any:
    """Return the ratio of each non-zero row norm to the next larger (Wipf 2023, Theorem 4.1)."""
    positive_norms = np.sort(to_numpy(norms)[to_numpy(norms) > 0])[::-1]
    return positive_norms[1:] / positive_norms[:-1]


class Position(NamedTuple):
    """Result of the search for other representations of the responses with as few columns."""

    # the spark (smallest number of linearly dependent columns) that the dictionary would have if
    # its columns were in general position: its rank plus one
    spark: float
    # true if it was proved that there is no other representation; False leaves it open
    unique: bool
    reason: str  # sentence that says what was checked, or why nothing is claimed


def position_of(columns: Any, used: Any, responses: Any, rank: int, weakest: float) -> Position:
    """Try to prove that no other set of as few columns represents the responses."""
    unit, nonzero = unit_columns(columns)
    place = np.searchsorted(nonzero, used)
    least = MARGIN * EXACT / weakest if weakest > 0 else np.inf
    full_rank, smallest = _rank(unit)
    spark = float("inf") if full_rank == unit.shape[1] else full_rank + 1.0
    if np.isinf(spark) and smallest > least:
        return Position(spark, True, "Checked: all columns are linearly independent.")
    outside, spread = _outside_span(unit, place)
    if spread <= least:
        return Position(spark, False, DEPENDENT)
    near = np.flatnonzero(outside * spread / 3.0 <= least)
    near = near[~np.isin(near, place)]
    if near.size:
        column = int(nonzero[near[0]])
        why = f"Column {column} lies in the span of the active columns and can replace one of them."
        return Position(spark, False, why)
    return _by_projection(unit, place, responses, rank, spark, least * place.size**0.5)


def _by_projection(
    unit: Any, used: Any, responses: Any, rank: int, spark: float, least: float
) -> Position:
    """Try to prove that no other set of as few columns represents the responses.

    Let S be the s columns in use, X of rank r, and T another set of at most s columns whose span
    contains the range of X. Orthogonal to this range, T spans at most s − r dimensions, so that any
    s − r + 1 of its columns are dependent there. Hence no such T exists if all sets of s − r + 1
    columns that are not contained in S are independent after the range is projected out. For
    residuals up to `EXACT`, the smallest singular value of such a set of T is at most EXACT √s
    ‖X‖/σ_r(X), below `least`.
    """
    size = used.size - rank + 1
    work = float(unit.shape[1]) ** 2 * unit.shape[0]
    if work > PAIR_WORK or (size > 2 and comb(unit.shape[1], size) > SUBSETS):
        return Position(spark, False, TOO_MANY.format(unchecked=UNCHECKED, size=size))
    basis = np.linalg.svd(responses, full_matrices=False)[0][:, :rank]
    rest = unit - basis @ (basis.conj().T @ unit)
    # Eigenvalues of Gram matrices are squares of singular values, up to this rounding error.
    rounding = 8.0 * (unit.shape[0] + size) * EPS
    if _smallest_eigenvalue(rest, used, size) > least**2 + rounding:
        why = (
            f"All sets of {size} columns were checked: no other columns can replace the active "
            "ones."
        )
        return Position(spark, True, why if size > 1 else NO_OTHER)
    why = (
        f"All sets of {size} columns were checked: with some of them, other columns may replace "
        "some of the active ones."
    )
    return Position(spark, False, why)


def _smallest_eigenvalue(rest: Any, used: Any, size: int) -> float:
    """Return the smallest eigenvalue of Gram matrices of all sets not inside `used`."""
    inside = np.zeros(rest.shape[1], dtype=bool)
    inside[used] = True
    if size == 1:
        return float(squares(rest).sum(axis=0)[~inside].min(initial=np.inf))
    if size == 2:
        return _smallest_of_pairs(rest, inside)
    subsets = np.array(list(combinations(range(rest.shape[1]), size)))
    subsets = subsets[~inside[subsets].all(axis=1)]
    gram = rest.conj().T @ rest
    minors = gram[subsets[:, :, None], subsets[:, None, :]]
    return float(np.linalg.eigvalsh(minors)[:, 0].min(initial=np.inf)) if subsets.size else np.inf


def _smallest_of_pairs(rest: Any, inside: Any) -> float:
    """Return the smallest eigenvalue among the 2 × 2 Gram matrices of all pairs of columns."""
    norms, smallest = squares(rest).sum(axis=0), np.inf
    for start in range(0, rest.shape[1], BLOCK_COLUMNS):
        block = slice(start, start + BLOCK_COLUMNS)
        a, b = norms[block, None], norms[None, start:]
        c = np.abs(rest[:, block].conj().T @ rest[:, start:])
        values = (a + b - np.hypot(a - b, 2.0 * c)) / 2.0
        values[inside[block, None] & inside[None, start:]] = np.inf
        np.fill_diagonal(values, np.inf)  # a column is no pair with itself
        smallest = min(smallest, float(values.min()))
    return float(smallest)


def _rank(unit: Any) -> tuple[int, float]:
    """Return the numerical rank of unit columns, and their smallest singular value."""
    tall = unit.shape[0] >= unit.shape[1]
    values = np.linalg.eigvalsh(unit.conj().T @ unit if tall else unit @ unit.conj().T)
    # Squares of singular values below this are rounding errors of the product.
    rounding = 10.0 * max(unit.shape) * EPS * float(values.max(initial=0.0))
    rank = int((values > rounding).sum())
    smallest = max(float(values[0]) - rounding, 0.0) if values.size else 0.0
    return rank, float(np.sqrt(smallest))


def _outside_span(unit: Any, used: Any) -> tuple[Any, float]:
    """Return the distance of each column from the span of the used columns."""
    left, values, _ = np.linalg.svd(unit[:, used], full_matrices=False)
    smallest = float(values[-1]) if used.size <= unit.shape[0] else 0.0
    return np.linalg.norm(unit - left @ (left.conj().T @ unit), axis=0), smallest


class Refit(NamedTuple):
    """A least-squares fit of the responses; all fields are divided by the norm of the responses."""

    error: float  # norm of the residual
    shares: Any  # (s,): the norm of each row of the coefficients times that of its column
    # (s,): norm of the part of the fit that only this column can represent, for each column; zero
    # if the columns are linearly dependent
    needed: Any


def refit(columns: Any, responses: Any) -> Refit:
    """Return the least-squares fit of the responses (d, n) by columns (d, s)."""
    unit, total = columns / np.linalg.norm(columns, axis=0), np.linalg.norm(responses)
    left, values, right = np.linalg.svd(unit, full_matrices=False)
    kept = values > values[0] * max(unit.shape) * EPS
    left, inside = left[:, kept], left[:, kept].conj().T @ responses
    error = float(np.linalg.norm(responses - left @ inside) / total)
    inverse = right[kept].conj().T / values[kept]
    shares = np.linalg.norm(inverse @ inside, axis=1) / total
    # A column's distance from the span of the others is 1/‖p‖, where p is its row of the
    # pseudo-inverse. So without the column, ‖u‖/‖p‖ is lost, where u is its row of coefficients.
    needed = shares / np.linalg.norm(inverse, axis=1)
    return Refit(error, shares, needed if kept.size == unit.shape[1] and kept.all() else 0 * needed)


class Uniqueness(NamedTuple):
    """What is known about other sets of as few columns that represent the responses."""

    exact_error: float  # relative error of the least-squares refit on the used columns
    rank: int = 0  # of the responses
    # spark (smallest number of linearly dependent columns) of columns in general position
    spark: float | None = None
    proved: bool = False  # that there is no other such set
    reason: str = ""
    coherence: float | None = None
    evidence: dict[str, Any] = {}  # noqa: RUF012


def uniqueness_of(Phi: Any, X: Any, used: Any, error: float) -> Uniqueness:
    """Return what proves that no other set of as few columns represents the responses.

    It is measured on the least-squares refit, because the posterior mean, whose relative error is
    `error`, shrinks and is never exact.
    """
    if not X.any() or not 0 < used.size < Phi.shape[0] or not error < 0.1:
        return Uniqueness(error)
    fit = refit(Phi[:, used], X)
    if fit.error > EXACT:
        return Uniqueness(fit.error)
    if not fit.needed.min() > MARGIN * EXACT:
        least = int(np.argmin(fit.needed))
        why = SUPERFLUOUS.format(column=int(used[least]), share=float(fit.needed[least]))
        return Uniqueness(fit.error, reason=why if fit.needed.any() else DEPENDENT)
    compressed = upper(X.conj().T).conj().T if X.shape[1] > X.shape[0] else X
    singular = np.linalg.svd(compressed, compute_uv=False)
    rank = int((singular > RANK * singular[0]).sum())
    share = min(float(fit.shares.min()), float(singular[rank - 1] / np.linalg.norm(singular)))
    if isinstance(Phi, SparseColumns):
        if Phi.shape[0] * Phi.shape[1] > SPARSE_ENTRIES:
            return Uniqueness(fit.error, rank, reason=TOO_LARGE)
        Phi = Phi[:, np.arange(Phi.shape[1])]
    position = position_of(Phi, used, compressed, rank, share)
    cheap = Phi.shape[1] ** 2 * Phi.shape[0] <= PAIR_WORK
    evidence = {
        "exact_error": fit.error, "rank": rank, "smallest_share": share,
        "smallest_need": float(fit.needed.min()), "spark": position.spark,
        "bound": uniqueness_bound(position.spark, rank),
    }  # fmt: skip
    return Uniqueness(
        fit.error, rank, position.spark, position.unique, position.reason,
        coherence(Phi) if cheap else None, evidence,
    )  # fmt: skip
