"""Results of runs, and the curves that are computed from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from lucidae_papers.cells import Arrays, Cell, Settings


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

    @property
    def error(self) -> Any:
        """The standard error of the mean over the seeds, shape (n,); zero for one seed."""
        each = self.each
        spread = each.std(axis=0, ddof=1) if len(each) > 1 else np.zeros(len(self.x))
        return spread / np.sqrt(len(each))

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
