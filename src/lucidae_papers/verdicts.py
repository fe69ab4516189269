"""Verdicts compare values of measured curves with bounds; outcomes collect those of an experiment.

All verdict classes have these attributes: `series`, or `first` and `second`, are names of curves.
`at` selects the values of a curve: a point of the grid, ``"end"`` (the last point),
``"everywhere"`` (all points; the least favourable one decides), ``"mean"`` (the mean over the
grid), or a pair (low, high) for the mean over that interval. `says` names the quantity in words; it
begins the sentence that is printed. A NaN never satisfies a verdict.

Curves that were measured with several seeds are judged seed by seed; the mean and the range of the
values are shown. A claim of the paper was *seen* if all of its verdicts hold for all seeds, *not
seen* if none does for at least half of them, and otherwise *partly seen*, with a sentence on how
far. A finding of our own and an identity, which follows from the formulas, *holds* or *does not
hold*. A measured value that is only reported has no verdict. Counts never mix these kinds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from lucidae.certificates.claims import Claim, reported
from lucidae.io import json_safe
from lucidae_papers.declaration import Experiment, Statement, VerdictKind
from lucidae_papers.results import Curve, Curves, Results
from lucidae_papers.store import Store

Where = float | str | tuple[float, float]

DIVERGED = "not finite: a run diverged"

LARGEST_WHOLE = 1e7
"""Whole numbers below this value, such as epochs, are printed with all digits."""


def curve_named(curves: Curves, name: str) -> Curve:
    """Return the curve called `name`; raise ValueError if no curve has this name."""
    if name not in curves:
        raise ValueError(
            f"no curve is called {name!r}; expected one of {', '.join(sorted(curves))}."
        )
    return curves[name]


def figures(curves: Curves, name: str, at: Where) -> Any:
    """Return the values of the curve called `name` that `at` selects, as a vector."""
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
        raise ValueError(
            f"curve {name!r} has no point at {at}, expected one of {curve.x.tolist()}."
        )
    return np.array([np.mean(curve.y[inside])])


def worst(values: Any, largest: bool) -> float:
    """Return the largest value, or the smallest if `largest` is False; NaN if one value is NaN."""
    return float(np.max(values) if largest else np.min(values))


def stated(words: str, bound: str, curve: Curve, at: Where) -> str:
    """Return sentence of a claim: the quantity, its bound, and the grid points that are used."""
    along = f"{curve.along} " if curve.along else ""
    if isinstance(at, tuple):
        where = f"on average over {along}{at[0]:g} to {at[1]:g}"
    elif at == "end":
        where = f"at {along}{curve.x[-1]:g}" if curve.along else "at the end"
    elif isinstance(at, str):
        where = {"mean": "on average"}.get(at, at)
    else:
        where = f"at {along}{at:g}"
    if len(curve.x) == 1:
        where = ""  # a single value has no grid
    return ": ".join(filter(None, [words, f"{bound} {where}".strip()]))


def measured(claim: Claim) -> str:
    """Return the measured value of a claim as text, with a remark if the claim has one."""
    if claim.value is None:
        return ""
    if not math.isfinite(claim.value):
        return claim.advice or DIVERGED
    figure = _figure(claim.value)
    return f"{figure} ({claim.advice})" if claim.advice else figure


def claimed(
    verdict: Any,
    curves: Curves,
    reference: str,
    name: str,
    value: float,
    words: str,
    bound: float,
    *,
    most: bool = False,
    remark: str = "",
) -> Claim:
    """Return the claim that a value is at least a bound, or at most if `most`; NaN is neither."""
    holds = value <= bound if most else value >= bound
    statement = stated(verdict.says or name, words, curves[read_by(verdict)[0]], verdict.at)
    return Claim(name, statement, reference, value, bound, holds, remark)


def read_by(verdict: Any) -> tuple[str, ...]:
    """Return the names of the curves that a verdict reads."""
    if hasattr(verdict, "first"):
        return verdict.first, verdict.second
    return verdict.series if isinstance(verdict.series, tuple) else (verdict.series,)


@dataclass(frozen=True, slots=True)
class AtMost:
    """Verdict that the selected values of one curve are at most `bound`."""

    series: str
    bound: float
    at: Where = "end"
    says: str = ""

    def judge(self, curves: Curves, reference: str) -> Claim:
        """Return a `Claim` on the largest of the values of the curve that `at` selects."""
        value = worst(figures(curves, self.series, self.at), largest=True)
        words = f"at most {self.bound:g}"
        return claimed(self, curves, reference, self.series, value, words, self.bound, most=True)


@dataclass(frozen=True, slots=True)
class AtLeast:
    """Verdict that the selected values of one curve are at least `bound`."""

    series: str
    bound: float
    at: Where = "end"
    says: str = ""

    def judge(self, curves: Curves, reference: str) -> Claim:
        """Return a `Claim` on the smallest of the values of the curve that `at` selects."""
        value = worst(figures(curves, self.series, self.at), largest=False)
        words = f"at least {self.bound:g}"
        return claimed(self, curves, reference, self.series, value, words, self.bound)


@dataclass(frozen=True, slots=True)
class Ordered:
    """Verdict that each of several curves exceeds the next one by at least `margin`.

    A negative margin allows for sampling noise.
    """

    series: tuple[str, ...]
    at: Where = "end"
    margin: float = 0.0
    says: str = ""

    def judge(self, curves: Curves, reference: str) -> Claim:
        """Return a `Claim` on the smallest difference between a curve and the next one."""
        levels = [figures(curves, name, self.at) for name in self.series]
        value = min(worst(a - b, largest=False) for a, b in pairwise(levels))
        smallest = "smallest difference" if len(self.series) > 2 else "difference"
        words = f"{smallest} at least {self.margin:g}"
        name = " ≥ ".join(self.series)
        return claimed(self, curves, reference, name, value, words, self.margin)


@dataclass(frozen=True, slots=True)
class Agree:
    """Verdict that the selected values of two curves differ by at most `within`."""

    first: str
    second: str
    within: float
    at: Where = "end"
    says: str = ""

    def judge(self, curves: Curves, reference: str) -> Claim:
        """Return a `Claim` that the largest difference of both curves is at most `within`."""
        one, other = (figures(curves, name, self.at) for name in (self.first, self.second))
        value = worst(abs(one - other), largest=True)
        name, words = f"{self.first} ≈ {self.second}", f"difference at most {self.within:g}"
        return claimed(self, curves, reference, name, value, words, self.within, most=True)


@dataclass(frozen=True, slots=True)
class Outweighs:
    """Verdict that the values of a first curve are at least `factor` times those of a second.

    If a value of the second curve is zero and that of the first is positive, the ratio is infinite
    and satisfies the bound.
    """

    first: str
    second: str
    factor: float
    at: Where = "end"
    says: str = ""

    def judge(self, curves: Curves, reference: str) -> Claim:
        """Return a `Claim` that the smallest ratio of both curves is at least `factor`."""
        above, below = (figures(curves, name, self.at) for name in (self.first, self.second))
        with np.errstate(divide="ignore", invalid="ignore"):
            value = worst(above / below, largest=False)
        name, words = f"{self.first} / {self.second}", f"ratio at least {self.factor:g}"
        remark = "the second quantity is zero" if math.isinf(value) else ""
        return claimed(self, curves, reference, name, value, words, self.factor, remark=remark)


@dataclass(frozen=True, slots=True)
class Sooner:
    """Verdict that a first curve falls to `level` at least `factor` times sooner than a second.

    `first` and `second` are the names of the curves. The abscissa (such as the epoch) at which the
    second curve is first at most `level`, divided by that of the first, must be at least `factor`.
    If the second curve never falls to `level`, the end of its grid is used, and the ratio is a
    lower bound. If the first curve never does, the verdict fails.
    """

    first: str
    second: str
    level: float
    factor: float = 1.0
    says: str = ""
    at: Where = ""  # the whole curve is read

    def judge(self, curves: Curves, reference: str) -> Claim:
        """Return a `Claim` on the ratio of the points at which both curves fall to `level`."""
        first, second = (curve_named(curves, name) for name in (self.first, self.second))
        early, late = arrival(first, self.level), arrival(second, self.level)
        remark = ""
        if math.isinf(early):
            value, remark = math.nan, f"the first curve did not fall to {self.level:g}"
        elif math.isinf(late):
            value = float(second.x[-1]) / max(early, 1e-300)
            remark = f"a lower bound: the second curve did not fall to {self.level:g}"
        else:
            value = late / max(early, 1e-300)
        name = f"{self.first} before {self.second}"
        words = f"the first falls to {self.level:g} at least {self.factor:g} times sooner"
        return claimed(self, curves, reference, name, value, words, self.factor, remark=remark)


def arrival(curve: Curve, level: float) -> float:
    """Return the first grid point x at which a curve is at most `level`; infinity if none is."""
    reached = curve.y <= level
    return float(curve.x[np.argmax(reached)]) if reached.any() else math.inf


@dataclass(frozen=True, slots=True)
class Reported:
    """Report the largest selected value of one curve without judging it."""

    series: str
    at: Where = "end"
    says: str = ""

    def judge(self, curves: Curves, reference: str) -> Claim:
        """Return a `Claim` with the measured value and no bound; its `holds` is None."""
        value = worst(figures(curves, self.series, self.at), largest=True)
        statement = stated(self.says or self.series, "", curves[self.series], self.at)
        return reported(self.series, statement, reference, value)


LABELS = {
    "uniform_l2": "uniform ℓ₂",
    "nonuniform_l2": "non-uniform ℓ₂",
    "rag": "RAG",
    "nested_dropout": "nested dropout",
    "expected_nested_dropout": "expected nested dropout",
    "linear_vae": "linear VAE",
    "full": "full-covariance VAE",
    "diagonal": "diagonal-covariance VAE",
    "autoencoder": "autoencoder",
    "group lasso": "group lasso",
    "music": "MUSIC",
    "beamforming": "conventional beamforming",
    "mle": "Minka's evidence",
    "parallel_analysis": "parallel analysis",
    "hard_threshold": "hard threshold",
    "known_noise": "hard threshold, known noise",
    "horn": "Horn's procedure",
    "share": "95 % of the variance",
}
"""Name of each method in claims, tables and plots, by its name in the settings of a run."""


def label(method: str, optimizer: str) -> str:
    """Return the printed name of a method together with that of its optimizer."""
    return f"{LABELS[method]}, {optimizer.capitalize()}"


def judge_seeds(verdict: Any, curves: Curves, reference: str) -> Claim:
    """Return the claim of a verdict on curves, of which each seed is judged by itself.

    Its value is the mean over the seeds. It holds if it does for every seed, is None if it does for
    at least half of them, and fails otherwise; `advice` has the range of the values.
    """
    read = {name: curve_named(curves, name) for name in read_by(verdict)}
    every: list[Claim] = [
        verdict.judge({name: curve.of_seed(seed) for name, curve in read.items()}, reference)
        for seed in range(max(len(curve.each) for curve in read.values()))
    ]
    values = [math.nan if claim.value is None else claim.value for claim in every]
    finite = [value for value in values if math.isfinite(value)]
    if len(every) == 1 or not finite:
        return every[0]
    held = sum(claim.holds is True for claim in every)
    low, high = _figure(min(finite)), _figure(max(finite))
    spread = f"{low} to {high} over {len(every)} seeds"
    if low == high and len(finite) == len(every):
        spread = f"in each of {len(every)} seeds"
    if len(finite) < len(every):
        spread += f", {len(every) - len(finite)} of them not finite"
    if every[0].holds is not None and 0 < held < len(every):
        spread += f", of which {held} satisfy the bound"
    remarks = dict.fromkeys(claim.advice for claim in every if claim.advice)
    holds = None if every[0].holds is None else held == len(every)
    if 0 < len(every) - held <= held:
        holds = None
    return replace(
        every[0], value=float(np.mean(values)), holds=holds, advice="; ".join([spread, *remarks])
    )


def _figure(value: float) -> str:
    whole = value == round(value) and abs(value) < LARGEST_WHOLE if math.isfinite(value) else False
    return f"{value:.0f}" if whole else f"{value:.4g}"


NOT_JUDGED = "not judged"
REPORTED = "reported"  # of measured values without a verdict
PARTLY = "partly seen"
MARKS = {True: "✓", False: "✗", None: "–"}


def verdict_words(kind: VerdictKind, holds: bool | None) -> str:
    """Return the verdict in words; None is a claim of the paper that was seen in part."""
    if kind is VerdictKind.PAPER:
        return PARTLY if holds is None else "seen" if holds else "not seen"
    return "holds" if holds else "does not hold"


@dataclass(frozen=True, slots=True)
class Judgement:
    """A statement of an experiment, and the verdict on it."""

    name: str  # name of the statement in `Experiment.statements`
    statement: Statement  # the sentence and its kind
    # the measured values with their bounds; the statement is confirmed if all of them hold
    claims: tuple[Claim, ...]
    why: str = ""  # the reason why the statement is not judged; empty if it is judged

    @property
    def holds(self) -> bool | None:
        """True if all claims hold; None if not judged, or a claim of the paper seen in part.

        What this project says of itself holds entirely or not at all.
        """
        held = [claim.holds for claim in self.claims]
        if all(held):
            return True if held else None
        partly = self.statement.kind is VerdictKind.PAPER and any(one is not False for one in held)
        return None if partly else False

    @property
    def verdict(self) -> str:
        """The verdict in words."""
        return verdict_words(self.statement.kind, self.holds) if self.claims else NOT_JUDGED

    @property
    def prose(self) -> str:
        """The statement and its verdict as sentences, with the values that refute it, if any."""
        words, kind = self.statement.words, self.statement.kind
        paper = kind is VerdictKind.PAPER
        if not self.claims:
            who = "The paper says" if paper else "Our own expectation"
            return f"{who}: {words} Not judged: {self.why}"
        refuted = _listed([claim for claim in self.claims if not claim.holds])
        if paper:
            if self.holds is None:
                seen = _listed([claim for claim in self.claims if claim.holds])
                refuted = f"{refuted}. Seen: {seen}" if seen else refuted
                return f"The paper says: {words} Partly seen here. Not seen: {refuted}."
            end = "Seen here." if self.holds else f"Not seen here: {refuted}."
            return f"The paper says: {words} {end}"
        if kind is VerdictKind.IDENTITY:
            end = "" if self.holds else f" This run contradicts it: {refuted}."
            return f"Identity, which tests the code and is no evidence: {words}{end}"
        if self.holds:
            return f"Our own finding: {words}"
        return f"Our own expectation: {words} This run does not confirm it: {refuted}."

    def to_dict(self) -> dict[str, Any]:
        """Return name, kind, statement, verdict and reason as a dictionary of strings for JSON."""
        return {
            "name": self.name,
            "kind": self.statement.kind.value,
            "statement": self.statement.words,
            "verdict": self.verdict,
            "why": self.why,
        }


def _listed(claims: list[Claim]) -> str:
    """Return the first three claims with their values, and how many others there are."""
    words = "; ".join(f"{claim.statement} (measured {measured(claim)})" for claim in claims[:3])
    return words + (f"; and {len(claims) - 3} others, see the table" if len(claims) > 3 else "")


@dataclass(frozen=True, slots=True)
class Counts:
    """Numbers of statements that were judged and confirmed, and of values that were reported."""

    seen: int  # number of claims of the papers that were seen, seen in part, and judged
    partly: int
    claims: int
    held: int  # number of findings of our own that hold, and number of those that were judged
    findings: int
    identities: int  # number of identities that hold
    reported: int  # number of measured values without a verdict
    unjudged: int  # number of statements of all kinds that cannot be judged at this scale

    @classmethod
    def of(cls, outcomes: Iterable[Outcome]) -> Counts:
        """Return the counts of statements and values, summed over several experiments."""
        every = tuple(outcomes)
        judged = [
            (one.statement.kind, one.holds)
            for outcome in every
            for one in outcome.judgements
            if one.claims
        ]
        kinds = [kind for kind, _ in judged]
        return cls(
            judged.count((VerdictKind.PAPER, True)),
            judged.count((VerdictKind.PAPER, None)),
            kinds.count(VerdictKind.PAPER),
            judged.count((VerdictKind.OWN, True)),
            kinds.count(VerdictKind.OWN),
            judged.count((VerdictKind.IDENTITY, True)),
            sum(len(outcome.reported) for outcome in every),
            sum(not one.claims for outcome in every for one in outcome.judgements),
        )

    def __str__(self) -> str:
        """Return the counts as one line of text; counts that are zero are left out."""
        partly = f", {self.partly} in part" if self.partly else ""
        parts = [
            f"{self.seen} of {self.claims} claims of the paper seen{partly}" if self.claims else "",
            f"{self.held} of {self.findings} findings of our own hold" if self.findings else "",
            f"{self.identities} identit{'ies hold' if self.identities > 1 else 'y holds'}"
            if self.identities
            else "",
            f"{self.reported} value{'s' * (self.reported != 1)} reported" if self.reported else "",
            f"{self.unjudged} not judged" if self.unjudged else "",
        ]
        return "; ".join(filter(None, parts))


@dataclass(frozen=True, slots=True)
class Outcome:
    """The measured curves of an experiment whose runs are all done, and the verdicts on them."""

    experiment: Experiment  # the declaration
    scale: str  # ``"smoke"`` or ``"paper"``
    results: Results = field(repr=False)  # results of all runs (each a `Cell`)
    curves: Curves = field(repr=False)  # the curves on which the statements were judged
    # one for each statement, in the order of the declaration
    judgements: tuple[Judgement, ...] = field(repr=False)
    reported: tuple[Claim, ...] = field(repr=False, default=())  # measured values without a verdict

    @property
    def setting(self) -> Any:
        """The `Setting` of the experiment at `scale`: its runs, and how curves are computed."""
        return self.experiment.at(self.scale).setting

    @property
    def holds(self) -> bool:
        """True unless a claim of the paper was not seen or a finding of our own does not hold."""
        return all(one.holds is not False for one in self.judgements)

    @property
    def claims(self) -> tuple[Claim, ...]:
        """All measured values with their bounds, in the order of the statements."""
        return tuple(claim for one in self.judgements for claim in one.claims)

    @property
    def counts(self) -> Counts:
        """Numbers of statements that were judged and confirmed, and of reported values."""
        return Counts.of([self])

    @property
    def machines(self) -> tuple[str, ...]:
        """Names of the machines on which the runs were done, sorted, each once."""
        return tuple(sorted({str(cell.about["machine"]) for cell in self.results}))

    def of_kind(self, kind: VerdictKind) -> tuple[Judgement, ...]:
        """Return the judgements on claims of the paper, or those on findings of our own."""
        return tuple(one for one in self.judgements if one.statement.kind is kind)

    def to_dict(self) -> dict[str, Any]:
        """Return settings, machines, seconds and all verdicts as a dictionary for JSON."""
        figures = [
            {"kind": one.statement.kind.value, "of": one.name, **claim.to_dict()}
            for one in self.judgements
            for claim in one.claims
        ]
        reported = [{"kind": REPORTED, **claim.to_dict()} for claim in self.reported]
        return {
            "name": self.experiment.name,
            "reference": self.experiment.reference,
            "scale": self.scale,
            "setting": dict(self.setting.facts()),
            "holds": self.holds,
            "statements": [one.to_dict() for one in self.judgements],
            "claims": [*figures, *reported],
            "cells": len(self.results.cells),
            "seconds": round(self.results.seconds, 3),
            "machines": list(self.machines),
            "versions": _versions(self.results),
        }


def judge(experiment: Experiment, scale: str, store: Store) -> Outcome | None:
    """Return the `Outcome` of an experiment from its stored runs; None if a run is missing."""
    chosen = experiment.at(scale)
    found = [store.load(cell) for cell in chosen.setting.cells()]
    done = tuple(cell for cell in found if cell is not None)
    if len(done) < len(found):
        return None
    results = Results(done)
    return judge_results(experiment, scale, results)


def judge_results(experiment: Experiment, scale: str, results: Results) -> Outcome:
    """Return the `Outcome` of an experiment from the results of all its runs."""
    chosen, reference = experiment.at(scale), experiment.reference
    curves = chosen.setting.curves(results)
    judgements = tuple(
        Judgement(
            name,
            statement,
            tuple(
                judge_seeds(verdict, curves, reference) for verdict in chosen.expect.get(name, ())
            ),
            chosen.unjudged.get(name, ""),
        )
        for name, statement in experiment.statements.items()
    )
    reported = tuple(judge_seeds(verdict, curves, reference) for verdict in chosen.reported)
    return Outcome(experiment, scale, results, curves, judgements, reported)


def _versions(results: Results) -> dict[str, Any]:
    """Return the package versions with which the last run was done."""
    return {
        name: json_safe(value) for name, value in dict(results.cells[-1].about["versions"]).items()
    }
