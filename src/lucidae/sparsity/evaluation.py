"""The verifier's own view of the data: weighted rows, and Σ by its square root.

Nothing here is shared with the solvers. They form Σ = ΦWΦᵀ + γI and use Cholesky factors; here a QR
decomposition of a square root of Σ takes their place, so that figures are accurate to ε√cond(Σ).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import solve_triangular

CONSTANT = 8.0
"""Columns that vary by no more than this many units of rounding are constant."""

REACHED = 32.0
"""Error of solvers that form Σ in doubles, in units of ε cond(Σ)."""


class Sample(NamedTuple):
    """Rows as they were given: Φ (d, κ), X (d, n), weights (d,) or None, and the intercept."""

    dictionary: Any
    responses: Any
    weights: Any = None
    intercept: bool = False


class Weighted(NamedTuple):
    """Centred rows times the roots of their weights, in units that are powers of two.

    `shifts` and `shift` are the exponents of the units of the columns and of the responses;
    `cancellation` is the largest ratio of an entry to the spread of its column.
    """

    dictionary: Any
    responses: Any
    shifts: Any
    shift: int
    total: float
    dimension: float
    cancellation: float
    distinct: int

    @property
    def mean_square(self) -> float:
        """Mean square of the responses over distinct rows, the unit of the solver's floors."""
        power = float((self.responses**2).sum())
        return power / (self.distinct * int(self.responses.shape[1]))


def weighted_rows(sample: Sample, labels: Any) -> Weighted:
    """Centre and weight the rows, and divide columns and responses by powers of two, exactly."""
    Phi, X = sample.dictionary, sample.responses
    weights = np.ones(Phi.shape[0]) if sample.weights is None else sample.weights
    if (weights <= 0).any():
        Phi, X, weights = Phi[weights > 0], X[weights > 0], weights[weights > 0]
    total = float(weights.sum())
    cancellation = 0.0
    count = _distinct(Phi, X)
    if sample.intercept:
        Phi, first = _centred(Phi, weights)
        X, second = _centred(X, weights)
        cancellation = max(first, second)
    root = np.sqrt(weights)[:, None]
    if sample.weights is not None:
        Phi, X = Phi * root, X * root
    peaks = largest_in(np.abs(Phi).max(axis=0), labels)  # columns of a group share their unit
    shifts, shift = _exponents(peaks), int(_exponents(np.abs(X).max()))
    return Weighted(
        np.ldexp(Phi, -shifts), np.ldexp(X, -shift), shifts, shift, total,
        total - float(sample.intercept), cancellation, count,
    )  # fmt: skip


def _distinct(Phi: Any, X: Any) -> int:
    """Return how many different rows there are."""
    seen = {row.tobytes() for row in np.hstack([Phi, X]) + 0.0}
    return len(seen)


def _centred(values: Any, weights: Any) -> tuple[Any, float]:
    """Return values less their weighted means, and the largest ratio of an entry to a spread."""
    peaks = np.abs(values).max(axis=0)
    moved = values - values[0]  # a large common offset cancels exactly
    moved = moved - (weights @ moved) / weights.sum()
    spread = np.abs(moved).max(axis=0)
    constant = spread <= CONSTANT * np.finfo(float).eps * peaks
    ratios = peaks[~constant] / spread[~constant]
    return np.where(constant, 0.0, moved), float(ratios.max(initial=0.0))


def _exponents(peaks: Any) -> Any:
    """Return exponents of two that bring magnitudes close to one; 0 for zeros."""
    return np.where(peaks > 0, np.frexp(peaks)[1], 0)


class Evaluation(NamedTuple):
    """What follows from relevances w and γ: z, Q, the posterior mean and the parts of the energy.

    `rounding` bounds the relative rounding error of a square root of Σ; `reach` is the error of
    solvers that form Σ.
    """

    relevance: Any
    noise: float
    curvature: Any
    alignment: Any
    mean: Any
    fit: float
    log_determinant: float
    residual: float
    rounding: float
    reach: float


def evaluate_relevances(rows: Weighted, w: Any, noise: float) -> Evaluation:
    """Evaluate w and γ by a QR decomposition of the square root of Σ."""
    Phi, X, outside = _in_span(rows.dictionary, rows.responses)
    size, n = X.shape
    used = np.flatnonzero(w)
    scaled = Phi[:, used] * np.sqrt(w[used])
    # With A = [W^½Φᵀ; √γ I] = QR, AᵀA = Σ = RᵀR, and cond(R) = √cond(Σ).
    R = triangle_of(np.vstack([scaled.T, np.sqrt(noise) * np.eye(size)]))
    columns = solve_triangular(R, Phi, trans="T", check_finite=False)
    targets = solve_triangular(R, X, trans="T", check_finite=False)
    # Q needs the responses through their Gram matrix alone.
    root = triangle_of(targets.T).T if n > size else targets
    mean = np.zeros((Phi.shape[1], n))
    mean[used] = w[used, None] * (columns[:, used].T @ targets)
    precise = solve_triangular(R, targets, check_finite=False)
    largest = min(float(np.linalg.norm(R, 1) * np.linalg.norm(R, np.inf)), float((R**2).sum()))
    condition = max(largest / noise, 1.0)
    unit = float(np.finfo(float).eps)
    terms = 4.0 * (size + used.size + 8) ** 0.5
    return Evaluation(
        w, noise, (columns**2).sum(axis=0), ((columns.T @ root) ** 2).sum(axis=1) / n, mean,
        (float((targets**2).sum()) + outside / noise) / n,
        2.0 * float(np.log(np.abs(np.diagonal(R))).sum()),
        (noise**2 * float((precise**2).sum()) + outside) / n,
        unit * condition**0.5 * (terms + rows.cancellation),
        REACHED * unit * condition**0.5 * (condition**0.5 + rows.cancellation),
    )  # fmt: skip


def triangle_of(A: Any) -> Any:
    """Return the triangular factor of a QR decomposition."""
    return np.linalg.qr(A, mode="r")


def _in_span(Phi: Any, X: Any) -> tuple[Any, Any, float]:
    """Rotate a tall dictionary to the rows of its span; return ‖X‖² outside of it."""
    if Phi.shape[0] <= Phi.shape[1]:
        return Phi, X, 0.0
    Q, R = np.linalg.qr(Phi)
    inside = Q.T @ X
    return R, inside, float(((X - Q @ inside) ** 2).sum())


def largest_in(values: Any, labels: Any) -> Any:
    """Replace every column's value by the largest of its group."""
    if labels is None:
        return values
    largest = np.full(labels.max() + 1, -np.inf)
    np.maximum.at(largest, labels, values)
    return largest[labels]


def totals_in(values: Any, labels: Any) -> Any:
    """Replace every column's value by the total over its group."""
    return values if labels is None else np.bincount(labels, values)[labels]
