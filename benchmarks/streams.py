"""Fits to data in files and on a Dask cluster: time, peak memory and error beside peers.

    python -m benchmarks streams --gigabytes 20 --columns 512

Every figure is measured in a process of its own, and the processes of a work and of its peers are
started in turn. The peak is the memory that the process used above that of the imports.

* P14: `LinearAutoencoder.fit` beside the same pass with bare products (blocks are read, converted
  to double precision and multiplied with their own transpose). Asked for are a peak of at most
  1 GB and 70 % of the bare rate, which is a ratio of 1/0.7 = 1.43.
* IncrementalPCA reads the same memory map in batches. It takes minutes per gigabyte, so that both
  are measured on a file of `--peer-gigabytes`.
* P15: a Dask array on two worker processes, whose memory is not counted, beside one process with
  two threads (the ratio must be at most 1.3), and beside the estimators of dask_ml on the
  file of `--peer-gigabytes`, whose exact PCA is to take at least three times as long.

The error is that of `benchmarks._tables.component_error`; the exact components are known, because
all blocks of the file contain the same rows in another order.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._tables import Comparison, Times, comparison_table, component_error

KINDS = ("npy", "parquet", "zarr", "hdf5", "iterator")
BLOCK_ROWS = 16_384
BATCH_ROWS = 4096
COMPONENTS = 10
LARGEST_PEAK = 1000.0
"""Number of bytes of a megabyte."""

EXACT = 1e-5
"""Largest error of components of float32 rows that are called exact, as in the tests. Small gaps
between the eigenvalues of these data multiply the rounding errors of float32."""

ROOT = Path(__file__).resolve().parents[1]


# The data.


def blocks(gigabytes: float, columns: int) -> Iterator[np.ndarray]:
    """Yield blocks of random float32 rows: one block is drawn, the others are shifted copies."""
    block = first_block(columns)
    for number in range(max(1, round(gigabytes * 1e9 / block.nbytes))):
        yield np.roll(block, number, axis=0)


def first_block(columns: int) -> np.ndarray:
    block = np.random.default_rng(0).standard_normal((BLOCK_ROWS, columns), dtype=np.float32)
    block *= np.linspace(4, 1, columns, dtype=np.float32)
    return block


def exact_components(columns: int) -> np.ndarray:
    """Return the components of the whole data, which are those of one block."""
    rows = first_block(columns).astype(np.float64)
    rows -= rows.mean(axis=0)
    _, vectors = np.linalg.eigh(rows.T @ rows)
    return vectors[:, ::-1][:, :COMPONENTS].T


def write(kind: str, folder: Path, gigabytes: float, columns: int) -> Path:
    path = folder / f"rows.{kind}"
    n_rows = sum(len(block) for block in blocks(gigabytes, columns))
    if kind == "parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        names = [f"c{index}" for index in range(columns)]
        schema = pa.schema([(name, pa.float32()) for name in names])
        with pq.ParquetWriter(path, schema, compression="none") as writer:
            for block in blocks(gigabytes, columns):
                writer.write_table(pa.table(dict(zip(names, block.T, strict=True)), schema=schema))
        return path
    array = stored_array(kind, path, (n_rows, columns))
    starts = range(0, n_rows, BLOCK_ROWS)
    for start, block in zip(starts, blocks(gigabytes, columns), strict=True):
        array[start : start + len(block)] = block
    return path


def stored_array(kind: str, path: Path, shape: tuple[int, int]) -> Any:
    chunks = (BLOCK_ROWS, shape[1])
    if kind == "zarr":
        import zarr

        return zarr.create_array(path, shape=shape, chunks=chunks, dtype="f4", compressors=None)
    if kind == "hdf5":
        import h5py

        return h5py.File(path, "w").create_dataset("rows", shape, "f4", chunks=chunks)
    return np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=shape)


def opened(kind: str, path: str) -> Any:
    if kind == "iterator":
        return batches_of_npy(path)
    return np.load(path, mmap_mode="r") if kind == "npy" else path


def batches_of_npy(path: str) -> Iterator[np.ndarray]:
    """Yield batches that are read from the file; the pages of a mapping would count as memory."""
    mapped = np.load(path, mmap_mode="r")
    (n_rows, columns), begin = mapped.shape, mapped.offset
    for start in range(0, n_rows, BATCH_ROWS):
        count = min(BATCH_ROWS, n_rows - start) * columns
        rows = np.fromfile(path, np.float32, count, offset=begin + start * columns * 4)
        yield rows.reshape(-1, columns)


# The works, each in a process of its own.


def ours(kind: str, path: str) -> Any:
    from lucidae import LinearAutoencoder

    return LinearAutoencoder(COMPONENTS).fit(opened(kind, path)).components_


def bare(kind: str, path: str) -> None:
    from lucidae.rows import row_blocks

    total = 0.0
    for block in row_blocks(opened(kind, path)):
        for start in range(0, len(block), 2048):
            rows = block[start : start + 2048].astype(np.float64)
            total = total + rows.T @ rows


def incremental(kind: str, path: str) -> Any:
    from sklearn.decomposition import IncrementalPCA

    estimator = IncrementalPCA(COMPONENTS)
    for batch in batches_of_npy(path) if kind == "npy" else opened(kind, path):
        estimator.partial_fit(batch)
    return estimator.components_


def on_dask(kind: str, path: str) -> None:
    from distributed import Client, LocalCluster

    from lucidae.rows.dask import dask_of_file

    with (
        LocalCluster(2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        client.wait_for_workers(2)
        # The other works are timed after their imports too.
        package = "lucidae" if kind == "lucidae" else "dask_ml.decomposition"
        for name in (package, "lucidae.rows.dask"):
            client.run(importlib.import_module, name)
        rows = dask_of_file(path)
        clock(lambda: dask_estimator(kind).fit(rows).components_)


def dask_estimator(kind: str) -> Any:
    if kind == "lucidae":
        from lucidae import LinearAutoencoder

        return LinearAutoencoder(COMPONENTS)
    from dask_ml.decomposition import PCA, IncrementalPCA

    if kind == "IncrementalPCA":
        return IncrementalPCA(COMPONENTS)
    return PCA(COMPONENTS, svd_solver=kind)


WORKS: dict[str, Callable[[str, str], Any]] = {
    "ours": ours,
    "bare": bare,
    "incremental": incremental,
}


def clock(work: Callable[[], Any]) -> None:
    """Print the seconds of some work, the peak of memory that it added and its error, as JSON."""
    before, begin = peak(), time.perf_counter()
    components = work()
    found = {"seconds": time.perf_counter() - begin, "megabytes": peak() - before}
    if components is not None:
        components = np.asarray(components)
        exact = exact_components(components.shape[1])
        found["error"] = component_error(components, exact)
    print(json.dumps(found))


def peak() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


# Measuring and comparing.


@dataclass(frozen=True)
class Job:
    """One work for one kind of data, done by a process with a number of threads."""

    work: str
    kind: str
    path: Path
    threads: int

    @property
    def is_ours(self) -> bool:
        """Whether this is a fit of ours or the bare products, and not a peer."""
        return self.work in ("ours", "bare") or self.kind == "lucidae"

    def run(self, limit: float) -> dict[str, float]:
        """Run one process and return its measured values; if it fails, raise a `RuntimeError`."""
        variables = {
            "OPENBLAS_NUM_THREADS": str(self.threads),
            "OMP_NUM_THREADS": str(self.threads),
        }
        command = [sys.executable, "-m", "benchmarks.streams", "--work", self.work]
        command += ["--kind", self.kind, "--path", str(self.path)]
        try:
            done = subprocess.run(
                command,
                cwd=ROOT,
                env=os.environ | variables,
                capture_output=True,
                text=True,
                timeout=limit,
            )
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"stopped after {limit:g} s") from None
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            raise RuntimeError(lines[-1][:120])
        found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return found


@dataclass(frozen=True)
class Figures:
    """Times of a job, its largest peak of memory, its error, or the reason of a failure."""

    times: Times | None
    megabytes: float = float("nan")
    error: float = float("nan")
    failure: str = ""

    def notes(self, name: str) -> str:
        """Return memory, error and failure in words, for the last column of the table."""
        if self.failure:
            return f"{name}: {self.failure}"
        error = "" if np.isnan(self.error) else f", error {self.error:.0e}"
        return f"{name}: peak {self.megabytes:.0f} MB{error}"


def measured(jobs: dict[str, Job], arguments: argparse.Namespace) -> dict[str, Figures]:
    """Return the measured values of all jobs by name; their processes run in turn."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in jobs}
    failures: dict[str, str] = {}
    limits = {True: arguments.time_limit, False: arguments.peer_limit}
    for _ in range(arguments.repeats):
        for name, job in jobs.items():
            if name in failures:
                continue
            try:
                found[name].append(job.run(limits[job.is_ours]))
            except RuntimeError as error:
                failures[name] = str(error)
    return {name: figures(found[name], failures.get(name, "")) for name in jobs}


def figures(entries: Sequence[dict[str, float]], failure: str) -> Figures:
    if failure or not entries:
        return Figures(None, failure=failure or "no runs")
    return Figures(
        Times(tuple(entry["seconds"] for entry in entries)),
        max(entry["megabytes"] for entry in entries),
        max(entry.get("error", float("nan")) for entry in entries),
    )


def compare(kind: str, arguments: argparse.Namespace) -> Comparison:
    """Return the comparison of a fit to one kind of data with bare products (P14)."""
    work = f"{arguments.gigabytes:g} GB × {arguments.columns} columns, {kind}"
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        stored = "npy" if kind == "iterator" else kind
        try:
            path = write(stored, Path(folder), arguments.gigabytes, arguments.columns)
        except ImportError as error:
            return Comparison("P14", work, None, "bare products", None, 1 / 0.7, notes=str(error))
        jobs = {name: Job(name, kind, path, arguments.threads) for name in ("ours", "bare")}
        found = measured(jobs, arguments)
    fit = found["ours"]
    good = fit.times is not None and fit.megabytes <= LARGEST_PEAK and fit.error <= EXACT
    notes = "; ".join(part.notes(name) for name, part in found.items())
    plain = found["bare"].times
    return Comparison("P14", work, fit.times, "bare products", plain, 1 / 0.7, good, notes)


def compare_incremental(arguments: argparse.Namespace) -> Comparison:
    """Return the comparison with IncrementalPCA at its better number of threads."""
    size = min(arguments.gigabytes, arguments.peer_gigabytes)
    counts = sorted({1, arguments.threads})
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        path = write("npy", Path(folder), size, arguments.columns)
        jobs = {"ours": Job("ours", "npy", path, arguments.threads)}
        jobs |= {f"{count}": Job("incremental", "npy", path, count) for count in counts}
        found = measured(jobs, arguments)
    fit = found.pop("ours")
    best = min(found, key=lambda name: median_of(found[name]))
    notes = f"{fit.notes('ours')}; {found[best].notes(f'peer with {best} thread(s)')}"
    work = f"{size:g} GB × {arguments.columns} columns, npy"
    return Comparison("P14", work, fit.times, "IncrementalPCA", found[best].times, notes=notes)


def median_of(found: Figures) -> float:
    return found.times.median if found.times else float("inf")


def compare_dask(arguments: argparse.Namespace) -> Iterator[Comparison]:
    """Yield the comparisons of a fit on two worker processes (P15)."""
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        path = write("npy", Path(folder), arguments.gigabytes, arguments.columns)
        jobs = {"Dask": Job("dask", "lucidae", path, 1), "one": Job("ours", "npy", path, 2)}
        found = measured(jobs, arguments)
    work = f"{arguments.gigabytes:g} GB × {arguments.columns} columns, Dask, two processes"
    fit, one = found["Dask"], found["one"]
    good = fit.times is not None and fit.error <= EXACT
    notes = f"{fit.notes('Dask (without workers)')}; {one.notes('one process')}"
    peer = "one process, two threads"
    yield Comparison("P15", work, fit.times, peer, one.times, 1.3, good, notes)
    if importlib.util.find_spec("dask_ml") is not None:
        yield from compare_dask_ml(arguments)


def compare_dask_ml(arguments: argparse.Namespace) -> Iterator[Comparison]:
    size = min(arguments.gigabytes, arguments.peer_gigabytes)
    names = {
        "full": ("dask_ml PCA, exact (full)", 1 / 3),
        "auto": ("dask_ml PCA, default", None),
        "IncrementalPCA": ("dask_ml IncrementalPCA", None),
    }
    work = f"{size:g} GB × {arguments.columns} columns, Dask, two processes"
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        path = write("npy", Path(folder), size, arguments.columns)
        jobs = {kind: Job("dask", kind, path, 1) for kind in ("lucidae", *names)}
        found = measured(jobs, arguments)
    fit = found["lucidae"]
    for kind, (peer, most) in names.items():
        notes = f"{fit.notes('ours')}; {found[kind].notes('peer')} (without workers)"
        good = fit.times is not None and fit.error <= EXACT
        yield Comparison("P15", work, fit.times, peer, found[kind].times, most, good, notes)


def comparisons(arguments: argparse.Namespace) -> Iterator[Comparison]:
    """Yield all comparisons of data in files and on a Dask cluster."""
    for kind in arguments.kinds:
        yield compare(kind, arguments)
    yield compare_incremental(arguments)
    if not arguments.no_dask:
        yield from compare_dask(arguments)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gigabytes", type=float, default=0.4)
    parser.add_argument(
        "--peer-gigabytes", type=float, default=0.4, help="size for peers that take minutes per GB"
    )
    parser.add_argument("--columns", type=int, default=512)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=KINDS)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--time-limit", type=float, default=900.0, help="seconds of one process")
    parser.add_argument("--peer-limit", type=float, default=240.0, help="the same for peers")
    parser.add_argument("--folder", help="where the files are written; they are deleted afterwards")
    parser.add_argument("--no-dask", action="store_true")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser)
    parser.add_argument("--work", choices=(*WORKS, "dask"), help=argparse.SUPPRESS)
    parser.add_argument("--kind", help=argparse.SUPPRESS)
    parser.add_argument("--path", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work == "dask":
        return on_dask(arguments.kind, arguments.path)
    if arguments.work:
        import sklearn.decomposition  # noqa: F401

        import lucidae  # noqa: F401

        work = WORKS[arguments.work]
        return clock(lambda: work(arguments.kind, arguments.path))
    found = []
    for entry in comparisons(arguments):
        print(" | ".join(entry.cells()), file=sys.stderr, flush=True)
        found.append(entry)
    return print(comparison_table(found))


if __name__ == "__main__":
    main()
