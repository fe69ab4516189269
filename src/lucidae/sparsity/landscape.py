"""Energies as functions of one relevance or coefficient, with all others fixed."""

from __future__ import annotations

from typing import Any

import numpy as np

from lucidae.arrays import Array, namespace, to_numpy
from lucidae.sparsity.penalties import LogPenalty, Penalty, penalty_value
from lucidae.sparsity.state import State
from lucidae.sparsity.support import leave_one_out


def full_slice(weight: Array, power: float, inner: float) -> Array:
    """Return a/(w + γ') + log(w + γ'), the full energy along one relevance w (Wipf 2023, eq. 54).

    `power` is a and `inner` is γ', see `slice_parameters`.

    Examples
    --------
    >>> float(full_slice(np.array(9.0), power=10.0, inner=1.0).round(4))
    3.3026
    """
    return power / (weight + inner) + namespace(weight).log(weight + inner)


def diagonal_slice(weight: Array, power: float, inner: float, outer: float) -> Array:
    """Return a/(w + γ') + log(γ'' + w), the diagonal energy along one relevance w.

    This is Wipf 2023, eq. 55. `power` is a, `inner` is γ' and `outer` is γ'', see
    `slice_parameters`.

    Examples
    --------
    >>> float(diagonal_slice(np.array(0.0), power=10.0, inner=1.0, outer=0.01).round(4))
    5.3948
    """
    return power / (weight + inner) + namespace(weight).log(weight + outer)


def autoencoder_slice(
    value: Array, target: float, noise: float, penalty: Penalty | None = None
) -> Array:
    """Return u² − 2au + γh(u²), the energy of the autoencoder in one coefficient u.

    This is Wipf 2023, eq. 63. `target` is a, `noise` the noise variance γ and `penalty` h, by
    default the logarithm.
    """
    chosen = LogPenalty() if penalty is None else penalty
    return value**2 - 2.0 * target * value + noise * penalty_value(chosen, value**2)


def full_slice_minima(power: float, inner: float) -> list[float]:
    """Return the minima over w ≥ 0 of `full_slice`: always exactly one (Wipf 2023, Theorem 4.4).

    Examples
    --------
    >>> full_slice_minima(10.0, 1.0)
    [9.0]
    """
    return [max(0.0, power - inner)]


def diagonal_slice_minima(power: float, inner: float, outer: float) -> list[float]:
    """Return the minima over w ≥ 0 of `diagonal_slice`: one or two (Wipf 2023, Corollary 4.5).

    The stationary points are (a − 2γ' ± √(a² + 4a(γ'' − γ')))/2; the larger is a minimum, the
    smaller a maximum which, where it is positive, separates a second minimum at zero.

    Examples
    --------
    >>> [round(w, 4) for w in diagonal_slice_minima(10.0, 1.0, 0.01)]
    [0.0, 7.8859]
    """
    discriminant = power**2 + 4.0 * power * (outer - inner)
    rises_at_zero = power / inner**2 < 1.0 / outer
    edge = [0.0] if rises_at_zero else []
    if discriminant <= 0.0:
        return [0.0]
    far = (power - 2.0 * inner + discriminant**0.5) / 2.0
    return edge + ([far] if far > 0.0 else []) or [0.0]


def scan_minima(grid: Any, values: Any) -> list[float]:
    """Return the grid points at which sampled values have a strict local minimum, ends included.

    Examples
    --------
    >>> scan_minima(np.arange(5.0), np.array([1.0, 2.0, 0.0, 1.0, 0.5]))
    [0.0, 2.0, 4.0]
    """
    heights = np.concatenate([[np.inf], to_numpy(values), [np.inf]])
    below = (heights[1:-1] < heights[:-2]) & (heights[1:-1] < heights[2:])
    return [float(point) for point in to_numpy(grid)[below]]


def slice_parameters(state: State, index: int) -> tuple[float, float, float]:
    """Return (a, γ', γ'') of one column's slice through a state.

    With the sparsity s and the squared quality q² of the column φ (see `leave_one_out`), γ' = 1/s,
    a = q²/s² and γ'' = γ/‖φ‖², where γ is the noise variance. γ'' is never larger than γ'.
    """
    sparsities, qualities = leave_one_out(state)
    sparsity, quality = float(sparsities[index]), float(qualities[index])
    norm = float(namespace(state.noise).sum(state.dictionary[:, index] ** 2))
    return quality / sparsity**2, 1.0 / sparsity, float(state.noise) / norm
