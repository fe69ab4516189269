"""Simulated MEG and EEG sources, found by `lucidae.mne.sparse_vae` and by methods of MNE.

    python -m benchmarks meg [--jobs 2] [--seeds 20] [--only base SNR] [--minutes 60]
                             [--folder build/meg]
                             [--write docs/benchmarks/meg.md] [--plots docs/results]
    python -m benchmarks meg --leadfield FILE.npz [...]
    python -m benchmarks meg --read results.json --write docs/benchmarks/meg.md --plots docs/results
    python -m benchmarks meg --times [--default-threads] [--seeds 4] [--only base]
                             [--write docs/benchmarks/meg.md]
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
of sources and the signal-to-noise ratio. Champagne of invertmeeg takes part in the cell with fixed
orientation if it is installed.

**Runs.** Cells, seeds and methods are independent. Each result is stored in a file of the folder,
so that an interrupted run goes on where it ended. Cheap methods are run first, and slow ones seed
by seed, so that with `--minutes` the last seeds of the slow methods are left out; the table says
how many seeds there were.

**Times** (`--times`). `sparse_vae` and gamma_map alone are run, and only the table of the ratios of
their times is printed and written. gamma_map is timed with the best α, which a user does not know,
with α = 1, and with all α that are tried ("all α"), which is what a user pays who has to choose:
gamma_map has no way to choose α. With `--default-threads` the seconds are those of a clock, and the
libraries use as many threads as they do by default, one call at a time: what a user waits for.

**Calls** (`--calls`). Five calls of `sparse_vae` and one of gamma_map (α = 1, MNE's update_mode=1)
in turn, at the default number of threads, in seconds of a clock. The ratio is the seconds of
gamma_map divided by the median of the five before it. Up to five rounds on each of at most five
recordings are counted, fewer if gamma_map takes long.

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
    ALPHAS,
    CELLS,
    METHODS,
    Cell,
    available,
    run,
)
from benchmarks._tables import duration, markdown, write_section

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

TIMED = ("gamma_map 1", "gamma_map 2")
FASTER = 10.0
"""The ratio of the seconds of `TIMED` to ours that is aimed at."""


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
    names = arguments.methods or ([OURS, *TIMED] if arguments.times else list(METHODS))
    unknown = sorted(set(names) - set(METHODS))
    if unknown:
        raise SystemExit(f"--methods: no {', '.join(unknown)}; there are {', '.join(METHODS)}.")
    tasks = [
        (METHODS[name].cost, seed, order, cell, name)
        for order, cell in enumerate(cells)
        for seed in range(arguments.seeds)
        for name in names
        if available(name, cell)
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
    threads = None if arguments.default_threads else 1
    found = parallel(delayed(run)(folder, *task, deadline, threads) for task in tasks)
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


def seconds(runs: dict[int, dict[str, Any]]) -> float:
    """Return the median of the measured seconds; NaN if there are none."""
    measured = values(runs, "seconds")
    measured = measured[np.isfinite(measured)]
    return float(np.median(measured)) if measured.size else np.nan


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


# Times of gamma_map.


BEST, ALL = "best α", "all α"
COLUMNS = (BEST, 1.0, ALL)
"""The choices of α for which gamma_map is timed: the best one, 1, and all of them in turn."""


def seconds_with(run: dict[str, Any], alpha: float | str) -> float:
    """Return the seconds of a run of gamma_map with one α, the best one, or all of them.

    Examples
    --------
    >>> tried = [{"setting": [alpha, 1], "seconds": 1.5 / alpha} for alpha in ALPHAS]
    >>> [seconds_with({"seconds": 0.5, "tried": tried}, alpha) for alpha in (BEST, 1.0, ALL)]
    [0.5, 1.5, 7.15]
    """
    if alpha == BEST:
        return float(run.get("seconds", np.nan))
    tried = {one["setting"][0]: one["seconds"] for one in run.get("tried", [])}
    if alpha == ALL:
        return float(sum(tried.values())) if set(tried) == set(ALPHAS) else np.nan
    return float(tried.get(alpha, np.nan))


def ratio(
    results: Results, cell: str, peer: str, alpha: float | str, part: str = "seconds"
) -> float:
    """Return the seconds of a peer divided by ours: the median over common seeds, or NaN.

    `part` is "seconds" for our whole method, or "preparation" for its preparation of the data.

    Examples
    --------
    >>> ours, theirs = {0: {"seconds": 0.5}}, {0: {"seconds": 6.0}, 1: {"seconds": 1.0}}
    >>> results = {("base", "lucidae"): ours, ("base", "gamma_map 1"): theirs}
    >>> ratio(results, "base", "gamma_map 1", BEST)
    12.0
    """
    ours, theirs = results.get((cell, OURS), {}), results.get((cell, peer), {})
    quotients = np.array(
        [
            seconds_with(theirs[seed], alpha) / float(ours[seed].get(part, np.nan))
            for seed in sorted(set(ours) & set(theirs))
        ]
    )
    quotients = quotients[np.isfinite(quotients)]
    return float(np.median(quotients)) if quotients.size else np.nan


def two_digits(quotient: float) -> str:
    """Return a ratio with two digits, or with all before the decimal point; a dash for NaN.

    Examples
    --------
    >>> [two_digits(each) for each in (0.945, 18.2, 161.0, np.nan)]
    ['0.94', '18', '161', '–']
    """
    if not np.isfinite(quotient):
        return "–"
    return f"{quotient:.0f}" if quotient >= 10.0 else f"{quotient:.2g}"


def speed(results: Results, cells: Iterable[Cell] = CELLS) -> str:
    """Return the ratios of the seconds of gamma_map to ours at free orientation, with a verdict."""
    timed = [peer for peer in TIMED if any(key[1] == peer for key in results)]
    columns = [(peer, alpha, "seconds") for peer in timed for alpha in COLUMNS]
    columns.append((TIMED[0], 1.0, "preparation"))
    rows = []
    for cell in cells:
        quotients = [ratio(results, cell.name, *column) for column in columns]
        if cell.loose == 1.0 and np.any(np.isfinite(quotients)):
            rows.append((cell.name, quotients))
    if not rows:
        return "gamma_map was not run at free orientation."
    header = [
        f"{peer}, {alpha if isinstance(alpha, str) else f'α = {alpha:g}'}"
        for peer, alpha, _ in columns[:-1]
    ]
    measured = [
        [quotients[place] for _, quotients in rows if np.isfinite(quotients[place])]
        for place in range(len(columns))
    ]
    middle = [float(np.median(found)) if found else np.nan for found in measured]
    lines = [*rows, ("median of the cells", middle)]
    shown = [(name, *map(two_digits, qs)) for name, qs in lines]
    counts = "; ".join(
        f"{title}: {sum(q >= FASTER for q in found)} of {len(found)} cells, median {typical:.2g}"
        if found
        else f"{title}: not measured"
        for title, found, typical in zip(header, measured, middle, strict=False)
    )
    bound = f"{TIMED[0]}, α = 1, by our preparation"
    return (
        f"Seconds of gamma_map divided by those of `{OURS}`, at free orientation (median over the "
        f"seeds that both have):\n\n{markdown(('cell', *header, bound), shown)}\n\n"
        f"At least {FASTER:g} times faster than gamma_map: {counts}. The last column divides by "
        f"the seconds of our preparation of the data alone (MNE's whitener and gain): no method "
        "with this preparation can be faster by more."
    )


def summary(
    results: Results, errors: Sequence[dict[str, Any]], cells: Iterable[Cell] = CELLS
) -> str:
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
        speed(results, cells),
    ]
    if errors:
        lines += ["", f"{len(errors)} runs ended with an error, the first: {errors[0]['error']}"]
    missing = [name for name, m in METHODS.items() if importlib.util.find_spec(m.package) is None]
    absent = [name for name in missing if not any(key[1] == name for key in results)]
    if absent:
        lines += ["", f"Not installed: {', '.join(absent)}."]
    return "\n".join(lines)


def counted(results: Results) -> str:
    """Return a sentence with the numbers of seeds of the methods that are timed."""
    numbers = [len(results[key]) for key in results if key[1] in (OURS, *TIMED)]
    if not numbers:
        return "Nothing was run."
    least, most = min(numbers), max(numbers)
    seeds = f"{least}" if least == most else f"{least} to {most}"
    times = [seconds(runs) for (_, name), runs in results.items() if name == OURS]
    ours = f"{duration(min(times))} to {duration(max(times))}" if times else "not measured"
    return f"Seeds of each cell: {seeds}. Seconds of `{OURS}` (medians of the cells): {ours}."


# Plots.


def lines_plot(results: Results, path: Path) -> Path:
    """Draw localisation error and F1 against the number of sources, correlation and SNR."""
    from lucidae_app.report.style import DASHES, SERIES, drawing, new_figure

    axes_of = {
        "sources": ("number of sources", "sources"),
        "correlation": ("correlation of the time courses", "correlation"),
        "SNR": ("signal-to-noise ratio (dB)", "snr"),
    }
    names = [name for name in METHODS if any(key[1] == name for key in results)]
    with drawing():
        figure, grid = new_figure(2, 3, figsize=(9.6, 5.6), sharex="col", sharey="row")
        for column, (factor, (label, attribute)) in enumerate(axes_of.items()):
            cells = [cell for cell in CELLS if cell.factor in (factor, "base")]
            cells.sort(key=lambda cell: getattr(cell, attribute))
            for row, title in enumerate(("localisation", "f1")):
                axes = grid[row, column]
                for number, name in enumerate(names):
                    points = [
                        (getattr(cell, attribute), values(results[cell.name, name], title))
                        for cell in cells
                        if (cell.name, name) in results
                    ]
                    if not points:
                        continue
                    axes.errorbar(
                        [x for x, _ in points],
                        [np.mean(y) for _, y in points],
                        [np.nan_to_num(spread(y)) for _, y in points],
                        label=name,
                        color=SERIES[number % len(SERIES)],
                        linestyle=DASHES[(number // len(SERIES) + number) % len(DASHES)],
                        marker="osD^vP*X<"[number % 9],
                        linewidth=2.4 if name == OURS else 1.2,
                        zorder=3 if name == OURS else 2,
                    )
                if row:
                    axes.set(xlabel=label, ylim=(-0.02, 1.03))
                if not column:
                    axes.set_ylabel(FIGURES[title])
        handles, labels = grid[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 5))
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150, transparent=False)
    return path


def cells_plot(results: Results, path: Path) -> Path:
    """Draw the F1 of all methods in all cells as a table of colours, and their seconds."""
    from lucidae_app.report.style import drawing, new_figure

    cells = [cell.name for cell in CELLS if (cell.name, OURS) in results]
    names = [name for name in METHODS if any(key[1] == name for key in results)]
    scores = np.full((len(cells), len(names)), np.nan)
    times = np.full_like(scores, np.nan)
    for row, cell in enumerate(cells):
        for column, name in enumerate(names):
            runs = results.get((cell, name))
            if runs:
                scores[row, column] = np.mean(values(runs, "f1"))
                times[row, column] = seconds(runs)
    with drawing():
        height = 1.6 + 0.26 * len(cells)
        figure, (left, right) = new_figure(1, 2, figsize=(9.6, height), width_ratios=(1.5, 1.0))
        image = left.imshow(scores, vmin=0.0, vmax=1.0, cmap="viridis", aspect="auto")
        for (row, column), score in np.ndenumerate(scores):
            if np.isfinite(score):
                ink = "black" if score > 0.55 else "white"
                left.text(column, row, f"{score:.2f}", ha="center", va="center", color=ink, size=8)
        left.set_yticks(range(len(cells)), cells)
        left.set_xticks(range(len(names)), names, rotation=40, ha="right")
        left.grid(False)
        left.set_title("F1 of the sources")
        figure.colorbar(image, ax=left, location="right", shrink=0.6)
        for column, name in enumerate(names):
            right.scatter(times[:, column], [column] * len(cells), s=18, alpha=0.7, color="#0072b2")
            if name == OURS:
                right.axhspan(column - 0.4, column + 0.4, color="#dfe3e8", zorder=0)
        right.set_yticks(range(len(names)), names)
        right.invert_yaxis()
        right.set_xscale("log")
        right.set(xlabel="seconds of one call", title="Time, a dot for each cell")
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
    parser.add_argument("--prepare", action="store_true", help="compute the forward models alone")
    parser.add_argument("--times", action="store_true", help="compare times with gamma_map alone")
    parser.add_argument("--default-threads", action="store_true", help="seconds of a clock")
    parser.add_argument("--calls", action="store_true", help="compare single calls with gamma_map")
    parser.add_argument("--energies", action="store_true", help="compare energies with gamma_map")
    parser.add_argument("--json", help="file to which all results are written")
    parser.add_argument("--read", help="file of results written by --json; nothing is run")
    parser.add_argument("--write", help="page whose section is replaced by the table")
    parser.add_argument("--plots", help="folder of the two plots")
    arguments = parser.parse_args(words)
    if arguments.default_threads and (arguments.jobs != 1 or not arguments.times):
        parser.error("--default-threads goes with --times and one job, so that nothing else runs")
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
    for name in sorted({name for cell in cells for name in (cell.model, cell.truth) if name}):
        if not name.endswith(".npz"):
            prepare(arguments.folder, name)
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
    elif arguments.prepare:
        for name in sorted({n for c in chosen_cells(arguments) for n in (c.model, c.truth) if n}):
            print(prepare(arguments.folder, name))
        return 0
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
    text = f"{table(results, cells)}\n\n{summary(results, errors, cells)}"
    text = f"{speed(results, cells)}\n\n{counted(results)}" if arguments.times else text
    print(text)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(found), encoding="utf-8")
    if arguments.write:
        section = "meg waiting" if arguments.default_threads else "meg times"
        write_section(arguments.write, section if arguments.times else "meg", text)
    if arguments.plots:
        print(lines_plot(results, Path(arguments.plots) / "meg-factors.png"))
        print(cells_plot(results, Path(arguments.plots) / "meg-cells.png"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
