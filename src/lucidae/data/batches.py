"""Iterables of batches of rows, with their targets and weights."""

from __future__ import annotations

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

__all__ = ["BatchBlocks"]


class BatchBlocks(RowBlocks):
    """An iterable of batches of rows; a generator can be read once only.

    Parameters
    ----------
    batches : iterable
        Each batch is an array, a data frame or a sparse matrix of rows, or a tuple of rows,
        targets (if `with_targets`) and, optionally, weights.
    name : str
        What messages call the data.
    with_targets : bool, default=False
        Whether the second part of a tuple contains targets.
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
        iterator = iter(batches)
        self._batches = batches
        self._with_targets = with_targets
        first = next((batch for batch in iterator if _n_rows(batch)), None)
        if first is None:
            raise ValueError(f"{name} yields no rows: at least one batch with a row is needed.")
        rows, targets, _ = _parts(first, with_targets)
        self.flat_targets = targets is not None and len(np.shape(targets)) == 1
        is_vector = flat and len(getattr(rows, "shape", (0,))) == 1
        checked = floating_rows(rows, name, 0, 0, flat=is_vector)
        once = iterator is batches
        self._rest: Iterator[Any] | None = chain([first], iterator) if once else None
        super().__init__(
            name,
            int(checked.shape[1]),
            reference_of_rows(checked),
            feature_names=column_names(rows),
            repeatable=not once,
            flat=is_vector,
            first_row=first_row,
        )

    def read(self) -> Iterator[Any]:
        """Yield the rows of the batches; tuples are read by `blocks`."""
        return (block.rows for block in self.blocks())

    def blocks(self) -> Iterator[RowBlock]:
        """Yield the batches with their targets and weights."""
        row, index, skipped = 0, -1, self.first_row
        for batch in self._next_pass():
            if not _n_rows(batch):
                continue
            index += 1
            raw, targets, weights = _parts(batch, self._with_targets)
            rows = self.checked(raw, index, row)
            row += rows.shape[0]
            if targets is not None:
                targets = floating_rows(targets, "y", index, row - rows.shape[0], flat=True)
            block = RowBlock(rows, targets, weights, index, row - rows.shape[0])
            if row > skipped:
                yield _without_first(block, skipped)
        if row <= skipped:
            raise ValueError(f"{self.name} has {row} rows, and none is left after row {skipped}.")

    def _next_pass(self) -> Iterator[Any]:
        if self.repeatable:
            return iter(self._batches)
        if self._rest is None:
            raise ValueError(
                f"{self.name} is an iterator that has been read already: give a new one, or "
                "something that can be read more than once."
            )
        return self._used_up(self._rest)

    def _used_up(self, rest: Iterator[Any]) -> Iterator[Any]:
        yield from rest
        self._rest = None


class _Triple(NamedTuple):
    rows: Any
    targets: Any
    weights: Any


def _parts(batch: Any, with_targets: bool) -> _Triple:
    """Return rows, targets and weights of a batch."""
    if not isinstance(batch, list | tuple) or not batch or not hasattr(batch[0], "shape"):
        return _Triple(batch, None, None)
    if len(getattr(batch[0], "shape", ())) != 2:
        return _Triple(batch, None, None)  # a list of rows
    most = 3 if with_targets else 2
    if len(batch) > most:
        expected = "rows, targets and weights" if with_targets else "rows and weights"
        raise ValueError(f"a batch has {len(batch)} parts, expected at most {most}: {expected}.")
    parts = [*batch] if with_targets else [batch[0], None, *batch[1:]]
    return _Triple(*parts, *[None] * (3 - len(parts)))


def _n_rows(batch: Any) -> int:
    """Return the number of rows of a batch, which may be a tuple of rows, targets and weights."""
    rows = _parts(batch, True).rows
    shape = getattr(rows, "shape", None)
    return int(shape[0]) if shape is not None and len(shape) else len(rows)


def _without_first(block: RowBlock, skipped: int) -> RowBlock:
    """Return a block without the rows before `skipped`."""
    cut = max(0, skipped - block.first_row)
    if not cut:
        return block
    rows, targets, weights = (None if part is None else part[cut:] for part in block[:3])
    return RowBlock(rows, targets, weights, block.number, block.first_row + cut)
