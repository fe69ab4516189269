"""Tables in files, read with the user's choices."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Real
from typing import Any

from lucidae.rows.files import load_file, warn_of_reading
from lucidae.rows.tables import ReadOptions
from lucidae.validation import check_flag

__all__ = ["read_table"]


def read_table(
    path: Any,
    *,
    header: bool | None = None,
    decimal: str | None = None,
    missing_values: Any = (),
    columns: Any = None,
) -> Any:
    r"""Return the columns of numbers of a file as a pandas data frame.

    The file is read as `fit` reads it. By the options you say what `fit` decides from the file, or
    refuses to decide. A column is what most of its cells are. Other cells in a column of numbers
    are an error that names them; columns of text are left out, and a warning names them. True and
    false are read as 1 and 0.

    Parameters
    ----------
    path : str or path-like
        A file of any kind that `fit` takes, such as ``.csv``, ``.tsv``, ``.parquet``, ``.npy`` or
        ``.h5``.
    header : bool, optional
        Whether the first line of a text file contains the names of the columns. By default this is
        decided from the first lines.
    decimal : {".", ","}, optional
        The decimal sign of a text file. By default it is decided from the first lines; if it is the
        comma, points between groups of three digits are removed.
    missing_values : str, number, or sequence of these, default=()
        Cells that mean a missing value, such as ``["-", "12.5 k", -999]``, besides empty cells and
        NA, N/A, NaN, null, none, ? and those of `pandas.read_csv`. Numbers are compared as numbers.
    columns : str, int, or sequence of these, optional
        The columns to read, by name or by 0-based index. By default all columns of numbers except
        an index of the rows.

    Returns
    -------
    pandas.DataFrame
        The numbers; missing values are NaN.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from lucidae.datasets import read_table
    >>> path = Path(tempfile.mkdtemp()) / "typo.csv"
    >>> _ = path.write_text("price,size\n12.5 k,3\n13,4\n15,5\n")
    >>> read_table(path, missing_values="12.5 k")
       price  size
    0    NaN   3.0
    1   13.0   4.0
    2   15.0   5.0
    """
    try:
        import pandas as pd
    except ImportError:
        raise ValueError("read_table needs pandas: pip install pandas") from None
    chosen = () if columns is None else tuple(map(str, _listed(columns, "columns")))
    given = tuple(_listed(missing_values, "missing_values"))
    if header is not None:
        check_flag(header, "header")
    data, rows = load_file(path, ReadOptions(header, chosen, decimal, (), given), missing=True)
    warn_of_reading(data)
    assert data.chosen is not None, "a file has columns"
    return pd.DataFrame(rows, columns=list(data.chosen.names))


def _listed(given: Any, name: str) -> list[Any]:
    """Return one text or number, or several of them, as a list."""
    listed = [given] if isinstance(given, str | Real) else given
    if not isinstance(listed, Iterable) or not all(isinstance(one, str | Real) for one in listed):
        raise ValueError(f"{name}={given!r} was given, expected texts or numbers.")
    return list(listed)
