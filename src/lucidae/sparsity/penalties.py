"""Concave penalties of the deterministic autoencoder, by value and supergradient.

They act on the mean square aⱼ = ‖uⱼ‖²/n of a row of the estimate, measured in units in which
columns have unit norm and responses unit mean square, so that results do not depend on units.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from lucidae.arrays import Array, namespace
from lucidae.io.models import saved_as
from lucidae.validation import check_number

SMALLEST = 1e-300
"""Mean squares below this count as zero: the row has vanished."""


@runtime_checkable
class Penalty(Protocol):
    """A concave, non-decreasing function h of the mean square a > 0 of a row."""

    def value(self, power: Array) -> Array:
        """Return h(a)."""
        ...

    def supergradient(self, power: Array) -> Array:
        """Return h′(a)."""
        ...


@saved_as("lucidae.sparsity.penalty.log/1", formerly="lucidae.sparsity.penalties:LogPenalty")
@dataclass(frozen=True, slots=True)
class LogPenalty:
    """h(a) = log a: the limit to which the diagonal VAE tends (Wipf 2023, Lemma 4.3).

    Examples
    --------
    >>> import numpy as np
    >>> LogPenalty().supergradient(np.array([1.0, 2.0]))
    array([1. , 0.5])
    """

    def value(self, power: Array) -> Array:
        """Return log a."""
        return namespace(power).log(power)

    def supergradient(self, power: Array) -> Array:
        """Return 1/a."""
        return 1.0 / power


@saved_as("lucidae.sparsity.penalty.power/1", formerly="lucidae.sparsity.penalties:PowerPenalty")
@dataclass(frozen=True, slots=True)
class PowerPenalty:
    """h(a) = a^p / p for 0 < p < 1; p = ½ is the group lasso's norm.

    Examples
    --------
    >>> import numpy as np
    >>> PowerPenalty(0.5).supergradient(np.array([4.0]))
    array([0.5])
    """

    exponent: float = 0.25

    def __post_init__(self) -> None:
        check_number(self.exponent, "exponent", low=0.0, high=1.0, open_low=True)

    def value(self, power: Array) -> Array:
        """Return a^p / p."""
        return power**self.exponent / self.exponent

    def supergradient(self, power: Array) -> Array:
        """Return a^(p − 1)."""
        return power ** (self.exponent - 1.0)


@saved_as("lucidae.sparsity.penalty.arctan/1", formerly="lucidae.sparsity.penalties:ArctanPenalty")
@dataclass(frozen=True, slots=True)
class ArctanPenalty:
    """h(a) = arctan(a/ε): bounded, nearly a count of the non-zero rows.

    Examples
    --------
    >>> import numpy as np
    >>> ArctanPenalty(1.0).supergradient(np.array([1.0]))
    array([0.5])
    """

    width: float = 1e-2

    def __post_init__(self) -> None:
        check_number(self.width, "width", low=0.0, open_low=True)

    def value(self, power: Array) -> Array:
        """Return arctan(a/ε)."""
        return namespace(power).atan(power / self.width)

    def supergradient(self, power: Array) -> Array:
        """Return ε/(ε² + a²)."""
        return self.width / (self.width**2 + power**2)


PENALTIES: dict[str, Penalty] = {
    "log": LogPenalty(),
    "power": PowerPenalty(),
    "arctan": ArctanPenalty(),
}


def penalty_value(penalty: Penalty, power: Array) -> Array:
    """Return the penalty h(a) of mean squares a, which are raised to at least `SMALLEST`."""
    xp = namespace(power)
    return penalty.value(xp.maximum(power, xp.full_like(power, SMALLEST)))


def ridge_relevance(penalty: Penalty, power: Array) -> Array:
    """Return 1/h′(a), the relevances of the ridge problem that majorises; 0 if h′ is infinite."""
    xp = namespace(power)
    # h(a) ≤ h(a₀) + h′(a₀)(a − a₀): the tangent of a concave h majorises it, and is the ridge
    # penalty a/w with w = 1/h′(a₀). At the floor, w is SMALLEST for h = log: the row stays zero.
    weights = 1.0 / penalty.supergradient(xp.maximum(power, xp.full_like(power, SMALLEST)))
    return xp.where(weights > 2.0 * SMALLEST, weights, 0.0 * weights)


def as_penalty(penalty: Any) -> Penalty:
    """Return the penalty of that name, or the object itself if it has both methods."""
    if isinstance(penalty, str) and penalty in PENALTIES:
        return PENALTIES[penalty]
    if isinstance(penalty, Penalty) and not isinstance(penalty, type | str):
        return penalty
    named = ", ".join(map(repr, PENALTIES))
    raise ValueError(
        f"penalty={penalty!r} was given, expected one of {named}, or an object with methods "
        "value(a) and supergradient(a)."
    )
