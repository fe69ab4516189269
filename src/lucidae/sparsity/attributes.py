"""Verification of predictions, predictive variances and `support_`, without code of the solvers."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse
import scipy.stats

from lucidae.sparsity.evaluation import Evaluation, Sample, Weighted, leverages, squares
from lucidae.sparsity.generalised import generalised_means, prediction_variances

UNIT = float(np.finfo(float).eps)


def prediction_distance(sample: Sample, coef: Any, predicted: Any) -> tuple[float, float]:
    """Return the largest difference between predictions and the linear model ȳ + (x − x̄)U."""
    Phi, X = sample.dictionary, sample.responses
    weights = np.ones(Phi.shape[0]) if sample.weights is None else sample.weights
    if scipy.sparse.issparse(Phi):  # columns without coefficients do not predict
        used = np.flatnonzero(coef.any(axis=1))
        Phi, coef = Phi[:, used].toarray(), coef[used]
    first, mean = np.zeros(X.shape[1]), np.zeros(X.shape[1])
    if sample.intercept:
        first = X[0]
        (Phi, X), mean = generalised_means(sample._replace(dictionary=Phi))
    size = np.sqrt(weights @ squares(X) / weights.sum())
    size = np.where(size > 0, size, np.abs(first + mean))
    size = np.where(size > 0, size, 1.0)
    # A prediction is a sum with the mean response, so that it is rounded relative to this mean.
    terms = (np.abs(Phi) @ np.abs(coef)).max(axis=0)
    distance = np.abs(predicted - first - mean - Phi @ coef).max(axis=0) / size
    count = int(coef.any(axis=1).sum())  # products with zero are exact
    error = UNIT * (np.abs(predicted).max(axis=0) + (4.0 + count**0.5) * terms) / size
    return float(distance.max()), float(error.max())


def variance_distance(rows: Weighted, at: Evaluation, variances: Any) -> tuple[float, float]:
    """Return the largest error of an estimator's posterior variances of the predicted means."""
    if rows.points is not None:  # whitened rows are no rows that the estimator predicts
        expected = prediction_variances(rows, at.relevance, at.noise)
        size = max(float(expected.max(initial=0.0)), 1.0)
        distance = float(np.abs(variances - expected).max(initial=0.0)) / size
        return distance, 4.0 * at.rounding
    # For a row that counts m times, ΦWΦᵀΣ⁻¹ of the weighted rows has m times its variance.
    if at.leverage is not None:
        distance = np.abs(variances * rows.weights[:, None] - at.leverage).max(initial=0.0)
        return float(distance), 4.0 * at.rounding
    expected = leverages(rows, at.relevance, at.noise)
    distance = float(np.abs(variances * rows.weights - expected).max(initial=0.0))
    return distance, 4.0 * at.rounding


def support_differences(
    at: Evaluation, labels: Any, significance: float, support: Any, parts: int = 1
) -> tuple[int, int]:
    """Return how many columns `support` contains or lacks wrongly, and how many are undecided.

    A column (or group) is significant if its evidence exceeds the quantile of χ²₁ at 1 − α/κ, and
    undecided if rounding decides. The evidence of complex data counts twice (`parts`).
    """
    count = at.relevance.size if labels is None else int(labels.max()) + 1
    threshold = float(scipy.stats.chi2.isf(significance / count, 1))
    found = at.evidence
    if found is None:
        found = _evidence(at) if labels is None else _group_evidence(at, labels)
    evidence, error = (parts * values for values in found)
    claimed = np.zeros(at.relevance.size, dtype=bool)
    claimed[support] = True
    different = claimed != (evidence > threshold)
    close = ~(np.abs(evidence - threshold) > error + 1e-9 * threshold)
    return int((different & ~close).sum()), int((different & close).sum())


def _evidence(at: Evaluation) -> tuple[Any, Any]:
    """Return twice the log-likelihood that each column adds, and bounds on the rounding errors.

    It is n(t − 1 − log t) with t = Q/(z(1 − wz)), and zero if t ≤ 1 or w = 0.
    """
    w, z, Q, n = at.relevance, at.curvature, at.alignment, at.mean.shape[1]
    variance = np.maximum(1.0 - w * z, UNIT)
    ratio = Q / np.where(z > 0, z * variance, 1.0)
    growth = np.maximum(ratio, 1.0)
    evidence = np.where(w > 0, n * (growth - 1.0 - np.log(growth)), 0.0)
    # Relative errors of Q, z and 1 − wz: see the bounds in `verifier._judged`.
    relative = 2.0 * at.rounding * (1.0 + 2.0 * np.sqrt(_ratio(z * at.fit, Q)) + w * z / variance)
    return evidence, np.where(w > 0, n * growth * relative, 0.0)


def _ratio(values: Any, sizes: Any) -> Any:
    """Return `values` divided by `sizes`, and zero for every entry whose divisor is zero."""
    return np.where(sizes > 0, values / np.where(sizes > 0, sizes, 1.0), 0.0)


def _group_evidence(at: Evaluation, labels: Any) -> tuple[Any, Any]:
    """Return, for each column, twice the log-likelihood lost without its group, and its error."""
    w, n = at.relevance, at.mean.shape[1]
    evidence, error = np.zeros(w.size), np.zeros(w.size)
    for label in np.unique(labels[w > 0]):
        index = np.flatnonzero(labels == label)
        weight = float(w[index].max())
        columns = at.whitened[:, index]
        # Without the group, Σ becomes Σ − wΦ_gΦ_gᵀ: its determinant is |Σ||M| with M = I − wG and
        # G = Φ_gᵀΣ⁻¹Φ_g, and its inverse is Σ⁻¹ + wΣ⁻¹Φ_g M⁻¹ Φ_gᵀΣ⁻¹ (Woodbury).
        inner = columns.conj().T @ columns
        values, vectors = np.linalg.eigh(np.eye(index.size) - weight * inner)
        values = np.maximum(values, UNIT)
        powers = squares(vectors.conj().T @ at.loading[index]).sum(axis=1)
        lost = np.log(values).sum() * n + weight * (powers / values).sum()
        evidence[index] = lost
        error[index] = 8.0 * at.rounding / values.min() * (abs(lost) + n * index.size)
    return evidence, error
