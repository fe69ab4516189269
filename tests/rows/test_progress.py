"""The progress of reading counts the rows, whatever the kind and the size of the data."""

import re
import threading

import numpy as np
import pytest
from numpy.testing import assert_allclose

from extras import require
from lucidae import DropoutAutoencoder, LinearAutoencoder


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


@pytest.mark.parametrize("make", [LinearAutoencoder, DropoutAutoencoder], ids=["linear", "dropout"])
def test_progress_of_batches_of_less_than_one_block(make, at_once, capsys):
    X = rows_of(60_000)  # 2.9 MB
    parts = [X[at : at + 6000] for at in range(0, len(X), 6000)]
    for data in (iter(parts), lambda: iter(parts)):
        model = make(2, verbose=True).fit_batches(data)
        shown = [line for line in capsys.readouterr().err.splitlines() if "reading rows" in line]
        counts = [int(re.search(r": (\d+) rows \[", line)[1]) for line in shown]
        assert len(set(counts)) >= 2
        assert counts == sorted(counts)
        assert 0 < counts[0] < 60_000
        assert_allclose(model.mean_, X.mean(axis=0))
    make(2, verbose=False).fit_batches(iter(parts))
    assert capsys.readouterr().err == ""
