"""The figures of the report, drawn by matplotlib from arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from lucidae.displays._fits import plain_text
from lucidae_app.report.style import LIGHT, drawing, new_figure

Series = np.ndarray[Any, np.dtype[Any]]

DIVERGING = "RdBu_r"


def spectrum(variances: Series, shares: Series, chosen: int, explained: float) -> Figure:
    """Draw the variance of each component, and the share that the first k explain, for all k.

    The share that the chosen ones explain, as the page says it, is written beside its place.
    """
    with drawing():
        figure, (left, right) = new_figure(1, 2, figsize=(8.2, 2.7))
        order = np.arange(len(variances))
        left.semilogy(order, variances, marker="o", color=LIGHT["blue"])
        left.set(title="Variance of each component", xlabel="component", ylabel="variance")
        right.plot(order + 1, np.cumsum(shares), marker="o", color=LIGHT["blue"])
        right.set(title="Variance explained by the first k components", xlabel="k", ylim=(0, 1.03))
        right.yaxis.set_major_formatter(PercentFormatter(1.0))
        for axes, place in ((left, chosen - 0.5), (right, chosen)):
            axes.axvline(place, color=LIGHT["orange"], linestyle="--", linewidth=1.3)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        right.annotate(
            f"k = {chosen}: {explained:.0%}",
            (chosen, float(np.sum(shares[:chosen]))),
            xytext=(8, -16),
            textcoords="offset points",
            color=LIGHT["orange"],
        )
        return figure


def image_grid(
    images: Series, titles: Sequence[str] = (), *, columns: int = 10, signed: bool = False
) -> Figure:
    """Draw images in a grid, all with the same colour scale."""
    limit = float(np.max(np.abs(images))) or 1.0
    scale = {"cmap": DIVERGING, "vmin": -limit, "vmax": limit} if signed else _greys(images)
    header = TITLE if titles else 0.0
    pitch = _pitch(images) + header
    with drawing():
        figure, axes = _contact_sheet(columns, -(-len(images) // columns) * pitch)
        for index, image in enumerate(images):
            row, column = divmod(index, columns)
            _place(axes, image, column, row * pitch + header, scale)
            if titles:
                below = row * pitch + header
                axes.text(column + 0.5, below, titles[index], ha="center", fontsize=8)
        return figure


def image_rows(rows: Mapping[str, Series]) -> Figure:
    """Draw named rows of images (n, height, width) below each other, in the greys of the first."""
    first = next(iter(rows.values()))
    scale, pitch = _greys(first), _pitch(first)
    with drawing():
        figure, axes = _contact_sheet(len(first), len(rows) * pitch, left=0.9)
        for row, (name, images) in enumerate(rows.items()):
            axes.text(-0.05, (row + 0.5) * pitch, name, ha="right", va="center", fontsize=9)
            for column, image in enumerate(images):
                _place(axes, image, column, row * pitch, scale)
        return figure


MARGIN = 0.06
"""Width of the empty margin on each side of an image, relative to the space for one image."""
TITLE = 0.22
"""Height of the title above an image, relative to the width of the space for one image."""


def _pitch(images: Series) -> float:
    """Return the height of the space for one image, divided by the width of this space."""
    return float((1 - 2 * MARGIN) * images.shape[1] / images.shape[2] + 2 * MARGIN)


def _contact_sheet(columns: int, height: float, left: float = 0.0) -> tuple[Figure, Any]:
    """Return a figure and one pair of axes for many images; axes for each image would be slow.

    The unit of length is the width of the space for one image. The space for images is `columns`
    wide and `height` high, and `left` is the width of the space for names at its left.
    """
    width = columns + left
    figure, axes = new_figure(figsize=(8.2, 8.2 / width * height))
    axes.axis("off")
    axes.set(xlim=(-left, columns), ylim=(height, 0))
    return figure, axes


def _place(axes: Any, image: Series, column: int, top: float, scale: Mapping[str, Any]) -> None:
    """Draw one image in a column of the grid of images, `top` units below the grid's upper edge."""
    height, width = image.shape
    bottom = top + MARGIN + (1 - 2 * MARGIN) * height / width
    extent = (column + MARGIN, column + 1 - MARGIN, bottom, top + MARGIN)
    axes.imshow(image, extent=extent, aspect="auto", **scale)


def _greys(images: Series) -> dict[str, Any]:
    """Return the keyword arguments of ``imshow`` for a grey scale that covers all images."""
    return {"cmap": "gray_r", "vmin": float(np.min(images)), "vmax": float(np.max(images))}


def shortened(name: str, longest: int = 28) -> str:
    """Return a name of at most the given number of characters, cut in the middle."""
    half = longest // 2
    return name if len(name) <= longest else f"{name[:half]}…{name[1 - longest + half :]}"


def loadings(components: Series, columns: Sequence[str]) -> Figure:
    """Draw components as a matrix with one row per component and one column per feature."""
    limit = float(np.max(np.abs(components))) or 1.0
    names = [plain_text(shortened(name)) for name in columns] if len(columns) <= 40 else []
    room = 0.085 * max(map(len, names), default=8)
    with drawing():
        figure, axes = new_figure(figsize=(8.2, 0.5 + room + 0.26 * len(components)))
        image = axes.imshow(components, cmap=DIVERGING, vmin=-limit, vmax=limit, aspect="auto")
        axes.grid(visible=False)
        axes.set_ylabel("component")
        axes.set_yticks(range(len(components)), [str(i) for i in range(len(components))])
        if names:
            axes.set_xticks(range(len(columns)), names, rotation=60, ha="right", fontsize=8)
        else:
            axes.set_xlabel("column")
        figure.colorbar(image, ax=axes, shrink=0.9, label="loading")
        return figure


def dropout(values: Series, threshold: float, rates: Series, ranks: Series) -> Figure:
    """Draw singular values with the threshold of dropout, and the rank for every dropout rate."""
    with drawing():
        figure, (left, right) = new_figure(1, 2, figsize=(8.2, 2.7))
        left.bar(np.arange(len(values)), values, color=LIGHT["blue"], width=0.7)
        left.axhspan(0, threshold, color=LIGHT["grid"], alpha=0.8)
        left.axhline(threshold, color=LIGHT["orange"], linestyle="--", label="threshold")
        left.set(title="Singular values", xlabel="direction")
        left.legend()
        right.plot(rates, ranks, color=LIGHT["blue"])
        right.set(title="Rank of the optimal network", xlabel="dropout rate")
        right.set_ylim(bottom=0)
        left.xaxis.set_major_locator(MaxNLocator(integer=True))
        right.yaxis.set_major_locator(MaxNLocator(integer=True))
        return figure


def relevances(
    values: Series, support: Series, names: Sequence[str], truth: Series | None
) -> Figure:
    """Draw the relevance of each column, and mark the significant and the true columns."""
    with drawing():
        figure, axes = new_figure(figsize=(8.2, 2.9))
        order = np.arange(len(values))
        axes.vlines(order, 0, values, color=LIGHT["muted"], linewidth=1.0, linestyle="-")
        axes.plot(
            order[support], values[support], "o", color=LIGHT["blue"], label="significant columns"
        )
        if truth is not None:
            axes.plot(
                order[truth],
                values[truth],
                "o",
                color=LIGHT["orange"],
                markersize=9,
                fillstyle="none",
                label="true columns",
            )
        axes.set(xlabel="column", ylabel="relevance")
        axes.set_ylim(bottom=0)
        if len(names) <= 40:
            axes.set_xticks(
                order, [plain_text(name) for name in names], rotation=60, ha="right", fontsize=8
            )
            axes.set_xlabel("")
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncol=2, borderaxespad=0.2)
        return figure
