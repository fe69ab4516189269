"""Iterables of batches of rows as blocks, with the targets and weights in the batches."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from lucidae.data.blocks import (
    RowBlock,
    RowBlocks,
    column_names,
    floating_rows,
    reference_of_rows,
)
from lucidae.data.files import blocks_of_file, warn_of_reading

__all__ = ["BatchBlocks"]


class BatchBlocks(RowBlocks):
    """An iterable of batches of rows; a generator can be read once only.

    The first batch is read at once, to know the columns and the dtype. The first pass continues
    from it, so that no batch is lost or read twice, also if the iterable returns the same iterator
    each time.
    """

    def __init__(
        self,
        batches: Iterable[Any],
        name: str,
        *,
        with_targets: bool = False,
        flat: bool = False,
        first_row: int = 0,
    ) -> None:
        given = iter(batches)
        self._batches = batches
        self._with_targets = with_targets
        self._columns: tuple[str, ...] | None = None
        iterator = self._opened_files(given, name)
        first = next((batch for batch in iterator if _n_rows(batch, name)), None)
        if first is None:
            raise ValueError(
                f"{name} yields no rows: at least one batch with a row is needed, and an iterator "
                "that was read before yields none."
            )
        rows, targets, weights = _parts(first, name)
        self._weighted = weights is not None
        self._n_targets: int | None = None
        self.flat_targets = with_targets and len(np.shape(targets)) == 1
        is_vector = flat and len(getattr(rows, "shape", (0,))) == 1
        checked = floating_rows(rows, name, 0, 0, flat=is_vector)
        self._given = given
        self._first_pass: Iterator[Any] | None = chain([first], iterator)
        self._n_rows_read: int | None = None
        super().__init__(
            name,
            int(checked.shape[1]),
            reference_of_rows(checked),
            feature_names=self._columns or column_names(rows),  # type: ignore[redundant-expr]  # `_opened_files` sets it
            repeatable=given is not batches,
            flat=is_vector,
            first_row=first_row,
        )

    def read(self) -> Iterator[Any]:
        """Yield the batches as they were given; `blocks` separates rows, targets and weights."""
        return (block.rows for block in self.blocks())

    def blocks(self) -> Iterator[RowBlock]:
        """Yield the batches with their targets and weights."""
        row, index, skipped = 0, -1, self.first_row
        for batch in self._next_pass():
            if not _n_rows(batch, self.name):
                continue
            index += 1
            raw, targets, weights = _parts(batch, self.name)
            targets = targets if self._with_targets else None
            names = column_names(raw)
            if names is not None and names != (self.feature_names or names):
                raise ValueError(
                    f"block {index} of {self.name} has other columns than the first block: all "
                    "blocks need the same columns in the same order."
                )
            rows = self.checked(raw, index, row)
            row += rows.shape[0]
            if targets is not None:
                targets = floating_rows(targets, "y", index, row - rows.shape[0], flat=True)
            self._check_parts(targets, weights, index)
            block = RowBlock(rows, targets, weights, index, row - rows.shape[0])
            if row > skipped:
                yield _without_first(block, skipped)
        self._check_length(row)
        if row <= skipped:
            raise ValueError(
                f"{self.name} has {row} rows, but the first {skipped} rows are to be left out: "
                "give a smaller first_row."
            )

    def _check_parts(self, targets: Any, weights: Any, index: int) -> None:
        """Raise an error unless batch `index` has targets and weights as the first one has."""
        if (weights is not None) != self._weighted:
            has, first = ("no weights", "has") if self._weighted else ("weights", "has none")
            raise ValueError(
                f"block {index} of {self.name} has {has}, but the first block {first}: give "
                "weights in all batches or in none."
            )
        if not self._with_targets:
            return
        if targets is None:
            raise ValueError(
                f"block {index} of {self.name} has no targets: give each batch as a tuple of rows "
                "and targets, or all targets as y."
            )
        self._n_targets = self._n_targets or int(targets.shape[1])
        if targets.shape[1] != self._n_targets:
            raise ValueError(
                f"block {index} of {self.name} has {targets.shape[1]} targets per row, but "
                f"{self._n_targets} are expected, as in the first block: all batches need the "
                "same targets."
            )

    def _check_length(self, n_rows: int) -> None:
        """Raise an error unless a complete pass yielded as many rows as the first one."""
        if self._n_rows_read not in (None, n_rows):
            raise ValueError(
                f"{self.name} yielded {self._n_rows_read} rows when it was read first, but "
                f"{n_rows} when it was read again: give batches that are the same each time."
            )
        self._n_rows_read = n_rows

    def _next_pass(self) -> Iterator[Any]:
        """Return an iterator over all batches; an iterator that was read already is an error."""
        first, self._first_pass = self._first_pass, None
        if first is not None:
            return first
        again = iter(self._batches)
        if again is self._given:
            raise ValueError(
                f"{self.name} is an iterator that has been read already: give a new one, or "
                "something that can be read more than once."
            )
        return self._opened_files(again, self.name)

    def _opened_files(self, batches: Iterator[Any], name: str) -> Iterator[Any]:
        """Yield the batches; the path of a file is replaced by the blocks of this file."""
        for batch in batches:
            if not isinstance(batch, str | os.PathLike):
                yield batch
                continue
            data = blocks_of_file(batch)
            warn_of_reading(data)
            self._columns = self._columns or data.feature_names
            if data.feature_names != self._columns:
                raise ValueError(
                    f"{data.name} has other columns than the files of {name} before it: all files "
                    "need the same columns in the same order."
                )
            yield from data


class _BatchParts(NamedTuple):
    rows: Any
    targets: Any
    weights: Any


def _parts(batch: Any, name: str) -> _BatchParts:
    """Return rows, targets and weights of a batch; None for targets and weights that it lacks."""
    is_tuple = isinstance(batch, list | tuple) and len(batch) > 0
    if not is_tuple or len(getattr(batch[0], "shape", ())) != 2:
        return _BatchParts(batch, None, None)  # an array, or a list of rows
    if len(batch) > 3:
        raise ValueError(
            f"a batch of {name} has {len(batch)} parts, expected at most 3: rows, targets and "
            "weights."
        )
    return _BatchParts(*batch, *[None] * (3 - len(batch)))


def _n_rows(batch: Any, name: str) -> int:
    """Return the number of rows of a batch, which may be a tuple of rows, targets and weights."""
    rows = _parts(batch, name).rows
    shape = getattr(rows, "shape", None)
    if shape is not None and len(shape):
        return int(shape[0])
    if isinstance(rows, list | tuple):
        return len(rows)
    raise ValueError(
        f"{name} yields {type(rows).__name__}, expected batches of rows: arrays, data frames, "
        "sparse matrices or paths of files."
    )


def _without_first(block: RowBlock, skipped: int) -> RowBlock:
    """Return a block without its first `skipped` rows."""
    assert block.first_row is not None, "batches are read in order"
    cut = max(0, skipped - block.first_row)
    if not cut:
        return block
    rows, targets, weights = (None if part is None else part[cut:] for part in block[:3])
    return RowBlock(rows, targets, weights, block.number, block.first_row + cut)
