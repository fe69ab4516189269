"""From finished cells to verdicts, and to files with the numbers behind them."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lucidae._version import __version__
from lucidae.certificate import Certificate
from lucidae.experiments.declaration import Curves, Experiment, Results
from lucidae.experiments.store import Store
from lucidae.io.atomic import atomic_path, json_safe

__all__ = ["Outcome", "judge", "write_numbers", "write_verdicts"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """An experiment whose cells are all done.

    Parameters
    ----------
    experiment : Experiment
        The declaration.
    scale : str
        ``"smoke"`` or ``"paper"``.
    results : Results
        The finished cells.
    curves : mapping of str to Curve
        What the claims were judged on.
    verdicts : Certificate
        The claims with their measured figures.
    """

    experiment: Experiment
    scale: str
    results: Results = field(repr=False)
    curves: Curves = field(repr=False)
    verdicts: Certificate = field(repr=False)

    @property
    def holds(self) -> bool:
        """Whether every claim was seen."""
        return all(claim.holds is not False for claim in self.verdicts.claims)

    @property
    def machines(self) -> tuple[str, ...]:
        """The machines that did the work."""
        return tuple(sorted({str(cell.about["machine"]) for cell in self.results}))

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-safe values: the setting, the machine, the time and every claim."""
        return {
            "name": self.experiment.name,
            "reference": self.experiment.reference,
            "scale": self.scale,
            "setting": dict(self.experiment.at(self.scale).setting.facts()),
            "holds": self.holds,
            "claims": [claim.to_dict() for claim in self.verdicts.claims],
            "cells": len(self.results.cells),
            "seconds": round(self.results.seconds, 3),
            "machines": list(self.machines),
            "versions": _versions(self.results),
        }


def judge(experiment: Experiment, scale: str, store: Store) -> Outcome | None:
    """Judge an experiment on the cells in a store; None while some are not done."""
    chosen = experiment.at(scale)
    found = [store.load(cell) for cell in chosen.setting.cells()]
    measured = tuple(cell for cell in found if cell is not None)
    if len(measured) < len(found):
        return None
    results = Results(measured)
    curves = chosen.setting.curves(results)
    claims = tuple(verdict.judge(curves, experiment.reference) for verdict in chosen.expect)
    title = f"{experiment.reference}: what was seen"
    return Outcome(experiment, scale, results, curves, Certificate(title, claims))


def write_numbers(outcome: Outcome, folder: Path) -> Path:
    """Write every curve of an outcome to one CSV file with the columns series, x and y."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(("series", "x", "y"))
    for name, curve in outcome.curves.items():
        writer.writerows(
            (name, f"{x:.10g}", f"{y:.10g}") for x, y in zip(curve.x, curve.y, strict=True)
        )
    target = folder / f"{outcome.experiment.name}.csv"
    with atomic_path(target) as temporary:
        temporary.write_text(stream.getvalue(), encoding="utf-8")
    return target


def write_verdicts(outcomes: Sequence[Outcome], target: Path) -> Path:
    """Write all verdicts with their settings to one JSON file."""
    subject = {
        "lucidae": __version__,
        "holds": all(outcome.holds for outcome in outcomes),
        "experiments": [outcome.to_dict() for outcome in outcomes],
    }
    with atomic_path(target) as temporary:
        temporary.write_text(json.dumps(subject, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return target


def _versions(results: Results) -> dict[str, Any]:
    """Return the versions of the last finished cell: a run rarely spans two."""
    return {
        name: json_safe(value) for name, value in dict(results.cells[-1].about["versions"]).items()
    }
