"""Sections of the page and the blocks that they consist of."""

from __future__ import annotations

import csv
import io
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol
from urllib.parse import quote

from matplotlib.figure import Figure
from sklearn.exceptions import ConvergenceWarning

from lucidae.io.sheets import as_text
from lucidae.io.tables import Table
from lucidae.report.style import to_svg


class Block(Protocol):
    """Part of a section; `kind` is the name of its macro in the template."""

    kind: ClassVar[str]


@dataclass(frozen=True, slots=True)
class Prose:
    """A paragraph."""

    kind: ClassVar[str] = "prose"
    text: str


@dataclass(frozen=True, slots=True)
class Note:
    """A highlighted paragraph: something that the reader should do or know."""

    kind: ClassVar[str] = "note"
    text: str


@dataclass(frozen=True, slots=True)
class Facts:
    """A row of numbers with their descriptions."""

    kind: ClassVar[str] = "facts"
    items: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Grid:
    """A small table."""

    kind: ClassVar[str] = "grid"
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Code:
    """Lines of code."""

    kind: ClassVar[str] = "code"
    text: str


@dataclass(frozen=True, slots=True)
class Card:
    """A certificate, or another object with an HTML representation."""

    kind: ClassVar[str] = "card"
    label: str
    subject: Any
    unfolded: bool = True

    @property
    def headline(self) -> str:
        """The first line of the subject as text, without its title."""
        return str(self.subject).partition("\n")[0].rpartition(": ")[2]

    @property
    def html(self) -> str:
        """The HTML representation of the subject."""
        return str(self.subject._repr_html_())


@dataclass(frozen=True, slots=True)
class Plot:
    """A figure with its caption and its data.

    Parameters
    ----------
    name : str
        Name of the downloadable file, without its suffix.
    svg : str
        The figure as inline SVG.
    caption : str
        What the figure shows and how to read it.
    numbers : mapping of str to sequence
        Columns of equal length.
    keeps_colours : bool, default=False
        Whether images look the same in the dark theme, because the caption names their colours;
        other images are inverted there.
    """

    kind: ClassVar[str] = "plot"
    name: str
    svg: str
    caption: str
    numbers: Mapping[str, Sequence[Any]]
    keeps_colours: bool = False

    @classmethod
    def of(
        cls,
        name: str,
        figure: Figure,
        caption: str,
        numbers: Mapping[str, Sequence[Any]],
        *,
        keeps_colours: bool = False,
    ) -> Plot:
        """Convert `figure` to SVG, with the caption as its accessible name."""
        return cls(name, to_svg(figure, name, caption), caption, numbers, keeps_colours)

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        """The data as rows."""
        return list(zip(*(list(column) for column in self.numbers.values()), strict=True))

    @property
    def link(self) -> str:
        """The data as a link that contains a CSV file."""
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow([as_text(name) for name in self.numbers])
        writer.writerows([[_cell(value) for value in row] for row in self.rows])
        return "data:text/csv;charset=utf-8," + quote(stream.getvalue())


@dataclass(slots=True)
class Clock:
    """Wall-clock times of named tasks, in the order of their first start."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def __call__(self, task: str) -> Iterator[None]:
        """Add the time of a block to a task."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[task] = self.seconds.get(task, 0.0) + time.perf_counter() - start


def _always(_: Table) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Section:
    """One section of the page.

    Parameters
    ----------
    name : str
        Its anchor.
    title : str
        Its heading.
    build : callable
        From the data and a clock to the blocks of the section.
    applies : callable
        From the data to whether the section is included; by default it is.
    """

    name: str
    title: str
    build: Callable[[Table, Clock], Sequence[Block]]
    applies: Callable[[Table], bool] = _always


def _cell(value: Any) -> Any:
    return f"{value:.10g}" if isinstance(value, float) else as_text(value)


def count(number: int, noun: str) -> str:
    """Return a number with its noun: one component, 3 components."""
    return f"one {noun}" if number == 1 else f"{number} {noun}s"


@contextmanager
def without_convergence_warnings() -> Iterator[None]:
    """Suppress warnings of incomplete training, which the certificate on the page reports."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield
