"""Run the fuzzers for a given time and print what they find.

    python3 dev.py fuzz [--minutes 10] [--area inputs --area files] [--seed 0]

Seeds count up from ``--seed``, one after the other through all areas, so that a run continues where
another ended: give the last seed that it printed. Nothing is written into the tree.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter

import fuzzing


def main() -> int:
    """Run the areas in turn until the time is over; return 1 if anything was found."""
    parser = argparse.ArgumentParser(prog="dev.py fuzz", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--area", action="append", choices=sorted(fuzzing.AREAS))
    parser.add_argument("--seed", type=int, default=0, help="first seed")
    parser.add_argument("--count", type=int, help="number of seeds, instead of a time")
    chosen = parser.parse_args()
    names = chosen.area or sorted(fuzzing.AREAS)
    tried: Counter[str] = Counter()
    found: dict[tuple[str, str, str], int] = {}
    end, seed = time.monotonic() + 60 * chosen.minutes, chosen.seed
    try:
        while seed - chosen.seed < chosen.count if chosen.count else time.monotonic() < end:
            for name in names:
                count, findings = fuzzing.run(name, seed)
                tried[name] += count
                for finding in findings:
                    key = (name, finding.subject, finding.kind)
                    found[key] = found.get(key, 0) + 1
                    if found[key] == 1:
                        print(f"[{name}, seed {seed}] {finding}", flush=True)
            seed += 1
    except KeyboardInterrupt:
        print("interrupted")
    summarise(names, tried, found, chosen.seed, seed)
    return int(bool(found))


def summarise(names, tried, found, first, last) -> None:
    """Print the counts of each area as a table in Markdown."""
    print(f"\nseeds {first} to {last - 1}; continue with --seed {last}\n")
    print("| area | cases | findings | distinct |\n|---|---|---|---|")
    for name in names:
        counts = [count for key, count in found.items() if key[0] == name]
        print(f"| {name} | {tried[name]} | {sum(counts)} | {len(counts)} |")


if __name__ == "__main__":
    raise SystemExit(main())
