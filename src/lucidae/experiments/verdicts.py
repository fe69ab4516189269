"""Verdicts: claims that are judged on measured curves, and the outcome of an experiment.

The attribute `at` of a claim says which figures of a curve it uses: a point of the grid, ``"end"``
(the last point), ``"everywhere"`` (the least favourable point), ``"mean"``, or a pair (low, high)
for the mean over that interval. A NaN never satisfies a claim.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from lucidae.certificate import Certificate, Claim, reported
from lucidae.experiments.declaration import Curve, Curves, Experiment, Results
from lucidae.experiments.store import Store
from lucidae.io.atomic import json_safe

__all__ = [
    "Agree",
    "AtLeast",
    "AtMost",
    "Between",
    "Falls",
    "Ordered",
    "Outcome",
    "Outweighs",
    "Reported",
    "Sooner",
    "judge",
]

Where = float | str | tuple[float, float]


def curve_named(curves: Curves, name: str) -> Curve:
    """Return a curve by name."""
    if name not in curves:
        raise ValueError(
            f"no curve is called {name!r}; expected one of {', '.join(sorted(curves))}."
        )
    return curves[name]


def figures(curves: Curves, name: str, at: Where) -> Any:
    """Return the figures of a curve that a claim uses.

    Examples
    --------
    >>> curves = {"loss": Curve([1, 2, 4], [3.0, 2.0, 1.0])}
    >>> figures(curves, "loss", "end"), figures(curves, "loss", (1, 2))
    (array([1.]), array([2.5]))
    """
    curve = curve_named(curves, name)
    if at == "end":
        return curve.y[-1:]
    if at == "everywhere":
        return curve.y
    if at == "mean":
        return np.array([np.mean(curve.y)])
    if isinstance(at, tuple):
        inside = (curve.x >= at[0]) & (curve.x <= at[1])
    elif isinstance(at, str):
        raise ValueError(
            f"at={at!r} was given, expected a number, a pair of numbers, 'end', 'everywhere' or "
            "'mean'."
        )
    else:
        inside = curve.x == at
    if not inside.any():
        raise ValueError(f"curve {name!r} has no point at {at}; its grid is {curve.x.tolist()}.")
    return np.array([np.mean(curve.y[inside])])


def worst(values: Any, largest: bool) -> float:
    """Return the largest or the smallest figure; NaN if one is NaN, so that the claim fails."""
    return float(np.max(values) if largest else np.min(values))


def stated(words: str, bound: str, curve: Curve, at: Where) -> str:
    """Return the statement of a claim: what it is about, its bound, and where it is judged.

    Examples
    --------
    >>> stated("success rate", "at least 0.9", Curve([1, 2], [1.0, 0.9]), (1, 2))
    'success rate: at least 0.9 on average over 1 to 2'
    """
    if isinstance(at, tuple):
        where = f"on average over {at[0]:g} to {at[1]:g}"
    elif isinstance(at, str):
        where = {"end": "at the end", "mean": "on average"}.get(at, at)
    else:
        where = f"at {at:g}"
    if len(curve.x) == 1:
        where = ""  # a single figure has no grid
    return ": ".join(filter(None, [words, f"{bound} {where}".strip()]))


@dataclass(frozen=True, slots=True)
class AtMost:
    """The curve is at most `bound`.

    Examples
    --------
    >>> curves = {"rag": Curve([0, 100], [0.9, 0.01])}
    >>> AtMost("rag", 0.1, says="RAG aligns").judge(curves, "Bao et al. 2020").holds
    True
    """

    series: str
    bound: float
    at: Where = "end"
    says: str = ""

    def judge(self, curves: Curves, reference: str) -> Claim:
        """Compare the largest figure with the bound."""
        value = worst(figures(curves, self.series, self.at), largest=True)
        curve, words = curves[self.series], self.says or self.series
        statement = stated(words, f"at most {self.bound:g}", curve, self.at)
        return Claim(self.series, statement, reference, value, self.bound, value <= self.bound)


@dataclass(frozen=True, slots=True)
class AtLeast:
    """The curve is at least `bound`."""

    series: str
    bound: float
    at: Where = "end"
    says: str = ""

    def judge(self, curves: Curves, reference: str) -> Claim:
        """Compare the smallest figure with the bound."""
        value = worst(figures(curves, self.series, self.at), largest=False)
        curve, words = curves[self.series], self.says or self.series
        statement = stated(words, f"at least {self.bound:g}", curve, self.at)
        return Claim(self.series, statement, reference, value, self.bound, value >= self.bound)


@dataclass(frozen=True, slots=True)
class Between:
    """The curve lies between `low` and `high`."""

    series: str
    low: float
    high: float
    at: Where = "end"
    says: str = ""

    def judge(self, curves: Curves, reference: str) -> Claim:
        """Compare the figure that is farthest from the middle of the interval."""
        values = figures(curves, self.series, self.at)
        middle = (self.low + self.high) / 2
        value = float(values[np.argmax(np.where(np.isnan(values), np.inf, abs(values - middle)))])
        nearest = self.low if value < middle else self.high
        holds = self.low <= value <= self.high
        curve, words = curves[self.series], self.says or self.series
        exact = self.low == self.high
        bound = f"{self.low:g}" if exact else f"between {self.low:g} and {self.high:g}"
        statement = stated(words, bound, curve, self.at)
        return Claim(self.series, statement, reference, value, nearest, holds)


@dataclass(frozen=True, slots=True)
class Ordered:
    """The curves are ordered, largest first: each exceeds the next by at least `margin`.

    A negative margin allows for sampling noise.
    """

    series: tuple[str, ...]
    at: Where = "end"
    margin: float = 0.0
    says: str = ""

    def judge(self, curves: Curves, reference: str) -> Claim:
        """Compare the smallest gap with the margin."""
        levels = [figures(curves, name, self.at) for name in self.series]
        value = min(worst(a - b, largest=False) for a, b in pairwise(levels))
        name, curve = " ≥ ".join(self.series), curves[self.series[0]]
        bound = f"smallest difference at least {self.margin:g}"
        statement = stated(self.says or name, bound, curve, self.at)
        return Claim(name, statement, reference, value, self.margin, value >= self.margin)


@dataclass(frozen=True, slots=True)
class Agree:
    """Two curves differ by at most `within`."""

    first: str
    second: str
    within: float
    at: Where = "end"
    says: str = ""

    def judge(self, curves: Curves, reference: str) -> Claim:
        """Compare the largest difference with the bound."""
        one = figures(curves, self.first, self.at)
        other = figures(curves, self.second, self.at)
        value = worst(abs(one - other), largest=True)
        name = f"{self.first} ≈ {self.second}"
        bound = f"difference at most {self.within:g}"
        statement = stated(self.says or name, bound, curves[self.first], self.at)
        return Claim(name, statement, reference, value, self.within, value <= self.within)


@dataclass(frozen=True, slots=True)
class Outweighs:
    """The first curve is at least `factor` times the second."""

    first: str
    second: str
    factor: float
    at: Where = "end"
    says: str = ""

    def judge(self, curves: Curves, reference: str) -> Claim:
        """Compare the smallest ratio with the factor."""
        above = figures(curves, self.first, self.at)
        below = figures(curves, self.second, self.at)
        with np.errstate(divide="ignore", invalid="ignore"):
            value = worst(above / below, largest=False)
        name = f"{self.first} / {self.second}"
        bound = f"ratio at least {self.factor:g}"
        statement = stated(self.says or name, bound, curves[self.first], self.at)
        return Claim(name, statement, reference, value, self.factor, value >= self.factor)


@dataclass(frozen=True, slots=True)
class Falls:
    """The curve increases by at most `slack` from one point to the next."""

    series: str
    slack: float = 0.0
    says: str = ""

    def judge(self, curves: Curves, reference: str) -> Claim:
        """Compare the largest increase with the slack."""
        steps = np.diff(curve_named(curves, self.series).y)
        value = worst(steps, largest=True) if len(steps) else 0.0
        statement = f"{self.says or self.series}: increases by at most {self.slack:g} per point"
        return Claim(self.series, statement, reference, value, self.slack, value <= self.slack)


@dataclass(frozen=True, slots=True)
class Sooner:
    """The first curve falls to `level` at least `factor` times sooner than the second.

    If the second curve does not fall to `level`, it counts as infinitely late; if the first curve
    does not, the claim fails.
    """

    first: str
    second: str
    level: float
    factor: float = 1.0
    says: str = ""

    def judge(self, curves: Curves, reference: str) -> Claim:
        """Compare the ratio of the two abscissae with the factor."""
        early = arrival(curve_named(curves, self.first), self.level)
        late = arrival(curve_named(curves, self.second), self.level)
        value = math.nan if math.isinf(early) else late / max(early, 1e-300)
        name = f"{self.first} before {self.second}"
        statement = (
            f"{self.says or name}: falls to {self.level:g} at least {self.factor:g} times sooner"
        )
        return Claim(name, statement, reference, value, self.factor, value >= self.factor)


def arrival(curve: Curve, level: float) -> float:
    """Return the first abscissa at which a curve is at most `level`, infinity if there is none.

    Examples
    --------
    >>> arrival(Curve([1, 10, 100], [0.9, 0.5, 0.1]), 0.3)
    100.0
    """
    reached = curve.y <= level
    return float(curve.x[np.argmax(reached)]) if reached.any() else math.inf


@dataclass(frozen=True, slots=True)
class Reported:
    """A figure that is reported without a verdict."""

    series: str
    at: Where = "end"
    says: str = ""

    def judge(self, curves: Curves, reference: str) -> Claim:
        """Return the figure."""
        value = worst(figures(curves, self.series, self.at), largest=True)
        statement = stated(self.says or self.series, "", curves[self.series], self.at)
        return reported(self.series, statement, reference, value)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The measured curves and verdicts of an experiment whose cells are all done.

    Parameters
    ----------
    experiment : Experiment
        The declaration.
    scale : str
        ``"smoke"`` or ``"paper"``.
    results : Results
        The finished cells.
    curves : mapping of str to Curve
        The curves on which the claims were judged.
    verdicts : Certificate
        The claims with their measured figures.
    """

    experiment: Experiment
    scale: str
    results: Results = field(repr=False)
    curves: Curves = field(repr=False)
    verdicts: Certificate = field(repr=False)

    @property
    def setting(self) -> Any:
        """The setting of the experiment at this scale."""
        return self.experiment.at(self.scale).setting

    @property
    def holds(self) -> bool:
        """Whether no claim fails."""
        return all(claim.holds is not False for claim in self.verdicts.claims)

    @property
    def machines(self) -> tuple[str, ...]:
        """The machines that measured the cells."""
        return tuple(sorted({str(cell.about["machine"]) for cell in self.results}))

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-safe values: the setting, the machines, the time and every claim."""
        return {
            "name": self.experiment.name,
            "reference": self.experiment.reference,
            "scale": self.scale,
            "setting": dict(self.setting.facts()),
            "holds": self.holds,
            "claims": [claim.to_dict() for claim in self.verdicts.claims],
            "cells": len(self.results.cells),
            "seconds": round(self.results.seconds, 3),
            "machines": list(self.machines),
            "versions": _versions(self.results),
        }


def judge(experiment: Experiment, scale: str, store: Store) -> Outcome | None:
    """Judge an experiment on the cells in a store; None while some are not done."""
    chosen = experiment.at(scale)
    found = [store.load(cell) for cell in chosen.setting.cells()]
    measured = tuple(cell for cell in found if cell is not None)
    if len(measured) < len(found):
        return None
    results = Results(measured)
    curves = chosen.setting.curves(results)
    claims = tuple(verdict.judge(curves, experiment.reference) for verdict in chosen.expect)
    title = f"{experiment.reference}: reproduction"
    return Outcome(experiment, scale, results, curves, Certificate(title, claims))


def _versions(results: Results) -> dict[str, Any]:
    """Return the package versions of the last cell."""
    return {
        name: json_safe(value) for name, value in dict(results.cells[-1].about["versions"]).items()
    }
