"""Damaged files, by the fuzzer of `fuzzing.files`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fuzzing.files import fuzz_files
from fuzzing.oracle import Finding

COUNT = 40
"""Damaged files per seed."""


def cases(rng: Any) -> Iterator[int]:
    """Yield the seeds of `COUNT` damaged files."""
    yield from rng.integers(2**31, size=COUNT).tolist()


def check(case: int) -> list[Finding]:
    """Return what the readers of files did that they may not."""
    program = f"from fuzzing.files import fuzz_files; fuzz_files(1, {case})"
    return [
        Finding("files", line.partition("(")[0][:60], line, program) for line in fuzz_files(1, case)
    ]
