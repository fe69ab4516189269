"""Values behind the claims that no other set of as few columns explains the responses.

They are measured on the least-squares refit, because the posterior mean shrinks and is never exact.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from lucidae.sparsity.columns import SparseColumns
from lucidae.sparsity.evaluation import triangle_of
from lucidae.sparsity.figures import SparseFigures
from lucidae.sparsity.theory import (
    DEPENDENT,
    EXACT,
    MARGIN,
    PAIR_WORK,
    coherence,
    position_of,
    uniqueness_bound,
)

RANK = 1e-6
"""The rank counts singular values above this share, a hundred times `EXACT`, of the largest."""

SPARSE_ENTRIES = 5_000_000
"""Largest number of entries of a sparse dictionary that is made dense to search for other fits."""

TOO_LARGE = (
    "Other sets of columns were not examined, because the sparse dictionary has more than "
    f"{SPARSE_ENTRIES} entries, zeros included."
)

SUPERFLUOUS = (
    "Fewer columns may be enough: without column {column}, the other used columns fit the "
    "responses with a relative error of {share:.2g}."
)


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
    kept = values > values[0] * max(unit.shape) * np.finfo(float).eps
    left, inside = left[:, kept], left[:, kept].conj().T @ responses
    error = float(np.linalg.norm(responses - left @ inside) / total)
    inverse = right[kept].conj().T / values[kept]
    shares = np.linalg.norm(inverse @ inside, axis=1) / total
    # A column's distance from the span of the others is 1/‖p‖, where p is its row of the
    # pseudo-inverse. So without the column, ‖u‖/‖p‖ is lost, where u is its row of coefficients.
    needed = shares / np.linalg.norm(inverse, axis=1)
    return Refit(error, shares, needed if kept.size == unit.shape[1] and kept.all() else 0 * needed)


def with_uniqueness(figures: SparseFigures, Phi: Any, X: Any, used: Any) -> SparseFigures:
    """Return the measured values with those added from which uniqueness is judged."""
    fit = refit(Phi[:, used], X)
    figures = replace(figures, exact_error=fit.error)
    if fit.error > EXACT:
        return figures
    if fit.needed.min() > MARGIN * EXACT:
        return _with_position(figures, Phi, X, used, fit)
    least = int(np.argmin(fit.needed))
    why = SUPERFLUOUS.format(column=int(used[least]), share=float(fit.needed[least]))
    return replace(figures, position_reason=why if fit.needed.any() else DEPENDENT)


def _with_position(
    figures: SparseFigures, Phi: Any, X: Any, used: Any, fit: Refit
) -> SparseFigures:
    """Return `figures` with values that tell whether other columns represent the responses."""
    compressed = triangle_of(X.conj().T).conj().T if X.shape[1] > X.shape[0] else X
    singular = np.linalg.svd(compressed, compute_uv=False)
    rank = int((singular > RANK * singular[0]).sum())
    share = min(float(fit.shares.min()), float(singular[rank - 1] / np.linalg.norm(singular)))
    if isinstance(Phi, SparseColumns):
        if Phi.shape[0] * Phi.shape[1] > SPARSE_ENTRIES:
            return replace(figures, rank=rank, position_reason=TOO_LARGE)
        Phi = Phi[:, np.arange(Phi.shape[1])]
    position = position_of(Phi, used, compressed, rank, share)
    cheap = Phi.shape[1] ** 2 * Phi.shape[0] <= PAIR_WORK
    return replace(
        figures, rank=rank, spark=position.spark, position=position.unique,
        position_reason=position.reason, coherence=coherence(Phi) if cheap else None,
        evidence=figures.evidence | {
            "exact_error": fit.error, "rank": rank, "smallest_share": share,
            "smallest_need": float(fit.needed.min()), "spark": position.spark,
            "bound": uniqueness_bound(position.spark, rank),
        },
    )  # fmt: skip
