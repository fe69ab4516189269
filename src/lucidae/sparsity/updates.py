"""Update rules of the relevances and of the noise variance: one pure step each.

For a column φ with relevance w and row u of the coefficients, a = ‖u‖²/n, z = φᵀΣ⁻¹φ and
Q = ‖φᵀΣ⁻¹X‖²/n as in `State`, where X are the n responses and Σ is their covariance. The rules are
written in Q, because a = w²Q would leave 0/0 where a relevance is zero. None of them raises the
energy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from lucidae.arrays import Array, namespace
from lucidae.sparsity.groups import Groups
from lucidae.sparsity.state import State, positive

Update: TypeAlias = Callable[[State, Groups | None], Array]

SMALLEST_LEARNED = 1e-10
"""Learning never takes the noise variance below this share of the mean square response."""


def _totals(state: State, groups: Groups | None) -> tuple[Array, Array]:
    """Return the alignments Q and the curvatures z, as totals where columns are grouped."""
    if groups is None:
        return state.alignment, state.curvature
    return groups.share(state.alignment), groups.share(state.curvature)


def expectation_maximization(state: State, groups: Groups | None = None) -> Array:
    """Return w + w²(Q − z), the posterior second moment of each row: EM (Wipf & Rao 2007)."""
    alignment, curvature = _totals(state, groups)
    slope = alignment - curvature
    if groups is not None:
        slope = slope / groups.share(namespace(slope).ones_like(slope))
    grown = state.relevance * (1.0 + state.relevance * slope)
    return namespace(grown).maximum(grown, 0.0 * grown)


def majorize_minimize(state: State, groups: Groups | None = None) -> Array:
    """Return w √(Q/z), the minimum of a majoriser of the energy: MM (Wipf 2023, eq. 21)."""
    # log|Σ| is concave in w, with gradient z; the data term is the minimum over U of
    # ‖X − ΦU‖²/γ + Σ a/w. So a/w + zw majorises the energy, and is minimal at w = √(a/z).
    alignment, curvature = _totals(state, groups)
    return state.relevance * namespace(alignment).sqrt(alignment / positive(curvature))


def mackay(state: State, groups: Groups | None = None) -> Array:
    """Return w Q/z (MacKay 1992); the majoriser of MM is equal at both ends of this longer step."""
    alignment, curvature = _totals(state, groups)
    return state.relevance * (alignment / positive(curvature))


UPDATES: dict[str, Update] = {
    "em": expectation_maximization,
    "mm": majorize_minimize,
    "mackay": mackay,
}
"""The rules of the full energy."""


def learned_noise(state: State, degrees_of_freedom: Array) -> Array:
    """Return the noise variance γ that EM takes next: (‖X − ΦU‖²/n + γ·dof)/d.

    Φ is the dictionary with d rows, U are the coefficients, and dof are the degrees of freedom:
    tr(ΦWΦᵀΣ⁻¹) for the full posterior with relevances W. The result is never below
    `SMALLEST_LEARNED`.
    """
    xp = namespace(state.noise)
    noise = (state.residual + state.noise * degrees_of_freedom) / positive(state.dimension)
    return xp.maximum(noise, xp.full_like(noise, SMALLEST_LEARNED))
