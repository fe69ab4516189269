"""`lucidae fit` on files larger than one block, and with a Dask scheduler."""

import socket
import warnings
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

import lucidae
from extras import require
from lucidae.cli import main
from lucidae.data import blocks

require("typer")
require("rich")
pandas = require("pandas")


@pytest.fixture
def rows(tmp_path, monkeypatch):
    """Change to a folder with the same rows in several formats, each of many blocks."""
    require("pyarrow")
    rng = np.random.default_rng(0)
    X = rng.standard_normal((3000, 6)) * [6, 5, 4, 3, 2, 1]
    frame = pandas.DataFrame(X, columns=list("abcdef"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 2**15)
    frame.to_parquet("rows.parquet", row_group_size=500)
    frame.to_csv("rows.csv", index=False)
    np.save("rows.npy", X)
    return X


@pytest.fixture
def run(capsys, rows):
    """Return a function from arguments to (exit code, standard output, standard error)."""

    def call(*arguments):
        with pytest.raises(SystemExit) as end:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return end.value.code, captured.out, captured.err

    return call


@pytest.fixture
def never_loaded(monkeypatch):
    """Make a command fail if it loads a file as a whole."""

    def refuse(*_):
        raise AssertionError("the file was loaded")

    monkeypatch.setattr("lucidae.cli.fit.read_table", refuse)


@pytest.mark.parametrize("name", ["rows.parquet", "rows.csv", "rows.npy"])
@pytest.mark.parametrize("family", ["linear", "dropout"])
def test_large_files_are_streamed(run, rows, never_loaded, name, family):
    code, out, err = run("fit", family, name, "--components", 2)
    assert code == 0, err
    assert "optim" in out
    model = lucidae.load(f"{Path(name).stem}-{family}-model.npz")
    assert not model.verbose
    assert model._state.moment.weight == len(rows)
    assert_allclose(model._state.moment.covariance, np.cov(rows.T, bias=True), atol=1e-10)
    (codes,) = Path().glob("*codes*")
    assert codes.suffix == {".npy": ".npz"}.get(Path(name).suffix, Path(name).suffix)


def test_small_files_are_loaded(run, rows, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 2**25)
    monkeypatch.setattr("lucidae.cli.fit.streamed_table", lambda *_: None)
    code, _, err = run("fit", "linear", "rows.parquet", "--components", 2)
    assert code == 0, err


def test_a_scheduler_that_does_not_answer_is_one_sentence(run, monkeypatch):
    require("distributed")
    monkeypatch.setattr("lucidae.cli.streams.SECONDS", 0.3)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            code, _, err = run(
                "fit", "linear", "rows.npy", "--scheduler", f"tcp://127.0.0.1:{port}"
            )
    assert code == 2
    assert "did not answer within" in err
    assert len(err.strip().splitlines()) == 1


def test_an_address_that_is_none_is_one_sentence(run):
    require("distributed")
    code, _, err = run("fit", "linear", "rows.npy", "--scheduler", "nowhere")
    assert code == 2
    assert "Dask scheduler 'nowhere'" in err


@pytest.mark.parametrize("name", ["rows.parquet", "rows.csv", "rows.npy"])
def test_a_scheduler_computes_the_fit(run, rows, never_loaded, name):
    distributed = require("distributed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None
        ) as cluster:
            code, _, err = run(
                "fit", "linear", name, "--components", 2, "--scheduler", cluster.scheduler_address
            )
    assert code == 0, err
    model = lucidae.load("rows-linear-model.npz")
    assert_allclose(model.components_, lucidae.LinearAutoencoder(2).fit(rows).components_)
