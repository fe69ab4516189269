"""The quick profile of the fuzzers: the first seeds of every area.

``python3 dev.py fuzz`` runs the same areas for as long as wanted.
"""

import pytest

import fuzzing
from extras import require
from fuzzing import soundness
from fuzzing.files import kinds

for package in ("mpmath", "pandas", "polars", "pyarrow"):
    require(package)

BLOCK = 5
"""Seeds per test."""

BLOCKS = {"inputs": 8, "extremes": 6, "metamorphic": 6, "soundness": 3, "damaged_files": 3}
"""Number of tests of each area."""

QUICK = 2
"""Number of these tests that are not slow."""


@pytest.mark.parametrize(
    ("area", "first"),
    [
        pytest.param(area, BLOCK * block, marks=[pytest.mark.slow] * (block >= QUICK))
        for area, count in BLOCKS.items()
        for block in range(count)
    ],
)
def test_nothing_is_found(area, first):
    found = [
        f"seed {seed}: {finding}"
        for seed in range(first, first + BLOCK)
        for finding in fuzzing.run(area, seed)[1]
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("family", "seed"),
    [
        ("linear", 1349847382),  # a decoder column of 5e-19 times the length of the others
        ("sparsity", 1368826789),  # relevances of a group that differ by 1e-8
    ],
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_brute_force_judges_what_the_certificate_states(family, seed):
    # Long runs found these: the certificate was right, and brute force had another definition.
    assert soundness.FAMILIES[family](seed) == []


def test_intact_files_are_read(tmp_path):
    for name, kind in kinds().items():
        path = tmp_path / f"{name}{kind.suffix}"
        path.write_bytes(kind.content)
        kind.read(path)
