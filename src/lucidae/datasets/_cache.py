"""The cache of downloaded files: its folder, and reading and writing verified files."""

from __future__ import annotations

import gzip
import hashlib
import os
import sys
import tarfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from lucidae.io.atomic import atomic_path


@dataclass(frozen=True, slots=True)
class DataFile:
    """Name, length in bytes and SHA-256 checksum by which an uncompressed file is verified."""

    name: str
    size: int
    sha256: str


def data_home(folder: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder in which downloaded data are stored; it may not exist yet.

    Parameters
    ----------
    folder : path-like, default=None
        The folder. If it is None, the folder is that of the environment variable ``LUCIDAE_DATA``;
        if this is not set, it is ``lucidae`` in the platform's folder for caches.

    Returns
    -------
    pathlib.Path
        The folder.

    Examples
    --------
    >>> from lucidae.datasets import data_home
    >>> data_home("elsewhere").name
    'elsewhere'
    """
    chosen = folder if folder is not None else os.environ.get("LUCIDAE_DATA")
    return Path(chosen).expanduser() if chosen else _platform_cache() / "lucidae"


def _platform_cache() -> Path:
    """Return the folder in which the operating system keeps the caches of this user."""
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def verified(file: DataFile, content: bytes, origin: object) -> bytes:
    """Return `content` if it has the length and SHA-256 of `file`; otherwise raise a ValueError.

    `origin` is named in the error as the place from which the content was read.
    """
    if len(content) != file.size:
        count = f"more than {file.size}" if len(content) > file.size else str(len(content))
        raise ValueError(
            f"{file.name} from {origin} has {count} bytes, expected {file.size}: it is not the "
            "original file. Download the original file again."
        )
    digest = hashlib.sha256(content).hexdigest()
    if digest != file.sha256:
        raise ValueError(
            f"{file.name} from {origin} has SHA-256 {digest}, expected {file.sha256}: it is not "
            "the original file. Download the original file again."
        )
    return content


def read_stored(folder: Path, files: Iterable[DataFile]) -> dict[str, bytes]:
    """Return the verified contents of the given files in `folder`, by file name."""
    return {file.name: verified(file, (folder / file.name).read_bytes(), folder) for file in files}


def store(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write files into `folder`; `contents` has their bytes by file name.

    If writing fails, the incomplete file is removed.
    """
    try:
        for name, content in contents.items():
            with atomic_path(folder / name) as path:
                path.write_bytes(content)
    except OSError as error:
        raise OSError(
            f"cannot write to {folder} ({error}); set LUCIDAE_DATA, an environment variable, to a "
            "writable folder with enough space."
        ) from error


DAMAGED = (EOFError, tarfile.TarError, zlib.error, gzip.BadGzipFile)


def read_files(path: Path, files: Sequence[DataFile]) -> dict[str, bytes]:
    """Return the verified contents of the given files from a folder or a tar archive, by name."""
    if not path.exists():
        raise FileNotFoundError(
            f"{path} does not exist; give the path of a folder or a tar archive."
        )
    try:
        found = read_folder(path, files) if path.is_dir() else read_tar(path, files)
    except DAMAGED as error:
        raise ValueError(
            f"{path} is damaged or is not a tar archive ({error}); give another one."
        ) from error
    missing = [file.name for file in files if file.name not in found]
    if missing:
        raise FileNotFoundError(
            f"{path} does not contain {', '.join(missing)}; give a folder or a tar archive with "
            "all files."
        )
    return {file.name: verified(file, found[file.name], path) for file in files}


def read_folder(folder: Path, files: Sequence[DataFile]) -> dict[str, bytes]:
    """Return the contents of those `files` that are in `folder`, by file name; not verified.

    A file may be there as it is, or compressed with ``.gz`` after its name.
    """
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
    """Return the contents of those `files` that are in a tar archive, by file name; not verified.

    They may be in any folder of the archive. Members are read into memory, up to the expected
    length, and nothing is unpacked to disk: a member called ``../evil``, a link or a device has no
    effect.
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
