"""Damage to files: one sentence for the user, a cell that is not done for the store."""

import pytest

from extras import require

for name in ("pandas", "pyarrow"):
    require(name)

from fuzzing.files import fuzz_files, kinds


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[pytest.mark.slow] * (seed > 3)) for seed in range(15)]
)
def test_damaged_files_are_refused_in_one_sentence(seed):
    assert fuzz_files(100, seed) == []


def test_intact_files_are_read(tmp_path):
    for name, kind in kinds().items():
        path = tmp_path / f"{name}{kind.suffix}"
        path.write_bytes(kind.content)
        kind.read(path)
