"""Energies as functions of one relevance or one coefficient, with all others fixed."""

from __future__ import annotations

from typing import Any

import numpy as np

from lucidae.arrays import Array, namespace, squared_moduli, to_numpy
from lucidae.sparsity.penalties import LogPenalty, Penalty, penalty_value
from lucidae.sparsity.state import State, leave_one_out


def full_slice(weight: Array, power: float, inner: float) -> Array:
    """Return a/(w + γ') + log(w + γ'): the full energy in one relevance w (Wipf 2023, eq. 54).

    a (`power`) is the mean square of the coefficients that fit the column to the residual of the
    others, and γ' (`inner`) their variance; `slice_parameters` computes them.
    """
    return power / (weight + inner) + namespace(weight).log(weight + inner)


def diagonal_slice(weight: Array, power: float, inner: float, outer: float) -> Array:
    """Return a/(w + γ') + log(w + γ''): the diagonal energy in one w (Wipf 2023, eq. 55)."""
    return power / (weight + inner) + namespace(weight).log(weight + outer)


def autoencoder_slice(
    value: Array, target: float, noise: float, penalty: Penalty | None = None
) -> Array:
    """Return u² − 2au + γh(u²): the autoencoder's energy in one u (Wipf 2023, eq. 63)."""
    chosen = LogPenalty() if penalty is None else penalty
    return value**2 - 2.0 * target * value + noise * penalty_value(chosen, value**2)


def full_slice_minima(power: float, inner: float) -> list[float]:
    """Return the only local minimum of `full_slice`, max(a − γ', 0) (Wipf 2023, Theorem 4.4)."""
    return [max(0.0, power - inner)]


def diagonal_slice_minima(power: float, inner: float, outer: float) -> list[float]:
    """Return the one or two local minima of `diagonal_slice` (Wipf 2023, Corollary 4.5).

    Stationary points are (a − 2γ' ± √(a² + 4a(γ'' − γ')))/2. The larger one is a minimum, the
    smaller one a maximum. If the maximum is positive, there is a second minimum at zero.
    """
    discriminant = power**2 + 4.0 * power * (outer - inner)
    rises_at_zero = power / inner**2 < 1.0 / outer
    edge = [0.0] if rises_at_zero else []
    if discriminant <= 0.0:
        return [0.0]
    far = (power - 2.0 * inner + discriminant**0.5) / 2.0
    return edge + ([far] if far > 0.0 else []) or [0.0]


def scan_minima(grid: Any, values: Any) -> list[float]:
    """Return the grid points at which sampled values have a strict local minimum, ends included."""
    heights = np.concatenate([[np.inf], to_numpy(values), [np.inf]])
    below = (heights[1:-1] < heights[:-2]) & (heights[1:-1] < heights[2:])
    return [float(point) for point in to_numpy(grid)[below]]


def slice_parameters(state: State, index: int) -> tuple[float, float, float]:
    """Return (a, γ', γ'') of the slices: q²/s², 1/s and γ/‖φ‖² (`leave_one_out`); γ'' ≤ γ'."""
    sparsities, qualities = leave_one_out(state)
    sparsity, quality = float(sparsities[index]), float(qualities[index])
    norm = float(namespace(state.noise).sum(squared_moduli(state.dictionary[:, index])))
    return quality / sparsity**2, 1.0 / sparsity, float(state.noise) / norm
