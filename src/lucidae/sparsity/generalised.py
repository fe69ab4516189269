"""Rows whose noise has a covariance, for the verifier: generalised least squares by definition."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import solve_triangular

from lucidae.arrays import apparent_epsilon
from lucidae.sparsity.columns import centred, without_constants
from lucidae.sparsity.evaluation import (
    Evaluation,
    Sample,
    Weighted,
    distinct,
    leverages,
    parts_of,
    rescaled,
    squares,
    times_power,
    triangle_of,
)

SMALLEST_ROW = 1e-6
"""Smallest noise variance of a row that estimator learns, relative to the mean square response."""


class Whitener(NamedTuple):
    """A whitener of noise: a matrix T with TRTᵀ = I for a covariance R of rank r."""

    matrix: Any  # (r, d): the whitener T
    volumes: Any  # (r,): numbers whose sum is the logarithm of the determinant of R on its range
    basis: Any  # (d, r): orthonormal basis of the range of R; None if R has full rank


def noise_whitener(noise_cov: Any) -> Whitener:
    """Return the whitener of a noise covariance R, or of its diagonal.

    Eigenvalues of the correlation matrix that rounding alone produces are left out.
    """
    if noise_cov.ndim == 1:
        kept = noise_cov > 0
        basis = np.eye(noise_cov.size)[:, kept]
        matrix = basis.T / np.sqrt(noise_cov[kept])[:, None]
        return Whitener(matrix, np.log(noise_cov[kept]), None if kept.all() else basis)
    variances = np.diagonal(noise_cov).real
    scales = np.sqrt(np.where(variances > 0, variances, 1.0))
    correlation = noise_cov / scales / scales[:, None]
    values, vectors = np.linalg.eigh((correlation + correlation.conj().T) / 2.0)
    rank = int((values > max(_rounding(noise_cov) * values[-1], -10.0 * values[0])).sum())
    values, vectors = values[-rank:], vectors[:, -rank:]
    if rank == len(noise_cov):
        matrix = (vectors / np.sqrt(values)).conj().T / scales
        return Whitener(matrix, np.log(values) + 2.0 * np.log(scales), None)
    # R = AAᵀ, and on the range of A = QU the inverse of A is U⁻¹Qᵀ.
    basis, triangle = np.linalg.qr(scales[:, None] * vectors * np.sqrt(values))
    matrix = solve_triangular(triangle, basis.conj().T)
    return Whitener(matrix, 2.0 * np.log(np.abs(np.diagonal(triangle))), basis)


def _rounding(noise_cov: Any) -> float:
    """Return the relative size of eigenvalues that the rounding of a noise covariance explains."""
    return 10.0 * len(noise_cov) * apparent_epsilon(noise_cov)


def generalised_means(sample: Sample) -> tuple[Any, Any]:
    """Return dictionary and responses minus their means, and the mean response relative to row 0.

    With a noise covariance R the mean is 1ᵀR⁺X/1ᵀR⁺1, and the plain one if 1ᵀR⁺1 = 0.
    """
    Phi, X = sample.dictionary, sample.responses
    weights = np.ones(Phi.shape[0]) if sample.weights is None else sample.weights
    Phi, _ = centred(Phi, weights)
    X, mean = centred(X, weights)
    if sample.noise_cov is None:
        return (Phi, X), mean
    shares = _shares(sample)
    return (Phi - shares @ Phi, X - shares @ X), mean + shares @ X


def _shares(sample: Sample) -> Any:
    """Return the weight of each row in the mean by generalised least squares; their sum is one."""
    white = noise_whitener(sample.noise_cov).matrix
    ones = white.sum(axis=1)
    largest = np.linalg.norm(white, axis=1).max() * ones.size**0.5
    least = 1e-7 if sample.noise_cov.ndim == 1 else max(1e-7, _rounding(sample.noise_cov))
    if np.linalg.norm(ones) <= least * largest:
        return np.zeros(white.shape[1])
    shares = ones.conj() @ white
    shares = shares if sample.weights is None else shares * sample.weights
    return shares / shares.sum()


def whitened_sample(sample: Sample, labels: Any) -> Weighted:
    """Return TΦ and TX with TRTᵀ = I, centred and scaled by powers of two."""
    weights = np.ones(sample.dictionary.shape[0]) if sample.weights is None else sample.weights
    Phi, X = sample.dictionary, sample.responses
    if sample.intercept:
        Phi, X = (without_constants(part, weights) for part in (Phi, X))
    white, volumes, basis = noise_whitener(sample.noise_cov)
    used = np.ones(volumes.size)
    if sample.noise_cov.ndim == 1:
        used = weights[sample.noise_cov > 0]
    power, outside = float(squares(X).sum()), 0.0
    if basis is not None and power > 0:
        outside = max(1.0 - float(squares(basis.conj().T @ X).sum()) / power, 0.0)
    Phi, X, ones = white @ Phi, white @ X, white.sum(axis=1)
    volume, total = float((used * volumes).sum()), float(used.sum())
    dimension, axis = total, None
    if sample.intercept and _shares(sample).any():
        ones_power = float(used @ squares(ones))
        shares = used * ones.conj() / ones_power
        for _ in range(2):  # twice, so that rounding errors of the first pass are removed
            Phi, X = Phi - np.outer(ones, shares @ Phi), X - np.outer(ones, shares @ X)
        volume += float(np.log(ones_power) - np.log(weights.sum()))
        dimension, axis = total - 1.0, ones / ones_power**0.5
    kept = used > 0
    count, parts = distinct(np.column_stack([Phi, ones])[kept], X[kept]), parts_of(Phi, X)
    Phi, X = (part[kept] * np.sqrt(used[kept])[:, None] for part in (Phi, X))
    sizes = total, dimension, count, parts
    rows = rescaled(Phi, X, used[kept], labels, sizes, volume, outside)
    points = generalised_means(sample)[0][0] if sample.intercept else sample.dictionary
    return rows._replace(axis=axis, points=times_power(points[weights > 0], -rows.shifts))


def row_noise_distance(sample: Sample, rows: Weighted, at: Evaluation, noise: float) -> float:
    """Return the largest distance to stationarity of the noise variances Λᵢ of rows.

    It is zero if Λᵢ(Σ⁻¹)ᵢᵢ equals the mean square residual of row i over Λᵢ. In whitened rows
    Λᵢ(Σ⁻¹)ᵢᵢ is one minus the leverage and the share of the intercept. At its lower limit a noise
    variance also counts as stationary if a smaller one would lower the energy.
    """
    X = sample.responses
    if sample.intercept:
        X = without_constants(X, np.ones(len(X)))
    lowest = noise * sample.noise_cov <= 1.01 * SMALLEST_ROW * squares(X).mean()
    left = 1.0 - leverages(rows, at.relevance, at.noise)
    left = left if rows.axis is None else left - squares(rows.axis)
    used = np.flatnonzero(at.relevance)
    residual = rows.responses - rows.dictionary[:, used] @ at.mean[used]
    slope = left - squares(residual).mean(axis=1) / at.noise
    return float(np.where((slope > 0) & lowest, 0.0, np.abs(slope)).max())


def prediction_variances(rows: Weighted, w: Any, noise: float) -> Any:
    """Return the posterior variance of the mean predicted for `rows.points`, divided by γ.

    With S = ΦW^½ and [S; √γ I] = QR, the variance at x is γ‖R⁻ᵀW^½x‖².
    """
    used = np.flatnonzero(w)
    scaled = rows.dictionary[:, used] * np.sqrt(w[used])
    R = triangle_of(np.vstack([scaled, np.sqrt(noise) * np.eye(used.size)]))
    half = solve_triangular(R, (rows.points[:, used] * np.sqrt(w[used])).conj().T, trans="C")
    return squares(half).sum(axis=0)
