"""HTML cards by which notebooks show certificates, solutions, histories, paths and moments.

All cards have one style, whose colours follow the light or dark theme of the notebook. Every text
and every number is escaped here, and nowhere else.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from html import escape
from typing import Any

import numpy as np

MOST_ROWS = 30
"""Largest number of rows of a table that are all shown."""

FEWER_ROWS = 20
"""Number of rows that are shown of a longer table: the first, the last, and equally many between
any two of them."""

MOST_ENTRIES = 6
"""Largest number of entries of a vector that are all shown."""

WIDTH, HEIGHT = 120.0, 22.0
"""Size of a sparkline, in the units of its view box."""


class Html(str):
    """Text that is already HTML, and is therefore not escaped again."""

    __slots__ = ()


def shown(value: Any) -> str:
    """Return a value as short text, which is not yet escaped.

    Numbers have four significant digits, long vectors are abbreviated, and a missing value (None or
    NaN) is a dash.
    """
    if isinstance(value, Enum):
        value = value.value
    if value is None:
        return "–"
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, np.ndarray) and value.ndim:
        return _vector(value) if value.ndim == 1 else f"array of shape {value.shape}"
    if isinstance(value, int | np.integer | str):
        return str(value)
    if isinstance(value, complex | np.complexfloating):
        return f"{value:.4g}"
    number = float(value)
    return "–" if math.isnan(number) else f"{number:.4g}"


def _vector(values: np.ndarray[Any, Any]) -> str:
    """Return the entries of a vector as text; of a long vector the first three and the last."""
    if values.size <= MOST_ENTRIES:
        return ", ".join(shown(value) for value in values)
    head = ", ".join(shown(value) for value in values[:3])
    return f"{head}, …, {shown(values[-1])} ({values.size} values)"


def rows(cells: Iterable[Sequence[Any]], classes: Iterable[str] | None = None) -> Html:
    """Return the rows of a table; the first cell of each row is its header."""
    lines = []
    listed = list(cells)
    for row, kind in zip(listed, classes or [""] * len(listed), strict=True):
        first, *others = (
            str(value) if isinstance(value, Html) else escape(shown(value)) for value in row
        )
        opening = f"<tr class='{escape(kind)}'>" if kind else "<tr>"
        values = "".join(f"<td>{value}</td>" for value in others)
        lines.append(f"{opening}<th scope='row'>{first}</th>{values}</tr>")
    return Html("".join(lines))


def table(
    columns: Mapping[str, Iterable[Any]],
    *,
    classes: Iterable[str] | None = None,
    most: int | None = MOST_ROWS,
) -> Html:
    """Return a table of numbers with a header."""
    listed = list(zip(*columns.values(), strict=True))
    kinds = [""] * len(listed) if classes is None else list(classes)
    note = ""
    if most is not None and len(listed) > most:
        chosen = np.unique(np.linspace(0, len(listed) - 1, FEWER_ROWS).round().astype(int))
        note = f"<p>{len(chosen)} of {len(listed)} rows are shown.</p>"
        listed, kinds = [listed[i] for i in chosen], [kinds[i] for i in chosen]
    head = "".join(f"<th scope='col'>{escape(name)}</th>" for name in columns)
    body = rows(listed, kinds)
    return Html(
        "<div class='scroll' tabindex='0'><table class='numbers'>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{note}"
    )


def facts(values: Mapping[str, Any]) -> Html:
    """Return an HTML table of two columns: names and values."""
    return Html(f"<table class='facts'><tbody>{rows(values.items())}</tbody></table>")


def plain_table(columns: Mapping[str, Iterable[str]], right: Iterable[str] = ()) -> list[str]:
    """Return the lines of a table in plain text; columns named in `right` are aligned there."""
    aligned = []
    for name, cells in columns.items():
        texts = [name, *cells]
        width = max(map(len, texts))
        aligned.append([t.rjust(width) if name in right else t.ljust(width) for t in texts])
    return ["  ".join(row).rstrip() for row in zip(*aligned, strict=True)]


def sparkline(values: Any, label: str) -> Html:
    """Return a small line plot of a vector as SVG; its scale is logarithmic for positive values.

    `label` describes the plot for screen readers. Values that are not finite are left out; if fewer
    than two values are finite, the result is empty.
    """
    series = np.asarray(values, dtype=float)
    finite = np.isfinite(series)
    if series.ndim != 1 or np.count_nonzero(finite) < 2:
        return Html("")
    height = np.log(series[finite]) if np.all(series[finite] > 0) else series[finite]
    across = np.flatnonzero(finite) / (len(series) - 1)
    extent = float(np.ptp(height))
    up = (height - height.min()) / extent if extent > 0 else np.full(height.shape, 0.5)
    if len(up) > WIDTH:  # more points than units of the width cannot be seen
        chosen = np.linspace(0, len(up) - 1, int(WIDTH)).round().astype(int)
        across, up = across[chosen], up[chosen]
    points = " ".join(
        f"{1 + x * (WIDTH - 2):.1f},{1 + (1 - y) * (HEIGHT - 2):.1f}"
        for x, y in zip(across, up, strict=True)
    )
    return Html(
        f"<svg class='sparkline' viewBox='0 0 {WIDTH:g} {HEIGHT:g}' role='img' "
        f"aria-label='{escape(label)}'><polyline points='{points}'/></svg>"
    )


def card(title: str, *parts: str, kind: str = "", folded: bool | None = None) -> str:
    """Return a card: a title, and below it tables and sentences."""
    name = f"lucidae-card {kind}".strip()
    content = "".join(
        part if isinstance(part, Html) else f"<p>{escape(part)}</p>" for part in parts if part
    )
    if folded is None:
        inner = f"<h4>{escape(title)}</h4>{content}"
    else:
        opening = "<details>" if folded else "<details open>"
        inner = f"{opening}<summary>{escape(title)}</summary>{content}</details>"
    return f"{_STYLE}<section class='{escape(name)}'>{inner}</section>"


# Greys are half transparent and text inherits its colour, so that cards suit light and dark pages.
_STYLE = """<style>
.lucidae-card{font:14px/1.45 system-ui,sans-serif;border:1px solid #8886;border-radius:8px;
padding:.6em 1em;margin:.4em 0;max-width:60em;container-type:inline-size}
.lucidae-card h4,.lucidae-card summary{margin:.2em 0 .5em;font-size:1.05em;font-weight:600}
.lucidae-card summary{cursor:pointer;margin-bottom:.2em}
.lucidae-card table{border-collapse:collapse;margin:0;font-size:1em}
.lucidae-card tr{border-top:1px solid #8883}
.lucidae-card td,.lucidae-card th{padding:.2em .8em .2em 0;text-align:left;vertical-align:top;
border:0;font-weight:normal;max-width:none}
.lucidae-card .scroll{overflow:auto;max-height:60em}
.lucidae-card p+.scroll{margin-top:.6em}
.lucidae-card .numbers td,.lucidae-card .numbers th{text-align:right;white-space:nowrap;
font-variant-numeric:tabular-nums;padding:.15em .9em .15em 0}
.lucidae-card .numbers th:first-child{text-align:left}
.lucidae-card thead th{font-weight:600;opacity:.75}
.lucidae-card .facts th{opacity:.75;white-space:nowrap}
.lucidae-card .collapsed{opacity:.6}
.lucidae-card p{margin:.4em 0 0;opacity:.8}
.lucidae-card .sparkline{width:120px;height:22px;vertical-align:middle}
.lucidae-card .sparkline polyline{fill:none;stroke:currentColor;stroke-width:1.4}
.lucidae-certificate table{width:100%}
.lucidae-certificate td,.lucidae-certificate th{padding:.25em .6em}
.lucidae-certificate th{font-weight:600;white-space:nowrap}
.lucidae-certificate td:nth-child(3){font-variant-numeric:tabular-nums;white-space:nowrap}
.lucidae-certificate td p{margin-top:.15em}
.lucidae-certificate cite{opacity:.65;font-size:.92em}
.lucidae-certificate .holds td:first-child{color:#15965f}
.lucidae-certificate .fails td:first-child{color:#d9480f;font-weight:700}
.lucidae-certificate .undecided td:first-child{color:#b08800;font-weight:700}
@container (max-width:36em){
.lucidae-certificate tr{display:grid;grid-template-columns:2em 1fr auto}
.lucidae-certificate td:last-child{grid-column:2/-1}
}
</style>"""
