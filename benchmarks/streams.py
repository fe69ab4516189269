"""Fits to data in files and on a Dask cluster: peak memory, and the rate against bare products.

Run with ``python benchmarks/streams.py --gigabytes 20 --columns 512``. Each row of the tables is
measured in a process of its own: seconds, the peak of its memory above that of the imports, and the
ratio of its rate to that of the same pass with bare products (the blocks are read, converted to
double precision and multiplied with their own transpose). The figures asked for are a peak of at
most 1 GB and 70 % of the bare rate (P14), and for Dask on two worker processes at most 1.3 times
the time of one process with two threads and a third of that of ``dask_ml.decomposition.PCA`` (P15).
The Dask cluster has two workers, whose memory is not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

KINDS = ("npy", "parquet", "zarr", "hdf5", "iterator")
BLOCK_ROWS = 16_384
COMPONENTS = 10


def blocks(gigabytes: float, columns: int) -> Iterator[np.ndarray]:
    """Yield random float32 rows; a block is drawn once and shifted, so that writing is fast."""
    block = np.random.default_rng(0).standard_normal((BLOCK_ROWS, columns), dtype=np.float32)
    block *= np.linspace(4, 1, columns, dtype=np.float32)
    for number in range(max(1, round(gigabytes * 1e9 / block.nbytes))):
        yield np.roll(block, number, axis=0)


def write(kind: str, folder: Path, gigabytes: float, columns: int) -> Path:
    path, n_rows = folder / f"rows.{kind}", 0
    n_rows = sum(len(block) for block in blocks(gigabytes, columns))
    starts = range(0, n_rows, BLOCK_ROWS)
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
    for start in range(0, n_rows, 4096):
        count = min(4096, n_rows - start) * columns
        rows = np.fromfile(path, np.float32, count, offset=begin + start * columns * 4)
        yield rows.reshape(-1, columns)


def ours(kind: str, path: str) -> None:
    from lucidae import LinearAutoencoder

    LinearAutoencoder(COMPONENTS).fit(opened(kind, path))


def bare(kind: str, path: str) -> None:
    from lucidae.data import row_blocks

    total = 0.0
    for block in row_blocks(opened(kind, path)):
        for start in range(0, len(block), 2048):
            rows = block[start : start + 2048].astype(np.float64)
            total = total + rows.T @ rows


def on_dask(kind: str, path: str) -> None:
    from distributed import Client, LocalCluster

    from lucidae.data.dask_blocks import dask_of_file

    with (
        LocalCluster(2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        client.wait_for_workers(2)
        rows = dask_of_file(path)
        clock(peers_fit(kind, rows))


def peers_fit(kind: str, rows: Any) -> Callable[[], object]:
    if kind == "dask_ml":
        from dask_ml.decomposition import PCA

        return lambda: PCA(COMPONENTS).fit(rows)
    from lucidae import LinearAutoencoder

    return lambda: LinearAutoencoder(COMPONENTS).fit(rows)


def clock(work: Callable[[], object]) -> None:
    """Print the seconds of some work and the peak of memory that it added, as JSON."""
    before, begin = peak(), time.perf_counter()
    work()
    print(json.dumps({"seconds": time.perf_counter() - begin, "megabytes": peak() - before}))


def peak() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


def measured(work: str, kind: str, path: Path, threads: int, repeats: int) -> dict[str, float]:
    """Return the medians over several processes; peaks as the largest."""
    variables = {"OPENBLAS_NUM_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, __file__, "--work", work, "--kind", kind, "--path", str(path)]
    found = []
    for _ in range(repeats):
        result = subprocess.run(
            command, env=os.environ | variables, capture_output=True, text=True, check=True
        )
        found.append(json.loads(result.stdout.splitlines()[-1]))
    return {
        "seconds": median(entry["seconds"] for entry in found),
        "megabytes": max(entry["megabytes"] for entry in found),
    }


def compare(kind: str, arguments: argparse.Namespace) -> str:
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        stored = "npy" if kind == "iterator" else kind
        path = write(stored, Path(folder), arguments.gigabytes, arguments.columns)
        fit = measured("ours", kind, path, arguments.threads, arguments.repeats)
        plain = measured("bare", kind, path, arguments.threads, arguments.repeats)
    share = plain["seconds"] / fit["seconds"]
    return f"| {kind} | {fit['seconds']:.1f} | {fit['megabytes']:.0f} | {share:.0%} |"


def compare_dask(arguments: argparse.Namespace) -> Iterator[str]:
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        path = write("npy", Path(folder), arguments.gigabytes, arguments.columns)
        one = measured("ours", "npy", path, 2, arguments.repeats)["seconds"]
        two = measured("dask", "lucidae", path, 1, arguments.repeats)["seconds"]
        yield f"| one process, two threads | {one:.1f} | 1.0 |"
        yield f"| Dask, two processes | {two:.1f} | {two / one:.2f} |"
        try:
            import dask_ml  # noqa: F401
        except ImportError:
            yield "| dask_ml PCA | not installed | – |"
            return
        peer = measured("dask", "dask_ml", path, 1, arguments.repeats)["seconds"]
        yield f"| dask_ml PCA, two processes | {peer:.1f} | {peer / one:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=0.4)
    parser.add_argument("--columns", type=int, default=512)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=KINDS)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", help="where the files are written; they are deleted afterwards")
    parser.add_argument("--no-dask", action="store_true")
    parser.add_argument("--work", choices=("ours", "bare", "dask"), help=argparse.SUPPRESS)
    parser.add_argument("--kind", help=argparse.SUPPRESS)
    parser.add_argument("--path", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work == "dask":
        return on_dask(arguments.kind, arguments.path)
    if arguments.work:
        import lucidae  # noqa: F401

        work = ours if arguments.work == "ours" else bare
        return clock(lambda: work(arguments.kind, arguments.path))
    print(f"{arguments.gigabytes} GB of float32 rows, {arguments.columns} columns\n")
    print("| kind | seconds | peak MB | share of the bare rate |\n|---|---|---|---|")
    for kind in arguments.kinds:
        print(compare(kind, arguments), flush=True)
    if not arguments.no_dask:
        print("\n| fit | seconds | ratio |\n|---|---|---|")
        for line in compare_dask(arguments):
            print(line, flush=True)
    return None


if __name__ == "__main__":
    main()
