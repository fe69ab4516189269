"""Large files and Dask clusters for `lucidae fit` (extra `cli`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from lucidae.data import blocks, row_blocks
from lucidae.data.files import FILES
from lucidae.io.tables import Table

__all__ = ["Scheduler", "cluster", "streamed_table"]

SECONDS = 5
"""Seconds after which a scheduler that does not answer is given up."""

NOT_LOADED = (".h5", ".hdf5", ".zarr")
"""Formats that are always read in blocks."""

Scheduler = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Address of a Dask scheduler, such as tcp://host:8786, whose workers read FILE.",
    ),
]


@contextmanager
def cluster(address: str | None) -> Iterator[None]:
    """Compute on the cluster of a Dask scheduler during a block; None: on this machine."""
    if address is None:
        yield
        return
    try:
        from distributed import Client
    except ImportError:
        raise ValueError(
            'A Dask scheduler needs distributed: pip install "lucidae[dask]"'
        ) from None
    try:
        client = Client(address, timeout=SECONDS)
    except (OSError, ValueError) as error:
        why = str(error).partition("\n")[0].rstrip(".") or type(error).__name__
        raise ValueError(
            f"The Dask scheduler {address!r} did not answer within {SECONDS} seconds: {why}."
        ) from None
    with client:
        yield


def streamed_table(file: Path, scheduler: str | None) -> Table | None:
    """Return a table whose values are read in blocks: a path, or a Dask array for a scheduler.

    None for a file that is smaller than one block or has another format: it is loaded. HDF5 and
    Zarr are read in blocks whatever their size.
    """
    if file.suffix.lower() not in FILES or not file.exists():
        return None
    if scheduler is None and not _is_large(file):
        return None
    data = row_blocks(file)
    names = data.feature_names or tuple(f"column {i + 1}" for i in range(data.n_features))
    return Table(file.name, _values(file, scheduler), names)


def _values(file: Path, scheduler: str | None) -> Any:
    if scheduler is None:
        return file
    from lucidae.data.dask_blocks import dask_of_file

    return dask_of_file(file)


def _is_large(file: Path) -> bool:
    """Tell whether a file has more rows than one block, or a format that is not loaded.

    The rows of a text file are not counted; its size decides.
    """
    if file.suffix.lower() in NOT_LOADED:
        return True
    if file.stat().st_size > blocks.BLOCK_BYTES:
        return True
    if file.suffix.lower() != ".parquet":
        return False
    data = row_blocks(file)  # Parquet files are compressed
    return data.n_rows is not None and data.n_rows > data.rows_per_block
