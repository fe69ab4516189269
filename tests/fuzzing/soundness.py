"""Certificates against brute force: none that holds may be contradicted.

The problems and the brute force are those of ``benchmarks/soundness_*.py``.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from benchmarks import soundness_dropout, soundness_linear, soundness_sparsity

from fuzzing.oracle import Finding
from lucidae.linear import certify, verify


@dataclass(frozen=True, slots=True)
class Problem:
    """One random problem of a family."""

    family: str
    seed: int

    @property
    def program(self) -> str:
        """The line of Python that repeats the problem."""
        return f"from fuzzing import soundness; soundness.{self.family}({self.seed})"


def cases(rng: Any) -> Iterator[Problem]:
    """Yield one problem of each family."""
    for family in FAMILIES:
        yield Problem(family, int(rng.integers(2**31)))


def check(case: Problem) -> list[Finding]:
    """Return the contradictions between a certificate and brute force."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrong = FAMILIES[case.family](case.seed)
    return [
        Finding(f"certificate, {case.family}", kind, detail, case.program) for kind, detail in wrong
    ]


def linear(seed: int) -> list[tuple[str, str]]:
    """Return the contradictions of a linear autoencoder."""
    found: list[str] = []
    limits = verify.DENSE_FEATURES, certify.SMALL_ROWS
    try:
        soundness_linear.problem(seed, Counter(), found)
    finally:
        verify.DENSE_FEATURES, certify.SMALL_ROWS = limits
    return [(" ".join(line.split(":")[-1].split()[:4]), line) for line in found]


def dropout(seed: int) -> list[tuple[str, str]]:
    """Return the contradictions of a dropout network."""
    kind, _, wrong = soundness_dropout.judge(np.random.default_rng(seed))
    return [(wrong, f"{wrong} ({kind} weights)")] if wrong else []


def sparsity(seed: int) -> list[tuple[str, str]]:
    """Return the contradictions of a sparse fit."""
    _, changed, wrong = soundness_sparsity.judge(np.random.default_rng(seed))
    return [(line.partition(",")[0], f"{line} ({changed or 'as fitted'})") for line in wrong]


FAMILIES = {"linear": linear, "dropout": dropout, "sparsity": sparsity}
