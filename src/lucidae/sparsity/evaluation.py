"""Evaluation of relevances for the verifier, by a QR decomposition of a square root of Σ.

Φ is the dictionary, X the responses, W the diagonal matrix of the relevances w and γ the noise
variance. The solvers form the covariance Σ = ΦWΦᵀ + γI of a response and use Cholesky factors.
Nothing here is shared with them, and Σ is not formed, so that figures are accurate to ε√cond(Σ),
where ε is the unit of rounding.
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
    """Rows as they were given.

    Parameters
    ----------
    dictionary : array of shape (d, κ)
        The dictionary Φ.
    responses : array of shape (d, n)
        The responses X.
    weights : array of shape (d,), optional
        Weights of the rows, one each by default.
    intercept : bool
        Whether the model has an intercept, so that rows are centred.
    """

    dictionary: Any
    responses: Any
    weights: Any = None
    intercept: bool = False


class Weighted(NamedTuple):
    """Centred rows times the roots of their weights, divided by powers of two.

    Parameters
    ----------
    dictionary, responses : ndarray of shape (d, κ) and (d, n)
        The rows of positive weight.
    weights : ndarray of shape (d,)
        Their weights.
    shifts, shift : ndarray of int of shape (κ,), and int
        Exponents of the powers of two by which each column and the responses were divided.
    total, dimension : float
        Total weight, and the same less one where there is an intercept.
    distinct : int
        Number of different rows.
    """

    dictionary: Any
    responses: Any
    weights: Any
    shifts: Any
    shift: int
    total: float
    dimension: float
    distinct: int

    @property
    def mean_square(self) -> float:
        """Mean square of the responses over distinct rows, to which the smallest γ is relative."""
        power = float((self.responses**2).sum())
        return power / (self.distinct * int(self.responses.shape[1]))


def weighted_rows(sample: Sample, labels: Any) -> Weighted:
    """Centre and weight the rows, and divide columns and responses by powers of two, exactly."""
    Phi, X = sample.dictionary, sample.responses
    weights = np.ones(Phi.shape[0]) if sample.weights is None else sample.weights
    if (weights <= 0).any():
        Phi, X, weights = Phi[weights > 0], X[weights > 0], weights[weights > 0]
    total = float(weights.sum())
    count = _distinct(Phi, X)
    if sample.intercept:
        Phi, X = (_without_constants(part, weights) for part in (Phi, X))
    root = np.sqrt(weights)[:, None]
    if sample.weights is not None:
        Phi, X = Phi * root, X * root
    peaks = largest_in(np.abs(Phi).max(axis=0), labels)  # columns of a group share their unit
    shifts, shift = _exponents(peaks), int(_exponents(np.abs(X).max()))
    return Weighted(
        np.ldexp(Phi, -shifts), np.ldexp(X, -shift), weights, shifts, shift, total,
        total - float(sample.intercept), count,
    )  # fmt: skip


def _distinct(Phi: Any, X: Any) -> int:
    """Return how many different rows there are."""
    seen = {row.tobytes() for row in np.hstack([Phi, X]) + 0.0}
    return len(seen)


def centred(values: Any, weights: Any) -> tuple[Any, Any]:
    """Return values less their weighted means, and the means less the first row."""
    # The difference of two doubles is rounded relative to itself, so no digits are lost however
    # far the rows are from zero; the means of these differences are small numbers.
    moved = values - values[0]
    mean = (weights @ moved) / weights.sum()
    moved = moved - mean
    rest = (weights @ moved) / weights.sum()
    return moved - rest, mean + rest


def _without_constants(values: Any, weights: Any) -> Any:
    """Return centred values, exactly zero in columns that vary by rounding errors only."""
    moved, _ = centred(values, weights)
    spread, peaks = np.abs(moved).max(axis=0), np.abs(values).max(axis=0)
    constant = spread <= CONSTANT * np.finfo(float).eps * peaks
    return np.where(constant, 0.0, moved)


def _exponents(peaks: Any) -> Any:
    """Return exponents of two that bring magnitudes close to one; 0 for zeros."""
    return np.where(peaks > 0, np.frexp(peaks)[1], 0)


class Evaluation(NamedTuple):
    """Quantities that follow from relevances w and a noise variance γ.

    Parameters
    ----------
    relevance, noise : ndarray of shape (κ,), and float
        The relevances w and the noise variance γ.
    whitened, loading : ndarray of shape (m, κ) and (κ, p)
        R⁻ᵀΦ and ΦᵀΣ⁻¹Y, where Σ = RᵀR and YYᵀ = XXᵀ.
    curvature, alignment : ndarray of shape (κ,)
        z = φᵀΣ⁻¹φ and Q = ‖φᵀΣ⁻¹X‖²/n of each column φ.
    mean : ndarray of shape (κ, n)
        The posterior mean WΦᵀΣ⁻¹X.
    fit, log_determinant, residual : float
        tr(XXᵀΣ⁻¹)/n, log|Σ| on the span of the dictionary, and ‖X − ΦU‖²/n.
    rounding : float
        Bound on the relative rounding error of the square root of Σ.
    reach : float
        Error of solvers that form Σ.
    """

    relevance: Any
    noise: float
    whitened: Any
    loading: Any
    curvature: Any
    alignment: Any
    mean: Any
    fit: float
    log_determinant: float
    residual: float
    rounding: float
    reach: float


def evaluate_relevances(rows: Weighted, w: Any, noise: float) -> Evaluation:
    """Evaluate relevances w and a noise variance γ by a QR decomposition of a square root of Σ."""
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
    loading = columns.T @ root
    mean = np.zeros((Phi.shape[1], n))
    mean[used] = w[used, None] * (columns[:, used].T @ targets)
    precise = solve_triangular(R, targets, check_finite=False)
    largest = min(float(np.linalg.norm(R, 1) * np.linalg.norm(R, np.inf)), float((R**2).sum()))
    condition = max(largest / noise, 1.0)
    unit = float(np.finfo(float).eps)
    return Evaluation(
        w, noise, columns, loading, (columns**2).sum(axis=0), (loading**2).sum(axis=1) / n, mean,
        (float((targets**2).sum()) + outside / noise) / n,
        2.0 * float(np.log(np.abs(np.diagonal(R))).sum()),
        (float(((noise * precise) ** 2).sum()) + outside) / n,
        unit * condition**0.5 * 4.0 * (size + used.size + 8) ** 0.5,
        REACHED * unit * condition,
    )  # fmt: skip


def leverages(rows: Weighted, w: Any, noise: float) -> Any:
    """Return the diagonal of ΦWΦᵀΣ⁻¹: the posterior variance of each row's mean, in units of γ."""
    used = np.flatnonzero(w)
    scaled = rows.dictionary[:, used] * np.sqrt(w[used])
    if used.size <= scaled.shape[0]:
        # With [S; √γ I] = QR and S = ΦW^½, S(SᵀS + γI)⁻¹Sᵀ is the Gram matrix of Q's first rows.
        basis = np.linalg.qr(np.vstack([scaled, np.sqrt(noise) * np.eye(used.size)]))[0]
        return (basis[: scaled.shape[0]] ** 2).sum(axis=1)
    R = triangle_of(np.vstack([scaled.T, np.sqrt(noise) * np.eye(scaled.shape[0])]))
    # ΦWΦᵀΣ⁻¹ = I − γΣ⁻¹, and with Σ = RᵀR the diagonal of Σ⁻¹ has the squared columns of R⁻ᵀ.
    inverse = solve_triangular(R, np.eye(R.shape[0]), trans="T", check_finite=False)
    return 1.0 - noise * (inverse**2).sum(axis=0)


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
