"""Results of experiments on disk: one file per run, written atomically and verified when read."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lucidae.io import (
    load_arrays,
    reason_of,
    save_arrays,
)
from lucidae_papers.cells import Arrays, Cell, canonical, digest
from lucidae_papers.results import Measured

FORMAT = 1
WHAT = "a stored result of an experiment"
"""Phrase that error messages use for a file of stored results."""
ABOUT = "about"
"""Name, in the ``.npz`` file, of the JSON text that is stored together with the arrays."""


class Store:
    """A folder of results of experiments.

    An experiment consists of cells: a cell is one run of a computation (its `Work`) with fixed
    settings, such as one seed and one learning rate. Its result is one ``.npz`` file, which is
    named by a digest of the computation and the settings. The arrays and a JSON text (settings,
    versions, machine, seconds) are written together and atomically, so that a process that is
    killed at any moment leaves complete files only. A cell counts as not done if its file is
    damaged, if the content does not belong to the name, or if an earlier version of the computation
    has measured it.

    Parameters
    ----------
    folder : path-like
        Folder of the files; created when the first one is written.

    Examples
    --------
    >>> import tempfile
    >>> from lucidae_papers.cells import Work
    >>> cell = Cell(Work("examples.doubled/1", lambda group, device: []), {"seed": 0})
    >>> store = Store(tempfile.mkdtemp())
    >>> store.load(cell) is None
    True
    >>> store.save(cell, {"values": np.arange(3)}, {"seconds": 0.1})
    >>> store.load(cell).arrays["values"]
    array([0, 1, 2])
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    def path(self, cell: Cell) -> Path:
        """Return the path of the file to which the result of a run (a `Cell`) is written."""
        return self._path(cell.description)

    def _path(self, description: Mapping[str, Any]) -> Path:
        # The first two digits make a folder: no folder has more than a few hundred entries.
        key = digest(description)
        return self.folder / key[:2] / f"{key}.npz"

    def save(self, cell: Cell, arrays: Arrays, about: Mapping[str, Any]) -> None:
        """Write the result of a run (a `Cell`): its arrays, and facts `about` it.

        These facts are, for example, the machine and the duration.
        """
        if ABOUT in arrays:
            raise ValueError(
                f"an array is called {ABOUT!r}, a name reserved for the settings: rename the array."
            )
        subject = {"format": FORMAT, "cell": cell.description, **about}
        text = np.array(json.dumps(subject, sort_keys=True))
        save_arrays(self.path(cell), {**arrays, ABOUT: text})

    def load(self, cell: Cell) -> Measured | None:
        """Return the stored result of a run (a `Cell`).

        The result is None if it is absent, damaged or outdated.
        """
        return self._find(cell, cell.work.version)

    def missing(self, cells: Iterable[Cell]) -> list[Cell]:
        """Return the runs (each a `Cell`) without a valid stored result, each once."""
        return [cell for cell in unique(cells) if self.load(cell) is None]

    def outdated(self, cells: Iterable[Cell]) -> list[Cell]:
        """Return the runs (each a `Cell`) whose only result is of an earlier version.

        The version is that of the function that does the runs.
        """
        return [
            cell
            for cell in self.missing(cells)
            if any(self._find(cell, version) for version in range(1, cell.work.version))
        ]

    def _find(self, cell: Cell, version: int) -> Measured | None:
        """Return the result of a run, if stored by this `version` of its function, or None."""
        description = {"work": f"{cell.work.name}/{version}", "settings": cell.settings}
        try:
            arrays = load_arrays(self._path(description), WHAT)
            about = _about(arrays)
        except (OSError, ValueError):  # absent or damaged
            return None
        # The text inside decides, not the name of the file, which may have been changed.
        if about["cell"] != json.loads(canonical(description)):
            return None
        del arrays[ABOUT]
        return Measured(cell.settings, arrays, about)


def unique(cells: Iterable[Cell]) -> list[Cell]:
    """Return the runs, each once, in the order of their first occurrence."""
    return list({cell.key: cell for cell in cells}.values())


def _about(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON text in `arrays` as a dictionary.

    A `ValueError` is raised if the text is not that of a stored result.
    """
    try:
        about = json.loads(str(arrays[ABOUT]))
        cell = about["cell"]
        known = about["format"] == FORMAT and isinstance(about["seconds"], int | float)
        known = known and isinstance(cell["work"], str) and isinstance(cell["settings"], dict)
        canonical(cell)  # also refuses what JSON cannot express, such as NaN
    except Exception as error:  # any JSON text may be in the file, also one that is nested deeply
        reason = reason_of(error)
        raise ValueError(f"the file does not contain {WHAT}: {reason}.") from error
    if not known:
        raise ValueError(f"the file is not {WHAT} of format {FORMAT}.")
    return dict(about)
