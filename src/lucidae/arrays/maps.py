"""Memory maps: whether their file has become too short to be read, and the memory of their pages.

The operating system ends a process that reads a page behind the end of a mapped file, without an
error that Python could handle. The size of the file has to be compared before the pages are read.
"""

from __future__ import annotations

import mmap
from typing import Any, NamedTuple

import numpy as np

__all__ = ["forget_pages", "missing_bytes"]


class _MappedPart(NamedTuple):
    """A mapping of a file, and the position in the file at which an array in it ends."""

    mapping: mmap.mmap
    end: int


def missing_bytes(array: Any) -> int:
    """Return how many bytes of a mapped array are behind the present end of its file.

    The result is 0 for an array that is not (a view of) a NumPy memory map.
    """
    part = _mapped_part(array)
    return 0 if part is None else max(0, part.end - part.mapping.size())


def forget_pages(array: np.memmap[Any, Any]) -> None:
    """Release the pages of a memory map that are in memory; they are read again when needed.

    The changes of a copy-on-write map (mode ``"c"``) are in memory only, so its pages stay.
    """
    part = _mapped_part(array)
    advice = getattr(mmap, "MADV_DONTNEED", None)
    if part is not None and advice is not None and array.mode != "c":
        part.mapping.madvise(advice)


def _mapped_part(array: Any) -> _MappedPart | None:
    """Return the mapping in which an array lies, and where the array ends in the file."""
    owner, found = array, None
    while isinstance(owner, np.ndarray):
        if isinstance(owner, np.memmap):
            found = owner
        owner = owner.base
    if found is None or not isinstance(owner, mmap.mmap) or not array.size:
        return None
    # A mapping begins at the last page boundary before the offset that was asked for.
    begin = found.offset - found.offset % mmap.ALLOCATIONGRANULARITY
    inside = np.lib.array_utils.byte_bounds(array)[1]
    inside -= np.frombuffer(owner, dtype=np.uint8).ctypes.data
    return _MappedPart(owner, begin + inside)
