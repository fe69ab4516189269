"""Building of the report's sections, and of the HTML page from them and a template."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2

from lucidae._version import __version__
from lucidae.data.tables import Table
from lucidae.io.atomic import atomic_path
from lucidae_app.report.blocks import Block, Clock, Grid, Prose, Section
from lucidae_app.report.sections import SECTIONS
from lucidae_app.report.style import css_variables

Progress = Callable[[str, int, int], None]
"""Function that is called before each section is built.

Its arguments are the section's title, its number from 0, and the number of sections."""

LEAD = (
    "Autoencoders whose optimum is known: the optimal representation of these data, the distance "
    "of trained models to it, and the theorems that apply."
)


@dataclass(frozen=True, slots=True)
class Chapter:
    """A section of the report with its finished parts."""

    name: str
    title: str
    blocks: Sequence[Block]


def write_report(
    table: Table, path: str | os.PathLike[str], *, progress: Progress | None = None
) -> Path:
    """Write the report on `table` to `path`, completely or not at all.

    Parameters
    ----------
    table : Table
        The data, with names of columns and, optionally, targets.
    path : path-like
        Path of the page; an existing file is replaced.
    progress : callable, optional
        Called before each section with its title, its number from 0, and the number of sections.

    Returns
    -------
    Path
        The path of the page.
    """
    text = render(table, SECTIONS, progress=progress)
    content = text.encode()
    with atomic_path(path, len(content)) as temporary:
        temporary.write_bytes(content)
    return Path(path)


def render(table: Table, sections: Sequence[Section], *, progress: Progress | None = None) -> str:
    """Return the report on `table` as the text of an HTML page.

    `sections` that do not apply to the table are left out. `progress` is called before each section
    with its title, its number from 0, and the number of sections.
    """
    clock = Clock()
    chosen = [section for section in sections if section.applies(table)]
    chapters = []
    with clock(_TOTAL):
        for number, section in enumerate(chosen):
            if progress is not None:
                progress(section.title, number, len(chosen))
            blocks = section.build(table, clock)
            chapters.append(Chapter(section.name, section.title, blocks))
    chapters.insert(-1, _timings(clock))
    return fill_page(f"A report on {table.name}", LEAD, chapters, clock.seconds[_TOTAL])


def fill_page(title: str, lead: str, chapters: Sequence[Chapter], seconds: float) -> str:
    """Return the text of one self-contained HTML page with finished chapters.

    `lead` is the paragraph below the title, and `seconds` the time that the report took.
    """
    return _template().render(
        title=title,
        lead=lead,
        chapters=chapters,
        version=__version__,
        seconds=_duration(seconds),
        variables=css_variables(),
        css=_resource("style.css"),
    )


_TOTAL = "the whole page, including figures"


def _timings(clock: Clock) -> Chapter:
    """Return the chapter with a table of the time that each task took."""
    rows = tuple((task, _duration(seconds)) for task, seconds in clock.seconds.items())
    blocks: list[Block] = [
        Prose(
            "Wall-clock time of each task of this report. The time of the first task includes "
            "loading the libraries."
        ),
        Grid(("task", "time"), rows),
    ]
    return Chapter("timings", "Timings", blocks)


def _duration(seconds: float) -> str:
    """Return a time as text in seconds, or in milliseconds if it is below one second."""
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def _template() -> jinja2.Template:
    """Return the template of the HTML page."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    environment.filters["figure"] = _figure
    return environment.from_string(_resource("page.html"))


def _figure(value: Any) -> Any:
    """Return a float as text with four digits, and other values unchanged."""
    return f"{value:.4g}" if isinstance(value, float) else value


def _resource(name: str) -> str:
    """Return the text of a file in the folder ``templates`` of this package."""
    return files("lucidae_app.report").joinpath("templates", name).read_text(encoding="utf-8")
