"""Text files that are read in blocks of rows, by the rules of `lucidae.io` (needs pandas)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lucidae.data.blocks import PARTS, RowBlocks, float_reference
from lucidae.io.tables import ReadOptions, choose_columns
from lucidae.io.text import (
    AS_NUMBERS,
    AS_TEXT,
    as_one_sentence,
    check_width,
    has_short_rows,
    header_sentence,
    is_index,
    parse_text,
    parsing,
    readable_text,
    refuse_ragged,
    text_layout,
    to_numbers,
    unique_names,
)

__all__ = ["TextBlocks"]

CELL_BYTES = 16
"""Number of bytes of memory per number while a text file is parsed, its text included."""

FIRST_ROWS = 1000
"""Number of rows from which the columns of numbers are recognised."""

NUMBERS = "iuf"
"""Letters by which NumPy denotes the kinds of dtypes of numbers (``dtype.kind``)."""


class TextBlocks(RowBlocks):
    """The columns of numbers of a text file, read by pandas in chunks.

    Delimiter, decimal separator and header are recognised as by `lucidae.io.text`. The first rows
    decide which columns contain numbers; text in a later row of these columns is an error.
    """

    def __init__(
        self,
        file: Path,
        *,
        flat: bool = False,
        first_row: int = 0,
        options: ReadOptions | None = None,
    ) -> None:
        options = options or ReadOptions()
        self.file = file
        with readable_text(file):
            self.layout = text_layout(file, options.header, options.decimal)
            first = next(self._frames(FIRST_ROWS, range(len(self.layout.first))), None)
        if first is None:
            raise ValueError(f"{file.name!r} contains no rows: at least one row is needed.")
        check_width(file, first, self.layout)
        given = self.layout.first if self.layout.header else ("",) * len(self.layout.first)
        names = unique_names(given)
        index = 0 if self.layout.header and is_index(given[0], first[0]) else None
        chosen = choose_columns(
            file.name, first.set_axis(names, axis=1), options, index, self.layout.decimal
        )
        self.all_names, self.positions = names, chosen.numeric
        self.left_out = chosen.left_out
        self.header = header_sentence(names if self.layout.header else ())
        super().__init__(
            repr(file.name),
            len(self.positions),
            float_reference(np.float64),
            feature_names=tuple(names[at] for at in self.positions),
            flat=flat and len(self.positions) == 1,
            first_row=first_row,
        )

    def read(self) -> Iterator[Any]:
        """Yield chunks of rows; missing values are NaN."""
        size = self.file.stat().st_size
        try:
            yield from self._numbers()
        except ValueError:
            self._refuse_shrunk(size)
            raise
        self._refuse_shrunk(size)

    def _numbers(self) -> Iterator[Any]:
        """Yield the columns of numbers of the file as arrays, from row `first_row` on."""
        rows = max(1, self.rows_per_block * 8 // CELL_BYTES)
        skip, row, even = self.first_row, 0, False
        with readable_text(self.file):
            for frame in self._frames(rows, self.positions, PARTS):
                if not even and has_short_rows(frame):
                    refuse_ragged(self.file, self.layout)
                    even = True
                numbers = self.numbers(frame, row)
                if skip < len(numbers):
                    yield numbers[skip:]
                row, skip = row + len(numbers), max(0, skip - len(numbers))

    def _refuse_shrunk(self, size: int) -> None:
        """Raise an error if the file is now shorter than `size`, its number of bytes before."""
        now = self.file.stat().st_size
        if now < size:
            raise ValueError(
                f"{self.name} had {size} bytes, but has {now} after it was read: it has changed "
                "while it was read. Read it again when nobody writes to it."
            ) from None

    def numbers(self, frame: Any, row: int = 0) -> np.ndarray[Any, Any]:
        """Return the columns of numbers of `frame`, a parsed part of the file, as an array.

        `row` is the number of the first row of the part, for messages.
        """
        for at in self.positions:
            if frame[at].dtype.kind not in NUMBERS:
                raise ValueError(
                    f"column {self.all_names[at]!r} of {self.name} contains text after row {row}, "
                    "but only numbers in its first rows: correct the file or leave out the column."
                )
        return frame[self.positions].to_numpy(dtype=np.float64)  # type: ignore[no-any-return]

    def _frames(self, rows: int, positions: Iterable[int], parts: int = 1) -> Iterator[Any]:
        """Yield parts of the file of `rows` rows each, with the columns at `positions` as numbers.

        The first `rows` rows are read in `parts` parts, so that the progress of a small file can be
        shown. A column that contains other text than numbers stays text.

        pandas reads numbers with a decimal point. Where it finds a row of missing values, the file
        is read as text from this part on: only in the text does a blank row, which is left out,
        differ from a row of cells such as NA.
        """
        done = 0
        if self.layout.decimal == ".":
            for chunk in self._chunks(rows, parts, AS_NUMBERS):
                if chunk.isna().all(axis=1).any():
                    break
                yield _as_numbers(chunk, positions)
                done += len(chunk)
            else:
                return
        for cells in self._chunks(rows, parts, AS_TEXT):
            rest = cells.iloc[done:]
            done = max(0, done - len(cells))
            if len(rest):
                yield parse_text(rest, self.layout.decimal)

    def _chunks(self, rows: int, parts: int, how: dict[str, Any]) -> Iterator[Any]:
        """Yield parts of `rows` rows that pandas reads from the file with the arguments `how`.

        The first `rows` rows are read in `parts` parts.
        """
        sizes = chain(repeat(-(-rows // parts), parts), repeat(rows))
        with (
            as_one_sentence(self.file, self.layout),
            pd.read_csv(self.file, chunksize=rows, **parsing(self.layout), **how) as reader,
            suppress(StopIteration),  # the end of the file
        ):
            for size in sizes:
                yield reader.get_chunk(size)


def _as_numbers(chunk: Any, positions: Iterable[int]) -> Any:
    """Return a chunk in which columns that pandas did not recognise as numbers are parsed again.

    pandas reads "true" as a truth value, and numbers with blanks around them as text.
    """
    chunk = chunk.copy(deep=False)
    for at in positions:
        if chunk[at].dtype.kind not in NUMBERS:
            cells = chunk[at].map(lambda cell: "" if pd.isna(cell) else str(cell).strip())
            chunk[at] = to_numbers(cells, ".")
    return chunk
