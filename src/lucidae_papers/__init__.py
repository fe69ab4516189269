"""Experiments that repeat figures and tables of the three papers and judge what they claim.

The papers are Bao et al. 2020, Mianjy et al. 2018 and Wipf 2023.
"""

from lucidae_papers.cells import Cell, Work, work
from lucidae_papers.declaration import Experiment, Scale, Statement
from lucidae_papers.engine import NAMES, experiment, experiments, reproduce, run
from lucidae_papers.results import Curve, Results
from lucidae_papers.store import Store

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
    "reproduce",
    "run",
    "work",
]
