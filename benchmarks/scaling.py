"""Cost model of the routes of `LinearAutoencoder.fit`: fitted constants and predictions.

    python -m benchmarks scaling [--write docs/benchmarks/scaling.md] [--small]

Each route is measured at three sizes or more with one BLAS thread per process. The model says that
its time is the sum of the operations of matrix products, the operations of factorisations, the
bytes moved in memory, read from files and sent between processes, and the number of messages, each
times a constant. The constants are fitted by nonnegative least squares to the relative errors of
all measurements. Then the times of data that were not measured are predicted. The formulas are
explained in ``docs/benchmarks/scaling.md``, whose tables this script replaces.

A worker is one process with one thread. For predictions, the rate of reading of a worker and the
rate of its network are at most `--disk-rate` and `--network-rate`, because the files that are
measured are read from the page cache and the processes that are measured are on one machine. The
script takes about five minutes.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import scipy.optimize
from threadpoolctl import threadpool_limits

from benchmarks._scaling_costs import (
    TERMS,
    WORDS,
    Cost,
    gram_cost,
    krylov_cost,
    moment_cost,
    pass_cost,
    streamed_moment_cost,
    tree_moment_cost,
)
from benchmarks._tables import duration, markdown, seconds, significant, write_section

K = 10


# Measurements.


@dataclass(frozen=True, slots=True)
class Measurement:
    """The time of one route at one size, and its cost by the formulas.

    `with_certificate` is the time of `fit`, where that computes the certificate from the rows.
    """

    route: str
    size: str
    cost: Cost
    seconds: float
    with_certificate: float | None = None


def typical(work: Callable[[], object], repeats: int) -> float:
    """Return the median time of `repeats` runs of `work`, after one run that does not count."""
    work()
    return median(seconds(work) for _ in range(repeats))


def random_rows(n: int, m: int, dtype: str = "float64") -> np.ndarray:
    """Return rows whose features have the standard deviations 1, 2^-½, 3^-½, …, and a mean."""
    rows = np.random.default_rng(0).standard_normal((n, m), dtype=dtype)
    rows *= (np.arange(1, m + 1) ** -0.5).astype(dtype)
    rows += np.asarray(0.1, dtype=dtype)
    return rows


def fit(X: Any) -> Any:
    from lucidae import LinearAutoencoder

    return LinearAutoencoder(K).fit(X)


def spectrum(X: np.ndarray) -> Any:
    """Compute the eigenpairs that `fit` needs, by the route that it chooses."""
    from lucidae.rows.operator import RowOperator
    from lucidae.spectrum import leading

    return leading(RowOperator.of(X), K)


def measured_moments(scale: float, repeats: int) -> Iterator[Measurement]:
    for n, m in ((20_000, 250), (10_000, 500), (40_000, 500), (10_000, 1000)):
        n = round(n * scale)
        X = random_rows(n, m)
        elapsed = typical(lambda X=X: fit(X), repeats)
        yield Measurement("moment", f"{n} × {m}", moment_cost(n, m, K + 1), elapsed)


def measured_grams(scale: float, repeats: int) -> Iterator[Measurement]:
    """Yield measurements of the eigenpairs of few rows, with and without the certificate."""
    for n, m in ((150, 20_000), (300, 20_000), (300, 40_000)):
        m = max(2000, round(m * scale))
        X = random_rows(n, m)
        elapsed = typical(lambda X=X: spectrum(X), repeats)
        with_certificate = typical(lambda X=X: fit(X), repeats)
        cost = gram_cost(n, m, K + 1)
        yield Measurement("Gram matrix", f"{n} × {m}", cost, elapsed, with_certificate)


def measured_krylov(scale: float, repeats: int) -> Iterator[Measurement]:
    for n, m in ((1000, 4000), (2000, 4000), (4000, 4000)):
        n, m = round(n * scale), max(1100, round(m * scale))
        X = random_rows(n, m)
        passes: list[int] = []
        elapsed = typical(lambda X=X, found=passes: found.append(eigenpairs(whole(X))), repeats)
        with_certificate = typical(lambda X=X: fit(X), repeats)
        size, cost = f"{n} × {m}, {passes[-1]} passes", krylov_cost(n, m, K, passes[-1])
        yield Measurement("block Krylov", size, cost, elapsed, with_certificate)


def eigenpairs(blocks: Callable[[], Iterator[np.ndarray]]) -> int:
    """Compute the leading eigenpairs of the rows without a matrix; return the number of passes."""
    from lucidae.arrays.eigen import krylov_eigenpairs

    counted = [0]
    total = sum(len(block) for block in blocks())
    mean = sum(block.sum(axis=0, dtype=np.float64) for block in blocks()) / total

    def apply(vectors: np.ndarray) -> np.ndarray:
        counted[0] += 1
        products = np.zeros_like(vectors)
        for block in blocks():
            rows = block if block.dtype == np.float64 else block.astype(np.float64)
            codes = vectors @ rows.T - (vectors @ mean)[:, None]
            products += codes @ rows - np.outer(codes.sum(axis=1), mean)
        return products / total

    krylov_eigenpairs(apply, K + 1, mean)
    return counted[0]


def whole(X: np.ndarray) -> Callable[[], Iterator[np.ndarray]]:
    return lambda: iter((X,))


def rows_of_file(path: Path) -> Callable[[], Iterator[np.ndarray]]:
    from lucidae.rows import row_blocks

    return lambda: iter(row_blocks(path))


def measured_files(scale: float, repeats: int) -> Iterator[Measurement]:
    """Yield measurements of the streamed moment and of matrix-free passes, on the same files."""
    for n, m in ((100_000, 256), (50_000, 512), (100_000, 512)):
        n = round(n * scale)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "rows.npy"
            np.save(path, random_rows(n, m, "float32"))
            cost = streamed_moment_cost(n, m, K + 1)
            elapsed = typical(lambda path=path: fit(path), repeats)
            yield Measurement("streamed moment", f"{n} × {m}", cost, elapsed)
            passes: list[int] = []
            elapsed = typical(
                lambda path=path, found=passes: found.append(eigenpairs(rows_of_file(path))),
                repeats,
            )
            # The number of rows and the mean take two further passes without products.
            cost = pass_cost(n, m, K, passes[-1])
            yield Measurement("matrix-free", f"{n} × {m}, {passes[-1]} passes", cost, elapsed)


def measured_dask(scale: float, repeats: int) -> Iterator[Measurement]:
    """Yield measurements of tree reductions over chunks in the memory of two worker processes."""
    import dask.array as da
    from distributed import Client, LocalCluster, wait

    cases = ((64, 2000, 64), (256, 500, 64), (64, 1000, 512), (128, 2000, 256))
    with (
        LocalCluster(2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        client.wait_for_workers(2)
        for chunks, rows, m in cases:
            chunks = max(2, round(chunks * scale))
            drawn = da.random.default_rng(0).standard_normal((chunks * rows, m), chunks=(rows, m))
            X = (drawn * np.arange(1, m + 1) ** -0.5).persist()
            wait(X)
            elapsed = typical(lambda X=X: fit(X), repeats)
            cost = tree_moment_cost(
                chunks * rows, m, K + 1, 8, chunks=chunks, workers=2, stored=False
            )
            yield Measurement("Dask tree", f"{chunks} chunks of {rows} × {m}", cost, elapsed)
            del X, drawn


ROUTES: dict[str, Callable[[float, int], Iterator[Measurement]]] = {
    "moment": measured_moments,
    "gram": measured_grams,
    "krylov": measured_krylov,
    "files": measured_files,
    "dask": measured_dask,
}


# The fit.


def fitted_constants(measurements: Sequence[Measurement]) -> dict[str, float]:
    """Return the seconds per unit of each term of the cost, fitted to measured times.

    The fit is nonnegative least squares of relative errors.

    A term that occurs in no measurement has the constant NaN.
    """
    costs = np.array([entry.cost.terms() for entry in measurements])
    costs = costs / np.array([entry.seconds for entry in measurements])[:, None]
    scales = np.max(costs, axis=0)
    known = scales > 0.0
    found, _ = scipy.optimize.nnls(costs[:, known] / scales[known], np.ones(len(costs)))
    constants = dict.fromkeys(TERMS, math.nan)
    used = [name for name, here in zip(TERMS, known, strict=True) if here]
    return constants | dict(zip(used, (found / scales[known]).tolist(), strict=True))


def shares(cost: Cost, constants: dict[str, float]) -> dict[str, float]:
    """Return the predicted seconds of each term of a cost; terms that do not occur are zero."""
    return {name: getattr(cost, name) and getattr(cost, name) * constants[name] for name in TERMS}


def predicted_seconds(cost: Cost, constants: dict[str, float]) -> float:
    """Return the predicted seconds of a cost; NaN if the constant of a term is not known."""
    return sum(shares(cost, constants).values())


# Predictions.


@dataclass(frozen=True, slots=True)
class Question:
    """A prediction to make: size of data that were not measured, route and number of workers."""

    data: str
    route: str
    workers: int
    cost: Cost


def questions(passes: int = 12) -> list[Question]:
    """Return the data whose times are predicted, all of 10¹² float32 numbers or 4 TB."""
    tall, square = (10**9, 1000), (10**6, 10**6)
    small, large = (math.ceil(4e12 / 2**bits) for bits in (25, 28))
    return [
        Question("10⁹ × 1000", "streamed moment", 1, streamed_moment_cost(*tall, K)),
        Question(
            "10⁹ × 1000",
            "Dask tree, chunks of 32 MiB",
            100,
            tree_moment_cost(*tall, K, chunks=small, workers=100),
        ),
        Question(
            "10⁹ × 1000",
            "Dask tree, chunks of 256 MiB",
            100,
            tree_moment_cost(*tall, K, chunks=large, workers=100),
        ),
        Question(
            "10⁹ × 1000",
            f"matrix-free, {passes} passes, chunks of 256 MiB of rows",
            100,
            pass_cost(*tall, K, passes, row_chunks=large, workers=100),
        ),
        Question(
            "10⁸ × 10⁴",
            "Dask tree, chunks of 256 MiB",
            100,
            tree_moment_cost(10**8, 10**4, K, chunks=large, workers=100),
        ),
        Question(
            "10⁸ × 10⁴",
            f"matrix-free, {passes} passes, chunks of 256 MiB of rows",
            100,
            pass_cost(10**8, 10**4, K, passes, row_chunks=large, workers=100),
        ),
        Question(
            "10⁶ × 10⁶",
            "Dask tree, chunks of 256 MiB",
            100,
            tree_moment_cost(*square, K, chunks=large, workers=100),
        ),
        Question(
            "10⁶ × 10⁶",
            f"matrix-free, {passes} passes, one process",
            1,
            pass_cost(*square, K, passes),
        ),
        Question(
            "10⁶ × 10⁶",
            f"matrix-free, {passes} passes, chunks of 256 MiB of rows",
            100,
            pass_cost(*square, K, passes, row_chunks=large, workers=100),
        ),
        Question(
            "10⁶ × 10⁶",
            f"matrix-free, {passes} passes, chunks of 8192 × 8192",
            100,
            pass_cost(*square, K, passes, row_chunks=123, column_chunks=123, workers=100),
        ),
    ]


def breaks_first(question: Question, constants: dict[str, float], memory: float) -> str:
    """Return what prevents a computation, or the term that takes the largest part of its time.

    `constants` are the seconds per unit of each term, and `memory` is the memory of a process in
    bytes.
    """
    if question.cost.space > memory:
        return f"**memory**: {volume(question.cost.space)} in one process, {volume(memory)} given"
    times = shares(question.cost, constants)
    total = sum(times.values())
    if not math.isfinite(total) or total <= 0.0:
        return "–"
    largest = max(times, key=lambda name: times[name])
    return f"{WORDS[largest][0]}: {times[largest] / total:.0%} of the time"


def with_limits(constants: dict[str, float], disk: float, network: float) -> dict[str, float]:
    """Return constants for at most the given rates of reading and of the network, in bytes/s."""
    limits = {"disk": 1 / disk, "network": 1 / network}
    return {
        name: np.fmax(value, limits[name]).item() if name in limits else value
        for name, value in constants.items()
    }


# The tables.


def volume(count: float, unit: str = "B") -> str:
    """Return a number of bytes or operations with a decimal prefix."""
    for power, prefix in ((12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if count >= 0.9995 * 10**power:
            return f"{significant(count / 10**power)} {prefix}{unit}"
    return f"{significant(count)} {unit}"


def long_duration(time: float) -> str:
    """Return a time in seconds, minutes, hours or days."""
    if not math.isfinite(time):
        return "not known"
    for unit, name in ((86_400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if time >= 2 * unit:
            return f"{significant(time / unit)} {name}"
    return duration(time)


def constants_table(constants: dict[str, float]) -> str:
    rows = []
    for name, value in constants.items():
        words, unit = WORDS[name]
        if not math.isfinite(value):
            rows.append((words, "not measured", "–"))
        elif value == 0.0:
            rows.append((words, "0", "not separable from the other terms"))
        else:
            rate = f"{significant(1 / value)} tasks" if unit == "task" else volume(1 / value, unit)
            rows.append((words, f"{value:.2e} s per {unit}", f"{rate} per second"))
    return markdown(("term", "constant", "rate"), rows)


def fit_sentence(measurements: Sequence[Measurement], constants: dict[str, float]) -> str:
    errors = [
        abs(predicted_seconds(entry.cost, constants) / entry.seconds - 1) for entry in measurements
    ]
    return (
        f"The model misses these {len(errors)} times by {np.median(errors):.0%} in the median and "
        f"by at most {max(errors):.0%}."
    )


def certificate_table(measurements: Sequence[Measurement]) -> str:
    rows = [
        (
            entry.route,
            entry.size,
            duration(entry.seconds),
            duration(entry.with_certificate),
            f"{entry.with_certificate / entry.seconds:.1f}",
        )
        for entry in measurements
        if entry.with_certificate is not None
    ]
    return markdown(("route", "size", "eigenpairs", "`fit`, with certificate", "ratio"), rows)


def predictions_table(constants: dict[str, float], memory: float) -> str:
    rows = []
    for question in questions():
        fits = question.cost.space <= memory
        time = long_duration(predicted_seconds(question.cost, constants)) if fits else "–"
        rows.append(
            (
                question.data,
                question.route,
                question.workers,
                time,
                volume(question.cost.space),
                breaks_first(question, constants, memory),
            )
        )
    header = ("data", "route", "workers", "time", "memory of a process", "breaks first")
    return markdown(header, rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", choices=tuple(ROUTES), default=list(ROUTES))
    parser.add_argument("--small", action="store_true", help="a tenth of the sizes, for a trial")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--disk-rate", type=float, default=5e8, help="bytes/s of a worker")
    parser.add_argument("--network-rate", type=float, default=1e9, help="bytes/s of a worker")
    parser.add_argument("--worker-memory", type=float, default=16e9, help="bytes of a process")
    parser.add_argument("--write", help="page whose sections are replaced by the tables")
    arguments = parser.parse_args()
    measurements = []
    with threadpool_limits(1):
        for name in arguments.only:
            scale = 0.1 if arguments.small else 1.0
            try:
                for entry in ROUTES[name](scale, arguments.repeats):
                    print(f"{entry.route} {entry.size}", file=sys.stderr, flush=True)
                    measurements.append(entry)
            except ImportError as error:
                print(f"{name} not measured: {error}", file=sys.stderr)
    constants = fitted_constants(measurements)
    limited = with_limits(constants, arguments.disk_rate, arguments.network_rate)
    tables = {
        "constants": constants_table(constants),
        "fit": fit_sentence(measurements, constants),
        "certificate": certificate_table(measurements),
        "predictions": predictions_table(limited, arguments.worker_memory),
    }
    for name, table in tables.items():
        print(f"\n{table}")
        if arguments.write:
            write_section(arguments.write, name, table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
