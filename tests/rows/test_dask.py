"""Dask collections on the threads of this process: fits, lazy results, names, errors."""

import subprocess
import sys
import warnings

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
    certify,
    load,
    save,
)
from lucidae.rows import blocks
from lucidae.rows.dask import dask_of_file
from lucidae.rows.tables import ReadOptions

da, dd, dask = require("dask.array"), require("dask.dataframe"), require("dask")
pd = require("pandas")

pytestmark = pytest.mark.usefixtures("small_blocks")


@pytest.fixture(autouse=True)
def threads():
    with dask.config.set(scheduler="threads"):
        yield


def spread_rows(n=3000, m=20):
    """Return rows with separated variances, half of the entries zero."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((n, m)) * np.linspace(6, 1, m) + 1
    return rows * (rng.random((n, m)) < 0.5)


def frame_of(X, **options):
    return pd.DataFrame(X, **options).add_prefix("c")


def collections(X):
    """Return Dask collections of the rows X: chunks in both directions, unknown sizes, a frame."""
    array = da.from_array(X, chunks=(70, 4))
    return [array, array[array[:, 0] > -np.inf], dd.from_pandas(frame_of(X), npartitions=5)]


# Fits.


def test_transform_is_lazy_keeps_chunks_and_the_weights_of_its_time():
    X = spread_rows()
    model = LinearAutoencoder(4, whiten=True).fit(X)
    calls, chunks = [], da.from_array(X, chunks=(411, 7))
    counted = chunks.map_blocks(lambda block: calls.append(1) or block, dtype=X.dtype)
    calls.clear()
    lazy = model.transform(counted)
    assert calls == []
    back, scores = model.inverse_transform(lazy), model.score_samples(chunks)
    assert lazy.chunks == (chunks.chunks[0], (4,))
    assert scores.chunks == (chunks.chunks[0],)
    codes = model.transform(X)
    expected = codes, model.inverse_transform(codes), model.score_samples(X)
    model.fit(X[:100])
    for found, value in zip((lazy, back, scores), expected, strict=True):
        assert_allclose(found, value, atol=1e-8)


@pytest.mark.parametrize("make", [scipy.sparse.csr_array, scipy.sparse.csr_matrix])
def test_sparse_chunks_stay_sparse(make):
    X = spread_rows()
    chunks = da.from_array(X, chunks=(411, 20)).map_blocks(make)
    expected = LinearAutoencoder(4).fit(scipy.sparse.csr_array(X))
    model = LinearAutoencoder(4).fit(chunks)
    assert_allclose(model.components_, expected.components_, atol=1e-10)
    assert_allclose(model.transform(chunks), expected.transform(X), atol=1e-10)


def test_chunks_of_another_library_are_summed_there_and_merged_on_the_host():
    torch, X = require("torch"), spread_rows()
    make = dask.delayed(torch.asarray)
    parts = [
        da.from_delayed(make(np.array(X[i : i + 500])), (500, 20), dtype=X.dtype)
        for i in range(0, 3000, 500)
    ]
    moment = SecondMoment.of(da.concatenate(parts))
    assert isinstance(moment.squares, np.ndarray)
    assert_allclose(moment.covariance, np.cov(X.T, bias=True), atol=1e-10)


def test_chunks_of_unknown_size():
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
    few = X[:200]  # they are counted and loaded
    model = LinearAutoencoder(3).fit(collections(few)[1])
    expected = LinearAutoencoder(3).fit(few)
    assert_allclose(model.components_, expected.components_, atol=1e-10)
    assert len(model.certificate_) == len(expected.certificate_)


@pytest.mark.parametrize("at", range(3))
def test_missing_entries_of_wide_dask_collections(at, monkeypatch):
    X = spread_rows(20, 50)
    X[::3, 4] = np.nan
    whole = LinearAutoencoder(2, handle_missing="em").fit(X)
    model = LinearAutoencoder(2, handle_missing="em").fit(collections(X)[at])
    assert_allclose(model.components_, whole.components_, atol=1e-8)
    found, expected = certify(model, collections(X)[at]), certify(whole, X)
    assert found.holds == expected.holds
    assert [claim.name for claim in found] == [claim.name for claim in expected]
    codes = whole.transform(collections(X)[0]).compute()
    assert_allclose(codes, whole.transform(X), atol=1e-9)
    monkeypatch.setattr("lucidae.linear.certify.EXACT_FEATURES", 40)
    monkeypatch.setattr("lucidae.linear.estimator.EXACT_FEATURES", 40)
    monkeypatch.setattr("lucidae.linear.certify.LOADED_BYTES", 2**10)
    with pytest.raises(ValueError, match=r"NaN in block 0, row 0, column 4 .*load all rows"):
        LinearAutoencoder(2, handle_missing="em").fit(collections(X)[0])


def test_targets_of_any_kind_beside_dask_rows(monkeypatch, tmp_path):
    monkeypatch.setattr("lucidae.rows.dask.WAVE", 3)
    X = spread_rows()
    y = X @ np.arange(20.0)
    np.save(tmp_path / "y.npy", y)
    expected, rows = DropoutRegressor(dropout=0.2).fit(X, y), da.from_array(X, chunks=(200, 7))

    def batches():
        return (y[start : start + 150] for start in range(0, 3000, 150))

    for targets in (tmp_path / "y.npy", batches(), batches):
        model = DropoutRegressor(dropout=0.2).fit(rows, targets)
        assert_allclose(model.coef_, expected.coef_, atol=1e-10)
    with pytest.raises(ValueError, match="y has 500 rows, but X has 3000"):
        DropoutRegressor(dropout=0.2).fit(rows, (part for part in [y[:100], y[100:500]]))
    with pytest.raises(ValueError, match="y has 3000 rows, but X has 2500"):
        DropoutRegressor(dropout=0.2).fit(rows[:2500], batches())


TWICE = """
import sys
import numpy as np
import dask.array as da
from lucidae import LinearAutoencoder, SecondMoment
from lucidae.rows import blocks
assert "distributed" not in sys.modules
blocks.BLOCK_BYTES = 2**10
rows = da.from_array(np.random.default_rng(0).standard_normal((400, 6)), chunks=(50, 3))
for _ in range(2):
    assert LinearAutoencoder(2).fit(rows).n_samples_seen_ == 400
assert SecondMoment.of(rows).weight == 400.0
print("done")
"""


def test_two_fits_in_a_process_that_has_not_imported_distributed():
    require("distributed")
    found = subprocess.run([sys.executable, "-c", TWICE], capture_output=True, text=True)
    assert found.stdout.strip() == "done", found.stderr


# Frames: index and names.


def test_data_frames_keep_their_index_and_names(tmp_path):
    index = pd.Index(np.arange(3000) * 10, name="key")
    frame = frame_of(spread_rows(), index=index)
    parts = dd.from_pandas(frame, npartitions=7)
    model, expected = LinearAutoencoder(4).fit(parts), LinearAutoencoder(4).fit(frame)
    assert_array_equal(model.feature_names_in_, expected.feature_names_in_)
    codes = model.transform(parts)
    assert codes.npartitions == 7
    found = codes.compute()
    assert list(found.columns) == list(model.get_feature_names_out())
    assert found.index.equals(index)
    assert_allclose(found, expected.transform(frame), atol=1e-10)
    back = model.inverse_transform(codes.rename(columns=dict(enumerate(codes.columns)))).compute()
    assert list(back.columns) == list(frame.columns)
    for Y in (parts[["c0", "c3"]], frame[["c0", "c3"]]):
        save(DropoutRegressor(dropout=0.1).fit(parts, Y), tmp_path / "model.npz")
        found = load(tmp_path / "model.npz").predict(parts)
        assert list(found.columns) == ["c0", "c3"] == list(found.compute().columns)
    regressor = DropoutRegressor(dropout=0.1).fit(parts, parts["c3"])
    predictions = regressor.predict(parts).compute()
    assert isinstance(predictions, pd.Series)
    assert (predictions.name, predictions.index.equals(index)) == ("c3", True)
    wanted = DropoutRegressor(dropout=0.1).fit(frame, frame["c3"])
    assert_allclose(regressor.coef_, wanted.coef_, atol=1e-10)
    regressor.fit(frame.to_numpy(), frame.to_numpy()[:, :2])
    assert not hasattr(regressor.predict(da.from_array(frame.to_numpy())), "columns")


@pytest.mark.parametrize("model", [LinearAutoencoder(3), DropoutAutoencoder(3)])
def test_a_container_of_codes_is_refused_for_dask_collections(model):
    X = spread_rows(300)
    model = clone(model).fit(X).set_output(transform="pandas")
    with pytest.raises(ValueError, match="'pandas', but the codes of a Dask"):
        model.transform(da.from_array(X, chunks=(100, 20)))
    codes = clone(model).set_output(transform="default").fit_transform(collections(X)[2])
    assert isinstance(codes, dd.DataFrame)
    assert_allclose(codes.compute(), model.transform(X), atol=1e-10)


def test_row_groups_of_a_parquet_file_become_partitions_of_at_most_one_block(tmp_path):
    require("pyarrow")
    X = spread_rows()
    frame_of(X).to_parquet(tmp_path / "rows.parquet", row_group_size=150)  # a block has 409 rows
    parts = dask_of_file(tmp_path / "rows.parquet")
    assert parts.map_partitions(len).compute().tolist() == [300] * 10
    chosen = dask_of_file(tmp_path / "rows.parquet", ReadOptions(columns=("c7", "c2")))
    assert_array_equal(chosen.compute(), X[:, [7, 2]])
    frame_of(X).to_parquet(tmp_path / "one.parquet")
    assert dask_of_file(tmp_path / "one.parquet").npartitions == 1
    model = LinearAutoencoder(4).fit(parts)
    assert_allclose(model.components_, LinearAutoencoder(4).fit(X).components_, atol=1e-10)


def warnings_of(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(one.message) for one in caught]


@pytest.mark.parametrize("make", [LinearAutoencoder, DropoutAutoencoder])
def test_warnings_are_issued_once(make, tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 2**10)
    X = spread_rows(400, 6)
    array, _, frame = collections(X)
    named, plain = make(2).fit(frame.compute()), make(2).fit(X)
    np.save(tmp_path / "x.npy", X)
    frame.compute().to_parquet(tmp_path / "x.parquet")
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    for data in (array, tmp_path / "x.npy", mapped, lambda: [X, X]):
        (found,) = warnings_of(lambda rows=data: np.asarray(named.transform(rows)))
        assert "does not have valid feature names" in found
    for data in (frame, tmp_path / "x.parquet"):
        (found,) = warnings_of(lambda rows=data: np.asarray(plain.transform(rows)))
        assert "X has feature names" in found
        assert warnings_of(lambda rows=data: np.asarray(named.transform(rows))) == []
    codes = da.from_array(plain.transform(X), chunks=(70, 2))
    assert warnings_of(lambda: named.inverse_transform(codes).compute()) == []
    for data in (array, frame, lambda: iter([X, X])):
        model = LinearAutoencoder(2, solver="gradient", max_iter=2)
        assert len(warnings_of(lambda rows=data, m=model: m.fit(rows).components_)) == 1


# Chunks without rows, and errors.


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
    for model, methods in models_of_every_method(X):
        for method in methods:
            found, expected = getattr(model, method)(chunks), getattr(model, method)(X)
            assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
            assert_allclose(found, expected, atol=1e-10)
            assert getattr(model, method)(chunks[:0]).compute().shape[0] == 0
        if hasattr(model, "inverse_transform"):
            codes = model.transform(X)
            lazy = da.from_array(codes, chunks=(sizes, codes.shape[1]))
            expected = model.inverse_transform(codes)
            assert_allclose(model.inverse_transform(lazy), expected, atol=1e-10)
            sparse = model.transform(chunks.map_blocks(scipy.sparse.csr_array))
            assert_allclose(sparse, codes, atol=1e-10)
            chosen = np.arange(300) >= 150  # a chunk is left without rows
            masked = da.from_array(X, chunks=(100, 20))[da.from_array(chosen, chunks=100)]
            assert_allclose(model.transform(masked).compute(), codes[chosen], atol=1e-10)


def lazy_rows(kind, X, folder):
    """Return rows as a Dask collection, of an array or a file."""
    chunks, frame = da.from_array(X, chunks=(100, 20)), frame_of(X)
    if kind == "npy":
        np.save(folder / "x.npy", X)
    elif kind == "parquet":
        require("pyarrow")
        frame.to_parquet(folder / "x.parquet", row_group_size=100)
    elif kind == "csv":
        frame.to_csv(folder / "x.csv", index=False)
    else:
        return {
            "array": chunks,
            "columns": da.from_array(X, chunks=(100, 7)),
            "empty chunks": da.from_array(X, chunks=((0, 100) * 30, 20)),
            "unknown sizes": chunks[chunks[:, 0] > -np.inf],
            "frame": dd.from_pandas(frame, npartitions=30),
        }[kind]
    return dask_of_file(folder / f"x.{kind}")


KNOWN = {
    "array": "block 17, row 1733, column 4 ",
    "columns": "block 17, row 1733, column 4 ",
    "empty chunks": "block 35, row 1733, column 4 ",
    "npy": "block 4, row 1733, column 4 ",
    "parquet": "block 4, row 1733, column 4, 'c4' ",
}
UNKNOWN = {
    "unknown sizes": "block 17, row 33 of this block, column 4 (",
    "frame": "block 17, row 33 of this block, column 4, 'c4' (",
    "csv": " of this block",
}


@pytest.mark.covering
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", [*KNOWN, *UNKNOWN])
@pytest.mark.parametrize("small", [False, True])
def test_the_row_of_a_bad_entry_is_named(kind, small, tmp_path, monkeypatch):
    X = spread_rows()
    model = LinearAutoencoder(2).fit(X)
    later, first = np.array(X), np.array(X)
    later[1733, 4] = first[3, 5] = np.nan
    for folder in ("later", "first"):
        (tmp_path / folder).mkdir()
    bad = lazy_rows(kind, later, tmp_path / "later")
    bad_at_first = lazy_rows(kind, first, tmp_path / "first")
    if small and kind in KNOWN:  # the rows are loaded
        monkeypatch.setattr(blocks, "BLOCK_BYTES", 2**25)
    for call in (LinearAutoencoder(2).fit, SecondMoment.of, model.transform):
        with pytest.raises(ValueError, match="X contains NaN in block") as caught:
            np.asarray(call(bad))
        said = str(caught.value)
        if kind in KNOWN:
            assert said.startswith(f"X contains NaN in {KNOWN[kind]}(all counted from 0).")
        else:
            assert UNKNOWN[kind] in said
            assert "how many rows are before this block is not known" in said
            assert "row 1733" not in said
            with pytest.raises(ValueError, match=r"block 0, row 3, column 5.* \(all counted from"):
                np.asarray(call(bad_at_first))  # no row is before this block


def test_bad_rows_targets_and_weights_are_one_sentence(monkeypatch):
    X = spread_rows(400, 6)
    model = LinearAutoencoder(2).fit(X)
    before, array = dict(vars(model)), collections(X)[0]
    bad = np.array(X)
    bad[301, 2] = np.nan
    y = np.ones(400)
    y[77] = np.nan
    parts = dd.from_pandas(frame_of(X).assign(y=y), npartitions=4)
    weights = {
        r"sample_weight has shape \(400, 1\)": np.ones((400, 1)),
        "sample_weight has fewer rows than X": np.ones(300),
        "sample_weight contains values of dtype complex128": np.ones(400) * 1j,
        "sample_weight contains values of dtype <U1": np.array(["a"] * 400),
        "sample_weight contains values of dtype datetime64": np.zeros(400, "datetime64[s]"),
        "sample_weight contains NaN, infinite or negative": -np.ones(400),
        "sample_weight sums to 0": np.zeros(400),
    }
    calls = {
        "X contains NaN in block 4, row 301, column 2": lambda: model.fit(collections(bad)[0]),
        "expected a Dask array or data frame": lambda: model.fit(dask.delayed(np.eye)(3)),
        "partial_fit expects one batch of rows in memory": lambda: model.partial_fit(array),
        "y contains NaN in block 0, row 77": lambda: DropoutRegressor(dropout=0.1).fit(
            parts.drop(columns="y"), parts["y"]
        ),
        "y has 5 rows, but X has 3000 rows": lambda: DropoutRegressor().fit(
            da.ones((3000, 20), chunks=(500, 20)), np.ones(5)
        ),
        "3 dimensions": lambda: LinearAutoencoder(2).fit(da.zeros((4, 3, 2))),
    }
    for words, given in weights.items():
        calls[words] = lambda w=given: model.fit(array, sample_weight=w)
    for empty in (da.ones((4, 0)), dd.from_pandas(pd.DataFrame(index=range(4)), npartitions=1)):
        calls[f"X has no columns|{empty.ndim}"] = lambda X=empty: model.transform(X)
    for flat in (da.ones(4), dd.from_pandas(pd.Series([1.0, 2.0]), npartitions=1)):
        calls[f"X has 1 dimensions, .* two|{type(flat)}"] = lambda X=flat: model.transform(X)
    for call in (model.fit, SecondMoment.of):
        calls[f"X contains no rows|{call}"] = lambda call=call: call(da.ones((0, 6)))
    for words, call in calls.items():
        with pytest.raises(ValueError, match=words.partition("|")[0]) as caught:
            call()
        assert "\n" not in str(caught.value)
    assert vars(model) == before
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 2**10)
    for words, given in list(weights.items())[2:]:
        for w in (given, da.from_array(given, chunks=100)):
            with pytest.raises(ValueError, match=words):
                LinearAutoencoder(2).fit(array, sample_weight=w)
