"""Update rules of the relevances and of the noise variance, each as a function that makes one step.

The relevance w of a column φ is the prior variance of its coefficients u. As in `State`, its
curvature is z = φᵀΣ⁻¹φ and its alignment is Q = ‖φᵀΣ⁻¹X‖²/n, where X are the n responses and Σ is
their covariance. The rules are written in terms of Q and not of the mean square a = ‖u‖²/n = w²Q of
the coefficients, which would give 0/0 if a relevance is zero. No rule raises the energy (loss).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from lucidae.arrays import Array, namespace
from lucidae.sparsity.groups import Groups
from lucidae.sparsity.state import State, positive

Update: TypeAlias = Callable[[State, Groups | None], Array]

SMALLEST_LEARNED = 1e-10
"""Smallest value of a learned noise variance, relative to the mean square response."""


def _totals(state: State, groups: Groups | None) -> tuple[Array, Array]:
    """Return the alignment and the curvature of each column, or of its group if it has one.

    For a column φ and n responses X with covariance Σ, the alignment is ‖φᵀΣ⁻¹X‖²/n and the
    curvature is φᵀΣ⁻¹φ.
    """
    if groups is None:
        return state.alignment, state.curvature
    return groups.share(state.alignment), groups.share(state.curvature)


def expectation_maximization(state: State, groups: Groups | None = None) -> Array:
    """Return the relevances after one step of expectation–maximisation (Wipf & Rao 2007).

    The relevance w of a column φ becomes w + w²(Q − z), the posterior second moment of its
    coefficients. Here z = φᵀΣ⁻¹φ and Q = ‖φᵀΣ⁻¹X‖²/n for n responses X with covariance Σ.
    """
    alignment, curvature = _totals(state, groups)
    slope = alignment - curvature
    if groups is not None:
        slope = slope / groups.share(namespace(slope).ones_like(slope))
    grown = state.relevance * (1.0 + state.relevance * slope)
    return namespace(grown).maximum(grown, 0.0 * grown)


def majorize_minimize(state: State, groups: Groups | None = None) -> Array:
    """Return the relevances after one step of majorise–minimise (Wipf 2023, eq. 21).

    The relevance w of a column φ becomes w √(Q/z), with z = φᵀΣ⁻¹φ and Q = ‖φᵀΣ⁻¹X‖²/n for n
    responses X with covariance Σ. This minimises an upper bound of the energy that is equal to it
    at the old relevances.
    """
    # log|Σ| is concave in w, with gradient z; the data term is the minimum over U of
    # ‖X − ΦU‖²/γ + Σ a/w. So a/w + zw majorises the energy, and is minimal at w = √(a/z).
    alignment, curvature = _totals(state, groups)
    return state.relevance * namespace(alignment).sqrt(alignment / positive(curvature))


def mackay(state: State, groups: Groups | None = None) -> Array:
    """Return the relevances after one step of MacKay's rule (MacKay 1992).

    The relevance w of a column φ becomes w Q/z, with z = φᵀΣ⁻¹φ and Q = ‖φᵀΣ⁻¹X‖²/n for n responses
    X with covariance Σ. The step is longer than that of `majorize_minimize`. The upper bound of the
    energy that is used there has the same value before and after this step, so that the energy does
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
    """Return the noise variance after one step of expectation–maximisation.

    The noise variance γ becomes (‖X − ΦU‖²/n + γ f)/d for n responses X, a dictionary Φ with d
    rows, the coefficients U and the effective number f of parameters, `degrees_of_freedom`. The
    result is never below `SMALLEST_LEARNED`.
    """
    xp = namespace(state.noise)
    noise = (state.residual + state.noise * degrees_of_freedom) / positive(state.dimension)
    return xp.maximum(noise, xp.full_like(noise, SMALLEST_LEARNED))
