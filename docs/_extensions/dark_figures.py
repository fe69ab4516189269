"""A second version of each SVG figure for the dark theme of the site.

Figures have the colours of `lucidae_app.report.style.THEME`, each of which has a counterpart
in the dark theme. The page contains both versions, and the theme shows one of them.
"""

import re
from pathlib import Path, PurePosixPath

from docutils import nodes
from sphinx.transforms import SphinxTransform

from lucidae_app.report.style import THEME

FOLDER = "_dark"
BACKGROUND = "#14181e"
WHITE = re.compile(r'(fill: |fill=")#ffffff(?!; stroke: #ffffff)')
"""White that is the background, or the inside of an open marker. Marks that are white as a whole
are drawn over the colours of a map, and remain white."""

COLOURS = dict(THEME.values()) | {
    "#000000": "#e6e9ee",
    "#262626": "#e6e9ee",
    "#b0b0b0": "#363d47",
    "#cccccc": "#363d47",
    "#1f77b4": "#56b4e9",  # the first colours of matplotlib
    "#ff7f0e": "#f28e4b",
    "#2ca02c": "#2fc79b",
    "#d62728": "#f2777a",
    "#9467bd": "#d79ac0",
}


def darkened(svg):
    """Return the text of an SVG figure in the colours of the dark theme.

    Examples
    --------
    >>> darkened('<svg width="1"><path/></svg>')  # text without a colour is black by default
    '<svg style="color: #e6e9ee; fill: #e6e9ee" width="1"><path/></svg>'
    >>> darkened('<rect fill="#ffffff"/><path stroke="#0072b2"/>')
    '<rect fill="#14181e"/><path stroke="#56b4e9"/>'
    >>> darkened('<rect fill="#ffffff"/><path style="fill: #ffffff; stroke: #ffffff"/>')
    '<rect fill="#14181e"/><path style="fill: #ffffff; stroke: #ffffff"/>'
    """
    svg = WHITE.sub(rf"\1{BACKGROUND}", svg)
    for light, dark in COLOURS.items():
        svg = svg.replace(light, dark)
    return svg.replace("<svg ", '<svg style="color: #e6e9ee; fill: #e6e9ee" ', 1)


class BothThemes(SphinxTransform):
    """Replace each SVG figure of a page by one for the light and one for the dark theme."""

    default_priority = 200

    def apply(self):
        """Add the dark version behind each SVG figure that has no theme yet."""
        for image in list(self.document.findall(nodes.image)):
            uri, classes = image["uri"], image["classes"]
            if not uri.endswith(".svg") or "://" in uri or {"only-light", "only-dark"} & {*classes}:
                continue
            source = Path(self.env.relfn2path(uri, self.env.docname)[1])
            if not source.exists():
                continue  # Sphinx itself warns
            name = PurePosixPath(FOLDER) / source.relative_to(self.app.srcdir).as_posix()
            target = Path(self.app.srcdir, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            text = darkened(source.read_text(encoding="utf-8"))
            if not target.exists() or target.read_text(encoding="utf-8") != text:
                target.write_text(text, encoding="utf-8")
            dark = image.deepcopy()
            dark["uri"] = f"/{name}"
            dark["classes"] = [*classes, "only-dark"]
            image["classes"] = [*classes, "only-light"]
            image.parent.insert(image.parent.index(image) + 1, dark)


def setup(app):
    """Register the transform."""
    app.add_transform(BothThemes)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
