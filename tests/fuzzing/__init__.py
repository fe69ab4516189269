"""Fuzzers of lucidae, one module per area; `python3 dev.py fuzz` runs them for minutes or hours.

Each area has a function ``cases(rng)`` that yields the cases of one seed, and a function
``check(case)`` that returns the findings of one case. Both are deterministic: the seed of a finding
repeats it.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from fuzzing.oracle import Finding

AREAS = ("inputs", "extremes", "metamorphic", "soundness", "damaged_files")
"""Modules of this package, one per area."""


def cases(name: str, seed: int) -> Iterator[Any]:
    """Yield the cases of one seed of an area."""
    rng = np.random.default_rng([zlib.crc32(name.encode()), seed])
    yield from importlib.import_module(f"fuzzing.{name}").cases(rng)


def run(name: str, seed: int) -> tuple[int, list[Finding]]:
    """Return the number of cases of one seed, and what was found in them."""
    module, count, findings = importlib.import_module(f"fuzzing.{name}"), 0, []
    for case in cases(name, seed):
        count += 1
        findings += module.check(case)
    return count, findings
