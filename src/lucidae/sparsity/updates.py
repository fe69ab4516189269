"""One step of each majorise–minimise rule: from a state to new relevances or a new noise."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from lucidae._arrays import Array, namespace
from lucidae.sparsity.groups import Groups
from lucidae.sparsity.objectives import Autoencoder, DiagonalCovariance
from lucidae.sparsity.state import State, positive

Update: TypeAlias = Callable[[State, Groups | None], Array]


def _pair(state: State, groups: Groups | None) -> tuple[Array, Array]:
    """Alignments and curvatures, as totals where columns are grouped."""
    if groups is None:
        return state.alignment, state.curvature
    return groups.share(state.alignment), groups.share(state.curvature)


def expectation_maximization(state: State, groups: Groups | None = None) -> Array:
    """EM: w ← w + w²(Q − z), the posterior second moment of each row (Wipf & Rao 2007)."""
    alignment, curvature = _pair(state, groups)
    slope = alignment - curvature
    if groups is not None:
        slope = slope / groups.share(namespace(slope).ones_like(slope))
    grown = state.relevance * (1.0 + state.relevance * slope)
    return namespace(grown).maximum(grown, 0.0 * grown)


def majorize_minimize(state: State, groups: Groups | None = None) -> Array:
    """MM: w ← w √(Q/z), from the tangent of log|Σ| (Wipf 2023, eq. 21)."""
    alignment, curvature = _pair(state, groups)
    return state.relevance * namespace(alignment).sqrt(alignment / positive(curvature))


def mackay(state: State, groups: Groups | None = None) -> Array:
    """MacKay: w ← w Q/z; the MM majoriser is equal at both ends of this longer step."""
    alignment, curvature = _pair(state, groups)
    return state.relevance * (alignment / positive(curvature))


def diagonal_minimizer(state: State, groups: Groups | None = None) -> Array:
    """Diagonal posterior: the minimiser of a/w + log(γ + wc), from eq. 50 with U held fixed.

    For a group the tangent of the logarithms is minimised in place of the logarithms.
    """
    xp = namespace(state.noise)
    if groups is not None:
        pressure = groups.share(DiagonalCovariance().pressure(state))
        return xp.sqrt(groups.share(state.power) / positive(pressure))
    norms = positive(xp.sum(state.dictionary**2, axis=-2))
    power = state.power
    return (power + xp.sqrt(power * (power + 4.0 * state.noise[..., None] / norms))) / 2.0


def reweighting(objective: Autoencoder) -> Update:
    """Deterministic autoencoder: w ← 1/h′(a), iteratively reweighted ridge regression."""

    def update(state: State, _: Groups | None = None) -> Array:
        return objective.target(state)

    return update


UPDATES: dict[str, Update] = {
    "em": expectation_maximization,
    "mm": majorize_minimize,
    "mackay": mackay,
}


def noise_by_expectation(state: State, degrees_of_freedom: Array) -> Array:
    """EM for γ: (‖X − ΦU‖²/n + γ·dof)/d, dof = tr(ΦWΦᵀΣ⁻¹) for the full posterior."""
    return (state.residual + state.noise * degrees_of_freedom) / state.dimension


def noise_by_majorization(state: State) -> Array:
    """MM for γ: √(‖X − ΦU‖²/(n tr Σ⁻¹)), jointly monotone with the MM update of w."""
    rows = float(state.dictionary.shape[-2])
    inverse_trace = (rows - state.used + state.spare) / state.noise
    return namespace(state.noise).sqrt(state.residual / inverse_trace)
