"""What an experiment is: a declaration of cells, curves and the claims that are judged on them.

A cell is one small piece of work, known by its exact settings. An experiment lists its cells at
each scale; the engine measures them, in whatever order and on whatever machine; curves are made
of what the cells hold; claims are read off the curves.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Protocol

import numpy as np

from lucidae.validation import check_choice

__all__ = ["Arrays", "Cell", "Curve", "Experiment", "Measured", "Results", "Scale", "Setting"]

Settings = Mapping[str, Any]
Arrays = Mapping[str, np.ndarray[Any, Any]]
Work = Callable[[Sequence[Settings], str], Sequence[Arrays]]
"""From the settings of some cells and the name of a device to the arrays of each cell."""

SCALES = ("smoke", "paper")

REVISION = 1
"""Part of every cell's name: raise it when a work comes to mean something else."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One piece of work, known by its exact settings.

    Parameters
    ----------
    work : str
        ``"module:function"`` of the `Work` that measures it.
    settings : mapping
        All that the work depends on, the seed included: numbers, strings, lists and mappings.
    cost : float, default=1.0
        Roughly how many seconds it takes; only for the order of work and the time left.
    together : str, default=""
        Cells that share this name and their work may be measured at once on an accelerator.

    Examples
    --------
    >>> cell = Cell("lucidae.experiments.linear.training:measure", {"seed": 0})
    >>> cell.key == Cell("lucidae.experiments.linear.training:measure", {"seed": 1}).key
    False
    """

    work: str
    settings: Settings
    cost: float = 1.0
    together: str = ""

    @property
    def canonical(self) -> str:
        """Work and settings as one line of JSON, the same for the same cell."""
        subject = {"work": self.work, "settings": self.settings, "revision": REVISION}
        return json.dumps(subject, sort_keys=True, allow_nan=False, separators=(",", ":"))

    @property
    def key(self) -> str:
        """Digest of work and settings; the name under which the cell is stored."""
        return hashlib.sha256(self.canonical.encode()).hexdigest()

    def resolve(self) -> Work:
        """Return the function that measures the cell."""
        work: Work = resolve(self.work)
        return work


def on_processor(measure: Callable[[Settings], Arrays]) -> Work:
    """Return the work that measures cells one by one with NumPy, whatever the device.

    Examples
    --------
    >>> work = on_processor(lambda settings: {"double": np.array(2 * settings["x"])})
    >>> work([{"x": 1}, {"x": 2}], "cpu")
    [{'double': array(2)}, {'double': array(4)}]
    """

    def work(group: Sequence[Settings], _device: str) -> list[Arrays]:
        return [measure(settings) for settings in group]

    return work


def resolve(name: str) -> Any:
    """Return what ``"module:attribute"`` names."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)


@dataclass(frozen=True, slots=True)
class Measured:
    """A finished cell: its settings, what was measured, and how (machine, versions, seconds)."""

    settings: Settings
    arrays: Arrays = field(repr=False)
    about: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Results:
    """All finished cells of an experiment, in the order of its declaration."""

    cells: tuple[Measured, ...]

    def __iter__(self) -> Iterator[Measured]:
        return iter(self.cells)

    def where(self, **settings: Any) -> Results:
        """Return the cells that have these settings."""
        return Results(
            tuple(
                cell
                for cell in self.cells
                if all(cell.settings.get(name) == value for name, value in settings.items())
            )
        )

    def one(self, **settings: Any) -> Measured:
        """Return the only cell that has these settings."""
        found = self.where(**settings).cells
        if len(found) != 1:
            raise ValueError(f"{len(found)} cells have {settings}, expected one.")
        return found[0]

    @property
    def seconds(self) -> float:
        """Time that the cells took, added up."""
        return float(sum(cell.about["seconds"] for cell in self.cells))


@dataclass(frozen=True, slots=True)
class Curve:
    """A measured quantity along a grid: epochs, sizes, strengths.

    Examples
    --------
    >>> Curve([1, 10, 100], [0.9, 0.5, 0.1]).y[-1]
    np.float64(0.1)
    """

    x: Any
    y: Any

    def __post_init__(self) -> None:
        for name in ("x", "y"):
            values = np.asarray(getattr(self, name), dtype=float)
            object.__setattr__(self, name, values)
        if self.x.shape != self.y.shape or self.x.ndim != 1 or not len(self.x):
            raise ValueError(
                f"a curve has as many abscissae as ordinates, got {self.x.shape} and "
                f"{self.y.shape}."
            )


Curves = Mapping[str, Curve]


class Setting(Protocol):
    """One scale of an experiment: what is measured, and how curves are made of it."""

    def cells(self) -> Sequence[Cell]:
        """Return the work."""

    def curves(self, results: Results) -> Curves:
        """Return named curves from the finished cells."""

    def facts(self) -> Mapping[str, str]:
        """Return the setting in words, for the page."""


class Verdict(Protocol):
    """A claim with its tolerance, to be judged on the curves."""

    def judge(self, curves: Curves, reference: str) -> Any:
        """Return the claim with its measured figure."""


@dataclass(frozen=True, slots=True)
class Scale:
    """A setting and what is expected of it.

    Parameters
    ----------
    setting : Setting
        The work at this scale.
    expect : tuple of Verdict
        The claims, with tolerances that suit the scale.
    """

    setting: Setting
    expect: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Experiment:
    """A figure or table of a paper, as a declaration.

    Parameters
    ----------
    name : str
        The name that the command knows.
    title : str
        What it is about.
    reference : str
        Authors, year and figure.
    shows : str
        One line for lists.
    claim : str
        What the paper says, in one or two sentences.
    scales : mapping of {"smoke", "paper"} to Scale
        The work and the verdicts at each scale.
    draw : str
        ``"module:function"`` that turns (scale, results, curves) into blocks of the page; only
        loaded when a page is written.
    """

    name: str
    title: str
    reference: str
    shows: str
    claim: str
    scales: Mapping[str, Scale]
    draw: str

    def at(self, scale: str) -> Scale:
        """Return the experiment at a scale."""
        return self.scales[check_choice(scale, "scale", self.scales)]
