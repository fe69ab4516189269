"""Rows whose noise has a covariance, for the verifier: generalised least squares by definition.

Like the rest of the verifier, this module shares no code with the solvers or the estimator. For
complex data a transpose ᵀ is the conjugate transpose, and a square that of the absolute value.
"""

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

    The rank is that of the correlation matrix of the noise. Eigenvalues that rounding errors alone
    produce are left out: those of the precision in which the numbers were given, and those that
    are not much larger than the absolute value of a negative eigenvalue.
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
    """Return the dictionary and the responses minus their means, and the mean of the responses.

    The mean is returned relative to the first row: that row is subtracted from it. With a noise
    covariance R it is the mean of generalised least squares, 1ᵀR⁺X/1ᵀR⁺1 for responses X and a
    vector 1 of ones; it is the plain mean if R says nothing about it (1ᵀR⁺1 = 0).
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
    """Return the weight of each row in the mean by generalised least squares; their sum is one.

    They are all zero if the column of ones is outside the range of the noise covariance.
    """
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
    """Return a dictionary Φ and responses X as a problem whose noise is white.

    `sample` contains Φ, X and the covariance R of the noise of their rows. Both are centred if the
    model has an intercept, replaced by TΦ and TX for a matrix T with TRTᵀ = I, and scaled by powers
    of two. `labels` are the group labels of the columns of Φ; None if there are no groups.
    """
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
    """Return the largest distance to stationarity of the noise variances of rows.

    Σ is the covariance of a response. The derivative of the energy with respect to the noise
    variance Λᵢ of row i is zero if Λᵢ(Σ⁻¹)ᵢᵢ equals the mean square of the residuals of row i,
    taken over the responses, divided by Λᵢ. In whitened rows, which have the noise variance γ,
    Λᵢ(Σ⁻¹)ᵢᵢ is one minus the leverage of the row (and minus its share of the intercept). A noise
    variance at its lower limit also counts as stationary if a smaller one would lower the energy.
    `sample` are the rows as given, with the noise variances Λᵢ/γ, and `noise` is γ in the units of
    the data.
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
    """Return the posterior variance of the mean predicted for `rows.points`, divided by the noise.

    The divisor is the noise variance γ. Let Φ be the columns of positive relevance, W these
    relevances, S = ΦW^½ and [S; √γ I] = QR. Then the variance at a point x is γ‖R⁻ᵀW^½x‖².
    """
    used = np.flatnonzero(w)
    scaled = rows.dictionary[:, used] * np.sqrt(w[used])
    R = triangle_of(np.vstack([scaled, np.sqrt(noise) * np.eye(used.size)]))
    half = solve_triangular(R, (rows.points[:, used] * np.sqrt(w[used])).conj().T, trans="C")
    return squares(half).sum(axis=0)
