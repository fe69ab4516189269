"""Tables of results to files that `read_table` reads again, each whole or not at all."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lucidae._tables.table import Matrix
from lucidae.io.atomic import atomic_path, save_arrays


@dataclass(frozen=True, slots=True)
class Sheet:
    """Numbers under named columns, the rows named too where they are no samples.

    Parameters
    ----------
    values : ndarray of shape (n_rows, n_columns)
        The numbers.
    columns : tuple of str
        One name a column.
    rows : tuple of str, optional
        One name a row.
    title : str, default=""
        What the rows are, as the heading of their names.

    Examples
    --------
    >>> Sheet(np.eye(2), ("a", "b"), ("first", "second"), "row").values.shape
    (2, 2)
    """

    values: Matrix
    columns: tuple[str, ...]
    rows: tuple[str, ...] = ()
    title: str = ""


def write_sheet(prefix: Path, sheet: Sheet, kind: str) -> Path:
    r"""Write a sheet beside `prefix` in the format of files that end in `kind`; return its path.

    Text gives CSV, Parquet gives Parquet, arrays give NPZ with the numbers under ``X`` and the
    names under ``columns`` and ``rows``.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> path = write_sheet(folder / "codes", Sheet(np.eye(2), ("a", "b")), ".txt")
    >>> path.name, path.read_text().splitlines()
    ('codes.csv', ['a,b', '1.0,0.0', '0.0,1.0'])
    """
    suffix, write = WRITERS.get(kind.lower(), (".csv", _write_text))
    path = prefix.with_name(prefix.name + suffix)
    write(path, sheet)
    return path


def _write_text(path: Path, sheet: Sheet) -> None:
    heading = [sheet.title] if sheet.rows else []
    names = [[name] for name in sheet.rows] or [[]] * len(sheet.values)
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([*heading, *sheet.columns])
        # Python writes the shortest text that reads back as the same number.
        writer.writerows(
            [*name, *row.tolist()] for name, row in zip(names, sheet.values, strict=True)
        )


def _write_arrays(path: Path, sheet: Sheet) -> None:
    names = {"rows": np.array(sheet.rows)} if sheet.rows else {}
    save_arrays(path, {"X": sheet.values, "columns": np.array(sheet.columns), **names})


def _write_parquet(path: Path, sheet: Sheet) -> None:
    from pyarrow import Table, array
    from pyarrow.parquet import write_table

    names = {sheet.title: array(sheet.rows)} if sheet.rows else {}
    columns = [*names.values(), *(array(column) for column in sheet.values.T)]
    with atomic_path(path) as temporary:
        write_table(Table.from_arrays(columns, names=[*names, *sheet.columns]), temporary)


WRITERS: dict[str, tuple[str, Callable[[Path, Sheet], None]]] = {
    ".npy": (".npz", _write_arrays),
    ".npz": (".npz", _write_arrays),
    ".parquet": (".parquet", _write_parquet),
}
