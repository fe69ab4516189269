"""`lucidae fit` on files larger than one block, and with a Dask scheduler."""

import socket
import threading
import time
import tracemalloc
import warnings
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import joblib
import numpy as np
import pytest
from numpy.testing import assert_allclose

import lucidae
from extras import require
from lucidae.rows import blocks

require("typer")
require("rich")
pandas = require("pandas")

from lucidae_app import streams


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
def run(call_main, rows):
    """Return `call_main`, in the folder with the files."""
    return call_main


@pytest.fixture
def never_loaded(monkeypatch):
    """Make a command fail if it loads a file as a whole."""

    def refuse(*_):
        raise AssertionError("the file was loaded")

    monkeypatch.setattr("lucidae_app.fit.read_table", refuse)
    monkeypatch.setattr("lucidae_app.preparation.read_table", refuse)


def numbers_of(file):
    """Return the numbers of an output table."""
    if file.suffix == ".npz":
        return np.load(file)["X"]
    read = pandas.read_csv if file.suffix == ".csv" else pandas.read_parquet
    return read(file).to_numpy()


@pytest.mark.parametrize("name", ["rows.parquet", "rows.csv", "rows.npy"])
def test_streamed_codes_and_predictions_are_those_of_the_rows(run, rows, never_loaded, name):
    code, _, err = run("fit", "linear", name)
    assert code == 0, err
    (codes,) = Path().glob("*codes*")
    assert_allclose(numbers_of(codes), lucidae.LinearAutoencoder().fit_transform(rows), atol=1e-9)
    target = "5" if name == "rows.npy" else "f"
    code, _, err = run("fit", "dropout", name, "--target", target, "--dropout", 0.1)
    assert code == 0, err
    (predictions,) = Path().glob("*predictions*")
    model = lucidae.DropoutRegressor(dropout=0.1).fit(rows[:, :5], rows[:, 5])
    assert_allclose(numbers_of(predictions)[:, 0], model.predict(rows[:, :5]), atol=1e-9)


@pytest.mark.parametrize("name", ["large.parquet", "large.npy"])
def test_all_codes_of_a_large_file_are_never_in_memory(run, rows, name):
    X = np.random.default_rng(1).standard_normal((16_000, 20))
    np.save("large.npy", X)
    pandas.DataFrame(X, columns=[f"x{i}" for i in range(20)]).to_parquet("large.parquet")
    assert run("fit", "linear", name, "--components", 1)[0] == 0  # imports and caches
    tracemalloc.start()
    try:
        assert run("fit", "linear", name, "--force")[0] == 0
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < X.nbytes / 2


@pytest.mark.parametrize(
    "sent", [b"", b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n" * 4]
)
def test_a_port_that_is_no_scheduler_is_one_sentence(run, monkeypatch, sent):
    require("distributed")
    monkeypatch.setattr("lucidae_app.streams.SECONDS", 2.0)
    accepted = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            with suppress(OSError):  # the server is closed, or the client
                while True:
                    accepted.append(server.accept()[0])
                    accepted[-1].sendall(sent)

        answering = threading.Thread(target=answer, daemon=True)
        answering.start()
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        code, _, err = run("fit", "linear", "rows.npy", "--scheduler", address)
        server.shutdown(socket.SHUT_RDWR)  # ends the wait for a further connection
        answering.join()
    for connection in accepted:
        connection.close()
    assert code == 2
    assert "did not answer within 2.0 seconds" in err


def test_a_scheduler_without_workers_is_said(monkeypatch, capsys):
    distributed = require("distributed")
    monkeypatch.setattr("lucidae_app.streams.PATIENCE", 0.05)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with (
            distributed.LocalCluster(n_workers=0, processes=False, dashboard_address=None) as empty,
            streams.cluster(empty.scheduler_address),
        ):
            said, began = "", time.monotonic()
            while "has no workers" not in said and time.monotonic() - began < 30:
                time.sleep(0.05)
                said += capsys.readouterr().err
    assert "has no workers: the computation waits" in " ".join(said.split())


@pytest.fixture(scope="module")
def scheduler():
    """Return the address of a scheduler with one worker, in threads of this process."""
    distributed = require("distributed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None
        ) as cluster:
            yield cluster.scheduler_address


@contextmanager
def ignored_warnings():
    """Ignore the warnings of connections that a cluster leaves to the garbage collector."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def test_a_scheduler_does_the_runs_of_experiments(call_main, monkeypatch, scheduler):
    found = []

    def reproduce(names, **_):
        found.append((names, type(joblib.parallel.get_active_backend()[0]).__name__))
        raise ValueError("no runs")

    monkeypatch.setattr("lucidae_papers.commands.reproduce", reproduce)
    with ignored_warnings():
        code, _, err = call_main("reproduce", "lae-dynamics", "--scheduler", scheduler)
    assert (code, "no runs" in err) == (2, True)
    assert found == [(["lae-dynamics"], "DaskDistributedBackend")]


@pytest.mark.covering
@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize("command", ["fit", "report"])
def test_progress_is_printed_on_a_terminal_only(run, short_page, monkeypatch, watched, command):
    monkeypatch.setattr("lucidae.iteration.progress.DELAY", 0.0)
    monkeypatch.setattr("lucidae.iteration.progress._screen", lambda: "terminal" * watched)
    if command == "fit":
        code, _, err = run("fit", "linear", "rows.csv", "--components", 2)
    else:
        code, _, err = run("report", "rows.csv", "--out", "page.html")
    assert code == 0, err
    assert ("rows/s" in err) is watched, err


@pytest.mark.parametrize(("on_cluster", "in_blocks"), [(False, True), (True, True), (True, False)])
def test_missing_entries_are_told_without_settings_of_python(
    run, rows, monkeypatch, scheduler, on_cluster, in_blocks
):
    rows[1234, 3] = np.nan
    pandas.DataFrame(rows, columns=list("abcdef")).to_parquet("rows.parquet", row_group_size=500)
    options = ["--scheduler", scheduler] if on_cluster else []
    if not in_blocks:
        monkeypatch.setattr(blocks, "BLOCK_BYTES", 2**25)
    with ignored_warnings():
        code, _, err = run("fit", "linear", "rows.parquet", "--components", 2, *options)
    assert code == 2
    assert "NaN" in err
    assert "row 1234, column 3, 'd' (all counted from 0)" in " ".join(err.split())
    assert "Give --missing em, --missing drop or --missing mean." in " ".join(err.split())
    assert "handle_missing" not in err


@pytest.mark.parametrize("name", ["rows.parquet", "rows.csv", "rows.npy"])
def test_a_scheduler_computes_the_fit(run, rows, never_loaded, name, scheduler):
    with ignored_warnings():
        code, _, err = run("fit", "linear", name, "--components", 2, "--scheduler", scheduler)
    assert code == 0, err
    model = lucidae.load("rows-linear-model.npz")
    assert_allclose(model.components_, lucidae.LinearAutoencoder(2).fit(rows).components_)


WRITTEN = {
    "names": (",", ".", "--header"),
    "no names": (",", ".", "--no-header"),
    "decimal comma": (";", ",", "--header"),
}


def write_text(rows, kind):
    """Write the rows and a column of text; return the options that read them."""
    delimiter, decimal, header = WRITTEN[kind]
    frame = pandas.DataFrame(rows, columns=list("abcdef")).assign(word="text")
    frame.to_csv(
        "rows.csv", index=False, sep=delimiter, decimal=decimal, header=header == "--header"
    )
    return ["--decimal", decimal, header]


@pytest.mark.covering
@pytest.mark.parametrize("kind", WRITTEN)
@pytest.mark.parametrize("columns", [None, "3,0"])
def test_a_streamed_text_is_read_as_a_loaded_one(run, rows, monkeypatch, kind, columns):
    options = write_text(rows, kind) + ([] if columns is None else ["--columns", columns])
    code, _, streamed = run("fit", "linear", "rows.csv", "--out", "a", *options)
    assert code == 0, streamed
    monkeypatch.setattr("lucidae_app.fit.streamed_table", lambda *_: None)
    code, _, loaded = run("fit", "linear", "rows.csv", "--out", "b", *options)
    assert code == 0, loaded
    assert streamed == loaded
    assert ("word" in streamed or "column 6" in streamed) == (columns is None)
    first, second = (lucidae.load(f"{name}-model.npz") for name in "ab")
    assert_allclose(first.mean_, second.mean_)
    assert_allclose(first.components_, second.components_, atol=1e-10)


@pytest.mark.parametrize("name", ["rows.parquet", "rows.npy", "rows.h5"])
def test_columns_of_other_large_files(run, rows, name):
    with require("h5py").File("rows.h5", "w") as file:
        file["rows"] = rows
    code, _, err = run("fit", "linear", name, "--columns", "3,0")
    assert code == 0, err
    assert_allclose(lucidae.load("rows-linear-model.npz").mean_, rows[:, [3, 0]].mean(axis=0))
    code, _, err = run("fit", "linear", name, "--columns", "9")
    assert code == 2
    assert f"{name!r} has no numeric column '9'" in err


@pytest.mark.parametrize(
    "arguments",
    [("dropout", "rows.csv", "--target", "a", "--dropout", "cv"), ("linear", "a.npz")],
)
def test_what_a_cluster_does_not_read_is_refused(run, rows, monkeypatch, arguments):
    np.savez("a.npz", X=rows)
    monkeypatch.setattr("lucidae_app.fit.cluster", lambda _: nullcontext())
    code, _, err = run("fit", *arguments, "--scheduler", "tcp://127.0.0.1:1")
    assert code == 2
    assert "leave out --scheduler" in err


def as_file(name, rows):
    """Return the name of a file with the rows, whose target is a column or the last one."""
    if name == "rows.h5":
        with require("h5py").File(name, "w") as file:
            file["rows"] = rows
    return name


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("rows.parquet", "c"),
        ("rows.csv", "c"),
        ("rows.csv", "2"),
        ("rows.npy", "2"),
        ("rows.h5", "2"),
    ],
)
def test_targets_of_large_files_are_streamed(run, rows, never_loaded, name, target):
    as_file(name, rows)
    options = ["--dropout", "0.3", "--target", target]
    code, out, err = run("fit", "dropout", name, *options)
    assert code == 0, err
    assert "optim" in out
    X, y = np.delete(rows, 2, axis=1), rows[:, 2]
    expected = lucidae.DropoutRegressor(dropout=0.3, random_state=0).fit(X, y)
    model = lucidae.load("rows-dropout-model.npz")
    assert_allclose(model.coef_, expected.coef_, atol=1e-10)
    assert model.verbose == "auto"
    assert len(list(Path().glob("rows-dropout-*"))) == 3


def test_targets_in_a_second_file_are_streamed(run, rows, never_loaded):
    y = rows @ np.arange(6.0)
    np.save("y.npy", y)
    code, _, err = run("fit", "dropout", "rows.parquet", "--dropout", "0.3", "--target", "y.npy")
    assert code == 0, err
    expected = lucidae.DropoutRegressor(dropout=0.3).fit(rows, y)
    found = lucidae.load("rows-dropout-model.npz").coef_
    assert_allclose(np.ravel(found), expected.coef_, atol=1e-10)


@pytest.mark.parametrize("name", ["rows.parquet", "rows.npy"])
def test_a_scheduler_computes_a_regression(run, rows, never_loaded, name, scheduler):
    with ignored_warnings():
        code, _, err = run("fit", "dropout", name, "--target", "2", "--scheduler", scheduler)
    assert code == 0, err
    expected = lucidae.DropoutRegressor(dropout=0.5).fit(np.delete(rows, 2, axis=1), rows[:, 2])
    assert_allclose(lucidae.load("rows-dropout-model.npz").coef_, expected.coef_, atol=1e-10)


def test_the_report_reads_a_large_file_once(run, rows, monkeypatch):
    require("matplotlib")

    def refuse(*_):
        raise AssertionError("the file was loaded")

    monkeypatch.setattr("lucidae_app.preparation.read_table", refuse)
    monkeypatch.setattr("lucidae_app.streams.SAMPLED_BYTES", 2**14)
    numbers, blocks_of = [], lucidae.rows.files.ParquetBlocks.read

    def counted(self):
        numbers.append(0)
        for rows in blocks_of(self):
            numbers[-1] += len(rows)
            yield rows

    monkeypatch.setattr("lucidae.rows.files.ParquetBlocks.read", counted)
    code, _, err = run(
        "report", "rows.parquet", "--out", "page.html", "--target", "c", "--standardize"
    )
    assert code == 0, err
    page = Path("page.html").read_text()
    assert "3,000" in page
    assert "evenly spaced" in page
    first, whole = numbers  # identifiers are looked for in the first block
    assert first < whole == len(rows)


def test_identifiers_of_large_files_are_left_out_unless_kept(run, rows):
    frame = pandas.DataFrame(rows, columns=list("abcdef"))
    frame.insert(2, "nr", np.arange(len(rows)))
    frame.to_csv("numbered.csv", index=False)
    code, _, err = run("fit", "linear", "numbered.csv", "--components", 2)
    assert code == 0, err
    assert "nr (it only numbers the rows; --keep nr uses it)" in err
    assert lucidae.load("numbered-linear-model.npz").feature_names_in_.tolist() == list("abcdef")
    run("fit", "linear", "numbered.csv", "--components", 2, "--keep", "nr")
    assert lucidae.load("numbered-linear-model.npz").n_features_in_ == 7
    code, _, err = run("fit", "linear", "numbered.csv", "--keep", "x")
    assert code == 2
    assert "--keep x was given, expected names of columns" in err
