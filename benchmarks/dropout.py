"""The dropout optimum against SciPy's decompositions, and the equalizers against each other.

Run with ``python benchmarks/dropout.py``. Work and peers are timed in turn in one process, each at
its best number of BLAS threads; figures are medians. Growth is the slope of log time over log size,
beside the one that theory gives.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np
import scipy.linalg
from scipy.sparse.linalg import svds
from threadpoolctl import threadpool_limits

from lucidae import DropoutRegressor, equalize
from lucidae.dropout import LinearProblem, solve

REPEATS = 5
THREADS = (1, 2)
SHAPE = (2000, 1000)
WIDTH = 100

Work = Callable[[], object]


def seconds(work: Work) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def best_medians(works: dict[str, Work], repeats: int = REPEATS) -> dict[str, float]:
    """Return the median time of each function in `works` at its best number of BLAS threads."""
    found: dict[str, list[float]] = {name: [] for name in works}
    for threads in THREADS:
        with threadpool_limits(threads, user_api="blas"):
            rounds = [{name: seconds(work) for name, work in works.items()} for _ in range(repeats)]
        for name in works:
            found[name].append(median(times[name] for times in rounds))
    return {name: min(times) for name, times in found.items()}


def matrices(rng: np.random.Generator) -> dict[str, np.ndarray]:
    noise = rng.standard_normal(SHAPE)
    left, right = np.linalg.qr(noise)[0], np.linalg.qr(rng.standard_normal((SHAPE[1],) * 2))[0]
    index = np.arange(SHAPE[1])
    return {
        "white noise": noise,
        "slow decay": (left * np.exp(-0.02 * index)) @ right,
        "fast decay": (left * np.exp(-0.08 * index)) @ right,
    }


def optimum() -> None:
    print(f"P6  dropout optimum, {SHAPE[0]} × {SHAPE[1]}, r = {WIDTH}, dropout 0.5 (asked ≤ 1.5)")
    print(f"    {'spectrum':<12} {'ours':>8} {'full SVD':>9} {'svds':>8} {'ratio':>6}")
    for name, matrix in matrices(np.random.default_rng(0)).items():
        problem = LinearProblem.from_matrix(matrix)
        times = best_medians(
            {
                "ours": lambda problem=problem: solve(problem, 1.0, WIDTH),
                "full": lambda matrix=matrix: scipy.linalg.svd(matrix, full_matrices=False),
                "few": lambda matrix=matrix: svds(matrix, k=WIDTH),
            },
            repeats=3,
        )
        ratio = times["ours"] / min(times["full"], times["few"])
        print(
            f"    {name:<12} {times['ours']:7.2f}s {times['full']:8.2f}s {times['few']:7.2f}s "
            f"{ratio:6.2f}"
        )


def exponent(sizes: Sequence[int], times: Sequence[float]) -> float:
    return float(np.polyfit(np.log(sizes), np.log(times), 1)[0])


def growth(make: Callable[[int], Work], sizes: Sequence[int]) -> tuple[float, float]:
    """Return the exponent with which the time of `make(size)` grows, and the last time."""
    times = []
    for size in sizes:
        work = make(size)
        work()
        times.append(best_medians({"work": work})["work"])
    return exponent(sizes, times), times[-1]


def equalizing(method: str) -> Callable[[int], Work]:
    def make(width: int) -> Work:
        U = np.random.default_rng(width).standard_normal((width, width))
        return lambda: equalize(U, method=method)

    return make


def regression(n: int, features: int, targets: int = 20) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((n, features)), rng.standard_normal((n, targets))


def fitting_rows(n: int) -> Work:
    X, Y = regression(n, 200)
    return lambda: DropoutRegressor().fit(X, Y)


def fitting_features(features: int) -> Work:
    X, Y = regression(2000, features)
    return lambda: DropoutRegressor().fit(X, Y)


GROWTHS = [
    ("equalizer, Givens, in r", equalizing("givens"), (125, 250, 500, 1000), "2", "asked ≤ 2.2"),
    ("equalizer, Algorithm 2, in r", equalizing("eigenvectors"), (64, 128, 256), "4", ""),
    ("equalizer, Hadamard, in r", equalizing("hadamard"), (128, 256, 512, 1024), "3", ""),
    ("DropoutRegressor.fit in n", fitting_rows, (10_000, 20_000, 40_000, 80_000), "1", ""),
    ("DropoutRegressor.fit in features", fitting_features, (200, 400, 800), "2 to 3", ""),
]


def growths() -> None:
    print("P7  growth (exponent of time, and time at the largest size)")
    print(f"    {'work':<34} {'measured':>8} {'theory':>7} {'largest':>8} {'time':>9}")
    for name, make, sizes, theory, asked in GROWTHS:
        slope, last = growth(make, sizes)
        print(f"    {name:<34} {slope:8.2f} {theory:>7} {sizes[-1]:>8} {last:8.3f}s  {asked}")
    print("    asked of the equalizer at r = 1000: < 0.5 s")


def cross_validation() -> None:
    X, Y = regression(50_000, 200)
    times = best_medians(
        {
            "fit": lambda: DropoutRegressor().fit(X, Y),
            "cv": lambda: DropoutRegressor(dropout="cv").fit(X, Y),
        },
        repeats=3,
    )
    print(
        "    dropout='cv', 5 folds, 162 rates, 50 000 × 200: "
        f"{times['cv'] / times['fit']:.2f} × one fit ({times['fit']:.2f} s)"
    )


if __name__ == "__main__":
    optimum()
    growths()
    cross_validation()
