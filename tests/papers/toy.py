"""A toy experiment in a module of its own, so that other processes can import it.

Written to a temporary folder by the fixture `toy`; every call of the work leaves a line in the
file that the settings name.
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lucidae_papers.cells import Cell, work
from lucidae_papers.declaration import Experiment, Scale
from lucidae_papers.results import Curve
from lucidae_papers.verdicts import AtMost, Reported


@work("toy.work/1")
def measure(group, device):
    for settings in group:
        with Path(settings["log"]).open("a") as log, workers(settings["log"]).open("a") as ids:
            log.write(f"{settings['seed']}\n")
            ids.write(f"{os.getpid()}\n")
        time.sleep(settings["pause"])
    return [
        {"values": np.random.default_rng(settings["seed"]).standard_normal(5)} for settings in group
    ]


def workers(log):
    """Return the file with the numbers of the processes that measure cells that log in `log`."""
    return Path(f"{log}-workers")


@work("toy.gated/1")
def gated(group, device):
    """Do the same; from seed 4 on, wait until the file of `gate` exists."""
    for settings in group:
        while settings["seed"] >= 4 and not gate(settings["log"]).exists():
            time.sleep(0.01)
    return measure(group, device)


def gate(log):
    """Return the file for which cells wait that log in the file `log`."""
    return Path(f"{log}-gate")


@work("toy.broken/1")
def broken(group, device):
    raise ZeroDivisionError("by design")


def cells(log, count=6, pause=0.0, work=measure):
    settings = [{"seed": seed, "log": str(log), "pause": pause} for seed in range(count)]
    return [Cell(work, one, 1.0, "all") for one in settings]


@dataclass(frozen=True)
class Toy:
    log: str
    count: int = 4
    pause: float = 0.0

    def cells(self):
        return cells(self.log, self.count, self.pause)

    def curves(self, results):
        means = [float(np.mean(cell.arrays["values"])) for cell in results]
        return {"mean": Curve(range(len(means)), means), "one": Curve([0], [1.0])}

    def facts(self):
        return {"cells": str(self.count)}


def experiment(log, bound):
    """Let the paper claim that one is at most `bound`: true or deliberately wrong."""
    scale = Scale(
        Toy(str(log)),
        {"small": (AtMost("one", bound, says="one"),), "mean": (AtMost("mean", 9.0, says="mean"),)},
        reported=(Reported("one", says="the figure one"),),
        unjudged={"large": "the toy is small."},
    )
    return Experiment(
        name="toy",
        title="A toy",
        reference="nobody",
        about="A number is compared with another.",
        claims={"small": "One is small.", "large": "Many are large."},
        findings={"mean": "The mean is small, too."},
        smoke=scale,
        paper=scale,
    )
