"""Reading of data of any kind (arrays, files, iterables of batches, Dask) as blocks of rows."""

from lucidae.data.blocks import RowBlock, RowBlocks
from lucidae.data.kinds import aligned_blocks, in_memory, loaded, row_blocks
from lucidae.data.passes import (
    LazyOutputMixin,
    ReadInterrupted,
    by_blocks,
    read_moment,
    store_features,
    store_targets,
)

__all__ = [
    "LazyOutputMixin",
    "ReadInterrupted",
    "RowBlock",
    "RowBlocks",
    "aligned_blocks",
    "by_blocks",
    "in_memory",
    "loaded",
    "read_moment",
    "row_blocks",
    "store_features",
    "store_targets",
]
