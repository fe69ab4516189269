"""Filling of missing entries of real tables, against the imputers that others use.

    python -m benchmarks imputation [--seeds 3]
        [--write docs/benchmarks/imputation.md] [--picture FILE]

**Data.** scikit-learn's tables wine (178 × 13), breast_cancer (569 × 30), diabetes (442 × 10) and
digits (1797 × 61 pixels that vary). A share of the entries is removed at random. The columns of the
first three are standardised by their observed entries. Pixels have one unit and keep it: some are
nearly always zero, and standardising would make their few entries the largest ones of the table.

**Methods.** ``LowRankImputer()`` (for pixels, ``standardize=False``), scikit-learn's
``IterativeImputer()`` (Bayesian ridge regression of each column on all others), ``KNNImputer()``
(5 neighbours) and ``SimpleImputer()`` (the mean), and SoftImpute (Mazumder, Hastie & Tibshirani
2010): the singular values of the filled table are lowered by λ until it does not change; λ is
chosen by a tenth of the observed entries.

**Error.** Mean squared error of the removed entries, in units of the variance of their column (of
pixels, of the mean variance), so that the mean has about 1; mean over the seeds.

**Time.** Processor time of `fit_transform` with one BLAS thread, mean over the seeds.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn import datasets
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer, KNNImputer, SimpleImputer
from threadpoolctl import threadpool_limits

from benchmarks._tables import duration, markdown, write_section
from lucidae.impute import LowRankImputer

Floats = np.ndarray[Any, Any]

TABLES = ("wine", "breast_cancer", "diabetes", "digits")
SHARES = (0.05, 0.2, 0.4, 0.6)
PIXELS = 61


def table(name: str) -> Floats:
    """Return the columns of one of scikit-learn's tables that vary."""
    X = getattr(datasets, f"load_{name}")(return_X_y=True)[0]
    return np.asarray(X[:, X.std(axis=0) > 0], dtype=float)


def shrunk(Z: Floats, start: Floats, strength: float) -> Floats:
    """Return the completed table of SoftImpute for one λ: min ‖P(Z − X)‖²/2 + λ‖X‖*."""
    seen, X = ~np.isnan(Z), start
    for _ in range(200):
        left, values, right = np.linalg.svd(np.where(seen, Z, X), full_matrices=False)
        new = (left * np.maximum(values - strength, 0.0)) @ right
        if np.sum((new - X) ** 2) <= 1e-8 * max(np.sum(X**2), 1e-12):
            return new
        X = new
    return X


def soft_impute(Z: Floats) -> Floats:
    """Return SoftImpute's completed table; λ is chosen by held-out entries, from large to small."""
    seen = ~np.isnan(Z)
    held = seen & (np.random.default_rng(0).random(Z.shape) < 0.1)
    gaps, X = np.where(held, np.nan, Z), np.zeros_like(Z)
    top = np.linalg.norm(np.nan_to_num(gaps), 2)
    errors, strengths = [], top * np.geomspace(1.0, 0.01, 15)
    for strength in strengths:
        X = shrunk(gaps, X, strength)
        errors.append(np.mean((X - Z)[held] ** 2))
        if len(errors) - np.argmin(errors) > 3:
            break
    X = np.zeros_like(Z)
    for strength in strengths[: int(np.argmin(errors)) + 1]:
        X = shrunk(Z, X, strength)
    return np.where(seen, Z, X)


METHODS: dict[str, Callable[[Floats], Floats]] = {
    "LowRankImputer": lambda Z: LowRankImputer(standardize=Z.shape[1] < PIXELS).fit_transform(Z),
    "IterativeImputer": lambda Z: IterativeImputer(random_state=0).fit_transform(Z),
    "KNNImputer": lambda Z: KNNImputer().fit_transform(Z),
    "SoftImpute": soft_impute,
    "SimpleImputer": lambda Z: SimpleImputer().fit_transform(Z),
}


def outcome(name: str, share: float, seed: int) -> dict[str, tuple[float, float]]:
    """Return error and processor time of every method on one table with missing entries."""
    X = table(name)
    hidden = np.random.default_rng(1000 + seed).random(X.shape) < share
    gaps = np.where(hidden, np.nan, X)
    center, scale, unit = np.nanmean(gaps, axis=0), np.nanstd(gaps, axis=0), X.std(axis=0)
    if name == "digits":
        scale, unit = np.ones(X.shape[1]), np.sqrt(np.mean(unit**2))
    found = {}
    for method, fill in METHODS.items():
        with warnings.catch_warnings(), threadpool_limits(1):
            warnings.simplefilter("ignore")
            begin = time.process_time()
            filled = fill((gaps - center) / scale) * scale + center
            seconds = time.process_time() - begin
        found[method] = float(np.mean(((filled - X) / unit)[hidden] ** 2)), seconds
    return found


def lines(seeds: int) -> list[tuple[str, float, dict[str, tuple[float, float]]]]:
    """Return the mean outcomes for all tables and shares of missing entries."""
    found = []
    for name in TABLES:
        for share in SHARES:
            runs = [outcome(name, share, seed) for seed in range(seeds)]
            means = {
                method: tuple(np.mean([run[method] for run in runs], axis=0)) for method in METHODS
            }
            found.append((name, share, means))
            print(name, share, {key: f"{a:.3f} {b:.2f}s" for key, (a, b) in means.items()})
    return found


def text(found: list[tuple[str, float, dict[str, tuple[float, float]]]]) -> str:
    """Return the Markdown table; the smallest error of each line is bold."""
    rows = []
    for name, share, means in found:
        best = min(error for error, _ in means.values())
        cells = [
            f"{'**' if error <= best * 1.005 else ''}{error:.3f}"
            f"{'**' if error <= best * 1.005 else ''} ({duration(seconds)})"
            for error, seconds in means.values()
        ]
        rows.append([name, f"{share:.0%}", *cells])
    return markdown(("table", "missing", *METHODS), rows)


def draw(found: list[tuple[str, float, dict[str, tuple[float, float]]]], file: str) -> None:
    """Draw error against share of missing entries, one panel per table, and the times."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(TABLES), figsize=(11, 3.2), sharey=True, layout="tight")
    styles = dict(zip(METHODS, ("o-", "s-", "^-", "v-", ":"), strict=True))
    for axis, name in zip(axes, TABLES, strict=True):
        own = [(share, means) for table, share, means in found if table == name]
        for method, style in styles.items():
            errors = [means[method][0] for _, means in own]
            color = "0.5" if method == "SimpleImputer" else None
            axis.plot([100 * share for share, _ in own], errors, style, label=method, color=color)
        axis.set(title=name, xlabel="missing entries (%)", ylim=(0, 1.15))
    axes[0].set_ylabel("mean squared error")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(METHODS), frameon=False)
    figure.set_layout_engine("constrained")
    figure.savefig(file, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--write", metavar="PAGE", help="replace the table of this page")
    parser.add_argument("--picture", metavar="FILE", help="write the picture to this file")
    options = parser.parse_args()
    found = lines(options.seeds)
    print(text(found))
    if options.write:
        write_section(options.write, "imputation", text(found))
    if options.picture:
        draw(found, options.picture)


if __name__ == "__main__":
    main()
