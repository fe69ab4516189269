"""How many bytes of a memory map are behind the end of its file."""

import os

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from lucidae.arrays.maps import forget_pages, missing_bytes


@pytest.mark.parametrize("offset", [0, 24, 5000])
def test_missing_bytes_are_those_behind_the_end_of_the_file(offset, tmp_path):
    values = np.arange(4000.0)
    (tmp_path / "x").write_bytes(bytes(offset) + values.tobytes())
    mapped = np.memmap(tmp_path / "x", dtype=float, mode="r", offset=offset, shape=(1000, 4))
    parts = (mapped, mapped[10:900], mapped[::7, 1:3], np.asarray(mapped)[:500], mapped.T)
    assert [missing_bytes(part) for part in parts] == [0] * 5
    os.truncate(tmp_path / "x", offset + 800)
    last = [mapped[-1, -1:], mapped[899, -1:], mapped[994, 2:3], mapped[499, -1:], mapped[-1, -1:]]
    ends = [one.ctypes.data - mapped.ctypes.data + 8 for one in last]
    assert [missing_bytes(part) for part in parts] == [end - 800 for end in ends]
    assert missing_bytes(mapped[:25]) == 0
    assert missing_bytes(mapped[:26]) == 32


def test_arrays_in_memory_miss_nothing():
    values = np.eye(3)
    assert missing_bytes(values) == missing_bytes(values[1:]) == missing_bytes([1.0]) == 0


@pytest.mark.parametrize("mode", ["r", "r+", "c"])
def test_forgotten_pages_are_read_again(mode, tmp_path):
    np.save(tmp_path / "x.npy", np.arange(4000.0))
    mapped = np.load(tmp_path / "x.npy", mmap_mode=mode)
    if mode != "r":
        mapped[5] = -1.0
    before = np.array(mapped)
    forget_pages(mapped)
    assert_array_equal(mapped, before)
