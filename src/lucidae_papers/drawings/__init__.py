"""Figures of the experiments. This package needs matplotlib, which those that do runs may lack."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from lucidae_app.report.page import Plot
from lucidae_app.report.style import drawing
from lucidae_papers.results import Curves
from lucidae_papers.verdicts import Outcome


class Drawn(NamedTuple):
    """A figure of an experiment, before it is written as SVG."""

    figure: Figure
    caption: str
    shown: tuple[str, ...] = ("",)  # beginnings of the names of the curves that it shows
    suffix: str = ""  # after the experiment's name, if it has several figures


def plots(outcome: Outcome) -> list[Plot]:
    """Draw the figures of a judged experiment by the function that `Experiment.draw` names."""
    module, _, function = outcome.experiment.draw.partition(".")
    if not module:
        return []
    draw = getattr(import_module(f"lucidae_papers.drawings.{module}"), function)
    with drawing():
        return [
            Plot.of(
                outcome.experiment.name + drawn.suffix,
                drawn.figure,
                drawn.caption,
                numbers(outcome.curves, drawn.shown),
            )
            for drawn in draw(outcome)
        ]


def numbers(curves: Curves, prefixes: Iterable[str]) -> Mapping[str, list[Any]]:
    """Return the points of all curves whose names start with one of `prefixes`."""
    chosen = [(name, curve) for name, curve in curves.items() if name.startswith(tuple(prefixes))]
    return {
        "series": [name for name, curve in chosen for _ in curve.x],
        "x": [float(x) for _, curve in chosen for x in curve.x],
        "y": [float(y) for _, curve in chosen for y in curve.y],
    }
