"""The parts of an experiment: runs, curves, and the statements that are judged on them.

An experiment consists of many small computations, which are called cells in this package: one
training run, or one method on one problem size. A cell is identified by the function that measures
it (its `Work`, with a name and a version) and by its exact settings. An experiment lists its cells
at each scale. The engine measures them in any order and on any machine, the experiment turns the
measured arrays into curves, and verdicts compare values of the curves with bounds.

An experiment states what its paper claims, and what was found here beyond the paper, as
`Statement`. Each scale says by which verdicts each statement is judged, or why it cannot be.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import import_module
from typing import Any, Protocol

import numpy as np

from lucidae.validation import check_choice, install_command

Settings = Mapping[str, Any]
Arrays = Mapping[str, np.ndarray[Any, Any]]
Measure = Callable[[Sequence[Settings], str], Sequence[Arrays]]
"""Function that does some runs: it takes the settings of each run and the name of a device, and
returns the measured arrays of each run by name.
"""

SCALES = ("smoke", "paper")

WORK_NAME = re.compile(r"[a-z][a-z0-9._-]*/[1-9][0-9]*")


class Work:
    """A function that does runs of an experiment (each a `Cell`), with a stable name and a version.

    The decorator `work` makes one. Finished runs are stored under the name and the version, so that
    the function can move to another module, and so that results of an older version of the
    computation are not used again.
    The object takes the place of the function in its module and is pickled as a reference to that
    place: a worker process that receives a `Cell` imports the right module by itself.

    Parameters
    ----------
    identifier : str
        Name and version, such as ``"linear.training/1"``.
    measure : callable
        Takes a sequence of settings, one mapping per run, and the name of a device; returns for
        each run its measured arrays by name.
    """

    def __init__(self, identifier: str, measure: Measure) -> None:
        if not WORK_NAME.fullmatch(identifier):
            raise ValueError(
                f"the function that computes runs is called {identifier!r}, expected a name and a "
                "version such as 'linear.training/1'."
            )
        functools.update_wrapper(self, measure)
        self._place = measure.__qualname__
        self.name, _, version = identifier.partition("/")
        self.version = int(version)
        self.measure = measure

    def __call__(self, group: Sequence[Settings], device: str) -> Sequence[Arrays]:
        """Do the runs with the settings in `group` on a device; return the arrays they measure."""
        return self.measure(group, device)

    def __str__(self) -> str:
        return f"{self.name}/{self.version}"

    def __repr__(self) -> str:
        return f"Work({str(self)!r})"

    def __reduce__(self) -> str:
        if self.__module__ == "__main__":
            raise ValueError(
                f"the function {str(self)!r}, which computes runs, is defined in the main script, "
                "expected a module that worker processes can import: move it to a module, or use "
                "jobs=1."
            )
        return self._place  # pickle reads a string as the name of an object in `__module__`


def work(identifier: str) -> Callable[[Measure], Work]:
    """Return a decorator that turns a function that does runs into a `Work` with name and version.

    Increase the version when the function computes something else: runs that an earlier version
    has stored then count as not done.

    Parameters
    ----------
    identifier : str
        Name and version, such as ``"linear.training/1"``.

    Examples
    --------
    >>> @work("examples.doubled/1")
    ... @on_processor
    ... def doubled(settings):
    ...     return {"double": np.array(2 * settings["x"])}
    >>> doubled.name, doubled.version
    ('examples.doubled', 1)
    >>> doubled([{"x": 1}, {"x": 2}], "cpu")
    [{'double': array(2)}, {'double': array(4)}]
    """
    return lambda measure: Work(identifier, measure)


def work_with_torch(module: str) -> Work:
    """Import a module of `lucidae_papers` whose runs need PyTorch; return its `measure`."""
    try:
        found: Work = import_module(f"lucidae_papers.{module}").measure
    except ImportError as error:
        raise ValueError(
            "the runs of this experiment need PyTorch, which is not installed: "
            f"{install_command('torch')}."
        ) from error
    return found


def on_processor(measure: Callable[[Settings], Arrays]) -> Measure:
    """Turn a function that does one run from its settings into a function that does many runs.

    The returned function takes the settings of all runs and the name of a device. It does the runs
    one after the other with NumPy; the device is ignored.
    """

    @functools.wraps(measure)
    def one_by_one(group: Sequence[Settings], _device: str) -> list[Arrays]:
        return [measure(settings) for settings in group]

    return one_by_one


@dataclass(frozen=True, slots=True)
class Cell:
    """One small computation of an experiment, such as one training run, with its exact settings.

    Parameters
    ----------
    work : Work
        The function that does this run.
    settings : mapping
        Everything that the result depends on, the seed included: numbers, strings, lists, mappings.
    cost : float, default=1.0
        Approximate duration in seconds on one core; used to start long runs first and to estimate
        the time left.
    together : str, default=""
        Label of a group: on an accelerator, cells with the same label and the same work are
        computed in one call. A cell with an empty label is computed alone.

    Examples
    --------
    >>> doubled = Work("examples.doubled/1", lambda group, device: [])
    >>> Cell(doubled, {"x": 0}).key == Cell(doubled, {"x": 1}).key
    False
    """

    work: Work
    settings: Settings
    cost: float = 1.0
    together: str = ""

    @property
    def description(self) -> dict[str, Any]:
        """Name and version of the function that does this run, and the settings of the run.

        They are stored with the result.
        """
        return {"work": str(self.work), "settings": self.settings}

    @property
    def key(self) -> str:
        """SHA-256 digest of function, version and settings: the file name of the stored result."""
        return digest(self.description)


def canonical(description: Mapping[str, Any]) -> str:
    """Return the description of a run (function, version, settings) as JSON with sorted keys."""
    return json.dumps(description, sort_keys=True, allow_nan=False, separators=(",", ":"))


def digest(description: Mapping[str, Any]) -> str:
    """Return the SHA-256 digest of the description of a run (function, settings) as hex digits."""
    return hashlib.sha256(canonical(description).encode()).hexdigest()


def grid(
    work: Work,
    axes: Mapping[str, Iterable[Any]],
    shared: Settings,
    cost: float | Callable[[Settings], float] = 1.0,
) -> list[Cell]:
    """Return one `Cell` for each combination of the values in `axes`; the last axis varies fastest.

    A `Cell` is one run of an experiment with its settings.
    """
    combinations = itertools.product(*axes.values())
    every = [{**shared, **dict(zip(axes, values, strict=True))} for values in combinations]
    return [Cell(work, one, cost(one) if callable(cost) else cost) for one in every]


def settings_of(part: Any, *names: str) -> dict[str, Any]:
    """Return some fields of a dataclass by name, as settings of a run: tuples become lists."""
    values = {name: getattr(part, name) for name in names}
    return {name: list(one) if isinstance(one, tuple) else one for name, one in values.items()}


def listed(values: Iterable[Any], between: str = ", ") -> str:
    """Return numbers as one string, separated by `between`; used to describe settings in words."""
    return between.join(f"{value:g}" for value in values)


@dataclass(frozen=True, slots=True)
class Measured:
    """Result of one run of an experiment."""

    settings: Settings  # settings of the run
    arrays: Arrays = field(repr=False)  # what was measured
    # how it was measured: machine, package versions, seconds
    about: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Results:
    """Results of all runs of an experiment, in the order in which its `Setting` lists the runs."""

    cells: tuple[Measured, ...]

    def __iter__(self) -> Iterator[Measured]:
        return iter(self.cells)

    def where(self, **settings: Any) -> Results:
        """Return the results of those runs whose settings have all of the given values."""
        return Results(
            tuple(
                cell
                for cell in self.cells
                if all(cell.settings.get(name) == value for name, value in settings.items())
            )
        )

    def one(self, **settings: Any) -> Measured:
        """Return the result of the only run whose settings have all of the given values.

        A `ValueError` is raised if no run, or more than one, has these settings.
        """
        found = self.where(**settings).cells
        if len(found) != 1:
            raise ValueError(
                f"{len(found)} runs have the settings {settings}, expected exactly one."
            )
        return found[0]

    @property
    def seconds(self) -> float:
        """Sum of the durations of all runs in seconds."""
        return float(sum(cell.about["seconds"] for cell in self.cells))


@dataclass(frozen=True, slots=True)
class Curve:
    """A measured quantity along a grid of epochs, sizes or strengths of dropout.

    Parameters
    ----------
    x, y : array-like of shape (n,)
        The grid, and the quantity at its points.
    along : str, default=""
        Words before a grid value in sentences: ``"epoch"`` gives "at epoch 100", and ``"r ="``
        gives "at r = 5".
    seeds : array-like of shape (s, n), optional
        The quantity for each of s seeds, of which `y` is the mean; see `Curve.over_seeds`.

    Examples
    --------
    >>> Curve([1, 10, 100], [0.9, 0.5, 0.1]).y[-1]
    np.float64(0.1)
    """

    x: Any
    y: Any
    along: str = ""
    seeds: Any = None

    @classmethod
    def over_seeds(cls, x: Any, runs: Any, along: str = "") -> Curve:
        """Return the mean of curves that differ in the seed alone, together with each of them."""
        every = np.asarray(runs, dtype=float)
        return cls(x, every.mean(axis=0), along, every if len(every) > 1 else None)

    @property
    def each(self) -> Any:
        """The quantity for each seed, shape (s, n); one row if it was not measured by seed."""
        return self.y[None] if self.seeds is None else self.seeds

    def of_seed(self, index: int) -> Curve:
        """Return the curve of one seed; the curve itself if it was not measured by seed."""
        return self if self.seeds is None else Curve(self.x, self.seeds[index], self.along)

    def __post_init__(self) -> None:
        for name in ("x", "y"):
            values = np.asarray(getattr(self, name), dtype=float)
            object.__setattr__(self, name, values)
        if self.x.shape != self.y.shape or self.x.ndim != 1 or not len(self.x):
            raise ValueError(
                f"the curve has x of shape {self.x.shape} and y of shape {self.y.shape}, expected "
                "two vectors of equal length, with at least one entry."
            )


Curves = Mapping[str, Curve]


class Setting(Protocol):
    """Settings of an experiment at one scale: its runs, and how curves are computed from them."""

    def cells(self) -> Sequence[Cell]:
        """Return all runs of the experiment at this scale, each as a `Cell`."""

    def curves(self, results: Results) -> Curves:
        """Return the curves, by name, that are computed from the results of all runs."""

    def facts(self) -> Mapping[str, str]:
        """Return the settings in words, such as ``{"data": "digits, 1797 × 64"}``, for the page."""


class Verdict(Protocol):
    """A comparison of a measured value, taken from a curve, with a bound."""

    def judge(self, curves: Curves, reference: str) -> Any:
        """Return a `Claim` with the measured value and whether it satisfies the bound."""


class VerdictKind(StrEnum):
    """What is judged: a claim of a paper, a finding of this project, or nothing (only reported).

    An identity follows from the formulas alone: that it holds tests the code and is no evidence.
    """

    PAPER = "the paper's claim"
    OWN = "our own finding"
    IDENTITY = "identity"
    REPORTED = "reported"


@dataclass(frozen=True, slots=True)
class Statement:
    """One sentence that an experiment confirms or refutes.

    Parameters
    ----------
    words : str
        The sentence.
    kind : VerdictKind, default=VerdictKind.PAPER
        ``PAPER`` if a paper claims it, ``OWN`` if this project found it, ``IDENTITY`` if it
        follows from the formulas alone.

    Examples
    --------
    >>> Statement("The uniform penalty does not find the principal axes.").kind.value
    "the paper's claim"
    """

    words: str
    kind: VerdictKind = VerdictKind.PAPER

    def __post_init__(self) -> None:
        if self.kind is VerdictKind.REPORTED:
            raise ValueError(
                "the kind REPORTED was given, expected another one: a value without a verdict "
                "belongs in `Scale.reported`, not in a Statement."
            )


def own(words: str) -> Statement:
    """Return a `Statement` of kind ``OWN``: a finding of this project that no paper claims."""
    return Statement(words, VerdictKind.OWN)


def identity(words: str) -> Statement:
    """Return a `Statement` of kind ``IDENTITY``: it follows from the formulas, whoever said it."""
    return Statement(words, VerdictKind.IDENTITY)


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
class Drawing:
    """Name of a function that draws a figure; its module is imported only when the figure is drawn.

    The modules of `lucidae_papers.drawings` need matplotlib, which may be missing on the
    machine that does the runs.
    """

    # A module of `lucidae_papers.drawings`, and its function that takes an `Outcome` and
    # returns blocks of the HTML page
    module: str
    function: str

    def __call__(self, outcome: Any) -> Sequence[Any]:
        """Draw the figures of a judged experiment and return them as blocks of the HTML page."""
        blocks: Sequence[Any] = self.load()(outcome)
        return blocks

    def load(self) -> Callable[[Any], Sequence[Any]]:
        """Import the module and return the drawing function."""
        module = import_module(f"lucidae_papers.drawings.{self.module}")
        function: Callable[[Any], Sequence[Any]] = getattr(module, self.function)
        return function


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
    statements : mapping of str to Statement
        What the paper claims, and what this project found beyond it, by a short name.
    scales : mapping of {"smoke", "paper"} to Scale
        The runs and the verdicts at each scale.
    draw : callable
        Takes an `Outcome` and returns the blocks of the chapter; usually a `Drawing`.
    """

    name: str
    title: str
    reference: str
    about: str
    statements: Mapping[str, Statement]
    scales: Mapping[str, Scale]
    draw: Callable[[Any], Sequence[Any]]

    def __post_init__(self) -> None:
        for scale, chosen in self.scales.items():
            treated = [*chosen.expect, *chosen.unjudged]
            if sorted(treated) != sorted(self.statements) or not all(chosen.expect.values()):
                raise ValueError(
                    f"{self.name} at {scale} scale treats the statements {sorted(treated)}, "
                    f"expected each of {sorted(self.statements)} once: give its verdicts, or the "
                    "reason why it cannot be judged at this scale."
                )

    def at(self, scale: str) -> Scale:
        """Return the runs and verdicts of this experiment at the scale "smoke" or "paper".

        The scale "smoke" uses small data and takes seconds; "paper" has the sizes of the papers.
        """
        return self.scales[check_choice(scale, "scale", self.scales)]


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
    return dataclasses.replace(experiment, scales={scale: Scale(setting, {}, (), unjudged)})


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
