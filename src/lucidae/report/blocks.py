"""What a section of the page is made of: small values that the template knows how to show."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol
from urllib.parse import quote

from matplotlib.figure import Figure

from lucidae.io.tables import Table
from lucidae.report.style import to_svg


class Block(Protocol):
    """Anything that the template has a macro for; `kind` is the macro's name."""

    kind: ClassVar[str]


@dataclass(frozen=True, slots=True)
class Prose:
    """A paragraph."""

    kind: ClassVar[str] = "prose"
    text: str


@dataclass(frozen=True, slots=True)
class Note:
    """A paragraph that stands out: something that the reader should do or know."""

    kind: ClassVar[str] = "note"
    text: str


@dataclass(frozen=True, slots=True)
class Facts:
    """A row of tiles: (figure, what it counts)."""

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
    """Lines to copy."""

    kind: ClassVar[str] = "code"
    text: str


@dataclass(frozen=True, slots=True)
class Card:
    """A certificate, or anything else that shows itself as HTML."""

    kind: ClassVar[str] = "card"
    label: str
    subject: Any
    unfolded: bool = True

    @property
    def headline(self) -> str:
        """The first line of the subject's plain text, less its own title."""
        return str(self.subject).partition("\n")[0].rpartition(": ")[2]

    @property
    def html(self) -> str:
        """The subject's own HTML."""
        return str(self.subject._repr_html_())


@dataclass(frozen=True, slots=True)
class Plot:
    """A figure with its caption and the numbers behind it.

    Parameters
    ----------
    name : str
        Name of the download, without its suffix.
    svg : str
        The figure, inline.
    caption : str
        What it shows and how to read it.
    numbers : mapping of str to sequence
        Columns of equal length.
    """

    kind: ClassVar[str] = "plot"
    name: str
    svg: str
    caption: str
    numbers: Mapping[str, Sequence[Any]]

    @classmethod
    def of(
        cls, name: str, figure: Figure, caption: str, numbers: Mapping[str, Sequence[Any]]
    ) -> Plot:
        """Draw `figure` as SVG, its caption being its accessible name."""
        return cls(name, to_svg(figure, name, caption), caption, numbers)

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        """The numbers row by row."""
        return list(zip(*(list(column) for column in self.numbers.values()), strict=True))

    @property
    def link(self) -> str:
        """The numbers as a CSV file inside a link."""
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(self.numbers)
        writer.writerows([[_cell(value) for value in row] for row in self.rows])
        return "data:text/csv;charset=utf-8," + quote(stream.getvalue())


@dataclass(slots=True)
class Clock:
    """What took how long, in the order in which it was done."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def __call__(self, task: str) -> Iterator[None]:
        """Time a block under a name."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[task] = self.seconds.get(task, 0.0) + time.perf_counter() - start


def _always(_: Table) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Section:
    """One chapter of the page.

    Parameters
    ----------
    name : str
        Its anchor.
    title : str
        Its heading.
    build : callable
        From the data and a clock to blocks.
    applies : callable
        Whether the data suit it; all do by default.
    """

    name: str
    title: str
    build: Callable[[Table, Clock], Sequence[Block]]
    applies: Callable[[Table], bool] = _always


def _cell(value: Any) -> Any:
    return f"{value:.10g}" if isinstance(value, float) else value
