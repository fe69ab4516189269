"""How the time of a fit grows with each size of its data, beside the exponent that theory gives.

    python -m benchmarks growth [--write docs/benchmarks/scaling.md]

One size grows while the others stay. The exponent is the slope of log time over log size, of the
smallest of three processor times with one BLAS thread. Theory counts operations: a second moment
takes n m² of them, an equalizer r², and one sweep over a dictionary of κ columns, d rows and n
responses d²κ + dκ min(n, d), and further sweeps if sizes grow.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks._tables import duration, markdown, write_section
from benchmarks.orientations import SHARES, recording
from lucidae import (
    DropoutFactorization,
    DropoutRegressor,
    LinearAutoencoder,
    SparseVAE,
    equalize,
)

Work = Callable[[], object]


def decaying(n: int, m: int) -> Any:
    """Return rows whose features have the standard deviations 1, 2^-½, 3^-½, …."""
    return np.random.default_rng(0).standard_normal((n, m)) * np.arange(1, m + 1) ** -0.5


def linear(n: int = 20_000, m: int = 250, k: int = 10) -> Work:
    X = decaying(n, m)
    return lambda: LinearAutoencoder(k).fit(X)


def wide(n: int = 300, m: int = 10_000, k: int = 10) -> Work:
    return linear(n, m, k)


def regressor(n: int = 20_000, m: int = 100, d: int = 100) -> Work:
    X = decaying(n, m + d)
    return lambda: DropoutRegressor(20).fit(X[:, :m], X[:, m:])


def factorization(n: int = 1000, r: int = 50) -> Work:
    M = decaying(n, 1000)
    return lambda: DropoutFactorization(r).fit(M)


def equalizer(r: int = 250) -> Work:
    U = decaying(r, r)
    return lambda: equalize(U)


def sparse(covariance: str | None = None, g: int = 4000, d: int = 120, n: int = 13) -> Work:
    data = recording(g, n_sensors=d, n_responses=n)
    groups: Any = {} if covariance is None else {"groups": 3, "group_covariance": covariance}
    model = SparseVAE(noise_variance=SHARES[0] * data.power, fit_intercept=False, **groups)
    return lambda: model.fit(data.dictionary, data.responses)


CASES: list[tuple[str, Callable[..., Work], dict[str, Any], str, tuple[int, ...], str]] = [
    ("`LinearAutoencoder`, second moment", linear, {}, "n", (20_000, 40_000, 80_000), "1"),
    ("", linear, {}, "m", (250, 500, 1000), "2"),
    ("", linear, {}, "k", (5, 10, 20, 40), "0"),
    ("`LinearAutoencoder`, few rows", wide, {}, "n", (150, 300, 600), "2"),
    ("", wide, {}, "m", (10_000, 20_000, 40_000), "1"),
    ("`DropoutRegressor`", regressor, {}, "n", (20_000, 40_000, 80_000), "1"),
    ("", regressor, {}, "m", (100, 200, 400), "1 to 2"),
    ("`DropoutFactorization`, 1000 columns", factorization, {}, "r", (25, 50, 100), "0 to 1"),
    ("`equalize`", equalizer, {}, "r", (250, 500, 1000), "2"),
]
for words, kind in (("columns", None), ("spherical groups", "spherical"), ("full groups", "full")):
    fixed = {"covariance": kind}
    CASES += [
        (f"`SparseVAE`, {words}", sparse, fixed, "g", (2000, 4000, 8000), "1"),
        ("", sparse, fixed, "d", (60, 120, 240), "0 to 2"),
        ("", sparse, fixed, "n", (10, 40, 160), "0 to 1"),
    ]


def processor_seconds(work: Work) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


def rows() -> Iterator[list[str]]:
    """Yield the rows of the table."""
    for words, make, fixed, name, sizes, theory in CASES:
        times = []
        for size in sizes:
            work = make(**fixed, **{name: size})
            times.append(min(processor_seconds(work) for _ in range(3)))
        slope = np.polyfit(np.log(sizes), np.log(times), 1)[0]
        listed = ", ".join(f"{s}: {duration(t)}" for s, t in zip(sizes, times, strict=True))
        yield [words, name, f"{slope:.2f}", theory, listed]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", help="page whose section `growth` is replaced by the table")
    options = parser.parse_args()
    found = []
    with threadpool_limits(1):
        for row in rows():
            found.append(row)
            print(" | ".join(row), flush=True)
    text = markdown(("fit", "size", "exponent", "theory", "processor time"), found)
    if options.write:
        write_section(options.write, "growth", text)


if __name__ == "__main__":
    main()
