"""Rules that choose the noise variance, compared where the dictionary is right and where it is not.

Run with ``python -m benchmarks noise_rules [--seeds 1] [--kinds leadfield bumps gaussian]``.
Data are made by one dictionary and fitted with another one, whose columns differ from the true
columns by 0, 5, 20 or 40 % of their power. Three kinds of dictionaries (80 × 300):

* ``leadfield``: fields of sources in a spherical head at sensors that are not where the dictionary
  says they are; the displacement of the sensors is smooth, so the errors are smooth too,
* ``bumps``: smooth bumps on a line, displaced and of another width than those of the dictionary,
* ``gaussian``: independent columns, with errors that are independent as well.

Printed for each rule and misfit, over 1 or 4 sources, 5 or 20 responses and signal-to-noise
ratios of 10, 20 and 40 dB: the share of true columns that are found (a significant column
correlates by at least 0.9 with the true one), the number of significant columns that are near none,
the share of fits whose strongest column is near a true one, and F1, the harmonic mean of the shares
of true columns found and of found columns that are true.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import lucidae
from benchmarks.misfit import bent
from lucidae import SparseVAE
from lucidae.datasets import make_meg_leadfield
from lucidae.sparsity import noise_path

Floats = np.ndarray[Any, Any]

ROWS, COLUMNS = 80, 300
SAME = 0.9
MISFITS = (0.0, 0.05, 0.2, 0.4)


class Task(NamedTuple):
    """One simulated problem: the dictionary of the fit, the responses and the true columns."""

    dictionary: Floats
    responses: Floats
    true: Floats


def unit(columns: Floats) -> Floats:
    """Return columns divided by their norms."""
    return np.asarray(columns / np.linalg.norm(columns, axis=0))


def leadfields(rng: np.random.Generator) -> tuple[Floats, Callable[[float], Floats]]:
    """Return the lead field of a helmet, and a function that gives it at displaced sensors."""
    seed = int(rng.integers(2**31))
    made = make_meg_leadfield(ROWS, COLUMNS, return_geometry=True, random_state=seed)
    moves = bent(made.sensor_positions, rng)
    radius = np.linalg.norm(made.sensor_positions, axis=1, keepdims=True)
    moves = moves / np.sqrt(np.mean(np.sum(moves**2, axis=1)))

    def displaced(size: float) -> Floats:
        moved = made.sensor_positions + 0.02 * size * moves
        moved *= radius / np.linalg.norm(moved, axis=1, keepdims=True)  # along the helmet
        return unit(
            make_meg_leadfield(sensors=(moved, made.sensor_normals), sources=made.source_positions)
        )

    return displaced(0.0), displaced


def bumps(rng: np.random.Generator) -> tuple[Floats, Callable[[float], Floats]]:
    """Return smooth bumps on a line, and a function that displaces and widens them."""
    places, rows = np.linspace(-0.05, 1.05, COLUMNS), np.linspace(0.0, 1.0, ROWS)[:, None]
    waves = rng.standard_normal((2, 6))

    def field(which: int, at: Floats) -> Floats:
        return sum(waves[which, k] * np.cos(np.pi * (k + 1) * at) for k in range(6)) / 6.0

    def displaced(size: float) -> Floats:
        width = 0.04 * (1.0 + size * field(1, rows))
        return unit(np.exp(-((rows + 0.04 * size * field(0, rows) - places) ** 2) / (2 * width**2)))

    return displaced(0.0), displaced


def gaussian(rng: np.random.Generator) -> tuple[Floats, Callable[[float], Floats]]:
    """Return independent columns, and a function that adds independent errors."""
    columns, errors = (rng.standard_normal((ROWS, COLUMNS)) for _ in range(2))
    return unit(columns), lambda size: unit(columns + size * errors)


KINDS = {"leadfield": leadfields, "bumps": bumps, "gaussian": gaussian}


def misfitted(Phi: Floats, displaced: Callable[[float], Floats], true: Floats, share: float) -> Any:
    """Return columns of which, on average, `share` of the power is not explained by those of Φ."""

    def misfit(size: float) -> float:
        return 1.0 - float(np.mean(np.sum(displaced(size)[:, true] * Phi[:, true], axis=0) ** 2))

    low, high = 0.0, 0.05
    while misfit(high) < share and high < 50.0:
        low, high = high, 1.3 * high
    for _ in range(25 if share else 0):
        middle = (low + high) / 2
        low, high = (low, middle) if misfit(middle) >= share else (middle, high)
    return displaced(high if share else 0.0)[:, true]


def task(kind: str, share: float, decibels: float, sources: int, n: int, seed: int) -> Task:
    """Return a problem; `decibels` is the signal-to-noise ratio.

    The power of the strongest source is thirty times that of the weakest, if there are several.
    """
    words = f"{kind} {decibels} {sources} {n} {seed}"
    rng = np.random.default_rng(list(words.encode()))
    Phi, displaced = KINDS[kind](rng)
    true: list[int] = []
    while len(true) < sources:
        column = int(rng.integers(COLUMNS))
        if all(abs(Phi[:, column] @ Phi[:, other]) < 0.7 for other in true):
            true.append(column)
    chosen = np.array(true)
    fields = misfitted(Phi, displaced, chosen, share)
    y = fields @ (np.geomspace(1.0, 30**-0.5, sources)[:, None] * rng.standard_normal((sources, n)))
    noise = np.sqrt(np.mean(y**2) * 10 ** (-decibels / 10))
    return Task(Phi, y + noise * rng.standard_normal(y.shape), chosen)


class Score(NamedTuple):
    """What one fit found."""

    found: float  # share of the true columns
    wrong: float  # significant columns near no true one
    strongest: float  # 1 if the strongest column is near a true one
    f1: float


def score(given: Task, fit: SparseVAE) -> Score:
    """Return which of the true columns a fit found."""
    near = np.abs(given.dictionary[:, given.true].T @ given.dictionary) >= SAME
    power = np.sum(np.abs(fit.coef_) ** 2, axis=0)
    found = int(near[:, fit.support_].any(axis=1).sum())
    wrong = int((~near[:, fit.support_].any(axis=0)).sum())
    strongest = power.any() and near[:, int(np.argmax(power))].any()
    count = len(given.true)
    return Score(found / count, wrong, float(strongest), 2 * found / (found + wrong + count))


def fitted(given: Task, noise: Any) -> SparseVAE:
    """Return the default estimator with a noise variance, without an intercept."""
    model = SparseVAE(noise_variance=noise, fit_intercept=False)
    return model.fit(given.dictionary, given.responses)


def fits(given: Task) -> dict[str, SparseVAE]:
    """Return the fits of all rules, by name; P is the mean square response."""
    power = float(np.mean(given.responses**2))
    found = {name: fitted(given, name) for name in ("auto", "cv", "cv_1se")}
    least, larger = found["cv"].noise_variance_, found["cv_1se"].noise_variance_
    found["cv + 0.1 P"] = fitted(given, least + 0.1 * power * (least > 1e-3 * power))
    found["cv_1se + 0.03 P"] = fitted(given, larger + 0.03 * power)
    found["√(cv P)"] = fitted(given, float(np.sqrt(least * power)))
    for factor in (2.0, 3.0, 5.0):
        found[f"{factor:g} cv"] = fitted(given, factor * least)
    path = noise_path(given.dictionary, given.responses, cv=False, fit_intercept=False)
    found["stable part"] = fitted(given, path.noise_variances[path.stable_part.stop - 1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS))
    options = parser.parse_args()
    scores: dict[tuple[str, float], list[Score]] = {}
    settings = itertools.product((10.0, 20.0, 40.0), (1, 4), (5, 20), range(options.seeds))
    for decibels, sources, n, seed in settings:
        for kind, share in itertools.product(options.kinds, MISFITS):
            given = task(kind, share, decibels, sources, n, seed)
            for rule, fit in fits(given).items():
                scores.setdefault((rule, share), []).append(score(given, fit))
    print(f"lucidae {lucidae.__version__}, {len(scores['auto', 0.0])} problems a column")
    print("| rule | " + " | ".join(f"misfit {share:.0%}" for share in MISFITS) + " |")
    for rule in dict.fromkeys(rule for rule, _ in scores):
        means = [np.mean(scores[rule, share], axis=0) for share in MISFITS]
        cells = [f"{a:.2f}, {b:.1f}, {c:.2f}; **{f:.2f}**" for a, b, c, f in means]
        print(f"| {rule} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
