"""Bad data: one sentence that names the block and the row, and an estimator left as it was."""

import os
import shutil

import numpy as np
import pytest
import scipy.sparse
from numpy.testing import assert_allclose

from extras import require
from lucidae import (
    DropoutAutoencoder,
    DropoutRegressor,
    LinearAutoencoder,
    SecondMoment,
    certify,
)
from lucidae.data import ReadInterrupted, row_blocks


def rows_of(n=4000, m=6, seed=0):
    return np.random.default_rng(seed).standard_normal((n, m)) * np.arange(m, 0, -1) + 1


def batches_of(X, size=100):
    return (X[start : start + size] for start in range(0, len(X), size))


@pytest.mark.parametrize("estimator", [LinearAutoencoder(2), DropoutAutoencoder(2)])
def test_batches_of_changing_width_are_refused(estimator):
    X = rows_of()
    with pytest.raises(ValueError, match=r"block 1 of X has 5 columns, but 6 are expected"):
        estimator.fit(iter([X, X[:, :5]]))


def test_batches_of_changing_dtype_are_refused():
    X = rows_of()
    with pytest.raises(ValueError, match=r"block 1 of X has dtype float32, but float64"):
        LinearAutoencoder(2).fit(iter([X, X.astype(np.float32)]))


def framed(X):
    return require("pandas").DataFrame(X).add_prefix("c")


TEXTS = {
    "text": (lambda X: X.astype(str), "text"),
    "bytes": (lambda X: X.astype("S"), "text"),
    "objects": (lambda X: X.astype(str).astype(object), "text"),
    "list": (lambda X: X.astype(str).tolist(), "text"),
    "columns of text": (lambda X: framed(X).astype({"c1": str}), "text in column 'c1'"),
    "objects in a column": (
        lambda X: framed(X).astype({"c1": str}).astype({"c1": object}),
        "text in column 'c1'",
    ),
    "categories": (
        lambda X: framed(X.round()).astype({"c2": "category"}),
        "categories in column 'c2'",
    ),
    "polars": (
        lambda X: require("polars").DataFrame(X).cast({"column_3": require("polars").String}),
        "text in column 'column_3'",
    ),
}


@pytest.mark.parametrize("at", [0, 57])
@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize("blocks_are_small", [True, False])
def test_text_that_could_be_read_as_numbers_is_refused(kind, at, blocks_are_small, request):
    if blocks_are_small:
        request.getfixturevalue("small_blocks")
    convert, what = TEXTS[kind]
    batches = list(batches_of(rows_of(8000)))
    batches[at] = convert(batches[at])
    sentence = rf"^block {at} of X, from row {100 * at} on: X contains {what} \(dtype .*first\.$"
    with pytest.raises(ValueError, match=sentence):
        LinearAutoencoder(2).fit(iter(batches))


@pytest.mark.parametrize("kind", ["columns of text", "categories", "polars"])
def test_text_in_a_data_frame_in_memory_is_refused(kind):
    convert, what = TEXTS[kind]
    with pytest.raises(ValueError, match=rf"^X contains {what} \(dtype .*first\.$"):
        LinearAutoencoder(2).fit(convert(rows_of()))


@pytest.mark.parametrize("dtype", [str, "S", object])
def test_text_in_dask_arrays_is_refused(dtype, small_blocks):
    text = rows_of(3000).astype(str).astype(dtype)
    chunks = require("dask.array").from_array(text, chunks=(3000, 6))
    with pytest.raises(ValueError, match=r"^block 0 of X, from row 0 on: X contains text"):
        LinearAutoencoder(2).fit(chunks)


def test_text_in_dask_frames_is_refused(small_blocks):
    dd = require("dask.dataframe")
    for kind, change in (("text", str), ("categories", "category")):
        frame = dd.from_pandas(framed(rows_of().round()).astype({"c1": change}), npartitions=1)
        with pytest.raises(ValueError, match=rf"^block 0 of X, .* {kind} in column 'c1'"):
            LinearAutoencoder(2).fit(frame)


def test_numbers_in_arrays_of_objects_are_read():
    X = rows_of()
    found = LinearAutoencoder(2).fit(iter([X[:2000], X[2000:].astype(object)]))
    assert_allclose(found.components_, LinearAutoencoder(2).fit(X).components_)


@pytest.mark.parametrize("bad", [{1, 2}, {"a": [1.0]}])
def test_sets_and_dictionaries_are_one_sentence(bad):
    kind = type(bad).__name__
    for fit in (LinearAutoencoder().fit, DropoutAutoencoder().fit, LinearAutoencoder().partial_fit):
        with pytest.raises(ValueError, match=rf"^X is of type {kind}, but an array, .* first\.$"):
            fit(bad)


@pytest.mark.parametrize("batches", [iter([]), iter([np.empty((0, 3))])])
def test_empty_iterators_are_refused(batches):
    with pytest.raises(ValueError, match="X yields no rows"):
        LinearAutoencoder(2).fit(batches)
    with pytest.raises(ValueError, match="X yields no rows"):
        SecondMoment.of(iter([]))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("wrap", [np.asarray, scipy.sparse.csr_array])
def test_nan_in_block_57_is_named_with_its_row(bad, wrap, small_blocks):
    X = rows_of(8000)
    X[5733, 4] = bad
    kind = "NaN" if np.isnan(bad) else "infinity"
    where = rf"X contains {kind} in block 57, row 5733, column 4 \(all counted from 0\)"
    batches = [wrap(batch) for batch in batches_of(X)]
    for estimator in (LinearAutoencoder(2), DropoutAutoencoder(2)):
        with pytest.raises(ValueError, match=where):
            estimator.fit(iter(batches))
    with pytest.raises(ValueError, match=where):
        SecondMoment.of(iter(batches))
    with pytest.raises(ValueError, match=where):
        LinearAutoencoder(2).fit(rows_of()).transform(iter(batches))


def test_tiny_batches_are_joined_and_still_named(small_blocks):
    X = rows_of(9000, 40)
    X[1234, 7] = np.nan
    with pytest.raises(ValueError, match="X contains NaN in block 411, row 1234, column 7"):
        SecondMoment.of(batches_of(X, 3))
    X[1234, 7] = 1e200
    with pytest.raises(ValueError, match=r"block 405 to 431 of X \(rows 1215 to 1295.*overflow"):
        SecondMoment.of(batches_of(X, 3))
    X[1234, 7] = 0.0
    assert_allclose(SecondMoment.of(batches_of(X, 3)).covariance, np.cov(X.T, bias=True))


def test_nan_in_targets_and_in_small_data_is_named_too(tmp_path, small_blocks):
    X, y = rows_of(), np.ones(4000)
    y[3001] = np.nan
    np.save(tmp_path / "x.npy", X)
    with pytest.raises(ValueError, match=r"y contains NaN in block \d+, row 3001, column 0"):
        DropoutRegressor().fit(tmp_path / "x.npy", y)


def test_nan_in_data_of_one_block_is_named_too():
    X = rows_of(100)
    X[57, 0] = np.nan
    with pytest.raises(ValueError, match="X contains NaN in block 5, row 57, column 0"):
        LinearAutoencoder(2).fit(batches_of(X, 10))


def test_nan_in_a_dask_chunk_is_named(small_blocks):
    da = require("dask.array")
    X = rows_of(8000)
    X[5733, 4] = np.nan
    chunks = da.from_array(X, chunks=(100, 4))
    where = "X contains NaN in block 57, row 5733, column 4"
    with pytest.raises(ValueError, match=where):
        LinearAutoencoder(2).fit(chunks)
    lazy = LinearAutoencoder(2).fit(rows_of()).transform(chunks)
    with pytest.raises(ValueError, match=where):
        lazy.compute()


@pytest.mark.parametrize("left", [1400, 1500.5])
def test_a_file_that_shrinks_while_it_is_read_raises_and_does_not_crash(
    left, tmp_path, small_blocks
):
    X = rows_of()
    np.save(tmp_path / "x.npy", X)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    blocks = iter(row_blocks(mapped))
    next(blocks)
    os.truncate(tmp_path / "x.npy", 128 + int(left * 48))
    with pytest.raises(ValueError, match=f"declares 4000 rows, but ends after {int(left)}"):
        list(blocks)
    with pytest.raises(ValueError, match="declares 4000 rows"):
        LinearAutoencoder(2).fit(mapped)


def test_an_incomplete_npy_file_is_refused(tmp_path):
    np.save(tmp_path / "x.npy", rows_of())
    os.truncate(tmp_path / "x.npy", 5000)
    with pytest.raises(ValueError, match=r"'x.npy' is not a complete NPY file"):
        LinearAutoencoder(2).fit(tmp_path / "x.npy")


def test_a_parquet_file_that_changes_while_it_is_read_raises(tmp_path, small_blocks):
    require("pyarrow")
    frame = require("pandas").DataFrame(rows_of(50_000), columns=list("abcdef"))
    frame.to_parquet(tmp_path / "x.parquet", row_group_size=1000)
    data = row_blocks(tmp_path / "x.parquet")
    frame[:900].to_parquet(tmp_path / "x.parquet")
    with pytest.raises(ValueError, match="declares 50000 rows, but ends after 900"):
        list(data)
    os.truncate(tmp_path / "x.parquet", 3000)
    with pytest.raises(ValueError, match=r"'x.parquet' cannot be read to its end"):
        list(data)
    with pytest.raises(ValueError, match=r"'x.parquet' is not a Parquet file"):
        row_blocks(tmp_path / "x.parquet")


def test_missing_values_of_a_parquet_file_are_named(tmp_path):
    require("pyarrow")
    frame = require("pandas").DataFrame({"a": [1, 2, None, 4], "b": [1.0, 2.0, 3.0, 4.0]})
    frame.astype({"a": "Int64"}).to_parquet(tmp_path / "x.parquet")
    where = r"'x.parquet' contains NaN in block 0, row 2, column 0, 'a' \("
    with pytest.raises(ValueError, match=where):
        SecondMoment.of(tmp_path / "x.parquet")


@pytest.mark.parametrize("n_rows", [100, 9000])
def test_missing_values_of_a_csv_file_are_named_by_their_column(tmp_path, small_blocks, n_rows):
    frame = require("pandas").DataFrame(rows_of(n_rows, 3), columns=["age", "height", "weight"])
    model = LinearAutoencoder(1).fit(frame)
    frame.iloc[57, 2] = np.nan
    frame.to_csv(tmp_path / "mine.csv", index=False)
    for use in (LinearAutoencoder(1).fit, model.transform):
        with pytest.raises(ValueError, match=r"row 57, column 2, 'weight' \(all counted from 0\)"):
            use(tmp_path / "mine.csv")


def test_other_bad_data_are_refused():
    with pytest.raises(ValueError, match="the first 30 rows are to be left out"):
        row_blocks(np.ones((20, 3)), first_row=30)
    with pytest.raises(ValueError, match="the first 30 rows are to be left out"):
        list(row_blocks(iter([np.ones((20, 3))]), first_row=30))
    with pytest.raises(ValueError, match="X is of type object"):
        row_blocks(object())
    with pytest.raises(ValueError, match="a batch of X has 4 parts"):
        DropoutRegressor().fit_batches([(np.ones((2, 2)),) * 4])
    with pytest.raises(ValueError, match="X yields float, expected batches of rows"):
        LinearAutoencoder(1).fit(iter([1.0, 2.0]))
    with pytest.raises(ValueError, match="block 0 of X, from row 0 on: Expected 2D array"):
        LinearAutoencoder(1).fit(iter(np.ones((4, 3))))
    with pytest.raises(ValueError, match="requires y"):
        DropoutRegressor().fit_batches(np.ones((20, 3)))


def test_hdf5_and_zarr_files_with_several_tables_are_refused(tmp_path):
    h5py, zarr = require("h5py"), require("zarr")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["a"], file["b"] = np.ones((4, 3)), np.ones((4, 3))
    group = zarr.open_group(tmp_path / "x.zarr", mode="w")
    for name in "ab":
        group.create_array(name, shape=(4, 3), dtype="f8")
    for name in ("x.h5", "x.zarr"):
        with pytest.raises(ValueError, match="contains 2 tables, expected exactly one"):
            LinearAutoencoder(1).fit(tmp_path / name)


@pytest.mark.parametrize("count", [3999, 4001])
def test_targets_of_another_length_are_refused(count, tmp_path, small_blocks):
    np.save(tmp_path / "x.npy", rows_of())
    mapped, y = np.load(tmp_path / "x.npy", mmap_mode="r"), np.ones(count)
    with pytest.raises(ValueError, match=r"y has (fewer|more) rows than X"):
        DropoutRegressor().fit(mapped, y)
    chunks = require("dask.array").from_array(rows_of(), chunks=(500, 6))
    with pytest.raises(ValueError, match=f"{count}"):
        DropoutRegressor().fit(chunks, y)


@pytest.mark.parametrize("weights", [-np.ones(4000), np.full(4000, np.nan), np.zeros(4000)])
def test_bad_weights_are_refused(weights, tmp_path, small_blocks):
    np.save(tmp_path / "x.npy", rows_of())
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    with pytest.raises(ValueError, match="sample_weight"):
        LinearAutoencoder(2).fit(mapped, sample_weight=weights)


def test_solvers_that_draw_rows_are_refused_for_large_data(small_blocks):
    X = rows_of()
    batches = list(batches_of(X))
    for estimator in (
        LinearAutoencoder(2, solver="stochastic"),
        LinearAutoencoder(2, method="nested_dropout", solver="gradient"),
        DropoutAutoencoder(2, solver="sgd"),
    ):
        with pytest.raises(ValueError, match="draws rows in random order"):
            estimator.fit(iter(batches))
    with pytest.raises(ValueError, match="divides the rows into folds"):
        DropoutRegressor(dropout="cv").fit_batches(zip(batches, batches, strict=True))
    with pytest.raises(ValueError, match="n_components=7 was given, but X has 6 features"):
        LinearAutoencoder(7).fit(iter(batches))


def test_a_memory_map_can_be_fitted_by_solvers_that_draw_rows(tmp_path, small_blocks):
    X = rows_of()
    np.save(tmp_path / "x.npy", X)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    settings = {"solver": "stochastic", "random_state": 0, "max_iter": 3000, "tol": 1e-2}
    model = LinearAutoencoder(1, **settings).fit(mapped)
    assert_allclose(model.components_, LinearAutoencoder(1, **settings).fit(X).components_)
    y = X[:, 0]
    assert DropoutRegressor(dropout="cv").fit(mapped, y).dropout_ >= 0.0


def interrupted_after(X, count, size=100):
    for number, batch in enumerate(batches_of(X, size)):
        if number == count:
            raise KeyboardInterrupt
        yield batch


@pytest.mark.parametrize("estimator", [LinearAutoencoder(3), DropoutAutoencoder(3)])
def test_an_interruption_leaves_the_estimator_and_a_moment_to_go_on(estimator, small_blocks):
    X = rows_of()
    estimator.fit(X[:50])
    before = dict(vars(estimator))
    with pytest.raises(ReadInterrupted) as caught:
        estimator.fit(interrupted_after(X, 17))
    stop = caught.value
    assert vars(estimator) == before
    assert stop.n_rows == 1700
    assert_allclose(stop.moment.mean, X[:1700].mean(axis=0))
    whole = stop.moment.merge(SecondMoment.of(row_blocks(X, first_row=stop.n_rows)))
    assert_allclose(whole.covariance, np.cov(X.T, bias=True))
    rest = row_blocks(X, first_row=stop.n_rows)
    estimator.fit_batches(rest, start=stop.moment)
    assert estimator._state.moment.weight == len(X)
    assert_allclose(estimator.mean_, X.mean(axis=0))


def test_an_interrupted_regression_goes_on(small_blocks):
    X = rows_of()
    y = X @ np.arange(6.0)
    with pytest.raises(ReadInterrupted) as caught:
        DropoutRegressor(dropout=0.1).fit(interrupted_after(X, 20), y)
    stop = caught.value
    assert stop.moment.n_features == 7
    model = DropoutRegressor(dropout=0.1).fit_batches(
        X[stop.n_rows :], y[stop.n_rows :], start=stop.moment
    )
    assert_allclose(model.coef_, DropoutRegressor(dropout=0.1).fit(X, y).coef_, atol=1e-10)


def test_an_interruption_of_dask_before_the_first_chunk_has_no_moment(monkeypatch, small_blocks):
    chunks = require("dask.array").from_array(rows_of(), chunks=(500, 6))

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("dask.compute", interrupt)
    with pytest.raises(ReadInterrupted) as caught:
        LinearAutoencoder(2).fit(chunks)
    assert caught.value.moment is None
    assert caught.value.n_rows == 0


def test_a_start_of_other_columns_is_refused_before_anything_is_read(small_blocks):
    start = SecondMoment.of(np.eye(3))
    for estimator in (LinearAutoencoder(2), DropoutAutoencoder(2)):
        with pytest.raises(ValueError, match="start has 3 features"):
            estimator.fit_batches(rows_of(), start=start)


def test_text_and_zarr_that_shrink_while_they_are_read_are_one_sentence(tmp_path, small_blocks):
    X = np.random.default_rng(0).standard_normal((20_000, 4))
    pandas, zarr = require("pandas"), require("zarr")
    pandas.DataFrame(X, columns=list("abcd")).to_csv(tmp_path / "x.csv", index=False)
    zarr.create_array(tmp_path / "x.zarr", data=X, chunks=(500, 4))
    for name in ("x.csv", "x.zarr"):
        blocks_of_rows = iter(row_blocks(tmp_path / name))
        next(blocks_of_rows)
        if name == "x.csv":
            os.truncate(tmp_path / name, (tmp_path / name).stat().st_size // 2)
        else:
            shutil.rmtree(tmp_path / name / "c" / "30")
        with pytest.raises(ValueError, match="has changed while it was read") as error:
            list(blocks_of_rows)
        assert "\n" not in str(error.value)


def test_dask_arrays_without_two_known_axes_are_refused():
    da = require("dask.array")
    with pytest.raises(ValueError, match="X has 3 dimensions, expected rows and columns: two"):
        LinearAutoencoder(1).fit(da.ones((4, 3, 2)))
    rows = rows_of(20)
    unknown = da.from_array(rows)[:, da.from_array(rows[0] > -np.inf)]
    with pytest.raises(ValueError, match="X has an unknown number of columns: call compute_chunk"):
        LinearAutoencoder(1).fit(unknown)
    model = LinearAutoencoder(1).fit(rows)
    with pytest.raises(ValueError, match="X has an unknown number of columns: call compute_chunk"):
        model.transform(unknown)
    assert_allclose(model.transform(unknown.compute_chunk_sizes()), model.transform(rows))


@pytest.mark.parametrize("many", [False, True])
def test_batches_with_other_targets_or_weights_than_the_first_are_refused(many, monkeypatch):
    if many:
        monkeypatch.setattr("lucidae.data.blocks.BLOCK_BYTES", 2**10)
    X = rows_of(200)
    Y, w = X[:, :3], np.ones(200)
    cases = {
        r"block 1 of X has 3 targets per row, but 2 are": [(X, Y[:, :2]), (X, Y)],
        r"block 1 of X has no targets": [(X, Y), X],
        r"block 0 of X has no targets": [X, (X, Y)],
        r"block 1 of X has no weights, but the first block has": [(X, Y, w), (X, Y)],
        r"block 1 of X has weights, but the first block has none": [(X, Y), (X, Y, w)],
    }
    for sentence, batches in cases.items():
        with pytest.raises(ValueError, match=sentence):
            DropoutRegressor(dropout=0.1).fit_batches(batches)
    with pytest.raises(ValueError, match="block 1 of X has no weights"):
        LinearAutoencoder(2).fit_batches([(X, None, w), X])


@pytest.mark.parametrize("bad", [-1.0, np.nan])
def test_a_bad_weight_is_no_missing_entry(bad):
    X, w = rows_of(200), np.ones(200)
    w[7] = bad
    with pytest.raises(ValueError, match="sample_weight contains NaN") as caught:
        LinearAutoencoder(2).fit_batches([(X, None, w)])
    assert "handle_missing" not in str(caught.value)


def test_data_with_other_columns_than_the_fit_are_not_certified(small_blocks):
    X = rows_of()
    model = LinearAutoencoder(2).fit(X)
    for data in (X[:, :3], batches_of(X[:, :3]), SecondMoment.of(X[:, :3])):
        with pytest.raises(ValueError, match=r"X has 3 features, but .* expecting 6"):
            certify(model, data)


@pytest.mark.parametrize("estimator", [LinearAutoencoder(2), DropoutAutoencoder(2)])
def test_kinds_that_a_method_does_not_take_are_one_sentence(estimator, tmp_path):
    X = rows_of(100)
    for listed in ([X, X[:50]], [X, X]):
        with pytest.raises(ValueError, match=r"X is a list of 2 arrays of rows.*fit_batches"):
            estimator.fit(listed)
    for once in (batches_of(X, 10), row_blocks(batches_of(X, 10))):
        with pytest.raises(ValueError, match=r"fit_transform reads X twice.*iterator"):
            estimator.fit_transform(once)
    assert not hasattr(estimator, "components_")
    codes = estimator.fit_transform(lambda: batches_of(X, 10))
    assert_allclose(codes, estimator.transform(X), atol=1e-9)
    np.save(tmp_path / "rows.npy", X)
    for whole in (str(tmp_path / "rows.npy"), tmp_path / "rows.npy", batches_of(X), lambda: [X]):
        with pytest.raises(ValueError, match=r"partial_fit expects one batch.*fit_batches"):
            estimator.partial_fit(whole)
    with pytest.raises(ValueError, match=r"start=3 was given, expected a SecondMoment"):
        estimator.fit_batches([X], start=3)
    with pytest.raises(ValueError, match=r"start=3 was given, expected a SecondMoment"):
        estimator.fit_batches(None, start=3)
    with pytest.raises(ValueError, match=r"first_row=-5 was given, expected an integer"):
        row_blocks(np.load(tmp_path / "rows.npy", mmap_mode="r"), first_row=-5)


def test_a_lazy_frame_has_to_be_collected():
    frame = require("polars").LazyFrame({"a": [1.0, 2.0, 4.0], "b": [2.0, 1.0, 0.0]})
    with pytest.raises(ValueError, match=r"X is a LazyFrame of polars.*X\.collect\(\)"):
        LinearAutoencoder(1).fit(frame)
    assert LinearAutoencoder(1).fit(frame.collect()).n_features_in_ == 2


def test_dask_collections_that_are_no_tables_are_refused():
    dask = require("dask")
    bag = require("dask.bag").from_sequence([1, 2])
    for collection in (bag, dask.delayed(np.eye)(3)):
        with pytest.raises(ValueError, match="expected a Dask array or data frame"):
            LinearAutoencoder(1).fit(collection)


@pytest.mark.parametrize("module", ["h5py", "zarr"])
def test_an_open_file_of_arrays_is_refused_with_their_names(module, tmp_path):
    library = require(module)
    is_hdf5 = module == "h5py"
    file = library.File(tmp_path / "f.h5", "w") if is_hdf5 else library.open_group(tmp_path / "f")
    for name in ("rows", "other"):
        if is_hdf5:
            file.create_dataset(name, data=rows_of(20))
        else:
            file.create_array(name, data=rows_of(20))
    with pytest.raises(ValueError, match=rf"X is an open file or group of {module} with .*'rows'"):
        LinearAutoencoder(2).fit(file)
    LinearAutoencoder(2).fit(file["rows"])
    if is_hdf5:
        file.close()
