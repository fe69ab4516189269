"""Run experiments without the `cli` extra: ``python -m lucidae.experiments run NAME…``.

This command is meant for machines with an accelerator and few packages: it prints plain lines of
progress and writes no HTML page. The finished runs can be packed into one file and read on another
machine, which then writes the page.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from lucidae.experiments.catalogue import NAMES, experiments
from lucidae.experiments.declaration import SCALES
from lucidae.experiments.engine import Tick, count
from lucidae.experiments.outcomes import Counts
from lucidae.experiments.reproduce import Reproduction, cells_of, reproduce
from lucidae.experiments.store import Store

PAUSE = 10.0
"""Smallest time between two printed lines of progress, in seconds."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``list`` or ``run`` with command-line arguments and return the exit code.

    The code is 0 if the measurements confirm every claim of the papers that was judged and every
    finding of this project beyond the papers; 1 if they refute one; 2 if an error occurred; and 3
    if the time limit was reached before all runs were done.
    """
    options = _parser().parse_args(arguments)
    try:
        return int(options.command(options))
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    """Return the parser of the command line with its commands ``list`` and ``run``."""
    parser = argparse.ArgumentParser(prog="python -m lucidae.experiments", description=__doc__)
    commands = parser.add_subparsers(required=True)
    lister = commands.add_parser("list", help="list the experiments, one per line")
    lister.set_defaults(command=_list)
    runner = commands.add_parser(
        "run",
        help="compute the runs whose results are not stored yet, then judge the claims of "
        "the experiments",
    )
    runner.add_argument(
        "names", nargs="*", metavar="NAME", help="name of an experiment; default: all"
    )
    runner.add_argument(
        "--scale",
        choices=SCALES,
        default="smoke",
        help="smoke: small data; paper: the sizes of the papers",
    )
    where = "where to compute: cpu, or the name of a torch device"
    runner.add_argument("--device", default="cpu", help=where)
    runner.add_argument("--out", type=Path, default=Path("results"), help="folder of the results")
    runner.add_argument(
        "--jobs",
        type=int,
        help="number of processes; default: one per core, or one on an accelerator",
    )
    runner.add_argument(
        "--threads", action="store_true", help="on an accelerator: use threads instead of processes"
    )
    runner.add_argument(
        "--seconds", type=float, help="time limit in seconds; run again to continue"
    )
    runner.add_argument(
        "--take",
        type=Path,
        action="append",
        default=[],
        help="first read finished runs from this file, which --pack wrote",
    )
    runner.add_argument(
        "--pack", type=Path, help="write all finished runs to this file, which --take reads"
    )
    runner.set_defaults(command=_run)
    return parser


def _list(_: argparse.Namespace) -> int:
    for experiment in experiments(NAMES):
        print(f"{experiment.name:<20} {experiment.shows}")
    return 0


def _run(options: argparse.Namespace) -> int:
    """Run the command ``run`` with parsed options, and return its exit code."""
    store = Store(options.out / "cells")
    for packed in options.take:
        print(f"{count(store.unpack(packed))} read from {packed}")
    done = reproduce(
        options.names,
        scale=options.scale,
        device=options.device,
        out=options.out,
        jobs=options.jobs,
        threads=options.threads,
        seconds=options.seconds,
        report=_PlainLines(),
        page=False,
    )
    if options.pack is not None:
        cells = cells_of(experiments(), options.scale)
        print(f"{count(store.pack(options.pack, cells))} packed into {options.pack}")
    _print_verdicts(done)
    return done.exit_code


def _print_verdicts(done: Reproduction) -> None:
    """Print the verdicts on all finished experiments, and the names of unfinished ones."""
    for outcome in done.outcomes:
        print(f"\n{outcome.experiment.name}, {outcome.results.seconds:.1f} s of work")
        print(outcome.summary())
    if done.outcomes:
        print(f"\nIn all: {Counts.of(done.outcomes)}")
    print(f"\n{done.tally}")
    if done.waiting:
        print(f"Not complete: {', '.join(done.waiting)}. Run the command again to continue.")


class _PlainLines:
    """Callback for `run` that prints its progress, at most one line every `PAUSE` seconds."""

    def __init__(self) -> None:
        self.due = 0.0

    def __call__(self, tick: Tick) -> None:
        now = time.monotonic()
        if now < self.due and tick.done < tick.total:
            return
        self.due = now + PAUSE
        left = "" if tick.seconds_left is None else f", about {tick.seconds_left:.0f} s left"
        print(f"{tick.done} of {count(tick.total)}{left}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
