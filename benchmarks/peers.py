"""P13, P14, P15 and P18 against their peers in one table.

    python -m benchmarks peers [--only P13 P18] [--gigabytes 20]
        [--write docs/benchmarks/scaling.md]

* P13: full-batch PCA of MNIST in float32 (random numbers of its size and spectrum if it is not
  cached, see ``lucidae data fetch``), beside `PCA(svd_solver="covariance_eigh")` in float32. Errors
  are those against the eigendecomposition in float64; ours has to be the smaller one. Beside it
  `torch.pca_lowrank`, an approximation, on the same rows.
* P18: `import lucidae` beside `import sklearn.decomposition`, each in fresh processes, and the
  fit of 100 × 10 numbers.
* P14 and P15: data in files and on a Dask cluster; see ``benchmarks/streams.py``, whose options are
  accepted here too.

Works and peers are timed in turn, each at its better number of BLAS threads (one, or all cores).
The table has medians and, in parentheses, the smallest and the largest time. Peers that are not
installed are named below it. The works on a GPU (P16, P17) are in ``benchmarks/device.py``.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from sklearn.decomposition import PCA

from benchmarks import streams
from benchmarks._tables import (
    Comparison,
    Times,
    best_times,
    comparison_table,
    component_error,
    mnist_rows,
    write_section,
)
from lucidae import LinearAutoencoder

K = 20
FRESH = "import time; t = time.perf_counter(); import {}; print(time.perf_counter() - t)"


def exact_components(X: np.ndarray, k: int) -> np.ndarray:
    """Return the k leading components of the rows, from an eigendecomposition in float64."""
    centred = X.astype(np.float64)
    centred -= centred.mean(axis=0)
    _, vectors = np.linalg.eigh(centred.T @ centred)
    return vectors[:, ::-1][:, :k].T


def pca_lowrank(X: np.ndarray, k: int) -> np.ndarray:
    import torch

    found: np.ndarray = torch.pca_lowrank(torch.from_numpy(X), q=k)[2].numpy().T
    return found


def full_batch(arguments: argparse.Namespace) -> Iterator[Comparison]:
    """Yield the comparisons of P13, and those with `torch.pca_lowrank`."""
    name, rows = mnist_rows()
    rows = rows[: arguments.rows]
    for dtype in ("float32", "float64"):
        X = rows.astype(dtype)
        exact = exact_components(X, K)
        found: dict[str, Any] = {}
        works: dict[str, Callable[[], Any]] = {
            "ours": lambda X=X: LinearAutoencoder(K).fit(X).components_,
            "PCA": lambda X=X: PCA(K, svd_solver="covariance_eigh").fit(X).components_,
        }
        if importlib.util.find_spec("torch") is not None:
            works["torch"] = lambda X=X: pca_lowrank(X, K)
        kept = {key: keeping(work, found, key) for key, work in works.items()}
        times = best_times(kept, arguments.repeats)
        errors = {key: component_error(value, exact) for key, value in found.items()}
        work = f"{name}, {X.shape[0]} × {X.shape[1]}, {dtype}, k = {K}"
        number = "P13" if dtype == "float32" else "P3"
        for key, peer in (("PCA", "PCA(covariance_eigh)"), ("torch", "torch.pca_lowrank")):
            if key not in times:
                continue
            asked = 1.1 if key == "PCA" else None
            smaller = number == "P3" or key != "PCA" or errors["ours"] <= errors["PCA"]
            notes = f"error {errors['ours']:.0e}, of the peer {errors[key]:.0e}"
            yield Comparison(number, work, times["ours"], peer, times[key], asked, smaller, notes)


def keeping(work: Callable[[], Any], found: dict[str, Any], key: str) -> Callable[[], None]:
    """Return a function that calls `work` and stores the result in `found` under `key`."""

    def run() -> None:
        found[key] = work()

    return run


def imports(repeats: int) -> Comparison:
    """Return the comparison of the times of both imports in fresh processes, started in turn."""
    modules = ("lucidae", "sklearn.decomposition")
    for module in modules:  # compiled files and pages are read once before
        import_seconds(module)
    found = [tuple(import_seconds(module) for module in modules) for _ in range(repeats)]
    ours, theirs = (Times(tuple(times)) for times in zip(*found, strict=True))
    work = f"import lucidae, {repeats} fresh processes"
    return Comparison("P18", work, ours, "import sklearn.decomposition", theirs, 1.2)


def import_seconds(module: str) -> float:
    command = [sys.executable, "-c", FRESH.format(module)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def small_fit(repeats: int) -> Comparison:
    """Return the comparison of a small fit, whose time is that of validation and Python calls."""
    X = np.random.default_rng(0).standard_normal((100, 10)) * np.linspace(3, 0.5, 10)
    works = {"ours": lambda: LinearAutoencoder(3).fit(X), "peer": lambda: PCA(3).fit(X)}
    times = best_times(works, repeats)
    return Comparison("P18", "fit of 100 × 10, k = 3", times["ours"], "PCA", times["peer"], 2.0)


def comparisons(arguments: argparse.Namespace) -> Iterator[Comparison]:
    wanted = set(arguments.only or ("P13", "P14", "P15", "P18"))
    if "P13" in wanted:
        yield from full_batch(arguments)
    if "P14" in wanted or "P15" in wanted:
        if "P14" not in wanted:
            yield from streams.compare_dask(arguments)
        else:
            arguments.no_dask = arguments.no_dask or "P15" not in wanted
            yield from streams.comparisons(arguments)
    if "P18" in wanted:
        yield imports(arguments.imports)
        yield small_fit(arguments.small_fits)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    streams.add_options(parser)
    parser.add_argument("--only", nargs="*", choices=("P13", "P14", "P15", "P18"))
    parser.add_argument("--rows", type=int, default=60_000, help="rows of MNIST")
    parser.add_argument("--imports", type=int, default=15, help="fresh processes for each import")
    parser.add_argument("--small-fits", type=int, default=200, help="fits of 100 × 10")
    parser.add_argument("--write", help="page whose section `peers` is replaced by the table")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)
    found = []
    for entry in comparisons(arguments):
        print(" | ".join(entry.cells()), file=sys.stderr, flush=True)
        found.append(entry)
    text = comparison_table(found)
    print(text)
    if arguments.write:
        write_section(arguments.write, "peers", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
