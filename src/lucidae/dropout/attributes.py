"""Comparison of the fitted attributes of a dropout network with its weights and its data."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy.linalg

from lucidae.dropout.figures import ATTRIBUTES, EPSILON, MEAN_ERROR, ReportedAttributes
from lucidae.dropout.reduction import RANGE_FACTOR, Case, host, relative_distance

Matrix = np.ndarray[Any, Any]

CLEAR = 1e3
"""The range of the inputs (the directions in which they vary) counts as known if the smallest pivot
of their triangular factorisation exceeds the rounding errors by this factor."""


def worst_attribute(
    reported: ReportedAttributes | None, value: float, value_error: float, case: Case
) -> tuple[float, float] | None:
    """Return the relative error of the least accurate fitted attribute, and its rounding error.

    Every reported attribute is compared with the value computed from the weights and the data. An
    attribute whose difference certainly exceeds its rounding error takes precedence over one whose
    difference may be a rounding error. The result is None if no attributes were reported.
    """
    if reported is None:
        return None
    given = case.units.reported(reported)
    pairs = [
        *_solution_differences(given, case),
        *_function_differences(given, case),
        *((abs(a - b) / max(abs(b), EPSILON), 0.0) for a, b in given.settings),
        (abs(given.objective - value) / case.scale, value_error / case.scale),
        _outside_range(case, given.precision),
    ]
    if given.rows is not None:
        error = (given.rows[1] + value_error) / case.scale
        pairs.append((abs(given.rows[0] - value) / case.scale, error))
    pairs = [(math.inf if math.isnan(difference) else difference, e) for difference, e in pairs]
    certain = max(pairs, key=lambda pair: pair[0] - pair[1])
    return certain if certain[0] - certain[1] > ATTRIBUTES else max(pairs, key=sum)


def _solution_differences(given: ReportedAttributes, case: Case) -> list[tuple[float, float]]:
    """Return relative errors of ``singular_values_``, ``threshold_`` and ``rank_``, with bounds.

    Each pair consists of the difference between a reported value and the one computed from the
    data, relative to the largest singular value, and a bound on its rounding error. The reported
    threshold α and rank ρ must also fit the singular values s₁ ≥ s₂ ≥ … of the least-squares map: α
    < s_ρ and, unless ρ is the number of hidden units, s_{ρ+1} ≤ α.
    """
    optimum, width = case.bound, case.width
    values, reported = optimum.singular_values, host(given.singular_values)
    top = float(values.max(initial=0.0)) or 1.0
    count = min(len(reported), len(values))
    # Singular values outside the range of the inputs may be given as zeros or left out.
    others = [float(part.max(initial=0.0)) for part in (reported[count:], values[count:width])]
    rank, threshold = given.rank, float(given.threshold)
    following = float(values[rank]) if rank < min(len(values), width) else 0.0
    last = float(values[rank - 1]) if 0 < rank <= len(values) else math.inf
    last = -math.inf if rank > min(len(values), width) else last
    rounding = given.precision * np.abs(values[:count])
    distances = np.abs(reported[:count] - values[:count]) - rounding
    differences = [
        abs(threshold - optimum.threshold) / top,
        float(distances.max(initial=0.0)) / top,
        float(np.max(others)) / top,
        (following - threshold) / top if rank < width else 0.0,
        (threshold - last) / top,
        math.inf if len(reported) > width else 0.0,
    ]
    error = case.uncertainty / top
    return [(difference, error) for difference in differences]


def _function_differences(given: ReportedAttributes, case: Case) -> list[tuple[float, float]]:
    """Return relative errors of ``coef_``, mean prediction and ``mean_``, with error bounds.

    The attributes are compared with values computed from the weights and the data. Each attribute
    gives a pair: the relative difference and a bound on its rounding error. An attribute that the
    estimator does not have gives no pair.
    """
    deviations, size = case.data.deviations, math.sqrt(case.scale)
    pairs = [] if given.coef is None else _coefficient_differences(given, case, deviations)
    if given.output_bias is not None:
        biases = zip(given.output_bias, given.output_bias_error, strict=True)
        pairs += [(float(bias) / size, float(error) / size) for bias, error in biases]
    if given.mean_shift is not None:
        pairs.append((deviations_away(np.abs(host(given.mean_shift)), deviations), MEAN_ERROR))
    return pairs


def deviations_away(shift: Matrix, deviations: Matrix) -> float:
    """Return the largest of the differences `shift` in units of standard deviations.

    Both arrays have one entry per feature: `shift` contains absolute differences of means, and
    `deviations` standard deviations. The result is infinite if the mean of a constant feature
    differs.
    """
    unit = np.where(deviations > 0, deviations, 1.0)
    away = np.where(deviations > 0, shift / unit, np.where(shift > 0, math.inf, 0.0))
    return float(away.max())


def _coefficient_differences(
    given: ReportedAttributes, case: Case, deviations: Matrix
) -> list[tuple[float, float]]:
    """Return two relative errors of ``coef_``, each with a bound on its rounding error.

    ``coef_`` should be UVᵀ, with the weights U = ``left_`` and V = ``right_``. Rounding to the
    dtype of ``coef_`` does not count as an error. The first error is relative to the norm of UVᵀ.
    The second weights each coefficient by the standard deviation of its feature (`deviations`), and
    so measures the effect on the predictions: an error in the coefficient of a feature of small
    scale may not matter, one of a feature of large scale may matter much.
    """
    product = case.left @ case.right.T
    wrong = np.abs(host(given.coef).reshape(product.shape) - product)
    wrong = np.clip(wrong - given.precision * np.abs(product), 0.0, None)
    noise = case.width * EPSILON * (np.abs(case.left) @ np.abs(case.right).T)
    plain, effect = float(np.linalg.norm(product)) or 1.0, math.sqrt(case.scale)
    norm = np.linalg.norm
    return [
        (float(norm(wrong)) / plain, float(norm(noise)) / plain),
        (float(norm(wrong * deviations)) / effect, float(norm(noise * deviations)) / effect),
    ]


def _outside_range(case: Case, precision: float) -> tuple[float, float]:
    """Return the relative norm of the part of V outside the inputs' range, and an error bound.

    V are the incoming weights ``right_``; the range is spanned by the directions in which the
    inputs vary. The loss does not depend on that part, and the estimators return the weights of
    smallest norm, for which it is zero. The returned norm is reduced by `precision`, the rounding
    unit of the weights. The error bound is infinite if directions of small variance cannot be
    distinguished from rounding errors; the certificate then leaves the claim about the attributes
    undecided.
    """
    lower, right = case.reduced.lower, case.right
    if lower is None or lower.shape[0] in (0, lower.shape[1]):
        return 0.0, 0.0
    condition, variances = case.reduced.condition, case.data.deviations**2
    variances = variances[variances > 0]
    # In features of very different scales the range is known to the precision of the largest.
    grading = math.sqrt(float(variances.max() / variances.min()))
    spread = (condition if case.data.root is None else math.sqrt(condition)) * grading
    if spread * CLEAR * RANGE_FACTOR * lower.shape[1] * EPSILON > 1.0:
        return 0.0, math.inf
    basis, _ = scipy.linalg.qr(lower.T, mode="economic")
    return max(relative_distance(basis @ (basis.T @ right), right) - precision, 0.0), 0.0
