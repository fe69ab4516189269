"""Concave penalties h(a) of the mean square a of a column's coefficients, in normalised units."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Protocol, runtime_checkable

from lucidae.arrays import Array, namespace
from lucidae.validation import check_number

SMALLEST = 1e-300
"""Mean square of a column's coefficients below which they count as zero."""


@runtime_checkable
class Penalty(Protocol):
    """A concave, non-decreasing function of the mean square of a column's coefficients."""

    def value(self, power: Array) -> Array:
        """Return the penalty at each of the positive mean squares `power` of coefficients."""
        ...

    def supergradient(self, power: Array) -> Array:
        """Return the derivative of the penalty at the mean squares `power` of coefficients."""
        ...


@dataclass(frozen=True, slots=True)
class LogPenalty:
    """h(a) = log a, the limit of the diagonal VAE as γ → 0 (Wipf 2023, Lemma 4.3)."""

    def value(self, power: Array) -> Array:
        """Return the penalty, the logarithm of the mean squares `power` of coefficients."""
        return namespace(power).log(power)

    def supergradient(self, power: Array) -> Array:
        """Return the derivative of the penalty, 1 divided by the mean squares `power`."""
        return 1.0 / power


@dataclass(frozen=True, slots=True)
class PowerPenalty:
    """h(a) = a^p / p with 0 < p ≤ 1; p = ½ gives the penalty of the group lasso."""

    exponent: float = 0.25

    def __post_init__(self) -> None:
        check_number(self.exponent, "exponent", low=0.0, high=1.0, open_low=True)

    def value(self, power: Array) -> Array:
        """Return the penalty a^p / p at the mean squares a = `power`, with the exponent p."""
        return power**self.exponent / self.exponent

    def supergradient(self, power: Array) -> Array:
        """Return h′(a) = a^(p−1) at the mean squares a = `power`."""
        return power ** (self.exponent - 1.0)


@dataclass(frozen=True, slots=True)
class ArctanPenalty:
    """h(a) = arctan(a/ε) with ε = `width`, bounded: nearly a count of the columns in use."""

    width: float = 1e-2

    def __post_init__(self) -> None:
        check_number(self.width, "width", low=0.0, open_low=True)

    def value(self, power: Array) -> Array:
        """Return the penalty: the arctangent of the mean squares `power` divided by the width."""
        return namespace(power).atan(power / self.width)

    def supergradient(self, power: Array) -> Array:
        """Return h′(a) = ε/(ε² + a²) at the mean squares a = `power`."""
        return self.width / (self.width**2 + power**2)


PENALTIES: dict[str, Penalty] = {
    "log": LogPenalty(),
    "power": PowerPenalty(),
    "arctan": ArctanPenalty(),
}


def stored_penalty(penalty: Any) -> Any:
    """Return a penalty of this module as its name and constants, anything else as it is."""
    names = {type(known): name for name, known in PENALTIES.items()}
    known = type(penalty) in names
    return {"name": names[type(penalty)], **asdict(penalty)} if known else penalty


def penalty_of(stored: Any) -> Any:
    """Return the penalty that `stored_penalty` has converted."""
    if not isinstance(stored, dict):
        return stored
    constants = dict(stored)
    kind: Any = type(PENALTIES[constants.pop("name")])
    return kind(**constants)


def penalty_value(penalty: Penalty, power: Array) -> Array:
    """Return the penalty at the mean squares `power`, but at least `SMALLEST`, of coefficients."""
    xp = namespace(power)
    return penalty.value(xp.maximum(power, xp.full_like(power, SMALLEST)))


def ridge_relevance(penalty: Penalty, power: Array) -> Array:
    """Return 1/h′(a), zero if h′(a) is infinite.

    Ridge regression with it bounds the penalised problem and is equal to it at a.
    """
    xp = namespace(power)
    # h(a) ≤ h(a₀) + h′(a₀)(a − a₀): the tangent of a concave h majorises it, and is the ridge
    # penalty a/w with w = 1/h′(a₀). At the floor, w is SMALLEST for h = log: the row stays zero.
    weights = 1.0 / penalty.supergradient(xp.maximum(power, xp.full_like(power, SMALLEST)))
    return xp.where(weights > 2.0 * SMALLEST, weights, 0.0 * weights)


def as_penalty(penalty: Any) -> Penalty:
    """Return the penalty of that name, or `penalty` if it has `value` and `supergradient`."""
    if isinstance(penalty, str) and penalty in PENALTIES:
        return PENALTIES[penalty]
    if isinstance(penalty, Penalty) and not isinstance(penalty, type | str):
        return penalty
    named = ", ".join(map(repr, PENALTIES))
    raise ValueError(
        f"penalty={penalty!r} was given, expected one of {named}, or an object with the methods "
        "value(power) and supergradient(power)."
    )
