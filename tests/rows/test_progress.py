"""The progress of reading counts the rows, whatever the kind and the size of the data."""

import re
import threading

import numpy as np
import pytest
from numpy.testing import assert_allclose

from extras import require
from lucidae import DropoutAutoencoder, LinearAutoencoder
from lucidae.rows import text
from lucidae.rows.files import blocks_of_map


def rows_of(n=4000, m=6, seed=0):
    return np.random.default_rng(seed).standard_normal((n, m)) * np.arange(m, 0, -1) + 1


@pytest.fixture
def at_once(monkeypatch):
    monkeypatch.setattr("lucidae.iteration.progress.DELAY", 0.0)


def test_progress_of_batches_maps_and_results_is_shown(at_once, capsys, tmp_path, small_blocks):
    X = rows_of()
    LinearAutoencoder(2, verbose=True).fit(X[at : at + 100] for at in range(0, len(X), 100))
    assert "rows/s" in capsys.readouterr().err
    np.save(tmp_path / "x.npy", rows_of(40_000))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    model = LinearAutoencoder(2, verbose=True).fit(mapped)
    assert "/40000 [" in capsys.readouterr().err
    model.transform(mapped)
    assert "computing rows" in capsys.readouterr().err
    LinearAutoencoder(2).fit(mapped)
    assert capsys.readouterr().err == ""


def test_progress_of_dask_chunks_is_shown(at_once, capsys, small_blocks):
    chunks = require("dask.array").from_array(rows_of(), chunks=(100, 6))
    LinearAutoencoder(2, verbose=True).fit(chunks)
    assert "/4000 [" in capsys.readouterr().err
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


@pytest.mark.covering
@pytest.mark.parametrize("make", [LinearAutoencoder, DropoutAutoencoder], ids=["linear", "dropout"])
@pytest.mark.parametrize(
    "kind", ["iterator", "function", "npy", "map", "h5", "zarr", "parquet", "csv"]
)
def test_progress_of_a_source_of_less_than_one_block(
    kind, make, at_once, monkeypatch, capsys, tmp_path
):
    X = rows_of(60_000)  # 2.9 MB
    data = slowly_read(kind, X, tmp_path)
    if kind == "csv":
        monkeypatch.setattr(text, "CELL_BYTES", 8)
        monkeypatch.setattr("lucidae.rows.blocks.BLOCK_BYTES", X.nbytes)
    model = make(2, verbose=True).fit_batches(data)
    shown = [line for line in capsys.readouterr().err.splitlines() if "reading rows" in line]
    known = kind not in ("iterator", "function", "csv")
    pattern = r"\| (\d+)/60000 \[" if known else r": (\d+) rows \["
    counts = [int(re.search(pattern, line)[1]) for line in shown]
    assert len(set(counts)) >= 2
    assert counts == sorted(counts)
    assert 0 < counts[0] < 60_000
    assert_allclose(model.mean_, X.mean(axis=0))
    (tmp_path / "again").mkdir()
    make(2, verbose=False).fit_batches(slowly_read(kind, X, tmp_path / "again"))
    assert capsys.readouterr().err == ""
