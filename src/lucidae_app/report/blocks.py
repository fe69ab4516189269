"""Sections of the report and the parts (paragraphs, plots, tables) that they consist of."""

from __future__ import annotations

import base64
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

from lucidae.data.tables import Table
from lucidae_app.report.style import to_svg
from lucidae_app.sheets import as_text


class Block(Protocol):
    """Part of a section, such as a paragraph or a plot.

    `kind` is the name of the macro of the HTML template that renders it.
    """

    kind: ClassVar[str]


@dataclass(frozen=True, slots=True)
class Prose:
    """A paragraph of text."""

    kind: ClassVar[str] = "prose"
    text: str


@dataclass(frozen=True, slots=True)
class Note:
    """A highlighted paragraph with something that the reader should do or know."""

    kind: ClassVar[str] = "note"
    text: str


@dataclass(frozen=True, slots=True)
class Download:
    """A link to a file that is part of the page, so that the page needs no second file."""

    kind: ClassVar[str] = "download"
    text: str  # the text of the link
    name: str  # name under which browsers save the file
    content: str  # the text of the file
    media_type: str = "text/html"  # its media type

    @property
    def link(self) -> str:
        """The file as a data URL."""
        encoded = base64.b64encode(self.content.encode()).decode("ascii")
        return f"data:{self.media_type};base64,{encoded}"


@dataclass(frozen=True, slots=True)
class Facts:
    """Key numbers of a section with their descriptions; `items` are pairs (number, description)."""

    kind: ClassVar[str] = "facts"
    items: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Grid:
    """A small table with a header and rows of text."""

    kind: ClassVar[str] = "grid"
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Code:
    """Lines of code, shown in a fixed-width font."""

    kind: ClassVar[str] = "code"
    text: str


@dataclass(frozen=True, slots=True)
class Card:
    """A certificate, or another object with an HTML representation, below a label.

    If `unfolded` is False, the reader must click on the label to see it.
    """

    kind: ClassVar[str] = "card"
    label: str
    subject: Any
    unfolded: bool = True

    @property
    def headline(self) -> str:
        """First line of the text of the shown object, from its last colon on if it has one."""
        return str(self.subject).partition("\n")[0].rpartition(": ")[2]

    @property
    def html(self) -> str:
        """The HTML representation of the object that the card shows."""
        return str(self.subject._repr_html_())


@dataclass(frozen=True, slots=True)
class Plot:
    """A figure with its caption and the numbers that it shows."""

    kind: ClassVar[str] = "plot"
    name: str  # name of the downloadable CSV file, without its suffix
    svg: str  # the figure as inline SVG
    caption: str  # what the figure shows and how to read it
    numbers: Mapping[str, Sequence[Any]]  # columns of the CSV file by name, all of equal length
    # whether images keep their colours in the dark theme, because the caption names the colours
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
        """Return a plot of a matplotlib figure, with the caption as its text for screen readers.

        The arguments other than `figure` are those of `Plot`.
        """
        return cls(name, to_svg(figure, name, caption), caption, numbers, keeps_colours)

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        """The numbers of the plot as a list of rows."""
        return list(zip(*(list(column) for column in self.numbers.values()), strict=True))

    @property
    def link(self) -> str:
        """The numbers of the plot as a data URL that contains a CSV file."""
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow([as_text(name) for name in self.numbers])
        writer.writerows([[_cell(value) for value in row] for row in self.rows])
        return "data:text/csv;charset=utf-8," + quote(stream.getvalue())


@dataclass(slots=True)
class Clock:
    """Wall-clock times of named tasks in seconds, in the order in which they first started."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def __call__(self, task: str) -> Iterator[None]:
        """Add the time that the ``with`` block takes to the time of `task`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[task] = self.seconds.get(task, 0.0) + time.perf_counter() - start


def _always(_: Table) -> bool:
    """Return True: the section is included for every table."""
    return True


@dataclass(frozen=True, slots=True)
class Section:
    """One section of the report."""

    name: str  # HTML anchor of the section
    title: str  # heading of the section
    # called with the table and a clock; returns the parts of the section
    build: Callable[[Table, Clock], Sequence[Block]]
    # called with the table; returns whether the section is included
    applies: Callable[[Table], bool] = _always


def _cell(value: Any) -> Any:
    """Return a value as a cell of a CSV file; floats get ten digits."""
    return f"{value:.10g}" if isinstance(value, float) else as_text(value)


def count(number: int, noun: str) -> str:
    """Return a number with its noun as text, such as "one component" or "3 components"."""
    return f"one {noun}" if number == 1 else f"{number} {noun}s"


def fitted(model: Any, table: Table) -> Any:
    """Return `model` fitted to all rows of a table; for a large file, to their second moment."""
    if table.moment is None:
        return model.fit(table.values)
    return model.fit_batches(None, start=table.moment)


@contextmanager
def without_convergence_warnings() -> Iterator[None]:
    """Suppress warnings that training did not converge, in the ``with`` block.

    The certificate on the page also says that training did not converge.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield
