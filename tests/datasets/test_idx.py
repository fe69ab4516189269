"""The IDX format, to and fro, and what is refused."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from lucidae.datasets._idx import decode_idx, encode_idx


@pytest.mark.parametrize("shape", [(3,), (2, 4, 5), (0, 2)])
def test_idx_round_trip(shape):
    array = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    assert_array_equal(decode_idx(encode_idx(array)), array)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "no IDX file"),
        (b"\x00\x00\x0d\x01" + bytes(4), "no IDX file"),
        (b"\x00\x00\x08\x03" + bytes(5), "within its header"),
        (b"\x00\x00\x08\x01\x00\x00\x00\x05abc", "11 bytes where"),
    ],
)
def test_idx_nonsense_is_refused(content, words):
    with pytest.raises(ValueError, match=words):
        decode_idx(content)
