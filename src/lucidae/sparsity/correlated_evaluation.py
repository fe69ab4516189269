"""Evaluation of relevances for the verifier if the coefficients of the responses are correlated.

The coefficients of a column with relevance (prior variance) w have the prior N(0, wB) over the n
responses X, where the n × n matrix B is the same for all columns. With the eigenvectors V of B the
columns of XV are independent, and column t has the relevances λₜw, where λₜ is an eigenvalue of B.
Each column is evaluated by itself with `evaluate_relevances`, by a QR decomposition of its own. The
solver instead diagonalises one matrix for all responses.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lucidae.sparsity.evaluation import Evaluation, Weighted, evaluate_relevances, leverages

STEP = 0.01
"""Change of artanh ρ, for the correlation ρ of successive responses, to values that are compared.

The energy (loss) at the fitted ρ is compared with that at the two changed values."""

LARGEST_CORRELATION = 0.999
"""Largest absolute correlation of successive responses that the estimator learns.

A fit at this limit is compared with smaller correlations only."""

UNIT = float(np.finfo(float).eps)


def evaluate_correlated(
    rows: Weighted, w: Any, noise: float, covariance: Any, labels: Any = None
) -> Evaluation:
    """Return the `Evaluation` of relevances if coefficients are correlated over the responses.

    The coefficients of a column with relevance (prior variance) w have the prior covariance wB over
    the n responses, where B is `covariance`; `noise` is the noise variance. `labels` are the groups
    of the columns, or None. Curvature, alignment, data term, log-determinant and residual of the
    result are means over the responses. It also contains the evidence of each column (twice the
    log-likelihood that is lost without it) and, of shape (d, n) for d rows, the posterior variances
    of the predicted means divided by the noise variance.
    """
    values, vectors = np.linalg.eigh(covariance)
    values = np.maximum(values, 0.0)
    rotated, n = rows.responses @ vectors, values.size
    curvature, alignment, evidence, error = (np.zeros(w.size) for _ in range(4))
    means, sums, spread = np.zeros((w.size, n)), np.zeros(3), np.zeros((rotated.shape[0], n))
    rounding, reach = 0.0, 0.0
    for t, value in enumerate(values):
        one = rows._replace(responses=rotated[:, t : t + 1])
        at = evaluate_relevances(one, value * w, noise)
        curvature += value * at.curvature / n
        alignment += value * at.alignment / n
        means[:, t] = at.mean[:, 0]
        sums += np.array([at.fit, at.log_determinant, at.residual]) / n
        spread[:, t] = leverages(rows, value * w, noise)
        rounding, reach = max(rounding, at.rounding), max(reach, at.reach)
        lost, inaccuracy = _lost(at, labels)
        evidence += lost
        error += inaccuracy
    fit, log_determinant, residual = (float(each) for each in sums)
    return Evaluation(
        w, noise, None, None, curvature, alignment, means @ vectors.T, fit, log_determinant,
        residual, rounding, reach, (evidence, error), spread @ (vectors**2).T,
    )  # fmt: skip


def _lost(at: Evaluation, labels: Any) -> tuple[Any, Any]:
    """Return twice the log-likelihood of one response that is lost without each column or group.

    The second array contains bounds on the rounding errors. `labels` are the groups of the columns,
    or None. Let Φ_g be the columns of a group, w their relevance (prior variance) and Σ the
    covariance of the response. Without the group it is Σ − wΦ_gΦ_gᵀ. Its determinant is |Σ||M| with
    M = I − wΦ_gᵀΣ⁻¹Φ_g, and its inverse is Σ⁻¹ + wΣ⁻¹Φ_g M⁻¹ Φ_gᵀΣ⁻¹ (Woodbury).
    """
    w, evidence, error = at.relevance, np.zeros(at.relevance.size), np.zeros(at.relevance.size)
    labels = np.arange(w.size) if labels is None else labels
    for label in np.unique(labels[w > 0]):
        index = np.flatnonzero(labels == label)
        weight, columns = float(w[index].max()), at.whitened[:, index]
        values, vectors = np.linalg.eigh(np.eye(index.size) - weight * columns.T @ columns)
        values = np.maximum(values, UNIT)
        powers = ((vectors.T @ at.loading[index]) ** 2).sum(axis=1)
        lost = np.log(values).sum() + weight * (powers / values).sum()
        evidence[index] = lost
        error[index] = 8.0 * at.rounding / values.min() * (abs(lost) + index.size)
    return evidence, error


def correlation_gain(rows: Weighted, w: Any, noise: float, covariance: Any) -> float:
    """Return by how much a nearby correlation of responses lowers the energy (loss) per response.

    `covariance` should be that of an autoregressive model of order one, AR(1), whose correlation ρ
    of successive responses is read from it. The energy is compared with those at the two nearby
    values of ρ at which artanh ρ differs by `STEP`. The result is zero if neither lowers the
    energy, and infinite if `covariance` is not that of an AR(1) model.
    """
    n = len(covariance)
    correlation = float(covariance[0, 1] / covariance[0, 0])
    if not abs(correlation) < 1.0:
        return np.inf
    places = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    if not np.abs(correlation**places - covariance).max() <= 1e-8:
        return np.inf
    angle, bound = np.arctanh(correlation), np.arctanh(LARGEST_CORRELATION) + 1e-6
    angles = [angle, *(each for each in (angle - STEP, angle + STEP) if abs(each) <= bound)]
    here, *beside = (_energy(rows, w, noise, np.tanh(each) ** places) for each in angles)
    return float(max(0.0, here - min(beside)))


def _energy(rows: Weighted, w: Any, noise: float, covariance: Any) -> float:
    """Return the energy (loss) per response, up to a constant, for correlated responses.

    `w` are the relevances (prior variances), `noise` is the noise variance, and `covariance` that
    of the responses.
    """
    used = np.flatnonzero(w)
    values, vectors = np.linalg.eigh(covariance)
    rotated, total = rows.responses @ vectors, 0.0
    columns = rows.dictionary[:, used]
    for t, value in enumerate(np.maximum(values, 0.0)):
        one = rows._replace(dictionary=columns, responses=rotated[:, t : t + 1])
        at = evaluate_relevances(one, value * w[used], noise)
        total += (at.fit + at.log_determinant) / values.size
    return total
