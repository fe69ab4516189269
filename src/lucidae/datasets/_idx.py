"""The IDX format of MNIST: a type, the lengths of the axes, then the bytes."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
UNSIGNED_BYTE = 0x08


def decode_idx(content: bytes) -> Bytes:
    """Return the array of unsigned bytes in `content`; it shares its memory, read-only."""
    if len(content) < 4 or content[:3] != bytes([0, 0, UNSIGNED_BYTE]):
        raise ValueError("this is no IDX file of unsigned bytes.")
    axes = content[3]
    header = 4 + 4 * axes
    if len(content) < header:
        raise ValueError(f"the IDX file ends within its header, after {len(content)} bytes.")
    shape = struct.unpack(f">{axes}I", content[4:header])
    expected = header + int(np.prod(shape, dtype=np.int64))
    if len(content) != expected:
        raise ValueError(f"the IDX file has {len(content)} bytes where {shape} needs {expected}.")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def encode_idx(array: Bytes) -> bytes:
    """Return the IDX file of an array of unsigned bytes."""
    header = bytes([0, 0, UNSIGNED_BYTE, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + np.ascontiguousarray(array, dtype=np.uint8).tobytes()
