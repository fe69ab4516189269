"""Sparse energies (losses) as functions of one relevance or one coefficient, with all others fixed.

The relevance of a column is the prior variance of its coefficients.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lucidae.arrays import Array, namespace, squared_moduli, to_numpy
from lucidae.sparsity.penalties import LogPenalty, Penalty, penalty_value
from lucidae.sparsity.state import State
from lucidae.sparsity.support import leave_one_out


def full_slice(weight: Array, power: float, inner: float) -> Array:
    """Return the energy of the full-covariance VAE as a function of one relevance.

    The energy is the loss, and the relevance of a column is the prior variance of its coefficients;
    all other relevances are fixed. Up to a constant the energy is a/(w + γ') + log(w + γ') (Wipf
    2023, eq. 54). The relevance w is `weight`. a (`power`) is the mean square of the coefficients
    that fit the column to the residual of the other columns, and γ' (`inner`) is the variance of
    these coefficients; `slice_parameters` computes both.
    """
    return power / (weight + inner) + namespace(weight).log(weight + inner)


def diagonal_slice(weight: Array, power: float, inner: float, outer: float) -> Array:
    """Return the energy of the diagonal-covariance VAE as a function of one relevance.

    The energy is the loss, and the relevance of a column is the prior variance of its coefficients;
    all other relevances are fixed. Up to a constant the energy is a/(w + γ') + log(w + γ'') (Wipf
    2023, eq. 55). The relevance w is `weight`. a (`power`) is the mean square of the coefficients
    that fit the column to the residual of the other columns, γ' (`inner`) is the variance of these
    coefficients, and γ'' (`outer`) the noise variance divided by the column's squared norm;
    `slice_parameters` computes all three.
    """
    return power / (weight + inner) + namespace(weight).log(weight + outer)


def autoencoder_slice(
    value: Array, target: float, noise: float, penalty: Penalty | None = None
) -> Array:
    """Return the energy of the deterministic autoencoder as a function of one coefficient.

    This is u² − 2au + γh(u²) (Wipf 2023, eq. 63). The coefficient u is `value`, a is the response
    `target`, γ is the noise variance `noise` and h is `penalty`, by default the logarithm.
    """
    chosen = LogPenalty() if penalty is None else penalty
    return value**2 - 2.0 * target * value + noise * penalty_value(chosen, value**2)


def full_slice_minima(power: float, inner: float) -> list[float]:
    """Return the relevances w ≥ 0 that are local minima of `full_slice`: a list with one number.

    `full_slice` is the loss of the full-covariance VAE as a function of one relevance, the prior
    variance of a column's coefficients. There is always exactly one minimum (Wipf 2023, Theorem
    4.4): a − γ', or 0 if that is negative. a (`power`) is the mean square of the coefficients that
    fit the column to the residual of the other columns, and γ' (`inner`) is their variance.
    """
    return [max(0.0, power - inner)]


def diagonal_slice_minima(power: float, inner: float, outer: float) -> list[float]:
    """Return the relevances w ≥ 0 that are local minima of `diagonal_slice`: one or two numbers.

    `diagonal_slice` is the loss of the diagonal-covariance VAE as a function of one relevance, the
    prior variance of a column's coefficients. See Wipf 2023, Corollary 4.5. a (`power`) is the mean
    square of the coefficients that fit the column to the residual of the other columns, γ'
    (`inner`) is their variance, and γ'' (`outer`) the noise variance divided by the column's
    squared norm. The stationary points are (a − 2γ' ± √(a² + 4a(γ'' − γ')))/2. The larger one is a
    minimum, the smaller one a maximum. If the maximum is positive, there is a second minimum at
    zero.
    """
    discriminant = power**2 + 4.0 * power * (outer - inner)
    rises_at_zero = power / inner**2 < 1.0 / outer
    edge = [0.0] if rises_at_zero else []
    if discriminant <= 0.0:
        return [0.0]
    far = (power - 2.0 * inner + discriminant**0.5) / 2.0
    return edge + ([far] if far > 0.0 else []) or [0.0]


def scan_minima(grid: Any, values: Any) -> list[float]:
    """Return the grid points at which sampled values have a strict local minimum.

    An end point is a minimum if its value is below that of its only neighbour.
    """
    heights = np.concatenate([[np.inf], to_numpy(values), [np.inf]])
    below = (heights[1:-1] < heights[:-2]) & (heights[1:-1] < heights[2:])
    return [float(point) for point in to_numpy(grid)[below]]


def slice_parameters(state: State, index: int) -> tuple[float, float, float]:
    """Return the parameters (a, γ', γ'') of the energy as a function of one relevance.

    They are the arguments `power`, `inner` and `outer` of `full_slice` and `diagonal_slice`; all
    other relevances are those of `state`. With the sparsity s and the squared quality q² of the
    column φ (see `leave_one_out`), a = q²/s², γ' = 1/s and γ'' = γ/‖φ‖², where γ is the noise
    variance. γ'' is never larger than γ'.
    """
    sparsities, qualities = leave_one_out(state)
    sparsity, quality = float(sparsities[index]), float(qualities[index])
    norm = float(namespace(state.noise).sum(squared_moduli(state.dictionary[:, index])))
    return quality / sparsity**2, 1.0 / sparsity, float(state.noise) / norm
