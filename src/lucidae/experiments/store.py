"""Finished cells on disk: one file each, whole or absent, verified whenever it is read."""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lucidae.experiments.declaration import Arrays, Cell, Measured
from lucidae.io.atomic import atomic_path, load_arrays, read_arrays, save_arrays

__all__ = ["Store"]

FORMAT = 1
ABOUT = "about"
"""Name of the JSON text that travels in the same file as the arrays."""

LARGEST_MEMBER = 1 << 28
"""No stored cell has more bytes than this; a packed file that claims so is refused."""


class Store:
    """A folder of finished cells.

    A cell is one ``.npz`` file named by the digest of its exact settings. The arrays and a JSON
    text (settings, versions, machine, seconds) are written together and atomically, so that a
    process killed at any moment leaves whole cells only. A file that is damaged, or that holds
    another cell than its name says, is refused: the cell counts as not done.

    Parameters
    ----------
    folder : path-like
        Where the cells are; made when the first one is written.

    Examples
    --------
    >>> import tempfile
    >>> store, cell = Store(tempfile.mkdtemp()), Cell("math:sqrt", {"seed": 0})
    >>> store.load(cell) is None
    True
    >>> store.save(cell, {"values": np.arange(3)}, {"seconds": 0.1})
    >>> store.load(cell).arrays["values"]
    array([0, 1, 2])
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    def path(self, cell: Cell) -> Path:
        """Return where a cell is kept."""
        return self.folder / cell.key[:2] / f"{cell.key}.npz"

    def save(self, cell: Cell, arrays: Arrays, about: Mapping[str, Any]) -> None:
        """Write a finished cell."""
        if ABOUT in arrays:
            raise ValueError(f"{ABOUT!r} names the settings; give the array another name.")
        subject = {"format": FORMAT, "cell": json.loads(cell.canonical), **about}
        text = np.array(json.dumps(subject, sort_keys=True))
        save_arrays(self.path(cell), {**arrays, ABOUT: text})

    def load(self, cell: Cell) -> Measured | None:
        """Return a finished cell, or None when it is absent, damaged or another one."""
        try:
            arrays = load_arrays(self.path(cell), "a finished cell")
            about = _about(arrays)
        except (OSError, ValueError):
            return None
        if about["cell"] != json.loads(cell.canonical):
            return None
        del arrays[ABOUT]
        return Measured(cell.settings, arrays, about)

    def missing(self, cells: Iterable[Cell]) -> list[Cell]:
        """Return the cells that are not done, each once."""
        return [cell for cell in unique(cells) if self.load(cell) is None]

    def pack(self, target: str | os.PathLike[str], cells: Iterable[Cell]) -> int:
        """Write the finished ones of `cells` to one file that can travel; return their number."""
        done = [cell for cell in unique(cells) if self.load(cell) is not None]
        with (
            atomic_path(target) as temporary,
            zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive,
        ):
            for cell in done:
                archive.writestr(f"{cell.key}.npz", self.path(cell).read_bytes())
        return len(done)

    def unpack(self, source: str | os.PathLike[str]) -> int:
        """Take in the cells of a packed file, each verified; return their number.

        No path in the file is followed: a cell goes where its settings say.
        """
        taken = 0
        try:
            with zipfile.ZipFile(source) as archive:
                for member in archive.infolist():
                    self._take_in(archive, member, source)
                    taken += 1
        except zipfile.BadZipFile as error:
            raise ValueError(f"{os.fspath(source)!r} is no packed store: {error}") from error
        return taken

    def _take_in(self, archive: zipfile.ZipFile, member: zipfile.ZipInfo, source: Any) -> None:
        if member.file_size > LARGEST_MEMBER:
            raise ValueError(f"{member.filename} in {source} is too large for a cell.")
        content = archive.read(member)
        name = f"{member.filename} in {os.fspath(source)}"
        about = _about(read_arrays(io.BytesIO(content), name, "a finished cell"))
        cell = Cell(about["cell"]["work"], about["cell"]["settings"])
        with atomic_path(self.path(cell)) as temporary:
            temporary.write_bytes(content)


def unique(cells: Iterable[Cell]) -> list[Cell]:
    """Return the cells without repetition, in their first order."""
    return list({cell.key: cell for cell in cells}.values())


def _about(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON text of a file, or say that it is none of ours."""
    try:
        about = json.loads(str(arrays[ABOUT]))
        known = about["format"] == FORMAT and "seconds" in about and "settings" in about["cell"]
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"the file holds no finished cell: {error}") from error
    if not known:
        raise ValueError(f"the file has another format than {FORMAT}.")
    return dict(about)
