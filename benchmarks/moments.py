"""SecondMoment fed in batches, against the bare matrix products, and its equality with one shot.

Run with ``python benchmarks/moments.py``. MNIST is used when it is cached (``lucidae data fetch``),
random numbers of its size otherwise. The products are those of the same batches with their own
transpose, in double precision as the moment's (float32 batches are converted on both sides). Both
are timed in turn in one process; the figure is their ratio, the median of several.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import numpy as np

from lucidae import SecondMoment
from lucidae.datasets import load_mnist

BATCH = 1000
REPEATS = 7
ASKED_RATIO = 1.5
ASKED_ERROR = 1e-12


def rows(dtype: str) -> tuple[str, np.ndarray]:
    try:
        return "MNIST", load_mnist(dtype=dtype).data
    except FileNotFoundError:
        random = np.random.default_rng(0).random((60_000, 784), dtype=dtype)
        return "random numbers", random


def stream(X: np.ndarray) -> SecondMoment:
    moment = SecondMoment.of(X[:BATCH])
    for start in range(BATCH, len(X), BATCH):
        moment = moment.update(X[start : start + BATCH])
    return moment


def products(X: np.ndarray) -> None:
    for start in range(0, len(X), BATCH):
        batch = np.asarray(X[start : start + BATCH], dtype=np.float64)
        batch.T @ batch


def seconds(work: Callable[[np.ndarray], object], X: np.ndarray) -> float:
    begin = time.perf_counter()
    work(X)
    return time.perf_counter() - begin


def measure(dtype: str) -> str:
    name, X = rows(dtype)
    whole, streamed = SecondMoment.of(X).covariance, stream(X).covariance
    error = np.linalg.norm(streamed - whole) / np.linalg.norm(whole)
    pairs = [(seconds(stream, X), seconds(products, X)) for _ in range(REPEATS)]
    ratio = median(ours / bare for ours, bare in pairs)
    ours = median(ours for ours, _ in pairs)
    return (
        f"{name} {X.shape[0]}×{X.shape[1]} {dtype}, batches of {BATCH}: {ours:.2f} s, "
        f"{ratio:.2f} × the bare products (asked ≤ {ASKED_RATIO}), "
        f"one shot to {error:.1e} relative (asked ≤ {ASKED_ERROR:.0e})"
    )


if __name__ == "__main__":
    for kind in ("float64", "float32"):
        print(measure(kind))
