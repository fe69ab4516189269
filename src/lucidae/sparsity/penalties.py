"""Concave penalties of the deterministic autoencoder: values and derivatives.

A penalty is a function of the mean square a of the coefficients of one column, taken over all
responses. The coefficients are in units in which columns have unit norm and responses have unit
mean square, so that results do not depend on the units of the data.
"""

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
    """The penalty h(a) = log a of the mean square a of a column's coefficients.

    The energy of the diagonal-covariance VAE tends to that of the autoencoder with this penalty as
    the noise variance tends to zero (Wipf 2023, Lemma 4.3).
    """

    def value(self, power: Array) -> Array:
        """Return the penalty, the logarithm of the mean squares `power` of coefficients."""
        return namespace(power).log(power)

    def supergradient(self, power: Array) -> Array:
        """Return the derivative of the penalty, 1 divided by the mean squares `power`."""
        return 1.0 / power


@dataclass(frozen=True, slots=True)
class PowerPenalty:
    """The penalty h(a) = a^p / p of the mean square a of a column's coefficients.

    The exponent p lies between 0 and 1; p = ½ gives the penalty of the group lasso.
    """

    exponent: float = 0.25

    def __post_init__(self) -> None:
        check_number(self.exponent, "exponent", low=0.0, high=1.0, open_low=True)

    def value(self, power: Array) -> Array:
        """Return the penalty a^p / p at the mean squares a = `power`, with the exponent p."""
        return power**self.exponent / self.exponent

    def supergradient(self, power: Array) -> Array:
        """Return the derivative a^(p−1) of the penalty at the mean squares a = `power`.

        p is the exponent of the penalty.
        """
        return power ** (self.exponent - 1.0)


@dataclass(frozen=True, slots=True)
class ArctanPenalty:
    """The penalty h(a) = arctan(a/ε) of the mean square a of a column's coefficients.

    The number ε is `width`. The penalty is bounded, so that the sum of the penalties is nearly
    proportional to the number of columns with non-zero coefficients.
    """

    width: float = 1e-2

    def __post_init__(self) -> None:
        check_number(self.width, "width", low=0.0, open_low=True)

    def value(self, power: Array) -> Array:
        """Return the penalty: the arctangent of the mean squares `power` divided by the width."""
        return namespace(power).atan(power / self.width)

    def supergradient(self, power: Array) -> Array:
        """Return the derivative ε/(ε² + a²) of the penalty at the mean squares a = `power`.

        ε is the width.
        """
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
    """Return the penalty at the mean squares `power` of coefficients.

    Mean squares below `SMALLEST` are replaced by it.
    """
    xp = namespace(power)
    return penalty.value(xp.maximum(power, xp.full_like(power, SMALLEST)))


def ridge_relevance(penalty: Penalty, power: Array) -> Array:
    """Return the relevances 1/h′(a) for a penalty h and the mean squares a = `power`.

    The ridge regression with these relevances is an upper bound of the penalised problem that is
    equal to it at the current coefficients. If h′(a) is infinite, the relevance is zero.
    """
    xp = namespace(power)
    # h(a) ≤ h(a₀) + h′(a₀)(a − a₀): the tangent of a concave h majorises it, and is the ridge
    # penalty a/w with w = 1/h′(a₀). At the floor, w is SMALLEST for h = log: the row stays zero.
    weights = 1.0 / penalty.supergradient(xp.maximum(power, xp.full_like(power, SMALLEST)))
    return xp.where(weights > 2.0 * SMALLEST, weights, 0.0 * weights)


def as_penalty(penalty: Any) -> Penalty:
    """Return the penalty of that name, or `penalty` itself if it is an object of that kind.

    Such an object has the methods `value` and `supergradient`.
    """
    if isinstance(penalty, str) and penalty in PENALTIES:
        return PENALTIES[penalty]
    if isinstance(penalty, Penalty) and not isinstance(penalty, type | str):
        return penalty
    named = ", ".join(map(repr, PENALTIES))
    raise ValueError(
        f"penalty={penalty!r} was given, expected one of {named}, or an object with the methods "
        "value(power) and supergradient(power)."
    )
