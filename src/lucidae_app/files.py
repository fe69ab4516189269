"""Output files of the commands: which may be replaced, and tables of results."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer

from lucidae.columns import is_number
from lucidae.io import atomic_path
from lucidae.models import Source, source_of

Matrix = np.ndarray[Any, np.dtype[Any]]

FORMULA = re.compile(r"[=+\-@\t\r]")
"""First character of text that spreadsheets would evaluate as a formula (OWASP, CSV injection)."""


Force = Annotated[
    bool, typer.Option("--force", help="Replace existing output files, whatever they contain.")
]


def check_page(page: Path, inputs: Iterable[Path], force: bool, *, kind: str = "report") -> None:
    """Raise an error if the path `page` of an HTML page is a folder or a file not to be replaced.

    Not to be replaced are the input files (`inputs`) and, without `force`, all files that are not
    pages of lucidae.
    """
    if page.is_dir():
        raise ValueError(
            f"{str(page)!r} is a folder, expected the path of a file: give --out "
            f"{str(page / f'{kind}.html')!r}, for example."
        )
    _refuse_inputs([page], inputs)
    if force or not page.exists():
        return
    with page.open("rb") as stream:
        start = stream.read(4096)
    if b'name="generator" content="lucidae' not in start:
        raise ValueError(
            f"{str(page)!r} exists and is not a {kind} of lucidae: give another path with --out, "
            "or add --force to replace it."
        )


def check_results(
    model: Path, others: Sequence[Path], file: Path, inputs: Iterable[Path], force: bool
) -> None:
    """Raise an error if writing the results of a fit would replace files that must not be lost.

    These files are the inputs and, without `force`, existing results of a fit to another file.
    """
    _refuse_inputs([model, *others], inputs)
    existing = [path for path in (model, *others) if path.exists()]
    if force or not existing:
        return
    known = source_of(model) if model.exists() else None
    if known != Source.of(file):
        raise ValueError(
            f"{str(existing[0])!r} exists and {_origin(known, file)}: give another prefix with "
            "--out, or add --force to replace it."
        )


def _origin(known: Source | None, file: Path) -> str:
    """Return the clause of a message that says to which data file existing results belong."""
    if known is None:
        return f"is not a result for {file.name!r}"
    if known.name == file.name:
        return f"is the result for another file named {file.name!r}"
    return f"is the result for the file {known.name!r}"


def _refuse_inputs(outputs: Sequence[Path], inputs: Iterable[Path]) -> None:
    """Raise an error if one of the output files is also an input file."""
    for file in inputs:
        for output in outputs:
            if output.exists() and file.exists() and output.samefile(file):
                raise ValueError(
                    f"{str(output)!r} is an input file of this command, and the output would "
                    "replace it: give another --out."
                )


@dataclass(frozen=True, slots=True)
class Sheet:
    """Numbers with named columns, and with named rows if the rows are not samples."""

    # (n_rows_of_block, n_columns): the numbers, at least one block; they may be computed while they
    # are written, and are read once
    blocks: Iterable[Matrix]
    columns: tuple[str, ...]  # one name per column
    n_rows: int  # number of rows of all blocks together
    rows: tuple[str, ...] = ()  # one name per row, if there is one block
    title: str = ""  # heading of the column that contains the names of the rows

    def frames(self) -> Iterator[Any]:
        """Yield the blocks as pandas data frames; names of rows, if any, are the first column."""
        for block in self.blocks:
            frame = pd.DataFrame(block, columns=list(self.columns))
            if self.rows:
                frame.insert(0, self.title, list(self.rows), allow_duplicates=True)
            yield frame


def write_sheet(prefix: Path, sheet: Sheet, kind: str) -> Path:
    r"""Write a sheet to a file that `read_table` can read, and return the path of the file.

    The format depends on the suffix `kind` of the input file. Text files give CSV and Parquet gives
    Parquet. NPY and NPZ give NPZ, with the numbers under ``X`` and the names under ``columns`` and
    ``rows``. The file is written completely or not at all.
    """
    path = sheet_path(prefix, kind)
    _, write = WRITERS.get(kind.lower(), TEXT)
    write(path, sheet)
    return path


def sheet_path(prefix: Path, kind: str) -> Path:
    """Return the path `prefix` with the suffix of the format that `write_sheet` writes."""
    suffix, _ = WRITERS.get(kind.lower(), TEXT)
    return prefix.with_name(prefix.name + suffix)


def as_text(cell: Any) -> Any:
    """Return a cell of a CSV file, with an apostrophe in front of text that looks like a formula.

    Spreadsheets would evaluate such text. Numbers and other text are returned unchanged.
    """
    is_formula = isinstance(cell, str) and FORMULA.match(cell) and not is_number(cell, ".")
    return f"'{cell}" if is_formula else cell


def _write_text(path: Path, sheet: Sheet) -> None:
    """Write a sheet as CSV."""
    with (
        atomic_path(path) as temporary,
        temporary.open("w", encoding="utf-8", newline="") as stream,
    ):
        for number, frame in enumerate(sheet.frames()):
            frame.columns = [as_text(name) for name in frame.columns]
            if sheet.rows:
                frame.isetitem(0, [as_text(name) for name in sheet.rows])
            # pandas writes the shortest text that is read back as the same number.
            frame.to_csv(stream, index=False, header=number == 0, lineterminator="\n")


def _write_parquet(path: Path, sheet: Sheet) -> None:
    """Write a sheet as Parquet, each block as a row group."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    tables = (pa.Table.from_pandas(frame, preserve_index=False) for frame in sheet.frames())
    with atomic_path(path) as temporary:
        first = next(tables)
        with parquet.ParquetWriter(temporary, first.schema) as writer:
            for table in chain([first], tables):
                writer.write_table(table)


def _write_arrays(path: Path, sheet: Sheet) -> None:
    """Write a sheet as an NPZ archive with the arrays ``X``, ``columns`` and, if any, ``rows``."""
    with atomic_path(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        with archive.open("X.npy", "w", force_zip64=True) as member:
            for number, block in enumerate(sheet.blocks):
                if number == 0:
                    header = np.lib.format.header_data_from_array_1_0(block)
                    header |= {"shape": (sheet.n_rows, block.shape[1]), "fortran_order": False}
                    np.lib.format.write_array_header_1_0(member, header)
                member.write(np.ascontiguousarray(block).data)
        names = {"columns": sheet.columns} | ({"rows": sheet.rows} if sheet.rows else {})
        for name, texts in names.items():
            with archive.open(f"{name}.npy", "w") as member:
                np.lib.format.write_array(member, np.array(texts), allow_pickle=False)


Writer = Callable[[Path, Sheet], None]
TEXT: tuple[str, Writer] = (".csv", _write_text)
WRITERS: dict[str, tuple[str, Writer]] = {
    ".npy": (".npz", _write_arrays),
    ".npz": (".npz", _write_arrays),
    ".parquet": (".parquet", _write_parquet),
}
"""Suffix of the output file and function that writes it, by the suffix of the input file.

All other input files give CSV."""
