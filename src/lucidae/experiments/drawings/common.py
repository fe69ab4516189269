"""What the figures share: one colour and one marker a method, one dash an optimizer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from lucidae.experiments.declaration import Curve, Curves
from lucidae.report.style import LIGHT

NAMES = {
    "uniform_l2": "uniform ℓ₂",
    "nonuniform_l2": "non-uniform ℓ₂",
    "rag": "RAG",
    "nested_dropout": "nested dropout",
    "expected_nested_dropout": "expected nested dropout",
    "linear_vae": "linear VAE",
    "full": "full VAE",
    "diagonal": "diagonal VAE",
    "autoencoder": "autoencoder",
    "group lasso": "group lasso",
}
COLOURS = {
    "uniform_l2": LIGHT["muted"],
    "nonuniform_l2": LIGHT["orange"],
    "rag": LIGHT["blue"],
    "nested_dropout": LIGHT["purple"],
    "expected_nested_dropout": LIGHT["green"],
    "linear_vae": LIGHT["yellow"],
    "full": LIGHT["blue"],
    "diagonal": LIGHT["green"],
    "autoencoder": LIGHT["orange"],
    "group lasso": LIGHT["purple"],
}
MARKERS = {
    "uniform_l2": "x",
    "nonuniform_l2": "s",
    "rag": "o",
    "nested_dropout": "^",
    "expected_nested_dropout": "D",
    "linear_vae": "v",
    "full": "o",
    "diagonal": "D",
    "autoencoder": "s",
    "group lasso": "^",
}
DASHES: dict[str, Any] = {"nesterov": "-", "adam": "--"}
STRENGTHS = (LIGHT["blue"], LIGHT["orange"], LIGHT["green"])


def look(method: str, optimizer: str = "nesterov") -> dict[str, Any]:
    """Return how a method is drawn: colour, marker and dash."""
    return {
        "color": COLOURS[method],
        "marker": MARKERS[method],
        "linestyle": DASHES[optimizer],
        "markevery": 0.11,
    }


def numbers(curves: Curves, prefixes: Iterable[str] = ("",)) -> Mapping[str, list[Any]]:
    """Return the points of the curves whose names have these beginnings, as three columns."""
    chosen = [(name, curve) for name, curve in curves.items() if name.startswith(tuple(prefixes))]
    return {
        "series": [name for name, curve in chosen for _ in curve.x],
        "x": [float(x) for _, curve in chosen for x in curve.x],
        "y": [float(y) for _, curve in chosen for y in curve.y],
    }


def positive(curve: Curve, floor: float = 1e-6) -> tuple[Any, Any]:
    """Return a curve for logarithmic axes: no point at zero, no value below `floor`."""
    there = curve.x > 0
    return curve.x[there], np.maximum(curve.y[there], floor)


def shared_legend(figure: Any, axes: Any, columns: int = 4) -> None:
    """Put one legend below all panels."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize=9)
