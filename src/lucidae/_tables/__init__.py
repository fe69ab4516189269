"""Tables of numbers from files: CSV, TSV, NPY, NPZ and Parquet, with one sentence for a bad one."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np

from lucidae._tables.binary import read_npy, read_npz, read_parquet
from lucidae._tables.table import Table
from lucidae._tables.text import read_text
from lucidae._tables.writing import Sheet, write_sheet

__all__ = ["Sheet", "Table", "read_table", "read_target", "write_sheet"]

READERS: dict[str, Callable[[Path], Table]] = {
    ".csv": read_text,
    ".tsv": read_text,
    ".txt": read_text,
    ".npy": read_npy,
    ".npz": read_npz,
    ".parquet": read_parquet,
}
TARGET_READERS = READERS | {
    ".npy": partial(read_npy, target=True),
    ".npz": partial(read_npz, target=True),
}


def read_table(path: str | os.PathLike[str]) -> Table:
    r"""Read a file of numbers; every problem with it is a `ValueError` of one sentence.

    Parameters
    ----------
    path : path-like
        A file whose suffix is .csv, .tsv, .txt, .npy, .npz or .parquet.

    Returns
    -------
    Table
        At least two rows and one column of finite numbers.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "heights.csv"
    >>> _ = path.write_text("name,cm,kg\nAda,170,60\nEmmy,165,55\n")
    >>> table = read_table(path)
    >>> table.columns, table.left_out
    (('cm', 'kg'), ('name',))
    """
    return _read(Path(path), READERS)


def read_target(path: str | os.PathLike[str]) -> Table:
    """Read responses, as `read_table` reads rows; a vector is one column, ``y`` an array's name."""
    return _read(Path(path), TARGET_READERS)


def _read(file: Path, readers: Mapping[str, Callable[[Path], Table]]) -> Table:
    if not file.is_file():
        raise ValueError(f"There is no file {str(file)!r}.")
    reader = readers.get(file.suffix.lower())
    if reader is None:
        raise ValueError(
            f"{file.name!r} ends in {file.suffix or 'nothing'!r}; expected one of "
            f"{', '.join(sorted(readers))}."
        )
    return _checked(reader(file))


def _checked(table: Table) -> Table:
    rows, columns = table.values.shape
    if rows < 2 or columns < 1:
        raise ValueError(
            f"{table.name!r} holds {rows} rows of {columns} numbers; at least two rows and one "
            "column are needed."
        )
    bad = ~np.isfinite(table.values)
    if bad.any():
        row, column = np.argwhere(bad)[0]
        raise ValueError(
            f"{table.name!r} has {bad.sum()} missing or infinite values, the first in row "
            f"{row + 1}, column {table.columns[column]!r}; fill them or drop those rows first."
        )
    return table
