"""The areas of the fuzzers, and one seed of each."""

from __future__ import annotations

import importlib
import importlib.util
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from fuzzing.oracle import Finding

AREAS = {
    name: f"fuzzing.{name}"
    for name in (
        "inputs",
        "parameters",
        "arguments",
        "extremes",
        "metamorphic",
        "soundness",
        "damaged_files",
    )
}
"""Module of each area."""


def generator(name: str, seed: int) -> Any:
    """Return the generator of one seed of an area."""
    return np.random.default_rng([zlib.crc32(name.encode()), seed])


def cases(name: str, seed: int) -> Iterator[Any]:
    """Yield the cases of one seed of an area."""
    yield from importlib.import_module(AREAS[name]).cases(generator(name, seed))


def run(name: str, seed: int) -> tuple[int, list[Finding]]:
    """Return the number of cases of one seed, and what was found in them."""
    module, count, findings = importlib.import_module(AREAS[name]), 0, []
    for case in cases(name, seed):
        count += 1
        findings += module.check(case)
    return count, findings
