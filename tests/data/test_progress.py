"""The progress of reading counts the rows, whatever the kind and the size of the data."""

import threading

import numpy as np
import pytest
from numpy.testing import assert_allclose

from extras import require
from lucidae import DropoutAutoencoder, LinearAutoencoder
from lucidae.data import passes, text
from lucidae.data.files import blocks_of_map


def rows_of(n=4000, m=6, seed=0):
    return np.random.default_rng(seed).standard_normal((n, m)) * np.arange(m, 0, -1) + 1


class Clock:
    """A clock that goes forward by a second each time it is read."""

    now = 0.0

    def __call__(self):
        self.now += 1.0
        return self.now


def test_progress_is_shown_after_two_seconds(monkeypatch, capsys, tmp_path, small_blocks):
    X = rows_of()
    monkeypatch.setattr("time.monotonic", Clock())
    LinearAutoencoder(2, verbose=True).fit(X[at : at + 100] for at in range(0, len(X), 100))
    assert "rows per second" in capsys.readouterr().err
    np.save(tmp_path / "x.npy", rows_of(40_000))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    model = LinearAutoencoder(2, verbose=True).fit(mapped)
    shown = capsys.readouterr().err
    assert "of 40000 rows" in shown
    assert "left" in shown
    model.transform(mapped)
    assert "computing rows" in capsys.readouterr().err
    LinearAutoencoder(2).fit(mapped)
    assert capsys.readouterr().err == ""


def test_progress_of_dask_chunks_is_shown(monkeypatch, capsys, small_blocks):
    chunks = require("dask.array").from_array(rows_of(), chunks=(100, 6))
    monkeypatch.setattr(passes, "DELAY", 0.0)
    LinearAutoencoder(2, verbose=True).fit(chunks)
    assert "of 4000 rows" in capsys.readouterr().err
    assert threading.active_count() < 50


def slowly_read(kind, X, folder):
    """Return rows of less than one block that are read in at least three parts."""
    name = folder / f"x.{kind}"
    if kind in ("npy", "map"):
        np.save(name.with_suffix(".npy"), X)
        path = name.with_suffix(".npy")
        return path if kind == "npy" else blocks_of_map(np.load(path, mmap_mode="r"), "X")
    if kind == "h5":
        with require("h5py").File(name, "w") as file:
            file.create_dataset("x", data=X, chunks=(1000, X.shape[1]))
    elif kind == "zarr":
        require("zarr").create_array(name, data=X, chunks=(1000, X.shape[1]))
    elif kind in ("parquet", "csv"):
        require("pyarrow")
        frame = require("pandas").DataFrame(X).add_prefix("c")
        frame.to_parquet(name) if kind == "parquet" else frame.to_csv(name, index=False)
    else:
        parts = [X[at : at + 6000] for at in range(0, len(X), 6000)]
        return iter(parts) if kind == "iterator" else lambda: iter(parts)
    return name


@pytest.mark.parametrize("make", [LinearAutoencoder, DropoutAutoencoder], ids=["linear", "dropout"])
@pytest.mark.parametrize(
    "kind", ["iterator", "function", "npy", "map", "h5", "zarr", "parquet", "csv"]
)
def test_progress_of_a_slow_source_of_less_than_one_block(
    kind, make, monkeypatch, capsys, tmp_path
):
    X = rows_of(60_000)  # 2.9 MB
    data = slowly_read(kind, X, tmp_path)
    if kind == "csv":
        monkeypatch.setattr(text, "CELL_BYTES", 8)
        monkeypatch.setattr("lucidae.data.blocks.BLOCK_BYTES", X.nbytes)
    monkeypatch.setattr("time.monotonic", Clock())
    model = make(2, verbose=True).fit_batches(data)
    shown = [line for line in capsys.readouterr().err.splitlines() if "reading rows" in line]
    counts = [int(line.split()[2]) for line in shown]
    assert len(set(counts)) >= 2
    assert counts == sorted(counts)
    assert 0 < counts[0] < 60_000
    assert all("rows per second" in line for line in shown)
    if kind not in ("iterator", "function", "csv"):
        assert all(" of 60000 rows, " in line and " left" in line for line in shown)
    assert_allclose(model.mean_, X.mean(axis=0))
    (tmp_path / "again").mkdir()
    make(2, verbose=False).fit_batches(slowly_read(kind, X, tmp_path / "again"))
    assert capsys.readouterr().err == ""


def test_the_rate_of_reading_counts_the_rows_that_were_tried_to_load(
    monkeypatch, capsys, small_blocks
):
    """The first block is read before it is known that the data have several."""
    clock = Clock()
    monkeypatch.setattr("time.monotonic", clock)
    parts = [rows_of(1000) for _ in range(6)]  # 48 kB, of blocks of 64 kB

    def slow():
        for part in parts:
            clock.now += 100.0
            yield part

    LinearAutoencoder(2, verbose=True).fit(slow())
    shown = [line for line in capsys.readouterr().err.splitlines() if "reading rows" in line]
    counts = [int(line.split()[2]) for line in shown]
    rates = [float(line.split()[4]) for line in shown]
    assert counts[-1] == 6000
    # 10 rows per second, and the first batch, which is read before the clock starts
    assert all(10.0 <= rate <= 21.0 for rate in rates[1:])
