"""Experiments that repeat figures and tables of the three papers and judge what they claim.

The papers are Bao et al. 2020, Mianjy et al. 2018 and Wipf 2023.
"""

from lucidae.experiments.catalogue import NAMES, experiment, experiments
from lucidae.experiments.declaration import (
    Cell,
    Curve,
    Experiment,
    Results,
    Scale,
    Statement,
    Work,
    own,
    work,
)
from lucidae.experiments.engine import run
from lucidae.experiments.store import Store

__all__ = [
    "NAMES",
    "Cell",
    "Curve",
    "Experiment",
    "Results",
    "Scale",
    "Statement",
    "Store",
    "Work",
    "experiment",
    "experiments",
    "own",
    "run",
    "work",
]
