"""P20, P21, P23 and P25: certificates beside the fits they judge, gaps, and cells beside scanpy.

    python -m benchmarks certificates [--only P25] [--repeats 3]
        [--write docs/benchmarks/scaling.md]

* P20: the sketch of 100 000 × 500 rows, which tests a second moment, beside the fit to these rows.
* P21: the components that explain 90 % of 5000 × 36 with 6 % missing entries and a constant column.
* P23: `lucidae.scanpy.pca` of 100 000 cells of 30 types with 2000 genes, about 6 % of the counts
  not zero, beside `scanpy.pp.pca(svd_solver="arpack")` of the same numbers in double precision.
* P25: reading `certificate_` beside the fit, with k = 20 and a decaying spectrum.

Works and peers take turns. Times are those of the processor with one BLAS thread.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import scipy.sparse
from threadpoolctl import threadpool_limits

from benchmarks._tables import Comparison, Times, Work, comparison_table, write_section
from lucidae import LinearAutoencoder
from lucidae.certificates.sketch import Sketch

NUMBERS = ("P20", "P21", "P23", "P25")
SHAPES = ((60_000, 784), (20_000, 1000), (500, 50_000), (5000, 5000))


def interleaved(works: dict[str, Work], repeats: int) -> dict[str, Times]:
    """Return the processor times of all works, which are run in turn."""
    found: dict[str, list[float]] = {name: [] for name in works}
    with threadpool_limits(1, user_api="blas"):
        for _ in range(repeats):
            for name, work in works.items():
                begin = time.process_time()
                work()
                found[name].append(time.process_time() - begin)
    return {name: Times(tuple(seconds)) for name, seconds in found.items()}


def decaying(n: int, m: int) -> Any:
    """Return rows of 100 factors with the variances 1, 1/2, 1/3, … and noise of variance 0.001."""
    rng = np.random.default_rng(0)
    factors = rng.standard_normal((n, 100)) * np.arange(1, 101) ** -0.5
    axes = np.linalg.qr(rng.standard_normal((m, 100)))[0]
    return factors @ axes.T + 0.001**0.5 * rng.standard_normal((n, m))


def sketch(repeats: int) -> Comparison:
    """Return the comparison of the sketch of rows with the fit to them."""
    X = decaying(100_000, 500)
    works = {"sketch": lambda: Sketch.of(X), "fit": lambda: LinearAutoencoder(10).fit(X)}
    times = interleaved(works, repeats)
    work = "sketch of 100000 × 500, float64"
    return Comparison("P20", work, times["sketch"], "the fit to these rows", times["fit"], 0.12)


def gaps(repeats: int) -> Comparison:
    """Return the time of a fit to rows with missing entries, and its number of components."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((5000, 8)) @ rng.standard_normal((8, 36))
    X += rng.standard_normal(X.shape)
    X[:, 17] = 3.0
    wanted = LinearAutoencoder(0.9).fit(X).n_components_
    X[rng.random(X.shape) < 0.06] = np.nan
    found = []
    model = LinearAutoencoder(0.9, handle_missing="em")
    works = {"fit": lambda: found.append(model.fit(X).n_components_)}
    times = interleaved(works, repeats)["fit"]
    good = times.median <= 5.0 and abs(found[0] - wanted) <= 1
    notes = f"asked: 5 s; {found[0]} components, {wanted} of the complete rows"
    return Comparison("P21", "5000 × 36, 6 % missing", times, "–", None, None, good, notes)


def cells(repeats: int) -> Iterator[Comparison]:
    """Yield the comparisons of `lucidae.scanpy.pca`, and of its fit, with scanpy's function."""
    import anndata
    import scanpy

    import lucidae.scanpy

    rng = np.random.default_rng(0)
    rates = 0.04 * np.exp(rng.normal(0, 1, (30, 2000)))
    types = np.array_split(rng.integers(0, 30, 100_000), 20)
    counts = [scipy.sparse.csr_matrix(rng.poisson(rates[block])) for block in types]
    data = anndata.AnnData(scipy.sparse.vstack(counts, format="csr").log1p())
    works = {
        "pca": lambda: lucidae.scanpy.pca(data, n_comps=50),
        "fit": lambda: LinearAutoencoder(50).fit(data.X),
        "scanpy": lambda: scanpy.pp.pca(data, n_comps=50, svd_solver="arpack"),
    }
    times, peer = interleaved(works, repeats), "scanpy.pp.pca(arpack)"
    cells = "100000 × 2000 cells, k = 50"
    yield Comparison("P23", f"fit of {cells}", times["fit"], peer, times["scanpy"], 1.1)
    yield Comparison("P23", "the same with certificate", times["pca"], peer, times["scanpy"])


def reading(n: int, m: int, repeats: int) -> Comparison:
    """Return the comparison of reading the certificate of a fit in memory with the fit."""
    X = decaying(n, m)
    fits: list[LinearAutoencoder] = []
    works = {
        "fit": lambda: fits.append(LinearAutoencoder(20).fit(X)),
        "certificate": lambda: fits[-1].certificate_,
    }
    times = interleaved(works, repeats)
    holds = {fit.certificate_.holds for fit in fits}
    work = f"certificate of {n} × {m}, k = 20"
    notes = f"holds: {', '.join(map(str, holds))}"
    return Comparison("P25", work, times["certificate"], "its fit", times["fit"], 0.5, notes=notes)


def comparisons(wanted: Sequence[str], repeats: int) -> Iterator[Comparison]:
    """Yield the comparisons of the wanted numbers."""
    if "P20" in wanted:
        yield sketch(repeats)
    if "P21" in wanted:
        yield gaps(repeats)
    if "P23" in wanted and importlib.util.find_spec("scanpy") is not None:
        yield from cells(repeats)
    if "P25" in wanted:
        for n, m in SHAPES:
            yield reading(n, m, repeats)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", choices=NUMBERS, default=NUMBERS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--write", help="page whose section `certificates` is replaced")
    arguments = parser.parse_args()
    found = []
    for entry in comparisons(arguments.only, arguments.repeats):
        print(" | ".join(entry.cells()), flush=True)
        found.append(entry)
    if arguments.write:
        write_section(arguments.write, "certificates", comparison_table(found).partition("\n\n")[0])


if __name__ == "__main__":
    main()
