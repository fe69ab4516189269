"""Outcomes: which statements of an experiment its measurements confirm, with the values.

There are three kinds of verdict. A claim of the paper was *seen* or *not seen*, a finding of our
own *holds* or *does not hold*, and a measured value that is only reported has no verdict. Counts
never mix the kinds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from lucidae.certificate import Claim
from lucidae.io.atomic import json_safe
from lucidae_papers.declaration import Curves, Experiment, Results, Statement, VerdictKind
from lucidae_papers.store import Store
from lucidae_papers.verdicts import measured

__all__ = ["Counts", "Judgement", "Outcome", "judge"]

WORDS = {
    (VerdictKind.PAPER, True): "seen",
    (VerdictKind.PAPER, False): "not seen",
    (VerdictKind.OWN, True): "holds",
    (VerdictKind.OWN, False): "does not hold",
}
NOT_JUDGED = "not judged"
MARKS = {True: "✓", False: "✗", None: "–"}


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
        """True if all claims hold, False if one does not, None if the statement was not judged."""
        return all(claim.holds is True for claim in self.claims) if self.claims else None

    @property
    def verdict(self) -> str:
        """The verdict: "seen" or "not seen", "holds" or "does not hold", or "not judged".

        The first pair is for claims of a paper, the second for findings of this project.
        """
        return NOT_JUDGED if self.holds is None else WORDS[self.statement.kind, self.holds]

    @property
    def prose(self) -> str:
        """The statement and its verdict as sentences, with the values that refute it, if any."""
        words, paper = self.statement.words, self.statement.kind is VerdictKind.PAPER
        if self.holds is None:
            who = "The paper says" if paper else "Our own expectation"
            return f"{who}: {words} Not judged at this scale: {self.why}"
        refuted = "; ".join(_failed(claim) for claim in self.claims if not claim.holds)
        if paper:
            end = "Seen here." if self.holds else f"Not seen here: {refuted}."
            return f"The paper says: {words} {end}"
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


def _failed(claim: Claim) -> str:
    return f"{claim.statement} (measured {measured(claim)})"


@dataclass(frozen=True, slots=True)
class Counts:
    """Numbers of statements that were judged and confirmed, and of values that were reported."""

    seen: int  # number of claims of the papers that were seen, and number of those that were judged
    claims: int
    held: int  # number of findings of our own that hold, and number of those that were judged
    findings: int
    reported: int  # number of measured values without a verdict
    unjudged: int  # number of statements of both kinds that cannot be judged at this scale

    @classmethod
    def of(cls, outcomes: Iterable[Outcome]) -> Counts:
        """Return the counts of statements and values, summed over several experiments.

        `outcomes` are the judged experiments.
        """
        every = tuple(outcomes)
        judged = [
            (one.statement.kind, one.holds) for outcome in every for one in outcome.judgements
        ]
        number = {(kind, holds): judged.count((kind, holds)) for kind, holds in WORDS}
        return cls(
            number[VerdictKind.PAPER, True],
            number[VerdictKind.PAPER, True] + number[VerdictKind.PAPER, False],
            number[VerdictKind.OWN, True],
            number[VerdictKind.OWN, True] + number[VerdictKind.OWN, False],
            sum(len(outcome.reported) for outcome in every),
            sum(holds is None for _, holds in judged),
        )

    def __str__(self) -> str:
        """Return the counts as one line of text; counts that are zero are left out."""
        parts = [
            f"{self.seen} of {self.claims} claims of the paper seen" if self.claims else "",
            f"{self.held} of {self.findings} findings of our own hold" if self.findings else "",
            f"{self.reported} value{'s' * (self.reported != 1)} reported" if self.reported else "",
            f"{self.unjudged} not judged at this scale" if self.unjudged else "",
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

    def summary(self) -> str:
        """Return the verdicts as plain text, one line per statement and one per measured value."""
        lines = [str(self.counts)]
        for one in self.judgements:
            kind = f"{one.statement.kind.value}, {one.verdict}"
            lines.append(f"{MARKS[one.holds]} {kind}: {one.statement.words}")
            lines += [f"    {one.why}"] if one.why else []
            lines += [
                f"    {MARKS[claim.holds]} {claim.statement}; measured {measured(claim)}"
                for claim in one.claims
            ]
        lines += [f"– reported: {one.statement}; measured {measured(one)}" for one in self.reported]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return settings, machines, seconds and all verdicts as a dictionary for JSON."""
        figures = [
            {"kind": one.statement.kind.value, "of": one.name, **claim.to_dict()}
            for one in self.judgements
            for claim in one.claims
        ]
        reported = [
            {"kind": VerdictKind.REPORTED.value, **claim.to_dict()} for claim in self.reported
        ]
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
            tuple(verdict.judge(curves, reference) for verdict in chosen.expect.get(name, ())),
            chosen.unjudged.get(name, ""),
        )
        for name, statement in experiment.statements.items()
    )
    reported = tuple(verdict.judge(curves, reference) for verdict in chosen.reported)
    return Outcome(experiment, scale, results, curves, judgements, reported)


def _versions(results: Results) -> dict[str, Any]:
    """Return the package versions with which the last run was done."""
    return {
        name: json_safe(value) for name, value in dict(results.cells[-1].about["versions"]).items()
    }
