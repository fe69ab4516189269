"""Experiments: runs, curves, and the statements that are judged on them.

An experiment lists its runs (each a `Cell`) at each scale. The engine does them, the experiment
turns the measured arrays into curves, and verdicts compare values of the curves with bounds.

An experiment states what its paper claims, and what was found here beyond the paper, as
`Statement`. Each scale says by which verdicts each statement is judged, or why it cannot be.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from lucidae.validation import check_choice
from lucidae_papers.results import Setting

SCALES = ("smoke", "paper")


def listed(values: Iterable[Any], between: str = ", ") -> str:
    """Return numbers as one string, separated by `between`; used to describe settings in words."""
    return between.join(f"{value:g}" for value in values)


class VerdictKind(StrEnum):
    """What is judged: a claim of a paper, a finding of this project, or an identity.

    An identity follows from the formulas alone: that it holds tests the code and is no evidence.
    """

    PAPER = "the paper's claim"
    OWN = "our own finding"
    IDENTITY = "identity"


@dataclass(frozen=True, slots=True)
class Statement:
    """One sentence that an experiment confirms or refutes."""

    words: str
    kind: VerdictKind


@dataclass(frozen=True, slots=True)
class Scale:
    """The runs of an experiment at one scale (size), and the verdicts that judge its statements.

    Parameters
    ----------
    setting : Setting
        The runs, and the curves that are computed from them.
    expect : mapping of str to tuple of Verdict
        For the name of each statement, the verdicts on it. The statement is confirmed if all of
        them hold.
    reported : tuple of Verdict, default=()
        Measured values that are reported without a verdict.
    unjudged : mapping of str to str, default={}
        For the name of each statement that cannot be judged at this scale, a sentence that says
        why.
    """

    setting: Setting
    expect: Mapping[str, tuple[Any, ...]]
    reported: tuple[Any, ...] = ()
    unjudged: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Experiment:
    """A figure or table of a paper that is measured again: its runs, statements and drawing.

    Every statement is judged at every scale, or the scale says why it cannot be; the constructor
    refuses anything else.

    Parameters
    ----------
    name : str
        Name on the command line.
    title : str
        Title of the chapter on the page; names the subject, not the result.
    reference : str
        Paper and figure, such as "Bao et al. 2020, Figure 2".
    about : str
        What is measured, in one or two sentences, without its result.
    smoke, paper : Scale
        The runs and the verdicts for small data, which take seconds, and for the sizes of the
        papers.
    draw : str
        Module of `lucidae_papers.drawings` and its function that draws the figures, such as
        ``"training.dynamics"``; empty if there are none.
    claims, findings, identities : mapping of str to str
        By short names, sentences on what the paper claims, on what this project found beyond it,
        and on what follows from the formulas alone, whoever said it.
    """

    name: str
    title: str
    reference: str
    about: str
    smoke: Scale
    paper: Scale
    draw: str = ""
    claims: Mapping[str, str] = field(default_factory=dict)
    findings: Mapping[str, str] = field(default_factory=dict)
    identities: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = sorted([*self.claims, *self.findings, *self.identities])
        for scale in SCALES:
            chosen = self.at(scale)
            treated = [*chosen.expect, *chosen.unjudged]
            if sorted(treated) != names or not all(chosen.expect.values()):
                raise ValueError(
                    f"{self.name} at {scale} scale treats the statements {sorted(treated)}, "
                    f"expected each of {names} once: give its verdicts, or the reason why it "
                    "cannot be judged at this scale."
                )

    @property
    def statements(self) -> dict[str, Statement]:
        """All statements by name, in the order in which the paper scale treats them."""
        kinds = {
            VerdictKind.PAPER: self.claims,
            VerdictKind.OWN: self.findings,
            VerdictKind.IDENTITY: self.identities,
        }
        every = {
            name: Statement(words, kind)
            for kind, found in kinds.items()
            for name, words in found.items()
        }
        return {name: every[name] for name in (*self.paper.expect, *self.paper.unjudged)}

    def at(self, scale: str) -> Scale:
        """Return the runs and verdicts of this experiment at the scale "smoke" or "paper"."""
        found: Scale = getattr(self, check_choice(scale, "scale", SCALES))
        return found


CHANGED = "its settings were changed."


def with_settings(experiment: Experiment, scale: str, changes: Mapping[str, Any]) -> Experiment:
    """Return an experiment whose settings at one scale are changed; nothing is judged then.

    A name in `changes` is that of a field of the settings, or of what they are made of, such as
    `k`, `learning_rate`, `n_epochs` or `data` of the training runs; every field of this name gets
    the new value. Statements and bounds belong to the declared settings, so that the measured
    values are shown without verdicts.
    """
    chosen = experiment.at(scale)
    setting: Any = chosen.setting
    for name, value in changes.items():
        fields = dict(_fields(setting))
        if name not in fields:
            raise ValueError(
                f"{experiment.name} has no setting {name!r}; expected one of "
                f"{', '.join(sorted(fields))}."
            )
        setting = _changed(setting, name, _as_type(value, fields[name], name))
    unjudged = dict.fromkeys(experiment.statements, CHANGED)
    changed: dict[str, Any] = {scale: Scale(setting, {}, (), unjudged)}
    return dataclasses.replace(experiment, **changed)


def _fields(part: Any) -> Iterator[tuple[str, Any]]:
    """Yield name and value of each field of a dataclass and of those that it contains."""
    if isinstance(part, tuple):
        for one in part:
            yield from _fields(one)
    elif dataclasses.is_dataclass(part):
        for field_ in dataclasses.fields(part):
            value = getattr(part, field_.name)
            inner = list(_fields(value))
            yield from inner or [(field_.name, value)]


def _changed(part: Any, name: str, value: Any) -> Any:
    """Return a part of the settings in which every field called `name` has a new value."""
    if isinstance(part, tuple):
        return type(part)(_changed(one, name, value) for one in part)
    if not dataclasses.is_dataclass(part) or isinstance(part, type):
        return part
    new = {
        field_.name: value
        if field_.name == name
        else _changed(getattr(part, field_.name), name, value)
        for field_ in dataclasses.fields(part)
    }
    return dataclasses.replace(part, **new)


def _as_type(value: Any, present: Any, name: str) -> Any:
    """Return a new value in the type of the present one; a list becomes a tuple."""
    if isinstance(value, list):
        value = tuple(value)
    if isinstance(present, float) and isinstance(value, int):
        value = float(value)
    if present is not None and not isinstance(value, type(present)):
        raise ValueError(f"{name}={value!r} was given, expected a value like {present!r}.")
    return value
