"""The figures of the report, drawn by matplotlib from arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from lucidae.displays import ComponentsDisplay
from lucidae.displays._fits import MOST_LABELS, image_sheet, label_features
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
        right.set(title="Explained by the first k components", xlabel="k", ylim=(0, 1.03))
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


def image_grid(images: Series, titles: Sequence[str], *, columns: int = 10) -> Figure:
    """Draw images with positive and negative entries in a grid, with a title above each."""
    limit = float(np.max(np.abs(images))) or 1.0
    height, width = images.shape[1:]
    room = 2 + width // 4  # above an image, in pixels
    with drawing():
        figure, axes = _sheet(images, columns, room, cmap=DIVERGING, vmin=-limit, vmax=limit)
        for index, title in enumerate(titles):
            row, column = divmod(index, columns)
            place = (column * (width + 1) + width / 2, row * (height + room) + room - 1)
            axes.text(*place, title, ha="center", fontsize=8)
        return figure


def image_rows(rows: Mapping[str, Series]) -> Figure:
    """Draw named rows of images (n, height, width) below each other, in the greys of the first."""
    first = next(iter(rows.values()))
    low, high = float(np.min(first)), float(np.max(first))
    with drawing():
        images = np.concatenate([*rows.values()])
        figure, axes = _sheet(images, len(first), 1, cmap="gray_r", vmin=low, vmax=high)
        pitch = first.shape[1] + 1
        axes.set_yticks((np.arange(len(rows)) + 0.5) * pitch, [*rows], color=LIGHT["ink"])
        return figure


def _sheet(images: Series, columns: int, room: int, **scale: Any) -> tuple[Figure, Any]:
    """Draw images in a grid as a single one, with `room` pixels above each."""
    sheet = image_sheet(images, columns, room)
    figure, axes = new_figure(figsize=(8.2, 8.2 * sheet.shape[0] / sheet.shape[1]))
    axes.imshow(sheet, **scale)
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    axes.grid(visible=False)
    return figure, axes


def shortened(name: str, longest: int = 28) -> str:
    """Return a name of at most the given number of characters, cut in the middle."""
    half = longest // 2
    return name if len(name) <= longest else f"{name[:half]}…{name[1 - longest + half :]}"


def loadings(components: Series, columns: Sequence[str]) -> Figure:
    """Draw components as a matrix with one row per component and one column per feature."""
    names = [shortened(name) for name in columns]
    room = 0.085 * max(map(len, names)) if len(names) <= MOST_LABELS else 0.7
    with drawing():
        figure, axes = new_figure(figsize=(8.2, 0.5 + room + 0.2 * len(components)))
        ComponentsDisplay(components, feature_names=names).plot(ax=axes)
        axes.set_xlabel("" if len(names) <= MOST_LABELS else "column")
        axes.tick_params(axis="x", labelsize=8)
        axes.grid(visible=False)
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
        right.step(rates, ranks, color=LIGHT["blue"], where="mid")
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
        if len(names) <= MOST_LABELS:
            label_features(axes, names)
            axes.tick_params(axis="x", labelsize=8)
            axes.set_xlabel("")
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncol=2, borderaxespad=0.2)
        return figure
