"""Atomic writes, reading of arrays without pickle, and conversion of values for JSON."""

from __future__ import annotations

import errno
import math
import os
import stat
import uuid
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

Arrays = dict[str, np.ndarray[Any, Any]]

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers of a full file system, of a used-up quota, and of a file that is too large."""

EXPANSION = 200
"""Largest allowed ratio of the size of the content that a compressed file states to the size of the
file."""

SMALL = 1 << 28
"""Number of bytes (256 MiB) of content up to which a compressed file is accepted whatever its own
size."""


def json_safe(value: Any) -> Any:
    """Return `value` in a form that JSON can store: arrays as lists, infinities and NaN as text."""
    if hasattr(value, "tolist"):  # arrays and scalars of array libraries
        value = value.tolist()
    if isinstance(value, list):
        return [json_safe(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


@contextmanager
def atomic_path(target: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path; the file written there replaces `target` if no error is raised.

    The replacement happens at the end of the ``with`` block. A reader finds the old file or the new
    one, never an incomplete one, also if the process is killed. As with `open`, a symbolic link
    stays and the file it points to is replaced, an existing file keeps its mode, a new one gets the
    mode that the user's umask gives, and a read-only file is refused.
    """
    destination = Path(os.path.realpath(target))
    mode = _mode_to_keep(destination)
    destination.parent.mkdir(parents=True, exist_ok=True)
    # The name does not repeat that of the target, which may be as long as the system allows.
    suffix = destination.suffix if len(destination.suffix) <= 16 else ""
    temporary = destination.with_name(f".{uuid.uuid4().hex}{suffix}")
    try:
        temporary.touch(exist_ok=False)
        yield temporary
        with temporary.open("r+b") as stream:  # wait until the content is on the disk
            os.fsync(stream.fileno())
        if mode is not None:
            temporary.chmod(mode)
        temporary.replace(destination)
    except Exception as error:
        if _is_without_room(error):
            words = (
                "The disk is too full for this file: delete other files, or write to another disk"
            )
            raise OSError(errno.ENOSPC, words, str(destination)) from error
        if isinstance(error, OSError) and error.filename == str(temporary):
            error.filename = str(destination)  # the name that the caller knows
        raise
    finally:
        temporary.unlink(missing_ok=True)


def _mode_to_keep(destination: Path) -> int | None:
    """Return the permission bits of an existing file, or None if the file does not exist.

    Raise an error for a folder, a device or a read-only file. The operating system would allow a
    read-only file to be replaced, so its permission is tested here.
    """
    try:
        found = destination.stat()
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(
            errno.EISDIR, "The path is a folder, expected a file", str(destination)
        )
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "The path is not a regular file", str(destination))
    if not os.access(destination, os.W_OK):
        raise PermissionError(errno.EACCES, "The file is read-only", str(destination))
    return stat.S_IMODE(found.st_mode)


def _is_without_room(error: BaseException | None) -> bool:
    """Return whether the disk is full according to an error or an earlier error that led to it."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            return True
        error = error.__cause__ or error.__context__
    return False


def size_in_words(count: int) -> str:
    """Return a number of bytes as text with a unit."""
    if count >= 10**15:
        return "more than 1000 TB"
    for unit, factor in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count} bytes"


def save_arrays(target: str | os.PathLike[str], arrays: Mapping[str, Any]) -> None:
    """Write named NumPy arrays and numbers to an ``.npz`` file, atomically and without pickle."""
    for name, values in arrays.items():
        if np.asarray(values).dtype.hasobject:
            raise ValueError(
                f"{name} contains Python objects, which cannot be written; give an array of "
                "numbers or text."
            )
    with atomic_path(target) as temporary, temporary.open("wb") as stream:
        np.savez(stream, **arrays)


def load_arrays(source: str | os.PathLike[str], what: str) -> Arrays:
    """Return the arrays that `save_arrays` wrote, by name; no code in the file is executed."""
    with Path(source).open("rb") as stream:
        return read_arrays(stream, os.fspath(source), what)


def read_arrays(stream: BinaryIO, name: str, what: str) -> Arrays:
    """Return all arrays of an open ``.npz`` file that `save_arrays` wrote, by name.

    `save_arrays` does not compress, so the size of the file bounds the memory that is needed. A
    file that states a larger content is refused before its arrays are read.
    """
    try:
        size = stream.seek(0, os.SEEK_END)
        with zipfile.ZipFile(stream) as archive:
            if any(info.compress_type != zipfile.ZIP_STORED for info in archive.infolist()):
                raise ValueError(
                    "the file is compressed, but lucidae writes uncompressed files only."
                )
            require_size(sum(info.file_size for info in archive.infolist()), size)
            return {
                info.filename.removesuffix(".npy"): read_member(archive, info, size)
                for info in archive.infolist()
            }
    # NumPy and zipfile raise more than ten kinds of errors for damaged files, among them
    # MemoryError, SyntaxError and RecursionError: all of them mean that the file cannot be read.
    except Exception as error:
        raise ValueError(
            f"{name!r} is not {what}, or it is damaged: {reason_of(error)}."
        ) from error


def open_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Any:
    """Return an open stream of one file of a ZIP archive, stored or compressed by deflate.

    Other methods are refused, because the decoder of LZMA would reserve as much memory as the
    archive asks for.
    """
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(
            f"{info.filename} is compressed by a method other than deflate, which is not supported"
        )
    return archive.open(info)


def read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, limit: int) -> Any:
    """Return one array of a ZIP archive; an array of more than `limit` bytes is an error.

    NumPy reserves the memory of an array before it reads the data, so the size that the array's
    header states is tested first.
    """
    with open_member(archive, info) as entry:
        require_size(max(info.file_size, claimed_bytes(entry)), limit)
    with open_member(archive, info) as entry:
        array = np.lib.format.read_array(entry, allow_pickle=False)
        if entry.read(1):  # this also verifies the check sum, which zipfile does at the end
            raise ValueError(f"{info.filename} contains further bytes after its array")
    return array


def require_size(claimed: int, limit: int) -> None:
    """Raise ValueError if the size `claimed` that a file states is above `limit`, both in bytes."""
    if claimed > limit:
        raise ValueError(
            f"the header of the file states that it contains {size_in_words(claimed)}, expected at "
            f"most {size_in_words(limit)} for a file of this size"
        )


def claimed_bytes(entry: Any) -> int:
    """Return the number of bytes of an array that the header of its NPY file states."""
    shape, _, dtype = array_header(entry)
    return math.prod(shape) * max(dtype.itemsize, 1)


def array_header(entry: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, whether in Fortran order, and type of an array from its NPY header."""
    version = np.lib.format.read_magic(entry)
    read: dict[tuple[int, int], Callable[[Any], Any]] = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    if version not in read:
        raise ValueError(f"the file contains an array of format {version}, which is not supported")
    return read[version](entry)  # type: ignore[no-any-return]


def reason_of(error: Exception) -> str:
    """Return the first line of an error's message without its full stop, as part of a sentence.

    NumPy's advice to allow pickle is replaced by a plain reason.
    """
    if "pickle" in str(error) or "Object arrays" in str(error):
        # NumPy advises to allow pickle for every unknown format, which lucidae never does.
        return "the file has another format, or contains Python objects"
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
