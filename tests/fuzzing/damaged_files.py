"""Damaged files, by the fuzzer of `fuzzing.files`."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from typing import Any

from fuzzing.oracle import Finding

COUNT = 20
"""Damaged files per seed."""


def cases(rng: Any) -> Iterator[int]:
    """Yield the seeds of `COUNT` damaged files; none where their fuzzer is missing."""
    if importlib.util.find_spec("fuzzing.files") is not None:
        yield from rng.integers(2**31, size=COUNT).tolist()


def check(case: int) -> list[Finding]:
    """Return what the readers of files did that they may not."""
    files = importlib.import_module("fuzzing.files")
    program = f"from fuzzing.files import fuzz_files; fuzz_files(1, {case})"
    return [
        Finding("files", line.partition("(")[0][:60], line, program)
        for line in files.fuzz_files(1, case)
    ]
