"""Verification of fits with several dictionaries and one set of relevances: slopes are added."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import scipy.stats

from lucidae.sparsity.evaluation import (
    Evaluation,
    Sample,
    Weighted,
    evaluate_relevances,
    weighted_rows,
)
from lucidae.sparsity.figures import FINEST, SparseFigures
from lucidae.sparsity.verifier import (
    ACTIVE,
    COLLAPSE,
    LOOSEST,
    SMALLEST_LEARNED,
    SMALLEST_NOISE,
    STORED,
    EnergyKind,
    Fit,
    measure,
    slope_errors,
)

UNIT = float(np.finfo(float).eps)


class JointFit(NamedTuple):
    """Fitted numbers of F parts that share their relevances, to be verified."""

    coef: list[Any]  # (n_columns, n_responses): the coefficients of each part
    relevance: Any  # (n_columns,): the relevances
    noise: Any  # (F,): the noise variances
    energy: float  # the reported energy, summed over all parts
    support: Any  # the columns that are reported as significant
    # (F,): the noise variances that were asked for; None if they were learned
    given_noise: Any = None
    tolerance: float = FINEST  # distance to stationarity that was asked for
    # family-wise significance level of the test that decides which columns are in the support
    significance: float = 0.05


class JointPart(NamedTuple):
    """One part as the verifier sees it: its rows, its evaluation and its own measured values."""

    rows: Weighted
    at: Evaluation
    figures: SparseFigures
    weight: float
    exponent: Any

    def shared(self, values: Any) -> Any:
        """Return derivatives in the relevances, in the units of all parts."""
        return np.ldexp(values, self.exponent)


def measure_joint(samples: Sequence[Sample], fit: JointFit) -> SparseFigures:
    """Return the measured values of a fit of several parts that share their relevances."""
    with np.errstate(all="ignore"):  # figures of absurd numbers may overflow, and then fail
        return _measured(samples, fit)


def _measured(samples: Sequence[Sample], fit: JointFit) -> SparseFigures:
    """Return what `measure_joint` returns, without suppressing floating-point warnings."""
    w, noise = np.asarray(fit.relevance, dtype=float), np.asarray(fit.noise, dtype=float)
    tolerance = max(min(fit.tolerance, LOOSEST), FINEST)
    model = EnergyKind(tolerance=fit.tolerance, significance=fit.significance)
    own = [
        measure(sample, Fit(coef, relevance=w, noise=float(level)), model)
        for sample, coef, level in zip(samples, fit.coef, noise, strict=True)
    ]
    figures = _of_all_parts(samples, fit, own)
    if not all(np.isfinite(each.violation or 0.0) for each in own):
        rule = "learn" if fit.given_noise is None else "given"
        return replace(
            figures, violation=np.inf, tolerance=tolerance, mean_distance=np.inf, noise_rule=rule,
            noise_distance=np.inf, energy_distance=np.inf, support_wrong=int(np.size(fit.support)),
        )  # fmt: skip
    parts = _evaluated(samples, w, noise, own)
    return _judged(figures, parts, fit, tolerance)


def _of_all_parts(
    samples: Sequence[Sample], fit: JointFit, own: Sequence[SparseFigures]
) -> SparseFigures:
    """Return the values that need no evaluation: the error of the fit, and rows of coefficients."""
    power = residual = 0.0
    squares = np.zeros(np.size(fit.relevance))
    for sample, coef in zip(samples, fit.coef, strict=True):
        power += float(np.linalg.norm(sample.responses)) ** 2
        residual += float(np.linalg.norm(sample.responses - sample.dictionary @ coef)) ** 2
        lengths = np.linalg.norm(sample.dictionary, axis=0)
        squares += (np.linalg.norm(coef, axis=1) * lengths) ** 2
    norms = np.sqrt(squares)
    used = np.flatnonzero(norms > ACTIVE * norms.max(initial=0.0))
    error = (residual / power) ** 0.5 if power > 0 else 0.0
    return SparseFigures(
        "several dictionaries", None, None, error, error, int(used.size), norms.size, 0,
        norms[used], n_used=int(used.size), rows=sum(len(s.dictionary) for s in samples),
        mean_distance=max(each.mean_distance or 0.0 for each in own),
        mean_error=max(each.mean_error for each in own),
        mean_tolerance=max(each.mean_tolerance for each in own),
        reach=max(each.reach for each in own),
    )  # fmt: skip


def _evaluated(
    samples: Sequence[Sample], w: Any, noise: Any, own: Sequence[SparseFigures]
) -> list[JointPart]:
    """Return all parts, evaluated at their common relevances `w`."""
    # `measure` evaluates the parts too, but returns no derivatives of columns that are not active.
    rows = [weighted_rows(sample, None) for sample in samples]
    counts = [each.responses.shape[1] for each in rows]
    powers = [2 * (each.shifts - each.shift) for each in rows]
    highest = np.max(powers, axis=0)
    parts = []
    for each, power, level, count, figures in zip(rows, powers, noise, counts, own, strict=True):
        scaled = float(np.ldexp(level, -2 * each.shift))
        at = evaluate_relevances(each, np.ldexp(w, power), scaled)
        parts.append(JointPart(each, at, figures, count / sum(counts), power - highest))
    return parts


def _judged(
    figures: SparseFigures, parts: list[JointPart], fit: JointFit, tolerance: float
) -> SparseFigures:
    """Return `figures` with values about optimality, noise variances, energy and support."""
    # With z = φᴴΣ⁻¹φ and Q = ‖φᴴΣ⁻¹X‖²/n of each part, the derivative of the joint energy per
    # response is the mean of z − Q over all responses.
    z, Q, error = (np.zeros(figures.n_columns) for _ in range(3))
    active = np.zeros(figures.n_columns, dtype=bool)
    for part in parts:
        z += part.weight * part.shared(part.at.curvature)
        Q += part.weight * part.shared(part.at.alignment)
        error += part.weight * part.shared(slope_errors(part.at)[0])
        active |= part.at.relevance * part.at.curvature > ACTIVE
    w = np.ldexp(parts[0].at.relevance, -parts[0].exponent)
    excess, wide = (np.where(z > 0, x / np.where(z > 0, z, 1.0), 0.0) for x in (Q - z, error))
    slack = w * np.abs(Q - z)
    violation = float(max(slack.max(), excess.max()))
    high = float(max((slack + w * error).max(), (excess + wide).max()))
    low = float(max((slack - w * error).max(), (excess - wide).max()))
    outside = np.where(active | (z == 0), -np.inf, excess)
    bar = max(COLLAPSE, 10.0 * tolerance)
    unjustified = outside - wide > bar + figures.reach
    wrong, undecided = _support_differences(parts, fit)
    rule, distance = _noise_distance(parts, fit)
    energy = sum(float(part.figures.evidence["energy"]) for part in parts)
    entries = sum(part.rows.responses.size for part in parts)
    chosen = np.flatnonzero(active)
    return replace(
        figures,
        violation=violation,
        violation_error=min(max(high - violation, violation - low), LOOSEST),
        tolerance=max(tolerance, STORED * UNIT * (1.0 + np.count_nonzero(w) ** 0.5)),
        n_active=int(chosen.size),
        unjustified=int(unjustified.sum()),
        undecided=int(((outside + wide > bar) & ~unjustified).sum()),
        noise_rule=rule,
        noise_distance=distance,
        energy_distance=abs(float(fit.energy) - energy) / max(abs(energy), float(entries)),
        support_wrong=wrong,
        support_undecided=undecided,
        evidence={
            "noise_variance": np.asarray(fit.noise, dtype=float),
            "active": chosen,
            "relevance": np.asarray(fit.relevance, dtype=float)[chosen],
            "ratio": 1.0 + excess[chosen],
            "largest_ratio_outside": 1.0 + float(outside.max(initial=-1.0)),
            "energy": energy,
            "energies": np.array([part.figures.evidence["energy"] for part in parts]),
            "n_responses": np.array([part.rows.responses.shape[1] for part in parts]),
            "violation": violation,
            "mean_distance": figures.mean_distance,
            "relative_error": figures.relative_error,
            "given_noise": fit.given_noise,
            "tolerance": fit.tolerance,
            "significance": fit.significance,
        },
    )


def _support_differences(parts: list[JointPart], fit: JointFit) -> tuple[int, int]:
    """Return how many columns the support contains or lacks wrongly, and how many are undecided.

    The evidence, summed over all parts, is compared with the quantile of χ²₁ at 1 − α/κ.
    """
    size = parts[0].at.relevance.size
    evidence, error = np.zeros(size), np.zeros(size)
    for part in parts:
        at, n = part.at, part.rows.parts * part.rows.responses.shape[1]
        left = np.maximum(1.0 - at.relevance * at.curvature, UNIT)
        lost = n * (np.log(left) + at.relevance * at.alignment / left)
        evidence += lost
        error += np.where(at.relevance > 0, 8.0 * at.rounding / left * (np.abs(lost) + n), 0.0)
    threshold = float(scipy.stats.chi2.isf(fit.significance / size, 1))
    support = np.asarray(fit.support, dtype=int)
    claimed = np.isin(np.arange(size), support)
    different = claimed != (evidence > threshold)
    close = ~(np.abs(evidence - threshold) > error + 1e-9 * threshold)
    unknown = support.size - int(claimed.sum())  # no columns, or the same column twice
    return int((different & ~close).sum()) + unknown, int((different & close).sum())


def _noise_distance(parts: list[JointPart], fit: JointFit) -> tuple[str, float]:
    """Return how the noise variances were found, and their largest relative distance from that."""
    power = sum(float((np.abs(p.rows.responses) ** 2).sum()) * 4.0**p.rows.shift for p in parts)
    entries = sum(part.rows.responses.size for part in parts)
    mean_square = power / entries if power > 0 else 1.0
    noise = np.asarray(fit.noise, dtype=float)
    if fit.given_noise is not None:
        expected = np.maximum(np.asarray(fit.given_noise), SMALLEST_NOISE * mean_square)
        return "given", float(np.abs(noise / expected - 1.0).max())
    floored = noise <= 1.01 * SMALLEST_LEARNED * mean_square
    # The derivative of the energy in γ vanishes where γ = (‖X − ΦU‖²/n + γ tr(ΦWΦᴴΣ⁻¹))/d.
    changes = []
    for part, low in zip(parts, floored, strict=True):
        freedom = float((part.at.relevance * part.at.curvature).sum())
        target = (part.at.residual / part.at.noise + freedom) / part.rows.dimension
        changes.append(max(target - 1.0, 0.0) if low else abs(target - 1.0))
    return "floor" if floored.any() else "learn", float(max(changes))
