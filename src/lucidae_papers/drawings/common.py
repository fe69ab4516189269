"""Style shared by all figures: colour and marker per method, line style per optimizer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from lucidae_app.report.style import LIGHT
from lucidae_papers.declaration import Curve, Curves

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
    "music": (LIGHT["orange"], "s"),
    "beamforming": (LIGHT["muted"], "x"),
    "mle": (LIGHT["green"], "D"),
    "parallel_analysis": (LIGHT["blue"], "o"),
    "hard_threshold": (LIGHT["orange"], "s"),
    "known_noise": (LIGHT["yellow"], "v"),
    "horn": (LIGHT["purple"], "^"),
    "share": (LIGHT["muted"], "x"),
}
"""Colour and marker of each method in all plots, by its name in the settings of a run."""

DASHES: dict[str, Any] = {"nesterov": "-", "adam": "--"}


def look(method: str, optimizer: str = "nesterov") -> dict[str, Any]:
    """Return colour and marker of a method and line style of an optimizer, for ``axes.plot``."""
    colour, marker = STYLES[method]
    return {
        "color": colour,
        "marker": marker,
        "linestyle": DASHES[optimizer],
        "markevery": 0.11,
    }


def numbers(curves: Curves, prefixes: Iterable[str] = ("",)) -> Mapping[str, list[Any]]:
    """Return the points of all curves whose names start with one of `prefixes`.

    The result is a table with the columns series (the name of the curve), x and y.
    """
    chosen = [(name, curve) for name, curve in curves.items() if name.startswith(tuple(prefixes))]
    return {
        "series": [name for name, curve in chosen for _ in curve.x],
        "x": [float(x) for _, curve in chosen for x in curve.x],
        "y": [float(y) for _, curve in chosen for y in curve.y],
    }


def positive(curve: Curve, floor: float = 1e-6) -> tuple[Any, Any]:
    """Return x and y of the points with x > 0, for logarithmic axes; y is at least `floor`."""
    inside = curve.x > 0
    return curve.x[inside], np.maximum(curve.y[inside], floor)


def shared_legend(figure: Any, axes: Any, columns: int = 4) -> None:
    """Add one legend, with the curves of `axes`, below all panels of a figure."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize=9)
