"""Reading known files out of folders and archives, without ever unpacking to disk."""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from lucidae.datasets._cache import DataFile, verified

DAMAGED = (EOFError, tarfile.TarError, zlib.error, gzip.BadGzipFile)


def read_files(path: Path, files: Sequence[DataFile]) -> dict[str, bytes]:
    """Return the verified contents of `files` from a folder or a tar archive, by name."""
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; name a folder or a tar archive.")
    try:
        found = read_folder(path, files) if path.is_dir() else read_tar(path, files)
    except DAMAGED as error:
        raise ValueError(f"{path} is damaged or no tar archive ({error}).") from error
    missing = [file.name for file in files if file.name not in found]
    if missing:
        raise FileNotFoundError(f"{path} lacks {', '.join(missing)}.")
    return {file.name: verified(file, found[file.name], path) for file in files}


def read_folder(folder: Path, files: Sequence[DataFile]) -> dict[str, bytes]:
    """Return what `folder` holds of `files`, plain or with the ending ``.gz``."""
    found = {}
    for file in files:
        plain, packed = folder / file.name, folder / f"{file.name}.gz"
        if plain.is_file():
            found[file.name] = plain.read_bytes()
        elif packed.is_file():
            with gzip.open(packed) as stream:
                found[file.name] = stream.read(file.size + 1)
    return found


def read_tar(path: Path, files: Sequence[DataFile]) -> dict[str, bytes]:
    """Return what an archive holds of `files`, in whatever folder inside it.

    Members are read into memory, one by one and no longer than expected, and nothing is
    unpacked: a member called ``../evil``, a link or a device has no effect.
    """
    wanted = {file.name: file for file in files}
    found: dict[str, bytes] = {}
    with tarfile.open(path) as archive:
        for member in archive:
            file = wanted.get(PurePosixPath(member.name).name)
            if file is None or file.name in found or not member.isfile():
                continue
            stream = archive.extractfile(member)
            if stream is not None:
                found[file.name] = stream.read(file.size + 1)
    return found
