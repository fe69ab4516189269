"""Writing of result tables in the format of the input file: CSV, NPZ or Parquet (extra `cli`)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lucidae.io.atomic import atomic_path, save_arrays

__all__ = ["Sheet", "as_text", "sheet_path", "write_sheet"]

Matrix = np.ndarray[Any, np.dtype[Any]]

FORMULA = re.compile(r"[=+\-@\t\r]")
"""First character of text that spreadsheets would evaluate as a formula (OWASP, CSV injection)."""
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Sheet:
    """Numbers with named columns, and with named rows if the rows are not samples.

    Parameters
    ----------
    values : ndarray of shape (n_rows, n_columns)
        The numbers.
    columns : tuple of str
        One name per column.
    rows : tuple of str, optional
        One name per row.
    title : str, default=""
        Heading of the column that contains the names of the rows.

    Examples
    --------
    >>> Sheet(np.eye(2), ("a", "b"), ("first", "second"), "row").values.shape
    (2, 2)
    """

    values: Matrix
    columns: tuple[str, ...]
    rows: tuple[str, ...] = ()
    title: str = ""

    def to_frame(self) -> Any:
        """Return the sheet as a pandas data frame; names of rows, if any, are its first column."""
        frame = pd.DataFrame(self.values, columns=list(self.columns))
        if self.rows:
            frame.insert(0, self.title, list(self.rows), allow_duplicates=True)
        return frame


def write_sheet(prefix: Path, sheet: Sheet, kind: str) -> Path:
    r"""Write a sheet to a file that `read_table` can read, and return the path of the file.

    The format depends on the suffix `kind` of the input file. Text files give CSV and Parquet gives
    Parquet. NPY and NPZ give NPZ, with the numbers under ``X`` and the names under ``columns`` and
    ``rows``. The file is written completely or not at all.

    Parameters
    ----------
    prefix : Path
        The path of the file without its suffix.
    sheet : Sheet
        The numbers and names to write.
    kind : str
        Suffix of the input file, such as ``".csv"``.

    Returns
    -------
    Path
        The path of the file, with its suffix.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> path = write_sheet(folder / "codes", Sheet(np.eye(2), ("a", "b")), ".txt")
    >>> path.name, path.read_text().splitlines()
    ('codes.csv', ['a,b', '1.0,0.0', '0.0,1.0'])
    """
    path = sheet_path(prefix, kind)
    _, write = WRITERS.get(kind.lower(), TEXT)
    write(path, sheet)
    return path


def sheet_path(prefix: Path, kind: str) -> Path:
    """Return the path `prefix` with the suffix of the format that `write_sheet` writes.

    `kind` is the suffix of the input file, such as ``".csv"``.
    """
    suffix, _ = WRITERS.get(kind.lower(), TEXT)
    return prefix.with_name(prefix.name + suffix)


def as_text(cell: Any) -> Any:
    """Return a cell of a CSV file, with an apostrophe in front of text that looks like a formula.

    Spreadsheets would evaluate such text. Numbers and other text are returned unchanged.

    Examples
    --------
    >>> as_text("=1+1"), as_text("-1.5"), as_text("height"), as_text(-2.0)
    ("'=1+1", '-1.5', 'height', -2.0)
    """
    is_formula = isinstance(cell, str) and FORMULA.match(cell) and not NUMBER.fullmatch(cell)
    return f"'{cell}" if is_formula else cell


def _write_text(path: Path, sheet: Sheet) -> None:
    """Write a sheet as CSV."""
    with atomic_path(path) as temporary:
        frame = sheet.to_frame()
        frame.columns = [as_text(name) for name in frame.columns]
        if sheet.rows:
            frame.isetitem(0, [as_text(name) for name in sheet.rows])
        # pandas writes the shortest text that is read back as the same number.
        frame.to_csv(temporary, index=False, lineterminator="\n")


def _write_parquet(path: Path, sheet: Sheet) -> None:
    """Write a sheet as Parquet."""
    with atomic_path(path) as temporary:
        sheet.to_frame().to_parquet(temporary, engine="pyarrow", index=False)


def _write_arrays(path: Path, sheet: Sheet) -> None:
    """Write a sheet as an NPZ archive with the arrays ``X``, ``columns`` and, if any, ``rows``."""
    names = {"rows": np.array(sheet.rows)} if sheet.rows else {}
    save_arrays(path, {"X": sheet.values, "columns": np.array(sheet.columns), **names})


Writer = Callable[[Path, Sheet], None]
TEXT: tuple[str, Writer] = (".csv", _write_text)
WRITERS: dict[str, tuple[str, Writer]] = {
    ".npy": (".npz", _write_arrays),
    ".npz": (".npz", _write_arrays),
    ".parquet": (".parquet", _write_parquet),
}
"""Suffix of the output file and function that writes it, by the suffix of the input file.

All other input files give CSV."""
