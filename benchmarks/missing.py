"""Principal components of rows with missing entries, against the programs that others use.

    python -m benchmarks missing [--rounds 3] [--rows 500] [--seeds 3]
        [--write docs/benchmarks/missing.md]

**Data.** Rows of 30 features from 4 factors with noise (the factors explain about nine tenths of
the variance), of which the loadings are known. Entries are removed at random, or

* ``by another feature``: entries of a row are removed more often if its first feature, which is
  always observed, is large (missing at random: what decides is observed);
* ``by their own value``: entries are removed more often if they are large themselves (not missing
  at random: what decides is not observed).

**Methods.** ``LinearAutoencoder(k, handle_missing="em")``; statsmodels' ``PCA(missing="fill-em")``;
scikit-learn's ``IterativeImputer`` followed by ``PCA``; and the mean of each feature in place of
missing entries, followed by ``PCA``.

**Errors.** Of the removed entries, the root mean square of the error of their reconstruction from
the components, divided by their standard deviation. Of the subspace, the mean squared sine of the
angles to the span of the true loadings. Of the mean, the root mean square difference to the mean of
the complete rows, in standard deviations of each feature. All are means over the seeds.

**Time.** Processor time of the fit with one BLAS thread: the smallest of some rounds, in which all
methods are run in turn, added up over the seeds.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from sklearn.decomposition import PCA
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer, SimpleImputer
from threadpoolctl import threadpool_limits

from benchmarks._tables import duration, markdown, write_section
from lucidae import LinearAutoencoder

Floats = np.ndarray[Any, Any]

FEATURES, FACTORS = 30, 4

SHARES = (0.05, 0.2, 0.4, 0.6, 0.8)


class Fitted(NamedTuple):
    """What a method found: mean, components as orthonormal rows, and reconstructed rows."""

    mean: Floats
    components: Floats
    rows: Floats


def make_rows(n: int, seed: int) -> tuple[Floats, Floats]:
    """Return n complete rows, and an orthonormal basis of the span of their loadings."""
    rng = np.random.default_rng(seed)
    loadings = rng.standard_normal((FEATURES, FACTORS)) * np.linspace(2.0, 1.0, FACTORS)
    rows = rng.standard_normal((n, FACTORS)) @ loadings.T + rng.standard_normal((n, FEATURES))
    return rows + 2.0 * rng.standard_normal(FEATURES), np.linalg.qr(loadings)[0]


def removed(rows: Floats, kind: str, share: float, seed: int) -> Floats:
    """Return a mask of the entries to remove, about `share` of them, none in the first feature.

    `kind` says which entries are removed more often than others.
    """
    rng = np.random.default_rng(1000 + seed)
    units = (rows - rows.mean(axis=0)) / rows.std(axis=0)
    score = {
        "at random": np.zeros_like(rows),
        "by another feature": units[:, :1] + 0.0 * units,
        "by their own value": 2.0 * units,
    }[kind]
    score = score + rng.logistic(size=rows.shape)
    score[:, 0] = -np.inf
    limit = np.quantile(score[:, 1:], 1.0 - share * FEATURES / (FEATURES - 1))
    return np.asarray(score > limit)


def by_em(X: Floats, k: int) -> Fitted:
    model = LinearAutoencoder(k, handle_missing="em").fit(X)
    return Fitted(model.mean_, model.components_, model.inverse_transform(model.transform(X)))


def by_statsmodels(X: Floats, k: int) -> Fitted:
    from statsmodels.multivariate import pca

    found = pca.PCA(X, ncomp=k, standardize=False, normalize=False, missing="fill-em")
    return Fitted(found._adjusted_data.mean(axis=0), found.eigenvecs.T[:k], found.projection)


def imputed(imputer: Any) -> Callable[[Floats, int], Fitted]:
    """Return a method that fits PCA to rows with imputed entries."""

    def fit(X: Floats, k: int) -> Fitted:
        rows = imputer().fit_transform(X)
        model = PCA(k).fit(rows)
        decoded = model.inverse_transform(model.transform(rows))
        # The imputer itself predicts the entries; the components of what it has filled in would
        # be a second model.
        return Fitted(model.mean_, model.components_, np.where(np.isnan(X), rows, decoded))

    return fit


METHODS: dict[str, Callable[[Floats, int], Fitted]] = {
    "LinearAutoencoder": by_em,
    "statsmodels PCA": by_statsmodels,
    "IterativeImputer + PCA": imputed(lambda: IterativeImputer(random_state=0)),
    "mean + PCA": imputed(SimpleImputer),
}


class Outcome(NamedTuple):
    """Errors and processor time of one method on one data set."""

    entries: float
    subspace: float
    mean: float
    seconds: float
    problem: str = ""


def timed(fit: Callable[[Floats, int], Fitted], X: Floats) -> tuple[Fitted, float]:
    """Return the result of a fit, and its processor time."""
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")
        begin = time.process_time()
        found = fit(X, FACTORS)
        return found, time.process_time() - begin


def judged(found: Fitted, rows: Floats, hidden: Floats, basis: Floats, seconds: float) -> Outcome:
    """Return the errors of a fit; `rows` are the complete ones, `hidden` the removed entries."""
    deviations = rows.std(axis=0)
    wrong = (found.rows - rows)[hidden]
    spread = ((rows - rows.mean(axis=0)) ** 2)[hidden]
    axes = np.linalg.qr(found.components.T)[0]
    return Outcome(
        float(np.sqrt(np.mean(wrong**2) / np.mean(spread))),
        1.0 - float(np.sum((axes.T @ basis) ** 2)) / FACTORS,
        float(np.sqrt(np.mean(((found.mean - rows.mean(axis=0)) / deviations) ** 2))),
        seconds,
    )


def outcomes(n: int, kind: str, share: float, seed: int, rounds: int) -> dict[str, Outcome]:
    """Return the outcome of every method on one data set; the methods are run in turn."""
    rows, basis = make_rows(n, seed)
    hidden = removed(rows, kind, share, seed)
    X = np.where(hidden, np.nan, rows)
    found: dict[str, Outcome] = {}
    for _ in range(rounds):
        for name, fit in METHODS.items():
            if name in found and found[name].problem:
                continue
            try:
                result, seconds = timed(fit, X)
            except ValueError as error:
                found[name] = Outcome(np.nan, np.nan, np.nan, np.nan, str(error))
                continue
            best = min(seconds, found[name].seconds) if name in found else seconds
            found[name] = judged(result, rows, hidden, basis, best)
    return found


HEADER = ("missing", "method", "error of entries", "of subspace", "of mean", "time")


def cells(name: str, label: str, runs: list[Outcome]) -> list[str]:
    """Return the cells of one method: means over the data sets, and the sum of the times."""
    failed = [run for run in runs if run.problem]
    if failed:
        words = failed[0].problem.partition("\n")[0]
        return [label, name, f"refuses {len(failed)} of {len(runs)}: {words}", "–", "–", "–"]
    entries, subspace, mean = (
        float(np.mean([getattr(run, field) for run in runs]))
        for field in ("entries", "subspace", "mean")
    )
    seconds = sum(run.seconds for run in runs)
    return [label, name, f"{entries:.3f}", f"{subspace:.4f}", f"{mean:.3f}", duration(seconds)]


def table(settings: list[tuple[str, float]], n: int, seeds: int, rounds: int) -> str:
    """Return the Markdown table of all methods for some kinds and shares of missing entries."""
    lines = []
    for kind, share in settings:
        runs = [outcomes(n, kind, share, seed, rounds) for seed in range(seeds)]
        for name in METHODS:
            lines.append(cells(name, f"{share:.0%} {kind}", [run[name] for run in runs]))
            print(" | ".join(lines[-1]), flush=True)
    return markdown(HEADER, lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--write", metavar="PAGE", help="replace the tables of this page")
    options = parser.parse_args()
    if importlib.util.find_spec("statsmodels") is None:
        del METHODS["statsmodels PCA"]
        print("statsmodels is not installed")
    size = (options.rows, options.seeds, options.rounds)
    sections = {
        "masks": table([("at random", share) for share in SHARES], *size),
        "values": table([("by another feature", 0.4), ("by their own value", 0.4)], *size),
    }
    for name, text in sections.items():
        if options.write:
            write_section(options.write, name, text)


if __name__ == "__main__":
    main()
