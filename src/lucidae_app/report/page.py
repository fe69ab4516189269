"""Self-contained HTML pages: the parts of a chapter, the page made of chapters, the laboratory.

The formulas of the laboratory are JavaScript functions in ``templates/laboratory/formulas.js``,
because they are evaluated in the browser; `tests/app/test_laboratory.py` compares them with the
functions of the library.
"""

from __future__ import annotations

import csv
import io
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
import numpy as np
from matplotlib.figure import Figure

from lucidae._version import __version__
from lucidae.io import atomic_path
from lucidae_app.files import as_text
from lucidae_app.report.style import css_variables, to_svg

SCRIPTS = ("formulas.js", "drawing.js", "views.js", "controls.js")  # each uses those before it


class Block:
    """Part of a chapter, rendered by the macro of the template that has the name of its class."""

    __slots__ = ()

    @property
    def kind(self) -> str:
        """Name of the macro."""
        return type(self).__name__.lower()


@dataclass(frozen=True, slots=True)
class Prose(Block):
    """A paragraph of text."""

    text: str


class Note(Prose):
    """A highlighted paragraph with something that the reader should do or know."""


class Code(Prose):
    """Lines of code, shown in a fixed-width font."""


@dataclass(frozen=True, slots=True)
class Facts(Block):
    """Key numbers with their descriptions; `items` are pairs (number, description)."""

    items: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Grid(Block):
    """A small table with a header and rows of text."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class Answer(Prose):
    """The most important sentence of the page, in large letters."""


@dataclass(frozen=True, slots=True)
class Advice(Block):
    """A list below a title; `items` are pairs of a text and a command, which may be empty."""

    title: str
    items: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Folded(Block):
    """Parts that the reader sees after a click on the title."""

    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Card(Block):
    """A certificate, or another object with an HTML representation, below a label."""

    label: str
    subject: Any
    unfolded: bool = True  # if False, the reader must click on the label to see it
    legend: str = ""  # a sentence on how to read it

    @property
    def headline(self) -> str:
        """First line of the text of the shown object, without its title."""
        title = getattr(self.subject, "title", "")
        return str(self.subject).partition("\n")[0].removeprefix(f"{title}: ")

    @property
    def html(self) -> str:
        """The HTML representation of the object that the card shows."""
        return str(self.subject._repr_html_())


@dataclass(frozen=True, slots=True)
class Plot(Block):
    """A figure with its caption and the numbers that it shows."""

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
        numbers: Mapping[str, Any],
        *,
        keeps_colours: bool = False,
    ) -> Plot:
        """Return a plot of a figure, with the caption as its text for screen readers."""
        lists = {
            key: values.tolist() if isinstance(values, np.ndarray) else list(values)
            for key, values in numbers.items()
        }
        return cls(name, to_svg(figure, name, caption), caption, lists, keeps_colours)

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        """The numbers of the plot as a list of rows."""
        return list(zip(*self.numbers.values(), strict=True))

    @property
    def link(self) -> str:
        """The numbers of the plot as a data URL of a CSV file; floats have ten digits."""
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow([as_text(name) for name in self.numbers])
        for row in self.rows:
            writer.writerow([f"{x:.10g}" if isinstance(x, float) else as_text(x) for x in row])
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


@dataclass(frozen=True, slots=True)
class Chapter:
    """A chapter of a page with its finished parts; `name` is its HTML anchor."""

    name: str
    title: str
    blocks: Sequence[Block]


def fill_page(title: str, lead: str, chapters: Sequence[Chapter], seconds: float) -> str:
    """Return the text of one self-contained HTML page."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    environment.filters["figure"] = lambda x: f"{x:.4g}" if isinstance(x, float) else x
    return environment.from_string(_resource("page.html")).render(
        title=title,
        lead=lead,
        chapters=chapters,
        version=__version__,
        seconds=duration(seconds),
        variables=css_variables(),
        css=_resource("style.css"),
    )


def laboratory_page() -> str:
    """Return the laboratory, loss landscapes that the reader can change, as the text of a page."""
    parts = {
        "@STYLE@": css_variables() + "\n" + _resource("laboratory", "style.css"),
        "@SCRIPT@": "\n".join(_resource("laboratory", script) for script in SCRIPTS),
        "@VERSION@": __version__,
    }
    page = _resource("laboratory", "page.html")
    for mark, text in parts.items():
        page = page.replace(mark, text)
    return page


def write_page(path: str | os.PathLike[str], page: str) -> Path:
    """Write the text of a page to `path`, completely or not at all, and return the path."""
    content = page.encode()
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)
    return Path(path)


def duration(seconds: float) -> str:
    """Return a time as text in seconds, or in milliseconds if it is below one second."""
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def count(number: int, noun: str) -> str:
    """Return a number with its noun as text, such as "one component" or "3 components"."""
    return f"one {noun}" if number == 1 else f"{number} {noun}s"


def _resource(*names: str) -> str:
    """Return the text of a file in the folder ``templates`` of this package."""
    return files("lucidae_app.report").joinpath("templates", *names).read_text(encoding="utf-8")
