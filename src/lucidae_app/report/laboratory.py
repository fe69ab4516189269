"""The laboratory: one self-contained HTML page with loss landscapes that the reader can change.

The formulas of the page are JavaScript functions in ``templates/laboratory/formulas.js``, because
they must be evaluated in the browser. `tests/app/test_laboratory.py` evaluates them in a browser
and compares them with the functions of the package.
"""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path

from lucidae._version import __version__
from lucidae.io.atomic import atomic_path
from lucidae_app.report.style import css_variables

__all__ = ["FILE_NAME", "laboratory_page", "write_laboratory"]

FILE_NAME = "lucidae-laboratory.html"
"""Name under which the page is written, or offered by the report, unless another one is given."""

SCRIPTS = ("formulas.js", "drawing.js", "views.js", "controls.js")
"""Scripts of the page, in the order in which they use each other."""


def laboratory_page() -> str:
    """Return the laboratory as the text of an HTML page that needs no other file and no network."""
    parts = {
        "@STYLE@": css_variables() + "\n" + _resource("style.css"),
        "@SCRIPT@": "\n".join(map(_resource, SCRIPTS)),
        "@VERSION@": __version__,
    }
    page = _resource("page.html")
    for mark, text in parts.items():
        page = page.replace(mark, text)
    return page


def write_laboratory(path: str | os.PathLike[str]) -> Path:
    """Write the laboratory to `path`, completely or not at all."""
    content = laboratory_page().encode()
    with atomic_path(path, len(content)) as temporary:
        temporary.write_bytes(content)
    return Path(path)


def _resource(name: str) -> str:
    """Return the text of a file in the folder ``templates/laboratory`` of this package."""
    folder = files("lucidae_app.report").joinpath("templates", "laboratory")
    return folder.joinpath(name).read_text(encoding="utf-8")
