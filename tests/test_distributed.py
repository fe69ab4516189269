"""Dask on a cluster of two worker processes, and on the threads of this one."""

import os
import pickle
import signal
import subprocess
import sys
import time
import warnings
from contextlib import suppress
from pathlib import Path

import joblib
import numpy as np
import pytest
import scipy.sparse
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone

from extras import require
from lucidae import (
    DropoutAutoencoder,
    DropoutRegressor,
    LinearAutoencoder,
    SecondMoment,
    SparseVAE,
    certify,
    load,
    save,
)
from lucidae.data import ReadInterrupted, blocks, row_blocks
from lucidae.data.tables import ReadOptions
from lucidae.sparsity import solve_batch

da = require("dask.array")
dd = require("dask.dataframe")
dask = require("dask")

from lucidae.data import dask_blocks
from lucidae.data.dask_collections import dask_of_file


@pytest.fixture(scope="module")
def client():
    """Return the client of two worker processes of one thread each."""
    distributed = require("distributed")
    with warnings.catch_warnings():
        # distributed and tornado leave sockets to the garbage collector when a worker is killed.
        warnings.simplefilter("ignore")
        settings = {"distributed.worker.daemon": True, "distributed.comm.retry.count": 2}
        with (
            dask.config.set(settings),
            distributed.LocalCluster(
                n_workers=2,
                threads_per_worker=1,
                processes=True,
                dashboard_address=None,
                memory_limit=0,
            ) as cluster,
            distributed.Client(cluster) as client,
        ):
            client.run(_quiet)
            yield client


def _transitions(dask_scheduler):
    return dask_scheduler.transition_counter


def _quiet():
    warnings.simplefilter("ignore", ResourceWarning)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Make blocks of 64 KiB, so that small arrays are not loaded as a whole."""
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 2**16)


def spread_rows(n=3000, m=20, dtype=np.float64):
    """Return rows with separated variances, half of the entries zero."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((n, m)) * np.linspace(6, 1, m) + 1
    return (rows * (rng.random((n, m)) < 0.5)).astype(dtype)


def all_kinds(X, folder):
    """Return the same rows as every kind of data."""
    torch, h5py, zarr = require("torch"), require("h5py"), require("zarr")
    np.save(folder / "x.npy", X)
    with h5py.File(folder / "x.h5", "w") as file:
        file.create_dataset("x", data=X, chunks=(100, 7))
    zarr.create_array(folder / "x.zarr", data=X, chunks=(100, 7))
    require("pyarrow")
    frame = require("pandas").DataFrame(X, columns=[f"c{i}" for i in range(X.shape[1])])
    frame.to_parquet(folder / "x.parquet")
    return {
        "numpy": X,
        "csr": scipy.sparse.csr_array(X),
        "torch": torch.asarray(np.array(X)),
        "memory map": np.load(folder / "x.npy", mmap_mode="r"),
        "zarr": zarr.open(folder / "x.zarr", mode="r"),
        "hdf5": folder / "x.h5",
        "parquet": folder / "x.parquet",
        "iterator": (X[i : i + 137] for i in range(0, len(X), 137)),
        "dask": da.from_array(X, chunks=(411, 7)),
    }


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_all_kinds_of_data_give_the_same_components(client, dtype, tmp_path):
    X = spread_rows(dtype=dtype)
    _, _, axes = np.linalg.svd((X - X.mean(axis=0)).astype(float), full_matrices=False)
    tolerance = 1e-10 if dtype == np.float64 else 1e-5
    for kind, data in all_kinds(X, tmp_path).items():
        found = np.asarray(LinearAutoencoder(4).fit(data).components_)
        signs = np.sign(np.sum(found * axes[:4], axis=1, keepdims=True))
        assert found.dtype == dtype, kind
        assert_allclose(found, signs * axes[:4], atol=tolerance, err_msg=kind)


def marked_by_process(block, folder):
    """Leave a file with the number of the process that has the block."""
    Path(folder, str(os.getpid())).touch()
    return block


def test_moments_are_computed_by_the_workers(client, tmp_path):
    chunks = da.from_array(spread_rows(), chunks=(100, 20))
    SecondMoment.of(chunks.map_blocks(marked_by_process, str(tmp_path), meta=chunks._meta))
    processes = {int(path.name) for path in tmp_path.iterdir()}
    assert processes <= set(client.run(os.getpid).values())


def once_and_killed(block, folder, block_id=None):
    """Kill the worker in the middle of the data, once; afterwards return the block."""
    mark = Path(folder, "killed")
    if block_id is not None and block_id[0] == 12 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return block


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
    monkeypatch.setattr("lucidae.linear.batches.LOADED_BYTES", 2**16)
    monkeypatch.setattr("lucidae.data.passes.DELAY", 0.0)
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((200, 20)) * 2.0 ** -np.arange(20) + 1
    X, places = np.zeros((200, 10_000)), np.arange(20) * 497
    X[:, places] = rows
    model = LinearAutoencoder(3, verbose=True).fit(da.from_array(X, chunks=(50, columns)))
    expected = LinearAutoencoder(3).fit(rows)
    assert_allclose(model.components_[:, places], expected.components_, atol=1e-10)
    assert model.certificate_.holds
    assert "of 200 rows" in capsys.readouterr().err


@pytest.fixture(params=["threads", "cluster"])
def scheduler(request):
    """Compute on the threads of this process, or on the cluster."""
    if request.param == "cluster":
        request.getfixturevalue("client")
        yield request.param
        return
    with dask.config.set(scheduler="threads"):
        yield request.param


def test_regression_with_targets_and_weights_in_other_chunks(scheduler):
    X, rng = spread_rows(), np.random.default_rng(1)
    Y = X @ rng.standard_normal((20, 3)) + rng.standard_normal((3000, 3))
    w = rng.integers(0, 3, 3000).astype(float)
    w[:411] = 0.0  # the first chunk has no weight
    expected = DropoutRegressor(dropout=0.2).fit(X, Y, w)
    chunks = da.from_array(X, chunks=(411, 7))
    targets, weights = da.from_array(Y, chunks=(100, 2)), da.from_array(w, chunks=333)
    for y, sample_weight in [(targets, weights), (Y, w), (targets, w), (Y, weights)]:
        model = DropoutRegressor(dropout=0.2).fit(chunks, y, sample_weight)
        assert_allclose(model.coef_, expected.coef_, atol=1e-10)
    predicted = model.predict(chunks)
    assert predicted.chunks == (chunks.chunks[0], (3,))
    assert_allclose(predicted, expected.predict(X), atol=1e-10)
    assert certify(model, chunks, targets, sample_weight=weights).holds
    assert_allclose(model.score(chunks, targets), expected.score(X, Y))


def test_transform_is_lazy_keeps_chunks_and_the_weights_of_its_time(scheduler):
    X = spread_rows()
    model = LinearAutoencoder(4, whiten=True).fit(X)
    codes, calls = model.transform(X), []

    def counted(block):
        calls.append(len(block))
        return block

    if dask.config.get("scheduler", None) == "threads":
        chunks = da.from_array(X, chunks=(411, 7)).map_blocks(counted, dtype=X.dtype)
        calls.clear()
        model.transform(chunks)
        assert calls == []
    chunks = da.from_array(X, chunks=(411, 7))
    lazy = model.transform(chunks)
    back, scores = model.inverse_transform(lazy), model.score_samples(chunks)
    assert lazy.chunks == (chunks.chunks[0], (4,))
    assert scores.chunks == (chunks.chunks[0],)
    expected = model.inverse_transform(codes), model.score_samples(X)
    model.fit(X[:100])
    assert_allclose(lazy, codes, atol=1e-10)
    assert_allclose(back, expected[0], atol=1e-10)
    assert_allclose(scores, expected[1], atol=1e-8)


@pytest.mark.parametrize("make", [scipy.sparse.csr_array, scipy.sparse.csr_matrix])
def test_sparse_chunks_stay_sparse(scheduler, make):
    X = spread_rows()
    chunks = da.from_array(X, chunks=(411, 20)).map_blocks(make)
    expected = LinearAutoencoder(4).fit(scipy.sparse.csr_array(X))
    model = LinearAutoencoder(4).fit(chunks)
    assert_allclose(model.components_, expected.components_, atol=1e-10)
    assert_allclose(model.transform(chunks), expected.transform(X), atol=1e-10)


def test_chunks_of_another_library_are_summed_there_and_merged_on_the_host():
    torch, X = require("torch"), spread_rows()
    parts = [
        da.from_delayed(
            dask.delayed(torch.asarray)(np.array(X[i : i + 500])), (500, 20), dtype=X.dtype
        )
        for i in range(0, 3000, 500)
    ]
    with dask.config.set(scheduler="threads"):
        moment = SecondMoment.of(da.concatenate(parts))
    assert isinstance(moment.squares, np.ndarray)
    assert_allclose(moment.covariance, np.cov(X.T, bias=True), atol=1e-10)


def test_chunks_of_unknown_size(scheduler):
    X, rng = spread_rows(), np.random.default_rng(1)
    y, w = X @ np.arange(20.0), rng.integers(1, 3, 3000).astype(float)
    chosen = X[:, 0] > -2.0
    mask = da.from_array(chosen, chunks=411)
    chunks = da.from_array(X, chunks=(411, 20))[mask]
    targets, weights = (da.from_array(part, chunks=411)[mask] for part in (y, w))
    assert np.isnan(chunks.shape[0])
    expected = DropoutRegressor(dropout=0.1).fit(X[chosen], y[chosen], w[chosen])
    for given in [(targets, weights), (y[chosen], w[chosen])]:
        model = DropoutRegressor(dropout=0.1).fit(chunks, *given)
        assert_allclose(model.coef_, expected.coef_, atol=1e-10)
        assert model.coef_.shape == (20,)
    assert_allclose(model.predict(chunks), expected.predict(X[chosen]), atol=1e-9)
    with pytest.raises(ValueError, match="compute_chunk_sizes"):
        DropoutRegressor(dropout=0.1).fit(chunks, da.from_array(y, chunks=1000))


def test_small_chunks_of_unknown_size_are_counted_and_loaded(scheduler):
    X = spread_rows(200)
    chunks = da.from_array(X, chunks=(50, 20))[da.from_array(X[:, 0] > -1e9, chunks=50)]
    model = LinearAutoencoder(3).fit(chunks)
    expected = LinearAutoencoder(3).fit(X)
    assert_allclose(model.components_, expected.components_, atol=1e-10)
    assert len(model.certificate_) == len(expected.certificate_)


def test_data_frames_keep_their_index_and_names(scheduler):
    pandas = require("pandas")
    X = spread_rows()
    index = pandas.Index(np.arange(3000) * 10, name="key")
    frame = pandas.DataFrame(X, columns=[f"c{i}" for i in range(20)], index=index)
    parts = dd.from_pandas(frame, npartitions=7)
    model = LinearAutoencoder(4).fit(parts)
    expected = LinearAutoencoder(4).fit(frame)
    assert_array_equal(model.feature_names_in_, expected.feature_names_in_)
    codes = model.transform(parts)
    assert codes.npartitions == 7
    found = codes.compute()
    assert list(found.columns) == list(model.get_feature_names_out())
    assert found.index.equals(index)
    assert_allclose(found, expected.transform(frame), atol=1e-10)
    back = model.inverse_transform(codes.rename(columns=dict(enumerate(codes.columns)))).compute()
    assert list(back.columns) == list(frame.columns)
    y = frame["c0"] - frame["c3"]
    regressor = DropoutRegressor(dropout=0.1).fit(parts, parts["c0"] - parts["c3"])
    wanted = DropoutRegressor(dropout=0.1).fit(frame, y)
    assert_allclose(regressor.coef_, wanted.coef_, atol=1e-10)
    predictions = regressor.predict(parts).compute()
    assert isinstance(predictions, pandas.Series)
    assert predictions.index.equals(index)
    autoencoder = DropoutAutoencoder(3, dropout=0.2).fit(parts)
    assert_allclose(
        autoencoder.objective_, DropoutAutoencoder(3, dropout=0.2).fit(frame).objective_
    )


def test_row_groups_of_a_parquet_file_become_partitions_of_at_most_one_block(scheduler, tmp_path):
    pandas, X = require("pandas"), spread_rows()
    require("pyarrow")
    frame = pandas.DataFrame(X, columns=[f"c{i}" for i in range(20)])
    frame.to_parquet(tmp_path / "rows.parquet", row_group_size=150)  # a block has 409 rows
    parts = dask_of_file(tmp_path / "rows.parquet")
    assert parts.npartitions == 10
    assert parts.map_partitions(len).compute().tolist() == [300] * 10
    chosen = dask_of_file(tmp_path / "rows.parquet", ReadOptions(columns=("c7", "c2")))
    assert_array_equal(chosen.compute(), X[:, [7, 2]])
    frame.to_parquet(tmp_path / "one.parquet")
    assert dask_of_file(tmp_path / "one.parquet").npartitions == 1
    model = LinearAutoencoder(4).fit(parts)
    assert_allclose(model.components_, LinearAutoencoder(4).fit(X).components_, atol=1e-10)


@pytest.mark.parametrize("model", [LinearAutoencoder(3), DropoutAutoencoder(3)])
def test_pandas_output_of_a_lazy_frame_is_a_lazy_frame_with_its_index(model):
    pandas, X = require("pandas"), spread_rows(300)
    frame = pandas.DataFrame(X, index=np.arange(300) * 10).add_prefix("c")
    parts = dd.from_pandas(frame, npartitions=3)
    with dask.config.set(scheduler="threads"):
        model = clone(model).fit(frame)
        expected, names = model.transform(frame), list(model.get_feature_names_out())
        model.set_output(transform="pandas")
        for codes in (model.transform(parts), clone(model).fit_transform(parts)):
            assert isinstance(codes, dd.DataFrame)
            found = codes.compute()
            assert list(found.columns) == names
            assert found.index.equals(frame.index)
            assert_allclose(found, expected, atol=1e-10)
        of_array = clone(model).fit(X).transform(da.from_array(X, chunks=(100, 20)))
        assert isinstance(of_array, dd.DataFrame)
        assert_allclose(of_array.compute(), expected, atol=1e-10)
        assert isinstance(model.transform(frame), pandas.DataFrame)
        with pytest.raises(ValueError, match=r"'polars'.*was called, but the codes of a Dask"):
            model.set_output(transform="polars").transform(parts)


def test_predictions_of_a_lazy_frame_have_the_names_of_the_targets(tmp_path):
    pandas, X = require("pandas"), spread_rows(300)
    frame = pandas.DataFrame(X).add_prefix("c")
    parts = dd.from_pandas(frame, npartitions=3)
    with dask.config.set(scheduler="threads"):
        for Y in (parts[["c0", "c3"]], frame[["c0", "c3"]]):
            model = DropoutRegressor(dropout=0.1).fit(parts, Y)
            save(model, tmp_path / "model.npz")
            found = load(tmp_path / "model.npz").predict(parts)
            assert list(found.columns) == ["c0", "c3"] == list(found.compute().columns)
        model = DropoutRegressor(dropout=0.1).fit(parts, parts["c3"])
        assert model.predict(parts).compute().name == "c3"
        model.fit(X, X[:, :2])
        assert "_target_names" not in vars(model)


def models_of_every_method(X):
    """Yield fitted estimators with the names of their methods that map rows to rows."""
    y = X @ np.arange(20.0)
    yield LinearAutoencoder(4).fit(X), ("transform", "score_samples")
    yield DropoutAutoencoder(3, dropout=0.2).fit(X), ("transform",)
    yield DropoutRegressor(dropout=0.2).fit(X, y), ("predict",)
    yield DropoutRegressor(2, dropout=0.2).fit(X, np.outer(y, [1.0, 2.0])), ("predict",)


@pytest.mark.parametrize("columns", [20, 7])
def test_chunks_without_rows_give_results_without_rows(columns, monkeypatch):
    X, sizes = spread_rows(300), (100, 0, 200, 0)
    chunks = da.from_array(X, chunks=(sizes, columns))
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 2**10)
    with dask.config.set(scheduler="threads"):
        for model, methods in models_of_every_method(X):
            for method in methods:
                found, expected = getattr(model, method)(chunks), getattr(model, method)(X)
                assert found.shape == expected.shape
                assert found.dtype == expected.dtype
                assert_allclose(found, expected, atol=1e-10)
                assert getattr(model, method)(chunks[:0]).compute().shape[0] == 0
            if hasattr(model, "inverse_transform"):
                codes = model.transform(X)
                lazy = da.from_array(codes, chunks=(sizes, codes.shape[1]))
                expected = model.inverse_transform(codes)
                assert_allclose(model.inverse_transform(lazy), expected, atol=1e-10)
                sparse = model.transform(chunks.map_blocks(scipy.sparse.csr_array))
                assert_allclose(sparse, codes, atol=1e-10)


def test_a_mask_that_leaves_a_chunk_without_rows(scheduler):
    X = spread_rows(300)
    chunks, model = da.from_array(X, chunks=(100, 20)), LinearAutoencoder(4).fit(X)
    chosen = np.arange(300) >= 150
    found = model.transform(chunks[da.from_array(chosen, chunks=100)])
    assert_allclose(found.compute(), model.transform(X[chosen]), atol=1e-10)


def test_errors_come_back_from_the_workers(scheduler):
    X = spread_rows()
    X[1733, 4] = np.nan
    with pytest.raises(ValueError, match="X contains NaN in block 17, row 1733, column 4"):
        LinearAutoencoder(2).fit(da.from_array(X, chunks=(100, 20)))


def lazy_rows(kind, X, folder):
    """Return rows as a Dask collection, of an array or a file."""
    chunks = da.from_array(X, chunks=(100, 20))
    if kind == "empty chunks":
        return da.from_array(X, chunks=((0, 100) * 30, 20))
    if kind == "unknown sizes":
        return chunks[chunks[:, 0] > -np.inf]
    if kind in ("columns", "array"):
        return chunks if kind == "array" else da.from_array(X, chunks=(100, 7))
    frame = require("pandas").DataFrame(X).add_prefix("c")
    if kind == "frame":
        return dd.from_pandas(frame, npartitions=30)
    if kind == "npy":
        np.save(folder / "x.npy", X)
    elif kind == "parquet":
        require("pyarrow")
        frame.to_parquet(folder / "x.parquet", row_group_size=100)
    else:
        frame.to_csv(folder / "x.csv", index=False)
    return dask_of_file(folder / f"x.{kind}")


KNOWN = {
    "array": "block 17, row 1733, column 4 ",
    "columns": "block 17, row 1733, column 4 ",
    "empty chunks": "block 35, row 1733, column 4 ",
    "npy": "block 4, row 1733, column 4 ",
    "parquet": "block 4, row 1733, column 4, 'c4' ",
}


@pytest.mark.filterwarnings("ignore:X (has|does not)")
@pytest.mark.parametrize("kind", KNOWN)
@pytest.mark.parametrize("small", [False, True])
def test_the_row_of_a_bad_entry_is_counted_in_the_whole_data(
    kind, small, scheduler, tmp_path, monkeypatch
):
    X = spread_rows()
    model = LinearAutoencoder(2).fit(X)
    X[1733, 4] = np.nan
    data = lazy_rows(kind, X, tmp_path)
    if small:  # the rows are loaded
        monkeypatch.setattr(blocks, "BLOCK_BYTES", 2**25)
    named = f"X contains NaN in {KNOWN[kind]}(all counted from 0)."
    for call in (LinearAutoencoder(2).fit, DropoutAutoencoder(2).fit, model.transform):
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            np.asarray(call(data))
        assert str(caught.value).startswith(named), call


UNKNOWN = {"unknown sizes": (17, 33, ""), "frame": (17, 33, ", 'c4'"), "csv": (None, None, "")}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", UNKNOWN)
def test_the_row_of_a_bad_entry_is_counted_in_its_chunk_if_sizes_are_unknown(
    kind, scheduler, tmp_path
):
    X = spread_rows()
    model = LinearAutoencoder(2).fit(X)
    later, first = np.array(X), np.array(X)
    later[1733, 4] = first[3, 5] = np.nan
    chunk, row, name = UNKNOWN[kind]
    for folder in ("later", "first"):
        (tmp_path / folder).mkdir()
    bad = lazy_rows(kind, later, tmp_path / "later")
    bad_at_first = lazy_rows(kind, first, tmp_path / "first")
    for call in (LinearAutoencoder(2).fit, SecondMoment.of, model.transform):
        with pytest.raises(ValueError, match="X contains NaN in block") as caught:
            np.asarray(call(bad))
        said = str(caught.value)
        assert "of this block" in said
        assert "how many rows are before this block is not known" in said
        assert "row 1733" not in said
        if chunk is not None:
            assert f"block {chunk}, row {row} of this block, column 4{name} (" in said
        with pytest.raises(ValueError, match=r"block 0, row 3, column 5.* \(all counted from 0\)"):
            np.asarray(call(bad_at_first))  # no row is before this block


def test_the_row_of_a_bad_target_beside_chunks_of_unknown_length():
    X, y = spread_rows(), np.ones(3000)
    y[777] = np.nan
    frame = require("pandas").DataFrame(X).assign(y=y).add_prefix("c")
    parts = dd.from_pandas(frame, npartitions=30)
    with (
        dask.config.set(scheduler="threads"),
        pytest.raises(ValueError, match="y contains NaN in block 7, row 77 of this block"),
    ):
        DropoutRegressor(dropout=0.1).fit(parts.drop(columns="cy"), parts["cy"])


def test_rows_that_are_left_out_count(client, tmp_path):
    X = spread_rows()
    X[1733, 4] = np.nan
    rest = row_blocks(da.from_array(X, chunks=(100, 20)), first_row=1250)
    assert rest.n_rows_to_read == 1750
    with pytest.raises(ValueError, match="X contains NaN in block 5, row 1733, column 4"):
        LinearAutoencoder(2).fit_batches(rest)
    X[1733, 4] = 0.0
    chunks = da.from_array(X, chunks=(100, 20))
    marked = chunks.map_blocks(marked_by_process, str(tmp_path), meta=chunks._meta)
    model = LinearAutoencoder(2).fit_batches(row_blocks(marked, first_row=1250))
    assert_allclose(model.mean_, X[1250:].mean(axis=0))
    # The rest of an interrupted pass is read by the workers as well.
    processes = {int(path.name) for path in tmp_path.iterdir()}
    assert processes <= set(client.run(os.getpid).values())


@pytest.mark.parametrize(
    "model",
    [DropoutRegressor(2, dropout="cv", cv=3), SparseVAE(noise_variance="cv", cv=3)],
    ids=lambda model: type(model).__name__,
)
def test_folds_are_computed_by_the_workers(model, client):
    X = spread_rows(90)
    y = X[:, :3] @ np.ones((3, 2)) + np.random.default_rng(1).standard_normal((90, 2))
    expected = clone(model).fit(X, y)
    before = client.run_on_scheduler(_transitions)
    with joblib.parallel_config("dask"):
        found = clone(model).fit(X, y)
    assert client.run_on_scheduler(_transitions) > before
    assert_array_equal(found.coef_, expected.coef_)


def test_a_stack_of_problems_is_solved_by_the_workers(client):
    rng = np.random.default_rng(2)
    Phi = rng.standard_normal((4, 12, 20))
    y = Phi[:, :, :2] @ rng.standard_normal((4, 2, 5))
    with joblib.parallel_config("dask"):
        found = solve_batch(Phi, y, noise_variance=0.01)
    assert_array_equal(found.value.coef, solve_batch(Phi, y, noise_variance=0.01).value.coef)


def interrupting(block, process, folder, block_id=None):
    """In chunk 12, send Ctrl-C to a process that knows all that it can know without this chunk."""
    if block_id is not None and block_id[0] == 12:
        wait_for_file(Path(folder, "summarised"))
        os.kill(process, signal.SIGINT)
        wait_for_file(Path(folder, "caught"))
    return block


def wait_for_file(path, seconds=60):
    """Wait until a file exists; the limit only ends a test that has failed already."""
    end = time.monotonic() + seconds
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.01)


def tell_when_summarised(path, monkeypatch):
    """Let this process write a file when it has received every summary without chunk 12.

    Of 30 chunks and their 4 joins, which are 8, 8, 8 and 6 chunks, only the last summary, the join
    of chunks 8 to 15, and chunk 12 itself are pending then.
    """
    distributed = require("distributed")
    whole, stored = distributed.Future.result, dask_blocks._after_task
    others = {(1, 0), (1, 2), (1, 3)} | {(0, chunk) for chunk in range(8, 16) if chunk != 12}

    def result(future, *arguments):
        states, end = future.client.futures, time.monotonic() + 5.0
        # Tasks may wait behind chunk 12 for the same worker; then less is known.
        while sum(state.status == "pending" for state in list(states.values())) > 3:
            if time.monotonic() > end:
                break
            time.sleep(0.01)
        path.touch()
        return whole(future, *arguments)

    def after_task(places, found, *task):
        stored(places, found, *task)
        if others <= set(found):
            path.touch()

    monkeypatch.setattr(distributed.Future, "result", result)
    monkeypatch.setattr(dask_blocks, "_after_task", after_task)


@pytest.mark.usefixtures("ctrl_c")
def test_an_interruption_leaves_the_moment_of_the_first_chunks(scheduler, tmp_path, monkeypatch):
    X = spread_rows()
    chunks = da.from_array(X, chunks=(100, 20)).map_blocks(
        interrupting, os.getpid(), str(tmp_path), dtype=X.dtype
    )
    tell_when_summarised(tmp_path / "summarised", monkeypatch)
    estimator = LinearAutoencoder(4)
    with dask.config.set(num_workers=2), pytest.raises(ReadInterrupted) as caught:
        estimator.fit(chunks)
    (tmp_path / "caught").touch()
    stop = caught.value
    assert stop.n_rows == 1200 if scheduler == "threads" else stop.n_rows in range(100, 1300, 100)
    assert_allclose(stop.moment.mean, X[: stop.n_rows].mean(axis=0))
    rest = row_blocks(da.from_array(X, chunks=(100, 20)), first_row=stop.n_rows)
    estimator.fit_batches(rest, start=stop.moment)
    assert estimator.n_samples_seen_ == 3000
    assert_allclose(estimator.components_, LinearAutoencoder(4).fit(X).components_, atol=1e-10)


def interrupting_in_the_middle(block, process, folder, block_id=None):
    """Return the chunk, if it is one of the first 20 to be computed; otherwise send Ctrl-C."""
    if block_id is not None:
        Path(folder, f"begun-{block_id[0]}").touch()
        if len(list(Path(folder).glob("begun-*"))) > 20:
            wait_for_file(Path(folder, "summarised"))
            with suppress(FileExistsError):
                Path(folder, "sent").touch(exist_ok=False)
                os.kill(process, signal.SIGINT)
            wait_for_file(Path(folder, "caught"))
    return block


def tell_when_16_are_summarised(path, monkeypatch):
    """Let this process write a file when it has received the summaries of 16 chunks."""
    distributed = require("distributed")
    whole, stored, seen = distributed.Future.result, dask_blocks._after_task, set()

    def result(future, *arguments):
        end = time.monotonic() + 60.0  # it only ends a test that has failed already
        while time.monotonic() < end:
            states = list(future.client.futures.items())
            if sum("_summary" in str(key) and one.status == "finished" for key, one in states) > 15:
                break
            time.sleep(0.01)
        path.touch()
        return whole(future, *arguments)

    def after_task(places, found, key, *task):
        stored(places, found, key, *task)
        if places.get(key, (1, 0))[0] == 0:
            seen.add(key)
        if len(seen) > 15:
            path.touch()

    # Finished summaries of chunks stay known until the test has counted them.
    monkeypatch.setattr(dask_blocks, "_drop_joined", lambda *_: None)
    monkeypatch.setattr(distributed.Future, "result", result)
    monkeypatch.setattr(dask_blocks, "_after_task", after_task)


@pytest.mark.usefixtures("ctrl_c")
def test_the_first_chunks_are_computed_first(scheduler, tmp_path, monkeypatch):
    X = spread_rows(6000)
    chunks = da.from_array(X, chunks=(100, 20)).map_blocks(
        interrupting_in_the_middle, os.getpid(), str(tmp_path), dtype=X.dtype
    )
    tell_when_16_are_summarised(tmp_path / "summarised", monkeypatch)
    with dask.config.set(num_workers=2), pytest.raises(ReadInterrupted) as caught:
        LinearAutoencoder(4).fit(chunks)
    (tmp_path / "caught").touch()
    stop = caught.value
    # Of 1600 rows or a few more. A worker that is late by some chunks makes them fewer; in any
    # other order of the chunks there would be almost always none.
    assert stop.n_rows >= 300
    assert_allclose(stop.moment.mean, X[: stop.n_rows].mean(axis=0))


@pytest.mark.usefixtures("ctrl_c")
def test_an_interruption_of_few_rows_leaves_their_moment(tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 2**25)
    X = spread_rows(6000)
    chunks = da.from_array(X, chunks=(100, 20)).map_blocks(
        interrupting_in_the_middle, os.getpid(), str(tmp_path), dtype=X.dtype
    )
    (tmp_path / "summarised").touch()
    workers = dask.config.set(num_workers=1, scheduler="threads")
    with workers, pytest.raises(ReadInterrupted) as caught:
        LinearAutoencoder(4).fit(chunks)
    (tmp_path / "caught").touch()
    assert caught.value.n_rows == 2000
    assert_allclose(caught.value.moment.mean, X[:2000].mean(axis=0))


@pytest.mark.usefixtures("ctrl_c")
def test_an_interruption_of_few_rows_on_a_cluster_leaves_their_moment(
    client, tmp_path, monkeypatch
):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 2**25)
    X = spread_rows(6000)
    chunks = da.from_array(X, chunks=(100, 20)).map_blocks(
        interrupting_in_the_middle, os.getpid(), str(tmp_path), dtype=X.dtype
    )
    gathered, wait = [], dask_blocks._wait_for

    def wait_for(futures):
        end = time.monotonic() + 60.0  # it only ends a test that has failed already
        while sum(future.status == "finished" for future in futures) < 18:
            assert time.monotonic() < end
            time.sleep(0.01)
        gathered.append(len(futures))
        (tmp_path / "summarised").touch()
        wait(futures)

    monkeypatch.setattr(dask_blocks, "_wait_for", wait_for)
    estimator = LinearAutoencoder(4)
    with pytest.raises(ReadInterrupted) as caught:
        estimator.fit(chunks)
    (tmp_path / "caught").touch()
    stop = caught.value
    assert gathered == [60]
    assert stop.n_rows in range(100, 2200, 100)  # two workers may change the order of chunks
    assert_allclose(stop.moment.mean, X[: stop.n_rows].mean(axis=0))
    rest = row_blocks(da.from_array(X, chunks=(100, 20)), first_row=stop.n_rows)
    estimator.fit_batches(rest, start=stop.moment)
    assert estimator.n_samples_seen_ == 6000
    assert_allclose(estimator.components_, LinearAutoencoder(4).fit(X).components_, atol=1e-10)


@pytest.mark.usefixtures("ctrl_c")
def test_an_interruption_while_chunks_are_counted_says_that_nothing_is_kept(
    client, tmp_path, monkeypatch
):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 2**25)
    X = spread_rows(6000)
    chunks = da.from_array(X, chunks=(100, 20)).map_blocks(
        interrupting, os.getpid(), str(tmp_path), dtype=X.dtype
    )
    (tmp_path / "summarised").touch()
    with pytest.raises(ReadInterrupted, match=r"after 0 rows were read; no moment .* begin anew"):
        LinearAutoencoder(4).fit(chunks[chunks[:, 0] > -np.inf])
    (tmp_path / "caught").touch()


def _slow_reading(folder, slow):
    """Let a worker wait before it returns rows of a Parquet file, or read as before."""
    from lucidae.data.files import ParquetBlocks

    known = vars(ParquetBlocks)
    original = known["rows_of_groups"]
    original = getattr(original, "original", original)

    def waiting(*arguments):
        Path(folder, "begun").touch()
        wait_for_file(Path(folder, "caught"))
        return original(*arguments)

    waiting.original = original
    ParquetBlocks.rows_of_groups = waiting if slow else original


CLI = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from lucidae.data import blocks
blocks.BLOCK_BYTES = 2**16
from lucidae_app import main
main(sys.argv[1:])
"""


def test_ctrl_c_of_a_command_on_a_cluster_is_two_sentences(client, tmp_path):
    require("typer")
    require("pyarrow")
    frame = require("pandas").DataFrame(spread_rows()).add_prefix("c")
    frame.to_parquet(tmp_path / "rows.parquet", row_group_size=100)
    client.run(_slow_reading, str(tmp_path), True)
    command = ["fit", "linear", "rows.parquet", "--scheduler", client.scheduler.address]
    try:
        with subprocess.Popen(
            [sys.executable, "-c", CLI, *command],
            cwd=tmp_path,
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            wait_for_file(tmp_path / "begun")
            time.sleep(0.5)  # the command waits for the workers
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=60)
    finally:
        (tmp_path / "caught").touch()
        client.run(_slow_reading, str(tmp_path), False)
    assert process.returncode == 130
    assert said.split(". ")[0] == "Reading was interrupted after 0 rows"
    assert said.splitlines()[-1] == "Interrupted."
    assert len(said.splitlines()) == 2, said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["begun", "caught", "rows.parquet"]


def test_moments_travel_between_processes():
    moment = SecondMoment.of(spread_rows())
    copy = pickle.loads(pickle.dumps(moment))
    assert_array_equal(copy.covariance, moment.covariance)
    assert len(pickle.dumps(moment)) < 8 * 20 * 20 + 2000


def test_other_shapes_are_refused():
    with pytest.raises(ValueError, match="3 dimensions"):
        LinearAutoencoder(2).fit(da.zeros((4, 3, 2)))
    with pytest.raises(ValueError, match="y has 5 rows, but X has 3000 rows"):
        DropoutRegressor().fit(da.ones((3000, 20), chunks=(500, 20)), np.ones(5))


def test_targets_beside_dask_rows_are_read_in_waves(monkeypatch, tmp_path):
    monkeypatch.setattr("lucidae.data.dask_blocks.WAVE", 3)
    X = spread_rows()
    y = X @ np.arange(20.0)
    np.save(tmp_path / "y.npy", y)
    expected = DropoutRegressor(dropout=0.2).fit(X, y)
    held, rows = [], da.from_array(X, chunks=(200, 7))

    def batches():
        for start in range(0, 3000, 150):
            held.append(start)
            yield y[start : start + 150]

    with dask.config.set(scheduler="threads"):
        for targets in (tmp_path / "y.npy", batches(), batches):
            model = DropoutRegressor(dropout=0.2).fit(rows, targets)
            assert_allclose(model.coef_, expected.coef_, atol=1e-10)
        with pytest.raises(ValueError, match="y has fewer rows than X"):
            DropoutRegressor(dropout=0.2).fit(rows, (part for part in [y[:100], y[100:500]]))
        with pytest.raises(ValueError, match="y has more rows than X"):
            DropoutRegressor(dropout=0.2).fit(rows[:2500], batches())
    assert held
