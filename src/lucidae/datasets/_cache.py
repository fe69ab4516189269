"""Where fetched data live, and how a file proves that it is the right one."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from lucidae.io.atomic import atomic_path


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file known by its name, its length in bytes and its SHA-256, uncompressed."""

    name: str
    size: int
    sha256: str


def data_home(folder: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder in which fetched data are kept; it need not exist yet.

    Parameters
    ----------
    folder : path-like, default=None
        A folder of your choice. None: the environment variable ``LUCIDAE_DATA``, or else
        ``lucidae`` in the platform's folder for caches.

    Returns
    -------
    pathlib.Path

    Examples
    --------
    >>> from lucidae.datasets import data_home
    >>> data_home("elsewhere").name
    'elsewhere'
    """
    chosen = folder if folder is not None else os.environ.get("LUCIDAE_DATA")
    return Path(chosen).expanduser() if chosen else _platform_cache() / "lucidae"


def _platform_cache() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def verified(file: DataFile, content: bytes, origin: object) -> bytes:
    """Return `content` if it is that of `file`, else say what is wrong with it."""
    if len(content) != file.size:
        count = f"more than {file.size}" if len(content) > file.size else str(len(content))
        raise ValueError(f"{file.name} from {origin} has {count} bytes, not {file.size}.")
    digest = hashlib.sha256(content).hexdigest()
    if digest != file.sha256:
        raise ValueError(f"{file.name} from {origin} has SHA-256 {digest}, not {file.sha256}.")
    return content


def read_stored(folder: Path, files: Iterable[DataFile]) -> dict[str, bytes]:
    """Return the verified contents of `files` in `folder`, by name."""
    return {file.name: verified(file, (folder / file.name).read_bytes(), folder) for file in files}


def store(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write each content under its name, whole or not at all."""
    try:
        for name, content in contents.items():
            with atomic_path(folder / name) as path:
                path.write_bytes(content)
    except OSError as error:
        raise OSError(
            f"cannot write to {folder} ({error}); set LUCIDAE_DATA to a folder with room that "
            "you may write to."
        ) from error
