"""`LinearAutoencoder(k).fit` against all PCA solvers of scikit-learn on a grid of shapes (P19).

    python -m benchmarks shapes [--small] [--only 5000x5000 sparse]
        [--write docs/benchmarks/scaling.md]

All solvers are run in one process and in turn, with the default number of threads. After a first
round of all solvers, ours and the peers that may be the fastest are repeated, and medians are
compared. Fits that take less than a second are not counted in the first round. Short fits are
repeated more often, those of milliseconds three times in a row, of which the median counts. The
required ratio is 1.1 if the peer takes 20 ms or more, and 2 below.

**Data.** All rows have a mean that is not zero. With n rows and m features, the rows are
z D Wᵀ + σ e + mean, where the entries of z and e are standard normal and W (m × r) has orthonormal
columns. D² has the eigenvalues of the r factors. Spectrum "decaying": r = k + 100 factors (at most
half of the smaller side) with the eigenvalues 1, 1/2, …, 1/r, and σ such that the largest
eigenvalue of the noise alone is half of the last one. Spectrum "flat": r = min(k, 10) factors,
whose eigenvalues are 10 to 5 times the largest one of the noise, so that components after the tenth
lie inside the noise. Sparse rows have positive entries at random columns, and belong to twenty
groups: half of the entries of a row are in columns of its group, which gives 19 eigenvalues above
the others. With "decaying", column j (from 0) is drawn with a probability proportional to
1/(j + 10), else all columns are equally likely.

**Accuracy.** The error is the larger of the sine of the largest angle between the found and the
true subspace, and the largest norm of the difference of a component to the true one. The reference
is the eigendecomposition of the covariance or of the Gram matrix in float64 if one side is at most
3000; else Rayleigh–Ritz steps in float64, which begin with the span of all found components and add
the residuals (block Davidson iteration). A peer counts if its error is at most ten times ours or at
most 1e-10 (1e-5 for float32). The randomized solver is treated like the others, so that it counts
only where it is that accurate.

**Time.** A peer is not run if a lower bound of its time, from its number of operations, is above
the limit of one fit or above three times the best peer. Iterations are stopped at this limit (ours
at three times this limit). No further rounds are begun when a shape has taken the time of
`--shape-limit`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse
from sklearn.decomposition import PCA

from benchmarks._tables import (
    Times,
    component_error,
    duration,
    limited,
    markdown,
    seconds,
    write_section,
)
from lucidae import LinearAutoencoder

LARGEST_RATIO = 1.1
LARGEST_SHORT_RATIO = 2.0
SHORT = 0.02
"""Seconds of a peer below which the allowed ratio is `LARGEST_SHORT_RATIO`, not `LARGEST_RATIO`."""

ACCURATE = {"float64": 1e-10, "float32": 1e-5}
EIGH_SIZE = 3000
"""Largest number of rows of a matrix that is decomposed for the reference."""

OUR_LIMIT = 3.0
"""Our fits may take this many times the limit of one fit, so that their ratio is known."""

BURST = 3
"""Number of further fits in a row, of which the median counts, if a fit takes less than `SHORT`."""

SMALL_BYTES = 1e8
GROUPS = 20


@dataclass(frozen=True, slots=True)
class Shape:
    """One data set of the grid: its size, its spectrum and its number of components."""

    n: int
    m: int
    k: int
    spectrum: str
    dtype: str = "float64"
    density: float = 1.0

    @property
    def sparse(self) -> bool:
        """Whether the rows are a sparse matrix."""
        return self.density < 1.0

    @property
    def kind(self) -> str:
        """Storage and spectrum in words."""
        storage = f"sparse {100 * self.density:g} %" if self.sparse else "dense"
        return f"{storage}, {self.spectrum}"

    @property
    def label(self) -> str:
        """Name for progress lines and `--only`."""
        return f"{self.n}x{self.m} k={self.k} {self.kind} {self.dtype}"

    @property
    def nbytes(self) -> float:
        """Bytes of the array, or of the values and indices of the sparse matrix."""
        itemsize = np.dtype(self.dtype).itemsize
        return self.n * self.m * self.density * (itemsize + (4 if self.sparse else 0))


GRID = [
    Shape(100, 100, 2, "decaying"),
    Shape(1000, 100, 10, "decaying"),
    Shape(100, 1000, 10, "flat"),
    Shape(1000, 1000, 10, "decaying"),
    Shape(1000, 1000, 200, "flat"),
    Shape(2000, 2000, 50, "flat"),
    Shape(50_000, 100, 5, "flat"),
    Shape(50_000, 500, 50, "decaying"),
    Shape(20_000, 1000, 10, "decaying"),
    Shape(20_000, 1000, 100, "flat"),
    Shape(10_000, 3000, 20, "decaying"),
    Shape(5000, 5000, 10, "decaying"),
    Shape(5000, 5000, 10, "flat"),
    Shape(2000, 6000, 10, "decaying"),
    Shape(2000, 6000, 10, "flat"),
    Shape(2000, 6000, 100, "decaying"),
    Shape(3000, 10_000, 200, "decaying"),
    Shape(100, 50_000, 20, "decaying"),
    Shape(500, 50_000, 10, "decaying"),
    Shape(500, 50_000, 10, "flat"),
    Shape(10_000, 10_000, 5, "decaying"),
    Shape(50_000, 5000, 2, "decaying"),
    Shape(1000, 100, 10, "decaying", "float32"),
    Shape(50_000, 500, 20, "decaying", "float32"),
    Shape(20_000, 1000, 10, "flat", "float32"),
    Shape(5000, 5000, 10, "decaying", "float32"),
    Shape(500, 50_000, 10, "decaying", "float32"),
    Shape(1000, 1000, 5, "flat", density=0.05),
    Shape(9000, 9000, 10, "flat", density=0.002),
    Shape(20_000, 5000, 10, "decaying", density=0.01),
    Shape(2000, 20_000, 20, "decaying", density=0.01),
    Shape(50_000, 2000, 50, "decaying", density=0.01),
    Shape(50_000, 50_000, 10, "flat", density=0.0005),
    Shape(20_000, 5000, 10, "flat", "float32", density=0.01),
]


# Data.


def factor_eigenvalues(shape: Shape) -> tuple[np.ndarray, float]:
    """Return the eigenvalues of the factors, and the variance of the noise.

    The covariance of n rows of noise with m features and variance σ² has eigenvalues up to
    σ² (1 + √(m/n))² (Marchenko & Pastur 1967).
    """
    edge = (1 + math.sqrt(shape.m / shape.n)) ** 2
    if shape.spectrum == "flat":
        count = min(shape.k, 10)
        return np.linspace(10, 5, count) * edge, 1.0
    count = max(1, min(shape.k + 100, min(shape.n, shape.m) // 2))
    values = 1.0 / np.arange(1, count + 1)
    return values, 0.5 * values[-1] / edge


def dense_rows(shape: Shape, rng: np.random.Generator) -> np.ndarray:
    """Return rows of the factor model that the docstring of this module describes."""
    values, noise = factor_eigenvalues(shape)
    factors, _ = np.linalg.qr(rng.standard_normal((shape.m, len(values))))
    loadings = (factors * np.sqrt(values)).T.astype(shape.dtype)
    mean = (math.sqrt(values.sum() / shape.m) * rng.random(shape.m)).astype(shape.dtype)
    X = np.empty((shape.n, shape.m), dtype=shape.dtype)
    step = max(1, 2**24 // shape.m)
    for start in range(0, shape.n, step):
        block = X[start : start + step]
        rng.standard_normal(out=block, dtype=shape.dtype)
        block *= math.sqrt(noise)
        block += rng.standard_normal((len(block), len(values)), dtype=shape.dtype) @ loadings
        block += mean
    return X


def sparse_rows(shape: Shape, rng: np.random.Generator) -> Any:
    """Return sparse rows in twenty groups, half of whose entries are in columns of their group."""
    count = max(1, round(shape.density * shape.n * shape.m))
    rows = rng.integers(shape.n, size=count)
    width = max(1, shape.m // GROUPS)
    if shape.spectrum == "flat":
        columns = rng.integers(shape.m, size=count)
    else:
        chances = 1.0 / (np.arange(shape.m) + 10)
        columns = rng.choice(shape.m, size=count, p=chances / chances.sum())
    grouped = rng.random(count) < 0.5
    # The columns of a group are spread over all columns, by a step that is the number of groups.
    inside = GROUPS * (columns // GROUPS) + rows % GROUPS
    columns = np.where(grouped & (columns // GROUPS < width), inside, columns) % shape.m
    values = (1.0 + rng.random(count)).astype(shape.dtype)
    X = scipy.sparse.csr_array((values, (rows, columns)), shape=(shape.n, shape.m))
    X.sum_duplicates()
    return X


def rows_of(shape: Shape) -> Any:
    rng = np.random.default_rng([shape.n, shape.m, shape.k])
    return sparse_rows(shape, rng) if shape.sparse else dense_rows(shape, rng)


# Reference.


def mean_of(X: Any) -> np.ndarray:
    if scipy.sparse.issparse(X):
        return np.asarray(X.astype(np.float64).sum(axis=0)).ravel() / X.shape[0]
    return X.mean(axis=0, dtype=np.float64)


def blocks_of(X: Any, mean: np.ndarray) -> Iterable[np.ndarray]:
    """Yield centred float64 blocks of dense rows."""
    step = max(1, 2**24 // X.shape[1])
    for start in range(0, X.shape[0], step):
        yield X[start : start + step].astype(np.float64) - mean


def covariance_product(X: Any, mean: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Return the covariance of the rows times vectors (m, q), in float64."""
    n = X.shape[0]
    if scipy.sparse.issparse(X):
        X = X.astype(np.float64)
        codes = X @ vectors - mean @ vectors
        return (X.T @ codes - np.outer(mean, codes.sum(axis=0))) / n
    total = np.zeros((X.shape[1], vectors.shape[1]))
    for block in blocks_of(X, mean):
        total += block.T @ (block @ vectors)
    return total / n


def dense_reference(X: Any, mean: np.ndarray, k: int) -> np.ndarray:
    """Return the components from an eigendecomposition of the smaller of the two square matrices.

    For wide rows A (centred), an eigenvector u of AAᵀ gives the component Aᵀu. The components are
    orthonormalised, because the rounding errors of Aᵀu grow with the ratio of the eigenvalues.
    """
    n, m = X.shape
    if scipy.sparse.issparse(X):
        X = X.astype(np.float64)
        if m <= n:
            matrix = (X.T @ X).toarray() / n - np.outer(mean, mean)
        else:
            projected = X @ mean
            matrix = (X @ X.T).toarray() - projected[:, None] - projected + mean @ mean
    elif m <= n:
        matrix = np.zeros((m, m))
        for block in blocks_of(X, mean):
            matrix += block.T @ block
    else:
        centred = X.astype(np.float64) - mean
        matrix = centred @ centred.T
    size = len(matrix)
    _, vectors = scipy.linalg.eigh(matrix, subset_by_index=[size - k, size - 1])
    vectors = vectors[:, ::-1]
    if m > n:
        raw = X.T @ vectors if scipy.sparse.issparse(X) else X.T.astype(np.float64) @ vectors
        vectors = np.linalg.qr(raw - np.outer(mean, vectors.sum(axis=0)))[0]
    return vectors.T


def refined_reference(
    X: Any, mean: np.ndarray, k: int, found: Sequence[np.ndarray], rounds: int = 3
) -> np.ndarray:
    """Return the components by Rayleigh–Ritz steps from the span of all components in `found`.

    Each round adds the residuals of the leading Ritz vectors to the span. Ten random vectors in
    the first span find directions that all solvers may have missed.
    """
    m = X.shape[1]
    random = np.random.default_rng(1).standard_normal((m, 10))
    basis = independent(np.column_stack([*(rows.T for rows in found), random]).astype(np.float64))
    for left in reversed(range(rounds)):
        image = covariance_product(X, mean, basis)
        values, turn = np.linalg.eigh(basis.T @ image)
        values, turn = values[::-1][:k], turn[:, ::-1][:, :k]
        ritz = basis @ turn
        if left:
            residuals = image @ turn - ritz * values
            basis = independent(np.column_stack([basis, residuals]))
    return np.linalg.qr(ritz)[0].T


def independent(columns: np.ndarray) -> np.ndarray:
    """Return an orthonormal basis of the span of some columns, without their rounding errors."""
    lengths = np.linalg.norm(columns, axis=0)
    columns = columns[:, lengths > 0] / lengths[lengths > 0]
    for _ in range(2):  # the second time on orthogonal columns, whose span is then exact
        left, singular, _ = np.linalg.svd(columns, full_matrices=False)
        columns = left[:, singular > 1e-13 * singular[0]]
    return columns


def reference_of(X: Any, k: int, found: Sequence[np.ndarray]) -> np.ndarray:
    mean = mean_of(X)
    if min(X.shape) <= EIGH_SIZE:
        return dense_reference(X, mean, k)
    return refined_reference(X, mean, k, found)


# Solvers and their times.


def gemm_rate(size: int = 1200) -> float:
    """Return the floating-point operations per second of a product of two matrices."""
    A = np.random.default_rng(0).standard_normal((size, size))
    A @ A
    return 2 * size**3 / min(seconds(lambda: A @ A) for _ in range(3))


def least_operations(solver: str, shape: Shape) -> float:
    """Return a lower bound of the operations of a solver, in those of matrix products.

    A singular value decomposition of the rows takes at least 4 n m s operations, where s is the
    smaller side. An eigendecomposition with all vectors takes 4/3 m³ operations for the reduction
    to tridiagonal form and at least 2 m³ for the vectors. Iterations are not bounded, because their
    number is not known.
    """
    n, m = shape.n, shape.m
    if solver == "full":
        return 4.0 * n * m * min(n, m)
    if solver == "covariance_eigh":
        stored = n * m * shape.density
        return stored * stored / n + 10 / 3 * m**3
    return 0.0


def peers_of(shape: Shape) -> tuple[str, ...]:
    """Return the solvers of scikit-learn's PCA that accept such data, iterations first."""
    if shape.k >= min(shape.n, shape.m):
        return ("covariance_eigh", "full")
    if shape.sparse:
        return ("arpack", "covariance_eigh")
    return ("arpack", "randomized", "covariance_eigh", "full")


def solver_works(shape: Shape, X: Any) -> dict[str, Callable[[], Any]]:
    works: dict[str, Callable[[], Any]] = {"ours": lambda: LinearAutoencoder(shape.k).fit(X)}
    for name in peers_of(shape):
        works[name] = lambda name=name: PCA(shape.k, svd_solver=name, random_state=0).fit(X)
    return works


@dataclass
class Result:
    """Times and error of one solver on one shape; `note` says why times are missing, if so."""

    seconds: list[float] = field(default_factory=list)
    error: float = math.nan
    note: str = ""

    @property
    def times(self) -> Times:
        """The times of the runs."""
        return Times(tuple(self.seconds))


@dataclass(frozen=True)
class Limits:
    """Seconds of one fit and of all rounds of a shape, number of rounds, and operations/second."""

    fit: float
    shape: float
    repeats: int
    rate: float


def measure(shape: Shape, limits: Limits) -> dict[str, Result]:
    """Return the times and errors of all solvers on one shape."""
    X = rows_of(shape)
    works = solver_works(shape, X)
    results = {name: Result() for name in works}
    found: dict[str, np.ndarray] = {}
    began = time.perf_counter()
    for name, work in works.items():
        results[name].note = reason_to_skip(name, shape, results, limits)
        if not results[name].note:
            run(name, work, results, limits, found)
    contenders = contending(results)
    longest = max((results[name].seconds[0] for name in contenders), default=0.0)
    warm_up = longest < 1.0 and limits.repeats > 1
    if warm_up:
        for name in contenders:
            results[name].seconds.clear()
    for done in range(rounds_of(longest, limits.repeats) - (not warm_up)):
        if (done or not warm_up) and time.perf_counter() - began > limits.shape:
            break
        for name in contenders:
            run(name, works[name], results, limits, found)
    if found:
        reference = reference_of(X, shape.k, list(found.values()))
        for name, components in found.items():
            results[name].error = component_error(components, reference)
    return results


def rounds_of(longest: float, repeats: int) -> int:
    """Return the number of rounds: more than `repeats` if the longest fit takes below 0.5 s."""
    return max(repeats, min(7 * repeats, int(1.5 / max(longest, 1e-9)))) if repeats > 1 else 1


def run(
    name: str,
    work: Callable[[], Any],
    results: dict[str, Result],
    limits: Limits,
    found: dict[str, np.ndarray],
) -> None:
    """Run one solver once; store its time and components, or the reason why it failed."""
    result = results[name]
    fitted: list[Any] = []
    try:
        limit = limits.fit * (OUR_LIMIT if name == "ours" else 1.0)
        with limited(limit), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            elapsed = seconds(lambda: fitted.append(work()))
            if elapsed < SHORT:  # waking up sleeping threads takes as long as the fit
                elapsed = median(seconds(work, pause=0.0) for _ in range(BURST))
    except (TimeoutError, MemoryError, ValueError, TypeError, ArithmeticError) as error:
        result.note = str(error).splitlines()[0][:80] if str(error) else type(error).__name__
        return
    result.seconds.append(elapsed)
    found[name] = np.array(fitted[0].components_, dtype=np.float64)


def reason_to_skip(name: str, shape: Shape, results: dict[str, Result], limits: Limits) -> str:
    """Return the reason why a peer is not run; empty if it is run."""
    least = least_operations(name, shape) / limits.rate
    if least > limits.fit:
        return f"not run: at least {duration(least)}"
    measured = [
        result.seconds[0]
        for other, result in results.items()
        if other not in ("ours", "randomized") and result.seconds
    ]
    if measured and least > 3 * min(measured):
        return f"not run: at least {duration(least)}"
    return ""


def contending(results: dict[str, Result]) -> list[str]:
    """Return our solver and the peers whose first time is at most twice that of the fastest.

    Differences below 50 ms are ignored, because a first call may be slow for other reasons. The
    randomized solver does not decide which one is the fastest, because its error is not known
    yet.
    """
    peers = {n: r.seconds[0] for n, r in results.items() if n != "ours" and r.seconds}
    exact = [first for name, first in peers.items() if name != "randomized"]
    best = min(exact, default=math.inf)
    names = ["ours"] if results["ours"].seconds else []
    return names + [name for name, first in peers.items() if first <= max(2 * best, best + 0.05)]


# Verdicts and the table.


def counts(error: float, ours: float, dtype: str) -> bool:
    """Tell whether a peer with this error is accurate enough to be compared with our fit."""
    return error <= max(ACCURATE[dtype], 10 * ours if math.isfinite(ours) else 0.0)


def best_peer(results: dict[str, Result], dtype: str) -> str | None:
    """Return the name of the fastest peer that is accurate enough."""
    ours = results["ours"].error
    fast = {
        name: result.times.median
        for name, result in results.items()
        if name != "ours" and result.seconds and counts(result.error, ours, dtype)
    }
    return min(fast, key=lambda name: fast[name]) if fast else None


def asked_ratio(peer: float) -> float:
    """Return the largest allowed ratio of our time to that of a peer, which is `peer` seconds."""
    return LARGEST_RATIO if peer >= SHORT else LARGEST_SHORT_RATIO


def verdict(results: dict[str, Result], dtype: str) -> str:
    """Return "yes" if our time and error meet the requirement, else which of them does not."""
    ours, name = results["ours"], best_peer(results, dtype)
    if not ours.seconds:
        return f"**NO: {ours.note}**"
    errors = [r.error for n, r in results.items() if n != "ours" and r.seconds]
    if not ours.error <= max(ACCURATE[dtype], 10 * min(errors, default=0.0)):
        return "**NO: error**"
    if name is None:
        return "yes"
    peer = results[name].times.median
    asked = asked_ratio(peer)
    return "yes" if ours.times.median <= asked * peer else f"**NO: asked ≤ {asked:g}**"


HEADER = ("n", "m", "k", "data", "dtype", "lucidae", "best peer", "its time", "ratio")
HEADER += ("our error", "its error", "as asked")


def table_row(shape: Shape, results: dict[str, Result]) -> list[str]:
    """Return one line of the table."""
    ours, name = results["ours"], best_peer(results, shape.dtype)
    cells = [str(shape.n), str(shape.m), str(shape.k), shape.kind, shape.dtype]
    cells.append(duration(ours.times.median) if ours.seconds else ours.note)
    if name is None:
        cells += ["none accurate in time", "–", "–"]
    else:
        peer = results[name]
        ratio = f"{ours.times.median / peer.times.median:.2f}" if ours.seconds else "–"
        cells += [name, duration(peer.times.median), ratio]
    errors = (ours.error, math.nan if name is None else results[name].error)
    cells += ["–" if math.isnan(error) else f"{error:.0e}" for error in errors]
    return [*cells, verdict(results, shape.dtype)]


def summary(measured: Sequence[tuple[Shape, dict[str, Result]]]) -> str:
    met = sum(verdict(results, shape.dtype) == "yes" for shape, results in measured)
    return f"{met} of {len(measured)} shapes as asked; {os.cpu_count()} cores, default threads."


def progress(shape: Shape, results: dict[str, Result], elapsed: float) -> str:
    """Return one line with the times or notes of all solvers."""
    parts = [
        f"{name} {result.times if result.seconds else result.note or '–'}"
        for name, result in results.items()
    ]
    return f"{shape.label} [{elapsed:.0f} s]: " + "; ".join(parts)


def selected(only: Sequence[str], small: bool) -> list[Shape]:
    """Return the shapes of the grid whose label contains one of the words, or all."""
    shapes = [shape for shape in GRID if not small or shape.nbytes <= SMALL_BYTES]
    words = [word.replace("×", "x") for word in only]
    return [s for s in shapes if not words or any(word in s.label for word in words)]


def as_json(measured: Sequence[tuple[Shape, dict[str, Result]]]) -> str:
    entries = [
        asdict(shape) | {"solvers": {name: asdict(result) for name, result in results.items()}}
        for shape, results in measured
    ]
    return json.dumps(entries, indent=1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[], help="words of labels (see --list)")
    parser.add_argument("--small", action="store_true", help="only arrays up to 100 MB")
    parser.add_argument("--list", action="store_true", help="print the labels of the shapes")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--time-limit", type=float, default=15.0, help="seconds of one fit")
    parser.add_argument("--shape-limit", type=float, default=25.0, help="seconds of all rounds")
    parser.add_argument("--json", help="file for all measured values")
    parser.add_argument("--write", help="page whose section `shapes` is replaced by the table")
    arguments = parser.parse_args()
    shapes = selected(arguments.only, arguments.small)
    if arguments.list or not shapes:
        print("\n".join(shape.label for shape in GRID))
        return 0 if arguments.list else 2
    limits = Limits(
        arguments.time_limit, arguments.shape_limit, max(1, arguments.repeats), gemm_rate()
    )
    measured = []
    for shape in shapes:
        began = time.perf_counter()
        results = measure(shape, limits)
        print(progress(shape, results, time.perf_counter() - began), file=sys.stderr, flush=True)
        measured.append((shape, results))
    text = markdown(HEADER, [table_row(*entry) for entry in measured])
    text = f"{text}\n\n{summary(measured)}"
    print(text)
    if arguments.json:
        Path(arguments.json).write_text(as_json(measured), encoding="utf-8")
    if arguments.write:
        write_section(arguments.write, "shapes", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
