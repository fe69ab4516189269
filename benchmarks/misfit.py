"""A wrong dictionary: sources localised with a lead field that misfits a fifth of the power.

Run with ``python -m benchmarks misfit [--runs 50] [--share 0.2] [--step 10]``. One source in a
spherical head is measured by sensors that are not where the lead field says; they are displaced
until the true source explains all but a fifth of the power of its own field. The dictionary has the
sources of a grid of 10 mm. Printed is how often the strongest source is within one grid step of the
true one, and among its neighbours on the grid (diagonals included), for

* ``held out``: ``SparseVAE(noise_variance="cv")``, the smallest error of held-out sensors,
* ``auto``: ``SparseVAE()``, which raises this noise variance,
* ``stable``: the strongest source of the stable part of ``noise_path``,
* ``best column``: the source whose field fits the measured field best, which no method can beat
  by much: what the displacement does to the field of a single source.

Three kinds of displacement: ``bent`` (a smooth displacement of the helmet that changes its form; a
rigid one is a displacement of the head, so that the source itself would be elsewhere),
``scattered`` (every sensor by itself) and ``turned`` (rigid, for comparison). ``warned`` is the
share of runs in which the certificate of ``held out`` warns that the columns in use, or the
strongest of them, change along the path.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from lucidae import SparseVAE
from lucidae.datasets import make_meg_leadfield
from lucidae.sparsity import noise_path

Floats = np.ndarray[Any, Any]

STEP = 0.01
LENGTH = 0.05  # of the smooth displacements, in metres


class Head(NamedTuple):
    """Sources on a grid, sensors, and the lead field, whose columns have unit norm."""

    sources: Floats
    sensors: Floats
    normals: Floats
    dictionary: Floats


def make_head(n_sensors: int = 102, step: float = STEP) -> Head:
    """Return the grid of sources in the upper half of a shell, with the lead field of a helmet."""
    line = np.arange(-0.08, 0.08 + step / 2, step)
    points = np.stack(np.meshgrid(line, line, line, indexing="ij"), axis=-1).reshape(-1, 3)
    radius = np.linalg.norm(points, axis=1)
    points = points[(radius <= 0.08) & (radius >= 0.03) & (points[:, 2] >= 0)]
    made = make_meg_leadfield(n_sensors, sources=points, return_geometry=True)
    return Head(points, made.sensor_positions, made.sensor_normals, made.leadfield)


def bent(sensors: Floats, rng: np.random.Generator) -> Floats:
    """Return smooth displacements of the sensors without their rigid part."""
    squares = np.sum((sensors[:, None] - sensors) ** 2, axis=-1)
    values, vectors = np.linalg.eigh(np.exp(-squares / (2 * LENGTH**2)))
    field = vectors @ (
        np.sqrt(np.maximum(values, 0))[:, None] * rng.standard_normal((len(values), 3))
    )
    axes = [np.broadcast_to(axis, sensors.shape).ravel() for axis in np.eye(3)]
    axes += [np.cross(axis, sensors).ravel() for axis in np.eye(3)]
    basis = np.linalg.qr(np.array(axes).T)[0]
    flat = field.ravel()
    return (flat - basis @ (basis.T @ flat)).reshape(-1, 3)


def scattered(sensors: Floats, rng: np.random.Generator) -> Floats:
    """Return independent displacements of the sensors."""
    return rng.standard_normal(sensors.shape)


def turned(sensors: Floats, rng: np.random.Generator) -> Floats:
    """Return the displacements of a turn about a random axis, and a shift."""
    return np.cross(rng.standard_normal(3), sensors) + 0.05 * rng.standard_normal(3)


KINDS: dict[str, Callable[[Floats, np.random.Generator], Floats]] = {
    "bent": bent,
    "scattered": scattered,
    "turned": turned,
}


def misfitted(head: Head, source: int, field: Floats, share: float) -> Floats:
    """Return the source's field at sensors displaced until `share` of its power is misfit."""
    unit = field / np.sqrt(np.mean(np.sum(field**2, axis=1)))
    own = head.dictionary[:, source]

    def measured(size: float) -> Floats:
        sensors = head.sensors + size * unit
        column = make_meg_leadfield(
            sensors=(sensors, head.normals), sources=head.sources[[source]], normalize=True
        )
        return np.asarray(column[:, 0])

    low, high = 0.0, 0.001
    while 1 - (measured(high) @ own) ** 2 < share and high < 0.025:
        high *= 1.2
    for _ in range(30):
        middle = (low + high) / 2
        enough = 1 - (measured(middle) @ own) ** 2 >= share
        low, high = (low, middle) if enough else (middle, high)
    return measured(high)


class Outcome(NamedTuple):
    """Offsets in metres of the choices from the true source, and what `held_out` said."""

    misfit: float
    best_column: Floats
    held_out: Floats
    auto: Floats
    stable: Floats
    warned: bool
    n_columns: int  # significant ones of `held_out` and of `auto`
    n_auto: int


def outcome(head: Head, kind: str, seed: int, share: float = 0.2, n: int = 10) -> Outcome:
    """Return where the sources of one simulation are found; noise of 20 dB is added."""
    rng = np.random.default_rng(seed)
    source = int(rng.integers(len(head.sources)))
    field = misfitted(head, source, KINDS[kind](head.sensors, rng), share)
    y = np.outer(field, rng.standard_normal(n))
    y += 0.1 * np.sqrt(np.mean(y**2)) * rng.standard_normal(y.shape)
    y /= np.sqrt(np.mean(y**2))
    held_out, auto = (
        SparseVAE(noise_variance=rule, fit_intercept=False).fit(head.dictionary, y)
        for rule in ("cv", "auto")
    )
    path = noise_path(head.dictionary, y, cv=False, fit_intercept=False)

    def offset(column: int) -> Floats:
        return np.asarray(head.sources[column] - head.sources[source])

    return Outcome(
        1 - float(field @ head.dictionary[:, source]) ** 2,
        offset(int(np.argmax(np.abs(head.dictionary.T @ field)))),
        offset(int(np.argmax(np.sum(held_out.coef_**2, axis=0)))),
        offset(int(np.argmax(np.sum(auto.coef_**2, axis=0)))),
        offset(int(path.strongest[path.stable_part][0])),
        "Warning" in held_out.certificate_["path_stability"].advice,
        int(held_out.support_.size),
        int(auto.support_.size),
    )


def within(offsets: list[Floats], step: float = STEP) -> tuple[float, float, float]:
    """Return the shares of offsets within a grid step, and to a neighbour; the median distance."""
    table = np.array(offsets)
    distances = np.linalg.norm(table, axis=1)
    near = np.abs(table).max(axis=1) <= 1.01 * step
    return float(np.mean(distances <= 1.01 * step)), float(near.mean()), float(np.median(distances))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--share", type=float, default=0.2)
    parser.add_argument("--sensors", type=int, default=102)
    parser.add_argument("--step", type=float, default=10.0, help="of the grid, in millimetres")
    parser.add_argument("--kinds", nargs="*", default=list(KINDS))
    options = parser.parse_args()
    step = options.step / 1e3
    head = make_head(options.sensors, step)
    print(f"{options.sensors} sensors, {len(head.sources)} sources, {options.runs} runs")
    print(f"displaced   choice       ≤ {options.step:2g} mm  neighbour median  warned  columns")
    for kind in options.kinds:
        runs = [outcome(head, kind, seed, options.share) for seed in range(options.runs)]
        warned = float(np.mean([run.warned for run in runs]))
        counts = {"held_out": [run.n_columns for run in runs], "auto": [run.n_auto for run in runs]}
        for name in ("best_column", "held_out", "auto", "stable"):
            close, near, median = within([getattr(run, name) for run in runs], step)
            words = f"{warned:7.0%}" if name == "held_out" else " " * 7
            words += f" {np.median(counts[name]):8.0f}" if name in counts else ""
            label = name.replace("_", " ")
            print(
                f"{kind:<11} {label:<12} {close:7.0%} {near:9.0%} {1e3 * median:5.0f} mm {words}",
                flush=True,
            )


if __name__ == "__main__":
    main()
