"""Files are written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_path(target: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary path beside `target` that replaces it only when the block succeeds.

    A reader sees the old file or the new one, never half of one, and a killed process leaves
    the old one in place.

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
    handle, name = tempfile.mkstemp(
        dir=destination.parent, prefix=f".{destination.name}.", suffix=destination.suffix
    )
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        _apply_default_permissions(temporary)
        _flush_to_disk(temporary)
        temporary.replace(destination)
    finally:
        temporary.unlink(missing_ok=True)


def _flush_to_disk(path: Path) -> None:
    with path.open("rb") as stream:
        os.fsync(stream.fileno())


def _apply_default_permissions(path: Path) -> None:
    """Replace the private mode of `mkstemp` by what the user's umask asks for."""
    umask = os.umask(0)
    os.umask(umask)
    path.chmod(0o666 & ~umask)
