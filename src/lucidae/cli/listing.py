"""What the package offers, one entry a line (`lucidae list`)."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

import lucidae
from lucidae import datasets
from lucidae.experiments.catalogue import NAMES, experiments
from lucidae.linear.methods import METHODS, MethodSettings, make_method


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that can be loaded, fitted or run."""

    kind: str
    name: str
    summary: str


def catalogue() -> list[Entry]:
    """Return everything, kind by kind.

    Examples
    --------
    >>> "load_digits" in {entry.name for entry in catalogue()}
    True
    """
    return [*_datasets(), *_estimators(), *_methods(), *_experiments()]


def _datasets() -> Iterator[Entry]:
    for name in datasets.__all__:
        if name.startswith(("load_", "fetch_", "make_")):
            yield Entry("dataset", name, _first_sentence(getattr(datasets, name)))


def _estimators() -> Iterator[Entry]:
    for name in lucidae.__all__:
        subject = getattr(lucidae, name)
        if inspect.isclass(subject) and hasattr(subject, "fit"):
            yield Entry("estimator", name, _first_sentence(subject))


def _methods() -> Iterator[Entry]:
    settings = MethodSettings(np.ones(1), np.ones(1), np.random.default_rng(0))
    for name in METHODS:
        yield Entry("method", name, make_method(name, settings).rule.summary)


def _experiments() -> Iterator[Entry]:
    for experiment in experiments(NAMES):
        yield Entry("experiment", experiment.name, experiment.shows)


def _first_sentence(subject: object) -> str:
    return (inspect.getdoc(subject) or "").partition("\n")[0]
