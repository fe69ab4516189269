"""Update rules of the relevances and of the noise variance; none raises the energy.

They are written with the alignment Q and not with the mean square a = w²Q of the coefficients,
which would give 0/0 if a relevance is zero.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from lucidae.arrays import Array, namespace
from lucidae.sparsity.prior import Groups
from lucidae.sparsity.state import State, positive

Update: TypeAlias = Callable[[State, Groups | None], Array]

SMALLEST_LEARNED = 1e-10
"""Smallest value of a learned noise variance, relative to the mean square response."""


def _totals(state: State, groups: Groups | None) -> tuple[Array, Array]:
    """Return the alignment and the curvature of each column, or of its group if it has one."""
    if groups is None:
        return state.alignment, state.curvature
    return groups.share(state.alignment), groups.share(state.curvature)


def expectation_maximization(state: State, groups: Groups | None = None) -> Array:
    """Return w + w²(Q − z), the posterior second moment: one EM step (Wipf & Rao 2007)."""
    alignment, curvature = _totals(state, groups)
    slope = alignment - curvature
    if groups is not None:
        slope = slope / groups.share(namespace(slope).ones_like(slope))
    grown = state.relevance * (1.0 + state.relevance * slope)
    return namespace(grown).maximum(grown, 0.0 * grown)


def majorize_minimize(state: State, groups: Groups | None = None) -> Array:
    """Return w √(Q/z), one step of majorise–minimise (Wipf 2023, eq. 21).

    It minimises an upper bound of the energy that is equal to it at w.
    """
    # log|Σ| is concave in w, with gradient z; the data term is the minimum over U of
    # ‖X − ΦU‖²/γ + Σ a/w. So a/w + zw majorises the energy, and is minimal at w = √(a/z).
    alignment, curvature = _totals(state, groups)
    return state.relevance * namespace(alignment).sqrt(alignment / positive(curvature))


def mackay(state: State, groups: Groups | None = None) -> Array:
    """Return w Q/z, one step of MacKay's rule (MacKay 1992).

    The bound of `majorize_minimize` has the same value before and after it, so that the energy does
    not rise.
    """
    alignment, curvature = _totals(state, groups)
    return state.relevance * (alignment / positive(curvature))


UPDATES: dict[str, Update] = {
    "em": expectation_maximization,
    "mm": majorize_minimize,
    "mackay": mackay,
}
"""The update rules, by name, for the loss of the VAE with full posterior covariance."""


def learned_noise(state: State, degrees_of_freedom: Array) -> Array:
    """Return (‖X − ΦU‖²/n + γ f)/d, at least `SMALLEST_LEARNED`: one EM step of γ.

    f are the effective parameters, `degrees_of_freedom`.
    """
    xp = namespace(state.noise)
    noise = (state.residual + state.noise * degrees_of_freedom) / positive(state.dimension)
    return xp.maximum(noise, xp.full_like(noise, SMALLEST_LEARNED))
