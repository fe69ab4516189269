"""Data of every kind as rows: arrays, files, iterables of batches and Dask collections."""

from lucidae.rows.blocks import RowBlock, RowBlocks
from lucidae.rows.kinds import row_blocks
from lucidae.rows.passes import ReadInterrupted

__all__ = ["ReadInterrupted", "RowBlock", "RowBlocks", "row_blocks"]
