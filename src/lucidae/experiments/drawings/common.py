"""Style shared by the figures: colour and marker of a method, line style of an optimizer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from lucidae.experiments.declaration import Curve, Curves
from lucidae.report.style import LIGHT

STYLES = {
    "uniform_l2": (LIGHT["muted"], "x"),
    "nonuniform_l2": (LIGHT["orange"], "s"),
    "rag": (LIGHT["blue"], "o"),
    "nested_dropout": (LIGHT["purple"], "^"),
    "expected_nested_dropout": (LIGHT["green"], "D"),
    "linear_vae": (LIGHT["yellow"], "v"),
    "full": (LIGHT["blue"], "o"),
    "diagonal": (LIGHT["green"], "D"),
    "autoencoder": (LIGHT["orange"], "s"),
    "group lasso": (LIGHT["purple"], "^"),
}
"""Colour and marker of each method."""

DASHES: dict[str, Any] = {"nesterov": "-", "adam": "--"}


def look(method: str, optimizer: str = "nesterov") -> dict[str, Any]:
    """Return the style of a method: colour, marker and line style."""
    colour, marker = STYLES[method]
    return {
        "color": colour,
        "marker": marker,
        "linestyle": DASHES[optimizer],
        "markevery": 0.11,
    }


def numbers(curves: Curves, prefixes: Iterable[str] = ("",)) -> Mapping[str, list[Any]]:
    """Return the points of the curves whose names have these prefixes, as three columns."""
    chosen = [(name, curve) for name, curve in curves.items() if name.startswith(tuple(prefixes))]
    return {
        "series": [name for name, curve in chosen for _ in curve.x],
        "x": [float(x) for _, curve in chosen for x in curve.x],
        "y": [float(y) for _, curve in chosen for y in curve.y],
    }


def positive(curve: Curve, floor: float = 1e-6) -> tuple[Any, Any]:
    """Return a curve for logarithmic axes: only x > 0, and y at least `floor`."""
    inside = curve.x > 0
    return curve.x[inside], np.maximum(curve.y[inside], floor)


def shared_legend(figure: Any, axes: Any, columns: int = 4) -> None:
    """Put one legend below all panels."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize=9)
