"""Large files and Dask clusters for `lucidae fit` (extra `cli`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from lucidae.data import blocks, row_blocks
from lucidae.data.files import FILES, blocks_of_file
from lucidae.io.tables import ReadOptions, Table, default_names

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
    """Compute on the cluster of a Dask scheduler during a ``with`` block.

    If `address` is None, the block computes on this machine.
    """
    if address is None:
        yield
        return
    try:
        from distributed import Client
    except ImportError:
        raise ValueError(
            'A Dask scheduler needs the package distributed: pip install "lucidae[dask]"'
        ) from None
    try:
        client = Client(address, timeout=SECONDS)
    except (OSError, ValueError) as error:
        why = str(error).partition("\n")[0].rstrip(".") or type(error).__name__
        raise ValueError(
            f"The Dask scheduler {address!r} did not answer within {SECONDS} seconds: {why}. Check "
            "the address, and that the scheduler runs."
        ) from None
    with client:
        yield


def streamed_table(file: Path, scheduler: str | None, options: ReadOptions) -> Table | None:
    """Return a table whose values are read in blocks, or by Dask if there is a scheduler.

    The result is None for a file that is smaller than one block or has another format, and for a
    table with targets: such tables are loaded. HDF5 and Zarr are read in blocks whatever their
    size.
    """
    streams = file.suffix.lower() in FILES and not options.targets
    if scheduler is not None and not streams:
        raise ValueError(
            f"--scheduler {scheduler} was given, but a Dask cluster reads files without --target "
            f"that end in {', '.join(sorted(FILES))}: leave out --scheduler."
        )
    if not streams or not file.exists() or (scheduler is None and not _is_large(file)):
        return None
    data: Any = blocks_of_file(file, options=options)
    return Table(
        file.name,
        data if scheduler is None else _on_cluster(file, options),
        data.feature_names or default_names(data.n_features),
        left_out=getattr(data, "left_out", {}),
        header=getattr(data, "header", ""),
    )


def _on_cluster(file: Path, options: ReadOptions) -> Any:
    from lucidae.data.dask_blocks import dask_of_file

    return dask_of_file(file, options)


def _is_large(file: Path) -> bool:
    """Tell whether a file is read in blocks: it has more rows than one block, or is HDF5 or Zarr.

    The rows of a text file are not counted; its size in bytes decides.
    """
    if file.suffix.lower() in NOT_LOADED:
        return True
    if file.stat().st_size > blocks.BLOCK_BYTES:
        return True
    if file.suffix.lower() != ".parquet":
        return False
    data = row_blocks(file)  # Parquet files are compressed
    return data.n_rows is not None and data.n_rows > data.rows_per_block
