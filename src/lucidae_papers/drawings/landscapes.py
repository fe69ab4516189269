"""Functions that draw loss surfaces: contours and a 3-D view."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.interpolate import RegularGridInterpolator

from lucidae.dropout.landscape import scalar_surface
from lucidae_app.report.style import LIGHT, new_figure
from lucidae_papers.drawings import Drawn
from lucidae_papers.verdicts import Outcome

SHADES = "cividis"
RINGS, SPOKES = 21, 61
"""Numbers of rings and of spokes of the mesh that shows a surface in three dimensions."""

CUT = 1.25
"""Surfaces of the dropout loss are drawn up to this multiple of their height at the origin."""


def bowl(axis: Any, surface: Any, ceiling: float) -> Any:
    """Return a mesh of the part of a surface below the height `ceiling`.

    The mesh consists of rings and spokes around the origin.
    """
    height = RegularGridInterpolator((axis, axis), surface.T, method="cubic")
    angles = np.linspace(0, 2 * np.pi, SPOKES)
    spokes = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    reach = np.linspace(0, float(axis[-1]), 200)
    along = height(reach[:, None, None] * spokes)
    lowest = np.argmin(along, axis=0)
    outside = (along >= ceiling) & (np.arange(len(reach))[:, None] > lowest)
    ends = np.where(outside.any(axis=0), reach[np.argmax(outside, axis=0)], reach[-1])
    points = np.linspace(0, 1, RINGS)[:, None, None] * ends[:, None] * spokes
    return np.stack([points[..., 0], points[..., 1], np.minimum(height(points), ceiling)])


def valley(outcome: Outcome) -> Sequence[Drawn]:
    """Return a plot of the loss of the non-uniform ℓ₂ penalty and a descent on it.

    The minima of this loss lie in a ring-shaped valley.
    """
    arrays = outcome.results.cells[0].arrays
    axis, surface, path = arrays["axis"], arrays["surface"], arrays["path"]
    ceiling = float(arrays["centre"])
    figure, (panels,) = _pairs(1)
    _solid(panels[0], axis, surface, ceiling)
    levels = np.linspace(surface.min(), ceiling, 14)
    _contours(panels[1], axis, np.minimum(surface, ceiling), levels)
    panels[1].plot(*path.T, color=LIGHT["orange"], linewidth=2.2, linestyle="-")
    panels[1].plot(*path[0], marker="o", color=LIGHT["orange"], linestyle="")
    row, column = np.unravel_index(np.argmin(surface), surface.shape)
    lowest = np.array([axis[column], axis[row]])  # the loss of −W is that of W
    stars = {"marker": "*", "markersize": 12, "color": "#ffffff", "linestyle": ""}
    panels[1].plot(*np.stack([lowest, -lowest], axis=1), **stars)
    panels[1].set(xlabel="α cos θ", ylabel="α sin θ", title="Descent (line) and minima (★)")
    caption = (
        "The loss over scale α and angle θ of the two latents, cut at its value at the "
        "origin, and a path of gradient descent from the dot to the end of the line."
    )
    return [Drawn(figure, caption, ("radius", "angle", "ring"))]


def dropout(outcome: Outcome) -> Sequence[Drawn]:
    """Return a plot of the dropout loss surface for every strength of dropout."""
    cells = outcome.results.cells
    figure, rows = _pairs(len(cells))
    for (solid, flat), cell in zip(rows, cells, strict=True):
        axis, surface = cell.arrays["axis"], cell.arrays["surface"]
        ceiling = CUT * float(surface[len(axis) // 2, len(axis) // 2])
        _solid(solid, axis, surface, ceiling)
        levels = np.linspace(0, np.sqrt(ceiling), 13) ** 2
        _contours(flat, axis, np.minimum(surface, ceiling), levels)
        minima = cell.arrays["minima"]
        flat.plot(*minima.T, marker="*", markersize=12, color="#ffffff", linestyle="")
        flat.set(title=f"λ = {cell.settings['strength']:g}", xlabel="u₁", ylabel="u₂")
    caption = (
        "The expected loss over both weights, without dropout (top) and with dropout of two "
        "strengths λ. Stars mark the optima of the closed form."
    )
    return [Drawn(figure, caption)]


def paths(outcome: Outcome) -> Sequence[Drawn]:
    """Return a plot of the paths of dropout SGD on the contours of the expected loss."""
    setting = outcome.setting
    count = len(setting.strengths)
    figure, (panels,) = new_figure(1, count, figsize=(9.0, 3.3), sharey=True, squeeze=False)
    for axes, lam in zip(panels, setting.strengths, strict=True):
        surface = scalar_surface(2.0, lam, points=61)
        ceiling = 7.0
        levels = np.linspace(0, np.sqrt(ceiling), 11) ** 2
        _contours(axes, surface.axis, np.minimum(surface.values, ceiling), levels)
        path = outcome.results.where(strength=lam).cells[0].arrays["path"]
        for start, colour in zip(np.moveaxis(path, 1, 0), ("#ffffff", "#f28e4b"), strict=True):
            axes.plot(*start[_spread(start, 500)].T, color=colour, linewidth=1.1, linestyle="-")
            axes.plot(*start[0], marker="o", color=colour, linestyle="")
        axes.plot(
            *surface.minima.T,
            marker="o",
            markersize=8,
            markerfacecolor="none",
            markeredgewidth=1.8,
            color="#2fc79b",
            linestyle="",
        )
        axes.set(title=f"λ = {lam:g}", xlabel="u₁")
    panels[0].set_ylabel("u₂")
    caption = (
        "Dropout SGD from two starts (dots) on the contours of the expected loss; rings mark "
        "the global optima."
    )
    return [Drawn(figure, caption)]


def _spread(path: Any, count: int = 300) -> Any:
    """Return indices of about `count` points of a path that are equally spaced along it."""
    steps = np.linalg.norm(np.diff(path, axis=0), axis=1)
    length = np.concatenate([[0.0], np.cumsum(steps)])
    return np.unique(np.searchsorted(length, np.linspace(0, length[-1], count)))


def _pairs(count: int) -> tuple[Any, Any]:
    """Return a new figure with `count` rows of panels, and the panels: 3-D and 2-D in each row."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.6, 3.7 * count))
    rows = [
        (
            figure.add_subplot(count, 2, 2 * row + 1, projection="3d"),
            figure.add_subplot(count, 2, 2 * row + 2),
        )
        for row in range(count)
    ]
    return figure, rows


def _solid(axes: Any, axis: Any, surface: Any, ceiling: float) -> None:
    """Draw a surface up to the height `ceiling` in three-dimensional axes."""
    axes.plot_surface(
        *bowl(axis, surface, ceiling), cmap=SHADES, rstride=1, cstride=1, linewidth=0, shade=False
    )
    axes.view_init(elev=42, azim=-58)
    axes.set(xticks=[-1, 0, 1], yticks=[-1, 0, 1], zticks=[])
    for pane in (axes.xaxis, axes.yaxis, axes.zaxis):
        pane.set_pane_color((0, 0, 0, 0))


def _contours(axes: Any, axis: Any, surface: Any, levels: Any) -> None:
    """Draw contour lines of a surface at the heights `levels`."""
    step = max(1, len(axis) // 60)
    axis, surface = axis[::step], surface[::step, ::step]
    axes.contourf(axis, axis, surface, levels=levels, cmap=SHADES, extend="max")
    axes.set_aspect("equal")
    axes.grid(visible=False)
