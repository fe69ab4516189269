"""How many components of a network exceed the sampling noise of its data."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
from scipy.stats import chi2

from lucidae.sampling import separated_components

Matrix = np.ndarray[Any, Any]

EXCEEDED = 1e-3
"""Largest probability with which a singular value of pure noise exceeds `noise_level`."""

UNDERESTIMATED = 1e-2
"""Largest probability with which the noise variance exceeds the one that `noise_level` uses."""

NOT_A_SAMPLE = (
    "The matrix itself is given, not rows that were drawn from a population, so there is no "
    "sampling noise to compare with."
)


class Separation(NamedTuple):
    """How many leading components of a network exceed sampling noise, and a sentence on it."""

    # number of leading singular values that exceed sampling noise; None if this is not known
    number: int | None
    sentence: str  # the number in words, or why it is not known


def separated_from_noise(
    spectrum: Matrix, residual: Matrix | None, n_inputs: int, n_rows: float | None, width: int
) -> Separation:
    """Return how many leading singular values of the data exceed sampling noise."""
    judged = min(width, len(spectrum))
    if n_rows is None:
        return Separation(None, NOT_A_SAMPLE)
    if residual is None:
        count = int(separated_components(spectrum**2, n_rows, judged).sum())
    elif n_rows > n_inputs:
        count = int((spectrum[:judged] > noise_level(residual, n_inputs, n_rows)).sum())
    else:
        why = (
            f"The number of rows (less one, if the mean was estimated) is {n_rows:g}, too few to "
            f"estimate the effects of {n_inputs} inputs and the variance of the noise."
        )
        return Separation(None, why)
    return Separation(
        count,
        f"{count} of the {judged} leading components exceed the sampling noise of {n_rows:g} rows.",
    )


def noise_level(residual: Matrix, n_inputs: int, n_rows: float) -> float:
    """Return the size that singular values of the least-squares map M reach by noise alone.

    If the m targets of the n rows do not depend on the q inputs, which are whitened, M consists of
    q independent columns of noise with covariance S/n, where S is the covariance of the residuals.
    Let s be the largest eigenvalue of S. The probability that the largest singular value of M
    exceeds (√s (√q + t) + √tr S)/√n is at most exp(−t²/2) (Davidson & Szarek 2001, Theorem II.13;
    for S = σ²I and t = 0 this is the noise level σ(√q + √m)/√n of reduced-rank regression, Bunea,
    She & Wegkamp 2011).

    S is estimated from the residuals with n − q degrees of freedom for each independent target, and
    enlarged to an upper confidence limit of the χ² distribution.
    """
    variances = np.clip(scipy.linalg.eigvalsh(residual), 0.0, None)
    top, total = float(variances[-1]), float(variances.sum())
    if top == 0:
        return 0.0
    freedom = (n_rows - n_inputs) * total / top
    enlarged = n_rows / (n_rows - n_inputs) * freedom / float(chi2.ppf(UNDERESTIMATED, freedom))
    margin = math.sqrt(-2.0 * math.log(EXCEEDED))
    level = math.sqrt(top) * (math.sqrt(n_inputs) + margin) + math.sqrt(total)
    return level * math.sqrt(enlarged / n_rows)
