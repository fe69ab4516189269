"""Large files and Dask clusters for `lucidae fit` and `lucidae report` (extra `cli`)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import joblib
import numpy as np
import typer

from lucidae.moments import SecondMoment
from lucidae.rows import RowBlocks, blocks, row_blocks
from lucidae.rows.files import STREAMED, blocks_of_file, read_table, target_options
from lucidae.rows.kinds import AlignedBlocks, is_dask, named_rows
from lucidae.rows.passes import applied_blocks, fold
from lucidae.rows.tables import ReadOptions, Table
from lucidae.validation import install_command
from lucidae_app.console import note
from lucidae_app.preparation import Preparation

SECONDS = 5
"""Number of seconds to wait for the answer of a Dask scheduler."""

PATIENCE = 5
"""Number of seconds after which a cluster without workers is reported."""

NOT_LOADED = (".h5", ".hdf5", ".zarr")
"""Suffixes of files that are read in blocks whatever their size."""

Scheduler = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Address of a Dask scheduler, such as tcp://host:8786, whose workers read FILE.",
    ),
]


@contextmanager
def cluster(address: str | None) -> Iterator[None]:
    """Let Dask compute on the cluster of the scheduler at `address` during a ``with`` block.

    If `address` is None, everything is computed on this machine.
    """
    if address is None:
        yield
        return
    try:
        import dask
        from distributed import Client
    except ImportError:
        raise ValueError(
            f"A Dask scheduler needs the package distributed: {install_command('dask')}"
        ) from None
    before = dask.config.get("scheduler", None)
    try:
        asyncio.run(asyncio.wait_for(_answer(address), SECONDS))
        client = Client(address, timeout=SECONDS)
    except Exception as error:
        dask.config.set(scheduler=before)  # the client has set it before it failed
        why = str(error).partition("\n")[0].rstrip(".") or type(error).__name__
        raise ValueError(
            f"The Dask scheduler {address!r} did not answer within {SECONDS} seconds ({why}): "
            "check the address, such as tcp://host:8786, and that the scheduler runs."
        ) from None
    with client, _watched(client, address):
        yield


@contextmanager
def mapped_over(address: str | None) -> Iterator[None]:
    """Let joblib compute on the cluster of the Dask scheduler at `address` in a ``with`` block.

    If `address` is None, everything is computed on this machine.
    """
    with cluster(address), nullcontext() if address is None else joblib.parallel_config("dask"):
        yield


async def _answer(address: str) -> None:
    """Ask the Dask scheduler at `address` who it is; return when it has answered.

    A client waits without a limit for a port that accepts connections but is no scheduler, so the
    scheduler is asked before a client is made.
    """
    from distributed.core import connect
    from distributed.security import Security

    arguments = Security().get_connection_args("client")
    # Ended before the limit of the caller, `connect` says why it found no connection.
    connection = await connect(address, timeout=0.8 * SECONDS, **arguments)
    try:
        await connection.write({"op": "identity", "reply": True})
        answer = await connection.read()
    finally:
        connection.abort()
    if not isinstance(answer, dict) or answer.get("type") != "Scheduler":
        raise ValueError("this address is not that of a scheduler")


@contextmanager
def _watched(client: Any, address: str) -> Iterator[None]:
    """Say once, during a ``with`` block, that the cluster has no workers, if that is so.

    The computation waits for workers without a limit, because some clusters start them only when
    there is work.
    """
    ended = threading.Event()

    def watch() -> None:
        with suppress(Exception):  # the connection is lost: the computation says so
            while not ended.wait(PATIENCE):
                if not client.nthreads():
                    note(
                        f"The Dask scheduler {address!r} has no workers: the computation waits "
                        f"until one joins. Start one by 'dask worker {address}', or end with "
                        "Ctrl-C."
                    )
                    return

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(SECONDS)


class SplitRows:
    """Rows of a file, divided into features and targets: an iterable of batches (rows, targets)."""

    def __init__(self, data: RowBlocks, targets: list[int]) -> None:
        self.data = data
        self.targets = targets
        self.features = [at for at in range(data.n_features) if at not in targets]
        names = data.feature_names
        self.names = None if names is None else tuple(names[at] for at in self.features)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        for rows in self.data:
            targets = rows[:, self.targets]
            vector = targets[:, 0] if len(self.targets) == 1 else targets
            yield named_rows(rows[:, self.features], self.names), vector

    def rows(self) -> Iterator[Any]:
        """Yield the features of each batch, without the targets."""
        return (rows for rows, _ in self)


def streamed_table(
    file: Path, scheduler: str | None, chosen: Preparation, second: Path | None = None
) -> Table | None:
    """Return a table whose values are read in blocks, or by Dask if a scheduler is given.

    HDF5 and Zarr are read in blocks whatever their size. If columns of the file are targets, the
    values of the table are `SplitRows`; with a scheduler, features and targets are two Dask
    collections.
    """
    streams = file.suffix.lower() in STREAMED
    if scheduler is not None and not streams:
        raise ValueError(
            f"--scheduler {scheduler} was given, but a Dask cluster cannot read {file.name}, only "
            f"files that end in {', '.join(sorted(STREAMED))}: convert it, or leave out "
            "--scheduler."
        )
    if not streams or not file.exists() or (scheduler is None and not is_large(file)):
        return None
    if second is not None:
        chosen = chosen.with_options(targets=())
    table = _table(file, scheduler, chosen.without_identifiers(file))
    return table if second is None else _with_second(table, second, chosen.options)


def _table(file: Path, scheduler: str | None, options: ReadOptions) -> Table:
    """Return a file as a table whose values are read in blocks, or by Dask if a scheduler is given.

    Features and targets are the columns that `options` name. How the file was read is printed.
    """
    data: Any = blocks_of_file(file, options=options)
    names, targets, features = data.chosen.names, data.chosen.targets, data.chosen.features
    values: Any = SplitRows(data, targets) if targets else data
    target: Any = None
    if scheduler is not None:
        from lucidae.rows.dask import dask_of_file

        values = dask_of_file(file, options)
        if targets:
            values, target = _parts(values, features, targets)
    table = Table(
        file.name,
        values,
        tuple(names[at] for at in features),
        left_out=data.chosen.left_out,
        header=data.header,
        target=target,
        target_names=tuple(names[at] for at in targets),
    )
    if table.reading:
        note(table.reading)
    return table


def _parts(values: Any, features: list[int], targets: list[int]) -> tuple[Any, Any]:
    """Return the columns `features` and the columns `targets` as two Dask collections."""
    if hasattr(values, "columns"):
        names = list(values.columns)
        chosen = [names[at] for at in targets]
        y = values[chosen[0]] if len(targets) == 1 else values[chosen]
        return values[[names[at] for at in features]], y
    y = values[:, targets[0]] if len(targets) == 1 else values[:, targets]
    return values[:, features], y


def _with_second(table: Table, second: Path, options: ReadOptions) -> Table:
    """Return `table` with the targets in the file `second`, read in blocks if possible."""
    options = target_options(options, second)
    if second.suffix.lower() in STREAMED:
        data: Any = blocks_of_file(second, flat=True, options=options)
        return replace(table, target=data, target_names=data.chosen.names)
    responses = read_table(second, options, target=True)
    values = responses.values[:, 0] if responses.values.shape[1] == 1 else responses.values
    return replace(table, target=values, target_names=responses.columns)


SAMPLED_BYTES = 2**25
"""Largest size in bytes of the sample of rows that is drawn from a large file."""


class _Sample:
    """Sample of evenly spaced rows of data whose number of rows is not known in advance.

    Every row whose number is a multiple of `step` is kept. Whenever there are more than `most` of
    them, every second one is dropped and `step` is doubled.
    """

    def __init__(self, most: int) -> None:
        self.most, self.step, self.seen = most, 1, 0
        self.rows: Any = None

    def add(self, rows: Any) -> None:
        """Add those of the next `rows` of the data whose number is a multiple of `step`."""
        fresh = rows[-self.seen % self.step :: self.step]
        self.seen += len(rows)
        self.rows = fresh.copy() if self.rows is None else np.concatenate([self.rows, fresh])
        while len(self.rows) > self.most:
            self.rows, self.step = self.rows[::2], 2 * self.step


def summarised_table(file: Path, chosen: Preparation) -> Table | None:
    """Return a large file as a table with the second moment of all rows and a sample of the rows.

    The file is read once.
    """
    if file.suffix.lower() not in STREAMED or not file.exists() or not is_large(file):
        return None
    options = chosen.without_identifiers(file)
    data: Any = blocks_of_file(file, options=options)
    table = _table(file, None, options)
    targets, features = data.chosen.targets, data.chosen.features
    sample = _Sample(max(2, SAMPLED_BYTES // (8 * data.n_features)))

    def leaf(rows: Any, _targets: Any, _weights: Any) -> SecondMoment:
        sample.add(rows)
        if not np.all(np.isfinite(rows[:, targets])):
            raise ValueError("a target is not a finite number: remove or impute such rows first")
        return SecondMoment.of(rows[:, features])

    moment = fold(AlignedBlocks(data, None, None), leaf, SecondMoment.merge)
    return replace(
        table,
        values=sample.rows[:, features],
        target=sample.rows[:, targets] if targets else None,
        moment=moment,
    )


def n_rows_of(rows: Any) -> int:
    """Return the number of rows of a table that is read in blocks; 0 if it is not known."""
    if isinstance(rows, SplitRows):
        return n_rows_of(rows.data)
    if is_dask(rows):
        count = rows.shape[0]
        return count if isinstance(count, int) else 0
    return rows.n_rows or 0


def results_of(method: Any, rows: Any, n_columns: int) -> Iterator[Any]:
    """Yield what a method, such as `predict`, returns for a table that is read in blocks.

    Only one block of results, with `n_columns` columns, is in memory at a time. Those of a Dask
    collection are computed by the workers.
    """
    if is_dask(rows):
        from lucidae.rows.dask import DaskBlocks

        results: Any = DaskBlocks(method(rows), "X", flat=True)
    else:
        data = row_blocks(rows.rows() if isinstance(rows, SplitRows) else rows)
        results = applied_blocks(method, data)
    return (np.asarray(part).reshape(-1, n_columns) for part in results)


def standardized(table: Table) -> Table:
    """Return a large table, of which the moment is known, with columns of variance one."""
    moment = table.moment
    deviations = np.sqrt(np.diag(moment.covariance))
    scale = np.where(deviations > 0.0, deviations, 1.0)
    squares = moment.weight * moment.covariance / np.outer(scale, scale)
    zero = 0.0 * moment.mean
    # A scaled error is at most the error divided by the smallest variance.
    varying = deviations[deviations > 0.0] ** 2
    share = float(np.mean(varying) / np.min(varying)) if len(varying) else 1.0
    return replace(
        table,
        values=(table.values - moment.mean) / scale,
        moment=SecondMoment(moment.weight, squares, zero, zero, moment.rounding * share),
    )


def is_large(file: Path) -> bool:
    """Tell whether a file does not fit into one block of rows, or is always read in blocks.

    The rows of a text file are not counted; its size in bytes decides.
    """
    if file.suffix.lower() in NOT_LOADED:
        return True
    if file.stat().st_size > blocks.BLOCK_BYTES:
        return True
    if file.suffix.lower() != ".parquet":
        return False
    data = blocks_of_file(file)  # Parquet files are compressed
    return data.n_rows is not None and data.n_rows > data.rows_per_block
