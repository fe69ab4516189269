"""Dask on a cluster of two worker processes: what the workers compute, lose and report."""

import os
import pickle
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import joblib
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone

from extras import require
from lucidae import DropoutRegressor, LinearAutoencoder, SecondMoment, SparseVAE
from lucidae.rows import ReadInterrupted, blocks, row_blocks
from lucidae.rows import dask as dask_blocks
from lucidae.rows.dask import dask_of_file
from lucidae.sparsity import solve_batch

da, dask = require("dask.array"), require("dask")

pytestmark = pytest.mark.usefixtures("small_blocks")


@pytest.fixture(scope="module")
def client():
    """Return the client of two worker processes of one thread each."""
    distributed = require("distributed")
    with warnings.catch_warnings():
        # distributed and tornado leave sockets to the garbage collector when a worker is killed.
        warnings.simplefilter("ignore")
        settings = {"distributed.worker.daemon": True, "distributed.comm.retry.count": 2}
        options = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "memory_limit": 0}
        with (
            dask.config.set(settings),
            distributed.LocalCluster(dashboard_address=None, **options) as cluster,
            distributed.Client(cluster) as client,
        ):
            client.run(warnings.simplefilter, "ignore", ResourceWarning)
            yield client


@pytest.fixture(params=["threads", "cluster"])
def scheduler(request):
    """Compute on the threads of this process, or on the cluster."""
    if request.param == "cluster":
        request.getfixturevalue("client")
        yield request.param
        return
    with dask.config.set(scheduler="threads"):
        yield request.param


def spread_rows(n=3000):
    """Return rows with separated variances, half of the entries zero."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((n, 20)) * np.linspace(6, 1, 20) + 1
    return rows * (rng.random((n, 20)) < 0.5)


def marked_by_process(block, folder):
    """Leave a file with the number of the process that has the block."""
    Path(folder, str(os.getpid())).touch()
    return block


def test_rows_are_read_by_the_workers_also_after_those_that_are_left_out(client, tmp_path):
    X = spread_rows()
    chunks = da.from_array(X, chunks=(100, 20))
    marked = chunks.map_blocks(marked_by_process, str(tmp_path), meta=chunks._meta)
    moment = SecondMoment.of(marked)
    assert_allclose(moment.mean, X.mean(axis=0))
    model = LinearAutoencoder(2).fit_batches(row_blocks(marked, first_row=1250))
    assert_allclose(model.mean_, X[1250:].mean(axis=0))
    processes = {int(path.name) for path in tmp_path.iterdir()}
    assert processes <= set(client.run(os.getpid).values())
    X[1733, 4] = np.nan
    rest = row_blocks(da.from_array(X, chunks=(100, 20)), first_row=1250)
    assert rest.n_rows_to_read == 1750
    with pytest.raises(ValueError, match="X contains NaN in block 5, row 1733, column 4"):
        LinearAutoencoder(2).fit_batches(rest)
    assert len(pickle.dumps(moment)) < 8 * 20 * 20 + 2000  # it travels between processes
    assert_array_equal(pickle.loads(pickle.dumps(moment)).covariance, moment.covariance)


def test_reading_a_file_needs_no_dask_array_on_a_worker(tmp_path):
    """Every worker would import it during its first task."""
    X = np.arange(12.0).reshape(4, 3)
    np.save(tmp_path / "rows.npy", X)
    (chunk,) = dask_blocks.DaskBlocks(dask_of_file(tmp_path / "rows.npy"), "X").parts()
    (chunk,) = dask.optimize(chunk)
    (tmp_path / "graph").write_bytes(pickle.dumps((dict(chunk.dask), chunk.key)))
    worker = (
        "import pickle, sys, dask\n"
        "graph, key = pickle.load(open(sys.argv[1], 'rb'))\n"
        "print(dask.get(graph, key).sum(), 'dask.array' in sys.modules)\n"
    )
    command = [sys.executable, "-c", worker, str(tmp_path / "graph")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(X.sum()), "False"]


def once_and_killed(block, folder, block_id=None):
    """Kill the worker in the middle of the data, once; afterwards return the block."""
    mark = Path(folder, "killed")
    if block_id is not None and block_id[0] == 12 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return block


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_worker_killed_in_mid_fit_costs_time_and_not_the_result(client, tmp_path):
    X = spread_rows()
    chunks = da.from_array(X, chunks=(100, 20)).map_blocks(
        once_and_killed, str(tmp_path), dtype=X.dtype
    )
    model = LinearAutoencoder(4).fit(chunks)
    assert (tmp_path / "killed").exists()
    assert_allclose(model.components_, LinearAutoencoder(4).fit(X).components_, atol=1e-10)
    client.wait_for_workers(2, timeout=60)


@pytest.mark.parametrize("columns", [2500, 10_000])
def test_many_features_on_a_cluster_that_shows_its_progress(client, monkeypatch, capsys, columns):
    monkeypatch.setattr("lucidae.linear.certify.LOADED_BYTES", 2**16)
    monkeypatch.setattr("lucidae.iteration.progress.DELAY", 0.0)
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((200, 20)) * 2.0 ** -np.arange(20) + 1
    X, places = np.zeros((200, 10_000)), np.arange(20) * 497
    X[:, places] = rows
    model = LinearAutoencoder(3, verbose=True).fit(da.from_array(X, chunks=(50, columns)))
    expected = LinearAutoencoder(3).fit(rows)
    assert_allclose(model.components_[:, places], expected.components_, atol=1e-10)
    assert model.certificate_.holds
    assert "/200 [" in capsys.readouterr().err


def _transitions(dask_scheduler):
    return dask_scheduler.transition_counter


@pytest.mark.parametrize(
    "model",
    [DropoutRegressor(2, dropout="cv", cv=3), SparseVAE(noise_variance="cv", cv=3), None],
    ids=lambda model: type(model).__name__,
)
def test_folds_and_stacks_of_problems_are_computed_by_the_workers(model, client):
    X, rng = spread_rows(90), np.random.default_rng(1)
    y = X[:, :3] @ np.ones((3, 2)) + rng.standard_normal((90, 2))
    Phi = rng.standard_normal((4, 12, 20))
    stack = Phi[:, :, :2] @ rng.standard_normal((4, 2, 5))

    def coefficients():
        if model is None:
            return solve_batch(Phi, stack, noise_variance=0.01).value.coef
        return clone(model).fit(X, y).coef_

    expected, before = coefficients(), client.run_on_scheduler(_transitions)
    with joblib.parallel_config("dask"):
        found = coefficients()
    assert client.run_on_scheduler(_transitions) > before
    assert_array_equal(found, expected)


# Ctrl-C. Files in a folder tell the processes how far the others are.


def wait_for_file(path, seconds=60):
    """Wait until a file exists; the limit only ends a test that has failed already."""
    end = time.monotonic() + seconds
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.01)


def interrupting(block, process, folder, block_id=None):
    """In chunk 20, send Ctrl-C to the process that fits."""
    if block_id is not None and block_id[0] == 20:
        os.kill(process, signal.SIGINT)
        wait_for_file(Path(folder, "caught"))
    return block


def interrupted_fit(X, folder, chunks=None, words="interrupted"):
    """Fit to chunks that send Ctrl-C; return what was kept, and the estimator."""
    rows = da.from_array(X, chunks=(100, 20))
    rows = rows.map_blocks(interrupting, os.getpid(), str(folder), dtype=X.dtype)
    estimator = LinearAutoencoder(4)
    with pytest.raises(ReadInterrupted, match=words) as caught:
        estimator.fit(rows if chunks is None else chunks(rows))
    (folder / "caught").touch()
    return caught.value, estimator


def check_that_the_fit_goes_on(stop, estimator, X):
    """Make sure that the moment is that of the first rows, and that the others can be added."""
    assert_allclose(stop.moment.mean, X[: stop.n_rows].mean(axis=0))
    rest = row_blocks(da.from_array(X, chunks=(100, 20)), first_row=stop.n_rows)
    estimator.fit_batches(rest, start=stop.moment)
    assert estimator.n_samples_seen_ == len(X)
    assert_allclose(estimator.components_, LinearAutoencoder(4).fit(X).components_, atol=1e-10)


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("block_bytes", [2**14, 2**25], ids=["summarised", "loaded"])
def test_an_interruption_leaves_the_moment_of_the_finished_waves(
    scheduler, tmp_path, monkeypatch, block_bytes
):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", block_bytes)
    monkeypatch.setattr(dask_blocks, "WAVE", 3)
    X = spread_rows()
    with dask.config.set(num_workers=2):
        stop, estimator = interrupted_fit(X, tmp_path)
    assert stop.n_rows == 1800  # three waves of six chunks
    check_that_the_fit_goes_on(stop, estimator, X)


@pytest.mark.usefixtures("ctrl_c", "client")
def test_an_interruption_while_chunks_are_counted_says_that_nothing_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 2**25)
    words = r"after 0 rows were read; no moment .* begin anew"
    unknown = lambda rows: rows[rows[:, 0] > -np.inf]  # noqa: E731
    interrupted_fit(spread_rows(6000), tmp_path, unknown, words)
