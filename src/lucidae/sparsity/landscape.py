"""Energies as functions of one relevance or one coefficient, with all others fixed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lucidae.arrays import Array, like, namespace, scalar, squared_moduli, to_numpy
from lucidae.sparsity.objectives import Autoencoder, DiagonalCovariance, FullCovariance
from lucidae.sparsity.penalties import LogPenalty, Penalty, penalty_value
from lucidae.sparsity.prior import Groups
from lucidae.sparsity.problem import Problem, Units
from lucidae.sparsity.state import State, evaluate, leave_one_out
from lucidae.validation import check_choice

SLICE_POINTS = 400
"""Number of relevances at which a slice is evaluated."""

SLICE_RANGE = 1e-4, 1e2
"""Smallest and largest positive relevance of a slice, relative to its scale."""


@dataclass(frozen=True, eq=False)
class EnergySlice:
    """Energies (losses) along one relevance, with all others fixed (Wipf 2023, Figure 1).

    `SparseVAE.energy_slice` computes one.

    Parameters
    ----------
    column : int
        The column, or a column of the group, whose relevance (prior variance) is varied.
    fitted : float
        Its fitted relevance.
    relevance : ndarray of shape (m,)
        The relevances, ascending; the first is zero.
    full, diagonal, point : ndarray of shape (m,)
        Energies of the VAE with a full and with a diagonal posterior covariance, and of the
        deterministic autoencoder, summed over the outputs. The last one tends to −∞ with the
        relevance if its penalty is the logarithm; at zero it is NaN.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((20, 30))
    >>> y = X[:, [4]] @ rng.standard_normal((1, 5)) + 0.1 * rng.standard_normal((20, 5))
    >>> from lucidae import SparseVAE
    >>> model = SparseVAE(noise_variance=0.01).fit(X, y)
    >>> along = model.energy_slice(4)
    >>> [len(along.minima(name)) for name in ("full", "diagonal")]
    [1, 1]
    """

    column: int
    fitted: float
    relevance: Any
    full: Any
    diagonal: Any
    point: Any

    def __repr__(self) -> str:
        return f"EnergySlice(column={self.column}, {len(self.relevance)} relevances)"

    def minima(self, posterior: str) -> Any:
        """Return the relevances at which an energy has a local minimum on the slice.

        Parameters
        ----------
        posterior : {"full", "diagonal", "point"}
            Which of the three energies.

        Returns
        -------
        ndarray of float
            The relevances, ascending. The point estimate has no minimum at zero where its energy is
            −∞.
        """
        name = check_choice(posterior, "posterior", ("full", "diagonal", "point"))
        values = getattr(self, name)
        # The ends are minima only at zero: beyond the others the energies continue.
        found = scan_minima(self.relevance[np.isfinite(values)], values[np.isfinite(values)])
        ends = [self.relevance[-1], self.relevance[1]] if name == "point" else [self.relevance[-1]]
        return np.array([w for w in found if w not in ends], dtype=float)

    def plot(self, *, ax: Any = None, **line: Any) -> Any:
        """Draw the three energies; see `lucidae.displays.EnergySliceDisplay`.

        Parameters
        ----------
        ax : matplotlib axes, optional
            Axes to draw on; by default a new figure is made.
        **line
            Keyword arguments of ``ax.plot``.

        Returns
        -------
        EnergySliceDisplay
            The display, already drawn.
        """
        from lucidae.displays import EnergySliceDisplay

        return EnergySliceDisplay(self).plot(ax=ax, **line)


def energy_slice(
    problem: Problem, units: Units, relevance: Array, column: int, penalty: Penalty,
    groups: Groups | None, volume: float,
) -> EnergySlice:  # fmt: skip
    """Return the energies along the relevance of one column (or its group) of a problem."""
    moving = np.array([column])
    if groups is not None:
        moving = np.flatnonzero(groups.labels == groups.labels[column])
    # Columns of relevance zero add constants alone, so that they are left out.
    index = np.union1d(np.flatnonzero(to_numpy(relevance)), moving)
    part = problem.restricted(index)
    inside = None if groups is None else groups.restricted(index)
    weights, chosen = to_numpy(relevance)[index], np.isin(index, moving)
    state = evaluate(part, like(np.where(chosen, 0.0, weights), problem.noise))
    z, Q = (to_numpy(values)[chosen].sum() for values in (state.curvature, state.alignment))
    scale = max(float(weights[chosen].max()), chosen.sum() / z, Q / z**2) if z > 0 else 1.0
    grid = np.concatenate([[0.0], scale * np.geomspace(*SLICE_RANGE, SLICE_POINTS)])
    energies = {
        "full": FullCovariance(inside),
        "diagonal": DiagonalCovariance(inside),
        "point": Autoencoder(penalty, inside),
    }
    found: dict[str, list[float]] = {name: [] for name in energies}
    for value in grid:
        at = evaluate(part, like(np.where(chosen, value, weights), problem.noise))
        for name, energy in energies.items():
            extra = units.n_responses * volume if energy.has_posterior else 0.0
            found[name].append(scalar(energy.in_units(energy.value(at), units)) + extra)
    arrays = {name: np.array(values) for name, values in found.items()}
    arrays["point"][0] = np.nan
    given = to_numpy(units.relevance(like(np.ones(problem.columns), problem.noise)))[column]
    fitted = float(weights[chosen][0] * given)
    return EnergySlice(column, fitted, grid * given, **arrays)


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
