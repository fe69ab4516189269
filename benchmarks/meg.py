"""Simulated MEG and EEG sources, found by `lucidae.mne.sparse_vae` and by methods of MNE.

    python -m benchmarks meg [--jobs 2] [--seeds 20] [--only base SNR] [--minutes 60]
                             [--folder build/meg]
                             [--write docs/benchmarks/meg.md] [--plots docs/results]
    python -m benchmarks meg --leadfield FILE.npz [...]
    python -m benchmarks meg --read results.json --write docs/benchmarks/meg.md --plots docs/results
    python -m benchmarks meg --calls [--seeds 5] [--only base] [--write docs/benchmarks/meg.md]
    python -m benchmarks meg --energies [--seeds 3] [--only base] [--write docs/benchmarks/meg.md]

**Cells.** The base cell has three sources at random points of a grid of about 1000 (11.5 mm apart)
in a spherical head, at least 30 mm from each other, with uncorrelated time courses of 50 samples,
random orientations, and fields of equal size up to a factor exp(0.25 z) with standard normal z; 102
magnetometers with white noise of known variance at 10 dB (ratio of the powers of the whitened
signal and noise); free orientation. Each other cell changes one factor. All methods get the same
evoked response, forward model and noise covariance, and MNE's default depth weighting.

**Figures of merit.** Found sources whose strength (norm of the current over time × norm of the
whitened field) is below 5 % of the strongest one are left out, for all methods. *Localisation*:
distance in mm from each simulated source to the found source that is assigned to it, where the
assignment has the least total distance, only the k strongest found sources take part (k is the
number of simulated ones), and a source without partner within 50 mm counts as 50 mm. *F1*: 2 × hits
/ (simulated + found); a hit is a pair within 15 mm. *Spurious*: found sources that are no hit.
*Amplitude*: relative error of the norm of the current over time, 1 for a source that is no hit.
*Returned*: sources of the estimate, those below 5 % included. *Seconds*: processor time of one call
with one thread; for a method whose parameter is chosen, of the call with the best value alone.

**Peers** are helped: gamma_map and tf_mixed_norm get the best penalty of a few, chosen with the
truth known, and the fastest one if several are equally good; dSPM and eLORETA are told the number
of sources and the signal-to-noise ratio.

**Runs.** Cells, seeds and methods are independent. Each result is stored in a file of the folder,
so that an interrupted run goes on where it ended. Cheap methods are run first, and slow ones seed
by seed, so that with `--minutes` the last seeds of the slow methods are left out; the table says
how many seeds there were.

**Calls** (`--calls`). Processor seconds with one thread: the fastest of three calls of `sparse_vae`
with its defaults, one call of gamma_map with α = 1 (MNE's update_mode=1), and the sum of those with
all penalties that the table tries, of which a user has to choose one. Medians over at most five
recordings; the ratios are those of gamma_map to `sparse_vae`.

**Energies** (`--energies`). gamma_map and `SparseVAE` minimise the same energy of the whitened data
if the three columns of a source share one variance. A second table compares the energies at which
they end, and the seconds until ours is no higher than that of gamma_map.

**A lead field of your own** (`--leadfield`) is a NPZ file with the arrays ``gain`` (channels × 3
sources; the columns are the fields of unit dipoles along x, y, z of the first source, then of the
second one, …), ``positions`` (sources × 3, in metres) and, if it is not "mag", ``kind`` ("mag",
"grad" or "eeg"). The cells are then those whose head is the base one.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._meg_heads import prepare
from benchmarks._meg_runs import (
    CELLS,
    METHODS,
    Cell,
    run,
)
from benchmarks._tables import markdown, write_section

Results = dict[tuple[str, str], dict[int, dict[str, Any]]]
"""Results by cell and method, then by seed."""

OURS = "lucidae"
PEERS = tuple(name for name in METHODS if not name.startswith(OURS))
FIGURES = {
    "localisation": "localisation (mm)",
    "f1": "F1",
    "spurious": "spurious",
    "amplitude": "amplitude error",
    "returned": "returned",
}
BETTER = {"localisation": -1.0, "f1": 1.0}
"""Figures that are compared: 1 if larger values are better, else -1."""


def chosen_cells(arguments: argparse.Namespace) -> list[Cell]:
    """Return the cells of the run: those of a factor or name in `--only`, by default all."""
    cells: Iterable[Cell] = CELLS
    if arguments.leadfield:
        path = str(Path(arguments.leadfield).resolve())
        cells = [
            dataclasses.replace(cell, model=path)
            for cell in CELLS
            if cell.model == "magnetometers" and not cell.truth
        ]
    if arguments.only:
        cells = [cell for cell in cells if {cell.name, cell.factor} & set(arguments.only)]
    found = list(cells)
    if not found:
        known = sorted({name for cell in CELLS for name in (cell.name, cell.factor)})
        raise SystemExit(f"--only {' '.join(arguments.only)}: there are {', '.join(known)}.")
    return found


def work(cells: Sequence[Cell], arguments: argparse.Namespace) -> list[tuple[Cell, int, str]]:
    """Return what is to be run: cheap methods first, and each method seed by seed."""
    names = arguments.methods or list(METHODS)
    unknown = sorted(set(names) - set(METHODS))
    if unknown:
        raise SystemExit(f"--methods: no {', '.join(unknown)}; there are {', '.join(METHODS)}.")
    tasks = [
        (METHODS[name].cost, seed, order, cell, name)
        for order, cell in enumerate(cells)
        for seed in range(arguments.seeds)
        for name in names
    ]
    tasks.sort(key=lambda task: task[:3])
    return [(cell, seed, name) for _, seed, _, cell, name in tasks]


def measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Run all cells, seeds and methods that are not stored yet, and return all results."""
    from joblib import Parallel, delayed

    cells = chosen_cells(arguments)
    folder = str(Path(arguments.folder).resolve())
    deadline = time.time() + 60.0 * arguments.minutes
    heads = sorted({name for cell in cells for name in (cell.model, cell.truth) if name})
    parallel = Parallel(n_jobs=arguments.jobs, batch_size=1, pre_dispatch="all")
    parallel(delayed(prepare)(folder, name) for name in heads if not name.endswith(".npz"))
    tasks = work(cells, arguments)
    print(f"{len(tasks)} runs of {len(cells)} cells", file=sys.stderr, flush=True)
    found = parallel(delayed(run)(folder, *task, deadline) for task in tasks)
    left_out = sum(result is None for result in found)
    if left_out:
        print(f"{left_out} runs were left out at the time limit", file=sys.stderr)
    return [result for result in found if result is not None]


def gathered(results: Iterable[dict[str, Any]]) -> Results:
    """Return the results without errors, by cell and method, then by seed."""
    found: Results = {}
    for result in results:
        if "error" not in result:
            found.setdefault((result["cell"], result["method"]), {})[result["seed"]] = result
    return found


def values(runs: dict[int, dict[str, Any]], figure: str) -> np.ndarray[Any, Any]:
    """Return one figure of all seeds, in their order; NaN where it was not measured."""
    return np.array([runs[seed].get(figure, np.nan) for seed in sorted(runs)], dtype=float)


def spread(numbers: np.ndarray[Any, Any]) -> float:
    """Return the standard error of the mean; NaN for a single number."""
    return float(np.std(numbers, ddof=1) / np.sqrt(numbers.size)) if numbers.size > 1 else np.nan


def advantage(ours: dict[int, Any], theirs: dict[int, Any], figure: str) -> tuple[float, float]:
    """Return by how much a peer is better than we on common seeds, and the standard error.

    Examples
    --------
    >>> ours = {0: {"f1": 0.5}, 1: {"f1": 0.7}}
    >>> theirs = {0: {"f1": 0.8}, 1: {"f1": 1.0}, 2: {"f1": 0.0}}
    >>> advantage(ours, theirs, "f1")[0]
    0.3
    """
    common = sorted(set(ours) & set(theirs))
    differences = np.array([theirs[seed][figure] - ours[seed][figure] for seed in common])
    if not differences.size:
        return np.nan, np.nan
    return round(BETTER[figure] * float(np.mean(differences)), 12), spread(differences)


def is_better(ours: dict[int, Any], theirs: dict[int, Any], figure: str) -> bool:
    """Tell whether a peer is better than we by more than two standard errors."""
    gain, error = advantage(ours, theirs, figure)
    return bool(gain > 0.0 and gain > 2.0 * error)


def entry(numbers: np.ndarray[Any, Any], digits: int, mark: bool) -> str:
    """Return mean and standard error as text, in bold letters if marked."""
    if not np.any(np.isfinite(numbers)):
        return "–"
    text = f"{np.mean(numbers):.{digits}f}"
    if numbers.size > 1:
        text += f" ± {spread(numbers):.{digits}f}"
    return f"**{text}**" if mark else text


def table(results: Results, cells: Iterable[Cell] = CELLS) -> str:
    """Return the F1 of all methods in all cells; that of better peers is in bold letters."""
    names = [name for name in METHODS if any(key[1] == name for key in results)]
    rows = []
    for cell in cells:
        ours = results.get((cell.name, OURS), {})
        entries = []
        for name in names:
            runs = results.get((cell.name, name), {})
            better = name in PEERS and is_better(ours, runs, "f1")
            entries.append(entry(values(runs, "f1"), 2, better))
        if any(found != "–" for found in entries):
            rows.append((cell.name, *entries))
    return markdown(("cell", *names), rows)


def better_peers(results: Results) -> list[str]:
    """Return a sentence for each cell and peer that is better by more than two standard errors."""
    found = []
    for (cell, name), runs in results.items():
        ours = results.get((cell, OURS), {})
        for figure in BETTER:
            if name in PEERS and is_better(ours, runs, figure):
                gain, error = advantage(ours, runs, figure)
                found.append(f"{cell}: {name}, {FIGURES[figure]}, by {gain:.2f} ± {error:.2f}")
    return sorted(found)


def verdict(results: Results) -> list[str]:
    """Return lines that name the cells in which a peer is better than our default."""
    peers = better_peers(results)
    total = len({cell for cell, name in results if name == OURS})
    count = len({peer.split(": ")[0] for peer in peers})
    sentence = (
        f"**A peer is better than `{OURS}` by more than two standard errors in {count} of {total} "
        "cells.**"
    )
    return [sentence, "", *(f"* {peer}." for peer in peers), *([""] if peers else [])]


def summary(results: Results, errors: Sequence[dict[str, Any]]) -> str:
    """Return the sentences below the table."""
    counts = {
        name: sorted({len(runs) for (_, other), runs in results.items() if other == name})
        for name in METHODS
        if any(key[1] == name for key in results)
    }
    seeds = ", ".join(
        f"{name} {' to '.join(map(str, dict.fromkeys((found[0], found[-1]))))}"
        for name, found in counts.items()
    )
    about = (
        "F1, mean ± standard error over the recordings. That of a peer is in bold letters if it is "
        "better than that of `lucidae` on the same recordings by more than two standard errors of "
        f"the mean difference. Recordings of each cell: {seeds}."
    )
    lines = [
        about,
        "",
        *(f"* {name}: {METHODS[name].note}." for name in counts),
        "",
        *verdict(results),
    ]
    if errors:
        lines += ["", f"{len(errors)} runs ended with an error, the first: {errors[0]['error']}"]
    return "\n".join(lines)


def cells_plot(results: Results, path: Path) -> Path:
    """Draw the F1 of all methods in all cells as a table of colours."""
    from lucidae_app.report.style import drawing, new_figure

    cells = [cell.name for cell in CELLS if (cell.name, OURS) in results]
    names = [name for name in METHODS if any(key[1] == name for key in results)]
    scores = np.array(
        [
            [np.mean(values(results.get((cell, name)) or {0: {}}, "f1")) for name in names]
            for cell in cells
        ]
    )
    with drawing():
        figure, axes = new_figure(figsize=(6.4, 1.6 + 0.26 * len(cells)))
        image = axes.imshow(scores, vmin=0.0, vmax=1.0, cmap="viridis", aspect="auto")
        for (row, column), score in np.ndenumerate(scores):
            if np.isfinite(score):
                ink = "black" if score > 0.55 else "white"
                axes.text(column, row, f"{score:.2f}", ha="center", va="center", color=ink, size=8)
        axes.set_yticks(range(len(cells)), cells)
        axes.set_xticks(range(len(names)), names, rotation=40, ha="right")
        axes.grid(False)
        axes.set_title("F1 of the sources")
        figure.colorbar(image, ax=axes, shrink=0.6)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150, transparent=False)
    return path


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="meg", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=20, help="recordings of each cell")
    parser.add_argument("--jobs", type=int, default=1, help="worker processes")
    parser.add_argument("--minutes", type=float, default=1e6, help="no run begins after this time")
    parser.add_argument("--only", nargs="*", help="names of cells or factors")
    parser.add_argument("--methods", nargs="*", help="names of methods")
    parser.add_argument("--folder", default="build/meg", help="folder of forwards and results")
    parser.add_argument("--leadfield", help="NPZ file with a lead field of your own")
    parser.add_argument("--calls", action="store_true", help="compare single calls with gamma_map")
    parser.add_argument("--energies", action="store_true", help="compare energies with gamma_map")
    parser.add_argument("--json", help="file to which all results are written")
    parser.add_argument("--read", help="file of results written by --json; nothing is run")
    parser.add_argument("--write", help="page whose section is replaced by the table")
    parser.add_argument("--plots", help="folder of the plot")
    arguments = parser.parse_args(words)
    if arguments.calls and arguments.energies:
        parser.error("--calls and --energies are two tables: give one of them")
    return arguments


def compare(arguments: argparse.Namespace) -> int:
    """Print the table of `--energies` or `--calls`, and write it to its section of a page."""
    from benchmarks._meg_calls import calls
    from benchmarks._meg_energies import ENERGY_CELLS, energies

    cells = chosen_cells(arguments)
    if arguments.energies and not arguments.only:
        cells = [cell for cell in cells if cell.name in ENERGY_CELLS]
    if arguments.energies:
        section, text = "meg energies", energies(cells, min(arguments.seeds, 3), arguments.folder)
    else:
        section, text = "meg calls", calls(cells, min(arguments.seeds, 5), arguments.folder)
    print(text)
    if arguments.write:
        write_section(arguments.write, section, text)
    return 0


def main(words: Sequence[str] | None = None) -> int:
    arguments = parsed(words)
    if arguments.read:
        found = json.loads(Path(arguments.read).read_text(encoding="utf-8"))
    elif importlib.util.find_spec("mne") is None:
        print("The benchmark meg needs MNE: pip install mne", file=sys.stderr)
        return 2
    elif arguments.energies or arguments.calls:
        return compare(arguments)
    else:
        found = measure(arguments)
    errors = [result for result in found if "error" in result]
    results = gathered(found)
    if errors and not results:
        print(f"All {len(errors)} runs ended with an error: {errors[0]['error']}", file=sys.stderr)
        return 1
    cells = CELLS if arguments.read else chosen_cells(arguments)
    text = f"{table(results, cells)}\n\n{summary(results, errors)}"
    print(text)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(found), encoding="utf-8")
    if arguments.write:
        write_section(arguments.write, "meg", text)
    if arguments.plots:
        print(cells_plot(results, Path(arguments.plots) / "meg-cells.png"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
