"""Atomic writes, reading of arrays without pickle, and conversion of values for JSON."""

from __future__ import annotations

import lzma
import math
import os
import tokenize
import uuid
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np


def json_safe(value: Any) -> Any:
    """Return `value` for JSON: arrays as lists, infinities and NaN as strings.

    Examples
    --------
    >>> json_safe([1.0, float("inf")])
    [1.0, 'inf']
    """
    if hasattr(value, "tolist"):  # arrays and scalars of array libraries
        value = value.tolist()
    if isinstance(value, list):
        return [json_safe(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


_DAMAGE = (
    ValueError,
    OSError,
    EOFError,
    KeyError,
    RuntimeError,  # raised by zipfile for encryption and for an unknown compression
    SyntaxError,  # raised by NumPy for a damaged header of an array
    MemoryError,
    lzma.LZMAError,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)
"""What NumPy and zipfile raise for a damaged file."""


@contextmanager
def atomic_path(target: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path next to `target`, which it replaces only if the block succeeds.

    A reader finds the old file or the new one, never an incomplete one, also if the process is
    killed.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with atomic_path(folder / "note.txt") as path:
    ...     _ = path.write_text("whole")
    >>> (folder / "note.txt").read_text()
    'whole'
    """
    destination = Path(target)
    destination.parent.mkdir(parents=True, exist_ok=True)
    temporary = destination.with_name(f".{destination.name}.{uuid.uuid4().hex}{destination.suffix}")
    temporary.touch(exist_ok=False)
    try:
        yield temporary
        _flush_to_disk(temporary)
        temporary.replace(destination)
    finally:
        temporary.unlink(missing_ok=True)


def _flush_to_disk(path: Path) -> None:
    with path.open("r+b") as stream:
        os.fsync(stream.fileno())


def save_arrays(target: str | os.PathLike[str], arrays: Mapping[str, Any]) -> None:
    """Write named NumPy arrays and numbers to an ``.npz`` file, atomically and without pickle."""
    for name, values in arrays.items():
        if np.asarray(values).dtype.hasobject:
            raise ValueError(
                f"{name} contains Python objects; only arrays of numbers and text can be written."
            )
    with atomic_path(target) as temporary, temporary.open("wb") as stream:
        np.savez(stream, **arrays)


def load_arrays(source: str | os.PathLike[str], what: str) -> dict[str, np.ndarray[Any, Any]]:
    """Read what `save_arrays` wrote; nothing in the file is executed.

    Parameters
    ----------
    source : path
        The file.
    what : str
        What the file should be, such as ``"a saved moment"``, for the error message.

    Raises
    ------
    OSError
        If the file does not exist or cannot be read.
    ValueError
        If it is damaged, is not an ``.npz`` file, or contains pickled objects.
    """
    with Path(source).open("rb") as stream:
        return read_arrays(stream, os.fspath(source), what)


def read_arrays(stream: BinaryIO, name: str, what: str) -> dict[str, np.ndarray[Any, Any]]:
    """Read an open ``.npz`` file; `name` is its name in error messages."""
    try:
        return _named_arrays(stream)
    except _DAMAGE as error:
        # NumPy advises to allow pickle for every unknown format, which lucidae never does.
        reason = (
            "it has another format, or contains Python objects."
            if "pickle" in str(error)
            else str(error)
        )
        raise ValueError(f"{name!r} is not {what}, or it is damaged: {reason}") from error


def _named_arrays(stream: BinaryIO) -> dict[str, np.ndarray[Any, Any]]:
    _check_sizes(stream)
    stored = np.load(stream, allow_pickle=False)
    if not isinstance(stored, np.lib.npyio.NpzFile):
        raise ValueError("it contains a single array without a name.")
    with stored:
        arrays = {name: stored[name] for name in stored.files}
    if not all(isinstance(values, np.ndarray) for values in arrays.values()):
        raise ValueError("some of its entries are not arrays.")
    return arrays


def _check_sizes(stream: BinaryIO) -> None:
    """Refuse an archive whose arrays claim more memory than the file has bytes.

    `save_arrays` does not compress, so the bytes on disk bound the memory that reading takes. The
    header of an array states its shape; NumPy would allocate it before it reads the data.
    """
    size = stream.seek(0, os.SEEK_END)
    stream.seek(0)
    if not zipfile.is_zipfile(stream):
        stream.seek(0)
        return
    stream.seek(0)
    with zipfile.ZipFile(stream) as archive:
        for member in archive.infolist():
            with archive.open(member) as entry:
                claimed = max(member.file_size, _claimed_bytes(entry))
            if claimed > size:
                raise ValueError(
                    f"{member.filename} claims {claimed} bytes, but the file has only {size}; "
                    "files of lucidae are not compressed."
                )
    stream.seek(0)


def _claimed_bytes(entry: Any) -> int:
    """Return the number of bytes of an array as its header states it; 0 for another member."""
    try:
        version = np.lib.format.read_magic(entry)
    except ValueError:
        return 0
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    if version not in read:
        raise ValueError(f"it contains an array of format {version}, which is not supported.")
    shape, _, dtype = read[version](entry)
    return math.prod(shape) * dtype.itemsize
