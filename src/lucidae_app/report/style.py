"""Style of all figures: a palette for colour-blind readers, in a light and a dark theme.

Figures are drawn in the colours of the light theme. `to_svg` replaces each colour by a CSS
variable, so that the page determines the theme.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from typing import Any

import matplotlib as mpl
from cycler import cycler
from matplotlib.figure import Figure

# Okabe & Ito (2008), darkened or lightened for sufficient contrast with the background.
THEME = {
    "ink": ("#1c2128", "#e6e9ee"),
    "muted": ("#5b6470", "#9aa4b2"),
    "grid": ("#dfe3e8", "#363d47"),
    "blue": ("#0072b2", "#56b4e9"),
    "orange": ("#d55e00", "#f28e4b"),
    "green": ("#00805f", "#2fc79b"),
    "purple": ("#a8558a", "#d79ac0"),
    "yellow": ("#b57c00", "#e9b949"),
}
LIGHT = {name: pair[0] for name, pair in THEME.items()}
SERIES = tuple(LIGHT[name] for name in ("blue", "orange", "green", "purple", "yellow"))
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1)))
"""Line styles in the order of `SERIES`, for readers who cannot distinguish the colours."""

RC: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": LIGHT["muted"],
    "axes.grid": True,
    "axes.labelcolor": LIGHT["ink"],
    "axes.prop_cycle": cycler(color=SERIES) + cycler(linestyle=DASHES),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "figure.constrained_layout.use": True,
    "figure.figsize": (7.2, 3.2),
    "font.family": "sans-serif",
    "font.size": 10,
    "grid.color": LIGHT["grid"],
    "grid.linewidth": 0.8,
    "image.cmap": "gray_r",
    "image.composite_image": False,  # a composite of all images would be resampled
    "image.interpolation": "none",
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 4,
    "savefig.transparent": True,
    "svg.fonttype": "none",
    "text.color": LIGHT["ink"],
    "axes.titlecolor": LIGHT["ink"],
    "xtick.color": LIGHT["muted"],
    "ytick.color": LIGHT["muted"],
}

_IDENTIFIER = re.compile(r' id="([^"]+)"')
_REFERENCE = re.compile(r'(url\(|href=")#([^")]+)')
_SIZE = re.compile(r'<svg [^>]*?(viewBox="[^"]+")[^>]*>')


@contextmanager
def drawing() -> Iterator[None]:
    """Apply the style of the report's figures within the ``with`` block."""
    with mpl.rc_context(RC):
        yield


def new_figure(rows: int = 1, columns: int = 1, **options: Any) -> tuple[Figure, Any]:
    """Return a new matplotlib figure and its axes in a grid, as `pyplot.subplots` does.

    The figure is not registered with pyplot, so that it need not be closed.
    """
    size = options.pop("figsize", None)
    figure = Figure(figsize=size)
    return figure, figure.subplots(rows, columns, **options)


def to_svg(figure: Figure, name: str, description: str) -> str:
    """Return a figure as SVG to be put into an HTML page.

    Colours are replaced by CSS variables of the page. `name` makes identifiers unique in the page,
    and `description` is the text for screen readers.
    """
    stream = io.StringIO()
    with mpl.rc_context(RC | {"svg.hashsalt": name}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # the browser finds another font
        figure.savefig(stream, format="svg", metadata={"Date": None})
    text = stream.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = _with_own_identifiers(text, name)
    for colour, value in LIGHT.items():
        text = text.replace(value, f"var(--{colour})")
    label = f'role="img" aria-label="{escape(description)}"'
    return _SIZE.sub(lambda opening: f"<svg {opening[1]} {label}>", text, count=1)


def _with_own_identifiers(svg: str, name: str) -> str:
    """Return the SVG with unused identifiers removed and the others prefixed by `name`.

    Identifiers of several figures in one page are then different.
    """
    used = {match[1] for match in _REFERENCE.findall(svg)}
    svg = _IDENTIFIER.sub(lambda match: f' id="{name}-{match[1]}"' if match[1] in used else "", svg)
    return _REFERENCE.sub(rf"\1#{name}-\2", svg)


def css_variables() -> str:
    """Return the colours of the light and the dark theme as CSS variables."""
    light = "".join(f"--{name}:{pair[0]};" for name, pair in THEME.items())
    dark = "".join(f"--{name}:{pair[1]};" for name, pair in THEME.items())
    return f":root{{{light}}}@media (prefers-color-scheme:dark){{:root{{{dark}}}}}"
