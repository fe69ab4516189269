"""Times, errors and Markdown tables that the benchmarks share."""

from __future__ import annotations

import importlib.util
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

import numpy as np
from threadpoolctl import threadpool_limits

from lucidae.datasets import load_mnist

Work = Callable[[], object]

PACKAGES = {
    "torch": "torch.pca_lowrank",
    "dask_ml": "dask_ml PCA and IncrementalPCA",
    "cuml": "cuML PCA (needs a CUDA device)",
}
"""Packages that are not required, and the peers that they contain."""


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of several runs of the same work."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """Median of the runs."""
        return median(self.seconds)

    def __str__(self) -> str:
        """Median, with the smallest and the largest time if there are several."""
        if len(self.seconds) == 1:
            return f"{duration(self.median)} (one run)"
        low, high = duration(min(self.seconds)), duration(max(self.seconds))
        return f"{duration(self.median)} ({low} to {high})"


def duration(seconds: float) -> str:
    """Return a time with three digits, in the unit that suits it."""
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "µs")):
        if seconds * factor >= 0.9995:
            return f"{significant(seconds * factor)} {unit}"
    return f"{significant(seconds * 1e6)} µs"


def significant(value: float) -> str:
    """Return a number with three significant digits and without an exponent."""
    digits = 0 if value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:.{digits}f}"


PAUSE = 0.05
"""Seconds before each timed call. The BLAS threads of the call before have then stopped waiting for
work (OpenBLAS: about 0.03 s), so that they do not disturb a call that uses another BLAS library."""


def seconds(work: Work, pause: float = PAUSE) -> float:
    """Return the seconds that a call of `work` takes, after a short pause."""
    time.sleep(pause)
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def interleaved(works: Mapping[str, Work], repeats: int) -> dict[str, Times]:
    """Return the times of all functions in `works`, which are run in turn `repeats` times."""
    rounds = [{name: seconds(work) for name, work in works.items()} for _ in range(repeats)]
    return {name: Times(tuple(times[name] for times in rounds)) for name in works}


def best_times(works: Mapping[str, Work], repeats: int) -> dict[str, Times]:
    """Return the times of each work at its best number of BLAS threads, one or all cores."""
    found: dict[str, list[Times]] = {name: [] for name in works}
    for threads in sorted({1, os.cpu_count() or 1}):
        with threadpool_limits(threads):
            for name, times in interleaved(works, repeats).items():
                found[name].append(times)
    return {name: min(tried, key=lambda times: times.median) for name, tried in found.items()}


def mnist_rows() -> tuple[str, np.ndarray]:
    """Return a name and rows: MNIST if it is cached, else random rows of its size and spectrum."""
    try:
        return "MNIST", load_mnist(dtype="float64").data
    except FileNotFoundError:
        rng = np.random.default_rng(0)
        spread = np.sqrt(5.1 * np.arange(1, 785.0) ** -1.2)
        return "random numbers", rng.standard_normal((60_000, 784)) * spread


@contextmanager
def limited(limit: float) -> Iterator[None]:
    """Raise a `TimeoutError` when the block has run for `limit` seconds.

    A call into compiled code is not interrupted, but the error is raised as soon as it returns.
    Where the system has no such signal, nothing is limited.
    """
    if not hasattr(signal, "setitimer") or not np.isfinite(limit):
        yield
        return

    def stop(*_: object) -> None:
        raise TimeoutError(f"more than {limit:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, limit)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def component_error(found: Any, reference: Any) -> float:
    """Return the larger of the subspace error and the largest error of one component.

    Parameters
    ----------
    found : array of shape (k, m)
        Components as rows, which need not be of unit length.
    reference : array of shape (k, m)
        Orthonormal components as rows.

    Returns
    -------
    float
        The subspace error is the sine of the largest angle between the two spans. The error of a
        component is the norm of its difference to the reference, up to its sign.
    """
    found = np.array(found, dtype=np.float64)
    lengths = np.linalg.norm(found, axis=1)
    if not np.all(np.isfinite(lengths)) or not np.all(lengths > 0.0):
        return float("nan")
    found /= lengths[:, None]
    agree = np.where(np.sum(found * reference, axis=1) < 0.0, -1.0, 1.0)
    components = np.linalg.norm(found * agree[:, None] - reference, axis=1)
    outside = found - (found @ reference.T) @ reference
    # Orthonormal rows of the found span, so that the norm of their outside part is a sine.
    values, turn = np.linalg.eigh(found @ found.T)
    if values[0] <= 1e-8:
        return 1.0
    sines = np.linalg.norm((turn / np.sqrt(values)).T @ outside, ord=2)
    return float(max(np.max(components), sines))


def markdown(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(str(cell) for cell in line)} |" for line in lines)


def write_section(path: str | Path, name: str, text: str) -> None:
    """Replace what a page has between the markers ``<!-- name -->`` and ``<!-- end of name -->``.

    Parameters
    ----------
    path : path-like
        The Markdown page.
    name : str
        Name of the section in the markers.
    text : str
        The new lines.
    """
    file = Path(path)
    page = file.read_text(encoding="utf-8")
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    if page.count(begin) != 1 or page.count(end) != 1 or page.index(begin) > page.index(end):
        raise ValueError(f"{file} must have one marker {begin!r} and after it one {end!r}.")
    before, rest = page.split(begin)
    file.write_text(f"{before}{begin}\n{text}\n{end}{rest.split(end)[1]}", encoding="utf-8")


def missing_peers(packages: Mapping[str, str] | None = None) -> list[str]:
    """Return the peers whose package is not installed."""
    known = PACKAGES if packages is None else packages
    return [peer for name, peer in known.items() if importlib.util.find_spec(name) is None]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One line of the table of peers: some work of ours beside the same work of a peer.

    Parameters
    ----------
    number : str
        Number of the requirement, such as "P13".
    work : str
        What was done.
    ours : Times or None
        Our times; None if they were not measured, for the reason in `notes`.
    peer : str
        Name of the peer.
    theirs : Times or None
        Times of the peer; None if they were not measured.
    most : float, optional
        Largest ratio of our median to that of the peer that the requirement allows.
    others_met : bool, default=True
        Whether the other parts of the requirement are met.
    notes : str
        Errors, peaks of memory, or the reason of missing times.
    """

    number: str
    work: str
    ours: Times | None
    peer: str
    theirs: Times | None
    most: float | None = None
    others_met: bool = True
    notes: str = ""

    HEADER: ClassVar = (
        "#",
        "work",
        "lucidae",
        "peer",
        "its time",
        "ratio",
        "asked",
        "met",
        "notes",
    )

    @property
    def ratio(self) -> float:
        """Our median divided by that of the peer; NaN if one is missing."""
        if self.ours is None or self.theirs is None:
            return float("nan")
        return self.ours.median / self.theirs.median

    @property
    def met(self) -> str:
        """Whether the requirement is met: "yes", "**NO**", or a dash if this is not known."""
        if not self.others_met:
            return "**NO**"
        if self.most is None or not np.isfinite(self.ratio):
            return "–"
        return "yes" if self.ratio <= self.most else "**NO**"

    def cells(self) -> list[str]:
        """Return the cells of this line of the table."""
        return [
            self.number,
            self.work,
            "–" if self.ours is None else str(self.ours),
            self.peer,
            "–" if self.theirs is None else str(self.theirs),
            f"{self.ratio:.2f}" if np.isfinite(self.ratio) else "–",
            "–" if self.most is None else f"≤ {self.most:.3g}",
            self.met,
            self.notes or "–",
        ]


def comparison_table(comparisons: Iterable[Comparison]) -> str:
    """Return a Markdown table of comparisons, followed by the peers that are not installed."""
    table = markdown(Comparison.HEADER, [entry.cells() for entry in comparisons])
    missing = "; ".join(missing_peers()) or "none"
    return f"{table}\n\nPeers that are not installed: {missing}."
